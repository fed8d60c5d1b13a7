"""Attention with a bias of each pair, the same function in two ways.

    out_i = sum_j softmax_j(q_i . k_j + bias_ij) v_j

On a CPU it is computed tile by tile: the logits of a few heads of one window stay in the cache, where the logits of all
windows move through memory at each of its steps.  One layer of 32 windows of 207 sensors, forward and backward, on one
core: 1.4 to 1.6 times as fast (benchmarks/pooling_cpu.py).
"""

# Shape letters: B windows, N sensors, M keys, H heads, D channels per head

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE_BYTES = 1 << 20  # of logits: about the second-level cache of a core


def attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """query [B,H,N,D], key and value [B,H,M,D], bias [H,N,M] -> [B,H,N,D].

    The query is scaled already.  The softmax has the type of the bias.
    """
    in_tiles = query.device.type == "cpu" and query.dtype == key.dtype == value.dtype == bias.dtype
    if not in_tiles or torch.compiler.is_compiling():
        return (query @ key.mT + bias).softmax(-1).to(value.dtype) @ value
    out: Tensor = _Tiled.apply(*(part.flatten(0, 1) for part in (query, key, value)), bias)
    return out.unflatten(0, query.shape[:2])


class _Tiled(torch.autograd.Function):
    """query [B*H,N,D], key and value [B*H,M,D], bias [H,N,M] -> [B*H,N,D]; the weights are kept for the backward."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        ctx.tile = tile = _heads_of_a_tile(bias)
        out, keep = torch.empty_like(query), any(ctx.needs_input_grad)
        kept = bias.new_empty(len(query) if keep else tile, *bias.shape[1:])
        for first in range(0, len(query), tile):
            part, head = slice(first, first + tile), first % len(bias)
            weights = kept[part] if keep else kept
            torch.baddbmm(bias[head : head + tile], query[part], key[part].mT, out=weights)
            torch.softmax(weights, -1, out=weights)
            torch.bmm(weights, value[part], out=out[part])
        if keep:
            ctx.save_for_backward(query, key, value, kept)
        ctx.heads = len(bias)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        query, key, value, kept = ctx.saved_tensors
        grad, tile = grad.contiguous(), ctx.tile
        d_query, d_key, d_value = (torch.empty_like(part) for part in (query, key, value))
        d_bias = kept.new_zeros(ctx.heads, *kept.shape[1:])
        d_logits = kept.new_empty(tile, *kept.shape[1:])
        for first in range(0, len(query), tile):
            part, head = slice(first, first + tile), first % ctx.heads
            weights = kept[part]
            torch.bmm(weights.mT, grad[part], out=d_value[part])
            torch.bmm(grad[part], value[part].mT, out=d_logits)  # of the weights
            torch.ops.aten._softmax_backward_data.out(d_logits, weights, -1, weights.dtype, grad_input=d_logits)
            d_bias[head : head + tile] += d_logits
            torch.bmm(d_logits, key[part], out=d_query[part])
            torch.bmm(d_logits.mT, query[part], out=d_key[part])
        return d_query, d_key, d_value, d_bias


def _heads_of_a_tile(bias: Tensor) -> int:
    """As many heads of one window as fit, at least one; they divide the number of heads."""
    heads, most = len(bias), TILE_BYTES // (bias[0].numel() * bias.element_size() or 1)
    return next(tile for tile in range(heads, 0, -1) if heads % tile == 0 and (tile <= most or tile == 1))
