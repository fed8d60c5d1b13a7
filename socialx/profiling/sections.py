"""Sections of a profile: numbers and facts with units in their names.

An absent measurement is None, with the reason in ``Profile.why``.  ``docs/profiling.md`` describes the JSON, which has
these names.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Window:
    """The measured steps.  clock: ``device`` (CUDA events) or ``host``."""

    steps: int
    seconds: float
    warmup_steps: int
    clock: str


@dataclass(frozen=True)
class Phases:
    """Shares of the window, or milliseconds of a mean step: on CUDA by the device, on a CPU by the host.

    input, transfer, span and hooks are the whole.  kernel and bubble are the two parts of span; forward, backward and
    optimizer are its three parts, except in recorded steps.
    """

    input: float
    transfer: float
    span: float
    hooks: float
    kernel: float | None = None
    bubble: float | None = None
    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None


@dataclass(frozen=True)
class StepTimes:
    """Percentiles in milliseconds.  outliers: numbers of the steps far above the rest, the slowest first."""

    p50: float
    p95: float
    p99: float
    outliers: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Throughput:
    """Speed of the whole training.  A sensor step is one reading of one sensor in one window."""

    windows_per_s: float
    sensor_steps_per_s: float | None = None


@dataclass(frozen=True)
class Bubble:
    """The share of the window in training steps without a kernel, by cause, as in ``Trace.phases``."""

    launch: float
    sync: float
    queued: float
    copy: float
    unknown: float


@dataclass(frozen=True)
class Idle:
    """Shares of the window in which no kernel ran on a CUDA device; whole is the sum of five.

    late     the host launched the next work after the device had fallen idle
    queued   the next work was launched already: the device's pause between two kernels
    unasked  the host asked for nothing: it made or awaited a batch (input), waited for the device, such as for the
             loss (sync), or was between two steps (hooks)
    copy     only copies ran
    unknown  the trace does not say when the next work was launched
    """

    whole: float
    late: float
    queued: float
    unasked: float
    input: float
    sync: float
    hooks: float
    copy: float
    unknown: float


@dataclass(frozen=True)
class Top:
    """One of the longest kernels or operators.  share: of the time of all."""

    name: str
    share: float
    us_per_step: float
    per_step: float


@dataclass(frozen=True)
class Kernels:
    """Kernels of the traced steps.  tiny_share: of their time.  slowdown: how many times as long a traced step took."""

    per_step: float
    us_p50: float
    tiny_share: float
    launches_per_step: float | None
    traced_steps: int
    slowdown: float | None = None
    top: list[Top] = field(default_factory=list)


@dataclass(frozen=True)
class Operators:
    """The longest operators on a CPU.  waiting: as in ``Host``, in the traced steps and in the operators."""

    top: list[Top]
    waiting: float | None = None


@dataclass(frozen=True)
class Sync:
    """How often the host waited for the device, and the lines of code that waited."""

    per_step: float
    sites: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Copy:
    """Copies from host to device.  pageable: whether any came from unpinned memory."""

    h2d_bytes_per_step: float | None
    pageable: bool | None


@dataclass(frozen=True)
class Memory:
    """The device's allocator on CUDA; on a CPU the process, whose peak counts from its start.

    growth: robust slope over the window.  monotone: share of its samples at or above the last.
    """

    peak_bytes: int
    capacity_bytes: int
    reserved_bytes: int | None = None
    alloc_retries: int | None = None
    growth_bytes_per_step: float | None = None
    monotone: float | None = None


@dataclass(frozen=True)
class Device:
    """NVML over the window, 0 to 1.  throttled_by: why the clock was lowered in most samples."""

    utilisation_mean: float
    utilisation_min: float
    utilisation_max: float
    sm_clock_share: float | None = None
    throttled_by: str | None = None


@dataclass(frozen=True)
class LoaderFacts:
    """What hands over batches.

    making_s: median seconds that a worker, or the thread that reads shards, needs for a batch.  supply: batches that
    all workers offer per batch that a step wants, where the step never waits.  resident_s: seconds to gather a batch
    from a series on the device, measured where batches are late.  late: share of the times in which a workers' queue is
    emptied twice that had to wait: near 1 where batches are always too few.
    """

    mode: str
    batches_per_epoch: int
    num_workers: int | None = None
    prefetch_factor: int | None = None
    batches_per_shard: float | None = None
    series_bytes: int | None = None
    free_bytes: int | None = None
    making_s: float | None = None
    supply: float | None = None
    resident_s: float | None = None
    late: float | None = None


@dataclass(frozen=True)
class Host:
    """The processor.  threads: for tensor operations.  cores: the cores that this process may use.

    cores_used, others_used: CPU seconds per second, by this process and by other programs.  waiting: share of the
    window in which a step on a CPU slept or lacked a core.  gc: share in Python's garbage collector.
    """

    threads: int
    cores: int
    cores_used: float | None = None
    waiting: float | None = None
    gc: float | None = None
    others_used: float | None = None


@dataclass(frozen=True)
class Fluctuation:
    """The busy share over bins: mean, percentiles, p95 - p5 in percentage points, and a stall that repeats.

    strength: of the repetition, 1 is perfect.  cause: the setting with as many steps as a period, or words.
    """

    bin_s: float
    mean: float
    p5: float
    p95: float
    swing_pp: float
    period_s: float | None = None
    strength: float | None = None
    steps_per_period: float | None = None
    cause: str | None = None


@dataclass(frozen=True)
class Timeline:
    """The busy share per bin, and milliseconds of each step or group of steps, to draw."""

    bin_s: float
    busy: list[float]
    steps_per_point: int
    step_ms: list[float]
