"""Attention by tiles is the plain formula, gradients included, whatever the size of a tile."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from socialx.model import tiled_attention as module
from socialx.model.tiled_attention import attention


def plain(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT + bias, -1) @ value


def parts(windows: int, heads: int, sensors: int, keys: int, channels: int, seed: int = 0) -> list[Tensor]:
    """Query, key and value as the layers give them, transposed; a bias that forbids some pairs, but never all."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    given = [random(windows, each, heads, channels).transpose(1, 2) for each in (sensors, keys, keys)]
    bias = random(heads, sensors, keys).masked_fill(torch.rand(sensors, keys, generator=generator) < 0.3, -math.inf)
    bias[..., -1] = 0
    return [part.requires_grad_() for part in (*given, bias)]


@given(
    shape=st.tuples(
        st.integers(1, 4), st.sampled_from([1, 2, 3, 4, 6]), st.integers(1, 9), st.integers(1, 9), st.integers(1, 5)
    ),
    tile=st.sampled_from([0, 64, 300, 1000, 1 << 20]),
)
def test_tiles_are_the_formula(shape: tuple[int, int, int, int, int], tile: int) -> None:
    given = parts(*shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TILE_BYTES", tile)
        found, expected = attention(*given), plain(*given)
        torch.testing.assert_close(found, expected)
        weight = torch.randn_like(expected)
        gradients = torch.autograd.grad((found * weight).sum(), given)
    for one, other in zip(gradients, torch.autograd.grad((expected * weight).sum(), given), strict=True):
        torch.testing.assert_close(one, other)


def test_without_gradients_no_weights_are_kept() -> None:
    given = parts(3, 2, 5, 6, 4)
    expected = plain(*given)
    with torch.no_grad():
        torch.testing.assert_close(attention(*given), expected)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        attention(*(part.detach() for part in given))
        assert not kept
        attention(*given)
    assert max(kept) == 3 * 2 * 5 * 6


def test_a_network_that_is_frozen_but_for_its_bias_learns_it() -> None:
    *fixed, bias = parts(2, 4, 3, 4, 2)
    fixed = [part.detach() for part in fixed]
    (found,) = torch.autograd.grad(attention(*fixed, bias).sum(), bias)
    (expected,) = torch.autograd.grad(plain(*fixed, bias).sum(), bias)
    torch.testing.assert_close(found, expected)


def test_its_operations_are_counted() -> None:
    given = parts(2, 4, 3, 4, 2)
    counted = []
    for function in (attention, plain):
        with FlopCounterMode(display=False) as counter:
            function(*given).sum().backward()
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1] == 3 * 2 * 2 * (2 * 4 * 3 * 4 * 2)


def test_it_compiles_without_a_break() -> None:
    *given, bias = parts(2, 4, 3, 4, 2)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*given, bias).square().sum(), (*given, bias))
    expected = torch.autograd.grad(plain(*given, bias).square().sum(), (*given, bias))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_products_in_16_bits_keep_a_softmax_in_32() -> None:
    *given, bias = (part.detach().float() for part in parts(2, 4, 5, 6, 8))
    low = [part.bfloat16() for part in given]
    found = attention(*low, bias)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, torch.softmax((low[0] @ low[1].mT).float() + bias, -1).bfloat16() @ low[2])
