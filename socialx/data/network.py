"""What a model must know of its data before it sees a batch."""

from __future__ import annotations

from dataclasses import dataclass

from socialx.data.normaliser import Moments, Normaliser


@dataclass(frozen=True)
class Network:
    """Sizes and moments of a network of N sensors: history T, horizon P, slots of a day, F inputs and G targets."""

    sensors: int
    history: int
    horizon: int
    slots: int
    inputs: tuple[Moments, ...]
    targets: tuple[Moments, ...]

    def normaliser(self) -> Normaliser:
        """A normaliser of its inputs and targets."""
        return Normaliser(self.inputs, self.targets)
