"""A whole series of readings on one device: windows of it are gathered by row."""

# Shape letters: B windows, T history steps, P horizon steps, N sensors, C features, F inputs, G targets, R = T + P

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from socialx.batch import Batch, Target
from socialx.data.calendar import calendar, following

OLD = 255  # the largest age, which means "so many rows or more"; also the rows of a block of look_back


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
        bytes a reading: float32, and how many rows ago the latest valid one was, which is 0 where it is valid itself.
        """
        self.history, self.horizon, self.device = history, horizon, device
        self.rows, self.step_minutes = len(seconds), step_minutes
        self.shape = values.shape[1:]  # (N, C)
        # Rows of one axis: gathering those of two is three times as slow on a CPU.
        flat, known_flat = values.reshape(len(values), -1), valid.reshape(len(valid), -1)
        ages, latest = look_back(flat, known_flat)
        self.readings = torch.from_numpy(np.where(known_flat, flat, np.float32(0))).to(device)  # [T,N*C]
        self.ages = torch.from_numpy(ages).to(device)  # uint8 [T,N*C]
        self.latest = torch.from_numpy(latest).to(device)  # [T/255,N*C]
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
        history, valid = self._readings(seen)
        last, carried = history[:, -1], self._carried(seen[:, -1])
        dates = self._gather(self.calendar, rows)  # [B,R,2]
        if self.inputs is not None:
            history, valid = history.index_select(-1, self.inputs), valid.index_select(-1, self.inputs)
        if self.targets is not None:
            last, carried = last.index_select(-1, self.targets), carried.index_select(-1, self.targets)
        return Batch(history, valid, last, carried, slot=dates[..., 0], weekday=dates[..., 1])

    def target(self, starts: Tensor) -> Target:
        """What came after the history of the same windows; starts up to rows - history - horizon."""
        rows = starts[:, None] + torch.arange(self.history, self.history + self.horizon, device=self.device)  # [B,P]
        values, valid = self._readings(rows)
        if self.targets is not None:
            values, valid = values.index_select(-1, self.targets), valid.index_select(-1, self.targets)
        return Target(values, valid)

    def _readings(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows int64 [B,Q] -> readings, 0 where missing, and whether they are valid [B,Q,N,C]."""
        values, ages = self._gather(self.readings, rows), self._gather(self.ages, rows)
        valid = ages.logical_not()  # an age of 0; on a CPU == takes 16 times as long
        return values.unflatten(-1, self.shape), valid.unflatten(-1, self.shape)

    def _carried(self, rows: Tensor) -> Tensor:
        """Rows int64 [B] -> the latest valid reading at or before each [B,N,C], NaN where there never was one."""
        ages = self.ages.index_select(0, rows).long()  # [B,N*C]
        recent = self.readings.gather(0, (rows[:, None] - ages).clamp(min=0))
        older = self.latest.index_select(0, rows // OLD)
        return torch.where(ages < OLD, recent, older).unflatten(-1, self.shape)

    @staticmethod
    def _gather(table: Tensor, rows: Tensor) -> Tensor:
        """table [X,...], rows [B,Q] -> [B,Q,...]."""
        return table.index_select(0, rows.flatten()).unflatten(0, rows.shape)


def _chooser(chosen: Sequence[int], columns: int, device: torch.device) -> Tensor | None:
    """The chosen columns, None where that is all of them in their order: then nothing is copied."""
    return None if list(chosen) == list(range(columns)) else torch.tensor(list(chosen), device=device)


def look_back(values: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How old the latest valid reading of each row is, and what it was at every 255th row.

    values float32, valid bool [T,X] -> ages uint8 [T,X] in rows, 255 where that is 255 or more, or never; and latest
    float32 [R,X] with R = ceil(T / 255), NaN before the first valid reading.  What is 255 rows old or older is the same
    as at the start of its block.
    """
    ages = np.empty(valid.shape, np.uint8)
    latest = np.empty((-(-len(valid) // OLD), valid.shape[1]), np.float32)
    carried, before = np.full(valid.shape[1], np.nan, np.float32), np.full(valid.shape[1], OLD, np.int32)
    for block, first in enumerate(range(0, len(valid), OLD)):
        rows = slice(first, first + OLD)
        place = np.arange(1, len(valid[rows]) + 1, dtype=np.int32)[:, None]
        known = np.where(valid[rows], place, np.int32(0))
        np.maximum.accumulate(known, axis=0, out=known)  # the place of the latest valid reading, 0: in no row of these
        ages[rows] = np.minimum(np.where(known > 0, place - known, place + before), OLD)
        latest[block] = np.where(valid[first], values[first], carried)
        ends = known[-1]
        carried = np.where(ends > 0, values[first + np.maximum(ends, 1) - 1, np.arange(values.shape[1])], carried)
        before = ages[rows][-1].astype(np.int32)
    return ages, latest


def carry_forward(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The latest valid reading at or before each row, however old; NaN before a sensor's first one.

    values, valid [T,...] -> float32 of the same shape.  It never looks ahead, so it may be used at any row.
    """
    row = np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1))
    latest = np.where(valid, row, -1)
    np.maximum.accumulate(latest, axis=0, out=latest)
    carried = np.take_along_axis(values, np.maximum(latest, 0), axis=0)
    return np.where(latest >= 0, carried, np.float32(np.nan)).astype(np.float32)
