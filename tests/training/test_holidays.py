"""A run with holidays: in its climatology and calendar, its scores, its forecasts and its export."""

from datetime import date
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

from socialx.data.calendar import DAY_S, Calendar
from socialx.data.climatology import RollingClimatology
from socialx.data.series import Series, WindowLayout
from socialx.data.source import Arrays
from socialx.settings.layers import ConfigLayers
from socialx.tasks.evaluate import evaluate
from socialx.tasks.export import export_model
from socialx.tasks.opened import open_forecasting
from socialx.tasks.predict import predict
from tests.commands import small_file, small_run, works
from tests.networks import CPU, MONDAY, speeds

ROWS = 1560


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"), ROWS)


@pytest.fixture(scope="module")
def days(data: Path) -> Path:
    """The last whole day of the file, a Monday, resembles a Sunday, and one after the file a Saturday."""
    path = data.with_name("days.csv")
    path.write_text("date,like\n2012-05-07,Sunday\n2012-05-10,Saturday\n")
    return path


@pytest.fixture(scope="module")
def run(data: Path, days: Path) -> Path:
    return small_run(data, "run", "--batch-size", "32", "--learning-rate", "0.01", "--holidays", days)


def test_the_climatology_counts_a_holiday_with_the_kind_of_day_that_it_resembles() -> None:
    values, valid, _ = speeds(9 * 48, 3, 0.1)
    seconds = MONDAY + 1800 * np.arange(9 * 48)
    first = MONDAY // DAY_S
    arrays = values[..., None], valid[..., None], seconds, 30
    named = {first + 1: 6, first + 9: 6}
    plain, off = (RollingClimatology(Arrays(*arrays, Calendar(holidays=days.get))) for days in ({}, named))
    known, without = off.stats_before(first + 9), plain.stats_before(first + 9)
    np.testing.assert_allclose(known.counts.sum(0), without.counts.sum(0), rtol=1e-6)
    faded = 0.5 ** (8 / 14) * valid[48:96, :, None]
    np.testing.assert_allclose(known.counts[2] - without.counts[2], faded, atol=1e-6)
    ahead = MONDAY + 9 * DAY_S + 1800 * np.arange(48)  # a Wednesday
    np.testing.assert_array_equal(off.lookup(ahead, ahead).readings[0], known.climatology(2).readings)
    np.testing.assert_array_equal(plain.lookup(ahead, ahead).readings[0], without.climatology(0).readings)


def test_windows_have_it_in_their_calendar() -> None:
    values, valid, _ = speeds(96, 3, 0.1)
    calendar = Calendar(holidays={MONDAY // DAY_S + 1: 5}.get)
    source = Arrays(values[..., None], valid[..., None], MONDAY + 1800 * np.arange(96), 30, calendar)
    batch = Series(source, WindowLayout(2, 3), CPU).window(torch.tensor([44]))
    assert batch.day_of_week.tolist() == [[0, 0, 0, 0, 5]]


def test_scores_have_a_row_of_holidays(run: Path, data: Path, days: Path) -> None:
    found = evaluate(run, by="weekday", save_forecasts=data.with_name("all.parquet"))
    rows = {row.key: row for row in found.by[str(run)]["weekday"]}
    assert list(rows)[-1] == "holiday"
    saved = pd.read_parquet(data.with_name("all.parquet"))
    error = (saved["forecast"] - saved["truth"]).abs()
    of_day = error[pd.to_datetime(saved["time"]).dt.date == date(2012, 5, 7)].dropna()
    assert (rows["holiday"].count, rows["Monday"].count) == (len(of_day), 0)
    assert rows["holiday"].mae == pytest.approx(of_day.mean(), rel=1e-5)
    assert sum(row.count for row in rows.values()) == found[run].overall().count
    assert found.protocol.holidays == {"2012-05-07": "Sunday"}
    assert "holidays: 2012-05-07 as Sunday" in works("evaluate", run).stdout
    none = days.with_name("none.csv")
    none.write_text("2011-01-01\n")
    other = evaluate(run, by="weekday", data={"holidays": str(none)})
    assert "holiday" not in {row.key for row in other.by[str(run)]["weekday"]}
    assert other[run].overall().mae != found[run].overall().mae


def test_a_forecast_on_a_holiday_is_that_of_the_scores(run: Path, tmp_path: Path) -> None:
    evaluate(run, save_forecasts=tmp_path / "all.parquet")
    saved = pd.read_parquet(tmp_path / "all.parquet")
    issued = saved["origin"].iloc[len(saved) // 2]
    frame = predict(run, at=str(issued)).to_frame()
    both = saved[saved["origin"] == issued].merge(frame, on=["sensor", "lead_minutes"], suffixes=("", "_now"))
    assert len(both) == 48
    np.testing.assert_allclose(both["forecast"], both["forecast_now"], rtol=1e-5)


def test_the_export_knows_them(run: Path) -> None:
    experiment = open_forecasting(run, ConfigLayers()).experiment
    issued = np.array(["2012-05-06T23:50", "2012-05-07T12:00", "2012-05-10T00:30"], "datetime64[s]").astype(np.int64)
    batch = export_model(experiment).batch(np.full((3, 12, 4, 1), 60.0), issued)
    expected = experiment.data.calendar.time_features(issued[:, None] + 300 * np.arange(-11, 13), 5)[1]
    assert (batch.day_of_week.tolist(), set(expected[1]), expected[2, -1]) == (expected.tolist(), {6}, 5)


@pytest.mark.slow
def test_an_onnx_program_knows_them(run: Path, tmp_path: Path) -> None:
    experiment = open_forecasting(run, ConfigLayers()).experiment
    works("export", run, tmp_path / "run.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "run.onnx")
    issued = np.array(["2012-05-06T23:50", "2012-05-07T12:00", "2012-05-08T00:30"], "datetime64[s]").astype(np.int64)
    readings = np.random.default_rng(0).uniform(20, 70, (3, 12, 4, 1)).astype(np.float32)
    inputs = {"inputs": readings, "last_observed": readings[:, -1], "origin": issued}
    (found,) = session.run(None, inputs)
    with torch.no_grad():
        expected = export_model(experiment).eval()(*map(torch.from_numpy, inputs.values())).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4)
