"""Climatology: what is usual for a sensor at a time of the week, the mean over the rows that are known."""

# Shape letters: T rows, t some of them, N sensors, C features

from __future__ import annotations

import numpy as np

from socialx.data.calendar import DAY_S, calendar, slots_per_day
from socialx.data.source import RowSource, pages
from socialx.progress import work

KINDS_OF_DAY = 3  # Monday to Friday, Saturday, Sunday
REACH = 2  # slots before and after that count too
HALF_LIFE_DAYS = 56.0  # of a day's share; chosen on METR-LA's validation part
PSEUDO_READINGS = 3.0  # of the sensor's mean, so that few readings at a time of the week do not decide alone
DRAWN_DAYS = (1, 2, 3, 5, 7, 14, 28)  # that a network may know of itself, besides none and all of them
DRAWS = 6  # of each number of days


class RunningClimatology:
    """Add rows, then compute what is usual: sums of readings by kind of day and slot.

    usual = (sum + 3 mean) / (count + 3) over the valid readings within two slots, where mean is that of the sensor.
    """

    def __init__(self, step_minutes: int, sensors: int, features: int) -> None:
        self.step_minutes, self.slots = step_minutes, slots_per_day(step_minutes)
        self.sums = np.zeros((KINDS_OF_DAY * self.slots, sensors, features))
        self.counts = np.zeros_like(self.sums)

    def add(self, source: RowSource, rows: slice) -> None:
        """Count these rows."""
        values, valid = source.read(rows)
        slot, weekday = calendar(source.seconds[rows], self.step_minutes)
        key = np.maximum(weekday - 4, 0) * self.slots + slot
        # Keys that increase are all different, so that a plain addition counts every row; np.add.at is slow.
        ends = [*(np.flatnonzero(np.diff(key) <= 0) + 1), len(key)]
        for first, last in zip([0, *ends], ends, strict=False):
            self.sums[key[first:last]] += np.where(valid[first:last], values[first:last], 0.0)
            self.counts[key[first:last]] += valid[first:last]

    def fade(self, share: float) -> None:
        """Every row that was added counts only so much from now on."""
        self.sums *= share
        self.counts *= share

    def mean(self) -> np.ndarray:
        """The mean of each sensor, [N,C]; that of all sensors where one has no reading."""
        count, total = self.counts.sum(0), self.sums.sum(0)  # [N,C]
        everywhere = np.divide(total.sum(0), count.sum(0), out=np.zeros(count.shape[1]), where=count.sum(0) > 0)
        return np.divide(total, count, out=np.broadcast_to(everywhere, total.shape).copy(), where=count > 0)

    def compute(self) -> np.ndarray:
        """float32 [3,slots,N,C].

        A sensor without any reading has the mean of all sensors, and a kind of day without one those of the others.
        """
        mean = self.mean()
        table = np.stack([self.sums, self.counts]).reshape(2, KINDS_OF_DAY, self.slots, *mean.shape)
        known = table[1].any(axis=1, keepdims=True)  # [3,1,N,C]
        if not known.all():
            table = np.where(known, table, table.sum(1, keepdims=True))
        near = table.copy()
        for shift in range(1, REACH + 1):  # the slots of a day are a circle
            near += np.roll(table, shift, axis=2) + np.roll(table, -shift, axis=2)
        return ((near[0] + PSEUDO_READINGS * mean) / (near[1] + PSEUDO_READINGS)).astype(np.float32)


class PastDays:
    """The climatology of the days before a day, where each counts half as much after 56 days.

    No reading of the day itself or later is ever part of it.
    """

    def __init__(self, source: RowSource, unknown: np.ndarray, most: int | None = None) -> None:
        """unknown: what is usual, [C], where no day before is known.  most: so many days before at most, None: all."""
        self.source, self.unknown, self.most = source, unknown, most
        self.known = RunningClimatology(source.step_minutes, *source.shape)
        self.days = source.seconds // DAY_S
        self.row = 0  # the first that is not counted

    def count(self, day: int) -> int:
        """How many days with rows there are before a day."""
        return len(np.unique(self.days[self.days < day]))

    def before(self, day: int) -> np.ndarray:
        """float32 [3,slots,N,C] as known on a day, counted from 1970; days must not go back."""
        days = self.days
        if self.most is not None:  # of few days all count the same
            self.known = RunningClimatology(self.source.step_minutes, *self.source.shape)
            first, last = np.searchsorted(days, [day - self.most, day])
            self.known.add(self.source, slice(int(first), int(last)))
        while self.most is None and self.row < len(days) and days[self.row] < day:  # day after day
            end = int(np.searchsorted(days, days[self.row], side="right"))
            self.known.add(self.source, slice(self.row, end))
            following = day if end == len(days) else min(day, days[end])
            self.known.fade(0.5 ** (int(following - days[self.row]) / HALF_LIFE_DAYS))
            self.row = end
        return self.known.compute() if self.known.counts.any() else nothing_known(self.source, self.unknown)


def nothing_known(source: RowSource, unknown: np.ndarray) -> np.ndarray:
    """The climatology, float32 [3,slots,N,C], of a network of which nothing is known: the same at all times."""
    shape = KINDS_OF_DAY, slots_per_day(source.step_minutes), *source.shape
    return np.broadcast_to(unknown, shape).astype(np.float32)


def drawn(source: RowSource, rows: slice, seed: int, unknown: np.ndarray) -> list[np.ndarray]:
    """Climatologies as networks have them that know few of their days, float32 [3,slots,N,C] each.

    Six of each number of neighbouring days, all of them within these rows, and one where nothing is known.
    unknown: what is then usual, [C].
    """
    days, first = np.unique(source.seconds[rows] // DAY_S, return_index=True)
    begins = rows.start + np.append(first, rows.stop - rows.start)
    generator, tables = np.random.default_rng(seed), [nothing_known(source, unknown)]
    for count in DRAWN_DAYS:
        for place in generator.integers(0, max(1, len(days) - count + 1), DRAWS):
            last = min(int(place) + count, len(days))
            tables.append(climatology(source, slice(int(begins[place]), int(begins[last]))))
    return tables


def climatology(source: RowSource, rows: slice) -> np.ndarray:
    """What is usual over these rows: the usual reading per kind of day, slot, sensor and feature, [3,slots,N,C]."""
    running = RunningClimatology(source.step_minutes, *source.shape)
    with work("climatology", rows.stop - rows.start, "rows") as bar:
        for page in pages(rows.start, rows.stop):
            running.add(source, page)
            bar.advance(page.stop - page.start)
    return running.compute()
