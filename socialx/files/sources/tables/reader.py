"""Tables with times: METR-LA and PEMS-BAY as published, and those of any city, office or database.

T times, N sensors, t rows of one piece.  sheets.py finds out how a table is written; here its rows become readings, of
a column per sensor or of a row each.
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
    combined,
    lanes_in_columns,
    lanes_in_rows,
    plain,
    quantity_of,
    sensors_of,
    unit_of,
)
from socialx.files.sources.tables.grid import blocks_of
from socialx.files.sources.tables.matrices import refuse_numbers, two_lines
from socialx.files.sources.tables.melt import is_label
from socialx.files.sources.tables.roles import MANY
from socialx.files.sources.tables.sheets import (
    Sheet,
    check_ids,
    look,
)
from socialx.files.sources.tables.text_cells import NumberFormat
from socialx.files.sources.tables.time_texts import (
    COPIED,
    COPIED_TEXT,
    unit_since_1970,
)
from socialx.files.sources.tables.times import SUFFIXES, Table, refuse_often, table_of
from socialx.files.sources.unknown import refuse_bytes, refuse_encoding, refuse_table, refuse_transposed
from socialx.files.store.head import (
    FileHead,
    container,
    find_separator,
    head_in,
    member_paths,
    read_head,
)
from socialx.files.store.ids import match_key
from socialx.files.store.layout import Block
from socialx.files.store.quantities import QUANTITIES, SPEED

PUBLISHED_CSV, CSV = "published-csv", "csv"
PROSE = re.compile(r"(?:read[ _-]?me|licen[cs]e|copying|changelog|notice)(?:\.[a-z]+)?", re.IGNORECASE)  # beside data
Look = Callable[[FileHead, ConvertOptions], list[Sheet]]  # the sheets of a file that have times


def _recognise_published(head: FileHead) -> str | None:
    header, row = two_lines(head)
    if len(header) < 2 or not row or header[0] or not all(isinstance(match_key(name), int) for name in header[1:]):
        return None
    return "an empty header cell, then sensor ids; rows begin with a time" if COPIED_TEXT.fullmatch(row[0]) else None


def _recognise(head: FileHead) -> str | None:
    heads = [head]
    if head.kind in ("folder", "zip"):
        heads = []
        for path in files_of(head):
            with suppress(SocialxError):
                heads.append(head_in(head, path))
    sheets = [sheet for each in heads for sheet in look(each)]
    several = f", {len(heads)} files" if len(heads) > 1 else f", {len(sheets)} sheets"
    return sheets[0].described() + (several if len(sheets) > 1 else "") if sheets else None


def files_of(head: FileHead) -> list[Path]:
    """The files of a folder or a zip that are neither hidden nor prose; of any other file itself."""
    if head.kind != "folder":
        found = member_paths(head.path) if head.kind == "zip" else []
        return [path for path in found if not PROSE.fullmatch(path.name)] or [head.path]
    try:
        found = [path for path in head.path.iterdir() if path.is_file() and not path.name.startswith(".")]
        return sorted(path for path in found if not PROSE.fullmatch(path.name))
    except OSError:
        return []


def _published(head: FileHead, request: ConvertOptions) -> list[Sheet]:
    """A CSV as METR-LA and PEMS-BAY are published; refuses any other header."""
    names, _ = two_lines(head)
    if not names or names[0]:
        found = f"line 1 has a header that begins {','.join(names)[:40]!a}" if names else "no CSV text"
        raise SocialxError(head.path, found, "use the CSV as published: an empty header cell, then sensor ids")
    refuse_numbers(head)
    check_ids(head.path, tuple(names[1:]), integers=True)
    begin, line = head.lines[0]
    sheet = Sheet((0,), path=head.path, kind="text", names=tuple(names), encoding=head.encoding, begin=begin)
    columns = tuple(range(1, len(names)))
    return [replace(sheet, values=columns, separator=find_separator(line), signs=NumberFormat(decimals=True))]


def read_tables(request: ConvertOptions, look_at: Look = look) -> Contents:
    """The readings of tables; ``look_at`` says of each file what its columns hold."""
    sheets, aside = _sheets(request, look_at)
    first = sheets[0]
    features, told = _chosen(sheets, request)
    feature, *others = features
    units = _units(sheets, features, request)
    chosen = [place for place in features.values() if place is not None]
    said = request.quantity or any(map(first.quantity, chosen or first.values))
    for sheet in sheets:
        sheet.signs.speeds = {*features} == {SPEED} if said or feature != SPEED else None
    table = table_of(sheets, request, chosen)
    refuse_often(table)
    notes: list[Message | str] = [*told, *([f"{request.data}: {table.joined}"] if table.joined else [])]
    notes += _told_of_times(table, first, request)
    chosen = chosen if first.sensors or table.by_file else []  # else each column is a sensor
    if rest := [first.names[place] for place in first.values if chosen and place not in chosen]:
        taken = ", ".join(first.names[each] for each in chosen)
        notes.append(f"{request.data}: the readings are those of {taken}, not of {', '.join(rest)}")
    places, known, found = _places(table, request, aside)
    lanes = _lanes(table, known)
    if lanes is None:
        ids, blocks, names = table.ids, blocks_of(table, chosen), None
    else:
        ids, blocks, how = _of_sensors(table, lanes, features, request)
        notes.append(how)
        names = lanes.names
    return Contents(
        ids,
        len(ids),
        blocks,
        feature,
        units[feature],
        others={name: units[name] for name in others},
        lanes=names,
        locations=places,
        notes=(*notes, *found, *_left_out(sheets)),
        paths=tuple(container(sheet.path) for sheet in sheets),
        times=table.moments,
        timezone="UTC" if table.times.zoned else None,
        missing=0.0 if feature == SPEED else None,
        rounded=table.times.step is not None,
        droppable=not chosen and lanes is None and not request.transposed,
        city=request.city,
    )


def _left_out(sheets: list[Sheet]) -> list[str]:
    """What of tables is not read: a line for each kind, which names the first table of which it is true."""
    told: dict[str, list[Sheet]] = {}
    for sheet in sheets:
        for what in sheet.left_out():
            told.setdefault(what, []).append(sheet)
    lines = []
    for what, (first, *others) in told.items():
        more = f" and {counted(len(others), 'more table')}" if others else ""
        lines.append(f"{first.path if first.others else first.where}{more}: {what}")
    return lines


def _told_of_times(table: Table, first: Sheet, request: ConvertOptions) -> list[Message]:
    """A note on how times are read that are not copied as they stand there."""
    if ends := [first.names[place] for place in first.times if ENDS.fullmatch(first.names[place])]:
        return [Message(request.data, f"times are those of {ends[0]!r}, the ends of intervals, as they stand there")]
    if first.day:
        return [Message(request.data, f"its times of day are of the date in the name of the file ({first.day})")]
    if not table.told and table.times.form in COPIED:
        return []
    if table.times.start is not None:
        return [Message(request.data, f"times are seconds that are counted from {request.first_time}")]
    utc = table.times.zoned and request.timezone in (None, "UTC")
    named = utc and request.timezone is None
    zone = f"{Argument('timezone', 'ZONE')} writes them as wall times of a zone" if named else ""
    how = f"times are read as {table.times.form or f'{unit_since_1970(first.first)} since 1970'}{table.told}"
    return [Message(request.data, f"{how}{', and written in UTC' if utc else ''}", zone)]


def _sheets(request: ConvertOptions, look_at: Look) -> tuple[list[Sheet], list[Path]]:
    """The sheets of all files, which have the same columns; and the files with positions, which are set aside."""
    heads = [request.head, *map(read_head, request.more)]
    paths = [(path, head) for head in heads for path in files_of(head)]
    sheets: list[Sheet] = []
    aside = []
    for path, around in paths:
        head = head_in(around, path)
        if head.encoding == "cp1252":  # which nearly every text may be
            refuse_encoding(head)
        found = look_at(head, request)
        if len(found) == 1 and found[0].unclear and (column := _located(found[0], request)):
            found = look_at(head, replace(request, sensor_column=(column,)))
        if not found and len(paths) > 1 and are_locations(path):
            aside.append(path)
        else:
            sheets += found or _refuse(head, request)
    if not sheets:
        raise SocialxError(request.data, "no file in this folder", "name a folder of tables, or a file")
    first = sheets[0]
    wide = not any(sheet.sensors or sheet.one for sheet in sheets)
    columns = {"time_column": request.time_column, "sensor_column": request.sensor_column, "drop": request.drop}
    for argument, name in ((argument, name) for argument, names in columns.items() for name in names):
        if name not in {*first.names, *map(plain, first.names)}:
            names = sample([each for each in first.names if each], 12)
            raise SettingsError(Argument(argument, name), f"no column of {first.where} ({names})", "name one of them")
    for sheet in sheets:
        if sheet.unclear:
            raise SocialxError(sheet.where, *sheet.unclear)
        if other := sorted(set(sheet.names) ^ set(first.names)) if not wide else []:
            differ = f"other columns than {first.where} ({sample(other)})"
            raise SocialxError(sheet.where, differ, "convert it alone, or give all the same columns")
    return [replace(sheet, signs=first.signs) if sheet.decimal == first.decimal else sheet for sheet in sheets], aside


def _located(sheet: Sheet, request: ConvertOptions) -> str | None:
    """The column of a table whose values are sensors of the locations; None where no column is one, or several are."""
    if request.meta_csv is None or request.sensor_column:
        return None
    names = sheet.names[: sheet.melt.label if sheet.melt else None]
    places = tuple(place for place in range(len(names)) if place not in sheet.times)[:MANY]
    found = []
    with suppress(SocialxError), closing(replace(sheet, names=names, melt=None).rows(places)) as pieces:
        for place, texts in zip(places, next(pieces).texts, strict=True):
            with suppress(SocialxError):
                known = read_locations(request.meta_csv, texts.words, request.city)
                if 2 * sum(match_key(word) in known for word in texts.words) >= len(texts.words):
                    found.append(names[place])
    return found[0] if len(found) == 1 else None


def _refuse(head: FileHead, request: ConvertOptions) -> NoReturn:
    """Raise for a file in which no times were found."""
    if request.transposed:
        names, _ = two_lines(head)
        if 1 < sum(map(is_label, names)) < len(names):
            refuse_table(head)
        found = f"line 1 names no sensors and times ({sample(names)})"
        raise SocialxError(head.path, found, f"drop {Argument('transposed')}")
    refuse_transposed(head)
    if head.kind == "text":
        refuse_bytes(head)
    if request.time_column:
        argument = Argument("time_column", request.time_column[0])
        raise SettingsError(argument, f"no column of times of {head.path}", "name one")
    refuse_numbers(head)
    refuse_table(head)


def are_locations(path: Path) -> bool:
    """Whether a file is a table of positions."""
    try:
        return bool(read_locations(path))
    except SocialxError:
        return False


def _chosen(sheets: list[Sheet], request: ConvertOptions) -> tuple[dict[str, int | None], list[str]]:
    """The features that are read and the column of each, None where each column is a sensor; and notes on them."""
    sheet = sheets[0]
    if not sheet.sensors and not sheet.one:
        return _of_all_columns(sheets, request)
    whole = request.channel is None or request.channel in sheet.names
    asked = [request.channel] if whole else request.channels
    if len(asked) > 1 and request.quantity:
        raise SettingsError(Argument("quantity"), f"{request.channel} are several quantities", "drop it")
    found: dict[str, int | None] = {}
    notes: list[str] = []
    for each in asked:
        place = _column(sheet, each, request.quantity or SPEED)
        own = sheet.quantity(place)
        if own is None and len(asked) == 1:
            own, notes = _of_column(sheets, place, request)
        if request.known_ids or request.channel is None:
            _refuse_other_quantity(sheet, request, own, f"its column {sheet.names[place]} is")
        feature = request.quantity or own
        if feature is None or feature in found:
            what = f"{each} is {'no quantity' if feature is None else f'a second column of {feature}'}"
            raise SettingsError(Argument("channel", request.channel), what, f"choose of {', '.join(QUANTITIES)}")
        found[feature] = place
    return found, notes


def _of_all_columns(sheets: list[Sheet], request: ConvertOptions) -> tuple[dict[str, int | None], list[str]]:
    """The feature of tables in which each column is a sensor, and a note where their file says it."""
    path = sheets[0].path
    if request.channel is not None and "," in request.channel:
        per_sensor = f"it has a column per sensor, not one for each of {request.channel}"
        raise SocialxError(path, per_sensor, "write a row per time and sensor, with a column for each")
    if request.channel is not None:
        raise SettingsError(Argument("channel"), f"{path} has a column per sensor", "drop it")
    for sheet in sheets:
        _refuse_other_quantity(sheet, request, sheet.quantity_of_all(), "its columns are")
    if said := request.quantity or sheets[0].quantity_of_all():
        return {said: None}, []
    by_file, notes = _by_file(sheets, "its readings")
    if by_file is None and not request.known_ids:
        _refuse_shares(sheets)
    return {by_file or SPEED: None}, notes


def _refuse_shares(sheets: list[Sheet]) -> None:
    """Raise where all readings are shares, of which nothing says a quantity."""
    if all(sheet.shares for sheet in sheets):
        remedy = f"say what they are: {Argument('quantity', 'occupancy')}, or {Argument('quantity', 'speed')}"
        raise SocialxError(sheets[0].path, "no reading of its first rows is above 1, so they are hardly speeds", remedy)


def _of_column(sheets: list[Sheet], place: int, request: ConvertOptions) -> tuple[str | None, list[str]]:
    """What a column of readings is whose name says no quantity, and a note where its file says it."""
    sheet = sheets[0]
    name = sheet.names[place]
    if request.quantity is not None:
        return None, []
    if not READING.fullmatch(plain(name)):
        either = " or ".join(str(Argument("quantity", quantity)) for quantity in QUANTITIES)
        found = f"the name of its column {name!r} says no quantity"
        if sheet.melt and place in sheet.melt.values:
            found = "nothing in it says what its readings are"
        raise SocialxError(sheet.where, found, f"say it: {either}")
    by_file, notes = _by_file(sheets, name) if sheet.one or sheet.melt else (None, [])
    if by_file is None and not request.known_ids:
        _refuse_shares(sheets)
    return by_file or SPEED, notes


def _refuse_other_quantity(sheet: Sheet, request: ConvertOptions, own: str | None, where: str) -> None:
    """Raise for a table that says itself that it is another quantity than the user says, or than the file holds.

    own: the quantity that it says, ``where`` the columns that say it.
    """
    if own is None or request.quantity in (None, own):
        return
    if request.known_ids:
        differ = f"{where} {own}, and the file holds {request.quantity}"
        raise SocialxError(sheet.where, differ, "append a table of the same quantity")
    asked = next(name for name, feature in QUANTITIES.items() if feature == request.quantity)
    raise SettingsError(Argument("quantity", asked), f"{sheet.where}: {where} {own} by name or unit", "drop it")


def _by_file(sheets: list[Sheet], what: str) -> tuple[str | None, list[str]]:
    """What readings are by the name of their file, or of its folder where there are several, with a note on it."""
    said = {}
    for sheet in sheets:
        folder = sheet.path.parent.name if len(sheets) > 1 else ""
        stem = SUFFIXES.sub("", sheet.path.name)
        said[quantity_of(stem) or quantity_of(folder)] = sheet.path
    if len(said) > 1:
        listed = ", ".join(f"{path} of {quantity or 'no quantity'}" for quantity, path in said.items())
        raise SocialxError(sheets[0].where, f"files of several quantities ({listed})", "convert those of each alone")
    [quantity] = said
    notes = [f"{sheets[0].path}: {what}: {quantity}, as the name of the file says"] if quantity else []
    return quantity, notes


def _column(sheet: Sheet, asked: str | None, quantity: str) -> int:
    """The column of readings that a user asks for by its name or its quantity; None: that of ``quantity``."""
    names = [sheet.names[place] for place in sheet.values]
    wanted = (asked or quantity).strip()
    places = [place for place in sheet.values if wanted in (sheet.names[place], plain(sheet.names[place]))]
    if not places:
        meant = QUANTITIES.get(wanted.lower(), wanted)
        places = [place for place in sheet.values if sheet.quantity(place) == meant]
    if asked is None and not places and len(names) == 1:
        places = list(sheet.values)
    if len(places) == 1:
        return places[0]
    if asked is None or places:
        several = f"several columns of {wanted if asked else 'readings'} ({', '.join(names)})"
        likely = next((sheet.names[place] for place in sheet.values if sheet.quantity(place)), names[0])
        raise SocialxError(sheet.path, several, f"{Argument('channel', likely)} chooses one")
    listed = f"for example {Argument('channel', names[0])}, of {', '.join(names)}"
    raise SettingsError(Argument("channel", asked), "no column of readings", listed)


def _units(sheets: list[Sheet], features: dict[str, int | None], request: ConvertOptions) -> dict[str, str | None]:
    """The unit of each feature as the table says it; the one that a user gives is that of the speed, if it is read."""
    meant = SPEED if SPEED in features else next(iter(features))
    asked = {meant: request.units}
    return {name: _unit(sheets, place, name, asked.get(name)) for name, place in features.items()}


def _places(
    table: Table, request: ConvertOptions, aside: list[Path]
) -> tuple[dict[int | str, Location] | None, set[int | str], list[str]]:
    """The positions of a file beside the data, the keys of sensors that are known, and notes on files set aside."""
    at, may_be = request.meta_csv or (aside[0] if len(aside) == 1 else None), sensors_of(table.ids)
    found = read_locations(at, (*table.ids, *may_be), request.city) if at and (may_be or at in aside) else None
    known = {match_key(vdid) for vdid in request.known_ids} if found is None else set(found)
    what = "the positions of the sensors" if at in aside else "positions of sensors, set aside"
    return found if at in aside else None, known, [f"{path}: {what}" for path in aside]


def _unit(sheets: list[Sheet], place: int | None, feature: str, asked: str | None) -> str | None:
    """The unit of a feature as the columns of all sheets say it; refuses two units, and another one than asked for.

    place: its column in the first sheet; None: a column for each sensor.  asked: the unit that the user gives.
    """
    first = sheets[0]
    said: dict[tuple[str, str], str] = {}
    for sheet in sheets:
        columns = {name: number for number, name in enumerate(sheet.names)}
        for column in sheet.values if place is None else (columns[first.names[place]],):
            for measured in filter(None, map(unit_of, sheet.unit_texts(column))):
                said.setdefault(measured, f"{sheet.names[column]} of {sheet.where}")
    if len(said) > 1:
        listed = ", ".join(f"{column} in {unit}" for (_, unit), column in said.items())
        raise SocialxError(first.where, f"columns in several units ({listed})", "write all in one unit")
    for (quantity, unit), named in said.items():
        if quantity != feature:
            raise SettingsError(Argument("quantity", feature), f"{named} is in {unit}", "drop it")
        if asked and (unit_of(asked) or ("", asked))[1] != unit:
            raise SettingsError(Argument("units", asked), f"{named} is in {unit}", "drop it")
        return unit
    return None


def _lanes(table: Table, known: set[int | str]) -> Lanes | None:
    """The sensors of a table whose columns or rows are those of lanes; None where it has none."""
    if any(BETWEEN in vdid for vdid in table.ids):
        return lanes_in_rows(table.ids)
    if table.sheets[0].sensors:
        return None
    return lanes_in_columns(table.ids, known)


def _of_sensors(
    table: Table, lanes: Lanes, features: dict[str, int | None], request: ConvertOptions
) -> tuple[tuple[str, ...], Generator[Block, None, None], str]:
    """The ids and readings of the sensors of a table of lanes, and how these were combined, for a note."""
    first, names = table.sheets[0], list(features)
    chosen = [place for place in features.values() if place is not None]
    measured = zip(table.values, map(first.quantity, first.values), strict=False) if chosen else ()
    flows = [place for place, quantity in measured if quantity == "flow"]
    if len(flows) == 1 and SPEED in features and "flow" not in features:
        chosen, names = [*chosen, *flows], [*names, "flow"]  # the weights of the speeds
    blocks = combined(blocks_of(table, chosen), lanes, names, request.codes(features), len(features), request.data)
    weighted = " weighted by flow" if "flow" in names else ""
    ways = {"flow": "flows are sums of lanes", SPEED: f"speeds are means of lanes{weighted}"}
    how = "; ".join(ways.get(each, f"{each} is a mean of lanes") for each in features)
    return lanes.ids, blocks, f"{request.data}: {how} ({lanes.described(table.ids)})"


TABLE = frozenset(
    {
        "channel",
        "time_format",
        "quantity",
        "more",
        "start",
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
        lambda request: read_tables(request, _published),
        takes=frozenset({"quantity"}),
    ),
    Format(
        CSV, "a table of any network, a column per sensor or a row per reading", _recognise, read_tables, takes=TABLE
    ),
)
