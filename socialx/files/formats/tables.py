"""CSV tables with a column for each sensor: METR-LA and PEMS-BAY as published, any other network's, and T-GCN's."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from socialx.errors import Argument, SocialxError, sample
from socialx.files.formats.contents import Clock, Contents, Format, Request
from socialx.files.formats.texts import check_text
from socialx.files.locations import match_key, repeated
from socialx.files.store import SPEED, Block
from socialx.progress import work

PIECE_BYTES = 1 << 22  # about 2,000 rows of METR-LA: small beside pandas itself, large beside the cost of a call
HEADER_BYTES = 1 << 24
PUBLISHED_CSV, CSV, UNTIMED, MATRIX = "published-csv", "csv", "t-gcn", "matrix-csv"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ID_RATIO = 10  # ids without times are so many times as large as readings
# Cells that mean "no reading"; any other text is refused.
ABSENT = ["", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none", "-", "--", "?"]
NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
COUNT = re.compile(r"[0-9]+(\.0*)?")
PLAIN = "YYYY-MM-DD HH:MM:SS"
TIMES = {
    form: re.compile(re.sub("[YMDHS]", "[0-9]", form))
    for form in (PLAIN, "YYYY-MM-DDTHH:MM:SS", "YYYY-MM-DD HH:MM", "YYYY-MM-DDTHH:MM")
}
BEGINS_WITH_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}")
OFFSET = re.compile(BEGINS_WITH_TIME.pattern + r"\S*?(Z|[+-][0-9]{2}(:?[0-9]{2})?)")


@dataclass(frozen=True)
class Shape:
    """What sets one kind of table apart from the others."""

    reason: str
    advice: str
    published: bool  # integer ids, and an empty header cell over the times
    times: tuple[str, ...]  # the forms of column 0; empty = there is no such column
    header: bool = True  # False: line 1 is a row like all others


PUBLISHED = Shape(
    reason="an empty header cell, then sensor ids",
    advice="use the CSV as published: an empty header cell, then sensor ids",
    published=True,
    times=(PLAIN,),
)
ANY = Shape(
    reason="a header line of sensor ids",
    advice="write a header line (time, then one id per sensor), then rows of a time and numbers",
    published=False,
    times=tuple(TIMES),
)
T_GCN = Shape(
    reason="a header line of integer sensor ids only; rows of numbers without a time",
    advice="use the CSV as T-GCN published it: a line of sensor ids, then rows of numbers",
    published=True,
    times=(),
)
BARE = Shape(
    reason="rows of numbers without a header and without times",
    advice="write rows of numbers with commas between them, a row per time and a column per sensor",
    published=False,
    times=(),
    header=False,
)


@dataclass(frozen=True)
class Table:
    """A file whose header is right."""

    path: Path
    ids: tuple[str, ...] | None  # None = it has no header
    header: int  # bytes before the first row
    form: str | None  # how its times are written; None = it has none
    width: int  # cells of each row

    @property
    def sensors(self) -> int:
        """Cells of each row that are readings."""
        return self.width - (self.form is not None)


def read_table(path: Path) -> tuple[tuple[str, ...], Generator[Block, None, None]]:
    """Sensor ids in column order, and the rows in blocks, of a CSV as published.

    A stored float32 is the float64 nearest to the text, rounded once.
    """
    table = _open(path, PUBLISHED)
    return table.ids or (), _blocks(table, None)


def _read(shape: Shape, request: Request) -> Contents:
    table = _open(request.data, shape) if shape.header else _open_bare(request.data)
    clock = None if shape.times else Clock(request)
    counted = f"{table.path}: its rows have no times, so they are counted on from {request.start}"
    times = None if clock else partial(_times, table)
    feature = request.quantity or SPEED
    notes, missing = ((counted,) if clock else ()), 0.0 if feature == SPEED else None
    return Contents(table.ids, table.sensors, _blocks(table, clock), feature, notes=notes, times=times, missing=missing)


def _recognise(shape: Shape, path: Path) -> str | None:
    try:
        header, row = map(cells_of, first_lines(path)) if path.is_file() else (None, None)
    except OSError:
        return None
    if not header or len(header) < 2:
        return None
    if not shape.header:
        told = _are_numbers(header, row) and not _could_be_others(header, row) and not _is_square(path, len(header))
        return f"{shape.reason}, {len(header)} columns" if told else None
    look = _timed if shape.times else _untimed
    return look(shape, header, row or [""])


def _timed(shape: Shape, header: list[str], row: list[str]) -> str | None:
    """An empty corner over integer ids is the published shape also where what follows is wrong: it says best what."""
    timed = bool(BEGINS_WITH_TIME.match(row[0]))
    if COUNT.fullmatch(row[0]):
        return None
    published = not header[0].strip() and all(isinstance(match_key(cell), int) for cell in header[1:])
    published = published and (not timed or bool(TIMES[PLAIN].fullmatch(row[0])))
    rows = "; rows begin with a time" if timed else ""
    return shape.reason + rows if published == shape.published and (published or timed) else None


def _untimed(shape: Shape, header: list[str], row: list[str]) -> str | None:
    """Ids are far larger than any reading, or line 1 may itself be a row of readings."""
    if not _could_be_ids(header, row):
        return None
    largest = max(float(cell) for cell in row if cell not in ABSENT)
    return shape.reason if min(int(float(cell)) for cell in header) >= ID_RATIO * max(largest, 100) else None


def is_matrix(path: Path) -> bool:
    """Whether line 1 is a row of numbers like the one that follows, and cannot be sensor ids."""
    if not path.is_file():
        return False
    header, row = map(cells_of, first_lines(path))
    return _are_numbers(header, row) and not _could_be_ids(header or [], row or [""])


def refuse_numbers(path: Path) -> None:
    """Raise for rows of numbers that may be more than one thing, or whose rows are counted; return for all else."""
    header, row = map(cells_of, first_lines(path))
    if not header or not row:
        return
    if _could_be_ids(header, row):
        raise SocialxError(
            path,
            "rows of numbers, and line 1 may be such a row or sensor ids",
            f"name the format {UNTIMED} if it holds ids, {MATRIX} if it is a row",
        )
    if len(header) == len(row) and not header[0].strip() and COUNT.fullmatch(row[0]):
        _refuse_count(path, row[0])
    if len(header) > 1 and _are_numbers(header, row) and _is_square(path, len(header)):
        raise SocialxError(
            path,
            f"a square matrix, {len(header)} x {len(header)}, as of distances between sensors",
            f"name the format {MATRIX} if its rows are times",
        )


def _are_numbers(header: list[str] | None, row: list[str] | None) -> bool:
    """Whether both lines are as many numbers; a cell may be absent, but an empty one over the rest is a corner."""
    if not header or not row or len(header) != len(row) or not header[0].strip():
        return False
    lines = (header, row)
    right = all(cell in ABSENT or NUMBER.fullmatch(cell) for cells in lines for cell in cells)
    return right and all(any(cell not in ABSENT for cell in cells) for cells in lines)


def _could_be_others(header: list[str], row: list[str] | None) -> bool:
    """Whether line 1 may be ids; three columns may also be id,lat,lon or from,to,cost without a header."""
    integers = all(isinstance(match_key(cell), int) for cell in header)
    return integers or (len(header) == 3 and isinstance(match_key(header[0]), int)) or _could_be_ids(header, row or [])


def _is_square(path: Path, width: int) -> bool:
    """Whether a file has ``width`` lines that are not blank; reads one more at most."""
    with path.open("rb") as file:
        lines = (line for line in iter(partial(file.readline, HEADER_BYTES), b"") if not line.isspace())
        return sum(1 for _ in islice(lines, width + 1)) == width


def _could_be_ids(header: list[str], row: list[str]) -> bool:
    """Ids are distinct, which the first row of a matrix of distances is not."""
    keys = [match_key(cell) for cell in header]
    integers = len(set(keys)) == len(keys) == len(row) and all(isinstance(key, int) for key in keys)
    return integers and row[0] not in ABSENT and all(cell in ABSENT or NUMBER.fullmatch(cell) for cell in row)


def first_lines(path: Path) -> tuple[bytes, bytes]:
    """Line 1 and the first line after it that is not blank."""
    with path.open("rb") as file:
        header, row = file.readline(HEADER_BYTES), b"\n"
        while row.isspace():
            row = file.readline(HEADER_BYTES)
    return header, row


def cells_of(line: bytes) -> list[str] | None:
    """The cells of a line, or None where it is no text."""
    try:
        return next(csv.reader([line.decode("utf-8-sig")]), [])
    except (UnicodeDecodeError, csv.Error):
        return None


def _open(path: Path, shape: Shape) -> Table:
    check_text(path, shape.advice)
    line, row = first_lines(path)
    cells = cells_of(line)
    if cells is None:
        raise SocialxError(path, "neither a CSV text nor an HDF5 file", f"unpack it, or {shape.advice}")
    ids = tuple(cell.strip() for cell in (cells[1:] if shape.times else cells))
    if {"latitude", "lat"} & {text.lower() for text in ids}:
        raise SocialxError(
            path, "line 1 is that of a table of positions", ("swap ", Argument("data"), " and ", Argument("meta"))
        )
    wrong = [ascii(text[:40]) for text in ids if not (isinstance(match_key(text), int) if shape.published else text)]
    corner = cells[0].strip() if shape.times and cells else ""
    if not ids or wrong or (corner and shape.published) or BEGINS_WITH_TIME.match(corner):
        found = f"sensor ids like {sample(wrong)}" if wrong else f"a header that begins {','.join(cells)[:40]!a}"
        raise SocialxError(path, f"line 1 has {found}", shape.advice)
    if twice := repeated(ids):
        raise SocialxError(path, f"line 1 names sensors more than once ({sample(twice)})", "remove the repeated ones")
    time = (cells_of(row) or [""])[0]
    if shape.times and COUNT.fullmatch(time):
        _refuse_count(path, time)
    form = next((form for form in shape.times if TIMES[form].fullmatch(time)), shape.times[0] if shape.times else None)
    return Table(path, ids, len(line), form, width=len(cells))


def _open_bare(path: Path) -> Table:
    check_text(path, BARE.advice)
    line, _ = first_lines(path)
    cells = cells_of(line) or []
    for column, cell in enumerate(cells, 1):
        if cell not in ABSENT and not NUMBER.fullmatch(cell):
            raise SocialxError(path, f"line 1, column {column} is {cell[:40]!a}, not a number", BARE.advice)
    if not cells:
        raise SocialxError(path, "line 1 is empty", BARE.advice)
    return Table(path, None, len(BYTE_ORDER_MARK) * line.startswith(BYTE_ORDER_MARK), None, len(cells))


def _refuse_count(path: Path, cell: str) -> NoReturn:
    raise SocialxError(
        path,
        f"its first row begins with the number {cell[:40]}, not with a time",
        "write a time there, YYYY-MM-DD HH:MM:SS, or leave out a column that only counts the rows",
    )


def _times(table: Table) -> np.ndarray:
    """All times, S19 [T], as far as they are times: for others the refusal is that of the rows."""
    found = [np.empty(0, "S19")]
    form = TIMES[table.form or PLAIN]
    with closing(pieces(table.path, table.header, what="looking at the times of")) as parts:
        for _, piece in parts:
            times = [row.partition(b",")[0].decode("ascii", "replace") for row in _rows(piece)]
            if not all(map(form.fullmatch, times)):
                break
            found.append(np.array([timestamp(time) for time in times], "S19"))
    return np.concatenate(found)


def _blocks(table: Table, clock: Clock | None) -> Generator[Block, None, None]:
    """The rows as they are read; ``clock`` gives the times of a table that has none."""
    line_1 = 1 if table.ids is None else 2  # the number of the first row's line
    with closing(pieces(table.path, table.header, line_1)) as parts:  # a refusal takes the progress bar away at once
        for line, piece in parts:
            times, speeds = _parse(table, piece, line)
            yield Block(np.array(times, "S19") if clock is None else clock.timestamps(len(speeds)), speeds)


def pieces(path: Path, header: int, line: int = 2, what: str = "reading") -> Generator[tuple[int, bytes], None, None]:
    """Whole lines after the first ``header`` bytes, each piece with the number of its first line, from ``line`` on."""
    with path.open("rb") as file, work(f"{what} {path.name}", path.stat().st_size - header, "B") as bar:
        file.seek(header)
        while piece := file.read(PIECE_BYTES):
            piece += file.readline()
            if not piece.isspace():
                yield line, piece
            line += piece.count(b"\n")
            bar.advance(len(piece))


def _parse(table: Table, piece: bytes, line: int) -> tuple[list[str], np.ndarray]:
    """Whole lines -> times as stored [t] (none without a form) and speeds float32 [t,N].

    The fast parser decides, the slow walk over the cells only words the refusal.
    """
    rows, times = _rows(piece), []
    right = all(row.count(b",") == table.width - 1 for row in rows)
    if form := table.form:
        cut = [row.partition(b",") for row in rows]
        times = [time.decode("ascii", "replace") for time, _, _ in cut]
        right = right and all(map(TIMES[form].fullmatch, times))
        rows = [numbers for _, _, numbers in cut]
    text = b",".join([*rows, b""])
    # A parser may take True for 1, and other alphabets' digits for ours.
    if not right or not text.isascii() or any(letter in text for letter in (b"T", b"t", b"F", b"f")):
        _refuse(table, piece, line, "not rows of numbers")
    try:
        speeds = _numbers(text).reshape(len(rows), table.sensors)
    except ValueError as error:  # pandas' ParserError is one
        _refuse(table, piece, line, " ".join(str(error).split())[:160])
    if form and (form != PLAIN or b"24:00:00" in piece):
        times = [timestamp(time) for time in times]
    return times, speeds


def timestamp(time: str) -> str:
    """A time in one of the forms of ``TIMES``, a Z after it or not, as it is stored; 24:00 is 0:00 of the next day."""
    day, clock = time[:10], f"{time[11:16]}:{time[17:19] or '00'}"
    if clock == "24:00:00":
        with suppress(ValueError):  # no such day, which is refused where times are read
            return f"{date.fromisoformat(day) + timedelta(days=1)} 00:00:00"
    return f"{day} {clock}"


def _rows(piece: bytes) -> list[bytes]:
    """The lines that are not blank, without the quotes around cells."""
    rows = piece.splitlines()
    if b'"' in piece:
        lines = csv.reader(row.decode("utf-8", "replace") for row in rows)
        with suppress(csv.Error):  # the quotes that stay are no numbers
            rows = [",".join(cell.replace(",", ";") for cell in cells).encode() for cells in lines]
    return [row for row in rows if row and not row.isspace()]


def _numbers(text: bytes) -> np.ndarray:
    """Cells that each end with a comma -> float32 [cells], NaN where absent; ValueError where one is no number.

    One long column, because pandas spends 0.1 ms on each column of each piece: 10 times the parsing of 8,600.
    """
    import pandas as pd

    absent = text.startswith(b",") or any(sign in text for sign in (b",,", b"n", b"N", b"-,", b"?"))
    with np.errstate(over="ignore"):
        column = pd.read_csv(
            io.BytesIO(text),
            header=None,
            names=[0],
            index_col=False,
            dtype=np.float32,
            sep="t",  # a letter that is not in the text
            lineterminator=",",
            quoting=csv.QUOTE_NONE,
            skip_blank_lines=False,
            keep_default_na=False,
            na_values=ABSENT,
            na_filter=absent,  # a search per cell
            low_memory=False,
            **exact_floats(),
        )[0]
    return column.to_numpy()


def exact_floats() -> dict[str, Any]:
    """What makes ``pandas.read_csv`` round every float correctly; since 3.1 it does, and the option is deprecated."""
    import pandas as pd

    old = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
    return {"float_precision": "round_trip"} if old else {}


def _refuse(table: Table, piece: bytes, line: int, reason: str) -> NoReturn:
    """Raise for the first row or cell that is not as it must be, else with ``reason``."""
    for place, cells in walk(table.path, piece, line, table.width):
        if table.form and not TIMES[table.form].fullmatch(cells[0]):
            refuse_time(table.path, place, cells[0], table.form)
        for column, cell in enumerate(cells[1:] if table.form else cells, 1):
            if cell not in ABSENT and not NUMBER.fullmatch(cell):
                refuse_cell(table.path, f"{place}, column {column}", cell)
    raise SocialxError(table.path, f"from line {line} on: {reason}", "correct it")


def walk(path: Path, piece: bytes, line: int, width: int) -> Iterator[tuple[str, list[str]]]:
    """``line 7`` of each row of a piece and its cells, slowly; refuses a row that has not ``width`` of them."""
    for number, row in enumerate(piece.splitlines(), line):
        place = f"line {number}"
        try:
            cells = next(csv.reader([row.decode("utf-8", "replace")]), [])
        except csv.Error as error:
            raise SocialxError(path, f"{place}: {error}", "correct it") from None
        if cells and len(cells) != width:
            raise SocialxError(path, f"{place} has {len(cells)} cells, not {width}", "correct it")
        if cells:
            yield place, cells


def refuse_time(path: Path, place: str, time: str, form: str) -> NoReturn:
    """Raise for a time that is not written as ``form``."""
    found = f"{place} has the time {time[:40]!a}"
    if OFFSET.fullmatch(time):
        raise SocialxError(path, f"{found} with an offset from UTC", f"write wall times as {form}")
    raise SocialxError(path, f"{found}, not {form}", "correct it")


def refuse_cell(path: Path, place: str, cell: str) -> NoReturn:
    """Raise for a cell that is neither a number nor absent."""
    raise SocialxError(path, f"{place} is {cell[:40]!a}, not a number", "correct it, or leave it empty if missing")


FORMATS = tuple(
    Format(
        name,
        title,
        partial(_recognise, shape),
        partial(_read, shape),
        has_clock=bool(shape.times),
        takes=frozenset(
            {"quantity"} | (set() if shape.times else {"start", "step_s"}) | (set() if shape.header else {"ids"})
        ),
    )
    for name, title, shape in (
        (PUBLISHED_CSV, "METR-LA.csv and PEMS-BAY.csv as published", PUBLISHED),
        (CSV, "a CSV of any network: a time column, then one column per sensor", ANY),
        (UNTIMED, "los_speed.csv and sz_speed.csv as T-GCN published them, without times", T_GCN),
        (MATRIX, "V_228.csv as STGCN published it: a CSV of numbers only", BARE),
    )
)
