"""Marks -> where the time went.  Pure functions over numbers; None is *not measured*, 0.0 is a measurement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

PHASES = {"fetch": "input", "copy": "transfer", "compute": "span", "done": "hooks"}  # a mark opens its phase


@dataclass(frozen=True)
class Partition:
    """Seconds per phase over the whole window, and per step.  The phases tile the window exactly."""

    seconds: dict[str, float]
    step_seconds: list[float]

    @property
    def wall(self) -> float:
        """The window: first fetch to the fetch after the last step."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Share of each phase of the window; they sum to 1."""
        return {phase: seconds / self.wall for phase, seconds in self.seconds.items()}


def partition(marks: Sequence[tuple[str, float]]) -> Partition:
    """Marks as (name, seconds) in order, from a fetch to a closing fetch -> Partition.

    Raises ValueError for fewer than one whole step, or marks that run backwards.
    """
    seconds = dict.fromkeys(PHASES.values(), 0.0)
    fetches = [at for name, at in marks if name == "fetch"]
    if len(fetches) < 2 or marks[0][0] != "fetch" or marks[-1][0] != "fetch":
        raise ValueError("marks must run from a fetch to a closing fetch, with a step between them")
    for (name, begin), (_, end) in itertools.pairwise(marks):
        if end < begin:
            raise ValueError(f"mark after {name} runs backwards: {begin} -> {end}")
        seconds[PHASES[name]] += end - begin
    steps = [end - begin for begin, end in itertools.pairwise(fetches)]
    return Partition(seconds, steps)


def quantile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics, as numpy's default; values must not be empty."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation: deviation over mean."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)) / mean if mean else 0.0
