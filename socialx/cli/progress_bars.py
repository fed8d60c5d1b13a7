"""Progress events as lines and bars on stderr, subject to ``--quiet`` and ``--verbose``.

Bars need a terminal on stderr.
"""

from __future__ import annotations

import sys
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

from socialx.core.errors import counted
from socialx.core.progress import Epoch, Event, Note, Start, Work

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


# Output besides result and errors: 0 nothing, 1 progress and notes, 2 details too.
VERBOSITY: ContextVar[int] = ContextVar("socialx_verbosity", default=1)


def shows(detail: bool = False) -> bool:
    """Return whether a note is printed; detail: whether the note needs ``--verbose``."""
    return VERBOSITY.get() > int(detail)


def _bars() -> Progress:
    """Return a display without bars.  rich is imported here, because help pages show no bars."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Units per second since the start, in the unit of the bar."""

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


MEASURED_S = 10.0  # of training before the end is estimated


class _Throughput:
    """An estimate, made once, for the duration of an epoch and the remaining training.

    Time is measured between two reads of the loss, when the device has finished all queued work; the first step, which
    may compile, is left out.
    """

    def __init__(self, epoch_windows: int) -> None:
        self._epoch_windows, self._note, self._told = epoch_windows, "", False
        self._first: tuple[float, float] | None = None  # time and windows

    def line(self, work: Work, seconds_now: float) -> str | None:
        """Return the estimate after this event, or None.  seconds_now: seconds on any clock."""
        if self._told or work.note == self._note or work.total is None:
            return None
        self._note = work.note
        self._first = self._first or (seconds_now, work.done)
        seconds, windows, left = seconds_now - self._first[0], work.done - self._first[1], work.total - work.done
        if seconds < MEASURED_S or not windows or left < 1:
            return None
        from socialx.drawing.terminal import duration  # imports rich

        self._told = True
        epoch, rest = (duration(seconds / windows * count) for count in (self._epoch_windows, left))
        return f"an epoch takes about {epoch}, and about {rest} are left, validation aside"


class Show:
    """The callback of a command: a bar for each piece of work in progress, and lasting lines above the bars."""

    def __init__(self) -> None:
        self._shows = {detail: shows(detail) for detail in (False, True)}
        self._progress = _bars()
        self._tasks: dict[str, TaskID] = {}
        self._pace: _Throughput | None = None

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if not self._shows[isinstance(event, Note) and event.detail]:
            return
        if isinstance(event, Work):
            self._work(event)
        elif isinstance(event, Note):
            self._say(f"note: {event.message.text()}")
        elif isinstance(event, Start):
            self._pace = _Throughput(event.windows)
            self._say(f"{event.data}: {event.sensors} sensors, {event.windows:,} training windows")
            machine = f"{event.device}, precision {event.precision}"
            self._say(f"{machine}, {event.parameters:,} parameters, run folder {event.run_dir}")
            if event.computes and self._shows[True]:
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
        self._progress.update(self._tasks[work.name], completed=work.done, note=work.note)

    def _say(self, line: str) -> None:
        """Print a lasting line above the bars."""
        self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)
