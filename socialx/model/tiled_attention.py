"""Tiled attention kernel with a bias per pair, used in pooling.py.

    out_i = sum_j softmax_j(q_i . k_j + bias_ij) v_j

On a CPU the tiles keep the logits for a few heads in the cache, where the logits for all windows would pass through
memory at each step. On one core, a layer with 32 windows and 207 sensors, forward and backward, runs 1.4 to 1.6 times
as fast (benchmarks/layers_cpu.py).
"""

# Shape letters: B windows, N sensors, M keys, H heads, D channels per head

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TILE_BYTES = 1 << 20  # of logits: about the second-level cache of a core


def attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attend: scaled query [B,H,N,D], key, value [B,H,M,D], bias [H,N,M] -> [B,H,N,D], softmax in the bias type."""
    in_tiles = query.device.type == "cpu" and query.dtype == key.dtype == value.dtype == bias.dtype
    if not in_tiles or torch.compiler.is_compiling():  # a compiler sees through torch's own operations alone
        return (query @ key.mT + bias).softmax(-1).to(value.dtype) @ value
    parts = [part.flatten(0, 1).contiguous() for part in (query, key, value)]
    keep = torch.is_grad_enabled() and any(part.requires_grad for part in (*parts, bias))
    return _TiledAttention.apply(*parts, bias, keep).unflatten(0, query.shape[:2])


class _TiledAttention(torch.autograd.Function):
    """Attention of query [B*H,N,D], key, value [B*H,M,D], contiguous, bias [H,N,M] -> [B*H,N,D], tile by tile.

    keep: whether to keep the weights [B*H,N,M] for the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, keep: bool) -> Tensor:
        out, tile = torch.empty_like(query), _heads_of_a_tile(bias)
        kept = bias.new_empty(len(query) if keep else tile, *bias.shape[1:])
        for first in range(0, len(query), tile):
            part, head = slice(first, first + tile), first % len(bias)
            weights = kept[part] if keep else kept
            torch.baddbmm(bias[head : head + tile], query[part], key[part].mT, out=weights)
            torch.softmax(weights, -1, out=weights)
            torch.bmm(weights, value[part], out=out[part])
        ctx.save_for_backward(query, key, value, kept)
        ctx.heads = len(bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        grad = grad.contiguous()
        d_query, d_key, d_value = (torch.empty_like(part) for part in (query, key, value))
        d_bias = weights.new_zeros(ctx.heads, *weights.shape[1:])
        tile = _heads_of_a_tile(d_bias)
        d_logits = weights.new_empty(tile, *weights.shape[1:])
        for first in range(0, len(query), tile):
            part, head = slice(first, first + tile), first % ctx.heads
            torch.bmm(weights[part].mT, grad[part], out=d_value[part])
            torch.bmm(grad[part], value[part].mT, out=d_logits)  # of the weights
            torch.ops.aten._softmax_backward_data.out(d_logits, weights[part], -1, weights.dtype, grad_input=d_logits)
            d_bias[head : head + tile] += d_logits
            torch.bmm(d_logits, key[part], out=d_query[part])
            torch.bmm(d_logits.mT, query[part], out=d_key[part])
        return d_query, d_key, d_value, d_bias, None


def _heads_of_a_tile(bias: Tensor) -> int:
    """Return how many heads a tile computes: the largest divisor of H that fits TILE_BYTES, or 1; bias [H,N,M]."""
    heads, most = len(bias), TILE_BYTES // (bias[0].numel() * bias.element_size() or 1)
    return next(tile for tile in range(heads, 0, -1) if heads % tile == 0 and (tile <= most or tile == 1))
