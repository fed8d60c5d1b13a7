"""Triton kernels of the two xLSTM cells, forward and backward; convolution.py has what comes before them.

Shape letters as in exact.py: S sequences, T history steps, Q steps of the output, E width, I inner width of an
mLSTM block, H heads, D head width; here C = H * D channels, E of an sLSTM and I of an mLSTM.  Activations are
time-major: step t of sequence s is row t * S + s, and loads run along the channels of one head.

Reading and writing memory takes most of a launch's time, so a backward kernel computes again what it can instead of
loading it.  On chip everything is float32, except the factors of a product, which have the type of the activations.
There are no atomics: each program writes its share of a weight's gradient to a row of its own, and the caller adds the
rows up.  The same input therefore gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from socialx.model.xlstm import exact
from socialx.model.xlstm.convolution import dot, tile

LARGEST_EXPONENT = constexpr(exact.LARGEST_EXPONENT)
NORMALISER_EPS = constexpr(exact.NORMALISER_EPS)


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _tanh(x):
    """Near zero by the polynomial of Cephes' tanhf: the other formula loses its digits there."""
    s = x * x
    p = (((-5.70498872745e-3 * s + 2.06390887954e-2) * s - 5.37397155531e-2) * s + 1.33314422036e-1) * s
    return tl.where(tl.abs(x) < 0.625, x + x * s * (p - 3.33332819422e-1), 2.0 * tl.sigmoid(2.0 * x) - 1.0)


@triton.jit
def _normalise(x, eps, D: constexpr):
    """x [N,D] -> its rows with mean 0 and variance 1 [N,D], and what they were multiplied by [N,1]."""
    x -= (tl.sum(x, 1) / D)[:, None]
    scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
    return x * scale, scale


@triton.jit
def _normalise_backward(d_y, y, scale, D: constexpr):
    return scale * (d_y - (tl.sum(d_y, 1) / D)[:, None] - y * (tl.sum(d_y * y, 1) / D)[:, None])


@triton.jit
def _decay(i, f, T: constexpr, ROWS: constexpr):
    """Gates [ROWS] of whole sequences -> which step reads which, g, top, m, decay, as in exact._decay_weights."""
    place = tl.arange(0, ROWS)
    reads = (place[:, None] // T == place[None, :] // T) & (place[:, None] >= place[None, :])
    c = tl.sum(tl.where(reads, -_softplus(-f)[None, :], 0.0), 1)
    g = i - c
    top = tl.max(tl.where(reads, g[None, :], float("-inf")), 1)
    decay = tl.exp(tl.where(reads, g[None, :] - top[:, None], float("-inf")))
    return reads, g, top, c + top, decay


@triton.jit(do_not_specialize=["sequences"])
def mlstm_forward(
    queries,
    keys,
    values,
    gates,
    z,
    skip,
    norm,
    out,
    sequences,
    eps,
    T: constexpr,
    H: constexpr,
    D: constexpr,
    Z: constexpr,
    ROWS: constexpr,
    LAST: constexpr,
):
    """The cell, head norm, skip and output gate.  A program computes ROWS // T sequences of one head.

    It reads queries, keys, values [T,S,C], gates [T,S,2H], z [Q,S,C] in rows of Z, skip and norm [C], and writes
    out [Q,S,C].  LAST: Q is 1, the last step; else Q is T.
    """
    C = H * D
    head = tl.program_id(0) % H
    row, t, exists = tile(tl.program_id(0) // H, sequences, T, ROWS)
    d = head * D + tl.arange(0, D)
    has_output, target = exists, row
    if LAST:
        has_output, target = exists & (t == T - 1), row - (T - 1) * sequences
    q = tl.load(queries + row[:, None] * C + d, exists[:, None], 0.0)
    k = tl.load(keys + row[:, None] * C + d, exists[:, None], 0.0)
    v = tl.load(values + row[:, None] * C + d, exists[:, None], 0.0)
    i = tl.load(gates + row * (2 * H) + head, exists, 0.0)
    f = tl.load(gates + row * (2 * H) + H + head, exists, 0.0)
    _reads, _g, _top, m, decay = _decay(i, f, T, ROWS)
    p = dot(q, tl.trans(k)) * decay
    floor = tl.exp(tl.minimum(-m, LARGEST_EXPONENT))
    p /= (tl.maximum(tl.abs(tl.sum(p, 1)), floor) + NORMALISER_EPS)[:, None]
    h, _scale = _normalise(dot(p.to(v.dtype), v), eps, D)
    gate = tl.load(z + target[:, None] * Z + d, has_output[:, None], 0.0).to(tl.float32)
    h = (h * tl.load(norm + d) + q.to(tl.float32) * tl.load(skip + d)) * gate * tl.sigmoid(gate)
    tl.store(out + target[:, None] * C + d, h.to(q.dtype), has_output[:, None])


@triton.jit(do_not_specialize=["sequences"])
def mlstm_backward(
    queries,
    keys,
    values,
    gates,
    z,
    skip,
    norm,
    d_out,
    d_query,
    d_key,
    d_value,
    d_gates,
    d_z,
    shares,
    sequences,
    eps,
    T: constexpr,
    H: constexpr,
    D: constexpr,
    Z: constexpr,
    ROWS: constexpr,
    LAST: constexpr,
):
    """Gradients of mlstm_forward, which is computed again; its programs and shapes are those of mlstm_forward.

    It writes d_query, d_key, d_value [T,S,C], d_gates [T,S,2H], d_z [Q,S,C] in rows of Z, and shares [programs,2,C] of
    the gradients of skip and norm.
    """
    C = H * D
    head = tl.program_id(0) % H
    group = tl.program_id(0) // H
    row, t, exists = tile(group, sequences, T, ROWS)
    d = head * D + tl.arange(0, D)
    has_output, target = exists, row
    if LAST:
        has_output, target = exists & (t == T - 1), row - (T - 1) * sequences
    q = tl.load(queries + row[:, None] * C + d, exists[:, None], 0.0)
    k = tl.load(keys + row[:, None] * C + d, exists[:, None], 0.0)
    v = tl.load(values + row[:, None] * C + d, exists[:, None], 0.0)
    low = q.dtype
    i = tl.load(gates + row * (2 * H) + head, exists, 0.0)
    f = tl.load(gates + row * (2 * H) + H + head, exists, 0.0)
    reads, g, top, m, decay = _decay(i, f, T, ROWS)
    p = dot(q, tl.trans(k)) * decay
    n = tl.sum(p, 1)
    floor = tl.exp(tl.minimum(-m, LARGEST_EXPONENT))
    divisor = tl.maximum(tl.abs(n), floor) + NORMALISER_EPS
    p /= divisor[:, None]
    h, scale = _normalise(dot(p.to(low), v), eps, D)
    # output gate, skip, norm
    gate = tl.load(z + target[:, None] * Z + d, has_output[:, None], 0.0).to(tl.float32)
    d_h = tl.load(d_out + target[:, None] * C + d, has_output[:, None], 0.0).to(tl.float32)
    skipped = q.to(tl.float32)
    weight, opening = tl.load(norm + d), tl.sigmoid(gate)
    d_gate = d_h * (h * weight + skipped * tl.load(skip + d)) * opening * (1.0 + gate * (1.0 - opening))
    tl.store(d_z + target[:, None] * Z + d, d_gate.to(low), has_output[:, None])
    d_h *= gate * opening
    shares += group.to(tl.int64) * 2 * C + d
    tl.store(shares, tl.sum(d_h * skipped, 0))
    tl.store(shares + C, tl.sum(d_h * h, 0))
    d_w = _normalise_backward(d_h * weight, h, scale, D).to(low)
    # weighted sum, normaliser, decay
    tl.store(d_value + row[:, None] * C + d, dot(tl.trans(p.to(low)), d_w).to(low), exists[:, None])
    d_p = dot(d_w, tl.trans(v))
    d_divisor = -tl.sum(d_p * p, 1) / divisor
    above = tl.abs(n) >= floor
    d_n = tl.where(above, tl.where(n < 0, -d_divisor, d_divisor), 0.0)
    d_m = tl.where(above | (-m > LARGEST_EXPONENT), 0.0, -d_divisor * floor)
    d_p = d_p / divisor[:, None] + d_n[:, None]  # of p before it was divided
    d_decay = d_p * p * divisor[:, None]  # of its logarithm
    d_p = (d_p * decay).to(low)  # of q . k
    tl.store(d_query + row[:, None] * C + d, (dot(d_p, k) + d_h * tl.load(skip + d)).to(low), exists[:, None])
    tl.store(d_key + row[:, None] * C + d, dot(tl.trans(d_p), q).to(low), exists[:, None])
    highest = (reads & (g[None, :] == top[:, None])).to(tl.float32)
    d_top = (d_m - tl.sum(d_decay, 1)) / tl.maximum(tl.sum(highest, 1), 1.0)
    d_i = tl.sum(d_decay + highest * d_top[:, None], 0)
    d_log_f = tl.sum(tl.where(reads, (d_m - d_i)[:, None], 0.0), 0)
    tl.store(d_gates + row * (2 * H) + head, d_i, exists)
    tl.store(d_gates + row * (2 * H) + H + head, d_log_f * tl.sigmoid(-f), exists)


@triton.jit
def _keep(h, keep, at, exists, factor):
    """Dropout: h [N,D] times factor = 1 / (1 - p) where keep is true, else 0."""
    return tl.where(tl.load(keep + at, exists, 0) != 0, h * factor, 0.0)


@triton.jit
def _halves(x, N: constexpr, D: constexpr):
    """x [N,2D] -> its halves [N,D]."""
    return tl.split(tl.permute(tl.reshape(x, [N, 2, D]), [0, 2, 1]))


@triton.jit
def _whole(a, b, N: constexpr, D: constexpr):
    """Halves [N,D] -> [N,2D]."""
    return tl.reshape(tl.permute(tl.join(a, b), [0, 2, 1]), [N, 2 * D])


@triton.jit(do_not_specialize=["sequences"])
def slstm_forward(
    gates,
    kernel,
    bias,
    norm,
    keep,
    y,
    h,
    states,
    sequences,
    eps,
    factor,
    T: constexpr,
    H: constexpr,
    D: constexpr,
    N: constexpr,
    HOLD: constexpr,
    LAST: constexpr,
):
    """The scan (formulas in exact._Scan), dropout and head norm.  A program computes N sequences of one head.

    It reads gates [H,T,S,4D] (input, forget, z, output), kernel [H,4D,D], bias [4,C], norm [C] and keep [Q,S,C], None
    without dropout.  It writes y [Q,S,C], h [H,T,S,D] and states [H,T,S,2D] float32, which are r and L.  HOLD: the
    kernel stays on chip; else every step loads it.
    """
    C = H * D
    head = tl.program_id(0) % H
    sequence = tl.program_id(0) // H * N + tl.arange(0, N)
    exists = (sequence < sequences)[:, None]
    d, d2, d4 = tl.arange(0, D), tl.arange(0, 2 * D), tl.arange(0, 4 * D)
    kernel += head * 4 * D * D + d4[None, :] * D + d[:, None]  # [D,4D]
    if HOLD:
        recurrent = tl.load(kernel)
    shift = tl.load(bias + d4 // D * C + head * D + d4 % D)
    weight = tl.load(norm + head * D + d)
    r = tl.zeros([N, D], tl.float32)
    log_n = tl.full([N, D], float("-inf"), tl.float32)
    hidden = r
    for t in range(T):
        if not HOLD:
            recurrent = tl.load(kernel)
        row = ((head * T + t) * sequences.to(tl.int64) + sequence)[:, None]
        raw = tl.load(gates + row * (4 * D) + d4, exists, 0.0) + shift
        first, second = _halves(raw + dot(hidden.to(h.dtype.element_ty), recurrent), N, 2 * D)
        i, f = _halves(first, N, D)
        z, o = _halves(second, N, D)
        z, o = _tanh(z), tl.sigmoid(o)
        rise = log_n - _softplus(-f) - i
        r = z + tl.sigmoid(rise) * (r - z)
        log_n = i + _softplus(rise)
        hidden = o * r
        tl.store(h + row * D + d, hidden.to(h.dtype.element_ty), exists)
        tl.store(states + row * (2 * D) + d2, _whole(r, log_n, N, D), exists)
        if (not LAST) or t == T - 1:
            target = ((0 if LAST else t) * sequences.to(tl.int64) + sequence)[:, None] * C + head * D + d
            kept = _keep(hidden, keep, target, exists, factor) if keep is not None else hidden
            kept, _scale = _normalise(kept, eps, D)
            tl.store(y + target, (kept * weight).to(y.dtype.element_ty), exists)


@triton.jit(do_not_specialize=["sequences"])
def slstm_backward(
    gates,
    kernel,
    bias,
    norm,
    keep,
    h,
    states,
    d_y,
    d_gates,
    shares,
    sequences,
    eps,
    factor,
    T: constexpr,
    H: constexpr,
    D: constexpr,
    N: constexpr,
    HOLD: constexpr,
    LAST: constexpr,
):
    """Gradients of slstm_forward, from the last step to the first; its programs and shapes are those of slstm_forward.

    It writes d_gates [H,T,S,4D] and shares [programs,5,C] of the gradients of the four biases and the norm.
    """
    C = H * D
    head = tl.program_id(0) % H
    group = tl.program_id(0) // H
    sequence = group * N + tl.arange(0, N)
    exists = (sequence < sequences)[:, None]
    d, d2, d4 = tl.arange(0, D), tl.arange(0, 2 * D), tl.arange(0, 4 * D)
    kernel += head * 4 * D * D + d4[None, :] * D + d[:, None]  # [D,4D]
    if HOLD:
        recurrent = tl.load(kernel)
    shift = tl.load(bias + d4 // D * C + head * D + d4 % D)
    weight = tl.load(norm + head * D + d)
    low = h.dtype.element_ty
    final = tl.full([], T - 1, tl.int32)
    # Rows r and r + 8 of a product are in one thread: adding them there halves the registers of a sum.
    d_shift, d_weight = tl.zeros([8, 4 * D], tl.float32), tl.zeros([8, D], tl.float32)
    d_h = tl.zeros([N, D], tl.float32)
    d_r, d_log_n = d_h, d_h
    for back in range(T):
        t = final - back
        if not HOLD:
            recurrent = tl.load(kernel)
        row = ((head * T + t) * sequences.to(tl.int64) + sequence)[:, None]
        older = exists & (t > 0)
        before = tl.load(h + (row - sequences) * D + d, older, 0.0)
        r_old, log_n = _halves(tl.load(states + (row - sequences) * (2 * D) + d2, older, 0.0), N, D)
        log_n = tl.where(t > 0, log_n, float("-inf"))
        raw = tl.load(gates + row * (4 * D) + d4, exists, 0.0) + shift
        first, second = _halves(raw + dot(before, recurrent), N, 2 * D)
        i, f = _halves(first, N, D)
        z, o = _halves(second, N, D)
        z, o = _tanh(z), tl.sigmoid(o)
        a = tl.sigmoid(log_n - _softplus(-f) - i)
        r = z + a * (r_old - z)
        # norm and dropout
        target = ((0 if LAST else t) * sequences.to(tl.int64) + sequence)[:, None] * C + head * D + d
        has_output = exists & (t == T - 1) if LAST else exists
        d_out = tl.load(d_y + target, has_output, 0.0).to(tl.float32)
        kept = _keep(o * r, keep, target, has_output, factor) if keep is not None else o * r
        kept, scale = _normalise(kept, eps, D)
        d_weight += tl.sum(tl.reshape(d_out * kept, [N // 8, 8, D]), 0)
        d_out = _normalise_backward(d_out * weight, kept, scale, D)
        d_h += _keep(d_out, keep, target, has_output, factor) if keep is not None else d_out
        # the step
        d_r += d_h * o
        d_new = d_r * (1.0 - a)
        d_u = a * (d_log_n + d_new * (r_old - z))
        d_if = _whole(d_log_n - d_u, d_u * tl.sigmoid(-f), N, D)
        d_zo = _whole(d_new * (1.0 - z * z), d_h * r * o * (1.0 - o), N, D)
        d_raw = _whole(d_if, d_zo, N, 2 * D)
        d_r, d_log_n = d_r * a, d_u
        d_shift += tl.sum(tl.reshape(d_raw, [N // 8, 8, 4 * D]), 0)
        d_h = dot(d_raw.to(low), tl.trans(recurrent))
        tl.store(d_gates + row * (4 * D) + d4, d_raw.to(low), exists)
    shares += group.to(tl.int64) * 5 * C + head * D
    tl.store(shares + d4 // D * C + d4 % D, tl.sum(d_shift, 0))
    tl.store(shares + 4 * C + d, tl.sum(d_weight, 0))
