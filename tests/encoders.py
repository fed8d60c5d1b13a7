"""Encoders and sequences for tests, and how far two results are apart."""

from typing import Any

import torch
from torch import Tensor, nn

from socialx.model.xlstm.encoder import SharedEncoder
from socialx.settings.schema import ModelSettings

LOOKBACK = 12


def make(
    width: int = 32,
    blocks: int = 2,
    slstm_at: Any = (1,),
    heads: int = 4,
    dtype: torch.dtype = torch.float64,
    scale: float = 0.3,
    lookback: int = LOOKBACK,
    **options: Any,
) -> SharedEncoder:
    """An encoder whose every parameter is moved: the package starts recurrent kernels and gate weights at zero."""
    torch.manual_seed(0)
    sizes = ModelSettings(width=width, blocks=blocks, slstm_at=tuple(slstm_at), patch=1, **options)
    encoder = SharedEncoder(sizes, lookback, heads).to(dtype)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return encoder


def sequences(count: int, steps: int, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, steps, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def loss_of(y: Tensor) -> Tensor:
    return (torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y) * y).sum() + y.square().sum()


def gradients(y: Tensor, x: Tensor, module: nn.Module) -> dict[str, Tensor]:
    named = {"x": x, **dict(module.named_parameters())}
    return dict(zip(named, torch.autograd.grad(loss_of(y), list(named.values())), strict=True))


def worst(ours: dict[str, Tensor], theirs: dict[str, Tensor], least: float = 1e-6) -> float:
    """Worst relative error of a tensor, max|a-b| / max|b|.

    Some gradients are zero but for rounding (without a clamp an mLSTM does not feel a shift of all its input gates):
    the divisor is never less than ``least`` of the largest gradient of all.
    """
    floor = least * max(float(b.abs().max()) for b in theirs.values())
    return max(float((ours[n] - b).abs().max()) / max(float(b.abs().max()), floor) for n, b in theirs.items())


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max()) / max(1e-30, float(b.detach().abs().max()))
