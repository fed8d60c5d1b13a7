"""Small tables as rows of texts: positions, distances and holidays."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from socialx.core.errors import SocialxError, in_short
from socialx.files.sources.tables.cells import Table, as_texts, find_encoding, find_separator, open_tables
from socialx.files.sources.tables.spec import UNSAID
from socialx.files.store.head import (
    GZIP,
    LINE_BYTES,
    UNREADABLE,
    UTF16,
    FileHead,
    check_first_line,
    check_text,
    read_head,
    unpack,
)

GEOJSON_BYTES = 1 << 25  # 100,000 points of 300 bytes
DEGREES = ("latitude", "longitude")
SYSTEMS = ("CRS84", "4326", "4258", "4269")  # of degrees, longitude first
LINES = ("LineString", "MultiLineString")
RECIPE = "see docs/how-to/recipes.md"
Row = tuple[str, list[str]]  # its name, such as ``line 7``, and its cells
Rows = Iterator[Row]


def read_tables(path: Path, advice: str) -> list[Rows]:
    """Return header and rows as texts, per table in a file, or per sheet in a workbook.

    Reads delimited text, JSON, Parquet, workbooks and GeoJSON points. advice: the remedy for an absent or empty file.
    Raises SocialxError for other content.
    """
    head = read_head(path, advice)
    check_first_line(head, advice)
    if head.kind in ("hdf5", "npy", "zip"):
        raise SocialxError("places.no-table", path, f"this is no table, but {head.kind}", advice)
    if head.first[:2] not in (GZIP, *UTF16):
        check_text(path, head.first)
    begin = "".join(head.lines[:3]).lstrip("\ufeff \t")
    if begin.startswith("<"):
        raise SocialxError("places.xml", path, "the file is XML, no table", f"{RECIPE} for DATEX II, or {advice}")
    if begin.startswith("{") and '"FeatureCollection"' in begin:
        return [_points(path)]
    if head.kind == "text" and not begin.startswith(("{", "[")):
        return [_text(head)]
    tables = open_tables(path, UNSAID)
    return [_typed(table, f" of {table.where}" * (len(tables) > 1)) for table in tables]


def read_rows(path: Path, advice: str) -> Rows:
    """Return header and rows of the first table in a file."""
    return read_tables(path, advice)[0]


def _typed(table: Table, sheet: str) -> Rows:
    yield f"the header{sheet}", list(table.names)
    for piece in table.walk(range(len(table.names)), []):
        for row, cells in enumerate(zip(*map(as_texts, piece.texts), strict=True)):
            if any(cells):
                yield piece.name(row) + sheet, list(cells)


def _text(head: FileHead) -> Rows:
    """Yield a text's filled rows, with cells between commas or other separators, else between blanks."""
    with unpack(head.path) as stream, io.TextIOWrapper(stream, find_encoding(head.path), newline="") as text:
        try:
            lines = _lines(text)
            first = [*islice(lines, 50)]
            mark = find_separator([line for line in first if line.strip()])
            mark = mark if mark in "".join(first) else " "
            rows = csv.reader(chain(first, lines), delimiter=mark, skipinitialspace=True)
            for cells in rows:
                if any(cells := [cell.strip() for cell in cells]):
                    yield f"line {rows.line_num}", cells
        except (*UNREADABLE, csv.Error) as error:
            problem = f"the text cannot be read to its end ({in_short(error, 80)})"
            raise SocialxError("places.unreadable", head.path, problem, "save it as UTF-8, or make it again") from None


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    while line := text.readline(LINE_BYTES):
        if len(line) == LINE_BYTES:
            raise ValueError("a line without an end")
        yield line


def _points(path: Path) -> Rows:
    """Yield properties and degrees by GeoJSON point; without points, by line, with the line's first point."""
    with unpack(path) as file:
        text = file.read(GEOJSON_BYTES + 1)
    try:
        tree = json.loads(text.decode(find_encoding(path)))
        features, system = tree["features"], json.dumps(tree.get("crs") or "CRS84")
        rows = [*filter(None, map(_point, features))] or [*filter(None, (_point(one, LINES) for one in features))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = f"this is no GeoJSON that can be read ({in_short(error, 80)})"
        raise SocialxError("places.geojson", path, problem, "correct it") from None
    if not any(name in system for name in SYSTEMS):
        problem = f"the coordinates are not degrees of WGS 84, but of {system[:80]}"
        raise SocialxError("places.crs", path, problem, "write them as EPSG:4326, longitude first")
    names = [*dict.fromkeys(name for row in rows for name in row)]
    yield "the properties", names
    for number, row in enumerate(rows, 1):
        yield f"point {number}", [row.get(name, "") for name in names]


def _point(feature: dict[str, Any], kinds: tuple[str, ...] = ("Point",)) -> dict[str, str]:
    """Return a feature's properties and degrees as texts; empty for a geometry other than ``kinds``."""
    geometry, properties = feature.get("geometry") or {}, feature.get("properties") or {}
    point = geometry.get("coordinates")
    while isinstance(point, list) and point and isinstance(point[0], list):
        point = point[0]
    if not point or geometry["type"] not in kinds:
        return {}
    texts = {name: str(value) for name, value in properties.items() if isinstance(value, str | int | float)}
    identity = {} if feature.get("id") is None else {"id": str(feature["id"])}
    return identity | texts | dict(zip(DEGREES, map(str, point[1::-1]), strict=True))
