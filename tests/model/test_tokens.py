"""The sum of tokens as one operation: the same numbers and gradients as the plain one.

As in test_kernels.py, Triton's interpreter runs the kernels.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from torch import Tensor

from socialx.model.xlstm import exact
from socialx.model.xlstm.operations import LAYERS
from tests.encoders import relative
from tests.networks import batch, forecaster

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("windows", "sensors", "count", "width", "of_shared", "of_own"),
    [
        (3, 5, 2, 32, "calendar", "both"),
        (17, 18, 3, 24, "calendar", "sensor"),  # more than one tile of each, and no power of two
        (2, 4, 2, 16, "bias", None),
        (17, 18, 30, 32, "calendar", "both"),  # so many numbers are multiplied, not summed one by one
    ],
)
def test_tokens_and_all_gradients(
    windows: int, sensors: int, count: int, width: int, of_shared: str, of_own: str | None
) -> None:
    steps, generator = 4, torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    numbers, weight = drawn(windows, steps, sensors, count), drawn(count, width)
    shared = drawn(windows, steps, width) if of_shared == "calendar" else drawn(width)
    own = None if of_own is None else drawn(sensors, steps if of_own == "both" else 1, width)
    loss, found = drawn(windows, sensors, steps, width).double(), []
    for add, dtype in ((LAYERS.tokens, torch.float32), (exact.tokens, torch.float64)):
        leaves = [t.to(dtype).requires_grad_() for t in (weight, shared, own) if t is not None]
        out = add(numbers.to(dtype), leaves[0], leaves[1], leaves[2] if own is not None else None)
        gradients = torch.autograd.grad((out.double() * loss).sum(), leaves)
        found.append([t.detach().double() for t in (out, *gradients)])
    for ours, truth in zip(*found, strict=True):
        assert ours.shape == truth.shape
        assert relative(ours, truth) < 1e-5


def test_the_operation_keeps_torchs_rules() -> None:
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((2, 16), (3, 4, 16), (5, 4, 16))]
    torch.library.opcheck(torch.ops.socialx.tokens.default, (torch.randn(3, 4, 5, 2), *leaves))


@pytest.mark.parametrize("patch", [1, 4, 6, 12])
def test_a_forecaster_adds_its_tokens_with_the_kernels(patch: int) -> None:
    """They come as the encoder reads them, step by step: nothing is copied."""
    ours, plain = (forecaster(width=32, impl=impl, patch=patch) for impl in ("triton", "fused"))
    assert ours.encoder.add_tokens(torch.device("cpu")) is LAYERS.tokens
    assert plain.encoder.add_tokens(torch.device("cpu")) is exact.tokens
    torch.testing.assert_close(ours(batch()), plain(batch()), rtol=1e-4, atol=1e-4)
    tokens = ours.encoder.add_tokens(torch.device("cpu"))(
        torch.randn(2, 3, 4, 2), torch.randn(2, 32), torch.randn(32), None
    )
    assert tokens.flatten(0, 1).transpose(0, 1).is_contiguous()
