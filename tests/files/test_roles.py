"""What each column of a table is: a time, a sensor, a lane, a quantity, or named and left out; else it is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import socialx
from socialx.files.formats.columns import quantity_of
from socialx.files.store import open_store
from tests import frames
from tests.data_files import refusal, unchanged
from tests.files.test_no_other_number import made

START, ROWS = datetime(2024, 1, 30, 6), 24
Cell = Callable[[int], object]


def at(row: int, form: str = "%Y-%m-%d %H:%M:%S", minutes: int = 5) -> str:
    return (START + timedelta(minutes=minutes * row)).strftime(form)


def written(path: Path, header: str, *cells: Cell, rows: int = ROWS, mark: str = ",") -> Path:
    """A table with a function of the number of the row for each column."""
    path.parent.mkdir(exist_ok=True, parents=True)
    lines = [mark.join(str(cell(row)) for cell in cells) for row in range(rows)]
    path.write_text("\n".join([header.replace(",", mark), *lines]) + "\n", encoding="utf-8")
    return path


def speed(row: int) -> float:
    return 60.5 + row


def flow(row: int) -> int:
    return 10 + row


def found(path: Path | Sequence[Path], feature: str = "avg_speed", **options: Any) -> dict[str, list[float]]:
    """The readings of each sensor of the file that is made of a table."""
    return frames.converted(path, feature, **options).to_dict("list")  # type: ignore[return-value]


SPEEDS, FLOWS = [speed(row) for row in range(ROWS)], [flow(row) for row in range(ROWS)]


# ---- one sensor: its columns are quantities, or parts of the calendar


def test_an_hour_beside_a_date_is_the_time_of_day(tmp_path: Path) -> None:
    path = written(
        tmp_path / "D7.csv", "date,hour,speed", lambda r: at(r, "%Y-%m-%d", 60), lambda r: (6 + r) % 24, speed
    )
    output = made(path)
    store = open_store(output)
    assert store.sensors.ids == ("D7",)
    assert store.timestamps[0] == b"2024-01-30 06:00:00"
    assert store.step_minutes == 60
    assert store.values[:, 0].tolist() == SPEEDS


@pytest.mark.parametrize("name", ["hour", "weekday", "day_of_week", "month", "holiday"])
@pytest.mark.parametrize("readings", ["speed", "S1,S2"])
def test_a_part_of_the_calendar_is_no_sensor(tmp_path: Path, name: str, readings: str) -> None:
    cells = [speed] * (readings.count(",") + 1)
    path = written(tmp_path / "D7.csv", f"time,{name},{readings}", at, lambda r: r % 7, *cells)
    assert found(path) == {each: SPEEDS for each in (["D7"] if readings == "speed" else ["S1", "S2"])}


@pytest.mark.parametrize(
    "name",
    ["total", "Average", "temperature", "rain", "no", "level_0", "Unnamed: 0", "S1_flag", "S2 quality", "S1 status"],
)
def test_what_stands_beside_sensors_is_none(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "a.csv", f"time,{name},S1,S2", at, lambda r: r + 1, speed, speed)
    assert found(path) == {"S1": SPEEDS, "S2": SPEEDS}
    notes = socialx.convert("auto", path, tmp_path / "b.h5", without_positions=True).notes
    assert any(f"columns left out: {name}" in str(note) for note in notes)


def test_the_only_column_may_have_any_name(tmp_path: Path) -> None:
    assert found(written(tmp_path / "a.csv", "time,average", at, speed)) == {"average": SPEEDS}


def test_days_of_the_week_in_words_are_no_sensors(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "time,weekday,S1", at, lambda r: "Mon" if r < 12 else "Tue", speed)
    assert found(path) == {"S1": SPEEDS}


@pytest.mark.parametrize(
    ("header", "wanted", "feature"),
    [
        ("time,speed", SPEEDS, "avg_speed"),
        ("time,flow", FLOWS, "flow"),
        ("timestamp,vehicle_count", FLOWS, "flow"),
        ("time,value", SPEEDS, "avg_speed"),
        ("time,speed,speed_limit", SPEEDS, "avg_speed"),
        ("time,speed,flow", SPEEDS, "avg_speed"),
        ("time,speed,flow,temperature", SPEEDS, "avg_speed"),
        ("time,speed,temperature", SPEEDS, "avg_speed"),
    ],
)
def test_quantities_alone_are_those_of_one_sensor(
    tmp_path: Path, header: str, wanted: list[float], feature: str
) -> None:
    names = header.split(",")[1:]
    cells = [flow if name in ("flow", "vehicle_count") else speed if name != "temperature" else flow for name in names]
    path = written(tmp_path / "D7.csv", header, at, *cells)
    assert found(path, feature) == {"D7": wanted}


@pytest.mark.parametrize(
    "header",
    [
        "time,S1 speed,S1 flow",
        "time,v1,q1",
        "time,S1,S2,flow",
        "time,speed,colour",
        "time,S1 (km/h),flow",
        "time,cars,trucks",
    ],
)
def test_columns_of_several_quantities_are_asked(tmp_path: Path, header: str) -> None:
    cells = [speed] * header.count(",")
    text = refusal(lambda: made(written(tmp_path / "a.csv", header, at, *cells)), header.split(",")[-1].split()[-1])
    assert "--drop" in text or "--channel" in text


@pytest.mark.parametrize(
    ("header", "feature"), [("time,S1_flow,S2_flow", "flow"), ("time,S1_speed,S2_speed", "avg_speed")]
)
def test_sensors_whose_names_say_one_quantity_have_it(tmp_path: Path, header: str, feature: str) -> None:
    path = written(tmp_path / "a.csv", header, at, flow, flow)
    assert found(path, feature) == {name: FLOWS for name in header.split(",")[1:]}


def test_quantities_behind_the_names_of_sensors(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "time,S1_speed,S1_flow,S2_speed,S2_flow", at, speed, flow, speed, flow)
    assert list(found(path)) == ["S1", "S2"]
    assert found(path, "flow", channel="flow") == {"S1": FLOWS, "S2": FLOWS}


def test_streets_with_such_letters_are_sensors(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "time,Flower_St,Speedway,Columbus_Ave,Main_St", at, speed, speed, speed, speed)
    assert list(found(path)) == ["Flower_St", "Speedway", "Columbus_Ave", "Main_St"]
    assert quantity_of("Flower_St") is quantity_of("Speedway") is None


# ---- which column names the sensor


def row_of(row: int) -> str:
    return at(row // 2)


def sensor(row: int) -> str:
    return f"S{1 + row % 2}"


TWO = {f"S{each}": [speed(row) for row in range(each - 1, 48, 2)] for each in (1, 2)}


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("id,time,sensor,speed", [lambda r: r + 1, row_of, sensor, speed]),
        ("id,time,sensor_id,speed", [lambda r: 70_000 + r, row_of, sensor, speed]),
        ("name,time,sensor_id,speed", [lambda r: "A9", row_of, sensor, speed]),
        ("road,time,detector,speed", [lambda r: "A9", row_of, sensor, speed]),
        ("nr,time,station,speed", [lambda r: r, row_of, sensor, speed]),
        ("time,sensor,hour,speed", [row_of, sensor, lambda r: (6 + r // 24) % 24, speed]),
        ("time,sensor,uploaded,speed", [row_of, sensor, lambda r: at(r + 7), speed]),
    ],
)
def test_the_column_that_tells_the_rows_of_a_time_apart(tmp_path: Path, header: str, cells: list[Cell]) -> None:
    assert found(written(tmp_path / "a.csv", header, *cells, rows=48)) == TWO


@pytest.mark.parametrize("header", ["id,time,sensor,speed", "name,time,sensor_id,speed"])
def test_also_where_each_sensor_has_its_rows_together(tmp_path: Path, header: str) -> None:
    first: Cell = (lambda r: r + 1) if header.startswith("id") else (lambda r: "A9")
    cells = [first, lambda r: at(r % 60), lambda r: f"S{1 + r // 60}", lambda r: 60.5 + r]
    assert found(written(tmp_path / "a.csv", header, *cells, rows=120)) == {
        "S1": [60.5 + r for r in range(60)],
        "S2": [60.5 + r for r in range(60, 120)],
    }


def test_a_number_of_the_row_names_no_sensor(tmp_path: Path) -> None:
    assert found(written(tmp_path / "D7.csv", "id,time,speed", lambda r: r + 1, at, speed)) == {"D7": SPEEDS}


@pytest.mark.parametrize("kind", ["class", "direction"])
def test_rows_that_one_more_column_tells_apart_are_asked(tmp_path: Path, kind: str) -> None:
    cells = [lambda r: at(r // 4), lambda r: f"S{1 + r // 2 % 2}", lambda r: "ab"[r % 2], lambda r: 5]
    path = written(tmp_path / "a.csv", f"time,sensor,{kind},flow", *cells, rows=96)
    refusal(lambda: made(path), kind)


@pytest.mark.parametrize("word", ["offline", "sunny"])
def test_words_among_readings_make_no_sensor(tmp_path: Path, word: str) -> None:
    path = written(tmp_path / "a.csv", "time,S1,S2", at, lambda r: word, speed)
    refusal(lambda: made(path), "S1")
    path = written(tmp_path / "b.csv", "time,weather,speed", at, lambda r: word, speed)
    assert "--sensor-column" in refusal(lambda: made(path), "weather")
    assert found(path, drop="weather") == {"b": SPEEDS}


def test_thousands_in_the_first_column_are_asked(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "time,S1,S2", at, lambda r: f"1'{r:03d}", speed)
    refusal(lambda: made(path), "S1")


def test_a_reading_of_no_known_name_is_asked(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "time,sensor,temperature", row_of, sensor, speed, rows=48)
    assert "--quantity" in refusal(lambda: made(path), "temperature")
    assert found(path, quantity="speed") == TWO


# ---- several files


@pytest.mark.parametrize(
    "files",
    [
        {"S1/speed.csv": "value", "S1/flow.csv": "value"},
        {"speed/S1.csv": "value", "flow/S1.csv": "value"},
        {"S1.csv": "speed", "S2.csv": "flow"},
        {"S1_speed.csv": "value", "S1_flow.csv": "value"},
    ],
)
def test_files_of_two_quantities_are_refused(tmp_path: Path, files: dict[str, str]) -> None:
    paths = [written(tmp_path / name, f"time,{column}", at, speed) for name, column in files.items()]
    refusal(lambda: made(paths), "flow")


def test_the_folder_of_the_files_says_their_quantity(tmp_path: Path) -> None:
    paths = [written(tmp_path / "flow" / f"S{each}.csv", "time,value", at, flow) for each in (1, 2)]
    assert found(paths, "flow") == {"S1": FLOWS, "S2": FLOWS}


def test_the_columns_of_the_files_may_stand_in_another_order(tmp_path: Path) -> None:
    one = written(tmp_path / "S1.csv", "time,speed,flow", at, speed, flow)
    two = written(tmp_path / "S2.csv", "time,flow,speed", at, flow, speed)
    assert found([one, two]) == {"S1": SPEEDS, "S2": SPEEDS}


# ---- what a user says against what a column says


@pytest.mark.parametrize(("name", "said"), [("occupancy", "flow"), ("flow", "speed"), ("speed", "occupancy")])
def test_another_quantity_than_the_name_says_is_refused(tmp_path: Path, name: str, said: str) -> None:
    path = written(tmp_path / "a.csv", f"time,sensor,{name}", row_of, sensor, speed, rows=48)
    refusal(lambda: made(path, quantity=said), name)
    path = written(tmp_path / "b.csv", f"time,S1_{name},S2_{name}", at, speed, speed)
    refusal(lambda: made(path, quantity=said), name)


# ---- times


def test_the_time_of_a_measurement_is_not_that_of_its_upload(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "uploaded,time,S1", lambda r: at(r + 700), at, speed)
    store = open_store(made(path))
    assert store.timestamps[0].decode() == at(0)
    path = written(tmp_path / "c.csv", "interval_end,interval_start,S1", lambda r: at(r + 1), at, speed)
    assert open_store(made(path)).timestamps[0].decode() == at(0)
    path = written(tmp_path / "b.csv", "from,to,S1,S2", at, lambda r: at(r + 1), speed, speed)
    assert found(path) == {"S1": SPEEDS, "S2": SPEEDS}
    assert open_store(tmp_path / "out.h5").timestamps[0].decode() == at(0)


def test_a_year_of_two_digits_may_stand_first(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "time,S1", lambda r: at(r, "%y-%m-%d %H:%M", 60), speed, rows=48)
    store = open_store(made(path))
    assert store.timestamps[0].decode() == at(0)
    path = written(tmp_path / "b.csv", "time,S1", lambda r: at(r, "%y-%m-%d %H:%M"), speed, rows=48)
    assert "--time-format" in refusal(lambda: made(path), "24-01-30")


@pytest.mark.parametrize(("unit", "form"), [(1, "{}"), (10**3, "{}.0"), (10**3, "{}"), (10**6, "{}"), (10**9, "{}")])
def test_times_since_1970_in_any_unit(tmp_path: Path, unit: int, form: str) -> None:
    path = written(tmp_path / "a.csv", "time,S1", lambda r: form.format((1_706_594_400 + 300 * r) * unit), speed)
    assert found(path) == {"S1": SPEEDS}
    assert open_store(tmp_path / "out.h5").timestamps[0] == b"2024-01-30 06:00:00"


def test_times_since_1970_behind_the_sensors(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.csv", "sensor,ts,speed", sensor, lambda r: 1_706_594_400 + 300 * (r // 2), speed, rows=48
    )
    assert found(path) == TWO


# ---- numbers


@pytest.mark.parametrize("unit", ["veh/day", ""])
def test_large_counts_are_asked(tmp_path: Path, unit: str) -> None:
    header = "time,S1 (veh/day),S2 (veh/day)" if unit else "time,S1,S2"
    cells = [lambda r: f"{46 + r}.123", lambda r: "1.250"]
    path = written(tmp_path / "a.csv", header, at, *cells, mark=";")
    options = {} if unit else {"quantity": "flow"}
    refusal(lambda: made(path, **options), "thousands or decimals")
    assert found(path, "flow", decimal=",", **options)["S1" if True else ""][0] == 46_123


@pytest.mark.parametrize("mark", [",", ";"])
def test_speeds_are_not_asked(tmp_path: Path, mark: str) -> None:
    path = written(
        tmp_path / "a.csv",
        "time,sensor,speed",
        row_of,
        sensor,
        lambda r: "61.125" if r % 3 else "60",
        rows=48,
        mark=mark,
    )
    assert found(path)["S1"][:2] == [60, 61.125]


def test_numbers_of_json_have_points_whatever_is_said(tmp_path: Path) -> None:
    rows = [{"time": at(row), "S1": 61.125, "S2": 60} for row in range(ROWS)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    for options in ({}, {"decimal": ","}, {"decimal": "."}):
        assert found(path, **options) == {"S1": [61.125] * ROWS, "S2": [60.0] * ROWS}
    rows = [{"time": at(row), "S1": "1.125", "S2": 60.5} for row in range(ROWS)]
    path.write_text("\n".join(map(json.dumps, rows)))
    refusal(lambda: made(path, quantity="flow"), "thousands or decimals")
    assert found(path, "flow", quantity="flow", decimal=",") == {"S1": [1125.0] * ROWS, "S2": [60.5] * ROWS}
    rows = [{"time": at(row), "S1": "61,5", "S2": 60.5} for row in range(ROWS)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert found(path, decimal=",") == {"S1": [61.5] * ROWS, "S2": [60.5] * ROWS}


# ---- lanes


def lanes(path: Path, numbers: tuple[int, ...], first: int = 0) -> Path:
    count = len(numbers)
    cells = [lambda r: at(first + r // count), lambda r: "S1", lambda r: numbers[r % count], flow]
    return written(path, "time,sensor,lane,flow", *cells, rows=24 * count)


def test_other_lanes_are_not_appended(tmp_path: Path) -> None:
    output = made(lanes(tmp_path / "a.csv", (1, 2)), quantity="flow")
    with unchanged(output):
        refusal(lambda: socialx.append(output, lanes(tmp_path / "b.csv", (3, 4), 24)), "lane", task="append")
        path = written(tmp_path / "c.csv", "time,sensor,flow", lambda r: at(24 + r), lambda r: "S1", flow)
        refusal(lambda: socialx.append(output, path), "lane", task="append")
    socialx.append(output, lanes(tmp_path / "d.csv", (2, 1), 24))
    assert open_store(output).values[:, 0].tolist()[23:25] == [flow(46) + flow(47), flow(0) + flow(1)]


@pytest.mark.parametrize("total", ["all", "Total", "Gesamt"])
def test_a_sum_of_lanes_is_no_lane(tmp_path: Path, total: str) -> None:
    names = ["1", "2", total]
    cells = [lambda r: at(r // 3), lambda r: "S1", lambda r: names[r % 3], flow]
    path = written(tmp_path / "a.csv", "time,sensor,lane,flow", *cells, rows=72)
    refusal(lambda: made(path), total)


# ---- names


def test_ids_of_many_digits_in_a_header(tmp_path: Path) -> None:
    header = "time,123456789,1234567890,1234567890123"
    assert list(found(written(tmp_path / "a.csv", header, at, speed, speed, speed))) == header.split(",")[1:]


@pytest.mark.parametrize("names", [("a", "b"), ("D7_2024-01", "D7_2024-02")])
def test_months_of_one_sensor_with_two_quantities(tmp_path: Path, names: tuple[str, str]) -> None:
    later: list[Cell] = [lambda r: at(r + ROWS), flow, speed]
    one = written(tmp_path / f"{names[0]}.csv", "time,speed,flow", at, speed, flow)
    two = written(tmp_path / f"{names[1]}.csv", "time,flow,speed", *later)
    for options in ({}, {"channel": "speed,flow"}):
        assert found([one, two], **options) == {"speed": SPEEDS * 2}
    assert found([one, two], "flow", channel="speed,flow") == {"speed": FLOWS * 2}
