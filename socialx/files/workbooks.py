"""Workbooks as people save them: the cells of their sheets, with limits on what a small file may become."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

from socialx.errors import SocialxError
from socialx.files.file_head import opened

UNPACKED_BYTES = 1 << 29  # of all parts: a million rows of eight columns
PACKED_RATIO = 50  # texts of a workbook are packed to a tenth, and a bomb to a thousandth
SMALL_BYTES = 1 << 25  # unpacked, at which nobody looks at the ratio
CELLS = 1 << 24  # of a sheet with its empty cells: rows times columns
ERRORS = frozenset({"#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A"})
MERGED = re.compile(rb'mergeCell ref="([A-Z]+)([0-9]+):\1([0-9]+)"')  # of one column
MERGED_ROWS, MERGED_BYTES, PIECE_BYTES = 3, 64, 1 << 20  # those of a header are fewer, and are not filled
AS_CSV = "save the table as CSV"
Rows = list[list[object]]


def read_workbook(path: Path) -> dict[str, Rows]:
    """The cells of each sheet by its name, as many in each row: NaN where a cell is empty or the error of a formula.

    Raises SocialxError for what is no workbook, or larger than the limits above.
    """
    try:
        from openpyxl import load_workbook  # type: ignore[import-untyped]

        with opened(path) as file:
            with zipfile.ZipFile(file) as archive:
                size = sum(part.file_size for part in archive.infolist())
            if size > UNPACKED_BYTES or size > max(SMALL_BYTES, PACKED_RATIO * file.seek(0, io.SEEK_END)):
                raise SocialxError(path, f"a workbook of {size:,} bytes unpacked, too many to read", AS_CSV)
            book = load_workbook(file, read_only=True, data_only=True, keep_links=False)
            try:
                return {sheet.title: _rows(path, sheet) for sheet in book.worksheets}
            finally:
                book.close()
    except ImportError:
        raise SocialxError(path, "openpyxl is not installed", "pip install 'socialx[excel]'") from None
    except SocialxError:
        raise
    except Exception as error:  # noqa: BLE001  of openpyxl, which has many kinds
        found = f"no workbook that can be read ({' '.join(str(error).split())[:120]})"
        raise SocialxError(path, found, "write it again") from None


def _rows(path: Path, sheet: object) -> Rows:
    found: Rows = []
    width = 0
    sheet.reset_dimensions()  # type: ignore[attr-defined]  # which the file may state wrongly
    for cells in sheet.iter_rows(values_only=True):  # type: ignore[attr-defined]
        row = [_cell(cell) for cell in cells]
        while row and row[-1] != row[-1]:  # NaN
            row.pop()
        found.append(row)
        width = max(width, len(row))
        if len(found) * width > CELLS:
            what = f"a sheet of {len(found):,} rows and {width:,} columns, too many cells to read"
            raise SocialxError(path, what, f"remove what stands far from the table, or {AS_CSV}")
    while found and not found[-1]:
        found.pop()
    cells = [row + [float("nan")] * (width - len(row)) for row in found]
    merged = [each for each in _merged(sheet) if each[0] < width and each[2] <= len(cells)]
    long = {column for column, first, last in merged if last - first >= MERGED_ROWS}
    alone = (column for column in range(width) if column not in long and not isinstance(cells[-1][column], int | float))
    times = next(alone, width)
    for column, first, last in merged:
        value = cells[first - 1][column]
        timed = column > times and cells[last - 1][times] == cells[last - 1][times]  # no NaN
        if timed and isinstance(value, int | float) and value == value:
            what = f"rows {first} to {last} have one cell for all of them in column {column + 1}, which is {value}"
            raise SocialxError(path, what, "split it, or leave out its column, since it may be their sum or their mean")
        for row in cells[first:last] if last - first >= MERGED_ROWS else ():
            row[column] = value
    return cells


def _merged(sheet: object) -> list[tuple[int, int, int]]:
    """The column, the first and the last row of cells that are one over several rows, as that of a date is."""
    from openpyxl.utils import column_index_from_string  # type: ignore[import-untyped]

    found, before = set(), b""
    with sheet._get_source() as part:  # type: ignore[attr-defined]
        while piece := part.read(PIECE_BYTES):
            found |= {*MERGED.findall(before + piece)}
            before = piece[-MERGED_BYTES:]
    return sorted((column_index_from_string(each[0].decode()) - 1, int(each[1]), int(each[2])) for each in found)


def _cell(cell: object) -> object:
    """A cell without a value, or with an error, as NaN, and whole numbers as int."""
    if cell is None or cell == "" or (isinstance(cell, str) and cell in ERRORS):
        return float("nan")
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell
