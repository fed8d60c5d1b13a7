"""Settings tried for a few steps next to the present settings: CPU threads and larger batches.

The gain depends on caches, operators and neighbours, so a few measured steps replace a formula. Trials reuse the same
windows, without a loader. Batches get the best number of threads, and both together are tried against the present.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from socialx.core.batch import Batch, Target, TrainingBatch
from socialx.core.environment import usable_cores
from socialx.core.precision import is_out_of_memory
from socialx.profiling.profile import WORTH, Gain, Trial, best_trial
from socialx.training.learner import Learner

PAIRS, LEAST_PAIRS = 6, 3
BLOCK_S = 0.15
BUDGET_S = 30.0  # of all trials
KEPT_S = 10.0  # of it, for what comes after the batches
SHORT_S = 2.0  # so long a trial goes on though it is decided
LONG_S, MANY, PART = 0.5, 8, 4  # of a step that is longer, with more than so many batches, some stand for all
QUICK_S, QUICK_TIMES = 0.05, 8  # a quick step is tried with more, whose gain is larger than the noise
LARGEST = 64  # times the present batch
MOST_BATCHES = 3
MOST_WINDOWS = 1 << 20
MOST_BYTES = 1 << 30  # of the readings of a larger batch
# Student's t: the 99.5th percentile for 1, 2, 3, ... degrees of freedom, so that the interval holds 99 %.
T_99 = (63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947)


class Way(NamedTuple):
    """A training step with a number of threads, and batches ``times`` as large as the present batch."""

    threads: int
    times: int = 1


def try_settings(
    learner: Learner, example: TrainingBatch, advance: Callable[[], None], windows: int = MOST_WINDOWS
) -> list[Trial]:
    """Return trials for ``trainer.threads`` on a CPU and for ``loader.batch_size``, while the learner trains on.

    example: a batch on the device. advance: called per block of steps. windows: in the training split, an upper limit
    for a batch. Compiled or recorded steps try no batch, because each shape would be compiled again. Decisive trials
    come first, while time is left.
    """
    present, turns, trials = torch.get_num_threads(), _Turns(learner, example, advance), list[Trial]()
    if turns.step_s(Way(present)) > BUDGET_S / 4:
        return []
    try:
        others, best = _threads(turns, present) if turns.on_cpu else ([], present)
        if learner.eager:
            trials += _batches(turns, best, windows, None if best == present else best)
        larger = best_trial(trials, "loader.batch_size")
        if larger and best != present:
            measured = turns.gain(Way(present), Way(best, larger.value // turns.size))
            trials += [] if measured is None else [Trial(larger.setting, larger.value, **vars(measured), threads=best)]
        for count in others:
            measured = turns.gain(Way(present), Way(count))
            trials += [] if measured is None else [Trial("trainer.threads", count, **vars(measured))]
    finally:
        if turns.on_cpu:
            torch.set_num_threads(present)
    return sorted(trials, key=lambda trial: (trial.together, trial.setting != "trainer.threads", trial.value))


class _Turns:
    """Ways to take a step, timed in turns until the time for trials is over."""

    def __init__(self, learner: Learner, example: TrainingBatch, advance: Callable[[], None]) -> None:
        self._learner, self._advance = learner, advance
        self._examples, self._steps_s = {1: example}, dict[Way, float]()
        self.batches, self.size = learner.accumulate_grad_batches, len(example.batch.inputs)
        self.bytes = sum(tensor.nbytes for tensor in example.batch)
        self.on_cpu, self.left_s = learner.precision.device.type == "cpu", BUDGET_S
        self._group, present = self.batches, Way(torch.get_num_threads())
        if self.quick_s(present) * self.batches > LONG_S and self.batches > MANY:
            self._group = PART
            self._steps_s[present] *= self._group / self.batches

    def seconds(self, way: Way, batches: int | None = None) -> float:
        """Return seconds per present batch, from a block of steps (0.15 s or a single step) taken in this way.

        A step keeps the number of windows where the batches allow. batches: batches in a step, None for all.
        """
        self._advance()
        if self.on_cpu:
            torch.set_num_threads(way.threads)
        if way.times not in self._examples:
            self._examples = {1: self._examples[1], way.times: repeat_batch(self._examples[1], way.times)}
        count = max(1, self._group // way.times)
        group = [self._examples[way.times]] * (batches or count)
        step_s, block_s = _step_and_block(self._learner, group)
        self._steps_s[way], self.left_s = step_s * count / len(group), self.left_s - block_s
        return step_s / (way.times * len(group))

    def quick_s(self, way: Way) -> float:
        """Return seconds per present batch as a first look: one block, or the quicker of two where a step is short."""
        one = 1 if self.batches > MANY else None
        first = self.seconds(way, one)
        return first if self._steps_s[way] > LONG_S else min(first, self.seconds(way, one))

    def step_s(self, way: Way) -> float:
        """Return the last step measured in this way in seconds, or an extrapolation from the largest measured batch."""
        if way.times == 1 and way not in self._steps_s:
            self.seconds(way)
        if way in self._steps_s:
            return self._steps_s[way]
        most = max(multiple.times for multiple in self._steps_s if multiple.threads == way.threads)
        one_s, most_s = self.step_s(Way(way.threads)), self._steps_s[Way(way.threads, most)]
        windows, measured = (multiple * max(1, self._group // multiple) / self._group for multiple in (way.times, most))
        slope = (most_s - one_s) / (measured - 1) if measured > 1 else one_s
        return one_s + max(0.0, slope) * (windows - 1)

    def pair_s(self, *ways: Way) -> float:
        """Return the expected seconds for one block in each of the given ways."""
        return sum(BLOCK_S + self.step_s(way) for way in ways)

    def has_time(self, way: Way, kept_s: float) -> bool:
        """Return whether a larger batch can be tried in the time left, with ``kept_s`` seconds kept for later trials.

        Joined batches take far less time than extrapolated, so that a single step must fit.
        """
        needed_s = LEAST_PAIRS * self.pair_s(Way(way.threads), way) if self.batches == 1 else self.step_s(way)
        return needed_s < self.left_s - kept_s

    def gain(self, before: Way, after: Way, kept_s: float = 0.0) -> Gain | None:
        """Return the speed-up from ``before`` to ``after``; None without time, with ``kept_s`` seconds left unused."""
        if after not in self._steps_s and self.step_s(after) < self.left_s - kept_s:
            self.seconds(after)  # warms up
        pair_s = self.pair_s(before, after)

        def enough(first: Sequence[float], second: Sequence[float]) -> bool:
            if len(first) < LEAST_PAIRS:
                return False
            return self.left_s < 0 or (len(first) * pair_s > SHORT_S and gain(first, second).is_decided)

        pairs = min(PAIRS, int((self.left_s - kept_s) / pair_s))
        ways = partial(self.seconds, before), partial(self.seconds, after)
        return interleaved_ab(*ways, pairs, enough) if pairs >= LEAST_PAIRS else None


def _threads(turns: _Turns, present: int) -> tuple[list[int], int]:
    """Return other numbers of threads to try (1 and the number of cores), and the best number.

    The quickest block decides. Threads beyond the cores are left out, because they wait for each other by chance.
    """
    cores = usable_cores()
    others = sorted({1, min(present, cores), cores} - {present})
    quick_s = {count: turns.quick_s(Way(count)) for count in (*others, present)}
    others.sort(key=lambda count: quick_s[count])
    best = others[0] if others else present
    return others, present if present <= cores and quick_s[present] <= WORTH * quick_s[best] else best


def _batches(turns: _Turns, threads: int, windows: int, named: int | None) -> list[Trial]:
    """Return trials of larger batches, until a batch brings most of the possible gain.

    Batches within a step are joined. Other steps get a few times the batch, then the size that follows from the gain,
    or the largest that time allows if undecided. windows: most in a batch. named: threads, None for the present number.
    """
    whole, present = turns.batches, Way(threads)
    # A step keeps its windows, where its batches can be joined.
    allowed = [2**power for power in range(1, LARGEST.bit_length())]
    allowed = allowed if whole == 1 else [multiple for multiple in range(2, whole + 1) if whole % multiple == 0]
    allowed = [times for times in allowed if times * turns.size <= windows and times * turns.bytes <= MOST_BYTES]
    few = QUICK_TIMES if turns.step_s(Way(threads)) < QUICK_S else 2
    tried, wanted = dict[int, Gain](), LARGEST if whole > 1 else few
    while (
        len(tried) < MOST_BATCHES
        and max((multiple for multiple in allowed if multiple <= wanted), default=1) not in tried
    ):
        kept_s = KEPT_S if tried else -KEPT_S  # the first one may take so much longer
        possible = [times for times in allowed if turns.has_time(Way(threads, times), kept_s)]
        times = max((multiple for multiple in possible if multiple <= wanted), default=min(possible, default=1))
        if times == 1 or times in tried:
            break
        try:
            measured = turns.gain(present, Way(threads, times), kept_s)
            if measured is None:
                break
            tried[times] = measured
            many = Way(threads, max(possible))  # where all of a step grows with the batch, a look at many confirms it
            if whole == 1 and measured.within(WORTH) and turns.seconds(present) < WORTH * turns.seconds(many):
                break
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            allowed = [multiple for multiple in allowed if multiple < times]
            continue
        if measured.low >= WORTH:
            wanted = LARGEST if whole > 1 else enough(measured.gain, times)
        else:
            wanted = few if whole > 1 else LARGEST
    return [
        Trial("loader.batch_size", times * turns.size, **vars(measured), threads=named, threads_before=named)
        for times, measured in tried.items()
    ]


def enough(gain: float, times: int) -> int:
    """Return the smallest power of two by which a larger batch leaves a tenth of a step to fixed cost.

    gain: measured at ``times`` the batch. A step takes a + b B; with the fixed share f = a / (a + b B), k times the
    batch is 1 / (f / k + 1 - f) times as fast.
    """
    fixed = min(0.98, (1 - 1 / gain) / (1 - 1 / times))
    times_enough = 2
    while times_enough < LARGEST and fixed / times_enough / (fixed / times_enough + 1 - fixed) > 0.1:
        times_enough *= 2
    return times_enough


def step_alone(learner: Learner, example: TrainingBatch) -> float:
    """Return the median seconds for a step that repeats a single batch, so without the cost of making batches."""
    group = [example] * learner.accumulate_grad_batches
    return statistics.median(_step_and_block(learner, group)[0] for _ in range(PAIRS))


def _step_and_block(learner: Learner, group: list[TrainingBatch]) -> tuple[float, float]:
    """Return the mean seconds per step on ``group``, and the seconds of all steps: repeated for 0.15 s or once."""
    device = learner.precision.device
    steps, total = 0, 0.0
    while total < BLOCK_S:
        total += time_call(lambda: learner.step(group), device)
        steps += 1
    return total / steps, total


# What two ways of doing the same are timed with


def gain(before: Sequence[float], after: Sequence[float]) -> Gain:
    """Return the speed-up from two lists of seconds [pairs]; each pair of blocks, before and after, does equal work."""
    return mean_gain(np.log(before) - np.log(after))


def mean_gain(logs: Sequence[float] | np.ndarray) -> Gain:
    """Return the mean gain with a 99 % interval from natural logarithms of at least two independent gains."""
    gains = np.asarray(logs)
    mean, error = float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(len(gains))
    reach = T_99[len(gains) - 2] * error
    return Gain(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def interleaved_ab(
    first: Callable[[], float],
    second: Callable[[], float],
    pairs: int,
    enough: Callable[[Sequence[float], Sequence[float]], bool] = lambda *_: False,
) -> Gain:
    """Run two ways in turns, a block per call that returns seconds per unit of work, and return the gain of the second.

    pairs: at most. enough: called with both lists of seconds after each pair; True ends the comparison.
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


def time_call(run: Callable[[], object], device: torch.device) -> float:
    """Return seconds for a call to ``run``, including work on the device."""
    synchronize(device)
    began = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    """Wait for a CUDA device, and return at once on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def repeat_batch(example: TrainingBatch, times: int) -> TrainingBatch:
    """Return a batch with the same windows ``times`` times, to try a larger batch size."""

    def whole(tensors: Iterable[Tensor]) -> list[Tensor]:
        return [torch.cat([tensor] * times) for tensor in tensors]

    return TrainingBatch(Batch(*whole(example.batch)), Target(*whole(example.target)))
