"""Data augmentation: smoother, noisier or coarser observations, and outages, as other detectors would report.

Detectors differ. METR-LA speeds change by 2.7 mph per row and 5.0 mph per hour; PEMS-BAY speeds by 0.9 and 3.1 mph.
METR-LA lacks 8 % of its observations, PEMS-BAY 0 %. Travel times of single vehicles in streets scatter by more than
10 %. For a step of 10 or 15 minutes ``CoarserStepAdapter`` repeats each observation.
"""

# Shape letters: T rows, t rows read, N sensors, C features

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from socialx.data.source import PAGE_ROWS, RowSource, latest_after, pages

BLOCK_ROWS = 255  # per detector kind: as in the file, smoother or noisier
NOISE = 0.25  # largest standard deviation of the noise, as a share of the observation
COARSE_ROWS = (1, 1, 1, 1, 2, 3)  # rows averaged and repeated; each block draws a number
OUTAGES = 0.05  # share of observations lost by single sensors; the same share is lost by all sensors at once
OUTAGE_LOG_ROWS, MOST_OUTAGE_ROWS = (1.1, 1.7), 288  # mean and standard deviation of the log outage length


class AugmentedSource:
    """Row source for training: reads ``source`` and changes observations by seeded draws, equally for any slicing."""

    def __init__(self, source: RowSource, seed: int, measured: Sequence[bool]) -> None:
        """source: rows to change. seed: fixes all draws. measured: for each feature, whether to augment the feature."""
        self.source, self.seed, self.measured = source, seed, np.array(measured)
        self.seconds, self.step_minutes = source.seconds, source.step_minutes
        self.calendar, self.shape = source.calendar, source.shape
        self._latest = [source.latest_before(0)]  # last observation before each page read so far
        self._last: tuple[int, tuple[np.ndarray, np.ndarray]] | None = None  # most recent page

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return values float32 and valid bool [t,N,C] for adjacent rows."""
        parts = []
        for piece in pages(rows.start, rows.stop):
            page = piece.start // PAGE_ROWS
            within = slice(piece.start - page * PAGE_ROWS, piece.stop - page * PAGE_ROWS)
            parts.append([part[within] for part in self._page(page)])
        values, valid = (np.concatenate(part) for part in zip(*parts, strict=True))
        return values, valid

    def latest_before(self, page: int) -> np.ndarray:
        """Return the last valid observation before page number ``page`` (of PAGE_ROWS rows), float32 [N,C] or NaN."""
        while len(self._latest) <= page:
            self._latest.append(latest_after(*self._page(len(self._latest) - 1), self._latest[-1]))
        return self._latest[page]

    def _page(self, page: int) -> tuple[np.ndarray, np.ndarray]:
        """Return augmented values and valid [t,N,C] for page number ``page``; the latest page stays in memory."""
        if self._last is None or self._last[0] != page:
            self._last = page, self._make_page(page)
        return self._last[1]

    def _make_page(self, page: int) -> tuple[np.ndarray, np.ndarray]:
        """Return values and valid [t,N,C] for the rows of page number ``page``, changed by draws from seed and page."""
        rows = slice(page * PAGE_ROWS, min((page + 1) * PAGE_ROWS, len(self.seconds)))
        values, valid = self.source.read(rows)
        rng, plain, is_valid = np.random.default_rng([self.seed, page]), values, valid.copy()
        values = np.where(valid, values, np.float32(0))
        smooth = smooth_rows(values, valid)
        for first in range(0, len(values), BLOCK_ROWS):
            block, kind, level = slice(first, first + BLOCK_ROWS), rng.integers(3), rng.random(dtype=np.float32)
            steps = COARSE_ROWS[rng.integers(len(COARSE_ROWS))]
            if kind == 1:
                values[block] += level * (smooth[block] - values[block])
            means, with_any = average_rows(values[block], valid[block], steps)
            if kind == 2:
                means *= 1 + NOISE * level * rng.standard_normal(means.shape, np.float32)
            for table, coarse in ((values, means), (is_valid, with_any)):
                table[block] = coarse.repeat(steps, axis=0)[: len(table[block])]
        is_valid &= ~self._draw_outages(rng, *valid.shape[:2])[..., None]
        return np.where(self.measured, values, plain), np.where(self.measured, is_valid, valid)

    def _draw_outages(self, rng: np.random.Generator, rows: int, sensors: int) -> np.ndarray:
        """Draw outages of single sensors and of all sensors, bool [rows,sensors]: True where an observation is lost."""
        lost = np.zeros((rows, sensors), bool)
        mean = float(np.exp(OUTAGE_LOG_ROWS[0] + OUTAGE_LOG_ROWS[1] ** 2 / 2))
        for columns in (sensors, 1):  # single sensors, then all sensors
            count = rng.poisson(OUTAGES * rows * columns / mean)
            lengths = np.exp(rng.normal(*OUTAGE_LOG_ROWS, count)).clip(1, MOST_OUTAGE_ROWS).astype(int)
            firsts, sensors_hit = rng.integers(0, rows, count), rng.integers(0, columns, count)
            for first, length, column in zip(firsts.tolist(), lengths.tolist(), sensors_hit.tolist(), strict=True):
                lost[first : first + length, slice(None) if columns == 1 else column] = True
        return lost


def smooth_rows(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return the mean valid observation over each row and both adjacent rows, [t,N,C]; values are 0 where missing."""
    total, count = values.copy(), valid.astype(np.float32)
    for ahead, behind in ((slice(1, None), slice(None, -1)), (slice(None, -1), slice(1, None))):
        total[ahead] += values[behind]
        count[ahead] += valid[behind]
    return total / np.maximum(count, 1)


def average_rows(values: np.ndarray, valid: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean valid observation over every ``steps`` rows, [ceil(t / steps),N,C], and where a mean exists."""
    firsts = np.arange(0, len(values), steps)
    total, count = (np.add.reduceat(part, firsts, dtype=np.float32) for part in (np.where(valid, values, 0), valid))
    return total / np.maximum(count, 1), count > 0
