"""Numbers that may stand for no reading are remarked upon, with what settles it; honest readings are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from socialx.files.checks import remarks
from socialx.files.inspect import Report, inspect
from socialx.files.writer import create
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
    assert found.odd_values == {IDS[1]: {"value": number, "share": pytest.approx(0.2)}}
    expected = f"{number:g} stands in 20 % of the readings of sensor {IDS[1]}: "
    assert doubts(found)[-1] == f"{expected}if it means no reading, convert again with missing={number:g}"


def test_readings_below_0_are_counted_and_the_most_frequent_is_named(tmp_path: Path) -> None:
    values = speeds()
    values[::5, 0], values[1, 1], values[2, 2] = -1, -7, -1
    found = report_of(tmp_path / "a.h5", values)
    assert (found.negative_readings, found.most_negative, found.odd_values) == (ROWS // 5 + 2, -1, {})
    (line,) = doubts(found)
    assert line.startswith("122 readings of avg_speed are below 0, most often -1: ")


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values,
        lambda values: np.minimum(values, 40),  # a cap
        lambda values: np.maximum(values, 30),
        lambda values: np.where(np.arange(ROWS)[:, None] % 20 == 0, 255, values),  # 5 %
        lambda values: np.where(values > 30, 65.0, 20.0),  # switches between two speeds
        lambda values: np.full_like(values, 60),
        lambda values: np.full_like(values, np.nan),
        lambda values: values.round(-1),
    ],
)
def test_honest_readings_are_not_remarked_upon(tmp_path: Path, change: object) -> None:
    assert doubts(report_of(tmp_path / "a.h5", change(speeds()))) == []  # type: ignore[operator]


def test_what_can_be_below_0_is_not_counted(tmp_path: Path) -> None:
    readings = made_up([block(timestamps(ROWS), speeds() - 40)])
    create(tmp_path / "a.h5", replace(readings, feature="change_of_flow"))
    assert doubts(inspect(tmp_path / "a.h5")) == []


def test_the_commands_say_it_with_the_flag_that_helps(tmp_path: Path) -> None:
    values = speeds()
    values[::4, 2], values[::3, 1] = 255, -1
    csv = write_csv(tmp_path / "mine.csv", timestamps(ROWS), values)
    given = ["convert", "csv", csv, "--meta-csv", write_locations(tmp_path / "meta.csv"), "--units", "mph"]
    done = socialx(*given, "--output-h5", tmp_path / "a.h5", "--validate")
    assert done.exit_code == 0
    lines = [line for line in done.stderr.splitlines() if "if it means no reading" in line]
    assert [line.rpartition(": ")[2] for line in lines] == [
        "if it means no reading, convert again with --missing -1,0",
        "if it means no reading, convert again with --missing 255,0",
    ]
    shown = socialx("inspect", tmp_path / "a.h5").stdout.splitlines()
    assert [line.removeprefix("remark: ") for line in shown if "--missing" in line] == [
        line.removeprefix(f"{tmp_path / 'a.h5'}: ") for line in lines
    ]
    gate = socialx("inspect", tmp_path / "a.h5", "--require", "odd_values")
    assert gate.exit_code == 3
    assert gate.stderr.endswith("convert again with --missing 255,0\n")
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
