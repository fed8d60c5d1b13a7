"""The forecast after the last row of a file, made again whenever the file was changed."""

# Shape letters: P horizon steps, N sensors, G targets

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from socialx.core.batch import Batch
from socialx.core.disk import file_signature
from socialx.core.errors import SocialxError
from socialx.data.calendar import DAY_S, next_times
from socialx.files.store.store import open_store
from socialx.files.store.time_axis import JITTER_S
from socialx.scoring.drift import LEVEL
from socialx.serving.worker import Issue
from socialx.tasks.build import Experiment
from socialx.tasks.predict import Band, issues, requested_times

Ask = Callable[[Batch], Awaitable[np.ndarray]]


@dataclass(eq=False)
class Latest:
    """A data file of the run's network and the latest forecast from it; a file that cannot be read changes nothing."""

    experiment: Experiment
    run: str
    path: Path
    band: Band | None = None
    answer: bytes = b""  # the forecast as JSON
    made: float = 0.0  # when, in seconds since 1970
    reason: str = ""  # why the file, as it is now, was not read; empty where it was
    _version: tuple[int, ...] = ()
    _due: dict[int, list[np.ndarray]] = field(default_factory=dict)  # issued -> both ends of its 50 % intervals [P,N]
    _scored: deque[tuple[int, int, int]] = field(default_factory=deque)  # issued, readings in them, readings

    def read(self) -> Issue:
        """Open the file as it is now.  Raises SocialxError where it has no history for this run."""
        data = self.experiment.data
        stores = {name: open_store(self.path, name).with_sensors(data.sensors.ids) for name in data.stores}
        for store, first in zip(stores.values(), data.stores.values(), strict=True):  # of the kind of the first file
            names = ("unit", "step_minutes", "timezone", "local_zone", "missing")
            pairs = {name: (getattr(store, name), getattr(first, name)) for name in names}
            if differ := [f"{name} {now}, not {before}" for name, (now, before) in pairs.items() if now != before]:
                found = f"it is another kind of file now ({'; '.join(differ)})"
                raise SocialxError(store.path, found, "start the server again")
        experiment = replace(self.experiment, data=replace(data, stores=stores))
        context = experiment.data.context(JITTER_S, experiment.data.server_climatology)
        issued = issues(experiment, context, requested_times(experiment, context))
        return Issue.of(experiment, context, issued)

    def keep(self, issue: Issue, values: np.ndarray) -> None:
        """ForecastAnswer with this from now on.  values: float32 [1,P,N,G]."""
        if self.band is not None:
            self._score(issue)
            ends = self.band.intervals.around(torch.from_numpy(values), LEVEL)
            self._due[int(issue.time[0])] = [end[0, ..., 0].numpy() for end in ends]
        forecast = issue.forecast(self.run, values, self.band)
        rows = np.searchsorted(forecast.observed.times, forecast.origin)
        now = forecast.observed.values[rows].astype(object)  # readings of the last row [1,N,G]
        now[now != now] = None
        readings = {name: now[..., place].tolist() for place, name in enumerate(forecast.targets)}
        self.answer = dumped({**forecast.as_dict(), "now": readings})
        self.experiment, self.made, self._version = issue.experiment, time.time(), issue.experiment.data.store.version

    def _score(self, issue: Issue) -> None:
        """Count the readings in the 50 % intervals of the forecasts whose horizon has ended."""
        context, now = issue.context, int(issue.time[0])
        for issued in [each for each in self._due if each + 60 * context.step_minutes * context.horizon <= now]:
            low, high = self._due.pop(issued)
            rows = context.rows_at(next_times(issued, context.step_minutes, context.horizon))
            truth, valid = (part[..., next(iter(context.targets))] for part in context.read(rows))  # [P,N]
            inside = valid & (low <= truth) & (truth <= high)
            self._scored.append((issued, int(inside.sum()), int(valid.sum())))
        while self._scored and self._scored[0][0] < now - DAY_S:
            self._scored.popleft()

    @property
    def covered(self) -> float | None:
        """The share of the readings of the last day in their 50 % intervals; None where there is none."""
        inside, count = (sum(each[place] for each in self._scored) for place in (1, 2))
        return inside / count if count else None

    async def look(self, ask: Ask) -> None:
        """Forecast again if the file was changed; what cannot be read is kept as reason, beside the older forecast."""
        try:
            if file_signature(self.path) != self._version:
                issue = await asyncio.to_thread(self.read)
                await asyncio.to_thread(self.keep, issue, await ask(issue.batch))
            self.reason = ""
        except (SocialxError, OSError) as error:
            self.reason = said(error)


def said(error: SocialxError | OSError) -> str:
    """What an error found, without paths."""
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    return "; ".join(message.what for message in error.messages)


def dumped(content: dict[str, Any]) -> bytes:
    """Strict JSON, whose numbers are finite."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
