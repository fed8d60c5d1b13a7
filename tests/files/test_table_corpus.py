"""Public layouts of tables, each written from one frame of readings: its description gives this frame again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from socialx.files.sources.tables.spec import TableSpec
from tests.data_files import read_table as read

EVERY = "(?P<sensor>.+)"
TIMES = pd.date_range("2024-03-04", periods=192, freq="15min", name="time")
_VALUES = np.random.default_rng(0).integers(1, 90, (192, 3)).astype(float)
_VALUES[np.random.default_rng(1).random(_VALUES.shape) < 0.1] = np.nan
WIDE = pd.DataFrame(_VALUES, TIMES, ["007", "B 2", "ü3"])
LONG = WIDE.rename_axis(columns="road").stack(future_stack=True).to_frame("q").reset_index()
SPEEDS = WIDE.add(0.5)
PER_ROAD = TableSpec({"flow": "q"}, ("time",), ("road",))
PER_COLUMN = TableSpec({"flow": EVERY}, ("time",))
Layout = tuple[Callable[[Path], Any], TableSpec]
LAYOUTS: dict[str, Layout] = {}


def layout(spec: TableSpec) -> Callable[[Callable[[Path], Any]], Callable[[Path], Any]]:
    def add(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
        LAYOUTS[make.__name__] = make, spec
        return make

    return add


def as_frame(grid: Any, spec: TableSpec, feature: int = 0) -> pd.DataFrame:
    values = grid.values[..., feature].astype(float)
    if grid.missing is not None:
        values[values == grid.missing] = np.nan
    times = pd.to_datetime(grid.seconds, unit="s")
    if grid.zone == "UTC" and spec.zone:
        times = times.tz_localize("UTC").tz_convert(spec.zone).tz_localize(None)
    return pd.DataFrame(values, times, list(grid.ids))


def same(grid: Any, spec: TableSpec, frame: pd.DataFrame = WIDE, feature: int = 0) -> None:
    found, wanted = as_frame(grid, spec, feature), frame.dropna(how="all")
    assert (np.diff(grid.seconds) > 0).all()
    assert {*found} == {*frame}
    pd.testing.assert_frame_equal(
        found.dropna(how="all")[list(frame)],
        wanted,
        check_names=False,
        check_index_type=False,
        check_freq=False,
        rtol=1e-6,
    )


def text(path: Path, frame: pd.DataFrame, **how: Any) -> Path:
    frame.to_csv(path, index=False, **how)
    return path


@layout(TableSpec({"flow": EVERY}, ("",)))
def wide_without_a_name_of_the_index(path: Path) -> Any:
    WIDE.rename_axis(None).to_csv(path / "a.csv")
    return path / "a.csv"


@layout(
    TableSpec(
        {"flow": EVERY}, ("Zeit",), form="%d.%m.%Y %H:%M", decimal=",", thousands=".", skip=2, never={"Zeit": "Summe"}
    )
)
def german_export(path: Path) -> Any:
    rows = (
        WIDE.mul(100).rename_axis("Zeit").map(lambda v: "" if np.isnan(v) else f"{v:,.2f}".translate({44: 46, 46: 44}))
    )
    rows.index = TIMES.strftime("%d.%m.%Y %H:%M")
    body = rows.to_csv(sep=";", index_label="Zeit")
    (path / "a.csv").write_text(f"Verkehr der Stadt\nStand: 2024\n{body}Summe;1.000,00;2,0;3,0\nSumme;ohne\n", "cp1252")
    return path / "a.csv"


@layout(TableSpec({"flow": EVERY}, ("time",), encoding="utf-16"))
def utf_16(path: Path) -> Any:
    return text(path / "a.csv", WIDE.reset_index(), encoding="utf-16")


@layout(TableSpec({"flow": "断面"}, ("時刻",), ("番号",), form="%Y/%m/%d %H:%M", encoding="cp932"))
def japan(path: Path) -> Any:
    rows = LONG.assign(road=LONG.road.str.replace("ü", "u"), time=LONG.time.dt.strftime("%Y/%m/%d %H:%M"))
    return text(path / "a.csv", rows.set_axis(["時刻", "番号", "断面"], axis=1), encoding="cp932")


@layout(TableSpec({"flow": "q"}, ("time",)))
def a_file_per_sensor(path: Path) -> Any:
    return [text(path / f"{road}.csv", WIDE[road].rename("q").reset_index()) for road in WIDE]


@layout(PER_COLUMN)
def months_that_overlap_and_have_other_orders(path: Path) -> Any:
    return [
        text(path / "b.csv", WIDE[100:].reset_index()),
        text(path / "a.csv", WIDE[:110][["ü3", "007", "B 2"]].reset_index()),
    ]


@layout(PER_ROAD)
def quoted_cells_and_spaces(path: Path) -> Any:
    rows = LONG.assign(q=LONG.q.map(lambda v: "  NaN " if np.isnan(v) else f" +{v} "), road=LONG.road + " ")
    return text(path / "a.csv", rows, quoting=1)


@layout(TableSpec({"flow": r"V(?P<time>\d\d)"}, ("day",), ("road",), slot_s=900, below=0))
def quarter_hours_in_columns(path: Path) -> Any:
    rows = LONG.assign(
        day=LONG.time.dt.date, slot=((LONG.time.dt.hour * 60 + LONG.time.dt.minute) // 15).map("V{:02}".format)
    )
    table = rows.fillna({"q": -9999}).pivot(index=["day", "road"], columns="slot", values="q")
    return text(path / "a.csv", table.assign(total=0).reset_index())


@layout(TableSpec({"flow": r"(?P<time>\d\d:\d\d)"}, ("day",), ("road",), form="%d.%m.%Y %H:%M"))
def clocks_in_columns(path: Path) -> Any:
    rows = LONG.assign(day=LONG.time.dt.strftime("%d.%m.%Y"), clock=LONG.time.dt.strftime("%H:%M"))
    return text(path / "a.csv", rows.pivot(index=["day", "road"], columns="clock", values="q").reset_index())


@layout(TableSpec({"flow": r"(?P<time>20.+)"}, sensor=("road",)))
def a_row_per_sensor(path: Path) -> Any:
    return text(path / "a.csv", WIDE.T.rename_axis("road").reset_index())


@layout(TableSpec({"flow": "q"}, ("day", "hour"), ("road",), form="%y%m%d %H", shift_s=-3600))
def hours_from_1_to_24(path: Path) -> Any:
    rows = LONG[LONG.time.dt.minute == 0]
    return text(path / "a.csv", rows.assign(day=rows.time.dt.strftime("%y%m%d"), hour=rows.time.dt.hour + 1))


@layout(TableSpec({"flow": "q"}, ("Report Date", "Ending"), ("road",), shift_s=-840))
def ends_of_intervals(path: Path) -> Any:
    rows = LONG.assign(Ending=(LONG.time + pd.Timedelta(minutes=14)).dt.strftime("%H:%M:00"))
    rows["Report Date"] = LONG.time.dt.strftime("%Y-%m-%dT00:00:00")
    return text(path / "a.csv", rows)


@layout(TableSpec({"flow": "q"}, ("time",), ("road",), until="/"))
def both_ends_of_intervals(path: Path) -> Any:
    ends = LONG.time + pd.Timedelta(minutes=15)
    rows = LONG.time.dt.strftime("%Y-%m-%dT%H:%M:%S.000Z/") + ends.dt.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return text(path / "a.csv", LONG.assign(time=rows))


@layout(TableSpec({"flow": "q"}, ("day",), ("road",), seconds="interval", only={"city": "essen"}, never={"error": "1"}))
def seconds_of_the_day(path: Path) -> Any:
    day = LONG.time.dt.normalize()
    rows = LONG.assign(day=day.dt.date, interval=(LONG.time - day).dt.total_seconds(), city="essen", error=0)
    return text(path / "a.csv", pd.concat([rows, rows.assign(city="bern"), rows[:9].assign(error=1, q=1)]))


@layout(TableSpec({"flow": "q"}, sensor=("road",), start="2024-03-04", seconds="begin"))
def seconds_of_a_simulation(path: Path) -> Any:
    return text(path / "a.csv", LONG.assign(begin=(LONG.time - TIMES[0]).dt.total_seconds()), sep=";")


@layout(TableSpec({"flow": "q"}, ("time",), ("road", "way")))
def a_sensor_of_two_columns(path: Path) -> Any:
    return text(path / "a.csv", LONG.assign(road=LONG.road.str[:1], way=LONG.road.str[1:].str.strip()))


@layout(TableSpec({"speed": r"speed(?P<lane>\d)"}, ("time",), ("road",), weights=r"flow(?P<lane>\d)"))
def lanes_in_columns(path: Path) -> Any:
    return text(path / "a.csv", LONG.assign(speed1=LONG.q / 2, flow1=3, speed2=LONG.q * 2.5, flow2=1))


@layout(TableSpec({"flow": "q"}, ("time",), ("road",), ("lane",)))
def lanes_in_rows(path: Path) -> Any:
    return text(path / "a.csv", pd.concat([LONG.assign(lane=1, q=LONG.q - 1), LONG.assign(lane=2, q=1)]))


@layout(TableSpec({"flow": r"(?P<sensor>.+)_L(?P<lane>\d)"}, ("time",)))
def lanes_in_names(path: Path) -> Any:
    return text(
        path / "a.csv", pd.concat([(WIDE / 2).add_suffix("_L1"), (WIDE / 2).add_suffix("_L2")], axis=1).reset_index()
    )


@layout(TableSpec({"flow": "q"}, ("time",), ("road",), form="%m/%d/%Y %I:%M:%S %p", round_s=900))
def a_clock_that_runs_freely(path: Path) -> Any:
    moved = LONG.time + pd.to_timedelta(np.arange(len(LONG)) % 41, unit="s")
    return text(path / "a.csv", LONG.assign(time=moved.dt.strftime("%m/%d/%Y %I:%M:%S %p")))


@layout(TableSpec({"flow": "q"}, ("time",), ("road",), form="s"))
def seconds_since_1970(path: Path) -> Any:
    return text(path / "a.csv", LONG.assign(time=LONG.time.astype("datetime64[s]").astype(np.int64)))


@layout(TableSpec({"flow": "q"}, ("time",), ("road",), form="ms"))
def milliseconds_since_1970(path: Path) -> Any:
    return text(path / "a.csv", LONG.assign(time=1000 * LONG.time.astype("datetime64[s]").astype(np.int64)))


@layout(TableSpec({"flow": EVERY}, ("Tid",), form="excel"))
def serial_days(path: Path) -> Any:
    days = pd.Series((TIMES - pd.Timestamp("1899-12-30")) / pd.Timedelta(days=1)).round(9)
    return text(path / "a.csv", WIDE.set_axis(days).rename_axis("Tid").reset_index())


@layout(TableSpec({"flow": "q"}, ("time",), ("road",), zone="Europe/Paris"))
def offsets_from_utc(path: Path) -> Any:
    return text(path / "a.csv", LONG.assign(time=LONG.time.dt.tz_localize("Europe/Paris").map(pd.Timestamp.isoformat)))


@layout(TableSpec({"flow": "q"}, ("time",), ("road",), form="%Y-%m-%d %H:%M:%S%z", zone="Europe/Paris"))
def offsets_by_a_form(path: Path) -> Any:
    times = LONG.time.dt.tz_localize("Europe/Paris").dt.strftime("%Y-%m-%d %H:%M:%S%z")
    return text(path / "a.csv", LONG.assign(time=times))


@layout(PER_ROAD)
def json_lines(path: Path) -> Any:
    rows = json.loads(LONG.assign(time=LONG.time.astype(str)).to_json(orient="records"))
    (path / "a.jsonl").write_text("".join(json.dumps(row | {"at": [1, 2]}) + "\n\n" for row in rows))
    return path / "a.jsonl"


@layout(TableSpec({"flow": "data.q"}, ("time",), ("road",)))
def objects_in_an_array(path: Path) -> Any:
    rows = json.loads(LONG.assign(time=LONG.time.astype(str)).to_json(orient="records"))
    (path / "a.json").write_text(json.dumps([{**row, "data": {"q": row["q"]}} for row in rows], indent=1))
    return path / "a.json"


@layout(PER_ROAD)
def long_parquet(path: Path) -> Any:
    LONG.astype({"road": "category", "q": "float32"}).to_parquet(path / "a.parquet")
    return path / "a.parquet"


@layout(PER_COLUMN)
def a_workbook_with_a_cover(path: Path) -> Any:
    with pd.ExcelWriter(path / "a.xlsx") as book:
        pd.DataFrame([["Traffic"], ["of the county"]]).to_excel(book, sheet_name="cover", index=False, header=False)
        WIDE[:90].to_excel(book, sheet_name="one")
        WIDE[90:].to_excel(book, sheet_name="two")
    return path / "a.xlsx"


@layout(TableSpec({"flow": f"{EVERY}_flow"}, ("time",)))
def a_frame_with_two_levels_of_columns(path: Path) -> Any:
    return pd.concat({"flow": WIDE, "speed": SPEEDS}, axis=1).swaplevel(axis=1)


@layout(TableSpec({"flow": "q"}, ("time",), ("road",), names=("time", "road", "q")))
def no_header(path: Path) -> Any:
    return text(path / "a.csv", LONG, header=False)


@layout(PER_ROAD)
def a_row_of_nothing_at_the_end(path: Path) -> Any:
    path = text(path / "a.csv", LONG)
    path.write_text(path.read_text() + ",,\n\n,,\n")
    return path


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_described_layout_gives_the_readings(name: str, tmp_path: Path) -> None:
    make, spec = LAYOUTS[name]
    wanted = WIDE
    if name == "japan":
        wanted = WIDE.set_axis(["007", "B 2", "u3"], axis=1)
    if name == "a_sensor_of_two_columns":
        wanted = WIDE.set_axis(["0-07", "B-2", "ü-3"], axis=1)
    if name == "hours_from_1_to_24":
        wanted = WIDE[::4]
    if name == "german_export":
        wanted = WIDE * 100
    same(read(make(tmp_path), spec), spec, wanted)


def test_numbers_without_times_and_names_begin_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    WIDE.to_csv(path, header=False, index=False)
    grid = read(path, TableSpec({"flow": EVERY}, start="2024-03-04 00:00:00", step_s=900))
    np.testing.assert_array_equal(grid.values[..., 0], WIDE.to_numpy(np.float32))
    assert pd.to_datetime(grid.seconds, unit="s").equals(TIMES.as_unit("s"))
    assert len(grid.ids) == 3


def test_several_quantities_of_long_and_of_wide_tables(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", LONG.assign(v=LONG.q + 0.5, note="x"))
    spec = TableSpec({"flow": "q", "speed": "v"}, ("time",), ("road",))
    grid = read(path, spec)
    same(grid, spec)
    same(grid, spec, SPEEDS, 1)
    assert "note" in str(grid.notes[0])
    both = pd.concat([WIDE.add_prefix("q "), SPEEDS[["007", "ü3"]].add_prefix("v ")], axis=1).reset_index()
    spec = TableSpec({"flow": f"q {EVERY}", "speed": f"v {EVERY}"}, ("time",))
    grid = read(text(path, both), spec)
    same(grid, spec)
    same(grid, spec, SPEEDS.assign(**{"B 2": np.nan}), 1)


def test_positions_in_the_rows(tmp_path: Path) -> None:
    at = {"007": (52.5, 13.4), "B 2": (52.6, 13.5), "ü3": (-1.0, 0.25)}
    rows = LONG.assign(lat=LONG.road.map(lambda road: at[road][0]), lon=LONG.road.map(lambda road: at[road][1]))
    spec = TableSpec({"flow": "q"}, ("time",), ("road",), latitude="lat", longitude="lon")
    assert read(text(tmp_path / "a.csv", rows), spec).positions == at


def through_autumn() -> tuple[pd.DataFrame, pd.DatetimeIndex]:
    times = pd.date_range("2024-10-26 22:00", periods=48, freq="15min", tz="UTC")
    values = np.random.default_rng(0).integers(1, 90, (48, 3)).astype(float)
    return pd.DataFrame(values, times.tz_localize(None), ["a", "b", "c"]), times.tz_convert("Europe/Paris")


@pytest.mark.parametrize("order", ["time", "newest", "sensor"])
def test_the_hour_that_comes_twice(order: str, tmp_path: Path) -> None:
    frame, wall = through_autumn()
    shown = frame.set_axis(wall.strftime("%Y-%m-%d %H:%M")).rename_axis("time").reset_index()
    spec = TableSpec({"flow": EVERY}, ("time",), zone="Europe/Paris")
    if order == "newest":
        shown = shown[::-1]
    if order == "sensor":
        shown = shown.melt("time", var_name="road", value_name="q")
        spec = TableSpec({"flow": "q"}, ("time",), ("road",), zone="Europe/Paris")
    grid = read(text(tmp_path / "a.csv", shown), spec)
    assert grid.zone == "UTC"
    same(grid, TableSpec({"flow": EVERY}, ("time",)), frame)


def test_rows_in_any_order_through_a_change_of_clocks(tmp_path: Path) -> None:
    times = pd.date_range("2024-10-26", periods=48, freq="1h", name="time")
    frame = pd.DataFrame({"a": np.arange(48.0), "b": np.arange(48.0) + 1}, times)
    rows = frame.rename_axis(columns="road").stack().to_frame("q").reset_index().sample(frac=1, random_state=1)
    spec = TableSpec({"flow": "q"}, ("time",), ("road",), zone="Europe/Paris")
    grid = read(text(tmp_path / "a.csv", rows), spec)
    assert grid.zone == "Europe/Paris"
    same(grid, spec, frame)


def test_lanes_leave_out_what_no_road_has(tmp_path: Path) -> None:
    rows = LONG.dropna()
    path = text(
        tmp_path / "a.csv",
        pd.concat([rows.assign(lane=lane, v=v) for lane, v in (("L1", 60), ("L2", -1), ("L3", 900))]),
    )
    grid = read(path, TableSpec({"speed": "v"}, ("time",), ("road",), ("lane",), units={"speed": "km/h"}))
    assert (grid.values[np.isfinite(grid.values)] == 60).all()
    assert grid.lanes == ("1, 2, 3",) * 3
    assert "impossible" in str(grid.notes[-1])


def test_a_file_keeps_the_number_of_a_missing_reading(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", WIDE.fillna(0).reset_index())
    grid = read(path, TableSpec({"speed": EVERY}, ("time",)))
    assert grid.missing == 0
    np.testing.assert_array_equal(grid.values[..., 0], WIDE.fillna(0))
    assert read(path, PER_COLUMN).missing is None
