"""Sensors by id: location tables, id lists, and locations joined to data."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice, permutations
from pathlib import Path

import numpy as np

from socialx.core.errors import ITEM, Argument, SocialxError, sample
from socialx.data.geo import plausible_location, valid_degrees
from socialx.files.sources.positions.rows import RECIPE, Rows, read_rows, read_tables
from socialx.files.sources.tables.cells import ABSENT, as_number
from socialx.files.sources.tables.words import SENSOR
from socialx.files.store.ids import case_variants, casefolded_key, find_repeated, match_key
from socialx.files.store.layout import DIRECTIONS, Sensors

ADVICE = "name a table with the columns sensor_id, latitude and longitude"
IDS_ADVICE = "name a text file with one sensor id per line, or all in one line with commas"
NOWHERE = {*ABSENT, "POINT EMPTY"}
HEAD = 2000  # rows that tell what the columns hold
TIMES = 10  # most rows per sensor in a locations table with lane rows
NEAR = 30.0  # degrees: x and y of one network do not lie farther apart
METRES = 360.0  # larger numbers cannot be degrees
DROPPED = 5  # columns that an error advises to leave out
OTHERS = ("direction", "dir", "lanes", "length", "index")
ROADS = ("road", "road_name", "street", "street_name", "straße", "strasse", "rue", "calle", "vej", "freeway", "fwy")
IDS = ("sensor_id", "id", "station", "station_id", "vdid", "sid", "sensor", "detector", "detid", "geo_id")
UNNAMED = len(IDS) + 2  # the rank of a name that says nothing of sensors
# Words in names of columns of degrees, the best first.
AXES = {
    "latitude": "latitude lat latitud latitudine breite breitengrad breedtegraad szerokość широта 緯度 纬度 위도 y",
    "longitude": "longitude lng lon long longitud länge längengrad lengtegraad długość долгота 經度 経度 经度 경도 x",
}
WORDS = {word: (axis, rank) for axis, words in AXES.items() for rank, word in enumerate(words.split())}
PLANE, POINTS = 4, 8  # ranks of columns of x and y, and of points
BEGINS = {"start", "from", "begin", "first", "von", "origin", "inicio", "1"}
ENDS = {"end", "to", "stop", "last", "bis", "destination", "fin", "2"}
BORDERS = re.compile(r"[\W_]+|(?<=[a-zà-ÿ])(?=[A-ZÀ-Þ])|(?<=[0-9])(?=[A-Z])|(?<=[^\W0-9_])(?=[0-9])")
NUMBER = r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"
TWO = re.compile(rf"[(\[]?\s*({NUMBER})\s*([,;]|\s)\s*({NUMBER})\s*[)\]]?")
WKT = re.compile(
    rf"(?:SRID=[0-9]+;)?\s*(?:MULTI)?(?:POINT|LINESTRING)\s*(?:ZM|Z|M)?\s*\(+\s*({NUMBER})(\s)\s*({NUMBER})[\s,)].*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Location:
    """A sensor's location and attributes; NaN or an empty direction where unknown."""

    sensor_id: str
    latitude: float
    longitude: float
    lanes: float = math.nan
    length: float = math.nan
    direction: str = ""
    other_direction: str = ""  # another text than N, E, S, W
    road: str = ""


NO_PLACE = Location("", math.nan, math.nan)


def match_ids(
    ids: Sequence[str], locations: Mapping[int | str, Location]
) -> tuple[dict[int | str, Location], tuple[str, ...]]:
    """Return the locations with keys added for ids in another letter case and for stations, and remarks.

    Sensor ``2000-1``, from two columns, gets the location of station ``2000`` unless a row is called ``2000-1``.
    """
    cased = case_variants(ids, locations)
    located = {**locations, **{match_key(vdid): locations[key] for vdid, key in cased.items()}}
    told = [f"ids of sensors are in another case there ({sample(list(cased))})"] if cased else []
    stations = {vdid: match_key(_station(vdid)) for vdid in ids if match_key(vdid) not in located}
    if stations := {vdid: key for vdid, key in stations.items() if key in locations}:
        located |= {match_key(vdid): locations[key] for vdid, key in stations.items()}
        shown = [f"{vdid} at {key}" for vdid, key in stations.items()]
        told.append(f"sensors have the places of their stations ({sample(shown)})")
    return located, tuple(told)


def _station(vdid: str) -> str:
    """Return the id without the last part behind -, empty for an id in one part."""
    return vdid.rpartition("-")[0]


def centre(latitude: np.ndarray, longitude: np.ndarray) -> tuple[float, float] | None:
    """Return the median location, latitude and longitude; None where every sensor [N] lacks a location."""
    located = plausible_location(latitude, longitude)
    return (float(np.median(latitude[located])), float(np.median(longitude[located]))) if located.any() else None


def format_position(position: tuple[float, float]) -> str:
    """Format latitude and longitude in degrees as ``near 48.1 N, 11.5 E``."""
    latitude, longitude = position
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
    """Return the sensors ``ids`` with locations; ``static`` adds lanes, length and direction, NaN where unknown.

    allow_missing: give unlocated sensors NaN in place of a SocialxError. droppable: let the error suggest leaving
    columns out.
    """
    unknown = [vdid for vdid in ids if match_key(vdid) not in locations]
    if unknown and not allow_missing:
        few = droppable and len(unknown) < len(ids) and len(unknown) <= DROPPED and max(map(len, unknown)) <= ITEM
        drop = Argument("drop", unknown if len(unknown) > 1 else unknown[0])
        leaves_out = f", drop what is no sensor: {drop}" if few else ""
        problem = f"there is no position for {len(unknown)} of {len(ids)} sensors of the data ({sample(unknown)})"
        remedy = f"name the locations of this dataset{leaves_out}, or add {Argument('without_positions', True)}"
        raise SocialxError("places.lacking", path, problem, remedy)
    located = [locations.get(match_key(vdid), NO_PLACE) for vdid in ids]
    names = ("latitude", "longitude", "lanes", "length")
    latitude, longitude, lanes, length = (np.array([getattr(one, name) for one in located], float) for name in names)
    direction, road = (tuple(getattr(one, name) for one in located) for name in ("direction", "road"))
    sensors = Sensors(ids, latitude, longitude, road=road if any(road) else None)
    return replace(sensors, lanes=lanes, length=length, direction=direction) if static else sensors


def read_locations(path: Path, ids: Collection[str] = (), notes: list[str] | None = None) -> dict[int | str, Location]:
    """Return locations by ``match_key`` from a small table or GeoJSON; headerless rows are id,lat,lon.

    Examples: PEMS-BAY-META.csv, METR-LA's ``index,sensor_id,...``, LargeST's ca_meta.csv, and observations next to
    locations. A location at 0, 0 or with empty cells counts as absent. ids: the wanted sensor ids; the column with most
    ids names the sensors, else the column name decides. notes: receives a line about unusual columns. Raises
    SocialxError for ambiguous columns, two locations for a sensor, and numbers outside degrees.
    """
    tables, locations = _tables(path, ids), dict[int | str, Location]()
    wanted = cache(lambda: {match_key(key) for vdid in ids for key in (vdid, _station(vdid))})
    for line, location in (located for table in tables for located in _locations(path, table)):
        key = match_key(location.sensor_id)
        first = locations.setdefault(key, location)
        same = (first.latitude, first.longitude) == (location.latitude, location.longitude)
        if not same and (not ids or key in wanted()):
            two = f"({first.latitude}, {first.longitude}) and ({location.latitude}, {location.longitude})"
            problem = f"{line} gives sensor {location.sensor_id} two positions {two}"
            raise SocialxError("places.two", path, problem, "remove one, perhaps of another city")
    if not locations:
        raise SocialxError("places.no-sensors", path, "the file has no sensors", ADVICE)
    if notes is not None:
        notes += [f"{path}: {table.told}" for table in tables if table.told]
    return locations


def index_ids(path: Path) -> dict[int, str]:
    """Return sensor id by data column from a column ``index`` in a locations table; empty for any other file."""
    try:
        table = _tables(path)[0]
    except SocialxError:
        return {}
    ids: dict[int, str] = {}
    for line, cells in table.rows if "index" in table.others else ():
        index, sensor_id = cells[table.others["index"]], table.sensor_id(cells)
        key = match_key(index)
        if not isinstance(key, int) or match_key(ids.setdefault(key, sensor_id)) != match_key(sensor_id):
            problem = f"{line} has the index {index[:40]!r}, not one integer per sensor"
            raise SocialxError("places.index", path, problem, "correct it")
    if twice := find_repeated(ids.values()):
        raise SocialxError("places.twice", path, f"the index gives sensors two places ({sample(twice)})", "correct it")
    return ids


def read_ids(path: Path) -> tuple[str, ...]:
    """Return sensor ids in column order: a line each (PEMS03.txt), or all in a line (DCRNN's graph_sensor_ids.txt)."""
    ids, several_ids = list[str](), ""
    for line, cells in read_rows(path, IDS_ADVICE):
        line_ids = [text for cell in cells for text in cell.split()]
        several_ids = several_ids or (f"{line} has {sample(line_ids)}" if len(line_ids) > 1 else "")
        if several_ids and ids:
            raise SocialxError("ids.several-columns", path, f"{several_ids}, not one sensor id", IDS_ADVICE)
        ids += line_ids
    if not ids or not all(map(str.isprintable, ids)):
        raise SocialxError("ids.none", path, "the file has no sensor ids", IDS_ADVICE)
    if twice := find_repeated(ids):
        raise SocialxError("ids.twice", path, f"the file names sensors more than once ({sample(twice)})", "keep one")
    return tuple(ids)


@dataclass(frozen=True, eq=False)
class _Places:
    """A table with locations: rows, to be walked once, and columns by role.

    degree_columns: a column with points, or latitude and longitude. swapped: longitude comes first. others: columns by
    known name. matched: the number of wanted ids in the first rows. told: a note about unusual columns.
    """

    rows: Rows
    sensors: tuple[int, ...]
    degree_columns: tuple[int, ...]
    swapped: bool
    others: dict[str, int]
    matched: int
    told: str

    def sensor_id(self, cells: list[str]) -> str:
        """Return the id in a row."""
        return "-".join(cells[column] for column in self.sensors)

    def degrees(self, cells: list[str]) -> tuple[float, float]:
        """Return latitude and longitude in a row, NaN for other texts."""
        shown = [cells[column] for column in self.degree_columns]
        first, second = map(number, shown) if len(shown) == 2 else _two(shown[0])
        return (second, first) if self.swapped else (first, second)


def _tables(path: Path, ids: Collection[str] = ()) -> list[_Places]:
    """Return a file's location tables, if possible tables with wanted ``ids``."""
    tables, refused, wanted = list[_Places](), list[SocialxError](), {casefolded_key(vdid) for vdid in ids}
    for rows in read_tables(path, ADVICE):
        try:
            tables.append(_table(path, rows, wanted))
        except SocialxError as error:
            refused.append(error)
    if not tables:
        raise refused[0]
    return [table for table in tables if table.matched] or tables


def _table(path: Path, walked: Rows, wanted: set[str]) -> _Places:
    """Return a table's columns by role, from names and first rows. wanted: data ids by ``casefolded_key``."""
    (line, names), *first = [*islice(walked, HEAD)] or [("the file", [])]
    width = len(names)
    if width == 3 and not any(math.isnan(number(cell)) for cell in names[1:]):
        names, first = ["sensor_id", *AXES], [(line, names), *first]
    rows = [(cells + [""] * width)[:width] for _, cells in first]
    places = sorted([*_degree_columns(names), *_point_columns(names, rows)])
    if not places:
        problem = f"{line} is {','.join(names)[:60]!r}, without sensor_id, latitude, longitude"
        raise SocialxError("places.no-columns", path, problem, ADVICE)
    (rank, columns, swapped), *rivals = places
    called = [" and ".join(names[column] for column in pair) for _, pair, _ in places]
    if rivals and rivals[0][0] == rank:
        remedy = "rename those of the sensors to latitude and longitude"
        raise SocialxError("places.two-kinds", path, f"positions are in {called[0]}, and others in {called[1]}", remedy)
    lower = [name.lower() for name in names]
    others = {name: lower.index(name) for name in OTHERS if name in lower}
    free = sorted({*range(width)} - {column for _, pair, _ in places for column in pair} - {*others.values()})
    sensors, matched = _id_columns(path, names, free, rows, wanted)
    others |= {name: lower.index(name) for name in ROADS if name in lower and lower.index(name) not in sensors}
    if "citycode" in lower:  # of UTD19, whose lengths are those of roads, in kilometres
        others.pop("length", None)
    told = f"the sensors are those of its column {' and '.join(names[column] for column in sensors)}"
    told = f"{told}, their positions those of {called[0]}{', longitude first' if swapped else ''}"
    plain = [lower[column] for column in sensors] in ([IDS[0]], [IDS[1]]) and rank == 0
    body = _body(path, chain(first, walked), width)
    table = _Places(body, sensors, columns, swapped, others, matched, "" if plain else told)
    if PLANE <= rank < POINTS:
        _check_plane(path, called[0], np.array([table.degrees(row) for row in rows]).reshape(-1, 2))
    return table


def _body(path: Path, rows: Rows, width: int) -> Rows:
    """Yield the rows below the header. Raises SocialxError for a row that is shorter or longer than the header."""
    for line, cells in rows:
        if len(cells) < width or any(cells[width:]):
            raise SocialxError("places.cells", path, f"{line} has {len(cells)} cells, not {width}", "correct it")
        yield line, cells


def _check_plane(path: Path, names: str, degrees: np.ndarray) -> None:
    """Raise SocialxError where x and y, degrees [rows,2] in the columns ``names``, span more than a network can."""
    degrees = degrees[plausible_location(*degrees.T)]
    if len(degrees) and (apart := np.ptp(degrees, axis=0).max()) > NEAR:
        problem = f"{names} lie up to {apart:.0f} degrees apart, so they are no degrees of a network"
        raise SocialxError("places.plane", path, problem, "name columns latitude and longitude, in degrees")


def _words_in(name: str) -> list[str]:
    return [word.lower() for word in BORDERS.split(name) if word]


def _rank(words: Iterable[str]) -> int:
    """Return how well the words next to an axis denote a sensor location: 0 best, 3 for a road end."""
    return 0 if not words else 1 if BEGINS & {*words} else 3 if ENDS & {*words} else 2


def _degree_columns(names: Sequence[str]) -> Iterator[tuple[int, tuple[int, ...], bool]]:
    """Yield (rank, columns, False) by pair named like latitude and longitude, else like x and y; rank 0 is best."""
    axes: dict[str, dict[tuple[tuple[str, ...], bool], tuple[int, int]]] = {axis: {} for axis in AXES}
    for column, name in enumerate(names):
        words = _words_in(name)
        if len(axis_words := [word for word in words if word in WORDS]) == 1:
            axis, rank = WORDS[axis_words[0]]
            key = tuple(word for word in words if word not in WORDS), axis_words[0] in "xy"
            axes[axis][key] = min(axes[axis].get(key, (rank, column)), (rank, column))
    north, east = axes.values()
    plane = all(key[1] for key in north)
    pairs = [key for key in north if key in east and key[1] == plane]
    for key in pairs:
        yield _rank(key[0]) + PLANE * key[1], (north[key][1], east[key][1]), False
    if not pairs and len(north) == len(east) == 1:
        yield 2, (min(north.values())[1], min(east.values())[1]), False


def _point_columns(names: Sequence[str], rows: list[list[str]]) -> Iterator[tuple[int, tuple[int, ...], bool]]:
    """Yield (rank, column, whether longitude comes first) by column with points.

    Longitude comes first in WKT and [lists], in names such as ``lon_lat``, where a number exceeds 90, and before a
    blank; latitude comes first before a comma.
    """
    for column, name in enumerate(names):
        filled = [row[column] for row in rows if row[column] not in NOWHERE]
        first, second = _two(filled[0] if filled else "")
        is_wkt = bool(filled and WKT.match(filled[0]))
        if math.isnan(first) or not (is_wkt or 2 * sum("." in cell for cell in filled) >= len(filled)):
            continue  # two whole numbers may be anything
        north, east = name.lower().find("lat"), max(name.lower().find("lon"), name.lower().find("lng"))
        swapped = east < north if min(north, east) >= 0 else not re.search(r"^[^\[]*[,;]", filled[0])
        if valid_degrees(first, second) != valid_degrees(second, first):
            swapped = bool(valid_degrees(second, first))
        yield POINTS + _rank(_words_in(name)), (column,), is_wkt or swapped


def _two(cell: str) -> tuple[float, float]:
    """Return a point's two numbers in order; NaN for any other cell."""
    match = WKT.fullmatch(cell) or TWO.fullmatch(cell)
    return (float(match[1]), float(match[3])) if match else (math.nan, math.nan)


def _id_columns(
    path: Path, names: Sequence[str], free: list[int], rows: list[list[str]], wanted: set[str]
) -> tuple[tuple[int, ...], int]:
    """Return the id column, or two columns joined by -, among the ``free`` columns, and the number of wanted ids.

    Most wanted ids win, then most stations; without wanted ids, the name decides. Raises SocialxError for a tie.
    """
    stations = {*map(_station, wanted)} - {""}
    parts = {part for vdid in wanted if "-" in vdid for part in vdid.split("-")}
    in_parts = [column for column in free if 2 * sum(row[column].casefold() in parts for row in rows) >= len(rows) > 0]
    for keys, columns, size in ((wanted, free, 1), (wanted, in_parts, 2), (stations, free, 1)):
        matches = _matches(names, permutations(columns, size), rows, keys)
        if best := _best(names, matches):
            if len({matches[group][1] for group in best}) == 1:
                return best[0], matches[best[0]][0]
            listed = sample([" and ".join(names[column] for column in group) for group in best], 8)
            problem = f"{listed} hold about as many sensors of the data"
            raise SocialxError("places.id-columns", path, problem, f"rename the column of the ids to {IDS[0]}")
    ranks = {column: _id_rank(names[column]) for column in free}
    least = min(ranks.values(), default=UNNAMED)
    best = [(column,) for column in free if ranks[column] == least < UNNAMED]
    if len(best) != 1:
        listed = sample([names[column] for column in free], 8) or "no column"
        problem = f"{listed} {'hold no sensor of the data' if wanted else 'may be the ids'}"
        raise SocialxError("places.ids", path, problem, f"rename the column of the ids to {IDS[0]}")
    first = best[0][0]
    if not wanted and len(rows) > TIMES * len({row[first] for row in rows}):
        problem = f"the same {names[first]} stands in many rows, as in a table of readings"
        raise SocialxError("places.rows", path, problem, "write one row for each sensor")
    return best[0], 0


def _matches(
    names: Sequence[str], groups: Iterable[tuple[int, ...]], rows: list[list[str]], keys: set[str]
) -> dict[tuple[int, ...], tuple[int, tuple[str, ...]]]:
    """Return the number of ``keys`` and the keys in all rows by group of columns, unless below half for other names.

    A column with an uninformative name must differ from row numbers.
    """
    matches = {}
    for group in groups:
        texts = tuple(casefolded_key("-".join(row[column] for column in group)) for row in rows)
        count = len({*texts} & keys)
        enough = 2 * count >= min(len(keys), len(texts)) and not _counts_rows(texts)
        if count and (enough or _id_rank(names[group[0]]) < UNNAMED):
            matches[group] = count, texts
    return matches


def _best(
    names: Sequence[str], matches: Mapping[tuple[int, ...], tuple[int, tuple[str, ...]]]
) -> list[tuple[int, ...]]:
    """Return the groups with about as many keys as the best group; only sensor_id, or the only id name, if present."""
    most = max((count for count, _ in matches.values()), default=0)
    near = [group for group, (count, _) in matches.items() if 10 * count >= 9 * most]
    named = [group for group in near if _id_rank(names[group[0]]) < UNNAMED]
    alone = len(named) == 1 and not _counts_rows(matches[named[0]][1])
    return [group for group in near if names[group[0]].lower() == IDS[0]] or (named if alone else near)


def _counts_rows(texts: tuple[str, ...]) -> bool:
    return any(texts == tuple(str(first + row) for row in range(len(texts))) for first in (0, 1))


def _id_rank(name: str) -> int:
    """Return how well a column name denotes sensors, 0 best; UNNAMED for other names."""
    lower = name.lower()
    if lower in IDS:
        return IDS.index(lower)
    return len(IDS) + (lower == "name" or 2 * (not SENSOR.fullmatch(name)))


def number(cell: str) -> float:
    """Return a cell, perhaps with a decimal comma, as a finite number, else NaN."""
    value = as_number(cell if "." in cell else cell.replace(",", "."))
    return value if math.isfinite(value) else math.nan


def _locations(path: Path, table: _Places) -> Iterator[tuple[str, Location]]:
    seen = set[tuple[str, ...]]()
    for line, cells in table.rows:
        others = (column for name, column in table.others.items() if name not in ROADS)
        texts = tuple(cells[column] for column in (*table.sensors, *table.degree_columns, *others))
        if texts not in seen and (location := _location(path, line, cells, table)):
            seen.add(texts)
            yield line, location


def _location(path: Path, line: str, cells: list[str], table: _Places) -> Location | None:
    """Return the location in a row, None where absent; ``line`` and ``path`` name the row. Raises outside degrees."""
    shown = [cells[column] for column in table.degree_columns]
    latitude, longitude = table.degrees(cells)
    if {*shown} <= NOWHERE or (latitude, longitude) == (0, 0):
        return None
    sensor_id = table.sensor_id(cells)
    if not sensor_id:
        raise SocialxError("places.no-id", path, f"{line} has no sensor id", "correct it")
    if not (abs(latitude) <= 90 and abs(longitude) <= 180):
        remedy = "correct it"
        if valid_degrees(longitude, latitude):
            remedy = "latitude and longitude look exchanged, so exchange them"
        elif min(abs(latitude), abs(longitude)) > METRES:
            remedy = "they look like metres of projected coordinates: reproject them to WGS84 (EPSG:4326), "
            remedy += "for example with to_crs(4326) of geopandas"
        elif any(mark in "".join(shown) for mark in "°'NSEW"):
            remedy = f"degrees with minutes: {RECIPE}"
        template = "latitude {!r}, longitude {!r}" if len(shown) == 2 else "the position {!r}"
        shown = [cell[:40] for cell in shown]
        problem = f"{line} has {template.format(*shown)}, not degrees within +-90 and +-180"
        raise SocialxError("places.out-of-range", path, problem, remedy)
    texts = {name: cells[column] for name, column in table.others.items()}
    direction = texts.get("dir", texts.get("direction", "")).upper()
    letter = direction if direction in DIRECTIONS else ""
    lanes, length = number(texts.get("lanes", "")), number(texts.get("length", ""))
    road = next((text for name in ROADS if (text := texts.get(name, "").strip()) not in NOWHERE), "")
    road = "".join(filter(str.isprintable, road))[:ITEM]
    return Location(sensor_id, latitude, longitude, lanes, length, letter, "" if letter else direction, road)
