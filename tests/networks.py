"""Small made-up networks as arrays and tensors, for tests that need no file."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from socialx.core.batch import Batch, TrainingBatch
from socialx.core.precision import Precision
from socialx.data import geo
from socialx.data.scaler import DataSpec, MeanStd
from socialx.data.series import Series, WindowLayout
from socialx.data.source import Arrays
from socialx.dataset.loaders import DeviceLoader, Loader, WindowOrder
from socialx.dataset.windows import split_windows
from socialx.model.forecaster import Forecaster
from socialx.model.pooling import Geometry, SocialPooling
from socialx.scoring.metrics import HorizonScores, RunningScores
from socialx.scoring.scoring_pass import run_metrics
from socialx.settings.kinds import POOLINGS
from socialx.settings.schema import DataSettings, ModelSettings, PoolingSettings, TrainerSettings
from socialx.training.learner import Learner

CPU = torch.device("cpu")
MOMENTS = (MeanStd(55.0, 8.0),)
KINDS = ("attention", "attention_mlp", "mean", "weighted_mean", "max")  # of pooling, those that use neighbours
MONDAY = 1_331_510_400  # 2012-03-12 00:00:00 read as UTC


def speeds(
    rows: int = 600, sensors: int = 5, missing: float = 0.1, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values float32 [T,N] with 0 where missing, valid bool [T,N], seconds int64 [T] every five minutes."""
    rng, step = np.random.default_rng(seed), np.arange(rows)[:, None]
    values = 55 + 8 * np.sin(2 * np.pi * step / 96 + rng.uniform(0, 6, sensors)) + rng.normal(0, 1, (rows, sensors))
    values = np.where(rng.random((rows, sensors)) < missing, 0, values).astype(np.float32)
    return values, values != 0, MONDAY + 300 * np.arange(rows, dtype=np.int64)


def loader(rows: int = 600, sensors: int = 5, batch_size: int = 8, split: str = "train", **own: object) -> DeviceLoader:
    """Windows of 12 + 12 steps of made-up speeds."""
    values, valid, seconds = speeds(rows, sensors)
    windows = split_windows(seconds, 5, DataSettings(lookback=12, horizon=12))
    return DeviceLoader(series(values, valid, seconds), WindowOrder(windows.split(split), batch_size, **own))


def example(sensors: int = 5, batch_size: int = 4, seed: int = 0) -> TrainingBatch:
    """One batch of the above with its target."""
    values, valid, seconds = speeds(200, sensors, seed=seed)
    starts, made = torch.arange(0, 7 * batch_size, 7), series(values, valid, seconds)
    return TrainingBatch(made.window(starts), made.target(starts))


def batch(sensors: int = 5, batch_size: int = 4, seed: int = 0) -> Batch:
    """What is known of it."""
    return example(sensors, batch_size, seed).batch


def series(values: np.ndarray, valid: np.ndarray, seconds: np.ndarray, lookback: int = 12, horizon: int = 12) -> Series:
    """One feature, every five minutes."""
    return Series(Arrays(values[..., None], valid[..., None], seconds), WindowLayout(lookback, horizon), CPU)


def network(
    sensors: int = 5,
    inputs: Sequence[MeanStd] = MOMENTS,
    targets: Sequence[MeanStd] = MOMENTS,
    near: geo.Neighbours | None = None,
) -> DataSpec:
    """What a model must know: 12 + 12 steps of five minutes; near: by default the three nearest of random places."""
    near = near or geo.nearest_neighbours(positions(sensors), 3)
    return DataSpec(sensors, 12, 12, 288, tuple(inputs), tuple(targets), find_neighbours=lambda: near)


def features(
    sensors: int = 5, inputs: Sequence[int] = (0, 1, 2), targets: Sequence[int] = (2, 0), batch_size: int = 4
) -> tuple[TrainingBatch, DataSpec]:
    """An example of three features in units of their own, of which some are read and some forecast, and its network."""
    one = [speeds(200, sensors, seed=seed) for seed in range(3)]
    unit, zero = np.float32([1, 100, 0.01]), np.float32([0, -3000, 7])
    values = np.stack([part[0] for part in one], axis=-1) * unit + zero
    valid = np.stack([part[1] for part in one], axis=-1)
    moments = [MeanStd(mean, std) for mean, std in zip((55 * unit + zero).tolist(), (8 * unit).tolist(), strict=True)]
    made = Series(Arrays(values, valid, one[0][2]), WindowLayout(12, 12, tuple(inputs), tuple(targets)), CPU)
    starts = torch.arange(0, 7 * batch_size, 7)
    read, forecast = ([moments[i] for i in chosen] for chosen in (inputs, targets))
    return TrainingBatch(made.window(starts), made.target(starts)), network(sensors, read, forecast)


def carry_forward(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The latest valid reading at or before each row, however old; NaN before a sensor's first one.

    values, valid [T,...] -> float32 of the same shape.  It never looks ahead, so it may be used at any row.
    """
    latest = np.where(valid, np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1)), -1)
    np.maximum.accumulate(latest, axis=0, out=latest)
    last_observed = np.take_along_axis(values, np.maximum(latest, 0), axis=0)
    return np.where(latest >= 0, last_observed, np.float32(np.nan)).astype(np.float32)


def positions(sensors: int, seed: int = 0, spread_km: float = 10.0) -> np.ndarray:
    """Random places, float64 [N,2] in km."""
    return np.random.default_rng(seed).uniform(0, spread_km, (sensors, 2))


def pooling(
    xy: np.ndarray, width: int = 16, heads: int = 2, neighbours: int | None = 3, kind: str = "attention", **options: Any
) -> SocialPooling:
    """Pooling over the nearest neighbours of these places; options: of the section ``pooling``."""
    settings = PoolingSettings(**{"adaptive_adjacency_rank": 0, **options})
    return POOLINGS[kind].load()(width, Geometry(geo.nearest_neighbours(xy, neighbours), settings, heads))


def small_model(**options: Any) -> ModelSettings:
    """Sizes of a small model that reads only observations; two blocks, the second an sLSTM."""
    return ModelSettings(**{"width": 16, "blocks": 2, "slstm_at": (1,), "patch": 1, "climatology": False, **options})


def forecaster(known: DataSpec | int = 5, social: int = 1, seed: int = 0, **options: Any) -> Forecaster:
    """A small forecaster with up to two social layers; options: of the section ``model``."""
    torch.manual_seed(seed)
    known = network(known) if isinstance(known, int) else known
    pooling = PoolingSettings(kind="attention" if social else "none", adaptive_adjacency_rank=0)
    model = Forecaster(known, small_model(**options), pooling)
    model.social = model.social[:social]
    return model


def trainer(**options: Any) -> TrainerSettings:
    """Settings of a trainer, without warm-up, clipping and decay unless they are given."""
    return TrainerSettings(**{"lr_warmup_steps": 0, "gradient_clip_val": 0.0, "weight_decay": 0.0, **options})


def learner(model: nn.Module | None = None, kind: Any = Learner, **options: Any) -> Any:
    """A learner of this kind in float32 on the CPU, of a small model without social layers where none is given."""
    chosen = trainer(**{"learning_rate": 1e-3, **options})
    return kind(model or forecaster(social=0), network(), Precision("32-true", CPU), chosen)


def scores_of(model: nn.Module, windows: Loader, precision: Precision | None = None) -> HorizonScores:
    """The scores of the first target over all windows of a loader."""
    precision = precision or Precision("32-true", CPU)
    sums = RunningScores(12, 1, precision.device)
    run_metrics(model, windows, precision, sums)
    return sums.compute()[0]
