"""VDLiveList and VDList of Taiwan: lanes in snapshots of JSON or XML, codes, free clocks, stale detectors."""

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import h5py
import numpy as np
import pytest

import socialx as api
from socialx.files.sources import taiwan
from socialx.files.store.store import open_store
from tests.commands import works
from tests.data_files import refusal

IDS = ("VD-N1-S-103.670-M-LOOP", "VD-N1-N-198-O-SE-21-北上出口-彰化")
TIMES = [f"2024-01-31T00:{minute:02}:00+08:00" for minute in (0, 5, 10)]
SCHEMA = "http://traffic.transportdata.tw/standard/traffic/schema/"
NAN = float("nan")
Entry = dict[str, Any]


def lane(number: int, speed: object, occupancy: object, *volumes: object) -> Entry:
    vehicles = [{"VehicleType": kind, "Volume": volume} for kind, volume in zip("SLT", volumes, strict=False)]
    return {"LaneID": number, "LaneType": 1, "Speed": speed, "Occupancy": occupancy, "Vehicles": vehicles}


def detector(vdid: str, time: str, *lanes: Entry) -> Entry:
    return {"VDID": vdid, "LinkFlows": [{"LinkID": "1", "Lanes": [*lanes]}], "DataCollectTime": time}


def two(time: str, speed: float) -> list[Entry]:
    """Two detectors, the first of two lanes with 3 and 1 vehicles."""
    first = detector(IDS[0], time, lane(0, speed, 4, 2, 1), lane(1, speed + 4, 6, 1, 0))
    return [first, detector(IDS[1], time, lane(0, speed - 20, 8, 5))]


def xml(name: str, value: object) -> str:
    if isinstance(value, list):
        return f"<{name}>{''.join(xml(name.removesuffix('s'), each) for each in value)}</{name}>"
    inside = "".join(xml(*each) for each in value.items()) if isinstance(value, dict) else escape(str(value))
    return f"<{name}>{inside}</{name}>"


def as_xml(root: str, name: str, entries: list[Entry]) -> str:
    body = f"<UpdateTime>{TIMES[0]}</UpdateTime>{xml(name, entries)}"
    return f'<?xml version="1.0" encoding="utf-8"?>\n<{root} xmlns="{SCHEMA}">{body}</{root}>'


def as_json(root: str, name: str, entries: list[Entry]) -> str:
    return json.dumps({"UpdateTime": TIMES[0], name: entries}, ensure_ascii=False)


PLACES = [{"VDID": vdid, "PositionLon": 121.5 + n, "PositionLat": 25.1 + n} for n, vdid in enumerate(IDS)]
SNAPSHOTS = [two(time, 60.0 + n) for n, time in enumerate(TIMES)]
SPEEDS = [[61.0, 40.0], [62.0, 41.0], [63.0, 42.0]]  # (3 x + (x + 4)) / 4


def write(folder: Path, snapshots: list[list[Entry]] = SNAPSHOTS, places: list[Entry] | None = PLACES) -> Path:
    """A folder of snapshots, a folder each."""
    for number, entries in enumerate(snapshots):
        inner = folder / f"2024-01-31_{number:02}"
        inner.mkdir(parents=True)
        (inner / "VDLiveList.json").write_text(as_json("VDLiveList", "VDLives", entries))
        if places is not None:
            (inner / "VDList.json").write_text(as_json("VDList", "VDs", places))
    return folder


def convert(data: Path | list[Path], **options: Any) -> tuple[h5py.File, api.Conversion]:
    first = data if isinstance(data, Path) else data[0]
    target = first.parent / "out.h5"
    done = api.convert("auto", data, target, overwrite=True, **options)
    return h5py.File(target), done


def values(file: h5py.File, features: int = 1) -> list[Any]:
    return file["data/features"][:, :, :features].squeeze(-1 if features == 1 else ()).tolist()


def told(done: api.Conversion) -> str:
    return "\n".join(map(str, done.notes))


def test_lanes_become_detectors_with_their_positions(tmp_path: Path) -> None:
    file, done = convert(write(tmp_path / "in"))
    assert values(file) == SPEEDS
    store = open_store(tmp_path / "out.h5")
    assert (store.sensors.ids, store.unit, store.timezone, store.missing) == (IDS, "km/h", "Asia/Taipei", 0.0)
    assert (store.sensors.latitude.tolist(), store.sensors.longitude.tolist()) == ([25.1, 26.1], [121.5, 122.5])
    assert store.timestamps.astype(str).tolist() == [f"{time[:10]} {time[11:19]}" for time in TIMES]
    assert [names.decode() for names in file["metadata/combined_lanes"][:]] == ["0, 1", "0"]
    assert f"{IDS[0]}: 0, 1" in told(done)


def tree(folder: Path) -> Path:
    return write(folder / "in")


def flat(folder: Path, write_as: Callable[[str, str, list[Entry]], str], pack: bool = False) -> Path:
    (folder / "in").mkdir()
    texts = [write_as("VDLiveList", "VDLives", entries) for entries in SNAPSHOTS]
    for number, text in enumerate([*texts, write_as("VDList", "VDs", PLACES)]):
        path = folder / "in" / f"{number}.{'xml' if text.startswith('<') else 'json'}{'.gz' * pack}"
        path.write_bytes(gzip.compress(text.encode()) if pack else text.encode())
    (folder / "in" / ".hidden.json").write_text("{")
    return folder / "in"


def zipped(folder: Path) -> Path:
    source = write(folder / "in")
    with zipfile.ZipFile(folder / "in.zip", "w") as archive:
        for path in sorted(source.rglob("*.json")):
            archive.write(path, path.relative_to(source))
    return folder / "in.zip"


def of_the_ancestor(folder: Path) -> Path:
    source = write(folder / "in")
    for path in source.rglob("*.json"):
        name = {"VDLives": "LiveTrafficData", "VDs": "VDList"}
        content = {name.get(key, key): entries for key, entries in json.loads(path.read_text()).items()}
        path.write_text(json.dumps(content))
    return source


SHAPES: dict[str, Callable[[Path], Path]] = {
    "flat": lambda folder: flat(folder, as_json),
    "xml.gz": lambda folder: flat(folder, as_xml, pack=True),
    "zip": zipped,
    "ancestor": of_the_ancestor,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_file(tmp_path: Path, shape: str) -> None:
    works("convert", "auto", SHAPES[shape](tmp_path), "--output-h5", tmp_path / "out.h5")
    (tmp_path / "plain").mkdir()
    works("convert", "auto", tree(tmp_path / "plain"), "--output-h5", tmp_path / "tree.h5")
    found, want = open_store(tmp_path / "out.h5"), open_store(tmp_path / "tree.h5")
    assert found.values.tolist() == want.values.tolist() == SPEEDS
    assert (found.sensors.ids, found.sensors.latitude.tolist()) == (want.sensors.ids, want.sensors.latitude.tolist())
    assert found.timestamps.tolist() == want.timestamps.tolist()


def test_several_files_and_one_of_positions(tmp_path: Path) -> None:
    live = sorted(write(tmp_path / "in", places=None).rglob("VDLiveList.json"))
    (tmp_path / "at.csv").write_text("id,latitude,longitude\n" + "".join(f"{vdid},25,121\n" for vdid in IDS))
    file, _ = convert(live, meta_csv=tmp_path / "at.csv")
    assert values(file) == SPEEDS
    refusal(lambda: convert(tmp_path / "in"), "--meta-csv")
    refusal(lambda: convert(live[0], without_positions=True), "rows")


def test_several_quantities(tmp_path: Path) -> None:
    file, done = convert(write(tmp_path / "in"), channel="flow,speed,occupancy")
    names = [name.decode() for name in file["metadata/feature_names"][:3]]
    assert (names, values(file, 3)[0]) == (["flow", "avg_speed", "occupancy"], [[4.0, 61.0, 5.0], [5.0, 40.0, 8.0]])
    units = json.loads(file["metadata/units"][()])
    assert [units[name] for name in names] == ["unknown", "km/h", "%"]
    assert "unknown" in told(done)


@pytest.mark.parametrize("code", [-99, -1, "-99", 0, None, ""])
def test_a_code_is_no_reading(tmp_path: Path, code: object) -> None:
    snapshots = [*SNAPSHOTS[:2], two(TIMES[2], 62.0)]
    snapshots[2][0]["LinkFlows"][0]["Lanes"][1]["Speed"] = code
    snapshots[2][1]["LinkFlows"][0]["Lanes"][0]["Speed"] = code
    file, _ = convert(write(tmp_path / "in", snapshots))
    assert values(file)[2][0] == 62.0
    assert np.isnan(values(file)[2][1])


def test_times_with_another_offset_or_none_are_those_of_taiwan(tmp_path: Path) -> None:
    snapshots = [two("2024-01-30T16:00:00Z", 60.0), two("2024-01-31T00:05:00", 61.0), two(TIMES[2], 62.0)]
    file, _ = convert(write(tmp_path / "in", snapshots), timezone="Asia/Taipei")
    assert (values(file), file["metadata/timestamps"][0]) == (SPEEDS, b"2024-01-31 00:00:00")
    refusal(lambda: convert(tmp_path / "in", timezone="UTC"), "Asia/Taipei")


def test_a_stale_detector_is_read_once(tmp_path: Path) -> None:
    snapshots = [two(time, 60.0 + n) for n, time in enumerate(TIMES)]
    snapshots[1][1] = snapshots[2][1] = snapshots[0][1]
    done = works("convert", "auto", write(tmp_path / "in", snapshots), "--output-h5", tmp_path / "out.h5")
    assert np.isnan(open_store(tmp_path / "out.h5").values[:, 1]).tolist() == [False, True, True]
    assert "2 readings repeat" in done.stderr
    write(tmp_path / "other", [snapshots[0], [snapshots[1][0], two(TIMES[0], 99.0)[1]]])
    refusal(lambda: convert(tmp_path / "other"), IDS[1], "2024-01-31 00:00:00")


def test_a_detector_that_stands_still_since_long_ago_is_left_out(tmp_path: Path) -> None:
    snapshots = [two(time, 60.0 + n) for n, time in enumerate(TIMES)]
    for entries in snapshots:
        entries.append(detector("OLD", "2023-06-01T07:12:00+08:00", lane(0, 30, 1, 1)))
    file, done = convert(write(tmp_path / "in", snapshots), without_positions=True)
    assert file["data/features"].shape[:2] == (3, 2)
    assert "(OLD)" in told(done)


def test_clocks_that_run_freely_are_asked_about(tmp_path: Path) -> None:
    snapshots = [two(time, 60.0 + n) for n, time in enumerate(TIMES)]
    for n, entries in enumerate(snapshots):
        entries[1]["DataCollectTime"] = TIMES[n].replace(":00+08", f":{20 + n}+08")
    refusal(lambda: convert(write(tmp_path / "in", snapshots)), "5 min", "--round-times")
    file, done = convert(tmp_path / "in", round_times=True)
    assert values(file) == SPEEDS
    assert "5 min" in told(done)


BOMB = '<!DOCTYPE a [<!ENTITY b "bbbbbbbb"><!ENTITY c "&b;&b;&b;&b;">]><VDLiveList><VDLives>&c;</VDLives></VDLiveList>'
DAMAGED = {
    "cut": (as_json("", "VDLives", SNAPSHOTS[2])[:-40], "JSON"),
    "empty": ("", "JSON"),
    "bomb": (BOMB, "document"),
    "cut xml": (as_xml("VDLiveList", "VDLives", SNAPSHOTS[2])[:-40], "JSON"),
    "message": ('{"message": "API rate limit exceeded"}', "VDLives"),
    "deep": ("[" * 100_000, "JSON"),
    "no id": (as_json("", "VDLives", [detector("", TIMES[2], lane(0, 1, 1, 1))]), "it needs a VDID"),
    "no time": (as_json("", "VDLives", [detector("A", "", lane(0, 1, 1, 1))]), "a DataCollectTime such as"),
    "odd speed": (as_json("", "VDLives", [detector("A", TIMES[2], lane(0, "fast", 1, 1))]), "'fast'"),
    "a truth": (as_json("", "VDLives", [detector("A", TIMES[2], lane(0, True, 1, 1))]), "'True'"),
    "odd lanes": ('{"VDLives": [{"VDID": "A", "LinkFlows": {"Lanes": 1}}]}', "'A'"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_snapshot_is_named(tmp_path: Path, damage: str) -> None:
    data, (text, words) = write(tmp_path / "in"), DAMAGED[damage]
    path = data / "2024-01-31_02/VDLiveList.json"
    path.write_text(text)
    refusal(lambda: convert(data), f"{path}: ", words)
    assert not (tmp_path / "out.h5").exists()


def test_a_file_that_is_too_large_or_cannot_be_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = flat(tmp_path, as_json, pack=True)
    (data / "2.json.gz").write_bytes(gzip.compress(b"x" * 99)[:-9])
    refusal(lambda: convert(data), "read")
    monkeypatch.setattr(taiwan, "CONTENT_BYTES", 1 << 20)
    (data / "2.json.gz").write_bytes(gzip.compress(b" " * (1 << 21)))
    refusal(lambda: convert(data), "(more than 1 MiB)")


def test_positions_that_are_none_count_as_not_listed(tmp_path: Path) -> None:
    places = [PLACES[0], {"VDID": IDS[1], "PositionLat": 0, "PositionLon": "0"}]
    refusal(lambda: convert(write(tmp_path / "in", places=places)), f"({IDS[1]})")
    (tmp_path / "in/2024-01-31_00/VDList.json").write_text(as_json("", "VDs", PLACES))  # an earlier list knows it
    file, _ = convert(tmp_path / "in")
    assert values(file) == SPEEDS


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"units": "mph"}, "avg_speed"),
        ({"channel": "lorries"}, "speed,flow,occupancy"),
        ({"channel": "speed,speed"}, "speed,flow,occupancy"),
        ({"drop": ["1"]}, "says that itself"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, str], words: str) -> None:
    refusal(lambda: convert(write(tmp_path / "in"), **options), words)


def test_a_folder_without_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/VDList.json").write_text(as_json("", "VDs", PLACES))
    lacking = "VDLiveList"
    refusal(lambda: api.convert("taiwan-vd", tmp_path / "in", tmp_path / "out.h5"), lacking)
    none = write(tmp_path / "none", [[], []])
    refusal(lambda: api.convert("taiwan-vd", none, tmp_path / "out.h5"), lacking)
