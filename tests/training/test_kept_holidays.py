"""A run keeps its holidays: which days count, whatever the list says now and wherever the run is called from."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.data.calendar import DAY_S
from socialx.serving.posted import JSON, read_issue
from socialx.settings.layers import ConfigLayers
from socialx.tasks.export import export_model
from socialx.tasks.opened import open_forecasting
from tests.commands import refused, small_file, small_run, works

LIST = "2012-05-04,Sunday\n2012-05-10,Saturday\n"
CODE, TOLD = "fit.other-holidays", "other holidays"
EDITS = {
    "another weekday": "2012-05-04,Saturday\n2012-05-10,Saturday\n",
    "a day less": "2012-05-10,Saturday\n",
    "a day more": f"{LIST}2012-05-05\n",
    "its first day more": f"{LIST}2012-05-03\n",
    "its last day more": f"{LIST}2012-05-08\n",
    "another day": "2012-05-03,Sunday\n2012-05-10,Saturday\n",
    "Sunday named Sunday": f"{LIST}2012-05-06,Sunday\n",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From Thursday, the third of May 2012, to Tuesday."""
    return small_file(tmp_path_factory.mktemp("data"), 1560)


@pytest.fixture(scope="module")
def first(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which three runs were trained with a file and a list of relative names, the last one without."""
    place = tmp_path_factory.mktemp("first")
    shutil.copy(data, place / "m.h5")
    (place / "h.csv").write_text(LIST)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        small_run(Path("m.h5"), "run", "--learning-rate", "0.01", "--holidays", "h.csv")
        small_run(Path("m.h5"), "same", "--holidays", "h.csv")
        small_run(Path("m.h5"), "plain")
    return place


@pytest.fixture
def folder(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is a copy that a test may change, and the trainings took place there."""
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    for protocol in tmp_path.glob("*/protocol.json"):
        protocol.write_text(protocol.read_text().replace(str(first), str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weekdays(run: Path | str, *dates: str, **data: str) -> list[int]:
    """The weekday of each date, 0 = Monday, as a run of this folder sees it."""
    experiment = open_forecasting(Path(run), ConfigLayers.from_call(None, {"data": data}), split=False).experiment
    seconds = np.array(dates, "datetime64[s]").astype(np.int64)
    return [int(day) for day in experiment.data.calendar.time_features(seconds, 5)[1]]


def test_other_days_of_the_training_are_told_and_never_trained_on(folder: Path) -> None:
    for name, edit in EDITS.items():
        Path("h.csv").write_text(edit)
        assert works("predict", "run").stderr.count(TOLD) == 1, name
        assert refused("train", "--resume", "run", "--max-epochs", "2").code == CODE
    assert (works("evaluate", "run").stderr.count(TOLD), works("explain", "run").stderr.count(TOLD)) == (1, 1)
    Path("h.csv").write_text(LIST)
    works("train", "--resume", "run", "--max-epochs", "2")


def test_later_days_may_be_added(folder: Path) -> None:
    assert weekdays("run", "2012-05-04", "2012-05-10", "2012-05-11", "2013-01-01") == [6, 5, 4, 1]
    Path("h.csv").write_text(f"2011-12-24\n{LIST}2013-01-01\n")
    assert weekdays("run", "2012-05-04", "2012-05-10", "2012-05-11", "2013-01-01") == [6, 5, 4, 6]
    for command in (["predict", "run"], ["evaluate", "run"], ["train", "--resume", "run", "--max-epochs", "2"]):
        assert CODE not in works(*command).codes


@pytest.mark.parametrize("other", [None, "2012-05-03,Sunday\n2012-05-11,Sunday\n"])
def test_a_run_has_its_own_list_wherever_it_is_called_from(
    other: str | None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = folder / "elsewhere" / "deep"
    there.mkdir(parents=True)
    before = socialx.predict("run")
    monkeypatch.chdir(there)
    if other:
        Path("h.csv").write_text(other)
    run = folder / "run"
    assert weekdays(run, "2012-05-04", "2012-05-03", "2012-05-10", "2012-05-11") == [6, 3, 5, 4]
    np.testing.assert_array_equal(socialx.predict(run, folder / "m.h5").values, before.values)
    assert CODE not in works("evaluate", run, "--data", folder / "m.h5").codes
    (folder / "h.csv").unlink()
    assert weekdays(run, "2012-05-04", "2012-05-03", "2012-05-10", "2012-05-11") == [6, 3, 5, 4]
    monkeypatch.chdir(folder)
    assert "h.csv" not in works("train", "--resume", "run", "--max-epochs", "2").stderr


def test_a_list_that_is_named_counts_and_a_line_says_so(folder: Path) -> None:
    Path("other.csv").write_text("2012-05-03\n")
    assert CODE in works("evaluate", "run", "--holidays", "other.csv").codes
    assert weekdays("run", "2012-05-04", "2012-05-03", holidays="other.csv") == [4, 6]
    assert refused("predict", "run", "--holidays", "none.csv").code == "file.missing"
    assert CODE in works("evaluate", "plain", "--holidays", "other.csv").codes


def test_runs_of_other_holidays_are_scored_together_with_a_line(folder: Path) -> None:
    assert CODE not in works("evaluate", "run", "same").codes
    for pair in (["run", "plain"], ["plain", "run"]):
        assert CODE in (done := works("evaluate", *pair)).codes
        assert f" {pair[1]} was trained" in done.stderr


def test_an_older_run_is_compared_by_the_days_of_its_protocol(folder: Path) -> None:
    path = Path("run/protocol.json")
    content = json.loads(path.read_text())
    del content["holidays_file"]
    path.write_text(json.dumps(content))
    assert CODE not in works("predict", "run").codes
    Path("h.csv").write_text(EDITS["another day"])
    assert CODE in works("predict", "run").codes
    assert refused("train", "--resume", "run", "--max-epochs", "2").code == CODE


def test_a_new_run_in_the_folder_does_not_keep_the_list(folder: Path) -> None:
    assert Path("run/holidays.csv").read_text() == LIST
    works("train", "--data", "m.h5", "--run-dir", "run", "--overwrite", "--max-epochs", "1", "--preset", "mlp-small")
    assert not Path("run/holidays.csv").exists()


@pytest.fixture(scope="module")
def of_country(data: Path) -> Path:
    return small_run(data, "of_country", "--holidays", "US-CA")


def posted(date: str, ids: tuple[str, ...]) -> bytes:
    times = [str(each) for each in pd.date_range(f"{date} 12:00", periods=12, freq="5min")]
    return json.dumps({"times": times, "readings": {ids[0]: [60.0] * 12}}).encode()


@pytest.mark.parametrize("year", [2005, 2012, 2013, 2014, 2026, 2039])
def test_a_server_knows_the_holidays_of_every_year(year: int, of_country: Path) -> None:
    experiment = open_forecasting(of_country, ConfigLayers(), split=False).experiment
    for day, like in ((f"{year}-12-25", 6), (f"{year}-07-04", 6), (f"{year}-12-20", None)):
        batch = read_issue(experiment, JSON, posted(day, experiment.data.sensors.ids)).batch
        own = (int(np.datetime64(day, "D").astype(np.int64)) + 3) % 7
        assert set(batch.day_of_week.ravel().tolist()) == {own if like is None else like}, day


def test_all_that_forecasts_later_agrees(of_country: Path) -> None:
    experiment = open_forecasting(of_country, ConfigLayers(), split=False).experiment
    alone = export_model(experiment)
    for day in ("2012-12-25", "2014-12-25", "2031-12-25", "2031-12-20"):
        second = int(np.datetime64(day, "s").astype(np.int64)) + DAY_S // 2
        batch = alone.batch(np.zeros((1, 12, 4, 1)), [second])
        (expected,) = experiment.data.calendar.time_features(np.array([second]), 5)[1]
        assert set(batch.day_of_week.ravel().tolist()) == {expected}


def test_years_are_made_once_whoever_asks(of_country: Path) -> None:
    one, other = (open_forecasting(of_country, ConfigLayers(), split=False).experiment.data.calendar for _ in range(2))
    days = np.arange(10_000, 30_000, 7)
    assert one.holidays_among(days) == other.holidays_among(days[::-1])
