"""The forecast of a file that grows, is half written, vanishes or becomes another one."""

from __future__ import annotations

import asyncio
import fcntl
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
from socialx.serving.latest import Latest
from tests.data_files import small_store


def looked(service: Service) -> Latest:
    """After one look at the file."""

    async def look() -> None:
        async with service.running():
            await service.latest.look(service.worker.ask)

    asyncio.run(look())
    return service.latest


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
    path = followed.latest.path
    found = latest_of(followed)
    now = found.pop("now")
    assert found == {**api.predict(run, path).as_dict(), "run": "small"}
    store = open_store(path)
    readings = np.where(store.valid[-1], store.values[-1].astype(object), None)
    assert now == {"avg_speed": [readings.tolist()]}
    assert str(path.parent) not in str(found)


def test_an_appended_row_is_forecast_from(followed: Service, run: Path) -> None:
    before = latest_of(followed)
    latest = looked(followed)
    first = latest.made
    assert latest_of(followed) == before
    append(latest.path, "2012-05-04 09:20:00", [60.0, 0.0, np.nan, 50.5])
    latest = looked(followed)
    assert latest.made > first
    assert latest.reason == ""
    found = latest_of(followed)
    assert found["origin"] == ["2012-05-04 09:20:00"]
    assert found["now"] == {"avg_speed": [[60.0, None, None, 50.5]]}
    values = np.array(found["forecast"]["avg_speed"])
    np.testing.assert_allclose(values, api.predict(run, latest.path).values[..., 0], rtol=1e-6)


def test_the_server_looks_by_itself(followed: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.02)
    followed.follow = True
    with TestClient(make_app(followed)) as client:
        assert 'data-follow="yes"' in client.get("/").text
        assert client.get("/forecast/latest").json()["origin"] == ["2012-05-04 09:15:00"]
        append(followed.latest.path, "2012-05-04 09:20:00", [20.0, 30.0, 40.0, 50.0])
        while client.get("/forecast/latest").json()["origin"] != ["2012-05-04 09:20:00"]:
            pass
        text = client.get("/metrics").text
        age = float(text.split("\nsocialx_latest_forecast_age_seconds ")[1])
        assert 0 <= age < 100


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
    "another unit": (other_unit, "another kind of file"),
    "no reading": (without_readings, "no sensor has a reading"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_cannot_be_read_keeps_the_older_forecast(name: str, followed: Service) -> None:
    damage, word = DAMAGE[name]
    before = latest_of(followed)
    path = followed.latest.path
    whole = path.read_bytes()
    damage(path)
    latest = looked(followed)
    assert word in latest.reason
    with TestClient(make_app(followed)) as client:
        ready = client.get("/ready")
        assert ready.status_code == 200
        assert ready.json() == {"ready": True, "reason": latest.reason}
        assert latest.reason
        assert str(path.parent) not in latest.reason
        assert client.get("/forecast/latest").json() == before
    path.write_bytes(whole)
    assert looked(followed).reason == ""


def test_a_file_that_its_writer_has_locked_is_read_later(followed: Service) -> None:
    path = followed.latest.path
    append(path, "2012-05-04 09:20:00", [20.0, 30.0, 40.0, 50.0])
    with path.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert looked(followed).reason
    assert looked(followed).reason == ""
    assert latest_of(followed)["origin"] == ["2012-05-04 09:20:00"]


def test_what_cannot_be_served_is_refused_at_once(run: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no file to follow"):
        api.serve(run, follow=True)
    with pytest.raises(SocialxError, match="no such file"):
        api.serve(run, tmp_path / "nothing.h5")
    with pytest.raises(SocialxError, match="lacks"):
        api.serve(run, small_store(tmp_path / "other.h5"))
    for name in ("queue", "timeout", "max_body"):
        with pytest.raises(SettingsError, match="out of range"):
            api.serve(run, **{name: 0})
