"""What a file needs in memory is small, said before it is read, and refused where it is not free."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from socialx.data.series import OLD, Series, WindowLayout
from socialx.data.source import PAGE_ROWS, Arrays
from socialx.dataset import Dataset, read_dataset
from socialx.dataset import loaders as loading
from socialx.files.store.store import Store
from socialx.settings.schema import DataSettings, LoaderSettings
from tests.commands import SMALL, refused, small_file, socialx, works
from tests.networks import carry_forward

CPU = torch.device("cpu")


def opened(path: Path, days: int | None = None) -> Dataset:
    return read_dataset(DataSettings(path=path, days=days), LoaderSettings(), CPU)


@pytest.mark.slow
def test_a_reading_needs_few_bytes(tmp_path: Path) -> None:
    rows, sensors = 3000, 1000
    np.save(tmp_path / "x.npy", np.random.default_rng(0).uniform(20, 70, (rows, sensors)).astype(np.float32))
    convert = ["convert", "npy", tmp_path / "x.npy", "--without-positions", "--units", "mph"]
    works(*convert, "--first-time", "2012-01-01 00:00", "--freq", "5min", "--output-h5", tmp_path / "x.h5")
    opened(tmp_path / "x.h5")  # what is imported or kept for ever counts only once
    tracemalloc.start()
    try:
        found = opened(tmp_path / "x.h5")
        _ = found.loaders.observations
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / (rows * sensors) < 10.5  # 5 in the store, as the file is small, and 5 in the series
    assert peak / (rows * sensors) < 20


def test_data_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_file(tmp_path)
    monkeypatch.setattr(loading, "WORTH_A_LINE", 0)
    monkeypatch.setattr(loading, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(Store, "read", None)  # it would be called to read
    error = refused("train", "--data", path, "--run-dir", tmp_path / "run", "--mode", "on_device", *SMALL)
    assert error.code == "data.no-memory"
    for said in ("400 rows x 4 sensors", "0.0 GiB on cpu, 0.0 GiB", "--mode sharded", "--days"):
        assert said in error
    assert not (tmp_path / "run").exists()


def test_large_data_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_file(tmp_path)
    monkeypatch.setattr(loading, "WORTH_A_LINE", 0)
    assert "data.loader-mode" in (result := socialx("evaluate", "--baselines", "--data", path)).codes
    for said in ("400 rows x 4 sensors", "0.0 GiB on cpu", "on_device"):
        assert said in result.stderr
    assert result.exit_code == 0


def test_fewer_days_are_all_that_is_read(tmp_path: Path) -> None:
    path = small_file(tmp_path, 700)
    whole, part = opened(path), opened(path, days=2)
    rows = len(part.store.seconds)
    assert rows < len(whole.store.seconds)
    np.testing.assert_array_equal(part.store.values, whole.store.values[:rows])
    assert part.store.values.base is None  # no view that keeps the rest alive
    assert part.checksum != whole.checksum


@pytest.mark.parametrize("rows", [25, OLD - 1, OLD, OLD + 1, 2 * OLD, 4 * OLD + 7, 2 * PAGE_ROWS + 1])
@pytest.mark.parametrize("share", [0.0, 0.002, 0.02, 0.5, 1.0])
def test_the_latest_reading_is_found_however_old_it_is(rows: int, share: float) -> None:
    """Windows of a series against readings that are carried forward row by row."""
    random = np.random.default_rng(rows)
    values = random.uniform(20, 70, (rows, 5, 2)).astype(np.float32)
    valid = random.uniform(size=values.shape) < share
    source = Arrays(values, valid, 1_330_560_000 + 300 * np.arange(rows))
    series = Series(source, WindowLayout(12, 3, targets=(1, 0)), CPU)
    starts = torch.arange(rows - 12 + 1)
    found = series.window(starts)
    np.testing.assert_array_equal(found.last_observed, carry_forward(values, valid)[11:][..., [1, 0]])
    now = starts.numpy() + 11
    np.testing.assert_array_equal(found.last, np.where(valid, values, 0)[now][..., [1, 0]])
    np.testing.assert_array_equal(found.valid[:, -1, :, 0], valid[now][..., 0])
