"""Loaders: three ways to turn windows into equal batches on the device.

``DeviceLoader`` keeps the whole series on the device (5 bytes per observation: METR-LA takes 35 MB) and gathers rows
there: free from worker processes, per-window Python and per-step copies. ``ShardLoader`` keeps one shard on the device
and reads the next in a thread. ``WorkerLoader`` builds batches in processes from file pages. Seed and epoch alone fix
which windows a batch holds, see ``WindowOrder``.
"""

# Shape letters: W windows, B windows of a batch

from __future__ import annotations

import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from socialx.core.batch import Batch, Target, TrainingBatch
from socialx.core.environment import free_bytes, usable_cores
from socialx.core.errors import SPELL, Argument, Message, SocialxError, in_short, spelling
from socialx.core.progress import note
from socialx.data.augmentation import AugmentedSource
from socialx.data.climatology import ALL_DAYS, Climatology, PastDays
from socialx.data.series import Series, WindowLayout
from socialx.data.source import PAGE_ROWS, RowSource
from socialx.settings.schema import LoaderSettings

MakeSeries = Callable[[slice], Series]  # rows from the start of a page -> series
MOST_WORKERS = 8
TIMEOUT_S = 120  # for a worker's batch
GIB = 1 << 30
SHARD_SHARE = 0.125  # of free memory: up to three training and two validation shards are loaded at once
SHARD_ON_CPU = GIB // 8  # a larger shard takes memory from other programs at equal speed
HOST = torch.device("cpu")
READING_BYTES = 5  # per observation, and per climatology value
WORTH_A_LINE = GIB
ON_DEVICE_SHARE = 0.5  # of free memory: the model needs the rest
AUGMENTED_SEED = 0


@dataclass(frozen=True)
class RankShare:
    """Rank and world size: each rank takes its own windows in every batch."""

    rank: int = 0
    ranks: int = 1


WHOLE = RankShare()


@dataclass(frozen=True, eq=False)
class WindowOrder:
    """Order in which an epoch serves the windows in one split, as batches per rank.

    starts: first row of each window, int64 [W], ascending. batch_size: windows per batch; the last batch is padded.
    shuffle, seed: draw an order per epoch. shard: windows per shard, 0 for a single shard. Shards are served one after
    another, so that one or two suffice in memory; a batch may span two shards.
    """

    starts: np.ndarray
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    shard: int = 0
    share: RankShare = WHOLE

    def __len__(self) -> int:
        """Return the number of batches per rank and epoch."""
        return -(-len(self.starts) // (self.batch_size * self.share.ranks))

    def indices(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the window indices int64 and the flags real bool for this rank's batches, both [len,B].

        Each window is real exactly once over all ranks. Repeats of the last window (real is False) pad the last batch.
        """
        windows = len(self.starts)
        order = np.arange(windows)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)

            def permute(size: int) -> np.ndarray:
                return torch.randperm(size, generator=generator).numpy()

            if 0 < self.shard < windows:
                firsts = np.arange(0, windows, self.shard)
                firsts = firsts[permute(len(firsts))]
                order = np.concatenate([first + permute(min(self.shard, windows - first)) for first in firsts])
            else:
                order = permute(windows)
        padding = len(self) * self.share.ranks * self.batch_size - windows
        order = np.concatenate([order, np.repeat(order[-1:], padding)])
        real = np.arange(len(order)) < windows
        shape = (len(self), self.share.ranks, self.batch_size)
        return order.reshape(shape)[:, self.share.rank], real.reshape(shape)[:, self.share.rank]


class Loader:
    """Base loader: windows in order, in batches no larger than the split.

    num_windows: over all ranks. shard: windows per shard in the order, 0 for a single shard. making_s: recent seconds
    spent in workers per batch, or in the thread per shard.
    """

    def __init__(self, order: WindowOrder) -> None:
        self.starts, self.num_windows, self.shard = order.starts, len(order.starts), order.shard
        self.batch_size = min(order.batch_size, -(-self.num_windows // order.share.ranks))
        self.making_s: deque[float] = deque(maxlen=1000)
        self.order = replace(order, batch_size=self.batch_size)

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.order)

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        """Yield the batches in epoch ``number`` from ``first_batch`` on; the order depends on seed and number alone."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Selection:
    """Batch before its gather. rows: first file row of each window in row 0; in row 1 a 1, or 0 for padding."""

    series: Series
    rows: Tensor  # int64 [2,B], on the device of the series
    full: bool  # True: free from padding

    def gather(self) -> TrainingBatch:
        """Return the training batch: the windows cut from the series, with invalid targets in padding windows."""
        starts, kept = self.rows
        return _mask_padding(TrainingBatch(self.series.window(starts), self.series.target(starts)), self.full, kept)

    def to(self, device: torch.device) -> Selection | TrainingBatch:
        """Move to ``device``: unchanged if the series is there, else gathered first."""
        return self if self.series.device == device else self.gather().to(device)


class DeviceLoader(Loader):
    """Batches from a split, gathered from a series on the device."""

    def __init__(self, series: Series, order: WindowOrder) -> None:
        super().__init__(order)
        self.series = series

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        """Yield the batches in epoch ``number``, from ``first_batch`` on, which hold each window once."""
        for selection in self.selections(number, first_batch):
            yield selection.gather()

    def selections(self, number: int, first_batch: int = 0) -> Iterator[Selection]:
        """Yield the batches of ``epoch`` ungathered, for steps in a CUDA graph. One copy per epoch moves the order."""
        indices, real = (part[first_batch:] for part in self.order.indices(number))
        rows = _to_device(np.stack([self.starts[indices], real], axis=1), self.series.device)
        for batch in range(len(real)):
            yield Selection(self.series, rows[batch], bool(real[batch].all()))


class ShardLoader(Loader):
    """Batches from two shards at a time: one in use, the next being read in a thread."""

    def __init__(self, make_series: MakeSeries, length: int, device: torch.device, order: WindowOrder) -> None:
        """make_series: builds a series from file rows in host memory, pinned for CUDA. length: rows per window."""
        super().__init__(order)
        self.device = device
        self._make_series, self._length = make_series, length
        self._shard = order.shard or self.num_windows
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pool = ThreadPoolExecutor(1, "read shard")
        self._ahead: tuple[int, int, Future[_DeviceCopy]] | None = None  # first shard of the next epoch

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        """Yield each window once, from ``first_batch`` on. A shuffled epoch ends by reading the next first shard."""
        indices, real = (part[first_batch:] for part in self.order.indices(number))
        shards = indices // self._shard
        names, permutation, reordered = sort_by_series(shards)
        in_order = np.take_along_axis(self.starts[indices], permutation, axis=1)
        starts, back, kept = (_to_device(part, self.device) for part in (in_order, permutation.argsort(axis=1), real))
        first, last = dict[int, int](), dict[int, int]()  # first and last batch that reads each shard
        for batch, row in enumerate(shards):
            for shard in np.unique(row).tolist():
                first.setdefault(shard, batch)
                last[shard] = batch
        loaded: dict[int, Future[_DeviceCopy]] = {}
        ahead, self._ahead = self._ahead, None
        if ahead and ahead[0] == number and ahead[1] in first and not ahead[2].cancelled():
            loaded[ahead[1]] = ahead[2]
        # Scoring reads in order, so only a shuffled epoch reads ahead for the next one.
        next_shard = int(self.order.indices(number + 1)[0][0, 0]) // self._shard if self.order.shuffle else None
        try:
            for batch, row_shards in enumerate(names):
                loaded = {shard: future for shard, future in loaded.items() if last[shard] >= batch}
                for shard in first:  # in order of use
                    if shard not in loaded and (first[shard] == batch or (first[shard] > batch and len(loaded) < 2)):
                        loaded[shard] = self._submit(shard)
                all_loaded = self._ahead is None and all(first[shard] <= batch or shard in loaded for shard in first)
                if next_shard is not None and all_loaded and (next_shard in loaded or len(loaded) < 2):
                    read = loaded.get(next_shard) or self._submit(next_shard)
                    self._ahead = number + 1, next_shard, read
                used = {shard: loaded[shard].result().ready() for shard in np.unique(row_shards).tolist()}
                example = gather(used, row_shards, starts[batch], back[batch] if reordered[batch] else None)
                yield _mask_padding(example, bool(real[batch].all()), kept[batch])
        finally:
            for waiting in loaded.values():
                waiting.cancel()

    def _submit(self, shard: int) -> Future[_DeviceCopy]:
        """Read a shard in the thread, whose messages are written for the door of the caller."""
        context = copy_context()
        return self._pool.submit(lambda: context.run(self._read, shard))

    def _read(self, shard: int) -> _DeviceCopy:
        """Read the windows of a shard, by number in file order, and start the copy to the device."""
        began = time.perf_counter()
        starts = self.starts[shard * self._shard : (shard + 1) * self._shard]
        start, end = int(starts[0]), int(starts[-1]) + self._length
        series = self._make_series(slice(start - start % PAGE_ROWS, end))
        self.making_s.append(time.perf_counter() - began)
        if self._stream is None:
            return _DeviceCopy(series)
        with torch.cuda.stream(self._stream):
            return _DeviceCopy(series.to(self.device), self._stream.record_event())


@dataclass
class _DeviceCopy:
    """Series on its device, with the event that marks the end of the copy."""

    series: Series
    event: torch.cuda.Event | None = None

    def ready(self) -> Series:
        """Return the series, safe to use in the current stream."""
        if self.event is not None:
            current = torch.cuda.current_stream(self.series.device)
            current.wait_event(self.event)
            for tensor in self.series.tensors():
                tensor.record_stream(current)
            self.event = None
        return self.series


def _to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device asynchronously, through pinned memory."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def sort_by_series(names: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort series numbers int64 [...,B] stably for ``gather`` -> sorted, permutation, bool [...]: any window moved."""
    order = names.argsort(axis=-1, kind="stable")
    return (np.take_along_axis(names, order, axis=-1), order, np.asarray((np.diff(order) < 0).any(axis=-1)))


def gather(series: Mapping[int, Series], names: np.ndarray, starts: Tensor, back: Tensor | None) -> TrainingBatch:
    """Gather windows with first rows ``starts`` int64 [B] from series; names int64 [B]: series number, ascending.

    starts, back int64 [B] are on the series' device. back: sorted position per window, ``None`` if already in order.
    """
    parts, first = [], 0
    for name, count in zip(*np.unique(names, return_counts=True), strict=True):
        rows = starts[first : first + count]
        parts.append(TrainingBatch(series[int(name)].window(rows), series[int(name)].target(rows)))
        first += count

    def join(tensors: tuple[Tensor, ...]) -> Tensor:
        whole = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        return whole if back is None else whole.index_select(0, back)

    batches, targets = zip(*parts, strict=True)
    return TrainingBatch(Batch(*map(join, zip(*batches, strict=True))), Target(*map(join, zip(*targets, strict=True))))


def _mask_padding(example: TrainingBatch, full: bool, kept: Tensor) -> TrainingBatch:
    """Mark targets of padding windows invalid; full: free from padding. kept [B] on the device is 0 for padding."""
    if full:
        return example
    valid = example.target.valid & kept.bool()[:, None, None, None]
    return TrainingBatch(example.batch, example.target._replace(valid=valid))


class WorkerLoader(Loader):
    """Batches built by worker processes from file pages; each worker caches recent pages."""

    def __init__(
        self, make_series: MakeSeries, length: int, device: torch.device, settings: LoaderSettings, order: WindowOrder
    ) -> None:
        """make_series: builds a series from file rows. length: rows per window."""
        super().__init__(order)
        spare = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)) - 1  # of this rank
        self.workers = max(1, min(MOST_WORKERS, spare)) if settings.num_workers is None else settings.num_workers
        self.made_ahead = self.workers * settings.prefetch_factor  # batches, upper bound
        self._line: list[tuple[np.ndarray, np.ndarray]] = []  # starts and real per batch in the current epoch
        options: dict[str, object] = {}
        if self.workers:
            options = {"prefetch_factor": settings.prefetch_factor, "persistent_workers": True, "timeout": TIMEOUT_S}
        self._loader: DataLoader[tuple[TrainingBatch, float] | SocialxError] = DataLoader(
            _Pages(make_series, length, 2 * shard_bytes(settings, HOST)),
            batch_size=None,
            sampler=self._line,
            num_workers=self.workers,
            collate_fn=_identity,
            pin_memory=settings.pin_memory and device.type == "cuda",
            # A generator of its own keeps the dropout draws independent from the number of loaders.
            generator=torch.Generator(),
            **options,  # type: ignore[arg-type]
        )

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        """Yield each window once, from ``first_batch`` on. Raises SocialxError if a worker fails."""
        indices, real = (part[first_batch:] for part in self.order.indices(number))
        self._line[:] = list(zip(self.starts[indices], real, strict=True))
        try:
            for answer in self._loader:
                if isinstance(answer, SocialxError):
                    raise answer
                example, seconds = answer
                self.making_s.append(seconds)
                yield example
        except RuntimeError as error:  # torch reports a dead or silent worker
            remedy = f"lower {Argument('loader.num_workers')}, or use {Argument('loader.mode', 'sharded')}"
            raise SocialxError("loader.fails", "", f"loading with workers failed ({in_short(error)})", remedy) from None


def shard_bytes(settings: LoaderSettings, device: torch.device) -> int:
    """Return the shard size in bytes: as set, or an eighth of the free memory, at most 128 MiB on a CPU."""
    if settings.shard_gb is not None:
        return int(settings.shard_gb * GIB)
    free = free_bytes(device)
    share = SHARD_ON_CPU if free is None else int(SHARD_SHARE * free)
    return min(share, SHARD_ON_CPU) if device.type == "cpu" else share


class _Pages(Dataset[tuple[TrainingBatch, float] | SocialxError]):
    """Dataset that builds whole batches, with seconds per batch; pages are read in the worker process."""

    def __init__(self, make_series: MakeSeries, length: int, most_bytes: int) -> None:
        """most_bytes: of the pages that the worker keeps."""
        self._make_series, self._length, self._most_bytes = make_series, length, most_bytes
        self._spell = SPELL.get()  # a spawned worker would not know the door
        self._pages: OrderedDict[int, Series] = OrderedDict()  # least recently used first

    def __getitem__(self, batch: tuple[np.ndarray, np.ndarray]) -> tuple[TrainingBatch, float] | SocialxError:
        began = time.perf_counter()
        starts, real = batch
        pages = starts // PAGE_ROWS
        try:
            names, permutation, reordered = sort_by_series(pages)
            with spelling(self._spell):
                series = {page: self._page(page) for page in np.unique(pages).tolist()}
            back = torch.from_numpy(permutation.argsort()) if reordered else None
            example = gather(series, names, torch.from_numpy(starts[permutation]), back)
            return _mask_padding(example, bool(real.all()), torch.from_numpy(real)), time.perf_counter() - began
        except SocialxError as error:  # torch would turn the error into text
            return error

    def _page(self, page: int) -> Series:
        """Return the series for windows that start in page number ``page`` (PAGE_ROWS rows); recent pages are kept."""
        if page not in self._pages:
            self._pages[page] = self._make_series(slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS + self._length - 1))
        self._pages.move_to_end(page)
        used_bytes = sum(tensor.nbytes for series in self._pages.values() for tensor in series.tensors())
        while used_bytes > self._most_bytes and len(self._pages) > 1:
            _, gone = self._pages.popitem(last=False)
            used_bytes -= sum(tensor.nbytes for tensor in gone.tensors())
        return self._pages[page]


def _identity(example: Any) -> Any:
    return example


def series_bytes(rows: int, sensors: int, columns: int) -> int:
    """Return the bytes that a series takes on the device. columns: features, and target climatologies."""
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
