"""Readings as the detectors of another network might have reported them: smoother, noisier, and with outages.

Networks differ in how a reading is made.  In METR-LA the speed of a sensor changes by 2.7 mph from one row to the next
and by 5.0 in an hour.  In PEMS-BAY it changes by 0.9 and 3.1.  METR-LA lacks 8 % of its readings and PEMS-BAY none.
"""

# Shape letters: T rows, t some of them, N sensors, C features

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from socialx.data.source import PAGE_ROWS, RowSource, latest_after, pages

BLOCK_ROWS = 255  # of one kind of detector: as in the file, smoother or noisier
NOISE = 0.06  # the largest standard deviation of what is added, as a share of the reading
OUTAGES = 0.05  # of all readings, those of single sensors; and as many of all sensors at once
OUTAGE_LOG_ROWS, MOST_OUTAGE_ROWS = (1.1, 1.7), 288  # mean and deviation of the logarithm of their length


class Augmented:
    """Another source's rows, changed by draws of a seed: the same in whatever pieces they are read."""

    def __init__(self, source: RowSource, seed: int, measured: Sequence[bool]) -> None:
        """measured: of each feature, whether it is of readings; others stay as they are."""
        self.source, self.seed, self.measured = source, seed, np.array(measured)
        self.seconds, self.step_minutes = source.seconds, source.step_minutes
        self.calendar, self.shape = source.calendar, source.shape
        self._carried = [source.latest_before(0)]  # the latest valid reading before each page, as far as it was asked
        self._last: tuple[int, tuple[np.ndarray, np.ndarray]] | None = None  # the page that was made last

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Values float32 and valid bool [t,N,C] of neighbouring rows."""
        parts = []
        for piece in pages(rows.start, rows.stop):
            page = piece.start // PAGE_ROWS
            within = slice(piece.start - page * PAGE_ROWS, piece.stop - page * PAGE_ROWS)
            parts.append([part[within] for part in self._page(page)])
        values, valid = (np.concatenate(part) for part in zip(*parts, strict=True))
        return values, valid

    def latest_before(self, page: int) -> np.ndarray:
        """The latest valid reading before the first row of a page, float32 [N,C]; NaN where there never was one."""
        while len(self._carried) <= page:
            self._carried.append(latest_after(*self._page(len(self._carried) - 1), self._carried[-1]))
        return self._carried[page]

    def _page(self, page: int) -> tuple[np.ndarray, np.ndarray]:
        """Values and valid of all rows of a page."""
        if self._last is None or self._last[0] != page:
            self._last = page, self._made(page)
        return self._last[1]

    def _made(self, page: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(page * PAGE_ROWS, min((page + 1) * PAGE_ROWS, len(self.seconds)))
        values, valid = self.source.read(rows)
        rng, plain = np.random.default_rng([self.seed, page]), values
        values = np.where(valid, values, np.float32(0))
        smooth = smoothed(values, valid)
        for first in range(0, len(values), BLOCK_ROWS):
            block, kind, level = slice(first, first + BLOCK_ROWS), rng.integers(3), rng.random(dtype=np.float32)
            if kind == 1:
                values[block] += level * (smooth[block] - values[block])
            elif kind == 2:
                values[block] *= 1 + NOISE * level * rng.standard_normal(values[block].shape, np.float32)
        lost = self._lost(rng, *valid.shape[:2])[..., None] & self.measured
        return np.where(self.measured, values, plain), valid & ~lost

    def _lost(self, rng: np.random.Generator, rows: int, sensors: int) -> np.ndarray:
        """Where outages are, bool [t,N]."""
        lost = np.zeros((rows, sensors), bool)
        mean = float(np.exp(OUTAGE_LOG_ROWS[0] + OUTAGE_LOG_ROWS[1] ** 2 / 2))
        for columns in (sensors, 1):  # of single sensors, and of all of them
            count = rng.poisson(OUTAGES * rows * columns / mean)
            lengths = np.exp(rng.normal(*OUTAGE_LOG_ROWS, count)).clip(1, MOST_OUTAGE_ROWS).astype(int)
            firsts, places = rng.integers(0, rows, count), rng.integers(0, columns, count)
            for first, length, place in zip(firsts.tolist(), lengths.tolist(), places.tolist(), strict=True):
                lost[first : first + length, slice(None) if columns == 1 else place] = True
        return lost


def smoothed(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The mean of the valid readings of each row, the one before and the one after, [t,N,C]; values 0 where missing."""
    total, count = values.copy(), valid.astype(np.float32)
    for ahead, behind in ((slice(1, None), slice(None, -1)), (slice(None, -1), slice(1, None))):
        total[ahead] += values[behind]
        count[ahead] += valid[behind]
    return total / np.maximum(count, 1)
