"""A model of five minutes at a longer step: each row is read as several, and the mean of them is forecast."""

import pytest
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.model.forecaster import CoarserStepAdapter
from tests.networks import batch


class Seen(nn.Module):
    """Keeps its batch and forecasts the numbers of its steps."""

    def forward(self, batch: Batch) -> Tensor:
        self.batch = batch
        steps = batch.time_of_day.shape[1] - batch.inputs.shape[1]
        return torch.arange(steps, dtype=torch.float32)[None, :, None, None].expand(len(batch.last), -1, 5, 1)


def of_steps(b: Batch, lookback: int, horizon: int) -> Batch:
    """The last rows of the history and the first ones of the horizon."""
    rows = slice(12 - lookback, 12 + horizon)
    steps = torch.arange(b.time_of_day.shape[1]).float()[None, :, None, None]
    climatology = steps.expand(len(b.last), -1, 5, 1)[:, rows]
    cut = {"inputs": b.inputs[:, 12 - lookback :], "valid": b.valid[:, 12 - lookback :]}
    return b._replace(
        **cut,
        time_of_day=b.time_of_day[:, rows],
        day_of_week=b.day_of_week[:, rows],
        climatology=climatology,
        climatology_confidence=climatology / 24,
    )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_rows_are_repeated_slots_go_on_and_the_mean_is_forecast(k: int) -> None:
    b, seen = of_steps(batch(), 12 // k, 12 // k), Seen()
    forecast = CoarserStepAdapter(seen, k)(b)
    assert forecast.shape == (4, 12 // k, 5, 1)
    torch.testing.assert_close(forecast[0, :, 0, 0], torch.arange(12).float().reshape(-1, k).mean(1))
    found = seen.batch
    for row in range(24):
        assert torch.equal(found.time_of_day[:, row], b.time_of_day[:, row // k] * k + row % k)
        assert torch.equal(found.day_of_week[:, row], b.day_of_week[:, row // k])
        assert torch.equal(found.climatology[:, row], b.climatology[:, row // k])
        assert torch.equal(found.climatology_confidence[:, row], b.climatology_confidence[:, row // k])
        if row < 12:
            assert torch.equal(found.inputs[:, row], b.inputs[:, row // k])
            assert torch.equal(found.valid[:, row], b.valid[:, row // k])
    assert torch.equal(found.last_observed, b.last_observed)
