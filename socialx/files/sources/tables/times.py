"""Parse table times, list the sensors, and join several tables.

T times, N sensors, t rows per piece.
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
from socialx.files.sources.tables.sheets import Sheet, check_ids, join_time
from socialx.files.sources.tables.text_cells import NUMBER, Piece, Texts
from socialx.files.sources.tables.time_texts import PLAIN, UNKNOWN, Times, candidates
from socialx.files.sources.unknown import LATITUDE, refuse_undated
from socialx.files.store.ids import match_key

# Ends of the names of files.
SUFFIXES = re.compile(r"(?:\.(?:csv|tsv|txt|dat|gz|zip|parquet|xls[xm]|jsonl?|ndjson))+$", re.IGNORECASE)
TOTAL = re.compile(r"all(?:e|[ _-]?lanes)?|total|sum(?:me)?|gesamt|todos|tous|totaal", re.IGNORECASE)  # of lanes
AND = "-"  # between the names of which a sensor's is made
FEW = 10  # sensors and times, from which on the share of pairs with a row is checked
SCATTERED = 0.1  # fraction of pairs with a row, at least


@dataclass(frozen=True)
class Table:
    """Sheets with the same columns ordered by time, and the times and sensors from a first pass.

    times: the time format. ids: sensor names, from the observation columns or the sensor column. moments: all row
    times, seconds int64 [T], distinct for a row per observation. in_turn: each sheet begins after the sheet before
    ends. told: an addition to the note on times; joined: the note on overlapping sheets. by_file: each sheet is one
    sensor. values: the quantity columns, numbered as in the first sheet.
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


def join_sheets(sheets: list[Sheet], request: ConvertOptions, chosen: list[int]) -> Table:
    """Join the sheets to one table after a pass over all times, which settles time format, sensors and order. chosen:
    the observation columns, where a row has several quantities.
    """
    first = sheets[0]
    wide = not first.sensors
    sheets, alike = _align_columns(sheets, chosen)
    ways = _time_formats(first, request)
    scan = _scan_times(sheets, ways)
    times = _choose_format(first, scan)
    moments, told = scan.moments[times], ", which the order of its rows tells" if len(ways) > 1 else ""
    order = sorted(range(len(sheets)), key=lambda index: int(moments[index][0]))
    in_turn = [moments[index] for index in order]
    gathered = wide and (not alike or _is_joined(in_turn))
    if request.round_times and (gathered or not wide):
        step = request.step_s or free_step(np.concatenate(scan.one_sensor[times] or moments[:1]))
        times, moments = replace(times, step=step), [_run_starts(nearest_step(part, step)) for part in moments]
        told += f", each sensor's rounded to whole {step // 60} min"
    ordered, every = tuple(sheets[index] for index in order), np.concatenate([moments[index] for index in order])
    if gathered:
        for index in order:
            if twice := repeated_hour(moments[index], sheets[index].where):
                raise twice[1]
        every = np.unique(every)
    if wide and chosen:
        names, joined = _sensors_of_files(ordered, request.known_ids, joined=gathered)
        ordered = tuple(replace(sheet, sensor=name) for sheet, name in zip(ordered, names, strict=True))
        ids = tuple(dict.fromkeys(names))
        return Table(ordered, times, ids, every, not gathered, told, joined, True, tuple(chosen))
    if gathered:
        return _join_by_time(ordered, times, every, told)
    if wide:
        return Table(ordered, times, first.ids(), every, told=told)
    every = np.unique(every)
    _refuse_scattered(first, scan, len(every), request)
    return Table(ordered, times, tuple(scan.sensors), every, told=told, values=first.values)


def _align_columns(sheets: list[Sheet], chosen: list[int]) -> tuple[list[Sheet], bool]:
    """Return the sheets with the columns ordered as in the first sheet, and whether all sheets share their columns.
    Single-sensor sheets keep the columns ``chosen`` by the user. Raises for duplicated sensors and location columns.
    """
    first = sheets[0]
    wide = not first.sensors
    for sheet in sheets if wide else ():
        check_ids(sheet.path, sheet.ids())
        _refuse_positions(sheet)
    alike = all(set(sheet.names) == set(first.names) for sheet in sheets)
    sheets = [first, *(sheet.reordered_like(first) for sheet in sheets[1:])] if alike else sheets
    if chosen and wide:
        read = [first.values.index(column) for column in chosen]
        sheets = [replace(sheet, values=tuple(sheet.values[index] for index in read)) for sheet in sheets]
    return sheets, alike


def _refuse_positions(sheet: Sheet) -> None:
    """Raise for a table with a location column among a column per sensor."""
    if at := next((name for name in sheet.ids() if name.lower() in LATITUDE), None):
        raise SocialxError(sheet.where, f"column {at} holds locations", f"leave the column out: {Argument('drop', at)}")


def _time_formats(first: Sheet, request: ConvertOptions) -> list[Times]:
    """Return the formats that the first time allows: the user's, or several for day/month. Raises for no format."""
    if form := request.time_format:
        if len(first.times) > 1 and not re.search("%[HIcX]", form):  # of the dates alone
            clock = first.first.rpartition(" ")[2]
            form += " " + ":".join(("%H", "%M", "%S")[: 1 + clock.count(":")])
        return [Times.from_format(form)]
    if request.first_time is not None:
        if not NUMBER.fullmatch(first.first):
            text = f"{Argument('first_time', request.first_time)} is for rows without dates, as of {first.first}"
            raise SettingsError(first.where, text, f"drop {Argument('first_time')}")
        return [Times(None, zoned=False, start=start_seconds(request))]
    ways = candidates(first.first or "2012-03-01 00:00:00")
    refuse_undated(first.where, [first.first])
    if not ways:
        remedy = f"say how they are written: {Argument('time_format', '%d/%m/%Y %H:%M')}"
        raise SocialxError(first.where, f"the first time {first.first[:40]!a} has an unknown form", remedy)
    return ways


def _is_joined(moments: list[np.ndarray]) -> bool:
    """Return whether tables overlap in time; moments: times int64 [T] by table, ordered by first time. Tables that only
    repeat the hour at the end of daylight saving time do not overlap.
    """
    ends = np.maximum.accumulate([seconds.max() for seconds in moments])
    overlap = any(seconds.min() <= end for seconds, end in zip(moments[1:], ends[:-1], strict=True))
    return overlap and not is_put_back(np.concatenate(moments))


def _sensors_of_files(sheets: tuple[Sheet, ...], file_ids: tuple[str, ...], *, joined: bool) -> tuple[list[str], str]:
    """Return the sensor name per sheet, and a note. The name comes from the sheet, the file or the folder. Unless
    ``joined``, sheets follow one another in time and are one sensor, named like the column. file_ids: sensor ids in the
    file to extend, () for convert.
    """
    names = [sheet.sheet or SUFFIXES.sub("", sheet.path.name) for sheet in sheets]
    if not joined:
        name = file_ids[0] if len(file_ids) == 1 else names[0] if len(names) == 1 else sheets[0].ids()[0]
        whose = f"{'that of the only sensor' if len(file_ids) == 1 else 'a sensor with the name of the table'} ({name})"
        follow = f"its tables follow one another in time, so they are those of one sensor ({name})"
        return [name] * len(sheets), f"the table is {whose}" if len(sheets) == 1 else follow
    folders = [sheet.path.parent.name for sheet in sheets]
    names = folders if len({*names}) < len(sheets) == len({*folders}) else names
    return names, f"each of {len(sheets)} tables is a sensor with the name of the table ({sample(names)})"


def _join_by_time(sheets: tuple[Sheet, ...], times: Times, moments: np.ndarray, told: str) -> Table:
    """Join sheets that overlap in time or differ in sensors; ``moments``: all times; ``told``: a part of the note."""
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
    """The times and sensors in all sheets, for each possible time format.

    moments: row seconds per sheet, int64 [T], without consecutive repeats for a row per observation. one_sensor:
    seconds for the first sensor, by piece. sensors: all names, in order. rows: the number of all rows.
    """

    moments: dict[Times, list[np.ndarray]]
    one_sensor: dict[Times, list[np.ndarray]]
    sensors: dict[str, None]
    rows: int = 0


def _scan_times(sheets: list[Sheet], ways: list[Times]) -> TimeScan:
    """Read all times in each format of ``ways``, and all sensor names; a format that misfits a text drops out."""
    scan = TimeScan({way: [] for way in ways}, {way: [] for way in ways}, {})
    for sheet in sheets:
        parts: dict[Times, list[np.ndarray]] = {way: [] for way in scan.moments}
        columns = (*sheet.times, *sheet.key_columns) if sheet.sensors else sheet.times
        with closing(sheet.rows(columns)) as rows:
            for piece in rows:
                texts = row_times(sheet, piece)
                names = row_sensors(sheet, piece) if sheet.sensors else None
                scan.rows += len(texts.codes)
                scan.sensors.update(dict.fromkeys(names.words if names else ()))
                for way in list(scan.moments):
                    seconds = way.seconds(texts)
                    if (seconds == UNKNOWN).any():
                        if len(scan.moments) == 1:
                            refuse_times(sheet, piece, texts, seconds == UNKNOWN)
                        del scan.moments[way]
                        continue
                    if names:
                        one = next(iter(scan.sensors))
                        code = names.words.index(one) if one in names.words else -1
                        scan.one_sensor[way].append(seconds[names.codes == code])
                        seconds = _run_starts(seconds)
                    parts[way].append(seconds)
        for way in scan.moments:
            if not parts[way]:
                raise SocialxError(sheet.path, "the file ends after line 1", "use a file with rows")
            seconds = np.concatenate(parts[way])  # a time may go on in the next piece
            scan.moments[way].append(_run_starts(seconds) if sheet.sensors else seconds)
    _refuse_names(sheets[0], scan)
    return scan


def _run_starts(seconds: np.ndarray) -> np.ndarray:
    """Return the times int64 [t] without those equal to the time in the row above."""
    return seconds[np.append(True, np.diff(seconds) != 0)]


def _refuse_names(first: Sheet, scan: TimeScan) -> None:
    """Raise for empty names in ``scan``, odd lanes, and totals among sensors or lanes; ``first``: the first sheet."""
    part = 0 if first.lanes is None else 2
    totals = [name for name in scan.sensors if TOTAL.fullmatch(name.partition(BETWEEN)[part])]
    if totals and first.lanes is None and len(scan.sensors) > 1:
        problem = f"rows of {sample(totals)} stand beside those of {len(scan.sensors) - len(totals)} sensors"
        raise SocialxError(first.path, problem, "remove them, or give a sensor of this name another one")
    if totals and first.lanes is not None:
        problem = f"rows of {sample([name.replace(BETWEEN, ', lane ') for name in totals])} are of no single lane"
        raise SocialxError(first.path, problem, f"remove them, or all others and the column {first.names[first.lanes]}")
    if odd := next((name for name in scan.sensors if not name.partition(BETWEEN)[2].isprintable()), None):
        sensor, _, lane = odd.partition(BETWEEN)
        raise SocialxError(first.path, f"the lane {lane[:40]!a} of {sensor[:40]!a} is not plain text", "correct it")
    if any(name.partition(BETWEEN)[0] == "" for name in scan.sensors):
        named = first.names[first.sensors[0]] or f"column {first.sensors[0] + 1}"
        raise SocialxError(first.path, f"some rows have no sensor in {named!r}", "remove them")


def _refuse_scattered(first: Sheet, scan: TimeScan, count: int, request: ConvertOptions) -> None:
    """Raise where few (sensor, time) pairs have a row, so that the column is unlikely to name sensors, unless the user
    names the column or resamples. count: the number of distinct times.
    """
    share = scan.rows / max(1, count * len(scan.sensors))
    if request.sensor_column or request.resample or len(scan.sensors) < FEW or count < FEW:
        return
    if share < SCATTERED or (len(scan.sensors) > count and share < COVERED):
        name = " and ".join(first.names[column] for column in first.sensors)
        pairs = f"{len(scan.sensors):,} sensors at {count:,} times"
        problem = f"column {name!r} would name {pairs}, and {share:.1%} of these pairs have a row"
        taken = {*first.times, *first.key_columns, *first.values}
        others = [name for column, name in enumerate(first.names) if name and column not in taken]
        anyway = " ".join(str(Argument("sensor_column", first.names[column])) for column in first.sensors)
        either = f", or {Argument('sensor_column', others[0])} if that does" if others else ""
        raise SocialxError(first.where, problem, f"{anyway} if it names them{either}")


def _choose_format(sheet: Sheet, scan: TimeScan) -> Times:
    """Return the only time format in ``scan`` that fits; raise where several fit. Day and month differ by a number
    above 12, else by increasing row order, and by the steps: the wrong format jumps by months.
    """
    good = list(scan.moments)
    if len(good) > 1:
        steps = {way: [np.diff(seconds) for seconds in scan.moments[way]] for way in good}
        increasing = [way for way in good if all((seconds >= 0).all() for seconds in steps[way])]
        steady = [way for way in increasing if all(len({*part[part != 0].tolist()}) == 1 for part in steps[way])]
        good = steady if len(steady) == 1 else increasing if len(increasing) == 1 else good
    if len(good) > 1:
        problem = f"times like {sheet.first!r} may be day/month or month/day"
        named = "".join(f"{Argument('time_column', sheet.names[at])} " for at in sheet.times if len(sheet.times) > 1)
        either = " or ".join(f"{named}{Argument('time_format', way.form)}" for way in good)
        raise SocialxError(sheet.path, problem, f"say which: {either}")
    return good[0]


def row_times(sheet: Sheet, piece: Piece) -> Texts:
    """Return the time texts in a piece, whose first texts are the time columns; a space joins date and clock time."""
    columns = piece.texts[: len(sheet.times)]
    for column, texts in zip(sheet.times, columns, strict=True):
        if (row := texts.first("")) is not None:
            missing = f"{piece.row_name(row)} has no {sheet.names[column] or 'time'!r}"
            raise SocialxError(sheet.where, missing, "fill the cell")
    texts = Texts.join_columns(columns, join_time)
    return Texts([f"{sheet.day} {word}" for word in texts.words], texts.codes) if sheet.day else texts


def row_sensors(sheet: Sheet, piece: Piece) -> Texts:
    """Return the sensor name in each row, or sensor, separator BETWEEN and lane if ``sheet`` has a lane column."""
    columns = piece.texts[len(sheet.times) :]
    named = Texts.join_columns(columns[: len(sheet.sensors)], AND.join)
    return named if sheet.lanes is None else Texts.join_columns([named, columns[-1]], BETWEEN.join)


def refuse_times(sheet: Sheet, piece: Piece, texts: Texts, wrong: np.ndarray) -> None:
    """Raise for the first row marked in ``wrong``, bool [t]; return where all rows are right."""
    if wrong.any():
        row = int(wrong.argmax())
        like = f"its first one, {sheet.first!r}" if sheet.first else PLAIN
        problem = f"{piece.row_name(row)} has the time {texts.words[texts.codes[row]][:40]!a}, not written like {like}"
        example = Argument("time_format", "%d/%m/%Y %H:%M")
        raise SocialxError(sheet.where, problem, f"correct the time, or say how all are written: {example}")


def refuse_repeated_times(table: Table) -> None:
    """Raise for a table with a column per sensor where a third of the row times, or more, are repeated."""
    first, times = table.sheets[0], len(np.unique(table.moments))
    if not first.sensors and first.first and 3 * times <= 2 * len(table.moments):  # except published tables
        problem = f"{len(table.moments):,} rows hold {times:,} times, as of a table with a row per observation"
        others = [str(Argument("sensor_column", name)) for name in first.dropped if not CALENDAR.fullmatch(name)]
        remedy = f"say which column names the sensor: {' or '.join(others[:2])}"
        wholly = "write the whole time into one column, or add a column that names the sensor"
        raise SocialxError(first.where, problem, remedy if others else wholly)
