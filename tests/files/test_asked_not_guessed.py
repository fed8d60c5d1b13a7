"""Times without a date, columns that pandas named, and cells that hold lists: refused, and never guessed."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import socialx
from socialx.core.errors import SocialxError
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables import grid, text_cells
from tests.data_files import refusal
from tests.evidence import advised, asked
from tests.frames import converted, long, network, same

NO_DATE = ["%H:%M", "%I:%M %p", "%H%M", "%H:%M:%S", "%S", "%d/%m %H:%M", "%b %d %H:%M", "%Y %H:%M", "%m/%Y %H:%M"]
WHOLE = ["%d/%m/%Y %H:%M", "%Y-%j %H:%M", "%d.%m.%y %H.%M", "%b %d %Y %I:%M%p", "%Y-%m-%dT%H:%M:%S%z", "%G-%V-%u %H:%M"]


@pytest.mark.parametrize("form", NO_DATE)
def test_a_format_without_a_date_is_refused(form: str) -> None:
    moment = datetime(2023, 3, 30, 13, 5)
    read = pd.to_datetime(moment.strftime(form), format=form)
    words = " and ".join(part for part in ("year", "month", "day") if getattr(read, part) != getattr(moment, part))
    for task in ("convert", "append"):
        refusal(
            lambda: ConvertOptions.from_call(task, "a.csv", {"time_format": form}),  # noqa: B023
            f"without {words}",
            "write the date",
        )


def test_a_format_of_half_days_needs_the_half() -> None:
    refusal(lambda: ConvertOptions.from_call("convert", "a.csv", {"time_format": "%Y-%m-%d %I:%M"}), "AM or PM", "%p")


@pytest.mark.parametrize("form", WHOLE)
def test_a_whole_format_is_read(form: str) -> None:
    assert ConvertOptions.from_call("convert", "a.csv", {"time_format": form}).time_format == form


@pytest.mark.parametrize("form", ["%H:%M", "%I:%M %p", "%H:%M:%S"])
@pytest.mark.parametrize("separator", [",", ";"])
def test_a_table_of_times_of_day_never_gets_a_date(tmp_path: Path, form: str, separator: str) -> None:
    frame = network().reset_index()
    frame["time"] = frame["time"].dt.strftime(form)
    path = tmp_path / "day.csv"
    frame.to_csv(path, index=False, sep=separator)
    for call in (
        lambda: socialx.convert("auto", path),
        lambda: converted(path),
        lambda: converted(path, time_column="time"),
        lambda: converted(path, time_format=form),
    ):
        with pytest.raises(SocialxError, match=r"(?s)without (?:a date|year and month and day).*try: write the date"):
            call()


@pytest.mark.parametrize("ids", [("400001", "400001.1"), ("S1", "S1.1", "S1.2"), ("1", "1.1"), ("7", "7.12")])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_name_that_pandas_gives_to_a_repeated_column_is_no_sensor(
    tmp_path: Path, ids: tuple[str, ...], suffix: str
) -> None:
    path, frame = tmp_path / f"city.{suffix}", network(ids=[*ids, "400", "500", "600"])
    frame.to_csv(path) if suffix == "csv" else frame.reset_index().to_parquet(path)
    copies = ids[1:]
    refusal(lambda: converted(path), "more than once", f"--drop {copies[0]}", "rename it")
    same(converted(path, drop=copies), frame.drop(columns=list(copies)))


@pytest.mark.parametrize("ids", [("1.1", "1.2"), ("S1.1", "S2"), ("12.1", "2"), ("7", "8.7"), ("1", "1.01")])
def test_an_id_with_a_point_is_one_where_the_bare_name_is_not_there(tmp_path: Path, ids: tuple[str, ...]) -> None:
    path, frame = tmp_path / "city.csv", network(ids=[*ids, "400", "500", "600"])
    frame.to_csv(path)
    same(converted(path), frame)


@pytest.mark.parametrize("memory", [0, 1 << 28])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_long_table_is_placed_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int, memory: int) -> None:
    """In memory and in a file; also where a time goes on in the next piece, or in the next file; in any order."""
    monkeypatch.setattr(text_cells, "PIECE_BYTES", 500)
    monkeypatch.setattr(grid, "MEMORY_BYTES", memory)
    frame, paths = network().round(2), []
    rows = long(frame)
    for number, part in enumerate([rows] if cut == 1 else [rows[:102], rows[102:]]):
        paths.append(tmp_path / f"{number}.csv")
        part.to_csv(paths[-1], index=False)
    same(converted(paths), frame)
    rows.iloc[::-1].to_csv(paths[0], index=False)
    same(converted(paths[0]), frame)
    rows.sample(frac=1, random_state=0).to_csv(paths[0], index=False)
    same(converted(paths[0]), frame)


LISTS = [[1.0, 2.0]] * 60
NESTED = {
    "list": pa.array(LISTS),
    "large list": pa.array(LISTS, pa.large_list(pa.float64())),
    "list of fixed size": pa.array(LISTS, pa.list_(pa.float64(), 2)),
    "struct": pa.array([{"a": 1.0}] * 60),
    "map": pa.array([[("a", 1.0)]] * 60, pa.map_(pa.string(), pa.float64())),
    "binary": pa.array([b"ab"] * 60),
    "binary of fixed size": pa.array([b"ab"] * 60, pa.binary(2)),
}


@pytest.mark.parametrize("kind", [*NESTED, "only lists"])
def test_a_parquet_file_with_more_than_a_value_in_a_cell_is_refused_in_a_line(tmp_path: Path, kind: str) -> None:
    path, frame = tmp_path / "city.parquet", network()
    columns = {"time": pa.array(frame.index), **{name: pa.array(frame[name]) for name in frame}}
    if kind == "only lists":
        columns = {"detector": pa.array(["a", "b"]), "times": pa.array([[1, 2]] * 2), "speeds": pa.array(LISTS[:2])}
    pq.write_table(pa.table(columns | {"odd": NESTED[kind]} if kind in NESTED else columns), path)
    named = "odd" if kind in NESTED else "times"
    for call in (lambda: socialx.convert("auto", path), lambda: converted(path), lambda: socialx.inspect(path)):
        refusal(call, named, "a row per time, sensor and reading")


def test_a_parquet_file_of_categories_is_read(tmp_path: Path) -> None:
    path, frame = tmp_path / "city.parquet", network()
    frame.reset_index().assign(remark=pd.Categorical(["A1"] * len(frame))).to_parquet(path)
    same(converted(path), frame)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", ["slot", "Intervall", "period", "nr"])
@pytest.mark.parametrize("layout", ["wide", "long"])
def test_a_column_that_counts_the_times_of_a_day_is_asked(tmp_path: Path, layout: str, name: str, first: int) -> None:
    frame = network(3 * 96, "2024-01-29", ids=["S1", "S2", "S3"])
    count = np.arange(len(frame)) % 96
    table = frame.reset_index(drop=True)
    table.insert(
        0,
        "date",
        [str(day)[:10] for day in pd.Timestamp("2024-01-29") + pd.to_timedelta(np.arange(len(frame)) // 96, "D")],
    )
    table.insert(1, name, count + first)
    if layout == "long":
        table = table.melt(["date", name], var_name="detector", value_name="speed")
    table.to_csv(tmp_path / "a.csv", index=False)
    refusal(lambda: converted(tmp_path / "a.csv"), f"write times such as 00:05 into {name!r} if it counts them")


PARTS = {
    "Time": lambda times: times.hour * 100 + times.minute,
    "Time (HHMM)": lambda times: times.strftime("%H%M"),
    "interval": lambda times: times.hour * 3600 + times.minute * 60,
    "Zeit": lambda times: times.hour * 60 + times.minute,
}
BESIDE_HOURS = {
    "quarter": lambda times: times.minute // 15 + 1,
    "start_minute": lambda times: times.minute,
    "AM/PM": lambda times: times.strftime("%p"),
}


@pytest.mark.parametrize("name", [*PARTS, *BESIDE_HOURS])
@pytest.mark.parametrize("sensors", [1, 2])
def test_a_part_of_the_time_of_day_is_never_taken_for_sensors(tmp_path: Path, name: str, sensors: int) -> None:
    half = name == "AM/PM"
    times = pd.date_range("2024-03-04", periods=288, freq="h" if half else "15min")
    table = pd.DataFrame({"date": times.strftime("%Y-%m-%d"), name: (PARTS | BESIDE_HOURS)[name](times)})
    if name in BESIDE_HOURS:
        table.insert(1, "hour", (times.hour - 1) % 12 + 1 if half else times.hour)
    table["volume"] = np.random.default_rng(3).integers(1, 900, len(table))
    if sensors > 1:
        table = pd.concat([table.assign(detector=f"D{number}") for number in range(sensors)])
    table.to_csv(tmp_path / "a.csv", index=False)
    refusal(lambda: converted(tmp_path / "a.csv"), f"write times such as 00:05 into {name!r} if it counts them")


@pytest.mark.parametrize("name", ["parameter", "what", "measurement"])
def test_quantities_in_rows_are_no_sensors(tmp_path: Path, name: str) -> None:
    table = long(network()).melt(["time", "sensor"], ["speed", "volume"], name, "value")
    table.to_csv(tmp_path / "a.csv", index=False)
    refusal(lambda: converted(tmp_path / "a.csv"), f"write a column for each {name!r}")


@pytest.mark.parametrize("kinds", [("mean", "std"), ("avg", "min", "max"), ("median", "p85"), ("Max", "Mean")])
@pytest.mark.parametrize("behind", [True, False])
def test_columns_of_several_statistics_are_asked(tmp_path: Path, kinds: tuple[str, ...], behind: bool) -> None:
    frame = network()
    parts = {
        f"{vdid}_{kind}" if behind else f"{kind}_{vdid}": frame[vdid] + index
        for vdid in frame
        for index, kind in enumerate(kinds)
    }
    pd.DataFrame(parts).to_csv(path := tmp_path / "a.csv")
    [way] = advised(asked(path, "several statistics"), path)
    first = [name for name in parts if kinds[0] in name]
    same(way(), frame.set_axis(first, axis=1))


@pytest.mark.parametrize("name", ["flow_R{}", "volume dir{}", "count_direction_{}", "flow Richtung {}"])
def test_flows_of_directions_are_not_summed_as_lanes_are(tmp_path: Path, name: str) -> None:
    table = long(network()).drop(columns="speed")
    for number in (1, 2):
        table[name.format(number)] = table["volume"] + number
    table.drop(columns="volume").to_csv(tmp_path / "a.csv", index=False)
    refusal(lambda: converted(tmp_path / "a.csv"), "several columns of readings")


@pytest.mark.parametrize("units", [("mph", "km/h"), ("km/h", "m/s")])
def test_a_column_of_several_units_is_asked(tmp_path: Path, units: tuple[str, str]) -> None:
    table = long(network()).drop(columns="volume")
    table.assign(unit=units[0]).to_csv(path := tmp_path / "a.csv", index=False)
    same(converted(path), network())
    table.assign(unit=np.where(table["sensor"] == "4002", *units)).to_csv(path, index=False)
    refusal(lambda: converted(path), "names several units", "in one unit")


@pytest.mark.parametrize("name", ["speeds_v20240101.csv", "V2024-01-01 speeds.csv"])
def test_the_date_of_a_version_is_not_that_of_times_of_day(tmp_path: Path, name: str) -> None:
    frame = network(first="2024-01-31 00:00").reset_index()
    frame.assign(time=frame["time"].dt.strftime("%H:%M")).to_csv(tmp_path / name, index=False)
    refusal(lambda: converted(tmp_path / name), "without a date")


@pytest.mark.parametrize("rows", [2, 3, 4, 12])
def test_a_reading_that_is_one_cell_over_several_rows_is_refused(tmp_path: Path, rows: int) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["time", "S1", "S2"])
    for index, moment in enumerate(network().index):
        book.active.append([moment.to_pydatetime(), 40 + index % 5, 300 if index % rows == 0 else None])
    for first in range(2, 62, rows):
        book.active.merge_cells(f"C{first}:C{first + rows - 1}")
    book.save(tmp_path / "a.xlsx")
    refusal(lambda: converted(tmp_path / "a.xlsx"), "have one cell for all of them", "split the cell")


@pytest.mark.parametrize("number", [True, False])
def test_numbers_of_stations_may_be_one_cell_over_several_rows(tmp_path: Path, number: bool) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    frame = network()
    book = openpyxl.Workbook()
    book.active.append(["Nr", "Station", "Lanes", "Time", "Speed"])
    for vdid in frame:
        first = book.active.max_row + 1
        for moment, value in zip(pd.DatetimeIndex(frame.index), frame[vdid], strict=True):
            here = (int(str(vdid)) if number else vdid, 3) if book.active.max_row + 1 == first else (None, None)
            speed = None if np.isnan(value) else value
            book.active.append([book.active.max_row, *here, moment.to_pydatetime(), speed])
        for column in "BC":
            book.active.merge_cells(f"{column}{first}:{column}{book.active.max_row}")
    book.save(tmp_path / "a.xlsx")
    same(converted(tmp_path / "a.xlsx"), frame)


@pytest.mark.parametrize("name", ["Gesamtsumme", "All", "Grand Total"])
def test_a_column_of_sums_is_no_sensor(tmp_path: Path, name: str) -> None:
    frame = network().fillna(1.0)
    frame.assign(**{name: frame.sum(axis=1)}).to_csv(tmp_path / "a.csv")
    same(converted(tmp_path / "a.csv"), frame)


@pytest.mark.parametrize("order", [("sensors", "times"), ("times", "sensors")])
@pytest.mark.parametrize("rows", [4, 5])
def test_rows_of_json_that_may_be_times_or_sensors_are_refused(
    tmp_path: Path, order: tuple[str, str], rows: int
) -> None:
    frame = network(rows).fillna(1.0)
    said = {"sensors": list(frame), "times": frame.index.astype(str).tolist()}
    document = {name: said[name] for name in order} | {"values": frame.to_numpy().tolist()}
    (tmp_path / "a.json").write_text(json.dumps(document))
    if rows == len(frame.columns):
        refusal(lambda: converted(tmp_path / "a.json"), "a key of its own")
    else:
        same(converted(tmp_path / "a.json"), frame)


@pytest.mark.parametrize("name", ["Total", "ALL", "Gesamt", "total"])
@pytest.mark.parametrize("column", ["detector", "station"])
def test_rows_of_all_sensors_are_no_sensor(tmp_path: Path, name: str, column: str) -> None:
    frame = network(90)
    rows = frame.assign(**{name: frame.sum(axis=1)}).reset_index().melt("time", var_name=column, value_name="flow")
    rows.to_csv(tmp_path / "a.csv", index=False)
    refusal(
        lambda: converted(tmp_path / "a.csv", "flow"),
        f"rows of {name} stand beside those of 4 sensors. Try: remove them",
    )
    rows[rows[column] != name].to_csv(tmp_path / "a.csv", index=False)
    same(converted(tmp_path / "a.csv", "flow"), frame)


@pytest.mark.parametrize("word", ["avg_{}", "{}_mean", "{}.85p_max", "max {}"])
def test_a_statistic_beside_its_column_is_asked(tmp_path: Path, word: str) -> None:
    frame = network(90, ids=["A7"])
    frame.assign(**{word.format("A7"): 5.5}).to_csv(tmp_path / "a.csv")
    refusal(
        lambda: converted(tmp_path / "a.csv"),
        "columns hold several statistics",
        f"--drop {shlex.quote(word.format('A7'))}",
    )


@pytest.mark.parametrize("part", ["minute", "Minute", "min"])
def test_minutes_in_a_column_of_their_own_name_no_sensor(tmp_path: Path, part: str) -> None:
    frame = network(96, "2024-01-31", ids=["S1"])
    rows = pd.DataFrame({"date": "2024-01-31", "hour": frame.index.hour, part: frame.index.minute, "speed": 50.5})
    rows.to_csv(tmp_path / "a.csv", index=False)
    refusal(lambda: converted(tmp_path / "a.csv"), "write the whole time into one column")


@pytest.mark.parametrize("total", ["0", "9", "3"])
def test_a_lane_that_is_the_sum_of_the_others_is_refused(tmp_path: Path, total: str) -> None:
    times = pd.date_range("2024-01-31", periods=60, freq="5min")
    counts = np.random.default_rng(0).integers(1, 40, (60, 2))
    lanes = {"1": counts[:, 0], "2": counts[:, 1], total: counts.sum(axis=1)}
    rows = pd.concat([pd.DataFrame({"time": times, "station": "S1", "lane": n, "flow": v}) for n, v in lanes.items()])
    rows.to_csv(tmp_path / "a.csv", index=False)
    refusal(lambda: converted(tmp_path / "a.csv", "flow"), "of S1 is the sum of the others", "counted twice")
    rows[rows.lane != total].to_csv(tmp_path / "a.csv", index=False)
    assert converted(tmp_path / "a.csv", "flow").S1.tolist() == counts.sum(axis=1).tolist()


@pytest.mark.parametrize("lane", ["\0", "1\0", "\x07"])
def test_a_lane_that_is_no_text_is_refused(tmp_path: Path, lane: str) -> None:
    rows = [f"2024-01-31 00:{5 * n:02},S1,{m},{n + 30}\n" for n in range(12) for m in ("1", lane if n == 7 else "2")]
    (tmp_path / "a.csv").write_text("time,station,lane,flow\n" + "".join(rows))
    refusal(lambda: converted(tmp_path / "a.csv", "flow"), str(tmp_path / "a.csv"))
    assert not (tmp_path / "out.h5").exists()
