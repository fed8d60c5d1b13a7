"""The time axis: common step, gaps, clock changes in a time zone, and user times.

T rows; times are seconds since 1970, with wall times read as UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from socialx.core.errors import Argument, SettingsError, SocialxError, counted, sample
from socialx.data.calendar import DAY_S, QUARTER_S, shifts

Time = str | datetime | np.datetime64
JITTER_S = 5  # a crawler's clock may miss the whole minute by this much
JITTERED_SHARE = 0.1  # of steps that fit no grid: fewer are odd rows, more are a clock that runs freely
TIMESTAMP = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}")


def timestamp_seconds(timestamps: np.ndarray, where: str, first: int = 0) -> np.ndarray:
    """Convert S19 [T] ``YYYY-MM-DD HH:MM:SS`` to int64 [T]; errors name ``where``, and count rows from ``first``."""
    seconds = np.empty(len(timestamps), np.int64)
    for row, timestamp in enumerate(timestamps.tolist()):
        try:
            if not TIMESTAMP.fullmatch(timestamp):  # fromisoformat alone takes more than one form
                raise ValueError
            seconds[row] = datetime.fromisoformat(f"{timestamp.decode()}+00:00").timestamp()
        except ValueError:
            raise SocialxError(
                where,
                f"row {first + row + 1} has the time {timestamp.decode('latin-1')!a}, not YYYY-MM-DD HH:MM:SS",
                "correct it and convert again",
            ) from None
    return seconds


def as_timestamps(seconds: np.ndarray) -> np.ndarray:
    """Convert seconds since 1970 int64 [t] to S19 [t] ``YYYY-MM-DD HH:MM:SS``."""
    return np.char.replace(np.datetime_as_string(seconds.astype("datetime64[s]")), "T", " ").astype("S19")


def common_step(seconds: np.ndarray) -> int:
    """Return the most common forward step in seconds; 0 where time never advances."""
    steps, counts = np.unique(np.diff(seconds), return_counts=True)
    return int(steps[np.where(steps > 0, counts, 0).argmax()]) if (steps > 0).any() else 0


def odd_rows(seconds: np.ndarray, step: int | None = None) -> np.ndarray:
    """Return the indices, int64, of rows whose distance to the next row is no multiple of ``step`` +- 5 s.

    step: seconds, None for the common step.
    """
    step = step or common_step(seconds)
    return np.flatnonzero((np.diff(seconds) + JITTER_S) % step > 2 * JITTER_S)


def whole_minutes(seconds: np.ndarray, where: str) -> int:
    """Return the common step in minutes. Raises SocialxError, about the file ``where``, for other steps."""
    step = common_step(seconds)
    minutes = round(step / 60)
    if minutes == 0 or abs(step - 60 * minutes) > JITTER_S:
        problem = f"the rows are {step} s apart, not whole minutes" if step else "all rows have one time"
        raise SocialxError(where, problem, "convert a file with rows in whole minutes, each at its own time")
    return minutes


def refuse_jitter(seconds: np.ndarray, where: str) -> None:
    """Raise SocialxError, about ``where``, for a free-running clock, whose steps keep changing."""
    steps = np.diff(seconds)
    step = 60 * round(float(np.median(steps)) / 60) if len(steps) else 0
    rows = odd_rows(seconds, step) if step > 0 else np.empty(0, np.int64)
    alike = np.count_nonzero(steps == common_step(seconds))
    if len(rows) > JITTERED_SHARE * len(steps) and 2 * alike < len(steps):
        texts = np.datetime_as_string(seconds[rows[0] : rows[0] + 3].astype("datetime64[s]")).tolist()
        problem = f"{len(rows):,} of {len(steps):,} steps are no multiple of {step // 60} min"
        helps = f"move each time to the nearest whole step with {Argument('round_times', True)}"
        raise SocialxError(where, f"{problem} ({sample([text.replace('T', ' ') for text in texts])})", helps)


def gaps(seconds: np.ndarray, timezone: str | None, step: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows before a gap, and the seconds until the next row, int64 [gaps] each.

    The hour that daylight saving time skips in a known zone is excluded. step: seconds, None for the common step.
    """
    elapsed, step = np.diff(seconds), step or common_step(seconds)
    zone = known_zone(timezone)
    large = np.flatnonzero(elapsed > step + JITTER_S)
    if zone is not None and len(large):
        for moment, before, after in clock_changes(zone, np.unique(seconds[large] // DAY_S)):
            first, last = moment + before, moment + after  # of the hour that is skipped, in wall time
            elapsed[large] -= np.where(
                (seconds[large] < last) & (seconds[large + 1] >= last) & (last > first), last - first, 0
            )
    places = np.flatnonzero(elapsed > step + JITTER_S)
    return places, elapsed[places]


def gap_times(seconds: np.ndarray, step: int, timezone: str | None) -> np.ndarray:
    """Return the missing times, int64 [t], ``step`` seconds apart, between the row times ``seconds``, int64 [T].

    The skipped daylight-saving hour and gaps after odd rows are excluded.
    """
    places = np.setdiff1d(gaps(seconds, timezone, step)[0], odd_rows(seconds, step))
    pairs = zip(seconds[places].tolist(), seconds[places + 1].tolist(), strict=True)
    parts = [np.arange(before + step, after - JITTER_S, step) for before, after in pairs]
    times = np.concatenate([np.empty(0, np.int64), *parts])
    return times[~is_skipped(times, timezone)]


def is_skipped(seconds: np.ndarray, timezone: str | None) -> np.ndarray:
    """Return the mask of wall times that the zone's clock skips, bool [T]; all False if the zone is unknown."""
    skipped, zone = np.zeros(len(seconds), bool), known_zone(timezone)
    for moment, before, after in [] if zone is None else clock_changes(zone, np.unique(seconds // DAY_S)):
        skipped |= (seconds >= moment + before) & (seconds < moment + after)
    return skipped


def skipped_hour(rows: int, first: str, timezone: str) -> tuple[str, str]:
    """Return problem and remedy for observed rows at times that a zone skips; ``first``: such a time as text."""
    many = counted(rows, "row with readings is", "rows with readings are")
    problem = f"{many} at times that daylight saving time skips in {timezone}, such as {first}"
    offset = datetime.fromisoformat(first).replace(tzinfo=known_zone(timezone)).utcoffset() or timedelta()
    hours, rest = divmod(int(offset.total_seconds()), 3600)
    right = f"convert again with {Argument('timezone', f'Etc/GMT{-hours:+d}' if hours else 'UTC')}"
    return f"{problem}: the clock seems to have no daylight saving time", "write the times in UTC" if rest else right


def known_zone(name: str | None) -> ZoneInfo | None:
    """Return the zone for a name; None for None, an unknown name, or missing zone data."""
    try:
        return None if name is None else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # unknown or without tzdata, a path, a folder of zones
        return None


def is_utc(name: str | None) -> bool:
    """Return whether a zone name means UTC."""
    zone = known_zone(name)
    return zone is not None and zone.utcoffset(None) == timedelta()


def same_clock(one: str | None, other: str | None, first: int, last: int) -> bool | None:
    """Return whether two zones show equal wall times from ``first`` to ``last``, in seconds since 1970. Returns None
    where a zone is unknown; equal names count as equal.
    """
    zones = known_zone(one), known_zone(other)
    if None in zones:
        return True if one is not None and one == other else None
    days = np.arange(first, last + 1, DAY_S)
    here, there = (shifts(zone, days) for zone in zones if zone)
    return np.array_equal(here, there)


def clock_changes(zone: ZoneInfo, days: np.ndarray) -> list[tuple[int, int, int]]:
    """Return the zone's clock changes on or next to ``days`` since 1970: UTC second, offsets before and after, in s.

    Takes about 1 us per day. Two changes within a day that cancel out stay unseen.
    """
    near = np.unique(days[:, None] + np.arange(-1, 2)) * DAY_S
    changes = []
    for begin in near[shifts(zone, near) != shifts(zone, near + DAY_S)].tolist():
        moments = np.arange(begin, begin + DAY_S + 1, QUARTER_S)
        offsets = shifts(zone, moments)
        index = int((offsets != offsets[0]).argmax())
        changes.append((int(moments[index]), int(offsets[0]), int(offsets[-1])))
    return changes


def _iso(text: str) -> str:
    """Convert ``29.06.2012 8:00`` and ``2012-06-29 8:00`` to ISO 8601; keep any other text."""
    text = re.sub(r"^(\d{1,2})\.(\d{1,2})\.(\d{4})\b", lambda date: f"{date[3]}-{date[2]:0>2}-{date[1]:0>2}", text)
    return re.sub(r"([ T])(\d:)", r"\g<1>0\2", text, count=1)


def wall_seconds(time: Time, argument: str, timezone: str | None) -> int:
    """Convert a wall time from the user to seconds since 1970, read as UTC.

    argument: the option's name in errors. A bare date means 00:00, a dotted date begins with the day, and a zoned time
    moves into the file's ``timezone``. Raises SettingsError for an invalid time.
    """
    zone = known_zone(timezone)
    try:
        moment = time if isinstance(time, datetime) else datetime.fromisoformat(_iso(str(time).strip()))
        if moment.tzinfo is not None and zone is not None:
            moment = moment.astimezone(zone).replace(tzinfo=None)
    except (ValueError, OverflowError):  # in the first or the last hours that a date can have
        raise SettingsError("", f"{Argument(argument, str(time))} is not a time", "write 2012-06-27 17:00") from None
    if moment.tzinfo is not None:
        unknown = f"{Argument(argument, str(time))} has a zone, and the file does not say its zone"
        raise SettingsError("", unknown, "give the wall time without a zone")
    return int(moment.replace(tzinfo=UTC).timestamp())


def as_text(seconds: int) -> str:
    """Convert wall time seconds to ``2012-06-27 17:00:00``."""
    return str(np.datetime64(seconds, "s")).replace("T", " ")
