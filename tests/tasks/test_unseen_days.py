"""predict on an unseen network: what is usual there comes from the days before the day of issue alone."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import socialx
from socialx.data.climatology import PastDays, climatology
from socialx.data.source import Arrays
from tests.commands import edited, small_file, small_run

DAY = 288


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("days")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    (folder / "own").mkdir()
    tables = ["--no-sensor-identity", "--no-adaptive"]
    return small_run(small_file(folder / "own", 150, 4), folder / "run", *tables)


@pytest.fixture(scope="module")
def other(folder: Path) -> Path:
    (folder / "other").mkdir()
    return small_file(folder / "other", 3 * DAY + 100, 7)


def changed_from(other: Path, path: Path, row: int) -> Path:
    """The same file with other readings from a row on."""
    with edited(other, path) as file:
        values = file["data/features"][row:]
        file["data/features"][row:] = np.where(np.isfinite(values), values + 17, values)
    return path


def time_of(path: Path, row: int) -> str:
    with h5py.File(path) as file:
        return file["metadata/timestamps"].asstr()[row]


@pytest.mark.parametrize("row", [40, DAY - 1, DAY + 30, 3 * DAY + 5])
def test_no_reading_after_the_issue_enters_a_forecast(run: Path, other: Path, tmp_path: Path, row: int) -> None:
    issued = time_of(other, row)
    later = changed_from(other, tmp_path / "later.h5", row + 1)
    first, second = (socialx.predict(run, data, at=issued) for data in (other, later))
    np.testing.assert_array_equal(first.values, second.values)


def test_a_span_of_issues_has_the_forecasts_of_each(run: Path, other: Path) -> None:
    """Each day of issues has its own climatology."""
    rows = [DAY + 30, DAY + 280, 2 * DAY + 3, 2 * DAY + 253, 3 * DAY + 20]
    start, end = time_of(other, rows[0]), time_of(other, 3 * DAY + 99)
    span = socialx.predict(run, other, start=start, end=end, every="5min")
    for row in rows:
        alone = socialx.predict(run, other, at=time_of(other, row))
        np.testing.assert_allclose(span.values[row - rows[0]], alone.values[0], rtol=2e-5)


def test_the_sensors_of_the_run_keep_its_climatology(run: Path, folder: Path, tmp_path: Path) -> None:
    own = folder / "own" / "small.h5"
    later = changed_from(own, tmp_path / "later.h5", 140)
    first, second = (socialx.predict(run, data, at=time_of(own, 130)) for data in (own, later))
    np.testing.assert_array_equal(first.values, second.values)


def test_the_table_of_past_days_is_the_plain_one_of_their_rows() -> None:
    """Against the plain climatology, in which each row counts as often as its day's share says: one day has share 1."""
    rng = np.random.default_rng(0)
    values, valid = rng.uniform(20, 70, (3 * DAY, 4, 1)).astype(np.float32), rng.random((3 * DAY, 4, 1)) < 0.9
    source = Arrays(values, valid, 300 * np.arange(3 * DAY), 5)
    past = PastDays(source, np.array([54.5]))
    first = past.before(0)
    assert np.unique(first).tolist() == [54.5]
    plain = climatology(source, slice(0, DAY))
    second = past.before(1)
    share = 0.5 ** (1 / 56)  # of the day before; it moves the weight of the pseudo readings alone
    np.testing.assert_allclose(second, plain, atol=0.5 * (1 - share) * np.ptp(values))
    assert np.abs(past.before(2) - second).max() > 0.1


@pytest.mark.parametrize("most", [0, 1, 2])
def test_of_few_days_each_counts_the_same(most: int) -> None:
    rng = np.random.default_rng(1)
    values = rng.uniform(20, 70, (4 * DAY, 3, 1)).astype(np.float32)
    source = Arrays(values, np.ones(values.shape, bool), 300 * np.arange(4 * DAY), 5)
    past = PastDays(source, np.array([54.5]), most)
    for day in range(1, 5):
        rows = slice(max(0, day - most) * DAY, day * DAY)
        wanted = climatology(source, rows) if most else np.full((3, DAY, 3, 1), 54.5, np.float32)
        np.testing.assert_allclose(past.before(day), wanted, rtol=1e-6)


def test_a_kind_of_day_without_readings_has_those_of_the_others() -> None:
    """Days 0 to 3 since 1970 are a Thursday, a Friday, a Saturday and a Sunday; sensor 1 reports on the first alone."""
    values = np.repeat(np.array([50, 52, 30, 10], np.float32), DAY)[:, None, None].repeat(2, 1)
    valid = np.ones(values.shape, bool)
    valid[DAY:, 1] = False
    source = Arrays(values, valid, 300 * np.arange(4 * DAY), 5)
    weekdays = climatology(source, slice(0, 2 * DAY))
    assert np.array_equal(weekdays[0], weekdays[1])
    assert np.array_equal(weekdays[0], weekdays[2])
    every = climatology(source, slice(0, 4 * DAY))
    mean, pseudo = np.mean([50, 52, 30, 10]), 3
    np.testing.assert_allclose(every[2, :, 0], (5 * 10 + pseudo * mean) / (5 + pseudo), rtol=1e-6)
    np.testing.assert_allclose(every[:, :, 1], 50, rtol=1e-6)
