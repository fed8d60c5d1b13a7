"""Tables with a column for each time of day, or for each lane's quantities, behind a sensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.evidence import advised, asked, saved
from tests.frames import converted, lacking, same

FLOW: dict[str, Any] = {"feature": "flow", "quantity": "flow"}


def clocks(count: int, form: str = "{:02}:{:02}", first: int = 0) -> list[str]:
    minutes = [1440 // count * (number + first) for number in range(count)]
    return [form.format(minute // 60, minute % 60) for minute in minutes]


def day_table(
    names: list[str], ids: tuple[str, ...] = ("5", "6", "7"), sensor: str = "Detektor", days: int = 4, end: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row for each day and sensor with counts, and the same with a row for each time; end: of each interval."""
    count = len(names)
    times = pd.date_range("2023-03-24", periods=days * count, freq=f"{1440 // count}min")
    counts = np.random.default_rng(0).integers(10, 900, (days, count, len(ids)))
    frame = pd.DataFrame(counts.reshape(-1, len(ids)), times, list(ids)).astype(float)
    rows = pd.DataFrame(counts.transpose(0, 2, 1).reshape(-1, count), columns=names)
    rows.insert(0, "Tag", times[::count].repeat(len(ids)))
    rows.insert(0, sensor, [*ids] * days)
    return rows, frame.set_axis(frame.index + (times[1] - times[0])) if end else frame


BEGINS = {
    "00:00 to 23:45": clocks(96),
    "0:00 to 23:30": clocks(48, "{}:{:02}"),
    "0h to 23h": clocks(24, "{}h"),
    "00:00:00": clocks(24, "{:02}:{:02}:00"),
    "intervals": [f"{hour:02}:00-{hour + 1:02}:00" for hour in range(24)],
    "0 to 23": [*map(str, range(24))],
    "V00 to V95": [f"V{number:02}" for number in range(96)],
    "hour_0": [f"hour_{number}" for number in range(24)],
    "q000": [f"q{number:03}" for number in range(288)],
}
ENDS = {
    "H01 to H24": [f"H{number:02}" for number in range(1, 25)],
    "1 to 24": [*map(str, range(1, 25))],
    "01:00 to 24:00": clocks(24, first=1),
    "v_1 to v_288": [f"v_{number}" for number in range(1, 289)],
    "00:15 to 24:00": clocks(96, first=1),
}


@pytest.mark.parametrize("sensor", ["Detektor", "ort"])
@pytest.mark.parametrize("kind", [*BEGINS, *ENDS])
def test_times_of_day_become_rows(tmp_path: Path, kind: str, sensor: str) -> None:
    rows, frame = day_table((BEGINS | ENDS)[kind], sensor=sensor, end=kind in ENDS)
    same(converted(saved(rows, tmp_path / "a.csv"), **FLOW), frame)
    back = rows[[*rows.columns[1:], sensor]].sort_values([sensor, "Tag"])
    back["Tag"] = back.Tag.dt.strftime("%d.%m.%Y")
    same(converted(saved(back, tmp_path / "b.csv", sep=";"), **FLOW), frame)


def test_gaps_and_codes_stay_at_their_times(tmp_path: Path) -> None:
    rows, frame = day_table(BEGINS["V00 to V95"])
    lost = np.random.default_rng(1).random((len(rows), 96))
    cells = rows.iloc[:, 2:].astype(object).mask(lost < 0.1, "").mask(lost > 0.9, -1)
    frame = frame.mask(((lost < 0.1) | (lost > 0.9)).reshape(4, 3, 96).transpose(0, 2, 1).reshape(-1, 3))
    path = saved(pd.concat([rows.iloc[:, :2], cells], axis=1), tmp_path / "a.csv")
    same(converted(path, missing="-1", **FLOW), frame)


@pytest.mark.parametrize("form", ["%Y%m%d", "%y%m%d", "%d%m%y"])
def test_the_form_of_the_dates_is_heard(tmp_path: Path, form: str) -> None:
    rows, frame = day_table(ENDS["H01 to H24"], end=True)
    path = saved(rows.assign(Tag=rows.Tag.dt.strftime(form)), tmp_path / "a.csv")
    assert f"--time-format {form}" in asked(path, **FLOW)
    same(converted(path, time_format=form, **FLOW), frame)


def test_columns_beside_the_times_of_day(tmp_path: Path) -> None:
    rows, frame = day_table(clocks(24), ("5-1", "5-2", "6-1", "6-2"))
    both = rows.Detektor.str.split("-", expand=True)
    rows = rows.drop(columns="Detektor").assign(Wochentag="Mo", Total=rows.iloc[:, 2:].sum(axis=1), N=96)
    named = rows.assign(Platz=both[0], Kanal=both[1])
    path = saved(named, tmp_path / "a.csv")
    same(converted(path, sensor_column=["Platz", "Kanal"], **FLOW), frame)
    lanes = pd.DataFrame({"5": frame["5-1"] + frame["5-2"], "6": frame["6-1"] + frame["6-2"]})
    same(converted(saved(rows.assign(Platz=both[0], Spur=both[1]), tmp_path / "b.csv"), **FLOW), lanes)


# ---- days of other lengths


@pytest.mark.parametrize("name", ["H02b", "H02_2", "H24"])
def test_an_hour_that_comes_twice_is_refused(tmp_path: Path, name: str) -> None:
    rows, frame = day_table([f"H{number:02}" for number in range(24)])
    rows.insert(5 if name != "H24" else rows.shape[1], name, 1)
    path = saved(rows, tmp_path / "a.csv")
    assert f"--drop {name} leaves the second one out" in asked(path, "an hour that comes twice", **FLOW)
    same(converted(path, drop=name, **FLOW), frame)


@pytest.mark.parametrize("kind", ["twice", "lost", "letters"])
def test_columns_of_no_whole_day_are_refused(tmp_path: Path, kind: str) -> None:
    names = clocks(24) if kind == "twice" else [f"H{number:02}" for number in range(24)]
    rows, frame = day_table(names)
    if kind == "letters":
        rows = rows.rename(columns={"H02": "H02A"}).assign(H02B=1)
    cells = rows.drop(columns="H05") if kind == "lost" else rows
    cells = pd.concat([rows.iloc[:, :5], rows.iloc[:, 4:]], axis=1) if kind == "twice" else cells
    path = saved(cells, tmp_path / "a.csv")
    assert "--channel" not in asked(path, "make no whole day", "00:00, 01:00", **FLOW)
    if kind == "lost":
        called = dict(zip(names, clocks(24), strict=True))
        same(converted(saved(cells.rename(columns=called), path), **FLOW), lacking(frame, frame.index.hour == 5))


def test_an_hour_that_the_clock_skips_may_be_empty(tmp_path: Path) -> None:
    rows, frame = day_table(clocks(24))
    spring = pd.Timestamp("2023-03-26 02:00")
    cells = rows.astype(object)
    cells.loc[rows.Tag == spring.normalize(), "02:00"] = ""
    frame.loc[spring] = np.nan
    same(converted(saved(cells, tmp_path / "a.csv"), timezone="Europe/Berlin", **FLOW), frame)


@pytest.mark.parametrize("prefix", ["", "d"])
def test_numbered_sensors_are_no_hours(tmp_path: Path, prefix: str) -> None:
    _, frame = day_table(clocks(24), tuple(f"{prefix}{number}" for number in range(1, 25)))
    path = saved(frame.rename_axis("time").reset_index(), tmp_path / "a.csv")
    same(converted(path, **FLOW), frame)
    daily = frame.set_axis(pd.date_range("2023-03-24", periods=len(frame), freq="D"))
    path = saved(daily.rename_axis("time").reset_index(), tmp_path / "b.csv")
    asked(path, "times of day or sensors", **FLOW)


def test_a_row_for_each_sensor_of_one_day(tmp_path: Path) -> None:
    rows, frame = day_table(clocks(24), tuple(f"{number}" for number in range(40)), "ort", days=1)
    [way] = advised(asked(path := saved(rows, tmp_path / "a.csv"), **FLOW) + " --quantity flow", path)
    same(way(), frame)


# ---- lanes


NAMES = [("flow{}", "speed{}"), ("q_{}", "v_{}"), ("Volume {}", "Speed {}"), ("intensidad{}", "velocidad{}")]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("names", NAMES)
def test_lanes_behind_quantities_are_weighted_means(tmp_path: Path, names: tuple[str, str], back: bool) -> None:
    rng = np.random.default_rng(0)
    times = pd.date_range("2024-01-01", periods=50, freq="5min")
    flows, speeds = rng.integers(0, 4, (50, 2, 3)), rng.uniform(20, 90, (50, 2, 3)).round(1)
    cells = {"mq": ["811", "812"] * 50, "zeit": times.repeat(2)}
    for lane in range(3):
        cells[names[0].format(lane + 1)] = flows[..., lane].reshape(-1)  # type: ignore[assignment]
        cells[names[1].format(lane + 1)] = speeds[..., lane].reshape(-1)  # type: ignore[assignment]
    table = pd.DataFrame(cells)
    path = saved(table[table.columns[::-1]] if back else table, tmp_path / "a.csv")
    means = [
        [np.average(v, weights=q) if q.any() else v.mean() for q, v in zip(*lanes, strict=True)]
        for lanes in zip(flows, speeds, strict=True)
    ]
    np.testing.assert_allclose(converted(path)[["811", "812"]].to_numpy(), means, rtol=1e-6)
    same(converted(path, "flow", channel="flow"), pd.DataFrame(flows.sum(axis=2), times, ["811", "812"]))
