"""Social pooling: the definition by brute force, who uses whom, the nothing of an isolated sensor, gradients."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.step_bytes import Traffic, as_on_cuda
from socialx.data import geo
from socialx.model.pooling import DotAttention, Geometry, Max, Mean, MlpAttention, SocialPooling, WeightedMean
from socialx.settings.schema import PoolingSettings
from tests.attention import attention_of, check_attention
from tests.networks import KINDS, pooling, positions

HAVE_DENSE = ["attention", "mean", "weighted_mean"]  # the others always gather


def brute_force(p: SocialPooling, state: Tensor) -> np.ndarray:
    """Sensor by sensor and neighbour by neighbour, in NumPy and float64."""
    weights = {name: t.detach().double().numpy() for name, t in (*p.named_parameters(), *p.named_buffers())}
    g = {name.removeprefix("geometry."): w for name, w in weights.items() if name.startswith("geometry.")}
    windows, sensors, width = state.shape
    depth = width // p.heads
    out = np.zeros((windows, sensors, width))
    for b in range(windows):
        x = state[b].detach().double().numpy()
        value = x @ weights["value.weight"].T + weights["value.bias"]
        for i in range(sensors):
            near = [time_of_day for time_of_day in range(g["index"].shape[1]) if g["exists"][i, time_of_day]]
            together = np.zeros(width)
            for h in range(p.heads):
                part = slice(h * depth, (h + 1) * depth)
                gates, biases, scores, values = [], [], [], []
                for time_of_day in near:
                    j = int(g["index"][i, time_of_day])
                    inside = math.exp(g["log_beta"][h]) * (math.exp(g["log_radius"][h]) - g["distance"][i, time_of_day])
                    gates.append(1 / (1 + math.exp(-inside)) if p.geometry.soft else 1.0)
                    bias = offset_network(weights, "geometry.offset_bias", g["offsets"][i, time_of_day])[h]
                    biases.append(bias + (g["goal"][h, i] @ g["source"][h, j] if "goal" in g else 0.0))
                    scores.append(score(p, weights, x[i], x[j], g["offsets"][i, time_of_day], h))
                    values.append(value[j, part])
                if near:
                    together[part] = pooled(type(p), *map(np.array, (gates, biases, scores, values)))
            out[b, i] = weights["out.weight"] @ together
    return out


def pooled(kind: type, gates: np.ndarray, biases: np.ndarray, scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The formulas at the top of the module, for the neighbours of one sensor and one head."""
    if kind is Max:
        return (gates[:, None] * values).max(0)
    if kind is Mean:
        return gates @ values / len(gates)
    if kind is WeightedMean:
        w = gates * np.exp(biases)
        return w @ values / max(1, w.sum())
    share = np.exp(scores + biases) * gates
    return share @ values / (1 + share.sum())  # 1: the null key


def score(p: SocialPooling, weights: dict, own: np.ndarray, other: np.ndarray, offset: np.ndarray, h: int) -> float:
    """What the states say of a pair, before geometry."""
    if not isinstance(p, DotAttention | MlpAttention):
        return 0.0
    width = len(own)
    depth = width // p.heads
    part = slice(h * depth, (h + 1) * depth)
    q = (weights["query_key.weight"] @ own + weights["query_key.bias"])[:width][part]
    k = (weights["query_key.weight"] @ other + weights["query_key.bias"])[width:][part]
    if isinstance(p, DotAttention):
        return q @ k / math.sqrt(depth)
    phi = offset_network(weights, "offset", offset)[part] if "offset.0.weight" in weights else 0.0
    return float(weights["score"][h] @ gelu(q + k + phi))


def offset_network(weights: dict, name: str, offset: np.ndarray) -> np.ndarray:
    if f"{name}.0.weight" not in weights:
        return np.zeros(99)
    hidden = gelu(weights[f"{name}.0.weight"] @ offset + weights[f"{name}.0.bias"])
    return weights[f"{name}.2.weight"] @ hidden + weights.get(f"{name}.2.bias", 0.0)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def network(kind: str = "attention", sensors: int = 7, width: int = 16, **options: Any) -> tuple[SocialPooling, Tensor]:
    """Pooling over some sensors, one without a position, and states of two windows; weights away from their start."""
    torch.manual_seed(1)
    xy = positions(sensors)
    xy[3] = np.nan
    p = pooling(xy, kind=kind, **{"heads": 2, "neighbours": 4, "gate_radius_km": 3.0, **options})
    with torch.no_grad():
        for parameter in p.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return p, torch.randn(2, 7, 16)


@pytest.mark.parametrize("adaptive_adjacency_rank", [0, 3])
@pytest.mark.parametrize("mask_mode", ["soft", "hard"])
@pytest.mark.parametrize("use_positional", [True, False])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_definition(
    kind: str, heads: int, use_positional: bool, mask_mode: str, adaptive_adjacency_rank: int
) -> None:
    p, state = network(
        kind,
        heads=heads,
        use_positional=use_positional,
        mask_mode=mask_mode,
        adaptive_adjacency_rank=adaptive_adjacency_rank,
    )
    p, state = p.double(), state.double()
    assert p.geometry.exists.any(1).sum() >= 3
    np.testing.assert_allclose(p(state).detach(), brute_force(p, state), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("low", "tolerance"), [(None, 2e-6), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_precision_stays_close_to_the_definition(kind: str, low: torch.dtype | None, tolerance: float) -> None:
    p, state = network(kind)
    exact = brute_force(p, state)
    with torch.autocast("cpu", low, enabled=low is not None):
        got = p(state)
    assert (got.dtype, p.geometry().dtype) == (low or torch.float32, torch.float32)
    assert np.abs(got.detach().double().numpy() - exact).max() < tolerance * np.abs(exact).max()


@pytest.mark.parametrize("adaptive_adjacency_rank", [0, 3])
@pytest.mark.parametrize("kind", HAVE_DENSE)
def test_gathering_equals_the_dense_sums_with_all_gradients(
    kind: str, adaptive_adjacency_rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, state = network(kind, adaptive_adjacency_rank=adaptive_adjacency_rank)
    p, state = p.double(), state.double().requires_grad_()
    weight = torch.randn(2, 7, 16, dtype=torch.float64)
    trained = list(p.parameters())
    results = []
    for dense in (True, False):
        monkeypatch.setattr(Geometry, "prefers_dense", lambda self, d=dense: d)
        out = p(state)
        gradients = torch.autograd.grad((out * weight).sum(), [state, *trained], allow_unused=True)
        results.append([out, *(g for g in gradients if g is not None)])
    assert len(results[0]) == len(results[1]) > 4
    for plain, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    "options", [{}, {"adaptive_adjacency_rank": 3}, {"use_positional": False}, {"mask_mode": "hard"}], ids=str
)
def test_torchs_attention_equals_the_dense_sums_with_all_gradients(options: dict[str, Any]) -> None:
    p, state = network(**options)
    assert isinstance(p, DotAttention)
    p, state = p.double(), state.double().requires_grad_()
    results = attention_of(p, state, p.attend_fused), attention_of(p, state, p.attend_dense)
    assert len(results[0]) > 4
    for name, truth in results[1].items():
        torch.testing.assert_close(results[0][name], truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("low", [None, torch.bfloat16, torch.float16])
def test_torchs_attention_trains_the_radius_in_every_precision(low: torch.dtype | None, scale: float) -> None:
    check_attention(torch.device("cpu"), low, scale)


@pytest.mark.parametrize(
    ("sensors", "on_cpu", "on_cuda"), [(20, "attend_dense", "attend_fused"), (80, "attend_gathered", "attend_gathered")]
)
def test_size_and_device_choose_the_fastest_of_three(
    sensors: int, on_cpu: str, on_cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = pooling(positions(sensors), neighbours=3)
    assert isinstance(p, DotAttention)
    assert p.fastest(torch.device("cuda")) == getattr(p, on_cuda)
    taken, real = [], getattr(p, on_cpu)
    monkeypatch.setattr(p, on_cpu, lambda *parts: (taken.append(on_cpu), real(*parts))[1])
    p(torch.randn(1, sensors, 16))
    assert taken == [on_cpu]


def moved(way: str, sensors: int, neighbours: int, width: int, heads: int) -> int:
    """Bytes that attention of 64 windows moves on CUDA forward and backward in bf16, counted without data."""
    index, far = np.zeros((sensors, neighbours), np.int64), np.ones((sensors, neighbours), np.float32)
    near = geo.Neighbours(index, index == 0, far, np.ones((*index.shape, 2), np.float32))
    with as_on_cuda():
        layer = DotAttention(width, Geometry(near, PoolingSettings(adaptive_adjacency_rank=0), heads))
        layer.geometry.index = torch.zeros(sensors, neighbours, dtype=torch.int64)
        state = torch.zeros(64, sensors, width, requires_grad=True)
        with Traffic() as traffic, torch.autocast("cpu", torch.bfloat16):
            value = layer.value(state).unflatten(-1, (heads, -1))
            getattr(layer, way)(*layer.query_and_key(state), value).sum().backward()
    return sum(traffic.bytes.values())


@pytest.mark.parametrize(
    ("sensors", "neighbours", "width", "heads", "on_cuda"),
    [
        (2352, 64, 128, 4, "attend_fused"),  # 37 sensors per neighbour
        (2352, 64, 64, 4, "attend_fused"),
        (1000, 32, 64, 4, "attend_fused"),
        (640, 16, 64, 4, "attend_fused"),
        (3834, 64, 128, 4, "attend_gathered"),  # 60
        (2352, 32, 64, 4, "attend_gathered"),  # 74
        (2352, 64, 64, 16, "attend_gathered"),  # a bias of 4 channels per head would be larger than what is gathered
    ],
)
def test_on_cuda_the_way_that_is_taken_moves_far_fewer_bytes_or_needs_less_memory(
    sensors: int, neighbours: int, width: int, heads: int, on_cuda: str
) -> None:
    near = geo.nearest_neighbours(positions(sensors), neighbours)
    layer = DotAttention(width, Geometry(near, PoolingSettings(adaptive_adjacency_rank=0), heads))
    assert layer.fastest(torch.device("cuda")) == getattr(layer, on_cuda)
    fused, gathered = (moved(f"attend_{way}", sensors, neighbours, width, heads) for way in ("fused", "gathered"))
    if on_cuda == "attend_fused":
        assert fused < 0.5 * gathered
        assert heads * sensors**2 <= 3 * sensors * neighbours * width  # numbers of a window
    else:
        assert sensors > 40 * neighbours or heads * sensors**2 > 3 * sensors * neighbours * width


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "max"])
def test_the_weights_that_a_picture_shows_are_those_that_pool(kind: str) -> None:
    p, state = network(kind)
    weights = p.weights(state)
    total = weights.sum(-1)
    assert (total <= 1 + 1e-6).all()
    assert (total[:, :, [0, 1, 2, 4, 5, 6]] > 0).all()
    assert (total[:, :, 3] == 0).all()
    value = p.value(state).unflatten(-1, (p.heads, -1))
    together = torch.einsum("bhnk,bnkhd->bnhd", weights, p.geometry.gather(value)).flatten(-2)
    torch.testing.assert_close(p.out(together), p(state))


@pytest.mark.parametrize(
    ("kind", "dense"), [(kind, dense) for kind in KINDS for dense in (True, False) if dense or kind in HAVE_DENSE]
)
def test_isolated_sensors_get_exactly_nothing(kind: str, dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Geometry, "prefers_dense", lambda self: dense)
    xy = positions(5)
    xy[1] = np.nan
    far = positions(4, spread_km=400.0)
    alone = [pooling(xy, neighbours=2, kind=kind), pooling(positions(1), kind=kind)]
    for case in (*alone, pooling(far, kind=kind, mask_mode="hard", gate_radius_km=1.0)):
        geometry = case.geometry
        state = torch.randn(2, geometry.index.shape[0], 16, requires_grad=True)
        out, isolated = case(state), ~geometry.exists.any(1)
        assert isolated.any()
        assert (out[:, isolated] == 0).all()
        out.sum().backward()
        assert torch.isfinite(state.grad).all()
        assert all(torch.isfinite(q.grad).all() for q in case.parameters() if q.grad is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_two_sensors_at_one_place_are_finite(kind: str) -> None:
    p = pooling(np.zeros((3, 2)), neighbours=2, kind=kind)
    p(torch.randn(1, 3, 16)).sum().backward()
    assert all(torch.isfinite(q.grad).all() for q in p.parameters() if q.grad is not None)


@pytest.mark.parametrize("radius", [0.1, 5.0])
@pytest.mark.parametrize("kind", KINDS)
def test_far_sensors_fade_whatever_an_offset_says(kind: str, radius: float) -> None:
    """Half of the sensors are 300 km away, in six directions, and the trained bias grows faster than the gate falls."""
    xy = positions(12)
    xy[6:] = 300 * np.array([(math.sin(turn), math.cos(turn)) for turn in range(6)])
    for seed in range(10):
        torch.manual_seed(seed)
        p, state = pooling(xy, kind=kind, neighbours=11, gate_radius_km=radius), torch.randn(1, 12, 16)
        with torch.no_grad():
            p.geometry.offset_bias[-1].weight.mul_(10 * max(radius, 1.0))
        out = p(state)
        assert torch.isfinite(out).all()
        other = state.clone()
        other[:, 6:] += 1
        torch.testing.assert_close(p(other)[:, :6], out[:, :6], rtol=0, atol=1e-3)


def test_a_weighted_mean_of_overwhelming_weights_is_a_mean() -> None:
    p, state = network("weighted_mean")
    with torch.no_grad():
        p.geometry.offset_bias[-1].bias.fill_(200.0)  # exp of it is inf
    weights = p.fixed_weights()
    some = p.geometry.exists.any(-1)
    torch.testing.assert_close(weights.sum(-1)[:, some], torch.ones(2, int(some.sum())))
    p(state).sum().backward()
    assert all(torch.isfinite(q.grad).all() for q in p.parameters() if q.grad is not None)


@pytest.mark.parametrize("options", [{"learnable_radius": False}, {"mask_mode": "hard"}])
def test_a_fixed_radius_stays(options: dict[str, Any]) -> None:
    geometry = pooling(positions(4), **options).geometry
    assert not geometry.log_radius.requires_grad
    assert not geometry.log_beta.requires_grad
    assert geometry.gate_radius_km.tolist() == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_hard_radius_is_a_border(kind: str) -> None:
    xy = np.array([[0.0, 0.0], [2.9, 0.0], [3.1, 0.0], [0.0, 2.0]])
    p = pooling(xy, neighbours=None, kind=kind, mask_mode="hard", gate_radius_km=3.0)
    state = torch.randn(1, 4, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(p(state)[0, 0].abs().sum(), state)
    assert gradient[0].any(-1)[1:].tolist() == [True, False, True]


def test_wrong_shapes_are_refused() -> None:
    near = geo.nearest_neighbours(positions(4), 2)
    with pytest.raises(ValueError, match="do not match"):
        Geometry(dataclasses.replace(near, offsets=np.zeros((4, 3, 2))), PoolingSettings())
    with pytest.raises(ValueError, match="multiple of 3 heads"):
        pooling(positions(4), heads=3)
