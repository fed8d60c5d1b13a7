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


@dataclass(frozen=True, eq=False)
class Order:
    """The windows of one part, and the order in which an epoch serves them, in batches for each process.

    starts: the first row of each window, int64 [W], ascending.  batch_size: windows of a batch; the last is padded.
    chunk: windows of a chunk.  The order serves one chunk after the other, so that only one or two of them must be in
    memory; 0: all windows are one chunk.  A batch may hold windows of two chunks.
    """

    starts: np.ndarray
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    chunk: int = 0
    share: Share = ALONE

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

            if 0 < self.chunk < windows:
                firsts = np.arange(0, windows, self.chunk)
                firsts = firsts[drawn(len(firsts))]
                order = np.concatenate([first + drawn(min(self.chunk, windows - first)) for first in firsts])
            else:
                order = drawn(windows)
        padding = len(self) * self.share.ranks * self.batch_size - windows
        order = np.concatenate([order, np.repeat(order[-1:], padding)])
        real = np.arange(len(order)) < windows
        shape = (len(self), self.share.ranks, self.batch_size)
        return order.reshape(shape)[:, self.share.rank], real.reshape(shape)[:, self.share.rank]
