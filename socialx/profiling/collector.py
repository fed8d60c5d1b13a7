"""Collect traces of real steps (GPU kernels, CPU operators), and the lines that wait for a CUDA device.

A trace slows steps down, so that times are measured elsewhere.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from socialx.core.disk import atomic_write
from socialx.profiling.sections import Top
from socialx.profiling.trace import MARK, WINDOW, Trace, read_operators, read_trace
from socialx.profiling.trials import synchronize
from socialx.training.clock import StepClock

# CUPTI gets its buffers in the first step, and drops the first kernels of a later profiler in the same process.
WARMUP_STEPS = 2


class ProfilerError(RuntimeError):
    """The profiler failed, while the profiled program did well."""


class TraceClock(StepClock):
    """A clock that marks phases in a profiler trace, for the same phases as in the measured window."""

    def mark(self, name: str) -> None:
        """Record an annotation without length in the trace, where the phase ``name`` begins."""
        with record_function(MARK + name):
            pass


def trace_steps(run: Callable[[], object], steps: int, device: torch.device, keep: Path | None = None) -> Trace:
    """Call ``run``, a training step, ``steps`` times under torch.profiler, and return a Trace.

    WARMUP_STEPS further calls come before the window. A launch takes longer under the profiler, so that gpu_busy is a
    lower bound, and CUPTI stays in the process: measure times before traces. Without a trace every metric is None, with
    the reason in ``why``. Errors from ``run`` pass through. keep: a path for the trace.
    """
    if device.type != "cuda":
        return Trace.missing(steps, "no CUDA device")
    if ProfilerActivity.CUDA not in supported_activities():
        return Trace.missing(steps, "this torch was built without CUPTI")
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    try:
        events, printed = record(run, steps, device, keep)
        trace = read_trace(events, steps, sms)
    except ProfilerError as error:
        return Trace.missing(steps, f"the profiler failed: {error}")
    hint = next((line.rpartition("] ")[2] for line in printed if "CUPTI" in line), None)
    return Trace.missing(steps, f"{trace.why['kernels']} ({hint})") if trace.kernels is None and hint else trace


def trace_operators(run: Callable[[], object], steps: int, keep: Path | None = None) -> tuple[list[Top], str]:
    """Return the longest CPU operators in ``steps`` calls of ``run``, and the reason if none; keep: trace file."""
    try:
        events, _ = record(run, steps, torch.device("cpu"), keep, 0)
        return read_operators(events, steps), "the trace has no operator"
    except ProfilerError as error:
        return [], f"the profiler failed: {error}"


def record(
    run: Callable[[], object],
    steps: int,
    device: torch.device,
    keep: Path | None = None,
    warmup_steps: int = WARMUP_STEPS,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return Chrome trace events of ``steps`` calls to ``run``, and the lines that the profiler prints.

    warmup_steps: calls before the window.  keep: a file for the trace, or None.
    """
    # Taken down between two profilers, CUPTI may crash where CUDA graphs are used (CUDA 12), and the later profiler may
    # find no kernel (kineto pull request 1554).
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    profiler = profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])])

    printed: list[str] = []
    with _quiet(printed):
        profiler.start()
    try:
        for _ in range(warmup_steps):
            run()
        synchronize(device)
        with record_function(WINDOW):
            for _ in range(steps):
                run()
        synchronize(device)
    except BaseException:
        with suppress(ProfilerError), _quiet(printed):
            profiler.stop()
        raise
    with _quiet(printed), tempfile.TemporaryDirectory() as folder:
        profiler.stop()
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        content = path.read_bytes()
        events: list[dict[str, Any]] = json.loads(content)["traceEvents"]
    if keep is not None:
        with atomic_write(keep) as temporary:
            temporary.write_bytes(gzip.compress(content) if keep.suffix == ".gz" else content)
    return events, printed


@contextmanager
def _quiet(printed: list[str]) -> Iterator[None]:
    """Append lines that kineto writes to stderr to ``printed``, and raise errors in the block as ProfilerError."""
    try:
        with tempfile.TemporaryFile() as aside:
            sys.stderr.flush()
            stderr = os.dup(2)
            os.dup2(aside.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
                aside.seek(0)
                printed += aside.read().decode(errors="replace").splitlines()
    except (RuntimeError, OSError, ValueError, LookupError, AssertionError) as error:
        raise ProfilerError(str(error).partition("\n")[0] or type(error).__name__) from error


def sync_sites(run: Callable[[], object], steps: int = 3) -> list[str]:
    """Return ``file:line`` for each line of code that makes the host wait for the device in ``steps`` calls to ``run``.

    torch reports synchronising operations in torch alone, by Python line; in a backward pass by the backward call.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(steps):
                run()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sorted({f"{w.filename}:{w.lineno}" for w in caught if "synchronizing CUDA operation" in str(w.message)})
