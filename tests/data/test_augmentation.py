"""Readings as other detectors might report them: the same draws however they are read, and no reading from nowhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from socialx.data.augmentation import BLOCK_ROWS, NOISE, AugmentedSource, average_rows, smooth_rows
from socialx.data.source import PAGE_ROWS, Arrays, latest_after
from tests.networks import MONDAY, speeds

ROWS = 2 * PAGE_ROWS + 300


def source(missing: float = 0.1) -> Arrays:
    values, valid, _ = speeds(ROWS, 6, missing)
    return Arrays(values[..., None], valid[..., None], MONDAY + 300 * np.arange(ROWS), 5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, ROWS - 1), st.integers(1, ROWS))
def test_a_piece_is_that_of_the_whole(first: int, length: int) -> None:
    rows = slice(first, min(first + length, ROWS))
    whole, piece = (AugmentedSource(source(), 3, [True]).read(each) for each in (slice(0, ROWS), rows))
    assert all(np.array_equal(one[rows], two) for one, two in zip(whole, piece, strict=True))


def test_seeds_draw_other_readings() -> None:
    one, two, again = (AugmentedSource(source(), seed, [True]).read(slice(0, ROWS)) for seed in (0, 1, 0))
    assert np.array_equal(one[0], again[0])
    assert not np.array_equal(one[0], two[0])
    assert not np.array_equal(one[1], two[1])


def test_an_outage_stays_one_and_readings_change_little() -> None:
    plain = source()
    plain.valid[300:900, 2] = False
    values, valid = AugmentedSource(plain, 0, [True]).read(slice(0, ROWS))
    assert not valid[302:898, 2].any()
    assert 0.02 < 1 - valid.sum() / plain.valid.sum() < 0.3
    assert np.isfinite(values).all()
    both = valid & plain.valid
    assert np.abs(values - plain.values)[both].max() < 6 * NOISE * plain.values.max() + 10
    assert 0.05 < (values == plain.values)[both].reshape(-1).mean() < 0.8


def test_some_blocks_repeat_the_mean_of_two_or_three_rows() -> None:
    values, _ = AugmentedSource(source(0.0), 0, [True]).read(slice(0, ROWS))
    shares = [(np.diff(values[first : first + BLOCK_ROWS], axis=0) == 0).mean() for first in range(0, ROWS, BLOCK_ROWS)]
    assert {round(6 * share) for share in shares} >= {0, 3, 4}  # each reading is there once, twice, three times


def test_a_coarse_row_is_the_mean_of_the_valid_readings() -> None:
    values = np.array([[1.0], [0.0], [5.0], [6.0], [0.0]], np.float32)[..., None]
    values[1] = 7.0  # where it is missing a number may stand for it
    means, known = average_rows(values, np.array([1, 0, 1, 1, 0], bool)[:, None, None], 2)
    np.testing.assert_allclose(means[..., 0, 0], [1.0, 5.5, 0.0])
    assert known[..., 0, 0].tolist() == [True, True, False]


def test_blocks_are_as_in_the_file_smoother_or_noisier() -> None:
    plain = source(0.0)
    values, _ = AugmentedSource(plain, 1, [True]).read(slice(0, 2 * PAGE_ROWS))
    rough = [
        np.abs(np.diff(part[first + 1 : first + BLOCK_ROWS - 1, :, 0], axis=0)).mean()
        for first in range(0, 2 * PAGE_ROWS, BLOCK_ROWS)
        for part in (values,)
    ]
    of_file = np.abs(np.diff(plain.values[..., 0], axis=0)).mean()
    assert min(rough) < 0.9 * of_file
    assert max(rough) > 1.1 * of_file


@pytest.mark.parametrize("page", [0, 1, 2])
def test_the_latest_reading_before_a_page_is_that_of_its_own_rows(page: int) -> None:
    made, nothing = AugmentedSource(source(), 0, [True]), np.full((6, 1), np.nan, np.float32)
    wanted = latest_after(*made.read(slice(0, page * PAGE_ROWS)), nothing) if page else nothing
    np.testing.assert_array_equal(made.latest_before(page), wanted)


def test_the_smoothed_reading_is_the_mean_of_the_valid_ones_of_three_rows() -> None:
    values = np.array([[1.0], [0.0], [5.0], [6.0]], np.float32)[..., None]
    valid = np.array([[True], [False], [True], [True]])[..., None]
    np.testing.assert_allclose(smooth_rows(values, valid)[[0, 2, 3], 0, 0], [1.0, 5.5, 5.5])
