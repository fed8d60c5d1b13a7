"""How a zero-shot run adapts to a network by the days before a forecast: its pace, and where to lean.

All forecasts on a local day are scaled and lean alike, by the rows before midnight: the call, the order and later rows
change nothing.  The errors in the seven days before say how much to keep, and how much to take from the last
observation or the climatology.

A zero-shot model takes half the freeway speed for congestion and forecasts its end, yet on city streets that speed is
free flow.  Mean and deviation are therefore the training statistics times the free-flow ratio, rounded to the fourth
root of 2, so that a network within 9 % keeps the training statistics.
"""

# Shape letters: B windows, P horizon steps, N sensors, G targets, S mixes

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import RLock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.core.errors import Argument, SocialxError
from socialx.core.precision import Precision
from socialx.core.progress import work
from socialx.data.calendar import DAY_S, slots_per_day
from socialx.data.climatology import HistoricalMedians
from socialx.data.scaler import StandardScaler
from socialx.data.source import pages
from socialx.dataset import Dataset
from socialx.files.store.quantities import KMH, ratio_of_units
from socialx.files.store.time_axis import JITTER_S, as_text
from socialx.model.forecaster import with_scaler
from socialx.scoring.protocol import ScoringProtocol

FREE_FLOW, FREE_FLOW_BYTES = 0.95, 1 << 26  # the quantile, and the memory for the observations
FREE_FLOW_DAYS = 28  # the latest days
PAST_DAYS, HOUR_S = 7, 3600  # forecast for a file outside the training
# What is kept of a forecast, and what is the last observation; the rest is the climatology.  The first of equals wins.
MIXES = ((1.0, 0.0), *((k / 4, 1 - k / 4) for k in range(3, -1, -1)), *((k / 4, 0.0) for k in range(3, -1, -1)))
NAIVE = MIXES.index((0.0, 1.0))
MARGIN = 0.02  # by which a mix that keeps nothing must be better than the forecast
MEDIAN_ERRORS, LEAST_DAYS = 100, 3  # errors of the median sensor for each sensor; days that a sensor needs of its own
LEVEL_SHARE, FADE_MINUTES = 0.5, 45.0  # of the level of the last days; after which 37 % of an anomaly is left
MOVED = 0.01  # of the last observation: a smaller change tells nothing of a sensor
DAYS_KEPT, PARTS_KEPT = 1000, 20  # in memory
Key = TypeVar("Key", bound=Hashable)


def free_flow_speeds(data: Dataset) -> np.ndarray:
    """Return the free-flow speeds [N,G] in the training rows, as ``_free_flow``."""
    return _free_flow(data, data.training_rows)[0]


def latest_free_flow(data: Dataset, rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the free-flow speed per sensor [N,G], and the network median [G], from the last 28 days.

    rows: of the file, up to which the days reach; None for the training rows.  Less than a day gives only a network
    speed, the upper quartile over sensors: in a single hour, half the sensors may be congested.
    """
    day, stop = slots_per_day(data.store.step_minutes), data.training_rows.stop if rows is None else rows
    span = slice(max(0, stop - FREE_FLOW_DAYS * day), stop)
    speeds, network = _free_flow(data, span, 0.5 if stop >= day else 0.75)
    return speeds if stop >= day else np.broadcast_to(network, speeds.shape).copy(), network


def _free_flow(data: Dataset, span: slice, share: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Return free-flow speeds, the 95th percentile of valid observations by sensor, float32 [N,G], and for the network.

    The network's speed [G] is the quantile ``share`` over sensors, apart from stuck ones; a silent sensor has it too.
    span: rows to read, thinned above 64 MiB.
    """
    every = -(-(span.stop - span.start) * 4 * math.prod(data.target_source.shape) // FREE_FLOW_BYTES)
    pieces = (data.target_source.read(rows) for rows in pages(span.start, span.stop))
    observations = (np.where(valid, values, np.nan)[::every] for values, valid in pieces)
    # Each sensor's in a row, which sorts three times as fast; NaN last.
    values = np.sort(np.ascontiguousarray(np.concatenate(list(observations), dtype=np.float32).transpose(1, 2, 0)))
    count = np.isfinite(values).sum(axis=-1)  # [N,G]
    quantile, last = ((part * (count - 1)).clip(min=0).astype(int)[..., None] for part in (FREE_FLOW, 1))
    speeds, highest = (np.take_along_axis(values, index, axis=-1)[..., 0] for index in (quantile, last))
    network = np.zeros_like(speeds[0])
    for index, moved in enumerate((values[..., 0] < highest).T):
        some = speeds[moved if moved.any() else np.isfinite(speeds[:, index]), index]
        network[index] = (np.median(some) if share == 0.5 else np.quantile(some, share)) if len(some) else 0
    return np.where(np.isnan(speeds), network, speeds), network


def speed_ratios(free_flow: np.ndarray | float, file: ScoringProtocol, run: ScoringProtocol, target: str) -> np.ndarray:
    """Return free_flow (file speeds, any shape) / the trained network's speed of a target; 1 without either speed."""
    units, trained_flow = ((file.targets.get(target, ""), run.targets.get(target, "")), run.free_flow.get(target, 0.0))
    if trained_flow <= 0 or not {*units} <= {*KMH}:
        return np.ones_like(free_flow)
    return np.where(np.greater(free_flow, 0), free_flow * ratio_of_units(*units) / trained_flow, 1.0)


def rounded_ratios(
    free_flow: np.ndarray | float, file: ScoringProtocol, run: ScoringProtocol, target: str
) -> np.ndarray:
    """Return ``speed_ratios`` rounded to a power of a fourth root of 2, any shape; 1 for the training network."""
    ratios = speed_ratios(free_flow, file, run, target)
    return np.ones_like(ratios) if file.same_network(run) else 2.0 ** (np.round(4 * np.log2(ratios)) / 4)


def ratios_there(
    run: ScoringProtocol, file: ScoringProtocol, free_flow: Mapping[str, np.ndarray | float]
) -> dict[str, np.ndarray]:
    """Return feature -> factor from a run's scale to the units and free-flow speeds in a file.

    free_flow: target -> speed in the file, for the network or by sensor [N], whose rounded ratio to the run's counts.
    """
    old = run.inputs | run.targets
    new = units_there(old, file.inputs | file.targets)
    return {
        name: ratio_of_units(old[name], new[name]) * rounded_ratios(free_flow.get(name, 0.0), file, run, name)
        for name in old
    }


def scaler_for(
    run: ScoringProtocol, file: ScoringProtocol, free_flow: Mapping[str, np.ndarray | float]
) -> StandardScaler:
    """Return the scaler of a run for a file: mean and deviation times ``ratios_there``, [F] or by sensor [N,F]."""
    ratios = ratios_there(run, file, free_flow)
    scaler = StandardScaler(*([run.scaler[name] for name in names] for names in (run.inputs, run.targets)))
    for part, names in (("input", run.inputs), ("target", run.targets)):
        factors = np.stack(np.broadcast_arrays(*(ratios[name] for name in names)), axis=-1).astype(np.float32)
        for moment in (f"{part}_mean", f"{part}_std"):
            setattr(scaler, moment, getattr(scaler, moment) * torch.from_numpy(factors))
    return scaler


def units_there(run: Mapping[str, str], file: Mapping[str, str]) -> dict[str, str]:
    """Return feature -> unit for a run's features in a file: the file's for a speed, else the run's."""
    return {name: file[name] if {file.get(name), unit} <= {*KMH} else unit for name, unit in run.items()}


def lean(forecast: Tensor, last: Tensor, usual: Tensor, kept: Tensor | float, naive: Tensor | float) -> Tensor:
    """Return kept * forecast + naive * last + the rest * usual, [B,P,N,G]; the forecast for a silent sensor.

    last [B,N,G]: last observation.  usual [B,P,N,G]: climatology, of which NaN is the forecast.
    """
    latest = last[:, None]
    usual = torch.where(usual.isnan(), forecast, usual)
    mixed = kept * forecast + naive * latest + (1 - kept - naive) * usual
    return torch.where(latest.isnan(), forecast, mixed)


def fade(forecast: Tensor, usual: Tensor, step_minutes: int) -> Tensor:
    """Return a forecast [B,p,N,G] with P lead times: beyond its own, the last anomaly fades into usual [B,P,N,G].

    forecast(l) = usual(l) + exp(-(l - p) / 45 min) (forecast(p) - usual(p)); without ``usual`` the last value stays.
    """
    steps = forecast.shape[1]
    last, minutes = forecast[:, steps - 1 :], step_minutes * torch.arange(1, usual.shape[1] - steps + 1)
    left = torch.exp(-minutes / FADE_MINUTES).to(forecast)[:, None, None] * (last - usual[:, steps - 1 : steps])
    ahead = usual[:, steps:] + left
    return torch.cat([forecast, torch.where(ahead.isnan(), last, ahead)], dim=1)


class PastForecasts(NamedTuple):
    """Forecasts of the network alone in the past of a file: forecast [B,p,N,G], last [B,N,G].

    usual [B,2,P,N,G]: climatology and historical median; truth and valid [B,P,N,G].  P exceeds p for a longer horizon.
    """

    forecast: Tensor
    last: Tensor
    usual: Tensor
    truth: Tensor
    valid: Tensor

    def anchored(self, anchor: Anchor, step_minutes: int) -> tuple[Tensor, Tensor]:
        """Return the forecast that fades into the anchor, and the anchor, [B,P,N,G]."""
        usual = anchor.add_level(self.usual[:, anchor.index])
        return fade(self.forecast, usual, step_minutes), usual


@dataclass(frozen=True, eq=False)
class Anchor:
    """What a forecast leans on, and fades into: the climatology (0) or the historical median (1), and a level [N,G].

    It is the one with the smaller error in the seven days before.  The level is half of the median anomaly there.
    """

    index: int
    level: Tensor

    @classmethod
    def choose(cls, days: Sequence[PastForecasts]) -> Anchor | None:
        """Choose by the days; None without observations."""
        if not days:
            return None
        truth = torch.cat([torch.where(past.valid, past.truth, torch.nan) for past in days])
        joined = (truth[:, None] - torch.cat([past.usual for past in days])).transpose(0, 1).flatten(1, 2)  # [2,R,N,G]
        errors = joined.abs().masked_fill(joined.isnan().any(0), torch.nan).nanmean((1, 2, 3))
        index = int(errors[1] < errors[0])
        return cls(index, LEVEL_SHARE * joined[index].nanmedian(0).values.nan_to_num(0.0))

    def add_level(self, usual: Tensor) -> Tensor:
        """Return the anchor [B,P,N,G] from the one of the two with its index."""
        return usual + self.level.to(usual.device)


class Leaning(NamedTuple):
    """The index in ``MIXES`` by lead time, sensor and target, uint8 [P,N,G], and 1 - error / naive error with it.

    below_naive: for the first target in the last days, positive if the mixed forecasts have the smaller error.
    """

    best: Tensor
    below_naive: float

    def apply(self, forecast: Tensor, last: Tensor, usual: Tensor) -> Tensor:
        """Return the mixed forecast [B,P,N,G]; arguments as in ``lean``."""
        return lean(forecast, last, usual, *torch.tensor(MIXES).T[:, self.best.long()].to(forecast.device))


@dataclass(frozen=True, eq=False)
class LastDays:
    """Absolute error sums float64 [S,P,N,G] in the last days by mix (S ``MIXES``), and their basis.

    counts, moved, days [P,N,G]: errors, errors where the observation had moved by 1 % since the last one, and days.
    """

    sums: Tensor
    counts: Tensor
    moved: Tensor
    days: Tensor

    @classmethod
    def measure(cls, days: Sequence[PastForecasts], anchor: Anchor, step_minutes: int) -> LastDays | None:
        """Sum the errors by day; None without observations."""
        tables = []
        for past in days:
            valid, (forecast, usual) = past.valid & past.last.isfinite()[:, None], past.anchored(anchor, step_minutes)
            errors = [(lean(forecast, past.last, usual, *mix) - past.truth).abs() for mix in MIXES]
            moved = valid & (errors[NAIVE] > MOVED * past.last.abs()[:, None])
            parts = torch.stack([*(part.where(valid, 0.0) for part in errors), valid, moved])
            sums = parts.sum(1, dtype=torch.float64)
            tables.append(torch.cat([sums, (sums[-2:-1] > 0).double()]))
        total = torch.stack(tables).sum(0) if tables else torch.zeros(3, 1, 1, 1)
        return cls(total[:-3], *total[-3:]) if total[-3, ..., 0].any() else None

    def decide(self) -> Leaning:
        """Return the best mix for each lead time, sensor and target, and its gain against naive.

        The errors of the median sensor are added, by the observations that moved; with fewer than three days its mix
        is taken alone.
        """
        cost = torch.tensor([1 + MARGIN * (1 - kept) for kept, _ in MIXES]).double()[:, None, None, None]
        naive = self.sums[NAIVE]
        median = weighted_median(torch.where(self.moved > 0, self.sums / naive, torch.nan), self.moved)  # [S,P,1,G]
        alone = self.sums + MEDIAN_ERRORS * median * naive / self.counts.clamp(min=1)
        best = torch.where(self.days >= LEAST_DAYS, (cost * alone).argmin(0), (cost * median).argmin(0))
        error, reference = (float(part[..., 0].sum()) for part in (self.sums.gather(0, best[None]), naive))
        return Leaning(best.to(torch.uint8), 1 - error / reference if reference else 0.0)


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """Return the median over sensors [S,P,1,G] of values [S,P,N,G] by weights [P,N,G]; 0 where all weights are 0."""
    ordered, order = values.nan_to_num(torch.inf).sort(2)
    passed = weights.expand_as(values).gather(2, order).cumsum(2)
    index = (passed < passed[:, :, -1:] / 2).sum(2, keepdim=True)
    median = ordered.gather(2, index.clamp(max=values.shape[2] - 1))
    return torch.where(median.isinf(), 0.0, median)


def join_by(keys: Sequence[Key], compute: Callable[[Key, Tensor], Tensor]) -> Tensor:
    """Return what is computed for the indices int64 of each key, joined in the order of keys along the first axis."""
    indices = {key: torch.tensor([n for n, other in enumerate(keys) if other == key]) for key in dict.fromkeys(keys)}
    joined = torch.cat([compute(key, index) for key, index in indices.items()])
    return joined[torch.cat([*indices.values()]).argsort().to(joined.device)]


class Basis(NamedTuple):
    """The first rows in a file that a forecast may use, by count; day: local, since 1970, None below a day of rows."""

    day: int | None
    rows: int


class Pace(NamedTuple):
    """A model at a network's pace, and the free-flow speeds behind it: by sensor [N,G], for the network [G]."""

    model: nn.Module
    speeds: np.ndarray
    network: np.ndarray


@dataclass(eq=False)
class Past:
    """A file before the local day of each forecast, and the results for a zero-shot run.

    model: in the training's scale, with the horizon of ``data``.  run, file: protocols; the horizon of ``file`` may be
    longer.  On the run's own network forecasts are neither scaled nor lean.
    """

    model: nn.Module
    data: Dataset
    run: ScoringProtocol
    file: ScoringProtocol
    precision: Precision
    batch_size: int
    _kept: dict[tuple[str, Hashable], Any] = field(default_factory=dict)
    _lock: RLock = field(default_factory=RLock)

    @property
    def adapts(self) -> bool:
        """Whether the file is of another network than the training."""
        return not self.file.same_network(self.run)

    @property
    def extends(self) -> bool:
        """Whether the horizon is longer than the model's."""
        return self.file.horizon > self.data.horizon

    @cached_property
    def _medians(self) -> HistoricalMedians:
        return HistoricalMedians(self.data.target_source)

    @cached_property
    def _days(self) -> np.ndarray:
        """The local day of each row, int64 [T]; where a clock is put back over midnight, the later day."""
        return np.maximum.accumulate(self.data.calendar.day(self.data.store.seconds))

    def bases(self, origins: Sequence[int]) -> list[Basis]:
        """Return the basis at each origin, in seconds: the rows before midnight, if they reach back a day.

        Else the full hours in the file until the origin.
        """
        store, calendar, times = self.data.store, self.data.calendar, np.asarray(origins, np.int64)
        begin, step_s, days = int(store.seconds[0]), 60 * store.step_minutes, calendar.day(times)
        whole = days * DAY_S - int(calendar.local(begin)) >= DAY_S
        full_hours = begin + (times + step_s - begin) // HOUR_S * HOUR_S
        rows = np.where(
            whole,
            np.searchsorted(self._days, days),
            np.searchsorted(store.seconds, full_hours - JITTER_S).clip(min=1),
        )
        parts = zip(days.tolist(), whole.tolist(), rows.tolist(), strict=True)
        return [Basis(day if reaches else None, count) for day, reaches, count in parts]

    def forecast(self, batch: Batch, leans: bool = True) -> Tensor:
        """Return the forecast [B,P,N,G] of windows of any days, each as its day knows the network.

        leans: False for the model alone, whose forecast neither leans nor fades into longer lead times.
        """

        def choose(basis: Basis) -> tuple[nn.Module, Basis | None]:
            daily = leans and (self.extends or self.leaning(basis) is not None)
            return self.pace(basis).model if self.adapts else self.model, basis if daily else None

        def compute(way: tuple[nn.Module, Basis | None], part: Batch) -> Tensor:
            (model, basis), step_minutes = way, self.data.store.step_minutes
            forecast: Tensor = model(part)
            if basis is None:
                return forecast
            if (anchor := self.anchor(basis)) is None:
                reach = f"{self.data.horizon * step_minutes}min"
                needs = f"a forecast beyond {reach} needs a day of readings before its own day"
                raise SocialxError("adapt.no-day", self.data.store.path, needs, f"use {Argument('horizon', reach)}")
            usual, leaning = anchor.add_level(self._usual(anchor.index, basis, part)), self.leaning(basis)
            forecast = fade(forecast, usual, step_minutes)
            return forecast if leaning is None else leaning.apply(forecast, part.last_observed, usual)

        return self._in_parts(batch, choose, compute)

    def _in_parts(
        self, batch: Batch, choose: Callable[[Basis], Key], compute: Callable[[Key, Batch], Tensor]
    ) -> Tensor:
        """Return what is computed of all windows with one choice at a time, joined in order along the first axis."""
        keys = [choose(basis) for basis in self.bases(batch.origin.tolist())]
        if len({*keys}) == 1:
            return compute(keys[0], batch)
        return join_by(keys, lambda key, index: compute(key, Batch(*(part[index.to(part.device)] for part in batch))))

    def _usual(self, index: int, basis: Basis, batch: Batch) -> Tensor:
        """Return climatology (0) or historical median (1) over the horizon, [B,P,N,G]; NaN where there is none."""
        origins, climatology = batch.origin.cpu().numpy(), batch.climatology[:, batch.inputs.shape[1] :]
        times = origins[:, None] + 60 * self.data.store.step_minutes * np.arange(1, self.file.horizon + 1)
        shape = *times.shape, *self.data.target_source.shape
        if index:
            readings = self._medians.lookup(times.ravel(), 0 if basis.day is None else basis.rows)
        elif not climatology.shape[-1]:
            return torch.full(shape, torch.nan).to(batch.last)
        elif self.extends:
            issued = origins.repeat(times.shape[1])
            readings = self.data.climatology.shared.lookup(times.ravel(), issued).readings[0]
        else:
            return climatology
        return torch.from_numpy(readings.reshape(shape)).to(batch.last)

    def day_text(self, origin: int) -> str | None:
        """Return the local date at an origin, in seconds, before which rows count; None in the first day."""
        day = self.bases([origin])[0].day
        return None if day is None else as_text(day * DAY_S)[:10]

    def prepare(self, origins: Sequence[int]) -> None:
        """Measure pace and leaning for origins, in seconds, before their forecasts begin."""
        days = list(dict.fromkeys(self.bases(origins)))
        with work("forecast the last days", len(days), "days") as bar:
            for basis in days if self.adapts else []:
                self.pace(basis), self.leaning(basis)
                bar.advance()

    def pace(self, basis: Basis) -> Pace:
        """Return the model at the network's pace."""
        return self.keep("pace", basis, DAYS_KEPT, partial(self._pace, basis))

    def _pace(self, basis: Basis) -> Pace:
        speeds, network = latest_free_flow(self.data, basis.rows)
        scaler = scaler_for(self.run, self.file, dict(zip(self.data.targets, speeds.T, strict=True)))
        key = b"".join(buffer.numpy().tobytes() for buffer in scaler.buffers())  # rounded, so that many days have it
        make = partial(with_scaler, self.model, scaler.to(self.precision.device))
        return Pace(self.keep("scaled", key, DAYS_KEPT, make).eval(), speeds, network)

    def leaning(self, basis: Basis) -> Leaning | None:
        """Return the leaning by the week before a day; None where nothing leans."""
        if not self.adapts or basis.day is None:
            return None
        return self.keep("lean", basis, DAYS_KEPT, partial(self._leaning, basis, basis.day))

    def _leaning(self, basis: Basis, day: int) -> Leaning | None:
        anchor, step_minutes = self.anchor(basis), self.data.store.step_minutes
        last_days = LastDays.measure(list(self.past_week(day)), anchor, step_minutes) if anchor else None
        return last_days.decide() if last_days else None

    def anchor(self, basis: Basis) -> Anchor | None:
        """Return the anchor by the week before a day; None without observations there."""
        if (day := basis.day) is None:
            return None
        return self.keep("anchor", basis, DAYS_KEPT, lambda: Anchor.choose(list(self.past_week(day))))

    def past_week(self, day: int, between: bool = False) -> Iterator[PastForecasts]:
        """Yield the forecasts that end on each of the seven days before a day (since 1970), without leaning.

        They start 55 minutes apart at a 5-minute step, so that readings on a coarser clock meet every phase; for a
        longer horizon in proportion.
        between: start in the middle between two others.
        """
        for past in range(day - PAST_DAYS, day):
            rows = int(np.searchsorted(self._days, past + 1))
            part = self.keep(f"past {between}", Basis(past, rows), PARTS_KEPT, partial(self._past, past, between))
            if part is not None:
                yield part

    def _past(self, day: int, between: bool) -> PastForecasts | None:
        data, step_s = self.data, 60 * self.data.store.step_minutes
        seconds, (first, stop) = data.store.seconds, np.searchsorted(self._days, [day, day + 1]).tolist()
        if first == stop:
            return None
        reach, apart = self.file.horizon * step_s, HOUR_S - step_s if step_s < HOUR_S else step_s
        apart *= max(1, round(reach / (6 * HOUR_S)))
        earliest = max(int(seconds[0]) + (data.lookback - 1) * step_s, int(seconds[first]) - reach)
        latest = int(seconds[stop - 1]) - reach - between * (apart // (2 * step_s)) * step_s
        context = data.context(JITTER_S)
        times = np.arange(latest, earliest - 1, -apart)[::-1]
        times, parts = times[context.rows_at(times) >= 0], []
        for indices, batch in context.batches(times, self.batch_size):
            forecast = torch.from_numpy(self.precision.infer(DailyModel(self, leans=False), batch))
            rows = context.rows_at(times[indices, None] + step_s * np.arange(1, self.file.horizon + 1))
            truth, valid = (torch.from_numpy(part[..., list(context.layout.targets)]) for part in context.read(rows))
            usual = [self._in_parts(batch, lambda basis: basis, partial(self._usual, index)) for index in (0, 1)]
            parts.append(PastForecasts(forecast, batch.last_observed, torch.stack(usual, dim=1), truth, valid))
        return PastForecasts(*map(torch.cat, zip(*parts, strict=True))) if parts else None

    def keep(self, kind: str, key: Hashable, most: int, make: Callable[[], Any]) -> Any:
        """Return what was made for a key, or make it; the ``most`` newest by kind are kept."""
        if (made := self._kept.get((kind, key), self)) is not self:
            return made
        with self._lock, torch.inference_mode(False), torch.no_grad():
            if (kind, key) not in self._kept:
                made = make()
                while len(same := [key for key in self._kept if key[0] == kind]) >= most:
                    del self._kept[same[0]]
                self._kept[kind, key] = made
            return self._kept[kind, key]

    def renew(self, data: Dataset) -> None:
        """Go on with a file that has other rows; keep the results of days before the last one, if their rows stayed."""
        with self._lock:
            rows = int(np.searchsorted(self._days, self._days[-1]))
            digest, self.data = self._digest(rows) if self._kept else b"", data
            del self._days
            self.__dict__.pop("_medians", None)
            same = bool(digest) and self._digest(rows) == digest
            self._kept = {key: made for key, made in self._kept.items() if same and getattr(key[1], "rows", 0) <= rows}

    def _digest(self, rows: int) -> bytes:
        """Return a digest over the first rows of the file."""
        digest = hashlib.sha256(self.data.store.seconds[:rows].tobytes())
        for page in pages(0, rows):
            values, valid = self.data.source.read(page)
            digest.update(np.where(valid, values, np.float32(np.nan)).tobytes())
        return digest.digest()


class DailyModel(nn.Module):
    """A zero-shot model on another network, which is scaled and leans for each forecast by its local day."""

    def __init__(self, past: Past, leans: bool = True) -> None:
        """Wrap the model in a past; leans: as in ``Past.forecast``."""
        super().__init__()
        self.model, self.past, self.leans = past.model, past, leans

    def forward(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G] (P lead times, G targets) in file units."""
        return self.past.forecast(batch, self.leans)
