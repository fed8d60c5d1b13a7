"""Detect how a table with times is written, and which columns hold times, sensors and observations.

A sheet is a text with any separator and decimal sign (packed or plain), a Parquet file, or a sheet in a workbook.  The
first rows tell the roles of the columns; reader.py interprets the rows.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.core.errors import Argument, SocialxError, sample, shortened
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.small_tables import read_workbook
from socialx.files.sources.tables.columns import column_quantity, parse_unit, split_unit, without_unit
from socialx.files.sources.tables.json_rows import NESTED, json_objects
from socialx.files.sources.tables.roles import ColumnRoles, find_roles
from socialx.files.sources.tables.text_cells import (
    ABSENT,
    FOOTER_ROWS,
    NUMBER,
    UNQUOTED,
    NumberFormat,
    Piece,
    TextColumns,
    Texts,
    is_footer,
    note_footer,
    parse_number,
    refuse_cell,
)
from socialx.files.sources.tables.time_texts import ONLY_CLOCK, interval_begin, is_time
from socialx.files.store.head import SEPARATORS, FileHead
from socialx.files.store.ids import find_repeated, match_key, renamed_copies

if TYPE_CHECKING:
    import pandas as pd

HEAD_ROWS = 40  # that tell what each column holds
SAMPLE = 20_000  # rows that tell which column names the sensors
TITLE_ROWS = 10  # lines above the header
# Options that say what the columns of a table are.
ASKED = ("channel", "decimal", "drop", "quantity", "sensor_column", "time_column", "time_format", "transposed")
WITH_UNIT = re.compile(r"[+-]?[0-9][0-9.,]*\s*([a-zA-Z%][a-zA-Z0-9/ ]*)")
IN_NAME = re.compile(r"(?<![0-9vV])((?:19|20)[0-9]{2})[-_.]?(0[1-9]|1[0-2])[-_.]?(0[1-9]|[12][0-9]|3[01])(?![0-9])")
CELL_BYTES = 16  # of a cell of a Parquet file in memory
PARQUET_BYTES = 1 << 28  # in memory, up to which every Parquet file is read
CELLS_OF_BYTE = 20  # in Parquet: a byte holds one or two observations, but hundreds of equal cells


@dataclass(frozen=True, kw_only=True)
class Sheet(ColumnRoles):
    """A table: how the cells are written, and the column roles.  ``times`` is empty where rows are counted.

    kind: text, json, parquet, or excel.  units: the column units in a line below the header.  first: the first time, as
    written.  sheet: the name in a workbook with several sheets.  begin: lines before the first row.  skipped: texts in
    lines around the header.  dropped: column names left out.  others: sheets without times, listed in the first sheet
    with times.  frame: the cells, unless ``kind`` is text.  signs: the number format seen in the cells, shared by all
    table sheets.  sensor: the only sensor's name, where the column has another name.  nested: JSON keys with objects,
    left out.  Melted label and observation names follow the column names.  suffix: a unit after each number.  day: the
    date in the file name, for a file with clock times only.
    """

    path: Path
    kind: str
    names: tuple[str, ...] = ()
    encoding: str = "utf-8-sig"
    separator: str = ","
    first: str = ""
    sheet: str = ""
    begin: int = 1
    skipped: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    frame: pd.DataFrame | None = field(default=None, compare=False)
    signs: NumberFormat = field(default_factory=NumberFormat, compare=False)
    sensor: str = ""
    nested: tuple[str, ...] = ()
    suffix: str = ""
    day: str = ""

    @property
    def where(self) -> Path | str:
        """The file, with the name of the sheet in a workbook, as the subject of a message."""
        return f"{self.path}, sheet {self.sheet}" if self.sheet else self.path

    def ids(self) -> tuple[str, ...]:
        """Return the sensor names in the order of ``values``: the only sensor, or the column names without units."""
        return (self.sensor,) if self.sensor else tuple(without_unit(self.names[column]) for column in self.values)

    def omissions(self) -> list[str]:
        """Return a text for each kind of omitted content in the sheet and in the workbook."""
        parts = {
            "left out beside the header": self.skipped,
            "columns left out": self.dropped,
            "objects in objects, left out": self.nested,
            "no table with times, left out": tuple(f"sheet {name}" for name in self.others),
        }
        return [f"{label}: {sample(names)}" for label, names in parts.items() if names]

    def unit_texts(self, column: int) -> list[str]:
        """Return the unit as written in the column's name and in the line of units; an empty list for neither."""
        return list(filter(None, (split_unit(self.names[column])[1], self.units[column] if self.units else "")))

    def unit(self, column: int) -> str:
        """Return the column unit, or "" where the unit is unstated."""
        return next(iter(self.unit_texts(column)), "")

    @property
    def key_columns(self) -> tuple[int, ...]:
        """The columns that name the sensor and the lane in each row."""
        return (*self.sensors, *(() if self.lanes is None else (self.lanes,)))

    def common_quantity(self) -> str | None:
        """Return the quantity of all sensor columns, from the first unit, else from all names; ``None`` if unclear."""
        if units := list(filter(None, (parse_unit(self.unit(column)) for column in self.values))):
            return units[0][0]
        named = {self.quantity(column) for column in self.values}
        return named.pop() if len(named) == 1 else None

    def quantity(self, column: int) -> str | None:
        """Return the quantity measured by a column, from the unit or the name; ``None`` where unstated."""
        return column_quantity(self.names[column], self.unit(column))

    def description(self) -> str:
        """Return a text on separator, rows, sensors and times, which tells the user how the table is read."""
        kinds = {"parquet": "Parquet", "excel": "an Excel workbook", "json": "objects of JSON"}
        how = kinds.get(self.kind) or f"{SEPARATORS[self.separator]} between cells"
        decimal = ", decimal commas" if self.decimal == "," else ""
        alone = "the columns of one sensor" if self.one else "a column per sensor"
        named = " and ".join(repr(self.names[column]) for column in self.sensors)
        rows = f"a row per sensor and time, sensors in {named}" if named else alone
        times = " and ".join(repr(self.names[column] or f"column {column + 1}") for column in self.times)
        return f"{how}{decimal}, {rows}, times in {times}"

    def reordered_like(self, other: Sheet) -> Sheet:
        """Return the sheet with the roles of ``other``, found by column name, as columns may be in another order."""
        columns = {name: number for number, name in enumerate(self.names)}
        times, values = (tuple(columns[other.names[column]] for column in part) for part in (other.times, other.values))
        sensors = tuple(columns[other.names[column]] for column in other.sensors)
        lanes = None if other.lanes is None else columns[other.names[other.lanes]]
        return replace(self, times=times, values=values, sensors=sensors, lanes=lanes)

    def rows(self, texts: tuple[int, ...], numbers: tuple[int, ...] = ()) -> Generator[Piece, None, None]:
        """Yield pieces with text columns ``texts`` and observation columns ``numbers``, after columns became rows."""
        melt = self.melt
        if melt is None:
            yield from self._rows(texts, numbers)
            return
        real = tuple(column for column in texts if column != melt.label)
        with closing(self._rows(real, tuple(melt.columns(numbers)))) as pieces:
            for piece in pieces:
                count = len(piece.numbers)
                texts_by_column = melt.texts(dict(zip(real, piece.texts, strict=True)), count)
                kept = np.arange(count).repeat(len(melt.labels))
                columns = [texts_by_column[column] for column in texts]
                yield replace(piece, texts=columns, numbers=melt.numbers(piece.numbers), kept=kept)

    def _rows(self, texts: tuple[int, ...], numbers: tuple[int, ...]) -> Generator[Piece, None, None]:
        """Yield pieces with text columns ``texts`` and number columns ``numbers``, before columns become rows."""
        labelled = self.melt is not None and self.times[:1] == (self.melt.label,)
        timed = bool(self.times) and not labelled and self.first[:1].isdigit()
        if self.frame is None:
            how = (self.separator, self.decimal, self.begin, self.encoding, self.signs, timed, self.nested, self.suffix)
            columns = TextColumns(self.path, self.names[: self.melt.label if self.melt else None], texts, numbers, *how)
            yield from columns.read("reading" if numbers else "looking at the times of")
            return
        frame = self.frame[self.begin :].dropna(how="all").infer_objects() if self.kind == "excel" else self.frame
        cells = cell_texts(frame[self.times[0]][-FOOTER_ROWS:]).tolist() if timed else []
        if below := list(takewhile(is_footer, reversed(cells))):
            frame = frame[: -len(below)]
            if numbers:
                note_footer(self.where, below[::-1])
        values = np.empty((len(frame), len(numbers)), np.float32)
        for index, column in enumerate(numbers):
            with np.errstate(over="ignore"):  # what is too large for a file is infinite
                values[:, index] = self._readings(frame[column], column)
        text_columns = [Texts.from_cells(cell_texts(frame[column]).tolist()) for column in texts]
        yield Piece(text_columns, values, self.begin + 1)
        self.signs.check(self.where)

    def _readings(self, column: pd.Series[Any], number: int) -> np.ndarray:
        """Return a pandas column as float64 [t], NaN for a missing observation; ``number``: the column number."""
        import pandas as pd
        import pyarrow as pa

        cells = column.replace(ABSENT, float("nan"))
        texts = cells.map(lambda cell: isinstance(cell, str)).to_numpy(bool)
        if texts.any():
            whole = [str(cell) for cell in cells[~texts].dropna() if cell == cell // 1]
            bare = [cell.removesuffix(self.suffix).strip() for cell in cells[texts]]
            self.signs.see(pa.array([*bare, *whole], pa.string()), self.decimal)
            read = [parse_number(cell, self.decimal, grouped=self.signs.said) for cell in bare]
            cells = cells.astype(object)
            cells[texts] = ["wrong" if number is None else number for number in read]
        read_numbers = pd.to_numeric(cells, errors="coerce")
        if (wrong := (read_numbers.isna() & cells.notna()).to_numpy()).any():
            row = int(wrong.argmax())
            line, name, cell = f"line {row + self.begin + 1}", self.names[number] or number, str(column.iloc[row])
            refuse_cell(self.where, line, name, cell, said=self.signs.said)
        return read_numbers.to_numpy(np.float64, na_value=np.nan)


def look(head: FileHead, request: ConvertOptions | None = None) -> list[Sheet]:
    """Return the sheets with times in a file (several for a workbook); an empty list for other files. request: states
    which columns hold times or sensors, and which are left out. The head caches the answer.
    """
    options = request or ConvertOptions(head.path)
    asked = tuple(getattr(options, option) for option in ASKED)
    if asked not in head.seen:
        head.seen[asked] = _find_sheets(head, options)
    return [replace(sheet, signs=replace(sheet.signs)) for sheet in head.seen[asked]]


def _find_sheets(head: FileHead, request: ConvertOptions) -> list[Sheet]:
    """Return the sheets with times; the first separator that gives a table decides; [] for none. request: options."""
    if is_json(head):
        return _objects(head, request)
    for separator in (mark for mark in SEPARATORS if any(mark in line for _, line in head.lines)):
        rows = [(number, split_cells(line, separator)) for number, line in head.lines]
        empty = Sheet((), path=head.path, kind="text", encoding=head.encoding, separator=separator)
        if sheet := _parse_sheet(empty, rows, request):
            return [sheet]
    if head.kind not in ("parquet", "excel"):
        return []
    try:
        frames = read_frames(head)
    except SocialxError:
        return []
    sheets_by_name: dict[str, Sheet | None] = {}
    for name, frame in frames.items():
        first = frame.head(TITLE_ROWS + HEAD_ROWS)
        columns = [cell_texts(first[column]).map(str) for column in first]
        rows = [(number, list(cells)) for number, cells in enumerate(zip(*columns, strict=True), 1)]
        if head.kind == "parquet":
            rows.insert(0, (1, [str(column).strip() for column in frame]))
        cells = frame.set_axis(range(len(frame.columns)), axis=1)
        empty = Sheet((), path=head.path, kind=head.kind, separator="|", sheet=name, frame=cells)
        sheets_by_name[name] = _parse_sheet(empty, rows, request)
    sheets = [sheet for sheet in sheets_by_name.values() if sheet is not None]
    others = tuple(name for name, sheet in sheets_by_name.items() if sheet is None)
    return [replace(sheet, others=others if index == 0 else ()) for index, sheet in enumerate(sheets)]


def is_json(head: FileHead) -> bool:
    """Return whether a text begins like JSON: with an object, or an object array."""
    return bool(head.lines) and "".join(line.strip() for _, line in head.lines[:3]).startswith(("{", "[{"))


def _objects(head: FileHead, request: ConvertOptions) -> list[Sheet]:
    """Return the sheet for a file of JSON objects; the keys in the first objects are the columns; [] for no table."""
    try:
        with closing(json_objects(head.path, head.encoding, request.decimal or ".")) as objects:
            first_objects = [cells for _, cells in islice(objects, HEAD_ROWS + TITLE_ROWS)]
    except SocialxError:
        return []
    keys = dict.fromkeys(key for cells in first_objects for key in cells)
    nested = tuple(key for key in keys if {cells.get(key, "") for cells in first_objects} - {""} == {NESTED})
    names = [key for key in keys if key not in nested]
    rows = [(number, [cells.get(name, "") for name in names]) for number, cells in enumerate(first_objects, 1)]
    empty = Sheet((), path=head.path, kind="json", encoding=head.encoding, separator=UNQUOTED, nested=nested)
    sheet = _parse_sheet(empty, [(0, names), *rows], request)
    return [sheet] if sheet else []


def split_cells(line: str, separator: str) -> list[str]:
    """Return the stripped cells in a line; an empty list for a cell beyond the limit of the csv module."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def _parse_sheet(sheet: Sheet, rows: list[tuple[int, list[str]]], request: ConvertOptions) -> Sheet | None:
    """Return ``sheet`` (so far: path and separator) with columns and roles, the unit after the numbers and the date in
    the file name, if any; ``None`` for no table. rows: (line number, cells) of the first lines.
    """
    units = [""] * max((len(cells) for _, cells in rows), default=0)
    for column, cell in (pair for _, cells in rows[-3:] for pair in enumerate(cells)):
        if (match := WITH_UNIT.fullmatch(cell)) and parse_unit(match[1]):
            units[column] = match[1]
    if len(suffixes := {*units} - {""}) == 1:
        sheet = replace(sheet, suffix=suffixes.pop(), units=tuple(units))
        rows = [(number, [cell.removesuffix(sheet.suffix).strip() for cell in cells]) for number, cells in rows]
    days = {"-".join(parts) for parts in IN_NAME.findall(sheet.path.name)}
    if (parsed := _parse_header(sheet, rows, request)) or len(days) != 1:
        return parsed
    day = days.pop()
    timed = [[f"{day} {cell}" if ONLY_CLOCK.fullmatch(cell) else cell for cell in cells] for _, cells in rows]
    rows = [(number, cells) for (number, _), cells in zip(rows, timed, strict=True)]
    return _parse_header(replace(sheet, day=day), rows, request)


def _parse_header(sheet: Sheet, rows: list[tuple[int, list[str]]], request: ConvertOptions) -> Sheet | None:
    """Return ``sheet`` with names and roles from the header row, or ``None`` without a header above rows with times.
    rows: (line number, cells). Lines above the header have fewer filled cells. A line below the header may lack times
    and numbers, as a unit line does.
    """
    filled = [sum(map(bool, cells)) for _, cells in rows]
    for header, (_, names) in enumerate(rows[: TITLE_ROWS + 1]):
        if len(names) < 2 or any(count >= filled[header] for count in filled[:header]):
            continue
        for first in (header + 1, header + 2):
            below = [cells for _, cells in rows[first : first + HEAD_ROWS]]
            right = [cells for cells in below if len(cells) == len(names)]
            if len(right) <= len(below) // 2:  # the reader says which line has more or fewer cells
                continue
            between = [cells for _, cells in rows[header + 1 : first]]
            if any(NUMBER.fullmatch(cell) or is_time(cell) for cells in between for cell in cells):
                continue
            candidate = replace(sheet, begin=rows[first - 1][0])
            if result := _columns(candidate, names, right, request):
                units = [cells for cells in between if len(cells) == len(names) and any(map(parse_unit, cells))]
                if units:
                    result = replace(result, units=tuple(cell if parse_unit(cell) else "" for cell in units[0]))
                skipped = [cells for _, cells in rows[:header]] + [cells for cells in between if cells not in units]
                texts = [shortened(" ".join(filter(None, cells)), 40) for cells in skipped]
                return replace(result, skipped=tuple(filter(None, texts)))
    return None


def _columns(sheet: Sheet, names: list[str], rows: list[list[str]], request: ConvertOptions) -> Sheet | None:
    """Return ``sheet`` with column roles; ``None`` if no column holds times or ``names``, the header, are row cells."""

    import pyarrow as pa

    def more() -> list[list[str]]:
        """Return a large sample, or an empty list where a row is malformed; the reader names the row."""
        try:
            with closing(replace(sheet, names=tuple(names)).rows(tuple(range(len(names))))) as pieces:
                piece = next(pieces, None)
            texts = [] if piece is None else piece.texts
            columns = [column[np.arange(min(SAMPLE, len(column.codes)))].cells() for column in texts]
            return list(map(list, zip(*columns, strict=True)))
        except SocialxError:
            return []

    roles = find_roles(names, rows, sheet.separator, request, more)
    if roles is None:
        return None
    melt = roles.melt
    behind = (
        ()
        if melt is None
        else ("time" if melt.label in roles.times else "lane" if melt.label == roles.lanes else "sensor", *melt.names)
    )
    signs = NumberFormat(said=request.decimal is not None)
    if sheet.kind == "text":  # so that few files need a pass for the number format
        read = melt.columns(roles.values) if melt else roles.values
        for cells in rows:  # row by row: the first row mostly decides
            signs.see(pa.array([cells[column] for column in read], pa.string()), roles.decimal)
    firsts = [*rows[0], *(() if melt is None else (melt.labels[0],))]
    return replace(
        sheet,
        **vars(roles),
        names=(*names, *behind),
        signs=signs,
        first=join_time([firsts[column] for column in roles.times]),
        dropped=tuple(filter(None, (names[column] for column in roles.left))),
    )


def join_time(cells: list[str]) -> str:
    """Join the cells in a time into one text: the date from the first cell, then the clock times."""
    return " ".join([re.split("[ T]", cells[0])[0], *map(interval_begin, cells[1:])]) if len(cells) > 1 else cells[0]


def check_ids(where: object, ids: tuple[str, ...], *, integers: bool = False) -> None:
    """Raise for sensor names in ``where`` that are empty, duplicated, or (with ``integers``) no integers."""
    wrong = [ascii(name[:40]) for name in ids if not (isinstance(match_key(name), int) if integers else name)]
    if wrong:
        raise SocialxError(where, f"line 1 has sensor ids like {sample(wrong)}", "name each column, or remove it")
    if twice := find_repeated(ids):
        copy = next(iter(renamed_copies(twice)), None)
        either = f"leave one out with {Argument('drop', copy)}, or rename it if it is another sensor"
        helps = "remove the repeated ones" if copy is None else either
        raise SocialxError(where, f"line 1 names sensors more than once ({sample(twice)})", helps)


def read_frames(head: FileHead) -> dict[str, pd.DataFrame]:
    """Return the cells in a Parquet file, or in each workbook sheet by name; the only sheet has the name "". The index
    in a Parquet file becomes a column if the index is named, or holds times or texts.
    """
    import pandas as pd

    if head.kind == "excel":
        book = read_workbook(head.path)
        sheets = {name: pd.DataFrame(cells, dtype=object) for name, cells in book.items()}
        return sheets if len(sheets) != 1 else {"": next(iter(sheets.values()))}
    try:
        lists = _check_columns(head.path)
        frame = pd.read_parquet(head.path)
    except SocialxError:
        raise
    except Exception as error:  # noqa: BLE001  of pyarrow, which has many kinds
        problem = f"the {head.kind} file cannot be read ({' '.join(str(error).split())[:120]})"
        raise SocialxError(head.path, problem, "write it again") from None
    names = "sensor" if pd.api.types.is_string_dtype(frame.index.dtype) else "time"
    if frame.index.name is not None or names == "sensor" or isinstance(frame.index, pd.DatetimeIndex):
        frame = frame.rename_axis(str(frame.index.name or names)).reset_index()
    try:
        frame = frame.explode(lists, ignore_index=True) if lists else frame
    except ValueError:
        raise SocialxError(head.path, f"{sample(lists)} differ in length", "write as many in each row") from None
    return {"": frame}


def _check_columns(path: Path) -> list[str]:
    """Return the Parquet columns that hold time and observation lists. Raises SocialxError for objects in cells, for
    hundreds of cells per byte, and for more than half the free memory.
    """
    from pyarrow.parquet import ParquetFile
    from pyarrow.types import is_list, is_nested, is_struct, is_temporal

    from socialx.core.environment import free_memory  # imports torch, which few tables need

    with ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        cells = sum(group.column(index).num_values for group in groups for index in range(group.num_columns))
        kinds = {column.name: column.type for column in file.schema_arrow}
    lists = [name for name, kind in kinds.items() if is_list(kind)]
    lists = lists if any(is_temporal(kinds[name].value_type) for name in lists) else []
    odd = [name for name, kind in kinds.items() if is_nested(kind) or "binary" in str(kind)]
    if [name for name in odd if name not in lists]:
        listed = sample([f"{name}: {kinds[name]}" for name in odd])
        code = (
            f'from pyarrow.parquet import *; write_table(read_table({json.dumps(str(path))}).flatten(), "flat.parquet")'
        )
        flat = len(odd) > 1 and all(is_struct(kinds[name]) for name in odd)
        helps = f", as python -c {shlex.quote(code)} does" if flat else ", or leave such columns out"
        problem = f"some columns hold more than a number, a text or a time in a cell ({listed})"
        raise SocialxError(path, problem, f"write a row per time, sensor and reading{helps}")
    need, free = CELL_BYTES * cells, free_memory()
    if need > PARQUET_BYTES and cells > CELLS_OF_BYTE * path.stat().st_size:
        problem = f"the file has {cells:,} cells in {path.stat().st_size:,} bytes, too many for observations"
        raise SocialxError(path, problem, "save the table as CSV")
    if need > PARQUET_BYTES and free is not None and need > free / 2:
        problem = f"the {cells:,} cells need about {need / 2**30:.1f} GiB, more than half of the free memory"
        raise SocialxError(path, problem, "save the table as CSV, which is read piece by piece")
    return lists


def cell_texts(column: pd.Series[Any]) -> pd.Series[str]:
    """Return a typed column as texts: times in ISO format, integers without a decimal point."""
    import pandas as pd

    if isinstance(column.dtype, pd.DatetimeTZDtype):
        column = column.dt.tz_convert("UTC")
        return column.dt.strftime("%Y-%m-%d %H:%M:%SZ").fillna("")
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return column.dt.strftime("%Y-%m-%d %H:%M:%S").fillna("")
    if pd.api.types.is_float_dtype(column.dtype) and (column.dropna() % 1 == 0).all():
        return column.map(lambda value: "" if pd.isna(value) else str(int(value)))
    return column.map(lambda value: "" if pd.isna(value) else str(value).strip())
