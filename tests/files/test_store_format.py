"""The canonical file, name by name: what an older reader needs, and what does not depend on the machine."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from socialx.core import disk
from socialx.core.errors import SocialxError
from socialx.files.store.store import open_store
from socialx.files.store.writer import create
from tests.data_files import (
    BAY_IDS,
    block,
    convert,
    left_behind,
    made_up,
    refusal,
    small_store,
    speeds,
    timestamps,
    write_csv,
    write_stations,
)

TEXT, DATE = "text", "date"
ROOT = {
    "dataset_name": "pems_bay",
    "feature_set": "pems_bay_v1",
    "feature_schema_version": "1.0",
    "creation_date": DATE,
    "description": TEXT,
    "source_data": TEXT,
    "source_meta": TEXT,
    "num_timesteps": 700,
    "num_locations": 3,
    "num_features": 6,
}
TABLE = '{"values": {"avg_speed": "(?P<sensor>.+)"}, "time": [""]}'
SENSOR = {"position_lat": 37.0, "position_lon": -121.0, "lanes": 2.0, "length": 0.5, "direction": "N"}
GOLDEN = {
    "": (ROOT,),
    "data": ({},),
    "data/features": ("float32", (700, 3, 6)),
    "metadata": (
        {"epoch_basis": "naive-utc", "timezone": "America/Los_Angeles", "missing_value": 0.0, "table": TABLE},
    ),
    "metadata/feature_names": ("|S32", (6,)),
    "metadata/frequency": ("|S4", ()),
    "metadata/source": (TEXT, ()),
    "metadata/timestamps": ("|S19", (700,)),
    "metadata/timestamps_epoch": ("int64", (700,)),
    "metadata/units": (TEXT, ()),
    "metadata/vd_info": ({"coord_crs": "EPSG:4326"},),
    "metadata/vd_info/400030": (
        SENSOR | {"position_lat": 37.02, "position_lon": -121.02, "lanes": 4.0, "length": 2.5, "direction": "S"},
    ),
    "metadata/vd_info/400017": (
        SENSOR | {"position_lat": 37.01, "position_lon": -121.01, "lanes": 3.0, "length": 1.5, "direction": "E"},
    ),
    "metadata/vd_info/400001": (SENSOR,),
    "metadata/vdids": ("|S64", (3,)),
}


def bay(folder: Path) -> Path:
    data = write_csv(folder / "data.csv", timestamps(700), speeds(700), BAY_IDS)
    convert("pems-bay", data, write_stations(folder / "meta.csv", BAY_IDS), folder / "bay.h5")
    return folder / "bay.h5"


def dump(path: Path) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            assert not item.attrs
            found[name] = (str(item.dtype), item.shape)
        else:
            found[name] = (dict(item.attrs),)

    with h5py.File(path) as file:
        visit("", file)
        file.visititems(visit)
    return found


def test_every_path_type_shape_and_attribute(tmp_path: Path) -> None:
    found = dump(bay(tmp_path))
    root = found[""][0]
    assert all(root[name].dtype == np.int64 for name in ("num_timesteps", "num_locations", "num_features"))
    assert np.datetime64(root["creation_date"].removesuffix("+00:00")) > np.datetime64("2024-01-01")
    for name, value in ROOT.items():
        if value in (TEXT, DATE):
            assert isinstance(root[name], str)
            root[name] = value
    for name in ("metadata/source", "metadata/units"):
        assert found[name][0].startswith("|S")
        found[name] = (TEXT, found[name][1])
    assert found == GOLDEN


def test_the_values_and_the_layout_on_disk(tmp_path: Path) -> None:
    with h5py.File(bay(tmp_path)) as file:
        features = file["data/features"]
        assert (features.chunks, features.maxshape) == ((288, 3, 1), (None, 3, 6))
        assert (features.compression, features.compression_opts, features.shuffle) == ("gzip", 1, True)
        assert features.fletcher32
        assert file["metadata/frequency"][()] == b"5min"
        assert json.loads(file["metadata/units"][()]) == {
            "avg_speed": "mph",
            "lanes": "count",
            "length": "miles",
            "latitude": "degrees",
            "longitude": "degrees",
            "direction": "degrees",
        }
        assert file["metadata/feature_names"][:].tolist() == list(
            map(str.encode, ("avg_speed", "lanes", "length", "latitude", "longitude", "direction"))
        )
        assert file["metadata/vdids"][:].tolist() == [vdid.encode() for vdid in BAY_IDS]
        assert file["metadata/timestamps"][:].astype(str).tolist() == timestamps(700)
        assert file["metadata/timestamps_epoch"][0] == 1330560000
        assert file["metadata/vd_info"][BAY_IDS[0]].attrs["position_lat"].dtype == np.float64
    assert (tmp_path / "bay.h5").read_bytes()[8] == 3


@pytest.mark.parametrize("sizes", [[900], [1, 899], [287, 2, 611], [300, 300, 300], [7] * 128 + [4]])
def test_the_size_of_the_blocks_does_not_show(tmp_path: Path, sizes: list[int]) -> None:
    times, values, edges = timestamps(900), speeds(900), np.cumsum([0, *sizes])
    summary = create(tmp_path / "out.h5", made_up([block(times[a:b], values[a:b]) for a, b in pairwise(edges)]))
    loaded = open_store(tmp_path / "out.h5")
    assert (summary.rows, loaded.values.tobytes()) == (900, values.astype(np.float32).tobytes())
    assert (loaded.unit, loaded.missing, loaded.timezone, loaded.dataset_name) == ("km/h", None, None, "mine")
    assert loaded.valid.all()


@pytest.mark.parametrize(("step", "name"), [(60, b"1min"), (900, b"15min"), (62, b"62s")])
def test_the_frequency_is_the_most_common_step(tmp_path: Path, step: int, name: bytes) -> None:
    times = np.datetime64("2012-03-01T00:00:00") + np.array([0, 1, 2, 5, 6]) * np.timedelta64(step, "s")
    texts = [str(time).replace("T", " ") for time in times]
    assert create(tmp_path / "out.h5", made_up([block(texts, speeds(5))])).gaps == 1
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["metadata/frequency"][()] == name


def test_what_cannot_be_opened_is_not_written(tmp_path: Path) -> None:
    seconds = [f"2012-03-01 00:00:{second}" for second in ("00", "30")]
    for times, words in ((timestamps(1), "one time"), (seconds, "30 s apart")):
        blocks = [block(times, speeds(len(times)))]
        refusal(lambda blocks=blocks: create(tmp_path / "out.h5", made_up(blocks)), "made up", words)
    assert left_behind(tmp_path) == []


def test_a_disk_that_fails_to_keep_the_file_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(path: Path) -> None:
        if path.suffix == ".tmp":
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "_sync", forgetful)
    with pytest.raises(SocialxError, match="written"):
        small_store(tmp_path / "out.h5")
    assert not list(tmp_path.glob("*out.h5*"))
