"""Read JSON objects as rows: an object per line, or the objects nested in arrays and objects.

An object or array inside a cell is left out; the cell then holds NESTED. A row name, such as ``line 7`` or ``object
3``, and the path or text ``where`` serve error messages only.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from socialx.core.errors import SocialxError, counted
from socialx.files.store.head import LINE_BYTES, UNREADABLE, unpack

WHOLE_BYTES = 1 << 28  # of a text that is read as a whole
KEY = "id"  # of the column that a table with an object for each station gets
DATE = re.compile(r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}(?![-/.0-9])")  # at the begin of a time
TIME = re.compile(rf"{DATE.pattern}|[0-9]{{10,19}}$")
LINES = "write each object in a line of its own, as jq -c '.[]' FILE.json > FILE.jsonl does"
NESTED = "{...}"  # replaces an object in a cell


class JsonNumber(str):
    """The text of a JSON number, in which the decimal sign is certain, unlike a JSON string with digits."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as a list of (key, value), which keeps repeated keys."""


def _parse(where: object, row_name: str, text: str, decimal: str) -> Any:
    """Parse a JSON text; objects become ``_Pairs``, and numbers become texts with the decimal sign ``decimal``, "." or
    ",". Raises SocialxError for invalid JSON; only the error uses ``where``, the file, and ``row_name``, as ``line 7``.
    """

    def as_text(number: str) -> JsonNumber:
        return JsonNumber(number.replace(".", decimal))

    try:
        return json.loads(text, object_pairs_hook=_Pairs, parse_float=as_text, parse_int=as_text, parse_constant=str)
    except (ValueError, RecursionError):
        problem = f"{row_name} is not a JSON object ({text[:40]!a})"
        raise SocialxError(where, problem, "write one object in each line, or one array of objects") from None


def _cells(where: object, row_name: str, pairs: _Pairs) -> dict[str, str]:
    """Return the cells of an object's ``pairs`` as texts by key: NESTED, {...}, for an object or array, "" for null.
    Raises SocialxError, which names ``where``, the file, and ``row_name``, for a key twice and for control characters.
    """
    cells: dict[str, str] = {}
    for key, value in pairs:
        if key in cells:
            raise SocialxError(where, f"{row_name} has the key {key[:40]!a} twice", "remove one of them")
        cell: Any = "" if value is None else NESTED if isinstance(value, list) else value
        cell = str(cell).lower() if isinstance(cell, bool) else cell
        cell = cell if isinstance(cell, JsonNumber) or cell == NESTED else cell.strip()
        if cell != NESTED and not (key + cell).isprintable():
            raise SocialxError(where, f"{row_name}, {key[:40]!a} has a control character", "write texts of one line")
        cells[key] = cell
    return cells


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, stripped text) for each filled line in a text file, packed or plain."""
    try:
        with unpack(path) as stream:
            lines = io.TextIOWrapper(stream, encoding, errors="replace")
            for number, line in enumerate(iter(lambda: lines.readline(LINE_BYTES), ""), 1):
                if len(line) == LINE_BYTES:
                    raise SocialxError(path, f"line {number} is longer than {LINE_BYTES >> 20} MiB", LINES)
                if not line.isspace():
                    yield number, line.strip()
    except UNREADABLE as error:
        raise SocialxError(path, f"the file cannot be read to its end ({error})", "make or download it again") from None


def json_objects(path: Path, encoding: str, decimal: str = ".") -> Generator[tuple[str, dict[str, str]], None, None]:
    """Yield (row name, cells by key) for each object in a JSON file; the row name, such as ``line 7``, is for messages.
    decimal: the sign that replaces the point in JSON numbers. Raises SocialxError for anything except a table.
    """

    def table_rows(document: Any) -> Iterator[_Pairs]:
        return _rows(path, _inner_table(document), {})

    yield from _objects(path, _lines(path, encoding), decimal, table_rows, partial(_cells, path))


def objects_in(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (``line 7``, values by key) for each JSON object, as a station; ``lines``: (number, text) in ``path``."""
    return _objects(path, lines, ".", partial(_station_rows, path), lambda _, pairs: _as_dict(pairs))


def _objects(
    path: Path,
    lines: Iterator[tuple[int, str]],
    decimal: str,
    table_rows: Callable[[Any], Iterable[_Pairs]],
    cells: Callable[[str, _Pairs], dict[str, Any]],
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Yield the object in each line, or the objects in a whole document, after a row name, as ``line 7``. lines: pairs
    of number and text. decimal: the decimal sign for numbers. table_rows: finds the row objects in a document. cells:
    turns a row name and an object into cells by key.
    """
    for row_name, document in _values(path, lines, decimal):
        try:
            for number, pairs in enumerate([document] if row_name else [*table_rows(document)], 1):
                called = row_name or f"object {number}"
                yield called, cells(called, pairs)
        except RecursionError:
            raise SocialxError(path, "the JSON is nested too deep for a table", LINES) from None


def _values(path: Path, lines: Iterator[tuple[int, str]], decimal: str) -> Iterator[tuple[str, Any]]:
    """Yield (``line 7``, object) for each of the ``lines``, (number, text) pairs, if each holds an object; otherwise
    once ("", document), parsed from all lines. decimal: the decimal sign for numbers. path: the file, for errors.
    """
    first = list(islice(lines, 2))
    if len(first) > 1 and first[0][1].startswith("{") and first[0][1].endswith("}") and first[1][1].startswith("{"):
        for number, text in (*first, *lines):
            row_name = f"line {number}"
            pairs = _parse(path, row_name, text, decimal)
            if not isinstance(pairs, _Pairs):
                raise SocialxError(
                    path, f"{row_name} is not a JSON object ({text[:40]!a})", "write one object in each line"
                )
            yield row_name, pairs
        return
    text = "\n".join(line for _, line in first)
    for _, line in lines:
        text += f"\n{line}"
        if len(text) > WHOLE_BYTES:
            raise SocialxError(path, f"the text holds more than {WHOLE_BYTES >> 20} MiB of JSON in one document", LINES)
    document = _parse(path, "the text", text, decimal)
    if not document:
        raise SocialxError(path, f"the JSON is not an array of objects ({text[:40]!a})", LINES)
    yield "", document


def _as_dict(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {key: _as_dict(item) for key, item in value}
    return [_as_dict(item) for item in value] if isinstance(value, list) else value


def _are_objects(value: object) -> bool:
    return type(value) is list and all(isinstance(item, _Pairs) for item in value)


def _station_rows(path: Path, document: Any) -> list[_Pairs]:
    """Return the row objects in a document: an array, the only array inside an object, or an object per station. Each
    station's key becomes the cell ``id`` in the object, or objects, behind the key. An object without inner objects is
    the only row. Raises SocialxError, which names ``path``, for other JSON.
    """
    if not isinstance(document, _Pairs):
        if not _are_objects(document):
            raise SocialxError(path, f"the JSON is not an array of objects ({str(_as_dict(document))[:40]!a})", LINES)
        return list(document)
    inside = dict(document)
    tables = [value for value in inside.values() if value and _are_objects(value)]
    if (len(tables) == 1 and len(inside) > 1) or (len(inside) == 1 and tables):
        return tables[0]
    if not tables and not all(isinstance(value, _Pairs) for value in inside.values()):
        return [document]
    rows: list[_Pairs] = []
    for key, value in inside.items():
        station_rows = [value] if isinstance(value, _Pairs) else value
        if not _are_objects(station_rows):
            problem = f"the object with {counted(len(inside), 'key')} holds no table of objects ({key[:40]!a})"
            raise SocialxError(path, problem, LINES)
        rows += [row if KEY in dict(row) else _Pairs([(KEY, key), *row]) for row in station_rows]
    return rows


def _inner_table(document: Any) -> Any:
    """Return the table inside nested objects: an object with a single table inside gives way to the table, level by
    level. An object with no table, or with several, is returned; an object whose arrays are columns gives the rows.
    """
    while isinstance(document, _Pairs):
        if rows := _column_rows(document):
            return rows
        tables = [value for _, value in document if _is_table(value)]
        is_row = len(document) == 1 and tables and type(tables[0]) is _Pairs and not isinstance(tables[0][0][1], list)
        if len(tables) != 1 or is_row:  # an observation per time of a single sensor
            break
        [document] = tables
    return document


def _rows(path: Path, document: object, above: dict[str, object]) -> Iterator[_Pairs]:
    """Yield the rows in nested arrays and objects, each begun with ``above``, the cells in enclosing objects by key."""
    if not isinstance(document, _Pairs):
        if not isinstance(document, list):
            raise SocialxError(path, f"the JSON is not an array of objects ({str(document)[:40]!a})", LINES)
        for item in document:
            yield from _rows(path, item, above)
    elif _is_keyed(document):
        for key, value in document:
            name, inside = "time" if DATE.match(key) else KEY, value[0] if type(value) is list else value
            named = isinstance(inside, _Pairs) and any(item == name for item, _ in inside)
            behind = above if named else {**above, name: key}
            yield from _rows(path, value if isinstance(value, list) else _Pairs([("value", value)]), behind)
    else:
        beside = {**above, **{key: value for key, value in document if not isinstance(value, list)}}
        tables = [value for _, value in document if _is_table(value) and _has_time(value)]
        tables = tables if len(tables) == 1 else [rows for rows in [_column_rows(document)] if rows]
        if tables:
            yield from _rows(path, tables[0], beside)
        elif _has_time(document) or [] not in [value for _, value in document]:
            yield _Pairs([*above.items(), *((f"{key} 2" if key in above else key, value) for key, value in document)])


def _is_table(value: object) -> bool:
    """Return whether a value is an array of objects, an object keyed by sensor or time, or an object of columns."""
    if not isinstance(value, list) or not value:
        return False
    if isinstance(value, _Pairs):
        return _is_keyed(value) or bool(_column_rows(value))
    return all(isinstance(item, _Pairs) for item in value)


def _is_keyed(pairs: _Pairs) -> bool:
    """Return whether an object has a sensor or a time as each key, and a row, a table or an observation behind it."""
    inside = all(isinstance(value, _Pairs) or _is_table(value) for _, value in pairs)
    return inside or all(DATE.match(key) for key, _ in pairs)


def _has_time(value: object) -> bool:
    """Return whether a text is a time or date, an array begins with a time, or an object has a time as key or cell."""
    if isinstance(value, _Pairs):
        return any(DATE.match(key) or _has_time(cell) for key, cell in value)
    return bool(value and _has_time(value[0]) if isinstance(value, list) else TIME.match(str(value)))


def _column_rows(pairs: _Pairs) -> list[_Pairs]:
    """Return the rows in an object with an array per column, or with an array of rows and an array of column names.
    Returns an empty list for other objects, for arrays that differ in length, and for columns without times.
    """
    columns: list[tuple[str, Any]] = [(key, value) for key, value in pairs if type(value) is list and value]
    for rows in [rows for _, rows in columns if all(type(row) is list for row in rows)][:1]:
        others = [(key, value) for key, value in columns if value is not rows]
        names = next((value for _, value in others if {len(row) for row in rows} == {len(value)}), ())
        if not names or (len(others) > 1 and len(names) == len(rows)):  # a row may be a time's or a sensor's
            return []
        named = zip(map(str, names), zip(*rows, strict=False), strict=False)
        columns = [*((key, value) for key, value in others if value is not names), *named]
    flat = not any(isinstance(cell, list) for _, column in columns for cell in column)
    if not flat or len(columns) < 2 or not any(_has_time(column[0]) for _, column in columns):
        return []
    keys, values = zip(*columns, strict=True)
    if len({*map(len, values)}) > 1:
        return []
    return [_Pairs(zip(keys, cells, strict=True)) for cells in zip(*values, strict=True)]
