"""Sensors by id: location tables, id lists, and locations joined to data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from socialx.core.errors import ITEM, Argument, SocialxError, sample
from socialx.data.geo import plausible_location, valid_degrees
from socialx.files.sources.positions.points import Row, degrees, number, parse_axis, point, rank_words, split_words
from socialx.files.sources.small_tables import FEATURE_ID, read_rows, read_tables
from socialx.files.sources.tables.columns import ID_WORDS, IDS, PLACE_WORDS
from socialx.files.sources.tables.text_cells import NO_READING
from socialx.files.store.ids import case_variants, casefolded_key, find_repeated, match_key
from socialx.files.store.layout import DIRECTIONS, Sensors

ADVICE = "name a table with the columns sensor_id, latitude and longitude"
IDS_ADVICE = "name a text file with one sensor id per line, or all in one line with commas"
NOWHERE = NO_READING | {"POINT EMPTY"}
TIMES = 10  # most rows per sensor in a locations table with lane rows
SAME = 1e-4  # degrees, 11 m: between two columns with one position
NEAR = 30.0  # degrees: x and y of one network do not lie farther apart
UNNAMED = 100  # the rank of a name that says nothing of sensors
METRES = 360.0  # larger numbers cannot be degrees
PLAIN = {"latitude", "lat", "longitude", "lon", "lng", "long", "geometry"}
OTHERS = ("direction", "dir", "lanes", "length", "index", "citycode")
CITIES = {"losanageles": "losangeles"}  # as detectors_public.csv of UTD19 writes one -> as its readings do
DROPPED = 5  # columns that an error advises to leave out


@dataclass(frozen=True)
class Location:
    """A sensor's location and attributes; NaN or an empty direction where unknown."""

    sensor_id: str
    latitude: float
    longitude: float
    lanes: float
    length: float
    direction: str
    other_direction: str = ""  # another text than N, E, S, W


def match_case(
    ids: Iterable[str], locations: Mapping[int | str, Location]
) -> tuple[dict[int | str, Location], tuple[str, ...]]:
    """Return the locations with keys added for ids in another letter case, and the affected ids."""
    variants = case_variants(ids, locations)
    return {**locations, **{match_key(vdid): locations[key] for vdid, key in variants.items()}}, tuple(variants)


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
        raise SocialxError(
            path,
            f"there is no position for {len(unknown)} of {len(ids)} sensors of the data ({sample(unknown)})",
            f"name the locations of this dataset{leaves_out}, or add {Argument('without_positions', True)}",
        )
    nowhere = Location("", math.nan, math.nan, math.nan, math.nan, "")
    located = [locations.get(match_key(vdid), nowhere) for vdid in ids]
    latitude, longitude, lanes, length = (
        np.array([getattr(location, name) for location in located], np.float64)
        for name in ("latitude", "longitude", "lanes", "length")
    )
    if not static:
        return Sensors(ids, latitude, longitude)
    return Sensors(ids, latitude, longitude, lanes, length, tuple(location.direction for location in located))


def read_locations(
    path: Path, ids: Iterable[str] = (), city: str | None = None, notes: list[str] | None = None
) -> dict[int | str, Location]:
    """Return locations by ``match_key`` from a small table, GeoJSON or DATEX II; headerless rows are id,lat,lon.

    Examples: PEMS-BAY-META.csv, METR-LA's ``index,sensor_id,...`` and LargeST's ca_meta.csv. Repeated sensors need
    equal locations; a location at 0, 0 or with an empty number counts as absent. ids: the wanted sensor ids; the column
    with the most matches names the sensors, else the column name decides. city: keep a single city's sensors, as in
    UTD19's detectors_public.csv. notes: receives a line about unusual column names. Raises SocialxError for ambiguous
    columns and for numbers outside degrees.
    """
    locations: dict[int | str, Location] = {}
    for table in _tables(path, ids, city, notes):
        for line, cells, at in table.rows:
            if at is None:
                continue
            location = _location(path, line, cells, at, table)
            first = locations.setdefault(match_key(location.sensor_id), location)
            if (first.latitude, first.longitude) != (location.latitude, location.longitude):
                raise SocialxError(
                    path,
                    f"{line} gives sensor {location.sensor_id} two positions ({first.latitude}, {first.longitude}) "
                    f"and ({location.latitude}, {location.longitude})",
                    "remove one",
                )
    if not locations:
        raise SocialxError(path, "the file has no sensors", ADVICE)
    return locations


def index_ids(path: Path) -> dict[int, str]:
    """Return sensor id by data column from a column ``index`` in a locations table; empty for any other file."""
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
    if twice := find_repeated(ids.values()):
        raise SocialxError(path, f"the column index gives sensors two places ({sample(twice)})", "correct it")
    return ids


def read_ids(path: Path) -> tuple[str, ...]:
    """Return sensor ids in column order: a line each (PEMS03.txt), or all in a line (DCRNN's graph_sensor_ids.txt)."""
    ids, several_ids = list[str](), ""
    for line, cells in read_rows(path, IDS_ADVICE):
        line_ids = [text for cell in cells for text in cell.split()]
        several_ids = several_ids or (f"{line} has {sample(line_ids)}" if len(line_ids) > 1 else "")
        if several_ids and ids:
            raise SocialxError(path, f"{several_ids}, not one sensor id", IDS_ADVICE)
        ids += line_ids
    if not ids or not all(map(str.isprintable, ids)):
        raise SocialxError(path, "the file has no sensor ids", IDS_ADVICE)
    if twice := find_repeated(ids):
        raise SocialxError(path, f"the file names sensors more than once ({sample(twice)})", "remove the repeated ones")
    return tuple(ids)


_Row = tuple[str, list[str], tuple[float, float] | None]  # row name, cells, and degrees if present


@dataclass(frozen=True)
class _Positions:
    """The rows and column roles in a locations table.

    columns: location columns. others: columns with known names. sensors: the id column. matched: the number of wanted
    ids present. told: a note about the columns.
    """

    rows: list[_Row]
    columns: tuple[int, ...]
    others: dict[str, int]
    sensors: int
    matched: int
    told: str


def _tables(
    path: Path, ids: Iterable[str] = (), city: str | None = None, notes: list[str] | None = None
) -> list[_Positions]:
    """Return a file's location tables, if possible with wanted ``ids``, for a ``city``; ``notes`` gets remarks."""
    tables, refused, told = list[_Positions](), list[SocialxError](), list[str]()
    wanted = set(map(casefolded_key, ids))
    for rows in filter(None, map(list, read_tables(path, ADVICE, told))):
        try:
            tables.append(_table(path, rows, wanted, city))
        except SocialxError as error:
            refused.append(error)
    if not tables:
        raise refused[0] if refused else SocialxError(path, "the file has no sensors", ADVICE)
    tables = [table for table in tables if table.matched] or tables
    if notes is not None:
        notes += [*told, *(f"{path}: {table.told}" for table in tables if table.told)]
    return tables


def _table(path: Path, rows: list[Row], wanted: set[str], city: str | None) -> _Positions:
    """Parse a location table, header first. wanted: data ids by ``casefolded_key``. city: keep only such rows."""
    line, names = rows[0]
    width = len(names)
    if width == 3 and not any(math.isnan(number(cell)) for cell in names[1:]):
        names, rows = ["sensor_id", "latitude", "longitude"], [("", []), *rows]
    filled = [[*cells, *[""] * width] for _, cells in rows[1:]]
    choices = [*_degree_columns(names, filled), *_point_columns(names, filled)]
    if not choices:
        problem = f"{line} is {','.join(names)[:60]!r}, without sensor_id, latitude, longitude"
        raise SocialxError(path, problem, ADVICE)
    for line, cells in rows[1:]:
        if len(cells) < width or any(cells[width:]):
            raise SocialxError(path, f"{line} has {len(cells)} cells, not {width}", "correct it")
    best, lower = _choose_columns(path, choices), [name.lower() for name in names]
    others = {name: lower.index(name) for name in OTHERS if name in lower}
    placed: list[_Row] = [
        (line, cells, None if at == [0, 0] or {cells[column] for column in best.columns} <= NOWHERE else (at[0], at[1]))
        for (line, cells), at in zip(rows[1:], best.degrees.tolist(), strict=True)
    ]
    if "citycode" in others:
        others.pop("length", None)  # of the road, in kilometres
        placed = _select_city(path, placed, others["citycode"], city) if city else placed
    free = sorted({*range(width)} - {column for choice in choices for column in choice.columns})
    sensors, matched = _sensors(path, names, free, [(cells, at) for _, cells, at in placed if at], wanted)
    plain = lower[sensors] in (*IDS[:2], FEATURE_ID) and {*best.names.lower().split(" and ")} <= PLAIN
    told = f"the sensors are those of its column {names[sensors]}, their positions those of {best.names}"
    return _Positions(placed, best.columns, others, sensors, matched, "" if plain else told)


def _select_city(path: Path, rows: list[_Row], column: int, city: str) -> list[_Row]:
    """Return the rows whose cell ``column`` is ``city``, in any letter case and UTD19 spelling; raise for none."""

    def plain(name: str) -> str:
        return CITIES.get(name.strip().lower(), name.strip().lower())

    selected = [row for row in rows if plain(row[1][column]) == plain(city)]
    if not selected:
        cities = sample([*dict.fromkeys(cells[column] for _, cells, _ in rows)])
        problem = f"the file has no sensors of {city}, but of {cities}"
        raise SocialxError(path, problem, f"name another one with {Argument('city')}, or the positions of {city}")
    return selected


@dataclass(frozen=True)
class _Places:
    """Candidate location columns; rank 0 is best; degrees: latitude, longitude float64 [rows, 2], NaN if absent."""

    columns: tuple[int, ...]
    rank: int
    degrees: np.ndarray
    names: str

    def order(self) -> tuple[bool, int]:
        """Return the sort key: columns with valid degrees first, then rank."""
        fit = np.count_nonzero(valid_degrees(*self.degrees.T))
        return bool(2 * fit <= np.count_nonzero(~np.isnan(self.degrees).any(axis=1))), self.rank


def _degree_columns(names: list[str], rows: list[list[str]]) -> Iterator[_Places]:
    """Yield pairs of columns named like latitude and longitude, with a location per row; rows: cells of the body."""
    axes: dict[str, dict[tuple[tuple[str, ...], bool], int]] = {"latitude": {}, "longitude": {}}
    axis_columns = [(*parsed, column) for column, name in enumerate(names) if (parsed := parse_axis(name))]
    for axis, _, others, of_plane, column in sorted(axis_columns):
        axes[axis].setdefault((others, of_plane), column)
    north, east = axes.values()
    plane = all(key[1] for key in north)  # else x and y are another system
    pairs = [
        (rank_words(key[0]) + 4 * key[1], north[key], east[key]) for key in north if key in east and key[1] == plane
    ]
    if not pairs and len(north) == len(east) == 1:
        pairs = [(2, *north.values(), *east.values())]  # type: ignore[list-item]  # which are one each
    for rank, first, second in pairs:
        read = np.array([(degrees(cells[first], "NS"), degrees(cells[second], "EW")) for cells in rows], np.float64)
        yield _Places((first, second), rank, read.reshape(-1, 2), f"{names[first]} and {names[second]}")


def _point_columns(names: list[str], rows: list[list[str]]) -> Iterator[_Places]:
    """Yield the columns whose first filled cell is a point, with a location per row; rows: cells of the body."""
    for column, name in enumerate(names):
        cells = [row[column] for row in rows]
        if not point(next((cell for cell in cells if cell not in NOWHERE), "")):
            continue
        points = [point(cell) for cell in cells]
        way, *others = {parsed[0] for parsed in points if parsed}
        if others or (way in (",", " ") and 2 * sum("." in cell for cell in cells) < sum(map(bool, points))):
            continue  # two whole numbers are degrees beside others with decimals alone
        numbers = np.array([parsed[1:] if parsed else (math.nan, math.nan) for parsed in points])
        order = 1 if _latitude_first(name, way, numbers) else -1
        how = ", of each line its first point" if way == "line" else ""
        if way in (",", " "):
            how = f", read as {', '.join(('latitude', 'longitude')[::order])}"
        rank = rank_words(tuple(split_words(name))) + (16 if way == "line" else 8)
        yield _Places((column,), rank, numbers[:, ::order], name + how)


def _latitude_first(name: str, way: str, numbers: np.ndarray) -> bool:
    """Return whether the first number in points [rows, 2] is the latitude.

    way: the notation, as in ``point``. For bare number pairs the column name decides, then the only valid order in
    degrees; else a comma means latitude first, as people write, and a space longitude first, as in WKT.
    """
    if way not in (",", " "):
        return way == "angles"
    latitude, longitude = name.lower().find("lat"), max(map(name.lower().find, ("lon", "lng")))
    if min(latitude, longitude) >= 0:
        return latitude < longitude
    located = numbers[~np.isnan(numbers).any(axis=1)]
    fits, exchanged = (bool(valid_degrees(*order).all()) for order in (located.T, located.T[::-1]))
    return way == "," if fits == exchanged else fits


def _choose_columns(path: Path, choices: list[_Places]) -> _Places:
    """Return the best of the ``choices``. Raises SocialxError for a tie, and for x and y that lie far apart."""
    best = min(choices, key=_Places.order)
    for rival in choices:
        same = np.allclose(best.degrees, rival.degrees, rtol=0, atol=SAME, equal_nan=True)
        if rival.order() == best.order() and not same:
            remedy = "rename those of the sensors to latitude and longitude"
            raise SocialxError(path, f"there are positions in {best.names}, and others in {rival.names}", remedy)
    located = best.degrees[plausible_location(*best.degrees.T)]
    if 4 <= best.rank < 8 and len(located) and (apart := np.ptp(located, axis=0).max()) > NEAR:
        problem = f"{best.names} lie up to {apart:.0f} degrees apart, so they are no degrees of a network"
        raise SocialxError(path, problem, "name columns latitude and longitude, in degrees")
    return best


_PlacedRows = list[tuple[list[str], tuple[float, float]]]  # cells and degrees of rows that have both


def _sensors(path: Path, names: list[str], free: list[int], rows: _PlacedRows, wanted: set[str]) -> tuple[int, int]:
    """Return the id column among the ``free`` columns, without locations, and the number of wanted ids present.

    The column with the most wanted ids wins, compared by ``casefolded_key``. A column with an uninformative name needs
    half the ids, and must differ from row numbers. A tie between differing columns raises SocialxError, unless a column
    is ``sensor_id``. Where every column lacks wanted ids, the name decides.
    """
    ranks = {column: _rank(names[column]) for column in free}
    matches: dict[int, dict[str, tuple[float, float]]] = {}
    for column in free if wanted else ():
        cells = [row[column] for row, _ in rows]
        sure = _matching_positions(cells, rows, wanted)
        if ranks[column] < UNNAMED or (2 * len(sure) >= min(len(wanted), len(cells)) and not _counts_rows(cells)):
            matches[column] = sure
    most = max(map(len, matches.values()), default=0)
    if most:
        best = [column for column in matches if 10 * len(matches[column]) >= 9 * most]
        first = max(best, key=lambda column: (len(matches[column]), -ranks[column]))
        alike = all(matches[column].get(key, at) == at for column in best for key, at in matches[first].items())
        best = [first] if alike else best
    else:
        best = [column for column in free if ranks[column] == min(ranks.values()) < UNNAMED]
    candidates = best if len(best) == 1 else [column for column in best if ranks[column] == 0]
    if not candidates:
        problem = "may be the ids" if not wanted else "hold no sensor of the data"
        listed = sample([names[column] for column in best or free], 8) or "no column"
        problem = f"{listed} {'hold about as many sensors of the data' if most else problem}"
        raise SocialxError(path, problem, f"rename the column of the ids to {IDS[0]}")
    first = candidates[0]
    if not wanted and len(rows) > TIMES * len({cells[first] for cells, _ in rows}):
        problem = f"the same {names[first]} stands in many rows, as in a table of readings"
        raise SocialxError(path, problem, "write one row for each sensor")
    return first, most


def _counts_rows(cells: list[str]) -> bool:
    return any(cells == [str(first + row) for row in range(len(cells))] for first in (0, 1))


def _matching_positions(cells: list[str], rows: _PlacedRows, wanted: set[str]) -> dict[str, tuple[float, float]]:
    """Return the location of each wanted id in the column ``cells``, for ids with a unique location."""
    positions: dict[str, set[tuple[float, float]]] = {}
    for cell, (_, at) in zip(cells, rows, strict=True):
        if (key := casefolded_key(cell)) in wanted:
            positions.setdefault(key, set()).add(at)
    return {key: next(iter(at)) for key, at in positions.items() if len(at) == 1}


def _rank(name: str) -> int:
    """Return how well a column name denotes sensors, 0 best; UNNAMED for other names."""
    lower, words = name.lower(), {word for word in split_words(name) if not word.isdigit()}
    if lower in IDS:
        return IDS.index(lower)
    if words & PLACE_WORDS and words <= PLACE_WORDS | ID_WORDS:
        return 50 if words & ID_WORDS else 60
    return {"name": 70, FEATURE_ID: 80}.get(lower, UNNAMED)


def _location(path: Path, line: str, cells: list[str], degrees: tuple[float, float], table: _Positions) -> Location:
    """Return the location in a row; ``line`` and ``path`` name the row in errors. Raises for impossible degrees."""
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
        shown = [cells[column][:40] for column in table.columns]
        template = "latitude {!r}, longitude {!r}" if len(shown) == 2 else "the position {!r}"
        problem = f"{line} has {template.format(*shown)}, not degrees within +-90 and +-180"
        raise SocialxError(path, problem, remedy)
    texts = {name: cells[column] for name, column in table.others.items()}
    direction = texts.get("dir", texts.get("direction", "")).upper()
    return Location(
        sensor_id=cells[table.sensors],
        latitude=latitude,
        longitude=longitude,
        lanes=number(texts.get("lanes", "")),
        length=number(texts.get("length", "")),
        direction=direction if direction in DIRECTIONS else "",
        other_direction="" if direction in DIRECTIONS else direction,
    )
