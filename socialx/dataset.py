"""Dataset: features from one data file, cut into windows and loaded in batches."""

# Shape letters: T rows, t rows read, P horizon steps, V numbers of days, N sensors, C features, G targets

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from socialx.core.environment import free_bytes
from socialx.core.errors import Argument, Command, Message, SocialxError, counted
from socialx.core.progress import note, work
from socialx.data.augmentation import AugmentedSource
from socialx.data.calendar import WALL, Calendar, Holidays, next_times, slots_per_day
from socialx.data.climatology import ALL_DAYS, ClimatologyTable, DailyStats, PastDays, RollingClimatology
from socialx.data.loaders import (
    READING_BYTES,
    WHOLE,
    DeviceLoader,
    Loader,
    Loading,
    RankShare,
    ShardLoader,
    WindowOrder,
    WorkerLoader,
)
from socialx.data.scaler import DataSpec, MeanStd, measure
from socialx.data.series import ContextReader, Series
from socialx.data.source import PAGE_ROWS, RowSource, pages
from socialx.data.windows import Windows, split_windows
from socialx.files.store.ids import match_key
from socialx.files.store.layout import STATIC_UNITS, Sensors
from socialx.files.store.published import DATASETS
from socialx.files.store.store import Store, open_store
from socialx.files.store.time_axis import JITTER_S, is_utc

GIB = 1 << 30
WORTH_A_LINE = GIB
ON_DEVICE_SHARE = 0.5  # of free memory: the model needs the rest
CHUNK_SHARE = 0.125  # of free memory: up to three training and two validation shards are loaded at once
AUGMENTED_SEED = 0
CHUNK_ON_CPU = GIB // 8  # a larger shard takes memory from other programs at equal speed


@dataclass(frozen=True, eq=False)
class Columns:
    """Row source over several features of a file, stacked on the last axis; impossible values are refused."""

    stores: tuple[Store, ...]
    calendar: Calendar = WALL

    @property
    def seconds(self) -> np.ndarray:
        """Time of each row in seconds, int64 [T]."""
        return self.stores[0].seconds

    @property
    def step_minutes(self) -> int:
        """Time step in minutes."""
        return self.stores[0].step_minutes

    @property
    def shape(self) -> tuple[int, int]:
        """Number of sensors and features."""
        return len(self.stores[0].sensors.ids), len(self.stores)

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return values float32 and valid bool [t,N,C] for adjacent rows. Raises SocialxError for impossible values."""
        parts = [store.read(rows) for store in self.stores]
        for store, (numbers, valid) in zip(self.stores, parts, strict=True):
            store.check_readings(np.where(valid, numbers, np.float32(np.nan)), store.seconds[rows])
        if len(parts) == 1:  # saves a copy
            return parts[0][0][..., None], parts[0][1][..., None]
        values, valid = (np.stack(part, axis=-1) for part in zip(*parts, strict=True))
        return values, valid

    def latest_before(self, page: int) -> np.ndarray:
        """Return the last observation before a page (PAGE_ROWS rows, by index), float32 [N,C]; NaN before any."""
        parts = [store.latest_before(page) for store in self.stores]
        if any(store.is_impossible(part).any() for store, part in zip(self.stores, parts, strict=True)):
            for rows in pages(0, page * PAGE_ROWS):
                self.read(rows)  # raises with the row
        return np.stack(parts, axis=-1)


@dataclass(frozen=True)
class Dataset:
    """One store per feature (the first target first) and the options that turn rows into batches.

    moments: mean and deviation per feature, from the training rows or from a run. windows: ``None`` if the file stays
    unsplit, for forecasts from the last lookback. loading: loader options with the chosen mode. train_climatology_days:
    the days that training reads; ``None`` if the model reads only observations. prior_climatology: statistics stored in
    a run for days before this file. calendar: local clock and holidays. teacher_forecast: teacher forecasts by first
    window row, float16 [t,P*N*G].
    """

    stores: dict[str, Store]
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    lookback: int
    horizon: int
    device: torch.device
    moments: Mapping[str, MeanStd]
    windows: Windows | None
    loading: Loading
    train_climatology_days: PastDays | None = None
    prior_climatology: DailyStats | None = None
    calendar: Calendar = WALL
    teacher_forecast: np.ndarray | None = field(default=None, compare=False)

    @property
    def _windows(self) -> Windows:
        if self.windows is None:
            raise ValueError("this dataset was opened without a split")
        return self.windows

    @property
    def training_rows(self) -> slice:
        """Rows in training windows; all rows if the file stays unsplit."""
        return self.windows.training_rows if self.windows else slice(0, len(self.store.seconds))

    @property
    def store(self) -> Store:
        """Store for the first target; sensors and times agree in all stores."""
        return self.stores[self.targets[0]]

    @property
    def sensors(self) -> Sensors:
        """Sensors in file order."""
        return self.store.sensors

    @cached_property
    def network(self) -> DataSpec:
        """Sizes and statistics of the data, for building a model."""
        inputs, targets = (tuple(self.moments[name] for name in names) for names in (self.inputs, self.targets))
        slots = slots_per_day(self.store.step_minutes)
        read = tuple(self.inputs.index(name) if name in self.inputs else None for name in self.targets)
        return DataSpec(len(self.sensors.ids), self.lookback, self.horizon, slots, inputs, targets, read=read)

    def rolling_climatology(self, max_days: int = 0) -> RollingClimatology:
        """Build the climatology of the targets. max_days: longest window to look up, apart from ``None`` (all days)."""
        return RollingClimatology(self.target_source, self.prior_climatology, max_days)

    @cached_property
    def shared_climatology(self) -> RollingClimatology:
        """Climatology that all who ask share: days in order are read once, and an earlier day starts over."""
        return self.rolling_climatology()

    @property
    def file_holidays(self) -> dict[int, int]:
        """Holidays with rows in the file: day since 1970 -> the weekday with similar traffic, 0 for Monday."""
        return self.calendar.holidays_among(self.calendar.day(self.store.seconds))

    def note_clock(self, by: Sequence[str] | None = None) -> None:
        """Tell the user that days and hours follow UTC, if results depend on the clock and the local zone is unknown.

        by: groups of scores, to check for ``hour`` and ``weekday``; ``None``: check for climatology or holidays.
        """
        store, reads_clock = self.store, bool(self.train_climatology_days or self.calendar.holidays)
        relevant = reads_clock if by is None else not reads_clock and {"hour", "weekday"} & set(by)
        if relevant and is_utc(store.timezone) and store.local_zone is None:
            local = Command("backfill", store.path, local_zone="ZONE")
            note(Message("data.clock-in-utc", store.path, "days and hours are in UTC, as the times in the file", local))

    def climatology_days(self, issued: int) -> int:
        """Count days with data before the day of an origin (issued, seconds), also days that only a run has stored."""
        prior, today = self.prior_climatology, int(self.calendar.day(issued))
        days = set(np.unique(self.calendar.day(self.store.seconds)).tolist())
        if prior is not None and prior.end <= today:
            run_days = range(prior.first, prior.end + (prior.last is not None))
            days = {day for day in days if day >= prior.end} | {*run_days}
        return sum(day < today for day in days)

    @cached_property
    def _climatology(self) -> dict[PastDays, ClimatologyTable]:
        return {}

    def climatology(self, days: PastDays, rows: slice) -> ClimatologyTable:
        """Return the climatology at rows and over the horizon after, [V,t+P,N,G]; the last two tables are kept.

        V: windows of ``days``. A row uses the days before the first origin whose window reads the row. The kept table
        covers the whole file, or until the training ends for augmented days: in memory if the series is on_device, else
        in a temporary file.
        """
        if days not in self._climatology:
            while len(self._climatology) > 1:  # keep those for training and validation
                del self._climatology[next(iter(self._climatology))]
            self._climatology[days] = self._make_climatology(days)
        return ClimatologyTable(*(part[:, rows.start : rows.stop + self.horizon] for part in self._climatology[days]))

    def _make_climatology(self, days: PastDays) -> ClimatologyTable:
        """Compute the climatology [V,T+P,N,G] for V windows in days; for augmented days T ends with the training."""
        source, step = self.target_source, 60 * self.store.step_minutes
        length = len(source.seconds)
        if days.augmented:
            length = self.training_rows.stop
        ahead = next_times(int(source.seconds[-1]), self.store.step_minutes, self.horizon)
        seconds = np.concatenate([source.seconds, ahead])[: length + self.horizon]
        issued = seconds - step * self.horizon
        if days.until == "trained":
            issued = np.minimum(issued, source.seconds[self.training_rows.stop - 1])
        shape = len(days.windows), len(seconds), *source.shape
        table = ClimatologyTable(*(self._allocate(shape, kind) for kind in (np.float32, np.uint8)))
        rolling = self.rolling_climatology(days.longest) if days.longest else self.shared_climatology
        with work("climatology", len(seconds), "rows") as bar:
            for rows in pages(0, len(seconds)):
                for column, part in zip(table, rolling.lookup(seconds[rows], issued[rows], days.windows), strict=True):
                    column[:, rows] = part
                bar.advance(rows.stop - rows.start)
        return table

    def with_teacher_forecasts(self, forecasts: Iterator[np.ndarray]) -> Dataset:
        """Return a copy whose training batches carry teacher forecasts, which the model learns to repeat.

        forecasts: float32 [b,P,N,G], b windows each, in file order. Above half the free memory the mode is sharded.
        """
        starts, mode, done = self._windows.split("train"), self.loading.mode, 0
        shape = int(starts[-1]) + 1, self.horizon * math.prod(self.target_source.shape)
        free = free_bytes(self.device)
        if mode == "on_device" and free is not None and 2 * math.prod(shape) > ON_DEVICE_SHARE * free:
            mode = "sharded"
        data = replace(self, loading=replace(self.loading, mode=mode))
        teacher_forecast = data._allocate(shape, np.float16)
        for part in forecasts:
            rows = starts[done : done + len(part)]  # drops the padding
            teacher_forecast[rows] = part[: len(rows)].reshape(len(rows), -1)
            done += len(rows)
        return replace(data, teacher_forecast=teacher_forecast)

    def _allocate(self, shape: tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
        """Allocate an array in memory in mode on_device, else in an unlinked temporary file; kind: the dtype."""
        if self.loading.mode == "on_device":
            return np.empty(shape, kind)
        size = math.prod(shape) * np.dtype(kind).itemsize
        try:
            with tempfile.TemporaryFile() as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a sparse file would end the process on a full disk
                return np.memmap(file, kind, "w+", shape=shape)
        except OSError as error:
            problem = f"the folder for temporary files lacks {size / GIB:.1f} GiB ({error.strerror})"
            remedy = f"set TMPDIR to a folder with space, or use {Argument('data.days', 'N')}"
            raise SocialxError("data.no-space", tempfile.gettempdir(), problem, remedy) from None

    @property
    def target_source(self) -> Columns:
        """Row source over the targets alone."""
        return Columns(tuple(self.stores[name] for name in self.targets), self.calendar)

    @cached_property
    def source(self) -> Columns:
        """Row source over all features."""
        return Columns(tuple(self.stores.values()), self.calendar)

    @cached_property
    def series(self) -> Series:
        """All rows on the device, apart from the climatology."""
        return Series(self.source, self.lookback, self.horizon, self.device, *self._feature_indices())

    @cached_property
    def _with_climatology(self) -> dict[PastDays, Series]:
        return {}

    def series_with_climatology(self, days: PastDays | None = None) -> Series:
        """Return all rows on the device, with climatology if the model reads one; days: ``None`` for all."""
        if (days := self._days_read(days)) is None:
            return self.series
        if days not in self._with_climatology:
            self._with_climatology.clear()  # keep one
            rows = slice(0, len(self.store.seconds))
            series = self.series
            if days.augmented:
                source = self._source(days)
                series = Series(source, self.lookback, self.horizon, self.device, *self._feature_indices())
            self._with_climatology[days] = series.with_climatology(self.climatology(days, rows))
        return self._with_climatology[days]

    def _days_read(self, days: PastDays | None) -> PastDays | None:
        """Return the days of a pass: ``days``, by default all if the model reads a climatology, else ``None``."""
        return days or (ALL_DAYS if self.train_climatology_days else None)

    def _source(self, days: PastDays | None) -> RowSource:
        """Return the row source for ``days``, augmented if they say so."""
        measured = [name not in STATIC_UNITS for name in self.stores]
        return AugmentedSource(self.source, AUGMENTED_SEED, measured) if days and days.augmented else self.source

    def context(self, slack_s: int, shared: bool = True) -> ContextReader:
        """Return a reader for lookbacks by end time, within slack_s seconds. shared: with ``shared_climatology``."""
        rolling = None
        if self.train_climatology_days:
            rolling = self.shared_climatology if shared else self.rolling_climatology()
        return ContextReader(self.source, self.lookback, self.horizon, *self._feature_indices(), slack_s, rolling)

    def _feature_indices(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the input indices and the target indices among the features."""
        names = list(self.stores)
        inputs, targets = (tuple(names.index(name) for name in chosen) for chosen in (self.inputs, self.targets))
        return inputs, targets

    @cached_property
    def checksum(self) -> str:
        """Checksum over all observations."""
        return combine_checksums([store.checksum for store in self.stores.values()])

    def loader(
        self,
        split: str,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        *,
        shard: int | None = None,
        share: RankShare = WHOLE,
        subset: slice | np.ndarray = slice(None),
        days: PastDays | None = None,
    ) -> Loader:
        """Return a loader for ``train``, ``validation`` or ``test``, in the mode from ``loading``.

        shard: windows per shard in the shuffled order; ``None`` as ``loading`` says, 0 for a single shard. share: rank
        and world size. subset: windows within the split, by index. days: behind the climatology; ``None`` for all days
        if the model reads one.
        """
        days = self._days_read(days)
        starts = self._windows.split(split)[subset]
        shard = self.shard_windows(len(starts)) if shard is None else shard
        order = WindowOrder(starts, batch_size, shuffle, seed, shard, share)
        length = self.lookback + self.horizon
        if days and self.loading.mode != "on_device":
            self.climatology(days, slice(0, 0))  # once, before worker processes start
        teacher = self.teacher_forecast if split == "train" else None
        make_series = partial(self._host_series, days, teacher)
        if self.loading.mode == "sharded":
            return ShardLoader(make_series, length, self.device, order)
        if self.loading.mode == "workers":
            return WorkerLoader(make_series, length, self.device, self.loading, 2 * self._chunk_bytes, order)
        series = self.series_with_climatology(days)
        return DeviceLoader(series if teacher is None else series.with_teacher_forecasts(teacher), order)

    def forecast_rows(self, split: str, subset: slice | np.ndarray = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Return first and last forecast row, int64 [W] each, for windows in a split."""
        first = self._windows.split(split)[subset] + self.lookback
        return first, first + self.horizon - 1

    @property
    def _chunk_bytes(self) -> int:
        """Shard size in bytes; workers hold shards in host memory."""
        return self.loading.shard_bytes or shard_bytes(self.device if self.loading.mode == "sharded" else HOST)

    def shard_windows(self, windows: int) -> int:
        """Return windows per shard: equal shards of limited size for a split of ``windows``; 0 for a single shard."""
        if self.loading.shard_bytes is None and self.loading.mode == "on_device":
            return 0
        sensors, features = self.source.shape
        row = series_bytes(1, sensors, features + len(self.targets) * climatologies(self.train_climatology_days))
        row += 0 if self.teacher_forecast is None else self.teacher_forecast[0].nbytes
        rows = self._chunk_bytes // row
        fit = max(PAGE_ROWS, rows - PAGE_ROWS - self.lookback - self.horizon)
        return 0 if fit >= windows else -(-windows // -(-windows // fit))

    def _host_series(self, days: PastDays | None, teacher_forecast: np.ndarray | None, rows: slice) -> Series:
        """Return existing rows as a series in host memory, with climatology over ``days`` and any teacher forecasts."""
        rows = slice(rows.start, min(rows.stop, len(self.store.seconds)))
        pinned = self.device.type == "cuda" and self.loading.mode == "sharded"
        climatology = self.climatology(days, rows) if days else None
        source = self._source(days)
        series = Series(source, self.lookback, self.horizon, HOST, *self._feature_indices(), rows, pinned, climatology)
        return series if teacher_forecast is None else series.with_teacher_forecasts(teacher_forecast[rows])

    def training_readings(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield target values and valid [t,N,G] and seconds [t] over the training rows, page by page."""
        source, span = self.target_source, self.training_rows
        for rows in pages(span.start, span.stop):
            yield (*source.read(rows), self.store.seconds[rows])


HOST = torch.device("cpu")


def climatologies(days: PastDays | None) -> int:
    """Return how many climatologies per target a training reads."""
    return len(days.windows) if days else 0


def combine_checksums(sums: Sequence[str]) -> str:
    """Return one checksum for a dataset from the checksums of all features."""
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def open_dataset(
    path: Path,
    *,
    targets: Sequence[str],
    inputs: Sequence[str] | None,
    lookback: int,
    horizon: int,
    device: torch.device,
    split_method: str | None,
    days: int | None = None,
    moments: Mapping[str, MeanStd] | None = None,
    sensors: tuple[str, ...] | None = None,
    loading: Loading | None = None,
    train_climatology_days: PastDays | None = None,
    prior_climatology: DailyStats | None = None,
    holidays: Holidays | None = None,
    units: Mapping[str, str] | None = None,
) -> Dataset:
    """Open a file, split the windows, measure the statistics and choose the loader mode.

    inputs: ``None`` for the targets. split_method: canonical or strict; ``None`` skips the split and needs ``moments``.
    days: use the first N calendar days, ``None`` for all. moments: mean and deviation per feature, by default measured.
    sensors: ids to read, in this order; each must be in the file. loading: loader options. train_climatology_days,
    prior_climatology: see ``Dataset``. holidays: see ``Calendar``. units: speed unit to read each feature in, by
    default the unit in the file. Raises SocialxError for a file shorter than one lookback.
    """
    inputs = tuple(inputs or targets)
    names = tuple(dict.fromkeys([*targets, *inputs]))
    stores = {name: open_store(path, name, days).in_unit((units or {}).get(name, "")) for name in names}
    if sensors is not None:
        stores = {name: store.with_sensors(sensors) for name, store in stores.items()}
    first = stores[names[0]]
    if len(first.seconds) < lookback:
        reason = f"the file has {counted(len(first.seconds), 'row')}, and one lookback needs {lookback}"
        raise SocialxError("data.below-lookback", path, reason, "use a file with more rows")
    windows = None if split_method is None else find_windows(first, lookback, horizon, split_method)
    columns = len(names) + len(targets) * climatologies(train_climatology_days)
    loading = with_mode(loading or Loading(), path, first, columns, device) if windows else Loading("sharded")
    if windows is not None and moments is None:
        moments = dict(zip(names, measure(Columns(tuple(stores.values())), windows.training_rows, path), strict=True))
    calendar = Calendar(first.local_clock(), holidays)
    return Dataset(
        stores,
        inputs,
        tuple(targets),
        lookback,
        horizon,
        device,
        moments or {},
        windows,
        loading,
        train_climatology_days,
        prior_climatology,
        calendar,
    )


def find_windows(store: Store, lookback: int, horizon: int, split_method: str) -> Windows:
    """Split a file into canonical or strict windows, skipping time gaps except the gap that published results cross."""
    seconds, published = store.seconds, None
    for dataset in DATASETS.values():
        if dataset.skips and all(match_key(name) in dataset.ids for name in store.sensors.ids):
            before, after = np.array(dataset.skips, "datetime64[s]").astype(np.int64)
            for row in np.flatnonzero((seconds[:-1] == before) & (seconds[1:] == after)):
                published = seconds - np.where(np.arange(len(seconds)) > row, after - before - dataset.step_s, 0)
    return split_windows(seconds, store.step_minutes, lookback, horizon, split_method, JITTER_S, published)


def with_mode(loading: Loading, path: Path, store: Store, columns: int, device: torch.device) -> Loading:
    """Return the loader options with a mode: on_device if the series fits into half the free memory, else sharded.

    columns: features, plus one climatology per target and climatology window in training. Large data get a note. Raises
    SocialxError if on_device is set and the series exceeds the free memory.
    """
    rows, sensors = len(store.seconds), len(store.sensors.ids)
    need, free = series_bytes(rows, sensors, columns), free_bytes(device)
    fits = free is None or need <= ON_DEVICE_SHARE * free
    mode = ("on_device" if fits else "sharded") if loading.mode == "auto" else loading.mode
    room = "" if free is None else f", {free / GIB:.1f} GiB are free"
    size = f"{rows:,} rows x {sensors:,} sensors take {need / GIB:.1f} GiB on {device}{room}"
    if mode == "on_device" and free is not None and need > free:
        remedy = f"use {Argument('loader.mode', 'sharded')}, or fewer days with {Argument('data.days', 'N')}"
        raise SocialxError("data.no-memory", path, size, remedy)
    if need >= WORTH_A_LINE or mode != "on_device":
        note(Message("data.loader-mode", path, f"{size}: loader mode {mode}"), True)
    return replace(loading, mode=mode)


def series_bytes(rows: int, sensors: int, columns: int) -> int:
    """Return the size of a series on the device in bytes. columns: features and climatologies, as in ``with_mode``."""
    return READING_BYTES * rows * sensors * columns


def shard_bytes(device: torch.device) -> int:
    """Return the default shard size in bytes: an eighth of the free memory, at most 128 MiB on a CPU."""
    free = free_bytes(device)
    share = CHUNK_ON_CPU if free is None else int(CHUNK_SHARE * free)
    return min(share, CHUNK_ON_CPU) if device.type == "cpu" else share
