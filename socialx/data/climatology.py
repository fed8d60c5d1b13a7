"""Climatology: what is usual for a sensor at a time of the week, from the days before the day of issue alone."""

# Shape letters: R rows, V numbers of days, N sensors, G targets

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from socialx.data.calendar import KINDS_OF_DAY, kind_of, slots_per_day
from socialx.data.source import RowSource

REACH = 4  # slots before and after that count too
HALF_LIFE_DAYS = 14.0  # of a day's share: benchmarks/climatology.py
OF_SENSOR = 0.5  # readings of the sensor's mean: few readings at a time of the week do not decide alone
OF_OTHERS = 2.0  # readings at the same time on other kinds of day, less where a day of this kind is known
TRUSTED_DAYS = 3.0  # with so many days behind it, a usual reading is half trusted
TABLES = 16  # of days and kinds of day that are kept
SCHEMAS = "socialx.climatology/1", "socialx.climatology/2"  # of a file of known days
MOST_DAYS, MOST_READING = 4_000_000, 1e9  # from 1970, and of a mean: what is more is no climatology
UNTIL_TRAINED = -1  # in place of a number of days: all of them until the end of the training rows
# Days that a zero-shot model meets in training, None: all.
TRAIN_CLIMATOLOGY_DAYS: tuple[int | None, ...] = (0, 1, 2, 3, 5, 7, 14, 28, None)


class ClimatologyTable(NamedTuple):
    """What is usual, [...,N,G].

    readings float32, in the file's unit, NaN where nothing is known.  trust uint8: 255 n / (n + 3), where n is the
    number of days behind a reading; days of another kind count a tenth.
    """

    readings: np.ndarray
    confidence: np.ndarray


class OneDay(NamedTuple):
    """The valid readings of a day, counted from 1970: its kind, and their sums and counts, float32 [slots,N,G]."""

    day: int
    kind: int
    sums: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True, eq=False)
class DailyStats:
    """What is known of some days: sums of valid readings and their counts, float32 [3,slots,N,G].

    They are as of a day: each reading counts as much as on ``end``, the day after the last of these days.  first: the
    first of them, counted from 1970.  last: the readings of the day ``end`` itself so far, which count from the next
    day on.
    """

    sums: np.ndarray
    counts: np.ndarray
    first: int
    end: int
    last: OneDay | None = None

    @classmethod
    def none(cls, step_minutes: int, sensors: int, targets: int, day: int) -> DailyStats:
        """Nothing, before a day."""
        shape = KINDS_OF_DAY, slots_per_day(step_minutes), sensors, targets
        return cls(np.zeros(shape, np.float32), np.zeros(shape, np.float32), day, day)

    @property
    def as_sealed(self) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Tables, and texts that describe them, of which ``from_sealed`` makes the same again."""
        described = {"schema": SCHEMAS[-1], "first": str(self.first), "end": str(self.end)}
        tables = {"sums": self.sums, "counts": self.counts}
        if self.last is not None:  # its readings come behind those of the kinds of day
            described["kind"] = str(self.last.kind)
            for name, table in tables.items():
                tables[name] = np.concatenate([table, getattr(self.last, name)[None]])
        return tables, described

    @classmethod
    def from_sealed(cls, tables: Mapping[str, np.ndarray], described: Mapping[str, str]) -> DailyStats:
        """What ``as_sealed`` made of known days.  Raises ValueError or KeyError where nobody did."""
        sums, counts = tables["sums"], tables["counts"]
        if described["schema"] not in SCHEMAS or sums.ndim != 4 or sums.shape != counts.shape:
            raise ValueError("it is of another version")
        if not (np.isfinite(sums).all() and np.isfinite(counts).all() and (counts >= 0).all()):
            raise ValueError("its numbers are not finite, or below 0")
        first, end, kind = int(described["first"]), int(described["end"]), int(described.get("kind", 0))
        kinds = len(sums) - ("kind" in described)
        if not -MOST_DAYS < first <= end < MOST_DAYS or kinds != KINDS_OF_DAY or not 0 <= kind < kinds:
            raise ValueError("its days are none")
        if not (np.abs(sums) <= MOST_READING * counts).all():
            raise ValueError("its sums are not of readings")
        last = OneDay(end, kind, sums[-1], counts[-1]) if "kind" in described else None
        return cls(sums[:kinds], counts[:kinds], first, end, last)

    def on(self, day: int) -> DailyStats:
        """The same as of a later day, on which it counts less.  ValueError for an earlier one."""
        if day == self.end:
            return self
        known = self if self.last is None else self.plus(self.last)
        share = _share_on(day, self.end)
        return DailyStats(known.sums * share, known.counts * share, self.first, day)

    def plus(self, *days: OneDay) -> DailyStats:
        """The same with these days, as of the same day.  ValueError for a day after that."""
        known = replace(self, sums=self.sums.copy(), counts=self.counts.copy(), last=None)
        for one in days:
            share = _share_on(self.end, one.day)
            known.sums[one.kind] += share * one.sums
            known.counts[one.kind] += share * one.counts
        return known

    def taking(self, other: DailyStats) -> DailyStats:
        """What another one knows of the sensors that it knows, and this one of the others, as of the day of the other.

        ValueError where this one is of a later day.
        """
        own, has = self.on(other.end), np.asarray(other.counts.any(axis=(0, 1, 3)))[:, None]  # [N,1]
        sums, counts = np.where(has, other.sums, own.sums), np.where(has, other.counts, own.counts)
        return replace(other, sums=sums, counts=counts, first=min(own.first, other.first))

    def of_sensors(self, places: Sequence[int], ratios: Sequence[float]) -> DailyStats:
        """The same for sensors at these places among its own, -1: a new one; ratios: a unit in theirs, per target."""
        kept, units = np.array(places)[:, None] >= 0, np.array(ratios, np.float32)

        def taken(of: DailyStats | OneDay) -> dict[str, Any]:
            sums, counts = (
                np.where(kept, table[..., list(places), :], np.float32(0)) for table in (of.sums, of.counts)
            )
            return {"sums": sums * units, "counts": counts}

        last = None if self.last is None else self.last._replace(**taken(self.last))
        return replace(self, **taken(self), last=last)

    @property
    def mean(self) -> np.ndarray:
        """The mean reading of each sensor, [N,G]; that of all sensors where it has none."""
        count, total = self.counts.sum((0, 1)), self.sums.sum((0, 1))  # [N,G]
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: nothing is known
            return np.where(count > 0, total / count, total.sum(0) / count.sum(0))

    def climatology(self, kind: int) -> ClimatologyTable:
        """What is usual on a kind of day, [slots,N,G], as ``weighted_mean`` says."""
        own = near(self.sums[kind]), near(self.counts[kind])
        others = near(self.sums.sum(0)) - own[0], near(self.counts.sum(0)) - own[1]
        with np.errstate(invalid="ignore", divide="ignore"):
            readings, confidence = weighted_mean(np, own, others, self.mean)
        return ClimatologyTable(readings.astype(np.float32), confidence.astype(np.uint8))


def weighted_mean(module: Any, own: Sequence[Any], other: Sequence[Any], mean: Any) -> tuple[Any, Any]:
    """What is usual, and the trust in it in 255ths; module: numpy or torch, of which the other arguments are.

    usual = (sum + w others + mean / 2) / (count + w + 1 / 2).  own: sum and count of the valid readings within four
    slots on this kind of day; other: the same on other kinds, whose mean is others.  w falls from 2 to 0 as the first
    day of this kind is known.  mean is that of the sensor.
    """
    (sums, counts), (other_sums, other_counts) = own, other
    share = module.where(other_counts > 0.5, OF_OTHERS * (1 - counts / (2 * REACH + 1)).clip(min=0), 0.0)
    others = module.where(share > 0, share * other_sums / other_counts, 0.0)
    readings = (sums + others + OF_SENSOR * mean) / (counts + share + OF_SENSOR)
    days = (counts + 0.1 * other_counts.clip(min=0)) / (2 * REACH + 1)
    return readings, module.round(255 * days / (days + TRUSTED_DAYS))


def near(table: np.ndarray) -> np.ndarray:
    """The sum over the slots within reach, [slots,...]; the slots of a day are a circle."""
    total = table.copy()
    for shift in range(1, REACH + 1):
        total += np.roll(table, shift, axis=0) + np.roll(table, -shift, axis=0)
    return total


def _share_on(day: int, of: int) -> np.float32:
    """How much what counts on a day still counts on a later one.  ValueError for an earlier one."""
    if day < of:
        raise ValueError(f"what is known on day {of} is no knowledge of day {day}")
    return np.float32(0.5 ** ((day - of) / HALF_LIFE_DAYS))


class RollingClimatology:
    """The climatology of the days before a day, where each counts half as much after 14 days.

    No reading of the day itself or later is ever part of it.
    """

    def __init__(
        self, source: RowSource, prior: DailyStats | None = None, most: int = 0, present: int | None = None
    ) -> None:
        """prior: of days that another file has; it counts from its end on, for the sensors of which it knows some.

        most: the largest number of days that ``at`` is asked for, besides all of them.  present: seconds; what is
        issued longer before the last row is told what was known then, as a server does that is asked in any order.
        """
        self.source, self.prior, self.most, self.present = source, prior, most, present
        self._lock = Lock()
        self._order = np.argsort(source.seconds, kind="stable")
        # A zone may put its clock back over midnight: no reading of that hour counts before the day after it.
        self._days = np.maximum.accumulate(source.calendar.day(source.seconds[self._order]))
        self._begin()

    def _begin(self) -> None:
        first = int(self._days[0]) if self.prior is None else min(int(self._days[0]), self.prior.end)
        self._known = DailyStats.none(self.source.step_minutes, *self.source.shape, first)
        self._recent: deque[OneDay] = deque()
        self._tables: dict[tuple[int, int | None, int], ClimatologyTable] = {}

    def before(self, day: int) -> DailyStats:
        """What is known on a day, counted from 1970, of all days before it."""
        if day < self._known.end:
            self._begin()
        rows = slice(*np.searchsorted(self._days, [self._known.end, day]))
        for each in np.unique(self._days[rows]).tolist():
            self._go_to(each)
            self._recent.append(self._one(each))
            self._known = self._known.plus(self._recent[-1]).on(each + 1)
            while self._recent[0].day < each - self.most:
                self._recent.popleft()
        self._go_to(max(day, self._known.end))
        return self._known

    def now(self) -> DailyStats:
        """What is known on the day of the last row, and the readings of that day so far."""
        day = int(self._days[-1])
        return replace(self.before(day), last=self._one(day))

    def _go_to(self, day: int) -> None:
        """What is known as of a day; what is given joins it on its own day."""
        if self.prior is not None and self._known.end <= self.prior.end <= day:
            self._known = self._known.taking(self.prior)
        self._known = self._known.on(day)

    def _one(self, day: int) -> OneDay:
        """The readings of a day with rows, as of which ``_known`` is; where they lack one, that which is given."""
        rows = self._order[slice(*np.searchsorted(self._days, [day, day + 1]))]
        first = int(rows.min())
        values, valid = (part[rows - first] for part in self.source.read(slice(first, int(rows.max()) + 1)))
        time_of_day, day_of_week = self.source.calendar.at(self.source.seconds[rows], self.source.step_minutes)
        sums, counts = (np.zeros(self._known.sums.shape[1:], np.float32) for _ in range(2))
        # Slots that increase are all different, so that a plain addition counts every row; np.add.at is slow.
        ends = [*(np.flatnonzero(np.diff(time_of_day) <= 0) + 1), len(time_of_day)]
        for start, stop in zip([0, *ends], ends, strict=False):
            sums[time_of_day[start:stop]] += np.where(valid[start:stop], values[start:stop], 0.0)
            counts[time_of_day[start:stop]] += valid[start:stop]
        if (last := self._known.last) is not None:
            sums, counts = (np.where(counts > 0, *pair) for pair in ((sums, last.sums), (counts, last.counts)))
        return OneDay(day, kind_of(int(day_of_week[0])), sums, counts)

    def table(self, day: int, days: int | None, kind: int) -> ClimatologyTable:
        """What is usual on a kind of day, [slots,N,G], as known on a day of so many days before it, None: of all."""
        key = day, days, kind
        if key not in self._tables:
            known = self.before(day)
            if days is not None:
                recent = [one for one in self._recent if day - days <= one.day < day]
                known = DailyStats.none(self.source.step_minutes, *self.source.shape, day).plus(*recent)
            while len(self._tables) >= TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[key] = known.climatology(kind)
        return self._tables[key]

    def at(self, seconds: np.ndarray, issued: np.ndarray, days: Sequence[int | None] = (None,)) -> ClimatologyTable:
        """What is usual at the times seconds int64 [R], [V,R,N,G], as known on the days of issued int64 [R].

        days: V numbers of days before the day of issue, None: all.  A day of issue that lies before those of earlier
        calls makes it count from the first row again.
        """
        time_of_day, day_of_week = self.source.calendar.at(seconds, self.source.step_minutes)
        day, kinds = self.source.calendar.day(issued), np.maximum(day_of_week - 4, 0)
        shape = len(days), len(seconds), *self.source.shape
        climatology = ClimatologyTable(np.empty(shape, np.float32), np.empty(shape, np.uint8))
        if self.present is not None:
            last = self.source.seconds[self._order[-1]]
            day = np.maximum(day, self.source.calendar.day(last - self.present))
        for one, kind in np.unique([day, kinds], axis=1).T.tolist():
            rows = np.flatnonzero((day == one) & (kinds == kind))
            for place, each in enumerate(days):
                with self._lock:
                    tables = self.table(one, each, kind)
                for part, table in zip(climatology, tables, strict=True):
                    part[place, rows] = table[time_of_day[rows]]
        return climatology
