"""The package does not grow: who adds lines takes as many away."""

from __future__ import annotations

from pathlib import Path

import socialx

LINES = 36223  # of all modules; a change that lowers their number lowers this one too


def test_the_package_does_not_grow() -> None:
    modules = sorted(Path(socialx.__file__).parent.rglob("*.py"))
    lines = sum(len(module.read_text().splitlines()) for module in modules)
    assert lines <= LINES, f"{lines} lines: take {lines - LINES} away, the new ones or others"
