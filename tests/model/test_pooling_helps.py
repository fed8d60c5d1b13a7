"""Where what happens next has happened at a neighbour, pooling sees it coming: better than the same layers alone."""

import numpy as np
import pytest
import torch

from socialx.core.precision import Precision
from socialx.data import geo
from socialx.dataset.loaders import DeviceLoader, WindowOrder
from socialx.dataset.windows import split_windows
from socialx.model.forecaster import Forecaster
from socialx.scoring.references import NaiveLast
from socialx.settings.schema import DataSettings, PoolingSettings
from socialx.training.learner import Learner
from tests.networks import CPU, MONDAY, network, scores_of, series, small_model, trainer

SENSORS, DELAY = 8, 6
FP32 = Precision("32-true", CPU)


def road(rows: int = 1500) -> np.ndarray:
    """Speeds [T,N] along one road: what sensor i shows reaches sensor i + 1 after DELAY steps."""
    jams = np.convolve(np.random.default_rng(0).normal(size=rows + DELAY * SENSORS), np.ones(12) / 12, mode="same")
    source = 55 + 30 * jams
    return np.stack([source[DELAY * (SENSORS - i) :][:rows] for i in range(SENSORS)], axis=1).astype(np.float32)


def loaders() -> dict[str, DeviceLoader]:
    values = road()
    seconds = MONDAY + 300 * np.arange(len(values), dtype=np.int64)
    windows = split_windows(seconds, 5, DataSettings(lookback=12, horizon=12))
    made = series(values, np.ones_like(values, dtype=bool), seconds)
    return {one: DeviceLoader(made, WindowOrder(windows.split(one), 32, one == "train")) for one in ("train", "test")}


def trained_mae(neighbours: geo.Neighbours) -> float:
    """MAE over all steps of the test windows, after a short training; the same parameters whatever the neighbours."""
    torch.manual_seed(0)
    sizes = small_model(blocks=1, slstm_at=(), zero_shot=True)
    pooling = PoolingSettings(gate_radius_km=2.0, adaptive_adjacency_rank=0)
    model = Forecaster(network(SENSORS, near=neighbours), sizes, pooling)
    model.social = model.social[:1]
    data = loaders()
    learner = Learner(model, network(SENSORS), FP32, trainer(learning_rate=5e-3))
    learner.total_steps = 6 * len(data["train"])
    for epoch in range(6):
        for example in data["train"].epoch(epoch):
            learner.step([example])
    return scores_of(model, data["test"]).overall.mae


@pytest.mark.slow
def test_pooling_beats_the_same_layers_alone_and_copying() -> None:
    xy = np.stack([np.arange(SENSORS) * 1.0, np.zeros(SENSORS)], axis=1)
    social, alone = trained_mae(geo.nearest_neighbours(xy, 2)), trained_mae(geo.self_neighbours(SENSORS))
    copied = scores_of(NaiveLast(12, False, [55.0]), loaders()["test"]).overall.mae
    assert social < 0.8 * alone
    assert social < 0.7 * copied
