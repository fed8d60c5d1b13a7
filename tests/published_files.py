"""Files as DCRNN and BasicTS publish them, made of any readings."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.array_files import fractions, weekdays

NAMES = ("train.npz", "val.npz", "test.npz")
Windows = dict[str, dict[str, np.ndarray]]
PARTS = ("train", "val", "test")
FEATURES = ["traffic speed", "time of day", "day of week"]


def cut(series: np.ndarray, x_offsets: np.ndarray, y_offsets: np.ndarray) -> Windows:
    """DCRNN's windows of [T,N,C], split 7:1:2 (at least one each)."""
    moments = range(-x_offsets[0], len(series) - y_offsets[-1])
    x = np.stack([series[moment + x_offsets] for moment in moments])
    y = np.stack([series[moment + y_offsets] for moment in moments])
    first = min(round(len(x) * 0.7), len(x) - 2)
    ends = (0, first, min(max(round(len(x) * 0.8), first + 1), len(x) - 1), len(x))
    offsets = {"x_offsets": x_offsets[:, None], "y_offsets": y_offsets[:, None]}
    return {
        name: {"x": x[first:last], "y": y[first:last], **offsets}
        for name, (first, last) in zip(NAMES, pairwise(ends), strict=True)
    }


def write_windows(folder: Path, windows: Windows) -> Path:
    for name, members in windows.items():
        np.savez_compressed(folder / name, **members)
    return folder


def write_dat(folder: Path, data: np.ndarray, **described: object) -> Path:
    """As BasicTS 0.4 and 0.5 write it; None leaves a key out."""
    data.astype("<f4").tofile(folder / "data.dat")
    description = {
        "name": "METR-LA",
        "domain": "traffic speed",
        "shape": list(data.shape),
        "feature_description": FEATURES,
        "frequency (minutes)": 5,
        "regular_settings": {"NULL_VAL": float("nan")},
    } | described
    kept = {key: value for key, value in description.items() if value is not None}
    (folder / "desc.json").write_text(json.dumps(kept, indent=4))
    return folder


def write_parts(
    folder: Path, values: np.ndarray, times: np.ndarray, domain: str = "traffic speed", **described: object
) -> Path:
    """As BasicTS 1.0 writes it: values [T,N] or [T,N,C], times [T,K]."""
    first, second = int(len(values) * 0.7), int(len(values) * 0.8)
    for what, array in (("data", values), ("timestamps", times)):
        for part, piece in zip(PARTS, np.split(array.astype(np.float32), [first, second]), strict=True):
            np.save(folder / f"{part}_{what}.npy", piece)
    meta = {"name": "METR-LA", "domain": domain, "frequency (minutes)": 5, "shape": list(values.shape), **described}
    (folder / "meta.json").write_text(json.dumps(meta, indent=4))
    return folder


def columns(times: list[str]) -> np.ndarray:
    """What BasicTS 1.0 keeps of the times: of the day and of the week, [T,2]."""
    return np.stack([fractions(times), weekdays(times) / 7], axis=-1)
