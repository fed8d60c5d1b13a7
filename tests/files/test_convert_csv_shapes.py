"""CSV tables of other networks and T-GCN's without times: what is recognised, every cell, every refusal."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from socialx.core.errors import SettingsError
from socialx.files.sources.contents import Contents
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables import matrices, text_cells
from socialx.files.sources.tables import reader as tables
from socialx.files.sources.tables.columns import (
    BEHIND,
    CALENDAR,
    LANES,
    MAY_BE_SENSORS,
    NO_SENSOR,
    READING,
    ROW_NUMBER,
    SENSORS,
    column_quantity,
)
from socialx.files.store.head import read_head
from socialx.files.store.ids import match_key
from tests.array_files import joined
from tests.data_files import IDS, refusal, speeds, timestamps, write_csv
from tests.published_files import write_t_gcn

FORMATS = {format.name: format for format in (*tables.FORMATS, *matrices.FORMATS)}
START = "2012-03-01 00:00:00"


def read(name: str, path: Path, **said: object) -> Contents:
    return FORMATS[name].read(ConvertOptions(path, **said))  # type: ignore[arg-type]


def text_file(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def write_table(path: Path, times: list[str], values: np.ndarray, ids: tuple[str, ...] = IDS, corner: str = "") -> Path:
    path = write_csv(path, times, values, ids)
    path.write_text(corner + path.read_text())
    return path


def recognised(path: Path) -> dict[str, str]:
    head = read_head(path)
    return {name: reason for name, format in FORMATS.items() if (reason := format.recognise(head))}


TIME_FORMS = {
    "plain": lambda time: time,
    "T": lambda time: time.replace(" ", "T"),
    "minutes": lambda time: time[:16],
    "T minutes": lambda time: time[:16].replace(" ", "T"),
}


@pytest.mark.parametrize("form", TIME_FORMS)
@pytest.mark.parametrize("size", [1, 3000, 1 << 22])
def test_every_form_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, size: int) -> None:
    monkeypatch.setattr(text_cells, "PIECE_BYTES", size)
    values, times = speeds(150), timestamps(150)
    values[3, 1] = np.nan
    path = write_table(tmp_path / "mine.csv", list(map(TIME_FORMS[form], times)), values, corner="timestamp")
    assert recognised(path) == {"csv": "commas between cells, a column per sensor, times in 'timestamp'"}
    contents = read("csv", path)
    assert (contents.ids, contents.sensors) == (IDS, 3)
    assert (contents.feature, contents.units, contents.locations, contents.notes) == ("avg_speed", None, None, ())
    assert FORMATS["csv"].has_clock
    read_times, read_speeds = joined(contents)
    assert read_times == times
    assert read_speeds.tobytes() == values.astype(np.float32).tobytes()


@pytest.mark.parametrize("corner", ["", "date", "Unnamed: 0", "773869", "1"])
@pytest.mark.parametrize("ids", [("north", "VD-1", "VD-01"), ("a b", "\u65b0", "1e3"), ("1", "2", "3")])
def test_any_ids_and_any_corner(tmp_path: Path, corner: str, ids: tuple[str, ...]) -> None:
    path = tmp_path / "mine.csv"
    lines = [",".join((corner, *ids)), *(f"{time},1,,{row}.5" for row, time in enumerate(timestamps(5)))]
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    assert next(iter(recognised(path))) == ("published-csv" if not corner and ids[0] == "1" else "csv")
    contents = read("csv", path)
    assert contents.ids == ids
    times, values = joined(contents)
    assert times == timestamps(5)
    assert np.array_equal(values, [[1, np.nan, row + 0.5] for row in range(5)], equal_nan=True)


@pytest.mark.parametrize(("name", "corner", "form"), [("csv", "time", "T minutes"), ("published-csv", "", "plain")])
def test_quotes_windows_lines_and_blank_lines(tmp_path: Path, name: str, corner: str, form: str) -> None:
    one, other = map(TIME_FORMS[form], timestamps(2))
    text = f'\ufeff"{corner}","1","2"\r\n"{one}",1.5,"2.5"\r\n\r\n"{other}","nan",""\r\n \r\n'
    contents = read(name, text_file(tmp_path / "mine.csv", text))
    times, values = joined(contents)
    assert (contents.ids, times) == (("1", "2"), timestamps(2))
    assert np.array_equal(values, [[1.5, 2.5], [np.nan, np.nan]], equal_nan=True)


def test_the_published_shape(tmp_path: Path) -> None:
    values = speeds(30)
    path = write_csv(tmp_path / "METR-LA.csv", timestamps(30), values)
    assert recognised(path)["published-csv"] == "an empty header cell, then sensor ids; rows begin with a time"
    contents = read("published-csv", path)
    assert (contents.ids, contents.sensors, contents.feature, contents.units) == (IDS, 3, "avg_speed", None)
    assert (contents.locations, contents.notes) == (None, ())
    times, read_speeds = joined(contents)
    assert times == timestamps(30)
    assert read_speeds.tobytes() == values.astype(np.float32).tobytes()
    assert np.array_equal(joined(read("csv", path))[1], read_speeds)


@pytest.mark.parametrize("size", [1, 2000, 1 << 22])
def test_t_gcn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(text_cells, "PIECE_BYTES", size)
    values = speeds(300)
    values[7, 2] = np.nan
    path = write_t_gcn(tmp_path / "los_speed.csv", values)
    assert recognised(path) == {"t-gcn": "a header line of integer sensor ids only; rows of numbers without a time"}
    assert not FORMATS["t-gcn"].has_clock
    contents = read("t-gcn", path, first_time=START, step_s=300)
    assert (contents.ids, contents.sensors, contents.feature, contents.units) == (IDS, 3, "avg_speed", None)
    assert contents.notes == (f"{path}: the rows lack times and are counted from {START}",)
    times, read_speeds = joined(contents)
    assert times == timestamps(300)
    assert read_speeds.tobytes() == values.astype(np.float32).tobytes()


def test_t_gcn_needs_a_start_and_a_step(tmp_path: Path) -> None:
    path = write_t_gcn(tmp_path / "sz_speed.csv", speeds(3))
    refusal(lambda: read("t-gcn", path), str(path), "--first-time", "--freq")
    refusal(lambda: read("t-gcn", path, first_time=START), "--freq")
    with pytest.raises(SettingsError):
        read("t-gcn", path, first_time="yesterday", step_s=900)
    times, _ = joined(read("t-gcn", path, first_time="2015-01-01 00:00:00", step_s=900))
    assert times == timestamps(3, "2015-01-01", 15)


BAD = {
    ("csv", "header only"): ("time,a\n", "no row after the header (time,a)"),
    ("csv", "no header"): ("2012-03-01 00:00:00,1\n2012-03-01 00:05:00,2\n", "begins '2012-03-01 00:00:00,1'"),
    ("csv", "id twice"): ("time,7,a,07\n2012-03-01 00:00:00,1,2,3\n", "more than once (7, 07)"),
    ("csv", "positions"): ("id,lat,lng\n1,34,-118\n", "a table of positions"),
    ("csv", "late offset"): (
        "t,a\n2012-03-01T00:00,1\n2012-03-01T00:05-0800,1\n",
        "line 3 has the time '2012-03-01T00:05-0800'",
    ),
    ("csv", "two forms"): (
        "t,a\n2012-03-01T00:00,1\n2012-03-01 00:05,1\n",
        "line 3 has the time '2012-03-01 00:05', not",
    ),
    ("csv", "t"): ("t,a,b\n2012-03-01T00:00,1,2\n2012-03-01T00:05,1t,2\n", "line 3, column 'a' is '1t'"),
    ("csv", "comma in quotes"): ('t,a,b\n2012-03-01T00:00,"1,2"\n', "line 2 has 2 cells, not 3"),
    ("csv", "no text"): (b"t,\xe9\n\0", "no table with a column of times"),
    ("t-gcn", "a time column"): (",1,2\n2012-03-01 00:00:00,1,2\n", "sensor ids like ''"),
    ("t-gcn", "names"): ("time,1\n1,2\n", "sensor ids like 'time'"),
    ("t-gcn", "floats"): ("1.5,0.0\n1,2\n", "sensor ids like '1.5'"),
    ("t-gcn", "id twice"): ("1,0,0\n1,2,3\n", "more than once (0, 0)"),
    ("t-gcn", "text"): ("1,2\n5,6\n7,x\n", "line 3, column '2' is 'x', not a number"),
    ("t-gcn", "first column"): ("1,2\n5,6\nx,7\n", "line 3, column '1' is 'x', not a number"),
    ("t-gcn", "a late time"): ("1,2\n5,6\n2012-03-01 00:00:00,7\n", "line 3, column '1' is '2012-03-01 00:00:00'"),
    ("t-gcn", "byte order mark"): ("1,2\n\ufeff5,6\n", "line 2, column '1' is '\\ufeff5'"),
    ("csv", "byte order mark"): (
        "t,a\n2012-03-01T00:00,1\n\ufeff2012-03-01T00:05,2\n",
        "line 3 has the time '\\ufeff2012-03-01T00:05'",
    ),
    ("t-gcn", "late byte order mark"): ("1,2\n5,6\n\ufeff7,8\n", "line 3, column '1' is '\\ufeff7'"),
    ("t-gcn", "short"): ("1,2\n5,6\n7\n", "line 3 has 1 cells, not 2"),
    ("t-gcn", "long"): ("1,2\n5,6\n7,8,9\n", "line 3 has 3 cells, not 2"),
    ("t-gcn", "false"): ("1,2\n5,false\n", "line 2, column '2' is 'false'"),
}


@pytest.mark.parametrize(("name", "case"), BAD)
def test_a_bad_table(tmp_path: Path, name: str, case: str) -> None:
    content, words = BAD[name, case]
    path = tmp_path / "data.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    clock = {} if name == "csv" else {"first_time": START, "step_s": 300}
    refusal(lambda: list(read(name, path, **clock).blocks), str(path), words)


@pytest.mark.parametrize(
    "row",
    [
        "2012-03-01T00:00:00+08:00,1",
        "2012-03-01T00:00Z,1",
        "2012-03-01 00:00:00.000,1",
        "2012/03/01 00:00,1",
        '"2012-03-01 00:00","1,0"',
        "2012-03-01 00:00, 1 ",
    ],
)
def test_other_times_and_numbers_are_read(tmp_path: Path, row: str) -> None:
    contents = read("csv", text_file(tmp_path / "data.csv", f"time,a\n{row}\n"))
    times, values = joined(contents)
    assert (times, values.tolist()) == (["2012-02-29 16:00:00" if "+08" in row else "2012-03-01 00:00:00"], [[1.0]])


def test_a_blank_cell_is_no_reading(tmp_path: Path) -> None:
    text = "time,a,b\n2012-03-01 00:00,1, \n2012-03-01 00:05,NA ,NaT\n"
    _, values = joined(read("csv", text_file(tmp_path / "data.csv", text)))
    assert np.array_equal(values, [[1, np.nan], [np.nan, np.nan]], equal_nan=True)


def test_a_fault_far_down_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_cells, "PIECE_BYTES", 1000)
    for name, path, clock in (
        ("csv", write_csv(tmp_path / "a.csv", [time[:16] for time in timestamps(300)], speeds(300)), {}),
        ("t-gcn", write_t_gcn(tmp_path / "b.csv", speeds(300)), {"first_time": START, "step_s": 300}),
    ):
        lines = path.read_text().splitlines()
        lines[250] = lines[250].rpartition(",")[0] + ",x"
        path.write_text("\n".join(lines))
        contents = read(name, path, **clock)
        refusal(lambda blocks=contents.blocks: list(blocks), str(path), "line 251, column '717447' is 'x'")


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"\n\n\n", []),
        (b"1\n2\n3\n", []),  # ids, one per line
        (b"773869,767541,767542\n", []),  # ids in one line
        (b"1.0,0.5\n0.5,1.0\n", []),  # distances
        (b"1,0,0\n0,1,0\n", []),
        (b"ID,Lat,Lng\n1,34,-118\n", []),
        (b"index,sensor_id,latitude,longitude\n0,1,34,-118\n", []),
        (b"1,34.0,-118.0\n2,34.0,-118.0\n", []),
        (b"from,to,cost\n1,2,0.5\n", []),
        (b"1,2\n5,6,7\n", []),
        (b"1,2\n,6\n", []),
        (b"1,2\nx,6\n", []),
        (b"773869,767541\n5,nan\n", ["t-gcn"]),
        (b"773869,767541\n\n\n 5,\n", ["t-gcn"]),
        (b"12,45,33\n13,44,30\n", []),  # ids or readings
        (b"1200,4500\n1300,4400\n", []),
        (b",1,2\n", []),
        (b",1,2\n,5,6\n", []),
        (b",1,2\n2012-03-01T00:00:00,5,6\n", ["csv"]),
        (b",1,2\n2012-03-01 00:00:00Z,5,6\n", ["csv"]),
        (b",a,2\n2012-03-01 00:00:00,5,6\n", ["csv"]),
        (b",a,2\n7,5,6\n", []),
        (b"\x89HDF\r\n\x1a\n\x00\x00", []),
        (b"PK\x03\x04,\x00\n1,2\n", []),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'shape': (3,)}\n", []),
        (b"a,\x00\n1,\x00\n", []),
        (b'"1,2\n3,4\n', []),
    ],
)
def test_what_is_recognised(tmp_path: Path, content: bytes, names: list[str]) -> None:
    path = tmp_path / "data"
    path.write_bytes(content)
    assert list(recognised(path)) == names


def test_what_cannot_be_read_is_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "random").write_bytes(np.random.default_rng(0).bytes(100_000))
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").write_text("")
    assert recognised(tmp_path) == {}
    assert recognised(tmp_path / "random") == {}
    for path in (tmp_path / "gone", tmp_path / "empty", tmp_path / "loop", Path("/dev/null")):
        refusal(lambda path=path: recognised(path), str(path))
    refusal(lambda: read("csv", tmp_path / "random"), str(tmp_path / "random"))
    refusal(lambda: read("t-gcn", tmp_path / "gone"), "no such file")
    refusal(lambda: read("csv", text_file(tmp_path / "empty", "")), "the file is empty")


def is_of_sensor(name: str) -> bool:
    """Whether a name says nothing but that of a sensor."""
    others = (CALENDAR, SENSORS, MAY_BE_SENSORS, ROW_NUMBER, READING, LANES, NO_SENSOR)
    return bool(name) and not column_quantity(BEHIND.sub("", name)) and not any(form.fullmatch(name) for form in others)


names = st.text(st.characters(categories=("L", "N"), include_characters="-_ ."), min_size=1, max_size=8)
ids = st.lists(names.map(str.strip).filter(is_of_sensor), min_size=1, max_size=5, unique_by=match_key)
readings = st.floats(0, 300) | st.floats(0, 300, width=32) | st.just(np.nan) | st.integers(0, 99).map(float)
absent = st.sampled_from(text_cells.ABSENT)


@given(st.data(), ids, st.sampled_from(list(TIME_FORMS)), st.sampled_from(["time", "", "1"]), st.integers(1, 300))
def test_a_table_comes_back(data: st.DataObject, sensors: list[str], form: str, corner: str, size: int) -> None:
    rows = data.draw(st.lists(st.lists(readings, min_size=len(sensors), max_size=len(sensors)), min_size=1, max_size=6))
    lines = [",".join([corner, *sensors])]
    for time, row in zip(timestamps(len(rows)), rows, strict=True):
        texts = [data.draw(absent) if np.isnan(value) else repr(value) for value in row]
        lines.append(",".join([TIME_FORMS[form](time), *texts]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_cells, "PIECE_BYTES", size)
        path = text_file(Path(folder) / "data.csv", "\n".join(lines))
        if {"latitude", "lat"} & {text.lower() for text in sensors}:
            refusal(lambda: read("csv", path), "positions")
            return
        contents = read("csv", path)
        times, values = joined(contents)
    assert contents.ids == tuple(sensors)
    assert times == timestamps(len(rows))
    assert np.array_equal(values, np.array(rows).astype(np.float32), equal_nan=True)
