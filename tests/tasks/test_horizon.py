"""``predict --horizon``: a zero-shot run forecasts up to a day, and its rows may be an hour apart."""

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import socialx
from socialx.core.batch import Target
from socialx.data.climatology import HistoricalMedians
from socialx.scoring.adaptation import Anchor, PastForecasts, fade
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting
from tests.commands import EXCERPT, LOCATIONS, edited, refused, refuses, renamed, small_file, small_run, works

DAY = 288
AT = "2012-05-09 06:00"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten days of a network that the run does not know."""
    folder = tmp_path_factory.mktemp("data")
    return renamed(small_file(folder, 10 * DAY, 4), folder / "other.h5")


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(data.with_name("small.h5"), tmp_path_factory.mktemp("runs") / "run", "--zero-shot")


def test_an_anomaly_fades_into_the_usual_speed() -> None:
    forecast, usual = torch.tensor([50.0, 40.0]).double(), torch.full((1, 5, 2, 1), 60.0).double()
    usual[:, :, 1] = torch.nan
    longer = fade(forecast[None, :, None, None].expand(-1, -1, 2, -1), usual, 30)[0, :, :, 0]
    expected = [50.0, 40.0, *(60 - 20 * np.exp(-30 * step / 45) for step in (1, 2, 3))]
    np.testing.assert_allclose(longer[:, 0], expected)
    assert longer[:, 1].tolist() == [50.0, 40.0, 40.0, 40.0, 40.0]  # nothing is usual there
    short = torch.rand(1, 5, 2, 1)
    assert torch.equal(fade(short, usual, 5), short)


@pytest.mark.parametrize("better", [0, 1])
def test_the_anchor_is_the_one_that_was_better(better: int) -> None:
    truth = torch.full((4, 3, 2, 1), 50.0)
    usual = torch.stack([truth + 6.0, truth + 6.0], dim=1)
    usual[:, better] = truth + torch.tensor([-4.0, 2.0])[:, None]
    valid = torch.ones_like(truth, dtype=torch.bool)
    valid[0] = False
    usual[0] = -1e6
    anchor = Anchor.choose([PastForecasts(truth, truth[:, 0], usual, truth, valid)])
    assert anchor is not None
    assert (anchor.index, anchor.level.tolist()) == (better, [[2.0], [-1.0]])  # half of the median anomaly
    assert anchor.add_level(usual[:, anchor.index])[1, 0].tolist() == [[48.0], [51.0]]
    assert Anchor.choose([]) is None


def test_beyond_the_hour_the_forecast_is_the_formula(run: Path, data: Path) -> None:
    """Of the run's own network, where nothing leans: the first hour stays, and the rest is made again by loops."""
    own = data.with_name("small.h5")
    hour, day = socialx.predict(run, own, at=AT), socialx.predict(run, own, at=AT, horizon="24h")
    assert day.values.shape == (1, DAY, 4, 1)
    np.testing.assert_array_equal(day.values[:, :12], hour.values)
    opened = open_forecasting(run, ConfigLayers.from_call(None, {"data": own}), split=False, ahead_s=86_400)
    source, seconds = opened.experiment.data.target_source, int(day.origin[0].astype(np.int64))
    times = seconds + 300 * np.arange(1, DAY + 1)
    rolling, stop = (
        opened.experiment.data.climatology.rolling(),
        int(np.searchsorted(source.seconds, seconds // 86_400 * 86_400)),
    )
    climatology = rolling.lookup(times, np.full(DAY, seconds)).readings[0]
    both = np.stack([climatology, HistoricalMedians(source).lookup(times, stop)])
    past = opened.experiment.past
    anchor = past.anchor(past.bases([seconds])[0])
    week = list(past.past_week(seconds // 86_400))
    joined = [np.where(part.valid[:, None], part.truth[:, None] - part.usual, np.nan) for part in week]
    assert anchor.index == np.nanmean(np.abs(np.concatenate(joined)), axis=(0, 2, 3, 4)).argmin()
    usual = both[anchor.index] + anchor.level.numpy()
    left = np.exp(-5 * np.arange(1, DAY - 11) / 45)[:, None, None] * (hour.values[0, -1] - usual[11])
    np.testing.assert_allclose(day.values[0, 12:], np.maximum(usual[12:] + left, 0), rtol=1e-5)


def test_later_rows_and_other_origins_change_nothing(run: Path, data: Path, tmp_path: Path) -> None:
    alone = socialx.predict(run, data, at=AT, horizon="4h", interval=0.8)
    several = socialx.predict(run, data, start="2012-05-08 06:00", end=AT, every="24h", horizon="4h", interval=0.8)
    later = tmp_path / "later.h5"
    with edited(data, later) as file:
        features = file["data/features"][:]
        features[file["metadata/timestamps"][:] > f"{AT}:00".encode(), :, 0] = 33.0
        file["data/features"][:] = features
    changed = socialx.predict(run, later, at=AT, horizon=timedelta(hours=4), interval=0.8)
    for other in (several, changed):
        for name in ("values", "lower", "upper"):
            np.testing.assert_allclose(getattr(other, name)[-1], getattr(alone, name)[0], rtol=1e-4)
    assert ((alone.lower < alone.values) & (alone.values < alone.upper)).all()


def test_both_doors_give_the_same_and_a_shorter_horizon_is_a_part(run: Path, data: Path) -> None:
    ahead = [run, "--data", data, "--at", AT, "--horizon"]
    printed = json.loads(works("predict", *ahead, "90min", "--json").stdout)
    values = np.array(printed["forecast"]["avg_speed"])
    np.testing.assert_allclose(values, socialx.predict(run, data, at=AT, horizon="90min").values[..., 0], rtol=1e-6)
    assert (values.shape, printed["times"][0][-1][11:16]) == ((1, 18, 4), "07:30")
    part = socialx.predict(run, data, at=AT, horizon="30min", interval=0.8)
    whole = socialx.predict(run, data, at=AT, interval=0.8)
    for name in ("values", "lower", "upper", "times"):
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[:, :6])


def test_intervals_widen_and_cover_their_own_past(run: Path, data: Path) -> None:
    opened = open_forecasting(run, ConfigLayers.from_call(None, {"data": data}), split=False, ahead_s=4 * 3600)
    past, seconds = opened.experiment.past, np.datetime64(AT, "s").astype(int)
    band = opened.band(0.8, int(seconds))
    inside, count = 0, 0
    basis = past.bases([int(seconds)])[0]
    anchor, leaning = past.anchor(basis), past.leaning(basis)
    for part in past.past_week(basis.day):
        usual = anchor.add_level(part.usual[:, anchor.index])
        mixed = leaning.apply(fade(part.forecast, usual, 5), part.last, usual)
        target = Target(part.truth, part.valid)
        low, high = band.intervals.on(basis).apply(mixed, 0.8)
        hit = (target.values >= low) & (target.values <= high) & target.valid
        inside, count = inside + int(hit.sum()), count + int(target.valid.sum())
    assert 0.75 < inside / count < 0.9


@pytest.mark.parametrize(
    ("horizon", "code", "says"),
    [
        ("288", "option.minutes", "24h"),
        ("0h", "option.minutes", "24h"),
        ("25h", "predict.horizon-day", "--horizon 24h"),
        ("62min", "predict.horizon-step", "--horizon 65min"),
    ],
)
def test_what_is_no_horizon_is_refused(run: Path, data: Path, horizon: str, code: str, says: str) -> None:
    error = refused("predict", run, "--data", data, "--horizon", horizon, code=2)
    assert (error.code, says in error) == (code, True)


def test_a_trained_run_says_what_works(data: Path, tmp_path: Path) -> None:
    own = data.with_name("small.h5")
    trained = small_run(own, tmp_path / "run")
    assert socialx.predict(trained, own, horizon="30min").values.shape[1] == 6
    error = refused("predict", trained, "--horizon", "4h", code=2)
    assert error.code == "predict.horizon"
    assert f"socialx predict zero-shot --data {own} --horizon 4h" in error
    assert f"socialx train --data {own}" in error
    assert "--horizon 48" in error


def test_the_first_day_has_nothing_to_fade_into(run: Path, data: Path) -> None:
    with refuses("adapt.no-day") as caught:
        socialx.predict(run, data, at="2012-05-03 20:00", horizon="4h")
    assert "horizon='60min'" in str(caught.value)


def test_a_time_after_the_data_names_a_longer_horizon(run: Path, data: Path) -> None:
    error = refused("predict", run, "--data", data, "--at", "2012-05-13 08:00", code=2)
    assert (error.code, "--horizon 24h" in error) == ("predict.late", True)


@pytest.mark.parametrize("minutes", [10, 15, 20, 30, 60])
def test_coarser_steps_are_forecast(tmp_path: Path, minutes: int) -> None:
    table = pd.read_csv(EXCERPT, index_col=0, parse_dates=True).iloc[: 9 * DAY, :5]
    table.where(table > 0).to_csv(tmp_path / "streets.csv")
    given = {"meta_csv": LOCATIONS, "units": "km/h", "timezone": "UTC", "resample": f"{minutes}min"}
    socialx.convert("auto", tmp_path / "streets.csv", tmp_path / "streets.h5", **given)
    assert socialx.predict("zero-shot", tmp_path / "streets.h5").values.shape == (1, 60 // minutes, 5, 1)
    day = socialx.predict("zero-shot", tmp_path / "streets.h5", horizon="24h")
    assert day.values.shape == (1, 24 * 60 // minutes, 5, 1)
    assert np.isfinite(day.values).all()
