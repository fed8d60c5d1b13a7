"""Triton kernels of what is between two layers: the sum of what they compute, and its layer norm.

A program reads whole rows, ROWS of them at a time, in the rules of cells.py; E is the width of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr


@triton.jit
def _rows(first, rows, E: constexpr, COLUMNS: constexpr, ROWS: constexpr):
    """Where the numbers of ROWS rows are, and which of them there are, [ROWS,COLUMNS]."""
    row = (first * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    return row.to(tl.int64) * E + column, (row < rows) & (column < E)


@triton.jit
def _normed(x, there, eps, E: constexpr):
    """x, 0 where nothing is there -> its rows with mean 0 and variance 1, and what they were multiplied by."""
    x = tl.where(there, x - (tl.sum(x, 1) / E)[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(x * x, 1) / E + eps)[:, None]
    return x * factor, factor


@triton.jit(do_not_specialize=["rows"])
def add_norm_forward(
    x, y, scale, total, out, rows, eps, E: constexpr, COLUMNS: constexpr, ROWS: constexpr, TURNS: constexpr
):
    """x and y [rows,E], scale [E] -> total = x + y in the type of x, and out, its norm times scale."""
    column = tl.arange(0, COLUMNS)
    weight = tl.load(scale + column, column < E, 0.0).to(tl.float32)[None, :]
    for turn in range(TURNS):
        at, there = _rows(tl.program_id(0) * TURNS + turn, rows, E, COLUMNS, ROWS)
        added = tl.load(x + at, there, 0.0).to(tl.float32) + tl.load(y + at, there, 0.0).to(tl.float32)
        added = added.to(total.dtype.element_ty)
        tl.store(total + at, added, there)
        normed, _factor = _normed(added.to(tl.float32), there, eps, E)
        tl.store(out + at, (normed * weight).to(out.dtype.element_ty), there)


@triton.jit(do_not_specialize=["rows"])
def add_norm_backward(
    total,
    scale,
    d_total,
    d_out,
    d_x,
    d_y,
    shares,
    rows,
    eps,
    E: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
    TURNS: constexpr,
    BOTH: constexpr,
):
    """Gradients of add_norm_forward, whose norm is computed again.

    d_x [rows,E], d_y the same numbers in the type of y, written if BOTH; shares [programs,E] of scale.
    """
    column = tl.arange(0, COLUMNS)
    weight = tl.load(scale + column, column < E, 0.0).to(tl.float32)[None, :]
    d_weight = tl.zeros([COLUMNS], tl.float32)
    for turn in range(TURNS):
        at, there = _rows(tl.program_id(0) * TURNS + turn, rows, E, COLUMNS, ROWS)
        normed, factor = _normed(tl.load(total + at, there, 0.0).to(tl.float32), there, eps, E)
        d_normed = tl.load(d_out + at, there, 0.0).to(tl.float32)
        d_weight += tl.sum(d_normed * normed, 0)
        d_normed *= weight
        d_added = d_normed - (tl.sum(d_normed, 1) / E)[:, None] - normed * (tl.sum(d_normed * normed, 1) / E)[:, None]
        d_added = d_added * factor + tl.load(d_total + at, there, 0.0).to(tl.float32)
        tl.store(d_x + at, d_added.to(d_x.dtype.element_ty), there)
        if BOTH:
            tl.store(d_y + at, d_added.to(d_y.dtype.element_ty), there)
    tl.store(shares + tl.program_id(0).to(tl.int64) * E + column, d_weight, column < E)
