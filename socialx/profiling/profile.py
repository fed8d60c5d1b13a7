"""A profile as data: the time in training steps by cause, changes that would save time, and limits for its numbers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_type_hints

from socialx.core.errors import Argument, Message, SettingsError, counted
from socialx.core.notebook import ResultRepr
from socialx.profiling import sections

SCHEMA = "socialx.profile/4"
BUSY = 0.25  # share of the cores that other programs take, from which on they are named
WORTH = 1.05  # times as fast, from which on a gain is worth a change
UNDECIDED = 1.25  # an interval that reaches further in both directions says nothing


@dataclass(frozen=True)
class Gain:
    """A ratio of speeds with a 95 % confidence interval, absent for too few pairs."""

    gain: float
    low: float | None
    high: float | None

    @property
    def is_worth(self) -> bool:
        """Return whether the whole interval is a gain worth a change."""
        return self.low is not None and self.low >= WORTH

    @property
    def speed(self) -> str:
        """Return the mean gain in words, without the interval."""
        return f"{self.gain:.2f}x as fast" if self.gain >= 1 else f"{1 / self.gain:.2f}x as slow"

    def __str__(self) -> str:
        """Return the gain in words."""
        if self.low is None or self.high is None:
            return f"{self.speed}, too few rounds for an interval"
        if self.low > 1 or self.high < 1:
            low, high = (self.low, self.high) if self.gain >= 1 else (1 / self.high, 1 / self.low)
            return f"{self.speed} ({low:.2f} to {high:.2f})"
        largest = max(self.high, 1 / self.low)
        if largest > UNDECIDED:
            return f"not decided, from {self.low:.2f}x to {self.high:.2f}x as fast"
        return f"no difference larger than {100 * (largest - 1):.1f} %"


@dataclass(frozen=True)
class Trial(Gain):
    """The gain in windows per second of a setting that was tried for a few steps next to the present setting.

    threads: on both sides, if other than the present number.
    """

    setting: str
    value: int
    threads: int | None = None


@dataclass(frozen=True)
class Finding:
    """A cause that costs time, and the remedy.

    share: part of the window to save. patch: settings to change; instead: alternatives. ceiling: speed-up at most from
    this cause alone, where a patch is untried. will_not_help: popular settings in vain, and why. trial:
    the measured gain of the patch.
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
        """Return the speed-up by the patch in words, empty if negligible or without a patch."""
        if self.trial is not None:
            both = f", both with {counted(self.trial.threads, 'thread')}" if self.trial.threads else ""
            return f"tried: {self.trial}{both}"
        return f"at most {self.ceiling:.2f}x as fast" if self.ceiling is not None and self.ceiling >= 1.005 else ""


@dataclass(frozen=True, repr=False)
class Profile(ResultRepr):
    """All measurements by ``profile``, in sections; ``why`` has the reason for an absent measurement."""

    window: sections.Window
    shares: sections.Phases
    step_ms: sections.StepTimes
    throughput: sections.Throughput
    loader: sections.LoaderFacts
    host: sections.Host
    fluctuation: sections.Fluctuation
    timeline: sections.Timeline
    memory: sections.Memory | None = None
    gpu_busy: float | None = None
    sm_efficiency: float | None = None
    bubble: sections.Bubble | None = None
    idle: sections.Idle | None = None
    kernels: sections.Kernels | None = None
    sync: sections.Sync | None = None
    copy: sections.Copy | None = None
    device: sections.Device | None = None
    operators: sections.Operators | None = None
    recompiles: int | None = None
    trials: list[Trial] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
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
        shares, ms = asdict(self.shares), asdict(self.ms_per_step)
        return [{"part of a step": name, "share": shares[name], "ms": ms[name]} for name in shares]

    def as_dict(self) -> dict[str, Any]:
        """Return all measurements and findings as plain values for JSON, with the name of the schema."""
        return {"schema": SCHEMA, "ms_per_step": asdict(self.ms_per_step), **asdict(self)}

    @property
    def change(self) -> Finding | None:
        """Return the finding whose patch to follow first: the largest measured gain, or an untried first finding."""
        patches = [finding for finding in self.findings if finding.severity != "info" and finding.gain]
        if not patches or patches[0].trial is None:
            return patches[0] if patches else None
        return max((finding for finding in patches if finding.trial), key=lambda finding: finding.times or 0.0)

    @property
    def on_device(self) -> bool:
        """Return whether a CUDA device trained, and stamped the phases."""
        return self.window.clock == "device"

    @property
    def step_s(self) -> float:
        """Return the mean step time in seconds."""
        return self.window.seconds / self.window.steps

    @property
    def ms_per_step(self) -> sections.Phases:
        """Return the milliseconds per mean step of each phase, or None where unmeasured."""
        ms = {name: share and 1e3 * self.step_s * share for name, share in asdict(self.shares).items()}
        return sections.Phases(**ms)

    @property
    def others(self) -> str:
        """Return a sentence about CPU cores that other programs used; empty below a quarter of the cores."""
        used, cores = self.host.others_used, self.host.cores
        if used is None or used < BUSY * cores:
            return ""
        return f"other programs took {used:.1f} of {cores} cores meanwhile"

    def value(self, name: str) -> Any:
        """Return the number behind a dotted name such as ``shares.input``, or None where unmeasured."""
        section, _, key = name.partition(".")
        values = getattr(self, section)
        return getattr(values, key) if key and values is not None else values

    def setting(self, key: str) -> Any:
        """Return the profiled setting for a dotted key such as ``loader.batch_size``, or None where unknown."""
        section, name = key.split(".")
        return self.settings.get(section, {}).get(name)


def number_names() -> list[str]:
    """Return the dotted names of all numbers in a profile, as a limit may name them."""

    def numbers(kind: type, prefix: str = "") -> list[str]:
        hints, names = get_type_hints(kind), list[str]()
        for name in (entry.name for entry in fields(kind)):
            inner, *_ = kinds = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
            if is_dataclass(inner) and isinstance(inner, type):
                names += numbers(inner, f"{name}.")
            elif {int, float} & set(kinds):
                names.append(prefix + name)
        return names

    return numbers(Profile) + numbers(sections.Phases, "ms_per_step.")


Requirement = tuple[str, str, float]  # a number in a profile, at least (>=) or at most (<=), and the limit


def parse_limits(text: str) -> list[Requirement]:
    """Parse limits such as ``gpu_busy>=0.8,sync.per_step<=0``.  Raises SettingsError for an unknown name or sign."""
    requirements, names = [], number_names()
    for piece in text.split(","):
        match = re.fullmatch(r"\s*([\w.]+)\s*(>=|<=)\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*", piece)
        if not match:
            problem = "not NAME>=NUMBER or NAME<=NUMBER"
            remedy = f"for example {Argument('fail_unless', 'gpu_busy>=0.8')}, in quotes on a command line"
            raise SettingsError("profile.limit-form", f"requirement {piece!a}", problem, remedy)
        if match[1] not in names:
            near = [n for n in names if n.endswith(f".{match[1]}")] or difflib.get_close_matches(match[1], names, 1)
            hint = f"did you mean {near[0]}?" if near else "choose from these"
            raise SettingsError("profile.limit", f"requirement {match[1]!a}", f"not one of {', '.join(names)}", hint)
        requirements.append((match[1], match[2], float(match[3])))
    return requirements


def missed_limits(profile: Profile, requirements: Sequence[Requirement]) -> list[Message]:
    """Return a message per requirement that is missed or unmeasured."""
    lines = []
    for name, sign, limit in requirements:
        value, required = profile.value(name), f"required {sign} {limit:g}"
        if value is None:
            share = name.replace("ms_per_step.", "shares.")  # measured or not together
            why = profile.why.get(share) or profile.why.get(name.partition(".")[0]) or "there is none here"
            lines.append(Message("profile.unmeasured", name, f"not measured ({why}), {required}"))
        elif not (value >= limit if sign == ">=" else value <= limit):
            lines.append(Message("profile.missed", name, f"{value:.4g}, {required}"))
    return lines
