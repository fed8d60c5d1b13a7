"""predict on an unseen network: what is usual there comes from the days before the day of issue alone."""

from pathlib import Path

import h5py
import numpy as np
import pytest

import socialx
from tests.commands import edited, small_file, small_run

DAY = 288


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("days")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    (folder / "own").mkdir()
    return small_run(small_file(folder / "own", 150, 4), folder / "run", "--no-sensor-embedding")


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


def test_the_sensors_of_the_run_know_its_days_beside_those_of_the_file(folder: Path, tmp_path: Path) -> None:
    """A file of the last hours is forecast as the whole file is."""
    (folder / "longer").mkdir()
    own = small_file(folder / "longer", 3 * DAY + 100, 4)
    known, short = small_run(own, tmp_path / "run"), tmp_path / "short.h5"
    with edited(own, short) as file:
        for name in ("data/features", "metadata/timestamps"):
            rows = file[name][3 * DAY + 20 :]
            del file[name]
            file[name] = rows
    whole, last = (socialx.predict(known, data) for data in (own, short))
    np.testing.assert_array_equal(last.values, whole.values)
    (known / "climatology.safetensors").unlink()
    assert np.abs(socialx.predict(known, short).values - whole.values).max() > 0.01
