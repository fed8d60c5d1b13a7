"""``serve`` asks itself instead of listening: what clients are told, before and after its data file was changed.

What they send may be damaged too.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import httpx

SERVED, NEXT = "served.h5", "data.h5"  # with --follow the second takes the place of the first
PATHS = ("/sensors", "/forecast/latest", "/ready")


def answer_once() -> None:
    """From now on in this process, ``serve`` prints what it answers as JSON, and ends."""
    from socialx.serving import endpoints

    make = endpoints.make_app

    async def asked(service: endpoints.Service) -> dict[str, Any]:
        follow, service.follow = service.follow, False
        transport = httpx.ASGITransport(make(service))
        async with service.running(), httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            found = {"first": await _answers(client)}
            if follow:
                Path(SERVED).unlink()
                if os.path.lexists(NEXT):
                    Path(NEXT).rename(SERVED)
                assert service.latest
                await service.latest.look(service.worker.ask)
                found["then"] = await _answers(client)
        return found

    def print_answers(service: endpoints.Service) -> NoReturn:
        print(json.dumps(asyncio.run(asked(service))))
        raise SystemExit(0)

    endpoints.make_app = print_answers  # type: ignore[assignment]


async def _answers(client: httpx.AsyncClient) -> dict[str, Any]:
    """The status and the content of each path."""
    found = [await client.get(path) for path in PATHS]
    return {path: [answer.status_code, answer.json()] for path, answer in zip(PATHS, found, strict=True)}


def damaged(body: bytes, random: Random) -> bytes:
    """A request as JSON or CSV, damaged once: cut, repeated, with other bytes, or with what looks like a number."""
    start = random.randrange(len(body))
    end = min(len(body), start + random.randrange(1, 40))
    number = random.choice(
        [b"1_0", b'""', b"NaN", b"1e999", b"9" * 5000, b"=1+1", b"\xff", b"null", b"[[", b"{}", b"\n"]
    )
    return random.choice(
        [
            body[:start],
            body[:end] + body[start:end] * random.choice([1, 2, 5000]) + body[end:],
            body[:start] + random.randbytes(end - start) + body[end:],
            body[:start] + number * random.choice([1, 3000]) + body[end:],
            body.replace(b'"readings":', b'"readings": {}, "readings":', 1).replace(b"time,", b"time,time,", 1),
            body.replace(b"2012-05-04", random.choice([b"2012-03-11", b"2012-05-04T", b"0000-00-00"])),
        ]
    )
