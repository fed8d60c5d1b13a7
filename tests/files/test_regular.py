"""The axis of times that convert writes has a row for each step, also where the source has none."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.core.errors import SettingsError, SocialxError
from tests.frames import IDS, converted, lacking, long, network, places_of, same

GAPS = {"one row": [30], "an hour": range(20, 32), "every fourth": range(1, 59, 4), "two gaps": [5, 6, 40]}


def without(rows: list[int] | range, count: int = 60) -> np.ndarray:
    return np.isin(np.arange(count), rows)


@pytest.mark.parametrize("kind", ["wide", "long", "two files", "Parquet"])
@pytest.mark.parametrize("gap", GAPS)
def test_rows_that_a_source_lacks_have_no_readings(tmp_path: Path, gap: str, kind: str) -> None:
    frame, rows, path = network(), without(GAPS[gap]), tmp_path / "a.csv"
    kept, paths = frame[~rows], [path]
    if kind == "wide":
        kept.to_csv(path)
    elif kind == "long":
        long(kept).drop(columns="volume").to_csv(path, index=False)
    elif kind == "Parquet":
        paths = [tmp_path / "a.parquet"]
        kept.to_parquet(paths[0])
    else:
        kept[:17].to_csv(path)
        kept[17:].to_csv(tmp_path / "b.csv")
        paths = [path, tmp_path / "b.csv"]
    same(converted(paths), lacking(frame, rows))


def test_one_line_counts_them(tmp_path: Path) -> None:
    network()[~without([5, 6, 40])].to_csv(tmp_path / "a.csv")
    at = places_of(IDS, tmp_path / "at.csv")
    done = socialx.convert("auto", tmp_path / "a.csv", tmp_path / "out.h5", meta_csv=at)
    (said,) = [str(note) for note in done.notes if "3 missing rows" in str(note)]
    assert "2024-01-31 20:25:00 .. 2024-01-31 23:20:00" in said


def test_more_than_half_is_asked(tmp_path: Path) -> None:
    frame, rows, path = network(100), without(range(20, 75), 100), tmp_path / "a.csv"
    frame[~rows].to_csv(path)
    with pytest.raises(SocialxError, match="55 of the 100") as error:
        converted(path)
    assert not (tmp_path / "out.h5").exists()
    assert "such as 2024-01-31 21:40:00" in str(error.value)
    same(converted(path, freq="5min"), lacking(frame, rows))


def test_a_step_that_the_rows_do_not_have_is_refused(tmp_path: Path) -> None:
    network().to_csv(tmp_path / "a.csv")
    with pytest.raises(SettingsError, match="10 min apart"):
        converted(tmp_path / "a.csv", freq="10min")


def test_the_step_that_is_named_is_that_of_the_axis(tmp_path: Path) -> None:
    frame, rows = network(), ~without(range(0, 60, 3))
    frame[~rows].to_csv(tmp_path / "a.csv")
    same(converted(tmp_path / "a.csv"), frame[~rows])
    same(converted(tmp_path / "a.csv", freq="5min"), lacking(frame, rows))


def test_averaged_rows_have_every_step(tmp_path: Path) -> None:
    times = pd.date_range("2024-01-31", periods=240, freq="min", name="time")
    frame = pd.DataFrame({"a": np.arange(240.0) / 9 + 30, "b": 30.0}, index=times)
    frame.drop(frame.index[90:120]).to_csv(tmp_path / "a.csv")
    wanted = frame.resample("5min").mean()
    wanted[18:24] = np.nan
    same(converted(tmp_path / "a.csv", resample="5min"), wanted)


def test_rows_off_the_grid_stay_where_they_are(tmp_path: Path) -> None:
    frame = network()
    later = frame.index.to_series()
    later[40:] += pd.Timedelta(minutes=12)  # a logger that began anew
    frame = frame.set_axis(pd.DatetimeIndex(later, name="time"))
    frame.to_csv(tmp_path / "a.csv")
    same(converted(tmp_path / "a.csv"), frame)
