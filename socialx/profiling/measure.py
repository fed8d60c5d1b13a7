"""Run real training steps under a clock and report where the device's time went.

The loop is the one that ``train`` runs, with its own loader, step and logging: nothing is measured that training does
not do, and what is not measured is null with a reason.  Times first, then traces and trials, which change them.
"""

# Shape letters: B windows, T history steps, N sensors

from __future__ import annotations

import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from socialx.batch import Example
from socialx.data.loaders import Loader, WorkerLoader
from socialx.environment import peak_bytes, total_memory, usable_cores, used_bytes
from socialx.profiling import collector
from socialx.profiling.analysis import Partition, grouped, outliers, partition, variation
from socialx.profiling.device import sampling
from socialx.profiling.fluctuation import bin_seconds, busy_bins, fluctuation
from socialx.profiling.profile import (
    Host,
    Loading,
    Machine,
    Memory,
    Overhead,
    Profile,
    Shares,
    StepTimes,
    Throughput,
    Timeline,
    TracedKernels,
    TracedSync,
    Trial,
    Window,
)
from socialx.profiling.trace import Operators, Trace
from socialx.profiling.trials import step_alone, try_settings
from socialx.profiling.work import machine, work_of
from socialx.progress import work
from socialx.training.capture import WARMUP, in_short
from socialx.training.clock import DeviceClock, HostClock, StepClock, clock_for
from socialx.training.leak import growth
from socialx.training.learner import Learner
from socialx.training.loop import run_steps

TRACE_STEPS = 8
CPU_TRACE_STEPS = 2  # a step has thousands of operators there
MEMORY_SAMPLES = 40
LOOK_S = 0.05  # between two of them, each of which takes some 0.02 ms
POINTS = 600  # of a picture
WAITED = 0.05  # share of a time from which on it counts as waiting
CLOCK_STEPS = 500  # of the clock alone


@dataclass(frozen=True)
class Lengths:
    """How long a profile measures.  trace_steps: a CPU takes at most two; 0: none.  trials: try settings."""

    steps: int
    warmup_steps: int
    log_every_n_steps: int
    trace_steps: int = TRACE_STEPS
    trials: bool = True


def measure(learner: Learner, loader: Loader, lengths: Lengths, loading: Loading, keep: Path | None = None) -> Profile:
    """Warm up, then measure ``lengths.steps`` optimizer steps, then trace and try a few more.

    loading: what is known of the loader.  keep: where the trace is written.  The model is trained while it is measured;
    throw it away afterwards.
    """
    device, steps = learner.precision.device, lengths.steps
    if learner.records:  # the recording itself belongs to the warm-up
        lengths = replace(lengths, warmup_steps=max(lengths.warmup_steps, WARMUP + 1))
    learner.model.train()
    with work("profile", lengths.warmup_steps + steps, "steps") as bar:
        training = Training(learner, loader, lengths.log_every_n_steps, bar.advance)
        training.take(lengths.warmup_steps)
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats(device)
        loader.making_s.clear()
        clock, compiled, cpu_s = clock_for(device), _compiled(), time.process_time()
        with sampling(device) as samples, _collecting() as collected:
            training.take(steps, clock)
            parts = partition(clock.read())
        cpu_s = time.process_time() - cpu_s
        recompiles = _compiled() - compiled
        memory = _memory(device, training.used, steps, learner.records)
        trace, sites, operators = _trace(training, lengths.trace_steps, device, keep)
    found = clocked(clock, parts, loader, learner.accumulate_grad_batches, lengths, loading)
    traced = _traced(trace, sites, parts, steps)
    why = dict(traced.why)
    if samples.why:
        why["device"] = samples.why
    if isinstance(operators, str):
        why["operators"] = operators
    example = next(iter(loader.epoch(0))).to(device)
    beside_workers = device.type == "cpu" and loading.num_workers  # they take cores from the step
    alone = step_alone(learner, example) if lengths.trials and beside_workers else None
    trials = _tried(learner, example, loader.num_windows) if lengths.trials else []
    flops, moved, reason = _work(learner, example)
    if reason:
        why["throughput.flops_per_step"] = why["throughput.bytes_per_step"] = reason
    rates, step_s = machine(learner.precision), parts.wall / steps
    windows = found.throughput.windows_per_s * step_s
    throughput = Throughput(
        windows_per_s=windows / step_s,
        sensor_steps_per_s=windows / step_s * _sensor_steps(example),
        flops_per_step=None if flops is None else flops * windows,
        bytes_per_step=None if moved is None or learner.precision.low else moved * windows,
        mfu=_mfu(flops, windows / step_s, rates),
    )
    host = (
        None
        if found.host is None
        else replace(found.host, cores_used=cpu_s / parts.wall, gc=collected.seconds / parts.wall, step_alone_s=alone)
    )
    return replace(
        found,
        shares=traced.shares,
        ms_per_step=_milliseconds(traced.shares, step_s),
        throughput=throughput,
        gpu_busy=trace.gpu_busy,
        sm_efficiency=trace.sm_efficiency,
        bubble=traced.bubble,
        kernels=traced.kernels,
        sync=traced.sync,
        copy=trace.copy,
        memory=memory,
        device=samples.summary(),
        why=why,
        host=host,
        operators=operators if isinstance(operators, Operators) else None,
        machine=rates,
        trials=trials,
        recompiles=recompiles,
        overhead=_overhead(device, step_s),
    )


def clocked(
    clock: HostClock | DeviceClock, parts: Partition, loader: Loader, batches: int, lengths: Lengths, loading: Loading
) -> Profile:
    """The part of a profile that the clock alone gives; batches: of a step."""
    steps, step_s = len(parts.step_seconds), parts.wall / len(parts.step_seconds)
    p50, p95, p99 = (1e3 * np.quantile(parts.step_seconds, (0.5, 0.95, 0.99))).tolist()
    loading = _supply(loading, loader, parts, batches)
    shares = Shares(**parts.shares)
    return Profile(
        window=Window(steps, parts.wall, lengths.warmup_steps, clock.kind),
        shares=shares,
        ms_per_step=_milliseconds(shares, step_s),
        step_ms=StepTimes(p50, p95, p99, variation(parts.step_seconds), outliers(parts.step_seconds)),
        throughput=Throughput(loader.num_windows / len(loader) * batches / step_s),
        loader=loading,
        host=_host(clock, parts),
        fluctuation=fluctuation(parts, _causes(loading, lengths, batches)),
        timeline=_timeline(parts),
    )


def _milliseconds(shares: Shares, step_s: float) -> Shares:
    return Shares(*(None if share is None else 1e3 * step_s * share for share in astuple(shares)))  # type: ignore[arg-type]


def _trace(
    training: Training, steps: int, device: torch.device, keep: Path | None
) -> tuple[Trace, list[str], Operators | str]:
    """The traced steps, the lines that wait for the device, and the operators of a CPU."""
    if device.type != "cuda":
        none = Trace.missing(0, "no CUDA device")
        if not steps:
            return none, [], "trace_steps is 0"
        return none, [], collector.trace_operators(lambda: training.take(1), min(steps, CPU_TRACE_STEPS), keep)
    if not steps:
        return Trace.missing(0, "trace_steps is 0"), [], "a CPU's operators are not the time of a CUDA device"
    clock = collector.TraceClock()
    trace = collector.trace_steps(lambda: training.take(1, clock), steps, device, keep)
    return trace, collector.sync_sites(lambda: training.take(1)), "a CPU's operators are not the time of a CUDA device"


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


class Training:
    """The loop that ``train`` runs, piece by piece: batches and readings of the loss go on from one to the next."""

    def __init__(
        self,
        learner: Learner,
        loader: Loader,
        log_every_n_steps: int,
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        self._learner, self._batches = learner, _endless(loader)
        self._log_every_n_steps, self._advance = log_every_n_steps, advance
        self._running = torch.zeros((), device=learner.precision.device)
        self._taken = 0
        ahead = loader.made_ahead if isinstance(loader, WorkerLoader) else 0
        self.queued_steps = -(-ahead // learner.accumulate_grad_batches)  # for which workers have batches after a pause
        self.used: list[int] = []  # bytes that were in use, at equal distances of the steps under a clock

    def take(self, steps: int, clock: StepClock | None = None) -> None:
        """``steps`` optimizer steps, the loss read as often as training reads it."""
        first, last = self._taken, self._taken + steps
        apart, looked = max(1, steps // MEMORY_SAMPLES), 0.0

        def after_step(loss: Tensor, _: int) -> bool:
            nonlocal looked
            self._taken += 1
            self._running.add_(loss)
            if self._taken % self._log_every_n_steps == 0:
                self._running.item()
            if clock is not None and (self._taken - first) % apart == 0 and time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                self.used.append(used_bytes(self._learner.precision.device))
            self._advance()
            return self._taken == last

        if steps:
            run_steps(self._learner, self._batches, after_step, clock)


def _endless(loader: Loader) -> Iterator[Example]:
    epoch = 0
    while True:
        yield from loader.epoch(epoch)
        epoch += 1


def _memory(device: torch.device, used: list[int], steps: int, records: bool = False) -> Memory:
    """The peak, and the slope of what was in use from one tenth of the window on.

    records: a replayed step allocates nothing: what it needs is in the pool of its recording, which is reserved.
    """
    later = used[len(used) // 10 :]
    each = monotone = None
    if len(later) >= 5:
        each = growth(later) * len(used) / steps
        monotone = float(np.mean(np.diff(later) >= 0))
    if device.type != "cuda":
        return Memory(peak_bytes(), total_memory() or 0, growth_bytes_per_step=each, monotone=monotone)
    return Memory(
        peak_bytes=torch.cuda.max_memory_reserved(device) if records else torch.cuda.max_memory_allocated(device),
        capacity_bytes=torch.cuda.get_device_properties(device).total_memory,
        reserved_bytes=torch.cuda.max_memory_reserved(device),
        alloc_retries=torch.cuda.memory_stats(device).get("num_alloc_retries", 0),
        growth_bytes_per_step=each,
        monotone=monotone,
    )


@dataclass
class _Collected:
    """Seconds in Python's garbage collector."""

    seconds: float = 0.0
    began: float = field(default=0.0, repr=False)


@contextmanager
def _collecting() -> Iterator[_Collected]:
    """Time the garbage collector until the block ends."""
    found = _Collected()

    def watch(phase: str, _: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            found.began = now
        elif found.began:
            found.seconds += now - found.began

    gc.callbacks.append(watch)
    try:
        yield found
    finally:
        gc.callbacks.remove(watch)


def _compiled() -> int:
    """Graphs that torch.compile has made in this process; it is not imported before it is used."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def _tried(learner: Learner, example: Example, windows: int) -> list[Trial]:
    with work("trying settings", None, "steps") as bar:
        return try_settings(learner, example, bar.advance, windows)


def _work(learner: Learner, example: Example) -> tuple[float | None, float | None, str]:
    """Operations and bytes of one window, or why they could not be counted."""
    try:
        return (*work_of(learner.model, example), "")
    except (RuntimeError, NotImplementedError, TypeError) as error:  # an operator that cannot be counted, or no memory
        return None, None, f"cannot be counted: {in_short(error)}"


def _sensor_steps(example: Example) -> int:
    """Readings of one window: history steps x sensors."""
    return example.batch.history.shape[1] * example.batch.history.shape[2]


def _mfu(flops: float | None, windows_per_s: float, rates: Machine) -> float | None:
    return None if flops is None else flops * windows_per_s / (rates.peak_flops_per_s or rates.matmul_flops_per_s)


def _supply(loading: Loading, loader: Loader, parts: Partition, batches: int) -> Loading:
    """The loading with what was measured of it; batches: of a step."""
    if not loader.making_s:
        return loading
    making = statistics.median(loader.making_s)
    steps = len(parts.step_seconds)
    computing = (parts.wall - parts.seconds["input"]) / steps / batches  # s per batch, where it need not wait
    if loading.mode == "chunk":
        making /= max(1.0, loading.batches_per_chunk or 1.0)
    workers = max(1, loading.num_workers or 0)
    late = _late(parts, workers * (loading.prefetch_factor or 1))
    return replace(loading, making_s=making, supply=workers * computing / making, late=late)


def _late(parts: Partition, queue: int) -> float | None:
    """Share of groups of steps, each of two full queues, that waited; None for less than three groups."""
    size = 2 * queue
    count = len(parts.step_seconds) // size
    if count < 3:
        return None
    waits, seconds = (each[: count * size].reshape(count, size).sum(1) for each in (parts.waits(), parts.step_seconds))
    return float(np.mean(waits >= WAITED * seconds))


def _causes(loading: Loading, lengths: Lengths, batches: int) -> dict[str, float]:
    """What comes again after so many steps, the most likely first; batches: of a step."""
    found: dict[str, float] = {}
    if loading.mode == "workers" and loading.num_workers:
        found["loader.num_workers"] = loading.num_workers / batches
    if loading.batches_per_chunk:
        found["loader.chunk_gb"] = loading.batches_per_chunk / batches
    found["trainer.log_every_n_steps"] = lengths.log_every_n_steps
    found["the end of an epoch"] = loading.batches_per_epoch / batches
    return {name: every for name, every in found.items() if every > 0}


def _host(clock: HostClock | DeviceClock, parts: Partition) -> Host:
    used, waiting = clock.cpu_seconds(), None
    if used is not None:
        computed = parts.of_phases(np.diff(np.array(used)))
        waiting = max(0.0, parts.seconds["span"] - float(computed[2])) / parts.wall
    return Host(torch.get_num_threads(), usable_cores(), None, waiting, None)


def _overhead(device: torch.device, step_s: float) -> Overhead:
    """The marks of a clock that nobody reads, by the host's time."""
    clock = clock_for(device)
    began = time.perf_counter()
    for _ in range(CLOCK_STEPS):
        for name in ("fetch", "copy", "compute", "done"):
            clock.mark(name)
    each = (time.perf_counter() - began) / CLOCK_STEPS
    return Overhead(1e6 * each, each / step_s)


def _timeline(parts: Partition) -> Timeline:
    bin_s = bin_seconds(parts)
    bins, busy = grouped(busy_bins(parts, bin_s), POINTS)
    steps, step_ms = grouped(1e3 * parts.step_seconds, POINTS)
    return Timeline(bins * bin_s, busy, steps, step_ms)


def first_batches(loader: Loader, count: int, device: torch.device) -> float:
    """Seconds of a batch of a loader, the median of ``count`` after the first one."""
    seconds = []
    batches = itertools.islice(itertools.chain.from_iterable(loader.epoch(n) for n in itertools.count()), count + 1)
    began = time.perf_counter()
    for each in batches:
        each.to(device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        seconds.append(now - began)
        began = now
    return statistics.median(seconds[1:])
