"""The neighbours of the sensors of a file: by their positions, or by a list of road distances."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from socialx.data import geo
from socialx.errors import Argument, Command, SocialxError, fall_back, sample
from socialx.files.distances import read_distances
from socialx.files.store import Store

ALONE = "these sensors use no neighbours, and no other sensor uses them"


def neighbours_of(
    store: Store, count: int | None, reach_km: float | None, distances: Path | None, strict: bool
) -> geo.Neighbours:
    """The neighbours of every sensor, found once, in float64.

    count: the nearest so many, None: all; reach_km: none farther away, None: no limit; distances: a list of roads
    in place of straight lines.  Raises SocialxError where a position is unknown and ``strict``.
    """
    path, ids, sensors = store.path, store.sensors.ids, store.sensors
    xy = geo.to_plane(sensors.latitude, sensors.longitude)
    reach = np.inf if reach_km is None else reach_km
    if distances is not None:
        start, end, km = read_distances(distances, ids)
        alone = [ids[number] for number in np.setdiff1d(np.arange(len(xy)), np.concatenate([start, end]))]
        if alone:
            fall_back(distances, f"{len(alone)} of {len(xy)} sensors are in no pair of it ({sample(alone)})", ALONE)
        return geo.by_road(start, end, km, xy, count, reach)
    lost = [name for name, known in zip(ids, np.isfinite(xy).all(axis=1), strict=True) if not known]
    if lost:
        what = f"{len(lost)} of {len(ids)} sensors have no position ({sample(lost)})"
        command = Command("backfill", path, meta="LOCATIONS.csv")
        if strict:
            without = f"{Argument('pooling.kind', 'none')}, or {Argument('pooling.strict', False)}"
            raise SocialxError(path, what, f"{command}, or train with {without}")
        fall_back(path, f"{what}; {ALONE}", f"{command} would give them one")
    return geo.nearest(xy, count, reach)
