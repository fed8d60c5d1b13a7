"""Arguments and tasks of an error as a user types them: flags and commands."""

from __future__ import annotations

import shlex
from typing import Any

from socialx.errors import Argument, Command
from socialx.options import KEYS, flag_of

_PERIOD = {"start": "--from", "end": "--to"}
# Flags that are not made of the name of their argument, by task.
FLAGS = {
    "convert": {"data": "--data-csv", "meta": "--meta-csv", "output": "--output-h5"},
    **dict.fromkeys(("predict", "evaluate", "explain", "report"), _PERIOD),
    "train": {"settings": "--config"},
}


def write(task: str, part: Argument | Command) -> str:
    """An argument of ``task``, or another task to run, as it is typed."""
    if isinstance(part, Argument):
        return _option(task, part.name, part.value)
    words = [_quoted(value) for value in part.arguments]
    words += [_option(part.task, name, value) for name, value in part.options.items()]
    return " ".join(["socialx", part.task, *words])


def _option(task: str, name: str, value: Any) -> str:
    flag = flag_of(name) if name in KEYS else FLAGS.get(task, {}).get(name, "--" + name.replace("_", "-"))
    if value is None or value is True:
        return flag
    if value is False:
        return f"--no-{flag.removeprefix('--')}"
    return f"{flag} {_quoted(value)}"


def _quoted(value: Any) -> str:
    """A word of a command line; what cannot be printed is escaped, so that an error stays one line."""
    text = str(value)
    return shlex.quote(text if text.isprintable() else text.encode("unicode_escape").decode())
