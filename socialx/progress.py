"""One progress bar for all long work: on stderr, and silent where stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    """Units per second since the start, in the bar's own unit."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {task.fields['unit']}/s")


class Bar:
    """A running bar: ``advance`` moves it, ``note`` is the free text at its end (a loss, an epoch)."""

    def __init__(self, progress: Progress, task: int) -> None:
        self._progress, self._task = progress, task

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Move the bar by ``amount`` of its unit; ``note`` replaces the text at its end."""
        fields = {} if note is None else {"note": note}
        self._progress.update(self._task, advance=amount, **fields)  # type: ignore[arg-type]

    def say(self, line: str) -> None:
        """Print a lasting line above the bar, on stderr, also where the bar itself is silent."""
        self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress_bar(description: str, total: float | None, unit: str, note: str = "") -> Iterator[Bar]:
    """A bar with share, rate in ``unit``/s and time left; it disappears when the work is done.

    total: how many units there are, or None where that is not known.
    """
    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Bar(progress, progress.add_task(description, total=total, unit=unit, note=note))
