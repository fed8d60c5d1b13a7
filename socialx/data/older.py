"""What older files do not say but give away: who wrote them, their units, and whether their zeros were replaced."""

from __future__ import annotations

from collections.abc import Sequence

import h5py
import numpy as np

TAIWAN_UNITS = {"avg_speed": "km/h", "speed_std": "km/h", "avg_occupancy": "%", "lane_count": "count"}
METR_LA_SENSORS, METR_LA_ROWS_WITHOUT_ZERO = 207, 107  # the longest run of rows without any zero, of all sensors


def is_taiwan(file: h5py.File) -> bool:
    """Whether a file is Taiwan VD data, which never say their units."""
    if file.attrs.get("dataset_name") in ("taiwan_vd", b"taiwan_vd") or "source_directory" in file.attrs:
        return True
    info = file.get("metadata/vd_info")
    first = [info[name] for name in list(info)[:1]] if isinstance(info, h5py.Group) else []
    return "metadata/cleaning_info" in file or any("road_id" in entry.attrs for entry in first)


def in_kilometres(unit: str) -> bool:
    """Whether speeds are in km/h, however it is spelt."""
    return unit.replace(" ", "") in ("km/h", "kmh", "kph")


def has_places(features: h5py.Dataset, names: Sequence[str]) -> bool:
    """Whether there is any number in the latitude and longitude columns."""
    columns = [names.index(name) for name in ("latitude", "longitude") if name in names]
    return any(bool(np.isfinite(features[:, :, column]).any()) for column in columns)


def zeros_replaced(features: h5py.Dataset, names: Sequence[str], kilometres: bool) -> bool | None:
    """Whether the writer of an older METR-LA file replaced its zeros; None where the file cannot tell.

    A file without zeros may also be a slice of one that kept them.  In km/h such a slice has no positions in its
    columns.  In mph it has them: there it takes more rows than METR-LA ever has without a zero.
    """
    if not (features[:, :, 0] > 0).all() or not has_places(features, names):
        return False
    long = features.shape[1] == METR_LA_SENSORS and len(features) > METR_LA_ROWS_WITHOUT_ZERO
    return True if kilometres or long else None
