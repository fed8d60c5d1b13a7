"""Progress events as lines and bars on stderr; bars are silent where stderr is not a terminal."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from socialx.cli.shell import write
from socialx.progress import Epoch, Event, Note, Start, Work

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def _bars() -> Progress:
    """No bar yet.  rich is loaded here: a help page shows none."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Units per second since the start, in the bar's own unit."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f} {task.fields['unit']}/s")

    console = Console(file=sys.stderr, emoji=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class Show:
    """The callback of a command: a bar for every piece of work that is under way, and lasting lines above them."""

    def __init__(self, command: str) -> None:
        self._write = partial(write, command)
        self._progress = _bars()
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Work):
            self._work(event)
        elif isinstance(event, Note):
            self._say(event.message.line(self._write))
        elif isinstance(event, Start):
            self._say(f"{event.data}: {event.sensors} sensors, {event.windows:,} training windows")
            machine = f"{event.device}, precision {event.precision}"
            self._say(f"{machine}, {event.parameters:,} parameters, run folder {event.run_dir}")
            if event.computes:
                self._say(event.computes)
        elif isinstance(event, Epoch):
            mae = "-" if event.validation_mae is None else f"{event.validation_mae:.3f}"
            rest = f"  {event.skipped_steps} steps skipped" if event.skipped_steps else ""
            self._say(
                f"epoch {event.epoch:>3}/{event.of}  train MAE {event.train_mae:.3f}  validation MAE {mae}  "
                f"{event.windows_per_s:,.0f} windows/s{rest}{'  best' if event.best else ''}"
            )

    def _work(self, work: Work) -> None:
        if work.finished:
            task = self._tasks.pop(work.name, None)
            if task is not None:
                self._progress.remove_task(task)
            if not self._tasks:
                self._progress.stop()
            return
        if work.name not in self._tasks:
            self._progress.start()
            self._tasks[work.name] = self._progress.add_task(
                work.name, total=work.total, unit=work.unit, note=work.note
            )
        fields = {"note": work.note}
        self._progress.update(self._tasks[work.name], completed=work.done, **fields)  # type: ignore[arg-type]

    def _say(self, line: str) -> None:
        """A lasting line above the bars."""
        self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)
