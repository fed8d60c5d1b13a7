"""Two ways of doing the same, timed in turns: how many times as fast the second one is, with an interval.

Blocks come in the order A B B A A B B A ...: what drifts slowly, such as a clock or a neighbour's work, is in both.
Neighbouring blocks make a pair, and the mean of the logarithms of their ratios has Student's t distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

WORTH = 1.05  # times as fast, from which on a gain is worth a change
# Student's t: the 99.5th percentile for 1, 2, 3, ... degrees of freedom, so that the interval holds 99 %.
T_99 = (63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947)


@dataclass(frozen=True)
class Gain:
    """How many times as fast, with its 99 % interval."""

    gain: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the interval leaves 1 out."""
        return self.low > 1 or self.high < 1

    def within(self, times: float) -> bool:
        """Whether both ways are equally fast, up to so many times."""
        return 1 / times <= self.low and self.high <= times

    @property
    def decided(self) -> bool:
        """Whether one way is faster by what is worth a change, or neither is."""
        return self.low >= WORTH or self.high <= 1 / WORTH or self.within(WORTH)

    def __str__(self) -> str:
        if not self.differs and not self.within(1.25):
            return f"not decided, from {self.low:.2f}x to {self.high:.2f}x as fast"
        if not self.differs:
            return f"no difference larger than {100 * (max(self.high, 1 / self.low) - 1):.1f} %"
        if self.gain >= 1:
            return f"{self.gain:.2f}x as fast ({self.low:.2f} to {self.high:.2f})"
        return f"{1 / self.gain:.2f}x as slow ({1 / self.high:.2f} to {1 / self.low:.2f})"


def gain(before: Sequence[float], after: Sequence[float]) -> Gain:
    """Seconds of equal work in paired blocks -> how many times as fast the second way is."""
    return gain_of(np.log(before) - np.log(after))


def gain_of(logs: Sequence[float] | np.ndarray) -> Gain:
    """Logarithms of gains that do not depend on each other -> the mean gain and its interval."""
    gains = np.asarray(logs)
    mean, error = float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(len(gains))
    reach = T_99[len(gains) - 2] * error
    return Gain(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def in_turns(
    first: Callable[[], float],
    second: Callable[[], float],
    pairs: int,
    enough: Callable[[Sequence[float], Sequence[float]], bool] = lambda *_: False,
) -> Gain:
    """Run both ways in turns; each call takes one block and returns its seconds per unit of work.

    enough: whether these blocks are enough; asked after each pair.
    """
    before, after = list[float](), list[float]()
    for pair in range(pairs):
        if pair % 2:
            after.append(second())
            before.append(first())
        else:
            before.append(first())
            after.append(second())
        if enough(before, after):
            break
    return gain(before, after)
