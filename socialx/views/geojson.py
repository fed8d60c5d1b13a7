"""Sensors and their neighbours as GeoJSON (RFC 7946), which QGIS and other maps read: degrees, longitude first."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.disk import replacing
from socialx.errors import Command, SocialxError
from socialx.files.hdf5_layout import Sensors
from socialx.files.inspect import Report

if TYPE_CHECKING:  # it loads torch, which a file needs not
    from socialx.scoring.results import Explanation

Place = tuple[float, float]  # longitude and latitude


def places(sensors: Sensors, path: Path) -> dict[str, Place]:
    """Where each sensor of a file is, by id; those without a position are left out.  Refuses a file without any."""
    known = np.isfinite(sensors.latitude) & np.isfinite(sensors.longitude)
    if not known.any():
        raise SocialxError(path, "no sensor has a position", Command("backfill", path, meta="LOCATIONS.csv"))
    return {
        sensors.ids[place]: (float(sensors.longitude[place]), float(sensors.latitude[place]))
        for place in np.flatnonzero(known)
    }


def write_report(report: Report, where: dict[str, Place], path: Path) -> None:
    """A point for each sensor of a file: ``id``, ``missing_share`` (0 to 1), ``mean`` of its readings, ``unit``."""
    _write(
        path,
        (
            _point(
                vdid,
                where[vdid],
                missing_share=report.sensor_missing_share[vdid],
                mean=report.sensor_mean[vdid],
                unit=report.unit,
            )
            for vdid in where
        ),
    )


def write_explanation(explanation: Explanation, where: dict[str, Place], path: Path) -> None:
    """A point for each sensor: ``id``, ``mae``, ``forecasts``, ``unit``; a line from each of its strongest neighbours.

    A line goes ``from`` the neighbour ``to`` the sensor, and has its attention ``weight`` and length in ``km``.
    """
    points = [
        _point(sensor.id, where[sensor.id], mae=sensor.mae, forecasts=sensor.count, unit=explanation.unit)
        for sensor in explanation.sensors
        if sensor.id in where
    ]
    lines = [
        _feature(
            {"type": "LineString", "coordinates": [where[near.id], where[sensor.id]]},
            {"from": near.id, "to": sensor.id, "weight": near.weight, "km": near.km},
        )
        for sensor in explanation.sensors
        for near in sensor.neighbours
        if near.id != sensor.id and near.id in where and sensor.id in where
    ]
    _write(path, [*points, *lines])


def _point(vdid: str, place: Place, **properties: float | str | None) -> dict[str, Any]:
    return _feature({"type": "Point", "coordinates": place}, {"id": vdid, **properties})


def _feature(geometry: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Feature", "geometry": geometry, "properties": properties}


def _write(path: Path, features: Iterable[dict[str, Any]]) -> None:
    """A feature per line, atomically."""
    lines = ",\n".join(json.dumps(feature, allow_nan=False) for feature in features)
    with replacing(path) as temporary:
        temporary.write_text(f'{{"type": "FeatureCollection", "features": [\n{lines}\n]}}\n', encoding="utf-8")
