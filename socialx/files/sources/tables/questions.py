"""Questions about a table, and the options that answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from socialx.core.errors import Argument, Command
from socialx.files.sources.request import ConvertOptions, options
from socialx.files.store.quantities import QUANTITIES


@dataclass(frozen=True)
class Question:
    """A finding, options that answer by a guess (field in ConvertOptions -> value), and further help."""

    problem: str
    added: Mapping[str, Any]
    remedy: str


def typed(name: str, value: Any) -> list[Any]:
    """Return the values for an option, by the field's name, as typed: an item per use on the command line."""
    if name == "quantity":
        return [next((word for word, feature in QUANTITIES.items() if feature == value), value)]
    if name in ("step_s", "resample"):
        return [f"{value // 60}min"]
    if name == "missing":
        return [",".join(f"{code:g}" for code in value) or "none"]
    return list(value) if isinstance(value, tuple) else [str(value) if isinstance(value, Path) else value]


def arguments(added: Mapping[str, Any]) -> str:
    """Return options as arguments in the current task."""
    return str(Command("", **{name: _one(typed(name, value)) for name, value in added.items()}))


def _one(parts: list[Any]) -> Any:
    return parts if len(parts) > 1 else parts[0]


def either(name: str, choices: Iterable[str]) -> str:
    """Return up to three choices for an option."""
    return " or ".join(str(Argument(name, choice)) for choice in list(choices)[:3])


def command(request: ConvertOptions, added: Mapping[str, Any]) -> str:
    """Return the user's command with the options ``added``; for rows in memory and for append only these options."""
    if request.known_ids or request.frame is not None:
        return arguments(added)
    given = {name: added.get(name, getattr(request, name)) for name in options()}
    said = {name: typed(name, value) for name, value in given.items() if value not in (None, False, ())}
    said |= {"missing": ["none"]} if request.missing == () else {}
    by_flag = {options()[name].name or name: _one(parts) for name, parts in said.items()}
    return str(Command("convert", "auto", request.data, *request.more, **by_flag, output="OUT.h5"))
