"""Detect the repeated hour at the end of daylight saving time in wall times, and write times in UTC.

T rows.  A repeated wall time means two moments: ``fold`` 0 is Python's name for the first moment, 1 for the second.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import numpy as np

from socialx.core.errors import Argument, Message, Remedy, SettingsError, SocialxError, counted
from socialx.core.progress import note
from socialx.data.calendar import DAY_S, shifts
from socialx.files.store.layout import Block, is_reading
from socialx.files.store.time_axis import JITTER_S, as_text, common_step, is_skipped, skipped_hour

SORT = "sort the rows and remove repeated ones"
REWRITE = "write its times in UTC"
AGAIN = "convert it again"


def goes_back(seconds: np.ndarray) -> bool:
    """Return whether any of the row times int64 [T] is equal to or before the time in the row above."""
    return bool((np.diff(seconds) <= 0).any())


def in_utc(wall: np.ndarray, name: str, where: Path | str, remedy: Remedy = REWRITE) -> tuple[np.ndarray, Message]:
    """Convert ``wall``, times int64 [T] in the zone ``name``, to UTC, int64 [T], where an hour may come twice; return a
    note for the user too. The clock may go back only where the zone demands, with rows one step apart in UTC. Raises
    SocialxError, which names the file ``where``, for times that go back elsewhere, for a time skipped by the zone, and
    for a repeated hour that the file holds once, where neighbouring rows do not tell whether as first or second hour.
    """
    zone, step, texts = _zone(name), common_step(wall), [as_text(second) for second in wall.tolist()]
    first, second = (wall - shifts(zone, wall, fold) for fold in (0, 1))
    if (skipped := second < first).any():
        row = int(skipped.argmax())
        problem = f"row {row + 1} has the time {texts[row]}, which the start of daylight saving time skips in {name}"
        raise SocialxError(where, problem, f"say the right {Argument('timezone')}")
    utc, returns = first.copy(), []
    for begin, end in _runs(wall, second > first):
        backs = begin + 1 + np.flatnonzero(np.diff(wall[begin:end]) <= 0)
        if len(backs) == 0:
            before = begin > 0 and _one_step(first[begin] - utc[begin - 1], step)
            after = end < len(wall) and _one_step(first[end] - second[end - 1], step)
            if before == after:
                problem = f"row {begin + 1} has the time {texts[begin]} once in the file, but twice in {name}"
                raise SocialxError(where, problem, remedy)
            utc[begin:end] = second[begin:end] if after else first[begin:end]
        else:
            back = int(backs[0])
            if len(backs) > 1 or not _one_step(second[back] - first[back - 1], step):
                row = int(backs[-1])
                problem = f"rows {row} and {row + 1} ({texts[row - 1]}, {texts[row]}) go back where {name} does"
                raise SocialxError(where, f"{problem}, but are not {step} s apart in UTC", f"{SORT}, or {REWRITE}")
            utc[back:end] = second[back:end]
            returns.append(f"{texts[back - 1]}, then {texts[back]}")
    if (wrong := np.diff(utc) <= 0).any():
        row = int(wrong.argmax())
        problem = f"rows {row + 1} and {row + 2} ({texts[row]}, {texts[row + 1]}) are not in order of time"
        remedy = f"{SORT}, or say the right {Argument('timezone')}"
        raise SocialxError(where, f"{problem}, also with the hours that come twice in {name}", remedy)
    text = f"times come twice at the end of daylight saving time in {name}, so all times are written in UTC"
    return utc, Message(where, text, "", returns)


def free_step(seconds: np.ndarray) -> int:
    """Return the most common step, in seconds, of times int64 [T] that drift around whole minutes: a multiple of 60."""
    return max(60, 60 * round(common_step(60 * np.rint(seconds / 60).astype(np.int64)) / 60))


def nearest_step(seconds: np.ndarray, step: int) -> np.ndarray:
    """Round times in seconds, int64 [T], to the nearest multiples of ``step`` seconds, int64 [T]."""
    return step * np.rint(seconds / step).astype(np.int64)


def round_times(seconds: np.ndarray, where: Path, step_s: int | None = None) -> tuple[np.ndarray, Message]:
    """Round drifting times int64 [T], as of a detector with a free-running clock, to whole steps after midnight, int64
    [T]; return a note too. step_s: seconds between two rows; ``None``: the most common step. where: the file, for the
    note and the error. Raises SocialxError where two rows get the same time.
    """
    step = step_s or free_step(seconds)
    whole = nearest_step(seconds, step)
    if (same := np.diff(whole) == 0).any():
        row = int(same.argmax())
        pair = ", ".join(as_text(int(second)) for second in seconds[row : row + 2])
        problem = f"rows {row + 1} and {row + 2} ({pair}) would both be at {as_text(int(whole[row]))}"
        raise SocialxError(where, problem, "remove one of them")
    moved = np.abs(whole - seconds)
    count = f"{np.count_nonzero(moved):,} of {len(moved):,} times"
    return whole, Message(where, f"{count} moved to whole {step // 60} min, by up to {moved.max()} s")


def repeats(seconds: np.ndarray) -> np.ndarray:
    """Mark the rows to drop, bool [T]: an earlier row has the same wall time int64 [T], except in a repeated hour."""
    again = np.zeros(len(seconds), bool)
    if not goes_back(seconds):
        return again
    latest = np.maximum.accumulate(seconds)
    back = np.append(False, seconds[1:] <= latest[:-1])
    _, first, which = np.unique(seconds, return_index=True, return_inverse=True)
    earlier = first[which.ravel()] < np.arange(len(seconds))
    edges = np.flatnonzero(np.diff(back, prepend=False, append=False))
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if not _may_come_twice(seconds[max(begin - 2, 0) : begin + 1]):
            again[begin:end] = earlier[begin:end]
    return again


def on_axis(
    blocks: Generator[Block, None, None],
    raw: np.ndarray,
    again: np.ndarray,
    final: np.ndarray,
    where: Path,
    refused: tuple[int, SocialxError] | None = None,
) -> Generator[Block, None, None]:
    """Yield the blocks with the corrected times ``final`` in place of the times read, and without repeated rows.

    raw: all row times as read, int64 [T]. again: the rows that repeat an earlier time, bool [T], which are dropped with
    a note. final: the times of the other rows, perhaps rounded or in another zone, int64. refused: the first row to
    refuse, counted without repeated rows, and its error; None: every row is right. where: the file, for messages.
    Raises SocialxError also for repeated rows with other observations, and for a source that changed since the first
    pass.
    """
    row, written, first = 0, 0, dict[int, bytes]()
    several = {*raw[again].tolist()}
    with closing(blocks):
        for block in blocks:
            times, twice = block.seconds, again[row : row + len(block.seconds)]
            if not np.array_equal(times, raw[row : row + len(times)]):
                raise SocialxError(where, "the file changed while it was read", AGAIN)
            for index, time in enumerate(times.tolist()) if several else ():
                readings = block.speeds[index].tobytes() if time in several else b""
                if time in several and first.setdefault(time, readings) != readings and twice[index]:
                    problem = f"two rows at {as_text(time)} with different observations"
                    raise SocialxError(where, problem, "remove one of them")
            kept = len(times) - int(twice.sum())
            if refused and refused[0] < written + kept:
                raise refused[1]
            if kept:
                yield Block(final[written : written + kept], block.speeds[~twice] if twice.any() else block.speeds)
            row, written = row + len(times), written + kept
    if row < len(raw):
        raise SocialxError(where, "the file changed while it was read", AGAIN)
    if again.any():
        text = f"{counted(int(again.sum()), 'row repeats', 'rows repeat')} an earlier one, which is kept"
        note(Message(where, text))


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
                read = is_reading(block.speeds[skipped], missing).any(axis=1)
                rows += int(read.sum())
                first = first or "".join(map(as_text, block.seconds[skipped][read][:1].tolist()))
            yield block
    if rows:
        note(Message(where, *skipped_hour(rows, first, timezone)))


def is_put_back(seconds: np.ndarray) -> bool:
    """Return whether row times int64 [T] go back at least once, each time as at the end of daylight saving time."""
    backs = np.flatnonzero(np.diff(seconds) <= 0) + 1
    return len(backs) > 0 and all(_looks_repeated(seconds[max(row - 2, 0) : row + 1]) for row in backs)


def repeated_hour(seconds: np.ndarray, where: Path | str, remedy: Remedy = REWRITE) -> tuple[int, SocialxError] | None:
    """Return the row, from 0, where wall times int64 [T] first go back, and the error to raise, if the hour repeated by
    a zone explains the row; else ``None``. The error names ``where``, a file or sheet, and ``remedy``.
    """
    for back in (np.flatnonzero(np.diff(seconds) <= 0) + 1)[:1].tolist():
        if _looks_repeated(seconds[max(back - 2, 0) : back + 1]):
            pair = ", ".join(as_text(int(second)) for second in seconds[back - 1 : back + 1])
            problem = f"rows {back} and {back + 1} ({pair}) look like the hour that comes twice"
            return back, SocialxError(where, f"{problem} at the end of daylight saving time", remedy)
    return None


def _may_come_twice(wall: np.ndarray) -> bool:
    """Return whether a zone's repeated hour may explain why the last of three wall times is no duplicate."""
    near = _put_back_near(int(wall[-1]) // DAY_S)
    twice = any(shifts(zone, wall[-1:], 0) != shifts(zone, wall[-1:], 1) for zone in near)
    return twice and (wall[-1] < wall[-2:][0] or _looks_repeated(wall))


def _looks_repeated(wall: np.ndarray) -> bool:
    """Return whether some zone puts the clock back between the last two of three wall times, one step apart in UTC."""
    if len(wall) < 3:
        return False
    step, back = (int(change) for change in np.diff(wall))
    return step > back and any(
        _is_put_back(zone, wall[1:], step - back) for zone in _put_back_near(int(wall[1]) // DAY_S)
    )


@lru_cache(maxsize=4096)
def _put_back_near(day: int) -> tuple[ZoneInfo, ...]:
    """Return the zones whose UTC offset changes on ``day``, counted from 1970, or on the day before or after."""
    moments = [datetime.fromtimestamp(DAY_S * date, UTC) for date in (day - 1, day + 2)]
    zones = map(ZoneInfo, sorted(available_timezones()))
    return tuple(zone for zone in zones if len({moment.astimezone(zone).utcoffset() for moment in moments}) > 1)


def _is_put_back(zone: ZoneInfo, pair: np.ndarray, shift: int) -> bool:
    """Return whether two wall times, int64 [2], both occur twice in the zone, ``shift`` seconds apart."""
    return bool((shifts(zone, pair, 0) - shifts(zone, pair, 1) == shift).all())


def _zone(name: str) -> ZoneInfo:
    """Return the zone called ``name``; raise SettingsError where the machine lacks it."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        text = f"{Argument('timezone', name)} is missing from the time zone data of this machine"
        raise SettingsError("", text, "install the package tzdata") from None


def _runs(wall: np.ndarray, twice: np.ndarray) -> list[tuple[int, int]]:
    """Return (first row, end) per run of ambiguous rows ``twice``, bool [T], split where ``wall`` [T] jumps a day."""
    far = np.diff(wall, prepend=wall[:1]) > DAY_S
    edges = [*np.flatnonzero(np.diff(twice, prepend=False) | far).tolist(), len(wall)]
    return [(begin, end) for begin, end in pairwise(edges) if twice[begin]]


def _one_step(seconds: int, step: int) -> bool:
    return abs(int(seconds) - step) <= JITTER_S
