"""The older files that earlier writers left behind, told apart by what is in them and never by their name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from socialx.data.older import has_places, in_kilometres, is_taiwan, zeros_replaced
from socialx.data.store import FLAT, MISSING_ATTR, SENSOR_INFO, read_layout, read_text, read_unit
from socialx.errors import SocialxError


@dataclass(frozen=True)
class Variant:
    """One kind of file."""

    name: str
    what: str
    rewrite: bool = False  # not the canonical layout: it must be written anew
    # Its zeros were replaced before it was written, so nobody can tell them from readings; None: that cannot be told.
    imputed: bool | None = False


CURRENT, OTHER = "current", "other"
VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(CURRENT, "written by socialx"),
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
    """Which kind of file this is; a slice in time is of its parent's kind.  Refuses what backfill cannot help."""
    if set(FLAT) <= set(file):
        return VARIANTS["V0"]
    if "data/vd_ids" in file or "data/timestamps" in file:
        found = "its times and ids are in data/, a layout that only old documentation describes"
        raise SocialxError(f"{path}: {found}: convert its source with socialx convert")
    features, _, names, _ = read_layout(path, file)
    return VARIANTS[_name(file, features, names)]


def _name(file: h5py.File, features: h5py.Dataset, names: list[str]) -> str:
    if "metadata/cleaning_info" in file:
        return "TW2"
    if names[0] == "speed" and features.dtype == np.float64:
        return "V0b"
    if MISSING_ATTR in file["metadata"].attrs:
        return CURRENT
    dataset, described = read_text(file.attrs.get("dataset_name", "")), SENSOR_INFO in file
    kilometres = in_kilometres(read_unit(file, names[0]))
    if dataset == "pems_bay":
        return ("P1" if described else "P0") if kilometres else "P2"
    if dataset == "metr_la":
        replaced = zeros_replaced(features, names, kilometres)
        if not kilometres and not read_text(file.attrs.get("feature_set", "")).endswith("_reduced"):
            return {True: "M4", False: "M3", None: "M3/M4"}[replaced]
        if replaced:
            return "M2" if described else "M1"
        return OTHER if has_places(features, names) else "M0"
    if is_taiwan(file):
        return "TW1" if dataset else "TW0"
    return OTHER
