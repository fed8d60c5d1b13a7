"""What a file is, whichever it is: one of ours, an older one, or one that convert reads; and what to do next."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from socialx.disk import check_name
from socialx.errors import Argument, Command, SettingsError, SocialxError, sample
from socialx.files.formats.arrays import NPY, ZIP, refuse_arrays
from socialx.files.formats.basicts import DAT
from socialx.files.formats.contents import Format
from socialx.files.formats.registry import FORMATS
from socialx.files.formats.sheets import refuse_several
from socialx.files.formats.tables import refuse_numbers
from socialx.files.formats.texts import check_text
from socialx.files.formats.transposed import refuse_transposed
from socialx.files.hdf5 import HDF5_SIGNATURE, check_first_line, first_bytes, open_hdf5
from socialx.files.locations import read_locations
from socialx.files.older.variants import CURRENT, Variant
from socialx.files.older.variants import recognise as older_variant
from socialx.files.published import DATASETS, Dataset, dataset
from socialx.files.store import FLAT

AUTO = "auto"
SWAP = ("swap ", Argument("data"), " and ", Argument("meta"))
EXAMPLES = {"start": "YYYY-MM-DD HH:MM:SS", "step_s": "5min", "channel": "0"}  # by field of Request
ARGUMENTS = {  # field of Request -> argument of convert
    "ids": "ids",
    "start": "start",
    "step_s": "freq",
    "channel": "channel",
    "time_format": "time_format",
    "quantity": "quantity",
    "more": "data",
    "transposed": "transposed",
}


@dataclass(frozen=True)
class Kind:
    """``next`` makes a file of ours of it; None where it is one already."""

    name: str
    why: str
    next: Command | None


def kind_of(path: Path) -> Kind:
    """Recognise a file or folder by its content; raises SocialxError where nothing is known."""
    if variant := _variant(path):
        completing = Command("backfill", path, rewrite=True if variant.rewrite else None)
        return Kind(variant.name, variant.what, None if variant.name == CURRENT else completing)
    format, reason = recognise(path)
    return Kind(format.name, f"{format.title}: {reason}", command(path, format))


def refuse_ours(path: Path) -> None:
    """Raise for a file that convert has nothing to do with, because it is one of ours already."""
    if variant := _variant(path):
        current, rewrite = variant.name == CURRENT, True if variant.rewrite else None
        raise SocialxError(
            path,
            f"a socialx file ({variant.name}: {variant.what}), nothing to convert",
            Command("inspect", path) if current else Command("backfill", path, rewrite=rewrite),
        )


def _variant(path: Path) -> Variant | None:
    """What kind of ours an HDF5 file is; None for pandas' frames, other HDF5 files and all else.

    Refuses an HDF5 file that holds nothing, and what is so unlike a text that its first line has no end.
    """
    check_name(path)
    if path.is_dir():
        return None
    head = first_bytes(path, "download it again")
    if not head.startswith(HDF5_SIGNATURE):
        if not head.startswith((ZIP, NPY)) and path.name != DAT:
            check_first_line(path, "download it again")
        return None
    with open_hdf5(path, "convert its source again") as file:
        if not len(file):
            raise SocialxError(path, "an HDF5 file that holds nothing", "download it again, or write it again")
        ours = {"data", "metadata"} & set(file) or set(FLAT) <= set(file)
        frames = any({"axis0", "table"} & set(group) for group in file.values() if hasattr(group, "values"))
        return older_variant(path, file) if ours and not frames else None


def find(kind: str) -> Dataset | Format | None:
    """The data set or format of a name or alias, whatever its case and with ``_`` or ``-``; None for ``auto``."""
    name = kind.strip().lower().replace("_", "-")
    if name == AUTO:
        return None
    if named := dataset(name):
        return named
    if name in FORMATS:
        return FORMATS[name]
    names = [AUTO, *DATASETS, *FORMATS]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(names)}"
    raise SettingsError(kind, "unknown data set or format", hint)


def recognise(data: Path) -> tuple[Format, str]:
    """The format of a file or folder, and why."""
    check_name(data)
    refuse_transposed(data)
    for format in FORMATS.values():
        if reason := format.recognise(data):
            return format, reason
    if data.is_dir():
        inside = sorted(path.name for path in data.iterdir())
        found = f"nothing in this folder is known ({sample(inside)})" if inside else "an empty folder"
        raise SocialxError(data, found, "name the file itself")
    head = first_bytes(data, "download it again")
    if head.startswith(HDF5_SIGNATURE):
        return FORMATS["hdfstore"], "an HDF5 file"  # whose reader says what is wrong with it
    if head.startswith((ZIP, NPY)):
        refuse_several(data)
        refuse_arrays(data)
    check_text(data, "download it again")
    refuse_numbers(data)
    try:
        read_locations(data)
    except SocialxError:
        text = head[:40].decode("utf-8-sig", "replace").rstrip("\ufffd")  # the last letter may be cut
        readable = "\ufffd" not in text and all(letter.isprintable() or letter.isspace() for letter in text)
        found = f"no known format, {f'it begins {text!a}' if readable else 'and no text'}"
    else:
        raise SocialxError(data, "a table of positions, not of readings", SWAP)
    raise SocialxError(data, found, f"the formats are {', '.join(FORMATS)}")


def command(data: Path, format: Format) -> Command:
    """How to convert a file of this format: everything that it leaves unsaid is in it."""
    clock = ("start",) if "start" in format.takes else ()
    fields = {*clock, *(() if format.has_clock else ("step_s",)), *format.needs(data)}
    unsaid = {ARGUMENTS[field]: example for field, example in EXAMPLES.items() if field in fields}
    return Command("convert", "auto", data, **unsaid, meta="LOCATIONS.csv", output="OUT.h5")
