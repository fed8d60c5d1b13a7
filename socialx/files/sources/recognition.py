"""File recognition: current, older or convertible, and the next command."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from socialx.core.errors import Command, SettingsError, SocialxError
from socialx.files.sources import AUTO, CSV, MODULES
from socialx.files.sources.contents import Format
from socialx.files.sources.foreign import FORMER, by_recipe, refuse, refuse_benchmark
from socialx.files.sources.older_files import CURRENT
from socialx.files.sources.older_files import recognise as older_variant
from socialx.files.sources.queries import is_url
from socialx.files.sources.request import ConvertOptions, options
from socialx.files.store.head import AGAIN, FileHead, check_first_line
from socialx.files.store.layout import FLAT
from socialx.files.store.open_hdf5 import open_hdf5
from socialx.files.store.published import DATASETS, PublishedDataset, dataset

FORECAST = "name the file of readings behind the forecast"
FORMATS: dict[str, Format] = {
    format.name: format for module in MODULES for format in import_module(f"socialx.files.sources.{module}").FORMATS
}  # in the order of recognition; the last one reads any table


@dataclass(frozen=True)
class FileKind:
    """A recognised kind of file. why: the reason. next: the command that converts or completes the file, if any."""

    name: str
    why: str
    next: Command | None


def recognise_kind(request: ConvertOptions) -> FileKind:
    """Recognise a file or folder by content, or a table in memory. Raises SocialxError for unknown content."""
    if request.frame is not None:
        return FileKind(CSV, FORMATS[CSV].title, None)
    if kind := socialx_kind(request.head):
        return kind
    format, reason = recognise(request.head)
    return FileKind(format.name, f"{format.title}: {reason}", command(ConvertOptions(request.data), format))


def refuse_socialx_file(head: FileHead) -> None:
    """Raise SocialxError where the file already is a socialx file."""
    if kind := socialx_kind(head):
        problem = f"this is already a socialx file ({kind.name}: {kind.why})"
        raise SocialxError("convert.socialx-file", head.path, problem, kind.next or Command("inspect", head.path))


def socialx_kind(head: FileHead) -> FileKind | None:
    """Return the kind of a current or older socialx file; None for any other file.

    Raises SocialxError for a forecast, an empty HDF5 file, and a file with an endless first line.
    """
    if head.kind != "hdf5":
        if head.kind != "folder":
            refuse_benchmark(head.path)
            check_first_line(head, AGAIN)
        return None
    with open_hdf5(head.path, "convert its source again") as file:
        if not len(file):
            raise SocialxError("hdf5.empty", head.path, "this HDF5 file holds nothing", "download or write it again")
        if {"forecast", "origin", "times", "sensors"} <= set(file):
            problem = "the file is a forecast that predict wrote, not readings"
            raise SocialxError("convert.forecast-file", head.path, problem, FORECAST)
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
    if name == AUTO:
        return None
    if named := dataset(name) or FORMATS.get(name):
        return named
    if name in FORMER:
        if anchor := FORMER[name]:
            raise SettingsError("convert.not-read", kind, "convert does not read this format", by_recipe(anchor))
        return FORMATS[CSV]
    names = [AUTO, *DATASETS, *FORMATS]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(names)}"
    raise SettingsError("convert.unknown-format", kind, "this is an unknown data set or format", hint)


def recognise(head: FileHead) -> tuple[Format, str]:
    """Return the format of a file or folder and the reason; the head caches both."""
    if "format" not in head.seen:
        reasons = ((format, format.recognise(head)) for format in FORMATS.values())
        head.seen["format"] = next((pair for pair in reasons if pair[1]), None) or refuse(head, [*FORMATS])
    return head.seen["format"]


def command(request: ConvertOptions, format: Format, given: Mapping[str, Any] | None = None) -> Command:
    """Return the convert command with the arguments ``given``, by name, and examples for other required arguments."""
    fields = {*(() if format.has_clock else ("first_time", "step_s")), *format.needs(request.data)}
    said = {name: value for name, value in (given or {}).items() if value not in (None, False, (), [])}
    unsaid = {option.name: option.example for field, option in options().items() if option.example and field in fields}
    places = {} if request.without_positions else {"meta_csv": "LOCATIONS.csv"}
    shown = request.label.partition(" (")[0]  # of a query: the database
    data = shown if is_url(shown) else request.data
    return Command("convert", "auto", data, *request.more, **(unsaid | places | said), output="OUT.h5")
