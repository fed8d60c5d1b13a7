"""Slot of the day and day of the week of each row, by the wall clock of the file and its holidays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

DAY_S = 86_400
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
KINDS_OF_DAY = 3  # Monday to Friday, Saturday, Sunday
# A day, counted from 1970 -> the weekday that its traffic resembles, 0 = Monday.
Holidays = Mapping[int, int]


def calendar(seconds: np.ndarray, step_minutes: int, holidays: Holidays) -> tuple[np.ndarray, np.ndarray]:
    """Where in the day and in the week each row lies.

    seconds int64 [...], wall time read as UTC -> slot int64 [...] in 0 .. slots-1 (288 at five minutes), weekday int64
    [...], 0 = Monday; that of a holiday is the one that it resembles.
    """
    slot, day = (seconds % DAY_S) // (step_minutes * 60), seconds // DAY_S
    weekday = (day + 3) % 7  # 1970-01-01 was a Thursday
    for holiday, like in holidays.items():
        weekday = np.where(day == holiday, like, weekday)
    return slot.astype(np.int64), weekday.astype(np.int64)


def kind_of(weekday: int) -> int:
    """The kind of a day: 0 for Monday to Friday, 1 for Saturday, 2 for Sunday."""
    return max(weekday - 4, 0)


def slots_per_day(step_minutes: int) -> int:
    """Slots of one day, the last one shorter where the step does not divide it."""
    return -(-1440 // step_minutes)


def following(last: int, step_minutes: int, steps: int) -> np.ndarray:
    """The ``steps`` rows after second ``last``, a step apart, int64 [steps]."""
    return last + 60 * step_minutes * np.arange(1, steps + 1, dtype=np.int64)
