"""Gaps, daylight saving and clocks that run freely, in what convert writes and inspect says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import socialx
from socialx.core.errors import SocialxError
from socialx.files.store.store import open_store
from socialx.files.store.time_axis import common_step, gaps, odd_rows
from socialx.files.store.writer import write
from socialx.inspection.report import inspect
from tests.commands import socialx as run
from tests.data_files import block, made_up

ALONE = {"channel": "{sensor}", "without_positions": True}


def written(path: Path, times: pd.DatetimeIndex, form: str = "%Y-%m-%d %H:%M:%S") -> Path:
    values = np.random.default_rng(0).uniform(20, 90, (len(times), 2)).round(1)
    pd.DataFrame(values, index=times.strftime(form), columns=["a", "b"]).to_csv(path, index_label="time")
    return path


def test_the_hour_that_spring_skips_is_no_gap(tmp_path: Path) -> None:
    local = pd.date_range("2024-03-30", "2024-04-01", freq="5min", tz="Europe/Berlin").tz_localize(None)
    data = written(tmp_path / "a.csv", local.delete(slice(50, 53)))  # and one that is
    for zone, lacking in (("Europe/Berlin", 3), (None, 15), ("America/Phoenix", 15)):
        out = tmp_path / "out.h5"
        done = socialx.convert("auto", data, out, timezone=zone, **ALONE, overwrite=True)
        assert done.summary is not None
        report = inspect(out)
        assert done.summary.gaps == report.gaps == report.irregular_steps == 0  # one definition
        assert any(f"{lacking} missing rows" in str(note) for note in done.notes)


def test_a_gap_of_an_older_file_is_told(tmp_path: Path) -> None:
    local = pd.date_range("2024-03-30", "2024-04-01", freq="5min", tz="Europe/Berlin").tz_localize(None)
    moments = [str(time) for time in local.delete(slice(50, 53))]
    for zone, found in (("Europe/Berlin", [3]), (None, [3, 12]), ("America/Phoenix", [3, 12])):
        path = tmp_path / f"{zone}.h5".replace("/", "_")
        write(path, replace(made_up([block(moments, np.full((len(moments), 3), 60.0))]), timezone=zone))
        report = inspect(path)
        assert [gap["missing_rows"] for gap in report.gap_list] == found
        assert (report.gaps, report.irregular_steps) == (len(found), 0)


def test_a_gap_around_the_skipped_hour_is_as_long_as_what_is_missing() -> None:
    local = pd.date_range("2024-03-30", "2024-04-01", freq="5min", tz="Europe/Berlin").tz_localize(None)
    wall = np.array((local - pd.Timestamp(0)) // pd.Timedelta("1s"))
    jump = int(np.argmax(np.diff(wall)))
    places, lengths = gaps(np.delete(wall, slice(jump - 5, jump + 8)), "Europe/Berlin")
    assert (places.tolist(), lengths.tolist()) == ([jump - 6], [14 * 300])


@given(st.lists(st.integers(1, 5), min_size=3, max_size=60), st.integers(0, 10**9))
def test_gaps_are_the_steps_above_the_common_one(steps: list[int], start: int) -> None:
    seconds = start + 300 * np.cumsum([0, *steps])
    places, lengths = gaps(seconds, None)
    common = common_step(seconds) // 300
    assert [(int(place), int(length) // 300) for place, length in zip(places, lengths, strict=True)] == [
        (place, step) for place, step in enumerate(steps) if step > common
    ]
    assert set(odd_rows(seconds)) == {place for place, step in enumerate(steps) if step % common}


def free_clock(rows: int = 300) -> pd.DatetimeIndex:
    off = np.random.default_rng(1).integers(-80, 80, rows)
    return pd.date_range("2024-01-28 00:05", periods=rows, freq="5min") + pd.to_timedelta(off, unit="s")


def test_a_clock_that_runs_freely_is_refused_or_rounded(tmp_path: Path) -> None:
    data, out = written(tmp_path / "a.csv", free_clock()), tmp_path / "out.h5"
    with pytest.raises(SocialxError, match="5 min"):
        socialx.convert("auto", data, out, **ALONE)
    assert not out.exists()
    result = run(
        "convert", "auto", data, "--output-h5", out, "--without-positions", "--channel", "{sensor}", "--round-times"
    )
    assert result.exit_code == 0, result.stderr
    assert "5 min" in result.stderr
    assert (np.diff(open_store(out).seconds) == 300).all()
    assert open_store(out).timestamps[0] == b"2024-01-28 00:05:00"


def test_a_few_odd_rows_are_kept_and_said(tmp_path: Path) -> None:
    times = pd.date_range("2024-01-28", periods=200, freq="5min").insert(77, pd.Timestamp("2024-01-28 06:22"))
    out = tmp_path / "out.h5"
    socialx.convert("auto", written(tmp_path / "a.csv", times.sort_values()), out, **ALONE)
    assert inspect(out).irregular_steps > 0


def test_speeds_that_no_road_has_are_said(tmp_path: Path) -> None:
    times = pd.date_range("2024-01-28", periods=200, freq="5min")
    data, out = written(tmp_path / "a.csv", times), tmp_path / "out.h5"
    text = data.read_text().splitlines()
    text[9] = f"{text[9].split(',')[0]},999,50"
    data.write_text("\n".join(text) + "\n")
    for units, found in (("mph", 1), ("km/h", 1), (None, 0)):
        socialx.convert("auto", data, out, **ALONE, quantity="speed", units=units, overwrite=True)
        report = inspect(out)
        assert (report.fast_readings, report.highest) == (found, 999)
    valid = open_store(out).values[open_store(out).valid]
    assert (report.lowest, report.median, report.mean) == pytest.approx(
        (valid.min(), np.median(valid), valid.mean(dtype=np.float64))
    )
    assert "highest 999" in run("inspect", out).stdout
