"""All formats by name, those of installed packages too: entry points that name a module with ``FORMATS``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from socialx.errors import Message
from socialx.files.formats.contents import Format
from socialx.files.formats.names import AUTO, NARROW, WIDE
from socialx.files.published import dataset
from socialx.progress import note

GROUP = "socialx.formats"  # of entry points
# What the code of others may raise while it is imported; anything else is no failure of an import.
BROKEN = (
    *(ArithmeticError, AttributeError, ImportError, LookupError, NameError),
    *(OSError, RuntimeError, SyntaxError, TypeError, ValueError),
)


def _formats(modules: Mapping[str, tuple[str, ...]]) -> dict[str, Format]:
    loaded = (import_module(f"socialx.files.formats.{module}") for module in modules)
    return {format.name: format for module in loaded for format in module.FORMATS}


_NARROW, _WIDE = _formats(NARROW), _formats(WIDE)
FORMATS = _NARROW | _WIDE


def every_format() -> Iterator[Format]:
    """In the order in which a file is shown to them: those of packages before the wide ones, which read any table."""
    yield from _NARROW.values()
    yield from of_packages()
    yield from _WIDE.values()


@cache
def of_packages() -> tuple[Format, ...]:
    """The formats that installed packages add; their modules are imported by the first call.

    A module that cannot be used is left out, and so is a format whose name exists already; a note says so, once.
    """
    found: dict[str, Format] = {}
    for point in entry_points(group=GROUP):
        where = f"package {point.dist.name if point.dist else point.module}"
        formats, wrong = _of_module(point)
        if wrong:
            note(Message(where, f"its formats are left out, because {wrong}", "update or remove the package"))
        for format in formats:
            if format.name in {AUTO, *FORMATS, *found} or dataset(format.name):
                another = f"its format {format.name} is left out, because convert has another of that name"
                note(Message(where, another, "rename it in the package"))
            else:
                found[format.name] = format
    return tuple(found.values())


def _of_module(point: EntryPoint) -> tuple[tuple[Format, ...], str]:
    """``FORMATS`` of the module that an entry point names; none, and the reason, where it cannot be used."""
    try:
        formats = tuple(point.load().FORMATS)
    except BROKEN as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return (), f"{point.value} cannot be imported ({lines[0]})"
    if not all(isinstance(format, Format) for format in formats):
        return (), f"FORMATS of {point.value} holds something else"
    return formats, ""
