"""A browser at another origin may ask where that origin was named, and nowhere else; the own file without --data."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

import socialx as api
from socialx.core.errors import SettingsError
from socialx.serving.endpoints import Service, make_app
from tests.commands import edited, refuses, small_run
from tests.serving.test_server import started

ORIGIN, TOKEN = "https://dashboard.example:8443", "0123456789abcdef" * 2
PREFLIGHT = {"origin": ORIGIN, "access-control-request-method": "POST",
             "access-control-request-headers": "authorization, content-type"}  # fmt: skip


def test_a_named_origin_may_ask_with_the_token(service: Service, hour: dict[str, Any]) -> None:
    """The preflight carries no token, and the answers to it and to the request both name this origin alone."""
    service.origins, service.token = (ORIGIN,), TOKEN
    with TestClient(make_app(service)) as client:
        preflight = client.options("/forecast", headers=PREFLIGHT)
        assert preflight.status_code == 200
        allowed = preflight.headers["access-control-allow-headers"].lower().split(", ")
        assert {"authorization", "content-type"} <= set(allowed)
        for headers, status in (({}, 401), ({"authorization": f"Bearer {TOKEN}"}, 200)):
            answer = client.post("/forecast", json=hour, headers={"origin": ORIGIN, **headers})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, ORIGIN)
            assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
            assert "origin" in answer.headers["vary"].lower()
            assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origins", [(), (ORIGIN,)])
def test_no_other_origin_may_ask(origins: tuple[str, ...], service: Service) -> None:
    service.origins = origins
    with TestClient(make_app(service)) as client:
        for origin in ("https://evil.example", "null", f"{ORIGIN}.evil.example", ORIGIN.replace("https", "http")):
            assert client.options("/forecast", headers={**PREFLIGHT, "origin": origin}).status_code in (400, 405)
            answer = client.get("/sensors", headers={"origin": origin})
            assert "access-control-allow-origin" not in answer.headers
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("origin", ["*", "dashboard.example", "https://dashboard.example/", "https://a b", "null", ""])
def test_what_is_no_origin_is_refused(origin: str, run: Path) -> None:
    with refuses("serve.origin", SettingsError) as caught:
        api.serve(run, allow_origin=[origin])
    assert "allow_origin='https://" in caught.value.messages[0].advice()


@pytest.mark.slow
def test_without_data_the_end_of_the_own_file_is_shown(run: Path) -> None:
    with started(run, "--allow-origin", ORIGIN) as (_, address, line):
        assert line.rstrip().endswith("/forecast/latest")
        answer = httpx.get(f"{address}/forecast/latest", headers={"origin": ORIGIN}, timeout=60)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
        assert answer.json()["origin"] == ["2012-05-04 09:15:00"]


@pytest.mark.slow
def test_an_own_file_that_ends_without_readings_is_served_without_a_map(data: Path, tmp_path: Path) -> None:
    with edited(data, tmp_path / "own.h5") as file:
        file["data/features"][-12:] = 0
    with started(small_run(tmp_path / "own.h5", tmp_path / "run")) as (_, address, _line):
        assert httpx.get(f"{address}/forecast/latest", timeout=60).status_code == 404
        assert httpx.get(f"{address}/sensors", timeout=60).status_code == 200
