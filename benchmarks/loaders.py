"""The host cost of a batch in every mode and in the schemes of others.

    OMP_NUM_THREADS=1 python benchmarks/loaders.py [--rounds 5]

Batches have 64 windows of 12 + 12 steps.  ``per sample`` is torch's DataLoader over a dataset that cuts one window at a
time from tensors in memory, and ``materialised`` a TensorDataset that holds every window: both give the same batches as
ours, which is checked.  ``3 channels`` is the published scheme: NumPy slices of [T,N,3], with the time of day and the
weekday repeated for every sensor.  None has workers: what is compared is the work itself.  ``chunk`` reads from memory
here.  Medians of interleaved rounds in one process, on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.common import head, in_turns, line, machine, median_ms, parser
from socialx.batch import Batch, Example, Target
from socialx.data.loaders import ChunkLoader, ResidentLoader
from socialx.data.order import Order
from socialx.data.series import Series
from socialx.data.source import Arrays

SENSORS = (207, 2000, 8600)
ROWS, HISTORY, HORIZON, WINDOWS = 400, 12, 12, 64
MOST_BYTES = 4 << 30  # a set of materialised windows that needs more is left out
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


def epoch(batches: Callable[[], Iterable[Any]]) -> int:
    """Make all batches of an epoch, and count them."""
    return sum(1 for _ in batches())


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    print(machine())
    names = ("resident", "chunk", "per sample", "materialised", "3 channels")
    print(head("sensors", *(f"{name} ms" for name in names), "resident / per sample", "resident / 3 channels"))
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
        spent, batches = in_turns({name: partial(epoch, loader) for name, loader in loaders.items()}, given.rounds)
        median = {name: ms / batches[name] for name, ms in median_ms(spent).items()}
        shown = [f"{median[name]:.1f}" if name in median else "-" for name in names]
        ratios = [f"{median['resident'] / median[name]:.2f}" for name in ("per sample", "3 channels")]
        print(line([f"{sensors:,}", *shown, *ratios]), flush=True)


if __name__ == "__main__":
    main()
