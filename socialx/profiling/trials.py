"""Settings that are tried for a few steps beside the present ones: threads of a CPU, and larger batches.

What a larger batch or another number of threads brings depends on caches, operators and neighbours: no formula
foretells it, and a few steps measure it.  The same windows are used again, so that no loader is timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import torch

from socialx.batch import Example
from socialx.environment import usable_cores
from socialx.precision import is_out_of_memory
from socialx.profiling.paired import in_turns
from socialx.profiling.profile import Trial
from socialx.profiling.work import repeated, timed
from socialx.training.learner import Learner

PAIRS = 6
BLOCK_S = 0.15
MOST_SECONDS = 20.0  # that one trial may take
WORTH = 1.05
QUICK_S, QUICK_TIMES = 0.05, 8  # a quick step is tried with more, whose gain is larger than the noise
LARGEST = 64  # times the present batch
MOST_WINDOWS = 1 << 20
MOST_BYTES = 1 << 30  # of the readings of a larger batch


def try_settings(
    learner: Learner, example: Example, advance: Callable[[], None], windows: int = MOST_WINDOWS
) -> list[Trial]:
    """Trials of ``trainer.threads`` on a CPU and of ``loader.batch_size``; the learner is trained meanwhile.

    example: a batch on the device.  windows: of the training part, which no batch can have more of.  Nothing is tried
    where a step is compiled or recorded: each shape would be again.
    """
    trials = []
    group = [example] * learner.accumulate_grad_batches
    step_s = timed(lambda: learner.step(group), learner.precision.device)
    if 2 * PAIRS * step_s > MOST_SECONDS:
        return []
    if learner.precision.device.type == "cpu":
        trials += _threads(learner, example, advance)
    if learner.eager:
        trials += _batches(learner, example, QUICK_TIMES if step_s < QUICK_S else 2, advance, windows)
    return trials


def _threads(learner: Learner, example: Example, advance: Callable[[], None]) -> list[Trial]:
    """One thread, and as many as there are cores, against the present number."""
    now, cores, trials = torch.get_num_threads(), usable_cores(), []

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        advance()
        return _seconds(learner, [example] * learner.accumulate_grad_batches)

    for count in sorted({1, min(now, cores), cores} - {now}):
        try:
            seconds(count)
            gain = in_turns(partial(seconds, now), partial(seconds, count), PAIRS)
        finally:
            torch.set_num_threads(now)
        trials.append(Trial("trainer.threads", count, **vars(gain)))
    return trials


def _batches(learner: Learner, example: Example, first: int, advance: Callable[[], None], windows: int) -> list[Trial]:
    """``first`` times the batch, and where that is quicker so many times as brings most of what any batch can.

    Each is compared per window; a step has as many windows as before, where its batches allow that.
    """
    size, batches, trials = len(example.batch.history), learner.accumulate_grad_batches, list[Trial]()
    allowed = [2**power for power in range(1, LARGEST.bit_length())]
    if batches > 1:  # a step keeps its windows, where its batches can be joined
        allowed = [times for times in range(2, batches + 1) if batches % times == 0]
    allowed = [times for times in allowed if times * size <= windows]
    if not allowed:
        return []

    def at_most(wanted: int) -> int:
        return max((times for times in allowed if times <= wanted), default=allowed[0])

    def seconds(batch: Example, times: int, groups: int) -> float:
        advance()
        return _seconds(learner, [batch] * groups) / (times * groups)

    times = at_most(first)
    while times * sum(tensor.nbytes for tensor in example.batch) <= MOST_BYTES:
        small = partial(seconds, example, 1, batches)
        try:
            large = partial(seconds, repeated(example, times), times, max(1, batches // times))
            large()
            gain = in_turns(small, large, PAIRS)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            break
        trials.append(Trial("loader.batch_size", times * size, **vars(gain)))
        wanted = at_most(enough(trials[0].gain, times))
        if len(trials) > 1 or gain.low < WORTH or wanted <= times:
            break
        times = wanted
    return trials


def enough(gain: float, times: int) -> int:
    """How many times the batch leaves a tenth of a step to what does not grow with it, a power of two.

    gain: of ``times`` the batch.  A step takes a + b B; where a share f = a / (a + b B) of it does not grow, k times
    the batch is 1 / (f / k + 1 - f) times as fast.
    """
    fixed = min(0.98, (1 - 1 / gain) / (1 - 1 / times))
    times_enough = 2
    while times_enough < LARGEST and fixed / times_enough / (fixed / times_enough + 1 - fixed) > 0.1:
        times_enough *= 2
    return times_enough


def step_alone(learner: Learner, example: Example) -> float:
    """Seconds of a step of one batch again and again, the median of several."""
    group = [example] * learner.accumulate_grad_batches
    return statistics.median(_seconds(learner, group) for _ in range(PAIRS))


def _seconds(learner: Learner, group: list[Example]) -> float:
    """Of a step: of as many as fill a block, at least one."""
    device = learner.precision.device
    steps, total = 0, 0.0
    while total < BLOCK_S:
        total += timed(lambda: learner.step(group), device)
        steps += 1
    return total / steps
