"""Which columns of a table hold the positions of sensors, and which names the sensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from socialx.data.geo import on_earth, within_degrees
from socialx.errors import SocialxError, sample
from socialx.files.formats.text_cells import NO_READING
from socialx.files.formats.words import ID_WORDS, IDS, PLACE_WORDS
from socialx.files.ids import folded
from socialx.files.points import axis_of, degrees, point, rank_of, words_of
from socialx.files.small_tables import FEATURE_ID

NOWHERE = NO_READING | {"POINT EMPTY"}
TIMES = 10  # that a sensor stands in a table of positions, with a row for each lane
SAME = 1e-4  # degrees, 11 m: between two columns with one position
NEAR = 30.0  # degrees: x and y of one network do not lie farther apart
UNNAMED = 100  # the rank of a name that says nothing of sensors


@dataclass(frozen=True)
class Places:
    """Columns that may hold positions; those of the lowest rank are meant.

    degrees: latitude and longitude, float64 [rows, 2], NaN where a row has none.  names: of the columns, for a user.
    """

    columns: tuple[int, ...]
    rank: int
    degrees: np.ndarray
    names: str

    def order(self) -> tuple[bool, int]:
        """Columns of degrees come first, whatever their names are."""
        fit = np.count_nonzero(within_degrees(*self.degrees.T))
        return bool(2 * fit <= np.count_nonzero(~np.isnan(self.degrees).any(axis=1))), self.rank


def positions_in(names: list[str], rows: list[list[str]]) -> list[Places]:
    """The columns of these names and rows that may hold positions: two of degrees, or one of points."""
    return [*_of_degrees(names, rows), *_of_points(names, rows)]


def _of_degrees(names: list[str], rows: list[list[str]]) -> Iterator[Places]:
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
        read = [(degrees(cells[first], "NS"), degrees(cells[second], "EW")) for cells in rows]
        yield Places((first, second), rank, _array(read), f"{names[first]} and {names[second]}")


def _of_points(names: list[str], rows: list[list[str]]) -> Iterator[Places]:
    for place, name in enumerate(names):
        cells = [row[place] for row in rows]
        if not point(next((cell for cell in cells if cell not in NOWHERE), "")):
            continue
        points = [point(cell) for cell in cells]
        way, *others = {each[0] for each in points if each}
        if others:
            continue
        numbers = _array([each[1:] if each else (math.nan, math.nan) for each in points])
        order = 1 if _latitude_first(name, way, numbers) else -1
        how = ", of each line its first point" if way == "line" else ""
        if way in (",", " "):
            how = f", read as {', '.join(('latitude', 'longitude')[::order])}"
        rank = rank_of(tuple(words_of(name))) + (16 if way == "line" else 8)
        yield Places((place,), rank, numbers[:, ::order], name + how)


def _array(pairs: list[tuple[float, float]]) -> np.ndarray:
    return np.array(pairs, np.float64).reshape(-1, 2)


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
    fits, exchanged = (bool(within_degrees(*order).all()) for order in (known.T, known.T[::-1]))
    return way == "," if fits == exchanged else fits


def chosen(path: Path, choices: list[Places]) -> Places:
    """The best of some columns; refuses two that are as good, and x and y that are far apart."""
    best = min(choices, key=Places.order)
    for other in choices:
        same = np.allclose(best.degrees, other.degrees, rtol=0, atol=SAME, equal_nan=True)
        if other.order() == best.order() and not same:
            remedy = "rename those of the sensors to latitude and longitude"
            raise SocialxError(path, f"positions in {best.names}, and others in {other.names}", remedy)
    known = best.degrees[on_earth(*best.degrees.T)]
    if 4 <= best.rank < 8 and len(known) and (apart := np.ptp(known, axis=0).max()) > NEAR:
        what = f"{best.names} lie up to {apart:.0f} degrees apart, so they are no degrees of a network"
        raise SocialxError(path, what, "name columns latitude and longitude, in degrees")
    return best


_Placed = list[tuple[list[str], tuple[float, float]]]  # cells and degrees of rows that have both


def sensors_in(path: Path, names: list[str], free: list[int], rows: _Placed, wanted: set[str]) -> tuple[int, int]:
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
    return any(cells == [str(number) for number in range(first, first + len(cells))] for first in (0, 1))


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
