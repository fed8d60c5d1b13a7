"""Intervals on a network that a run was not calibrated on: of its last week, and where there is none a first guess."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import socialx
from socialx.scoring import adaptation
from socialx.scoring.intervals import LEVELS, SHARES, ConformalIntervals, bounds_by_group
from socialx.training.run_folder import RunFolder, open_run
from tests.commands import edited, small_file, small_run, works

DAY = 288


def guessed(run: Path) -> ConformalIntervals:
    """Intervals of no sensor alone, as of a run that comes with socialx; ends grow with the level and the step."""
    found = open_run(run).read_intervals(RunFolder(run).read_weights().fingerprint).for_sensors((), torch.device("cpu"))
    wide = torch.arange(len(LEVELS))[:, None, None] + torch.arange(1.0, 13)
    upper = (20 + wide)[..., None, None].expand(found.upper.shape)
    return replace(found, lower=-upper, upper=upper)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"), 3 * DAY, 4)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = small_run(data, tmp_path_factory.mktemp("runs") / "run", "--zero-shot")
    RunFolder(made).write_intervals(guessed(made))
    return made


def test_within_the_first_day_intervals_are_a_first_guess(run: Path, data: Path) -> None:
    found = socialx.predict(run, data, at="2012-05-03 10:00", interval=0.8)
    table = guessed(run).upper[LEVELS.index(80), 0, :, 0, 0]
    np.testing.assert_allclose(found.upper[0, :, 0, 0] - found.values[0, :, 0, 0], table, atol=1e-4)


def test_later_ones_are_of_forecasts_of_the_days_before(run: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation.Past, "leaning", lambda *_: None)
    found = socialx.predict(run, data, at="2012-05-05 10:00", interval=0.8)
    made = socialx.predict(run, data, start="2012-05-03 00:55", end="2012-05-04 22:55", every="5min")
    chosen = np.zeros(len(made.origin), bool)
    for day in (0, 1):
        latest = np.datetime64("2012-05-03T22:55") + np.timedelta64(day, "D")
        for late in (0, 25):
            past = latest - np.timedelta64(late, "m") - np.arange(28) * np.timedelta64(55, "m")
            first = np.datetime64("2012-05-02T23:00") + np.timedelta64(day, "D")
            chosen |= np.isin(made.origin, past[past >= first])
    made = replace(made, times=made.times[chosen], values=made.values[chosen])
    truth = socialx.open_store(data)
    values, valid = truth.read(slice(0, len(truth.seconds)))
    rows = np.searchsorted(truth.seconds, made.times.astype("datetime64[s]").astype(np.int64))
    errors = np.where(valid[rows], values[rows] - made.values[..., 0], np.nan)  # [W,P,N]
    flow = np.sort(values[: 2 * DAY], axis=0)[int(0.95 * (2 * DAY - 1))]
    for step in (0, 11):
        groups = sum((made.values[:, step, :, 0] >= share * flow).astype(int) for share in SHARES)
        bounds = bounds_by_group(errors[:, step].astype(np.float32), groups)[1, LEVELS.index(80)]
        group = sum((found.values[0, step, :, 0] >= share * flow).astype(int) for share in SHARES)
        wanted = bounds[group, np.arange(4)]
        np.testing.assert_allclose(found.upper[0, step, :, 0] - found.values[0, step, :, 0], wanted, atol=1e-3)


@pytest.mark.parametrize("at", ["2012-05-03 10:00", "2012-05-05 10:00"])
def test_probabilities_come_from_the_same_errors_as_the_intervals(at: str, run: Path, data: Path) -> None:
    upper = socialx.predict(run, data, at=at, interval=0.8).upper
    found = socialx.predict(run, data, at=at, below=float(upper[0, 5, 2, 0]))
    assert found.probability[0, 5, 2, 0] == pytest.approx(0.9, abs=1e-5)


def test_the_past_frequency_of_a_zero_shot_run_is_of_the_days_before(run: Path, data: Path, tmp_path: Path) -> None:
    with edited(data, tmp_path / "changed.h5") as file:
        file["data/features"][DAY : DAY + 100, :, 0] = 3.0  # on the second day, which counts from the third on
    for day, same in (("04", True), ("05", False)):
        about = {"split": "all", "start": f"2012-05-{day} 12:00", "end": f"2012-05-{day} 16:00", "below": 55}
        scores = [socialx.evaluate(run, file, **about) for file in (data, tmp_path / "changed.h5")]
        assert (len({score.brier[str(run)][-1].past for score in scores}) == 1) == same


def test_what_comes_after_the_issue_changes_no_interval(run: Path, data: Path, tmp_path: Path) -> None:
    at, changed = "2012-05-05 10:00", tmp_path / "changed.h5"
    with edited(data, changed) as file:
        file["data/features"][2 * DAY + 121 :] = 3.0  # of the rows after 10:00
    before, after = (socialx.predict(run, file, at=at, interval=0.8) for file in (data, changed))
    np.testing.assert_array_equal(before.upper, after.upper)
    np.testing.assert_array_equal(before.lower, after.lower)


def test_notes_say_how_many_days_are_known_and_of_what_the_intervals_are(run: Path, data: Path) -> None:
    own = ("uses 2 days", "with 7 or more", f" last 2 days of {data} before 2012-05-05")
    guess = (f"metr_la, where {run} was", f"guess: {data} ")
    for at, says in (("2012-05-05 10:00", own), ("2012-05-03 10:00", guess)):
        done = works("predict", run, "--data", data, "--at", at, "--interval", "0.9")
        assert {"predict.days", "intervals.source"} <= {*done.codes}
        assert [each for each in says if each not in " ".join(done.stderr.split())] == []


@pytest.mark.parametrize("steps", [2, 3])
def test_a_longer_step_has_the_bounds_of_its_last_minutes(run: Path, steps: int) -> None:
    own = guessed(run)
    longer = replace(own.protocol, horizon=12 // steps, step_minutes=5 * steps)
    found = own.for_network(("a", "b", "c"), np.full((3, 1), 60, np.float32), [1.0], longer)
    np.testing.assert_array_equal(found.upper[0, 0, :, 2, 0], own.upper[0, 0, steps - 1 :: steps, 0, 0])


def test_another_network_has_them_in_its_unit_at_its_pace_and_of_its_free_flow(run: Path) -> None:
    own = guessed(run)
    there = replace(own.protocol, targets={"avg_speed": "km/h"})
    found = own.for_network(("a", "b"), np.array([[90], [50]], np.float32), [0.5], there)
    torch.testing.assert_close(found.upper[..., 1, 0], 0.5 * 1.609344 * own.upper[..., 0, 0])
    alone = found.for_sensors(("b",), torch.device("cpu"), there.targets)
    torch.testing.assert_close(alone.free_flow[0, 0], torch.tensor(50.0))


def test_a_sensor_that_was_calibrated_keeps_its_own(data: Path, tmp_path: Path) -> None:
    run = small_run(data, tmp_path / "run", "--zero-shot")
    own = open_run(run).read_intervals(RunFolder(run).read_weights().fingerprint)
    found = own.for_network(("new", own.sensors[2]), np.full((2, 1), 50, np.float32), [1.0], own.protocol)
    torch.testing.assert_close(found.upper[..., 1, :], own.upper[..., 2, :])
    torch.testing.assert_close(found.upper[..., 0, :], own.upper[..., -1, :])
    assert found.free_flow[:2, 0].tolist() == [50.0, own.free_flow[2, 0].item()]


def test_a_report_draws_them(run: Path, data: Path) -> None:
    assert all(day.band is not None for day in socialx.report(run, data).days)
