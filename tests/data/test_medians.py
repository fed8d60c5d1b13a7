"""The historical median against plain loops: by weekday, smoothed over 20 minutes, of the latest twelve weeks."""

import numpy as np
import pytest

from socialx.data.calendar import WALL
from socialx.data.climatology import HistoricalMedians, median
from socialx.data.source import Arrays
from tests.networks import speeds


def source(days: int, sensors: int = 2, missing: float = 0.2) -> tuple[Arrays, np.ndarray]:
    """Rows every five minutes from a Monday on, and the readings [days,288,sensors] with NaN for missing ones."""
    values, valid, seconds = speeds(288 * days, sensors, missing=missing)
    rows = Arrays(values[..., None], valid[..., None], seconds, 5, WALL)
    return rows, np.where(valid, values, np.nan).astype(np.float64).reshape(days, 288, sensors)


@pytest.mark.parametrize("days", [6, 27, 28, 100])
def test_a_slot_is_the_median_of_its_near_readings(days: int) -> None:
    rows, readings = source(days)
    medians, today = HistoricalMedians(rows), np.arange(days)
    for weekday in (0, 6) if days > 6 else (0,):
        alike = today % 7 == weekday if days >= 28 else (today % 7 > 4) == (weekday > 4)
        alike &= today > days - 1 - 84
        for slot in (0, 3, 144, 287):
            near = readings[alike][:, np.arange(slot - 4, slot + 5) % 288].reshape(-1, 2)
            found = medians.table(weekday, 288 * days)[slot, :, 0]
            np.testing.assert_allclose(found, np.nanmedian(near, axis=0), rtol=1e-6)


def test_later_rows_change_nothing_and_times_are_looked_up() -> None:
    rows, readings = source(12)
    stop = 288 * 9 + 100
    cut = Arrays(rows.values[:stop], rows.valid[:stop], rows.seconds[:stop], 5, WALL)
    ahead = rows.seconds[stop : stop + 400]
    whole = HistoricalMedians(rows).lookup(ahead, stop)
    np.testing.assert_array_equal(whole, HistoricalMedians(cut).lookup(ahead, stop))
    assert whole.shape == (400, 2, 1)
    working = readings[[0, 1, 2, 3, 4, 7, 8]]  # the ninth day, a Wednesday, has 100 rows so far
    near = np.concatenate([working[:, 196:205], np.full((1, 9, 2), np.nan)]).reshape(-1, 2)
    np.testing.assert_allclose(whole[100, :, 0], np.nanmedian(near, axis=0), rtol=1e-6)


def test_an_empty_slot_has_the_median_of_the_day_and_a_silent_sensor_none() -> None:
    rows, _ = source(7)
    rows.valid[:, 1] = False
    rows.valid.reshape(7, 288, 2, 1)[:, 100:120, 0] = False
    table = HistoricalMedians(rows).table(2, 288 * 7)
    others = [slot for slot in range(288) if not 104 <= slot < 116]
    assert table[110, 0, 0] == pytest.approx(np.median(table[others, 0, 0]))
    assert np.isnan(table[:, 1]).all()
    assert np.isnan(HistoricalMedians(rows).table(2, 0)).all()


@pytest.mark.parametrize("length", [0, 1, 2, 7, 8])
def test_the_median_leaves_missing_values_out(length: int) -> None:
    values = np.random.default_rng(0).normal(size=(40, length))
    values[np.random.default_rng(1).random(values.shape) < 0.4] = np.nan
    expected = [np.median(row[np.isfinite(row)]) if np.isfinite(row).any() else np.nan for row in values]
    np.testing.assert_allclose(median(values), expected)
