"""Readers that bring any traffic file into the HDF5 layout; here the format names, by reader module.

The first format that recognises a file reads the file; the last one reads any table.
"""

from __future__ import annotations

AUTO, CSV = "auto", "csv"  # the content decides; a table
MODULES = {"hdfstore": ("hdfstore",), "arrays": ("npy",), "taiwan": ("taiwan-vd",), "tables.formats": (CSV,)}
NAMES = tuple(name for names in MODULES.values() for name in names)
