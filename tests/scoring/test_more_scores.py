"""What evaluate measures beside the scores: errors by group, two runs compared, limits, CSV, and saved forecasts."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

import socialx as api
from socialx.batch import Target
from socialx.errors import SettingsError, SocialxError
from socialx.scoring.breakdown import RunningErrors
from socialx.scoring.difference import LEAST_DAYS, DailyErrors, difference
from socialx.scoring.limits import failed, parse
from socialx.scoring.scoring_pass import survey
from socialx.settings_layers import Layers
from socialx.tasks.trained import load_trained
from socialx.training.run_folder import RunFolder, open_run
from tests.commands import refused, small_file, small_run, socialx, works
from tests.networks import CPU, example

ROWS = 1500  # 5 days and a bit; the test part ends with a batch of 39 windows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"), ROWS)


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    return small_run(data)


@pytest.fixture(scope="module")
def worse(run: Path) -> Path:
    """The same weights but for a bias, so that the forecasts are too high."""
    other = RunFolder(Path(shutil.copytree(run, run.parent / "worse")))
    weights = other.read_weights()
    weights.state["head.2.bias"] += 10
    other.write_weights(weights.state, 1, 1.0)
    return other.path


class Kept:
    """Every forecast with its truth and calendar, for oracles."""

    def __init__(self) -> None:
        self.parts: list[tuple[np.ndarray, ...]] = []

    def add(self, forecast: torch.Tensor, batch: object, target: Target) -> None:
        calendar = (batch.slot, batch.weekday)
        self.parts.append(tuple(each.numpy().copy() for each in (forecast, target.values, target.valid, *calendar)))


def forecasts(run: Path, part: str) -> tuple[np.ndarray, ...]:
    """Forecast, truth, valid [W,P,N], hour, weekday [W,P] of the windows that are not padding, and free flow [N]."""
    problem, _ = load_trained(run, Layers())
    kept, loader = Kept(), problem.data.loader(part, 64)
    survey(problem.model, loader, problem.precision, kept)
    joined = [np.concatenate(parts)[: loader.num_windows] for parts in zip(*kept.parts, strict=True)]
    forecast, truth, valid = (each[..., 0] for each in joined[:3])
    slot, weekday = (each[:, 12:] for each in joined[3:])
    return forecast, truth, valid, slot * 5 // 60, weekday, problem.data.free_flow[:, 0]


# --- by ---------------------------------------------------------------------------------------------------------------


def test_errors_by_group_are_those_of_a_plain_loop(run: Path) -> None:
    by = ("horizon", "hour", "weekday", "sensor", "congestion")
    found = api.evaluate([run], by=by, part="all")
    tables = found.by[str(run)]
    forecast, truth, valid, hour, weekday, free = forecasts(run, "all")
    errors = np.abs(forecast.astype(float) - truth)
    spread = [np.broadcast_to(each[..., None], errors.shape) for each in (hour, weekday)]
    days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    groups = {
        "horizon": [(5 * (step + 1), np.arange(12)[None, :, None] == step) for step in range(12)],
        "hour": [(each, spread[0] == each) for each in range(24)],
        "weekday": [(name, spread[1] == day) for day, name in enumerate(days)],
        "sensor": [(found.by and row.key, np.arange(4) == i) for i, row in enumerate(tables["sensor"])],
        "congestion": [("congested", truth < 0.5 * free), ("free", truth >= 0.5 * free)],
    }
    assert tuple(tables) == by
    for name, expected in groups.items():
        assert [row.key for row in tables[name]] == [key for key, _ in expected]
        for row, (_, where) in zip(tables[name], expected, strict=True):
            chosen = valid & where
            assert row.count == chosen.sum()
            assert row.mae == (pytest.approx(errors[chosen].mean(), rel=1e-9) if chosen.any() else None)
        assert sum(row.count for row in tables[name]) == found[str(run)].overall().count
    assert tables["congestion"][0].count > 0
    assert [row.key for row in tables["sensor"]] == list(open_run(run).sensors or ())


def test_no_free_flow_speed_is_needed_where_congestion_is_not_asked_for() -> None:
    batch, target = example()
    errors = RunningErrors(12, 5, 5, CPU)
    errors.add(target.values + 1, batch, target)
    found = errors.compute()
    assert found["congestion"].count.tolist() == [0, int(target.valid.sum())]
    assert found["weekday"].count.sum() == target.valid.sum()


def test_the_tables_are_printed_and_in_the_json(run: Path) -> None:
    result = works("evaluate", run, "--by", "congestion, sensor", "--baselines")
    assert "MAE in mph by congestion" in result.stdout
    assert "by sensor, the worst first" in result.stdout
    printed = json.loads(socialx("evaluate", run, "--by", "hour", "--json").stdout)["by"][str(run)]
    assert [row["key"] for row in printed["hour"]] == list(range(24))
    assert "by" not in json.loads(socialx("evaluate", run, "--json").stdout)
    assert "not one of horizon, hour, weekday, sensor, congestion" in refused("evaluate", run, "--by", "week", code=2)


# --- two runs ---------------------------------------------------------------------------------------------------------


def daily(errors: np.ndarray, days: np.ndarray, batch: int = 7) -> DailyErrors:
    """errors [W,P,N], added in batches of which the last one is padded."""
    sums = DailyErrors(days, errors.shape[1], CPU)
    padded = np.concatenate([errors, np.full((-len(errors) % batch, *errors.shape[1:]), 1e6)])
    valid = (np.arange(len(padded)) < len(errors))[:, None, None] & ~np.isnan(padded)
    for first in range(0, len(padded), batch):
        part = slice(first, first + batch)
        values = torch.from_numpy(np.nan_to_num(padded[part])[..., None])
        sums.add(values, example().batch, Target(torch.zeros_like(values), torch.from_numpy(valid[part][..., None])))
    return sums


def test_daily_sums_and_the_difference_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    days = np.sort(rng.integers(15_000, 15_012, 200))
    one, other = rng.uniform(0, 5, (2, 200, 3, 4))
    gone = rng.random(one.shape) < 0.2
    one[gone], other[gone] = np.nan, np.nan
    first, second = daily(one, days), daily(other, days)
    total, count = first.compute()
    for place, day in enumerate(np.unique(days)):
        np.testing.assert_allclose(total[place, :3], np.nansum(one[days == day], axis=(0, 2)))
        np.testing.assert_array_equal(count[place, :3], (~gone[days == day]).sum(axis=(0, 2)))
    found = difference({"a": first, "b": second}, 5)
    assert [row.minutes for row in found.rows] == [5, 10, 15, None]
    for step, row in enumerate(found.rows):
        chosen = slice(None) if row.minutes is None else slice(step, step + 1)
        assert row.difference == pytest.approx(np.nanmean(other[:, chosen]) - np.nanmean(one[:, chosen]))
    assert difference({"a": first, "b": second}, 5) == found  # the draws have a fixed seed
    swapped = difference({"b": second, "a": first}, 5).rows[-1]
    assert swapped.difference == -(found.rows[-1].difference or 0)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """60 pairs of models whose errors differ by 0.1 and depend on the day: about 95 % of the intervals hold 0.1."""
    rng = np.random.default_rng(1)
    days = np.repeat(np.arange(40), 3)
    hits = 0
    for _ in range(60):
        one = rng.uniform(2, 3, (120, 2, 2))
        other = one + 0.1 + np.repeat(rng.normal(0, 0.3, 40), 3)[:, None, None]
        row = difference({"a": daily(one, days, 60), "b": daily(other, days, 60)}, 5).rows[-1]
        hits += row.low < 0.1 < row.high
    assert 50 <= hits <= 60


def test_nothing_valid_is_no_difference() -> None:
    days = np.arange(LEAST_DAYS)
    nothing = np.full((LEAST_DAYS, 2, 2), np.nan)
    (row, *_) = difference({"a": daily(nothing, days), "b": daily(nothing, days)}, 5).rows
    assert (row.difference, row.low, row.high, row.differs) == (None, None, None, None)
    with pytest.raises(SettingsError, match="4 of the 5 days"):
        DailyErrors(days[1:], 2, CPU)


def test_two_runs_are_compared_on_the_same_windows(run: Path, worse: Path) -> None:
    found = api.evaluate([run, worse], compare=True, part="all")
    assert (found.difference.first, found.difference.second) == (str(run), str(worse))
    gap = found[str(worse)].overall().mae - found[str(run)].overall().mae
    assert found.difference.rows[-1].difference == pytest.approx(gap, rel=1e-9)
    assert found.difference.rows[2].minutes == 15
    assert found.difference.rows[-1].differs is True
    result = socialx("evaluate", run, worse, "--compare", "--part", "all")
    assert f"{gap:+.4f}" in result.stdout
    assert f"bootstrap over {found.difference.days} days" in result.stdout
    for words in ([run], [run, run], [run, worse, run.parent / "third"]):
        assert "it compares two runs" in refused("evaluate", *words, "--compare", code=2)
    assert "use --part all or a longer file" in refused("evaluate", run, worse, "--compare", code=2)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_limits_are_read_and_held_against_every_run(run: Path, worse: Path) -> None:
    assert parse("60min=3.5, all = 3,5 min=.5") == [(60, 3.5), (None, 3.0), (5, 0.5)]
    for wrong in ("3.5", "60=3", "60min", "60min=x", "60min=-1", "", "all=1,"):
        with pytest.raises(SettingsError, match="MINUTESmin=NUMBER"):
            parse(wrong)
    found = api.evaluate([run, worse])
    mae = found[str(run)].at(60).mae
    assert failed(found, [(60, 1e9)]) == []
    (line,) = failed(found, parse(f"60min={mae + 0.01}"))
    assert line.where == str(worse)
    assert [each.where for each in failed(found, parse("all=0"))] == [str(run), str(worse)]
    nothing = replace(found[str(run)].overall(), mae=float("nan"))
    unknown = replace(
        found[str(run)], targets={"avg_speed": replace(found[str(run)].targets["avg_speed"], overall=nothing)}
    )
    assert failed(replace(found, models={str(run): unknown, str(worse): unknown}), parse("all=99"))


def test_a_limit_that_is_not_kept_is_exit_code_3_and_the_scores_are_there(run: Path) -> None:
    kept = socialx("evaluate", run, "--max-mae", "60min=1000,all=1000", "--json")
    assert (kept.exit_code, kept.stderr) == (0, "")
    mae = json.loads(kept.stdout)["scores"][str(run)]["avg_speed"]["by_step"][11]["mae"]
    result = socialx("evaluate", run, "--max-mae", "60min=0.5")
    assert result.exit_code == 3
    assert result.stderr == f"error: {run}: MAE {mae:.4f} mph at 60 min: required <= 0.5\n"
    assert f"{mae:.4f}" in result.stdout
    for words, code in ((["--max-mae", "7min=3"], 2), (["--max-mae", "3"], 2)):
        assert socialx("evaluate", run, *words).exit_code == code
    none = socialx("evaluate", "--baselines", "--data", run.parent / "small.h5", "--max-mae", "all=1")
    assert (none.exit_code, "no run that must keep it" in none.stderr) == (2, True)


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_csv_has_every_score(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    result = works("evaluate", run, "--baselines", "--by", "hour", "--csv", path, "--json")
    found = json.loads(result.stdout)
    rows = list(csv.DictReader(path.open()))
    assert len(rows) == 4 * (13 + 24)
    of_run = [row for row in rows if row["model"] == str(run)]
    for row, right in zip(of_run[:12], found["scores"][str(run)]["avg_speed"]["by_step"], strict=True):
        assert int(row["key"]) == right["minutes"]
        assert {name: float(row[name]) for name in ("mae", "rmse", "mape", "r2", "count")} == {
            name: right[name] for name in ("mae", "rmse", "mape", "r2", "count")
        }
    assert (of_run[12]["by"], of_run[12]["key"]) == ("horizon", "all")
    assert (of_run[13]["by"], of_run[13]["key"], of_run[13]["rmse"]) == ("hour", "0", "")
    assert "exists already" in refused("evaluate", run, "--csv", path)
    works("evaluate", run, "--csv", path, "--overwrite")


def scores_of(forecast: np.ndarray, truth: np.ndarray) -> list[float]:
    """MAE, RMSE, MAPE and R2 of forecasts and truth in float64, NaN where there is no reading."""
    valid = ~np.isnan(truth)
    y, error = truth[valid].astype(float), forecast[valid].astype(float) - truth[valid].astype(float)
    r2 = 1 - (error**2).sum() / ((y - y.mean()) ** 2).sum()
    return [np.abs(error).mean(), np.sqrt((error**2).mean()), 100 * (np.abs(error) / y).mean(), r2]


def same_scores(run: Path, forecast: np.ndarray, truth: np.ndarray) -> None:
    """forecast, truth [W,P,N] give the scores that evaluate prints."""
    found = api.evaluate([run])[str(run)]
    for step, right in [(None, found.overall()), *((step, found.at(5 * (step + 1))) for step in range(12))]:
        chosen = slice(None) if step is None else step
        expected = [right.mae, right.rmse, right.mape, right.r2]
        np.testing.assert_allclose(scores_of(forecast[:, chosen], truth[:, chosen]), expected, rtol=1e-9)
        assert (~np.isnan(truth[:, chosen])).sum() == right.count


def test_saved_hdf5_has_all_forecasts_and_gives_the_same_scores(run: Path, data: Path, tmp_path: Path) -> None:
    path = tmp_path / "all.h5"
    result = works("evaluate", run, "--save", path)
    assert f"wrote {path}" in result.stderr
    with h5py.File(path) as file:
        forecast, truth = file["forecast"][:], file["truth"][:]
        issued, times = ([each.decode() for each in file[name][:].ravel()] for name in ("issued_at", "times"))
        assert [vdid.decode() for vdid in file["sensors"][:]] == list(open_run(run).sensors or ())
        assert file.attrs["schema"] == "socialx.forecast/1"
    windows = open_run(run).protocol.windows["test"]
    assert forecast.shape == truth.shape == (windows, 12, 4, 1)
    assert windows % 64  # the last batch is padded
    same_scores(run, forecast[..., 0], truth[..., 0])
    with h5py.File(data) as file:
        stamps = [each.decode() for each in file["metadata/timestamps"][:]]
        readings = file["data/features"][:, :, 0]
    for window in (0, 63, 64, windows - 1):
        row = stamps.index(issued[window])
        assert times[12 * window] == stamps[row + 1]
        there = readings[row + 1 : row + 13] != 0
        np.testing.assert_array_equal(np.isnan(truth[window, ..., 0]), ~there)
        np.testing.assert_array_equal(truth[window, ..., 0][there], readings[row + 1 : row + 13][there])


def test_saved_parquet_has_the_same_forecasts(run: Path, tmp_path: Path) -> None:
    api.evaluate([run], save=tmp_path / "all.h5")
    api.evaluate([run], save=tmp_path / "all.parquet")
    table = pd.read_parquet(tmp_path / "all.parquet")
    assert list(table.columns) == ["issued_at", "time", "sensor", "target", "unit", "horizon", "value", "truth"]
    with h5py.File(tmp_path / "all.h5") as file:
        forecast, truth = file["forecast"][:], file["truth"][:]
        np.testing.assert_array_equal(table["value"].to_numpy(), forecast.ravel())
        np.testing.assert_array_equal(table["truth"].to_numpy(), truth.ravel())
        issued = pd.to_datetime([each.decode() for each in file["issued_at"][:]])
        times = pd.to_datetime([each.decode() for each in file["times"][:].ravel()])
        np.testing.assert_array_equal(table["issued_at"], np.repeat(issued, 48))
        np.testing.assert_array_equal(table["time"], np.repeat(times, 4))
        assert table["sensor"].tolist() == [vdid.decode() for vdid in file["sensors"][:]] * (12 * len(forecast))
    assert table["horizon"].tolist()[:49:4] == [*range(5, 65, 5), 5]
    assert set(table["unit"]) == {"mph"}


def test_what_cannot_be_saved_is_refused_before_any_work(run: Path, worse: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.h5"
    there.write_text("mine")
    for words, code, says in (
        ([run, "--save", tmp_path / "x.csv"], 2, "no format ends in '.csv': name it .h5, .parquet"),
        ([run, "--save", there], 1, "exists already: add --overwrite"),
        ([run, worse, "--save", tmp_path / "x.h5"], 2, "it takes the forecasts of one run"),
    ):
        result = socialx("evaluate", *words)
        assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (code, 1, "")
        assert says in result.stderr
    assert there.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["there.h5"]


def test_a_pass_that_fails_leaves_no_file(run: Path, tmp_path: Path) -> None:
    broken = RunFolder(Path(shutil.copytree(run, tmp_path / "broken")))
    weights = broken.read_weights()
    weights.state["head.2.bias"][:] = 3e38
    weights.state["head.2.weight"][:] = 3e38
    broken.write_weights(weights.state, 1, 1.0)
    with pytest.raises(SocialxError, match="overflow"):
        api.evaluate([broken.path], save=tmp_path / "all.h5")
    assert not [path for path in tmp_path.iterdir() if path != broken.path]
