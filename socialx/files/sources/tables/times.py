"""The times of tables: how they are written, which sensors they have, and how several tables are joined.

T times, N sensors, t rows of one piece.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from socialx.core.errors import Argument, SettingsError, SocialxError, sample
from socialx.files.sources.contents import start_seconds
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables.clock_changes import free_step, is_put_back, nearest_step, repeated_hour
from socialx.files.sources.tables.columns import BETWEEN, CALENDAR
from socialx.files.sources.tables.roles import COVERED
from socialx.files.sources.tables.sheets import Sheet, check_ids, one_text
from socialx.files.sources.tables.text_cells import NUMBER, Piece, Texts
from socialx.files.sources.tables.time_texts import PLAIN, UNKNOWN, Times, candidates
from socialx.files.sources.unknown import LATITUDE, refuse_undated
from socialx.files.store.ids import match_key

# Ends of the names of files.
SUFFIXES = re.compile(r"(?:\.(?:csv|tsv|txt|dat|gz|zip|parquet|xls[xm]|jsonl?|ndjson))+$", re.IGNORECASE)
TOTAL = re.compile(r"all(?:e|[ _-]?lanes)?|total|sum(?:me)?|gesamt|todos|tous|totaal", re.IGNORECASE)  # of lanes
AND = "-"  # between the names of which a sensor's is made
FEW = 10  # sensors and times, from which on it is looked at how many of their pairs have a row
SCATTERED = 0.1  # of these pairs: a table has rows for more


@dataclass(frozen=True)
class Table:
    """Sheets of the same columns in order of time, and what is known of their times and sensors.

    ids: of the columns of readings, or of the column of sensors.  moments: the times of all rows, seconds int64 [T],
    each once in a table that has a row for each reading.  in_turn: whether the sheets follow one another.  told: what
    else a note must say about the times; joined: and about the sheets, where they do not follow one another.  by_file:
    each sheet is one sensor.  values: the columns of its quantities, as they are numbered in the first file that was
    named.
    """

    sheets: tuple[Sheet, ...]
    times: Times
    ids: tuple[str, ...]
    moments: np.ndarray
    in_turn: bool = True
    told: str = ""
    joined: str = ""
    by_file: bool = False
    values: tuple[int, ...] = ()


def table_of(sheets: list[Sheet], request: ConvertOptions, chosen: list[int]) -> Table:
    """The sheets with what a walk over their times tells.

    chosen: the columns of readings, where a row has several quantities.
    """
    first = sheets[0]
    wide = not first.sensors
    sheets, alike = _aligned(sheets, chosen)
    ways = _ways(first, request)
    walked = _scan_times(sheets, ways)
    times = _one_way(first, walked)
    moments, told = walked.moments[times], ", which the order of its rows tells" if len(ways) > 1 else ""
    order = sorted(range(len(sheets)), key=lambda place: int(moments[place][0]))
    in_turn = [moments[place] for place in order]
    gathered = wide and (not alike or _is_joined(in_turn))
    if request.round_times and (gathered or not wide):
        step = request.step_s or free_step(np.concatenate(walked.one_sensor[times] or moments[:1]))
        times, moments = replace(times, step=step), [_once(nearest_step(each, step)) for each in moments]
        told += f", each sensor's rounded to whole {step // 60} min"
    ordered, every = tuple(sheets[place] for place in order), np.concatenate([moments[place] for place in order])
    if gathered:
        for place in order:
            if twice := repeated_hour(moments[place], sheets[place].where):
                raise twice[1]
        every = np.unique(every)
    if wide and chosen:
        names, joined = _sensors_of_files(ordered, request.known_ids, joined=gathered)
        ordered = tuple(replace(sheet, sensor=name) for sheet, name in zip(ordered, names, strict=True))
        ids = tuple(dict.fromkeys(names))
        return Table(ordered, times, ids, every, not gathered, told, joined, True, tuple(chosen))
    if gathered:
        return _gathered(ordered, times, every, told)
    if wide:
        return Table(ordered, times, first.ids(), every, told=told)
    every = np.unique(every)
    _refuse_scattered(first, walked, len(every), request)
    return Table(ordered, times, tuple(walked.sensors), every, told=told, values=first.values)


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


def _refuse_positions(sheet: Sheet) -> None:
    """Raise for a table with a column per sensor that has one of positions among them."""
    if at := next((name for name in sheet.ids() if name.lower() in LATITUDE), None):
        raise SocialxError(
            sheet.where, f"its column {at} is that of positions", f"leave it out: {Argument('drop', at)}"
        )


def _ways(first: Sheet, request: ConvertOptions) -> list[Times]:
    """How the times may be written, by the first of them."""
    if form := request.time_format:
        if len(first.times) > 1 and not re.search("%[HIcX]", form):  # of the dates alone
            clock = first.first.rpartition(" ")[2]
            form += " " + ":".join(("%H", "%M", "%S")[: 1 + clock.count(":")])
        return [Times.of(form)]
    if request.first_time is not None:
        if not NUMBER.fullmatch(first.first):
            raise SettingsError(
                Argument("first_time", request.first_time), f"{first.where} has dates ({first.first})", "drop it"
            )
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
class TimeScan:
    """What the times of all sheets tell, for each way to read them.

    moments: seconds of the rows of each sheet, int64 [T]; of a table with a row for each reading without those of the
    row above.  one_sensor: those of the first sensor, in pieces.  sensors: the names of all, in order.
    """

    moments: dict[Times, list[np.ndarray]]
    one_sensor: dict[Times, list[np.ndarray]]
    sensors: dict[str, None]
    rows: int = 0


def _scan_times(sheets: list[Sheet], ways: list[Times]) -> TimeScan:
    """The times of all rows, and the sensors where they are cells; a way in which one is no time is given up."""
    walk = TimeScan({way: [] for way in ways}, {way: [] for way in ways}, {})
    for sheet in sheets:
        parts: dict[Times, list[np.ndarray]] = {way: [] for way in walk.moments}
        columns = (*sheet.times, *sheet.named) if sheet.sensors else sheet.times
        with closing(sheet.rows(columns)) as rows:
            for piece in rows:
                texts = times_of(sheet, piece)
                names = names_of(sheet, piece) if sheet.sensors else None
                walk.rows += len(texts.codes)
                walk.sensors.update(dict.fromkeys(names.words if names else ()))
                for way in list(walk.moments):
                    seconds = way.seconds(texts)
                    if (seconds == UNKNOWN).any():
                        if len(walk.moments) == 1:
                            refuse_times(sheet, piece, texts, seconds == UNKNOWN)
                        del walk.moments[way]
                        continue
                    if names:
                        one = next(iter(walk.sensors))
                        code = names.words.index(one) if one in names.words else -1
                        walk.one_sensor[way].append(seconds[names.codes == code])
                        seconds = _once(seconds)
                    parts[way].append(seconds)
        for way in walk.moments:
            if not parts[way]:
                raise SocialxError(sheet.path, "no row after line 1", "use a file with rows")
            seconds = np.concatenate(parts[way])  # a time may go on in the next piece
            walk.moments[way].append(_once(seconds) if sheet.sensors else seconds)
    _refuse_names(sheets[0], walk)
    return walk


def _once(seconds: np.ndarray) -> np.ndarray:
    """Times without those of the row above, int64 [t]."""
    return seconds[np.append(True, np.diff(seconds) != 0)]


def _refuse_names(first: Sheet, walk: TimeScan) -> None:
    """Raise for rows without a sensor, and for those of all lanes beside those of each lane."""
    part = 0 if first.lanes is None else 2
    totals = [name for name in walk.sensors if TOTAL.fullmatch(name.partition(BETWEEN)[part])]
    if totals and first.lanes is None and len(walk.sensors) > 1:
        found = f"rows of {sample(totals)} beside those of {len(walk.sensors) - len(totals)} sensors"
        raise SocialxError(first.path, found, "remove them, or give a sensor of this name another one")
    if totals and first.lanes is not None:
        what = f"rows of {sample([name.replace(BETWEEN, ', lane ') for name in totals])}, which are no lane"
        raise SocialxError(first.path, what, f"remove them, or all others and the column {first.names[first.lanes]}")
    if odd := next((name for name in walk.sensors if not name.partition(BETWEEN)[2].isprintable()), None):
        sensor, _, lane = odd.partition(BETWEEN)
        raise SocialxError(first.path, f"the lane {lane[:40]!a} of {sensor[:40]!a} is no plain text", "correct it")
    if any(name.partition(BETWEEN)[0] == "" for name in walk.sensors):
        named = first.names[first.sensors[0]] or f"column {first.sensors[0] + 1}"
        raise SocialxError(first.path, f"rows without a sensor in {named!r}", "remove them")


def _refuse_scattered(first: Sheet, walk: TimeScan, count: int, request: ConvertOptions) -> None:
    """Raise where a column cannot be that of the sensors: few of them have a row at most of ``count`` times."""
    share = walk.rows / max(1, count * len(walk.sensors))
    if request.sensor_column or request.resample or len(walk.sensors) < FEW or count < FEW:
        return
    if share < SCATTERED or (len(walk.sensors) > count and share < COVERED):
        name = " and ".join(first.names[place] for place in first.sensors)
        pairs = f"{len(walk.sensors):,} sensors at {count:,} times"
        found = f"its column {name!r} would name {pairs}, and {share:.1%} of these pairs have a row"
        taken = {*first.times, *first.named, *first.values}
        others = [name for place, name in enumerate(first.names) if name and place not in taken]
        anyway = " ".join(str(Argument("sensor_column", first.names[place])) for place in first.sensors)
        either = f", or {Argument('sensor_column', others[0])} if that does" if others else ""
        raise SocialxError(first.where, found, f"{anyway} if it names them{either}")


def _one_way(sheet: Sheet, walk: TimeScan) -> Times:
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
        named = "".join(f"{Argument('time_column', sheet.names[at])} " for at in sheet.times if len(sheet.times) > 1)
        either = " or ".join(f"{named}{Argument('time_format', way.form)}" for way in good)
        raise SocialxError(sheet.path, found, f"say which: {either}")
    return good[0]


def times_of(sheet: Sheet, piece: Piece) -> Texts:
    """The times of a piece as they are written; of dates and times of day the two with a space between."""
    columns = piece.texts[: len(sheet.times)]
    for place, texts in zip(sheet.times, columns, strict=True):
        if (row := texts.first("")) is not None:
            missing = f"{piece.place(row)} has no {sheet.names[place] or 'time'!r}"
            raise SocialxError(sheet.where, missing, "correct it")
    texts = Texts.joined(columns, one_text)
    return Texts([f"{sheet.day} {word}" for word in texts.words], texts.codes) if sheet.day else texts


def names_of(sheet: Sheet, piece: Piece) -> Texts:
    """The sensor of each row of a piece, with its lane where there is a column of lanes."""
    columns = piece.texts[len(sheet.times) :]
    named = Texts.joined(columns[: len(sheet.sensors)], AND.join)
    return named if sheet.lanes is None else Texts.joined([named, columns[-1]], BETWEEN.join)


def refuse_times(sheet: Sheet, piece: Piece, texts: Texts, wrong: np.ndarray) -> None:
    """Raise for the first of some rows whose texts are no times; return where there is none."""
    if wrong.any():
        row = int(wrong.argmax())
        like = f"its first one, {sheet.first!r}" if sheet.first else PLAIN
        found = f"{piece.place(row)} has the time {texts.words[texts.codes[row]][:40]!a}, not written like {like}"
        example = Argument("time_format", "%d/%m/%Y %H:%M")
        raise SocialxError(sheet.where, found, f"correct it, or say how all are written: {example}")


def refuse_often(table: Table) -> None:
    """Raise for a table with a column per sensor in which most times stand often."""
    first, times = table.sheets[0], len(np.unique(table.moments))
    if not first.sensors and first.first and 3 * times <= 2 * len(table.moments):  # but for those as published
        found = f"{len(table.moments):,} rows of {times:,} times, as of a table with a row per reading"
        others = [str(Argument("sensor_column", name)) for name in first.dropped if not CALENDAR.fullmatch(name)]
        remedy = f"say which column names the sensor: {' or '.join(others[:2])}"
        wholly = "write the whole time into one column, or add a column that names the sensor"
        raise SocialxError(first.where, found, remedy if others else wholly)
