"""Progress events as lines and bars on stderr; bars are silent where stderr is not a terminal."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from socialx.cli.error_flags import write
from socialx.core.errors import counted
from socialx.core.progress import Epoch, Event, Note, Start, Work

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


MEASURED_S = 10.0  # of training from which a forecast of its end is made


class _Pace:
    """Says once how long an epoch and the rest of a training will take.

    It measures from one reading of the loss to a later one: only then has the device done all that it was given, and
    the first step, which may compile, is not counted.
    """

    def __init__(self, epoch_windows: int) -> None:
        self._epoch_windows, self._note, self._told = epoch_windows, "", False
        self._first: tuple[float, float] | None = None  # time and windows

    def line(self, work: Work, now: float) -> str | None:
        """What to say after this event, which may be nothing.  now: seconds of any clock."""
        if self._told or work.note == self._note or work.total is None:
            return None
        self._note = work.note
        self._first = self._first or (now, work.done)
        seconds, windows, left = now - self._first[0], work.done - self._first[1], work.total - work.done
        if seconds < MEASURED_S or not windows or left < 1:
            return None
        from socialx.drawing.terminal import duration  # it loads rich

        self._told = True
        epoch, rest = (duration(seconds / windows * count) for count in (self._epoch_windows, left))
        return f"an epoch takes about {epoch} and all that is left about {rest}, without validation"


class Show:
    """The callback of a command: a bar for every piece of work that is under way, and lasting lines above them."""

    def __init__(self, command: str) -> None:
        self._write = partial(write, command)
        self._progress = _bars()
        self._tasks: dict[str, TaskID] = {}
        self._pace: _Pace | None = None

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Work):
            self._work(event)
        elif isinstance(event, Note):
            self._say(event.message.line(self._write))
        elif isinstance(event, Start):
            self._pace = _Pace(event.windows)
            self._say(f"{event.data}: {event.sensors} sensors, {event.windows:,} training windows")
            machine = f"{event.device}, precision {event.precision}"
            self._say(f"{machine}, {event.parameters:,} parameters, run folder {event.run_dir}")
            if event.computes:
                self._say(event.computes)
        elif isinstance(event, Epoch):
            mae = "-" if event.validation_mae is None else f"{event.validation_mae:.3f}"
            rest = "" if event.gpu_utilisation is None else f"  GPU {event.gpu_utilisation:.0f} %"
            rest += f"  {counted(event.skipped_steps, 'step')} skipped" if event.skipped_steps else ""
            self._say(
                f"epoch {event.epoch:>3}/{event.max_epochs}  train MAE {event.train_mae:.3f}  validation MAE {mae}  "
                f"{event.windows_per_s:,.0f} windows/s{rest}{'  best' if event.best else ''}"
            )

    def _work(self, work: Work) -> None:
        if self._pace and work.name == "train" and (line := self._pace.line(work, time.monotonic())):
            self._say(line)
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
