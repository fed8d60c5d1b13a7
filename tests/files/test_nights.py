"""Each night a table of local times is appended: the file ends equal to one conversion, whatever the clock does."""

from pathlib import Path

import pandas as pd
import pytest

from socialx.files.store.store import open_store
from tests.data_files import refusal, unchanged
from tests.files.test_append import append, content, file_of, network

ZONES = {  # the first of some days around both changes
    "Europe/Berlin": ("2024-03-30", "2024-10-26"),
    "America/Los_Angeles": ("2024-03-09", "2024-11-02"),
    "Australia/Lord_Howe": ("2024-10-05", "2024-04-06"),
}


def by_night(zone: str, first: str, days: int, folder: Path) -> None:
    """Convert the first day, append the others one by one, and compare with one conversion."""
    end = pd.Timestamp(first) + pd.Timedelta(days=days)
    moments = pd.date_range(first, end, freq="30min", tz=zone, inclusive="left", name="time")
    frame = network(len(moments)).set_axis(moments.tz_localize(None))
    whole = content(file_of(frame, folder, timezone=zone))
    parts = [part for _, part in frame.groupby(frame.index.date, sort=False)]
    path = file_of(parts[0], folder, timezone=zone)
    for part in parts[1:]:
        append(path, part)
    assert (len(parts), content(path)) == (days, whole)


@pytest.mark.parametrize("change", [0, 1], ids=["forward", "back"])
@pytest.mark.parametrize("zone", ZONES)
def test_nights_around_a_change_end_as_one_conversion(zone: str, change: int, tmp_path: Path) -> None:
    by_night(zone, ZONES[zone][change], 3, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_all_nights_of_a_year_end_as_one_conversion(zone: str, tmp_path: Path) -> None:
    by_night(zone, "2024-01-01", 366, tmp_path)


@pytest.mark.parametrize("first", ["2024-03-29", "2024-05-03", "2024-10-25"])
def test_a_day_that_was_left_out_is_asked_for(first: str, tmp_path: Path) -> None:
    """The table of the third day was refused: the fourth is no reason to fill that day, of 23, 24 or 25 hours."""
    moments = pd.date_range(first, periods=4 * 24 + 1, freq="h", tz="Europe/Berlin", name="time")
    frame = network(len(moments)).replace(0, 50).fillna(50).set_axis(moments.tz_localize(None))
    days = [part for _, part in frame.groupby(frame.index.date, sort=False)]
    path = file_of(frame[: len(days[0]) + len(days[1])], tmp_path)
    with unchanged(path):
        line = refusal(lambda: append(path, days[3]), "after", task="append")
    assert "--fill-gaps" in line
    assert append(path, days[3], fill_gaps=True).filled == len(days[2])
    assert (append(path, days[2]).restored, open_store(path).clock.name) == (len(days[2]), "Europe/Berlin")
