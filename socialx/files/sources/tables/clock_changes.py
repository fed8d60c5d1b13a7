"""The hour that comes twice at the end of daylight saving time: found in wall times, and written in UTC.

T rows.  Such a wall time stands for two moments: ``fold`` 0 is Python's name for the first, 1 for the second.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from datetime import UTC, datetime, timedelta
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
    """Whether a row of int64 [T] is not later than the one before it."""
    return bool((np.diff(seconds) <= 0).any())


def in_utc(wall: np.ndarray, name: str, where: Path) -> tuple[np.ndarray, Message]:
    """Wall times int64 [T] of the zone ``name`` that go back -> the same in UTC, int64 [T], and a note for the user.

    The clock may go back only where the zone puts it back, and by so much that the rows stay one step apart.  Raises
    SocialxError for all other times that go back, for a time that the zone skips, and for one that may be either hour.
    """
    zone, step, texts = _zone(name), common_step(wall), [as_text(second) for second in wall.tolist()]
    first, second = (wall - _offsets(wall, zone, fold) for fold in (0, 1))
    if (skipped := second < first).any():
        row = int(skipped.argmax())
        found = f"row {row + 1} has the time {texts[row]}, which the start of daylight saving time skips in {name}"
        raise SocialxError(where, found, f"say the right {Argument('timezone')}")
    utc, returns = first.copy(), []
    for begin, end in _runs(wall, second > first):
        backs = begin + 1 + np.flatnonzero(np.diff(wall[begin:end]) <= 0)
        if len(backs) == 0:
            before = begin > 0 and _one_step(first[begin] - utc[begin - 1], step)
            after = end < len(wall) and _one_step(first[end] - second[end - 1], step)
            if before == after:
                found = f"row {begin + 1} has the time {texts[begin]}, which comes twice in {name} and once in the file"
                raise SocialxError(where, found, REWRITE)
            utc[begin:end] = second[begin:end] if after else first[begin:end]
        else:
            back = int(backs[0])
            if len(backs) > 1 or not _one_step(second[back] - first[back - 1], step):
                row = int(backs[-1])
                found = f"rows {row} and {row + 1} ({texts[row - 1]}, {texts[row]}) go back where {name} does"
                raise SocialxError(where, f"{found}, but are not {step} s apart in UTC", f"{SORT}, or {REWRITE}")
            utc[back:end] = second[back:end]
            returns.append(f"{texts[back - 1]}, then {texts[back]}")
    if (wrong := np.diff(utc) <= 0).any():
        row = int(wrong.argmax())
        found = f"rows {row + 1} and {row + 2} ({texts[row]}, {texts[row + 1]}) are not in order of time"
        remedy = f"{SORT}, or say the right {Argument('timezone')}"
        raise SocialxError(where, f"{found}, also with the hours that come twice in {name}", remedy)
    found = f"times that come twice at the end of daylight saving time in {name}"
    return utc, Message(where, found, "all times are written in UTC", returns)


def in_zone(utc: np.ndarray, name: str) -> np.ndarray:
    """Times in UTC, int64 [T] -> wall times of the zone ``name``, int64 [T]."""
    return utc + shifts(_zone(name), utc)


def free_step(seconds: np.ndarray) -> int:
    """The common step of a clock that runs freely, int64 [T], in seconds: whole minutes, one at least."""
    return max(60, 60 * round(common_step(60 * np.rint(seconds / 60).astype(np.int64)) / 60))


def nearest_step(seconds: np.ndarray, step: int) -> np.ndarray:
    """Seconds int64 [T] -> the nearest multiples of a step, int64 [T]."""
    return step * np.rint(seconds / step).astype(np.int64)


def rounded(seconds: np.ndarray, where: Path, step_s: int | None = None) -> tuple[np.ndarray, Message]:
    """Times int64 [T] of a clock that runs freely -> the nearest whole steps after midnight, int64 [T], and a note.

    step_s: seconds between two rows, None: the common step.

    Raises SocialxError where two rows become one time.
    """
    step = step_s or free_step(seconds)
    whole = nearest_step(seconds, step)
    if (same := np.diff(whole) == 0).any():
        row = int(same.argmax())
        pair = ", ".join(as_text(int(each)) for each in seconds[row : row + 2])
        found = f"rows {row + 1} and {row + 2} ({pair}) would both be at {as_text(int(whole[row]))}"
        raise SocialxError(where, found, "remove one of them")
    moved = np.abs(whole - seconds)
    found = (
        f"{np.count_nonzero(moved):,} of {len(moved):,} times moved to whole {step // 60} min, by up to {moved.max()} s"
    )
    return whole, Message(where, found)


def repeats(seconds: np.ndarray) -> np.ndarray:
    """Which rows have the time of an earlier one, but for those of an hour that comes twice: int64 [T] -> bool [T]."""
    again = np.zeros(len(seconds), bool)
    if not goes_back(seconds):
        return again
    latest = np.maximum.accumulate(seconds)
    back = np.append(False, seconds[1:] <= latest[:-1])
    _, first, which = np.unique(seconds, return_index=True, return_inverse=True)
    known = first[which.ravel()] < np.arange(len(seconds))
    edges = np.flatnonzero(np.diff(back, prepend=False, append=False))
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if not _may_come_twice(seconds[max(begin - 2, 0) : begin + 1]):
            again[begin:end] = known[begin:end]
    return again


def on_axis(
    blocks: Generator[Block, None, None],
    raw: np.ndarray,
    again: np.ndarray,
    final: np.ndarray,
    where: Path,
    refused: tuple[int, SocialxError] | None = None,
) -> Generator[Block, None, None]:
    """The blocks at their places on the axis of times.

    raw: the times of all rows, int64 [T].  again: which of these have the time of an earlier one, bool [T]; they are
    left out, and a note says how many.  final: the times of the others, int64.  refused: the place of one of these that
    is refused.  So is a row that has the time of an earlier one and other readings, and a source that changed since its
    times were read.
    """
    row, place, first = 0, 0, dict[int, bytes]()
    several = {*raw[again].tolist()}
    with closing(blocks):
        for block in blocks:
            times, twice = block.seconds, again[row : row + len(block.seconds)]
            if not np.array_equal(times, raw[row : row + len(times)]):
                raise SocialxError(where, "it changed while it was read", AGAIN)
            for each, time in enumerate(times.tolist()) if several else ():
                readings = block.speeds[each].tobytes() if time in several else b""
                if time in several and first.setdefault(time, readings) != readings and twice[each]:
                    found = f"two rows at {as_text(time)} with other readings"
                    raise SocialxError(where, found, "remove one of them")
            kept = len(times) - int(twice.sum())
            if refused and refused[0] < place + kept:
                raise refused[1]
            if kept:
                yield Block(final[place : place + kept], block.speeds[~twice] if twice.any() else block.speeds)
            row, place = row + len(times), place + kept
    if row < len(raw):
        raise SocialxError(where, "it changed while it was read", AGAIN)
    if again.any():
        found = f"{counted(int(again.sum()), 'row stands', 'rows stand')} twice with the same readings"
        note(Message(where, found, "read once"))


def existing(
    blocks: Generator[Block, None, None], where: Path, timezone: str, missing: float | None
) -> Generator[Block, None, None]:
    """The blocks, and a note where rows with readings are at times that the clock of their zone skips."""
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
    """Whether rows, int64 [T], go back only as a clock does at the end of daylight saving time, once at least."""
    backs = np.flatnonzero(np.diff(seconds) <= 0) + 1
    return len(backs) > 0 and all(_looks_repeated(seconds[max(row - 2, 0) : row + 1]) for row in backs)


def repeated_hour(seconds: np.ndarray, where: Path | str, remedy: Remedy = REWRITE) -> tuple[int, SocialxError] | None:
    """The first row of int64 [T] that goes back, and its refusal, where it looks like the hour that comes twice."""
    for back in (np.flatnonzero(np.diff(seconds) <= 0) + 1)[:1].tolist():
        if _looks_repeated(seconds[max(back - 2, 0) : back + 1]):
            pair = ", ".join(as_text(int(each)) for each in seconds[back - 1 : back + 1])
            found = f"rows {back} and {back + 1} ({pair}) look like the hour that comes twice"
            return back, SocialxError(where, f"{found} at the end of daylight saving time", remedy)
    return None


def _may_come_twice(wall: np.ndarray) -> bool:
    """Whether the last of three times int64 may be in such an hour of some zone: it goes back, or is a step later."""
    near = _put_back_near(int(wall[-1]) // DAY_S)
    twice = any(_offsets(wall[-1:], zone, 0) != _offsets(wall[-1:], zone, 1) for zone in near)
    return twice and (wall[-1] < wall[-2:][0] or _looks_repeated(wall))


def _looks_repeated(wall: np.ndarray) -> bool:
    """Whether some zone puts its clock back between the last two of three int64, and they are one step apart then."""
    if len(wall) < 3:
        return False
    step, back = (int(change) for change in np.diff(wall))
    return step > back and any(
        _is_put_back(zone, wall[1:], step - back) for zone in _put_back_near(int(wall[1]) // DAY_S)
    )


@lru_cache(maxsize=4096)
def _put_back_near(day: int) -> tuple[ZoneInfo, ...]:
    """The zones that put their clock back on a day since 1970, or on one beside it."""
    moments = [datetime.fromtimestamp(DAY_S * each, UTC) for each in (day - 1, day + 2)]
    zones = map(ZoneInfo, sorted(available_timezones()))
    return tuple(zone for zone in zones if len({moment.astimezone(zone).utcoffset() for moment in moments}) > 1)


def _is_put_back(zone: ZoneInfo, pair: np.ndarray, shift: int) -> bool:
    """Whether both wall times, int64 [2], come twice in the zone, the second time ``shift`` seconds later."""
    return bool((_offsets(pair, zone, 0) - _offsets(pair, zone, 1) == shift).all())


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingsError(
            Argument("timezone", name), "not in this machine's time zone data", "install the package tzdata"
        ) from None


def _offsets(wall: np.ndarray, zone: ZoneInfo, fold: int) -> np.ndarray:
    """Wall times in seconds, int64 [T] -> wall time minus UTC in seconds, int64 [T]."""
    moments = (datetime.fromtimestamp(second, UTC).replace(tzinfo=zone, fold=fold) for second in wall.tolist())
    shifts = ((moment.utcoffset() or timedelta()).total_seconds() for moment in moments)
    return np.fromiter(shifts, np.int64, len(wall))


def _runs(wall: np.ndarray, twice: np.ndarray) -> list[tuple[int, int]]:
    """First row and end of each run of rows bool [T] that come twice by the same change of the clock."""
    far = np.diff(wall, prepend=wall[:1]) > DAY_S
    edges = [*np.flatnonzero(np.diff(twice, prepend=False) | far).tolist(), len(wall)]
    return [(begin, end) for begin, end in pairwise(edges) if twice[begin]]


def _one_step(seconds: int, step: int) -> bool:
    return abs(int(seconds) - step) <= JITTER_S
