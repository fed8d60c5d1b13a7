"""What doctor found as a terminal table: a line per check, and what helps below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from socialx.core.errors import printable

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def print_lines(lines: Iterable[tuple[str, str, str, str]], console: Console | None = None) -> None:
    """Lines of (state, name, what was found, what helps), and how many there are of each state.

    Long lines wrap; where the output is no terminal, there are no colours.
    """
    out, listed = console or Console(), list(lines)
    table = Table(show_header=False, show_edge=False, box=None, pad_edge=False, width=out.width)
    for fixed in (True, True, False):
        table.add_column(no_wrap=fixed, overflow="fold")
    for state, name, found, helps in listed:
        table.add_row(Text(state, STYLES[state]), name, Text(printable(found)))
        if helps:
            table.add_row("", "", Text(f"next: {helps}", "dim" if state == "ok" else ""))
    out.print(table)
    counts = Counter(state for state, *_ in listed)
    out.print(", ".join(f"{counts[state]} {state}" for state in STYLES), highlight=False)
