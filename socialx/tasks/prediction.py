"""``predict``: a run and a file -> the next horizon of every sensor."""

# Shape letters: W issues, T history steps, P horizon steps, N sensors, C features, G targets, R rows

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from socialx.build import Problem
from socialx.data.history import Histories
from socialx.data.source import pages
from socialx.errors import Argument, Message, Part, SettingsError, SocialxError
from socialx.files.formats.contents import parse_freq
from socialx.files.store import NOT_NEGATIVE, Store
from socialx.files.time_axis import JITTER_S, known_zone
from socialx.forecast import Forecast, Observed
from socialx.options import Layers
from socialx.progress import Callback, listening, note, work
from socialx.scoring.intervals import Intervals
from socialx.scoring.protocol import Trained
from socialx.settings import Settings
from socialx.tasks.outputs import inputs_of
from socialx.tasks.period import Time, as_text, wall_seconds
from socialx.tasks.trained import load_trained, refuse_overflow
from socialx.tasks.training import Run
from socialx.training.run_folder import open_run

DAY_S, YEAR_DAYS = 86_400, 365.25
SHOWN_HISTORIES = 4  # histories of observed readings before the first issue, for pictures


def predict(
    run: str | Path | Run,
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    at: Time | None = None,
    start: Time | None = None,
    end: Time | None = None,
    every: str | None = None,
    sensors: Sequence[str] | None = None,
    interval: float | None = None,
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> Forecast:
    """The next horizon of every sensor, after the last row of a file or after an earlier one.

    data: a file of the run's network, by default the run's own; it needs no more rows than one history.  at: the time
    of the last row to read.  start, end, every: issue a forecast at every such time instead; every is a text such as
    ``15min``, by default the horizon.  sensors: ids to return, by default all.  Times are wall times of the file.
    interval: a level such as 0.9 adds the lower and upper end of that prediction interval, of what ``calibrate`` wrote.

    A sensor whose history is incomplete is forecast from what is there; ``Forecast.marks`` says which.  Rows that are
    missing from the file count as missing readings.  A speed, flow or occupancy below 0 becomes 0, and a note says so.
    Raises SocialxError for a file that does not fit the run, is too short or has no reading in the history, and for a
    run without intervals; SettingsError for a time that the file does not have and a level that the run does not have.
    """
    with listening(progress):
        if at is not None and (start is not None or end is not None):
            raise SettingsError(Argument("at"), "one issue time, and a span of them too", "give one of the two")
        layers = Layers.of(settings, sections, data=data)
        path = run.path if isinstance(run, Run) else Path(run)
        problem, trained = load_trained(path, layers, split=False)
        band = None if interval is None else band_of(path, trained, problem.data.sensors.ids, interval)
        histories = problem.data.histories(JITTER_S)
        issued = issues(problem, histories, at, start, end, every)
        tell_about(problem, histories, issued, latest=at is None and start is None and end is None)
        readings, reported, values = [], [], []
        problem.model.eval()
        with work("predict", len(issued), "forecasts") as bar:
            for _, batch in histories.batches(issued, problem.settings.loader.batch_size):
                readings.append(histories.readings(batch))
                reported.append(histories.reported(batch))
                values.append(problem.precision.infer(problem.model, batch))
                bar.advance(len(batch.last))
        shown = SHOWN_HISTORIES * problem.data.history
        known = np.concatenate(readings), np.concatenate(reported), *histories.around(issued, shown)
        forecasts = np.concatenate(values)
        forecast = as_forecast(problem, str(path), issued, forecasts, *known)
        forecast = forecast if band is None else band.around(forecast, forecasts)
        forecast = replace(forecast, inputs=tuple(inputs_of(layers, [path])))
        return forecast if sensors is None else forecast.select(list(sensors))


@dataclass(frozen=True, eq=False)
class Band:
    """The intervals of a run for the sensors at hand, and the level that is asked for."""

    intervals: Intervals
    level: float

    def around(self, forecast: Forecast, values: np.ndarray) -> Forecast:
        """The same forecast with both ends.  values float32 [W,P,N,G]: what the model gave, before it was cut at 0."""
        low, high = self.intervals.around(torch.from_numpy(values), self.level)
        return replace(forecast, interval=self.level, lower=low.numpy(), upper=high.numpy())


def band_of(path: Path, trained: Trained, sensors: tuple[str, ...], level: float) -> Band:
    """The intervals of a run for these sensors; refuses a level that they do not have."""
    found = open_run(path).read_intervals(trained.weights)
    found.place(level)
    if unknown := [name for name in sensors if name not in set(found.sensors)]:
        those = f"{len(unknown)} of {len(sensors)} sensors were not calibrated"
        note(Message("", those, "their intervals are made of the errors of all sensors", unknown))
    return Band(found.of(sensors, torch.device("cpu")), level)


def as_forecast(
    problem: Problem,
    run: str,
    issued: np.ndarray,
    values: np.ndarray,
    readings: np.ndarray,
    reported: np.ndarray,
    times: np.ndarray,
    observed: np.ndarray,
) -> Forecast:
    """The values float32 [W,P,N,G] that the model gave for these issues int64 [W], with all that is known of them.

    readings, reported, times, observed: what ``Histories`` says of the issues, of what they read and of what is around
    them.  Raises SocialxError where a value is not finite.
    """
    refuse_overflow(run, values)
    d = problem.data
    steps = 60 * d.store.step_minutes * np.arange(1, d.horizon + 1)
    return Forecast(
        sensors=d.sensors.ids,
        targets=d.targets,
        units=tuple(d.stores[name].unit for name in d.targets),
        issued_at=issued.astype("datetime64[s]"),
        times=(issued[:, None] + steps).astype("datetime64[s]"),
        values=_not_negative(values, d.targets),
        readings=readings,
        reported=reported,
        history=d.history,
        step_minutes=d.store.step_minutes,
        timezone=d.store.timezone,
        run=run,
        dataset=d.store.dataset_name,
        observed=Observed(times.astype("datetime64[s]"), observed),
    )


def _not_negative(values: np.ndarray, targets: Sequence[str]) -> np.ndarray:
    """values [W,P,N,G] with those below 0 of quantities that cannot be so set to 0: a linear head knows no bound."""
    bounded = np.array([name in NOT_NEGATIVE for name in targets])
    below = (values < 0) & bounded
    if below.any():
        sensors = f"{below.any(axis=(0, 1, 3)).sum()} of {values.shape[2]} sensors"
        note(Message("", f"{below.sum()} values below 0, of {sensors}", "they are 0 in the forecast"))
    return np.where(below, np.float32(0), values)


def issues(
    problem: Problem,
    histories: Histories,
    at: Time | None = None,
    start: Time | None = None,
    end: Time | None = None,
    every: str | None = None,
) -> np.ndarray:
    """The issue times int64 [W], ascending: each is the time of a row that has a whole history before it.

    Nothing asked for is the last row.
    """
    store, step_s = problem.data.store, 60 * histories.step_minutes
    first = int(store.seconds.min()) + (histories.history - 1) * step_s
    last = int(store.seconds.max())
    if first > last + JITTER_S:
        rows = f"it ends {(last - int(store.seconds.min())) // step_s + 1} steps after it begins"
        raise SocialxError(store.path, f"{rows}, and one history is {histories.history}", "use a longer file")
    if start is None and end is None:
        if every is not None:
            raise SettingsError(Argument("every", every), "no span of issue times", ("add ", Argument("start")))
        asked = last if at is None else wall_seconds(at, "at", store.timezone)
        _refuse_outside(problem, asked, first, last, "at")
        if histories.rows_at(np.array([asked]))[0] < 0:
            raise SettingsError(
                Argument("at", as_text(asked)), f"{store.path} has no row at that time", _near(store, asked)
            )
        return np.array([asked], np.int64)
    interval = problem.data.horizon * step_s if every is None else parse_freq(every, "every")
    if interval % step_s:
        found = f"not a multiple of the {histories.step_minutes} minutes between two rows"
        raise SettingsError(Argument("every", every), found, f"for example {2 * histories.step_minutes}min")
    begin = first if start is None else wall_seconds(start, "start", store.timezone)
    until = last if end is None else wall_seconds(end, "end", store.timezone)
    _refuse_outside(problem, begin, first, last, "start")
    _refuse_outside(problem, until, first, last, "end")
    if until < begin:
        found = f"before the first issue time, {as_text(begin)}"
        raise SettingsError(Argument("end", as_text(until)), found, "name a later time, or leave it out")
    span = np.arange(begin, until + 1, interval, dtype=np.int64)
    there = histories.rows_at(span) >= 0
    if not there.any():
        found = f"{store.path} has no row at {as_text(begin)} or any issue time after it"
        raise SettingsError(Argument("start", as_text(begin)), found, _near(store, begin))
    if not there.all():
        note(Message(store.path, f"{(~there).sum()} of {len(span)} issue times have no row", "they are left out"))
    return span[there]


def _refuse_outside(problem: Problem, asked: int, first: int, last: int, argument: str) -> None:
    path, history = problem.data.store.path, problem.data.history
    if asked > last + JITTER_S:
        found = f"{path} ends at {as_text(last)}, and a forecast is issued at one of its rows"
        raise SettingsError(
            Argument(argument, as_text(asked)), found, ("the latest is ", Argument(argument, as_text(last)))
        )
    if asked < first - JITTER_S:
        found = f"{path} has fewer than {history} rows until then, and one history is {history}"
        raise SettingsError(
            Argument(argument, as_text(asked)), found, ("the first is ", Argument(argument, as_text(first)))
        )


def _near(store: Store, asked: int) -> tuple[Part, ...]:
    """The rows before and after a time."""
    before, after = store.seconds[store.seconds < asked], store.seconds[store.seconds > asked]
    near = [Argument("at", as_text(int(row))) for row in (*before[-1:], *after[:1])]
    return ("its nearest rows are ", *(part for row in near for part in (row, " and ")))[:-1]


def tell_about(problem: Problem, histories: Histories, issued: np.ndarray, latest: bool) -> None:
    """Notes on a last row that is old and on missing rows; refuses a single history without any reading."""
    store = problem.data.store
    age_s = _now(store.timezone) - int(issued[-1])
    if latest and age_s > DAY_S:
        days = age_s / DAY_S
        ago = f"{days / YEAR_DAYS:.1f} years" if days > YEAR_DAYS else f"{days:.0f} days"
        note(Message(store.path, f"its last row is {ago} old ({as_text(int(issued[-1]))})"))
    times = np.unique(histories.seconds_until(issued, histories.history))
    rows = histories.rows_at(times)
    if (rows < 0).any():
        gap = as_text(int(times[rows < 0][0]))
        found = f"{(rows < 0).sum()} of {len(times)} rows of the history are not in the file (the first at {gap})"
        note(Message(store.path, found, "they count as missing readings"))
    span = (store.seconds >= times[0] - JITTER_S) & (store.seconds <= times[-1] + JITTER_S)
    if odd := int(span.sum()) - int((rows >= 0).sum()):
        found = f"{odd} rows of the history do not fit the step of {store.step_minutes} minutes"
        note(Message(store.path, found, "they are not read"))
    if len(issued) == 1 and not histories.read(rows)[1].any():
        seen = _last_with_a_reading(store, int(issued[0]))
        last = None if seen is None else Argument("at", as_text(int(store.seconds[seen])))
        earlier = () if last is None else ("the last reading is from ", last)
        raise SocialxError(
            store.path,
            f"no sensor has a reading in the {histories.history} rows until {as_text(int(issued[0]))}",
            earlier,
        )


def _last_with_a_reading(store: Store, second: int) -> int | None:
    """The last row before this time in which any sensor has a valid reading."""
    for rows in reversed(list(pages(0, len(store.seconds)))):
        if len(found := np.flatnonzero(store.read(rows)[1].any(axis=1) & (store.seconds[rows] < second))):
            return rows.start + int(found[-1])
    return None


def _now(timezone: str | None) -> int:
    """The wall time now in the zone of the file, read as UTC; in UTC where the zone is not known."""
    return int(datetime.now(known_zone(timezone) or UTC).replace(tzinfo=UTC).timestamp())
