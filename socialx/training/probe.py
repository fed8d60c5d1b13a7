"""What a step needs on this card: real steps of fresh models under the allocator's counters.

Only CUDA's allocator counts; a CPU that runs out of memory ends the process before anybody can ask.
"""

from __future__ import annotations

import gc
import itertools
import math
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from socialx.data.loaders import Loader
from socialx.errors import SocialxError
from socialx.precision import Precision
from socialx.progress import work
from socialx.scoring.evaluation import Accumulator, run
from socialx.training.learner import Learner
from socialx.training.memory import Peak, Plan, advise, message

COUNTED = ("cuda",)  # the devices whose allocator counts


class Card(NamedTuple):
    """Bytes that a device has, and how many of them this process can have."""

    total: int
    usable: int


def card(device: torch.device) -> Card:
    """What is there now, other programs' memory taken off."""
    free, total = torch.cuda.mem_get_info(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total
    return Card(total, int(min(free + torch.cuda.memory_reserved(device), allowed)))


def step_peak(learner: Learner, loader: Loader) -> float:
    """Bytes at the peak of one optimizer step, readings and all; of the second step, when AdamW has its moments."""
    group = [e.to(learner.precision.device) for e in itertools.islice(loader.epoch(0), learner.accumulate_grad_batches)]
    learner.model.train()
    learner.step(group[:1])
    torch.cuda.reset_peak_memory_stats(learner.precision.device)
    learner.step(group)
    return torch.cuda.max_memory_allocated(learner.precision.device)


def score_peak(model: nn.Module, loader: Loader, precision: Precision, *accumulators: Accumulator) -> float:
    """Bytes at the peak of scoring the batches of a loader."""
    torch.cuda.reset_peak_memory_stats(precision.device)
    run(model.to(precision.device), loader, precision, *accumulators)
    return torch.cuda.max_memory_allocated(precision.device)


def measured(measure: Callable[[], float]) -> float:
    """``measure()``, or inf where it ran out of memory; nothing of it stays on the device."""
    try:
        return measure()
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)
        return math.inf
    finally:
        _collect()


class Failed(NamedTuple):
    """Work that ran out of memory: how it was cut, and how another cut is measured.

    peak: bytes at the peak of a plan.  kinds: the remedies that it has.  name: what it is, in words.
    """

    device: torch.device
    asked: Plan
    sensors: int
    peak: Peak
    kinds: Sequence[str]
    name: str


def advice(failed: Failed) -> SocialxError:
    """The error for work that ran out of memory: it names what would fit, as measured.

    Takes 10 to 20 measurements, each two steps of a fresh model.
    """
    device, asked, sensors, peak, kinds, name = failed
    _collect()
    there = card(device)
    with work("out of memory: measuring what fits", None, "steps") as bar:

        def counted(plan: Plan) -> float:
            bar.advance()
            return peak(plan)

        found = advise(asked, sensors, counted, there.usable, kinds)
    return message(found, asked, sensors, str(device), there.total, there.usable, name)


def release(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Take their memory from a model and its optimizer, whoever still holds them; both are of no use afterwards."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.grad = None
        tensor.data = tensor.new_empty(0)
    if optimizer is not None:
        optimizer.state.clear()


def _collect() -> None:
    """Give unused cached memory back to the device."""
    gc.collect()
    torch.cuda.empty_cache()
