"""File recognition: current, older or convertible, and the next command."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from socialx.core.errors import Command, Message, SettingsError, SocialxError
from socialx.core.progress import note
from socialx.files.sources import AUTO, NARROW, WIDE
from socialx.files.sources.arrays import array_names, refuse_arrays
from socialx.files.sources.contents import Format
from socialx.files.sources.older_files import CURRENT
from socialx.files.sources.older_files import recognise as older_variant
from socialx.files.sources.request import ConvertOptions, options
from socialx.files.sources.tables.matrices import refuse_numbers
from socialx.files.sources.tables.reader import CSV, are_locations
from socialx.files.sources.unknown import refuse_bytes, refuse_folder, refuse_table, refuse_transposed, refuse_untimed
from socialx.files.store.head import AGAIN, FileHead, check_first_line, check_text
from socialx.files.store.layout import FLAT
from socialx.files.store.open_hdf5 import open_hdf5
from socialx.files.store.published import DATASETS, PublishedDataset, dataset

EXPORT = "export"  # an older name of csv
FORECAST = "name the file of readings behind the forecast"
# Files that are not read themselves, and the page whose recipes make frames of them.
RECIPES = "docs/how-to/recipes.md"
BY_RECIPE = f"make a frame with the recipe in {RECIPES}, and convert that"
DAT = "data.dat"  # numbers of BasicTS, in which no line ends
BASICTS = (DAT, "desc.json"), ("train_data.npy", "train_timestamps.npy")
OF_BASICTS = re.compile(r"data\.dat|desc\.json|meta\.json|(train|val|test)_(data|timestamps)\.npy")
WINDOWS = ("train.npz", "val.npz", "test.npz")
FORMER = {"basicts": "a folder of BasicTS", "windows-npz": "windows of DCRNN"}  # names of formats
GROUP = "socialx.formats"  # of entry points
# What the code of others may raise while it is imported; anything else is no failure of an import.
BROKEN = (
    *(ArithmeticError, AttributeError, ImportError, LookupError, NameError),
    *(OSError, RuntimeError, SyntaxError, TypeError, ValueError),
)


def _formats(modules: Mapping[str, tuple[str, ...]]) -> dict[str, Format]:
    loaded = (import_module(f"socialx.files.sources.{module}") for module in modules)
    return {format.name: format for module in loaded for format in module.FORMATS}


_NARROW, _WIDE = _formats(NARROW), _formats(WIDE)
FORMATS = _NARROW | _WIDE


def every_format() -> Iterator[Format]:
    """Yield the formats in recognition order: narrow, from packages, then wide formats that read any table."""
    yield from _NARROW.values()
    yield from package_formats()
    yield from _WIDE.values()


@cache
def package_formats() -> tuple[Format, ...]:
    """Return the formats from installed packages; the first call imports the package modules.

    A broken module, or a format with an existing name, is skipped with a single note.
    """
    formats_by_name: dict[str, Format] = {}
    for point in entry_points(group=GROUP):
        where = f"package {point.dist.name if point.dist else point.module}"
        formats, fault = _module_formats(point)
        if fault:
            note(Message(where, f"the formats are left out, because {fault}", "update or remove the package"))
        for format in formats:
            if format.name in {AUTO, *FORMATS, *formats_by_name} or dataset(format.name):
                problem = f"the format {format.name} is left out, because convert has another of that name"
                note(Message(where, problem, "rename it in the package"))
            else:
                formats_by_name[format.name] = format
    return tuple(formats_by_name.values())


def _module_formats(point: EntryPoint) -> tuple[tuple[Format, ...], str]:
    """Return the formats of an entry point and "", or () and the reason where its module is unusable."""
    try:
        formats = tuple(point.load().FORMATS)
    except BROKEN as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return (), f"{point.value} cannot be imported ({lines[0]})"
    if not all(isinstance(format, Format) for format in formats):
        return (), f"FORMATS of {point.value} holds something else"
    return formats, ""


@dataclass(frozen=True)
class FileKind:
    """A recognised kind of file. why: the reason. next: the command that converts or completes the file, if any."""

    name: str
    why: str
    next: Command | None


def is_table(request: ConvertOptions) -> bool:
    """Return whether the request has options that only tables take, so that recognition is skipped."""
    return bool(request.time_column or request.sensor_column or request.time_format) and request.head.kind != "hdf5"


def recognise_kind(head: FileHead, request: ConvertOptions | None = None) -> FileKind:
    """Recognise a file or folder by content, or a table by options in ``request``. Raises for unknown content."""
    if request is not None and is_table(request):
        return FileKind(CSV, "a table, as the columns that are named say", None)
    if kind := socialx_kind(head):
        return kind
    format, reason = recognise(head)
    return FileKind(format.name, f"{format.title}: {reason}", command(ConvertOptions(head.path), format))


def refuse_socialx_file(head: FileHead) -> None:
    """Raise SocialxError where the file already is a socialx file."""
    if kind := socialx_kind(head):
        problem = f"this is already a socialx file ({kind.name}: {kind.why})"
        raise SocialxError(head.path, problem, kind.next or Command("inspect", head.path))


def socialx_kind(head: FileHead) -> FileKind | None:
    """Return the kind of a current or older socialx file; None for any other file.

    Raises SocialxError for a forecast, an empty HDF5 file, and a file with an endless first line.
    """
    if head.kind != "hdf5":
        if head.kind != "folder" and head.path.name != DAT:
            check_first_line(head, AGAIN)
        return None
    with open_hdf5(head.path, "convert its source again") as file:
        if not len(file):
            raise SocialxError(head.path, "this is an HDF5 file that holds nothing", "download or write it again")
        if {"forecast", "origin", "times", "sensors"} <= set(file):
            raise SocialxError(head.path, "the file is a forecast that predict wrote, not readings", FORECAST)
        mine = {"data", "metadata"} & set(file) or set(FLAT) <= set(file)
        frames = any({"axis0", "table"} & set(group) for group in file.values() if hasattr(group, "values"))
        if frames or not mine:
            return None
        variant = older_variant(head.path, file)
    completing = Command("backfill", head.path, rewrite=True if variant.rewrite else None)
    return FileKind(variant.name, variant.description, None if variant.name == CURRENT else completing)


def find(kind: str) -> PublishedDataset | Format | None:
    """Return the data set or format for a name or alias, ignoring case and with ``_`` or ``-``; None for ``auto``."""
    name = kind.strip().lower().replace("_", "-")
    name = CSV if name == EXPORT else name
    if name == AUTO:
        return None
    if named := dataset(name) or FORMATS.get(name):
        return named
    more = {format.name: format for format in package_formats()}
    if name in more:
        return more[name]
    if name in FORMER:
        raise SettingsError(kind, f"this names {FORMER[name]}, which convert does not read", BY_RECIPE)
    names = [AUTO, *DATASETS, *FORMATS, *more]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(names)}"
    raise SettingsError(kind, "this is an unknown data set or format", hint)


def _refuse_recipe(path: Path) -> None:
    """Raise SocialxError for BasicTS folders and DCRNN windows, with the documentation page that reads such files."""
    folder = path if path.is_dir() else path.parent
    with suppress(OSError):  # a folder that may not be entered
        if folder == path or OF_BASICTS.fullmatch(path.name):
            for names in BASICTS:
                if all((folder / name).is_file() for name in names):
                    raise SocialxError(path, f"this is a folder of BasicTS ({', '.join(names)})", BY_RECIPE)
        of_windows = next((folder / name for name in WINDOWS if (folder / name).is_file()), None)
        if of_windows and (folder == path or path.name in WINDOWS) and {"x", "y"} <= {*array_names(of_windows)}:
            raise SocialxError(path, f"the files are windows of DCRNN ({', '.join(WINDOWS)})", BY_RECIPE)


def recognise(head: FileHead) -> tuple[Format, str]:
    """Return the format of a file or folder and the reason; the head caches both."""
    if "format" not in head.seen:
        head.seen["format"] = _recognise_format(head)
    recognised: tuple[Format, str] = head.seen["format"]
    return recognised


def _recognise_format(head: FileHead) -> tuple[Format, str]:
    """Return the first format that recognises the head, and the reason; raise the best explanation for none."""
    _refuse_recipe(head.path)
    refuse_transposed(head)
    for format in every_format():
        if reason := format.recognise(head):
            return format, reason
    path = head.path
    if head.kind == "folder":
        refuse_folder(head)
    if head.kind == "hdf5":
        return FORMATS["hdfstore"], "an HDF5 file"  # whose reader says what is wrong with it
    if head.kind in ("parquet", "excel"):
        refuse_table(head)
    refuse_bytes(head)
    if head.kind in ("zip", "npy"):
        refuse_arrays(path)
    refuse_numbers(head)
    if are_locations(path):
        remedy = Command("convert", "auto", "READINGS", meta_csv=path, output="OUT.h5")
        raise SocialxError(path, "this is a table of positions, not of readings", remedy)
    refuse_untimed(head)
    check_text(path, head.first)
    text = head.first[:40].decode("utf-8-sig", "replace").rstrip("\ufffd")  # the last letter may be cut
    readable = "\ufffd" not in text and all(letter.isprintable() or letter.isspace() for letter in text)
    problem = f"the file has no known format, {f'it begins {text!a}' if readable else 'and no text'}"
    raise SocialxError(path, problem, f"choose from the formats {', '.join(format.name for format in every_format())}")


def command(request: ConvertOptions, format: Format, given: Mapping[str, Any] | None = None) -> Command:
    """Return the convert command with the arguments ``given``, by name, and examples for other required arguments."""
    clock = ("first_time",) if "first_time" in format.takes and format.name != CSV else ()
    fields = {*clock, *(() if format.has_clock else ("step_s",)), *format.needs(request.data)}
    pairs = options().items()
    said = {name: value for name, value in (given or {}).items() if value not in (None, False, (), [])}
    unsaid = {option.name: option.example for field, option in pairs if option.example and field in fields}
    places = {} if request.without_positions else {"meta_csv": "LOCATIONS.csv"}
    return Command("convert", "auto", request.data, *request.more, **(unsaid | places | said), output="OUT.h5")
