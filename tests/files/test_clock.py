"""The one maker of times: what people type becomes seconds of a file, and seconds become what they see."""

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from socialx.core.errors import SettingsError
from socialx.files.store.time_axis import Clock

BERLIN = Clock("UTC", "Europe/Berlin")  # a file in UTC
WALL = Clock("Europe/Berlin")  # a file of wall times


def second(text: str) -> int:
    return int(np.datetime64(text, "s").astype(np.int64))


@pytest.mark.parametrize(
    ("typed", "utc"),
    [
        ("2014-10-27 07:30", "2014-10-27T06:30"),
        ("27.10.2014 7:30", "2014-10-27T06:30"),
        ("2014-10-27", "2014-10-26T23:00"),
        ("2014-10-26 02:30 CET", "2014-10-26T01:30"),
        ("2014-10-26 02:30cest", "2014-10-26T00:30"),
        ("2014-10-26 02:30 +01:00", "2014-10-26T01:30"),
        ("2014-10-26T02:30+02", "2014-10-26T00:30"),
        ("26.10.2014 1:30 UTC", "2014-10-26T01:30"),
        ("2014-10-26 01:30Z", "2014-10-26T01:30"),
        ("2014-07-01 08:00 CET", "2014-07-01T07:00"),
        (datetime(2014, 10, 26, 1, 30, tzinfo=UTC), "2014-10-26T01:30"),
        (np.datetime64("2014-10-27T07:30"), "2014-10-27T06:30"),
    ],
)
def test_a_time_is_local_or_says_its_zone(typed: str, utc: str) -> None:
    assert BERLIN.seconds(typed, "at") == second(utc)
    wall = second(utc) + (3600 if utc > "2014-10-26T01" else 7200)
    assert WALL.seconds(typed, "at") == wall  # a file of wall times has one of the two hours


@pytest.mark.parametrize("typed", ["2014-10-26 02:30", "26.10.2014 2:30", datetime(2014, 10, 26, 2, 30)])
@pytest.mark.parametrize(("clock", "rows"), [(BERLIN, ["00:30", "01:30"]), (WALL, ["02:30", "02:30"])])
def test_a_time_that_comes_twice_is_asked_with_both_answers(typed: str, clock: Clock, rows: list[str]) -> None:
    with pytest.raises(SettingsError, match="Europe/Berlin") as caught:
        clock.seconds(typed, "at")
    answers = ["2014-10-26 02:30:00+02:00", "2014-10-26 02:30:00+01:00"]
    assert all(f"--at '{answer}'" in str(caught.value) for answer in answers)
    assert [clock.seconds(answer, "at") for answer in answers] == [second(f"2014-10-26T{row}") for row in rows]


@pytest.mark.parametrize("clock", [BERLIN, WALL])
def test_a_time_that_does_not_exist_is_refused(clock: Clock) -> None:
    with pytest.raises(SettingsError, match="Europe/Berlin") as caught:
        clock.seconds("2014-03-30 02:30", "at")
    assert "--at '2014-03-30 03:30:00'" in str(caught.value)


@pytest.mark.parametrize("text", ["now", "2014-13-01", "2014-10-26 02:30 PST", "2014-10-26 02:30 PM", "9999-12-31", ""])
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a time"):
        BERLIN.seconds(text, "at")


def test_a_zone_needs_that_of_the_file() -> None:
    with pytest.raises(SettingsError, match="zone"):
        Clock().seconds("2014-10-26 02:30Z", "at")


@given(
    st.integers(second("2011-01-01") // 60, second("2026-01-01") // 60),
    st.sampled_from(["Europe/Berlin", "America/Los_Angeles", "Australia/Lord_Howe", "America/St_Johns", "UTC"]),
)
def test_what_is_seen_can_be_typed(minute: int, zone: str) -> None:
    clock, moment = Clock("UTC", zone), 60 * minute
    assert clock.seconds(clock.text(moment), "at") == moment
    (text,) = clock.texts(np.array([moment]))
    assert clock.seconds(text, "at") == moment
    assert text.startswith(clock.text(moment)[:19])
    wall = Clock(zone)
    assert (wall.seconds(wall.text(moment), "at"), wall.texts(np.array([moment]))) == (moment, [wall.text(moment)])
