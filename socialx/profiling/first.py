"""A clock for the first steps of a training: it measures them, says so once, and then does nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch

from socialx.profiling.analysis import Partition, partition
from socialx.training.clock import DeviceClock, HostClock, clock_for

Done = Callable[[HostClock | DeviceClock, Partition], None]


class FirstSteps:
    """Marks of ``steps`` steps after ``warmup_steps``, or of those until the epoch ends; then ``done`` is called."""

    def __init__(self, device: torch.device, steps: int, warmup_steps: int, done: Done) -> None:
        self._device, self._steps, self._warmup_steps, self._done = device, steps, warmup_steps, done
        self._clock: HostClock | DeviceClock | None = None
        self._taken = 0  # steps, before and under the clock
        self._last = ""
        self._finished = False

    def mark(self, name: str) -> None:
        """A phase of a step begins."""
        if self._finished:
            return
        self._taken += name == "copy"
        under = self._taken - self._warmup_steps
        opens = name == "fetch" and under >= 0 and (self._clock is None or (self._last == "fetch" and not under))
        if opens:
            self._clock = clock_for(self._device)
        elif self._clock is None:
            return
        elif name == self._last == "fetch":  # the epoch ended with the mark before
            self._finish(self._clock)
            return
        self._clock.mark(name)
        self._last = name
        if name == "fetch" and under >= self._steps:
            self._finish(self._clock)

    def _finish(self, clock: HostClock | DeviceClock) -> None:
        self._finished = True
        self._done(clock, partition(clock.read()))
