"""Times that a user names: wall times of a file as seconds, and the windows of a part that a period holds."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from socialx.data.windows import ALL
from socialx.dataset import Dataset
from socialx.errors import Argument, SettingsError
from socialx.files.time_axis import JITTER_S, known_zone
from socialx.options import Layers
from socialx.scoring.protocol import Period

Time = str | datetime


def wall_seconds(time: Time, argument: str, timezone: str | None) -> int:
    """A wall time -> seconds, read as UTC.  A date is its 00:00; a time with a zone is moved into that of the file.

    Raises SettingsError for what is no time.
    """
    zone = known_zone(timezone)
    try:
        moment = datetime.fromisoformat(time.strip()) if isinstance(time, str) else time
        if moment.tzinfo is not None and zone is not None:
            moment = moment.astimezone(zone).replace(tzinfo=None)
    except (ValueError, OverflowError):  # in the first or the last hours that a date can have
        raise SettingsError(Argument(argument, str(time)), "not a time", "for example 2012-06-27 17:00") from None
    if moment.tzinfo is not None:
        found = "a time with a zone, and the file does not say its zone"
        raise SettingsError(Argument(argument, str(time)), found, "give the wall time without a zone")
    return int(moment.replace(tzinfo=UTC).timestamp())


def as_text(seconds: int) -> str:
    """Seconds of a wall time -> ``2012-06-27 17:00:00``."""
    return str(np.datetime64(seconds, "s")).replace("T", " ")


def refuse_two_periods(layers: Layers, start: Time | None, end: Time | None) -> None:
    """Raise SettingsError where a call asks for a period and for the first days of the file too."""
    if layers.given.get("data.days") is not None and (start is not None or end is not None):
        found, helps = "the first days of the file are asked for too", ("leave out ", Argument("data.days"))
        raise SettingsError(Argument("end" if start is None else "start"), found, helps)


def windows_within(data: Dataset, part: str, start: Time | None, end: Time | None) -> tuple[np.ndarray, Period | None]:
    """The windows of a part whose forecast lies from start to end, both included, as places int64 [W] in the part.

    None: the first and the last row of the file.  Without both, all windows and no period.  Raises SettingsError for a
    time outside of the file, and where no window of the part lies in the period.
    """
    first, last = (data.store.seconds[rows] for rows in data.forecast_rows(part))  # of each forecast
    if start is None and end is None:
        return np.arange(len(first)), None
    seconds = data.store.seconds
    begin = int(seconds.min()) if start is None else _inside(data, start, "start")
    until = int(seconds.max()) if end is None else _inside(data, end, "end")
    inside = np.flatnonzero((first >= begin) & (last <= until))
    if not len(inside):
        where = Argument("end", as_text(until)) if start is None else Argument("start", as_text(begin))
        found = f"no {part} window has its forecast within {as_text(begin)} .. {as_text(until)}"
        there = f"forecasts of this part are of {as_text(int(first.min()))} .. {as_text(int(last.max()))}"
        more = () if part == ALL else ("; for all of the file add ", Argument("part", ALL))
        raise SettingsError(where, found, (there, *more))
    return inside, Period(as_text(begin), as_text(until), len(inside))


def _inside(data: Dataset, time: Time, argument: str) -> int:
    """The seconds of a time; refuses one outside of the file."""
    store = data.store
    asked = wall_seconds(time, argument, store.timezone)
    first, last = int(store.seconds.min()), int(store.seconds.max())
    if not first - JITTER_S <= asked <= last + JITTER_S:
        found = f"{store.path} has rows from {as_text(first)} to {as_text(last)}"
        nearest = Argument(argument, as_text(first if asked < first else last))
        raise SettingsError(Argument(argument, as_text(asked)), found, ("the nearest is ", nearest))
    return asked
