"""What a file is, whichever it is: one of ours, an older one, or one that convert reads; and what to type next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from socialx.data import sources
from socialx.data.files import HDF5_SIGNATURE, first_bytes, open_hdf5
from socialx.data.variants import recognise


@dataclass(frozen=True)
class Kind:
    """``next``: the command that makes a file of ours of it; empty where it is one already."""

    name: str
    why: str
    next: str


def kind_of(path: Path) -> Kind:
    """Recognise a file or folder by its content; raises SocialxError where nothing is known."""
    if not path.is_dir() and first_bytes(path, "download it again").startswith(HDF5_SIGNATURE):
        with open_hdf5(path, "convert its source again") as file:
            frames = any("axis0" in group for group in file.values() if hasattr(group, "values"))
            if not frames:
                variant = recognise(path, file)
                return Kind(variant.name, variant.what, f"socialx backfill --rewrite {path}" if variant.rewrite else "")
    format, reason = sources.recognise(path)
    command = f"socialx convert auto {path} --meta-csv LOCATIONS.csv --output-h5 OUT.h5"
    return Kind(format.name, f"{format.title}: {reason}", command)
