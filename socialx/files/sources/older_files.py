"""Older file variants: recognised by content, with facts that the content implies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from socialx.core.errors import SocialxError
from socialx.files.store.layout import FLAT, MISSING_ATTR, SENSOR_INFO, check_parts, read_layout, read_text, read_unit
from socialx.files.store.published import DATASETS


@dataclass(frozen=True)
class Variant:
    """A kind of older file, such as METR-LA with replaced zeros."""

    name: str
    description: str
    rewrite: bool = False  # outside the canonical layout: needs a rewrite
    # Its zeros were replaced before it was written, so nobody can tell them from readings; None: that cannot be told.
    imputed: bool | None = False


TAIWAN_UNITS = {"avg_speed": "km/h", "speed_std": "km/h", "avg_occupancy": "%", "lane_count": "count"}
BLOCK_ROWS = 288
ROWS_WITHOUT_ZERO = 107  # METR-LA's longest run of rows without any zero, of all sensors
CURRENT, OTHER = "current", "other"
VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(CURRENT, "written or completed by socialx"),
        Variant(OTHER, "the canonical layout, written by something else"),
        Variant("V0", "flat PEMS-BAY file: features, dates and sensors without groups", rewrite=True),
        Variant("V0b", "PEMS-BAY file in float64 whose first feature is called speed", rewrite=True),
        Variant("P0", "PEMS-BAY in km/h without vd_info"),
        Variant("P1", "PEMS-BAY in km/h with vd_info"),
        Variant("P2", "PEMS-BAY in mph"),
        Variant("M0", "METR-LA in km/h, zeros kept, the columns of its positions NaN"),
        Variant("M1", "METR-LA in km/h without vd_info, zeros replaced by means", imputed=True),
        Variant("M2", "METR-LA in km/h with vd_info, zeros replaced by means", imputed=True),
        Variant("M3", "METR-LA in mph, zeros kept, rows of mostly zeros deleted"),
        Variant("M4", "METR-LA in mph, zeros interpolated", imputed=True),
        Variant(
            "M3/M4",
            "METR-LA in mph without a zero; whether it had none (M3) or they were interpolated (M4) cannot be told",
            imputed=None,
        ),
        Variant("TW0", "Taiwan VD without dataset_name"),
        Variant("TW1", "Taiwan VD"),
        Variant("TW2", "Taiwan VD, stabilised"),
    )
}


def recognise(path: Path, file: h5py.File) -> Variant:
    """Return the variant of ``file``, for a time slice as for the whole. Raises where ``backfill`` cannot help."""
    if set(FLAT) <= set(file):
        check_parts(path, file)
        return VARIANTS["V0"]
    if "data/vd_ids" in file or "data/timestamps" in file:
        problem = "the times and ids are in data/, a layout that only old documentation describes"
        raise SocialxError("older.layout", path, problem, "convert its source")
    features, _, names, _ = read_layout(path, file)
    dataset, described = read_text(file.attrs.get("dataset_name", "")), SENSOR_INFO in file
    kilometres = read_unit(file, names[0]).replace(" ", "") in ("km/h", "kmh", "kph")
    name = OTHER
    if MISSING_ATTR in file["metadata"].attrs:
        name = CURRENT
    elif "metadata/cleaning_info" in file:
        name = "TW2"
    elif names[0] == "speed" and features.dtype == np.float64:
        name = "V0b"
    elif dataset == "pems_bay":
        name = ("P1" if described else "P0") if kilometres else "P2"
    elif dataset == "metr_la":
        replaced = are_zeros_replaced(features, names, kilometres)
        if not kilometres and not read_text(file.attrs.get("feature_set", "")).endswith("_reduced"):
            name = {True: "M4", False: "M3", None: "M3/M4"}[replaced]
        elif replaced:
            name = "M2" if described else "M1"
        elif not has_locations(features, names):
            name = "M0"
    elif is_taiwan(file):
        name = "TW1" if dataset else "TW0"
    return VARIANTS[name]


def lacking_units(file: h5py.File, names: Sequence[str]) -> dict[str, str]:
    """Return unit by feature for units that a Taiwan VD file leaves open; empty for any other file."""
    if not is_taiwan(file):
        return {}
    return {name: TAIWAN_UNITS[name] for name in names if name in TAIWAN_UNITS and read_unit(file, name) == "unknown"}


def missing_value(file: h5py.File) -> float:
    """Return the missing value of a file that states none: 0 for METR-LA and PEMS-BAY, else NaN."""
    dataset = read_text(file.attrs.get("dataset_name", ""))
    named = (d.missing for d in DATASETS.values() if d.dataset_name == dataset and d.missing is not None)
    return next(named, math.nan)


def is_taiwan(file: h5py.File) -> bool:
    """Return whether a file holds Taiwan VD data, which never state units."""
    if read_text(file.attrs.get("dataset_name", "")) == "taiwan_vd" or "source_directory" in file.attrs:
        return True
    info = file.get("metadata/vd_info")
    first = [info[name] for name in list(info)[:1]] if isinstance(info, h5py.Group) else []
    return "metadata/cleaning_info" in file or any("road_id" in entry.attrs for entry in first)


def _blocks(features: h5py.Dataset, column: int) -> Iterator[np.ndarray]:
    """Yield row blocks [t,N] of the feature at index ``column``, unpacking each chunk once."""
    rows = max(BLOCK_ROWS, features.chunks[0] if features.chunks else 0)
    for first in range(0, len(features), rows):
        yield features[first : first + rows, :, column]


def has_locations(features: h5py.Dataset, names: Sequence[str]) -> bool:
    """Return whether the latitude and longitude columns hold any number."""
    columns = [names.index(name) for name in ("latitude", "longitude") if name in names]
    return any(bool(np.isfinite(block).any()) for column in columns for block in _blocks(features, column))


def are_zeros_replaced(features: h5py.Dataset, names: Sequence[str], kilometres: bool) -> bool | None:
    """Return whether an older METR-LA file had its zeros replaced; None where the file cannot tell.

    kilometres: speeds are in km/h. A file that lacks zeros may also be a slice of a file that kept zeros. In km/h such
    a slice has empty location columns; in mph, such a slice is at most as long as METR-LA's longest run without zeros.
    """
    if not all(bool((block > 0).all()) for block in _blocks(features, 0)) or not has_locations(features, names):
        return False
    long = features.shape[1] == DATASETS["metr-la"].sensors and len(features) > ROWS_WITHOUT_ZERO
    return True if kilometres or long else None
