"""Exact forward pass for the stack that ``package.build_stack`` makes, in plain torch; never waits for the device.

The functions read the package's modules; ``factor`` casts what goes into a matrix product as autocast does.

Shape letters: S sequences (windows times sensors), T lookback steps, Q output steps (T, or 1 for the last step only), E
width, I inner width of an mLSTM block, H heads, D head width (I / H or E / H), K conv taps.

Activations are time-major, [T,S,...]: a causal shift is a contiguous slice, and the [S*H] small mLSTM matrices are
views. The sLSTM scan is feature-major, [H,D,T,S], so that each gate in a step is contiguous.

Formulas: Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", arXiv:2405.04517, as in the package.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from socialx.core.precision import factor

# exp(-m) must not reach infinity, or its gradient is 0 * inf: exp(80) is finite in float32 and nothing larger matters.
LARGEST_EXPONENT = 80.0
NORMALISER_EPS = 1e-6  # the package's parallel_stabilized_simple


def encode(stack: nn.Module, x: Tensor, activation_checkpointing: bool = False) -> Tensor:
    """Encode x [S,T,E] -> [S,E] as ``stack(x)[:, -1]``.

    Differentiable in x and all weights; never waits for the device. Under autocast the matrix products run in the
    autocast type; gates, decay, states and norms stay float32. activation_checkpointing: keep each block's input for
    the backward pass and recompute the rest.
    """
    blocks: Any = stack.blocks
    x = x.transpose(0, 1).contiguous()
    x = x.to(_wide(x)) if torch.is_autocast_enabled(x.device.type) else x  # the sum over blocks stays float32
    for block in blocks:
        run = partial(_block, block, block is blocks[-1])
        x = recompute(run, x) if activation_checkpointing else run(x)
    return _layer_norm(stack.post_blocks_norm, x)[0]


def recompute(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return ``run(x)``, keeping only x and dropout masks: the backward pass runs ``run`` again with equal dropout.

    The masks are kept because a CUDA graph may not draw them twice; a compiler draws equal ones itself.
    """
    if torch.compiler.is_compiling():
        return checkpoint(run, x, use_reentrant=False)
    masks = _Masks()
    return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: (masks, masks))


class _Masks(TorchFunctionMode):
    """Context of what is computed twice: dropout draws its masks in the first pass, and takes them in later ones."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Tensor] = []

    def __enter__(self) -> _Masks:
        self._taken = 0
        super().__enter__()
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        share = (kwargs or {}).get("p", 0.0) * (kwargs or {}).get("training", False)
        if func is not F.dropout or not share:
            return func(*args, **(kwargs or {}))
        if self._taken == len(self._kept):  # by a context around this one, if what is computed twice is part of such
            self._kept.append(F.dropout(torch.ones_like(args[0]), share) != 0)
        self._taken += 1
        return args[0] * self._kept[self._taken - 1] * (1 / (1 - share))


def _block(block: Any, last: bool, x: Tensor) -> Tensor:
    """Map x [T,S,E] -> [Q,S,E] as the package's ``xLSTMBlock``; last: Q = 1, the last step.

    The package drops shares of what it adds, but inside of an sLSTM layer.
    """
    layer, y = block.xlstm, _layer_norm(block.xlstm_norm, x)
    y = _slstm(layer, y, last) if block.config.mlstm is None else _drop(layer, _mlstm(layer, y, last))
    x = (x[-1:] if last else x) + y
    return x if block.ffn is None else x + _drop(block.ffn, _feed_forward(block.ffn, _layer_norm(block.ffn_norm, x)))


def _drop(part: Any, y: Tensor) -> Tensor:
    return F.dropout(y, part.dropout.p if part.dropout.training else 0.0)


def _feed_forward(part: Any, x: Tensor) -> Tensor:
    """Map x [Q,S,E] -> [Q,S,E] as the package's ``GatedFeedForward``, apart from dropout."""
    gate, value = F.linear(x, factor(part.proj_up.weight), part.proj_up.bias).chunk(2, -1)
    return F.linear(part.act_fn(gate) * value, factor(part.proj_down.weight), part.proj_down.bias)


def _layer_norm(norm: Any, x: Tensor) -> Tensor:
    """Normalise x [...,E]; torch keeps half-type statistics in float32."""
    return F.layer_norm(x, (x.shape[-1],), norm.weight_proxy, norm.bias, norm.eps)


def _head_norm(norm: Any, h: Tensor) -> Tensor:
    """Normalise h [H,...,D] as the package's ``MultiHeadLayerNorm``, one group per head."""
    heads, width = h.shape[0], h.shape[-1]
    y = F.layer_norm(h.to(_wide(h)), (width,), eps=norm.eps)
    return (y * norm.weight_proxy.view(heads, *[1] * (h.dim() - 2), width)).to(h.dtype)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _mlstm(layer: Any, x: Tensor, last: bool) -> Tensor:
    """Map x [T,S,E] -> [Q,S,E] as the package's ``mLSTMLayer``, apart from dropout; last: Q = 1, the last step.

    q and k never exist: q_i . k_j = a_i (Wq' Wk) a_j, with a the activated convolution; v is applied after the weighted
    sum. Both products are block-diagonal per head, and cost a T-th for the last step.
    """
    steps, sequences, _ = x.shape
    x, heads, inner, cell = factor(x), layer.config.num_heads, layer.config._inner_embedding_dim, layer.mlstm_cell
    width = inner // heads
    up, up_z = factor(layer.proj_up.weight).split(inner)  # of the channels, and of the output gate
    small = [factor(part.weight) for part in (layer.q_proj, layer.k_proj, layer.v_proj)]  # [I/4,4,4] each
    query_key, gate_a, gate_x = _fold_weights(cell, small, heads)
    query_key = _block_diagonal(query_key, heads)
    value = _block_diagonal(small[-1].transpose(1, 2), heads)
    m = F.linear(x, up)  # [T,S,I]
    a = _conv_silu(layer.conv1d.conv, m)  # [T,S,I]
    gates = (F.linear(a, gate_a) + F.linear(x, gate_x @ up)).to(_wide(x))  # [T,S,2H]
    gates = gates + torch.cat([cell.igate.bias, cell.fgate.bias])
    output_steps = slice(-1, None) if last else slice(None)
    a_q = a[output_steps]  # [Q,S,I]
    count = len(a_q)
    q = torch.bmm(a_q.view(count * sequences, heads, width).transpose(0, 1), query_key)  # [H,Q*S,D]
    q = q.view(heads, count, sequences, width).permute(2, 0, 1, 3).reshape(sequences * heads, count, width)
    keys = a.view(steps, sequences * heads, width)  # [T,S*H,D]
    if keys.requires_grad and not torch.compiler.is_compiling():
        # The gradient of a transposed factor is transposed, and a sum of gradients has the strides of its first one:
        # all that comes before would run strided.
        keys.register_hook(Tensor.contiguous)
    weights = _decay_weights(torch.bmm(q, keys.permute(1, 2, 0)), gates, last)  # [S*H,Q,T]
    h = torch.bmm(weights.to(m.dtype), m.view(steps, sequences * heads, width).transpose(0, 1))  # [S*H,Q,D]
    h = h.view(sequences, heads, count, width).transpose(0, 1).reshape(heads, sequences * count, width)  # [H,S*Q,D]
    h = _head_norm(cell.outnorm, torch.bmm(h, value))
    h = h.view(heads, sequences, count, width).permute(2, 1, 0, 3).reshape(count, sequences, inner)  # [Q,S,I]
    h = torch.addcmul(h, a_q, layer.learnable_skip.to(h.dtype))
    h = h * F.silu(F.linear(x[output_steps], up_z))
    return F.linear(h, factor(layer.proj_down.weight))


def _fold_weights(cell: Any, small: list[Tensor], heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Multiply small mLSTM weights to skip q, k, v: query-key [I/4,4,4]; gates by convolved, by raw channels [2H,I].

    small: block-diagonal weights of query, key and value, [I/4,4,4] each.
    """
    query, key, _ = small
    inner = query.shape[0] * query.shape[1]
    gates = torch.cat([factor(cell.igate.weight), factor(cell.fgate.weight)])  # [2H,3I]
    gates = gates.view(2 * heads, 3, *query.shape[:2])
    by_gate = (gates.permute(1, 2, 0, 3) @ torch.stack(small)).transpose(1, 2)
    by_query, by_key, by_value = by_gate.reshape(3, 2 * heads, inner)
    query_key = torch.bmm(query.transpose(1, 2), key) * (inner // heads) ** -0.5
    return query_key, by_query + by_key, by_value


def _block_diagonal(small: Tensor, heads: int) -> Tensor:
    """Expand small [I/4,4,4] -> [H,D,D], a dense matrix per head, which BLAS multiplies faster."""
    groups = small.unflatten(0, (heads, -1)).permute(0, 2, 3, 1)  # [H,4,4,D/4]
    return torch.diag_embed(groups, dim1=1, dim2=3).flatten(3).flatten(1, 2)


def _decay_weights(scores: Tensor, gates: Tensor, last: bool) -> Tensor:
    """Map scores q . k [S*H,Q,T], input and forget gates [T,S,2H] -> weights [S*H,Q,T]; last: Q = 1, else T.

    As ``parallel_stabilized_simple``: with c the running sum over log forget gates and g_j = i_j - c_j, the log decay
    is c_i + g_j and the row maximum m_i = c_i + max_{j<=i} g_j: neither difference nor m needs a [T+1,T+1] matrix.
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


def _conv_silu(convolution: Any, x: Tensor) -> Tensor:
    """Map x [T,S,C] (C channels) -> [T,S,C] as SiLU after the package's ``CausalConv1d``."""
    weight = convolution.weight[:, 0].t().to(x.dtype).contiguous()  # [K,C], the oldest step first
    bias = convolution.bias.to(x.dtype)
    if torch.compiler.is_exporting():  # an exported model knows torch's own operations alone
        return F.silu(_causal_conv(x, weight, bias))
    return _ConvSilu.apply(x, weight, bias)


def _causal_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve x [T,S,C] with weight [K,C], bias [C] -> [T,S,C]: tap K-1 weighs the present, tap 0 the oldest step."""
    y = torch.addcmul(bias, x, weight[-1])
    for back in range(1, min(len(weight), len(x))):
        y[back:].addcmul_(x[:-back], weight[-1 - back])
    return y


class _ConvSilu(torch.autograd.Function):
    """SiLU of the causal convolution; autograd alone would keep a copy of x per tap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = _causal_conv(x, weight, bias)
        ctx.save_for_backward(x, weight, y)
        return F.silu(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, y = ctx.saved_tensors
        dy = torch.ops.aten.silu_backward(grad.contiguous(), y)
        dx = dy * weight[-1]
        dw = torch.zeros_like(weight)
        products = dy * x  # one buffer for those of all taps
        dw[-1] = products.sum((0, 1))
        for back in range(1, min(len(weight), len(x))):
            dx[:-back].addcmul_(dy[back:], weight[-1 - back])
            dw[-1 - back] = torch.mul(dy[back:], x[:-back], out=products[back:]).sum((0, 1))
        return dx, dw, dy.sum((0, 1))


def _slstm(layer: Any, x: Tensor, last: bool) -> Tensor:
    """Map x [T,S,E] -> [Q,S,E] as the package's ``sLSTMLayer``; last: Q = 1, the last step."""
    steps, sequences, embed = x.shape
    x, heads, cell = factor(x), layer.config.num_heads, layer.slstm_cell
    # The package feeds fgate to the input gate and igate to the forget gate; zgate is the candidate. [H,D,D] each.
    input_gate, forget_gate, candidate, output_gate = (
        factor(gate.weight) for gate in (layer.fgate, layer.igate, layer.zgate, layer.ogate)
    )
    convolved = _headwise(_conv_silu(layer.conv1d.conv, x), torch.cat([input_gate, forget_gate], 1))
    plain = _headwise(x, torch.cat([candidate, output_gate], 1))
    gates = torch.cat([convolved, plain], 1).view(heads, 4 * embed // heads, steps, sequences)  # [H,4D,T,S]
    bias = cell._bias_.view(4, heads, -1).transpose(0, 1).reshape(heads, -1, 1)  # [H,4D,1]
    h = _drop(layer, _scan(gates, factor(cell._recurrent_kernel_), bias, last))  # [H,D,Q,S]
    h = _head_norm(layer.group_norm, h.permute(0, 2, 3, 1).contiguous())  # [H,Q,S,D]
    return h.permute(1, 2, 0, 3).reshape(h.shape[1], sequences, embed)


def _headwise(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply x [T,S,E] by weight [H,G,D] (G outputs) per head -> [H,G,T*S], for all steps at once."""
    heads, _, width = weight.shape
    return torch.bmm(weight, x.view(x.shape[0] * x.shape[1], heads, width).permute(1, 2, 0))


def _scan(gates: Tensor, kernel: Tensor, bias: Tensor, last: bool) -> Tensor:
    """Run the sLSTM on gates [H,4D,T,S] (input, forget, z, output), kernel [H,4D,D], bias [H,4D,1] -> h [H,D,Q,S].

    Two states, r = c / n and L = log n + m, replace the package's c, n and m, without stabilisation or division:

        u = log f + L - i;  a = sigmoid(u);  r = a r + (1 - a) tanh z;  L = i + softplus(u);  h = o r

    At the first step r = tanh z and L = i.
    """
    device, wide = gates.device.type, _wide(gates)
    with torch.autocast(device, enabled=False):
        first, *rest = gates.unbind(2)  # [H,4D,S] each
        log_n, _, z, o = (first + bias).to(wide).chunk(4, 1)  # [H,D,S]
        r = z.tanh()
        hidden = [o.sigmoid() * r]
        for gate_inputs in rest:
            raw = gate_inputs + bias + torch.bmm(kernel, hidden[-1].to(kernel.dtype))
            i, f, z, o = raw.to(wide).chunk(4, 1)
            u = F.logsigmoid(f) + log_n - i
            r = torch.lerp(z.tanh(), r, u.sigmoid())
            log_n = i - F.logsigmoid(-u)  # softplus(u), exact where F.softplus is cut off
            hidden.append(o.sigmoid() * r)
        if not rest:  # the kernel's gradient is 0, as in the package, not absent
            hidden = [hidden[0] + 0 * kernel.sum()]
        return torch.stack(hidden[-1:] if last else hidden, 2)
