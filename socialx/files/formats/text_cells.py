"""Cells of texts: which stand for a number or for no reading, and the columns of a text as arrays.

t rows of one piece, N columns of numbers.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from socialx.errors import Argument, Message, SocialxError, sample, shortened
from socialx.files.file_head import LINE_BYTES, UNREADABLE, unpacked, whole
from socialx.progress import note, work

PIECE_BYTES = 1 << 22  # about 2,000 rows of METR-LA: small beside pandas itself, large beside the cost of a call
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
NARROW = 16  # rows of so many cells are cut cell by cell
UNQUOTED = "\x1f"  # stands between the cells of rows that had quotes


@dataclass
class Signs:
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

    def see(self, cells: bytes, mark: bytes, sign: str) -> None:
        """Look at some cells, with a mark between them."""
        if self.said or self.decimals:
            return
        grouped, whole = _forms(mark, sign)
        if count := cells.count(sign.encode()):
            found = grouped.findall(cells)
            self.decimals = len(found) < count
            self.grouped = self.grouped or b"".join(found[:1]).decode().strip()
            self.large = self.large or any(abs(int(cell.split(sign.encode())[0])) >= THOUSANDS for cell in found)
        if not self.whole and (large := whole.search(cells)):
            self.whole = large[0].decode().strip()

    def check(self, where: object) -> None:
        """Raise for cells that may be read in both ways."""
        never = self.large and (self.speeds or (self.speeds is None and not self.whole))  # thousands
        if self.grouped and not self.decimals and not never:
            beside = f" beside {self.whole}" if self.whole else " with three digits after each sign"
            found = f"numbers like {self.grouped}{beside}, so the sign may be that of thousands or decimals"
            raise SocialxError(where, found, _either(self.grouped))


@cache
def _forms(mark: bytes, sign: str) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """A cell between marks that may have thousands, and a whole number above 1 without any sign."""
    begin, end = rb"(?<![^%s])[ ]*" % re.escape(mark), rb"[ ]*(?![^%s])" % re.escape(mark)
    grouped = rb"[+-]?[1-9][0-9]{0,2}%s[0-9]{3}" % re.escape(sign.encode())
    return re.compile(begin + grouped + end), re.compile(begin + rb"[+]?(?:[2-9]|[1-9][0-9]+)" + end)


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


@dataclass(frozen=True)
class Piece:
    """Some rows: the cells of each column of texts, and the numbers float32 [t,N], NaN where there is none.

    lines: the rows as they stand in the file, the first of them in line ``line``; None where it is no text.  kept: the
    numbers of those that are here, int64 [t]; None: all are.
    """

    texts: list[list[str]]
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
    timed: whether the first column of texts holds times that begin with a digit.  only: lines without it may be left
    out.
    """

    path: Path
    names: tuple[str, ...]
    texts: tuple[int, ...]
    numbers: tuple[int, ...]
    separator: str = ","
    decimal: str = "."
    begin: int = 1
    encoding: str = "utf-8-sig"
    signs: Signs = field(default_factory=Signs, compare=False)
    timed: bool = False
    only: bytes = b""

    def read(self, what: str = "reading") -> Generator[Piece, None, None]:
        """All rows; refuses a row with more or fewer cells, and a cell that is neither a number nor absent.

        The fast parser reads what it is sure of.  All else is read cell by cell.
        """
        found = pieces(self.path, self.begin, self.encoding, what)
        with closing(found):
            line, lines = next(found, (0, b""))
            while lines:
                following = next(found, (0, b""))
                rows = self._of_objects(lines, line) if self.separator == UNQUOTED else lines
                rows = rows if following[1] or not self.timed else self._above(rows)
                if rows and self.only in rows:
                    yield Piece(*(self._fast(rows) or self._careful(rows, line)), line, rows)
                line, lines = following
        self.signs.check(self.path)

    def _of_objects(self, lines: bytes, line: int) -> bytes:
        """The same lines of JSON as rows of cells."""
        rows = []
        for number, text in enumerate(lines.splitlines(), line):
            cells = (
                {}
                if text.isspace() or not text
                else cells_of_object(self.path, number, text.decode("utf-8", "replace"), self.decimal)
            )
            if other := sorted({*cells} - {*self.names}):
                found = f"line {number} has the key {other[0][:40]!a}, which the first lines do not have"
                raise SocialxError(self.path, found, "write null for it there, or remove it")
            rows.append(UNQUOTED.join(cells.get(name, "") for name in self.names) if cells else "")
            read = (cells.get(self.names[column], "") for column in self.numbers)
            texts = [cell for cell in read if not isinstance(cell, JsonNumber)]
            self.signs.see(UNQUOTED.join(texts).encode(), UNQUOTED.encode(), self.decimal)
        return "\n".join(rows).encode()

    def _above(self, lines: bytes) -> bytes:
        """The last rows without those below the table, such as totals; a note names them where numbers are read."""
        rows, below = lines.splitlines(keepends=True), []
        for row in reversed(rows[-FOOTER_ROWS:]):
            text = row.decode("utf-8", "replace")
            if len(text) > FOOTER_LETTERS:
                break
            cells = next(csv.reader([text], delimiter=self.separator), [])
            if cells and not is_below(cells[self.texts[0]] if self.texts[0] < len(cells) else cells[0]):
                break
            below += [" ".join(cells).strip()]
        if self.numbers and any(below):
            tell_below(self.path, below[::-1])
        return b"".join(rows[: len(rows) - len(below)])

    def _rows(self, lines: bytes) -> tuple[list[bytes], bytes]:
        """The lines that are not blank, without quotes around cells, and what separates these; none if it fails."""
        rows = [row for row in lines.splitlines() if row and not row.isspace()]
        if b'"' not in lines:
            return rows, self.separator.encode()
        texts = (row.decode("utf-8", "replace") for row in rows)
        try:
            cells = list(csv.reader(texts, delimiter=self.separator))
        except csv.Error:
            return [], b""
        return [UNQUOTED.join(row).encode() for row in cells], UNQUOTED.encode()

    def _fast(self, lines: bytes) -> tuple[list[list[str]], np.ndarray] | None:
        """The columns of texts and numbers; None where a row or a cell needs a closer look."""
        rows, mark = self._rows(lines)
        width = len(self.names)
        if not rows or not all(row.count(mark) == width - 1 for row in rows):
            return None
        first, count = (self.numbers[0] if self.numbers else width), len(self.numbers)
        if width > NARROW and self.numbers == tuple(range(first, first + count)):
            # Numbers that stand side by side are cut out as one.
            cut = [row.split(mark, first) for row in rows]
            if first + count < width:
                cut = [[*cells[:first], *cells[first].rsplit(mark, width - first - count)] for cells in cut]
            places = [column if column < first else column - count + 1 for column in self.texts]
            texts = [[cells[place] for cells in cut] for place in places]
            joined = mark.join([*(cells[first] for cells in cut), b""]) if self.numbers else b""
        else:
            cells = mark.join(rows).split(mark)
            texts, ordered = [cells[column::width] for column in self.texts], [b""] * (len(rows) * count + 1)
            for place, column in enumerate(self.numbers):
                ordered[place:-1:count] = cells[column::width]
            joined = mark.join(ordered)
        if self.signs.said and (b"." if self.decimal == "," else b",") in joined:
            return None
        values = _parse(joined, mark, self.decimal)
        if values is None or len(values) != len(rows) * count:
            return None
        if self.separator != UNQUOTED:
            self.signs.see(joined, mark, self.decimal)
        columns = [mark.join(column).decode("utf-8", "replace").split(mark.decode()) for column in texts]
        return [list(map(str.strip, column)) for column in columns], values.reshape(len(rows), count)

    def _careful(self, lines: bytes, line: int) -> tuple[list[list[str]], np.ndarray]:
        """The same cell by cell, or a refusal with its place."""
        texts: list[list[str]] = [[] for _ in self.texts]
        rows = []
        for place, cells in walk(self.path, lines, line, len(self.names), self.separator):
            for column, found in zip(self.texts, texts, strict=True):
                found.append(cells[column])
            rows.append([self._number(place, column, cells[column]) for column in self.numbers])
            if self.separator != UNQUOTED:
                seen = UNQUOTED.join(cells[column] for column in self.numbers)
                self.signs.see(seen.encode(), UNQUOTED.encode(), self.decimal)
        with np.errstate(over="ignore"):
            return texts, np.array(rows, np.float64).astype(np.float32).reshape(len(rows), len(self.numbers))

    def _number(self, place: str, column: int, cell: str) -> float:
        if cell in NO_READING:
            return float("nan")
        number = number_in(cell, self.decimal, grouped=self.signs.said)
        if number is None:
            refuse_cell(self.path, place, self.names[column] or column, cell, said=self.signs.said)
        return float(number)


class _Pairs(list[tuple[str, object]]):
    """An object of JSON, its keys as often as they stand there."""


class JsonNumber(str):
    """A number of JSON as it is written, whose sign of decimals is a point whatever the texts have."""

    __slots__ = ()


def cells_of_object(where: object, number: int, text: str, decimal: str = ".") -> dict[str, str]:
    """The cells of a line of JSON by their keys; refuses all but a flat object.

    Numbers are written with the sign of decimals that texts have.
    """

    def as_text(found: str) -> JsonNumber:
        return JsonNumber(found.replace(".", decimal))

    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs, parse_float=as_text, parse_int=as_text, parse_constant=str)
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, _Pairs):
        raise SocialxError(
            where, f"line {number} is no object of JSON ({text[:40]!a})", "write one object in each line"
        )
    cells: dict[str, str] = {}
    for key, value in pairs:
        if key in cells:
            raise SocialxError(where, f"line {number} has the key {key[:40]!a} twice", "remove one of them")
        cell = "" if value is None else '"' if not isinstance(value, str) else value
        cell = cell if isinstance(cell, JsonNumber) else cell.strip()
        if '"' in cell or not (key + cell).isprintable():
            found = f"line {number}, {key[:40]!a} is neither a number nor a plain text"
            raise SocialxError(where, found, "write numbers, texts and null only")
        cells[key] = cell
    return cells


def is_below(cell: str) -> bool:
    """Whether a cell in a column of times, which begin with digits, is that of a row below the table: a word."""
    text = cell.strip()
    return text not in NO_READING and not text[0].isdigit() and text[0] not in "+-.,:"


def tell_below(where: object, rows: list[str]) -> None:
    """A note on the rows below a table."""
    note(Message(where, f"left out below the table: {sample([shortened(row, 40) for row in rows if row])}"))


def pieces(
    path: Path, begin: int = 1, encoding: str = "utf-8-sig", what: str = "reading"
) -> Generator[tuple[int, bytes], None, None]:
    """The lines of a text after the first ``begin``, as UTF-8: pieces of whole lines with the number of the first."""
    try:
        with unpacked(path) as stream, work(f"{what} {path.name}", whole(path).stat().st_size, "B") as bar:
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
                    yield line, piece.removeprefix(b"\xef\xbb\xbf") if line == 1 else piece
                line += piece.count(b"\n")
                bar.advance(len(piece))
    except UNREADABLE as error:
        raise SocialxError(path, f"cannot be read to its end ({error})", "make or download it again") from None


def walk(path: Path, lines: bytes, line: int, width: int, separator: str = ",") -> Iterator[tuple[str, list[str]]]:
    """``line 7`` of each row, and its cells without spaces around; refuses a row that has not ``width`` of them."""
    rows = ("" if row.isspace() else row.decode("utf-8", "replace") for row in lines.splitlines())
    reader = csv.reader(rows, delimiter=separator)
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


def _parse(text: bytes, mark: bytes, decimal: str) -> np.ndarray | None:
    """Cells that each end with a mark -> float32 [cells], NaN where absent; None where the parser is not to be trusted.

    One long column, because pandas spends 0.1 ms on each column of each piece: 10 times the parsing of 8,600.
    """
    # A parser may take True for 1, inf for a reading, and other alphabets' digits for ours.
    if not text.isascii() or any(letter in text for letter in (b"T", b"t", b"F", b"f")):
        return None
    if not text:
        return np.empty(0, np.float32)
    import pandas as pd

    signs = (mark + mark, b"n", b"N", b"-" + mark, b"?", b" ")
    # Since 3.1 pandas rounds every float correctly, and the option is deprecated.
    old = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
    exact: dict[str, Any] = {"float_precision": "round_trip"} if old else {}
    try:
        with np.errstate(over="ignore"):
            column = pd.read_csv(
                io.BytesIO(text),
                header=None,
                names=[0],
                index_col=False,
                dtype=np.float32,
                sep="t",  # a letter that is not in the text
                lineterminator=mark.decode(),
                decimal=decimal,
                quoting=csv.QUOTE_NONE,
                skip_blank_lines=False,
                skipinitialspace=b" " in text,
                keep_default_na=False,
                na_values=ABSENT,
                na_filter=text.startswith(mark) or any(sign in text for sign in signs),  # a search per cell
                low_memory=False,
                **exact,
            )[0]
    except ValueError:  # pandas' ParserError is one
        return None
    return column.to_numpy()
