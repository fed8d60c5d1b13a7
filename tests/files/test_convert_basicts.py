"""Both generations of BasicTS's folders become the series that they were made from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from socialx.errors import SettingsError
from socialx.files.formats import arrays
from socialx.files.formats.registry import FORMATS
from tests.array_files import check, contents, fractions, joined, recognised, tiled, weekdays
from tests.data_files import reason as why
from tests.data_files import refusal, speeds, timestamps
from tests.published_files import FEATURES, columns, write_dat, write_parts

ROWS = 700
START = {"start": "2012-03-01 00:00:00"}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "PIECE_BYTES", 1000)


def channels(times: list[str]) -> np.ndarray:
    return tiled(speeds(len(times)), fractions(times), weekdays(times) / 7)


# ---- data.dat


@pytest.mark.parametrize("name", ["", "data.dat", "desc.json"])
def test_data_dat(tmp_path: Path, name: str) -> None:
    given = write_dat(tmp_path, channels(timestamps(ROWS))) / name
    assert recognised(given) == ["basicts"]
    assert why(FORMATS["basicts"], given) == "a BasicTS folder (data.dat, desc.json)"
    found = contents("basicts", given, **START)
    assert found.notes == ("channel 0 of 3 taken, named avg_speed",)
    check(found, timestamps(ROWS), speeds(ROWS), "avg_speed", None)


def test_days_may_be_whole_numbers(tmp_path: Path) -> None:
    times = timestamps(ROWS)
    write_dat(tmp_path, tiled(speeds(ROWS), fractions(times), weekdays(times)))
    check(contents("basicts", tmp_path, **START), times, speeds(ROWS), "avg_speed", None)
    refusal(lambda: contents("basicts", tmp_path, start="2012-03-04 00:00:00"), "on a Thursday", "is a Sunday")


def test_a_flow_whose_days_count_from_the_first_row(tmp_path: Path) -> None:
    times = timestamps(ROWS, "2016-07-01T00:00:00")
    data = tiled(speeds(ROWS), fractions(times), np.arange(ROWS) // 288 % 7 / 7)
    write_dat(tmp_path, data, domain="traffic flow", feature_description=["traffic flow", *FEATURES[1:]])
    found = contents("basicts", tmp_path, start=times[0])
    assert found.notes == (
        "channel 0 of 3 taken, named flow",
        "its days of week count from 0 in the first row, which the given start makes a Friday",
    )
    check(found, times, speeds(ROWS), "flow", "vehicles per step")


def test_a_missing_hour_is_found_again(tmp_path: Path) -> None:
    times = [time for time in timestamps(600, "2017-03-11T10:00:00") if not time.startswith("2017-03-12 02:")]
    assert times[times.index("2017-03-12 01:55:00") + 1] == "2017-03-12 03:00:00"
    write_dat(tmp_path, channels(times))
    check(contents("basicts", tmp_path, start=times[0]), times, speeds(588), "avg_speed", None)


def test_the_times_are_found_where_the_description_puts_them(tmp_path: Path) -> None:
    times = timestamps(ROWS)
    flow = speeds(ROWS, seed=1)
    data = np.concatenate([flow[..., None], channels(times)], axis=-1)
    write_dat(tmp_path, data, feature_description=["Traffic  Flow", *FEATURES])
    check(contents("basicts", tmp_path, **START), times, flow, "flow", "vehicles per step")
    for channel in ("1", "traffic speed"):
        found = contents("basicts", tmp_path, **START, channel=channel)
        assert found.notes == ("channel 1 of 4 taken, named avg_speed",)
        check(found, times, speeds(ROWS), "avg_speed", None)
    with pytest.raises(SettingsError, match="choose traffic flow, traffic speed or 0 to 1"):
        contents("basicts", tmp_path, **START, channel="2")


def test_without_a_description_channel_1_is_looked_at(tmp_path: Path) -> None:
    times = timestamps(ROWS)
    write_dat(tmp_path, channels(times), **{"feature_description": None, "frequency (minutes)": None})
    check(contents("basicts", tmp_path, **START), times, speeds(ROWS), "avg_speed", None)
    data = np.stack([speeds(ROWS), speeds(ROWS, seed=1)], axis=-1)
    write_dat(tmp_path, data, **{"feature_description": None, "frequency (minutes)": 15})
    found = contents("basicts", tmp_path, **START, channel="1")
    check(found, timestamps(ROWS, minutes=15), speeds(ROWS, seed=1), "avg_speed", None)
    for frequency in (None, "5", 0, -5, [5], float("nan")):
        write_dat(tmp_path, data, **{"feature_description": None, "frequency (minutes)": frequency})
        refusal(lambda: contents("basicts", tmp_path, **START), "--freq 5min")


@pytest.mark.parametrize("change", [-4, 4, -1])
def test_the_size_must_fit_the_shape(tmp_path: Path, change: int) -> None:
    write_dat(tmp_path, channels(timestamps(ROWS)))
    content = (tmp_path / "data.dat").read_bytes()
    (tmp_path / "data.dat").write_bytes(content[:change] if change < 0 else content + bytes(change))
    words = (f"has {25200 + change} bytes, not the 25200", "(700, 3, 3)")
    refusal(lambda: contents("basicts", tmp_path, **START), "data.dat", *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("{", "not JSON"),
        ("\xff\xfe", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "a list, not names with values"),
        ("{}", "shape is None"),
        ('{"shape": [700, 9]}', "shape is [700, 9]"),
        ('{"shape": [700, true, 9]}', "shape is"),
        ('{"shape": [700, -3, -3]}', "shape is"),
        ('{"shape": [700, 3, 3], "feature_description": ["time of day"]}', "does not fit"),
        ('{"shape": [700, 3, 3], "feature_description": ["a", "b", "c", "time of day"]}', "does not fit"),
    ],
)
def test_a_wrong_description_is_refused(tmp_path: Path, text: str, words: str) -> None:
    write_dat(tmp_path, channels(timestamps(ROWS)))
    (tmp_path / "desc.json").write_bytes(text.encode("latin-1"))
    refusal(lambda: contents("basicts", tmp_path, **START), "desc.json", words)
    assert recognised(tmp_path) == (["basicts"] if "fit" in words else [])


def test_missing_files_are_refused(tmp_path: Path) -> None:
    refusal(lambda: contents("basicts", tmp_path, **START), "desc.json: no such file")
    write_dat(tmp_path, channels(timestamps(ROWS)))
    (tmp_path / "data.dat").unlink()
    assert recognised(tmp_path) == []
    refusal(lambda: contents("basicts", tmp_path, **START), "data.dat: no such file")


# ---- train_data.npy and its kin


@pytest.mark.parametrize("name", ["", "train_data.npy", "test_timestamps.npy", "meta.json"])
def test_parts(tmp_path: Path, name: str) -> None:
    times = timestamps(ROWS)
    given = write_parts(tmp_path, speeds(ROWS), columns(times)) / name
    assert recognised(given) == ["basicts"]
    assert "train_data.npy" in str(why(FORMATS["basicts"], given))
    found = contents("basicts", given, **START)
    assert found.notes == ("channel 0 of 1 taken, named avg_speed",)
    check(found, times, speeds(ROWS), "avg_speed", None)


def test_parts_with_channels_and_without_meta(tmp_path: Path) -> None:
    times = timestamps(ROWS)
    values = np.stack([speeds(ROWS), speeds(ROWS, seed=1)], axis=-1)
    write_parts(tmp_path, values, columns(times))
    (tmp_path / "meta.json").unlink()
    check(contents("basicts", tmp_path, **START), times, values[..., 0], "avg_speed", None)
    check(contents("basicts", tmp_path, **START, channel="1"), times, values[..., 1], "avg_speed", None)
    with pytest.raises(SettingsError, match="choose 0 to 1"):
        contents("basicts", tmp_path, **START, channel="2")


def test_parts_with_their_times_in_another_order(tmp_path: Path) -> None:
    times = timestamps(ROWS, "2018-09-01T00:00:00")  # a Saturday
    order = {"timestamps_description": ["day of month", "day of week", "time of day"]}
    time_columns = np.stack([np.zeros(ROWS), weekdays(times) / 7, fractions(times)], axis=-1)
    write_parts(tmp_path, speeds(ROWS), time_columns, "traffic flow", **order)
    check(contents("basicts", tmp_path, start=times[0]), times, speeds(ROWS), "flow", "vehicles per step")
    refusal(lambda: contents("basicts", tmp_path, start="2018-09-02 00:00:00"), "on a Saturday", "is a Sunday")


def test_parts_without_a_time_of_day(tmp_path: Path) -> None:
    write_parts(tmp_path, speeds(ROWS), np.zeros((ROWS, 1)), timestamps_description=["day of year"])
    check(contents("basicts", tmp_path, **START), timestamps(ROWS), speeds(ROWS), "avg_speed", None)


def test_parts_with_only_a_time_of_day(tmp_path: Path) -> None:
    times = timestamps(ROWS)
    write_parts(tmp_path, speeds(ROWS), columns(times)[:, :1])
    found = contents("basicts", tmp_path, **START)
    assert found.notes[1] == "the times follow from the times of day, which do not show gaps of whole days"
    check(found, times, speeds(ROWS), "avg_speed", None)


def test_a_missing_hour_and_missing_days_in_parts(tmp_path: Path) -> None:
    times = [time for time in timestamps(600, "2017-03-11T10:00:00") if not time.startswith("2017-03-12 02:")]
    write_parts(tmp_path, speeds(588), columns(times))
    check(contents("basicts", tmp_path, start=times[0]), times, speeds(588), "avg_speed", None)
    times = timestamps(420) + timestamps(1000)[708:888]  # a day is missing between train and val
    write_parts(tmp_path, speeds(600), columns(times))
    found = contents("basicts", tmp_path, **START)
    refusal(lambda: joined(found), "row 421 is at 2012-03-02 11:00:00 but on another day of the week")


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_parts(tmp_path, speeds(ROWS), columns(timestamps(ROWS)))
    np.save(tmp_path / "val_data.npy", np.zeros((71, 2)))
    refusal(lambda: contents("basicts", tmp_path, **START), "val_data.npy: has shape (71, 2)", "(489, 3)")
    np.save(tmp_path / "val_data.npy", np.zeros((72, 3)))
    refusal(lambda: contents("basicts", tmp_path, **START), "val_timestamps.npy: has 71 rows for the 72")
    np.save(tmp_path / "val_data.npy", np.array([None]))
    refusal(lambda: contents("basicts", tmp_path, **START), "val_data.npy: it holds Python objects")
    (tmp_path / "val_data.npy").unlink()
    refusal(lambda: contents("basicts", tmp_path, **START), "val_data.npy: no such file")
    write_parts(tmp_path, speeds(ROWS), columns(timestamps(ROWS)))
    np.save(tmp_path / "train_timestamps.npy", np.full((489, 2), 7.0))
    refusal(lambda: joined(contents("basicts", tmp_path, **START)), "row 1 has 7.0", "no time of day")
