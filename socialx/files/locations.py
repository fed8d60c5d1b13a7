"""Sensor locations as published with many data sets, joined to the data by id and never by order."""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from socialx.data.geo import on_earth, within_degrees
from socialx.errors import ITEM, Argument, SocialxError, sample
from socialx.files.file_head import SEPARATORS, check_text, first_bytes
from socialx.files.hdf5_layout import DIRECTIONS, Sensors

ADVICE = "name a file like PEMS-BAY-META.csv or graph_sensor_locations.csv"
IDS_ADVICE = "name a text file with one sensor id per line, or all in one line with commas"
IDS_BYTES = 1 << 24
LOCATIONS_BYTES = 1 << 27  # 100,000 sensors at 1.3 kB each; PEMS-BAY-META.csv has 135 bytes for one
LINE_CHARACTERS = 1 << 20
DECIMAL = re.compile(r"^(\s*[+-]?[0-9]+),([0-9]+\s*)$")
METRES = 360.0  # larger numbers are no degrees
# Names of columns in lower case; of two in one file the first listed here counts.
COLUMNS = {
    "sensor_id": ("sensor_id", "id", "station", "station_id", "vdid", "sid"),
    "latitude": ("latitude", "lat", "y"),
    "longitude": ("longitude", "lng", "lon", "long", "x"),
    "direction": ("dir", "direction"),
    "lanes": ("lanes",),
    "length": ("length",),
    "index": ("index",),
}


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
    """Those of some ids that are not the only spelling of a sensor among them."""
    ids = list(ids)
    counts = Counter(map(match_key, ids))
    return [text for text in ids if counts[match_key(text)] > 1]


def read_locations(path: Path) -> dict[int | str, Location]:
    """Locations by ``match_key``, from a CSV whose header names the columns, or headerless id,lat,lon.

    For example PEMS-BAY-META.csv, METR-LA's ``index,sensor_id,...`` and LargeST's ca_meta.csv.  A sensor may be listed
    twice only with one position; one at 0, 0 counts as not listed.
    """
    locations: dict[int | str, Location] = {}
    for line, cells in _rows(path):
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
    if not locations:
        raise SocialxError(path, "it has no sensors", ADVICE)
    return locations


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
            raise SocialxError(path, f"{line} has the index {index[:40]!a}, not one integer per sensor", "correct it")
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


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The line of each row of a locations file, and its cells by the names that ``COLUMNS`` has for them."""
    excel = path.suffix.lower() in (".xlsx", ".xlsm")
    if not excel:
        check_text(path, first_bytes(path, ADVICE))
    size = path.stat().st_size
    if size > LOCATIONS_BYTES:
        raise SocialxError(path, f"{size:,} bytes, more than a table of positions has ({LOCATIONS_BYTES:,})", ADVICE)
    columns: dict[str, int] | None = None
    width = 0
    try:
        for number, cells in _workbook(path) if excel else _texts(path):
            if not any(cell.strip() for cell in cells):
                continue
            line = f"line {number}"
            if columns is None:
                columns, is_header = _header(path, line, cells)
                width = len(cells)
                if is_header:
                    continue
            if len(cells) < width or any(cell.strip() for cell in cells[width:]):
                raise SocialxError(path, f"{line} has {len(cells)} cells, not {width}", "correct it")
            yield line, {name: cells[place].strip() for name, place in columns.items()}
    except (UnicodeDecodeError, csv.Error):
        raise SocialxError(path, "not a CSV text file", ADVICE) from None


def _texts(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The cells of the rows of a text, decimal commas as points where commas do not separate, and their lines."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        head = file.readline(LINE_CHARACTERS)
        separator = max(SEPARATORS, key=head.count)
        file.seek(0)
        rows = csv.reader(_lines(path, file), delimiter=separator)
        for cells in rows:
            decimals = separator != ","
            yield rows.line_num, [DECIMAL.sub(r"\1.\2", cell) for cell in cells] if decimals else cells


def _workbook(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The cells of the rows of the first sheet of a workbook, as texts."""
    import pandas as pd

    first_bytes(path, ADVICE)
    try:
        frame = pd.read_excel(path, header=None, dtype=str, keep_default_na=False)
    except ImportError:
        raise SocialxError(path, "openpyxl is not installed", "pip install 'socialx[excel]'") from None
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise SocialxError(path, f"no workbook that can be read ({str(error)[:80]})", "write it again") from None
    yield from enumerate(frame.to_numpy().tolist(), 1)


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a text; refuses one that is too long for a row of a few cells."""
    while line := file.readline(LINE_CHARACTERS):
        if len(line) == LINE_CHARACTERS:
            raise SocialxError(
                path, f"a line of {LINE_CHARACTERS:,} characters or more, not a table of positions", ADVICE
            )
        yield line


def _header(path: Path, line: str, cells: list[str]) -> tuple[dict[str, int], bool]:
    """The name of each known column -> its place, and whether the first row is a header at all."""
    names = [cell.strip().lower() for cell in cells]
    columns = {
        column: names.index(present[0])
        for column, spellings in COLUMNS.items()
        if (present := [name for name in spellings if name in names])
    }
    if {"sensor_id", "latitude", "longitude"} <= columns.keys():
        return columns, True
    if len(cells) == 3 and not any(math.isnan(_number(cell)) for cell in cells[1:]):
        return {"sensor_id": 0, "latitude": 1, "longitude": 2}, False
    raise SocialxError(path, f"{line} is {','.join(cells)[:60]!a}, without sensor_id, latitude, longitude", ADVICE)


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
            f"{line} has latitude {cells['latitude'][:40]!a}, longitude {cells['longitude'][:40]!a}, "
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
        few = droppable and len(unknown) < len(ids) and len(unknown[0]) <= ITEM
        leaves_out = f", or leave a column out that is no sensor: {Argument('drop', unknown[0])}" if few else ()
        raise SocialxError(
            path,
            f"no position for {len(unknown)} of {len(ids)} sensors of the data ({sample(unknown)})",
            f"name the locations of this dataset{leaves_out}",
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
