"""The kernels on a card: as close to the package as the fused forward."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from socialx.model.xlstm.encoder import SharedEncoder
from tests.attention import check_attention
from tests.gpu.device import CUDA, needs_card

pytestmark = [pytest.mark.gpu, needs_card]


@pytest.mark.parametrize("low", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("width", "steps", "slstm_at"), [(64, 12, [1]), (128, 5, [0, 1]), (256, 12, [1]), (64, 64, [])]
)
def test_the_kernels_equal_the_package(width: int, steps: int, slstm_at: list[int], low: torch.dtype | None) -> None:
    """Errors against the package in float64 are about those of the fused forward."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(67, steps, width, dtype=torch.float64, generator=generator).to(CUDA)
    results = {}
    for backend, dtype in (("reference", torch.float64), ("fused", torch.float32), ("triton", torch.float32)):
        torch.manual_seed(0)
        encoder = SharedEncoder(width, 2, slstm_at, 4, steps, backend=backend)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        encoder, inputs = encoder.to(CUDA, dtype), x.detach().to(dtype).requires_grad_()
        with torch.autocast("cuda", dtype=low, enabled=low is not None and dtype == torch.float32):
            y = encoder(inputs)
        y = y.to(dtype)
        gradients = torch.autograd.grad(y.square().sum(), [inputs, *encoder.parameters()])
        results[backend] = [y.detach().double(), *(gradient.double() for gradient in gradients)]

    floor = 1e-2 * max(float(exact.abs().max()) for exact in results["reference"])

    def error(backend: str) -> float:
        pairs = zip(results[backend], results["reference"], strict=True)
        return max(float((ours - exact).abs().max()) / max(float(exact.abs().max()), floor) for ours, exact in pairs)

    assert error("triton") <= max(3 * error("fused"), 5e-5)


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("low", [None, torch.float16, torch.bfloat16])
def test_attention_in_one_operation_trains_the_radius(low: torch.dtype | None, scale: float) -> None:
    check_attention(CUDA, low, scale)


@pytest.mark.parametrize("low", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [((12, 207), 128), ((3, 5), 96)])
def test_the_sum_and_norm_between_layers(rows: tuple[int, int], width: int, low: torch.dtype) -> None:
    add_norm = import_module("socialx.model.xlstm.operations").add_norm
    generator = torch.Generator().manual_seed(1)
    x, y, *weights = (torch.randn(*rows, width, generator=generator).to(CUDA) for _ in range(4))
    scale, found = torch.randn(width, generator=generator).to(CUDA), []
    for dtype, out_type in ((torch.float64, torch.float64), (torch.float32, low)):
        leaves = [t.to(of).requires_grad_() for t, of in ((x, dtype), (y.to(low), out_type), (scale, dtype))]
        if dtype == torch.float64:
            total = leaves[0] + leaves[1]
            out = torch.nn.functional.layer_norm(total, (width,), leaves[2])
        else:
            total, out = add_norm(*leaves, 1e-5, low)
        loss = (total * weights[0]).double().sum() + (out * weights[1]).double().sum()
        found.append([total.detach(), out.detach(), *torch.autograd.grad(loss, leaves)])
    most = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[low]
    for truth, ours in zip(*found, strict=True):
        assert float((ours.double() - truth).abs().max() / truth.abs().max()) < most


def test_auto_takes_the_kernels_and_says_why_not() -> None:
    assert SharedEncoder(64, 1, [0], 4, 12).to(CUDA).choice(CUDA) == ("triton", "")
    backend, reason = SharedEncoder(48, 1, [0], 2, 12).choice(CUDA)
    assert backend == "fused"
    assert "heads of 24 channels" in reason
