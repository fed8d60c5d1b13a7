"""Days and hours are those of the clock that people live by, also where rows have times in UTC."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import torch

from socialx.core.batch import Target
from socialx.data.calendar import DAY_S, Calendar, shifts
from socialx.data.climatology import RollingClimatology
from socialx.data.series import Series, WindowLayout
from socialx.data.source import Arrays
from socialx.files.store.time_axis import clock_changes
from socialx.scoring.metrics import RunningErrors, mae_values
from tests.networks import CPU

ZONES = [
    "America/Los_Angeles",
    "Europe/Berlin",
    "Australia/Sydney",  # the summer of the other half of the year
    "Australia/Lord_Howe",  # half an hour is put back
    "Pacific/Chatham",  # three quarters of an hour beside the others
    "Asia/Kathmandu",  # without a change, on a quarter of an hour
    "America/Santiago",  # changes at midnight
    "Africa/Casablanca",  # two changes around a month
]
STEP = 15
ALL_OF_2023 = int(datetime(2023, 1, 1, tzinfo=UTC).timestamp()) + 60 * STEP * np.arange(365 * 24 * 4)


def local(zone: str, seconds: np.ndarray) -> pd.DatetimeIndex:
    return pd.to_datetime(seconds, unit="s", utc=True).tz_convert(zone)


def commuting(zone: str) -> Arrays:
    """A year of rows in UTC: 30 at a quarter past eight of every day in a zone, and 60 at all other times."""
    times = local(zone, ALL_OF_2023)
    values = np.where((times.hour == 8) & (times.minute // STEP == 1), 30, 60).astype(np.float32)[:, None, None]
    return Arrays(values, np.ones(values.shape, bool), ALL_OF_2023, STEP, Calendar(ZoneInfo(zone)))


@pytest.mark.parametrize("zone", ZONES)
def test_the_slot_and_the_weekday_are_those_of_the_zone(zone: str) -> None:
    times = local(zone, ALL_OF_2023)
    time_of_day, day_of_week = Calendar(ZoneInfo(zone)).time_features(ALL_OF_2023.reshape(-1, 96), STEP)
    np.testing.assert_array_equal(time_of_day.ravel(), (60 * times.hour + times.minute) // STEP)
    np.testing.assert_array_equal(day_of_week.ravel(), times.day_of_week)
    days = Calendar(ZoneInfo(zone)).day(ALL_OF_2023)
    np.testing.assert_array_equal(days.astype("datetime64[D]"), times.tz_localize(None).to_numpy("datetime64[D]"))


@pytest.mark.parametrize("zone", ZONES)
def test_what_is_usual_at_a_time_of_the_day_stays_so_over_every_change(zone: str) -> None:
    source, times = commuting(zone), local(zone, ALL_OF_2023)
    past = RollingClimatology(source)
    slow = np.flatnonzero(source.values[:, 0, 0] == 30)
    offsets = shifts(ZoneInfo(zone), ALL_OF_2023[slow])
    changed = np.flatnonzero(np.diff(offsets, prepend=offsets[0]))
    for day in np.unique([28, 200, *(changed + 1), *(changed + 5), 360]).tolist():
        at = ALL_OF_2023[slow[day]]
        found = past.lookup(at + 60 * STEP * np.array([-5, 0, 5]), np.full(3, at - 7200)).readings.ravel()
        # Of the three slots within 20 minutes one is slow, and five slots away none is.
        np.testing.assert_allclose(found, [60, (2 * 60 + 30) / 3, 60], atol=1, err_msg=str(times[slow[day]]))


@pytest.mark.parametrize("zone", ZONES)
def test_no_reading_of_the_day_of_issue_or_later_is_known(zone: str) -> None:
    source, times = commuting(zone), local(zone, ALL_OF_2023)
    other = Arrays(source.values.copy(), source.valid, source.seconds, STEP, source.calendar)
    offsets = shifts(ZoneInfo(zone), ALL_OF_2023)
    changed = np.flatnonzero(np.diff(offsets, prepend=offsets[0]))
    for row in [*changed, *(changed[-1:] + 40), 10_000]:
        other.values[:] = np.where((times.date < times[row].date())[:, None, None], source.values, 7)
        at = ALL_OF_2023[row : row + 1]
        np.testing.assert_array_equal(
            RollingClimatology(source).lookup(at, at).readings, RollingClimatology(other).lookup(at, at).readings
        )


def test_errors_by_hour_are_of_the_hour_of_the_zone() -> None:
    source = commuting("America/Los_Angeles")
    series, starts = (
        Series(source, WindowLayout(2, 1), CPU),
        torch.arange(25_000, 33_000),
    )  # over the change of November
    errors = RunningErrors(1, ("a",), STEP, CPU)
    for part in starts.split(1000):
        target = series.target(part)
        errors.update(torch.full_like(target.values, 60.0), series.window(part), Target(*target))
    by_hour = mae_values(errors.compute()["hour"])
    assert (np.flatnonzero(by_hour).tolist(), by_hour[8]) == ([8], pytest.approx(30 / 4, abs=1e-6))


def test_holidays_are_days_of_the_zone() -> None:
    thanksgiving = int(datetime(2023, 11, 23, tzinfo=UTC).timestamp())
    calendar = Calendar(ZoneInfo("America/Los_Angeles"), {thanksgiving // DAY_S: 6}.get)
    begins = thanksgiving + 8 * 3600
    moments = np.array([begins - 300, begins, begins + DAY_S - 300, begins + DAY_S])
    assert calendar.time_features(moments, 5)[1].tolist() == [2, 6, 6, 4]


@pytest.mark.parametrize("zone", ZONES)
def test_changes_are_where_the_clock_jumps(zone: str) -> None:
    offsets = shifts(ZoneInfo(zone), ALL_OF_2023)
    rows = np.flatnonzero(np.diff(offsets)) + 1
    found = [one for one in clock_changes(ZoneInfo(zone), np.unique(ALL_OF_2023 // DAY_S)) if one[0] >= ALL_OF_2023[0]]
    assert found == [(ALL_OF_2023[row], offsets[row - 1], offsets[row]) for row in rows.tolist()]


def test_times_at_the_ends_of_the_calendar_have_a_clock() -> None:
    ends = np.array([-62_135_596_800, 253_402_300_799])
    for zone in ZONES:
        assert Calendar(ZoneInfo(zone)).time_features(ends, 5)[0].shape == (2,)
