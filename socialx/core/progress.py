"""Progress events for a callback; free when nobody listens.

Tasks in ``socialx.tasks`` pass a callback to ``subscribe``; inner code announces work with ``work`` and ``emit``.
Printing is left to the callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from socialx.core.errors import Message, held, rewrite


@dataclass(frozen=True)
class Work:
    """Progress in long work: ``done`` of ``total`` units; total is ``None`` if unknown."""

    name: str
    total: float | None
    unit: str
    done: float = 0.0
    note: str = ""
    finished: bool = False


@dataclass(frozen=True)
class Start:
    """Training start: data, machine and model. ``computes``: what computes a step on a GPU; empty on a CPU."""

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
    """Finished epoch ``epoch`` out of ``max_epochs``; errors in the first target's unit.

    memory_mib: device memory, or process memory on a CPU. skipped_steps: skipped so far by the gradient scaler.
    gpu_utilisation: mean NVML percent over the training steps; ``None`` if unmeasured.
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
    """A lasting message for the user; detail: shown on request, by the rule of ``note``."""

    message: Message
    detail: bool = False


Event = Work | Start | Epoch | Note
Callback = Callable[[Event], None]

_LISTENER: ContextVar[Callback | None] = ContextVar("socialx_progress", default=None)


def subscribe(callback: Callback | None) -> AbstractContextManager[Callback | None]:
    """Send events from the block to ``callback``; ``None`` keeps the current listener."""
    return held(_LISTENER, _LISTENER.get() if callback is None else callback)


def also_subscribe(callback: Callback) -> AbstractContextManager[Callback | None]:
    """Send events from the block to an additional callback."""
    before = _LISTENER.get()

    def both(event: Event) -> None:
        if before is not None:
            before(event)
        callback(event)

    return subscribe(both)


def emit(event: Event) -> None:
    """Send an event to the listener, a callback from ``subscribe``; without a listener, do nothing."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(event)


def note(message: Message | str, detail: bool = False) -> None:
    """Send a lasting message to the listener.

    The rule: a message that changes what the reader does next with the result is shown, such as old data, doubtful
    values, too few days and the error of the last days.  How a file was read and how a model works is a detail,
    shown on request, unless the file is the result.  A text (str) is always a detail.
    """
    emit(Note(message, detail) if isinstance(message, Message) else Note(Message("progress.note", "", message), True))


def as_details(only: bool = True) -> AbstractContextManager[Callback | None]:
    """Send the notes of the block as details, if ``only``: for a step towards another result."""
    listener = _LISTENER.get()

    def lower(event: Event) -> None:
        if listener is not None:
            listener(replace(event, detail=True) if isinstance(event, Note) else event)

    return subscribe(lower if only else None)


class Bar:
    """Running work, reported to the listener; ``advance`` moves the bar."""

    def __init__(self, work: Work) -> None:
        self._listener, self._work = _LISTENER.get(), work
        self._send()

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Advance by ``amount`` units; ``note`` replaces the text next to the bar, such as the loss."""
        if self._listener is not None:
            text = self._work.note if note is None else note
            self._work = replace(self._work, done=self._work.done + amount, note=text)
            self._send()

    def finish(self) -> None:
        """Mark the work as ended."""
        self._work = replace(self._work, finished=True)
        self._send()

    def _send(self) -> None:
        if self._listener is not None:
            self._listener(self._work)


@contextmanager
def work(name: str, total: float | None, unit: str) -> Iterator[Bar]:
    """Announce long work of ``total`` units (None: unknown) for a progress bar; the block advances the yielded bar."""
    bar = Bar(Work(rewrite(name), total, unit))
    try:
        yield bar
    finally:
        bar.finish()
