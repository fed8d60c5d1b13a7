"""A file in UTC with a night in which an hour comes twice: every door speaks the clock that people live by."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.core.errors import SettingsError, SocialxError
from socialx.data.calendar import WALL
from socialx.drawing.canvas import time_ticks
from socialx.files.store.store import open_store
from socialx.files.store.time_axis import Clock
from socialx.serving.latest import Latest, Served
from socialx.serving.posted import read_issue
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting
from tests.commands import edited, refuses, small_file, small_run, works

LA = "America/Los_Angeles"
END = np.datetime64("2012-11-04T09:30", "s").astype(np.int64)  # 01:30 for the second time
TWICE, NEVER, LAST = "2012-11-04 01:30", "2012-03-11 02:30", "2012-11-04 01:30:00-08:00"
TIMES = [f"2012-11-04 01:{minute}:00-08:00" for minute in range(35, 60, 5)]
TIMES += [f"2012-11-04 02:{minute:02}:00" for minute in range(0, 35, 5)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = small_file(tmp_path_factory.mktemp("night"), 800)
    with edited(path, path.with_name("utc.h5")) as file:
        metadata = file["metadata"]
        seconds = metadata["timestamps_epoch"][:]
        seconds += END - seconds[-1]
        metadata["timestamps_epoch"][:] = seconds
        metadata["timestamps"][:] = np.array([str(time) for time in seconds.astype("datetime64[s]")], "S19")
        metadata["timestamps"][:] = np.char.replace(metadata["timestamps"][:], b"T", b" ")
        metadata.attrs.update(timezone="UTC", local_zone=LA)
    return path.with_name("utc.h5")


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    return small_run(data)


@pytest.fixture(scope="module")
def forecast(run: Path) -> socialx.Forecast:
    return socialx.predict(run)


def told(text: str) -> None:
    """A page of people: the zone stands in it, and no time of UTC."""
    assert LA in text
    assert not re.search(r"\b(09:30|10:30|08:[0-5][05]:00)\b", text), text


def test_texts_tables_and_json(forecast: socialx.Forecast, run: Path) -> None:
    told(forecast.headline())
    assert f"forecast origin {LAST} ({LA})" in forecast.headline()
    assert list(forecast.table()[0])[1:3] == ["01:35-08:00", "01:40-08:00"]
    assert "02:00" in forecast.table()[0]
    found = forecast.as_dict()
    assert (found["timezone"], found["origin"]) == (LA, [LAST])
    assert found["times"][0] == [f"{time[:19]}-08:00" for time in TIMES]
    assert forecast.origin[0].astype(np.int64) == END  # an array has the times of the file
    told(works("predict", run).stdout)


def test_frames_and_files(forecast: socialx.Forecast, run: Path, tmp_path: Path) -> None:
    frame = forecast.to_frame()
    assert str(frame["origin"].dt.tz) == str(frame["time"].dt.tz) == LA
    assert (frame["origin"] == pd.Timestamp(END, unit="s", tz="UTC")).all()
    forecast.write(tmp_path / "f.csv")
    assert f"{LAST},{forecast.sensors[0]},{TIMES[0]}" in (tmp_path / "f.csv").read_text()
    forecast.write(tmp_path / "f.parquet")
    assert str(pd.read_parquet(tmp_path / "f.parquet")["time"].dt.tz) == LA


def test_forecasts_that_were_written_are_scored_alike(run: Path, tmp_path: Path) -> None:
    """With an offset through both hours, as frames, as arrays, and as an older file without offsets, in UTC."""
    every = socialx.predict(run, start="2012-11-03 20:00", every="5min")
    for name in ("f.csv", "f.parquet", "f.h5", "older.csv"):
        every.write(tmp_path / name)
    older = pd.read_csv(tmp_path / "older.csv", dtype=str)
    for name in ("origin", "time"):
        older[name] = pd.to_datetime(older[name], utc=True).dt.tz_localize(None).astype(str)
    older.to_csv(tmp_path / "older.csv", index=False)
    names = [str(tmp_path / name) for name in ("f.csv", "f.parquet", "f.h5", "older.csv")]
    scores = socialx.evaluate(names, run.parent / "utc.h5", start="2012-11-03 21:00")
    assert len({round(scores[name].overall().mae, 4) for name in names}) == 1
    assert scores.protocol.period is not None
    saved = tmp_path / "saved.parquet"
    socialx.evaluate(run, save_forecasts=saved)
    assert str(pd.read_parquet(saved)["origin"].dt.tz) == LA


@pytest.mark.slow
def test_pages_and_pictures(forecast: socialx.Forecast, run: Path, data: Path, tmp_path: Path) -> None:
    forecast.plot(tmp_path / "f.svg")
    drawn = (tmp_path / "f.svg").read_text()
    assert "01:30 on Sun 4 Nov" in drawn
    assert ">02:00<" in drawn
    _, texts, _ = time_ticks(int(END) - 3 * 3600, 5 * 3600, Clock("UTC", LA).local)
    assert [text[:5] for text in texts] == ["00:00", "01:00", "01:00", "02:00", "03:00"]
    explained = socialx.explain(run, plot=tmp_path / "e.svg")
    assert explained.times is not None
    assert explained.times[1] == LAST
    socialx.report([run], output=tmp_path / "r.html")
    found = socialx.inspect(data, plot=tmp_path / "i.svg")
    for page in ("f.svg", "e.svg", "r.html", "i.svg"):
        told((tmp_path / page).read_text())
    assert LAST in found.headline()
    assert LAST in works("inspect", data).stdout
    assert LAST in open_store(data).headline()


def test_the_server(forecast: socialx.Forecast, run: Path) -> None:
    experiment = open_forecasting(run, ConfigLayers(), split=False).experiment
    latest = Latest(experiment, "run", experiment.data.store.path)
    issued = latest.read()
    latest.keep(issued, [forecast.values for _ in issued])
    content = json.loads(latest.answer)
    assert (content["timezone"], content["origin"]) == (LA, [LAST])
    assert latest.curves is not None
    curve = json.loads(latest.curves.curve(forecast.sensors[0], 0))
    assert content["times"][0][0] in curve["times"]
    assert curve["earlier"]["origin"] == ["2012-11-04 01:30:00-07:00"]
    assert Served(experiment, "run").network()["local_zone"] == LA


ARGUMENTS = [("predict", "at"), ("predict", "start"), ("predict", "end"), ("evaluate", "start"), ("evaluate", "end")]
ARGUMENTS += [("explain", "start"), ("explain", "end"), ("report", "start"), ("report", "end")]


@pytest.mark.parametrize(("task", "argument"), ARGUMENTS)
def test_a_time_that_comes_twice_or_never_is_asked_by_each_argument(task: str, argument: str, run: Path) -> None:
    for time, says in ((TWICE, "twice"), (NEVER, "skipped")):
        with refuses("time.clock-change", SettingsError) as caught:
            getattr(socialx, task)([run] if task == "report" else run, **{argument: time})
        assert re.search(f"{says}.*{LA}", str(caught.value))
        assert f"{argument}=" in str(caught.value.messages[0].remedy) + str(caught.value)


def test_the_first_time_of_rows_without_dates(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((30, 3), 60.0))
    options: dict[str, Any] = {"freq": "5min", "without_positions": True, "overwrite": True, "timezone": LA}
    options["channel"] = "speed"
    with refuses("time.clock-change", SettingsError) as caught:
        socialx.convert("auto", tmp_path / "a.npy", tmp_path / "a.h5", first_time=NEVER, **options)
    assert re.match(f"first_time='{NEVER}' .* skipped ", str(caught.value))
    for time in ("2012-06-01 08:00", "2012-06-01 15:00 UTC", "2012-06-01 08:00 PDT", "1.6.2012 17:00 +02:00"):
        socialx.convert("auto", tmp_path / "a.npy", tmp_path / "a.h5", first_time=time, **options)
        assert open_store(tmp_path / "a.h5").timestamps[0] == b"2012-06-01 08:00:00"


def posted(experiment: Any, times: list[str]) -> np.ndarray:
    """The origin of a forecast from posted rows, in seconds of the file; some of the readings count."""
    readings = {experiment.data.sensors.ids[0]: [60.0] * len(times)}
    issue = read_issue(experiment, "application/json", json.dumps({"times": times, "readings": readings}).encode())
    assert issue.issue.context.input_state(issue.batch)[0][0, 0] >= 6
    return issue.issue.origins


@pytest.mark.parametrize("zoned", [False, True], ids=["wall", "offset"])
@pytest.mark.parametrize("first", ["2012-03-11T09:30", "2012-11-04T08:30"], ids=["forward", "back"])
@pytest.mark.parametrize("stored", ["UTC", LA])
def test_posted_rows_go_on_over_both_changes(stored: str, first: str, zoned: bool, run: Path) -> None:
    experiment = open_forecasting(run, ConfigLayers(), split=False).experiment
    if stored == LA:
        stores = {name: replace(store, timezone=LA, local_zone=None) for name, store in experiment.data.stores.items()}
        experiment = replace(experiment, data=replace(experiment.data, stores=stores, calendar=WALL))
    moments = pd.date_range(first, periods=12, freq="5min", tz="UTC").tz_convert(LA)
    times = [str(moment) if zoned else str(moment)[:19] for moment in moments]
    end = moments[-1].tz_convert(stored).tz_localize(None)
    assert posted(experiment, times) == np.datetime64(end, "s").astype(np.int64)
    with pytest.raises(SocialxError) as caught:
        posted(experiment, [*times[:5], *times[6:], str(moments[-1] + pd.Timedelta("5min"))[: len(times[0])]])
    assert caught.value.code in ("posted.step", "time.clock-change")


def test_posted_rows_that_are_all_in_the_second_hour_or_the_first_are_asked(run: Path) -> None:
    experiment = open_forecasting(run, ConfigLayers(), split=False).experiment
    with refuses("time.clock-change", SettingsError):
        posted(experiment, [f"2012-11-04 01:{minute:02}" for minute in range(0, 60, 5)])
