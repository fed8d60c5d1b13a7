"""Social pooling: the definition by brute force, who hears whom, the nothing of an isolated sensor, gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from socialx.model.pooling import SocialPooling
from tests.networks import pooling, positions


def brute_force(p: SocialPooling, state: Tensor) -> np.ndarray:
    """Sensor by sensor and neighbour by neighbour, in NumPy."""
    weights = {name: t.detach().double().numpy() for name, t in (*p.named_parameters(), *p.named_buffers())}
    windows, sensors, width = state.shape
    depth = width // p.heads
    out = np.zeros((windows, sensors, width))
    for b in range(windows):
        x = state[b].detach().double().numpy()
        q = x @ weights["query.weight"].T + weights["query.bias"]
        kv = x @ weights["key_value.weight"].T + weights["key_value.bias"]
        for i in range(sensors):
            heard = np.zeros(width)
            for h in range(p.heads):
                part = slice(h * depth, (h + 1) * depth)
                logits, values = [0.0], [np.zeros(depth)]  # nobody
                for slot in range(p.index.shape[1]):
                    if not p.exists[i, slot]:
                        continue
                    j = int(p.index[i, slot])
                    offset = weights["offsets"][i, slot]
                    gap = math.sqrt(max(offset @ offset, 1e-12))
                    inside = math.exp(weights["log_beta"][h]) * (math.exp(weights["log_radius"][h]) - gap)
                    logit = q[i, part] @ kv[j, :width][part] / math.sqrt(depth) - math.log1p(math.exp(-inside))
                    if p.offset_bias is not None:
                        unit = torch.from_numpy(offset / weights["offset_unit"]).to(p.log_beta.dtype)
                        logit += p.offset_bias(unit)[h].item()
                    logits.append(logit)
                    values.append(kv[j, width:][part])
                share = np.exp(np.array(logits) - max(logits))
                heard[part] = (share / share.sum()) @ np.array(values)
            out[b, i] = weights["out.weight"] @ heard
    return out


@pytest.mark.parametrize("use_positional", [True, False])
@pytest.mark.parametrize("heads", [1, 4])
def test_equals_the_definition(heads: int, use_positional: bool) -> None:
    torch.manual_seed(1)
    xy = positions(7)
    xy[3] = np.nan  # a sensor without a position hears nobody and is heard by nobody
    p = pooling(xy, heads=heads, neighbours=4, radius_km=3.0, use_positional=use_positional).double()
    state = torch.randn(2, 7, 16, dtype=torch.float64)
    np.testing.assert_allclose(p(state).detach(), brute_force(p, state), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("neighbours", [1, 3, 8])
def test_the_dense_path_equals_the_gathering_one_with_all_gradients(neighbours: int) -> None:
    torch.manual_seed(2)
    xy = positions(9)
    xy[[2, 5]] = np.nan
    p = pooling(xy, neighbours=neighbours).double()
    parts = [torch.randn(2, 9, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    weight = torch.randn(2, 9, 2, 8, dtype=torch.float64)
    inputs = [*parts, *(t for n, t in p.named_parameters() if n.startswith(("log_", "offset_bias")))]
    results = []
    for attend in (p.attend_gathered, p.attend_dense):
        out = attend(*parts)
        results.append([out, *torch.autograd.grad((out * weight).sum(), inputs)])
    for plain, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-13)


def test_forward_picks_the_path_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for name in ("attend_dense", "attend_gathered"):
        real = getattr(SocialPooling, name)
        monkeypatch.setattr(SocialPooling, name, lambda self, *a, n=name, r=real: (taken.append(n), r(self, *a))[1])
    pooling(positions(20), neighbours=3)(torch.randn(1, 20, 16))
    pooling(positions(50), neighbours=3)(torch.randn(1, 50, 16))
    assert taken == ["attend_dense", "attend_gathered"]


def test_a_sensor_hears_its_neighbours_and_nobody_else() -> None:
    p = pooling(positions(12), neighbours=3)
    state = torch.randn(1, 12, 16, requires_grad=True)
    heard = p(state)
    for i in range(12):
        (gradient,) = torch.autograd.grad(heard[0, i].sum(), state, retain_graph=True)
        sources = set(gradient[0].abs().sum(-1).nonzero().flatten().tolist())
        assert sources == {i, *p.index[i].tolist()}  # itself through the query


def test_its_own_state_is_no_value_of_its_own() -> None:
    """With keys and queries switched off only values flow: a sensor's own must not."""
    p = pooling(positions(6), neighbours=2)
    with torch.no_grad():
        p.query.weight.zero_()
    state = torch.randn(1, 6, 16, requires_grad=True)
    for i in range(6):
        (gradient,) = torch.autograd.grad(p(state)[0, i].sum(), state)
        assert not gradient[0, i].any()
        assert gradient[0, p.index[i]].any(-1).all()


@pytest.mark.parametrize("path", ["attend_gathered", "attend_dense"])
def test_isolated_sensors_hear_exactly_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    xy = positions(5)
    xy[1] = np.nan
    for case in (pooling(xy, neighbours=2), pooling(positions(1))):
        monkeypatch.setattr(case, "attend_dense", getattr(case, path))
        state = torch.randn(2, case.index.shape[0], 16, requires_grad=True)
        heard = case(state)
        alone = ~case.exists.any(1)
        assert alone.any()
        assert (heard[:, alone] == 0).all()
        heard.sum().backward()
        assert state.grad is not None
        assert torch.isfinite(state.grad).all()
        assert all(torch.isfinite(q.grad).all() for q in case.parameters() if q.grad is not None)


def test_far_neighbours_fade_to_nothing() -> None:
    near, far = (pooling(positions(4, spread_km=s), use_positional=False, radius_km=5.0) for s in (1.0, 400.0))
    far.load_state_dict(near.state_dict())
    state = torch.randn(1, 4, 16)
    assert far(state).abs().max() < 1e-3 * near(state).abs().max()


def test_two_sensors_at_one_place_are_finite() -> None:
    p = pooling(np.zeros((3, 2)), neighbours=2)
    p(torch.randn(1, 3, 16)).sum().backward()
    assert all(torch.isfinite(q.grad).all() for q in p.parameters() if q.grad is not None)


def test_radius_and_softness_have_the_right_gradients() -> None:
    p = pooling(positions(6), neighbours=3, radius_km=4.0).double()
    state = torch.randn(2, 6, 16, dtype=torch.float64)
    for parameter in (p.log_radius, p.log_beta):
        (gradient,) = torch.autograd.grad(p(state).square().sum(), parameter)
        for head in range(p.heads):
            with torch.no_grad():
                sides = []
                for step in (1e-6, -1e-6):
                    parameter[head] += step
                    sides.append(p(state).square().sum().item())
                    parameter[head] -= step
            assert gradient[head].item() == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-5)
            assert gradient[head].abs() > 1e-6


def test_a_fixed_radius_stays() -> None:
    p = pooling(positions(4), learnable_radius=False)
    assert not p.log_radius.requires_grad
    assert not p.log_beta.requires_grad
    assert p.radius_km.tolist() == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize(("low", "tolerance"), [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_mixed_precision_stays_close(low: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(3)
    p = pooling(positions(10), neighbours=4)
    state = torch.randn(2, 10, 16)
    exact = p(state)
    with torch.autocast("cpu", low):
        mixed = p(state)
    assert p.bias().dtype == torch.float32
    assert (mixed.float() - exact).abs().max() < tolerance * exact.abs().max()


def test_wrong_shapes_are_refused() -> None:
    index, exists = torch.zeros(4, 2, dtype=torch.int64), torch.ones(4, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="do not match"):
        SocialPooling(16, 2, index, exists, torch.zeros(4, 3, 2))
    with pytest.raises(ValueError, match="multiple of 3 heads"):
        SocialPooling(16, 3, index, exists, torch.zeros(4, 2, 2))
