"""A watch over memory that grows from epoch to epoch: sooner or later it ends a training."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import torch

from socialx.environment import MIB, used_bytes
from socialx.errors import Message
from socialx.progress import note

LEAST_EPOCHS = 5
WARM_UP = 1  # epochs whose memory is not compared: buffers and caches are made in them
LARGE = 100 * MIB


def growth(used: Sequence[float]) -> float:
    """Bytes an epoch: the median of the slopes between all pairs (Theil-Sen), which a few odd values do not move."""
    pairs = itertools.combinations(enumerate(used), 2)
    return statistics.median((later - earlier) / (j - i) for (i, earlier), (j, later) in pairs)


class MemoryWatch:
    """Says once where the memory at the ends of epochs has grown by more than 100 MiB."""

    def __init__(self) -> None:
        self._used: list[float] = []
        self._said = False

    def add(self, device: torch.device) -> None:
        """An epoch has ended."""
        self._used.append(used_bytes(device))
        used = self._used[WARM_UP:]
        if self._said or len(used) < LEAST_EPOCHS:
            return
        each = growth(used)
        if each * (len(used) - 1) > LARGE:
            self._said = True
            whose = f"tensors on {device}" if device.type == "cuda" else "the process"
            total = each * (len(used) - 1)
            found = f"{whose} grew by {total / MIB:.0f} MiB in {len(used)} epochs, {each / MIB:.0f} MiB in each"
            note(Message("memory", found, "something keeps what it no longer needs"))
