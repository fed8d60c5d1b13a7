"""Intervals on a network that training had not seen: of its last week, and where there is none of other networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import socialx
from benchmarks.any_network import pooled
from socialx.errors import SocialxError
from socialx.scoring.intervals import LEVELS, SHARES, SignedErrors, bounds_by_group
from socialx.scoring.unseen import Unseen
from socialx.training.run_folder import RunFolder, open_run
from tests.commands import edited, small_file, small_run, works

DAY = 288


def unseen(weights: str = "w", steps: int = 12) -> Unseen:
    """Ends grow with the level and the step."""
    wide = torch.arange(len(LEVELS))[:, None, None] + torch.arange(1.0, steps + 1)
    upper = (20 + wide).expand(len(LEVELS), len(SHARES) + 1, steps)
    names = ("metr_la", "pems_bay_74")
    return Unseen(-upper, upper, "mph", names, weights, 99)


def unseen_upper() -> torch.Tensor:
    return unseen().upper


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"), 3 * DAY, 4)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = small_run(data, tmp_path_factory.mktemp("runs") / "run", "--any-network")
    weights = open_run(made).read_weights().fingerprint
    RunFolder(made).write_unseen(unseen(weights))
    RunFolder(made).intervals.unlink()  # those of its own network come first
    return made


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"upper": torch.zeros(2, 4, 12)}, "bounds"),
        ({"upper": torch.full((12, 4, 12), torch.nan)}, "nested"),
        ({"upper": -unseen_upper()}, "nested"),
        ({"unit": "furlong"}, "unit"),
        ({"networks": ()}, "networks"),
    ],
)
def test_tables_that_nobody_measured_are_refused(change: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(unseen(), **change)


def test_errors_of_several_networks_count_together() -> None:
    rng, parts = np.random.default_rng(0), []
    for sensors in (3, 5):
        part = SignedErrors(torch.full((sensors, 1), 60.0), 300, 2)
        part.errors[:] = rng.normal(0, sensors, part.errors.shape)
        part.groups[:] = rng.integers(0, 4, part.groups.shape)
        parts.append(part)
    lower, upper, count = pooled(parts)
    assert count == 300 * 2 * 8
    for step in range(2):
        errors = np.concatenate([part.errors[:, step].reshape(-1) for part in parts])[:, None]
        groups = np.concatenate([part.groups[:, step].reshape(-1) for part in parts])[:, None]
        wanted = bounds_by_group(errors, groups)[..., -1]
        np.testing.assert_array_equal(torch.stack([lower, upper])[..., step], wanted)


def test_within_the_first_day_intervals_are_of_other_networks(run: Path, data: Path) -> None:
    found = socialx.predict(run, data, at="2012-05-03 10:00", interval=0.8)
    table = unseen().upper[LEVELS.index(80), 0]
    np.testing.assert_allclose(found.upper[0, :, 0, 0] - found.values[0, :, 0, 0], table, atol=1e-4)


@pytest.mark.parametrize("at", ["2012-05-04 10:00", "2012-05-05 10:00"])
def test_later_ones_are_of_forecasts_of_the_file_that_end_before(at: str, run: Path, data: Path) -> None:
    found = socialx.predict(run, data, at=at, interval=0.8)
    until = pd.Timestamp(at) - pd.Timedelta(hours=1)
    made = socialx.predict(run, data, start="2012-05-03 01:00", end=until, every="30min")
    truth = socialx.open_store(data)
    values, valid = truth.read(slice(0, len(truth.seconds)))
    rows = np.searchsorted(truth.seconds, made.times.astype("datetime64[s]").astype(np.int64))
    errors = np.where(valid[rows], values[rows] - made.values[..., 0], np.nan)  # [W,P,N]
    now = int(np.searchsorted(truth.seconds, int(pd.Timestamp(at).timestamp()))) + 1
    flow = np.sort(values[:now], axis=0)[int(0.95 * (now - 1))]
    for step in (0, 11):
        groups = sum((made.values[:, step, :, 0] >= share * flow).astype(int) for share in SHARES)
        bounds = bounds_by_group(errors[:, step].astype(np.float32), groups)[1, LEVELS.index(80)]
        group = sum((found.values[0, step, :, 0] >= share * flow).astype(int) for share in SHARES)
        wanted = bounds[group, np.arange(4)]
        np.testing.assert_allclose(found.upper[0, step, :, 0] - found.values[0, step, :, 0], wanted, atol=1e-3)


def test_what_comes_after_the_issue_changes_no_interval(run: Path, data: Path, tmp_path: Path) -> None:
    at, changed = "2012-05-05 10:00", tmp_path / "changed.h5"
    with edited(data, changed) as file:
        file["data/features"][2 * DAY + 121 :] = 3.0  # of the rows after 10:00
    before, after = (socialx.predict(run, file, at=at, interval=0.8) for file in (data, changed))
    np.testing.assert_array_equal(before.upper, after.upper)
    np.testing.assert_array_equal(before.lower, after.lower)


def test_notes_say_how_many_days_are_known_and_of_what_the_intervals_are(run: Path, data: Path) -> None:
    said = " ".join(
        works("predict", run, "--data", data, "--at", "2012-05-04 10:00", "--interval", "0.9").stderr.split()
    )
    assert "1 day of it known before the first forecast" in said
    assert "before the first forecast: forecasts are better with 7 or more" in said
    assert f"intervals of the errors on the last 1 day of {data}" in said
    said = " ".join(
        works("predict", run, "--data", data, "--at", "2012-05-03 10:00", "--interval", "0.9").stderr.split()
    )
    assert "intervals of the errors on metr_la and pems_bay_74 without any known day" in said


@pytest.mark.parametrize("steps", [2, 3])
def test_a_longer_step_has_the_bounds_of_its_last_minutes(run: Path, data: Path, steps: int) -> None:
    flow, protocol = np.full((4, 1), 60, np.float32), socialx.load_run(run).protocol
    longer = replace(protocol, horizon=12 // steps, step_minutes=5 * steps)
    found = unseen().intervals(("a", "b", "c", "d"), flow, longer)
    np.testing.assert_array_equal(found.upper[0, 0, :, 2, 0], unseen().upper[0, 0, steps - 1 :: steps])


def test_another_unit_has_them_in_it(run: Path) -> None:
    protocol = replace(socialx.load_run(run).protocol, targets={"avg_speed": "km/h"})
    found = unseen().intervals(("a",), np.full((1, 1), 90, np.float32), protocol)
    torch.testing.assert_close(found.upper[..., 0, 0], 1.609344 * unseen().upper)


def test_those_of_other_weights_and_damaged_ones_are_refused(run: Path, data: Path, tmp_path: Path) -> None:
    weights = open_run(run).read_weights().fingerprint
    folder = RunFolder(tmp_path)
    (tmp_path / "protocol.json").write_bytes((run / "protocol.json").read_bytes())
    assert folder.read_unseen(weights) is None
    folder.write_unseen(unseen("others"))
    with pytest.raises(SocialxError, match="other weights"):
        folder.read_unseen(weights)
    folder.write_unseen(unseen(weights))
    assert folder.read_unseen(weights).networks == ("metr_la", "pems_bay_74")
    path = tmp_path / "unseen.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(SocialxError, match="sha256"):
        folder.read_unseen(weights)


def test_a_report_draws_them(run: Path, data: Path) -> None:
    assert all(day.band is not None for day in socialx.report(run, data).days)
