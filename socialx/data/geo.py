"""Where sensors are: degrees -> a local plane, and who is near whom.  numpy only, float64, done once per network."""

from __future__ import annotations

import numpy as np

EARTH_RADIUS_KM = 6371.0088  # mean radius, IUGG


def to_plane(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Azimuthal equidistant plane around the centre of the network.

    latitude, longitude [N] in degrees -> xy [N,2] in km, east and north.  Distances between two sensors are off by
    about (r/R)^2/6, r the distance from the centre: 2e-5 at 70 km.  NaN degrees give NaN km.
    Source: Snyder, Map Projections (USGS PP 1395, 1987), equations 22-4, 22-5 and 25-2.
    """
    lat, lon = np.radians(latitude), np.radians(longitude)
    if not np.isfinite(lat * lon).any():
        return np.full((len(lat), 2), np.nan)
    lat0, lon0 = np.nanmean(lat), np.nanmean(lon)
    cos_c = np.sin(lat0) * np.sin(lat) + np.cos(lat0) * np.cos(lat) * np.cos(lon - lon0)
    east = np.cos(lat) * np.sin(lon - lon0)
    north = np.cos(lat0) * np.sin(lat) - np.sin(lat0) * np.cos(lat) * np.cos(lon - lon0)
    sin_c = np.hypot(east, north)
    scale = np.where(sin_c > 1e-12, np.arctan2(sin_c, cos_c) / np.maximum(sin_c, 1e-12), 1.0)
    return EARTH_RADIUS_KM * scale[:, None] * np.stack([east, north], axis=1)


def nearest(xy: np.ndarray, neighbours: int) -> tuple[np.ndarray, np.ndarray]:
    """The K nearest other sensors of each sensor.

    xy [N,2] in km -> index int64 [N,K], exists bool [N,K], K = min(neighbours, N-1) but at least 1.  A sensor is
    never its own neighbour; one without a position has none and is nobody's.  Where exists is False the index is the
    sensor's own, so that a gather stays in range.  O(N^2) time in blocks of 1,024 rows, O(1024 N) memory.
    """
    count = len(xy)
    k = max(1, min(neighbours, count - 1))
    index = np.tile(np.arange(count)[:, None], (1, k))
    exists = np.zeros((count, k), dtype=bool)
    known = np.isfinite(xy).all(axis=1)
    place = np.where(known[:, None], xy, 0.0)
    take = min(k, count - 1)
    for start in range(0, count if take else 0, 1024):
        rows = np.arange(start, min(start + 1024, count))
        gap = np.hypot(*np.moveaxis(place[rows, None] - place[None, :], -1, 0))  # [rows,N]
        gap[:, ~known] = np.inf
        gap[~known[rows]] = np.inf
        gap[np.arange(len(rows)), rows] = np.inf
        order = np.argsort(gap, axis=1, kind="stable")[:, :take]
        there = np.isfinite(np.take_along_axis(gap, order, axis=1))
        index[rows, :take] = np.where(there, order, rows[:, None])
        exists[rows, :take] = there
    return index, exists
