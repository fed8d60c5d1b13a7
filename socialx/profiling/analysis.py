"""Marks -> where the time went.  Pure functions over numbers; None is *not measured*, 0.0 is a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PHASES = {"fetch": "input", "copy": "transfer", "compute": "span", "done": "hooks"}  # a mark opens its phase
NAMES = tuple(PHASES)
OUTLIER = 3.5  # modified z-score, Iglewicz and Hoaglin 1993, "How to detect and handle outliers"


@dataclass(frozen=True, eq=False)
class Partition:
    """When each phase of each step began, and the four phases' seconds.  They tile the window exactly.

    at: seconds of the marks, float64 [marks].  kinds: the place of each mark's name in NAMES, int64 [marks].
    """

    at: np.ndarray
    kinds: np.ndarray

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per phase over the whole window."""
        return dict(zip(PHASES.values(), self.of_phases(np.diff(self.at)).tolist(), strict=True))

    @property
    def wall(self) -> float:
        """The window: first fetch to the fetch after the last step."""
        return float(self.at[-1] - self.at[0])

    @property
    def shares(self) -> dict[str, float]:
        """Share of each phase of the window; they sum to 1."""
        return {phase: seconds / self.wall for phase, seconds in self.seconds.items()}

    @property
    def step_seconds(self) -> np.ndarray:
        """Seconds from each fetch to the next, float64 [steps]."""
        return np.diff(self.at[self.kinds == 0])

    def of_phases(self, amounts: np.ndarray) -> np.ndarray:
        """What passed between marks, float64 [marks - 1], summed per phase, float64 [4]."""
        return np.bincount(self.kinds[:-1], amounts, minlength=len(NAMES))

    def waits(self) -> np.ndarray:
        """Seconds that each step waited for its input, float64 [steps]."""
        return np.diff(self.at)[self.kinds[:-1] == 0]

    def idle(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of the times without a copy or a training step: waits for input, and hooks."""
        place = np.flatnonzero((self.kinds[:-1] == NAMES.index("fetch")) | (self.kinds[:-1] == NAMES.index("done")))
        return self.at[place], self.at[place + 1]


def partition(marks: Sequence[tuple[str, float]]) -> Partition:
    """Marks as (name, seconds) in order, from a fetch to a closing fetch -> Partition.

    Raises ValueError for fewer than one whole step, or marks that run backwards.
    """
    kinds = np.array([NAMES.index(name) for name, _ in marks], np.int64)
    at = np.array([seconds for _, seconds in marks], np.float64)
    if (kinds == 0).sum() < 2 or kinds[0] or kinds[-1]:
        raise ValueError("marks must run from a fetch to a closing fetch, with a step between them")
    if (back := np.flatnonzero(np.diff(at) < 0)).size:
        first = back[0]
        raise ValueError(f"mark after {NAMES[kinds[first]]} runs backwards: {at[first]} -> {at[first + 1]}")
    return Partition(at, kinds)


def outliers(values: np.ndarray, most: int = 10) -> list[int]:
    """The places of values far above the others, by the modified z-score, the largest first."""
    deviation = np.abs(values - np.median(values))
    scale = np.median(deviation) / 0.6745 or np.mean(deviation) * 1.2533  # the mean where more than half are equal
    if not scale:
        return []
    place = np.flatnonzero((values - np.median(values)) / scale > OUTLIER)
    return place[np.argsort(-values[place], kind="stable")][:most].tolist()


def grouped(values: np.ndarray, most: int) -> tuple[int, list[float]]:
    """Means of neighbouring values, at most ``most`` of them -> how many values each one stands for, and the means."""
    size = -(-len(values) // most)
    means = [float(values[at : at + size].mean()) for at in range(0, len(values), size)]
    return size, means
