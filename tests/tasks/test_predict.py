"""Forecasts: the same numbers as scoring sees, from any file of the network, honest about what is missing."""

import json
import re
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

import socialx as api
from socialx.core.errors import Message, SettingsError
from socialx.core.progress import Note, Work
from socialx.files.store.store import Store
from socialx.forecast import forecast
from socialx.forecast.forecast import Forecast
from socialx.forecast.picture import _draw_observed
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting
from socialx.training.run_folder import RunFolder
from tests.commands import SMALL, edited, keep_rows, refused, refuses, small_run, socialx, works

LAST = "2012-05-04 09:15:00"  # the time of the last of 400 rows


def changed(data: Path, folder: Path, **values: float) -> Path:
    """A copy with the readings of some sensors (by column) replaced from row 300 on."""
    path = folder / "changed.h5"
    with edited(data, path) as file:
        for column, value in values.items():
            file["data/features"][300:, int(column.removeprefix("s")), 0] = value
    return path


def some_rows(data: Path, folder: Path, rows: slice | np.ndarray) -> Path:
    """A copy with these rows alone."""
    path = folder / "rows.h5"
    with edited(data, path) as file:
        keep_rows(file, rows)
    return path


def notes_of(*given: object, **options: object) -> tuple[Forecast, list[Message]]:
    said: list[Message] = []
    found = api.predict(*given, progress=lambda e: said.append(e.message) if isinstance(e, Note) else None, **options)
    return found, said


def test_a_forecast_is_what_scoring_compares_with_the_truth(run: Path) -> None:
    """Every window of the test split, issue by issue, through the other path."""
    experiment = open_forecasting(run, ConfigLayers()).experiment
    loader = experiment.data.loader("test", 1000)
    example = next(loader.epoch(0))
    with torch.no_grad():
        scored = experiment.model.eval()(example.batch).numpy()
    last = experiment.data.store.timestamps[loader.starts + 11]
    found = api.predict(run, start=last[0].decode(), end=last[-1].decode(), every="5min")
    assert [str(time).replace("T", " ") for time in found.origin] == [time.decode() for time in last]
    np.testing.assert_allclose(found.values, scored, rtol=0, atol=1e-5)
    truth = np.where(example.target.valid, example.target.values, np.nan)[..., 0]
    rows = np.searchsorted(found.observed.times, found.times)
    np.testing.assert_array_equal(found.observed.values[rows][..., 0], truth)


def test_the_last_hour_needs_no_future(run: Path, data: Path, tmp_path: Path) -> None:
    """Twelve rows are enough, and the same twelve give the same forecast whatever came before them."""
    whole = api.predict(run)
    assert str(whole.origin[0]) == LAST.replace(" ", "T")
    assert [str(time)[11:16] for time in whole.times[0][[0, -1]]] == ["09:20", "10:15"]
    short = api.predict(run, some_rows(data, tmp_path, slice(-12, None)))
    seen = whole.readings[0] > 0
    np.testing.assert_array_equal(short.values[:, :, seen], whole.values[:, :, seen])


def test_an_earlier_issue_does_not_see_what_came_later(run: Path, data: Path, tmp_path: Path) -> None:
    later = changed(data, tmp_path, s0=3.0, s1=4.0)
    at = "2012-05-04 00:55"  # row 299
    np.testing.assert_array_equal(api.predict(run, at=at).values, api.predict(run, later, at=at).values)
    assert not np.array_equal(api.predict(run).values, api.predict(run, later).values)


def test_incomplete_histories_are_forecast_and_marked(run: Path, data: Path, tmp_path: Path) -> None:
    path = changed(data, tmp_path, s1=0.0)
    with h5py.File(path, "r+") as file:
        file["data/features"][-3, 0, 0] = 0.0
        file["data/features"][:, 2, 0] = 0.0
    found = api.predict(run, path)
    assert found.marks[0].tolist() == ["partial", "missing", "never", "complete"]
    assert found.readings[0].tolist() == [11, 0, 0, 12]
    assert np.isfinite(found.values).all()
    frame = found.to_frame()
    assert frame.groupby("sensor", sort=False)["input_status"].first().tolist() == [
        "partial",
        "missing",
        "never",
        "complete",
    ]
    assert "3 with an incomplete" in found.headline()


def test_rows_that_the_file_lacks_count_as_missing(run: Path, data: Path, tmp_path: Path) -> None:
    found, notes = notes_of(run, some_rows(data, tmp_path, np.delete(np.arange(400), [395, 396])))
    (gap,) = [note.problem for note in notes if note.code == "predict.lacking"]
    assert re.match(r"2 of 12 rows .* 2012-05-04 08:55:00\)", gap)
    zeroed = tmp_path / "zeroed.h5"
    with edited(data, zeroed) as file:
        file["data/features"][395:397, :, 0] = 0.0
    np.testing.assert_array_equal(found.values, api.predict(run, zeroed).values)


def test_an_old_last_row_is_said(run: Path) -> None:
    _, notes = notes_of(run)
    assert notes[0].code == "predict.old"
    assert re.search(rf" \d+\.\d years .*\({LAST}\)", notes[0].problem)
    assert notes_of(run, at="2012-05-04 09:00")[1] == []


def test_a_history_without_any_reading_is_refused(run: Path, data: Path, tmp_path: Path) -> None:
    silent = changed(data, tmp_path, s0=0.0, s1=0.0, s2=0.0, s3=0.0)
    with refuses("predict.no-observation") as caught:
        api.predict(run, silent)
    assert re.search(r" 12 rows .*\n.* at='2012-05-04 00:55:00', ", str(caught.value))
    span = api.predict(run, silent, start="2012-05-04 00:30", end="2012-05-04 03:00", every="30min")
    assert span.marks[-1].tolist() == ["missing"] * 4


def reordered(data: Path, path: Path, order: list[int]) -> Path:
    """The same file with its sensors in another order, some left out or given twice."""
    with edited(data, path) as file:
        for name, axis in (("data/features", 1), ("metadata/vdids", 0)):
            kept = np.take(file[name][:], order, axis=axis)
            attributes = {"maxshape": kept.shape, "chunks": True}
            del file[name]
            file.create_dataset(name, data=kept, **attributes)
    return path


def test_sensors_are_matched_by_id(run: Path, data: Path, tmp_path: Path) -> None:
    at_home = api.predict(run)
    moved = api.predict(run, reordered(data, tmp_path / "moved.h5", [2, 0, 3, 1]))
    assert moved.sensors == at_home.sensors
    np.testing.assert_array_equal(moved.values, at_home.values)


@pytest.fixture(scope="module")
def shared(data: Path) -> Path:
    """A run without tables of sensors."""
    return small_run(data, "shared", "--no-sensor-embedding")


def test_sensors_in_any_order_suit_weights_without_tables_of_them(shared: Path, data: Path, tmp_path: Path) -> None:
    """Each sensor keeps the climatology that training measured for it."""
    order = [2, 0, 3, 1]
    at_home, moved = api.predict(shared), api.predict(shared, reordered(data, tmp_path / "moved.h5", order))
    assert moved.sensors == tuple(at_home.sensors[place] for place in order)
    np.testing.assert_allclose(moved.values, at_home.values[:, :, order], rtol=1e-5)


def test_a_file_that_lacks_sensors_is_refused_with_their_list(run: Path, data: Path, tmp_path: Path) -> None:
    error = refused("predict", run, "--data", reordered(data, tmp_path / "fewer.h5", [0, 2]))
    lost = [api.predict(run).sensors[place] for place in (1, 3)]
    assert error.code == "store.lacks"
    assert all(fact in error for fact in (" 2 of 4 sensors ", f" ({', '.join(lost)})"))


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"at": "2012-05-04 09:02"}, "predict.row", " at='2012-05-04 09:00:00' or at="),
        ({"at": "2030-01-01"}, "predict.late", " reaches 60 min, to 2012-05-04 10:15:00."),
        ({"at": "2012-05-03 00:10"}, "predict.before", " 12 rows, "),
        ({"at": "soon"}, "time.unreadable", "at='soon'"),
        ({"at": LAST, "start": LAST}, "predict.at-and-start", " start"),
        ({"every": "15min"}, "predict.no-start", " start"),
        ({"start": "2012-05-04 00:00", "every": "7min"}, "predict.every", "every='7min'"),
        ({"start": "2012-05-04 00:00", "every": "often"}, "option.minutes", "every='often'"),
        ({"start": "2012-05-04 00:02"}, "predict.row", " 2012-05-04 00:02:00 or any forecast origin"),
        ({"start": "2012-05-04 00:00", "end": "2013-01-01"}, "predict.late", "end='2013-01-01 00:00:00'"),
        ({"sensors": ""}, "forecast.no-sensor", " empty"),
        ({"sensors": ["1", "773869"]}, "forecast.no-sensor", " 2 of 2 sensors (1, 773869)."),
    ],
)
def test_a_time_or_sensor_that_the_file_lacks(options: dict[str, object], code: str, says: str, run: Path) -> None:
    with refuses(code, SettingsError) as caught:
        api.predict(run, **options)
    assert says in str(caught.value)
    assert str(caught.value).count("\n") <= 1


def test_a_span_is_issued_every_so_often(run: Path) -> None:
    found = api.predict(run, start="2012-05-04 06:00", end="2012-05-04 08:00", every="30min")
    assert [str(time)[11:16] for time in found.origin] == ["06:00", "06:30", "07:00", "07:30", "08:00"]
    np.testing.assert_allclose(found.values[2], api.predict(run, at="2012-05-04 07:00").values[0], rtol=0, atol=1e-5)
    by_hour = api.predict(run, start="2012-05-04 06:00", end="2012-05-04 09:00")
    assert [str(time)[11:16] for time in by_hour.origin] == ["06:00", "07:00", "08:00", "09:00"]


def test_times_may_be_datetimes_also_with_a_zone(run: Path) -> None:
    wall = api.predict(run, at="2012-05-04 07:00")
    there = datetime(2012, 5, 4, 7, tzinfo=ZoneInfo("America/Los_Angeles"))
    for moment in (datetime(2012, 5, 4, 7), there, there.astimezone(UTC), pd.Timestamp("2012-05-04 07:00")):
        np.testing.assert_array_equal(api.predict(run, at=moment).origin, wall.origin)


def test_a_missing_issue_time_is_left_out_and_said(run: Path, data: Path, tmp_path: Path) -> None:
    gap = some_rows(data, tmp_path, np.delete(np.arange(400), 360))  # 2012-05-04 06:00
    found, notes = notes_of(run, gap, start="2012-05-04 05:00", end="2012-05-04 07:00", every="1h")
    assert [str(time)[11:16] for time in found.origin] == ["05:00", "07:00"]
    assert [note.problem[:6] for note in notes if note.code == "predict.rows-left-out"] == ["1 of 3"]


def test_what_is_no_run_is_one_line(run: Path, data: Path, tmp_path: Path) -> None:
    assert socialx("predict", tmp_path).codes == ("run.not",)
    empty = shutil.copytree(run, tmp_path / "empty")
    for name in ("best.safetensors", "last.pt"):
        (empty / name).unlink()
    assert refused("predict", empty).code == "run.no-weights"
    result = socialx("predict", run, "--data", some_rows(data, tmp_path, slice(0, 7)))
    assert (result.exit_code, result.codes) == (1, ("data.below-lookback",))
    assert re.search(r" 7 rows, .* 12\.\n", result.stderr)
    for done in (socialx("predict", run, "--data", tmp_path / "none.h5"), result):
        assert done.stdout == ""
        assert re.fullmatch(r"error: [^\n]+\n  try: [^\n]+\n", done.stderr)


def test_only_weights_and_settings_are_needed(run: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("format.txt", "best.safetensors", "settings.yaml", "protocol.json", "sensors.json"):
        shutil.copy(run / name, bare)
    np.testing.assert_array_equal(api.predict(bare).values, api.predict(run).values)


def test_no_speed_is_below_zero(run: Path, tmp_path: Path) -> None:
    low = RunFolder(shutil.copytree(run, tmp_path / "low"))
    weights = low.read_weights()
    weights.state["head.2.bias"][:3] -= 1000  # the first three of twelve steps
    low.write_weights(weights.state, 1, 1.0)
    found, said = notes_of(low.path)
    assert (found.values[:, :3] == 0).all()
    np.testing.assert_array_equal(found.values[:, 3:], api.predict(run).values[:, 3:])
    (negative,) = [note.problem for note in said if note.code == "predict.below-zero"]
    assert re.match(f"{3 * (count := len(found.sensors))} values .* {count} of {count} sensors", negative)


def test_every_output_holds_the_same_numbers(run: Path, tmp_path: Path) -> None:
    found = api.predict(run, start="2012-05-04 06:00", end="2012-05-04 07:00", every="30min")
    frame = found.to_frame()
    assert list(frame.columns) == ["origin", "sensor", "time", "lead_minutes", "forecast", "unit", "input_status"]
    assert len(frame) == 3 * 4 * 12
    one = frame[(frame.sensor == found.sensors[2]) & (frame.origin == frame.origin.unique()[1])]
    np.testing.assert_array_equal(one["forecast"].to_numpy(np.float32), found.values[1, :, 2, 0])
    assert one["lead_minutes"].tolist() == list(range(5, 65, 5))
    assert ((one["time"] - one["origin"]).dt.total_seconds() / 60 == one["lead_minutes"]).all()
    assert set(frame["unit"]) == {"mph"}
    found.write(tmp_path / "f.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "f.parquet"), frame, check_dtype=False)
    found.write(tmp_path / "f.csv")
    read = pd.read_csv(tmp_path / "f.csv", dtype={"sensor": str}, parse_dates=["origin", "time"])
    np.testing.assert_allclose(read["forecast"], frame["forecast"], atol=5e-5)
    pd.testing.assert_series_equal(read["time"], frame["time"], check_dtype=False, check_freq=False)
    assert read["sensor"].tolist() == frame["sensor"].tolist()
    found.write(tmp_path / "f.xlsx")
    sheet = pd.read_excel(tmp_path / "f.xlsx", dtype={"sensor": str})
    assert set(sheet.pop("zone")) == {"America/Los_Angeles"}
    read["origin"], read["time"] = (read[name].dt.tz_localize(None) for name in ("origin", "time"))
    pd.testing.assert_frame_equal(sheet, read, check_dtype=False)
    found.write(tmp_path / "f.h5")
    with h5py.File(tmp_path / "f.h5") as file:
        np.testing.assert_array_equal(file["forecast"][:], found.values)
        assert [vdid.decode() for vdid in file["sensors"][:]] == list(found.sensors)
        assert (file["times"][1, 0], file["units"][0]) == (b"2012-05-04 06:35:00", b"mph")
    printed = json.loads(socialx("predict", run, "--at", "2012-05-04 07:00", "--json").stdout)
    assert printed["origin"] == ["2012-05-04 07:00:00"]
    np.testing.assert_allclose(printed["forecast"]["avg_speed"], api.predict(run, at="2012-05-04 07:00").values[..., 0])


def test_an_output_is_checked_before_any_work(run: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("origin,forecast\n")
    for arguments, status, code, says in (
        (["--output", there], 1, "output.exists", " --overwrite "),
        (["--output", tmp_path / "f.xls"], 2, "output.suffix", " .csv, .xlsx, .parquet or .h5"),
        (["--plot", tmp_path / "f.jpg"], 2, "output.suffix", "'.jpg'"),
        (["--output", tmp_path], 1, "output.folder", str(tmp_path)),
    ):
        error = refused("predict", run, *arguments, code=status)
        assert (error.code, says in error) == (code, True), error
    assert (there.read_text(), [path.name for path in tmp_path.iterdir()]) == ("origin,forecast\n", ["there.csv"])
    works("predict", run, "--output", there, "--overwrite")
    assert there.read_text().startswith("origin,sensor,time,lead_minutes,forecast,unit,input_status\n")


def test_a_workbook_needs_openpyxl_and_room(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "SHEET_ROWS", 47)
    with refuses("forecast.sheet"):  # 4 sensors, 12 steps
        api.predict(run).write(tmp_path / "f.xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    error = refused("predict", run, "-o", tmp_path / "f.xlsx")
    assert (error.code, "pip install 'socialx[excel]'" in error) == ("forecast.excel", True)
    assert not list(tmp_path.iterdir())


def test_the_times_of_a_workbook_are_local(run: Path, tmp_path: Path) -> None:
    found = replace(api.predict(run), timezone="UTC", local_zone="Europe/Copenhagen")
    found.write(tmp_path / "f.xlsx")
    sheet = pd.read_excel(tmp_path / "f.xlsx")
    assert set(sheet["zone"]) == {"Europe/Copenhagen"}
    assert set(sheet["origin"]) == {pd.Timestamp(LAST) + pd.Timedelta(hours=2)}
    replace(found, timezone=None, local_zone=None).write(tmp_path / "none.xlsx")
    assert "zone" not in pd.read_excel(tmp_path / "none.xlsx")


def test_the_command_prints_the_sensors_that_change_most(run: Path) -> None:
    result, found = works("predict", run), api.predict(run)
    line = result.stdout.splitlines()[0]
    assert f" {LAST} (America/Los_Angeles)" in line
    assert all(fact in line for fact in ("avg_speed (mph)", " 4 sensors", " 12 steps", " 5 min", " 60 min"))
    change = np.abs(found.values[0, :, :, 0] - found.at_issue()[0]).max(axis=0)
    order = [found.sensors[place] for place in np.argsort(-change, kind="stable")]
    assert re.findall(r"^ +(\d{6}) ", result.stdout, re.MULTILINE) == order
    two = socialx("predict", run, "--sensors", f"{order[3]},{order[1]}").stdout
    assert re.findall(r"^ +(\d{6}) ", two, re.MULTILINE) == [order[3], order[1]]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_shows_history_forecast_and_truth(suffix: str, run: Path, tmp_path: Path) -> None:
    found, path = api.predict(run, at="2012-05-04 07:00"), tmp_path / f"f.{suffix}"
    found.plot(path, [found.sensors[0]])
    first = path.read_bytes()
    found.plot(path, [found.sensors[0]])
    assert path.read_bytes() == first
    assert first.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix])
    if suffix == "svg":
        for text in (f"Sensor {found.sensors[0]}", "forecast", "observed later", "origin", "avg speed, mph"):
            assert text in first.decode()


def test_a_picture_without_truth_or_with_several_issues(run: Path, tmp_path: Path) -> None:
    api.predict(run).plot(tmp_path / "latest.svg")
    text = (tmp_path / "latest.svg").read_text()
    assert "observed later" not in text
    assert text.count(">Sensor ") == 4
    api.predict(run, start="2012-05-04 06:00", every="1h").plot(tmp_path / "several.svg")
    assert "and 3 later ones" in (tmp_path / "several.svg").read_text()


@pytest.mark.parametrize(("minutes", "dots"), [(5, "o"), (24, "None"), (30, "None")])
def test_a_long_forecast_is_a_line_and_no_date_touches_another(minutes: int, dots: str, run: Path) -> None:
    found = api.predict(run, at="2012-05-03 18:00")
    times, values = found.times[:, :1] + np.arange(1, 61) * np.timedelta64(minutes, "m"), np.repeat(found.values, 5, 1)
    long = replace(found, times=times, values=values) if minutes > 5 else found
    figure = long.plot(sensors=found.sensors[:1])
    (line,) = [each for each in figure.axes[0].lines if each.get_label() == "forecast"]
    assert line.get_marker() == dots
    dated = ["\n" in each.get_text() for each in figure.axes[0].get_xticklabels()]
    assert sum(dated[:2]) == 1


def test_an_observation_between_two_gaps_is_a_dot() -> None:
    times, values = np.arange(6), np.array([1, np.nan, 2, np.nan, 3, 4])
    axes = Figure().subplots()
    _draw_observed(axes, times[:6], values[:6])
    assert axes.lines[1].get_xdata().tolist() == [0, 2]


def test_a_sensor_without_readings_is_drawn_too(run: Path, tmp_path: Path) -> None:
    found = api.predict(run)
    empty = replace(found, observed=replace(found.observed, values=np.full_like(found.observed.values, np.nan)))
    empty.plot(tmp_path / "empty.svg")
    assert (tmp_path / "empty.svg").exists()


def test_progress_is_told(run: Path) -> None:
    seen: list[Work] = []
    api.predict(run, start="2012-05-04 06:00", progress=lambda e: seen.append(e) if isinstance(e, Work) else None)
    assert seen[-1].finished
    assert (seen[-1].name, seen[-1].done, seen[-1].total) == ("predict", 4, 4)


def test_a_run_whose_data_has_moved_says_so(run: Path, data: Path, tmp_path: Path) -> None:
    moved = tmp_path / "run"
    shutil.copytree(run, moved)
    settings = moved / "settings.yaml"
    settings.write_text(settings.read_text().replace(str(data), "gone.h5"))
    error = refused("predict", moved)
    assert error.code == "run.no-data"
    assert re.fullmatch(rf"error: gone\.h5: .* {moved} .*\n.* --data FILE\n", error)
    works("predict", moved, "--data", data)


@pytest.mark.parametrize(
    ("command", "passes"), [("predict", 3.2), ("evaluate", 4.2), pytest.param("train", 5.2, marks=pytest.mark.slow)]
)
def test_a_row_is_read_a_few_times(
    command: str, passes: float, run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For checksum, series, climatology, moments and free flow; of a longer file these take a part alone."""
    rows, read = [], Store.read

    def counted(store: Store, span: slice) -> Any:
        rows.append((span.stop - span.start) / len(store.seconds))
        return read(store, span)

    monkeypatch.setattr(Store, "read", counted)
    works(*([command, run] if command != "train" else ["train", "--data", data, *SMALL, "--run-dir", tmp_path / "a"]))
    assert sum(rows) < passes
