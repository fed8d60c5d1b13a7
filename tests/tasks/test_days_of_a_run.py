"""What a run knows of its own days, at files that go on after them, begin inside of them, or are of another network."""

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.core.errors import Message
from socialx.core.progress import Note
from socialx.serving.latest import Latest
from socialx.serving.posted import read_issue
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting
from tests.commands import LOCATIONS, cross, edited, in_kmh, keep_rows, refused, small_file, small_run, works

DAY = 288
ROWS = [3 * DAY + 144, 4 * DAY, 5 * DAY - 6]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("days")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    return small_file(folder, 6 * DAY, 4)


@pytest.fixture(scope="module")
def early(whole: Path, folder: Path) -> Path:
    """The first three days and a half."""
    return part_of(whole, folder / "early.h5", slice(0, 3 * DAY + 144))


@pytest.fixture(scope="module")
def run(early: Path, folder: Path) -> Path:
    return small_run(early, folder / "run", "--zero-shot")


def part_of(data: Path, path: Path, rows: slice | np.ndarray) -> Path:
    with edited(data, path) as file:
        keep_rows(file, rows)
    return path


def time_of(data: Path, row: int) -> str:
    with h5py.File(data) as file:
        return file["metadata/timestamps"].asstr()[row]


def test_a_file_that_goes_on_is_forecast_as_the_whole_one(run: Path, whole: Path, tmp_path: Path) -> None:
    later = part_of(whole, tmp_path / "later.h5", slice(3 * DAY, None))
    for row in (3 * DAY + 30, 3 * DAY + 250, 5 * DAY + 100):
        found, wanted = (socialx.predict(run, data, at=time_of(whole, row)).values for data in (later, whole))
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def moved(data: Path, path: Path, row: int, days: int) -> Path:
    """A copy of a file whose rows from this one on are so many days later."""
    with edited(data, path) as file:
        times = file["metadata/timestamps"].asstr()[:].astype("datetime64[s]")
        times[row:] += np.timedelta64(days, "D")
        file["metadata/timestamps"][:] = np.char.replace(times.astype("S19"), b"T", b" ")
        file["metadata/timestamps_epoch"][:] = times.astype(np.int64)
    return path


def frame_of(data: Path) -> pd.DataFrame:
    with h5py.File(data) as file:
        times = pd.to_datetime(file["metadata/timestamps"].asstr()[:])
        return pd.DataFrame(file["data/features"][:, :, 0], times, file["metadata/vdids"].asstr()[:])


@pytest.mark.parametrize(("row", "days"), cross(ROWS, [0, 1, 2, 14, 92, 366], 5 * DAY - 6))
def test_an_hour_is_forecast_as_by_the_whole_file_however_late_it_is(
    run: Path, whole: Path, tmp_path: Path, row: int, days: int
) -> None:
    """The hour comes directly after the days of the run, from midnight on, and over midnight."""
    known = part_of(whole, tmp_path / "known.h5", np.r_[0 : 3 * DAY + 144, row : row + 12])
    moved(known, tmp_path / "long.h5", 3 * DAY + 144, days)
    hour = part_of(tmp_path / "long.h5", tmp_path / "hour.h5", slice(-12, None))
    wanted = socialx.predict(run, tmp_path / "long.h5").values
    for found in (socialx.predict(run, hour), socialx.predict(run, frame_of(hour))):
        np.testing.assert_allclose(found.values, wanted, rtol=1e-5, err_msg=str(hour))


@pytest.mark.parametrize(("row", "days"), [(3 * DAY + 200, 3), (4 * DAY + 100, 4), (5 * DAY + 100, 4)])
def test_a_note_counts_the_last_day_of_a_run(run: Path, whole: Path, tmp_path: Path, row: int, days: int) -> None:
    said: list[Message] = []
    hour = part_of(whole, tmp_path / "hour.h5", slice(row, row + 12))
    socialx.predict(run, hour, progress=lambda event: said.append(event.message) if isinstance(event, Note) else None)
    assert [f" {days} days " in each.problem for each in said if each.code == "predict.days"] == [True]


def test_at_a_file_that_begins_inside_of_its_days_it_knows_nothing_that_came_later(
    run: Path, whole: Path, tmp_path: Path
) -> None:
    inside = part_of(whole, tmp_path / "inside.h5", slice(DAY, None))
    alone = socialx.predict(run, inside, at=time_of(whole, 2 * DAY + 100)).values
    (run / "climatology.safetensors").rename(tmp_path / "kept")
    try:
        np.testing.assert_array_equal(socialx.predict(run, inside, at=time_of(whole, 2 * DAY + 100)).values, alone)
    finally:
        (tmp_path / "kept").rename(run / "climatology.safetensors")


def test_in_another_unit_it_is_the_same_knowledge(run: Path, whole: Path, tmp_path: Path) -> None:
    later = part_of(whole, tmp_path / "later.h5", slice(4 * DAY, None))
    kmh = in_kmh(later, tmp_path / "kmh.h5")
    miles, kilometres = (socialx.predict(run, data).values for data in (later, kmh))
    np.testing.assert_allclose(kilometres, 1.609344 * miles, rtol=1e-4)


def test_a_network_is_its_ids_and_its_places_whatever_its_name(run: Path, whole: Path, tmp_path: Path) -> None:
    later = part_of(whole, tmp_path / "later.h5", slice(4 * DAY, None))
    with edited(later, tmp_path / "city.h5") as file:
        file.attrs["dataset_name"] = "another_city"
    places = pd.read_csv(LOCATIONS).assign(latitude=lambda table: table["latitude"] + 5)
    places.to_csv(tmp_path / "places.csv", index=False)
    works(
        "convert",
        "metr-la",
        whole.with_name("small.csv"),
        "--meta-csv",
        tmp_path / "places.csv",
        "--output-h5",
        tmp_path / "a.h5",
    )
    elsewhere = part_of(tmp_path / "a.h5", tmp_path / "elsewhere.h5", slice(4 * DAY, None))
    one, two, three = (socialx.predict(run, data).values for data in (later, tmp_path / "city.h5", elsewhere))
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - three).max() > 1e-3


def test_scores_of_a_run_do_not_depend_on_other_runs(run: Path, whole: Path, folder: Path, tmp_path: Path) -> None:
    second = small_run(part_of(whole, tmp_path / "two.h5", slice(0, 2 * DAY)), folder / "second", "--zero-shot")
    later = part_of(whole, tmp_path / "later.h5", slice(4 * DAY, None))

    def error(*runs: Path) -> float:
        return socialx.evaluate(runs, later, split="all")[str(second)].overall().mae

    assert error(second) == error(run, second) == error(second, run)


@pytest.mark.parametrize("minutes", [0, 25, 70, 500])
def test_a_server_forecasts_as_predict_does_just_after_midnight(run: Path, whole: Path, minutes: int) -> None:
    path = part_of(whole, run.parent / f"until_{minutes}.h5", slice(0, 5 * DAY + minutes // 5 + 1))
    experiment = open_forecasting(run, ConfigLayers.from_call(None, {"data": path}), split=False).experiment
    issue = Latest(experiment, "run", path).read()[0]
    values = experiment.precision.infer(experiment.model.eval(), issue.batch)
    np.testing.assert_allclose(values, socialx.predict(run, path).values, rtol=1e-6)


def without(rows: slice) -> Callable[[Path, Path], None]:
    """The file before somebody filled these rows."""

    def write(data: Path, path: Path) -> None:
        with edited(data, path) as file:
            keep_rows(file, np.delete(np.arange(len(file["data/features"])), rows))

    return write


def other_readings(rows: slice, reading: float) -> Callable[[Path, Path], None]:
    """The file before somebody put the readings of these rows right."""

    def write(data: Path, path: Path) -> None:
        with edited(data, path) as file:
            file["data/features"][rows, :, 0] = reading

    return write


BEFORE = {
    "days were silent": other_readings(slice(DAY, 5 * DAY), np.nan),
    "days were lacking": without(slice(DAY, 5 * DAY)),
    "a day was half there": without(slice(4 * DAY + 100, 5 * DAY)),
    "readings were wrong": other_readings(slice(4 * DAY + 60, 5 * DAY), 5.0),
    "a reading was wrong": other_readings(slice(4 * DAY + 96, 4 * DAY + 97), 1.0),
    "rows came at the end": without(slice(5 * DAY + 60, None)),
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_server_sees_what_was_changed_in_earlier_days(name: str, run: Path, whole: Path, tmp_path: Path) -> None:
    """After an answer for tomorrow, for which it has counted today as far as it was."""
    path = tmp_path / "live.h5"
    BEFORE[name](whole, path)
    experiment = open_forecasting(run, ConfigLayers.from_call(None, {"data": path}), split=False).experiment
    latest = Latest(experiment, "run", path)

    def forecasts() -> tuple[np.ndarray, np.ndarray]:
        """After the last row, and for an hour of tomorrow."""
        issued = latest.read()
        latest.keep(issued, [experiment.precision.infer(experiment.model.eval(), issue.batch) for issue in issued])
        times = [f"2012-05-09 08:{minute:02}" for minute in range(0, 60, 5)]
        body = {"times": times, "readings": {name: [60.0] * 12 for name in experiment.data.sensors.ids}}
        posted = read_issue(latest.experiment, "application/json", json.dumps(body).encode())
        return tuple(experiment.precision.infer(experiment.model, each.batch) for each in (issued[0], posted))

    before = forecasts()
    path.unlink()
    path.write_bytes(whole.read_bytes())
    after = forecasts()
    np.testing.assert_allclose(after[0], socialx.predict(run, path).values, rtol=1e-6)
    opened = open_forecasting(run, ConfigLayers.from_call(None, {"data": path}), split=False)
    latest = Latest(opened.experiment, "run", path)
    np.testing.assert_array_equal(after[1], forecasts()[1])
    assert np.abs(after[1] - before[1]).max() > 1e-3


def test_intervals_of_another_step_are_a_first_guess_and_nothing_is_replaced(run: Path, tmp_path: Path) -> None:
    (tmp_path / "at.csv").write_text("id,lat,lon\nS1,34.1,-118.3\nS2,34.2,-118.3\nS3,34.2,-118.2\n")
    given = {"meta_csv": tmp_path / "at.csv", "units": "mph", "timezone": "America/Los_Angeles"}
    for name, rows in (("long", 700), ("ten", 140)):  # 140 rows are less than a day
        times = pd.date_range("2024-01-30", periods=rows, freq="10min", name="time")
        speeds = np.random.default_rng(0).uniform(60, 70, (rows, 3))
        pd.DataFrame(speeds, times, ["S1", "S2", "S3"]).to_csv(tmp_path / "a.csv")
        socialx.convert("auto", tmp_path / "a.csv", tmp_path / f"{name}.h5", **given)
    assert np.isfinite(socialx.predict(run, tmp_path / "long.h5", interval=0.9).upper).all()  # of its own last days
    before = (run / "intervals.safetensors").read_bytes()
    guessed = socialx.predict(run, tmp_path / "ten.h5", interval=0.9)
    assert guessed.upper.shape == (1, 6, 3, 1)
    assert np.isfinite(guessed.upper).all()
    error = refused("calibrate", run, "--data", tmp_path / "ten.h5")
    assert (error.code, "10 min" in error) == ("calibrate.other-step", True)
    assert (run / "intervals.safetensors").read_bytes() == before
