"""A forecast over HTTP is the forecast of predict; whatever else is sent is refused in one line."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import socialx as api
from socialx.serving.endpoints import Service, make_app, make_service
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting
from tests.commands import edited, keep_rows
from tests.serving.conftest import request_of

Request = dict[str, Any]
JSON, CSV = {"content-type": "application/json"}, {"content-type": "text/csv; charset=utf-8"}


def only(data: Path, path: Path, rows: slice, **columns: float) -> Path:
    """A copy of the file with these rows; s1=0 replaces the readings of the second sensor."""
    with edited(data, path) as file:
        keep_rows(file, rows)
        for column, value in columns.items():
            file["data/features"][:, int(column.removeprefix("s")), 0] = value
    return path


def as_csv(request: Request) -> str:
    ids, columns = list(request["readings"]), zip(*request["readings"].values(), strict=True)
    rows = [f"{time},{','.join(map(str, row))}" for time, row in zip(request["times"], columns, strict=True)]
    return "\n".join([f"time,{','.join(ids)}", *rows, ""])


def expected(run: Path, path: Path) -> dict[str, Any]:
    """What predict gives for a file, under the name that the server gives the run."""
    return {**api.predict(run, path).as_dict(), "run": "small"}


def test_json_and_csv_give_the_forecast_of_predict(
    run: Path, data: Path, client: TestClient, hour: Request, tmp_path: Path
) -> None:
    """The same rows alone in a file: to the bit."""
    wanted = expected(run, only(data, tmp_path / "hour.h5", slice(-12, None)))
    answer = client.post("/forecast", json=hour)
    assert (answer.status_code, answer.json()) == (200, wanted)
    assert client.post("/forecast", content=as_csv(hour), headers=CSV).json() == wanted
    assert np.array(wanted["forecast"]["avg_speed"]).shape == (1, 12, 4)


def test_more_rows_tell_what_was_read_before(run: Path, data: Path, client: TestClient, tmp_path: Path) -> None:
    """A sensor without a reading in the last hour is forecast from what it read before that."""
    request, path = request_of(data, slice(-40, None)), only(data, tmp_path / "rows.h5", slice(-40, None))
    first = next(iter(request["readings"]))
    request["readings"][first][-12:] = [None] * 12
    with h5py.File(path, "r+") as file:
        file["data/features"][-12:, 0, 0] = 0
    answer = client.post("/forecast", json=request).json()
    assert (answer, answer["input_status"][0][0]) == (expected(run, path), "missing")


def test_null_and_sensors_that_are_not_named_are_missing(
    run: Path, data: Path, client: TestClient, hour: Request, tmp_path: Path
) -> None:
    """They go on from what they read before, as in a file with the same rows."""
    path = tmp_path / "same.h5"
    with edited(data, path) as file:
        file["data/features"][-12:, 1:3, 0] = 0
    wanted = expected(run, path)
    first, second, third, fourth = hour["readings"]
    kept = {first: hour["readings"][first], fourth: hour["readings"][fourth]}
    nulls = {**kept, second: [None] * 12, third: [None] * 12}
    for readings in (kept, nulls):
        assert client.post("/forecast", json={**hour, "readings": readings}).json() == wanted
    assert wanted["input_status"][0][1:3] == ["missing", "missing"]
    empty = as_csv({**hour, "readings": nulls}).replace("None", "")
    assert client.post("/forecast", content="\ufeff" + empty, headers=CSV).json() == wanted


def test_a_time_with_a_zone_is_moved_into_that_of_the_run(client: TestClient, hour: Request) -> None:
    """07:15 in Los Angeles is 14:15 UTC in summer."""
    moved = [f"{np.datetime64(time.replace(' ', 'T')) + np.timedelta64(7, 'h')}Z" for time in hour["times"]]
    assert client.post("/forecast", json={**hour, "times": moved}).json() == client.post("/forecast", json=hour).json()


def test_requests_that_wait_are_forecast_together(service: Service, data: Path) -> None:
    """Each of them gets its own forecast, and the model runs less often than it is asked."""
    requests = [request_of(data, slice(start, start + 12)) for start in range(300, 340)]
    service.worker.most = 16

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(make_app(service))
        async with service.running(), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await asyncio.gather(*(client.post("/forecast", json=request) for request in requests))

    together = asyncio.run(ask())
    assert {answer.status_code for answer in together} == {200}
    value = service.metrics.registry.get_sample_value
    assert value("socialx_batch_size_sum") == len(requests)
    assert (value("socialx_batch_size_count") or 0) < len(requests)
    with TestClient(make_app(make_service(service.served, 1))) as client:
        for answer, request in zip(together, requests, strict=True):
            alone = client.post("/forecast", json=request).json()
            values, own = (np.array(each["forecast"]["avg_speed"]) for each in (answer.json(), alone))
            np.testing.assert_allclose(values, own, rtol=1e-6, atol=1e-5)
            assert answer.json()["origin"] == alone["origin"] == [request["times"][-1]]


def change(**values: Any) -> Callable[[Request], Request]:
    return lambda hour: {**hour, **values}


def first_row(row: list[Any]) -> Callable[[Request], Request]:
    return lambda hour: {**hour, "readings": {**hour["readings"], next(iter(hour["readings"])): row}}


REFUSED = {
    "unknown ids": (change(readings={"nobody": [1.0] * 12, "no_one": [2.0] * 12}), "nobody, no_one"),
    "no reading at all": (change(readings={}), "all sensors lack a reading"),
    "too few times": (lambda hour: {**hour, "times": hour["times"][1:]}, "11 rows"),
    "a gap": (lambda hour: {**hour, "times": [*hour["times"][:6], *hour["times"][7:], "2012-05-04 09:20:00"]}, "->"),
    "another order": (lambda hour: {**hour, "times": hour["times"][::-1]}, "11 steps differ from 5 minutes"),
    "too many times": (change(times=["2012-05-04 09:15"] * 300), "300 rows"),
    "no times": (change(times=["yesterday"] * 12), "not a time"),
    "times beyond the calendar": (change(times=["0001-01-01T00:00:00+14:00"] * 12), "not a time"),
    "a long text": (change(times=["x" * 10_000] * 12), "40 characters"),
    "numbers as times": (change(times=[1.5] * 12), "times.0"),
    "too few numbers": (first_row([1.0] * 11), "has 11"),
    "texts as numbers": (first_row(["55"] * 12), "valid number"),
    "booleans as numbers": (first_row([True] * 12), "valid number"),
    "larger than float32": (first_row([1e300] * 12), "too large"),
    "a speed below 0": (first_row([60.0] * 11 + [-5.0]), "avg_speed below 0"),
    "a speed that no road has": (first_row([60.0] * 11 + [700.0]), "avg_speed above 124.3 mph"),
    "another key": (change(more=1), "more"),
    "a list": (lambda hour: [hour], "body"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_in_one_line(name: str, client: TestClient, hour: Request) -> None:
    changed, word = REFUSED[name]
    answer = client.post("/forecast", json=changed(hour))
    assert answer.status_code == 422
    (detail,) = answer.json().values()
    assert word in detail
    assert "\n" not in detail
    assert len(detail) < 700


def test_a_forecast_that_overflows_fails(client: TestClient, hour: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.files.store.quantities.LARGEST_SPEED", {})  # as for a feature that has no limit
    answer = client.post("/forecast", json=first_row([3e38] * 12)(hour))
    assert (answer.status_code, list(answer.json())) == (422, ["detail"])
    assert "large numbers overflows" in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[" * 100_000, b'{"times": NaN}', b'{"times": 1e999}', b"\xff\xfe",
        b'{"times": "\\ud800"}',
        b'{"times": [], "readings": {"773869": [NaN]}}', b'{"times": [], "readings": {"773869": [Infinity]}}',
        b'{"times": [], "readings": {"773869": [' + b"9" * 5000 + b"]}}"
    ]
)  # fmt: skip
def test_what_is_no_json_of_plain_numbers_is_refused(body: bytes, client: TestClient) -> None:
    answer = client.post("/forecast", content=body, headers=JSON)
    assert answer.status_code == 422
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        ("", "header is missing"),
        ("\n\n", "0 rows"),
        ("time,773869\n", "0 rows"),
        ("time,773869\n2012-05-04 09:15\n", "1 rows differ from 2"),
        ("time,773869,773869\n", "twice"),
        ('time,"773869\n', "not CSV"),
        ("time,769402\n" + "2012-05-04 09:15,fast\n" * 12, "valid number"),
        ("time,769402\n" + "2012-05-04 09:15,inf\n" * 12, "finite"),
        ("time,769402\n" + "2012-05-04 09:15,1\n" * 12, "from 5 minutes"),
        ("time;773869\n2012-05-04 09:15;1\n", "rows"),
        ("time,773869\n\0,1\n", ""),
        (b"time,\xff\n", "UTF-8"),
        ("time\n" + "x\n" * 10_000, "289 rows"),  # it is read to the row that is one too many
        ("time,769402\n" + "2012-05-04 09:15,1_0\n" * 12, r"12 cells .*\(1_0, "),
    ],
)
def test_what_is_no_table_is_refused(cells: str | bytes, word: str, client: TestClient) -> None:
    answer = client.post("/forecast", content=cells, headers=CSV)
    assert answer.status_code == 422
    assert re.search(word, answer.json()["detail"])


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/xml", ""])
def test_other_content_types_are_refused(kind: str, client: TestClient) -> None:
    """A form with file names in it is one of them."""
    assert client.post("/forecast", content=b"{}", headers={"content-type": kind}).status_code == 415


def test_a_long_body_is_refused_before_all_of_it_is_read(service: Service, hour: Request) -> None:
    service.most_bytes, read = 1000, 0

    async def parts() -> Any:
        nonlocal read
        for _ in range(1000):
            read += 100
            yield b" " * 100

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(service))
        async with service.running(), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/forecast", content=parts(), headers=JSON)

    answer = asyncio.run(ask())
    assert answer.status_code == 413
    assert "1,000 bytes" in answer.json()["detail"]
    assert read <= 2000
    with TestClient(make_app(service)) as client:
        assert client.post("/forecast", json=hour).status_code == 200


def test_a_run_that_reads_several_features_takes_no_request(
    service: Service, hour: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = service.served.experiment.data.stores
    monkeypatch.setitem(stores, "flow", stores["avg_speed"])
    with TestClient(make_app(service)) as client:
        answer = client.post("/forecast", json=hour)
    assert answer.status_code == 422
    assert "avg_speed, flow" in answer.json()["detail"]


NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 80)


@given(rows=st.lists(st.lists(NUMBERS, min_size=12, max_size=12), max_size=4))
@settings(max_examples=60)
def test_any_numbers_are_answered_with_numbers_or_refused(
    client_of_all: TestClient, hour: Request, rows: list[list[float | None]]
) -> None:
    readings = dict(zip(hour["readings"], rows, strict=False))
    answer = client_of_all.post("/forecast", json={**hour, "readings": readings})
    assert answer.status_code in (200, 422)
    content = json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    if answer.status_code == 200:
        values = np.array(content["forecast"]["avg_speed"], np.float64)
        assert np.isfinite(values).all()
        assert (values >= 0).all()


def test_intervals_are_those_of_predict(run: Path, data: Path, service: Service, hour: Request, tmp_path: Path) -> None:
    path = only(data, tmp_path / "hour.h5", slice(-12, None))
    wanted = {**api.predict(run, path, interval=0.8).as_dict(), "run": "small"}
    opened = open_forecasting(run, ConfigLayers(), split=False)
    service.served.band = opened.band(0.8, int(service.served.experiment.data.store.seconds[-1]))
    with TestClient(make_app(service)) as client:
        found = client.post("/forecast", json=hour).json()
    assert found["interval"] == 0.8
    for name in ("forecast", "lower", "upper"):
        np.testing.assert_allclose(found[name]["avg_speed"], wanted[name]["avg_speed"], rtol=1e-6, atol=1e-5)
