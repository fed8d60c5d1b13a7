"""Marks -> time by cause, and periodic stalls. All functions are pure."""

# Shape letters: n bins

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from socialx.profiling.sections import Fluctuation

PARTS = {"compute": "forward", "backward": "backward", "update": "optimizer"}  # of an eager training step, by mark
PHASES = {"fetch": "input", "copy": "transfer", **dict.fromkeys(PARTS, "span"), "done": "hooks"}  # which marks open
NAMES = tuple(PHASES)
OUTLIER = 3.5  # modified z-score, Iglewicz and Hoaglin 1993, "How to detect and handle outliers"
SWING_PP = 40.0  # p95 - p5 of a signal that is called periodic
STRENGTH = 0.55  # noise that wanders or comes in bursts reaches it in 2 of 100 windows
LEAST_PERIODS = 2.5  # in the window
LEAST_BINS = 2  # of a period
HOPS = 4  # samples of the busy share per bin, so that a period need not be a number of bins
BIN_S = 0.1
FINEST_BIN_S = 0.02
MOST_BINS = 20_000
ALIKE = 0.1  # two counts of steps that differ by less are one


@dataclass(frozen=True, eq=False)
class Partition:
    """The beginning of every phase in every step; the phases tile the window exactly.

    at float64 [marks]: seconds. kinds int64 [marks]: index into NAMES.
    """

    at: np.ndarray
    kinds: np.ndarray

    @property
    def seconds(self) -> dict[str, float]:
        """Return seconds per phase over the whole window."""
        return self.per_phase(np.diff(self.at))

    @property
    def wall(self) -> float:
        """Return the length of the window in seconds, from the first fetch to the fetch after the last step."""
        return float(self.at[-1] - self.at[0])

    @property
    def shares(self) -> dict[str, float]:
        """Return the share per phase of the window, with the sum 1."""
        return {phase: seconds / self.wall for phase, seconds in self.seconds.items()}

    @property
    def step_seconds(self) -> np.ndarray:
        """Return the seconds of each step, from fetch to fetch, float64 [steps]."""
        return np.diff(self.at[self.kinds == 0])

    @property
    def parts(self) -> dict[str, float]:
        """Return window shares for forward, backward and optimizer; empty for recorded steps."""
        by_mark = self._per_mark(np.diff(self.at) / self.wall)
        return {part: by_mark[name] for name, part in PARTS.items()} if by_mark["backward"] else {}

    def per_phase(self, amounts: np.ndarray) -> dict[str, float]:
        """Return ``amounts`` (one per stretch between marks, float64 [marks - 1]) summed per phase."""
        sums = dict.fromkeys(PHASES.values(), 0.0)
        for name, amount in self._per_mark(amounts).items():
            sums[PHASES[name]] += amount
        return sums

    def _per_mark(self, amounts: np.ndarray) -> dict[str, float]:
        return dict(zip(NAMES, np.bincount(self.kinds[:-1], amounts, minlength=len(NAMES)).tolist(), strict=True))

    def waits(self) -> np.ndarray:
        """Return seconds that each step waited for input, float64 [steps]."""
        return np.diff(self.at)[self.kinds[:-1] == 0]

    def idle(self) -> tuple[np.ndarray, np.ndarray]:
        """Return begins and ends (seconds) of all times without a copy or a training step: input waits and hooks."""
        index = np.flatnonzero((self.kinds[:-1] == NAMES.index("fetch")) | (self.kinds[:-1] == NAMES.index("done")))
        return self.at[index], self.at[index + 1]


def partition(marks: Sequence[tuple[str, float]]) -> Partition:
    """Return a Partition for marks (name, seconds), fetch to fetch.  Raises ValueError for disorder or no step."""
    kinds = np.array([NAMES.index(name) for name, _ in marks], np.int64)
    at = np.array([seconds for _, seconds in marks], np.float64)
    if (kinds == 0).sum() < 2 or kinds[0] or kinds[-1]:
        raise ValueError("marks must run from a fetch to a closing fetch, with a step between them")
    if (back := np.flatnonzero(np.diff(at) < 0)).size:
        first = back[0]
        raise ValueError(f"mark after {NAMES[kinds[first]]} runs backwards: {at[first]} -> {at[first + 1]}")
    return Partition(at, kinds)


def outliers(values: np.ndarray, most: int = 10) -> list[int]:
    """Return indices of at most ``most`` values far above the rest by the modified z-score, the largest value first."""
    deviation = np.abs(values - np.median(values))
    scale = np.median(deviation) / 0.6745 or np.mean(deviation) * 1.2533  # the mean where more than half are equal
    if not scale:
        return []
    index = np.flatnonzero((values - np.median(values)) / scale > OUTLIER)
    return index[np.argsort(-values[index], kind="stable")][:most].tolist()


def group_means(values: np.ndarray, most: int) -> tuple[int, list[float]]:
    """Return a group size and the mean of each group of neighbouring values [n], to draw at most ``most`` points."""
    size = -(-len(values) // most)
    means = [float(values[at : at + size].mean()) for at in range(0, len(values), size)]
    return size, means


def length_before(begin: np.ndarray, end: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Return, for each moment, how much earlier time the disjoint, ordered intervals from begin to end [n] cover."""
    if not len(begin):
        return np.zeros(moments.shape)
    whole = np.concatenate([[0.0], np.cumsum(end - begin)])
    index = np.searchsorted(begin, moments, side="right")  # of the first interval that begins later
    overshoot = np.maximum(end[np.maximum(index - 1, 0)] - moments, 0.0)
    return np.asarray(whole[index] - np.where(index > 0, overshoot, 0.0))


# Stalls that repeat


def fluctuation(parts: Partition, causes: Mapping[str, float]) -> Fluctuation:
    """Return the spread of the busy share (time in copies and steps), and a stall that repeats.

    causes: setting or phrase -> period in steps; the first within 10 % of the stall's period is named, else None.
    """
    bin_s = bin_seconds(parts)
    busy = np.convolve(busy_bins(parts, bin_s / HOPS), np.full(HOPS, 1 / HOPS), "valid")  # each sample is a whole bin
    low, high = (float(share) for share in np.quantile(busy, (0.05, 0.95)))
    swing = Fluctuation(bin_s, float(busy.mean()), low, high, 100 * (high - low))
    if swing.swing_pp < SWING_PP:
        return swing
    period, strength = find_period(busy, LEAST_BINS * HOPS)
    if period is None or strength < STRENGTH:
        return swing
    period_s = period * bin_s / HOPS
    steps = period_s * len(parts.step_seconds) / parts.wall
    cause = next((name for name, every in causes.items() if abs(steps / every - 1) <= ALIKE), None)
    return replace(swing, period_s=period_s, strength=strength, steps_per_period=steps, cause=cause)


def bin_seconds(parts: Partition) -> float:
    """Return a bin length in seconds: at least the median step, and at least 0.1 s (0.02 s in a window of seconds)."""
    step = float(np.median(parts.step_seconds))
    wanted = min(BIN_S, max(FINEST_BIN_S, parts.wall / 500))
    return min(parts.wall, max(step, wanted, parts.wall / MOST_BINS))


def busy_bins(parts: Partition, bin_s: float) -> np.ndarray:
    """Return the busy share (1 - idle share) of each whole bin of bin_s seconds in the window, float64 [n], n >= 1."""
    count = max(1, int(parts.wall / bin_s + 1e-9))
    edges = parts.at[0] + bin_s * np.arange(count + 1)
    idle = np.diff(length_before(*parts.idle(), edges))
    return 1 - np.clip(idle / bin_s, 0, 1)


def find_period(signal: np.ndarray, least: int = 4) -> tuple[float | None, float]:
    """Return the period of a signal in samples, and the strength 0 to 1; None, 0 for less than 2.5 periods.

    least: shortest period in samples. After removing a straight line, the autocorrelation is searched beyond its first
    zero: the first local maximum within 10 % of the highest counts, before any multiple.
    """
    n = len(signal)
    longest = int(n / LEAST_PERIODS)
    if longest <= least:
        return None, 0.0
    index = np.arange(n)
    rest = signal - np.polyval(np.polyfit(index, signal, 1), index)
    # The unbiased autocorrelation up to a lag of twice the longest period.
    lags = np.arange(min(2 * longest, n - 1) + 1)
    correlation = np.fft.irfft(np.abs(np.fft.rfft(rest, 2 * n)) ** 2)[: len(lags)] / (n - lags)
    if not correlation[0] > 1e-12:  # a constant
        return None, 0.0
    correlation = correlation / correlation[0]
    negative = np.flatnonzero(correlation[: longest + 1] <= 0)
    if not len(negative):
        return None, 0.0
    inner = np.arange(max(negative[0], least), min(longest + 1, len(correlation) - 1))
    peaks = inner[(correlation[inner] >= correlation[inner - 1]) & (correlation[inner] > correlation[inner + 1])]
    peaks = peaks[correlation[peaks] > 0]
    if not len(peaks):
        return None, 0.0
    first = int(peaks[correlation[peaks] >= 0.9 * correlation[peaks].max()][0])
    left, top, right = correlation[first - 1 : first + 2]
    curve = left - 2 * top + right
    period = first + (0.5 * (left - right) / curve if curve else 0.0)
    again = float(correlation[min(2 * first, len(correlation) - 1)])
    return float(period), min(float(top), 2 * again)
