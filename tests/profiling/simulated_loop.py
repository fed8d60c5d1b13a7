"""A simulated training loop on a GPU: what a profile of it shows, and what really makes it slow.

A loader makes batches, the host launches kernels, and one stream executes them in order.  The cause of lost time is
known, because each cause can be removed and the loop be run again.  It is simplified in four ways.  A launch takes
effect when its host time has passed.  The device makes no pause of its own between two kernels.  Workers never compete
for cores.  An epoch never ends.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np

from socialx.profiling.analysis import partition
from socialx.profiling.profile import (
    Host,
    Loading,
    Memory,
    Profile,
    Shares,
    StepTimes,
    Throughput,
    TracedKernels,
    TracedSync,
    Window,
)
from socialx.profiling.trace import TINY_US, Copy, Top

WARMUP_STEPS = 20
QUEUE = 1000  # launches that may wait for the device; the host waits before it makes one more
PLACES = np.arange(QUEUE, dtype=np.float64)
HEALTHY = 1.05  # a smaller gain is none
NEVER = 1 << 40
BATCH_SIZE = 64
GIB = 1 << 30
CAPACITY_BYTES = 80 * GIB
PEAK_BYTES = 8 * GIB  # without the series
GB_PER_S = {True: 25.0, False: 6.0}  # of a copy from memory that is pinned, or not
REMOVED: dict[str, dict[str, Any]] = {
    "INPUT": {"making_s": 0.0, "gather_us": 0.0},
    "SYNC": {"syncs": 0, "log_every": NEVER},
    "COPY": {"copy_s": 0.0},
    "LAUNCH": {"launch_us": 0.0},
    "HOOK": {"hook_s": 0.0},
}


@dataclass(frozen=True)
class Loop:
    """A training loop.  Its first WARMUP_STEPS steps are not measured.

    mode: ``inline`` (the host makes each batch when it fetches it), ``workers``, or ``resident`` (the device gathers
    the batch, and nothing is copied).  making_s: median seconds in which one worker, or the host, makes a batch.
    jitter: sigma of the lognormal distribution of these seconds.  burst_share: of batches that take ``burst_times`` as
    long.  syncs: waits of the host per step, evenly spread over the kernels, the last one behind all of them.
    sync_us: from the end of the work that the host waits for until the host goes on.  log_every: steps between two
    waits behind the step.  hook_s: host work after every ``hook_every`` steps.  sm_efficiency: of a running kernel.
    tensor_core_share, sm_efficiency, cores, fits (the series fits into the device's memory): not simulated, passed on.
    """

    mode: str = "workers"
    num_workers: int = 4
    prefetch_factor: int = 2
    pin_memory: bool = True
    making_s: float = 10e-3
    jitter: float = 0.0
    burst_share: float = 0.0
    burst_times: float = 1.0
    gather_us: float = 20.0
    copy_s: float = 0.0
    kernels: int = 200
    kernel_us: float = 100.0
    launch_us: float = 5.0
    syncs: int = 0
    sync_us: float = 20.0
    log_every: int = 50
    hook_s: float = 0.0
    hook_every: int = 50
    tensor_core_share: float = 0.5
    sm_efficiency: float = 0.9
    cores: int = 16
    fits: bool = True
    steps: int = 120
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What happened in the measured steps.

    marks: from the first fetch to the closing one.  kernel_busy, copy_busy: shares of the window.  span: shares of the
    training steps' device time by cause, as in ``Trace.span``.  making_s: median of the batches, None if resident.
    """

    marks: tuple[tuple[str, float], ...]
    step_s: float
    kernel_busy: float
    copy_busy: float
    span: dict[str, float]
    syncs_per_step: float
    making_s: float | None


class _Machine:
    """The host's clock, and one stream that executes in order what the host launches.

    spent: seconds of the stream per mark that they follow, and per cause: kernel, copy, sync or launch.
    """

    def __init__(self) -> None:
        self.host = self.end = 0.0  # the host's present, and the end of all work that was launched
        self.marks = [("done", 0.0)]
        self.spent: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.waits = 0
        self._ends = np.zeros(QUEUE)  # of the last launches
        self._cause = "launch"  # of the stream's idle time until the next launch

    def mark(self, name: str) -> None:
        """Record an event, which is stamped when the stream reaches it."""
        phase, stamp = self.marks[-1]
        at = max(self.host, self.end)
        self.spent[phase, self._cause] += at - max(self.end, stamp)
        self.marks.append((name, at))

    def launch(self, kind: str, count: int, launch_s: float, device_s: float) -> None:
        """Launch ``count`` equal pieces of work, each when the queue has a place for it."""
        phase, stamp = self.marks[-1]
        for size in (*[QUEUE] * (count // QUEUE), count % QUEUE):
            if not size:
                continue
            launched = _in_turn(self._ends[:size], self.host, launch_s)
            ends = _in_turn(launched, self.end, device_s)
            free = max(self.end, stamp)
            first = max(0.0, float(ends[0]) - device_s - free)
            self.spent[phase, self._cause] += first
            self.spent[phase, "launch"] += max(0.0, float(ends[-1]) - free - size * device_s - first)
            self.spent[phase, kind] += size * device_s
            self.host, self.end, self._cause = float(launched[-1]), float(ends[-1]), "launch"
            self._ends = np.concatenate((self._ends[size:], ends))

    def wait(self, latency_s: float) -> None:
        """Let the host wait for all work that it launched."""
        self.host = max(self.host, self.end) + latency_s
        self.waits += 1
        self._cause = "sync"


def _in_turn(free: np.ndarray, start: float, seconds: float) -> np.ndarray:
    """When each piece of work ends: end[i] = max(end[i - 1], free[i]) + seconds, where free never falls."""
    passed = PLACES[: len(free)] * seconds
    if free[-1] <= start:
        return start + seconds + passed
    return np.maximum.accumulate(np.maximum(free - passed, start)) + seconds + passed


@lru_cache(32)
def run(loop: Loop) -> Outcome:
    """Simulate a loop."""
    machine, making = _Machine(), _making(loop)
    launch_s = loop.launch_us * 1e-6
    bounds = [loop.kernels * part // max(1, loop.syncs) for part in range(max(1, loop.syncs) + 1)]
    ready: list[float] = []  # when each batch was made
    served: list[float] = []  # when the host had it
    for step in range(loop.steps):
        machine.mark("fetch")
        if step == WARMUP_STEPS:
            machine.spent.clear()
            machine.waits = 0
        if loop.mode == "inline":
            machine.host += making[step]
        elif loop.mode == "workers":
            ahead = loop.num_workers * loop.prefetch_factor
            asked = served[step - ahead] if step >= ahead else 0.0
            free = ready[step - loop.num_workers] if step >= loop.num_workers else 0.0
            ready.append(max(asked, free) + making[step])
            machine.host = max(machine.host, ready[step])
            served.append(machine.host)
        elif loop.gather_us:
            machine.launch("kernel", 1, launch_s, loop.gather_us * 1e-6)
        machine.mark("copy")
        if loop.copy_s and loop.mode != "resident":
            machine.launch("copy", 1, launch_s, loop.copy_s)
            if not loop.pin_memory:
                machine.host = machine.end
        machine.mark("compute")
        for begin, end in itertools.pairwise(bounds):
            machine.launch("kernel", end - begin, launch_s, loop.kernel_us * 1e-6)
            if loop.syncs:
                machine.wait(loop.sync_us * 1e-6)
        machine.mark("done")
        if (step + 1) % loop.log_every == 0:
            machine.wait(loop.sync_us * 1e-6)
        if (step + 1) % loop.hook_every == 0:
            machine.host += loop.hook_s
    machine.mark("fetch")
    return _outcome(loop, machine, making[WARMUP_STEPS:])


def _making(loop: Loop) -> list[float]:
    """Seconds of each batch, the same random numbers whatever the other settings are."""
    random = np.random.default_rng(loop.seed)
    jitter = np.exp(loop.jitter * random.standard_normal(loop.steps))
    burst = np.where(random.random(loop.steps) < loop.burst_share, loop.burst_times, 1.0)
    return (loop.making_s * jitter * burst).tolist()


def _outcome(loop: Loop, machine: _Machine, making: list[float]) -> Outcome:
    steps = loop.steps - WARMUP_STEPS
    marks = tuple(machine.marks[1 + 4 * WARMUP_STEPS :])
    wall = marks[-1][1] - marks[0][1]
    span = {cause: machine.spent["compute", cause] for cause in ("kernel", "copy", "sync", "launch")}
    busy = {kind: sum(s for (_, cause), s in machine.spent.items() if cause == kind) for kind in ("kernel", "copy")}
    return Outcome(
        marks,
        wall / steps,
        busy["kernel"] / wall,
        busy["copy"] / wall,
        {**{cause: seconds / sum(span.values()) for cause, seconds in span.items()}, "queued": 0.0, "unknown": 0.0},
        machine.waits / steps,
        None if loop.mode == "resident" else float(np.median(making)),
    )


def gains(loop: Loop) -> dict[str, float]:
    """How many times as fast the loop is without each cause: seconds before over seconds after."""
    changed = {family: replace(loop, **change) for family, change in REMOVED.items()}
    return {family: 1.0 if each == loop else run(loop).step_s / run(each).step_s for family, each in changed.items()}


def truth(loop: Loop) -> tuple[str, float]:
    """The cause whose removal gains most, and that gain; ``healthy`` where no removal gains 5 %."""
    family, gain = max(gains(loop).items(), key=lambda item: item[1])
    return (family if gain >= HEALTHY else "healthy"), gain


def profile_of(loop: Loop) -> Profile:
    """The profile that a measurement of this loop on CUDA would give."""
    outcome = run(loop)
    parts = partition(outcome.marks)
    steps, step_seconds = loop.steps - WARMUP_STEPS, np.asarray(parts.step_seconds)
    share = {phase: float(parts.shares[phase]) for phase in ("input", "transfer", "span", "hooks")}
    bubble = {cause: share["span"] * part for cause, part in outcome.span.items()}
    share["kernel"] = bubble.pop("kernel")
    share["bubble"] = sum(bubble.values())
    p50, p95, p99 = (1e3 * float(np.quantile(step_seconds, q)) for q in (0.5, 0.95, 0.99))
    waits = {"cudaStreamSynchronize": outcome.syncs_per_step} if outcome.syncs_per_step else {}
    copies, rate = bool(loop.copy_s) and loop.mode != "resident", GB_PER_S[loop.pin_memory]
    peak_bytes = PEAK_BYTES + (_series_bytes(loop) if loop.mode == "resident" else 0)
    loader = _loading(loop, outcome, float(parts.seconds["input"]) / steps, CAPACITY_BYTES - peak_bytes)
    working = min(loader.num_workers or 0, (outcome.making_s or 0.0) / outcome.step_s)
    return Profile(
        window=Window(steps, parts.wall, WARMUP_STEPS, "device"),
        shares=Shares(**share),
        ms_per_step=Shares(**{name: 1e3 * outcome.step_s * part for name, part in share.items()}),
        step_ms=StepTimes(p50, p95, p99, float(step_seconds.std() / step_seconds.mean())),
        throughput=Throughput(BATCH_SIZE / outcome.step_s),
        gpu_busy=outcome.kernel_busy + outcome.copy_busy,
        sm_efficiency=outcome.kernel_busy * loop.sm_efficiency,
        bubble=bubble,
        kernels=_kernels(loop),
        sync=TracedSync(outcome.syncs_per_step, waits, sites=["train.py:1"] if waits else []),
        copy=Copy(loop.copy_s * rate * 1e9, rate, not loop.pin_memory) if copies else Copy(0.0, None, None),
        memory=Memory(peak_bytes, CAPACITY_BYTES, peak_bytes, 0, 0.0, 1.0),
        device=None,
        why={},
        loader=loader,
        host=Host(1, loop.cores, 1.0 + working, waiting=None, gc=0.0),
        settings=_settings(loop, loader),
    )


def _kernels(loop: Loop) -> TracedKernels:
    count = loop.kernels + (loop.mode == "resident" and loop.gather_us > 0)
    return TracedKernels(
        per_step=count,
        us_p50=loop.kernel_us,
        tiny_share=float(loop.kernel_us < TINY_US),
        launches_per_step=count,
        graph_launches_per_step=0.0,
        occupancy=None,
        top=[Top("gemm", 1.0, loop.kernels * loop.kernel_us, loop.kernels)],
        traced_steps=8,
        slowdown=1.0,
    )


def _series_bytes(loop: Loop) -> int:
    return GIB if loop.fits else 4 * CAPACITY_BYTES


def _loading(loop: Loop, outcome: Outcome, input_s: float, free_bytes: int) -> Loading:
    """What a profile says of the loader: an inline one is one without workers."""
    if loop.mode == "resident":
        return Loading("resident", 1000, series_bytes=_series_bytes(loop), free_bytes=free_bytes)
    workers, making_s = (0 if loop.mode == "inline" else loop.num_workers), outcome.making_s
    return Loading(
        mode="workers",
        batches_per_epoch=1000,
        num_workers=workers,
        prefetch_factor=loop.prefetch_factor,
        pin_memory=loop.pin_memory,
        persistent_workers=True,
        series_bytes=_series_bytes(loop),
        free_bytes=free_bytes,
        making_s=making_s,
        supply=max(1, workers) * (outcome.step_s - input_s) / making_s if making_s else None,
    )


def _settings(loop: Loop, loader: Loading) -> dict[str, dict[str, Any]]:
    precision = "bf16-mixed" if loop.tensor_core_share else "32-true"
    loading = {"mode": loader.mode, "num_workers": loader.num_workers, "prefetch_factor": loop.prefetch_factor}
    training = {"precision": precision, "compile": "off", "cuda_graph": False, "log_every_n_steps": loop.log_every}
    return {"loader": {"batch_size": BATCH_SIZE, "pin_memory": loop.pin_memory, **loading}, "trainer": training}


def draw(random: Random) -> Loop:
    """A random loop: one thing makes it slow, or nothing, or two things."""
    count = random.choices((0, 1, 2), (0.15, 0.6, 0.25))[0]
    families = random.sample(tuple(REMOVED), count)
    loop = _with_loader(_with_kernels(random, "LAUNCH" in families), random)
    change = {"INPUT": _slow_input, "SYNC": _slow_sync, "COPY": _slow_copy, "HOOK": _slow_hook}
    for family in families:
        loop = change[family](loop, random) if family in change else loop
    return loop


def _compute_s(loop: Loop) -> float:
    return loop.kernels * max(loop.kernel_us, loop.launch_us) * 1e-6


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _with_kernels(random: Random, launch_bound: bool) -> Loop:
    if launch_bound:
        kernels, launch_us = round(_log_uniform(random, 400, 3000)), random.uniform(5, 10)
        kernel_us = max(3.0, launch_us * random.uniform(0.3, 0.9))
    else:
        kernels, launch_us = round(_log_uniform(random, 20, 3000)), random.uniform(3, 10)
        kernel_us = _within(_log_uniform(random, 2e3, 3e5) / kernels, 1.5 * launch_us, 2000)
    step_s, hook_every = kernels * max(kernel_us, launch_us) * 1e-6, random.choice((10, 50, 100))
    return Loop(
        kernels=kernels,
        kernel_us=kernel_us,
        launch_us=launch_us,
        pin_memory=random.random() < 0.5,
        copy_s=step_s * random.uniform(0, 0.015),
        log_every=random.choice((20, 50, 100)),
        hook_every=hook_every,
        hook_s=step_s * hook_every * random.uniform(0, 0.01),
        tensor_core_share=random.choice((0.0, random.uniform(0.2, 0.9))),
        sm_efficiency=random.uniform(0.3, 1.0),
        cores=random.choice((4, 8, 16, 32)),
        fits=random.random() < 0.7,
        seed=random.randrange(1 << 30),
    )


def _with_loader(loop: Loop, random: Random) -> Loop:
    """A loader that costs nothing as long as the host never waits for the device."""
    hidden_s = _compute_s(loop) - loop.kernels * loop.launch_us * 1e-6
    mode = random.choice(("workers", "inline", "resident"))
    if mode == "resident":
        return replace(loop, mode="resident", fits=True)
    if mode == "inline" and hidden_s > 2e-3:
        return replace(loop, mode="inline", making_s=_within(hidden_s * random.uniform(0.1, 0.7), 1e-3, 0.2))
    workers = random.randint(1, min(8, loop.cores))
    making_s = _within(workers * _compute_s(loop) / random.uniform(1.5, 4), 1e-3, 0.2)
    jitter, prefetch = random.choice((0.0, random.uniform(0, 0.3))), random.choice((2, 4, 8))
    return replace(loop, num_workers=workers, making_s=making_s, jitter=jitter, prefetch_factor=prefetch)


def _slow_input(loop: Loop, random: Random) -> Loop:
    kind, compute_s = random.choice(("inline", "starved", "bursty")), _compute_s(loop)
    if kind == "inline":
        making_s = _within(compute_s * _log_uniform(random, 0.1, 3), 1e-3, 0.2)
        return replace(loop, mode="inline", making_s=making_s, log_every=random.choice((1, loop.log_every)))
    most = _within(0.2 / (1.5 * compute_s), 1, min(8, loop.cores))
    workers = random.randint(1, int(most))
    loop = replace(loop, mode="workers", num_workers=workers, prefetch_factor=random.choice((2, 4, 8)))
    if kind == "starved":
        making_s = _within(workers * compute_s * random.uniform(1.1, 4), 1e-3, 0.2)
        return replace(loop, making_s=making_s, jitter=random.choice((0.0, random.uniform(0, 0.5))))
    making_s = _within(workers * compute_s / random.uniform(1.3, 3), 1e-3, 0.2)
    share, times = random.uniform(0.02, 0.1), _log_uniform(random, 5, 40)
    return replace(loop, making_s=making_s, burst_share=share, burst_times=times)


def _slow_sync(loop: Loop, random: Random) -> Loop:
    """Costly waits in every step, or one cheap wait, which exposes what was hidden before."""
    if random.random() < 0.5:
        return replace(loop, syncs=1) if random.random() < 0.5 else replace(loop, log_every=1)
    syncs, share = random.randint(1, 20), random.uniform(0.08, 0.6)
    return replace(loop, syncs=syncs, sync_us=_within(1e6 * share * _compute_s(loop) / syncs, 10, 2000))


def _slow_copy(loop: Loop, random: Random) -> Loop:
    share = random.uniform(0.08, 0.3)
    if loop.mode == "resident":
        making_s = _within(loop.num_workers * _compute_s(loop) / random.uniform(1.5, 4), 1e-3, 0.2)
        loop = replace(loop, mode="workers", making_s=making_s)
    return replace(loop, copy_s=_compute_s(loop) * share / (1 - share))


def _slow_hook(loop: Loop, random: Random) -> Loop:
    share, hook_every = random.uniform(0.08, 0.5), random.choice((1, 5, 10, 25, 50))
    log_every = random.choice((hook_every, loop.log_every))
    hook_s = _compute_s(loop) * hook_every * share / (1 - share)
    return replace(loop, hook_every=hook_every, hook_s=hook_s, log_every=log_every)
