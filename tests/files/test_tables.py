"""What each column of a table is: a corpus of (files, options) -> readings, and of those that are asked or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import socialx
from socialx.files.sources.tables.columns import column_quantity
from socialx.files.store.store import open_store
from tests import frames
from tests.data_files import refusal, unchanged

START, ROWS = datetime(2024, 1, 30, 6), 24
Cell = Callable[[int], object]
Files = str | Mapping[str, str]


def at(row: int, form: str = "%Y-%m-%d %H:%M:%S", minutes: int = 5) -> str:
    return (START + timedelta(minutes=minutes * row)).strftime(form)


def table(header: str, *cells: Cell, rows: int = ROWS, mark: str = ",") -> str:
    """A function of the number of the row for each column."""
    lines = [mark.join(str(cell(row)) for cell in cells) for row in range(rows)]
    return "\n".join([header.replace(",", mark), *lines]) + "\n"


def write_files(files: Files, folder: Path) -> list[Path]:
    """The files of a case; one of no name is D7.csv."""
    paths = []
    for name, text in ({"D7.csv": files} if isinstance(files, str) else files).items():
        paths.append(folder / name)
        paths[-1].parent.mkdir(exist_ok=True, parents=True)
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def convert_files(paths: list[Path], **options: Any) -> Path:
    output = paths[0].with_suffix(".h5")
    socialx.convert("auto", paths, output, without_positions=True, **options)
    return output


def speed(row: int) -> float:
    return 60.5 + row


def flow(row: int) -> int:
    return 10 + row


def half_row(row: int) -> str:
    return at(row // 2)


def sensor(row: int) -> str:
    return f"S{1 + row % 2}"


def since(row: int, unit: int = 1) -> int:
    return (1_706_594_400 + 300 * row) * unit


def json_lines(**cells: object) -> dict[str, str]:
    return {"a.jsonl": "\n".join(json.dumps({"time": at(row), **cells}) for row in range(ROWS))}


def long(header: str, *cells: Cell) -> str:
    return table(header, *cells, rows=48)


SPEEDS, FLOWS = [speed(row) for row in range(ROWS)], [float(flow(row)) for row in range(ROWS)]
TWO = {f"S{each}": [speed(row) for row in range(each - 1, 48, 2)] for each in (1, 2)}
S1_S2, D7, FLOW = {"S1": SPEEDS, "S2": SPEEDS}, {"D7": SPEEDS}, {"feature": "flow"}
BESIDE = ("total", "Average", "temperature", "rain", "no", "level_0", "Unnamed: 0")
BESIDE += ("S1_flag", "S2 quality", "S1 status")
STREETS = "Flower_St,Speedway,Columbus_Ave,Main_St"
DIGITS = "123456789,1234567890,1234567890123"
LATER: tuple[Cell, ...] = (lambda r: at(r + ROWS), flow, speed)
JANUARY, FEBRUARY = table("time,speed,flow", at, speed, flow), table("time,flow,speed", *LATER)
MONTHS = {"D7_2024-01.csv": JANUARY, "D7_2024-02.csv": FEBRUARY}
GROUPED = long("time,sensor,speed", half_row, sensor, lambda r: "61.125" if r % 3 else "60")
DECIMALS = {f"S{n}": [60.0 if row % 3 == 0 else 61.125 for row in range(n - 1, 48, 2)] for n in (1, 2)}
UNNAMED = long("time,sensor,temperature", half_row, sensor, speed)
WEATHER = table("time,weather,speed", at, lambda r: "sunny", speed)
DAY_COUNTS = table("time,S1 (veh/day),S2 (veh/day)", at, lambda r: f"{46 + r}.123", lambda r: "1.250", mark=";")
COUNTS = table("time,S1,S2", at, lambda r: f"{46 + r}.123", lambda r: "1.250", mark=";")
LARGE = {"S1": [46_123.0 + 1000 * row for row in range(ROWS)], "S2": [1250.0] * ROWS}
QUANTITIES = {  # of one sensor, which has the name of its file
    **{f"time,speed{more}": (SPEEDS, "avg_speed") for more in ("", ",speed_limit", ",flow", ",flow,temperature")},
    **{"time,speed,temperature": (SPEEDS, "avg_speed"), "time,value": (SPEEDS, "avg_speed")},
    **{"time,flow": (FLOWS, "flow"), "timestamp,vehicle_count": (FLOWS, "flow")},
}


def quantity_table(header: str) -> str:
    flows = ("flow", "vehicle_count", "temperature")
    return table(header, at, *(flow if name in flows else speed for name in header.split(",")[1:]))


# By a name: the files, the options of convert and the readings of each sensor.
READ: dict[str, tuple[Files, dict[str, Any], dict[str, list[float]]]] = {
    **{
        f"{name} is a part of the calendar beside {readings}": (
            table(f"time,{name},{readings}", at, lambda r: r % 7, *[speed] * (1 + readings.count(","))),
            {},
            D7 if readings == "speed" else S1_S2
        )
        for name in ("hour", "weekday", "day_of_week", "month", "holiday")
        for readings in ("speed", "S1,S2")
    },
    **{
        f"{name} stands beside sensors": (table(f"time,{name},S1,S2", at, lambda r: r + 1, speed, speed), {}, S1_S2)
        for name in BESIDE
    },
    **{
        f"{header} are those of one sensor": (quantity_table(header), {"feature": feature}, {"D7": wanted})
        for header, (wanted, feature) in QUANTITIES.items()
    },
    "an hour beside a date": (
        table("date,hour,speed", lambda r: at(r, "%Y-%m-%d", 60), lambda r: (6 + r) % 24, speed),
        {},
        D7
    ),
    "the only column has any name": (table("time,average", at, speed), {}, {"average": SPEEDS}),
    "weekdays in words": (table("time,weekday,S1", at, lambda r: ("Mon", "Tue")[r > 9], speed), {}, {"S1": SPEEDS}),
    "flows in names": (table("time,S1_flow,S2_flow", at, flow, flow), FLOW, {"S1_flow": FLOWS, "S2_flow": FLOWS}),
    "speeds in names": (table("time,A_speed,B_speed", at, speed, speed), {}, {"A_speed": SPEEDS, "B_speed": SPEEDS}),
    "flows behind sensors": (
        table("time,S1_speed,S1_flow,S2_speed,S2_flow", at, speed, flow, speed, flow),
        {"channel": "flow", **FLOW},
        {"S1": FLOWS, "S2": FLOWS}
    ),
    "speeds behind sensors": (table("time,S1_speed,S1_flow,S2_speed,S2_flow", at, *[speed] * 4), {}, S1_S2),
    "streets": (table(f"time,{STREETS}", at, *[speed] * 4), {}, dict.fromkeys(STREETS.split(","), SPEEDS)),
    "ids of many digits": (table(f"time,{DIGITS}", at, *[speed] * 3), {}, dict.fromkeys(DIGITS.split(","), SPEEDS)),
    # which column names the sensor
    "an id of the row": (long("id,time,sensor,speed", lambda r: r + 1, half_row, sensor, speed), {}, TWO),
    "a large id of the row": (long("id,time,sensor_id,speed", lambda r: 70_000 + r, half_row, sensor, speed), {}, TWO),
    "a name of all": (long("name,time,sensor_id,speed", lambda r: "A9", half_row, sensor, speed), {}, TWO),
    "a road": (long("road,time,detector,speed", lambda r: "A9", half_row, sensor, speed), {}, TWO),
    "a number from 0": (long("nr,time,station,speed", lambda r: r, half_row, sensor, speed), {}, TWO),
    "an hour": (long("time,sensor,hour,speed", half_row, sensor, lambda r: (6 + r // 24) % 24, speed), {}, TWO),
    "an upload": (long("time,sensor,uploaded,speed", half_row, sensor, lambda r: at(r + 7), speed), {}, TWO),
    "times since 1970 behind": (long("sensor,ts,speed", sensor, lambda r: since(r // 2), speed), {}, TWO),
    "a number of the row": (table("id,time,speed", lambda r: r + 1, at, speed), {}, D7),
    **{
        f"each sensor has its rows together, beside {name}": (
            table(
                f"{name},time,sensor,speed",
                first, lambda r: at(r % 60), lambda r: f"S{1 + r // 60}", speed, rows=120
            ),
            {},
            {"S1": [60.5 + r for r in range(60)], "S2": [60.5 + r for r in range(60, 120)]}
        )
        for name, first in {"id": lambda r: r + 1, "name": lambda r: "A9"}.items()
    },
    "weather left out": (WEATHER, {"drop": "weather"}, D7),
    "a name of no quantity": (UNNAMED, {"quantity": "speed"}, TWO),
    # several files
    "a folder of flows": (
        {f"flow/S{each}.csv": table("time,value", at, flow) for each in (1, 2)},
        FLOW,
        {"S1": FLOWS, "S2": FLOWS}
    ),
    "columns in another order": (
        {"S1.csv": table("time,speed,flow", at, speed, flow), "S2.csv": table("time,flow,speed", at, flow, speed)},
        {},
        S1_S2
    ),
    "months of two quantities": (MONTHS, {}, {"speed": SPEEDS * 2}),
    "their speeds": ({"a.csv": JANUARY, "b.csv": FEBRUARY}, {"channel": "speed,flow"}, {"speed": SPEEDS * 2}),
    "their flows": (MONTHS, {"channel": "speed,flow", **FLOW}, {"speed": FLOWS * 2}),
    # times
    "a time and its upload": (table("uploaded,time,S1", lambda r: at(r + 700), at, speed), {}, {"S1": SPEEDS}),
    "an end and a begin": (table("interval_end,interval_start,S1", lambda r: at(r + 1), at, speed), {}, {"S1": SPEEDS}),
    "from and to": (table("from,to,S1,S2", at, lambda r: at(r + 1), speed, speed), {}, S1_S2),
    **{
        f"times since 1970 times {unit} as {form}": (
            table("time,S1", lambda r, unit=unit, form=form: form.format(since(r, unit)), speed),
            {},
            {"S1": SPEEDS}
        )
        for unit, form in ((1, "{}"), (10**3, "{}.0"), (10**3, "{}"), (10**6, "{}"), (10**9, "{}"))
    },
    # numbers
    "large counts by their unit": (DAY_COUNTS, {"decimal": ",", **FLOW}, LARGE),
    "large counts as said": (COUNTS, {"decimal": ",", "quantity": "flow", **FLOW}, LARGE),
    "speeds of three decimals": (GROUPED, {}, DECIMALS),
    "the same between semicolons": (GROUPED.replace(",", ";"), {}, DECIMALS),
    **{
        f"numbers of JSON whose decimals are {sign}": (
            json_lines(S1=61.125, S2=60),
            {"decimal": sign},
            {"S1": [61.125] * ROWS, "S2": [60.0] * ROWS}
        )
        for sign in (None, ",", ".")
    },
    "thousands in texts of JSON": (
        json_lines(S1="1.125", S2=60.5),
        {"quantity": "flow", "decimal": ",", **FLOW},
        {"S1": [1125.0] * ROWS, "S2": [60.5] * ROWS}
    ),
    "decimals in texts of JSON": (
        json_lines(S1="61,5", S2=60.5),
        {"decimal": ","},
        {"S1": [61.5] * ROWS, "S2": [60.5] * ROWS}
    )
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_a_table_is_read(tmp_path: Path, case: str) -> None:
    files, options, wanted = READ[case]
    frame = frames.converted(write_files(files, tmp_path), **options)
    assert frame.to_dict("list") == wanted
    assert str(frame.index[0]) == at(0)
    told = socialx.convert("auto", write_files(files, tmp_path), tmp_path / "b.h5", without_positions=True,
                           **{name: value for name, value in options.items() if name != "feature"})  # fmt: skip
    for name in BESIDE if "stands beside" in case else ():
        assert any(f"columns left out: {name}" in str(note) for note in told.notes) == case.startswith(f"{name} ")


# By a name: the files, the options, and words of the refusal.
ASKED: dict[str, tuple[Files, dict[str, Any], tuple[str, ...]]] = {
    **{
        f"{header} are several quantities": (
            table(header, at, *[speed] * header.count(",")),
            {},
            (header.split(",")[-1].split()[-1], "--channel")
        )
        for header in (
            *("time,S1 speed,S1 flow", "time,v1,q1", "time,S1,S2,flow", "time,speed,colour"),
            *("time,S1 (km/h),flow", "time,cars,trucks")
        )
    },
    **{
        f"rows that {kind} tells apart": (
            table(
                f"time,sensor,{kind},flow",
                lambda r: at(r // 4), lambda r: f"S{1 + r // 2 % 2}", lambda r: "ab"[r % 2], lambda r: 5, rows=96
            ),
            {},
            (f"'{kind}' tells rows of one time",)
        )
        for kind in ("class", "direction")
    },
    "a word among readings": (table("time,S1,S2", at, lambda r: "offline", speed), {}, ("S1",)),
    "a word beside readings": (WEATHER, {}, ("weather", "--sensor-column")),
    "apostrophes in numbers": (table("time,S1,S2", at, lambda r: f"1'{r:03d}", speed), {}, ("S1",)),
    "a name of no quantity": (UNNAMED, {}, ("temperature", "--quantity")),
    **{
        f"files of two quantities, {' and '.join(names)}": (
            {name: table(f"time,{column}", at, speed) for name, column in names.items()},
            {},
            ("flow",)
        )
        for names in (
            {"S1/speed.csv": "value", "S1/flow.csv": "value"},
            {"speed/S1.csv": "value", "flow/S1.csv": "value"},
            {"S1.csv": "speed", "S2.csv": "flow"},
            {"S1_speed.csv": "value", "S1_flow.csv": "value"}
        )
    },
    **{
        f"{name} said to be {said} {where}": (text, {"quantity": said}, (name,))
        for name, said in (("occupancy", "flow"), ("flow", "speed"), ("speed", "occupancy"))
        for where, text in {
            "in rows": long(f"time,sensor,{name}", half_row, sensor, speed),
            "in columns": table(f"time,S1_{name},S2_{name}", at, speed, speed)
        }.items()
    },
    "years of two digits": (
        long("time,S1", lambda r: at(r, "%y-%m-%d %H:%M"), speed), {}, ("24-01-30", "--time-format")
    ),
    "large counts by their unit": (DAY_COUNTS, {}, ("thousands or decimals",)),
    "large counts": (COUNTS, {"quantity": "flow"}, ("thousands or decimals",)),
    "thousands in texts of JSON": (json_lines(S1="1.125", S2=60.5), {"quantity": "flow"}, ("thousands or decimals",)),
    **{
        f"{total} among lanes": (
            table(
                "time,sensor,lane,flow",
                lambda r: at(r // 3), lambda r: "S1", lambda r, total=total: ("1", "2", total)[r % 3], flow, rows=72
            ),
            {},
            (total,)
        )
        for total in ("all", "Total", "Gesamt")
    }
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_a_table_is_asked(tmp_path: Path, case: str) -> None:
    files, options, words = ASKED[case]
    refusal(lambda: convert_files(write_files(files, tmp_path), **options), *words)


def test_names_of_streets_say_no_quantity() -> None:
    assert column_quantity("Flower_St") is column_quantity("Speedway") is None


def test_a_year_of_two_digits_may_stand_first(tmp_path: Path) -> None:
    paths = write_files(long("time,S1", lambda r: at(r, "%y-%m-%d %H:%M", 60), speed), tmp_path)
    store = open_store(convert_files(paths))
    assert (store.timestamps[0].decode(), store.step_minutes) == (at(0), 60)


def test_other_lanes_are_not_appended(tmp_path: Path) -> None:
    def lanes(name: str, numbers: tuple[int, ...], first: int = 0) -> list[Path]:
        count = len(numbers)
        cells: list[Cell] = [lambda r: at(first + r // count), lambda r: "S1", lambda r: numbers[r % count], flow]
        return write_files({name: table("time,sensor,lane,flow", *cells, rows=24 * count)}, tmp_path)

    output = convert_files(lanes("a.csv", (1, 2)), quantity="flow")
    without = table("time,sensor,flow", lambda r: at(24 + r), lambda r: "S1", flow)
    with unchanged(output):
        for paths in (lanes("b.csv", (3, 4), 24), write_files({"c.csv": without}, tmp_path)):
            refusal(lambda paths=paths: socialx.append(output, paths), "lane", task="append")
    socialx.append(output, lanes("d.csv", (2, 1), 24))
    assert open_store(output).values[:, 0].tolist()[23:25] == [flow(46) + flow(47), flow(0) + flow(1)]
