"""Rows of new tables at the end of a socialx file.

The file is copied, the copy is extended and checked, and then takes the file's place in one step.
T rows of the file, t new rows, N sensors, F features.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from zoneinfo import ZoneInfo

import h5py
import numpy as np

from socialx.disk import exclusive, replacing
from socialx.errors import Argument, Command, Message, SettingsError, SocialxError, sample
from socialx.files.formats.contents import Contents, Request, as_timestamps
from socialx.files.formats.export import EXPORT
from socialx.files.formats.registry import FORMATS
from socialx.files.formats.sheets import QUANTITIES
from socialx.files.formats.walltimes import goes_back
from socialx.files.hdf5 import open_hdf5, packed_bytes, reserve, writing
from socialx.files.locations import match_key, repeated
from socialx.files.readings import Choices, in_order
from socialx.files.store import (
    FEATURE_NAMES,
    FEATURES,
    PACKED,
    ROWS_ATTR,
    SECONDS,
    SPEED,
    STATIC_UNITS,
    TIMESTAMPS,
    Block,
    Readings,
    Store,
    check_parts,
    checked_seconds,
    open_store,
    read_text,
    version_of,
)
from socialx.files.time_axis import JITTER_S, common_step, irregular, known_zone, skipped_times
from socialx.progress import note

WEEK = 7 * 86_400  # seconds
UNIT_RATIO = 1.4  # of two medians; a mile has 1.6 km
ANEW = ("or convert all rows into a new file: ", Command("convert", "auto", "OLD", "NEW", output="OUT.h5"))


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

    def after(self, second: int) -> _Rows:
        """Those later than ``second``."""
        later = self.seconds > second
        return _Rows(self.seconds[later], self.values[later], self.columns)


def append(path: Path, request: Request, choices: Choices) -> Appended:
    """Write the rows of new tables after the last row of a file; the file is the old one or the complete new one.

    request: the tables.  choices: their missing values and time zone, and whether their times are rounded.  The new
    rows are held in memory.  Raises SocialxError, and leaves the file as it was, where sensors, times or readings do
    not fit, or somebody else has the file open.
    """
    store = open_store(path)
    _check_file(store)
    given = _read(store, request, choices)
    found = given.after(int(store.seconds[-1]))
    same = len(given.seconds) - len(found.seconds)
    _check_overlap(store, request.data, given, same)
    absent = tuple(vdid for column, vdid in enumerate(store.sensors.ids) if column not in given.columns)
    gap = _check_steps(store, request.data, found) if len(found.seconds) else np.empty(0, np.int64)
    _say(store, request.data, same, absent, gap)
    _doubt_unit(store, request.data, found)
    if len(found.seconds):
        missing = np.full((len(gap), len(store.sensors.ids)), np.nan, np.float32)
        added = _Rows(np.concatenate([gap, found.seconds]), np.concatenate([missing, found.values]), given.columns)
        with exclusive(path), replacing(path) as temporary:
            if version_of(path) != store.version:
                raise SocialxError(path, "it was changed while it was read", "run the command again")
            shutil.copyfile(path, temporary)
            _extend(temporary, store, added)
            _check_extended(path, temporary, store, added)
    last = as_timestamps(found.seconds[-1:])[0] if len(found.seconds) else store.timestamps[-1]
    total = len(store.rows) + len(gap) + len(found.seconds)
    return Appended(path, len(found.seconds), len(gap), same, absent, total, len(store.sensors.ids), last.decode())


def _check_file(store: Store) -> None:
    """Refuse a file that cannot grow by the rows of one table."""
    path = store.path
    if not os.access(path, os.W_OK):
        raise SocialxError(path, "read-only", "make it writable, or work on a copy")
    with open_hdf5(path, "convert it again") as file:
        names, features = [read_text(name) for name in file[FEATURE_NAMES][:]], file[FEATURES]
        fixed = features.chunks is None or features.maxshape[0] is not None
    measured = [name for name in names if name not in STATIC_UNITS]
    if len(measured) > 1:
        raise SocialxError(path, f"it has several measured features ({sample(measured)})", "convert its source again")
    if fixed:
        raise SocialxError(
            path, "an older file, whose readings have a fixed number of rows", "convert its source again"
        )


def _read(store: Store, request: Request, choices: Choices) -> _Rows:
    """The rows of the new tables, in memory."""
    contents = FORMATS[EXPORT].read(_with_quantity(request, store))
    with closing(contents.blocks):
        readings = _readings(store, request, contents, choices)
        columns = _columns(store, request.data, contents)
        timestamps, seconds, values = np.empty(0, "S19"), np.empty(0, np.int64), []
        for block in readings.blocks:
            timestamps = np.concatenate([timestamps, block.timestamps])
            seconds = np.concatenate([seconds, checked_seconds(readings, block, timestamps, seconds)])
            values.append(np.full((len(block.speeds), len(store.sensors.ids)), np.nan, np.float32))
            values[-1][:, columns] = block.speeds
    found = np.concatenate(values)
    codes = [code for code in choices.missing or () if code != store.missing]
    found[np.isin(found, np.array(codes, np.float32))] = np.nan
    return _Rows(seconds, found, columns)


def _with_quantity(request: Request, store: Store) -> Request:
    """A table with several quantities in a row is asked for that of the file."""
    known = store.feature in QUANTITIES and request.channel is None
    return replace(request, quantity=store.feature if known else None)


def _readings(store: Store, request: Request, contents: Contents, choices: Choices) -> Readings:
    """The new tables as readings of the file's network, their times in the zone of the file."""
    where, zone = request.data, choices.timezone
    wall = bool(contents.timezone) and store.timezone != contents.timezone
    local = known_zone(store.timezone) if wall else None
    if wall and local is None:
        found = f"its times say how far they are from UTC, and {store.path} does not say the zone of its wall times"
        raise SocialxError(where, found, "write them as wall times of that zone")
    if zone not in (None, store.timezone) and (contents.timezone or store.timezone != "UTC"):
        whose = where if contents.timezone else store.path
        raise SettingsError(Argument("timezone", zone), f"{whose} has times of {store.timezone}", "drop it")
    for message in contents.notes:
        note(message if isinstance(message, Message) else Message("", message))
    if store.timezone == "UTC" and not contents.timezone and zone is None:
        found = f"its times do not say their zone, and {store.path} is in UTC"
        either = (Argument("timezone", "ZONE"), " says it, or ", Argument("timezone", "UTC"))
        raise SocialxError(where, found, either)
    readings = Readings(
        store.dataset_name,
        "",
        store.sensors,
        contents.blocks,
        store.unit,
        store.missing,
        store.timezone,
        str(where),
        "",
    )
    in_zone = Choices(timezone=None if zone == store.timezone else zone, round_times=choices.round_times)
    ordered = in_order(readings, where, contents, in_zone, in_utc_always=True)[0]
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
                found = f"it has the hour that comes twice in {zone.key}, of which a file of wall times keeps one"
                raise SocialxError(where, found, ANEW)
            last = wall[-1] if len(wall) else last
            yield Block(wall, block.speeds)


def _columns(store: Store, where: Path, contents: Contents) -> np.ndarray:
    """The column in the file of each sensor of the new tables, int64."""
    ids = contents.ids or ()
    if twice := repeated(ids):
        raise SocialxError(where, f"sensors stand twice ({sample(twice)})", "remove one of them")
    place = {match_key(vdid): column for column, vdid in enumerate(store.sensors.ids)}
    if foreign := [vdid for vdid in ids if match_key(vdid) not in place]:
        found = f"{len(foreign)} of {len(ids)} sensors are not in {store.path} ({sample(foreign, 10)})"
        drop = (" (", Argument("drop", foreign[0]), ")") if contents.droppable else ()
        raise SocialxError(where, found, ("remove them", *drop, ", ", *ANEW))
    return np.array([place[match_key(vdid)] for vdid in ids])


def _check_overlap(store: Store, where: Path, given: _Rows, count: int) -> None:
    """Refuse the first ``count`` rows where the file does not have them with the same readings."""
    if not count:
        return
    seconds, values = given.seconds[:count], given.values[:count][:, given.columns]
    rows = np.searchsorted(store.seconds, seconds)
    if (lost := store.seconds[rows] != seconds).any():
        found = f"{np.count_nonzero(lost)} rows are before the end of {store.path}, which does not have them"
        times = as_timestamps(seconds[lost]).astype(str).tolist()
        raise SocialxError(where, f"{found} ({sample(times)})", ("remove them, ", *ANEW))
    known = store.read(slice(int(rows[0]), int(rows[-1]) + 1))[0][rows - rows[0]][:, given.columns]
    differ = (known != values) & ~(np.isnan(known) & np.isnan(values))
    if differ.any():
        first = [
            f"{store.sensors.ids[given.columns[column]]} at {as_timestamps(seconds[row : row + 1])[0].decode()} is "
            f"{values[row, column]}, not {known[row, column]}"
            for row, column in np.argwhere(differ)[:2]
        ]
        found = f"{np.count_nonzero(differ):,} readings are not those of {store.path} ({'; '.join(first)})"
        raise SocialxError(where, found, ("remove these rows, ", *ANEW))


def _check_steps(store: Store, where: Path, found: _Rows) -> np.ndarray:
    """The times of the rows that are missing between the file and the new rows, int64 [g]; refuses another step."""
    last, step = int(store.seconds[-1]), 60 * store.step_minutes
    own = common_step(found.seconds) if len(found.seconds) > 2 else step
    odd = irregular(np.concatenate([[last], found.seconds]), step)
    if len(odd) or own > step + JITTER_S:
        times = as_timestamps(found.seconds[odd[:3]] if len(odd) else found.seconds[:3]).astype(str).tolist()
        what = f"its rows are not {store.step_minutes} min apart, as those of {store.path} ({sample(times)})"
        raise SocialxError(where, what, "give it the same step")
    gap = skipped_times(last, int(found.seconds[0]), step, store.timezone)
    if len(gap) > len(store.rows):
        begins = as_timestamps(found.seconds[:1])[0].decode()
        what = f"its first new row is at {begins}, {len(gap):,} steps after the last one of {store.path}"
        raise SocialxError(where, what, ("check its dates, or say how they are written: ", Argument("time_format")))
    return gap


def _say(store: Store, where: Path, same: int, absent: tuple[str, ...], gap: np.ndarray) -> None:
    if same:
        note(Message(where, f"{same:,} rows are in {store.path} already", "left out"))
    if absent:
        found = f"{len(absent)} of {len(store.sensors.ids)} sensors of {store.path} are not in it ({sample(absent)})"
        note(Message(where, found, "their readings are missing"))
    if len(gap):
        ends = " .. ".join(as_timestamps(gap[[0, -1]]).astype(str))
        note(Message(store.path, f"{len(gap):,} rows between it and {where} ({ends})", "filled with missing readings"))


def _doubt_unit(store: Store, where: Path, found: _Rows) -> None:
    """A note where speeds are so far from those of the file's last week that they may be in another unit."""
    values, valid = store.read(slice(max(0, len(store.rows) - WEEK // (60 * store.step_minutes)), len(store.rows)))[:2]
    new = found.values[np.isfinite(found.values) & (found.values != store.missing)]
    if store.feature != SPEED or not len(new) or not valid.any():
        return
    old_median, median = float(np.median(values[valid])), float(np.median(new))
    if median > UNIT_RATIO * old_median or old_median > UNIT_RATIO * median:
        what = f"half of its readings are above {median:.4g}, and of {store.path} above {old_median:.4g}"
        note(Message(where, what, f"check that they are in {store.unit}, as in the file"))


def _extend(temporary: Path, store: Store, added: _Rows) -> None:
    """Write the rows behind those of a copy, its constant columns as in the row before."""
    try:
        with writing(temporary, "r+", ("earliest", "v110")) as file:
            check_parts(store.path, file)  # of the very file that is written
            features = file[FEATURES]
            first, _, places = features.shape
            reserve(
                file, places * (packed_bytes(added.values.nbytes) + 2 * packed_bytes(4 * math.prod(features.chunks)))
            )
            features.resize(first + len(added.seconds), axis=0)
            for place in range(places):
                features[first:, :, place] = added.values if place == store.place else features[first - 1, :, place]
            _lengthen(file, TIMESTAMPS, as_timestamps(added.seconds))
            if SECONDS in file:
                _lengthen(file, SECONDS, added.seconds)
            file.attrs[ROWS_ATTR] = np.int64(len(features))
    except (KeyError, ValueError) as error:  # what h5py makes of damage that reading did not meet
        raise SocialxError(store.path, f"damaged HDF5 ({str(error)[:160]!a})", "convert its source again") from error


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


def _check_extended(old: Path, new: Path, store: Store, added: _Rows) -> None:
    """Refuse a copy that does not give back the new rows, or the old ones of the chunk that both share."""
    with open_hdf5(old, "convert it again", locking=False) as before, open_hdf5(new, "convert it again") as after:
        was, now = before[FEATURES], after[FEATURES]
        first = len(was)
        begin = first - 1 - (first - 1) % was.chunks[0]
        same = len(now) == len(after[TIMESTAMPS]) == first + len(added.seconds)
        same = same and np.array_equal(was[begin:], now[begin:first], equal_nan=True)
        same = same and np.array_equal(now[first:, :, store.place], added.values, equal_nan=True)
        same = same and np.array_equal(after[TIMESTAMPS][first:].astype("S19"), as_timestamps(added.seconds))
    if not same:
        raise SocialxError(old, "the disk does not give back what was written", "check the disk")
