"""The climatology against its definition, and that nothing of the day of issue or later enters it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from socialx.data.climatology import ALL_DAYS, HALF_LIFE_DAYS, ZERO_SHOT_DAYS, PastDays, RollingClimatology
from socialx.data.source import Arrays
from socialx.dataset import Dataset, read_dataset
from socialx.settings.schema import DataSettings, LoaderSettings
from tests.commands import small_file
from tests.networks import CPU, MONDAY, speeds

DAY = 288


def made(days: int, sensors: int = 3, missing: float = 0.1, step_minutes: int = 5, lost: bool = False) -> Arrays:
    """Readings from a Monday on; lost: the last sensor has none."""
    rows = days * 1440 // step_minutes
    values, valid, _ = speeds(rows, sensors, missing)
    valid[:, sensors - 1] &= not lost
    return Arrays(values[..., None], valid[..., None], MONDAY + 60 * step_minutes * np.arange(rows), step_minutes)


def by_hand(source: Arrays, day: int, kind: int, slot: int, sensor: int, most: int | None) -> tuple[float, float]:
    """A usual reading and the days behind it: every row is asked whether it counts."""
    slots = 1440 // source.step_minutes
    total, count = np.zeros(2), np.zeros(2)  # of this kind of day and of the others
    of_sensor, of_all = np.zeros(2), np.zeros(2)
    for row, second in enumerate(source.seconds):
        time, own_day = datetime.fromtimestamp(int(second), UTC), int(second) // 86_400
        if own_day >= day or (most is not None and own_day < day - most):
            continue
        weight = 0.5 ** ((day - own_day) / HALF_LIFE_DAYS)
        away = ((time.hour * 60 + time.minute) // source.step_minutes - slot) % slots
        for each in range(source.shape[0]):
            if source.valid[row, each, 0]:
                entry = weight * np.array([source.values[row, each, 0], 1.0])
                of_all += entry
                if each == sensor:
                    of_sensor += entry
                    if min(away, slots - away) * source.step_minutes <= 20:
                        other = int({5: 1, 6: 2}.get(time.weekday(), 0) != kind)
                        total[other] += entry[0]
                        count[other] += entry[1]
    mean = of_sensor[0] / of_sensor[1] if of_sensor[1] else of_all[0] / of_all[1] if of_all[1] else np.nan
    near = 2 * (20 // source.step_minutes) + 1
    share = 2 * max(0.0, 1 - count[0] / near) if count[1] else 0.0
    others = share * total[1] / count[1] if count[1] else 0.0
    days = (count[0] + 0.1 * count[1]) / near
    return (total[0] + others + 0.5 * mean) / (count[0] + share + 0.5), 255 * days / (days + 3)


@pytest.mark.parametrize("most", [None, 0, 1, 3, 20])
@pytest.mark.parametrize(("step_minutes", "missing"), [(10, 0.0), (10, 0.5), (30, 0.9)])
def test_it_is_its_definition(step_minutes: int, missing: float, most: int | None) -> None:
    source = made(9, 3, missing, step_minutes, lost=True)
    past, first = RollingClimatology(source, max_days=most or 0), MONDAY // 86_400
    for day in (first, first + 1, first + 6, first + 9):
        for kind in range(3):
            found = past.table(day, most, kind)
            assert found.readings.shape == (1440 // step_minutes, 3, 1)
            assert (found.readings.dtype, found.confidence.dtype) == (np.float32, np.uint8)
            for time_of_day in range(0, 1440 // step_minutes, 29):
                for sensor in range(3):
                    reading, confidence = by_hand(source, day, kind, time_of_day, sensor, most)
                    assert found.readings[time_of_day, sensor, 0] == pytest.approx(reading, rel=1e-5, nan_ok=True)
                    assert found.confidence[time_of_day, sensor, 0] == pytest.approx(confidence, abs=0.51)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5 * DAY - 1), st.sampled_from([None, 1, 3]))
def test_readings_of_the_day_of_issue_or_later_do_not_count(row: int, most: int | None) -> None:
    source, day = made(5, 2), MONDAY // 86_400 + row // DAY
    other = Arrays(source.values.copy(), source.valid.copy(), source.seconds, 5)
    other.values[row // DAY * DAY :] += 17
    other.valid[row // DAY * DAY :] ^= True
    for kind in range(3):
        one, two = (RollingClimatology(each, max_days=most or 0).table(day, most, kind) for each in (source, other))
        assert all(map(np.array_equal, one, two, [True, False]))


def test_the_order_of_questions_does_not_matter() -> None:
    source, first = made(8, 2), MONDAY // 86_400
    questions = [(first + day, days, kind) for day in (7, 2, 5, 5, 0, 7) for days in (None, 2) for kind in (0, 2)]
    past = RollingClimatology(source, max_days=2)
    for question in questions:
        found, alone = past.table(*question), RollingClimatology(source, max_days=2).table(*question)
        assert all(map(np.array_equal, found, alone, [True, False]))


def with_gap(source: Arrays, row: int, days: int) -> Arrays:
    """The same where the rows from this one on are so many days later."""
    seconds = source.seconds + np.where(np.arange(len(source.seconds)) < row, 0, 86_400 * days)
    return Arrays(source.values, source.valid, seconds, source.step_minutes)


def rows_of(source: Arrays, rows: slice) -> Arrays:
    return Arrays(source.values[rows], source.valid[rows], source.seconds[rows], source.step_minutes)


def assert_same(found: RollingClimatology, wanted: RollingClimatology, days: Iterable[int]) -> None:
    """What is usual on any kind of day, as known on these days."""
    for day in days:
        for kind in range(3):
            one, two = (past.table(day, None, kind) for past in (found, wanted))
            np.testing.assert_allclose(one.readings, two.readings, rtol=2e-5)
            np.testing.assert_allclose(one.confidence.astype(int), two.confidence.astype(int), atol=1)


GAPS = [0, 1, 2, 13, 14, 45, 92, 366]
HALF_HOURS = 48  # of a day


@settings(max_examples=60, deadline=None)
@example(HALF_HOURS, HALF_HOURS, 13, False)  # a reading exactly 14 days old is the only one of other kinds of day
@given(st.integers(1, 9 * HALF_HOURS - 1), st.integers(1, 9 * HALF_HOURS - 1), st.sampled_from(GAPS), st.booleans())
def test_a_file_that_is_cut_anywhere_is_known_like_the_whole(cut: int, place: int, gap: int, lost: bool) -> None:
    """A gap may lie before, at and behind the cut; the days before the cut are those that a run remembers."""
    whole = with_gap(made(9, 3, 0.3, 30, lost), place, gap)
    remembered, later = RollingClimatology(rows_of(whole, slice(cut))).today(), rows_of(whole, slice(cut, None))
    first, last = (int(later.seconds[row]) // 86_400 for row in (0, -1))
    middle = int(whole.seconds[cut - 1]) // 86_400  # the day of the last row of the first part is known already
    days = [*sorted({first, first + 1, last, last + 1, last + 30}), middle]
    assert_same(RollingClimatology(later, remembered), RollingClimatology(whole), days)


@pytest.mark.parametrize("gap", GAPS)
def test_what_is_remembered_passes_on_through_several_files(gap: int) -> None:
    whole = with_gap(made(9, 3, 0.3, 30), 200, gap)
    remembered = None
    for rows in (slice(100), slice(100, 101), slice(101, 200), slice(200, 260)):
        remembered = RollingClimatology(rows_of(whole, rows), remembered).today()
    wanted = RollingClimatology(rows_of(whole, slice(260))).today()
    assert (remembered.first, remembered.end, remembered.last.kind) == (wanted.first, wanted.end, wanted.last.kind)
    for one, two in ((remembered, wanted), (remembered.last, wanted.last)):
        np.testing.assert_allclose(one.sums, two.sums, rtol=1e-5)
        np.testing.assert_allclose(one.counts, two.counts, rtol=1e-5)
    assert_same(
        RollingClimatology(rows_of(whole, slice(260, None)), remembered),
        RollingClimatology(whole),
        [wanted.end, wanted.end + 9],
    )


def test_a_file_that_holds_the_remembered_days_too_counts_them_once() -> None:
    whole = made(9, 3, 0.3, 30)
    for rows in (200, 240):  # in the middle of a day, and at its end
        known = RollingClimatology(rows_of(whole, slice(rows))).today()
        assert_same(RollingClimatology(whole, known), RollingClimatology(whole), range(known.end, known.end + 6))


def test_what_is_known_on_a_day_is_not_taken_for_that_of_an_earlier_one() -> None:
    known = RollingClimatology(made(5, 2)).today()
    later = known.decay_to(known.end + 3)
    for wrong in (lambda: known.decay_to(known.end - 1), lambda: known.add_days(known.last._replace(day=known.end + 1)),
                  lambda: later.update_from(known)):  # fmt: skip
        with pytest.raises(ValueError, match="lies before day"):
            wrong()
    share = 0.5 ** (3 / HALF_LIFE_DAYS)
    np.testing.assert_allclose(later.counts.sum(0), share * (known.counts.sum(0) + known.last.counts), rtol=1e-5)


def test_what_a_run_knows_counts_like_the_rows_themselves() -> None:
    source, day = made(8, 2), MONDAY // 86_400
    known = RollingClimatology(source).stats_before(day + 5)
    later = Arrays(source.values[4 * DAY :], source.valid[4 * DAY :], source.seconds[4 * DAY :], 5)
    whole, goes_on = RollingClimatology(source), RollingClimatology(later, known)
    for asked in (day + 5, day + 7):
        one, two = (past.table(asked, None, 0) for past in (whole, goes_on))
        np.testing.assert_allclose(one.readings, two.readings, rtol=1e-6)
        assert np.array_equal(one.confidence, two.confidence)
    for asked in (day + 4, day + 5, day + 4):  # of what is given nothing counts before its end
        found, alone = goes_on.table(asked, None, 0), RollingClimatology(later).table(asked, None, 0)
        assert np.array_equal(found.readings, alone.readings, True) == (asked == day + 4)


def test_what_is_given_counts_for_the_sensors_that_it_is_of() -> None:
    source, day = made(8, 3), MONDAY // 86_400
    known = RollingClimatology(source).stats_before(day + 5)
    known.sums[:, :, 2] = known.counts[:, :, 2] = 0  # a sensor that is new in the file
    goes_on, alone = RollingClimatology(source, known), RollingClimatology(source)
    for asked in (day + 3, day + 5, day + 7):
        one, two = (past.table(asked, None, 0) for past in (goes_on, alone))
        np.testing.assert_allclose(one.readings, two.readings, rtol=1e-6)


def test_rows_out_of_order_count_on_their_day() -> None:
    source, day = made(5, 2), MONDAY // 86_400
    order = np.random.default_rng(0).permutation(len(source.seconds))
    mixed = Arrays(source.values[order], source.valid[order], source.seconds[order], 5)
    for asked in (day + 1, day + 4):
        one, two = (RollingClimatology(each).table(asked, None, 0) for each in (source, mixed))
        np.testing.assert_allclose(one.readings, two.readings, rtol=1e-5)


def opened(path: Path, mode: str = "on_device", train_climatology_days: PastDays | None = ZERO_SHOT_DAYS) -> Dataset:
    loading = LoaderSettings(mode=mode, shard_gb=2**-14, num_workers=1)
    return read_dataset(DataSettings(path=path), loading, CPU, train_climatology_days)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"), 5 * DAY + 100)


@pytest.mark.parametrize("days", [ALL_DAYS, PastDays((2,)), ZERO_SHOT_DAYS])
def test_a_window_has_what_was_known_on_its_day_of_issue(file: Path, days: PastDays) -> None:
    data = opened(file)
    loader = data.loader("train", 50, days=days)
    past = cache(lambda each: RollingClimatology(data.target_source, max_days=28))
    pieces = np.split(loader.starts, range(50, len(loader.starts), 50))
    for (batch, _), starts in zip(loader.epoch(0), pieces, strict=True):
        for place in range(0, len(starts), 13):
            rows = np.arange(starts[place], starts[place] + 24)
            seconds, number = data.store.seconds[rows], days.windows[starts[place] % len(days.windows)]
            issued = seconds - 12 * 300
            assert (issued <= seconds[11]).all()
            readings, confidence = past(number).lookup(seconds, issued, (number,))
            np.testing.assert_array_equal(batch.climatology[place], readings[0])
            np.testing.assert_allclose(batch.climatology_confidence[place], confidence[0] / 255, rtol=1e-6)


@pytest.mark.parametrize("mode", ["sharded", "workers"])
@pytest.mark.parametrize("days", [ALL_DAYS, ZERO_SHOT_DAYS])
def test_other_modes_have_the_same_batches(file: Path, mode: str, days: PastDays) -> None:
    one, two = (
        opened(file, each).loader("train", 32, True, 3, shard=200, days=days).epoch(1) for each in ("on_device", mode)
    )
    for (left, _), (right, _) in zip(one, two, strict=True):
        for name in ("climatology", "climatology_confidence", "inputs"):
            found, wanted = (getattr(each, name).nan_to_num(-1.0) for each in (right, left))
            assert torch.equal(found, wanted), name


def test_nothing_is_left_that_other_modes_need(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert len([*opened(file, "sharded").loader("train", 32).epoch(0)]) > 1
    assert not [*tmp_path.iterdir()]


def test_a_model_without_climatology_has_none_in_its_batches(file: Path) -> None:
    batch, _ = next(iter(opened(file, train_climatology_days=None).loader("train", 8).epoch(0)))
    assert batch.climatology.shape == batch.climatology_confidence.shape == (8, 24, 4, 0)
