"""Loading: the mode for a file, the climatology for the windows, and the loaders."""

# Shape letters: T rows, t rows read, P horizon steps, V numbers of days, N sensors, G targets

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from socialx.core.disk import reserved_file
from socialx.core.environment import free_bytes
from socialx.core.errors import Argument, Message, SocialxError
from socialx.core.progress import note, work
from socialx.data.augmentation import AugmentedSource
from socialx.data.calendar import next_times
from socialx.data.climatology import ALL_DAYS, ClimatologyTable, DailyStats, PastDays, RollingClimatology
from socialx.data.loaders import GIB, HOST, DeviceLoader, Loader, ShardLoader, WindowOrder, WorkerLoader, shard_bytes
from socialx.data.series import Series, WindowLayout
from socialx.data.source import PAGE_ROWS, RowSource, pages
from socialx.settings.schema import LoaderSettings

READING_BYTES = 5  # per observation, and per climatology value
WORTH_A_LINE = GIB
ON_DEVICE_SHARE = 0.5  # of free memory: the model needs the rest
AUGMENTED_SEED = 0
KEPT_TABLES = 2  # of climatology: those for training and validation


def series_bytes(rows: int, sensors: int, columns: int) -> int:
    """Return the size of a series on the device in bytes. columns: features, and climatologies of the targets."""
    return READING_BYTES * rows * sensors * columns


def choose_mode(
    settings: LoaderSettings, path: Path, shape: tuple[int, int, int], device: torch.device
) -> LoaderSettings:
    """Return the settings with a mode: on_device if the series fits into half the free memory, else sharded.

    shape: rows, sensors and columns, as in ``series_bytes``. Large data get a note. Raises SocialxError if on_device is
    set and the series exceeds the free memory.
    """
    rows, sensors, _ = shape
    need, free = series_bytes(*shape), free_bytes(device)
    fits = free is None or need <= ON_DEVICE_SHARE * free
    mode = ("on_device" if fits else "sharded") if settings.mode == "auto" else settings.mode
    room = "" if free is None else f", {free / GIB:.1f} GiB are free"
    size = f"{rows:,} rows x {sensors:,} sensors take {need / GIB:.1f} GiB on {device}{room}"
    if mode == "on_device" and free is not None and need > free:
        remedy = f"use {Argument('loader.mode', 'sharded')}, or fewer days with {Argument('data.days', 'N')}"
        raise SocialxError("data.no-memory", path, size, remedy)
    if need >= WORTH_A_LINE or mode != "on_device":
        note(Message("data.loader-mode", path, f"{size}: loader mode {mode}"), True)
    return settings.model_copy(update={"mode": mode})


def allocate(shape: tuple[int, ...], kind: type[np.generic], in_memory: bool) -> np.ndarray:
    """Allocate an array in memory, or in an unnamed temporary file; kind: the dtype."""
    if in_memory:
        return np.empty(shape, kind)
    with reserved_file(math.prod(shape) * np.dtype(kind).itemsize) as file:
        return np.memmap(file, kind, "w+", shape=shape)


@dataclass(frozen=True, eq=False)
class Climatology:
    """Climatology for the windows in one file.

    source: the targets. days: those that training reads; ``None`` if the model reads only observations. prior:
    statistics stored in a run for days before this file. trained: the row at which training ends. in_memory: else
    tables are in temporary files.
    """

    source: RowSource
    horizon: int
    trained: int
    days: PastDays | None
    prior: DailyStats | None
    in_memory: bool
    _tables: dict[PastDays, ClimatologyTable] = field(default_factory=dict, init=False, repr=False)

    def rolling(self, max_days: int = 0) -> RollingClimatology:
        """Build the climatology day by day. max_days: longest window to look up, apart from ``None`` (all days)."""
        return RollingClimatology(self.source, self.prior, max_days)

    @cached_property
    def shared(self) -> RollingClimatology:
        """Climatology that all who ask share: days in order are read once, and an earlier day starts over."""
        return self.rolling()

    def table(self, days: PastDays, rows: slice) -> ClimatologyTable:
        """Return the climatology at rows and over the horizon after, [V,t+P,N,G]; the last two tables are kept.

        V: windows of ``days``. A row uses the days before the first origin whose window reads the row. The kept table
        covers the whole file, or until the training ends for augmented days.
        """
        if days not in self._tables:
            while len(self._tables) >= KEPT_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[days] = self._compute(days)
        return ClimatologyTable(*(part[:, rows.start : rows.stop + self.horizon] for part in self._tables[days]))

    def _compute(self, days: PastDays) -> ClimatologyTable:
        """Compute the climatology [V,T+P,N,G] for V windows in days; for augmented days T ends with the training."""
        source = self.source
        length = self.trained if days.augmented else len(source.seconds)
        ahead = next_times(int(source.seconds[-1]), source.step_minutes, self.horizon)
        seconds = np.concatenate([source.seconds, ahead])[: length + self.horizon]
        issued = seconds - 60 * source.step_minutes * self.horizon
        if days.until == "trained":
            issued = np.minimum(issued, source.seconds[self.trained - 1])
        shape = len(days.windows), len(seconds), *source.shape
        table = ClimatologyTable(*(allocate(shape, kind, self.in_memory) for kind in (np.float32, np.uint8)))
        rolling = self.rolling(days.longest) if days.longest else self.shared
        with work("climatology", len(seconds), "rows") as bar:
            for rows in pages(0, len(seconds)):
                for column, part in zip(table, rolling.lookup(seconds[rows], issued[rows], days.windows), strict=True):
                    column[:, rows] = part
                bar.advance(rows.stop - rows.start)
        return table


@dataclass(frozen=True, eq=False)
class Loaders:
    """Loaders for one file, in the mode from the settings.

    source: all features. measured: for each feature, whether augmentation may change it. settings: with a chosen mode.
    teacher_forecast: teacher forecasts by first window row, float16 [t,P*N*G].
    """

    source: RowSource
    layout: WindowLayout
    device: torch.device
    settings: LoaderSettings
    climatology: Climatology
    measured: Sequence[bool]
    teacher_forecast: np.ndarray | None
    _kept: dict[PastDays, Series] = field(default_factory=dict, init=False, repr=False)

    def load(self, order: WindowOrder, days: PastDays | None = None, teacher: bool = False) -> Loader:
        """Return a loader for windows in order; days: behind the climatology, ``None`` for all days if it is read.

        teacher: whether the windows are training windows, which carry the teacher forecasts.
        """
        days = self._days_read(days)
        teacher_forecast = self.teacher_forecast if teacher else None
        if self.settings.mode == "on_device":
            series = self.series(days)
            return DeviceLoader(series if teacher_forecast is None else series.with_teacher(teacher_forecast), order)
        if days:
            self.climatology.table(days, slice(0, 0))  # once, before worker processes start
        make_series = partial(self._read_rows, days, teacher_forecast)
        if self.settings.mode == "sharded":
            return ShardLoader(make_series, self.layout.length, self.device, order)
        return WorkerLoader(make_series, self.layout.length, self.device, self.settings, order)

    @cached_property
    def observations(self) -> Series:
        """All rows on the device, apart from the climatology."""
        return Series(self.source, self.layout, self.device)

    def series(self, days: PastDays | None = None) -> Series:
        """Return all rows on the device, with climatology if the model reads one; days: as in ``load``."""
        if (days := self._days_read(days)) is None:
            return self.observations
        if days not in self._kept:
            self._kept.clear()  # keep one
            series = Series(self._rows(days), self.layout, self.device) if days.augmented else self.observations
            table = self.climatology.table(days, slice(0, len(self.source.seconds)))
            self._kept[days] = series.with_climatology(table)
        return self._kept[days]

    def shard_windows(self, windows: int) -> int:
        """Return windows per shard: equal shards of limited size for a split of ``windows``; 0 for a single shard."""
        mode, days = self.settings.mode, self.climatology.days
        if self.settings.shard_gb is None and mode == "on_device":
            return 0
        columns = self.source.shape[1] + len(self.layout.targets) * (len(days.windows) if days else 0)
        row = series_bytes(1, self.source.shape[0], columns)
        row += 0 if self.teacher_forecast is None else self.teacher_forecast[0].nbytes
        rows = shard_bytes(self.settings, self.device if mode == "sharded" else HOST) // row
        fit = max(PAGE_ROWS, rows - PAGE_ROWS - self.layout.length)
        return 0 if fit >= windows else -(-windows // -(-windows // fit))

    def _days_read(self, days: PastDays | None) -> PastDays | None:
        return days or (ALL_DAYS if self.climatology.days else None)

    def _rows(self, days: PastDays | None) -> RowSource:
        """Return the row source for ``days``, augmented if they say so."""
        return AugmentedSource(self.source, AUGMENTED_SEED, self.measured) if days and days.augmented else self.source

    def _read_rows(self, days: PastDays | None, teacher_forecast: np.ndarray | None, rows: slice) -> Series:
        """Return existing rows as a series in host memory, with climatology over ``days`` and any teacher forecasts."""
        rows = slice(rows.start, min(rows.stop, len(self.source.seconds)))
        pinned = self.device.type == "cuda" and self.settings.mode == "sharded"
        series = Series(self._rows(days), self.layout, HOST, rows, pinned)
        if days:
            series = series.with_climatology(self.climatology.table(days, rows))
        return series if teacher_forecast is None else series.with_teacher(teacher_forecast[rows])
