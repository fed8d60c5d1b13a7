"""Append rows from new tables to a socialx file, and columns for new sensors.

File and tables are compared once. A copy is then extended, checked, and moved into the file's place. T
file rows, t table rows, N sensors with new sensors last, F measured features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from socialx.core.disk import file_lock, file_signature
from socialx.core.errors import ITEM, Argument, Command, Message, SettingsError, SocialxError, counted, sample
from socialx.core.notebook import ResultRepr
from socialx.core.progress import note
from socialx.data.calendar import DAY_S, shifts
from socialx.data.source import pages
from socialx.files.sources import CSV
from socialx.files.sources.contents import Contents
from socialx.files.sources.positions.locations import ADVICE as LOCATIONS
from socialx.files.sources.positions.locations import join, match_ids, read_locations
from socialx.files.sources.recognition import FORMATS
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables.clock_changes import goes_back, in_utc
from socialx.files.store import layout
from socialx.files.store.head import read_head
from socialx.files.store.ids import case_variants, find_repeated, match_key
from socialx.files.store.open_hdf5 import open_hdf5, packed_bytes, reserve
from socialx.files.store.quantities import SPEED
from socialx.files.store.store import Store, open_store
from socialx.files.store.time_axis import JITTER_S, as_timestamps, common_step, gap_times, known_zone, odd_rows
from socialx.files.store.writer import (
    ADVICE,
    WAIT_S,
    amend,
    check_writable,
    create_features,
    static_columns,
    write_column,
    write_sensors,
)

WEEK_S = 7 * DAY_S
UNIT_RATIO = 1.4  # between two medians; a mile has 1.6 km
NO_SENSORS = layout.Sensors((), np.empty(0), np.empty(0))
WHOLE = Command("convert", "auto", "OLD", "NEW", meta_csv="LOCATIONS.csv", output="OUT.h5")


@dataclass(frozen=True, repr=False)
class AppendResult(ResultRepr):
    """Result of ``append``.

    rows: rows added from the new tables. filled: rows of missing observations before and between the added rows.
    restored: file rows whose missing observations were filled in. repeated: table rows already in the file. absent:
    file ids that the tables lack. new: ids that the file lacked. total: file rows afterwards.
    """

    path: Path
    rows: int
    filled: int
    restored: int
    repeated: int
    absent: tuple[str, ...]
    new: tuple[str, ...]
    total: int
    sensors: int
    last_timestamp: str

    def headline(self) -> str:
        """Return the result as a line of text: added rows, new total and last time."""
        return f"{self.path}: {self.rows:,} new rows, {self.total:,} now, until {self.last_timestamp}"


@dataclass(frozen=True, eq=False)
class _Base:
    """The file before the append: ``rows`` stored rows, a store (reader) per measured feature, and the new sensors.

    names: all feature names. lanes: the lane names of each sensor, None where sensors are single detectors. codes:
    numbers for a missing observation besides the missing value. new: the sensors that the tables add.
    """

    stores: list[Store]
    rows: int
    names: list[str]
    lanes: list[str] | None
    codes: tuple[float, ...]
    new: layout.Sensors = NO_SENSORS
    table: str = ""

    @property
    def store(self) -> Store:
        """The store of the first measured feature; ids and times hold for every feature."""
        return self.stores[0]

    @property
    def features(self) -> list[str]:
        """The names of the F measured features."""
        return [store.feature for store in self.stores]

    @property
    def ids(self) -> tuple[str, ...]:
        """The N sensor ids after the append."""
        return (*self.store.sensors.ids, *self.new.ids)

    def readings(self, rows: np.ndarray) -> np.ndarray:
        """Return the stored numbers at the rising row indices ``rows``, int64 [t]: float32 [t,N,F], new sensors NaN."""
        values = np.full((len(rows), len(self.ids), len(self.stores)), np.nan, np.float32)
        if len(rows):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            for feature, store in enumerate(self.stores):
                values[:, : len(store.sensors.ids), feature] = store.read(part)[0][rows - rows[0]]
        return values

    def are_readings(self, values: np.ndarray) -> np.ndarray:
        """Return the mask, bool [t,N,F], of ``values`` that are observations by the file's missing values."""
        masks = [store.is_reading(values[..., feature]) for feature, store in enumerate(self.stores)]
        return np.stack(masks, axis=-1)


@dataclass(frozen=True, eq=False)
class _NewRows:
    """The new tables: observations float32 [t,N,F], times int64 [t] in a zone, and the file column of each sensor."""

    path: str
    seconds: np.ndarray
    values: np.ndarray
    columns: np.ndarray
    timezone: str | None


@dataclass(frozen=True, eq=False)
class _Change:
    """The planned write: observations float32 [w,N,F] for the rows ``target_rows`` int64 [w] in the extended file.

    base: the file before. seconds: times of all added rows, int64 [a]. gap: the added times that the file and every
    table lack, int64 [g], filled with missing observations.
    """

    base: _Base
    seconds: np.ndarray
    gap: np.ndarray
    target_rows: np.ndarray
    values: np.ndarray


def append(path: Path, request: ConvertOptions, fill_gaps: bool = False) -> AppendResult:
    """Append the tables in ``request`` to the file ``path`` atomically: the file stays as before, or becomes complete.

    The new rows are held in memory. A repeated hour turns wall times into UTC, as in ``convert``. fill_gaps: also more
    than a day. Raises SocialxError where sensors, times or observations contradict the file, or another process has
    the file open.
    """
    base = _open_base(path, request)
    if request.meta_csv is not None:
        read_head(request.meta_csv, LOCATIONS)  # which tells a wrong name before the tables are walked
    contents = _contents(base, request)
    described = "" if base.store.described else contents.table
    base = replace(base, new=_new_sensors(base, request, contents), table=described)
    table = _read_table(base, request, contents)
    if table.timezone != base.store.timezone:
        base = _in_utc(base)
    store, change = base.store, _compare(base, table, fill_gaps)
    rows, restored = len(change.seconds) - len(change.gap), len(change.target_rows) - len(change.seconds)
    new = base.new.ids if len(change.target_rows) else ()
    done = AppendResult(
        path=path,
        rows=rows,
        filled=len(change.gap),
        restored=restored,
        repeated=len(table.seconds) - rows - restored,
        absent=tuple(vdid for column, vdid in enumerate(base.ids) if column not in table.columns),
        new=new,
        total=len(store.rows) + len(change.seconds),
        sensors=len(store.sensors.ids) + len(new),
        last_timestamp=store.clock.text(max(int(store.seconds[-1]), int(table.seconds[-1]))),
    )
    _note(done, change, table)
    if len(change.target_rows):
        with file_lock(path, WAIT_S):
            if file_signature(path) != store.version:
                raise SocialxError("file.changed", path, "the file changed while it was read", "run it again")
            amend(path, partial(_extend, change), partial(_is_extended, change))
    return done


def _open_base(path: Path, request: ConvertOptions) -> _Base:
    """Open the file to extend; raise for fixed rows. Missing-value codes come from file and ``request.missing``."""
    store = open_store(path)
    check_writable(path)
    with open_hdf5(path, "convert it again") as file:
        names, features = [layout.read_text(name) for name in file[layout.FEATURE_NAMES][:]], file[layout.FEATURES]
        every = dict.fromkeys([*layout.read_codes(path, file), *(request.missing or ())])
        lanes, rows = layout.read_lanes(path, file, len(store.sensors.ids)), len(features)
        fixed = features.chunks is None or features.maxshape[0] is not None
    if fixed:
        raise SocialxError("append.fixed-rows", path, "the file is an older one with a fixed number of rows", ADVICE)
    measured = [name for name in names if name not in layout.STATIC_UNITS]
    stores = [store, *(open_store(path, name) for name in measured[1:])]
    return _Base(stores, rows, names, lanes, tuple(code for code in every if code != store.missing))


def _in_utc(base: _Base) -> _Base:
    """Return the file with wall times turned into UTC, and note it; raise SocialxError if the zone does not fit."""
    store, zone = base.store, base.store.timezone
    seconds, _ = in_utc(store.seconds, str(zone), store.path, _anew())
    twice = f"an hour comes twice in {zone}, so all times are stored in UTC, and shown in {zone}"
    note(Message("append.hour-twice", store.path, twice))
    utc = partial(replace, seconds=seconds, timestamps=as_timestamps(seconds), timezone="UTC", local_zone=zone)
    return replace(base, stores=list(map(utc, base.stores)))


def _new_sensors(base: _Base, request: ConvertOptions, contents: Contents) -> layout.Sensors:
    """Return the table sensors that the file lacks, located by the locations file; raise for a file with lanes."""
    store, path = base.store, base.store.path
    old_keys = set(map(match_key, store.sensors.ids))
    ids = tuple(vdid for vdid in contents.ids or () if match_key(vdid) not in old_keys)
    if request.meta_csv is None or not ids:
        return NO_SENSORS
    if base.lanes is not None:
        raise SocialxError("append.lanes", path, "its sensors are made of lanes: it takes no new ones", _anew())
    locations, _ = match_ids(ids, read_locations(request.meta_csv, ids))
    if unlisted := [vdid for vdid in ids if match_key(vdid) not in locations]:
        problem = f"there is no position for {len(unlisted)} of {counted(len(ids), 'new sensor')} ({sample(unlisted)})"
        remedy = "add the positions, or leave these sensors out of the tables"
        raise SocialxError("append.no-position", request.meta_csv, problem, remedy)
    return join(ids, locations, request.meta_csv, static=True)


def _contents(base: _Base, request: ConvertOptions) -> Contents:
    """Read the new tables by the description in the file, or by their own proof; ids take the file's spelling."""
    store = base.store
    unread = (*(() if store.missing is None else (store.missing,)), *base.codes)
    zone = request.timezone or store.local_zone or store.timezone
    asked = replace(request, missing=unread, timezone=zone, meta_csv=None)
    features = tuple(base.features)
    asked = replace(asked, known_ids=store.sensors.ids, known_table=store.described, known_features=features)
    contents = FORMATS[CSV].read(asked)
    spelling = {match_key(vdid): vdid for vdid in store.sensors.ids}
    cased = {vdid: spelling[key] for vdid, key in case_variants(contents.ids or (), spelling).items()}
    if cased:
        note(Message("append.case", request.where, f"ids in another case than in {store.path} ({sample(list(cased))})"))
    ids = tuple(contents.stored(cased.get(vdid, vdid)) for vdid in contents.ids or ())
    return replace(contents, ids=ids)


def _read_table(base: _Base, request: ConvertOptions, contents: Contents) -> _NewRows:
    """Return the tables, opened as ``contents``, in file order of sensors; missing-value codes become NaN."""
    store, features, where = base.store, base.features, request.where
    units = contents.units
    if len(features) > 1 and list(units) != features:
        problem = f"the tables hold {', '.join(units)}, and {store.path} holds {', '.join(features)}"
        raise SocialxError("append.quantity", where, problem, _anew())
    for other in base.stores:
        if other.unit != "unknown" and units.get(other.feature, other.unit) not in (None, other.unit):
            problem = f"{other.feature} is in {units[other.feature]}, and that of {store.path} in {other.unit}"
            raise SocialxError("append.other-unit", where, problem, "write it in the unit of the file")
    for message in contents.notes:
        note(message)
    seconds, timezone = _times(store, request, contents)
    columns, (block,) = _columns(base, where, contents), contents.blocks
    values = np.full((len(seconds), len(base.ids), len(features)), np.nan, np.float32)
    values[:, columns] = np.where(layout.is_code(block.values, features, base.codes), np.float32(np.nan), block.values)
    return _NewRows(where, seconds, values, columns, timezone)


def _times(store: Store, request: ConvertOptions, contents: Contents) -> tuple[np.ndarray, str | None]:
    """Return the times of the tables by the file's clock, int64 [t], and its zone: UTC where an hour comes twice."""
    where, given, zone = request.where, request.timezone, known_zone(store.timezone)
    times, last = contents.times if contents.times is not None else np.empty(0, np.int64), int(store.seconds[-1])
    if store.timezone == "UTC":
        if contents.timezone == "UTC":
            return times, "UTC"
        if given is None and store.local_zone is None:
            problem = f"the times do not say their zone, and {store.path} is in UTC"
            remedy = f"add {Argument('timezone', 'ZONE')}, or {Argument('timezone', 'UTC')}"
            raise SocialxError("append.zone", where, problem, remedy)
        if given is None:
            otherwise = f"add {Argument('timezone', 'UTC')} if they are in UTC"
            read = f"the times are read in {store.local_zone}, the local zone of {store.path}"
            note(Message("append.zone-assumed", where, read, otherwise))
        return in_utc(times, str(given or store.local_zone), where, _anew())[0], "UTC"
    if given not in (None, store.timezone):
        problem = f"the times are of {store.timezone}"
        raise SettingsError("append.zone-given", store.path, problem, f"drop {Argument('timezone', given)}")
    wall, twice = times, False
    if contents.timezone == "UTC":
        if zone is None:
            unsaid = f"and {store.path} does not say the zone of its wall times"
            problem = f"the times say how far they are from UTC, {unsaid}"
            raise SocialxError("append.offset", where, problem, "write them as wall times of that zone")
        wall = times + shifts(zone, times)
        twice = goes_back(wall) or bool((wall - shifts(zone, wall, 0) != times).any())
    if zone is not None and len(wall):
        before, after = shifts(zone, np.array([last, wall[0]]), 0)
        twice = twice or bool(wall[0] > last and after < before)
    if not twice:
        return wall, store.timezone
    return times if contents.timezone == "UTC" else in_utc(wall, str(store.timezone), where, _anew())[0], "UTC"


def _columns(base: _Base, where: str, contents: Contents) -> np.ndarray:
    """Return the file column of each sensor in the tables ``where``, int64; raise for absent sensors or other lanes."""
    ids, path, lanes = contents.ids or (), base.store.path, base.lanes
    if twice := find_repeated(ids):
        raise SocialxError("append.twice", where, f"sensors appear twice ({sample(twice)})", "remove one of them")
    column_by_key = {match_key(vdid): column for column, vdid in enumerate(base.ids)}
    if foreign := [vdid for vdid in ids if match_key(vdid) not in column_by_key]:
        problem = f"{path} lacks {len(foreign)} of the {counted(len(ids), 'sensor')} ({sample(foreign, 10)})"
        drop = f" ({Argument('drop', foreign[0])})" if contents.droppable and len(foreign[0]) <= ITEM else ""
        remedy = f"add them with {Argument('meta_csv', 'LOCATIONS.csv')}, or leave them out{drop}"
        raise SocialxError("append.sensors", where, problem, remedy)
    columns = np.array([column_by_key[match_key(vdid)] for vdid in ids])
    if lanes is None:
        return columns
    for vdid, sensor_lanes, column in zip(ids, contents.lanes or [""] * len(ids), columns, strict=True):
        if sensor_lanes != lanes[column]:
            file_lanes = f"that of {path} is made of lanes {lanes[column]}"
            problem = f"sensor {vdid} has {f'lanes {sensor_lanes}' if sensor_lanes else 'no lanes'}, and {file_lanes}"
            raise SocialxError("append.other-lane", where, problem, f"write the same lanes, or {_anew()}")
    return columns


def _compare(base: _Base, table: _NewRows, fill_gaps: bool) -> _Change:
    """Return the rows to add and the observations that fill holes left by an earlier append. fill_gaps: as in append.

    Stored observations never change: raises SocialxError for a table value that differs from a stored observation, and
    for a time before the file's end that the file lacks.
    """
    store = base.store
    n_old = int(np.searchsorted(table.seconds, store.seconds[-1], "right"))  # rows up to the end of the file
    early, later = table.seconds[:n_old], table.seconds[n_old:]
    rows = np.searchsorted(store.seconds, early)
    if (lost := store.seconds[rows] != early).any():
        before = counted(int(lost.sum()), "row is", "rows are")
        problem = f"{before} before the end of {store.path}, which lacks the time"
        times = list(map(store.clock.text, early[lost].tolist()))
        raise SocialxError("append.differs", table.path, f"{problem} ({sample(times)})", f"remove them, or {_anew()}")
    old, new = base.readings(rows), table.values[:n_old]
    read, given = base.are_readings(old), base.are_readings(new)
    differ = ((old != new) & read)[:, table.columns]
    if differ.any():
        first = []
        for row, column, feature in np.argwhere(differ)[:2]:
            cell = row, table.columns[column], feature
            first.append(f"{base.ids[cell[1]]} at {store.clock.text(int(early[row]))} is {new[cell]}, not {old[cell]}")
        other = counted(int(differ.sum()), "reading is not that", "readings are not those")
        problem = f"{other} of {store.path} ({'; '.join(first)})"
        raise SocialxError("append.overlap", table.path, problem, "remove these rows, or convert all again, each once")
    late = given & ~read
    fills = late.any(axis=(1, 2))
    gap = _gap(store, table.path, later, fill_gaps)
    added = np.sort(np.concatenate([gap, later]))
    behind = np.full((len(added), *new.shape[1:]), np.nan, np.float32)
    behind[np.searchsorted(added, later)] = table.values[n_old:]
    places = np.concatenate([store.rows[rows[fills]], base.rows + np.arange(len(added))])
    return _Change(base, added, gap, places, np.concatenate([np.where(late, new, old)[fills], behind]))


def _gap(store: Store, where: str, seconds: np.ndarray, fill_gaps: bool) -> np.ndarray:
    """Return the times, a step apart, between the file's last row and the new rows ``seconds`` that have no row, int64
    [g]. where: the tables, for errors. Raises SocialxError for another step, and for a gap longer than the file, or
    than a day unless ``fill_gaps``.
    """
    if not len(seconds):
        return seconds
    last, step = int(store.seconds[-1]), 60 * store.step_minutes
    common = common_step(seconds) if len(seconds) > 2 else step
    odd = odd_rows(np.concatenate([[last], seconds]), step)
    if len(odd) or common > step + JITTER_S:
        times = list(map(store.clock.text, (seconds[odd[:3]] if len(odd) else seconds[:3]).tolist()))
        problem = f"the rows are not {store.step_minutes} min apart, as those of {store.path} ({sample(times)})"
        raise SocialxError("append.other-step", where, problem, "give the table the same step")
    gap = gap_times(np.concatenate([[last], seconds]), step, store.timezone)
    begins, ends = (store.clock.text(int(second)) for second in (seconds[0], last))
    if len(gap) > len(store.rows):
        problem = f"the first new row is at {begins}, {len(gap):,} empty steps after the last one of {store.path}"
        raise SocialxError("append.gap", where, problem, f"check the dates, or add {Argument('time_format')}")
    if not fill_gaps and np.diff(store.clock.local(np.array([last, seconds[0]])))[0] > DAY_S:
        problem = f"the first new row is at {begins}, more than a day after the last one of {store.path}, {ends}"
        fill = f"or fill the gap with missing readings: {Argument('fill_gaps', True)}"
        raise SocialxError("append.late", where, problem, f"append the rows in between first, {fill}")
    return gap


def _note(done: AppendResult, change: _Change, table: _NewRows) -> None:
    """Emit notes about skipped rows, absent sensors, gaps, zeros, and speeds unlike the last week."""
    base, gap, where, same = change.base, change.gap, table.path, done.repeated
    store, values = base.store, table.values[len(table.values) - done.rows :, :, 0]
    if same:
        note(f"{where}: {counted(same, 'row is', 'rows are')} in {store.path} already and were left out")
    if done.absent:
        problem = f"the table lacks {len(done.absent)} of {counted(len(base.ids), 'sensor')} of {store.path}"
        note(Message("append.absent", where, problem, "", done.absent))
    if len(gap):
        ends = " .. ".join(map(store.clock.text, gap[[0, -1]].tolist()))
        problem = f"{counted(len(gap), 'row is', 'rows are')} neither here nor in {where} ({ends})"
        note(Message("append.gap-filled", store.path, f"{problem}: filled with missing readings"))
    zeros = int((values == 0).sum())
    if zeros and store.missing != 0 and not any((store.read(part)[0] == 0).any() for part in pages(0, len(store.rows))):
        problem = f"{counted(zeros, 'zero counts as a reading', 'zeros count as readings')}, and {store.path} had none"
        note(Message("append.zeros", where, problem, f"use {Argument('missing', 0)} if zeros stand for missing values"))
    week, valid = store.read(slice(max(0, len(store.rows) - WEEK_S // (60 * store.step_minutes)), len(store.rows)))
    readings = values[store.is_reading(values)]
    if store.feature != SPEED or not len(readings) or not valid.any():
        return
    old_median, median = float(np.median(week[valid])), float(np.median(readings))
    if median > UNIT_RATIO * old_median or old_median > UNIT_RATIO * median:
        problem = f"half of the readings are above {median:.4g}, and of {store.path} above {old_median:.4g}"
        note(Message("append.level", where, problem, f"check that the readings are in {store.unit}, as in the file"))


def _extend(change: _Change, file: h5py.File) -> None:
    """Write the planned ``change`` into ``file``: new sensors, new rows with constant columns, and filled holes."""
    base, targets = change.base, change.target_rows
    if base.new.ids:
        _widen(file, base)
    features = file[layout.FEATURES]
    chunks = len(np.unique(targets // features.chunks[0]))
    reserve(file, features.shape[2] * (chunks + 1) * packed_bytes(4 * math.prod(features.chunks)))
    features.resize(base.rows + len(change.seconds), axis=0)
    for rows in np.split(np.arange(len(targets)), np.flatnonzero(np.diff(targets) > 1) + 1):
        for feature, store in enumerate(base.stores):
            features[targets[rows[0]] : targets[rows[-1]] + 1, :, store.feature_index] = change.values[rows, :, feature]
    if len(change.seconds):
        for index in {*range(features.shape[2])} - {store.feature_index for store in base.stores}:
            features[base.rows :, :, index] = features[base.rows - 1, :, index]
        _lengthen(file, layout.TIMESTAMPS, as_timestamps(change.seconds))
        if layout.SECONDS in file:
            _lengthen(file, layout.SECONDS, change.seconds)
    store = base.store
    if layout.read_text(file["metadata"].attrs.get("timezone", "")) != (store.timezone or ""):  # wall times became UTC
        columns = {layout.TIMESTAMPS: store.timestamps, layout.SECONDS: store.seconds}
        for name, column in ((name, column) for name, column in columns.items() if name in file):
            whole = file[name][:]
            whole[store.rows] = column
            file[name][:] = whole
        file["metadata"].attrs.update({"timezone": store.timezone, layout.LOCAL_ZONE_ATTR: store.local_zone})
    file.attrs[layout.ROWS_ATTR] = np.int64(len(features))
    if base.codes:
        file["metadata"].attrs[layout.CODES_ATTR] = np.array(base.codes)
    if base.table:
        file["metadata"].attrs[layout.TABLE_ATTR] = base.table


def _widen(file: h5py.File, base: _Base) -> None:
    """Add the new sensors to features, ids and vd_info in ``file``: missing observations and static attributes."""
    sensors, old, wider_name = base.new, file[layout.FEATURES], f"{layout.FEATURES}_wider"
    shape = (len(old), len(base.ids), len(base.names))
    column = np.full((len(sensors.ids), len(base.names)), np.nan, np.float32)
    for name, value in static_columns(sensors).items():
        if name in base.names and value is not None:
            column[:, base.names.index(name)] = value
    reserve(file, packed_bytes(4 * math.prod(shape)))
    wider_features = create_features(file, wider_name, shape, old.chunks[0])
    wider_features.attrs.update(old.attrs)
    for begin in range(0, len(old), old.chunks[0]):
        part = old[begin : begin + old.chunks[0]]
        more = np.broadcast_to(column, (len(part), *column.shape))
        wider_features[begin : begin + len(part)] = np.concatenate([part, more], axis=1)
    ids = layout.fixed_texts([*file[layout.VDIDS][:], *sensors.ids])
    del file[layout.FEATURES], file[layout.VDIDS]
    file.move(wider_name, layout.FEATURES)
    write_column(file, layout.VDIDS, ids)
    file.attrs["num_locations"] = np.int64(len(base.ids))
    write_sensors(file, sensors)


def _lengthen(file: h5py.File, name: str, added: np.ndarray) -> None:
    """Append the values ``added`` to a file's column ``name``; a fixed-length column is replaced by a growing one."""
    column = file[name]
    first = len(column)
    if column.maxshape != (None,):
        whole = column[:]
        del file[name]
        column = write_column(file, name, whole)
    reserve(file, packed_bytes(column.dtype.itemsize * (first + len(added))))
    column.resize(first + len(added), axis=0)
    column[first:] = added


def _is_extended(change: _Change, old: h5py.File, new: h5py.File) -> bool:
    """Return whether the ``new`` file has the planned rows, and the ``old`` rows in every chunk that was written."""
    old_features, new_features, base = old[layout.FEATURES], new[layout.FEATURES], change.base
    same = len(new_features) == len(new[layout.TIMESTAMPS]) == base.rows + len(change.seconds)
    rows = old_features.chunks[0]
    for begin in range(min(base.rows - 1, change.target_rows[0]) // rows * rows, len(new_features), rows):
        written, part = new_features[begin : begin + rows], old_features[begin : begin + rows]
        touched = (change.target_rows >= begin) & (change.target_rows < begin + rows)
        expected = written.copy()  # for the constant columns in new rows and sensors
        expected[: len(part), : part.shape[1]] = part
        for feature, store in enumerate(base.stores):
            expected[change.target_rows[touched] - begin, :, store.feature_index] = change.values[touched, :, feature]
        same = same and np.array_equal(written, expected, equal_nan=True)
    store = base.store
    same = same and np.array_equal(new[layout.TIMESTAMPS][: base.rows].astype("S19")[store.rows], store.timestamps)
    if not len(change.seconds):
        return same
    return same and np.array_equal(new[layout.TIMESTAMPS][base.rows :].astype("S19"), as_timestamps(change.seconds))


def _anew() -> str:
    return f"convert all rows into a new file: {WHOLE}"
