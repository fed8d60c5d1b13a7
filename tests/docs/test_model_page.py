"""The equations of docs/model.md, line by line in NumPy loops, against the model; and its picture."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from docs.model_picture import draw
from socialx.core.batch import Batch
from socialx.data import geo
from socialx.data.scaler import DataSpec, MeanStd
from socialx.model.forecaster import Forecaster
from socialx.model.pooling import DotAttention, SocialLayer
from socialx.settings.schema import HEADS, KEYS, PoolingSettings, flag_name
from tests.commands import ROOT
from tests.networks import batch, positions, small_model

SENSORS, STEPS, HORIZON, SLOTS, WIDTH = 5, 12, 12, 288, 16
MEAN, STD, RADIUS = 55.0, 8.0, 3.0


def model(patch: int) -> tuple[Forecaster, geo.Neighbours]:
    """Of all parts that the page describes, its weights away from their start."""
    torch.manual_seed(0)
    moments = (MeanStd(MEAN, STD),)
    xy = positions(SENSORS)
    xy[3] = np.nan  # has no neighbours
    near = geo.nearest_neighbours(xy, 3)
    network = DataSpec(SENSORS, STEPS, HORIZON, SLOTS, moments, moments, (0,), lambda: near)
    sizes = small_model(patch=patch, width=WIDTH, per_sensor_output=True, climatology=True)
    made = Forecaster(network, sizes, PoolingSettings(gate_radius_km=RADIUS, adaptive_adjacency_rank=3))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return made.double().eval().requires_grad_(False), near


def number(tensor: Any) -> np.ndarray:
    return tensor.detach().double().numpy()


def linear(layer: nn.Module, x: np.ndarray) -> np.ndarray:
    bias = 0.0 if layer.bias is None else number(layer.bias)
    return number(layer.weight) @ x + bias


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def sigmoid(x: np.ndarray | float) -> Any:
    return 1 / (1 + np.exp(-x))


def norm(layer: nn.Module, x: np.ndarray) -> np.ndarray:
    assert isinstance(layer, nn.LayerNorm)
    return (x - x.mean()) / np.sqrt(x.var() + layer.eps) * number(layer.weight) + number(layer.bias)


def mlp(layers: nn.Module, x: np.ndarray) -> np.ndarray:
    first, *_, last = (layer for layer in layers.children() if isinstance(layer, nn.Linear))
    return linear(last, gelu(linear(first, x)))


def usual_at(b: Batch, window: int, step: int, sensor: int) -> float:
    climatology = float(b.climatology[window, step, sensor, 0])
    return 0.0 if math.isnan(climatology) else (climatology - MEAN) / STD


def token(m: Forecaster, b: Batch, window: int, last: int, patch: int, sensor: int) -> np.ndarray:
    readings, climatology = [], []
    for step in range(last + 1 - patch, last + 1):
        valid = bool(b.valid[window, step, sensor, 0])
        z = (float(b.inputs[window, step, sensor, 0]) - MEAN) / STD if valid else 0.0
        u, r = usual_at(b, window, step, sensor), float(b.climatology_confidence[window, step, sensor, 0])
        readings += [z, 0.0 if valid else 1.0]
        climatology += [u, (z - u) if valid else 0.0, r]
    t = m.tokens
    found = linear(t.reading, np.array(readings)) + linear(m.climatology.token, np.array(climatology))
    found = (
        found
        + number(t.time_of_day)[int(b.time_of_day[window, last])]
        + number(t.day_of_week)[int(b.day_of_week[window, last])]
    )
    return found + number(t.sensor)[sensor, 0] + number(t.adaptive_embedding)[sensor, last // patch]


def social_layer(layer: SocialLayer, state: np.ndarray, near: geo.Neighbours) -> np.ndarray:
    pooling, g = layer.pooling, layer.pooling.geometry
    assert isinstance(pooling, DotAttention)
    y = np.array([norm(layer.pool_norm, each) for each in state])
    both = np.array([linear(pooling.query_key, each) for each in y])
    q, k = both[:, :WIDTH].reshape(-1, HEADS, WIDTH // HEADS), both[:, WIDTH:].reshape(-1, HEADS, WIDTH // HEADS)
    v = np.array([linear(pooling.value, each) for each in y]).reshape(q.shape)
    out = np.zeros_like(state)
    for i in range(SENSORS):
        pooled = np.zeros((HEADS, WIDTH // HEADS))
        slots = [time_of_day for time_of_day in range(near.index.shape[1]) if near.exists[i, time_of_day]]
        for h in range(HEADS):
            exponents, values = [], []
            for time_of_day in slots:
                j = near.index[i, time_of_day]
                radius, beta = math.exp(g.log_radius[h]), math.exp(g.log_beta[h])
                gate = sigmoid(beta * (radius - np.float32(near.distance[i, time_of_day])))
                offset = (near.offsets[i, time_of_day] / max(RADIUS, 1.0)).astype(np.float32)
                bias = mlp(g.offset_bias, offset)[h] + number(g.goal)[h, i] @ number(g.source)[h, j]
                logit = q[i, h] @ k[j, h] / math.sqrt(WIDTH // HEADS) + bias + math.log(gate)
                exponents.append(math.exp(logit))
                values.append(v[j, h])
            if slots:
                pooled[h] = np.array(exponents) / (1 + sum(exponents)) @ np.array(values)
        middle = state[i] + linear(pooling.out, pooled.reshape(-1))
        out[i] = middle + mlp(layer.feed, norm(layer.feed_norm, middle))
    return out


def by_the_page(m: Forecaster, b: Batch, window: int, patch: int, near: geo.Neighbours) -> np.ndarray:
    tokens = [[token(m, b, window, t, patch, i) for t in range(patch - 1, STEPS, patch)] for i in range(SENSORS)]
    encoded = number(m.encoder(torch.tensor(np.array(tokens))))
    own = []
    for i in range(SENSORS):
        now = usual_at(b, window, STEPS - 1, i)
        ahead = [usual_at(b, window, STEPS + p, i) - now for p in range(HORIZON)]
        confidence = [float(b.climatology_confidence[window, step, i, 0]) for step in (STEPS - 1, STEPS + HORIZON - 1)]
        last_observed = float(b.last_observed[window, i, 0])
        latest = 0.0 if math.isnan(last_observed) else (last_observed - MEAN) / STD - now
        own.append(encoded[i] + linear(m.climatology.state, np.array([*ahead, latest, *confidence])))
    state = np.array(own)
    for layer in m.social:
        state = social_layer(layer, state, near)
    forecast = np.zeros((HORIZON, SENSORS))
    for i in range(SENSORS):
        gate = sigmoid(linear(m.fusion, np.concatenate([own[i], state[i]])))
        mixed = gate * state[i] + (1 - gate) * own[i]
        change = mlp(m.head, mixed) + number(m.per_sensor_output)[i] @ gelu(linear(m.head[0], mixed))
        last_observed = float(b.last_observed[window, i, 0])
        usual = float(b.climatology[window, STEPS - 1, i, 0])
        start = usual if math.isnan(last_observed) else last_observed
        forecast[:, i] = (MEAN if math.isnan(start) else start) + STD * change
    return forecast


@pytest.mark.parametrize("patch", [1, 2, 6])
def test_the_equations_are_those_of_the_model(patch: int) -> None:
    m, near = model(patch)
    b = batch(SENSORS, 3)
    day_of_week = b.day_of_week + torch.tensor([0, 5, 6])[:, None] - b.day_of_week[:, :1]  # Monday, Saturday, Sunday
    last_observed = b.last_observed.clone()
    last_observed[1, 2] = last_observed[2, 1] = float("nan")  # sensors that never had a reading
    rng = np.random.default_rng(0)
    climatology, confidence = (
        rng.uniform(30, 70, (*b.time_of_day.shape, SENSORS, 1)),
        rng.random((*b.time_of_day.shape, SENSORS, 1)),
    )
    climatology[2, :, 1] = np.nan  # nothing is known of a sensor
    b = b._replace(day_of_week=day_of_week % 7, inputs=b.inputs.double(), last_observed=last_observed.double())
    b = b._replace(climatology=torch.from_numpy(climatology), climatology_confidence=torch.from_numpy(confidence))
    assert not b.valid.all()
    assert near.exists.any(1).tolist() == [True, True, True, False, True]
    with torch.no_grad():
        found = number(m(b))[..., 0]
    for window in range(3):
        np.testing.assert_allclose(found[window], by_the_page(m, b, window, patch, near), rtol=1e-7)


def test_the_page_names_settings_and_files_that_exist() -> None:
    text = (ROOT / "docs/model.md").read_text()
    for path in re.findall(r"`((?:data|model|training)/[\w/]*(?:\.py)?)`", text):
        assert (ROOT / "socialx" / path).exists(), path
    for key in re.findall(r"[` ]((?:data|loader|model|pooling|trainer)\.[a-z_]+)[`=]", text):
        assert key in KEYS, key
    flags = {flag_name(key) for key in KEYS} | {"--preset", "--set"}
    for flag in re.findall(r"`[^`]*?(--[a-z-]+)", text):
        assert flag in flags or f"--{flag.removeprefix('--no-')}" in flags, flag


def test_the_picture_is_the_one_that_the_script_draws(tmp_path: Path) -> None:
    """To the pixel, where it was drawn by this version of matplotlib; else of the same size."""
    matplotlib = pytest.importorskip("matplotlib")
    from PIL import Image

    draw(tmp_path / "model.png")
    with Image.open(tmp_path / "model.png") as fresh, Image.open(ROOT / "docs/pictures/model.png") as kept:
        assert fresh.size == kept.size
        if f"version{matplotlib.__version__}," in str(kept.info.get("Software")):
            assert np.array_equal(np.asarray(fresh), np.asarray(kept)), "run make docs"
