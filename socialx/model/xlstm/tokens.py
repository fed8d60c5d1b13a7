"""Triton kernels of the sum of what a token is made of: its numbers' projection, and what it shares with others.

Shape letters: B windows, N sensors, T steps, C numbers of a token, E width; the rules are those of cells.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from socialx.model.xlstm.convolution import dot

# Numbers of a token whose gradients are summed one by one; more are rows of a product: a third of the instructions for
# 20 numbers, and a fifth for 60.
MOST = constexpr(16)


@triton.jit(do_not_specialize=["windows", "sensors"])
def tokens_forward(
    numbers,
    weight,
    shared,
    own,
    out,
    windows,
    sensors,
    T: constexpr,
    C: constexpr,
    E: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
):
    """numbers [B,T,N,C], weight [C,E], shared [B,T,E] and own [N,T,E] or None -> out [T,B,N,E]: ROWS sensors."""
    sensor = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    window, t = tl.program_id(1).to(tl.int64), tl.program_id(2)
    column = tl.arange(0, COLUMNS)
    exists = (sensor < sensors)[:, None] & (column < E)[None, :]
    total = tl.load(shared + (window * T + t) * E + column, column < E, 0.0)[None, :]
    if own is not None:
        total += tl.load(own + (sensor[:, None] * T + t) * E + column, exists, 0.0)
    number = numbers + ((window * T + t) * sensors + sensor) * C
    for c in tl.static_range(C):
        factor = tl.load(weight + c * E + column, column < E, 0.0)
        total += tl.load(number + c, sensor < sensors, 0.0)[:, None] * factor[None, :]
    tl.store(out + ((t * windows + window) * sensors + sensor[:, None]) * E + column, total, exists)


@triton.jit(do_not_specialize=["windows", "sensors"])
def tokens_backward(
    numbers,
    d_out,
    weight_shares,
    shared_shares,
    own_shares,
    windows,
    sensors,
    T: constexpr,
    C: constexpr,
    C2: constexpr,
    E: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
    WINDOWS: constexpr,
):
    """Gradients of tokens_forward.  A program: ROWS sensors of one step in WINDOWS windows.

    It writes shares of the gradients: weight_shares [programs,C,E], shared_shares [tiles of sensors,B,T,E] and
    own_shares [groups of windows,N,T,E].  C2: C or more, a power of two.
    """
    tile, group, t = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sensor = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column, c2 = tl.arange(0, COLUMNS), tl.arange(0, C2)
    exists = (sensor < sensors)[:, None] & (column < E)[None, :]
    d_own = tl.zeros([ROWS, COLUMNS], tl.float32)
    d_weight = tl.zeros([C2, COLUMNS], tl.float32)
    for turn in range(WINDOWS):
        window = (group * WINDOWS + turn).to(tl.int64)
        here = window < windows
        d = tl.load(d_out + ((t * windows + window) * sensors + sensor[:, None]) * E + column, exists & here, 0.0)
        d_own += d
        share = shared_shares + ((tile * windows.to(tl.int64) + window) * T + t) * E + column
        tl.store(share, tl.sum(d, 0), (column < E) & here)
        number = numbers + ((window * T + t) * sensors + sensor) * C
        if C2 > MOST:
            there = ((sensor < sensors) & here)[None, :] & (c2 < C)[:, None]
            d_weight = dot(tl.load(number[None, :] + c2[:, None], there, 0.0), d, d_weight)
        else:
            for c in tl.static_range(C):
                product = tl.load(number + c, (sensor < sensors) & here, 0.0)[:, None] * d
                d_weight += tl.where(c2[:, None] == c, tl.sum(product, 0)[None, :], 0.0)
    tl.store(own_shares + ((group * sensors.to(tl.int64) + sensor[:, None]) * T + t) * E + column, d_own, exists)
    program = ((t * tl.num_programs(1) + group) * tl.num_programs(0) + tile).to(tl.int64)
    stored = (c2 < C)[:, None] & (column < E)[None, :]
    tl.store(weight_shares + (program * C + c2[:, None]) * E + column, d_weight, stored)
