"""Sensor geometry: projection to a local plane and neighbour search, in float64 numpy, once per sensor network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

EARTH_RADIUS_KM = 6371.0088  # mean radius, IUGG


def to_plane(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Project locations onto an azimuthal equidistant plane around the network centre.

    latitude, longitude [N] in degrees -> xy [N,2] in km, east and north; NaN degrees give NaN km. The relative error
    between two sensors is about (r/R)^2/6, with r the distance from the centre: 2e-5 at 70 km. Source: Snyder, Map
    Projections (USGS PP 1395, 1987), equations 22-4, 22-5 and 25-2.
    """
    lat, lon = np.radians(latitude), np.radians(longitude)
    if not np.isfinite(lat * lon).any():
        return np.full((len(lat), 2), np.nan)
    if np.nanmax(lon) - np.nanmin(lon) > np.pi:  # the network spans the date line
        lon = np.where(lon < 0, lon + 2 * np.pi, lon)
    lat0, lon0 = np.nanmean(lat), np.nanmean(lon)
    cos_c = np.sin(lat0) * np.sin(lat) + np.cos(lat0) * np.cos(lat) * np.cos(lon - lon0)
    east = np.cos(lat) * np.sin(lon - lon0)
    north = np.cos(lat0) * np.sin(lat) - np.sin(lat0) * np.cos(lat) * np.cos(lon - lon0)
    sin_c = np.hypot(east, north)
    scale = np.where(sin_c > 1e-12, np.arctan2(sin_c, cos_c) / np.maximum(sin_c, 1e-12), 1.0)
    return EARTH_RADIUS_KM * scale[:, None] * np.stack([east, north], axis=1)


def valid_degrees(latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> np.ndarray:
    """Return which locations have a latitude within +-90 and a longitude within +-180 degrees, bool; False for NaN."""
    return (np.abs(latitude) <= 90) & (np.abs(longitude) <= 180)


def plausible_location(latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> np.ndarray:
    """Return which locations a sensor can have: valid degrees, but 0, 0 (at sea), which exports write for "unknown"."""
    return valid_degrees(latitude, longitude) & (np.not_equal(latitude, 0) | np.not_equal(longitude, 0))


@dataclass(frozen=True)
class Neighbours:
    """Up to K neighbours for each of N sensors, nearest first.

    index int64 [N,K]; where exists bool [N,K] is False, index is the sensor itself, so that a gather stays in range.
    distance float64 [N,K] in km. offsets float64 [N,K,2] in km, east and north from sensor to neighbour. Distances and
    offsets are 0 where exists is False; offsets are 0 where a location is unknown.
    """

    index: np.ndarray
    exists: np.ndarray
    distance: np.ndarray
    offsets: np.ndarray


def nearest_neighbours(xy: np.ndarray, count: int | None, within_km: float = np.inf) -> Neighbours:
    """Find the ``count`` nearest other sensors (``None``: all) of each sensor, at most ``within_km`` away.

    xy [N,2] in km. K is the largest number found for any sensor, at least 1. A sensor needs a location to have or be a
    neighbour. Takes O(N^2) time in blocks of 256 rows and O((256 + K) N) memory.
    """
    sensors = len(xy)
    located = np.isfinite(xy).all(axis=1)
    points = np.where(located[:, None], xy, 0.0)
    blocks = []
    for start in range(0, sensors, 256):
        rows = np.arange(start, min(start + 256, sensors))
        gap = np.hypot(*np.moveaxis(points[rows, None] - points[None, :], -1, 0))  # [rows,N]
        gap[:, ~located] = np.inf
        gap[~located[rows]] = np.inf
        gap[np.arange(len(rows)), rows] = np.inf
        order = np.argsort(gap, axis=1, kind="stable")[:, : sensors if count is None else count]
        gap = np.take_along_axis(gap, order, axis=1)
        gap[gap > within_km] = np.inf
        most = max(1, int(np.isfinite(gap).sum(axis=1).max()))
        blocks.append((order[:, :most], gap[:, :most]))
    return _pad_blocks(blocks, points)


def road_neighbours(
    start: np.ndarray, end: np.ndarray, km: np.ndarray, xy: np.ndarray, count: int | None, within_km: float = np.inf
) -> Neighbours:
    """Find the ``count`` nearest neighbours by road (``None``: all) of each sensor, at most ``within_km`` away.

    Traffic waves run both ways, so pair i, ``km[i]`` from sensor ``start[i]`` to ``end[i]``, counts in both directions,
    by the shorter distance. Only listed pairs are neighbours. xy [N,2] in km gives the offsets, 0 for NaN.
    """
    sensors = len(xy)
    sensor, neighbour, gap = np.concatenate([start, end]), np.concatenate([end, start]), np.concatenate([km, km])
    keep = (sensor != neighbour) & (gap <= within_km)
    sensor, neighbour, gap = sensor[keep], neighbour[keep], gap[keep]
    order = np.lexsort((gap, neighbour, sensor))  # the shortest of each pair first
    sensor, neighbour, gap = sensor[order], neighbour[order], gap[order]
    first = np.ones(len(sensor), dtype=bool)
    first[1:] = (sensor[1:] != sensor[:-1]) | (neighbour[1:] != neighbour[:-1])
    sensor, neighbour, gap = sensor[first], neighbour[first], gap[first]
    order = np.lexsort((neighbour, gap, sensor))
    sensor, neighbour, gap = sensor[order], neighbour[order], gap[order]
    rank = np.arange(len(sensor)) - np.searchsorted(sensor, sensor)
    most = min(sensors if count is None else count, int(rank.max(initial=0)) + 1)
    keep = rank < most
    index = np.zeros((sensors, most), dtype=np.int64)
    distance = np.full((sensors, most), np.inf)
    index[sensor[keep], rank[keep]] = neighbour[keep]
    distance[sensor[keep], rank[keep]] = gap[keep]
    return _pad_blocks([(index, distance)], xy)


def self_neighbours(sensors: int) -> Neighbours:
    """Return each sensor as its only neighbour, for social layers that use the sensor alone."""
    index = np.arange(sensors)[:, None]
    return Neighbours(index, np.ones((sensors, 1), dtype=bool), np.zeros((sensors, 1)), np.zeros((sensors, 1, 2)))


def _pad_blocks(blocks: list[tuple[np.ndarray, np.ndarray]], xy: np.ndarray) -> Neighbours:
    """Join blocks of sensors (neighbour index, km; infinite: no neighbour) into one ``Neighbours``; xy [N,2] in km."""
    sensors, most = len(xy), max([block[0].shape[1] for block in blocks], default=1)
    index = np.tile(np.arange(sensors)[:, None], (1, most))
    distance = np.full((sensors, most), np.inf)
    start = 0
    for order, gap in blocks:
        rows, width = slice(start, start + len(order)), order.shape[1]
        index[rows, :width], distance[rows, :width] = order, gap
        start += len(order)
    exists = np.isfinite(distance)
    index = np.where(exists, index, np.arange(sensors)[:, None])
    offsets = np.nan_to_num(np.where(exists[..., None], xy[index] - xy[:, None], 0.0))
    return Neighbours(index, exists, np.where(exists, distance, 0.0), offsets)
