"""Windows -> batches on the device.

``ResidentLoader`` keeps the whole series on the device (5 bytes a reading: METR-LA 35 MB, PEMS-BAY 85 MB) and makes a
batch by gathering rows: no Python per sample, no copy per step, no worker.  The price: the series must fit there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from socialx.batch import Example, Target
from socialx.data.series import Series


class Loader(Protocol):
    """What training and scoring need of a loader."""

    num_windows: int

    def __len__(self) -> int:
        """Batches per epoch."""
        ...

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[Example]:
        """The batches of one epoch, from ``first_batch`` on; the order depends on the seed and the number alone."""
        ...


class ResidentLoader:
    """Batches of one part of the windows, gathered from a resident series."""

    def __init__(
        self,
        series: Series,
        starts: np.ndarray,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        """starts int64 [windows].  Every batch has min(batch_size, windows) windows; the last one is padded."""
        self.series = series
        self.starts = torch.from_numpy(np.ascontiguousarray(starts)).to(series.device)
        self.num_windows = len(starts)
        self.batch_size = min(batch_size, self.num_windows)
        self.shuffle, self.seed = shuffle, seed

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self.num_windows // self.batch_size)

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[Example]:
        """Every window once.  A shuffled order is a device permutation seeded by (seed, number)."""
        padding = len(self) * self.batch_size - self.num_windows
        order = torch.cat([self._order(number), torch.zeros(padding, dtype=torch.int64, device=self.series.device)])
        starts = self.starts.index_select(0, order)
        for batch in range(first_batch, len(self)):
            span = slice(batch * self.batch_size, (batch + 1) * self.batch_size)
            target = self.series.target(starts[span])
            if span.stop > self.num_windows:
                target = self._without_padding(target, padding)
            yield Example(self.series.window(starts[span]), target)

    def _order(self, number: int) -> Tensor:
        device = self.series.device
        if not self.shuffle:
            return torch.arange(self.num_windows, device=device)
        generator = torch.Generator(device).manual_seed(self.seed * 1_000_003 + number)
        return torch.randperm(self.num_windows, generator=generator, device=device)

    def _without_padding(self, target: Target, padding: int) -> Target:
        real = torch.arange(self.batch_size, device=self.series.device) < self.batch_size - padding
        return Target(target.values, target.valid & real[:, None, None, None])
