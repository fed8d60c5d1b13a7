"""A file as a model sees it: its features, cut into windows and brought to a device in batches."""

# Shape letters: T rows, t some of them, P horizon steps, V numbers of days, N sensors, C features, G targets

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
from socialx.core.errors import Argument, Command, Message, SocialxError
from socialx.core.progress import note, work
from socialx.data.augmentation import Augmented
from socialx.data.calendar import WALL, Calendar, Holidays, following, slots_per_day
from socialx.data.climatology import UNTIL_TRAINED, ClimatologyTable, DailyStats, RollingClimatology
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
ON_DEVICE_SHARE = 0.5  # of the free memory: the model needs the rest
CHUNK_SHARE = 0.125  # of the free memory; up to three shards are there at a time, and two of the validation
AUGMENTED_SEED = 0
CHUNK_ON_CPU = GIB // 8  # more would take memory from other programs, and make nothing faster


@dataclass(frozen=True, eq=False)
class Columns:
    """Several features of one file as a source, one behind the other; numbers that can be no readings are refused."""

    stores: tuple[Store, ...]
    calendar: Calendar = WALL

    @property
    def seconds(self) -> np.ndarray:
        """The time of each row, int64 [T]."""
        return self.stores[0].seconds

    @property
    def step_minutes(self) -> int:
        """The time between two rows."""
        return self.stores[0].step_minutes

    @property
    def shape(self) -> tuple[int, int]:
        """Sensors and features."""
        return len(self.stores[0].sensors.ids), len(self.stores)

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Values float32 and valid bool [t,N,C] of neighbouring rows."""
        parts = [store.read(rows) for store in self.stores]
        for store, (numbers, known) in zip(self.stores, parts, strict=True):
            store.check_readings(np.where(known, numbers, np.float32(np.nan)), store.seconds[rows])
        if len(parts) == 1:  # which needs no copy
            return parts[0][0][..., None], parts[0][1][..., None]
        values, valid = (np.stack(part, axis=-1) for part in zip(*parts, strict=True))
        return values, valid

    def latest_before(self, page: int) -> np.ndarray:
        """The latest valid reading before the first row of a page, float32 [N,C]."""
        parts = [store.latest_before(page) for store in self.stores]
        if any(store.is_impossible(part).any() for store, part in zip(self.stores, parts, strict=True)):
            for rows in pages(0, page * PAGE_ROWS):
                self.read(rows)  # which says where it stands
        return np.stack(parts, axis=-1)


@dataclass(frozen=True)
class Dataset:
    """One store per feature, the first target's before the others, and how they become batches.

    moments: of every feature, measured on the training rows, or those of the run that is used here.  windows: None
    where the file was not split, because only its latest history is asked for.  loading: with the mode that was chosen.
    train_climatology_days: how many days before the day of issue training windows know, None: all; one after the other
    has each number. Nothing: no model reads the climatology.  known: what a run knows of days that this file lacks.
    calendar: the clock that people live by, and their holidays.  teacher_forecast: what other models forecast for the
    training window that begins at each row, float16 [t,P*N*G].
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
    train_climatology_days: tuple[int | None, ...] = ()
    known: DailyStats | None = None
    calendar: Calendar = WALL
    teacher_forecast: np.ndarray | None = field(default=None, compare=False)

    @property
    def _windows(self) -> Windows:
        if self.windows is None:
            raise ValueError("this file was not split into parts")
        return self.windows

    @property
    def learned_from(self) -> slice:
        """The rows that training windows may look at; all rows of a file that was not split."""
        return self.windows.training_rows if self.windows else slice(0, len(self.store.seconds))

    @property
    def store(self) -> Store:
        """That of the first target: sensors and timestamps are the same in all of them."""
        return self.stores[self.targets[0]]

    @property
    def sensors(self) -> Sensors:
        """The sensors in the order of the file."""
        return self.store.sensors

    @cached_property
    def network(self) -> DataSpec:
        """What a model must know."""
        inputs, targets = (tuple(self.moments[name] for name in names) for names in (self.inputs, self.targets))
        slots = slots_per_day(self.store.step_minutes)
        read = tuple(self.inputs.index(name) if name in self.inputs else None for name in self.targets)
        return DataSpec(len(self.sensors.ids), self.lookback, self.horizon, slots, inputs, targets, read=read)

    def past(self, most: int = 0) -> RollingClimatology:
        """The climatology of the targets, day by day; most: as there."""
        return RollingClimatology(self.target_source, self.known, most)

    @cached_property
    def past_now(self) -> RollingClimatology | None:
        """The same for a server: what is issued before the last history is told what was known when that began."""
        span = 60 * self.store.step_minutes * (self.lookback + self.horizon)
        return RollingClimatology(self.target_source, self.known, 0, span) if self.train_climatology_days else None

    @property
    def holidays_in_it(self) -> dict[int, int]:
        """The holidays on which the file has rows."""
        return self.calendar.holidays_among(self.calendar.day(self.store.seconds))

    def note_clock(self, by: Sequence[str] | None = None) -> None:
        """Say where a climatology or holidays, or else scores that are divided by them, are of UTC alone."""
        store, made = self.store, bool(self.train_climatology_days or self.calendar.holidays)
        counts = made if by is None else not made and {"hour", "weekday"} & set(by)
        if counts and is_utc(store.timezone) and store.local_zone is None:
            local = Command("backfill", store.path, local_zone="ZONE")
            found = "its times are in UTC, and so are its days and hours"
            note(Message(store.path, found, local))

    @property
    def climatology_today(self) -> DailyStats:
        """What is known on the day of the last row, and the readings of that day so far."""
        return self.past().now()

    def climatology_days(self, issued: int) -> int:
        """How many days are known before the day of an issue: those with rows, and those of a run before the file."""
        known, today = self.known, int(self.calendar.day(issued))
        days = set(np.unique(self.calendar.day(self.store.seconds)).tolist())
        if known is not None and known.end <= today:
            of_run = range(known.first, known.end + (known.last is not None))
            days = {day for day in days if day >= known.end} | {*of_run}
        return sum(day < today for day in days)

    @cached_property
    def _climatology(self) -> dict[tuple[int | None, ...], ClimatologyTable]:
        return {}

    def climatology(self, days: tuple[int | None, ...], rows: slice) -> ClimatologyTable:
        """What is usual at these rows and in the horizon after them, [V,t+P,N,G]; days: V numbers of days, None: all.

        ``UNTIL_TRAINED`` alone stands for all days until the end of the training rows.

        The climatology of a row is that of the days before the first issue whose window reads the row.  It is made once
        for the whole file: in memory where the series is on_device, else in a temporary file.
        """
        if days not in self._climatology:
            while len(self._climatology) > 1:  # that of the training and that of the validation are kept
                del self._climatology[next(iter(self._climatology))]
            self._climatology[days] = self._make_usual(days)
        return ClimatologyTable(*(part[:, rows.start : rows.stop + self.horizon] for part in self._climatology[days]))

    def _make_usual(self, days: tuple[int | None, ...]) -> ClimatologyTable:
        source, step = self.target_source, 60 * self.store.step_minutes
        length = len(source.seconds)
        if len(days) > 1:  # which training alone asks for
            length = self.learned_from.stop
        ahead = following(int(source.seconds[-1]), self.store.step_minutes, self.horizon)
        seconds = np.concatenate([source.seconds, ahead])[: length + self.horizon]
        issued = seconds - step * self.horizon
        if days == (UNTIL_TRAINED,):
            issued, days = np.minimum(issued, source.seconds[self.learned_from.stop - 1]), (None,)
        shape = len(days), len(seconds), *source.shape
        made = ClimatologyTable(*(self._room(shape, kind) for kind in (np.float32, np.uint8)))
        past = self.past(max((each for each in days if each is not None), default=0))
        with work("climatology", len(seconds), "rows") as bar:
            for rows in pages(0, len(seconds)):
                for whole, part in zip(made, past.at(seconds[rows], issued[rows], days), strict=True):
                    whole[:, rows] = part
                bar.advance(rows.stop - rows.start)
        return made

    def learning_from(self, forecasts: Iterator[np.ndarray]) -> Dataset:
        """The same with what other models forecast for the training windows, float32 [b,P,N,G] in their order.

        It is read in shards where it does not fit into the memory beside the series.
        """
        starts, mode, done = self._windows.split("train"), self.loading.mode, 0
        shape = int(starts[-1]) + 1, self.horizon * math.prod(self.target_source.shape)
        free = free_bytes(self.device)
        if mode == "on_device" and free is not None and 2 * math.prod(shape) > ON_DEVICE_SHARE * free:
            mode = "sharded"
        data = replace(self, loading=replace(self.loading, mode=mode))
        teacher_forecast = data._room(shape, np.float16)
        for part in forecasts:
            rows = starts[done : done + len(part)]  # without the windows that pad the last batch
            teacher_forecast[rows] = part[: len(rows)].reshape(len(rows), -1)
            done += len(rows)
        return replace(data, teacher_forecast=teacher_forecast)

    def _room(self, shape: tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
        """An array in memory, or in a file that has no name and is gone with it."""
        if self.loading.mode == "on_device":
            return np.empty(shape, kind)
        size = math.prod(shape) * np.dtype(kind).itemsize
        try:
            with tempfile.TemporaryFile() as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a file with holes would end the process on a full disk
                return np.memmap(file, kind, "w+", shape=shape)
        except OSError as error:
            found = f"no room beside the file, {size / GIB:.1f} GiB ({error.strerror})"
            raise SocialxError(
                "TMPDIR", found, f"set it to a folder with space, or {Argument('data.days', 'N')}"
            ) from None

    @property
    def target_source(self) -> Columns:
        """The targets by row."""
        return Columns(tuple(self.stores[name] for name in self.targets), self.calendar)

    @cached_property
    def source(self) -> Columns:
        """All features by row."""
        return Columns(tuple(self.stores.values()), self.calendar)

    @cached_property
    def series(self) -> Series:
        """All rows on the device, without what is usual."""
        return Series(self.source, self.lookback, self.horizon, self.device, *self._places())

    @cached_property
    def _with_climatology(self) -> dict[tuple[int | None, ...], Series]:
        return {}

    def series_with(self, days: tuple[int | None, ...] | None = None) -> Series:
        """The series with the climatology of so many days before the day of issue; days: as in ``loader``."""
        if days is None:
            days = (None,) if self.train_climatology_days else ()
        if not days:
            return self.series
        if days not in self._with_climatology:
            self._with_climatology.clear()  # at most one is kept
            rows = slice(0, len(self.store.seconds))
            series = self.series
            if len(days) > 1:
                series = Series(self._read_by(days), self.lookback, self.horizon, self.device, *self._places())
            self._with_climatology[days] = series.with_climatology(self.climatology(days, rows))
        return self._with_climatology[days]

    def _read_by(self, days: tuple[int | None, ...]) -> RowSource:
        """The features by row; in a training that meets several numbers of days, as other detectors report them."""
        measured = [name not in STATIC_UNITS for name in self.stores]
        return Augmented(self.source, AUGMENTED_SEED, measured) if len(days) > 1 else self.source

    def context(self, slack_s: int, past: RollingClimatology | None = None) -> ContextReader:
        """Histories by the time of their last row; a row may miss its time by slack_s.  past: None: a new one."""
        past = past or (self.past() if self.train_climatology_days else None)
        return ContextReader(self.source, self.lookback, self.horizon, *self._places(), slack_s, past)

    def _places(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which of the features are inputs and which are targets."""
        names = list(self.stores)
        inputs, targets = (tuple(names.index(name) for name in chosen) for chosen in (self.inputs, self.targets))
        return inputs, targets

    @cached_property
    def checksum(self) -> str:
        """Of the readings of the only feature, or of all of them."""
        return checksum_of([store.checksum for store in self.stores.values()])

    def loader(
        self,
        split: str,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        *,
        shard: int | None = None,
        share: RankShare = WHOLE,
        some: slice | np.ndarray = slice(None),
        days: tuple[int | None, ...] | None = None,
    ) -> Loader:
        """Batches of ``train``, ``validation`` or ``test``, in the mode of ``loading``.

        shard: windows of a shard, of which the shuffled order is made; None: as the loading says, 0: all of them.
        share: of this process.  some: which windows of the part, as places in it.  days: how many before the day of
        issue are known, as ``train_climatology_days``; None: all, if a model reads the climatology.
        """
        if days is None:
            days = (None,) if self.train_climatology_days else ()
        starts = self._windows.split(split)[some]
        shard = self.shard_windows(len(starts)) if shard is None else shard
        order = WindowOrder(starts, batch_size, shuffle, seed, shard, share)
        length = self.lookback + self.horizon
        if days and self.loading.mode != "on_device":
            self.climatology(days, slice(0, 0))  # before worker processes begin, which would make it once each
        teacher_forecast = self.teacher_forecast if split == "train" else None
        series_of = partial(self._part, days, teacher_forecast)
        if self.loading.mode == "sharded":
            return ShardLoader(series_of, length, self.device, order)
        if self.loading.mode == "workers":
            return WorkerLoader(series_of, length, self.device, self.loading, 2 * self._chunk_bytes, order)
        series = self.series_with(days)
        return DeviceLoader(
            series if teacher_forecast is None else series.with_teacher_forecasts(teacher_forecast), order
        )

    def forecast_rows(self, split: str, some: slice | np.ndarray = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last row, int64 [W] each, that some windows of a part forecast."""
        first = self._windows.split(split)[some] + self.lookback
        return first, first + self.horizon - 1

    @property
    def _chunk_bytes(self) -> int:
        """Of a shard; those of workers are in the host's memory."""
        return self.loading.shard_bytes or shard_bytes(self.device if self.loading.mode == "sharded" else HOST)

    def shard_windows(self, windows: int) -> int:
        """Windows of a shard where a part has so many: shards of equal size; 0: all are one shard.

        At least those of one page: less would read the same rows again and again.
        """
        if self.loading.shard_bytes is None and self.loading.mode == "on_device":
            return 0
        sensors, features = self.source.shape
        row = series_bytes(1, sensors, features + len(self.targets) * len(self.train_climatology_days))
        row += 0 if self.teacher_forecast is None else self.teacher_forecast[0].nbytes
        rows = self._chunk_bytes // row
        fit = max(PAGE_ROWS, rows - PAGE_ROWS - self.lookback - self.horizon)
        return 0 if fit >= windows else -(-windows // -(-windows // fit))

    def _part(self, days: tuple[int | None, ...], teacher_forecast: np.ndarray | None, rows: slice) -> Series:
        """These rows in the host's memory, with the climatology of days; rows after the last one are left out."""
        rows = slice(rows.start, min(rows.stop, len(self.store.seconds)))
        pinned = self.device.type == "cuda" and self.loading.mode == "sharded"
        climatology = self.climatology(days, rows) if days else None
        source = self._read_by(days)
        series = Series(source, self.lookback, self.horizon, HOST, *self._places(), rows, pinned, climatology)
        return series if teacher_forecast is None else series.with_teacher_forecasts(teacher_forecast[rows])

    def training_readings(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Values and valid [t,N,G] of the targets and seconds [t] of the rows that training windows may look at.

        Of a file that was not split_method: of all rows.
        """
        source, span = self.target_source, self.learned_from
        for rows in pages(span.start, span.stop):
            yield (*source.read(rows), self.store.seconds[rows])

    def rows_until(self, second: int) -> int:
        """How many rows of the file, from the first one on, are not later than a second."""
        return int(np.searchsorted(self.store.seconds, second, side="right"))


HOST = torch.device("cpu")


def checksum_of(sums: Sequence[str]) -> str:
    """One checksum of those of all features."""
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
    train_climatology_days: tuple[int | None, ...] = (),
    known: DailyStats | None = None,
    holidays: Holidays | None = None,
) -> Dataset:
    """Open a file, split it, measure its moments and choose how it is loaded.

    inputs None: the targets.  split_method: canonical or strict; None: not split, and ``moments`` are needed.  days:
    the first so many calendar days of the file, None: all of it.  sensors: ids that the file must have; other sensors
    are left out and these put into this order.  train_climatology_days, known: as in ``Dataset``.  holidays: as in
    ``Calendar``.
    """
    inputs = tuple(inputs or targets)
    names = tuple(dict.fromkeys([*targets, *inputs]))
    stores = {name: open_store(path, name, days) for name in names}
    if sensors is not None:
        stores = {name: store.with_sensors(sensors) for name, store in stores.items()}
    first = stores[names[0]]
    if len(first.seconds) < lookback:
        reason = f"{len(first.seconds)} rows, and one history is {lookback}"
        raise SocialxError(path, reason, "use a file with more rows")
    windows = None if split_method is None else windows_of(first, lookback, horizon, split_method)
    columns = len(names) + len(targets) * len(train_climatology_days)
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
        known,
        calendar,
    )


def windows_of(store: Store, lookback: int, horizon: int, split_method: str) -> Windows:
    """The windows of a file: across no gap but the one that published results of the same sensors have windows over."""
    seconds, published = store.seconds, None
    for each in DATASETS.values():
        if each.skips and all(match_key(name) in each.ids for name in store.sensors.ids):
            before, after = np.array(each.skips, "datetime64[s]").astype(np.int64)
            for place in np.flatnonzero((seconds[:-1] == before) & (seconds[1:] == after)):
                published = seconds - np.where(np.arange(len(seconds)) > place, after - before - each.step_s, 0)
    return split_windows(seconds, store.step_minutes, lookback, horizon, split_method, JITTER_S, published)


def with_mode(loading: Loading, path: Path, store: Store, columns: int, device: torch.device) -> Loading:
    """The loading with a mode: on_device where the series fits into half of the free memory, else in shards.

    columns: features, and the climatology of each target as often as training meets another number of days.  Says so
    for large data.  Raises SocialxError where the series was asked for and does not fit at all.
    """
    rows, sensors = len(store.seconds), len(store.sensors.ids)
    need, free = series_bytes(rows, sensors, columns), free_bytes(device)
    fits = free is None or need <= ON_DEVICE_SHARE * free
    mode = ("on_device" if fits else "sharded") if loading.mode == "auto" else loading.mode
    room = "" if free is None else f", {free / GIB:.1f} GiB are free"
    size = f"{rows:,} rows x {sensors:,} sensors are {need / GIB:.1f} GiB on {device}{room}"
    if mode == "on_device" and free is not None and need > free:
        remedy = f"{Argument('loader.mode', 'sharded')}, or fewer days: {Argument('data.days', 'N')}"
        raise SocialxError(path, size, remedy)
    if need >= WORTH_A_LINE or mode != "on_device":
        note(f"{path}: {size}: loader mode {mode}")
    return replace(loading, mode=mode)


def series_bytes(rows: int, sensors: int, columns: int) -> int:
    """What a series on the device of this size takes; columns: as in ``with_mode``."""
    return READING_BYTES * rows * sensors * columns


def shard_bytes(device: torch.device) -> int:
    """Of a shard where nobody said it: a share of the free memory, and a fixed size on a CPU."""
    free = free_bytes(device)
    share = CHUNK_ON_CPU if free is None else int(CHUNK_SHARE * free)
    return min(share, CHUNK_ON_CPU) if device.type == "cpu" else share
