"""Clocks of loggers: steps as long as the change of the clock, hours that do not exist, offsets and a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import socialx
from socialx.files.store.store import Store, open_store
from tests.commands import socialx as run
from tests.data_files import refusal

BERLIN, HOWE = "Europe/Berlin", "Australia/Lord_Howe"
IDS = ["S1", "S2"]
# A moment in UTC when the clock is put back, by how many minutes.
BACK = {BERLIN: ("2024-10-27T01:00", 60), HOWE: ("2024-04-06T15:00", 30), "America/Havana": ("2023-11-05T05:00", 60)}


def moments(around: str, step: int, rows: int = 40) -> list[datetime]:
    """Moments in UTC, every ``step`` minutes, the change in the middle."""
    middle = datetime.fromisoformat(around).replace(tzinfo=UTC)
    return [middle + (row - rows // 2) * timedelta(minutes=step) for row in range(rows)]


def table(path: Path, texts: list[str], values: np.ndarray) -> Path:
    pd.DataFrame(values, columns=IDS, index=pd.Index(texts, name="time")).to_csv(path)
    return path


def wall(times: list[datetime], zone: str, form: str = "%Y-%m-%d %H:%M:%S") -> list[str]:
    return [time.astimezone(ZoneInfo(zone)).strftime(form) for time in times]


def speeds(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(20, 90, (rows, 2)).round(1)


def converted(data: Path, **options: Any) -> tuple[Store, list[str]]:
    """The file, and the notes."""
    notes: list[str] = []
    output = data.with_suffix(".h5")
    told = {"without_positions": True, "overwrite": True} | options
    heard = lambda event: notes.append(str(event.message)) if hasattr(event, "message") else None  # noqa: E731
    socialx.convert("auto", data, output, progress=heard, **told)
    return open_store(output), notes


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize(
    ("zone", "step"),
    [(HOWE, 5), (HOWE, 15), (HOWE, 30), (BERLIN, 15), (BERLIN, 30), (BERLIN, 60), ("America/Havana", 60)],
)
def test_a_time_that_comes_twice_is_kept(tmp_path: Path, zone: str, step: int, equal: bool) -> None:
    times = moments(BACK[zone][0], step)
    values = np.full((40, 2), 50.0) if equal else speeds(40)
    data = table(tmp_path / "data.csv", wall(times, zone), values)
    store, notes = converted(data, timezone=zone)
    assert store.timestamps.astype(str).tolist() == wall(times, "UTC")
    assert np.array_equal(store.values, values.astype(np.float32))
    assert any("all times are written in UTC" in note for note in notes)


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize(("zone", "step"), [(HOWE, 30), (BERLIN, 60)])
def test_without_a_zone_it_is_never_dropped_in_silence(tmp_path: Path, zone: str, step: int, equal: bool) -> None:
    times = moments(BACK[zone][0], step)
    values = np.zeros((40, 2)) if equal else speeds(40)
    data = table(tmp_path / "data.csv", wall(times, zone), values)
    refusal(
        lambda: converted(data, quantity="flow"),
        "look like the hour that comes twice",
        "keep both hours with --timezone ZONE",
    )


def test_a_row_that_stands_twice_elsewhere_is_read_once(tmp_path: Path) -> None:
    """Also in a file with the hour twice, and in that hour where its rows are closer than the change."""
    times = moments(BACK[BERLIN][0], 60)
    texts, values = wall(times, BERLIN), speeds(40)
    again = [0, 0, *range(1, 40)]
    store, notes = converted(table(tmp_path / "a.csv", [texts[row] for row in again], values[again]), timezone=BERLIN)
    assert store.timestamps.astype(str).tolist() == wall(times, "UTC")
    assert any("1 row repeats an earlier one" in note for note in notes)
    times = moments(BACK[BERLIN][0], 15)
    texts, again = wall(times, BERLIN), [*range(18), 17, *range(18, 40)]
    store, notes = converted(table(tmp_path / "b.csv", [texts[row] for row in again], values[again]), timezone=BERLIN)
    assert store.timestamps.astype(str).tolist() == wall(times, "UTC")


def test_two_rows_of_the_only_hour_that_differ_are_refused(tmp_path: Path) -> None:
    times = moments(BACK[BERLIN][0], 60)
    texts, again = wall(times, BERLIN), [0, 0, *range(1, 40)]
    data = table(tmp_path / "a.csv", [texts[row] for row in again], speeds(41))
    refusal(lambda: converted(data, timezone=BERLIN), "two rows at 2024-10-26 07:00:00 with different observations")


@pytest.mark.parametrize(("first", "last"), [("2024-03-31T00:00", "02:55"), ("2024-03-30T10:00", "03:30")])
def test_hours_that_do_not_exist_in_the_zone_are_remarked(tmp_path: Path, first: str, last: str) -> None:
    begin = datetime.fromisoformat(first)
    texts = [f"{begin + row * timedelta(minutes=5)}" for row in range(400)]
    data = table(tmp_path / "data.csv", texts, speeds(400))
    arguments = ["convert", "auto", data, "--units", "km/h", "--without-positions", "--output-h5", tmp_path / "o.h5"]
    done = run(*arguments, "--timezone", BERLIN)
    line = (
        f"12 rows with readings are at times that daylight saving time skips in {BERLIN}, such as 2024-03-31 02:00:00: "
        "the clock seems to have no daylight saving time: convert again with --timezone Etc/GMT-1"
    )
    assert done.exit_code == 0
    assert line in done.stderr
    assert f"remark: {line}" in run("inspect", tmp_path / "o.h5").stdout
    gate = run("inspect", tmp_path / "o.h5", "--fail-unless", "timezone")
    assert gate.exit_code == 3
    right = run(*arguments, "--overwrite", "--timezone", "Etc/GMT-1")
    assert "skips" not in right.stderr
    assert "skips" not in run("inspect", tmp_path / "o.h5").stdout


def test_rows_without_readings_in_that_hour_prove_nothing(tmp_path: Path) -> None:
    begin = datetime(2024, 3, 31)
    texts = [f"{begin + row * timedelta(minutes=5)}" for row in range(100)]
    values = speeds(100)
    values[24:36] = 0
    _, notes = converted(table(tmp_path / "data.csv", texts, values), timezone=BERLIN)
    assert not any("skips" in note for note in notes)


def test_a_zone_of_half_hours_has_no_plain_name(tmp_path: Path) -> None:
    begin = datetime(2024, 10, 6)  # 02:00 becomes 02:30
    texts = [f"{begin + row * timedelta(minutes=5)}" for row in range(100)]
    _, notes = converted(table(tmp_path / "data.csv", texts, speeds(100)), timezone=HOWE)
    told = [note for note in notes if "skips" in note]
    assert told
    for line in told:  # of the table, and of the file that was written
        assert line.startswith("6 rows with readings") or ": 6 rows with readings" in line
        assert "write the times in UTC" in line


FORMS = {
    "offset": lambda times, zone: [time.astimezone(ZoneInfo(zone)).isoformat() for time in times],
    "Z": lambda times, zone: wall(times, "UTC", "%Y-%m-%dT%H:%M:%SZ"),
    "seconds": lambda times, zone: [str(int(time.timestamp())) for time in times],
    "milliseconds": lambda times, zone: [str(1000 * int(time.timestamp())) for time in times],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("around", "step"), [("2024-02-01T12:00", 5), ("2024-03-31T01:00", 15), ("2024-03-31T01:00", 60)]
)
def test_times_with_an_offset_become_wall_times_of_the_zone(tmp_path: Path, form: str, around: str, step: int) -> None:
    times, values = moments(around, step), speeds(40)
    data = table(tmp_path / "data.csv", FORMS[form](times, BERLIN), values)
    store, notes = converted(data, timezone=BERLIN)
    assert (store.timezone, store.timestamps.astype(str).tolist()) == (BERLIN, wall(times, BERLIN))
    assert np.array_equal(store.values, values.astype(np.float32))
    assert not any("UTC" in note and "written" in note for note in notes)
    assert any(f"written as wall times of {BERLIN}" in note for note in notes)
    store, notes = converted(data)
    assert (store.timezone, store.timestamps.astype(str).tolist()) == ("UTC", wall(times, "UTC"))
    (note,) = [note for note in notes if "times are read as" in note]
    assert ("milliseconds since 1970" in note) == (form == "milliseconds")
    assert note.endswith("written in UTC.\n  try: write wall times with timezone='ZONE'")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("zone", "step"), [(BERLIN, 5), (BERLIN, 60), (HOWE, 30)])
def test_the_hour_that_comes_twice_stays_in_utc(tmp_path: Path, form: str, zone: str, step: int) -> None:
    times, values = moments(BACK[zone][0], step), speeds(40)
    data = table(tmp_path / "data.csv", FORMS[form](times, zone), values)
    store, notes = converted(data, timezone=zone)
    assert (store.timezone, store.timestamps.astype(str).tolist()) == ("UTC", wall(times, "UTC"))
    assert any(f"end of daylight saving time in {zone}" in n and "all times are written in UTC" in n for n in notes)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([BERLIN, HOWE, "America/Los_Angeles", "Asia/Kolkata", "America/Havana"]),
    st.datetimes(datetime(2023, 1, 1), datetime(2024, 12, 31)),
    st.sampled_from([5, 15, 30, 60]),
    st.sampled_from(list(FORMS)),
)
def test_any_times_with_an_offset_are_the_same_moments(
    tmp_path: Path, zone: str, first: datetime, step: int, form: str
) -> None:
    begin = first.replace(minute=0, second=0, microsecond=0, tzinfo=UTC)
    times = [begin + row * timedelta(minutes=step) for row in range(60)]
    store, _ = converted(table(tmp_path / "data.csv", FORMS[form](times, zone), speeds(60)), timezone=zone)
    assert store.timestamps.astype(str).tolist() == wall(times, store.timezone or "")
    assert store.timezone == ("UTC" if len(set(wall(times, zone))) < 60 else zone)


def test_times_with_an_offset_that_go_back_are_refused(tmp_path: Path) -> None:
    times = moments("2024-10-27T01:00", 15)
    texts = FORMS["Z"](times, BERLIN)
    data = table(tmp_path / "data.csv", [*texts[:10], *texts[5:]], speeds(45))
    refusal(lambda: converted(data, timezone=BERLIN), "two rows at 2024-10-26 21:15:00 with different observations")


@pytest.mark.parametrize("step", [15, 60])
def test_append_keeps_an_hour_that_comes_twice(tmp_path: Path, step: int) -> None:
    times, values = moments(BACK[BERLIN][0], step), speeds(40)
    texts = wall(times, BERLIN)
    new = table(tmp_path / "new.csv", texts[10:], values[10:])
    offsets = table(tmp_path / "offsets.csv", FORMS["offset"](times[10:], BERLIN), values[10:])
    for later in (new, offsets):
        store, _ = converted(table(tmp_path / "old.csv", texts[:10], values[:10]), timezone=BERLIN)
        socialx.append(store.path, later)
        assert open_store(store.path).timestamps.astype(str).tolist() == wall(times, "UTC")
    store, _ = converted(table(tmp_path / "old.csv", texts[:10], values[:10]))
    command = "socialx convert auto OLD NEW --meta-csv LOCATIONS.csv --timezone"
    remedy = f"convert all rows into a new file, which keeps both hours: {command}"
    refusal(lambda: socialx.append(store.path, new), "the hour that comes twice", remedy, task="append")
