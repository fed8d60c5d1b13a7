"""Objects of JSON as rows of cells: an object in each line, an array of them, or one for each station.

An object in an object is no cell: such keys are told apart and left out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from socialx.errors import SocialxError, counted
from socialx.files.file_head import LINE_BYTES, UNREADABLE, unpacked

WHOLE_BYTES = 1 << 28  # of a text that is read as a whole
KEY = "id"  # of the column that a table with an object for each station gets
LINES = "write each object in a line of its own, as jq -c '.[]' FILE.json > FILE.jsonl does"
NESTED = "{...}"  # stands for an object in a cell


class JsonNumber(str):
    """A number of JSON as it is written, whose sign of decimals is a point whatever the texts have."""

    __slots__ = ()


class JsonObject(dict[str, Any]):
    """An object of JSON.  pairs: its keys and values, the keys as often as they stand there."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        """Take what json found."""
        super().__init__(pairs)
        self.pairs = pairs


def _parsed(where: object, place: str, text: str, decimal: str) -> Any:
    """What a text of JSON holds; refuses a text that is none."""

    def number(found: str) -> JsonNumber:
        return JsonNumber(found.replace(".", decimal))

    try:
        return json.loads(text, object_pairs_hook=JsonObject, parse_float=number, parse_int=number, parse_constant=str)
    except (ValueError, RecursionError):
        found = f"{place} is no object of JSON ({text[:40]!a})"
        raise SocialxError(where, found, "write one object in each line, or one array of objects") from None


def _cells(where: object, place: str, found: JsonObject) -> dict[str, str]:
    """The cells of an object by their keys; NESTED stands for an object or an array in it."""
    cells: dict[str, str] = {}
    for key, value in found.pairs:
        if key in cells:
            raise SocialxError(where, f"{place} has the key {key[:40]!a} twice", "remove one of them")
        cell: Any = "" if value is None else NESTED if isinstance(value, list | dict) else value
        cell = str(cell).lower() if isinstance(cell, bool) else cell
        cell = cell if isinstance(cell, JsonNumber) or cell == NESTED else cell.strip()
        if cell != NESTED and not (key + cell).isprintable():
            raise SocialxError(where, f"{place}, {key[:40]!a} is no plain text", "write numbers and texts of one line")
        cells[key] = cell
    return cells


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """The lines of a text that are not blank, with their numbers."""
    try:
        with unpacked(path) as stream:
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
    for place, found in objects_in(path, _lines(path, encoding), decimal):
        yield place, _cells(path, place, found)


def objects_in(path: Path, lines: Iterator[tuple[int, str]], decimal: str = ".") -> Iterator[tuple[str, JsonObject]]:
    """The objects of numbered lines that are not blank, each with its place for a message."""
    first = list(islice(lines, 2))
    alone = len(first) == 1
    if first and _is_row(first[0][1], alone=alone) and (alone or first[1][1].startswith("{")):
        for number, text in (*first, *lines):
            place = f"line {number}"
            found = _parsed(path, place, text, decimal)
            if not isinstance(found, JsonObject):
                raise SocialxError(
                    path, f"{place} is no object of JSON ({text[:40]!a})", "write one object in each line"
                )
            yield place, found
        return
    text = "\n".join(line for _, line in first)
    for _, line in lines:
        text += f"\n{line}"
        if len(text) > WHOLE_BYTES:
            raise SocialxError(path, f"more than {WHOLE_BYTES >> 20} MiB of JSON that is not in lines", LINES)
    found = _parsed(path, "it", text, decimal)
    if isinstance(found, JsonObject):
        found = _of_stations(path, found)
    if not found or not _are_objects(found):
        raise SocialxError(path, f"its JSON is no array of objects ({text[:40]!a})", LINES)
    for number, each in enumerate(found, 1):
        yield f"object {number}", each


def _is_row(line: str, *, alone: bool) -> bool:
    """Whether a line is an object that is a row; one alone in its text may hold a table, or an object per station."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not alone or not isinstance(found, dict):
        return isinstance(found, dict)
    table = any(isinstance(value, list) and value and isinstance(value[0], dict) for value in found.values())
    return not table and not all(isinstance(value, dict) for value in found.values())


def _are_objects(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(each, JsonObject) for each in found)


def _of_stations(path: Path, found: JsonObject) -> list[JsonObject]:
    """The objects inside of one: its only array of them, or one object, or an array of them, for each station."""
    tables = [value for _, value in found.pairs if value and _are_objects(value)]
    if (len(tables) == 1 and len(found.pairs) > 1) or (len(found.pairs) == 1 and tables):
        return tables[0]
    rows: list[JsonObject] = []
    for key, value in found.pairs:
        of_one = [value] if isinstance(value, JsonObject) else value
        if not _are_objects(of_one):
            what = f"an object of {counted(len(found.pairs), 'key')} that holds no table of objects ({key[:40]!a})"
            raise SocialxError(path, what, LINES)
        rows += [each if KEY in each else JsonObject([(KEY, key), *each.pairs]) for each in of_one]
    return rows
