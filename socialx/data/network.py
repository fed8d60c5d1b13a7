"""What a model must know of its data before it sees a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from socialx.data.normaliser import Moments, Normaliser


@dataclass(frozen=True)
class Network:
    """Sizes and moments of a network of N sensors: history T, horizon P, slots of a day, F inputs and G targets.

    usual: the climatology of the targets, float32 [3,slots,N,G], for a model that reads it.  read: the place of each
    target among the inputs, None where it is no input.
    """

    sensors: int
    history: int
    horizon: int
    slots: int
    inputs: tuple[Moments, ...]
    targets: tuple[Moments, ...]
    usual: np.ndarray | None = None
    read: tuple[int | None, ...] = ()

    def normaliser(self) -> Normaliser:
        """A normaliser of its inputs and targets."""
        return Normaliser(self.inputs, self.targets)
