"""Objects of JSON as rows of cells: one in each line, or those that arrays and objects in one another hold.

An object in a row is no cell: such keys are told apart and left out.
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
NESTED = "{...}"  # stands for an object in a cell


class JsonNumber(str):
    """A number of JSON as it is written, whose sign of decimals is a point whatever the texts have."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON, its keys as often as they stand there."""


def _parsed(where: object, place: str, text: str, decimal: str) -> Any:
    """A text of JSON, its objects as pairs; refuses a text that is none."""

    def as_text(found: str) -> JsonNumber:
        return JsonNumber(found.replace(".", decimal))

    try:
        return json.loads(text, object_pairs_hook=_Pairs, parse_float=as_text, parse_int=as_text, parse_constant=str)
    except (ValueError, RecursionError):
        found = f"{place} is no object of JSON ({text[:40]!a})"
        raise SocialxError(where, found, "write one object in each line, or one array of objects") from None


def _cells(where: object, place: str, pairs: _Pairs) -> dict[str, str]:
    """The cells of an object by their keys; NESTED stands for an object or an array in it."""
    cells: dict[str, str] = {}
    for key, value in pairs:
        if key in cells:
            raise SocialxError(where, f"{place} has the key {key[:40]!a} twice", "remove one of them")
        cell: Any = "" if value is None else NESTED if isinstance(value, list) else value
        cell = str(cell).lower() if isinstance(cell, bool) else cell
        cell = cell if isinstance(cell, JsonNumber) or cell == NESTED else cell.strip()
        if cell != NESTED and not (key + cell).isprintable():
            raise SocialxError(where, f"{place}, {key[:40]!a} is no plain text", "write numbers and texts of one line")
        cells[key] = cell
    return cells


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """The lines of a text that are not blank, with their numbers."""
    try:
        with unpack(path) as stream:
            lines = io.TextIOWrapper(stream, encoding, errors="replace")
            for number, line in enumerate(iter(lambda: lines.readline(LINE_BYTES), ""), 1):
                if len(line) == LINE_BYTES:
                    raise SocialxError(path, f"{LINE_BYTES >> 20} MiB without the end of line {number}", LINES)
                if not line.isspace():
                    yield number, line.strip()
    except UNREADABLE as error:
        raise SocialxError(path, f"cannot be read to its end ({error})", "make or download it again") from None


def json_objects(path: Path, encoding: str, decimal: str = ".") -> Generator[tuple[str, dict[str, str]], None, None]:
    """The objects of a text of JSON, each with its place for a message and its cells by key.

    Numbers are written with the sign of decimals that texts have.  Refuses all that is no table of objects.
    """

    def opened(found: Any) -> Iterator[_Pairs]:
        return _rows(path, _opened(found), {})

    yield from _objects(path, _lines(path, encoding), decimal, opened, partial(_cells, path))


def objects_in(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of numbered lines that are not blank, which need no times, each with its place for a message."""
    return _objects(path, lines, ".", partial(_of_stations, path), lambda _, pairs: _as_dict(pairs))


def _objects(
    path: Path,
    lines: Iterator[tuple[int, str]],
    decimal: str,
    opened: Callable[[Any], Iterable[_Pairs]],
    cells: Callable[[str, _Pairs], dict[str, Any]],
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """The cells of the object of each line, or of those that ``opened`` finds in the whole text, each with a place."""
    for place, found in _values(path, lines, decimal):
        try:
            for number, pairs in enumerate([found] if place else [*opened(found)], 1):
                called = place or f"object {number}"
                yield called, cells(called, pairs)
        except RecursionError:
            raise SocialxError(path, "its JSON is nested too deep to be a table", LINES) from None


def _values(path: Path, lines: Iterator[tuple[int, str]], decimal: str) -> Iterator[tuple[str, Any]]:
    """The object of each line with its place, or all that the text holds with none."""
    first = list(islice(lines, 2))
    if len(first) > 1 and first[0][1].startswith("{") and first[0][1].endswith("}") and first[1][1].startswith("{"):
        for number, text in (*first, *lines):
            place = f"line {number}"
            pairs = _parsed(path, place, text, decimal)
            if not isinstance(pairs, _Pairs):
                raise SocialxError(
                    path, f"{place} is no object of JSON ({text[:40]!a})", "write one object in each line"
                )
            yield place, pairs
        return
    text = "\n".join(line for _, line in first)
    for _, line in lines:
        text += f"\n{line}"
        if len(text) > WHOLE_BYTES:
            raise SocialxError(path, f"more than {WHOLE_BYTES >> 20} MiB of JSON that is not in lines", LINES)
    found = _parsed(path, "it", text, decimal)
    if not found:
        raise SocialxError(path, f"its JSON is no array of objects ({text[:40]!a})", LINES)
    yield "", found


def _as_dict(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {key: _as_dict(each) for key, each in value}
    return [_as_dict(each) for each in value] if isinstance(value, list) else value


def _are_objects(found: object) -> bool:
    return type(found) is list and all(isinstance(each, _Pairs) for each in found)


def _of_stations(path: Path, found: Any) -> list[_Pairs]:
    """The objects of an array, or inside of an object: its only array of them, or one, or an array, for each station.

    An object without any is the row.
    """
    if not isinstance(found, _Pairs):
        if not _are_objects(found):
            raise SocialxError(path, f"its JSON is no array of objects ({str(_as_dict(found))[:40]!a})", LINES)
        return list(found)
    inside = dict(found)
    tables = [value for value in inside.values() if value and _are_objects(value)]
    if (len(tables) == 1 and len(inside) > 1) or (len(inside) == 1 and tables):
        return tables[0]
    if not tables and not all(isinstance(value, _Pairs) for value in inside.values()):
        return [found]
    rows: list[_Pairs] = []
    for key, value in inside.items():
        of_one = [value] if isinstance(value, _Pairs) else value
        if not _are_objects(of_one):
            what = f"an object of {counted(len(inside), 'key')} that holds no table of objects ({key[:40]!a})"
            raise SocialxError(path, what, LINES)
        rows += [each if KEY in dict(each) else _Pairs([(KEY, key), *each]) for each in of_one]
    return rows


def _opened(found: Any) -> Any:
    """The only table inside of objects around it; what these say beside it is left out."""
    while isinstance(found, _Pairs):
        if rows := _by_column(found):
            return rows
        tables = [value for _, value in found if _is_table(value)]
        of_one = len(found) == 1 and tables and isinstance(tables[0], _Pairs) and not isinstance(tables[0][0][1], list)
        if len(tables) != 1 or of_one:  # a reading for each time of one sensor
            break
        [found] = tables
    return found


def _rows(path: Path, found: object, above: dict[str, object]) -> Iterator[_Pairs]:
    """The rows that arrays and objects hold, each behind the cells of the objects around it."""
    if not isinstance(found, _Pairs):
        if not isinstance(found, list):
            raise SocialxError(path, f"its JSON is no array of objects ({str(found)[:40]!a})", LINES)
        for each in found:
            yield from _rows(path, each, above)
    elif _is_keyed(found):
        for key, value in found:
            name, inside = "time" if DATE.match(key) else KEY, value[0] if type(value) is list else value
            named = isinstance(inside, _Pairs) and any(each == name for each, _ in inside)
            behind = above if named else {**above, name: key}
            yield from _rows(path, value if isinstance(value, list) else _Pairs([("value", value)]), behind)
    else:
        beside = {**above, **{key: value for key, value in found if not isinstance(value, list)}}
        tables = [value for _, value in found if _is_table(value) and _has_time(value)]
        tables = tables if len(tables) == 1 else [rows for rows in [_by_column(found)] if rows]
        if tables:
            yield from _rows(path, tables[0], beside)
        elif _has_time(found) or [] not in [value for _, value in found]:
            yield _Pairs([*above.items(), *((f"{key} 2" if key in above else key, value) for key, value in found)])


def _is_table(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    if isinstance(value, _Pairs):
        return _is_keyed(value) or bool(_by_column(value))
    return all(isinstance(each, _Pairs) for each in value)


def _is_keyed(pairs: _Pairs) -> bool:
    """Whether an object holds a table or a row for each sensor, or what was read at each time."""
    inside = all(isinstance(value, _Pairs) or _is_table(value) for _, value in pairs)
    return inside or all(DATE.match(key) for key, _ in pairs)


def _has_time(value: object) -> bool:
    if isinstance(value, _Pairs):
        return any(DATE.match(key) or _has_time(cell) for key, cell in value)
    return bool(value and _has_time(value[0]) if isinstance(value, list) else TIME.match(str(value)))


def _by_column(pairs: _Pairs) -> list[_Pairs]:
    """The rows of an object whose arrays are columns, or that names the columns of its rows; none of another one."""
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
