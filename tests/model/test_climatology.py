"""The climatology in the model: what tokens and state get of it, by hand; the forecast does not start from it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from socialx.batch import Batch
from socialx.data.network import Network
from socialx.model.forecaster import Climatology, Forecaster, social_forecaster
from tests.networks import batch, features, network

SMALL = {"width": 16, "blocks": 1, "slstm_at": (), "heads": 2, "dropout": 0.0}


def with_usual(known: Network, read: tuple[int | None, ...] = (0,), seed: int = 0) -> Network:
    """A network whose usual readings are random."""
    usual = np.random.default_rng(seed).normal(0, 1, (3, 288, known.sensors, len(known.targets)))
    moments = np.array([[m.mean, m.std] for m in known.targets])
    return replace(known, usual=(moments[:, 0] + moments[:, 1] * usual).astype(np.float32), read=read)


def made(known: Network, seed: int = 0) -> Forecaster:
    torch.manual_seed(seed)
    return social_forecaster(known, climatology=True, **SMALL)


def by_hand(known: Network, b: Batch, read: tuple[int | None, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of the two maps: of the tokens [B,N,T,2G] and of the state [B,N,(P+1)G]."""
    windows, steps, sensors, _ = b.history.shape
    targets, horizon = len(known.targets), b.slot.shape[1] - steps
    tokens, state = np.zeros((windows, sensors, steps, 2 * targets)), np.zeros((windows, sensors, horizon + 1, targets))

    def usual(window: int, row: int, sensor: int, g: int) -> float:
        kind = {5: 1, 6: 2}.get(int(b.weekday[window, row]), 0)
        reading = known.usual[kind, int(b.slot[window, row]), sensor, g]
        return (float(reading) - known.targets[g].mean) / known.targets[g].std

    for w, n, g in np.ndindex(windows, sensors, targets):
        place = read[g]
        for t in range(steps):
            tokens[w, n, t, g] = usual(w, t, n, g)
            if place is not None and b.valid[w, t, n, place]:
                of = known.inputs[place]
                tokens[w, n, t, targets + g] = (float(b.history[w, t, n, place]) - of.mean) / of.std - usual(w, t, n, g)
        now = usual(w, steps - 1, n, g)
        for ahead in range(horizon):
            state[w, n, ahead, g] = usual(w, steps + ahead, n, g) - now
        carried = (float(b.carried[w, n, g]) - known.targets[g].mean) / known.targets[g].std
        state[w, n, horizon, g] = 0.0 if math.isnan(carried) else carried - now
    return tokens, state.reshape(windows, sensors, -1)


@pytest.mark.parametrize(
    ("inputs", "targets", "read"), [((0,), (0,), (0,)), ((0, 1, 2), (2, 0), (2, 0)), ((1,), (2, 1), (None, 0))]
)
def test_tokens_and_state_get_what_is_usual_and_how_far_the_readings_are_from_it(
    inputs: tuple[int, ...], targets: tuple[int, ...], read: tuple[int | None, ...]
) -> None:
    example, plain = features(4, inputs, targets, batch_size=3)
    known = with_usual(plain, read)
    b = example.batch._replace(weekday=example.batch.weekday + torch.tensor([[4], [5], [6]]) - example.batch.weekday)
    b = b._replace(carried=b.carried.masked_fill(torch.arange(4)[:, None] == 1, math.nan))
    model = made(known).double()
    b = Batch(*(part.double() if part.is_floating_point() else part for part in b))
    part = model.climatology
    assert isinstance(part, Climatology)
    usual = part.at(b, model.normaliser)
    tokens, state = by_hand(known, b, read)
    found = part.of_tokens(usual[:, :12], model.normaliser.inputs(b), b.valid)
    torch.testing.assert_close(
        part.token(found.transpose(1, 2)), part.token(torch.from_numpy(tokens)), rtol=1e-5, atol=1e-6
    )
    found = part.of_state(usual, 12, model.normaliser.carried(b))
    torch.testing.assert_close(found, part.state(torch.from_numpy(state)), rtol=1e-5, atol=1e-6)


def test_the_forecast_starts_from_the_latest_reading_and_not_from_what_is_usual() -> None:
    b = batch()
    model = made(with_usual(network()))
    with torch.no_grad():
        model.head[-1].weight.zero_()
        model.head[-1].bias.zero_()
    torch.testing.assert_close(model(b), b.carried[:, None].expand(-1, 12, -1, -1))


def test_what_is_usual_elsewhere_or_at_another_time_does_not_matter() -> None:
    b = batch(sensors=5)
    known = with_usual(network())
    model = made(known)
    before = model(b)
    slots = b.slot.unique()
    with torch.no_grad():
        model.climatology.usual[1:] += 30  # Saturday and Sunday; the batch is of a Monday
        model.climatology.usual[0, [s for s in range(288) if s not in slots]] += 30
        model.climatology.usual[0, :, 4] += 30
    after = model(b)
    torch.testing.assert_close(after[:, :, :4], before[:, :, :4])  # without social layers a sensor is alone
    assert not torch.allclose(after[:, :, 4], before[:, :, 4])


def test_it_is_kept_with_the_weights_and_not_trained() -> None:
    model = made(with_usual(network()))
    assert "climatology.usual" in model.state_dict()
    assert "climatology.usual" not in dict(model.named_parameters())


def test_a_model_cannot_read_a_climatology_that_was_not_measured() -> None:
    with pytest.raises(ValueError, match="not measured"):
        made(network())
