"""The whole model: shapes and units, who depends on whom, that every parameter is trained and none grows with N."""

from __future__ import annotations

import math

import pytest
import torch

from socialx.data.loaders import Batch
from socialx.training.metrics import masked_absolute_error
from tests.networks import batch, forecaster

WITHOUT_SENSORS = {"sensor_identity": False, "adaptive": False}


def perturbed(b: Batch, sensor: int) -> Batch:
    history = b.history.clone()
    history[:, :, sensor] += 7
    return b._replace(history=history, history_valid=torch.ones_like(b.history_valid))


def test_a_forecast_per_step_and_sensor_in_the_files_unit() -> None:
    b = batch(sensors=5, batch_size=4)
    forecast = forecaster()(b)
    assert forecast.shape == b.target.shape == (4, 12, 5, 1)
    assert 20 < forecast.mean() < 90


@pytest.mark.parametrize("social", [0, 1, 2])
def test_every_parameter_is_trained(social: int) -> None:
    torch.manual_seed(0)
    model = forecaster(social=social)
    with torch.no_grad():  # the encoder starts some weights at zero, which keeps others without a gradient
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    b = batch()
    masked_absolute_error(model(b), b.target, b.target_valid).backward()
    silent = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert not silent


def test_without_social_layers_a_sensor_depends_on_itself_alone() -> None:
    model, b = forecaster(social=0), batch()
    b = b._replace(history_valid=torch.ones_like(b.history_valid))
    before, after = model(b), model(perturbed(b, 2))
    changed = (before != after).any(dim=1).any(dim=0)[:, 0]
    assert changed.tolist() == [False, False, True, False, False]


def test_one_social_layer_reaches_the_neighbours_and_nobody_else() -> None:
    model, b = forecaster(sensors=8, neighbours=2), batch(sensors=8)
    b = b._replace(history_valid=torch.ones_like(b.history_valid))
    before, after = model(b), model(perturbed(b, 3))
    changed = (before != after).any(dim=1).any(dim=0)[:, 0]
    index = model.social[0].pooling.geometry.index
    listeners = {i for i in range(8) if 3 in index[i].tolist()} | {3}
    assert set(changed.nonzero().flatten().tolist()) == listeners
    assert len(listeners) < 8


def test_sensors_may_be_permuted_where_they_have_no_identity() -> None:
    b = batch(sensors=5)
    order = torch.tensor([3, 1, 4, 0, 2])
    model = forecaster(social=0, **WITHOUT_SENSORS)
    swapped = Batch(*(t[..., order, :] if t.shape[-2] == 5 and t.dim() > 2 else t for t in b))
    torch.testing.assert_close(model(swapped), model(b)[..., order, :], rtol=1e-5, atol=1e-4)


def test_nothing_but_the_identities_grows_with_the_network() -> None:
    def count(sensors: int, **tables: bool) -> int:
        return sum(p.numel() for p in forecaster(sensors, **tables).parameters())

    assert count(10, **WITHOUT_SENSORS) == count(325, **WITHOUT_SENSORS)
    assert count(325) - count(10) == 315 * 16 * (1 + 12)


def test_missing_readings_are_flagged_not_read() -> None:
    """What stands in a missing cell must not matter, that it is missing must."""
    model, b = forecaster(), batch()
    junk = b._replace(history=torch.where(b.history_valid, b.history, 1e4))
    assert torch.equal(model(b), model(junk))
    claimed = b._replace(history_valid=torch.ones_like(b.history_valid))
    assert not torch.allclose(model(b), model(claimed))


def test_the_target_is_never_read() -> None:
    model, b = forecaster(), batch()
    blind = b._replace(target=torch.full_like(b.target, math.nan), target_valid=torch.zeros_like(b.target_valid))
    assert torch.equal(model(b), model(blind))


def test_the_forecast_starts_from_the_latest_valid_reading() -> None:
    model, b = forecaster(), batch()
    with torch.no_grad():
        model.head[-1].weight.zero_()
        model.head[-1].bias.zero_()
    never = b._replace(carried=torch.where(torch.arange(5)[:, None] == 1, math.nan, b.carried))
    forecast = model(never)
    assert torch.equal(forecast[:, :, 1], torch.full_like(forecast[:, :, 1], 55.0))
    assert torch.equal(forecast[:, 5, 2], b.carried[:, 2])


def test_time_of_day_matters_only_where_it_is_switched_on() -> None:
    b = batch()
    later = b._replace(slot=(b.slot + 100) % 288, weekday=(b.weekday + 1) % 7)
    assert not torch.equal(forecaster()(b), forecaster()(later))
    off = {"time_of_day": False, "day_of_week": False}
    assert torch.equal(forecaster(**off)(b), forecaster(**off)(later))
