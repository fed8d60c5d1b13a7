"""Small tables as rows of text cells: delimited text, workbooks, Parquet, JSON, and DATEX II."""

from __future__ import annotations

import codecs
import csv
import io
import re
import zipfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from socialx.core.errors import SocialxError, in_short, sample
from socialx.files.sources.positions.points import Row, as_wkt, datex, parse_axis
from socialx.files.sources.tables.json_rows import objects_in
from socialx.files.sources.tables.text_cells import pieces
from socialx.files.store.head import GZIP, SEPARATORS, UTF16, FileHead, check_first_line, check_text, open_io, read_head

TABLE_BYTES, JSON_BYTES = 1 << 27, 1 << 25  # 100,000 sensors of 1.3 kB, or points of 300 bytes
CELLS = 1 << 22  # of Parquet: 100,000 rows of 40 columns
FEATURE_ID = "@id"
DECIMAL = re.compile(r"^([+-]?[0-9]+),([0-9]+)$")
SYSTEM = re.compile(r'"crs"\s*:\s*(\{[^}]*)')  # of coordinates in GeoJSON
DEGREES_OF = re.compile(r"CRS84|EPSG(?::[0-9.]*)?:(?:4326|4258|4269)\b")  # names of longitude and latitude
WINDOWS = "windows"  # reads bytes that are no UTF-8 as those of Western Europe
codecs.register_error(WINDOWS, lambda error: (error.object[error.start : error.end].decode("cp1252"), error.end))  # type: ignore[attr-defined]
UNPACKED_BYTES = 1 << 29  # of all parts: a million rows of eight columns
PACKED_RATIO = 50  # texts of a workbook are packed to a tenth, and a bomb to a thousandth
SMALL_BYTES = 1 << 25  # unpacked, at which nobody looks at the ratio
SHEET_CELLS = 1 << 24  # of a sheet with its empty cells: rows times columns
ERRORS = frozenset({"#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A"})
MERGED = re.compile(rb'mergeCell ref="([A-Z]+)([0-9]+):\1([0-9]+)"')  # of one column
MERGED_ROWS, MERGED_BYTES, PIECE_OF_SHEET = 3, 64, 1 << 20  # those of a header are fewer, and are not filled
AS_CSV = "save the table as CSV"
Rows = list[list[object]]


def read_tables(path: Path, advice: str, notes: list[str], *, long: bool = False) -> list[Iterable[Row]]:
    """Return the filled rows and headers of every table in a file; a workbook has a table per sheet.

    JSON points become WKT cells; ``notes`` receives a line about skipped objects. advice: the remedy in errors: which
    file to name. long: lift the size limit for text. Raises SocialxError for a file that is too large or has other
    content.
    """
    head = read_head(path, advice)
    check_first_line(head, advice)
    begin = head.lines[0][1].lstrip("\ufeff \t") if head.lines else ""
    if begin.startswith("<"):
        return [datex(head)]
    if begin.startswith(("{", "[")):
        return [_read_json(head, advice, notes)]
    if head.kind in ("hdf5", "npy"):
        raise SocialxError(path, f"the file is no table, but {head.kind}", advice)
    if head.kind not in ("excel", "parquet"):
        return [_read_text(head, advice, float("inf") if long else TABLE_BYTES)]
    sheets = read_workbook(path) if head.kind == "excel" else {"": _parquet(path, advice)}
    tables = list[Iterable[Row]]()
    for name, rows in sheets.items():
        sheet_name = f" of sheet {name}" if len(sheets) > 1 else ""
        cells = [(f"line {number}{sheet_name}", [*map(_cell, row)]) for number, row in enumerate(rows, 1)]
        tables.append([row for row in cells if any(row[1])])
    return tables


def read_rows(path: Path, advice: str, *, long: bool = False) -> Iterator[Row]:
    """Return the rows of the first table. advice: the remedy in errors. long: lift the size limit for text."""
    return iter(read_tables(path, advice, [], long=long)[0])


def _parquet(path: Path, advice: str) -> Rows:
    """Return column names, then each row's cells, perhaps points or bytes; ``advice``: the remedy in errors."""
    from pyarrow import ArrowException, parquet

    try:
        with open_io(path) as stream:
            file = parquet.ParquetFile(stream)
            if (cells := file.metadata.num_rows * file.metadata.num_columns) > CELLS:
                raise SocialxError(path, f"{cells:,} cells are more than a table of positions has ({CELLS:,})", advice)
            table = file.read()
    except (OSError, ValueError, ArrowException) as error:
        raise SocialxError(path, f"the file is no Parquet that can be read ({in_short(error, 80)})", advice) from None
    return [table.column_names, *map(list, zip(*(column.to_pylist() for column in table.columns), strict=True))]


def _read_text(head: FileHead, advice: str, most: float) -> Iterator[Row]:
    """Yield the filled rows of at most ``most`` bytes, each after its line name; ``advice``: the remedy in errors.
    Decimal commas become points unless commas separate cells.
    """
    lines = [line for _, line in head.lines]
    first = next((line for line in lines if len(line.split()) > 1 or {*line} & {*SEPARATORS}), "")  # of several cells
    mark = max(SEPARATORS, key=first.count) if {*first} & {*SEPARATORS} else " "
    rows = csv.reader(_lines(head, advice, most), delimiter=mark, skipinitialspace=mark != "\t")
    try:
        for cells in rows:
            if any(cells := [cell.strip() for cell in cells]):
                yield f"line {rows.line_num}", [cell if mark == "," else DECIMAL.sub(r"\1.\2", cell) for cell in cells]
    except csv.Error as error:
        raise SocialxError(head.path, f"this is no table that can be read ({in_short(error, 80)})", advice) from None


def _lines(head: FileHead, advice: str, most: float) -> Generator[str, None, None]:
    """Yield a file's unpacked text lines. Raises SocialxError, with ``advice`` as remedy, beyond ``most`` bytes."""
    path, size = head.path, 0
    if head.first[:2] not in (GZIP, *UTF16):
        check_text(path, head.first)
    try:
        with closing(pieces(path, 0, head.encoding)) as chunks:
            for _, piece in chunks:
                size += len(piece)
                if size > most:
                    raise SocialxError(path, f"the file has {size:,} bytes unpacked, no table", advice)
                yield from (line.decode("utf-8", WINDOWS) for line in piece.splitlines(keepends=True))
    except UnicodeError:
        save = f"save it as UTF-8, for example with iconv -f cp932 -t utf-8; {advice}"
        raise SocialxError(path, "the file is no text in UTF-8, UTF-16 or Windows-1252", save) from None


def _read_json(head: FileHead, advice: str, notes: list[str]) -> list[Row]:
    """Return a header and a row per JSON object or GeoJSON feature; ``notes`` gets omissions, errors get ``advice``."""
    system = SYSTEM.search("\n".join(line for _, line in head.lines))
    if system and not DEGREES_OF.search(system[1]):
        problem = f"the coordinates are not degrees of WGS 84, but of {system[1][:80]}"
        raise SocialxError(head.path, problem, "write them as EPSG:4326, longitude first")
    with closing(_lines(head, advice, JSON_BYTES)) as lines:
        filled = ((number, line.strip()) for number, line in enumerate(lines, 1) if not line.isspace())
        objects: list[tuple[str, dict[str, Any]]] = [*objects_in(head.path, filled)]
    features = [(where, entry) for where, entry in objects if isinstance(entry.get("geometry"), dict)]
    points = [(where, entry) for where, entry in features if entry["geometry"].get("type") == "Point"]
    objects = [(where, _feature(entry)) for where, entry in points or features] or objects
    names = [*dict.fromkeys(name for _, entry in objects for name in entry)]
    nested = {name for _, entry in objects for name, value in entry.items() if isinstance(value, dict | list)}
    rows = [(where, cells) for where, entry in objects if any(cells := [_cell(entry.get(name)) for name in names])]
    shown = {name for _, cells in rows for name, cell in zip(names, cells, strict=True) if cell}
    if nested_names := [name for name in names if name in nested - shown]:
        notes.append(f"{head.path}: no points, left out: {sample(nested_names, 8)}")
    return [("its header", names), *rows]


def _feature(feature: dict[str, Any]) -> dict[str, Any]:
    """Return a GeoJSON feature's properties, id and geometry by name, without coordinates among the properties."""
    properties = feature.get("properties")
    plain = properties if isinstance(properties, dict) else {}
    identity = {} if feature.get("id") is None else {FEATURE_ID: feature["id"]}
    others = {name: value for name, value in plain.items() if not ((axis := parse_axis(name)) and not axis[2])}
    return others | identity | {"geometry": feature["geometry"]}


def _cell(value: Any) -> str:
    """Return a value as text, a point as WKT; empty for missing values and other objects."""
    if isinstance(value, dict | list):
        return as_wkt(value)
    return "" if value is None or value != value else str(value).strip()  # NaN


def read_workbook(path: Path) -> dict[str, Rows]:
    """Return equally long cell rows by sheet name, with NaN for empty cells and formula errors.

    Raises SocialxError for an unreadable or too large workbook.
    """
    try:
        from openpyxl import load_workbook  # type: ignore[import-untyped]

        with open_io(path) as file:
            with zipfile.ZipFile(file) as archive:
                size = sum(part.file_size for part in archive.infolist())
            if size > UNPACKED_BYTES or size > max(SMALL_BYTES, PACKED_RATIO * file.seek(0, io.SEEK_END)):
                raise SocialxError(path, f"the workbook has {size:,} bytes unpacked, too many to read", AS_CSV)
            book = load_workbook(file, read_only=True, data_only=True, keep_links=False)
            try:
                return {sheet.title: _read_sheet(path, sheet) for sheet in book.worksheets}
            finally:
                book.close()
    except ImportError:
        raise SocialxError(path, "openpyxl is not installed", "pip install 'socialx[excel]'") from None
    except SocialxError:
        raise
    except Exception as error:  # noqa: BLE001  of openpyxl, which has many kinds
        problem = f"the file is no workbook that can be read ({' '.join(str(error).split())[:120]})"
        raise SocialxError(path, problem, "write it again") from None


def _read_sheet(path: Path, sheet: object) -> Rows:
    """Return a sheet's rows, equally long, with NaN for empty cells; long merged cells repeat their value."""
    rows: Rows = []
    width = 0
    sheet.reset_dimensions()  # type: ignore[attr-defined]  # which the file may state wrongly
    for cells in sheet.iter_rows(values_only=True):  # type: ignore[attr-defined]
        row = [_value(cell) for cell in cells]
        while row and row[-1] != row[-1]:  # NaN
            row.pop()
        rows.append(row)
        width = max(width, len(row))
        if len(rows) * width > SHEET_CELLS:
            problem = f"a sheet has {len(rows):,} rows and {width:,} columns, too many cells to read"
            raise SocialxError(path, problem, f"remove cells far from the table, or {AS_CSV}")
    while rows and not rows[-1]:
        rows.pop()
    cells = [row + [float("nan")] * (width - len(row)) for row in rows]
    merged = [span for span in _merged_cells(sheet) if span[0] < width and span[2] <= len(cells)]
    long = {column for column, first, last in merged if last - first >= MERGED_ROWS}
    alone = (column for column in range(width) if column not in long and not isinstance(cells[-1][column], int | float))
    times = next(alone, width)
    for column, first, last in merged:
        value = cells[first - 1][column]
        timed = column > times and cells[last - 1][times] == cells[last - 1][times]  # no NaN
        if timed and isinstance(value, int | float) and value == value:
            problem = f"rows {first} to {last} have one cell for all of them in column {column + 1}, which is {value}"
            raise SocialxError(path, problem, "split the cell or leave out its column, perhaps a sum or a mean")
        for row in cells[first:last] if last - first >= MERGED_ROWS else ():
            row[column] = value
    return cells


def _merged_cells(sheet: object) -> list[tuple[int, int, int]]:
    """Return (column from 0, first row, last row) of cells merged over several rows, such as dates."""
    from openpyxl.utils import column_index_from_string  # type: ignore[import-untyped]

    ranges, before = set(), b""
    with sheet._get_source() as part:  # type: ignore[attr-defined]
        while piece := part.read(PIECE_OF_SHEET):
            ranges |= {*MERGED.findall(before + piece)}
            before = piece[-MERGED_BYTES:]
    return sorted((column_index_from_string(span[0].decode()) - 1, int(span[1]), int(span[2])) for span in ranges)


def _value(cell: object) -> object:
    """Return NaN for an empty or erroneous cell, int for a whole number, and any other value unchanged."""
    if cell is None or cell == "" or (isinstance(cell, str) and cell in ERRORS):
        return float("nan")
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell
