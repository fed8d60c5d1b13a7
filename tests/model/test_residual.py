"""The sum and norm between two layers as one operation: the same numbers and gradients, in fewer operations.

As in test_kernels.py, Triton's interpreter runs the kernels.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from socialx.model.xlstm import exact
from socialx.model.xlstm.encoder import SharedEncoder
from socialx.model.xlstm.operations import LAYERS
from socialx.model.xlstm.weights import Norm
from tests.encoders import gradients, relative, worst
from tests.meters import PeakBytes
from tests.model.test_kernels import FLOOR, make, sequences

pytestmark = pytest.mark.usefixtures("one_thread")
APART = LAYERS._replace(add_norm=exact.add_norm)


def results(
    x: Tensor, y: Tensor, keep: Tensor | None, scale: Tensor, weights: tuple[Tensor, Tensor], fused: bool
) -> list[Tensor]:
    """The sum, its norm, and the gradients of x, y and scale of both together."""
    leaves = [t.detach().requires_grad_() for t in (x, y, scale)]
    if fused:
        total, out = torch.ops.socialx.add_norm(leaves[0], leaves[1], keep, 1.25, leaves[2], 1e-5, y.dtype)
    else:
        total = leaves[0] + (leaves[1] if keep is None else leaves[1] * keep * 1.25)
        out = F.layer_norm(total, x.shape[-1:], leaves[2], None, 1e-5)
    loss = sum((t.double() * weight).sum() for t, weight in zip((total, out), weights, strict=True))
    return [total.detach(), out.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("width", [16, 96, 128, pytest.param(896, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("rows", "type_of_x", "type_of_y", "dropped"),
    [
        ((1, 1), torch.float32, torch.float32, False),
        ((5, 7), torch.float32, torch.float16, True),
        ((12, 33), torch.float32, torch.float32, True),
        ((3, 11), torch.float16, torch.float16, True),
        ((3, 11), torch.float16, torch.float16, False),
    ],
)
def test_sum_norm_and_gradients(
    rows: tuple[int, int], type_of_x: torch.dtype, type_of_y: torch.dtype, width: int, dropped: bool
) -> None:
    generator = torch.Generator().manual_seed(width + sum(rows))
    x, y, *weights = (3 * torch.randn(*rows, width, generator=generator) for _ in range(4))
    scale = torch.randn(width, generator=generator)
    scale[0] = 0  # the norm cannot be recovered from its product
    keep = torch.rand(x.shape, generator=generator) < 0.8 if dropped else None
    arguments = (x.to(type_of_x), y.to(type_of_y), keep, scale)
    ours = results(*arguments, (weights[0], weights[1]), fused=True)
    assert [t.dtype for t in ours] == [type_of_x, type_of_y, type_of_x, type_of_y, torch.float32]
    exact_ = results(
        x.to(type_of_x).double(), y.to(type_of_y).double(), keep, scale.double(), (weights[0], weights[1]), fused=False
    )
    most = 2e-3 if torch.float16 in (type_of_x, type_of_y) else 1e-6  # the norm's gradient comes in its type
    for found, truth in zip(ours, exact_, strict=True):
        assert float((found.double() - truth).abs().max() / truth.abs().max()) < most


@pytest.mark.parametrize("low", [torch.float32, torch.float16])
def test_the_first_norm_and_its_gradient_beside_that_of_what_it_reads(low: torch.dtype) -> None:
    x, scale = torch.randn(4, 3, 32, requires_grad=True), torch.randn(32, requires_grad=True)
    weights, found = torch.randn(2, 4, 3, 32), []
    for add_norm in (LAYERS.add_norm, exact.add_norm):
        with torch.autocast("cpu", low, enabled=low is not torch.float32):
            same, out = add_norm(Norm(scale, None, 1e-5), x, None, 0.0)
        assert same.data_ptr() == x.data_ptr()
        loss = (same * weights[0]).sum() + (out.float() * weights[1]).sum()
        found.append((out.float(), *torch.autograd.grad(loss, [x, scale])))
    for ours, theirs in zip(*found, strict=True):
        assert relative(ours, theirs) < (1e-6 if low is torch.float32 else 1e-3)


def test_a_strided_gradient_and_an_unused_sum() -> None:
    x, y = (torch.randn(4, 3, 32, requires_grad=True) for _ in range(2))
    scale = torch.randn(32, requires_grad=True)
    _, out = torch.ops.socialx.add_norm(x, y, None, 1.0, scale, 1e-5, torch.float32)
    found = torch.autograd.grad(out.transpose(0, 2).square().sum(), [x, y, scale])
    truth = torch.autograd.grad(F.layer_norm(x + y, (32,), scale).square().sum(), [x, y, scale])
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("low", [None, torch.float16])
def test_it_changes_no_number_of_the_encoder_dropout_included(low: torch.dtype | None) -> None:
    x, found = sequences(3, 3, 32), []
    for layers in (LAYERS, APART):
        encoder = make("triton", 32, [1], 2, 2, dropout=0.3, scale=0.1).train()
        encoder._layers = layers
        torch.manual_seed(4)
        with torch.autocast("cpu", dtype=low, enabled=low is not None):
            y = encoder(x)
        found.append((y, gradients(y.float(), x, encoder)))
    (ours, our_gradients), (plain, plain_gradients) = found
    assert ours.dtype == plain.dtype
    torch.testing.assert_close(ours, plain, rtol=1e-4 if low is None else 1e-2, atol=1e-5 if low is None else 1e-2)
    assert worst(our_gradients, plain_gradients, FLOOR) < (1e-4 if low is None else 2e-2)


def test_the_operations_keep_torchs_rules() -> None:
    for dtype in (torch.float32, torch.float16):
        torch.library.opcheck(torch.ops.socialx.norm.default, (torch.randn(2, 32), torch.randn(32), 1e-5, dtype))
        x, y = torch.randn(2, 3, 32, requires_grad=True), torch.randn(2, 3, 32, dtype=dtype, requires_grad=True)
        arguments = (x, y, torch.rand(2, 3, 32) < 0.9, 1.1, torch.randn(32, requires_grad=True), 1e-5, dtype)
        torch.library.opcheck(torch.ops.socialx.add_norm.default, arguments)


def step(layers: exact.LayerFunctions, meter: Callable[[], Any], activation_checkpointing: bool = False) -> Any:
    """Forward and backward of four blocks in bf16 below the meter; nothing is computed."""
    with FakeTensorMode():
        encoder = SharedEncoder(128, 4, [1, 3], 4, 12, 0.1, "triton", activation_checkpointing=activation_checkpointing)
        encoder._layers = layers
        x = torch.randn(128, 12, 128, requires_grad=True)
        with meter() as found:
            with torch.autocast("cpu", torch.bfloat16):
                y = encoder.in_chunks(x, None, rerun=False)
            y.float().square().sum().backward()
    return found


@pytest.mark.parametrize("activation_checkpointing", [False, True])
def test_no_more_memory_is_alive_or_kept(activation_checkpointing: bool) -> None:
    fused, apart = (step(layers, PeakBytes, activation_checkpointing) for layers in (LAYERS, APART))
    assert fused.peak <= apart.peak
