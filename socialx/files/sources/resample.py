"""The output time axis: rows averaged to longer steps, and a row for each step.

T source rows, R axis rows, t rows in a block, N sensors, F features.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from socialx.core.errors import Argument, Message, SettingsError, SocialxError, counted
from socialx.core.progress import note
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.layout import UNKNOWN, Block, Readings, is_code
from socialx.files.store.quantities import LARGEST_SPEED, NOT_NEGATIVE, SPEED
from socialx.files.store.time_axis import Clock, as_timestamps, common_step, gap_times, odd_rows

Blocks = Generator[Block, None, None]
SHARE = 0.5  # of the readings of a step, below which the step has none
LOOKED = 50  # sensors that tell how far apart the rows of one are
BLOCK_BYTES = 1 << 24  # of rows without readings that are written at once
ROWS = 1000  # the first ones, that tell it; twice as many, and so on, where these have no two readings of a sensor


def resample_readings(readings: Readings, seconds: np.ndarray, request: ConvertOptions) -> tuple[Readings, np.ndarray]:
    """Return the readings averaged to ``request.resample`` seconds, and the new row times, int64.

    seconds: row times, int64 [T]. A step is labelled by its beginning. Speed is the flow-weighted mean where flow is
    present; other features are plain means. Flow counts are summed: the unit is unknown or matches the step; rates such
    as veh/h are averaged. A sensor needs half the usual rows, and a flow count with missing rows is scaled up. Raises
    SettingsError where rows are already as coarse.
    """
    step, features = request.resample or 0, (readings.feature, *readings.others)
    codes = {*request.codes(features), *readings.codes, *(() if readings.missing is None else (readings.missing,))}
    flow = {readings.feature: readings.units, **readings.others}.get("flow", UNKNOWN)
    sums = flow == UNKNOWN or request.units == ("veh/h" if step == 3600 else f"veh/{step // 60}min")
    blocks = average_blocks(readings.blocks, step, features, tuple(codes), request.data, sums=sums)
    return replace(readings, blocks=blocks), np.unique(seconds // step * step)


def average_blocks(
    blocks: Blocks, step_s: int, features: Sequence[str], codes: Sequence[float], where: Path, *, sums: bool = True
) -> Blocks:
    """Average time-ordered ``blocks``: yield blocks with a row per step of ``step_s`` seconds, counted from midnight.

    features: the names of the F features. codes: numbers for a missing observation. where: the source, for messages.
    sums: flows are vehicle counts per row, and are added up; otherwise rates, which are averaged.
    """
    seconds, values, rows_per_step, enough = np.empty(0, np.int64), None, 0.0, ROWS
    with closing(blocks):
        for block in blocks:
            new = block.speeds.reshape(len(block.seconds), -1, len(features)).astype(np.float64)
            new[is_code(new, features, codes)] = np.nan
            seconds = np.concatenate([seconds, block.seconds])
            values = new if values is None else np.concatenate([values, new])
            while not rows_per_step and len(seconds) >= enough:
                rows_per_step = _estimate_rows_per_step(seconds[:enough], values[:enough], step_s, where)
                enough *= 2
            if not rows_per_step:
                continue
            ready = int(np.searchsorted(seconds, seconds[-1] // step_s * step_s))
            if ready:
                yield _average_rows(seconds[:ready], values[:ready], step_s, features, rows_per_step, sums)
                seconds, values = seconds[ready:], values[ready:]
    if values is not None and len(values):
        rows_per_step = rows_per_step or _estimate_rows_per_step(seconds, values, step_s, where)
        if not rows_per_step:
            raise SettingsError(where, "each sensor has fewer than two readings", f"drop {Argument('resample')}")
        yield _average_rows(seconds, values, step_s, features, rows_per_step, sums)


def _estimate_rows_per_step(seconds: np.ndarray, values: np.ndarray, step_s: int, where: Path) -> float:
    """Return how many source rows a sensor has per step, from the median interval in the first rows, float64 [t,N,F].
    Returns 0 where no sensor has two observations yet. Raises SettingsError for rows as coarse as the step.
    """
    steps = []
    for sensor in range(min(LOOKED, values.shape[1])):
        intervals = np.diff(seconds[np.isfinite(values[:, sensor]).any(axis=1)])
        steps += [float(np.median(intervals))] if len(intervals) else []
    step = float(np.median(steps)) if steps else 0.0
    if step >= step_s:
        raise SettingsError(where, f"rows are {step / 60:g} min apart, no finer ones", f"drop {Argument('resample')}")
    if not step:
        return 0.0
    every = f"rows of about {step:g} s are averaged to {step_s // 60} min"
    note(Message(where, f"{every}: counts are sums, all else are means; a sensor needs half of its rows"))
    return step_s / step


def _average_rows(
    seconds: np.ndarray, values: np.ndarray, step_s: int, features: Sequence[str], rows_per_step: float, sums: bool
) -> Block:
    """Average rows, times int64 [t] and values float64 [t,N,F], to a row per step that has rows. rows_per_step: the
    usual rows of a sensor in a step; sums: as in ``average_blocks``.
    """
    steps = seconds // step_s
    begins = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))

    def total(part: np.ndarray) -> np.ndarray:
        return np.add.reduceat(part, begins, axis=0)

    observed = np.isfinite(values)
    numbers = np.where(observed, values, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = total(numbers) / total(observed)
        if "flow" in features:
            flow = features.index("flow")
            if SPEED in features:
                speed = features.index(SPEED)
                weight = np.where(observed[..., speed], numbers[..., flow], 0.0)
                weighted = total(weight * numbers[..., speed]) / total(weight)
                means[..., speed] = np.where(np.isfinite(weighted), weighted, means[..., speed])
            rows = rows_per_step if rows_per_step % 1 else np.maximum(rows_per_step, total(observed[..., flow]))
            means[..., flow] *= rows if sums else 1
    means[total(observed) < SHARE * rows_per_step] = np.nan
    shape = (len(begins), -1) if len(features) == 1 else means.shape
    return Block(steps[begins] * step_s, means.astype(np.float32).reshape(shape))


def impossible(values: np.ndarray, feature: str, unit: str) -> np.ndarray:
    """Return the mask of numbers that no road has, bool in the shape of ``values``: below 0, or too fast for a unit."""
    highest = LARGEST_SPEED.get(unit, np.inf) if feature == SPEED else np.inf
    return (values < (0 if feature in NOT_NEGATIVE else -np.inf)) | (values > highest)


def fill_gaps(readings: Readings, seconds: np.ndarray, request: ConvertOptions) -> tuple[Readings, tuple[Message, ...]]:
    """Return the readings on a gap-free axis, and a note about the added rows.

    seconds: row times, int64 [T]; a decreasing time is refused by the writer. The step is the user's, else the common
    step. Raises SocialxError where more than half the rows would be empty and the user gave no step.
    """
    step, where = request.resample or request.step_s or common_step(seconds), request.data
    if not step or (np.diff(seconds) <= 0).any():
        return readings, ()
    freq = Argument("freq", f"{step // 60}min")
    if request.step_s and len(odd := odd_rows(seconds, step)):
        pair = " and ".join(as_timestamps(seconds[odd[0] : odd[0] + 2]).astype(str))
        remedy = f"drop {freq}, or average finer rows with {Argument('resample', f'{step // 60}min')}"
        raise SettingsError(where, f"the rows at {pair} are no multiple of {step // 60} min apart", remedy)
    lacking = gap_times(seconds, step, readings.timezone)
    if not len(lacking):
        return readings, ()
    first, last = map(Clock(readings.timezone, readings.local_zone).text, lacking[[0, -1]].tolist())
    if len(lacking) > len(seconds) and not request.step_s:
        every = f"{len(lacking) + len(seconds):,} steps of {step // 60} min from the first row to the last one"
        remedy = f"check the dates, or write such rows without readings with {freq}"
        raise SocialxError(where, f"{len(lacking):,} of the {every} have no row, such as {first}", remedy)
    axis = np.sort(np.concatenate([seconds, lacking]))
    told = f"{counted(len(lacking), 'missing row is', 'missing rows are')} written without readings"
    lacks = Message(where, f"{told} ({first}{f' .. {last}' if len(lacking) > 1 else ''})")
    return replace(readings, blocks=_fill_rows(readings.blocks, axis)), (lacks,)


def _fill_rows(blocks: Blocks, axis: np.ndarray) -> Blocks:
    """Yield the blocks on the full axis int64 [R], with NaN for missing rows."""
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
