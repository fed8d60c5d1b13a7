"""Rows of new tables at the end of a socialx file, and columns for sensors that are new to it.

The file is copied, the copy is extended and checked, and then takes the file's place in one step.
T rows of the file, t new rows, N sensors, the new ones behind those of the file, F features.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from socialx.data.calendar import DAY_S
from socialx.data.source import pages
from socialx.disk import exclusive, version_of
from socialx.errors import ITEM, Argument, Command, Message, SettingsError, SocialxError, counted, sample
from socialx.files.amend import ADVICE, WAIT_S, amend, check_writable
from socialx.files.convert_options import Request
from socialx.files.formats.columns import QUANTITY_COLUMNS
from socialx.files.formats.contents import Contents
from socialx.files.formats.registry import FORMATS
from socialx.files.formats.tables import CSV
from socialx.files.hdf5_layout import (
    CODES_ATTR,
    FEATURE_NAMES,
    FEATURES,
    PACKED,
    ROWS_ATTR,
    SECONDS,
    STATIC_UNITS,
    TIMESTAMPS,
    VDIDS,
    Readings,
    Sensors,
    fixed_texts,
    read_codes,
    read_lanes,
    read_text,
)
from socialx.files.ids import match_key, repeated
from socialx.files.locations import join, respelt
from socialx.files.open_hdf5 import open_hdf5, packed_bytes, reserve
from socialx.files.position_tables import read_locations
from socialx.files.quantities import SPEED
from socialx.files.readings import in_order, without
from socialx.files.store import Store, open_store
from socialx.files.time_axis import JITTER_S, as_timestamps, common_step, irregular, known_zone, skipped_times
from socialx.files.writer import check_block, static_columns, write_sensors
from socialx.notebook import Shown
from socialx.progress import note

WEEK_S = 7 * DAY_S
UNIT_RATIO = 1.4  # of two medians; a mile has 1.6 km
WHOLE = Command("convert", "auto", "OLD", "NEW", meta="LOCATIONS.csv", output="OUT.h5")
ANEW = f"or convert all rows into a new file: {WHOLE}"


@dataclass(frozen=True, repr=False)
class Appended(Shown):
    """What ``append`` did to a file.

    rows: added from the new tables.  filled: rows of missing readings in the gap before them.  restored: rows of the
    file whose missing readings are there now.  repeated: rows that the file had already.  absent: ids of the file
    that the new tables do not have.  new: ids that the file did not have.  total: rows of the file now.
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
        """How many rows were added, and how many there are."""
        return f"{self.path}: {self.rows:,} new rows, {self.total:,} now, until {self.last_timestamp}"


@dataclass(frozen=True, eq=False)
class _Rows:
    """New rows in the columns of the file: seconds [t], values float32 [t,N,F]; columns: those that have readings."""

    seconds: np.ndarray
    values: np.ndarray
    columns: np.ndarray


@dataclass(frozen=True, eq=False)
class _Change:
    """What is written: rows behind those of the file, and readings float32 [h,N,F] in its rows ``holes`` int64 [h].

    codes: numbers that stand for no reading besides the one of the file.  new: sensors that it does not have.
    """

    new: Sensors
    added: _Rows
    holes: np.ndarray
    restored: np.ndarray
    codes: tuple[float, ...]


def append(path: Path, request: Request) -> Appended:
    """Write the rows of new tables after the last row of a file; the file is the old one or the complete new one.

    The new rows are held in memory.  Raises SocialxError, and leaves the file as it was, where sensors, times or
    readings do not fit, or somebody else has the file open.
    """
    store = open_store(path)
    check_writable(path)
    with open_hdf5(path, "convert it again") as file:
        names, features = [read_text(name) for name in file[FEATURE_NAMES][:]], file[FEATURES]
        codes, lanes = _codes(store, file, request), read_lanes(path, file, len(store.sensors.ids))
        fixed = features.chunks is None or features.maxshape[0] is not None
    if fixed:
        raise SocialxError(path, "an older file, whose readings have a fixed number of rows", ADVICE)
    measured = [name for name in names if name not in STATIC_UNITS]
    stores = [store, *(open_store(path, name) for name in measured[1:])]
    contents = _contents(stores, request, codes)
    new_sensors = _new_sensors(store, request, lanes, contents)
    stores = [replace(each, sensors=_joined(each.sensors, new_sensors)) for each in stores]
    store = stores[0]
    rows = _read(stores, request, codes, lanes, contents)
    later = rows.seconds > store.seconds[-1]
    new = _Rows(rows.seconds[later], rows.values[later], rows.columns)
    holes, restored = _overlap(stores, request.data, rows, len(rows.seconds) - len(new.seconds))
    same = len(rows.seconds) - len(new.seconds) - len(holes)
    absent = tuple(vdid for column, vdid in enumerate(store.sensors.ids) if column not in rows.columns)
    gap = _check_steps(store, request.data, new.seconds) if len(new.seconds) else np.empty(0, np.int64)
    _note(store, request.data, new, same, absent, gap)
    changes = bool(len(new.seconds) or len(holes))
    if changes:
        missing = np.full((len(gap), *new.values.shape[1:]), np.nan, np.float32)
        added = _Rows(np.concatenate([gap, new.seconds]), np.concatenate([missing, new.values]), rows.columns)
        change = _Change(new_sensors, added, holes, restored, codes)
        with exclusive(path, WAIT_S):
            if version_of(path) != store.version:
                raise SocialxError(path, "it was changed while it was read", "run the command again")
            amend(path, partial(_extend, stores, change), partial(_is_extended, stores, change))
    last = as_timestamps(new.seconds[-1:])[0] if len(new.seconds) else store.timestamps[-1]
    total = len(store.rows) + len(gap) + len(new.seconds)
    counts = len(new.seconds), len(gap), len(holes), same
    more = new_sensors.ids if changes else ()
    sensors = len(store.sensors.ids) - len(new_sensors.ids) + len(more)
    return Appended(path, *counts, absent, more, total, sensors, last.decode())


def _codes(store: Store, file: h5py.File, request: Request) -> tuple[float, ...]:
    """What stands for no reading besides the number that the file names: codes of its conversion and of the request."""
    every = dict.fromkeys([*read_codes(store.path, file), *(request.missing or ())])
    return tuple(code for code in every if code != store.missing)


def _joined(sensors: Sensors, new: Sensors) -> Sensors:
    """The sensors of a file, and those that are new to it behind them; what of these nobody knows is NaN."""
    if not new.ids:
        return sensors

    def joined(known: np.ndarray, more: np.ndarray | None) -> np.ndarray:
        return np.concatenate([known, np.full(len(new.ids), np.nan) if more is None else more])

    direction = None if sensors.direction is None else (*sensors.direction, *(new.direction or [""] * len(new.ids)))
    return Sensors(
        ids=(*sensors.ids, *new.ids),
        latitude=joined(sensors.latitude, new.latitude),
        longitude=joined(sensors.longitude, new.longitude),
        lanes=None if sensors.lanes is None else joined(sensors.lanes, new.lanes),
        length=None if sensors.length is None else joined(sensors.length, new.length),
        direction=direction,
    )


def _new_sensors(store: Store, request: Request, lanes: list[str] | None, contents: Contents) -> Sensors:
    """The sensors of the new tables that the file does not have, with their positions, where these are named.

    Raises SocialxError for one without a position, and for a file whose sensors are made of lanes.
    """
    none = Sensors((), np.empty(0), np.empty(0))
    if request.meta is None:
        return none
    known = set(map(match_key, store.sensors.ids))
    ids = tuple(contents.stored(vdid) for vdid in contents.ids or () if match_key(vdid) not in known)
    if not ids:
        return none
    if lanes is not None:
        raise SocialxError(store.path, "its sensors are made of lanes, and such a file takes no new ones", ANEW[3:])
    locations, _ = respelt(ids, read_locations(request.meta, ids, request.city))
    if lost := [vdid for vdid in ids if match_key(vdid) not in locations]:
        found = f"no position for {len(lost)} of {counted(len(ids), 'new sensor')} ({sample(lost)})"
        raise SocialxError(request.meta, found, "add them, or leave these sensors out of the tables")
    return join(ids, locations, request.meta, static=store.sensors.lanes is not None)


def _contents(stores: list[Store], request: Request, codes: tuple[float, ...]) -> Contents:
    """The new tables as the format of tables reads them, asked for the quantities of the file."""
    store = stores[0]
    unread = (*(() if store.missing is None else (store.missing,)), *codes)
    asked = replace(request, known=store.sensors.ids, missing=unread, timezone=store.timezone, meta=None)
    if len(stores) > 1:
        asked = replace(asked, channel=request.channel or ",".join(each.feature for each in stores))
    elif store.feature in QUANTITY_COLUMNS:
        asked = replace(asked, quantity=store.feature)
    return FORMATS[CSV].read(asked)


def _read(
    stores: list[Store], request: Request, codes: tuple[float, ...], lanes: list[str] | None, contents: Contents
) -> _Rows:
    """The rows of the new tables, in memory; ``codes`` are NaN in them.

    lanes: of the sensors of the file.  A table with several quantities in a row is asked for those of the file.
    """
    store, features = stores[0], [each.feature for each in stores]
    said = {contents.feature: contents.units, **contents.others}
    if len(stores) > 1 and list(said) != features:
        found = f"its readings are {', '.join(said)}, and those of {store.path} {', '.join(features)}"
        raise SocialxError(request.data, found, ANEW.removeprefix("or "))
    for each in stores:
        if each.unit != "unknown" and said.get(each.feature, each.unit) not in (None, each.unit):
            found = f"its {each.feature} is in {said[each.feature]}, and that of {store.path} in {each.unit}"
            raise SocialxError(request.data, found, "write it in the unit of the file")
    with closing(contents.blocks):
        readings = _readings(store, request, contents)
        columns = _columns(store, lanes, request.data, contents)
        seconds, values = np.empty(0, np.int64), []
        for block in without(readings.blocks, codes, features):
            check_block(readings, block, seconds)
            seconds = np.concatenate([seconds, block.seconds])
            values.append(np.full((len(block.speeds), len(store.sensors.ids), len(stores)), np.nan, np.float32))
            values[-1][:, columns] = block.speeds.reshape(len(block.speeds), -1, len(stores))
    return _Rows(seconds, np.concatenate(values), columns)


def _readings(store: Store, request: Request, contents: Contents) -> Readings:
    """The new tables as readings of the file's network, their times in the zone of the file."""
    where, zone = request.data, request.timezone
    wall = bool(contents.timezone) and store.timezone != contents.timezone
    if wall and known_zone(store.timezone) is None:
        what = f"its times say how far they are from UTC, and {store.path} does not say the zone of its wall times"
        raise SocialxError(where, what, "write them as wall times of that zone")
    if zone not in (None, store.timezone) and (contents.timezone or store.timezone != "UTC"):
        whose = where if contents.timezone else store.path
        raise SettingsError(Argument("timezone", zone), f"{whose} has times of {store.timezone}", "drop it")
    for message in contents.notes:
        note(message if isinstance(message, Message) else Message("", message))
    if store.timezone == "UTC" and not contents.timezone and zone is None:
        what = f"its times do not say their zone, and {store.path} is in UTC"
        either = f"{Argument('timezone', store.local_zone or 'ZONE')} says it, or {Argument('timezone', 'UTC')}"
        raise SocialxError(where, what, either)
    facts = (store.unit, store.missing, store.timezone, str(where), "")
    readings = Readings(store.dataset_name, "", store.sensors, contents.blocks, *facts)
    named = replace(request, timezone=store.timezone if wall else None if zone == store.timezone else zone)
    told = {"meta": "LOCATIONS.csv", "timezone": store.timezone or "ZONE"}
    anew = Command("convert", "auto", "OLD", "NEW", **told, output="OUT.h5")
    remedy = f"a new file of all rows keeps both hours: {anew}"
    ordered, _, _ = in_order(readings, contents, named, in_utc_always=True, remedy=remedy)
    if wall and ordered.timezone != store.timezone:
        what = f"it has the hour that comes twice in {store.timezone}, of which a file of wall times keeps one"
        raise SocialxError(where, what, remedy)
    return ordered


def _columns(store: Store, lanes: list[str] | None, where: Path, contents: Contents) -> np.ndarray:
    """The column in the file of each sensor of the new tables, int64.

    lanes: those of the N sensors of the file, which must be those of the table; None: it has none.
    """
    ids = contents.ids or ()
    if twice := repeated(ids):
        raise SocialxError(where, f"sensors stand twice ({sample(twice)})", "remove one of them")
    place = {match_key(vdid): column for column, vdid in enumerate(store.sensors.ids)}
    if foreign := [vdid for vdid in ids if match_key(vdid) not in place]:
        what = f"{store.path} lacks {len(foreign)} of its {counted(len(ids), 'sensor')} ({sample(foreign, 10)})"
        drop = f" ({Argument('drop', foreign[0])})" if contents.droppable and len(foreign[0]) <= ITEM else ""
        remedy = f"{Argument('meta', 'LOCATIONS.csv')} adds them, or leave them out{drop}"
        raise SocialxError(where, what, remedy)
    columns = np.array([place[match_key(vdid)] for vdid in ids])
    if lanes is None:
        return columns
    for vdid, found, column in zip(ids, contents.lanes or [""] * len(ids), columns, strict=True):
        if found != lanes[column]:
            made = f"that of {store.path} is made of lanes {lanes[column]}"
            what = f"sensor {vdid} has {f'lanes {found}' if found else 'no lanes'}, and {made}"
            raise SocialxError(where, what, f"write the same lanes, {ANEW}")
    return columns


def _overlap(stores: list[Store], where: Path, rows: _Rows, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Those of the first ``count`` rows that fill missing readings of the file: int64 [h] in it, float32 [h,N,F].

    An earlier append left such readings where its tables had a gap.  No reading of the file is ever changed: refuses
    rows that have another one, or none.
    """
    store, seconds, values = stores[0], rows.seconds[:count], rows.values[:count]
    if not count:
        return np.empty(0, np.int64), values
    places = np.searchsorted(store.seconds, seconds)
    if (lost := store.seconds[places] != seconds).any():
        before = counted(int(lost.sum()), "row is", "rows are")
        what = f"{before} before the end of {store.path}, which lacks the time"
        times = as_timestamps(seconds[lost]).astype(str).tolist()
        raise SocialxError(where, f"{what} ({sample(times)})", f"remove them, {ANEW}")
    part = slice(int(places[0]), int(places[-1]) + 1)
    read = [_wider(each.read(part), len(store.sensors.ids)) for each in stores]
    stored, valid = (np.stack([pair[which] for pair in read], axis=-1)[places - places[0]] for which in (0, 1))
    known, has = stored[:, rows.columns], valid[:, rows.columns]
    new = values[:, rows.columns]
    given = np.stack([each.is_reading(new[..., feature]) for feature, each in enumerate(stores)], axis=-1)
    differ = (known != new) & has
    if differ.any():
        first = [
            f"{store.sensors.ids[rows.columns[column]]} at {as_timestamps(seconds[row : row + 1])[0].decode()} is "
            f"{new[row, column, feature]}, not {known[row, column, feature]}"
            for row, column, feature in np.argwhere(differ)[:2]
        ]
        other = counted(int(differ.sum()), "reading is not that", "readings are not those")
        what = f"{other} of {store.path} ({'; '.join(first)})"
        raise SocialxError(where, what, "remove these rows, or convert all rows again, each of them once")
    late = given & ~has
    stored[:, rows.columns] = np.where(late, new, known)
    fills = late.any(axis=(1, 2))
    return store.rows[places[fills]], stored[fills]


def _wider(read: tuple[np.ndarray, np.ndarray], sensors: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and valid [t,N] with columns for the new sensors, which have no reading."""
    more = ((0, 0), (0, sensors - read[0].shape[1]))
    return np.pad(read[0], more, constant_values=np.nan), np.pad(read[1], more)


def _check_steps(store: Store, where: Path, seconds: np.ndarray) -> np.ndarray:
    """The times of the rows that are missing between the file and the new rows, int64 [g]; refuses another step.

    seconds: of the new rows, int64 [t].
    """
    last, step = int(store.seconds[-1]), 60 * store.step_minutes
    common = common_step(seconds) if len(seconds) > 2 else step
    odd = irregular(np.concatenate([[last], seconds]), step)
    if len(odd) or common > step + JITTER_S:
        times = as_timestamps(seconds[odd[:3]] if len(odd) else seconds[:3]).astype(str).tolist()
        what = f"its rows are not {store.step_minutes} min apart, as those of {store.path} ({sample(times)})"
        raise SocialxError(where, what, "give it the same step")
    gap = skipped_times(last, int(seconds[0]), step, store.timezone)
    if len(gap) > len(store.rows):
        begins = as_timestamps(seconds[:1])[0].decode()
        what = f"its first new row is at {begins}, {len(gap):,} steps after the last one of {store.path}"
        raise SocialxError(where, what, f"check its dates, or say how they are written: {Argument('time_format')}")
    return gap


def _note(store: Store, where: Path, new: _Rows, same: int, absent: tuple[str, ...], gap: np.ndarray) -> None:
    """Tell what of the new rows is left out, what is filled, and what may not be a reading, or in another unit.

    The median of speeds in another unit is far from that of the file's last week.
    """
    if same:
        note(Message(where, f"{counted(same, 'row is', 'rows are')} in {store.path} already", "left out"))
    if absent:
        what = (
            f"it lacks {len(absent)} of {counted(len(store.sensors.ids), 'sensor')} of {store.path} ({sample(absent)})"
        )
        note(Message(where, what, "their readings are missing"))
    if len(gap):
        ends = " .. ".join(as_timestamps(gap[[0, -1]]).astype(str))
        between = f"{counted(len(gap), 'row')} between it and {where} ({ends})"
        note(Message(store.path, between, "filled with missing readings"))
    values = new.values[..., 0]
    zeros = int((values == 0).sum())
    if zeros and store.missing != 0 and not any((store.read(part)[0] == 0).any() for part in pages(0, len(store.rows))):
        what = f"{counted(zeros, 'zero counts as a reading', 'zeros count as readings')}, and {store.path} had none"
        note(Message(where, what, f"{Argument('missing', 0)} if they stand for none"))
    known, valid = store.read(slice(max(0, len(store.rows) - WEEK_S // (60 * store.step_minutes)), len(store.rows)))
    readings = values[store.is_reading(values)]
    if store.feature != SPEED or not len(readings) or not valid.any():
        return
    old_median, median = float(np.median(known[valid])), float(np.median(readings))
    if median > UNIT_RATIO * old_median or old_median > UNIT_RATIO * median:
        what = f"half of its readings are above {median:.4g}, and of {store.path} above {old_median:.4g}"
        note(Message(where, what, f"check that they are in {store.unit}, as in the file"))


def _extend(stores: list[Store], change: _Change, file: h5py.File) -> None:
    """Write the rows behind those of a file, its constant columns as in the row before, and readings in its holes."""
    if change.new.ids:
        _widen(file, change.new)
    features, added = file[FEATURES], change.added
    first, _, places = features.shape
    chunk = packed_bytes(4 * math.prod(features.chunks))
    reserve(file, places * (packed_bytes(added.values[..., 0].nbytes) + 2 * chunk))
    features.resize(first + len(added.seconds), axis=0)
    measured = {store.place: added.values[..., feature] for feature, store in enumerate(stores)}
    for place in range(places if len(added.seconds) else 0):
        features[first:, :, place] = measured.get(place, features[first - 1, :, place])
    reserve(file, len(stores) * chunk * len(np.unique(change.holes // features.chunks[0])))
    for part in np.split(np.arange(len(change.holes)), np.flatnonzero(np.diff(change.holes) > 1) + 1):
        for feature, store in enumerate(stores if len(part) else ()):
            restored = change.restored[part, :, feature]
            features[change.holes[part[0]] : change.holes[part[-1]] + 1, :, store.place] = restored
    if len(added.seconds):
        _lengthen(file, TIMESTAMPS, as_timestamps(added.seconds))
        if SECONDS in file:
            _lengthen(file, SECONDS, added.seconds)
    file.attrs[ROWS_ATTR] = np.int64(len(features))
    if change.codes:
        file["metadata"].attrs[CODES_ATTR] = np.array(change.codes)


def _widen(file: h5py.File, new: Sensors) -> None:
    """Columns of missing readings for new sensors, and what is known of them."""
    names, was = [read_text(name) for name in file[FEATURE_NAMES][:]], file[FEATURES]
    rows, sensors, places = was.shape
    total, wider = sensors + len(new.ids), f"{FEATURES}_wider"
    column = np.full((len(new.ids), places), np.nan, np.float32)
    for name, known in static_columns(new).items():
        if name in names and known is not None:
            column[:, names.index(name)] = known
    reserve(file, packed_bytes(4 * rows * total * places))
    limits, chunks = (None, total, places), (was.chunks[0], total, 1)
    made = file.create_dataset(
        wider, (rows, total, places), "f4", maxshape=limits, chunks=chunks, shuffle=True, **PACKED
    )
    made.attrs.update(was.attrs)
    for begin in range(0, rows, was.chunks[0]):
        part = was[begin : begin + was.chunks[0]]
        made[begin : begin + len(part)] = np.concatenate(
            [part, np.broadcast_to(column, (len(part), *column.shape))], axis=1
        )
    ids = fixed_texts([*file[VDIDS][:], *new.ids])
    del file[FEATURES], file[VDIDS]
    file.move(wider, FEATURES)
    file.create_dataset(VDIDS, data=ids, maxshape=(None,), chunks=True, **PACKED)
    file.attrs["num_locations"] = np.int64(total)
    write_sensors(file, new)


def _lengthen(file: h5py.File, name: str, added: np.ndarray) -> None:
    """Values behind those of a column; one of a fixed length is replaced by one that can grow."""
    column = file[name]
    reserve(file, packed_bytes(column.dtype.itemsize * (len(column) + len(added))))
    if column.maxshape == (None,):
        first = len(column)
        column.resize(first + len(added), axis=0)
        column[first:] = added
        return
    whole = np.concatenate([column[:], added.astype(column.dtype)])
    del file[name]
    file.create_dataset(name, data=whole, maxshape=(None,), chunks=True, **PACKED)


def _is_extended(stores: list[Store], change: _Change, old: h5py.File, new: h5py.File) -> bool:
    """Whether a copy gives back the new rows, and the old ones of all chunks from the first that was written on."""
    was, now, added = old[FEATURES], new[FEATURES], change.added
    first, rows = len(was), was.chunks[0]
    same = len(now) == len(new[TIMESTAMPS]) == first + len(added.seconds)
    for begin in range(min([first - 1, *change.holes.tolist()]) // rows * rows, first, rows):
        part, wider = was[begin : begin + rows], now[begin : begin + min(rows, first - begin)]
        here = (change.holes >= begin) & (change.holes < begin + rows)
        for feature, store in enumerate(stores):
            part[change.holes[here] - begin, :, store.place] = change.restored[here, : part.shape[1], feature]
        same = same and np.array_equal(part, wider[:, : part.shape[1]], equal_nan=True)
    if not len(added.seconds):
        return same
    for feature, store in enumerate(stores):
        same = same and np.array_equal(now[first:, :, store.place], added.values[..., feature], equal_nan=True)
    return same and np.array_equal(new[TIMESTAMPS][first:].astype("S19"), as_timestamps(added.seconds))
