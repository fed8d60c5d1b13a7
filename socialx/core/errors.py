"""User errors as data: code, where, problem, sample and remedy.

A message is text in which an ``Argument`` or ``Command`` writes itself as the door does that the user came through:
``f"add {Argument('data.path', 'FILE.h5')}"`` says ``--data FILE.h5`` on the command line, and Python in a notebook.
A message is a sentence and, on a separate line, what to try; ``Message.line`` is the same in a single line, for JSON.
Any further exception that escapes is a socialx bug and keeps the traceback.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Self

SAMPLE = 3  # items of a longer list that an error names
ITEM = 60  # characters of each of them
FOUND = 400  # characters of what was found


@dataclass(frozen=True)
class Argument:
    """Argument of the current task, or a setting by dotted key; a ``value`` of None is spelt as the name alone."""

    name: str
    value: Any = None

    def __str__(self) -> str:
        return SPELL.get()(self)


class Command:
    """Task to run next, with arguments; a ``None`` argument is dropped. An empty task: more arguments for this task."""

    def __init__(self, task: str, *arguments: Any, **options: Any) -> None:
        self.task, self.arguments = task, arguments
        self.options = {name: value for name, value in options.items() if value is not None}

    def __str__(self) -> str:
        return SPELL.get()(self)


SECRET = re.compile(r"(\b[a-z]+:/{1,2}[^/\s:@]*):[^/\s@]+(?=@)")  # the password of a URL, also of one taken for a path
Remedy = str | Argument | Command
Spell = Callable[[Argument | Command], str]


def python(part: Argument | Command) -> str:
    """Return an argument or a task as Python code."""
    if isinstance(part, Command):
        arguments = [_literal(value) for value in part.arguments]
        named: dict[str, Any] = {}
        for name, value in part.options.items():  # settings of one section are one argument
            section, _, key = name.rpartition(".")
            named[section or key] = {**named.get(section, {}), key: value} if section else value
        if isinstance(named.get("settings"), str | PurePath):  # a file of them
            arguments.append(f"settings=socialx.load_settings([{_literal(named.pop('settings'))}])")
        arguments += [f"{name}={_literal(value)}" for name, value in named.items()]
        said = ", ".join(arguments)
        return f"socialx.{part.task}({said})" if part.task else said
    section, _, name = part.name.rpartition(".")
    if part.value is None:
        return part.name
    value = _literal(part.value)
    return f"{section}={{{name!r}: {value}}}" if section else f"{name}={value}"


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_literal(item)}' for key, item in value.items())}}}"
    return str(value) if value is None or isinstance(value, int | float) else repr(from_here(str(value)))


def from_here(text: str) -> str:
    """Return an absolute path below the current folder as it is typed there, and any other text as it is."""
    with suppress(OSError, ValueError):  # the current folder may be gone; most texts are elsewhere
        below = str(PurePath(text).relative_to(here := Path.cwd()))
        return text if here == here.parent or below.startswith("-") else below
    return text


SPELL: ContextVar[Spell] = ContextVar("socialx_spell", default=python)


@contextmanager
def held(variable: ContextVar[Any], value: Any) -> Iterator[Any]:
    """Give a context variable a value until the block ends; yields the value before."""
    before, token = variable.get(), variable.set(value)
    try:
        yield before
    finally:
        variable.reset(token)


def spelling(spell: Spell) -> AbstractContextManager[Spell]:
    """Write every argument and command in the block by ``spell``; yields the function used before."""
    return held(SPELL, spell)


Edit = Callable[[str], str]
_EDIT: ContextVar[Edit | None] = ContextVar("socialx_edit", default=None)


def rewrite_messages(edit: Edit) -> AbstractContextManager[Edit | None]:
    """Apply ``edit`` to the texts of all messages made in the block, such as to hide an internal file name."""
    outer = _EDIT.get()
    return held(_EDIT, edit if outer is None else lambda text: outer(edit(text)))


def rewrite(text: object) -> str:
    """Return the text as changed by each enclosing ``rewrite_messages``, innermost first."""
    edit = _EDIT.get()
    return str(text) if edit is None else edit(str(text))


class Message:
    """A sentence to a user, and what to try: texts ``where``, ``problem`` and ``remedy``, some may be empty.

    code: names the message for tests and programs, such as ``data.too-short``; it stays when the wording changes.
    """

    def __init__(
        self, code: str, where: object, problem: object, remedy: Remedy = "", sample: Iterable[str] = ()
    ) -> None:
        self.code = code
        self.where, self.problem, self.remedy = rewrite(where), rewrite(problem), rewrite(remedy)
        self.sample = tuple(map(rewrite, sample))

    def sentence(self) -> str:
        """Return ``where: problem (sample).``."""
        problem = f"{self.problem} ({sample(self.sample)})" if self.sample else self.problem
        text = _shown(": ".join(filter(None, (self.where, shortened(problem, FOUND)))))
        return f"{text}." if text and text[-1] not in ".?!" else text

    def advice(self) -> str:
        """Return what to try; empty where nothing helps."""
        return _shown(self.remedy)

    def text(self) -> str:
        """Return the sentence and, below it, ``  try: advice``."""
        advice = self.advice()
        return f"{self.sentence()}\n  try: {advice}" if advice else self.sentence()

    def line(self) -> str:
        """Return sentence and advice as one line, for JSON and logs: ``where: what. Try: advice``."""
        advice = self.advice()
        return f"{self.sentence()} Try: {advice}" if advice else self.sentence()

    def __str__(self) -> str:
        return self.text()


def _shown(text: str) -> str:
    """Return the text as a line, without passwords, and with an escape for whatever a terminal obeys."""
    return printable(SECRET.sub(r"\1", " ".join(filter(None, map(str.strip, text.splitlines())))))


class SocialxError(Exception):
    """Data or file error: exit code 1."""

    exit_code = 1

    def __init__(
        self, code: str, where: object, problem: object, remedy: Remedy = "", *, sample: Iterable[str] = ()
    ) -> None:
        self.messages: tuple[Message, ...] = (Message(code, where, problem, remedy, sample),)
        super().__init__(code, rewrite(where), rewrite(problem), rewrite(remedy))

    @property
    def code(self) -> str:
        """The code of the first message."""
        return self.messages[0].code

    @classmethod
    def together(cls, messages: Iterable[Message]) -> Self:
        """Return a single exception for several messages, to report all at once."""
        first, *others = messages
        error = cls(first.code, first.where, first.problem, first.remedy, sample=first.sample)
        error.messages = (first, *others)
        return error

    def lines(self) -> list[str]:
        """Return one line per message, for JSON and logs."""
        return [message.line() for message in self.messages]

    def __str__(self) -> str:
        return "\n".join(map(str, self.messages))


class SettingsError(SocialxError):
    """Wrong argument, setting or settings file: exit code 2."""

    exit_code = 2


class CheckFailedError(SocialxError):
    """Failed check that the user asked for: exit code 3."""

    exit_code = 3


class FallbackWarning(UserWarning):
    """Warning that a request cannot be met here; the message gives the reason and the substitute."""

    def __init__(self, message: Message) -> None:
        self.message = message
        super().__init__(message)

    def __str__(self) -> str:
        return str(self.message)


def fall_back(code: str, where: object, problem: str, remedy: Remedy = "") -> None:
    """Warn that a request cannot be met and a substitute is used; the arguments make up the ``Message`` to print."""
    warnings.warn(FallbackWarning(Message(code, where, problem, remedy)), stacklevel=3)


def sample(items: Sequence[str], most: int = SAMPLE) -> str:
    """Return the first ``most`` items for an error line: ``a, b, c, ...``; items above ITEM letters are cut."""
    shown = ", ".join(shortened(item, ITEM) for item in items[:most])
    return f"{shown}, ..." if len(items) > most else shown


def counted(count: int, one: str, several: str = "") -> str:
    """Return ``1 row`` or ``2,000 rows``; several: irregular plural."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def in_short(error: BaseException, most: int = 160) -> str:
    """Return the first line of a foreign library's error, up to ``most`` letters, or the error type if empty."""
    return next((line.strip()[:most] for line in str(error).splitlines() if line.strip()), type(error).__name__)


def shortened(text: str, most: int) -> str:
    """Return the first ``most`` characters, then ``...`` if the text is longer."""
    return text if len(text) <= most else f"{text[:most]}..."


def plain(content: Any) -> Any:
    """Return JSON content with control characters escaped in each text, safe to print."""
    if isinstance(content, dict):
        return {printable(name): plain(value) for name, value in content.items()}
    if isinstance(content, list):
        return list(map(plain, content))
    return printable(content) if isinstance(content, str) else content


def printable(text: str) -> str:
    """Return the text with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(item if item.isprintable() else item.encode("unicode_escape").decode("ascii") for item in text)
