"""Station 5-Minute files of Caltrans PeMS, as the clearinghouse writes them: days, imputed rows, silent ramps."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest

import socialx as api
from socialx.core.errors import SocialxError
from socialx.files.store.store import open_store
from tests.commands import socialx
from tests.data_files import timestamps

IDS, LANES = ("715898", "715900", "760001"), 8
META = "ID,Fwy,Dir,District,County,City,State_PM,Abs_PM,Latitude,Longitude,Length,Type,Lanes,Name,User_ID_1"
Cells = list[list[str]]


def cells(day: str, rows: int = 288, minutes: int = 5) -> Cells:
    """The cells of a day: two stations of lanes, the second imputed in the first hour, and a ramp without speeds."""
    lines = []
    for row, time in enumerate(timestamps(rows, f"{day}T00:00:00", minutes)):
        date, clock = time.split()
        when = f"{date[5:7]}/{date[8:]}/{date[:4]} {clock}"
        lane = ["10", "7", ".0121", "64.1", "1"]
        behind = [*lane, *lane, *[""] * (5 * (LANES - 2))]
        flow = str(20 + row % 50)
        lines.append([when, IDS[0], "7", "5", "S", "ML", ".43", "90", "100", flow, ".0209", "66.5", *behind])
        observed = "0" if row < 12 else "75"
        lines.append([when, IDS[1], "7", "5", "N", "HV", ".5", "0", observed, "9", ".1", f"{50 + row % 9}.5", *behind])
        lines.append([when, IDS[2], "7", "5", "N", "OR", "", "30", "100", "12", "", "", *[""] * (5 * LANES)])
    return lines


def write(path: Path, rows: Cells) -> Path:
    text = "".join(",".join(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def meta(path: Path, ids: Sequence[str] = IDS) -> Path:
    rows = [META.split(",")]
    for number, vdid in enumerate(reversed(ids)):
        location = [f"{34 + number / 100:.6f}", f"-{118 + number / 100:.6f}"]
        rows.append([vdid, "5", "S", "7", "37", "", "12.1", "116.6", *location, ".43", "ML", "2", 'PHOEBE "S"', "716"])
    rows.append(["999999", "5", "S", "7", "37", "", "12.1", "116.6", "", "", ".43", "ML", "2", "NOWHERE", "717"])
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def test_two_days_in_any_order_become_one_file(tmp_path: Path) -> None:
    days = [
        write(tmp_path / f"d07_text_station_5min_{d.replace('-', '_')}.txt.gz", cells(d))
        for d in ("2024-02-01", "2024-01-31")
    ]
    at = meta(tmp_path / "d07_text_meta_2024_01_05.txt")
    done = socialx("convert", "auto", *days, "--meta-csv", at, "--output-h5", tmp_path / "out.h5", "--validate")
    assert done.exit_code == 0, done.stderr
    assert "rows without a header, 52 columns (pems-station)" in done.stderr
    assert "24 of 1,152 readings (2.1%) are imputed by PeMS, as no lane was observed: they are kept" in done.stderr
    assert f"1 of 3 sensors lack observations of speed and are left out ({IDS[2]})" in done.stderr
    store = open_store(tmp_path / "out.h5")
    assert store.timestamps.astype(str).tolist() == timestamps(576, "2024-01-31T00:00:00")
    assert store.sensors.ids == IDS[:2]
    assert (store.unit, store.missing, store.timezone) == ("mph", 0.0, "America/Los_Angeles")
    first, second = store.values[:, 0], store.values[:, 1]
    assert (first == np.float32(66.5)).all()
    assert second.tolist() == [50.5 + row % 9 for _ in range(2) for row in range(288)]
    assert store.sensors.latitude.tolist() == [34.02, 34.01]
    assert store.sensors.longitude.tolist() == [-118.02, -118.01]
    with h5py.File(tmp_path / "out.h5") as file:
        assert file[f"metadata/vd_info/{IDS[0]}"].attrs["lanes"] == 2
        assert file[f"metadata/vd_info/{IDS[0]}"].attrs["length"] == 0.43


def test_a_folder_with_the_positions_beside_the_days(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/d07_text_station_5min_2024_01_31.txt", cells("2024-01-31"))
    write(tmp_path / "in/d07_text_station_5min_2024_02_01.txt.gz", cells("2024-02-01", 6))
    meta(tmp_path / "in/d07_text_meta_2024_01_05.txt")
    told = socialx("convert", "auto", tmp_path / "in")
    assert "rows without a header, 52 columns, 2 files (pems-station)" in told.stdout
    api.convert("auto", tmp_path / "in", output=tmp_path / "out.h5", channel="flow,speed,occupancy")
    flow = open_store(tmp_path / "out.h5", "flow")
    assert flow.values.shape == (294, 3)
    assert flow.values[:3].tolist() == [[20, 9, 12], [21, 9, 12], [22, 9, 12]]
    assert flow.unit == "veh/5min"
    occupancy, speed = open_store(tmp_path / "out.h5", "occupancy"), open_store(tmp_path / "out.h5", "avg_speed")
    assert (occupancy.unit, speed.unit) == ("share", "mph")
    assert occupancy.values[0].tolist() == pytest.approx([0.0209, 0.1, np.nan], nan_ok=True)
    assert speed.valid.any(0).tolist() == [True, True, False]


def test_times_are_month_first_whatever_the_day(tmp_path: Path) -> None:
    data = write(tmp_path / "d07.txt", cells("2024-02-01", 6))
    api.convert("pems-station", data, output=tmp_path / "out.h5", without_positions=True)
    assert open_store(tmp_path / "out.h5").timestamps[0] == b"2024-02-01 00:00:00"


def test_the_same_file_twice_is_read_once(tmp_path: Path) -> None:
    rows = cells("2024-01-31", 6)
    data = [write(tmp_path / "a.txt", rows), write(tmp_path / "b.txt", rows)]
    out = ["--without-positions", "--output-h5", tmp_path / "out.h5"]
    done = socialx("convert", "pems-station", *data, *out)
    assert (done.exit_code, "repeat an earlier one, which is kept" in done.stderr) == (0, True), done.stderr
    assert open_store(tmp_path / "out.h5").values.shape == (6, 2)


def cut(rows: Cells) -> None:
    rows[10] = rows[10][:20]


def widened(rows: Cells) -> None:
    rows[4].append("1")


def change_district(rows: Cells) -> None:
    rows[7][2] = "12"


def other_reading(rows: Cells) -> None:
    rows.append([*rows[3][:11], "12.5", *rows[3][12:]])


def no_number(rows: Cells) -> None:
    rows[3][11] = "fast"


def day_first(rows: Cells) -> None:
    rows[6][0] = "31/01/2024 00:10:00"


def without_station(rows: Cells) -> None:
    rows[6][1] = ""


BAD: dict[str, tuple[Callable[[Cells], None], str]] = {
    "cut": (cut, "line 11 has 20 cells, not 52.\n  try: correct the line"),
    "wide": (widened, "line 5 has 53 cells, not 52.\n  try: correct the line"),
    "two districts": (change_district, "line 8 has the district '12', not 7.\n  try: use a file of one district"),
    "doubled": (other_reading, "715898 has two observations at 2024-01-31 00:05:00 (66.5, 12.5)"),
    "word": (no_number, "line 4, column 'Avg Speed [mph]' is 'fast', not a number"),
    "day first": (
        day_first,
        "line 7 has the time '31/01/2024 00:10:00', not written as %m/%d/%Y %H:%M:%S.\n  try: correct the cell",
    ),
    "no station": (without_station, "line 7 has the Station '', no id.\n  try: correct the cell"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_named(tmp_path: Path, case: str) -> None:
    spoil, words = BAD[case]
    rows = cells("2024-01-31", 8)
    spoil(rows)
    data = write(tmp_path / "d07.txt.gz", rows)
    done = socialx("convert", "auto", data, "--without-positions", "--output-h5", tmp_path / "out.h5")
    assert (done.exit_code, words in done.stderr) == (1, True), done.stderr
    assert str(data) in done.stderr
    assert not (tmp_path / "out.h5").exists()


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    day = write(tmp_path / "d07.txt", cells("2024-01-31", 6))

    def error_text(*data: Path, **options: object) -> str:
        with pytest.raises(SocialxError) as caught:
            api.convert("pems-station", [*data], output=tmp_path / "out.h5", without_positions=True, **options)
        return str(caught.value)

    other = cells("2024-02-01", 6)
    for row in other:
        row[2] = "12"
    assert "d12.txt: the district is 12, but" in error_text(day, write(tmp_path / "d12.txt", other))
    assert "the rows are 60 min apart, not 5" in error_text(write(tmp_path / "hour.txt", cells("2024-01-31", 6, 60)))
    (tmp_path / "a.csv").write_text("time,S1\n2024-01-31 00:00,5\n")
    assert "no rows of pems-station (line 1 is 'time,S1').\n  try: name files such as" in error_text(tmp_path / "a.csv")
    assert "the times are in America/Los_Angeles.\n  try: drop it" in error_text(day, timezone="Europe/Paris")
    ramp = [row for row in cells("2024-01-31", 6) if row[5] == "OR"]
    alone = error_text(write(tmp_path / "ramp.txt", ramp))
    assert "all 1 sensors lack observations of speed.\n  try: channel='flow'" in alone
