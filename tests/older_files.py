"""Made-up files as every earlier writer left them: a builder per variant, small, with known readings and positions."""

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from tests.data_files import timestamps

IDS = ("400001", "400017", "400030", "400040")
LATITUDE = np.array([37.364085, 37.253071, 37.359087, 37.2941])
LONGITUDE = np.array([-121.901149, -121.945440, -121.906538, -121.8770])
LANES, LENGTH = np.array([4.0, 3.0, 4.0, 2.0]), np.array([0.35, 0.6, 0.4, 0.5])
LETTERS = "NEWS"
DEGREES = {"N": 0, "E": 90, "S": 180, "W": 270}
CODES = {"N": 0, "S": 1, "E": 2, "W": 3}
VLEN = h5py.string_dtype("utf-8")
ROWS = 30


def speeds(rows: int = ROWS, zeros: bool = True) -> np.ndarray:
    """float64 [T,N] with digits that float32 does not hold, and some zeros."""
    rng = np.random.default_rng(7)
    values = rng.uniform(20, 70, (rows, len(IDS))) / 3
    return np.where(rng.random(values.shape) < 0.2, 0.0, values) if zeros else values


def static(values: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """[T,N] and constant columns [N] -> features [T,N,F] float64."""
    return np.stack([values, *(np.broadcast_to(column, values.shape) for column in columns)], axis=2)


def bay_features(values: np.ndarray, codes: dict[str, int]) -> np.ndarray:
    return static(values, LANES, LENGTH, LATITUDE, LONGITUDE, np.array([codes[letter] for letter in LETTERS]))


BAY_NAMES = ("avg_speed", "lanes", "length", "latitude", "longitude", "direction")
LA_NAMES = ("avg_speed", "latitude", "longitude")


def describe(file: h5py.File, crs: bool = True, **more: list[object]) -> None:
    """vd_info as the canonical writer makes it; NaN or None leaves an attribute out."""
    info = file.require_group("metadata/vd_info")
    if crs:
        info.attrs["coord_crs"] = "EPSG:4326"
    for place, vdid in enumerate(IDS):
        attributes = info.create_group(vdid).attrs
        attributes["position_lat"], attributes["position_lon"] = LATITUDE[place], LONGITUDE[place]
        for name, values in more.items():
            attributes[name] = values[place]


def grouped(
    path: Path,
    features: np.ndarray,
    names: tuple[str, ...],
    attributes: dict[str, object],
    unit: str | None = None,
    times: list[str] | None = None,
    vlen: bool = False,
    epochs: bool = True,
    storage: dict[str, object] | None = None,
) -> Path:
    """The layout with groups; ``storage`` goes to create_dataset of the features."""
    times = timestamps(len(features), "2017-01-01T00:00:00") if times is None else times
    with h5py.File(path, "w") as file:
        file.attrs.update(attributes)
        file.create_dataset("data/features", data=features, **(storage or {}))
        for name, texts, width in (("vdids", IDS, 64), ("feature_names", names, 32), ("timestamps", times, 19)):
            if vlen:
                file.create_dataset(f"metadata/{name}", data=np.array(texts, object), dtype=VLEN)
            else:
                file[f"metadata/{name}"] = np.array(texts, f"S{width}")
        if epochs:
            file["metadata/timestamps_epoch"] = np.array(times, "datetime64[s]").astype(np.int64)
        if unit:
            file["metadata/units"] = np.bytes_(json.dumps({names[0]: unit}))
            file["metadata/frequency"] = np.bytes_("5min")
            file["metadata/source"] = np.bytes_("somewhere")
    return path


def _bay(path: Path, unit: str, described: bool) -> Path:
    features = bay_features(speeds() * (1.609344 if unit == "km/h" else 1), DEGREES).astype(np.float32)
    attributes = root("pems_bay", "pems_bay_v1", features.shape)
    grouped(path, features, BAY_NAMES, attributes, unit, storage={"compression": "gzip", "chunks": (8, 4, 6)})
    if described:
        with h5py.File(path, "r+") as file:
            describe(file, lanes=list(LANES), length=list(LENGTH), direction=list(LETTERS))
    return path


def root(dataset: str, features: str, shape: tuple[int, ...]) -> dict[str, object]:
    """The attributes of the file itself."""
    counts = dict(zip(("num_timesteps", "num_locations", "num_features"), map(np.int64, shape), strict=True))
    texts = {"dataset_name": dataset, "feature_set": features, "feature_schema_version": "1.0"}
    return texts | {"creation_date": "2025-09-01T00:00:00", "description": "older"} | counts


def _la(path: Path, unit: str, zeros: bool, described: bool, placed: bool = True, **more: object) -> Path:
    values = speeds(zeros=zeros) * (1.609344 if unit == "km/h" else 1)
    places = (LATITUDE, LONGITUDE) if placed else (np.full(4, np.nan), np.full(4, np.nan))
    features = static(values, *places).astype(np.float32)
    kind = "metr_la_v1_reduced" if unit == "km/h" else "metr_la_v1"
    times = timestamps(ROWS, "2012-03-01T00:00:00")
    if keep := more.get("keep"):
        features, times = features[keep], [times[row] for row in keep]
    storage = {"compression": "gzip", "chunks": True}
    grouped(path, features, LA_NAMES, root("metr_la", kind, features.shape), unit, times, storage=storage)
    if described:
        with h5py.File(path, "r+") as file:
            describe(file)
    return path


def v0(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["features"] = bay_features(speeds(), CODES)
        file["dates"] = np.array(timestamps(ROWS, "2017-01-01T00:00:00"), "S19")
        file["sensors"] = np.array(IDS, "S")
    return path


def v0b(path: Path) -> Path:
    names = ("speed", *BAY_NAMES[1:])
    kept = ("dataset_name", "feature_set", "feature_schema_version", "creation_date")
    features = bay_features(speeds(), CODES)
    attributes = {key: value for key, value in root("pems_bay", "pems_bay_v1", features.shape).items() if key in kept}
    return grouped(path, features, names, attributes, vlen=True, epochs=False)


def taiwan(path: Path, named: bool, described: bool = True, cleaned: bool = False) -> Path:
    rows = 12
    features = np.random.default_rng(3).uniform(20, 90, (rows, len(IDS), 5)).astype(np.float32)
    names = ("avg_speed", "total_volume", "avg_occupancy", "speed_std", "lane_count")
    times = [f"2025-03-18T00:{minute:02}:11+08:00" for minute in range(rows)]
    if not cleaned:
        times[4] = ""
    attributes: dict[str, object] = {}
    if not cleaned:
        counts = dict(zip(("num_timesteps", "num_locations", "num_features"), features.shape, strict=True))
        attributes = {"description": "Traffic time-series data from VD sensors", "source_directory": "raw", **counts}
    if named:
        attributes |= {"dataset_name": "taiwan_vd", "feature_set": "traffic_core_v1", "feature_schema_version": "1.0"}
    grouped(path, features, names, attributes, times=times, vlen=True, epochs=False)
    with h5py.File(path, "r+") as file:
        if described:
            describe(file, crs=False, road_id=["1"] * 4, road_name=["\u8def"] * 4, lane_num=[2] * 4)
        if cleaned:
            group = file.create_group("metadata/cleaning_info")
            group.attrs.update(original_samples=20, stable_samples=rows, start_ratio=0.3, removed_samples=8)
    return path


def cut(parent: Callable[[Path], Path], path: Path, rows: slice) -> Path:
    """What the time slicer made of a file."""
    whole = parent(path.with_name(f"parent_{path.name}"))
    with h5py.File(whole) as old, h5py.File(path, "w") as new:
        new.attrs.update(old.attrs)
        new.attrs["num_timesteps"] = len(range(*rows.indices(len(old["data/features"]))))
        new["data/features"] = old["data/features"][rows]
        for name in ("timestamps", "timestamps_epoch"):
            if f"metadata/{name}" in old:
                new.create_dataset(f"metadata/{name}", data=old[f"metadata/{name}"][rows])
        for name in ("vdids", "feature_names", "units", "frequency", "source", "vd_info"):
            if f"metadata/{name}" in old:
                old.copy(f"metadata/{name}", new.require_group("metadata"))
    whole.unlink()
    return path


def partial(path: Path) -> Path:
    """vd_info as an incomplete META left it: an empty entry, a NaN, and no entry at all."""
    _bay(path, "mph", described=True)
    with h5py.File(path, "r+") as file:
        info = file["metadata/vd_info"]
        for name in list(info[IDS[0]].attrs):
            del info[IDS[0]].attrs[name]
        info[IDS[1]].attrs["position_lat"] = np.nan
        del info[IDS[2]]
    return path


# name -> builder.  M0 and TW2 hold no positions at all.
OLDER: dict[str, Callable[[Path], Path]] = {
    "V0": v0,
    "V0b": v0b,
    "P0": lambda path: _bay(path, "km/h", described=False),
    "P1": lambda path: _bay(path, "km/h", described=True),
    "P2": lambda path: _bay(path, "mph", described=True),
    "M0": lambda path: _la(path, "km/h", zeros=True, described=False, placed=False),
    "M1": lambda path: _la(path, "km/h", zeros=False, described=False),
    "M2": lambda path: _la(path, "km/h", zeros=False, described=True),
    "M3": lambda path: _la(path, "mph", zeros=True, described=True, keep=sorted({*range(ROWS)} - {5, 6, 20})),
    "M4": lambda path: _la(path, "mph", zeros=False, described=True),
    "TW0": lambda path: taiwan(path, named=False),
    "TW1": lambda path: taiwan(path, named=True),
    "TW2": lambda path: taiwan(path, named=False, described=False, cleaned=True),
}


def meta(path: Path, ids: tuple[str, ...] = IDS) -> Path:
    """Exact locations, in another order than the data and with the ids spelt otherwise."""
    rows = [f"0{vdid},{LATITUDE[IDS.index(vdid)]},{LONGITUDE[IDS.index(vdid)]}" for vdid in reversed(ids)]
    path.write_text("\n".join(["sensor_id,latitude,longitude", *rows]) + "\n")
    return path
