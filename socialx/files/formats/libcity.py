"""LibCity's atomic files: NAME.geo with the sensors and NAME.dyna with one row per sensor and time.

N sensors, T times, t rows of one block.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from socialx.data.geo import on_earth, within_degrees
from socialx.errors import Argument, SettingsError, SocialxError, counted, sample
from socialx.files.convert_options import Request
from socialx.files.file_head import FileHead, read_head
from socialx.files.formats.contents import Contents, Format
from socialx.files.formats.moments import TIMES, timestamp
from socialx.files.formats.sheets import cells_of
from socialx.files.formats.text_cells import NO_READING, Piece, TextColumns
from socialx.files.hdf5_layout import Block
from socialx.files.locations import Location, match_key
from socialx.files.quantities import SPEED

GEO, DYNA = ".geo", ".dyna"
ID, TYPE, PLACE = "geo_id", "type", "coordinates"
TIME, SENSOR = "time", "entity_id"
SPEED_COLUMN = "traffic_speed"
BLOCK_BYTES = 1 << 23
ADVICE = "use the folder of NAME.geo and NAME.dyna as LibCity publishes it"


def _read(request: Request) -> Contents:
    """Both files.  The readings stay in memory, 4 N T bytes: 28 MB for METR-LA, 3.6 GB for a year of 8,600 sensors."""
    geo, dyna = _pair(request.data)
    ids, locations = _sensors(geo)
    columns, channel = _columns(dyna, request.channel)
    grid = _Grid(columns, geo, ids)
    with closing(columns.read()) as pieces:
        for piece in pieces:
            grid.add(piece)
    rows = np.flatnonzero(grid.seen)
    known = tuple(ids[row] for row in rows)
    notes = grid.notes()
    placed = sum(match_key(vdid) in locations for vdid in known)
    if placed < len(known):
        notes.append(f"{geo}: it has no position for {len(known) - placed} of {len(known)} sensors")
    return Contents(
        ids=known,
        sensors=len(known),
        blocks=_blocks(grid.speeds, rows, np.array([timestamp(time) for time in grid.times], "S19")),
        feature=SPEED if channel == SPEED_COLUMN else channel,
        locations=locations or None,
        notes=tuple(notes),
        paths=(geo, dyna),
    )


def _needs(path: Path) -> tuple[str, ...]:
    """A channel, where there are several and none is the speed."""
    channels = _channels(_header(_pair(path)[1], TIME, SENSOR))
    return () if SPEED_COLUMN in channels or len(channels) == 1 else ("channel",)


def _recognise(head: FileHead) -> str | None:
    try:
        geo, dyna = _pair(head.path)
        if not (geo.is_file() and dyna.is_file()):
            return None
        _header(geo, ID, TYPE, PLACE)
        channels = _channels(_header(dyna, TIME, SENSOR))
    except (SocialxError, OSError):
        return None
    return f"LibCity's {geo.name} and {dyna.name} with {', '.join(channels)}"


def _channels(names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of readings."""
    return names[names.index(SENSOR) + 1 :]


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


def _header(path: Path, *needed: str) -> tuple[str, ...]:
    """The names of the columns."""
    lines = read_head(path, ADVICE).lines
    names = tuple(cells_of(lines[0][1], ",")) if lines and lines[0][0] == 1 else ()
    if not set(needed) <= set(names) or len(set(names)) < len(names):
        found = lines[0][1][:60] if lines else ""
        raise SocialxError(path, f"line 1 is {found!a}, not columns with {', '.join(needed)}", ADVICE)
    return names


def _sensors(path: Path) -> tuple[tuple[str, ...], dict[int | str, Location]]:
    """Sensor ids in the order of the file, and locations by ``match_key`` of those that have coordinates."""
    names = _header(path, ID, TYPE, PLACE)
    ids: dict[int | str, str] = {}
    locations = {}
    columns = TextColumns(path, names, tuple(names.index(name) for name in (ID, TYPE, PLACE)), ())
    with closing(columns.read()) as pieces:
        cells = (
            (piece.place(row), *each) for piece in pieces for row, each in enumerate(zip(*piece.texts, strict=True))
        )
        for place, sensor_id, kind, coordinates in cells:
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


def _columns(path: Path, wanted: str | None) -> tuple[TextColumns, str]:
    """The columns of a .dyna file that are read, and the name of the one with the readings."""
    names = _header(path, TIME, SENSOR)
    channels = _channels(names)
    has = f"its columns are {', '.join(channels) or 'none'}"
    if wanted is None and SPEED_COLUMN not in channels and len(channels) > 1:
        raise SettingsError(path, has, f"choose one with {Argument('channel')}")
    channel = wanted or (channels[0] if len(channels) == 1 else SPEED_COLUMN)
    if channel not in channels:
        raise SettingsError(path, f"no column {channel!a}, {has}", f"choose one of them with {Argument('channel')}")
    texts = tuple(names.index(name) for name in (TIME, SENSOR, TYPE) if name in names)
    return TextColumns(path, names, texts, (names.index(channel),)), channel


class _Grid:
    """The readings as the rows come in, which are sorted by sensor, then time."""

    def __init__(self, columns: TextColumns, geo: Path, ids: tuple[str, ...]) -> None:
        self._path, self._geo, self._ids = columns.path, geo, ids
        self._first, self.times = _first_sensor(columns)
        self._place_of = {time: place for place, time in enumerate(self.times)}
        self.speeds = np.full((len(ids), len(self.times)), np.nan, np.float32)
        self.seen = np.zeros(len(ids), bool)  # [N] the sensors that have rows
        self._row = {match_key(vdid): row for row, vdid in enumerate(ids)}
        self._now, self._place = -1, -1  # row of ``speeds`` and place of the reading before
        self._count = 0  # readings

    def add(self, piece: Piece) -> None:
        """The next rows of the file."""
        times, sensors, *kinds = piece.texts
        for row, pair in enumerate(zip(times, sensors, strict=True)):
            if not NO_READING.isdisjoint(pair):
                raise SocialxError(self._path, f"{piece.place(row)} has no {TIME} or no {SENSOR}", "correct it")
        if others := {kind for each in kinds for kind in each} - {"state"}:
            found = f"it has rows of type {min(others)[:40]!a}, not state"
            raise SocialxError(self._path, found, "only those are read")
        places = np.array([self._place_of.get(time, -1) for time in times])  # -1 = not among them
        names = np.array(sensors, object)
        edges = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1).tolist(), len(names)]
        for first, last in pairwise(edges):
            self._enter(sensors[first], times[first])
            wrong = np.diff(places[first:last], prepend=self._place) <= 0
            if wrong.any():
                row = first + int(wrong.argmax())
                reason, remedy = "after a later or the same one", "sort the rows of each sensor"
                if places[row] < 0:
                    reason = f"which the first sensor, {self._first}, has not"
                    remedy = "give all sensors the same times"
                found = f"sensor {sensors[first]} has the time {times[row]}, {reason}"
                raise SocialxError(self._path, found, remedy)
            self.speeds[self._now, places[first:last]] = piece.numbers[first:last, 0]
            self._place = int(places[last - 1])
        self._count += len(names)

    def _enter(self, name: str, time: str) -> None:
        """The rows from ``time`` on are those of the sensor ``name``."""
        path, row = self._path, self._row.get(match_key(name))
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
        path, notes = self._path, []
        if self.times[0].endswith("Z"):
            notes.append(f"{path}: its times end with Z, which LibCity writes after wall times: taken as those")
        if lacking := int(self.seen.sum()) * len(self.times) - self._count:
            notes.append(f"{path}: {counted(lacking, 'row is', 'rows are')} not in it: taken as missing readings")
        silent = [vdid for vdid, seen in zip(self._ids, self.seen, strict=True) if not seen]
        if silent:
            count = f"{len(silent)} of {len(self._ids)} sensors have no rows in {path.name} ({sample(silent)})"
            notes.append(f"{self._geo}: {count}: they are left out")
        return notes


def _first_sensor(columns: TextColumns) -> tuple[str, list[str]]:
    """The id of the first sensor, and its times as they are written; they are those of all sensors."""
    path, name, form, end = columns.path, "", "YYYY-MM-DDTHH:MM:SS", ""
    times: list[str] = []
    with closing(replace(columns, numbers=()).read()) as pieces:
        rows = ((piece, row, each) for piece in pieces for row, each in enumerate(zip(*piece.texts, strict=True)))
        for piece, row, (text, sensor, *_) in rows:
            if not times:
                name, end = sensor, "Z" * text.endswith("Z")
                plain = text.removesuffix(end)
                form = next((form for form in TIMES if TIMES[form].fullmatch(plain)), form)
            if match_key(sensor) != match_key(name):
                break
            if not (text.endswith(end) and TIMES[form].fullmatch(text.removesuffix(end))):
                remedy = f"write wall times as {form}"
                raise SocialxError(path, f"{piece.place(row)} has the time {text[:40]!a}, not {form}", remedy)
            if times and text <= times[-1]:
                remedy = "sort the rows of each sensor, or write times in UTC if daylight saving time repeats this one"
                raise SocialxError(path, f"{piece.place(row)} has the time {text}, not after {times[-1]}", remedy)
            times.append(text)
    if not times:
        raise SocialxError(path, "it has no rows", ADVICE)
    return name, times


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
