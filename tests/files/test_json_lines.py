"""Lines of JSON: an object per row, with a key per sensor or a row per reading."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from socialx.files.formats import text_cells
from tests.commands import socialx as run
from tests.data_files import refusal
from tests.frames import IDS, converted, long, network, same


def lines_of(frame: pd.DataFrame, *, nulls: bool = True) -> str:
    rows = frame.reset_index().assign(time=lambda each: each["time"].astype(str)).to_dict("records")
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
    content = lines_of(table, nulls=nulls).encode()
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    same(converted(path), frame)
    monkeypatch.setattr(text_cells, "PIECE_BYTES", 500)
    same(converted(path), frame)


def test_numbers_are_those_of_their_texts(tmp_path: Path) -> None:
    values = ["61.123456789", "1e1", "-0.5", "7", "NaN", '"62.5"']
    rows = [f'{{"time":"2024-01-01 00:{5 * k:02}","a":{v},"b":1.5,"c":2.5}}' for k, v in enumerate(values)]
    (tmp_path / "city.jsonl").write_text("\n\n".join(rows))
    found = converted(tmp_path / "city.jsonl")["a"].to_numpy()
    np.testing.assert_array_equal(found, np.array([61.123456789, 10, -0.5, 7, np.nan, 62.5], np.float32))


def test_a_file_per_sensor_of_json(tmp_path: Path) -> None:
    frame, folder = network(), tmp_path / "city"
    folder.mkdir()
    for sensor in IDS:
        (folder / f"{sensor}.jsonl").write_text(lines_of(frame[[sensor]].rename(columns={sensor: "speed"})))
    same(converted(folder), frame)
    done = run("inspect", folder / f"{IDS[0]}.jsonl")
    assert "lines of JSON" in " ".join(done.stdout.split())


BAD = {
    '{"time":"2024-01-31 20:00","a":1,"a":2}': "line 56 has the key 'a' twice",
    '{"time":"2024-01-31 20:00","a":{"b":1}}': "line 56, 'a' is neither a number nor a plain text",
    '{"time":"2024-01-31 20:00","a":[1]}': "line 56, 'a' is neither",
    '{"time":"2024-01-31 20:00","a":true}': "line 56, 'a' is neither",
    '{"time":"2024-01-31 20:00","x":1}': "line 56 has the key 'x', which the first lines do not have",
    '{"time":"2024-01-31 20:00","a":1': "line 56 is no object of JSON",
    "[" * 100_000: "line 56 is no object of JSON",
    "1": "line 56 is no object of JSON",
    '{"time":"2024-01-31 20:00","a":"x"}': "line 56, column 'a' is 'x', not a number",
    '{"a":1}': "line 56 has no 'time'",
    '{"time":"2024-01-31 20:00","a":Infinity}': "not a number",
}


@pytest.mark.parametrize("row", BAD)
@pytest.mark.parametrize("far", [True, False])
def test_a_bad_line_is_named(row: str, far: bool, tmp_path: Path) -> None:
    frame = network(80).rename(columns=dict(zip(IDS, "abcd", strict=True))).fillna(1.0)
    rows = lines_of(frame).splitlines()
    place = 55 if far else 0
    rows[place] = row
    (tmp_path / "city.jsonl").write_text("\n".join(rows))
    words = BAD[row].replace("line 56", f"line {place + 1}")
    if far:
        refusal(lambda: converted(tmp_path / "city.jsonl"), words)
    elif "first lines" not in words:
        refusal(lambda: converted(tmp_path / "city.jsonl"))


def test_an_array_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "city.json").write_text('[{"time":"2024-01-31 20:00","a":1}]')
    refusal(lambda: converted(tmp_path / "city.json"), "an array of JSON", "in a line of its own")
