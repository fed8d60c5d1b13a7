"""Formats of installed packages: entry points of the group ``socialx.formats`` that name a module with ``FORMATS``."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from socialx.errors import Message
from socialx.files.formats.contents import Format
from socialx.files.published import dataset
from socialx.progress import note

GROUP = "socialx.formats"
# What the code of others may raise while it is imported; anything else is no failure of an import.
BROKEN = (
    *(ArithmeticError, AttributeError, ImportError, LookupError, NameError),
    *(OSError, RuntimeError, SyntaxError, TypeError, ValueError),
)


@cache
def added(taken: frozenset[str]) -> tuple[Format, ...]:
    """The formats that installed packages add to these names.

    A module that cannot be used is left out, and so is a format whose name exists already; a note says so, once.
    """
    found: dict[str, Format] = {}
    for point in entry_points(group=GROUP):
        package = point.dist.name if point.dist else point.module
        for format in _of_module(point, package):
            if format.name in {*taken, *found} or dataset(format.name):
                another = f"its format {format.name} is left out, because convert has another of that name"
                note(Message(f"package {package}", another, "rename it in the package"))
            else:
                found[format.name] = format
    return tuple(found.values())


def _of_module(point: EntryPoint, package: str) -> Collection[Format]:
    """``FORMATS`` of the module that an entry point names; none where it cannot be used."""
    try:
        formats = tuple(point.load().FORMATS)
    except BROKEN as error:
        lines = str(error).splitlines() or [type(error).__name__]
        found = f"its formats are left out, because {point.value} cannot be imported ({lines[0]})"
        note(Message(f"package {package}", found, "update or remove the package"))
        return ()
    if not all(isinstance(format, Format) for format in formats):
        found = f"its formats are left out, because FORMATS of {point.value} holds something else"
        note(Message(f"package {package}", found, "update or remove the package"))
        return ()
    return formats
