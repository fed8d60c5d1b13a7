"""All modes serve the same batches, bit by bit, and every window once over all processes."""

import gc
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors

from socialx.cli.error_flags import write
from socialx.core.batch import TrainingBatch
from socialx.core.errors import Argument, SocialxError, spelling
from socialx.data.series import Series, WindowLayout
from socialx.data.source import PAGE_ROWS, Arrays, pages
from socialx.dataset import loaders as loading
from socialx.dataset.loaders import DeviceLoader, Loader, RankShare, ShardLoader, WindowOrder, WorkerLoader
from socialx.files.store import store
from socialx.settings.schema import LoaderSettings
from tests.commands import refuses, small_file, works
from tests.data.test_dataset_memory import opened
from tests.networks import CPU, speeds

LOOKBACK, HORIZON = 5, 3


def arrays(rows: int, sensors: int = 3, missing: float = 0.7) -> Arrays:
    values, valid, seconds = speeds(rows, sensors, missing)
    return Arrays(values[..., None], valid[..., None], seconds)


def made(mode: str, source: Arrays, starts: np.ndarray, workers: int = 0, **order: object) -> Loader:
    length, served = LOOKBACK + HORIZON, WindowOrder(starts, **order)

    def part(rows: slice) -> Series:
        return Series(
            source, WindowLayout(LOOKBACK, HORIZON), CPU, rows=slice(rows.start, min(rows.stop, len(source.seconds)))
        )

    if mode == "on_device":
        return DeviceLoader(Series(source, WindowLayout(LOOKBACK, HORIZON), CPU), served)
    if mode == "sharded":
        return ShardLoader(part, length, CPU, served)
    return WorkerLoader(part, length, CPU, LoaderSettings(num_workers=workers, shard_gb=2**-15), served)


def same(one: TrainingBatch, other: TrainingBatch) -> bool:
    pairs = zip((*one.batch, *one.target), (*other.batch, *other.target), strict=True)
    return all(torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0)) and a.dtype == b.dtype for a, b in pairs)


@settings(deadline=None)
@given(
    windows=st.integers(1, 90),
    batch_size=st.integers(1, 40),
    shard=st.integers(0, 100),
    ranks=st.integers(1, 4),
    shuffle=st.booleans(),
    epoch=st.integers(0, 2),
)
def test_every_window_once_over_all_processes(
    windows: int, batch_size: int, shard: int, ranks: int, shuffle: bool, epoch: int
) -> None:
    orders = [WindowOrder(np.arange(windows), batch_size, shuffle, 3, shard, RankShare(n, ranks)) for n in range(ranks)]
    served, lengths = [], set()
    for order in orders:
        places, real = order.indices(epoch)
        assert places.shape == real.shape == (len(order), batch_size)
        assert ((places >= 0) & (places < windows)).all()
        served.append(places[real])
        lengths.add(len(order))
    assert len(lengths) == 1  # or some process would wait for the others for ever
    assert sorted(np.concatenate(served)) == list(range(windows))


@settings(deadline=None)
@given(windows=st.integers(2, 80), batch_size=st.integers(1, 9), ranks=st.integers(2, 4), shard=st.integers(0, 30))
def test_processes_share_the_batch_of_one(windows: int, batch_size: int, ranks: int, shard: int) -> None:
    whole = WindowOrder(np.arange(windows), batch_size * ranks, True, 1, shard)
    parts = [
        WindowOrder(np.arange(windows), batch_size, True, 1, shard, RankShare(rank, ranks)).indices(2)[0]
        for rank in range(ranks)
    ]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole.indices(2)[0])


def test_a_chunk_is_served_before_the_next_one() -> None:
    places, _ = WindowOrder(np.arange(100), 10, True, 5, shard=30).indices(1)
    shards = (places.ravel() // 30).tolist()
    assert len([1 for a, b in itertools.pairwise(shards) if a != b]) == 3
    assert shards != sorted(shards)


@settings(deadline=None, max_examples=40)
@given(
    first=st.integers(0, 900),
    windows=st.integers(1, 60),
    stride=st.sampled_from([1, 1, 7, 41]),
    batch_size=st.integers(1, 30),
    shard=st.integers(0, 40),
    shuffle=st.booleans(),
    ranks=st.integers(1, 3),
)
def test_all_modes_serve_the_same_batches(
    first: int, windows: int, stride: int, batch_size: int, shard: int, shuffle: bool, ranks: int
) -> None:
    source = LONG
    starts = first + stride * np.arange(windows)
    for rank in range(ranks):
        order = {
            "batch_size": batch_size, "shuffle": shuffle, "seed": 2, "shard": shard, "share": RankShare(rank, ranks)
        }  # fmt: skip
        on_device, *others = (made(mode, source, starts, **order) for mode in ("on_device", "sharded", "workers"))
        expected = list(on_device.epoch(1))
        for other in others:
            found = list(other.epoch(1))
            assert len(found) == len(expected) == len(other)
            assert all(same(a, b) for a, b in zip(expected, found, strict=True))
        rest = list(others[0].epoch(1, first_batch=len(expected) // 2))
        assert all(same(a, b) for a, b in zip(expected[len(expected) // 2 :], rest, strict=True))


LONG = arrays(3600)


def test_readings_before_a_chunk_still_count(tmp_path: Path) -> None:
    """A sensor whose latest reading is older than the shard, and one that never had any."""
    values, valid, seconds = speeds(4 * PAGE_ROWS, 3, missing=0.0)
    values[10:, 0], valid[10:, 0] = 0, False
    values[:, 1], valid[:, 1] = 0, False
    source = Arrays(values[..., None], valid[..., None], seconds)
    starts = np.arange(2 * PAGE_ROWS - 30, 2 * PAGE_ROWS + 40)
    for mode in ("sharded", "workers"):
        for example in made(mode, source, starts, batch_size=16, shard=20).epoch(0):
            assert (example.batch.last_observed[:, 0, 0] == values[9, 0]).all()
            assert example.batch.last_observed[:, 1, 0].isnan().all()


def test_two_chunks_at_most_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: set[int] = set()
    most = 0

    class Counted(Series):
        def __init__(self, *args: object, **kwargs: object) -> None:
            nonlocal most
            alive.add(id(self))
            most = max(most, len(alive))
            super().__init__(*args, **kwargs)

        def __del__(self) -> None:
            alive.discard(id(self))

    monkeypatch.setattr("tests.data.test_modes.Series", Counted)
    loader = made("sharded", LONG, np.arange(600), batch_size=7, shard=50, shuffle=True)
    assert sum(len(example.batch.last) for example in loader.epoch(0)) == 7 * len(loader)
    assert most <= 3  # two in use where a batch holds windows of both, and the one that is read
    assert len(alive) <= 1  # the first one of the next epoch


def test_workers_serve_the_same_in_processes_of_their_own() -> None:
    order = {"batch_size": 16, "shuffle": True, "seed": 1}
    on_device = made("on_device", LONG, np.arange(200), **order)
    loader = made("workers", LONG, np.arange(200), workers=2, **order)
    before = torch.get_rng_state()
    for epoch in range(2):
        pairs = zip(on_device.epoch(epoch, 3 * epoch), loader.epoch(epoch, 3 * epoch), strict=True)
        assert all(same(a, b) for a, b in pairs)
    assert torch.equal(before, torch.get_rng_state())  # or dropout would depend on the loader


class Broken(Arrays):
    """A file that a worker cannot read, or in which it dies."""

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        if rows.start >= 2 * PAGE_ROWS:
            raise SocialxError("test.said", "data.h5", "truncated or damaged", Argument("missing", 0))
        if rows.start >= PAGE_ROWS:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(rows)

    def latest_before(self, page: int) -> np.ndarray:
        return np.zeros(self.shape, np.float32)


@pytest.mark.parametrize(
    ("first", "code", "found"),
    [(2 * PAGE_ROWS + 5, "test.said", "data.h5"), (PAGE_ROWS + 5, "loader.fails", "DataLoader worker")],
)
def test_what_fails_in_a_worker_is_one_line(first: int, code: str, found: str) -> None:
    source = Broken(LONG.values, LONG.valid, LONG.seconds)
    loader = made("workers", source, np.arange(first, first + 40), 1, batch_size=8)
    with refuses(code) as error:
        list(loader.epoch(0))
    assert found in str(error.value)
    assert str(error.value).count("\n") <= 1


@pytest.mark.parametrize("mode", ["sharded", "workers"])
def test_a_message_from_a_thread_or_a_worker_is_written_for_the_door(mode: str) -> None:
    source = Broken(LONG.values, LONG.valid, LONG.seconds)
    with spelling(partial(write, "train")), refuses("test.said") as caught:
        list(made(mode, source, np.arange(2500, 2600), batch_size=8, shard=10).epoch(0))
    assert "--missing 0" in str(caught.value)


def test_a_loader_that_is_dropped_leaves_no_thread() -> None:
    others = set(threading.enumerate())  # loaders of other tests may still be there, in the trace of an error
    loader = made("sharded", LONG, np.arange(600), batch_size=7, shard=50)
    epoch: Iterator[TrainingBatch] = loader.epoch(0)
    next(epoch)
    (thread,) = set(threading.enumerate()) - others
    epoch.close()
    del loader, epoch
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("shard", [0, 50, 70])
def test_the_next_epoch_has_its_first_chunk_already(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    order = {"batch_size": 7, "shuffle": True, "shard": shard}
    on_device, loader = (made(mode, LONG, np.arange(140), **order) for mode in ("on_device", "sharded"))
    assert isinstance(loader, ShardLoader)
    read: list[int] = []
    plain = loader._read

    def counted(number: int) -> object:
        read.append(number)
        return plain(number)

    monkeypatch.setattr(loader, "_read", counted)
    for epoch in (0, 1, 2, 2, 5):  # also one that is not the next one
        pairs = zip(on_device.epoch(epoch), loader.epoch(epoch), strict=True)
        assert all(same(a, b) for a, b in pairs)
    if shard == 0:
        assert len(read) == 3  # epochs 0, 2 again and 5; 1 and 2 had it already
    rest = zip(on_device.epoch(6, 5), loader.epoch(6, 5), strict=True)
    assert all(same(a, b) for a, b in rest)


@given(first=st.integers(0, 3000), count=st.integers(0, 5000))
def test_pages_cut_all_rows(first: int, count: int) -> None:
    found = [row for each in pages(first, first + count) for row in (each.start, each.stop)]
    assert (found, sum(found[1::2]) - sum(found[::2])) == (sorted(found), count)
    assert all(row % PAGE_ROWS == 0 for row in found[1:-1])


def test_a_chunk_has_at_least_the_windows_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sensors there are: shards of a few windows would read the same rows again and again."""
    data = opened(small_file(tmp_path, 2600))
    for mode in ("sharded", "workers"):
        tiny = replace(data, loading=LoaderSettings(mode=mode, shard_gb=2**-30))
        assert tiny.loaders.shard_windows(50_000) >= 1000
        assert tiny.loaders.shard_windows(900) == 0


@pytest.mark.parametrize(("free", "mode"), [(None, "on_device"), (10**9, "on_device"), (9_000, "sharded")])
def test_auto_takes_the_series_where_it_fits_into_half_of_the_memory(
    free: int | None, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "free_bytes", lambda device: free)
    assert opened(small_file(tmp_path)).loading.mode == mode  # 8,000 bytes


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1 << 28])
def test_all_modes_train_to_the_same_weights(kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "KEPT_BYTES", kept)
    data = small_file(tmp_path, 2600)
    words = ("train", "--data", data, "--max-epochs", "2", "--shard-gb", "0.00003", "--model", "linear")
    words += ("--batch-size", "64")
    weights, scores = [], []
    for mode in ("on_device", "sharded", "workers"):
        run = tmp_path / mode
        works(*words, "--run-dir", run, "--mode", mode, "--num-workers", "1")
        weights.append(load_tensors((run / "best.safetensors").read_bytes()))
        rows = [line.split('"windows_per_s"')[0] for line in (run / "metrics.jsonl").read_text().splitlines()]
        scores.append(rows)
    for other in weights[1:]:
        assert all(torch.equal(tensor, other[name]) for name, tensor in weights[0].items())
    assert scores[0] == scores[1] == scores[2]


def of_few_rows(opened: store.Store) -> np.ndarray:
    assert len(opened.seconds) <= 100, "all rows are read at once"
    return opened._read(slice(None))


def test_nothing_holds_a_large_file_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening, moments, references, scores, explanation and forecast read a file page by page."""
    data, run = small_file(tmp_path, 2600), tmp_path / "run"
    expected: list[str] = []
    for kept in (1 << 28, 0):
        monkeypatch.setattr(store, "KEPT_BYTES", kept)
        if not kept:
            monkeypatch.setattr("socialx.tasks.predict.DOUBTED_CELLS", 400)  # of the last rows, which are looked at
            monkeypatch.setattr(store.Store, "values", property(of_few_rows))
        mode = ("--set", f"loader.mode={'on_device' if kept else 'sharded'}")
        trained = ("train", "--data", data, "--run-dir", run, "--model", "linear", "--max-epochs", "1", "--overwrite")
        found = []
        for words in (
            (*trained, "--shard-gb", "0.00003", *mode),
            ("evaluate", run, "--baselines", "--json", *mode),
            ("explain", run, "--json", *mode),
            ("predict", run, "--json"),
            ("predict", run, "--json", "--start", "2012-05-04 00:00", "--end", "2012-05-08 00:00"),
        ):
            found.append(works(*words).stdout)
        expected = expected or found[1:]  # of the whole file
        assert found[1:] == expected
