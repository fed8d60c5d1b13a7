"""Layers for ``exact.encode`` on the Triton kernels, with gradients and launches.

Shape letters as in exact.py; C is I for an mLSTM block and E for an sLSTM block. Three operations: an mLSTM between its
projections, an sLSTM from normed input to normed output, and the sum and norm between layers. torch.compile treats the
first two as opaque and writes the third itself. The operations can be recorded in a CUDA graph, never wait for the
device, and are compiled once for any number of sequences.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from socialx.model.xlstm import cell_kernels as cells
from socialx.model.xlstm import convolution_kernels as convolution
from socialx.model.xlstm import exact
from socialx.model.xlstm import residual_kernels as residual
from socialx.model.xlstm.exact import LayerFunctions, fold_weights
from socialx.model.xlstm.weights import MLSTM, SLSTM, Convolution, Norm, StackWeights

LONGEST = 64  # steps
WIDTHS = (16, 32, 64, 128)  # of a head
MOST_HEADS = convolution.GATE_TILE.value // 2
INTERPRETED: bool = triton.knobs.runtime.interpret  # TRITON_INTERPRET=1, which Triton reads when a kernel is decorated


def obstacle(weights: StackWeights, lookback: int) -> str | None:
    """Return why the kernels cannot run these weights over lookback steps, or ``None``."""
    if lookback > LONGEST:
        return f"a lookback of {lookback} is longer than {LONGEST} steps"
    if weights.dtype == torch.float64:
        return "float64 parameters"
    for number, block in enumerate(weights.blocks):
        layer, reason = block.layer, ""
        taps = 0 if layer.convolution is None else len(layer.convolution.taps)
        if layer.head_width not in WIDTHS:
            reason = f"heads of {layer.head_width} channels: needs {', '.join(map(str, WIDTHS))}"
        elif layer.heads > MOST_HEADS:
            reason = f"{layer.heads} heads: needs at most {MOST_HEADS}"
        elif not 1 <= taps <= convolution.TAPS.value:
            reason = f"convolution over {taps} steps: needs 1 to {convolution.TAPS.value}"
        elif isinstance(layer, MLSTM) and layer.query.shape[-1] != 4:
            reason = f"qkv_proj_blocksize {layer.query.shape[-1]}: needs 4"
        if reason:
            return f"block {number}: {reason}"
    return None


def float32_obstacle(weights: StackWeights) -> str | None:
    """Return why the kernels are slow for these weights without autocast, or ``None``.

    Matrices and sums for a wide head exceed the chip in float32: heads with 64 channels spill 4 KB per thread, and
    heads with 128 need more shared memory than exists (benchmarks/results/kernels_compile.md).
    """
    widest = max((b.layer.head_width for b in weights.blocks if isinstance(b.layer, SLSTM)), default=0)
    if widest <= 32:
        return None
    return f"sLSTM heads of {widest} channels spill in float32: a mixed precision has the kernels"


def launch_options(kernel: str, cell: str, width: int, steps: int, size: int) -> dict[str, Any]:
    """Return launch keywords for a kernel by name and cell (mlstm, slstm): width channels a head, size bytes a number.

    ROWS: rows per program, whole sequences of ``steps``, a power of two; or N: sequences; W: channels. Chosen for few
    issued instructions and zero spills for heads up to 32, counted by benchmarks/compile_report.py, unmeasured on any
    GPU. Registers are bounded in half types only, because float32 needs all of them.
    """
    half, rows, channels = size == 2, max(triton.next_power_of_2(steps), 16), min(width, 32)
    options: dict[str, Any] = {"num_warps": 4, "num_stages": 1}
    registers = 0  # of a thread, at most; 0: no bound
    if kernel == "conv_backward":
        options |= {"N": 16, "W": channels}
        if cell == "mlstm":
            options |= {"W": 16, "num_warps": 1 if half else 4}
            registers = 168
    elif kernel.startswith("slstm"):
        forward = kernel == "slstm_forward"
        options |= {"N": 16, "HOLD": width <= (64 if forward else 32), "num_warps": min(width // 2, 16)}
        if half:
            options["num_warps"] = 1 if width == 16 else width // 8
            registers = ({32: 72, 64: 80} if forward else {32: 128, 64: 128}).get(width, 0)
    elif kernel == "mlstm_forward":
        options |= {"ROWS": rows, "num_warps": _warps(rows * width // 512)}
    elif kernel == "mlstm_backward":
        large = half and width >= 64
        options |= {"ROWS": rows, "num_warps": _warps(rows * width // (512 if large else 256))}
        registers = 168 if large else 96 if width == 32 else 128
    elif cell == "mlstm":
        options |= {"ROWS": LONGEST, "W": channels, "num_warps": 4 if half and channels == 16 else 8}
    else:
        options |= {"ROWS": rows, "W": channels, "num_warps": _warps(rows * channels // 256)}
    options["maxnreg"] = registers if half and registers else None
    return options


def _warps(wanted: int) -> int:
    return max(1, min(wanted, 16))


def _plan(kernel: str, cell: str, x: Tensor, heads: int, width: int) -> tuple[int, dict[str, Any]]:
    """Return the number of sequence groups and launch keywords for x [T,S,...]; kernel, cell: as ``launch_options``."""
    steps, sequences = x.shape[:2]
    options = launch_options(kernel, cell, width, steps, x.element_size())
    group = options["ROWS"] // steps if "ROWS" in options else options["N"]
    if "W" in options:
        options["W"] = min(options["W"], width)
    return triton.cdiv(sequences, group), {"T": steps, "H": heads, "D": width, **options}


# --- the layers -----------------------------------------------------------------------------------------------------


def _mlstm(layer: MLSTM, x: Tensor, last: bool) -> Tensor:
    """Map x [T,S,E] -> [Q,S,E] as the package's ``mLSTMLayer``, apart from dropout; last: Q = 1, the last step."""
    x, z, weight = _low(x), None, layer.up
    if last:
        weight, weight_z = weight.split(layer.inner)
        z = F.linear(x[-1:], weight_z)
    u = F.linear(x, weight)
    with torch.autocast(x.device.type, enabled=False):
        query_key, gate_y, gate_x = fold_weights(layer)
        blocks = [block.permute(2, 0, 1).flatten(1) for block in (query_key, layer.value)]  # [4,I]
        skip_and_norm = [layer.skip[None], _scale(layer)[None]]
        table = torch.cat([*_taps(layer.convolution), *blocks, gate_y, gate_x, *skip_and_norm]).float()
        bias = torch.cat([layer.input_gate_bias, layer.forget_gate_bias]).float()
    h = torch.ops.socialx.mlstm(u, z, table, layer.heads, bias, layer.norm.eps)[0]
    return F.linear(h, layer.down)


def _slstm(layer: SLSTM, x: Tensor, last: bool) -> Tensor:
    """Map x [T,S,E] -> [Q,S,E] as the package's ``sLSTMLayer``; last: Q = 1, the last step."""
    x, heads, norm = _low(x), layer.heads, layer.norm
    table = torch.cat([*_taps(layer.convolution), _scale(layer)[None]]).float()
    weight = torch.cat([layer.input_gate, layer.forget_gate, layer.candidate, layer.output_gate], 1)  # [H,4D,D]
    keep, factor = _draw_mask(x[-1:] if last else x, layer.dropout)
    bias = layer.bias.float()
    return torch.ops.socialx.slstm(x, heads, last, table, weight, layer.recurrent, bias, keep, norm.eps, factor)[0]


def _add_norm(norm: Norm, x: Tensor, y: Tensor | None, drop: float | None) -> tuple[Tensor, Tensor]:
    """Compute ``exact.add_norm`` (x + y, and the norm in product type); plain torch under torch.compile, to fuse."""
    if norm.scale is None or norm.bias is not None or torch.compiler.is_compiling():
        return exact.add_norm(norm, x, y, drop)
    device = x.device.type
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    if y is None:
        return _FirstNorm.apply(x, norm.scale, norm.eps, low)
    return torch.ops.socialx.add_norm(x, y, *_draw_mask(y, drop), norm.scale, norm.eps, low)


def _dropout(x: Tensor, drop: float) -> Tensor:
    """Drop the share drop of x by the mask that ``_add_norm`` would draw, so that checkpointing changes no result."""
    keep, factor = _draw_mask(x, drop)
    return x if keep is None else torch.where(keep, x * factor, 0.0)


LAYERS = LayerFunctions(_mlstm, _slstm, _add_norm, _dropout)


def _draw_mask(x: Tensor, drop: float | None) -> tuple[Tensor | None, float]:
    """Return the dropout mask for x, bool (``None`` keeps all), and the factor 1 / (1 - drop) for kept values."""
    if not drop:
        return None, 1.0
    return torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1 - drop), 1 / (1 - drop)


def _scale(layer: MLSTM | SLSTM) -> Tensor:
    """Return the factor in the norm per head, [C]; 1 if the norm lacks a scale."""
    scale = layer.norm.scale
    return layer.input_gate.new_ones(layer.heads * layer.head_width) if scale is None else scale


def _taps(conv: Convolution | None) -> tuple[Tensor, Tensor]:
    """Return weights of the steps t - 3 to t, [4,C], and the bias, [1,C]. Raises ValueError without a convolution."""
    if conv is None:
        raise ValueError("the Triton kernels need a convolution: see unsupported")
    return F.pad(conv.taps, (0, 0, 4 - len(conv.taps), 0)), conv.bias[None]


def _low(x: Tensor) -> Tensor:
    """Return x in the type of matrix products under autocast, else unchanged."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


# --- the operations: each is followed by the shapes of its outputs, which it allocates by the same function ---------


@torch.library.custom_op("socialx::mlstm", mutates_args=())
def mlstm(
    u: Tensor, z: Tensor | None, table: Tensor, heads: int, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Map u [T,S,2I], channels and output gates, -> h [T,S,I]; or u [T,S,I] and the last step's z [1,S,I] -> h [1,S,I].

    table [15+4H,I] float32: the rows in convolution_kernels.py, then skip and norm; bias [2H] float32. Also returns
    queries, keys and values [T,S,I] and the gates [T,S,2H], float32, for the backward.
    """
    h, queries, keys, values, gates = _mlstm_outputs(u, z, table, heads)
    u, (sequences, inner) = u.contiguous(), h.shape[1:]
    small_weights, (skip, norm) = table[:-2], table[-2:]
    last, z = z is not None, u[..., inner:] if z is None else z.contiguous()
    with torch.cuda.device_of(u):
        groups, options = _plan("conv_forward", "mlstm", u, heads, inner // heads)
        conv = convolution.conv_forward[(groups,)]
        conv(u, small_weights, bias, queries, keys, values, gates, sequences, X=u.shape[2], **options)
        groups, options = _plan("mlstm_forward", "mlstm", u, heads, inner // heads)
        cell = cells.mlstm_forward[(groups * heads,)]
        cell(queries, keys, values, gates, z, skip, norm, h, sequences, eps, Z=z.stride(1), LAST=last, **options)
    return h, queries, keys, values, gates


@mlstm.register_fake
def _mlstm_outputs(u: Tensor, z: Tensor | None, table: Tensor, heads: int, *_: Any) -> tuple[Tensor, ...]:
    """Return empty outputs of ``mlstm`` for torch.compile, which needs only shapes and types."""
    steps, sequences = u.shape[:2]
    h = u.new_empty(steps if z is None else 1, sequences, table.shape[1])
    projected = (u.new_empty(steps, sequences, table.shape[1]) for _ in range(3))
    return h, *projected, u.new_empty(steps, sequences, 2 * heads, dtype=torch.float32)


@torch.library.custom_op("socialx::mlstm_backward", mutates_args=())
def mlstm_backward(
    u: Tensor,
    z: Tensor | None,
    table: Tensor,
    gates: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    d_h: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients for u, z (empty if absent), table, bias from d_h [Q,S,I]; shapes as in ``mlstm``."""
    d_u, d_z, *_ = _mlstm_gradients(u, z, table, gates)
    d_h, u, (sequences, inner), heads = d_h.contiguous(), u.contiguous(), queries.shape[1:], gates.shape[2] // 2
    small_weights, (skip, norm) = table[:-2], table[-2:]
    last, output_gate, d_output_gate = False, u[..., inner:], d_u[..., inner:]
    if z is not None:
        last, output_gate, d_output_gate = True, z.contiguous(), d_z
    d_queries, d_keys, d_values, d_gates = map(torch.empty_like, (queries, keys, values, gates))
    with torch.cuda.device_of(u):
        groups, options = _plan("mlstm_backward", "mlstm", u, heads, inner // heads)
        cell_shares = table.new_empty(groups, 2, inner)
        cell_reads = (queries, keys, values, gates, output_gate, skip, norm, d_h)
        cell_writes = (d_queries, d_keys, d_values, d_gates, d_output_gate, cell_shares)
        cell = cells.mlstm_backward[(groups * heads,)]
        cell(*cell_reads, *cell_writes, sequences, eps, Z=output_gate.stride(1), LAST=last, **options)
        groups, options = _plan("conv_backward", "mlstm", u, heads, inner // heads)
        conv_shares = small_weights.new_empty(groups, *small_weights.shape)
        conv = convolution.conv_backward[(groups * inner // options["W"],)]
        conv_reads = (u, small_weights, queries, d_queries, d_keys, d_values, d_gates)
        conv(*conv_reads, d_u, conv_shares, sequences, X=u.shape[2], **options)
    return d_u, d_z, torch.cat([conv_shares.sum(0), cell_shares.sum(0)]), d_gates.sum((0, 1))


@mlstm_backward.register_fake
def _mlstm_gradients(u: Tensor, z: Tensor | None, table: Tensor, gates: Tensor, *_: Any) -> tuple[Tensor, ...]:
    d_u, d_z = u.new_empty(u.shape), u.new_empty(0 if z is None else z.shape)
    return d_u, d_z, torch.empty_like(table), table.new_empty(gates.shape[2])


def _mlstm_keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, z, table, _, _, ctx.eps = inputs
    _, *projected, gates = output
    ctx.save_for_backward(u, z, table, gates, *projected)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _mlstm_gradient(ctx: Any, d_h: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    u, z, *rest = ctx.saved_tensors
    d_u, d_z, d_table, d_bias = torch.ops.socialx.mlstm_backward(u, z, *rest, d_h, ctx.eps)
    return d_u, None if z is None else d_z, d_table, None, d_bias, None


mlstm.register_autograd(_mlstm_gradient, setup_context=_mlstm_keep)


@torch.library.custom_op("socialx::slstm", mutates_args=())
def slstm(
    x: Tensor,
    heads: int,
    last: bool,
    table: Tensor,
    weight: Tensor,
    kernel: Tensor,
    bias: Tensor,
    keep: Tensor | None,
    eps: float,
    factor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an sLSTM layer, x [T,S,E] -> y [Q,S,E]; last: Q = 1, the last step, else T.

    table [6,E] float32: the convolution's rows, then the norm, with eps; weight [H,4D,D] for the gates, where the first
    two read the convolved channels; kernel [H,4D,D] for the recurrence; bias [4E]; keep [Q,S,E]: dropout mask, kept
    values are multiplied by factor, ``None`` keeps all. Also returns for the backward: the gate inputs [H,T,S,3D], with
    the previous step's h in the last third, and the states [H,T,S,2D] float32.
    """
    y, reads, states = _slstm_outputs(x, heads, last)
    x, (sequences, embed), width = x.contiguous(), x.shape[1:], x.shape[2] // heads
    taps, norm = table[:-1], table[-1]
    with torch.cuda.device_of(x):
        groups, options = _plan("conv_forward", "slstm", x, heads, width)
        conv = convolution.conv_forward[(groups,)]
        conv(x, taps, None, reads, None, None, None, sequences, X=embed, **options)
        groups, options = _plan("slstm_forward", "slstm", x, heads, width)
        cell = cells.slstm_forward[(groups * heads,)]
        cell_reads = (reads, weight.to(x.dtype), kernel.to(x.dtype), bias, norm, keep)
        cell(*cell_reads, y, states, sequences, eps, factor, LAST=last, **options)
    return y, reads, states


@slstm.register_fake
def _slstm_outputs(x: Tensor, heads: int, last: bool, *_: Any) -> tuple[Tensor, ...]:
    """Return empty outputs of ``slstm`` for torch.compile, which needs only shapes and types."""
    steps, sequences, embed = x.shape
    width = embed // heads
    reads = x.new_empty(heads, steps, sequences, 3 * width)
    states = x.new_empty(heads, steps, sequences, 2 * width, dtype=torch.float32)
    return x.new_empty(1 if last else steps, sequences, embed), reads, states


@torch.library.custom_op("socialx::slstm_backward", mutates_args=())
def slstm_backward(
    table: Tensor,
    weight: Tensor,
    kernel: Tensor,
    bias: Tensor,
    reads: Tensor,
    states: Tensor,
    keep: Tensor | None,
    d_y: Tensor,
    eps: float,
    factor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients for x, table, weight, kernel, bias from d_y [Q,S,E]; the rest: inputs, outputs of ``slstm``."""
    d_x, *_ = _slstm_gradients(table, weight, kernel, bias, reads)
    d_y, (heads, steps, sequences, _), embed = d_y.contiguous(), reads.shape, table.shape[1]
    width, taps, norm, low = embed // heads, table[:-1], table[-1], d_y.dtype
    d_gates, d_inputs = (reads.new_empty(heads, steps, sequences, n * width) for n in (4, 2))
    with torch.cuda.device_of(d_y):
        groups, options = _plan("slstm_backward", "slstm", d_x, heads, width)
        cell_shares = table.new_empty(groups, 5, embed)  # of the four biases, and of the norm
        cell = cells.slstm_backward[(groups * heads,)]
        cell_reads = (reads, weight.to(low), kernel.to(low), bias, norm, keep, states, d_y)
        last = len(d_y) < steps
        cell(*cell_reads, d_gates, d_inputs, cell_shares, sequences, eps, factor, LAST=last, **options)
        groups, options = _plan("conv_backward", "slstm", d_x, heads, width)
        conv_shares = taps.new_empty(groups, *taps.shape)
        conv = convolution.conv_backward[(groups * embed // options["W"],)]
        conv_reads = (reads[..., width:], taps, None, d_inputs, None, d_inputs[..., width:], None)
        conv(*conv_reads, d_x, conv_shares, sequences, X=embed, **options)
    d_bias, d_norm = cell_shares.sum(0).split([4, 1])
    # One product per step and head, added up: a single one over all steps would be too narrow for the device.
    per_step = torch.bmm(d_gates.flatten(0, 1).transpose(1, 2), reads.flatten(0, 1))  # [H*T,4D,3D]
    d_both = per_step.unflatten(0, (heads, steps)).sum(1, dtype=torch.float32)  # [H,4D,3D]
    d_weight_y, d_weight_x, d_kernel = d_both.split(width, 2)
    d_weight = torch.cat([d_weight_y[:, : 2 * width], d_weight_x[:, 2 * width :]], 1)
    return d_x, torch.cat([conv_shares.sum(0), d_norm]), d_weight, d_kernel.contiguous(), d_bias.flatten()


@slstm_backward.register_fake
def _slstm_gradients(
    table: Tensor, weight: Tensor, kernel: Tensor, bias: Tensor, reads: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    d_x = reads.new_empty(*reads.shape[1:3], table.shape[1])
    d_weight, d_kernel = (torch.empty_like(part, dtype=torch.float32) for part in (weight, kernel))
    return d_x, torch.empty_like(table), d_weight, d_kernel, torch.empty_like(bias)


def _slstm_keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, _, *weights, keep, ctx.eps, ctx.factor = inputs
    ctx.save_for_backward(*weights, *output[1:], keep)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _slstm_gradient(ctx: Any, d_y: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    d_x, *d_weights = torch.ops.socialx.slstm_backward(*ctx.saved_tensors, d_y, ctx.eps, ctx.factor)
    return d_x, None, None, *d_weights, None, None, None


slstm.register_autograd(_slstm_gradient, setup_context=_slstm_keep)


def _row_plan(x: Tensor) -> tuple[int, dict[str, int]]:
    """Return programs and launch keywords to norm x [...,E]: about 1024 numbers at a time, 8 times a program."""
    columns = triton.next_power_of_2(x.shape[-1])
    options = {"ROWS": max(1, 1024 // columns), "TURNS": 8, "num_warps": 4}
    programs = triton.cdiv(x.numel() // x.shape[-1], options["ROWS"] * options["TURNS"])
    return programs, {"E": x.shape[-1], "COLUMNS": columns, **options}


@torch.library.custom_op("socialx::add_norm", mutates_args=())
def add_norm(
    x: Tensor, y: Tensor, keep: Tensor | None, factor: float, scale: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return x + y [...,E] in the type of x, and its layer norm times scale [E] in dtype.

    keep [...,E]: dropout mask for y, with kept values multiplied by factor; ``None`` keeps all.
    """
    total, out = _add_norm_outputs(x, y, keep, factor, scale, eps, dtype)
    _launch_norm(x, y.contiguous(), keep, scale, total, out, factor, eps)
    return total, out


@add_norm.register_fake
def _add_norm_outputs(
    x: Tensor, y: Tensor, keep: Tensor | None, factor: float, scale: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op("socialx::norm", mutates_args=())
def norm(x: Tensor, scale: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return the layer norm of x [...,E] times scale [E] in dtype."""
    out = x.new_empty(x.shape, dtype=dtype)
    _launch_norm(x, None, None, scale, None, out, 1.0, eps)
    return out


@norm.register_fake
def _norm_output(x: Tensor, scale: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def _launch_norm(
    x: Tensor, y: Any, keep: Any, scale: Tensor, total: Any, out: Tensor, factor: float, eps: float
) -> None:
    with torch.cuda.device_of(x):
        programs, options = _row_plan(x)
        kernel = residual.add_norm_forward[(programs,)]
        kernel(x.contiguous(), y, keep, scale, total, out, x.numel() // x.shape[-1], factor, eps, **options)


@torch.library.custom_op("socialx::add_norm_backward", mutates_args=())
def add_norm_backward(
    total: Tensor,
    keep: Tensor | None,
    factor: float,
    scale: Tensor,
    dtype: torch.dtype,
    d_total: Tensor,
    d_out: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients for x, y (in dtype, empty if equal to x's) and scale; total: x + y; d_total, d_out: incoming."""
    d_x, d_y, _ = _add_norm_gradients(total, keep, factor, scale, dtype)
    with torch.cuda.device_of(total):
        programs, options = _row_plan(total)
        shares = scale.new_empty(programs, total.shape[-1], dtype=torch.float32)
        read = (total, keep, scale, d_total.contiguous(), d_out.contiguous())
        written, rows = (d_x, d_y if d_y.numel() else None, shares), total.numel() // total.shape[-1]
        residual.add_norm_backward[(programs,)](*read, *written, rows, factor, eps, **options)
    return d_x, d_y, shares.sum(0).to(scale.dtype)


@add_norm_backward.register_fake
def _add_norm_gradients(
    total: Tensor, keep: Tensor | None, factor: float, scale: Tensor, dtype: torch.dtype, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    d_y = total.new_empty(0 if keep is None and dtype == total.dtype else total.shape, dtype=dtype)
    return total.new_empty(total.shape), d_y, torch.empty_like(scale)


def _add_norm_keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, y, keep, ctx.factor, scale, ctx.eps, _ = inputs
    ctx.dtype = y.dtype
    ctx.save_for_backward(output[0], keep, scale)


def _add_norm_gradient(ctx: Any, d_total: Tensor, d_out: Tensor) -> tuple[Tensor | None, ...]:
    total, keep, scale = ctx.saved_tensors
    arguments = (total, keep, ctx.factor, scale, ctx.dtype, d_total, d_out, ctx.eps)
    d_x, d_y, d_scale = torch.ops.socialx.add_norm_backward(*arguments)
    return d_x, d_y if d_y.numel() else d_x, None, None, d_scale, None, None


add_norm.register_autograd(_add_norm_gradient, setup_context=_add_norm_keep)


class _FirstNorm(torch.autograd.Function):
    """x (torch.library operations may not return it) and its norm: the backward adds both gradients in one launch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, scale)
        ctx.eps = eps
        return x, torch.ops.socialx.norm(x, scale, eps, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        arguments = (x, None, 1.0, scale, x.dtype, d_x, d_out, ctx.eps)
        d_x, _, d_scale = torch.ops.socialx.add_norm_backward(*arguments)
        return d_x, d_scale, None, None
