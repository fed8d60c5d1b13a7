"""Tables with times: METR-LA and PEMS-BAY as published, and those of any city, office or database.

T times, N sensors, t rows of one piece.  sheets.py finds out how a table is written; here its rows become readings, of
a column per sensor or of a row each.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np

from socialx.errors import Argument, Message, SettingsError, SocialxError, sample, shortened
from socialx.files.convert_options import Request
from socialx.files.file_head import GZIP, SEPARATORS, UTF16, FileHead, check_text, read_head, separator_of
from socialx.files.formats.contents import Contents, Format, as_timestamps
from socialx.files.formats.matrices import refuse_numbers, two_lines
from socialx.files.formats.moments import COPIED, MOMENT, PLAIN, TIMES, UNKNOWN, Times, candidates
from socialx.files.formats.sheets import QUANTITY_COLUMNS, TITLE_ROWS, Sheet, cells_of, check_ids, look, typed, written
from socialx.files.formats.text_cells import Piece, pieces
from socialx.files.formats.transposed import refuse_transposed, turned
from socialx.files.formats.walltimes import free_step, goes_back, nearest_step
from socialx.files.hdf5_layout import Block
from socialx.files.locations import match_key, read_locations
from socialx.files.quantities import SPEED
from socialx.progress import note

PUBLISHED_CSV, CSV = "published-csv", "csv"
SHARE = 0.5  # of the free memory, for a table that must be turned as a whole
WANTED = "write a header line, then rows of a time and readings, or a row per time, sensor and reading"


@dataclass(frozen=True)
class Table:
    """Sheets of the same columns in order of time, and what is known of their times and sensors.

    ids: of the columns of readings, or of the column of sensors.  moments: the times of all rows, seconds int64 [T],
    each once in a table that has a row for each reading; None where they have not been read ahead.  by_time: whether
    the rows of such a table are in their order.  told: what else a note must say about the times.
    """

    sheets: tuple[Sheet, ...]
    times: Times
    ids: tuple[str, ...]
    moments: np.ndarray | None = None
    by_time: bool = True
    told: str = ""


def _recognise_published(head: FileHead) -> str | None:
    header, row = two_lines(head)
    if len(header) < 2 or not row or header[0] or not all(isinstance(match_key(name), int) for name in header[1:]):
        return None
    return "an empty header cell, then sensor ids; rows begin with a time" if TIMES[PLAIN].fullmatch(row[0]) else None


def _recognise(head: FileHead) -> str | None:
    heads = [head]
    if head.kind == "folder":
        heads = []
        for path in _files(head.path):
            try:
                heads.append(read_head(path))
            except SocialxError:
                continue
    sheets = [sheet for each in heads for sheet in look(each)]
    several = f", {len(heads)} files" if len(heads) > 1 else f", {len(sheets)} sheets"
    return sheets[0].described() + (several if len(sheets) > 1 else "") if sheets else None


def _files(folder: Path) -> list[Path]:
    """The files of a folder that are not hidden."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError:
        return []


def refuse_table(head: FileHead) -> NoReturn:
    """Raise for a file that is no table with times, with the reason."""
    path, lines = head.path, [line for _, line in head.lines]
    header, row = two_lines(head)
    if not head.first.startswith((GZIP, *UTF16)):  # those are read
        check_text(path, head.first)
    if head.kind in ("text", "zip") and not lines:
        next(pieces(path, encoding=head.encoding), None)  # which says what is wrong with it
    if head.kind in ("parquet", "excel"):
        frame = next(iter(typed(head).values())).head(TITLE_ROWS)
        lines = [" ".join(cells) for cells in zip(*(written(frame[name]) for name in frame), strict=True)]
        lines = [line for line in lines if line.strip()]
    if {"latitude", "lat"} & {name.lower() for name in header}:
        remedy = f"swap {Argument('data')} and {Argument('meta')}"
        raise SocialxError(path, "line 1 is that of a table of positions", remedy)
    if header and MOMENT.fullmatch(header[0]):
        raise SocialxError(path, f"line 1 has a header that begins {','.join(header)[:40]!a}", WANTED)
    if row and MOMENT.fullmatch(row[0]):
        separator = separator_of(lines[0])
        for number, line in head.lines[1:]:
            if (count := len(cells_of(line, separator))) != len(header):
                raise SocialxError(path, f"line {number} has {count} cells, not {len(header)}", "correct it")
    if len(lines) == 1:
        raise SocialxError(path, f"no row after the header ({shortened(lines[0], 60)})", "use a file with rows")
    begin = f"; line 1 is {lines[0][:60]!a}, line 2 {lines[1][:60]!a}" if lines else ""
    raise SocialxError(path, f"no table with a column of times{begin}", WANTED)


def refuse_untimed(head: FileHead) -> None:
    """Raise for a header without rows, and for cells without times; return for what may be no table at all."""
    lines = [line for _, line in head.lines]
    readable = bool(lines) and all(line.replace("\t", " ").isprintable() for line in lines)
    if readable and (len(lines) == 1 or "," not in lines[0]) and any(mark in lines[0] for mark in SEPARATORS):
        refuse_table(head)


def _published(head: FileHead) -> Sheet:
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
    return Sheet(head.path, "text", tuple(names), (0,), columns, None, head.encoding, mark, begin=begin)


def _read(request: Request, *, published: bool = False) -> Contents:
    sheets, aside = _sheets(request, published=published)
    first = sheets[0]
    feature, column = _chosen(first, request)
    table = _table([first, *(sheet.as_in(first) for sheet in sheets[1:])], request)
    notes = []
    if table.told or table.times.form not in COPIED:
        utc = ", and written in UTC" if table.times.zoned else ""
        notes.append(f"{request.data}: times are read as {table.times.form or 'seconds since 1970'}{table.told}{utc}")
    if column is not None and len(first.values) > 1:
        others = ", ".join(first.names[place] for place in first.values if first.names[place] != column)
        notes.append(f"{request.data}: the readings are those of {column}, not of {others}")
    notes += [f"{path}: positions of sensors, set aside" for path in aside]
    return Contents(
        table.ids,
        len(table.ids),
        _rows(table) if column is None else _pivoted(table, column),
        feature,
        notes=(*notes, *(line for sheet in sheets for line in sheet.left_out())),
        paths=tuple(sheet.path for sheet in sheets),
        times=lambda: as_timestamps(_moments(table)),
        timezone="UTC" if table.times.zoned else None,
        missing=0.0 if feature == SPEED else None,
        rounded=table.times.step is not None,
        droppable=column is None and not request.transposed,
    )


def _sheets(request: Request, *, published: bool) -> tuple[list[Sheet], list[Path]]:
    """The sheets of all files, which have the same columns; and the files with positions, which are set aside."""
    paths = [path for each in (request.data, *request.more) for path in (_files(each) if each.is_dir() else [each])]
    sheets: list[Sheet] = []
    aside = []
    for path in paths:
        head = request.head if path == request.data else read_head(path)
        found = [_published(head)] if published else look(head, request)
        if not found and len(paths) > 1 and are_locations(path):
            aside.append(path)
        elif request.transposed:
            sheets.append(turned(head))
        else:
            sheets += found or _refuse(head, request)
    if not sheets:
        raise SocialxError(request.data, "no file in this folder", "name a folder of tables, or a file")
    first = sheets[0]
    columns = [("time_column", request.time_column), ("sensor_column", request.sensor_column)]
    for argument, name in (*columns, *(("drop", name) for name in request.drop)):
        if name is not None and name not in first.names:
            names = sample([each for each in first.names if each], 12)
            raise SettingsError(Argument(argument, name), f"no column of {first.where} ({names})", "name one of them")
    for sheet in sheets[1:]:
        if other := sorted(set(sheet.names) ^ set(first.names)):
            differ = f"other columns than {first.where} ({sample(other)})"
            raise SocialxError(sheet.where, differ, "convert it alone, or give all the same columns")
    return sheets, aside


def _refuse(head: FileHead, request: Request) -> NoReturn:
    """Raise for a file in which no times were found."""
    refuse_transposed(head)
    if request.time_column is not None:
        argument = Argument("time_column", request.time_column)
        raise SettingsError(argument, f"no column of times of {head.path}", "name one")
    refuse_numbers(head)
    refuse_table(head)


def are_locations(path: Path) -> bool:
    """Whether a file is a table of positions."""
    try:
        return bool(read_locations(path))
    except SocialxError:
        return False


def _chosen(sheet: Sheet, request: Request) -> tuple[str, str | None]:
    """What the readings are, and the name of their column where a row has several quantities."""
    if sheet.sensors is None:
        if request.channel is not None:
            raise SettingsError(Argument("channel"), f"{sheet.path} has a column per sensor", "drop it")
        return request.quantity or SPEED, None
    names = [sheet.names[place] for place in sheet.values]
    column = request.channel
    if column is None:
        wanted = QUANTITY_COLUMNS[request.quantity or SPEED]
        named = [name for name in names if wanted.fullmatch(name)] or (names if len(names) == 1 else [])
        if len(named) != 1:
            found = f"several columns of readings ({', '.join(names)})"
            raise SocialxError(sheet.path, found, f"{Argument('channel', names[0])} chooses one")
        column = named[0]
    if column not in names:
        listed = f"for example {Argument('channel', names[0])}, of {', '.join(names)}"
        raise SettingsError(Argument("channel", column), "no column of readings", listed)
    found_as = (quantity for quantity, form in QUANTITY_COLUMNS.items() if form.fullmatch(column))
    return request.quantity or next(found_as, SPEED), column


# ---- times


def _table(sheets: list[Sheet], request: Request) -> Table:
    """The sheets with what a walk over their times tells; there is none where one sheet tells all by its first row."""
    first = sheets[0]
    ids = () if first.sensors is not None else tuple(first.names[place] for place in first.values)
    if ids:
        check_ids(first.path, ids)
    ways = candidates(first.first or "2012-03-01 00:00:00")
    if request.time_format is not None:
        ways = [Times(request.time_format, zoned="%z" in request.time_format)]
    if not ways:
        remedy = f"say how they are written: {Argument('time_format', '%d/%m/%Y %H:%M')}"
        raise SocialxError(first.where, f"its first time is {first.first[:40]!a}, of no known form", remedy)
    if ids and len(sheets) == len(ways) == 1:
        return Table((first,), ways[0], ids)
    walked = _walk(sheets, ways)
    times = _one_way(first, walked)
    moments, told = walked.moments[times], ", which the order of its rows tells" if len(ways) > 1 else ""
    if request.round_times and not ids:
        step = request.step_s or free_step(np.concatenate(walked.one_sensor[times]))
        times, moments = replace(times, step=step), [nearest_step(each, step) for each in moments]
        moments = [each[np.append(True, np.diff(each) != 0)] for each in moments]
        told += f", each sensor's rounded to whole {step // 60} min"
    order = sorted(range(len(sheets)), key=lambda place: int(moments[place][0]))
    for before, after in pairwise(order):
        if moments[after].min() <= moments[before].max():
            found = f"its times begin before those of {sheets[before].where} end"
            raise SocialxError(sheets[after].where, found, "remove the rows that both have")
    ordered, every = tuple(sheets[place] for place in order), np.concatenate([moments[place] for place in order])
    if ids:
        return Table(ordered, times, ids, every, told=told)
    if "" in walked.sensors:
        raise SocialxError(first.path, f"rows without a sensor in {first.names[first.sensors or 0]!r}", "remove them")
    by_time = bool((np.diff(every) > 0).all())
    return Table(ordered, times, tuple(walked.sensors), np.unique(every), by_time, told)


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
        columns = sheet.times if sheet.sensors is None else (*sheet.times, sheet.sensors)
        with closing(sheet.rows(columns)) as rows:
            for piece in rows:
                texts = _times_of(sheet, piece)
                names = [] if sheet.sensors is None else piece.texts[-1]
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
    return columns[0] if len(columns) == 1 else [" ".join(cells) for cells in zip(*columns, strict=True)]


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
    wide = table.sheets[0].sensors is None and table.sheets[0].first  # but for those as published
    if wide and 3 * len(np.unique(moments)) <= 2 * len(moments):
        found = f"{len(moments):,} rows of {len(np.unique(moments)):,} times, as of a table with a row per reading"
        remedy = f"say which column names the sensor: {Argument('sensor_column')}"
        raise SocialxError(table.sheets[0].where, found, remedy)
    return moments


# ---- readings


def _rows(table: Table) -> Generator[Block, None, None]:
    """The rows of a table with a column per sensor."""
    last, forward = np.empty(0, "S19"), True
    for sheet in table.sheets:
        with closing(sheet.rows(sheet.times, sheet.values)) as rows:
            for piece in rows:
                texts = _times_of(sheet, piece)
                stamps = table.times.stamps(texts)
                _refuse_times(sheet, piece, texts, stamps == b"")
                if forward and goes_back(np.concatenate([last, stamps])):
                    _moments(table)
                    forward = False
                yield Block(stamps, piece.numbers)
                last = stamps[-1:]


Cells = tuple[np.ndarray, np.ndarray, np.ndarray]  # seconds, number of the sensor and reading, [t] each


def _cells(table: Table, column: str) -> Iterator[Cells]:
    """The rows of a table that has one for each reading."""
    place = {name: number for number, name in enumerate(table.ids)}
    for sheet in table.sheets:
        value = next(number for number in sheet.values if sheet.names[number] == column)
        with closing(sheet.rows((*sheet.times, sheet.sensors or 0), (value,))) as rows:
            for piece in rows:
                texts = _times_of(sheet, piece)
                seconds = table.times.seconds(texts)
                _refuse_times(sheet, piece, texts, seconds == UNKNOWN)
                yield seconds, np.array([place[name] for name in piece.texts[-1]], np.int64), piece.numbers[:, 0]


def _pivoted(table: Table, column: str) -> Generator[Block, None, None]:
    """A row per time of a table with a row per reading: as it is read where it is in order of time, else as a whole."""
    cells, moments = _cells(table, column), _moments(table)
    again: list[int] = []
    if not table.by_time:
        from socialx.environment import free_memory  # which loads torch: few tables need it

        need, free = 4 * len(moments) * len(table.ids), free_memory()
        if free is not None and need > SHARE * free:
            found = f"rows that are not in order of time, and {need / 2**30:.1f} GiB as a whole"
            raise SocialxError(table.sheets[0].path, found, "sort its rows by time")
        yield _turned(table, cells, moments, again)
        cells = iter(())
    waiting: list[Cells] = []
    for seconds, numbers, readings in cells:
        waiting.append((seconds, numbers, readings))
        if seconds[-1] == waiting[0][0][0]:
            continue
        joined: Cells = tuple(np.concatenate(each) for each in zip(*waiting, strict=True))  # type: ignore[assignment]
        ready = joined[0] < seconds[-1]  # the last time may go on in the next piece
        yield _turned(table, [tuple(each[ready] for each in joined)], np.unique(joined[0][ready]), again)
        waiting = [tuple(each[~ready] for each in joined)]
    if waiting:
        yield _turned(table, waiting, np.unique(np.concatenate([each[0] for each in waiting])), again)
    if sum(again):
        note(Message(table.sheets[0].path, f"{sum(again):,} rows stand twice with the same reading", "read once"))


def _turned(table: Table, cells: Iterable[Cells], moments: np.ndarray, again: list[int]) -> Block:
    """Readings of these times as rows [t,N], NaN where there is none; refuses two of one sensor and time.

    again: gets the number of rows that stand twice with the same reading.
    """
    values = np.full((len(moments), len(table.ids)), np.nan, np.float32)
    taken = np.zeros(values.shape, bool)
    for seconds, numbers, readings in cells:
        places = np.searchsorted(moments, seconds) * len(table.ids) + numbers
        found, first = np.unique(places, return_index=True)
        first = first[~taken.reshape(-1)[found]]
        values.reshape(-1)[places[first]] = readings[first]
        taken.reshape(-1)[found] = True
        known = values.reshape(-1)[places]
        other = (known != readings) & ~(np.isnan(known) & np.isnan(readings))
        if other.any():
            row = int(other.argmax())
            when = as_timestamps(seconds[row : row + 1])[0].decode()
            what = f"two readings of {table.ids[numbers[row]]} at {when} ({known[row]:g}, {readings[row]:g})"
            raise SocialxError(table.sheets[0].path, what, "remove one of them")
        again.append(len(places) - len(first))
    return Block(as_timestamps(moments), values)


TABLE = frozenset({"channel", "time_format", "quantity", "more", "transposed", "time_column", "sensor_column", "drop"})
FORMATS = (
    Format(
        PUBLISHED_CSV,
        "METR-LA.csv and PEMS-BAY.csv as published",
        _recognise_published,
        partial(_read, published=True),
        takes=frozenset({"quantity"}),
    ),
    Format(CSV, "a table of any network, a column per sensor or a row per reading", _recognise, _read, takes=TABLE),
)
