"""Numbers and shares as texts, on a terminal and on a page, and small parts of terminal tables."""

from __future__ import annotations

import math
from typing import TypeGuard

from rich.console import Console
from rich.markup import escape
from rich.table import Table

# What follows the name of a file's data; None: it cannot be told.
IMPUTED = {True: ", zeros filled in by its writer", False: "", None: ", perhaps with its zeros filled in by its writer"}


DASH = "-"  # stands for what is not known


def numbers(first: str, *others: str) -> Table:
    """An empty table of numbers behind a first column of names."""
    table = Table(show_edge=False)
    table.add_column(escape(first), no_wrap=True)
    for head in others:
        table.add_column(escape(head), no_wrap=True, justify="right")
    return table


def print_table(out: Console, title: str, table: Table) -> None:
    """A table under a title that may be wider, and an empty line."""
    out.print(title, style="italic", highlight=False, markup=False, soft_wrap=True)
    out.print(table)
    out.print()


def print_line(out: Console, line: str) -> None:
    """A sentence, wrapped between words on a terminal and whole in a pipe or a file."""
    out.print(line, highlight=False, markup=False, soft_wrap=not out.is_terminal)


def known(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def number(value: float | None, digits: int | None = None, unit: str = "") -> str:
    """Return a number with so many digits after the point, about three in all for None, and its unit; else a dash."""
    if not known(value):
        return DASH
    if digits is None:
        digits = sum(abs(value) < least for least in (99.95, 9.995, 0.9995)) if value != int(value) else 0
    return f"{value:,.{digits}f}{unit}"


def duration(seconds: float) -> str:
    """``42 s``, ``12 min`` or ``3.4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def of_unit(unit: str) -> str:
    """`` mph`` behind a number or a head; nothing for a unit that the file does not say."""
    return "" if unit == "unknown" else f" {unit}"


def ahead(minutes: int) -> str:
    """``15 min`` or ``3 h``: how far ahead a step of a forecast is."""
    return f"{minutes // 60} h" if minutes > 60 and minutes % 60 == 0 else f"{minutes} min"


def step_name(minutes: int | None, horizon: int = 0) -> str:
    """How far ahead a step is, or ``all 12 steps`` for None."""
    return f"all {horizon} steps" if minutes is None else ahead(minutes)


def reported_minutes(horizon: int, step_minutes: int) -> list[int | None]:
    """How far ahead the steps are that are reported, and None: all steps.

    These are 15, 30 and 60 minutes, then 3, 6, 12 and 24 hours, as far as they are steps; else the last one, which
    also ends a horizon that goes on for more than an hour.
    """
    last = horizon * step_minutes
    usual = [each for each in (15, 30, 60, 180, 360, 720, 1440) if each % step_minutes == 0 and each <= last]
    longer = last > 60 and last not in usual
    return [*usual, *([last] if longer or not usual else []), None]


def bar(share: float, width: int = 30) -> str:
    """A share as a bar; plain ASCII."""
    return "#" * round(share * width)


def percent(share: float | None) -> str:
    """Return a share with one digit, ``<0.1%`` for a smaller one above 0, and a dash where it is not known."""
    return ("<0.1%" if 0 < share < 0.0005 else f"{share:.1%}") if known(share) else DASH
