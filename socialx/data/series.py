"""Rows of readings as windows: gathered by row from a series on one device, or looked up by time for forecasts."""

# Shape letters: B windows, T lookback steps, P horizon steps, N sensors, C features, F inputs, G targets, R rows: T + P
# of a window

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from socialx.core.batch import Batch, Target
from socialx.data.calendar import following
from socialx.data.climatology import ClimatologyTable, RollingClimatology
from socialx.data.source import PAGE_ROWS, RowSource, latest_after, pages

TENSORS = (
    "readings",
    "ages",
    "latest",
    "calendar",
    "inputs",
    "targets",
    "climatology",
    "confidence",
    "teacher_forecast",
)  # of a series
OLD = 255  # rows of a block of look_back; as an age: no row of the block until here has a valid reading


class Series:
    """Features of all sensors in neighbouring rows on one device: C columns, of which F are inputs and G targets."""

    def __init__(
        self,
        source: RowSource,
        lookback: int,
        horizon: int,
        device: torch.device,
        inputs: Sequence[int] = (0,),
        targets: Sequence[int] = (0,),
        rows: slice | None = None,
        pinned: bool = False,
        climatology: ClimatologyTable | None = None,
    ) -> None:
        """inputs, targets: which of the C a model reads and forecasts.  lookback, horizon: steps of a window.

        rows: those that are kept, None: all; the first one must be that of a page.  pinned: in memory from which a copy
        to a CUDA device does not wait.  climatology: V climatologies of these rows and of the horizon after them,
        [V,T+P,N,G]: a window that begins at row r of the file reads that of place r mod V.  None: no model reads it.

        It keeps 5 bytes a reading: float32, and how many rows ago the latest valid one was, which is 0 where it is
        valid itself; and 5 bytes for what is usual, V times.
        """
        self.lookback, self.horizon, self.device = lookback, horizon, device
        span = rows or slice(0, len(source.seconds))
        if span.start % PAGE_ROWS:
            raise ValueError(f"row {span.start} is not the first one of a page")
        self.first, self.rows, self.shape = span.start, span.stop - span.start, source.shape
        # Rows of one axis: gathering those of two is three times as slow on a CPU.
        width, blocks = self.shape[0] * self.shape[1], -(-self.rows // OLD)
        self.readings = torch.empty(self.rows, width, device=device, pin_memory=pinned)  # [T,N*C]
        self.ages = torch.empty(self.rows, width, dtype=torch.uint8, device=device, pin_memory=pinned)
        self.latest = torch.empty(blocks, width, device=device, pin_memory=pinned)
        last_observed = source.latest_before(span.start // PAGE_ROWS).reshape(-1)
        for page in pages(span.start, span.stop):
            values, valid = (part.reshape(len(part), -1) for part in source.read(page))
            ages, latest, last_observed = look_back(values, valid, last_observed)
            place = page.start - span.start
            self.readings[place : place + len(values)] = torch.from_numpy(np.where(valid, values, np.float32(0)))
            self.ages[place : place + len(values)] = torch.from_numpy(ages)
            self.latest[place // OLD : place // OLD + len(latest)] = torch.from_numpy(latest)
        # The calendar goes on after the last row: a forecast from there is of days that are not in the file.
        seconds = source.seconds[span.start : span.stop + horizon]
        beyond = following(int(seconds[-1]), source.step_minutes, self.rows + horizon - len(seconds))
        dates = source.calendar.at(np.concatenate([seconds, beyond]), source.step_minutes)
        self.calendar = torch.from_numpy(np.stack(dates, axis=1)).to(device)  # [T+P,2]
        self.climatology: Tensor | None = None
        self.confidence: Tensor | None = None
        if climatology is not None:
            self.climatology, self.confidence = self._sent(climatology)
        self.teacher_forecast: Tensor | None = None
        # None: all columns in their order, which are then not copied.
        every = list(range(self.shape[1]))
        self.inputs, self.targets = (
            None if list(columns) == every else torch.tensor(list(columns), device=device)
            for columns in (inputs, targets)
        )

    def with_climatology(self, climatology: ClimatologyTable) -> Series:
        """The same with this climatology."""
        other = copy.copy(self)
        other.climatology, other.confidence = self._sent(climatology)
        return other

    def with_teacher_forecasts(self, teacher_forecast: np.ndarray) -> Series:
        """The same with what other models forecast for the window that begins at each row, float16 [t,P*N*G].

        Rows at its end may lack: no window that trains begins there.
        """
        other, kept = copy.copy(self), torch.from_numpy(teacher_forecast)
        other.teacher_forecast = (kept.pin_memory() if self.readings.is_pinned() else kept).to(self.device)
        return other

    def _sent(self, climatology: ClimatologyTable) -> tuple[Tensor, Tensor]:
        """A climatology on the device, [V,T+P,N*G]."""
        pinned = self.readings.is_pinned()
        tables = (torch.from_numpy(np.ascontiguousarray(part)).flatten(-2) for part in climatology)
        readings, confidence = ((table.pin_memory() if pinned else table).to(self.device) for table in tables)
        return readings, confidence

    def on(self, device: torch.device) -> Series:
        """The same on another device; from pinned memory the copies do not wait."""
        moved = copy.copy(self)
        for name in TENSORS:
            tensor = getattr(self, name)
            setattr(moved, name, None if tensor is None else tensor.to(device, non_blocking=True))
        moved.device = device
        return moved

    def tensors(self) -> list[Tensor]:
        """All that it keeps on the device."""
        return [tensor for name in TENSORS if (tensor := getattr(self, name)) is not None]

    def window(self, starts: Tensor) -> Batch:
        """The windows whose first rows are ``starts`` int64 [B] -> Batch; no row after the history is read.

        starts count from the first row of the file.  Gathers alone: no host work, no sync.
        """
        rows = self._rows(starts, 0, self.lookback + self.horizon)  # [B,R]
        seen = rows[:, : self.lookback]
        inputs, valid = self._readings(seen)
        now = seen[:, -1]
        age = self.ages.index_select(0, now).long()  # [B,N*C]
        recent = self.readings.gather(0, (now[:, None] - age).clamp(min=0))
        older = self.latest.index_select(0, now // OLD)
        last, last_observed = inputs[:, -1], torch.where(age < OLD, recent, older).unflatten(-1, self.shape)
        dates = self._gather(self.calendar, rows)  # [B,R,2]
        if self.inputs is not None:
            inputs, valid = inputs.index_select(-1, self.inputs), valid.index_select(-1, self.inputs)
        if self.targets is not None:
            last, last_observed = last.index_select(-1, self.targets), last_observed.index_select(-1, self.targets)
        climatology, confidence = self._climatology(starts, rows)
        return Batch(inputs, valid, last, last_observed, dates[..., 0], dates[..., 1], climatology, confidence)

    def target(self, starts: Tensor) -> Target:
        """What came after the history of the same windows, all of whose rows must be there."""
        rows = self._rows(starts, self.lookback, self.lookback + self.horizon)  # [B,P]
        values, valid = self._readings(rows)
        if self.targets is not None:
            values, valid = values.index_select(-1, self.targets), valid.index_select(-1, self.targets)
        if self.teacher_forecast is None:
            return Target(values, valid, values.new_empty(*values.shape[:-1], 0, dtype=torch.float16))
        return Target(values, valid, self.teacher_forecast.index_select(0, starts - self.first).view(values.shape))

    def _climatology(self, starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What is usual at the rows int64 [B,R] of windows, and the trust in it, [B,R,N,G]."""
        if self.climatology is None or self.confidence is None:
            nothing = torch.empty(*rows.shape, self.shape[0], 0, device=self.device)
            return nothing, nothing
        kinds, length = self.climatology.shape[:2]
        if kinds > 1:
            rows = rows + (starts % kinds * length)[:, None]
        climatology = self._gather(self.climatology.flatten(0, 1), rows).unflatten(-1, (self.shape[0], -1))
        confidence = self._gather(self.confidence.flatten(0, 1), rows).unflatten(-1, (self.shape[0], -1))
        return climatology, confidence.float() / 255

    def _rows(self, starts: Tensor, first: int, last: int) -> Tensor:
        """Steps ``first`` to ``last`` of windows as rows of this series, int64 [B,last-first]."""
        return starts[:, None] + torch.arange(first - self.first, last - self.first, device=self.device)

    def _readings(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows int64 [B,Q] -> readings, 0 where missing, and whether they are valid [B,Q,N,C]."""
        values, ages = self._gather(self.readings, rows), self._gather(self.ages, rows)
        valid = ages.logical_not()  # an age of 0; on a CPU == takes 16 times as long
        return values.unflatten(-1, self.shape), valid.unflatten(-1, self.shape)

    @staticmethod
    def _gather(table: Tensor, rows: Tensor) -> Tensor:
        """table [X,...], rows [B,Q] -> [B,Q,...]."""
        return table.index_select(0, rows.flatten()).unflatten(0, rows.shape)


def look_back(
    values: np.ndarray, valid: np.ndarray, last_observed: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How old the latest valid reading of each row is, and what it was at every 255th row.

    values float32, valid bool [T,X], carried float32 [X]: the latest valid reading before them -> ages, latest, and
    carried after the last row.  ages uint8 [T,X] are in rows, 255 where none of the block of 255 rows until then is
    valid.  latest float32 [R,X] has R = ceil(T / 255), and is NaN before the first valid reading.  Without a valid one
    in its block until then, the latest reading of a row is that at the start of the block.
    """
    ages = np.empty(valid.shape, np.uint8)
    latest = np.empty((-(-len(valid) // OLD), valid.shape[1]), np.float32)
    for block, first in enumerate(range(0, len(valid), OLD)):
        rows = slice(first, first + OLD)
        place = np.arange(1, len(valid[rows]) + 1, dtype=np.int16)[:, None]
        known = np.where(valid[rows], place, np.int16(0))
        np.maximum.accumulate(known, axis=0, out=known)  # the place of the latest valid reading, 0: in no row of these
        ages[rows] = np.where(known > 0, place - known, OLD)
        latest[block] = np.where(valid[first], values[first], last_observed)
        ends = known[-1].astype(np.int64)
        last_observed = np.where(
            ends > 0, values[first + np.maximum(ends, 1) - 1, np.arange(values.shape[1])], last_observed
        )
    return ages, latest, last_observed


@dataclass(frozen=True, eq=False)
class ContextReader:
    """Readings, from which context are cut that end at given times; a row may miss its time by slack_s.

    A row that the data lacks counts as a missing reading.  inputs, targets: which of the C features a model reads and
    forecasts.  past: of the targets, for a model that reads the climatology.
    """

    source: RowSource
    lookback: int
    horizon: int
    inputs: Sequence[int]
    targets: Sequence[int]
    slack_s: int = 0
    past: RollingClimatology | None = None

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
        order = self._order  # rows may be unsorted
        first_not_before = np.searchsorted(self.seconds, seconds - self.slack_s, sorter=order)
        rows = order[np.minimum(first_not_before, len(order) - 1)]
        near = (first_not_before < len(order)) & (np.abs(self.seconds[rows] - seconds) <= self.slack_s)
        return np.where(near, rows, -1)

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
        """Batches of at most ``size`` context that end at these ascending times int64 [W], each with its places.

        The time of each issue must be that of a row.
        """
        inputs, targets = list(self.inputs), list(self.targets)
        steps = 60 * self.step_minutes * np.arange(1 - self.lookback, self.horizon + 1)
        latest = np.full((self.source.shape[0], len(targets)), np.nan, np.float32)  # [N,G], of all rows before next_row
        next_row = 0
        for first in range(0, len(issued), size):
            places = slice(first, min(first + size, len(issued)))
            last_observed = []
            for row in self.rows_at(issued[places]):
                page = int(row) // PAGE_ROWS
                if next_row <= page * PAGE_ROWS:  # the source knows the latest readings before a page
                    next_row, latest = page * PAGE_ROWS, self.source.latest_before(page)[:, targets]
                values, valid = self.source.read(slice(next_row, int(row) + 1))
                latest, next_row = latest_after(values[..., targets], valid[..., targets], latest), int(row) + 1
                last_observed.append(latest)
            values, valid = self.read(self.rows_at(self.seconds_until(issued[places], self.lookback)))  # [B,T,N,C]
            clean = np.where(valid, values, np.float32(0))
            times = issued[places, None] + steps
            time_of_day, day_of_week = self.source.calendar.at(times, self.step_minutes)  # [B,R]
            climatology, confidence = self._climatology(times)
            yield (
                places,
                Batch(
                    inputs=torch.from_numpy(np.ascontiguousarray(clean[..., inputs])),
                    valid=torch.from_numpy(np.ascontiguousarray(valid[..., inputs])),
                    last=torch.from_numpy(np.ascontiguousarray(clean[:, -1][..., targets])),
                    last_observed=torch.from_numpy(np.stack(last_observed)),
                    time_of_day=torch.from_numpy(time_of_day),
                    day_of_week=torch.from_numpy(day_of_week),
                    climatology=climatology,
                    confidence=confidence,
                ),
            )

    def _climatology(self, times: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """What is usual at the rows of windows and the trust in it, [B,R,N,G], as in a series: times int64 [B,R].

        A row is that of several windows: the first issue that reads it decides which days are known.
        """
        if self.past is None:
            nothing = torch.empty(*times.shape, self.source.shape[0], 0)
            return nothing, nothing
        every, place = np.unique(times, return_inverse=True)
        climatology = self.past.at(every, every - 60 * self.step_minutes * self.horizon)
        place = place.reshape(times.shape)
        return torch.from_numpy(climatology.readings[0][place]), torch.from_numpy(
            climatology.confidence[0][place]
        ).float() / 255

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
        return ~batch.last_observed[..., 0].isnan().numpy()
