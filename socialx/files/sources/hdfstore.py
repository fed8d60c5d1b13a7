"""The pandas HDFStores by DCRNN (METR-LA, PEMS-BAY) and LargeST, in pandas' fixed format, read with h5py alone.

Nothing is unpickled: pandas' own reader would run code inside the file. A frame is an HDF5 group; T rows, N sensors.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from socialx.core.errors import Command, Message, SocialxError, sample
from socialx.core.progress import work
from socialx.files.sources.contents import Contents, Format
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.head import FileHead
from socialx.files.store.ids import find_repeated
from socialx.files.store.layout import Block
from socialx.files.store.open_hdf5 import check_dataset, open_hdf5
from socialx.files.store.quantities import SPEED

BLOCK_BYTES = 1 << 23  # 8 MiB of float64 at once
SPEED_KEYS = ("df", "speed")  # metr-la.h5 and pems-bay.h5 of DCRNN
FLOW = "flow"
FLOW_NAME, RAW_NAME = "_his_", "_raw_"  # LargeST's ca_his_raw_2019.h5, sd_his_2019.h5
ADVICE = "use metr-la.h5 or pems-bay.h5 as DCRNN published them, or the CSV"


@dataclass(frozen=True)
class Frame:
    """A pandas frame in the file, checked: ids, times, and the places of the observations."""

    path: Path
    key: str
    ids: tuple[str, ...]
    times: np.ndarray  # int64 [T]
    places: dict[str, np.ndarray]  # name of a values dataset -> the column of each of its items


def _read(request: ConvertOptions) -> Contents:
    """Read speed or flow from the file's frame; ``_find_key`` chooses among several frames.

    The key ``df`` or ``speed``, which DCRNN uses, means speed, and ``_his_`` in the file name, which LargeST uses,
    means flow. Any other frame is taken for speed, with a note. The unit of a speed stays open, as HDFStores lack
    units.
    """
    frame = _open(request.data)
    contents = Contents(frame.ids, len(frame.ids), _blocks(frame), times=frame.times)
    path, name = frame.path, frame.path.name
    if frame.key in SPEED_KEYS:
        return contents
    if FLOW_NAME not in name:
        note = Message(path, f"the frame {frame.key!r} does not say what it holds: taken for {SPEED}")
        return replace(contents, notes=(note,))
    flow = f"taken for traffic flow, vehicles per step, because LargeST names such files *{FLOW_NAME}*"
    notes: list[Message | str] = [Message(path, flow)]
    if RAW_NAME not in name:
        made = "means over 15 minutes of the counts of 5 minutes, with 0 for what is missing"
        notes.append(f"{path}: LargeST's files without {RAW_NAME} in their name hold {made}")
    # 0 is what LargeST made of missing readings.
    return replace(contents, feature=FLOW, units="vehicles per step", notes=tuple(notes), missing=0.0)


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


def _open(path: Path) -> Frame:
    """Read ids, times and block columns of the chosen frame; the observations stay in the file."""
    with open_hdf5(path, ADVICE) as file:
        key = _find_key(path, file)
        ids = _ids(path, file[key], "axis0")
        if twice := find_repeated(ids):
            raise SocialxError(path, f"sensors are named more than once ({sample(twice)})", ADVICE)
        times = _times(path, file[key])
        return Frame(path, key, ids, times, _block_columns(path, file[key], ids, len(times)))


def _find_key(path: Path, file: h5py.File) -> str:
    """Return the key of the only frame, else of the only frame called df or speed. Raises for none and several."""
    frames = _groups(file, "axis0")
    preferred = [key for key in frames if key in SPEED_KEYS]
    if len(preferred) == 1 or len(frames) == 1:
        return (preferred or frames)[0]
    if frames:
        wanted = " or ".join(map(repr, SPEED_KEYS))
        raise SocialxError(path, f"there are {len(frames)} frames ({sample(frames)}), not one that is {wanted}", ADVICE)
    if _groups(file, "table"):
        remedy = "write it with DataFrame.to_hdf(..., format='fixed')"
        raise SocialxError(path, "the HDFStore is in format='table', which is not read", remedy)
    if "data/features" in file:
        raise SocialxError(path, "this is already a socialx file", Command("inspect", path))
    raise SocialxError(path, f"this is HDF5 without a pandas frame ({sample(list(file)) or 'empty'})", ADVICE)


def _dataset(path: Path, frame: h5py.Group, name: str, dimensions: int) -> h5py.Dataset:
    """Return a frame's dataset ``name``; raise SocialxError unless it has this number of dimensions."""
    dataset = frame.get(name)
    if not isinstance(dataset, h5py.Dataset) or dataset.ndim != dimensions:
        state = f"has shape {dataset.shape}" if isinstance(dataset, h5py.Dataset) else "is not there"
        raise SocialxError(path, f"{frame.name}/{name} {state}, not a plain frame", ADVICE)
    check_dataset(path, dataset, ADVICE)
    return dataset


def _ids(path: Path, frame: h5py.Group, name: str) -> tuple[str, ...]:
    """Return the labels in a frame's dataset ``name`` as text; raise for mixed types, which pandas pickles."""
    labels = _dataset(path, frame, name, 1)
    if labels.dtype.kind == "S":
        return tuple(label.decode("utf-8", "replace") for label in labels[:])
    if labels.dtype.kind in "iu":
        return tuple(str(label) for label in labels[:])
    raise SocialxError(path, f"{labels.name} holds {labels.dtype}, neither text nor integers", ADVICE)


def _times(path: Path, frame: h5py.Group) -> np.ndarray:
    """Return all times of a frame, int64 [T]; pandas before 3 writes untagged ns, pandas 3 mostly us."""
    index = _dataset(path, frame, "axis1", 1)
    kind = index.attrs.get("kind", b"")
    text = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    match = re.fullmatch(r"datetime64(?:\[(s|ms|us|ns)\])?", text)
    if not match or index.dtype != np.int64:
        raise SocialxError(path, f"{index.name} is {text or index.dtype!s}, not a time index", ADVICE)
    if "tz" in index.attrs:
        problem = f"{index.name} has a time zone, wall times are needed"
        raise SocialxError(path, problem, "write it with DataFrame.tz_localize(None)")
    if not len(index):
        raise SocialxError(path, f"{index.name} has no rows", ADVICE)
    moments = index[:].view(f"datetime64[{match[1] or 'ns'}]")
    seconds = moments.astype("datetime64[s]")
    right = (seconds == moments) & (seconds >= np.datetime64("0001-01-01")) & (seconds < np.datetime64("9999-12-31"))
    if not right.all():  # a fraction of a second, or NaT
        row = int(right.argmin())
        raise SocialxError(path, f"row {row + 1} has the time {moments[row]}, not whole seconds", ADVICE)
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
            raise SocialxError(path, f"{problem}, not a plain frame", ADVICE)
        columns[values.name] = np.array([column[label] for label in labels], np.int64)
    if sorted(np.concatenate([np.empty(0, np.int64), *columns.values()])) != list(range(len(ids))) or not ids:
        raise SocialxError(path, f"the blocks of {frame.name} do not hold each of its {len(ids)} sensors once", ADVICE)
    return columns


def _blocks(frame: Frame) -> Generator[Block, None, None]:
    """Yield times int64 [t] and observations float32 [t,N], about 8 MiB at once, in sensor order."""
    path, sensors, count = frame.path, len(frame.ids), len(frame.times)
    rows = max(BLOCK_BYTES // (8 * sensors), 1)
    with open_hdf5(path, ADVICE) as file, work(f"reading {path.name}", count, "rows") as bar:
        for first in range(0, count, rows):
            part = slice(first, min(first + rows, count))
            speeds = np.empty((part.stop - first, sensors), np.float32)
            for name, columns in frame.places.items():
                with np.errstate(over="ignore"):
                    speeds[:, columns] = file[name][part]
            yield Block(frame.times[part], speeds)
            bar.advance(len(speeds))


TITLE = "a pandas HDFStore, as DCRNN and LargeST published theirs"
FORMATS = (Format("hdfstore", TITLE, _recognise, _read, takes=frozenset()),)
