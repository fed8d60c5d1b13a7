"""A profile as data: where the time of training steps went.  None is *not measured*, with its reason in ``why``."""

from __future__ import annotations

import typing
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any

from socialx.profiling.trace import Copy, Kernels, Sync

SCHEMA = "socialx.profile/1"


@dataclass(frozen=True)
class Window:
    """What was measured, and by which clock."""

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
class StepTimes:
    """Milliseconds of a step: quantiles, and deviation over mean."""

    p50: float
    p95: float
    p99: float
    cv: float


@dataclass(frozen=True)
class Throughput:
    """Windows per second."""

    windows_per_s: float


@dataclass(frozen=True)
class Memory:
    """Of the device's allocator."""

    peak_bytes: int
    reserved_bytes: int
    capacity_bytes: int
    alloc_retries: int


@dataclass(frozen=True)
class TracedKernels(Kernels):
    """The kernels of the traced steps; slowdown: how many times as long a step took while it was traced."""

    traced_steps: int
    slowdown: float


@dataclass(frozen=True)
class TracedSync(Sync):
    """The host's waits; sites: the lines of code that waited."""

    sites: list[str]


@dataclass(frozen=True)
class DeviceSummary:
    """NVML's utilisation, 0 to 1, and used memory over the window."""

    utilisation_mean: float
    utilisation_min: float
    utilisation_max: float
    used_bytes_max: int
    samples: int


@dataclass(frozen=True)
class Profile:
    """Everything that ``profile`` measures.  bubble: the causes of ``shares.bubble``, as in ``Trace``."""

    window: Window
    shares: Shares
    ms_per_step: Shares
    step_ms: StepTimes
    throughput: Throughput
    gpu_busy: float | None
    sm_efficiency: float | None
    bubble: dict[str, float] | None
    kernels: TracedKernels | None
    sync: TracedSync | None
    copy: Copy | None
    memory: Memory | None
    device: DeviceSummary | None
    why: dict[str, str]
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"schema": SCHEMA, **asdict(self)}

    def value(self, name: str) -> float | None:
        """A number by its dotted name, such as ``shares.input``; None where it was not measured."""
        found: Any = self
        for part in name.split("."):
            found = getattr(found, part) if found is not None else None
        return found


def _numbers(kind: Any, prefix: str) -> list[str]:
    hints = typing.get_type_hints(kind)
    found = []
    for each in fields(kind):
        hint = hints[each.name]
        options = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
        section = next((option for option in options if is_dataclass(option)), None)
        if section is not None:
            found += _numbers(section, f"{prefix}{each.name}.")
        elif {int, float} & set(options):
            found.append(f"{prefix}{each.name}")
    return found


def number_names() -> tuple[str, ...]:
    """The dotted names of all numbers of a profile."""
    return tuple(_numbers(Profile, ""))
