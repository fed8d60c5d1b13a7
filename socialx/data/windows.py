"""Which windows train, validate and test, and the scaler that only the training windows decide.  numpy only.

A window is named by its first row: rows [start, start + history) are seen, the next ``horizon`` rows are forecast.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from socialx.errors import SocialxError

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Windows:
    """First rows of the windows of each part, int64, ascending."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    history: int
    horizon: int
    rule: str
    across_gaps: int  # windows kept although a time gap lies inside; always 0 under the strict rule

    def part(self, name: str) -> np.ndarray:
        """The first rows of ``train``, ``validation`` or ``test``."""
        if name not in PARTS:
            raise ValueError(f"no part {name!r}: one of {', '.join(PARTS)}")
        return getattr(self, name)

    @property
    def training_rows(self) -> slice:
        """The rows from the first to the last training window: what scaler and historical average may look at.

        Under the strict rule that includes rows beside a gap that no window touches.
        """
        return slice(int(self.train[0]), int(self.train[-1]) + self.history + self.horizon)


def split_windows(epochs: np.ndarray, step_minutes: int, history: int, horizon: int, rule: str) -> Windows:
    """Cut a series into windows and share them out 70/10/20.

    epochs int64 [T], seconds.  ``canonical`` makes all T - history - horizon + 1 windows first and splits their count
    with ``round``, as the published results do: windows at a border share rows, and windows across a time gap are
    kept (``across_gaps`` says how many).  ``strict`` splits the rows first, int(0.7 T) and int(0.1 T), so that no
    window crosses a border, and drops windows across a gap.  Raises SocialxError where a part would be empty.
    """
    length, rows = history + horizon, len(epochs)
    steps_differ = np.diff(epochs) != step_minutes * 60
    gaps_before = np.concatenate([[0], np.cumsum(steps_differ)])  # gaps_before[b] - gaps_before[a]: gaps in rows a..b

    def gapped(starts: np.ndarray) -> np.ndarray:
        return gaps_before[starts + length - 1] != gaps_before[starts]

    if rule == "canonical":
        total = max(0, rows - length + 1)
        first, last = round(0.7 * total), total - round(0.2 * total)
        starts = np.arange(total, dtype=np.int64)
        parts = [starts[:first], starts[first:last], starts[last:]]
    elif rule == "strict":
        borders = [0, int(0.7 * rows), int(0.7 * rows) + int(0.1 * rows), rows]
        parts = [
            np.arange(first, max(first, last - length + 1), dtype=np.int64)
            for first, last in itertools.pairwise(borders)
        ]
        parts = [starts[~gapped(starts)] for starts in parts]
    else:
        raise ValueError(f"no split rule {rule!r}: canonical or strict")
    for name, starts in zip(PARTS, parts, strict=True):
        if not len(starts):
            raise SocialxError(
                f"data.split {rule}: {rows} rows leave no {name} window of {history} + {horizon} steps: "
                f"use a longer file, or a smaller --history and --horizon"
            )
    across = int(sum(gapped(starts).sum() for starts in parts))
    train, validation, test = parts
    return Windows(train, validation, test, history, horizon, rule, across)


@dataclass(frozen=True)
class Scaler:
    """Mean and deviation of the valid readings of the training rows, in the file's unit."""

    mean: float
    std: float


def fit_scaler(values: np.ndarray, valid: np.ndarray, rows: slice) -> Scaler:
    """Masked z-score.

    values, valid [T,N] -> Scaler, summed in float64.  Missing readings do not vote: METR-LA stores an outage as
    0 mph, which would pull the mean down by 8 %.  Raises SocialxError if no reading of these rows is valid.
    """
    readings = values[rows][valid[rows]].astype(np.float64)
    if not len(readings):
        raise SocialxError(f"no valid reading in the {rows.stop - rows.start} training rows: socialx inspect the file")
    return Scaler(float(readings.mean()), float(readings.std()) or 1.0)


def carry_forward(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The latest valid reading at or before each row, however old; NaN before a sensor's first one.

    values, valid [T,...] -> float32 of the same shape.  It never looks ahead, so it may be used at any row.
    """
    row = np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1))
    latest = np.where(valid, row, -1)
    np.maximum.accumulate(latest, axis=0, out=latest)
    carried = np.take_along_axis(values, np.maximum(latest, 0), axis=0)
    return np.where(latest >= 0, carried, np.float32(np.nan)).astype(np.float32)


def calendar(epochs: np.ndarray, step_minutes: int) -> tuple[np.ndarray, np.ndarray]:
    """Slot of the day and day of the week of each row, by the wall clock of the file.

    epochs int64 [T], wall time read as UTC -> slot int64 [T] in 0 .. slots-1 (288 at five minutes), weekday int64 [T],
    0 = Monday.
    """
    slot = (epochs % 86_400) // (step_minutes * 60)
    weekday = (epochs // 86_400 + 3) % 7  # 1970-01-01 was a Thursday
    return slot.astype(np.int64), weekday.astype(np.int64)


def slots_per_day(step_minutes: int) -> int:
    """Slots of one day, the last one shorter where the step does not divide it."""
    return -(-1440 // step_minutes)
