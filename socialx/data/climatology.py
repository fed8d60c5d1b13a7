"""Climatology: what is usual for a sensor at a time of the week, from the days before the day of issue alone."""

# Shape letters: R rows, V numbers of days, N sensors, G targets

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import numpy as np

from socialx.data.calendar import KINDS_OF_DAY, kind_of, slots_per_day
from socialx.data.source import RowSource

REACH = 4  # slots before and after that count too
HALF_LIFE_DAYS = 14.0  # of a day's share: benchmarks/climatology.py
OF_SENSOR = 0.5  # readings of the sensor's mean: few readings at a time of the week do not decide alone
OF_OTHERS = 2.0  # readings at the same time on other kinds of day, less where a day of this kind is known
TRUSTED_DAYS = 3.0  # with so many days behind it, a usual reading is half trusted
TABLES = 16  # of days and kinds of day that are kept
UNTIL_TRAINED = -1  # in place of a number of days: all of them until the end of the training rows
# Days that a model for any network meets in training, None: all.
MET_DAYS: tuple[int | None, ...] = (0, 1, 2, 3, 5, 7, 14, 28, None)


class Usual(NamedTuple):
    """What is usual, [...,N,G].

    readings float32, in the file's unit, NaN where nothing is known.  trust uint8: 255 n / (n + 3), where n is the
    number of days behind a reading; days of another kind count a tenth.
    """

    readings: np.ndarray
    trust: np.ndarray


@dataclass(frozen=True, eq=False)
class KnownDays:
    """What is known of some days: sums of valid readings and their counts, float32 [3,slots,N,G].

    first: the first of these days, counted from 1970.  end: the day after the last of them.
    """

    sums: np.ndarray
    counts: np.ndarray
    first: int
    end: int

    @classmethod
    def none(cls, step_minutes: int, sensors: int, targets: int, day: int) -> KnownDays:
        """Nothing, before a day."""
        shape = KINDS_OF_DAY, slots_per_day(step_minutes), sensors, targets
        return cls(np.zeros(shape, np.float32), np.zeros(shape, np.float32), day, day)

    def usual(self, kind: int) -> Usual:
        """What is usual on a kind of day, [slots,N,G], from the valid readings within four slots.

        usual = (sum + w others + mean / 2) / (count + w + 1 / 2).  others is the mean reading within four slots on
        other kinds of day.  w falls from 2 to 0 as the first day of this kind is known.  mean is that of the sensor.  A
        sensor without any reading has the mean of all sensors.
        """
        count, total = self.counts.sum((0, 1)), self.sums.sum((0, 1))  # [N,G]
        with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is NaN: nothing is known
            everywhere = total.sum(0) / count.sum(0)  # [G]
            mean = np.where(count > 0, total / count, everywhere)
            sums, counts = _near(self.sums[kind]), _near(self.counts[kind])
            other_sums, other_counts = _near(self.sums.sum(0)) - sums, _near(self.counts.sum(0)) - counts
            share = np.where(other_counts > 0.5, OF_OTHERS * (1 - counts / (2 * REACH + 1)).clip(min=0), 0.0)
            others = np.where(share > 0, share * other_sums / other_counts, 0.0)
            readings = (sums + others + OF_SENSOR * mean) / (counts + share + OF_SENSOR)
        days = (counts + 0.1 * other_counts.clip(min=0)) / (2 * REACH + 1)
        trust = np.round(255 * days / (days + TRUSTED_DAYS)).astype(np.uint8)
        return Usual(readings.astype(np.float32), trust)


def _near(table: np.ndarray) -> np.ndarray:
    """The sum over the slots within reach; the slots of a day are a circle."""
    near = table.copy()
    for shift in range(1, REACH + 1):
        near += np.roll(table, shift, axis=0) + np.roll(table, -shift, axis=0)
    return near


class PastDays:
    """The climatology of the days before a day, where each counts half as much after 14 days.

    No reading of the day itself or later is ever part of it.
    """

    def __init__(
        self, source: RowSource, given: KnownDays | None = None, most: int = 0, present: int | None = None
    ) -> None:
        """given: of days that another file has; it counts from its end on, for the sensors of which it knows some.

        most: the largest number of days that ``at`` is asked for, besides all of them.  present: seconds; what is
        issued longer before the last row is told what was known then, as a server does that is asked in any order.
        """
        self.source, self.given, self.most, self.present = source, given, most, present
        self._lock = Lock()
        self._order = np.argsort(source.seconds, kind="stable")
        # A zone may put its clock back over midnight: no reading of that hour counts before the day after it.
        self._days = np.maximum.accumulate(source.calendar.day(source.seconds[self._order]))
        self._begin()

    def _begin(self) -> None:
        self._known = KnownDays.none(self.source.step_minutes, *self.source.shape, int(self._days[0]))
        self._row, self._joined = 0, self.given is None
        self._recent: deque[tuple[int, int, np.ndarray, np.ndarray]] = deque()  # day, kind, sums, counts [slots,N,G]
        self._tables: dict[tuple[int, int | None, int], Usual] = {}

    def of(self, source: RowSource) -> PastDays:
        """The same for a source that goes on with the rows of this one; days that were counted stay so."""
        other = PastDays(source, self.given, self.most, self.present)
        with self._lock:
            other._known, other._tables, other._recent = self._known, {**self._tables}, self._recent.copy()
            other._joined = self._joined
        other._row = int(np.searchsorted(other._days, self._known.end))
        return other

    def before(self, day: int) -> KnownDays:
        """What is known on a day, counted from 1970, of all days before it."""
        if day < self._known.end:
            self._begin()
        while self._row < len(self._days) and self._days[self._row] < day:
            self._count_day(int(self._days[self._row]))
        self._go_to(max(day, self._known.end))
        return self._known

    def _go_to(self, day: int) -> None:
        """Fade what is known to a day, and join what is given on its own."""
        if self.given is not None and not self._joined and self.given.end <= day:
            self._fade(max(self.given.end, self._known.end))
            own, given = self._known, self.given
            has = np.asarray(given.counts.any(axis=(0, 1, 3)))[:, None]  # [N,1]
            sums, counts = np.where(has, given.sums, own.sums), np.where(has, given.counts, own.counts)
            self._known, self._joined = KnownDays(sums, counts, min(given.first, own.first), own.end), True
        self._fade(day)

    def _count_day(self, day: int) -> None:
        """Count the next rows, which are those of this day."""
        end = int(np.searchsorted(self._days, day, side="right"))
        rows = self._order[self._row : end]
        first, last = int(rows.min()), int(rows.max()) + 1
        values, valid = (part[rows - first] for part in self.source.read(slice(first, last)))
        slot, weekday = self.source.calendar.at(self.source.seconds[rows], self.source.step_minutes)
        sums, counts = (np.zeros(self._known.sums.shape[1:], np.float32) for _ in range(2))
        # Slots that increase are all different, so that a plain addition counts every row; np.add.at is slow.
        ends = [*(np.flatnonzero(np.diff(slot) <= 0) + 1), len(slot)]
        for start, stop in zip([0, *ends], ends, strict=False):
            sums[slot[start:stop]] += np.where(valid[start:stop], values[start:stop], 0.0)
            counts[slot[start:stop]] += valid[start:stop]
        self._go_to(day)
        kind, before = kind_of(int(weekday[0])), self._known
        self._known = KnownDays(before.sums.copy(), before.counts.copy(), before.first, day)
        self._known.sums[kind] += sums
        self._known.counts[kind] += counts
        self._fade(day + 1)
        self._recent.append((day, kind, sums, counts))
        while self._recent and self._recent[0][0] < day - self.most:
            self._recent.popleft()
        self._row = end

    def _fade(self, day: int) -> None:
        """What is known counts only so much on a later day."""
        known = self._known
        if day > known.end:
            share = np.float32(0.5 ** ((day - known.end) / HALF_LIFE_DAYS))
            self._known = KnownDays(known.sums * share, known.counts * share, known.first, day)

    def table(self, day: int, days: int | None, kind: int) -> Usual:
        """What is usual on a kind of day, [slots,N,G], as known on a day of so many days before it, None: of all."""
        key = day, days, kind
        if key not in self._tables:
            known = self.before(day)
            if days is not None:
                known = KnownDays.none(self.source.step_minutes, *self.source.shape, day)
                for place, of, sums, counts in self._recent:
                    if day - days <= place < day:
                        share = np.float32(0.5 ** ((day - place) / HALF_LIFE_DAYS))
                        known.sums[of] += share * sums
                        known.counts[of] += share * counts
            while len(self._tables) >= TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[key] = known.usual(kind)
        return self._tables[key]

    def at(self, seconds: np.ndarray, issued: np.ndarray, days: Sequence[int | None] = (None,)) -> Usual:
        """What is usual at the times seconds int64 [R], [V,R,N,G], as known on the days of issued int64 [R].

        days: V numbers of days before the day of issue, None: all.  A day of issue that lies before those of earlier
        calls makes it count from the first row again.
        """
        slot, weekday = self.source.calendar.at(seconds, self.source.step_minutes)
        day, kinds = self.source.calendar.day(issued), np.maximum(weekday - 4, 0)
        shape = len(days), len(seconds), *self.source.shape
        usual = Usual(np.empty(shape, np.float32), np.empty(shape, np.uint8))
        if self.present is not None:
            last = self.source.seconds[self._order[-1]]
            day = np.maximum(day, self.source.calendar.day(last - self.present))
        for one in np.unique(day).tolist():
            for kind in np.unique(kinds[day == one]).tolist():
                rows = np.flatnonzero((day == one) & (kinds == kind))
                for place, each in enumerate(days):
                    with self._lock:
                        tables = self.table(one, each, kind)
                    for part, table in zip(usual, tables, strict=True):
                        part[place, rows] = table[slot[rows]]
        return usual
