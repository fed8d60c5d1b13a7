"""Values and types that a reader does not expect: one line, and no warning of NumPy or pandas in it."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.files.sources.positions.neighbours import read_distances
from socialx.files.store.store import open_store
from tests.commands import refused
from tests.data_files import (
    IDS,
    backfill,
    changed,
    convert,
    drop,
    put,
    refusal,
    small_store,
    speeds,
    timestamps,
    unchanged,
    write_frame,
    write_locations,
)  # fmt: skip
from tests.older_files import OLDER, meta

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("extra", [1, 2, 10**6])
def test_roads_whose_rows_are_longer_than_line_1(tmp_path: Path, extra: int) -> None:
    path = tmp_path / "roads.csv"
    path.write_text("from,to,cost\n" + "".join(f"{a},{b},900{',7' * extra}\n" for a in IDS[:2] for b in IDS[:1]))
    refusal(lambda: read_distances(path, IDS), f"line 2 has {3 + extra} cells", task="train")
    path.write_text("\n".join(["  ", "0,800,1500", "800,0,700", "1500,700,0"]) + "\n")
    refusal(lambda: read_distances(path, IDS), task="train")


def test_vd_info_that_is_a_type_says_nothing_of_any_sensor(tmp_path: Path) -> None:
    path = small_store(tmp_path / "data.h5")
    changed(path, drop("metadata/vd_info"), put("metadata/vd_info", np.dtype("f8")))
    assert np.isnan(open_store(path).sensors.latitude).all()
    assert "no position" in refused("train", "--data", path, "--run-dir", tmp_path / "run")


def test_backfill_does_not_take_a_type_for_vd_info(tmp_path: Path) -> None:
    path, locations = OLDER["P1"](tmp_path / "old.h5"), meta(tmp_path / "meta.csv")
    changed(path, drop("metadata/vd_info"), put("metadata/vd_info", np.dtype("f8")))
    with unchanged(path):
        said = refusal(lambda: backfill(path, locations), "metadata/vd_info", task="backfill")
    assert said.code == "backfill.info-no-group"


def test_a_complex_position_is_none(tmp_path: Path) -> None:
    path = small_store(tmp_path / "data.h5")
    changed(path, lambda file: file[f"metadata/vd_info/{IDS[1]}"].attrs.create("position_lat", np.complex64(34 + 1j)))
    assert np.isnan(open_store(path).sensors.latitude).tolist() == [False, True, False]


def test_readings_too_large_for_a_float32_are_refused_without_a_warning(tmp_path: Path) -> None:
    path = OLDER["V0"](tmp_path / "old.h5")
    with h5py.File(path, "r+") as file:
        file["features"][3, 1, 0] = 1e300
    refusal(lambda: backfill(path, meta(tmp_path / "meta.csv"), rewrite=True), task="backfill")


def test_a_name_of_a_data_set_that_is_no_text(tmp_path: Path) -> None:
    path = OLDER["P0"](tmp_path / "old.h5")
    assert backfill(changed(path, lambda file: file.attrs.create("dataset_name", np.void(b"abc")))).actions


@pytest.mark.parametrize("name", ["axis0", "axis1", "block0_items", "block0_values"])
def test_a_frame_that_declares_more_than_it_stores_is_not_read(name: str, tmp_path: Path) -> None:
    path = write_frame(tmp_path / "frame.h5", timestamps(20), speeds(20))
    with h5py.File(path, "r+") as file:
        shape, dtype, kept = file[f"df/{name}"].shape, file[f"df/{name}"].dtype, dict(file[f"df/{name}"].attrs)
        del file[f"df/{name}"]
        file.create_dataset(f"df/{name}", (10**8, *shape[1:]), dtype, chunks=(64, *shape[1:])).attrs.update(kept)
    refusal(lambda: convert("hdfstore", path, write_locations(tmp_path / "loc.csv"), tmp_path / "out.h5"), "declares")
    assert not (tmp_path / "out.h5").exists()
