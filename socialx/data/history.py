"""Histories that end at given times, looked up by time: a row that the data lacks counts as a missing reading."""

# Shape letters: B windows, T history steps, P horizon steps, N sensors, C features, F inputs, G targets, R rows

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from socialx.batch import Batch
from socialx.data.climatology import PastDays
from socialx.data.source import PAGE_ROWS, RowSource, latest_after


@dataclass(frozen=True, eq=False)
class Histories:
    """Readings, from which histories are cut that end at given times; a row may miss its time by slack_s.

    inputs, targets: which of the C features a model reads and forecasts.  past: of the targets, for a model that reads
    the climatology.
    """

    source: RowSource
    history: int
    horizon: int
    inputs: Sequence[int]
    targets: Sequence[int]
    slack_s: int = 0
    past: PastDays | None = None

    @property
    def seconds(self) -> np.ndarray:
        """The time of each row, int64 [R], wall time read as UTC."""
        return self.source.seconds

    @property
    def step_minutes(self) -> int:
        """The time between two rows."""
        return self.source.step_minutes

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.seconds, kind="stable")

    def rows_at(self, seconds: np.ndarray) -> np.ndarray:
        """The row of each time, int64 of the same shape; -1 where there is none."""
        order = self._order
        place = np.searchsorted(self.seconds, seconds - self.slack_s, sorter=order)
        rows = order[np.minimum(place, len(order) - 1)]
        right = (place < len(order)) & (np.abs(self.seconds[rows] - seconds) <= self.slack_s)
        return np.where(right, rows, -1)

    def seconds_until(self, issued: np.ndarray, steps: int) -> np.ndarray:
        """The ``steps`` times that end at each issue, int64 [B,steps]."""
        return issued[:, None] + 60 * self.step_minutes * np.arange(1 - steps, 1)

    def latest_before(self, second: int) -> np.ndarray:
        """The latest valid reading before this time, float32 [N,C]; NaN where there never was one."""
        later = np.flatnonzero(self.seconds >= second - self.slack_s)
        row = int(later[0]) if len(later) else len(self.seconds)
        page = max(row - 1, 0) // PAGE_ROWS
        rows = slice(page * PAGE_ROWS, row)
        return latest_after(*self.source.read(rows), self.source.latest_before(page))

    def batches(self, issued: np.ndarray, size: int) -> Iterator[tuple[slice, Batch]]:
        """Batches of at most ``size`` histories that end at these ascending times int64 [W], each with its places.

        The time of each issue must be that of a row.
        """
        inputs, targets = list(self.inputs), list(self.targets)
        steps = 60 * self.step_minutes * np.arange(1 - self.history, self.horizon + 1)
        latest = np.full((self.source.shape[0], len(targets)), np.nan, np.float32)  # [N,G], of all rows before next_row
        next_row = 0
        for first in range(0, len(issued), size):
            places = slice(first, min(first + size, len(issued)))
            carried = []
            for row in self.rows_at(issued[places]):
                page = int(row) // PAGE_ROWS
                if next_row <= page * PAGE_ROWS:  # the source knows the latest readings before a page
                    next_row, latest = page * PAGE_ROWS, self.source.latest_before(page)[:, targets]
                values, valid = self.source.read(slice(next_row, int(row) + 1))
                latest, next_row = latest_after(values[..., targets], valid[..., targets], latest), int(row) + 1
                carried.append(latest)
            values, valid = self.read(self.rows_at(self.seconds_until(issued[places], self.history)))  # [B,T,N,C]
            clean = np.where(valid, values, np.float32(0))
            times = issued[places, None] + steps
            slot, weekday = self.source.calendar.at(times, self.step_minutes)  # [B,R]
            usual, trust = self._usual(times)
            yield (
                places,
                Batch(
                    history=torch.from_numpy(np.ascontiguousarray(clean[..., inputs])),
                    valid=torch.from_numpy(np.ascontiguousarray(valid[..., inputs])),
                    last=torch.from_numpy(np.ascontiguousarray(clean[:, -1][..., targets])),
                    carried=torch.from_numpy(np.stack(carried)),
                    slot=torch.from_numpy(slot),
                    weekday=torch.from_numpy(weekday),
                    usual=usual,
                    trust=trust,
                ),
            )

    def _usual(self, times: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """What is usual at the rows of windows and the trust in it, [B,R,N,G], as in a series: times int64 [B,R].

        A row is that of several windows: the first issue that reads it decides which days are known.
        """
        if self.past is None:
            nothing = torch.empty(*times.shape, self.source.shape[0], 0)
            return nothing, nothing
        every, place = np.unique(times, return_inverse=True)
        usual = self.past.at(every, every - 60 * self.step_minutes * self.horizon)
        place = place.reshape(times.shape)
        return torch.from_numpy(usual.readings[0][place]), torch.from_numpy(usual.trust[0][place]).float() / 255

    def around(self, issued: np.ndarray, before: int) -> tuple[np.ndarray, np.ndarray]:
        """What was read around these issues: ``before`` steps until the first one, and the horizon after the last.

        -> times int64 [R] and values float32 [R,N,G] of the targets, NaN where nothing was read.
        """
        step_s = 60 * self.step_minutes
        times = np.arange(int(issued[0]) - (before - 1) * step_s, int(issued[-1]) + self.horizon * step_s + 1, step_s)
        rows = self.rows_at(times)
        values, valid = self.read(rows)
        return times, np.where(valid, values, np.float32(np.nan))[..., list(self.targets)]

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows int64 [...], -1: no row -> values float32, valid bool [...,N,C]; nothing is valid where there is none.

        All rows between the first and the last of them are read.
        """
        existing = rows[rows >= 0]
        if not len(existing):
            shape = (*rows.shape, *self.source.shape)
            return np.zeros(shape, np.float32), np.zeros(shape, bool)
        first = int(existing.min())
        values, valid = self.source.read(slice(first, int(existing.max()) + 1))
        place = np.maximum(rows - first, 0)
        return values[place], valid[place] & (rows >= 0)[..., None, None]

    def readings(self, batch: Batch) -> np.ndarray:
        """Rows of each history with a reading of the first target, of any input where that is no input: int64 [B,N]."""
        first = next(iter(self.targets))
        place = list(self.inputs).index(first) if first in self.inputs else None
        valid = batch.valid.any(dim=-1) if place is None else batch.valid[..., place]
        return valid.sum(dim=1).numpy()

    def reported(self, batch: Batch) -> np.ndarray:
        """Whether each sensor had any valid reading of the first target until each issue, bool [B,N]."""
        return ~batch.carried[..., 0].isnan().numpy()
