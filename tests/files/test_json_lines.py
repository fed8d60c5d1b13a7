"""Objects of JSON: one in each line, an array of them, or one for each station; a row each."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from socialx.files.sources.tables import text_cells
from tests.commands import socialx as run
from tests.data_files import refusal
from tests.frames import IDS, converted, long, network, same


def json_lines(frame: pd.DataFrame, *, nulls: bool = True) -> str:
    rows = frame.reset_index().assign(time=lambda table: table["time"].astype(str)).to_dict("records")
    kept = [{k: v if v == v else None for k, v in row.items() if nulls or v == v} for row in rows]
    return "".join(json.dumps(row) + "\n" for row in kept)


@pytest.mark.parametrize("suffix", ["jsonl", "ndjson", "json", "jsonl.gz"])
@pytest.mark.parametrize("nulls", [True, False])
@pytest.mark.parametrize("wide", [True, False])
def test_lines_of_json_are_read(
    wide: bool, nulls: bool, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, path = network(), tmp_path / f"city.{suffix}"
    table = frame if wide else long(frame).drop(columns="volume").set_index("time")
    content = json_lines(table, nulls=nulls).encode()
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    same(converted(path), frame)
    monkeypatch.setattr(text_cells, "PIECE_BYTES", 500)
    same(converted(path), frame)


def test_numbers_are_those_of_their_texts(tmp_path: Path) -> None:
    values = ["61.123456789", "1e1", "-0.5", "7", "NaN", '"62.5"']
    rows = [f'{{"time":"2024-01-01 00:{5 * k:02}","a":{v},"b":1.5,"c":2.5}}' for k, v in enumerate(values)]
    (tmp_path / "city.jsonl").write_text("\n\n".join(rows))
    frame = converted(tmp_path / "city.jsonl")["a"].to_numpy()
    np.testing.assert_array_equal(frame, np.array([61.123456789, 10, -0.5, 7, np.nan, 62.5], np.float32))


def test_a_file_per_sensor_of_json(tmp_path: Path) -> None:
    frame, folder = network(), tmp_path / "city"
    folder.mkdir()
    for sensor in IDS:
        (folder / f"{sensor}.jsonl").write_text(json_lines(frame[[sensor]].rename(columns={sensor: "speed"})))
    same(converted(folder), frame)
    done = run("inspect", folder / f"{IDS[0]}.jsonl")
    assert "objects of JSON" in " ".join(done.stdout.split())


BAD = {
    '{"time":"2024-01-31 20:00:00","a":1,"a":2}': "line 56 has the key 'a' twice",
    '{"time":"2024-01-31 20:00:00","a":{"b":1}}': "line 56, column 'a' is '{...}', not a number",
    '{"time":"2024-01-31 20:00:00","a":[1]}': "line 56, column 'a' is '{...}', not a number",
    '{"time":"2024-01-31 20:00:00","a":true}': "line 56, column 'a' is 'true', not a number",
    '{"time":"2024-01-31 20:00:00","a":false}': "line 56, column 'a' is 'false', not a number",
    '{"time":"2024-01-31 20:00:00","x":1}': "line 56 has the key 'x', which the first objects do not have",
    '{"time":"2024-01-31 20:00:00","a":1': "line 56 is not a JSON object",
    "[" * 100_000: "line 56 is not a JSON object",
    "1": "line 56 is not a JSON object",
    '{"time":"2024-01-31 20:00:00","a":"x"}': "line 56, column 'a' is 'x', not a number",
    '{"a":1}': "line 56 has no 'time'",
    '{"time":"2024-01-31 20:00:00","a":Infinity}': "not a number",
}


# What is said of the same in line 1, by which the table is recognised.
FIRST = {
    '{"time":"2024-01-31 20:00:00","a":1': 'the text is not a JSON object (\'{"time":"2024-01-31 20:00:00","a":1',
    "[" * 100_000: "an array of JSON that holds no objects",
    "1": "no known format, it begins '1",
    '{"a":1}': "no table with a column of times; line 1 is '{\"a\":1}'",
}


@pytest.mark.parametrize("row", BAD)
@pytest.mark.parametrize("far", [True, False])
def test_a_bad_line_is_named(row: str, far: bool, tmp_path: Path) -> None:
    frame = network(80).rename(columns=dict(zip(IDS, "abcd", strict=True))).fillna(1.0)
    rows = json_lines(frame).splitlines()
    rows[55 if far else 0] = row
    (tmp_path / "city.jsonl").write_text("\n".join(rows))
    if '"x":' in row and not far:  # a sensor with one reading
        assert converted(tmp_path / "city.jsonl")["x"].notna().sum() == 1
        return
    words = BAD[row] if far else FIRST.get(row, BAD[row].replace("line 56", "line 1"))
    refusal(lambda: converted(tmp_path / "city.jsonl"), words)


def json_objects(frame: pd.DataFrame) -> list[dict]:
    return [json.loads(line) for line in json_lines(frame).splitlines()]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("wide", [True, False])
def test_an_array_of_objects(wide: bool, inside: bool, indent: int | None, tmp_path: Path) -> None:
    """Alone, or as the only array of objects in one object."""
    frame, path = network(), tmp_path / "city.json"
    rows = json_objects(frame if wide else long(frame).drop(columns="volume").set_index("time"))
    path.write_text(json.dumps({"count": len(rows), "rows": rows} if inside else rows, indent=indent))
    same(converted(path), frame)


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_objects_for_each_station(indent: int | None, tmp_path: Path) -> None:
    frame, path = network(), tmp_path / "city.json"
    stations = {vdid: json_objects(frame[[vdid]].rename(columns={vdid: "speed"})) for vdid in IDS}
    path.write_text(json.dumps(stations, indent=indent))
    same(converted(path), frame)
    path.write_text(json.dumps({**stations, "note": "made up"}, indent=indent))
    refusal(lambda: converted(path), str(path), "object 1, 4001, 4002, 4003, ... holds an object")


def nested(frame: pd.DataFrame) -> dict[str, object]:
    """The same readings as programs on the web send them: arrays and objects in one another."""
    cells = frame.astype(object).where(frame.notna(), None)
    times, columns = [f"{time:%Y-%m-%dT%H:%M:%S}" for time in frame.index], {s: cells[s].tolist() for s in IDS}
    rows = [{"time": t, **dict(zip(IDS, row, strict=True))} for t, row in zip(times, cells.to_numpy(), strict=True)]
    by_time = {s: dict(zip(times, columns[s], strict=True)) for s in IDS}
    rows_by_id = {s: [{"id": n, "t": t, "speed": v} for n, (t, v) in enumerate(by_time[s].items())] for s in IDS}
    return {
        "stations beside a count, with ids of rows": {
            "n": 4,
            "all": [{"id": s, "x": 1.5, "in": rows_by_id[s]} for s in IDS],
        },
        "arrays of each station": [{"station": s, "data": {"at": times, "speed": columns[s]}} for s in IDS],
        "speed and flow by station and time": {
            s: {t: {"speed": v, "flow": 7} for t, v in by_time[s].items()} for s in IDS
        },
        "in two envelopes, one without readings": {"answer": {"ok": True, "of": {**by_time, "none": {}}}},
        "columns": {"rows": 60, "time": times, **columns},
        "names beside rows": {"fields": ["time", *IDS], "records": [[*row.values()] for row in rows]},
        "index, names and rows": json.loads(frame.to_json(orient="split", date_format="iso")),
    }


@pytest.mark.parametrize("shape", nested(network()))
def test_arrays_and_objects_in_one_another(shape: str, tmp_path: Path) -> None:
    frame, path = network().round(9), tmp_path / "city.json"
    path.write_text(json.dumps(nested(frame)[shape]))
    same(converted(path), frame)


def test_readings_by_time_of_one_sensor(tmp_path: Path) -> None:
    frame, path = network()[["4002"]], tmp_path / "city.json"
    path.write_text(json.dumps({"4002": {str(t): None if v != v else v for t, v in frame["4002"].items()}}))
    same(converted(path), frame)


def test_ways_to_be_no_table(tmp_path: Path) -> None:
    """Columns of other lengths, a name that stands twice, and objects in one another without end."""
    for text, words in {
        '{"time": ["2024-01-31 20:00", "2024-01-31 20:05"], "a": [1]}': "holds an object",
        '{"names": ["time", "a", "a"], "rows": [["2024-01-31 20:00", 1, 2]]}': "has the key 'a' twice",
        '{"names": ["time", "a"], "rows": [["2024-01-31 20:00", 1], ["2024-01-31 20:05"]]}': "holds an object",
        '{"a": {}, "b": {}}': str(tmp_path),
        '{"a": ' * 900 + "1" + "}" * 900: str(tmp_path),
    }.items():
        (tmp_path / "city.json").write_text(text)
        refusal(lambda: converted(tmp_path / "city.json"), words)


def test_an_object_for_each_station(tmp_path: Path) -> None:
    """A time each, in files of one time."""
    for hour in (0, 1):
        stations = {vdid: {"time": f"2024-01-31 0{hour}:00", "speed": 50.5 + hour} for vdid in IDS}
        (tmp_path / f"{hour}.json").write_text(json.dumps(stations))
    frame = converted([tmp_path / "0.json", tmp_path / "1.json"])
    assert (sorted(frame.columns), frame.to_numpy().tolist()) == (sorted(IDS), [[50.5] * 4, [51.5] * 4])


@pytest.mark.parametrize("lines", [True, False])
def test_objects_in_objects_are_left_out_and_named(
    lines: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Socrata writes places beside readings; some rows may have none."""
    frame, path = network(), tmp_path / "city.json"
    rows = json_objects(long(frame).drop(columns="volume").set_index("time"))
    for number, row in enumerate(rows):
        row["place"] = {"type": "Point", "coordinates": [11.5, 48.1]} if number % 3 else None
    path.write_text("\n".join(map(json.dumps, rows)) if lines else json.dumps(rows))
    same(converted(path), frame)
    done = run("convert", "auto", path, "--without-positions", "--output-h5", tmp_path / "again.h5")
    assert f"{path}: objects in objects, left out: place" in done.stdout + done.stderr


def test_a_fault_in_an_array_names_its_object(tmp_path: Path) -> None:
    rows = json_objects(network(80).rename(columns=dict(zip(IDS, "abcd", strict=True))).fillna(1.0))
    for fault, words in (("x", "line 56, column 'a' is 'x', not a number"), (True, "line 56, column 'a' is 'true'")):
        rows[55]["a"] = fault
        (tmp_path / "city.json").write_text(json.dumps(rows))
        refusal(lambda: converted(tmp_path / "city.json"), words)


@pytest.mark.parametrize("text", ["[1, 2]", "[]", "{}", '[{"time":"2024-01-31 20:00","a":1}, 2]', '{"a": 1, "b": 2}'])
def test_json_without_a_table_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "city.json").write_text(text)
    refusal(lambda: converted(tmp_path / "city.json"), str(tmp_path / "city.json"))
