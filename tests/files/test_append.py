"""Appending later rows gives the file that one conversion of all rows gives; what does not fit leaves it as it was."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import Result

import socialx
from socialx.core.errors import SettingsError
from socialx.files.sources.append import AppendResult
from socialx.files.store.store import open_store
from tests import frames
from tests.commands import socialx as run
from tests.data_files import changed, digest, put, refusal, unchanged

IDS = ["11", "12", "13", "14"]
PLACES = pd.DataFrame({"id": IDS, "lat": [48.1, 48.2, 48.3, 48.4], "lon": [11.1, 11.2, 11.3, 11.4], "lanes": 2})
PLACES["length"], PLACES["direction"] = [0.5, np.nan, 0.25, 1.0], [*"NES", ""]


def network(rows: int = 60, first: str = "2024-01-31 20:00", seed: int = 0) -> pd.DataFrame:
    """Speeds of which some are missing and some 0."""
    frame = frames.network(rows, first, IDS, seed)
    return frame.mask(np.random.default_rng(seed + 1).random(frame.shape) < 0.1, 0.0)


def file_of(frame: pd.DataFrame, folder: Path, name: str = "city", **options: Any) -> Path:
    """What convert makes of a table."""
    PLACES.to_csv(folder / "places.csv", index=False)
    frame.to_csv(folder / f"{name}.csv")
    told = {"units": "km/h", "timezone": "Europe/Berlin"} | options
    output = folder / f"{name}.h5"
    socialx.convert("csv", folder / f"{name}.csv", output, meta_csv=folder / "places.csv", overwrite=True, **told)
    return output


FRAME = network()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The first half of ``FRAME``."""
    return file_of(FRAME[:30], tmp_path)


def append(path: Path, frame: pd.DataFrame, **options: Any) -> AppendResult:
    """Append a table under the name of the first one's neighbour."""
    frame.to_csv(path.parent / "new.csv")
    return socialx.append(path, path.parent / "new.csv", **options)


def told(path: Path, frame: pd.DataFrame, *options: str) -> Result:
    """What the command says that appends a table."""
    frame.to_csv(path.parent / "new.csv")
    return run("append", path, path.parent / "new.csv", *options)


def content(path: Path) -> dict[str, Any]:
    """All datasets and attributes of a file, but for the moment when it was written and the form of its tables."""
    found: dict[str, Any] = {}

    def take(name: str, item: h5py.Group | h5py.Dataset) -> None:
        kept = {key: value for key, value in item.attrs.items() if key not in ("creation_date", "table")}
        found.update({f"{name}@{key}": str(value) for key, value in kept.items()})
        if isinstance(item, h5py.Dataset):
            found[name] = (item.shape, str(item.dtype), np.asarray(item[()]).tobytes())

    with h5py.File(path) as file:
        take("/", file)
        file.visititems(take)
    return found


def wide(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, sep=";")


def commas(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, sep="\t", decimal=",", date_format="%d.%m.%Y %H:%M")


def long(frame: pd.DataFrame, path: Path) -> None:
    frames.long(frame).to_csv(path, index=False)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(2, 59), min_size=1, max_size=3, unique=True).map(sorted),
    again=st.integers(0, 5),
    order=st.permutations(IDS),
    write=st.sampled_from([wide, commas, long]),
    seed=st.integers(0, 3),
)
def test_appending_is_converting_all_at_once(
    tmp_path: Path,
    cuts: list[int],
    again: int,
    order: list[str],
    write: Callable[[pd.DataFrame, Path], None],
    seed: int,
) -> None:
    frame = network(seed=seed)
    whole = content(file_of(frame, tmp_path))
    grown = file_of(frame[: cuts[0]], tmp_path)
    for first, last in zip(cuts, [*cuts[1:], len(frame)], strict=True):
        repeated = min(again, first)
        write(frame[order][first - repeated : last], tmp_path / "new.csv")
        done = socialx.append(grown, tmp_path / "new.csv")
        assert (done.rows, done.repeated, done.filled, done.absent) == (last - first, repeated, 0, ())
    assert (content(grown), done.total, done.last_timestamp) == (whole, 60, "2024-02-01 00:55:00")


def test_several_tables_at_once(tmp_path: Path) -> None:
    whole = content(file_of(FRAME, tmp_path))
    grown = file_of(FRAME[:20], tmp_path)
    FRAME[40:].to_csv(tmp_path / "b.csv")
    FRAME[20:40].to_csv(tmp_path / "c.csv")
    assert (socialx.append(grown, [tmp_path / "b.csv", tmp_path / "c.csv"]).rows, content(grown)) == (40, whole)


def test_a_file_whose_times_cannot_grow_is_appended_to(tmp_path: Path, path: Path) -> None:
    with h5py.File(path, "r+") as file:  # as files were written before
        for name in ("metadata/timestamps", "metadata/timestamps_epoch"):
            values = file[name][:]
            del file[name]
            file.create_dataset(name, data=values, chunks=True, compression="gzip")
    append(path, FRAME[30:])
    assert content(path) == content(file_of(FRAME, tmp_path))


def test_a_sensor_that_is_not_in_the_table_gets_missing_readings(path: Path) -> None:
    done = told(path, FRAME[28:][["13", "12"]])
    assert "2 of 4 sensors of" in done.stderr
    assert "(11, 14)" in done.stderr
    assert "2024-02-01 00:55:00" in done.stdout
    values = open_store(path).values
    assert np.isnan(values[30:, [0, 3]]).all()
    assert np.array_equal(values[:, [1, 2]], FRAME[["12", "13"]].to_numpy(np.float32), equal_nan=True)


def test_a_gap_is_filled_with_missing_readings(path: Path) -> None:
    done = told(path, FRAME[36:].drop(FRAME.index[[40, 41, 45]]))
    assert "9 rows are" in done.stderr
    assert "2024-01-31 22:30:00" in done.stderr
    assert "21 rows added" in done.stdout
    store, lost = open_store(path), [*range(30, 36), 40, 41, 45]
    assert store.timestamps.tolist() == [str(time).encode() for time in FRAME.index]
    assert np.isnan(store.values[lost]).all()
    assert not store.valid[lost].any()
    with h5py.File(path) as file:
        positions = file["data/features"][:, :, 1:]
    assert (positions == positions[:1])[~np.isnan(positions)].all()
    assert np.isfinite(positions[lost, :, -3:-1]).all()
    assert append(path, FRAME[36:47]).restored == 3
    assert open_store(path).timestamps.tolist() == store.timestamps.tolist()


def test_the_hour_that_spring_skips_is_no_gap(tmp_path: Path) -> None:
    moments = pd.date_range("2024-03-30 23:00", "2024-03-31 05:55", freq="5min")
    moments = moments[(moments < "2024-03-31 02:00") | (moments >= "2024-03-31 03:00")]
    frame = network(len(moments)).set_axis(moments.rename("time"))
    whole = content(file_of(frame, tmp_path))
    path = file_of(frame[:36], tmp_path)
    assert (str(frame.index[36]), append(path, frame[36:]).filled, content(path)) == ("2024-03-31 03:00:00", 0, whole)
    path = file_of(frame[:30], tmp_path)
    assert append(path, frame[40:]).filled == 10
    assert open_store(path).timestamps.tolist() == [str(time).encode() for time in frame.index]


def test_a_file_in_utc_takes_wall_times_of_a_zone(tmp_path: Path) -> None:
    moments = pd.date_range("2024-10-26 22:00", periods=60, freq="5min", tz="UTC", name="time")
    wall = network().set_axis(moments.tz_convert("Europe/Berlin").tz_localize(None))  # rows 36 to 47: the hour again
    zoned, plain = wall.set_axis(moments), wall.set_axis(moments.tz_localize(None))
    whole = content(file_of(wall, tmp_path))
    path = file_of(plain[:20], tmp_path, timezone="UTC")
    append(path, wall[20:], timezone="Europe/Berlin")
    assert content(path) == {name: value for name, value in whole.items() if name != "metadata@local_zone"}
    path = file_of(wall[:48], tmp_path)
    append(path, wall[48:52], timezone="Europe/Berlin")
    append(path, zoned[52:56])
    with unchanged(path):
        said = told(path, plain[56:]).stderr
        assert "Europe/Berlin" in said
        assert "--timezone UTC" in said
        assert "Europe/Berlin" in said
    assert (told(path, plain[56:], "--timezone", "UTC").exit_code, content(path)) == (0, whole)


@pytest.mark.parametrize(("first", "hours"), [("2024-01-31 20:00", 5), ("2024-03-30 23:00", 6)])
def test_times_with_an_offset_become_wall_times_of_the_file(tmp_path: Path, first: str, hours: int) -> None:
    moments = pd.date_range(first, periods=12 * hours, freq="5min", tz="Europe/Berlin", name="time")  # spring skips one
    zoned = network(len(moments)).set_axis(moments)
    wall = zoned.set_axis(moments.tz_localize(None))
    whole = content(file_of(wall, tmp_path))
    path = file_of(wall[:20], tmp_path)
    append(path, zoned[20:40].tz_convert("UTC"))
    append(path, zoned[38:])
    assert content(path) == whole


def test_the_hour_that_comes_twice_is_taken_with_offsets_too(tmp_path: Path) -> None:
    moments = pd.date_range("2024-10-26 22:00", periods=60, freq="5min", tz="UTC", name="time")
    zoned = network().set_axis(moments)
    whole = content(file_of(zoned.set_axis(moments.tz_convert("Europe/Berlin").tz_localize(None)), tmp_path))
    for parts in ((20, 60), (20, 36, 60)):
        path = file_of(zoned[:20].set_axis(moments[:20].tz_convert("Europe/Berlin").tz_localize(None)), tmp_path)
        for begin, end in pairwise(parts):
            append(path, zoned[begin:end])
        assert content(path) == whole


def test_speeds_of_another_unit_are_noted(tmp_path: Path) -> None:
    path = file_of(FRAME[:30], tmp_path, units="mph")
    assert "readings" in told(path, 1.609 * FRAME[30:45]).stderr
    assert "check that" not in told(path, FRAME[45:]).stderr


def test_flow_is_taken_where_the_file_holds_flow(tmp_path: Path) -> None:
    frame = network()
    path = file_of(frame[:30], tmp_path, quantity="flow", units="veh/h")
    cells = frame[30:].reset_index().melt("time", var_name="sensor", value_name="volume").assign(speed=1.0)
    cells.sort_values("time").to_csv(tmp_path / "new.csv", index=False)
    socialx.append(path, tmp_path / "new.csv")
    store = open_store(path)
    assert store.feature == "flow"
    assert np.array_equal(store.values, frame.to_numpy(np.float32), equal_nan=True)


def test_nothing_new_leaves_the_file_alone(path: Path) -> None:
    before, moment = digest(path), path.stat().st_mtime_ns
    done = told(path, FRAME[10:20])
    assert "unchanged" in done.stdout
    assert "10 rows are in" in done.stderr
    assert (digest(path), path.stat().st_mtime_ns) == (before, moment)


REFUSED: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], tuple[str, ...]]] = {
    "unknown ids": (
        lambda f: f.rename(columns={"12": "99"})[30:],
        ("1 of the 4 sensors", "(99)", "--meta-csv LOCATIONS.csv"),
    ),
    "another reading": (
        lambda f: f.fillna(0.0).add(f.columns == "13")[20:],
        ("readings", "13 at 2024-01-31 21:40:00 is ", ", not ", "convert"),
    ),
    "only older rows": (lambda f: f.shift(freq="-1D"), ("60 rows are", "2024-01-30 20:00:00")),
    "between two rows": (lambda f: f[20:25].shift(freq="1min"), ("5 rows are", "21:41:00")),
    "off the step": (lambda f: f[30:].shift(freq="2min"), ("not 5 min apart", "2024-01-31 22:32:00")),
    "another step": (lambda f: f[30::3], ("not 5 min apart", "table")),
    "far away": (
        lambda f: f[30:].shift(freq="30D"),
        ("2024-03-01 22:30:00", "8,640 empty steps after", "check the dates"),
    ),
    "infinite": (lambda f: f.assign(**{"13": 1e39})[30:][IDS[::-1]], ("line 2", "'13'")),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_does_not_fit_is_refused_and_the_file_stays(tmp_path: Path, path: Path, change: str) -> None:
    with unchanged(path):
        make, words = REFUSED[change]
        refusal(lambda: append(path, make(FRAME)), str(tmp_path / "new.csv"), *words, task="append")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["city.csv", "city.h5", "new.csv", "places.csv"]


def test_a_long_name_stays_short(path: Path) -> None:
    frame = FRAME[30:].rename(columns={"14": "x" * 250})
    assert len(refusal(lambda: append(path, frame), "1 of the 4 sensors", "leave them out")) < 700


def test_two_spellings_of_a_sensor_are_refused(tmp_path: Path, path: Path) -> None:
    long(FRAME[30:].assign(**{"011": 1.0}), tmp_path / "new.csv")
    refusal(lambda: socialx.append(path, tmp_path / "new.csv"), "sensors appear twice (011, 11)", task="append")


def test_zones_that_contradict_are_refused(tmp_path: Path, path: Path) -> None:
    unsaid = file_of(FRAME[:30], tmp_path, "unsaid", timezone=None)
    refusal(lambda: append(unsaid, FRAME[30:].tz_localize("UTC")), "zone", "wall times", task="append")
    refusal(lambda: append(path, FRAME[30:], timezone="Europe/Paris"), "Europe/Berlin", task="append")
    with pytest.raises(SettingsError):
        append(path, FRAME[30:], timezone="Europe/Paris")
    assert append(path, FRAME[30:], timezone="Europe/Berlin").rows == 30


def test_a_file_that_cannot_grow_is_refused(tmp_path: Path, path: Path) -> None:
    changed(path, lambda file: put("data/features", file["data/features"][:])(file))
    refusal(lambda: append(path, FRAME[30:]), "number", task="append")
    path = file_of(FRAME[:30], tmp_path)
    changed(path, lambda file: file["metadata/feature_names"].__setitem__(1, "flow"))
    refusal(lambda: append(path, FRAME[30:]), "avg_speed", task="append")
    refusal(lambda: append(tmp_path / "city.csv", FRAME[30:]), "not an HDF5 file", task="append")
