"""THE place where settings become objects.  Below it nobody sees a setting, above it nobody builds an object."""

from __future__ import annotations

import hashlib
import shlex
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import socialx
from socialx.data import geo
from socialx.data.loaders import ResidentLoader, Series
from socialx.data.store import Store, open_store
from socialx.data.windows import PARTS, Scaler, Windows, calendar, fit_scaler, slots_per_day, split_windows
from socialx.errors import SettingsError, SocialxError, sample
from socialx.model.baselines import CopyLast, HistoricalAverage
from socialx.model.encoder import SharedEncoder
from socialx.model.forecaster import Forecaster, Tokens
from socialx.model.pooling import SocialLayer, SocialPooling
from socialx.settings import Settings
from socialx.training import checkpoint, memory, probe
from socialx.training.engine import Learner
from socialx.training.precision import Precision, resolve_device, resolve_precision
from socialx.training.runs import RunFolder, commit


@dataclass(frozen=True)
class Data:
    """A store cut into windows, resident on a device."""

    store: Store
    windows: Windows
    scaler: Scaler
    series: Series

    def loader(self, part: str, batch_size: int, shuffle: bool = False, seed: int = 0) -> ResidentLoader:
        """Batches of ``train``, ``validation`` or ``test``."""
        w = self.windows
        return ResidentLoader(self.series, w.part(part), w.history, w.horizon, batch_size, shuffle, seed)


def machine(s: Settings) -> Precision:
    """Device and precision in effect, and the process-wide switches that go with them."""
    device = resolve_device(s.trainer.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision(s.trainer.float32_matmul_precision)
        torch.cuda.set_device(device)
    return resolve_precision(s.trainer.precision, device)


def data(s: Settings, device: torch.device) -> Data:
    """Open ``data.path``, split it, fit the scaler on the training rows and put the series on the device."""
    if s.data.path is None:
        raise SettingsError("data.path: no data file: --data FILE.h5 (socialx convert --help makes one)")
    store = open_store(s.data.path, s.data.feature)
    windows = split_windows(store.epochs, store.step_minutes, s.data.history, s.data.horizon, s.data.split)
    scaler = fit_scaler(store.values, store.valid, windows.training_rows)
    series = Series(store.values, store.valid, store.epochs, store.step_minutes, device)
    return Data(store, windows, scaler, series)


def model(s: Settings, d: Data) -> Forecaster:
    """The forecaster for this network, its weights drawn from ``trainer.seed``."""
    torch.manual_seed(s.trainer.seed)
    m = s.model
    tokens = Tokens(
        m.width,
        sensors=len(d.store.sensors.ids),
        history=s.data.history,
        slots=slots_per_day(d.store.step_minutes),
        time_of_day=m.time_of_day,
        day_of_week=m.day_of_week,
        sensor_identity=m.sensor_identity,
        adaptive=m.adaptive,
    )
    try:
        encoder = SharedEncoder(
            m.width, m.blocks, m.slstm_at, m.heads, s.data.history, m.dropout, m.impl, m.chunk, m.checkpointing
        )
    except ValueError as error:  # a combination of sizes that the xlstm package cannot build
        raise SettingsError(f"model (--width, --blocks, --slstm-at, --model-heads): {error}") from None
    return Forecaster(tokens, encoder, _social(s, d), s.data.horizon, d.scaler.mean, d.scaler.std)


def _social(s: Settings, d: Data) -> list[SocialLayer]:
    if s.pooling.kind == "none":
        return []
    if s.model.width % s.pooling.heads:
        raise SettingsError(f"pooling.heads {s.pooling.heads}: model.width {s.model.width} is not a multiple of it")
    sensors = d.store.sensors
    xy = geo.to_plane(sensors.latitude, sensors.longitude)
    lost = [name for name, known in zip(sensors.ids, np.isfinite(xy).all(axis=1), strict=True) if not known]
    if lost:
        raise SocialxError(
            f"{d.store.path}: {len(lost)} of {len(sensors.ids)} sensors have no position ({sample(lost)}): "
            f"socialx backfill {shlex.quote(str(d.store.path))} --meta LOCATIONS.csv, or train with --pooling none"
        )
    index, exists = geo.nearest(xy, s.pooling.neighbours)
    offsets = xy[index] - xy[:, None]  # [N,K,2]
    graph = (torch.from_numpy(index), torch.from_numpy(exists), torch.from_numpy(offsets))
    p = s.pooling

    def layer() -> SocialLayer:
        pooling = SocialPooling(s.model.width, p.heads, *graph, p.radius_km, p.learnable_radius, p.use_positional)
        return SocialLayer(s.model.width, pooling, s.model.dropout)

    return [layer() for _ in range(p.layers)]


def baselines(d: Data) -> dict[str, nn.Module]:
    """The forecasts that cost nothing, by the name of their row."""
    store, rows = d.store, d.windows.training_rows
    slot, weekday = calendar(store.epochs[rows], store.step_minutes)
    average = HistoricalAverage(store.values[rows], store.valid[rows], slot, weekday, slots_per_day(store.step_minutes))
    return {
        "copy-last, zeros copied": CopyLast(zeros=True, fallback=d.scaler.mean),
        "copy-last, last valid": CopyLast(zeros=False, fallback=d.scaler.mean),
        "historical average": average,
    }


def learner(s: Settings, m: nn.Module, precision: Precision, train: ResidentLoader) -> Learner:
    """The model with its optimizer and schedule over all epochs."""
    t = s.trainer
    steps_per_epoch = -(-len(train) // t.accumulate_grad_batches)
    return Learner(
        m,
        precision,
        learning_rate=t.learning_rate,
        weight_decay=t.weight_decay,
        total_steps=t.max_epochs * steps_per_epoch,
        schedule=t.schedule,
        warmup_steps=t.lr_warmup_steps,
        gradient_clip_val=t.gradient_clip_val,
        accumulate_grad_batches=t.accumulate_grad_batches,
        compile=t.compile,
        cuda_graph=t.cuda_graph,
    )


def train_loader(s: Settings, d: Data) -> ResidentLoader:
    """Training batches in a seeded order."""
    return d.loader("train", s.loader.batch_size, s.loader.shuffle, s.trainer.seed)


def training_advice(s: Settings, d: Data, made: Learner, resumed: bool = False) -> AbstractContextManager[None]:
    """Out of memory inside becomes a SocialxError that names settings that fit; ``made`` is given up for that."""

    def peak(plan: memory.Plan) -> float:
        def measure() -> float:
            cut = _with_plan(s, plan)
            train = train_loader(cut, d)
            return probe.step_peak(learner(cut, model(cut, d), made.precision, train), train)

        return probe.measured(measure)

    def give_up() -> None:
        made.drop_recordings()
        probe.release(made.model, made.optimizer)

    asked = memory.Plan(
        train_loader(s, d).batch_size, s.trainer.accumulate_grad_batches, s.model.chunk, s.model.checkpointing
    )
    return probe.advised(
        made.precision.device,
        asked,
        len(d.store.sensors.ids),
        peak,
        memory.RESUMING if resumed else memory.TRAINING,
        "a training step",
        give_up,
    )


def scoring_advice(s: Settings, d: Data, m: nn.Module, precision: Precision, part: str) -> AbstractContextManager[None]:
    """The same for the scores of a model over ``part``."""
    starts, w = d.windows.part(part), d.windows

    def peak(plan: memory.Plan) -> float:
        def measure() -> float:
            loader = ResidentLoader(d.series, starts[: plan.windows], w.history, w.horizon, plan.windows)
            return probe.score_peak(model(_with_plan(s, plan), d), loader, w.horizon, precision)

        return probe.measured(measure)

    asked = memory.Plan(min(s.loader.batch_size, len(starts)), 1, s.model.chunk)
    sensors = len(d.store.sensors.ids)
    return probe.advised(
        precision.device, asked, sensors, peak, memory.SCORING, "a batch to score", lambda: probe.release(m)
    )


def _with_plan(s: Settings, plan: memory.Plan) -> Settings:
    parts = {
        "loader": {"batch_size": plan.windows},
        # A compilation would take longer than all that is measured, and a recording needs the same.
        "trainer": {"accumulate_grad_batches": plan.batches, "compile": "off", "cuda_graph": False},
        "model": {"chunk": plan.chunk, "checkpointing": plan.checkpointing},
    }
    return s.model_copy(update={name: getattr(s, name).model_copy(update=new) for name, new in parts.items()})


def run_path(s: Settings, d: Data) -> Path:
    """``trainer.run_dir``, or a new folder under runs/ named after the data and the moment."""
    if s.trainer.run_dir is not None:
        return s.trainer.run_dir
    return Path("runs") / f"{d.store.dataset_name}-{datetime.now():%Y%m%d-%H%M%S}"


def trained(s: Settings, d: Data, run: RunFolder, now: dict[str, Any]) -> tuple[Forecaster, dict[str, Any]]:
    """The model of a run with its weights, and what it was trained on.

    now: the stamp of the data at hand.  Raises SocialxError where that is another feature or, with sensor tables in
    the model, another network.
    """
    then = run.read_json("stamp.json")
    keys = ["feature", "unit", "step_minutes"]
    keys += ["network"] if s.model.sensor_identity or s.model.adaptive else []
    differ = [f"{key} {now[key]}, not {then.get(key)}" for key in keys if now[key] != then.get(key)]
    if differ:
        sizes = f"{now['dataset']} with {now['sensors']} sensors, not {then.get('dataset')} with {then.get('sensors')}"
        found = "; ".join([sizes, *differ])
        raise SocialxError(f"{d.store.path}: not what {run.path} was trained for ({found}): name its data with --data")
    m, device = model(s, d), d.series.device
    best = run.best.exists()  # else no epoch was finished: the last state is all there is
    path = run.best if best else run.last
    content = checkpoint.load(path, device, "model", "epoch") if best else checkpoint.load(path, device, "learner")
    try:
        m.load_state_dict(content["model"] if best else content["learner"]["model"])
    except (RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise SocialxError(f"{path}: not the weights of {run.settings} ({reason}): train again") from None
    known = {key: then.get(key) for key in ("checksum", "windows", "scaler", "precision", "socialx", "commit")}
    return m, {"epoch": content["epoch"] if best else None, **known}


def stamp(s: Settings, d: Data, precision: Precision) -> dict[str, Any]:
    """What a score depends on: two results may be compared where these agree."""
    store, w = d.store, d.windows
    return {
        "dataset": store.dataset_name,
        "checksum": store.checksum,
        "network": hashlib.sha256("\n".join(store.sensors.ids).encode()).hexdigest()[:12],
        "sensors": len(store.sensors.ids),
        "feature": store.feature,
        "unit": store.unit,
        "step_minutes": store.step_minutes,
        "history": w.history,
        "horizon": w.horizon,
        "split": w.rule,
        "windows": {part: len(w.part(part)) for part in PARTS},
        "windows_across_gaps": w.across_gaps,
        "missing": "not finite" if store.missing is None else f"not finite or {store.missing:g}",
        "imputed": store.imputed,
        "averaging": "all valid entries of the whole part at that horizon",
        "scaler": {"mean": d.scaler.mean, "std": d.scaler.std},
        "seed": s.trainer.seed,
        "precision": precision.name,
        "socialx": socialx.__version__,
        "commit": commit(),
    }
