"""The exceptions that a user can cause, as data: where it is, what was found, a sample, and what helps.

A remedy is plain text, or a tuple of text, ``Argument`` and ``Command``.  ``str(error)`` writes it as Python, for a
notebook; the command line writes the same remedy with flags and commands.  Any other exception that escapes is a bug of
socialx and keeps its traceback.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Self

SAMPLE = 3  # items of a longer list that an error names
ITEM = 60  # characters of each of them
FOUND = 400  # characters of what was found


@dataclass(frozen=True)
class Argument:
    """An argument of the task at hand, or a setting by its dotted key; ``value`` None: only its name is written."""

    name: str
    value: Any = None


@dataclass(frozen=True, init=False)
class Command:
    """A task to run next, with its arguments; an argument that is None is left out."""

    task: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def __init__(self, task: str, *arguments: Any, **options: Any) -> None:
        given = {name: value for name, value in options.items() if value is not None}
        for name, value in (("task", task), ("arguments", arguments), ("options", given)):
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return python(self)


Part = str | Argument | Command
Remedy = Part | tuple[Part, ...]
Write = Callable[[Argument | Command], str]


def python(part: Argument | Command) -> str:
    """An argument or a task as it is written in Python."""
    if isinstance(part, Command):
        given = [_literal(value) for value in part.arguments]
        given += [python(Argument(name, value)) for name, value in part.options.items()]
        return f"socialx.{part.task}({', '.join(given)})"
    section, _, name = part.name.rpartition(".")
    if part.value is None:
        return part.name
    value = _literal(part.value)
    return f'{section}={{"{name}": {value}}}' if section else f"{name}={value}"


def _literal(value: Any) -> str:
    return repr(str(value)) if isinstance(value, PurePath) else repr(value)


@dataclass(frozen=True, init=False)
class Message:
    """One line to a user as data: where it is, what was found, and what helps; an empty part is left out."""

    where: Any
    what: str
    remedy: tuple[Part, ...]
    sample: tuple[str, ...]

    def __init__(self, where: object, what: object, remedy: Remedy = "", sample: Iterable[str] = ()) -> None:
        parts = remedy if isinstance(remedy, tuple) else (remedy,) if remedy != "" else ()
        for name, value in (("where", where), ("what", str(what)), ("remedy", parts), ("sample", tuple(sample))):
            object.__setattr__(self, name, value)

    def line(self, write: Write = python) -> str:
        """``where: what (sample): remedy``; ``write`` says how arguments and commands look."""
        where = write(self.where) if isinstance(self.where, (Argument, Command)) else str(self.where)
        found = f"{self.what} ({sample(self.sample)})" if self.sample else self.what
        helps = "".join(part if isinstance(part, str) else write(part) for part in self.remedy)
        return printable(": ".join(filter(None, (where, shortened(found, FOUND), helps))))

    def __str__(self) -> str:
        return self.line()


class SocialxError(Exception):
    """A data or file error: exit code 1."""

    exit_code = 1

    def __init__(self, where: object, what: object, remedy: Remedy = "", *, sample: Iterable[str] = ()) -> None:
        self.messages: tuple[Message, ...] = (Message(where, what, remedy, sample),)
        super().__init__(where, what, remedy)

    @classmethod
    def together(cls, messages: Iterable[Message]) -> Self:
        """One exception for several messages."""
        first, *others = messages
        made = cls(first.where, first.what, first.remedy, sample=first.sample)
        made.messages = (first, *others)
        return made

    def lines(self, write: Write = python) -> list[str]:
        """One line per message."""
        return [message.line(write) for message in self.messages]

    def __str__(self) -> str:
        return "\n".join(self.lines())


class SettingsError(SocialxError):
    """A wrong argument, setting or settings file: exit code 2."""

    exit_code = 2


class GateError(SocialxError):
    """A check that the user asked for was not met: exit code 3."""

    exit_code = 3


class Fallback(UserWarning):
    """What was asked for, or picked, cannot be done here; the message says why and what is done in its place."""

    def __init__(self, message: Message) -> None:
        self.message = message
        super().__init__(message)

    def __str__(self) -> str:
        return str(self.message)


def fall_back(where: object, what: str, remedy: Remedy = "", *, sample: Iterable[str] = ()) -> None:
    """Warn with a ``Fallback``; the command line prints it as one line."""
    warnings.warn(Fallback(Message(where, what, remedy, sample)), stacklevel=3)


def sample(items: Sequence[str], most: int = SAMPLE) -> str:
    """The first few of a list, for an error line: ``a, b, c, ...``; of a long item only its beginning."""
    shown = ", ".join(shortened(item, ITEM) for item in items[:most])
    return f"{shown}, ..." if len(items) > most else shown


def shortened(text: str, most: int) -> str:
    """The first ``most`` characters of a text, and ``...`` where it has more."""
    return text if len(text) <= most else f"{text[:most]}..."


def printable(text: str) -> str:
    """The text with an escape for whatever would end the line, or command the terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
