"""Windows cut from a series on one device by row, and lookbacks looked up by time."""

# Shape letters: B windows, T lookback steps, P horizon steps, N sensors, C features, F inputs, G targets, R rows: T + P
# of a window

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from socialx.core.batch import Batch, Target
from socialx.data.calendar import next_times
from socialx.data.climatology import ClimatologyTable, RollingClimatology
from socialx.data.source import PAGE_ROWS, RowSource, latest_after, pages

GRID_ROWS = 4 * PAGE_ROWS  # of the lookbacks that are read together
OLD = 255  # rows in a block of look_back; as an age: the block so far is invalid


@dataclass(frozen=True)
class WindowLayout:
    """What a window holds: lookback and horizon in rows, and the columns that a model reads and forecasts, by index."""

    lookback: int
    horizon: int
    inputs: tuple[int, ...] = (0,)
    targets: tuple[int, ...] = (0,)

    @property
    def length(self) -> int:
        """Rows of a window."""
        return self.lookback + self.horizon


class RegularRows(NamedTuple):
    """Regular times, seconds int64 [R], and the row of a source at each, int64 [R]; -1 where the source lacks one."""

    seconds: np.ndarray
    rows: np.ndarray


class Series:
    """Adjacent rows for all sensors on one device: C columns, with F inputs and G targets."""

    def __init__(
        self,
        source: RowSource,
        layout: WindowLayout,
        device: torch.device,
        rows: slice | RegularRows | None = None,
        pinned: bool = False,
    ) -> None:
        """Read a series.

        rows: rows to keep, ``None`` for all; the first must start a page (PAGE_ROWS rows). Or the times that windows
        count in place of rows, where a file lacks some. pinned: allocate pinned memory for asynchronous copies to CUDA.
        Memory is 5 bytes per observation, a float32 and the age in rows (0 where valid), and 5 per climatology value.
        """
        self.lookback, self.horizon, self.device = layout.lookback, layout.horizon, device
        grid = rows if isinstance(rows, RegularRows) else None
        span = rows if isinstance(rows, slice) else slice(0, len(source.seconds))
        if grid is not None:
            existing = grid.rows[grid.rows >= 0]
            span = slice(int(existing.min()) // PAGE_ROWS * PAGE_ROWS, int(existing.max()) + 1)
        if span.start % PAGE_ROWS:
            raise ValueError(f"row {span.start} must start a page")
        self.first, self.rows, self.shape = span.start, span.stop - span.start, source.shape
        # One axis for sensors and columns: gathering rows with two axes takes three times as long on a CPU.
        width, blocks = self.shape[0] * self.shape[1], -(-self.rows // OLD)
        self.readings = torch.empty(self.rows, width, device=device, pin_memory=pinned)  # [T,N*C]
        self.ages = torch.empty(self.rows, width, dtype=torch.uint8, device=device, pin_memory=pinned)
        self.latest = torch.empty(blocks, width, device=device, pin_memory=pinned)
        last_observed = source.latest_before(span.start // PAGE_ROWS).reshape(-1)
        for page in pages(span.start, span.stop):
            values, valid = (part.reshape(len(part), -1) for part in source.read(page))
            ages, latest, last_observed = look_back(values, valid, last_observed)
            row = page.start - span.start
            self.readings[row : row + len(values)] = torch.from_numpy(np.where(valid, values, np.float32(0)))
            self.ages[row : row + len(values)] = torch.from_numpy(ages)
            self.latest[row // OLD : row // OLD + len(latest)] = torch.from_numpy(latest)
        # The calendar extends past the last row, for forecasts beyond the file.
        seconds = source.seconds[span.start : span.stop + self.horizon] if grid is None else grid.seconds
        steps = self.rows if grid is None else len(seconds)
        beyond = next_times(int(seconds[-1]), source.step_minutes, steps + self.horizon - len(seconds))
        dates = source.calendar.time_features(np.concatenate([seconds, beyond]), source.step_minutes)
        self.calendar = torch.from_numpy(np.stack(dates, axis=1)).to(device)  # [T+P,2]
        self.seconds = torch.from_numpy(seconds[:steps].astype(np.int64)).to(device)
        self.grid_rows: Tensor | None = None
        if grid is not None:
            self.grid_rows = torch.from_numpy(np.where(grid.rows < 0, -1, grid.rows - span.start)).to(device)
            self.first = 0
        self.climatology: Tensor | None = None
        self.confidence: Tensor | None = None
        self.teacher_forecast: Tensor | None = None
        # None: all columns in order, which saves a copy.
        every = list(range(self.shape[1]))
        self.inputs, self.targets = (
            None if list(columns) == every else torch.tensor(list(columns), device=device)
            for columns in (layout.inputs, layout.targets)
        )

    def with_climatology(self, climatology: ClimatologyTable) -> Series:
        """Return a copy that shares the observations and has V climatologies for the rows and the horizon after them.

        climatology [V,T+P,N,G]: a window starting at file row r reads climatology r mod V.
        """
        other = copy.copy(self)
        tables = (torch.from_numpy(np.ascontiguousarray(part)).flatten(-2) for part in climatology)  # [V,T+P,N*G]
        other.climatology, other.confidence = map(self._place, tables)
        return other

    def with_teacher(self, teacher_forecast: np.ndarray) -> Series:
        """Return a copy with forecasts to distil, by first window row, float16 [t,P*N*G]; last rows may be absent."""
        other = copy.copy(self)
        other.teacher_forecast = self._place(torch.from_numpy(teacher_forecast))
        return other

    def _place(self, table: Tensor) -> Tensor:
        """Copy a table to where the observations are."""
        return (table.pin_memory() if self.readings.is_pinned() else table).to(self.device)

    def to(self, device: torch.device) -> Series:
        """Return a copy on another device; copies from pinned memory are asynchronous."""
        moved = copy.copy(self)
        for name, tensor in vars(self).items():
            if isinstance(tensor, Tensor):
                setattr(moved, name, tensor.to(device, non_blocking=True))
        moved.device = device
        return moved

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the series, to count bytes or to mark use in a CUDA stream."""
        return [tensor for tensor in vars(self).values() if isinstance(tensor, Tensor)]

    def window(self, starts: Tensor) -> Batch:
        """Gather the ``Batch`` for first file rows ``starts`` int64 [B], without host work or synchronisation."""
        rows = self._rows(starts, 0, self.lookback + self.horizon)  # [B,R]
        seen = rows[:, : self.lookback]
        origin = self.seconds.index_select(0, seen[:, -1])
        inputs, valid = self._readings(seen)
        last_row = seen[:, -1] if self.grid_rows is None else self.grid_rows.index_select(0, seen[:, -1])
        age = self.ages.index_select(0, last_row).long()  # [B,N*C]
        recent = self.readings.gather(0, (last_row[:, None] - age).clamp(min=0))
        older = self.latest.index_select(0, last_row // OLD)
        last, last_observed = inputs[:, -1], torch.where(age < OLD, recent, older).unflatten(-1, self.shape)
        dates = self._gather(self.calendar, rows)  # [B,R,2]
        if self.inputs is not None:
            inputs, valid = inputs.index_select(-1, self.inputs), valid.index_select(-1, self.inputs)
        if self.targets is not None:
            last, last_observed = last.index_select(-1, self.targets), last_observed.index_select(-1, self.targets)
        climatology, confidence = self._climatology(starts, rows)
        return Batch(inputs, valid, last, last_observed, dates[..., 0], dates[..., 1], climatology, confidence, origin)

    def target(self, starts: Tensor) -> Target:
        """Return what follows the lookback, for first file rows ``starts`` int64 [B]; the series must hold all rows."""
        rows = self._rows(starts, self.lookback, self.lookback + self.horizon)  # [B,P]
        values, valid = self._readings(rows)
        if self.targets is not None:
            values, valid = values.index_select(-1, self.targets), valid.index_select(-1, self.targets)
        if self.teacher_forecast is None:
            return Target(values, valid, values.new_empty(*values.shape[:-1], 0, dtype=torch.float16))
        return Target(values, valid, self.teacher_forecast.index_select(0, starts - self.first).view(values.shape))

    def _climatology(self, starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return climatology and confidence [B,R,N,G] at series rows int64 [B,R]; starts: file rows, to pick from V."""
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
        """Return window steps ``first`` to ``last`` - 1 as series rows, int64 [B,steps]; starts: first file rows."""
        return starts[:, None] + torch.arange(first - self.first, last - self.first, device=self.device)

    def _readings(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return observations, 0 where missing, and valid, [B,Q,N,C], for rows int64 [B,Q]."""
        if self.grid_rows is None:
            values, ages = self._gather(self.readings, rows), self._gather(self.ages, rows)
        else:
            rows = self._gather(self.grid_rows, rows)
            absent, rows = (rows < 0)[..., None], rows.clamp(min=0)
            values = self._gather(self.readings, rows).masked_fill(absent, 0.0)
            ages = self._gather(self.ages, rows).masked_fill(absent, OLD)
        valid = ages.logical_not()  # age 0; on a CPU == takes 16 times as long
        return values.unflatten(-1, self.shape), valid.unflatten(-1, self.shape)

    @staticmethod
    def _gather(table: Tensor, rows: Tensor) -> Tensor:
        """Gather rows [B,Q] from table [X,...] -> [B,Q,...]."""
        return table.index_select(0, rows.flatten()).unflatten(0, rows.shape)


def look_back(values: np.ndarray, valid: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each row's age since the last valid observation, and that observation at every 255th row.

    values float32 and valid bool [T,X]; last float32 [X]: last observation before the rows. Returns ages,
    latest and last after the rows. ages uint8 [T,X] in rows, 255 where the block so far is invalid. latest
    float32 [ceil(T / 255),X], NaN before the first observation; used for age 255.
    """
    ages = np.empty(valid.shape, np.uint8)
    latest = np.empty((-(-len(valid) // OLD), valid.shape[1]), np.float32)
    for block, first in enumerate(range(0, len(valid), OLD)):
        rows = slice(first, first + OLD)
        position = np.arange(1, len(valid[rows]) + 1, dtype=np.int16)[:, None]
        latest_position = np.maximum.accumulate(np.where(valid[rows], position, np.int16(0)), axis=0)  # 0: absent
        ages[rows] = np.where(latest_position > 0, position - latest_position, OLD)
        latest[block] = np.where(valid[first], values[first], last)
        ends = latest_position[-1].astype(np.int64)
        last = np.where(ends > 0, values[first + np.maximum(ends, 1) - 1, np.arange(values.shape[1])], last)
    return ages, latest, last


@dataclass(frozen=True, eq=False)
class ContextReader:
    """Lookbacks that end at given times; a row within ``slack_s`` seconds of a time has that time.

    An absent row counts as missing. rolling: climatology, if the model reads it.
    """

    source: RowSource
    layout: WindowLayout
    slack_s: int = 0
    rolling: RollingClimatology | None = None

    @property
    def step_minutes(self) -> int:
        """Time step in minutes."""
        return self.source.step_minutes

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.source.seconds, kind="stable")

    def rows_at(self, seconds: np.ndarray) -> np.ndarray:
        """Return the row index at each time int64 [...], int64 [...]; -1 for an absent row."""
        order = self._order  # rows may be unsorted
        first_not_before = np.searchsorted(self.source.seconds, seconds - self.slack_s, sorter=order)
        rows = order[np.minimum(first_not_before, len(order) - 1)]
        within_slack = (first_not_before < len(order)) & (np.abs(self.source.seconds[rows] - seconds) <= self.slack_s)
        return np.where(within_slack, rows, -1)

    def latest_before(self, second: int) -> np.ndarray:
        """Return the last valid observation before a time in seconds, float32 [N,C]; NaN before any observation."""
        later = np.flatnonzero(self.source.seconds >= second - self.slack_s)
        row = int(later[0]) if len(later) else len(self.source.seconds)
        page = max(row - 1, 0) // PAGE_ROWS
        rows = slice(page * PAGE_ROWS, row)
        return latest_after(*self.source.read(rows), self.source.latest_before(page))

    def batches(self, issued: np.ndarray, size: int) -> Iterator[tuple[slice, Batch]]:
        """Yield lookbacks that end at ascending row times int64 [W], up to ``size`` a batch, each with the slice.

        The times lie a multiple of the step apart.  A ``Series`` gathers them, as it does in training.
        """
        step_s, series, begin = 60 * self.step_minutes, None, 0
        for first in range(0, len(issued), size):
            chunk = slice(first, min(first + size, len(issued)))
            last = int(issued[chunk.stop - 1])
            if series is None or last > int(series.seconds[-1]):
                begin = int(issued[first]) - (self.layout.lookback - 1) * step_s
                reach = max(last, min(int(issued[-1]), begin + GRID_ROWS * step_s))
                series = self._series(np.arange(begin, reach + 1, step_s, dtype=np.int64))
            starts = (issued[chunk] - begin) // step_s - (self.layout.lookback - 1)
            yield chunk, series.window(torch.from_numpy(starts))

    def _series(self, seconds: np.ndarray) -> Series:
        """Read the rows up to regular times int64 [R], with the climatology as on the day one horizon before each."""
        series = Series(self.source, self.layout, torch.device("cpu"), RegularRows(seconds, self.rows_at(seconds)))
        if self.rolling is None:
            return series
        times = np.append(seconds, next_times(int(seconds[-1]), self.step_minutes, self.layout.horizon))
        return series.with_climatology(self.rolling.lookup(times, times - 60 * self.step_minutes * self.layout.horizon))

    def excerpt(self, issued: np.ndarray, before: int, ahead: int) -> tuple[np.ndarray, np.ndarray]:
        """Return times int64 [R] and target values float32 [R,N,G], NaN where missing, around origins ``issued``.

        The excerpt begins ``before`` steps up to the first origin and ends ``ahead`` steps after the last, for charts.
        """
        step_s = 60 * self.step_minutes
        first, last = int(issued[0]) - (before - 1) * step_s, int(issued[-1]) + ahead * step_s
        times = np.arange(first, last + 1, step_s)
        rows = self.rows_at(times)
        values, valid = self.read(rows)
        return times, np.where(valid, values, np.float32(np.nan))[..., list(self.layout.targets)]

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values float32 and valid bool [...,N,C] for rows int64 [...]; row -1 is missing."""
        existing = rows[rows >= 0]
        if not len(existing):
            shape = (*rows.shape, *self.source.shape)
            return np.zeros(shape, np.float32), np.zeros(shape, bool)
        first = int(existing.min())
        values, valid = self.source.read(slice(first, int(existing.max()) + 1))
        index = np.maximum(rows - first, 0)
        return values[index], valid[index] & (rows >= 0)[..., None, None]

    def input_state(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of valid lookback rows int64 [B,N], and whether a sensor ever reported, bool [B,N].

        Valid: with the first target, or with any input if the target is not read.
        """
        first, inputs = self.layout.targets[0], self.layout.inputs
        column = inputs.index(first) if first in inputs else None
        valid = batch.valid.any(dim=-1) if column is None else batch.valid[..., column]
        return valid.sum(dim=1).numpy(), ~batch.last_observed[..., 0].isnan().numpy()
