"""Slot of the day and day of the week of each row, by the clock that people live by and their holidays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

DAY_S = 86_400
QUARTER_S = 900  # no clock is changed within a quarter of an hour
FAR_S = 200_000_000_000  # from 1970, inside the years that datetime can hold
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
KINDS_OF_DAY = 3  # Monday to Friday, Saturday, Sunday
# A day, counted from 1970 -> the weekday that its traffic resembles, 0 = Monday; None: it is no holiday.
Holidays = Callable[[int], int | None]


@dataclass(frozen=True)
class Calendar:
    """The clock that people live by, and their holidays.

    zone: of that clock, where rows have times in UTC; None: rows have wall times, which are those of that clock.
    """

    zone: ZoneInfo | None = None
    holidays: Holidays | None = None

    def local(self, seconds: np.ndarray | int) -> np.ndarray:
        """The times of rows int64 [...] on the clock that people live by, read as UTC, int64 [...]."""
        times = np.asarray(seconds)
        return times if self.zone is None else times + shifts(self.zone, times)

    def day(self, seconds: np.ndarray | int) -> np.ndarray:
        """The day of each row, or of one time, counted from 1970, int64 [...]."""
        return self.local(seconds) // DAY_S

    def at(self, seconds: np.ndarray, step_minutes: int) -> tuple[np.ndarray, np.ndarray]:
        """Where in the day and in the week each row lies.

        seconds int64 [...] -> slot int64 [...] in 0 .. slots-1 (288 at five minutes), weekday int64 [...], 0 = Monday;
        that of a holiday is the one that it resembles.
        """
        local = self.local(seconds)
        time_of_day, day = (local % DAY_S) // (step_minutes * 60), local // DAY_S
        day_of_week = (day + 3) % 7  # 1970-01-01 was a Thursday
        for holiday, like in self.holidays_among(day).items():
            day_of_week = np.where(day == holiday, like, day_of_week)
        return time_of_day.astype(np.int64), day_of_week.astype(np.int64)

    def holidays_among(self, days: np.ndarray) -> dict[int, int]:
        """Those of these days int64 [...] that are holidays, in order, and the weekdays that they resemble."""
        if self.holidays is None:
            return {}
        likes = ((day, self.holidays(day)) for day in np.unique(days).tolist())
        return {day: like for day, like in likes if like is not None}


WALL = Calendar()  # of wall times, without holidays


def shifts(zone: ZoneInfo, seconds: np.ndarray) -> np.ndarray:
    """What the clock of a zone shows at moments in UTC, minus UTC, in seconds: int64 [...]."""
    every, place = np.unique(seconds.clip(-FAR_S // 4, FAR_S) // QUARTER_S, return_inverse=True)
    offsets = (datetime.fromtimestamp(QUARTER_S * quarter, zone).utcoffset() for quarter in every.tolist())
    found = np.array([int((offset or timedelta()).total_seconds()) for offset in offsets], np.int64)
    return found[place].reshape(seconds.shape)


def kind_of(day_of_week: int) -> int:
    """The kind of a day: 0 for Monday to Friday, 1 for Saturday, 2 for Sunday."""
    return max(day_of_week - 4, 0)


def slots_per_day(step_minutes: int) -> int:
    """Slots of one day, the last one shorter where the step does not divide it."""
    return -(-1440 // step_minutes)


def following(last: int, step_minutes: int, steps: int) -> np.ndarray:
    """The ``steps`` rows after second ``last``, a step apart, int64 [steps]."""
    return last + 60 * step_minutes * np.arange(1, steps + 1, dtype=np.int64)
