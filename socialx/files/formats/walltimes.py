"""The hour that comes twice at the end of daylight saving time: found in wall times, and written in UTC.

T rows.  Such a wall time stands for two moments: ``fold`` 0 is Python's name for the first, 1 for the second.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import numpy as np

from socialx.data.calendar import DAY_S
from socialx.errors import Argument, Message, SettingsError, SocialxError
from socialx.files.formats.contents import as_timestamps
from socialx.files.hdf5_layout import Block
from socialx.files.time_axis import JITTER_S, common_step, timestamp_seconds
from socialx.progress import note

SORT = "sort the rows and remove repeated ones"
REWRITE = "write its times in UTC"
AGAIN = "convert it again"


def goes_back(timestamps: np.ndarray) -> bool:
    """Whether a row of S19 [T] is not later than the one before it; a text of this form sorts as its time."""
    return bool((timestamps[1:] <= timestamps[:-1]).any())


def in_utc(timestamps: np.ndarray, name: str, where: Path) -> tuple[np.ndarray, Message]:
    """Wall times S19 [T] of the zone ``name`` that go back -> the same in UTC, S19 [T], and a note for the user.

    The clock may go back only where the zone puts it back, and by so much that the rows stay one step apart.  Raises
    SocialxError for all other times that go back, for a time that the zone skips, and for one that may be either hour.
    """
    zone, wall = _zone(name), timestamp_seconds(timestamps, str(where))
    texts, step = timestamps.astype(str).tolist(), common_step(wall)
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
    return as_timestamps(utc), Message(where, found, "all times are written in UTC", returns)


def free_step(seconds: np.ndarray) -> int:
    """The common step of a clock that runs freely, int64 [T], in seconds: whole minutes, one at least."""
    return max(60, 60 * round(common_step(60 * np.rint(seconds / 60).astype(np.int64)) / 60))


def nearest_step(seconds: np.ndarray, step: int) -> np.ndarray:
    """Seconds int64 [T] -> the nearest multiples of a step, int64 [T]."""
    return step * np.rint(seconds / step).astype(np.int64)


def rounded(timestamps: np.ndarray, where: Path, step_s: int | None = None) -> tuple[np.ndarray, Message]:
    """Times S19 [T] of a clock that runs freely -> the nearest whole steps after midnight, S19 [T], and a note.

    step_s: seconds between two rows, None: the common step.

    Raises SocialxError where two rows become one time.
    """
    seconds = timestamp_seconds(timestamps, str(where))
    step = step_s or free_step(seconds)
    whole = nearest_step(seconds, step)
    if (same := np.diff(whole) == 0).any():
        row = int(same.argmax())
        pair = f"{timestamps[row].decode()}, {timestamps[row + 1].decode()}"
        found = (
            f"rows {row + 1} and {row + 2} ({pair}) would both be at {as_timestamps(whole[row : row + 1])[0].decode()}"
        )
        raise SocialxError(where, found, "remove one of them")
    moved = np.abs(whole - seconds)
    found = (
        f"{np.count_nonzero(moved):,} of {len(moved):,} times moved to whole {step // 60} min, by up to {moved.max()} s"
    )
    return as_timestamps(whole), Message(where, found)


def retimed(
    blocks: Generator[Block, None, None], before: np.ndarray, after: np.ndarray, where: Path
) -> Generator[Block, None, None]:
    """The blocks, their times ``before`` S19 [T] replaced by ``after`` S19 [T]."""
    row = 0
    with closing(blocks):
        for block in blocks:
            rows = slice(row, row + len(block.timestamps))
            if not np.array_equal(block.timestamps, before[rows]):
                raise SocialxError(where, "it changed while it was read", AGAIN)
            yield Block(after[rows], block.speeds)
            row = rows.stop
    if row < len(before):
        raise SocialxError(where, "it changed while it was read", AGAIN)


def once(blocks: Generator[Block, None, None], where: Path, *, strict: bool) -> Generator[Block, None, None]:
    """The blocks without rows that are the row above them again, time and readings, and a note on their number.

    strict: refuses a row with the time of the one above it and other readings.
    """
    last, again = Block(np.empty(0, "S19"), np.empty((0, 0), np.float32)), 0
    with closing(blocks):
        for block in blocks:
            times = block.timestamps
            before = np.append(last.timestamps, times[:-1])  # of all rows, or of all but the first of all
            same = np.zeros(len(times), bool)
            same[len(times) - len(before) :] = times[len(times) - len(before) :] == before
            for row in np.flatnonzero(same).tolist():
                above = block.speeds[row - 1] if row else last.speeds[0]
                same[row] = np.array_equal(block.speeds[row], above, equal_nan=True)
                if strict and not same[row]:
                    found = f"two rows at {times[row].decode()} with other readings"
                    raise SocialxError(where, found, "remove one of them")
            again += int(same.sum())
            if not same.all():
                yield Block(times[~same], block.speeds[~same]) if same.any() else block
            if len(times):
                last = Block(times[-1:], block.speeds[-1:].copy())
    if again:
        note(Message(where, f"{again:,} rows stand twice with the same readings", "read once"))


def watched(blocks: Generator[Block, None, None], where: Path, likely: str | None) -> Generator[Block, None, None]:
    """The blocks, with a refusal where their times look like the hour that comes twice.

    likely: the zone that the refusal names, if it is known.
    """
    last, row = np.empty(0, "S19"), 0  # at most two rows, and their number at the end
    with closing(blocks):
        for block in blocks:
            times = np.concatenate([last, block.timestamps])
            if goes_back(times):
                back = int((times[1:] <= times[:-1]).argmax()) + 1
                if _looks_repeated(times[max(back - 2, 0) : back + 1], str(where)):
                    number = row - len(last) + back
                    pair = f"{times[back - 1].decode()}, {times[back].decode()}"
                    found = f"rows {number} and {number + 1} ({pair}) look like the hour that comes twice"
                    raise SocialxError(
                        where,
                        f"{found} at the end of daylight saving time",
                        f"{Argument('timezone', likely or 'ZONE')} keeps both hours",
                    )
            yield block
            last, row = times[-2:], row + len(block.timestamps)


def _looks_repeated(timestamps: np.ndarray, where: str) -> bool:
    """Whether some zone puts its clock back between the last two of three S19, and they are one step apart then."""
    if len(timestamps) < 3:
        return False
    wall = timestamp_seconds(timestamps, where)
    step, back = (int(change) for change in np.diff(wall))
    return step > back and any(_is_put_back(ZoneInfo(name), wall[1:], step - back) for name in available_timezones())


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
