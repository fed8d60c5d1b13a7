"""``predict``: a run and a file -> the next horizon of every sensor."""

# Shape letters: W issues, T lookback steps, P horizon steps, N sensors, C features, G targets, R rows

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from socialx.core.errors import (
    Argument,
    Command,
    Message,
    SettingsError,
    SocialxError,
    counted,
    rewrite,
)
from socialx.core.help import INTERVAL, RUN, Help, with_help
from socialx.core.progress import Callback, note, subscribe, work
from socialx.data.calendar import DAY_S
from socialx.data.series import ContextReader
from socialx.data.source import pages
from socialx.files.sources.request import parse_freq
from socialx.files.store.quantities import NOT_NEGATIVE
from socialx.files.store.store import Store
from socialx.files.store.time_axis import JITTER_S, Time, as_text, known_zone, wall_seconds
from socialx.forecast.forecast import Forecast, Observed
from socialx.inspection.checks import NO_READINGS, messages
from socialx.inspection.report import examine
from socialx.scoring.intervals import ConformalIntervals
from socialx.scoring.protocol import Trained, other_missing
from socialx.scoring.scoring_pass import refuse_overflow
from socialx.settings.conflicts import sensor_tables
from socialx.settings.layers import ConfigLayers, command_text, preset_here
from socialx.settings.schema import MOST_STEPS, Settings
from socialx.tasks.build import Experiment
from socialx.tasks.memory import when_memory_runs_out
from socialx.tasks.outputs import inputs_of
from socialx.tasks.train import Run
from socialx.tasks.trained_model import intervals_of, load_trained, other_units, rescale_to_free_flow
from socialx.tasks.user_data import Data, as_file
from socialx.training.run_folder import TrainedRun, open_run

YEAR_DAYS, WEEK_DAYS = 365.25, 7
DOUBTED_CELLS = 1 << 21  # of the last rows of a file: 5 weeks of METR-LA
SHOWN_HISTORIES = 4  # context of observed readings before the first issue, for pictures


@with_help
def predict(
    run: Annotated[str | Path | Run, RUN],
    data: Data = None,
    *,
    at: Annotated[Time | None, Help("time of the last row to read; not set: the last row", "TIME")] = None,
    start: Annotated[Time | None, Help("issue forecasts repeatedly, the first one here", "TIME")] = None,
    end: Annotated[Time | None, Help("the last of them; not set: the end", "TIME")] = None,
    every: Annotated[str | timedelta | None, Help("time between two of them; not set: the horizon", "15min")] = None,
    sensors: Annotated[str | Sequence[str] | None, Help("only these sensors; not set: all", "ID,ID")] = None,
    interval: Annotated[float | None, INTERVAL] = None,
    meta_csv: Annotated[str | Path | None, Help("of a table: locations of the sensors, joined by id", "FILE")] = None,
    units: Annotated[str | None, Help("of a table: unit of its speeds", "mph|km/h")] = None,
    timezone: Annotated[str | None, Help("of a table: its time zone, such as Europe/Paris", "ZONE")] = None,
    missing: Annotated[
        float | str | Sequence[float] | None, Help("of a table: numbers that stand for no reading", "0|-1,0|none")
    ] = None,
    resample: Annotated[
        str | timedelta | None, Help("of a table: average finer rows to steps of this length", "5min")
    ] = None,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Any,
) -> Forecast:
    """The next horizon of every sensor, after the last row of a file or after an earlier one.

    data: a file of the run's network, by default the run's own; it needs no more rows than one history.  A pandas frame
    is data too: wall times x sensor ids, readings in the unit of the run's own file.  Times are wall times of the file.
    A prediction interval is one of what ``calibrate`` wrote.

    A table that ``convert`` reads is data too: it is converted to a temporary file, and a note says how to keep one.
    So is a frame for a zero-shot run, if ``meta_csv`` is given.

    A sensor whose history is incomplete is forecast from what is there; ``Forecast.marks`` says which.  Rows that are
    missing from the file count as missing readings.  A speed, flow or occupancy below 0 becomes 0, and a note says so.
    Raises SocialxError for a file that does not fit the run, is too short or has no reading in the history, and for a
    run without intervals; SettingsError for a time that the file does not have and a level that the run does not have.
    """
    said = {"meta_csv": meta_csv, "units": units, "timezone": timezone, "missing": missing, "resample": resample}
    if at is not None and (start is not None or end is not None):
        raise SettingsError(Argument("at"), "one issue time, and a span of them too", "give one of the two")
    with subscribe(progress), ExitStack() as stack:
        of_run = open_run(Path(str(run)))
        file, named = stack.enter_context(as_file(data, of_run, ConfigLayers.from_call(settings, sections), said))
        experiment, trained = load_trained(
            of_run, ConfigLayers.from_call(settings, {**sections, "data": file}), split=False
        )
        inputs = tuple(inputs_of(named, [of_run], [meta_csv]))
        for message in (odd := doubts_of(experiment.data.store)):
            note(message)
        context = experiment.data.context(JITTER_S)
        readings, reported, values = [], [], []
        experiment.model.eval()
        with when_memory_runs_out(experiment):
            argument = "at" if at is not None else "start" if start is not None or end is not None else None
            times = requested_times(experiment, context, at, start, end, every)
            if experiment.settings.model.zero_shot:
                rescale_to_free_flow(experiment, of_run.protocol, int(times[0]))
            band = None if interval is None else band_of(of_run, trained, experiment, interval, int(times[0]))
            issued = issues(experiment, context, times, argument)
            if context.rolling and not sensor_tables(experiment.settings):
                _note_known(of_run.named, experiment.data.store.path, experiment.data.climatology_days(int(issued[0])))
            with work("predict", len(issued), "forecasts") as bar:
                for _, batch in context.batches(issued, experiment.settings.loader.batch_size):
                    readings.append(context.count_valid(batch))
                    reported.append(context.has_reported(batch))
                    values.append(experiment.precision.infer(experiment.model, batch))
                    bar.advance(len(batch.last))
        shown = SHOWN_HISTORIES * experiment.data.lookback
        known = np.concatenate(readings), np.concatenate(reported), *context.excerpt(issued, shown)
        forecasts = np.concatenate(values)
        forecast = as_forecast(experiment, str(of_run.named), issued, forecasts, *known)
        forecast = forecast if band is None else band.around(forecast, forecasts)
        doubt = other_missing(experiment.protocol.missing, trained.missing)
        notes = [rewrite(f"{experiment.data.store.path}: {doubt} of {of_run.named}")] if doubt else []
        asked = other_units(experiment.data.store.path, experiment.protocol, of_run.protocol)
        notes += [f"{each.where}: {each.what}" for each in (*asked, *odd)]
        forecast = replace(forecast, inputs=inputs, notes=tuple(notes))
        return forecast if sensors is None else forecast.select(sensors)


def doubts_of(store: Store) -> list[Message]:
    """Messages on numbers of the last rows that may stand for no reading."""
    rows = max(2, DOUBTED_CELLS // len(store.sensors.ids))
    return messages(examine(store.within(slice(-rows, None))), store.path, (*NO_READINGS, "zeros"))


@dataclass(frozen=True, eq=False)
class Band:
    """The intervals of a run for the sensors at hand, and the level that is asked for."""

    intervals: ConformalIntervals
    level: float

    def around(self, forecast: Forecast, values: np.ndarray) -> Forecast:
        """The same forecast with both ends.  values float32 [W,P,N,G]: what the model gave, before it was cut at 0."""
        low, high = self.intervals.around(torch.from_numpy(values), self.level)
        return replace(forecast, interval=self.level, lower=low.numpy(), upper=high.numpy())


def _note_known(run: Path, file: Path, days: int) -> None:
    """Say how many days of a network are known, and which command scores such forecasts on its file."""
    better = f"forecasts are better with {WEEK_DAYS} or more"
    scored = f"{Command('evaluate', run, data=file, baselines=True)} scores such forecasts on this file"
    what = f"{counted(days, 'day')} of it known before the first forecast"
    note(Message(file, what, better if days < WEEK_DAYS else scored))


def band_of(run: TrainedRun, trained: Trained, experiment: Experiment, level: float, issued: int) -> Band:
    """The intervals of a run for the sensors of a problem; refuses a level that they do not have.

    issued: the second of the first issue.
    """
    sensors = experiment.data.sensors.ids
    found, of = intervals_of(run, trained, experiment, issued)
    found.place(level)
    if of:
        note(Message("", f"intervals of the errors on {of}"))
    elif unknown := [name for name in sensors if name not in set(found.sensors)]:
        those = f"{len(unknown)} of {len(sensors)} sensors were not calibrated"
        note(Message("", those, "their intervals are made of the errors of all sensors", unknown))
    return Band(found.of(sensors, torch.device("cpu"), experiment.protocol.targets), level)


def as_forecast(
    experiment: Experiment,
    run: str,
    issued: np.ndarray,
    values: np.ndarray,
    readings: np.ndarray,
    reported: np.ndarray,
    times: np.ndarray,
    observed: np.ndarray,
) -> Forecast:
    """The values float32 [W,P,N,G] that the model gave for these issues int64 [W], with all that is known of them.

    readings, reported, times, observed: what ``ContextReader`` says of the issues, of what they read and of what is
    around them.  A value below 0 of a quantity that cannot be so becomes 0, because a linear head knows no bound.
    Raises SocialxError where a value is not finite.
    """
    refuse_overflow(run, values)
    data = experiment.data
    below = (values < 0) & np.array([name in NOT_NEGATIVE for name in data.targets])
    if below.any():
        sensors = f"{below.any(axis=(0, 1, 3)).sum()} of {values.shape[2]} sensors"
        note(Message("", f"{counted(below.sum(), 'value')} below 0, of {sensors}", "they are 0 in the forecast"))
    steps = 60 * data.store.step_minutes * np.arange(1, data.horizon + 1)
    return Forecast(
        sensors=data.sensors.ids,
        targets=data.targets,
        units=tuple(data.stores[name].unit for name in data.targets),
        origin=issued.astype("datetime64[s]"),
        times=(issued[:, None] + steps).astype("datetime64[s]"),
        values=np.where(below, np.float32(0), values),
        readings=readings,
        reported=reported,
        lookback=data.lookback,
        step_minutes=data.store.step_minutes,
        timezone=data.store.timezone,
        run=run,
        dataset=data.store.dataset_name,
        observed=Observed(times.astype("datetime64[s]"), observed),
    )


def requested_times(
    experiment: Experiment,
    context: ContextReader,
    at: Time | None = None,
    start: Time | None = None,
    end: Time | None = None,
    every: str | timedelta | None = None,
) -> np.ndarray:
    """The issue times that are asked for, int64 [W], ascending; the time of the last row where nothing is.

    Raises SettingsError for times outside of the file, and SocialxError for a file that is shorter than one history.
    """
    store, step_s = experiment.data.store, 60 * context.step_minutes
    first = int(store.seconds.min()) + (context.lookback - 1) * step_s
    last = int(store.seconds.max())
    if first > last + JITTER_S:
        rows = f"it ends {(last - int(store.seconds.min())) // step_s + 1} steps after it begins"
        raise SocialxError(store.path, f"{rows}, and one history is {context.lookback}", "use a longer file")

    def within(time: Time | None, argument: str, default: int) -> int:
        second = default if time is None else wall_seconds(time, argument, store.timezone)
        if second > last + JITTER_S:
            raise SettingsError(Argument(argument, as_text(second)), *_beyond(experiment, argument, second, last))
        if second < first - JITTER_S:
            fewer = f"{store.path} has fewer than {context.lookback} rows until then"
            earliest = f"the first is {Argument(argument, as_text(first))}"
            one = f"{fewer}, and one history is {context.lookback}"
            raise SettingsError(Argument(argument, as_text(second)), one, earliest)
        return second

    if start is None and end is None:
        if every is not None:
            raise SettingsError(Argument("every", every), "no span of issue times", f"add {Argument('start')}")
        return np.array([within(at, "at", last)], np.int64)
    interval = experiment.data.horizon * step_s if every is None else parse_freq(every, "every")
    if interval % step_s:
        other = f"not a multiple of the {context.step_minutes} minutes between two rows"
        raise SettingsError(Argument("every", every), other, f"for example {2 * context.step_minutes}min")
    begin, until = within(start, "start", first), within(end, "end", last)
    if until < begin:
        before = f"before the first issue time, {as_text(begin)}"
        raise SettingsError(Argument("end", as_text(until)), before, "name a later time, or leave it out")
    return np.arange(begin, until + 1, interval, dtype=np.int64)


def _beyond(experiment: Experiment, argument: str, second: int, last: int) -> tuple[str, str]:
    """What to say of an issue time after the last row, and what helps: how far its forecast reaches, and what would."""
    store, horizon = experiment.data.store, experiment.data.horizon
    minutes, latest = horizon * store.step_minutes, Argument(argument, as_text(last))
    reaches = as_text(last + 60 * minutes)
    ends = f"{store.path} ends at {as_text(last)}, and a forecast from there reaches {minutes} min, to {reaches}"
    most = min(MOST_STEPS, DAY_S // 60 // store.step_minutes)
    if second <= last + 60 * minutes or horizon >= most:
        return ends, f"the latest is {latest}"
    targets = None if experiment.data.targets == Settings().data.targets else command_text(experiment.data.targets)
    named = {"data.path": store.path, "preset": preset_here(), "data.targets": targets}
    longer = Command("train", **named, **{"data.horizon": most})
    hours = f"{most * store.step_minutes / 60:g} h"
    return ends, f"the latest is {latest}; a run that forecasts {hours} is trained with {longer}"


def issues(
    experiment: Experiment, context: ContextReader, times: np.ndarray, argument: str | None = None
) -> np.ndarray:
    """Those of these times that are the time of a row, int64 [W]: a forecast is issued at each of them.

    argument: ``at`` or ``start``, with which a user asked for them; None: it is the last row.  Notes say which times
    have no row, how old the last row is, and which rows of the context are missing.  Raises SettingsError where no
    time has a row, and SocialxError for a single history without any reading.
    """
    store = experiment.data.store
    has_row = context.rows_at(times) >= 0
    if not has_row.any():
        wanted = int(times[0])
        before, after = store.seconds[store.seconds < wanted], store.seconds[store.seconds > wanted]
        near = " and ".join(str(Argument("at", as_text(int(row)))) for row in (*before[-1:], *after[:1]))
        which = f"at {as_text(wanted)} or any issue time after it" if argument == "start" else "at that time"
        where = Argument(argument or "at", as_text(wanted))
        raise SettingsError(where, f"{store.path} has no row {which}", f"its nearest rows are {near}")
    if not has_row.all():
        note(Message(store.path, f"{(~has_row).sum()} of {len(times)} issue times have no row", "they are left out"))
    issued = times[has_row]
    now_s = int(datetime.now(known_zone(store.timezone) or UTC).replace(tzinfo=UTC).timestamp())
    days = (now_s - int(issued[-1])) / DAY_S
    if argument is None and days > 1:
        ago = f"{days / YEAR_DAYS:.1f} years" if days > YEAR_DAYS else f"{days:.0f} days"
        note(Message(store.path, f"its last row is {ago} old ({as_text(int(issued[-1]))})"))
    lookback = np.unique(context.seconds_until(issued, context.lookback))
    rows = context.rows_at(lookback)
    if (rows < 0).any():
        gap = as_text(int(lookback[rows < 0][0]))
        lacking = f"{(rows < 0).sum()} of {len(lookback)} rows of the history are not in the file (the first at {gap})"
        note(Message(store.path, lacking, "they count as missing readings"))
    span = (store.seconds >= lookback[0] - JITTER_S) & (store.seconds <= lookback[-1] + JITTER_S)
    if odd := int(span.sum()) - int((rows >= 0).sum()):
        unfit = f"{counted(odd, 'row')} of the history off the step of {store.step_minutes} minutes"
        note(Message(store.path, unfit, "they are not read"))
    if len(issued) == 1 and not context.read(rows)[1].any():
        until = as_text(int(issued[0]))
        last = _last_with_a_reading(store, int(issued[0]))
        earlier = "" if last is None else f"the last reading is from {Argument('at', as_text(last))}"
        raise SocialxError(store.path, f"no sensor has a reading in the {context.lookback} rows until {until}", earlier)
    return issued


def _last_with_a_reading(store: Store, second: int) -> int | None:
    """The time of the last row before this one in which any sensor has a valid reading, in seconds."""
    for rows in reversed(list(pages(0, len(store.seconds)))):
        with_reading = store.read(rows)[1].any(axis=1) & (store.seconds[rows] < second)
        if with_reading.any():
            return int(store.seconds[rows][np.flatnonzero(with_reading)[-1]])
    return None
