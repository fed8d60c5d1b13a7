"""Readers that bring any traffic file into the HDF5 layout; here the format names, by reader module.

The first format that recognises a file reads the file: narrow formats, which few files match, come before the formats
of installed packages, and wide formats, which read any table, come last.
"""

from __future__ import annotations

AUTO = "auto"  # lets the content decide
NARROW = {
    "hdfstore": ("hdfstore",),
    "channels": ("pyg-t", "largest-npz", "torch-mts", "pems-npz", "npy"),
    "taiwan": ("taiwan-vd",),
    "tables.known_tables": ("libcity", "pems-station", "utd19"),
}
WIDE = {"tables.reader": ("published-csv", "csv"), "tables.matrices": ("t-gcn", "matrix-csv")}
NAMES = tuple(name for names in (*NARROW.values(), *WIDE.values()) for name in names)
