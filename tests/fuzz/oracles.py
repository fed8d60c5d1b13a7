"""What a command that ends well must have given, found without the readers of socialx.

pandas, NumPy, h5py and the csv module read the damaged input once more; an undamaged run says what a run must give.
Each function returns what is wrong, nothing where all is right.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd

from tests.fuzz import results
from tests.fuzz.child import Outcome
from tests.fuzz.corpus import LOCATIONS, OUT, Case, Corpus

Reading = tuple[list[str] | None, list[str] | None, np.ndarray]  # ids, times, values; None: the input has none
START = "2012-03-01T00:00"


def counted(rows: int) -> list[str]:
    """Times every five minutes from the start that the commands give."""
    times = np.datetime64(START, "s") + np.arange(rows) * np.timedelta64(300, "s")
    return [str(time).replace("T", " ") for time in times]


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _cells(path: Path) -> list[list[str]]:
    text = _text(path)
    header = text.partition("\n")[0]
    mark = max(",;\t", key=header.count)
    frame = pd.read_csv(io.StringIO(text), header=None, dtype=str, keep_default_na=False, sep=mark)
    if (frame.iloc[:, -1] == "").all():  # each line ends with a comma
        frame = frame.iloc[:, :-1]
    return [list(row) for row in frame.itertuples(index=False)]


NOTHING = {"", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none", "-", "--", "?"}


def _numbers(rows: list[list[str]]) -> np.ndarray:
    return np.array([[np.nan if cell.strip() in NOTHING else float(cell) for cell in row] for row in rows], np.float64)


def _plain(time: str) -> str:
    time = time.strip()  # white space around a cell is no part of it
    return time[:10] + " " + time[11:16] + ":" + (time[17:19] or "00")


def _timed(path: Path) -> Reading:
    header, *rows = _cells(path)
    return [cell.strip() for cell in header[1:]], [_plain(row[0]) for row in rows], _numbers([row[1:] for row in rows])


def _t_gcn(path: Path) -> Reading:
    header, *rows = _cells(path)
    return [cell.strip() for cell in header], counted(len(rows)), _numbers(rows)


def _matrix(path: Path) -> Reading:
    values = _numbers(_cells(path))
    return _ids(path), counted(len(values)), values


def _ids(path: Path) -> list[str] | None:
    """The ids that the command names; None where a case has them under another name."""
    ids = path.parent / "ids.txt"
    return ids.read_text(encoding="utf-8-sig").replace(",", " ").split() if ids.is_file() else None


def _plain_array(values: np.ndarray) -> np.ndarray:
    return values[..., 0] if values.ndim == 3 else values


def _npy(path: Path) -> Reading:
    values = _plain_array(np.load(path, allow_pickle=False))
    return _ids(path), counted(len(values)), values


def _npz(path: Path, pick: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Reading:
    with np.load(path, allow_pickle=False) as found:
        values = pick({name: found[name] for name in found.files})
    return _ids(path), None, values


def _series_of(members: dict[str, np.ndarray]) -> np.ndarray:
    (found,) = [each for each in members.values() if each.ndim in (2, 3) and each.size and each.dtype.kind in "fiu"]
    return _plain_array(found)


def _largest(members: dict[str, np.ndarray]) -> np.ndarray:
    return members["data"][..., 0].astype(np.float64) * members["std"].item() + members["mean"].item()


def _last_of(members: dict[str, np.ndarray]) -> np.ndarray:
    data = members["data"]
    return data if data.ndim == 2 else data[..., {3: 2, 1: 0, 2: 0}[data.shape[2]]]


def _hdfstore(path: Path) -> Reading:
    with h5py.File(path) as file:
        frame = next(group for group in file.values() if isinstance(group, h5py.Group) and "axis0" in group)
        labels = [_label(each) for each in frame["axis0"][:]]
        index = frame["axis1"]
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


def _libcity(path: Path) -> Reading:
    how: dict[str, Any] = {"encoding": "utf-8-sig", "encoding_errors": "replace"}  # of a cell that is not read
    frame = pd.read_csv(path, dtype=str, keep_default_na=False, **how)
    frame.columns = [name.strip() for name in frame.columns]
    places = pd.read_csv(path.with_suffix(".geo"), dtype=str, keep_default_na=False, encoding="utf-8-sig")
    ids = [text.strip() for text in places[places.columns[0]]]
    times = list(dict.fromkeys(frame["time"]))
    values = np.full((len(times), len(ids)), np.nan)
    row, column = {time: n for n, time in enumerate(times)}, {vdid: n for n, vdid in enumerate(ids)}
    channel = frame.columns[4]
    for time, vdid, cell in zip(frame["time"], frame["entity_id"], frame[channel], strict=True):
        values[row[time], column[vdid.strip()]] = np.nan if cell.strip() in NOTHING else float(cell)
    seen = {vdid.strip() for vdid in frame["entity_id"]}  # sensors without rows are left out
    values, ids = values[:, [vdid in seen for vdid in ids]], [vdid for vdid in ids if vdid in seen]
    order = sorted(range(len(times)), key=lambda n: _plain(times[n]))
    return ids, [_plain(times[n]) for n in order], values[order]


READERS: dict[str, Callable[[Path], Reading]] = {
    "csv": _timed,
    "t-gcn": _t_gcn,
    "matrix": _matrix,
    "npy": _npy,
    "npy-first": lambda path: (_ids(path), None, _plain_array(np.load(path, allow_pickle=False))),
    "npz-any": lambda path: _npz(path, _series_of),
    "npz-first": lambda path: _npz(path, lambda members: _plain_array(members["data"])),
    "npz-last": lambda path: _npz(path, _last_of),
    "largest": lambda path: _npz(path, _largest),
    "hdfstore": _hdfstore,
    "libcity": _libcity,
}


# For inputs that damage made another format.
BY_FORMAT = {
    **{"csv": "csv", "published-csv": "csv", "t-gcn": "t-gcn", "matrix-csv": "matrix", "hdfstore": "hdfstore"},
    **{"npy": "npy", "pems-npz": "npz-last", "torch-mts": "npz-first", "largest-npz": "largest", "pyg-t": "npy-first"},
}


def converted(case: Case, folder: Path, stderr: str) -> list[str]:
    """The output of ``convert`` against another reading of its input."""
    words = case.command.words
    path = folder / words[2]
    if path.is_dir():
        return []
    oracle = case.command.oracle
    if words[1] == "auto":  # damage may make it another format
        said = re.search(r"\(([a-z0-9-]+)\)$", stderr.split("\n")[0])
        if said and said[1] == "csv" and "commas between cells, a column per sensor" not in stderr:
            return []  # no other reader here finds out how a table is written
        oracle = BY_FORMAT.get(said[1], oracle) if said and said[1] != case.base.name else oracle
    if oracle == "csv" and re.search("left out|times are read as", stderr):
        return []
    with h5py.File(folder / OUT) as file:
        speeds = file["data/features"][:, :, 0]
        ids = [each.decode() for each in file["metadata/vdids"][:]]
        times = [each.decode() for each in file["metadata/timestamps"][:]]
        places = {
            vdid: (float(group.attrs["position_lat"]), float(group.attrs["position_lon"]))
            for vdid, group in file["metadata/vd_info"].items()
            if "position_lat" in group.attrs
        }
    expected_ids, expected_times, values = READERS[oracle](path)
    if expected_times is not None and "an earlier one, which is kept" in stderr:  # repeated rows
        once = [place for place, time in enumerate(expected_times) if time not in expected_times[:place]]
        expected_times, values = [expected_times[place] for place in once], values[once]
    if said := re.search(r"(\d+) missing rows? (?:is|are) written without readings", stderr):
        kept = [time in expected_times for time in times]
        if kept.count(False) != int(said[1]) or not np.isnan(speeds[np.logical_not(kept)]).all():
            return [f"{kept.count(False)} rows are not of the source, and {said[1]} are noted"]
        times, speeds = [time for time, known in zip(times, kept, strict=True) if known], speeds[kept]
    wrong = []
    with np.errstate(all="ignore"):
        expected = values.astype(np.float32)
    if expected_ids is not None and ids != expected_ids:
        wrong.append(f"ids {ids[:4]} are not {expected_ids[:4]}")
    if expected_times is not None and times != expected_times:
        wrong.append(f"times {times[:2]}.. ({len(times)}) are not {expected_times[:2]}.. ({len(expected_times)})")
    if speeds.shape != expected.shape:
        wrong.append(f"shape {speeds.shape} is not {expected.shape}")
    elif not np.array_equal(speeds, expected, equal_nan=True):
        place = np.argwhere(~((speeds == expected) | (np.isnan(speeds) & np.isnan(expected))))[0]
        wrong.append(f"value at {tuple(place)} is {speeds[tuple(place)]!r}, not {expected[tuple(place)]!r}")
    if LOCATIONS in words and "--without-positions" not in words:
        wrong += _positions(folder / LOCATIONS, places)
    return wrong


def _positions(path: Path, places: dict[str, tuple[float, float]]) -> list[str]:
    """Positions against the csv module, as far as the header names the usual columns."""
    text = _text(path)
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if any(cell.strip() for cell in row)]
    names = [cell.strip().lower() for cell in rows[0]]
    if not {"sensor_id", "latitude", "longitude"} <= set(names):
        return []
    known = {
        _number(row[names.index("sensor_id")]): (
            float(row[names.index("latitude")]),
            float(row[names.index("longitude")]),
        )
        for row in rows[1:]
    }
    return [
        f"position {place} of {vdid} is not {known.get(_number(vdid))}"
        for vdid, place in places.items()
        if known.get(_number(vdid)) != place
    ]


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


def mapped(case: Case, folder: Path) -> list[str]:
    """The points that ``inspect`` writes against the positions of the file; a sensor without one has no point."""
    features = json.loads((folder / results.MAP).read_text(encoding="utf-8"))["features"]
    name = next(word for word in case.command.words if word.endswith(".h5"))
    with h5py.File(os.fsencode(folder / name)) as file:
        info = {vdid: dict(group.attrs) for vdid, group in file["metadata/vd_info"].items()}
    found = {each["properties"]["id"]: each["geometry"]["coordinates"] for each in features}
    return [
        f"point {point} of {vdid}"
        for vdid, point in found.items()
        if point != [float(info[vdid]["position_lon"]), float(info[vdid]["position_lat"])]
    ]


def check(case: Case, folder: Path, outcome: Outcome, corpus: Corpus) -> list[str]:
    """What is wrong with what a command that ended well gave."""
    oracle = case.command.oracle
    if case.drawn:
        return case.drawn.wrong(folder / OUT)
    if oracle in results.RESULTS:
        return as_undamaged(case, folder, outcome.stdout, corpus.expected[oracle])
    if oracle == "positions":
        return mapped(case, folder)
    if oracle == "backfill":
        return backfilled(case, folder)
    if oracle in READERS:
        return converted(case, folder, outcome.stderr)
    return []
