"""Find the header of a table below titles, the totals below its rows, and the sign of decimals."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from socialx.core.errors import Argument
from socialx.files.sources.tables import words
from socialx.files.sources.tables.cells import ABSENT, NUMBER, Sample
from socialx.files.sources.tables.time_columns import MOMENT

TITLES, BELOW = 10, 20  # lines above a header, and rows below it, that are looked at
WIDE, ROWS, SIGNS = 200, 40, 300  # columns from which on only some rows are read; columns whose signs are looked at
GROUPED = r"[+-]?[1-9][0-9]{{0,2}}(?:{0}[0-9]{{3}})+(?:{1}[0-9]*)?"  # a number with signs before three digits
SIGNED = re.compile(r"[+-]?[0-9]*[.,][0-9]+|[+-]?[0-9]{1,3}(?:[.,][0-9]{3})+(?:[.,][0-9]*)?")
MOST = 25  # thousands of vehicles that no road counts, so that a larger number in front of a sign is whole


@dataclass(frozen=True, eq=False)
class Head:
    """The rows of a sample below its header.

    text: fields of TableSpec that say how the table is written.  units: by column, from a line below the header.
    unclear: a question (problem, remedy) about the sign of decimals, or none.
    """

    names: tuple[str, ...]
    rows: list[tuple[str, ...]]
    text: Mapping[str, Any] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    unclear: tuple[str, str] | None = None


def read_header(sample: Sample, decimal: str | None, *, speeds: bool = False) -> Head:
    """Return the rows of a sample below its header; ``decimal``: the sign as the user says, who may say
    that the numbers are speeds.
    """
    if sample.kind in ("parquet", "frame"):
        return Head(sample.names, list(sample.rows))
    names, rows, units, text = sample.names, list(sample.rows), dict[str, str](), dict[str, Any]()
    if sample.kind != "json":
        lines = [split(line, sample.separator) for line in sample.lines] or [names, *rows]
        names, rows, text, units = _below_titles(lines) or (names, rows, text, units)
        rows, totals = _without_totals(rows, [split(line, sample.separator) for line in sample.tail])
        text["never"] = {names[0]: "|".join(totals)} if totals else {}
    rows = [cells for cells in rows if len(cells) == len(names)][: ROWS if len(names) > WIDE else None]
    signs, unclear = _signs(rows, decimal, speeds)
    return Head(names, rows, {key: value for key, value in (text | signs).items() if value}, units, unclear)


def split(line: str, separator: str) -> tuple[str, ...]:
    """Return the cells of a line, none for a cell beyond the limit of the csv module."""
    try:
        return tuple(cell.strip() for cell in next(csv.reader([line], delimiter=separator or ","), []))
    except csv.Error:
        return ()


def is_data(cell: str) -> bool:
    """Return whether a cell is a number or a time."""
    return bool(SIGNED.fullmatch(cell) or NUMBER.fullmatch(cell) or MOMENT.fullmatch(cell))


def _below_titles(
    lines: list[tuple[str, ...]],
) -> tuple[tuple[str, ...], list[tuple[str, ...]], dict[str, Any], dict[str, str]] | None:
    """Return the names, the rows below them, how the lines above are skipped, and the units between; None if unclear.

    Lines above a header have fewer filled cells.
    """
    filled = [sum(map(bool, cells)) for cells in lines]
    for header, names in enumerate(lines[: TITLES + 1]):
        if filled[header] < 2 or any(count >= filled[header] for count in filled[:header]):
            continue
        for first in (header + 1, header + 2):
            below = [row for row in lines[first : first + BELOW] if any(row)]
            right = [row for row in below if len(row) - len(names) in (0, 1) and any(map(is_data, row))]
            between = [cell for row in lines[header + 1 : first] for cell in row]
            if right[:1] != below[:1] or 2 * len(right) <= len(below) or any(map(is_data, between)):
                continue
            called = ("", *names) if all(len(row) > len(names) for row in right) else names
            units = {name: unit for name, unit in zip(called, between, strict=False) if words.parse_unit(unit)}
            return called, lines[first:], {"skip": first, "names": called} if between else {"skip": header}, units
    return None


def _without_totals(
    rows: list[tuple[str, ...]], tail: Iterable[Sequence[str]]
) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the filled rows above totals, and the words with which the rows of totals begin in place of a time."""
    rows = [row for row in rows if any(row)]
    if not rows or not rows[0][0][:1].isdigit():
        return rows, []
    begins = dict.fromkeys(cells[0] for cells in tail if cells and cells[0] not in ABSENT)
    totals = [text for text in begins if not text[0].isdigit() and text[0] not in "+-.,:" and "|" not in text]
    return [row for row in rows if row[0] not in totals], totals


def _signs(
    rows: Sequence[Sequence[str]], decimal: str | None, speeds: bool
) -> tuple[dict[str, str], tuple[str, str] | None]:
    """Return the signs of decimals and thousands, and a question where numbers such as 1.234 allow two readings."""
    cells = [cell for row in rows[: TITLES * BELOW] for cell in row[:SIGNS]]
    signed = [cell for cell in cells if SIGNED.fullmatch(cell)]
    both = next((cell for cell in signed if "." in cell and "," in cell), "")
    if decimal or both:
        sign = decimal or max(".,", key=both.rfind)
        other = "," if sign == "." else "."
        form = re.compile(GROUPED.format(re.escape(other), re.escape(sign)))
        return {"decimal": sign, "thousands": other if any(map(form.fullmatch, signed)) else ""}, None
    sign = "," if any("," in cell for cell in signed) and not any("." in cell for cell in signed) else "."
    marked = [cell for cell in signed if sign in cell]
    if any(cell.count(sign) > 1 for cell in marked):
        return {"decimal": "," if sign == "." else ".", "thousands": sign}, None
    form = re.compile(GROUPED.format(re.escape(sign), "x"))
    if marked and all(map(form.fullmatch, marked)):
        columns = [[cell for cell in column if cell] for column in zip(*rows[: TITLES * BELOW], strict=True)]
        whole = any(
            any(cell.isdigit() and int(cell) > 1 for cell in column) and any(sign in cell for cell in column)
            for column in columns
        )
        large = any(abs(int(cell.split(sign)[0])) >= MOST for cell in marked)
        if large and (speeds or not whole):
            return {"decimal": sign}, None
        problem = f"numbers like {marked[0]} may have thousands or decimals behind the sign"
        return {"decimal": sign}, (problem, f"{Argument('decimal', '.')} or {Argument('decimal', ',')}")
    return {"decimal": sign}, None
