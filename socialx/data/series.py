"""A whole series of readings on one device: windows of it are gathered by row."""

# Shape letters: B windows, T history steps, P horizon steps, N sensors, C features, F inputs, G targets, R = T + P

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from socialx.batch import Batch, Target
from socialx.data.calendar import calendar, following

BLOCK_ROWS = 256  # of carry_forward


class Series:
    """Features of all sensors, whole, on one device: C columns, of which F are inputs and G targets."""

    def __init__(
        self,
        values: np.ndarray,
        valid: np.ndarray,
        seconds: np.ndarray,
        step_minutes: int,
        history: int,
        horizon: int,
        device: torch.device,
        inputs: Sequence[int] = (0,),
        targets: Sequence[int] = (0,),
    ) -> None:
        """values, valid [T,N,C] and seconds [T] of the rows, C features one behind the other.

        inputs, targets: which of the C a model reads and forecasts.  history, horizon: steps of a window.  It keeps 5
        bytes a reading: the latest valid reading of each row, and whether it is of that row.
        """
        self.history, self.horizon, self.device = history, horizon, device
        self.rows, self.step_minutes = len(seconds), step_minutes
        self.carried = torch.from_numpy(carry_forward(values, valid)).to(device)  # [T,N,C]
        self.valid = torch.from_numpy(np.ascontiguousarray(valid)).to(device)  # [T,N,C]
        # The calendar goes on after the last row: a forecast from there is of days that are not in the file.
        known = np.concatenate([seconds, following(int(seconds[-1]), step_minutes, horizon)])
        self.calendar = torch.from_numpy(np.stack(calendar(known, step_minutes), axis=1)).to(device)  # [T+P,2]
        columns = values.shape[2]
        self.inputs, self.targets = _chooser(inputs, columns, device), _chooser(targets, columns, device)

    def window(self, starts: Tensor) -> Batch:
        """The windows whose first rows are ``starts`` int64 [B] -> Batch; no row after the history is read.

        starts may be anything up to rows - history.  Gathers alone: no host work, no sync.
        """
        rows = starts[:, None] + torch.arange(self.history + self.horizon, device=self.device)  # [B,R]
        seen = rows[:, : self.history]
        carried, valid = self._gather(self.carried, seen), self._gather(self.valid, seen)  # [B,T,N,C]
        history = torch.where(valid, carried, 0.0)
        last, latest = history[:, -1], carried[:, -1]
        dates = self._gather(self.calendar, rows)  # [B,R,2]
        if self.inputs is not None:
            history, valid = history.index_select(-1, self.inputs), valid.index_select(-1, self.inputs)
        if self.targets is not None:
            last, latest = last.index_select(-1, self.targets), latest.index_select(-1, self.targets)
        return Batch(history, valid, last, latest, slot=dates[..., 0], weekday=dates[..., 1])

    def target(self, starts: Tensor) -> Target:
        """What came after the history of the same windows; starts up to rows - history - horizon."""
        rows = starts[:, None] + torch.arange(self.history, self.history + self.horizon, device=self.device)  # [B,P]
        carried, valid = self._gather(self.carried, rows), self._gather(self.valid, rows)  # [B,P,N,C]
        if self.targets is not None:
            carried, valid = carried.index_select(-1, self.targets), valid.index_select(-1, self.targets)
        return Target(values=torch.where(valid, carried, 0.0), valid=valid)

    @staticmethod
    def _gather(table: Tensor, rows: Tensor) -> Tensor:
        """table [X,...], rows [B,Q] -> [B,Q,...]."""
        return table.index_select(0, rows.flatten()).unflatten(0, rows.shape)


def _chooser(chosen: Sequence[int], columns: int, device: torch.device) -> Tensor | None:
    """The chosen columns, None where that is all of them in their order: then nothing is copied."""
    return None if list(chosen) == list(range(columns)) else torch.tensor(list(chosen), device=device)


def carry_forward(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The latest valid reading at or before each row, however old; NaN before a sensor's first one.

    values, valid [T,...] -> float32 of the same shape.  It never looks ahead, so it may be used at any row.  Blocks of
    rows keep what it needs beside its result small.
    """
    carried = np.empty(values.shape, np.float32)
    before = np.full(values.shape[1:], np.nan, np.float32)
    for first in range(0, len(values), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        block = np.concatenate([before[None], values[rows]])
        place = np.arange(1, len(block)).reshape(-1, *[1] * (values.ndim - 1))
        latest = np.where(valid[rows], place, 0)
        np.maximum.accumulate(latest, axis=0, out=latest)
        carried[rows] = np.take_along_axis(block, latest, axis=0)
        before = carried[rows][-1]
    return carried
