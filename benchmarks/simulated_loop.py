"""A simulated training loop on a GPU: the marks and the trace that it leaves, and what really makes it slow.

A loader makes batches, the host launches kernels, and one stream executes them in order.  The cause of lost time is
known, because each cause can be removed and the loop be run again.  It is simplified in four ways.  A launch takes
effect when its host time has passed.  The device makes no pause of its own between two kernels.  Workers never compete
for cores.  An epoch never ends.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from socialx.profiling.analysis import partition
from socialx.profiling.measure import Lengths, clock_sections, with_trace
from socialx.profiling.profile import Profile
from socialx.profiling.sections import Host, LoaderFacts, Memory
from socialx.profiling.trace import MARK, WINDOW, Trace, read_trace

WARMUP_STEPS = 20
QUEUE = 200  # launches that may wait for the device; the host waits before it makes one more
HEALTHY = 1.05  # a smaller gain is none
NEVER = 1 << 40
BATCH_SIZE = 64
GIB = 1 << 30
CAPACITY_BYTES = 80 * GIB
SMS = 132
US = 1e-6
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

    mode: ``inline`` (the host makes each batch when it fetches it), ``workers``, or ``on_device`` (the device gathers
    the batch, and nothing is copied).  making_s: median seconds in which one worker, or the host, makes a batch.
    jitter: sigma of the lognormal distribution of these seconds.  burst_share: of batches that take ``burst_times`` as
    long.  syncs: waits of the host per step, evenly spread over the kernels, the last one behind all of them.
    sync_us: from the end of the work that the host waits for until the host goes on.  log_every: steps between two
    waits behind the step.  hook_s: host work after every ``hook_every`` steps.  sm_efficiency: of a running kernel.
    half, cores, fits (the series fits into the device's memory): not simulated, passed on.
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
    half: bool = True
    sm_efficiency: float = 0.9
    cores: int = 16
    fits: bool = True
    steps: int = 120
    seed: int = 0

    @property
    def compute_s(self) -> float:
        """Seconds of the kernels of a step, or of their launches."""
        return self.kernels * max(self.kernel_us, self.launch_us) * US


Event = tuple[str, str, float, float, int]  # category, name, begin and end in seconds, correlation


@dataclass(frozen=True)
class Outcome:
    """The marks of the measured steps, the seconds of each of their batches, and the events of all steps."""

    marks: list[tuple[str, float]]
    events: list[Event]
    making_s: list[float]

    @property
    def step_s(self) -> float:
        """Mean seconds of a measured step."""
        return (self.marks[-1][1] - self.marks[0][1]) / (len(self.marks) // 4)


class _Machine:
    """The host's clock, and one stream that executes in order what the host launches."""

    def __init__(self, loop: Loop, watched: bool) -> None:
        self.loop, self.watched = loop, watched
        self.host = 0.0  # the host's present
        self.ends = deque([0.0] * QUEUE, QUEUE)  # of the last launches
        self.marks: list[tuple[str, float]] = []
        self.events: list[Event] = []
        self.launched = 0

    def event(self, cat: str, name: str, begin: float, end: float, correlation: int = 0) -> None:
        """Add an event to the trace."""
        if self.watched:
            self.events.append((cat, name, begin, end, correlation))

    def mark(self, name: str) -> None:
        """Record an event, which is stamped when the stream reaches it."""
        self.marks.append((name, max(self.host, self.ends[-1])))
        self.event("user_annotation", MARK + name, self.host, self.host)

    def launch(self, cat: str, name: str, seconds: float) -> None:
        """Launch a piece of work when the queue has a place for it."""
        self.host = max(self.host, self.ends[0]) + self.loop.launch_us * US
        begin = max(self.host, self.ends[-1])
        self.ends.append(begin + seconds)
        if self.watched:
            self.launched += 1
            call = "cudaLaunchKernel" if cat == "kernel" else "cudaMemcpyAsync"
            self.event("cuda_runtime", call, self.host - 1e-9, self.host - 1e-9, self.launched)
            self.event(cat, name, begin, begin + seconds, self.launched)

    def wait(self) -> None:
        """Let the host wait for all work that it launched."""
        begin, self.host = self.host, max(self.host, self.ends[-1]) + self.loop.sync_us * US
        self.event("cuda_runtime", "cudaStreamSynchronize", begin, self.host)


@lru_cache(32)
def run(loop: Loop, watched: bool = False) -> Outcome:
    """Simulate a loop, launch by launch; watched: with a trace."""
    random = np.random.default_rng(loop.seed)  # the same numbers whatever the other settings are
    jitter = np.exp(loop.jitter * random.standard_normal(loop.steps))
    making = loop.making_s * jitter * np.where(random.random(loop.steps) < loop.burst_share, loop.burst_times, 1.0)
    machine = _Machine(loop, watched)
    ready: list[float] = []  # when each batch was made
    served: list[float] = []  # when the host had it
    for step in range(loop.steps):
        if step == WARMUP_STEPS:
            machine.marks.clear()
        machine.mark("fetch")
        if loop.mode == "inline":
            machine.host += making[step]
        elif loop.mode == "workers":
            ahead = loop.num_workers * loop.prefetch_factor
            wanted = served[step - ahead] if step >= ahead else 0.0
            free = ready[step - loop.num_workers] if step >= loop.num_workers else 0.0
            ready.append(max(wanted, free) + making[step])
            machine.host = max(machine.host, ready[step])
            served.append(machine.host)
        elif loop.gather_us:
            machine.launch("kernel", "gather", loop.gather_us * US)
        machine.mark("copy")
        if loop.copy_s and loop.mode != "on_device":
            memory = "Pinned" if loop.pin_memory else "Pageable"
            machine.launch("gpu_memcpy", f"Memcpy HtoD ({memory} -> Device)", loop.copy_s)
            machine.host = machine.host if loop.pin_memory else machine.ends[-1]
        machine.mark("compute")
        for kernel in range(loop.kernels):
            machine.launch("kernel", "gemm", loop.kernel_us * US)
            if (kernel + 1) * loop.syncs // loop.kernels > kernel * loop.syncs // loop.kernels:
                machine.wait()
        machine.mark("done")
        if (step + 1) % loop.log_every == 0:
            machine.wait()
        machine.host += loop.hook_s if (step + 1) % loop.hook_every == 0 else 0.0
    machine.mark("fetch")
    machine.event("user_annotation", WINDOW, 0.0, machine.host)
    batches = [] if loop.mode == "on_device" else making[WARMUP_STEPS:].tolist()
    return Outcome(machine.marks, machine.events, batches)


def trace_of(loop: Loop) -> Trace:
    """What production code reads from the trace; a kernel has blocks for as many SMs as it uses."""
    args = {"grid": [max(1, round(SMS * loop.sm_efficiency)), 1, 1], "bytes": 1}
    events = (
        {"cat": cat, "name": name, "ts": begin / US, "dur": (end - begin) / US, "args": {**args, "correlation": number}}
        for cat, name, begin, end, number in run(loop, watched=True).events
    )
    return read_trace(events, loop.steps, SMS)


def gains(loop: Loop) -> dict[str, float]:
    """How many times as fast the loop is without each cause: seconds before over seconds after."""
    changed = {family: replace(loop, **change) for family, change in REMOVED.items()}
    return {family: 1.0 if each == loop else run(loop).step_s / run(each).step_s for family, each in changed.items()}


def truth(loop: Loop) -> tuple[str, float]:
    """The cause whose removal gains most, and that gain; ``healthy`` where no removal gains 5 %."""
    family, gain = max(gains(loop).items(), key=lambda item: item[1])
    return (family if gain >= HEALTHY else "healthy"), gain


class _Loader:
    """What the clock's part of a profile asks of a loader."""

    num_windows = 1000 * BATCH_SIZE

    def __init__(self, making_s: list[float]) -> None:
        self.making_s = making_s

    def __len__(self) -> int:
        return 1000


def profile_of(loop: Loop) -> Profile:
    """The profile that a measurement of this loop on CUDA would give."""
    outcome = run(loop)
    series, peak = GIB if loop.fits else 4 * CAPACITY_BYTES, 8 * GIB
    peak += series if loop.mode == "on_device" else 0
    mode = {"inline": "workers"}.get(loop.mode, loop.mode)
    free = CAPACITY_BYTES - peak
    workers = {"inline": 0, "workers": loop.num_workers}.get(loop.mode)
    queue = None if workers is None else loop.prefetch_factor
    facts = LoaderFacts(mode, 1000, workers, queue, series_bytes=series, free_bytes=free)
    clock: Any = SimpleNamespace(kind="device", cpu_seconds=lambda: None)
    lengths = Lengths(loop.steps - WARMUP_STEPS, WARMUP_STEPS, loop.log_every)
    made = clock_sections(clock, partition(outcome.marks), _Loader(outcome.making_s), lengths, facts)  # type: ignore[arg-type]
    made = with_trace(made, trace_of(loop), ["train.py:1"])
    loading = {"mode": mode, "num_workers": workers, "prefetch_factor": loop.prefetch_factor}
    precision = "bf16-mixed" if loop.half else "32-true"
    training = {"precision": precision, "compile": "off", "cuda_graph": False, "log_every_n_steps": loop.log_every}
    return replace(
        made,
        memory=Memory(peak, CAPACITY_BYTES, peak, 0, 0.0, 1.0),
        host=Host(1, loop.cores, 1.0, gc=0.0),
        settings={"loader": {"batch_size": BATCH_SIZE, "pin_memory": loop.pin_memory, **loading}, "trainer": training},
    )


def draw(random: Random) -> Loop:
    """A random loop: one thing makes it slow, or nothing, or two things."""
    count = random.choices((0, 1, 2), (0.15, 0.6, 0.25))[0]
    families = random.sample(tuple(REMOVED), count)
    loop = _with_loader(_with_kernels(random, "LAUNCH" in families), random)
    change = {"INPUT": _slow_input, "SYNC": _slow_sync, "COPY": _slow_copy, "HOOK": _slow_hook}
    for family in families:
        loop = change[family](loop, random) if family in change else loop
    return loop


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _with_kernels(random: Random, launch_bound: bool) -> Loop:
    if launch_bound:
        kernels, launch_us = round(_log_uniform(random, 50, 150)), random.uniform(5, 10)
        kernel_us = max(3.0, launch_us * random.uniform(0.3, 0.9))
    else:
        kernels, launch_us = round(_log_uniform(random, 20, 150)), random.uniform(3, 10)
        kernel_us = _within(_log_uniform(random, 2e3, 3e5) / kernels, 1.5 * launch_us, 2000)
    step_s, hook_every = kernels * max(kernel_us, launch_us) * US, random.choice((10, 50, 100))
    return Loop(
        kernels=kernels,
        kernel_us=kernel_us,
        launch_us=launch_us,
        pin_memory=random.random() < 0.5,
        copy_s=step_s * random.uniform(0, 0.015),
        log_every=random.choice((20, 50, 100)),
        hook_every=hook_every,
        hook_s=step_s * hook_every * random.uniform(0, 0.01),
        half=random.random() < 0.5,
        sm_efficiency=random.uniform(0.3, 1.0),
        cores=random.choice((4, 8, 16, 32)),
        fits=random.random() < 0.7,
        seed=random.randrange(1 << 30),
    )


def _with_loader(loop: Loop, random: Random) -> Loop:
    """A loader that costs nothing as long as the host never waits for the device."""
    hidden_s = loop.compute_s - loop.kernels * loop.launch_us * US
    mode = random.choice(("workers", "inline", "on_device"))
    if mode == "on_device":
        return replace(loop, mode="on_device", fits=True)
    if mode == "inline" and hidden_s > 2e-3:
        return replace(loop, mode="inline", making_s=_within(hidden_s * random.uniform(0.1, 0.7), 1e-3, 0.2))
    workers = random.randint(1, min(8, loop.cores))
    making_s = _within(workers * loop.compute_s / random.uniform(1.5, 4), 1e-3, 0.2)
    jitter, prefetch = random.choice((0.0, random.uniform(0, 0.3))), random.choice((2, 4, 8))
    return replace(loop, num_workers=workers, making_s=making_s, jitter=jitter, prefetch_factor=prefetch)


def _slow_input(loop: Loop, random: Random) -> Loop:
    kind = random.choice(("inline", "starved", "bursty"))
    if kind == "inline":
        making_s = _within(loop.compute_s * _log_uniform(random, 0.1, 3), 1e-3, 0.2)
        return replace(loop, mode="inline", making_s=making_s, log_every=random.choice((1, loop.log_every)))
    workers = random.randint(1, int(_within(0.2 / (1.5 * loop.compute_s), 1, min(8, loop.cores))))
    loop = replace(loop, mode="workers", num_workers=workers, prefetch_factor=random.choice((2, 4, 8)))
    if kind == "starved":
        making_s = _within(workers * loop.compute_s * random.uniform(1.1, 4), 1e-3, 0.2)
        return replace(loop, making_s=making_s, jitter=random.choice((0.0, random.uniform(0, 0.5))))
    making_s = _within(workers * loop.compute_s / random.uniform(1.3, 3), 1e-3, 0.2)
    share, times = random.uniform(0.02, 0.1), _log_uniform(random, 5, 40)
    return replace(loop, making_s=making_s, burst_share=share, burst_times=times)


def _slow_sync(loop: Loop, random: Random) -> Loop:
    """Costly waits in every step, or one cheap wait, which exposes what was hidden before."""
    if random.random() < 0.5:
        return replace(loop, syncs=1) if random.random() < 0.5 else replace(loop, log_every=1)
    syncs, share = random.randint(1, 20), random.uniform(0.08, 0.6)
    return replace(loop, syncs=syncs, sync_us=_within(share * loop.compute_s / US / syncs, 10, 2000))


def _slow_copy(loop: Loop, random: Random) -> Loop:
    share = random.uniform(0.08, 0.3)
    if loop.mode == "on_device":
        making_s = _within(loop.num_workers * loop.compute_s / random.uniform(1.5, 4), 1e-3, 0.2)
        loop = replace(loop, mode="workers", making_s=making_s)
    return replace(loop, copy_s=loop.compute_s * share / (1 - share))


def _slow_hook(loop: Loop, random: Random) -> Loop:
    share, hook_every = random.uniform(0.08, 0.5), random.choice((1, 5, 10, 25, 50))
    log_every = random.choice((hook_every, loop.log_every))
    hook_s = loop.compute_s * hook_every * share / (1 - share)
    return replace(loop, hook_every=hook_every, hook_s=hook_s, log_every=log_every)
