"""Whether a run is still as good as its calibration promised: sums, limits, and what the command says."""

import json
import re
import shutil
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import socialx as api
from socialx.core.batch import Target
from socialx.scoring.difference import LEAST_DAYS, confidence_interval
from socialx.scoring.drift import DailyCoverage, Drift
from socialx.scoring.tables import drift_lines
from socialx.training.run_folder import open_run
from tests.commands import edited, refused, small_file, small_run, socialx, works
from tests.networks import CPU, example
from tests.scoring.test_intervals import made

STEPS, SENSORS = 12, 4


def counted(days: int, wrong: dict[int, list[int]], seed: int = 0) -> Drift:
    """Errors as those of the calibration, but twenty times as large of some sensors on some days: day -> sensors."""
    rng = np.random.default_rng(seed)
    shape = (400, STEPS, SENSORS, 1)
    forecast, errors = np.full(shape, 50, np.float32), rng.normal(0, 2, shape).astype(np.float32)
    intervals = made(errors, np.full((SENSORS, 1), 60, np.float32), forecast, ("avg_speed",))
    sums = DailyCoverage(intervals, np.repeat(np.arange(15_000, 15_000 + days), 40), CPU)
    batch, _ = example()
    for day in range(days):
        error = rng.normal(0, 2, (40, *shape[1:])).astype(np.float32)
        error[:, :, wrong.get(day, [])] *= 20
        valid = torch.ones(error.shape, dtype=torch.bool)
        sums.update(torch.from_numpy(forecast[:40]), batch, Target(torch.from_numpy(50 + error), valid))
    padding = torch.zeros(3, *shape[1:])  # of the last batch
    sums.update(padding, batch, Target(padding, torch.zeros_like(padding, dtype=torch.bool)))
    return sums.compute({})


def test_as_promised_half_of_the_readings_are_in_their_intervals() -> None:
    found = counted(10, {})
    assert (found.since, found.sensors, found.stuck) == (None, {}, {})
    assert [day.date for day in found.days] == [str(date(2011, 1, 26) + timedelta(each)) for each in range(10)]
    assert {day.count for day in found.days} == {40 * STEPS * SENSORS}
    assert found.covered == pytest.approx(0.5, abs=0.03)
    assert (found.low or 1) < found.covered < (found.high or 0)
    assert found.days[0].mae == pytest.approx(2 * np.sqrt(2 / np.pi), abs=0.1)


@pytest.mark.parametrize(
    ("wrong", "since"),
    [
        ({9: [1]}, {"s1": "2011-02-04"}),
        ({7: [1], 8: [1], 9: [1, 2]}, {"s1": "2011-02-02", "s2": "2011-02-04"}),
        ({8: [1]}, {}),  # it is well again
        ({7: [0], 9: [0]}, {"s0": "2011-02-04"}),
    ],
)
def test_a_sensor_is_worse_from_the_first_of_its_bad_days(wrong: dict[int, list[int]], since: dict[str, str]) -> None:
    found = counted(10, wrong)
    assert found.sensors == since
    assert {day: [f"s{each}" for each in bad] for day, bad in wrong.items()} == {
        place: list(day.worse) for place, day in enumerate(found.days) if day.worse
    }
    assert (found.since, found.stuck) == (None, {})


def test_the_network_is_worse_from_the_first_week_that_is() -> None:
    found = counted(14, {day: list(range(SENSORS)) for day in range(7, 14)})
    assert (found.high or 1) < 0.1
    assert "2011-02-02" <= (found.since or "") <= "2011-02-06"


def test_few_days_say_nothing_of_the_network_and_much_of_a_sensor() -> None:
    found = counted(LEAST_DAYS - 1, {LEAST_DAYS - 2: list(range(SENSORS))})
    assert (found.low, found.high, found.since) == (None, None, None)
    assert set(found.sensors) == {f"s{each}" for each in range(SENSORS)}
    lines = drift_lines("run", found)
    assert f"worse on {SENSORS} sensors" in lines[0]
    assert f"{LEAST_DAYS} days say" in lines[-1]


def test_sums_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(5)
    shape = (60, STEPS, SENSORS, 1)
    forecast, errors = rng.uniform(10, 70, shape).astype(np.float32), rng.normal(0, 4, shape).astype(np.float32)
    intervals = made(errors, np.full((SENSORS, 1), 60, np.float32), forecast, ("avg_speed",))
    days, truth, valid = np.sort(rng.integers(0, 3, 60)), forecast + 2 * errors, rng.random(shape) < 0.8
    sums = DailyCoverage(intervals, days, CPU)
    for part in (slice(0, 17), slice(17, 60)):
        whole = Target(torch.from_numpy(truth[part]), torch.from_numpy(valid[part]))
        sums.update(torch.from_numpy(forecast[part]), example().batch, whole)
    found = sums.compute({})
    low, high = (end.numpy() for end in intervals.apply(torch.from_numpy(forecast), 0.5))
    inside = (low <= truth) & (truth <= high)
    for day, row in enumerate(found.days):
        here = valid[days == day]
        assert (row.count, row.covered) == (here.sum(), pytest.approx(inside[days == day][here].mean()))
        assert row.mae == pytest.approx(np.abs(forecast - truth)[days == day][here].mean(), rel=1e-5)


def test_the_interval_over_days_holds_the_ratio_and_shrinks_with_equal_days() -> None:
    total, count = np.random.default_rng(0).uniform(1, 9, 30), np.full(30, 10.0)
    low, high = confidence_interval(total, count)
    assert (low or 1) < total.sum() / count.sum() < (high or 0)
    assert confidence_interval(np.full(30, 5.0), count) == (0.5, 0.5)
    first, four = np.eye(11)[0], np.r_[np.ones(4), np.zeros(7)]  # one reading on each of four days, one of them wrong
    assert confidence_interval(first, four) == (0, 1)  # samples with a single reading count
    assert confidence_interval(total[:4], count[:4]) == confidence_interval(np.zeros(9), np.zeros(9)) == (None, None)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = small_file(tmp_path_factory.mktemp("data"), 1560)
    return small_run(data, "run", "--learning-rate", "0.01", "--batch-size", "16")


def test_it_prints_days_and_a_verdict(run: Path) -> None:
    result = works("evaluate", run, "--drift", "--split", "validation")
    assert "expected in their 50%" in result.stdout
    assert f"{LEAST_DAYS} days say" in result.stdout
    found = json.loads(socialx("evaluate", run, "--drift", "--split", "validation", "--json").stdout)["drift"][str(run)]
    assert found["covered"] == pytest.approx(0.5, abs=0.05)  # these are the errors that the intervals are made of
    assert (found["sensors"], found["stuck"]) == ({}, {})
    assert all(set(day) == {"date", "mae", "covered", "count", "worse"} for day in found["days"])


@pytest.mark.parametrize(("change", "says"), [("stuck", r"1 sensor .*\({} for"), ("jumps", r"\({} since 2012-05-0")])
def test_a_broken_detector_is_named(change: str, says: str, run: Path, tmp_path: Path) -> None:
    """The first sensor repeats a reading in the last rows, or jumps."""
    jumps = np.random.default_rng(0).uniform(5, 70, 150)
    with edited(Path(api.load_run(run).settings.data.path or ""), tmp_path / "broken.h5") as file:
        file["data/features"][-150:, 0, 0] = 31.5 if change == "stuck" else jumps
    first = (open_run(run).sensors or ())[0]
    assert re.search(says.format(first), works("evaluate", run, "--data", tmp_path / "broken.h5", "--drift").stdout)


def test_it_is_of_runs_with_intervals(run: Path, tmp_path: Path) -> None:
    data = api.load_run(run).settings.data.path
    assert refused("evaluate", "--baselines", "--data", str(data), "--drift", code=2).code == "score.drift"
    other = Path(shutil.copytree(run, tmp_path / "run"))
    (other / "intervals.safetensors").unlink()
    assert (said := refused("evaluate", other, "--drift")).code == "run.no-intervals"
    assert "socialx calibrate" in said
