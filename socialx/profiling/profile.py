"""A profile as data: the time in training steps by cause, and changes that would save time.

Names carry units: seconds, bytes, shares. None is *not measured*, with the reason in ``why``; 0.0 is a measurement.
``docs/profiling.md`` describes the JSON.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from socialx.core.errors import Argument, Message, SettingsError
from socialx.core.notebook import ResultRepr

SCHEMA = "socialx.profile/3"
BUSY = 0.25  # share of the cores that other programs take, from which on they are named
WORTH = 1.05  # times as fast, from which on a gain is worth a change

Section = dict[str, Any]  # name -> number, or another fact; None: not measured
# The numbers of each section, which a limit may name; of a section without names the number itself.
NUMBERS = {
    "window": "steps seconds warmup_steps",
    # Shares of the window, of the device on CUDA, of the host on a CPU: input, transfer, span and hooks are the whole,
    # kernel and bubble are the two parts of span.
    "shares": "input transfer span hooks kernel bubble",
    "ms_per_step": "input transfer span hooks kernel bubble",
    "step_ms": "p50 p95 p99",
    # A sensor step is one reading of one sensor in one window.  Operations and bytes are those of the forward and the
    # backward pass in this process; bytes: all that operators read and write, if nothing stays in a cache.
    "throughput": "windows_per_s sensor_steps_per_s flops_per_step bytes_per_step",
    "gpu_busy": "",
    "sm_efficiency": "",
    # Shares of the window in which no kernel ran on a CUDA device; whole is the sum of five:
    #   late     the host launched the next work after the device had fallen idle
    #   queued   the next work was launched already: the device's own pause between two kernels
    #   unasked  the host asked for nothing: it made or awaited a batch (input), waited for the device, such as for the
    #            loss (sync), or was between two steps (hooks)
    #   copy     only copies ran
    #   unknown  the trace does not say when the next work was launched
    "idle": "whole late queued unasked input sync hooks copy unknown",
    # Of the traced steps; tiny_share: of the kernels' time.  slowdown: how many times as long a traced step took.
    "kernels": "per_step us_p50 tiny_share launches_per_step traced_steps slowdown",
    "sync": "per_step",  # times that the host waited for the device
    "copy": "h2d_bytes_per_step",  # from host to device
    # Of the device's allocator on CUDA; on a CPU of the process, whose peak counts from its start.  growth: the robust
    # slope over the window; monotone: share of its samples that are not below the last.
    "memory": "peak_bytes capacity_bytes reserved_bytes alloc_retries growth_bytes_per_step monotone",
    "device": "utilisation_mean utilisation_min utilisation_max sm_clock_share",  # NVML over the window, 0 to 1
    # making_s: median seconds that a worker, or the thread that reads shards, needs for one batch.  supply: batches
    # that all of them offer for every one that a step wants, where the step never waits.  resident_s: seconds of a
    # batch that is gathered from a series on the device, measured where batches are late.  late: share of the times in
    # which a queue of workers is emptied twice that had to wait: near 1 where batches are always too few.
    "loader": "batches_per_epoch num_workers prefetch_factor batches_per_shard series_bytes free_bytes making_s supply"
    " resident_s late",
    # threads: of tensor operations.  cores: those that this process may use.  cores_used: CPU seconds of the process
    # per second of the window; others_used: of other programs on these cores.  waiting: share of the window in which a
    # training step, on a CPU, was not computed by anybody.  gc: share of the window in Python's garbage collector.
    # step_alone_s: seconds of a training step while no batch is made, measured with one batch again and again.
    "host": "threads cores cores_used waiting gc step_alone_s others_used",
    "machine": "matmul_flops_per_s copy_bytes_per_s",  # of a large product, and of a large copy, read and written
    # The busy share over bins: mean, percentiles, and p95 - p5 in percentage points.  period_s: of a repeating stall.
    # strength: of the repetition, 1 is perfect.
    "fluctuation": "bin_s mean p5 p95 swing_pp period_s strength steps_per_period",
    "recompiles": "",
    "overhead": "us_per_step share",  # of the clock's marks
    "timeline": "bin_s steps_per_point",
}
FACTS = {  # what else stands in a section
    "window": "clock",  # device (CUDA events) or host
    "step_ms": "outliers",  # numbers of the steps far above the others, the slowest first
    "kernels": "top",  # the longest ones: name, share, us_per_step, per_step
    "sync": "sites",  # the lines of code that waited
    "copy": "pageable",  # whether any copy came from memory that was not pinned
    "device": "throttled_by",  # why its clock was lowered
    "loader": "mode",
    "fluctuation": "cause",  # the setting whose count of steps is that of a period, or in words
    "timeline": "busy step_ms",  # per bin, and of each step or group of steps
}
NAMES = [f"{section}.{name}" if name else section for section, names in NUMBERS.items() for name in names.split(" ")]


def part(section: str, **values: Any) -> Section:
    """Return a section (name -> number or fact) with the given values, and None for every other name of that section.

    Raises ValueError for a value outside the section.
    """
    made: Section = dict.fromkeys(f"{FACTS.get(section, '')} {NUMBERS[section]}".split())
    if unknown := values.keys() - made.keys():
        raise ValueError(f"{section} has no {', '.join(unknown)}")
    return made | values


@dataclass(frozen=True)
class Gain:
    """A ratio of speeds with a 99 % interval."""

    gain: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Return whether the interval excludes 1."""
        return self.low > 1 or self.high < 1

    def within(self, times: float) -> bool:
        """Return whether the whole interval lies in 1 / times to times, such as 1.05: both ways are equally fast."""
        return 1 / times <= self.low and self.high <= times

    @property
    def is_decided(self) -> bool:
        """Return whether a way is faster by a gain worth a change, or both ways are equally fast."""
        return self.low >= WORTH or self.high <= 1 / WORTH or self.within(WORTH)

    def __str__(self) -> str:
        """Return the gain in words."""
        if not self.differs and not self.within(1.25):
            return f"not decided, from {self.low:.2f}x to {self.high:.2f}x as fast"
        if not self.differs:
            return f"no difference larger than {100 * (max(self.high, 1 / self.low) - 1):.1f} %"
        if self.gain >= 1:
            return f"{self.gain:.2f}x as fast ({self.low:.2f} to {self.high:.2f})"
        return f"{1 / self.gain:.2f}x as slow ({1 / self.high:.2f} to {1 / self.low:.2f})"


@dataclass(frozen=True)
class Trial:
    """A setting tried for a few steps next to the present setting: the ratio of windows per second.

    low, high: 99 % interval. threads: in the trial; threads_before: in the comparison; None: the present number.
    """

    setting: str
    value: int
    gain: float
    low: float
    high: float
    threads: int | None = None
    threads_before: int | None = None

    @property
    def measured(self) -> Gain:
        """Return the gain with the 99 % interval."""
        return Gain(self.gain, self.low, self.high)

    @property
    def together(self) -> bool:
        """Return whether the trial also changed the number of threads."""
        return self.threads != self.threads_before


def best_trial(trials: Iterable[Trial], setting: str) -> Trial | None:
    """Return the fastest trial of ``setting`` alone that gains over 5 %; for a batch, the smallest near the fastest."""
    faster = [trial for trial in trials if trial.setting == setting and not trial.together and trial.low > WORTH]
    best = max(faster, key=lambda trial: trial.gain, default=None)
    if best is not None and setting == "loader.batch_size":
        return min((trial for trial in faster if trial.gain >= 0.9 * best.gain), key=lambda trial: trial.value)
    return best


@dataclass(frozen=True)
class Finding:
    """A cause that costs time, and the remedy.

    share: part of the window to save. ceiling: speed-up at most from this cause alone; None with a trial. patch:
    settings to change; instead: alternatives. will_not_help: popular settings in vain, and why. trial: measured gain.
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
    def family(self) -> str:
        """Return the group of the rule: the part before the point in the rule's name, such as ``loader``."""
        return self.rule.partition(".")[0]

    @property
    def times(self) -> float | None:
        """Return the measured speed-up by the patch, or the speed-up at most without a trial."""
        return self.trial.gain if self.trial is not None else self.ceiling

    @property
    def gain(self) -> str:
        """Return the measured or possible speed-up in words, empty for a negligible speed-up."""
        if self.trial is not None:
            both = f", both with trainer.threads = {self.trial.threads_before}" if self.trial.threads_before else ""
            return f"tried: {self.trial.measured}{both}"
        return f"alone {self.ceiling:.2f}x" if self.ceiling is not None and 1.005 <= self.ceiling < math.inf else ""


@dataclass(frozen=True, repr=False)
class Profile(ResultRepr):
    """All measurements by ``profile``, in sections. bubble: causes for ``shares.bubble``, as in ``Trace``."""

    window: Section
    shares: Section
    step_ms: Section
    throughput: Section
    gpu_busy: float | None = None
    sm_efficiency: float | None = None
    bubble: Section | None = None
    idle: Section | None = None
    kernels: Section | None = None
    sync: Section | None = None
    copy: Section | None = None
    memory: Section | None = None
    device: Section | None = None
    why: dict[str, str] = field(default_factory=dict)
    loader: Section | None = None
    host: Section | None = None
    operators: Section | None = None
    machine: Section | None = None
    fluctuation: Section | None = None
    trials: list[Trial] = field(default_factory=list)
    recompiles: int | None = None
    overhead: Section | None = None
    timeline: Section | None = None
    verdict: str = ""
    summary: str = ""
    findings: list[Finding] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def headline(self) -> str:
        """Return the result in one line: the verdict, such as INPUT-BOUND, and the summary sentence."""
        return f"{self.verdict}, {self.summary}"

    def table(self) -> list[dict[str, Any]]:
        """Return a row per phase of a step: name, share of the window, milliseconds per step."""
        return [{"part of a step": name, "share": self.shares[name], "ms": ms} for name, ms in self.ms_per_step.items()]

    def as_dict(self) -> dict[str, Any]:
        """Return all measurements and findings as plain values for JSON, with the name of the schema."""
        return {"schema": SCHEMA, "ms_per_step": self.ms_per_step, **asdict(self)}

    @property
    def change(self) -> Finding | None:
        """Return the finding to act on first: the trial with the largest gain, or an untried first finding."""
        costly = [finding for finding in self.findings if finding.severity != "info"]
        if not costly or not costly[0].gain:
            return None
        tried = [finding for finding in costly if finding.trial is not None]
        return costly[0] if costly[0].trial is None else max(tried, key=lambda finding: finding.times or 0.0)

    @property
    def step_s(self) -> float:
        """Return the mean step time in seconds."""
        seconds: float = self.window["seconds"]
        return seconds / self.window["steps"]

    def rate(self, name: str) -> float | None:
        """Return ``flops`` or ``bytes`` per second within training steps alone, or None where uncounted."""
        count = self.throughput[f"{name}_per_step"]
        return None if count is None else count / (self.step_s * self.shares["span"])

    @property
    def ms_per_step(self) -> Section:
        """Return the milliseconds per mean step for each name in ``shares``, or None where unmeasured."""
        return {name: None if share is None else 1e3 * self.step_s * share for name, share in self.shares.items()}

    @property
    def others(self) -> str:
        """Return a sentence about CPU cores that other programs used; empty below a quarter of the cores."""
        used, cores = self.value("host.others_used"), self.number("host.cores")
        if used is None or used < BUSY * cores:
            return ""
        return f"other programs took {used:.1f} of {cores} cores meanwhile"

    def value(self, name: str) -> Any:
        """Return the value behind a dotted name such as ``shares.input``, or None where unmeasured."""
        section, _, key = name.partition(".")
        values = getattr(self, section)
        return values[key] if key and values is not None else values

    def number(self, name: str) -> Any:
        """Return the number behind a dotted name such as ``host.cores``, 0 where unmeasured."""
        return self.value(name) or 0

    def setting(self, key: str) -> Any:
        """Return the profiled setting for a dotted key such as ``loader.batch_size``, or None where unknown."""
        section, name = key.split(".")
        return self.settings.get(section, {}).get(name)


class Requirement(NamedTuple):
    """A limit for a number in a profile: at least (>=) or at most (<=) ``limit``."""

    name: str
    sign: str
    limit: float


def parse_limits(text: str) -> list[Requirement]:
    """Parse limits such as ``gpu_busy>=0.8,sync.per_step<=0``.  Raises SettingsError for an unknown name or sign."""
    requirements = []
    for piece in text.split(","):
        match = re.fullmatch(r"\s*([\w.]+)\s*(>=|<=)\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*", piece)
        if not match:
            raise SettingsError(
                f"requirement {piece!a}",
                "not NAME>=NUMBER or NAME<=NUMBER",
                f"for example {Argument('require', 'gpu_busy>=0.8')}, in quotes on a command line",
            )
        if match[1] not in NAMES:
            near = difflib.get_close_matches(match[1], NAMES, 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else "choose from these"
            raise SettingsError(f"requirement {match[1]!a}", f"not one of {', '.join(NAMES)}", hint)
        requirements.append(Requirement(match[1], match[2], float(match[3])))
    return requirements


def missed_limits(profile: Profile, requirements: Sequence[Requirement]) -> list[Message]:
    """Return a message per requirement that is missed or unmeasured."""
    lines = []
    for name, sign, limit in requirements:
        value, required = profile.value(name), f"required {sign} {limit:g}"
        if value is None:
            share = name.replace("ms_per_step.", "shares.")  # measured or not together
            why = profile.why.get(share) or profile.why.get(name.partition(".")[0]) or "there is none here"
            lines.append(Message(name, f"not measured ({why}), {required}"))
        elif not (value >= limit if sign == ">=" else value <= limit):
            lines.append(Message(name, f"{value:.4g}, {required}"))
    return lines
