"""Tables with times: METR-LA and PEMS-BAY as published, and those of any city, office or database.

T times, N sensors, t rows of one piece.  sheets.py finds out how a table is written; here its rows become readings, of
a column per sensor or of a row each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from socialx.errors import Argument, Message, SettingsError, SocialxError, sample
from socialx.files.convert_options import Request
from socialx.files.file_head import (
    FileHead,
    inside,
    read_head,
    separator_of,
    whole,
)
from socialx.files.formats.columns import (
    BETWEEN,
    Lanes,
    combined,
    lanes_in_columns,
    lanes_in_rows,
    plain,
    quantity_of,
    sensors_of,
    unit_of,
)
from socialx.files.formats.contents import Contents, Format, as_timestamps, start_seconds
from socialx.files.formats.matrices import refuse_numbers, two_lines
from socialx.files.formats.moments import (
    COPIED,
    PLAIN,
    TIMES,
    UNKNOWN,
    Times,
    candidates,
    unit_since_1970,
)
from socialx.files.formats.roles import READING
from socialx.files.formats.sheets import (
    Sheet,
    check_ids,
    look,
    one_text,
)
from socialx.files.formats.text_cells import NUMBER, Piece
from socialx.files.formats.transposed import refuse_transposed, turned
from socialx.files.formats.unknown import LATITUDE, refuse_bytes, refuse_encoding, refuse_table, refuse_undated
from socialx.files.formats.walltimes import free_step, goes_back, is_put_back, nearest_step, refuse_repeated_hour
from socialx.files.hdf5_layout import Block
from socialx.files.locations import Location, match_key, read_locations
from socialx.files.quantities import QUANTITIES, SPEED
from socialx.files.time_axis import timestamp_seconds
from socialx.progress import note

PUBLISHED_CSV, CSV = "published-csv", "csv"
# Ends of the names of files.
SUFFIXES = re.compile(r"(?:\.(?:csv|tsv|txt|dat|gz|zip|parquet|xls[xm]|jsonl?|ndjson))+$", re.IGNORECASE)
PROSE = re.compile(r"(?:read[ _-]?me|licen[cs]e|copying|changelog|notice)(?:\.[a-z]+)?", re.IGNORECASE)  # beside data
TOTAL = re.compile(r"all(?:e|[ _-]?lanes)?|total|sum(?:me)?|gesamt|todos|tous|totaal", re.IGNORECASE)  # of lanes
AND = "-"  # between the names of which a sensor's is made
SHARE = 0.5  # of the free memory, for a table that must be turned as a whole
Look = Callable[[FileHead, Request], list[Sheet]]  # the sheets of a file that have times


@dataclass(frozen=True)
class Table:
    """Sheets of the same columns in order of time, and what is known of their times and sensors.

    ids: of the columns of readings, or of the column of sensors.  moments: the times of all rows, seconds int64 [T],
    each once in a table that has a row for each reading; None where they have not been read ahead.  by_time: whether
    the rows of the table are in their order.  told: what else a note must say about the times; joined: and about the
    sheets, where they do not follow one another.  by_file: each sheet is one sensor.  values: the columns of its
    quantities, as they are numbered in the first file that was named.
    """

    sheets: tuple[Sheet, ...]
    times: Times
    ids: tuple[str, ...]
    moments: np.ndarray | None = None
    by_time: bool = True
    told: str = ""
    joined: str = ""
    by_file: bool = False
    values: tuple[int, ...] = ()


def _recognise_published(head: FileHead) -> str | None:
    header, row = two_lines(head)
    if len(header) < 2 or not row or header[0] or not all(isinstance(match_key(name), int) for name in header[1:]):
        return None
    return "an empty header cell, then sensor ids; rows begin with a time" if TIMES[PLAIN].fullmatch(row[0]) else None


def _recognise(head: FileHead) -> str | None:
    heads = [head]
    if head.kind in ("folder", "zip"):
        heads = []
        for path in files_of(head):
            try:
                heads.append(read_head(path))
            except SocialxError:
                continue
    sheets = [sheet for each in heads for sheet in look(each)]
    several = f", {len(heads)} files" if len(heads) > 1 else f", {len(sheets)} sheets"
    return sheets[0].described() + (several if len(sheets) > 1 else "") if sheets else None


def files_of(head: FileHead) -> list[Path]:
    """The files of a folder or a zip that are neither hidden nor prose; of any other file itself."""
    if head.kind != "folder":
        found = inside(head.path) if head.kind == "zip" else []
        return [path for path in found if not PROSE.fullmatch(path.name)] or [head.path]
    try:
        found = [path for path in head.path.iterdir() if path.is_file() and not path.name.startswith(".")]
        return sorted(path for path in found if not PROSE.fullmatch(path.name))
    except OSError:
        return []


def _published(head: FileHead, request: Request) -> list[Sheet]:
    """A CSV as METR-LA and PEMS-BAY are published; refuses any other header."""
    names, _ = two_lines(head)
    if not names or names[0]:
        found = f"line 1 has a header that begins {','.join(names)[:40]!a}" if names else "no CSV text"
        raise SocialxError(head.path, found, "use the CSV as published: an empty header cell, then sensor ids")
    refuse_numbers(head)
    check_ids(head.path, tuple(names[1:]), integers=True)
    begin, line = head.lines[0]
    columns = tuple(range(1, len(names)))
    mark = separator_of(line)
    return [Sheet(head.path, "text", tuple(names), (0,), columns, (), head.encoding, mark, begin=begin)]


def read_tables(request: Request, look_at: Look = look) -> Contents:
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
    table = _table(sheets, request, chosen)
    notes: list[Message | str] = [*told, *([f"{request.data}: {table.joined}"] if table.joined else [])]
    notes += _told_of_times(table, first, request)
    chosen = chosen if first.sensors or table.by_file else []  # else each column is a sensor
    if rest := [first.names[place] for place in first.values if chosen and place not in chosen]:
        taken = ", ".join(first.names[each] for each in chosen)
        notes.append(f"{request.data}: the readings are those of {taken}, not of {', '.join(rest)}")
    places, known, found = _places(table, request, aside)
    lanes = _lanes(table, known)
    if lanes is None:
        ids, blocks, names = table.ids, _blocks(table, chosen), None
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
        notes=(*notes, *found, *(line for sheet in sheets for line in sheet.left_out())),
        paths=tuple(whole(sheet.path) for sheet in sheets),
        times=lambda: as_timestamps(_moments(table)),
        timezone="UTC" if table.times.zoned else None,
        missing=0.0 if feature == SPEED else None,
        rounded=table.times.step is not None,
        droppable=not chosen and lanes is None and not request.transposed,
        city=request.city,
    )


def _told_of_times(table: Table, first: Sheet, request: Request) -> list[Message]:
    """A note on how times are read that are not copied as they stand there."""
    if not table.told and table.times.form in COPIED:
        return []
    if table.times.start is not None:
        return [Message(request.data, f"times are seconds that are counted from {request.start}")]
    utc = table.times.zoned and request.timezone in (None, "UTC")
    named = utc and request.timezone is None
    zone = f"{Argument('timezone', 'ZONE')} writes them as wall times of a zone" if named else ""
    how = f"times are read as {table.times.form or f'{unit_since_1970(first.first)} since 1970'}{table.told}"
    return [Message(request.data, f"{how}{', and written in UTC' if utc else ''}", zone)]


def _sheets(request: Request, look_at: Look) -> tuple[list[Sheet], list[Path]]:
    """The sheets of all files, which have the same columns; and the files with positions, which are set aside."""
    heads = [request.head, *map(read_head, request.more)]
    paths = [path for head in heads for path in files_of(head)]
    sheets: list[Sheet] = []
    aside = []
    for path in paths:
        head = next((head for head in heads if head.path == path), None) or read_head(path)
        if head.encoding == "cp1252":  # which nearly every text may be
            refuse_encoding(head)
        found = look_at(head, request)
        if not found and len(paths) > 1 and are_locations(path):
            aside.append(path)
        elif request.transposed:
            sheets.append(turned(head, request.decimal))
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


def _refuse(head: FileHead, request: Request) -> NoReturn:
    """Raise for a file in which no times were found."""
    refuse_transposed(head)
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


def _chosen(sheets: list[Sheet], request: Request) -> tuple[dict[str, int | None], list[str]]:
    """The features that are read and the column of each, None where each column is a sensor; and notes on them."""
    sheet = sheets[0]
    if not sheet.sensors and not sheet.one:
        return _of_all_columns(sheets, request)
    whole = request.channel is None or request.channel in sheet.names
    asked = [request.channel] if whole else (request.channel or "").split(",")
    if len(asked) > 1 and request.quantity:
        raise SettingsError(Argument("quantity"), f"{request.channel} are several quantities", "drop it")
    found: dict[str, int | None] = {}
    notes: list[str] = []
    for each in asked:
        place = _column(sheet, each, request.quantity or SPEED)
        own = sheet.quantity(place)
        if own is None and len(asked) == 1:
            own, notes = _of_column(sheets, place, request)
        if request.known or request.channel is None:
            _refuse_other_quantity(sheet, request, own, f"its column {sheet.names[place]} is")
        feature = request.quantity or own
        if feature is None or feature in found:
            what = f"{each} is {'no quantity' if feature is None else f'a second column of {feature}'}"
            raise SettingsError(Argument("channel", request.channel), what, f"choose of {', '.join(QUANTITIES)}")
        found[feature] = place
    return found, notes


def _of_all_columns(sheets: list[Sheet], request: Request) -> tuple[dict[str, int | None], list[str]]:
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
    if by_file is None and not request.known and all(sheet.shares for sheet in sheets):
        remedy = f"say what they are: {Argument('quantity', 'occupancy')}, or {Argument('quantity', 'speed')}"
        raise SocialxError(path, "no reading of its first rows is above 1, so they are hardly speeds", remedy)
    return {by_file or SPEED: None}, notes


def _of_column(sheets: list[Sheet], place: int, request: Request) -> tuple[str | None, list[str]]:
    """What a column of readings is whose name says no quantity, and a note where its file says it."""
    sheet = sheets[0]
    name = sheet.names[place]
    if request.quantity is not None:
        return None, []
    if not READING.fullmatch(plain(name)):
        either = " or ".join(str(Argument("quantity", quantity)) for quantity in QUANTITIES)
        raise SocialxError(sheet.where, f"the name of its column {name!r} says no quantity", f"say it: {either}")
    by_file, notes = _by_file(sheets, name) if sheet.one else (None, [])
    return by_file or SPEED, notes


def _refuse_other_quantity(sheet: Sheet, request: Request, own: str | None, where: str) -> None:
    """Raise for a table that says itself that it is another quantity than the user says, or than the file holds.

    own: the quantity that it says, ``where`` the columns that say it.
    """
    if own is None or request.quantity in (None, own):
        return
    if request.known:
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
        raise SocialxError(sheet.path, several, f"{Argument('channel', names[0])} chooses one")
    listed = f"for example {Argument('channel', names[0])}, of {', '.join(names)}"
    raise SettingsError(Argument("channel", asked), "no column of readings", listed)


def _units(sheets: list[Sheet], features: dict[str, int | None], request: Request) -> dict[str, str | None]:
    """The unit of each feature as the table says it; the one that a user gives is that of the speed, if it is read."""
    meant = SPEED if SPEED in features else next(iter(features))
    asked = {meant: request.units}
    return {name: _unit(sheets, place, name, asked.get(name)) for name, place in features.items()}


def _places(
    table: Table, request: Request, aside: list[Path]
) -> tuple[dict[int | str, Location] | None, set[int | str], list[str]]:
    """The positions of a file beside the data, the keys of sensors that are known, and notes on files set aside."""
    at, may_be = request.meta or (aside[0] if len(aside) == 1 else None), sensors_of(table.ids)
    found = read_locations(at, (*table.ids, *may_be), request.city) if at and (may_be or at in aside) else None
    known = {match_key(vdid) for vdid in request.known} if found is None else set(found)
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
    if table.sheets[0].lanes is not None:
        return lanes_in_rows(table.ids)
    if table.sheets[0].sensors:
        return None
    return lanes_in_columns(table.ids, known)


def _of_sensors(
    table: Table, lanes: Lanes, features: dict[str, int | None], request: Request
) -> tuple[tuple[str, ...], Generator[Block, None, None], str]:
    """The ids and readings of the sensors of a table of lanes, and how these were combined, for a note."""
    first, names = table.sheets[0], list(features)
    chosen = [place for place in features.values() if place is not None]
    measured = zip(table.values, map(first.quantity, first.values), strict=False) if chosen else ()
    flows = [place for place, quantity in measured if quantity == "flow"]
    if len(flows) == 1 and SPEED in features and "flow" not in features:
        chosen, names = [*chosen, *flows], [*names, "flow"]  # the weights of the speeds
    blocks = combined(_blocks(table, chosen), lanes, names, request.codes(features), len(features), request.data)
    weighted = " weighted by flow" if "flow" in names else ""
    ways = {"flow": "flows are sums of lanes", SPEED: f"speeds are means of lanes{weighted}"}
    how = "; ".join(ways.get(each, f"{each} is a mean of lanes") for each in features)
    return lanes.ids, blocks, f"{request.data}: {how} ({lanes.described(table.ids)})"


# ---- times


def _table(sheets: list[Sheet], request: Request, chosen: list[int]) -> Table:
    """The sheets with what a walk over their times tells; there is none where one sheet tells all by its first row.

    chosen: the columns of readings, where a row has several quantities.
    """
    first = sheets[0]
    wide = not first.sensors
    sheets, alike = _aligned(sheets, chosen)
    ways = _ways(first, request)
    if wide and len(sheets) == len(ways) == 1:
        return _alone(sheets[0], ways[0], chosen, request.known)
    walked = _walk(sheets, ways)
    times = _one_way(first, walked)
    moments, told = walked.moments[times], ", which the order of its rows tells" if len(ways) > 1 else ""
    order = sorted(range(len(sheets)), key=lambda place: int(moments[place][0]))
    in_turn = [moments[place] for place in order]
    gathered = wide and (not alike or _is_joined(in_turn))
    if request.round_times and (gathered or not wide):
        step = request.step_s or free_step(np.concatenate(walked.one_sensor[times] or moments[:1]))
        times, moments = replace(times, step=step), _rounded(moments, step)
        told += f", each sensor's rounded to whole {step // 60} min"
    ordered, every = tuple(sheets[place] for place in order), np.concatenate([moments[place] for place in order])
    if gathered:
        for place in order:
            refuse_repeated_hour(moments[place], sheets[place].where)
        every = np.unique(every)
    if wide and chosen:
        names, joined = _sensors_of_files(ordered, request.known, joined=gathered)
        ordered = tuple(replace(sheet, sensor=name) for sheet, name in zip(ordered, names, strict=True))
        ids = tuple(dict.fromkeys(names))
        return Table(ordered, times, ids, every, not gathered, told, joined, True, tuple(chosen))
    if gathered:
        return _gathered(ordered, times, every, told)
    if wide:
        return Table(ordered, times, first.ids(), every, told=told)
    by_time = bool((np.diff(every) >= 0).all())  # a time may go on in the next piece or sheet
    return Table(ordered, times, tuple(walked.sensors), np.unique(every), by_time, told, values=first.values)


def _aligned(sheets: list[Sheet], chosen: list[int]) -> tuple[list[Sheet], bool]:
    """The sheets with their columns in the order of the first, where all have the same; and whether they have.

    Those of one sensor keep the columns that are read; sensors that stand twice, and positions among them, are refused.
    """
    first = sheets[0]
    wide = not first.sensors
    for sheet in sheets if wide else ():
        check_ids(sheet.path, sheet.ids())
        _refuse_positions(sheet)
    alike = all(set(sheet.names) == set(first.names) for sheet in sheets)
    sheets = [first, *(sheet.as_in(first) for sheet in sheets[1:])] if alike else sheets
    if chosen and wide:
        read = [first.values.index(column) for column in chosen]
        sheets = [replace(sheet, values=tuple(sheet.values[place] for place in read)) for sheet in sheets]
    return sheets, alike


def _rounded(moments: list[np.ndarray], step: int) -> list[np.ndarray]:
    """The times of each sheet at whole steps, each once."""
    nearest = [nearest_step(each, step) for each in moments]
    return [each[np.append(True, np.diff(each) != 0)] for each in nearest]


def _alone(sheet: Sheet, times: Times, chosen: list[int], known: tuple[str, ...]) -> Table:
    """The only sheet, whose times can be written in one way."""
    if not chosen:
        return Table((sheet,), times, sheet.ids())
    [name], joined = _sensors_of_files((sheet,), known, joined=False)
    return Table((replace(sheet, sensor=name),), times, (name,), joined=joined, by_file=True, values=tuple(chosen))


def _refuse_positions(sheet: Sheet) -> None:
    """Raise for a table with a column per sensor that has one of positions among them."""
    if at := next((name for name in sheet.ids() if name.lower() in LATITUDE), None):
        raise SocialxError(
            sheet.where, f"its column {at} is that of positions", f"leave it out: {Argument('drop', at)}"
        )


def _ways(first: Sheet, request: Request) -> list[Times]:
    """How the times may be written, by the first of them."""
    if request.time_format is not None:
        return [Times.of(request.time_format)]
    if request.start is not None:
        if not NUMBER.fullmatch(first.first):
            raise SettingsError(Argument("start", request.start), f"{first.where} has dates ({first.first})", "drop it")
        return [Times(None, zoned=False, start=start_seconds(request))]
    ways = candidates(first.first or "2012-03-01 00:00:00")
    refuse_undated(first.where, [first.first])
    if not ways:
        remedy = f"say how they are written: {Argument('time_format', '%d/%m/%Y %H:%M')}"
        raise SocialxError(first.where, f"its first time is {first.first[:40]!a}, of no known form", remedy)
    return ways


def _is_joined(moments: list[np.ndarray]) -> bool:
    """Whether tables stand beside one another: one begins before another one ends.

    moments: their times int64 [T], in the order of their first.
    """
    ends = np.maximum.accumulate([each.max() for each in moments])
    overlap = any(each.min() <= end for each, end in zip(moments[1:], ends[:-1], strict=True))
    return overlap and not is_put_back(np.concatenate(moments))


def _sensors_of_files(sheets: tuple[Sheet, ...], known: tuple[str, ...], *, joined: bool) -> tuple[list[str], str]:
    """The name of the one sensor of each sheet, and a note on it.

    A sensor has the name of the sheet, of its file, or of the folder of the file.  Files that follow one another are
    one sensor, with the name of its column.  known: ids of the file that is appended to.
    """
    names = [sheet.sheet or SUFFIXES.sub("", sheet.path.name) for sheet in sheets]
    if not joined:
        name = known[0] if len(known) == 1 else names[0] if len(names) == 1 else sheets[0].ids()[0]
        whose = f"{'that of the only sensor' if len(known) == 1 else 'a sensor with the name of the table'} ({name})"
        follow = f"its tables follow one another in time, so they are those of one sensor ({name})"
        return [name] * len(sheets), f"the table is {whose}" if len(sheets) == 1 else follow
    folders = [sheet.path.parent.name for sheet in sheets]
    names = folders if len({*names}) < len(sheets) == len({*folders}) else names
    return names, f"each of {len(sheets)} tables is a sensor with the name of the table ({sample(names)})"


def _gathered(sheets: tuple[Sheet, ...], times: Times, moments: np.ndarray, told: str) -> Table:
    """Sheets that overlap in time, or have columns of other sensors, with a note on how they are joined."""
    files = Counter(match_key(name) for sheet in sheets for name in sheet.ids())
    ids: dict[int | str, str] = {}
    for name in (name for sheet in sheets for name in sheet.ids()):
        ids.setdefault(match_key(name), name)
    most = max(files.values())
    joined = f"{len(sheets)} tables are joined by time: {len(ids)} sensors ({sample(list(ids.values()))})"
    if partly := [name for key, name in ids.items() if files[key] < most]:
        joined += f", of which some tables lack {sample(partly)}"
    return Table(sheets, times, tuple(ids.values()), moments, False, told, joined)


@dataclass
class Walk:
    """What the times of all sheets tell, for each way to read them.

    moments: seconds of the rows of each sheet, int64 [T]; of a table with a row for each reading without those of the
    row above.  one_sensor: those of the first sensor, in pieces.  sensors: the names of all, in order.
    """

    moments: dict[Times, list[np.ndarray]]
    one_sensor: dict[Times, list[np.ndarray]]
    sensors: dict[str, None]


def _walk(sheets: list[Sheet], ways: list[Times]) -> Walk:
    """The times of all rows, and the sensors where they are cells; a way in which one is no time is given up."""
    walk = Walk({way: [] for way in ways}, {way: [] for way in ways}, {})
    for sheet in sheets:
        parts: dict[Times, list[np.ndarray]] = {way: [] for way in walk.moments}
        columns = (*sheet.times, *sheet.named) if sheet.sensors else sheet.times
        with closing(sheet.rows(columns)) as rows:
            for piece in rows:
                texts = _times_of(sheet, piece)
                names = _names_of(sheet, piece) if sheet.sensors else []
                walk.sensors.update(dict.fromkeys(names))
                one = next(iter(walk.sensors), "")
                for way in list(walk.moments):
                    seconds = way.seconds(texts)
                    if (seconds == UNKNOWN).any():
                        if len(walk.moments) == 1:
                            _refuse_times(sheet, piece, texts, seconds == UNKNOWN)
                        del walk.moments[way]
                        continue
                    if names:
                        walk.one_sensor[way].append(seconds[[name == one for name in names]])
                        seconds = seconds[np.append(True, np.diff(seconds) != 0)]
                    parts[way].append(seconds)
        for way in walk.moments:
            if not parts[way]:
                raise SocialxError(sheet.path, "no row after line 1", "use a file with rows")
            walk.moments[way].append(np.concatenate(parts[way]))
    first = sheets[0]
    totals = [name for name in walk.sensors if TOTAL.fullmatch(name.partition(BETWEEN)[2])]
    if totals and first.lanes is not None:
        what = f"rows of {sample([name.replace(BETWEEN, ', lane ') for name in totals])}, which are no lane"
        raise SocialxError(first.path, what, f"remove them, or all others and the column {first.names[first.lanes]}")
    if any(name.partition(BETWEEN)[0] == "" for name in walk.sensors):
        column = sheets[0].names[sheets[0].sensors[0]]
        raise SocialxError(sheets[0].path, f"rows without a sensor in {column!r}", "remove them")
    return walk


def _one_way(sheet: Sheet, walk: Walk) -> Times:
    """How the times are written.

    Day and month are told apart by a number above 12, else by the order of the rows, which must be that of time, and
    by their steps: the wrong reading jumps by months.
    """
    good = list(walk.moments)
    if len(good) > 1:
        steps = {way: [np.diff(each) for each in walk.moments[way]] for way in good}
        increasing = [way for way in good if all((each >= 0).all() for each in steps[way])]
        steady = [way for way in increasing if all(len(set(each[each != 0].tolist())) == 1 for each in steps[way])]
        good = steady if len(steady) == 1 else increasing if len(increasing) == 1 else good
    if len(good) > 1:
        found = f"times like {sheet.first!r}, which may be day/month or month/day"
        either = " or ".join(str(Argument("time_format", way.form)) for way in good)
        raise SocialxError(sheet.path, found, f"say which: {either}")
    return good[0]


def _times_of(sheet: Sheet, piece: Piece) -> list[str]:
    """The times of a piece as they are written; of dates and times of day the two with a space between."""
    columns = piece.texts[: len(sheet.times)]
    for place, cells in zip(sheet.times, columns, strict=True):
        if "" in cells:
            missing = f"{piece.place(cells.index(''))} has no {sheet.names[place] or 'time'!r}"
            raise SocialxError(sheet.where, missing, "correct it")
    return one_text(columns)


def _names_of(sheet: Sheet, piece: Piece) -> list[str]:
    """The sensor of each row of a piece, with its lane where there is a column of lanes."""
    columns = piece.texts[len(sheet.times) :]
    named = _joined(columns[: len(sheet.sensors)], AND)
    return named if sheet.lanes is None else _joined([named, columns[-1]], BETWEEN)


def _joined(columns: list[list[str]], mark: str) -> list[str]:
    """The cells of each row of some columns as one text, with a mark between them."""
    return columns[0] if len(columns) == 1 else [mark.join(cells) for cells in zip(*columns, strict=True)]


def _refuse_times(sheet: Sheet, piece: Piece, texts: list[str], wrong: np.ndarray) -> None:
    """Raise for the first of some texts that are no times; return where there is none."""
    if wrong.any():
        row = int(wrong.argmax())
        like = f"its first one, {sheet.first!r}" if sheet.first else PLAIN
        found = f"{piece.place(row)} has the time {texts[row][:40]!a}, not written like {like}"
        example = Argument("time_format", "%d/%m/%Y %H:%M")
        raise SocialxError(sheet.where, found, f"correct it, or say how all are written: {example}")


def _moments(table: Table) -> np.ndarray:
    """The times of all rows, seconds int64 [T]; refuses a table with a column per sensor in which most stand often."""
    if table.moments is not None:
        moments = table.moments
    else:
        [[moments]] = _walk(list(table.sheets), [table.times]).moments.values()
    wide = not table.sheets[0].sensors and table.sheets[0].first  # but for those as published
    if wide and 3 * len(np.unique(moments)) <= 2 * len(moments):
        found = f"{len(moments):,} rows of {len(np.unique(moments)):,} times, as of a table with a row per reading"
        remedy = f"say which column names the sensor: {Argument('sensor_column')}"
        raise SocialxError(table.sheets[0].where, found, remedy)
    return moments


# ---- readings


def _blocks(table: Table, columns: list[int]) -> Generator[Block, None, None]:
    """The rows of a table; columns: of its quantities in the first sheet, none where each column is a sensor."""
    return _rows(table) if table.by_time and not table.sheets[0].sensors else _pivoted(table, columns)


def _rows(table: Table) -> Generator[Block, None, None]:
    """The rows of a table with a column per sensor."""
    last, forward = np.empty(0, "S19"), True
    for sheet in table.sheets:
        with closing(sheet.rows(sheet.times, sheet.values)) as rows:
            for piece in rows:
                texts = _times_of(sheet, piece)
                stamps = table.times.stamps(texts)
                _refuse_times(sheet, piece, texts, stamps == b"")
                shape = (len(stamps), 1, -1) if sheet.sensor and len(sheet.values) > 1 else piece.numbers.shape
                if forward and goes_back(np.concatenate([last, stamps])):
                    _moments(table)
                    forward = False
                yield Block(stamps, piece.numbers.reshape(shape))
                last = stamps[-1:]


Cells = tuple[np.ndarray, np.ndarray, np.ndarray]  # seconds [t], number of the sensor [t], readings [t,F]


def _cells(table: Table, columns: list[int]) -> Iterator[Cells]:
    """The readings of a table that has a row for each, or of tables that are joined.

    columns: of its quantities in the first sheet.
    """
    place = {name: number for number, name in enumerate(table.ids)}
    keys = {match_key(name): number for number, name in enumerate(table.ids)}
    for sheet in table.sheets:
        if not sheet.sensors:
            sensors = np.array([keys[match_key(name)] for name in sheet.ids()], np.int64)
            for block in _rows(replace(table, sheets=(sheet,), by_time=True)):
                seconds = timestamp_seconds(block.timestamps, str(sheet.where))
                numbers = np.tile(sensors, len(seconds))
                yield seconds.repeat(len(sensors)), numbers, block.speeds.reshape(len(numbers), -1)
            continue
        values = tuple(sheet.values[table.values.index(column)] for column in columns)
        with closing(sheet.rows((*sheet.times, *sheet.named), values)) as rows:
            for piece in rows:
                texts = _times_of(sheet, piece)
                seconds = table.times.seconds(texts)
                _refuse_times(sheet, piece, texts, seconds == UNKNOWN)
                yield seconds, np.array([place[name] for name in _names_of(sheet, piece)], np.int64), piece.numbers


def _pivoted(table: Table, columns: list[int]) -> Generator[Block, None, None]:
    """A row per time of a table with a row per reading: as it is read where it is in order of time, else as a whole."""
    cells, moments = _cells(table, columns), _moments(table)
    again: list[int] = []
    if not table.by_time:
        from socialx.environment import free_memory  # which loads torch: few tables need it

        need, free = 4 * len(moments) * len(table.ids) * max(1, len(columns)), free_memory()
        if free is not None and need > SHARE * free:
            found = f"rows that are not in order of time, and {need / 2**30:.1f} GiB as a whole"
            raise SocialxError(table.sheets[0].path, found, "sort its rows by time")
        yield _turned(table, cells, moments, again, max(1, len(columns)))
        cells = iter(())
    waiting: list[Cells] = []
    for seconds, numbers, readings in cells:
        waiting.append((seconds, numbers, readings))
        if seconds[-1] == waiting[0][0][0]:
            continue
        joined: Cells = tuple(np.concatenate(each) for each in zip(*waiting, strict=True))  # type: ignore[assignment]
        ready = joined[0] < seconds[-1]  # the last time may go on in the next piece
        part: Cells = joined[0][ready], joined[1][ready], joined[2][ready]
        yield _turned(table, [part], np.unique(part[0]), again, max(1, len(columns)))
        waiting = [(joined[0][~ready], joined[1][~ready], joined[2][~ready])]
    if waiting:
        moments = np.unique(np.concatenate([each[0] for each in waiting]))
        yield _turned(table, waiting, moments, again, max(1, len(columns)))
    if sum(again):
        what = "readings" if table.joined else "rows"
        note(Message(table.sheets[0].path, f"{sum(again):,} {what} stand twice with the same reading", "read once"))


def _turned(table: Table, cells: Iterable[Cells], moments: np.ndarray, again: list[int], features: int) -> Block:
    """Readings of these times as rows [t,N] or [t,N,F], NaN where there is none; refuses two of one sensor and time.

    again: gets the number of rows that stand twice with the same reading.
    """
    values = np.full((len(moments) * len(table.ids), features), np.nan, np.float32)
    taken = np.zeros(len(values), bool)
    for seconds, numbers, readings in cells:
        places = np.searchsorted(moments, seconds) * len(table.ids) + numbers
        found, first = np.unique(places, return_index=True)
        first = first[~taken[found]]
        values[places[first]] = readings[first]
        taken[found] = True
        known = values[places]
        other = ((known != readings) & ~(np.isnan(known) & np.isnan(readings))).any(axis=1)
        if other.any():
            row = int(other.argmax())
            when, column = as_timestamps(seconds[row : row + 1])[0].decode(), (known[row] != readings[row]).argmax()
            vdid = table.ids[numbers[row]].replace(BETWEEN, ", lane ")
            what = f"two readings of {vdid} at {when} ({known[row, column]:g}, {readings[row, column]:g})"
            raise SocialxError(table.sheets[0].path, what, "remove one of them")
        again.append(len(places) - len(first))
    shape = (len(moments), len(table.ids), features)
    return Block(as_timestamps(moments), values.reshape(shape[: 3 if features > 1 else 2]))


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
