"""Sensors without a reading: forecast from their climatology, and scored apart."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import socialx
from socialx.core.batch import Batch
from socialx.data.scaler import MeanStd, StandardScaler
from socialx.scoring.silent import Silent, draw
from tests.commands import refused, works


def window(present: float | None) -> Batch:
    """Two rows of three sensors, the last of which never reported; present: climatology at the second row."""
    inputs = torch.tensor([[[[50.0], [60.0], [0.0]], [[52.0], [0.0], [0.0]]]])
    last = torch.tensor([[[52.0], [60.0], [torch.nan]]])
    usual = torch.full((1, 4, 3, 0 if present is None else 1), 30.0)
    usual[:, 1] = torch.nan if present is None else present
    clock = torch.zeros(1, 4, dtype=torch.int64)
    return Batch(inputs, inputs > 0, inputs[:, -1], last, clock, clock, usual, torch.ones_like(usual), clock[:, 0])


@pytest.mark.parametrize(("present", "begins"), [(40.0, 40.0), (torch.nan, 55.0), (None, 55.0)])
def test_a_sensor_that_never_reported_begins_at_its_climatology(present: float | None, begins: float) -> None:
    scaler = StandardScaler([MeanStd(55.0, 10.0)], [MeanStd(55.0, 10.0)])
    assert scaler.add_change(window(present), torch.zeros(1, 2, 3, 1))[0, :, :, 0].tolist() == [[52, 60, begins]] * 2


def test_the_draw_is_the_published_one() -> None:
    assert (draw(207, 0.1).sum(), draw(207, 0.3).sum()) == (20, 62)
    assert not (draw(207, 0.1) & ~draw(207, 0.3)).any()
    assert draw(207, 0.3)[np.random.RandomState(42).permutation(207)[:62]].all()


class Seen(nn.Module):
    """A model that keeps what it was given."""

    def forward(self, batch: Batch) -> Tensor:
        self.batch = batch
        return batch.last_observed[:, None]


def test_a_silent_sensor_shows_no_reading_and_the_others_all() -> None:
    model, batch = Seen(), window(40.0)
    Silent(model, torch.tensor([True, False, False]))(batch)
    seen = model.batch
    assert not seen.valid[:, :, 0].any()
    assert not seen.inputs[:, :, 0].any()
    assert not seen.last[:, 0].any()
    assert seen.last_observed[:, 0].isnan().all()
    for one, other in zip(seen[:4], batch[:4], strict=True):
        torch.testing.assert_close(one[..., 1:, :], other[..., 1:, :], equal_nan=True)
    assert seen.climatology is batch.climatology


def test_evaluate_scores_silent_and_other_sensors(run: Path) -> None:
    found = socialx.evaluate([run], silent="0.25,0.5")
    whole, name = found[str(run)].overall(), f"{run}, 25 % silent"
    parts = ("", ": silent sensors", ": other sensors")
    every, silent, others = (found.silent[name + part].overall() for part in parts)
    assert len(found.silent) == 6
    assert every.count == whole.count == silent.count + others.count
    assert every.mae * every.count == pytest.approx(silent.mae * silent.count + others.mae * others.count)
    assert every.mae != whole.mae
    shown = works("evaluate", run, "--silent", "0.25").stdout
    assert f"25 % silent: MAE {100 * (every.mae / whole.mae - 1):+.1f} %" in shown.replace("\n", " ")
    content = json.loads(works("evaluate", run, "--silent", "0.25", "--json").stdout)
    assert content["silent"][name]["avg_speed"]["all"]["mae"] == pytest.approx(every.mae)


@pytest.mark.parametrize("shares", ["0", "1", "-0.1", "10%", "a half", "0.1;0.2"])
def test_other_shares_are_refused(run: Path, shares: str) -> None:
    assert "--silent 0.1,0.3" in refused("evaluate", run, "--silent", shares, code=2)
