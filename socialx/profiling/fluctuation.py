"""Stalls that repeat: how the device's busy share changes over the window, its period, and which setting has it.

Pure functions.  The signal is the busy share per bin, made of the times between steps and the waits for input, so that
it needs no sampling and works on a CPU too.
"""

# Shape letters: n bins

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from socialx.profiling.analysis import Partition
from socialx.profiling.profile import Section, part

SWING_PP = 40.0  # p95 - p5 of a signal that is called periodic
STRENGTH = 0.55  # noise that wanders or comes in bursts reaches it in 2 of 100 windows
LEAST_PERIODS = 2.5  # in the window
LEAST_BINS = 2  # of a period
HOPS = 4  # samples of the busy share per bin, so that a period need not be a number of bins
BIN_S = 0.1
FINEST_BIN_S = 0.02
MOST_BINS = 20_000
ALIKE = 0.1  # two counts of steps that differ by less are one


def fluctuation(parts: Partition, causes: Mapping[str, float]) -> Section:
    """How the busy share changes.

    causes: setting or words -> steps after which it comes again; the first one that fits a period within 10 % is named.
    """
    bin_s = bin_seconds(parts)
    busy = np.convolve(busy_bins(parts, bin_s / HOPS), np.full(HOPS, 1 / HOPS), "valid")  # each sample is a whole bin
    low, high = (float(each) for each in np.quantile(busy, (0.05, 0.95)))
    mean, swing_pp = float(busy.mean()), 100 * (high - low)
    swing = part("fluctuation", bin_s=bin_s, mean=mean, p5=low, p95=high, swing_pp=swing_pp)
    if swing_pp < SWING_PP:
        return swing
    period, strength = repeats(busy, LEAST_BINS * HOPS)
    if period is None or strength < STRENGTH:
        return swing
    period_s = period * bin_s / HOPS
    steps = period_s * len(parts.step_seconds) / parts.wall
    cause = next((name for name, every in causes.items() if abs(steps / every - 1) <= ALIKE), None)
    return swing | {"period_s": period_s, "strength": strength, "steps_per_period": steps, "cause": cause}


def bin_seconds(parts: Partition) -> float:
    """A bin holds the median step, and where steps are shorter there is time for a tenth of a second in it.

    A window of few seconds gets finer bins, down to a fiftieth of a second.
    """
    step = float(np.median(parts.step_seconds))
    wanted = min(BIN_S, max(FINEST_BIN_S, parts.wall / 500))
    return min(parts.wall, max(step, wanted, parts.wall / MOST_BINS))


def busy_bins(parts: Partition, bin_s: float) -> np.ndarray:
    """Busy share of each whole bin of the window, float64 [n], at least one."""
    count = max(1, int(parts.wall / bin_s + 1e-9))
    edges = parts.at[0] + bin_s * np.arange(count + 1)
    begin, end = parts.idle()
    # Idle time before a moment: that of all intervals before it, and the part of the one that it lies in.
    before = np.concatenate([[0.0], np.cumsum(end - begin)])
    place = np.searchsorted(begin, edges, side="right")
    last = np.maximum(place - 1, 0)
    overshoot = np.where(place > 0, np.maximum(end[last] - edges, 0.0), 0.0) if len(begin) else 0.0
    idle = np.diff(before[place] - overshoot)
    return 1 - np.clip(idle / bin_s, 0, 1)


def repeats(signal: np.ndarray, least: int = 4) -> tuple[float | None, float]:
    """The period of a signal in samples, and its strength; None where no period fits into it 2.5 times.

    least: samples of a period.  The signal loses its straight line, and its autocorrelation is taken.  Of the local
    maxima beyond the first zero the first one that is nearly the highest counts, so that no multiple of it is taken.
    """
    n = len(signal)
    longest = int(n / LEAST_PERIODS)
    if longest <= least:
        return None, 0.0
    place = np.arange(n)
    rest = signal - np.polyval(np.polyfit(place, signal, 1), place)
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
