"""The output time axis: rows averaged to longer steps, and a row for each step.

T source rows, R axis rows, t rows in a block, N sensors, F features.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from socialx.core.errors import Argument, Message, SettingsError, SocialxError, counted
from socialx.core.progress import note
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.layout import UNKNOWN, Block, Readings, impossible, is_code
from socialx.files.store.quantities import SPEED
from socialx.files.store.time_axis import Clock, as_timestamps, common_step, gap_times, odd_rows

Blocks = Generator[Block, None, None]
SHARE = 0.5  # of the rows of a step, below which the step has no reading
GROUP_S = 7200  # seconds, at least, and steps over which the distance of a sensor's rows is looked at
GROUP_STEPS = 3
ALIKE = 0.2  # by which distances of rows may differ and still are one
SUPPORT = 3  # equal distances that prove one
BLOCK_BYTES = 1 << 24  # of rows that are averaged, or written without readings, at once
ROWS = 1000  # that are looked at before the first step; twice as many, and so on, where these prove no distance
PER = re.compile(r"/\s*([0-9.]*)\s*(sec|s|min|hours?|hr?|std)\b|\b(vph)\b", re.IGNORECASE)


def resample_readings(readings: Readings, seconds: np.ndarray, request: ConvertOptions) -> tuple[Readings, np.ndarray]:
    """Return the readings averaged to ``request.resample`` seconds, and the new row times, int64.

    seconds: row times, int64 [T]. A step is labelled by its beginning. Speed is the flow-weighted mean where flow is
    present. A flow is a count, and summed, where its unit is unknown, names no time, or names the distance of the rows;
    a flow per another time, such as veh/h, is a rate. All else is a mean. Raises SettingsError for rows as coarse.
    """
    step, units = request.resample or 0, dict(readings.units)
    codes = {*request.codes(tuple(units)), *readings.codes, *(() if readings.missing is None else (readings.missing,))}
    flow = units.get("flow", UNKNOWN)
    per = seconds_in(flow)
    sums = per is None or (per == common_step(seconds) and per != 3600)
    blocks = average_blocks(readings.blocks, step, {**units}, tuple(codes), request.data, sums=sums)
    if sums and per:
        units["flow"] = f"{PER.split(flow)[0]}/{'h' if step == 3600 else f'{step // 60}min'}"
    return replace(readings, blocks=blocks, units=units), np.unique(seconds // step * step)


def seconds_in(unit: str) -> float | None:
    """Return the seconds to which a unit refers, 3600 for veh/h and 300 for veh/5min; None where it names no time."""
    match = PER.search(unit)
    if match is None:
        return None
    word = (match[2] or "h").lower()
    return float(match[1] or 1) * (1 if word.startswith("se") or word == "s" else 60 if word == "min" else 3600)


def average_blocks(
    blocks: Blocks, step_s: int, units: Mapping[str, str], codes: Sequence[float], where: Path, *, sums: bool = True
) -> Blocks:
    """Average time-ordered ``blocks``: yield blocks with a row per step of ``step_s`` seconds, counted from midnight.

    units: of the F features, by name. codes: numbers for no reading; impossible ones are none either. where: the
    source, for messages. sums: flows are vehicle counts per row, and are added up; otherwise rates. A step needs half
    of the rows that the sensor has at that time, and a count with missing rows is scaled up.
    """
    features, group = tuple(units), step_s * max(GROUP_STEPS, -(-GROUP_S // step_s))
    seconds, values = np.empty(0, np.int64), np.empty(0)
    steps, odd, enough = _Steps(step_s, features, where, sums=sums), 0, ROWS
    with closing(blocks):
        for block in _pieces(blocks):
            new = block.values.astype(np.float64)
            new[is_code(new, features, codes)] = np.nan
            for index, feature in enumerate(features):
                wrong = impossible(new[..., index], feature, units[feature])
                odd += int(np.count_nonzero(wrong))
                new[..., index][wrong] = np.nan
            seconds = np.concatenate([seconds, block.seconds])
            values = np.concatenate([values, new]) if len(values) else new
            while not steps.ready and len(seconds) >= enough:
                steps.look(seconds[:enough], values[:enough])
                enough *= 2
            ready = int(np.searchsorted(seconds, seconds[-1] // group * group)) if steps.ready else 0
            if ready:
                yield from steps.average(seconds[:ready], values[:ready], group)
                seconds, values = seconds[ready:], values[ready:]
    if len(values):
        if not steps.ready:
            steps.look(seconds, values)
        if not steps.ready:
            problem = "each sensor has fewer than two readings"
            raise SettingsError("resample.few-readings", where, problem, f"drop {Argument('resample')}")
        yield from steps.average(seconds, values, group)
    if odd:
        many = counted(odd, "number is", "numbers are")
        note(Message("resample.impossible", where, f"{many} impossible, and left out of sums and means"))


def _pieces(blocks: Blocks) -> Blocks:
    for block in blocks:
        most = max(1, BLOCK_BYTES // max(1, block.values[:1].nbytes))
        for begin in range(0, len(block.seconds), most):
            yield Block(block.seconds[begin : begin + most], block.values[begin : begin + most])


class _Steps:
    """How far apart each sensor's rows are, as rows pass by, and the averages by step.

    usual: seconds, float64 [N]; infinite while unproved. last: each sensor's latest reading time, float64 [N].
    """

    def __init__(self, step_s: int, features: tuple[str, ...], where: Path, *, sums: bool) -> None:
        self.step, self.features, self.where, self.sums, self.ready = step_s, features, where, sums, False
        self.usual, self.last = np.empty(0), np.empty(0)

    def look(self, seconds: np.ndarray, values: np.ndarray) -> None:
        """Learn the distances in the first rows, times [t] and values [t,N,F]; raise where no sensor has finer ones."""
        seen = np.isfinite(values).any(axis=2)
        self.last = np.full(values.shape[1], -np.inf)
        distances = self._distances(seconds, seen)
        self.last = np.full(values.shape[1], -np.inf)
        self.usual = _usual(distances, np.full(values.shape[1], np.inf), 1)
        usual = self.usual[np.isfinite(self.usual)]
        if not len(usual):
            return
        step = float(np.median(usual))
        if usual.min() >= self.step:
            problem = f"rows are {step / 60:g} min apart, no finer ones"
            raise SettingsError("resample.no-finer", self.where, problem, f"drop {Argument('resample')}")
        self.usual[~np.isfinite(self.usual)] = step
        self.ready = True
        every = f"rows of about {step:g} s are averaged to {self.step // 60} min"
        rule = f"{every}: counts are sums, others means; a sensor needs half its rows"
        note(Message("resample.rule", self.where, rule))

    def average(self, seconds: np.ndarray, values: np.ndarray, group_s: int) -> Blocks:
        """Yield a block for each group of steps with rows, from times [t] and values [t,N,F]."""
        groups = seconds // group_s
        edges = [*np.flatnonzero(np.diff(groups, prepend=groups[0] - 1)).tolist(), len(groups)]
        for begin, end in pairwise(edges):
            part = values[begin:end]
            distances = self._distances(seconds[begin:end], np.isfinite(part).any(axis=2))
            self.usual = _usual(distances, self.usual, SUPPORT)
            yield self._average_rows(seconds[begin:end], part)

    def _average_rows(self, seconds: np.ndarray, values: np.ndarray) -> Block:
        """Average rows, times int64 [t] and values float64 [t,N,F], to a row per step that has rows."""
        steps = seconds // self.step
        begins = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
        rows = self.step / self.usual  # of each sensor in a step
        near = np.rint(rows)
        rows = np.where(np.abs(rows - near) < 0.02 * near, near, rows)  # times of a clock that runs freely
        means, count = grouped_means(values, begins, 0, self.features)
        if self.sums and "flow" in self.features:
            flow = self.features.index("flow")
            whole = np.where(rows % 1, rows, np.maximum(rows, count[..., flow]))
            means[..., flow] *= np.where(rows < 1, np.nan, whole)  # a count of longer than a step
        means[count < SHARE * rows[:, np.newaxis]] = np.nan
        return Block(steps[begins] * self.step, means.astype(np.float32))

    def _distances(self, seconds: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Return the seconds since each sensor's reading before, float64 [t,N], infinite where there is none."""
        times = np.where(seen, seconds[:, np.newaxis], -np.inf)
        latest = np.maximum.accumulate(np.concatenate([self.last[np.newaxis], times]))
        self.last = latest[-1]
        return np.where(seen, seconds[:, np.newaxis] - latest[:-1], np.inf)


def _usual(distances: np.ndarray, before: np.ndarray, support: int) -> np.ndarray:
    """Return the usual one of the distances [t,N] of each sensor, else the one ``before``, float64 [N].

    A missing row makes a distance longer: the usual one is among the shortest, and there ``support`` times.
    """
    count = np.isfinite(distances).sum(axis=0)
    short = np.take_along_axis(np.sort(distances, axis=0), (count // 4)[np.newaxis].clip(max=len(distances) - 1), 0)[0]
    short = np.where(np.isfinite(short), short, 0.0)
    alike = np.abs(distances - short) <= ALIKE * short
    many = alike.sum(axis=0)
    mean = np.where(alike, distances, 0.0).sum(axis=0) / np.maximum(many, 1)
    return np.where((many >= support) & (mean > 0), mean, before)


def grouped_means(
    values: np.ndarray, begins: np.ndarray, axis: int, features: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return group means along an axis of values float64 [t,N,F], and how many readings each has.

    begins: the first index per group. Speeds are weighted by the flows in the same readings, where known.
    """
    observed = np.isfinite(values)
    numbers = np.where(observed, values, 0.0)
    count = np.add.reduceat(observed, begins, axis, dtype=np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.add.reduceat(numbers, begins, axis) / count
        if "flow" in features and SPEED in features:
            flow, speed = features.index("flow"), features.index(SPEED)
            weight = np.where(observed[..., speed], numbers[..., flow], 0.0)
            weighted = np.add.reduceat(weight * numbers[..., speed], begins, axis)
            weighted /= np.add.reduceat(weight, begins, axis)
            means[..., speed] = np.where(np.isfinite(weighted), weighted, means[..., speed])
    return means, count


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
        raise SettingsError("rows.odd", where, f"the rows at {pair} are no multiple of {step // 60} min apart", remedy)
    lacking = gap_times(seconds, step, readings.timezone)
    if not len(lacking):
        return readings, ()
    first, last = map(Clock(readings.timezone, readings.local_zone).text, lacking[[0, -1]].tolist())
    if len(lacking) > len(seconds) and not request.step_s:
        every = f"{len(lacking) + len(seconds):,} steps of {step // 60} min from the first row to the last one"
        remedy = f"check the dates, or write such rows without readings with {freq}"
        raise SocialxError("rows.gaps", where, f"{len(lacking):,} of the {every} have no row, such as {first}", remedy)
    axis = np.sort(np.concatenate([seconds, lacking]))
    told = f"{counted(len(lacking), 'missing row is', 'missing rows are')} written without readings"
    lacks = Message("rows.gaps-filled", where, f"{told} ({first}{f' .. {last}' if len(lacking) > 1 else ''})")
    return replace(readings, blocks=_fill_rows(readings.blocks, axis)), (lacks,)


def _fill_rows(blocks: Blocks, axis: np.ndarray) -> Blocks:
    """Yield the blocks on the full axis int64 [R], with NaN for missing rows."""
    begin = 0
    with closing(blocks):
        for block in blocks:
            rows = np.searchsorted(axis, block.seconds)
            most = max(1, BLOCK_BYTES // max(1, block.values[:1].nbytes))
            while begin <= rows[-1]:
                end = min(begin + most, int(rows[-1]) + 1)
                here = (begin <= rows) & (rows < end)
                values = np.full((end - begin, *block.values.shape[1:]), np.nan, np.float32)
                values[rows[here] - begin] = block.values[here]
                yield Block(axis[begin:end], values)
                begin = end
