"""LibCity's atomic files: NAME.geo with the sensors and NAME.dyna with one row per sensor and time.

N sensors, T times, t rows of one block.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.data.geo import on_earth, within_degrees
from socialx.errors import Argument, SettingsError, SocialxError, sample
from socialx.files.formats import tables
from socialx.files.formats.contents import Contents, Format, Request
from socialx.files.hdf5 import first_bytes
from socialx.files.locations import Location, match_key
from socialx.files.store import SPEED, Block

if TYPE_CHECKING:
    import pandas as pd

GEO, DYNA = ".geo", ".dyna"
ID, TYPE, PLACE = "geo_id", "type", "coordinates"
TIME, SENSOR = "time", "entity_id"
SPEED_COLUMN = "traffic_speed"
BLOCK_BYTES = 1 << 23
ADVICE = "use the folder of NAME.geo and NAME.dyna as LibCity publishes it"


@dataclass(frozen=True)
class Layout:
    """The columns of a .dyna file."""

    path: Path
    header: int  # bytes of line 1
    names: tuple[str, ...]
    channel: str  # the column that is read


def _read(request: Request) -> Contents:
    """Both files.  The readings stay in memory, 4 N T bytes: 28 MB for METR-LA, 3.6 GB for a year of 8,600 sensors."""
    geo, dyna = _pair(request.data)
    ids, locations = _sensors(geo)
    layout = _layout(dyna, request.channel)
    grid = _Grid(layout, geo, ids)
    with closing(tables.pieces(dyna, layout.header)) as parts:
        for line, piece in parts:
            grid.add(_frame(layout, piece, line))
    rows = np.flatnonzero(grid.seen)
    known = tuple(ids[row] for row in rows)
    notes = grid.notes()
    placed = sum(match_key(vdid) in locations for vdid in known)
    if placed < len(known):
        notes.append(f"{geo}: it has no position for {len(known) - placed} of {len(known)} sensors")
    return Contents(
        ids=known,
        sensors=len(known),
        blocks=_blocks(grid.speeds, rows, np.array([tables.timestamp(time) for time in grid.times], "S19")),
        feature=SPEED if layout.channel == SPEED_COLUMN else layout.channel,
        locations=locations or None,
        notes=tuple(notes),
        paths=(geo, dyna),
    )


def _needs(path: Path) -> tuple[str, ...]:
    """A channel, where there are several and none is the speed."""
    names, _ = _header(_pair(path)[1], TIME, SENSOR)
    channels = names[names.index(SENSOR) + 1 :]
    return () if SPEED_COLUMN in channels or len(channels) == 1 else ("channel",)


def _recognise(path: Path) -> str | None:
    try:
        geo, dyna = _pair(path)
        if not (geo.is_file() and dyna.is_file()):
            return None
        _header(geo, ID, TYPE, PLACE)
        names, _ = _header(dyna, TIME, SENSOR)
    except (SocialxError, OSError):
        return None
    return f"LibCity's {geo.name} and {dyna.name} with {', '.join(names[names.index(SENSOR) + 1 :])}"


def _pair(path: Path) -> tuple[Path, Path]:
    """The .geo and .dyna files that a user means with either of them or their folder."""
    if path.is_dir():
        found = sorted(path.glob(f"*{DYNA}"))
        if len(found) != 1:
            if not found:
                raise SocialxError(path, f"a folder with no file {DYNA}", ADVICE)
            names = sample([part.name for part in found])
            raise SocialxError(path, f"a folder with {len(found)} files {DYNA} ({names})", "name one of them")
        path = found[0]
    if path.suffix not in (GEO, DYNA):
        raise SocialxError(path, f"neither {GEO} nor {DYNA}", ADVICE)
    return path.with_suffix(GEO), path.with_suffix(DYNA)


def _header(path: Path, *needed: str) -> tuple[tuple[str, ...], int]:
    """The names of the columns, and the bytes of line 1."""
    first_bytes(path, ADVICE)
    line, _ = tables.first_lines(path)
    names = tuple(name.strip() for name in tables.cells_of(line) or [])
    if not set(needed) <= set(names) or len(set(names)) < len(names):
        found = line[:60].decode("utf-8", "replace")
        raise SocialxError(path, f"line 1 is {found!a}, not columns with {', '.join(needed)}", ADVICE)
    return names, len(line)


def _sensors(path: Path) -> tuple[tuple[str, ...], dict[int | str, Location]]:
    """Sensor ids in the order of the file, and locations by ``match_key`` of those that have coordinates."""
    names, header = _header(path, ID, TYPE, PLACE)
    ids: dict[int | str, str] = {}
    locations = {}
    with closing(tables.pieces(path, header)) as parts:
        for place, cells in (row for line, piece in parts for row in tables.walk(path, piece, line, len(names))):
            sensor_id, kind, coordinates = (cells[names.index(name)].strip() for name in (ID, TYPE, PLACE))
            key = match_key(sensor_id)
            if not sensor_id or key in ids:
                raise SocialxError(
                    path, f"{place} has the {ID} {sensor_id[:40]!a}, empty or for a second time", "correct it"
                )
            if kind != "Point":
                raise SocialxError(path, f"{place} is a {kind[:40]!a}, not a Point", "only sensors at points are read")
            ids[key] = sensor_id
            if position := _position(path, place, coordinates):
                locations[key] = Location(sensor_id, position[1], position[0], math.nan, math.nan, "")
    if not ids:
        raise SocialxError(path, "it has no sensors", ADVICE)
    return tuple(ids.values()), locations


def _position(path: Path, place: str, text: str) -> tuple[float, float] | None:
    """``[longitude, latitude]`` in degrees; None for ``[]``, which LibCity writes where it knows none, and for 0, 0."""
    try:
        pair = json.loads(text)
        if pair == []:
            return None
        longitude, latitude = map(float, pair)
    except (ValueError, TypeError, RecursionError):
        longitude = latitude = math.nan
    if not within_degrees(latitude, longitude):
        raise SocialxError(path, f"{place} has the coordinates {text[:40]!a}, not [longitude, latitude]", "correct it")
    return (longitude, latitude) if on_earth(latitude, longitude) else None


def _layout(path: Path, wanted: str | None) -> Layout:
    names, header = _header(path, TIME, SENSOR)
    channels = names[names.index(SENSOR) + 1 :]
    has = f"its columns are {', '.join(channels) or 'none'}"
    if wanted is None and SPEED_COLUMN not in channels and len(channels) > 1:
        raise SettingsError(path, has, ("choose one with ", Argument("channel")))
    channel = wanted or (channels[0] if len(channels) == 1 else SPEED_COLUMN)
    if channel not in channels:
        raise SettingsError(path, f"no column {channel!a}, {has}", ("choose one of them with ", Argument("channel")))
    return Layout(path, header, names, channel)


class _Grid:
    """The readings as the rows come in, which are sorted by sensor, then time."""

    def __init__(self, layout: Layout, geo: Path, ids: tuple[str, ...]) -> None:
        import pandas as pd

        self._first, self.times = _first_sensor(layout)
        self._index = pd.Index(self.times, dtype=object)
        self.speeds = np.full((len(ids), len(self.times)), np.nan, np.float32)
        self.seen = np.zeros(len(ids), bool)  # [N] the sensors that have rows
        self._layout, self._geo, self._ids = layout, geo, ids
        self._row = {match_key(vdid): row for row, vdid in enumerate(ids)}
        self._now, self._place = -1, -1  # row of ``speeds`` and place of the reading before
        self._count = 0  # readings

    def add(self, frame: pd.DataFrame) -> None:
        """The next rows of the file."""
        sensors, times = frame[SENSOR].to_numpy(object), frame[TIME].to_numpy(object)
        places = self._index.get_indexer(times)  # type: ignore[arg-type]  # -1 = not among them
        speeds = frame[self._layout.channel].to_numpy()
        edges = [0, *(np.flatnonzero(sensors[1:] != sensors[:-1]) + 1).tolist(), len(frame)]
        for first, last in pairwise(edges):
            name, found = sensors[first], places[first:last]
            self._enter(name, times[first])
            wrong = np.diff(found, prepend=self._place) <= 0
            if wrong.any():
                row = first + int(wrong.argmax())
                reason, remedy = "after a later or the same one", "sort the rows of each sensor"
                if places[row] < 0:
                    reason = f"which the first sensor, {self._first}, has not"
                    remedy = "give all sensors the same times"
                raise SocialxError(self._layout.path, f"sensor {name} has the time {times[row]}, {reason}", remedy)
            self.speeds[self._now, found] = speeds[first:last]
            self._place = int(found[-1])
        self._count += len(frame)

    def _enter(self, name: str, time: str) -> None:
        """The rows from ``time`` on are those of the sensor ``name``."""
        path, row = self._layout.path, self._row.get(match_key(name))
        if row is None:
            raise SocialxError(path, f"{self._geo.name} has no sensor {name[:40]!a}", "use the two of one data set")
        if row == self._now:
            return
        if self.seen[row]:
            raise SocialxError(
                path,
                f"sensor {name} comes again at {time}, after another one",
                f"sort the rows by {SENSOR}, then {TIME}",
            )
        self.seen[row] = True
        self._now, self._place = row, -1

    def notes(self) -> list[str]:
        """What was assumed, after the last rows."""
        path, notes = self._layout.path, []
        if self.times[0].endswith("Z"):
            notes.append(f"{path}: its times end with Z, which LibCity writes after wall times: taken as those")
        if lacking := int(self.seen.sum()) * len(self.times) - self._count:
            notes.append(f"{path}: {lacking} rows are not in it: taken as missing readings")
        silent = [vdid for vdid, seen in zip(self._ids, self.seen, strict=True) if not seen]
        if silent:
            count = f"{len(silent)} of {len(self._ids)} sensors have no rows in {path.name} ({sample(silent)})"
            notes.append(f"{self._geo}: {count}: they are left out")
        return notes


def _first_sensor(layout: Layout) -> tuple[str, list[str]]:
    """The id of the first sensor, and its times as they are written; they are those of all sensors."""
    sensor, time = layout.names.index(SENSOR), layout.names.index(TIME)
    name, form, end = "", "YYYY-MM-DDTHH:MM:SS", ""
    times: list[str] = []
    with closing(tables.pieces(layout.path, layout.header)) as parts:
        rows = (row for line, piece in parts for row in tables.walk(layout.path, piece, line, len(layout.names)))
        for place, cells in rows:
            text = cells[time]
            if not times:
                name, end = cells[sensor], "Z" * text.endswith("Z")
                plain = text.removesuffix(end)
                form = next((form for form in tables.TIMES if tables.TIMES[form].fullmatch(plain)), form)
            if match_key(cells[sensor]) != match_key(name):
                break
            if not (text.endswith(end) and tables.TIMES[form].fullmatch(text.removesuffix(end))):
                tables.refuse_time(layout.path, place, text, form)
            if times and text <= times[-1]:
                remedy = "sort the rows of each sensor, or write times in UTC if daylight saving time repeats this one"
                raise SocialxError(layout.path, f"{place} has the time {text}, not after {times[-1]}", remedy)
            times.append(text)
    if not times:
        raise SocialxError(layout.path, "it has no rows", ADVICE)
    return name, times


def _frame(layout: Layout, piece: bytes, line: int) -> pd.DataFrame:
    """Whole lines -> time and entity_id as text, none absent, and the channel as float32."""
    import pandas as pd

    # pandas would take True for 1, fill a row that is too short, and take the length of all from a long first one.
    words = any(word in piece for word in (b"rue", b"RUE", b"alse", b"ALSE"))
    rows, commas = piece.count(b"\n") + (not piece.endswith(b"\n")), len(layout.names) - 1
    if words or piece.partition(b"\n")[0].count(b",") != commas or piece.count(b",") != commas * rows:
        _refuse_faults(layout, piece, line)
    dtypes: dict[str, Any] = {name: str for name in (TIME, SENSOR, TYPE) if name in layout.names}
    dtypes[layout.channel] = np.float32
    try:
        with np.errstate(over="ignore"):
            frame = pd.read_csv(
                io.BytesIO(piece),
                header=None,
                names=list(layout.names),
                index_col=False,
                dtype=dtypes,
                keep_default_na=False,
                na_values=tables.ABSENT,
                low_memory=False,
                **tables.exact_floats(),
            )
    except ValueError as error:  # pandas' ParserError is one
        _refuse_faults(layout, piece, line)
        reason = " ".join(str(error).split())[:160]
        raise SocialxError(layout.path, f"from line {line} on: {reason}", "correct it") from error
    if np.isinf(frame[layout.channel]).any() or frame[[TIME, SENSOR]].isna().any(axis=None):
        _refuse_faults(layout, piece, line)
    others = set(frame[TYPE].fillna("").unique()) - {"state"} if TYPE in dtypes else ()
    if others:
        raise SocialxError(layout.path, f"it has rows of type {min(others)[:40]!a}, not state", "only those are read")
    return frame


def _refuse_faults(layout: Layout, piece: bytes, line: int) -> None:
    """Raise for the first row or cell that is not as it must be; return when there is none."""
    time, sensor, channel = (layout.names.index(name) for name in (TIME, SENSOR, layout.channel))
    for place, cells in tables.walk(layout.path, piece, line, len(layout.names)):
        if cells[time] in tables.ABSENT or cells[sensor] in tables.ABSENT:
            raise SocialxError(layout.path, f"{place} has no {TIME} or no {SENSOR}", "correct it")
        if cells[channel] not in tables.ABSENT and not tables.NUMBER.fullmatch(cells[channel]):
            tables.refuse_cell(layout.path, f"{place}, {layout.channel}", cells[channel])


def _blocks(speeds: np.ndarray, rows: np.ndarray, timestamps: np.ndarray) -> Generator[Block, None, None]:
    """``rows`` of float32 [N,T] -> blocks [t,N]."""
    step = max(BLOCK_BYTES // (4 * len(rows)), 1)
    for first in range(0, len(timestamps), step):
        part = slice(first, first + step)
        yield Block(timestamps[part], np.ascontiguousarray(speeds[rows, part].T))


FORMATS = (
    Format(
        "libcity",
        "LibCity's NAME.geo and NAME.dyna",
        _recognise,
        _read,
        takes=frozenset({"channel"}),
        needs=_needs,
    ),
)
