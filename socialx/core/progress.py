"""Events of long work for a callback; without a callback they cost nothing.

A task of ``socialx.tasks`` takes a callback and passes it to ``subscribe``; everything below announces its work with
``work`` and ``emit``.  No module of the library prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from socialx.core.errors import Message, rewrite


@dataclass(frozen=True)
class Work:
    """How far a piece of long work is: ``done`` of ``total`` units; total is None where it is not known."""

    name: str
    total: float | None
    unit: str
    done: float = 0.0
    note: str = ""
    finished: bool = False


@dataclass(frozen=True)
class Start:
    """Training begins: the data, the machine and the model.  ``computes``: what runs on a card; empty on a CPU."""

    data: str
    sensors: int
    windows: int
    device: str
    precision: str
    parameters: int
    run_dir: str
    computes: str = ""


@dataclass(frozen=True)
class Epoch:
    """Epoch ``epoch`` of ``max_epochs`` has ended; errors in the unit of the first target.

    memory_mib: of the device, on a CPU of the process.  skipped_steps: until now, by the gradient scaler.
    gpu_utilisation: NVML's percent, the mean over the training steps; None: not measured.
    """

    max_epochs: int
    best: bool
    epoch: int
    steps: int
    train_mae: float
    validation_mae: float | None
    windows_per_s: float
    learning_rate: float
    seconds: float
    memory_mib: float
    skipped_steps: int = 0
    gpu_utilisation: float | None = None


@dataclass(frozen=True)
class Note:
    """One lasting line for the user."""

    message: Message


Event = Work | Start | Epoch | Note
Callback = Callable[[Event], None]

_LISTENER: ContextVar[Callback | None] = ContextVar("socialx_progress", default=None)


@contextmanager
def subscribe(callback: Callback | None) -> Iterator[None]:
    """Send every event of the block to ``callback``; None keeps the listener that is there."""
    if callback is None:
        yield
        return
    token = _LISTENER.set(callback)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextmanager
def also_subscribe(callback: Callback) -> Iterator[None]:
    """Send every event of the block to this callback too."""
    before = _LISTENER.get()

    def both(event: Event) -> None:
        if before is not None:
            before(event)
        callback(event)

    with subscribe(both):
        yield


def emit(event: Event) -> None:
    """Send one event to the listener."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(event)


def note(message: Message) -> None:
    """Send one lasting line to the listener."""
    emit(Note(message))


class Bar:
    """A piece of work that is under way: ``advance`` moves it."""

    def __init__(self, work: Work) -> None:
        self._listener, self._work = _LISTENER.get(), work
        self._send()

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Move on by ``amount`` units; ``note`` replaces the text beside it, such as the loss."""
        if self._listener is not None:
            text = self._work.note if note is None else note
            self._work = replace(self._work, done=self._work.done + amount, note=text)
            self._send()

    def finish(self) -> None:
        """The work is done, or was given up."""
        self._work = replace(self._work, finished=True)
        self._send()

    def _send(self) -> None:
        if self._listener is not None:
            self._listener(self._work)


@contextmanager
def work(name: str, total: float | None, unit: str, note: str = "") -> Iterator[Bar]:
    """Announce long work of ``total`` units; the block advances the bar that it is given."""
    bar = Bar(Work(rewrite(name), total, unit, note=note))
    try:
        yield bar
    finally:
        bar.finish()
