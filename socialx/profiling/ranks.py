"""Which of several processes the others wait for: each times its own waiting, so that no clocks are compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from socialx.profiling.profile import Ranks
from socialx.profiling.work import synchronize
from socialx.training.learner import Learner
from socialx.training.process_group import ProcessGroup

STEPS = 8


@dataclass(frozen=True)
class _Timed(ProcessGroup):
    """The same processes, which meet on the host before each of their sums; waits: seconds of each meeting."""

    waits: list[float] = field(default_factory=list)

    def sum_(self, tensor: Tensor) -> Tensor:
        """As in the group; what the device has still to compute is no waiting."""
        synchronize(tensor.device)
        began = time.perf_counter()
        super().sum_(torch.zeros(()))  # on the host: it returns when the last process has come
        self.waits.append(time.perf_counter() - began)
        return super().sum_(tensor)


def ranks(learner: Learner, take: Callable[[], object]) -> Ranks | None:
    """Call ``take``, which takes one step, a few times -> how the processes waited; None for one process alone."""
    group = learner.group
    if group.world == 1:
        return None
    timed, waited = _Timed(**vars(group)), []
    learner.group = timed
    try:
        for _ in range(STEPS):
            timed.waits.clear()
            take()
            waited.append(sum(timed.waits))
    finally:
        learner.group = group
    seconds = group.gathered(torch.tensor(waited, dtype=torch.float64))
    return Ranks.of(torch.stack(seconds).numpy())
