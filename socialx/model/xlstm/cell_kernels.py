"""Triton kernels for both xLSTM cells, forward and backward; convolution_kernels.py has the preceding steps.

Shape letters as in exact.py: S sequences, T lookback steps, Q output steps, E width, I inner width of an mLSTM block, H
heads, D head width; here C = H * D channels, E for an sLSTM and I for an mLSTM. Activations are time-major: step t in
sequence s is row t * S + s, and loads run along a head's channels.

Memory traffic dominates a launch, so a backward kernel recomputes what it can. On chip everything is float32, except
product factors, which have the activation type. Atomics are avoided: each program writes its share of a weight gradient
to a separate row, and the caller adds the rows. Equal input therefore gives equal bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from socialx.model.xlstm import exact
from socialx.model.xlstm.convolution_kernels import LOG2_E, dot, reciprocal, sigmoid, tile, wide

LARGEST_EXPONENT = constexpr(exact.LARGEST_EXPONENT)
NORMALISER_EPS = constexpr(exact.NORMALISER_EPS)


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _tanh(x):
    """Return tanh; near zero by the polynomial in Cephes' tanhf, where the other formula loses digits."""
    s = x * x
    p = (((-5.70498872745e-3 * s + 2.06390887954e-2) * s - 5.37397155531e-2) * s + 1.33314422036e-1) * s
    return tl.where(tl.abs(x) < 0.625, x + x * s * (p - 3.33332819422e-1), 2.0 * tl.sigmoid(2.0 * x) - 1.0)


@triton.jit
def _normalise(x, eps, D: constexpr):
    """Normalise rows in x [N,D] to mean 0 and variance 1; also return the row factors [N,1]."""
    x -= (tl.sum(x, 1) / D)[:, None]
    scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
    return x * scale, scale


@triton.jit
def _normalise_backward(d_y, y, scale, D: constexpr):
    return scale * (d_y - (tl.sum(d_y, 1) / D)[:, None] - y * (tl.sum(d_y * y, 1) / D)[:, None])


@triton.jit
def _decay(i, f, T: constexpr, ROWS: constexpr):
    """Map input and forget gates i, f [ROWS] of whole sequences -> reads, decay, floor, bounded.

    reads: which step reads which. decay, m: as in exact._decay_weights. floor: exp(-m), or exp(LARGEST_EXPONENT) where
    bounded. Logarithms have base 2.
    """
    offset = tl.arange(0, ROWS)
    reads = (offset[:, None] // T == offset[None, :] // T) & (offset[:, None] >= offset[None, :])
    f *= LOG2_E
    log_f = tl.minimum(f, 0.0) - tl.log2(1.0 + tl.exp2(-tl.abs(f)))
    c = tl.sum(tl.where(reads, log_f[None, :], 0.0), 1)
    g = LOG2_E * i - c
    top = tl.max(tl.where(reads, g[None, :], float("-inf")), 1)
    decay = tl.exp2(tl.where(reads, g[None, :] - top[:, None], float("-inf")))
    bounded = -(c + top) > LARGEST_EXPONENT * LOG2_E
    floor = tl.exp2(tl.minimum(-(c + top), LARGEST_EXPONENT * LOG2_E))
    return reads, decay, floor, bounded


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
    """Compute the cell, head norm, skip and output gate. A program computes ROWS // T sequences of one head.

    Reads queries, keys, values [T,S,C], gates [T,S,2H], z [Q,S,C] with row stride Z, skip and norm [C], and writes out
    [Q,S,C]. LAST: Q is 1, the last step; else Q is T.
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
    _reads, decay, floor, _bounded = _decay(i, f, T, ROWS)
    p = dot(q, tl.trans(k)) * decay
    p *= reciprocal(tl.maximum(tl.abs(tl.sum(p, 1)), floor) + NORMALISER_EPS)[:, None]
    h, _scale = _normalise(dot(p.to(v.dtype), v), eps, D)
    gate = tl.load(z + target[:, None] * Z + d, has_output[:, None], 0.0).to(tl.float32)
    h = (h * tl.load(norm + d) + q.to(tl.float32) * tl.load(skip + d)) * gate * sigmoid(gate)
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
    """Compute gradients of mlstm_forward, recomputed; programs and shapes as in mlstm_forward.

    Writes d_query, d_key, d_value [T,S,C], d_gates [T,S,2H], d_z [Q,S,C] with row stride Z, and shares [programs,2,C]
    of the skip and norm gradients.
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
    reads, decay, floor, bounded = _decay(i, f, T, ROWS)
    p = dot(q, tl.trans(k)) * decay
    n = tl.sum(p, 1)
    small = tl.abs(n) < floor
    inverse = reciprocal(tl.where(small, floor, tl.abs(n)) + NORMALISER_EPS)
    side = tl.where(small, 0.0, tl.where(n < 0, -1.0, 1.0))  # the sign of n where n divides
    of_m = tl.where(small & (bounded == 0), floor * inverse, 0.0)
    of_top = tl.where(small & bounded, 1.0, NORMALISER_EPS * inverse)
    p *= inverse[:, None]
    h, scale = _normalise(dot(p.to(low), v), eps, D)
    # output gate, skip, norm
    gate = wide(tl.load(z + target[:, None] * Z + d, has_output[:, None], 0.0), ROWS)
    opening = sigmoid(gate)
    silu = gate * opening
    d_h = wide(tl.load(d_out + target[:, None] * C + d, has_output[:, None], 0.0), ROWS)
    d_gate = d_h * (opening + silu * (1.0 - opening))
    d_h *= silu
    shares += group.to(tl.int64) * 2 * C + d
    tl.store(shares + C, tl.sum(d_h * h, 0))
    skipped = wide(q, ROWS)
    tl.store(shares, tl.sum(d_h * skipped, 0))
    weight = tl.load(norm + d)
    d_gate *= h * weight + skipped * tl.load(skip + d)
    tl.store(d_z + target[:, None] * Z + d, d_gate.to(low), has_output[:, None])
    d_w = _normalise_backward(d_h * weight, h, scale, D).to(low)
    # weighted sum, scaler, decay
    tl.store(d_value + row[:, None] * C + d, dot(tl.trans(p.to(low)), d_w).to(low), exists[:, None])
    d_p = dot(d_w, tl.trans(v))
    d_decay = d_p * p
    total = tl.sum(d_decay, 1)  # m is in the decay and in floor: what both give it cancels, but for NORMALISER_EPS
    d_m = total * of_m
    d_n = -total * side
    d_decay += d_n[:, None] * p
    d_p = ((d_p + d_n[:, None]) * inverse[:, None] * decay).to(low)  # of q . k
    tl.store(d_query + row[:, None] * C + d, (dot(d_p, k) + d_h * tl.load(skip + d)).to(low), exists[:, None])
    tl.store(d_key + row[:, None] * C + d, dot(tl.trans(d_p), q).to(low), exists[:, None])
    highest = (decay == 1.0).to(tl.float32)
    d_top = -total * of_top * reciprocal(tl.maximum(tl.sum(highest, 1), 1.0))
    d_i = tl.sum(d_decay + highest * d_top[:, None], 0)
    d_log_f = tl.sum(tl.where(reads, (d_m - d_i)[:, None], 0.0), 0)
    tl.store(d_gates + row * (2 * H) + head, d_i, exists)
    tl.store(d_gates + row * (2 * H) + H + head, d_log_f * sigmoid(-f), exists)


@triton.jit
def _keep(h, keep, at, exists, factor):
    """Apply dropout to h [N,D], at addresses ``at`` of mask keep: kept values times factor = 1 / (1 - p), else 0."""
    return tl.where(tl.load(keep + at, exists, 0) != 0, h * factor, 0.0)


@triton.jit
def _gate(matrix, number: constexpr, D: constexpr):
    """Load a gate's matrix [D,D], number 0 to 3, from matrix [4D,D], transposed."""
    d = tl.arange(0, D)
    return tl.load(matrix + number * D * D + d[None, :] * D + d[:, None])


@triton.jit
def _held(matrix, D: constexpr, HOLD: constexpr):
    """Return the four gate matrices in matrix [4D,D], loaded (HOLD), or their addresses for ``_select`` to load."""
    if HOLD:
        return _gate(matrix, 0, D), _gate(matrix, 1, D), _gate(matrix, 2, D), _gate(matrix, 3, D)
    else:
        return matrix, matrix, matrix, matrix


@triton.jit
def _select(held, number: constexpr, D: constexpr, HOLD: constexpr):
    """Return the matrix [D,D] of gate ``number`` (0 to 3) from the result of ``_held``, loading where HOLD is off."""
    if HOLD:
        return held[number]
    else:
        return _gate(held[number], number, D)


@triton.jit
def _biases(bias, C: constexpr):
    """Load a head's four gate biases [D] each from bias [4,C], at the head's addresses."""
    return tl.load(bias), tl.load(bias + C), tl.load(bias + 2 * C), tl.load(bias + 3 * C)


@triton.jit
def _in_eights(x, N: constexpr, D: constexpr):
    """Sum x [N,D] over every eighth row -> [8,D], to save registers: a product keeps rows r and r + 8 in a thread."""
    return tl.sum(tl.reshape(x, [N // 8, 8, D]), 0)


@triton.jit(do_not_specialize=["sequences"])
def slstm_forward(
    reads,
    weight,
    kernel,
    bias,
    norm,
    keep,
    y,
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
    """Compute gates, scan (formulas in exact._Scan), dropout and head norm. A program: N sequences in one head.

    T steps, S sequences, H heads, D head width, C = H D, Q = 1 (LAST) or T. A row in reads [H,T,S,3D] holds convolved
    channels, raw channels, and room for the previous step's h, written here. Gate order: input, forget, z, output;
    weight [H,4D,D] multiplies convolved channels for the first two and raw channels for the others, kernel [H,4D,D]
    multiplies h; bias [4,C]. norm [C]: scale, with eps. keep [Q,S,C]: kept values are multiplied by factor; ``None``:
    no dropout. Writes y [Q,S,C], states [H,T,S,2D] float32: r, then L in exact._Scan. HOLD: keep matrices on chip; else
    each step loads them.
    """
    C = H * D
    head = tl.program_id(0) % H
    sequence = tl.program_id(0) // H * N + tl.arange(0, N)
    exists = (sequence < sequences)[:, None]
    d = tl.arange(0, D)
    low = reads.dtype.element_ty
    w, u = _held(weight + head * 4 * D * D, D, HOLD), _held(kernel + head * 4 * D * D, D, HOLD)
    b_i, b_f, b_z, b_o = _biases(bias + head * D + d, C)
    scale = tl.load(norm + head * D + d)
    r = tl.zeros([N, D], tl.float32)
    log_n = tl.full([N, D], float("-inf"), tl.float32)
    hidden = r
    for t in range(T):
        row = ((head * T + t) * sequences.to(tl.int64) + sequence)[:, None]
        offset, before = reads + row * (3 * D) + d, hidden.to(low)
        convolved, current = tl.load(offset, exists, 0.0), tl.load(offset + D, exists, 0.0)
        tl.store(offset + 2 * D, before, exists)
        i = dot(convolved, _select(w, 0, D, HOLD)) + dot(before, _select(u, 0, D, HOLD)) + b_i
        f = dot(convolved, _select(w, 1, D, HOLD)) + dot(before, _select(u, 1, D, HOLD)) + b_f
        z = _tanh(dot(current, _select(w, 2, D, HOLD)) + dot(before, _select(u, 2, D, HOLD)) + b_z)
        o = tl.sigmoid(dot(current, _select(w, 3, D, HOLD)) + dot(before, _select(u, 3, D, HOLD)) + b_o)
        rise = log_n - _softplus(-f) - i
        r = z + tl.sigmoid(rise) * (r - z)
        log_n = i + _softplus(rise)
        hidden = o * r
        tl.store(states + row * (2 * D) + d, r, exists)
        tl.store(states + row * (2 * D) + D + d, log_n, exists)
        if (not LAST) or t == T - 1:
            target = ((0 if LAST else t) * sequences.to(tl.int64) + sequence)[:, None] * C + head * D + d
            kept = _keep(hidden, keep, target, exists, factor) if keep is not None else hidden
            kept, _scale = _normalise(kept, eps, D)
            tl.store(y + target, (kept * scale).to(y.dtype.element_ty), exists)


@triton.jit(do_not_specialize=["sequences"])
def slstm_backward(
    reads,
    weight,
    kernel,
    bias,
    norm,
    keep,
    states,
    d_y,
    d_gates,
    d_inputs,
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
    """Compute gradients of slstm_forward, from the last step to the first; programs and shapes as in slstm_forward.

    Writes d_gates [H,T,S,4D], the gradient for the first two thirds in reads to d_inputs [H,T,S,2D], and shares
    [programs,5,C] of the gradients for the four biases and the norm.
    """
    C = H * D
    head = tl.program_id(0) % H
    group = tl.program_id(0) // H
    sequence = group * N + tl.arange(0, N)
    exists = (sequence < sequences)[:, None]
    d = tl.arange(0, D)
    low = reads.dtype.element_ty
    w, u = _held(weight + head * 4 * D * D, D, HOLD), _held(kernel + head * 4 * D * D, D, HOLD)
    b_i, b_f, b_z, b_o = _biases(bias + head * D + d, C)
    scale = tl.load(norm + head * D + d)
    final = tl.full([], T - 1, tl.int32)
    zeros = tl.zeros([8, D], tl.float32)
    d_b_i, d_b_f, d_b_z, d_b_o, d_scale = zeros, zeros, zeros, zeros, zeros
    d_h = tl.zeros([N, D], tl.float32)
    d_r, d_log_n = d_h, d_h
    for back in range(T):
        t = final - back
        row = ((head * T + t) * sequences.to(tl.int64) + sequence)[:, None]
        offset, older = reads + row * (3 * D) + d, states + (row - sequences) * (2 * D) + d
        convolved, current = tl.load(offset, exists, 0.0), tl.load(offset + D, exists, 0.0)
        before = tl.load(offset + 2 * D, exists, 0.0)
        r_old = tl.load(older, exists & (t > 0), 0.0)
        log_n = tl.load(older + D, exists & (t > 0), float("-inf"))
        i = dot(convolved, _select(w, 0, D, HOLD)) + dot(before, _select(u, 0, D, HOLD)) + b_i
        f = dot(convolved, _select(w, 1, D, HOLD)) + dot(before, _select(u, 1, D, HOLD)) + b_f
        z = _tanh(dot(current, _select(w, 2, D, HOLD)) + dot(before, _select(u, 2, D, HOLD)) + b_z)
        o = tl.sigmoid(dot(current, _select(w, 3, D, HOLD)) + dot(before, _select(u, 3, D, HOLD)) + b_o)
        a = tl.sigmoid(log_n - _softplus(-f) - i)
        r = z + a * (r_old - z)
        # norm and dropout
        target = ((0 if LAST else t) * sequences.to(tl.int64) + sequence)[:, None] * C + head * D + d
        has_output = exists & (t == T - 1) if LAST else exists
        d_out = tl.load(d_y + target, has_output, 0.0).to(tl.float32)
        kept = _keep(o * r, keep, target, has_output, factor) if keep is not None else o * r
        kept, factor_of_row = _normalise(kept, eps, D)
        d_scale += _in_eights(d_out * kept, N, D)
        d_out = _normalise_backward(d_out * scale, kept, factor_of_row, D)
        d_h += _keep(d_out, keep, target, has_output, factor) if keep is not None else d_out
        # the step
        d_r += d_h * o
        d_new = d_r * (1.0 - a)
        d_u = a * (d_log_n + d_new * (r_old - z))
        d_i, d_f = d_log_n - d_u, d_u * tl.sigmoid(-f)
        d_z, d_o = d_new * (1.0 - z * z), d_h * r * o * (1.0 - o)
        d_r, d_log_n = d_r * a, d_u
        d_b_i += _in_eights(d_i, N, D)
        d_b_f += _in_eights(d_f, N, D)
        d_b_z += _in_eights(d_z, N, D)
        d_b_o += _in_eights(d_o, N, D)
        d_i, d_f, d_z, d_o = d_i.to(low), d_f.to(low), d_z.to(low), d_o.to(low)
        # what the gates read
        d_h = dot(d_i, tl.trans(_select(u, 0, D, HOLD))) + dot(d_f, tl.trans(_select(u, 1, D, HOLD)))
        d_h += dot(d_z, tl.trans(_select(u, 2, D, HOLD))) + dot(d_o, tl.trans(_select(u, 3, D, HOLD)))
        d_convolved = dot(d_i, tl.trans(_select(w, 0, D, HOLD))) + dot(d_f, tl.trans(_select(w, 1, D, HOLD)))
        d_now = dot(d_z, tl.trans(_select(w, 2, D, HOLD))) + dot(d_o, tl.trans(_select(w, 3, D, HOLD)))
        tl.store(d_inputs + row * (2 * D) + d, d_convolved.to(low), exists)
        tl.store(d_inputs + row * (2 * D) + D + d, d_now.to(low), exists)
        offset = d_gates + row * (4 * D) + d
        tl.store(offset, d_i, exists)
        tl.store(offset + D, d_f, exists)
        tl.store(offset + 2 * D, d_z, exists)
        tl.store(offset + 3 * D, d_o, exists)
    shares += group.to(tl.int64) * 5 * C + head * D + d
    tl.store(shares, tl.sum(d_b_i, 0))
    tl.store(shares + C, tl.sum(d_b_f, 0))
    tl.store(shares + 2 * C, tl.sum(d_b_z, 0))
    tl.store(shares + 3 * C, tl.sum(d_b_o, 0))
    tl.store(shares + 4 * C, tl.sum(d_scale, 0))
