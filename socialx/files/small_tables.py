"""Small tables as rows of text cells: texts with any separator, workbooks, Parquet, and JSON."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from socialx.errors import SocialxError, in_short, sample
from socialx.files.file_head import (
    GZIP,
    LINE_BYTES,
    SEPARATORS,
    UNREADABLE,
    UTF16,
    check_first_line,
    check_text,
    opened,
    read_head,
    unpacked,
)
from socialx.files.points import Row, as_wkt, axis_of, datex
from socialx.files.workbooks import Rows, read_workbook

TABLE_BYTES, JSON_BYTES = 1 << 27, 1 << 25  # 100,000 sensors of 1.3 kB, or points of 300 bytes
CELLS = 1 << 22  # of Parquet: 100,000 rows of 40 columns
BLANK = 1 << 16  # lines, one after the other
FEATURE_ID = "@id"
DECIMAL = re.compile(r"^([+-]?[0-9]+),([0-9]+)$")
DEGREES_OF = re.compile(r"CRS84|EPSG(?::[0-9.]*)?:(?:4326|4258|4269)\b")  # names of longitude and latitude
OBJECTS = "write a list of objects, points of GeoJSON, or a table"
WINDOWS = "windows"  # reads bytes that are no UTF-8 as those of Western Europe
codecs.register_error(WINDOWS, lambda error: (error.object[error.start : error.end].decode("cp1252"), error.end))  # type: ignore[attr-defined]


def read_tables(path: Path, advice: str, notes: list[str]) -> list[list[Row]]:
    """The tables of a file, each with its header as the first row; a workbook has one in each sheet.

    An object of a point is a cell of WKT; ``notes`` name the other objects, which are left out.  advice: what file is
    meant.  Raises SocialxError for what is no table, or larger than the limits above.
    """
    head = read_head(path, advice)
    check_first_line(head, advice)
    begin = head.lines[0][1].lstrip("\ufeff \t") if head.lines else ""
    if begin.startswith("<"):
        return [[*datex(path)]]
    if begin.startswith(("{", "[")):
        return [_json(path, advice, notes)]
    if head.kind not in ("excel", "parquet"):
        return [[*read_rows(path, advice, TABLE_BYTES)]]
    sheets = read_workbook(path) if head.kind == "excel" else {"": _parquet(path, advice)}
    tables = []
    for name, rows in sheets.items():
        of = f" of sheet {name}" if len(sheets) > 1 else ""
        tables.append([(f"line {number}{of}", [*map(_cell, cells)]) for number, cells in enumerate(rows, 1)])
    return tables


def _parquet(path: Path, advice: str) -> Rows:
    """The names of the columns, and the cells of each row."""
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


def read_rows(path: Path, advice: str, most: float = float("inf")) -> Iterator[Row]:
    """The rows of a text that are not blank; decimal commas become points where commas do not separate.

    most: characters of all of them.
    """
    with _text(path, advice) as file:
        first = next((line for line in _lines(path, file, most, advice) if not line.isspace()), "")
        mark = max(SEPARATORS, key=first.count) if any(sign in first for sign in SEPARATORS) else " "
        file.seek(0)
        rows = csv.reader(_lines(path, file, most, advice), delimiter=mark, skipinitialspace=mark != "\t")
        for cells in rows:
            if any(cells := [cell.strip() for cell in cells]):
                yield f"line {rows.line_num}", [cell if mark == "," else DECIMAL.sub(r"\1.\2", cell) for cell in cells]


@contextmanager
def _text(path: Path, advice: str) -> Iterator[IO[str]]:
    """A text, unpacked; says in one line why it cannot be read."""
    head = read_head(path, advice)
    check_first_line(head, advice)
    if head.first[:2] not in (GZIP, *UTF16):
        check_text(path, head.first)
    encoding = "utf-16" if head.encoding == "utf-16" else "utf-8-sig"
    try:
        with unpacked(path) as stream, io.TextIOWrapper(stream, encoding, WINDOWS, newline="") as file:
            yield file
    except UnicodeError:
        save = f"save it as UTF-8, for example with iconv -f cp932 -t utf-8; {advice}"
        raise SocialxError(path, "no text in UTF-8, UTF-16 or Windows-1252", save) from None
    except (*UNREADABLE, csv.Error) as error:
        raise SocialxError(path, f"no table that can be read ({in_short(error, 80)})", advice) from None


def _lines(path: Path, file: IO[str], most: float, advice: str) -> Iterator[str]:
    """The lines of a text; refuses one that is too long for a row, too many of them, and too many blank ones."""
    size = blank = 0
    while line := file.readline(LINE_BYTES):
        size, blank = size + len(line), blank + 1 if line.isspace() else 0
        if len(line) == LINE_BYTES or size > most or blank > BLANK:
            raise SocialxError(path, f"{size:,} characters unpacked, no table", advice)
        yield line


def _json(path: Path, advice: str, notes: list[str]) -> list[Row]:
    """A header and rows of objects: of an array, of the only one in an object, or of one in each line."""
    with _text(path, advice) as file:
        content, what = file.read(JSON_BYTES + 1), "object"
    if len(content) > JSON_BYTES:
        raise SocialxError(path, f"more bytes than points of sensors have ({JSON_BYTES:,})", OBJECTS)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        try:
            found, what = [json.loads(line) for line in content.splitlines() if line.strip()], "line"
        except (ValueError, RecursionError):
            raise SocialxError(path, f"no JSON that can be read ({in_short(error, 80)})", OBJECTS) from None
    if isinstance(found, dict):
        if (system := json.dumps(found.get("crs"))) != "null" and not DEGREES_OF.search(system):
            other = f"its coordinates are not degrees of WGS 84, but of {system[:80]}"
            raise SocialxError(path, other, "write them as EPSG:4326, longitude first")
        lists = [each for each in found.values() if isinstance(each, list) and each and isinstance(each[0], dict)]
        found = lists[0] if len(lists) == 1 else [found]
    return _of_objects(
        path, what, [(number, each) for number, each in enumerate(found, 1) if isinstance(each, dict)], notes
    )


def _of_objects(path: Path, what: str, numbered: list[tuple[int, dict[str, Any]]], notes: list[str]) -> list[Row]:
    """A header and rows of some objects with their numbers, of features of GeoJSON their properties and geometry."""
    features = [(number, each) for number, each in numbered if isinstance(each.get("geometry"), dict)]
    points = [(number, each) for number, each in features if each["geometry"].get("type") == "Point"]
    what = "feature" if features else what
    numbered = [(number, _feature(each)) for number, each in points or features] or numbered
    names = [*dict.fromkeys(str(name) for _, each in numbered for name in each)]
    if not names:
        raise SocialxError(path, "it has no objects with names", OBJECTS)
    cells = [(number, {str(name): _cell(value) for name, value in each.items()}) for number, each in numbered]
    nested = {str(name) for _, each in numbered for name, value in each.items() if isinstance(value, dict | list)}
    if out := [name for name in names if name in nested and not any(each.get(name) for _, each in cells)]:
        notes.append(f"{path}: no points, left out: {sample(out, 8)}")
    rows = [(f"{what} {number}", [each.get(name, "") for name in names]) for number, each in cells]
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
