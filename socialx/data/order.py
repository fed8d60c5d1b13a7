"""Which windows an epoch serves, and when: a function of seed and epoch alone, whatever loads them."""

# Shape letters: W windows, B windows of a batch, R processes

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Share:
    """Which of several processes this is: each takes its own windows of every batch."""

    rank: int = 0
    ranks: int = 1


ALONE = Share()


@dataclass(frozen=True)
class Order:
    """The order of ``windows`` windows in batches of ``batch_size`` for each process.

    chunk: windows of a chunk.  The order serves one chunk after the other, so that only one or two of them must be in
    memory; 0: all windows are one chunk.  A batch may hold windows of two chunks.
    """

    windows: int
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    chunk: int = 0
    share: Share = ALONE

    def __len__(self) -> int:
        """Batches of each process in an epoch."""
        return -(-self.windows // (self.batch_size * self.share.ranks))

    def places(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The windows of each batch of this process: places int64 and real bool [len,B].

        Over all processes every window is real once.  The last one is repeated, not real, to fill the last batch.
        """
        order = self._order(epoch)
        padding = len(self) * self.share.ranks * self.batch_size - self.windows
        order = np.concatenate([order, np.repeat(order[-1:], padding)])
        real = np.arange(len(order)) < self.windows
        shape = (len(self), self.share.ranks, self.batch_size)
        return order.reshape(shape)[:, self.share.rank], real.reshape(shape)[:, self.share.rank]

    def _order(self, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.windows)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)

        def drawn(size: int) -> np.ndarray:
            return torch.randperm(size, generator=generator).numpy()

        if not 0 < self.chunk < self.windows:
            return drawn(self.windows)
        firsts = np.arange(0, self.windows, self.chunk)
        firsts = firsts[drawn(len(firsts))]
        return np.concatenate([first + drawn(min(self.chunk, self.windows - first)) for first in firsts])
