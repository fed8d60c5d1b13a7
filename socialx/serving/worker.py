"""Run the model in a thread, and forecast waiting requests together as a batch."""

# Shape letters: B windows, P horizon steps, N sensors, G targets

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Self

import numpy as np
import torch

from socialx.core.batch import Batch
from socialx.data.series import ContextReader
from socialx.forecast.forecast import Forecast
from socialx.tasks.build import Experiment
from socialx.tasks.opened import Band
from socialx.tasks.predict import Issue

GATHER_S = 0.003  # how long a request waits for others; a small part of what a forecast takes
Forward = Callable[[Batch], np.ndarray]


class QueueFullError(Exception):
    """Signal a full queue, which the server answers with 429."""


@dataclass(frozen=True, eq=False)
class Lookback:
    """Hold a single forecast's lookback as a batch."""

    issue: Issue
    batch: Batch

    @classmethod
    def until(cls, experiment: Experiment, context: ContextReader, time: np.ndarray) -> Self:
        """Read the lookback until a forecast origin, and adapt the model; time: int64 [1] in seconds."""
        if experiment.past is not None:
            experiment.past.prepare(time.tolist())  # not in the thread of the model
        ((_, batch),) = context.batches(time, 1)
        return cls(Issue(experiment, context, time), batch)

    def forecast(self, run: str, values: np.ndarray, band: Band | None = None) -> Forecast:
        """Return the model output float32 [1,P,N,G] as a forecast by a run, with intervals if ``band`` is given."""
        return self.issue.forecast(run, [(values, *self.issue.context.input_state(self.batch))], band)


@dataclass(eq=False)
class Worker:
    """Queue requests for a model, and answer waiting requests together as a batch.

    forward: maps a batch to float32 [B,P,N,G]. most: the largest batch size. places: the largest number of waiting
    requests. count: receives every batch size. begins: called first in the thread of the model. taken: places in use.
    """

    forward: Forward
    most: int
    places: int
    count: Callable[[int], None] = lambda size: None
    begins: Callable[[], None] | None = None
    taken: int = 0
    began: float | None = None  # start time of the current batch, None between batches
    _waiting: dict[asyncio.Future[np.ndarray], Batch] = field(default_factory=dict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place in the queue during the block.  Raise QueueFullError if the queue is full."""
        if self.taken >= self.places:
            raise QueueFullError
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def ask(self, batch: Batch) -> np.ndarray:
        """Wait, and return the model output for a window, float32 [1,P,N,G].  A cancelled request leaves the queue."""
        answer: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        self._waiting[answer] = batch
        self._arrived.set()
        try:
            return await answer
        finally:
            self._waiting.pop(answer, None)

    def stuck(self, limit_s: float) -> bool:
        """Return whether the current batch takes longer than ``limit_s`` seconds; False between batches."""
        return self.began is not None and time.monotonic() - self.began > limit_s

    async def run(self) -> None:
        """Compute waiting requests, batch by batch, until cancelled."""
        loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()  # an event belongs to one loop
        if self._waiting:
            self._arrived.set()
        with ThreadPoolExecutor(1, "model", self.begins) as thread:
            while True:
                await self._arrived.wait()
                await asyncio.sleep(GATHER_S)
                answers = list(islice(self._waiting, self.most))
                batches = [self._waiting.pop(answer) for answer in answers]
                if not self._waiting:
                    self._arrived.clear()
                if not answers:  # whoever arrived has left
                    continue
                self.count(len(answers))
                self.began = time.monotonic()
                computed = loop.run_in_executor(thread, self._compute, batches)
                await asyncio.wait([computed])
                self.began = None
                for number, answer in enumerate(answers):
                    if answer.done():  # who asked no longer waits
                        continue
                    if error := computed.exception():
                        answer.set_exception(error)
                    else:
                        answer.set_result(computed.result()[number : number + 1])

    def _compute(self, batches: Sequence[Batch]) -> np.ndarray:
        return self.forward(Batch(*(torch.cat(parts) for parts in zip(*batches, strict=True))))
