"""Read described tables as a grid of readings.

T times, N sensors, M sensors with a lane each, F features; t rows of a piece, K labels: what the name of a column says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from socialx.core.errors import Argument, Message, SettingsError, SocialxError, counted, sample
from socialx.data.calendar import shifts
from socialx.files.sources.resample import impossible
from socialx.files.sources.tables.cells import Rows, Source, Table, as_texts, distinct, open_tables
from socialx.files.sources.tables.clock_changes import REWRITE, repeated_hour
from socialx.files.sources.tables.spec import EITHER, EXCEL, SECONDS, Grid, TableSpec, read_name
from socialx.files.store.ids import renamed_copies
from socialx.files.store.time_axis import as_text

FLOW = "flow"
LATE = r"(?<=[ T])24(?=$|:|00$)"  # hour 24 is hour 0 of the next day
MIDNIGHT = re.compile(r"[T ]00:00:00(\.0+)?$")  # of a date that was kept as a time
DATED = r"\s*\d{4}[-/.]?\d{1,2}[-/.]?\d{1,2}(?:[T ].*)?"
OFFSET = r":\d\d(?:[.,]\d+)?\s*(?:Z|[+-]\d\d(?::?\d\d)?)$"
EPOCH_EXCEL, DAY_S, LATEST_S = 25569, 86400, 1 << 32  # days from 1900 to 1970; seconds up to the year 2106
SMALL = 1 << 28  # bytes that need no look at the memory
MOST_ALIKE, PROVED = 2, 20  # lanes of which one may be half of the sum; rows that prove that one is a sum
STEPS_S = (600, 300, 240, 180, 120, 60, 30, 20, 10)
COMBINED_BYTES = 1 << 26
COLUMNS = 300  # that are looked at for what tells two rows apart


@dataclass(frozen=True, eq=False)
class _Roles:
    """The columns of a table by role: texts by name, and for each of K labels (sensor, lane, time) F columns."""

    texts: dict[str, int]
    labels: list[tuple[str, str, str]]
    numbers: list[int]
    places: np.ndarray  # int64 [K,F], in ``numbers``; -1 where a label lacks a feature
    left_out: list[str]


@dataclass(frozen=True, eq=False)
class _Part:
    """Readings of a piece: seconds [t,K] or [t,1], numbers of sensors [t,K], [t,1] or [1,K], values float32 [t,K,F]."""

    seconds: np.ndarray
    codes: np.ndarray
    values: np.ndarray
    rows: np.ndarray  # numbers of the rows in the piece, int64 [t]


@dataclass(eq=False)
class _State:
    """What was read so far; keys: the number of each (sensor, lane); utc: whether times say their offset from UTC."""

    keys: dict[tuple[str, str], int] = field(default_factory=dict)
    positions: dict[str, tuple[float, float]] = field(default_factory=dict)
    rows: int = 0
    utc: bool | None = None


def read(sources: Source | Sequence[Source], spec: TableSpec) -> Grid:
    """Return the readings in files, frames or Arrow tables, which ``spec`` describes.

    Raises SocialxError for a cell, a time or a row that is not as described, with its line and column; SettingsError
    for a column that is not there.
    """
    sources = sources if isinstance(sources, list | tuple) else [sources]
    state, parts, left_out, held = _State(), list[_Part](), dict[str, None](), 0
    features = (*spec.features, *([FLOW] if spec.weights and FLOW not in spec.values else []))
    where: object = ""
    for table, roles in _described(sources, spec):
        where, left_out = where or table.where, left_out | dict.fromkeys(roles.left_out)
        _check_memory(table, roles, held)
        for rows in table.walk([*roles.texts.values()], roles.numbers):
            if (part := _part(rows, roles, spec, state, table.where)) is not None:
                parts.append(part)
                held += part.values.nbytes
    if not parts:
        raise SocialxError(where, "no row is left", "check which rows the description keeps")
    notes = [Message(where, "columns left out", "", list(left_out))] if left_out else []
    zone, told = _clock(parts, spec, state, where)
    notes += told
    if spec.round_s:
        notes += [_round(parts, spec.round_s, where)]
    axis = np.unique(np.concatenate([np.unique(part.seconds) for part in parts]))
    keys = [*state.keys]
    try:
        values, again = _placed(axis, parts, len(keys), len(features))
    except _Conflict as conflict:
        raise _two_readings(conflict, keys, sources, spec, where) from None
    if again:
        text = f"{counted(again, 'reading repeats', 'readings repeat')} an earlier one, which is kept"
        notes += [Message(where, text)]
    ids = tuple(dict.fromkeys(sensor for sensor, _ in keys))
    lanes = None
    if len(ids) < len(keys):
        values, told, lanes = _combined(values, keys, ids, features, spec, where)
        notes += told
    elif len(features) > len(spec.features):
        values = np.ascontiguousarray(values[..., : len(spec.features)])
    single = len(spec.features) == 1 and lanes is None
    missing = next(iter(spec.codes(spec.features[0])), None) if single else None
    return Grid(axis, ids, spec.features, values, zone, tuple(notes), lanes, state.positions, missing)


def _described(sources: Sequence[Source], spec: TableSpec) -> Iterator[tuple[Table, _Roles]]:
    """Yield the tables with their columns by role; sheets of a workbook that lack columns are left out."""
    for source in sources:
        tables, refused, count = open_tables(source, spec), None, 0
        for table in tables:
            try:
                roles = _roles(table, spec)
            except SettingsError as error:
                refused = refused or error
                continue
            count += 1
            yield table, roles
        if not count:
            raise refused or SocialxError(source, "the workbook holds no cells", "name another file")


def _roles(table: Table, spec: TableSpec) -> _Roles:
    """Return the columns by role. Raises SettingsError for a column that is not there, or is there twice."""
    names, where = table.names, table.where
    lists = (spec.time, spec.sensor, spec.lane, spec.only, spec.never, (spec.seconds, spec.latitude, spec.longitude))
    texts = {name: names.index(name) if name in names else -1 for part in lists for name in part if name in names}
    lacking = [name for part in lists[:5] for name in part if name not in names]
    lacking += [name for name in lists[5] if name and name not in names]
    texts = {name: column for name, column in texts.items() if name or name in (*spec.time, *spec.sensor, *spec.lane)}
    values = [*spec.values.values(), *([spec.weights] if spec.weights and FLOW not in spec.values else [])]
    taken = {*texts.values()} | {column for column, name in enumerate(names) if name in spec.drop}
    plain = {form for form in values if form in names}
    found: list[dict[tuple[str, str, str], int]] = []
    for form in values:
        columns = dict[tuple[str, str, str], int]()
        for column, name in enumerate(names):
            if (column in taken or name in plain) and name != form:
                continue
            if (label := read_name(form, name)) is None:
                continue
            if label in columns:
                raise SettingsError(where, f"two columns are called {name[:60]!a}", "rename one of them")
            columns[label] = column
        lacking += [] if columns else [form]
        found.append(columns)
    if lacking:
        problem = f"there is no column {lacking[0][:80]!a}"
        raise SettingsError(where, problem, f"choose of {sample([ascii(name)[1:-1] for name in names], 12)}")
    twice = [name for name in texts if names.count(name) > 1]
    if twice:
        raise SettingsError(where, f"two columns are called {twice[0][:60]!a}", "rename one of them")
    labels = [*dict.fromkeys(label for columns in found for label in columns)]
    used = [columns.get(label, -1) for label in labels for columns in found]
    numbers = [column for column in dict.fromkeys(used) if column >= 0]
    both = [names[column] for column in numbers if used.count(column) > 1] if len(found) > 1 else []
    if both:
        raise SettingsError(where, f"column {both[0][:60]!a} would be two quantities", "describe each by its own names")
    if copies := renamed_copies([sensor for sensor, _, _ in labels if sensor]):
        helps = f"leave it out with {Argument('drop', copies[0])}, or rename it if it is another sensor"
        raise SocialxError(where, f"the columns name sensors more than once ({sample(copies)})", helps)
    place = {column: index for index, column in enumerate(numbers)} | {-1: -1}
    places = np.array([place[column] for column in used], np.int64).reshape(len(labels), len(found))
    rest = [name for column, name in enumerate(names) if column not in {*numbers, *texts.values()} and name]
    return _Roles(texts, labels, numbers, places, [name for name in rest if name not in spec.drop])


def _check_memory(table: Table, roles: _Roles, held: int) -> None:
    """Raise SocialxError where the readings take more than the free memory, as far as the size tells."""
    count = (table.rows or 0) * roles.places.size
    need = int(count * (9 if len(roles.labels) > 1 else 22)) + 2 * held
    if need > SMALL:
        from socialx.core.environment import free_memory  # imports torch, which few tables need

        free = free_memory()
        if free is not None and need > free:
            problem = f"the table needs about {need / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
            raise SocialxError(table.where, problem, "convert it by month, then append the others")


# One piece.


def _part(rows: Rows, roles: _Roles, spec: TableSpec, state: _State, where: object) -> _Part | None:
    """Return the readings of the rows that are kept; None where none is."""
    words = {name: distinct(column) for name, column in zip(roles.texts, rows.texts, strict=True)}
    kept = np.ones(len(rows.numbers), bool)
    for chosen, stays in ((spec.only, True), (spec.never, False)):
        for name, text in chosen.items():
            texts, codes = words[name]
            kept &= np.array([(word in text.split(EITHER)) == stays for word in texts], bool)[codes]
    if spec.time and not kept.all():
        kept = np.flatnonzero(kept)
    index = np.flatnonzero(kept) if kept.dtype == bool else kept
    numbers = rows.numbers if len(index) == len(rows.numbers) else rows.numbers[index]
    words = {name: (texts, codes[index]) for name, (texts, codes) in words.items()}
    if spec.time:  # a row of nothing, such as the end of a sheet
        empty = np.logical_and.reduce([np.array([not t for t in words[n][0]], bool)[words[n][1]] for n in spec.time])
        if empty.any():
            lost = empty & ~np.isnan(numbers).all(axis=1)
            if lost.any():
                row = rows.name(int(index[lost.argmax()]))
                raise SocialxError(
                    where, f"{row} has no time in {spec.time[0][:40]!a}", "correct it, or remove the row"
                )
            index, numbers = index[~empty], numbers[~empty]
            words = {name: (texts, codes[~empty]) for name, (texts, codes) in words.items()}
    count = len(index)
    if not count:
        return None

    def called(row: int) -> str:
        return rows.name(int(index[row]))

    seconds = _seconds(words, count, roles, spec, state, where, called)
    codes = _codes(words, count, roles, spec, state, where, called)
    if (roles.places == np.arange(roles.places.size).reshape(roles.places.shape)).all():
        values = numbers.reshape(count, *roles.places.shape)
    else:
        values = np.where(roles.places < 0, np.float32(np.nan), numbers[:, roles.places])
    _mask(values, spec)
    state.rows += count
    return _Part(seconds, codes, values, index)


def _mask(values: np.ndarray, spec: TableSpec) -> None:
    """Make numbers for no reading NaN in values [t,K,F], but the first one of a single feature, which a file keeps."""
    single = values.shape[-1] == 1
    for index, feature in enumerate((*spec.features, FLOW)[: values.shape[-1]]):
        readings = values[..., index]
        for code in spec.codes(feature)[single:]:
            readings[readings == np.float32(code)] = np.nan
        if spec.below is not None:
            keep = spec.codes(feature)[:1] if single else ()
            low = readings < spec.below
            for code in keep:
                low &= readings != np.float32(code)
            readings[low] = np.nan


def _joined(
    words: dict[str, tuple[list[str], np.ndarray]], names: Sequence[str], mark: str
) -> tuple[list[str], np.ndarray]:
    """Return the distinct texts of joined columns that occur, and for each row the number of its text, int64 [t]."""
    texts, codes = words[names[0]]
    used, codes = np.unique(codes, return_inverse=True)
    texts = [texts[one] for one in used.tolist()]
    for name in names[1:]:
        more, others = words[name]
        pairs, codes = np.unique(codes * len(more) + others, return_inverse=True)
        texts = [f"{texts[one // len(more)]}{mark}{more[one % len(more)]}" for one in pairs.tolist()]
    return texts, codes


def _seconds(
    words: dict[str, tuple[list[str], np.ndarray]],
    count: int,
    roles: _Roles,
    spec: TableSpec,
    state: _State,
    where: object,
    called: Any,
) -> np.ndarray:
    """Return the times of rows in seconds since 1970, int64 [t,1], or [t,K] where names of columns say times too."""
    labels = [time for _, _, time in roles.labels]
    texts, codes = [""], np.zeros(count, np.int64)
    if spec.time:
        if not spec.form and len(spec.time) > 1:
            first, numbers = words[spec.time[0]]
            words = words | {spec.time[0]: ([MIDNIGHT.sub("", text) for text in first], numbers)}
        texts, codes = _joined(words, spec.time, " ")
    named = any(labels) and not spec.slot_s
    if named:
        texts = [f"{text} {label}".strip() for text in texts for label in labels]
    elif not spec.time and not (any(labels) and not spec.start):
        texts = [spec.start]
    form = "" if not spec.time and not named else spec.form
    if texts == [""]:
        parsed, utc = np.zeros(1, np.int64), False
    else:
        parsed, utc, wrong = parse_times(texts, replace(spec, form=form) if form != spec.form else spec)
        if wrong is not None:
            row = int((codes == wrong // (len(labels) if named else 1)).argmax())
            written = spec.form or "ISO 8601, such as 2024-03-01 08:00:00"
            helps = f"correct it, or say how times are written, as for {Argument('time_format', '%d/%m/%Y %H:%M')}"
            raise SocialxError(
                where, f"{called(row)} has the time {texts[wrong][:40]!a}, not written as {written}", helps
            )
    if state.utc not in (None, utc):
        problem = f"some times say how far they are from UTC, and others ({called(0)}) do not"
        raise SocialxError(where, problem, "write all times in one way")
    state.utc = utc
    seconds = parsed.reshape(-1, len(labels))[codes] if named else parsed[codes][:, None]
    if spec.seconds:
        texts, codes = words[spec.seconds]
        added = np.array([_number(text) for text in texts])[codes]
        if np.isnan(added).any():
            row = int(np.isnan(added).argmax())
            problem = f"{called(row)}, column {spec.seconds[:40]!a} is {texts[codes[row]][:40]!a}, no number of seconds"
            raise SocialxError(where, problem, "correct it, or remove the row")
        seconds = seconds + np.rint(added).astype(np.int64)[:, None]
    elif spec.step_s and not spec.time:
        seconds = seconds + spec.step_s * np.arange(state.rows, state.rows + count)[:, None]
    if spec.slot_s:
        if odd := [label for label in labels if not re.fullmatch("[0-9]{1,9}", label)]:
            raise SettingsError(
                where, f"{odd[0][:40]!a} in a column's name is no number", "write \\d+ in its group time"
            )
        seconds = seconds + spec.slot_s * np.array([int(label) - spec.slot_from for label in labels], np.int64)
    return seconds + spec.shift_s


def _number(text: str) -> float:
    try:
        number = float(text) if "_" not in text else np.nan
    except ValueError:
        return np.nan
    return number if abs(number) < LATEST_S else np.nan


def parse_times(texts: Sequence[str], spec: TableSpec) -> tuple[np.ndarray, bool, int | None]:
    """Return texts as seconds since 1970, int64, whether they are in UTC, and the index of a text that is no time."""
    import pandas as pd

    column = pd.Series(list(texts), dtype=object).str.strip()
    if spec.until:
        column = column.str.split(spec.until, n=1, regex=False).str[0].str.strip()
    if spec.form in SECONDS or spec.form == EXCEL:
        numbers = (
            np.array([_number(text) for text in column])
            if spec.form != "ms"
            else np.array([_number(text[:-3]) if len(text) > 3 else np.nan for text in column.str.partition(".")[0]])
        )
        seconds = (numbers - EPOCH_EXCEL) * DAY_S if spec.form == EXCEL else numbers
        bad = ~((seconds >= 0) & (seconds < LATEST_S))
        whole = np.where(bad, 0, np.rint(np.where(bad, 0, seconds))).astype(np.int64)
        return whole, spec.form != EXCEL, int(bad.argmax()) if bad.any() else None
    offset = column.str.contains(OFFSET, regex=True) if not spec.form else None
    utc = "%z" in spec.form or spec.form.endswith("Z") or (offset is not None and bool(offset.iloc[0]))
    form = spec.form or "ISO8601"
    try:
        parsed = pd.to_datetime(column, format=form, utc=utc, errors="coerce")
        if parsed.isna().any() and (late := parsed.isna() & column.str.contains(LATE, regex=True)).any():
            plain = column[late].str.replace(LATE, "00", regex=True)
            parsed[late] = pd.to_datetime(plain, format=form, utc=utc, errors="coerce") + pd.Timedelta(days=1)
    except (ValueError, re.error) as error:
        raise SettingsError(
            "", f"{spec.form[:60]!a} is no form of times ({error})", "write for example %d.%m.%Y"
        ) from None
    bad = parsed.isna().to_numpy()
    if offset is not None:
        bad = bad | (offset != utc).to_numpy() | ~column.str.fullmatch(DATED).to_numpy(bool)
    parsed = parsed.dt.tz_localize(None) if parsed.dt.tz is not None else parsed
    return parsed.to_numpy("datetime64[s]").astype(np.int64), utc, int(bad.argmax()) if bad.any() else None


def _codes(
    words: dict[str, tuple[list[str], np.ndarray]],
    count: int,
    roles: _Roles,
    spec: TableSpec,
    state: _State,
    where: object,
    called: Any,
) -> np.ndarray:
    """Return the numbers of sensors with a lane, int32 [t,K], or [1,K] where all rows have the same ones."""
    none = [""], np.zeros(count, np.int64)
    sensors, rows = _joined(words, spec.sensor, "-") if spec.sensor else none
    lanes, row_lanes = _joined(words, spec.lane, "-") if spec.lane else none
    if spec.sensor and (lacking := [number for number, text in enumerate(sensors) if not text.strip("-")]):
        row = called(int((rows == lacking[0]).argmax()))
        raise SocialxError(where, f"{row} has no sensor in {spec.sensor[0][:40]!a}", "correct it, or remove the row")
    alone = spec.name or re.sub(r"\.(csv|txt|gz|tsv|json|jsonl|parquet|xlsx)$", "", getattr(where, "name", "sensor"))
    pairs, index = np.unique(rows * len(lanes) + row_lanes, return_inverse=True)
    codes = np.empty((len(pairs), len(roles.labels)), np.int32)
    for at, pair in enumerate(pairs.tolist()):
        sensor, lane = sensors[pair // len(lanes)], lanes[pair % len(lanes)]
        for column, (named, own, _) in enumerate(roles.labels):
            key = "-".join(filter(None, (sensor, named))) or alone, "-".join(filter(None, (lane, own)))
            codes[at, column] = state.keys.setdefault(key, len(state.keys))
    if spec.latitude:
        _locate(words, sensors, rows, spec, state, where, called)
    return codes if len(pairs) == 1 else codes[index]


def _locate(
    words: dict[str, tuple[list[str], np.ndarray]],
    sensors: list[str],
    rows: np.ndarray,
    spec: TableSpec,
    state: _State,
    where: object,
    called: Any,
) -> None:
    """Keep the first position of each new sensor. Raises SocialxError for what is no position in degrees."""
    for number, first in zip(*np.unique(rows, return_index=True), strict=True):
        sensor = sensors[number] or spec.name
        if sensor in state.positions:
            continue
        texts = [words[name][0][words[name][1][first]] for name in (spec.latitude, spec.longitude)]
        if not any(texts):
            continue
        place = tuple(_number(text.replace(spec.decimal, ".")) for text in texts)
        if not (abs(place[0]) <= 90 and abs(place[1]) <= 180):
            problem = f"{called(int(first))} has the position {sample(texts)}, no degrees"
            raise SocialxError(where, problem, "describe columns of latitude and longitude in degrees")
        state.positions[sensor] = place[0], place[1]


# All pieces.


def _clock(parts: list[_Part], spec: TableSpec, state: _State, where: object) -> tuple[str | None, list[Message]]:
    """Return the zone of the times, and notes; wall times of a zone become UTC in ``parts`` if an hour comes twice.

    A pair of readings of one sensor at a time that comes twice are the two hours, in the order of the rows.
    """
    if state.utc:
        return "UTC", []
    wide = all(part.codes.shape[0] == 1 and part.seconds.shape[1] == 1 for part in parts)
    flat = [_flat(part, wide) for part in parts]
    seconds, keys = (np.concatenate(side) for side in zip(*flat, strict=True))
    if wide and (np.diff(seconds) > 0).all():
        return spec.zone or None, []
    order = np.lexsort((np.arange(len(seconds)), seconds, keys))
    same = (np.diff(seconds[order]) == 0) & (np.diff(keys[order]) == 0)
    if not same.any():
        return spec.zone or None, []
    backward = np.count_nonzero(np.diff(seconds) < 0) > np.count_nonzero(np.diff(seconds) > 0)
    if not spec.zone:
        mine = seconds[keys == keys[order[:-1][same][0]]]
        found = repeated_hour(
            mine[::-1] if backward else mine, where, f"keep both hours with {Argument('timezone', 'ZONE')}"
        )
        if found:
            raise found[1]
        return None, []
    zone = ZoneInfo(spec.zone)
    first, second = (seconds - shifts(zone, seconds, fold) for fold in (0, 1))
    again = np.zeros(len(seconds), bool)
    again[order[1:][same]] = True
    ambiguous = second > first
    if not (again & ambiguous).any():
        return spec.zone, []
    if (skipped := second < first).any():
        at = as_text(int(seconds[skipped.argmax()]))
        problem = f"the time {at} is skipped by daylight saving time in {spec.zone}"
        raise SocialxError(where, problem, f"say the right {Argument('timezone')}")
    paired = again.copy()
    paired[order[:-1][same]] = True
    later = again & ambiguous if not backward else paired & ~again & ambiguous
    utc = np.where(later, second, first)
    for row in np.flatnonzero(ambiguous & ~paired).tolist():
        utc[row] = _by_neighbours(row, keys, utc, (first[row], second[row]), ambiguous & ~paired, backward)
        if utc[row] < 0:
            problem = f"the time {as_text(int(seconds[row]))} is there once, and comes twice in {spec.zone}"
            raise SocialxError(where, problem, REWRITE)
    begin = 0
    for number, (part, (piece, _)) in enumerate(zip(parts, flat, strict=True)):
        times = utc[begin : begin + len(piece)]
        begin += len(piece)
        parts[number] = replace(part, seconds=times.reshape(len(part.values), -1))
    told = f"times come twice at the end of daylight saving time in {spec.zone}, so all times are written in UTC"
    return "UTC", [Message(where, told)]


def _flat(part: _Part, wide: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return times and sensors of each reading in order; of a wide part those of its first column."""
    if wide:
        return part.seconds[:, 0], np.zeros(len(part.seconds), np.int64)
    shape = part.values.shape[:2]
    return np.broadcast_to(part.seconds, shape).ravel(), np.broadcast_to(part.codes, shape).ravel()


def _by_neighbours(
    row: int, keys: np.ndarray, utc: np.ndarray, choices: tuple[int, int], unknown: np.ndarray, backward: bool
) -> int:
    """Return which of two moments stands between those of the sensor's rows before and after; -1 if both or none."""
    mine = np.flatnonzero(keys == keys[row])
    at = int(np.searchsorted(mine, row))
    sides = [mine[at - 1] if at else -1, mine[at + 1] if at + 1 < len(mine) else -1]
    before, after = sides[::-1] if backward else sides
    low = utc[before] if before >= 0 and (before < row or not unknown[before]) else -np.inf
    high = utc[after] if after >= 0 and not unknown[after] else np.inf
    fits = [choice for choice in choices if low < choice < high]
    return int(fits[0]) if len(fits) == 1 else -1


def _round(parts: list[_Part], step: int, where: object) -> Message:
    """Move the times of ``parts`` to whole steps, and return a note. Raises where a step gets several readings."""
    moved, largest, count = 0, 0, 0
    for wide in (all(part.codes.shape[0] == 1 and part.seconds.shape[1] == 1 for part in parts),):
        flat = [_flat(part, wide) for part in parts]
    seconds, keys = (np.concatenate(side) for side in zip(*flat, strict=True))

    def shared(width: int) -> int:
        steps = np.rint(seconds / width).astype(np.int64)
        order = np.lexsort((steps, keys))
        equal = (np.diff(steps[order]) == 0) & (np.diff(keys[order]) == 0) & (np.diff(seconds[order]) != 0)
        return int(np.count_nonzero(equal))

    if together := shared(step):
        finer = next((f"{width} s" for width in STEPS_S if width < step and not shared(width)), "")
        problem = f"rounding to {step} s puts {counted(together, 'reading')} into the step of another one of its sensor"
        raise SocialxError(where, problem, f"round to {finer}, which holds one each" if finer else "remove one of each")
    for number, part in enumerate(parts):
        whole = step * np.rint(part.seconds / step).astype(np.int64)
        off = np.abs(whole - part.seconds)
        moved, largest, count = moved + int(np.count_nonzero(off)), max(largest, int(off.max())), count + off.size
        parts[number] = replace(part, seconds=whole)
    return Message(where, f"{moved:,} of {count:,} times moved to whole {step / 60:g} min, by up to {largest} s")


class _Conflict(Exception):
    """Two other readings for one sensor at one time."""

    def __init__(self, second: int, key: int, pair: tuple[float, float]) -> None:
        super().__init__(second)
        self.second, self.key, self.pair = second, key, pair


def _placed(axis: np.ndarray, parts: list[_Part], width: int, features: int) -> tuple[np.ndarray, int]:
    """Return readings on the axis, float32 [T,M,F], and how many came again; empties ``parts``. Raises _Conflict."""
    grid = np.full((len(axis), width, features), np.nan, np.float32)
    rows_taken, again = np.zeros(len(axis), bool), 0
    taken: np.ndarray | None = None
    cells = grid.reshape(len(axis) * width, features)
    while parts:
        part = parts.pop(0)
        rows = np.searchsorted(axis, part.seconds)
        if rows.shape[1] == 1 and part.codes.shape == (1, width) and taken is None:
            at, columns = rows[:, 0], part.codes[0]
            if len(np.unique(at)) == len(at) and not rows_taken[at].any():
                if (columns == np.arange(width)).all():
                    grid[at] = part.values
                else:
                    grid[at[:, None], columns] = part.values
                rows_taken[at] = True
                continue
        if taken is None:
            taken = np.repeat(rows_taken, width)
        index = (rows * width + part.codes).ravel()
        values = part.values.reshape(len(index), features)
        free = ~taken[index]
        cells[index[free][::-1]] = values[free][::-1]  # the first of several stays
        before, taken[index] = int(np.count_nonzero(taken[index])), True
        stored = cells[index]
        other = ((stored != values) & ~(np.isnan(stored) & np.isnan(values))).any(axis=1)
        if other.any():
            row = int(other.argmax())
            differs = (stored[row] != values[row]) & ~(np.isnan(stored[row]) & np.isnan(values[row]))
            at = int(differs.argmax())
            pair = float(stored[row, at]), float(values[row, at])
            raise _Conflict(int(axis[index[row] // width]), int(index[row] % width), pair)
        again += before + int(np.count_nonzero(free)) - len(np.unique(index[free]))
    return grid, again


def _two_readings(
    conflict: _Conflict, keys: list[tuple[str, str]], sources: Sequence[Source], spec: TableSpec, where: object
) -> SocialxError:
    """Return the error about two readings, which names their rows and the columns in which these differ."""
    sensor = " lane ".join(filter(None, keys[conflict.key]))
    pair = " and ".join("none" if value != value else f"{value:g}" for value in conflict.pair)
    problem = f"{sensor} has two readings at {as_text(conflict.second)} ({pair})"
    rows = _rows_at(conflict, keys, sources, spec)
    if len(rows) < 2:
        return SocialxError(where, problem, "remove one of them")
    (one, cells), (other, others) = rows[:2]
    problem += f" in {one} and {other}"
    values = {*spec.values.values()}
    differ = [name for name in cells if cells[name] != others.get(name, "") and name not in {*spec.time, *values}]
    differ = sorted(differ, key=lambda name: _is_reading(cells[name], others.get(name, "")))
    if not differ:
        return SocialxError(where, problem, "remove one of them")
    best = differ[0]
    named = f", which differ in {best[:40]!a} ({cells[best][:20]!a}, {others[best][:20]!a})"
    helps = (
        f"name it as a part of the sensor with {Argument('sensor_column', best)}, "
        f"or keep one kind of rows: only: {{{best!r}: {cells[best]!r}}} in a description of the table"
    )
    return SocialxError(where, problem + named, helps)


def _is_reading(one: str, other: str) -> tuple[bool, int]:
    """Return a key by which columns of kinds stand before those of readings."""
    fraction = any("." in text for text in (one, other))
    return fraction or (one.isdigit() and len(one) > 3), len(one)


def _rows_at(
    conflict: _Conflict, keys: list[tuple[str, str]], sources: Sequence[Source], spec: TableSpec
) -> list[tuple[str, dict[str, str]]]:
    """Return (name, cells by column) of the rows with a sensor's time."""
    found, wanted = list[tuple[str, dict[str, str]]](), keys[conflict.key]
    for table, roles in _described(sources, spec):
        state = _State({key: number for number, key in enumerate(keys)})
        looked = [*roles.texts.values(), *(c for c in range(len(table.names)) if c not in roles.texts.values())]
        looked = [*dict.fromkeys(looked)][: max(COLUMNS, len(roles.texts))]
        for rows in table.walk(looked, roles.numbers):
            used = replace(rows, texts=rows.texts[: len(roles.texts)])
            part = _part(used, roles, spec, state, table.where)
            if part is None:
                continue
            seconds = part.seconds
            if spec.round_s:
                seconds = spec.round_s * np.rint(seconds / spec.round_s).astype(np.int64)
            hit = (seconds == conflict.second) & (part.codes == state.keys[wanted])
            for row in np.flatnonzero(np.broadcast_to(hit, part.values.shape[:2]).any(axis=1)).tolist():
                at = int(part.rows[row])
                cells = {table.names[c]: as_texts(a.slice(at, 1))[0] for c, a in zip(looked, rows.texts, strict=True)}
                found.append((rows.name(at), cells))
                if len(found) == 2:
                    return found
    return found


# Lanes.


def _combined(
    values: np.ndarray,
    keys: list[tuple[str, str]],
    ids: tuple[str, ...],
    features: tuple[str, ...],
    spec: TableSpec,
    where: object,
) -> tuple[np.ndarray, list[Message], tuple[str, ...]]:
    """Return lanes [T,M,F] as sensors, float32 [T,N,F], a note, and the names of each sensor's lanes.

    Numbers for no reading and impossible ones count for nothing. Flows are summed, and missing where one of a lane is;
    speeds are means weighted by flow where it is known; others are means (Chen et al., Transportation Research Record
    1748, 2001). Raises SocialxError where a lane is the sum of the others.
    """
    number = {sensor: index for index, sensor in enumerate(ids)}
    sensor = np.array([number[name] for name, _ in keys], np.int64)
    order = np.argsort(sensor, kind="stable")
    begins = np.flatnonzero(np.diff(sensor[order], prepend=-1))
    names = [[lane for name, lane in keys if name == one] for one in ids]
    lanes = tuple(", ".join(sorted({_lane_name(lane) for lane in part})) for part in names)
    result = np.empty((len(values), len(ids), len(spec.features)), np.float32)
    flow = features.index(FLOW) if FLOW in features else None
    rows, odd = max(1, COMBINED_BYTES // (8 * values[0].size)), 0

    def total(part: np.ndarray) -> np.ndarray:
        return np.add.reduceat(part, begins, axis=1)

    for begin in range(0, len(values), rows):
        piece = values[begin : begin + rows, order].astype(np.float64)
        for index, feature in enumerate(features):
            for code in spec.codes(feature):
                piece[..., index][piece[..., index] == np.float32(code)] = np.nan
            wrong = impossible(piece[..., index], feature, spec.units.get(feature, ""))
            odd += int(np.count_nonzero(wrong))
            piece[..., index][wrong] = np.nan
        if begin == 0 and flow is not None:
            _refuse_total(piece[..., flow], begins, lanes, ids, where)
        for index, feature in enumerate(spec.features):
            readings = piece[..., index]
            known = np.isfinite(readings)
            with np.errstate(invalid="ignore", divide="ignore"):
                mean = total(np.where(known, readings, 0.0)) / total(known)
                if feature == FLOW:
                    mean = total(readings)
                elif feature == "avg_speed" and flow is not None:
                    weight = np.where(known, piece[..., flow], 0.0)
                    weighted = total(np.where(known, weight * readings, 0.0)) / total(weight)
                    mean = np.where(np.isfinite(weighted), weighted, mean)
            result[begin : begin + rows, :, index] = mean
    first = max(range(len(ids)), key=lambda one: len(names[one]))
    notes = [Message(where, f"lanes are combined to sensors ({ids[first]}: {lanes[first]})")]
    if odd:
        text = (
            f"{counted(odd, 'number of a lane is', 'numbers of lanes are')} impossible, and left out of sums and means"
        )
        notes.append(Message(where, text))
    return result, notes, lanes


def _lane_name(lane: str) -> str:
    """Return ``2`` for ``L2``, and a lane without a number as it is."""
    number = re.search("[0-9]+$", lane)
    return str(int(number[0])) if number else lane


def _refuse_total(
    flows: np.ndarray, begins: np.ndarray, lanes: Sequence[str], ids: Sequence[str], where: object
) -> None:
    """Raise where the first flows [t,M], ordered by sensor, show that a lane is the sum of the sensor's others."""
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], flows.shape[1]], strict=True)):
        if end - begin > MOST_ALIKE:
            mine = flows[:, begin:end]
            complete = mine[np.isfinite(mine).all(axis=1) & (mine != 0).all(axis=1)]
            if len(complete) >= PROVED and (2 * complete == complete.sum(axis=1, keepdims=True)).all(axis=0).any():
                problem = f"one of the lanes {lanes[number]} of {ids[number]} is the sum of the others"
                raise SocialxError(where, problem, "leave the sum out, so that nothing is counted twice")


def fits(spec: TableSpec, names: Sequence[str]) -> bool:
    """Return whether a table with columns of these names has all that ``spec`` describes."""
    try:
        _roles(Table("", list(names), lambda texts, numbers: iter(())), spec)
    except SettingsError:
        return False
    return True
