"""The host cost of a batch: a resident series against loaders that handle one window at a time, on one CPU thread.

    OMP_NUM_THREADS=1 python benchmarks/loaders.py [--rounds 5]

All loaders give the same batches of 64 windows of 12 + 12 steps, which is checked.  ``per sample`` is torch's
DataLoader over a dataset that cuts one window at a time from arrays in memory; ``materialised`` is a TensorDataset that
holds every window.  Neither has workers: what is compared is the work itself.  Medians of interleaved rounds in one
process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from socialx.batch import Batch, Example, Target
from socialx.data.loaders import ResidentLoader
from socialx.data.series import Series, carry_forward
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
        self.carried = torch.from_numpy(carry_forward(self.values.numpy(), self.valid.numpy()))

    def __len__(self) -> int:
        return self.series.rows - HISTORY - HORIZON + 1

    def __getitem__(self, start: int) -> tuple[Tensor, ...]:
        now, end = start + HISTORY, start + HISTORY + HORIZON
        valid, dates = self.valid, self.series.calendar[start:end]
        past = (self.values[start:now], valid[start:now], self.values[now - 1], self.carried[now - 1])
        return (*past, dates[:, 0], dates[:, 1], self.values[now:end], valid[now:end])


def example(parts: list[Tensor]) -> Example:
    return Example(Batch(*parts[:6]), Target(*parts[6:]))


def of(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[Example]:
    return (example(parts) for parts in loader)


def same(one: Example, other: Example) -> bool:
    pairs = zip((*one.batch, *one.target), (*other.batch, *other.target), strict=True)
    return all(torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0)) for a, b in pairs)


def milliseconds(batches: Iterator[Example]) -> float:
    """Of one batch, the mean over an epoch."""
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
    return 1e3 * (time.perf_counter() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"CPU capability {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}\n")
    print("| sensors | bytes a reading | resident ms | per sample ms | materialised ms | resident / per sample |")
    print("|---:|---:|---:|---:|---:|---:|")
    for sensors in SENSORS:
        random = np.random.default_rng(0)
        values = random.uniform(20, 70, (ROWS, sensors, 1)).astype(np.float32)
        valid = random.uniform(size=values.shape) < 0.95
        seconds = 1_330_560_000 + 300 * np.arange(ROWS)
        series = Series(Arrays(values, valid, seconds), HISTORY, HORIZON, CPU)
        cut = Cut(series)
        loaders = {
            "resident": lambda series=series, cut=cut: ResidentLoader(series, np.arange(len(cut)), WINDOWS).epoch(0),
            "per sample": lambda cut=cut: of(DataLoader(cut, WINDOWS)),
        }
        if len(cut) * (HISTORY + HORIZON) * sensors * 5 < MOST_BYTES:
            whole = TensorDataset(
                *(torch.stack(parts) for parts in zip(*(cut[start] for start in range(len(cut))), strict=True))
            )
            loaders["materialised"] = lambda whole=whole: of(DataLoader(whole, WINDOWS))
        first = next(loaders["resident"]())
        assert all(same(first, next(loader())) for loader in loaders.values()), "the loaders differ"
        taken: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(rounds):
            for name, loader in loaders.items():
                taken[name].append(milliseconds(loader()))
        median = {name: statistics.median(each) for name, each in taken.items()}
        size = sum(table.nbytes for table in (series.readings, series.ages, series.latest)) / values.size
        columns = ("resident", "per sample", "materialised")
        shown = [f"{median[name]:.1f}" if name in median else "-" for name in columns]
        print(f"| {sensors:,} | {size:.1f} | {' | '.join(shown)} | {median['resident'] / median['per sample']:.2f} |")


if __name__ == "__main__":
    main()
