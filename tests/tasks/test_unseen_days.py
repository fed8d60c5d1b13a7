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
    """Each day of issues has its own climatology; all issues of the first day have that of the first of them."""
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
    past = PastDays(source)
    first = past.before(300 * 40)
    mean = np.where(valid[:41], values[:41], 0).sum(0) / valid[:41].sum(0)
    np.testing.assert_allclose(first, np.broadcast_to(mean, first.shape), rtol=1e-6)
    plain = climatology(source, slice(0, DAY))
    second = past.before(300 * (DAY + 40))
    share = 0.5 ** (1 / 56)  # of the day before; it moves the weight of the pseudo readings alone
    np.testing.assert_allclose(second, plain, atol=0.5 * (1 - share) * np.ptp(values))
    assert np.abs(past.before(300 * (2 * DAY + 40)) - second).max() > 0.1
