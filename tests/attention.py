"""The ways of dense attention against each other, on any device."""

from collections.abc import Callable

import torch
from torch import Tensor

from socialx.model.pooling import DotAttention
from tests.networks import pooling, positions


def attention_of(
    p: DotAttention, state: Tensor, attend: Callable[..., Tensor], low: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Output and gradients, by name, in float64."""
    with torch.autocast(state.device.type, dtype=low, enabled=low is not None):
        out = p.out(attend(*p.query_and_key(state), p.value(state).unflatten(-1, (p.heads, -1))).flatten(-2))
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.device)
    leaves = {"state": state, **{name: t for name, t in p.named_parameters() if t.requires_grad}}
    found = torch.autograd.grad((out.double() * weight).sum(), list(leaves.values()))
    return {"out": out.detach().double(), **{name: g.double() for name, g in zip(leaves, found, strict=True)}}


def check_attention(device: torch.device, low: torch.dtype | None, scale: float) -> None:
    """Errors of all gradients are about those of the dense sums, whose bias is float32; also where few keys count."""
    torch.manual_seed(1)
    p = pooling(positions(60), 32, neighbours=20, gate_radius_km=3.0)
    assert isinstance(p, DotAttention)
    with torch.no_grad():
        for parameter in p.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    p, state = p.to(device), scale * torch.randn(8, 60, 32).to(device)
    exact = attention_of(p.double(), state.double().requires_grad_(), p.attend_dense)
    p, state = p.float(), state.requires_grad_()
    fused, dense = (attention_of(p, state, attend, low) for attend in (p.attend_fused, p.attend_dense))
    assert {"geometry.log_radius", "geometry.log_beta", "geometry.offset_bias.2.bias"} <= set(exact)
    least = {None: 1e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}[low]  # 4 units of the last place
    for name, truth in exact.items():
        ours, theirs = (float((found[name] - truth).abs().max() / truth.abs().max()) for found in (fused, dense))
        assert ours <= max(3 * theirs, least), name
