"""One array of rows, sensors and channels, in each of the shapes in which they are published."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from socialx.core.errors import SettingsError
from socialx.files.sources import arrays
from socialx.files.sources.readings import read
from socialx.files.sources.recognition import FORMATS, recognise
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.head import read_head
from tests.array_files import check, contents, fractions, joined, npy_bytes, recognised, tiled, weekdays
from tests.data_files import reason as why
from tests.data_files import refusal, shown, speeds, timestamps

METR_LA = {"first_time": "2012-03-01 00:00:00"}  # a Thursday
UNNAMED = (
    "channel 0 of 1 taken, named avg_speed, as the file does not say what it is.\n"
    "  try: name it with --channel flow or --channel occupancy"
)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "PIECE_BYTES", 1000)


# ---- PEMS03, 04, 07, 08


def pems(path: Path, channels: int, rows: int = 300) -> tuple[Path, np.ndarray]:
    values = np.stack([speeds(rows, seed=seed) for seed in range(channels)], axis=-1)
    np.savez_compressed(path, data=values)
    return path, values


@pytest.mark.parametrize(
    ("asked", "channel", "feature", "units"),
    [
        (None, 2, "avg_speed", "mph"),
        ("speed", 2, "avg_speed", "mph"),
        ("Flow", 0, "flow", "vehicles per step"),
        ("occupancy", 1, "occupancy", "share"),
        ("1", 1, "occupancy", "share"),
    ],
)
def test_pems_of_three_channels(tmp_path: Path, asked: str | None, channel: int, feature: str, units: str) -> None:
    path, values = pems(tmp_path / "PEMS04.npz", 3)
    found = contents("pems-npz", path, first_time="2018-01-01 00:00:00", step_s=300, channel=asked)
    name = feature.removeprefix("avg_")
    assert shown(found.notes) == [f"channel {channel} of 3 taken, {name} (flow, occupancy, speed in this order)"]
    check(found, timestamps(300, "2018-01-01T00:00:00"), values[..., channel], feature, units)
    assert recognised(path) == ["pems-npz"]
    assert "300 rows x 3 sensors x 3 channels" in str(why(FORMATS["pems-npz"], path))
    assert not FORMATS["pems-npz"].has_clock


def test_pems_of_one_channel_is_flow(tmp_path: Path) -> None:
    path, values = pems(tmp_path / "PEMS03.npz", 1)
    clock = {"first_time": "2018-09-01 00:00:00", "step_s": 300}
    times = timestamps(300, "2018-09-01T00:00:00")
    check(contents("pems-npz", path, **clock), times, values[..., 0], "flow", "vehicles per step")
    np.savez(path, data=values[..., 0])
    check(contents("pems-npz", path, **clock), times, values[..., 0], "flow", "vehicles per step")
    refusal(
        lambda: contents("pems-npz", path, **clock, channel="speed"), "--channel speed is not there", "choose flow or 0"
    )


def test_other_numbers_of_channels_are_asked_for(tmp_path: Path) -> None:
    path, values = pems(tmp_path / "mine.npz", 4)
    clock = {"first_time": "2018-09-01 00:00:00", "step_s": 900}
    refusal(lambda: contents("pems-npz", path, **clock), "4 channels without names", "--channel with 0 to 3")
    for wrong in ("4", "-1", "speed", "", "²"):
        with pytest.raises(SettingsError, match="choose 0 to 3"):
            contents("pems-npz", path, **clock, channel=wrong)
    found = contents("pems-npz", path, **clock, channel="3")
    assert shown(found.notes) == [f"{path}: channel 3 of 4 taken, named avg_speed, as the file does not say what it is"]
    check(found, timestamps(300, "2018-09-01T00:00:00", 15), values[..., 3], "avg_speed", None)


def test_rows_without_times_need_both(tmp_path: Path) -> None:
    path, _ = pems(tmp_path / "PEMS08.npz", 3)
    refusal(lambda: contents("pems-npz", path), "add --first-time", "--freq 5min")
    refusal(lambda: contents("pems-npz", path, first_time="2016-07-01 00:00:00"), "--freq 5min")


def test_too_large_a_number_is_inf_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    np.save(tmp_path / "a.npy", np.array([[1e300, np.nan], [-0.0, 2**24 + 1]]))
    _, found = joined(contents("npy", tmp_path / "a.npy", **METR_LA, step_s=60))
    assert found.tobytes() == np.array([[np.inf, np.nan], [-0.0, 2**24]], np.float32).tobytes()
    assert not recwarn.list


@pytest.mark.parametrize("shape", [(5,), (0, 3), (5, 0), (5, 3, 2, 2)])
def test_other_shapes_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "a.npz", data=np.zeros(shape))
    np.save(tmp_path / "a.npy", np.zeros(shape))
    clock = {**METR_LA, "step_s": 300}
    refusal(lambda: contents("pems-npz", tmp_path / "a.npz", **clock), f"has shape {shape}, not [rows, sensors]")
    refusal(lambda: contents("npy", tmp_path / "a.npy", **clock), f"has shape {shape}, not [rows, sensors]")
    assert recognised(tmp_path / "a.npz") + recognised(tmp_path / "a.npy") == []


# ---- Torch-MTS


def torch_mts(path: Path, times: list[str], days: np.ndarray | None = None, **changed: np.ndarray) -> np.ndarray:
    values = changed.get("values", speeds(len(times)))
    channels = [values, changed.get("tod", fractions(times))] + ([] if days is None else [days])
    np.savez_compressed(path, data=tiled(*channels))
    return values


@pytest.mark.parametrize("with_days", [True, False])
@pytest.mark.parametrize("by_folder", [True, False])
def test_torch_mts(tmp_path: Path, with_days: bool, by_folder: bool) -> None:
    times, path = timestamps(1000), tmp_path / "data.npz"
    values = torch_mts(path, times, weekdays(times) if with_days else None)
    np.savez(tmp_path / "index.npz", train=np.zeros((3, 3)))
    given = tmp_path if by_folder else path
    found = contents("torch-mts", given, **METR_LA)
    assert found.notes[0] == "its split (index.npz) is not taken over: socialx splits by its own protocol"
    assert shown(found.notes)[-1] == f"{given}: {UNNAMED}"
    assert len(found.notes) == (2 if with_days else 3)
    check(found, times, values, "avg_speed", None)
    assert recognised(given) == ["torch-mts"]
    assert recognised(tmp_path / "index.npz") == []
    assert FORMATS["torch-mts"].has_clock
    with pytest.raises(SettingsError, match="choose 0"):
        contents("torch-mts", given, **METR_LA, channel="1")


def test_a_missing_hour_is_found_again(tmp_path: Path) -> None:
    times = [time for time in timestamps(600, "2017-03-11T10:00:00") if not time.startswith("2017-03-12 02:")]
    assert times[times.index("2017-03-12 01:55:00") + 1] == "2017-03-12 03:00:00"
    values = torch_mts(tmp_path / "data.npz", times, weekdays(times))
    check(contents("torch-mts", tmp_path / "data.npz", first_time=times[0]), times, values, "avg_speed", None)


def test_a_wrong_start_is_noticed(tmp_path: Path) -> None:
    times, path = timestamps(600, "2012-03-01T06:30:00"), tmp_path / "data.npz"
    torch_mts(path, times, weekdays(times))
    words = ("on a Thursday, and the given start, 2012-03-02, is a Friday", "correct --first-time")
    refusal(lambda: contents("torch-mts", path, first_time="2012-03-02 06:30:00"), *words)
    found = contents("torch-mts", path, first_time="2012-03-01 00:00:00")
    refusal(lambda: joined(found), "at 06:30:00, not 00:00:00")
    refusal(lambda: contents("torch-mts", path), "add --first-time")
    refusal(lambda: contents("torch-mts", path, first_time="March"), "--first-time March", "YYYY-MM-DD")


def test_days_counted_from_the_first_row(tmp_path: Path) -> None:
    """Torch-MTS counts the days of PEMS08 from 0, and it begins on a Friday."""
    times, path = timestamps(1000, "2016-07-01T00:00:00"), tmp_path / "data.npz"
    values = torch_mts(path, times, np.arange(1000) // 288 % 7)
    found = contents("torch-mts", path, first_time="2016-07-01 00:00:00")
    assert found.notes[1] == "its days of week count from 0 in the first row, which the given start makes a Friday"
    check(found, times, values, "avg_speed", None)


def test_whole_missing_days_are_noticed(tmp_path: Path) -> None:
    every = timestamps(1000)
    times = every[:300] + every[588:]
    torch_mts(tmp_path / "data.npz", times, weekdays(times))
    found = contents("torch-mts", tmp_path / "data.npz", **METR_LA)
    refusal(lambda: joined(found), f"row 301 is at {every[300]} but on another day of the week")
    torch_mts(tmp_path / "data.npz", times)
    found = contents("torch-mts", tmp_path / "data.npz", **METR_LA)
    assert found.notes[1] == "the times follow from the times of day, which do not show gaps of whole days"
    assert joined(found)[0] == every[:712]


@pytest.mark.parametrize(
    ("row", "sensor", "value", "shown"),
    [(200, 1, 0.5, "row 201"), (200, slice(None), np.nan, "has nan"), (200, slice(None), 1.0, "has 1.0"),
     (0, slice(None), 0.0011, "row 1 has 0.0011"), (200, slice(None), -0.25, "has -0.25"), (200, 0, np.inf, "has inf")]
)  # fmt: skip
def test_wrong_times_of_day_are_refused(tmp_path: Path, row: int, sensor: object, value: float, shown: str) -> None:
    tod = np.tile(fractions(timestamps(400))[:, None], (1, 3))
    tod[row, sensor] = value
    torch_mts(tmp_path / "data.npz", timestamps(400), tod=tod)
    words = (shown, "in channel 1", "no time of day in whole minutes")
    refusal(lambda: joined(contents("torch-mts", tmp_path / "data.npz", **METR_LA)), *words)


def test_a_day_of_week_that_is_none_is_noticed(tmp_path: Path) -> None:
    times = timestamps(400, "2012-03-04T00:00:00")  # a Sunday, 6
    for wrong in (np.nan, -1, 7, 5.5):
        days = weekdays(times).astype(float)
        days[100] = wrong
        torch_mts(tmp_path / "data.npz", times, days)
        found = contents("torch-mts", tmp_path / "data.npz", first_time=times[0])
        refusal(lambda found=found: joined(found), f"row 101 is at {times[100]} but on another day")


def test_channel_1_decides_between_two_formats(tmp_path: Path) -> None:
    times, path = timestamps(400), tmp_path / "data.npz"
    not_times = {
        "differs": fractions(times)[:, None] + np.array([0, 0, 1 / 288]),
        "constant": np.zeros(400),
        "number": np.arange(400.0) % 288,
        "irregular": np.random.default_rng(0).integers(0, 1440, 400) / 1440,
        "fine": fractions(times) + 0.0004,
    }
    for tod in not_times.values():
        torch_mts(path, times, tod=tod % 288)
        assert recognised(path) == ["pems-npz"]
    torch_mts(path, times, tod=fractions(times).astype(np.float32))
    assert recognised(path) == ["torch-mts"]
    torch_mts(path, times[:1])
    assert recognised(path) == ["pems-npz"]


# ---- LargeST


@pytest.mark.parametrize("divided", [1, 7])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_largest(tmp_path: Path, divided: int, dtype: type) -> None:
    times = timestamps(700, "2019-01-01T00:00:00", 15)
    flow = np.random.default_rng(3).integers(0, 900, (700, 4)).astype(np.float64)
    flow[flow < 90] = 0
    flow[5] = 0.25
    mean, std = flow[:400].mean(), flow[:400].std()
    data = tiled((flow - mean) / std, fractions(times), weekdays(times) / divided).astype(dtype)
    np.savez_compressed(tmp_path / "his.npz", data=data, mean=mean, std=std)
    for given in (tmp_path, tmp_path / "his.npz"):
        found = contents("largest-npz", given, first_time="2019-01-01 00:00:00")
        assert shown(found.notes) == [f"channel 0 times std {std:g} plus mean {mean:g} taken"]
        assert (found.ids, found.sensors, found.feature, found.units) == (None, 4, "flow", "vehicles per step")
        found_times, values = joined(found)
        assert found_times == times
        if dtype is np.float64:
            assert values.tobytes() == flow.astype(np.float32).tobytes()
        assert np.abs(values - flow).max() < 1e-3
        assert ((values == 0) == (flow == 0)).all()
        assert recognised(given) == ["largest-npz"]
    refusal(
        lambda: contents("largest-npz", tmp_path, first_time="2019-01-02 00:00:00"), "on a Tuesday", "is a Wednesday"
    )


@pytest.mark.parametrize(("mean", "std"), [(np.nan, 1.0), (0.0, 0.0), (0.0, -1.0), (0.0, [1.0, 2.0]), (0.0, np.inf)])
def test_largest_needs_its_scale(tmp_path: Path, mean: object, std: object) -> None:
    times = timestamps(10)
    np.savez(tmp_path / "his.npz", data=tiled(speeds(10), fractions(times), weekdays(times)), mean=mean, std=std)
    refusal(lambda: contents("largest-npz", tmp_path / "his.npz", **METR_LA), "mean", "std", "one above 0")


# ---- PyTorch Geometric Temporal


@pytest.mark.parametrize("prefix", ["", "pems_"])
@pytest.mark.parametrize("where", ["file", "folder", "zip", "zip of a folder"])
def test_pyg_t(tmp_path: Path, prefix: str, where: str) -> None:
    times, values = timestamps(400), speeds(400)
    array, name = tiled(values, fractions(times)), f"{prefix}node_values.npy"
    (tmp_path / name).write_bytes(npy_bytes(array))
    (tmp_path / f"{prefix}adj_mat.npy").write_bytes(npy_bytes(np.eye(3)))
    given = {"file": tmp_path / name, "folder": tmp_path}.get(where, tmp_path / "METR-LA.zip")
    if where.startswith("zip"):
        inner = "METR-LA/" if where == "zip of a folder" else ""
        with zipfile.ZipFile(given, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{inner}{prefix}adj_mat.npy", npy_bytes(np.eye(3)))
            archive.writestr(inner + name, npy_bytes(array))
    found = contents("pyg-t", given, **METR_LA)
    assert shown(found.notes) == [
        "the times follow from the times of day, which do not show gaps of whole days",
        f"{given}: {UNNAMED}",
    ]
    check(found, times, values, "avg_speed", None)
    assert recognised(given) == ["pyg-t"]
    refusal(lambda: contents("pyg-t", given, **METR_LA, channel="1"), "--channel 1 is not there", "choose 0")
    assert why(FORMATS["pyg-t"], given) == f"{name}, 400 rows x 3 sensors x 2 channels"
    assert recognised(tmp_path / f"{prefix}adj_mat.npy") == []


def test_pyg_t_without_a_time_of_day(tmp_path: Path) -> None:
    values = np.stack([speeds(400), speeds(400, seed=1)], axis=-1)
    np.save(tmp_path / "node_values.npy", values)
    refusal(lambda: contents("pyg-t", tmp_path, **METR_LA), "--freq 5min")
    clock = {**METR_LA, "step_s": 300}
    check(contents("pyg-t", tmp_path, **clock), timestamps(400), values[..., 0], "avg_speed", None)
    check(contents("pyg-t", tmp_path, **clock, channel="1"), timestamps(400), values[..., 1], "avg_speed", None)
    (tmp_path / "node_values.npy").unlink()
    refusal(lambda: contents("pyg-t", tmp_path, **clock), "no node_values.npy or pems_node_values.npy in it")


# ---- any .npy


@pytest.mark.parametrize("columns", [False, True])
def test_npy(tmp_path: Path, columns: bool) -> None:
    values = np.stack([speeds(400), speeds(400, seed=1)], axis=-1)
    path, clock = tmp_path / "vel.npy", {"first_time": "2020-02-28 23:00:00", "step_s": 600}
    times = timestamps(400, "2020-02-28T23:00:00", 10)
    np.save(path, np.asfortranarray(values) if columns else values)
    refusal(lambda: contents("npy", path, **clock), "2 channels without names", "0 to 1")
    check(contents("npy", path, **clock, channel="1"), times, values[..., 1], "avg_speed", None)
    np.save(path, values[..., 0])
    found = contents("npy", path, **clock)
    assert shown(found.notes) == [f"{path}: {UNNAMED}"]
    check(found, times, values[..., 0], "avg_speed", None)
    assert recognised(path) == ["npy"]
    assert not FORMATS["npy"].has_clock
    refusal(lambda: contents("npy", path), "--first-time", "--freq")


# ---- a graph, and zeros


def links(rows: int, dtype: str = "float64") -> np.ndarray:
    """Which of some sensors are neighbours, 0 or 1, as Loop_Seattle_2015_A.npy has it."""
    near = np.abs(np.subtract.outer(np.arange(rows), np.arange(rows))) < 3
    return near.astype(dtype)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint8"])
@pytest.mark.parametrize("kind", ["npy", "one channel", "columns", "npz", "data"])
def test_a_graph_is_no_series(tmp_path: Path, kind: str, dtype: str) -> None:
    graph, path = links(40, dtype), tmp_path / ("A.npz" if kind in ("npz", "data") else "A.npy")
    if kind in ("npz", "data"):
        np.savez(path, **{"data" if kind == "data" else "A": graph})
    else:
        np.save(path, {"one channel": graph[..., None], "columns": np.asfortranarray(graph)}.get(kind, graph))
    words = ("a square symmetric matrix of 0 and 1, which is a graph of sensors and no readings",)
    assert recognised(path) == []
    refusal(lambda: recognise(read_head(path)), str(path), *words)
    format = "pems-npz" if kind == "data" else "npy"
    refusal(lambda: contents(format, path, **METR_LA, step_s=300), str(path), *words)


def test_what_only_resembles_a_graph_is_read(tmp_path: Path) -> None:
    path, clock = tmp_path / "a.npy", {**METR_LA, "step_s": 300}
    one_way, weighted, missing = links(40), links(40) * 0.5, links(40)
    one_way[3, 4], missing[39, 39] = 0, np.nan
    for values in (one_way, weighted, missing, links(40)[:39], links(1)):
        np.save(path, values)
        check(contents("npy", path, **clock), timestamps(len(values)), values, "avg_speed", None)


def pyg_t(path: Path) -> None:
    np.save(path, tiled(speeds(9), fractions(timestamps(9))))


ZEROS: dict[str, tuple[str, Callable[[Path], object], dict[str, Any], float | None]] = {
    "PEMS flow": ("PEMS08.npz", lambda path: pems(path, 3), {"channel": "flow"}, 0.0),
    "PEMS occupancy": ("PEMS08.npz", lambda path: pems(path, 3), {"channel": "occupancy"}, 0.0),
    "PEMS speed": ("PEMS08.npz", lambda path: pems(path, 3), {}, 0.0),
    "PEMS03": ("PEMS03.npz", lambda path: pems(path, 1), {}, 0.0),
    "PEMS03 with 0": ("PEMS03.npz", lambda path: pems(path, 1), {"missing": ()}, None),
    "data of others": ("mine.npz", lambda path: pems(path, 4), {"channel": "flow=1"}, None),
    "npy": ("a.npy", lambda path: np.save(path, speeds(9)), {"channel": "flow"}, None),
    "npy occupancy": ("a.npy", lambda path: np.save(path, speeds(9)), {"channel": "occupancy"}, None),
    "npy speed": ("a.npy", lambda path: np.save(path, speeds(9)), {"channel": "speed"}, 0.0),
    "npy, 0 is none": ("a.npy", lambda path: np.save(path, speeds(9)), {"channel": "flow", "missing": (0.0,)}, 0.0),
    "Torch-MTS": ("data.npz", lambda path: torch_mts(path, timestamps(9)), {"channel": "flow"}, None),
    "PyG-Temporal": ("node_values.npy", pyg_t, {"channel": "flow"}, None),
}


@pytest.mark.parametrize("case", ZEROS)
def test_zero_of_a_count_is_a_reading_but_in_the_published_pems_sets(tmp_path: Path, case: str) -> None:
    name, write, said, missing = ZEROS[case]
    write(tmp_path / name)
    step = {} if name in ("data.npz", "node_values.npy") else {"step_s": 300}
    found = read(
        "auto",
        ConvertOptions(tmp_path / name, first_time="2012-03-01 00:00:00", **step, **said, without_positions=True),
    )
    assert found.missing == missing
    if "missing" not in said:
        told = f"{found.feature} 0 is treated as an observation (--missing 0 if 0 means missing)"
        if missing == 0:
            told = f"{found.feature} 0 is treated as missing (--missing none to keep zeros)"
        assert told in shown(found.notes)
