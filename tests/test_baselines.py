"""Baselines against plain loops, with the fallbacks that the definitions name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from socialx.data.windows import calendar
from socialx.model.baselines import CopyLast, HistoricalAverage
from tests.networks import series, speeds


def test_copy_last_with_and_without_zeros() -> None:
    values, valid, epochs = speeds(60, 3, missing=0.0)
    values[9:12, 1], valid[9:12, 1] = 0, False  # missing at the end of the history
    values[:, 2], valid[:, 2] = 0, False  # never observed
    b = series(values, valid, epochs).gather(torch.tensor([0]), 12, 3)
    copied, last = CopyLast(True, [50.0])(b), CopyLast(False, [50.0])(b)
    assert copied.shape == last.shape == (1, 3, 3, 1)
    assert copied[0, 0, :, 0].tolist() == [values[11, 0], 0, 0]
    assert last[0, 2, :, 0].tolist() == [values[11, 0], values[8, 1], 50.0]


def test_the_latest_valid_reading_may_be_older_than_the_history() -> None:
    values, valid, epochs = speeds(60, 1, missing=0.0)
    values[5:40], valid[5:40] = 0, False
    b = series(values, valid, epochs).gather(torch.tensor([20]), 12, 3)
    assert CopyLast(False, [50.0])(b)[0, 0, 0, 0] == values[4, 0]


def test_historical_average_is_the_mean_of_sensor_weekday_and_slot() -> None:
    rows = 15 * 288
    values, valid, epochs = speeds(rows, 2, missing=0.3)
    slot, weekday = calendar(epochs, 5)
    average = HistoricalAverage(values[:4000, :, None], valid[:4000, :, None], slot[:4000], weekday[:4000], 288)
    made = series(values, valid, epochs)
    forecast = average(made.gather(torch.tensor([4100, 4203]), 12, 12))
    for window, start in enumerate((4100, 4203)):
        for step in range(12):
            row = start + 12 + step
            same = (slot[:4000] == slot[row]) & (weekday[:4000] == weekday[row])
            for sensor in range(2):
                seen = values[:4000][same & valid[:4000, sensor], sensor].astype(np.float64)
                expected = (
                    seen.mean() if len(seen) else values[:4000][valid[:4000, sensor], sensor].astype(np.float64).mean()
                )
                assert forecast[window, step, sensor, 0].item() == pytest.approx(expected, rel=1e-12)


def test_a_sensor_that_was_never_observed_gets_the_mean_of_all() -> None:
    values, valid, epochs = speeds(400, 2, missing=0.0)
    values[:, 1], valid[:, 1] = 0, False
    slot, weekday = calendar(epochs, 5)
    average = HistoricalAverage(values[:300, :, None], valid[:300, :, None], slot[:300], weekday[:300], 288)
    forecast = average(series(values, valid, epochs).gather(torch.tensor([310]), 12, 12))
    assert forecast[0, 0, 1, 0].item() == pytest.approx(values[:300, 0].astype(np.float64).mean())
