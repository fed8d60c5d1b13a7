"""What a profile is asked to reach, as text: ``gpu_busy>=0.8,sm_efficiency>=0.5``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from socialx.errors import SettingsError

# Where a number stands in the profile; shares and efficiencies are 0 to 1.
NAMES = (
    *("gpu_busy", "sm_efficiency", "shares.input", "shares.transfer", "shares.span", "shares.hooks", "shares.kernel"),
    *("shares.bubble", "step_ms.p50", "step_ms.p95", "step_ms.p99", "step_ms.cv", "throughput.windows_per_s"),
    *("kernels.per_step", "kernels.launches_per_step", "kernels.tiny_share", "kernels.occupancy", "sync.per_step"),
    *("copy.h2d_bytes_per_step", "memory.peak_bytes", "memory.reserved_bytes", "memory.alloc_retries"),
)


class Requirement(NamedTuple):
    """``name`` at least (>=) or at most (<=) ``limit``."""

    name: str
    sign: str
    limit: float


def parse(text: str) -> list[Requirement]:
    """``gpu_busy>=0.8,sync.per_step<=0`` -> requirements; a name or sign that is not known is refused."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([\w.]+)\s*(>=|<=)\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*", part)
        if not match:
            advice = "--require 'gpu_busy>=0.8', in quotes because > is the shell's"
            raise SettingsError(f"requirement {part!a}: not NAME>=NUMBER or NAME<=NUMBER: {advice}")
        if match[1] not in NAMES:
            near = difflib.get_close_matches(match[1], NAMES, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else "choose from these"
            raise SettingsError(f"requirement {match[1]!a}: not one of {', '.join(NAMES)}: {hint}")
        found.append(Requirement(match[1], match[2], float(match[3])))
    return found


def failed(profile: Mapping[str, Any], requirements: Sequence[Requirement]) -> list[str]:
    """A line for each that is not met or was not measured."""
    lines = []
    for name, sign, limit in requirements:
        section, _, key = name.partition(".")
        value = profile[section] if not key else (profile[section] or {}).get(key)
        if value is None:
            why = profile["why"]
            lines.append(f"{name}: not measured ({why.get(name) or why.get(section)}): required {sign} {limit:g}")
        elif not (value >= limit if sign == ">=" else value <= limit):
            lines.append(f"{name}: {value:.4g}: required {sign} {limit:g}")
    return lines
