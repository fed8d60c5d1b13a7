"""What is usual at a time of week, from past days: climatology, a weighted mean, and the historical median."""

# Shape letters: R rows, V numbers of days, D days, S slots, N sensors, G targets

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np

from socialx.core.disk import reserved_file
from socialx.core.progress import work
from socialx.data.calendar import DAY_S, KINDS_OF_DAY, day_kind, next_times, slots_per_day
from socialx.data.source import RowSource, pages

KEPT_TABLES = 2  # those for training and validation

REACH_MINUTES = 20  # before and after a slot
HALF_LIFE_DAYS = 14.0  # for day weights: benchmarks/climatology.py
OF_SENSOR = 0.5  # weight of the sensor mean, in observations: it steadies a slot with few observations
OF_OTHERS = 2.0  # weight of other day kinds, in observations; falls with the first day of this kind
LEAST_OTHERS = 0.49  # observations below which they have none: rounding decides at one half, one of 14 days before
TRUSTED_DAYS = 3.0  # days of data at which the confidence is one half
READS_DAYS = Lock()
WEEKDAY_DAYS, LATEST_DAYS = 28, 84  # from which on a weekday has a median of its own; the latest days that count
TABLES = 16  # cached tables by day and day kind
SCHEMAS = "socialx.climatology/1", "socialx.climatology/2"  # of a climatology file
MOST_DAYS, MOST_READING = 4_000_000, 1e9  # days from 1970, and a mean observation; larger numbers are refused


@dataclass(frozen=True)
class PastDays:
    """The days behind a climatology: those before an origin, within a climatology window.

    windows: climatology windows in days, None for all days; training takes them in turn.  until: ``trained`` for days
    until the training rows end, whatever the origin.  augmented: for training windows alone, with augmented rows.
    """

    windows: tuple[int | None, ...] = (None,)
    until: Literal["origin", "trained"] = "origin"
    augmented: bool = False

    @property
    def longest(self) -> int:
        """The longest window in days, apart from all days."""
        return max((days for days in self.windows if days is not None), default=0)


ALL_DAYS, TRAINED_DAYS = PastDays(), PastDays(until="trained")
ZERO_SHOT_DAYS = PastDays((0, 1, 2, 3, 5, 7, 14, 28, None), augmented=True)  # of a zero-shot training


class ClimatologyTable(NamedTuple):
    """Climatology per sensor and target, [...,N,G].

    readings float32 in file units; NaN without data. confidence uint8: 255 n / (n + 3) for n days of data; a day with
    another day kind counts a tenth.
    """

    readings: np.ndarray
    confidence: np.ndarray


class OneDay(NamedTuple):
    """Sums and counts over the valid observations on ``day`` (since 1970), with its day kind, float32 [slots,N,G]."""

    day: int
    kind: int
    sums: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True, eq=False)
class DailyStats:
    """Decayed sums and counts over past days, float32 [3,slots,N,G]: per day kind, slot of the day, sensor and target.

    Weights are as on day ``end``, the day after the last day included. first: first day, counted from 1970. last:
    observations so far on day ``end``, which count from the next day on.
    """

    sums: np.ndarray
    counts: np.ndarray
    first: int
    end: int
    last: OneDay | None = None

    @classmethod
    def empty(cls, step_minutes: int, sensors: int, targets: int, day: int) -> DailyStats:
        """Return statistics without observations, as on ``day`` (since 1970), to which days can be added."""
        shape = KINDS_OF_DAY, slots_per_day(step_minutes), sensors, targets
        return cls(np.zeros(shape, np.float32), np.zeros(shape, np.float32), day, day)

    @property
    def as_sealed(self) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Tables and descriptive texts to save in a file, from which ``from_sealed`` rebuilds the statistics."""
        described = {"schema": SCHEMAS[-1], "first": str(self.first), "end": str(self.end)}
        tables = {"sums": self.sums, "counts": self.counts}
        if self.last is not None:  # stacked after the day kinds
            described["kind"] = str(self.last.kind)
            for name, table in tables.items():
                tables[name] = np.concatenate([table, getattr(self.last, name)[None]])
        return tables, described

    @classmethod
    def from_sealed(cls, tables: Mapping[str, np.ndarray], described: Mapping[str, str]) -> DailyStats:
        """Rebuild statistics saved by ``as_sealed``. Raises ValueError or KeyError for other content."""
        sums, counts = tables["sums"], tables["counts"]
        if described["schema"] not in SCHEMAS or sums.ndim != 4 or sums.shape != counts.shape:
            raise ValueError("the schema has another version")
        if not (np.isfinite(sums).all() and np.isfinite(counts).all() and (counts >= 0).all()):
            raise ValueError("the numbers are infinite, NaN or negative")
        first, end, kind = int(described["first"]), int(described["end"]), int(described.get("kind", 0))
        kinds = len(sums) - ("kind" in described)
        if not -MOST_DAYS < first <= end < MOST_DAYS or kinds != KINDS_OF_DAY or not 0 <= kind < kinds:
            raise ValueError("the days are out of range")
        if not (np.abs(sums) <= MOST_READING * counts).all():
            raise ValueError("the sums exceed any observation")
        last = OneDay(end, kind, sums[-1], counts[-1]) if "kind" in described else None
        return cls(sums[:kinds], counts[:kinds], first, end, last)

    def decay_to(self, day: int) -> DailyStats:
        """Return the statistics with ``last``, weighted as on a later day. Raises ValueError for an earlier day."""
        if day == self.end:
            return self
        stats = self if self.last is None else self.add_days(self.last)
        share = _share_on(day, self.end)
        return DailyStats(stats.sums * share, stats.counts * share, self.first, day)

    def add_days(self, *days: OneDay) -> DailyStats:
        """Return the statistics with days up to ``end`` added, weighted by age. Raises ValueError for a later day."""
        stats = replace(self, sums=self.sums.copy(), counts=self.counts.copy(), last=None)
        for past in days:
            share = _share_on(self.end, past.day)
            stats.sums[past.kind] += share * past.sums
            stats.counts[past.kind] += share * past.counts
        return stats

    def update_from(self, other: DailyStats) -> DailyStats:
        """Return the newer ``other``; sensors empty there keep the present sums. Raises ValueError if older."""
        base, has = self.decay_to(other.end), np.asarray(other.counts.any(axis=(0, 1, 3)))[:, None]  # [N,1]
        sums, counts = np.where(has, other.sums, base.sums), np.where(has, other.counts, base.counts)
        return replace(other, sums=sums, counts=counts, first=min(base.first, other.first))

    def select_sensors(self, indices: Sequence[int], ratios: Sequence[float]) -> DailyStats:
        """Return statistics for sensors by old index, -1 for a new, empty sensor; ratios: unit factor per target."""
        kept, units = np.array(indices)[:, None] >= 0, np.array(ratios, np.float32)

        def select(stats: DailyStats | OneDay) -> dict[str, Any]:
            sums, counts = (np.where(kept, table[..., list(indices), :], 0.0) for table in (stats.sums, stats.counts))
            return {"sums": sums * units, "counts": counts}

        last = None if self.last is None else self.last._replace(**select(self.last))
        return replace(self, **select(self), last=last)

    @property
    def mean(self) -> np.ndarray:
        """Mean observation per sensor [N,G]; the network mean for a sensor without data."""
        count, total = self.counts.sum((0, 1)), self.sums.sum((0, 1))  # [N,G]
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: no data
            return np.where(count > 0, total / count, total.sum(0) / count.sum(0))

    def climatology(self, kind: int) -> ClimatologyTable:
        """Return the climatology [slots,N,G] for a day kind (as ``day_kind`` numbers kinds), by ``weighted_mean``."""
        same = sum_nearby_slots(self.sums[kind]), sum_nearby_slots(self.counts[kind])
        others = sum_nearby_slots(self.sums.sum(0)) - same[0], sum_nearby_slots(self.counts.sum(0)) - same[1]
        with np.errstate(invalid="ignore", divide="ignore"):
            readings, confidence = weighted_mean(np, same, others, self.mean, slots_in_reach(self.sums.shape[1]))
        return ClimatologyTable(readings.astype(np.float32), confidence.astype(np.uint8))


def weighted_mean(module: Any, same: Sequence[Any], other: Sequence[Any], mean: Any, slots: int) -> tuple[Any, Any]:
    """Return the climatology and its confidence in 255ths. module: numpy or torch, as the other arguments.

    climatology = (sum + w others + mean / 2) / (count + w + 1 / 2). same: sum and count of valid observations within
    reach on this day kind. other: sum and count on other day kinds, with mean ``others``. w falls from 2 to 0 with the
    first day of this kind. mean: sensor mean. slots: number of slots within reach.
    """
    (sums, counts), (other_sums, other_counts) = same, other
    share = module.where(other_counts > LEAST_OTHERS, OF_OTHERS * (1 - counts / slots).clip(min=0), 0.0)
    others = module.where(share > 0, share * other_sums / other_counts, 0.0)
    readings = (sums + others + OF_SENSOR * mean) / (counts + share + OF_SENSOR)
    days = (counts + 0.1 * other_counts.clip(min=0)) / slots
    return readings, module.round(255 * days / (days + TRUSTED_DAYS))


def slots_in_reach(slots: int) -> int:
    """Return how many slots are averaged for a slot: itself and 20 minutes on both sides; slots: per day."""
    return 2 * (REACH_MINUTES * slots * 60 // DAY_S) + 1


def sum_nearby_slots(table: np.ndarray) -> np.ndarray:
    """Return a table [slots,...] summed over slots up to 20 minutes before and after, also around midnight."""
    total = table.copy()
    for shift in range(1, slots_in_reach(len(table)) // 2 + 1):
        total += np.roll(table, shift, axis=0) + np.roll(table, -shift, axis=0)
    return total


def _share_on(day: int, past_day: int) -> np.float32:
    """Return the weight of a past day on a later day, halved every 14 days. Raises ValueError for an earlier day."""
    if day < past_day:
        raise ValueError(f"day {day} lies before day {past_day}")
    return np.float32(0.5 ** ((day - past_day) / HALF_LIFE_DAYS))


class RollingClimatology:
    """Climatology from all days before a given day, where a day's weight halves in 14 days."""

    def __init__(
        self, source: RowSource, prior: DailyStats | None = None, max_days: int = 0, below: float | None = None
    ) -> None:
        """prior: statistics from another file, added after their last day for sensors with at least one observation.

        max_days: largest number of days for ``lookup``, apart from ``None``.  below: a threshold; an observation counts
        as 1 below it and else as 0, and the climatology is the share of past observations below it.
        """
        self.source, self.prior, self.max_days, self.below = source, prior, max_days, below
        self._order = np.argsort(source.seconds, kind="stable")
        # A clock may be put back over midnight: observations in that hour count from the next day on.
        self._days = np.maximum.accumulate(source.calendar.day(source.seconds[self._order]))
        # Days before the end of a prior that has every sensor would be read and dropped.
        self._begins_with_prior = prior is not None and not max_days and bool(prior.counts.any((0, 1, 3)).all())
        self._reset()

    def _reset(self) -> None:
        first = int(self._days[0]) if self.prior is None else min(int(self._days[0]), self.prior.end)
        self._stats = DailyStats.empty(self.source.step_minutes, *self.source.shape, first)
        self._recent: deque[OneDay] = deque()
        self._tables: dict[tuple[int, int | None, int], ClimatologyTable] = {}

    def stats_before(self, day: int) -> DailyStats:
        """Return statistics over all days before ``day`` (days since 1970)."""
        if day < self._stats.end:
            self._reset()
        if self._begins_with_prior and self.prior is not None and self._stats.end < self.prior.end <= day:
            self._stats = replace(self._stats, end=self.prior.end)
        rows = slice(*np.searchsorted(self._days, [self._stats.end, day]))
        for past_day in np.unique(self._days[rows]).tolist():
            self._advance_to(past_day)
            self._recent.append(self._read_day(past_day))
            self._stats = self._stats.add_days(self._recent[-1]).decay_to(past_day + 1)
            while self._recent[0].day < past_day - self.max_days:
                self._recent.popleft()
        self._advance_to(max(day, self._stats.end))
        return self._stats

    def today(self) -> DailyStats:
        """Return statistics for the last row's day, with that day's observations so far."""
        day = int(self._days[-1])
        return replace(self.stats_before(day), last=self._read_day(day))

    def _advance_to(self, day: int) -> None:
        """Decay the statistics to ``day`` (since 1970), and add the prior on the prior's last day."""
        if self.prior is not None and self._stats.end <= self.prior.end <= day:
            self._stats = self._stats.update_from(self.prior)
        self._stats = self._stats.decay_to(day)

    def _read_day(self, day: int) -> OneDay:
        """Read the sums for ``day`` (since 1970); slots without observations take the prior's unfinished last day."""
        rows = self._order[slice(*np.searchsorted(self._days, [day, day + 1]))]
        first = int(rows.min())
        values, valid = (part[rows - first] for part in self.source.read(slice(first, int(rows.max()) + 1)))
        values = values if self.below is None else (values < self.below).astype(np.float32)
        slots, day_of_week = self.source.calendar.time_features(self.source.seconds[rows], self.source.step_minutes)
        sums, counts = (np.zeros(self._stats.sums.shape[1:], np.float32) for _ in range(2))
        # Increasing slots are distinct, so that a plain addition counts every row; np.add.at is slow.
        ends = [*(np.flatnonzero(np.diff(slots) <= 0) + 1), len(slots)]
        for start, stop in zip([0, *ends], ends, strict=False):
            sums[slots[start:stop]] += np.where(valid[start:stop], values[start:stop], 0.0)
            counts[slots[start:stop]] += valid[start:stop]
        if (last := self._stats.last) is not None:
            sums, counts = (np.where(counts > 0, *pair) for pair in ((sums, last.sums), (counts, last.counts)))
        return OneDay(day, day_kind(int(day_of_week[0])), sums, counts)

    def table(self, day: int, days: int | None, kind: int) -> ClimatologyTable:
        """Return the climatology [slots,N,G] for a day kind from ``days`` days before ``day``; ``None``: all days."""
        key = day, days, kind
        if key not in self._tables:
            stats = self.stats_before(day)
            if days is not None:
                recent = [past for past in self._recent if day - days <= past.day < day]
                stats = DailyStats.empty(self.source.step_minutes, *self.source.shape, day).add_days(*recent)
            while len(self._tables) >= TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[key] = stats.climatology(kind)
        return self._tables[key]

    def lookup(self, seconds: np.ndarray, issued: np.ndarray, days: Sequence[int | None] = (None,)) -> ClimatologyTable:
        """Return the climatology at times seconds int64 [R] for origins issued int64 [R], as [V,R,N,G].

        days: V numbers of days before the origin's day, ``None`` for all. An origin on an earlier day than in previous
        calls restarts the statistics from the first row.
        """
        time_of_day, day_of_week = self.source.calendar.time_features(seconds, self.source.step_minutes)
        day, kinds = self.source.calendar.day(issued), np.maximum(day_of_week - 4, 0)
        shape = len(days), len(seconds), *self.source.shape
        climatology = ClimatologyTable(np.empty(shape, np.float32), np.empty(shape, np.uint8))
        for one, kind in np.unique([day, kinds], axis=1).T.tolist():
            rows = np.flatnonzero((day == one) & (kinds == kind))
            for row_set, n_days in enumerate(days):
                with READS_DAYS:
                    tables = self.table(one, n_days, kind)
                for part, table in zip(climatology, tables, strict=True):
                    part[row_set, rows] = table[time_of_day[rows]]
        return climatology


def allocate(shape: tuple[int, ...], kind: type[np.generic], in_memory: bool) -> np.ndarray:
    """Allocate an array in memory, or in an unnamed temporary file; kind: the dtype."""
    if in_memory:
        return np.empty(shape, kind)
    with reserved_file(math.prod(shape) * np.dtype(kind).itemsize) as file:
        return np.memmap(file, kind, "w+", shape=shape)


@dataclass(frozen=True, eq=False)
class Climatology:
    """Climatology for the windows in one file.

    source: the targets. days: those that training reads; ``None`` if the model reads only observations. prior:
    statistics stored in a run for days before this file. trained: the row at which training ends. in_memory: else
    tables are in temporary files.
    """

    source: RowSource
    horizon: int
    trained: int
    days: PastDays | None
    prior: DailyStats | None
    in_memory: bool
    _tables: dict[PastDays, ClimatologyTable] = field(default_factory=dict, init=False, repr=False)

    def rolling(self, max_days: int = 0) -> RollingClimatology:
        """Build the climatology day by day. max_days: longest window to look up, apart from ``None`` (all days)."""
        return RollingClimatology(self.source, self.prior, max_days)

    @cached_property
    def shared(self) -> RollingClimatology:
        """Climatology that all who ask share: days in order are read once, and an earlier day starts over."""
        return self.rolling()

    def table(self, days: PastDays, rows: slice) -> ClimatologyTable:
        """Return the climatology at rows and over the horizon after, [V,t+P,N,G]; the last two tables are kept.

        V: windows of ``days``. A row uses the days before the first origin whose window reads the row. The kept table
        covers the whole file, or until the training ends for augmented days.
        """
        if days not in self._tables:
            while len(self._tables) >= KEPT_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[days] = self._compute(days)
        return ClimatologyTable(*(part[:, rows.start : rows.stop + self.horizon] for part in self._tables[days]))

    def _compute(self, days: PastDays) -> ClimatologyTable:
        """Compute the climatology [V,T+P,N,G] for V windows in days; for augmented days T ends with the training."""
        source = self.source
        length = self.trained if days.augmented else len(source.seconds)
        ahead = next_times(int(source.seconds[-1]), source.step_minutes, self.horizon)
        seconds = np.concatenate([source.seconds, ahead])[: length + self.horizon]
        issued = seconds - 60 * source.step_minutes * self.horizon
        if days.until == "trained":
            issued = np.minimum(issued, source.seconds[self.trained - 1])
        shape = len(days.windows), len(seconds), *source.shape
        table = ClimatologyTable(*(allocate(shape, kind, self.in_memory) for kind in (np.float32, np.uint8)))
        rolling = self.rolling(days.longest) if days.longest else self.shared
        with work("climatology", len(seconds), "rows") as bar:
            for rows in pages(0, len(seconds)):
                for column, part in zip(table, rolling.lookup(seconds[rows], issued[rows], days.windows), strict=True):
                    column[:, rows] = part
                bar.advance(rows.stop - rows.start)
        return table


@dataclass(eq=False)
class HistoricalMedians:
    """Historical medians in a file, from the rows before a given row, within the latest 12 weeks.

    A slot takes the readings up to 20 minutes before and after on the same weekday; below four weeks of days, on all
    working days or all days of weekends.  Speeds are skewed, so that a median errs less than a mean on many roads.
    """

    source: RowSource
    _tables: dict[tuple[int, int, tuple[int, ...]], np.ndarray] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def _times(self) -> tuple[np.ndarray, ...]:
        """The local day, the slot of the day and the weekday of each row, int64 [T]."""
        calendar, seconds = self.source.calendar, self.source.seconds
        return calendar.day(seconds), *calendar.time_features(seconds, self.source.step_minutes)

    def lookup(self, seconds: np.ndarray, stop: int) -> np.ndarray:
        """Return the medians float32 [R,N,G] at times int64 [R], in seconds, from the first ``stop`` rows."""
        slots, weekdays = self.source.calendar.time_features(seconds, self.source.step_minutes)
        medians = np.empty((len(seconds), *self.source.shape), np.float32)
        for weekday in np.unique(weekdays).tolist():
            rows = weekdays == weekday
            medians[rows] = self.table(weekday, stop)[slots[rows]]
        return medians

    def table(self, weekday: int, stop: int) -> np.ndarray:
        """Return the medians float32 [S,N,G] on a weekday, 0 for Monday, from the first ``stop`` rows.

        A slot without readings takes the median over all slots; a sensor without any has NaN.
        """
        days, _, weekdays = (times[:stop] for times in self._times)
        alike: tuple[int, ...] = (weekday,)
        if len(np.unique(days)) < WEEKDAY_DAYS:
            alike = (5, 6) if weekday > 4 else (0, 1, 2, 3, 4)
        near = days > days.max(initial=0) - LATEST_DAYS
        rows = np.flatnonzero(near & np.isin(weekdays, alike))
        key = int(rows[-1]) if len(rows) else -1, len(rows), alike
        if key not in self._tables:
            while len(self._tables) >= TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[key] = self._compute(rows)
        return self._tables[key]

    def _compute(self, rows: np.ndarray) -> np.ndarray:
        slots, (days, row_slots, _) = slots_per_day(self.source.step_minutes), (times[rows] for times in self._times)
        readings = np.full((slots, *self.source.shape, len(np.unique(days))), np.nan, np.float32)
        for number, day in enumerate(np.unique(days)):
            of_day = rows[days == day]
            first = int(of_day.min())
            values, valid = (part[of_day - first] for part in self.source.read(slice(first, int(of_day.max()) + 1)))
            readings[row_slots[days == day], ..., number] = np.where(valid, values, np.nan)
        reach, table = slots_in_reach(slots) // 2, np.empty(readings.shape[:-1], np.float32)
        for slot in range(slots):
            near = readings[np.arange(slot - reach, slot + reach + 1) % slots]  # [2 reach + 1,N,G,D]
            table[slot] = median(near.transpose(1, 2, 0, 3).reshape(*self.source.shape, -1))
        return np.where(np.isnan(table), median(table.transpose(1, 2, 0)), table)


def median(values: np.ndarray) -> np.ndarray:
    """Return the median over the last axis, NaN left out; NaN where all are NaN or the axis is empty."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan, values.dtype)
    ordered = np.sort(values, axis=-1)  # NaN last
    count = np.isfinite(ordered).sum(-1, keepdims=True)
    low, high = (np.take_along_axis(ordered, (count - more).clip(min=0) // 2, axis=-1)[..., 0] for more in (1, 0))
    return np.asarray((low + high) / 2)
