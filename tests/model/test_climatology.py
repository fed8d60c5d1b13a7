"""The climatology in the model: what tokens and state get of it, by hand; the forecast does not start from it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from socialx.core.batch import Batch
from socialx.data.scaler import DataSpec
from socialx.model.forecaster import ClimatologyInputs, Forecaster
from tests.networks import batch, features, forecaster, network


def with_climatology(
    known: DataSpec, b: Batch, read: tuple[int | None, ...] = (0,), seed: int = 0
) -> tuple[DataSpec, Batch]:
    """A network, and a batch of it whose usual readings and their trust are random; one is not known."""
    rng = np.random.default_rng(seed)
    moments = np.array([[m.mean, m.std] for m in known.targets])
    shape = (*b.time_of_day.shape, known.sensors, len(known.targets))
    climatology = moments[:, 0] + moments[:, 1] * rng.normal(0, 1, shape)
    climatology[0, :, 1] = np.nan
    b = b._replace(
        climatology=torch.from_numpy(climatology.astype(np.float32)),
        climatology_confidence=torch.from_numpy(rng.random(climatology.shape).astype(np.float32)),
    )
    return replace(known, read=read), b


def made(known: DataSpec, seed: int = 0) -> Forecaster:
    return forecaster(known, social=0, seed=seed, blocks=1, slstm_at=(), climatology=True)


def by_hand(known: DataSpec, b: Batch, read: tuple[int | None, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of the two maps: of the tokens [B,N,T,3G] and of the state [B,N,(P+3)G]."""
    windows, steps, sensors, _ = b.inputs.shape
    targets, horizon = len(known.targets), b.time_of_day.shape[1] - steps
    tokens, state = np.zeros((windows, sensors, steps, 3 * targets)), np.zeros((windows, sensors, horizon + 3, targets))

    def climatology(window: int, row: int, sensor: int, g: int) -> float:
        reading = float(b.climatology[window, row, sensor, g])
        return 0.0 if math.isnan(reading) else (reading - known.targets[g].mean) / known.targets[g].std

    for w, n, g in np.ndindex(windows, sensors, targets):
        place = read[g]
        for t in range(steps):
            tokens[w, n, t, g] = climatology(w, t, n, g)
            tokens[w, n, t, 2 * targets + g] = b.climatology_confidence[w, t, n, g]
            if place is not None and b.valid[w, t, n, place]:
                of = known.inputs[place]
                reading = (float(b.inputs[w, t, n, place]) - of.mean) / of.std
                tokens[w, n, t, targets + g] = reading - climatology(w, t, n, g)
        now = climatology(w, steps - 1, n, g)
        for ahead in range(horizon):
            state[w, n, ahead, g] = climatology(w, steps + ahead, n, g) - now
        last_observed = (float(b.last_observed[w, n, g]) - known.targets[g].mean) / known.targets[g].std
        state[w, n, horizon, g] = 0.0 if math.isnan(last_observed) else last_observed - now
        state[w, n, horizon + 1, g], state[w, n, horizon + 2, g] = (
            b.climatology_confidence[w, steps - 1, n, g],
            b.climatology_confidence[w, -1, n, g],
        )
    return tokens, state.reshape(windows, sensors, -1)


@pytest.mark.parametrize(
    ("inputs", "targets", "read"), [((0,), (0,), (0,)), ((0, 1, 2), (2, 0), (2, 0)), ((1,), (2, 1), (None, 0))]
)
def test_tokens_and_state_get_what_is_usual_and_how_far_the_readings_are_from_it(
    inputs: tuple[int, ...], targets: tuple[int, ...], read: tuple[int | None, ...]
) -> None:
    example, plain = features(4, inputs, targets, batch_size=3)
    known, b = with_climatology(plain, example.batch, read)
    b = b._replace(last_observed=b.last_observed.masked_fill(torch.arange(4)[:, None] == 1, math.nan))
    model = made(known).double()
    b = Batch(*(part.double() if part.is_floating_point() else part for part in b))
    part = model.climatology
    assert isinstance(part, ClimatologyInputs)
    climatology = part.normalise(b, model.scaler)
    tokens, state = by_hand(known, b, read)
    found = part.token_inputs(
        climatology[:, :12], b.climatology_confidence[:, :12], model.scaler.normalise_inputs(b), b.valid
    )
    wanted = part.token(torch.from_numpy(tokens))
    torch.testing.assert_close(part.token(found.transpose(1, 2)), wanted, rtol=1e-5, atol=1e-6)
    found = part.state_input(climatology, b.climatology_confidence, 12, model.scaler.scaled_last(b))
    torch.testing.assert_close(found, part.state(torch.from_numpy(state)), rtol=1e-5, atol=1e-6)


def test_where_nothing_is_known_the_mean_is_usual_and_trust_tells_it_from_a_known_mean() -> None:
    known, b = with_climatology(network(), batch())
    model = made(known)
    unknown = b._replace(
        climatology=torch.full_like(b.climatology, math.nan),
        climatology_confidence=torch.zeros_like(b.climatology_confidence),
    )
    mean = b._replace(
        climatology=torch.full_like(b.climatology, known.targets[0].mean),
        climatology_confidence=torch.zeros_like(b.climatology_confidence),
    )
    torch.testing.assert_close(model(unknown), model(mean))
    sure = mean._replace(climatology_confidence=torch.ones_like(b.climatology_confidence))
    assert not torch.allclose(model(mean), model(sure))


def test_no_weight_and_no_buffer_is_of_the_climatology_itself() -> None:
    state = made(network()).state_dict()
    assert {name for name in state if "climatology" in name} == {
        *(f"climatology.{part}.{kind}" for part in ("token", "state") for kind in ("weight", "bias"))
    }
