"""The times of rows that carry their time of day, and perhaps their day of week, in channels beside the readings.

T rows, N sensors, C channels, t rows of one piece.
"""

from __future__ import annotations

import numpy as np

from socialx.data.calendar import DAY_S, WEEKDAYS
from socialx.errors import Argument, SocialxError
from socialx.files.convert_options import Request
from socialx.files.formats.contents import Clock
from socialx.files.time_axis import as_text

DAY_MINUTES = 1440
SLACK = 0.1  # minutes; a float32 fraction of a day is off by milliseconds


def is_time_of_day(column: np.ndarray) -> bool:
    """Whether rows [t,N] look like fractions of a day: whole minutes, one for all sensors, mostly a step apart."""
    minutes, right = _minutes(column)
    steps = np.diff(minutes) % DAY_MINUTES
    return bool(len(steps) and right.all() and (steps > 0).all() and (steps == np.median(steps)).mean() > 0.5)


class ArrayClock:
    """Times for rows [t,N,C] one after the other, as their channels say them or, without channels, a step apart."""

    def __init__(self, request: Request, head: np.ndarray, time: int | None, day: int | None = None) -> None:
        """``head``: the first rows [t,N,C]; ``time``, ``day``: the channels' numbers, None = there is no such one."""
        self._where, self._time, self._day, self._row, self._shift = request.data, time, day, 0, 0
        self.notes: tuple[str, ...] = ()
        step = None
        if time is not None and len(head) > 1:
            step = int(np.diff(self._seconds(head[:2]))[0]) % DAY_S or DAY_S
        self._clock = Clock(request, step)
        found = -1 if day is None else int(_weekdays(head[:1, 0, day])[0])
        if found < 0:
            self._day = None
            unseen = "the times follow from the times of day, which do not show gaps of whole days"
            self.notes = () if time is None else (unseen,)
            return
        # Files made of arrays without dates, PEMS08.npz among them, count from 0 whatever the first day was.
        date = str(request.start)[:10]
        said = int(_weekdays_of(np.array([date], "datetime64[s]").astype(np.int64))[0])
        if found not in (0, said):
            what = f"its first row is on a {WEEKDAYS[found]}, and {request.said_start}, {date}, is a {WEEKDAYS[said]}"
            raise SocialxError(request.data, what, f"say the right {Argument('start')}")
        if said != found:
            counted = f"its days of week count from 0 in the first row, which {request.said_start} makes a"
            self.notes = (f"{counted} {WEEKDAYS[said]}",)
        self._shift = said - found

    def seconds(self, cells: np.ndarray) -> np.ndarray:
        """The next rows [t,N,C] -> int64 [t]."""
        if self._time is None:
            return self._clock.seconds(len(cells))
        seconds = self._clock.seconds_at(self._seconds(cells))
        if self._day is not None:
            days = _weekdays(cells[:, 0, self._day])
            wrong = (days < 0) | ((days + self._shift) % 7 != _weekdays_of(seconds))
            if wrong.any():
                row = int(wrong.argmax())
                what = f"row {self._row + row + 1} is at {as_text(int(seconds[row]))} but on another day of the week"
                raise SocialxError(self._where, what, "whole days are missing, so use a source with dates")
        self._row += len(cells)
        return seconds

    def _seconds(self, cells: np.ndarray) -> np.ndarray:
        """Rows [t,N,C] -> seconds of the day int64 [t]."""
        column = cells[..., self._time]
        minutes, right = _minutes(column)
        if not right.all():
            row = int(right.argmin())
            what = f"row {self._row + row + 1} has {column[row, 0]} in channel {self._time}"
            raise SocialxError(self._where, f"{what}, no time of day in whole minutes for all sensors", "correct it")
        return minutes.astype(np.int64) * 60


def _minutes(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows [t,N] -> minutes of the day float64 [t], and whether they are whole and every sensor's bool [t]."""
    with np.errstate(over="ignore", invalid="ignore"):
        exact = column[:, 0].astype(np.float64) * DAY_MINUTES
        minutes = np.rint(exact)
        right = (column[:, 0] >= 0) & (column[:, 0] < 1) & (np.abs(exact - minutes) < SLACK)
        return minutes % DAY_MINUTES, right & (column == column[:, :1]).all(axis=1)


def _weekdays(values: np.ndarray) -> np.ndarray:
    """0 to 6, or these divided by 7 -> int64 [t] with 0 = Monday; -1 for anything else."""
    with np.errstate(over="ignore", invalid="ignore"):
        days = np.where(values < 1, values * 7.0, values)
        whole = np.rint(days)
        right = (np.abs(days - whole) < 0.01) & (whole >= 0) & (whole <= 6)
    return np.where(right, whole, -1).astype(np.int64)


def _weekdays_of(seconds: np.ndarray) -> np.ndarray:
    """Seconds since 1970 int64 [t] -> int64 [t] with 0 = Monday; 1970 began on a Thursday."""
    weekdays: np.ndarray = (seconds // DAY_S + 3) % 7
    return weekdays
