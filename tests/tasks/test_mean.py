"""The mean of several runs: its forecast, its scores and its intervals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import socialx as api
from socialx.core.errors import SettingsError
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import average_runs, open_forecasting
from tests.commands import edited, keep_rows, refused, refuses, renamed, small_file, small_run, socialx, works

DAY = 288


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four days of four sensors."""
    return small_file(tmp_path_factory.mktemp("days"), 4 * DAY)


@pytest.fixture(scope="module")
def pair(days: Path) -> list[Path]:
    return [small_run(days, f"pair_{seed}", "--seed", str(seed)) for seed in (0, 1)]


def averaged(forecasts: list[np.ndarray]) -> np.ndarray:
    return np.mean(np.stack(forecasts).astype(np.float64), axis=0)


def test_the_mean_forecast_is_the_mean_of_the_forecasts(pair: list[Path], tmp_path: Path) -> None:
    span: dict[str, Any] = {"start": "2012-05-05 10:00", "end": "2012-05-05 18:00"}
    found = api.predict(pair, mean=True, **span)
    alone = [api.predict(run, **span).values for run in pair]
    assert np.abs(alone[0] - alone[1]).max() > 0.1
    np.testing.assert_allclose(found.values, averaged(alone), rtol=0, atol=1e-5)
    assert found.run == "mean of 2 runs"
    words = ("predict", *pair, "--mean", "--start", span["start"], "--end", span["end"])
    works(*words, "--output", tmp_path / "mean.csv")
    found.to_csv(tmp_path / "python.csv")
    assert (tmp_path / "mean.csv").read_text() == (tmp_path / "python.csv").read_text()


def test_runs_that_read_a_climatology_and_others_have_a_mean(pair: list[Path], days: Path) -> None:
    runs = [small_run(days, "linear", "--model", "linear"), *pair]
    alone = [api.predict(run).values for run in runs]
    np.testing.assert_allclose(api.predict(runs, mean=True).values, averaged(alone), rtol=0, atol=1e-5)
    scores = api.evaluate(runs, mean=True)
    assert list(scores) == [*map(str, runs), "mean of 3 runs"]


def test_zero_shot_runs_adapt_each_by_themselves(days: Path, tmp_path: Path) -> None:
    runs = [small_run(days, f"zero_{seed}", "--zero-shot", "--seed", str(seed)) for seed in (0, 1)]
    other = renamed(days, tmp_path / "other.h5")
    alone = [api.predict(run, other, at="2012-05-05 10:00").values for run in runs]
    found = api.predict(runs, other, at="2012-05-05 10:00", mean=True, interval=0.8)
    np.testing.assert_allclose(found.values, averaged(alone), rtol=0, atol=1e-4)


def test_the_mean_is_scored_as_its_saved_forecasts_are(pair: list[Path], tmp_path: Path) -> None:
    scores = api.evaluate(pair, mean=True, save_forecasts=tmp_path / "mean.parquet", by="hour")
    for name, run in zip("ab", pair, strict=True):
        api.evaluate(run, save_forecasts=tmp_path / f"{name}.parquet")
    import pandas as pd

    tables = {name: pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("a", "b", "mean")}
    forecast = averaged([tables[name]["forecast"].to_numpy() for name in "ab"])
    np.testing.assert_allclose(tables["mean"]["forecast"], forecast, rtol=0, atol=1e-5)
    tables["a"].assign(forecast=forecast).to_csv(tmp_path / "mine.csv", index=False)
    again = api.evaluate([*pair, tmp_path / "mine.csv"])[tmp_path / "mine.csv"]
    mean = scores["mean of 2 runs"]
    for minutes, expected in again.by_minutes().items():
        row = mean.by_minutes()[minutes]
        np.testing.assert_allclose((row.mae, row.rmse, row.r2), (expected.mae, expected.rmse, expected.r2), atol=1e-5)
    assert mean.overall().mae not in {scores[run].overall().mae for run in pair}
    assert set(scores.by) == set(scores)


def test_scores_have_a_mean_and_a_deviation_over_the_runs(pair: list[Path]) -> None:
    scores = api.evaluate(pair, mean=True)
    for minutes, measure in [(15, "mae"), (30, "rmse"), (60, "mape"), (None, "r2")]:
        values = [getattr(scores[run].by_minutes()[minutes], measure) for run in pair]
        mean, deviation = (getattr(part.by_minutes()[minutes], measure) for part in scores.over_runs.values())
        assert mean == pytest.approx(sum(values) / 2)
        assert deviation == pytest.approx(abs(values[0] - values[1]) / np.sqrt(2))
    content = json.loads(works("evaluate", *pair, "--mean", "--json").stdout)
    assert content["over_runs"]["deviation"]["avg_speed"]["all"]["mae"] > 0
    assert list(content["scores"])[-1] == "mean of 2 runs"
    assert list(content["protocol"]["trained"]) == [*map(str, pair)]
    assert "over_runs" not in api.evaluate(pair).as_dict()
    printed = works("evaluate", *pair, "--mean", "--baselines").stdout
    assert "scores of 2 runs" in printed
    assert "mean of 2 runs: MAE" in printed


def test_the_mean_goes_with_the_other_scores(pair: list[Path]) -> None:
    scores = api.evaluate(pair, mean=True, intervals=True, silent=0.25, climatology_days="0,all", drift=True)
    name = "mean of 2 runs"
    assert {f"{name}, 0 days", f"{name}, all days"} <= set(scores.climatology_days)
    assert {f"{name}, 25 % silent"} <= set(scores.silent)
    assert list(scores.coverage) == list(scores.drift) == [*map(str, pair), name]
    alone = [scores.climatology_days[f"{run}, all days"] for run in pair]
    assert scores.climatology_days[f"{name}, all days"].overall().mae <= max(run.overall().mae for run in alone)


def test_intervals_of_the_mean_come_from_its_own_errors(pair: list[Path]) -> None:
    at = "2012-05-06 10:00"
    found = api.predict(pair, mean=True, at=at, interval=0.8)
    for run in pair:
        own = api.predict(run, at=at, interval=0.8)
        assert np.abs((own.upper - own.lower) - (found.upper - found.lower)).max() > 0.1
    first = open_forecasting(pair[0], ConfigLayers(), split=False)
    both = [first, open_forecasting(pair[1], ConfigLayers(), first.experiment, split=False)]
    intervals, words = average_runs(both).intervals(int(found.origin[0].astype(np.int64)))
    assert words.startswith("the last 3 days of ")
    measured = intervals.on(intervals.first)
    np.testing.assert_allclose(measured.apply(torch.from_numpy(found.values), 0.8)[1], found.upper, atol=1e-4)
    past = api.predict(pair, mean=True, start="2012-05-03 00:55", end="2012-05-05 22:55", every="5min")
    origins = {row.tobytes() for row in past.values}
    week = [part for between in (False, True) for part in intervals.past.past_week(intervals.first.day, between)]
    assert all(row.tobytes() in origins for part in week for row in part.forecast[1:].numpy())
    store = api.open_store(api.load_run(pair[0]).settings.data.path)
    truth, valid = (part[..., None] for part in store.read(slice(0, 3 * DAY)))
    rows = np.searchsorted(store.seconds, past.times.astype(np.int64))
    low, high = measured.apply(torch.from_numpy(past.values), 0.8)
    inside = (truth[rows] >= low.numpy()) & (truth[rows] <= high.numpy())
    freely = valid[rows] & (past.values > 0.92 * measured.free_flow[:-1].numpy())  # other groups have few errors
    assert 0.77 < inside[freely].mean() < 0.85


def test_intervals_of_the_mean_need_days_before(pair: list[Path], days: Path, tmp_path: Path) -> None:
    at = ("--mean", "--interval", "0.8", "--at", "2012-05-03 10:00")
    assert refused("predict", *pair, *at).code == "run.few-readings"
    with edited(days, tmp_path / "short.h5") as file:
        keep_rows(file, slice(0, 200))
    words = ("--mean", "--intervals", "--data", tmp_path / "short.h5", "--split", "all")
    done = socialx("evaluate", *pair, *words)
    assert (done.exit_code, done.codes[-1]) == (1, "run.few-readings")


@pytest.mark.parametrize("interval", [0.3, 1.0])
def test_a_level_that_no_interval_has_is_refused(interval: float, pair: list[Path]) -> None:
    with refuses("intervals.level", SettingsError):
        api.predict(pair, mean=True, interval=interval)


def test_how_many_runs_are_named_fits(pair: list[Path], tmp_path: Path) -> None:
    first = str(pair[0])
    error = refused("predict", *pair, code=2)
    assert error.code == "predict.runs"
    assert f"add --mean for the mean of several, or use socialx predict {first}\n" in error
    for words in (("predict", first), ("predict", first, first), ("evaluate", first), ("evaluate", "--baselines")):
        assert refused(*words, "--mean", code=2).code == "mean.few"
    works("evaluate", first, "--save-forecasts", tmp_path / "a.parquet")
    assert refused("evaluate", first, tmp_path / "a.parquet", "--mean", code=2).code == "mean.few"
    assert refused("evaluate", *pair, "--save-forecasts", tmp_path / "b.h5", code=2).code == "score.one-run"
    for runs in ([], pair):
        with refuses("predict.runs", SettingsError):
            api.predict(runs)
    with refuses("mean.few", SettingsError):
        api.predict([], mean=True)
    np.testing.assert_array_equal(api.predict([first]).values, api.predict(first).values)


def test_other_windows_have_no_mean(pair: list[Path], days: Path) -> None:
    longer = small_run(days, "longer", "--lookback", "24", "--model", "linear")
    for task in ("predict", "evaluate"):
        assert refused(task, pair[0], longer, "--mean", code=2).code == "run.other-windows"


def test_climatologies_of_other_days_have_no_mean(pair: list[Path], days: Path, tmp_path: Path) -> None:
    with edited(days, tmp_path / "early.h5") as file:
        keep_rows(file, slice(0, 3 * DAY))
    early = small_run(tmp_path / "early.h5", "early")
    words = (pair[0], early, "--data", days, "--mean")
    assert refused("predict", *words, code=2).code == "mean.climatologies"
    works("evaluate", *words)
    for runs in (("zero-shot", pair[0]), (pair[0], "zero-shot")):  # which stores none
        assert socialx("predict", *runs, "--data", days, "--mean").codes[-1] == "mean.climatologies"
