"""Tables of positions and lists of ids, as published with many data sets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from socialx.data.geo import within_degrees
from socialx.errors import Argument, SocialxError, sample
from socialx.files.formats.words import IDS
from socialx.files.hdf5_layout import DIRECTIONS
from socialx.files.ids import folded, match_key, repeated
from socialx.files.locations import Location
from socialx.files.points import Row, number
from socialx.files.position_columns import NOWHERE, chosen, positions_in, sensors_in
from socialx.files.small_tables import FEATURE_ID, read_rows, read_tables

ADVICE = "name a file like PEMS-BAY-META.csv or graph_sensor_locations.csv"
IDS_ADVICE = "name a text file with one sensor id per line, or all in one line with commas"
METRES = 360.0  # larger numbers are no degrees
PLAIN = {"latitude", "lat", "longitude", "lon", "lng", "long", "geometry"}
OTHERS = ("direction", "dir", "lanes", "length", "index", "citycode")
CITIES = {"losanageles": "losangeles"}  # as detectors_public.csv of UTD19 writes one -> as its readings do


def read_locations(
    path: Path, ids: Iterable[str] = (), city: str | None = None, notes: list[str] | None = None
) -> dict[int | str, Location]:
    """Locations by ``match_key``, of a small table of any form, GeoJSON or DATEX II; headerless it is id,lat,lon.

    For example PEMS-BAY-META.csv, METR-LA's ``index,sensor_id,...`` and LargeST's ca_meta.csv.  A sensor may be listed
    twice only with one position; one at 0, 0, or without both numbers, counts as not listed.  ids: of the sensors that
    are looked for; the column with most of them names the sensors, else its name must say so.  city: of a file that
    names the city of each sensor, as detectors_public.csv of UTD19 does, only those of this one.  notes: get a line on
    columns with other names than sensor_id, latitude and longitude.  Raises SocialxError where two columns may be
    meant, and for what are no degrees.
    """
    locations: dict[int | str, Location] = {}
    for table in _tables(path, ids, city, notes):
        for line, cells, at in table.rows:
            if at is None:
                continue
            location = _location(path, line, cells, at, table)
            known = locations.setdefault(match_key(location.sensor_id), location)
            if (known.latitude, known.longitude) != (location.latitude, location.longitude):
                raise SocialxError(
                    path,
                    f"{line} gives sensor {location.sensor_id} two positions ({known.latitude}, {known.longitude}) "
                    f"and ({location.latitude}, {location.longitude})",
                    "remove one",
                )
    if not locations:
        raise SocialxError(path, "it has no sensors", ADVICE)
    return locations


def index_ids(path: Path) -> dict[int, str]:
    """Index -> sensor id, of a locations file with a column ``index``; empty for any other file."""
    try:
        table = _tables(path)[0]
    except SocialxError:
        return {}
    ids: dict[int, str] = {}
    for line, cells, _ in table.rows if "index" in table.others else ():
        index, sensor_id = cells[table.others["index"]], cells[table.sensors]
        key = match_key(index)
        if not isinstance(key, int) or match_key(ids.setdefault(key, sensor_id)) != match_key(sensor_id):
            raise SocialxError(path, f"{line} has the index {index[:40]!r}, not one integer per sensor", "correct it")
    if twice := repeated(ids.values()):
        raise SocialxError(path, f"its column index gives sensors two places ({sample(twice)})", "correct it")
    return ids


def read_ids(path: Path) -> tuple[str, ...]:
    """Sensor ids in column order: one per line (PEMS03.txt), or all in one line (DCRNN's graph_sensor_ids.txt)."""
    ids, several = list[str](), ""
    for line, cells in read_rows(path, IDS_ADVICE):
        found = [text for cell in cells for text in cell.split()]
        several = several or (f"{line} has {sample(found)}" if len(found) > 1 else "")
        if several and ids:
            raise SocialxError(path, f"{several}, not one sensor id", IDS_ADVICE)
        ids += found
    if not ids or not all(map(str.isprintable, ids)):
        raise SocialxError(path, "it has no sensor ids", IDS_ADVICE)
    if twice := repeated(ids):
        raise SocialxError(path, f"it names sensors more than once ({sample(twice)})", "remove the repeated ones")
    return tuple(ids)


_Row = tuple[str, list[str], tuple[float, float] | None]  # where it stands, its cells, and its degrees if it has any


@dataclass(frozen=True)
class _Positions:
    """The rows of a table of positions, and what its columns hold.

    columns: those of the positions.  others: those with these names.  sensors: that of the ids.  known: how many of the
    ids that are looked for it has.  told: a note on its columns.
    """

    rows: list[_Row]
    columns: tuple[int, ...]
    others: dict[str, int]
    sensors: int
    known: int
    told: str


def _tables(
    path: Path, ids: Iterable[str] = (), city: str | None = None, notes: list[str] | None = None
) -> list[_Positions]:
    """The tables of a file with positions, as ``read_locations`` describes them; those with some of the ids, if any."""
    tables, refused, told = list[_Positions](), list[SocialxError](), list[str]()
    wanted = set(map(folded, ids))
    for rows in filter(None, map(list, read_tables(path, ADVICE, told))):
        try:
            tables.append(_table(path, rows, wanted, city))
        except SocialxError as error:
            refused.append(error)
    if not tables:
        raise refused[0] if refused else SocialxError(path, "it has no sensors", ADVICE)
    tables = [table for table in tables if table.known] or tables
    if notes is not None:
        notes += [*told, *(f"{path}: {table.told}" for table in tables if table.told)]
    return tables


def _table(path: Path, rows: list[Row], wanted: set[str], city: str | None) -> _Positions:
    """The table whose first row is its header."""
    line, names = rows[0]
    width = len(names)
    if width == 3 and not any(math.isnan(number(cell)) for cell in names[1:]):
        names, rows = ["sensor_id", "latitude", "longitude"], [("", []), *rows]
    choices = positions_in(names, [[*cells, *[""] * width] for _, cells in rows[1:]])
    if not choices:
        found = f"{line} is {','.join(names)[:60]!r}, without sensor_id, latitude, longitude"
        raise SocialxError(path, found, ADVICE)
    for line, cells in rows[1:]:
        if len(cells) < width or any(cells[width:]):
            raise SocialxError(path, f"{line} has {len(cells)} cells, not {width}", "correct it")
    best, lower = chosen(path, choices), [name.lower() for name in names]
    others = {name: lower.index(name) for name in OTHERS if name in lower}
    placed: list[_Row] = [
        (line, cells, None if at == [0, 0] or {cells[place] for place in best.columns} <= NOWHERE else (at[0], at[1]))
        for (line, cells), at in zip(rows[1:], best.degrees.tolist(), strict=True)
    ]
    if "citycode" in others:
        others.pop("length", None)  # of the road, in kilometres
        placed = _of_city(path, placed, others["citycode"], city) if city else placed
    free = sorted({*range(width)} - {place for choice in choices for place in choice.columns})
    sensors, known = sensors_in(path, names, free, [(cells, at) for _, cells, at in placed if at], wanted)
    plain = lower[sensors] in (*IDS[:2], FEATURE_ID) and {*best.names.lower().split(" and ")} <= PLAIN
    told = f"the sensors are those of its column {names[sensors]}, their positions those of {best.names}"
    return _Positions(placed, best.columns, others, sensors, known, "" if plain else told)


def _of_city(path: Path, rows: list[_Row], column: int, city: str) -> list[_Row]:
    """The rows of a city, which UTD19 writes in several ways."""

    def plain(name: str) -> str:
        return CITIES.get(name.strip().lower(), name.strip().lower())

    found = [row for row in rows if plain(row[1][column]) == plain(city)]
    if not found:
        others = (
            f"it has no sensors of {city}, but of {sample([*dict.fromkeys(cells[column] for _, cells, _ in rows)])}"
        )
        raise SocialxError(path, others, f"name another one with {Argument('city')}, or the positions of {city}")
    return found


def _location(path: Path, line: str, cells: list[str], degrees: tuple[float, float], table: _Positions) -> Location:
    if not cells[table.sensors]:
        raise SocialxError(path, f"{line} has no sensor id", "correct it")
    latitude, longitude = degrees
    if not within_degrees(latitude, longitude):
        remedy = "correct it"
        if within_degrees(longitude, latitude):
            remedy = "latitude and longitude look exchanged, so exchange them"
        elif min(abs(latitude), abs(longitude)) > METRES:
            remedy = "they look like metres of projected coordinates: reproject them to WGS84 (EPSG:4326), "
            remedy += "for example with to_crs(4326) of geopandas"
        shown = [cells[place][:40] for place in table.columns]
        what = "latitude {!r}, longitude {!r}" if len(shown) == 2 else "the position {!r}"
        found = f"{line} has {what.format(*shown)}, not degrees within +-90 and +-180"
        raise SocialxError(path, found, remedy)
    says = {name: cells[place] for name, place in table.others.items()}
    direction = says.get("dir", says.get("direction", "")).upper()
    return Location(
        sensor_id=cells[table.sensors],
        latitude=latitude,
        longitude=longitude,
        lanes=number(says.get("lanes", "")),
        length=number(says.get("length", "")),
        direction=direction if direction in DIRECTIONS else "",
        other_direction="" if direction in DIRECTIONS else direction,
    )
