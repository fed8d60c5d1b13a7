"""A file in UTC with the zone that people live by: what a run of wall times makes of it, and where the zone goes."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

import socialx
from socialx.data.calendar import shifts
from socialx.files.store.layout import read_text
from socialx.files.store.store import open_store
from socialx.files.store.time_axis import known_zone
from socialx.inspection.report import inspect
from socialx.settings.layers import ConfigLayers
from socialx.tasks.export import export_model
from socialx.tasks.opened import open_forecasting
from tests.commands import edited, refused, small_file, small_run, works
from tests.data_files import refusal

LA = "America/Los_Angeles"
ASKS = "--local-zone ZONE"


def zones(path: Path) -> tuple[str, str]:
    with h5py.File(path) as file:
        attributes = file["metadata"].attrs
        return read_text(attributes["timezone"]), read_text(attributes.get("local_zone", ""))


def moved(data: Path, path: Path, local_zone: str | None) -> Path:
    """A copy of a file of wall times in Los Angeles, in May, in UTC."""
    with edited(data, path) as file:
        metadata = file["metadata"]
        metadata["timestamps_epoch"][:] += 7 * 3600
        times = metadata["timestamps_epoch"][:].astype("datetime64[s]")
        metadata["timestamps"][:] = np.array([str(time).replace("T", " ") for time in times], "S19")
        metadata.attrs["timezone"] = "UTC"
        if local_zone:
            metadata.attrs["local_zone"] = local_zone
    return path


@pytest.fixture(scope="module")
def wall(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("wall"), 1560)


@pytest.fixture(scope="module")
def utc(wall: Path) -> Path:
    return moved(wall, wall.with_name("utc.h5"), LA)


@pytest.fixture(scope="module")
def run(wall: Path) -> Path:
    days = wall.with_name("days.csv")
    days.write_text("2012-05-07,Sunday\n2012-05-04,Saturday\n")
    return small_run(wall, "run", "--learning-rate", "0.01", "--holidays", days)


def test_a_file_in_utc_is_that_of_wall_times_where_the_zone_is_kept(run: Path, wall: Path, utc: Path) -> None:
    for asked in ({}, {"at": "2012-05-06 12:00"}):
        there, here = socialx.predict(run, **asked), socialx.predict(run, utc, **asked)
        np.testing.assert_array_equal(here.values, there.values)
        assert (here.times - there.times == np.timedelta64(7, "h")).all()
    by = "hour,weekday"
    there, here = (socialx.evaluate(run, data=data, by=by, baselines=True) for data in (wall, utc))
    assert (here.by, here[run].overall().mae) == (there.by, there[run].overall().mae)
    assert [row.key for row in here.by[str(run)]["weekday"]][-1] == "holiday"
    explained = [socialx.explain(run, data=data) for data in (wall, utc)]
    assert explained[0].by_hour == explained[1].by_hour
    drift = [socialx.evaluate(run, data=data, drift=True).drift[str(run)] for data in (wall, utc)]
    assert drift[0].days == drift[1].days


def test_training_on_either_is_the_same(run: Path, utc: Path) -> None:
    other = small_run(utc, "of_utc", "--learning-rate", "0.01", "--holidays", utc.with_name("days.csv"))
    assert socialx.load_run(other).epochs[0].validation_mae == socialx.load_run(run).epochs[0].validation_mae
    assert socialx.load_run(other).protocol.holidays == socialx.load_run(run).protocol.holidays
    assert f"times of {LA}" in works("evaluate", other).stdout


def test_another_clock_is_refused(run: Path, wall: Path, tmp_path: Path) -> None:
    without = moved(wall, tmp_path / "without.h5", None)
    assert (line := refused("predict", run, "--data", without)).code == "fit.other-clock"
    assert f"backfill {without} --local-zone {LA}" in line
    works("backfill", without, "--local-zone", LA)
    works("predict", run, "--data", without)
    paris = moved(wall, tmp_path / "paris.h5", "Europe/Paris")
    for command in ("predict", "evaluate"):
        assert (line := refused(command, run, "--data", paris)).code == "fit.other-clock"
        assert "Europe/Paris" in line
    small = small_run(moved(wall, tmp_path / "own.h5", LA), tmp_path / "copy", "--max-epochs", "2")
    with h5py.File(tmp_path / "own.h5", "r+") as file:
        file["metadata"].attrs["local_zone"] = "Europe/Paris"
    assert refused("train", "--resume", small, "--max-epochs", "3").code == "fit.other-clock"


@pytest.mark.slow
def test_a_file_in_utc_without_a_zone_says_so_where_days_and_hours_count(run: Path, wall: Path, tmp_path: Path) -> None:
    without = moved(wall, tmp_path / "without.h5", None)
    told = works("train", "--data", without, "--run-dir", tmp_path / "run", "--max-epochs=1", "--preset", "mlp-small")
    assert told.stderr.count(ASKS) == 1
    plain = small_run(without, tmp_path / "plain", "--no-climatology")
    assert ASKS not in works("evaluate", plain, "--by", "horizon").stderr
    assert works("evaluate", plain, "--by", "hour").stderr.count(ASKS) == 1
    assert works("evaluate", plain, "--by", "weekday", "--holidays", "US").stderr.count(ASKS) == 1
    with h5py.File(without, "r+") as file:
        file["metadata"].attrs["timezone"] = ""
    assert ASKS not in works("evaluate", plain, "--by", "hour").stderr
    assert ASKS not in works("evaluate", run, "--by", "hour").stderr


def table(path: Path, zone: str, begins: str, steps: int, offset: bool = False) -> Path:
    """Readings every half hour: at each hour of the zone the number of the hour and 20."""
    times = pd.date_range(begins, periods=steps, freq="30min", tz="UTC").tz_convert(zone)
    texts = [str(time) for time in (times if offset else times.tz_localize(None))]
    rows = [f"{text},{20 + hour},{40 + hour}\n" for text, hour in zip(texts, times.hour, strict=True)]
    path.write_text("time,a1,a2\n" + "".join(rows))
    return path


def converted(path: Path, csv: Path, *options: str) -> Path:
    meta = path.with_name("meta.csv")
    meta.write_text("sensor_id,latitude,longitude\na1,10,20\na2,10,20.1\n")
    works("convert", "auto", csv, "--meta-csv", meta, "--units", "mph", "--output-h5", path, *options)
    return path


CHANGES = [
    ("America/Los_Angeles", "2012-11-01 07:00", "2013-03-08"),
    ("Australia/Sydney", "2013-04-04 13:00", "2013-10-01"),
    ("Australia/Lord_Howe", "2013-04-04 13:00", "2013-10-01"),
    ("Pacific/Chatham", "2013-04-04 10:15", "2013-09-25"),
]


@pytest.mark.parametrize(("zone", "autumn", "spring"), CHANGES)
def test_the_zone_of_times_that_come_twice_is_kept(zone: str, autumn: str, spring: str, tmp_path: Path) -> None:
    path = converted(tmp_path / "city.h5", table(tmp_path / "city.csv", zone, autumn, 48 * 6), "--timezone", zone)
    later = table(tmp_path / "offsets.csv", zone, autumn, 48 * 6, True)
    offsets = converted(tmp_path / "offsets.h5", later, "--timezone", zone)
    assert zones(path) == zones(offsets) == ("UTC", zone)
    assert f"{zone}, stored in UTC" in works("inspect", path).stdout
    assert inspect(path).local_zone == zone
    works("append", path, table(tmp_path / "later.csv", zone, str(pd.Timestamp(autumn) + pd.Timedelta(days=6)), 48))
    assert zones(path) == ("UTC", zone)
    run = small_run(path, "run", "--lookback", "2", "--patch", "1", "--horizon", "2", "--batch-size", "8")
    saved = tmp_path / "all.parquet"
    found = socialx.evaluate(run, split="all", by="hour,weekday", save_forecasts=saved)
    frame = pd.read_parquet(saved)
    times = frame["time"]
    assert str(times.dt.tz) == zone
    assert (frame["truth"] - times.dt.hour).isin([20, 40]).all()
    error = (frame["forecast"] - frame["truth"]).abs()
    for row in found.by[str(run)]["hour"]:
        assert row.mae == pytest.approx(error[times.dt.hour == row.key].mean(), rel=1e-4)
    for row, (_, of_day) in zip(found.by[str(run)]["weekday"], error.groupby(times.dt.day_of_week), strict=False):
        assert row.count == len(of_day)
    experiment = open_forecasting(run, ConfigLayers(), split=False).experiment
    climatology = experiment.data.climatology.rolling().lookup(
        open_store(path).seconds[-48:], np.full(48, open_store(path).seconds[-1])
    )
    hours = pd.to_datetime(open_store(path).seconds[-48:], unit="s", utc=True).tz_convert(zone).hour
    middle = np.isin(hours, range(8, 17))  # nothing of midnight within four slots
    np.testing.assert_allclose(climatology.readings[0][middle, 0, 0], 20 + hours[middle], atol=1.5)


def test_backfill_adds_the_zone_and_refuses_what_has_two_readings(wall: Path, tmp_path: Path) -> None:
    path = moved(wall, tmp_path / "utc.h5", None)
    assert (line := refused("backfill", path, "--timezone", LA)).code == "backfill.in-utc"
    assert f"--local-zone {LA}" in line
    assert f"local zone {LA}" in works("backfill", path, "--local-zone", LA).stdout
    assert zones(path) == ("UTC", LA)
    assert "nothing is missing" in works("backfill", path, "--local-zone", LA).stdout
    assert (line := refused("backfill", path, "--local-zone", "Europe/Paris")).code == "backfill.contradicts"
    assert f"{LA}, not of Europe/Paris" in line
    assert refused("backfill", path, "--local-zone", "Europe/Pariss", code=2).code == "option.zone"
    assert (line := refused("backfill", wall, "--local-zone", "Europe/Paris")).code == "backfill.not-in-utc"
    assert LA in line
    with edited(path, tmp_path / "unknown.h5") as file:
        file["metadata"].attrs["timezone"] = ""
        del file["metadata"].attrs["local_zone"]
    line = refused("backfill", tmp_path / "unknown.h5", "--local-zone", LA)
    assert (line.code, "unknown zone" in line) == ("backfill.not-in-utc", True)
    works("backfill", tmp_path / "unknown.h5", "--timezone", "UTC", "--local-zone", LA)
    assert zones(tmp_path / "unknown.h5") == ("UTC", LA)


@pytest.mark.parametrize(("timezone", "local_zone"), [(LA, LA), ("", LA), ("UTC", "No/Where"), ("UTC", "../../etc")])
def test_a_zone_that_cannot_be_is_refused_where_days_count(
    timezone: str, local_zone: str, run: Path, utc: Path, tmp_path: Path
) -> None:
    with edited(utc, tmp_path / "odd.h5") as file:
        file["metadata"].attrs.update(timezone=timezone, local_zone=local_zone)
    assert (error := refused("predict", run, "--data", tmp_path / "odd.h5")).code == "store.local-zone"
    assert repr(local_zone) in error
    works("inspect", tmp_path / "odd.h5")


def test_a_frame_and_a_table_have_the_zone_of_the_run(wall: Path, utc: Path, tmp_path: Path) -> None:
    run, store = small_run(utc, tmp_path / "run"), open_store(wall)
    frame = pd.DataFrame(store.values, pd.to_datetime(store.seconds, unit="s"), list(store.sensors.ids))
    frame = frame.where(store.valid).iloc[-400:]
    told: list[Any] = []
    with_zone = socialx.predict(run, frame.tz_localize(LA), progress=told.append)
    in_utc = socialx.predict(run, frame.tz_localize(LA).tz_convert("UTC"))
    assert refusal(lambda: socialx.predict(run, frame)).code == "frame.zone-missing"
    np.testing.assert_array_equal(with_zone.values, in_utc.values)
    assert not [each for each in told if "in UTC" in str(each)]
    csv = tmp_path / "table.csv"
    frame.to_csv(csv, index_label="time")
    meta = tmp_path / "meta.csv"
    places = zip(store.sensors.ids, store.sensors.latitude, store.sensors.longitude, strict=True)
    meta.write_text("sensor_id,latitude,longitude\n" + "".join(f"{a},{b},{c}\n" for a, b, c in places))
    of_table = socialx.predict(run, csv, meta_csv=meta, units="mph", timezone=LA)
    np.testing.assert_allclose(of_table.values, with_zone.values, rtol=1e-5)


@pytest.fixture
def experiment(run: Path, utc: Path) -> Any:
    return open_forecasting(run, ConfigLayers.from_call(None, {"data": utc}), split=False).experiment


def test_an_export_has_the_clock_for_years(experiment: Any, run: Path, utc: Path) -> None:
    data, zone = experiment.data, known_zone(LA)
    alone, year = export_model(experiment), 366 * 86_400
    for moment in ("2012-03-01", "2012-05-07 06:00", "2012-11-04 08:00", "2012-11-04 10:00", "2020-03-08 11:00"):
        issued = np.array([moment], "datetime64[s]").astype(np.int64) + 300 * np.arange(0, 80, 7)
        batch = alone.batch(np.full((len(issued), 12, 4, 1), 60.0), issued)
        times = issued[:, None] + 300 * np.arange(-11, 13)
        if moment > "2012-03-10":  # the clock before the file is that of its first day
            slot, weekday = data.calendar.time_features(times, 5)
            assert (batch.time_of_day.tolist(), batch.day_of_week.tolist()) == (slot.tolist(), weekday.tolist())
            assert torch.equal(batch.time_of_day, torch.from_numpy((times + shifts(zone, times)) % 86_400 // 300))
    last = int(data.store.seconds.max()) + 19 * year
    assert (
        alone.batch(np.zeros((1, 12, 4, 1)), [last]).time_of_day.tolist()
        == data.calendar.time_features(last + 300 * np.arange(-11, 13)[None], 5)[0].tolist()
    )


def test_a_server_tells_the_zone_and_refuses_a_file_of_another(experiment: Any, wall: Path) -> None:
    from socialx.serving.latest import Latest, Served

    assert Served(experiment, "run").network()["local_zone"] == LA
    path = wall.with_name("follow.h5")
    path.write_bytes(experiment.data.store.path.read_bytes())
    latest = Latest(experiment, "run", path)
    latest.read()
    with h5py.File(path, "r+") as file:
        file["metadata"].attrs["local_zone"] = "Europe/Paris"
    assert refusal(latest.read, "local_zone", f"Europe/Paris, not {LA}").code == "serve.other-file"


def test_a_server_goes_on_where_an_hour_made_a_file_of_wall_times_one_in_utc(
    run: Path, wall: Path, utc: Path, tmp_path: Path
) -> None:
    from socialx.serving.latest import Latest

    path = tmp_path / "follow.h5"
    path.write_bytes(wall.read_bytes())
    experiment = open_forecasting(run, ConfigLayers.from_call(None, {"data": path}), split=False).experiment
    latest, batches = Latest(experiment, "run", path), []
    for file in (wall, utc):
        path.write_bytes(file.read_bytes())
        issued = latest.read()
        latest.keep(issued, [np.zeros((1, 12, 4, 1), np.float32) for _ in issued])
        batches.append(issued[0].batch)
    assert batches[0].origin != batches[1].origin  # the same moment by two clocks
    for before, after in zip(*(batch._replace(origin=None) for batch in batches), strict=True):
        assert before is None or torch.equal(before, after)
