"""Place table observations on a grid: a row per time, a column per sensor.

The times and the sensors come from a first pass.  T times, N sensors, F features, t rows per piece.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np

from socialx.core.errors import Argument, Message, SocialxError, counted
from socialx.core.progress import note
from socialx.files.sources.tables.columns import BETWEEN
from socialx.files.sources.tables.time_texts import UNKNOWN
from socialx.files.sources.tables.times import Table, refuse_times, row_sensors, row_times
from socialx.files.store.ids import match_key
from socialx.files.store.layout import Block
from socialx.files.store.time_axis import as_text

MEMORY_BYTES = 1 << 28  # of observations; larger grids are kept in a file
BLOCK_BYTES = 1 << 24
Cells = tuple[np.ndarray, np.ndarray, np.ndarray]  # seconds [t], sensor number [t], observations [t,F]


def table_blocks(table: Table, columns: list[int]) -> Generator[Block, None, None]:
    """Yield the observations in a table as blocks with a row per time and a column per sensor. columns: the quantity
    columns, numbered as in the first sheet; empty for a table with a column per sensor.
    """
    return _wide_blocks(table) if table.in_turn and not table.sheets[0].sensors else _grid_blocks(table, columns)


def _wide_blocks(table: Table) -> Generator[Block, None, None]:
    """Yield times [t] and observations [t,N] in tables with a column per sensor that follow one another in time;
    [t,1,F] for one sensor with F quantities.
    """
    for sheet in table.sheets:
        with closing(sheet.rows(sheet.times, sheet.values)) as rows:
            for piece in rows:
                texts = row_times(sheet, piece)
                seconds = table.times.seconds(texts)
                refuse_times(sheet, piece, texts, seconds == UNKNOWN)
                shape = (len(seconds), 1, -1) if sheet.sensor and len(sheet.values) > 1 else piece.numbers.shape
                yield Block(seconds, piece.numbers.reshape(shape))


def _cells(table: Table, columns: list[int]) -> Iterator[Cells]:
    """Yield times [t], sensor numbers [t] and observations [t,F] for a table with a row per observation, or for joined
    tables. columns: the quantity columns, numbered as in the first sheet.
    """
    index = {name: number for number, name in enumerate(table.ids)}
    keys = {match_key(name): number for number, name in enumerate(table.ids)}
    for sheet in table.sheets:
        if not sheet.sensors:
            sensors = np.array([keys[match_key(name)] for name in sheet.ids()], np.int64)
            for block in _wide_blocks(replace(table, sheets=(sheet,), in_turn=True)):
                numbers = np.tile(sensors, len(block.seconds))
                yield block.seconds.repeat(len(sensors)), numbers, block.speeds.reshape(len(numbers), -1)
            continue
        values = tuple(sheet.values[table.values.index(column)] for column in columns)
        with closing(sheet.rows((*sheet.times, *sheet.key_columns), values)) as rows:
            for piece in rows:
                texts, names = row_times(sheet, piece), row_sensors(sheet, piece)
                seconds = table.times.seconds(texts)
                refuse_times(sheet, piece, texts, seconds == UNKNOWN)
                yield seconds, np.array([index[name] for name in names.words], np.int64)[names.codes], piece.numbers


def _grid_blocks(table: Table, columns: list[int]) -> Generator[Block, None, None]:
    """Yield blocks with a row per time, [t,N] or, for F > 1 ``columns`` (quantities), [t,N,F]; NaN without a table row.
    Rows that repeat time, sensor and values count once; other values for a time and sensor raise SocialxError.
    """
    moments, features, again = table.moments, max(1, len(columns)), 0
    count = len(moments) * len(table.ids)
    with _scratch_array((count, features), np.float32) as values, _scratch_array((count,), bool) as taken:
        values[:] = np.nan
        for seconds, numbers, readings in _cells(table, columns):
            cells = np.searchsorted(moments, seconds) * len(table.ids) + numbers
            new_cells, first = np.unique(cells, return_index=True)
            first = first[~taken[new_cells]]
            values[cells[first]] = readings[first]
            taken[new_cells] = True
            if len(first) < len(cells):
                stored = values[cells]
                other = ((stored != readings) & ~(np.isnan(stored) & np.isnan(readings))).any(axis=1)
                _refuse_two(table, other, seconds, numbers, stored, readings)
                again += len(cells) - len(first)
        if again:
            noun = "observation repeats" if table.joined else "row repeats"
            text = counted(again, noun, noun.replace(" repeats", "s repeat"))
            note(Message(table.sheets[0].path, f"{text} an earlier one, which is kept"))
        shape = (len(moments), len(table.ids), features)
        grid = values.reshape(shape[: 3 if features > 1 else 2])
        step = max(1, BLOCK_BYTES // (4 * count // len(moments)))
        for begin in range(0, len(moments), step):
            yield Block(moments[begin : begin + step], np.array(grid[begin : begin + step]))


@contextmanager
def _scratch_array(shape: tuple[int, ...], kind: type) -> Iterator[np.ndarray]:
    """Yield an array of zeros with dtype ``kind``, in memory or, if large, in a temporary file."""
    if np.prod(shape) * np.dtype(kind).itemsize <= MEMORY_BYTES:
        yield np.zeros(shape, kind)
        return
    with tempfile.TemporaryFile() as file:
        yield np.memmap(file, kind, "w+", shape=shape)


def _refuse_two(
    table: Table, other: np.ndarray, seconds: np.ndarray, numbers: np.ndarray, old: np.ndarray, new: np.ndarray
) -> None:
    """Raise for the first row marked in ``other``, bool [t], which repeats a time and sensor with other values.
    seconds, numbers: times and sensor numbers [t]. old, new: the observations [t,F] stored before and in these rows.
    """
    if not other.any():
        return
    row = int(other.argmax())
    when, column = as_text(int(seconds[row])), (old[row] != new[row]).argmax()
    vdid = table.ids[numbers[row]].replace(BETWEEN, ", lane ")
    pair = f"({old[row, column]:g}, {new[row, column]:g})"
    if (step := table.times.step) is not None:
        many = counted(int(other.sum()), "row comes", "rows come")
        rounded = f"to the time of another row when rounded to {step // 60} min"
        problem = f"{many} {rounded}, first of {vdid} at {when} {pair}"
        either = f"{Argument('resample', f'{2 * step // 60}min')} averages the rows of longer steps"
        raise SocialxError(table.sheets[0].path, problem, f"{either}, in place of {Argument('round_times', True)}")
    raise SocialxError(table.sheets[0].path, f"{vdid} has two observations at {when} {pair}", "remove one of them")
