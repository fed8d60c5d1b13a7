"""Where readings come from: rows of a series that are read when they are asked for.

A file larger than the memory is read page by page.  What is older than a page and still counts, the latest valid
reading of each sensor, is known at the first row of every page.
"""

# Shape letters: T rows, t some of them, N sensors, C features

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from socialx.data.calendar import WALL, Calendar

PAGE_ROWS = 1020  # 3.5 days of 5-minute rows; a multiple of the blocks of series.look_back


class RowSource(Protocol):
    """Readings of N sensors and C features by row.

    seconds int64 [T], the time in the file read as UTC; shape (N, C).
    """

    @property
    def seconds(self) -> np.ndarray:
        """The time of each row."""
        ...

    @property
    def step_minutes(self) -> int:
        """The time between two rows."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Sensors and features."""
        ...

    @property
    def calendar(self) -> Calendar:
        """The clock that people live by, and their holidays."""
        ...

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Values float32 and valid bool [t,N,C] of neighbouring rows."""
        ...

    def latest_before(self, page: int) -> np.ndarray:
        """The latest valid reading before the first row of a page, float32 [N,C]; NaN where there never was one."""
        ...


@dataclass(frozen=True, eq=False)
class Arrays:
    """Readings in memory.  values float32, valid bool [T,N,C], seconds int64 [T]."""

    values: np.ndarray
    valid: np.ndarray
    seconds: np.ndarray
    step_minutes: int = 5
    calendar: Calendar = WALL

    @property
    def shape(self) -> tuple[int, int]:
        """Sensors and features."""
        return self.values.shape[1], self.values.shape[2]

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Views of these rows."""
        return self.values[rows], self.valid[rows]

    def latest_before(self, page: int) -> np.ndarray:
        """From a walk over all rows before it."""
        latest = np.full(self.shape, np.nan, np.float32)
        for rows in pages(0, page * PAGE_ROWS):
            latest = latest_after(*self.read(rows), latest)
        return latest


def pages(first: int, last: int) -> Iterator[slice]:
    """The rows from ``first`` to ``last``, cut at the first rows of pages."""
    while first < last:
        end = min(last, (first // PAGE_ROWS + 1) * PAGE_ROWS)
        yield slice(first, end)
        first = end


def latest_after(values: np.ndarray, valid: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The latest valid reading of these rows [t,...], or ``before`` [...] where none of them is valid."""
    if not len(values):
        return before
    place = len(valid) - 1 - valid[::-1].argmax(axis=0)
    return np.where(valid.any(axis=0), np.take_along_axis(values, place[None], axis=0)[0], before)
