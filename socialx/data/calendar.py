"""Slot of the day and day of the week of each row, by the wall clock of the file."""

from __future__ import annotations

import numpy as np

DAY_S = 86_400


def calendar(seconds: np.ndarray, step_minutes: int) -> tuple[np.ndarray, np.ndarray]:
    """Where in the day and in the week each row lies.

    seconds int64 [T], wall time read as UTC -> slot int64 [T] in 0 .. slots-1 (288 at five minutes), weekday int64
    [T], 0 = Monday.
    """
    slot = (seconds % DAY_S) // (step_minutes * 60)
    weekday = (seconds // DAY_S + 3) % 7  # 1970-01-01 was a Thursday
    return slot.astype(np.int64), weekday.astype(np.int64)


def slots_per_day(step_minutes: int) -> int:
    """Slots of one day, the last one shorter where the step does not divide it."""
    return -(-1440 // step_minutes)


def following(last: int, step_minutes: int, steps: int) -> np.ndarray:
    """The ``steps`` rows after second ``last``, a step apart, int64 [steps]."""
    return last + 60 * step_minutes * np.arange(1, steps + 1, dtype=np.int64)
