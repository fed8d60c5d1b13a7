"""Triton kernels for the causal convolution before both cells, and helpers for all kernels.

An mLSTM multiplies the convolved channels by its small weights; these kernels do so while the channels are on chip.
Shape letters and rules as in cell_kernels.py. The small weights form a float32 table [rows,C]: the constants below name
each weight's first row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

TAPS = constexpr(4)  # rows 0 to 3 weigh the steps t - 3, ..., t of the convolution
TAP_BIAS = constexpr(4)  # the last row of an sLSTM's table
# Four rows from QUERY_KEY on, and from VALUE on, are 4 x 4 blocks: entry (j, c) of block g is in row c, channel 4g + j.
QUERY_KEY = constexpr(5)
VALUE = constexpr(9)
GATES = constexpr(13)  # 2H rows weigh the convolved channels, and the 2H rows after them the channels before it
GATE_TILE = constexpr(16)  # columns of the smallest product; 2H gates are padded to it
LOG2_E = constexpr(1.4426950408889634)  # exp(x) is exp2(LOG2_E * x), which is one instruction


@triton.jit
def dot(a, b, total=None):
    """Return the product of tiles a and b, plus total unless ``None``; float32 is multiplied in full float32."""
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def wide(x, N: constexpr, PRODUCT: constexpr = True):
    """Convert x [N,W] to float32. PRODUCT: multiply half types by one, exactly, to get a product's layout.

    Mixing a product with loaded numbers would otherwise run in both layouts.
    """
    if x.dtype == tl.float32 or not PRODUCT:
        return x.to(tl.float32)
    n = tl.arange(0, N)
    return tl.dot((n[:, None] == n[None, :]).to(x.dtype), x)


@triton.jit
def _summed(x, N: constexpr, W: constexpr, PRODUCT: constexpr):
    """Return x [N,W]; for a PRODUCT, which keeps rows r and r + 8 in a thread, their sums [8,W]: fewer registers."""
    return tl.sum(tl.reshape(x, [N // 8, 8, W]), 0) if PRODUCT else x


@triton.jit
def reciprocal(x):
    """Return 1 / x for positive x, in two instructions: a division takes eight."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return reciprocal(1.0 + tl.exp2(-LOG2_E * x))


@triton.jit
def tile(index, sequences, T: constexpr, ROWS: constexpr):
    """Return row t * S + s, step t and existence for ROWS rows: group ``index`` of ROWS // T whole sequences."""
    offset = tl.arange(0, ROWS)
    sequence = index * (ROWS // T) + offset // T
    exists = (offset < ROWS // T * T) & (sequence < sequences)
    return (offset % T * sequences + sequence).to(tl.int64), offset % T, exists


@triton.jit
def _blocks(weights, C: constexpr, W: constexpr):
    """Build the block-diagonal matrix [W,W]: row r of each 4 x 4 block comes from row r of weights, W channels."""
    r, w = tl.arange(0, W)[:, None], tl.arange(0, W)[None, :]
    return tl.load(weights + r % 4 * C + w, r // 4 == w // 4, 0.0)


@triton.jit
def _store_blocks(weights, matrix, C: constexpr, W: constexpr):
    """Write the diagonal blocks of matrix [W,W], 4 x 4 each, to rows 0 to 3 of weights: the inverse of _blocks."""
    r, w = tl.arange(0, W)[:, None], tl.arange(0, W)[None, :]
    tl.store(weights + r % 4 * C + w, matrix, r // 4 == w // 4)


@triton.jit(do_not_specialize=["sequences"])
def conv_forward(
    x,
    table,
    bias,
    out,
    keys,
    values,
    gates,
    sequences,
    T: constexpr,
    H: constexpr,
    D: constexpr,
    X: constexpr,
    ROWS: constexpr,
    W: constexpr,
):
    """Compute the SiLU after the causal convolution over x [T,S,C], row stride X. A program: ROWS // T sequences.

    For an mLSTM the SiLU goes to out as queries, with keys (from out) and values (from x), [T,S,C] each, and gates
    (from both) [T,S,2H] float32, with bias [2H]. For an sLSTM bias, keys, values and gates are ``None``, and a row in
    out [H,T,S,3D] gets the SiLU over a head's channels, then the raw channels. W: channels at a time.
    """
    C = H * D
    row, t, exists = tile(tl.program_id(0), sequences, T, ROWS)
    column = tl.arange(0, GATE_TILE)
    used = column < 2 * H
    sums = tl.zeros([ROWS, GATE_TILE], tl.float32)
    for first in range(0, H * D, W):
        w = first + tl.arange(0, W)
        y = tl.zeros([ROWS, W], tl.float32) + tl.load(table + TAP_BIAS * C + w)[None, :]
        for back in tl.static_range(TAPS):
            past = tl.load(x + (row - back * sequences)[:, None] * X + w, (exists & (t >= back))[:, None], 0.0)
            y += past.to(tl.float32) * tl.load(table + (TAPS - 1 - back) * C + w)
        current = tl.load(x + row[:, None] * X + w, exists[:, None], 0.0)
        y = (y * sigmoid(y)).to(current.dtype)
        if keys is not None:
            offset = row[:, None] * C + w
            tl.store(out + offset, y, exists[:, None])
            tl.debug_barrier()
            # Without the load the compiler convolves in the layout of a factor, too.
            y = tl.load(out + offset, exists[:, None], 0.0)
            k = dot(y, _blocks(table + QUERY_KEY * C + first, C, W).to(y.dtype))
            v = dot(current, _blocks(table + VALUE * C + first, C, W).to(y.dtype))
            tl.store(keys + offset, k.to(y.dtype), exists[:, None])
            tl.store(values + offset, v.to(y.dtype), exists[:, None])
            weights = table + (column + GATES)[None, :] * C + w[:, None]
            sums += dot(y, tl.load(weights, used[None, :], 0.0).to(y.dtype))
            sums += dot(current, tl.load(weights + 2 * H * C, used[None, :], 0.0).to(y.dtype))
        else:
            convolved = out + (row + first // D * T * sequences.to(tl.int64))[:, None] * (3 * D) + w % D
            tl.store(convolved, y, exists[:, None])
            tl.store(convolved + D, current, exists[:, None])
    if gates is not None:
        sums += tl.load(bias + column, used, 0.0)[None, :]
        tl.store(gates + row[:, None] * (2 * H) + column, sums, exists[:, None] & used[None, :])


@triton.jit(do_not_specialize=["sequences"])
def conv_backward(
    x,
    table,
    out,
    d_out,
    d_keys,
    d_values,
    d_gates,
    d_x,
    shares,
    sequences,
    T: constexpr,
    H: constexpr,
    D: constexpr,
    X: constexpr,
    N: constexpr,
    W: constexpr,
):
    """Compute gradients of conv_forward. A program: N sequences, W channels in a head, from the last step to the first.

    d_out: gradient of out apart from keys and gates; d_values: gradient of values. Writes d_x [T,S,C] with row stride
    X, and shares [programs,rows,C] of the table gradient. For an mLSTM x has row stride X; out, d_out, d_keys and
    d_values are [T,S,C], d_gates is [T,S,2H]. For an sLSTM out, d_keys and d_gates are ``None``, and raw channels stand
    in for the values: x points to the second thirds in the rows [H,T,S,3D], d_out and d_values to the halves in the
    rows of their gradient [H,T,S,2D].
    """
    C = H * D
    first = tl.program_id(0) % (C // W) * W
    group = tl.program_id(0) // (C // W)
    sequence = group * N + tl.arange(0, N)
    exists = (sequence < sequences)[:, None]
    w = first + tl.arange(0, W)
    column = tl.arange(0, GATE_TILE if 4 * H <= GATE_TILE else 2 * GATE_TILE)  # gates by out, then gates by x
    by_out, used = (column < 2 * H)[None, :], column < 4 * H
    if d_keys is not None:
        first_row, channel = 0, w
        X_ROW, ROW = X, C
    else:
        first_row, channel = first // D * T, w % D
        X_ROW, ROW = 3 * D, 2 * D
    tap0, tap1 = tl.load(table + w), tl.load(table + C + w)
    tap2, tap3 = tl.load(table + 2 * C + w), tl.load(table + 3 * C + w)
    bias = tl.load(table + TAP_BIAS * C + w)
    PRODUCT: constexpr = d_keys is not None and x.dtype.element_ty != tl.float32
    zeros = tl.zeros([N, W], tl.float32)
    sums = _summed(zeros, N, W, PRODUCT)
    d_tap0, d_tap1, d_tap2, d_tap3, d_bias = sums, sums, sums, sums, sums
    if d_keys is not None:
        query_key = tl.trans(_blocks(table + QUERY_KEY * C + first, C, W)).to(x.dtype.element_ty)
        value = tl.trans(_blocks(table + VALUE * C + first, C, W)).to(x.dtype.element_ty)
        gates = tl.load(table + (column + GATES)[:, None] * C + w, used[:, None], 0.0).to(x.dtype.element_ty)
        d_query_key, d_value = tl.zeros([W, W], tl.float32), tl.zeros([W, W], tl.float32)
        d_weights = tl.zeros([W, column.shape[0]], tl.float32)
    final = tl.full([], T - 1, tl.int32)  # a tensor: with a number of Python, masks are not of type int1 everywhere
    row = ((first_row + T - 1) * sequences.to(tl.int64) + sequence)[:, None]
    x0 = wide(tl.load(x + row * X_ROW + channel, exists, 0.0), N, PRODUCT)
    x1 = wide(tl.load(x + (row - sequences) * X_ROW + channel, exists & (final > 0), 0.0), N, PRODUCT)
    x2 = wide(tl.load(x + (row - 2 * sequences) * X_ROW + channel, exists & (final > 1), 0.0), N, PRODUCT)
    # What x has so far added before the SiLU at t, t - 1, t - 2, and the gradient there at t + 1, t + 2, t + 3
    y0, y1, y2 = bias + tap3 * x0 + tap2 * x1 + tap1 * x2, bias + tap3 * x1 + tap2 * x2, bias + tap3 * x2
    d1, d2, d3 = zeros, zeros, zeros
    for back in range(T):
        t = final - back
        row = ((first_row + t) * sequences.to(tl.int64) + sequence)[:, None]
        x3 = wide(tl.load(x + (row - 3 * sequences) * X_ROW + channel, exists & (t > 2), 0.0), N, PRODUCT)
        y = y0 + tap0 * x3
        y0, y1, y2 = y1 + tap1 * x3, y2 + tap2 * x3, bias + tap3 * x3
        current = tl.load(x + row * X_ROW + channel, exists, 0.0)
        x0 = wide(current, N, PRODUCT)
        gate = sigmoid(y)
        offset = row * ROW + channel
        d_y = wide(tl.load(d_out + offset, exists, 0.0), N, PRODUCT)
        d_now = tl.load(d_values + offset, exists, 0.0)
        if d_keys is not None:
            q = tl.load(out + offset, exists, 0.0)
            d_k = tl.load(d_keys + offset, exists, 0.0)
            d_g = tl.load(d_gates + row * (2 * H) + column % (2 * H), exists & used[None, :], 0.0).to(q.dtype)
            g_out, g_x = tl.where(by_out, d_g, 0.0), tl.where(by_out, 0.0, d_g)
            d_query_key = dot(tl.trans(q), d_k, d_query_key)
            d_weights = dot(tl.trans(q), g_out, d_weights)
            d_value = dot(tl.trans(current), d_now, d_value)
            d_weights = dot(tl.trans(current), g_x, d_weights)
            d_y = dot(g_out, gates, dot(d_k, query_key, d_y))
            d_now = dot(g_x, gates, dot(d_now, value))
        d0 = d_y * (gate + y * gate * (1.0 - gate))
        d_now = d_now.to(tl.float32) + tap3 * d0 + tap2 * d1 + tap1 * d2 + tap0 * d3
        target = (t * sequences.to(tl.int64) + sequence)[:, None]
        tl.store(d_x + target * X + w, d_now.to(d_x.dtype.element_ty), exists)
        d_bias += _summed(d0, N, W, PRODUCT)
        d_tap3 += _summed(d0 * x0, N, W, PRODUCT)
        d_tap2 += _summed(d1 * x0, N, W, PRODUCT)
        d_tap1 += _summed(d2 * x0, N, W, PRODUCT)
        d_tap0 += _summed(d3 * x0, N, W, PRODUCT)
        d1, d2, d3 = d0, d1, d2
    shares += group.to(tl.int64) * ((GATES + 4 * H if d_keys is not None else TAP_BIAS + 1) * C)
    tl.store(shares + w, tl.sum(d_tap0, 0))
    tl.store(shares + C + w, tl.sum(d_tap1, 0))
    tl.store(shares + 2 * C + w, tl.sum(d_tap2, 0))
    tl.store(shares + 3 * C + w, tl.sum(d_tap3, 0))
    tl.store(shares + TAP_BIAS * C + w, tl.sum(d_bias, 0))
    if d_keys is not None:
        _store_blocks(shares + QUERY_KEY * C + first, d_query_key, C, W)
        _store_blocks(shares + VALUE * C + first, d_value, C, W)
        gate_shares = shares + (column + GATES)[None, :] * C + w[:, None]
        tl.store(gate_shares, d_weights, used[None, :])
