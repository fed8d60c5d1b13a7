"""All formats by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from socialx.files.formats.contents import Format
from socialx.files.formats.names import AUTO, NARROW, WIDE
from socialx.files.formats.packages import added


def _formats(modules: Mapping[str, tuple[str, ...]]) -> dict[str, Format]:
    loaded = (import_module(f"socialx.files.formats.{module}") for module in modules)
    return {format.name: format for module in loaded for format in module.FORMATS}


_NARROW, _WIDE = _formats(NARROW), _formats(WIDE)
FORMATS = _NARROW | _WIDE


def of_packages() -> tuple[Format, ...]:
    """The formats that installed packages add; their modules are imported by the first call."""
    return added(frozenset({AUTO, *FORMATS}))


def every_format() -> Iterator[Format]:
    """In the order in which a file is shown to them: those of packages before the wide ones, which read any table."""
    yield from _NARROW.values()
    yield from of_packages()
    yield from _WIDE.values()
