"""A run folder -> the trained model for a data file: the start of every task that uses a run.

A zero-shot model takes half the freeway speed for congestion and forecasts its end, yet on city streets that speed is
free flow.  Mean and deviation of such a network are therefore the training statistics times the free-flow ratio,
rounded to the fourth root of 2, so that a network within 9 % keeps the training statistics.
"""

# Shape letters: N sensors, F inputs, G targets

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, counted
from socialx.core.progress import note
from socialx.data.climatology import DailyStats
from socialx.data.scaler import MeanStd, StandardScaler
from socialx.files.store.quantities import KMH, ratio_of_units
from socialx.files.store.store import Store, open_store
from socialx.model.forecaster import CoarserStepAdapter
from socialx.model.state import check_state, select_sensor_weights, starting_state
from socialx.scoring.free_flow import free_flow_speeds, latest_free_flow
from socialx.scoring.intervals import ConformalIntervals, fit_past_intervals
from socialx.scoring.last_days import PAST_DAYS, LastDays, LeaningModel
from socialx.scoring.protocol import ScoringProtocol, Trained, network_checksum
from socialx.settings.conflicts import sensor_tables, takes_new_sensors
from socialx.settings.layers import Config, ConfigLayers, differences
from socialx.settings.schema import SCORING, Settings
from socialx.tasks.build import Experiment, build
from socialx.training.run_folder import RunWeights, TrainedRun, open_run

MOST_STEP_MINUTES = 15  # the longest file step that a run with a shorter step forecasts


def adapt_to_file(
    experiment: Experiment, state: dict[str, Tensor], run: ScoringProtocol
) -> tuple[dict[str, Tensor], ScoringProtocol]:
    """Rescale a run's scaler statistics to the units and free-flow speed of a file; return weights and protocol.

    Every other weight acts on normalised observations.  On another network the missing-value rule comes from the file.
    """
    file, changed, units, ratios = experiment.protocol, {}, {}, {}
    for name, of_file, of_run in (("input", file.inputs, run.inputs), ("target", file.targets, run.targets)):
        units[name] = {
            key: of_file[key] if {of_file.get(key), unit} <= {*KMH} else unit for key, unit in of_run.items()
        }
        for key, unit in units[name].items():
            ratios[key] = ratio_of_units(of_run[key], unit) * free_flow_ratio(file, run, key)
        for part in (f"scaler.{name}_mean", f"scaler.{name}_std"):
            if part in state:  # weights are checked later
                changed[part] = state[part] * torch.tensor([ratios[key] for key in of_run])
    moments = {
        key: MeanStd(moment.mean * ratios.get(key, 1.0), moment.std * ratios.get(key, 1.0))
        for key, moment in run.scaler.items()
    }
    missing = run.missing if file.network == run.network else file.missing
    fits = replace(run, inputs=units["input"], targets=units["target"], missing=missing, scaler=moments)
    return {**state, **changed}, fits


def resampling_factor(settings: Settings, trained: ScoringProtocol) -> int:
    """Return file step / model step for a zero-shot run; 1 if the steps are equal.

    Raises SocialxError unless the file step is a multiple of the run's step that divides lookback and horizon.
    """
    if settings.data.path is None:
        return 1
    step, run_step = open_store(settings.data.path, settings.data.targets[0]).step_minutes, trained.step_minutes
    lengths = settings.data.lookback, settings.data.horizon
    if step % run_step or step > MOST_STEP_MINUTES or any(length % (step // run_step) for length in lengths):
        steps = [run_step * k for k in range(1, MOST_STEP_MINUTES // run_step + 1) if not any(n % k for n in lengths)]
        asked = f"the file has a step of {step} min, and the run forecasts steps of {', '.join(map(str, steps))} min"
        fitting = Command("train", **{"data.path": settings.data.path, "model.zero_shot": True})
        raise SocialxError(settings.data.path, asked, f"train a run on such data: {fitting}")
    return step // run_step


def load_start_weights(run: TrainedRun, experiment: Experiment) -> Experiment:
    """Load weights and scaler of a run to fine-tune, in file units.

    Sensor embeddings are matched by id; new sensors start from zeros where the run takes new sensors.  Raises
    SocialxError for unsuitable data or weights.
    """
    name, data, weights = experiment.settings.trainer.init_from, experiment.data, run.read_weights()
    state, fits = adapt_to_file(experiment, weights.state, run.protocol)
    experiment.protocol.refuse_other(fits, run.path, data.store.path, False)
    sensors = run.sensors or ()
    settings, indices = experiment.settings, match_sensors(data.sensors.ids, sensors)
    new_ones = [number for number, index in enumerate(indices) if index < 0]
    same = not new_ones and len(indices) == len(sensors)
    shares = takes_new_sensors(settings) and len(new_ones) < len(indices)
    try:
        start, new = starting_state(experiment.model, state, indices if same or shares else None)
    except ValueError as error:
        raise SocialxError(run.path, f"the weights do not fit {run.settings} ({error})", "name another run") from None
    experiment.model.load_state_dict(start)
    taken = sum(parameter.numel() for parameter in experiment.model.parameters()) - new
    fresh = f"{new:,} new ones of single sensors and times" if new else "none new"
    note(f"{name}: training starts from its weights: {counted(taken, 'parameter')} taken, {fresh}")
    data, moments = replace(data, moments=fits.scaler), dict(fits.scaler)
    return replace(experiment, data=data, protocol=replace(experiment.protocol, scaler=moments))


def load_intervals(
    run: TrainedRun, trained: Trained, experiment: Experiment, issued: int
) -> tuple[ConformalIntervals, str]:
    """Return the prediction intervals of a run for a file, and words for intervals from elsewhere.

    On the calibrated network and step these are the stored intervals, and the words are empty.  Elsewhere a zero-shot
    run measures the errors of its forecasts in the week before the second ``issued``; with too few observations the
    stored intervals are a first guess.  Raises SocialxError for an uncalibrated run.
    """
    data, protocol = experiment.data, experiment.protocol
    calibrated = run.read_intervals(trained.weights) if run.intervals.exists() else None
    here = calibrated and (network_checksum(calibrated.sensors), calibrated.protocol.step_minutes)
    elsewhere = experiment.settings.model.zero_shot and here != (protocol.network, protocol.step_minutes)
    if elsewhere:
        size = experiment.settings.loader.batch_size
        week = fit_past_intervals(issued, experiment.model, data, size, experiment.precision, protocol, trained.weights)
        if week is not None:
            days = counted(min(data.climatology_days(issued), PAST_DAYS), "day")
            return week, f"the last {days} of {data.store.path}"
    calibrated = calibrated or run.read_intervals(trained.weights)
    ratios = [free_flow_ratio(protocol, calibrated.protocol, name) for name in protocol.targets]
    if not elsewhere:
        return calibrated.rescale(ratios), ""
    flow = free_flow_speeds(data, slice(0, data.rows_until(issued)))
    guess = f"{calibrated.protocol.dataset}, where {run.named} was calibrated, as a first guess"
    few = f"{data.store.path} has too few readings of the week before"
    return calibrated.for_network(data.sensors.ids, flow, ratios, protocol), f"{guess}: {few}"


def lean_on_naive(experiment: Experiment, run: ScoringProtocol, before: int) -> tuple[Experiment, LastDays | None]:
    """Let a zero-shot model lean on the last observation where the errors in the last days of the file say so.

    before: second at which the last days end.  The errors are returned too; None for other models, on the network of
    the training, and without past days.
    """
    if not experiment.settings.model.zero_shot or experiment.protocol.network == run.network:
        return experiment, None
    size, precision = experiment.settings.loader.batch_size, experiment.precision
    last_days = LastDays.measure(before, experiment.model, experiment.data, size, precision)
    if last_days is None:
        return experiment, None
    return replace(experiment, model=LeaningModel(experiment.model, last_days.shares.to(precision.device))), last_days


def match_sensors(ids: Sequence[str], sensors: Sequence[str]) -> list[int]:
    """Return the index of each file sensor in a run, or -1 for a new sensor."""
    index_by_id = {name: number for number, name in enumerate(sensors)}
    return [index_by_id.get(name, -1) for name in ids]


def _align_sensors(
    state: dict[str, Tensor], ids: Sequence[str], sensors: Sequence[str], run: Path, file: Path
) -> dict[str, Tensor]:
    """Return a run's weights in the sensor order of a file, with a note on new sensors.

    Raises SocialxError where all sensors are new.
    """
    indices = match_sensors(ids, sensors)
    new = [name for name, index in zip(ids, indices, strict=True) if index < 0]
    if len(new) == len(ids):
        other = f"train a zero-shot run: {Argument('model.zero_shot', True)}"
        raise SocialxError(file, f"all {counted(len(ids), 'sensor')} are new to {run}", other)
    if new:
        without = "which forecasts them without what training learns of single sensors"
        note(Message(file, f"{len(new)} of {len(ids)} sensors are new to {run}, {without}", sample=new))
    return select_sensor_weights(state, indices)


def load_run_settings(run: TrainedRun, layers: ConfigLayers, purpose: str) -> Config:
    """Load the settings of a run, with its data file at the current path unless the user names data.

    Readers of the file must call ``refuse_other_file``.  Raises SocialxError where the file is gone.
    """
    values = run.values
    if (named := values.get("data.path")) and layers.data is None:
        if (file := run.find_data_file(str(named))) is None:
            remedy = f"name the file with {Argument('data.path', 'FILE')}"
            raise SocialxError(named, f"the data file of {run.path} is missing", remedy)
        if file != Path(str(named)):
            note(f"the data file is {file}")
        values = values | {"data.path": str(file)}
    return layers.load_run(run.settings, values, purpose, run.fixed)


def refuse_other_file(run: TrainedRun, stores: Mapping[str, Store]) -> None:
    """Raise SocialxError where a file that nobody named differs from the training data."""
    if run.has_training_data(stores):
        return
    trained, path = run.protocol, next(iter(stores.values())).path
    problem = f"the file differs from the data of {run.path}, from {trained.first_time} to {trained.last_time}"
    raise SocialxError(path, problem, f"name the data to use, this file or another: {Argument('data.path', path)}")


def _note_left_out(run: TrainedRun, experiment: Experiment) -> None:
    """Note the sensors of a file that a run leaves out."""
    store, kept_ids = experiment.data.store, {*experiment.data.sensors.ids}
    ids = open_store(store.path, store.feature).sensors.ids
    if new := [vdid for vdid in ids if vdid not in kept_ids]:
        remedy = f"train a run of all sensors: {Command('train', **{'data.path': store.path})}"
        problem = f"{len(new)} of {len(ids)} sensors are new to {run.named} and left out"
        note(Message(store.path, problem, remedy, new))


def _add_climatology(experiment: Experiment, run: TrainedRun, climatology: DailyStats) -> Experiment:
    """Add the stored climatology of a run to the data, in file units."""
    indices, units = match_sensors(experiment.data.sensors.ids, run.sensors or ()), run.protocol.targets
    if (
        not experiment.data.train_climatology_days
        or max(indices) < 0
        or len(climatology.sums[0]) != experiment.data.network.slots
    ):
        return experiment
    ratios = [ratio_of_units(units.get(name, unit), unit) for name, unit in experiment.protocol.targets.items()]
    return replace(
        experiment, data=replace(experiment.data, prior_climatology=climatology.select_sensors(indices, ratios))
    )


def _adapt_and_check(
    run: TrainedRun, experiment: Experiment, state: dict[str, Tensor], tied: bool, same_missing: bool
) -> tuple[dict[str, Tensor], ScoringProtocol]:
    """Return weights and protocol of a run as ``adapt_to_file``, checked by ``refuse_other``."""
    protocol, fits, file = experiment.protocol, run.protocol, experiment.data.store.path
    for message in unit_doubts(file, protocol, fits):
        note(message)
    if experiment.settings.model.zero_shot:
        state, fits = adapt_to_file(experiment, state, replace(fits, step_minutes=protocol.step_minutes))
    new = [vdid for vdid in experiment.data.sensors.ids if tied and run.sensors and vdid not in run.sensors]
    protocol.refuse_other(fits, run.named, file, tied, same_missing, new=new)
    return state, fits.align_clock(protocol)


def _build_for_run(
    run: TrainedRun, layers: ConfigLayers, first: Experiment | None, split: bool
) -> tuple[Experiment, RunWeights, DailyStats | None]:
    """Build the experiment of a run with fresh weights, and return stored weights and climatology too."""
    loaded = load_run_settings(run, layers, SCORING)
    settings = loaded.in_full_precision(run.settings)
    holidays = run.holidays(settings.data.holidays, loaded.origin["data.holidays"])
    weights, climatology = run.read_weights(), None if split else run.read_climatology()
    finer = resampling_factor(settings, run.protocol) if settings.model.zero_shot else 1
    lengths = {name: getattr(settings.data, name) // finer for name in ("lookback", "horizon")}
    settings = settings.model_copy(update={"data": settings.data.model_copy(update=lengths)})
    if first and (differ := differences(first.settings, settings)):
        problem = f"the run has other windows than the first run ({differ})"
        raise SettingsError(run.named, problem, "score the runs one by one")
    free = takes_new_sensors(settings) and run.sensors is not None
    experiment = build(
        settings,
        first.data if first else None,
        split=split,
        moments=None if split else run.protocol.scaler,
        sensors=run.sensors if sensor_tables(settings) and not free and not split else None,
        finer=finer,
        holidays=holidays,
    )
    return experiment, weights, climatology


def load_trained(
    run: Path | TrainedRun,
    layers: ConfigLayers,
    first: Experiment | None = None,
    *,
    split: bool = True,
    same_missing: bool = False,
) -> tuple[Experiment, Trained]:
    """Load a run with trained weights on the device, and describe its training.

    first: the experiment of a run loaded before, whose data is reused. split: cut the file into splits; False takes the
    whole file and matches sensors by id. same_missing: refuse another missing-value rule, which is otherwise noted.
    SocialxError for another feature, time step or, with sensor embeddings, network, and for weights that do not fit.
    """
    run = open_run(run) if isinstance(run, Path) else run
    experiment, weights, climatology = _build_for_run(run, layers, first, split)
    settings, ids, file = experiment.settings, experiment.data.sensors.ids, experiment.data.store.path
    free = takes_new_sensors(settings) and run.sensors is not None
    tied = sensor_tables(settings) and not free
    if layers.data is None and experiment.protocol.checksum != run.protocol.checksum:
        refuse_other_file(run, experiment.data.stores)
    if tied and not split:
        _note_left_out(run, experiment)
    state, fits = _adapt_and_check(run, experiment, weights.state, tied, same_missing)
    if not split:
        experiment.data.note_clock()
    if free:
        state = _align_sensors(state, ids, run.sensors or (), run.named, file)
    if climatology and (tied or free or fits.dataset == experiment.protocol.dataset):  # with tables another is refused
        experiment = _add_climatology(experiment, run, climatology)
    try:
        check_state(experiment.model, state)
    except ValueError as error:
        raise SocialxError(run.path, f"the weights do not fit {run.settings} ({error})", "train again") from None
    experiment.model.load_state_dict(state)
    finer = 1
    if settings.model.zero_shot:
        rescale_to_free_flow(experiment, run.protocol)
        finer = experiment.data.store.step_minutes // run.protocol.step_minutes
    model = CoarserStepAdapter(experiment.model, finer) if finer > 1 else experiment.model
    model.to(experiment.precision.device)
    parameters = sum(p.numel() for p in experiment.model.parameters())
    shared = {field.name: getattr(fits, field.name) for field in fields(Trained) if hasattr(fits, field.name)}
    past = getattr(experiment.model, "climatology", None) is not None
    return replace(experiment, model=model), Trained(
        **shared, epoch=weights.epoch, parameters=parameters, weights=weights.fingerprint, past_days=past
    )


def free_flow_ratio(file: ScoringProtocol, run: ScoringProtocol, target: str) -> float:
    """Return file / training free-flow ratio, rounded; 1 for the training network and for other quantities."""
    return float(_rounded_ratios(np.array(file.free_flow.get(target, 0.0)), file, run, target))


def unit_doubts(path: Path, file: ScoringProtocol, run: ScoringProtocol) -> list[Message]:
    """Return a question for each speed whose free flow suggests the other unit.

    On the training network the limit is a factor of 1.4, in either direction.
    """
    messages = []
    for name, unit in file.targets.items():
        other = {"mph": "km/h", "km/h": "mph"}.get(unit, unit)
        ratio = float(_speed_ratios(np.array(file.free_flow.get(name, 0.0)), file, run, name))
        off, off_in_other = (abs(np.log2(value)) for value in (ratio, ratio * ratio_of_units(other, unit)))
        if off > 0.5 and (off_in_other < 0.25 or file.network == run.network):
            asked, unsaid = (other, other) if off_in_other < off else ("another unit", "UNIT")
            flows = f"{file.free_flow[name]:.0f} {unit}, {run.free_flow[name]:.0f} {run.targets[name]}"
            problem = f"{name} may be in {asked}: free flow here and in the training is {flows}"
            helps = f"convert again with {Argument('units', unsaid)} if so, or give a frame in {unit}"
            messages.append(Message(path, problem, helps))
    return messages


def _speed_ratios(free_flow: np.ndarray, file: ScoringProtocol, run: ScoringProtocol, target: str) -> np.ndarray:
    """Return free_flow (file speeds, any shape) / the trained network's speed of a target; 1 without either speed."""
    units, trained_flow = ((file.targets.get(target, ""), run.targets.get(target, "")), run.free_flow.get(target, 0.0))
    if trained_flow <= 0 or not {*units} <= {*KMH}:
        return np.ones_like(free_flow)
    return np.where(free_flow > 0, free_flow * ratio_of_units(*units) / trained_flow, 1.0)


def _rounded_ratios(free_flow: np.ndarray, file: ScoringProtocol, run: ScoringProtocol, target: str) -> np.ndarray:
    """Return ``_speed_ratios`` rounded to a power of a fourth root of 2, any shape; 1 for the training network."""
    ratios = _speed_ratios(free_flow, file, run, target)
    return np.ones_like(ratios) if file.network == run.network else 2.0 ** (np.round(4 * np.log2(ratios)) / 4)


def rescale_to_free_flow(experiment: Experiment, run: ScoringProtocol, before: int | None = None) -> None:
    """Set mean and deviation [N,F] of a model from its training statistics and each sensor's free-flow ratio.

    run: the protocol of the run.  before: the free flow is measured in the 28 days until this second; None: until
    the training rows end.  With less than a day all sensors share the network ratio, because an hour of congestion is
    not free flow.  A note is written where most ratios differ from 1.
    """
    file, data, model = experiment.protocol, experiment.data, getattr(experiment.model, "model", experiment.model)
    scaler = getattr(model, "scaler", None)
    if file.network == run.network or not isinstance(scaler, StandardScaler):  # or a model of the user's own
        return
    (speeds, network), ratios = latest_free_flow(data, before), {}
    for index, name in enumerate(data.targets):
        ratios[name] = _rounded_ratios(speeds[:, index], file, run, name)
        if before is None and 2 * (changed := int((ratios[name] != 1).sum())) > len(speeds):
            flows = f"{network[index]:.0f} {file.targets[name]}, {run.free_flow[name]:.0f} {run.targets[name]}"
            problem = f"{name} in free flow is {flows}, here and in the training"
            note(Message(data.store.path, f"{problem}, so {counted(changed, 'sensor is', 'sensors are')} rescaled"))
    for part, units, of_run in (("input", file.inputs, run.inputs), ("target", file.targets, run.targets)):
        columns = [ratios.get(name, np.ones(len(speeds))) * ratio_of_units(of_run[name], units[name]) for name in units]
        for moment in ("mean", "std"):
            moments = [getattr(run.scaler[name], moment) for name in units]
            old = getattr(scaler, f"{part}_{moment}")
            setattr(scaler, f"{part}_{moment}", torch.from_numpy(np.stack(columns, axis=-1) * moments).to(old))
