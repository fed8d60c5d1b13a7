"""What a run knows of its own days, at files that go on after them, begin inside of them, or are of another network."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

import socialx
from tests.commands import edited, keep_rows, refused, small_file, small_run

DAY = 288


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("days")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    return small_file(folder, 6 * DAY, 4)


@pytest.fixture(scope="module")
def early(whole: Path, folder: Path) -> Path:
    """The first three days and a half: what a run of them knows ends with the third."""
    return part_of(whole, folder / "early.h5", slice(0, 3 * DAY + 144))


@pytest.fixture(scope="module")
def run(early: Path, folder: Path) -> Path:
    return small_run(early, folder / "run", "--any-network")


def part_of(data: Path, path: Path, rows: slice) -> Path:
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
    with edited(later, tmp_path / "kmh.h5") as file:
        file["data/features"][:, :, 0] = file["data/features"][:, :, 0] * np.float32(1.609344)
        units = json.loads(file["metadata/units"].asstr()[()]) | {"avg_speed": "km/h"}
        del file["metadata/units"]
        file["metadata/units"] = json.dumps(units)
    miles, kilometres = (socialx.predict(run, data).values for data in (later, tmp_path / "kmh.h5"))
    np.testing.assert_allclose(kilometres, 1.609344 * miles, rtol=1e-4)


def test_another_data_set_with_the_same_ids_is_another_network(run: Path, whole: Path, tmp_path: Path) -> None:
    later = part_of(whole, tmp_path / "later.h5", slice(4 * DAY, None))
    with edited(later, tmp_path / "city.h5") as file:
        file.attrs["dataset_name"] = "another_city"
    one, two = (socialx.predict(run, data).values for data in (later, tmp_path / "city.h5"))
    assert np.abs(one - two).max() > 1e-3


def test_scores_of_a_run_do_not_depend_on_the_runs_beside_it(
    run: Path, whole: Path, folder: Path, tmp_path: Path
) -> None:
    second = small_run(part_of(whole, tmp_path / "two.h5", slice(0, 2 * DAY)), folder / "second", "--any-network")
    later = part_of(whole, tmp_path / "later.h5", slice(4 * DAY, None))

    def error(*runs: Path) -> float:
        return socialx.evaluate(runs, later, part="all")[str(second)].overall().mae

    assert error(second) == error(run, second) == error(second, run)


@pytest.mark.parametrize("minutes", [0, 25, 70, 500])
def test_a_server_forecasts_as_predict_does_just_after_midnight(run: Path, whole: Path, minutes: int) -> None:
    from socialx.serving.latest import Latest
    from socialx.settings_layers import Layers
    from socialx.tasks.trained import load_trained

    path = part_of(whole, run.parent / f"until_{minutes}.h5", slice(0, 5 * DAY + minutes // 5 + 1))
    problem, _ = load_trained(run, Layers.of(None, {"data": path}), split=False)
    issue = Latest(problem, "run", path).read()
    values = problem.precision.infer(problem.model.eval(), issue.batch)
    np.testing.assert_allclose(values, socialx.predict(run, path).values, rtol=1e-6)


def test_intervals_of_another_step_are_refused_and_nothing_is_replaced(run: Path, tmp_path: Path) -> None:
    (tmp_path / "at.csv").write_text("id,lat,lon\nS1,34.1,-118.3\nS2,34.2,-118.3\nS3,34.2,-118.2\n")
    given = {"meta": tmp_path / "at.csv", "units": "mph", "timezone": "America/Los_Angeles"}
    for name, rows in (("long", 700), ("ten", 140)):  # 140 rows are less than a day
        times = pd.date_range("2024-01-30", periods=rows, freq="10min", name="time")
        speeds = np.random.default_rng(0).uniform(60, 70, (rows, 3))
        pd.DataFrame(speeds, times, ["S1", "S2", "S3"]).to_csv(tmp_path / "a.csv")
        socialx.convert("auto", tmp_path / "a.csv", tmp_path / f"{name}.h5", **given)
    assert np.isfinite(socialx.predict(run, tmp_path / "long.h5", interval=0.9).upper).all()  # of its own last days
    before = (run / "intervals.safetensors").read_bytes()
    says = "its prediction intervals are of a step of 5 min, and the file has one of 10"
    assert says in refused("predict", run, "--data", tmp_path / "ten.h5", "--interval", "0.9")
    assert says in refused("evaluate", run, "--data", tmp_path / "ten.h5", "--intervals")
    assert "a step of 10 min, and the run 5" in refused("calibrate", run, "--data", tmp_path / "ten.h5")
    assert (run / "intervals.safetensors").read_bytes() == before
