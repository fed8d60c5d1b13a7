"""Windows -> batches on the device, in three ways that serve the same batches.

``DeviceLoader`` keeps the whole series on the device (5 bytes a reading: METR-LA 35 MB) and gathers
rows: no Python per window, no copy per step, no worker.  ``ShardLoader`` keeps a part of the series there and reads the
next one in a thread meanwhile.  ``WorkerLoader`` has processes that make batches from pages of the file.  Which windows
an epoch serves, and when, is a function of seed and epoch alone: ``WindowOrder``.
"""

# Shape letters: W windows, B windows of a batch

from __future__ import annotations

import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from socialx.core.batch import Batch, Target, TrainingBatch
from socialx.core.environment import usable_cores
from socialx.core.errors import Argument, SocialxError, in_short
from socialx.data.series import Series
from socialx.data.source import PAGE_ROWS

SeriesOf = Callable[[slice], Series]  # rows, the first of them that of a page -> their series
MOST_WORKERS = 8
TIMEOUT_S = 120  # of waiting for a batch of a worker
READING_BYTES = 5  # of a series, and of what is usual then


@dataclass(frozen=True)
class RankShare:
    """Which of several processes this is: each takes its own windows of every batch."""

    rank: int = 0
    ranks: int = 1


WHOLE = RankShare()


@dataclass(frozen=True, eq=False)
class WindowOrder:
    """The windows of one part, and the order in which an epoch serves them, in batches for each process.

    starts: the first row of each window, int64 [W], ascending.  batch_size: windows of a batch; the last is padded.
    shard: windows of a shard.  The order serves one shard after the other, so that only one or two of them must be in
    memory; 0: all windows are one shard.  A batch may hold windows of two shards.
    """

    starts: np.ndarray
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    shard: int = 0
    share: RankShare = WHOLE

    def __len__(self) -> int:
        """Batches of each process in an epoch."""
        return -(-len(self.starts) // (self.batch_size * self.share.ranks))

    def places(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The windows of each batch of this process: places int64 and real bool [len,B].

        Every window is counted as real exactly once over all processes.  The last window is repeated, and not real, to
        fill the last batch.
        """
        windows = len(self.starts)
        order = np.arange(windows)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)

            def drawn(size: int) -> np.ndarray:
                return torch.randperm(size, generator=generator).numpy()

            if 0 < self.shard < windows:
                firsts = np.arange(0, windows, self.shard)
                firsts = firsts[drawn(len(firsts))]
                order = np.concatenate([first + drawn(min(self.shard, windows - first)) for first in firsts])
            else:
                order = drawn(windows)
        padding = len(self) * self.share.ranks * self.batch_size - windows
        order = np.concatenate([order, np.repeat(order[-1:], padding)])
        real = np.arange(len(order)) < windows
        shape = (len(self), self.share.ranks, self.batch_size)
        return order.reshape(shape)[:, self.share.rank], real.reshape(shape)[:, self.share.rank]


class Loader:
    """What training and scoring need: the windows of a part in order, in batches that are no larger than the part.

    num_windows: of all processes together.  shard: windows of the shards of which the order is made; 0: all are one.
    making_s: seconds of what was made last beside the loop: of each batch by workers, of each shard by a thread.
    """

    def __init__(self, order: WindowOrder) -> None:
        self.starts, self.num_windows, self.shard = order.starts, len(order.starts), order.shard
        self.batch_size = min(order.batch_size, -(-self.num_windows // order.share.ranks))
        self.making_s: deque[float] = deque(maxlen=1000)
        self.order = replace(order, batch_size=self.batch_size)

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self.order)

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        """The batches of one epoch, from ``first_batch`` on; the order depends on the seed and the number alone."""
        raise NotImplementedError


@dataclass(frozen=True)
class Loading:
    """How windows become batches.

    mode: auto, on_device, sharded or workers.  shard_bytes: of a part of the series, None: chosen by the free memory.
    workers: processes, None: one less than there are CPUs, at most 8.  prefetch: batches that each makes ahead.
    """

    mode: str = "auto"
    shard_bytes: int | None = None
    workers: int | None = None
    prefetch: int = 2
    pin_memory: bool = True


@dataclass(frozen=True, eq=False)
class Selection:
    """An example that is not gathered yet: the first row of each window, and 1, or 0 where it pads the batch."""

    series: Series
    rows: Tensor  # int64 [2,B], on the device of the series
    full: bool  # no window is known to pad it

    def gathered(self) -> TrainingBatch:
        """The example."""
        starts, kept = self.rows
        return _masked(TrainingBatch(self.series.window(starts), self.series.target(starts)), self.full, kept)

    def to(self, device: torch.device) -> Selection | TrainingBatch:
        """The same on ``device``: as it is where the series is there, otherwise gathered."""
        return self if self.series.device == device else self.gathered().to(device)


class DeviceLoader(Loader):
    """Batches of one split, gathered from a series on the device."""

    def __init__(self, series: Series, order: WindowOrder) -> None:
        super().__init__(order)
        self.series = series

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        """Every window once."""
        for selection in self.selections(number, first_batch):
            yield selection.gathered()

    def selections(self, number: int, first_batch: int = 0) -> Iterator[Selection]:
        """The batches of ``epoch``, not gathered yet.  The order is copied to the device once an epoch."""
        places, real = (each[first_batch:] for each in self.order.places(number))
        rows = _sent(np.stack([self.starts[places], real], axis=1), self.series.device)
        for batch in range(len(real)):
            yield Selection(self.series, rows[batch], bool(real[batch].all()))


class ShardLoader(Loader):
    """The same batches from two shards of the series at a time: one in use, the next one read in a thread meanwhile."""

    def __init__(self, series_of: SeriesOf, length: int, device: torch.device, order: WindowOrder) -> None:
        """series_of: makes a series in the host's memory, pinned for a CUDA device.  length: rows of a window."""
        super().__init__(order)
        self.device = device
        self._series_of, self._length = series_of, length
        self._shard = order.shard or self.num_windows
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pool = ThreadPoolExecutor(1, "read shard")
        self._ahead: tuple[int, int, Future[_Moved]] | None = None  # the first shard of an epoch to come

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        """Every window once.  A shard is dropped when the last batch with windows of it was made.

        When all shards of a shuffled epoch are there, the first one of the next epoch is read.
        """
        places, real = (each[first_batch:] for each in self.order.places(number))
        shards = places // self._shard
        names, beside, moved = side_by_side(shards)
        in_order = np.take_along_axis(self.starts[places], beside, axis=1)
        starts, back, kept = (_sent(each, self.device) for each in (in_order, beside.argsort(axis=1), real))
        first, last = dict[int, int](), dict[int, int]()  # the batches with windows of each shard
        for batch, row in enumerate(shards):
            for shard in np.unique(row).tolist():
                first.setdefault(shard, batch)
                last[shard] = batch
        here: dict[int, Future[_Moved]] = {}
        ahead, self._ahead = self._ahead, None
        if ahead and ahead[0] == number and ahead[1] in first and not ahead[2].cancelled():
            here[ahead[1]] = ahead[2]
        # Scores are taken in the same order again, or once: nothing is read ahead for them.
        following = int(self.order.places(number + 1)[0][0, 0]) // self._shard if self.order.shuffle else None
        try:
            for batch, own in enumerate(names):
                here = {shard: each for shard, each in here.items() if last[shard] >= batch}
                for shard in first:  # in the order in which they are needed
                    if shard not in here and (first[shard] == batch or (first[shard] > batch and len(here) < 2)):
                        here[shard] = self._pool.submit(self._read, shard)
                all_here = self._ahead is None and all(first[shard] <= batch or shard in here for shard in first)
                if following is not None and all_here and (following in here or len(here) < 2):
                    read = here.get(following) or self._pool.submit(self._read, following)
                    self._ahead = number + 1, following, read
                used = {shard: here[shard].result().ready() for shard in np.unique(own).tolist()}
                example = gather(used, own, starts[batch], back[batch] if moved[batch] else None)
                yield _masked(example, bool(real[batch].all()), kept[batch])
        finally:
            for waiting in here.values():
                waiting.cancel()

    def _read(self, shard: int) -> _Moved:
        began = time.perf_counter()
        starts = self.starts[shard * self._shard : (shard + 1) * self._shard]
        start, end = int(starts[0]), int(starts[-1]) + self._length
        series = self._series_of(slice(start - start % PAGE_ROWS, end))
        self.making_s.append(time.perf_counter() - began)
        if self._stream is None:
            return _Moved(series)
        with torch.cuda.stream(self._stream):
            return _Moved(series.on(self.device), self._stream.record_event())


@dataclass
class _Moved:
    """A series on its device, and the event after which the copy has arrived."""

    series: Series
    event: torch.cuda.Event | None = None

    def ready(self) -> Series:
        """The series, for the stream that is current here."""
        if self.event is not None:
            current = torch.cuda.current_stream(self.series.device)
            current.wait_event(self.event)
            for tensor in self.series.tensors():
                tensor.record_stream(current)
            self.event = None
        return self.series


def _sent(array: np.ndarray, device: torch.device) -> Tensor:
    """An array on a device, which is not waited for: a copy of pageable memory would wait for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def side_by_side(names: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Put windows of one series next to each other; names int64 [...,B] of their series.

    Returns the names in that order, which windows they are, and whether a window moved, bool [...].
    """
    beside = names.argsort(axis=-1, kind="stable")
    return np.take_along_axis(names, beside, axis=-1), beside, np.asarray((np.diff(beside) < 0).any(axis=-1))


def gather(series: Mapping[int, Series], names: np.ndarray, starts: Tensor, back: Tensor | None) -> TrainingBatch:
    """The windows that begin at the rows ``starts`` int64 [B], from the series of their names int64 [B], ascending.

    starts and back int64 [B] are on the device of the series; back: the place of each window of the batch, None: they
    are in order.
    """
    parts, first = [], 0
    for name, count in zip(*np.unique(names, return_counts=True), strict=True):
        rows = starts[first : first + count]
        parts.append(TrainingBatch(series[int(name)].window(rows), series[int(name)].target(rows)))
        first += count

    def joined(tensors: tuple[Tensor, ...]) -> Tensor:
        whole = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        return whole if back is None else whole.index_select(0, back)

    batches, targets = zip(*parts, strict=True)
    return TrainingBatch(
        Batch(*map(joined, zip(*batches, strict=True))), Target(*map(joined, zip(*targets, strict=True)))
    )


def _masked(example: TrainingBatch, full: bool, kept: Tensor) -> TrainingBatch:
    """No target of the padding is valid; full: there is none.  kept [B] on the device is 0 where a window pads."""
    if full:
        return example
    valid = example.target.valid & kept.bool()[:, None, None, None]
    return TrainingBatch(example.batch, example.target._replace(valid=valid))


class WorkerLoader(Loader):
    """The same batches, made by worker processes from pages of the file; each keeps the pages that it used last."""

    def __init__(
        self,
        series_of: SeriesOf,
        length: int,
        device: torch.device,
        loading: Loading,
        page_bytes: int,
        order: WindowOrder,
    ) -> None:
        """series_of, length: as in ``ShardLoader``.  page_bytes: of the pages that each worker keeps."""
        super().__init__(order)
        self.workers = worker_count() if loading.workers is None else loading.workers
        self.made_ahead = self.workers * loading.prefetch  # batches, at most
        self._line: list[tuple[np.ndarray, np.ndarray]] = []  # starts and real of each batch of the epoch at hand
        options: dict[str, object] = {}
        if self.workers:
            options = {"prefetch_factor": loading.prefetch, "persistent_workers": True, "timeout": TIMEOUT_S}
        self._loader: DataLoader[tuple[TrainingBatch, float] | SocialxError] = DataLoader(
            _Pages(series_of, length, page_bytes),
            batch_size=None,
            sampler=self._line,
            num_workers=self.workers,
            collate_fn=_as_it_is,
            pin_memory=loading.pin_memory and device.type == "cuda",
            # The generator of the process draws dropout: it must not move with the number of loaders.
            generator=torch.Generator(),
            **options,  # type: ignore[arg-type]
        )

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        """Every window once."""
        places, real = (each[first_batch:] for each in self.order.places(number))
        self._line[:] = list(zip(self.starts[places], real, strict=True))
        try:
            for answer in self._loader:
                if isinstance(answer, SocialxError):
                    raise answer
                example, seconds = answer
                self.making_s.append(seconds)
                yield example
        except RuntimeError as error:  # torch's own words for a worker that died or did not answer
            remedy = f"fewer {Argument('loader.num_workers')}, or {Argument('loader.mode', 'sharded')}"
            raise SocialxError("loader.mode workers", in_short(error), remedy) from None


def worker_count() -> int:
    """One less than there are CPUs for this process and its workers, at least 1 and at most 8."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(1, min(MOST_WORKERS, usable_cores() // processes - 1))


class _Pages(Dataset[tuple[TrainingBatch, float] | SocialxError]):
    """Makes whole batches, with the seconds that each took; its pages are read in the process that asks for them."""

    def __init__(self, series_of: SeriesOf, length: int, most_bytes: int) -> None:
        self._series_of, self._length, self._most_bytes = series_of, length, most_bytes
        self._pages: OrderedDict[int, Series] = OrderedDict()  # the page that was used last is the last one

    def __getitem__(self, batch: tuple[np.ndarray, np.ndarray]) -> tuple[TrainingBatch, float] | SocialxError:
        began = time.perf_counter()
        starts, real = batch
        pages = starts // PAGE_ROWS
        try:
            names, beside, moved = side_by_side(pages)
            series = {page: self._page(page) for page in np.unique(pages).tolist()}
            back = torch.from_numpy(beside.argsort()) if moved else None
            example = gather(series, names, torch.from_numpy(starts[beside]), back)
            return _masked(example, bool(real.all()), torch.from_numpy(real)), time.perf_counter() - began
        except SocialxError as error:  # torch would make text of it
            return error

    def _page(self, page: int) -> Series:
        if page not in self._pages:
            self._pages[page] = self._series_of(slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS + self._length - 1))
        self._pages.move_to_end(page)
        held = sum(tensor.nbytes for each in self._pages.values() for tensor in each.tensors())
        while held > self._most_bytes and len(self._pages) > 1:
            _, gone = self._pages.popitem(last=False)
            held -= sum(tensor.nbytes for tensor in gone.tensors())
        return self._pages[page]


def _as_it_is(example: Any) -> Any:
    return example
