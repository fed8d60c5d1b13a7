"""Sensors that are new to a file: append gives the file that one conversion gives, or leaves it as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.files.store.store import open_store
from tests import frames
from tests.commands import works
from tests.data_files import refusal, room_for, spoil_copies, unchanged
from tests.files.test_append import FRAME, IDS, PLACES, append, content, file_of

MORE = ["15", "16"]
NEW_PLACES = pd.DataFrame({"id": MORE, "lat": [48.5, 48.6], "lon": [11.5, 11.6], "lanes": [3, 1]})
NEW_PLACES["length"], NEW_PLACES["direction"] = [np.nan, 0.75], ["W", ""]
ALL = pd.concat([PLACES, NEW_PLACES], ignore_index=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The first half of ``FRAME``, and the positions of the new sensors beside it."""
    NEW_PLACES.to_csv(tmp_path / "new_places.csv", index=False)
    return file_of(FRAME[:30], tmp_path)


def grown(frame: pd.DataFrame = FRAME) -> pd.DataFrame:
    """The same with two more sensors."""
    rng = np.random.default_rng(9)
    return frame.assign(**{name: rng.uniform(20, 90, len(frame)).round(1) for name in MORE})


def whole(frame: pd.DataFrame, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What one conversion makes of all rows and sensors."""
    folder.mkdir()
    monkeypatch.setattr("tests.files.test_append.PLACES", ALL)
    return content(file_of(frame, folder, "city"))


def numbers(found: dict[str, Any]) -> dict[str, Any]:
    """What does not name a folder or depends on the size of a chunk."""
    return {name: value for name, value in found.items() if "source" not in name}


@pytest.mark.parametrize("order", [[*IDS, *MORE], ["16", "12", "15", "11", "14", "13"]])
def test_it_is_that_of_one_call(order: list[str], tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = append(path, grown()[30:][order], meta_csv=tmp_path / "new_places.csv")
    assert (set(done.new), done.rows, done.sensors, done.absent) == (set(MORE), 30, 6, ())
    ids = [*IDS, *done.new]
    assert list(open_store(path).sensors.ids) == ids
    frame = grown()
    frame.loc[frame.index[:30], MORE] = np.nan
    assert numbers(content(path)) == numbers(whole(frame[ids], tmp_path / "whole", monkeypatch))


def test_rows_that_the_file_has_give_a_new_sensor_its_earlier_readings(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown()[20:].to_csv(tmp_path / "new.csv")
    done = works("append", path, tmp_path / "new.csv", "--meta-csv", tmp_path / "new_places.csv").stdout
    for said in ("30 rows added", "10 rows of", "2 new sensors (15, 16)", "60 rows x 6 sensors"):
        assert said in done
    frame = grown()
    frame.loc[frame.index[:20], MORE] = np.nan
    assert numbers(content(path)) == numbers(whole(frame, tmp_path / "whole", monkeypatch))


def test_later_appends_know_it(tmp_path: Path, path: Path) -> None:
    frame = grown()
    append(path, frame[30:40], meta_csv=tmp_path / "new_places.csv")
    assert append(path, frame[40:50]).new == ()
    assert append(path, frame[50:], meta_csv=tmp_path / "new_places.csv").new == ()
    store = open_store(path)
    np.testing.assert_array_equal(store.values[30:, 4:], frame[MORE].to_numpy(np.float32)[30:])
    assert not store.valid[:30, 4:].any()
    assert store.sensors.lanes is not None
    assert (store.sensors.lanes.tolist(), store.sensors.direction) == ([2, 2, 2, 2, 3, 1], (*"NES", "", "W", ""))


def test_the_facts_of_a_new_sensor_are_kept(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = tmp_path / "new_places.csv"
    monkeypatch.setattr("tests.files.test_append.PLACES", PLACES[["id", "lat", "lon"]])
    plain = file_of(FRAME[:30], tmp_path, "plain")
    append(plain, grown()[30:], meta_csv=meta)
    sensors = open_store(plain).sensors
    np.testing.assert_array_equal(sensors.lanes, [np.nan] * 4 + [3, 1])
    assert sensors.direction == ("", "", "", "", "W", "")
    unknown = PLACES.assign(lanes=np.nan, length=np.nan)
    monkeypatch.setattr("tests.files.test_append.PLACES", unknown)  # the file has the columns, and no number in them
    path = file_of(FRAME[:30], tmp_path, "unknown")
    append(path, grown()[30:], meta_csv=meta)
    np.testing.assert_array_equal(open_store(path).sensors.lanes, [np.nan] * 4 + [3, 1])
    assert open_store(path, "lanes").values[-1, -2:].tolist() == [3, 1]


def test_a_new_sensor_needs_a_position(tmp_path: Path, path: Path) -> None:
    NEW_PLACES[:1].to_csv(tmp_path / "new_places.csv", index=False)
    with unchanged(path):
        grown()[30:].to_csv(tmp_path / "new.csv")
        refusal(
            lambda: socialx.append(path, tmp_path / "new.csv", meta_csv=tmp_path / "new_places.csv"),
            "(16)",
            task="append",
        )
        refusal(
            lambda: socialx.append(path, tmp_path / "new.csv"),
            "2 of the 6 sensors",
            "--meta-csv LOCATIONS.csv",
            task="append",
        )


@pytest.mark.parametrize(("new", "cell"), [(IDS, (29, 0, 0)), ([*IDS, *MORE], (35, 5, 0))])
def test_a_disk_without_room_and_one_that_loses_what_is_written(
    new: list[str], cell: tuple[int, ...], tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = tmp_path / "new_places.csv" if new != IDS else None
    grown()[30:][new].to_csv(tmp_path / "new.csv")

    def spoil(copy: Path) -> None:
        with h5py.File(copy, "r+") as file:
            file["data/features"][cell] += 1

    def fails(*words: str) -> None:
        refusal(lambda: socialx.append(path, tmp_path / "new.csv", meta_csv=meta), *words, task="append")

    with unchanged(path):
        with room_for(path.stat().st_size + 1000):
            fails("cannot be written", "its space")
        spoil_copies(monkeypatch, spoil)
        fails("returned")
    assert not list(tmp_path.glob("*.tmp"))


def test_a_run_that_learnt_to_do_without_forecasts_it(tmp_path: Path) -> None:
    frame = grown(pd.concat([FRAME] * 7).set_index(pd.date_range("2024-01-31", periods=420, freq="5min")))
    path = file_of(frame[IDS][:400], tmp_path)
    NEW_PLACES.to_csv(tmp_path / "new_places.csv", index=False)
    small = {"width": 8, "blocks": 1, "slstm_at": (), "sensor_dropout": 0.2}
    pooling = {"neighbours": 3, "adaptive_adjacency_rank": 2}
    run = socialx.train(path, run_dir=tmp_path / "run", model=small, pooling=pooling, max_epochs=1)
    append(path, frame[400:], meta_csv=tmp_path / "new_places.csv")
    forecast = socialx.predict(run, path)
    assert list(forecast.sensors) == [*IDS, *MORE]
    assert np.isfinite(forecast.values).all()


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("table", [pd.DataFrame.copy, frames.long])
def test_an_id_in_another_case_is_no_new_sensor(
    table: Callable[[pd.DataFrame], pd.DataFrame], meta: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ["A-1", "b2", "C", "14"]
    monkeypatch.setattr("tests.files.test_append.PLACES", PLACES.assign(id=ids))
    frame = FRAME.set_axis(ids, axis=1)
    path = file_of(frame[:30], tmp_path)
    places = {"meta_csv": tmp_path / "places.csv"} if meta else {}
    done = append(path, table(frame[30:].rename(columns=str.swapcase)), **places)
    assert (done.rows, done.new, done.absent) == (30, (), ())
    np.testing.assert_array_equal(open_store(path).values, open_store(file_of(frame, tmp_path, "whole")).values)


def test_an_id_that_differs_from_one_beside_it_by_case_alone_is_a_new_sensor(path: Path, tmp_path: Path) -> None:
    later = FRAME[30:].assign(A=1.5)
    places = pd.DataFrame({"id": ["A", "a"], "lat": [48.5, 48.6], "lon": [11.5, 11.6]})
    places.to_csv(tmp_path / "new_places.csv", index=False)
    assert append(path, later, meta_csv=tmp_path / "new_places.csv").new == ("A",)
    assert append(path, FRAME[30:].assign(A=1.5, a=2.5), meta_csv=tmp_path / "new_places.csv").new == ("a",)


def test_a_wrong_name_of_locations_is_told_where_no_sensor_is_new(tmp_path: Path, path: Path) -> None:
    with unchanged(path):
        refusal(lambda: append(path, FRAME[36:], meta_csv=tmp_path / "none.csv"), "none")
