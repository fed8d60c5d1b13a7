"""Open any table as rows of texts and numbers: text, JSON, Parquet, a workbook, a frame of pandas or Arrow.

t rows of a piece, K columns of numbers.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import numpy as np

from socialx.core.errors import SocialxError, in_short
from socialx.core.progress import work
from socialx.files.sources.tables.spec import TableSpec
from socialx.files.store.head import (
    GZIP,
    HDF5,
    LINE_BYTES,
    NPY,
    PACKED,
    PARQUET,
    UNREADABLE,
    UTF16,
    ZIP,
    container,
    first_bytes,
    open_io,
    unpack,
)

if TYPE_CHECKING:
    import pyarrow as pa

Source = Any  # a path, a frame of pandas or a table of Arrow
FRAME = "the frame"  # in messages
# Cells without a reading; any other text that is no number is refused.
ABSENT = ["", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none", "-", "--", "?", "NaT"]
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
SEPARATORS = ";\t|^~,"
# Encodings in the order in which they are tried; the last ones fit many texts that are written otherwise.
ENCODINGS = ("utf-8-sig", "cp1252", "cp932", "cp949", "gb18030")
MARK = b"\xef\xbb\xbf"
PIECE_BYTES = 1 << 22  # of a text, parsed at once
BLANK_BYTES = 1 << 26  # of consecutive blank lines
OBJECTS = 4096  # of JSON, parsed at once
SAMPLE_ROWS, SAMPLE_CELLS, SAMPLE_BYTES = 2000, 1 << 19, 1 << 25
TAIL_BYTES, TAIL_LINES = 1 << 16, 10
JSON_BYTES = 1 << 28  # of an array
UNPACKED_BYTES, PACKED_RATIO, SMALL_BYTES, SHEET_CELLS = 1 << 29, 50, 1 << 25, 1 << 24  # of a workbook
PARQUET_CELLS, CELLS_OF_BYTE = 1 << 24, 20  # readings take a byte or two, and hundreds of equal cells one
AS_CSV = "save the table as CSV"
MAKE_AGAIN = "make the file again"


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table: a column of texts (or times) for each that was asked for, and numbers float32 [t,K].

    name: returns what messages call a row, such as ``line 7``.
    """

    texts: list[pa.Array]
    numbers: np.ndarray
    name: Callable[[int], str]


@dataclass(frozen=True, eq=False)
class Table:
    """An opened table: ``where`` in messages, and the names of its columns.

    walk: takes the numbers of columns of texts and of numbers, and yields Rows.  rows: about how many; None if unknown.
    """

    where: Any
    names: list[str]
    walk: Callable[[Sequence[int], Sequence[int]], Iterator[Rows]]
    rows: float | None = None


@dataclass(frozen=True, eq=False)
class Sample:
    """The first rows of a table as texts, by which a description is proposed.

    kind: text, json, parquet, excel or frame.  rows: at most 2,000, of as many cells as they have.  lines, tail: of a
    text as it is written, the first ones (with those above the header) and, unless packed, the last ten.
    typed: what a column holds by its type (time, number, text), where columns have types.  zone: of typed times.
    guessed: whether the encoding may as well be another.
    """

    where: Any
    kind: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    separator: str = ""
    encoding: str = ""
    guessed: bool = False
    skip: int = 0
    typed: tuple[str, ...] = ()
    zone: str = ""
    sheets: tuple[str, ...] = ()

    def column(self, name: str) -> list[str]:
        """Return the cells of a column, without those that say nothing."""
        at = self.names.index(name)
        return [row[at] for row in self.rows if at < len(row) and row[at] not in ABSENT]


def open_tables(source: Source, spec: TableSpec) -> list[Table]:
    """Return the tables of a file or frame: one, or a sheet of a workbook each. Raises SocialxError for no table."""
    kind = table_kind(source)
    if kind == "text":
        return [_open_text(source, spec)]
    if kind == "json":
        return [_open_json(source, spec)]
    if kind == "parquet":
        return [_open_parquet(source, spec)]
    if kind == "frame":
        return [_open_arrow(FRAME, as_arrow(source), spec)]
    return [_open_sheet(source, name, rows, spec) for name, rows in read_workbook(source).items() if rows]


def table_kind(source: Source) -> str:
    """Return text, json, parquet, excel or frame. Raises SocialxError for a folder, and for a file of another kind."""
    if not isinstance(source, Path):
        return "frame"
    first = first_bytes(source, "name a file with a table")
    if first.startswith(PARQUET):
        return "parquet"
    if first.startswith(ZIP) and source.suffix.lower() in (".xlsx", ".xlsm"):
        return "excel"
    packed = [said for magic, said in PACKED.items() if first.startswith(magic) and magic not in (GZIP, *UTF16)]
    if packed or first.startswith((HDF5, NPY)):
        kind, remedy = packed[0] if packed else ("no table", "convert it by its own format")
        raise SocialxError(source, f"the file is {kind}", remedy)
    with _reading(source), unpack(source) as stream:
        begin = stream.read(4096).removeprefix(MARK).lstrip()
    return "json" if begin.startswith((b"{", b"[")) else "text"


def sample(source: Source, spec: TableSpec | None = None) -> Sample:
    """Return the first rows of a file or frame; spec: how its text is written, where that is known already."""
    kind = table_kind(source)
    plain = spec or TableSpec({"flow": "-"}, ("-",))
    if kind == "text":
        return _sample_text(source, plain)
    tables = open_tables(source, plain)
    zone, typed = "", ()
    if kind in ("frame", "parquet"):
        import pyarrow as pa
        from pyarrow.parquet import read_schema

        schema = as_arrow(source).schema if kind == "frame" else read_schema(source)
        kinds = [kind.type for kind in schema]
        zone = next((one.tz for one in kinds if pa.types.is_timestamp(one) and one.tz), "")
        typed = tuple(_type_name(one) for one in kinds)
    if not tables:
        raise SocialxError(source, "the workbook holds no cells", "name another file")
    table = max(tables, key=lambda one: (one.rows or 0) * len(one.names))  # of a workbook, whose first may be a cover
    count, rows = len(table.names), list[tuple[str, ...]]()
    most = _most_rows(count)
    for piece in table.walk(range(count), []):
        cells = [as_texts(column.slice(0, most - len(rows))) for column in piece.texts]
        rows += zip(*cells, strict=True)
        if len(rows) >= most:
            break
    sheets = tuple(str(one.where) for one in tables) if kind == "excel" else ()
    where, names = (source if kind != "frame" else FRAME), tuple(table.names)
    return Sample(where, kind, names, tuple(rows), skip=plain.skip, typed=typed, zone=zone, sheets=sheets)


def _most_rows(columns: int) -> int:
    return max(50, min(SAMPLE_ROWS, SAMPLE_CELLS // max(columns, 1)))


def _type_name(kind: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_temporal(kind):
        return "time"
    return "number" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else "text"


# A text: pieces of whole lines, parsed by Arrow; where that fails, as texts, and then row by row to name the line.


def find_encoding(path: Path) -> tuple[str, bool]:
    """Return the encoding of a text, and whether it is guessed. Raises SocialxError where none fits its beginning."""
    with _reading(path), unpack(path) as stream:
        begin = stream.read(PIECE_BYTES)
    if begin.startswith(UTF16):
        return "utf-16", False
    begin = begin[: begin.rfind(b"\n") + 1] or begin  # a letter may be cut
    for encoding in ENCODINGS:
        with suppress(UnicodeDecodeError):
            begin.decode(encoding)
            return encoding, encoding not in ENCODINGS[:2]
    raise SocialxError(path, "the file is neither a text in UTF-8 nor in another known encoding", "save it as UTF-8")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        if isinstance(error, UnicodeDecodeError):
            problem = f"the text is not written in {error.encoding} (byte {error.object[error.start]:#04x})"
            raise SocialxError(path, problem, "save it as UTF-8, or describe its encoding") from None
        raise SocialxError(path, f"the file cannot be read to its end ({in_short(error)})", MAKE_AGAIN) from None


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the first line, whole lines in UTF-8), about 4 MiB at once. Raises SocialxError for an endless
    line, for many blank ones, and for a damaged file.
    """
    with _reading(path), unpack(path) as stream:
        text: IO[Any] = stream
        if encoding not in ("utf-8", "utf-8-sig") or not _has_newlines(path):
            text = io.TextIOWrapper(stream, encoding)
        line, blank = 1, 0
        while piece := text.read(PIECE_BYTES) + (rest := text.readline(LINE_BYTES)):
            piece = piece if isinstance(piece, bytes) else piece.encode()
            blank = blank + len(piece) if piece.isspace() else 0
            if len(rest) == LINE_BYTES or blank > BLANK_BYTES:
                defect = "blank lines" if blank else "without the end of a line"
                size = (BLANK_BYTES if blank else LINE_BYTES) >> 20
                raise SocialxError(path, f"{size} MiB {defect} follow line {line}", MAKE_AGAIN)
            yield line, piece.removeprefix(MARK) if line == 1 else piece
            line += piece.count(b"\n")


def _has_newlines(path: Path) -> bool:
    """Return whether lines end in newlines, and not in carriage returns alone."""
    with unpack(path) as stream:
        begin = stream.read(PIECE_BYTES)
    return b"\n" in begin or b"\r" not in begin


def find_separator(lines: Sequence[str]) -> str:
    """Return the sign that stands equally often in most of the lines, a comma if there is none."""
    best, score = ",", 0.0
    for mark in SEPARATORS:
        counts = Counter(len(next(csv.reader([line], delimiter=mark), [])) for line in lines)
        cells, times = max(counts.items(), key=lambda pair: (pair[1] * (pair[0] > 1), pair[0]), default=(0, 0))
        if cells > 1 and times * (1 + cells / 1e6) > score:
            best, score = mark, times * (1 + cells / 1e6)
    return best


def _split(line: str, mark: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=mark), [])]
    except csv.Error:
        return [line]


@dataclass(frozen=True, eq=False)
class _Text:
    """A text: where its first row begins, the separator, the sign of decimals, and the names of its columns."""

    path: Path
    spec: TableSpec
    encoding: str
    mark: str
    names: list[str]
    first: int  # the line of the first row

    def walk(self, texts: Sequence[int], numbers: Sequence[int]) -> Iterator[Rows]:
        with work(f"reading {self.path.name}", container(self.path).stat().st_size, "B") as bar:
            for line, whole in _lines(self.path, self.encoding):
                bar.advance(len(whole))
                piece = whole
                if line < self.first:
                    lines = whole.split(b"\n", self.first - line)
                    piece = lines[-1] if len(lines) > self.first - line else b""
                if piece and not piece.isspace():
                    yield self._parse(piece, max(line, self.first), texts, numbers)

    def _parse(self, piece: bytes, line: int, texts: Sequence[int], numbers: Sequence[int]) -> Rows:
        """Return the rows of whole lines: by Arrow, with numbers as such, else as texts, else row by row."""
        import pyarrow as pa

        name = partial(self._line, piece, line)
        if MARK not in piece:  # which Arrow drops inside a text
            for typed in (True, False)[bool(self.spec.thousands) :]:
                with suppress(pa.ArrowInvalid, _WrongCell):
                    columns = self._columns(piece, texts, numbers, typed)
                    return Rows(columns[: len(texts)], self._matrix(columns[len(texts) :]), name)
        cells, lines = self._by_row(piece, line, texts, numbers)
        columns = [pa.array(column, pa.string()) for column in cells]
        try:
            parsed = self._matrix(columns[len(texts) :])
        except _WrongCell as error:
            refuse_cell(self.path, f"line {lines[error.row]}", self.names[numbers[error.column]], error.cell)
        return Rows(columns[: len(texts)], parsed, lambda row: f"line {lines[row]}")

    def _columns(self, piece: bytes, texts: Sequence[int], numbers: Sequence[int], typed: bool) -> list[pa.Array]:
        import pyarrow as pa
        from pyarrow import csv as arrow

        called = list(map(str, range(len(self.names))))
        wanted = [called[column] for column in (*texts, *numbers)]
        kinds = dict.fromkeys(called, pa.string())
        kinds |= {called[column]: pa.float32() if typed and column not in texts else pa.string() for column in numbers}
        read = arrow.ReadOptions(use_threads=False, block_size=len(piece) + 1, column_names=called)
        parse = arrow.ParseOptions(delimiter=self.mark)
        convert = arrow.ConvertOptions(
            column_types=kinds,
            include_columns=wanted,
            null_values=ABSENT,
            strings_can_be_null=False,
            decimal_point=self.spec.decimal,
        )
        batch = arrow.read_csv(pa.py_buffer(piece), read, parse, convert).combine_chunks().to_batches()[0]
        return list(batch.columns)

    def _matrix(self, columns: list[pa.Array]) -> np.ndarray:
        return as_matrix(columns, self.spec.decimal, self.spec.thousands)

    def _by_row(
        self, piece: bytes, line: int, texts: Sequence[int], numbers: Sequence[int]
    ) -> tuple[list[list[str]], list[int]]:
        """Return the cells by column, and the line of each row. Raises for a row with other than the usual cells."""
        wanted, width = (*texts, *numbers), len(self.names)
        columns: list[list[str]] = [[] for _ in wanted]
        lines, left_out = list[int](), [(self.names.index(name), text) for name, text in self.spec.never.items()]
        with _reading(self.path):
            rows = csv.reader(piece.decode("utf-8").splitlines(), delimiter=self.mark)
            try:
                for cells in rows:
                    if not any(cell.strip() for cell in cells):
                        continue
                    at = line + rows.line_num - 1
                    if len(cells) != width:
                        if any(column < len(cells) and cells[column].strip() == text for column, text in left_out):
                            continue
                        problem = f"line {at} has {len(cells)} cells, not {width}"
                        raise SocialxError(self.path, problem, "correct the line")
                    lines.append(at)
                    for column, index in zip(columns, wanted, strict=True):
                        column.append(cells[index].strip())
            except csv.Error as error:
                raise SocialxError(self.path, f"line {line + rows.line_num - 1}: {error}", "correct it") from None
        return columns, lines

    def _line(self, piece: bytes, line: int, row: int) -> str:
        filled = (number for number, text in enumerate(piece.splitlines(), line) if text.strip())
        return f"line {next(islice(filled, row, None), line)}"


def _open_text(path: Path, spec: TableSpec) -> Table:
    encoding = spec.encoding or find_encoding(path)[0]
    count, header, second = 0, "", ""
    size = 0
    for _, piece in islice(_lines(path, encoding), 1 if spec.skip < 1000 else None):
        lines = piece.decode("utf-8", "replace").splitlines()
        filled = [(number, line) for number, line in enumerate(lines, 1) if number > spec.skip and line.strip()]
        (count, header), (_, second) = (filled[:2] + [(0, "")] * 2)[:2]
        size = len(piece) / max(1, len(lines))
    if not header:
        raise SocialxError(path, f"no line follows line {spec.skip}, so the file is no table", "name another file")
    mark = spec.separator or find_separator([line for _, line in filled[:50]])
    names, first = _split(header, mark), count + 1
    headless = bool(spec.names) or (bool(spec.start) and not spec.time and not spec.seconds and _is_numbers(names))
    if headless:
        width = len(names)
        names = [*spec.names, *(f"column {number}" for number in range(len(spec.names) + 1, width + 1))][:width]
        first = count
    elif second and len(cells := _split(second, mark)) == len(names) + 1 and not spec.names:
        names = ["", *names] if cells[-1] else [*names, ""]  # R and pandas leave the name of an index out
    with suppress(OSError):
        rows = container(path).stat().st_size / max(size, 1)
        text = _Text(path, spec, encoding, mark, names, first)
        packed = first_bytes(path, "").startswith((GZIP, ZIP)) or container(path) != path
        return Table(path, names, text.walk, None if packed else rows)
    raise SocialxError(path, "the file is no longer there", "name another file")


def _is_numbers(cells: Sequence[str]) -> bool:
    return all(cell in ABSENT or NUMBER.fullmatch(cell.replace(",", ".")) for cell in cells)


def _sample_text(path: Path, spec: TableSpec) -> Sample:
    encoding, guessed = (spec.encoding, False) if spec.encoding else find_encoding(path)
    lines = list[str]()
    for _, piece in _lines(path, encoding):
        lines += piece.decode("utf-8", "replace").splitlines()
        if len(lines) > SAMPLE_ROWS or sum(map(len, lines[-1:])) * SAMPLE_ROWS > SAMPLE_BYTES:
            break
    filled = [line for line in lines if line.strip()]
    body = [line for line in lines[spec.skip :] if line.strip()]
    if not body:
        raise SocialxError(path, f"no line follows line {spec.skip}, so the file is no table", "name another file")
    mark = spec.separator or find_separator(body[:50])
    names = list(spec.names) or _split(body[0], mark)
    most = _most_rows(len(names))
    rows = tuple(tuple(_split(line, mark)) for line in body[not spec.names :][:most])
    if rows and len(rows[0]) == len(names) + 1 and rows[0][-1] and not spec.names:
        names = ["", *names]
    tail = tuple(_tail(path, encoding)) if len(lines) > most else tuple(filled[-TAIL_LINES:])
    head = tuple(lines[: most + spec.skip + 1])
    return Sample(path, "text", tuple(names), rows, head, tail, mark, encoding, guessed, spec.skip)


def _tail(path: Path, encoding: str) -> list[str]:
    """Return the last filled lines of a text that is not packed and in which a letter is a byte or so."""
    if container(path) != path or first_bytes(path, "").startswith((GZIP, ZIP)) or encoding == "utf-16":
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(encoding, "replace").splitlines()[1:]
    return [line for line in lines if line.strip()][-TAIL_LINES:]


# Numbers of any type.


class _WrongCell(Exception):
    """A cell that is no number, by its row and column."""

    def __init__(self, row: int, column: int, cell: str) -> None:
        super().__init__(cell)
        self.row, self.column, self.cell = row, column, cell


def as_matrix(columns: Sequence[pa.Array], decimal: str = ".", thousands: str = "") -> np.ndarray:
    """Return columns of numbers, or of texts that say them, as float32 [t,K] with NaN. Raises _WrongCell."""
    import pyarrow as pa

    if not columns:
        return np.empty((0, 0), np.float32)
    arrays = [_as_numbers(column, index, decimal, thousands) for index, column in enumerate(columns)]
    batch = pa.RecordBatch.from_arrays(arrays, list(map(str, range(len(arrays)))))
    numbers = batch.to_tensor(null_to_nan=True).to_numpy()
    if np.isinf(numbers).any():
        row, column = map(int, np.argwhere(np.isinf(numbers))[0])
        raise _WrongCell(row, column, str(columns[column][row].as_py()))
    return numbers


def _as_numbers(column: pa.Array, index: int, decimal: str, thousands: str) -> pa.Array:
    """Return a column as float32; texts may have thousands in groups of three, and a plus."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type == pa.float32():
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        if pa.types.is_temporal(column.type) or pa.types.is_boolean(column.type) or pa.types.is_nested(column.type):
            raise _WrongCell(0, index, str(column[0].as_py()))
        wide = column if pa.types.is_floating(column.type) or pa.types.is_null(column.type) else column.cast("float64")
        return wide.cast(pa.float32(), safe=False)
    text = pc.utf8_trim_whitespace(column)
    if thousands:
        group, rest = re.escape(thousands), re.escape(decimal)
        grouped = pc.match_substring_regex(text, rf"^[+-]?[0-9]{{1,3}}({group}[0-9]{{3}})+({rest}[0-9]*)?$")
        text = pc.if_else(grouped, pc.replace_substring(text, thousands, ""), text)
    if decimal != ".":
        other = pc.match_substring(text, ".")
        text = pc.if_else(other, pc.binary_join_element_wise(text, "x", ""), pc.replace_substring(text, decimal, "."))
    text = pc.replace_substring_regex(text, r"^\+([0-9.])", r"\1")
    text = pc.if_else(pc.is_in(text, pa.array(ABSENT, text.type)), None, text)
    try:
        return text.cast(pa.float32())
    except pa.ArrowInvalid:
        cells = text.to_pylist()
        row = next((row for row, cell in enumerate(cells) if cell is not None and not NUMBER.fullmatch(cell)), 0)
        raise _WrongCell(row, index, str(column[row].as_py())) from None


def refuse_cell(where: object, row: str, column: str, cell: str) -> NoReturn:
    """Raise SocialxError for a cell that is no number; row: its name, such as ``line 7``."""
    problem = f"{row}, column {column[:40]!a} is {cell[:40]!a}, not a number"
    raise SocialxError(where, problem, "correct it, or leave it empty if missing")


# Typed columns: texts of them, and tables of Arrow.


def distinct(column: pa.Array) -> tuple[list[str], np.ndarray]:
    """Return the distinct texts of a column of any type, and for each row the number of its text, int64 [t]."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    encoded = column.dictionary_encode(null_encoding="encode")
    return as_texts(encoded.dictionary), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def as_texts(column: pa.Array) -> list[str]:
    """Return the cells of any type as texts: times in ISO 8601, whole numbers without decimals, nothing as ""."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_timestamp(kind):
        seconds = column.cast(pa.timestamp("s", kind.tz), safe=False)
        texts = pc.strftime(seconds.cast(pa.timestamp("s")), f"%Y-%m-%d %H:%M:%S{'Z' if kind.tz else ''}")
        return ["" if text is None else text for text in texts.to_pylist()]
    cells = column.to_pylist()
    if pa.types.is_floating(kind):
        return [
            "" if cell is None or cell != cell else f"{cell:.0f}" if cell % 1 == 0 else repr(cell) for cell in cells
        ]
    return ["" if cell is None else str(cell).strip() for cell in cells]


def as_arrow(frame: Any) -> pa.Table:
    """Return a frame of pandas with its index, or a table of Arrow, as such. Raises SocialxError for odd cells."""
    import pandas as pd
    import pyarrow as pa

    if isinstance(frame, pa.RecordBatchReader):
        return frame.read_all()
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pd.Series):
        frame = frame.to_frame()
    if not isinstance(frame, pd.DataFrame):
        remedy = "give a file, or a frame: pandas.DataFrame(readings, times, sensors)"
        raise SocialxError(FRAME, f"{type(frame).__name__} is no file and no frame", remedy)
    names = ["_".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in frame.columns]
    frame = frame.set_axis(names, axis=1)
    if isinstance(frame.index, pd.PeriodIndex):
        frame = frame.set_axis(frame.index.to_timestamp())
    plain = frame.index.nlevels == 1 and frame.index.name is None
    if not plain or not pd.api.types.is_integer_dtype(frame.index.dtype):  # which only counts rows
        called = ["time" if isinstance(frame.index, pd.DatetimeIndex) else "sensor"] if plain else None
        frame = frame.reset_index(names=called) if called else frame.reset_index()
    if twice := [name for name, count in Counter(map(str, frame.columns)).items() if count > 1]:
        raise SocialxError(FRAME, f"{len(twice)} of the columns repeat", "keep one of each", sample=twice)
    try:
        return pa.Table.from_pandas(frame.set_axis(map(str, frame.columns), axis=1), preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        kinds = f"some cells are no numbers, texts or times, or of several kinds ({in_short(error)})"
        raise SocialxError(FRAME, kinds, "give numbers, and NaN where nothing was read") from None


def _rows_of(
    where: object,
    batches: Iterator[pa.RecordBatch],
    names: list[str],
    spec: TableSpec,
    texts: Sequence[int],
    numbers: Sequence[int],
    row_word: str = "row",
) -> Iterator[Rows]:
    """Yield the rows of batches with all columns, counted from 1."""
    begin = 1
    for batch in batches:
        try:
            matrix = as_matrix([batch.column(column) for column in numbers], spec.decimal, spec.thousands)
        except _WrongCell as error:
            refuse_cell(where, f"{row_word} {begin + error.row}", names[numbers[error.column]], error.cell)
        first = begin
        yield Rows(
            [batch.column(column) for column in texts], matrix, lambda row, first=first: f"{row_word} {first + row}"
        )
        begin += batch.num_rows


def _open_arrow(where: object, table: pa.Table, spec: TableSpec, row_word: str = "row") -> Table:
    names = list(spec.names) or table.column_names

    def walk(texts: Sequence[int], numbers: Sequence[int]) -> Iterator[Rows]:
        wanted = [*dict.fromkeys((*texts, *numbers))]
        places = {column: place for place, column in enumerate(wanted)}
        batches = iter(table.select(wanted).to_batches(1 << 16))
        picked = [names[column] for column in wanted]
        yield from _rows_of(
            where, batches, picked, spec, [places[c] for c in texts], [places[c] for c in numbers], row_word
        )

    return Table(where, names, walk, table.num_rows)


def _open_parquet(path: Path, spec: TableSpec) -> Table:
    """Open a Parquet file; an unnamed index of pandas is called time, or sensor if it holds texts."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with open_io(path) as stream, ParquetFile(stream) as file:
            schema, count = file.schema_arrow, file.metadata.num_rows
    except (*UNREADABLE, pa.ArrowException) as error:
        problem = f"the parquet file cannot be read ({in_short(error, 120)})"
        raise SocialxError(path, problem, "write it again") from None
    cells = count * len(schema.names)
    if cells > max(PARQUET_CELLS, CELLS_OF_BYTE * container(path).stat().st_size):
        size = container(path).stat().st_size
        raise SocialxError(path, f"the file has {cells:,} cells in {size:,} bytes, too many for observations", AS_CSV)
    index = {f"__index_level_{level}__" for level in range(9)}
    names = [
        ("time" if pa.types.is_temporal(kind.type) else "sensor") if kind.name in index else kind.name
        for kind in schema
    ]

    def walk(texts: Sequence[int], numbers: Sequence[int]) -> Iterator[Rows]:
        wanted = [*dict.fromkeys((*texts, *numbers))]
        places = {column: place for place, column in enumerate(wanted)}
        with _reading(path), open_io(path) as stream, ParquetFile(stream) as file:
            batches = file.iter_batches(1 << 14, columns=[schema.names[column] for column in wanted])
            ordered = (batch.select([schema.names[column] for column in wanted]) for batch in batches)
            picked = [names[column] for column in wanted]
            yield from _rows_of(path, ordered, picked, spec, [places[c] for c in texts], [places[c] for c in numbers])

    return Table(path, names, walk, count)


# JSON and workbooks: cells become texts.


def _open_json(path: Path, spec: TableSpec) -> Table:
    """Open an object per line, or an array of objects; objects in objects have names such as ``flow.speed``."""
    objects = _objects(path, spec)
    first = [cells for _, cells in islice(objects, 1000)]
    names = [*dict.fromkeys(name for cells in first for name in cells)]

    def walk(texts: Sequence[int], numbers: Sequence[int]) -> Iterator[Rows]:
        import pyarrow as pa

        rows = _objects(path, spec)
        while part := [*islice(rows, OBJECTS)]:
            for called, cells in part:
                if other := next((name for name in cells if name not in known), None):
                    problem = f"{called} has the key {other[:40]!a}, which the first objects do not have"
                    raise SocialxError(path, problem, "write null for it there, or remove it")
            columns = [
                pa.array([cells.get(names[c], "") for _, cells in part], pa.string()) for c in (*texts, *numbers)
            ]
            try:
                matrix = as_matrix(columns[len(texts) :], spec.decimal, spec.thousands)
            except _WrongCell as error:
                refuse_cell(path, part[error.row][0], names[numbers[error.column]], error.cell)
            yield Rows(columns[: len(texts)], matrix, lambda row, part=part: part[row][0])

    known = {*names}
    return Table(path, names, walk)


def _objects(path: Path, spec: TableSpec) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (name, cells by key) for each object. Raises SocialxError for what is no JSON of objects."""
    encoding = spec.encoding or find_encoding(path)[0]
    number, size, whole = 0, 0, list[str]()
    for line, piece in _lines(path, encoding):
        text = piece.decode("utf-8", "replace")
        if line == 1 and text.lstrip().startswith("["):
            whole = [text]
        elif whole:
            whole.append(text)
        else:
            for number, row in enumerate(text.split("\n"), line):
                if row.strip():
                    yield f"line {number}", _flat(_loads(path, f"line {number}", row), path, f"line {number}")
        size += len(piece)
        if whole and size > JSON_BYTES:
            problem = f"an array of more than {JSON_BYTES >> 20} MiB is not read"
            raise SocialxError(path, problem, 'write an object in each line: jq -c ".[]" FILE')
    rows = _loads(path, "the array", "".join(whole)) if whole else []
    for number, row in enumerate(rows, 1):
        yield f"object {number}", _flat(row, path, f"object {number}")


def _loads(path: Path, called: str, text: str) -> Any:
    try:
        return json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise SocialxError(path, f"{called} is not JSON ({in_short(error)})", "correct it") from None


def _flat(row: Any, path: Path, called: str, above: str = "") -> dict[str, str]:
    """Return the cells of an object as texts, with those of objects in it; lists are left out."""
    if not isinstance(row, dict):
        raise SocialxError(path, f"{called} is no object", "write an object with a time, a sensor and a reading")
    cells = dict[str, str]()
    for name, value in row.items():
        if isinstance(value, dict) and above.count(".") < 8:
            cells |= _flat(value, path, called, f"{above}{name}.")
        elif not isinstance(value, dict | list):
            cells[above + name] = "" if value is None else str(value)
    return cells


def _open_sheet(path: Path, name: str, rows: list[list[str]], spec: TableSpec) -> Table:
    import pyarrow as pa

    body = rows[spec.skip :]
    names = list(spec.names) or (body[0] if body else [])
    body = body[not spec.names :]
    columns = [pa.array([row[column] for row in body], pa.string()) for column in range(len(names))]
    table = pa.Table.from_arrays(columns, list(map(str, range(len(names)))))
    opened = _open_arrow(f"{path}, sheet {name}" if name else path, table, spec, "row")
    return Table(opened.where, names, opened.walk, opened.rows)


def read_workbook(path: Path) -> dict[str, list[list[str]]]:
    """Return equally long rows of texts by the name of a sheet; the only sheet is called "". Raises SocialxError."""
    try:
        from openpyxl import load_workbook  # type: ignore[import-untyped]

        with open_io(path) as file:
            with zipfile.ZipFile(file) as archive:
                size = sum(part.file_size for part in archive.infolist())
            if size > UNPACKED_BYTES or size > max(SMALL_BYTES, PACKED_RATIO * file.seek(0, io.SEEK_END)):
                raise SocialxError(path, f"the workbook has {size:,} bytes unpacked, too many to read", AS_CSV)
            book = load_workbook(file, read_only=True, data_only=True, keep_links=False)
            try:
                sheets = {sheet.title: _read_sheet(path, sheet) for sheet in book.worksheets}
            finally:
                book.close()
    except ImportError:
        raise SocialxError(path, "openpyxl is not installed", "pip install 'socialx[excel]'") from None
    except SocialxError:
        raise
    except Exception as error:  # noqa: BLE001  of openpyxl, which has many kinds
        problem = f"the file is no workbook that can be read ({in_short(error, 120)})"
        raise SocialxError(path, problem, "write it again") from None
    return sheets if len(sheets) > 1 else dict(zip([""], sheets.values(), strict=True))


def _read_sheet(path: Path, sheet: Any) -> list[list[str]]:
    rows, width = list[list[str]](), 0
    sheet.reset_dimensions()  # which the file may state wrongly
    for cells in sheet.iter_rows(values_only=True):
        row = [_cell_text(cell) for cell in cells]
        while row and not row[-1]:
            row.pop()
        rows.append(row)
        width = max(width, len(row))
        if len(rows) * width > SHEET_CELLS:
            problem = f"a sheet has {len(rows):,} rows and {width:,} columns, too many cells to read"
            raise SocialxError(path, problem, f"remove cells far from the table, or {AS_CSV}")
    while rows and not rows[-1]:
        rows.pop()
    return [row + [""] * (width - len(row)) for row in rows]


def _cell_text(cell: Any) -> str:
    if cell is None or (isinstance(cell, str) and cell.startswith("#")):  # an error of a formula
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()
