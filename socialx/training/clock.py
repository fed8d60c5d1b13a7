"""Clocks for the phases of a training step; the default clock ignores every mark.

    fetch    the next batch is asked for          -> input: the device waits for data
    copy     the batch arrived at the host        -> transfer
    compute  the forward pass begins              -> span, up to ``done``
    backward the backward pass begins             -> span
    update   the optimizer begins                 -> span
    done     logging, validation, checkpoints     -> hooks, until the next fetch

The phases tile the timeline, so the fractions sum to 1 by construction.  A recorded step lacks ``backward`` and
``update``, because it is one launch.  On CUDA a mark is an event on the compute
stream, stamped when the *stream* gets there: a host may wait at no cost while work is queued.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class StepClock:
    """The interface that the training loop calls; this clock ignores every mark."""

    def mark(self, name: str) -> None:
        """Begin the phase that the mark ``name`` opens; subclasses store the time."""


class HostClock(StepClock):
    """Host times from ``perf_counter`` with the CPU time used so far, exact where the host does the work."""

    kind = "host"

    def __init__(self) -> None:
        self._marks: list[tuple[str, float, float]] = []
        # With several threads one may sleep while another computes.
        self._cpu_time = time.thread_time if torch.get_num_threads() == 1 else time.process_time

    def mark(self, name: str) -> None:
        """Store the wall time and the CPU time at which the phase ``name`` begins."""
        self._marks.append((name, time.perf_counter(), self._cpu_time()))

    def read(self) -> list[tuple[str, float]]:
        """Return every mark in order as (name, seconds since the first mark)."""
        return [(name, at - self._marks[0][1]) for name, at, _ in self._marks]

    def cpu_seconds(self) -> list[float] | None:
        """Return the CPU seconds used until each mark, by this thread, or by all where torch has several threads."""
        return [used for _, _, used in self._marks]


class DeviceClock(StepClock):
    """CUDA events on the current stream, synchronised only in ``read``."""

    kind = "device"

    def __init__(self) -> None:
        self._marks: list[tuple[str, Any]] = []

    def mark(self, name: str) -> None:
        """Record a CUDA event in the current stream where the phase ``name`` begins."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((name, event))

    def read(self) -> list[tuple[str, float]]:
        """Wait for the device, and return every mark in order as (name, seconds since the first mark)."""
        torch.cuda.synchronize()
        first = self._marks[0][1]
        return [(name, first.elapsed_time(event) / 1000) for name, event in self._marks]

    def cpu_seconds(self) -> list[float] | None:
        """Return None: CPU time on the host says nothing about the device."""
        return None


def clock_for(device: torch.device) -> HostClock | DeviceClock:
    """Return a new clock to time training steps on ``device``: CUDA events on CUDA, host times on a CPU."""
    return DeviceClock() if device.type == "cuda" else HostClock()
