"""The whole protocol once more, from the raw CSV, in a few lines of NumPy that share nothing with the package."""

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from socialx.scoring.protocol import missing_rule
from tests.commands import EXCERPT, works
from tests.protocols import protocol


def read_csv() -> tuple[list[datetime], np.ndarray]:
    with EXCERPT.open() as source:
        rows = list(csv.reader(source))[1:]
    return [datetime.fromisoformat(row[0]) for row in rows], np.array([row[1:] for row in rows], dtype=np.float64)


def scores(forecast: np.ndarray, target: np.ndarray) -> dict[str, float]:
    valid = target != 0
    error, y = (forecast - target)[valid], target[valid]
    return {
        "mae": np.abs(error).mean(),
        "rmse": np.sqrt((error**2).mean()),
        "mape": 100 * (np.abs(error) / y).mean(),
        "r2": 1 - (error**2).sum() / ((y - y.mean()) ** 2).sum(),
        "count": int(valid.sum()),
    }


@pytest.fixture(scope="module")
def printed(excerpt: Path) -> dict[str, Any]:
    return json.loads(works("evaluate", "--baselines", "--data", excerpt, "--json").stdout)


@pytest.mark.parametrize("name", ["naive, zeros not masked", "naive", "historical average"])
def test_the_baselines_print_what_the_protocol_says(name: str, printed: dict[str, Any]) -> None:
    times, speeds = read_csv()
    total = len(speeds) - 23
    first_test = total - round(0.2 * total)
    rows = np.arange(first_test, total)  # first row of each test window
    seen = round(0.7 * total) - 1 + 24  # rows that a training window touches
    last_observed = speeds.copy()
    for row in range(1, len(last_observed)):
        last_observed[row] = np.where(last_observed[row] == 0, last_observed[row - 1], last_observed[row])
    # Of fewer than four weeks a cell is of working days or of weekends.
    cell = np.array([(t.weekday() > 4) * 288 + (t.hour * 60 + t.minute) // 5 for t in times])
    average = np.full((2 * 288, speeds.shape[1]), np.nan)
    for c in np.unique(cell[:seen]):
        members = speeds[:seen][cell[:seen] == c]
        average[c] = np.ma.masked_equal(members, 0).mean(axis=0).filled(np.nan)
    own = np.ma.masked_equal(speeds[:seen], 0).mean(axis=0)
    average = np.where(np.isnan(average), own, average)
    for step in (3, 6, 12):
        ahead = rows + 11 + step
        forecast = {
            "naive, zeros not masked": speeds[rows + 11],
            "naive": last_observed[rows + 11],
            "historical average": average[cell[ahead]],
        }[name]
        got = printed["scores"][name]["avg_speed"]["by_step"][step - 1]
        expected = scores(forecast, speeds[ahead])
        assert (got["minutes"], got["count"]) == (5 * step, expected["count"])
        for measure in ("mae", "rmse", "mape", "r2"):
            assert got[measure] == pytest.approx(expected[measure], rel=1e-6), (step, measure)


def test_the_protocol_says_what_the_numbers_depend_on(printed: dict[str, Any]) -> None:
    protocol = printed["protocol"]
    _, speeds = read_csv()
    seen = speeds[: round(0.7 * (len(speeds) - 23)) + 23]
    assert protocol["scaler"]["avg_speed"] == {
        "mean": pytest.approx(seen[seen != 0].mean(), rel=1e-6),
        "std": pytest.approx(seen[seen != 0].std(), rel=1e-6),
    }
    assert protocol["inputs"] == protocol["targets"] == {"avg_speed": "mph"}
    assert (protocol["missing"], protocol["split_method"]) == ({"avg_speed": 0.0}, "canonical")


def test_holidays_are_compared_on_one_network_alone() -> None:
    here = {"holidays": {"2012-05-28": "Sunday"}, "first_time": "2012-03-01", "last_time": "2012-06-27"}
    plain = {**here, "holidays": {}}
    assert protocol(**here).other_holidays(protocol(**plain)) == ["2012-05-28"]
    assert protocol(**here).other_holidays(protocol(**plain, network="1" * 12)) == []


def test_features_with_codes_of_their_own_are_told_apart() -> None:
    assert missing_rule({"speed": 0.0, "flow": 0.0}) == "not finite or 0"
    assert missing_rule({"flow": None}) == "not finite"
    told = [f"{name} {missing_rule({name: code})}" for name, code in (("speed", 0.0), ("flow", None))]
    assert missing_rule({"speed": 0.0, "flow": None}) == ", ".join(told)
