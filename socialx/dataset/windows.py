"""Split of windows into train, validation and test, in numpy.

A window is named by the first row: the model reads rows [start, start + lookback) and forecasts ``horizon`` rows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from socialx.core.errors import Argument, SocialxError
from socialx.settings.schema import DataSettings

SPLITS = ("train", "validation", "test")
ALL = "all"


@dataclass(frozen=True)
class Windows:
    """First rows of the windows in each split, int64, ascending; rule: ``canonical`` or ``strict``."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    length: int  # rows of a window
    rule: str
    across_gaps: int  # windows kept across the time gap of a published data set
    left_out: dict[str, int]  # windows dropped at time gaps, by split; empty if all are kept

    def split(self, name: str) -> np.ndarray:
        """Return the first rows of ``train``, ``validation``, ``test`` or ``all``."""
        if name == ALL:
            return np.concatenate([self.train, self.validation, self.test])
        if name not in SPLITS:
            raise ValueError(f"unknown split {name!r}: choose {', '.join(SPLITS)} or {ALL}")
        return getattr(self, name)

    @property
    def counts(self) -> dict[str, int]:
        """Number of windows per split."""
        return {name: len(getattr(self, name)) for name in SPLITS}

    @property
    def training_rows(self) -> slice:
        """Rows in training windows: the only rows that scaler and historical average read."""
        return slice(int(self.train[0]), int(self.train[-1]) + self.length)


def split_windows(
    seconds: np.ndarray,
    step_minutes: int,
    settings: DataSettings,
    slack_s: int = 0,
    published: np.ndarray | None = None,
) -> Windows:
    """Cut a series into windows, split 70/10/20, and drop windows across a time gap.

    seconds int64 [T]: local time read as UTC; a row may be off by slack_s. Split method ``canonical`` cuts all T
    - lookback - horizon + 1 windows and splits the count with ``round``, as published results do: windows at a border
    share rows. Method ``strict`` splits the rows first, int(0.7 T) and int(0.1 T), so that windows share no row.
    published int64 [T]: times that close the gap over which published results have windows; canonical windows across
    that gap stay and are counted in ``across_gaps``. Raises SocialxError for an empty split.
    """
    lookback, horizon, rule = settings.lookback, settings.horizon, settings.split_method
    whole = kept = consecutive(seconds, step_minutes, lookback, horizon, slack_s)
    if published is not None and rule == "canonical":
        kept = consecutive(published, step_minutes, lookback, horizon, slack_s)
    rows, total = len(seconds), len(whole)
    if rule == "canonical":
        borders, shared = [0, round(0.7 * total), total - round(0.2 * total), total], 0
    else:
        borders, shared = [0, int(0.7 * rows), int(0.7 * rows) + int(0.1 * rows), rows], lookback + horizon - 1
    parts, left_out = {}, {}
    for name, (first, end) in zip(SPLITS, itertools.pairwise(borders), strict=True):
        inside = kept[first : max(first, end - shared)]
        parts[name], left_out[name] = first + np.flatnonzero(inside), int((~inside).sum())
        if not len(parts[name]):
            gaps = f" ({left_out[name]:,} windows cross a time gap)" if left_out[name] else ""
            problem = f"{rows} rows are too few for a {name} window of {lookback} + {horizon} steps{gaps}"
            remedy = f"use a longer file, or a smaller {Argument('data.lookback')} and {Argument('data.horizon')}"
            raise SocialxError("data.too-short", "", problem, remedy)
    across = sum(int((~whole[starts]).sum()) for starts in parts.values())
    left_out = left_out if any(left_out.values()) else {}
    return Windows(**parts, length=lookback + horizon, rule=rule, across_gaps=across, left_out=left_out)


def consecutive(seconds: np.ndarray, step_minutes: int, lookback: int, horizon: int, slack_s: int = 0) -> np.ndarray:
    """Return which windows are free from time gaps and repeated times, bool [T - lookback - horizon + 1].

    Rows must be one time step apart, up to ``slack_s``, counted from the last lookback row, as ``ContextReader`` finds
    rows. A row that repeats the time of an earlier row excludes every window that holds the row.
    """
    length, rows = lookback + horizon, len(seconds)
    if rows < length:
        return np.zeros(0, bool)
    late = seconds - 60 * step_minutes * np.arange(rows)  # equal in rows one time step apart
    windows, issued = sliding_window_view(late, length), late[lookback - 1 : rows - horizon]
    fits = (windows.max(axis=1) - issued <= slack_s) & (issued - windows.min(axis=1) <= slack_s)
    order, repeated = np.argsort(seconds, kind="stable"), np.zeros(rows, bool)
    repeated[order[1:][np.diff(seconds[order]) <= 2 * slack_s]] = True
    return fits & ~sliding_window_view(repeated, length).any(axis=1)
