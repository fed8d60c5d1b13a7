"""Windows: the counts of the protocol, no leak, no window across a gap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from socialx.core.errors import SocialxError
from socialx.data.calendar import WALL, slots_per_day
from socialx.data.scaler import measure
from socialx.data.series import ContextReader, WindowLayout
from socialx.data.source import Arrays
from socialx.dataset.windows import SPLITS, split_windows
from socialx.settings.schema import DataSettings
from tests.data_files import refusal
from tests.networks import MONDAY, speeds


def every_five_minutes(rows: int) -> np.ndarray:
    return MONDAY + 300 * np.arange(rows, dtype=np.int64)


@pytest.mark.parametrize(
    ("rows", "rule", "counts"),
    [
        (34_272, "canonical", (23_974, 3_425, 6_850)),
        (52_116, "canonical", (36_465, 5_209, 10_419)),
        (34_272, "strict", (23_967, 3_404, 6_832)),
        (52_116, "strict", (36_458, 5_188, 10_401)),
    ],
)
def test_window_counts_of_the_published_data_sets(rows: int, rule: str, counts: tuple[int, int, int]) -> None:
    windows = split_windows(every_five_minutes(rows), 5, DataSettings(lookback=12, horizon=12, split_method=rule))
    assert tuple(len(windows.split(part)) for part in SPLITS) == counts


def test_metr_la_training_rows_end_where_the_last_training_window_ends() -> None:
    windows = split_windows(every_five_minutes(34_272), 5, DataSettings(lookback=12, horizon=12))
    assert windows.training_rows == slice(0, 23_997)


@given(rows=st.integers(60, 400), lookback=st.integers(1, 12), horizon=st.integers(1, 12))
def test_canonical_windows_are_all_windows_in_order(rows: int, lookback: int, horizon: int) -> None:
    windows = split_windows(every_five_minutes(rows), 5, DataSettings(lookback=lookback, horizon=horizon))
    together = np.concatenate([windows.split(part) for part in SPLITS])
    assert (together.tolist(), windows.across_gaps) == (list(range(rows - lookback - horizon + 1)), 0)


STEPS = (60, 120, 299, 301, 304, 310, 600, 900, 3900, 36_300, 200_000, 0, -300, -3300)  # from a row to the next one


@pytest.mark.parametrize("rule", ["canonical", "strict"])
@settings(max_examples=40)
@given(
    rows=st.integers(250, 400),
    odd=st.dictionaries(st.integers(0, 398), st.sampled_from(STEPS), max_size=8),
    slack_s=st.sampled_from([0, 5]),
)
def test_the_rows_of_a_window_are_those_of_its_times(rows: int, odd: dict[int, int], slack_s: int, rule: str) -> None:
    """Whatever the steps between rows are; all other windows are left out, and counted."""
    steps = np.full(rows - 1, 300)
    for place, step in odd.items():
        steps[place % len(steps)] = step
    seconds = MONDAY + np.concatenate([[0], np.cumsum(steps)])
    even = split_windows(every_five_minutes(rows), 5, DataSettings(lookback=6, horizon=4, split_method=rule))
    try:
        windows = split_windows(seconds, 5, DataSettings(lookback=6, horizon=4, split_method=rule), slack_s)
    except SocialxError as error:
        assert (error.code, "time gap" in str(error)) == ("data.too-short", True)  # noqa: PT017
        return
    nothing = np.zeros((rows, 1, 1))
    context = ContextReader(Arrays(nothing.astype(np.float32), nothing == 0, seconds), WindowLayout(6, 4), slack_s)
    clear = (np.diff(np.sort(seconds)) > 2 * slack_s).all() or slack_s == 0
    for part in SPLITS:
        kept = set(windows.split(part).tolist())
        for start in even.split(part).tolist():
            found = context.rows_at(seconds[start + 5] + 300 * np.arange(-5, 5))
            found = found.tolist() == list(range(start, start + 10))
            assert (start in kept) == found if clear else start not in kept or found
        assert kept <= set(even.split(part).tolist())
        assert windows.left_out.get(part, 0) == len(even.split(part)) - len(kept)
    assert windows.across_gaps == 0


@given(cut=st.integers(1, 240), minutes=st.integers(6, 600))
def test_canonical_windows_over_a_gap_of_published_results_are_kept(cut: int, minutes: int) -> None:
    even = every_five_minutes(250)
    seconds = even + np.where(np.arange(250) >= cut, (minutes - 5) * 60, 0)
    kept, strict = (
        split_windows(seconds, 5, DataSettings(lookback=6, horizon=4, split_method=rule), published=even)
        for rule in ("canonical", "strict")
    )
    assert sum(kept.counts.values()) == 241
    crossing = [start for start in range(241) if start < cut <= start + 9]
    assert (kept.across_gaps, kept.left_out) == (len(crossing), {})
    assert not {*crossing} & {*strict.split("all").tolist()}
    assert strict.across_gaps == 0


@given(rows=st.integers(150, 600))
def test_strict_parts_share_no_row(rows: int) -> None:
    windows = split_windows(every_five_minutes(rows), 5, DataSettings(lookback=6, horizon=4, split_method="strict"))
    touched = [{row for start in windows.split(part) for row in range(start, start + 10)} for part in SPLITS]
    assert not touched[0] & touched[1]
    assert not touched[1] & touched[2]


def test_a_file_too_short_is_refused_with_the_way_out() -> None:
    words, rule = ("30 rows", "12 + 12 steps", "--lookback"), DataSettings(split_method="strict")
    line = refusal(lambda: split_windows(every_five_minutes(30), 5, rule), *words, task="train")
    assert line.code == "data.too-short"


def test_the_normaliser_ignores_missing_readings_and_everything_after_the_training_rows() -> None:
    values, valid, _ = speeds(300, 4)
    source = Arrays(values[..., None], valid[..., None], every_five_minutes(300))
    (moments,) = measure(source, slice(0, 200))
    seen = values[:200][values[:200] != 0].astype(np.float64)
    assert moments.mean == pytest.approx(seen.mean(), rel=1e-12)
    assert moments.std == pytest.approx(seen.std(), rel=1e-12)
    values[200:] = 1e6
    assert measure(source, slice(0, 200)) == [moments]


def test_no_valid_training_reading_is_an_error() -> None:
    nothing = Arrays(np.zeros((10, 2, 1), np.float32), np.zeros((10, 2, 1), bool), every_five_minutes(10))
    assert refusal(lambda: measure(nothing, slice(0, 10))).code == "data.all-missing"


def test_calendar_reads_the_wall_clock() -> None:
    times = np.array(["2012-03-01T00:00:00", "2012-03-04T23:55:00", "2012-03-05T08:30:00"], "datetime64[s]")
    time_of_day, day_of_week = WALL.time_features(times.astype(np.int64), 5)
    assert time_of_day.tolist() == [0, 287, 102]
    assert day_of_week.tolist() == [3, 6, 0]  # Thursday, Sunday, Monday
    assert (slots_per_day(5), slots_per_day(7)) == (288, 206)
