"""What users hold, read into one HDF5 file; here the names of all formats, by the module that reads them.

A file is shown to them in this order: the first that recognises it reads it.  So the narrower stand before the wider,
and the formats of installed packages stand between the two.
"""

from __future__ import annotations

AUTO = "auto"  # in place of the name of one
NARROW = {
    "hdfstore": ("hdfstore",),
    "channels": ("pyg-t", "largest-npz", "torch-mts", "pems-npz", "npy"),
    "taiwan": ("taiwan-vd",),
    "tables.known_tables": ("libcity", "pems-station", "utd19"),
}
WIDE = {"tables.reader": ("published-csv", "csv"), "tables.matrices": ("t-gcn", "matrix-csv")}
NAMES = tuple(name for names in (*NARROW.values(), *WIDE.values()) for name in names)
