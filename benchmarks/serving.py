"""How many forecasts a second one server answers, and how long they take.

    python benchmarks/serving.py RUN [--data FILE.h5] [--seconds 20] [--output FILE.json]

The server runs in a process of its own, with its default limits.  32 clients ask for the forecast of the last hour of
the run's file, and wait for each answer.  Latency counts from the moment at which a request is sent.
Server and clients share the machine, and each request has a connection of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import socialx
from benchmarks.common import machine, parser, write
from socialx.files.store.store import open_store

CLIENTS, NO_ANSWER = 32, 0
Answers = list[tuple[int, float]]  # status, seconds until the answer


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


async def ask(url: str, body: bytes, answers: Answers) -> None:
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
    answers.append((status, time.perf_counter() - began))


async def waiting(url: str, body: bytes, seconds: float) -> Answers:
    """Clients that each ask again when they are answered."""
    answers: Answers = []
    end = time.perf_counter() + seconds

    async def one() -> None:
        while time.perf_counter() < end:
            await ask(url, body, answers)

    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return answers


def measure(url: str, body: bytes, seconds: float) -> dict[str, Any]:
    """What the clients get, after two seconds that warm up."""
    asyncio.run(waiting(url, body, min(2.0, seconds)))
    began = time.perf_counter()
    answers = asyncio.run(waiting(url, body, seconds))
    spent = time.perf_counter() - began
    taken = [each for status, each in answers if status == 200]
    return {
        "clients": CLIENTS,
        "statuses": dict(sorted(Counter(status for status, _ in answers).items())),
        "forecasts_per_s": round(len(taken) / spent, 1),
        "latency_200": {f"p{q}_ms": round(1e3 * float(np.percentile(taken, q)), 1) for q in (50, 99)},
    }


def main() -> None:
    arguments = parser(__doc__, seconds=20.0)
    arguments.add_argument("run", type=Path)
    arguments.add_argument("--data", type=Path, help="not set: the run's own file")
    arguments.add_argument("--output", type=Path)
    given = arguments.parse_args()
    trained = socialx.load_run(given.run).settings
    data = given.data or trained.data.path
    assert data, "the run names no file"
    body, facts = last_hour(data, trained.data.lookback), machine()
    with server(given.run, data) as url:
        found = measure(url, body, given.seconds)
    result = {
        "run": given.run.resolve().name,
        "model": f"{trained.model.kind}, encoder {trained.model.encoder}, width {trained.model.width}",
        "sensors": len(open_store(data).sensors.ids),
        "body_bytes": len(body),
        "seconds": given.seconds,
        "machine": {**facts, "cores": os.cpu_count()},
        **found,
    }
    print(json.dumps(result, indent=2))
    if given.output:
        write(given.output, result)


if __name__ == "__main__":
    main()
