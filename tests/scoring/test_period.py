"""Scores of a period: the windows of a part whose forecast lies in it."""

import re
from datetime import datetime
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import socialx as api
from socialx.core.errors import SettingsError
from socialx.dataset import Dataset
from socialx.files.store.time_axis import as_text
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting
from socialx.tasks.scored_split import select_windows
from tests.commands import refused, refuses, small_file, small_run, works

ROWS = 1500  # 5.2 days from 2012-05-03 00:00, the test split from 2012-05-07 04:10
FROM, TO = "2012-05-07 06:00", "2012-05-07 09:00"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("period"), ROWS)


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    return small_run(data)


@pytest.fixture(scope="module")
def dataset(run: Path) -> Dataset:
    return open_forecasting(run, ConfigLayers()).experiment.data


def test_the_windows_are_those_whose_forecast_lies_in_the_period(run: Path, data: Path, tmp_path: Path) -> None:
    """By hand: every saved forecast of the part, of which those are kept whose 12 steps lie between both times."""
    every, some = tmp_path / "every.h5", tmp_path / "some.h5"
    api.evaluate([run], save_forecasts=every)
    found = api.evaluate([run], start=FROM, end=TO, save_forecasts=some)
    with h5py.File(every) as file, h5py.File(some) as chosen:
        issued = file["origin"].asstr()[:].astype("datetime64[s]")
        first, last = issued + np.timedelta64(5, "m"), issued + np.timedelta64(60, "m")
        kept = (first >= np.datetime64(FROM)) & (last <= np.datetime64(TO))
        forecast, truth = file["forecast"][:][kept], file["truth"][:][kept]
        assert kept.sum() == 26  # 37 rows from 6:00 to 9:00 hold 26 forecasts of 12 steps
        np.testing.assert_allclose(chosen["forecast"][:], forecast, atol=1e-4)
        np.testing.assert_array_equal(chosen["truth"][:], truth)
    valid = np.isfinite(truth)
    mae = np.abs(forecast - truth)[valid].mean(dtype=np.float64)
    assert found[str(run)].overall().mae == pytest.approx(mae, rel=1e-5)
    assert (found[str(run)].overall().count, found.protocol.period.windows) == (valid.sum(), 26)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part=st.sampled_from(["train", "validation", "test", "all"]), rows=st.data())
def test_any_period_is_a_plain_loop_over_the_windows(part: str, rows: st.DataObject, dataset: Dataset) -> None:
    seconds, starts = dataset.store.seconds, dataset.windows.split(part)
    begin = rows.draw(st.integers(int(seconds[0]), int(seconds[-1])))
    until = rows.draw(st.integers(begin, int(seconds[-1])))
    by_hand = [k for k, row in enumerate(starts) if begin <= seconds[row + 12] and seconds[row + 23] <= until]
    if not by_hand:
        with refuses("split.empty-period", SettingsError) as caught:
            select_windows(dataset, part, as_text(begin), as_text(until))
        assert f" {part} split" in str(caught.value)
        return
    places, period = select_windows(dataset, part, as_text(begin), as_text(until))
    assert places.tolist() == by_hand
    assert (period.first_time, period.last_time, period.windows) == (as_text(begin), as_text(until), len(by_hand))


def test_the_ends_of_the_file_are_open(run: Path, dataset: Dataset) -> None:
    whole, named = api.evaluate([run]), api.evaluate([run], start="2012-05-03", end=datetime(2012, 5, 8, 4, 55))
    assert named.models == whole.models
    assert whole.protocol.period is None
    count = len(select_windows(dataset, "test", None, None)[0])
    later, earlier = (select_windows(dataset, "test", *ends)[0] for ends in ((FROM, None), (None, FROM)))
    assert len(later) + len(earlier) + 10 == count  # 10 forecasts begin before that time and end after it


def test_every_measure_of_evaluate_is_of_the_period(run: Path) -> None:
    asked = {"start": "2012-05-07 06:00", "end": "2012-05-07 06:55"}
    found = api.evaluate([run], baselines=True, climatology_days="all", intervals=True, by=["hour", "sensor"], **asked)
    count = found[str(run)].overall().count
    assert {model.overall().count for model in found.models.values()} == {count}
    assert found.climatology_days[f"{run}, all days"].overall().count == count
    assert [row.key for row in found.by[str(run)]["hour"] if row.count] == [6]
    assert (sum(row.count for row in found.by[str(run)]["sensor"]), found.published) == (count, ())


def test_all_commands_take_a_period_and_say_what_they_scored(run: Path, tmp_path: Path) -> None:
    scores = api.evaluate([run], start=FROM, end=TO)
    explained = api.explain(run, start=FROM, end=TO)
    assert (explained.count, explained.protocol.period) == (scores[run].overall().count, scores.protocol.period)
    page, period = tmp_path / "report.html", ("--start", FROM, "--end", TO)
    works("report", run, *period, "-o", page)
    for text in (page.read_text(), works("evaluate", run, *period).stdout):
        assert re.search(f"the 26 windows .* {FROM}:00 .. {TO}:00", text)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--start", "2012-06-01"), "split.period", "--start '2012-05-08 04:55:00'"),
        (("--end", "2011-01-01"), "split.period", "--end '2012-05-03 00:00:00'"),
        (("--end", "2012-05-04"), "split.empty-period", "2012-05-03 00:00:00 .. 2012-05-04 00:00:00"),
        (
            ("--start", TO, "--end", FROM, "--split", "all"),
            "split.empty-period",
            "2012-05-03 01:00:00 .. 2012-05-08 04:55:00\n",
        ),
        (("--start", TO, "--end", FROM), "split.empty-period", f"{TO}:00 .. {FROM}:00"),
        (("--start", "yesterday"), "time.unreadable", "--start yesterday"),
        (("--start", FROM, "--days", "2"), "split.with-days", "--start"),
        (("--end", TO, "--days", "2"), "split.with-days", "--end"),
    ],
)
def test_a_period_that_cannot_be_scored(arguments: tuple[str, ...], code: str, says: str, data: Path) -> None:
    assert (error := refused("evaluate", "--baselines", "--data", data, *arguments, code=2)).code == code
    assert says in error
