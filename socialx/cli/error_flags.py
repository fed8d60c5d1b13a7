"""Arguments and tasks in messages, written as flags and commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from socialx.core.errors import Argument, Command, from_here, held
from socialx.settings.kinds import CUSTOM
from socialx.settings.layers import SET, command_text
from socialx.settings.schema import FLAGGED, KEYS, MUTABLE, SCORING, flag_keys, flag_name

MODEL = "model.kind"

# Flags that differ from their argument's name, by task.
FLAGS = {
    "convert": {"data": "--data-csv", "output": "--output-h5"},
    "train": {"settings": "--config"},
    "profile": {"settings": "--config"},
}

# The user's own model class on this command line, which every command about its runs must repeat.
_OWN_MODEL: ContextVar[str | None] = ContextVar("socialx_own_model", default=None)


def with_own_model(parameters: Mapping[str, Any]) -> AbstractContextManager[str | None]:
    """Add a user's model to every command that the block writes, if the parameters name one."""
    sets = dict(text.split("=", 1) for text in parameters.get("set_") or () if "=" in text)
    kind = parameters.get("model__kind") or sets.get(MODEL, "")
    return held(_OWN_MODEL, kind if CUSTOM.fullmatch(kind) else None)


def write(task: str, part: Argument | Command) -> str:
    """Return an argument of ``task`` as a flag, or a command as a line, as typed in a shell."""
    if isinstance(part, Argument):
        return _option(task, part.name, part.value)
    words = [_quoted(value) for value in part.arguments]
    options = dict(part.options)
    if (model := _OWN_MODEL.get()) and MODEL in flag_keys(part.task):
        options.setdefault(MODEL, model)
    words += [_option(part.task or task, name, value) for name, value in options.items()]
    return " ".join([*(("socialx", part.task) if part.task else ()), *words])


def _option(task: str, name: str, value: Any) -> str:
    """Return ``--flag value``, ``--set key=value`` for a setting without a flag, or ``--flag`` for None or True."""
    by_other = name in KEYS and (name not in MUTABLE[SCORING] or not flag_keys(task))  # a flag of train
    if name in KEYS and name not in (FLAGGED if by_other else flag_keys(task)):
        return f"{SET} {name if value is None else _quoted(f'{name}={from_here(command_text(value))}')}"
    flag = flag_name(name) if name in KEYS else FLAGS.get(task, {}).get(name, "--" + name.replace("_", "-"))
    if value is None or value is True:
        return flag
    if value is False:
        return f"--no-{flag.removeprefix('--')}"
    return " ".join(f"{flag} {_quoted(item)}" for item in (value if isinstance(value, list | tuple) else [value]))


def _quoted(value: Any) -> str:
    """Quote a word for a shell; unprintable text is escaped, so that an error stays on one line."""
    text = from_here(str(value))
    return shlex.quote(text if text.isprintable() else text.encode("unicode_escape").decode())
