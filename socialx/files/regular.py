"""The axis of times without gaps: a row for each step, without readings where a source has none.

T rows of the source, R rows of the axis, t rows of one block, N sensors.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace

import numpy as np

from socialx.errors import Argument, Message, SettingsError, SocialxError, counted
from socialx.files.convert_options import Request
from socialx.files.hdf5_layout import Block, Readings
from socialx.files.time_axis import as_timestamps, common_step, irregular, lacking_times

BLOCK_BYTES = 1 << 24  # of rows without readings that are written at once


def regular(readings: Readings, seconds: np.ndarray, request: Request) -> tuple[Readings, tuple[Message, ...]]:
    """The readings on an axis without gaps, and a note on the rows that the source lacks.

    seconds: the times of its rows, int64 [T]; those that go back are refused where they are read.  The step is their
    common one, or the one that the user gives.  Where more than half of the rows would be without readings, the user is
    asked.
    """
    step, where = request.resample or request.step_s or common_step(seconds), request.data
    if not step or (np.diff(seconds) <= 0).any():
        return readings, ()
    freq = Argument("freq", f"{step // 60}min")
    if request.step_s and len(odd := irregular(seconds, step)):
        pair = " and ".join(as_timestamps(seconds[odd[0] : odd[0] + 2]).astype(str))
        remedy = f"drop it, or {Argument('resample', f'{step // 60}min')} averages finer rows"
        raise SettingsError(freq, f"{where} has rows at {pair}, which are no multiple of it apart", remedy)
    lacking = lacking_times(seconds, step, readings.timezone)
    if not len(lacking):
        return readings, ()
    first, last = as_timestamps(lacking[[0, -1]]).astype(str)
    if len(lacking) > len(seconds) and not request.step_s:
        every = f"{len(lacking) + len(seconds):,} steps of {step // 60} min from its first row to its last one"
        remedy = f"check its dates; {freq} writes them as rows without readings"
        raise SocialxError(where, f"{len(lacking):,} of the {every} have no row, such as {first}", remedy)
    axis = np.sort(np.concatenate([seconds, lacking]))
    told = f"{counted(len(lacking), 'row that it lacks is', 'rows that it lacks are')} written without readings"
    note = Message(where, f"{told} ({first}{f' .. {last}' if len(lacking) > 1 else ''})")
    return replace(readings, blocks=_filled(readings.blocks, axis)), (note,)


def _filled(blocks: Generator[Block, None, None], axis: np.ndarray) -> Generator[Block, None, None]:
    """The blocks with all rows of an axis int64 [R], which has those of the blocks; NaN where there is no reading."""
    begin = 0
    with closing(blocks):
        for block in blocks:
            rows = np.searchsorted(axis, block.seconds)
            most = max(1, BLOCK_BYTES // max(1, block.speeds[:1].nbytes))
            while begin <= rows[-1]:
                end = min(begin + most, int(rows[-1]) + 1)
                here = (begin <= rows) & (rows < end)
                values = np.full((end - begin, *block.speeds.shape[1:]), np.nan, np.float32)
                values[rows[here] - begin] = block.speeds[here]
                yield Block(axis[begin:end], values)
                begin = end
