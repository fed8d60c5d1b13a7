"""One thread runs the model; requests wait for it and are forecast together, as one batch."""

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
from socialx.tasks.predict import Band, as_forecast

GATHER_S = 0.003  # how long a request waits for others; a small part of what a forecast takes
Forward = Callable[[Batch], np.ndarray]


class QueueFullError(Exception):
    """Every place of the queue is taken."""


@dataclass(frozen=True, eq=False)
class Issue:
    """One history that a forecast is issued from; ``time`` int64 [1] is that of its last row."""

    experiment: Experiment
    context: ContextReader
    time: np.ndarray
    batch: Batch

    @classmethod
    def of(cls, experiment: Experiment, context: ContextReader, time: np.ndarray) -> Self:
        """The history that ends at this time."""
        ((_, batch),) = context.batches(time, 1)
        return cls(experiment, context, time, batch)

    def forecast(self, run: str, values: np.ndarray, band: Band | None = None) -> Forecast:
        """The values float32 [1,P,N,G] that the model gave for it, with all that belongs to them."""
        context, batch = self.context, self.batch
        known = context.count_valid(batch), context.has_reported(batch), *context.excerpt(self.time, context.lookback)
        forecast = as_forecast(self.experiment, run, self.time, values, *known)
        return forecast if band is None else band.around(forecast, values)


@dataclass(eq=False)
class Worker:
    """Requests that wait for a model, in places of a bounded number.

    forward: what the model computes for a batch.  most: windows of a batch.  places: requests that are let in at a
    time.  count: is told the size of every batch.  begins: the thread of the model calls it first.
    """

    forward: Forward
    most: int
    places: int
    count: Callable[[int], None] = lambda size: None
    begins: Callable[[], None] | None = None
    taken: int = 0
    began: float | None = None  # when the batch at hand was begun; None: there is none
    _waiting: dict[asyncio.Future[np.ndarray], Batch] = field(default_factory=dict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take a place of the queue until the block ends.  Raises QueueFullError where there is none."""
        if self.taken >= self.places:
            raise QueueFullError
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def ask(self, batch: Batch) -> np.ndarray:
        """What the model computes for one window, float32 [1,P,N,G].  Who no longer waits leaves nothing behind."""
        answer: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        self._waiting[answer] = batch
        self._arrived.set()
        try:
            return await answer
        finally:
            self._waiting.pop(answer, None)

    def stuck(self, limit_s: float) -> bool:
        """Whether the batch at hand takes longer than this."""
        return self.began is not None and time.monotonic() - self.began > limit_s

    async def run(self) -> None:
        """Compute what waits, batch by batch, until this is cancelled."""
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
                for place, answer in enumerate(answers):
                    if answer.done():  # who asked no longer waits
                        continue
                    if error := computed.exception():
                        answer.set_exception(error)
                    else:
                        answer.set_result(computed.result()[place : place + 1])

    def _compute(self, batches: Sequence[Batch]) -> np.ndarray:
        return self.forward(Batch(*(torch.cat(parts) for parts in zip(*batches, strict=True))))
