"""Days to look at, and the forecasts that are kept of them while a model passes over a part."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from socialx.core.batch import Target
from socialx.data.source import Arrays
from socialx.tasks.report.contents import ForecastRecorder, telling_days
from tests.networks import MONDAY, batch

DAY, STEP = 86_400, 300


def source(spread: list[float], first: int = MONDAY, step_s: int = STEP) -> Arrays:
    """Whole days of readings of three sensors, which swing by so much in each."""
    rows = DAY // step_s
    swing = np.sin(np.arange(rows) / rows * 40)
    values = 50 + np.concatenate([size * swing for size in spread])[:, None] * [1.0, 0.5, 0.1]
    seconds = first + step_s * np.arange(len(values))
    return Arrays(values[..., None].astype(np.float32), np.ones((*values.shape, 1), bool), seconds, step_s // 60)


def of_day(data: Arrays, rows: np.ndarray, span: slice) -> np.ndarray:
    return np.unique((data.seconds[rows[span]] - MONDAY) // DAY)


def test_the_day_that_varies_most_comes_first_and_then_one_in_the_middle() -> None:
    data, rows = source([3, 9, 1, 5, 7]), np.arange(30, 5 * 288)
    first, second = telling_days(data, rows)
    assert of_day(data, rows, first) == [1]
    assert of_day(data, rows, second) == [3]  # 9, 7, 5, 3, 1
    for span in (first, second):
        seconds = data.seconds[rows[span]] % DAY
        assert (seconds[0], seconds[-1], len(seconds)) == (6 * 3600, 22 * 3600, 193)


def test_a_day_of_which_the_part_has_little_is_not_chosen() -> None:
    data = source([9, 1, 2, 9])
    rows = np.arange(150, 3 * 288 + 100)  # the last hours of the first day, the first of the last one
    assert [of_day(data, rows, span).tolist() for span in telling_days(data, rows)] == [[2], [1]]


def test_readings_that_are_missing_vary_nothing() -> None:
    data = source([1, 9])
    hidden = Arrays(np.where(np.arange(576)[:, None, None] < 288, data.values, 1e6), data.valid.copy(), data.seconds, 5)
    hidden.valid[288:] = False
    rows = np.arange(576)
    assert of_day(hidden, rows, telling_days(hidden, rows)[0]) == [0]


def test_a_night_alone_is_shown_whole() -> None:
    assert telling_days(source([1.0]), np.arange(12, 48)) == [slice(0, 36)]


@given(first=st.integers(0, 287), length=st.integers(1, 900), seed=st.integers(0, 9))
def test_the_days_are_neighbouring_windows_of_one_day_each(first: int, length: int, seed: int) -> None:
    data = source(np.random.default_rng(seed).uniform(0, 9, 5).tolist())
    rows = np.arange(first, min(first + length, len(data.seconds)))
    spans = telling_days(data, rows)
    assert 1 <= len(spans) <= 2
    for span in spans:
        assert 0 <= span.start < span.stop <= len(rows)
        assert len(of_day(data, rows, span)) == 1
    assert len({int(of_day(data, rows, span)[0]) for span in spans}) == len(spans)


@pytest.mark.parametrize("batch_size", [1, 4, 7, 64])
def test_what_is_kept_is_what_was_forecast_whatever_the_batches(batch_size: int) -> None:
    rng = torch.Generator().manual_seed(0)
    forecast, values = (torch.randn(40, 12, 5, 2, generator=rng) for _ in range(2))
    valid = torch.rand(40, 12, 5, 2, generator=rng) > 0.3
    spans = [slice(3, 9), slice(30, 40), slice(5, 6)]
    kept = ForecastRecorder(6, spans)
    for start in range(0, 40, batch_size):
        part = slice(start, start + batch_size)
        padded = [torch.cat([each[part], each[-1:].repeat(3, 1, 1, 1)]) for each in (forecast, values, valid)]
        padded = padded if start + batch_size >= 40 else [each[part] for each in (forecast, values, valid)]
        kept.update(padded[0], batch(), Target(*padded[1:]))
    for span, (truth, made) in zip(spans, kept.compute(), strict=True):
        np.testing.assert_array_equal(made, forecast[span, 5, :, 0])
        np.testing.assert_array_equal(truth, torch.where(valid, values, torch.nan)[span, 5, :, 0])
