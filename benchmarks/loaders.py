"""The host cost of a batch of a series on the device, and in the schemes of others.

    OMP_NUM_THREADS=1 python benchmarks/loaders.py [--rounds 5]

Batches have 64 windows of 12 + 12 steps.  ``per sample`` is torch's DataLoader over a dataset that cuts one window at a
time from tensors in memory, which gives the same batches as ours; that is checked.  ``3 channels`` is the published
scheme: NumPy slices of [T,N,3], with the time of day and the weekday repeated for every sensor.  None has workers: what
is compared is the work itself.  Medians of interleaved rounds in one process, on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.common import head, interleaved_ab, line, machine, median_ms, parser
from socialx.core.batch import Batch, Target, TrainingBatch
from socialx.data.series import Series, WindowLayout
from socialx.data.source import Arrays
from socialx.dataset.loaders import DeviceLoader, WindowOrder

SENSORS = (207, 2000, 8600)
ROWS, LOOKBACK, HORIZON, WINDOWS = 400, 12, 12, 64


class Cut(Dataset[tuple[Tensor, ...]]):
    """One window at a time, as tutorials do it: what a Batch and a Target hold."""

    def __init__(self, series: Series) -> None:
        self.series = series
        shape = (series.rows, *series.shape)
        self.values, self.valid = series.readings.view(shape), (series.ages == 0).view(shape)
        windows = series.window(torch.arange(len(self)))
        self.last_observed, self.origin = windows.last_observed, windows.origin

    def __len__(self) -> int:
        return self.series.rows - LOOKBACK - HORIZON + 1

    def __getitem__(self, start: int) -> tuple[Tensor, ...]:
        now, end = start + LOOKBACK, start + LOOKBACK + HORIZON
        valid, dates = self.valid, self.series.calendar[start:end]
        past = (self.values[start:now], valid[start:now], self.values[now - 1], self.last_observed[start])
        return (*past, dates[:, 0], dates[:, 1], self.origin[start], self.values[now:end], valid[now:end])


class Channels(Dataset[dict[str, np.ndarray]]):
    """One window at a time from values, time of day and weekday of every sensor."""

    def __init__(self, values: np.ndarray, seconds: np.ndarray) -> None:
        day, week = seconds / 86_400 % 1, (seconds // 86_400 + 3) % 7
        parts = [values[..., 0], *(np.broadcast_to(x[:, None], values.shape[:2]) for x in (day, week))]
        self.data = np.stack(parts, axis=-1).astype(np.float32)

    def __len__(self) -> int:
        return len(self.data) - LOOKBACK - HORIZON + 1

    def __getitem__(self, start: int) -> dict[str, np.ndarray]:
        now, end = start + LOOKBACK, start + LOOKBACK + HORIZON
        return {"inputs": self.data[start:now], "target": self.data[now:end]}


def example(parts: list[Tensor]) -> TrainingBatch:
    """What a batch of ``Cut`` holds; there is nothing usual and nothing taught."""
    *past, origin, values, valid = parts
    climatology = torch.empty(len(values), LOOKBACK + HORIZON, values.shape[2], 0)
    target = Target(values, valid, climatology[:, LOOKBACK:].half())
    return TrainingBatch(Batch(*past, climatology, climatology, origin), target)


def same(one: TrainingBatch, other: TrainingBatch) -> bool:
    """Whether all numbers are equal."""
    pairs = zip((*one.batch, *one.target), (*other.batch, *other.target), strict=True)
    return all(torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0)) for a, b in pairs)


def main() -> None:
    given = parser(__doc__, rounds=5).parse_args()
    torch.set_num_threads(1)
    print(machine())
    columns = ("on_device ms", "per sample ms", "3 channels ms", "on_device / per sample", "on_device / 3 channels")
    print(head("sensors", *columns))
    for sensors in SENSORS:
        random = np.random.default_rng(0)
        values = random.uniform(20, 70, (ROWS, sensors, 1)).astype(np.float32)
        valid = random.uniform(size=values.shape) < 0.95
        seconds = 1_330_560_000 + 300 * np.arange(ROWS)
        series = Series(Arrays(values, valid, seconds), WindowLayout(LOOKBACK, HORIZON), torch.device("cpu"))
        cut, channels = DataLoader(Cut(series), WINDOWS), DataLoader(Channels(values, seconds), WINDOWS)
        on_device = DeviceLoader(series, WindowOrder(np.arange(len(channels.dataset)), WINDOWS))
        assert same(next(on_device.epoch(0)), example(next(iter(cut)))), "the loaders differ"
        loaders: dict[str, Callable[[], Iterable[Any]]] = {
            "on_device": partial(on_device.epoch, 0),
            "per sample": lambda cut=cut: map(example, cut),
            "3 channels": partial(iter, channels),
        }
        ways = {name: lambda epoch=epoch: sum(1 for _ in epoch()) for name, epoch in loaders.items()}
        spent, batches = interleaved_ab(ways, given.rounds)  # how many each makes
        ms = {name: spent_ms / batches[name] for name, spent_ms in median_ms(spent).items()}
        ratios = [f"{ms['on_device'] / ms[name]:.2f}" for name in ("per sample", "3 channels")]
        print(line([f"{sensors:,}", *(f"{each:.1f}" for each in ms.values()), *ratios]), flush=True)


if __name__ == "__main__":
    main()
