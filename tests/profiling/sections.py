"""Sections of a profile from values in order."""

from __future__ import annotations

from typing import Any

from socialx.profiling.profile import FACTS, NUMBERS, Section, part


def section(name: str, *values: Any, **more: Any) -> Section:
    """The first values in the order of NUMBERS and FACTS, and others by their name."""
    names = f"{NUMBERS[name]} {FACTS.get(name, '')}".split()
    return part(name, **dict(zip(names, values, strict=False)), **more)


def loading(mode: str, *values: Any, **more: Any) -> Section:
    """The section of a loader, from its mode and the values in the order of NUMBERS."""
    return section("loader", *values, mode=mode, **more)


def timeline(bin_s: float, busy: list[float], steps_per_point: int, step_ms: list[float]) -> Section:
    """The section of pictures over time."""
    return section("timeline", bin_s, steps_per_point, busy, step_ms)


def top(name: str, share: float, us_per_step: float, per_step: float) -> Section:
    """A kernel or an operator."""
    return {"name": name, "share": share, "us_per_step": us_per_step, "per_step": per_step}
