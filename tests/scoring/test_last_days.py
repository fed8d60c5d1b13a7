"""A zero-shot run leans on the last reading where its errors in the last days of a file say so."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import socialx
from socialx.core.batch import Batch
from socialx.scoring.last_days import SHARES, LastDays, LeaningModel
from tests.commands import edited, renamed, small_file, small_run, works
from tests.networks import batch

DAY = 288


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    return renamed(small_file(folder, 3 * DAY, 4), folder / "other.h5")


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(data.with_name("small.h5"), tmp_path_factory.mktemp("runs") / "run", "--zero-shot")


class Ahead(nn.Module):
    """Forecasts 60 for every sensor."""

    def forward(self, b: Batch) -> torch.Tensor:
        return torch.full((len(b.last), 12, b.last.shape[1], 1), 60.0)


def errors(by_share: list[list[float]], counts: float = 1000) -> LastDays:
    """Of one lead time: a row for each share of the change, a column for each sensor."""
    sums = counts * torch.tensor(by_share, dtype=torch.float64)[:, None, :, None]
    return LastDays(sums, torch.full(sums.shape[1:], counts, dtype=torch.float64))


def test_each_sensor_keeps_the_share_with_the_least_error() -> None:
    better, worse, between = [4.0, 3.5, 3.0, 2.5, 2.0], [1.0, 1.5, 2.0, 2.5, 3.0], [3.0, 2.0, 1.0, 2.0, 3.0]
    found = errors([list(row) for row in zip(better, worse, between, strict=True)])
    assert found.shares[0, :, 0].tolist() == [1.0, 0.0, 0.5]
    assert found.below_naive == pytest.approx(0)


def test_a_sensor_with_few_errors_is_as_the_median_one() -> None:
    better, worse = [4.0, 3.5, 3.0, 2.5, 2.0], [1.0, 1.5, 2.0, 2.5, 3.0]
    found = errors([list(row) for row in zip(better, better, worse, strict=True)])
    for few in (0, 2):
        counts = found.counts.clone()
        counts[:, 2] = few
        assert LastDays(found.sums * counts / 1000, counts).shares[0, :, 0].tolist() == [1.0, 1.0, 1.0]


def test_a_slower_sensor_keeps_the_same_share() -> None:
    rng = np.random.default_rng(0)
    rows = rng.uniform(1, 4, (len(SHARES), 30))
    slower = rows * np.where(np.arange(30) < 9, 0.5, 1)
    assert torch.equal(errors(rows.tolist(), 60).shares, errors(slower.tolist(), 60).shares)


def test_where_naive_is_right_nothing_of_the_change_is_kept() -> None:
    still, better = [0.0, 1.0, 2.0, 3.0, 4.0], [4.0, 3.5, 3.0, 2.5, 2.0]
    assert errors([list(row) for row in zip(still, better, better, strict=True)]).shares[0, :, 0].tolist() == [0, 1, 1]


def test_the_share_of_the_change_is_kept_and_all_of_it_where_nothing_was_read() -> None:
    b, shares = batch(), torch.tensor(SHARES).view(1, 5, 1).expand(12, 5, 1)
    b.last_observed[0, 4] = torch.nan
    found = LeaningModel(Ahead(), shares)(b)
    for sensor, share in enumerate(SHARES):
        latest = b.last_observed[1, sensor, 0]
        torch.testing.assert_close(found[1, :, sensor, 0], (latest + share * (60 - latest)).expand(12))
    assert (found[0, :, 4] == 60).all()


def test_the_note_says_what_evaluate_finds_and_no_later_reading_counts(run: Path, data: Path, tmp_path: Path) -> None:
    at, changed = "2012-05-05 10:00", tmp_path / "changed.h5"
    with edited(data, changed) as file:
        file["data/features"][2 * DAY + 121 :] = 3.0  # of the rows after 10:00
    said = [" ".join(works("predict", run, "--data", each, "--at", at).stderr.split()) for each in (data, changed)]
    notes = [
        re.findall(r"on the last 2 days of this file the error was (\d+) % (below|above) the naive forecast", each)
        for each in said
    ]
    assert notes[0] == notes[1] != []
    before, after = (socialx.predict(run, file, at=at) for file in (data, changed))
    np.testing.assert_array_equal(before.values, after.values)
    early = works("predict", run, "--data", data, "--at", "2012-05-03 10:00").stderr
    assert "naive forecast" not in early


def test_no_sensor_is_much_worse_than_the_naive_forecast(run: Path, data: Path) -> None:
    """The readings of the last days are those that the gate is measured on, of a model that is hardly trained."""
    found = socialx.evaluate(run, data, split="validation", by="sensor", baselines=True).by
    own, naive = ({row.key: row.mae for row in found[name]["sensor"]} for name in (str(run), "naive"))
    assert max(own[sensor] / naive[sensor] for sensor in own) < 1.1
