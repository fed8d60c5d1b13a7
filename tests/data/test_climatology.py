"""The climatology against its definition: the mean of the training rows at a time of the week, smoothed and shrunk."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from socialx.data import source as sources
from socialx.data.climatology import climatology
from socialx.data.source import Arrays
from socialx.dataset import open_dataset
from tests.commands import small_file
from tests.networks import CPU, MONDAY, speeds


def by_hand(
    values: np.ndarray, valid: np.ndarray, seconds: np.ndarray, step_minutes: int, kind: int, slot: int, sensor: int
) -> float:
    """One entry: every row is asked whether it counts."""
    slots = 1440 // step_minutes
    total = count = 0.0
    for row, second in enumerate(seconds):
        time = datetime.fromtimestamp(int(second), UTC)
        own = {5: 1, 6: 2}.get(time.weekday(), 0)
        away = ((time.hour * 60 + time.minute) // step_minutes - slot) % slots
        if own == kind and min(away, slots - away) <= 2 and valid[row, sensor]:
            total, count = total + float(values[row, sensor]), count + 1
    if valid[:, sensor].any():
        mean = float(values[valid[:, sensor], sensor].astype(float).mean())
    else:
        mean = float(values[valid].astype(float).mean())
    return (total + 3 * mean) / (count + 3)


@pytest.mark.parametrize(("step_minutes", "missing"), [(30, 0.0), (30, 0.5), (60, 0.9)])
def test_it_is_its_definition(step_minutes: int, missing: float) -> None:
    rows = 9 * 1440 // step_minutes  # from a Monday to the Tuesday after next
    values, valid, _ = speeds(rows, 3, missing)
    valid[:, 2] = False
    seconds = MONDAY + 60 * step_minutes * np.arange(rows)
    found = climatology(Arrays(values[..., None], valid[..., None], seconds, step_minutes), slice(0, rows))
    slots = 1440 // step_minutes
    assert found.shape == (3, slots, 3, 1)
    assert found.dtype == np.float32
    for kind in range(3):
        for slot in range(0, slots, 5):
            for sensor in range(3):
                expected = by_hand(values, valid, seconds, step_minutes, kind, slot, sensor)
                assert found[kind, slot, sensor, 0] == pytest.approx(expected, rel=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 200), st.integers(201, 300), st.integers(1, 90))
def test_rows_outside_do_not_count_and_pages_do_not_matter(first: int, last: int, page: int) -> None:
    values, valid, seconds = speeds(400, 2)
    rows = slice(first, last)
    cut = Arrays(values[rows, :, None], valid[rows, :, None], seconds[rows], 5)
    alone = climatology(cut, slice(0, last - first))
    elsewhere = np.where((np.arange(400) >= first) & (np.arange(400) < last), 1, 1000)[:, None]
    whole = Arrays((values * elsewhere)[..., None], valid[..., None], seconds, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "PAGE_ROWS", page)
        np.testing.assert_allclose(climatology(whole, rows), alone, rtol=1e-6)


def test_a_network_without_any_reading_has_a_climatology_of_zeros() -> None:
    nothing = Arrays(np.zeros((300, 2, 1), np.float32), np.zeros((300, 2, 1), bool), MONDAY + 300 * np.arange(300), 5)
    assert not climatology(nothing, slice(0, 300)).any()


def test_that_of_a_file_is_of_its_training_rows_alone(tmp_path: Path) -> None:
    data = open_dataset(
        small_file(tmp_path),
        targets=("avg_speed",),
        inputs=None,
        history=12,
        horizon=12,
        device=CPU,
        split="canonical",
    )
    rows = data.windows.training_rows
    assert rows.stop < 400
    values, valid = data.source.read(slice(0, 400))
    values[rows.stop :] = 1e6
    own = Arrays(values, valid, data.store.seconds, data.store.step_minutes)
    np.testing.assert_array_equal(data.climatology(), climatology(own, slice(rows.start, rows.stop)))
