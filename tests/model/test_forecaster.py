"""The whole model: shapes and units, who depends on whom, that every parameter is trained and none grows with N.

Also what may be put in: several features, last layers per sensor, an MLP, another network.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch, TrainingBatch
from socialx.data import geo
from socialx.data.scaler import DataSpec, MeanStd, StandardScaler
from socialx.model.forecaster import Forecaster
from socialx.model.plain import WindowMlp
from socialx.model.xlstm.encoder import SharedEncoder
from socialx.scoring.metrics import masked_absolute_error
from socialx.settings.layers import load_settings
from socialx.settings.schema import Settings
from socialx.tasks.build import build
from tests.commands import small_file
from tests.networks import KINDS, MOMENTS, batch, example, features, forecaster, network, positions, small_model

WITHOUT_SENSORS = {"sensor_embedding": False}


def perturbed(b: Batch, sensor: int) -> Batch:
    inputs = b.inputs.clone()
    inputs[:, :, sensor] += 7
    return everything_valid(b._replace(inputs=inputs))


def everything_valid(b: Batch) -> Batch:
    return b._replace(valid=torch.ones_like(b.valid))


def error_of(model: nn.Module, made: TrainingBatch) -> Tensor:
    return masked_absolute_error(model(made.batch), made.target.values, made.target.valid)


def test_a_forecast_per_step_and_sensor_in_the_files_unit() -> None:
    b, target = example(sensors=5, batch_size=4)
    forecast = forecaster()(b)
    assert forecast.shape == target.values.shape == (4, 12, 5, 1)
    assert 20 < forecast.mean() < 90


def silent(model: nn.Module, made: TrainingBatch) -> list[str]:
    """Trained weights without a gradient.  All are moved first: a start at zero keeps others without one."""
    shaken(model)
    error_of(model, made).backward()
    return [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]


@pytest.mark.parametrize("social", [0, 1, 2])
def test_every_parameter_is_trained(social: int) -> None:
    assert not silent(forecaster(social=social), example())


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_pooling_has_idle_weights(kind: str, tmp_path: Path) -> None:
    data = {"path": str(small_file(tmp_path, 150, 5))}
    small = {"width": 8, "blocks": 1, "slstm_at": "0", "dropout": "0"}
    experiment = build(load_settings(env={}, data=data, model=small, pooling={"kind": kind}, trainer={"device": "cpu"}))
    assert not silent(experiment.model, next(experiment.data.loader("train", 32).epoch(0)))


def test_sensors_may_be_permuted_where_they_have_no_identity() -> None:
    b, order = batch(sensors=5), torch.tensor([3, 1, 4, 0, 2])
    model = forecaster(social=0, **WITHOUT_SENSORS)
    swapped = Batch(*(t[..., order, :] if t.dim() > 2 and t.shape[-2] == 5 else t for t in b))
    torch.testing.assert_close(model(swapped), model(b)[..., order, :], rtol=1e-5, atol=1e-4)


def test_nothing_but_the_identities_grows_with_the_network() -> None:
    def count(sensors: int, **tables: bool) -> int:
        return sum(p.numel() for p in forecaster(sensors, **tables).parameters())

    assert count(10, **WITHOUT_SENSORS) == count(325, **WITHOUT_SENSORS)
    assert count(325) - count(10) == 315 * 16 * (1 + 12)


def test_time_of_day_matters_only_where_it_is_switched_on() -> None:
    b = batch()
    later = b._replace(time_of_day=(b.time_of_day + 100) % 288, day_of_week=(b.day_of_week + 1) % 7)
    assert not torch.equal(forecaster()(b), forecaster()(later))
    off = {"zero_shot": True}
    assert torch.equal(forecaster(**off)(b), forecaster(**off)(later))


def several(sensors: int = 5, targets: tuple[int, ...] = (2, 0)) -> tuple[Forecaster, TrainingBatch, DataSpec]:
    """Three inputs in units of their own, and the forecaster that reads them."""
    made, known = features(sensors, targets=targets)
    return forecaster(known), made, known


def shaken(model: Any) -> Any:
    """Weights away from their start, where some are zero and hide what depends on what."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("targets", [(2, 0), (1,), (0, 1, 2)])
def test_every_target_starts_from_its_own_latest_reading_in_its_own_unit(targets: tuple[int, ...]) -> None:
    model, (b, target), known = several(targets=targets)
    assert model(b).shape == target.values.shape == (4, 12, 5, len(targets))
    bias = torch.randn(12, len(targets))
    with torch.no_grad():
        model.head[-1].weight.zero_()
        model.head[-1].bias.copy_(bias.flatten())
    never = torch.zeros_like(b.last_observed, dtype=torch.bool)
    never[:, 3, 0] = True  # the first target of one sensor
    forecast = model(b._replace(last_observed=b.last_observed.masked_fill(never, math.nan)))
    for g in range(len(targets)):
        for n in range(5):
            start = torch.full((4,), known.targets[g].mean) if (n, g) == (3, 0) else b.last_observed[:, n, g]
            expected = start[:, None] + known.targets[g].std * bias[:, g]
            torch.testing.assert_close(forecast[:, :, n, g], expected, rtol=1e-5, atol=1e-5)


def test_the_unit_of_an_input_does_not_matter() -> None:
    model, (b, _), known = several()
    factor = torch.tensor([1.0, 1000.0, 0.25])
    inputs = [MeanStd(m.mean * f, m.std * f) for m, f in zip(known.inputs, factor.tolist(), strict=True)]
    before = model(b)
    model.scaler = StandardScaler(inputs, known.targets)
    torch.testing.assert_close(model(b._replace(inputs=b.inputs * factor)), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("feature", [0, 1, 2])
def test_every_input_is_read_with_its_own_missing_flag(feature: int) -> None:
    model, (b, _), _ = several()
    changed = torch.arange(3) == feature
    moved = b._replace(inputs=torch.where(changed & b.valid, b.inputs * 1.5, b.inputs))
    lost = b._replace(valid=b.valid & ~changed)
    junk = b._replace(inputs=torch.where(b.valid, b.inputs, 1e4))  # what stands in a missing cell does not matter
    assert torch.equal(model(b), model(junk))
    assert not torch.allclose(model(moved), model(b))
    assert not torch.allclose(model(lost), model(b))
    assert not torch.allclose(model(lost), model(moved))


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_every_layer_reaches_one_hop_further_and_none_beyond(layers: int) -> None:
    """Sensors on a straight road, each in reach of the next one alone."""
    road = geo.nearest_neighbours(np.stack([np.arange(9.0), np.zeros(9)], axis=1), None, within_km=1.1)
    model, b = shaken(forecaster(network(9, near=road), layers, blocks=3)), batch(sensors=9)
    b = everything_valid(b)
    for source in (0, 4):
        changed = (model(b) != model(perturbed(b, source))).any(dim=1).any(dim=0)[:, 0]
        assert changed.tolist() == [abs(sensor - source) <= layers for sensor in range(9)]


def test_the_last_layers_of_sensors_change_nothing_at_first() -> None:
    model, plain = forecaster(per_sensor_output=True), forecaster(seed=1)
    both = plain.load_state_dict(model.state_dict(), strict=False)
    assert both.unexpected_keys == ["per_sensor_output"]
    assert not both.missing_keys
    assert torch.equal(model(batch()), plain(batch()))


def test_a_sensors_own_last_layer_changes_its_own_forecast_alone() -> None:
    model, b = forecaster(per_sensor_output=True), batch()
    before = model(b)
    with torch.no_grad():
        model.per_sensor_output[3, 7] += 1.0
    changed = (model(b) != before).any(0)[..., 0]
    expected = torch.zeros(12, 5, dtype=torch.bool)
    expected[7, 3] = True
    assert torch.equal(changed, expected)


def test_the_default_mlp_has_as_many_parameters_as_the_default_xlstm() -> None:
    model = Settings().model
    xlstm, mlp = SharedEncoder(model, 12), WindowMlp(model, 12)
    of_xlstm, of_mlp = (sum(p.numel() for p in each.parameters()) for each in (xlstm, mlp))
    assert of_mlp == pytest.approx(of_xlstm, rel=0.02)


def test_the_window_mlp_drops_as_the_encoder_does() -> None:
    torch.manual_seed(0)
    mlp, x = WindowMlp(small_model(mlp_width=24, dropout=0.5), 12), torch.randn(3, 12, 16)
    assert not torch.equal(mlp(x), mlp(x))
    assert torch.equal(mlp.eval()(x), mlp(x))


def test_another_network_is_forecast_with_the_weights_of_the_first() -> None:
    """Other sensors, other neighbours, other moments: the weights bring their own moments along."""

    def made(sensors: int, neighbours: int, moments: tuple[MeanStd, ...], seed: int) -> Forecaster:
        near = geo.nearest_neighbours(positions(sensors, seed), neighbours)
        return forecaster(network(sensors, moments, moments, near), seed=seed, **WITHOUT_SENSORS)

    first = shaken(made(5, 3, MOMENTS, 0))
    other, fresh = (made(9, 4, (MeanStd(0.0, 1.0),), seed) for seed in (1, 1))
    other.load_state_dict(first.state_dict(), strict=True)
    b = batch(sensors=9)
    forecast = other(b)
    assert forecast.shape == (4, 12, 9, 1)
    assert not torch.allclose(forecast, fresh(b))
    assert torch.equal(other.scaler.target_std, first.scaler.target_std)
    same = made(5, 3, MOMENTS, 0)  # weights elsewhere and back: nothing of the other network came along
    same.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(same(batch()), first(batch()))
    with pytest.raises(RuntimeError, match="size mismatch"):
        forecaster(9).load_state_dict(forecaster(5).state_dict())
