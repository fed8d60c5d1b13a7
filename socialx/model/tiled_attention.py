"""Tiled attention kernel with a bias per pair, used in pooling.py.

    out_i = sum_j softmax_j(q_i . k_j + bias_ij) v_j

On a CPU the tiles keep the logits for a few heads in the cache, where the logits for all windows would pass through
memory at each step. On one core, a layer with 32 windows and 207 sensors, forward and backward, runs 1.4 to 1.6 times
as fast (benchmarks/pooling_cpu.py).
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
    if not in_tiles or torch.compiler.is_exporting():  # an exported model knows torch's own operations alone
        return (query @ key.mT + bias).softmax(-1).to(value.dtype) @ value
    parts = [part.flatten(0, 1).contiguous() for part in (query, key, value)]
    keep = torch.is_grad_enabled() and any(part.requires_grad for part in (*parts, bias))
    # The first call of the operation loads torch's compiler, which takes longer than a forecast.
    compute: Any = tiled_attention if keep or torch.compiler.is_compiling() else attend_tile_by_tile
    out: Tensor = compute(*parts, bias, keep)[0]
    return out.unflatten(0, query.shape[:2])


def attend_tile_by_tile(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """Attend: query [B*H,N,D], key, value [B*H,M,D], contiguous, bias [H,N,M] -> out [B*H,N,D], weights [B*H,N,M].

    keep: whether to keep the weights for the backward pass; else the weights are empty.
    """
    out, tile = torch.empty_like(query), _heads_of_a_tile(bias)
    kept = bias.new_empty(len(query) if keep else 0, *bias.shape[1:])
    buffer = None if keep else bias.new_empty(tile, *bias.shape[1:])
    for first in range(0, len(query), tile):
        part, head = slice(first, first + tile), first % len(bias)
        weights = kept[part] if buffer is None else buffer
        torch.baddbmm(bias[head : head + tile], query[part], key[part].mT, out=weights)
        torch.softmax(weights, -1, out=weights)
        torch.bmm(weights, value[part], out=out[part])
    return out, kept


tiled_attention = torch.library.custom_op("socialx::attention", attend_tile_by_tile, mutates_args=())


@tiled_attention.register_fake
def _tiled_outputs(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), bias.new_empty(len(query) if keep else 0, *bias.shape[1:])


@torch.library.custom_op("socialx::attention_backward", mutates_args=())
def tiled_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, weights: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients for query, key, value, bias from grad, the output's [B*H,N,D]; weights [B*H,N,M]; heads: H."""
    grad = grad.contiguous()
    d_query, d_key, d_value = (torch.empty_like(part) for part in (query, key, value))
    d_bias = weights.new_zeros(heads, *weights.shape[1:])
    tile = _heads_of_a_tile(d_bias)
    d_logits = weights.new_empty(tile, *weights.shape[1:])
    for first in range(0, len(query), tile):
        part, head = slice(first, first + tile), first % heads
        torch.bmm(weights[part].mT, grad[part], out=d_value[part])
        torch.bmm(grad[part], value[part].mT, out=d_logits)  # of the weights
        torch.ops.aten._softmax_backward_data.out(d_logits, weights[part], -1, weights.dtype, grad_input=d_logits)
        d_bias[head : head + tile] += d_logits
        torch.bmm(d_logits, key[part], out=d_query[part])
        torch.bmm(d_logits.mT, query[part], out=d_key[part])
    return d_query, d_key, d_value, d_bias


@tiled_attention_backward.register_fake
def _tiled_gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, weights: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_query, d_key, d_value = (torch.empty_like(part) for part in (query, key, value))
    return d_query, d_key, d_value, weights.new_empty(heads, *weights.shape[1:])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, bias, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, value, output[1])
    ctx.heads = len(bias)


def _gradients(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None, None
    return *tiled_attention_backward(grad, *ctx.saved_tensors, ctx.heads), None


tiled_attention.register_autograd(_gradients, setup_context=_keep)


def _work(query: torch.Size, key: torch.Size, *_: Any, **__: Any) -> int:
    """Return the operation count for both forward products, from the shapes, for torch's FlopCounterMode."""
    return 4 * query.numel() * key[1]


def _work_backward(grad: torch.Size, query: torch.Size, key: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * _work(query, key)


# What torch's FlopCounterMode cannot see: how many operations these two do.
WORK = {torch.ops.socialx.attention: _work, torch.ops.socialx.attention_backward: _work_backward}


def _heads_of_a_tile(bias: Tensor) -> int:
    """Return how many heads a tile computes: the largest divisor of H that fits TILE_BYTES, or 1; bias [H,N,M]."""
    heads, most = len(bias), TILE_BYTES // (bias[0].numel() * bias.element_size() or 1)
    return next(tile for tile in range(heads, 0, -1) if heads % tile == 0 and (tile <= most or tile == 1))
