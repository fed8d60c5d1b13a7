"""One small run for all tests of the server, in memory once."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from socialx.files.store.store import open_store
from socialx.serving.endpoints import Service, make_app, make_service
from socialx.serving.latest import Served
from socialx.settings.layers import ConfigLayers
from socialx.tasks.build import Experiment
from socialx.tasks.opened import open_forecasting

ROWS = 12


@pytest.fixture(scope="session")
def experiment(trained: Path) -> Experiment:
    return open_forecasting(trained, ConfigLayers(), split=False).experiment


@pytest.fixture
def service(experiment: Experiment) -> Service:
    """Without a data file; a test may change its limits before it makes the app."""
    return make_service(Served(experiment, "small"), 64)


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(make_app(service)) as made:
        yield made


@pytest.fixture
def followed(experiment: Experiment, data: Path, tmp_path: Path) -> Service:
    """With a data file of its own, looked at by hand."""
    path = tmp_path / "live.h5"
    path.write_bytes(data.read_bytes())
    stores = {name: replace(store, path=path) for name, store in experiment.data.stores.items()}
    served = Served(replace(experiment, data=replace(experiment.data, stores=stores)), "small")
    served.forecast_from_data()
    return make_service(served, 64)


@pytest.fixture(scope="session")
def hour(data: Path) -> dict[str, object]:
    """The last twelve rows of the file as a request; its zeros are missing readings."""
    return request_of(data, slice(-ROWS, None))


def request_of(data: Path, rows: slice) -> dict[str, object]:
    store = open_store(data)
    times = [time.decode() for time in store.timestamps[rows]]
    columns = store.values[rows].astype(np.float64).T.tolist()
    return {"times": times, "readings": dict(zip(store.sensors.ids, columns, strict=True))}


@pytest.fixture(scope="session")
def client_of_all(experiment: Experiment) -> Iterator[TestClient]:
    """One for all examples of a property."""
    with TestClient(make_app(make_service(Served(experiment, "small"), 64))) as made:
        yield made


@contextmanager
def running_server(app: FastAPI) -> Iterator[str]:
    """The address of a real server in a thread of its own."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
