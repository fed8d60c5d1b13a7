"""The forecast of a file that grows, is half written, vanishes or becomes another one."""

import asyncio
import fcntl
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from starlette.testclient import TestClient

import socialx as api
from socialx.core.errors import SettingsError, SocialxError
from socialx.files.store.store import open_store
from socialx.serving import endpoints as module
from socialx.serving.endpoints import Service, make_app
from socialx.serving.latest import Alerts, Latest
from tests.data_files import small_store


def looked(service: Service) -> Latest:
    """After one look at the file."""

    async def look() -> None:
        async with service.running():
            await service.served.latest.look(service.worker.ask)

    asyncio.run(look())
    return service.served.latest


def latest_of(service: Service) -> dict[str, Any]:
    with TestClient(make_app(service)) as client:
        answer = client.get("/forecast/latest")
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found


def append(path: Path, time: str, values: list[float]) -> None:
    with h5py.File(path, "r+") as file:
        for name in ("data/features", "metadata/timestamps", "metadata/timestamps_epoch"):
            longer = np.concatenate([file[name][:], file[name][-1:]])
            del file[name]
            file[name] = longer
        file["metadata/timestamps"][-1] = time.encode()
        file["data/features"][-1, :, 0] = values


def test_it_is_the_forecast_of_predict_with_the_readings_of_now(followed: Service, run: Path) -> None:
    path, found = followed.served.latest.path, latest_of(followed)
    now = found.pop("last_observed")
    assert found == {**api.predict(run, path).as_dict(), "run": "small"}
    store = open_store(path)
    readings = np.where(store.valid[-1], store.values[-1].astype(object), None)
    assert now == {"avg_speed": [readings.tolist()]}
    assert str(path.parent) not in str(found)


def test_an_appended_row_is_forecast_from(followed: Service, run: Path) -> None:
    before, latest = latest_of(followed), looked(followed)
    first = latest.made
    assert latest_of(followed) == before
    append(latest.path, "2012-05-04 09:20:00", [60.0, 0.0, np.nan, 50.5])
    latest = looked(followed)
    assert latest.made > first
    assert latest.reason == ""
    found = latest_of(followed)
    assert found["origin"] == ["2012-05-04 09:20:00"]
    assert found["last_observed"] == {"avg_speed": [[60.0, None, None, 50.5]]}
    values = np.array(found["forecast"]["avg_speed"])
    np.testing.assert_allclose(values, api.predict(run, latest.path).values[..., 0], rtol=1e-6)


def test_the_server_looks_by_itself(followed: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.02)
    followed.follow = True
    with TestClient(make_app(followed)) as client:
        assert 'data-follow="yes"' in client.get("/").text
        assert client.get("/forecast/latest").json()["origin"] == ["2012-05-04 09:15:00"]
        append(followed.served.latest.path, "2012-05-04 09:20:00", [20.0, 30.0, 40.0, 50.0])
        while client.get("/forecast/latest").json()["origin"] != ["2012-05-04 09:20:00"]:
            pass
        text = client.get("/metrics").text
        age, of_data = (
            float(re.findall(f"\nsocialx_{name}_age_seconds (.*)", text)[0])
            for name in ("latest_forecast", "last_data")
        )
        assert 0 <= age < 100
        assert of_data > 14 * 365 * 86_400


@pytest.mark.parametrize(
    ("age_s", "words"), [(0, "0 minutes"), (15 * 60, "15 minutes"), (16 * 60, "16 minutes"), (5 * 86_400, "5 days")]
)
def test_ready_says_the_age_of_data(age_s: int, words: str, followed: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late is what is older than three steps; a file without a zone is given a day more."""
    monkeypatch.setattr("socialx.serving.latest.age_seconds", lambda zone, second: age_s)
    late = "the last row is older than 15 minutes" if age_s > 15 * 60 else ""
    with TestClient(make_app(followed)) as client:
        answer = client.get("/ready").json()
        assert answer == {"ready": True, "reason": late, "last_data": f"{words} ago", "adapted_before": None}
    monkeypatch.setitem(vars(followed.served.latest.experiment.data.store), "timezone", None)
    assert followed.served.latest.age_s == max(0, age_s - 86_400)


def test_the_curve_of_a_sensor_is_what_was_read_forecast_and_usual(followed: Service, run: Path) -> None:
    path, sensor = followed.served.latest.path, followed.served.experiment.data.sensors.ids[1]
    with TestClient(make_app(followed)) as client:
        curve = client.get("/curve", params={"sensor": sensor}).json()
        assert client.get("/curve", params={"sensor": "nobody"}).status_code == 404
        short = client.get("/forecast/latest", params={"short": True}).json()
    expected = {name: api.predict(run, path, at=at) for name, at in (("latest", None), ("earlier", curve["times"][35]))}
    for name, forecast in expected.items():
        assert curve[name]["origin"] == forecast.as_dict()["origin"]
        np.testing.assert_allclose(curve[name]["forecast"]["avg_speed"], forecast.values[:, :, 1:2, 0], rtol=1e-5)
    store = open_store(path)
    read = np.where(store.valid[-48:, 1], store.values[-48:, 1], np.nan)
    np.testing.assert_allclose(np.array(curve["observed"], float), [*read, *[np.nan] * 12], atol=1e-3)
    assert (np.array(curve["usual"], float) > store.values[:, 1][store.valid[:, 1]].min()).all()
    assert np.abs(np.array(short["forecast"]["avg_speed"]) - expected["latest"].values[..., 0]).max() < 0.0501


def half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def other_network(path: Path) -> None:
    path.unlink()
    small_store(path)


def other_unit(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["metadata/units"][()] = b'{"avg_speed": "km/h"}'


def without_readings(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["data/features"][-12:, :, 0] = 0


DAMAGE = {
    "half written": (half, ""),
    "empty": (lambda path: path.write_bytes(b""), "empty"),
    "gone": (Path.unlink, "No such file"),
    "another network": (other_network, "lacks"),
    "another unit": (other_unit, "another kind"),
    "no reading": (without_readings, "hold no observation"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_cannot_be_read_keeps_the_older_forecast(name: str, followed: Service) -> None:
    damage, word = DAMAGE[name]
    before, path = latest_of(followed), followed.served.latest.path
    whole = path.read_bytes()
    damage(path)
    latest = looked(followed)
    assert word in latest.reason
    with TestClient(make_app(followed)) as client:
        ready = client.get("/ready")
        assert ready.status_code == 200
        assert ready.json()["ready"]
        assert re.fullmatch(f"{re.escape(latest.reason)}; .* 15 minutes", ready.json()["reason"])
        assert latest.reason
        assert str(path.parent) not in latest.reason
        assert client.get("/forecast/latest").json() == before
    path.write_bytes(whole)
    assert looked(followed).reason == ""


def test_a_file_that_its_writer_has_locked_is_read_later(followed: Service) -> None:
    path = followed.served.latest.path
    append(path, "2012-05-04 09:20:00", [20.0, 30.0, 40.0, 50.0])
    with path.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert looked(followed).reason
    assert (looked(followed).reason, latest_of(followed)["origin"]) == ("", ["2012-05-04 09:20:00"])


def test_what_cannot_be_served_is_refused_at_once(run: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs a file"):
        api.serve(run, follow=True)
    with pytest.raises(SocialxError, match="no such file"):
        api.serve(run, tmp_path / "nothing.h5")
    with pytest.raises(SocialxError, match="lacks"):
        api.serve(run, small_store(tmp_path / "other.h5"))
    for name in ("queue", "timeout", "max_body"):
        with pytest.raises(SettingsError, match="out of range"):
            api.serve(run, **{name: 0})


SAID = {"cat >> events": "", "exit 3": "status 3", "sleep 9 & sleep 9": "no end", "": "denied"}  # of a program


@pytest.mark.parametrize("script", SAID)
def test_an_alert_program_is_started_once_until_the_probability_was_low(
    script: str, followed: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 0.6 and, after 0.2, at 0.8; 0.4 is neither a beginning nor an end.  A failure is counted, and said once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("socialx.serving.latest.PROGRAM_S", 0.1 if "sleep" in script else 60)
    Path("alert").write_text(f"#!/bin/sh\n{script}\n")
    Path("alert").chmod(0o755)
    latest, results, said = followed.served.latest, [], []
    alerts = Alerts(tmp_path / (script and "alert"), results.append, lambda event: said.append(event.message.problem))

    async def update() -> None:
        for highest in (0.4, 0.6, 0.4, 0.9, 0.2, 0.8):
            probability = np.zeros(latest.curves.latest.shape, np.float32)
            probability[0, 3, 1] = highest
            alerts.update(latest, replace(latest.curves.latest, below=30.0, probability=probability))
            await asyncio.gather(*alerts.tasks)

    asyncio.run(update())
    assert results == ["failed" if SAID[script] else "ok"] * 2
    assert [SAID[script] in reason for reason in said] == [True] * bool(SAID[script])
    if not SAID[script]:
        first, second = map(json.loads, Path("events").read_text().splitlines())
        expected = {"sensor": latest.experiment.data.sensors.ids[1], "time": "2012-05-04 09:35:00-07:00", "below": 30}
        assert (first | expected, first["probability_below"]) == (first, 0.6)
        assert first | {"probability_below": 0.8} == second
