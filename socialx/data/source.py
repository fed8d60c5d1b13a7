"""Row sources: observations read page by page, with the last observation before each page."""

# Shape letters: T rows, t rows read, N sensors, C features

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from socialx.data.calendar import WALL, Calendar

PAGE_ROWS = 1020  # 3.5 days of 5-minute rows; a multiple of the blocks of series.look_back


class RowSource(Protocol):
    """Observations by row, with file time read as UTC, for N sensors and C features."""

    @property
    def seconds(self) -> np.ndarray:
        """Time of each row, int64 [T]."""

    @property
    def step_minutes(self) -> int:
        """Time step in minutes."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of sensors and features."""

    @property
    def calendar(self) -> Calendar:
        """Local clock and holidays."""

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return values float32 and valid bool [t,N,C] for a slice of adjacent rows."""

    def latest_before(self, page: int) -> np.ndarray:
        """Return the last valid observation before page number ``page`` (of PAGE_ROWS rows), float32 [N,C] or NaN."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """Observations in memory: values float32 and valid bool [T,N,C], seconds int64 [T]."""

    values: np.ndarray
    valid: np.ndarray
    seconds: np.ndarray
    step_minutes: int = 5
    calendar: Calendar = WALL

    @property
    def shape(self) -> tuple[int, int]:
        """Number of sensors and features."""
        return self.values.shape[1], self.values.shape[2]

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return values and valid [t,N,C] for the rows, as views."""
        return self.values[rows], self.valid[rows]

    def latest_before(self, page: int) -> np.ndarray:
        """Return the last valid observation before a page by number, float32 [N,C] or NaN; scans all earlier rows."""
        latest = np.full(self.shape, np.nan, np.float32)
        for rows in pages(0, page * PAGE_ROWS):
            latest = latest_after(*self.read(rows), latest)
        return latest


def pages(first: int, last: int) -> Iterator[slice]:
    """Yield slices that cover the rows from ``first`` to before ``last``, each within a page of PAGE_ROWS rows."""
    while first < last:
        end = min(last, (first // PAGE_ROWS + 1) * PAGE_ROWS)
        yield slice(first, end)
        first = end


def latest_after(values: np.ndarray, valid: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return each column's last valid observation in rows [t,...], or ``before`` [...] where all rows are invalid."""
    if not len(values):
        return before
    index = len(valid) - 1 - valid[::-1].argmax(axis=0)
    return np.where(valid.any(axis=0), np.take_along_axis(values, index[None], axis=0)[0], before)
