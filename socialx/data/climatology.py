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

    def flat(self) -> np.ndarray:
        """The mean of each sensor at all times, float32 [3,slots,N,C]."""
        mean = self.mean()
        return np.broadcast_to(mean, (KINDS_OF_DAY, self.slots, *mean.shape)).astype(np.float32)

    def compute(self) -> np.ndarray:
        """float32 [3,slots,N,C].  A sensor without any reading has the mean of all sensors."""
        mean = self.mean()
        table = np.stack([self.sums, self.counts]).reshape(2, KINDS_OF_DAY, self.slots, *mean.shape)
        near = table.copy()
        for shift in range(1, REACH + 1):  # the slots of a day are a circle
            near += np.roll(table, shift, axis=2) + np.roll(table, -shift, axis=2)
        return ((near[0] + PSEUDO_READINGS * mean) / (near[1] + PSEUDO_READINGS)).astype(np.float32)


class PastDays:
    """The climatology of the days before a day, where each counts half as much after 56 days.

    No reading of the day itself or later is ever part of it.
    """

    def __init__(self, source: RowSource) -> None:
        self.source, self.known = source, RunningClimatology(source.step_minutes, *source.shape)
        self.days = source.seconds // DAY_S
        self.row = 0  # the first that is not counted

    def before(self, issued: int) -> np.ndarray:
        """float32 [3,slots,N,C] as known on the day of this issue, in seconds; issues must not go back.

        On the first day nothing is usual at a time of day: the table is then the mean of the rows until the issue.
        """
        day, days = issued // DAY_S, self.days
        while self.row < len(days) and days[self.row] < day:  # the rows of one day after the other
            end = int(np.searchsorted(days, days[self.row], side="right"))
            self.known.add(self.source, slice(self.row, end))
            following = day if end == len(days) else min(day, days[end])
            self.known.fade(0.5 ** (int(following - days[self.row]) / HALF_LIFE_DAYS))
            self.row = end
        if self.known.counts.any():
            return self.known.compute()
        today = RunningClimatology(self.source.step_minutes, *self.source.shape)
        today.add(self.source, slice(self.row, int(np.searchsorted(self.source.seconds, issued, side="right"))))
        return today.flat()


def climatology(source: RowSource, rows: slice) -> np.ndarray:
    """What is usual over these rows: the usual reading per kind of day, slot, sensor and feature, [3,slots,N,C]."""
    running = RunningClimatology(source.step_minutes, *source.shape)
    with work("climatology", rows.stop - rows.start, "rows") as bar:
        for page in pages(rows.start, rows.stop):
            running.add(source, page)
            bar.advance(page.stop - page.start)
    return running.compute()
