"""Sensors by their ids: how ids are spelt, tables of positions, lists of ids, and positions joined to data by id."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from socialx.core.errors import ITEM, Argument, SocialxError, sample
from socialx.data.geo import plausible_location, valid_degrees
from socialx.files.sources.positions.points import Row, axis_of, degrees, number, point, rank_of, words_of
from socialx.files.sources.small_tables import FEATURE_ID, read_rows, read_tables
from socialx.files.sources.tables.columns import ID_WORDS, IDS, PLACE_WORDS
from socialx.files.sources.tables.text_cells import NO_READING
from socialx.files.store.ids import folded, match_key, recased, repeated
from socialx.files.store.layout import DIRECTIONS, Sensors

ADVICE = "name a file like PEMS-BAY-META.csv or graph_sensor_locations.csv"
IDS_ADVICE = "name a text file with one sensor id per line, or all in one line with commas"
NOWHERE = NO_READING | {"POINT EMPTY"}
TIMES = 10  # that a sensor stands in a table of positions, with a row for each lane
SAME = 1e-4  # degrees, 11 m: between two columns with one position
NEAR = 30.0  # degrees: x and y of one network do not lie farther apart
UNNAMED = 100  # the rank of a name that says nothing of sensors
METRES = 360.0  # larger numbers are no degrees
PLAIN = {"latitude", "lat", "longitude", "lon", "lng", "long", "geometry"}
OTHERS = ("direction", "dir", "lanes", "length", "index", "citycode")
CITIES = {"losanageles": "losangeles"}  # as detectors_public.csv of UTD19 writes one -> as its readings do
DROPPED = 5  # columns that an error advises to leave out


@dataclass(frozen=True)
class Location:
    """Where one sensor stands; NaN or an empty direction where the file does not say."""

    sensor_id: str
    latitude: float
    longitude: float
    lanes: float
    length: float
    direction: str
    other_direction: str = ""  # what stands there and is none of N, E, S, W


def respelt(
    ids: Iterable[str], locations: Mapping[int | str, Location]
) -> tuple[dict[int | str, Location], tuple[str, ...]]:
    """The locations with those of sensors that are ``recased``, and the ids of these."""
    found = recased(ids, locations)
    return {**locations, **{match_key(vdid): locations[key] for vdid, key in found.items()}}, tuple(found)


def centre(latitude: np.ndarray, longitude: np.ndarray) -> tuple[float, float] | None:
    """The middle of those sensors [N] that have a position; None where none has."""
    known = plausible_location(latitude, longitude)
    return (float(np.median(latitude[known])), float(np.median(longitude[known]))) if known.any() else None


def near(place: tuple[float, float]) -> str:
    """A place as people write it: ``near 48.1 N, 11.5 E``."""
    latitude, longitude = place
    return f"near {abs(latitude):.1f} {'NS'[latitude < 0]}, {abs(longitude):.1f} {'EW'[longitude < 0]}"


def join(
    ids: tuple[str, ...],
    locations: dict[int | str, Location],
    path: Path,
    *,
    static: bool,
    allow_missing: bool = False,
    droppable: bool = False,
) -> Sensors:
    """The sensors of the data in the data's order; ``static`` adds lanes, length and direction, unknown as NaN.

    allow_missing: a sensor without a location has NaN, and no direction, instead of a refusal.  droppable: the refusal
    says how to leave a column of the data out.
    """
    unknown = [vdid for vdid in ids if match_key(vdid) not in locations]
    if unknown and not allow_missing:
        few = droppable and len(unknown) < len(ids) and len(unknown) <= DROPPED and max(map(len, unknown)) <= ITEM
        drop = Argument("drop", unknown if len(unknown) > 1 else unknown[0])
        leaves_out = f", leave out what is no sensor: {drop}" if few else ""
        raise SocialxError(
            path,
            f"no position for {len(unknown)} of {len(ids)} sensors of the data ({sample(unknown)})",
            f"name the locations of this dataset{leaves_out}, or add {Argument('without_positions', True)}",
        )
    nowhere = Location("", math.nan, math.nan, math.nan, math.nan, "")
    places = [locations.get(match_key(vdid), nowhere) for vdid in ids]
    latitude, longitude, lanes, length = (
        np.array([getattr(place, name) for place in places], np.float64)
        for name in ("latitude", "longitude", "lanes", "length")
    )
    if not static:
        return Sensors(ids, latitude, longitude)
    return Sensors(ids, latitude, longitude, lanes, length, tuple(place.direction for place in places))


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
    filled = [[*cells, *[""] * width] for _, cells in rows[1:]]
    choices = [*_of_degrees(names, filled), *_of_points(names, filled)]
    if not choices:
        found = f"{line} is {','.join(names)[:60]!r}, without sensor_id, latitude, longitude"
        raise SocialxError(path, found, ADVICE)
    for line, cells in rows[1:]:
        if len(cells) < width or any(cells[width:]):
            raise SocialxError(path, f"{line} has {len(cells)} cells, not {width}", "correct it")
    best, lower = _chosen(path, choices), [name.lower() for name in names]
    others = {name: lower.index(name) for name in OTHERS if name in lower}
    placed: list[_Row] = [
        (line, cells, None if at == [0, 0] or {cells[place] for place in best.columns} <= NOWHERE else (at[0], at[1]))
        for (line, cells), at in zip(rows[1:], best.degrees.tolist(), strict=True)
    ]
    if "citycode" in others:
        others.pop("length", None)  # of the road, in kilometres
        placed = _of_city(path, placed, others["citycode"], city) if city else placed
    free = sorted({*range(width)} - {place for choice in choices for place in choice.columns})
    sensors, known = _sensors(path, names, free, [(cells, at) for _, cells, at in placed if at], wanted)
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


@dataclass(frozen=True)
class _Places:
    """Columns that may hold positions; those of the lowest rank are meant.

    degrees: latitude and longitude, float64 [rows, 2], NaN where a row has none.  names: of the columns, for a user.
    """

    columns: tuple[int, ...]
    rank: int
    degrees: np.ndarray
    names: str

    def order(self) -> tuple[bool, int]:
        """Columns of degrees come first, whatever their names are."""
        fit = np.count_nonzero(valid_degrees(*self.degrees.T))
        return bool(2 * fit <= np.count_nonzero(~np.isnan(self.degrees).any(axis=1))), self.rank


def _of_degrees(names: list[str], rows: list[list[str]]) -> Iterator[_Places]:
    axes: dict[str, dict[tuple[tuple[str, ...], bool], int]] = {"latitude": {}, "longitude": {}}
    named = [(*found, place) for place, name in enumerate(names) if (found := axis_of(name))]
    for axis, _, others, of_plane, place in sorted(named):
        axes[axis].setdefault((others, of_plane), place)
    north, east = axes.values()
    plane = all(key[1] for key in north)  # else x and y are another system
    pairs = [(rank_of(key[0]) + 4 * key[1], north[key], east[key]) for key in north if key in east and key[1] == plane]
    if not pairs and len(north) == len(east) == 1:
        pairs = [(2, *north.values(), *east.values())]  # type: ignore[list-item]  # which are one each
    for rank, first, second in pairs:
        read = np.array([(degrees(cells[first], "NS"), degrees(cells[second], "EW")) for cells in rows], np.float64)
        yield _Places((first, second), rank, read.reshape(-1, 2), f"{names[first]} and {names[second]}")


def _of_points(names: list[str], rows: list[list[str]]) -> Iterator[_Places]:
    for place, name in enumerate(names):
        cells = [row[place] for row in rows]
        if not point(next((cell for cell in cells if cell not in NOWHERE), "")):
            continue
        points = [point(cell) for cell in cells]
        way, *others = {each[0] for each in points if each}
        if others or (way in (",", " ") and 2 * sum("." in cell for cell in cells) < sum(map(bool, points))):
            continue  # two whole numbers are degrees beside others with decimals alone
        numbers = np.array([each[1:] if each else (math.nan, math.nan) for each in points])
        order = 1 if _latitude_first(name, way, numbers) else -1
        how = ", of each line its first point" if way == "line" else ""
        if way in (",", " "):
            how = f", read as {', '.join(('latitude', 'longitude')[::order])}"
        rank = rank_of(tuple(words_of(name))) + (16 if way == "line" else 8)
        yield _Places((place,), rank, numbers[:, ::order], name + how)


def _latitude_first(name: str, way: str, numbers: np.ndarray) -> bool:
    """Whether the first of the two numbers of points [rows, 2] is the latitude.

    Where two numbers alone stand there, the name may say it; else degrees may allow one order only; else two with a
    comma are latitude, longitude, as people write them, and two with a space longitude, latitude, as in WKT.
    """
    if way not in (",", " "):
        return way == "angles"
    latitude, longitude = name.lower().find("lat"), max(map(name.lower().find, ("lon", "lng")))
    if min(latitude, longitude) >= 0:
        return latitude < longitude
    known = numbers[~np.isnan(numbers).any(axis=1)]
    fits, exchanged = (bool(valid_degrees(*order).all()) for order in (known.T, known.T[::-1]))
    return way == "," if fits == exchanged else fits


def _chosen(path: Path, choices: list[_Places]) -> _Places:
    """The best of some columns; refuses two that are as good, and x and y that are far apart."""
    best = min(choices, key=_Places.order)
    for other in choices:
        same = np.allclose(best.degrees, other.degrees, rtol=0, atol=SAME, equal_nan=True)
        if other.order() == best.order() and not same:
            remedy = "rename those of the sensors to latitude and longitude"
            raise SocialxError(path, f"positions in {best.names}, and others in {other.names}", remedy)
    known = best.degrees[plausible_location(*best.degrees.T)]
    if 4 <= best.rank < 8 and len(known) and (apart := np.ptp(known, axis=0).max()) > NEAR:
        what = f"{best.names} lie up to {apart:.0f} degrees apart, so they are no degrees of a network"
        raise SocialxError(path, what, "name columns latitude and longitude, in degrees")
    return best


_Placed = list[tuple[list[str], tuple[float, float]]]  # cells and degrees of rows that have both


def _sensors(path: Path, names: list[str], free: list[int], rows: _Placed, wanted: set[str]) -> tuple[int, int]:
    """The column, of those that are free, that names the sensors, and how many of the ids it has.

    It is the one with most of those that are wanted, as ``folded``.  A column with a name that says nothing must have
    half of them, and may not count the rows.  Of two with other positions and nearly as many none is taken, unless it
    is ``sensor_id``.  Without ids, or where none is known, the name decides.
    """
    ranks = {place: _rank(names[place]) for place in free}
    known: dict[int, dict[str, tuple[float, float]]] = {}
    for place in free if wanted else ():
        cells = [row[place] for row, _ in rows]
        sure = _known(cells, rows, wanted)
        if ranks[place] < UNNAMED or (2 * len(sure) >= min(len(wanted), len(cells)) and not _counts_rows(cells)):
            known[place] = sure
    most = max(map(len, known.values()), default=0)
    if most:
        best = [place for place in known if 10 * len(known[place]) >= 9 * most]
        first = max(best, key=lambda place: (len(known[place]), -ranks[place]))
        alike = all(known[place].get(key, at) == at for place in best for key, at in known[first].items())
        best = [first] if alike else best
    else:
        best = [place for place in free if ranks[place] == min(ranks.values()) < UNNAMED]
    one = best if len(best) == 1 else [place for place in best if ranks[place] == 0]
    if not one:
        what = "may be the ids" if not wanted else "hold no sensor of the data"
        listed = sample([names[place] for place in best or free], 8) or "no column"
        found = f"{listed} {'hold about as many sensors of the data' if most else what}"
        raise SocialxError(path, found, f"rename the column of the ids to {IDS[0]}")
    first = one[0]
    if not wanted and len(rows) > TIMES * len({cells[first] for cells, _ in rows}):
        found = f"the same {names[first]} stands in many rows, as in a table of readings"
        raise SocialxError(path, found, "write one row for each sensor")
    return first, most


def _counts_rows(cells: list[str]) -> bool:
    return any(cells == [str(first + row) for row in range(len(cells))] for first in (0, 1))


def _known(cells: list[str], rows: _Placed, wanted: set[str]) -> dict[str, tuple[float, float]]:
    """Of the sensors that these cells of a column name, those that are wanted and have one position."""
    found: dict[str, set[tuple[float, float]]] = {}
    for cell, (_, at) in zip(cells, rows, strict=True):
        if (key := folded(cell)) in wanted:
            found.setdefault(key, set()).add(at)
    return {key: next(iter(at)) for key, at in found.items() if len(at) == 1}


def _rank(name: str) -> int:
    """How well the name of a column says that it names sensors, 0 best; UNNAMED: it does not."""
    lower, words = name.lower(), {word for word in words_of(name) if not word.isdigit()}
    if lower in IDS:
        return IDS.index(lower)
    if words & PLACE_WORDS and words <= PLACE_WORDS | ID_WORDS:
        return 50 if words & ID_WORDS else 60
    return {"name": 70, FEATURE_ID: 80}.get(lower, UNNAMED)


def _location(path: Path, line: str, cells: list[str], degrees: tuple[float, float], table: _Positions) -> Location:
    if not cells[table.sensors]:
        raise SocialxError(path, f"{line} has no sensor id", "correct it")
    latitude, longitude = degrees
    if not valid_degrees(latitude, longitude):
        remedy = "correct it"
        if valid_degrees(longitude, latitude):
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
