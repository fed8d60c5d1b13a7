"""How many forecasts a second one server answers, how long they take, and what it does at twice that rate.

    python benchmarks/serving.py RUN [--data FILE.h5] [--seconds 20] [--rate N] [--output FILE.json]

The server runs in a process of its own, with its default limits.  Three phases ask for the forecast of the last hour of
the run's file: 32 clients that each wait for their answer, which gives the capacity; then requests at 0.7 times that
rate, or at the rate that is stated; then at twice the capacity, or twice the stated rate.  In these two a request is
sent at its time whether or not earlier ones are answered, and its latency counts from that time.  Server and clients
share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

import socialx
from socialx.files.store import open_store

CLIENTS, SUSTAINED, OVERLOAD, NO_ANSWER = 32, 0.7, 2.0, 0
Answers = list[tuple[int, float]]  # status and seconds


@contextmanager
def server(run: Path, data: Path) -> Iterator[str]:
    """The address of a server of a run, until the block ends."""
    command = [sys.executable, "-m", "socialx", "serve", str(run), "--data", str(data), "--port", "0"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert started.stderr
        for line in started.stderr:
            if "serving at " in line:
                yield line.split("serving at ")[1].split("/:")[0]
                return
        raise SystemExit("the server did not start")
    finally:
        started.terminate()
        started.wait()


def last_hour(data: Path, rows: int) -> bytes:
    """The body of a request."""
    store = open_store(data)
    times = [each.decode() for each in store.timestamps[-rows:]]
    values = store.values[-rows:].T.astype(float).round(2).tolist()
    return json.dumps({"times": times, "readings": dict(zip(store.sensors.ids, values, strict=True))}).encode()


async def ask(client: httpx.AsyncClient, body: bytes, due: float, answers: Answers) -> None:
    try:
        status = (
            await client.post("/forecast", content=body, headers={"content-type": "application/json"})
        ).status_code
    except httpx.TransportError:
        status = NO_ANSWER
    answers.append((status, time.perf_counter() - due))


async def waiting(client: httpx.AsyncClient, body: bytes, seconds: float) -> Answers:
    """Clients that each ask again when they are answered."""
    answers: Answers = []
    end = time.perf_counter() + seconds

    async def one() -> None:
        while (now := time.perf_counter()) < end:
            await ask(client, body, now, answers)

    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return answers


async def at_rate(client: httpx.AsyncClient, body: bytes, rate: float, seconds: float) -> Answers:
    """A request every 1 / rate seconds."""
    answers: Answers = []
    first = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            due = first + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(ask(client, body, due, answers))
    return answers


def summary(name: str, rate: float | None, answers: Answers, seconds: float) -> dict[str, Any]:
    """A row of the result; seconds: until the last answer."""
    row: dict[str, Any] = {"phase": name, "asked_per_s": None if rate is None else round(rate, 1)}
    row |= {"statuses": dict(sorted(Counter(status for status, _ in answers).items()))}
    row["forecasts_per_s"] = round(sum(status == 200 for status, _ in answers) / seconds, 1)
    for status in (200, 429):
        if taken := [each for given, each in answers if given == status]:
            quantiles = {f"p{q}_ms": round(1e3 * float(np.percentile(taken, q)), 1) for q in (50, 99)}
            row[f"latency_{status}"] = quantiles
    return row


async def measure(url: str, body: bytes, seconds: float, rate: float | None) -> list[dict[str, Any]]:
    """The three phases."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
        await waiting(client, body, min(2.0, seconds))  # warm
        began = time.perf_counter()
        found = await waiting(client, body, seconds)
        rows = [summary(f"{CLIENTS} clients that wait", None, found, time.perf_counter() - began)]
        capacity = rows[0]["forecasts_per_s"]
        rates = {"sustained": rate or SUSTAINED * capacity, "overload": OVERLOAD * (rate or capacity)}
        for name, each in rates.items():
            began = time.perf_counter()
            found = await at_rate(client, body, each, seconds)
            rows.append(summary(name, each, found, time.perf_counter() - began))
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, help="not set: the run's own file")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, help="requests a second; not set: of the measured capacity")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    trained = socialx.load_run(given.run).settings
    data = given.data or trained.data.path
    assert data, "the run names no file"
    body, load = last_hour(data, trained.data.history), os.getloadavg()[0]
    with server(given.run, data) as url:
        rows = asyncio.run(measure(url, body, given.seconds, given.rate))
        sizes = httpx.get(f"{url}/metrics").text.split("socialx_batch_size_sum ")[1].split()
    result = {
        "run": given.run.resolve().name,
        "model": f"{trained.model.kind}, encoder {trained.model.encoder}, width {trained.model.width}",
        "sensors": len(open_store(data).sensors.ids),
        "body_bytes": len(body),
        "seconds": given.seconds,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
        "load_before": round(load, 1),
        "note": "server, clients and whatever else ran shared the cores; load_before says how busy they were",
        "windows_per_batch": round(float(sizes[0]) / float(sizes[2]), 1),
        "phases": rows,
    }
    print(json.dumps(result, indent=2))
    if given.output:
        given.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
