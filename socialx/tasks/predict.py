"""``predict``: a run and a file -> the next horizon of every sensor."""

# Shape letters: W issues, T lookback steps, P horizon steps, N sensors, C features, G targets, R rows

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, counted, rewrite
from socialx.core.help import INTERVAL, RUNS, Output, Sensors, Times, table_help, with_help
from socialx.core.progress import Callback, note, subscribe, work
from socialx.data.calendar import DAY_S
from socialx.data.series import ContextReader
from socialx.data.source import pages
from socialx.files.sources.request import parse_freq
from socialx.files.store.quantities import NOT_NEGATIVE
from socialx.files.store.store import Store
from socialx.files.store.time_axis import JITTER_S, Time, known_zone
from socialx.forecast.forecast import Forecast, Observed
from socialx.inspection.checks import NO_READINGS, messages
from socialx.inspection.report import examine_readings
from socialx.scoring.adaptation import PAST_DAYS
from socialx.scoring.protocol import other_missing
from socialx.scoring.scoring_pass import refuse_overflow
from socialx.settings.arguments import SettingsArguments
from socialx.settings.conflicts import sensor_tables
from socialx.settings.layers import ConfigLayers, command_text, preset_here
from socialx.settings.schema import MOST_STEPS, Settings
from socialx.tasks.build import Experiment
from socialx.tasks.memory import when_memory_runs_out
from socialx.tasks.opened import Band, Opened, average_runs, open_forecasting, refuse_few
from socialx.tasks.train import Run, run_names
from socialx.tasks.trained_model import unit_doubts
from socialx.tasks.user_data import Data, as_file
from socialx.training.run_folder import TrainedRun, open_run

YEAR_DAYS = 365.25
DOUBTED_CELLS = 1 << 21  # in the last rows of a file: 5 weeks of METR-LA
SHOWN_HISTORIES = 4  # context of observed readings before the first issue, for pictures


@dataclass(frozen=True)
class Asked:
    """The forecast origins that a user asks for: at a time, or from start to end; the last row where all are None."""

    at: Time | None = None
    start: Time | None = None
    end: Time | None = None
    every: str | timedelta | None = None

    def __post_init__(self) -> None:
        """Raise SettingsError for a single time together with a first or last one."""
        if self.at is not None and (self.start is not None or self.end is not None):
            both = f"{Argument('at')} cannot be combined with {Argument('start')}"
            raise SettingsError("predict.at-and-start", "", both, "drop one of them")

    @property
    def argument(self) -> str | None:
        """The argument that names the first origin; None for the last row."""
        if self.at is not None:
            return "at"
        return None if self.start is None and self.end is None else "start"


Part = tuple[np.ndarray, np.ndarray, np.ndarray]  # of a batch: model output float32 [B,P,N,G], and ``input_state``


@dataclass(frozen=True, eq=False)
class Issue:
    """Forecast origins int64 [W], in seconds, and the rows that the forecasts read.

    shown: lookbacks of observations before the first origin that a forecast carries for pictures.
    """

    experiment: Experiment
    context: ContextReader
    origins: np.ndarray
    shown: int = 1

    def forecast(self, run: str, parts: Sequence[Part], band: Band | None = None) -> Forecast:
        """Return a run's output for all origins as a Forecast, with intervals if ``band`` is given.

        Negative values of a non-negative quantity become 0, because a linear output layer is unbounded.  Raises
        SocialxError for non-finite values.
        """
        values, readings, reported = map(np.concatenate, zip(*parts, strict=True))
        refuse_overflow(run, values)
        data = self.experiment.data
        below = (values < 0) & np.array([name in NOT_NEGATIVE for name in data.targets])
        if below.any():
            sensors = f"{below.any(axis=(0, 1, 3)).sum()} of {values.shape[2]} sensors"
            low = f"{counted(below.sum(), 'value')} below 0, of {sensors}, are 0 in the forecast"
            note(Message("predict.below-zero", "", low), True)
        steps = 60 * data.store.step_minutes * np.arange(1, data.horizon + 1)
        times, observed = self.context.excerpt(self.origins, self.shown * data.lookback, data.horizon)
        forecast = Forecast(
            sensors=data.sensors.ids,
            targets=data.targets,
            units=tuple(data.stores[name].unit for name in data.targets),
            origin=self.origins.astype("datetime64[s]"),
            times=(self.origins[:, None] + steps).astype("datetime64[s]"),
            values=np.where(below, np.float32(0), values),
            readings=readings,
            reported=reported,
            lookback=data.lookback,
            step_minutes=data.store.step_minutes,
            timezone=data.store.timezone,
            local_zone=data.store.local_zone,
            run=run,
            dataset=data.store.dataset_name,
            observed=Observed(times.astype("datetime64[s]"), observed),
        )
        return forecast if band is None else band.add_bounds(forecast, values)


@with_help
def predict(  # type: ignore[misc]  # a horizon is a time here, and a number of steps in the settings
    run: Annotated[str | Path | Run | Sequence[str | Path | Run], RUNS],
    data: Data = None,
    *,
    at: Annotated[Time | None, Times("time of the last row to read; not set: the last row", "TIME")] = None,
    start: Annotated[Time | None, Times("first of several forecast origins", "TIME")] = None,
    end: Annotated[Time | None, Times("the last of them; not set: the end", "TIME")] = None,
    every: Annotated[str | timedelta | None, Times("time between two: 15min; not set: the horizon", "TIME")] = None,
    horizon: Annotated[
        str | timedelta | None, Times("how far ahead: 4h; not set: as the run was trained", "TIME")
    ] = None,
    sensors: Annotated[str | Sequence[str] | None, Sensors("only these sensors; not set: all", "ID,ID")] = None,
    interval: Annotated[float | None, INTERVAL] = None,
    below: Annotated[float | None, Output("add the probability to be below this value, per lead time", "X")] = None,
    mean: Annotated[bool, Output("forecast the mean of several runs")] = False,
    meta_csv: Annotated[str | Path | None, table_help("locations of the sensors, joined by id", "FILE")] = None,
    units: Annotated[str | None, table_help("unit of its speeds", "mph|km/h")] = None,
    timezone: Annotated[str | None, table_help("time zone, such as Europe/Paris", "ZONE")] = None,
    missing: Annotated[
        float | str | Sequence[float] | None, table_help("numbers that stand for no reading, or none", "X,X")
    ] = None,
    resample: Annotated[
        str | timedelta | None, table_help("average finer rows to steps of this length", "TIME")
    ] = None,
    table: Annotated[str | Path | None, table_help("what it holds, in YAML", "SPEC")] = None,
    time_column: Annotated[Sequence[str], table_help("the column of times", "NAME")] = (),
    sensor_column: Annotated[Sequence[str], table_help("the column of sensors", "NAME")] = (),
    channel: Annotated[str | None, table_help("the column of readings", "NAME")] = None,
    quantity: Annotated[str | None, table_help("quantity of the readings, such as speed", "NAME")] = None,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> Forecast:
    """Forecast the next horizon of every sensor, from the last row of a file or from earlier rows.

    data: a file of the run's network, by default the run's own, with at least one lookback of rows.  A pandas frame
    works too (wall times x sensor ids, in the unit of the run's own file), as does any table that ``convert`` reads; a
    table is converted to a temporary file, with a note on keeping one.  A zero-shot run takes a frame as a table where
    ``meta_csv`` is given.  settings, sections: as in ``train``.  Prediction intervals come from ``calibrate``; of a
    mean, from errors of the mean in the week before each local day.  Probabilities (below) have the same source.

    horizon: up to 24 h for a zero-shot run, whose forecast fades into the usual speeds beyond the trained lead times.

    A sensor with an incomplete lookback is forecast from the available observations; ``Forecast.marks`` lists these
    sensors.  Absent rows count as missing values.  A speed, flow or occupancy below 0 becomes 0, with a note.  Raises
    SocialxError for a file that is unsuitable for the run, too short or empty in the lookback, and for a run that lacks
    intervals; SettingsError for a time outside the file and an uncalibrated level.
    """
    about: dict[str, Any] = {"meta_csv": meta_csv, "units": units, "timezone": timezone, "missing": missing}
    about |= {"resample": resample, "time_column": time_column, "sensor_column": sensor_column, "channel": channel}
    about |= {"table": table, "quantity": quantity}
    asked = Asked(at, start, end, every)
    with subscribe(progress), ExitStack() as stack:
        names = list(dict.fromkeys(run_names(run)))
        refuse_few(names, mean)
        if len(names) != 1 and not mean:
            remedy = f"add {Argument('mean', True)} for the mean of several, or use {Command('predict', *names[:1])}"
            raise SettingsError("predict.runs", "", f"predict needs one run, and {len(names)} are named", remedy)
        folders = [open_run(Path(name)) for name in names]
        (ahead_s,) = {parse_horizon(folder, horizon) for folder in folders}
        typed = ConfigLayers.from_call(settings, sections, task=predict)
        file, _ = stack.enter_context(as_file(data, folders[0], typed, about))
        layers = ConfigLayers.from_call(settings, {**sections, "data": file})
        several = [open_forecasting(folders[0], layers, split=False, ahead_s=ahead_s)]
        for other in folders[1:]:
            several.append(open_forecasting(other, layers, several[0].experiment, split=False, ahead_s=ahead_s))
        opened = average_runs(several) if mean else several[0]
        experiment, trained = opened.experiment, opened.trained
        for message in (odd := find_doubtful_values(experiment.data.store)):
            note(message)
        context = experiment.data.context(JITTER_S)
        experiment.model.eval()
        parts = []
        with when_memory_runs_out(experiment):
            times = requested_times(opened.ahead, context, asked)
            band = opened.band(interval, int(times[0]), below)
            origins = find_origins(experiment, context, times, asked.argument)
            for one in several:
                one.prepare(origins)
            if context.rolling and not mean and not sensor_tables(experiment.settings):
                _note_zero_shot(opened, int(origins[0]))
            issue = Issue(opened.ahead, context, origins, SHOWN_HISTORIES)
            with work("predict", len(origins), "forecasts") as bar:
                for _, batch in context.batches(origins, experiment.settings.loader.batch_size):
                    output = experiment.precision.infer(experiment.model, batch)
                    parts.append((output, *context.input_state(batch)))
                    bar.advance(len(batch.last))
        forecast = issue.forecast(str(opened.run.named), parts, band)
        doubt = other_missing(experiment.protocol.missing, trained.missing)
        notes = [rewrite(f"{experiment.data.store.path}: {doubt} of {opened.run.named}")] if doubt else []
        doubts = unit_doubts(experiment.data.store.path, experiment.protocol, opened.run.protocol)
        notes += [f"{message.where}: {message.problem}" for message in (*doubts, *odd)]
        forecast = replace(forecast, notes=tuple(notes)).first_steps(ahead_s)
        return forecast if sensors is None else forecast.select(sensors)


def parse_horizon(run: TrainedRun, horizon: str | timedelta | None) -> int | None:
    """Return a horizon in seconds; None for the horizon of the run.

    Raises SettingsError above a day, and for a run that forecasts less and is not zero-shot.
    """
    if horizon is None:
        return None
    seconds, protocol = parse_freq(horizon, "horizon", "24h"), run.protocol
    reach = 60 * protocol.step_minutes * protocol.horizon
    if seconds > DAY_S:
        longest = f"use {Argument('horizon', '24h')}"
        raise SettingsError("predict.horizon-day", "", f"{Argument('horizon', horizon)} is longer than a day", longest)
    if seconds > reach and not run.values.get("model.zero_shot"):
        named = str(run.values.get("data.path"))
        file, steps = run.find_file(named) or named, min(MOST_STEPS, seconds // (60 * protocol.step_minutes))
        fades = Command("predict", "zero-shot", data=file, horizon=horizon)
        longer = Command("train", **{"data.path": file, "preset": preset_here(), "data.horizon": steps})
        ends = f"{run.named} forecasts {reach // 60} min, and {Argument('horizon', horizon)} asks for more"
        raise SettingsError("predict.horizon", "", ends, f"use a zero-shot run: {fades}; or train a run: {longer}")
    return seconds


def find_doubtful_values(store: Store) -> list[Message]:
    """Return messages about values in the last rows that may stand for missing values."""
    rows = max(2, DOUBTED_CELLS // len(store.sensors.ids))
    return messages(examine_readings(store.select_rows(slice(-rows, None))), store.path, (*NO_READINGS, "zeros"))


def _note_zero_shot(opened: Opened, issued: int) -> None:
    """Note the climatology days, the errors on the last days of the file, and the command that scores more."""
    data, past = opened.experiment.data, opened.adapts
    days = data.climatology_days(issued)
    few = f", and forecasts are better with {PAST_DAYS} or more" if days < PAST_DAYS else ""
    scored = "" if few else Command("evaluate", opened.run.named, data=data.store.path, baselines=True)
    uses = f"the zero-shot forecast uses {counted(days, 'day')} of past data{few}"
    note(Message("predict.days", "", uses, scored), detail=not few)
    if past is not None and (leaning := past.leaning(past.bases([issued])[0])) is not None:
        percent = round(100 * leaning.below_naive)
        against = f"{abs(percent)} % {'below' if percent >= 0 else 'above'} the naive forecast"
        last = f"on the last {counted(min(days, PAST_DAYS), 'day')} of this file before {past.day_text(issued)}"
        note(Message("predict.lately", "", f"{last} the error was {against}"))


def requested_times(experiment: Experiment, context: ContextReader, asked: Asked) -> np.ndarray:
    """Return the requested forecast origins, int64 [W], ascending; by default the time of the last row.

    Raises SettingsError for times outside the file, and SocialxError for a file shorter than one lookback.
    """
    at, start, end, every = asked.at, asked.start, asked.end, asked.every
    store, step_s = experiment.data.store, 60 * context.step_minutes
    shown = store.clock.text
    first = int(store.seconds.min()) + (context.layout.lookback - 1) * step_s
    last = int(store.seconds.max())
    if first > last + JITTER_S:
        rows = f"the file ends {(last - int(store.seconds.min())) // step_s + 1} steps after the first row"
        short = f"{rows}, and one lookback is {context.layout.lookback}"
        raise SocialxError("predict.short", store.path, short, "use a longer file")

    def within(time: Time | None, argument: str, default: int) -> int:
        second = default if time is None else store.clock.seconds(time, argument)
        if second > last + JITTER_S:
            raise SettingsError("predict.late", "", *_late_origin(experiment, argument, second, last))
        if second < first - JITTER_S:
            fewer = f"{store.path} has fewer than {context.layout.lookback} rows, one lookback, until"
            earliest = f"use {Argument(argument, shown(first))} or a later time"
            raise SettingsError("predict.before", "", f"{fewer} {Argument(argument, shown(second))}", earliest)
        return second

    if start is None and end is None:
        if every is not None:
            needed = f"add {Argument('start', 'TIME')}"
            raise SettingsError("predict.no-start", "", f"{Argument('every')} needs {Argument('start')}", needed)
        return np.array([within(at, "at", last)], np.int64)
    interval = experiment.data.horizon * step_s if every is None else parse_freq(every, "every")
    if interval % step_s:
        other = f"{Argument('every', every)} is not a multiple of the {context.step_minutes} minutes between two rows"
        multiple = f"use for example {Argument('every', f'{2 * context.step_minutes}min')}"
        raise SettingsError("predict.every", "", other, multiple)
    begin, until = within(start, "start", first), within(end, "end", last)
    if until < begin:
        before = f"{Argument('end', shown(until))} is before the first origin, {shown(begin)}"
        raise SettingsError("predict.end", "", before, "name a later time, or leave it out")
    return np.arange(begin, until + 1, interval, dtype=np.int64)


def _late_origin(experiment: Experiment, argument: str, second: int, last: int) -> tuple[str, str]:
    """Return problem and remedy for an origin ``second`` after the last row: the latest origin, or a longer horizon."""
    store, horizon = experiment.data.store, experiment.data.horizon
    shown = store.clock.text
    minutes, latest = horizon * store.step_minutes, Argument(argument, shown(last))
    reaches = shown(last + 60 * minutes)
    ends = f"{store.path} ends at {shown(last)}, before {Argument(argument, shown(second))}"
    ends = f"{ends}, and a forecast from there reaches {minutes} min, to {reaches}"
    most = min(MOST_STEPS, DAY_S // 60 // store.step_minutes)
    if second <= last + 60 * minutes or horizon >= most:
        return ends, f"use {latest}, the latest time"
    if experiment.past is not None and second <= last + DAY_S:
        return ends, f"use {latest} and {Argument('horizon', '24h')}"
    targets = None if experiment.data.targets == Settings().data.targets else command_text(experiment.data.targets)
    named = {"data.path": store.path, "preset": preset_here(), "data.targets": targets}
    longer = Command("train", **named, **{"data.horizon": most})
    hours = f"{most * store.step_minutes / 60:g} h"
    return ends, f"use {latest}, or train a run that forecasts {hours}: {longer}"


def find_origins(
    experiment: Experiment, context: ContextReader, times: np.ndarray, argument: str | None = None
) -> np.ndarray:
    """Return the times that have a row, int64 [W]; each is a forecast origin.

    argument: ``at`` or ``start`` where a user chose the times; None for the last row.  Notes list times without a row,
    the age of the last row, and rows missing from the context.  Raises SettingsError where all times lack a row, and
    SocialxError for a single lookback without observations.
    """
    store = experiment.data.store
    shown = store.clock.text
    has_row = context.rows_at(times) >= 0
    if not has_row.any():
        wanted = int(times[0])
        before, after = store.seconds[store.seconds < wanted], store.seconds[store.seconds > wanted]
        nearest_rows = " or ".join(str(Argument("at", shown(int(row)))) for row in (*before[-1:], *after[:1]))
        which = f"at {shown(wanted)} or any forecast origin after it" if argument == "start" else f"at {shown(wanted)}"
        raise SettingsError("predict.row", "", f"{store.path} has no row {which}", f"use {nearest_rows}, the nearest")
    if not has_row.all():
        left_out = f"{(~has_row).sum()} of {len(times)} forecast origins have no row, and are left out"
        note(Message("predict.rows-left-out", store.path, left_out))
    issued = times[has_row]
    age_s = age_seconds(store.timezone, int(issued[-1]))
    if argument is None and age_s > DAY_S:
        note(Message("predict.old", store.path, f"the last row is {duration(age_s)} old ({shown(int(issued[-1]))})"))
    lookback = np.unique(issued[:, None] + 60 * context.step_minutes * np.arange(1 - context.layout.lookback, 1))
    rows = context.rows_at(lookback)
    if (rows < 0).any():
        gap = shown(int(lookback[rows < 0][0]))
        lacking = f"{(rows < 0).sum()} of {len(lookback)} rows of the lookback are not in the file (the first at {gap})"
        note(Message("predict.lacking", store.path, f"{lacking}, and count as missing readings"))
    span = (store.seconds >= lookback[0] - JITTER_S) & (store.seconds <= lookback[-1] + JITTER_S)
    if odd := int(span.sum()) - int((rows >= 0).sum()):
        unfit = f"{counted(odd, 'row is', 'rows are')} off the step of {store.step_minutes} minutes in the lookback"
        note(Message("predict.unfit", store.path, f"{unfit}, and left out"))
    if len(issued) == 1 and not context.read(rows)[1].any():
        until = shown(int(issued[0]))
        last = _last_observation(store, int(issued[0]))
        earlier = "" if last is None else f"use {Argument('at', shown(last))}, the last observation"
        empty = f"the {context.layout.lookback} rows until {until} hold no observation"
        raise SocialxError("predict.no-observation", store.path, empty, earlier)
    return issued


def age_seconds(zone: str | None, second: int) -> int:
    """Return the seconds from a wall time in a zone until now, at least 0; a file without a zone counts in UTC."""
    present = datetime.now(known_zone(zone) or UTC).replace(tzinfo=UTC)
    return max(0, int(present.timestamp()) - second)


def duration(seconds: int) -> str:
    """Return a duration in words: in years, else in whole days, hours or minutes."""
    if seconds > YEAR_DAYS * DAY_S:
        return f"{seconds / YEAR_DAYS / DAY_S:.1f} years"
    size, unit = next((pair for pair in ((DAY_S, "day"), (3600, "hour")) if seconds >= pair[0]), (60, "minute"))
    return counted(round(seconds / size), unit)


def _last_observation(store: Store, second: int) -> int | None:
    """Return the time of the last row before ``second`` with an observation by any sensor, in seconds, or None."""
    for rows in reversed(list(pages(0, len(store.seconds)))):
        with_reading = store.read(rows)[1].any(axis=1) & (store.seconds[rows] < second)
        if with_reading.any():
            return int(store.seconds[rows][np.flatnonzero(with_reading)[-1]])
    return None
