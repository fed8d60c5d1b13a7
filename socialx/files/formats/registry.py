"""All formats by name."""

from __future__ import annotations

from socialx.files.formats import basicts, channels, export, hdfstore, libcity, tables, windowed

# The first that recognises a file reads it, so that the narrower stand before the wider.
FORMATS = {
    format.name: format
    for module in (hdfstore, windowed, channels, basicts, libcity, export, tables)
    for format in module.FORMATS
}
