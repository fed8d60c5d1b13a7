"""A request that is wrong a million times costs one mistake, and one without an end costs the others nothing."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from socialx.core.errors import SocialxError
from socialx.serving import posted
from socialx.serving.endpoints import Service, make_app
from socialx.tasks.build import Experiment
from tests.commands import edited
from tests.serving.conftest import running_server

Request = dict[str, Any]
JSON, CSV = {"content-type": "application/json"}, {"content-type": "text/csv"}
MANY = 200_000


def refusal(experiment: Experiment, body: bytes, kind: str = "application/json") -> SocialxError:
    with pytest.raises(SocialxError) as caught:
        posted.read_issue(experiment, kind, body)
    return caught.value


# --- wrong many times -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["application/json", "text/csv"])
def test_more_values_than_a_day_holds_are_refused_unparsed(
    kind: str, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*_: object, **__: object) -> None:
        raise AssertionError("the body was parsed")

    monkeypatch.setattr(posted.json, "loads", parse)
    monkeypatch.setattr(posted.csv, "reader", parse)
    assert (error := refusal(experiment, b'{"times": [' + b'"",' * MANY, kind)).code == "posted.too-long"
    assert "288 rows of 4 sensors" in str(error)


def test_a_day_of_every_sensor_is_not_too_much(experiment: Experiment, client: TestClient) -> None:
    times = [str(np.datetime64("2012-05-03T09:20") + np.timedelta64(5 * k, "m")) for k in range(288)]
    readings = {vdid: [60.0] * 288 for vdid in experiment.data.sensors.ids}
    assert client.post("/forecast", json={"times": times, "readings": readings}).status_code == 200
    rows = [",".join([time, *["60"] * len(readings)]) for time in times]
    table = "\n".join([",".join(["time", *readings]), *rows])
    assert client.post("/forecast", content=table, headers=CSV).status_code == 200


def test_rows_of_another_length_are_refused_before_a_number_is_looked_at(
    experiment: Experiment, hour: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object, **__: object) -> None:
        raise AssertionError("numbers were looked at")

    monkeypatch.setattr(posted, "_validate", look)
    first = next(iter(hour["readings"]))
    wide = {**hour, "readings": {first: [""] * 1000}}
    assert f"{first} has 1000" in str(refusal(experiment, json.dumps(wide).encode()))
    assert "1000 rows" in str(refusal(experiment, json.dumps({**hour, "times": [""] * 1000}).encode()))


def test_a_body_of_wrong_numbers_costs_one_error(experiment: Experiment, hour: Request) -> None:
    """Of all sensors and of all rows, the first mistake alone becomes an error."""
    readings = dict.fromkeys(hour["readings"], ["fast"] * 12)
    for wrong in ({**hour, "readings": readings}, {**hour, "times": [None] * 12}):
        error = refusal(experiment, json.dumps(wrong).encode())
        assert isinstance(error.__context__, ValidationError)
        assert (error.__context__.error_count(), error.code) == (1, "posted.form")
        assert ".0: " in str(error)


# --- what one may take for another ----------------------------------------------------------------------------------


@pytest.mark.parametrize("twice", ["times", "readings", "sensor"])
def test_a_key_that_stands_twice_is_refused(twice: str, client: TestClient, hour: Request) -> None:
    text = json.dumps(hour)
    first = next(iter(hour["readings"]))
    key = first if twice == "sensor" else twice
    value = json.dumps(hour["readings"][first] if twice == "sensor" else hour[twice])
    body = text.replace(f'"{key}":', f'"{key}": {value}, "{key}":', 1)
    assert json.loads(body) == hour
    answer = client.post("/forecast", content=body, headers=JSON)
    assert answer.status_code == 422
    assert f"1 keys appear twice ({key})" in answer.json()["detail"]


def test_an_hour_that_the_clock_skips_is_refused(experiment: Experiment, hour: Request) -> None:
    """Los Angeles has no 02:00 to 02:55 on 2012-03-11, and a time with a zone is never there."""
    assert experiment.data.store.timezone == "America/Los_Angeles"
    times = [f"2012-03-11 02:{5 * k:02d}" for k in range(12)]
    assert (error := refusal(experiment, json.dumps({**hour, "times": times}).encode())).code == "time.clock-change"
    assert "America/Los_Angeles" in str(error)
    before = [f"2012-03-11 01:{5 * k:02d}" for k in range(12)]
    for times in (before, [f"2012-03-11T10:{5 * k:02d}Z" for k in range(12)]):
        posted.read_issue(experiment, "application/json", json.dumps({**hour, "times": times}).encode())


def test_no_answer_sends_a_client_to_the_host_that_it_named(client: TestClient) -> None:
    answer = client.get("/forecast/", headers={"host": "evil.example"}, follow_redirects=False)
    assert answer.status_code == 404
    assert "location" not in answer.headers


# --- sensors that a request leaves out ------------------------------------------------------------------------------


def test_a_sensor_without_an_earlier_reading_in_the_data_never_reported(experiment: Experiment, hour: Request) -> None:
    first = next(iter(hour["readings"]))
    times = [f"2001-01-01 07:{5 * k:02d}" for k in range(12)]
    body = json.dumps({"times": times, "readings": {first: [60.0] * 12}}).encode()
    lookback = posted.read_issue(experiment, "application/json", body)
    _, reported = lookback.issue.context.input_state(lookback.batch)
    assert reported.tolist() == [[True, False, False, False]]


# --- bodies without an end ------------------------------------------------------------------------------------------


@contextmanager
def half_bodies(url: str, count: int, length: int, sent: bytes = b"{") -> Iterator[None]:
    """So many open connections that have sent a part of their body."""
    address = httpx.URL(url)
    head = f"POST /forecast HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(count):
            each = stack.enter_context(socket.create_connection((address.host, address.port)))
            each.sendall(head.encode() + sent)
        yield


def test_bodies_without_an_end_take_no_place(service: Service, hour: Request) -> None:
    """Twice as many as there are places, from raw sockets to a real server."""
    service.worker.places, service.timeout_s = 8, 60
    with running_server(make_app(service)) as url, half_bodies(url, 16, 1000):
        assert httpx.get(f"{url}/health").status_code == 200
        assert (httpx.post(f"{url}/forecast", json=hour).status_code, service.worker.taken) == (200, 0)


def test_bodies_on_their_way_hold_no_more_than_the_queue(service: Service, hour: Request) -> None:
    service.worker.places, service.most_bytes = 2, 4096
    with running_server(make_app(service)) as url:
        with half_bodies(url, 3, 4000, b" " * 3999):
            while service.coming < 2 * 3999:
                assert httpx.get(f"{url}/health").status_code == 200
            assert httpx.post(f"{url}/forecast", content=b" " * 3000, headers=JSON).status_code == 429
        with suppress(TimeoutError):
            while service.coming:
                assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.post(f"{url}/forecast", json=hour).status_code == 200


def test_the_file_as_it_is_now_says_what_was_read_before(followed: Service, hour: Request) -> None:
    """A file that is followed was replaced: its readings count, and not those of the first one."""
    assert followed.served.latest
    first = next(iter(hour["readings"]))
    with edited(followed.served.latest.path, followed.served.latest.path.with_name("next.h5")) as file:
        file["data/features"][:, 1, 0] = 33
    followed.served.latest.path.with_name("next.h5").replace(followed.served.latest.path)
    request = {**hour, "readings": {first: hour["readings"][first]}}
    with TestClient(make_app(followed)) as client:
        client.portal.call(followed.served.latest.look, followed.worker.ask)
        assert client.post("/forecast", json=request).status_code == 200
    issue = posted.read_issue(followed.served.latest.experiment, "application/json", json.dumps(request).encode())
    assert issue.batch.last_observed[0, 1, 0] == 33
