"""All formats by name."""

from __future__ import annotations

from collections.abc import Iterator

from socialx.files.formats import basicts, channels, export, hdfstore, libcity, tables, windowed
from socialx.files.formats.contents import Format
from socialx.files.formats.packages import added

AUTO = "auto"  # in place of the name of one
# The first that recognises a file reads it, so that the narrower stand before the wider.
NARROW = (hdfstore, windowed, channels, basicts, libcity)
WIDE = (export, tables)
FORMATS = {format.name: format for module in (*NARROW, *WIDE) for format in module.FORMATS}


def of_packages() -> tuple[Format, ...]:
    """The formats that installed packages add; their modules are imported by the first call."""
    return added(frozenset({AUTO, *FORMATS}))


def every_format() -> Iterator[Format]:
    """In the order in which a file is shown to them: those of packages before the wide ones, which read any table."""
    for module in NARROW:
        yield from module.FORMATS
    yield from of_packages()
    for module in WIDE:
        yield from module.FORMATS
