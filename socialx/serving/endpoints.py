"""Answer HTTP requests: forecasts, the sensors, the state of the server, and a page with a map."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel, Field, create_model
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from socialx.core.errors import SocialxError, python, spelling
from socialx.core.version import __version__
from socialx.drawing.page import digest, files, render
from socialx.serving.guard import Guard, Metrics
from socialx.serving.latest import LATE_STEPS, Alerts, Served, error_text, to_json
from socialx.serving.posted import CSV, JSON, LastHour, read_issue
from socialx.serving.worker import QueueFullError, Worker
from socialx.tasks.predict import duration

Refusals = dict[int | str, dict[str, Any]]
EVERY_S = 3.0  # seconds between two checks of data file and run
RETRY_S = 1  # a queue moves on within a second, or the server is too small
FOLDER = Path(__file__).parent
STYLES, SCRIPT = files("page.css", "map_page.css", folder=FOLDER), files("map_page.js", folder=FOLDER)
# Of the page with the map: its own style and script by their hashes, the server of the streets, and nothing else.
POLICY = (
    f"default-src 'none'; style-src '{digest(STYLES)}'; script-src '{digest(SCRIPT)}'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src data:"
)


class ForecastAnswer(BaseModel):
    """Describe a forecast: for each target a list per issue (forecast origin), step and sensor."""

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
    below: float | None = Field(None, description="threshold, where the server gives probabilities")
    probability_below: dict[str, list[list[list[float]]]] | None = Field(None, description="as forecast")


class LatestAnswer(ForecastAnswer):
    """Describe the forecast after the last row of the data file, and the row's observations; null for missing."""

    last_observed: dict[str, list[list[float | None]]]
    alerts: list[str] | None = Field(None, description="sensors that are likelier than not below at a lead time")


class CurveAnswer(BaseModel):
    """Describe the curve of a sensor: observations, climatology and forecasts around now; null for missing values."""

    sensor: str
    times: list[str] = Field(description="some lookbacks, and the horizon")
    observed: list[float | None]
    usual: list[float | None] = Field(description="climatology: mean at the time of the week")
    latest: ForecastAnswer
    earlier: ForecastAnswer | None = Field(description="forecast a horizon before; null if the file starts later")


class Sensor(BaseModel):
    """Describe a sensor; latitude and longitude are null for an unknown location."""

    id: str
    road: str | None = Field(description="name of its road, where the locations have one")
    latitude: float | None
    longitude: float | None
    free_flow: float | None = Field(description="95th percentile of its speeds in the server's file; null for others")


class NetworkAnswer(BaseModel):
    """Describe the run for a client that prepares requests: sensors, unit, and the sizes of lookback and horizon."""

    run: str
    dataset: str
    timezone: str | None
    local_zone: str | None = Field(description="zone of the local clock, if times are in UTC")
    feature: str
    unit: str
    step_minutes: int
    lookback: int
    horizon: int
    sensors: list[Sensor]


Health = create_model("Health", __doc__="State that the server runs.", status=(str, ...), version=(str, ...))
READY = (
    "State whether the server answers; reason: why the present data file or run is unused, or that the last row is "
    "late; last_data: age of the last row; adapted_before: the local day before which rows taught a zero-shot run "
    "about another network than in training."
)
Ready = create_model(
    "Ready",
    __doc__=READY,
    ready=(bool, ...),
    reason=(str, ...),
    last_data=(str | None, ...),
    adapted_before=(str | None, ...),
)
Refusal = create_model("Refusal", __doc__="Give the reason of a refusal.", detail=(str, ...))


@dataclass(eq=False)
class Service:
    """Hold the state that all endpoints share: a run in service, and the queue before the model.

    served: the run that answers. worker: the queue. follow: whether data file and run are checked for changes. token:
    the secret that requests need. origins: web origins whose pages may ask. tiles: address and attribution as from
    ``read_tiles``. timeout_s: seconds until answer 504. most_bytes: longest body. newer: returns a newer run, if any.
    reason: why the newer run is unused.  alerts: starts the alert program, if any.
    """

    served: Served
    worker: Worker
    metrics: Metrics
    follow: bool = False
    token: str | None = None
    origins: tuple[str, ...] = ()
    tiles: str = ""
    timeout_s: float = 10.0
    most_bytes: int = 4 << 20
    coming: int = 0  # bytes of the bodies that have not come to their end
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    alerts: Alerts | None = None
    newer: Callable[[], Served | None] = lambda: None
    reason: str = ""

    def gauges(self) -> dict[str, float | None]:
        """Return what /metrics has of this moment, None for what is unknown."""
        gauges: dict[str, float | None] = {"socialx_queue_length": self.worker.taken}
        if (latest := self.served.latest) is not None:
            gauges["socialx_latest_forecast_age_seconds"] = time.time() - latest.made
            gauges["socialx_last_data_age_seconds"] = latest.age_s
            gauges["socialx_interval_coverage_ratio"] = latest.coverage
            gauges["socialx_alert_sensors"] = None if latest.alerts is None else len(latest.alerts)
        return gauges

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the model, and follow the data file if ``follow`` is on, during the block: the server's lifetime."""
        self.tasks = [asyncio.create_task(self.worker.run())]
        if self.served.latest is not None and self.follow:
            self.tasks.append(asyncio.create_task(self._follow()))
        self.alert()
        yield
        for task in (tasks := [*self.tasks, *(self.alerts.tasks if self.alerts else ())]):
            task.cancel()
        await asyncio.wait(tasks)

    def alert(self) -> None:
        """Start the alert program for the sensors of the latest forecast that raise an alert."""
        if self.alerts and (latest := self.served.latest) and latest.curves:
            self.alerts.update(latest, latest.curves.latest)

    async def _follow(self) -> None:
        """Look every few seconds for a newer run or data file, and forecast again from it, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.renew()
            if self.served.latest is not None:
                await self.served.latest.look(self.worker.ask)
            self.alert()

    async def renew(self) -> None:
        """Switch to a newer run, if any, for waiting requests too; a run that fails to load changes only ``reason``."""
        try:
            if (newer := await asyncio.to_thread(self.newer)) is not None:
                self.served, self.worker.forward = newer, newer.infer
            self.reason = ""
        except (SocialxError, OSError) as error:
            self.reason = f"the newer run: {error_text(error)}"

    async def body(self, request: Request) -> tuple[str, bytes]:
        """Read the body of a request, and return content type and body.

        Raises HTTPException for a refused body, and QueueFullError if all bodies being read exceed the queue in bytes.
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
        """Forecast from a body of content type ``kind``, and return JSON.  Raise SocialxError for a refused body."""
        lookback = await asyncio.to_thread(read_issue, self.served.present, kind, body)
        values = await self.worker.ask(lookback.batch)
        if not np.isfinite(values).all():
            problem = "the forecast of such large numbers overflows"
            raise SocialxError("serve.overflow", "readings", problem, "send plain numbers")
        served = self.served
        return await asyncio.to_thread(lambda: to_json(lookback.forecast(served.run, values, served.band).as_dict()))


class Compressed(GZipMiddleware):
    """Compress answers to GET requests; posted readings get a forecast without the delay."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, compressing the answer if the method is GET."""
        await (super().__call__ if scope.get("method") == "GET" else self.app)(scope, receive, send)


def make_service(served: Served, places: int) -> Service:
    """Make a service with batches up to ``loader.batch_size``. places: most waiting requests."""
    device, metrics = served.experiment.precision.device, Metrics()
    begins = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
    most = served.experiment.settings.loader.batch_size
    return Service(served, Worker(served.infer, most, places, metrics.batches.observe, begins), metrics)


def make_app(service: Service) -> FastAPI:
    """Return the server as an ASGI application."""
    service.metrics.gauges = service.gauges
    app = FastAPI(
        title="socialx serve",
        description="Forecasts of a trained run, from the readings of the last hour.",
        version=__version__,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # it would name the host that a client says
        lifespan=lambda _: service.running(),
    )
    _add_forecasts(app, service)
    _add_states(app, service)
    paths = {getattr(route, "path", "") for route in app.routes}
    app.add_middleware(Compressed)
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
    """Add the endpoints /forecast, /forecast/latest, /curve and /sensors to the app."""
    refusals: Refusals = {status: {"model": Refusal} for status in (400, 401, 413, 415, 422, 429, 504)}
    schema = {JSON: {"schema": LastHour.model_json_schema()}, CSV: {"schema": {"type": "string"}}}
    body = {"requestBody": {"required": True, "content": schema}}

    @app.post("/forecast", response_model=ForecastAnswer, responses=refusals, openapi_extra=body)
    async def forecast(request: Request) -> Response:
        """Forecast from the readings of the last hour: JSON, or a wide table of CSV text with a time column."""
        try:
            async with asyncio.timeout(service.timeout_s):
                kind, body = await service.body(request)  # who does not send it takes no place
                with service.worker.place(), spelling(python):  # a client types no flags
                    return _json(await service.answer(kind, body))
        except QueueFullError:
            raise HTTPException(429, "the queue is full", {"Retry-After": str(RETRY_S)}) from None
        except TimeoutError:
            raise HTTPException(504, f"no forecast within {service.timeout_s:g} s") from None
        except SocialxError as error:
            raise HTTPException(422, " ".join(error.lines())) from None

    missing: Refusals = {status: {"model": Refusal} for status in (401, 404)}

    @app.get("/forecast/latest", response_model=LatestAnswer, responses=missing)
    async def latest(short: bool = False) -> Response:
        """Return the forecast after the last row of the server's data file; short: in tenths, without intervals."""
        if (answers := service.served.latest) is None:
            raise HTTPException(404, "the file of this server has no lookback to forecast from")
        return _json(answers.short if short else answers.answer)

    @app.get("/curve", response_model=CurveAnswer, responses=missing)
    async def curve(sensor: str) -> Response:
        """Return observations around the latest forecast, climatology and the forecast before, for a sensor by id."""
        ids, answers = service.served.experiment.data.sensors.ids, service.served.latest
        if answers is None or answers.curves is None or sensor not in ids:
            raise HTTPException(404, "the run lacks this sensor, or the file lacks a lookback")
        return _json(answers.curves.curve(sensor, ids.index(sensor)))

    @app.get("/sensors", response_model=NetworkAnswer, responses={401: {"model": Refusal}})
    async def sensors() -> Response:
        """Return the sensors with locations, and the sizes and units of a request."""
        return _json(to_json(service.served.network()))


def _add_states(app: FastAPI, service: Service) -> None:
    """Add the endpoints /health, /ready and /metrics, and the page with the map, to the app."""

    @app.get("/health", response_model=Health)
    async def health() -> Response:
        """Return the version of the running server."""
        return _json(to_json({"status": "ok", "version": __version__}))

    @app.get("/ready", response_model=Ready, responses={503: {"model": Ready}})
    async def ready() -> Response:
        """Return whether the server answers, and how old the data is."""
        stopped = any(task.done() for task in service.tasks)
        stuck = service.worker.stuck(service.timeout_s)
        latest, reasons, last_data = service.served.latest, [service.reason], None
        if latest is not None:
            minutes = LATE_STEPS * latest.experiment.data.store.step_minutes
            reasons += [latest.reason, f"the last row is older than {minutes} minutes" if latest.late else ""]
            last_data = f"{duration(latest.age_s)} ago"
        reason = "; ".join(filter(None, reasons))
        if stopped or stuck:
            reason = "a part of the server has stopped" if stopped else "the model does not answer"
        adapted = None if latest is None else latest.adapted_before
        content = {"ready": not (stopped or stuck), "reason": reason, "last_data": last_data, "adapted_before": adapted}
        return Response(to_json(content), 503 if stopped or stuck else 200, media_type=JSON)

    @app.get("/metrics", response_class=PlainTextResponse, responses={401: {"model": Refusal}})
    async def metrics() -> Response:
        """Return counts and times in the text format of Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")

    document = page(service.token is not None, service.served.latest is not None, service.follow, service.tiles)
    headers = {"content-security-policy": POLICY}
    if service.tiles:  # whose servers ask which page shows their tiles
        origin = urlsplit(service.tiles)
        headers["content-security-policy"] += f" {origin.scheme}://{origin.netloc}"
        headers["referrer-policy"] = "origin"

    @app.get("/", response_class=HTMLResponse)
    async def root() -> Response:
        """Return the page with the map."""
        return HTMLResponse(document, headers=headers)


def page(token: bool, latest: bool, follow: bool, tiles: str = "") -> str:
    """Return the page with the map; the script asks this server, and the server with the tiles if named.

    token: whether the page asks for a token. latest: whether the server has a forecast to show. follow: whether the
    page looks for newer forecasts. tiles: address and attribution as from ``read_tiles``.
    """
    marks = {"token": token, "latest": latest, "follow": follow}
    view = {"title": "socialx: traffic forecast", **{name: "yes" if mark else "no" for name, mark in marks.items()}}
    view["tiles"] = tiles
    return render("map_page.html.j2", view, STYLES, SCRIPT, FOLDER)


def _json(content: bytes) -> Response:
    return Response(content, media_type=JSON)
