"""Takes a trace of real steps, of kernels or of a CPU's operators, and finds the lines that wait for a CUDA device.

Nothing is timed here: a trace makes steps slower.
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
from socialx.training.clock import StepClock
from socialx.training.profile.trace import MARK, WINDOW, Trace, read_operators, read_trace
from socialx.training.profile.trials import synchronize

# CUPTI gets its buffers in the first step, and drops the first kernels of a later profiler in the same process.
WARMUP_STEPS = 2


class ProfilerError(RuntimeError):
    """The profiler itself failed, not what it watched."""


class TraceClock(StepClock):
    """Marks that stand in the trace, so that its steps fall into the same phases as the clock's."""

    def mark(self, name: str) -> None:
        """An annotation of no length."""
        with record_function(MARK + name):
            pass


def trace_steps(run: Callable[[], object], steps: int, device: torch.device, keep: Path | None = None) -> Trace:
    """Call ``run``, which takes one step, ``steps`` times under torch.profiler -> what the device did.

    It is called WARMUP_STEPS times more, before the window.  A launch costs the host more while it is watched, so
    gpu_busy is if anything too low, and CUPTI stays in the process: take times before traces.  Where nothing can be
    traced, every metric is None and ``why`` says so; what ``run`` raises is raised.  keep: where the trace is written.
    """
    if device.type != "cuda":
        return Trace.missing(steps, "no CUDA device")
    if ProfilerActivity.CUDA not in supported_activities():
        return Trace.missing(steps, "this torch was built without CUPTI")
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    printed: list[str] = []
    try:
        trace = read_trace(record(run, steps, device, printed, keep), steps, sms)
    except ProfilerError as error:
        return Trace.missing(steps, f"the profiler failed: {error}")
    hint = next((line.rpartition("] ")[2] for line in printed if "CUPTI" in line), None)
    return Trace.missing(steps, f"{trace.why['kernels']} ({hint})") if trace.kernels is None and hint else trace


def trace_operators(
    run: Callable[[], object], steps: int, keep: Path | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Call ``run`` as often as there are steps -> the longest operators of a CPU, or why there are none."""
    try:
        return read_operators(record(run, steps, torch.device("cpu"), [], keep, 0), steps), "the trace has no operator"
    except ProfilerError as error:
        return [], f"the profiler failed: {error}"


def record(
    run: Callable[[], object],
    steps: int,
    device: torch.device,
    printed: list[str],
    keep: Path | None = None,
    warmup_steps: int = WARMUP_STEPS,
) -> list[dict[str, Any]]:
    """The events of the Chrome trace of ``steps`` calls; what the profiler prints goes to ``printed``."""
    # Taken down between two profilers, CUPTI may crash where CUDA graphs are used (CUDA 12), and the later profiler may
    # find no kernel (kineto pull request 1554).
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    profiler = profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])])

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
    return events


@contextmanager
def _quiet(printed: list[str]) -> Iterator[None]:
    """Keep kineto's lines, which no log level stops, from stderr, and turn its errors into ProfilerError."""
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
    """``file:line`` of what waited for the device in ``steps`` calls of ``run``.

    torch notices its own synchronising operations, not those of other libraries, and names the Python line; for a wait
    inside a backward pass that is the line which called it.
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
