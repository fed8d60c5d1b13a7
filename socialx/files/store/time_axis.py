"""The time axis: common step, gaps, clock changes in a time zone, and user times.

T rows; times are seconds since 1970, with wall times read as UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from socialx.core.errors import Argument, SettingsError, SocialxError, counted, sample
from socialx.data.calendar import DAY_S, QUARTER_S, shifts

Time = str | datetime | np.datetime64
JITTER_S = 5  # a crawler's clock may miss the whole minute by this much
JITTERED_SHARE = 0.1  # of steps that fit no grid: fewer are odd rows, more are a clock that runs freely
TIMESTAMP = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}")


def timestamp_seconds(timestamps: np.ndarray, where: str) -> np.ndarray:
    """Convert S19 [T] ``YYYY-MM-DD HH:MM:SS`` to int64 [T]; errors name ``where``."""
    seconds = np.empty(len(timestamps), np.int64)
    for row, timestamp in enumerate(timestamps.tolist()):
        try:
            if not TIMESTAMP.fullmatch(timestamp):  # fromisoformat alone takes more than one form
                raise ValueError
            seconds[row] = datetime.fromisoformat(f"{timestamp.decode()}+00:00").timestamp()
        except ValueError:
            problem = f"row {row + 1} has the time {timestamp.decode('latin-1')!a}, not YYYY-MM-DD HH:MM:SS"
            raise SocialxError("time.row", where, problem, "correct it and convert again") from None
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
        raise SocialxError("time.step", where, problem, "convert rows in whole minutes, each at its own time")
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
        raise SocialxError("time.jitter", where, f"{problem} ({sample([at.replace('T', ' ') for at in texts])})", helps)


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
            across = (seconds[large] < last) & (seconds[large + 1] >= last) & (last > first)
            elapsed[large] -= np.where(across, last - first, 0)
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


@dataclass(frozen=True)
class Clock:
    """Turn file seconds into the times that people see, and typed times into file seconds.

    timezone: the zone stored in the file, None if unknown. local_zone: the zone people live by, for a file in UTC.
    """

    timezone: str | None = None
    local_zone: str | None = None

    @property
    def name(self) -> str | None:
        """The zone that people see and type; None if unknown."""
        return self.local_zone or self.timezone

    def local(self, seconds: np.ndarray) -> np.ndarray:
        """Convert file seconds, int64 [...], to seconds that show local time if read as UTC, int64 [...]."""
        zone = known_zone(self.local_zone)
        return seconds if zone is None else seconds + shifts(zone, seconds)

    def utc(self, seconds: np.ndarray) -> np.ndarray:
        """Convert file seconds to UTC, int64 [...]; a repeated wall time is the first, an unknown zone keeps all."""
        zone = known_zone(self.timezone)
        return seconds if zone is None else seconds - shifts(zone, seconds, 0)

    def frame_zone(self, origins: np.ndarray) -> str | None:
        """Return the zone for frames; None if unknown, or if it skips a row in ``origins``, int64 [W]."""
        unknown = known_zone(self.timezone) is None or is_skipped(origins, self.timezone).any()
        return None if unknown else self.name

    def text(self, second: int) -> str:
        """Return ``2012-06-27 17:00:00``, with the UTC offset behind a time that the clock shows twice."""
        zone, wall = known_zone(self.local_zone), self.local(np.array(second))
        twice = zone is not None and shifts(zone, wall, 0) != shifts(zone, wall, 1)
        return self.texts(np.array([second]))[0] if twice else as_text(int(wall))

    def texts(self, seconds: np.ndarray) -> list[str]:
        """Return times [t] as texts for programs, all with the UTC offset if the file has a local zone."""
        zone = known_zone(self.local_zone)
        if zone is None:
            return list(map(as_text, seconds.tolist()))
        return [datetime.fromtimestamp(second, zone).isoformat(" ") for second in seconds.tolist()]

    def stored(self, text: str) -> str:
        """Return the time that people see for a stored ``YYYY-MM-DD HH:MM:SS``."""
        return self.text(int(np.datetime64(text, "s").astype(np.int64))) if self.local_zone else text

    def seconds(self, time: Time, argument: str) -> int:
        """Convert a time from the user to file seconds; a time without a zone is local.

        time: as in ``read_time``. argument: option name in errors. Raises SettingsError for an invalid time, and for a
        local time without an offset that comes twice or never.
        """
        zone, stored, said = known_zone(self.name), known_zone(self.timezone), Argument(argument, str(time))
        moment = read_time(time, argument, zone)
        if moment.tzinfo is not None:
            if stored is None:
                unknown = f"{said} has a zone, and the file does not say its zone"
                raise SettingsError("time.zone-unsaid", "", unknown, "give the wall time without a zone")
            return int(moment.astimezone(stored).replace(tzinfo=UTC).timestamp())
        second = int(moment.replace(tzinfo=UTC).timestamp())
        if zone is None:
            return second
        first, last = (second - int(shifts(zone, np.array(second), fold)) for fold in (0, 1))
        if first != last:
            clock = Clock("UTC", self.name)
            answers = [Argument(argument, clock.text(second)) for second in sorted({first, max(first, last)})]
            which = "comes twice on" if first < last else "is skipped by"
            problem = f"{said} {which} the clock of {self.name}"
            raise SettingsError("time.clock-change", "", problem, f"write {' or '.join(map(str, answers))}")
        return second if self.local_zone is None else first


def read_time(time: Time, argument: str, zone: ZoneInfo | None) -> datetime:
    """Return a time from the user: ISO 8601 or ``29.06.2012 8:00``, perhaps followed by CET, UTC, Z or +01:00.

    argument: option name in errors. zone: whose abbreviations are known besides UTC. Raises SettingsError for others.
    """
    text = re.sub(r"^(\d{1,2})\.(\d{1,2})\.(\d{4})\b", lambda on: f"{on[3]}-{on[2]:0>2}-{on[1]:0>2}", str(time).strip())
    text = re.sub(r"([ T])(\d:)", r"\g<1>0\2", text, count=1)
    text, _, name = re.sub(r"(:\d+) *([A-Za-z]{2,5})$", r"\1|\2", text).partition("|")
    try:
        text = re.sub(r"(?<=\d) +(?=[+-]\d)", "", text)
        moment = time if isinstance(time, datetime) else datetime.fromisoformat(text)
        if name:
            near = [moment.replace(month=month, day=1, tzinfo=zone) for month in (1, 7)]
            near += [moment.replace(tzinfo=zone, fold=fold) for fold in (0, 1)]
            offsets = {day.tzname(): day.utcoffset() for day in near} | dict.fromkeys(("UTC", "GMT"), timedelta())
            moment = moment.replace(tzinfo=timezone(offsets[name.upper()] or timedelta()))
        _ = moment + timedelta(1), moment - timedelta(1)
        return moment
    except (ValueError, OverflowError, KeyError):
        problem = f"{Argument(argument, str(time))} is not a time"
        raise SettingsError("time.unreadable", "", problem, "write 2012-06-27 17:00") from None


def as_text(seconds: int) -> str:
    """Convert wall time seconds to ``2012-06-27 17:00:00``."""
    return str(np.datetime64(seconds, "s")).replace("T", " ")
