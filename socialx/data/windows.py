"""Which windows train, validate and test.  numpy only.

A window is named by its first row: rows [start, start + history) are seen, the next ``horizon`` rows are forecast.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from socialx.core.errors import Argument, SocialxError

SPLITS = ("train", "validation", "test")
ALL = "all"  # the three of them


@dataclass(frozen=True)
class Windows:
    """First rows of the windows of each part, int64, ascending."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    lookback: int
    horizon: int
    rule: str
    across_gaps: int  # windows kept although a time gap lies inside: that of a published data set
    left_out: dict[str, int]  # windows of each part that a time gap lies in; empty: there are none

    def split(self, name: str) -> np.ndarray:
        """The first rows of ``train``, ``validation`` or ``test``, or of ``all`` of them."""
        if name == ALL:
            return np.concatenate([self.train, self.validation, self.test])
        if name not in SPLITS:
            raise ValueError(f"no part {name!r}: one of {', '.join(SPLITS)} or {ALL}")
        return getattr(self, name)

    @property
    def counts(self) -> dict[str, int]:
        """How many windows each part has."""
        return {name: len(getattr(self, name)) for name in SPLITS}

    @property
    def training_rows(self) -> slice:
        """The rows from the first to the last training window: what scaler and historical average may look at."""
        return slice(int(self.train[0]), int(self.train[-1]) + self.lookback + self.horizon)


def split_windows(
    seconds: np.ndarray,
    step_minutes: int,
    lookback: int,
    horizon: int,
    rule: str,
    slack_s: int = 0,
    published: np.ndarray | None = None,
) -> Windows:
    """Cut a series into windows, share them out 70/10/20, and leave out those across a time gap.

    seconds int64 [T]: the rows' wall time read as UTC; a row may miss its time by slack_s.  ``canonical`` makes all T -
    history - horizon + 1 windows first and splits their count with ``round``, as the published results do: windows at a
    border share rows.  ``strict`` splits the rows first, int(0.7 T) and int(0.1 T), so that no window crosses a border.
    published: the same times without the gap over which published results have windows, int64 [T]; canonical windows
    across that one are kept (``across_gaps`` says how many).  Raises SocialxError where a part would be empty.
    """
    whole = kept = consecutive(seconds, step_minutes, lookback, horizon, slack_s)
    if published is not None and rule == "canonical":
        kept = consecutive(published, step_minutes, lookback, horizon, slack_s)
    rows, total = len(seconds), len(whole)
    if rule == "canonical":
        borders, shared = [0, round(0.7 * total), total - round(0.2 * total), total], 0
    elif rule == "strict":
        borders, shared = [0, int(0.7 * rows), int(0.7 * rows) + int(0.1 * rows), rows], lookback + horizon - 1
    else:
        raise ValueError(f"no split rule {rule!r}: canonical or strict")
    parts, left_out = {}, {}
    for name, (first, end) in zip(SPLITS, itertools.pairwise(borders), strict=True):
        inside = kept[first : max(first, end - shared)]
        parts[name], left_out[name] = first + np.flatnonzero(inside), int((~inside).sum())
        if not len(parts[name]):
            gaps = f": {left_out[name]:,} would cross a time gap" if left_out[name] else ""
            raise SocialxError(
                f"data.split_method {rule}",
                f"{rows} rows leave no {name} window of {lookback} + {horizon} steps{gaps}",
                f"use a longer file, or a smaller {Argument('data.lookback')} and {Argument('data.horizon')}",
            )
    across = sum(int((~whole[starts]).sum()) for starts in parts.values())
    left_out = left_out if any(left_out.values()) else {}
    return Windows(**parts, lookback=lookback, horizon=horizon, rule=rule, across_gaps=across, left_out=left_out)


def consecutive(seconds: np.ndarray, step_minutes: int, lookback: int, horizon: int, slack_s: int = 0) -> np.ndarray:
    """Whether the rows of each window are those that ``ContextReader`` finds, bool [T - history - horizon + 1].

    Its times are a step apart, from the last row of the history on.  Of two rows at one time the first is found.
    """
    length, rows = lookback + horizon, len(seconds)
    if rows < length:
        return np.zeros(0, bool)
    late = seconds - 60 * step_minutes * np.arange(rows)  # equal in rows that are a step apart
    windows, issued = sliding_window_view(late, length), late[lookback - 1 : rows - horizon]
    fits = (windows.max(axis=1) - issued <= slack_s) & (issued - windows.min(axis=1) <= slack_s)
    order, again = np.argsort(seconds, kind="stable"), np.zeros(rows, bool)
    again[order[1:][np.diff(seconds[order]) <= 2 * slack_s]] = True
    return fits & ~sliding_window_view(again, length).any(axis=1)
