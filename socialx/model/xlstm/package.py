"""The xlstm package: its import, and the stack that holds the encoder's parameters."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch.utils.cpp_extension
from torch import nn

from socialx.settings.schema import ModelSettings


def build_stack(model: ModelSettings, lookback: int, heads: int) -> nn.Module:
    """Build an ``xlstm.xLSTMBlockStack``: mLSTM blocks, and sLSTM blocks with a gated feed-forward at slstm_at."""
    slstm = xlstm.sLSTMBlockConfig(
        slstm=xlstm.sLSTMLayerConfig(backend="vanilla", num_heads=heads, conv1d_kernel_size=4),
        feedforward=xlstm.FeedForwardConfig(proj_factor=1.3, act_fn="gelu"),
    )
    mlstm = xlstm.mLSTMBlockConfig(
        mlstm=xlstm.mLSTMLayerConfig(num_heads=heads, conv1d_kernel_size=4, qkv_proj_blocksize=4, proj_factor=2.0)
    )
    config = xlstm.xLSTMBlockStackConfig(
        mlstm_block=mlstm,
        slstm_block=slstm,
        context_length=lookback,  # a longer one rebuilds the package's causal mask every forward
        num_blocks=model.blocks,
        embedding_dim=model.width,
        dropout=model.dropout,
        slstm_at=sorted(set(model.slstm_at)),
    )
    return xlstm.xLSTMBlockStack(config)


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
