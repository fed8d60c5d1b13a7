"""What a file is, whichever it is: one of ours, an older one, or one that convert reads; and what to type next."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from socialx.data import sources
from socialx.data.files import HDF5_SIGNATURE, first_bytes, open_hdf5
from socialx.data.store import FLAT
from socialx.data.variants import CURRENT, OTHER, Variant, recognise
from socialx.errors import SocialxError


@dataclass(frozen=True)
class Kind:
    """``next``: the command that makes a file of ours of it; empty where it is one already."""

    name: str
    why: str
    next: str


def kind_of(path: Path) -> Kind:
    """Recognise a file or folder by its content; raises SocialxError where nothing is known."""
    if variant := _variant(path):
        rewriting = f"socialx backfill --rewrite {shlex.quote(str(path))}"
        return Kind(variant.name, variant.what, rewriting if variant.rewrite else "")
    format, reason = sources.recognise(path)
    return Kind(format.name, f"{format.title}: {reason}", sources.command(path, format))


def refuse_ours(path: Path) -> None:
    """Raise for a file that convert has nothing to do with, because it is one of ours already."""
    if variant := _variant(path):
        verb = "inspect" if variant.name in (CURRENT, OTHER) else "backfill"
        command = f"socialx {verb}{' --rewrite' if variant.rewrite else ''} {shlex.quote(str(path))}"
        found = f"a socialx file ({variant.name}: {variant.what}), nothing to convert"
        raise SocialxError(f"{path}: {found}: {command}")


def _variant(path: Path) -> Variant | None:
    """What kind of ours an HDF5 file is; None for pandas' frames, other HDF5 files and all else."""
    if path.is_dir() or not first_bytes(path, "download it again").startswith(HDF5_SIGNATURE):
        return None
    with open_hdf5(path, "convert its source again") as file:
        ours = {"data", "metadata"} & set(file) or set(FLAT) <= set(file)
        frames = any({"axis0", "table"} & set(group) for group in file.values() if hasattr(group, "values"))
        return recognise(path, file) if ours and not frames else None
