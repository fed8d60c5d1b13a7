"""The findings on a file, and what fails it."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import h5py
import numpy as np
import pytest
from rich.console import Console

from socialx.core.errors import SettingsError
from socialx.drawing.terminal import percent
from socialx.files.store import time_axis
from socialx.files.store.layout import Sensors
from socialx.files.store.store import open_store
from socialx.files.store.writer import create
from socialx.inspection.checks import CHECKS, PROBLEMS, failed_checks, parse, problems, remarks
from socialx.inspection.report import Report, inspect
from socialx.inspection.tables import print_report
from tests.data_files import IDS, altered, block, changed, made_up, refusal, small_store, timestamps


def test_a_good_file_has_no_problems(tmp_path: Path) -> None:
    path = small_store(tmp_path / "out.h5")
    report = inspect(path)
    assert problems(report) == []
    assert (report.dataset, report.rows, report.declared_rows, report.sensors) == ("metr_la", 40, 40, 3)
    first, *_, last = timestamps(40)
    assert (report.first_timestamp, report.last_timestamp, report.step_minutes) == (first, last, 5)
    assert (report.gaps, report.largest_gap_minutes, report.duplicates) == (0, 0, 0)
    assert (report.unit, report.checksum) == ("mph", open_store(path).checksum)
    assert json.loads(json.dumps(report.as_dict())) == report.as_dict()


def _lose_positions(file: h5py.File) -> None:
    for vdid in IDS[:2]:
        file["metadata/vd_info"][vdid].attrs["position_lat"] = np.nan


def _repeat(file: h5py.File, name: str) -> None:
    file[name][5] = file[name][4]


INFO, EPOCHS = "metadata/vd_info", "metadata/timestamps_epoch"
# A change to a good file, and the checks that fail it.
CASES: dict[str, tuple[Callable[[h5py.File], object], list[str]]] = {
    "rows": (lambda f: f.attrs.__setitem__("num_timesteps", 39), ["rows"]),
    "no rows": (lambda f: f.attrs.__setitem__("num_timesteps", 0), ["rows"]),
    "positions": (_lose_positions, ["positions"]),
    "a group missing": (lambda f: f.pop(f"{INFO}/{IDS[0]}"), ["positions", "vd_info"]),
    "an empty group": (lambda f: (f.pop(f"{INFO}/{IDS[0]}"), f.create_group(f"{INFO}/{IDS[0]}")), ["positions"]),
    "a strange group": (lambda f: f.create_group(f"{INFO}/9"), ["vd_info"]),
    "no vd_info": (lambda f: f.pop(INFO), ["positions", "vd_info"]),
    "shifted epochs": (lambda f: f[EPOCHS].write_direct(f[EPOCHS][:] + 28800), ["epochs"]),
    "a repeated epoch": (lambda f: _repeat(f, EPOCHS), ["order", "epochs"]),
    "a repeated timestamp": (lambda f: (_repeat(f, "metadata/timestamps"), f.pop(EPOCHS)), ["duplicates", "order"]),
    "no epochs": (lambda f: f.pop(EPOCHS), []),
    "no count": (lambda f: f.attrs.pop("num_timesteps"), []),
}


@pytest.mark.parametrize("case", CASES)
def test_what_fails_a_file(tmp_path: Path, case: str) -> None:
    change, expected = CASES[case]
    report = inspect(changed(small_store(tmp_path / "out.h5"), change))
    assert [name for name in PROBLEMS if failed_checks(report, [name])] == expected
    assert len(problems(report)) == len(expected)


def reported(
    path: Path,
    values: np.ndarray,
    times: list[str] | None = None,
    *,
    timezone: str | None = None,
    missing: float | None = None,
    degrees: list[tuple[float, float]] | None = None,
) -> Report:
    """The report on a made-up file; values [T,N], degrees: latitude and longitude of each sensor."""
    ids = tuple("abcdefghijklmnopqrstuvwxyz"[: values.shape[1]])
    readings = made_up([block(times or timestamps(len(values)), values)], ids)
    if degrees is not None:
        latitude, longitude = np.array(degrees, float).T
        readings = replace(readings, sensors=Sensors(ids, latitude, longitude))
    create(path / "out.h5", replace(readings, timezone=timezone, missing=missing), overwrite=True)
    return inspect(path / "out.h5")


def moving(rows: int, sensors: int = 3) -> np.ndarray:
    """Speeds [T,N] of 10 to 69 of which no two neighbours in time are equal."""
    return 10.0 + (np.arange(rows)[:, None] + 7 * np.arange(sensors)) % 60


def test_shares_of_every_sensor(tmp_path: Path) -> None:
    values = moving(20)
    values[:5, 0], values[3:5, 1], values[10:14, 1] = 0, np.nan, 0
    report = reported(tmp_path, values)
    assert report.sensor_missing_share == pytest.approx({"a": 0, "b": 0.1, "c": 0})  # nothing says that 0 is missing
    assert (report.zero_share, report.missing_share) == pytest.approx((9 / 60, 2 / 60))
    report = reported(tmp_path, values, missing=0.0)
    assert report.sensor_missing_share == pytest.approx({"a": 0.25, "b": 0.3, "c": 0})
    assert (report.missing_share, problems(report)) == (pytest.approx(11 / 60), [])
    assert list(report.sensor_missing_share) == ["a", "b", "c"]
    worst = reported(tmp_path, np.where(np.arange(9) == 7, np.nan, moving(20, 9))).worst_sensors
    assert list(worst) == ["h", "a", "b", "c", "d"]  # only five are listed


def test_dead_sensors(tmp_path: Path) -> None:
    values = moving(20, 4)
    values[:, 1], values[:, 2], values[1:, 3] = np.nan, 0, np.nan
    assert reported(tmp_path, values).dead_sensors == ["b"]
    assert reported(tmp_path, values, missing=0.0).dead_sensors == ["b", "c"]


def test_stuck_sensors_repeat_a_value_for_six_hours(tmp_path: Path) -> None:
    values = moving(300, 5)
    values[10:82, 0] = 33.3  # 72 rows: 6 h
    values[10:81, 1] = 33.3  # 5 h 55 min
    values[100:300, 2] = 44.4
    values[:90, 2] = 22.2
    values[10:82, 3], values[40, 3] = 33.3, np.nan  # a missing reading ends it
    values[200:280, 4] = 0
    assert reported(tmp_path, values).stuck_sensors == pytest.approx({"c": 200 / 12, "e": 80 / 12, "a": 6})
    assert reported(tmp_path, values, missing=0.0).stuck_sensors == pytest.approx({"c": 200 / 12, "a": 6})


def weeks(days: int, holiday: int, like: int) -> tuple[np.ndarray, list[str]]:
    """Hourly readings from a Monday on: a jam on working days, half of it on Saturdays; one day is like another."""
    rng, jam = np.random.default_rng(0), 25 * np.exp(-(((np.arange(24) - 17) / 2) ** 2))
    kinds = [(0, 0.5, 1)[2 - max(day % 7 - 4, 0)] for day in range(days)]
    kinds[holiday] = (1, 0.5, 0)[like]
    values = np.concatenate([65 - jam * kind for kind in kinds])[:, None] + rng.normal(0, 1, (24 * days, 3))
    return values, [f"2024-01-{1 + day:02} {hour:02}:00:00" for day in range(days) for hour in range(24)]


def test_a_working_day_like_a_sunday_is_named(tmp_path: Path) -> None:
    for like, name in ((2, "Sunday"), (1, "Saturday")):
        assert reported(tmp_path, *weeks(21, 9, like)).unusual_days == {"2024-01-10": name}
    assert reported(tmp_path, *weeks(21, 9, 0)).unusual_days == {}
    assert reported(tmp_path, *weeks(13, 9, 2)).unusual_days == {}  # one Sunday tells nothing
    values, times = weeks(21, 9, 2)
    values[24 * 9 + 12] = np.nan  # an hour of the day is missing
    assert reported(tmp_path, values, times).unusual_days == {}


def test_a_cap_may_be_kept_all_night(tmp_path: Path) -> None:
    values = moving(400, 2)
    values[10:297, 0], values[10:298, 1] = 70, 70  # 5 minutes less than a day, a day
    assert reported(tmp_path, values).stuck_sensors == {"b": 24}
    values[399, 0] = 70.1  # so that 70 is no cap
    assert list(reported(tmp_path, values).stuck_sensors) == ["b", "a"]


def test_a_time_gap_ends_a_stuck_run(tmp_path: Path) -> None:
    values = moving(100, 1)
    values[10:90] = 33.3
    times = timestamps(101)
    assert reported(tmp_path, values, times[:100]).stuck_sensors == pytest.approx({"a": 80 / 12})
    assert reported(tmp_path, values, times[:50] + times[51:]).stuck_sensors == {}


def test_the_longest_outage_of_one_sensor(tmp_path: Path) -> None:
    values = moving(30)
    assert reported(tmp_path, values).sensor_longest_outage is None
    values[2:5], values[9:20, 1], values[24:, 2] = np.nan, np.nan, np.nan
    report = reported(tmp_path, values)
    assert report.sensor_longest_outage == {"sensor": "b", "steps": 11, "first_timestamp": timestamps(30)[9]}
    assert (report.all_missing_rows, report.longest_outage_steps) == (3, 3)
    values[:, 2] = np.nan
    assert reported(tmp_path, values).sensor_longest_outage == {
        "sensor": "c",
        "steps": 30,
        "first_timestamp": timestamps(1)[0],
    }


def test_gaps_are_listed_with_what_is_missing(tmp_path: Path) -> None:
    times = timestamps(30)
    report = reported(tmp_path, moving(22), times[:5] + times[7:13] + times[19:])
    assert report.gap_list == [
        {"from": times[4], "to": times[7], "missing_rows": 2},
        {"from": times[12], "to": times[19], "missing_rows": 6},
    ]
    assert (report.gaps, report.largest_gap_minutes, report.irregular_steps) == (2, 35, 0)


def test_the_twenty_largest_gaps_are_listed_in_order_of_time(tmp_path: Path) -> None:
    times = [time for row, time in enumerate(timestamps(600)) if row < 100 or row % 20 > (1 if row < 200 else 2)]
    report = reported(tmp_path, moving(len(times)), times)
    sizes = [gap["missing_rows"] for gap in report.gap_list]
    starts = [gap["from"] for gap in report.gap_list]
    assert (report.gaps, len(sizes), sizes.count(3), starts) == (25, 20, 20, sorted(starts))


def test_steps_that_fit_no_grid(tmp_path: Path) -> None:
    times = timestamps(20) + timestamps(5, "2012-03-01T01:42:00") + timestamps(5, "2012-03-01T02:22:00")
    report = reported(tmp_path, moving(30), times)
    assert (report.irregular_steps, report.gaps, [gap["missing_rows"] for gap in report.gap_list]) == (1, 2, [1, 3])
    early = [*timestamps(20), "2012-03-01 01:38:00"]
    assert (reported(tmp_path, moving(21), early).irregular_steps, inspect(tmp_path / "out.h5").gaps) == (1, 0)


def test_the_jitter_of_a_clock_is_neither_gap_nor_irregular(tmp_path: Path) -> None:
    times = timestamps(40)
    late = [time[:-2] + ("03" if row % 7 == 3 else "00") for row, time in enumerate(times)]
    report = reported(tmp_path, np.full((40, 1), 5.0), late)
    assert (report.gaps, report.irregular_steps, report.step_minutes) == (0, 0, 5)
    report = reported(tmp_path, moving(39, 1), late[:20] + late[21:])
    assert [gap["missing_rows"] for gap in report.gap_list] == [1]


def clock(report: Report) -> tuple[int | None, int | None, int | None]:
    return report.nonexistent_rows, report.nonexistent_rows_read, report.ambiguous_rows


def test_the_hour_that_spring_skips(tmp_path: Path) -> None:
    times, values = timestamps(72, "2012-03-11T00:00:00"), moving(72)
    assert clock(reported(tmp_path, values, times, timezone="America/Los_Angeles")) == (12, 12, 0)
    values[24:36] = 0
    values[30, 1] = 5
    assert clock(reported(tmp_path, values, times, timezone="America/Los_Angeles", missing=0.0)) == (12, 1, 0)
    assert clock(reported(tmp_path, moving(60), times[:24] + times[36:], timezone="America/Los_Angeles")) == (0, 0, 0)
    assert clock(reported(tmp_path, values, times, timezone="Asia/Taipei")) == (0, 0, 0)


def test_the_hour_that_autumn_repeats(tmp_path: Path) -> None:
    times = timestamps(72, "2012-11-04T00:00:00")
    assert clock(reported(tmp_path, moving(72), times, timezone="America/Los_Angeles")) == (0, 0, 12)
    report = reported(tmp_path, moving(72), times, timezone="America/Los_Angeles")
    assert json.loads(json.dumps(report.as_dict())) == report.as_dict()


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Taipei"])
def test_clock_changes_are_those_of_zoneinfo(tmp_path: Path, zone: str) -> None:
    """Python's own rule, row by row: offsets that grow with ``fold`` skip a time, ones that shrink repeat it."""
    times = [text[:16] + ":00" for text in timestamps(2 * 24 * 366, "2016-01-01T00:00:00", minutes=30)]
    skipped = repeated = 0
    for text in times:
        first, second = (
            datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).utcoffset() for fold in (0, 1)
        )
        assert first is not None
        assert second is not None
        skipped, repeated = skipped + (second > first), repeated + (second < first)
    assert clock(reported(tmp_path, moving(len(times), 1), times, timezone=zone)) == (skipped, skipped, repeated)
    assert bool(skipped) == (zone != "Asia/Taipei")


@pytest.mark.parametrize("zone", [None, "Mars/Base", "../etc/passwd", "America", "/etc/localtime", "\u53f0\u5317"])
def test_no_clock_changes_without_a_known_zone(tmp_path: Path, zone: str | None) -> None:
    report = reported(tmp_path, moving(72), timestamps(72, "2012-03-11T00:00:00"), timezone=zone)
    assert (clock(report), report.timezone, len(failed_checks(report, ["timezone"]))) == ((None, None, None), zone, 1)


def test_no_clock_changes_without_time_zone_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(f"No time zone found with key {name}")

    monkeypatch.setattr(time_axis, "ZoneInfo", gone)
    assert clock(reported(tmp_path, moving(72), timezone="America/Los_Angeles")) == (None, None, None)


def test_times_at_the_edges_of_the_calendar(tmp_path: Path) -> None:
    times = ["0001-01-01 00:00:00", "0001-01-01 00:05:00", "9999-12-31 23:50:00", "9999-12-31 23:55:00"]
    assert clock(reported(tmp_path, moving(4), times, timezone="America/Los_Angeles")) == (0, 0, 0)


KM = 1 / 111.195  # degrees of latitude
LINE = [(34 + place * KM, -118.0) for place in range(5)]  # a sensor every km


def test_sensors_in_one_place(tmp_path: Path) -> None:
    report = reported(tmp_path, moving(20, 8), degrees=[*LINE, LINE[1], (np.nan, np.nan), LINE[1]])
    assert (report.duplicate_positions, report.without_position) == ([["b", "f", "h"]], ["g"])
    assert (report.outlier_sensors, report.extent_km) == ([], pytest.approx([0, 4], abs=1e-3))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([(34 + 13.9 * KM, -118)], []),  # 9.9 km from the next
        ([(34 + 14.1 * KM, -118)], ["f"]),
        ([(34 + 14.1 * KM, -118), (34 + 14.1 * KM, -118)], ["f", "g"]),  # two in one place are no company
        ([(34 + 40 * KM, -118), (34 + 42 * KM, -118)], []),
        ([(0, 1)], ["f"]),
        ([(0, 0)], []),  # no place at all
        ([(39, -118), (39 + KM, -118)], ["f", "g"]),  # 555 km away, together
        ([(38, -118), (38 + KM, -118)], []),
    ],
)
def test_sensors_far_from_all_others(tmp_path: Path, more: list[tuple[float, float]], expected: list[str]) -> None:
    assert reported(tmp_path, moving(20, 5 + len(more)), degrees=LINE + more).outlier_sensors == expected


def test_far_is_measured_by_the_network_itself(tmp_path: Path) -> None:
    wide = [(34 + 20 * place * KM, -118.0) for place in range(5)]
    assert reported(tmp_path, moving(20, 6), degrees=[*wide, (34 + 270 * KM, -118.0)]).outlier_sensors == []
    assert reported(tmp_path, moving(20, 6), degrees=[*wide, (34 + 290 * KM, -118.0)]).outlier_sensors == ["f"]


@pytest.mark.parametrize("known", [0, 1])
def test_one_position_or_none(tmp_path: Path, known: int) -> None:
    report = reported(tmp_path, moving(20, 2), degrees=[*LINE[:known], *[(np.nan, 5.0)] * (2 - known)])
    assert report.extent_km == ([0, 0] if known else None)
    assert (report.outlier_sensors, report.duplicate_positions) == ([], [])


def test_units_and_features(tmp_path: Path) -> None:
    report = reported(tmp_path, moving(20))
    assert report.features == ["avg_speed", "latitude", "longitude"]
    assert report.units == {"avg_speed": "km/h", "latitude": "degrees", "longitude": "degrees"}
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        del file["metadata/units"]
        file["metadata/units"] = np.bytes_(json.dumps({"latitude": "degrees"}))
    report = inspect(tmp_path / "out.h5")
    assert report.units == {"avg_speed": "unknown", "latitude": "degrees", "longitude": "unknown"}
    assert report.unit == "unknown"


def test_rows_without_a_time_are_counted_and_left_out(tmp_path: Path) -> None:
    reported(tmp_path, moving(20))
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        for row in (4, 5):
            file["metadata/timestamps"][row] = b""
            file["metadata/timestamps_epoch"][row] = 0
    report = inspect(tmp_path / "out.h5")
    assert (report.rows, report.failed_rows, report.declared_rows, report.wrong_epochs) == (18, 2, 20, 0)
    assert (problems(report), report.gaps) == ([], 1)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A file that passes every check."""
    return reported(tmp_path_factory.mktemp("clean"), moving(40), timezone="America/Los_Angeles")


GAP = {"gaps": 1, "largest_gap_minutes": 15.0, "gap_list": [{"from": "x", "to": "y", "missing_rows": 2}]}
FAILS: dict[str, tuple[dict[str, Any], str]] = {
    "rows": ({"declared_rows": 41}, "40 rows"),
    "duplicates": ({"duplicates": 2}, "2 rows have"),
    "positions": ({"without_position": ["b"]}, "(b)"),
    "vd_info": ({"without_info": ["b"], "unknown_info": ["x"]}, "(b)"),
    "order": ({"backward_steps": 1}, "1 row is"),
    "epochs": ({"wrong_epochs": 3}, "3 values of"),
    "coordinates": ({"duplicate_positions": [["a", "b"]], "outlier_sensors": ["c"]}, "(a=b)"),
    "gaps": (GAP, "(x .. y)"),
    "regular": ({"irregular_steps": 4}, "4 steps are"),
    "dead": ({"dead_sensors": ["c"]}, "(c)"),
    "stuck": ({"stuck_sensors": {"c": 7.25}}, "(c 7.2 h)"),
    "range": ({"fast_readings": 30, "fast_sensors": ["b"], "unit": "mph", "highest": 999.0}, "(b)"),
    "negative": ({"negative_readings": 4000, "most_negative": -1.0}, "4,000 readings of"),
    "zeros": ({"zero_share": 0.25, "missing": -1.0}, "'0,-1'"),
    "odd_values": (
        {
            "odd_values": {
                "b": {"value": 255.0, "readings": 20, "share": 0.2},
                "c": {"value": 254.5, "readings": 1, "share": 0.1},
            }
        },
        "'255,254.5'",
    ),
    "outage": ({"longest_outage_steps": 289}, "(289 rows)"),
    "units": ({"unit": "unknown"}, "socialx.backfill('FILE', units="),
    "timezone": ({"timezone": None}, "socialx.backfill('FILE', timezone="),
}


def test_the_table_of_checks(clean: Report) -> None:
    assert (list(FAILS), list(PROBLEMS)) == (list(CHECKS), list(FAILS)[:6])
    assert problems(clean) == remarks(clean) == failed_checks(clean, ["all"]) == []


@pytest.mark.parametrize("name", FAILS)
def test_a_check_fails_when_it_should_and_alone(clean: Report, name: str) -> None:
    change, words = FAILS[name]
    report = altered(clean, **change)
    assert [other for other in CHECKS if failed_checks(report, [other])] == [name]
    (line,) = failed_checks(report, [name])
    assert failed_checks(report, ["all"]) == [line]
    assert words.replace("FILE", clean.path) in line
    severe = name in PROBLEMS
    assert (problems(report), remarks(report)) == (([line], []) if severe else ([], [line]))


def test_what_no_check_minds(clean: Report) -> None:
    fine = {"longest_outage_steps": 288, "declared_rows": None, "wrong_epochs": None, "nonexistent_rows": 12}
    assert failed_checks(altered(clean, **fine), ["all"]) == []
    (line,) = failed_checks(altered(clean, timezone="Mars/Base", nonexistent_rows=None), ["all"])
    assert "'Mars/Base'" in line


def test_failed_asks_only_what_is_named(clean: Report) -> None:
    report = altered(clean, duplicates=1, dead_sensors=["c"], **GAP)
    assert failed_checks(report, []) == failed_checks(report, ["rows", "stuck"]) == []
    assert (len(failed_checks(report, ["dead", "duplicates"])), len(failed_checks(report, ["all", "dead"]))) == (2, 3)


def test_names_of_checks_as_typed() -> None:
    assert (parse("positions, gaps"), parse("all")) == (["positions", "gaps"], ["all"])
    for text, hint in (("positions,gap", "use gaps"), ("", "choose one"), ("xyzzy", "choose one")):
        line = refusal(lambda text=text: parse(text), "rows, duplicates, positions", "timezone, all", hint)
        assert text.split(",")[-1] in line
    with pytest.raises(SettingsError, match=r"'possitions'(.|\n)*use positions"):
        parse(["rows", "possitions"])


def printed(report: Report) -> str:
    out = io.StringIO()
    print_report(report, console=Console(width=100, file=out))
    return out.getvalue()


def test_the_printed_report_names_what_is_wrong(clean: Report) -> None:
    report = altered(
        clean,
        dead_sensors=["a", "b"],
        stuck_sensors={"c": 12.5},
        sensor_longest_outage={"sensor": "a", "steps": 1200, "first_timestamp": "2012-03-01 00:00:00"},
        irregular_steps=7,
        nonexistent_rows=12,
        nonexistent_rows_read=3,
        ambiguous_rows=24,
        duplicate_positions=[["a", "b"]],
        outlier_sensors=["c"],
        failed_rows=5,
        worst_sensors={"a": 1.0, "b": 0.0001},
    )
    text = printed(clean)
    assert (len(text.splitlines()), max(map(len, text.splitlines())) <= 100) == (17, True)
    assert "0 rows in" in text
    assert "longitude" in text
    text = printed(report)
    for words in (
        "2: a, b",
        "1: c 12.5 h",
        "sensor a, 1,200 rows (100.0 h) from 2012-03-01 00:00:00",
        "7 irregular steps",
        "12 rows in skipped hours, 3 of them with a reading; 24 in repeated hours",
        "2 share a location, 1 far from all others",
        "a 100.0%, b <0.1%",
    ):
        assert words in text
    assert "stored" in printed(altered(clean, timezone=None, nonexistent_rows=None))
    assert "Base not known" in printed(altered(clean, timezone="Mars/Base", nonexistent_rows=None))
    assert "none; 0 share" in printed(altered(clean, extent_km=None))


def test_shares_that_are_small_do_not_look_like_none() -> None:
    assert [percent(share) for share in (0, 1e-9, 0.00049, 0.0005, 0.081, 1)] == [
        "0.0%", "<0.1%", "<0.1%", "0.1%", "8.1%", "100.0%"
    ]  # fmt: skip
