"""The canonical HDF5 layout: names, dtypes and units. T rows, N sensors, F features, t rows in a block."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from socialx.core.errors import Command, Message, SocialxError, printable, sample
from socialx.files.store.open_hdf5 import check_dataset, check_links
from socialx.files.store.quantities import NOT_NEGATIVE, SPEED, highest_reading

FEATURES, VDIDS, FEATURE_NAMES = "data/features", "metadata/vdids", "metadata/feature_names"
FLAT = ("features", "dates", "sensors")  # the root of the oldest files, before there were groups
FLAT_NAMES = ["avg_speed", "lanes", "length", "latitude", "longitude", "direction"]  # of their features
TIMESTAMPS, SECONDS, SENSOR_INFO = "metadata/timestamps", "metadata/timestamps_epoch", "metadata/vd_info"
UNITS = "metadata/units"
COMBINED = "metadata/combined_lanes"  # the names of the lanes of which each sensor's readings were made
PARTS = (FEATURES, VDIDS, FEATURE_NAMES, TIMESTAMPS, SECONDS, UNITS, COMBINED, *FLAT)  # every dataset that is read
ROWS_ATTR, MISSING_ATTR, IMPUTED_ATTR = "num_timesteps", "missing_value", "imputed"
LOCAL_ZONE_ATTR = "local_zone"  # by whose clock people live, in a file of times in UTC
TABLE_ATTR = "table"  # what the source's tables hold, as JSON, by which append reads later ones
CODES_ATTR = "missing_codes"  # numbers that stood for no reading too; they are NaN in the file, and append applies them
DIRECTIONS = {"N": 0.0, "E": 90.0, "S": 180.0, "W": 270.0}  # degrees clockwise from north
STATIC_UNITS = {"lanes": "count", "length": "miles"} | dict.fromkeys(("latitude", "longitude", "direction"), "degrees")
UNKNOWN = "unknown"  # a unit that a file does not say, and what ``imputed`` says where it cannot be told
CRS_ATTR, CRS = "coord_crs", "EPSG:4326"  # of the positions in vd_info
ENTRY = (
    "position_lat",
    "position_lon",
    "lanes",
    "length",
    "direction",
    "road",
)  # the attributes in a sensor's entry there
PACKED = {"compression": "gzip", "compression_opts": 1, "fletcher32": True}  # any HDF5 reads it, bit flips raise


@dataclass(frozen=True, eq=False)
class Sensors:
    """The N sensors in column order; NaN or an empty text means unknown, None means that the column is absent."""

    ids: tuple[str, ...]
    latitude: np.ndarray  # float64 [N], degrees
    longitude: np.ndarray
    lanes: np.ndarray | None = None
    length: np.ndarray | None = None
    direction: tuple[str, ...] | None = None
    road: tuple[str, ...] | None = None

    def select(self, columns: np.ndarray) -> Sensors:
        """Return the sensors in ``columns``, in this order."""
        fields: dict[str, Any] = {name: values for name, values in vars(self).items() if values is not None}
        for name, values in fields.items():
            fields[name] = tuple(values[column] for column in columns) if isinstance(values, tuple) else values[columns]
        return replace(self, **fields)


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive source rows: seconds int64 [t], values float32 [t,N,F].

    Seconds count from 1970, with wall times read as UTC.
    """

    seconds: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Readings:
    """The content of a source. ``blocks`` can be walked once, and at most a part of the file is in memory."""

    dataset_name: str
    feature_set: str
    sensors: Sensors
    blocks: Generator[Block, None, None]
    units: Mapping[str, str]  # by feature in the blocks
    missing: float | None  # the missing value; NaN always counts as missing
    timezone: str | None
    source_data: str
    source_meta: str
    inputs: tuple[Path, ...] = ()  # every file read, to protect from overwriting
    lanes: tuple[str, ...] | None = None  # lane names by combined sensor
    local_zone: str | None = None  # local time zone for times in UTC
    codes: tuple[float, ...] = ()  # further missing-value codes, NaN in the blocks
    table: str = ""  # what the source's tables hold, as JSON; empty for other sources
    notes: tuple[Message | str, ...] = ()  # recognised facts and assumptions

    @property
    def feature(self) -> str:
        """The first feature."""
        return next(iter(self.units))


def is_reading(values: np.ndarray, missing: float | None) -> np.ndarray:
    """Return the mask of observed values, bool in equal shape: finite, and unlike ``missing`` unless None."""
    valid = np.isfinite(values)
    valid &= values != np.float32(np.nan if missing is None else missing)
    return valid


def is_code(values: np.ndarray, features: Sequence[str], codes: Sequence[float]) -> np.ndarray:
    """Return the mask of values [..., F] that equal a missing-value code, bool in equal shape.

    Among several features, 0 is a code for speed alone.
    """
    matches = np.zeros(values.shape, bool)
    for index, feature in enumerate(features):
        feature_codes = [code for code in codes if code != 0 or feature == SPEED or len(features) == 1]
        matches[..., index] = np.isin(values[..., index].astype(np.float32), np.array(feature_codes, np.float32))
    return matches


def check_parts(path: Path, file: h5py.File) -> None:
    """Raise SocialxError for links, values in other files, and datasets declared larger than the file can hold."""
    check_links(path, file, ("data", "metadata", *FLAT))
    for name in PARTS:
        if isinstance(part := file.get(name), h5py.Dataset):
            check_dataset(path, part, "convert its source again")


def read_layout(
    path: Path, file: h5py.File, flat: bool = False
) -> tuple[h5py.Dataset, tuple[str, ...], list[str], np.ndarray]:
    """Return features [T,N,F], ids [N], feature names [F] and timestamps S19 [T], with checked shapes.

    flat: expect the oldest layout; otherwise a flat file raises SocialxError.
    """
    for group in file.values():
        if isinstance(group, h5py.Group) and ("axis0" in group or "table" in group):
            remedy = Command("convert", "auto", path, meta_csv="LOCATIONS.csv", output="OUT.h5")
            raise SocialxError("file.hdfstore", path, "this is a pandas HDFStore, not a socialx file", remedy)
    check_parts(path, file)
    if set(FLAT) <= set(file) and not flat:
        raise SocialxError("file.older", path, "this is an older flat file", Command("backfill", path, rewrite=True))
    whole = FLAT[0] if flat else FEATURES
    axes = {FLAT[1]: 0, FLAT[2]: 1} if flat else {VDIDS: 1, FEATURE_NAMES: 2, TIMESTAMPS: 0}
    if lacking := [name for name in (whole, *axes) if not isinstance(file.get(name), h5py.Dataset)]:
        raise SocialxError("file.lacks", path, f"the file lacks {', '.join(lacking)}", "convert its source again")
    features, shape = file[whole], file[whole].shape
    right = len(shape) == 3 and features.dtype.kind == "f" and (not flat or shape[2] == len(FLAT_NAMES))
    for name, axis in axes.items():
        text = h5py.check_string_dtype(file[name].dtype)
        if not right or not text or file[name].shape != shape[axis : axis + 1]:
            differ = f"{whole} is {features.dtype} {shape}, {name} is {file[name].dtype} {file[name].shape}"
            raise SocialxError("file.shapes", path, f"types or shapes do not agree ({differ})", "convert it again")
    texts = {axis: [read_text(item) for item in file[name][:]] for name, axis in axes.items()}
    timestamps, ids, names = texts[0], texts[1], texts.get(2, FLAT_NAMES)
    if repeated := [vdid for vdid, count in Counter(ids).items() if count > 1]:
        raise SocialxError("file.twice", path, f"sensors appear twice ({sample(repeated)})", "convert it again")
    if 0 in shape:
        raise SocialxError("file.nothing", path, f"the file holds nothing {shape}", "convert it again")
    # Older files may write 2025-03-18T00:46:11+08:00: the wall time is what counts.
    wall = [text[:19].replace("T", " ").encode("ascii", "replace") for text in timestamps]
    return features, tuple(ids), names, np.array(wall, "S19")


def fixed_texts(texts: Sequence[str | bytes]) -> np.ndarray:
    """Encode texts as UTF-8 with a common width from 64 bytes, bytes [n]; the dtype marks text beyond ASCII."""
    encoded = [text if isinstance(text, bytes) else text.encode() for text in texts]
    width = max([64, *map(len, encoded)])
    return np.array(encoded, f"S{width}" if all(map(bytes.isascii, encoded)) else h5py.string_dtype("utf-8", width))


def plain_text(text: str) -> str:
    """Return storable text: invalid UTF-8 bytes from file names become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_text(value: object) -> str:
    """Return an attribute or dataset element as printable text."""
    return printable(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))


def read_units(file: h5py.File) -> dict[str, str]:
    """Return the stated units by feature name; empty where the file states no units."""
    units = file.get(UNITS)
    try:
        return {printable(name): printable(str(unit)) for name, unit in json.loads(read_text(units[()])).items()}
    except (TypeError, ValueError, AttributeError):
        return {}


def read_unit(file: h5py.File, feature: str) -> str:
    """Return a feature's unit, "unknown" where the file leaves the unit open."""
    return read_units(file).get(feature, UNKNOWN)


def read_codes(path: Path, file: h5py.File) -> list[float]:
    """Return the numbers, besides the missing value, that meant a missing observation at conversion."""
    codes = np.asarray(file["metadata"].attrs.get(CODES_ATTR, ())).ravel()
    if codes.dtype.kind not in "iuf":
        raise SocialxError("file.codes", path, f"the attribute {CODES_ATTR} has no numbers", "convert its source again")
    return [float(code) for code in codes]


def read_entry(info: h5py.Group, vdid: str) -> dict[str, object]:
    """Return a sensor's attributes in vd_info by name; low-level calls take a quarter of the time."""
    entry = h5py.h5o.open(info.id, vdid.encode("utf-8", "surrogateescape"))
    count, number, attributes = h5py.h5a.get_num_attrs(entry), np.empty(()), dict[str, object]()
    for name in ENTRY:
        if len(attributes) < count and h5py.h5a.exists(entry, name.encode()):
            attribute = h5py.h5a.open(entry, name.encode())
            with suppress(TypeError, OSError, RuntimeError):  # no number, which h5py reads or refuses
                if attribute.get_storage_size() == number.nbytes:
                    attribute.read(number, h5py.h5t.NATIVE_DOUBLE)
                    attributes[name] = float(number)
                    continue
            attributes[name] = info[vdid].attrs[name]
    return attributes


def read_lanes(path: Path, file: h5py.File, sensors: int) -> list[str] | None:
    """Return the names of the lanes combined in each of the N ``sensors``; None where sensors are single detectors."""
    if (lanes := file.get(COMBINED)) is None:
        return None
    if not isinstance(lanes, h5py.Dataset) or lanes.shape != (sensors,) or h5py.check_string_dtype(lanes.dtype) is None:
        raise SocialxError("file.lanes", path, f"{COMBINED} is not a text for each sensor", "convert its source again")
    return [read_text(names) for names in lanes[:]]


def read_number(value: object) -> float:
    """Return an attribute as a number, else NaN."""
    if isinstance(value, complex | np.complexfloating):
        return np.nan  # NumPy would warn and drop a part of it
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return np.nan


def impossible(values: np.ndarray, feature: str, unit: str, largest: float = np.inf) -> np.ndarray:
    """Return the mask of numbers that no road has, bool like ``values``: below 0, too fast, or beyond ``largest``."""
    lowest, highest = 0 if feature in NOT_NEGATIVE else -largest, min(highest_reading(feature, unit), largest)
    return (values < lowest) | (values > highest)
