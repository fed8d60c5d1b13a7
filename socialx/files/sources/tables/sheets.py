"""A table with times: how it is written, and which of its columns hold times, sensors and readings.

A sheet may be text with any separator and decimal sign, packed or not, a Parquet file or a sheet of a workbook.  Its
first rows tell what its columns hold; reader.py says what the rows mean.
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
from socialx.files.sources.tables.columns import parts_of, plain, quantity_of, unit_of
from socialx.files.sources.tables.json_rows import NESTED, json_objects
from socialx.files.sources.tables.roles import ColumnRoles, roles_of
from socialx.files.sources.tables.text_cells import (
    ABSENT,
    FOOTER_ROWS,
    NUMBER,
    UNQUOTED,
    NumberFormat,
    Piece,
    TextColumns,
    Texts,
    is_below,
    number_in,
    refuse_cell,
    tell_below,
)
from socialx.files.sources.tables.time_texts import ONLY_CLOCK, begin_of, is_time
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
CELLS_OF_BYTE = 20  # in a Parquet file: of readings a byte holds one or two, and of equal cells hundreds


@dataclass(frozen=True, kw_only=True)
class Sheet(ColumnRoles):
    """How a table is written, and the roles of its columns; there are no times where rows are counted.

    kind: text, json, parquet, or excel.  units: what a line of units below the header says of each column.
    first: the time of the first row, as it is written.  sheet: its name in a workbook of several.  begin: lines before
    the first row.  skipped: what stands in those that are not the header.  dropped: names of columns that are left out.
    others: sheets of the workbook that have no times, known to the first that has.  frame: the cells of what is no
    text.  signs: what the cells tell of their decimals; the sheets of one table share it.  sensor: the name of the only
    one, where its column has another.  nested: keys of JSON that hold objects, which are left out.  The labels and the
    readings of ``melt`` have names behind those of the columns.  suffix: a unit behind the numbers.
    day: the date in the name of a file that has times of day alone.
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
        """How a message calls it."""
        return f"{self.path}, sheet {self.sheet}" if self.sheet else self.path

    def ids(self) -> tuple[str, ...]:
        """The names of the sensors of the columns of readings."""
        return (self.sensor,) if self.sensor else tuple(plain(self.names[place]) for place in self.values)

    def left_out(self) -> list[str]:
        """What of it, and of the workbook around it, is not read: a text each."""
        parts = {
            "left out beside the header": self.skipped,
            "columns left out": self.dropped,
            "objects in objects, left out": self.nested,
            "no table with times, left out": tuple(f"sheet {name}" for name in self.others),
        }
        return [f"{what}: {sample(names)}" for what, names in parts.items() if names]

    def unit_texts(self, place: int) -> list[str]:
        """The units of a column as its name and the line of units say them."""
        return list(filter(None, (parts_of(self.names[place])[1], self.units[place] if self.units else "")))

    def unit(self, place: int) -> str:
        """The unit of a column, empty where nothing says it."""
        return next(iter(self.unit_texts(place)), "")

    @property
    def named(self) -> tuple[int, ...]:
        """The columns that name the sensor of a row, and its lane."""
        return (*self.sensors, *(() if self.lanes is None else (self.lanes,)))

    def quantity_of_all(self) -> str | None:
        """What the columns of sensors measure, where the unit of one says it, or all names."""
        if said := next((found[0] for place in self.values if (found := unit_of(self.unit(place)))), None):
            return said
        named = {self.quantity(place) for place in self.values}
        return named.pop() if len(named) == 1 else None

    def quantity(self, place: int) -> str | None:
        """What a column measures, by its unit or its name."""
        return quantity_of(self.names[place], self.unit(place))

    def described(self) -> str:
        """How it is written, for a note."""
        kinds = {"parquet": "Parquet", "excel": "an Excel workbook", "json": "objects of JSON"}
        how = kinds.get(self.kind) or f"{SEPARATORS[self.separator]} between cells"
        decimal = ", decimal commas" if self.decimal == "," else ""
        alone = "the columns of one sensor" if self.one else "a column per sensor"
        named = " and ".join(repr(self.names[each]) for each in self.sensors)
        rows = f"a row per sensor and time, sensors in {named}" if named else alone
        times = " and ".join(repr(self.names[each] or f"column {each + 1}") for each in self.times)
        return f"{how}{decimal}, {rows}, times in {times}"

    def as_in(self, other: Sheet) -> Sheet:
        """The same sheet, its columns found by the names that they have in another one of the same columns."""
        place = {name: number for number, name in enumerate(self.names)}
        times, values = (tuple(place[other.names[each]] for each in part) for part in (other.times, other.values))
        sensors = tuple(place[other.names[each]] for each in other.sensors)
        lanes = None if other.lanes is None else place[other.names[other.lanes]]
        return replace(self, times=times, values=values, sensors=sensors, lanes=lanes)

    def rows(self, texts: tuple[int, ...], numbers: tuple[int, ...] = ()) -> Generator[Piece, None, None]:
        """These columns of texts and of readings, piece after piece."""
        melt = self.melt
        if melt is None:
            yield from self._rows(texts, numbers)
            return
        real = tuple(place for place in texts if place != melt.label)
        with closing(self._rows(real, tuple(melt.columns(numbers)))) as pieces:
            for piece in pieces:
                count = len(piece.numbers)
                texts_of = melt.texts(dict(zip(real, piece.texts, strict=True)), count)
                kept = np.arange(count).repeat(len(melt.labels))
                yield replace(
                    piece, texts=[texts_of[place] for place in texts], numbers=melt.numbers(piece.numbers), kept=kept
                )

    def _rows(self, texts: tuple[int, ...], numbers: tuple[int, ...]) -> Generator[Piece, None, None]:
        """These columns as they stand in the table."""
        labelled = self.melt is not None and self.times[:1] == (self.melt.label,)
        timed = bool(self.times) and not labelled and self.first[:1].isdigit()
        if self.frame is None:
            how = (self.separator, self.decimal, self.begin, self.encoding, self.signs, timed, self.nested, self.suffix)
            columns = TextColumns(self.path, self.names[: self.melt.label if self.melt else None], texts, numbers, *how)
            yield from columns.read("reading" if numbers else "looking at the times of")
            return
        frame = self.frame[self.begin :].dropna(how="all").infer_objects() if self.kind == "excel" else self.frame
        cells = written(frame[self.times[0]][-FOOTER_ROWS:]).tolist() if timed else []
        if below := list(takewhile(is_below, reversed(cells))):
            frame = frame[: -len(below)]
            if numbers:
                tell_below(self.where, below[::-1])
        values = np.empty((len(frame), len(numbers)), np.float32)
        for place, column in enumerate(numbers):
            with np.errstate(over="ignore"):  # what is too large for a file is infinite
                values[:, place] = self._readings(frame[column], column)
        found = [Texts.of(written(frame[column]).tolist()) for column in texts]
        yield Piece(found, values, self.begin + 1)
        self.signs.check(self.where)

    def _readings(self, column: pd.Series[Any], number: int) -> np.ndarray:
        """A column of a typed table as float64 [t], NaN where there is no reading."""
        import pandas as pd
        import pyarrow as pa

        cells = column.replace(ABSENT, float("nan"))
        texts = cells.map(lambda cell: isinstance(cell, str)).to_numpy(bool)
        if texts.any():
            whole = [str(cell) for cell in cells[~texts].dropna() if cell == cell // 1]
            bare = [cell.removesuffix(self.suffix).strip() for cell in cells[texts]]
            self.signs.see(pa.array([*bare, *whole], pa.string()), self.decimal)
            read = [number_in(cell, self.decimal, grouped=self.signs.said) for cell in bare]
            cells = cells.astype(object)
            cells[texts] = ["wrong" if number is None else number for number in read]
        found = pd.to_numeric(cells, errors="coerce")
        if (wrong := (found.isna() & cells.notna()).to_numpy()).any():
            row = int(wrong.argmax())
            place, name, cell = f"line {row + self.begin + 1}", self.names[number] or number, str(column.iloc[row])
            refuse_cell(self.where, place, name, cell, said=self.signs.said)
        return found.to_numpy(np.float64, na_value=np.nan)


def look(head: FileHead, request: ConvertOptions | None = None) -> list[Sheet]:
    """The sheets of a file that have times, several of a workbook; raises nothing for other kinds of files.

    request: which columns hold times or sensors, and which are left out.
    """
    said = request or ConvertOptions(head.path)
    asked = tuple(getattr(said, option) for option in ASKED)
    if asked not in head.seen:
        head.seen[asked] = _looked(head, said)
    return [replace(sheet, signs=replace(sheet.signs)) for sheet in head.seen[asked]]


def _looked(head: FileHead, request: ConvertOptions) -> list[Sheet]:
    """The sheets of a file at which nobody has looked."""
    if is_json(head):
        return _objects(head, request)
    for separator in (mark for mark in SEPARATORS if any(mark in line for _, line in head.lines)):
        rows = [(number, cells_of(line, separator)) for number, line in head.lines]
        empty = Sheet((), path=head.path, kind="text", encoding=head.encoding, separator=separator)
        if sheet := _written_as(empty, rows, request):
            return [sheet]
    if head.kind not in ("parquet", "excel"):
        return []
    try:
        frames = typed(head)
    except SocialxError:
        return []
    found: dict[str, Sheet | None] = {}
    for name, frame in frames.items():
        first = frame.head(TITLE_ROWS + HEAD_ROWS)
        columns = [written(first[column]).map(str) for column in first]
        rows = [(number, list(cells)) for number, cells in enumerate(zip(*columns, strict=True), 1)]
        if head.kind == "parquet":
            rows.insert(0, (1, [str(column).strip() for column in frame]))
        cells = frame.set_axis(range(len(frame.columns)), axis=1)
        empty = Sheet((), path=head.path, kind=head.kind, separator="|", sheet=name, frame=cells)
        found[name] = _written_as(empty, rows, request)
    sheets = [sheet for sheet in found.values() if sheet is not None]
    others = tuple(name for name, sheet in found.items() if sheet is None)
    return [replace(sheet, others=others if place == 0 else ()) for place, sheet in enumerate(sheets)]


def is_json(head: FileHead) -> bool:
    """Whether a text begins as JSON does: with an object, or an array of objects."""
    return bool(head.lines) and "".join(line.strip() for _, line in head.lines[:3]).startswith(("{", "[{"))


def _objects(head: FileHead, request: ConvertOptions) -> list[Sheet]:
    """The sheet of objects of JSON, whose columns are the keys of the first ones."""
    try:
        with closing(json_objects(head.path, head.encoding, request.decimal or ".")) as objects:
            found = [cells for _, cells in islice(objects, HEAD_ROWS + TITLE_ROWS)]
    except SocialxError:
        return []
    keys = dict.fromkeys(key for cells in found for key in cells)
    nested = tuple(key for key in keys if {cells.get(key, "") for cells in found} - {""} == {NESTED})
    names = [key for key in keys if key not in nested]
    rows = [(number, [cells.get(name, "") for name in names]) for number, cells in enumerate(found, 1)]
    empty = Sheet((), path=head.path, kind="json", encoding=head.encoding, separator=UNQUOTED, nested=nested)
    sheet = _written_as(empty, [(0, names), *rows], request)
    return [sheet] if sheet else []


def cells_of(line: str, separator: str) -> list[str]:
    """The cells of a line of text, without spaces around them; none where one is longer than any name."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def _written_as(sheet: Sheet, rows: list[tuple[int, list[str]]], request: ConvertOptions) -> Sheet | None:
    """The sheet that its first rows show; a unit behind its numbers is none of them, and its file may name its day."""
    units = [""] * max((len(cells) for _, cells in rows), default=0)
    for place, cell in (each for _, cells in rows[-3:] for each in enumerate(cells)):
        if (found := WITH_UNIT.fullmatch(cell)) and unit_of(found[1]):
            units[place] = found[1]
    if len(suffixes := {*units} - {""}) == 1:
        sheet = replace(sheet, suffix=suffixes.pop(), units=tuple(units))
        rows = [(number, [cell.removesuffix(sheet.suffix).strip() for cell in cells]) for number, cells in rows]
    days = {"-".join(found) for found in IN_NAME.findall(sheet.path.name)}
    if (read := _headed(sheet, rows, request)) or len(days) != 1:
        return read
    day = days.pop()
    timed = [[f"{day} {cell}" if ONLY_CLOCK.fullmatch(cell) else cell for cell in cells] for _, cells in rows]
    rows = [(number, cells) for (number, _), cells in zip(rows, timed, strict=True)]
    return _headed(replace(sheet, day=day), rows, request)


def _headed(sheet: Sheet, rows: list[tuple[int, list[str]]], request: ConvertOptions) -> Sheet | None:
    """The sheet with everything that its first rows say; None where none of them is a header with times below it.

    Lines above the header have fewer cells with a text.  One line below it may hold no times and no number, such as
    that of the units.
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
            begun = replace(sheet, begin=rows[first - 1][0])
            if found := _columns(begun, names, right, request):
                units = [cells for cells in between if len(cells) == len(names) and any(map(unit_of, cells))]
                if units:
                    found = replace(found, units=tuple(cell if unit_of(cell) else "" for cell in units[0]))
                skipped = [cells for _, cells in rows[:header]] + [cells for cells in between if cells not in units]
                texts = [shortened(" ".join(filter(None, cells)), 40) for cells in skipped]
                return replace(found, skipped=tuple(filter(None, texts)))
    return None


def _columns(sheet: Sheet, names: list[str], rows: list[list[str]], request: ConvertOptions) -> Sheet | None:
    """The sheet with what each column holds.  None where no column holds times, or ``names`` is no header."""

    import pyarrow as pa

    def more() -> list[list[str]]:
        """Many rows; none where one of them is wrong, which the reader says."""
        try:
            with closing(replace(sheet, names=tuple(names)).rows(tuple(range(len(names))))) as pieces:
                piece = next(pieces, None)
            columns = (
                []
                if piece is None
                else [texts[np.arange(min(SAMPLE, len(texts.codes)))].cells() for texts in piece.texts]
            )
            return list(map(list, zip(*columns, strict=True)))
        except SocialxError:
            return []

    roles = roles_of(names, rows, sheet.separator, request, more)
    if roles is None:
        return None
    melt = roles.melt
    behind = (
        ()
        if melt is None
        else ("time" if melt.label in roles.times else "lane" if melt.label == roles.lanes else "sensor", *melt.names)
    )
    signs = NumberFormat(said=request.decimal is not None)
    if sheet.kind == "text":  # so that hardly any file is looked at for them
        read = melt.columns(roles.values) if melt else roles.values
        for cells in rows:  # one after the other: the first tells it mostly
            signs.see(pa.array([cells[place] for place in read], pa.string()), roles.decimal)
    firsts = [*rows[0], *(() if melt is None else (melt.labels[0],))]
    return replace(
        sheet,
        **vars(roles),
        names=(*names, *behind),
        signs=signs,
        first=one_text([firsts[place] for place in roles.times]),
        dropped=tuple(filter(None, (names[place] for place in roles.left))),
    )


def one_text(cells: list[str]) -> str:
    """A time of several cells as one text: of the first of them the date alone."""
    return " ".join([re.split("[ T]", cells[0])[0], *map(begin_of, cells[1:])]) if len(cells) > 1 else cells[0]


def check_ids(where: object, ids: tuple[str, ...], *, integers: bool = False) -> None:
    """Refuse names of sensors of which one is empty, is no integer where all must be, or stands twice."""
    wrong = [ascii(name[:40]) for name in ids if not (isinstance(match_key(name), int) if integers else name)]
    if wrong:
        raise SocialxError(where, f"line 1 has sensor ids like {sample(wrong)}", "name each column, or remove it")
    if twice := find_repeated(ids):
        copy = next(iter(renamed_copies(twice)), None)
        either = f"leave one out with {Argument('drop', copy)}, or rename it if it is a sensor of its own"
        helps = "remove the repeated ones" if copy is None else either
        raise SocialxError(where, f"line 1 names sensors more than once ({sample(twice)})", helps)


def typed(head: FileHead) -> dict[str, pd.DataFrame]:
    """The cells of a Parquet file, or of each sheet of a workbook by its name; the name of the only one is empty.

    The index of a Parquet file is a column if it has a name or holds times or texts.
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
        found = f"no {head.kind} file that can be read ({' '.join(str(error).split())[:120]})"
        raise SocialxError(head.path, found, "write it again") from None
    names = "sensor" if pd.api.types.is_string_dtype(frame.index.dtype) else "time"
    if frame.index.name is not None or names == "sensor" or isinstance(frame.index, pd.DatetimeIndex):
        frame = frame.rename_axis(str(frame.index.name or names)).reset_index()
    try:
        frame = frame.explode(lists, ignore_index=True) if lists else frame
    except ValueError:
        raise SocialxError(head.path, f"{sample(lists)} differ in length", "write as many in each row") from None
    return {"": frame}


def _check_columns(path: Path) -> list[str]:
    """The columns of a Parquet file that are lists of times and readings.

    Refuses objects in cells, a file of which each byte stands for hundreds of cells, and one too large for memory.
    """
    from pyarrow.parquet import ParquetFile
    from pyarrow.types import is_list, is_nested, is_struct, is_temporal

    from socialx.core.environment import free_memory  # which loads torch: few tables need it

    with ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        cells = sum(each.column(place).num_values for each in groups for place in range(each.num_columns))
        kinds = {each.name: each.type for each in file.schema_arrow}
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
        found = f"columns that hold more than a number, a text or a time in a cell ({listed})"
        raise SocialxError(path, found, f"write a row per time, sensor and reading{helps}")
    need, free = CELL_BYTES * cells, free_memory()
    if need > PARQUET_BYTES and cells > CELLS_OF_BYTE * path.stat().st_size:
        raise SocialxError(
            path, f"{cells:,} cells in {path.stat().st_size:,} bytes, too many to be readings", "save it as CSV"
        )
    if need > PARQUET_BYTES and free is not None and need > free / 2:
        what = f"{cells:,} cells, about {need / 2**30:.1f} GiB, more than half of the free memory"
        raise SocialxError(path, what, "save it as CSV, which is read piece by piece")
    return lists


def written(column: pd.Series[Any]) -> pd.Series[str]:
    """A column of a typed table as texts: times in ISO form, whole numbers without a point."""
    import pandas as pd

    if isinstance(column.dtype, pd.DatetimeTZDtype):
        column = column.dt.tz_convert("UTC")
        return column.dt.strftime("%Y-%m-%d %H:%M:%SZ").fillna("")
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return column.dt.strftime("%Y-%m-%d %H:%M:%S").fillna("")
    if pd.api.types.is_float_dtype(column.dtype) and (column.dropna() % 1 == 0).all():
        return column.map(lambda value: "" if pd.isna(value) else str(int(value)))
    return column.map(lambda value: "" if pd.isna(value) else str(value).strip())
