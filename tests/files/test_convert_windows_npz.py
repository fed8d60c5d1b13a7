"""The windows of DCRNN and Graph WaveNet become the series that they were cut from, or are refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from socialx.files.formats import arrays
from socialx.files.formats.registry import FORMATS
from tests.array_files import check, contents, fractions, joined, recognised, tiled, weekdays
from tests.data_files import reason as why
from tests.data_files import refusal, speeds, timestamps
from tests.published_files import NAMES, Windows, cut, write_windows

ROWS = 150
START = {"start": "2012-03-01 00:00:00"}
GAPS = "the times follow from the times of day, which do not show gaps of whole days"


def series(times: list[str]) -> np.ndarray:
    return tiled(speeds(len(times)), fractions(times))


def usual(times: list[str] | None = None) -> Windows:
    return cut(series(times or timestamps(ROWS)), np.arange(-11, 1), np.arange(1, 13))


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(arrays, "PIECE_BYTES", getattr(request, "param", 2000))


SIZES = (1, 2000, 1 << 23)  # one window, a few, and all of a file at once
any_pieces = pytest.mark.parametrize("pieces", SIZES, indirect=True)


@pytest.mark.parametrize("given_name", ["", *NAMES])
def test_a_folder_or_any_of_its_files(tmp_path: Path, given_name: str) -> None:
    given_path = write_windows(tmp_path, usual()) / given_name
    assert recognised(given_path) == ["windows-npz"]
    reason = "a zip of x and y windows (train.npz, val.npz, test.npz)"
    assert why(FORMATS["windows-npz"], given_path) == reason
    assert FORMATS["windows-npz"].has_clock
    found = contents("windows-npz", given_path, **START)
    assert found.notes == (GAPS,)
    check(found, timestamps(ROWS), speeds(ROWS), "avg_speed", None)


@any_pieces
def test_the_missing_hour_of_pems_bay(tmp_path: Path) -> None:
    times = [time for time in timestamps(500, "2017-03-11T12:00:00") if not time.startswith("2017-03-12 02:")]
    assert times[times.index("2017-03-12 01:55:00") + 1] == "2017-03-12 03:00:00"
    assert len(times) == 488
    found = contents("windows-npz", write_windows(tmp_path, usual(times)), start=times[0])
    check(found, times, speeds(488), "avg_speed", None)


def test_more_channels_float32_and_missing_readings(tmp_path: Path) -> None:
    times, values = timestamps(ROWS), speeds(ROWS)
    values[40:60, 1] = np.nan
    data = tiled(values, fractions(times), weekdays(times)).astype(np.float32)
    windows = cut(data, np.arange(-11, 1), np.arange(1, 13))
    check(contents("windows-npz", write_windows(tmp_path, windows), **START), times, values, "avg_speed", None)


@pytest.mark.parametrize(("first", "last"), [(1, 1), (0, 12), (-11, 3), (-5, 1), (1, 24)])
def test_other_offsets(tmp_path: Path, first: int, last: int) -> None:
    windows = cut(series(timestamps(ROWS)), np.arange(-11, 1), np.arange(first, last + 1))
    check(
        contents("windows-npz", write_windows(tmp_path, windows), **START),
        timestamps(ROWS),
        speeds(ROWS),
        "avg_speed",
        None,
    )


def test_without_offsets_the_usual_ones_are_meant(tmp_path: Path) -> None:
    windows = cut(series(timestamps(ROWS)), np.arange(-6, 1), np.arange(1, 4))
    bare = {name: {key: members[key] for key in "xy"} for name, members in windows.items()}
    check(
        contents("windows-npz", write_windows(tmp_path, bare), **START),
        timestamps(ROWS),
        speeds(ROWS),
        "avg_speed",
        None,
    )


@settings(max_examples=25)
@given(st.data())
def test_any_series_comes_back(data: st.DataObject) -> None:
    before, after = data.draw(st.integers(2, 9), "H"), data.draw(st.integers(1, 9), "P")
    rows = before + after - 1 + data.draw(st.integers(3, 40), "S")
    sensors, channels = data.draw(st.integers(1, 4), "N"), data.draw(st.integers(2, 4), "C")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    start = f"2012-02-28T{data.draw(st.integers(0, 23), 'hour'):02}:35:00"
    times = timestamps(rows, start, data.draw(st.sampled_from([1, 5, 15, 60]), "minutes"))
    values = rng.normal(50, 20, (rows, sensors))
    values[rng.random(values.shape) < 0.1] = data.draw(st.sampled_from([0.0, np.nan]), "missing")
    more = [rng.random(rows) for _ in range(channels - 2)]
    windows = cut(tiled(values, fractions(times), *more), np.arange(1 - before, 1), np.arange(1, after + 1))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "PIECE_BYTES", data.draw(st.sampled_from(SIZES), "bytes"))
        found = contents("windows-npz", write_windows(Path(folder), windows), start=times[0])
        check(found, times, values, "avg_speed", None)


# ---- what is refused


def _all(folder: Path, windows: Windows) -> None:
    joined(contents("windows-npz", write_windows(folder, windows), **START))


def _order(windows: Windows, name: str, places: np.ndarray | slice, keys: str = "xy") -> Windows:
    members = windows[name]
    return {**windows, name: {**members, **{key: members[key][places] for key in keys}}}


@any_pieces
def test_shuffled_windows_are_refused(tmp_path: Path) -> None:
    places = np.arange(len(usual()["train.npz"]["x"]))
    places[[30, 50]] = 50, 30
    words = ("train.npz: x[30] is not the window before it moved by one row", "cut the windows again")
    refusal(lambda: _all(tmp_path, _order(usual(), "train.npz", places)), *words)


@any_pieces
def test_windows_two_rows_apart_are_refused(tmp_path: Path) -> None:
    refusal(lambda: _all(tmp_path, _order(usual(), "val.npz", slice(0, None, 2))), "val.npz: x[1] is not")


@any_pieces
@pytest.mark.parametrize(("name", "lost"), [("val.npz", 1), ("test.npz", 3)])
def test_a_gap_between_files_is_refused(tmp_path: Path, name: str, lost: int) -> None:
    refusal(lambda: _all(tmp_path, _order(usual(), name, slice(lost, None))), f"{name}: x[0] is not")


@any_pieces
def test_one_changed_reading_is_refused(tmp_path: Path) -> None:
    windows = usual()
    windows["test.npz"]["x"][9, 4, 2, 0] += 1
    refusal(lambda: _all(tmp_path, windows), "test.npz: x[9] is not")
    windows["test.npz"]["x"][9, 4, 2, 0] = np.nan
    refusal(lambda: _all(tmp_path, windows), "test.npz: x[9] is not")


@any_pieces
def test_targets_of_another_kind_are_refused(tmp_path: Path) -> None:
    windows = usual()
    rows = len(windows["test.npz"]["x"])
    windows["test.npz"]["y"] = windows["test.npz"]["y"] / 2
    last = f"test.npz: y[{rows - 2}] does not hold the last row of x[{rows - 1}]"
    refusal(lambda: _all(tmp_path, windows), last, "scaled")
    windows = usual()
    windows["test.npz"]["y"][5, 5, 0, 0] += 1
    refusal(lambda: _all(tmp_path, windows), "test.npz: y[5] is not the window before it")


@any_pieces
def test_a_test_file_of_one_window(tmp_path: Path) -> None:
    windows = usual()
    rows = len(windows["train.npz"]["x"]) + len(windows["val.npz"]["x"]) + 1 + 11 + 12
    windows = _order(windows, "test.npz", slice(0, 1))
    found = contents("windows-npz", write_windows(tmp_path, windows), **START)
    check(found, timestamps(ROWS)[:rows], speeds(ROWS)[:rows], "avg_speed", None)


def _changed(name: str, **members: np.ndarray) -> Windows:
    windows = usual()
    return {**windows, name: {**windows[name], **members}}


ONE = cut(tiled(speeds(ROWS)), np.arange(-11, 1), np.arange(1, 13))
BAD = {
    "one row": (lambda: cut(series(timestamps(ROWS)), np.arange(1), np.arange(1, 13)), "order cannot be checked"),
    "no time": (lambda: ONE, "without a time of day"),
    "a gap before y": (
        lambda: cut(series(timestamps(ROWS)), np.arange(-11, 1), np.arange(2, 13)),
        "x_offsets end at 0 and y_offsets are 2 to 12",
    ),
    "y inside x": (
        lambda: cut(series(timestamps(ROWS)), np.arange(-11, 1), np.arange(-3, 1)),
        "y does not go on from x",
    ),
    "offsets apart": (lambda: _changed("train.npz", y_offsets=np.arange(12) * 2), "y_offsets is 0 2 4 6 ..."),
    "few offsets": (lambda: _changed("train.npz", x_offsets=np.arange(-5, 1)), "not 12 neighbouring rows"),
    "other sensors": (lambda: _order_sensors("val.npz"), "val.npz: x is"),
    "targets of fewer channels": (lambda: _less_y(usual()), "train.npz: x is"),
    "fewer targets": (lambda: _order(usual(), "test.npz", slice(1, None), "y"), "test.npz: x is"),
    "flat": (lambda: _changed("train.npz", x=np.zeros((5, 12))), "'x.npy' in it has shape (5, 12)"),
    "no windows": (lambda: _order(usual(), "val.npz", slice(0, 0)), "has shape (0, 12, 3, 2)"),
    "pickles": (lambda: _changed("test.npz", y=np.array([None, {}])), "test.npz: 'y.npy' in it holds Python objects"),
    "no x": (lambda: {**usual(), "val.npz": {"data": np.ones((3, 3))}}, "val.npz: no 'x.npy' in it"),
}


def _order_sensors(name: str) -> Windows:
    return _changed(name, x=usual()[name]["x"][:, :, :2], y=usual()[name]["y"][:, :, :2])


def _less_y(windows: Windows) -> Windows:
    return {name: {**members, "y": members["y"][..., :1]} for name, members in windows.items()}


@pytest.mark.parametrize("case", BAD)
def test_windows_of_another_kind_are_refused(tmp_path: Path, case: str) -> None:
    make, words = BAD[case]
    refusal(lambda: _all(tmp_path, make()), str(tmp_path), words)


def test_missing_and_damaged_files_are_refused(tmp_path: Path) -> None:
    write_windows(tmp_path, usual())
    (tmp_path / "val.npz").unlink()
    refusal(lambda: contents("windows-npz", tmp_path / "train.npz", **START), "val.npz: no such file")
    write_windows(tmp_path, usual())
    content = (tmp_path / "test.npz").read_bytes()
    (tmp_path / "test.npz").write_bytes(content[: len(content) // 2])
    refusal(lambda: contents("windows-npz", tmp_path, **START), "test.npz: truncated or damaged")
    refusal(lambda: contents("windows-npz", tmp_path / "nowhere", **START), "no such file")


def test_the_start_is_checked(tmp_path: Path) -> None:
    write_windows(tmp_path, usual())
    refusal(lambda: contents("windows-npz", tmp_path), "add --start")
    found = contents("windows-npz", tmp_path, start="2012-03-01 00:05:00")
    refusal(lambda: joined(found), "its first row is at 00:00:00, not 00:05:00")
    refusal(lambda: contents("windows-npz", tmp_path, **START, channel="1"), "--channel 1: not in", "choose 0")
