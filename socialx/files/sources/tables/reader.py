"""Read tables with times: METR-LA and PEMS-BAY as published, and tables from any city, office or database.

T times, N sensors, t rows per piece. A sheet is one table, in a text or workbook: sheets.py finds out how its cells are
written. This module turns rows into observations; ``aside`` are files set aside because they hold locations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from socialx.core.errors import Argument, Message, SettingsError, SocialxError, counted, sample
from socialx.files.sources.contents import Contents, Format
from socialx.files.sources.positions.locations import Location, read_locations
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables.columns import (
    BETWEEN,
    ENDS,
    READING,
    Lanes,
    column_quantity,
    combine_blocks,
    lane_sensors,
    lanes_in_columns,
    lanes_in_rows,
    parse_unit,
    without_unit,
)
from socialx.files.sources.tables.grid import table_blocks
from socialx.files.sources.tables.matrices import refuse_numbers, two_lines
from socialx.files.sources.tables.melt import is_label
from socialx.files.sources.tables.roles import MANY
from socialx.files.sources.tables.sheets import Sheet, check_ids, look
from socialx.files.sources.tables.text_cells import NumberFormat
from socialx.files.sources.tables.time_texts import COPIED, COPIED_TEXT, unit_since_1970
from socialx.files.sources.tables.times import SUFFIXES, Table, join_sheets, refuse_repeated_times
from socialx.files.sources.unknown import refuse_bytes, refuse_encoding, refuse_table, refuse_transposed
from socialx.files.store.head import FileHead, container, find_separator, head_in, member_paths, read_head
from socialx.files.store.ids import match_key
from socialx.files.store.layout import Block
from socialx.files.store.quantities import QUANTITIES, SPEED

PUBLISHED_CSV, CSV = "published-csv", "csv"
PROSE = re.compile(
    r"(?:read[ _-]?me|licen[cs]e|copying|changelog|notice)(?:\.[a-z]+)?", re.IGNORECASE
)  # among data files
Look = Callable[[FileHead, ConvertOptions], list[Sheet]]  # the sheets of a file that have times


def _recognise_published(head: FileHead) -> str | None:
    """Return the reason where a head looks like METR-LA.csv or PEMS-BAY.csv; otherwise None."""
    header, row = two_lines(head)
    if len(header) < 2 or not row or header[0] or not all(isinstance(match_key(name), int) for name in header[1:]):
        return None
    return "an empty header cell, then sensor ids; rows begin with a time" if COPIED_TEXT.fullmatch(row[0]) else None


def _recognise(head: FileHead) -> str | None:
    """Return a description of the first table with times in a file, folder or zip; None for no such table."""
    heads = [head]
    if head.kind in ("folder", "zip"):
        heads = []
        for path in table_files(head):
            with suppress(SocialxError):
                heads.append(head_in(head, path))
    sheets = [sheet for file_head in heads for sheet in look(file_head)]
    several = f", {len(heads)} files" if len(heads) > 1 else f", {len(sheets)} sheets"
    return sheets[0].description() + (several if len(sheets) > 1 else "") if sheets else None


def table_files(head: FileHead) -> list[Path]:
    """Return the data files in a folder or a zip, without hidden files and prose; else the file itself."""
    if head.kind != "folder":
        paths = member_paths(head.path) if head.kind == "zip" else []
        return [path for path in paths if not PROSE.fullmatch(path.name)] or [head.path]
    try:
        paths = [path for path in head.path.iterdir() if path.is_file() and not path.name.startswith(".")]
        return sorted(path for path in paths if not PROSE.fullmatch(path.name))
    except OSError:
        return []


def _published_sheets(head: FileHead, request: ConvertOptions) -> list[Sheet]:
    """Return the sheet in a CSV with the METR-LA and PEMS-BAY header; raise SocialxError for another header."""
    names, _ = two_lines(head)
    if not names or names[0]:
        problem = f"line 1 has a header that begins {','.join(names)[:40]!a}" if names else "the file is not a CSV text"
        raise SocialxError(head.path, problem, "use the CSV as published: an empty header cell, then sensor ids")
    refuse_numbers(head)
    check_ids(head.path, tuple(names[1:]), integers=True)
    begin, line = head.lines[0]
    sheet = Sheet((0,), path=head.path, kind="text", names=tuple(names), encoding=head.encoding, begin=begin)
    columns = tuple(range(1, len(names)))
    return [replace(sheet, values=columns, separator=find_separator(line), signs=NumberFormat(decimals=True))]


def read_tables(request: ConvertOptions, look_at: Look = look) -> Contents:
    """Read the observations as ``request`` asks; ``look_at`` returns the sheets with times in a file, given a head."""
    sheets, aside = _sheets(request, look_at)
    first = sheets[0]
    features, channel_notes = _choose_features(sheets, request)
    feature, *others = features
    units = _units(sheets, features, request)
    chosen = [column for column in features.values() if column is not None]
    has_quantity = request.quantity or any(map(first.quantity, chosen or first.values))
    for sheet in sheets:
        sheet.signs.speeds = {*features} == {SPEED} if has_quantity or feature != SPEED else None
    table = join_sheets(sheets, request, chosen)
    refuse_repeated_times(table)
    notes: list[Message | str] = [*channel_notes, *([f"{request.data}: {table.joined}"] if table.joined else [])]
    notes += _time_notes(table, first, request)
    chosen = chosen if first.sensors or table.by_file else []  # else each column is a sensor
    if rest := [first.names[column] for column in first.values if chosen and column not in chosen]:
        taken = ", ".join(first.names[column] for column in chosen)
        notes.append(Message(request.data, f"the readings are those of {taken}, not of {', '.join(rest)}"))
    locations, located, location_notes = _locations(table, request, aside)
    lanes = _lanes(table, located)
    if lanes is None:
        ids, blocks, names = table.ids, table_blocks(table, chosen), None
    else:
        ids, blocks, lanes_note = _sensor_blocks(table, lanes, features, request)
        notes.append(lanes_note)
        names = lanes.names
    return Contents(
        ids,
        len(ids),
        blocks,
        feature,
        units[feature],
        others={name: units[name] for name in others},
        lanes=names,
        locations=locations,
        notes=(*notes, *location_notes, *_omission_notes(sheets)),
        paths=tuple(container(sheet.path) for sheet in sheets),
        times=table.moments,
        timezone="UTC" if table.times.zoned else None,
        missing=0.0 if feature == SPEED else None,
        rounded=table.times.step is not None,
        droppable=not chosen and lanes is None and not request.transposed,
        city=request.city,
    )


def _omission_notes(sheets: list[Sheet]) -> list[str]:
    """Return a line for each kind of omitted content, with the first table concerned and how many more."""
    sheets_by_omission: dict[str, list[Sheet]] = {}
    for sheet in sheets:
        for omission in sheet.omissions():
            sheets_by_omission.setdefault(omission, []).append(sheet)
    lines = []
    for omission, (first, *others) in sheets_by_omission.items():
        more = f" and {counted(len(others), 'more table')}" if others else ""
        lines.append(f"{first.path if first.others else first.where}{more}: {omission}")
    return lines


def _time_notes(table: Table, first: Sheet, request: ConvertOptions) -> list[Message | str]:
    """Return a note on how the ``table`` times are read, unless copied as written; ``first``: the first sheet."""
    if ends := [first.names[column] for column in first.times if ENDS.fullmatch(first.names[column])]:
        return [f"{request.data}: times are those of {ends[0]!r}, the ends of intervals"]
    if first.day:
        return [Message(request.data, f"the times of day are of the date in the name of the file ({first.day})")]
    if not table.told and table.times.form in COPIED:
        return []
    if table.times.start is not None:
        return [f"{request.data}: times are seconds that are counted from {request.first_time}"]
    utc = table.times.zoned and request.timezone in (None, "UTC")
    remedy = f"write wall times with {Argument('timezone', 'ZONE')}"
    how = f"times are read as {table.times.form or f'{unit_since_1970(first.first)} since 1970'}{table.told}"
    how = f"{how}{', and written in UTC' if utc else ''}"
    return [Message(request.data, how, remedy) if utc and request.timezone is None else f"{request.data}: {how}"]


def _sheets(request: ConvertOptions, look_at: Look) -> tuple[list[Sheet], list[Path]]:
    """Return the sheets in all files, which share their columns, and the location files set aside; ``look_at`` finds
    the sheets. Raises SocialxError for a file without a table, for other columns, and where two readings are possible.
    """
    heads = [request.head, *map(read_head, request.more)]
    paths = [(path, head) for head in heads for path in table_files(head)]
    sheets: list[Sheet] = []
    aside = []
    for path, archive in paths:
        head = head_in(archive, path)
        if head.encoding == "cp1252":  # which nearly every text may be
            refuse_encoding(head)
        file_sheets = look_at(head, request)
        if len(file_sheets) == 1 and file_sheets[0].unclear and (column := _located_column(file_sheets[0], request)):
            file_sheets = look_at(head, replace(request, sensor_column=(column,)))
        if not file_sheets and len(paths) > 1 and are_locations(path):
            aside.append(path)
        else:
            sheets += file_sheets or _refuse(head, request)
    if not sheets:
        raise SocialxError(request.data, "the folder is empty", "name a folder of tables, or a file")
    first = sheets[0]
    wide = not any(sheet.sensors or sheet.one for sheet in sheets)
    columns = {"time_column": request.time_column, "sensor_column": request.sensor_column, "drop": request.drop}
    for argument, name in ((argument, name) for argument, names in columns.items() for name in names):
        if name not in {*first.names, *map(without_unit, first.names)}:
            names = sample([header for header in first.names if header], 12)
            raise SettingsError("", f"{Argument(argument, name)} is no column of {first.where}", f"choose of {names}")
    for sheet in sheets:
        if sheet.unclear:
            raise SocialxError(sheet.where, *sheet.unclear)
        if other := sorted(set(sheet.names) ^ set(first.names)) if not wide else []:
            differ = f"the columns differ from {first.where} ({sample(other)})"
            raise SocialxError(sheet.where, differ, "convert the table alone, or give all tables the same columns")
    return [replace(sheet, signs=first.signs) if sheet.decimal == first.decimal else sheet for sheet in sheets], aside


def _located_column(sheet: Sheet, request: ConvertOptions) -> str | None:
    """Return the only column in which half the cells or more are ids in the user's locations file; else ``None``."""
    if request.meta_csv is None or request.sensor_column:
        return None
    names = sheet.names[: sheet.melt.label if sheet.melt else None]
    columns = tuple(column for column in range(len(names)) if column not in sheet.times)[:MANY]
    matches = []
    with suppress(SocialxError), closing(replace(sheet, names=names, melt=None).rows(columns)) as pieces:
        for column, texts in zip(columns, next(pieces).texts, strict=True):
            with suppress(SocialxError):
                locations = read_locations(request.meta_csv, texts.words, request.city)
                if 2 * sum(match_key(word) in locations for word in texts.words) >= len(texts.words):
                    matches.append(names[column])
    return matches[0] if len(matches) == 1 else None


def _refuse(head: FileHead, request: ConvertOptions) -> NoReturn:
    """Raise the error that best explains why the file has no table with times."""
    if request.transposed:
        names, _ = two_lines(head)
        if 1 < sum(map(is_label, names)) < len(names):
            refuse_table(head)
        problem = f"line 1 names no sensors and times ({sample(names)})"
        raise SocialxError(head.path, problem, f"drop {Argument('transposed')}")
    refuse_transposed(head)
    if head.kind == "text":
        refuse_bytes(head)
    if request.time_column:
        argument = Argument("time_column", request.time_column[0])
        raise SettingsError("", f"{argument} names no column of times in {head.path}", "name one")
    refuse_numbers(head)
    refuse_table(head)


def are_locations(path: Path) -> bool:
    """Return whether a file is a location table."""
    try:
        return bool(read_locations(path))
    except SocialxError:
        return False


def _choose_features(sheets: list[Sheet], request: ConvertOptions) -> tuple[dict[str, int | None], list[str]]:
    """Return the column to read for each feature, ``None`` for a column per sensor, and notes on assumed features."""
    sheet = sheets[0]
    if not sheet.sensors and not sheet.one:
        return _wide_feature(sheets, request)
    whole = request.channel is None or request.channel in sheet.names
    asked = [request.channel] if whole else request.channels
    if len(asked) > 1 and request.quantity:
        raise SettingsError("", f"{Argument('quantity')} describes one channel, not {request.channel}", "drop it")
    columns: dict[str, int | None] = {}
    notes: list[str] = []
    for channel in asked:
        column = _column(sheet, channel, request.quantity or SPEED)
        quantity = sheet.quantity(column)
        if quantity is None and len(asked) == 1:
            quantity, notes = _column_feature(sheets, column, request)
        if request.known_ids or request.channel is None:
            _refuse_other_quantity(sheet, request, quantity, f"column {sheet.names[column]} is")
        feature = request.quantity or quantity
        if feature is None or feature in columns:
            problem = f"{channel} is {'an unknown quantity' if feature is None else f'a second column of {feature}'}"
            raise SettingsError(sheet.where, problem, f"choose of {', '.join(QUANTITIES)}")
        columns[feature] = column
    return columns, notes


def _wide_feature(sheets: list[Sheet], request: ConvertOptions) -> tuple[dict[str, int | None], list[str]]:
    """Return {feature: None} for tables with a column per sensor, and a note where the file name tells the feature."""
    path = sheets[0].path
    if request.channel is not None and "," in request.channel:
        per_sensor = f"the table has a column per sensor, not one for each of {request.channel}"
        raise SocialxError(path, per_sensor, "write a row per time and sensor, with a column for each")
    if request.channel is not None:
        raise SettingsError("", f"{Argument('channel')} is for other tables: {path} has a column per sensor", "drop it")
    for sheet in sheets:
        _refuse_other_quantity(sheet, request, sheet.common_quantity(), "the columns are")
    if quantity := request.quantity or sheets[0].common_quantity():
        return {quantity: None}, []
    by_file, notes = _file_quantity(sheets, "the table")
    if by_file is None and not request.known_ids:
        _refuse_shares(sheets)
    return {by_file or SPEED: None}, notes


def _refuse_shares(sheets: list[Sheet]) -> None:
    """Raise where all observations are fractions and the quantity is unstated."""
    if all(sheet.shares for sheet in sheets):
        remedy = f"say what they are: {Argument('quantity', 'occupancy')}, or {Argument('quantity', 'speed')}"
        raise SocialxError(sheets[0].path, "all values in the first rows are at most 1, so hardly speeds", remedy)


def _column_feature(sheets: list[Sheet], column: int, request: ConvertOptions) -> tuple[str | None, list[str]]:
    """Return the quantity for a column whose name states none, from the file name, else speed, with a note. Returns
    ``None`` where the user states the quantity; raises SocialxError for names other than ``value`` and the like.
    """
    sheet = sheets[0]
    name = sheet.names[column]
    if request.quantity is not None:
        return None, []
    if not READING.fullmatch(without_unit(name)):
        choices = " or ".join(str(Argument("quantity", quantity)) for quantity in QUANTITIES)
        problem = f"the name of column {name!r} says no quantity"
        if sheet.melt and column in sheet.melt.values:
            problem = "the table does not say what it measures"
        raise SocialxError(sheet.where, problem, f"say it: {choices}")
    by_file, notes = _file_quantity(sheets, name) if sheet.one or sheet.melt else (None, [])
    if by_file is None and not request.known_ids:
        _refuse_shares(sheets)
    return by_file or SPEED, notes


def _refuse_other_quantity(sheet: Sheet, request: ConvertOptions, quantity: str | None, where: str) -> None:
    """Raise where a table's ``quantity`` differs from the quantity asked by the user or stored in the file to extend.
    where: the subject of the error sentence with its verb, such as "the columns are".
    """
    if quantity is None or request.quantity in (None, quantity):
        return
    if request.known_ids:
        differ = f"{where} {quantity}, and the file holds {request.quantity}"
        raise SocialxError(sheet.where, differ, "append a table of the same quantity")
    asked = next(name for name, feature in QUANTITIES.items() if feature == request.quantity)
    text = f"{Argument('quantity', asked)} contradicts {sheet.where}: {where} {quantity} by name or unit"
    raise SettingsError("", text, f"drop {Argument('quantity')}")


def _file_quantity(sheets: list[Sheet], subject: str) -> tuple[str | None, list[str]]:
    """Return the quantity in the file name, else in the folder name of several files, with a note about ``subject``.
    Returns None without a note where no name says a quantity; raises SocialxError where files say several.
    """
    paths = {}
    for sheet in sheets:
        folder = sheet.path.parent.name if len(sheets) > 1 else ""
        stem = SUFFIXES.sub("", sheet.path.name)
        paths[column_quantity(stem) or column_quantity(folder)] = sheet.path
    if len(paths) > 1:
        listed = ", ".join(f"{path} of {quantity or 'no quantity'}" for quantity, path in paths.items())
        raise SocialxError(sheets[0].where, f"files hold several quantities ({listed})", "convert those of each alone")
    [quantity] = paths
    notes = [f"{sheets[0].path}: {subject}: {quantity}, as the name of the file says"] if quantity else []
    return quantity, notes


def _column(sheet: Sheet, asked: str | None, quantity: str) -> int:
    """Return the column with the name or quantity ``asked``; ``None`` means the column of ``quantity``, or the only
    column. Raises SocialxError for no such column and for several.
    """
    names = [sheet.names[column] for column in sheet.values]
    wanted = (asked or quantity).strip()
    columns = [column for column in sheet.values if wanted in (sheet.names[column], without_unit(sheet.names[column]))]
    if not columns:
        meant = QUANTITIES.get(wanted.lower(), wanted)
        columns = [column for column in sheet.values if sheet.quantity(column) == meant]
    if asked is None and not columns and len(names) == 1:
        columns = list(sheet.values)
    if len(columns) == 1:
        return columns[0]
    if asked is None or columns:
        several = f"the table has several columns of {wanted if asked else 'readings'} ({', '.join(names)})"
        likely = next((sheet.names[column] for column in sheet.values if sheet.quantity(column)), names[0])
        raise SocialxError(sheet.path, several, f"{Argument('channel', likely)} chooses one")
    listed = f"choose for example {Argument('channel', names[0])}, of {', '.join(names)}"
    raise SettingsError("", f"{Argument('channel', asked)} names no column of observations", listed)


def _units(sheets: list[Sheet], features: dict[str, int | None], request: ConvertOptions) -> dict[str, str | None]:
    """Return the unit per feature, given the columns ``features``; a user's unit is for speed, or the only feature."""
    meant = SPEED if SPEED in features else next(iter(features))
    asked = {meant: request.units}
    return {name: _unit(sheets, column, name, asked.get(name)) for name, column in features.items()}


def _locations(
    table: Table, request: ConvertOptions, aside: list[Path]
) -> tuple[dict[int | str, Location] | None, set[int | str], list[str]]:
    """Return the locations in the only file set ``aside``, else ``None``; the keys of sensors with a location, from
    this file, the user's file or the file to extend; and a note for each file set aside.
    """
    file, more = request.meta_csv or (aside[0] if len(aside) == 1 else None), lane_sensors(table.ids)
    locations = read_locations(file, (*table.ids, *more), request.city) if file and (more or file in aside) else None
    located = {match_key(vdid) for vdid in request.known_ids} if locations is None else set(locations)
    role = "the positions of the sensors" if file in aside else "positions of sensors, set aside"
    return locations if file in aside else None, located, [f"{path}: {role}" for path in aside]


def _unit(sheets: list[Sheet], first_column: int | None, feature: str, asked: str | None) -> str | None:
    """Return the feature unit as stated by the columns; raise for two units, or for a unit other than ``asked``, the
    unit given by the user. first_column: the column in the first sheet; ``None``: a column per sensor.
    """
    first = sheets[0]
    stated: dict[tuple[str, str], str] = {}
    for sheet in sheets:
        columns = {name: number for number, name in enumerate(sheet.names)}
        for column in sheet.values if first_column is None else (columns[first.names[first_column]],):
            for measured in filter(None, map(parse_unit, sheet.unit_texts(column))):
                stated.setdefault(measured, f"{sheet.names[column]} of {sheet.where}")
    if len(stated) > 1:
        listed = ", ".join(f"{column} in {unit}" for (_, unit), column in stated.items())
        raise SocialxError(first.where, f"the columns have several units ({listed})", "write all in one unit")
    for (quantity, unit), named in stated.items():
        if quantity != feature:
            raise SettingsError("", f"{Argument('quantity', feature)} contradicts {named} in {unit}", "drop it")
        if asked and (parse_unit(asked) or ("", asked))[1] != unit:
            raise SettingsError("", f"{Argument('units', asked)} contradicts {named} in {unit}", "drop it")
        return unit
    return None


def _lanes(table: Table, located: set[int | str]) -> Lanes | None:
    """Return the sensors if columns or rows are lanes; else ``None``. located: the keys of sensors with a location."""
    if any(BETWEEN in vdid for vdid in table.ids):
        return lanes_in_rows(table.ids)
    if table.sheets[0].sensors:
        return None
    return lanes_in_columns(table.ids, located)


def _sensor_blocks(
    table: Table, lanes: Lanes, features: dict[str, int | None], request: ConvertOptions
) -> tuple[tuple[str, ...], Generator[Block, None, None], str]:
    """Return sensor ids, blocks combined from ``lanes``, and a note; ``features``: the column to read per feature."""
    first, names, codes = table.sheets[0], list(features), request.codes(features)
    chosen = [column for column in features.values() if column is not None]
    measured = zip(table.values, map(first.quantity, first.values), strict=False) if chosen else ()
    flows = [column for column, quantity in measured if quantity == "flow"]
    if len(flows) == 1 and SPEED in features and "flow" not in features:
        chosen, names = [*chosen, *flows], [*names, "flow"]  # the weights of the speeds
    blocks = combine_blocks(table_blocks(table, chosen), lanes, names, codes, len(features), request.data)
    weighted = " weighted by flow" if "flow" in names else ""
    ways = {"flow": "flows are sums of lanes", SPEED: f"speeds are means of lanes{weighted}"}
    text = "; ".join(ways.get(feature, f"{feature} is a mean of lanes") for feature in features)
    return lanes.ids, blocks, f"{request.data}: {text} ({lanes.description(table.ids)})"


TABLE = frozenset(
    {
        "channel",
        "time_format",
        "quantity",
        "more",
        "first_time",
        "transposed",
        "time_column",
        "sensor_column",
        "drop",
        "decimal",
    }
)
FORMATS = (
    Format(
        PUBLISHED_CSV,
        "METR-LA.csv and PEMS-BAY.csv as published",
        _recognise_published,
        lambda request: read_tables(request, _published_sheets),
        takes=frozenset({"quantity"}),
    ),
    Format(
        CSV, "a table of any network, a column per sensor or a row per reading", _recognise, read_tables, takes=TABLE
    ),
)
