"""A model for any network: nothing of single sensors, and in training few days are known as often as many."""

import re
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

import socialx
from socialx.data.climatology import ALL_DAYS, ZERO_SHOT_DAYS
from socialx.scoring import adaptation
from socialx.settings.conflicts import idle_settings, sensor_tables
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import Settings
from socialx.tasks.build import build
from socialx.tasks.opened import open_forecasting
from socialx.tasks.training_data import load_extra_networks, train_loader
from socialx.training.run_folder import TRAINED, open_run
from tests.commands import edited, in_kmh, keep_rows, refused, renamed, small_file, small_run, works

DAY = 288


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zero-shot")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return small_file(folder, 3 * DAY, 5)


@pytest.fixture(scope="module")
def run(folder: Path, data: Path) -> Path:
    return small_run(data, folder / "run", "--zero-shot")


def test_the_windows_of_its_training_know_few_days_as_often_as_many(run: Path, data: Path) -> None:
    experiment = open_forecasting(run, ConfigLayers()).experiment
    assert experiment.data.train_climatology_days == ZERO_SHOT_DAYS
    batch, _ = next(iter(train_loader(experiment).epoch(0)))
    assert batch.climatology.isnan().flatten(1).any(1).any()  # some windows know nothing
    others = experiment.data.loader("train", 32)
    wanted = experiment.data.loader("train", 32, days=ALL_DAYS)
    for (one, _), (two, _) in zip(others.epoch(0), wanted.epoch(0), strict=True):
        assert torch.equal(one.climatology_confidence, two.climatology_confidence)  # no other pass does


def test_it_has_nothing_of_single_sensors(run: Path, data: Path, tmp_path: Path) -> None:
    state = open_run(run).read_weights().state
    assert not [name for name, tensor in state.items() if 5 in tensor.shape]
    found = Settings(model={"zero_shot": True})
    assert not sensor_tables(found)
    assert {"model.sensor_embedding", "pooling.adaptive_adjacency_rank"} <= idle_settings(found)
    given = ("--zero-shot", "--set", "pooling.adaptive_adjacency_rank=4", "--max-epochs", "1")
    assert "settings.unread" in (note := works("train", "--data", data, *given, "--run-dir", tmp_path / "n")).codes
    assert "--set pooling.adaptive" in " ".join(note.stderr.split())


@pytest.mark.slow
def test_it_forecasts_another_network(run: Path, folder: Path) -> None:
    (folder / "other").mkdir()
    other = small_file(folder / "other", 3 * DAY, 8)
    forecast = socialx.predict(run, other)
    assert forecast.values.shape == (1, 12, 8, 1)
    assert np.isfinite(forecast.values).all()
    scores = socialx.evaluate(run, other, split="all", climatology_days="0,1,all")
    assert len({of.overall().mae for of in scores.climatology_days.values()}) == 3


def test_a_run_of_one_network_is_refused_elsewhere_with_the_flag_that_helps(data: Path, folder: Path) -> None:
    tied = small_run(data, folder / "tied", "--sensor-embedding")
    (folder / "else").mkdir()
    assert "--zero-shot" in refused("predict", tied, "--data", small_file(folder / "else", 2 * DAY, 3))


def test_another_unit_gives_the_same_forecast_in_it(run: Path, data: Path, folder: Path) -> None:
    other = in_kmh(data, folder / "kmh.h5")
    miles, kilometres = (socialx.predict(run, path) for path in (data, other))
    assert kilometres.units == ("km/h",)
    np.testing.assert_allclose(kilometres.values, miles.values * 1.609344, rtol=2e-5)
    one, two = (socialx.evaluate(run, path, climatology_days="1")[str(run)].overall().mae for path in (data, other))
    assert two == pytest.approx(one * 1.609344, rel=1e-4)


def test_a_forecast_says_how_much_is_known_of_the_network(run: Path, data: Path) -> None:
    for at, days in (("2012-05-03 10:00", "0 days"), ("2012-05-04 10:00", "1 day")):
        assert "predict.days" in (done := works("predict", run, "--data", data, "--at", at)).codes
        assert re.search(rf" {days} of .* 7 or more", " ".join(done.stderr.split()))


def test_the_run_of_the_package_forecasts_a_file(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert np.isfinite(socialx.predict("zero-shot", data).values).all()
    copied = socialx.evaluate("zero-shot", data, split="all", baselines=True)
    assert copied["zero-shot"].overall().mae < copied["naive"].overall().mae
    assert refused("predict", "zero-shot", code=2).code == "data.none"
    (tmp_path / "zero-shot").mkdir()
    assert refused("predict", "zero-shot", "--data", data).code == "run.not"


def test_the_run_of_the_package_holds_no_path_and_nothing_of_its_network() -> None:
    folder = TRAINED / "zero-shot"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2 << 20
    weights = open_run(folder).read_weights()
    assert not [name for name, tensor in weights.state.items() if 207 in tensor.shape]
    intervals = open_run(folder).read_intervals(weights.fingerprint)
    assert intervals.sensors == ()
    assert intervals.widest_level == 0.99
    settings = socialx.load_run("zero-shot").settings
    assert settings.data.path is settings.trainer.run_dir is None
    assert settings.data.extra_data == ()
    assert settings.model.zero_shot
    for file in folder.glob("*.json*"):
        assert "/" not in re.sub(r"America/Los_Angeles|km/h", "", file.read_text())


def test_what_it_cannot_forecast_is_said_in_one_line(data: Path, tmp_path: Path) -> None:
    wider = tmp_path / "wider.h5"
    table = pd.DataFrame(50.0, pd.date_range("2024-01-30", periods=200, freq="45min", name="time"), ["S1", "S2"])
    table.to_csv(tmp_path / "a.csv")
    (tmp_path / "at.csv").write_text("id,lat,lon\nS1,48.1,11.5\nS2,48.2,11.6\n")
    given = {"meta_csv": tmp_path / "at.csv", "units": "km/h", "timezone": "Europe/Berlin"}
    socialx.convert("auto", tmp_path / "a.csv", wider, **given)
    assert (error := refused("predict", "zero-shot", "--data", wider)).code == "run.other-step"
    assert re.search(r" 45 min, .* 5, 10, 15, 20, 30, 60 .*\n.*socialx train", error)
    assert "--zero-shot" in error
    table.set_axis(pd.date_range("2024-01-30", periods=200, freq="5min", name="time")).to_csv(tmp_path / "a.csv")
    socialx.convert("auto", tmp_path / "a.csv", tmp_path / "flow.h5", quantity="flow", meta_csv=tmp_path / "at.csv")
    assert refused("predict", "zero-shot", "--data", tmp_path / "flow.h5").code == "store.no-feature"
    speeds = {"channel": "{sensor}", "units": "km/h"}
    socialx.convert("auto", tmp_path / "a.csv", tmp_path / "no.h5", without_positions=True, **speeds)
    assert "--no-require-locations" in refused("predict", "zero-shot", "--data", tmp_path / "no.h5")
    assert np.isfinite(
        socialx.predict("zero-shot", tmp_path / "no.h5", pooling={"require_locations": False}).values
    ).all()


def moments_of(run: Path, data: Path) -> torch.Tensor:
    """The mean [N,1] of a run at the pace of a file, after its last row."""
    return open_forecasting(
        run, ConfigLayers.from_call(None, {"data": data}), split=False
    ).at_the_end.scaler.target_mean


def slower(data: Path, path: Path, ratio: float, sensors: slice = slice(None), rows: slice = slice(None)) -> Path:
    """The same readings times a ratio, of sensors of other names; rows: which are kept."""
    with h5py.File(renamed(data, path), "r+") as file:
        file.attrs["dataset_name"] = "slower"
        keep_rows(file, rows)
        file["data/features"][:, sensors] *= ratio
    return path


@pytest.mark.parametrize("ratio", [0.5, 2**0.5])
def test_a_network_at_another_pace_is_forecast_alike(run: Path, data: Path, tmp_path: Path, ratio: float) -> None:
    other = slower(data, tmp_path / "other.h5", ratio)
    for at in ("2012-05-03 06:00", None):
        found = socialx.predict(run, other, at=at, interval=0.8)
        alike = socialx.predict(run, slower(data, tmp_path / "alike.h5", 1.0), at=at, interval=0.8)
        np.testing.assert_allclose(found.values, ratio * alike.values, rtol=1e-4)
        np.testing.assert_allclose(found.upper, ratio * alike.upper, rtol=1e-3)
    assert "run.other-speeds" in (done := works("predict", run, "--data", other)).codes
    assert "5 sensors" in done.stderr


def test_each_sensor_has_its_pace_where_a_day_of_it_is_known(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptation.Past, "leaning", lambda *_: None)  # of the first day, in which all have one pace
    some, ratio = slice(0, 2), np.array([0.5, 0.5, 1, 1, 1])[:, None]
    found = socialx.predict(run, slower(data, tmp_path / "some.h5", 0.5, some))
    alike = socialx.predict(run, slower(data, tmp_path / "none.h5", 1.0))
    np.testing.assert_allclose(found.values, ratio * alike.values, rtol=1e-4)
    hours = slice(0, 100)
    found = socialx.predict(run, slower(data, tmp_path / "some.h5", 0.5, some, hours))
    alike = socialx.predict(run, slower(data, tmp_path / "none.h5", 1.0, some, hours))
    assert (np.abs(found.values - ratio * alike.values)[:, :, some] > 1e-3).any()  # they are those of the network


def test_some_hours_at_which_a_detector_is_stuck_are_not_its_pace(run: Path, data: Path, tmp_path: Path) -> None:
    whole = slower(data, tmp_path / "whole.h5", 1.0)
    with edited(whole, tmp_path / "stuck.h5") as file:
        file["data/features"][:DAY, 1] *= 0.3
    assert torch.equal(*[moments_of(run, path) for path in (whole, tmp_path / "stuck.h5")])


def test_later_readings_do_not_change_the_pace_of_an_earlier_forecast(run: Path, data: Path, tmp_path: Path) -> None:
    whole = slower(data, tmp_path / "whole.h5", 1.0)
    with edited(whole, tmp_path / "later.h5") as file:
        file["data/features"][2 * DAY + 1 :] *= 0.3
    for at in ("2012-05-03 06:00", "2012-05-05 00:00"):
        one, two = (socialx.predict(run, path, at=at).values for path in (whole, tmp_path / "later.h5"))
        np.testing.assert_array_equal(one, two)


def test_an_hour_in_which_half_of_the_sensors_are_congested_is_no_slow_network(
    run: Path, data: Path, tmp_path: Path
) -> None:
    whole = moments_of(run, slower(data, tmp_path / "whole.h5", 1.0))
    (mean,) = set(moments_of(run, slower(data, tmp_path / "jam.h5", 0.3, slice(0, 3), slice(0, 24))).flatten().tolist())
    assert mean == pytest.approx(float(whole.median()))


def test_a_network_of_nearly_the_same_pace_is_left_as_it_is(run: Path, data: Path, tmp_path: Path) -> None:
    assert torch.equal(*[moments_of(run, slower(data, tmp_path / "near.h5", ratio)) for ratio in (1.0, 1.05)])


def test_a_slower_network_is_learnt_from_at_its_own_pace(data: Path, tmp_path: Path) -> None:
    given = {"data.path": data, "data.extra_data": (slower(data, tmp_path / "half.h5", 0.5),), "model.zero_shot": True}
    experiment = build(ConfigLayers(preset="mlp-small").over(given).load().settings)
    (other,) = load_extra_networks(experiment)
    for name in ("input_std", "target_mean"):
        own, first = (getattr(each.model.scaler, name) for each in (other, experiment))
        torch.testing.assert_close(own.median(), 0.5 * first[0])


@pytest.mark.parametrize("minutes", [10, 15])
def test_a_file_of_a_longer_step_is_forecast_in_its_own(run: Path, tmp_path: Path, minutes: int) -> None:
    times = pd.date_range("2024-01-30", periods=3 * 1440 // minutes, freq=f"{minutes}min", name="time")
    table = pd.DataFrame(np.random.default_rng(0).uniform(40, 60, (len(times), 3)), times, ["S1", "S2", "S3"])
    table.to_csv(tmp_path / "a.csv")
    (tmp_path / "at.csv").write_text("id,lat,lon\nS1,34.1,-118.3\nS2,34.2,-118.3\nS3,34.2,-118.2\n")
    given = {"meta_csv": tmp_path / "at.csv", "units": "mph", "timezone": "America/Los_Angeles"}
    socialx.convert("auto", tmp_path / "a.csv", tmp_path / "a.h5", **given)
    forecast = socialx.predict(run, tmp_path / "a.h5")
    assert forecast.step_minutes == minutes
    assert forecast.values.shape == (1, 60 // minutes, 3, 1)
    assert forecast.times[0, -1] - forecast.origin[0] == np.timedelta64(60, "m")
    scores = socialx.evaluate(run, tmp_path / "a.h5", split="all", climatology_days="0,all", baselines=True)
    assert scores.protocol.step_minutes == minutes
    assert scores[str(run)].at(minutes=30).count > 0
    model = socialx.load_model(run, tmp_path / "a.h5")
    alone = model.model(model.batch(table.to_numpy(np.float32)[None, -60 // minutes :, :, None], [str(times[-1])]))
    np.testing.assert_allclose(alone.detach().numpy(), forecast.values, rtol=1e-4)


def test_nothing_is_written_into_the_package(data: Path) -> None:
    before = {file.name: file.read_bytes() for file in (TRAINED / "zero-shot").iterdir()}
    assert (error := refused("calibrate", "zero-shot", "--data", data)).code == "calibrate.shipped"
    assert "socialx train --data" in error
    assert refused("train", "--resume", "zero-shot").code == "resume.no-state"
    assert {file.name: file.read_bytes() for file in (TRAINED / "zero-shot").iterdir()} == before
