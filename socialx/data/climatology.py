"""Climatology: what is usual for a sensor at a time of the week, from the latest days before the day of issue alone."""

# Shape letters: R rows, V numbers of days, D days, S slots of a day, N sensors, G targets, L levels, U = G L

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import numpy as np

from socialx.data.calendar import DAY_S, calendar, slots_per_day
from socialx.data.source import RowSource

KINDS_OF_DAY = 3  # Monday to Friday, Saturday, Sunday
REACH = 4  # slots before and after that count too
LEVELS = (0.1, 0.5, 0.9)  # of the quantiles, the median in the middle
DAYS = 28  # the latest ones that have rows
HALF_LIFE_DAYS = 14.0  # of a day's weight: benchmarks/climatology.py
OF_OTHERS = 0.1  # the weight of a day of another kind
TRUSTED_DAYS = 3.0  # with so many days behind it, a usual reading is half trusted
TABLES = 32  # of days of issue, numbers of days and kinds of day that are kept
BLOCK = 1 << 21  # readings that are sorted at a time
UNTIL_TRAINED = -1  # in place of a number of days: all of them until the end of the training rows
# Days that a model for any network meets in training, None: all.
MET_DAYS: tuple[int | None, ...] = (0, 1, 2, 3, 5, 7, 14, None)


class Usual(NamedTuple):
    """What is usual: readings float32 [...,N,U], in the file's unit, NaN where nothing is known, and trust in them.

    They are quantiles of three levels for each target.  trust uint8 [...,N,G] is 255 n / (n + 3), where n is the weight
    of the days behind them.
    """

    readings: np.ndarray
    trust: np.ndarray

    @classmethod
    def room(cls, shape: tuple[int, ...]) -> Usual:
        """Nothing known, for [...,N,G]."""
        wide = *shape[:-1], shape[-1] * len(LEVELS)
        return cls(np.full(wide, np.nan, np.float32), np.zeros(shape, np.uint8))


@dataclass(frozen=True, eq=False)
class KnownDays:
    """Days of readings: numbers int64 [D], counted from 1970 and ascending, and readings float32 [D,S,N,G].

    A reading is the mean of a slot, NaN where there is none.
    """

    numbers: np.ndarray
    readings: np.ndarray

    @property
    def end(self) -> int:
        """The day after the last of them."""
        return int(self.numbers[-1]) + 1 if len(self.numbers) else 0


class PastDays:
    """The climatology as known on a day: weighted quantiles of the latest 28 days before it that have rows.

    A day counts with the mean of its valid readings within four slots.  Its weight falls by half in 14 days, is a tenth
    of that on another kind of day, and is reduced to the share of these nine readings that is valid.  The quantile of a
    level is the smallest value up to which there is this share of the weight.  Where no day has a value it is the mean
    of the sensor, or of all sensors if this one has no reading.  No reading of the day itself or later is part of it.
    """

    def __init__(self, source: RowSource, given: KnownDays | None = None, present: int | None = None) -> None:
        """given: days of another file; they take the place of those of the source before their end, for the sensors of
        which they have readings, in what is known from this end on.

        present: seconds; what is issued longer before the last row is told what was known then, as a server does that
        is asked in any order.
        """
        self.source, self.given, self.present = source, given, present
        self._lock = Lock()
        self._order = np.argsort(source.seconds, kind="stable")
        self._days = source.seconds[self._order] // DAY_S
        self._with_rows = np.unique(self._days)
        self._near: dict[tuple[int, bool], tuple[np.ndarray, np.ndarray]] = {}
        self._tables: dict[tuple[int, int | None, int], Usual] = {}

    def of(self, source: RowSource) -> PastDays:
        """The same for a source that goes on with the rows of this one; days before its last row stay as they were."""
        other, last = PastDays(source, self.given, self.present), int(self._days[-1])
        with self._lock:
            other._near = {key: near for key, near in self._near.items() if key[0] < last}
            for key, table in self._tables.items():
                if key[0] <= last and np.array_equal(self.numbers(key[0]), other.numbers(key[0])):
                    other._tables[key] = table
        return other

    def numbers(self, day: int) -> np.ndarray:
        """The days that are known on a day, counted from 1970: the latest 28 before it that have rows, int64 [D]."""
        numbers = self._with_rows
        if self.given is not None and self.given.end <= day:
            numbers = np.union1d(numbers, self.given.numbers)
        return numbers[numbers < day][-DAYS:]

    def before(self, day: int) -> KnownDays:
        """The readings of the days that are known on a day."""
        numbers = self.numbers(day)
        joined = self.given is not None and self.given.end <= day
        shape = slots_per_day(self.source.step_minutes), *self.source.shape
        readings = [self._readings(number, joined) for number in numbers.tolist()]
        return KnownDays(numbers, np.stack(readings) if readings else np.empty((0, *shape), np.float32))

    def _readings(self, day: int, joined: bool) -> np.ndarray:
        """The mean of each slot of a day, [S,N,G], NaN where nothing was read; joined: with the days that are given."""
        sums, counts = (
            np.zeros((slots_per_day(self.source.step_minutes), *self.source.shape), np.float32) for _ in range(2)
        )
        start, stop = np.searchsorted(self._days, (day, day + 1))
        if start < stop:
            rows = self._order[start:stop]
            first = int(rows.min())
            values, valid = (part[rows - first] for part in self.source.read(slice(first, int(rows.max()) + 1)))
            slot, _ = calendar(self.source.seconds[rows], self.source.step_minutes)
            # Slots that increase are all different, so that a plain addition counts every row; np.add.at is slow.
            ends = [*(np.flatnonzero(np.diff(slot) <= 0) + 1), len(slot)]
            for begin, end in zip([0, *ends], ends, strict=False):
                sums[slot[begin:end]] += np.where(valid[begin:end], values[begin:end], 0.0)
                counts[slot[begin:end]] += valid[begin:end]
        readings = np.where(counts > 0, sums / counts.clip(min=1), np.float32(np.nan))
        if joined and self.given is not None and day < self.given.end:
            has = ~np.isnan(self.given.readings).all(axis=(0, 1, 3))[:, None]  # [N,1]
            place = np.flatnonzero(self.given.numbers == day)
            readings = np.where(has, self.given.readings[place[0]] if len(place) else np.float32(np.nan), readings)
        return readings

    def _near_of(self, day: int, joined: bool) -> tuple[np.ndarray, np.ndarray]:
        """The mean reading of a day within four slots, 0 where there is none, and the share that is valid, [S,N,G]."""
        key = day, joined
        if key not in self._near:
            readings = self._readings(day, joined)
            valid = ~np.isnan(readings)
            total, count = _near(np.where(valid, readings, np.float32(0))), _near(valid.astype(np.float32))
            self._near[key] = total / count.clip(min=1), count / (2 * REACH + 1)
        return self._near[key]

    def table(self, day: int, days: int | None, kind: int) -> Usual:
        """What is usual on a kind of day, [S,...], as known on a day of so many days before it, None: of all."""
        return self.tables(day, [days], [kind])[0]

    def tables(self, day: int, days: Sequence[int | None], kinds: Sequence[int]) -> list[Usual]:
        """The table of each number of days and each kind of day, in this order, which share the work of sorting."""
        wanted = [(day, each, kind) for each in days for kind in kinds]
        with self._lock:
            missing = [key for key in wanted if key not in self._tables]
            if missing:
                found = self._make(day, [key[1:] for key in missing])
                kept = [*self._tables.items(), *zip(missing, found, strict=True)]
                self._tables = dict(kept[-max(TABLES, len(wanted)) :])
            return [self._tables[key] for key in wanted]

    def _make(self, day: int, choices: Sequence[tuple[int | None, int]]) -> list[Usual]:
        numbers, joined = self.numbers(day), self.given is not None and self.given.end <= day
        self._near = {key: near for key, near in self._near.items() if key[0] in numbers}
        known = [self._near_of(number, joined) for number in numbers.tolist()]
        age = day - numbers
        kinds = np.array([kind_of(number) for number in numbers.tolist()], int)
        shape = slots_per_day(self.source.step_minutes), *self.source.shape
        weights: list[np.ndarray] = []  # [D] for each choice
        for days, kind in choices:
            share = np.where(kinds == kind, 1.0, OF_OTHERS) * (age <= (np.inf if days is None else days))
            weights.append((0.5 ** (age / HALF_LIFE_DAYS) * share).astype(np.float32))
        means = [_means(known, weight, shape[1:]) for weight in weights]
        made = [Usual.room(shape) for _ in choices]
        size = max(1, BLOCK // (max(len(known), 1) * shape[1] * shape[2]))
        for first in range(0, shape[0] if known else 0, size):
            slots = slice(first, first + size)
            values, share = (np.stack([each[slots] for each in part], axis=-1) for part in zip(*known, strict=True))
            order = values.argsort(axis=-1)  # [s,N,G,D]
            values, share = (np.take_along_axis(part, order, -1) for part in (values, share))
            for usual, weight, mean in zip(made, weights, means, strict=True):
                _quantiles(values, share * weight[order], mean, Usual(usual.readings[slots], usual.trust[slots]))
        return made

    def at(self, seconds: np.ndarray, issued: np.ndarray, days: Sequence[int | None] = (None,)) -> Usual:
        """What is usual at the times seconds int64 [R], [V,R,...], as known on the days of issued int64 [R].

        days: V numbers of days before the day of issue, None: all.
        """
        slot, weekday = calendar(seconds, self.source.step_minutes)
        day, kinds = issued // DAY_S, np.maximum(weekday - 4, 0)
        usual = Usual.room((len(days), len(seconds), *self.source.shape))
        if self.present is not None:
            last = self.source.seconds[self._order[-1]]
            day = np.maximum(day, (last - self.present) // DAY_S)
        for one in np.unique(day).tolist():
            asked = np.unique(kinds[day == one]).tolist()
            tables = iter(self.tables(one, days, asked))
            for place in range(len(days)):
                for kind in asked:
                    rows, table = np.flatnonzero((day == one) & (kinds == kind)), next(tables)
                    for part, of_table in zip(usual, table, strict=True):
                        part[place, rows] = of_table[slot[rows]]
        return usual


def _near(table: np.ndarray) -> np.ndarray:
    """The sum over the slots within reach; the slots of a day are a circle."""
    near = table.copy()
    for shift in range(1, REACH + 1):
        near += np.roll(table, shift, axis=0) + np.roll(table, -shift, axis=0)
    return near


def _means(known: Iterable[tuple[np.ndarray, np.ndarray]], weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The mean of each sensor, of all sensors where it has no reading, [N,G]; NaN where nothing is known."""
    total, count = (np.zeros(shape, np.float32) for _ in range(2))
    for (near, share), weight in zip(known, weights.tolist(), strict=True):
        if weight:
            total += weight * (near * share).sum(0)
            count += weight * share.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is NaN: nothing is known
        return np.where(count > 0, total / count, total.sum(0) / count.sum(0))


def _quantiles(values: np.ndarray, weights: np.ndarray, mean: np.ndarray, usual: Usual) -> None:
    """values [s,N,G,D], sorted, and their weights; mean [N,G], which stands where all weights are 0 -> usual."""
    until = weights.cumsum(axis=-1)
    days = until[..., -1]
    levels = usual.readings.reshape(*days.shape, len(LEVELS))  # a view
    for place, level in enumerate(LEVELS):
        at = (until >= np.float32(level) * days[..., None]).argmax(axis=-1)[..., None]
        levels[..., place] = np.where(days > 0, np.take_along_axis(values, at, -1)[..., 0], mean)
    usual.trust[:] = np.round(255 * days / (days + TRUSTED_DAYS))


def kind_of(day: int) -> int:
    """The kind of a day, counted from 1970: 0 for Monday to Friday, 1 for Saturday, 2 for Sunday."""
    return max((day + 3) % 7 - 4, 0)
