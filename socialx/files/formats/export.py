"""Tables of a city, an office or a database: any separator, any order of the date, a column per sensor or a row each.

T times, N sensors, t rows of one block.  sheets.py reads the cells; here they become times, sensors and readings.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from socialx.errors import Argument, SettingsError, SocialxError, sample
from socialx.files.formats.contents import Contents, Format, Request, as_timestamps
from socialx.files.formats.sheets import CLOCK, DATE, EPOCH, Sheet, look
from socialx.files.formats.tables import TIMES
from socialx.files.formats.transposed import refuse_transposed, turned
from socialx.files.locations import repeated
from socialx.files.store import SPEED, Block

if TYPE_CHECKING:
    import pandas as pd

EXPORT = "export"
UNKNOWN = np.iinfo(np.int64).min  # of a text that is no time
SHARE = 0.5  # of the free memory, for a table that must be turned as a whole
# Names of a column of each quantity in a table that has a row for each reading.
QUANTITIES = {
    SPEED: re.compile(r"(?:.*speed.*|v|velocity|kmh|km/h|mph|geschwindigkeit)", re.IGNORECASE),
    "flow": re.compile(r"(?:.*(?:flow|volume|count|intensity).*|q|veh|vehicles)", re.IGNORECASE),
    "occupancy": re.compile(r"(?:.*occup.*|occ|o)", re.IGNORECASE),
}


@dataclass(frozen=True)
class Times:
    """How times are written: a format of strptime, or None for seconds or milliseconds since 1970.

    zoned: they carry an offset from UTC, or count from 1970; they are then written in UTC.
    """

    form: str | None
    zoned: bool

    def seconds(self, texts: pd.Series[str]) -> np.ndarray:
        """Texts [t] -> seconds since 1970 int64 [t]; of times without an offset as if they were UTC."""
        import pandas as pd

        if self.form is None:
            numbers = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64)
            numbers = np.where(numbers >= 1e11, numbers / 1000, numbers)
            return np.where(np.isfinite(numbers), np.rint(np.nan_to_num(numbers)), UNKNOWN).astype(np.int64)
        if self.zoned:
            texts = texts.str.replace(r" ?UTC$", "Z", regex=True)
        found = pd.to_datetime(texts, format=self.form, utc=self.zoned, errors="coerce")
        if self.zoned:
            found = found.dt.tz_localize(None)
        moments = found.to_numpy("datetime64[ms]")
        rounded = np.rint(moments.astype(np.int64) / 1000)
        return np.where(np.isnat(moments), UNKNOWN, rounded).astype(np.int64)


def candidates(text: str) -> list[Times]:
    """The ways in which a time can be read; two where day and month could change places."""
    if EPOCH.fullmatch(text):
        return [Times(None, zoned=True)]
    found = re.match(DATE, text)
    if found is None:
        return []
    date, rest = found[0], text[found.end() :]
    mark = next(letter for letter in date if not letter.isdigit())
    first, _, last = date.split(mark)
    year = "%Y" if max(len(first), len(last)) == 4 else "%y"
    if len(first) == 4:
        orders = ["%Y-%m-%d"]
    else:  # a date with dots begins with the day wherever it is written so
        orders = [f"%d-%m-{year}"] if mark == "." else [f"%d-%m-{year}", f"%m-%d-{year}"]
    between, clock = rest[:1], re.match(CLOCK, rest[1:])
    form, zone = "", ""
    if clock is not None:
        half = clock[0][-1:] in "mM"
        form = between + ("%I" if half else "%H") + ":%M" + (":%S" if clock[0].count(":") == 2 else "")
        form += ".%f" if "." in clock[0] else ""
        form += (" %p" if " " in clock[0] else "%p") if half else ""
        zone = rest[1 + clock.end() :]
        form += (" %z" if zone.startswith(" ") and "UTC" not in zone else "%z") if zone else ""
    return [Times(order.replace("-", mark) + form, zoned=bool(zone)) for order in orders]


@dataclass(frozen=True)
class Table:
    """Sheets of the same columns in order of time, and all that is known of their times and sensors.

    ids: of the columns of readings, or of the column of sensors.  moments: the times of all rows, seconds int64 [T],
    each once in a table that has a row for each reading.  by_time: whether the rows of such a table are in their order.
    """

    sheets: tuple[Sheet, ...]
    times: Times
    ids: tuple[str, ...]
    moments: np.ndarray
    by_time: bool = True
    note: str = ""

    @property
    def path(self) -> Path:
        """The first file."""
        return self.sheets[0].path


def _recognise(path: Path) -> str | None:
    sheets = [look(path)] if path.is_file() else [look(each) for each in _files(path)] if path.is_dir() else []
    found = [sheet for sheet in sheets if sheet is not None]
    if not found or len(found) < len(sheets) or len({frozenset(sheet.names) for sheet in found}) > 1:
        return None
    if len(found) == 1 and found[0].plain() and any(form.fullmatch(found[0].first) for form in TIMES.values()):
        return None
    return found[0].described() + (f", {len(found)} files" if len(found) > 1 else "")


def _files(folder: Path) -> list[Path]:
    """The files of a folder that are not hidden."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError:
        return []


def _read(request: Request) -> Contents:
    paths = [path for each in (request.data, *request.more) for path in (_files(each) if each.is_dir() else [each])]
    if not paths:
        raise SocialxError(request.data, "a folder without files", "name the folder of the tables, or one of them")
    sheets = []
    for path in paths:
        sheet = turned(path) if request.transposed else look(path)
        if sheet is None:
            refuse_transposed(path)
            wanted = "write a header line, then rows of a time and readings, or a row per time, sensor and reading"
            raise SocialxError(path, "no table with a column of times", wanted)
        sheets.append(sheet)
    for sheet in sheets[1:]:
        if sorted(sheet.names) != sorted(sheets[0].names):
            other = sorted(set(sheet.names) ^ set(sheets[0].names))
            found = f"other columns than {sheets[0].path} ({sample(other)})"
            raise SocialxError(sheet.path, found, "convert it alone, or give all files the same columns")
    sheets = [sheets[0], *(sheet.as_in(sheets[0]) for sheet in sheets[1:])]
    feature, column = _chosen(sheets[0], request)
    table = _scan(sheets, request)
    notes = [f"{request.data}: times are read as {table.times.form or 'seconds since 1970'}{table.note}"]
    if table.times.zoned:
        notes[0] += ", and written in UTC"
    if column is not None and len(sheets[0].values) > 1:
        others = ", ".join(sheets[0].names[place] for place in sheets[0].values if sheets[0].names[place] != column)
        notes.append(f"{request.data}: the readings are those of {column}, not of {others}")
    return Contents(
        table.ids,
        len(table.ids),
        _rows(table) if column is None else _pivoted(table, column),
        feature,
        notes=tuple(notes),
        paths=tuple(paths[1:]),
        times=partial(_timestamps, table),
        timezone="UTC" if table.times.zoned else None,
        missing=0.0 if feature == SPEED else None,
    )


def _chosen(sheet: Sheet, request: Request) -> tuple[str, str | None]:
    """What the readings are, and the name of their column where a row has several quantities."""
    said = request.quantity
    if sheet.sensors is None:
        if request.channel is not None:
            raise SettingsError(Argument("channel"), f"{sheet.path} has a column per sensor", "drop it")
        return said or SPEED, None
    names = [sheet.names[place] for place in sheet.values]
    if request.channel is not None:
        if request.channel not in names:
            listed = (Argument("channel", names[0]), f", of {', '.join(names)}")
            raise SettingsError(
                Argument("channel", request.channel), "no column of readings", ("for example ", *listed)
            )
        column = request.channel
    else:
        wanted = QUANTITIES[said or SPEED]
        named = [name for name in names if wanted.fullmatch(name)] or (names if len(names) == 1 else [])
        if len(named) != 1:
            found = f"several columns of readings ({', '.join(names)})"
            raise SocialxError(sheet.path, found, (Argument("channel", names[0]), " chooses one"))
        column = named[0]
    found_as = (quantity for quantity, form in QUANTITIES.items() if form.fullmatch(column))
    return said or next(found_as, SPEED), column


def _scan(sheets: list[Sheet], request: Request) -> Table:
    """Walk over the times, and the sensors where they are cells: how times are written, and which there are."""
    import pandas as pd

    sensors: dict[str, None] = {}
    texts = []  # the times of each sheet, in a table with a row for each reading without those of the row above
    for sheet in sheets:
        wanted = sheet.times + (() if sheet.sensors is None else (sheet.sensors,))
        parts = []
        with closing(sheet.frames(wanted)) as frames:
            for line, frame in frames:
                column = _texts(sheet, frame, line)
                parts.append(column if sheet.sensors is None else column[column != column.shift()])
                if sheet.sensors is not None:
                    sensors.update(dict.fromkeys(frame[sheet.sensors].str.strip().tolist()))
        if not parts:
            raise SocialxError(sheet.path, "no row after line 1", "use a file with rows")
        texts.append(pd.concat(parts, ignore_index=True))
    times, moments, note = _read_times(sheets, texts, request.time_format)
    order = sorted(range(len(sheets)), key=lambda place: int(moments[place][0]))
    for before, after in pairwise(order):
        if moments[after].min() <= moments[before].max():
            found = f"its times begin before those of {sheets[before].path} end"
            raise SocialxError(sheets[after].path, found, "remove the rows that both have")
    ordered, every = [sheets[place] for place in order], np.concatenate([moments[place] for place in order])
    first = ordered[0]
    if first.sensors is None:
        ids = tuple(first.names[place] for place in first.values)
        if twice := repeated(ids):
            raise SocialxError(first.path, f"line 1 names sensors more than once ({sample(twice)})", "remove them")
        return Table(tuple(ordered), times, ids, every, note=note)
    if "" in sensors:
        raise SocialxError(first.path, f"rows without a sensor in {first.names[first.sensors]!r}", "remove them")
    by_time = bool((np.diff(every) > 0).all())
    return Table(tuple(ordered), times, tuple(sensors), np.unique(every), by_time, note)


def _texts(sheet: Sheet, frame: pd.DataFrame, line: int) -> pd.Series[str]:
    """The times of a piece as they are written; of dates and times of day the two with a space between."""
    texts = [frame[place].str.strip() for place in sheet.times]
    for place, column in zip(sheet.times, texts, strict=True):
        if (column == "").any():
            row = int((column == "").to_numpy().argmax())
            raise SocialxError(sheet.path, f"line {line + row} has no {sheet.names[place]!r}", "correct it")
    return texts[0] if len(texts) == 1 else texts[0] + " " + texts[1]


def _read_times(
    sheets: list[Sheet], texts: list[pd.Series[str]], said: str | None
) -> tuple[Times, list[np.ndarray], str]:
    """How the times of all sheets are written, the seconds of each, and what a note must say about it.

    Day and month are told apart by a number above 12, else by the order of the rows, which must be that of time, and
    by their steps: the wrong reading jumps by months.
    """
    if said is not None:
        times = Times(said, zoned="%z" in said)
        return times, [_seconds(sheet, times, found) for sheet, found in zip(sheets, texts, strict=True)], ""
    first = str(texts[0].iloc[0])
    readings = {times: [times.seconds(found) for found in texts] for times in candidates(first)}
    good = {times: found for times, found in readings.items() if not any((each == UNKNOWN).any() for each in found)}
    if not good:
        tried = next(iter(readings.values()), [])
        wrong = [str(cell) for column, found in zip(texts, tried, strict=False) for cell in column[found == UNKNOWN]]
        what = f"times that are not written like its first one, {first!r} ({sample(wrong)})"
        says = ("correct them, or say how all are written: ", Argument("time_format", "%d/%m/%Y %H:%M"))
        raise SocialxError(sheets[0].path, what, says)
    if len(good) > 1:
        increasing = {times: found for times, found in good.items() if all(map(_increases, found))}
        steady = {times: found for times, found in increasing.items() if all(map(_is_steady, found))}
        good = steady if len(steady) == 1 else increasing if len(increasing) == 1 else good
    if len(good) > 1:
        one, other = (times.form for times in good)
        what = f"times like {first!r}, which may be day/month or month/day"
        either = (Argument("time_format", one), " or ", Argument("time_format", other))
        raise SocialxError(sheets[0].path, what, ("say which: ", *either))
    [(times, moments)] = good.items()
    return times, moments, ", which the order of its rows tells" if len(readings) > 1 else ""


def _increases(seconds: np.ndarray) -> bool:
    """Whether no time is before the one above it."""
    return bool((np.diff(seconds) >= 0).all())


def _is_steady(seconds: np.ndarray) -> bool:
    """Whether all steps are the same; the same time in neighbouring rows is no step."""
    steps = np.diff(seconds)
    steps = steps[steps != 0]
    return bool(len(steps) and (steps == steps[0]).all())


def _seconds(sheet: Sheet, times: Times, texts: pd.Series[str]) -> np.ndarray:
    """Times as they are written -> seconds int64 [t]; refuses one that is written otherwise."""
    found = times.seconds(texts)
    if (found == UNKNOWN).any():
        text = str(texts.iloc[int((found == UNKNOWN).argmax())])
        raise SocialxError(
            sheet.path, f"the time {text[:40]!r} is not written as {times.form}", (Argument("time_format"),)
        )
    return found


def _timestamps(table: Table) -> np.ndarray:
    """All times, S19 [T]."""
    return as_timestamps(table.moments)


def _rows(table: Table) -> Generator[Block, None, None]:
    """The rows of a table with a column per sensor."""
    for sheet in table.sheets:
        place = {name: number for number, name in enumerate(sheet.names)}
        columns = [place[name] for name in table.ids]
        with closing(sheet.frames(sheet.times + tuple(columns))) as frames:
            for line, frame in frames:
                seconds = _seconds(sheet, table.times, _texts(sheet, frame, line))
                yield Block(as_timestamps(seconds), _narrow(frame[columns].to_numpy(np.float64)))


def _narrow(values: np.ndarray) -> np.ndarray:
    """Rounded once, to what a file holds; what is too large for it is infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


Cells = tuple[np.ndarray, np.ndarray, np.ndarray]  # seconds, number of the sensor and reading, [t] each


def _cells(table: Table, column: str) -> Iterator[Cells]:
    """The rows of a table that has one for each reading."""
    place = {name: number for number, name in enumerate(table.ids)}
    for sheet in table.sheets:
        value = next(number for number in sheet.values if sheet.names[number] == column)
        sensor = sheet.sensors or 0
        with closing(sheet.frames((*sheet.times, sensor, value))) as frames:
            for line, frame in frames:
                seconds = _seconds(sheet, table.times, _texts(sheet, frame, line))
                numbers = frame[sensor].str.strip().map(place).to_numpy(np.int64)
                yield seconds, numbers, _narrow(frame[value].to_numpy(np.float64))


def _pivoted(table: Table, column: str) -> Generator[Block, None, None]:
    """A row per time of a table with a row per reading: as it is read where it is in order of time, else as a whole."""
    cells = _cells(table, column)
    if not table.by_time:
        from socialx.environment import free_memory  # which loads torch: few tables need it

        need, free = 4 * len(table.moments) * len(table.ids), free_memory()
        if free is not None and need > SHARE * free:
            found = f"rows that are not in order of time, and {need / 2**30:.1f} GiB as a whole"
            raise SocialxError(table.path, found, "sort its rows by time")
        yield _turned(table, cells, table.moments)
        return
    waiting: list[Cells] = []
    for seconds, numbers, readings in cells:
        waiting.append((seconds, numbers, readings))
        if seconds[-1] == waiting[0][0][0]:
            continue
        joined: Cells = tuple(np.concatenate(each) for each in zip(*waiting, strict=True))  # type: ignore[assignment]
        ready = joined[0] < seconds[-1]  # the last time may go on in the next piece
        yield _turned(table, [tuple(each[ready] for each in joined)], np.unique(joined[0][ready]))
        waiting = [tuple(each[~ready] for each in joined)]
    if waiting:
        yield _turned(table, waiting, np.unique(np.concatenate([each[0] for each in waiting])))


def _turned(table: Table, cells: Iterable[Cells], moments: np.ndarray) -> Block:
    """Readings of these times as rows [t,N], NaN where there is none; refuses two of one sensor and time."""
    values = np.full((len(moments), len(table.ids)), np.nan, np.float32)
    taken = np.zeros(values.shape, bool)
    for seconds, numbers, readings in cells:
        rows = np.searchsorted(moments, seconds)
        places = rows * len(table.ids) + numbers
        again = taken.reshape(-1)[places]
        if len(np.unique(places)) < len(places):
            order = np.argsort(places, kind="stable")
            again[order[1:]] |= np.diff(places[order]) == 0
        if again.any():
            row = int(again.argmax())
            when = as_timestamps(seconds[row : row + 1])[0].decode()
            found = f"two readings of {table.ids[numbers[row]]} at {when}"
            raise SocialxError(table.path, found, "remove one of them")
        taken.reshape(-1)[places] = True
        values.reshape(-1)[places] = readings
    return Block(as_timestamps(moments), values)


FORMATS = (
    Format(
        EXPORT,
        "a table as offices and databases export it",
        _recognise,
        _read,
        takes=frozenset({"channel", "time_format", "quantity", "more", "transposed"}),
    ),
)
