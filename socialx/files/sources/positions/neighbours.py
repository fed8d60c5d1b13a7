"""Sensor neighbours in a file: by location, or by a list of road distances.

Road distances are published with the data: a CSV with from, to, cost, or a square matrix. N sensors.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from socialx.core.disk import check_regular
from socialx.core.errors import SAMPLE, Argument, Command, SocialxError, fall_back, sample
from socialx.data import geo
from socialx.files.sources.positions.rows import Row, read_rows
from socialx.files.sources.tables.cells import as_number
from socialx.files.store.ids import match_key
from socialx.files.store.store import Store

ALONE = "these sensors use no neighbours, and no other sensor uses them"
COLUMNS = ("from", "to", "cost")
ADVICE = "name a CSV with the columns from,to,cost"
OF_NETWORK = "name the distances of this network"
OTHER = f"{OF_NETWORK}, or a list from,to,cost of it"
# Half of the listed pairs of a real network are farther apart than this; a smaller median is one in km or miles.
SMALLEST_MEDIAN_METRES = 20.0


def find_neighbours(
    store: Store, count: int | None, max_distance_km: float | None, distances: Path | None, require_locations: bool
) -> geo.Neighbours:
    """Return the neighbours of every sensor, computed once in float64.

    count: how many nearest sensors, None for all. max_distance_km: the largest distance, None for any. distances: a
    file with road distances, used for straight lines. Raises SocialxError where a location is missing and
    ``require_locations``; otherwise such a sensor has no neighbours, with a warning.
    """
    path, ids, sensors = store.path, store.sensors.ids, store.sensors
    xy = geo.to_plane(sensors.latitude, sensors.longitude)
    max_km = np.inf if max_distance_km is None else max_distance_km
    if distances is not None:
        roads = geo.Roads(*read_distances(distances, ids))
        alone = [ids[number] for number in np.setdiff1d(np.arange(len(xy)), np.concatenate([roads.start, roads.end]))]
        if alone:
            problem = f"{len(alone)} of {len(xy)} sensors are in no pair of it ({sample(alone)}): {ALONE}"
            fall_back("roads.alone", distances, problem)
        return geo.road_neighbours(roads, xy, count, max_km)
    unlocated = [name for name, is_located in zip(ids, np.isfinite(xy).all(axis=1), strict=True) if not is_located]
    if unlocated:
        problem = f"{len(unlocated)} of {len(ids)} sensors have no position ({sample(unlocated)})"
        command = Command("backfill", path, meta_csv="LOCATIONS.csv")
        if require_locations:
            without = f"{Argument('pooling.kind', 'none')}, or {Argument('pooling.require_locations', False)}"
            raise SocialxError("places.missing", path, problem, f"{command}, or train with {without}")
        fall_back("places.missing-alone", path, f"{problem}; {ALONE}", f"add positions with {command}")
    return geo.nearest_neighbours(xy, count, max_km)


def distances_checksum(path: Path) -> str:
    """Return 12 hex digits that identify the file's content. Raises SocialxError for an unreadable file."""
    try:
        check_regular(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise SocialxError("roads.unreadable", path, error.strerror or error, ADVICE) from None


def read_distances(path: Path, ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the listed sensor pairs: start, end int64 [pairs] as indices into ids, and km float64 [pairs].

    Three columns are a list; any other number rows are a matrix N x N in sensor order, such as STGCN's ``W_228.csv``,
    in metres from row sensor to column sensor.

    DCRNN's ``distances_la_2012.csv`` has a header from,to,cost, metres, and many foreign sensors, which are skipped;
    ``distances_bay_2017.csv`` lacks the header. Raises SocialxError for other columns, another unit, or only foreign
    sensors.
    """
    lines = read_rows(path, ADVICE)
    line, first = next(lines, ("", []))
    names, numbers = [cell.lower() for cell in first], ~np.isnan([*map(as_number, first)])
    if len(first) == len(COLUMNS) and numbers[-1]:
        return _read_list(path, chain([(line, first)], lines), list(COLUMNS), ids)
    if len(first) > 1 and numbers.all():
        return _read_matrix(path, chain([(line, first)], lines), ids)
    if any(names.count(name) != 1 for name in COLUMNS):
        remedy = "name them from,to,cost, with cost in metres"
        raise SocialxError("roads.columns", path, f"the columns are {sample(names, 8)}", remedy)
    return _read_list(path, lines, names, ids)


def _km(path: Path, subject: str, metres: np.ndarray) -> np.ndarray:
    """Convert metres float64 [pairs] to km; raise, about ``subject``, for a median below 20 m, as in other units."""
    if np.median(metres) < SMALLEST_MEDIAN_METRES:
        problem = f"half of the {subject} are no more than {np.median(metres):.3g}, which are no metres"
        raise SocialxError("roads.no-metres", path, problem, "multiply kilometres by 1000")
    return metres / 1000


def _read_list(
    path: Path, lines: Iterable[Row], names: list[str], ids: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return start, end (indices into ``ids``) and km by listed pair; foreign sensors' costs are checked."""
    index_by_key = {match_key(vdid): number for number, vdid in enumerate(ids)}
    columns = [names.index(name) for name in COLUMNS]
    pairs, costs, others = array("q"), array("d"), dict[str, None]()
    for line, cells in lines:
        if len(cells) != len(names):
            raise SocialxError("roads.cells", path, f"{line} has {len(cells)} cells, line 1 {len(names)}", ADVICE)
        start, end, text = (cells[column] for column in columns)
        cost = as_number(text)
        if not 0 <= cost < np.inf:
            raise SocialxError("roads.no-number", path, f"cost {text[:40]!r} in {line} is no distance", "correct it")
        first, second = index_by_key.get(match_key(start)), index_by_key.get(match_key(end))
        if first is not None and second is not None and first != second:
            pairs.extend((first, second))
            costs.append(cost)
        elif len(others) <= SAMPLE:
            others[start] = None
    if not costs:
        listed = f"the list has {sample(list(others)) or 'no rows'}; the data {sample(list(ids))}"
        raise SocialxError("roads.no-pair", path, f"there is no pair of it in the data ({listed})", OF_NETWORK)
    start_index, end_index = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    return start_index, end_index, _km(path, "costs", np.array(costs))


def _read_matrix(path: Path, lines: Iterable[Row], ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return start, end (indices into ``ids``) and km by pair in a headerless matrix [N,N] with metres.

    The diagonal is ignored, and inf means unconnected. So does 0 elsewhere, with a warning: 0 stands for "not
    connected" more often than for two sensors at the same location, and would make unconnected sensors the nearest.
    """
    sensors, rows = len(ids), 0
    metres = np.empty((sensors, sensors))
    for rows, (line, cells) in enumerate(lines, 1):
        if len(cells) != sensors or rows > sensors:
            problem = f"{len(cells)} numbers" if len(cells) != sensors else f"one more than {sensors} rows"
            raise SocialxError("roads.width", path, f"{line} is {problem}, and the data has {sensors} sensors", OTHER)
        distances = np.array([*map(as_number, cells)])
        distances[rows - 1] = np.inf
        if (wrong := ~(distances >= 0)).any():
            column = int(wrong.argmax())
            problem = f"row {rows}, column {column + 1} is {cells[column][:40]!a}, no distance"
            raise SocialxError("roads.cell", path, problem, "correct it")
        metres[rows - 1] = distances
    if rows < sensors:
        raise SocialxError("roads.height", path, f"the matrix has {rows} rows, and the data {sensors} sensors", OTHER)
    listed = (metres > 0) & np.isfinite(metres)
    if not listed.any():
        raise SocialxError("roads.zero", path, "there is no distance above 0 in it", OF_NETWORK)
    if zeros := int((metres == 0).sum()):
        fall_back("roads.zeros", path, f"{zeros} of the distances between two sensors are 0: no neighbours")
    start, end = np.nonzero(listed)
    return start.astype(np.int64), end.astype(np.int64), _km(path, "distances", metres[listed])
