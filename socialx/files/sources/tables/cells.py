"""Open any table as rows with texts and numbers: text, JSON, Parquet, a workbook, a pandas frame or an Arrow table.

t rows in a piece, K number columns.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from socialx.core.errors import Argument, SocialxError, in_short
from socialx.core.progress import work
from socialx.files.sources.request import FRAME
from socialx.files.sources.tables.spec import EITHER, UNSAID, TableSpec
from socialx.files.store.head import GZIP, LINE_BYTES, UNREADABLE, UTF16, ZIP, container, open_io, read_head, unpack

if TYPE_CHECKING:
    import pyarrow as pa

Source = Any  # a path, a frame of pandas or a table of Arrow
# Cells without a reading; any other text that is no number is refused.
ABSENT = ["", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none", "-", "--", "?", "NaT"]
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
SEPARATORS = ";\t|^~,"
ENCODINGS = ("utf-8-sig", "cp1252", "cp932", "cp949", "gb18030")  # in the order in which they are tried
MARK = b"\xef\xbb\xbf"
PIECE_BYTES, BLANK_BYTES, JSON_BYTES = 1 << 22, 1 << 26, 1 << 28  # of a text at once; of blank lines; of an array
BATCH, OBJECTS = 1 << 14, 4096  # rows of Arrow, and objects of JSON, at once
SAMPLE_ROWS, SAMPLE_CELLS, TAIL_BYTES, TAIL_LINES = 2000, 1 << 18, 1 << 16, 10
UNPACKED_BYTES, PACKED_RATIO, SMALL_BYTES, SHEET_CELLS = 1 << 29, 50, 1 << 25, 1 << 24  # of a workbook
PARQUET_CELLS, CELLS_OF_BYTE = 1 << 24, 20  # readings take a byte or two, and hundreds of equal cells one
AS_CSV = "save the table as CSV"
MAKE_AGAIN = "make the file again"


@dataclass(frozen=True, eq=False)
class Rows:
    """Table rows: columns with texts or times, and numbers float32 [t,K]; name: returns ``line 7`` for a row."""

    texts: list[pa.Array]
    numbers: np.ndarray
    name: Callable[[int], str]


@dataclass(frozen=True, eq=False)
class Table:
    """An opened table: ``where`` in messages, its column names, and about how many rows it has, if known.

    walk: takes column indices for texts and for numbers, and yields Rows.
    """

    where: Any
    names: list[str]
    walk: Callable[[Sequence[int], Sequence[int]], Iterator[Rows]]
    rows: float | None = None


@dataclass(frozen=True, eq=False)
class Sample:
    """A table's first rows as texts, at most 2,000, by which a description is proposed.

    kind: text, json, parquet, excel or frame.  lines, tail: the cells of the first lines in a text or a workbook, with
    those above the header, and of the last ten in a text, unless packed.  written: fields in TableSpec that say how the
    table is written.  units: by column, from a line below the header.
    """

    kind: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[tuple[str, ...], ...] = ()
    tail: tuple[tuple[str, ...], ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)


def table_kind(source: Source) -> str:
    """Return text, json, parquet, excel or frame. Raises SocialxError for a folder, and for another kind."""
    if not isinstance(source, Path):
        return "frame"
    head = read_head(source, "name a file with a table")
    if head.kind in ("parquet", "excel"):
        return head.kind
    if head.kind != "text":
        raise SocialxError("table.kind", source, f"this is no table, but {head.kind}", "name a file with a table in it")
    with _reading(source), unpack(source) as stream:
        begin = stream.read(4096).removeprefix(MARK).lstrip()
    return "json" if begin.startswith((b"{", b"[")) else "text"


def open_tables(source: Source, spec: TableSpec) -> list[Table]:
    """Return the tables in a file or frame: one, or one for each sheet in a workbook. Raises SocialxError for none."""
    kind = table_kind(source)
    if kind == "excel":
        sheets = read_workbook(source)
        return [_open_sheet(f"{source}, sheet {name}" if name else source, rows, spec) for name, rows in sheets.items()]
    if kind == "text":
        text = _open_text(source, spec)
        return [Table(source, text.names, text.walk, text.rows)]
    return [{"json": _open_json, "parquet": _open_parquet, "frame": _open_frame}[kind](source, spec)]


def take_sample(source: Source) -> Sample:
    """Return the first rows in a file or frame."""
    kind = table_kind(source)
    if kind == "text":
        text = _open_text(source, UNSAID)
        begin, end = text.first - 1, text.first - 1 + _most_rows(text.names)
        head, tail = text.lines[: end + 1], text.tail()
        lines, last = (tuple(split_line(line, text.mark) for line in part) for part in (head, tail))
        rows = tuple(cells for cells, line in [*zip(lines, head, strict=True)][begin:end] if line.strip())
        return Sample(kind, tuple(text.names), rows, lines, last)
    tables = open_tables(source, UNSAID)
    table = max(tables, key=lambda one: (one.rows or 0) * len(one.names))  # of a workbook, whose first may be a cover
    names, cells, most = tuple(table.names), list[tuple[str, ...]](), _most_rows(table.names)
    for piece in table.walk(range(len(names)), []):
        cells += zip(*(as_texts(column.slice(0, most - len(cells))) for column in piece.texts), strict=True)
        if len(cells) >= most:
            break
    return Sample(kind, names, tuple(cells), (names, *cells) if kind == "excel" else ())


def _most_rows(names: Sequence[str]) -> int:
    return max(20, min(SAMPLE_ROWS, SAMPLE_CELLS // max(len(names), 1)))


# A text: pieces of whole lines, parsed by Arrow; where that fails, as texts, and then row by row to name the line.


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise SocialxError for what reading a damaged file raises, or a text in another encoding."""
    try:
        yield
    except UnicodeDecodeError as error:
        problem = f"the text is not written in {error.encoding} (byte {error.object[error.start]:#04x})"
        raise SocialxError("table.encoding", path, problem, "save it as UTF-8, or describe its encoding") from None
    except UNREADABLE as error:
        raise SocialxError("table.cut", path, f"it cannot be read to its end ({in_short(error)})", MAKE_AGAIN) from None


def find_encoding(path: Path) -> str:
    """Return a text's encoding by its beginning. Raises SocialxError where none fits."""
    with _reading(path), unpack(path) as stream:
        begin = stream.read(PIECE_BYTES)
    if begin.startswith(UTF16):
        return "utf-16"
    if b"\0" in begin:
        raise SocialxError("table.zero-bytes", path, "the file has bytes of 0, as no text has", "save it as UTF-8")
    for encoding in ENCODINGS:
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder(encoding)().decode(begin)  # whose last letter may be cut
            return encoding if b"\n" in begin or b"\r" not in begin else encoding.removesuffix("-sig")
    raise SocialxError("table.no-text", path, "it is no text in UTF-8 or another known encoding", "save it as UTF-8")


def _pieces(path: Path, encoding: str) -> Iterator[tuple[int, bytes]]:
    """Yield (first line number, whole lines in UTF-8), about 4 MiB at once. Raises SocialxError for an endless
    line, for many blank ones, and for a damaged file.
    """
    with _reading(path), unpack(path) as stream:
        text: IO[Any] = stream if encoding == "utf-8-sig" else io.TextIOWrapper(stream, encoding)
        line, blank = 1, 0
        while piece := text.read(PIECE_BYTES) + (rest := text.readline(LINE_BYTES)):
            piece = piece if isinstance(piece, bytes) else piece.encode()
            blank = blank + len(piece) if piece.isspace() else 0
            if len(rest) == LINE_BYTES or blank > BLANK_BYTES:
                defect = "blank lines" if blank else "without the end of a line"
                size = (BLANK_BYTES if blank else LINE_BYTES) >> 20
                raise SocialxError("table.long-line", path, f"{size} MiB {defect} follow line {line}", MAKE_AGAIN)
            yield line, piece.removeprefix(MARK) if line == 1 else piece
            line += piece.count(b"\n")


def find_separator(lines: Sequence[str]) -> str:
    """Return the sign by which most lines have equally many cells, a comma if there is none."""
    best, score = ",", (0, 0)
    for mark in SEPARATORS:
        counts = Counter(len(split_line(line, mark)) if '"' in line else line.count(mark) + 1 for line in lines)
        widest = max(((times, cells) for cells, times in counts.items() if cells > 1), default=(0, 0))
        best, score = (mark, widest) if widest > score else (best, score)
    return best


def split_line(line: str, mark: str) -> tuple[str, ...]:
    """Return the cells in a line; the whole line where a cell is beyond the limit in the csv module."""
    try:
        return tuple(map(str.strip, next(csv.reader([line], delimiter=mark), [])))
    except csv.Error:
        return (line,)


@dataclass(frozen=True, eq=False)
class _Text:
    """A text: its separator, column names, first lines, the first row's line number, and rows."""

    path: Path
    spec: TableSpec
    encoding: str
    mark: str
    names: list[str]
    lines: list[str]
    first: int
    rows: float | None

    def walk(self, texts: Sequence[int], numbers: Sequence[int]) -> Iterator[Rows]:
        with work(f"reading {self.path.name}", container(self.path).stat().st_size, "B") as bar:
            for line, whole in _pieces(self.path, self.encoding):
                above = max(0, self.first - line)
                piece = (whole.split(b"\n", above) + [b""] * above)[above] if above else whole
                if not piece.isspace() and piece:
                    yield self._parse(piece, line + above, texts, numbers)
                bar.advance(len(whole))

    def tail(self) -> list[str]:
        """Return the last filled lines; none for a packed text, or one in which a letter takes two bytes."""
        if self.rows is None or self.encoding == "utf-16":
            return []
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - TAIL_BYTES))
            lines = [line.decode(self.encoding, "replace") for line in file.read().splitlines()]
        return [line for line in lines if line.strip()][-TAIL_LINES:]

    def _parse(self, piece: bytes, line: int, texts: Sequence[int], numbers: Sequence[int]) -> Rows:
        """Return the rows in whole lines: by Arrow, with numbers as such, else as texts, else row by row."""
        import pyarrow as pa

        signs, name = (self.spec.decimal, self.spec.thousands), partial(self._line, piece, line)
        if MARK not in piece:  # which Arrow drops inside a text
            for typed in (True, False)[bool(self.spec.thousands) :]:
                with suppress(pa.ArrowInvalid, _WrongCell):
                    columns = self._columns(piece, texts, numbers, typed)
                    matrix = as_matrix(columns[len(texts) :], *signs)
                    return Rows(columns[: len(texts)], matrix, name)
        lines, cells = self._by_row(piece, line, (*texts, *numbers))
        columns = [pa.array(column, pa.string()) for column in cells]
        line_of = lambda row: f"line {lines[row]}"  # noqa: E731
        with _named_cells(self.path, [self.names[column] for column in numbers], line_of):
            return Rows(columns[: len(texts)], as_matrix(columns[len(texts) :], *signs), line_of)

    def _columns(self, piece: bytes, texts: Sequence[int], numbers: Sequence[int], typed: bool) -> list[pa.Array]:
        import pyarrow as pa
        from pyarrow import csv as arrow

        called = list(map(str, range(len(self.names))))
        kinds = dict.fromkeys(called, pa.string())
        kinds |= {called[column]: pa.float32() for column in numbers if typed and column not in texts}
        read = arrow.ReadOptions(use_threads=False, block_size=len(piece) + 1, column_names=called)
        convert = arrow.ConvertOptions(
            column_types=kinds,
            include_columns=[called[column] for column in (*texts, *numbers)],
            null_values=ABSENT,
            strings_can_be_null=False,
            decimal_point=self.spec.decimal,
        )
        table = arrow.read_csv(pa.py_buffer(piece), read, arrow.ParseOptions(delimiter=self.mark), convert)
        return list(table.combine_chunks().to_batches()[0].columns)

    def _by_row(self, piece: bytes, line: int, wanted: Sequence[int]) -> tuple[list[int], list[list[str]]]:
        """Return each row's line, and the cells by column. Raises for a row with other than the usual cells."""
        columns: list[list[str]] = [[] for _ in wanted]
        left_out = [(self.names.index(name), {*text.split(EITHER)}) for name, text in self.spec.never.items()]
        lines = list[int]()
        with _reading(self.path):
            rows = csv.reader([text.decode("utf-8") for text in piece.splitlines()], delimiter=self.mark)
        try:
            for cells in rows:
                at, cells = line + rows.line_num - 1, [cell.strip() for cell in cells]
                if not any(cells) or any({*cells[column : column + 1]} & texts for column, texts in left_out):
                    continue
                if len(cells) != len(self.names):
                    problem = f"line {at} has {len(cells)} cells, not {len(self.names)}"
                    raise SocialxError("table.cells", self.path, problem, "mend it")
                lines.append(at)
                for column, index in zip(columns, wanted, strict=True):
                    column.append(cells[index])
        except csv.Error as error:
            raise SocialxError("table.csv", self.path, f"line {line + rows.line_num - 1}: {error}", "mend it") from None
        return lines, columns

    def _line(self, piece: bytes, line: int, row: int) -> str:
        filled = (number for number, text in enumerate(piece.splitlines(), line) if text.strip())
        return f"line {next(islice(filled, row, None), line)}"


def _open_text(path: Path, spec: TableSpec) -> _Text:
    encoding = spec.encoding or find_encoding(path)
    piece = next(_pieces(path, encoding), (1, b""))[1]
    lines = [] if piece.isspace() else piece.decode("utf-8", "replace").splitlines()
    filled = [number for number, line in enumerate(lines, 1) if number > spec.skip and line.strip()]
    if not filled:
        raise SocialxError("table.skip", path, f"no table: no line follows line {spec.skip}", "name another file")
    mark = spec.separator or find_separator([lines[number - 1] for number in filled[:50]])
    names, first = [*split_line(lines[filled[0] - 1], mark)], filled[0] + 1
    second = [*split_line(lines[filled[1] - 1], mark)] if len(filled) > 1 else names
    numbers = all(cell in ABSENT or NUMBER.fullmatch(cell.replace(",", ".")) for cell in names)
    if spec.names or (numbers and spec.step_s and not (spec.time or spec.sensor or spec.seconds)):
        first = filled[0]
        names = [*spec.names, *map(str, range(len(spec.names), len(names)))][: len(names)]
    elif len(second) == len(names) + 1:  # pandas and R leave the name of an index out
        names = ["", *names] if second[-1] else [*names, ""]
    packed = container(path) != path or read_head(path).first.startswith((GZIP, ZIP))
    rows = None if packed else path.stat().st_size * len(lines) / len(piece)
    return _Text(path, spec, encoding, mark, names, lines, first, rows)


# Numbers and texts of columns of any type.


class _WrongCell(Exception):
    """A cell that is no number, by its row and column."""

    def __init__(self, row: int, column: int, cell: str) -> None:
        super().__init__(cell)
        self.row, self.column, self.cell = row, column, cell


@contextmanager
def _named_cells(where: object, names: Sequence[str], called: Callable[[int], str]) -> Iterator[None]:
    """Raise SocialxError for a cell that is no number, and name row and column."""
    try:
        yield
    except _WrongCell as wrong:
        name = names[wrong.column]
        problem = f"{called(wrong.row)}, column {name[:40]!a} is {wrong.cell[:40]!a}, not a number"
        helps = f"correct it, leave it empty if missing, or leave the column out with {Argument('drop', name)}"
        raise SocialxError("table.no-number", where, problem, helps) from None


def as_matrix(columns: Sequence[pa.Array], decimal: str = ".", thousands: str = "") -> np.ndarray:
    """Return columns with numbers, or with texts that say them, as float32 [t,K] with NaN. Raises _WrongCell."""
    import pyarrow as pa

    if not columns:
        return np.empty((0, 0), np.float32)
    arrays = [_as_numbers(column, index, decimal, thousands) for index, column in enumerate(columns)]
    batch = pa.RecordBatch.from_arrays(arrays, list(map(str, range(len(arrays)))))
    numbers = batch.to_tensor(null_to_nan=True).to_numpy()
    if (infinite := np.isinf(numbers)).any():
        row, column = map(int, np.argwhere(infinite)[0])
        raise _WrongCell(row, column, str(columns[column][row].as_py()))
    return numbers


def _as_numbers(column: pa.Array, index: int, decimal: str, thousands: str) -> pa.Array:
    """Return a column as float32; texts may have thousands in groups of three, and a plus."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        if pa.types.is_temporal(kind) or pa.types.is_boolean(kind) or pa.types.is_nested(kind):
            raise _WrongCell(0, index, str(column[0].as_py()))
        return column if kind == pa.float32() else column.cast(pa.float64(), safe=False).cast(pa.float32(), safe=False)
    text = pc.utf8_trim_whitespace(column)
    if thousands:
        group, rest = re.escape(thousands), re.escape(decimal)
        grouped = pc.match_substring_regex(text, rf"^[+-]?[0-9]{{1,3}}({group}[0-9]{{3}})+({rest}[0-9]*)?$")
        text = pc.if_else(grouped, pc.replace_substring(text, thousands, ""), text)
    if decimal != ".":  # and then a point is none
        text = pc.replace_substring(pc.replace_substring(text, ".", "x"), decimal, ".")
    text = pc.replace_substring_regex(text, r"^\+([0-9.])", r"\1")
    text = pc.if_else(pc.is_in(text, pa.array(ABSENT, text.type)), None, text)
    try:
        return text.cast(pa.float32())
    except pa.ArrowInvalid:
        row = next((row for row, cell in enumerate(text.to_pylist()) if cell and not NUMBER.fullmatch(cell)), 0)
        raise _WrongCell(row, index, str(column[row].as_py())) from None


def as_number(text: str) -> float:
    """Return the number that a text says, perhaps infinite; NaN for another text."""
    try:
        return float("nan" if "_" in text else text)
    except ValueError:
        return np.nan


def distinct(column: pa.Array) -> tuple[list[str], np.ndarray]:
    """Return a column's distinct texts, and each row's text number, int64 [t]."""
    import pyarrow as pa

    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    encoded = column.dictionary_encode(null_encoding="encode")
    return as_texts(encoded.dictionary), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def as_texts(column: pa.Array) -> list[str]:
    """Return cells in any type as texts: times in ISO 8601, whole numbers without decimals, nothing as ""."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_nested(kind):
        return [""] * len(column)
    if pa.types.is_timestamp(kind):
        whole = column.cast(pa.timestamp("s", kind.tz), safe=False).cast(pa.timestamp("s"))
        column = pc.strftime(whole, f"%Y-%m-%d %H:%M:%S{'Z' if kind.tz else ''}")
    elif pa.types.is_floating(kind):
        filled = (None if cell != cell else cell for cell in column.to_pylist())  # NaN
        return ["" if cell is None else f"{cell:.0f}" if cell % 1 == 0 else repr(cell) for cell in filled]
    return ["" if cell is None else str(cell).strip() for cell in column.to_pylist()]


# Typed tables, of JSON and workbooks too, whose cells become texts.


def _typed(
    where: object,
    names: Sequence[str],
    batches: Callable[[list[int]], Iterable[pa.RecordBatch]],
    spec: TableSpec,
    rows: float | None = None,
    first: int = 1,
) -> Table:
    """Return a table in batches; batches: returns these with the given column indices, in their order."""
    names = [*spec.names, *names[len(spec.names) :]]

    def walk(texts: Sequence[int], numbers: Sequence[int]) -> Iterator[Rows]:
        wanted = [*dict.fromkeys((*texts, *numbers))]
        places = [*map({column: at for at, column in enumerate(wanted)}.get, (*texts, *numbers))]
        called, begin = [names[column] for column in numbers], first
        for batch in batches(wanted):
            name = lambda row, begin=begin: f"row {begin + row}"  # noqa: E731
            columns = [batch.column(at) for at in places]
            with _named_cells(where, called, name):
                matrix = as_matrix(columns[len(texts) :], spec.decimal, spec.thousands)
            yield Rows(columns[: len(texts)], matrix, name)
            begin += batch.num_rows

    return Table(where, names, walk, rows)


def _strings(columns: Iterable[Iterable[str]]) -> pa.Table:
    import pyarrow as pa

    arrays = [pa.array(column, pa.string()) for column in columns]
    return pa.Table.from_arrays(arrays, list(map(str, range(len(arrays)))))


def _open_frame(frame: Source, spec: TableSpec) -> Table:
    table = as_arrow(frame)
    return _typed(FRAME, _names(table.schema), lambda c: table.select(c).to_batches(BATCH), spec, table.num_rows)


def _names(schema: pa.Schema) -> list[str]:
    """Return column names; an unnamed pandas index is time or sensor, and has none where it counts rows."""
    import pyarrow as pa

    def called(field: pa.Field) -> str:
        if not re.fullmatch(r"__index_level_[0-9]+__", field.name):
            return str(field.name)
        return "time" if pa.types.is_temporal(field.type) else "" if pa.types.is_integer(field.type) else "sensor"

    return [called(field) for field in schema]


def as_arrow(frame: Any) -> pa.Table:
    """Return a pandas frame with its index, or an Arrow table, as such. Raises SocialxError for odd cells."""
    import pandas as pd
    import pyarrow as pa

    if isinstance(frame, pa.Table):
        return frame
    if not isinstance(frame, pd.DataFrame):
        remedy = "give a file, or a frame: pandas.DataFrame(readings, times, sensors)"
        raise SocialxError("frame.type", FRAME, f"{type(frame).__name__} is no file and no frame", remedy)
    names = ["_".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in frame.columns]
    frame = frame.set_axis(names, axis=1)
    if isinstance(frame.index, pd.PeriodIndex):
        frame = frame.set_axis(frame.index.to_timestamp())
    if twice := {*map(str, frame.index.names)} & {*names} or {name for name in names if names.count(name) > 1}:
        raise SocialxError("table.alike", FRAME, f"two columns are {min(twice)!r}", "rename one, perhaps the index")
    try:
        table = pa.Table.from_pandas(frame)
        return table.select([*range(len(names), table.num_columns), *range(len(names))])  # the index first
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        kinds = f"some cells are no numbers, texts or times, or of several kinds ({in_short(error)})"
        raise SocialxError("table.mixed-cells", FRAME, kinds, "give numbers, and NaN where nothing was read") from None


def _open_parquet(path: Path, spec: TableSpec) -> Table:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with open_io(path) as stream, ParquetFile(stream) as file:
            schema, count = file.schema_arrow, file.metadata.num_rows
    except (*UNREADABLE, pa.ArrowException) as error:
        problem = f"the parquet file cannot be read ({in_short(error, 120)})"
        raise SocialxError("table.parquet", path, problem, "write it again") from None
    cells, size = count * len(schema.names), container(path).stat().st_size
    if cells > max(PARQUET_CELLS, CELLS_OF_BYTE * size):
        raise SocialxError("table.bomb", path, f"the file has {cells:,} cells in {size:,} bytes, too many", AS_CSV)

    def batches(columns: list[int]) -> Iterator[pa.RecordBatch]:
        names = [schema.names[column] for column in columns]
        with _reading(path), open_io(path) as stream, ParquetFile(stream) as file:
            for batch in file.iter_batches(BATCH, columns=names):
                yield batch.select(names)

    return _typed(path, _names(schema), batches, spec, count)


def _open_json(path: Path, spec: TableSpec) -> Table:
    """Open an object per line, or an array with objects; objects in objects have names such as ``flow.speed``."""
    first = [*islice(_objects(path, spec), 1000)]
    names = [*dict.fromkeys(name for cells in first for name in cells)]
    keys, outer = {*names}, {name[:at] for name in names for at, sign in enumerate(name) if sign == "."}
    if mixed := next((name for cells in first for name, text in cells.items() if text and name in outer), None):
        problem = f"the key {mixed[:40]!a} has an object in some rows"
        raise SocialxError("table.json-mixed", path, problem, "write one kind in all rows")

    def batches(columns: list[int]) -> Iterator[pa.RecordBatch]:
        objects = _objects(path, spec)
        while part := [*islice(objects, OBJECTS)]:
            if other := {name for cells in part for name in cells} - keys:
                problem = f"some objects have the key {min(other)[:40]!a}, which the first ones do not have"
                raise SocialxError("table.json-keys", path, problem, "write null for it there, or remove it")
            yield from _strings([cells.get(names[c], "") for cells in part] for c in columns).to_batches()

    return _typed(path, names, batches, spec)


def _objects(path: Path, spec: TableSpec) -> Iterator[dict[str, str]]:
    """Yield each object's cells by key. Raises SocialxError for what is no JSON with objects."""
    number, size, whole = 0, 0, list[str]()
    for line, piece in _pieces(path, spec.encoding or find_encoding(path)):
        text, size = piece.decode("utf-8", "replace"), size + len(piece)
        if whole or text.lstrip().startswith("["):
            whole.append(text)
            if size > JSON_BYTES:
                helps = f'write an object in each line: jq -c ".[]" {path.name}'
                raise SocialxError("table.json-size", path, f"an array above {JSON_BYTES >> 20} MiB is not read", helps)
        else:
            for number, row in enumerate(text.split("\n"), line):
                if row.strip():
                    yield _flat(_loads(path, f"line {number}", row), path, f"line {number}")
    for number, row in enumerate(_loads(path, "the array", "".join(whole)) if whole else [], 1):
        yield _flat(row, path, f"object {number}")


def _loads(path: Path, called: str, text: str) -> Any:
    try:
        tree = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
        if "\\ud" in text.lower():  # half of a character raises ValueError
            json.dumps(tree, ensure_ascii=False).encode()
        return tree
    except (ValueError, RecursionError) as error:
        raise SocialxError("table.json", path, f"{called} is not JSON ({in_short(error)})", "correct it") from None


def _flat(row: Any, path: Path, called: str, above: str = "") -> dict[str, str]:
    """Return an object's cells as texts, with the cells in inner objects; a list is no number."""
    if not isinstance(row, dict):
        problem = f"{called} is no object"
        raise SocialxError("table.json-no-object", path, problem, "write an object with a time, a sensor and a reading")
    cells = dict[str, str]()
    for name, value in row.items():
        if isinstance(value, dict) and above.count(".") < 8:
            cells |= _flat(value, path, called, f"{above}{name}.")
        elif not isinstance(value, dict):
            text = "[...]" if isinstance(value, list) and value else str(value)
            cells[above + name] = "" if value in (None, []) else text
    return cells


def _open_sheet(where: object, rows: list[list[str]], spec: TableSpec) -> Table:
    header = rows[spec.skip] if len(rows) > spec.skip else []
    body = rows[spec.skip + (not spec.names) :]
    table = _strings([row[column] for row in body] for column in range(len(header)))
    first = spec.skip + (not spec.names) + 1
    return _typed(where, header, lambda c: table.select(c).to_batches(BATCH), spec, len(body), first)


@contextmanager
def open_workbook(path: Path) -> Iterator[Any]:
    """Open a workbook of bounded size by openpyxl. Raises SocialxError, also for what the block cannot read."""
    try:
        from openpyxl import load_workbook  # type: ignore[import-untyped]

        with open_io(path) as file:
            size = sum(part.file_size for part in zipfile.ZipFile(file).infolist())
            if size > UNPACKED_BYTES or size > max(SMALL_BYTES, PACKED_RATIO * file.seek(0, io.SEEK_END)):
                raise SocialxError("table.unpacked", path, f"a workbook of {size:,} bytes unpacked, too many", AS_CSV)
            with closing(load_workbook(file, read_only=True, data_only=True, keep_links=False)) as book:
                yield book
    except ImportError:
        raise SocialxError("table.excel", path, "openpyxl is not installed", "pip install 'socialx[excel]'") from None
    except SocialxError:
        raise
    except Exception as error:  # noqa: BLE001  of openpyxl, which has many kinds
        problem = f"the file is no workbook that can be read ({in_short(error, 120)})"
        raise SocialxError("table.workbook", path, problem, "write it again") from None


def read_workbook(path: Path) -> dict[str, list[list[str]]]:
    """Return equally long rows with texts by sheet name; the only sheet is called "". Raises SocialxError."""
    with open_workbook(path) as book:
        sheets = {sheet.title: _read_sheet(path, sheet) for sheet in book.worksheets}
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
            raise SocialxError("table.sheet-size", path, problem, f"remove cells far from the table, or {AS_CSV}")
    while rows and not rows[-1]:
        rows.pop()
    return [row + [""] * (width - len(row)) for row in rows]


def _cell_text(cell: Any) -> str:
    if cell is None or (isinstance(cell, str) and cell.startswith("#")):  # an error of a formula
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()
