"""Cells of texts: which stand for a number or for no reading, and the columns of a text as arrays.

pyarrow parses the rows; those that it does not take are read again cell by cell, so that an error names its place.
t rows of one piece, N columns of numbers.
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
# Cells that mean "no reading"; any other text is refused.
ABSENT = ["", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none", "-", "--", "?", "NaT"]
NO_READING = frozenset(ABSENT)
NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
COMMA = re.compile(r"[+-]?(?:[0-9]+,?[0-9]*|,[0-9]+)(?:[eE][+-]?[0-9]+)?")  # a number with a decimal comma
NUMBERS = {".": NUMBER, ",": COMMA}  # by the sign of the decimals
# Numbers whose thousands have the other sign.
GROUPED = {
    ".": re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?"),
    ",": re.compile(r"[+-]?[0-9]{1,3}(?:\.[0-9]{3})+(?:,[0-9]*)?"),
}
THOUSANDS = 25  # no road counts 25,000 vehicles in some minutes: from there on a number has decimals
BLANK_BYTES = 1 << 26  # of blank lines one after the other
FOOTER_ROWS, FOOTER_LETTERS = 10, 1 << 16  # that may stand below a table, and of one of them
MARK = b"\xef\xbb\xbf"  # of the order of bytes, at the begin of a text
MANY = 64  # columns of numbers, which are parsed as one
OBJECTS = 4096  # of JSON that become lines at once
UNQUOTED = "\x1f"  # stands between the cells of rows of JSON


@dataclass
class NumberFormat:
    """What tells whether a sign before three digits is that of the decimals or of the thousands.

    said: whether the user named the sign of the decimals; the other one is then that of the thousands.  grouped: a
    number from 1 on with three digits after the sign; whole: one above 1 without it.  large: whether one of the grouped
    has more thousands than any reading.  decimals: whether a number has the sign and cannot be grouped.  speeds:
    whether the table says that these are speeds, which are never large; None: it does not say what they are.
    """

    said: bool = False
    grouped: str = ""
    whole: str = ""
    large: bool = False
    decimals: bool = False
    speeds: bool | None = None

    def see(self, cells: pa.Array, sign: str) -> None:
        """Look at the texts of some cells."""
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
            found = cells.filter(pc.match_substring_regex(cells, r"^\s*[+]?(?:[2-9]|[1-9][0-9]+)\s*$"))
            self.whole = found[0].as_py().strip() if len(found) else ""

    def check(self, where: object) -> None:
        """Raise for cells that may be read in both ways."""
        never = self.large and (self.speeds or (self.speeds is None and not self.whole))  # thousands
        if self.grouped and not self.decimals and not never:
            beside = f" beside {self.whole}" if self.whole else " with three digits after each sign"
            found = f"numbers like {self.grouped}{beside}, so the sign may be that of thousands or decimals"
            raise SocialxError(where, found, _either(self.grouped))


def number_in(cell: str, decimal: str, *, grouped: bool) -> str | None:
    """The number of a cell as Python writes it, None where it is none; grouped: it may have thousands."""
    if NUMBERS[decimal].fullmatch(cell):
        return cell.replace(",", ".")
    if grouped and GROUPED[decimal].fullmatch(cell):
        return cell.replace("." if decimal == "," else ",", "").replace(",", ".")
    return None


def has_number(cells: list[str], decimal: str) -> bool:
    """Whether one of some cells is a number, with thousands or without."""
    forms = (NUMBERS[decimal], *GROUPED.values())
    return any(form.fullmatch(cell) for cell in cells for form in forms)


def _either(cell: str) -> str:
    """The decimal signs with which a cell is a number, and this number; empty where there is none."""
    read = {sign: number_in(cell, sign, grouped=True) for sign in NUMBERS}
    ways = [f"{Argument('decimal', sign)} reads {number}" for sign, number in read.items() if number]
    return " or ".join(ways)


@dataclass(frozen=True, eq=False)
class Texts:
    """A column of texts: the different ones as they come, and which of them each row has, int64 [t]."""

    words: list[str]
    codes: np.ndarray

    @classmethod
    def of(cls, cells: Sequence[str]) -> Texts:
        """The cells of a column."""
        place = {word: code for code, word in enumerate(dict.fromkeys(cells))}
        return cls(list(place), np.array([place[cell] for cell in cells], np.int64))

    @classmethod
    def joined(cls, columns: Sequence[Texts], join: Callable[[list[str]], str]) -> Texts:
        """The texts that ``join`` makes of the cells of each row of some columns."""
        if len(columns) == 1:
            return columns[0]
        numbers = np.zeros(len(columns[0].codes), np.int64)
        for column in columns:
            numbers = numbers * max(1, len(column.words)) + column.codes
        rows, codes = _as_they_come(numbers)
        return cls([join([column.words[column.codes[row]] for column in columns]) for row in rows], codes)

    def cells(self) -> list[str]:
        """The text of each row."""
        return [self.words[code] for code in self.codes.tolist()]

    def first(self, word: str) -> int | None:
        """The first row with a text; None where there is none."""
        return int((self.codes == self.words.index(word)).argmax()) if word in self.words else None

    def repeated(self, times: int) -> Texts:
        """Each row so many times."""
        return Texts(self.words, self.codes.repeat(times))

    def __getitem__(self, rows: np.ndarray) -> Texts:
        """Some rows, with the texts that these have."""
        kept = self.codes[rows]
        first, codes = _as_they_come(kept)
        return Texts([self.words[code] for code in kept[first].tolist()], codes)


def _as_they_come(numbers: np.ndarray) -> tuple[list[int], np.ndarray]:
    """The first row of each different number, in order, and which of them each row has, int64 [t]."""
    _, rows, codes = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(rows)
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows))
    return rows[order].tolist(), place[codes.ravel()]


@dataclass(frozen=True)
class Piece:
    """Some rows: the cells of each column of texts, and the numbers float32 [t,N], NaN where there is none.

    lines: the rows as they stand in the file, the first of them in line ``line``; None where it is no text.  kept: the
    numbers of those that are here, int64 [t]; None: all are.
    """

    texts: list[Texts]
    numbers: np.ndarray
    line: int
    lines: bytes | None = None
    kept: np.ndarray | None = None

    def place(self, row: int) -> str:
        """How a message calls a row."""
        row = row if self.kept is None else int(self.kept[row])
        if self.lines is None:
            return f"line {self.line + row}"
        filled = (number for number, line in enumerate(self.lines.splitlines(), self.line) if line.strip())
        return f"line {next(islice(filled, row, None))}"


@dataclass(frozen=True)
class TextColumns:
    """The columns of a text that are read, by their numbers from 0, and how its cells are written.

    names: of all columns; an empty one is called by its number.  begin: lines before the first row.  encoding: as of
    ``FileHead``.  signs: what the cells tell of their decimals, of these columns and perhaps of others.
    timed: whether the first column of texts holds times that begin with a digit.  nested: keys of JSON that are left
    out.  suffix: a unit that stands behind numbers.
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

    def read(self, what: str = "reading") -> Generator[Piece, None, None]:
        """All rows; refuses a row with more or fewer cells, and a cell that is neither a number nor absent."""
        from pyarrow.lib import ArrowException

        self._look_at_signs()
        with closing(self._blocks(what)) as blocks:
            for line, lines in blocks:
                if not lines:
                    continue
                try:
                    yield Piece(*self._parsed(lines), line, lines)
                except ArrowException:
                    yield Piece(*self._careful(lines, line), line, lines)
        self.signs.check(self.path)

    @cached_property
    def _options(self) -> dict[bool, tuple[Any, Any]]:
        """How pyarrow parses and converts cells, by whether numbers are taken as texts."""
        import pyarrow as pa
        from pyarrow import csv as arrow

        names = [str(number) for number in range(len(self.names))]
        wanted = [names[place] for place in (*self.texts, *self.numbers)] or names[:1]
        parse = arrow.ParseOptions(delimiter=self.separator, quote_char=self.separator != UNQUOTED and '"')
        options = {}
        for as_text, number in ((False, pa.float32()), (True, pa.string())):
            kinds = dict.fromkeys(names, pa.string()) | {names[place]: number for place in self.numbers}
            options[as_text] = (
                parse,
                arrow.ConvertOptions(
                    column_types=kinds, include_columns=wanted, null_values=ABSENT, decimal_point=self.decimal
                ),
            )
        return options

    def _batch(self, lines: bytes, *, as_text: bool = False) -> pa.RecordBatch:
        """The columns of texts of some lines, then those of numbers; as_text: the numbers as they stand."""
        import pyarrow as pa
        from pyarrow import csv as arrow

        if lines.startswith(MARK):  # which pyarrow takes as that of a whole text
            raise pa.ArrowInvalid("a byte order mark after line 1")
        names = [str(number) for number in range(len(self.names))]
        read = arrow.ReadOptions(use_threads=False, block_size=len(lines) + 1, column_names=names)
        # each piece by itself: pyarrow's reader of streams holds several at once
        table = arrow.read_csv(pa.py_buffer(lines), read, *self._options[as_text])
        return table.combine_chunks().to_batches()[0]

    def _parsed(self, lines: bytes) -> tuple[list[Texts], np.ndarray]:
        """The texts and the numbers, float32 [t,N], of some lines; raises ArrowException where one is odd."""
        import pyarrow as pa

        if len(self.numbers or self.names) > MANY and (found := self._wide(lines)) is not None:
            return found
        batch = self._batch(lines)
        texts = [_texts(batch.column(place)) for place in range(len(self.texts))]
        if not self.numbers:
            return texts, np.empty((batch.num_rows, 0), np.float32)
        numbers = batch.select(range(len(self.texts), batch.num_columns)).to_tensor(null_to_nan=True).to_numpy()
        if np.isinf(numbers).any():  # also of a text that is no number for us
            raise pa.ArrowInvalid("not finite")
        return texts, numbers

    def _wide(self, lines: bytes) -> tuple[list[Texts], np.ndarray] | None:
        """The same where many columns of numbers stand side by side: parsed as one long column, if at all.

        None where that is not so, or a row has quotes, or more or fewer cells.
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
        places = [column if column < first else column - count + 1 for column in self.texts]
        texts = [Texts.of([cells[place].decode("utf-8", "replace").strip() for cells in cut]) for place in places]
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
        """See the numbers as they are written, until one tells which sign its decimals have."""
        import pyarrow as pa

        if not self.numbers or self.signs.said or self.signs.decimals:
            return
        if self.separator == UNQUOTED:
            texts = [cells[place] for cells in self._objects() for place in self.numbers]
            self.signs.see(
                pa.array([cell for cell in texts if not isinstance(cell, JsonNumber)], pa.string()), self.decimal
            )
            return
        with closing(self._blocks("looking at the numbers of", tell=False)) as blocks:
            for _, lines in blocks:
                with suppress(pa.ArrowException):  # of lines that are seen when they are read
                    batch = self._batch(lines, as_text=True)
                    self.signs.see(pa.concat_arrays(batch.columns[len(self.texts) :]), self.decimal)
                if self.signs.decimals:
                    return

    def _objects(self) -> Generator[list[str], None, None]:
        """The cells of each object of JSON."""
        for place, cells in json_objects(self.path, self.encoding, self.decimal):
            if other := sorted({*cells} - {*self.names} - {*self.nested}):
                found = f"{place} has the key {other[0][:40]!a}, which the first objects do not have"
                raise SocialxError(self.path, found, "write null for it there, or remove it")
            yield [cells.get(name, "") for name in self.names]

    def _blocks(self, what: str, *, tell: bool = True) -> Generator[tuple[int, bytes], None, None]:
        """Whole lines of the table without those below it, and the number of the first.

        tell: a note names the rows below the table, such as totals, where numbers are read.
        """
        lines = pieces(self.path, self.begin, self.encoding, what)
        if self.separator == UNQUOTED:
            lines = _of_objects(self._objects(), self.path, what)
        if self.suffix:
            lines = self._bare(lines)
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
                if cells and not is_below(cells[self.texts[0]] if self.texts[0] < len(cells) else cells[0]):
                    break
                below += [" ".join(cells).strip()]
            if self.numbers and any(below) and tell:
                tell_below(self.path, below[::-1])
            yield line, b"".join(rows[: len(rows) - len(below)])

    def _bare(self, lines: Generator[tuple[int, bytes], None, None]) -> Generator[tuple[int, bytes], None, None]:
        """The same lines without the unit behind numbers."""
        ends = f'[{re.escape(self.separator)}"\r\n]'
        unit = re.compile(rf"(?<=[0-9.,])\s*{re.escape(self.suffix)}(?=\s*(?:{ends}|$))".encode())
        with closing(lines):
            for line, block in lines:
                yield line, unit.sub(b"", block)

    def _careful(self, lines: bytes, line: int) -> tuple[list[Texts], np.ndarray]:
        """The same cell by cell, or a refusal with its place."""
        import pyarrow as pa

        texts: list[list[str]] = [[] for _ in self.texts]
        rows, written = [], []
        for place, cells in walk(self.path, lines, line, len(self.names), self.separator):
            for column, found in zip(self.texts, texts, strict=True):
                found.append(cells[column])
            rows.append([self._number(place, column, cells[column]) for column in self.numbers])
            written += [cells[column] for column in self.numbers]
        if self.separator != UNQUOTED:
            self.signs.see(pa.array(written, pa.string()), self.decimal)
        with np.errstate(over="ignore"):
            numbers = np.array(rows, np.float64).astype(np.float32).reshape(len(rows), len(self.numbers))
        return list(map(Texts.of, texts)), numbers

    def _number(self, place: str, column: int, cell: str) -> float:
        if cell in NO_READING:
            return float("nan")
        number = number_in(cell, self.decimal, grouped=self.signs.said)
        if number is None:
            refuse_cell(self.path, place, self.names[column] or column, cell, said=self.signs.said)
        return float(number)


def _texts(cells: pa.Array) -> Texts:
    """Texts without spaces around them."""
    import pyarrow.compute as pc

    found = pc.utf8_trim_whitespace(cells).dictionary_encode()
    return Texts(found.dictionary.to_pylist(), found.indices.to_numpy(zero_copy_only=False).astype(np.int64))


def _of_objects(
    objects: Generator[list[str], None, None], path: Path, what: str
) -> Generator[tuple[int, bytes], None, None]:
    """The cells of objects as lines of a text, many at once."""
    first = 1
    with closing(objects), work(f"{what} {path.name}", container(path).stat().st_size, "B") as bar:
        while rows := [f"{UNQUOTED.join(cells)}\n" for cells in islice(objects, OBJECTS)]:
            lines = "".join(rows).encode()
            yield first, lines
            first += len(rows)
            bar.advance(len(lines))


def is_below(cell: str) -> bool:
    """Whether a cell in a column of times, which begin with digits, is that of a row below the table: a word."""
    text = cell.strip().strip("\ufeff")
    return text not in NO_READING and not text[0].isdigit() and text[0] not in "+-.,:"


def tell_below(where: object, rows: list[str]) -> None:
    """A note on the rows below a table."""
    note(Message(where, f"left out below the table: {sample([shortened(row, 40) for row in rows if row])}"))


def pieces(
    path: Path, begin: int = 1, encoding: str = "utf-8-sig", what: str = "reading"
) -> Generator[tuple[int, bytes], None, None]:
    """The lines of a text after the first ``begin``, as UTF-8: pieces of whole lines with the number of the first."""
    try:
        with unpack(path) as stream, work(f"{what} {path.name}", container(path).stat().st_size, "B") as bar:
            lines: IO[Any] = stream if encoding == "utf-8-sig" else io.TextIOWrapper(stream, encoding)
            for _ in range(begin):
                lines.readline()
            line, blank = begin + 1, 0
            while piece := lines.read(PIECE_BYTES) + (rest := lines.readline(LINE_BYTES)):
                piece = piece if isinstance(piece, bytes) else piece.encode()
                blank = blank + len(piece) if piece.isspace() else 0
                if len(rest) == LINE_BYTES or blank > BLANK_BYTES:
                    what = "blank lines" if blank else "without the end of a line"
                    size = (BLANK_BYTES if blank else LINE_BYTES) >> 20
                    raise SocialxError(path, f"{size} MiB {what} after line {line}", "correct it, or make it again")
                if not blank:
                    yield line, piece.removeprefix(MARK) if line == 1 else piece
                line += piece.count(b"\n")
                bar.advance(len(piece))
    except UNREADABLE as error:
        raise SocialxError(path, f"cannot be read to its end ({error})", "make or download it again") from None


def walk(path: Path, lines: bytes, line: int, width: int, separator: str = ",") -> Iterator[tuple[str, list[str]]]:
    """``line 7`` of each row, and its cells without spaces around; refuses a row that has not ``width`` of them."""
    rows = ("" if row.isspace() else row.decode("utf-8", "replace") for row in lines.splitlines())
    reader = csv.reader(rows, delimiter=separator, quotechar=None if separator == UNQUOTED else '"')
    try:
        for cells in reader:
            place = f"line {line + reader.line_num - 1}"
            if cells and len(cells) != width:
                raise SocialxError(path, f"{place} has {len(cells)} cells, not {width}", "correct it")
            if cells:
                yield place, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise SocialxError(path, f"line {line + reader.line_num - 1}: {error}", "correct it") from None


def refuse_cell(where: object, place: str, column: str | int, cell: str, *, said: bool = True) -> NoReturn:
    """Raise for a cell that is neither a number nor absent; a column without a name is called by its number from 0.

    said: whether the sign of the decimals is known; the refusal names the signs with which the cell is a number.
    """
    called = f"column {column + 1}" if isinstance(column, int) else f"column {column[:40]!a}"
    found = f"{place}, {called} is {cell[:40]!a}, not a number"
    raise SocialxError(where, found, (not said and _either(cell)) or "correct it, or leave it empty if missing")


def decimal_sign(separator: str, columns: list[list[str]]) -> str:
    """The sign before the decimals: a comma where a number has one, and no column needs a point.

    Between cells that are separated by commas, one before three digits may be that of the thousands.
    """
    form = re.compile(r"[+-]?[0-9]*,(?![0-9]{3}$)[0-9]+") if separator == "," else COMMA
    commas = any("," in cell and form.fullmatch(cell) for column in columns for cell in column)
    points = commas and any("." in cell and NUMBER.fullmatch(cell) for column in columns for cell in column)
    return "," if commas and not points else "."
