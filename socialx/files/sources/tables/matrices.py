"""Read number texts without times: sensor ids above the numbers, or rows without a header.

t rows per piece.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice

from socialx.core.errors import SocialxError
from socialx.files.sources.contents import Contents, Format, RowClock
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables.sheets import Sheet, check_ids, split_cells
from socialx.files.sources.tables.text_cells import COMMA, NO_READING, NUMBER, decimal_sign
from socialx.files.store.head import LINE_BYTES, FileHead, find_separator
from socialx.files.store.ids import match_key
from socialx.files.store.layout import Block
from socialx.files.store.quantities import SPEED

UNTIMED, MATRIX = "t-gcn", "matrix-csv"
ID_RATIO = 10  # the least ratio of ids to observations


def two_lines(head: FileHead) -> tuple[list[str], list[str]]:
    """Return the cells in the first two filled lines; an empty list for a missing line."""
    lines = [split_cells(line, find_separator(head.lines[0][1])) for _, line in head.lines[:2]]
    return (lines[0] if lines else []), (lines[1] if len(lines) > 1 else [])


def is_matrix(head: FileHead) -> bool:
    """Return whether line 1 is a number row like line 2, and therefore holds observations rather than sensor ids."""
    header, row = two_lines(head)
    return _are_numbers(header, row) and not _could_be_ids(header, row)


def refuse_numbers(head: FileHead) -> None:
    """Raise for numbers that may be misread: ids or observations in line 1, counted rows, a square matrix."""
    header, row = two_lines(head)
    if not header or not row:
        return
    if _could_be_ids(header, row):
        raise SocialxError(
            head.path,
            "the file holds rows of numbers, and line 1 may be such a row or sensor ids",
            f"name the format {UNTIMED} if it holds ids, {MATRIX} if it is a row",
        )
    if len(header) == len(row) and not header[0] and _is_id(row[0]):
        raise SocialxError(
            head.path,
            f"the first row begins with the number {row[0][:40]}, not with a time",
            "write a time there, YYYY-MM-DD HH:MM:SS, or leave out a column that only counts the rows",
        )
    if len(header) > 1 and _are_numbers(header, row) and _is_square(head, len(header)):
        raise SocialxError(
            head.path,
            f"the file holds a square matrix, {len(header)} x {len(header)}, as of distances between sensors",
            f"name the format {MATRIX} if its rows are times",
        )


def _recognise_ids(head: FileHead) -> str | None:
    """Return a description for integers in line 1 far above any observation, thus sensor ids; else ``None``."""
    header, row = two_lines(head)
    if len(header) < 2 or not _could_be_ids(header, row):
        return None
    largest = max(float(cell) for cell in row if cell not in NO_READING)
    if min(int(float(cell)) for cell in header) < ID_RATIO * max(largest, 100):
        return None
    return "a header line of integer sensor ids only; rows of numbers without a time"


def _recognise_numbers(head: FileHead) -> str | None:
    """Return a description for rows of numbers; ``None`` for integers in line 1, a square matrix, or id,lat,lon."""
    header, row = two_lines(head)
    if len(header) < 2 or not _are_numbers(header, row) or all(map(_is_id, header)):
        return None
    if (len(header) == 3 and _is_id(header[0])) or _is_square(head, len(header)):
        return None
    return f"rows of numbers without a header and without times, {len(header)} columns"


def _is_id(cell: str) -> bool:
    return isinstance(match_key(cell), int)


def _are_numbers(header: list[str], row: list[str]) -> bool:
    """Return whether a table starts without a header: both first lines, ``header`` and ``row``, have the same number of
    cells, each a number or missing, and some number each; the first cell in line 1 is filled.
    """
    if not header or len(header) != len(row) or not header[0]:
        return False
    cells = [cell for cell in (*header, *row) if cell not in NO_READING]
    some = not NO_READING.issuperset(header) and not NO_READING.issuperset(row)
    return some and all(NUMBER.fullmatch(cell) or COMMA.fullmatch(cell) for cell in cells)


def _could_be_ids(header: list[str], row: list[str]) -> bool:
    """Return whether line 1, ``header``, may hold ids: distinct integers, with as many numbers in line 2, ``row``."""
    keys = set(map(match_key, header))
    integers = len(keys) == len(header) == len(row) and all(map(_is_id, header))
    return integers and row[0] not in NO_READING and all(cell in NO_READING or NUMBER.fullmatch(cell) for cell in row)


def _is_square(head: FileHead, width: int) -> bool:
    """Return whether a file has ``width`` filled lines, as many as columns; reads at most one line more."""
    if len(head.lines) > width:
        return False
    with head.path.open("rb") as file:
        lines = (line for line in iter(partial(file.readline, LINE_BYTES), b"") if not line.isspace())
        return sum(1 for _ in islice(lines, width + 1)) == width


def _read(request: ConvertOptions, *, has_ids: bool) -> Contents:
    """Read rows of numbers, counted from the user's first time; ``has_ids``: line 1 holds sensor ids."""
    head, clock = request.head, RowClock(request)
    header, row = two_lines(head)
    if not header:
        raise SocialxError(head.path, "the file holds no numbers", "write a row per time and a column per sensor")
    mark, columns = find_separator(head.lines[0][1]), tuple(range(len(header)))
    names = tuple(header) if has_ids else ("",) * len(header)
    if has_ids:
        check_ids(head.path, names, integers=True)
    decimal = decimal_sign(mark, [row if has_ids else [*header, *row]])
    begin = head.lines[0][0] if has_ids else 0
    sheet = Sheet((), path=head.path, kind="text", names=names, values=columns, encoding=head.encoding, begin=begin)
    sheet = replace(sheet, separator=mark, decimal=decimal)
    feature = request.quantity or SPEED
    return Contents(
        names if has_ids else None,
        len(names),
        (Block(clock.seconds(len(piece.numbers)), piece.numbers) for piece in sheet.rows((), columns)),
        feature,
        notes=(f"{head.path}: the rows lack times and are counted from {request.first_time}",),
        missing=0.0 if feature == SPEED else None,
    )


FORMATS = (
    Format(
        UNTIMED,
        "los_speed.csv and sz_speed.csv as T-GCN published them, without times",
        _recognise_ids,
        partial(_read, has_ids=True),
        has_clock=False,
        takes=frozenset({"quantity", "first_time", "step_s"}),
    ),
    Format(
        MATRIX,
        "V_228.csv as STGCN published it: a CSV of numbers only",
        _recognise_numbers,
        partial(_read, has_ids=False),
        has_clock=False,
        takes=frozenset({"quantity", "first_time", "step_s", "ids"}),
    ),
)
