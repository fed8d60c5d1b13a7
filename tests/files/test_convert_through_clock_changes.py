"""Wall times through both changes of a zone's clock: every reading is kept in UTC, or the file is refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from socialx.core.errors import SettingsError
from socialx.files.sources.readings import read
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables import clock_changes as walltimes
from socialx.files.sources.tables.clock_changes import goes_back, in_utc
from socialx.files.store.layout import Readings
from socialx.files.store.store import open_store
from socialx.files.store.time_axis import as_text
from socialx.files.store.writer import create
from tests.commands import socialx
from tests.data_files import IDS, refusal, seconds_of, shown, speeds, write_csv, write_frame, write_locations

# The zone, a moment in UTC when its clock is put back, one when it is put forward, and by how many minutes.
CHANGES = {
    "Europe/Paris": ("2023-10-29T01:00", "2024-03-31T01:00", 60),
    "America/Los_Angeles": ("2023-11-05T09:00", "2024-03-10T10:00", 60),
    "Australia/Lord_Howe": ("2024-04-06T15:00", "2023-09-30T15:30", 30),
    "America/St_Johns": ("2010-11-07T02:31", "2010-03-14T03:31", 60),  # one minute after midnight
    "America/Havana": ("2023-11-05T05:00", "2023-03-12T05:00", 60),  # at midnight
}
PARIS = "Europe/Paris"
DAY = timedelta(days=1)


def moments(around: str, step: int, before: float = 0.3, after: float = 0.3) -> list[datetime]:
    """Moments in UTC, every ``step`` minutes from some days before to some days after one."""
    middle = datetime.fromisoformat(around).replace(tzinfo=UTC)
    begin = middle - before * DAY
    begin -= timedelta(minutes=begin.minute % step if step <= 60 else 0, seconds=begin.second)
    count = int((middle + after * DAY - begin) / timedelta(minutes=step))
    return [begin + number * timedelta(minutes=step) for number in range(count)]


def texts(times: list[datetime], zone: str = "UTC") -> list[str]:
    return [time.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S") for time in times]


def utc_texts(times: list[str], zone: str = PARIS) -> list[str]:
    return list(map(as_text, in_utc(seconds_of(times), zone, Path("data.csv"))[0].tolist()))


def speeds_csv(path: Path, times: list[str]) -> Path:
    return write_csv(path, times, speeds(len(times)))


def source(path: Path, zone: str | None) -> Readings:
    return read("auto", ConvertOptions(path, timezone=zone, without_positions=True))


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("step", [1, 5, 10, 15, 30])
def test_a_clock_put_back_and_forward_is_undone(zone: str, step: int) -> None:
    back, forward, _ = CHANGES[zone]
    both = sorted([*moments(back, step), *moments(forward, step)])
    wall = texts(both, zone)
    assert goes_back(seconds_of(wall))
    assert utc_texts(wall, zone) == texts(both)


@pytest.mark.parametrize("zone", [zone for zone, (_, _, minutes) in CHANGES.items() if minutes == 60])
def test_hourly_rows_repeat_a_time(zone: str) -> None:
    times = moments(CHANGES[zone][0], 60, 2, 2)
    wall = texts(times, zone)
    assert len(set(wall)) == len(wall) - 1
    assert utc_texts(wall, zone) == texts(times)


@given(
    st.sampled_from(list(CHANGES)),
    st.sampled_from([5, 10, 15]),
    st.integers(0, 400),
    st.integers(3, 400),
    st.sets(st.integers(0, 400), max_size=30),
)
def test_times_come_back_exactly_or_are_refused(zone: str, step: int, first: int, count: int, lost: set[int]) -> None:
    """Rows are cut off and left out: what is converted is right, and nothing else is raised than a refusal."""
    whole = moments(CHANGES[zone][0], step, 0.6, 0.6)[first : first + count]
    times = [time for row, time in enumerate(whole) if row not in lost]
    wall = texts(times, zone)
    if not goes_back(seconds_of(wall)):
        return
    try:
        result = utc_texts(wall, zone)
    except walltimes.SocialxError:
        assert lost
    else:
        assert result == texts(times)


@pytest.mark.parametrize("zone", CHANGES)
def test_every_row_that_may_be_lost_is_right_or_refused(zone: str) -> None:
    times = moments(CHANGES[zone][0], 10, 0.15, 0.15)
    refused = 0
    for lost in range(len(times)):
        kept = times[:lost] + times[lost + 1 :]
        try:
            assert utc_texts(texts(kept, zone), zone) == texts(kept)
        except walltimes.SocialxError:
            refused += 1
    assert refused == 2  # the rows on both sides of the change


def test_several_years_are_converted_at_once() -> None:
    begin = datetime(2021, 1, 1, tzinfo=UTC)
    times = [begin + number * timedelta(minutes=30) for number in range(48 * 365 * 3)]
    result, note = in_utc(seconds_of(texts(times, PARIS)), PARIS, Path("data.csv"))
    assert result.tolist() == seconds_of(texts(times)).tolist()
    assert str(note) == (
        "data.csv: times come twice at the end of daylight saving time in Europe/Paris, so all times are written in "
        "UTC (2021-10-31 02:30:00, then 2021-10-31 02:00:00, 2022-10-30 02:30:00, then 2022-10-30 02:00:00, "
        "2023-10-29 02:30:00, then 2023-10-29 02:00:00)."
    )


@pytest.mark.parametrize("size", [1000, 1 << 22])
@pytest.mark.parametrize("kind", ["published-csv", "csv", "hdfstore"])
def test_a_file_with_the_hour_twice_keeps_every_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: int
) -> None:
    monkeypatch.setattr("socialx.files.sources.tables.text_cells.PIECE_BYTES", size)
    monkeypatch.setattr("socialx.files.sources.hdfstore.BLOCK_BYTES", size)
    times = moments("2023-10-29T01:00", 5) + moments("2024-03-31T01:00", 5)
    wall, values = texts(times, PARIS), speeds(len(times))
    if kind == "hdfstore":
        data = write_frame(tmp_path / "data.h5", wall, values)
    else:
        data = write_csv(tmp_path / "data.csv", wall, values)
        if kind == "csv":
            data.write_text("time" + data.read_text().replace(" 0", "T0").replace(" 1", "T1").replace(" 2", "T2"))
    meta, out = write_locations(tmp_path / "meta.csv"), tmp_path / "out.h5"
    arguments = ["convert", "auto", data, "--meta-csv", meta, "--output-h5", out, "--validate"]
    plain = socialx(*arguments)
    assert plain.exit_code == 1
    row = wall.index("2023-10-29 02:00:00", wall.index("2023-10-29 02:55:00")) + 1
    assert "\n".join(plain.stderr.splitlines()[-2:]).startswith(
        f"error: {data}: rows {row - 1} and {row} (2023-10-29 02:55:00, 2023-10-29 02:00:00) look like the hour that "
        "comes twice at the end of daylight saving time.\n  try: keep both hours with --timezone "
    )
    asked = socialx(*arguments, "--timezone", PARIS).stderr.splitlines()[-2:]
    assert "have no row" in asked[0]
    assert asked[1].endswith("check the dates, or write such rows without readings with --freq 5min")
    done = socialx(*arguments, "--timezone", PARIS, "--freq", "5min")
    assert done.exit_code == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "UTC" in line]
    assert lines == [
        f"note: {data}: times come twice at the end of daylight saving time in Europe/Paris, so all times are written "
        "in UTC (2023-10-29 02:55:00, then 2023-10-29 02:00:00)."
    ]
    store = open_store(out)
    assert store.timezone == "UTC"
    rows = np.searchsorted(store.seconds, [int(time.timestamp()) for time in times])
    assert store.timestamps[rows].astype(str).tolist() == texts(times)
    assert store.values[rows].tobytes() == values.astype(np.float32).tobytes()
    assert np.isnan(np.delete(store.values, rows, axis=0)).all()
    assert (np.diff(store.seconds) == 300).all()  # also through both changes of the clock
    with h5py.File(out) as file:
        assert file["metadata/timestamps_epoch"][:][rows].tolist() == [int(time.timestamp()) for time in times]


def test_times_that_only_increase_stay_wall_times(tmp_path: Path) -> None:
    """Also through the hour that spring skips."""
    wall = texts(moments("2024-03-31T01:00", 5), PARIS)
    result = source(speeds_csv(tmp_path / "data.csv", wall), PARIS)
    create(tmp_path / "out.h5", result)
    store = open_store(tmp_path / "out.h5")
    assert (store.timezone, store.timestamps.astype(str).tolist()) == (PARIS, wall)
    assert not any("UTC" in note for note in shown(result.notes))


def test_a_known_data_set_names_its_zone(tmp_path: Path) -> None:
    data = speeds_csv(tmp_path / "data.csv", texts(moments("2012-11-04T09:00", 5), "America/Los_Angeles"))
    result = read("metr-la", ConvertOptions(data, without_positions=True))
    refusal(lambda: create(tmp_path / "out.h5", result), "keep both hours with --timezone America/Los_Angeles")


FALL = texts(moments("2023-10-29T01:00", 5), PARIS)
SWITCH = FALL.index("2023-10-29 02:55:00") + 1  # the row of the second 02:00
REFUSED = {
    "another zone": (FALL, "America/New_York", ["02:55:00, 2023-10-29 02:00:00", "say the right --timezone"]),
    "no clock change": (FALL, "UTC", ["are not in order of time, also with the hours that come twice in UTC"]),
    "another day": ([t.replace("10-29", "10-28").replace("10-28", "10-27", 0) for t in FALL if "10-29" in t], PARIS,
                    ["two rows at", "with different observations"]),
    "back by a day": ([*FALL[:5], *FALL], PARIS, ["two rows at", "with different observations"]),
    "two rows twice": ([*FALL[: SWITCH - 6], *FALL[SWITCH - 8 :]], PARIS, ["go back where Europe/Paris does", "300 s"]),
    "two rows swapped": (
        [*FALL[: SWITCH + 3], FALL[SWITCH + 4], FALL[SWITCH + 3], *FALL[SWITCH + 5 :]], PARIS, ["go back where"]
    ),
    "three times": ([*FALL[:SWITCH], *FALL[SWITCH - 12 :]], PARIS, ["go back where Europe/Paris does"]),
    "a row lost there": ([*FALL[: SWITCH - 1], *FALL[SWITCH:]], PARIS, ["are not 300 s apart in UTC"]),
    "a skipped time": (
        [*FALL, *texts(moments("2024-03-31T01:00", 5)[:40]), "2024-03-31 02:30:00", "2024-03-31 03:30:00"], PARIS,
        ["has the time 2024-03-31 02:30:00, which the start of daylight saving time skips in Europe/Paris"]
    ),
    "once in another year": (
        [*FALL, *[t for t in texts(moments("2024-10-27T01:00", 5), PARIS) if not t.startswith("2024-10-27 02")],
         "2025-10-26 01:55:00", *[f"2025-10-26 02:{5 * n:02}:00" for n in range(12)], "2025-10-26 03:00:00"], PARIS,
        ["has the time 2025-10-26 02:00:00 once in the file, but twice in Europe/Paris", "in UTC"]
    )
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_that_hour_is_refused(tmp_path: Path, case: str) -> None:
    times, zone, words = REFUSED[case]
    data = speeds_csv(tmp_path / "data.csv", times)
    refusal(lambda: create(tmp_path / "out.h5", source(data, zone)), str(data), *words)


def test_a_year_in_which_an_outage_leaves_part_of_the_hour_is_known_by_its_neighbours() -> None:
    before = moments("2024-10-27T01:00", 5)
    first = [t for t in before if not "2024-10-27T00:30" <= t.isoformat() < "2024-10-27T02:30"]
    second = [t for t in before if not "2024-10-26T23:30" <= t.isoformat() < "2024-10-27T01:30"]
    for kept in (first, second):
        times = moments("2023-10-29T01:00", 5) + kept
        assert utc_texts(texts(times, PARIS)) == texts(times)


@pytest.mark.parametrize(
    "times",
    [
        [*FALL[: SWITCH - 6], *FALL[SWITCH - 7 :]],  # a row twice in that hour
        [FALL[0], FALL[0], *FALL[1:]],  # at the beginning
        [t.replace("10-29", "10-30") for t in FALL[SWITCH - 5 : SWITCH + 5]],  # on a day without a change anywhere
        sorted(FALL),  # both hours mixed
    ],
)
def test_rows_out_of_order_are_not_called_that_hour(tmp_path: Path, times: list[str]) -> None:
    result = source(speeds_csv(tmp_path / "data.csv", times), None)
    line = refusal(lambda: create(tmp_path / "out.h5", result))
    assert re.search("not in order of time.*sort the rows|two rows at .* with different observations", line)
    assert "--timezone" not in line


def test_a_machine_without_time_zones_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.files.sources.request.available_timezones", set)
    data = speeds_csv(tmp_path / "data.csv", FALL)
    with pytest.raises(SettingsError, match="missing from the time zone data of this machine"):
        source(data, "Mars/Phobos")


def test_a_file_that_changes_between_its_two_passes_is_refused(tmp_path: Path) -> None:
    data = speeds_csv(tmp_path / "data.csv", FALL)
    for rows in (FALL[:-1], [*FALL, "2023-10-30 00:00:00"], [FALL[0], *FALL[2:]]):
        speeds_csv(data, FALL)
        result = source(data, PARIS)
        speeds_csv(data, rows)
        refusal(lambda readings=result: create(tmp_path / "out.h5", readings), "changed while it was read")
    assert not (tmp_path / "out.h5").exists()


def test_ids_and_notes_of_a_converted_file(tmp_path: Path) -> None:
    result = source(speeds_csv(tmp_path / "data.csv", FALL), PARIS)
    assert result.sensors.ids == IDS
    assert result.timezone == "UTC"
