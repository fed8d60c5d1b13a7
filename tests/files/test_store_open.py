"""Opening a canonical file: what it gives, older files once completed, and one line for everything else."""

import hashlib
import json
import random
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.core.errors import SocialxError
from socialx.data.source import PAGE_ROWS
from socialx.files.store import store
from socialx.files.store.store import open_store
from socialx.files.store.time_axis import as_timestamps
from tests.data_files import (
    BAY_IDS,
    IDS,
    Change,
    backfill,
    changed,
    convert,
    drop,
    put,
    refusal,
    small_store,
    speeds,
    timestamps,
    write_csv,
    write_frame,
)
from tests.networks import carry_forward


def store_with(folder: Path, *changes: Change) -> Path:
    """A file of ours after changes."""
    return changed(small_store(folder / "out.h5"), *changes)


def test_what_it_gives(tmp_path: Path) -> None:
    store, values = open_store(small_store(tmp_path / "out.h5")), speeds(40).astype(np.float32)
    assert (store.path, store.feature, store.unit, store.step_minutes) == (tmp_path / "out.h5", "avg_speed", "mph", 5)
    assert (store.missing, store.timezone, store.imputed) == (0.0, "America/Los_Angeles", False)
    dtypes = [each.dtype for each in (store.values, store.valid, store.seconds, store.timestamps)]
    assert dtypes == ["f4", "?", "i8", "S19"]
    assert (store.valid == (values != 0)).all()
    assert (store.sensors.lanes, store.sensors.length, store.sensors.direction) == (None, None, None)
    digest = hashlib.sha256("".join(f"{vdid}\n" for vdid in IDS).encode())
    digest.update("".join(timestamps(40)).encode() + values.tobytes())
    assert store.checksum == digest.hexdigest()


def test_the_checksum_is_of_the_content(tmp_path: Path) -> None:
    first = open_store(small_store(tmp_path / "a.h5")).checksum
    assert open_store(small_store(tmp_path / "b.h5")).checksum == first
    assert open_store(small_store(tmp_path / "c.h5", rows=41)).checksum != first
    assert open_store(small_store(tmp_path / "d.h5", minutes=15)).checksum != first


def test_another_feature_is_never_missing_for_being_zero(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", timestamps(9), speeds(9), BAY_IDS)
    meta = tmp_path / "meta.csv"
    meta.write_text(
        "sensor_id,Latitude,Longitude,Dir,Lanes,Length\n400001,37,-121,N,0,1\n400017,37,-121,,2,\n400030,37,-121,X,2,1\n"
    )
    convert("bay", data, meta, tmp_path / "out.h5")
    lanes, direction = (open_store(tmp_path / "out.h5", name) for name in ("lanes", "direction"))
    assert (lanes.unit, direction.unit, lanes.missing) == ("count", "degrees", None)
    assert lanes.valid.all()
    assert (direction.valid[0].tolist(), direction.sensors.direction) == ([True, False, False], ("N", "", ""))
    assert np.isnan(direction.sensors.length).tolist() == [False, True, False]  # type: ignore[arg-type]


def test_an_unknown_feature_lists_what_there_is(tmp_path: Path) -> None:
    path = small_store(tmp_path / "out.h5")
    for name, words in (("avg_sped", "mean avg_speed?"), ("zzz", "--targets avg_speed")):
        said = refusal(lambda name=name: open_store(path, name), "latitude, longitude", words)
        assert said.code == "store.no-feature"


def completed(path: Path) -> Path:
    """An older file, which is refused with the command that completes it, after that command."""
    command = f"socialx backfill {path}"
    assert refusal(lambda: open_store(path), str(path), "an older file", task="train").endswith(f": {command}")
    backfill(path)
    return path


def test_older_files_open_once_completed(tmp_path: Path) -> None:
    def older(file: h5py.File) -> None:
        drop("metadata/timestamps_epoch", "metadata/frequency", "metadata/source", "metadata/vd_info")(file)
        texts = h5py.string_dtype("utf-8")
        for name in ("vdids", "feature_names", "timestamps"):
            old = file[f"metadata/{name}"][:].astype(str)
            del file[f"metadata/{name}"]
            file["metadata"].create_dataset(name, data=old.astype(object), dtype=texts)
        put("data/features", file["data/features"][:].astype(np.float64))(file)
        put("metadata/units", json.dumps({"avg_speed": "km/h"}))(file)
        for name in list(file["metadata"].attrs):
            del file["metadata"].attrs[name]

    new, path = open_store(small_store(tmp_path / "new.h5")), changed(small_store(tmp_path / "old.h5"), older)
    old = open_store(completed(path))
    assert old.checksum == new.checksum
    assert (old.seconds == new.seconds).all()
    assert (old.unit, old.missing, old.timezone) == ("km/h", 0.0, None)
    assert (old.sensors.latitude == new.sensors.latitude.astype(np.float32)).all()  # of the file's columns
    bare = open_store(changed(path, drop("metadata/vd_info", "metadata/timestamps_epoch")))
    assert (bare.checksum, bare.seconds.tolist()) == (new.checksum, new.seconds.tolist())
    assert np.isnan(bare.sensors.latitude).all()


def test_what_an_older_file_does_not_say_is_unknown(tmp_path: Path) -> None:
    def silent(file: h5py.File) -> None:
        del file["metadata/units"], file.attrs["dataset_name"], file["metadata"].attrs["missing_value"]

    store = open_store(completed(store_with(tmp_path, silent)))
    assert (store.unit, store.dataset_name, store.missing) == ("unknown", "unknown", None)
    assert store.valid.all()
    path = small_store(tmp_path / "new.h5")
    for units in ("mph", "[1]", json.dumps({"lanes": "count"})):
        assert open_store(changed(path, put("metadata/units", units))).unit == "unknown"


def test_iso_times_with_an_offset_are_wall_times(tmp_path: Path) -> None:
    texts = np.array([time.replace(" ", "T") + "+08:00" for time in timestamps(40)], "S")
    wrong = put("metadata/timestamps_epoch", np.zeros(40, np.int64))
    store = open_store(store_with(tmp_path, put("metadata/timestamps", texts), wrong))
    assert store.timestamps.astype(str).tolist() == timestamps(40)
    assert store.seconds[1] == 1330560300  # whatever the stored seconds are


@pytest.mark.parametrize(("said", "imputed"), [(True, True), (False, False), ("unknown", None)])
def test_imputed_is_what_the_file_says(tmp_path: Path, said: object, imputed: bool | None) -> None:
    path = store_with(tmp_path, lambda file: file["metadata"].attrs.update(imputed=said))
    assert open_store(path).imputed is imputed


def test_unusable_positions_are_nan(tmp_path: Path) -> None:
    def spoil(file: h5py.File) -> None:
        info = file["metadata/vd_info"]
        info[IDS[0]].attrs["position_lat"] = 91.0
        del info[IDS[1]].attrs["position_lon"]
        info[IDS[2]].attrs["position_lat"] = "north"

    sensors = open_store(store_with(tmp_path, spoil)).sensors
    assert np.isnan(sensors.latitude).all()
    assert np.isnan(sensors.longitude).all()


TWENTY_S = as_timestamps(1_330_560_000 + 20 * np.arange(40))
BAD: dict[str, tuple[Change, str]] = {
    "no rows": (
        lambda f: (
            put("data/features", np.zeros((0, 3, 3), "f4"))(f),
            put("metadata/timestamps", np.zeros(0, "S19"))(f),
        ),
        "holds nothing",
    ),
    "steps of 20 s": (
        put("metadata/timestamps", np.char.replace(TWENTY_S.astype(str), "T", " ").astype("S19")),
        "20 s apart",
    ),
    "no features": (drop("data/features"), "lacks data/features"),
    "no data": (drop("data"), "convert"),
    "no metadata": (drop("metadata"), "metadata/vdids, metadata/feature_names"),
    "features is a group": (
        lambda f: (drop("data/features")(f), f.create_group("data/features")),
        "lacks data/features",
    ),
    "flat features": (put("data/features", np.zeros((40, 3), "f4")), "shapes"),
    "text features": (put("data/features", np.zeros((40, 3, 3), "S3")), "shapes"),
    "short features": (put("data/features", np.zeros((39, 3, 3), "f4")), "shapes"),
    "wide features": (put("data/features", np.zeros((40, 4, 3), "f4")), "shapes"),
    "deep features": (put("data/features", np.zeros((40, 3, 4), "f4")), "shapes"),
    "scalar ids": (put("metadata/vdids", b"1"), "shapes"),
    "numbers as ids": (put("metadata/vdids", np.arange(3)), "is int64"),
    "numbers as times": (put("metadata/timestamps", np.arange(40)), "is int64"),
    "a sensor twice": (put("metadata/vdids", np.array(["1", "2", "1"], "S64")), "sensors appear twice (1)"),
    "bad time": (put("metadata/timestamps", np.array(["2012-13-01 00:00:00"] * 40, "S19")), "1 has the"),
    "empty time": (put("metadata/timestamps", np.array([""] * 40, "S19")), "1 has the"),
    "one time": (put("metadata/timestamps", np.array(["2012-03-01 00:00:00"] * 40, "S19")), "rows"),
    "table of pandas": (lambda f: f.create_dataset("df/table", data=1), "socialx convert auto"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_lacks_something(tmp_path: Path, case: str) -> None:
    change, words = BAD[case]
    path = store_with(tmp_path, change)
    refusal(lambda: open_store(path), str(path), words)


def test_files_of_another_kind(tmp_path: Path) -> None:
    refusal(lambda: open_store(tmp_path / "gone.h5"), "gone.h5", "no such file", "convert")
    refusal(lambda: open_store(tmp_path), str(tmp_path), "a folder")
    for text, words in (
        ("", "empty"),
        ("version https://git-lfs.github.com/spec/v1\n", "Git-LFS"),
        ("a,b\n", "not an HDF5"),
    ):
        (tmp_path / "odd.h5").write_text(text)
        refusal(lambda: open_store(tmp_path / "odd.h5"), "odd.h5", words)
    for key in ("df", "speed", "t"):  # which data set it is, the key does not say
        frame = write_frame(tmp_path / "a frame.h5", timestamps(9), speeds(9), key=key)
        command = f"socialx convert auto '{frame}' --meta-csv LOCATIONS.csv --output-h5 OUT.h5"
        refusal(lambda: open_store(frame), "a pandas HDFStore", command)  # noqa: B023


def test_chosen_sensors_keep_what_is_known_of_them(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "out.h5"))
    chosen = store.with_sensors((IDS[2], IDS[0]))
    assert chosen.sensors.ids == (IDS[2], IDS[0])
    assert chosen.sensors.latitude.tolist() == store.sensors.latitude[[2, 0]].tolist()
    assert chosen.sensors.longitude.tolist() == store.sensors.longitude[[2, 0]].tolist()
    assert (chosen.values == store.values[:, [2, 0]]).all()


def test_a_truncated_file(tmp_path: Path) -> None:
    path = small_store(tmp_path / "out.h5", rows=400)
    whole = path.read_bytes()
    for keep in (8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        refusal(lambda: open_store(path), str(path), "truncated or damaged")


def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = small_store(tmp_path / "out.h5", rows=400)
    opened = open_store(path)
    small_store(tmp_path / "other.h5", rows=400).replace(path)
    assert refusal(lambda: opened.values).code == "file.changed"


def test_a_large_file_is_read_by_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_store(tmp_path / "out.h5", rows=2500)
    whole = open_store(path)
    monkeypatch.setattr(store, "KEPT_BYTES", 0)
    found = open_store(path)
    assert found.checksum == whole.checksum
    for rows in (slice(0, 7), slice(1000, 1100), slice(2490, 2500)):
        values, valid = found.read(rows)
        np.testing.assert_array_equal(values, whole.values[rows])
        np.testing.assert_array_equal(valid, whole.valid[rows])
    last_observed = carry_forward(whole.values, whole.valid)
    for page in (1, 2):
        np.testing.assert_array_equal(found.latest_before(page), last_observed[page * PAGE_ROWS - 1])
    assert "values" not in vars(found)


def test_a_flipped_bit_anywhere_is_found_or_harmless(tmp_path: Path) -> None:
    path, copy = small_store(tmp_path / "out.h5"), tmp_path / "copy.h5"
    expected, whole, dice = open_store(path), path.read_bytes(), random.Random(0)
    refused = []
    heap = whole.index(b"GCOL")  # the texts of attributes: no checksum guards them, and HDF5 2.0 itself may loop there
    places = [place for place in range(len(whole)) if not heap <= place < heap + 4096]
    for _ in range(400):
        data = bytearray(whole)
        data[dice.choice(places)] ^= 1 << dice.randrange(8)
        copy.write_bytes(data)
        try:
            found = open_store(copy)
            checksum = found.checksum
        except SocialxError as error:
            refused.append(str(error))
            continue
        assert checksum == expected.checksum
        assert (found.sensors.latitude == expected.sensors.latitude).all()
    assert len(refused) > 40
    assert all(re.fullmatch(r"[^\n]+\n  try: [^\n]+", text) for text in refused)
