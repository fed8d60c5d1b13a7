"""DCRNN's HDFStores become the same canonical files as the CSVs, without pandas' reader and without pickles."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.files.sources import hdfstore
from socialx.files.sources.contents import Contents
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.store import open_store
from tests.array_files import joined
from tests.data_files import (
    BAY_IDS,
    IDS,
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
    write_locations,
    write_stations,
)
from tests.data_files import reason as why

FORMAT = hdfstore.FORMATS[0]


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
@pytest.mark.parametrize("labels", [np.array(IDS, "S"), np.array(IDS, np.int64)], ids=["text", "integers"])
def test_a_frame_and_the_csv_give_one_checksum(tmp_path: Path, unit: str, labels: np.ndarray) -> None:
    values, times, meta = speeds(500), timestamps(500), write_locations(tmp_path / "meta.csv")
    frame = write_frame(tmp_path / "metr-la.h5", times, values, ids=labels, unit=unit)
    summary = convert("metr-la", frame, meta, tmp_path / "out1.h5")
    convert("metr-la", write_csv(tmp_path / "data.csv", times, values), meta, tmp_path / "out2.h5")
    assert (summary.rows, summary.first_timestamp) == (500, times[0])
    assert open_store(tmp_path / "out1.h5").checksum == open_store(tmp_path / "out2.h5").checksum


def test_columns_are_found_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.files.sources.contents.PIECE_BYTES", 1000)
    values = speeds(500)
    frame = write_frame(tmp_path / "bay.h5", timestamps(500), values, key="speed", ids=BAY_IDS, order=[2, 0, 1])
    convert("bay", frame, write_stations(tmp_path / "meta.csv", BAY_IDS), tmp_path / "out.h5")
    store = open_store(tmp_path / "out.h5")
    assert (store.sensors.ids, store.values.tobytes()) == (BAY_IDS, values.astype(np.float32).tobytes())


def test_a_frame_of_two_blocks(tmp_path: Path) -> None:
    values = np.round(speeds(30))
    path = write_frame(tmp_path / "data.h5", timestamps(30), values[:, :2], ids=IDS[:2])
    changed(
        path,
        put("df/axis0", np.array(IDS, "S")),
        put("df/block1_items", np.array(IDS[2:], "S")),
        put("df/block1_values", values[:, 2:].astype(np.int64)),
    )
    convert("la", path, write_locations(tmp_path / "meta.csv"), tmp_path / "out.h5")
    assert (open_store(tmp_path / "out.h5").values == values).all()


def read(path: Path, **more: str) -> Contents:
    return FORMAT.read(ConvertOptions(path, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["df", "speed"])
def test_speeds_of_dcrnn(tmp_path: Path, key: str) -> None:
    values = speeds(40)
    values[3, 1] = np.nan
    path = write_frame(tmp_path / "metr-la.h5", timestamps(40), values, key=key)
    assert str(why(FORMAT, path)).endswith(f"its key {key}")
    contents = read(path)
    assert (contents.ids, contents.sensors) == (IDS, 3)
    assert (contents.units, contents.locations, contents.notes) == ({"avg_speed": None}, None, ())
    times, read_speeds = joined(contents)
    assert (times, read_speeds.tobytes()) == (timestamps(40), values.astype(np.float32).tobytes())


def test_what_the_frame_holds_is_said(tmp_path: Path) -> None:
    """What pandas leaves beside the data of LargeST's file is not read; its pickles stay closed."""
    path = write_frame(tmp_path / "ca_his_raw_2019.h5", timestamps(40), np.round(speeds(40) * 10), key="t")
    with h5py.File(path, "r+") as file:
        file["t/axis1"].attrs["freq"] = np.bytes_(b"cos\nsystem\n(S'touch pickled'\ntR.")
        file["t/axis0"].attrs["name"] = h5py.Empty("S1")
    refusal(lambda: read(path), "'t'", "--quantity flow")
    contents = read(path, quantity="flow")
    assert (contents.ids, contents.units, joined(contents)[0]) == (IDS, {"flow": None}, timestamps(40))
    assert read(path, units="mph").feature == "avg_speed"
    assert read(changed(path, lambda file: file.move("t", "occupancy")), units="%").feature == "occupancy"


def test_one_of_several_frames_is_named(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "data.h5", timestamps(9), speeds(9), key="flow")
    changed(path, lambda file: file.copy("flow", "other"))
    refusal(lambda: read(path), str(path), "(flow, other)", "--channel flow")
    assert read(path, channel="flow").feature == "flow"
    changed(path, lambda file: file.copy("flow", "speed"))
    assert read(path).feature == "avg_speed"
    refusal(lambda: read(path, quantity="flow"), "(flow, other, speed)")


def test_what_is_no_hdfstore(tmp_path: Path) -> None:
    (tmp_path / "random").write_bytes(np.random.default_rng(0).bytes(4000))
    (tmp_path / "cut").write_bytes(write_frame(tmp_path / "data.h5", timestamps(9), speeds(9)).read_bytes()[:700])
    (tmp_path / "empty").write_bytes(b"")
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["soft"], file["external"] = h5py.SoftLink("/gone"), h5py.ExternalLink("gone.h5", "/")
    small_store(tmp_path / "done.h5")
    for name in ("random", "cut", "empty", "links.h5", "done.h5", "done.csv", "gone", "."):
        assert why(FORMAT, tmp_path / name) is None, name
    changed(write_frame(tmp_path / "table.h5", timestamps(9), speeds(9)), _table)
    assert "table format" in str(why(FORMAT, tmp_path / "table.h5"))


def _pickled() -> np.ndarray:
    rows = np.empty(1, object)
    rows[0] = np.frombuffer(b"cos\nsystem\n(S'touch pickled'\ntR.", np.uint8)
    return rows.astype(h5py.vlen_dtype(np.uint8))


def _table(file: h5py.File) -> None:
    """A frame in pandas' table format."""
    drop("df")(file)
    file["df/table"] = np.zeros(3, [("index", "i8"), ("values_block_0", "f8", (3,))])


BAD = {
    "a table": (_table, "format='table'"),
    "pickled labels": (put("df/axis0", _pickled()), "integers"),
    "no values": (drop("df/block0_values"), "df/block0_values"),
    "no index": (drop("df/axis1"), "df/axis1"),
    "no blocks": (drop("df/block0_items"), "3 sensors once"),
    "short values": (put("df/block0_values", np.zeros((9, 3))), "(9, 3) for 10 rows"),
    "flat values": (put("df/block0_values", np.zeros(30)), "has shape (30,)"),
    "text values": (put("df/block0_values", np.zeros((10, 3), "S4")), "|S4"),
    "another item": (put("df/block0_items", np.array(["1", "2", "3"], "S")), "not a plain frame"),
    "an item twice": (put("df/block0_items", np.array(IDS[:1] * 3, "S")), "once"),
    "a sensor twice": (put("df/axis0", np.array([*IDS[:2], "0773869"], "S")), "more than once"),
    "plain index": (lambda file: file["df/axis1"].attrs.update(kind=np.bytes_("integer")), "integer"),
    "a zone": (lambda file: file["df/axis1"].attrs.update(tz=np.bytes_("UTC")), "time zone"),
    "half seconds": (put("df/axis1", np.arange(10) * 500_000_000), "no whole second"),
    "no time": (put("df/axis1", np.full(10, np.iinfo(np.int64).min)), "NaT"),
    "backwards": (put("df/axis1", np.arange(10)[::-1] * 10**9), "rows 1 and 2"),
    "no rows": (
        lambda file: (put("df/axis1", np.empty(0, "i8"))(file), put("df/block0_values", np.empty((0, 3)))(file)),
        "no rows",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_frame_of_another_kind_is_refused(tmp_path: Path, case: str) -> None:
    change, words = BAD[case]
    path = changed(write_frame(tmp_path / "data.h5", timestamps(10), speeds(10)), change)
    meta = write_locations(tmp_path / "meta.csv")
    refusal(lambda: convert("la", path, meta, tmp_path / "out.h5"), str(path), words)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.h5", "meta.csv"]


def test_other_hdf5_files_are_refused(tmp_path: Path) -> None:
    done = small_store(tmp_path / "done.h5")
    refusal(lambda: read(done), str(done), "already a socialx file")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["something"] = 1
    refusal(lambda: read(tmp_path / "other.h5"), "(something)")
    refusal(lambda: read(write_locations(tmp_path / "meta.csv")), "not an HDF5 file")
    refusal(lambda: read(tmp_path / "gone.h5"), "no such file")


def test_pandas_is_not_needed_for_a_frame(tmp_path: Path) -> None:
    frame = write_frame(tmp_path / "data.h5", timestamps(10), speeds(10))
    meta = write_locations(tmp_path / "meta.csv")
    code = (
        "import sys; from pathlib import Path; from socialx.files.sources import readings;"
        "from socialx.files.store import writer;"
        "from socialx.files.sources.request import ConvertOptions;"
        f"r = readings.read('la', ConvertOptions(Path({str(frame)!r}), meta_csv=Path({str(meta)!r})));"
        f"writer.create(Path({str(tmp_path / 'out.h5')!r}), r);"
        "assert not {'pandas', 'tables', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
