"""Run real training steps under a clock and report where the device's time went.

The loop is the one that ``train`` runs, with its own loader, step and logging: nothing is measured that training does
not do, and what is not measured is null with a reason.
"""

# Shape letters: B windows, T history steps, N sensors

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from typing import NamedTuple

import torch
from torch import Tensor

from socialx.batch import Example
from socialx.data.loaders import Loader
from socialx.profiling import collector
from socialx.profiling.analysis import Partition, partition, quantile, variation
from socialx.profiling.device import sampling
from socialx.profiling.profile import (
    Memory,
    Profile,
    Shares,
    StepTimes,
    Throughput,
    TracedKernels,
    TracedSync,
    Window,
)
from socialx.profiling.trace import Trace
from socialx.progress import work
from socialx.training.clock import StepClock, clock_for
from socialx.training.learner import Learner
from socialx.training.loop import run_steps

TRACE_STEPS = 8


def measure(
    learner: Learner,
    loader: Loader,
    steps: int,
    warmup_steps: int,
    log_every_n_steps: int,
    trace_steps: int = TRACE_STEPS,
) -> Profile:
    """Warm up, then measure ``steps`` optimizer steps.

    On CUDA ``trace_steps`` more are taken under a kernel trace (0: none), after the clock has stopped.  The model is
    trained while it is measured; throw it away afterwards.
    """
    device = learner.precision.device
    windows_per_step = loader.num_windows / len(loader) * learner.accumulate_grad_batches
    learner.model.train()
    with work("profile", warmup_steps + steps, "steps") as bar:
        training = _Training(learner, loader, log_every_n_steps, bar.advance)
        training.take(warmup_steps)
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats(device)
        clock = clock_for(device)
        with sampling(device) as samples:
            training.take(steps, clock)
            parts = partition(clock.read())
        memory = _memory(device)
        trace, sites = _trace(training, trace_steps, device)
    traced = _traced(trace, sites, parts, steps)
    why = dict(traced.why)
    if memory is None:
        why["memory"] = "no CUDA device: allocator statistics exist for CUDA alone"
    if samples.why:
        why["device"] = samples.why
    ms = 1e3 * parts.wall / steps
    p50, p95, p99 = (1e3 * quantile(parts.step_seconds, share) for share in (0.5, 0.95, 0.99))
    return Profile(
        window=Window(steps, parts.wall, warmup_steps, clock.kind),
        shares=traced.shares,
        ms_per_step=Shares(*(None if s is None else ms * s for s in astuple(traced.shares))),  # type: ignore[arg-type]
        step_ms=StepTimes(p50, p95, p99, variation(parts.step_seconds)),
        throughput=Throughput(windows_per_step * steps / parts.wall),
        gpu_busy=trace.gpu_busy,
        sm_efficiency=trace.sm_efficiency,
        bubble=traced.bubble,
        kernels=traced.kernels,
        sync=traced.sync,
        copy=trace.copy,
        memory=memory,
        device=samples.summary(),
        why=why,
    )


def _trace(training: _Training, steps: int, device: torch.device) -> tuple[Trace, list[str]]:
    """The traced steps, and the lines that wait for the device."""
    if device.type != "cuda":
        return Trace.missing(0, "no CUDA device"), []
    if not steps:
        return Trace.missing(0, "trace_steps is 0"), []
    clock = collector.TraceClock()
    trace = collector.trace_steps(lambda: training.take(1, clock), steps, device)
    return trace, collector.sync_sites(lambda: training.take(1))


class _Traced(NamedTuple):
    shares: Shares
    bubble: dict[str, float] | None
    kernels: TracedKernels | None
    sync: TracedSync | None
    why: dict[str, str]


def _traced(trace: Trace, sites: list[str], parts: Partition, steps: int) -> _Traced:
    """What the trace adds to the clock's partition.

    The clock's window is the truth about time, so the trace only divides its span: kernel and bubble sum to the span,
    and the causes of the bubble to the bubble.
    """
    shares, bubble = Shares(**parts.shares), None
    if trace.span is not None:
        bubble = {cause: parts.shares["span"] * share for cause, share in trace.span.items()}
        kernel = bubble.pop("kernel")
        shares = replace(shares, kernel=kernel, bubble=sum(bubble.values()))
    kernels = sync = None
    if trace.kernels is not None and trace.wall_us is not None:
        slowdown = trace.wall_us / trace.steps / (1e6 * parts.wall / steps)
        kernels = TracedKernels(**vars(trace.kernels), traced_steps=trace.steps, slowdown=slowdown)
    if trace.sync is not None:
        sync = TracedSync(**vars(trace.sync), sites=sites)
    why = {key: reason for key, reason in trace.why.items() if key != "span"}
    if "span" in trace.why:
        why = {**dict.fromkeys(("shares.kernel", "shares.bubble", "bubble"), trace.why["span"]), **why}
    return _Traced(shares, bubble, kernels, sync, why)


class _Training:
    """The loop that ``train`` runs, piece by piece: batches and readings of the loss go on from one to the next."""

    def __init__(self, learner: Learner, loader: Loader, log_every_n_steps: int, advance: Callable[[], None]) -> None:
        self._learner, self._batches = learner, _endless(loader)
        self._log_every_n_steps, self._advance = log_every_n_steps, advance
        self._running = torch.zeros((), device=learner.precision.device)
        self._taken = 0

    def take(self, steps: int, clock: StepClock | None = None) -> None:
        """``steps`` optimizer steps, the loss read as often as training reads it."""
        last = self._taken + steps

        def after_step(loss: Tensor, _: int) -> bool:
            self._taken += 1
            self._running.add_(loss)
            if self._taken % self._log_every_n_steps == 0:
                self._running.item()
            self._advance()
            return self._taken == last

        if steps:
            run_steps(self._learner, self._batches, after_step, clock)


def _endless(loader: Loader) -> Iterator[Example]:
    epoch = 0
    while True:
        yield from loader.epoch(epoch)
        epoch += 1


def _memory(device: torch.device) -> Memory | None:
    if device.type != "cuda":
        return None
    stats = torch.cuda.memory_stats(device)
    return Memory(
        peak_bytes=torch.cuda.max_memory_allocated(device),
        reserved_bytes=torch.cuda.max_memory_reserved(device),
        capacity_bytes=torch.cuda.get_device_properties(device).total_memory,
        alloc_retries=stats.get("num_alloc_retries", 0),
    )
