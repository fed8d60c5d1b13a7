"""A profile as data: where the time of training steps went, and what would make it less.

Seconds, bytes and shares carry their unit in their name.  None is *not measured*, with its reason in ``why``; 0.0 is a
measurement.  ``docs/profiling.md`` describes the JSON.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any

from socialx.notebook import Shown
from socialx.profiling.paired import WORTH, Gain
from socialx.profiling.trace import Copy, Kernels, Operators, Sync

if TYPE_CHECKING:
    from socialx.training.device import DeviceSamples

SCHEMA = "socialx.profile/2"
BUSY = 0.25  # share of the cores that other programs take, from which on they are named
# NVML's bits for a clock that was lowered, other than for idleness or by the user (nvml.h, clocks event reasons).
REASONS = {"power cap": 0x4, "hardware slowdown": 0x8, "temperature": 0x60, "power brake": 0x80}


@dataclass(frozen=True)
class Window:
    """What was measured, and by which clock: ``device`` (CUDA events) or ``host``."""

    steps: int
    seconds: float
    warmup_steps: int
    clock: str


@dataclass(frozen=True)
class Shares:
    """Shares of the window, or ms per step: of the device on CUDA, of the host on a CPU.

    input, transfer, span and hooks are the whole; kernel and bubble are the two parts of span.
    """

    input: float
    transfer: float
    span: float
    hooks: float
    kernel: float | None = None
    bubble: float | None = None


@dataclass(frozen=True)
class Idle:
    """Shares of the window in which no kernel ran on a CUDA device, by what it lacked; ``whole`` is their sum.

    late      the host launched the next work after the device had fallen idle
    queued    the next work was launched already: the device's own pause between two kernels
    unasked   the host asked for nothing, because it
        input     made or awaited the next batch
        sync      waited for the device, such as for the loss
        hooks     was between two steps
    copy      only copies ran
    unknown   the trace does not say when the next work was launched
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

    @classmethod
    def of(cls, shares: Shares, phases: Mapping[str, Mapping[str, float]]) -> Idle:
        """From the clock's shares of the window, and the causes' shares of each phase as in ``Trace``."""

        def of_window(cause: str, *names: str) -> float:
            return sum(getattr(shares, name) * phases[name][cause] for name in names if name in phases)

        every = ("input", "transfer", "span", "hooks")
        late, queued = of_window("launch", "transfer", "span"), of_window("queued", *every)
        input, hooks = of_window("launch", "input") + of_window("sync", "input"), of_window("launch", "hooks")
        sync, copy, unknown = of_window("sync", *every[1:]), of_window("copy", *every), of_window("unknown", *every)
        unasked = input + sync + hooks
        return cls(late + queued + unasked + copy + unknown, late, queued, unasked, input, sync, hooks, copy, unknown)


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds of a step: quantiles.

    outliers: numbers of the steps whose modified z-score is above 3.5 (Iglewicz and Hoaglin 1993), the slowest first.
    """

    p50: float
    p95: float
    p99: float
    outliers: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Throughput:
    """Work per second.  A sensor step is one reading of one sensor in one window.

    flops_per_step, bytes_per_step: of the forward and the backward pass in this process; bytes: what all operators read
    and write, if nothing stays in a cache.
    """

    windows_per_s: float
    sensor_steps_per_s: float | None = None
    flops_per_step: float | None = None
    bytes_per_step: float | None = None


@dataclass(frozen=True)
class Machine:
    """What this device does in a large matrix product and in a large copy, measured beside the steps.

    copy: bytes read and written.
    """

    matmul_flops_per_s: float
    copy_bytes_per_s: float


@dataclass(frozen=True)
class Host:
    """The processes and cores of this machine.

    threads: of tensor operations.  cores: those that this process may use.  cores_used: CPU seconds of the process per
    second of the window; others_used: of other programs on these cores.  waiting: share of the window in which a
    training step, on a CPU, was not computed by anybody.  gc: share of the window in Python's garbage collector.
    step_alone_s: seconds of a training step while no batch is made, measured with one batch again and again.
    """

    threads: int
    cores: int
    cores_used: float | None
    waiting: float | None
    gc: float | None
    step_alone_s: float | None = None
    others_used: float | None = None

    @property
    def busy(self) -> str:
        """What other programs took of the cores, in words where it is much; empty where it is not."""
        if self.others_used is None or self.others_used < BUSY * self.cores:
            return ""
        return f"other programs took {self.others_used:.1f} of {self.cores} cores meanwhile"


@dataclass(frozen=True)
class Memory:
    """Of the device's allocator on CUDA; on a CPU of the process, whose peak counts from its start.

    growth_bytes_per_step: the robust slope over the window; monotone: share of its samples that are not below the last.
    """

    peak_bytes: int
    capacity_bytes: int
    reserved_bytes: int | None = None
    alloc_retries: int | None = None
    growth_bytes_per_step: float | None = None
    monotone: float | None = None


@dataclass(frozen=True)
class LoaderFacts:
    """How batches were made.

    making_s: median seconds that a worker, or the thread that reads chunks, needs for one batch.  supply: batches that
    all of them offer for every one that a step wants, where the step never waits.  resident_s: seconds of a batch that
    is gathered from a resident series, measured where batches are late.  late: share of the times in which a queue of
    workers is emptied twice that had to wait: near 1 where batches are always too few.  series_bytes: of the series.
    """

    mode: str
    batches_per_epoch: int
    num_workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    batches_per_chunk: float | None = None
    series_bytes: int | None = None
    free_bytes: int | None = None
    making_s: float | None = None
    supply: float | None = None
    resident_s: float | None = None
    late: float | None = None


@dataclass(frozen=True)
class Trial:
    """A setting that was tried for a few steps beside the present one: how many times as many windows per second.

    low, high: the 99 % interval of the gain.  threads: of the trial, threads_before: of what it is compared with; None:
    the present number.
    """

    setting: str
    value: int
    gain: float
    low: float
    high: float
    threads: int | None = None
    threads_before: int | None = None

    @property
    def together(self) -> bool:
        """Whether another number of threads is tried with the setting."""
        return self.threads != self.threads_before


def best_trial(trials: Iterable[Trial], setting: str) -> Trial | None:
    """The fastest value of a setting alone that was faster beyond doubt; of batches the smallest that brings most."""
    faster = [each for each in trials if each.setting == setting and not each.together and each.low > WORTH]
    best = max(faster, key=lambda each: each.gain, default=None)
    if best is not None and setting == "loader.batch_size":
        return min((each for each in faster if each.gain >= 0.9 * best.gain), key=lambda each: each.value)
    return best


@dataclass(frozen=True)
class Fluctuation:
    """How the device's busy share changes: mean, 5th and 95th percentile over bins of ``bin_s``.

    swing_pp: p95 - p5 in percentage points.  period_s: of a repeating stall, None where nothing repeats.  strength: of
    the repetition, 1 is perfect.  cause: the setting whose count of steps is that of a period, or in words.
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
class DeviceSummary:
    """NVML over the window: utilisation 0 to 1, the clock of the SMs and why it was lowered."""

    utilisation_mean: float
    utilisation_min: float
    utilisation_max: float
    sm_clock_share: float | None = None
    throttled_by: str | None = None

    @classmethod
    def of(cls, samples: DeviceSamples) -> DeviceSummary | None:
        """From samples, None where there is none.

        A clock was lowered for the reason that was there in most samples, if it was in half of them.
        """
        if samples.mean is None:
            return None
        counts = {name: sum(bool(bits & bit) for bits in samples.reasons) for name, bit in REASONS.items()}
        reason = max(counts, key=lambda name: counts[name])
        return cls(
            utilisation_mean=samples.mean / 100,
            utilisation_min=min(samples.utilisation) / 100,
            utilisation_max=max(samples.utilisation) / 100,
            sm_clock_share=sum(samples.clock) / len(samples.clock) if samples.clock else None,
            throttled_by=reason if samples.reasons and 2 * counts[reason] >= len(samples.reasons) else None,
        )


@dataclass(frozen=True)
class Timeline:
    """For pictures, at most some hundred points each: the busy share per bin, and ms of each step or group of steps."""

    bin_s: float
    busy: list[float]
    steps_per_point: int
    step_ms: list[float]


@dataclass(frozen=True)
class Overhead:
    """What the measurement itself costs: the four marks of a step, measured, and their share of a step."""

    us_per_step: float
    share: float


@dataclass(frozen=True)
class Finding:
    """One thing that costs time, and what to do.

    share: of the window, that could be saved.  ceiling: how many times as fast training becomes at most if that alone
    is saved; None where the patch was tried: trial says what it brought.  patch: the settings to change; instead: other
    ways.  will_not_help: settings that people would try in vain, with the reason.
    """

    rule: str
    severity: str
    share: float
    ceiling: float | None
    evidence: str
    patch: dict[str, Any] = field(default_factory=dict)
    instead: list[dict[str, Any]] = field(default_factory=list)
    advice: str = ""
    will_not_help: str = ""
    trial: Trial | None = None

    @property
    def gain(self) -> str:
        """What the patch brought where it was tried, or what its share alone can bring; empty where that is nothing."""
        if self.trial is not None:
            both = f", both with trainer.threads = {self.trial.threads_before}" if self.trial.threads_before else ""
            return f"tried: {Gain(self.trial.gain, self.trial.low, self.trial.high)}{both}"
        return f"alone {self.ceiling:.2f}x" if self.ceiling is not None and 1.005 <= self.ceiling < math.inf else ""


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """Everything that ``profile`` measures.  bubble: the causes of ``shares.bubble``, as in ``Trace``."""

    window: Window
    shares: Shares
    ms_per_step: Shares
    step_ms: StepTimes
    throughput: Throughput
    gpu_busy: float | None = None
    sm_efficiency: float | None = None
    bubble: dict[str, float] | None = None
    idle: Idle | None = None
    kernels: Kernels | None = None
    sync: Sync | None = None
    copy: Copy | None = None
    memory: Memory | None = None
    device: DeviceSummary | None = None
    why: dict[str, str] = field(default_factory=dict)
    loader: LoaderFacts | None = None
    host: Host | None = None
    operators: Operators | None = None
    machine: Machine | None = None
    fluctuation: Fluctuation | None = None
    trials: list[Trial] = field(default_factory=list)
    recompiles: int | None = None
    overhead: Overhead | None = None
    timeline: Timeline | None = None
    verdict: str = ""
    summary: str = ""
    findings: list[Finding] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def headline(self) -> str:
        """The verdict and its summary."""
        return f"{self.verdict}, {self.summary}"

    def table(self) -> list[dict[str, Any]]:
        """Where the time of a step goes."""
        share, ms = asdict(self.shares), asdict(self.ms_per_step)
        return [{"part of a step": name, "share": share[name], "ms": ms[name]} for name in share]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"schema": SCHEMA, **asdict(self)}

    def value(self, name: str) -> float | None:
        """A number by its dotted name, such as ``shares.input``; None where it was not measured."""
        value: Any = self
        for part in name.split("."):
            value = getattr(value, part) if value is not None else None
        return value

    def setting(self, key: str) -> Any:
        """A setting by its dotted key; None where the settings are not known."""
        section, name = key.split(".")
        return self.settings.get(section, {}).get(name)


def number_names(kind: Any = Profile, prefix: str = "") -> list[str]:
    """The dotted names of all numbers of a profile, or of a part of it."""
    hints = typing.get_type_hints(kind)
    names = []
    for each in fields(kind):
        hint = hints[each.name]
        options = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
        section = next((option for option in options if is_dataclass(option)), None)
        if section is not None:
            names += number_names(section, f"{prefix}{each.name}.")
        elif {int, float} & set(options):
            names.append(f"{prefix}{each.name}")
    return names
