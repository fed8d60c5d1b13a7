"""Positions of sensors, joined to the data by id and never by order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from socialx.data.geo import on_earth
from socialx.errors import ITEM, Argument, SocialxError, sample
from socialx.files.hdf5_layout import Sensors
from socialx.files.ids import match_key, recased

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
    known = on_earth(latitude, longitude)
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
