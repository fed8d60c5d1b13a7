"""What a column is, as its rows show it, whatever its name; what the rows leave open is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.evidence import advised, asked, by_row, readings, saved
from tests.frames import converted, lacking, places_of, same

ORDERS = ("time", "sensor")
STREETS = {"7": "Nord", "8": "Süd", "9": "Ost", "10": "West"}


@pytest.fixture(params=ORDERS)
def rows(request: pytest.FixtureRequest) -> pd.DataFrame:
    """A row for each of four sensors and 120 times, with a column ``s`` that no name tells to be the sensors'."""
    return by_row(readings(120, [*STREETS], "15min"), request.param).rename(
        columns={"t": "quando", "s": "qual", "v": "velocidade"}
    )


def wanted(rows: pd.DataFrame, sensor: str = "qual", value: str = "velocidade") -> pd.DataFrame:
    return rows.pivot(index="quando", columns=sensor, values=value)


# ---- a date and a time of day


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("date", "clock"), [("giorno", "ora"), ("Data", "Czas"), ("d", "x1"), ("Day", "Ending")])
def test_dates_at_midnight_join_a_clock(tmp_path: Path, order: str, date: str, clock: str, back: bool) -> None:
    frame = readings(60, ("P1", "P2"), "30min")
    table = by_row(frame, order)
    columns = {date: table.t.dt.strftime("%Y-%m-%dT00:00:00"), clock: table.t.dt.strftime("%H:%M:%S")}
    table = pd.DataFrame(columns | {"punto": table.s, "velocidad": table.v})
    table = table[table.columns[::-1]] if back else table
    same(converted(saved(table, tmp_path / "a.csv")), frame)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y 00:00"])
@pytest.mark.parametrize("clock", ["godzina", "Ora", "Hour Ending", "p"])
def test_whole_hours_join_a_date(tmp_path: Path, order: str, first: int, form: str, clock: str) -> None:
    frame = readings(72, ("P1", "P2"), "h")
    table = by_row(frame, order)
    begin = table.t - pd.Timedelta(hours=first)
    table = pd.DataFrame(
        {"station": table.s, clock: begin.dt.hour + first, "v": table.v, "Tag": begin.dt.strftime(form)}
    )
    same(converted(saved(table, tmp_path / "a.csv", sep=";")), frame)


def test_hours_that_may_be_sensors_are_asked(tmp_path: Path) -> None:
    frame = readings(96, ("a",), "h")
    days = frame.index.normalize()
    table = pd.DataFrame({"d": days.strftime("%Y-%m-%d"), "p": frame.index.hour, "speed": frame["a"].to_numpy()})
    path = saved(table, tmp_path / "a.csv")
    hours, sensors = advised(asked(path, "hours or sensors"), path)
    same(hours(), frame)
    daily = pd.DataFrame(frame["a"].to_numpy().reshape(4, 24), index=days.unique(), columns=[*map(str, range(24))])
    same(sensors(), daily)


def test_two_columns_of_times_are_named(tmp_path: Path) -> None:
    frame = readings(72, ("4", "5"), "h")
    table = by_row(frame)
    table = pd.DataFrame({"wann": table.t.dt.strftime("%Y-%m-%d"), "da": table.t.dt.hour, "wo": table.s, "v": table.v})
    path = saved(table, tmp_path / "a.csv")
    same(converted(path, time_column=["wann", "da"]), frame)
    saved(table[table.da < 20], path)  # no whole day: nothing shows that they are hours
    line = asked(path, "--time-column wann --time-column da if 'da' is the hour", sensor_column="wo")
    assert "sum" not in line
    same(converted(path, time_column=["wann", "da"], sensor_column="wo"), lacking(frame, frame.index.hour >= 20))


# ---- what names the sensors


def test_sensors_without_a_known_name(tmp_path: Path, rows: pd.DataFrame) -> None:
    same(converted(saved(rows, tmp_path / "a.csv")), wanted(rows))


@pytest.mark.parametrize("name", ["ID", "id", "uid", "zaehler", "n"])
@pytest.mark.parametrize("kind", ["counter", "time", "text"])
def test_a_number_of_the_row_is_no_sensor(tmp_path: Path, rows: pd.DataFrame, name: str, kind: str) -> None:
    count = np.arange(len(rows))
    stamp = rows.quando.dt.strftime("%Y%m%d%H%M") + rows.qual.str.zfill(3)
    rows.insert(0, name, {"counter": count + 70, "time": stamp, "text": [f"x{sensor:x}" for sensor in count]}[kind])
    same(converted(saved(rows, tmp_path / "a.csv")), wanted(rows))


@pytest.mark.parametrize("column", [0, 2, 3])
@pytest.mark.parametrize("kind", ["weather", "status", "class", "limit", "day", "road"])
def test_categories_are_no_sensors(tmp_path: Path, rows: pd.DataFrame, kind: str, column: int) -> None:
    rng = np.random.default_rng(1)
    kinds: dict[str, Any] = {
        "weather": np.where(rows.quando.dt.hour < 12, "sol", "chuva"),
        "status": rng.choice(["ok", "bad"], len(rows)),
        "class": rng.integers(0, 3, len(rows)),
        "limit": rows.qual.map({"7": 50, "8": 50, "9": 80, "10": 80}),
        "day": rows.quando.dt.day,
        "road": "A9",
    }
    rows.insert(column, f"o {kind}", kinds[kind])
    same(converted(saved(rows, tmp_path / "a.csv")), wanted(rows))


@pytest.mark.parametrize("column", [0, 3])
def test_an_id_and_a_name_of_the_same_sensors_are_not_asked(tmp_path: Path, rows: pd.DataFrame, column: int) -> None:
    rows.insert(column, "nome", rows.qual.map(STREETS))
    same(converted(saved(rows, tmp_path / "a.csv")), wanted(rows, "nome" if column == 0 else "qual"))
    renamed = rows.rename(columns={"qual": "id", "nome": "name"})
    same(converted(saved(renamed, tmp_path / "b.csv"), sensor_column="id"), wanted(rows))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("spelt", ["{}", "0{}", "{}.0"])
def test_of_two_candidates_the_locations_have_the_sensors(tmp_path: Path, order: str, spelt: str) -> None:
    frame = readings(120, [*STREETS], "15min")
    rows = by_row(frame, order)
    rows.insert(1, "autre", [f"4{(int(sensor) * 3 + row // 4) % 5}" for row, sensor in enumerate(rows.s)])
    path = saved(rows.rename(columns={"s": "ici"}), tmp_path / "a.csv")
    asked(path, "ici", "autre")
    places = places_of([spelt.format(vdid) for vdid in frame], tmp_path / "places.csv")
    same(converted(path, meta_csv=places), frame)
    both = places_of([*frame, *(f"4{number}" for number in range(5))], tmp_path / "both.csv")
    asked(path, "ici", "autre", meta_csv=both)


def test_two_candidates_are_asked(tmp_path: Path) -> None:
    rows = by_row(readings(120, [*STREETS], "15min"))
    rows.insert(1, "autre", [f"g{(int(sensor) * 3 + row // 4) % 5}" for row, sensor in enumerate(rows.s)])
    path = saved(rows.rename(columns={"s": "ici"}), tmp_path / "a.csv")
    ways = advised(asked(path, "autre", "ici"), path)
    answers = sorted((way() for way in ways), key=lambda answer: answer.shape[1])
    assert len(answers) == 2
    for frame, name in zip(answers, ("s", "autre"), strict=True):
        same(frame, rows.pivot(index="t", columns=name, values="v"))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("one", "other"), [("loc", "sens"), ("station", "richting"), ("site", "dir")])
def test_sensors_of_two_columns_are_asked(tmp_path: Path, order: str, one: str, other: str) -> None:
    frame = readings(60, ("P-in", "P-out", "R-in", "R-out"), "10min")
    rows = by_row(frame, order)
    both = rows.s.str.split("-", expand=True).set_axis([one, other], axis=1)
    path = saved(pd.concat([both, rows[["v", "t"]]], axis=1), tmp_path / "a.csv")
    line = asked(path, one, other).replace(" names a sensor by both of them", "")
    [way] = advised(line, path)
    same(way(), frame)


@pytest.mark.parametrize("name", ["sensor", "fahrzeug"])
def test_sensors_with_a_row_each_are_refused(tmp_path: Path, name: str) -> None:
    times = pd.date_range("2024-01-01", periods=1000, freq="5min").repeat(2)
    rows = pd.DataFrame({"time": times, name: [f"v{sensor}" for sensor in range(2000)], "speed": 50.5})
    path = saved(rows, tmp_path / "a.csv")
    assert name in asked(path)
    many = saved(rows.assign(**{name: [f"v{sensor % 400}" for sensor in range(2000)]}), tmp_path / "b.csv")
    assert f"--sensor-column {name}" in asked(many)
    assert converted(many, sensor_column=name).shape == (1000, 400)
