"""Small tables as rows of text cells: texts with any separator, workbooks, Parquet, JSON, and DATEX II."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from socialx.errors import SocialxError, in_short, sample
from socialx.files.file_head import GZIP, SEPARATORS, UTF16, FileHead, check_first_line, check_text, opened, read_head
from socialx.files.formats.json_rows import objects_in
from socialx.files.formats.text_cells import pieces
from socialx.files.points import Row, as_wkt, axis_of, datex
from socialx.files.workbooks import Rows, read_workbook

TABLE_BYTES, JSON_BYTES = 1 << 27, 1 << 25  # 100,000 sensors of 1.3 kB, or points of 300 bytes
CELLS = 1 << 22  # of Parquet: 100,000 rows of 40 columns
FEATURE_ID = "@id"
DECIMAL = re.compile(r"^([+-]?[0-9]+),([0-9]+)$")
SYSTEM = re.compile(r'"crs"\s*:\s*(\{[^}]*)')  # of coordinates in GeoJSON
DEGREES_OF = re.compile(r"CRS84|EPSG(?::[0-9.]*)?:(?:4326|4258|4269)\b")  # names of longitude and latitude
WINDOWS = "windows"  # reads bytes that are no UTF-8 as those of Western Europe
codecs.register_error(WINDOWS, lambda error: (error.object[error.start : error.end].decode("cp1252"), error.end))  # type: ignore[attr-defined]


def read_tables(path: Path, advice: str, notes: list[str], *, long: bool = False) -> list[Iterable[Row]]:
    """The rows that are not blank of the tables of a file, with their headers; a workbook has one in each sheet.

    A point of JSON is a cell of WKT; ``notes`` name the other objects, which are left out.  advice: what file is meant.
    long: a text has any length.  Raises SocialxError for what is no table, or larger than the limits above.
    """
    head = read_head(path, advice)
    check_first_line(head, advice)
    begin = head.lines[0][1].lstrip("\ufeff \t") if head.lines else ""
    if begin.startswith("<"):
        return [datex(head)]
    if begin.startswith(("{", "[")):
        return [_of_json(head, advice, notes)]
    if head.kind in ("hdf5", "npy"):
        raise SocialxError(path, f"no table, but {head.kind}", advice)
    if head.kind not in ("excel", "parquet"):
        return [_of_text(head, advice, float("inf") if long else TABLE_BYTES)]
    sheets = read_workbook(path) if head.kind == "excel" else {"": _parquet(path, advice)}
    tables = list[Iterable[Row]]()
    for name, rows in sheets.items():
        of = f" of sheet {name}" if len(sheets) > 1 else ""
        cells = [(f"line {number}{of}", [*map(_cell, row)]) for number, row in enumerate(rows, 1)]
        tables.append([row for row in cells if any(row[1])])
    return tables


def read_rows(path: Path, advice: str, *, long: bool = False) -> Iterator[Row]:
    """The rows of the first table of a file, as ``read_tables`` finds it."""
    return iter(read_tables(path, advice, [], long=long)[0])


def _parquet(path: Path, advice: str) -> Rows:
    """The names of the columns, and the cells of each row, which may be points or bytes."""
    from pyarrow import ArrowException, parquet

    try:
        with opened(path) as stream:
            file = parquet.ParquetFile(stream)
            if (cells := file.metadata.num_rows * file.metadata.num_columns) > CELLS:
                raise SocialxError(path, f"{cells:,} cells, more than a table of positions has ({CELLS:,})", advice)
            table = file.read()
    except (OSError, ValueError, ArrowException) as error:
        raise SocialxError(path, f"no Parquet that can be read ({in_short(error, 80)})", advice) from None
    return [table.column_names, *map(list, zip(*(column.to_pylist() for column in table.columns), strict=True))]


def _of_text(head: FileHead, advice: str, most: float) -> Iterator[Row]:
    """The rows of a text that are not blank; decimal commas become points where commas do not separate."""
    lines = [line for _, line in head.lines]
    first = next((line for line in lines if len(line.split()) > 1 or {*line} & {*SEPARATORS}), "")  # of several cells
    mark = max(SEPARATORS, key=first.count) if {*first} & {*SEPARATORS} else " "
    rows = csv.reader(_lines(head, advice, most), delimiter=mark, skipinitialspace=mark != "\t")
    try:
        for cells in rows:
            if any(cells := [cell.strip() for cell in cells]):
                yield f"line {rows.line_num}", [cell if mark == "," else DECIMAL.sub(r"\1.\2", cell) for cell in cells]
    except csv.Error as error:
        raise SocialxError(head.path, f"no table that can be read ({in_short(error, 80)})", advice) from None


def _lines(head: FileHead, advice: str, most: float) -> Generator[str, None, None]:
    """The lines of a text, unpacked; refuses more than so many bytes of them."""
    path, size = head.path, 0
    if head.first[:2] not in (GZIP, *UTF16):
        check_text(path, head.first)
    try:
        with closing(pieces(path, 0, head.encoding)) as found:
            for _, piece in found:
                size += len(piece)
                if size > most:
                    raise SocialxError(path, f"{size:,} bytes unpacked, no table", advice)
                yield from (line.decode("utf-8", WINDOWS) for line in piece.splitlines(keepends=True))
    except UnicodeError:
        save = f"save it as UTF-8, for example with iconv -f cp932 -t utf-8; {advice}"
        raise SocialxError(path, "no text in UTF-8, UTF-16 or Windows-1252", save) from None


def _of_json(head: FileHead, advice: str, notes: list[str]) -> list[Row]:
    """A header and rows of objects, of features of GeoJSON their properties and geometry."""
    system = SYSTEM.search("\n".join(line for _, line in head.lines))
    if system and not DEGREES_OF.search(system[1]):
        found = f"its coordinates are not degrees of WGS 84, but of {system[1][:80]}"
        raise SocialxError(head.path, found, "write them as EPSG:4326, longitude first")
    with closing(_lines(head, advice, JSON_BYTES)) as lines:
        filled = ((number, line.strip()) for number, line in enumerate(lines, 1) if not line.isspace())
        objects: list[tuple[str, dict[str, Any]]] = [*objects_in(head.path, filled)]
    features = [(place, each) for place, each in objects if isinstance(each.get("geometry"), dict)]
    points = [(place, each) for place, each in features if each["geometry"].get("type") == "Point"]
    objects = [(place, _feature(each)) for place, each in points or features] or objects
    names = [*dict.fromkeys(name for _, each in objects for name in each)]
    nested = {name for _, each in objects for name, value in each.items() if isinstance(value, dict | list)}
    rows = [(place, cells) for place, each in objects if any(cells := [_cell(each.get(name)) for name in names])]
    shown = {name for _, cells in rows for name, cell in zip(names, cells, strict=True) if cell}
    if out := [name for name in names if name in nested - shown]:
        notes.append(f"{head.path}: no points, left out: {sample(out, 8)}")
    return [("its header", names), *rows]


def _feature(feature: dict[str, Any]) -> dict[str, Any]:
    """The properties of a feature of GeoJSON but for other positions, with its id and its geometry."""
    properties = feature.get("properties")
    plain = properties if isinstance(properties, dict) else {}
    own = {} if feature.get("id") is None else {FEATURE_ID: feature["id"]}
    others = {name: value for name, value in plain.items() if not ((found := axis_of(name)) and not found[2])}
    return others | own | {"geometry": feature["geometry"]}


def _cell(value: Any) -> str:
    """A value as a text, that of a point as WKT; empty where it is none, or another object."""
    if isinstance(value, dict | list):
        return as_wkt(value)
    return "" if value is None or value != value else str(value).strip()  # NaN
