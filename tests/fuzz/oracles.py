"""What a command that ends well must have given, found without the readers of socialx.

pandas, NumPy, h5py and the csv module read the damaged input once more; an undamaged run says what a run must give.
Each function returns what is wrong, nothing where all is right.
"""

import csv
import io
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.data_files import timestamps
from tests.fuzz import drawn, results
from tests.fuzz.child import Outcome
from tests.fuzz.corpus import LOCATIONS, OUT, Case, Corpus

Reading = tuple[list[str], list[str], np.ndarray]  # ids, times, values


def _npy(path: Path) -> Reading:
    values = np.load(path, allow_pickle=False)
    values = values[..., 0] if values.ndim == 3 else values
    return (path.parent / "ids.txt").read_text("utf-8-sig").replace(",", " ").split(), timestamps(len(values)), values


def _hdfstore(path: Path) -> Reading:
    with h5py.File(path) as file:
        frame = next(group for group in file.values() if isinstance(group, h5py.Group) and "axis0" in group)
        labels, index = [_label(each) for each in frame["axis0"][:]], frame["axis1"]
        kind = index.attrs.get("kind", b"datetime64")
        kind = kind.decode() if isinstance(kind, bytes) else str(kind)
        unit = (re.search(r"\[(\w+)\]", kind) or [None, "ns"])[1]
        times = [str(time).replace("T", " ") for time in index[:].astype(f"M8[{unit}]").astype("M8[s]")]
        values = np.empty((len(index), len(labels)))
        for name in frame:
            if items := re.fullmatch(r"block(\d+)_items", name):
                columns = [labels.index(_label(each)) for each in frame[name][:]]
                values[:, columns] = frame[f"block{items[1]}_values"][:]
    return labels, times, values


def _label(found: Any) -> str:
    return found.decode().strip() if isinstance(found, bytes) else str(found).strip()


def converted(case: Case, folder: Path) -> list[str]:
    """The output of ``convert`` against another reading of its input."""
    path = folder / case.command.words[2]
    with h5py.File(folder / OUT) as file:
        values = file["data/features"][:, :, 0]
        ids, times = (list(file[f"metadata/{name}"].asstr()[:]) for name in ("vdids", "timestamps"))
        places = {
            vdid: (float(group.attrs["position_lat"]), float(group.attrs["position_lon"]))
            for vdid, group in file["metadata/vd_info"].items()
            if "position_lat" in group.attrs
        }
    wrong = _positions(folder / LOCATIONS, places) if LOCATIONS in case.command.words else []
    if case.command.oracle == "table":
        return wrong + drawn.differing(folder / OUT, path, case.base.spec)
    right_ids, right_times, right = {"npy": _npy, "hdfstore": _hdfstore}[case.command.oracle](path)
    with np.errstate(all="ignore"):
        right = right.astype(np.float32)
    rows = [row for row, time in enumerate(times) if time in right_times]  # others are missing, and written as such
    if ids != right_ids or [times[row] for row in rows] != right_times:
        return [*wrong, f"ids {ids[:4]} and times {times[:2]} are not {right_ids[:4]} and {right_times[:2]}"]
    same = np.array_equal(values[rows], right, equal_nan=True) and np.isnan(np.delete(values, rows, axis=0)).all()
    return wrong if same else [*wrong, "other readings"]


def _positions(path: Path, places: dict[str, tuple[float, float]]) -> list[str]:
    """Positions against the csv module, as far as the header names the usual columns."""
    text = path.read_text("utf-8-sig", "replace")
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if any(cell.strip() for cell in row)]
    names = [cell.strip().lower() for cell in rows[0]]
    if not {"sensor_id", "latitude", "longitude"} <= set(names):
        return []
    vdid, *axes = (names.index(name) for name in ("sensor_id", "latitude", "longitude"))
    known = {_number(row[vdid]): tuple(float(row[axis]) for axis in axes) for row in rows[1:]}
    other = [each for each, place in places.items() if known.get(_number(each)) != place]
    return [f"position {places[each]} of {each} is not {known.get(_number(each))}" for each in other]


def _number(text: str) -> str:
    text = text.strip()
    return str(int(text.partition(".")[0])) if re.fullmatch(r"[0-9]+(\.0*)?", text) else text


def backfilled(case: Case, folder: Path) -> list[str]:
    """The readings after ``backfill`` against those before, bit for bit; a file written anew holds their float32."""
    assert case.content is not None
    name = next(word for word in case.command.words if word.endswith(".h5"))
    original = folder / "original.h5"
    original.write_bytes(case.base.files[name] if case.target == LOCATIONS else case.content)
    if original.read_bytes() == (folder / name).read_bytes():  # nothing was missing
        return []
    with h5py.File(original) as old, h5py.File(folder / name) as new:
        before = old["data/features" if "data" in old else "features"]
        after = new["data/features"] if "data" in new else new["features"]
        one, other = before[:], after[:]
        rewritten = before.dtype != after.dtype
        if one.shape != other.shape:
            return [f"shape {other.shape} was {one.shape}"]
        if rewritten and before.dtype.kind in "fiu":  # of any size and order of bytes
            same = np.array_equal(one[..., 0].astype(np.float32), other[..., 0], equal_nan=True)
        else:
            same = one.dtype == other.dtype and one.tobytes() == other.tobytes()
    original.unlink()
    return [] if same else ["the readings changed"]


def as_undamaged(case: Case, folder: Path, stdout: str, right: results.Result) -> list[str]:
    """What a command gave for a damaged run or its data against what it gives for the undamaged one."""
    wrong = results.differing(results.RESULTS[case.command.oracle](folder, stdout), right)
    edited = Path(case.target).name == "settings.yaml"  # its owner may: other valid settings are other results
    # A whole file with other numbers, which no checksum of it can tell from the right one.
    if edited or (Path(case.target).suffix == ".h5" and not case.raw):
        wrong = [name for name in wrong if name in results.ALWAYS]
    return [f"{name} is not that of the undamaged run" for name in wrong[:2]]


def check(case: Case, folder: Path, outcome: Outcome, corpus: Corpus) -> list[str]:
    """What is wrong with what a command that ended well gave."""
    oracle = case.command.oracle
    if oracle in results.RESULTS:
        return as_undamaged(case, folder, outcome.stdout, corpus.expected[oracle])
    if oracle == "backfill":
        return backfilled(case, folder)
    return converted(case, folder) if oracle in ("table", "npy", "hdfstore") else []
