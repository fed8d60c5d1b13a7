"""What evaluate measures beside the scores: errors by group, two runs compared, limits, CSV, and saved forecasts."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

import socialx as api
from socialx.core.batch import Target
from socialx.core.errors import SettingsError, SocialxError
from socialx.scoring.difference import LEAST_DAYS, DailyErrors, difference
from socialx.scoring.metrics import BY, RunningErrors
from socialx.scoring.results import exceeded_limits, parse_limits
from socialx.training.run_folder import RunFolder, open_run
from tests.commands import refused, refuses, small_file, small_run, socialx, works
from tests.networks import CPU, example

ROWS = 1500  # 5 days and a bit; the test split ends with a batch of 39 windows


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


# --- by ---------------------------------------------------------------------------------------------------------------


def test_errors_by_group_have_their_keys_and_are_of_all_readings(run: Path) -> None:
    """``test_explain`` has the numbers."""
    found = api.evaluate([run], by=BY, split="all")
    days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    ids = list(open_run(run).sensors or ())
    keys = dict(zip(BY, (list(range(5, 65, 5)), list(range(24)), days, ids, ["congested", "free"]), strict=True))
    tables = found.by[str(run)]
    assert {name: [row.key for row in rows] for name, rows in tables.items()} == keys
    assert {sum(row.count for row in rows) for rows in tables.values()} == {found[run].overall().count}
    assert tables["congestion"][0].count > 0


def test_no_free_flow_speed_is_needed_where_congestion_is_not_asked_for() -> None:
    batch, target = example()
    errors = RunningErrors(12, tuple("abcde"), 5, CPU)
    errors.update(target.values + 1, batch, target)
    assert [row.count for row in errors.compute()["congestion"]] == [0, target.valid.sum()]


def test_the_tables_are_printed_and_in_the_json(run: Path) -> None:
    result = works("evaluate", run, "--by", "congestion, sensor", "--baselines")
    assert "mph by congestion" in result.stdout
    assert "by sensor, " in result.stdout
    printed = json.loads(socialx("evaluate", run, "--by", "hour", "--json").stdout)["by"][str(run)]
    assert [row["key"] for row in printed["hour"]] == list(range(24))
    assert "by" not in json.loads(socialx("evaluate", run, "--json").stdout)
    assert (error := refused("evaluate", run, "--by", "week", code=2)).code == "score.by"
    assert "weekday, sensor, congestion" in error


# --- two runs ---------------------------------------------------------------------------------------------------------


def daily(errors: np.ndarray, days: np.ndarray, batch: int = 7) -> DailyErrors:
    """errors [W,P,N], added in batches of which the last one is padded."""
    sums = DailyErrors(days, errors.shape[1], CPU)
    padded = np.concatenate([errors, np.full((-len(errors) % batch, *errors.shape[1:]), 1e6)])
    valid = (np.arange(len(padded)) < len(errors))[:, None, None] & ~np.isnan(padded)
    for first in range(0, len(padded), batch):
        part = slice(first, first + batch)
        values = torch.from_numpy(np.nan_to_num(padded[part])[..., None])
        sums.update(values, example().batch, Target(torch.zeros_like(values), torch.from_numpy(valid[part][..., None])))
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
    assert difference({"b": second, "a": first}, 5).rows[-1].difference == -(found.rows[-1].difference or 0)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """60 pairs of models whose errors differ by 0.1 and depend on the day: about 95 % of the intervals hold 0.1."""
    rng = np.random.default_rng(1)
    days, hits = np.repeat(np.arange(40), 3), 0
    for _ in range(60):
        one = rng.uniform(2, 3, (120, 2, 2))
        other = one + 0.1 + np.repeat(rng.normal(0, 0.3, 40), 3)[:, None, None]
        row = difference({"a": daily(one, days, 60), "b": daily(other, days, 60)}, 5).rows[-1]
        hits += row.low < 0.1 < row.high
    assert 50 <= hits <= 60


def test_nothing_valid_is_no_difference() -> None:
    days, nothing = np.arange(LEAST_DAYS), np.full((LEAST_DAYS, 2, 2), np.nan)
    (row, *_) = difference({"a": daily(nothing, days), "b": daily(nothing, days)}, 5).rows
    assert (row.difference, row.low, row.high, row.differs) == (None, None, None, None)
    with refuses("score.few-days", SettingsError) as caught:
        DailyErrors(days[1:], 2, CPU)
    assert "5 days" in str(caught.value)


def test_two_runs_are_compared_on_the_same_windows(run: Path, worse: Path) -> None:
    found = api.evaluate([run, worse], compare=True, split="all")
    assert (found.difference.first, found.difference.second) == (str(run), str(worse))
    gap = found[str(worse)].overall().mae - found[str(run)].overall().mae
    assert found.difference.rows[-1].difference == pytest.approx(gap, rel=1e-9)
    assert found.difference.rows[2].minutes == 15
    assert found.difference.rows[-1].differs is True
    assert found.headline().endswith(f": {gap:+.3f} {found.difference}".rpartition(": ")[2])
    assert f"{gap:+.3f}" in str(found.difference)
    assert str(found.difference).endswith("), significant at 5 %")
    result = socialx("evaluate", run, worse, "--compare", "--split", "all")
    assert f"{gap:+.4f}" in result.stdout
    assert f"bootstrap over {found.difference.days} days" in result.stdout
    for words in ([run], [run, run], [run, worse, run.parent / "third"]):
        assert refused("evaluate", *words, "--compare", code=2).code == "score.two"
    assert (error := refused("evaluate", run, worse, "--compare", code=2)).code == "score.few-days"
    assert "--split all" in error


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["3.5", "60=3", "60min", "60min=x", "60min=-1", "", "all=1,"])
def test_what_is_no_limit_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match="MINUTESmin=NUMBER"):
        parse_limits(wrong)


def test_limits_are_read_and_held_against_every_run(run: Path, worse: Path) -> None:
    assert parse_limits("60min=3.5, all = 3,5 min=.5") == [(60, 3.5), (None, 3.0), (5, 0.5)]
    found = api.evaluate([run, worse])
    mae = found[run].at(60).mae
    assert exceeded_limits(found, [(60, 1e9)]) == []
    assert [line.where for line in exceeded_limits(found, parse_limits(f"60min={mae + 0.01}"))] == [str(worse)]
    assert [line.where for line in exceeded_limits(found, parse_limits("all=0"))] == [str(run), str(worse)]
    scores = found[run].targets["avg_speed"]
    unknown = replace(scores, overall=replace(scores.overall, mae=float("nan")))
    models = {str(run): replace(found[run], targets={"avg_speed": unknown})}
    assert exceeded_limits(replace(found, models=models), parse_limits("all=99"))


def test_a_limit_that_is_not_kept_is_exit_code_3_and_the_scores_are_there(run: Path) -> None:
    kept = works("evaluate", run, "--fail-above", "60min=1000,all=1000", "--json")
    assert kept.stderr == ""
    mae = json.loads(kept.stdout)["scores"][str(run)]["avg_speed"]["by_step"][11]["mae"]
    result = socialx("evaluate", run, "--fail-above", "60min=0.5")
    assert (result.exit_code, result.codes) == (3, ("score.above",))
    assert re.fullmatch(f"error: {run}: MAE {mae:.4f} mph at 60 min, .* <= 0.5.\n", result.stderr)
    assert f"{mae:.4f}" in result.stdout
    assert socialx("evaluate", run, "--fail-above", "7min=3").codes == ("score.limit",)
    data = run.parent / "small.h5"
    assert refused("evaluate", "--baselines", "--data", data, "--fail-above", "all=1", code=2).code == "score.no-run"


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_csv_has_every_score(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    result = works("evaluate", run, "--baselines", "--by", "hour", "--save-scores", path, "--json")
    right = json.loads(result.stdout)["scores"][str(run)]["avg_speed"]["by_step"]
    rows = list(csv.DictReader(path.open()))
    assert len(rows) == 5 * (13 + 24)
    of_run = [row for row in rows if row["model"] == str(run)]
    names = ("mae", "rmse", "mape", "r2", "count")
    assert [[int(row["key"]), *(float(row[name]) for name in names)] for row in of_run[:12]] == [
        [row["minutes"], *(row[name] for name in names)] for row in right
    ]
    assert [(row["by"], row["key"], row["rmse"] == "") for row in of_run[12:14]] == [
        ("horizon", "all", False),
        ("hour", "0", True),
    ]
    frame = api.evaluate([run], baselines=True).to_frame()
    assert list(frame.columns) == ["model", "horizon", *names, "unit"]
    assert frame[frame.model == str(run)].mae.tolist() == [row["mae"] for row in right]
    assert refused("evaluate", run, "--save-scores", path).code == "output.exists"
    works("evaluate", run, "--save-scores", path, "--overwrite")


def test_both_formats_hold_all_forecasts(run: Path, tmp_path: Path) -> None:
    """``test_forecast_files`` has their scores, ``test_time_gaps`` their truth."""
    for suffix in ("h5", "parquet"):
        assert (
            f"wrote {tmp_path}/all.{suffix}"
            in works("evaluate", run, "--save-forecasts", tmp_path / f"all.{suffix}").stderr
        )
    table = pd.read_parquet(tmp_path / "all.parquet")
    assert list(table.columns) == ["origin", "time", "sensor", "target", "unit", "lead_minutes", "forecast", "truth"]
    windows = open_run(run).protocol.windows["test"]
    assert windows % 64  # the last batch is padded
    with h5py.File(tmp_path / "all.h5") as file:
        forecast, truth = file["forecast"][:], file["truth"][:]
        assert forecast.shape == truth.shape == (windows, 12, 4, 1)
        assert file.attrs["schema"] == "socialx.forecast/2"
        np.testing.assert_array_equal(table["forecast"].to_numpy(), forecast.ravel())
        np.testing.assert_array_equal(table["truth"].to_numpy(), truth.ravel())
        issued, times = (pd.to_datetime(file[name].asstr()[:].ravel()) for name in ("origin", "times"))
        np.testing.assert_array_equal(table["origin"].dt.tz_localize(None), np.repeat(issued, 48))
        np.testing.assert_array_equal(table["time"].dt.tz_localize(None), np.repeat(times, 4))
        names = file["sensors"].asstr()[:].tolist()
    assert (names, table["sensor"].tolist()) == (list(open_run(run).sensors or ()), names * (12 * windows))
    assert (table["lead_minutes"].tolist()[:49:4], set(table["unit"])) == ([*range(5, 65, 5), 5], {"mph"})


def test_what_cannot_be_saved_is_refused_before_any_work(run: Path, worse: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.h5"
    there.write_text("mine")
    for words, status, code, says in (
        ([run, "--save-forecasts", tmp_path / "x.csv"], 2, "output.suffix", ".h5 or .parquet"),
        ([run, "--save-forecasts", there], 1, "output.exists", "--overwrite"),
        ([run, worse, "--save-forecasts", tmp_path / "x.h5"], 2, "score.one-run", "--save-forecasts"),
    ):
        assert (error := refused("evaluate", *words, code=status)).code == code
        assert says in error
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"there.h5": "mine"}


def test_a_pass_that_fails_leaves_no_file(run: Path, tmp_path: Path) -> None:
    broken = RunFolder(Path(shutil.copytree(run, tmp_path / "broken")))
    weights = broken.read_weights()
    weights.state["head.2.bias"][:] = 3e38
    weights.state["head.2.weight"][:] = 3e38
    broken.write_weights(weights.state, 1, 1.0)
    with pytest.raises(SocialxError, match="overflow"):
        api.evaluate([broken.path], save_forecasts=tmp_path / "all.h5")
    assert not [path for path in tmp_path.iterdir() if path != broken.path]
