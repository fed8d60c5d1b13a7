"""How many forecasts a second one server answers, how long they take, and what it does at twice that rate.

    python benchmarks/serving.py RUN [--data FILE.h5] [--seconds 20] [--rate N] [--output FILE.json]

The server runs in a process of its own, with its default limits.  Three phases ask for the forecast of the last hour of
the run's file: 32 clients that each wait for their answer, which gives the capacity; then requests at 0.7 times that
rate, or at the rate that is stated; then at twice the capacity, or twice the stated rate.  In these two a request is
sent at its time whether or not earlier ones are answered.  Latency counts from the moment at which a request is sent;
``sent_late`` says how far the client was behind its plan, which a busy machine makes long.  ``forecasts_per_cpu_s`` is
per second in which the server had a core, which other programs change less than the rest.  Server and clients share
the machine, and each request has a connection of its own.
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
from urllib.request import urlopen

import numpy as np
import torch

import socialx
from socialx.files.store import open_store

CLIENTS, SUSTAINED, OVERLOAD, NO_ANSWER = 32, 0.7, 2.0, 0
Answers = list[tuple[int, float, float]]  # status, seconds until the answer, seconds behind the plan


@contextmanager
def server(run: Path, data: Path) -> Iterator[tuple[str, int]]:
    """The address and the process of a server of a run, until the block ends."""
    command = [sys.executable, "-m", "socialx", "serve", str(run), "--data", str(data), "--port", "0"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert started.stderr
        for line in started.stderr:
            if "serving at " in line:
                yield line.split("serving at ")[1].split("/:")[0], started.pid
                return
        raise SystemExit("the server did not start")
    finally:
        started.terminate()
        started.wait()


def cpu_seconds(process: int) -> float:
    """What a process has computed until now, in all its threads; of Linux."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def last_hour(data: Path, rows: int) -> bytes:
    """The body of a request."""
    store = open_store(data)
    times = [each.decode() for each in store.timestamps[-rows:]]
    values = store.values[-rows:].T.astype(float).round(2).tolist()
    return json.dumps({"times": times, "readings": dict(zip(store.sensors.ids, values, strict=True))}).encode()


async def ask(url: str, body: bytes, answers: Answers, late_s: float) -> None:
    """One request over a connection of its own."""
    host, port = url.removeprefix("http://").split(":")
    head = f"POST /forecast HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    began = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.read()
        writer.close()
        status = int(answer[9:12] or NO_ANSWER)
    except OSError:
        status = NO_ANSWER
    answers.append((status, time.perf_counter() - began, late_s))


async def waiting(url: str, body: bytes, seconds: float) -> Answers:
    """Clients that each ask again when they are answered."""
    answers: Answers = []
    end = time.perf_counter() + seconds

    async def one() -> None:
        while time.perf_counter() < end:
            await ask(url, body, answers, 0.0)

    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return answers


async def at_rate(url: str, body: bytes, rate: float, seconds: float) -> Answers:
    """A request every 1 / rate seconds."""
    answers: Answers = []
    first = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            due = first + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(ask(url, body, answers, time.perf_counter() - due))
    return answers


def summary(name: str, rate: float | None, answers: Answers, seconds: float) -> dict[str, Any]:
    """A row of the result; seconds: until the last answer."""
    row: dict[str, Any] = {"phase": name, "asked_per_s": None if rate is None else round(rate, 1)}
    row |= {"statuses": dict(sorted(Counter(status for status, _, _ in answers).items()))}
    row["forecasts_per_s"] = round(sum(status == 200 for status, _, _ in answers) / seconds, 1)
    for status in (200, 429):
        if taken := [each for given, each, _ in answers if given == status]:
            row[f"latency_{status}"] = quantiles(taken)
    if rate is not None:
        row["sent_late"] = quantiles([late for _, _, late in answers])
    return row


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Half and nearly all of them are below these."""
    return {f"p{q}_ms": round(1e3 * float(np.percentile(seconds, q)), 1) for q in (50, 99)}


async def measure(url: str, process: int, body: bytes, seconds: float, rate: float | None) -> list[dict[str, Any]]:
    """The three phases."""
    rows: list[dict[str, Any]] = []

    async def phase(name: str, each: float | None) -> None:
        began, before = time.perf_counter(), cpu_seconds(process)
        found = await (waiting(url, body, seconds) if each is None else at_rate(url, body, each, seconds))
        row = summary(name, each, found, time.perf_counter() - began)
        used = cpu_seconds(process) - before
        rows.append({**row, "forecasts_per_cpu_s": round(row["statuses"].get(200, 0) / used, 1)})

    await waiting(url, body, min(2.0, seconds))  # warm
    await phase(f"{CLIENTS} clients that wait", None)
    capacity = rows[0]["forecasts_per_s"]
    await phase("sustained", rate or SUSTAINED * capacity)
    await phase("overload", OVERLOAD * (rate or capacity))
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
    with server(given.run, data) as (url, process):
        rows = asyncio.run(measure(url, process, body, given.seconds, given.rate))
        with urlopen(f"{url}/metrics") as answer:  # noqa: S310 - our own server
            sizes = answer.read().decode().split("socialx_batch_size_sum ")[1].split()
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
