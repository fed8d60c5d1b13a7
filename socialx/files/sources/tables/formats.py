"""The format for tables: their description comes from a file, from options, or from what their head proves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, counted, sample
from socialx.files.sources import CSV
from socialx.files.sources.contents import Contents, Format
from socialx.files.sources.foreign import refuse_bytes
from socialx.files.sources.positions.locations import read_locations
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables import cells, propose, spec, table, words
from socialx.files.sources.tables.spec import TableSpec
from socialx.files.store.head import FileHead, container, member_paths, read_head
from socialx.files.store.ids import casefolded_key, match_key
from socialx.files.store.quantities import QUANTITIES, SPEED

TITLE = "a table of any network, a column per sensor or a row per reading"
PROSE = re.compile(r"(?:read[ _-]?me|licen[cs]e|copying|changelog|notice)(?:\.[a-z]+)?", re.IGNORECASE)
LIBCITY = (".dyna", ".geo")  # readings and positions; beside them are links and settings
DESCRIBES = ("time_column", "sensor_column", "channel", "quantity", "time_format", "decimal", "drop")  # as --table does
SETS = {"timezone": "zone", "missing": "missing", "first_time": "start", "step_s": "step_s"}  # field -> of a spec
ROWS, CELLS = 200, 1 << 14  # whose texts tell the column of ids in a table of positions, at most


def _recognise(head: FileHead) -> str | None:
    """Return the first table's columns in a file, folder or zip; None for none, and raise for a foreign file."""
    if head.kind in ("hdf5", "npy"):
        return None
    files = table_files(head)
    if head.kind in ("folder", "zip") and not files:
        return None
    refuse_bytes(head if head.kind != "folder" else read_head(files[0]))
    first = _first_rows(head, files[0])
    several = f", {len(files)} files" if len(files) > 1 else ""
    return f"{counted(len(first.names), 'column')} ({sample(first.names)}){several}"


def _first_rows(head: FileHead, path: Path) -> cells.Sample:
    """Return the first rows in a file, which may lie in a folder or a zip, read once."""
    if ("rows", path) not in head.seen:
        head.seen["rows", path] = cells.take_sample(path)
    return head.seen["rows", path]


def table_files(head: FileHead) -> list[Path]:
    """Return the data files in a folder or a zip, without hidden files and prose; else the file itself."""
    if head.kind == "folder":
        paths = sorted(path for path in head.path.iterdir() if path.is_file() and not path.name.startswith("."))
    else:
        paths = member_paths(head.path) if head.kind == "zip" else [head.path]
    if any(path.suffix == LIBCITY[0] for path in paths):
        return [path for path in paths if path.suffix in LIBCITY]
    return [path for path in paths if not PROSE.fullmatch(path.name)]


def describe(request: ConvertOptions, sources: Sequence[Any] = ()) -> tuple[TableSpec, tuple[Message, ...]]:
    """Return what the tables hold, and the questions that prevent a proof; sources: as ``_sources`` gives.

    The user's file, or the file to extend, answers without a question. Raises SettingsError where nothing is likely.
    """
    sources = sources or _sources(request)[0]
    said = [name for name in DESCRIBES if getattr(request, name)]
    if request.table is not None:
        if said:
            problem = f"{Argument('table', request.table)} says what {Argument(said[0])} says"
            raise SettingsError("table.said-twice", "", problem, "drop one of them")
        return _with_options(spec.load(request.table), request), ()
    if request.known_table and not said:
        described = _with_options(spec.parse(request.known_table, request.where), request)
        if any(_fits(described, one.names, request.known_ids) for one in cells.open_tables(sources[0], described)):
            return described, ()
    first = cells.take_sample(sources[0]) if request.frame is not None else _first_rows(request.head, sources[0])
    request = _with_features(request, first)
    try:
        proposal = propose.propose(first, request, _ids(request, first))
        if proposal.spec is None:
            raise SettingsError.together(proposal.questions)
        _refuse_other_quantity(request, proposal.spec)
        return proposal.spec, proposal.questions
    except SocialxError:
        if request.frame is None and _are_locations(request.data):
            remedy = Command("convert", "auto", "READINGS", meta_csv=request.data, output="OUT.h5")
            raise SocialxError("table.places", request.data, "a table of positions, not of readings", remedy) from None
        raise


def _with_options(described: TableSpec, request: ConvertOptions) -> TableSpec:
    """Return a description with what options say more: zone, unit, codes, first time and step."""
    more = {name: value for field, name in SETS.items() if (value := getattr(request, field)) is not None}
    if request.units is not None:
        feature = SPEED if SPEED in described.features else described.features[0]
        more["units"] = {**described.units, feature: request.units}
    if request.round_times:
        more["round_s"] = request.step_s or described.step_s or 60
    return replace(described, **more)


def _with_features(request: ConvertOptions, first: cells.Sample) -> ConvertOptions:
    """Return the options with the columns for what the file to extend measures."""
    features = request.known_features
    columns = [[name for name in first.names if words.quantity(name) == feature] for feature in features]
    if request.channel is None and features and all(len(names) == 1 for names in columns):
        request = replace(request, channel=",".join(name for names in columns for name in names))
    one = features[0] if len(features) == 1 and features[0] in QUANTITIES.values() else None
    return replace(request, quantity=one or request.quantity)


def _refuse_other_quantity(request: ConvertOptions, described: TableSpec) -> None:
    """Raise SocialxError where a column is called by another quantity than the file to extend holds."""
    for feature, name in described.values.items() if request.known_features else ():
        said = words.quantity(words.split_unit(name)[0])
        if said not in (None, feature):
            problem = f"column {name!r} is {said}, and the file holds {feature}"
            raise SocialxError("table.other-quantity", request.where, problem, "give a table of the same quantity")


def _fits(described: TableSpec, names: Sequence[str], ids: Sequence[str]) -> bool:
    """Return whether a table with columns ``names`` is as described; ids: the file's sensors."""
    labels = [spec.read_name(form, name) for form in described.values.values() for name in names]
    sensors = {casefolded_key(label[0]) for label in labels if label and label[0]}
    return table.fits(described, names) and (not sensors or bool(sensors & {*map(casefolded_key, ids)}))


def _ids(request: ConvertOptions, first: cells.Sample) -> frozenset[str]:
    """Return the known sensor ids: of the file to extend, or of the position table, by texts in the ``first`` rows."""
    if request.known_ids or request.meta_csv is None or request.meta_csv in (request.data, *request.more):
        return frozenset(request.known_ids)
    texts = {*first.names}.union(*first.rows[: max(1, min(ROWS, CELLS // len(first.names)))])
    return frozenset(location.sensor_id for location in read_locations(request.meta_csv, texts).values())


def _sources(request: ConvertOptions) -> tuple[list[Any], list[Path]]:
    """Return the frame or the files to read, and position tables among several files."""
    if request.frame is not None:
        return [request.frame], []
    paths = [path for head in (request.head, *map(read_head, request.more)) for path in table_files(head)]
    if not paths:
        raise SocialxError("table.no-files", request.data, "the folder is empty", "name a folder of tables, or a file")
    aside = [path for path in paths if len(paths) > 1 and _are_locations(path)]
    return [path for path in paths if path not in aside] or paths, aside


def _are_locations(path: Path) -> bool:
    try:
        return bool(read_locations(path))
    except SocialxError:
        return False


def _read(request: ConvertOptions) -> Contents:
    sources, aside = _sources(request)
    described, questions = describe(request, sources)
    if questions:
        raise SettingsError.together(questions)
    contents, described = _read_described(request, sources, described)
    notes: list[Message | str] = [f"{path}: the positions of the sensors" for path in aside]
    if left := [name for name in described.drop if name not in request.drop and request.table is None]:
        notes.insert(0, Message("table.left-out", request.where, "columns that hold no readings", "", left))
    refuse_twice(contents, request)
    if len(aside) == 1 and request.meta_csv is None:
        contents = replace(contents, locations=read_locations(aside[0], contents.ids or ()))
    paths = tuple(container(path) for path in sources if isinstance(path, Path))
    return replace(contents, notes=(*contents.notes, *notes), paths=paths)


def _read_described(
    request: ConvertOptions, sources: Sequence[Any], described: TableSpec
) -> tuple[Contents, TableSpec]:
    """Read the tables, and return their description too: a later table with other signs may prove its own."""
    try:
        return table.read(sources, described), described
    except SocialxError:
        with suppress(SocialxError):
            other, questions = describe(replace(request, known_table=""), sources)
            if request.known_table and not questions and other != described:
                return table.read(sources, other), other
        raise


def refuse_twice(contents: Contents, request: ConvertOptions) -> None:
    """Raise SocialxError for ids that spell one sensor in two ways."""
    spellings = Counter(map(match_key, contents.ids or ()))
    if twice := [vdid for vdid in contents.ids or () if spellings[match_key(vdid)] > 1]:
        problem = f"sensors appear twice ({sample(twice)})"
        raise SocialxError("table.twice", request.where, problem, f"leave one out with {Argument('drop', twice[0])}")


TAKES = {"table", "channel", "quantity", "more", "first_time", "step_s", "time_format", "time_column", "sensor_column"}
FORMATS = (Format(CSV, TITLE, _recognise, _read, takes=frozenset({*TAKES, "drop", "decimal", "round_times"})),)
