"""A run takes the place of the one that is served: behind a link, without a lost request, or not at all."""

import asyncio
import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

import socialx as api
from socialx.data.calendar import next_times
from socialx.files.store.store import open_store
from socialx.serving.endpoints import Service, make_app, make_service
from socialx.serving.server import Runs
from socialx.settings.layers import ConfigLayers
from tests.commands import small_run
from tests.serving.test_latest import append


@pytest.fixture(scope="module")
def other(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second run of the same network and windows."""
    return small_run(data, tmp_path_factory.mktemp("other") / "night", "--seed", "1")


@pytest.fixture
def current(run: Path, tmp_path: Path) -> Path:
    """A link to the run that is served first."""
    (tmp_path / "current").symlink_to(run)
    return tmp_path / "current"


@pytest.fixture
def live(data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(data, tmp_path / "live.h5"))


def served(current: Path, live: Path, interval: float | None = None) -> Service:
    """As ``serve current --data live.h5 --follow`` makes it."""
    runs = Runs(current, ConfigLayers.from_call(None, {"data": live}), True, interval)
    service = make_service(runs.load(current), 64)
    service.follow, service.newer = True, runs.newer
    return service


def switch(current: Path, run: Path) -> None:
    """As a script does it: in one step."""
    current.with_name("next").symlink_to(run)
    current.with_name("next").replace(current)


def renewed(service: Service) -> Service:
    asyncio.run(service.renew())
    return service


def forecast_of(service: Service) -> dict[str, object]:
    with TestClient(make_app(service)) as client:
        found: dict[str, object] = client.get("/forecast/latest").json()
    return found


def test_the_answers_and_a_metric_have_the_sensors_that_are_likely_below(run: Path, live: Path) -> None:
    expected = api.predict(run, live, below=55)
    likely = [sensor for sensor in expected if expected[sensor].probability.max() > 0.5]
    assert 0 < len(likely) < len(expected.sensors)
    service = make_service(Runs(run, ConfigLayers.from_call(None, {"data": live}), True, None, below=55).load(run), 64)
    found, content = forecast_of(service), {**expected.as_dict(), "alerts": likely, "run": run.name}
    assert found == {**found, **content}
    assert f"socialx_alert_sensors {len(likely)}" in service.metrics.text().decode()


def test_the_run_behind_the_link_forecasts(current: Path, live: Path, run: Path, other: Path) -> None:
    service = served(current, live)
    for one in (run, run, other, run):
        if current.resolve() != one.resolve():
            switch(current, one)
        found = forecast_of(renewed(service))
        assert (found["run"], service.reason) == (one.name, "")
        assert found["forecast"] == api.predict(one, live).as_dict()["forecast"]


def test_a_training_into_the_same_folder_is_taken_once_it_is_whole(current: Path, live: Path, other: Path) -> None:
    service = served(current, live, interval=0.8)
    before, run = forecast_of(service), current.resolve()
    shutil.copy(other / "best.safetensors", run / "best.safetensors")  # its intervals are not yet calibrated
    assert forecast_of(renewed(service)) == before
    assert "the newer run: " in service.reason
    shutil.copy(other / "intervals.safetensors", run / "intervals.safetensors")
    assert forecast_of(renewed(service)) != before
    assert service.reason == ""


@pytest.mark.parametrize(
    ("damage", "word"), [("gone", "not a run folder"), ("half", "weights are unreadable"), ("other", "horizon")]
)
def test_a_run_that_cannot_forecast_changes_nothing(
    damage: str, word: str, current: Path, live: Path, run: Path, other: Path, data: Path, tmp_path: Path
) -> None:
    service = served(current, live)
    before = forecast_of(service)
    if damage == "other":
        bad = small_run(data, tmp_path / "shorter", "--horizon", "6")
    else:
        bad = Path(shutil.copytree(other, tmp_path / "bad"))
        weights = bad / "best.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
    switch(current, tmp_path / "nowhere" if damage == "gone" else bad)
    for _ in range(2):
        assert forecast_of(renewed(service)) == before
        assert word in service.reason
        assert str(tmp_path) not in service.reason
        with TestClient(make_app(service)) as client:
            answer = client.get("/ready")
            assert answer.status_code == 200
            assert word in answer.json()["reason"]
    switch(current, run)
    assert renewed(service).reason == ""
    switch(current, other)
    assert forecast_of(renewed(service))["run"] == other.name


def test_a_run_that_does_not_fit_is_loaded_once(
    current: Path, live: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, loaded = served(current, live), []
    load = Runs.load
    monkeypatch.setattr(Runs, "load", lambda self, folder: (loaded.append(folder), load(self, folder))[1])
    switch(current, small_run(data, tmp_path / "shorter", "--horizon", "6"))
    for _ in range(3):
        renewed(service)
    assert len(loaded) == 1
    os.utime(live)  # the file may have been the reason
    renewed(service)
    assert len(loaded) == 2


def test_no_request_is_ever_lost(current: Path, live: Path, run: Path, other: Path, hour: dict[str, object]) -> None:
    service, answers, ended = served(current, live), [], threading.Event()
    one, two = (api.predict(each, live).as_dict()["forecast"] for each in (run, other))
    with TestClient(make_app(service)) as client:

        def ask() -> None:
            while not ended.is_set():
                answer = client.post("/forecast", json=hour)
                answers.append((answer.status_code, answer.json().get("forecast")))

        clients = [threading.Thread(target=ask) for _ in range(3)]
        for each in clients:
            each.start()
        for place in range(6):
            switch(current, run if place % 2 else other)
            client.portal.call(service.renew)
        ended.set()
        for each in clients:
            each.join()
    assert {status for status, _ in answers} == {200}
    near = [
        [bool(np.allclose(found["avg_speed"], each["avg_speed"], rtol=1e-5)) for each in (one, two)]  # type: ignore[index]
        for _, found in answers
    ]
    assert all(any(each) for each in near)
    assert {each.index(True) for each in near} == {0, 1}


def test_the_share_of_readings_in_their_intervals_is_a_metric(current: Path, live: Path) -> None:
    service, store = served(current, live, interval=0.9), open_store(live)
    names, last, rng = store.sensors.ids, int(store.seconds[-1]), np.random.default_rng(0)
    times = [str(np.datetime64(int(each), "s")).replace("T", " ") for each in next_times(last, 5, 14)]
    readings, bands = rng.uniform(30, 65, (14, len(names))).round(1), []
    latest = service.served.latest
    assert latest is not None
    for time, row in zip(times, readings.tolist(), strict=True):
        found = api.predict(current, live, interval=0.5)
        assert found.lower is not None
        assert found.upper is not None
        bands.append((found.lower[0, ..., 0], found.upper[0, ..., 0]))
        assert latest.coverage is None or len(bands) > 12
        append(live, time, row)
        issued = latest.read()
        latest.keep(issued, [service.worker.forward(issue.batch) for issue in issued])
    inside = [
        (low <= readings[first : first + 12]) & (readings[first : first + 12] <= high)
        for first, (low, high) in enumerate(bands[:3])
    ]
    assert latest.coverage == pytest.approx(np.mean(inside))
    with TestClient(make_app(service)) as client:
        text = client.get("/metrics").text
    (share,) = re.findall("\nsocialx_interval_coverage_ratio (.*)\n", text)
    assert float(share) == pytest.approx(np.mean(inside))
    assert "socialx_interval_coverage_ratio" not in TestClient(make_app(served(current, live))).get("/metrics").text
