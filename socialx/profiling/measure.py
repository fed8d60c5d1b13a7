"""Run real training steps under a clock, and report the time by cause.

The loop is the loop in ``train`` with the same loader, step and logging. Times come first, then traces and trials,
because traces slow steps down.
"""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from socialx.core.environment import others_cpu_s, peak_bytes, total_memory, usable_cores, used_bytes
from socialx.core.errors import Argument, Message
from socialx.core.progress import note, work
from socialx.dataset.loaders import Loader, WorkerLoader
from socialx.profiling import collector, sections
from socialx.profiling.analysis import (
    PARTS,
    Partition,
    bin_seconds,
    busy_bins,
    fluctuation,
    group_means,
    outliers,
    partition,
)
from socialx.profiling.profile import Profile, Trial
from socialx.profiling.trace import Trace
from socialx.profiling.trials import synchronize, try_settings
from socialx.training.clock import DeviceClock, HostClock, StepClock, clock_for
from socialx.training.cuda_graph import WARMUP
from socialx.training.gpu_usage import DeviceSamples, growth, sample_device
from socialx.training.learner import Learner
from socialx.training.loop import epoch_examples, run_steps

TRACE_STEPS = 8
NO_STEPS = "trace_steps is 0"
RECORDED = "with trainer.cuda_graph a step is one launch"
CPU_TRACE_STEPS, LONG_MS = 2, 500  # a step has thousands of operators there, and a long one is traced alone
LEAST_STEPS, LEAST_WARM, WARM_S = 8, 2, 3.0  # of a measurement and its warm-up; of the latter on a CPU
MEMORY_SAMPLES = 40
LOOK_S = 0.05  # between two of them, each of which takes some 0.02 ms
POINTS = 600  # of a picture
WAITED = 0.05  # share of a time from which on it counts as waiting
# NVML's bits for a clock that was lowered, other than for idleness or by the user (nvml.h, clocks event reasons).
REASONS = {"power cap": 0x4, "hardware slowdown": 0x8, "temperature": 0x60, "power brake": 0x80}


@dataclass(frozen=True)
class Lengths:
    """The length of a profile in steps. trace_steps: at most two on a CPU, 0: skipped. trials: try settings.

    max_seconds: time after which measuring ends early, with at least eight steps. batches: per optimizer step.
    """

    steps: int
    warmup_steps: int
    log_every_n_steps: int
    trace_steps: int = TRACE_STEPS
    trials: bool = True
    max_seconds: float = math.inf
    batches: int = 1


def measure(
    learner: Learner, loader: Loader, lengths: Lengths, facts: sections.LoaderFacts, keep: Path | None = None
) -> Profile:
    """Warm up, measure ``lengths.steps`` optimizer steps, then trace and try a few more; return the profile.

    facts: the section ``loader`` as known before a step. keep: file for the trace, None for no file. The measured steps
    train the model: discard the model afterwards.
    """
    device, steps = learner.precision.device, lengths.steps
    if learner.records:  # the recording itself belongs to the warm-up
        lengths = replace(lengths, warmup_steps=max(lengths.warmup_steps, WARMUP + 1))
    learner.model.train()
    with work("profile", lengths.warmup_steps + steps, "steps") as bar:
        training = Training(learner, loader, lengths.log_every_n_steps, bar.advance)
        training.warm_up(lengths.warmup_steps)
        lengths = replace(lengths, warmup_steps=training.taken, batches=learner.trainer.accumulate_grad_batches)
        synchronize(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        loader.making_s.clear()
        clock, compiled, cpu_s, others_s = clock_for(device), _compilations(), time.process_time(), others_cpu_s()
        with sample_device(device) as samples, _collection_times() as collected:
            training.take(steps, clock, lengths.max_seconds)
            parts = partition(clock.read())
        cpu_s, later_s = time.process_time() - cpu_s, others_cpu_s()
        if (measured_steps := len(parts.step_seconds)) < steps:
            told = f"{measured_steps} of {steps} steps were measured"
            note(Message("profile.steps", Argument("profile.max_seconds", f"{lengths.max_seconds:g}"), told))
        measured = clock_sections(clock, parts, loader, lengths, facts)
        host = replace(measured.host, cores_used=cpu_s / parts.wall, gc=sum(collected) / parts.wall)
        if others_s is not None and later_s is not None and learner.group.world_size == 1:
            host = replace(host, others_used=max(0.0, later_s - others_s) / parts.wall)
        measured = replace(
            measured,
            host=host,
            memory=_memory(device, training.used, measured_steps, learner.records),
            device=device_section(samples),
            recompiles=_compilations() - compiled,
            why={**measured.why, **({"device": samples.why} if samples.why else {})},
        )
        measured = _add_trace(measured, training, lengths.trace_steps, device, keep)
    example = next(iter(epoch_examples(learner, loader, 0))).to(device)
    _, lookback, sensors, *_ = example.gather().batch.inputs.shape
    rate, tried = measured.throughput.windows_per_s, list[Trial]()
    if lengths.trials and learner.group.world_size == 1:
        with work("trying settings", None, "steps") as bar:
            tried = try_settings(learner, example, bar.advance, loader.num_windows)
    return replace(measured, throughput=sections.Throughput(rate, rate * lookback * sensors), trials=tried)


def _add_trace(measured: Profile, training: Training, steps: int, device: torch.device, keep: Path | None) -> Profile:
    """Return the profile with a trace of ``steps`` steps, and lines that wait for the device; keep: trace file."""
    trace, sites, operators, reason = Trace.missing(0, "no CUDA device"), list[str](), list[sections.Top](), NO_STEPS
    if device.type == "cuda":
        trace, reason = Trace.missing(0, NO_STEPS), "a CPU's operators are not the time of a CUDA device"
        if steps:
            clock = collector.TraceClock()
            trace = collector.trace_steps(lambda: training.take(1, clock), steps, device, keep)
            sites = collector.sync_sites(lambda: training.take(1))
    elif steps:
        most = CPU_TRACE_STEPS if measured.step_ms.p50 < LONG_MS else 1
        host = HostClock()
        operators, reason = collector.trace_operators(lambda: training.take(1, host), min(steps, most), keep)
    measured = with_trace(measured, trace, sites)
    if operators:
        waiting = _waiting(host, partition(host.read()))
        return replace(measured, operators=sections.Operators(operators, waiting))
    return replace(measured, why={**measured.why, "operators": reason})


def with_trace(measured: Profile, trace: Trace, sites: list[str]) -> Profile:
    """Return the profile by the clock with a trace added; sites: the lines that wait for the device.

    The clock decides about time, and the trace divides the phases: kernel and bubble sum to the span, and the causes of
    the bubble to the bubble.
    """
    shares, bubble, idle, sync, kernels = measured.shares, None, None, trace.sync, trace.kernels
    why = {key: reason for key, reason in trace.why.items() if key != "span"}
    if trace.span is not None:
        idle = _idle(shares, trace.phases)
        causes = {cause: shares.span * share for cause, share in trace.span.items()}
        shares = replace(shares, kernel=causes.pop("kernel"), bubble=sum(causes.values()))
        bubble = sections.Bubble(**causes)
    else:
        why = {**dict.fromkeys(("shares.kernel", "shares.bubble", "bubble", "idle"), trace.why["span"]), **why}
    if kernels is not None and trace.wall_us is not None:
        kernels = replace(kernels, slowdown=trace.wall_us / trace.steps / (1e6 * measured.step_s))
    return replace(
        measured,
        shares=shares,
        gpu_busy=trace.gpu_busy,
        sm_efficiency=trace.sm_efficiency,
        bubble=bubble,
        idle=idle,
        kernels=kernels,
        sync=sync and replace(sync, sites=sites),
        copy=trace.copy,
        why={**why, **measured.why},
    )


def _idle(shares: sections.Phases, phases: Mapping[str, Mapping[str, float]]) -> sections.Idle:
    """Return device idle time by cause, from phase shares by the clock and ``Trace.phases``."""

    def window_share(cause: str, *names: str) -> float:
        return sum(getattr(shares, name) * phases[name][cause] for name in names if name in phases)

    every = ("input", "transfer", "span", "hooks")
    late, queued = window_share("launch", "transfer", "span"), window_share("queued", *every)
    copy, unknown = window_share("copy", *every), window_share("unknown", *every)
    input = window_share("launch", "input") + window_share("sync", "input")
    sync, hooks = window_share("sync", *every[1:]), window_share("launch", "hooks")
    unasked = input + sync + hooks
    return sections.Idle(
        late + queued + unasked + copy + unknown, late, queued, unasked, input, sync, hooks, copy, unknown
    )


def clock_sections(
    clock: HostClock | DeviceClock, parts: Partition, loader: Loader, lengths: Lengths, facts: sections.LoaderFacts
) -> Profile:
    """Return a profile with the sections that need only the clock.

    parts: the measured phases.  lengths: for warm-up and logging steps, and batches.  facts: the section so far.
    """
    batches, steps, step_s = lengths.batches, len(parts.step_seconds), parts.wall / len(parts.step_seconds)
    p50, p95, p99 = (1e3 * np.quantile(parts.step_seconds, (0.5, 0.95, 0.99))).tolist()
    facts = _loader_supply(facts, loader, parts, batches) if loader.making_s else facts
    bin_s = bin_seconds(parts)
    bins, busy = group_means(busy_bins(parts, bin_s), POINTS)
    steps_per_point, step_ms = group_means(1e3 * parts.step_seconds, POINTS)
    causes = {  # what comes again after so many steps, the most likely first
        "loader.num_workers": (facts.num_workers or 0) / batches if facts.mode == "workers" else 0,
        "loader.shard_gb": (facts.batches_per_shard or 0) / batches,
        "trainer.log_every_n_steps": lengths.log_every_n_steps,
        "the end of an epoch": facts.batches_per_epoch / batches,
    }
    rate = loader.num_windows / len(loader) * batches / step_s
    return Profile(
        window=sections.Window(steps, parts.wall, lengths.warmup_steps, clock.kind),
        shares=sections.Phases(**parts.shares, **parts.parts),
        step_ms=sections.StepTimes(p50, p95, p99, outliers(parts.step_seconds)),
        throughput=sections.Throughput(rate),
        loader=facts,
        host=sections.Host(torch.get_num_threads(), usable_cores(), waiting=_waiting(clock, parts)),
        fluctuation=fluctuation(parts, {name: every for name, every in causes.items() if every > 0}),
        timeline=sections.Timeline(bins * bin_s, busy, steps_per_point, step_ms),
        why={} if parts.parts else dict.fromkeys((f"shares.{part}" for part in PARTS.values()), RECORDED),
    )


def _waiting(clock: HostClock | DeviceClock, parts: Partition) -> float | None:
    """Return the window share in which a training step slept or lacked a core; None on a device."""
    if (cpu_s := clock.cpu_seconds()) is None:
        return None
    return max(0.0, parts.seconds["span"] - parts.per_phase(np.diff(np.array(cpu_s)))["span"]) / parts.wall


def _loader_supply(facts: sections.LoaderFacts, loader: Loader, parts: Partition, batches: int) -> sections.LoaderFacts:
    """Return loader ``facts`` with seconds per batch, supply and lateness from phases ``parts``; batches: per step."""
    making, steps = statistics.median(loader.making_s), len(parts.step_seconds)
    computing = (parts.wall - parts.seconds["input"]) / steps / batches  # s per batch, where it need not wait
    if facts.mode == "sharded":
        making /= max(1.0, facts.batches_per_shard or 1.0)
    workers = max(1, facts.num_workers or 0)
    late, size = None, 2 * workers * (facts.prefetch_factor or 1)  # steps in which the queue is emptied twice
    if (count := steps // size) >= 3:
        waited, taken = (
            seconds[: count * size].reshape(count, size).sum(1) for seconds in (parts.waits(), parts.step_seconds)
        )
        late = float(np.mean(waited >= WAITED * taken))
    return replace(facts, making_s=making, supply=workers * computing / making, late=late)


class Training:
    """The loop in ``train``, piece by piece, with batches and loss readings continued between pieces."""

    def __init__(
        self, learner: Learner, loader: Loader, log_every_n_steps: int, advance: Callable[[], None] = lambda: None
    ) -> None:
        epochs = (epoch_examples(learner, loader, number) for number in itertools.count())
        self._learner, self._batches = learner, itertools.chain.from_iterable(epochs)
        self._log_every_n_steps, self._advance = log_every_n_steps, advance
        self._running = torch.zeros((), device=learner.precision.device)
        self.taken = 0
        ahead = loader.made_ahead if isinstance(loader, WorkerLoader) else 0
        # For which workers have batches after a pause.
        self.queued_steps = -(-ahead // learner.trainer.accumulate_grad_batches)
        self.used: list[int] = []  # bytes that were in use, at equal distances of the steps under a clock

    def warm_up(self, steps: int) -> None:
        """Take ``steps`` steps, or as many as fit in 3 s (at least two) on a CPU where one process compiles nothing."""
        learner = self._learner
        brief = learner.precision.device.type == "cpu" and not learner.compiles and learner.group.world_size == 1
        self.take(steps, most_s=WARM_S if brief and not learner.records else math.inf, least=LEAST_WARM)

    def take(
        self, steps: int, clock: StepClock | None = None, most_s: float = math.inf, least: int = LEAST_STEPS
    ) -> None:
        """Take ``steps`` optimizer steps under ``clock``; after ``most_s`` seconds ``least`` steps are enough.

        The loss is read every ``log_every_n_steps`` steps as in a training, and memory in use is sampled under a clock.
        """
        first, last = self.taken, self.taken + steps
        apart, looked, until = max(1, steps // MEMORY_SAMPLES), 0.0, time.monotonic() + most_s

        def after_step(loss: Tensor, _: int) -> bool:
            nonlocal looked
            self.taken += 1
            self._running.add_(loss)
            if self.taken % self._log_every_n_steps == 0:
                self._running.item()
            if clock is not None and (self.taken - first) % apart == 0 and time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                self.used.append(used_bytes(self._learner.precision.device))
            self._advance()
            return self.taken == last or (self.taken - first >= least and time.monotonic() > until)

        if steps:
            run_steps(self._learner, self._batches, after_step, clock)


def _memory(device: torch.device, used: list[int], steps: int, records: bool = False) -> sections.Memory:
    """Return peak bytes, and growth in bytes per step after the first tenth of the window.

    used: bytes in use, sampled at equal distances. records: steps replay a CUDA graph, whose memory is a reserved pool.
    """
    later, grown, monotone = used[len(used) // 10 :], None, None
    if len(later) >= 5:
        grown, monotone = growth(later) * len(used) / steps, float(np.mean(np.diff(later) >= 0))
    if device.type != "cuda":
        return sections.Memory(peak_bytes(), total_memory() or 0, None, None, grown, monotone)
    reserved = torch.cuda.max_memory_reserved(device)
    peak = reserved if records else torch.cuda.max_memory_allocated(device)
    retries = torch.cuda.memory_stats(device).get("num_alloc_retries", 0)
    return sections.Memory(
        peak, torch.cuda.get_device_properties(device).total_memory, reserved, retries, grown, monotone
    )


def device_section(samples: DeviceSamples) -> sections.Device | None:
    """Return NVML's numbers over the window, or None without samples.

    throttled_by: the most frequent reason for a lowered clock, if present in half of the samples, else None.
    """
    if samples.mean is None:
        return None
    counts = {name: sum(bool(bits & bit) for bits in samples.reasons) for name, bit in REASONS.items()}
    reason = max(counts, key=lambda name: counts[name])
    return sections.Device(
        samples.mean / 100,
        min(samples.utilisation) / 100,
        max(samples.utilisation) / 100,
        sum(samples.clock) / len(samples.clock) if samples.clock else None,
        reason if samples.reasons and 2 * counts[reason] >= len(samples.reasons) else None,
    )


@contextmanager
def _collection_times() -> Iterator[list[float]]:
    """Yield a list that receives seconds for every run of Python's garbage collector until the block ends."""
    seconds: list[float] = []
    began = 0.0

    def watch(phase: str, _: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        elif began:
            seconds.append(time.perf_counter() - began)

    gc.callbacks.append(watch)
    try:
        yield seconds
    finally:
        gc.callbacks.remove(watch)


def _compilations() -> int:
    """Return the number of graphs compiled by torch.compile in this process, without importing torch._dynamo."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def first_batches(loader: Loader, count: int, device: torch.device) -> float:
    """Return the median seconds until a loader's batch is on ``device``, over ``count`` batches after the first."""
    seconds = []
    batches = itertools.islice(itertools.chain.from_iterable(map(loader.epoch, itertools.count())), count + 1)
    began = time.perf_counter()
    for example in batches:
        example.to(device)
        synchronize(device)
        moment = time.perf_counter()
        seconds.append(moment - began)
        began = moment
    return statistics.median(seconds[1:])
