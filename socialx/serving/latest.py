"""Forecast after the last row of a file, again after every change, with alerts."""

# Shape letters: P horizon steps, N sensors, G targets

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from socialx.core.batch import Batch
from socialx.core.disk import file_signature
from socialx.core.errors import Message, SocialxError
from socialx.core.progress import Callback, note, subscribe
from socialx.data.calendar import DAY_S, next_times
from socialx.files.store.store import open_store
from socialx.files.store.time_axis import JITTER_S, Clock
from socialx.forecast.forecast import Forecast, Observed
from socialx.scoring.adaptation import free_flow_speeds
from socialx.scoring.drift import LEVEL
from socialx.serving.worker import Lookback
from socialx.tasks.build import Experiment
from socialx.tasks.opened import Band
from socialx.tasks.predict import SHOWN_HISTORIES, Asked, Issue, age_seconds, find_origins, requested_times

UNBOUNDED: dict[str, Any] = {"lower": None, "upper": None, "probability": None}
Ask = Callable[[Batch], Awaitable[np.ndarray]]
LATE_STEPS = 3  # a last row older than so many steps is late
ALERT, ARMED = 0.5, 0.3  # a probability that raises an alert, and below which the next alert is possible
PROGRAM_S, PROGRAMS = 30.0, 8  # seconds until an alert program is killed; programs at a time


@dataclass(frozen=True, eq=False)
class SensorCurves:
    """Hold observations around the latest forecast, the climatology at the same times, and the forecast before.

    usual: climatology float32 [R,N] at R times for the first target, NaN for gaps. earlier: the forecast issued a
    horizon before, ``None`` if the file lacks rows until then.
    """

    observed: Observed
    usual: np.ndarray
    latest: Forecast
    earlier: Forecast | None = None

    def curve(self, sensor: str, column: int) -> bytes:
        """Return the content of /curve for a sensor as JSON; column: index of the sensor."""
        lines = {"observed": self.observed.values[:, column, 0], "usual": self.usual[:, column]}
        times = self.latest.clock.texts(self.observed.times.astype(np.int64))
        content: dict[str, Any] = {"sensor": sensor, "times": times}
        for name, values in lines.items():
            content[name] = [None if value != value else round(value, 3) for value in values.tolist()]
        for name, forecast in (("latest", self.latest), ("earlier", self.earlier)):
            content[name] = None if forecast is None else forecast.select([sensor]).as_dict()
        return to_json(content)


@dataclass(eq=False)
class Latest:
    """Keep the latest forecast from a data file; an unreadable file leaves the older forecast in place."""

    experiment: Experiment
    run: str
    path: Path
    band: Band | None = None
    answer: bytes = b""  # ForecastAnswer as JSON
    short: bytes = b""  # in tenths, without intervals and probabilities, for the page
    alerts: list[str] | None = None  # sensors that are likelier than not below the threshold at a lead time
    curves: SensorCurves | None = None
    made: float = 0.0  # seconds since 1970
    reason: str = ""  # why the present file is unread, else empty
    _version: tuple[int, ...] = ()
    _due: dict[int, list[np.ndarray]] = field(default_factory=dict)  # issued -> both ends of its 50 % intervals [P,N]
    _scored: deque[tuple[int, int, int]] = field(default_factory=deque)  # issued, readings in them, readings

    def read(self) -> list[Lookback]:
        """Open the present file, and return the lookbacks until the last row and, if rows exist, a horizon before.

        Raises SocialxError for a file without a lookback for the run, or of another unit, step or zone than at first.
        """
        data = self.experiment.data
        stores = {name: open_store(self.path, name).with_sensors(data.sensors.ids) for name in data.stores}
        for store, first in zip(stores.values(), data.stores.values(), strict=True):  # of the kind of the first file
            pairs = {name: (getattr(store, name), getattr(first, name)) for name in ("unit", "step_minutes", "missing")}
            pairs["local_zone"] = store.clock.name, first.clock.name
            if differ := [f"{name} {new}, not {old}" for name, (new, old) in pairs.items() if new != old]:
                changed = f"the file is of another kind than at the start ({'; '.join(differ)})"
                raise SocialxError("serve.other-file", store.path, changed, "start the server again")
            if store.timezone != first.timezone:  # append met an hour that comes twice: the file is in UTC now
                self._due.clear()
        calendar = replace(data.calendar, zone=store.local_clock())
        experiment = replace(self.experiment, data=replace(data, stores=stores, calendar=calendar))
        if experiment.past is not None:
            experiment.past.renew(experiment.data)
        context = experiment.data.context(JITTER_S)
        issued = find_origins(experiment, context, requested_times(experiment, context, Asked()))
        earlier = issued - 60 * context.step_minutes * context.layout.horizon
        times = [issued, earlier] if (context.rows_at(earlier) >= 0).all() else [issued]
        return [Lookback.until(experiment, context, time) for time in times]

    def keep(self, issued: list[Lookback], values: list[np.ndarray]) -> None:
        """Replace the answers. issued: from ``read``, latest first. values: model output float32 [1,P,N,G] for each."""
        issue = issued[0].issue
        context, data, origins = issue.context, issue.experiment.data, issue.origins
        if self.band is not None:
            self._score(issue)
            ends = self.band.intervals.apply(torch.from_numpy(values[0]), LEVEL, torch.from_numpy(origins))
            self._due[int(origins[0])] = [end[0, ..., 0].numpy() for end in ends]
        pairs = zip(issued, values, strict=True)
        forecast, *earlier = (one.forecast(self.run, given, self.band) for one, given in pairs)
        rows = np.searchsorted(forecast.observed.times, forecast.origin)
        last = forecast.observed.values[rows].astype(object)  # [1,N,G]
        last[last != last] = None
        readings = {name: last[..., target].tolist() for target, name in enumerate(forecast.targets)}
        added: dict[str, Any] = {"last_observed": readings}
        if forecast.below is not None:
            highest, _ = forecast.highest_probability()
            self.alerts = added["alerts"] = [forecast.sensors[column] for column in np.flatnonzero(highest > ALERT)]
        self.answer = to_json({**forecast.as_dict(), **added})
        tenths = np.round(forecast.values.astype(float), 1)
        self.short = to_json({**replace(forecast, values=tenths, **UNBOUNDED).as_dict(), **added})
        times, observed = context.excerpt(origins, SHOWN_HISTORIES * data.lookback, data.horizon)
        usual = data.climatology.shared.lookup(times, np.repeat(origins, len(times))).readings[0, ..., 0]
        self.curves = SensorCurves(Observed(times.astype("datetime64[s]"), observed), usual, forecast, *earlier)
        self.experiment, self.made, self._version = issue.experiment, time.time(), data.store.version

    def _score(self, issue: Issue) -> None:
        """Count observations inside earlier 50 % intervals whose horizon has ended by ``issue``, for ``coverage``."""
        context, origin = issue.context, int(issue.origins[0])
        horizon_s = 60 * context.step_minutes * context.layout.horizon
        for issued in [start for start in self._due if start + horizon_s <= origin]:
            low, high = self._due.pop(issued)
            rows = context.rows_at(next_times(issued, context.step_minutes, context.layout.horizon))
            truth, valid = (part[..., context.layout.targets[0]] for part in context.read(rows))  # [P,N]
            inside = valid & (low <= truth) & (truth <= high)
            self._scored.append((issued, int(inside.sum()), int(valid.sum())))
        while self._scored and self._scored[0][0] < origin - DAY_S:
            self._scored.popleft()

    @property
    def coverage(self) -> float | None:
        """The share of the last day's observations inside the 50 % intervals; None before the first score."""
        inside, count = (sum(score[column] for score in self._scored) for column in (1, 2))
        return inside / count if count else None

    @property
    def age_s(self) -> int:
        """Seconds since the last row; a file without a zone counts as a day younger, because the hour is a guess."""
        store = self.experiment.data.store
        return max(0, age_seconds(store.timezone, int(store.seconds[-1])) - (0 if store.timezone else DAY_S))

    @property
    def adapted_before(self) -> str | None:
        """The local date before whose midnight the forecasts are adapted to another network; None for others."""
        past = self.experiment.past
        return past.day_text(int(self.experiment.data.store.seconds[-1])) if past is not None and past.adapts else None

    @property
    def late(self) -> bool:
        """Whether the last row is older than ``LATE_STEPS`` steps."""
        return self.age_s > 60 * LATE_STEPS * self.experiment.data.store.step_minutes

    def event(self, forecast: Forecast, column: int) -> bytes:
        """Return what an alert program reads about a sensor as JSON; column: index of the sensor."""
        sensors, clock = self.experiment.data.sensors, forecast.clock
        numbers = sensors.latitude[column], sensors.longitude[column], forecast.at_issue()[-1, column]
        latitude, longitude, reading = (round(float(x), 6) if np.isfinite(x) else None for x in numbers)
        share, step = (part[column].item() for part in forecast.highest_probability())
        times = np.stack([forecast.origin[-1], forecast.times[-1, step]]).astype(np.int64)
        origin, time = Clock("UTC", clock.name).texts(clock.utc(times))  # with the offset from UTC
        road = sensors.road[column] if sensors.road else ""
        content = {"sensor": forecast.sensors[column], "road": road, "latitude": latitude, "longitude": longitude}
        content |= {"feature": forecast.targets[0], "unit": forecast.unit, "below": forecast.below}
        content |= {"probability_below": round(share, 4), "lead_minutes": (step + 1) * forecast.step_minutes}
        return to_json(content | {"origin": origin, "time": time, "last_observed": reading}) + b"\n"

    async def look(self, ask: Ask) -> None:
        """Forecast again if the file has changed; ask: runs the model. An unreadable file changes only ``reason``."""
        try:
            if file_signature(self.path) != self._version:
                issued = await asyncio.to_thread(self.read)
                values = [await ask(issue.batch) for issue in issued]  # one by one, as at the start: the same bits
                await asyncio.to_thread(self.keep, issued, values)
            self.reason = ""
        except (SocialxError, OSError) as error:
            self.reason = error_text(error)


@dataclass(eq=False)
class Alerts:
    """Start a program once for each sensor whose probability below the threshold rises above one half.

    The sensor can raise the next alert after its highest probability was below 0.3.  program: an executable file, which
    reads an event as JSON from its standard input.  count: receives each result, ``ok`` or ``failed``.
    """

    program: Path
    count: Callable[[str], None]
    progress: Callback | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _raised: set[str] = field(default_factory=set)  # sensors
    _reported: set[str] = field(default_factory=set)  # reasons of failures
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PROGRAMS))

    def update(self, latest: Latest, forecast: Forecast) -> None:
        """Start the program for new alerts of the latest forecast, without waiting; called in the event loop."""
        for column, share in enumerate(forecast.highest_probability()[0].tolist()):
            sensor = forecast.sensors[column]
            if share > ALERT and sensor not in self._raised:
                self._raised.add(sensor)
                self.tasks.add(task := asyncio.create_task(self._start(latest.event(forecast, column))))
                task.add_done_callback(self.tasks.discard)
            elif share < ARMED:
                self._raised.discard(sensor)

    async def _start(self, content: bytes) -> None:
        """Run the program to its end, without a shell, and report a new kind of failure."""
        new: dict[str, Any] = {"stdin": PIPE, "stdout": DEVNULL, "start_new_session": True}
        try:
            async with self._places:
                process = await asyncio.create_subprocess_exec(self.program, **new)
                try:
                    async with asyncio.timeout(PROGRAM_S):
                        await process.communicate(content)
                finally:
                    if process.returncode is None:
                        os.killpg(process.pid, signal.SIGKILL)
                        await process.wait()
            reason = f"exit status {process.returncode}" if process.returncode else ""
        except OSError as error:
            reason = error.strerror or f"no end within {PROGRAM_S:g} s"
        self.count("failed" if reason else "ok")
        if reason and reason not in self._reported:
            self._reported.add(reason)
            with subscribe(self.progress):
                note(Message("serve.alert-failed", self.program, f"the alert program failed ({reason})"))


@dataclass(eq=False)
class Served:
    """A run in service: a trained model for a data file, and answers from this file.

    run: its name in answers. band: prediction intervals for every answer. latest: answers from the data file, if the
    file has a lookback. free_flow: free-flow speed per sensor in the first data file, float32 [N]; only for speeds.
    """

    experiment: Experiment
    run: str
    band: Band | None = None
    latest: Latest | None = None
    free_flow: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Take the model out of training."""
        self.experiment.model.eval()

    def infer(self, batch: Batch) -> np.ndarray:
        """Return the model output float32 [B,P,N,G] for a batch."""
        return self.experiment.precision.infer(self.experiment.model, batch)

    @property
    def present(self) -> Experiment:
        """The experiment with the data file as it was last read."""
        return self.experiment if self.latest is None else self.latest.experiment

    def forecast_from_data(self) -> None:
        """Forecast from the data file for /forecast/latest, at once."""
        latest = Latest(self.experiment, self.run, self.experiment.data.store.path, self.band)
        issued = latest.read()
        latest.keep(issued, [self.infer(lookback.batch) for lookback in issued])
        self.latest = latest
        if "speed" in self.experiment.data.targets[0]:
            self.free_flow = free_flow_speeds(latest.experiment.data)[:, 0]

    def network(self) -> dict[str, Any]:
        """Return the content of /sensors: sensors with locations and free-flow speeds, sizes and units."""
        data = self.experiment.data
        store, sensors = data.store, data.sensors
        degrees = np.stack([sensors.latitude, sensors.longitude], axis=1)
        places = [pair if np.isfinite(pair).all() else (None, None) for pair in degrees.tolist()]
        speeds = [0.0] * len(places) if self.free_flow is None else self.free_flow.tolist()
        roads = sensors.road or ("",) * len(places)
        return {
            "run": self.run,
            "dataset": store.dataset_name,
            "timezone": store.timezone,
            "local_zone": store.local_zone,
            "feature": data.targets[0],
            "unit": store.unit,
            "step_minutes": store.step_minutes,
            "lookback": data.lookback,
            "horizon": data.horizon,
            "sensors": [
                {
                    "id": vdid,
                    "road": road or None,
                    "latitude": lat,
                    "longitude": lon,
                    "free_flow": free if free > 0 else None,
                }
                for vdid, road, (lat, lon), free in zip(sensors.ids, roads, places, speeds, strict=True)
            ],
        }


def error_text(error: SocialxError | OSError) -> str:
    """Return the text of an error without paths, which clients should not see."""
    if isinstance(error, OSError):
        return error.strerror or "the file is unreadable"
    return "; ".join(message.problem for message in error.messages)


def to_json(content: dict[str, Any]) -> bytes:
    """Return content as strict JSON. Raises ValueError for NaN and infinite numbers."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
