"""Parse text cells as numbers or missing observations, and text columns as arrays.

pyarrow parses the rows; the reader parses rows refused by pyarrow cell by cell, so that an error names the row.  t rows
per piece, N columns of numbers.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import numpy as np

from socialx.core.errors import Argument, Message, SocialxError, sample, shortened
from socialx.core.progress import note, work
from socialx.files.sources.tables.json_rows import JsonNumber, json_objects
from socialx.files.store.head import LINE_BYTES, UNREADABLE, container, unpack

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES = 1 << 22  # about 2,000 rows of METR-LA
# Cells of a missing observation; any other text is refused.
ABSENT = ["", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none", "-", "--", "?", "NaT"]
NO_READING = frozenset(ABSENT)
NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
COMMA = re.compile(r"[+-]?(?:[0-9]+,?[0-9]*|,[0-9]+)(?:[eE][+-]?[0-9]+)?")  # a number with a decimal comma
NUMBERS = {".": NUMBER, ",": COMMA}  # by the sign of the decimals
# Numbers with the opposite sign before thousands.
GROUPED = {
    ".": re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?"),
    ",": re.compile(r"[+-]?[0-9]{1,3}(?:\.[0-9]{3})+(?:,[0-9]*)?"),
}
THOUSANDS = 25  # larger values before the sign are decimals: roads count fewer than 25,000 vehicles
BLANK_BYTES = 1 << 26  # of consecutive blank lines
FOOTER_ROWS, FOOTER_LETTERS = 10, 1 << 16  # rows below a table, and letters in a row
MARK = b"\xef\xbb\xbf"  # of the order of bytes, at the begin of a text
MANY = 64  # columns of numbers, which are parsed as one
OBJECTS = 4096  # of JSON that become lines at once
UNQUOTED = "\x1f"  # separates the cells of JSON rows


@dataclass
class NumberFormat:
    """The evidence whether a sign before three digits separates decimals or thousands.

    said: the user named the decimal sign; the other sign then separates thousands.  grouped: a number from 1 up with
    three digits after the sign; whole: an integer above 1.  large: a grouped number has more thousands than any
    observation.  decimals: a number has the sign and cannot be grouped.  speeds: the table states speeds, which are
    never large; ``None``: the quantity is unstated.
    """

    said: bool = False
    grouped: str = ""
    whole: str = ""
    large: bool = False
    decimals: bool = False
    speeds: bool | None = None

    def see(self, cells: pa.Array, sign: str) -> None:
        """Update the evidence with number cells as written; ``sign``: the decimal sign assumed so far, "." or ","."""
        import pyarrow.compute as pc

        if self.said or self.decimals or not len(cells):
            return
        mark = re.escape(sign)
        marked = cells.filter(pc.match_substring(cells, sign))
        grouped = marked.filter(pc.match_substring_regex(marked, rf"^\s*[+-]?[1-9][0-9]{{0,2}}{mark}[0-9]{{3}}\s*$"))
        self.decimals = len(grouped) < len(marked)
        for cell in grouped.to_pylist():
            self.grouped = self.grouped or cell.strip()
            self.large = self.large or abs(int(cell.split(sign)[0])) >= THOUSANDS
        if not self.whole:
            integers = cells.filter(pc.match_substring_regex(cells, r"^\s*[+]?(?:[2-9]|[1-9][0-9]+)\s*$"))
            self.whole = integers[0].as_py().strip() if len(integers) else ""

    def check(self, where: object) -> None:
        """Raise where numbers such as 1.234 allow both readings; ``where``: the file, only for the message."""
        never = self.large and (self.speeds or (self.speeds is None and not self.whole))  # thousands
        if self.grouped and not self.decimals and not never:
            beside = f" beside {self.whole}" if self.whole else " with three digits after each sign"
            problem = f"numbers like {self.grouped}{beside} may have thousands or decimals behind the sign"
            raise SocialxError(where, problem, _choices(self.grouped))


def parse_number(cell: str, decimal: str, *, grouped: bool) -> str | None:
    """Return a cell's number in Python notation, or ``None``. grouped: allow thousands, as in 1,234.5 for "."."""
    if NUMBERS[decimal].fullmatch(cell):
        return cell.replace(",", ".")
    if grouped and GROUPED[decimal].fullmatch(cell):
        return cell.replace("." if decimal == "," else ",", "").replace(",", ".")
    return None


def has_number(cells: list[str], decimal: str) -> bool:
    """Return whether any cell is a number with the decimal sign ``decimal``, or with either sign before thousands."""
    forms = (NUMBERS[decimal], *GROUPED.values())
    return any(form.fullmatch(cell) for cell in cells for form in forms)


def _choices(cell: str) -> str:
    """Return advice, ``decimal='.' reads 1.5``, for each sign that makes ``cell`` a number, joined by or; else ""."""
    read = {sign: parse_number(cell, sign, grouped=True) for sign in NUMBERS}
    ways = [f"{Argument('decimal', sign)} reads {number}" for sign, number in read.items() if number]
    return " or ".join(ways)


@dataclass(frozen=True, eq=False)
class Texts:
    """A text column: the distinct texts in order of appearance, and for each row the index of its text, int64 [t]."""

    words: list[str]
    codes: np.ndarray

    @classmethod
    def from_cells(cls, cells: Sequence[str]) -> Texts:
        """Return the column for these cells."""
        codes = {word: code for code, word in enumerate(dict.fromkeys(cells))}
        return cls(list(codes), np.array([codes[cell] for cell in cells], np.int64))

    @classmethod
    def join_columns(cls, columns: Sequence[Texts], join: Callable[[list[str]], str]) -> Texts:
        """Return a column that holds, for each row, the text made by ``join`` from the row's cells in ``columns``."""
        if len(columns) == 1:
            return columns[0]
        numbers = np.zeros(len(columns[0].codes), np.int64)
        for column in columns:
            numbers = numbers * max(1, len(column.words)) + column.codes
        rows, codes = _codes_by_appearance(numbers)
        return cls([join([column.words[column.codes[row]] for column in columns]) for row in rows], codes)

    def cells(self) -> list[str]:
        """Return the text in each row."""
        return [self.words[code] for code in self.codes.tolist()]

    def first(self, word: str) -> int | None:
        """Return the zero-based number of the first row with this text, or ``None``."""
        return int((self.codes == self.words.index(word)).argmax()) if word in self.words else None

    def repeat(self, times: int) -> Texts:
        """Repeat each row ``times`` times."""
        return Texts(self.words, self.codes.repeat(times))

    def __getitem__(self, rows: np.ndarray) -> Texts:
        """Return the rows selected by a mask or by numbers, with only the texts in these rows."""
        kept = self.codes[rows]
        first, codes = _codes_by_appearance(kept)
        return Texts([self.words[code] for code in kept[first].tolist()], codes)


def _codes_by_appearance(numbers: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Return the first row of each distinct value, in order of appearance, and the value's index per row, int64 [t]."""
    _, rows, codes = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(rows)
    rank = np.empty(len(rows), np.int64)
    rank[order] = np.arange(len(rows))
    return rows[order].tolist(), rank[codes.ravel()]


@dataclass(frozen=True)
class Piece:
    """Rows: the cells in each text column, and the numbers float32 [t,N], NaN for a missing number.

    lines: the rows as written, from line ``line`` on; ``None`` outside text files.  kept: the rows kept, int64 [t];
    ``None``: all rows.
    """

    texts: list[Texts]
    numbers: np.ndarray
    line: int
    lines: bytes | None = None
    kept: np.ndarray | None = None

    def row_name(self, row: int) -> str:
        """Return the line of a row, such as ``line 7``, for a message; ``row`` counts from 0 within the piece."""
        row = row if self.kept is None else int(self.kept[row])
        if self.lines is None:
            return f"line {self.line + row}"
        filled = (number for number, line in enumerate(self.lines.splitlines(), self.line) if line.strip())
        return f"line {next(islice(filled, row, None))}"


@dataclass(frozen=True)
class TextColumns:
    """The columns to read in a text, numbered from 0, and how the cells are written.

    names: all column names; a column with an empty name is called by number.  begin: lines before the first row.
    encoding: see ``FileHead``.  signs: the number format seen in the cells, perhaps shared with other columns.  timed:
    the first text column holds times that begin with a digit.  nested: JSON keys left out.  suffix: a unit after each
    number.
    """

    path: Path
    names: tuple[str, ...]
    texts: tuple[int, ...]
    numbers: tuple[int, ...]
    separator: str = ","
    decimal: str = "."
    begin: int = 1
    encoding: str = "utf-8-sig"
    signs: NumberFormat = field(default_factory=NumberFormat, compare=False)
    timed: bool = False
    nested: tuple[str, ...] = ()
    suffix: str = ""

    def read(self, task: str = "reading") -> Generator[Piece, None, None]:
        """Yield all rows; ``task``, such as "reading", labels the progress bar. Raises for a row with more or fewer
        cells, and for a cell that is neither a number nor absent.
        """
        from pyarrow.lib import ArrowException

        self._look_at_signs()
        with closing(self._blocks(task)) as blocks:
            for line, lines in blocks:
                if not lines:
                    continue
                try:
                    yield Piece(*self._parse_lines(lines), line, lines)
                except ArrowException:
                    yield Piece(*self._parse_by_cell(lines, line), line, lines)
        self.signs.check(self.path)

    @cached_property
    def _options(self) -> dict[bool, tuple[Any, Any]]:
        """The parse and convert options for pyarrow, keyed by whether numbers are kept as texts."""
        import pyarrow as pa
        from pyarrow import csv as arrow

        names = [str(number) for number in range(len(self.names))]
        wanted = [names[column] for column in (*self.texts, *self.numbers)] or names[:1]
        parse = arrow.ParseOptions(delimiter=self.separator, quote_char=self.separator != UNQUOTED and '"')
        options = {}
        for as_text, number in ((False, pa.float32()), (True, pa.string())):
            kinds = dict.fromkeys(names, pa.string()) | {names[column]: number for column in self.numbers}
            options[as_text] = (
                parse,
                arrow.ConvertOptions(
                    column_types=kinds, include_columns=wanted, null_values=ABSENT, decimal_point=self.decimal
                ),
            )
        return options

    def _batch(self, lines: bytes, *, as_text: bool = False) -> pa.RecordBatch:
        """Return the text columns in some lines, then the number columns.  as_text: keep the numbers as written."""
        import pyarrow as pa
        from pyarrow import csv as arrow

        if lines.startswith(MARK):  # pyarrow would drop the mark inside a text
            raise pa.ArrowInvalid("a byte order mark after line 1")
        names = [str(number) for number in range(len(self.names))]
        read = arrow.ReadOptions(use_threads=False, block_size=len(lines) + 1, column_names=names)
        # each piece by itself: pyarrow's reader of streams holds several at once
        table = arrow.read_csv(pa.py_buffer(lines), read, *self._options[as_text])
        return table.combine_chunks().to_batches()[0]

    def _parse_lines(self, lines: bytes) -> tuple[list[Texts], np.ndarray]:
        """Return texts and numbers, float32 [t,N], of whole lines; raise ArrowException if cell-wise reading is due."""
        import pyarrow as pa

        if len(self.numbers or self.names) > MANY and (parsed := self._parse_wide(lines)) is not None:
            return parsed
        batch = self._batch(lines)
        texts = [_trim(batch.column(index)) for index in range(len(self.texts))]
        if not self.numbers:
            return texts, np.empty((batch.num_rows, 0), np.float32)
        numbers = batch.select(range(len(self.texts), batch.num_columns)).to_tensor(null_to_nan=True).to_numpy()
        if np.isinf(numbers).any():  # also for texts such as inf
            raise pa.ArrowInvalid("not finite")
        return texts, numbers

    def _parse_wide(self, lines: bytes) -> tuple[list[Texts], np.ndarray] | None:
        """Parse many adjacent columns of numbers as one long column, for speed; return texts and numbers, float32
        [t,N], of whole lines. Returns ``None`` for number columns that are not adjacent, quotes, or a row with more or
        fewer cells.
        """
        import pyarrow as pa
        from pyarrow import csv as arrow

        count, width, mark = len(self.numbers), len(self.names), self.separator.encode()
        first = self.numbers[0] if count else max(self.texts, default=0) + 1
        rows = [row for row in lines.splitlines() if row and not row.isspace()]
        side = self.numbers == tuple(range(first, first + count))
        if not side or b'"' in lines or not all(row.count(mark) == width - 1 for row in rows):
            return None
        cut = [row.split(mark, first) for row in rows]
        if count:
            cut = [[*cells[:first], *cells[first].rsplit(mark, width - first - count)] for cells in cut]
        cuts = [column if column < first else column - count + 1 for column in self.texts]
        texts = [Texts.from_cells([cells[index].decode("utf-8", "replace").strip() for cells in cut]) for index in cuts]
        if not count:
            return texts, np.empty((len(rows), 0), np.float32)
        column = b"\n".join([*(cells[first].replace(mark, b"\n") for cells in cut), b""])
        read = arrow.ReadOptions(use_threads=False, block_size=len(column) + 1, column_names=["0"])
        parse = arrow.ParseOptions(quote_char=False, ignore_empty_lines=False)
        options = {"null_values": ABSENT, "decimal_point": self.decimal, "column_types": {"0": pa.float32()}}
        table = arrow.read_csv(pa.py_buffer(column), read, parse, arrow.ConvertOptions(**options))
        numbers = table.column(0).to_numpy().reshape(len(rows), count)
        return None if np.isinf(numbers).any() else (texts, numbers)

    def _look_at_signs(self) -> None:
        """Read number cells, and collect evidence in ``signs`` until a number settles the decimal sign."""
        import pyarrow as pa

        if not self.numbers or self.signs.said or self.signs.decimals:
            return
        if self.separator == UNQUOTED:
            texts = [cells[column] for cells in self._objects() for column in self.numbers]
            self.signs.see(
                pa.array([cell for cell in texts if not isinstance(cell, JsonNumber)], pa.string()), self.decimal
            )
            return
        with closing(self._blocks("looking at the numbers of", tell=False)) as blocks:
            for _, lines in blocks:
                with suppress(pa.ArrowException):  # such lines count when they are read
                    batch = self._batch(lines, as_text=True)
                    self.signs.see(pa.concat_arrays(batch.columns[len(self.texts) :]), self.decimal)
                if self.signs.decimals:
                    return

    def _objects(self) -> Generator[list[str], None, None]:
        """Yield each JSON object as cells in column order; raise for a key that the first objects lack."""
        for row_name, cells in json_objects(self.path, self.encoding, self.decimal):
            if other := sorted({*cells} - {*self.names} - {*self.nested}):
                problem = f"{row_name} has the key {other[0][:40]!a}, which the first objects do not have"
                raise SocialxError(self.path, problem, "write null for it there, or remove it")
            yield [cells.get(name, "") for name in self.names]

    def _blocks(self, task: str, *, tell: bool = True) -> Generator[tuple[int, bytes], None, None]:
        """Yield (first line number, whole lines) without the footer: up to ten rows that begin with a word. task: the
        label of the progress bar. tell: note the footer rows, such as totals, where numbers are read.
        """
        lines = pieces(self.path, self.begin, self.encoding, task)
        if self.separator == UNQUOTED:
            lines = _object_lines(self._objects(), self.path, task)
        if self.suffix:
            lines = self._strip_unit(lines)
        with closing(lines):
            held = next(lines, (0, b""))
            for line, block in lines:
                if len(block) > FOOTER_ROWS * FOOTER_LETTERS:
                    yield held
                    held = line, block
                else:
                    held = held[0], held[1] + block
            line, block = held
            rows, below = block.splitlines(keepends=True), list[str]()
            for row in reversed(rows[-FOOTER_ROWS:] if self.timed else []):
                text = row.decode("utf-8", "replace")
                if len(text) > FOOTER_LETTERS:
                    break
                cells = next(csv.reader([text], delimiter=self.separator), [])
                if cells and not is_footer(cells[self.texts[0]] if self.texts[0] < len(cells) else cells[0]):
                    break
                below += [" ".join(cells).strip()]
            if self.numbers and any(below) and tell:
                note_footer(self.path, below[::-1])
            yield line, b"".join(rows[: len(rows) - len(below)])

    def _strip_unit(self, lines: Generator[tuple[int, bytes], None, None]) -> Generator[tuple[int, bytes], None, None]:
        """Yield (line number, lines) without the unit ``suffix``, such as km/h, after each number."""
        ends = f'[{re.escape(self.separator)}"\r\n]'
        unit = re.compile(rf"(?<=[0-9.,])\s*{re.escape(self.suffix)}(?=\s*(?:{ends}|$))".encode())
        with closing(lines):
            for line, block in lines:
                yield line, unit.sub(b"", block)

    def _parse_by_cell(self, lines: bytes, line: int) -> tuple[list[Texts], np.ndarray]:
        """Return texts and numbers of lines, cell by cell; ``line``: the first line number. Raise for a wrong cell."""
        import pyarrow as pa

        texts: list[list[str]] = [[] for _ in self.texts]
        rows, written = [], []
        for row_name, cells in walk(self.path, lines, line, len(self.names), self.separator):
            for column, column_texts in zip(self.texts, texts, strict=True):
                column_texts.append(cells[column])
            rows.append([self._number(row_name, column, cells[column]) for column in self.numbers])
            written += [cells[column] for column in self.numbers]
        if self.separator != UNQUOTED:
            self.signs.see(pa.array(written, pa.string()), self.decimal)
        with np.errstate(over="ignore"):
            numbers = np.array(rows, np.float64).astype(np.float32).reshape(len(rows), len(self.numbers))
        return list(map(Texts.from_cells, texts)), numbers

    def _number(self, row_name: str, column: int, cell: str) -> float:
        """Return a cell's number, NaN for an absent observation; raise, with ``row_name``, for other texts."""
        if cell in NO_READING:
            return float("nan")
        number = parse_number(cell, self.decimal, grouped=self.signs.said)
        if number is None:
            refuse_cell(self.path, row_name, self.names[column] or column, cell, said=self.signs.said)
        return float(number)


def _trim(cells: pa.Array) -> Texts:
    """Return a pyarrow text column as Texts, without surrounding spaces."""
    import pyarrow.compute as pc

    encoded = pc.utf8_trim_whitespace(cells).dictionary_encode()
    return Texts(encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64))


def _object_lines(
    objects: Generator[list[str], None, None], path: Path, task: str
) -> Generator[tuple[int, bytes], None, None]:
    """Yield (first object number, up to 4096 lines), cells joined by UNQUOTED; ``task`` labels the progress bar."""
    first = 1
    with closing(objects), work(f"{task} {path.name}", container(path).stat().st_size, "B") as bar:
        while rows := [f"{UNQUOTED.join(cells)}\n" for cells in islice(objects, OBJECTS)]:
            lines = "".join(rows).encode()
            yield first, lines
            first += len(rows)
            bar.advance(len(lines))


def is_footer(cell: str) -> bool:
    """Return whether a cell in a time column is a word, as in a row below the table; times begin with a digit."""
    text = cell.strip().strip("\ufeff")
    return text not in NO_READING and not text[0].isdigit() and text[0] not in "+-.,:"


def note_footer(where: object, rows: list[str]) -> None:
    """Note the rows below the table ``where``, a file or sheet, that are left out."""
    left_out = [shortened(row, 40) for row in rows if row]
    note(Message(where, f"rows below the table are left out: {sample(left_out)}"))


def pieces(
    path: Path, begin: int = 1, encoding: str = "utf-8-sig", task: str = "reading"
) -> Generator[tuple[int, bytes], None, None]:
    """Yield (first line number, whole lines as UTF-8), about 4 MiB at once, without the first ``begin`` lines. task:
    the label of the progress bar. Raises SocialxError for endless lines, many blank lines and damaged files.
    """
    try:
        with unpack(path) as stream, work(f"{task} {path.name}", container(path).stat().st_size, "B") as bar:
            lines: IO[Any] = stream if encoding == "utf-8-sig" else io.TextIOWrapper(stream, encoding)
            for _ in range(begin):
                lines.readline()
            line, blank = begin + 1, 0
            while piece := lines.read(PIECE_BYTES) + (rest := lines.readline(LINE_BYTES)):
                piece = piece if isinstance(piece, bytes) else piece.encode()
                blank = blank + len(piece) if piece.isspace() else 0
                if len(rest) == LINE_BYTES or blank > BLANK_BYTES:
                    defect = "blank lines" if blank else "without the end of a line"
                    size = (BLANK_BYTES if blank else LINE_BYTES) >> 20
                    raise SocialxError(path, f"{size} MiB {defect} follow line {line}", "make the file again")
                if not blank:
                    yield line, piece.removeprefix(MARK) if line == 1 else piece
                line += piece.count(b"\n")
                bar.advance(len(piece))
    except UNREADABLE as error:
        raise SocialxError(path, f"the file cannot be read to its end ({error})", "make or download it again") from None


def walk(path: Path, lines: bytes, line: int, width: int, separator: str = ",") -> Iterator[tuple[str, list[str]]]:
    """Yield (``line 7``, stripped cells) for each row; ``line``: the first line number; ``path``: only for errors.
    Raises for a row with other than ``width`` cells.
    """
    rows = ("" if row.isspace() else row.decode("utf-8", "replace") for row in lines.splitlines())
    reader = csv.reader(rows, delimiter=separator, quotechar=None if separator == UNQUOTED else '"')
    try:
        for cells in reader:
            row_name = f"line {line + reader.line_num - 1}"
            if cells and len(cells) != width:
                raise SocialxError(path, f"{row_name} has {len(cells)} cells, not {width}", "correct the line")
            if cells:
                yield row_name, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise SocialxError(path, f"line {line + reader.line_num - 1}: {error}", "correct the line") from None


def refuse_cell(where: object, row_name: str, column: str | int, cell: str, *, said: bool = True) -> NoReturn:
    """Raise for a cell that is neither a number nor absent; ``where``, ``row_name``, ``column`` name the cell. column:
    a name, or a zero-based number for an unnamed column. said: the decimal sign is known; otherwise the error lists the
    signs with which the cell is a number.
    """
    called = f"column {column + 1}" if isinstance(column, int) else f"column {column[:40]!a}"
    problem = f"{row_name}, {called} is {cell[:40]!a}, not a number"
    raise SocialxError(where, problem, (not said and _choices(cell)) or "correct it, or leave it empty if missing")


def decimal_sign(separator: str, columns: list[list[str]]) -> str:
    """Return the decimal sign: a comma where a number in ``columns``, cells by column, has a comma and none has a
    point. With the separator ",", a comma before three digits may separate thousands, and is ignored.
    """
    form = re.compile(r"[+-]?[0-9]*,(?![0-9]{3}$)[0-9]+") if separator == "," else COMMA
    commas = any("," in cell and form.fullmatch(cell) for column in columns for cell in column)
    points = commas and any("." in cell and NUMBER.fullmatch(cell) for column in columns for cell in column)
    return "," if commas and not points else "."
