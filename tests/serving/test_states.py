"""Health, readiness, metrics, headers and the token; a model that fails, hangs or has too much to do."""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from socialx.core.batch import Batch
from socialx.core.errors import SettingsError
from socialx.serving.endpoints import Service, make_app
from socialx.serving.guard import BEARER, read_token
from tests.commands import refuses

Request = dict[str, Any]
TOKEN = "0123456789abcdef" * 2
PATHS = ("/", "/health", "/ready", "/metrics", "/sensors", "/forecast/latest", "/openapi.json", "/nothing")


@pytest.fixture
def held(service: Service) -> Iterator[threading.Event]:
    """The model waits until this is set."""
    free, forward = threading.Event(), service.worker.forward

    def slow(batch: Batch) -> np.ndarray:
        assert free.wait(60)
        return forward(batch)

    service.worker.forward = slow
    yield free
    free.set()


def samples(text: str) -> dict[str, float]:
    """The samples of a text of Prometheus, every line of which is one, or says a type or a meaning."""
    found, typed = {}, set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if kind := re.fullmatch(r"# TYPE (\w+) (counter|gauge|histogram)", line):
            assert kind[1] not in typed
            typed.add(kind[1])
            continue
        sample = re.fullmatch(r'(([a-z_]+)(?:\{\w+="[^"]*"(?:,\w+="[^"]*")*\})?) (\d+(?:\.\d+)?(?:e-?\d+)?)', line)
        assert sample, line
        assert sample[2] in typed or re.sub("_(bucket|sum|count)$", "", sample[2]) in typed
        assert sample[1] not in found
        found[sample[1]] = float(sample[3])
    return found


# --- what an operator sees ------------------------------------------------------------------------------------------


def test_the_network_says_what_a_request_needs_and_a_server_without_data_what_it_lacks(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/ready").json() == {"ready": True, "reason": "", "last_data": None, "adapted_before": None}
    answer = client.get("/forecast/latest")
    assert answer.status_code == 404
    assert "no lookback" in answer.json()["detail"]
    assert client.get("/forecast").status_code == 405
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404
    found = client.get("/sensors").json()
    assert (found["lookback"], found["horizon"], found["step_minutes"]) == (12, 12, 5)
    assert (found["feature"], found["unit"], found["timezone"]) == ("avg_speed", "mph", "America/Los_Angeles")
    sensors = service.served.experiment.data.sensors
    assert [each["id"] for each in found["sensors"]] == list(sensors.ids)
    assert [each["latitude"] for each in found["sensors"]] == sensors.latitude.tolist()
    monkeypatch.setitem(vars(sensors), "latitude", np.where(np.arange(4) == 1, np.nan, sensors.latitude))
    places = [(each["latitude"], each["longitude"]) for each in client.get("/sensors").json()["sensors"]]
    assert places[1] == (None, None)
    monkeypatch.setitem(vars(sensors), "road", ("A 7", "", "", ""))
    assert [each["road"] for each in client.get("/sensors").json()["sensors"]] == ["A 7", None, None, None]
    assert all(None not in place for place in (places[0], *places[2:]))


def test_the_counts_are_those_of_the_requests(client: TestClient, hour: Request) -> None:
    for _ in range(3):
        client.post("/forecast", json=hour)
    client.post("/forecast", json={})
    client.get("/nothing/at/all")
    client.get("/nothing/else")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.text)
    assert found['socialx_requests_total{path="/forecast",status="200"}'] == 3
    assert found['socialx_requests_total{path="/forecast",status="422"}'] == 1
    assert found['socialx_requests_total{path="other",status="404"}'] == 2
    assert found['socialx_request_seconds_bucket{le="+Inf",path="/forecast"}'] == 4
    assert found['socialx_request_seconds_count{path="/forecast"}'] == 4
    assert found["socialx_batch_size_count"] == found["socialx_batch_size_sum"] == 3
    assert found["socialx_queue_length"] == 0
    assert "socialx_latest_forecast_age_seconds" not in found


# --- who may ask ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_the_security_headers(path: str, client: TestClient) -> None:
    headers = client.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_a_token_is_needed_for_everything_that_holds_data(service: Service, hour: Request) -> None:
    service.token = TOKEN
    with TestClient(make_app(service)) as client:
        assert {path for path in PATHS if client.get(path).status_code != 401} == {"/", "/health", "/ready"}
        refused = client.post("/forecast", json=hour)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.headers["x-content-type-options"] == "nosniff"
        for given in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer", "Bearer \xe9"):
            answer = client.post("/forecast", json=hour, headers={"authorization": given.encode("latin-1")})
            assert answer.status_code == 401, given
        for given in (f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
            assert client.post("/forecast", json=hour, headers={"authorization": given}).status_code == 200
        assert client.get("/sensors", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert 'data-token="yes"' in client.get("/").text


def test_where_a_token_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    assert (read_token(path, {BEARER: "another, not read"}), read_token(None, {BEARER: TOKEN})) == (TOKEN, TOKEN)
    assert read_token(None, {}) is None
    for bad in ("", "short", "sixteen characters with spaces", "\u00e4" * 20):
        path.write_text(bad)
        with refuses("serve.token", SettingsError):
            read_token(path, {})
        with refuses("serve.token", SettingsError):
            read_token(None, {BEARER: bad})
    with refuses("serve.token-unreadable", SettingsError):
        read_token(tmp_path / "nothing", {})
    path.write_bytes(b"x" * 5000)
    with refuses("serve.token-unreadable", SettingsError):
        read_token(path, {})


# --- a model that is slow, hangs or fails ---------------------------------------------------------------------------


def asking(service: Service, hour: Request, count: int, free: threading.Event, before: int) -> list[httpx.Response]:
    """The answers to requests at the same time; the model is let go when so many have been answered."""

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(make_app(service))
        async with service.running(), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            waiting = [asyncio.create_task(client.post("/forecast", json=hour)) for _ in range(count)]
            while sum(task.done() for task in waiting) < before:
                await asyncio.sleep(0.01)
            full = await client.get("/metrics")
            assert samples(full.text)["socialx_queue_length"] == count - before
            free.set()
            return await asyncio.gather(*waiting)

    return asyncio.run(ask())


def test_overload_is_refused_and_no_request_is_lost(service: Service, hour: Request, held: threading.Event) -> None:
    """Twenty places and a hundred requests: twenty forecasts, and eighty that are told to come again."""
    service.worker.places, service.timeout_s = 20, 60
    answers = asking(service, hour, 100, held, before=80)
    assert Counter(answer.status_code for answer in answers) == {200: 20, 429: 80}
    assert {answer.headers.get("retry-after") for answer in answers if answer.status_code == 429} == {"1"}
    assert len({answer.content for answer in answers if answer.status_code == 200}) == 1
    answered = samples(service.metrics.text().decode())
    assert answered['socialx_requests_total{path="/forecast",status="200"}'] == 20
    assert (answered['socialx_requests_total{path="/forecast",status="429"}'], service.worker.taken) == (80, 0)
    assert not service.worker._waiting


def test_a_request_that_takes_too_long_is_given_up(service: Service, hour: Request, held: threading.Event) -> None:
    """It leaves nothing behind, /ready says that the model hangs, and the next request is answered."""
    service.timeout_s = 0.2
    with TestClient(make_app(service)) as client:
        assert [client.post("/forecast", json=hour).status_code for _ in range(2)] == [504, 504]
        assert client.get("/ready").status_code == 503
        found = client.get("/ready").json()
        assert "model" in found.pop("reason")
        assert (found, service.worker.taken) == ({"ready": False, "last_data": None, "adapted_before": None}, 0)
        assert not service.worker._waiting
        held.set()
        service.timeout_s = 60
        assert client.post("/forecast", json=hour).status_code == 200
        assert client.get("/ready").json()["ready"]


def test_a_model_that_fails_fails_those_who_asked_and_nobody_else(service: Service, hour: Request) -> None:
    forward = service.worker.forward

    def broken(batch: Batch) -> np.ndarray:
        raise RuntimeError("out of memory")

    service.worker.forward = broken
    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        answer = client.post("/forecast", json=hour)
        assert answer.status_code == 500
        assert "memory" not in answer.text
        service.worker.forward = forward
        assert client.post("/forecast", json=hour).status_code == 200
        assert client.get("/ready").json()["ready"]
    assert samples(service.metrics.text().decode())['socialx_requests_total{path="/forecast",status="500"}'] == 1


def test_a_part_that_has_stopped_is_told(service: Service) -> None:
    with TestClient(make_app(service)) as client:
        service.tasks[0].get_loop().call_soon_threadsafe(service.tasks[0].cancel)
        while not service.tasks[0].done():
            pass
        found = client.get("/ready").json()
        assert "has stopped" in found.pop("reason")
        assert found == {"ready": False, "last_data": None, "adapted_before": None}
