"""The published CSVs become canonical files: every row, every bit of every speed."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.files.sources.recognition import find
from socialx.files.store.store import open_store
from tests.data_files import BAY_IDS, convert, refusal, speeds, timestamps, write_csv, write_locations, write_stations


@pytest.mark.parametrize("kind", ["metr-la", "METR_LA", "metrla", "la"])
def test_metr_la_keeps_every_row_and_bit(tmp_path: Path, kind: str) -> None:
    values, times = speeds(700), timestamps(700)
    data = write_csv(tmp_path / "METR-LA.csv", times, values)
    summary = convert(kind, data, write_locations(tmp_path / "meta.csv"), tmp_path / "out.h5")
    assert (summary.rows, summary.sensors, summary.features, summary.gaps) == (700, 3, 3, 0)
    assert (summary.first_timestamp, summary.last_timestamp) == (times[0], times[-1])
    store = open_store(tmp_path / "out.h5")
    assert store.values.tobytes() == values.astype(np.float32).tobytes()
    assert store.timestamps.astype(str).tolist() == times
    assert (store.valid == (values != 0)).all()
    assert store.sensors.latitude.tolist() == [34.0, 34.01, 34.02]
    assert (store.dataset_name, store.unit, store.missing, store.step_minutes) == ("metr_la", "mph", 0.0, 5)


@pytest.mark.parametrize("kind", ["pems-bay", "PEMS-BAY", "pems_bay", "bay"])
def test_pems_bay_has_its_static_columns(tmp_path: Path, kind: str) -> None:
    data = write_csv(tmp_path / "bay.csv", timestamps(20, "2017-01-01"), speeds(20), BAY_IDS)
    convert(kind, data, write_stations(tmp_path / "meta.csv", BAY_IDS), tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        features = file["data/features"][:]
    expected = [[2, 0.5, 37, -121, 0], [3, 1.5, 37.01, -121.01, 90], [4, 2.5, 37.02, -121.02, 180]]
    assert (features[..., 1:] == np.float32(expected)).all()
    assert open_store(tmp_path / "out.h5").sensors.direction == ("N", "E", "S")
    assert open_store(tmp_path / "out.h5", "direction").valid.all()


def test_pems_bay_with_positions_only_has_unknown_static_columns(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "bay.csv", timestamps(20), speeds(20), BAY_IDS)
    convert("bay", data, write_locations(tmp_path / "meta.csv", BAY_IDS), tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        features = file["data/features"][:]
        assert set(file["metadata/vd_info"][BAY_IDS[0]].attrs) == {"position_lat", "position_lon"}
    assert features.shape == (20, 3, 6)
    assert np.isnan(features[..., [1, 2, 5]]).all()
    assert np.isfinite(features[..., [0, 3, 4]]).all()


def test_empty_and_nan_cells_are_missing_and_stay_raw(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text(",1,2,3\n2012-03-01 00:00:00,,nan,0.0\n2012-03-01 00:05:00,NaN,1,\n")
    convert("published-csv", data, write_locations(tmp_path / "meta.csv", ("1", "2", "3")), tmp_path / "out.h5")
    store = open_store(tmp_path / "out.h5")
    assert np.isnan(store.values).tolist() == [[True, True, False], [True, False, True]]
    assert store.values[0, 2] == 0
    assert store.valid.tolist() == [[False, False, False], [False, True, False]]


def test_the_daylight_hour_and_a_gap_are_kept(tmp_path: Path) -> None:
    times = timestamps(40, "2012-03-11T01:00:00")
    times = times[:30] + times[33:]
    data = write_csv(tmp_path / "data.csv", times, speeds(37))
    summary = convert("la", data, write_locations(tmp_path / "meta.csv"), tmp_path / "out.h5")
    store = open_store(tmp_path / "out.h5")
    assert (summary.rows, summary.gaps) == (37, 1)
    assert np.diff(store.seconds)[:29].tolist() == [300] * 29


def test_an_unknown_dataset_is_a_usage_error(tmp_path: Path) -> None:
    line = refusal(lambda: find("metr-al"), "metr-al", "did you mean metr-la?")
    assert refusal(lambda: find("x"), "metr-la, pems-bay") != line


def test_a_missing_output_folder_is_made(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", timestamps(5), speeds(5))
    convert("la", data, write_locations(tmp_path / "meta.csv"), tmp_path / "new/folder/out.h5")
    assert [p.name for p in (tmp_path / "new/folder").iterdir()] == ["out.h5"]
