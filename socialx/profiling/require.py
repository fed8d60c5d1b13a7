"""What a profile is asked to reach, as text: ``gpu_busy>=0.8,sm_efficiency>=0.5``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import NamedTuple

from socialx.errors import Argument, Message, SettingsError
from socialx.profiling.profile import NAMES, Profile


class Requirement(NamedTuple):
    """``name`` at least (>=) or at most (<=) ``limit``."""

    name: str
    sign: str
    limit: float


def parse(text: str) -> list[Requirement]:
    """``gpu_busy>=0.8,sync.per_step<=0`` -> requirements; a name or sign that is not known is refused."""
    requirements = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([\w.]+)\s*(>=|<=)\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*", part)
        if not match:
            raise SettingsError(
                f"requirement {part!a}",
                "not NAME>=NUMBER or NAME<=NUMBER",
                f"for example {Argument('require', 'gpu_busy>=0.8')}, in quotes on a command line",
            )
        if match[1] not in NAMES:
            near = difflib.get_close_matches(match[1], NAMES, 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else "choose from these"
            raise SettingsError(f"requirement {match[1]!a}", f"not one of {', '.join(NAMES)}", hint)
        requirements.append(Requirement(match[1], match[2], float(match[3])))
    return requirements


def failed(profile: Profile, requirements: Sequence[Requirement]) -> list[Message]:
    """A message for each that is not met or was not measured."""
    lines = []
    for name, sign, limit in requirements:
        value, required = profile.value(name), f"required {sign} {limit:g}"
        if value is None:
            share = name.replace("ms_per_step.", "shares.")  # measured or not together
            why = profile.why.get(share) or profile.why.get(name.partition(".")[0]) or "there is none here"
            lines.append(Message(name, f"not measured ({why})", required))
        elif not (value >= limit if sign == ">=" else value <= limit):
            lines.append(Message(name, f"{value:.4g}", required))
    return lines
