"""Triton kernels between layers: the sum over outputs and its layer norm.

A program reads whole rows, ROWS at a time, by the rules in cell_kernels.py; E is the row width.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr


@triton.jit
def _rows(first, rows, E: constexpr, COLUMNS: constexpr, ROWS: constexpr):
    """Return addresses and existence [ROWS,COLUMNS] of block ``first`` of ROWS rows [E]; rows: how many exist."""
    row = (first * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    return row.to(tl.int64) * E + column, (row < rows) & (column < E)


@triton.jit
def _normed(x, exists, eps, E: constexpr):
    """Normalise rows in x (0 where absent) to mean 0 and variance 1 over E numbers; also return the row factors."""
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
    """Compute total = x + y [rows,E] in the type of x, and out, the norm of total times scale [E].

    y is multiplied by factor where keep [rows,E] is true and by 0 elsewhere, unless keep is ``None``. With y ``None``
    the sum is x, and total stays unwritten. A program takes TURNS blocks of ROWS rows; COLUMNS >= E.
    """
    column = tl.arange(0, COLUMNS)
    weight = tl.load(scale + column, column < E, 0.0).to(tl.float32)[None, :]
    for turn in range(TURNS):
        offset, exists = _rows(tl.program_id(0) * TURNS + turn, rows, E, COLUMNS, ROWS)
        added = tl.load(x + offset, exists, 0.0)
        if y is not None:
            term = tl.load(y + offset, exists, 0.0).to(tl.float32)
            if keep is not None:
                term = tl.where(tl.load(keep + offset, exists, 0) != 0, term * factor, 0.0)
            added = (added.to(tl.float32) + term).to(total.dtype.element_ty)
            tl.store(total + offset, added, exists)
        normed, _factor = _normed(added.to(tl.float32), exists, eps, E)
        tl.store(out + offset, (normed * weight).to(out.dtype.element_ty), exists)


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
    """Compute gradients of add_norm_forward, whose norm is recomputed.

    Writes d_x [rows,E], d_y in the type of y unless ``None``, and shares [programs,E] of the scale gradient.
    """
    column = tl.arange(0, COLUMNS)
    weight = tl.load(scale + column, column < E, 0.0).to(tl.float32)[None, :]
    d_weight = tl.zeros([COLUMNS], tl.float32)
    for turn in range(TURNS):
        offset, exists = _rows(tl.program_id(0) * TURNS + turn, rows, E, COLUMNS, ROWS)
        normed, inverse = _normed(tl.load(total + offset, exists, 0.0).to(tl.float32), exists, eps, E)
        d_normed = tl.load(d_out + offset, exists, 0.0).to(tl.float32)
        d_weight += tl.sum(d_normed * normed, 0)
        d_normed *= weight
        d_added = d_normed - (tl.sum(d_normed, 1) / E)[:, None] - normed * (tl.sum(d_normed * normed, 1) / E)[:, None]
        d_added = d_added * inverse + tl.load(d_total + offset, exists, 0.0).to(tl.float32)
        tl.store(d_x + offset, d_added.to(d_x.dtype.element_ty), exists)
        if d_y is not None:
            if keep is not None:
                d_added = tl.where(tl.load(keep + offset, exists, 0) != 0, d_added * factor, 0.0)
            tl.store(d_y + offset, d_added.to(d_y.dtype.element_ty), exists)
    tl.store(shares + tl.program_id(0).to(tl.int64) * E + column, d_weight, column < E)
