"""THE place where settings become objects.  Below it nobody sees a setting, above it nobody builds an object."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import socialx
from socialx.data import geo
from socialx.data.distances import distances_checksum, read_distances
from socialx.data.loaders import ResidentLoader, Series
from socialx.data.store import Store, checksum, open_store
from socialx.data.windows import PARTS, Scaler, Windows, calendar, fit_scaler, slots_per_day, split_windows
from socialx.errors import SettingsError, SocialxError, fall_back, sample
from socialx.model.baselines import CopyLast, HistoricalAverage, Linear, SharedLstm, Stid
from socialx.model.encoder import SharedEncoder, WindowMlp
from socialx.model.forecaster import Forecaster, Tokens
from socialx.model.pooling import KINDS, Geometry, SocialLayer
from socialx.model.scale import Scale
from socialx.settings import Settings, unread
from socialx.training import checkpoint, memory, probe
from socialx.training.engine import Learner
from socialx.training.precision import Precision, resolve_device, resolve_precision
from socialx.training.runs import RunFolder, commit


@dataclass(frozen=True)
class Data:
    """A file cut into windows, resident on a device: one store per feature, the first target's before the others."""

    stores: dict[str, Store]
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    windows: Windows
    scalers: dict[str, Scaler]
    series: Series

    @property
    def store(self) -> Store:
        """That of the first target: sensors and stamps are the same in all of them."""
        return self.stores[self.targets[0]]

    @property
    def scale(self) -> Scale:
        """Mean and deviation of every input and target."""
        into, out = ([self.scalers[name] for name in names] for names in (self.inputs, self.targets))
        return Scale([f.mean for f in into], [f.std for f in into], [f.mean for f in out], [f.std for f in out])

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
    targets, inputs = s.data.targets, s.data.inputs or s.data.targets
    names = tuple(dict.fromkeys([*targets, *inputs]))
    stores = {name: _first_days(open_store(s.data.path, name), s.data.days) for name in names}
    first = stores[names[0]]
    windows = split_windows(first.epochs, first.step_minutes, s.data.history, s.data.horizon, s.data.split)
    scalers = {name: fit_scaler(store.values, store.valid, windows.training_rows) for name, store in stores.items()}
    read, forecast = (tuple(names.index(name) for name in chosen) for chosen in (inputs, targets))
    series = Series(*_columns(stores.values()), first.epochs, first.step_minutes, device, read, forecast)
    return Data(stores, inputs, targets, windows, scalers, series)


def _columns(stores: Iterable[Store], rows: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    """Values and valid [T,N,C] of these rows, C features one behind the other."""
    parts = [(store.values[rows], store.valid[rows]) for store in stores]
    values, valid = (np.stack(part, axis=-1) for part in zip(*parts, strict=True))
    return values, valid


def _first_days(store: Store, days: int | None) -> Store:
    """The rows before midnight of the last of the first ``days``; all without a number."""
    if days is None:
        return store
    rows = int(np.searchsorted(store.epochs, (store.epochs[0] // 86_400 + days) * 86_400))
    stamps, values = store.stamps[:rows], store.values[:rows]
    return replace(
        store,
        stamps=stamps,
        epochs=store.epochs[:rows],
        values=values,
        valid=store.valid[:rows],
        checksum=checksum(store.sensors.ids, stamps, values),
    )


def model(s: Settings, d: Data) -> nn.Module:
    """The model for this network, its weights drawn from ``trainer.seed``."""
    torch.manual_seed(s.trainer.seed)
    m = s.model
    slots = slots_per_day(d.store.step_minutes)
    sensors, history, horizon = len(d.store.sensors.ids), s.data.history, s.data.horizon
    if m.kind == "linear":
        return Linear(history, horizon, d.scale)
    if m.kind == "lstm":
        return SharedLstm(horizon, d.scale, m.width, m.blocks, m.dropout)
    if m.kind == "stid":
        return Stid(sensors, history, horizon, slots, d.scale, m.width, m.dropout)
    tokens = Tokens(
        m.width,
        sensors,
        history,
        slots,
        inputs=len(d.inputs),
        time_of_day=m.time_of_day,
        day_of_week=m.day_of_week,
        sensor_identity=m.sensor_identity,
        adaptive=m.adaptive,
    )
    encoder: SharedEncoder | WindowMlp
    try:
        encoder = SharedEncoder(
            m.width, m.blocks, m.slstm_at, m.heads, history, m.dropout, m.impl, m.chunk, m.checkpointing
        )
    except ValueError as error:  # a combination of sizes that the xlstm package cannot build
        raise SettingsError(f"model (--width, --blocks, --slstm-at, --model-heads): {error}") from None
    social = _social(s, d)
    own_last_layer = sensors if m.sensor_heads else 0
    if m.encoder == "mlp":
        parameters = sum(p.numel() for p in encoder.parameters())
        encoder = WindowMlp(m.width, history, parameters, m.dropout)
    return Forecaster(tokens, encoder, social, horizon, d.scale, own_last_layer)


def _cuts(s: Settings, kinds: Sequence[str]) -> list[str]:
    """Those of these remedies against running out of memory that the chosen model has."""
    return [kind for kind in kinds if f"model.{kind}" not in unread(s)]


def _social(s: Settings, d: Data) -> list[SocialLayer] | dict[int, SocialLayer]:
    p = s.pooling
    width = s.model.width
    if p.kind == "none":
        return []
    if width % p.heads:
        raise SettingsError(f"pooling.heads {p.heads}: model.width {width} is not a multiple of it")
    neighbours = _neighbours(s, d)

    pooling = KINDS["attention" if p.kind == "own" else p.kind]

    def layer() -> SocialLayer:
        positional = p.use_positional and pooling.reads_offsets
        geometry = Geometry(p.heads, neighbours, p.radius_km, p.learnable_radius, positional, p.mask_mode)
        return SocialLayer(width, pooling(width, geometry), s.model.dropout)

    if p.placement == "stacked":
        return [layer() for _ in range(p.layers)]
    blocks = s.model.blocks
    if s.model.encoder != "xlstm":
        found = f"encoder {s.model.encoder} has no blocks to put layers after"
        raise SettingsError(f"pooling.placement interleaved: {found}: --placement stacked, or --encoder xlstm")
    if p.layers > blocks:
        found = f"{p.layers} layers do not fit after the {blocks} blocks of the encoder"
        raise SettingsError(
            f"pooling.placement interleaved: {found}: fewer --layers, more --blocks, or --placement stacked"
        )
    return {(number + 1) * blocks // p.layers - 1: layer() for number in range(p.layers)}


def _neighbours(s: Settings, d: Data) -> geo.Neighbours:
    """Who may hear whom, found once, in float64.  Raises SocialxError where that is unknown and ``pooling.strict``."""
    p = s.pooling
    sensors, path = d.store.sensors, d.store.path
    if p.kind == "own":
        return geo.itself(len(sensors.ids))
    xy = geo.to_plane(sensors.latitude, sensors.longitude)
    reach = np.inf if p.reach_km is None else p.reach_km
    if p.distances is not None:
        start, end, km = read_distances(p.distances, sensors.ids)
        alone = [sensors.ids[number] for number in np.setdiff1d(np.arange(len(xy)), np.concatenate([start, end]))]
        if alone:
            found = f"{p.distances}: {len(alone)} of {len(xy)} sensors are in no pair of it ({sample(alone)})"
            fall_back(f"{found}: these hear nobody and nobody hears them")
        return geo.by_road(start, end, km, xy, p.neighbours, reach)
    lost = [name for name, known in zip(sensors.ids, np.isfinite(xy).all(axis=1), strict=True) if not known]
    if lost:
        found = f"{path}: {len(lost)} of {len(sensors.ids)} sensors have no position ({sample(lost)})"
        command = f"socialx backfill {shlex.quote(str(path))} --meta LOCATIONS.csv"
        if p.strict:
            raise SocialxError(f"{found}: {command}, or train with --pooling none, or --no-strict")
        fall_back(f"{found}: these hear nobody and nobody hears them; {command} would give them one")
    return geo.nearest(xy, p.neighbours, reach)


def baselines(d: Data) -> dict[str, nn.Module]:
    """The forecasts that cost nothing, by the name of their row."""
    store, rows = d.store, d.windows.training_rows
    slot, weekday = calendar(store.epochs[rows], store.step_minutes)
    columns = _columns((d.stores[name] for name in d.targets), rows)
    average = HistoricalAverage(*columns, slot, weekday, slots_per_day(store.step_minutes))
    means = list(d.scale.target_mean)
    return {
        "copy-last, zeros copied": CopyLast(zeros=True, fallback=means),
        "copy-last, last valid": CopyLast(zeros=False, fallback=means),
        "historical average": average,
    }


def learner(s: Settings, d: Data, m: nn.Module, precision: Precision, train: ResidentLoader) -> Learner:
    """The model with its optimizer and schedule over all epochs.

    An error of a further target counts by its deviation, in units of the first one's: with one target it is the MAE.
    """
    t = s.trainer
    deviation = d.scale.target_std
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
        target_weight=[deviation[0] / own for own in deviation],
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
            return probe.step_peak(learner(cut, d, model(cut, d), made.precision, train), train)

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
        _cuts(s, memory.RESUMING if resumed else memory.TRAINING),
        "a training step",
        give_up,
    )


def scoring_advice(s: Settings, d: Data, m: nn.Module, precision: Precision, part: str) -> AbstractContextManager[None]:
    """The same for the scores of a model over ``part``."""
    starts, w = d.windows.part(part), d.windows

    def peak(plan: memory.Plan) -> float:
        def measure() -> float:
            loader = ResidentLoader(d.series, starts[: plan.windows], w.history, w.horizon, plan.windows)
            return probe.score_peak(model(_with_plan(s, plan), d), loader, precision)

        return probe.measured(measure)

    asked = memory.Plan(min(s.loader.batch_size, len(starts)), 1, s.model.chunk)
    sensors = len(d.store.sensors.ids)
    return probe.advised(
        precision.device, asked, sensors, peak, _cuts(s, memory.SCORING), "a batch to score", lambda: probe.release(m)
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


def trained(s: Settings, d: Data, run: RunFolder, now: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a run with its weights, and what it was trained on.

    now: the stamp of the data at hand.  Raises SocialxError where that has other features or, with sensor tables in
    the model, is another network.
    """
    then = run.read_json("stamp.json")
    keys = ["inputs", "targets", "step_minutes"]
    m = s.model
    tables = {"xlstm": m.sensor_identity or m.adaptive or m.sensor_heads, "stid": True}
    keys += ["network"] if tables.get(m.kind) else []
    differ = [f"{key} {now[key]}, not {then.get(key)}" for key in keys if now[key] != then.get(key)]
    if differ:
        sizes = f"{now['dataset']} with {now['sensors']} sensors, not {then.get('dataset')} with {then.get('sensors')}"
        found = "; ".join([sizes, *differ])
        raise SocialxError(f"{d.store.path}: not what {run.path} was trained for ({found}): name its data with --data")
    made, device = model(s, d), d.series.device
    best = run.best.exists()  # else no epoch was finished: the last state is all there is
    path = run.best if best else run.last
    content = checkpoint.load(path, device, "model", "epoch") if best else checkpoint.load(path, device, "learner")
    try:
        made.load_state_dict(content["model"] if best else content["learner"]["model"])
    except (RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise SocialxError(f"{path}: not the weights of {run.settings} ({reason}): train again") from None
    keys = ["checksum", "distances", "windows", "scaler", "seed", "precision", "socialx", "commit"]
    if now["network"] == then.get("network") and _distances(s) != then.get("distances"):
        heard = "other roads" if s.pooling.distances else "straight lines"
        fall_back(f"{run.path}: sensors are heard along {heard}, not as in its training")
    known = {key: then.get(key) for key in keys}
    parameters = sum(p.numel() for p in made.parameters())
    return made, {"epoch": content["epoch"] if best else None, "parameters": parameters, **known}


def _checksum(d: Data) -> str:
    """That of the only feature, or of all of them."""
    sums = [store.checksum for store in d.stores.values()]
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def _distances(s: Settings) -> str | None:
    """Checksum of the roads along which sensors are heard; None where that is along straight lines, or not at all."""
    path = s.pooling.distances
    return None if path is None or "pooling.distances" in unread(s) else distances_checksum(path)


def stamp(s: Settings, d: Data, precision: Precision) -> dict[str, Any]:
    """What a score depends on: two results may be compared where these agree."""
    store, w = d.store, d.windows
    return {
        "dataset": store.dataset_name,
        "checksum": _checksum(d),
        "network": hashlib.sha256("\n".join(store.sensors.ids).encode()).hexdigest()[:12],
        "sensors": len(store.sensors.ids),
        "inputs": {name: d.stores[name].unit for name in d.inputs},
        "targets": {name: d.stores[name].unit for name in d.targets},
        "step_minutes": store.step_minutes,
        "history": w.history,
        "horizon": w.horizon,
        "split": w.rule,
        "windows": {part: len(w.part(part)) for part in PARTS},
        "windows_across_gaps": w.across_gaps,
        "missing": {name: f.missing for name, f in d.stores.items()},
        "imputed": store.imputed,
        "averaging": "all valid entries of the whole part at that horizon",
        "distances": _distances(s),
        "scaler": {name: {"mean": f.mean, "std": f.std} for name, f in d.scalers.items()},
        "seed": s.trainer.seed,
        "precision": precision.name,
        "socialx": socialx.__version__,
        "commit": commit(),
    }
