"""The whole model: shapes and units, who depends on whom, that every parameter is trained and none grows with N.

Also what may be put in: several features, layers between the blocks, last layers per sensor, an MLP, another network.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from socialx import build
from socialx.data import geo
from socialx.data.loaders import Batch
from socialx.model.encoder import SharedEncoder, WindowMlp
from socialx.model.forecaster import Forecaster, Tokens
from socialx.model.pooling import KINDS, Geometry, SocialLayer
from socialx.model.scale import Scale, Scaled
from socialx.options import load
from socialx.training.metrics import masked_absolute_error
from tests.commands import small_file
from tests.networks import CPU, SCALE, batch, features, forecaster, pooling, positions

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


@pytest.mark.parametrize("kind", ["attention", "attention_mlp", "mean", "weighted_mean", "max"])
def test_no_kind_of_pooling_has_idle_weights(kind: str, tmp_path: Path) -> None:
    data = small_file(tmp_path, 150, 5)
    small = {"model.width": 8, "model.heads": 2, "model.blocks": 1, "model.slstm_at": "0", "pooling.heads": 2}
    s = load((), {}, (), {**small, "data.path": str(data), "pooling.kind": kind, "model.dropout": "0"}).settings
    d = build.data(s, CPU)
    model = build.model(s, d)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    b = next(d.loader("train", 32).epoch(0))
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


def several(sensors: int = 5, targets: tuple[int, ...] = (2, 0)) -> tuple[Forecaster, Batch, Scale]:
    """Three inputs in units of their own, and the forecaster that reads them."""
    b, scale = features(sensors, targets=targets)
    torch.manual_seed(0)
    tokens = Tokens(16, sensors, 12, 288, inputs=3)
    layers = [SocialLayer(16, pooling(positions(sensors)), 0.0)]
    return Forecaster(tokens, encoder(), layers, 12, scale), b, scale


def encoder(blocks: int = 2, slstm_at: tuple[int, ...] = (1,), impl: str = "auto") -> SharedEncoder:
    return SharedEncoder(16, blocks, slstm_at, heads=2, history=12, impl=impl)


def shaken(model: Forecaster) -> Forecaster:
    """Weights away from their start, where some are zero and hide what depends on what."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("targets", [(2, 0), (1,), (0, 1, 2)])
def test_every_target_starts_from_its_own_latest_reading_in_its_own_unit(targets: tuple[int, ...]) -> None:
    model, b, scale = several(targets=targets)
    assert model(b).shape == b.target.shape == (4, 12, 5, len(targets))
    bias = torch.randn(12, len(targets))
    with torch.no_grad():
        model.head[-1].weight.zero_()
        model.head[-1].bias.copy_(bias.flatten())
    never = torch.zeros_like(b.carried, dtype=torch.bool)
    never[:, 3, 0] = True  # the first target of one sensor
    forecast = model(b._replace(carried=b.carried.masked_fill(never, math.nan)))
    for g in range(len(targets)):
        for n in range(5):
            start = torch.full((4,), scale.target_mean[g]) if (n, g) == (3, 0) else b.carried[:, n, g]
            expected = start[:, None] + scale.target_std[g] * bias[:, g]
            torch.testing.assert_close(forecast[:, :, n, g], expected, rtol=1e-5, atol=1e-5)


def test_the_unit_of_an_input_does_not_matter() -> None:
    model, b, scale = several()
    factor = torch.tensor([1.0, 1000.0, 0.25])
    other = Scaled(Scale([m * f for m, f in zip(scale.input_mean, factor.tolist(), strict=True)],
                         [d * f for d, f in zip(scale.input_std, factor.tolist(), strict=True)],
                         scale.target_mean, scale.target_std))  # fmt: skip
    before = model(b)
    model.scaled = other
    torch.testing.assert_close(model(b._replace(history=b.history * factor)), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("feature", [0, 1, 2])
def test_every_input_is_read_with_its_own_missing_flag(feature: int) -> None:
    model, b, _ = several()
    changed = torch.arange(3) == feature
    moved = b._replace(history=torch.where(changed & b.history_valid, b.history * 1.5, b.history))
    lost = b._replace(history_valid=b.history_valid & ~changed)
    assert not torch.allclose(model(moved), model(b))
    assert not torch.allclose(model(lost), model(b))
    assert not torch.allclose(model(lost), model(moved))


@pytest.mark.parametrize("impl", ["fused", "reference"])
@pytest.mark.parametrize("after", [(0, 2), (1,), (2,)])
def test_interleaved_layers_equal_a_plain_loop(impl: str, after: tuple[int, ...]) -> None:
    """Block by block of the package, and every step of every window to the social layer by itself."""
    social = {block: SocialLayer(16, pooling(positions(5)), 0.0) for block in after}
    model = shaken(Forecaster(Tokens(16, 5, 12, 288), encoder(3, (1,), impl), social, 12, SCALE)).double()
    b = batch(batch_size=3)
    history = b.history.double().requires_grad_()
    b = b._replace(history=history, carried=b.carried.double())

    def plain() -> Tensor:
        tokens = model.tokens(model.scaled.inputs(b), b.history_valid, b.slot[:, :12], b.weekday[:, :12])
        windows, sensors, steps, width = tokens.shape
        x = tokens.reshape(windows * sensors, steps, width)
        for number, block in enumerate(model.encoder.stack.blocks):  # type: ignore[union-attr, arg-type]
            x = block(x)
            if number in social:
                state = x.reshape(windows, sensors, steps, width)
                heard = [[social[number](state[w, :, t][None])[0] for t in range(steps)] for w in range(windows)]
                x = torch.stack([torch.stack(of_window, dim=1) for of_window in heard]).reshape(x.shape)
        x = model.encoder.stack.post_blocks_norm(x)  # type: ignore[union-attr, operator]
        change = model.head(x[:, -1].reshape(windows, sensors, width))  # [B,N,P]
        start = torch.where(b.carried.isnan(), 55.0, b.carried)[..., 0]
        return (start[:, None] + 8.0 * change.transpose(1, 2))[..., None]

    weight = torch.randn(3, 12, 5, 1, dtype=torch.float64)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    results = []
    for forecast in (plain(), model(b)):
        wanted = [history, *(p for _, p in named)]
        results.append((forecast, torch.autograd.grad((forecast * weight).sum(), wanted)))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-9, atol=1e-9)
    for name, got, expected in zip(["history", *(n for n, _ in named)], results[1][1], results[0][1], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")
        assert expected.any(), name


@pytest.mark.parametrize("impl", ["fused", "reference"])
def test_checkpointing_changes_nothing_of_interleaved_layers(impl: str) -> None:
    social = {1: SocialLayer(16, pooling(positions(5)), 0.0)}
    model = shaken(Forecaster(Tokens(16, 5, 12, 288), encoder(2, (1,), impl), social, 12, SCALE)).double()
    b, results = batch(batch_size=2), []
    for checkpointing in (False, True):
        model.encoder.checkpointing = checkpointing  # type: ignore[assignment]
        forecast = model(b)
        trained = [p for p in model.parameters() if p.requires_grad]
        results.append([forecast, *torch.autograd.grad(forecast.square().sum(), trained)])
    for plain, again in zip(*results, strict=True):
        torch.testing.assert_close(again, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_every_layer_reaches_one_hop_further_and_nobody_beyond(layers: int, interleaved: bool) -> None:
    """Sensors on a straight road, each in reach of the next one alone."""
    xy = np.stack([np.arange(9.0), np.zeros(9)], axis=1)
    road = geo.nearest(xy, None, within_km=1.1)
    social = [SocialLayer(16, KINDS["attention"](16, Geometry(2, road)), 0.0) for _ in range(layers)]
    given = dict(enumerate(social)) if interleaved else social
    model = shaken(Forecaster(Tokens(16, 9, 12, 288), encoder(3), given, 12, SCALE))
    b = batch(sensors=9)
    b = b._replace(history_valid=torch.ones_like(b.history_valid))
    for source in (0, 4):
        changed = (model(b) != model(perturbed(b, source))).any(dim=1).any(dim=0)[:, 0]
        assert changed.tolist() == [abs(sensor - source) <= layers for sensor in range(9)]


@pytest.mark.parametrize("interleaved", [True, False])
def test_windows_do_not_hear_each_other(interleaved: bool) -> None:
    layer = SocialLayer(16, pooling(positions(5)), 0.0)
    given = {0: layer} if interleaved else [layer]
    model = shaken(Forecaster(Tokens(16, 5, 12, 288), encoder(), given, 12, SCALE))
    b = batch(batch_size=4)
    history = b.history.clone()
    history[2] += 5
    changed = (model(b) != model(b._replace(history=history))).flatten(1).any(1)
    assert changed.tolist() == [False, False, True, False]


def with_sensor_heads() -> Forecaster:
    torch.manual_seed(0)
    layers = [SocialLayer(16, pooling(positions(5)), 0.0)]
    return Forecaster(Tokens(16, 5, 12, 288), encoder(), layers, 12, SCALE, own_last_layer=5)


def test_the_last_layers_of_sensors_change_nothing_at_first() -> None:
    model, plain = with_sensor_heads(), forecaster(seed=1)
    both = plain.load_state_dict(model.state_dict(), strict=False)
    assert both.unexpected_keys == ["own_last_layer"]
    assert not both.missing_keys
    assert torch.equal(model(batch()), plain(batch()))


def test_a_sensors_own_last_layer_learns_from_its_own_targets_alone() -> None:
    model, b = with_sensor_heads(), batch()

    def gradient(target: Tensor) -> Tensor:
        loss = masked_absolute_error(model(b), target, torch.ones_like(b.target_valid))
        return torch.autograd.grad(loss, model.own_last_layer)[0]  # type: ignore[arg-type]

    below, one_above = torch.full_like(b.target, -1e3), torch.full_like(b.target, -1e3)
    one_above[:, :, 2] = 1e3
    before, after = gradient(below), gradient(one_above)
    assert before.shape == (5, 12, 16)
    assert before.any(-1).all()
    torch.testing.assert_close(after[2], -before[2])
    assert torch.equal(after[[0, 1, 3, 4]], before[[0, 1, 3, 4]])


def test_a_sensors_own_last_layer_changes_its_own_forecast_alone() -> None:
    model, b = with_sensor_heads(), batch()
    before = model(b)
    with torch.no_grad():
        model.own_last_layer[3, 7] += 1.0  # type: ignore[index]
    changed = (model(b) != before).any(0)[..., 0]
    expected = torch.zeros(12, 5, dtype=torch.bool)
    expected[7, 3] = True
    assert torch.equal(changed, expected)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_the_window_mlp_has_as_many_parameters_as_asked(width: int) -> None:
    asked = sum(p.numel() for p in SharedEncoder(width, 2, [1], heads=2, history=12).parameters())
    for parameters in (asked, 3 * asked):
        made = sum(p.numel() for p in WindowMlp(width, 12, parameters).parameters())
        assert made == pytest.approx(parameters, rel=0.02)


def test_the_window_mlp_drops_as_the_encoder_does() -> None:
    torch.manual_seed(0)
    mlp, x = WindowMlp(16, 12, 5000, dropout=0.5), torch.randn(3, 12, 16)
    assert not torch.equal(mlp(x), mlp(x))
    assert torch.equal(mlp.eval()(x), mlp(x))


def test_the_window_mlp_depends_on_every_step_of_the_history() -> None:
    torch.manual_seed(0)
    model = Forecaster(Tokens(16, 5, 12, 288), WindowMlp(16, 12, 5000), [], 12, SCALE)
    b = batch()
    b = b._replace(history=b.history.clone().requires_grad_(), history_valid=torch.ones_like(b.history_valid))
    forecast = model(b)
    assert forecast.shape == b.target.shape
    (gradient,) = torch.autograd.grad(forecast[:, :, 1].sum(), b.history)
    assert gradient[:, :, 1].all()
    assert not gradient[:, :, [0, 2, 3, 4]].any()
    reversed_steps = b.history.flip(1).detach()
    assert not torch.allclose(model(b._replace(history=reversed_steps)), forecast)


@pytest.mark.parametrize("interleaved", [True, False])
def test_another_network_is_forecast_with_the_weights_of_the_first(interleaved: bool) -> None:
    """Other sensors, other neighbours, another scale: the weights bring their own scale along."""

    def made(sensors: int, neighbours: int, scale: Scale, seed: int) -> Forecaster:
        torch.manual_seed(seed)
        layer = SocialLayer(16, pooling(positions(sensors, seed), neighbours=neighbours), 0.0)
        social = {0: layer} if interleaved else [layer]
        return Forecaster(Tokens(16, sensors, 12, 288, **WITHOUT_SENSORS), encoder(), social, 12, scale)

    first = shaken(made(5, 3, SCALE, 0))
    other, fresh = (made(9, 4, Scale([0.0], [1.0], [0.0], [1.0]), seed) for seed in (1, 1))
    other.load_state_dict(first.state_dict(), strict=True)
    b = batch(sensors=9)
    forecast = other(b)
    assert forecast.shape == (4, 12, 9, 1)
    assert not torch.allclose(forecast, fresh(b))
    assert torch.equal(other.scaled.target_std, first.scaled.target_std)
    same = made(5, 3, SCALE, 0)  # weights elsewhere and back: nothing of the other network came along
    same.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(same(batch()), first(batch()))
    with pytest.raises(RuntimeError, match="size mismatch"):
        forecaster(9).load_state_dict(forecaster(5).state_dict())
