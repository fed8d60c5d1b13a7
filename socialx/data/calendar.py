"""Time features: time of day and day of week by the local clock and its holidays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

DAY_S = 86_400
QUARTER_S = 900  # clocks change on quarter hours
FAR_S = 200_000_000_000  # from 1970, inside the years that datetime can hold
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
KINDS_OF_DAY = 3  # Monday to Friday, Saturday, Sunday
# Day since 1970 -> the weekday that its traffic resembles, 0 = Monday; None on ordinary days.
Holidays = Callable[[int], int | None]


@dataclass(frozen=True)
class Calendar:
    """Local clock (zone) for files in UTC, and holidays. With zone ``None`` the file has local time."""

    zone: ZoneInfo | None = None
    holidays: Holidays | None = None

    def local(self, seconds: np.ndarray | int) -> np.ndarray:
        """Convert file times int64 [...] to the local clock: seconds that show local time if read as UTC, int64."""
        times = np.asarray(seconds)
        return times if self.zone is None else times + shifts(self.zone, times)

    def day(self, seconds: np.ndarray | int) -> np.ndarray:
        """Return the local day of file times in seconds, int64 [...], as days since 1970, int64 [...]."""
        return self.local(seconds) // DAY_S

    def time_features(self, seconds: np.ndarray, step_minutes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return time of day and day of week for file times in seconds, int64 [...], as int64 [...] each.

        Times count slots with ``step_minutes`` from midnight (0 to 287 at five minutes); weekday 0 is Monday. A holiday
        has the weekday that its traffic resembles.
        """
        local = self.local(seconds)
        time_of_day, day = (local % DAY_S) // (step_minutes * 60), local // DAY_S
        day_of_week = (day + 3) % 7  # 1970-01-01 was a Thursday
        for holiday, like in self.holidays_among(day).items():
            day_of_week = np.where(day == holiday, like, day_of_week)
        return time_of_day.astype(np.int64), day_of_week.astype(np.int64)

    def holidays_among(self, days: np.ndarray) -> dict[int, int]:
        """Return the holidays among days since 1970, in order, with the day of week (0: Monday) that each resembles."""
        if self.holidays is None:
            return {}
        likes = ((day, self.holidays(day)) for day in np.unique(days).tolist())
        return {day: like for day, like in likes if like is not None}


WALL = Calendar()  # local times, ordinary days only


def shifts(zone: ZoneInfo, seconds: np.ndarray, fold: int | None = None) -> np.ndarray:
    """Return local clock minus UTC at UTC times, or at wall times if ``fold`` is 0 (first) or 1, in s, int64 [...]."""
    clock, grain = (zone, QUARTER_S) if fold is None else (UTC, 60)
    parts, index = np.unique(seconds.clip(-FAR_S // 4, FAR_S) // grain, return_inverse=True)
    moments = (datetime.fromtimestamp(grain * part, clock) for part in parts.tolist())
    moments = moments if fold is None else (moment.replace(tzinfo=zone, fold=fold) for moment in moments)
    offsets = (moment.utcoffset() for moment in moments)
    offsets_s = np.array([int((offset or timedelta()).total_seconds()) for offset in offsets], np.int64)
    return offsets_s[index].reshape(seconds.shape)


def day_kind(day_of_week: int) -> int:
    """Return the day kind for a day of week (0: Monday): 0 for Monday to Friday, 1 for Saturday, 2 for Sunday."""
    return max(day_of_week - 4, 0)


def slots_per_day(step_minutes: int) -> int:
    """Return the number of time slots of ``step_minutes`` per day; the last slot may be shorter."""
    return -(-1440 // step_minutes)


def next_times(last: int, step_minutes: int, steps: int) -> np.ndarray:
    """Return the ``steps`` times after second ``last``, ``step_minutes`` apart, in seconds, int64 [steps]."""
    return last + 60 * step_minutes * np.arange(1, steps + 1, dtype=np.int64)
