"""Read the readings in described tables.

T times, N sensors, M sensors with a lane each, F features; t rows in a piece, K labels: what a column's name says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn
from zoneinfo import ZoneInfo

import numpy as np

from socialx.core.errors import Argument, Message, SettingsError, SocialxError, counted, sample
from socialx.data.calendar import DAY_S, shifts
from socialx.files.sources.contents import LARGE_BYTES, Contents, check_memory
from socialx.files.sources.positions.locations import Location
from socialx.files.sources.resample import grouped_means
from socialx.files.sources.tables.cells import Rows, Source, Table, as_number, as_texts, distinct, open_tables
from socialx.files.sources.tables.clock_changes import in_utc, repeated_hour
from socialx.files.sources.tables.spec import EITHER, EXCEL, SECONDS, TableSpec, read_name
from socialx.files.store.ids import match_key, renamed_copies
from socialx.files.store.layout import Block, impossible
from socialx.files.store.quantities import SPEED
from socialx.files.store.time_axis import as_text

FLOW = "flow"
LATE = r"(?<=[ T])24(?=$|:|00$)"  # hour 24 is hour 0 of the next day
MIDNIGHT = re.compile(r"[T ]00:00:00(\.0+)?$")  # of a date that was kept as a time
DATED = r"\d{4}[-/.]?\d{1,2}[-/.]?\d{1,2}(?:[T ].*)?"
OFFSET = r":\d\d(?:[.,]\d+)?\s*(?:Z|[+-]\d\d(?::?\d\d)?)$"
EXCEL_1970, LATEST_S = 25569, 1 << 32  # days from 1900 to 1970; seconds up to the year 2106
NEEDS, BY_MONTH = "the table needs about", "convert it by month, then append the others"
MOST_ALIKE, PROVED = 2, 20  # lanes of which one may be half of the sum; rows that prove that one is a sum
STEPS_S = (600, 300, 240, 180, 120, 60, 30, 20, 10)
COMBINED_BYTES = 1 << 26  # of lanes at once
FEW = 4  # more than one of so many rows that go back are rows in any order
COLUMNS = 300  # that are looked at for what tells two rows apart
NOT_STORED = re.compile(r"[\s/]+")  # in ids of sensors
ENDING = re.compile(r"\.(csv|txt|gz|tsv|json|jsonl|parquet|xlsx)$", re.IGNORECASE)
Words = tuple[list[str], np.ndarray]  # distinct texts, and for each row the number of its text, int64 [t]


@dataclass(frozen=True, eq=False)
class _Roles:
    """A table's columns by role: texts by name, numbers, and where the F features of a label are among the numbers.

    places: int64 [K,F], -1 where one of the K labels (sensor, lane, time) lacks a feature.
    """

    texts: dict[str, int]
    labels: list[tuple[str, str, str]]
    numbers: list[int]
    places: np.ndarray
    left_out: list[str]


@dataclass(frozen=True, eq=False)
class _Part:
    """A piece's readings: seconds [t,K] or [t,1], sensor numbers [t,K], [t,1] or [1,K], values float32 [t,K,F],
    and row numbers in the piece, int64 [t].
    """

    seconds: np.ndarray
    codes: np.ndarray
    values: np.ndarray
    rows: np.ndarray


def read(sources: Source | Sequence[Source], spec: TableSpec) -> Contents:
    """Return the readings in files, frames or Arrow tables, which ``spec`` describes, as a single block.

    Raises SocialxError for a cell, a time or a row that is not as described, with line and column; SettingsError
    for a column that is not there.
    """
    sources = sources if isinstance(sources, list | tuple) else [sources]
    reader, parts, left_out, held, looked = _Reader(spec), list[_Part](), dict[str, None](), 0, LARGE_BYTES
    where: object = ""
    for table, roles in _described(sources, spec):
        where, left_out = where or table.where, left_out | dict.fromkeys(roles.left_out)
        size = 9 if len(roles.labels) > 1 else 22  # bytes of a reading with its part of the grid
        check_memory(table.where, (table.rows or 0) * roles.places.size * size + 2 * held, NEEDS, BY_MONTH)
        for rows in table.walk([*roles.texts.values()], roles.numbers):
            part = reader.part(rows, roles, table.where)
            parts += [part] if len(part.rows) else []
            held += part.values.nbytes
            if held > looked:  # of a packed file, whose size tells nothing
                check_memory(table.where, 2 * held, NEEDS, BY_MONTH)
                looked = 2 * held
    if not parts:
        raise SocialxError("table.no-rows", where, "no row is left", "check which rows the description keeps")
    notes = [Message("table.left-out", where, "columns left out", "", list(left_out))] if left_out else []
    zone, told = _clock(parts, spec, reader.utc, where)
    notes += [*told, *([_round(parts, spec.round_s, where)] if spec.round_s else [])]
    axis, keys = np.unique(np.concatenate([np.unique(part.seconds) for part in parts])), [*reader.keys]
    try:
        values, again = _placed(axis, parts, len(keys))
    except _Conflict as conflict:
        raise _two_readings(conflict, keys, sources, spec, where) from None
    if again:
        text = f"{counted(again, 'reading repeats', 'readings repeat')} an earlier one, which is kept"
        notes += [Message("table.repeats", where, text)]
    ids, lanes = tuple(dict.fromkeys(sensor for sensor, _ in keys)), None
    if len(ids) < len(keys):
        values, told, lanes = _combined(values, keys, ids, spec, where)
        notes += told
    blocks = [Block(axis, np.ascontiguousarray(values[..., : len(spec.features)]))]
    feature, *others = spec.features
    return Contents(
        ids,
        len(ids),
        (block for block in blocks),
        {name: spec.units.get(name) for name in spec.features},
        locations={match_key(vdid): Location(vdid, *degrees) for vdid, degrees in reader.positions.items()} or None,
        notes=tuple(notes),
        times=axis,
        timezone=zone,
        zone=spec.zone or None,
        droppable=not spec.sensor,
        lanes=lanes,
        table=spec.as_json(),
        stored=lambda vdid: NOT_STORED.sub("_", vdid),
        missing=None if others else next(iter(spec.codes(feature)), None),
    )


def fits(spec: TableSpec, names: Sequence[str]) -> bool:
    """Return whether a table with these column names has all that ``spec`` describes."""
    try:
        _roles(Table("", list(names), lambda texts, numbers: iter(())), spec)
    except SettingsError:
        return False
    return True


def _described(sources: Sequence[Source], spec: TableSpec) -> Iterator[tuple[Table, _Roles]]:
    """Yield the tables with their columns by role; sheets in a workbook that lack columns are left out."""
    for source in sources:
        refused, count = SocialxError("table.no-cells", source, "the workbook holds no cells", "name another file"), 0
        for table in open_tables(source, spec):
            try:
                roles = _roles(table, spec)
            except SettingsError as error:
                refused = error
                continue
            count += 1
            yield table, roles
        if not count:
            raise refused


def _roles(table: Table, spec: TableSpec) -> _Roles:
    """Return the columns by role. Raises SettingsError for a column that is not there, or is there twice."""
    names, where = table.names, table.where
    single = filter(None, (spec.seconds, spec.latitude, spec.longitude))
    wanted = dict.fromkeys([*spec.time, *spec.sensor, *spec.lane, *spec.only, *spec.never, *single])
    values = [*spec.values.values(), *([spec.weights] if spec.weights and FLOW not in spec.values else [])]
    taken = {column for column, name in enumerate(names) if name in wanted or name in spec.drop}
    labelled = [_labels(names, form, taken, {*values}, where) for form in values]
    lacking = [name for name in wanted if name not in names]
    lacking += [form for form, columns in zip(values, labelled, strict=True) if not columns]
    if lacking:
        choice = sample([ascii(name)[1:-1] for name in names], 12)
        raise SettingsError("table.no-column", where, f"there is no column {lacking[0][:80]!a}", f"choose of {choice}")
    labels = [*dict.fromkeys(label for columns in labelled for label in columns)]
    used = [columns.get(label, -1) for label in labels for columns in labelled]
    numbers = [*dict.fromkeys(column for column in used if column >= 0)]
    twice = [name for name in wanted if names.count(name) > 1]
    if twice or len(numbers) < len(used) - used.count(-1):
        problem = f"two columns are called {twice[0][:60]!a}" if twice else "one column would be two quantities"
        raise SettingsError("table.roles", where, problem, "rename one, or describe each quantity by its own names")
    if copies := renamed_copies([sensor for sensor, _, _ in labels if sensor]):
        helps = f"leave it out with {Argument('drop', copies[0])}, or rename it if it is another sensor"
        raise SettingsError("table.twice", where, f"the columns name sensors more than once ({sample(copies)})", helps)
    position = {column: index for index, column in enumerate(numbers)} | {-1: -1}
    places = np.array([position[column] for column in used], np.int64).reshape(len(labels), len(labelled))
    taken = {*taken, *numbers}
    rest = [name for column, name in enumerate(names) if column not in taken and name]
    return _Roles({name: names.index(name) for name in wanted}, labels, numbers, places, rest)


def _labels(
    names: Sequence[str], form: str, taken: set[int], forms: set[str], where: object
) -> dict[tuple[str, str, str], int]:
    """Return the columns for a name or pattern, by what their names say, without another name's columns."""
    columns = dict[tuple[str, str, str], int]()
    for column, name in enumerate(names):
        if name != form and (column in taken or name in forms):
            continue
        if (label := read_name(form, name)) is not None:
            if label in columns:
                raise SettingsError("table.alike", where, f"two columns are called {name[:60]!a}", "rename one of them")
            columns[label] = column
    return columns


# One piece.


@dataclass(frozen=True, eq=False)
class _Piece:
    """The rows that are kept: column texts by name, how many rows, and a row's name for messages."""

    words: dict[str, Words]
    count: int
    roles: _Roles
    where: object
    name: Callable[[int], str]

    def joined(self, names: Sequence[str], mark: str) -> Words:
        """Return the distinct texts in joined columns that occur, and each row's text number."""
        texts, codes = [""], np.zeros(self.count, np.int64)
        for name in names:
            more, others = self.words[name]
            pairs, codes = np.unique(codes * len(more) + others, return_inverse=True)
            both = [(texts[pair // len(more)], more[pair % len(more)]) for pair in pairs.tolist()]
            texts = [f"{one}{mark}{other}" if name != names[0] else other for one, other in both]
        return texts, codes

    def refuse(self, row: int, problem: str, helps: str = "correct it, or remove the row") -> NoReturn:
        raise SocialxError("table.cell", self.where, f"{self.name(row)} {problem}", helps)


class _Reader:
    """What is read so far. keys: a number for each (sensor, lane); utc: whether times say their distance from UTC."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec, self.rows = spec, 0
        self.keys: dict[tuple[str, str], int] = {}
        self.positions: dict[str, tuple[float, float]] = {}
        self.utc: bool | None = None

    def part(self, rows: Rows, roles: _Roles, where: object) -> _Part:
        """Return the readings in the rows that are kept."""
        spec, numbers = self.spec, rows.numbers
        words = {name: distinct(column) for name, column in zip(roles.texts, rows.texts, strict=True)}
        kept = np.ones(len(numbers), bool)
        for chosen, stays in ((spec.only, True), (spec.never, False)):
            for name, text in chosen.items():
                texts, codes = words[name]
                kept &= np.array([(word in text.split(EITHER)) == stays for word in texts], bool)[codes]
        timeless = kept & bool(spec.time)
        for name in spec.time:
            timeless &= np.array([not word for word in words[name][0]], bool)[words[name][1]]
        if timeless.any():  # a row of nothing, such as the end of a sheet, is left out
            kept &= ~(timeless & np.isnan(numbers).all(axis=1))
        index = np.flatnonzero(kept)
        numbers = numbers if len(index) == len(numbers) else numbers[index]
        words = {name: (texts, codes[index]) for name, (texts, codes) in words.items()}
        piece = _Piece(words, len(index), roles, where, lambda row: rows.name(int(index[row])))
        if (timeless := timeless[index]).any():
            piece.refuse(int(timeless.argmax()), f"has no time in {spec.time[0][:40]!a}")
        if not len(index):
            return _Part(index, index, numbers, index)
        if (roles.places.ravel() == np.arange(roles.places.size)).all():
            values = numbers.reshape(len(index), *roles.places.shape)
        else:
            values = np.where(roles.places < 0, np.float32(np.nan), numbers[:, roles.places])
        _mask(values, spec)
        part = _Part(self._seconds(piece), self._codes(piece), values, index)
        self.rows += len(index)
        return part

    def _seconds(self, piece: _Piece) -> np.ndarray:
        """Return times in seconds since 1970, int64 [t,1], or [t,K] where column names say times too."""
        spec, labels = self.spec, [time for _, _, time in piece.roles.labels]
        if not spec.form and len(spec.time) > 1:
            texts, codes = piece.words[spec.time[0]]
            piece.words[spec.time[0]] = [MIDNIGHT.sub("", text) for text in texts], codes
        texts, codes = piece.joined(spec.time, " ")
        named = any(labels) and not spec.slot_s
        if not spec.time and spec.start:
            texts, spec = [spec.start], replace(spec, form="", until="")
        if named:
            texts = [f"{text} {label}".strip() for text in texts for label in labels]
        parsed, utc, wrong = parse_times(texts, spec)
        if wrong is not None:
            row = int((codes == wrong // (len(labels) if named else 1)).argmax())
            written = spec.form or "ISO 8601, such as 2024-03-01 08:00:00"
            helps = f"correct it, or say how times are written, as for {Argument('time_format', '%d/%m/%Y %H:%M')}"
            piece.refuse(row, f"has the time {texts[wrong][:40]!a}, not written as {written}", helps)
        if self.utc not in (None, utc):
            piece.refuse(0, "and others differ: some times say how far they are from UTC", "write all in one way")
        self.utc = utc
        seconds = parsed.reshape(-1, len(labels) if named else 1)[codes]
        if spec.seconds:
            texts, codes = piece.words[spec.seconds]
            added = np.array([_number(text) for text in texts])[codes]
            if (wrong_ones := np.isnan(added)).any():
                row = int(wrong_ones.argmax())
                problem = f"column {spec.seconds[:40]!a} is {texts[codes[row]][:40]!a}, no number of seconds"
                piece.refuse(row, problem)
            seconds = seconds + np.rint(added).astype(np.int64)[:, None]
        elif spec.step_s and not spec.time:
            seconds = seconds + spec.step_s * np.arange(self.rows, self.rows + piece.count)[:, None]
        if spec.slot_s:
            if odd := [label for label in labels if not re.fullmatch("[0-9]{1,9}", label)]:
                problem = f"{odd[0][:40]!a} in a column's name is no number"
                raise SettingsError("table.time-in-name", piece.where, problem, "write \\d+ in the group time")
            seconds = seconds + spec.slot_s * np.array([int(label) - spec.slot_from for label in labels], np.int64)
        return seconds + spec.shift_s

    def _codes(self, piece: _Piece) -> np.ndarray:
        """Return numbers for sensors with a lane, int32 [t,K], or [1,K] where all rows have the same ones."""
        spec, where = self.spec, piece.where
        sensors, rows = piece.joined(spec.sensor, "-")
        lanes, row_lanes = piece.joined(spec.lane, "-")
        lacking = [number for number, text in enumerate(sensors) if spec.sensor and not text.strip("-")]
        if lacking:
            piece.refuse(int((rows == lacking[0]).argmax()), f"has no sensor in {spec.sensor[0][:40]!a}")
        alone = spec.name or ENDING.sub("", ENDING.sub("", getattr(where, "name", "sensor")))
        pairs, index = np.unique(rows * len(lanes) + row_lanes, return_inverse=True)
        codes = np.empty((len(pairs), len(piece.roles.labels)), np.int32)
        for at, pair in enumerate(pairs.tolist()):
            sensor, lane = sensors[pair // len(lanes)], lanes[pair % len(lanes)]
            for column, (named, numbered, _) in enumerate(piece.roles.labels):
                key = "-".join(filter(None, (sensor, named))) or alone, "-".join(filter(None, (lane, numbered)))
                codes[at, column] = self.keys.setdefault(key, len(self.keys))
        if spec.latitude:
            for number, first in zip(*np.unique(rows, return_index=True), strict=True):
                self._locate(sensors[number] or alone, int(first), piece)
        return codes if len(pairs) == 1 else codes[index]

    def _locate(self, sensor: str, row: int, piece: _Piece) -> None:
        """Keep a sensor's first position. Raises SocialxError for what is no position in degrees."""
        columns = [piece.words[name] for name in (self.spec.latitude, self.spec.longitude)]
        cells = [texts[codes[row]] for texts, codes in columns]
        if sensor in self.positions or not any(cells):
            return
        latitude, longitude = (_number(text.replace(self.spec.decimal, ".")) for text in cells)
        if not (abs(latitude) <= 90 and abs(longitude) <= 180):
            helps = "describe columns of latitude and longitude in degrees"
            piece.refuse(row, f"has the position {sample(cells)}, no degrees", helps)
        self.positions[sensor] = latitude, longitude


def _mask(values: np.ndarray, spec: TableSpec) -> None:
    """Make numbers for no reading NaN in values [t,K,F], but a single feature's first one, which a file keeps."""
    for index, feature in enumerate((*spec.features, FLOW)[: values.shape[-1]]):
        readings, codes = values[..., index], np.array(spec.codes(feature), np.float32)
        kept = codes[:1] if values.shape[-1] == 1 else codes[:0]
        low = np.isin(readings, codes) if len(codes) > len(kept) else np.zeros((1, 1), bool)
        low = low | (readings < spec.below) if spec.below is not None else low
        if low.any():
            readings[low & ~np.isin(readings, kept)] = np.nan


def _number(text: str) -> float:
    """Return the number that a text says, NaN for none and for one that is too large for a time."""
    number = as_number(text)
    return number if abs(number) < LATEST_S else np.nan


def parse_times(texts: Sequence[str], spec: TableSpec) -> tuple[np.ndarray, bool, int | None]:
    """Return texts as seconds since 1970, int64, whether they are in UTC, and the index for a text that is no time."""
    import pandas as pd

    column = pd.Series(list(texts), dtype=object).str.strip()
    if texts == [""] and not spec.time:
        return np.zeros(1, np.int64), False, None
    if spec.until:
        column = column.str.split(spec.until, n=1, regex=False).str[0].str.strip()
    if spec.form in SECONDS or spec.form == EXCEL:
        digits = column.str.partition(".")[0].str[:-3] if spec.form == "ms" else column
        numbers = np.array([_number(text) for text in digits])
        seconds = np.rint((numbers - EXCEL_1970) * DAY_S if spec.form == EXCEL else numbers)
        bad = ~((seconds >= 0) & (seconds < LATEST_S))
        return np.where(bad, 0, seconds).astype(np.int64), spec.form != EXCEL, int(bad.argmax()) if bad.any() else None
    offset = column.str.contains(OFFSET, regex=True).to_numpy(bool)
    form = spec.form or "ISO8601"
    utc = "%z" in spec.form or spec.form.endswith("Z") if spec.form else bool(offset[0])
    try:
        parsed = pd.to_datetime(column, format=form, utc=True, errors="coerce")
        if (late := parsed.isna() & column.str.contains(LATE, regex=True)).any():
            plain = column[late].str.replace(LATE, "00", regex=True)
            parsed[late] = pd.to_datetime(plain, format=form, utc=True, errors="coerce") + pd.Timedelta(days=1)
    except (ValueError, re.error) as error:
        problem = f"{form[:60]!a} is no form of times ({error})"
        raise SettingsError("table.time-form", "", problem, "write for example %d.%m.%Y") from None
    bad = parsed.isna().to_numpy()
    if not spec.form:
        bad = bad | (offset != utc) | ~column.str.fullmatch(DATED).to_numpy(bool)
    seconds = parsed.dt.tz_localize(None).to_numpy("datetime64[s]").astype(np.int64)
    return seconds, utc, int(bad.argmax()) if bad.any() else None


# All pieces.


def _flat(parts: list[_Part]) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return times and sensors for all readings in order; for rows with the same sensors only the first reading, and
    whether this is so.
    """
    if wide := all(np.array_equal(part.codes, parts[0].codes[:1]) and part.seconds.shape[1] == 1 for part in parts):
        seconds = np.concatenate([part.seconds[:, 0] for part in parts])
        return seconds, np.zeros(len(seconds), np.int64), wide
    pairs = [np.broadcast_arrays(part.seconds, part.codes, part.values[..., 0])[:2] for part in parts]
    seconds, keys = (np.concatenate([side.ravel() for side in sides]) for sides in zip(*pairs, strict=True))
    return seconds, keys, wide


def _clock(
    parts: list[_Part], spec: TableSpec, utc_said: bool | None, where: object
) -> tuple[str | None, list[Message]]:
    """Return the times' zone, and notes; a zone's wall times become UTC in ``parts`` if an hour comes twice.

    The order in a sensor's rows tells both hours apart. Raises SocialxError where it does not.
    """
    if utc_said:
        return "UTC", []
    seconds, keys, _ = _flat(parts)
    backward = np.count_nonzero(np.diff(seconds) < 0) > np.count_nonzero(np.diff(seconds) > 0)
    if backward:  # the newest row first
        seconds, keys = seconds[::-1], keys[::-1]
    if spec.zone:
        first, second = (seconds - shifts(ZoneInfo(spec.zone), seconds, fold) for fold in (0, 1))
        days = np.unique(seconds[second > first] // DAY_S)
        near = np.flatnonzero(np.isin(seconds // DAY_S, (days[:, np.newaxis] + [-1, 0, 1]).ravel()))
        order = near[np.argsort(keys[near], kind="stable")]
        sensors = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
        if any(np.isin(_backs(seconds[rows]), seconds[second > first]).any() for rows in sensors):
            told = {seconds[rows].tobytes(): seconds[rows] for rows in (np.flatnonzero(second < first), *sensors)}
            utc = {wall: in_utc(times, spec.zone, str(where)) for wall, times in told.items() if len(times)}
            for rows in sensors:
                first[rows] = utc[seconds[rows].tobytes()][0]
            _set_times(parts, first[::-1] if backward else first)
            return "UTC", [next(iter(utc.values()))[1]]
    advice = "say the right" if spec.zone else "keep both hours with"
    helps = f"{advice} {Argument('timezone', None if spec.zone else 'ZONE')}"
    mine = seconds[keys == keys[0]]
    in_order = len(_backs(mine)) == np.count_nonzero(np.diff(mine) <= 0)
    if in_order and (refused := repeated_hour(mine, str(where), helps)):
        raise refused[1]
    return spec.zone or None, []


def _backs(seconds: np.ndarray) -> np.ndarray:
    """Return the times int64 at which rows go back; for rows in any order, the times that are there again."""
    back = np.diff(seconds) <= 0
    if FEW * np.count_nonzero(back) >= len(seconds):
        seconds = np.sort(seconds)
        back = np.diff(seconds) == 0
    return seconds[1:][back]


def _set_times(parts: list[_Part], seconds: np.ndarray) -> None:
    """Replace the times for all readings, ordered as in ``_flat``."""
    wide, begin = _flat(parts)[2], 0
    for number, part in enumerate(parts):
        shape = part.seconds.shape if wide else part.values.shape[:2]
        parts[number] = replace(part, seconds=seconds[begin : begin + shape[0] * shape[1]].reshape(shape))
        begin += shape[0] * shape[1]


def _round(parts: list[_Part], step: int, where: object) -> Message:
    """Move the times in ``parts`` to whole steps, and return a note. Raises where a step gets several readings."""
    seconds, keys, _ = _flat(parts)

    def shared(width: int) -> int:
        steps = np.rint(seconds / width).astype(np.int64)
        order = np.lexsort((steps, keys))
        equal = (np.diff(steps[order]) == 0) & (np.diff(keys[order]) == 0) & (np.diff(seconds[order]) != 0)
        return int(np.count_nonzero(equal))

    if together := shared(step):
        finer = next((width for width in STEPS_S if width < step and not shared(width)), 0)
        coarse = Argument("resample", f"{max(1, 2 * step // 60)}min")
        problem = f"rounding to {step} s puts {counted(together, 'reading')} into the step of another one of its sensor"
        one = f"round to {finer} s, which holds one each, or " if finer else ""
        helps = f"{one}average them with {coarse} instead"
        raise SocialxError("table.collides", where, problem, helps)
    whole = step * np.rint(seconds / step).astype(np.int64)
    _set_times(parts, whole)
    moved = np.abs(whole - seconds)
    count = f"{np.count_nonzero(moved):,} of {len(moved):,} times"
    return Message("table.rounded", where, f"{count} moved to whole {step / 60:g} min, by up to {moved.max()} s")


class _Conflict(Exception):
    """Two other readings for one sensor at one time."""

    def __init__(self, second: int, key: int, pair: tuple[float, float]) -> None:
        super().__init__(second)
        self.second, self.key, self.pair = second, key, pair


def _placed(axis: np.ndarray, parts: list[_Part], width: int) -> tuple[np.ndarray, int]:
    """Return readings on the axis, float32 [T,M,F], and how many came again; empties ``parts``. Raises _Conflict."""
    features, count = parts[0].values.shape[2], 0
    grid = np.full((len(axis), width, features), np.nan, np.float32)
    cells, rows_taken = grid.reshape(len(axis) * width, features), np.zeros(len(axis), bool)
    taken: np.ndarray | None = None  # by reading, once a part does not have whole rows
    while parts:
        part = parts.pop(0)
        rows, codes = np.searchsorted(axis, part.seconds), part.codes
        if taken is None and rows.shape[1] == 1 and codes.shape == (1, width):
            at = rows[:, 0]
            if len(np.unique(at)) == len(at) and not rows_taken[at].any():
                grid[at if (codes[0] == np.arange(width)).all() else (at[:, None], codes[0])] = part.values
                rows_taken[at], count = True, count + part.values[..., 0].size
                continue
        taken = np.repeat(rows_taken, width) if taken is None else taken
        index, values = (rows * width + codes).ravel(), part.values.reshape(-1, features)
        free = ~taken[index]
        cells[index[free][::-1]] = values[free][::-1]  # the first of several stays
        taken[index] = True
        stored = cells[index]
        other = (stored != values) & ~(np.isnan(stored) & np.isnan(values))
        if other.any():
            row, feature = map(int, np.argwhere(other)[0])
            pair = float(stored[row, feature]), float(values[row, feature])
            raise _Conflict(int(axis[index[row] // width]), int(index[row] % width), pair)
        count += len(index)
    return grid, 0 if taken is None else count - int(np.count_nonzero(taken))


def _two_readings(
    conflict: _Conflict, keys: list[tuple[str, str]], sources: Sequence[Source], spec: TableSpec, where: object
) -> SocialxError:
    """Return the error about two readings, which names their rows and a column in which these differ."""
    pair = " and ".join("none" if value != value else f"{value:g}" for value in conflict.pair)
    sensor = " lane ".join(filter(None, keys[conflict.key]))
    problem = f"{sensor} has two readings at {as_text(conflict.second)} ({pair})"
    rows = _rows_at(conflict, keys, sources, spec)
    if len(rows) < 2:
        return SocialxError("table.two-readings", where, problem, "remove one of them")
    (one, cells), (other, others) = rows
    differ = [name for name in cells if name not in spec.time and cells[name] != others.get(name, "")]
    # A column of kinds has short texts or small numbers, other readings have larger ones and fractions.
    best = min(differ, key=lambda name: ("." in cells[name] + others.get(name, ""), len(cells[name]) > 3), default=None)
    problem += f" in {one} and {other}"
    if best is None:
        return SocialxError("table.two-rows", where, problem, "remove one of them")
    problem += f", which differ in {best[:40]!a} ({cells[best][:20]!a}, {others.get(best, '')[:20]!a})"
    kept = f"only: {{{best!r}: {cells[best]!r}}} in a description of the table"
    named = f"name it as a part of the sensor with {Argument('sensor_column', best)}"
    return SocialxError("table.two-kinds", where, problem, f"{named}, or keep one kind of rows: {kept}")


def _rows_at(
    conflict: _Conflict, keys: list[tuple[str, str]], sources: Sequence[Source], spec: TableSpec
) -> list[tuple[str, dict[str, str]]]:
    """Return (name, cells by column) for the first two rows with a sensor's time."""
    pairs, reader = list[tuple[str, dict[str, str]]](), _Reader(spec)
    reader.keys = {key: number for number, key in enumerate(keys)}
    for table, roles in _described(sources, spec):
        others = {*range(len(table.names))} - {*roles.texts.values(), *roles.numbers}
        looked = [*roles.texts.values(), *sorted(others)[:COLUMNS]]
        for rows in table.walk(looked, roles.numbers):
            part = reader.part(replace(rows, texts=rows.texts[: len(roles.texts)]), roles, table.where)
            near = np.abs(part.seconds - conflict.second) <= spec.round_s / 2
            for row in part.rows[(near & (part.codes == conflict.key)).any(axis=1)].tolist():
                columns = zip(looked, rows.texts, strict=True)
                cells = {table.names[c]: as_texts(column.slice(row, 1))[0] for c, column in columns}
                pairs.append((rows.name(row), cells))
            if len(pairs) > 1:
                return pairs[:2]
    return pairs


# Lanes.


def _combined(
    values: np.ndarray, keys: list[tuple[str, str]], ids: tuple[str, ...], spec: TableSpec, where: object
) -> tuple[np.ndarray, list[Message], tuple[str, ...]]:
    """Return lanes [T,M,F] as sensors, float32 [T,N,F], notes, and each sensor's lane names.

    Numbers for no reading and impossible ones count for nothing. Flows are summed, and missing where a lane's flow is;
    speeds are means weighted by flow where it is known; others are means (Chen et al., Transportation Research Record
    1748, 2001). Raises SocialxError where a lane is the sum of the others.
    """
    number = {sensor: index for index, sensor in enumerate(ids)}
    sensors = np.array([number[name] for name, _ in keys], np.int64)
    order = np.argsort(sensors, kind="stable")
    begins = np.flatnonzero(np.diff(sensors[order], prepend=-1))
    features = (*spec.features, FLOW)[: values.shape[-1]]
    lanes: list[set[str]] = [set() for _ in ids]
    for sensor, lane in keys:
        digits = re.search("[0-9]+$", lane)
        lanes[number[sensor]].add(str(int(digits[0])) if digits else lane)
    names = tuple(", ".join(sorted(part)) for part in lanes)
    result, odd = np.empty((len(values), len(ids), len(features)), np.float32), 0
    rows = max(1, COMBINED_BYTES // (8 * values[0].size))
    for begin in range(0, len(values), rows):
        piece = values[begin : begin + rows, order].astype(np.float64)
        for index, feature in enumerate(features):
            readings = piece[..., index]
            readings[np.isin(readings.astype(np.float32), np.array(spec.codes(feature), np.float32))] = np.nan
            wrong = impossible(readings, feature, spec.units.get(feature, ""))
            odd += int(np.count_nonzero(wrong))
            readings[wrong] = np.nan
        if FLOW in features:
            flow = piece[..., features.index(FLOW)]
            if begin == 0:
                _refuse_total(flow, begins, names, ids, where)
            sums = np.add.reduceat(flow, begins, 1)
            if SPEED in features:  # whose mean is plain where the flow of a lane is unknown
                weights = np.where(np.isfinite(piece[..., features.index(SPEED)]), flow, 0.0)
                lost = np.isnan(np.add.reduceat(weights, begins, 1))
                flow[np.repeat(lost, np.diff([*begins, len(order)]), axis=1)] = np.nan
        result[begin : begin + rows] = grouped_means(piece, begins, 1, features)[0]
        if FLOW in features:
            result[begin : begin + rows, :, features.index(FLOW)] = sums
    most = max(range(len(ids)), key=lambda index: len(lanes[index]))
    notes = [Message("table.lanes", where, f"lanes are combined to sensors ({ids[most]}: {names[most]})")]
    if odd:
        many = counted(odd, "number of a lane is", "numbers of lanes are")
        notes.append(Message("table.impossible", where, f"{many} impossible, and left out of sums and means"))
    return result, notes, names


def _refuse_total(
    flows: np.ndarray, begins: np.ndarray, names: Sequence[str], ids: Sequence[str], where: object
) -> None:
    """Raise where the first flows [t,M], ordered by sensor, show that a lane is the sum of the sensor's others."""
    for number, mine in enumerate(np.split(flows, begins[1:], axis=1)):
        complete = mine[np.isfinite(mine).all(axis=1) & (mine != 0).all(axis=1)]
        enough = mine.shape[1] > MOST_ALIKE and len(complete) >= PROVED
        if enough and (2 * complete == complete.sum(axis=1, keepdims=True)).all(axis=0).any():
            problem = f"one of the lanes {names[number]} of {ids[number]} is the sum of the others"
            raise SocialxError("table.total", where, problem, "leave the sum out, so that nothing is counted twice")
