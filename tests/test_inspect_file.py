"""The findings on a file, and what fails it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.data.inspect import inspect, problems
from socialx.data.store import create, open_store
from tests.data_files import (
    IDS,
    block,
    convert,
    made_up,
    refusal,
    small_store,
    speeds,
    stamps,
    write_csv,
    write_locations,
)


def test_a_good_file_has_no_problems(tmp_path: Path) -> None:
    path = small_store(tmp_path / "out.h5")
    report = inspect(path)
    assert problems(report) == []
    assert (report.dataset, report.rows, report.declared_rows, report.sensors) == ("metr_la", 40, 40, 3)
    assert (report.first_stamp, report.last_stamp, report.step_minutes) == (stamps(40)[0], stamps(40)[-1], 5)
    assert (report.gaps, report.largest_gap_minutes, report.duplicates) == (0, 0, 0)
    assert (report.unit, report.checksum) == ("mph", open_store(path).checksum)
    assert json.loads(json.dumps(asdict(report))) == asdict(report)


def test_shares_outages_and_gaps(tmp_path: Path) -> None:
    values = np.full((20, 3), 50.0)
    values[3:8] = 0
    values[10:12] = 0
    values[15:, 1] = np.nan
    times = stamps(24)
    data = write_csv(tmp_path / "data.csv", times[:5] + times[7:13] + times[15:], values)
    convert("la", data, write_locations(tmp_path / "meta.csv"), tmp_path / "out.h5")
    report = inspect(tmp_path / "out.h5")
    assert report.missing_share == pytest.approx((7 * 3 + 5) / 60)
    assert report.zero_share == pytest.approx(21 / 60)
    assert report.worst_sensors == pytest.approx({IDS[1]: 12 / 20, IDS[0]: 7 / 20, IDS[2]: 7 / 20})
    assert next(iter(report.worst_sensors)) == IDS[1]
    assert (report.all_missing_rows, report.longest_outage_steps) == (7, 5)
    assert (report.gaps, report.largest_gap_minutes) == (2, 15)
    assert problems(report) == []


def test_only_the_worst_sensors_are_listed(tmp_path: Path) -> None:
    ids = tuple(map(str, range(9)))
    create(tmp_path / "out.h5", made_up([block(stamps(9), np.tri(9) * np.nan)], ids))
    report = inspect(tmp_path / "out.h5")
    assert list(report.worst_sensors) == ["0", "1", "2", "3", "4"]
    assert report.worst_sensors["1"] == pytest.approx(1.0)


def _set_row(file: h5py.File, name: str, row: int, value: object) -> None:
    file[name][row] = value


def _lose_positions(file: h5py.File) -> None:
    for vdid in IDS[:2]:
        file["metadata/vd_info"][vdid].attrs["position_lat"] = np.nan


CASES: dict[str, tuple[Callable[[h5py.File], object], list[str]]] = {
    "rows": (
        lambda f: f.attrs.__setitem__("num_timesteps", 39),
        ["it has 40 rows, its attribute num_timesteps says 39"],
    ),
    "positions": (_lose_positions, ["2 of 3 sensors have no position (773869, 767541)"]),
    "a group missing": (
        lambda f: f.pop(f"metadata/vd_info/{IDS[0]}"),
        ["1 of 3 sensors have no position (773869)", "1 of 3 sensors are not in vd_info (773869)"],
    ),
    "an empty group": (
        lambda f: (f.pop(f"metadata/vd_info/{IDS[0]}"), f.create_group(f"metadata/vd_info/{IDS[0]}")),
        ["1 of 3 sensors have no position (773869)"],
    ),
    "a strange group": (lambda f: f.create_group("metadata/vd_info/9"), ["1 sensors of vd_info are not in vdids (9)"]),
    "no vd_info": (
        lambda f: f.pop("metadata/vd_info"),
        [f"3 of 3 sensors {what} (773869, 767541, 717447)" for what in ("have no position", "are not in vd_info")],
    ),
    "shifted epochs": (
        lambda f: f["metadata/timestamps_epoch"].write_direct(f["metadata/timestamps_epoch"][:] + 28800),
        ["40 of its timestamps_epoch are not the wall time of their row read as UTC"],
    ),
    "a repeated epoch": (
        lambda f: _set_row(f, "metadata/timestamps_epoch", 5, f["metadata/timestamps_epoch"][4]),
        [
            "1 rows are not later than the row before",
            "1 of its timestamps_epoch are not the wall time of their row read as UTC",
        ],
    ),
    "a repeated stamp": (
        lambda f: (_set_row(f, "metadata/timestamps", 5, stamps(40)[4].encode()), f.pop("metadata/timestamps_epoch")),
        ["1 rows have the time of an earlier row", "1 rows are not later than the row before"],
    ),
    "no epochs": (lambda f: f.pop("metadata/timestamps_epoch"), []),
    "no count": (lambda f: f.attrs.pop("num_timesteps"), []),
}


@pytest.mark.parametrize("case", CASES)
def test_what_fails_a_file(tmp_path: Path, case: str) -> None:
    change, expected = CASES[case]
    path = small_store(tmp_path / "out.h5")
    with h5py.File(path, "r+") as file:
        change(file)
    assert problems(inspect(path)) == expected


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    refusal(lambda: inspect(tmp_path / "gone.h5"), "gone.h5")
    (tmp_path / "data.csv").write_text("\n".join(map(str, speeds(3))))
    refusal(lambda: inspect(tmp_path / "data.csv"), "not an HDF5 file")
