"""Sensor locations as published with PEMS-BAY and METR-LA, joined to the data by id and never by order."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from socialx.data.files import first_bytes
from socialx.data.store import DIRECTIONS, Sensors
from socialx.errors import SocialxError, sample

ADVICE = "name a file like PEMS-BAY-META.csv or graph_sensor_locations.csv"


@dataclass(frozen=True)
class Location:
    """Where one sensor stands; NaN or an empty direction where the file does not say."""

    sensor_id: str
    latitude: float
    longitude: float
    lanes: float
    length: float
    direction: str


def match_key(sensor_id: str) -> int | str:
    """What two spellings of one id share: the integer where it is one (``0400001``, ``400001.0``), else the text."""
    text = sensor_id.strip()
    return int(text.partition(".")[0]) if re.fullmatch(r"[0-9]{1,64}(\.0*)?", text) else text


def read_locations(path: Path) -> dict[int | str, Location]:
    """Locations by ``match_key``, from PEMS-BAY-META.csv, METR-LA's ``index,sensor_id,...`` or headerless id,lat,lon.

    A sensor may be listed twice only with one position.
    """
    first_bytes(path, ADVICE)
    locations: dict[int | str, Location] = {}
    columns: dict[str, int] | None = None
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            for cells in rows:
                if not any(cell.strip() for cell in cells):
                    continue
                where = f"{path}: line {rows.line_num}"
                if columns is None:
                    columns, is_header = _header(where, cells)
                    if is_header:
                        continue
                location = _location(where, cells, columns)
                known = locations.setdefault(match_key(location.sensor_id), location)
                if (known.latitude, known.longitude) != (location.latitude, location.longitude):
                    both = f"({known.latitude}, {known.longitude}) and ({location.latitude}, {location.longitude})"
                    raise SocialxError(f"{where} gives sensor {location.sensor_id} two positions {both}: remove one")
    except (UnicodeDecodeError, csv.Error):
        raise SocialxError(f"{path}: not a CSV text file: {ADVICE}") from None
    if not locations:
        raise SocialxError(f"{path}: it has no sensors: {ADVICE}")
    return locations


def _header(where: str, cells: list[str]) -> tuple[dict[str, int], bool]:
    """Column name -> its place, and whether the first row is a header at all."""
    names = [cell.strip().lower() for cell in cells]
    if {"sensor_id", "latitude", "longitude"} <= set(names):
        return {name: place for place, name in reversed(list(enumerate(names)))}, True
    if len(cells) == 3 and not any(math.isnan(_number(cell)) for cell in cells[1:]):
        return {"sensor_id": 0, "latitude": 1, "longitude": 2}, False
    raise SocialxError(f"{where} is {','.join(cells)[:60]!a}, without sensor_id, latitude, longitude: {ADVICE}")


def _location(where: str, cells: list[str], columns: dict[str, int]) -> Location:
    if max(columns.values()) >= len(cells):
        raise SocialxError(f"{where} has {len(cells)} cells, not {max(columns.values()) + 1}: correct it")
    values = {name: cells[place].strip() for name, place in columns.items()}
    if not values["sensor_id"]:
        raise SocialxError(f"{where} has no sensor id: correct it")
    latitude, longitude = _number(values["latitude"]), _number(values["longitude"])
    if not (abs(latitude) <= 90 and abs(longitude) <= 180):  # NaN is within no limit
        found = f"latitude {values['latitude'][:40]!a}, longitude {values['longitude'][:40]!a}"
        raise SocialxError(f"{where} has {found}, not degrees within +-90 and +-180: correct it")
    direction = values.get("dir", "").upper()
    return Location(
        sensor_id=values["sensor_id"],
        latitude=latitude,
        longitude=longitude,
        lanes=_number(values.get("lanes", "")),
        length=_number(values.get("length", "")),
        direction=direction if direction in DIRECTIONS else "",
    )


def _number(cell: str) -> float:
    """A finite number, or NaN for everything else."""
    try:
        number = float(cell)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def join(ids: tuple[str, ...], locations: dict[int | str, Location], path: Path, *, static: bool) -> Sensors:
    """The sensors of the data in the data's order; ``static`` adds lanes, length and direction, unknown as NaN."""
    unknown = [vdid for vdid in ids if match_key(vdid) not in locations]
    if unknown:
        count = f"{len(unknown)} of {len(ids)} sensors of the data"
        raise SocialxError(f"{path}: no position for {count} ({sample(unknown)}): name the locations of this dataset")
    places = [locations[match_key(vdid)] for vdid in ids]

    def column(values: Iterable[float]) -> np.ndarray:
        return np.fromiter(values, np.float64, len(places))

    return Sensors(
        ids=ids,
        latitude=column(place.latitude for place in places),
        longitude=column(place.longitude for place in places),
        lanes=column(place.lanes for place in places) if static else None,
        length=column(place.length for place in places) if static else None,
        direction=tuple(place.direction for place in places) if static else None,
    )
