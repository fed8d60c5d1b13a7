"""A frame of pandas or a table of pyarrow is data of convert, as the same table in a file is."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pandas as pd
import pyarrow as pa
import pytest

import socialx
from socialx.core.errors import SettingsError, SocialxError
from socialx.core.progress import also_subscribe
from socialx.files.store.store import Store, open_store
from tests import frames

ALONE = {"without_positions": True, "missing": "none"}
ROWS = {"sensor_column": "sensor", "channel": "speed"}


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert not list(temporary.iterdir())


def convert_frame(frame: Any, folder: Path, **options: Any) -> Store:
    output = folder / "out.h5"
    socialx.convert("auto", frame, output, **{**ALONE, "overwrite": True, **options})
    return open_store(output)


WIDE = frames.network()
LONG = frames.long(WIDE)
SHAPES: dict[str, Any] = {
    "index of times": WIDE,
    "column of times": WIDE.reset_index(),
    "index without a name": WIDE.rename_axis(None),
    "index of texts": WIDE.set_axis(WIDE.index.astype(str)),
    "out of order": WIDE[::-1],
    "index of periods": WIDE.set_axis(WIDE.index.to_period("5min")),
    "numbers as ids": WIDE.rename(columns=int),
    "objects": WIDE.astype(object),
    "nullable numbers": WIDE.astype("Float64"),
    "a row per reading": LONG,
    "a row per reading, indexed": LONG.set_index(["time", "sensor"]),
    "ids as categories": LONG.astype({"sensor": "category"}),
    "pyarrow of a frame": pa.Table.from_pandas(WIDE),
    "pyarrow": pa.table({"time": WIDE.index.to_numpy(), **{name: WIDE[name].to_numpy() for name in WIDE}}),
    "pyarrow, a row per reading": pa.Table.from_pandas(LONG, preserve_index=False),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_frame_is_read_whole(tmp_path: Path, shape: str) -> None:
    options = ROWS if "per reading" in shape or "categories" in shape else {"channel": "{sensor}"}
    frames.same(frames.stored(convert_frame(SHAPES[shape], tmp_path, **options)), WIDE)


def test_what_it_gives_is_what_the_table_in_a_file_gives(tmp_path: Path) -> None:
    WIDE.to_csv(tmp_path / "frame.csv")
    meta = frames.places_of(frames.IDS, tmp_path / "places.csv")
    options = {"meta_csv": meta, "units": "km/h", "timezone": "Europe/Berlin", "missing": -1}
    told: list[Any] = []
    with also_subscribe(told.append):
        of_frame = socialx.convert("auto", WIDE, tmp_path / "a.h5", validate=True, **options)
    of_file = socialx.convert("auto", tmp_path / "frame.csv", tmp_path / "b.h5", validate=True, **options)
    assert (of_frame.centre, of_frame.dataset, str(of_frame.data)) == (of_file.centre, of_file.dataset, "the frame")
    one, other = open_store(tmp_path / "a.h5"), open_store(tmp_path / "b.h5")
    assert one.values.tobytes() == other.values.tobytes()
    assert (one.unit, one.timezone, one.missing) == (other.unit, other.timezone, other.missing)
    with h5py.File(tmp_path / "a.h5") as file:
        assert file.attrs["source_data"] in (b"the frame", "the frame")
    said = " ".join(str(event.message) for event in told if hasattr(event, "message"))
    assert "network" in said
    assert "temporary" not in said + repr(of_frame) + str(of_frame.kind) + " ".join(map(str, of_frame.notes))


def test_the_zone_of_its_times_is_that_of_the_file(tmp_path: Path) -> None:
    zoned = WIDE.tz_localize("America/Los_Angeles")
    for frame in (zoned, pa.Table.from_pandas(zoned), frames.long(zoned)):
        options = ROWS if len(frame) != len(WIDE) else {"channel": "{sensor}"}
        store = convert_frame(frame, tmp_path, **options)
        assert store.timezone == "America/Los_Angeles"
        frames.same(frames.stored(store), WIDE)
    utc = convert_frame(zoned, tmp_path, timezone="UTC")
    assert (utc.timezone, frames.stored(utc).index[0]) == ("UTC", pd.Timestamp("2024-02-01 04:00"))
    assert convert_frame(zoned.tz_convert("UTC"), tmp_path).timezone == "UTC"
    assert (
        convert_frame(zoned.tz_convert("UTC"), tmp_path, timezone="America/Los_Angeles").timezone
        == "America/Los_Angeles"
    )


def test_an_hour_that_comes_twice_is_kept(tmp_path: Path) -> None:
    hours = pd.date_range("2024-10-27 01:00", periods=len(WIDE), freq="5min", tz="Europe/Paris")
    store = convert_frame(WIDE.set_axis(hours), tmp_path)
    assert (store.timezone, store.local_zone, len(store.seconds)) == ("UTC", "Europe/Paris", len(WIDE))


def test_a_frame_of_a_published_data_set_has_its_facts(tmp_path: Path) -> None:
    la = WIDE.set_axis(["716328", "716331", "717447", "717446"], axis=1)
    socialx.convert("metr-la", la, tmp_path / "la.h5", without_positions=True)
    store = open_store(tmp_path / "la.h5")
    assert (store.unit, store.timezone, store.dataset_name) == ("mph", "America/Los_Angeles", "metr_la")


ODD: dict[str, tuple[Any, str]] = {
    "no times": (WIDE.reset_index(drop=True), "column"),
    "durations": (WIDE.set_axis(WIDE.index - WIDE.index[0]), "column"),
    "no rows": (WIDE.iloc[:0], ""),
    "no columns": (WIDE[[]], ""),
    "columns twice": (WIDE.set_axis(["a", "b", "a", "c"], axis=1), "'a'"),
    "pyarrow, columns twice": (pa.table([[1.0], [2.0]], ["a", "a"]), ""),
    "second columns": (WIDE.set_axis(["a", "a.1", "b", "c"], axis=1), "--drop a.1"),
    "times twice": (WIDE.assign(time=WIDE.index), "'time'"),
    "numbers and texts": (WIDE.astype(object).assign(x=["shut"] + [1.5] * 59), "column"),
    "complex": (WIDE.astype(complex), "numbers"),
    "other sensors": (WIDE, "(4001, 4002, 4003, ...)"),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_frame_is_refused_with_a_sentence(tmp_path: Path, case: str) -> None:
    frame, words = ODD[case]
    name = "metr-la" if case == "other sensors" else "auto"
    with pytest.raises(SocialxError) as caught:
        socialx.convert(name, frame, tmp_path / "out.h5", channel="{sensor}", **ALONE)
    assert words in str(caught.value)
    assert str(caught.value).count("\n") <= 1
    assert "temporary" not in str(caught.value)
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda out: socialx.convert("auto", WIDE), "converting"),
        (lambda out: socialx.convert("auto", WIDE, out.with_suffix(".csv")), "names"),
        (lambda out: socialx.convert("auto", WIDE, out, food=1), "argument"),
        (lambda out: socialx.convert("auto", WIDE.to_numpy(), out), "ndarray"),
    ],
)
def test_wrong_calls_are_refused(tmp_path: Path, call: Callable[[Path], Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        call(tmp_path / "out.h5")
