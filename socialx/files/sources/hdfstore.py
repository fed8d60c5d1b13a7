"""The pandas HDFStores by DCRNN (METR-LA, PEMS-BAY), in pandas' fixed format, read with h5py alone.

Nothing is unpickled: pandas' own reader would run code inside the file. A frame is an HDF5 group; T rows, N sensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from socialx.core.errors import Argument, Command, SettingsError, SocialxError, sample
from socialx.files.sources.contents import Contents, Format, read_blocks
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.head import FileHead
from socialx.files.store.ids import find_repeated
from socialx.files.store.open_hdf5 import check_dataset, open_hdf5
from socialx.files.store.quantities import KMH, QUANTITIES, SPEED

SPEED_KEYS = ("df", "speed")  # metr-la.h5 and pems-bay.h5 of DCRNN
ADVICE = "use metr-la.h5 or pems-bay.h5 as DCRNN published them, or make a frame (docs/how-to/recipes.md)"


def _read(request: ConvertOptions) -> Contents:
    """Read a frame; DCRNN's keys ``df`` and ``speed`` mean speed, else key, ``quantity`` or ``units`` decide."""
    path = request.data
    with open_hdf5(path, ADVICE) as file:
        key = _find_key(request, file)
        said = request.quantity or (SPEED if key in SPEED_KEYS else QUANTITIES.get(key))
        feature = said or (SPEED if request.units in KMH else None)
        if feature is None:
            asks = f"add {Argument('quantity', 'flow')} or {Argument('quantity', 'speed')}"
            raise SettingsError("pandas.quantity", path, f"the frame {key!r} does not say what it holds", asks)
        ids, times = _ids(path, file[key], "axis0"), _times(path, file[key])
        if twice := find_repeated(ids):
            raise SocialxError("pandas.twice", path, f"sensors are named more than once ({sample(twice)})", ADVICE)
        columns = _block_columns(path, file[key], ids, len(times))
    blocks = read_blocks(path, times, 8 * len(ids), partial(_rows, path, len(ids), columns))
    missing = next(iter(request.codes([feature])), None)
    return Contents(ids, len(ids), blocks, {feature: None}, times=times, missing=missing)


def _recognise(head: FileHead) -> str | None:
    """Return the form and keys of pandas frames, readable or not; None for a file without frames."""
    if head.kind != "hdf5":
        return None
    with suppress(SocialxError), open_hdf5(head.path, ADVICE) as file:
        for form, part in (("fixed", "axis0"), ("table", "table")):
            if keys := _groups(file, part):
                return f"a pandas HDFStore in {form} format, its key {sample(keys)}"
    return None


def _groups(file: h5py.File, part: str) -> list[str]:
    """Return the names of root groups that contain a member ``part``: axis0 in fixed format, else table."""
    return [key for key, group in file.items() if isinstance(group, h5py.Group) and part in group]


def _find_key(request: ConvertOptions, file: h5py.File) -> str:
    """Return the key that the user names, else the only key, else the only key for speeds. Raises SocialxError."""
    path, frames = request.data, _groups(file, "axis0")
    wanted = [key for key in frames if request.channel in (None, key)]
    speeds = [key for key in wanted if key in SPEED_KEYS and request.quantity in (None, SPEED)]
    for only in (wanted, speeds):
        if len(only) == 1:
            return only[0]
    if frames:
        problem = f"there are {len(frames)} frames in it ({sample(frames)})"
        raise SettingsError("pandas.several-frames", path, problem, f"name one with {Argument('channel', frames[0])}")
    if _groups(file, "table"):
        remedy = "write it with DataFrame.to_hdf(..., format='fixed')"
        raise SocialxError("pandas.table-format", path, "the HDFStore is in format='table', which is not read", remedy)
    if "data/features" in file:
        raise SocialxError("pandas.socialx-file", path, "this is already a socialx file", Command("inspect", path))
    raise SocialxError("pandas.none", path, f"HDF5 without a pandas frame ({sample(list(file)) or 'empty'})", ADVICE)


def _dataset(path: Path, frame: h5py.Group, name: str, dimensions: int) -> h5py.Dataset:
    """Return a frame's dataset ``name``; raise SocialxError unless it has this number of dimensions."""
    dataset = frame.get(name)
    if not isinstance(dataset, h5py.Dataset) or dataset.ndim != dimensions:
        state = f"has shape {dataset.shape}" if isinstance(dataset, h5py.Dataset) else "is not there"
        raise SocialxError("pandas.dataset", path, f"{frame.name}/{name} {state}, not a plain frame", ADVICE)
    check_dataset(path, dataset, ADVICE)
    return dataset


def _ids(path: Path, frame: h5py.Group, name: str) -> tuple[str, ...]:
    """Return the labels in a frame's dataset ``name`` as text; raise for mixed types, which pandas pickles."""
    labels = _dataset(path, frame, name, 1)
    if labels.dtype.kind == "S":
        return tuple(label.decode("utf-8", "replace") for label in labels[:])
    if labels.dtype.kind in "iu":
        return tuple(str(label) for label in labels[:])
    raise SocialxError("pandas.ids", path, f"{labels.name} holds {labels.dtype}, neither text nor integers", ADVICE)


def _times(path: Path, frame: h5py.Group) -> np.ndarray:
    """Return all times of a frame, int64 [T]; pandas before 3 writes untagged ns, pandas 3 mostly us."""
    index = _dataset(path, frame, "axis1", 1)
    kind = index.attrs.get("kind", b"")
    text = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    match = re.fullmatch(r"datetime64(?:\[(s|ms|us|ns)\])?", text)
    if not match or index.dtype != np.int64:
        raise SocialxError("pandas.times", path, f"{index.name} is {text or index.dtype!s}, not a time index", ADVICE)
    if "tz" in index.attrs:
        helps = f"write frame.tz_convert('UTC').tz_localize(None), and say {Argument('timezone', 'UTC')}"
        raise SocialxError("pandas.zone", path, f"{index.name} has a time zone, which is not read", helps)
    if not len(index):
        raise SocialxError("pandas.no-rows", path, f"{index.name} has no rows", ADVICE)
    moments = index[:].view(f"datetime64[{match[1] or 'ns'}]")
    seconds = moments.astype("datetime64[s]")
    right = (seconds == moments) & (seconds >= np.datetime64("0001-01-01")) & (seconds < np.datetime64("9999-12-31"))
    if not right.all():  # a fraction of a second, or NaT
        row = int(right.argmin())
        raise SocialxError("pandas.second", path, f"row {row + 1} has the time {moments[row]}, no whole second", ADVICE)
    return seconds.astype(np.int64)


def _block_columns(path: Path, frame: h5py.Group, ids: tuple[str, ...], rows: int) -> dict[str, np.ndarray]:
    """Map the name of each values dataset to the sensor columns of its items, int64.

    pandas keeps a values dataset per dtype, in any order. rows: the expected number T. Raises SocialxError where
    datasets and ids disagree, and unless each sensor occurs once.
    """
    column = {text: index for index, text in enumerate(ids)}
    columns = {}
    for items in sorted(name for name in map(str, frame) if re.fullmatch(r"block[0-9]+_items", name)):
        labels = _ids(path, frame, items)
        values = _dataset(path, frame, items.replace("items", "values"), 2)
        if values.shape != (rows, len(labels)) or values.dtype.kind not in "fiu" or not column.keys() >= set(labels):
            problem = f"{values.name} is {values.dtype} {values.shape} for {rows} rows and {len(labels)} sensors"
            raise SocialxError("pandas.no-plain-frame", path, f"{problem}, not a plain frame", ADVICE)
        columns[values.name] = np.array([column[label] for label in labels], np.int64)
    if sorted(np.concatenate([np.empty(0, np.int64), *columns.values()])) != list(range(len(ids))) or not ids:
        problem = f"the blocks of {frame.name} do not hold each of its {len(ids)} sensors once"
        raise SocialxError("pandas.blocks", path, problem, ADVICE)
    return columns


def _rows(path: Path, sensors: int, columns: Mapping[str, np.ndarray], part: slice) -> np.ndarray:
    """Return the readings in some rows, float32 [t,N,1]; columns: sensor columns by dataset."""
    values = np.empty((part.stop - part.start, sensors, 1), np.float32)
    with open_hdf5(path, ADVICE) as file:
        for name, places in columns.items():
            values[:, places, 0] = file[name][part]
    return values


TITLE = "a pandas HDFStore, as DCRNN published METR-LA and PEMS-BAY"
FORMATS = (Format("hdfstore", TITLE, _recognise, _read, takes=frozenset({"channel", "quantity"})),)
