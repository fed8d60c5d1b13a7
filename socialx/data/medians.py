"""Historical median: the median per sensor, weekday and time of day over past weeks, smoothed over 20 minutes."""

# Shape letters: D days, R rows, S slots, N sensors, G targets

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from socialx.data.climatology import TABLES, slots_in_reach
from socialx.data.source import RowSource

WEEKDAY_DAYS = 28  # from which on a weekday has statistics of its own
LATEST_DAYS = 84


@dataclass(eq=False)
class HistoricalMedians:
    """Historical medians in a file, from the rows before a given row, within the latest 12 weeks.

    A slot takes the readings up to 20 minutes before and after on the same weekday; below four weeks of days, on all
    working days or all days of weekends.  Speeds are skewed, so that a median errs less than a mean on many roads.
    """

    source: RowSource
    _tables: dict[tuple[int, int, tuple[int, ...]], np.ndarray] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def _days(self) -> np.ndarray:
        """The local day of each row, int64 [T]."""
        return self.source.calendar.day(self.source.seconds)

    @cached_property
    def _slots(self) -> tuple[np.ndarray, np.ndarray]:
        """The slot of the day, and the weekday, of each row, int64 [T]."""
        return self.source.calendar.time_features(self.source.seconds, self.source.step_minutes)

    def lookup(self, seconds: np.ndarray, stop: int) -> np.ndarray:
        """Return the medians float32 [R,N,G] at times int64 [R], in seconds, from the first ``stop`` rows."""
        slots, weekdays = self.source.calendar.time_features(seconds, self.source.step_minutes)
        found = np.empty((len(seconds), *self.source.shape), np.float32)
        for weekday in np.unique(weekdays).tolist():
            rows = weekdays == weekday
            found[rows] = self.table(weekday, stop)[slots[rows]]
        return found

    def table(self, weekday: int, stop: int) -> np.ndarray:
        """Return the medians float32 [S,N,G] on a weekday, 0 for Monday, from the first ``stop`` rows.

        A slot without readings takes the median over all slots; a sensor without any has NaN.
        """
        days = self._days[:stop]
        alike: tuple[int, ...] = (weekday,)
        if len(np.unique(days)) < WEEKDAY_DAYS:
            alike = (5, 6) if weekday > 4 else (0, 1, 2, 3, 4)
        near = days > days.max(initial=0) - LATEST_DAYS
        rows = np.flatnonzero(near & np.isin(self._slots[1][:stop], alike))
        key = int(rows[-1]) if len(rows) else -1, len(rows), alike
        if key not in self._tables:
            while len(self._tables) >= TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[key] = self._compute(rows)
        return self._tables[key]

    def _compute(self, rows: np.ndarray) -> np.ndarray:
        slots = 24 * 60 // self.source.step_minutes
        days, place = np.unique(self._days[rows], return_inverse=True)
        readings = np.full((slots, *self.source.shape, len(days)), np.nan, np.float32)
        for number in range(len(days)):
            of_day = rows[place == number]
            first = int(of_day.min())
            values, valid = (part[of_day - first] for part in self.source.read(slice(first, int(of_day.max()) + 1)))
            readings[self._slots[0][of_day], ..., number] = np.where(valid, values, np.nan)
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
