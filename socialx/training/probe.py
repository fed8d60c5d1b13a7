"""What a step needs on this card: real steps of fresh models under the allocator's counters.

Only CUDA's allocator counts; a CPU that runs out of memory ends the process before anybody can ask.
"""

from __future__ import annotations

import gc
import itertools
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from socialx.data.loaders import Loader
from socialx.errors import SocialxError
from socialx.progress import progress_bar
from socialx.training.engine import Learner, evaluate
from socialx.training.memory import Peak, Plan, advise, message
from socialx.training.precision import Precision

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
    group = list(itertools.islice(loader.epoch(0), learner.accumulate_grad_batches))
    learner.model.train()
    learner.step(group[:1])
    torch.cuda.reset_peak_memory_stats(learner.precision.device)
    learner.step(group)
    return torch.cuda.max_memory_allocated(learner.precision.device)


def score_peak(model: nn.Module, loader: Loader, precision: Precision) -> float:
    """Bytes at the peak of scoring the batches of a loader."""
    torch.cuda.reset_peak_memory_stats(precision.device)
    evaluate(model.to(precision.device), loader, precision)
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


@contextmanager
def advised(
    device: torch.device,
    asked: Plan,
    sensors: int,
    peak: Peak,
    kinds: Sequence[str],
    work: str,
    give_up: Callable[[], None],
) -> Iterator[None]:
    """Turn torch.OutOfMemoryError inside into a SocialxError that names what would fit, measured by ``peak``.

    give_up: frees what the failed work holds on the device; the tensors in its frames are dropped here.  work: what
    failed, in words.  Takes 10 to 20 measurements, each two steps of a fresh model.
    """
    try:
        yield
        return
    except torch.OutOfMemoryError as error:
        if device.type not in COUNTED:
            raise
        traceback.clear_frames(error.__traceback__)
    give_up()
    _collect()
    there = card(device)
    with progress_bar("out of memory: measuring what fits", None, "steps") as bar:

        def counted(plan: Plan) -> float:
            bar.advance()
            return peak(plan)

        advice = advise(asked, sensors, counted, there.usable, kinds)
    raise SocialxError(message(advice, asked, sensors, str(device), there.total, there.usable, work)) from None


def release(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Take their memory from a model and its optimizer, whoever still holds them; both are of no use afterwards."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.grad = None
        tensor.data = tensor.new_empty(0)
    if optimizer is not None:
        optimizer.state.clear()


def _collect() -> None:
    """Give what nobody holds any more back to the device."""
    gc.collect()
    torch.cuda.empty_cache()
