"""Numbers that may stand for no reading are remarked upon, with what settles it; honest readings are not."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from socialx.files.store.writer import create
from socialx.inspection.checks import remarks
from socialx.inspection.report import Report, inspect
from tests.commands import EXCERPT, LOCATIONS, ROOT, socialx
from tests.data_files import IDS, block, made_up, timestamps, write_csv, write_locations

ROWS = 600


def speeds() -> np.ndarray:
    """float64 [T,N] in mph, one decimal, between 5 and 70."""
    return np.random.default_rng(5).uniform(5, 70, (ROWS, 3)).round(1)


def report_of(path: Path, values: np.ndarray) -> Report:
    create(path, made_up([block(timestamps(len(values)), values)]))
    return inspect(path)


def doubts(report: Report) -> list[str]:
    return [line for line in remarks(report) if "missing=" in line]


@pytest.mark.parametrize("number", [255.0, 999.0, 99.0, -999.0, 250.5])
def test_a_frequent_number_far_from_all_others_is_named(tmp_path: Path, number: float) -> None:
    values = speeds()
    values[::5, 1] = number
    found = report_of(tmp_path / "a.h5", values)
    assert found.odd_values == {IDS[1]: {"value": number, "readings": ROWS // 5, "share": pytest.approx(0.2)}}
    for words in (f"{number:g} is in", "120 readings", IDS[1], f"missing={number:g}"):
        assert words in doubts(found)[-1]


def test_readings_below_0_are_counted_and_the_most_frequent_is_named(tmp_path: Path) -> None:
    values = speeds()
    values[::5, 0], values[1, 1], values[2, 2] = -1, -7, -1
    found = report_of(tmp_path / "a.h5", values)
    assert (found.negative_readings, found.most_negative, found.odd_values) == (ROWS // 5 + 2, -1, {})
    (line,) = doubts(found)
    assert re.match("122 .* avg_speed ", line)


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values,
        lambda values: np.minimum(values, 40),  # a cap
        lambda values: np.maximum(values, 30),
        lambda values: np.where(np.arange(ROWS)[:, None] == 20, 255, values),  # one row
        lambda values: np.where(np.arange(ROWS)[:, None] % 20 == 0, 80, values),  # near the others
        lambda values: np.where(np.arange(ROWS)[:, None] % 20 == 0, 100 + values.cumsum(axis=0) % 97, values),
        lambda values: 5 * np.rint(14 - values**0.5),  # most are the highest but one
        lambda values: np.where(values > 30, 65.0, 20.0),  # switches between two speeds
        lambda values: np.full_like(values, 60),
        lambda values: np.full_like(values, np.nan),
        lambda values: values.round(-1),
    ],
)
def test_honest_readings_are_not_remarked_upon(tmp_path: Path, change: object) -> None:
    assert doubts(report_of(tmp_path / "a.h5", change(speeds()))) == []  # type: ignore[operator]


@pytest.mark.parametrize("unit", ["mph", "unknown"])
@pytest.mark.parametrize("numbers", [(999.0,), (255.0,), (998.0, 999.0), (-9999.0, 999.0), (65535.0, 255.0, 999.0)])
def test_a_rare_number_far_from_the_network_is_named(tmp_path: Path, unit: str, numbers: tuple[float, ...]) -> None:
    values = speeds()
    for place, number in enumerate(numbers):
        values[3 + 7 * place : 300 : 50, place % 3] = number
    values[400, 0] = 97.3  # a spike
    create(tmp_path / "a.h5", replace(made_up([block(timestamps(ROWS), values)]), units={"avg_speed": unit}))
    found = inspect(tmp_path / "a.h5")
    assert {entry["value"] for entry in found.odd_values.values()} == set(numbers)
    (line,) = [line for line in doubts(found) if "far" in line]
    assert all(f"{number:g} is in" in line for number in numbers)
    codes = [int(number) for number in numbers]
    assert set(line.rpartition("missing=")[2].strip("'").split(",")) == set(map(str, codes))


def counts(kind: str, sensors: int, days: int, seed: int, scale: float) -> np.ndarray:
    """Vehicles of 5 minutes with rush hours, or what else is counted: float64 [T,N]."""
    rng, hour = np.random.default_rng(seed), np.arange(288 * days)[:, None] % 288 / 12
    usual = 0.05 + np.exp(-((hour - 8) ** 2) / 4) + 0.8 * np.exp(-((hour - 17.5) ** 2) / 6)
    usual = scale * usual * rng.uniform(0.1, 2, sensors)
    if kind == "bursts":
        return rng.negative_binomial(1, 1 / (1 + usual)).astype(float)
    if kind == "hourly rates":
        return 12.0 * rng.poisson(usual)
    if kind == "occupancy":
        return np.minimum(100, usual * rng.lognormal(0, 0.5, usual.shape)).round(1)
    if kind == "speeds":
        return np.maximum(3, np.minimum(65, 70 - usual / scale * 30 * rng.uniform(0, 2, usual.shape))).round()
    return rng.poisson(usual).astype(float)


KINDS = ["counts", "bursts", "hourly rates", "occupancy", "speeds"]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(KINDS),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 999),
    st.sampled_from([0.3, 3, 30, 300]),
)
def test_rush_hours_are_honest(tmp_path: Path, kind: str, sensors: int, days: int, seed: int, scale: float) -> None:
    values = counts(kind, sensors, days, seed, scale)
    readings = made_up([block(timestamps(len(values)), values)], tuple(map(str, range(sensors))))
    feature = {"occupancy": "occupancy", "speeds": "avg_speed"}.get(kind, "flow")
    create(tmp_path / "a.h5", replace(readings, units={feature: "km/h"}), overwrite=True)
    assert inspect(tmp_path / "a.h5").odd_values == {}
    values[10:300:40, 0] = 65535
    readings = made_up([block(timestamps(len(values)), values)], tuple(map(str, range(sensors))))
    create(tmp_path / "a.h5", replace(readings, units={feature: "km/h"}), overwrite=True)
    wide = max(len(np.unique(column)) for column in values.T) > 10
    assert ([entry["value"] for entry in inspect(tmp_path / "a.h5").odd_values.values()] == [65535]) or not wide


def test_what_is_advised_keeps_the_codes_of_the_conversion(tmp_path: Path) -> None:
    values = speeds()
    values[::5, 1], values[::7, 0], values[::11, 2] = 255, -1, 0
    csv = write_csv(tmp_path / "mine.csv", timestamps(ROWS), values)
    given = ["convert", "csv", csv, "--meta-csv", write_locations(tmp_path / "meta.csv"), "--units", "mph"]
    done = socialx(*given, "--output-h5", tmp_path / "a.h5", "--validate", "--missing", "-1,0")
    assert "--missing 255,-1,0.\n" in done.stderr


def test_what_can_be_below_0_is_not_counted(tmp_path: Path) -> None:
    readings = made_up([block(timestamps(ROWS), speeds() - 40)])
    create(tmp_path / "a.h5", replace(readings, units={"change_of_flow": "km/h"}))
    assert doubts(inspect(tmp_path / "a.h5")) == []


def test_the_commands_say_it_with_the_flag_that_helps(tmp_path: Path) -> None:
    values = speeds()
    values[::4, 2], values[::3, 1] = 255, -1
    csv = write_csv(tmp_path / "mine.csv", timestamps(ROWS), values)
    given = ["convert", "csv", csv, "--meta-csv", write_locations(tmp_path / "meta.csv"), "--units", "mph"]
    done = socialx(*given, "--output-h5", tmp_path / "a.h5", "--validate")
    assert done.exit_code == 3
    lines = [line for line in done.stderr.splitlines() if "convert again with --missing" in line]
    assert [line[line.index("--missing") :] for line in lines] == ["--missing -1,0.", "--missing 255,0."]
    shown = socialx("inspect", tmp_path / "a.h5").stdout.splitlines()
    assert [line.removeprefix("remark: ") for line in shown if "--missing" in line] == [
        line.removeprefix(f"error: {tmp_path / 'a.h5'}: ").removesuffix(".") for line in lines
    ]
    gate = socialx("inspect", tmp_path / "a.h5", "--fail-unless", "odd_values")
    assert gate.exit_code == 3
    assert gate.stderr.endswith("--missing 255,0.\n")
    again = socialx(*given, "--missing", "-1", "--output-h5", tmp_path / "b.h5", "--validate")
    assert "--missing 255,-1" in again.stderr
    assert "--missing -1" not in again.stderr


@pytest.mark.parametrize("name", ["metr-la", "pems-bay"])
def test_the_published_data_sets_give_no_false_alarm(tmp_path: Path, name: str) -> None:
    bay = ROOT / "examples/data/PEMS-BAY-excerpt.csv", ROOT / "examples/data/PEMS-BAY-META-excerpt.csv"
    data, locations = (EXCERPT, LOCATIONS) if name == "metr-la" else bay
    output = tmp_path / "out.h5"
    assert socialx("convert", name, data, "--meta-csv", locations, "--output-h5", output).exit_code == 0
    assert doubts(inspect(output)) == []
