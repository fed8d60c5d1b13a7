"""Detect the repeated hour at the end of daylight saving time in wall times, and write times in UTC.

T rows.  A repeated wall time means two moments: ``fold`` 0 is Python's name for the first moment, 1 for the second.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np

from socialx.core.errors import Argument, Message, Remedy, SettingsError, SocialxError
from socialx.core.progress import note
from socialx.data.calendar import DAY_S, shifts
from socialx.files.store.layout import Block, is_reading
from socialx.files.store.time_axis import JITTER_S, as_text, common_step, is_skipped, known_zone, skipped_hour

SORT = "sort the rows and remove repeated ones"
REWRITE = "write its times in UTC"
HOUR_S, SHIFTS_S, NIGHT_S = 3600, (1800, 3600), 21600  # of clocks in autumn, from 11 at night to 5


def goes_back(seconds: np.ndarray) -> bool:
    """Return whether any of the row times int64 [T] is equal to or before the time in the row above."""
    return bool((np.diff(seconds) <= 0).any())


def in_utc(wall: np.ndarray, name: str, where: Path | str, remedy: Remedy = REWRITE) -> tuple[np.ndarray, Message]:
    """Convert ``wall``, times int64 [T] in the zone ``name``, to UTC, int64 [T], where an hour may come twice; return a
    note for the user too. The clock may go back only where the zone demands, with rows one step apart in UTC. Raises
    SocialxError, which names the file ``where``, for times that go back elsewhere, for a time skipped by the zone, and
    for a repeated hour that the file holds once, where neighbouring rows do not tell whether as first or second hour.
    """
    zone, step = known_zone(name), common_step(wall)
    if zone is None:
        text = f"{Argument('timezone', name)} is missing from the time zone data of this machine"
        raise SettingsError("clock.zone-data", "", text, "install the package tzdata")
    first, second = (wall - shifts(zone, wall, fold) for fold in (0, 1))

    def times(*rows: int) -> str:
        return ", ".join(as_text(int(wall[row])) for row in rows)

    if (skipped := second < first).any():
        problem = f"a row has the time {times(int(skipped.argmax()))}, which the start of daylight saving time skips"
        raise SocialxError("clock.changes", where, f"{problem} in {name}", f"say the right {Argument('timezone')}")
    utc, returns = first.copy(), []
    for begin, end in _runs(wall, second > first):
        backs = begin + 1 + np.flatnonzero(np.diff(wall[begin:end]) <= 0)
        if len(backs) == 0:
            before = begin > 0 and _one_step(first[begin] - utc[begin - 1], step)
            after = end < len(wall) and _one_step(first[end] - second[end - 1], step)
            if before == after:
                problem = f"a row has the time {times(begin)} once in the file, but twice in {name}"
                raise SocialxError("clock.hour-once", where, problem, remedy)
            utc[begin:end] = second[begin:end] if after else first[begin:end]
        else:
            back = int(backs[0])
            if len(backs) > 1 or not _one_step(second[back] - first[back - 1], step):
                row = int(backs[-1])
                problem = f"rows next to each other ({times(row - 1, row)}) go back where {name} does"
                problem = f"{problem}, but are not {step} s apart in UTC"
                raise SocialxError("clock.steps", where, problem, f"{SORT}, or {REWRITE}")
            utc[back:end] = second[back:end]
            returns.append(f"{times(back - 1)}, then {times(back)}")
    if (wrong := np.diff(utc) <= 0).any():
        row = int(wrong.argmax())
        problem = f"rows next to each other ({times(row, row + 1)}) are not in order of time"
        remedy = f"{SORT}, or say the right {Argument('timezone')}"
        raise SocialxError("clock.order", where, f"{problem}, also with the hours that come twice in {name}", remedy)
    text = f"times come twice at the end of daylight saving time in {name}, so all times are written in UTC"
    return utc, Message("clock.written-in-utc", where, text, "", returns)


def note_skipped(
    blocks: Generator[Block, None, None], where: Path | str, timezone: str, missing: float | None
) -> Generator[Block, None, None]:
    """Yield the blocks unchanged; then tell the user in a note how many rows have observations at wall times that the
    clock change in ``timezone`` skips. where: the file. missing: the value of a missing observation, next to NaN.
    """
    rows, first = 0, ""
    with closing(blocks):
        for block in blocks:
            skipped = is_skipped(block.seconds, timezone)
            if skipped.any():
                read = is_reading(block.values[skipped], missing).any(axis=(1, 2))
                rows += int(read.sum())
                first = first or "".join(map(as_text, block.seconds[skipped][read][:1].tolist()))
            yield block
    if rows:
        note(Message("clock.skipped-left-out", where, *skipped_hour(rows, first, timezone)))


def repeated_hour(seconds: np.ndarray, where: Path | str, remedy: Remedy = REWRITE) -> tuple[int, SocialxError] | None:
    """Return the row, from 0, where wall times int64 [T] first go back, and the error to raise, if they go back by an
    hour or half of one at night, as a clock does in autumn; else ``None``. The error names ``where`` and ``remedy``.
    """
    backs = np.flatnonzero(np.diff(seconds) <= 0) + 1
    if len(backs) and (back := int(backs[0])) > 1:
        step, change = np.diff(seconds[back - 2 : back + 1]).tolist()
        if step - change in SHIFTS_S and (seconds[back] + HOUR_S) % DAY_S < NIGHT_S:
            pair = ", ".join(as_text(int(second)) for second in seconds[back - 1 : back + 1])
            problem = f"rows {back} and {back + 1} ({pair}) look like the hour that comes twice"
            return back, SocialxError("clock.twice", where, f"{problem} at the end of daylight saving time", remedy)
    return None


def _runs(wall: np.ndarray, twice: np.ndarray) -> list[tuple[int, int]]:
    """Return (first row, end) per run of ambiguous rows ``twice``, bool [T], split where ``wall`` [T] jumps a day."""
    far = np.diff(wall, prepend=wall[:1]) > DAY_S
    edges = [*np.flatnonzero(np.diff(twice, prepend=False) | far).tolist(), len(wall)]
    return [(begin, end) for begin, end in pairwise(edges) if twice[begin]]


def _one_step(seconds: int, step: int) -> bool:
    return abs(int(seconds) - step) <= JITTER_S
