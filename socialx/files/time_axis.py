"""The time axis of a file: its common step, its gaps, and where the clocks of its time zone change.

T rows; times are seconds since 1970, wall times as if they were UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

DAY = 86_400  # seconds
JITTER_S = 5  # a crawler's clock may miss the whole minute by this much


def common_step(seconds: np.ndarray) -> int:
    """The most common forward step in seconds; 0 where no row is later than the one before it."""
    steps, counts = np.unique(np.diff(seconds), return_counts=True)
    return int(steps[np.where(steps > 0, counts, 0).argmax()]) if (steps > 0).any() else 0


def irregular(seconds: np.ndarray, step: int | None = None) -> np.ndarray:
    """The rows after which a step is no multiple of ``step``, int64 [I]; a clock may jitter a little.

    step: in seconds, None: the common one.
    """
    step = step or common_step(seconds)
    return np.flatnonzero((np.diff(seconds) + JITTER_S) % step > 2 * JITTER_S)


def gaps(seconds: np.ndarray, timezone: str | None) -> tuple[np.ndarray, np.ndarray]:
    """The rows after which time is missing, and the seconds until the next row, int64 [G] each.

    The hour that daylight saving time skips in a known zone is not missing.
    """
    elapsed = np.diff(seconds)
    zone = known_zone(timezone)
    large = np.flatnonzero(elapsed > common_step(seconds) + JITTER_S)
    if zone is not None and len(large):
        for moment, before, after in clock_changes(zone, np.unique(seconds[large] // DAY)):
            first, last = moment + before, moment + after  # of the hour that is skipped, in wall time
            elapsed[large] -= np.where(
                (seconds[large] < last) & (seconds[large + 1] >= last) & (last > first), last - first, 0
            )
    places = np.flatnonzero(elapsed > common_step(seconds) + JITTER_S)
    return places, elapsed[places]


def skipped_times(before: int, after: int, step: int, timezone: str | None) -> np.ndarray:
    """The times between two rows at which rows are missing, int64 [t], ``step`` seconds apart.

    The hour that daylight saving time skips in a known zone is not missing.
    """
    times = np.arange(before + step, after - JITTER_S, step)
    zone = known_zone(timezone)
    if zone is not None and len(times):
        for moment, old, new in clock_changes(zone, np.unique(times // DAY)):
            times = times[(times < moment + old) | (times >= moment + new)]
    return times


def known_zone(name: str | None) -> ZoneInfo | None:
    """The zone of a name; None without one, for an unknown one, and without time zone data."""
    try:
        return None if name is None else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # unknown or without tzdata, a path, a folder of zones
        return None


def same_clock(one: str | None, other: str | None, first: int, last: int) -> bool | None:
    """Whether two zones show the same wall time all days from ``first`` to ``last``; None where a zone is not known."""
    zones = known_zone(one), known_zone(other)
    if None in zones:
        return True if one is not None and one == other else None
    days = (datetime.fromtimestamp(second, UTC) for second in range(first, last + 1, DAY))
    return all(day.replace(tzinfo=zones[0]).utcoffset() == day.replace(tzinfo=zones[1]).utcoffset() for day in days)


def clock_changes(zone: ZoneInfo, days: np.ndarray) -> list[tuple[int, int, int]]:
    """The clock changes on or beside the days [D] since 1970: the second in UTC, the offsets before and after it.

    About 1 us for a day of the file.  Two changes within one day that undo each other are not seen.
    """

    def offset(second: int) -> int:
        shift = datetime.fromtimestamp(second, UTC).astimezone(zone).utcoffset()
        return int((shift or timedelta()).total_seconds())

    near = np.unique(days[:, None] + np.arange(-1, 2))
    found = []
    for day in near[(near > -700_000) & (near < 2_900_000)].tolist():  # far inside the years that datetime can hold
        low, high = day * DAY, (day + 1) * DAY
        before, after = offset(low), offset(high)
        if before == after:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == before else (low, middle)
        found.append((high, before, after))
    return found
