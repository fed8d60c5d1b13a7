"""Sensor locations as published with many data sets, joined to the data by id and never by order."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from socialx.data.geo import on_earth, within_degrees
from socialx.errors import ITEM, Argument, SocialxError, sample
from socialx.files.file_head import SEPARATORS, check_text, first_bytes, opened, read_head, whole
from socialx.files.formats.text_cells import NO_READING
from socialx.files.hdf5_layout import DIRECTIONS, Sensors
from socialx.files.points import FEATURE_ID, Row, datex, geojson
from socialx.files.workbooks import read_workbook

ADVICE = "name a file like PEMS-BAY-META.csv or graph_sensor_locations.csv"
IDS_ADVICE = "name a text file with one sensor id per line, or all in one line with commas"
IDS_BYTES = 1 << 24
LOCATIONS_BYTES = 1 << 27  # 100,000 sensors at 1.3 kB each; PEMS-BAY-META.csv has 135 bytes for one
LINE_CHARACTERS = 1 << 20
DECIMAL = re.compile(r"^(\s*[+-]?[0-9]+),([0-9]+\s*)$")
DROPPED = 5  # columns that an error advises to leave out
METRES = 360.0  # larger numbers are no degrees
# Names of columns in lower case; of two in one file the first listed here counts.
COLUMNS = {
    "sensor_id": (
        *("sensor_id", "id", "station", "station_id", "vdid", "sid", "sensor", "detector", "detector_id", "detektor"),
        *("detid", "messstelle", "zählstelle", "site_id", "site", "name", FEATURE_ID),
    ),
    "latitude": ("latitude", "lat", "breite", "breitengrad", "geobreite", "latitud", "y"),
    "longitude": (
        *("longitude", "lng", "lon", "long", "länge", "laenge", "längengrad", "laengengrad", "geolänge", "geolaenge"),
        *("longitud", "x"),
    ),
    "direction": ("dir", "direction"),
    "lanes": ("lanes",),
    "length": ("length",),
    "index": ("index",),
    "city": ("citycode",),
}
CITIES = {"losanageles": "losangeles"}  # as detectors_public.csv of UTD19 writes one -> as its readings do


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


def match_key(sensor_id: str) -> int | str:
    """What two spellings of one id share: the integer where it is one (``0400001``, ``400001.0``), else the text."""
    text = sensor_id.strip()
    return int(text.partition(".")[0]) if re.fullmatch(r"[0-9]{1,64}(\.0*)?", text) else text


def repeated(ids: Iterable[str]) -> list[str]:
    """Those of some ids that are not the only spelling of a sensor among them, or may be its second column."""
    ids = list(ids)
    names = {text: text for text in ids} | {copy: copy.rpartition(".")[0] for copy in copies(ids)}
    counts = Counter(match_key(names[text]) for text in ids)
    return [text for text in ids if counts[match_key(names[text])] > 1]


def copies(ids: list[str]) -> list[str]:
    """Those of some ids that pandas gives to a column whose name stands twice: ``S1.1`` beside ``S1``."""
    there = {*ids}
    return [text for text in ids if re.fullmatch(r".+\.[1-9][0-9]*", text) and text.rpartition(".")[0] in there]


def read_locations(path: Path, ids: Iterable[str] = (), city: str | None = None) -> dict[int | str, Location]:
    """Locations by ``match_key``: a CSV whose header names the columns or headerless id,lat,lon, a workbook, GeoJSON,
    or DATEX II.

    For example PEMS-BAY-META.csv, METR-LA's ``index,sensor_id,...`` and LargeST's ca_meta.csv.  A sensor may be listed
    twice only with one position; one at 0, 0, or without both numbers, counts as not listed.  ids: of the sensors that
    are looked for; of several columns that may name a sensor it is the one with most of them.  city: of a file that
    names the city of each sensor, as detectors_public.csv of UTD19 does, only those of this one.
    """
    locations: dict[int | str, Location] = {}
    cities: dict[str, None] = {}
    for line, cells in _rows(path, ids):
        if city and "city" in cells:
            cities[cells["city"]] = None
            if _plain_city(cells["city"]) != _plain_city(city):
                continue
        if {cells["latitude"], cells["longitude"]} <= NO_READING:
            continue
        location = _location(path, line, cells)
        if not on_earth(location.latitude, location.longitude):
            continue  # 0, 0: as if it were not listed
        known = locations.setdefault(match_key(location.sensor_id), location)
        if (known.latitude, known.longitude) != (location.latitude, location.longitude):
            raise SocialxError(
                path,
                f"{line} gives sensor {location.sensor_id} two positions ({known.latitude}, {known.longitude}) "
                f"and ({location.latitude}, {location.longitude})",
                "remove one",
            )
    if not locations and cities:
        others = f"it has no sensors of {city}, but of {sample(list(cities))}"
        raise SocialxError(path, others, f"name another one with {Argument('city')}, or the positions of {city}")
    if not locations:
        raise SocialxError(path, "it has no sensors", ADVICE)
    return locations


def _plain_city(name: str) -> str:
    """A city in lower case; UTD19 writes some in upper case, and one in two ways."""
    return CITIES.get(name.strip().lower(), name.strip().lower())


def respelt(
    ids: Iterable[str], locations: Mapping[int | str, Location]
) -> tuple[dict[int | str, Location], tuple[str, ...]]:
    """The locations with those of sensors that are written in another case, ``s1`` for S1, and the ids of these.

    Only where one location and one sensor have this spelling but for the case.
    """
    ids = list(ids)
    spelt: dict[str, list[int | str]] = {}
    for key in locations:
        spelt.setdefault(str(key).casefold(), []).append(key)
    mine = Counter(str(match_key(vdid)).casefold() for vdid in ids)
    found = {}
    for vdid in ids:
        folded = str(match_key(vdid)).casefold()
        if match_key(vdid) not in locations and mine[folded] == len(spelt.get(folded, ())) == 1:
            found[vdid] = locations[spelt[folded][0]]
    return {**locations, **{match_key(vdid): place for vdid, place in found.items()}}, tuple(found)


def index_ids(path: Path) -> dict[int, str]:
    """Index -> sensor id, of a locations file with a column ``index``; empty for any other file."""
    try:
        rows = list(_rows(path))
    except SocialxError:
        return {}
    ids: dict[int, str] = {}
    for line, cells in rows:
        index, sensor_id = cells.get("index"), cells["sensor_id"]
        if index is None:
            return {}
        key = match_key(index)
        if not isinstance(key, int) or match_key(ids.setdefault(key, sensor_id)) != match_key(sensor_id):
            raise SocialxError(path, f"{line} has the index {index[:40]!r}, not one integer per sensor", "correct it")
    if twice := repeated(ids.values()):
        raise SocialxError(path, f"its column index gives sensors two places ({sample(twice)})", "correct it")
    return ids


def read_ids(path: Path) -> tuple[str, ...]:
    """Sensor ids in column order: one per line (PEMS03.txt), or all in one line (DCRNN's graph_sensor_ids.txt)."""
    first_bytes(path, IDS_ADVICE)
    with path.open("rb") as file:
        content = file.read(IDS_BYTES + 1)
    try:
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        lines = []
    if len(content) > IDS_BYTES or b"\0" in content or not lines:
        raise SocialxError(path, "not a text of sensor ids", IDS_ADVICE)
    several = [number for number, line in enumerate(lines, 1) if re.search(r"[,\s]", line)]
    if several and sum(map(bool, lines)) > 1:
        raise SocialxError(path, f"line {several[0]} is {lines[several[0] - 1][:40]!a}, not one sensor id", IDS_ADVICE)
    ids = tuple(text for line in lines for text in re.split(r"[,\s]+", line) if text)
    if not ids:
        raise SocialxError(path, "it has no sensor ids", IDS_ADVICE)
    if twice := repeated(ids):
        raise SocialxError(path, f"it names sensors more than once ({sample(twice)})", "remove the repeated ones")
    return ids


def _rows(path: Path, ids: Iterable[str] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """The line of each row of a locations file, and its cells by the names that ``COLUMNS`` has for them."""
    reader, first = _texts, first_bytes(path, ADVICE).removeprefix(b"\xef\xbb\xbf").lstrip()
    if path.suffix.lower() in (".xlsx", ".xlsm"):
        reader = _workbook
    elif first.startswith((b"{", b"[")):
        reader = geojson
    elif first.startswith(b"<"):
        reader = datex
    else:
        check_text(path, first)
    size = whole(path).stat().st_size
    if size > LOCATIONS_BYTES:
        raise SocialxError(path, f"{size:,} bytes, more than a table of positions has ({LOCATIONS_BYTES:,})", ADVICE)
    try:
        rows = [(line, [cell.strip() for cell in cells]) for line, cells in reader(path) if any(map(str.strip, cells))]
    except (UnicodeDecodeError, csv.Error):
        raise SocialxError(path, "not a CSV text file", ADVICE) from None
    if not rows:
        return
    columns, begin = _header(path, *rows[0])
    if "city" in columns:
        columns.pop("length", None)  # of the road, in kilometres
    width = len(rows[0][1])
    for line, cells in rows:
        if len(cells) < width or any(cells[width:]):
            raise SocialxError(path, f"{line} has {len(cells)} cells, not {width}", "correct it")
    wanted = {str(match_key(vdid)).casefold() for vdid in ids}
    named = columns.pop("sensor_id")

    def known(place: int) -> int:
        return len(wanted & {str(match_key(cells[place])).casefold() for _, cells in rows[begin:]})

    columns |= {"sensor_id": (max(named, key=known),)}  # the first of those that know as many
    for line, cells in rows[begin:]:
        yield line, {name: cells[place] for name, (place, *_) in columns.items()}


def _texts(path: Path) -> Iterator[Row]:
    """The cells of the rows of a text, decimal commas as points where commas do not separate, and their lines."""
    head = read_head(path, ADVICE)
    encoding = head.encoding if head.lines else "utf-8-sig"
    with opened(path) as content, io.TextIOWrapper(content, encoding, newline="") as file:
        separator = max(SEPARATORS, key=file.readline(LINE_CHARACTERS).count)
        file.seek(0)
        rows = csv.reader(_lines(path, file), delimiter=separator)
        for cells in rows:
            decimals = separator != ","
            yield f"line {rows.line_num}", [DECIMAL.sub(r"\1.\2", cell) for cell in cells] if decimals else cells


def _workbook(path: Path) -> Iterator[Row]:
    """The cells of the rows of the first sheet of a workbook, as texts."""
    first_bytes(path, ADVICE)
    first = next(iter(read_workbook(path).values()), [])
    for number, cells in enumerate(first, 1):
        yield f"line {number}", ["" if cell != cell else str(cell) for cell in cells]  # NaN: no cell


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a text; refuses one that is too long for a row of a few cells."""
    while line := file.readline(LINE_CHARACTERS):
        if len(line) == LINE_CHARACTERS:
            raise SocialxError(
                path, f"a line of {LINE_CHARACTERS:,} characters or more, not a table of positions", ADVICE
            )
        yield line


def _header(path: Path, line: str, cells: list[str]) -> tuple[dict[str, tuple[int, ...]], int]:
    """The name of each known column -> its places, the best first, and the number of rows of the header, 0 or 1."""
    names = [cell.lower() for cell in cells]
    columns = {
        column: tuple(names.index(name) for name in present)
        for column, spellings in COLUMNS.items()
        if (present := [name for name in spellings if name in names])
    }
    if {"sensor_id", "latitude", "longitude"} <= columns.keys():
        return columns, 1
    if len(cells) == 3 and not any(math.isnan(_number(cell)) for cell in cells[1:]):
        return {"sensor_id": (0,), "latitude": (1,), "longitude": (2,)}, 0
    raise SocialxError(path, f"{line} is {','.join(cells)[:60]!r}, without sensor_id, latitude, longitude", ADVICE)


def _location(path: Path, line: str, cells: dict[str, str]) -> Location:
    if not cells["sensor_id"]:
        raise SocialxError(path, f"{line} has no sensor id", "correct it")
    latitude, longitude = _number(cells["latitude"]), _number(cells["longitude"])
    if not within_degrees(latitude, longitude):
        remedy = "correct it"
        if within_degrees(longitude, latitude):
            remedy = "latitude and longitude look exchanged, so exchange them"
        elif min(abs(latitude), abs(longitude)) > METRES:
            remedy = "they look like metres, so convert them to WGS84 (EPSG:4326)"
        raise SocialxError(
            path,
            f"{line} has latitude {cells['latitude'][:40]!r}, longitude {cells['longitude'][:40]!r}, "
            "not degrees within +-90 and +-180",
            remedy,
        )
    direction = cells.get("direction", "").upper()
    return Location(
        sensor_id=cells["sensor_id"],
        latitude=latitude,
        longitude=longitude,
        lanes=_number(cells.get("lanes", "")),
        length=_number(cells.get("length", "")),
        direction=direction if direction in DIRECTIONS else "",
        other_direction="" if direction in DIRECTIONS else direction,
    )


def centre(latitude: np.ndarray, longitude: np.ndarray) -> tuple[float, float] | None:
    """The middle of those sensors [N] that have a position; None where none has."""
    known = on_earth(latitude, longitude)
    return (float(np.median(latitude[known])), float(np.median(longitude[known]))) if known.any() else None


def near(place: tuple[float, float]) -> str:
    """A place as people write it: ``near 48.1 N, 11.5 E``."""
    latitude, longitude = place
    return f"near {abs(latitude):.1f} {'NS'[latitude < 0]}, {abs(longitude):.1f} {'EW'[longitude < 0]}"


def _number(cell: str) -> float:
    """A finite number, or NaN for everything else."""
    try:
        number = float(cell)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


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
