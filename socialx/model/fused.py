"""The exact, sync-free forward of an ``xlstm.xLSTMBlockStack`` over the stack's own parameters, in plain torch.

Shape letters: S sequences (windows times sensors), T history steps, Q steps that are asked for (T, or 1 for the last
step only), E width, I inner width of an mLSTM block, H heads, D head width (I / H or E / H), K conv taps.

Everything inside is time-major, [T,S,...]: a causal shift is then a contiguous slice, and the [S*H] small matrices of
the mLSTM are views.  The sLSTM scan is feature-major, [H,D,T,S], so that each gate of a step is one contiguous run.

Formulas: Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", arXiv:2405.04517, as the package computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

# exp(-m) must not reach infinity, or its gradient is 0 * inf: exp(80) is finite in float32 and nothing larger matters.
LARGEST_EXPONENT = 80.0
NORMALISER_EPS = 1e-6  # the package's parallel_stabilized_simple


class Layers(NamedTuple):
    """What runs the package's ``mLSTMLayer`` and ``sLSTMLayer``: (layer, x [T,S,E], last) -> [Q,S,E]."""

    mlstm: Callable[[Any, Tensor, bool], Tensor]
    slstm: Callable[[Any, Tensor, bool], Tensor]


# (number of a block, its output [Q,S,E]) -> what the next block reads, of the same shape
Between = Callable[[int, Tensor], Tensor]


def encode(
    stack: nn.Module,
    x: Tensor,
    *,
    last_only: bool = True,
    checkpointing: bool = False,
    layers: Layers | None = None,
    between: Between | None = None,
) -> Tensor:
    """x [S,T,E] -> [S,E], or [S,T,E] without last_only: ``stack(x)[:, -1]``, or ``stack(x)``.

    Differentiable in x and in every parameter of the stack.  Never waits for the device.  Under autocast the matrix
    products run in its precision; gates, decay, states and norms stay float32.  checkpointing: the backward pass has
    only each block's input, and computes the rest again.  layers: those of this module, unless others are given.
    between: called with the number of each block and its output.
    """
    layers = layers or Layers(_mlstm, _slstm)
    blocks: list[Any] = list(stack.blocks)  # type: ignore[arg-type]
    x = x.transpose(0, 1).contiguous()  # [T,S,E]
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(_wide(x))  # the sum over the blocks stays float32
    for number, block in enumerate(blocks):
        refuse_unknown(block)
        run = partial(_block, block, last=last_only and block is blocks[-1], layers=layers)
        x = recomputed(run, x, block) if checkpointing else run(x)
        if between is not None:
            x = between(number, x)
    if not isinstance(stack.post_blocks_norm, nn.Identity):
        x = _layer_norm(stack.post_blocks_norm, x)
    return x[0] if last_only else x.transpose(0, 1)


def recomputed(run: Callable[[Tensor], Tensor], x: Tensor, module: nn.Module) -> Tensor:
    """``run(x)``, of which only x is kept for the backward pass: it runs a second time there, with the same dropout.

    The generators' states are kept only where dropout acts in ``module``: a CUDA-graph capture may not read them.
    """
    drops = any(isinstance(part, nn.Dropout) and part.training and part.p > 0 for part in module.modules())
    return checkpoint(run, x, use_reentrant=False, preserve_rng_state=drops)


def refuse_unknown(block: Any) -> None:
    """ValueError for a block of which this module would compute something else than the package."""
    layer = block.xlstm.config
    if block.config.mlstm is None:
        if layer.backend != "vanilla" or layer.function != "slstm":
            raise ValueError(
                f"sLSTM backend {layer.backend!r}, function {layer.function!r}: its parameters have another layout; "
                "build the stack with backend='vanilla', function='slstm'"
            )
        return
    if layer.bias:
        raise ValueError("mLSTM block with bias=True: only bias=False, the package's default, is supported")
    width, size = layer._inner_embedding_dim // layer.num_heads, block.xlstm.q_proj.weight.shape[-1]
    if width % size:
        raise ValueError(f"mLSTM head width {width} is no multiple of qkv_proj_blocksize {size}: choose other heads")


def _block(block: Any, x: Tensor, last: bool, layers: Layers) -> Tensor:
    """x [T,S,E] -> [Q,S,E]: the pre-norm residual block of the package's ``xLSTMBlock``."""
    layer = layers.mlstm if block.config.mlstm is not None else layers.slstm
    y = layer(block.xlstm, _layer_norm(block.xlstm_norm, x), last)  # [Q,S,E]
    x = (x[-1:] if last else x) + y
    if block.ffn is None:
        return x
    return x + block.ffn(_layer_norm(block.ffn_norm, x))


def _layer_norm(norm: Any, x: Tensor) -> Tensor:
    """x [...,E] -> [...,E]; torch keeps the statistics of a half type in float32."""
    return F.layer_norm(x, (x.shape[-1],), norm.weight_proxy, norm.bias, norm.eps)


def _head_norm(norm: Any, h: Tensor) -> Tensor:
    """h [H,...,D] -> [H,...,D]: the package's ``MultiHeadLayerNorm``, one group per head."""
    heads, width = h.shape[0], h.shape[-1]
    y = F.layer_norm(h.to(_wide(h)), (width,), eps=norm.eps)
    if norm.weight is not None:
        y = y * norm.weight_proxy.view(heads, *[1] * (h.dim() - 2), width)
    return y.to(h.dtype)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _mlstm(layer: Any, x: Tensor, last: bool) -> Tensor:
    """x [T,S,E] -> [Q,S,E]: the package's ``mLSTMLayer``.

    q and k never exist: q_i . k_j = a_i (Wq' Wk) a_j, with a the activated convolution; v is applied after the
    weighted sum.  Both are block-diagonal products per head, and for the last step cost a T-th.
    """
    steps, sequences, _ = x.shape
    heads, inner = layer.config.num_heads, layer.config._inner_embedding_dim
    width = inner // heads
    up, up_z = layer.proj_up.weight.split(inner)
    query_key, gate_a, gate_x = folded(layer)
    query_key = _block_diagonal(query_key, heads)
    value = _block_diagonal(layer.v_proj.weight.transpose(1, 2), heads)
    m = F.linear(x, up)  # [T,S,I]
    a = _conv_silu(layer.conv1d, m)  # [T,S,I]
    gates = (F.linear(a, gate_a) + F.linear(m, gate_x)).to(_wide(x))  # [T,S,2H]
    gates = gates + torch.cat([layer.mlstm_cell.igate.bias, layer.mlstm_cell.fgate.bias])
    asked = slice(-1, None) if last else slice(None)
    a_q = a[asked]  # [Q,S,I]
    count = len(a_q)
    q = torch.bmm(a_q.view(count * sequences, heads, width).transpose(0, 1), query_key)  # [H,Q*S,D]
    q = q.view(heads, count, sequences, width).permute(2, 0, 1, 3).reshape(sequences * heads, count, width)
    keys = a.view(steps, sequences * heads, width).permute(1, 2, 0)  # [S*H,D,T]
    weights = _decay_weights(torch.bmm(q, keys), gates, last)  # [S*H,Q,T]
    h = torch.bmm(weights.to(m.dtype), m.view(steps, sequences * heads, width).transpose(0, 1))  # [S*H,Q,D]
    h = h.view(sequences, heads, count, width).transpose(0, 1).reshape(heads, sequences * count, width)  # [H,S*Q,D]
    h = _head_norm(layer.mlstm_cell.outnorm, torch.bmm(h, value))
    h = h.view(heads, sequences, count, width).permute(2, 1, 0, 3).reshape(count, sequences, inner)  # [Q,S,I]
    h = torch.addcmul(h, a_q, layer.learnable_skip.to(h.dtype))
    h = h * F.silu(F.linear(x[asked], up_z))
    return layer.dropout(F.linear(h, layer.proj_down.weight))


def folded(layer: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The products of an ``mLSTMLayer``'s small weights: query-key [I/4,4,4], gates of a and of m [2H,I]."""
    heads, inner = layer.config.num_heads, layer.config._inner_embedding_dim
    q, k, v = layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight  # [I/4,4,4]
    cell = layer.mlstm_cell
    gates = torch.cat([cell.igate.weight, cell.fgate.weight]).view(2 * heads, 3, q.shape[0], -1)  # [2H,3,I/4,4]
    per_group = gates.permute(1, 2, 0, 3)  # [3,I/4,2H,4]
    gate_a = torch.bmm(per_group[0], q) + torch.bmm(per_group[1], k)  # [I/4,2H,4]
    gate_x = torch.bmm(per_group[2], v)
    query_key = torch.bmm(q.transpose(1, 2), k) * (inner // heads) ** -0.5
    return (
        query_key,
        gate_a.transpose(0, 1).reshape(2 * heads, inner),
        gate_x.transpose(0, 1).reshape(2 * heads, inner),
    )


def _block_diagonal(small: Tensor, heads: int) -> Tensor:
    """small [I/4,4,4] -> [H,D,D]: the same map as one dense matrix per head, which BLAS multiplies faster."""
    size = small.shape[-1]
    small = small.view(heads, -1, size, 1, size)
    groups = small.shape[1]
    eye = torch.eye(groups, dtype=small.dtype, device=small.device).view(1, groups, 1, groups, 1)
    return (small * eye).reshape(heads, groups * size, groups * size)


def _decay_weights(scores: Tensor, gates: Tensor, last: bool) -> Tensor:
    """scores [S*H,Q,T], gates [T,S,2H] -> [S*H,Q,T]: the package's ``parallel_stabilized_simple``.

    With c the running sum of log forget gates and g_j = i_j - c_j, the package's log decay is c_i + g_j and its row
    maximum m_i = c_i + max_{j<=i} g_j: their difference needs no [T+1,T+1] matrix of copies, and neither does m.
    """
    steps, sequences, twice = gates.shape
    gates = gates.permute(1, 2, 0)  # [S,2H,T]
    log_i, f = gates.reshape(sequences, 2, twice // 2, steps).unbind(1)  # [S,H,T]
    c = F.logsigmoid(f).cumsum(-1).flatten(0, 1)  # [S*H,T]
    g = log_i.flatten(0, 1) - c
    if last:
        top = g.amax(-1, keepdim=True)  # [S*H,1]
        decay = (g - top).unsqueeze(1).exp()  # [S*H,1,T]
        m = c[:, -1:] + top
    else:
        top = g.cummax(-1).values  # [S*H,T]
        later = torch.ones(steps, steps, dtype=torch.bool, device=g.device).triu(1)
        decay = (g.unsqueeze(1) - top.unsqueeze(2)).masked_fill(later, -torch.inf).exp()
        m = c + top
    weights = scores * decay
    floor = (-m).clamp(max=LARGEST_EXPONENT).exp().unsqueeze(2)  # [S*H,Q,1]
    return weights / (torch.maximum(weights.sum(-1, keepdim=True).abs(), floor) + NORMALISER_EPS)


def _conv_silu(conv: Any, x: Tensor) -> Tensor:
    """x [T,S,C] -> [T,S,C]: silu of the package's ``CausalConv1d``."""
    weight = conv.conv.weight[:, 0].t().to(x.dtype)  # [K,C]
    bias = conv.conv.bias.to(x.dtype)
    if torch.compiler.is_compiling():
        return F.silu(_causal_conv(x, weight, bias))
    return _ConvSilu.apply(x, weight, bias)


def _causal_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [T,S,C], weight [K,C], bias [C] -> [T,S,C]: tap K-1 weighs the present, tap 0 the oldest step."""
    y = torch.addcmul(bias, x, weight[-1])
    for back in range(1, min(len(weight), len(x))):
        y[back:].addcmul_(x[:-back], weight[-1 - back])
    return y


class _ConvSilu(torch.autograd.Function):
    """Shifted sums forward and backward: autograd would keep and pad a copy of x per tap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = _causal_conv(x, weight, bias)
        ctx.save_for_backward(x, weight, y)
        return F.silu(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, y = ctx.saved_tensors
        dy = torch.ops.aten.silu_backward(grad, y)
        dx = dy * weight[-1]
        dw = torch.zeros_like(weight)
        dw[-1] = (dy * x).sum((0, 1))
        for back in range(1, min(len(weight), len(x))):
            dx[:-back].addcmul_(dy[back:], weight[-1 - back])
            dw[-1 - back] = (dy[back:] * x[:-back]).sum((0, 1))
        return dx, dw, dy.sum((0, 1))


def _slstm(layer: Any, x: Tensor, last: bool) -> Tensor:
    """x [T,S,E] -> [Q,S,E]: the package's ``sLSTMLayer``."""
    steps, sequences, embed = x.shape
    heads = layer.config.num_heads
    convolved = _conv_silu(layer.conv1d, x) if layer.config.conv1d_kernel_size > 0 else x
    # The package feeds fgate to the input gate and igate to the forget gate; weights must keep that.
    gates = torch.cat(
        [
            _headwise(convolved, torch.cat([layer.fgate.weight, layer.igate.weight], 1)),
            _headwise(x, torch.cat([layer.zgate.weight, layer.ogate.weight], 1)),
        ],
        1,
    ).view(heads, 4 * embed // heads, steps, sequences)  # [H,4D,T,S]
    cell = layer.slstm_cell
    bias = cell._bias_.view(4, heads, -1).transpose(0, 1).reshape(heads, -1, 1)  # [H,4D,1]
    h = _scan(gates, cell._recurrent_kernel_, bias)  # [H,D,T,S]
    h = layer.dropout(h[:, :, -1:] if last else h).to(x.dtype)
    h = _head_norm(layer.group_norm, h.permute(0, 2, 3, 1).contiguous())  # [H,Q,S,D]
    return h.permute(1, 2, 0, 3).reshape(h.shape[1], sequences, embed)


def _headwise(x: Tensor, weight: Tensor) -> Tensor:
    """x [T,S,E], weight [H,G,D] -> [H,G,T*S]."""
    heads, _, width = weight.shape
    return torch.bmm(weight, x.view(x.shape[0] * x.shape[1], heads, width).permute(1, 2, 0))


def _scan(gates: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """gates [H,4D,T,S] (input, forget, z, output), kernel [H,4D,D], bias [H,4D,1] -> h [H,D,T,S]."""
    device = gates.device.type
    if torch.is_autocast_enabled(device):
        kernel = kernel.to(torch.get_autocast_dtype(device))
    with torch.autocast(device, enabled=False):
        if torch.compiler.is_compiling():
            return torch.stack(_steps(gates, kernel, bias)[0], 2)
        return _Scan.apply(gates, kernel, bias)


def _steps(gates: Tensor, kernel: Tensor, bias: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Per step h [H,D,S], and what the backward needs: tanh z, o, and from step 1 on r before, a, log f."""
    wide = _wide(gates)
    first, *rest = gates.unbind(2)  # [H,4D,S] each
    log_n, _, z, o = (first + bias).to(wide).chunk(4, 1)  # [H,D,S]
    r, o = z.tanh(), o.sigmoid()
    hidden, kept = [o * r], [r, o]
    for now in rest:
        raw = now + bias + torch.bmm(kernel, hidden[-1].to(kernel.dtype))
        i, f, z, o = raw.to(wide).chunk(4, 1)
        z, o, log_f = z.tanh(), o.sigmoid(), F.logsigmoid(f)
        u = log_f + log_n - i
        a = u.sigmoid()
        kept += [z, o, r, a, log_f]
        r, log_n = torch.lerp(z, r, a), i - F.logsigmoid(-u)  # softplus(u), exact where F.softplus is cut off
        hidden.append(o * r)
    return hidden, kept


class _Scan(torch.autograd.Function):
    """The sLSTM recurrence in two states, r = c / n and L = log n + m, instead of four.

    u = log f + L - i;  a = sigmoid(u);  r = a r + (1 - a) tanh z;  L = i + softplus(u);  h = o r; at the first step
    r = tanh z and L = i.  Equal to the package's c, n, m, h, with nothing to stabilise and no division.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        hidden, kept = _steps(gates, kernel, bias)
        h = torch.stack(hidden, 2)  # [H,D,T,S]
        ctx.save_for_backward(h, kernel, *kept)
        ctx.dtype, ctx.bias_dtype = gates.dtype, bias.dtype
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, kernel, *kept = ctx.saved_tensors
        heads, width, steps, sequences = h.shape
        d_gates = h.new_empty(heads, 4 * width, steps, sequences)
        d_log_n = h.new_zeros(heads, width, sequences)
        d_r, d_h = d_log_n, grad[:, :, -1]
        with torch.autocast(h.device.type, enabled=False):
            for t in range(steps - 1, -1, -1):
                d_i, d_f, d_z, d_o = d_gates[:, :, t].chunk(4, 1)
                z, o = kept[5 * t - 3 : 5 * t - 1] if t else kept[:2]
                torch.mul(d_h * h[:, :, t], 1 - o, out=d_o)
                d_r = torch.addcmul(d_r, d_h, o)
                slope = 1 - z * z
                if t == 0:
                    torch.mul(d_r, slope, out=d_z)
                    d_i.copy_(d_log_n)
                    d_f.zero_()
                    break
                r, a, log_f = kept[5 * t - 1 : 5 * t + 2]
                d_old = d_r * a
                torch.mul(d_r - d_old, slope, out=d_z)
                d_u = a * torch.addcmul(d_log_n, d_r - d_old, r - z)
                torch.sub(d_log_n, d_u, out=d_i)
                torch.mul(d_u, -torch.expm1(log_f), out=d_f)
                d_r, d_log_n = d_old, d_u
                d_h = grad[:, :, t - 1] + torch.bmm(kernel.transpose(1, 2), d_gates[:, :, t].to(kernel.dtype))
            low = d_gates.to(kernel.dtype)
            d_kernel = torch.bmm(low[:, :, 1:].flatten(2), h[:, :, :-1].to(kernel.dtype).flatten(2).transpose(1, 2))
        return d_gates.to(ctx.dtype), d_kernel, d_gates.sum((2, 3)).unsqueeze(2).to(ctx.bias_dtype)
