"""``serve`` asks itself instead of listening: what clients are told, before and after its data file was changed."""

import asyncio
import json
import os
from pathlib import Path
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
                assert service.served.latest
                await service.served.latest.look(service.worker.ask)
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
