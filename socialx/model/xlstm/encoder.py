"""xLSTM encoder shared by all sensors: the package's stack holds the parameters, an implementation runs them.

Shape letters: S sequences (windows times sensors), T tokens per sequence (lookback steps, or patches), E width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from subprocess import CalledProcessError
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from socialx.core.errors import Argument, SettingsError, in_short
from socialx.core.progress import work
from socialx.model.xlstm.exact import LayerFunctions, encode, recompute
from socialx.model.xlstm.weights import build_stack, stack_weights

USE_FUSED = f"use {Argument('model.backend', 'fused')}"
IMPLEMENTATIONS = ("auto", "reference", "fused", "triton")
# Sequences of 12 tokens at once on a CPU: one [T,S,2E] float32 tensor of 384 is 2 to 5 MB at widths 64 and 128, so a
# layer works in the cache.  Against all 3312 at once: 1.13 and 1.07 times as fast (benchmarks/encoder_cpu.py).
CPU_CHUNK = 384
LEAST_CAPABILITY = (8, 0)  # GPU capability; on earlier GPUs Triton's products bypass the matrix units
TRIED = 40  # sequences in a trial, fewer than a tile
# Allowed kernel error: a multiple of the plain form's error, which rounds about as often, or an absolute bound.
TIMES_PLAIN, LEAST_ERROR = 5, 1e-3
SMALL = 0.01  # of the largest gradient: smaller gradients may be differences of large numbers


class KernelsMissing(SettingsError, ValueError):
    """Kernels requested where they cannot run."""


class SharedEncoder(nn.Module):
    """Encoder from a sequence to its last hidden state, x [S,T,E] -> [S,E], with shared weights.

    width E and heads: E / heads >= 2 channels per head. blocks: number of blocks; slstm_at (from 0) are sLSTM with a
    gated FFN, the rest mLSTM (Beck et al. 2024, arXiv:2405.04517, section 2.4). lookback: largest T. dropout acts where
    ``xlstm.xLSTMBlockStack`` applies dropout. backend: "fused" (faster, and never waits for the device), "triton" (CUDA
    kernels), "reference" (the package's forward), or "auto": triton on CUDA where possible, else fused. Raises
    ValueError for triton elsewhere. encoder_batch: sequences per pass; ``None`` takes ``cpu_chunk`` on a CPU (measured
    fastest) and all sequences on CUDA, where the backward pass recomputes each chunk. activation_checkpointing: in
    training, keep each block's input and recompute the rest. Both leave results unchanged.

    The state_dict equals ``xlstm.xLSTMBlockStack`` with the vanilla sLSTM backend, under the prefix ``stack.``.
    """

    def __init__(
        self,
        width: int,
        blocks: int,
        slstm_at: Sequence[int],
        heads: int,
        lookback: int,
        dropout: float = 0.0,
        backend: str = "auto",
        encoder_batch: int | None = None,
        activation_checkpointing: bool = False,
        cpu_chunk: int = CPU_CHUNK,
    ) -> None:
        super().__init__()
        if backend not in IMPLEMENTATIONS:
            raise ValueError(f"backend {backend!r}: choose one of {', '.join(IMPLEMENTATIONS)}")
        if encoder_batch is not None and encoder_batch < 1:
            raise ValueError(f"encoder_batch {encoder_batch}: needs at least 1 sequence, or None to choose")
        _check_shape(width, blocks, slstm_at, heads, lookback)
        self.width, self.lookback, self.backend, self.encoder_batch = width, lookback, backend, encoder_batch
        self.activation_checkpointing, self.cpu_chunk = activation_checkpointing, cpu_chunk
        self._compiled: Callable[[Tensor], Tensor] | None = None
        self._compiled_for = 0  # sequences
        self.stack = build_stack(width, blocks, slstm_at, heads, lookback, dropout)
        self._layers: LayerFunctions | None = None
        self._no_kernels = self._float32_spill = ""  # reasons
        self._interpreted = False
        # Kernel failures by product type, '' for success; without gradients for forecasts.
        self._trials: dict[torch.dtype, str] = {}
        self._trials_without_gradients: dict[torch.dtype, str] = {}
        if backend == "triton" or (backend == "auto" and torch.cuda.is_available()):  # Triton takes a second to import
            try:
                operations = import_module("socialx.model.xlstm.operations")
            except ImportError as error:
                self._no_kernels = f"triton cannot be imported ({error})"
            else:
                weights = stack_weights(self.stack)
                self._layers, self._no_kernels = operations.LAYERS, operations.obstacle(weights, lookback) or ""
                self._float32_spill = operations.float32_obstacle(weights) or ""
                self._interpreted = operations.INTERPRETED
        if backend == "triton" and self._no_kernels:
            raise KernelsMissing("", f"backend triton cannot run ({self._no_kernels})", USE_FUSED)

    def choice(self, device: torch.device) -> tuple[str, str]:
        """Return the implementation on a device under the current autocast, and why no faster one runs, often ''.

        On CUDA the kernels are tried once per product type, see ``_failure``. Raises KernelsMissing if ``backend`` is
        triton and the kernels fail.
        """
        if self.backend not in ("auto", "triton"):
            return self.backend, ""
        if device.type != "cuda":  # kernels run in Triton's interpreter only
            return ("triton" if self.backend == "triton" and self._interpreted else "fused"), ""
        parameter = next(self.stack.parameters())
        mixed = torch.is_autocast_enabled(device.type)
        product_type = torch.get_autocast_dtype(device.type) if mixed else parameter.dtype
        reason = self._no_kernels or ("float64 parameters" if parameter.dtype == torch.float64 else "")
        if self.backend == "auto" and not mixed:  # compile only kernels in use
            reason = reason or self._float32_spill
        if not reason:
            with_gradients = torch.is_grad_enabled() or product_type in self._trials
            trials = self._trials if with_gradients else self._trials_without_gradients
            can_try = parameter.device.type == device.type and not torch.compiler.is_compiling()
            if can_try and product_type not in trials:
                trials[product_type] = self._failure(parameter)
            reason = trials.get(product_type, "")
        if self.backend == "triton" and reason:
            raise KernelsMissing("", f"backend triton cannot run ({reason})", USE_FUSED)
        return ("fused", f"Triton kernels are off: {reason}") if reason else ("triton", "")

    def _failure(self, parameter: Tensor) -> str:
        """Try the kernels on the parameter's device against plain torch. Returns the problem, or ''.

        Gradients are compared where enabled. Triton compiles a kernel at first launch, which fails, also with errors
        other than RuntimeError, for lack of a C compiler, a recent driver or shared memory on the GPU.
        """
        device, enabled = parameter.device, torch.is_grad_enabled()
        gpus = [device] if parameter.is_cuda else []
        if gpus and (reason := _gpu_obstacle(device)):
            return reason
        bar = work("compiling kernels", None, "kernels") if gpus else nullcontext()
        try:  # a forecast in inference mode may be the first to ask
            with bar, torch.inference_mode(False), torch.set_grad_enabled(enabled), torch.random.fork_rng(gpus):
                with torch.autocast(device.type, enabled=False):
                    truth = self._trial_outputs(None, torch.float64)
                plain, ours = (self._trial_outputs(layers, parameter.dtype) for layers in (None, self._layers))
                allowed = max(TIMES_PLAIN * _error(plain, truth), LEAST_ERROR)
                relative_error = _error(ours, truth)  # waits for the GPU
                if stack_weights(self.stack).drops:
                    _error(self._trial_outputs(self._layers, parameter.dtype, drops=True), truth)
        except Exception as error:  # noqa: BLE001  Triton's own errors derive from nothing more special
            return f"a trial run failed ({_cause(error)})"
        if relative_error <= allowed or not math.isfinite(allowed):  # overflow in the plain form proves nothing
            return ""
        return f"a trial run has a relative error of {relative_error:.1e}, above {allowed:.1e}"

    def _trial_outputs(self, layers: LayerFunctions | None, dtype: torch.dtype, drops: bool = False) -> list[Tensor]:
        """Return the output for made-up tokens and, where enabled, the gradients for tokens and weights, in ``dtype``.

        layers: ``None`` for plain torch. drops: with dropout. Runs on a copy of the weights: autograd state from this
        stream would keep the model's steps from being recorded.
        """
        device, enabled = next(self.stack.parameters()).device, torch.is_grad_enabled()
        stack = copy.deepcopy(self.stack).to(dtype).train(drops).requires_grad_(enabled)
        tokens = torch.randn(TRIED, self.lookback, self.width, generator=torch.Generator().manual_seed(0))
        x = tokens.to(device, dtype).requires_grad_(enabled)
        y = encode(stack_weights(stack), x, layers=layers)
        if not enabled:
            return [y]
        loss = (y.double() * torch.linspace(-1, 1, y.numel(), device=device).view_as(y)).sum()
        return [y.detach(), *torch.autograd.grad(loss, [x, *stack.parameters()])]

    def forward(self, x: Tensor) -> Tensor:
        """Map x [S,T,E] -> [S,E], the stack's last output step; T may be up to lookback."""
        if x.dim() != 3 or x.shape[2] != self.width:
            raise ValueError(f"x has shape {tuple(x.shape)}: expected [sequences, lookback, {self.width}]")
        if not 1 <= x.shape[1] <= self.lookback:
            raise ValueError(f"x has {x.shape[1]} steps: this encoder was built for 1 to {self.lookback}")
        if x.device.type != "cpu":
            return self.in_chunks(x, self.encoder_batch, rerun=True)
        if self._compiled is not None and self.training and torch.is_grad_enabled():
            return self._in_compiled_chunks(self._compiled, x)
        # A traced loop over chunks would fix the number of sequences.
        encoder_batch = None if torch.compiler.is_compiling() else self.encoder_batch or self.cpu_chunk
        return self.in_chunks(x, encoder_batch, rerun=False)

    def compile_chunks(self, mode: str | None) -> None:
        """Compile the chunks in a CPU training step with a torch.compile mode; ``None`` runs plain chunks.

        Compiling the whole model computes all sequences at once and leaves the cache: 0.9 times the plain speed.
        Compiled chunks are 1.4 times as fast (docs/performance.md).
        """
        self._compiled = None if mode is None else torch.compile(self._run_fused, dynamic=False, mode=mode)
        self._compiled_for = 0

    def _in_compiled_chunks(self, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Map x [S,T,E] -> [S,E] in chunks as large as in the first batch: another size would compile again."""
        sequences = len(x)
        if not self._compiled_for:
            chunks = -(-sequences // (self.encoder_batch or self.cpu_chunk))
            self._compiled_for = -(-sequences // chunks)
        filled = F.pad(x, (0, 0, 0, 0, 0, -sequences % self._compiled_for))
        return torch.cat([run(part) for part in filled.split(self._compiled_for)])[:sequences]

    def in_chunks(self, x: Tensor, encoder_batch: int | None, rerun: bool) -> Tensor:
        """Map x [S,T,E] -> [S,E], ``encoder_batch`` sequences at a time; ``None`` for all at once.

        rerun: keep only x, and run each chunk again in the backward pass. Memory then holds one chunk's
        activations, at the cost of an extra forward pass.
        """
        run = self._implementation(x)
        if encoder_batch is None or x.shape[0] <= encoder_batch:
            return run(x)
        drops = stack_weights(self.stack).drops
        return torch.cat([recompute(run, part, drops) if rerun else run(part) for part in x.split(encoder_batch)])

    def _implementation(self, x: Tensor) -> Callable[..., Tensor]:
        chosen = self.choice(x.device)[0]
        return {"reference": self._run_reference, "fused": self._run_fused, "triton": self._run_triton}[chosen]

    def extra_repr(self) -> str:
        """Return what ``print`` shows of this module: the arguments that the stack hides."""
        names = ("lookback", "backend", "encoder_batch", "activation_checkpointing")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def _run_reference(self, x: Tensor) -> Tensor:
        stack: Any = self.stack
        if not (self.activation_checkpointing and self.training):
            return stack(x)[:, -1]
        drops = stack_weights(stack).drops
        for block in stack.blocks:
            x = recompute(block, x, drops)
        return stack.post_blocks_norm(x)[:, -1]

    def _run_fused(self, x: Tensor) -> Tensor:
        again = self.activation_checkpointing and self.training
        return encode(stack_weights(self.stack), x, activation_checkpointing=again)

    def _run_triton(self, x: Tensor) -> Tensor:
        """Map x [S,T,E] -> [S,E] by the kernels. On a CPU this needs Triton's interpreter, TRITON_INTERPRET=1."""
        again = self.activation_checkpointing and self.training
        return encode(stack_weights(self.stack), x, activation_checkpointing=again, layers=self._layers)


def _gpu_obstacle(gpu: torch.device) -> str:
    """Return why the kernels do not support a GPU, or ''."""
    if torch.version.hip:
        return "this torch is for AMD GPUs, and the kernels are for NVIDIA"
    major, minor = torch.cuda.get_device_capability(gpu)
    least = ".".join(map(str, LEAST_CAPABILITY))
    return "" if (major, minor) >= LEAST_CAPABILITY else f"compute capability {major}.{minor}: needs {least}"


def _cause(error: Exception) -> str:
    """Return why a kernel failed to compile or run, and a remedy."""
    missing = "there is no C compiler" if "Failed to find C compiler" in str(error) else ""
    if isinstance(error, CalledProcessError):
        missing = "the C compiler fails, as it does without Python.h"
    return f"{missing}: apt install gcc python3-dev" if missing else in_short(error)


def _error(outputs: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """Return the largest relative error over an output and its gradients; small gradients count against the largest."""
    errors = torch.stack([(a.double() - b).abs().max() for a, b in zip(outputs, truth, strict=True)])
    sizes = torch.stack([tensor.abs().max() for tensor in truth])
    sizes[1:].clamp_(min=SMALL * sizes.max())
    return float((errors / sizes).max())


def _check_shape(width: int, blocks: int, slstm_at: Sequence[int], heads: int, lookback: int) -> None:
    if min(width, blocks, heads, lookback) < 1:
        raise ValueError(f"width {width}, blocks {blocks}, heads {heads}, lookback {lookback}: all must be at least 1")
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
