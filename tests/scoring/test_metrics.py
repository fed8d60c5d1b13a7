"""Scores against a plain NumPy computation; nothing valid is NaN with count 0."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from socialx.core.batch import Target
from socialx.scoring.metrics import RunningScores, masked_absolute_error
from tests.networks import CPU, batch

BATCH = batch()  # scores do not depend on what a forecast was made from


def brute(forecast: np.ndarray, target: np.ndarray, valid: np.ndarray) -> list[float]:
    f, y = forecast[valid].astype(np.float64), target[valid].astype(np.float64)
    nonzero = y != 0
    return [
        np.abs(f - y).mean(),
        np.sqrt(((f - y) ** 2).mean()),
        100 * (np.abs(f - y)[nonzero] / np.abs(y[nonzero])).mean(),
        1 - ((f - y) ** 2).sum() / ((y - y.mean()) ** 2).sum(),
    ]


@given(seed=st.integers(0, 1000), batches=st.integers(1, 4), missing=st.floats(0, 0.6))
def test_scores_equal_the_definition_over_everything_seen(seed: int, batches: int, missing: float) -> None:
    rng = np.random.default_rng(seed)
    shape = (batches, 3, 4, 5, 2)
    target = rng.uniform(0, 70, shape).round().astype(np.float32)
    forecast = (target + rng.normal(0, 3, shape)).astype(np.float32)
    valid = rng.random(shape) >= missing
    running = RunningScores(4, 2, CPU)
    for b in range(batches):
        f, y, v = (torch.from_numpy(a[b]) for a in (forecast, target, valid))
        running.update(f, BATCH, Target(y, v))
    for of_target, scores in enumerate(running.compute()):
        f, y, v = (array[..., of_target] for array in (forecast, target, valid))
        assert len(scores.by_step) == 4
        for step in range(4):
            if len(np.unique(y[:, :, step][v[:, :, step]])) > 2:  # R2 of a constant has no meaning
                at = scores.by_step[step]
                got = [at.mae, at.rmse, at.mape, at.r2]
                np.testing.assert_allclose(got, brute(f[:, :, step], y[:, :, step], v[:, :, step]), rtol=1e-9)
        assert scores.overall.count == v.sum()
        np.testing.assert_allclose(scores.overall.mae, brute(f, y, v)[0], rtol=1e-12)


def test_errors_of_several_targets_are_weighed() -> None:
    forecast, target, valid = torch.tensor([[[[1.0, 5.0]]]]), torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, 2).bool()
    assert masked_absolute_error(forecast, target, valid, torch.tensor([1.0, 0.1])).item() == pytest.approx(1.5)


def test_nothing_valid_is_nan_with_count_zero() -> None:
    running, zero = RunningScores(2, 1, CPU), torch.zeros(3, 2, 4, 1)
    running.update(zero, BATCH, Target(zero, zero.bool()))
    (of_target,) = running.compute()
    assert len(of_target.by_step) == 2
    for scores in (*of_target.by_step, of_target.overall):
        assert math.isnan(scores.mae)
        assert scores.as_dict() == {"mae": None, "rmse": None, "mape": None, "r2": None, "count": 0}


def test_a_missing_target_may_be_nan_and_gets_no_gradient() -> None:
    forecast = torch.tensor([[[1.0, 2.0]]], requires_grad=True)
    target, valid = torch.tensor([[[4.0, math.nan]]]), torch.tensor([[[True, False]]])
    loss = masked_absolute_error(forecast, target, valid)
    loss.backward()
    assert (loss.item(), forecast.grad.flatten().tolist()) == (3.0, [-1.0, 0.0])


@pytest.mark.parametrize("unit", [1.0, 1.609344, 1e-3, 100.0])
def test_mape_leaves_out_truths_that_are_nearly_zero_in_any_unit(unit: float) -> None:
    """In each of two targets: those below a thousandth of its mean; MAE, RMSE and R2 count all of them."""
    small = [1e-30, 1e-12, -1e-12, 1e-3, 0.0499]
    truth = np.float32([*small, 0.051, 1.0, 50.0, 60.0, 0.0]) * np.float32(unit)
    forecast = truth + np.float32(unit)
    running, plain = RunningScores(1, 2, CPU, [50 * unit, -100 * 50 * unit]), RunningScores(1, 2, CPU)
    f, y = (np.stack([each, 100 * each], axis=-1)[None, None] for each in (forecast, truth))
    for each in (running, plain):
        each.update(torch.from_numpy(f), BATCH, Target(torch.from_numpy(y), torch.ones(y.shape, dtype=torch.bool)))
    for of_target, without in zip(running.compute(), plain.compute(), strict=True):
        for scores in (*of_target.by_step, of_target.overall):
            assert (scores.count, scores.undivided) == (10, 6)
            assert scores.mape == pytest.approx(100 * np.mean([1 / 0.051, 1, 1 / 50, 1 / 60]), rel=1e-4)
            assert scores.as_dict()["undivided"] == 6
        assert (of_target.overall.mae, of_target.overall.rmse) == (without.overall.mae, without.overall.rmse)
        assert without.overall.mape > 1e12
        assert without.overall.undivided == 1  # 0 itself


def test_a_count_of_one_is_not_nearly_zero() -> None:
    running = RunningScores(1, 1, CPU, [900.0])
    truth = torch.tensor([1.0, 900.0])[None, None, :, None]
    running.update(truth + 1, BATCH, Target(truth, torch.ones_like(truth, dtype=torch.bool)))
    scores = running.compute()[0].overall
    assert scores.mape == pytest.approx(100 * (1 + 1 / 900) / 2)
    assert "undivided" not in scores.as_dict()
