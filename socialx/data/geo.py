"""Sensor geometry: projection to a local plane and neighbour search, in float64 numpy, once per sensor network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

EARTH_RADIUS_KM = 6371.0088  # mean radius, IUGG
CELL, BLOCK = 8, 1 << 20  # sensors in a cell of the search at least, and distances that are computed at once


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


class Roads(NamedTuple):
    """Pairs of sensors, by index: pair i is ``km[i]`` from sensor ``start[i]`` to ``end[i]``."""

    start: np.ndarray
    end: np.ndarray
    km: np.ndarray


def nearest_neighbours(xy: np.ndarray, count: int | None, within_km: float = np.inf) -> Neighbours:
    """Find the ``count`` nearest other sensors (``None``: all) of each sensor, at most ``within_km`` away.

    xy [N,2] in km. K is the largest number found for any sensor, at least 1. A sensor needs a location to have or be a
    neighbour; equal distances keep the order of sensors. Takes O(N log N + N K) time and O(N K) memory.
    """
    most = len(xy) if count is None else count
    located = np.flatnonzero(np.isfinite(xy).all(axis=1))
    located = located[np.lexsort(xy[located].T)]  # sensors at one location in a row, in their order
    is_new = (np.diff(xy[located], axis=0, prepend=np.nan) != 0).any(axis=1)
    first = np.maximum.accumulate(np.where(is_new, np.arange(len(located)), 0))
    behind = np.arange(len(located)) - first > most  # as many others at this location come first: none needs these
    index = located[first[behind, None] + np.arange(most if behind.any() else 0)]
    blocks = [(located[behind], index, np.zeros(index.shape))]
    sensors = np.sort(located[~behind])
    for rows, columns, gap in _nearest_points(xy[sensors], most, within_km):
        width = max(1, int(np.isfinite(gap).sum(axis=1).max()))
        blocks.append((sensors[rows], sensors[columns[:, :width]], gap[:, :width]))
    return _pad_blocks(blocks, xy)


def road_neighbours(roads: Roads, xy: np.ndarray, count: int | None, within_km: float = np.inf) -> Neighbours:
    """Find the ``count`` nearest neighbours by road (``None``: all) of each sensor, at most ``within_km`` away.

    Traffic waves run both ways, so each pair counts in both directions, by the shorter distance. Only listed pairs are
    neighbours. xy [N,2] in km gives the offsets, 0 for NaN.
    """
    sensors, (start, end, km) = len(xy), roads
    sensor, neighbour, gap = np.concatenate([start, end]), np.concatenate([end, start]), np.concatenate([km, km])
    keep = (sensor != neighbour) & (gap <= within_km)
    sensor, neighbour, gap = sensor[keep], neighbour[keep], gap[keep]
    order = np.lexsort((neighbour, gap, sensor))
    _, first = np.unique((sensor * sensors + neighbour)[order], return_index=True)  # the shortest of each pair
    order = order[np.sort(first)]
    sensor, neighbour, gap = sensor[order], neighbour[order], gap[order]
    rank = np.arange(len(sensor)) - np.searchsorted(sensor, sensor)
    most = min(sensors if count is None else count, int(rank.max(initial=0)) + 1)
    keep = rank < most
    index = np.zeros((sensors, most), dtype=np.int64)
    distance = np.full((sensors, most), np.inf)
    index[sensor[keep], rank[keep]] = neighbour[keep]
    distance[sensor[keep], rank[keep]] = gap[keep]
    return _pad_blocks([(np.arange(sensors), index, distance)], xy)


def self_neighbours(sensors: int) -> Neighbours:
    """Return each sensor as its only neighbour, for social layers that use the sensor alone."""
    index = np.arange(sensors)[:, None]
    return Neighbours(index, np.ones((sensors, 1), dtype=bool), np.zeros((sensors, 1)), np.zeros((sensors, 1, 2)))


def _pad_blocks(blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]], xy: np.ndarray) -> Neighbours:
    """Join blocks (sensors, neighbours, km; infinite: no neighbour) into one ``Neighbours``; xy [N,2] in km."""
    sensors, most = len(xy), max(1, *(block[1].shape[1] for block in blocks))
    index = np.tile(np.arange(sensors)[:, None], (1, most))
    distance = np.full((sensors, most), np.inf)
    for rows, columns, gap in blocks:
        index[rows, : columns.shape[1]], distance[rows, : columns.shape[1]] = columns, gap
    exists = np.isfinite(distance)
    index = np.where(exists, index, np.arange(sensors)[:, None])
    offsets = np.nan_to_num(np.where(exists[..., None], xy[index] - xy[:, None], 0.0))
    return Neighbours(index, exists, np.where(exists, distance, 0.0), offsets)


def _nearest_points(
    points: np.ndarray, most: int, within: float
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield blocks that cover ``points`` [n,2]: rows [R], neighbour rows [R,K] and distances [R,K], nearest first.

    K is ``most`` or smaller; infinite distances fill up where fewer neighbours are ``within`` the limit.
    """
    if not len(points):
        return
    cells, boxes = _halve(points)
    start, near = _near_cells(boxes, len(points), most, within)
    counts, width = np.diff(start), cells.shape[1]
    points, cells = np.vstack([points, [np.nan] * 2]), np.vstack([cells, np.full(width, len(points))])
    order = np.argsort(-counts, kind="stable")  # a block takes cells with about as many near cells
    while len(order):
        widest = int(counts[order[0]])
        block, order = np.split(order, [max(1, BLOCK // (widest * width**2))])
        slot = start[block, None] + np.arange(widest)
        candidates = cells[np.where(slot < start[block + 1, None], near[np.minimum(slot, len(near) - 1)], -1)]
        columns = np.sort(candidates.reshape(len(block), 1, -1))  # whose order the stable sort of distances keeps
        rows = cells[block][..., None]
        gap = np.hypot(points[rows, 0] - points[columns, 0], points[rows, 1] - points[columns, 1])
        gap[~(gap <= within) | (rows == columns)] = np.inf
        nearest = np.argsort(gap, axis=2, kind="stable")[..., :most]
        columns, gap = (np.take_along_axis(np.broadcast_to(a, gap.shape), nearest, 2) for a in (columns, gap))
        filled = rows[..., 0] < len(points) - 1
        yield rows[filled, 0], np.minimum(columns[filled], len(points) - 2), gap[filled]


def _halve(points: np.ndarray) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Halve ``points`` [n,2] across the longer side, again and again, down to cells with at least ``CELL`` points.

    Return the points by cell, int64 [cells,w] filled up with n, and the lowest and highest corners [2^level,2] by
    level, from the whole to the cells.
    """
    order = np.arange(len(points))
    boxes: list[tuple[np.ndarray, np.ndarray]] = []
    while True:
        start = _starts(len(points), len(boxes))
        part = np.repeat(np.arange(len(start) - 1), np.diff(start))
        low, high = (corner.reduceat(points[order], start[:-1]) for corner in (np.minimum, np.maximum))
        boxes.append((low, high))
        if len(points) >> len(boxes) < CELL:
            slot = start[:-1, None] + np.arange(np.diff(start).max())
            return np.where(slot < start[1:, None], np.append(order, 0)[slot], len(points)), boxes
        order = order[np.lexsort((points[order, np.argmax(high - low, axis=1)[part]], part))]


def _starts(points: int, level: int) -> np.ndarray:
    """Return the first point by part, for 2^level equal parts, and the end."""
    return np.arange((1 << level) + 1) * points >> level


def _near_cells(
    boxes: list[tuple[np.ndarray, np.ndarray]], points: int, most: int, within: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the start index by cell into the second array, int64 [cells+1], and candidate cells, joined.

    A candidate may contain one of the ``most`` nearest neighbours for a point in the cell. From the whole down, parts
    farther away than ``most`` points can be are dropped.
    """
    low, high = boxes[-1]
    cells = np.arange(len(low))
    cell, part, reach = cells, np.zeros(len(low), np.int64), np.full(len(low), within)
    for level, (part_low, part_high) in enumerate(boxes):
        if level:
            cell, part = np.repeat(cell, 2), np.stack([2 * part, 2 * part + 1], axis=1).ravel()
        far = np.hypot(*np.maximum(part_high[part] - low[cell], high[cell] - part_low[part]).T)
        by_far = np.lexsort((far, cell))
        total = np.append(0, np.cumsum(np.diff(_starts(points, level))[part[by_far]]))
        start, end = (np.searchsorted(cell, cells, side) for side in ("left", "right"))
        last = np.searchsorted(total, total[start] + most, "right") - 1  # with it there are most others, and itself
        most_far = np.append(far[by_far], np.inf)[np.where(last < end, last, -1)]
        reach = np.minimum(reach, most_far * (1 + 1e-9))  # more than hypot rounds
        apart = np.maximum(part_low[part] - high[cell], low[cell] - part_high[part]).clip(0)
        near = np.hypot(*apart.T) <= reach[cell]
        cell, part = cell[near], part[near]
    return np.searchsorted(cell, np.arange(len(low) + 1)), part
