"""Batches are the windows: every one once, in a seeded order, the last batch padded and masked."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from socialx.core.batch import TrainingBatch
from socialx.data.series import Series, WindowLayout
from socialx.data.source import Arrays
from socialx.dataset.loaders import DeviceLoader, WindowOrder
from tests.networks import CPU, MONDAY, loader, series, speeds


def test_a_batch_is_cut_out_of_the_series() -> None:
    values, valid, seconds = speeds(100, 3)
    made, starts = series(values, valid, seconds, 5, 4), torch.tensor([0, 40, 7])
    b, target = made.window(starts), made.target(starts)
    for row, start in enumerate([0, 40, 7]):
        np.testing.assert_array_equal(b.inputs[row, ..., 0], values[start : start + 5])
        np.testing.assert_array_equal(b.valid[row, ..., 0], valid[start : start + 5])
        np.testing.assert_array_equal(target.values[row, ..., 0], values[start + 5 : start + 9])
        np.testing.assert_array_equal(target.valid[row, ..., 0], valid[start + 5 : start + 9])
        minutes = (seconds[start : start + 9] - MONDAY) // 60
        np.testing.assert_array_equal(b.time_of_day[row], minutes % 1440 // 5)
        np.testing.assert_array_equal(b.day_of_week[row], minutes // 1440)
        np.testing.assert_array_equal(b.last[row, :, 0], values[start + 4])
    assert b.inputs.dtype == target.values.dtype == torch.float32


@given(
    inputs=st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
    targets=st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
)
def test_inputs_and_targets_are_the_named_features_in_their_order(inputs: list[int], targets: list[int]) -> None:
    parts = [speeds(60, 4, seed=seed) for seed in range(3)]
    values, valid = (np.stack([part[i] for part in parts], axis=-1) for i in range(2))
    made = Series(Arrays(values, valid, parts[0][2]), WindowLayout(6, 2, tuple(inputs), tuple(targets)), CPU)
    starts = torch.tensor([3])
    b, target = made.window(starts), made.target(starts)
    np.testing.assert_array_equal(b.inputs[0], values[3:9][..., inputs])
    np.testing.assert_array_equal(b.valid[0], valid[3:9][..., inputs])
    np.testing.assert_array_equal(target.values[0], values[9:11][..., targets])
    np.testing.assert_array_equal(target.valid[0], valid[9:11][..., targets])
    seen = valid[8][:, targets]
    np.testing.assert_array_equal(b.last[0], values[8][:, targets])
    np.testing.assert_array_equal(b.last_observed[0].numpy()[seen], values[8][:, targets][seen])


def test_targets_are_bit_equal_to_the_file_and_missing_ones_are_masked() -> None:
    values = np.array([[61.3], [np.nan], [0.0], [59.888888]], np.float32)
    valid = np.isfinite(values) & (values != 0)
    target = series(values, valid, MONDAY + 300 * np.arange(4), 1, 3).target(torch.tensor([0]))
    assert (target.valid.flatten().tolist(), target.values[0, 2, 0, 0].item()) == ([False, False, True], values[3, 0])
    assert torch.isfinite(target.values).all()


@given(windows=st.integers(1, 40), batch_size=st.integers(1, 50), shuffle=st.booleans(), epoch=st.integers(0, 3))
def test_every_window_once_per_epoch(windows: int, batch_size: int, shuffle: bool, epoch: int) -> None:
    rows = 100
    values = np.arange(1, rows + 1, dtype=np.float32)[:, None]  # the first reading names the window
    made = series(values, np.ones_like(values, bool), MONDAY + 300 * np.arange(rows), 3, 2)
    starts = np.random.default_rng(windows).permutation(60)[:windows].astype(np.int64)
    loaded = DeviceLoader(made, WindowOrder(starts, batch_size, shuffle, seed=4))
    examples = list(loaded.epoch(epoch))
    assert len(examples) == len(loaded)
    sizes = {len(tensor) for each in examples for tensor in (*each.batch, *each.target)}
    assert sizes == {min(batch_size, windows)}  # one static shape
    first = [int(reading) - 1 for b, _ in examples for reading in b.inputs[:, 0, 0, 0]]
    real = [bool(known.any()) for _, target in examples for known in target.valid]
    seen = [start for start, known in zip(first, real, strict=True) if known]
    assert sorted(seen) == sorted(starts.tolist())
    if not shuffle:
        assert seen == starts.tolist()


def test_the_order_is_seeded_and_new_in_every_epoch() -> None:
    def order(seed: int, epoch: int) -> torch.Tensor:
        return torch.cat([b.inputs for b, _ in loader(shuffle=True, seed=seed).epoch(epoch)])

    assert torch.equal(order(1, 0), order(1, 0))
    assert not torch.equal(order(1, 0), order(1, 1))
    assert not torch.equal(order(1, 0), order(2, 0))


def test_an_epoch_can_begin_in_its_middle() -> None:
    whole = list(loader(shuffle=True).epoch(3))
    rest = list(loader(shuffle=True).epoch(3, first_batch=5))
    assert len(rest) == len(whole) - 5
    assert all(torch.equal(a.batch.inputs, b.batch.inputs) for a, b in zip(rest, whole[5:], strict=True))


def test_windows_are_gathered_before_they_go_to_another_device() -> None:
    selection = next(loader().selections(0))
    assert selection.to(CPU) is selection
    moved = selection.to(torch.device("meta"))
    assert isinstance(moved, TrainingBatch)
    assert {tensor.device.type for part in moved for tensor in part} == {"meta"}
