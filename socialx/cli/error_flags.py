"""Arguments and tasks of an error as a user types them: flags and commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from socialx.core.errors import Argument, Command
from socialx.settings.kinds import CUSTOM
from socialx.settings.layers import SET, command_text
from socialx.settings.schema import KEYS, MAY_CHANGE, SCORING, flag_keys, flag_name

MODEL = "model.kind"

_PERIOD, _FILE = {"start": "--start", "end": "--end"}, {"settings": "--config"}
# Flags that are not made of the name of their argument, by task.
FLAGS = {
    "convert": {"data": "--data-csv", "meta": "--meta-csv", "output": "--output-h5"},
    **dict.fromkeys(("predict", "evaluate", "explain", "report"), _PERIOD),
    **dict.fromkeys(("train", "profile"), _FILE),
}

# The class of the user's own that this command line names: every command that uses its run must name it again.
_OWN_MODEL: ContextVar[str | None] = ContextVar("socialx_own_model", default=None)


@contextmanager
def with_own_model(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Write the commands of the block with the model of the user's own that these parameters name, if they do."""
    sets = dict(text.split("=", 1) for text in parameters.get("set_") or () if "=" in text)
    kind = parameters.get("model__kind") or sets.get(MODEL, "")
    token = _OWN_MODEL.set(kind if CUSTOM.fullmatch(kind) else None)
    try:
        yield
    finally:
        _OWN_MODEL.reset(token)


def write(task: str, part: Argument | Command) -> str:
    """An argument of ``task``, or another task to run, as it is typed."""
    if isinstance(part, Argument):
        return _option(task, part.name, part.value)
    words = [_quoted(value) for value in part.arguments]
    options = dict(part.options)
    if (model := _OWN_MODEL.get()) and MODEL in flag_keys(part.task):
        options.setdefault(MODEL, model)
    words += [_option(part.task, name, value) for name, value in options.items()]
    return " ".join(["socialx", part.task, *words])


def _option(task: str, name: str, value: Any) -> str:
    if name in MAY_CHANGE[SCORING] and flag_keys(task) and name not in flag_keys(task):  # any other is a flag of train
        return f"{SET} {name if value is None else _quoted(f'{name}={command_text(value)}')}"
    flag = flag_name(name) if name in KEYS else FLAGS.get(task, {}).get(name, "--" + name.replace("_", "-"))
    if value is None or value is True:
        return flag
    if value is False:
        return f"--no-{flag.removeprefix('--')}"
    return " ".join(f"{flag} {_quoted(each)}" for each in (value if isinstance(value, list) else [value]))


def _quoted(value: Any) -> str:
    """A word of a command line; what cannot be printed is escaped, so that an error stays one line."""
    text = str(value)
    return shlex.quote(text if text.isprintable() else text.encode("unicode_escape").decode())
