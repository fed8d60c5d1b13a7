"""Which windows train, validate and test.  numpy only.

A window is named by its first row: rows [start, start + history) are seen, the next ``horizon`` rows are forecast.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from socialx.errors import Argument, SocialxError

PARTS = ("train", "validation", "test")
ALL = "all"  # the three of them


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
        """The first rows of ``train``, ``validation`` or ``test``, or of ``all`` of them."""
        if name == ALL:
            return np.concatenate([self.train, self.validation, self.test])
        if name not in PARTS:
            raise ValueError(f"no part {name!r}: one of {', '.join(PARTS)} or {ALL}")
        return getattr(self, name)

    @property
    def counts(self) -> dict[str, int]:
        """How many windows each part has."""
        return {name: len(getattr(self, name)) for name in PARTS}

    @property
    def training_rows(self) -> slice:
        """The rows from the first to the last training window: what normaliser and historical average may look at.

        Under the strict rule that includes rows beside a gap that no window touches.
        """
        return slice(int(self.train[0]), int(self.train[-1]) + self.history + self.horizon)


def split_windows(seconds: np.ndarray, step_minutes: int, history: int, horizon: int, rule: str) -> Windows:
    """Cut a series into windows and share them out 70/10/20.

    seconds int64 [T]: the rows' wall time read as UTC.  ``canonical`` makes all T - history - horizon + 1 windows first
    and splits their count with ``round``, as the published results do: windows at a border share rows, and windows
    across a time gap are kept (``across_gaps`` says how many).  ``strict`` splits the rows first, int(0.7 T) and
    int(0.1 T), so that no window crosses a border, and drops windows across a gap.  Raises SocialxError where a part
    would be empty.
    """
    length, rows = history + horizon, len(seconds)
    steps_differ = np.diff(seconds) != step_minutes * 60
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
                f"data.split {rule}",
                f"{rows} rows leave no {name} window of {history} + {horizon} steps",
                f"use a longer file, or a smaller {Argument('data.history')} and {Argument('data.horizon')}",
            )
    across = int(sum(gapped(starts).sum() for starts in parts))
    train, validation, test = parts
    return Windows(train, validation, test, history, horizon, rule, across)
