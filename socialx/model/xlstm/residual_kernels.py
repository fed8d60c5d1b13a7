"""Triton kernels of what is around the layers: the sum of their outputs and its layer norm.

A program reads whole rows, ROWS of them at a time, by the rules of cell_kernels.py; E is the width of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr


@triton.jit
def _rows(first, rows, E: constexpr, COLUMNS: constexpr, ROWS: constexpr):
    """The places of the numbers of ROWS rows, and which of them exist, [ROWS,COLUMNS]."""
    row = (first * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    return row.to(tl.int64) * E + column, (row < rows) & (column < E)


@triton.jit
def _normed(x, exists, eps, E: constexpr):
    """x, 0 where none exists -> its rows with mean 0 and variance 1, and the factor of each row."""
    x = tl.where(exists, x - (tl.sum(x, 1) / E)[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(x * x, 1) / E + eps)[:, None]
    return x * factor, factor


@triton.jit(do_not_specialize=["rows"])
def add_norm_forward(
    x,
    y,
    keep,
    scale,
    total,
    out,
    rows,
    factor,
    eps,
    E: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
    TURNS: constexpr,
):
    """x and y [rows,E], scale [E] -> total = x + y in the type of x, and out, its norm times scale.

    y is first multiplied by factor where keep [rows,E] is true and by 0 elsewhere, unless keep is None.  Where y is
    None, x is the sum, and total is not written.
    """
    column = tl.arange(0, COLUMNS)
    weight = tl.load(scale + column, column < E, 0.0).to(tl.float32)[None, :]
    for turn in range(TURNS):
        place, exists = _rows(tl.program_id(0) * TURNS + turn, rows, E, COLUMNS, ROWS)
        added = tl.load(x + place, exists, 0.0)
        if y is not None:
            term = tl.load(y + place, exists, 0.0).to(tl.float32)
            if keep is not None:
                term = tl.where(tl.load(keep + place, exists, 0) != 0, term * factor, 0.0)
            added = (added.to(tl.float32) + term).to(total.dtype.element_ty)
            tl.store(total + place, added, exists)
        normed, _factor = _normed(added.to(tl.float32), exists, eps, E)
        tl.store(out + place, (normed * weight).to(out.dtype.element_ty), exists)


@triton.jit(do_not_specialize=["rows"])
def add_norm_backward(
    total,
    keep,
    scale,
    d_total,
    d_out,
    d_x,
    d_y,
    shares,
    rows,
    factor,
    eps,
    E: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
    TURNS: constexpr,
):
    """Gradients of add_norm_forward, whose norm is computed again.

    It writes d_x [rows,E], what y gets of it to d_y in the type of y unless that is None, and shares [programs,E] of
    the gradient of scale.
    """
    column = tl.arange(0, COLUMNS)
    weight = tl.load(scale + column, column < E, 0.0).to(tl.float32)[None, :]
    d_weight = tl.zeros([COLUMNS], tl.float32)
    for turn in range(TURNS):
        place, exists = _rows(tl.program_id(0) * TURNS + turn, rows, E, COLUMNS, ROWS)
        normed, inverse = _normed(tl.load(total + place, exists, 0.0).to(tl.float32), exists, eps, E)
        d_normed = tl.load(d_out + place, exists, 0.0).to(tl.float32)
        d_weight += tl.sum(d_normed * normed, 0)
        d_normed *= weight
        d_added = d_normed - (tl.sum(d_normed, 1) / E)[:, None] - normed * (tl.sum(d_normed * normed, 1) / E)[:, None]
        d_added = d_added * inverse + tl.load(d_total + place, exists, 0.0).to(tl.float32)
        tl.store(d_x + place, d_added.to(d_x.dtype.element_ty), exists)
        if d_y is not None:
            if keep is not None:
                d_added = tl.where(tl.load(keep + place, exists, 0) != 0, d_added * factor, 0.0)
            tl.store(d_y + place, d_added.to(d_y.dtype.element_ty), exists)
    tl.store(shares + tl.program_id(0).to(tl.int64) * E + column, d_weight, column < E)
