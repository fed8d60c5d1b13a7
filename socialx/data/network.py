"""What a model must know of its data before it sees a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from socialx.data.geo import Neighbours
from socialx.data.normaliser import Moments, Normaliser


@dataclass(frozen=True)
class Network:
    """Sizes and moments of a network of N sensors: history T, horizon P, slots of a day, F inputs and G targets.

    read: the place of each target among the inputs, None where it is no input.  find_neighbours: a function that
    returns ``neighbours``.
    """

    sensors: int
    history: int
    horizon: int
    slots: int
    inputs: tuple[Moments, ...]
    targets: tuple[Moments, ...]
    read: tuple[int | None, ...] = ()
    find_neighbours: Callable[[], Neighbours] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def neighbours(self) -> Neighbours:
        """The neighbours of every sensor, by the settings of the section pooling; found when they are first asked for.

        Raises ValueError for a network that was made without positions or roads, and SocialxError where the file has
        sensors without a position and ``pooling.strict`` is on.
        """
        if self.find_neighbours is None:
            raise ValueError("the neighbours of this network are not known")
        return self.find_neighbours()

    def normaliser(self) -> Normaliser:
        """A normaliser of its inputs and targets."""
        return Normaliser(self.inputs, self.targets)
