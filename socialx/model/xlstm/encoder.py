"""xLSTM encoder shared by all sensors: the package's stack holds the parameters, exact.py or the package runs them.

Shape letters: S sequences (windows times sensors), T tokens per sequence (lookback steps, or patches), E width.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from socialx.model.xlstm.exact import encode, recompute
from socialx.model.xlstm.package import build_stack
from socialx.settings.schema import HEADS, ModelSettings

# Sequences of 12 tokens at once on a CPU: one [T,S,2E] float32 tensor of 384 is 2 to 5 MB at widths 64 and 128, so a
# layer works in the cache.  Against all 3312 at once: 1.13 and 1.07 times as fast (benchmarks/layers_cpu.py).
CPU_CHUNK = 384


class SharedEncoder(nn.Module):
    """Encoder from a sequence to its last hidden state, x [S,T,E] -> [S,E], with shared weights.

    Reads the settings ``width`` (E), ``blocks``, ``slstm_at``, ``dropout``, ``backend``,
    ``encoder_batch`` and ``activation_checkpointing``. Blocks at slstm_at are sLSTM with a gated FFN, the rest mLSTM
    (Beck et al. 2024, arXiv:2405.04517, section 2.4). dropout acts where ``xlstm.xLSTMBlockStack`` applies dropout. The
    fused backend is faster than the reference, the package's forward, and never waits for the device. encoder_batch
    ``None`` takes ``cpu_chunk`` sequences at once on a CPU (measured fastest), and all on CUDA, where the
    backward pass recomputes each chunk. Neither that nor activation_checkpointing changes results.

    The state_dict equals ``xlstm.xLSTMBlockStack`` with the vanilla sLSTM backend, under the prefix ``stack.``.
    """

    def __init__(self, model: ModelSettings, lookback: int, heads: int = HEADS) -> None:
        """lookback: largest T. heads: of every block, with at least two channels each."""
        super().__init__()
        _check_sizes(model, heads)
        self.width, self.lookback = model.width, lookback
        self.backend, self.encoder_batch = model.backend, model.encoder_batch
        self.activation_checkpointing = model.activation_checkpointing
        self.cpu_chunk = CPU_CHUNK * model.patch  # as many steps
        self.stack = build_stack(model, lookback, heads)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [S,T,E] -> [S,E], the stack's last output step; T may be up to lookback."""
        if x.dim() != 3 or x.shape[2] != self.width:
            raise ValueError(f"x has shape {tuple(x.shape)}: expected [sequences, lookback, {self.width}]")
        if not 1 <= x.shape[1] <= self.lookback:
            raise ValueError(f"x has {x.shape[1]} steps: this encoder was built for 1 to {self.lookback}")
        if x.device.type != "cpu":
            return self.in_chunks(x, self.encoder_batch, rerun=True)
        # A traced loop over chunks would fix the number of sequences.
        encoder_batch = None if torch.compiler.is_compiling() else self.encoder_batch or self.cpu_chunk
        return self.in_chunks(x, encoder_batch, rerun=False)

    def in_chunks(self, x: Tensor, encoder_batch: int | None, rerun: bool) -> Tensor:
        """Map x [S,T,E] -> [S,E], ``encoder_batch`` sequences at a time; ``None`` for all at once.

        rerun: keep only x, and run each chunk again in the backward pass. Memory then holds one chunk's
        activations, at the cost of an extra forward pass.
        """
        again = self.activation_checkpointing and self.training
        fused = partial(encode, self.stack, activation_checkpointing=again)
        run = self._run_reference if self.backend == "reference" else fused
        if encoder_batch is None or x.shape[0] <= encoder_batch:
            return run(x)
        return torch.cat([recompute(run, part) if rerun else run(part) for part in x.split(encoder_batch)])

    def _run_reference(self, x: Tensor) -> Tensor:
        stack: Any = self.stack
        if not (self.activation_checkpointing and self.training):
            return stack(x)[:, -1]
        for block in stack.blocks:
            x = recompute(block, x)
        return stack.post_blocks_norm(x)[:, -1]


def _check_sizes(model: ModelSettings, heads: int) -> None:
    width, blocks, slstm_at = model.width, model.blocks, model.slstm_at
    if width % heads:
        raise ValueError(f"width {width} is not divisible by {heads} heads: try width {-(-width // heads) * heads}")
    if width // heads < 2:
        raise ValueError(f"width {width} over {heads} heads leaves {width // heads} channel per head: needs at least 2")
    outside = [index for index in slstm_at if index not in range(blocks)]
    if outside:
        raise ValueError(
            f"slstm_at {outside} is beyond the last block, {blocks - 1}, counted from 0: set both together"
        )
    inner = -(-2 * width // 64) * 64  # as the package rounds an mLSTM block
    if len(set(slstm_at)) < blocks and inner % (4 * heads):
        raise ValueError(
            f"{heads} heads do not divide the inner width {inner} of an mLSTM block into multiples of 4: "
            "use a power of two"
        )
