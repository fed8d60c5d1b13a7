"""The first rows in a table: below titles and above totals, with number signs, and the meaning per column."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from socialx.core.errors import Argument
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables import words
from socialx.files.sources.tables.cells import ABSENT, NUMBER, Sample
from socialx.files.sources.tables.questions import Question
from socialx.files.sources.tables.spec import EITHER, read_name
from socialx.files.sources.tables.templates import pattern, template_by_ids
from socialx.files.sources.tables.time_columns import MOMENT

TITLES, BELOW, WIDE = 10, 20, 200  # lines above a header; rows that tell it; columns from which on few rows are read
GROUPED = r"[+-]?[1-9][0-9]{{0,2}}(?:{0}[0-9]{{3}})+(?:{1}[0-9]*)?"  # a number with signs before three digits
SIGNED = re.compile(r"[+-]?[0-9]*[.,][0-9]+|[+-]?[0-9]{1,3}(?:[.,][0-9]{3})+(?:[.,][0-9]*)?")
THOUSANDS = 25  # from which on no road counts vehicles
LARGEST = 1e30  # of a number
PROVED = 10  # rows that show that a number is always the same


def below_header(sample: Sample, decimal: str | None, *, speeds: bool = False) -> tuple[Sample, list[Question]]:
    """Return the sample with the rows below the header, and a question where the decimal sign is unclear.

    decimal: the sign as the user says, who may also say that numbers are ``speeds``.
    """
    if sample.kind in ("parquet", "frame"):
        return sample, []
    most = 2 * TITLES if len(sample.names) > WIDE else None
    below = _below_titles(sample, sample.lines[:most]) or replace(sample, rows=sample.rows[:most])
    totals = _totals(below.rows, sample.tail)
    rows = tuple(row for row in below.rows if len(row) == len(below.names) and row[0] not in totals and any(row))
    signs, unclear = _signs(rows, decimal, speeds)
    never = {"never": {below.names[0]: EITHER.join(totals)}} if totals else {}
    return replace(below, rows=rows, written={**below.written, **signs, **never}), unclear


def is_data(cell: str) -> bool:
    """Return whether a cell is a number or a time."""
    return bool(SIGNED.fullmatch(cell) or NUMBER.fullmatch(cell) or MOMENT.fullmatch(cell))


def _below_titles(sample: Sample, lines: Sequence[tuple[str, ...]]) -> Sample | None:
    """Return the sample below the header, above which ``lines`` have fewer filled cells; None where unclear."""
    filled = [sum(map(bool, cells)) for cells in lines]
    for header, names in enumerate(lines[: TITLES + 1]):
        if filled[header] + (names[:1] == ("",)) < 2 or any(count >= filled[header] for count in filled[:header]):
            continue
        for first in (header + 1, header + 2):
            below = [row for row in lines[first : first + BELOW] if any(row)]
            right = [row for row in below if len(row) - len(names) in (0, 1) and any(map(is_data, row))]
            between = [cell for row in lines[header + 1 : first] for cell in row]
            if right[:1] != below[:1] or 2 * len(right) <= len(below) or any(map(is_data, between)):
                continue
            called = ("", *names) if all(len(row) > len(names) for row in right) else names
            units = {name: unit for name, unit in zip(called, between, strict=False) if words.parse_unit(unit)}
            written = {"skip": first, "names": called} if between else {"skip": header}
            return replace(sample, names=called, rows=tuple(lines[first:]), written=written, units=units)
    return None


def _totals(rows: Sequence[Sequence[str]], tail: Iterable[Sequence[str]]) -> list[str]:
    """Return the words with which the last rows begin, in place where a time stands above."""
    begins = dict.fromkeys(cells[0] for cells in tail if cells and cells[0] not in ABSENT)
    dated = any(row[:1] and row[0][:1].isdecimal() for row in rows[:1])
    worded = [text for text in begins if not text[0].isdecimal() and text[0] not in "+-.,:" and EITHER not in text]
    return worded if dated else []


def _signs(rows: Sequence[Sequence[str]], decimal: str | None, speeds: bool) -> tuple[dict[str, str], list[Question]]:
    """Return the signs for decimals and thousands, and a question where numbers such as 1.234 allow two readings."""
    narrow = zip(*(row[:WIDE] for row in rows[:WIDE]), strict=True)
    columns = [[cell for cell in column if SIGNED.fullmatch(cell) or cell.isdecimal()] for column in narrow]
    cells = [cell for column in columns if not all(map(str.isdecimal, column)) for cell in column]
    signed = [cell for cell in cells if not cell.isdecimal()]
    every = "".join(signed)
    both = next((cell for cell in signed if "." in cell and "," in cell), "")
    sign = decimal or (max(".,", key=both.rfind) if both else "," if "," in every and "." not in every else ".")
    other = "," if sign == "." else "."
    if decimal or both:
        form = re.compile(GROUPED.format(re.escape(other), re.escape(sign)))
        return {"decimal": sign, "thousands": other if any(map(form.fullmatch, signed)) else ""}, []
    marked = [cell for cell in signed if sign in cell]
    if any(cell.count(sign) > 1 for cell in marked):
        return {"decimal": other, "thousands": sign}, []
    return {"decimal": sign}, _two_readings(marked, sign, [*{*cells} - {*signed}], speeds) if marked else []


def _two_readings(marked: Sequence[str], sign: str, whole: Sequence[str], speeds: bool) -> list[Question]:
    """Return the question where all ``marked`` numbers, next to ``whole`` numbers, may have thousands."""
    large = any(abs(int(cell.split(sign)[0] or 0)) >= THOUSANDS for cell in marked)
    form = re.compile(GROUPED.format(re.escape(sign), "x"))
    if not all(map(form.fullmatch, marked)) or (large and (speeds or not any(int(cell) > 1 for cell in whole))):
        return []
    problem = f"numbers like {marked[0]} may have thousands or decimals behind the sign"
    return [Question(problem, {}, f"{Argument('decimal', '.')} or {Argument('decimal', ',')}")]


@dataclass(frozen=True, eq=False)
class SampledTable:
    """The first rows, with the user's words; ids: casefolded keys; opens: questions so far."""

    sample: Sample
    request: ConvertOptions
    ids: frozenset[str]
    opens: list[Question] = field(default_factory=list)

    def ask(self, problem: str, added: Mapping[str, Any] | None = None, remedy: str = "") -> None:
        """Add a question."""
        self.opens.append(Question(problem, added or {}, remedy))

    @cached_property
    def columns(self) -> dict[str, list[str]]:
        """The cells by column, without dropped columns; among equal names the first."""
        by_name: dict[str, list[str]] = {}
        for name, cells in zip(self.sample.names, zip(*self.sample.rows, strict=True), strict=False):
            if not self.request.drop or not {name, words.split_unit(name)[0]} & {*self.request.drop}:
                by_name.setdefault(name, ["" if cell in ABSENT else cell for cell in cells])
        return by_name

    @cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """The numbers by column, for columns with few texts."""
        decimal, thousands = self.sample.written.get("decimal", "."), self.sample.written.get("thousands", "")
        read = {}
        for name, cells in self.columns.items():
            filled = [cell for cell in cells if cell]
            if thousands or decimal != ".":
                first = (thousands, "") if thousands else (decimal, ".")
                filled = [cell.replace(*first).replace(decimal, ".") for cell in filled]
            numbers = [number for cell in filled if NUMBER.fullmatch(cell) and abs(number := float(cell)) < LARGEST]
            if numbers and len(numbers) >= 0.9 * len(filled):
                read[name] = np.array(numbers)
        return read

    def matches(self, template: str, *without: str) -> list[str]:
        """Return the columns for a template, except ``without`` and columns whose id stands in a different template."""
        form = pattern(template)
        names = [name for name in self.columns if name not in without and read_name(form, name) is not None]
        if not self.ids or "{sensor}" not in template:
            return names
        return [name for name in names if template_by_ids(name, self.ids) in ("", template)]

    def values(self, *names: str) -> int:
        """Return how many different cells, or combinations, the columns hold; 1 without a column."""
        return len({*zip(*(self.columns[name] for name in names), strict=True)}) if names else 1

    def texts(self, name: str) -> list[str]:
        """Return the different cells in a column, sorted."""
        return sorted({*self.columns[name]})

    def clashes(self, key: Sequence[str], reads: Sequence[str], only: Mapping[str, str] | None = None) -> float:
        """Return the share among rows with the texts ``only`` whose readings differ from a row with equal cells in
        ``key``.
        """
        readings, count = defaultdict[Any, set[Any]](set), defaultdict[Any, int](int)
        columns = [[self.columns[name] for name in part] for part in (key, reads, only or {})]
        keys, cells, kinds = (list(zip(*part, strict=True)) or [()] * len(self.sample.rows) for part in columns)
        for one, cell, kind in zip(keys, cells, kinds, strict=True):
            if not only or kind == tuple(only.values()):
                readings[one].add(cell)
                count[one] += 1
        return sum(count[one] for one, several in readings.items() if len(several) > 1) / max(1, sum(count.values()))

    def unit(self, name: str) -> str:
        """Return a column's unit, by the line below the header or by name; "" where absent."""
        return self.sample.units.get(name, "") or words.unit(name)

    def counts_rows(self, name: str) -> bool:
        """Return whether a column numbers the rows: increasing whole numbers."""
        numbers = self.numbers.get(name, np.empty(0))
        steps = np.diff(numbers)
        whole = len(numbers) == len(self.sample.rows) > 1 and bool((numbers % 1 == 0).all() and (steps > 0).all())
        return whole and (bool((steps == 1).all()) or bool(words.ROW_NUMBER.fullmatch(name)))

    def is_beside(self, name: str, sensors: Sequence[str] = ()) -> bool:
        """Return whether a number column lacks readings: a date part, a location, a row count, or an equal number in
        all rows (per sensor).
        """
        numbers, count = self.numbers[name], self.values(*sensors)
        dated = (
            words.CALENDAR.fullmatch(name) and (numbers % 1 == 0).all() and 0 <= numbers.min() <= numbers.max() <= 2100
        )
        same = len(self.sample.rows) >= PROVED * count and self.values(*sensors, name) == count
        return bool(dated or same or self.counts_rows(name) or words.PLACE.fullmatch(name))
