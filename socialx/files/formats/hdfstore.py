"""The pandas HDFStores of DCRNN (METR-LA, PEMS-BAY) and LargeST, in pandas' fixed format, read with h5py alone.

Nothing is unpickled: pandas' own reader would run code that a file brings along.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from socialx.errors import Command, SocialxError, sample
from socialx.files.convert_options import Request
from socialx.files.file_head import FileHead
from socialx.files.formats.contents import Contents, Format
from socialx.files.hdf5_layout import Block
from socialx.files.locations import repeated
from socialx.files.open_hdf5 import check_dataset, open_hdf5
from socialx.files.quantities import SPEED
from socialx.progress import work

BLOCK_BYTES = 1 << 23  # 8 MiB of float64 at once
SPEED_KEYS = ("df", "speed")  # metr-la.h5 and pems-bay.h5 of DCRNN
FLOW = "flow"
FLOW_NAME, RAW_NAME = "_his_", "_raw_"  # LargeST's ca_his_raw_2019.h5, sd_his_2019.h5
ADVICE = "use metr-la.h5 or pems-bay.h5 as DCRNN published them, or the CSV"


@dataclass(frozen=True)
class Frame:
    """A frame whose parts agree."""

    path: Path
    key: str
    ids: tuple[str, ...]
    unit: str  # of its times
    places: dict[str, np.ndarray]  # name of a values dataset -> the column of each of its items


def _read(request: Request) -> Contents:
    """The only frame, or the one of DCRNN; what it holds is known from DCRNN's key or LargeST's file name.

    No frame says its unit: anybody may call theirs df.
    """
    frame = _open(request.data, SPEED_KEYS)
    ids, blocks, times = frame.ids, _blocks(frame), partial(_times, frame)
    path, name = frame.path, frame.path.name
    if frame.key in SPEED_KEYS:
        return Contents(ids, len(ids), blocks, times=times)
    if FLOW_NAME not in name:
        note = f"{path}: the frame {frame.key!r} does not say what it holds: taken for {SPEED}"
        return Contents(ids, len(ids), blocks, notes=(note,), times=times)
    notes = [f"{path}: taken for traffic flow, vehicles per step, because LargeST names such files *{FLOW_NAME}*"]
    if RAW_NAME not in name:
        made = "means over 15 minutes of the counts of 5 minutes, with 0 for what is missing"
        notes.append(f"{path}: LargeST's files without {RAW_NAME} in their name hold {made}")
    # 0 is what LargeST made of missing readings.
    return Contents(ids, len(ids), blocks, FLOW, "vehicles per step", notes=tuple(notes), times=times, missing=0.0)


def _recognise(head: FileHead) -> str | None:
    """Also for a frame in format='table' or with parts missing, which the reader refuses: it says best why."""
    if head.kind != "hdf5":
        return None
    try:
        with open_hdf5(head.path, ADVICE) as file:
            frames, tables = _groups(file, "axis0"), _groups(file, "table")
    except SocialxError:
        return None
    if frames:
        return f"a pandas HDFStore in fixed format, its key {sample(frames)}"
    return f"a pandas HDFStore in table format, its key {sample(tables)}" if tables else None


def _groups(file: h5py.File, part: str) -> list[str]:
    """The keys of the groups that have ``part``."""
    return [key for key, group in file.items() if isinstance(group, h5py.Group) and part in group]


def _open(path: Path, expected: tuple[str, ...]) -> Frame:
    with open_hdf5(path, ADVICE) as file:
        key = _find_key(path, file, expected)
        ids = _ids(path, file[key], "axis0")
        if twice := repeated(ids):
            raise SocialxError(path, f"sensors named more than once ({sample(twice)})", ADVICE)
        return Frame(path, key, ids, _time_unit(path, file[key]), _places(path, file[key], ids))


def _find_key(path: Path, file: h5py.File, expected: tuple[str, ...]) -> str:
    frames = _groups(file, "axis0")
    known = [key for key in frames if key in expected]
    if len(known) == 1 or len(frames) == 1:
        return (known or frames)[0]
    if frames:
        wanted = " or ".join(map(repr, expected))
        raise SocialxError(path, f"{len(frames)} frames ({sample(frames)}), not one that is {wanted}", ADVICE)
    if _groups(file, "table"):
        raise SocialxError(
            path,
            "an HDFStore in format='table', which is not read",
            "write it with DataFrame.to_hdf(..., format='fixed')",
        )
    if "data/features" in file:
        raise SocialxError(path, "already a socialx file, nothing to convert", Command("inspect", path))
    raise SocialxError(path, f"an HDF5 file without a pandas frame ({sample(list(file)) or 'empty'})", ADVICE)


def _dataset(path: Path, frame: h5py.Group, name: str, dimensions: int) -> h5py.Dataset:
    dataset = frame.get(name)
    if not isinstance(dataset, h5py.Dataset) or dataset.ndim != dimensions:
        found = f"has shape {dataset.shape}" if isinstance(dataset, h5py.Dataset) else "is not there"
        raise SocialxError(path, f"{frame.name}/{name} {found}, not a plain frame", ADVICE)
    check_dataset(path, dataset, ADVICE)
    return dataset


def _ids(path: Path, frame: h5py.Group, name: str) -> tuple[str, ...]:
    """Column labels as text; pandas pickles labels of mixed type, and those stay closed."""
    labels = _dataset(path, frame, name, 1)
    if labels.dtype.kind == "S":
        return tuple(label.decode("utf-8", "replace") for label in labels[:])
    if labels.dtype.kind in "iu":
        return tuple(str(label) for label in labels[:])
    raise SocialxError(path, f"{labels.name} holds {labels.dtype}, neither text nor integers", ADVICE)


def _time_unit(path: Path, frame: h5py.Group) -> str:
    """numpy's name of the unit of the times: pandas before 3 writes ns without saying so, pandas 3 mostly us."""
    index = _dataset(path, frame, "axis1", 1)
    kind = index.attrs.get("kind", b"")
    text = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    match = re.fullmatch(r"datetime64(?:\[(s|ms|us|ns)\])?", text)
    if not match or index.dtype != np.int64:
        raise SocialxError(path, f"{index.name} is {text or index.dtype!s}, not a time index", ADVICE)
    if "tz" in index.attrs:
        raise SocialxError(
            path, f"{index.name} has a time zone, wall times are needed", "write it with DataFrame.tz_localize(None)"
        )
    return match[1] or "ns"


def _places(path: Path, frame: h5py.Group, ids: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Name of a values dataset -> the column of each of its items; pandas keeps one block per dtype, in any order."""
    column = {text: place for place, text in enumerate(ids)}
    rows = _dataset(path, frame, "axis1", 1).shape[0]
    places = {}
    for items in sorted(name for name in map(str, frame) if re.fullmatch(r"block[0-9]+_items", name)):
        labels = _ids(path, frame, items)
        values = _dataset(path, frame, items.replace("items", "values"), 2)
        if values.shape != (rows, len(labels)) or values.dtype.kind not in "fiu" or not column.keys() >= set(labels):
            raise SocialxError(
                path,
                f"{values.name} is {values.dtype} {values.shape} for {rows} rows and {len(labels)} sensors, "
                "not a plain frame",
                ADVICE,
            )
        places[values.name] = np.array([column[label] for label in labels], np.int64)
    if sorted(np.concatenate([np.empty(0, np.int64), *places.values()])) != list(range(len(ids))) or not ids:
        raise SocialxError(path, f"the blocks of {frame.name} do not hold each of its {len(ids)} sensors once", ADVICE)
    return places


def _times(frame: Frame) -> np.ndarray:
    """All times of a frame, S19 [T]."""
    with open_hdf5(frame.path, ADVICE) as file:
        return _timestamps(frame.path, file[frame.key]["axis1"][:], frame.unit, 0)


def _blocks(frame: Frame) -> Generator[Block, None, None]:
    path, sensors = frame.path, len(frame.ids)
    with open_hdf5(path, ADVICE) as file:
        index = file[frame.key]["axis1"]
        rows = max(BLOCK_BYTES // (8 * sensors), 1)
        with work(f"reading {path.name}", len(index), "rows") as bar:
            for first in range(0, len(index), rows):
                times = index[first : first + rows]
                speeds = np.empty((len(times), sensors), np.float32)
                for name, columns in frame.places.items():
                    with np.errstate(over="ignore"):
                        speeds[:, columns] = file[name][first : first + rows]
                yield Block(_timestamps(path, times, frame.unit, first), speeds)
                bar.advance(len(times))


def _timestamps(path: Path, times: np.ndarray, unit: str, first: int) -> np.ndarray:
    """int64 [t] since 1970 in ``unit`` -> S19 [t]; a fraction of a second or NaT has no such text."""
    moments = times.view(f"datetime64[{unit}]")
    seconds = moments.astype("datetime64[s]")
    right = (seconds == moments) & (seconds >= np.datetime64("0001-01-01")) & (seconds < np.datetime64("9999-12-31"))
    if not right.all():
        row = int(right.argmin())
        raise SocialxError(path, f"row {first + row + 1} has the time {moments[row]}, not whole seconds", ADVICE)
    return np.char.replace(np.datetime_as_string(seconds), "T", " ").astype("S19")


TITLE = "a pandas HDFStore, as DCRNN and LargeST published theirs"
FORMATS = (Format("hdfstore", TITLE, _recognise, _read, takes=frozenset()),)
