"""The endpoints: what each takes, what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel, Field, create_model
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

import socialx
from socialx.core.errors import SocialxError
from socialx.drawing.page import digest, files, render
from socialx.scoring.free_flow import free_flow_speeds
from socialx.serving.guard import Guard, Metrics
from socialx.serving.latest import Latest, dumped, said
from socialx.serving.posted import CSV, JSON, LastHour, issue_of
from socialx.serving.worker import QueueFullError, Worker
from socialx.tasks.build import Experiment
from socialx.tasks.predict import Band

Refusals = dict[int | str, dict[str, Any]]
EVERY_S = 3.0  # how often the data file and the run are looked at
RETRY_S = 1  # a queue moves on within a second, or the server is too small
FOLDER = Path(__file__).parent
STYLES, SCRIPT = files("page.css", "map_page.css", folder=FOLDER), files("map_page.js", folder=FOLDER)
# Of the page with the map: its own style and script by their hashes, and nothing else.
POLICY = (
    f"default-src 'none'; style-src '{digest(STYLES)}'; script-src '{digest(SCRIPT)}'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class ForecastAnswer(BaseModel):
    """A forecast: of each target one list per issue, step and sensor."""

    schema_: str = Field(alias="schema")
    run: str
    dataset: str
    timezone: str | None
    units: dict[str, str]
    step_minutes: int
    sensors: list[str]
    origin: list[str]
    times: list[list[str]]
    input_status: list[list[str]] = Field(description="complete, partial, missing or never, per issue and sensor")
    forecast: dict[str, list[list[list[float]]]]
    interval: float | None = Field(None, description="level of the prediction intervals, where the server gives them")
    lower: dict[str, list[list[list[float]]]] | None = Field(None, description="lower ends, as forecast")
    upper: dict[str, list[list[list[float]]]] | None = Field(None, description="upper ends, as forecast")


class LatestAnswer(ForecastAnswer):
    """The forecast of the server's data file, and the readings of its last row."""

    now: dict[str, list[list[float | None]]]


class Sensor(BaseModel):
    """A sensor of the run; without a position both numbers are null."""

    id: str
    latitude: float | None
    longitude: float | None
    free_flow: float | None = Field(description="95th percentile of its speeds in the server's file; null for others")


class NetworkAnswer(BaseModel):
    """What a request must know of the run."""

    run: str
    dataset: str
    timezone: str | None
    local_zone: str | None = Field(description="by whose clock people live, where times are in UTC")
    feature: str
    unit: str
    step_minutes: int
    lookback: int
    horizon: int
    sensors: list[Sensor]


Health = create_model("Health", __doc__="The server runs.", status=(str, ...), version=(str, ...))
READY = "Whether requests are answered; reason: why the data file or the run, as it is now, is not used."
Ready = create_model("Ready", __doc__=READY, ready=(bool, ...), reason=(str, ...))
Refusal = create_model("Refusal", __doc__="Why a request is refused.", detail=(str, ...))


@dataclass(eq=False)
class Service:
    """All that the endpoints share.

    run: the name that answers give.  band: the prediction intervals of every answer; None: none.  follow: whether the
    data file and the run are looked at.  origins: pages that may ask.  free_flow: of each sensor in the file that was
    read first, float32 [N]; None for what is no speed.  newer: the service of a run that took the place of this one;
    None: there is none.  reason: why it is not used.
    """

    experiment: Experiment
    run: str
    worker: Worker
    metrics: Metrics
    band: Band | None = None
    latest: Latest | None = None
    free_flow: np.ndarray | None = None
    follow: bool = False
    token: str | None = None
    origins: tuple[str, ...] = ()
    timeout_s: float = 10.0
    most_bytes: int = 4 << 20
    coming: int = 0  # bytes of the bodies that have not come to their end
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    newer: Callable[[], Service | None] = lambda: None
    reason: str = ""

    def forecast_from_data(self, follow: bool) -> None:
        """Forecast from the data file of the problem, once and, with follow, whenever it was changed."""
        latest = Latest(self.experiment, self.run, self.experiment.data.store.path, self.band)
        issue = latest.read()
        latest.keep(issue, self.worker.forward(issue.batch))
        self.follow, self.latest = follow, latest
        if "speed" in self.experiment.data.targets[0]:
            self.free_flow = free_flow_speeds(issue.experiment.data)[:, 0]

    def network(self) -> dict[str, Any]:
        """Sensors with their positions and free-flow speeds, sizes and units."""
        data = self.experiment.data
        store, sensors = data.store, data.sensors
        places = [
            (lat, lon) if np.isfinite([lat, lon]).all() else (None, None)
            for lat, lon in zip(sensors.latitude.tolist(), sensors.longitude.tolist(), strict=True)
        ]
        free = [0.0] * len(places) if self.free_flow is None else self.free_flow.tolist()
        known = zip(sensors.ids, places, free, strict=True)
        return {
            "run": self.run,
            "dataset": store.dataset_name,
            "timezone": store.timezone,
            "local_zone": store.local_zone,
            "feature": data.targets[0],
            "unit": store.unit,
            "step_minutes": store.step_minutes,
            "lookback": data.lookback,
            "horizon": data.horizon,
            "sensors": [
                {"id": vdid, "latitude": lat, "longitude": lon, "free_flow": speed if speed > 0 else None}
                for vdid, (lat, lon), speed in known
            ],
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The model computes, and the data file is followed, until the block ends."""
        self.tasks = [asyncio.create_task(self.worker.run())]
        if self.latest is not None and self.follow:
            self.tasks.append(asyncio.create_task(self._follow()))
        yield
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    async def _follow(self) -> None:
        """Look at the run and the file every few seconds until this is cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.renew()
            if self.latest is not None:
                await self.latest.look(self.worker.ask)

    async def renew(self) -> None:
        """Forecast with the run that took this one's place; one that cannot be read or does not fit changes nothing.

        Requests that wait are answered by it.
        """
        try:
            other = await asyncio.to_thread(self.newer)
        except (SocialxError, OSError) as error:
            self.reason = f"the newer run: {said(error)}"
            return
        self.reason = ""
        if other is not None:
            self.experiment, self.run, self.worker.forward = other.experiment, other.run, other.worker.forward
            self.band, self.latest, self.free_flow = other.band, other.latest, other.free_flow

    async def body(self, request: Request) -> tuple[str, bytes]:
        """The content type and the body of a request.  Raises HTTPException for one that is refused.

        All bodies that are on their way together hold no more bytes than the queue of whole ones: QueueFullError.
        """
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind not in (JSON, CSV):
            raise HTTPException(415, f"the content type is {JSON} or {CSV}")
        body, length = bytearray(), request.headers.get("content-length", "")
        too_long = HTTPException(413, f"the body is longer than {self.most_bytes:,} bytes")
        if length.isdecimal() and int(length[:20]) > self.most_bytes:
            raise too_long
        try:
            async for part in request.stream():
                body += part
                self.coming += len(part)
                if len(body) > self.most_bytes:  # before all of it is read
                    raise too_long
                if self.coming > self.worker.places * self.most_bytes:
                    raise QueueFullError
        except ClientDisconnect:
            raise HTTPException(400, "the body has no end") from None
        finally:
            self.coming -= len(body)
        return kind, bytes(body)

    async def answer(self, kind: str, body: bytes) -> bytes:
        """The forecast for the readings of a body, as JSON.  Raises SocialxError for one that is refused."""
        experiment = self.experiment if self.latest is None else self.latest.experiment
        issue = await asyncio.to_thread(issue_of, experiment, kind, body)
        values = await self.worker.ask(issue.batch)
        if not np.isfinite(values).all():
            raise SocialxError("readings", "numbers so large that the forecast overflows", "send plain numbers")
        return await asyncio.to_thread(lambda: dumped(issue.forecast(self.run, values, self.band).as_dict()))


def make_service(experiment: Experiment, run: str, places: int) -> Service:
    """A service of a trained run under a name; its model forecasts as many windows at a time as a batch has."""
    experiment.model.eval()
    device, metrics = experiment.precision.device, Metrics()
    begins = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
    most = experiment.settings.loader.batch_size
    worker = Worker(partial(experiment.precision.infer, experiment.model), most, places, metrics.batches.add, begins)
    return Service(experiment, run, worker, metrics)


def make_app(service: Service) -> FastAPI:
    """The server as an ASGI application."""
    app = FastAPI(
        title="socialx serve",
        description="Forecasts of a trained run, from the readings of the last hour.",
        version=socialx.__version__,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # it would name the host that a client says
        lifespan=lambda _: service.running(),
    )
    _add_forecasts(app, service)
    _add_states(app, service)
    paths = {getattr(route, "path", "") for route in app.routes}
    app.add_middleware(Guard, token=service.token, metrics=service.metrics, paths=paths, origins=service.origins)
    if service.origins:  # outside of the guard: a browser sends no token with the question whether it may ask
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.origins,
            allow_methods=("GET", "POST"),
            allow_headers=("Authorization", "Content-Type"),
            expose_headers=("Retry-After",),
        )
    return app


def _add_forecasts(app: FastAPI, service: Service) -> None:
    """What a client comes for."""
    refusals: Refusals = {status: {"model": Refusal} for status in (400, 401, 413, 415, 422, 429, 504)}
    schema = {JSON: {"schema": LastHour.model_json_schema()}, CSV: {"schema": {"type": "string"}}}
    body = {"requestBody": {"required": True, "content": schema}}

    @app.post("/forecast", response_model=ForecastAnswer, responses=refusals, openapi_extra=body)
    async def forecast(request: Request) -> Response:
        """Forecast from the readings of the last hour: JSON, or a wide table of CSV text with a time column."""
        try:
            async with asyncio.timeout(service.timeout_s):
                kind, body = await service.body(request)  # who does not send it takes no place
                with service.worker.place():
                    return _json(await service.answer(kind, body))
        except QueueFullError:
            raise HTTPException(429, "the queue is full", {"Retry-After": str(RETRY_S)}) from None
        except TimeoutError:
            raise HTTPException(504, f"no forecast within {service.timeout_s:g} s") from None
        except SocialxError as error:
            raise HTTPException(422, " ".join(error.lines())) from None

    missing: Refusals = {status: {"model": Refusal} for status in (401, 404)}

    @app.get("/forecast/latest", response_model=LatestAnswer, responses=missing)
    async def latest() -> Response:
        """The forecast after the last row of the server's data file."""
        if service.latest is None:
            raise HTTPException(404, "the file of this server has no history to forecast from")
        return _json(service.latest.answer)

    @app.get("/sensors", response_model=NetworkAnswer, responses={401: {"model": Refusal}})
    async def sensors() -> Response:
        """The sensors of the run with their positions, and the sizes and units that a request has to keep."""
        return _json(dumped(service.network()))


def _add_states(app: FastAPI, service: Service) -> None:
    """What an operator and a browser come for."""

    @app.get("/health", response_model=Health)
    async def health() -> Response:
        """The server runs."""
        return _json(dumped({"status": "ok", "version": socialx.__version__}))

    @app.get("/ready", response_model=Ready, responses={503: {"model": Ready}})
    async def ready() -> Response:
        """Whether requests are answered, and whether the data file could be read."""
        stopped = any(task.done() for task in service.tasks)
        stuck = service.worker.stuck(service.timeout_s)
        reason = "; ".join(filter(None, (service.reason, service.latest.reason if service.latest else "")))
        if stopped or stuck:
            reason = "a part of the server has stopped" if stopped else "the model does not answer"
        content = {"ready": not (stopped or stuck), "reason": reason}
        return Response(dumped(content), 503 if stopped or stuck else 200, media_type=JSON)

    @app.get("/metrics", response_class=PlainTextResponse, responses={401: {"model": Refusal}})
    async def metrics() -> Response:
        """Counts and times in the text format of Prometheus."""
        latest = service.latest
        age_s = None if latest is None else time.time() - latest.made
        text = service.metrics.text(service.worker.taken, age_s, None if latest is None else latest.covered)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    document = page(service.token is not None, service.latest is not None, service.follow)
    headers = {"content-security-policy": POLICY}

    @app.get("/", response_class=HTMLResponse)
    async def root() -> Response:
        """A page with a map."""
        return HTMLResponse(document, headers=headers)


def page(token: bool, latest: bool, follow: bool) -> str:
    """The page with the map, whose script asks the server that it came from, and nobody else.

    It asks for a token, has a forecast to show, and looks for newer ones, or not.
    """
    marks = {"token": token, "latest": latest, "follow": follow}
    view = {"title": "socialx: traffic forecast", **{name: "yes" if mark else "no" for name, mark in marks.items()}}
    return render("map_page.html.j2", view, STYLES, SCRIPT, FOLDER)


def _json(content: bytes) -> Response:
    return Response(content, media_type=JSON)
