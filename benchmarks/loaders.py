"""The host cost of a batch in every mode and in the schemes of others, and what reading in chunks costs.

    OMP_NUM_THREADS=1 python benchmarks/loaders.py [--rounds 5] [--folder DIR]

Batches have 64 windows of 12 + 12 steps.  ``per sample`` is torch's DataLoader over a dataset that cuts one window at a
time from tensors in memory, and ``materialised`` a TensorDataset that holds every window: both give the same batches as
ours, which is checked.  ``3 channels`` is the published scheme: NumPy slices of [T,N,3], with the time of day and the
weekday repeated for every sensor.  None has workers: what is compared is the work itself.  ``chunk`` reads from memory
here.  Medians of interleaved rounds in one process, on one thread.

The second table trains on nothing: a matrix product runs between two batches, for so many times as long as reading
takes.  An epoch in chunks of a file is compared with one of the resident series.  It takes longer because it waits for
a chunk, and because reading takes time and memory bandwidth from the other thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.large import make
from socialx.batch import Batch, Example, Target
from socialx.data.loaders import ChunkLoader, Loader, Loading, ResidentLoader
from socialx.data.order import Order
from socialx.data.series import Series
from socialx.data.source import Arrays
from socialx.dataset import open_dataset
from socialx.files import store

SENSORS = (207, 2000, 8600)
ROWS, HISTORY, HORIZON, WINDOWS = 400, 12, 12, 64
MOST_BYTES = 4 << 30  # a set of materialised windows that needs more is left out
CHUNK_BYTES = 16 << 20
CPU = torch.device("cpu")


class Cut(Dataset[tuple[Tensor, ...]]):
    """One window at a time, as tutorials do it: what a Batch and a Target hold."""

    def __init__(self, series: Series) -> None:
        self.series = series
        shape = (series.rows, *series.shape)
        self.values, self.valid = series.readings.view(shape), (series.ages == 0).view(shape)
        self.carried = series.window(torch.arange(len(self))).carried

    def __len__(self) -> int:
        return self.series.rows - HISTORY - HORIZON + 1

    def __getitem__(self, start: int) -> tuple[Tensor, ...]:
        now, end = start + HISTORY, start + HISTORY + HORIZON
        valid, dates = self.valid, self.series.calendar[start:end]
        past = (self.values[start:now], valid[start:now], self.values[now - 1], self.carried[start])
        return (*past, dates[:, 0], dates[:, 1], self.values[now:end], valid[now:end])


class Channels(Dataset[dict[str, np.ndarray]]):
    """One window at a time from values, time of day and weekday of every sensor."""

    def __init__(self, values: np.ndarray, seconds: np.ndarray) -> None:
        day, week = seconds / 86_400 % 1, (seconds // 86_400 + 3) % 7
        parts = [values[..., 0], *(np.broadcast_to(x[:, None], values.shape[:2]) for x in (day, week))]
        self.data = np.stack(parts, axis=-1).astype(np.float32)

    def __len__(self) -> int:
        return len(self.data) - HISTORY - HORIZON + 1

    def __getitem__(self, start: int) -> dict[str, np.ndarray]:
        now, end = start + HISTORY, start + HISTORY + HORIZON
        return {"inputs": self.data[start:now], "target": self.data[now:end]}


def example(parts: list[Tensor]) -> Example:
    return Example(Batch(*parts[: len(Batch._fields)]), Target(*parts[len(Batch._fields) :]))


def of(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[Example]:
    return (example(parts) for parts in loader)


def same(one: Example, other: Example) -> bool:
    pairs = zip((*one.batch, *one.target), (*other.batch, *other.target), strict=True)
    return all(torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0)) for a, b in pairs)


def milliseconds(batches: Iterable[Any]) -> float:
    """Of one batch, the mean over an epoch."""
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
    return 1e3 * (time.perf_counter() - began) / count


def host_cost(rounds: int) -> None:
    """The first table."""
    names = ("resident", "chunk", "per sample", "materialised", "3 channels")
    print(f"| sensors | {' | '.join(f'{name} ms' for name in names)} | resident / per sample | resident / 3 channels |")
    print(f"|---:|{'---:|' * (len(names) + 2)}")
    for sensors in SENSORS:
        random = np.random.default_rng(0)
        values = random.uniform(20, 70, (ROWS, sensors, 1)).astype(np.float32)
        valid = random.uniform(size=values.shape) < 0.95
        seconds = 1_330_560_000 + 300 * np.arange(ROWS)
        source = Arrays(values, valid, seconds)
        series = Series(source, HISTORY, HORIZON, CPU)
        cut, channels = Cut(series), Channels(values, seconds)
        starts = np.arange(len(cut))

        def whole(rows: slice, series: Series = series) -> Series:
            return series

        chunks = ChunkLoader(whole, HISTORY + HORIZON, CPU, Order(starts, WINDOWS, chunk=100))
        alike: dict[str, Callable[[], Iterator[Example]]] = {
            "resident": partial(ResidentLoader(series, Order(starts, WINDOWS)).epoch, 0),
            "chunk": partial(chunks.epoch, 0),
            "per sample": partial(of, DataLoader(cut, WINDOWS)),
        }
        if len(cut) * (HISTORY + HORIZON) * sensors * 5 < MOST_BYTES:
            parts = zip(*(cut[start] for start in range(len(cut))), strict=True)
            alike["materialised"] = partial(of, DataLoader(TensorDataset(*map(torch.stack, parts)), WINDOWS))
        first = next(alike["resident"]())
        assert all(same(first, next(loader())) for loader in alike.values()), "the loaders differ"
        loaders: dict[str, Callable[[], Iterator[Any]]] = dict(alike)
        loaders["3 channels"] = partial(iter, DataLoader(channels, WINDOWS))
        taken: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(rounds):
            for name, loader in loaders.items():
                taken[name].append(milliseconds(loader()))
        median = {name: statistics.median(each) for name, each in taken.items()}
        shown = [f"{median[name]:.1f}" if name in median else "-" for name in names]
        ratios = [f"{median['resident'] / median[name]:.2f}" for name in ("per sample", "3 channels")]
        print(f"| {sensors:,} | {' | '.join([*shown, *ratios])} |")


def exposed_wait(folder: Path, rounds: int) -> None:
    """The second table."""
    store.KEPT_BYTES = 0  # or a file of this size would be kept in memory
    path = folder / "20000x1000.h5"
    make(path, 20_000, 1000)
    options = {"targets": ["avg_speed"], "inputs": None, "history": HISTORY, "horizon": HORIZON, "device": CPU}
    loaders = {}
    for mode in ("resident", "chunk"):
        loading = Loading(mode, CHUNK_BYTES if mode == "chunk" else None)
        data = open_dataset(path, split="canonical", loading=loading, **options)  # type: ignore[arg-type]
        loaders[mode] = data.loader("train", WINDOWS, shuffle=True)
    plain = {mode: epochs(loader, 0, rounds) for mode, loader in loaders.items()}
    reading = plain["chunk"][0] - plain["resident"][0]
    batches = len(loaders["chunk"])
    print(f"\n{batches} batches of 1,000 sensors in chunks of {CHUNK_BYTES >> 20} MiB; reading takes {reading:.2f} s\n")
    print("| compute / reading | resident s | chunk s | longer | of it waiting for a chunk |")
    print("|---:|---:|---:|---:|---:|")
    for factor in (0.5, 1.0, 1.5, 3.0):
        (one, _), (other, waited) = (epochs(loader, factor * reading / batches, rounds) for loader in loaders.values())
        print(f"| {factor} | {one:.2f} | {other:.2f} | {(other - one) / other:.1%} | {waited / other:.1%} |")


def epochs(loader: Loader, compute_s: float, rounds: int) -> tuple[float, float]:
    """Seconds of an epoch with so many seconds of a matrix product after each batch, and of those in which it waited.

    Medians; the first epoch, which has nothing to do before its first chunk is read, is not counted.
    """
    taken, waited, matrix, plain = [], [], torch.ones(128, 128), Future.result
    for number in range(rounds + 1):
        began, blocked = time.perf_counter(), 0.0

        def timed(future: Future[Any], timeout: float | None = None) -> Any:
            nonlocal blocked
            asked = time.perf_counter()
            found = plain(future, timeout)
            blocked += time.perf_counter() - asked
            return found

        with patch.object(Future, "result", timed):
            for _ in loader.epoch(number):
                end = time.thread_time() + compute_s
                while time.thread_time() < end:
                    matrix @ matrix
        taken.append(time.perf_counter() - began)
        waited.append(blocked)
    return statistics.median(taken[1:]), statistics.median(waited[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where the file of the second table goes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"CPU capability {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}\n")
    host_cost(given.rounds)
    given.folder.mkdir(parents=True, exist_ok=True)
    exposed_wait(given.folder, given.rounds)


if __name__ == "__main__":
    main()
