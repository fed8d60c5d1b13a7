"""Finer rows averaged to longer steps, against plain loops over the rows."""

from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.core.errors import SettingsError
from socialx.files.sources.resample import average_blocks, seconds_in
from socialx.files.store.layout import UNKNOWN, Block
from socialx.files.store.store import open_store
from tests.commands import small_file, small_run
from tests.data_files import refusal
from tests.frames import converted, long

START, WHERE = 1_706_600_000 // 86_400 * 86_400 + 1_920, Path("a.csv")
PLAIN, COUNT = {"avg_speed": UNKNOWN}, {"flow": UNKNOWN}


def fine(rows: int, sensors: int, features: int, step: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows a step apart, of which some are lost, with gaps and codes: seconds [T] and numbers [T,N,F]."""
    rng, seconds = np.random.default_rng(seed), START + step * np.arange(rows)
    values = rng.uniform(1, 90, (rows, sensors, features)).round(1)
    values[rng.random(values.shape) < 0.2] = np.nan
    values[rng.random(values.shape) < 0.1] = -1
    values[rows // 3 : rows // 3 + 40, 0] = np.nan
    kept = rng.random(rows) > 0.1
    kept[:3] = True
    return seconds[kept], values[kept].astype(np.float32)


def cut(seconds: np.ndarray, values: np.ndarray, sizes: list[int]) -> Generator[Block, None, None]:
    begin = 0
    for size in [*sizes, len(seconds)]:
        part = slice(begin, begin + size)
        if len(seconds[part]):
            yield Block(seconds[part], values[part])
        begin += size


def by_loop(seconds: np.ndarray, values: np.ndarray, step: int, features: list[str], usual: float) -> pd.DataFrame:
    """What each step has of each sensor and feature, a row at a time."""
    rows = defaultdict(list)
    for second, row in zip(seconds.tolist(), values.tolist(), strict=True):
        rows[second // step * step].append(row)
    found = {}
    for begin, mine in sorted(rows.items()):
        for sensor in range(values.shape[1]):
            for place, feature in enumerate(features):
                read = [(row[sensor][place], row[sensor]) for row in mine if row[sensor][place] >= 0]
                mean = sum(value for value, _ in read) / len(read) if read else np.nan
                if feature == "flow" and read:
                    mean *= max(usual, len(read))
                if feature == "avg_speed" and "flow" in features:
                    flows = [max(each[features.index("flow")], 0) for _, each in read]
                    flows = [0 if np.isnan(each) else each for each in flows]
                    if sum(flows):
                        pairs = zip(read, flows, strict=True)
                        mean = sum(value * flow for (value, _), flow in pairs) / sum(flows)
                found[begin, sensor, feature] = mean if len(read) >= usual / 2 else np.nan
    return pd.Series(found).unstack([1, 2])


FEATURES = [["avg_speed"], ["flow"], ["occupancy"], ["avg_speed", "flow"], ["flow", "avg_speed", "occupancy"]]


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("sizes", [[], [1] * 50, [7] * 400, [1500, 3]])
def test_steps_are_those_of_a_loop_wherever_blocks_end(features: list[str], sizes: list[int]) -> None:
    seconds, values = fine(2600, 3, len(features))
    parts = list(average_blocks(cut(seconds, values, sizes), 300, dict.fromkeys(features, UNKNOWN), (-1.0,), WHERE))
    wanted = by_loop(seconds, values, 300, features, 10)
    assert np.concatenate([part.seconds for part in parts]).tolist() == wanted.index.tolist()
    found = np.concatenate([part.values.reshape(len(part.values), -1) for part in parts])
    np.testing.assert_allclose(found, wanted.to_numpy(), rtol=1e-5)
    assert np.isnan(found).any()
    assert {part.values.shape[1:] for part in parts} == {(3, len(features))}


def test_sensors_may_report_at_times_of_their_own() -> None:
    seconds, values = START + np.arange(3000), np.full((3000, 60, 1), np.nan, np.float32)
    for sensor in range(60):
        values[sensor::60, sensor, 0] = sensor + np.arange(50)
    for sizes in ([], [1] * 70):
        parts = average_blocks(cut(seconds, values, sizes), 300, PLAIN, (), WHERE)
        found = np.concatenate([each.values[..., 0] for each in parts])
        np.testing.assert_allclose(found, by_loop(seconds, values, 300, ["avg_speed"], 5).to_numpy(), rtol=1e-6)


@pytest.mark.parametrize("sizes", [[], [1] * 10])
@pytest.mark.parametrize(("step", "found"), [(300, "5 min apart"), (900, "15 min apart")])
def test_rows_that_are_no_finer_are_refused(step: int, found: str, sizes: list[int]) -> None:
    seconds, values = START + step * np.arange(50), np.ones((50, 2, 1), np.float32)
    with pytest.raises(SettingsError, match=found):
        list(average_blocks(cut(seconds, values, sizes), 300, COUNT, (), WHERE))


def test_a_single_reading_of_each_sensor_is_refused() -> None:
    values = np.where(np.eye(4, dtype=bool), 5.0, np.nan)[..., np.newaxis].astype(np.float32)
    with pytest.raises(SettingsError, match="readings"):
        list(average_blocks(cut(START + 30 * np.arange(4), values, []), 300, COUNT, (), WHERE))


@pytest.mark.parametrize("sizes", [[], [1] * 300, [700, 1]])
def test_a_count_is_the_same_however_often_a_sensor_reports_and_when(sizes: list[int]) -> None:
    """Ten vehicles a minute: a sensor tells each minute, another each two, a third at first each five and then each."""
    seconds = START // 3600 * 3600 + 60 * np.arange(24 * 60)
    minute, values = np.arange(len(seconds)), np.full((len(seconds), 3), np.nan, np.float32)
    values[:, 0] = 10
    values[minute % 2 == 0, 1] = 20
    values[(minute % 5 == 0) & (minute < 720), 2] = 50
    values[minute >= 720, 2] = 10
    parts = average_blocks(cut(seconds, values[..., None], sizes), 900, COUNT, (), WHERE)
    found = np.concatenate([each.values[..., 0] for each in parts])
    assert len(found) == 96
    assert (found[np.isfinite(found)] == 150).all()
    assert np.isfinite(found).all(axis=0).tolist() == [True, True, True]


def test_a_count_of_longer_than_a_step_is_no_count_of_the_step() -> None:
    seconds = START // 3600 * 3600 + 60 * np.arange(24 * 60)
    values = np.full((len(seconds), 2), 10, np.float32)
    values[np.arange(len(seconds)) % 15 != 0, 1] = np.nan
    [*parts] = average_blocks(cut(seconds, values[..., None], []), 300, COUNT, (), WHERE)
    found = np.concatenate([part.values[..., 0] for part in parts])
    assert (found[:, 0] == 50).all()
    assert np.isnan(found[:, 1]).all()


def test_impossible_numbers_are_in_no_mean() -> None:
    seconds = START // 3600 * 3600 + 30 * np.arange(2000)
    values = np.full((len(seconds), 1), 60, np.float32)
    values[::10], values[5::10] = -1, 500
    [*parts] = average_blocks(cut(seconds, values[..., None], []), 300, {"avg_speed": "mph"}, (), WHERE)
    assert (np.concatenate([part.values[..., 0] for part in parts]) == 60).all()


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [
        ("veh/h", 3600),
        ("veh/5min", 300),
        ("Kfz/15 min", 900),
        ("vph", 3600),
        ("veh/30s", 30),
        ("veh", None),
        ("%", None),
    ],
)
def test_a_unit_says_to_which_time_it_refers(unit: str, seconds: float | None) -> None:
    assert seconds_in(unit) == seconds


# ---- as a user asks for it


def table(path: Path, seconds: int) -> Path:
    """A row for each time and sensor."""
    times = pd.date_range("2024-01-30 06:02", periods=600, freq=f"{seconds}s", name="time")
    frame = pd.DataFrame(np.random.default_rng(0).uniform(20, 90, (600, 2)).round(1), times, ["A", "B"])
    long(frame).drop(columns="volume").to_csv(path, index=False)
    return path


@pytest.mark.parametrize("step", ["7min", "25h", "soon", "30s"])
def test_a_step_that_is_no_part_of_a_day_is_refused(tmp_path: Path, step: str) -> None:
    refusal(lambda: converted(table(tmp_path / "a.csv", 30), resample=step), step)


def test_rounding_that_puts_rows_together_names_the_step(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", 270)
    assert "--resample 10min" in refusal(lambda: converted(path, round_times=True), "rows")
    found = converted(path, resample="10min")
    cells = pd.read_csv(path, parse_dates=["time"]).pivot(index="time", columns="sensor", values="speed")
    np.testing.assert_allclose(found.to_numpy(), cells.resample("10min").mean().to_numpy(), rtol=1e-6)


def test_predict_averages_a_finer_table(tmp_path: Path) -> None:
    data = small_file(tmp_path)
    run, store = small_run(data), open_store(data)
    times = pd.to_datetime(store.seconds[-60:], unit="s")
    frame = pd.DataFrame(store.values[-60:], times, list(store.sensors.ids)).rename_axis("time")
    fine = frame.reindex(pd.date_range(times[0], periods=300, freq="1min")).ffill().rename_axis("time")
    places = pd.DataFrame({"id": store.sensors.ids, "lat": store.sensors.latitude, "lon": store.sensors.longitude})
    places.to_csv(tmp_path / "at.csv", index=False)
    for each, name in ((frame, "coarse.csv"), (fine, "fine.csv")):
        each.reset_index().to_csv(tmp_path / name, index=False)
    said: dict[str, Any] = {"meta_csv": tmp_path / "at.csv", "units": "mph"}
    plain = socialx.predict(run, tmp_path / "coarse.csv", **said)
    averaged = socialx.predict(run, tmp_path / "fine.csv", resample="5min", **said)
    np.testing.assert_allclose(averaged.values, plain.values, rtol=1e-5)


def test_a_count_is_that_of_a_step_which_holds_no_whole_number_of_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"A": 20}, pd.date_range("2024-03-04", periods=60, freq="2min", name="time"))
    path, output = tmp_path / "flow.csv", tmp_path / "out.h5"
    frame.to_csv(path)
    socialx.convert("auto", path, output, resample="5min", without_positions=True, quantity="flow", channel="A")
    assert (open_store(output).values == 50).all()
