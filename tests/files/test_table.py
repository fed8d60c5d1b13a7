"""What is not as described is refused: by file, line and column, and with what helps."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from socialx.core.errors import SocialxError
from socialx.files.sources.tables.cells import take_sample
from socialx.files.sources.tables.spec import TableSpec
from socialx.files.sources.tables.table import fits
from tests.commands import Said
from tests.data_files import read_table as read

WIDE = TableSpec({"flow": "(?P<sensor>.+)"}, ("time",))
LONG = TableSpec({"flow": "q"}, ("time",), ("road",))
HEAD = "time,road,q\n"
TABLE = "time,A,B\n2024-03-04 00:00,1,2\n"


def refused(source: Any, spec: TableSpec, *words: str) -> Said:
    with pytest.raises(SocialxError) as raised:
        read(source, spec)
    message = raised.value.messages[0]
    assert message.remedy
    for word in words:
        assert word in str(message), str(message)
    return Said.of(message.text(), [message.code])


def written(tmp_path: Path, text: str | bytes, name: str = "a.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "cell", ["x", "inf", "-Infinity", "0x10", "1e999", "1_000", "12 km/h", "1,5", "1.000,5", "true", "\u0661"]
)
def test_a_cell_that_is_no_number_is_named(cell: str, tmp_path: Path) -> None:
    for quote in ('"', "" if "," not in cell else '"'):
        path = written(tmp_path, f"{TABLE}\n2024-03-04 01:00,3,{quote}{cell}{quote}\n")
        refused(path, WIDE, str(path), "line 4", "'B'")


@pytest.mark.parametrize("thousands", ["", "."])
def test_signs_are_as_described(thousands: str, tmp_path: Path) -> None:
    path = written(tmp_path, "time;A\n2024-03-04 00:00;1,5\n2024-03-04 01:00;1.5\n")
    refused(path, TableSpec({"flow": "A"}, ("time",), decimal=",", thousands=thousands), "line 3", "'A'", "1.5")


@pytest.mark.parametrize("kind", ["frame", "json", "xlsx", "parquet"])
def test_a_wrong_cell_elsewhere_is_named_by_its_row(kind: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"time": ["2024-03-04 00:00", "2024-03-04 01:00"], "A": ["1", "x"]})
    source: Any = frame
    if kind == "json":
        source = written(tmp_path, frame.to_json(orient="records", lines=True), "a.jsonl")
    elif kind == "xlsx":
        frame.to_excel(source := tmp_path / "a.xlsx", index=False)
    elif kind == "parquet":
        frame.to_parquet(source := tmp_path / "a.parquet")
    refused(source, WIDE, ", column 'A' is 'x'")
    if kind == "frame":
        refused(frame.assign(A=[1.0, np.inf]), WIDE, "2, column 'A' is 'inf'")
        refused(frame.assign(A=pd.to_datetime(frame.time)), WIDE, "column 'A'")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("noon,A,1", ["line 3", "'noon'"]),
        ("2024-03-04 25:00,A,1", ["line 3", "25:00"]),
        ("2024,A,1", ["line 3", "'2024'"]),
        ("now,A,1", ["line 3", "'now'"]),
        ("2024-03-04 01:00Z,A,1", ["line 3", "01:00Z"]),
        (",A,1", ["line 3", "no time"]),
        ("2024-03-04 01:00,,1", ["line 3", "no sensor"]),
        ("2024-03-04 01:00,A", ["line 3", "2 cells, not 3"]),
        ("2024-03-04 01:00,A,1,2", ["line 3", "4 cells, not 3"]),
    ],
)
def test_a_wrong_row_is_named(row: str, words: list[str], tmp_path: Path) -> None:
    refused(written(tmp_path, f"{HEAD}2024-03-04 00:00,A,1\n{row}\n"), LONG, "a.csv", *words)


@pytest.mark.parametrize(
    ("form", "text"), [("s", "x"), ("s", "1e20"), ("ms", "x"), ("excel", "-1"), ("%d.%m.%Y", "1.13.2024")]
)
def test_a_time_of_another_form_is_named(form: str, text: str, tmp_path: Path) -> None:
    refused(written(tmp_path, f"{HEAD}{text},A,1\n"), TableSpec({"flow": "q"}, ("time",), form=form), "line 2", text)


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + "2024-03-04,A,1\n")
    for spec in (
        TableSpec({"flow": "n"}, ("time",)),
        TableSpec({"flow": "q"}, ("when",)),
        TableSpec({"flow": "q"}, ("time",), only={"class": "1"}),
        TableSpec({"flow": r"V(?P<lane>\d)"}, ("time",)),
    ):
        assert refused(path, spec, "road").code == "table.no-column"
        assert not fits(spec, ["time", "road", "q"])
    assert fits(LONG, ["q", "road", "time"])


@pytest.mark.parametrize("header", ["time,A,A", "time,A,A.1"])
def test_two_columns_of_one_name_are_refused(header: str, tmp_path: Path) -> None:
    refused(written(tmp_path, f"{header}\n2024-03-04 00:00,1,2\n"), WIDE, "A")


def test_rows_that_a_column_tells_apart_name_it(tmp_path: Path) -> None:
    rows = "2024-03-04 00:00,A,car,12.5,80\n2024-03-04 00:00,A,lorry,13.5,70\n"
    path = written(tmp_path, f"time,road,class,length,q\n{rows}")
    refused(path, LONG, "line 2", "line 3", "80 and 70", "'class'", "--sensor-column class", "only")
    kept = read(path, TableSpec({"flow": "q"}, ("time",), ("road",), only={"class": "lorry"}))
    assert kept.values.tolist() == [[[70]]]
    assert read(path, TableSpec({"flow": "q"}, ("time",), ("road", "class"))).ids == ("A-car", "A-lorry")


def test_rows_of_other_files_that_differ_are_refused_and_equal_ones_count_once(tmp_path: Path) -> None:
    one, two = (written(tmp_path, f"{TABLE}", name) for name in ("a.csv", "b.csv"))
    assert "repeat" in str(read([one, two], WIDE).notes[0])
    two.write_text(TABLE.replace("1,2", "1,3"))
    assert refused([one, two], WIDE, "B ", "2024-03-04 00:00:00", "(2 and 3)").code == "table.two-rows"
    two.write_text(TABLE.replace("1,2", "1,"))
    refused([one, two], WIDE, "2 and none")


def test_rounding_that_puts_two_rows_together_says_how_many_and_what_holds_one_each(tmp_path: Path) -> None:
    rows = "".join(f"2024-03-04 00:{minute:02}:07,A,{minute}\n" for minute in range(0, 60, 3))
    path = written(tmp_path, HEAD + rows)
    refused(path, TableSpec({"flow": "q"}, ("time",), ("road",), round_s=300), "300 s", "8 readings", "180 s")


def test_the_hour_that_comes_twice_needs_its_zone(tmp_path: Path) -> None:
    wall = pd.date_range("2024-10-26 22:00", periods=20, freq="30min", tz="UTC").tz_convert("Europe/Paris")
    rows = "".join(f"{time:%Y-%m-%d %H:%M},{number}\n" for number, time in enumerate(wall))
    path = written(tmp_path, f"time,A\n{rows}")
    assert refused(path, WIDE, "timezone").code == "clock.twice"
    elsewhere = TableSpec({"flow": "A"}, ("time",), zone="America/New_York")
    assert refused(path, elsewhere, "right --timezone").code == "clock.twice"
    refused(written(tmp_path, f"time,A\n{''.join(sorted(rows.splitlines(keepends=True)))}"), WIDE, "2024-10-27 02:00")


def test_a_row_that_comes_again_by_day_is_kept_once(tmp_path: Path) -> None:
    path = written(tmp_path, "".join(f"2024-03-04 {hour}:00,A,1\n" for hour in (12, 13, 13, 14)).join([HEAD, ""]))
    assert read(path, LONG).values.ravel().tolist() == [1, 1, 1]


def test_sensors_one_after_the_other_are_no_hour_that_comes_twice(tmp_path: Path) -> None:
    times = pd.date_range("2024-03-04 00:00", periods=12, freq="5min").astype(str)
    files = [written(tmp_path, HEAD + "".join(f"{time},{road},1\n" for time in times), f"{road}.csv") for road in "AB"]
    assert read(files, LONG).values.shape == (12, 2, 1)


def test_a_lane_that_is_the_sum_of_the_others_is_refused(tmp_path: Path) -> None:
    lanes = np.random.default_rng(0).integers(1, 90, (40, 2))
    frame = pd.DataFrame(lanes, pd.date_range("2024-03-04", periods=40, freq="5min", name="time"), ["A_L1", "A_L2"])
    spec = TableSpec({"flow": r"(?P<sensor>.+)_L(?P<lane>\d)"}, ("time",))
    assert (read(frame, spec).values[:, 0, 0] == lanes.sum(axis=1)).all()
    assert refused(frame.assign(A_L3=lanes.sum(axis=1)), spec).code == "table.total"


def test_speeds_of_lanes_are_plain_means_where_a_flow_is_unknown() -> None:
    times = pd.date_range("2024-03-04", periods=4, freq="5min", name="time")
    frame = pd.DataFrame({"v1": 30.0, "q1": [3, 0, np.nan, 3], "v2": 50.0, "q2": [1.0, 0, 5, np.nan]}, times)
    frame.loc[times[3], "v2"] = np.nan
    spec = TableSpec({"speed": r"v(?P<lane>\d)", "flow": r"q(?P<lane>\d)"}, ("time",))
    speed, flow = read(frame, spec).values[:, 0].T
    assert speed.tolist() == [35, 40, 40, 30]
    np.testing.assert_array_equal(flow, [4, 0, np.nan, np.nan])


def test_what_does_not_fit_in_memory_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, TABLE + "2024-03-04 01:00,1,2\n" * 100_000)
    monkeypatch.setattr("socialx.files.sources.contents.LARGE_BYTES", 1000)
    monkeypatch.setattr("socialx.files.sources.tables.table.LARGE_BYTES", 1000)
    monkeypatch.setattr("socialx.core.environment.free_memory", lambda: 1_000_000)
    refused(path, WIDE, "GiB", "by month", "append")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "\n\n\n", ["no line"]),
        ("a.csv", "time,A\n", ["no row"]),
        ("a.csv", "time,A\n2024-03-04,1\n".encode("utf-16-le"), ["bytes of 0"]),
        ("a.csv.gz", gzip.compress(TABLE.encode(), mtime=0)[:-9], ["read"]),
        ("a.csv", "time,Zählung\n2024-03-04,1\n".encode("cp1252"), ["utf-8", "encoding"]),
        ("a.jsonl", '{"time": "2024-03-04", "A": 1}\n{"time"\n', ["line 2", "JSON"]),
        ("a.json", '[{"time": "2024-03-04", "A": 1}, 3]', ["object 2"]),
        ("a.jsonl", '{"time": "2024-03-04", "A": "\\ud800"}\n', ["line 1"]),
        ("a.jsonl", '{"time": "2024-03-04", "A": [5]}\n', ["[...]"]),
        ("a.jsonl", '{"time": "2024-03-04", "A": 1}\n' * 1000 + '{"time": "2024-03-05", "C": 1}\n', ["'C'"]),
        ("a.parquet", b"PAR1 and then nothing", ["parquet"]),
        ("a.xlsx", b"PK\x03\x04 and then nothing", ["workbook"]),
    ],
)
def test_a_damaged_file_is_named(name: str, content: str | bytes, words: list[str], tmp_path: Path) -> None:
    spec = TableSpec({"flow": "(?P<sensor>.+)"}, ("time",), encoding="utf-8" if "encoding" in words else "")
    refused(written(tmp_path, content, name), spec, name, *words)


def test_a_sample_shows_how_a_text_is_written(tmp_path: Path) -> None:
    rows = "".join(f"2024-03-04 00:{minute:02};{minute},5;ü\n" for minute in range(60))
    seen = take_sample(written(tmp_path, f"time;A;B\n{rows}Summe;5,0;\n".encode("cp1252")))
    assert (seen.kind, seen.names, seen.rows[1]) == ("text", ("time", "A", "B"), ("2024-03-04 00:01", "1,5", "ü"))
    assert seen.tail[-1] == ("Summe", "5,0", "")
    frame = take_sample(pd.DataFrame({"A": [1.0, np.nan]}, pd.to_datetime(["2024-03-04", "2024-03-05"])))
    assert (frame.kind, frame.names) == ("frame", ("time", "A"))
    assert frame.rows == (("2024-03-04 00:00:00", "1"), ("2024-03-05 00:00:00", ""))
