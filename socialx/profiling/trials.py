"""Settings tried for a few steps next to the present settings: one thread and all cores, and four times the batch.

The gain depends on caches, operators and neighbours, so a few measured steps replace a formula. Trials repeat the same
windows, without a loader. A step that is recorded as a CUDA graph is recorded again for the larger batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from socialx.core.batch import Batch, Target, TrainingBatch
from socialx.core.environment import usable_cores
from socialx.core.precision import is_out_of_memory
from socialx.dataset.loaders import Selection
from socialx.profiling.profile import Gain, Trial
from socialx.scoring.difference import confidence_interval
from socialx.training.cuda_graph import WARMUP, Example
from socialx.training.learner import Learner

TIMES = 4  # the present batch
PAIRS, LEAST_PAIRS = 8, 5
BLOCK_S = 0.15
BUDGET_S = 30.0  # of a trial


def try_settings(
    learner: Learner, example: Example, advance: Callable[[], None], windows: int | None = None
) -> list[Trial]:
    """Return trials for ``trainer.threads`` on a CPU and for ``loader.batch_size``, while the learner trains on.

    example: a batch on the device. advance: called per block of steps. windows: in the training split, an upper limit
    for a batch. A larger batch gets the best number of threads. Compiled steps try no batch, because each shape would
    be compiled again. A trial that would take over half a minute is left out.
    """
    present, trials, device = torch.get_num_threads(), list[Trial](), learner.precision.device
    # Of a step with many batches as many as one large batch joins, which takes less time.
    same = [example] * min(learner.trainer.accumulate_grad_batches, TIMES)

    def block_s(group: Sequence[Example], threads: int = present) -> float:
        advance()
        if device.type == "cpu":
            torch.set_num_threads(threads)
        return _step_seconds(learner, group) / sum(map(_size, group))

    def compare(before: Callable[[], float], after: Callable[[], float], setting: str, value: int) -> list[Trial]:
        began = time.perf_counter()
        before()
        after()  # warms up
        pairs = min(PAIRS, int(BUDGET_S / (time.perf_counter() - began)))
        if pairs < LEAST_PAIRS:
            return []
        return [Trial(**asdict(interleaved_ab(before, after, pairs)), setting=setting, value=value)]

    try:
        for count in sorted({1, usable_cores()} - {present}) if device.type == "cpu" else ():
            trials += compare(partial(block_s, same), partial(block_s, same, count), "trainer.threads", count)
        best, value = best_trial(trials, "trainer.threads"), TIMES * _size(example)
        if present > usable_cores():  # such threads wait for each other by chance
            best = max(trials, key=lambda trial: trial.gain, default=None)
        if not learner.compiles and (windows is None or value <= windows):
            threads = best.value if best else present
            more = partial(block_s, [repeat_batch(example, TIMES)] * max(1, len(same) // TIMES), threads)
            for _ in range(WARMUP if learner.records else 0):
                more()
            tried = compare(partial(block_s, same, threads), more, "loader.batch_size", value)
            trials += [replace(trial, threads=best.value if best else None) for trial in tried]
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    finally:
        if device.type == "cpu":
            torch.set_num_threads(present)
    return trials


def best_trial(trials: Iterable[Trial], setting: str) -> Trial | None:
    """Return the trial of ``setting`` with the largest gain that is worth a change."""
    return max((t for t in trials if t.setting == setting and t.is_worth), key=lambda t: t.gain, default=None)


def _size(example: Example) -> int:
    return example.rows.shape[1] if isinstance(example, Selection) else len(example.batch.inputs)


def _step_seconds(learner: Learner, group: Sequence[Example]) -> float:
    """Return the mean seconds per step on ``group``, repeated for 0.15 s or taken once."""
    steps, total = 0, 0.0
    while total < BLOCK_S:
        total += time_call(lambda: learner.step(group), learner.precision.device)
        steps += 1
    return total / steps


def repeat_batch(example: Example, times: int) -> Example:
    """Return a batch with the same windows ``times`` times, to try a larger batch size."""
    if isinstance(example, Selection):
        return replace(example, rows=torch.cat([example.rows] * times, dim=1))

    def whole(tensors: Iterable[Tensor]) -> list[Tensor]:
        return [torch.cat([tensor] * times) for tensor in tensors]

    return TrainingBatch(Batch(*whole(example.batch)), Target(*whole(example.target)))


# What two ways of doing the same are timed with


def mean_gain(gains: Sequence[float]) -> Gain:
    """Return the geometric mean of independent gains; five or more have the interval by which runs are compared."""
    logs = np.log(gains)
    low, high = confidence_interval(logs, np.ones(len(logs)))
    mean = math.exp(logs.mean())
    return Gain(mean, None, None) if low is None or high is None else Gain(mean, math.exp(low), math.exp(high))


def interleaved_ab(first: Callable[[], float], second: Callable[[], float], pairs: int) -> Gain:
    """Run two ways in turns, A B B A, a block per call, and return the gain of the second way.

    A call returns seconds per unit of work.
    """
    gains = []
    for pair in range(pairs):
        if pair % 2:
            after, before = second(), first()
        else:
            before, after = first(), second()
        gains.append(before / after)
    return mean_gain(gains)


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
