"""The loop marks four phases of every step; whoever wants to know reads them.  The default clock does nothing.

    fetch    the next batch is asked for          -> input: the device waits for data
    copy     the batch arrived at the host        -> transfer
    compute  forward, backward, optimizer         -> span
    done     logging, validation, checkpoints     -> hooks, until the next fetch

The four parts tile the timeline, so their shares sum to 1 by construction.  On CUDA a mark is an event on the compute
stream, stamped when the *stream* reaches it: a host that waits while work is queued costs the device nothing.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class StepClock:
    """What the training loop calls; this one has no reader, so each mark is one empty call."""

    def mark(self, name: str) -> None:
        """``fetch``, ``copy``, ``compute`` or ``done`` begins now."""


class HostClock(StepClock):
    """``perf_counter`` marks, right where the host does the work itself, with the CPU time that was used until then."""

    kind = "host"

    def __init__(self) -> None:
        self._marks: list[tuple[str, float, float]] = []
        # Of several threads one may sleep while another one computes.
        self._cpu_time = time.thread_time if torch.get_num_threads() == 1 else time.process_time

    def mark(self, name: str) -> None:
        """Read the host's clock."""
        self._marks.append((name, time.perf_counter(), self._cpu_time()))

    def read(self) -> list[tuple[str, float]]:
        """All marks as (name, seconds since the first)."""
        return [(name, at - self._marks[0][1]) for name, at, _ in self._marks]

    def cpu_seconds(self) -> list[float] | None:
        """CPU seconds of this thread, of all threads where tensors have several, at each mark."""
        return [used for _, _, used in self._marks]


class DeviceClock(StepClock):
    """CUDA events on the current stream: no sync until ``read``."""

    kind = "device"

    def __init__(self) -> None:
        self._marks: list[tuple[str, Any]] = []

    def mark(self, name: str) -> None:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((name, event))

    def read(self) -> list[tuple[str, float]]:
        """Wait for the device, then all marks as (name, seconds since the first)."""
        torch.cuda.synchronize()
        first = self._marks[0][1]
        return [(name, first.elapsed_time(event) / 1000) for name, event in self._marks]

    def cpu_seconds(self) -> list[float] | None:
        """The host's seconds say nothing about the device's."""
        return None


def clock_for(device: torch.device) -> HostClock | DeviceClock:
    """The clock that tells the truth on this device."""
    return DeviceClock() if device.type == "cuda" else HostClock()
