"""Rows of new tables at the end of a socialx file.

The file is copied, the copy is extended and checked, and then takes the file's place in one step.
T rows of the file, t new rows, N sensors, F features.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import h5py
import numpy as np

from socialx.data.calendar import DAY_S
from socialx.disk import exclusive
from socialx.errors import Argument, Command, Message, SettingsError, SocialxError, sample
from socialx.files.amend import ADVICE, amend, check_writable
from socialx.files.convert_options import Request
from socialx.files.formats.contents import Contents, as_timestamps
from socialx.files.formats.registry import FORMATS
from socialx.files.formats.sheets import QUANTITY_COLUMNS
from socialx.files.formats.tables import CSV
from socialx.files.formats.walltimes import goes_back
from socialx.files.hdf5_layout import (
    FEATURE_NAMES,
    FEATURES,
    PACKED,
    ROWS_ATTR,
    SECONDS,
    STATIC_UNITS,
    TIMESTAMPS,
    Block,
    Readings,
    read_text,
)
from socialx.files.locations import match_key, repeated
from socialx.files.open_hdf5 import open_hdf5, packed_bytes, reserve
from socialx.files.quantities import SPEED
from socialx.files.readings import in_order
from socialx.files.store import Store, open_store, version_of
from socialx.files.time_axis import JITTER_S, common_step, irregular, known_zone, skipped_times
from socialx.files.writer import checked_seconds
from socialx.progress import note

WEEK_S = 7 * DAY_S
UNIT_RATIO = 1.4  # of two medians; a mile has 1.6 km
ANEW = f"or convert all rows into a new file: {Command('convert', 'auto', 'OLD', 'NEW', output='OUT.h5')}"


@dataclass(frozen=True)
class Appended:
    """What ``append`` did to a file.

    rows: added from the new tables.  filled: rows of missing readings in the gap before them.  repeated: rows that the
    file had already.  absent: ids of the file that the new tables do not have.  total: rows of the file now.
    """

    path: Path
    rows: int
    filled: int
    repeated: int
    absent: tuple[str, ...]
    total: int
    sensors: int
    last_timestamp: str


@dataclass(frozen=True, eq=False)
class _Rows:
    """New rows in the columns of the file: seconds [t], values float32 [t,N]; columns: those that have readings."""

    seconds: np.ndarray
    values: np.ndarray
    columns: np.ndarray


def append(path: Path, request: Request) -> Appended:
    """Write the rows of new tables after the last row of a file; the file is the old one or the complete new one.

    The new rows are held in memory.  Raises SocialxError, and leaves the file as it was, where sensors, times or
    readings do not fit, or somebody else has the file open.
    """
    store = open_store(path)
    check_writable(path)
    with open_hdf5(path, "convert it again") as file:
        names, features = [read_text(name) for name in file[FEATURE_NAMES][:]], file[FEATURES]
        fixed = features.chunks is None or features.maxshape[0] is not None
    measured = [name for name in names if name not in STATIC_UNITS]
    if len(measured) > 1:
        raise SocialxError(path, f"it has several measured features ({sample(measured)})", ADVICE)
    if fixed:
        raise SocialxError(path, "an older file, whose readings have a fixed number of rows", ADVICE)
    rows = _read(store, request)
    later = rows.seconds > store.seconds[-1]
    new = _Rows(rows.seconds[later], rows.values[later], rows.columns)
    same = len(rows.seconds) - len(new.seconds)
    _check_overlap(store, request.data, rows, same)
    absent = tuple(vdid for column, vdid in enumerate(store.sensors.ids) if column not in rows.columns)
    gap = _check_steps(store, request.data, new.seconds) if len(new.seconds) else np.empty(0, np.int64)
    _note(store, request.data, new, same, absent, gap)
    if len(new.seconds):
        missing = np.full((len(gap), len(store.sensors.ids)), np.nan, np.float32)
        added = _Rows(np.concatenate([gap, new.seconds]), np.concatenate([missing, new.values]), rows.columns)
        with exclusive(path):
            if version_of(path) != store.version:
                raise SocialxError(path, "it was changed while it was read", "run the command again")
            amend(path, partial(_extend, store, added), partial(_is_extended, store, added))
    last = as_timestamps(new.seconds[-1:])[0] if len(new.seconds) else store.timestamps[-1]
    total = len(store.rows) + len(gap) + len(new.seconds)
    return Appended(path, len(new.seconds), len(gap), same, absent, total, len(store.sensors.ids), last.decode())


def _read(store: Store, request: Request) -> _Rows:
    """The rows of the new tables, in memory."""
    # A table with several quantities in a row is asked for that of the file.
    quantity = store.feature if store.feature in QUANTITY_COLUMNS and request.channel is None else None
    contents = FORMATS[CSV].read(replace(request, quantity=quantity))
    with closing(contents.blocks):
        readings = _readings(store, request, contents)
        columns = _columns(store, request.data, contents)
        timestamps, seconds, values = np.empty(0, "S19"), np.empty(0, np.int64), []
        for block in readings.blocks:
            timestamps = np.concatenate([timestamps, block.timestamps])
            seconds = np.concatenate([seconds, checked_seconds(readings, block, timestamps, seconds)])
            values.append(np.full((len(block.speeds), len(store.sensors.ids)), np.nan, np.float32))
            values[-1][:, columns] = block.speeds
    rows = np.concatenate(values)
    codes = [code for code in request.missing or () if code != store.missing]
    rows[np.isin(rows, np.array(codes, np.float32))] = np.nan
    return _Rows(seconds, rows, columns)


def _readings(store: Store, request: Request, contents: Contents) -> Readings:
    """The new tables as readings of the file's network, their times in the zone of the file."""
    where, zone = request.data, request.timezone
    wall = bool(contents.timezone) and store.timezone != contents.timezone
    local = known_zone(store.timezone) if wall else None
    if wall and local is None:
        what = f"its times say how far they are from UTC, and {store.path} does not say the zone of its wall times"
        raise SocialxError(where, what, "write them as wall times of that zone")
    if zone not in (None, store.timezone) and (contents.timezone or store.timezone != "UTC"):
        whose = where if contents.timezone else store.path
        raise SettingsError(Argument("timezone", zone), f"{whose} has times of {store.timezone}", "drop it")
    for message in contents.notes:
        note(message if isinstance(message, Message) else Message("", message))
    if store.timezone == "UTC" and not contents.timezone and zone is None:
        what = f"its times do not say their zone, and {store.path} is in UTC"
        either = f"{Argument('timezone', 'ZONE')} says it, or {Argument('timezone', 'UTC')}"
        raise SocialxError(where, what, either)
    facts = (store.unit, store.missing, store.timezone, str(where), "")
    readings = Readings(store.dataset_name, "", store.sensors, contents.blocks, *facts)
    in_zone = replace(request, timezone=None if zone == store.timezone else zone)
    ordered = in_order(readings, contents, in_zone, in_utc_always=True)[0]
    return ordered if local is None else replace(ordered, blocks=_in_wall_times(ordered.blocks, local, where))


def _in_wall_times(blocks: Generator[Block, None, None], zone: ZoneInfo, where: Path) -> Generator[Block, None, None]:
    """Blocks in UTC -> in wall times of a zone; refuses the hour that comes twice."""
    import pandas as pd

    last = b""
    with closing(blocks):
        for block in blocks:
            utc = pd.to_datetime(block.timestamps.astype(str)).tz_localize("UTC")
            wall = as_timestamps(utc.tz_convert(zone).tz_localize(None).to_numpy("datetime64[s]").astype(np.int64))
            if utc.is_monotonic_increasing and goes_back(np.append(np.array([last], "S19"), wall)):
                what = f"it has the hour that comes twice in {zone.key}, of which a file of wall times keeps one"
                raise SocialxError(where, what, ANEW)
            last = wall[-1] if len(wall) else last
            yield Block(wall, block.speeds)


def _columns(store: Store, where: Path, contents: Contents) -> np.ndarray:
    """The column in the file of each sensor of the new tables, int64."""
    ids = contents.ids or ()
    if twice := repeated(ids):
        raise SocialxError(where, f"sensors stand twice ({sample(twice)})", "remove one of them")
    place = {match_key(vdid): column for column, vdid in enumerate(store.sensors.ids)}
    if foreign := [vdid for vdid in ids if match_key(vdid) not in place]:
        what = f"{len(foreign)} of {len(ids)} sensors are not in {store.path} ({sample(foreign, 10)})"
        drop = f" ({Argument('drop', foreign[0])})" if contents.droppable else ""
        raise SocialxError(where, what, f"remove them{drop}, {ANEW}")
    return np.array([place[match_key(vdid)] for vdid in ids])


def _check_overlap(store: Store, where: Path, rows: _Rows, count: int) -> None:
    """Refuse the first ``count`` rows where the file does not have them with the same readings."""
    if not count:
        return
    seconds, values = rows.seconds[:count], rows.values[:count][:, rows.columns]
    places = np.searchsorted(store.seconds, seconds)
    if (lost := store.seconds[places] != seconds).any():
        what = f"{np.count_nonzero(lost)} rows are before the end of {store.path}, which does not have them"
        times = as_timestamps(seconds[lost]).astype(str).tolist()
        raise SocialxError(where, f"{what} ({sample(times)})", f"remove them, {ANEW}")
    known = store.read(slice(int(places[0]), int(places[-1]) + 1))[0][places - places[0]][:, rows.columns]
    differ = (known != values) & ~(np.isnan(known) & np.isnan(values))
    if differ.any():
        first = [
            f"{store.sensors.ids[rows.columns[column]]} at {as_timestamps(seconds[row : row + 1])[0].decode()} is "
            f"{values[row, column]}, not {known[row, column]}"
            for row, column in np.argwhere(differ)[:2]
        ]
        what = f"{np.count_nonzero(differ):,} readings are not those of {store.path} ({'; '.join(first)})"
        raise SocialxError(where, what, f"remove these rows, {ANEW}")


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
    """Tell what of the new rows is left out, what is filled, and whether speeds may be in another unit.

    Their median is then far from that of the file's last week.
    """
    if same:
        note(Message(where, f"{same:,} rows are in {store.path} already", "left out"))
    if absent:
        what = f"{len(absent)} of {len(store.sensors.ids)} sensors of {store.path} are not in it ({sample(absent)})"
        note(Message(where, what, "their readings are missing"))
    if len(gap):
        ends = " .. ".join(as_timestamps(gap[[0, -1]]).astype(str))
        note(Message(store.path, f"{len(gap):,} rows between it and {where} ({ends})", "filled with missing readings"))
    known, valid = store.read(slice(max(0, len(store.rows) - WEEK_S // (60 * store.step_minutes)), len(store.rows)))
    readings = new.values[np.isfinite(new.values) & (new.values != store.missing)]
    if store.feature != SPEED or not len(readings) or not valid.any():
        return
    old_median, median = float(np.median(known[valid])), float(np.median(readings))
    if median > UNIT_RATIO * old_median or old_median > UNIT_RATIO * median:
        what = f"half of its readings are above {median:.4g}, and of {store.path} above {old_median:.4g}"
        note(Message(where, what, f"check that they are in {store.unit}, as in the file"))


def _extend(store: Store, added: _Rows, file: h5py.File) -> None:
    """Write the rows behind those of a file, its constant columns as in the row before."""
    features = file[FEATURES]
    first, _, places = features.shape
    reserve(file, places * (packed_bytes(added.values.nbytes) + 2 * packed_bytes(4 * math.prod(features.chunks))))
    features.resize(first + len(added.seconds), axis=0)
    for place in range(places):
        features[first:, :, place] = added.values if place == store.place else features[first - 1, :, place]
    _lengthen(file, TIMESTAMPS, as_timestamps(added.seconds))
    if SECONDS in file:
        _lengthen(file, SECONDS, added.seconds)
    file.attrs[ROWS_ATTR] = np.int64(len(features))


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


def _is_extended(store: Store, added: _Rows, old: h5py.File, new: h5py.File) -> bool:
    """Whether a copy gives back the new rows, and the old ones of the chunk that both share."""
    was, now = old[FEATURES], new[FEATURES]
    first = len(was)
    begin = first - 1 - (first - 1) % was.chunks[0]
    same = len(now) == len(new[TIMESTAMPS]) == first + len(added.seconds)
    same = same and np.array_equal(was[begin:], now[begin:first], equal_nan=True)
    same = same and np.array_equal(now[first:, :, store.place], added.values, equal_nan=True)
    return same and np.array_equal(new[TIMESTAMPS][first:].astype("S19"), as_timestamps(added.seconds))
