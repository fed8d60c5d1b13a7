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
from typing import Any

from socialx.errors import SocialxError, in_short, sample
from socialx.files.file_head import (
    GZIP,
    LINE_BYTES,
    PARQUET,
    SEPARATORS,
    UNREADABLE,
    UTF16,
    check_text,
    first_bytes,
    opened,
    unpacked,
    whole,
)
from socialx.files.points import Row, as_wkt, axis_of, datex
from socialx.files.workbooks import read_workbook

TABLE_BYTES = 1 << 27  # 100,000 sensors at 1.3 kB each; PEMS-BAY-META.csv has 135 bytes for one
JSON_BYTES = 1 << 25  # 100,000 points of 300 bytes; a parsed text takes ten times its size
CELLS = 1 << 22  # of Parquet: 100,000 rows of 40 columns
PIECE = 1 << 20
BLANK = 1 << 16  # lines, one after the other
FEATURE_ID = "@id"
DECIMAL = re.compile(r"^([+-]?[0-9]+),([0-9]+)$")
DEGREES_OF = re.compile(r"CRS84|EPSG(?::[0-9.]*)?:(?:4326|4258|4269)\b")  # names of longitude and latitude
OBJECTS = "write a list of objects, points of GeoJSON, or a table"


def read_tables(path: Path, advice: str, notes: list[str]) -> list[list[Row]]:
    """The tables of a file, each with its header as the first row; a workbook has one in each sheet.

    An object of a point is a cell of WKT; ``notes`` name the other objects, which are left out.  advice: what file is
    meant.  Raises SocialxError for what is no table, or larger than the limits above.
    """
    begin = first_bytes(path, advice)
    size = whole(path).stat().st_size
    if size > TABLE_BYTES:
        raise SocialxError(path, f"{size:,} bytes, more than a table of positions has ({TABLE_BYTES:,})", advice)
    if path.suffix.lower() in (".xlsx", ".xlsm"):
        sheets = read_workbook(path)
        of = {name: f" of sheet {name}" if len(sheets) > 1 else "" for name in sheets}
        return [
            [(f"line {number}{of[name]}", [_cell(cell) for cell in cells]) for number, cells in enumerate(rows, 1)]
            for name, rows in sheets.items()
        ]
    if begin.startswith(PARQUET):
        return [_of_objects(path, "row", _parquet(path, advice), notes)]
    if begin[:2] not in (GZIP, *UTF16):
        check_text(path, begin)
    with _readable(path, advice):
        encoding = _encoding(path)
        with unpacked(path) as stream:
            text = stream.read(100).decode(encoding, "ignore").lstrip("\ufeff \r\n\t")
    if text.startswith("<"):
        return [list(datex(path))]
    if text.startswith(("{", "[")):
        return [_of_objects(path, *_json(path, encoding, advice), notes)]
    return [list(read_rows(path, advice, TABLE_BYTES))]


def read_rows(path: Path, advice: str, most: float = float("inf")) -> Iterator[Row]:
    """The rows of a text that are not blank; decimal commas become points where commas do not separate.

    most: characters of all of them.
    """
    first_bytes(path, advice)
    with _readable(path, advice):
        encoding = _encoding(path)
        with unpacked(path) as stream, io.TextIOWrapper(stream, encoding, newline="") as file:
            first = next((line for line in _lines(path, file, most, advice) if not line.isspace()), "")
            mark = max(SEPARATORS, key=first.count) if any(sign in first for sign in SEPARATORS) else " "
            file.seek(0)
            rows = csv.reader(_lines(path, file, most, advice), delimiter=mark, skipinitialspace=mark != "\t")
            for cells in rows:
                if any(cells := [cell.strip() for cell in cells]):
                    cells = cells if mark == "," else [DECIMAL.sub(r"\1.\2", cell) for cell in cells]
                    yield f"line {rows.line_num}", cells


def _lines(path: Path, file: io.TextIOWrapper, most: float, advice: str) -> Iterator[str]:
    """The lines of a text; refuses one that is too long for a row, too many of them, and too many blank ones."""
    size = blank = 0
    while line := file.readline(LINE_BYTES):
        size, blank = size + len(line), blank + 1 if line.isspace() else 0
        if len(line) == LINE_BYTES or size > most or blank > BLANK:
            found = f"a line of {LINE_BYTES:,} characters or more" if size <= most else f"{size:,} characters unpacked"
            raise SocialxError(path, f"{f'{BLANK:,} blank lines' if blank > BLANK else found}, no table", advice)
        yield line


def _encoding(path: Path) -> str:
    """UTF-16 where a text says so, else UTF-8 where it can be, else that of Windows in Western Europe."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with unpacked(path) as stream:
        piece = stream.read(PIECE)
        if piece.startswith(UTF16):
            return "utf-16"
        try:
            for _ in range(TABLE_BYTES // PIECE):
                decoder.decode(piece)
                if not (piece := stream.read(PIECE)):
                    break
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8-sig"


@contextmanager
def _readable(path: Path, advice: str) -> Iterator[None]:
    """Say in one line why a text cannot be read."""
    try:
        yield
    except UnicodeDecodeError:
        what = "no text in UTF-8, UTF-16 or Windows-1252"
        text = "if it is a text, save it as UTF-8, for example with iconv -f cp932 -t utf-8"
        raise SocialxError(path, what, f"{text}; else {advice}") from None
    except (*UNREADABLE, csv.Error) as error:
        raise SocialxError(path, f"no table that can be read ({in_short(error, 80)})", advice) from None


def _parquet(path: Path, advice: str) -> list[Any]:
    from pyarrow import ArrowException, parquet

    with opened(path) as stream:
        try:
            file = parquet.ParquetFile(stream)
            if (cells := file.metadata.num_rows * file.metadata.num_columns) > CELLS:
                raise SocialxError(path, f"{cells:,} cells, more than a table of positions has ({CELLS:,})", advice)
            return list(file.read().to_pylist())
        except (OSError, ValueError, ArrowException) as error:
            raise SocialxError(path, f"no Parquet that can be read ({in_short(error, 80)})", advice) from None


def _json(path: Path, encoding: str, advice: str) -> tuple[str, list[Any]]:
    """The word for the objects of a JSON text, and these: an array, the only one in an object, or one in each line."""
    with _readable(path, advice), unpacked(path) as stream:
        content = stream.read(JSON_BYTES + 1).decode(encoding)
    if len(content) > JSON_BYTES:
        raise SocialxError(path, f"more bytes than points of sensors have ({JSON_BYTES:,})", OBJECTS)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        try:
            return "line", [json.loads(line) for line in content.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise SocialxError(path, f"no JSON that can be read ({in_short(error, 80)})", OBJECTS) from None
    system = found.get("crs") if isinstance(found, dict) else None
    if system is not None and not DEGREES_OF.search(json.dumps(system)):
        other = f"its coordinates are not degrees of WGS 84, but of {json.dumps(system)[:80]}"
        raise SocialxError(path, other, "write them as EPSG:4326, longitude first")
    if isinstance(found, dict):
        lists = [each for each in found.values() if isinstance(each, list) and each and isinstance(each[0], dict)]
        found = lists[0] if len(lists) == 1 else [found]
    return "object", found


def _of_objects(path: Path, what: str, objects: list[Any], notes: list[str]) -> list[Row]:
    """A header and rows of some objects, of features of GeoJSON their properties, id and geometry."""
    numbered = [(number, each) for number, each in enumerate(objects, 1) if isinstance(each, dict)]
    features = {number: each for number, each in numbered if isinstance(each.get("geometry"), dict)}
    if features:
        points = {number for number, each in features.items() if each["geometry"].get("type") == "Point"}
        numbered = [(number, _feature(each)) for number, each in features.items() if number in points or not points]
    names = list(dict.fromkeys(str(name) for _, each in numbered for name in each))
    if not names:
        raise SocialxError(path, "it has no objects with names", OBJECTS)
    cells = [(number, {str(name): _cell(value) for name, value in each.items()}) for number, each in numbered]
    nested = {str(name) for _, each in numbered for name, value in each.items() if isinstance(value, dict | list)}
    if out := [name for name in names if name in nested and not any(each.get(name) for _, each in cells)]:
        notes.append(f"{path}: no points, left out: {sample(out, 8)}")
    what = "feature" if features else what
    rows = [(f"{what} {number}", [each.get(name, "").strip() for name in names]) for number, each in cells]
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
