# socialx/files/sources/json_lines.py
"""JSON lines: one object for each row, {"time": "2024-01-31 00:05:00", "speeds": {"A1": 51.5, "A2": null}}.

N sensors, t rows of one block.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from socialx.core.errors import SocialxError
from socialx.files.sources.contents import Contents, Format
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables.time_texts import COPIED_TEXT
from socialx.files.store.head import FileHead
from socialx.files.store.layout import Block

LINE_BYTES, BLOCK_ROWS = 1 << 20, 1024
ADVICE = 'write each line as {"time": "2024-01-31 00:05:00", "speeds": {"A1": 51.5, "A2": null}}'


def _read(request: ConvertOptions) -> Contents:
    path = request.data
    ids = tuple(next(_rows(path))[1])
    return Contents(ids, len(ids), _blocks(path, ids))


def _recognise(head: FileHead) -> str | None:
    return "objects with time and speeds, a line each" if head.lines and _row(head.lines[0][1]) else None


def _row(line: str) -> tuple[str, dict[str, float | None]] | None:
    """Return the time and the speeds in a line; None for any other object."""
    try:
        row = json.loads(line)
        time, speeds = row["time"], row["speeds"]
        fits = bool(speeds) and all(map(_is_speed, speeds.values()))
        return (time, speeds) if fits and COPIED_TEXT.fullmatch(time) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _rows(path: Path) -> Iterator[tuple[str, dict[str, float | None]]]:
    """Yield the time and the speeds in each line.  Raises SocialxError for any other object."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES), b""), 1):
            row = _row(line.decode("utf-8", "replace"))
            if row is None:
                raise SocialxError(path, f"line {number} is {line[:60]!a}", ADVICE)
            yield row


def _is_speed(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) < 1e9)  # neither NaN nor infinite


def _seconds(times: list[str]) -> np.ndarray:
    return np.array(times, "datetime64[s]").astype(np.int64)


def _blocks(path: Path, ids: tuple[str, ...]) -> Generator[Block, None, None]:
    times: list[str] = []
    rows: list[list[float]] = []
    for number, (time, speeds) in enumerate(_rows(path), 1):
        if speeds.keys() != set(ids):
            raise SocialxError(path, f"line {number} has other sensors than line 1", "give all lines the same sensors")
        times.append(time)
        rows.append([np.nan if speeds[each] is None else float(speeds[each] or 0) for each in ids])
        if len(rows) == BLOCK_ROWS:
            yield Block(_seconds(times), np.array(rows, np.float32))
            times, rows = [], []
    if rows:
        yield Block(_seconds(times), np.array(rows, np.float32))


FORMATS = (Format("json-lines", "JSON lines with time and speeds", _recognise, _read, takes=frozenset()),)
