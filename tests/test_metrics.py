"""Scores against a plain NumPy computation; nothing valid is NaN with count 0."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from socialx.training.metrics import RunningScores, masked_absolute_error
from tests.networks import CPU


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
    shape = (batches, 3, 4, 5)
    target = rng.uniform(0, 70, shape).round().astype(np.float32)
    forecast = (target + rng.normal(0, 3, shape)).astype(np.float32)
    valid = rng.random(shape) >= missing
    running = RunningScores(4, CPU)
    for b in range(batches):
        running.add(*(torch.from_numpy(a[b]) for a in (forecast, target, valid)))
    scores = running.compute()
    assert len(scores) == 5
    for step in range(4):
        if len(np.unique(target[:, :, step][valid[:, :, step]])) > 2:  # R2 of a constant has no meaning
            got = [scores[step].mae, scores[step].rmse, scores[step].mape, scores[step].r2]
            np.testing.assert_allclose(
                got, brute(forecast[:, :, step], target[:, :, step], valid[:, :, step]), rtol=1e-9
            )
    assert scores[-1].count == valid.sum()
    np.testing.assert_allclose(scores[-1].mae, brute(forecast, target, valid)[0], rtol=1e-12)


def test_nothing_valid_is_nan_with_count_zero() -> None:
    running = RunningScores(2, CPU)
    zero = torch.zeros(3, 2, 4)
    running.add(zero, zero, zero.bool())
    for scores in running.compute():
        assert scores.count == 0
        assert all(math.isnan(v) for v in (scores.mae, scores.rmse, scores.mape, scores.r2))
        assert scores.as_dict() == {"mae": None, "rmse": None, "mape": None, "r2": None, "count": 0}


def test_a_missing_target_may_be_nan_and_gets_no_gradient() -> None:
    forecast = torch.tensor([[[1.0, 2.0]]], requires_grad=True)
    target, valid = torch.tensor([[[4.0, math.nan]]]), torch.tensor([[[True, False]]])
    loss = masked_absolute_error(forecast, target, valid)
    loss.backward()
    assert loss.item() == 3.0
    assert forecast.grad is not None
    assert forecast.grad.flatten().tolist() == [-1.0, 0.0]


def test_a_target_of_zero_counts_but_not_in_mape() -> None:
    running = RunningScores(1, CPU)
    running.add(torch.tensor([[[1.0, 11.0]]]), torch.tensor([[[0.0, 10.0]]]), torch.ones(1, 1, 2, dtype=torch.bool))
    scores = running.compute()[0]
    assert (scores.mae, scores.count) == (1.0, 2)
    assert scores.mape == pytest.approx(10.0)
