"""Adapter to the xlstm package: builds its stack and names its tensors.

Shape letters: E width, I inner width of an mLSTM block, H heads, D head width (E / H), K convolution taps, G channels
per small mLSTM projection (4), U inner feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.utils.cpp_extension
from torch import Tensor, nn

from socialx.core.precision import factor
from socialx.settings.schema import ModelSettings


@dataclass(frozen=True)
class Norm:
    """Layer norm over the last dimension, or over a head's channels: scale [E] or [I], ``None`` for 1."""

    scale: Tensor | None
    bias: Tensor | None
    eps: float


@dataclass(frozen=True)
class Convolution:
    """Causal convolution per channel C: taps [K,C], oldest step first, and bias [C]."""

    taps: Tensor
    bias: Tensor


@dataclass(frozen=True)
class MLSTM:
    """Weights in an ``mLSTMLayer``; query, key and value [I/G,G,G] are block-diagonal."""

    heads: int
    inner: int  # I
    up: Tensor  # [2I,E]: the rows of the channels, then those of the output gate
    convolution: Convolution
    query: Tensor
    key: Tensor
    value: Tensor
    input_gate: Tensor  # [H,3I]: of query, key and value
    input_gate_bias: Tensor  # [H]
    forget_gate: Tensor  # [H,3I]
    forget_gate_bias: Tensor  # [H]
    norm: Norm  # per head
    skip: Tensor  # [I]
    down: Tensor  # [E,I]
    dropout: float  # the share that is dropped now: 0 outside training mode


@dataclass(frozen=True)
class SLSTM:
    """Weights in an ``sLSTMLayer``; each gate [H,D,D] has a matrix per head."""

    heads: int
    convolution: Convolution | None
    input_gate: Tensor
    forget_gate: Tensor
    candidate: Tensor  # the package's zgate
    output_gate: Tensor
    recurrent: Tensor  # [H,4D,D]: input, forget, candidate, output
    bias: Tensor  # [4E], in the same order
    norm: Norm  # per head
    dropout: float  # the share that is dropped now: 0 outside training mode


@dataclass(frozen=True)
class FeedForward:
    """Gated feed-forward weights: ``down(activation(gate) * value)``, with gate and value as halves of ``up``."""

    norm: Norm
    up: Tensor  # [2U,E]
    up_bias: Tensor | None
    activation: Callable[[Tensor], Tensor]
    down: Tensor  # [E,U]
    down_bias: Tensor | None
    dropout: float  # the share that is dropped now: 0 outside training mode


@dataclass(frozen=True)
class StackBlock:
    """``xLSTMBlock``: a layer behind its norm, then an optional feed-forward part, both added to the input."""

    norm: Norm
    layer: MLSTM | SLSTM
    feed_forward: FeedForward | None


@dataclass(frozen=True)
class StackWeights:
    """All tensors of an ``xlstm.xLSTMBlockStack``, shared with the stack, so that gradients flow."""

    blocks: tuple[StackBlock, ...]
    norm: Norm | None  # after the last block


def stack_weights(stack: nn.Module) -> StackWeights:
    """Return a stack's tensors, factors of products as autocast casts them; ValueError if ``exact`` would differ."""
    package_blocks: Any = stack.blocks
    last: Any = stack.post_blocks_norm
    blocks = []
    for block in package_blocks:
        layer = _mlstm(block.xlstm) if block.config.mlstm is not None else _slstm(block.xlstm)
        blocks.append(StackBlock(_norm(block.xlstm_norm), layer, None if block.ffn is None else _feed_forward(block)))
    return StackWeights(tuple(blocks), None if isinstance(last, nn.Identity) else _norm(last))


def build_stack(model: ModelSettings, lookback: int, heads: int) -> nn.Module:
    """Build an ``xlstm.xLSTMBlockStack``: mLSTM blocks, and sLSTM blocks with a gated feed-forward at slstm_at."""
    slstm = xlstm.sLSTMBlockConfig(
        slstm=xlstm.sLSTMLayerConfig(backend="vanilla", num_heads=heads, conv1d_kernel_size=4),
        feedforward=xlstm.FeedForwardConfig(proj_factor=1.3, act_fn="gelu"),
    )
    mlstm = xlstm.mLSTMBlockConfig(
        mlstm=xlstm.mLSTMLayerConfig(num_heads=heads, conv1d_kernel_size=4, qkv_proj_blocksize=4, proj_factor=2.0)
    )
    return xlstm.xLSTMBlockStack(
        xlstm.xLSTMBlockStackConfig(
            mlstm_block=mlstm,
            slstm_block=slstm,
            context_length=lookback,  # a longer one rebuilds the package's causal mask every forward
            num_blocks=model.blocks,
            embedding_dim=model.width,
            dropout=model.dropout,
            slstm_at=sorted(set(model.slstm_at)),
        )
    )


def _import_xlstm() -> Any:
    """Import the xlstm package, also where a GPU is visible and the CUDA toolkit is absent.

    The import joins ``CUDA_HOME``, there ``None``, to a path, and PyTorch raises OSError. Any string will do: the path
    only serves to compile the package's CUDA backend, unused here.
    """
    extension = torch.utils.cpp_extension
    home = extension.CUDA_HOME
    extension.CUDA_HOME = home or "/usr/local/cuda"
    try:
        return import_module("xlstm")
    finally:
        extension.CUDA_HOME = home


xlstm = _import_xlstm()


def _mlstm(layer: Any) -> MLSTM:
    """Return the weights of the package's ``mLSTMLayer``; ValueError for options that ``exact`` lacks."""
    heads, inner, size = layer.config.num_heads, layer.config._inner_embedding_dim, layer.q_proj.weight.shape[-1]
    if layer.config.bias:
        raise ValueError("mLSTM block with bias=True: only bias=False, the package's default, is supported")
    if inner // heads % size:
        raise ValueError(
            f"mLSTM head width {inner // heads} is no multiple of qkv_proj_blocksize {size}: choose other heads"
        )
    cell = layer.mlstm_cell
    return MLSTM(
        heads=heads,
        inner=inner,
        up=factor(layer.proj_up.weight),
        convolution=_convolution(layer.conv1d),
        query=factor(layer.q_proj.weight),
        key=factor(layer.k_proj.weight),
        value=factor(layer.v_proj.weight),
        input_gate=factor(cell.igate.weight),
        input_gate_bias=cell.igate.bias,
        forget_gate=factor(cell.fgate.weight),
        forget_gate_bias=cell.fgate.bias,
        norm=_norm(cell.outnorm),
        skip=layer.learnable_skip,
        down=factor(layer.proj_down.weight),
        dropout=_dropout(layer.dropout),
    )


def _slstm(layer: Any) -> SLSTM:
    """Return the weights of the package's ``sLSTMLayer``; ValueError for options that ``exact`` lacks."""
    config = layer.config
    if config.backend != "vanilla" or config.function != "slstm":
        raise ValueError(
            f"sLSTM backend {config.backend!r}, function {config.function!r}: its parameters have another layout; "
            "build the stack with backend='vanilla', function='slstm'"
        )
    return SLSTM(
        heads=config.num_heads,
        convolution=_convolution(layer.conv1d) if config.conv1d_kernel_size > 0 else None,
        input_gate=factor(layer.fgate.weight),  # the package feeds fgate to the input gate and igate to the forget gate
        forget_gate=factor(layer.igate.weight),
        candidate=factor(layer.zgate.weight),
        output_gate=factor(layer.ogate.weight),
        recurrent=factor(layer.slstm_cell._recurrent_kernel_),
        bias=layer.slstm_cell._bias_,
        norm=_norm(layer.group_norm),
        dropout=_dropout(layer.dropout),
    )


def _feed_forward(block: Any) -> FeedForward:
    part = block.ffn
    return FeedForward(
        norm=_norm(block.ffn_norm),
        up=factor(part.proj_up.weight),
        up_bias=part.proj_up.bias,
        activation=part.act_fn,
        down=factor(part.proj_down.weight),
        down_bias=part.proj_down.bias,
        dropout=_dropout(part.dropout),
    )


def _norm(norm: Any) -> Norm:
    return Norm(norm.weight_proxy, norm.bias, norm.eps)


def _convolution(convolution: Any) -> Convolution:
    return Convolution(convolution.conv.weight[:, 0].t(), convolution.conv.bias)


def _dropout(part: Any) -> float:
    return part.p if part.training else 0.0
