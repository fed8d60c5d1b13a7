"""Numbers and shares as texts for terminals and pages, and small parts of terminal tables."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, TypeGuard

from rich.console import Console
from rich.markup import escape
from rich.table import Table

# What follows the name of a file's data; None: it cannot be told.
IMPUTED = {True: ", zeros filled in by its writer", False: "", None: ", perhaps with its zeros filled in by its writer"}


DASH = "-"  # stands for what is not known


class TextTable(NamedTuple):
    """A table for a terminal or a page: the first column has names, the others have numbers.

    A row without a name belongs to the last row with one. bold: the names of rows to print in bold. long: how many
    heads may be wrapped, as they are long names. below: lines after the table.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: Collection[str] = ()
    long: int = 1
    below: Sequence[str] = ()

    def print(self, out: Console) -> None:
        """Print the title, which may be wider than the table, then the table and an empty line."""
        table = Table(show_edge=False)
        for number, head in enumerate(self.heads):
            justify: Literal["right", "left"] = "right" if number else "left"
            table.add_column(escape(head), overflow="fold", no_wrap=number >= self.long, justify=justify)
        parts = not all(row[0] for row in self.rows)
        for row, following in zip(self.rows, [*self.rows[1:], ("last",)], strict=True):
            style = "bold" if row[0] in self.bold else ""
            table.add_row(*map(escape, row), end_section=parts and bool(following[0]), style=style)
        out.print(self.title, style="italic", highlight=False, markup=False, soft_wrap=True)
        out.print(table)
        for line in self.below:
            print_line(out, line)
        out.print()


def print_line(out: Console, line: str) -> None:
    """Print a sentence, wrapped between words on a terminal and whole in a pipe or a file."""
    out.print(line, highlight=False, markup=False, soft_wrap=not out.is_terminal)


def is_known(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number, rather than None, NaN or a text."""
    return isinstance(value, int | float) and math.isfinite(value)


def number(value: float | None, digits: int | None = None, unit: str = "") -> str:
    """Return a number with ``digits`` after the point (None: about three in all) and a unit, or a dash."""
    if not is_known(value):
        return DASH
    if digits is None:
        digits = sum(abs(value) < least for least in (99.95, 9.995, 0.9995)) if value != int(value) else 0
    return f"{value:,.{digits}f}{unit}"


def duration(seconds: float) -> str:
    """Return seconds as ``42 s``, ``12 min`` or ``3.4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def unit_suffix(unit: str) -> str:
    """Return `` mph`` to follow a number or a head, and an empty text where the file has an unknown unit."""
    return "" if unit == "unknown" else f" {unit}"


def lead_text(minutes: int) -> str:
    """Return a lead time in minutes as ``15 min`` or ``3 h``."""
    return f"{minutes // 60} h" if minutes > 60 and minutes % 60 == 0 else f"{minutes} min"


def lead_times(horizon: int, step_minutes: int) -> dict[int | None, str]:
    """Return the lead times that tables report, in minutes, then None for all steps; each with its text.

    Lead times of 15, 30 and 60 minutes and 3, 6, 12 and 24 hours are reported where a step has that lead time. The last
    step is added for a horizon above an hour, or where the list would be empty.
    """
    last = horizon * step_minutes
    shown = [lead for lead in (15, 30, 60, 180, 360, 720, 1440) if lead % step_minutes == 0 and lead <= last]
    if not shown or (last > 60 and last not in shown):
        shown.append(last)
    return {**{minutes: lead_text(minutes) for minutes in shown}, None: f"all {horizon} steps"}


def bar(share: float, width: int = 30) -> str:
    """Return a share, 0 to 1, as a bar of ``#``; a share of 1 is ``width`` characters long."""
    return "#" * round(share * width)


def percent(share: float | None) -> str:
    """Return a share with a digit after the point, ``<0.1%`` for a small share above 0, a dash where unknown."""
    return ("<0.1%" if 0 < share < 0.0005 else f"{share:.1%}") if is_known(share) else DASH
