"""Check the token, add the security headers, and count requests for /metrics."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from socialx.core.disk import read_text
from socialx.core.errors import Argument, SettingsError
from socialx.settings.layers import BEARER

TOKEN = re.compile(r"[!-~]{16,1024}")
TOKEN_BYTES = 4096
ORIGIN = re.compile(r"https?://[a-z0-9.\-\[\]:]+")
TILES = re.compile(ORIGIN.pattern + r"/[!-~]+")
OPEN = ("/", "/health", "/ready")  # without a token: none of them holds data
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # bounds of the histograms
SIZES = (1, 2, 4, 8, 16, 32, 64)
disable_created_metrics()  # the time of a first request says little
HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def read_token(path: Path | None, environment: Mapping[str, str]) -> str | None:
    """Return the token from a file, else from the environment, or None.  Raise SettingsError for a malformed token."""
    where: object = BEARER if path is None else path
    try:
        token = environment.get(BEARER) if path is None else read_text(path, TOKEN_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problem = f"the token is unreadable ({reason})"
        raise SettingsError("serve.token-unreadable", where, problem, "name a file with a token") from None
    if token is not None and not TOKEN.fullmatch(token.strip()):
        reason = "a token has 16 to 1,024 printable ASCII characters without spaces"
        raise SettingsError("serve.token", where, reason, "openssl rand -hex 32 > FILE")
    return None if token is None else token.strip()


def read_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """Return web origins whose pages may ask. Raise SettingsError for a text unlike ``https://host``, and for ``*``."""
    for origin in origins:
        if not ORIGIN.fullmatch(origin):
            remedy = f"write for example {Argument('allow_origin', 'https://dashboard.example')}"
            raise SettingsError("serve.origin", "", f"{Argument('allow_origin', origin)} is not a web origin", remedy)
    return tuple(origins)


def read_tiles(tiles: str) -> str:
    """Return address of map tiles, a space, and owner.  Raise SettingsError without ``{x}``, ``{y}`` and ``{z}``."""
    address, _, owner = tiles.strip().partition(" ")
    if not TILES.fullmatch(address) or not all(f"{{{name}}}" in address for name in "xyz"):
        example = Argument("tiles", "https://tile.openstreetmap.org/{z}/{x}/{y}.png \u00a9 OpenStreetMap contributors")
        problem = f"{Argument('tiles', tiles)} is not an address of map tiles"
        raise SettingsError("serve.tiles", "", problem, f"write for example {example}")
    return f"{address} {owner.strip() or f'Map tiles of {urlsplit(address).netloc}'}"


class Metrics:
    """Count requests by path and status, durations, and batch sizes; gauges are asked for when somebody reads."""

    def __init__(self) -> None:
        self.gauges: Callable[[], Mapping[str, float | None]] = dict
        self.registry = CollectorRegistry()
        self.requests = Counter("socialx_requests", "Answers", ("path", "status"), registry=self.registry)
        by_path: dict[str, Any] = {"labelnames": ("path",), "buckets": SECONDS, "registry": self.registry}
        self.seconds = Histogram("socialx_request_seconds", "Until the answer was sent", **by_path)
        self.batches = Histogram("socialx_batch_size", "Forecasts at once", buckets=SIZES, registry=self.registry)
        self.programs = Counter("socialx_alert_programs", "Alert programs", ("result",), registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges that have a value."""
        for name, value in self.gauges().items():
            if value is not None:
                yield GaugeMetricFamily(name, name.replace("_", " "), value)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


@dataclass
class Guard:
    """Wrap an ASGI app: refuse requests without the token, if set, add the security headers, and count requests.

    paths: paths with a metric; further paths count as ``other``. origins: web origins whose pages may read answers.
    """

    app: ASGIApp
    token: str | None
    metrics: Metrics
    paths: Collection[str]
    origins: Collection[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the app, or answer 401 without the token; count path, status and duration."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        named = Headers(scope=scope).get("origin") in self.origins

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                if named:
                    headers["cross-origin-resource-policy"] = "cross-origin"
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        allowed = self.token is None or scope["path"] in OPEN
        if not allowed:
            scheme, _, word = Headers(scope=scope).get("authorization", "").partition(" ")
            given, token = word.strip().encode(), str(self.token).encode()
            allowed = scheme.lower() == "bearer" and hmac.compare_digest(given, token)
        refusal = JSONResponse({"detail": "a bearer token is needed"}, 401, {"www-authenticate": "Bearer"})
        try:
            await (self.app if allowed else refusal)(scope, receive, send_with_headers)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - began)
