"""A run folder -> its trained model, for the data at hand: what all that uses a run starts from.

A zero-shot model takes half the speed of a freeway for congestion, and forecasts that it ends.  On the streets of
a city it is free flow.  Mean and deviation of such a network are therefore those of the training times a pace.  It is a
power of the fourth root of 2, so that a network that differs by less than 9 % is left as it is.
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
from socialx.scoring.free_flow import free_flow_of, latest_free_flow
from socialx.scoring.intervals import PAST_DAYS, ConformalIntervals, calibrated_before
from socialx.scoring.protocol import ScoringProtocol, Trained, network_of
from socialx.settings.conflicts import sensor_tables, takes_new_sensors
from socialx.settings.layers import Config, ConfigLayers, differences
from socialx.settings.schema import SCORING, Settings
from socialx.tasks.build import Experiment, build
from socialx.training.run_folder import RunWeights, TrainedRun, open_run

MOST_STEP_MINUTES = 15  # of a file that a run of a shorter step forecasts


def adapt_to_file(
    experiment: Experiment, state: dict[str, Tensor], then: ScoringProtocol
) -> tuple[dict[str, Tensor], ScoringProtocol]:
    """Weights and protocol of a run, as if it had been trained on speeds in the units and at the pace of this file.

    Everything else in the weights is of normalised readings: mean and deviation alone have a unit.  The rule for
    missing readings of another network is that of the file.
    """
    now, changed, units, ratios = experiment.protocol, {}, {}, {}
    for name, of_file, of_run in (("input", now.inputs, then.inputs), ("target", now.targets, then.targets)):
        units[name] = {
            key: of_file[key] if {of_file.get(key), unit} <= {*KMH} else unit for key, unit in of_run.items()
        }
        for key, unit in units[name].items():
            ratios[key] = ratio_of_units(of_run[key], unit) * free_flow_ratio(now, then, key)
        for part in (f"scaler.{name}_mean", f"scaler.{name}_std"):
            if part in state:  # weights are checked later
                changed[part] = state[part] * torch.tensor([ratios[key] for key in of_run])
    moments = {
        key: MeanStd(each.mean * ratios.get(key, 1.0), each.std * ratios.get(key, 1.0))
        for key, each in then.scaler.items()
    }
    missing = then.missing if now.network == then.network else now.missing
    fits = replace(then, inputs=units["input"], targets=units["target"], missing=missing, scaler=moments)
    return {**state, **changed}, fits


def resampling_factor(settings: Settings, then: ScoringProtocol) -> int:
    """How many steps of a zero-shot run are one of the file that it forecasts; 1: it has the file's own step.

    Raises SocialxError for a step that is no multiple of the run's, or too long for its history and horizon.
    """
    if settings.data.path is None:
        return 1
    step, own = open_store(settings.data.path, settings.data.targets[0]).step_minutes, then.step_minutes
    lengths = settings.data.lookback, settings.data.horizon
    if step % own or step > MOST_STEP_MINUTES or any(length % (step // own) for length in lengths):
        steps = [own * k for k in range(1, MOST_STEP_MINUTES // own + 1) if not any(n % k for n in lengths)]
        asked = f"a step of {step} min, and the run forecasts steps of {', '.join(map(str, steps))} min"
        fitting = Command("train", **{"data.path": settings.data.path, "model.zero_shot": True})
        raise SocialxError(settings.data.path, asked, f"train a run on such data: {fitting}")
    return step // own


def with_weights_of(run: TrainedRun, experiment: Experiment) -> Experiment:
    """The problem with weights and scaler of a run, from which its training starts, in the units of the file.

    Its tables of sensors are taken where the sensors are the same ones, in any order; a run that takes new ones gives
    zeros to these.  Raises SocialxError where the data are not what the run was trained for, and where the weights are
    not those of its settings.
    """
    name, data, weights = experiment.settings.trainer.init_from, experiment.data, run.read_weights()
    state, then = adapt_to_file(experiment, weights.state, run.protocol)
    experiment.protocol.refuse_other(then, run.path, data.store.path, False)
    sensors = run.sensors or ()
    settings, places = experiment.settings, places_of(data.sensors.ids, sensors)
    new_ones = [number for number, place in enumerate(places) if place < 0]
    same = not new_ones and len(places) == len(sensors)
    shares = takes_new_sensors(settings) and len(new_ones) < len(places)
    try:
        start, new = starting_state(experiment.model, state, places if same or shares else None)
    except ValueError as error:
        raise SocialxError(run.path, f"not the weights of {run.settings} ({error})", "name another run") from None
    experiment.model.load_state_dict(start)
    taken = sum(parameter.numel() for parameter in experiment.model.parameters()) - new
    fresh = f"{new:,} new ones of single sensors and times" if new else "none new"
    note(Message(name, f"training starts from its weights: {counted(taken, 'parameter')} taken, {fresh}"))
    data, moments = replace(data, moments=then.scaler), dict(then.scaler)
    return replace(experiment, data=data, protocol=replace(experiment.protocol, scaler=moments))


def intervals_of(
    run: TrainedRun, trained: Trained, experiment: Experiment, issued: int
) -> tuple[ConformalIntervals, str]:
    """The prediction intervals of a run for a file, and in words what errors they are of.

    Those of its calibration have no words.  On a network or at a step that it was not calibrated on, a run for any
    network has those of its forecasts in the week before the second issued.  Where too little was read then, those of
    its calibration are a first guess.  Raises SocialxError where there are none.
    """
    data, protocol = experiment.data, experiment.protocol
    of_run = run.read_intervals(trained.weights) if run.intervals.exists() else None
    here = of_run and (network_of(of_run.sensors), of_run.protocol.step_minutes)
    elsewhere = experiment.settings.model.zero_shot and here != (protocol.network, protocol.step_minutes)
    if elsewhere:
        size = experiment.settings.loader.batch_size
        own = calibrated_before(issued, experiment.model, data, size, experiment.precision, protocol, trained.weights)
        if own is not None:
            return own, f"the last {counted(min(data.climatology_days(issued), PAST_DAYS), 'day')} of {data.store.path}"
    of_run = of_run or run.read_intervals(trained.weights)
    paces = [free_flow_ratio(protocol, of_run.protocol, name) for name in protocol.targets]
    if not elsewhere:
        return of_run.times(paces), ""
    flow = free_flow_of(data, slice(0, data.rows_until(issued)))
    guess = f"{of_run.protocol.dataset}, where {run.named} was calibrated, as a first guess"
    few = f"{data.store.path} has too few readings of the week before"
    return of_run.elsewhere(data.sensors.ids, flow, paces, protocol), f"{guess}: {few}"


def places_of(ids: Sequence[str], sensors: Sequence[str]) -> list[int]:
    """Where each sensor of a file stands among those of a run, -1: it is new to the run."""
    place = {name: number for number, name in enumerate(sensors)}
    return [place.get(name, -1) for name in ids]


def _of_sensors(
    state: dict[str, Tensor], ids: Sequence[str], sensors: Sequence[str], run: Path, file: Path
) -> dict[str, Tensor]:
    """The weights of a run of these sensors for those of a file; a note names the new ones.

    Raises SocialxError where all of them are new.
    """
    places = places_of(ids, sensors)
    new = [name for name, place in zip(ids, places, strict=True) if place < 0]
    if len(new) == len(ids):
        other = f"a zero-shot run forecasts it: {Argument('model.zero_shot', True)}"
        raise SocialxError(file, f"none of its {counted(len(ids), 'sensor')} is one of {run}", other)
    if new:
        without = "they are forecast without what training learns of single sensors"
        note(Message(file, f"{len(new)} of {len(ids)} sensors are new to {run}", without, new))
    return select_sensor_weights(state, places)


def settings_of(run: TrainedRun, layers: ConfigLayers, purpose: str) -> Config:
    """The settings of a run, as ``Layers.of_run``, with its own file where that is now, unless the user names another.

    Whoever reads that file asks ``refuse_other_file``.  Raises SocialxError where it is nowhere.
    """
    own = run.own
    if (named := own.get("data.path")) and layers.data is None:
        if (file := run.own_file(str(named))) is None:
            remedy = f"say where it is now: {Argument('data.path', 'FILE')}"
            raise SocialxError(named, f"no such file, on which {run.path} was trained", remedy)
        if file != Path(str(named)):
            note(Message(run.path, f"its file is read from {file}"))
        own = own | {"data.path": str(file)}
    return layers.load_run(run.settings, own, purpose, run.fixed)


def refuse_other_file(run: TrainedRun, stores: Mapping[str, Store]) -> None:
    """Raise SocialxError where a file that nobody named has other readings than the one that a run was trained on."""
    if run.has_readings_of_training(stores):
        return
    then, path = run.protocol, next(iter(stores.values())).path
    other = f"not the file that {run.path} was trained on: from {then.first_time} to {then.last_time} it differs"
    raise SocialxError(path, other, f"name the data to use, this file or another: {Argument('data.path', path)}")


def _note_left_out(run: TrainedRun, experiment: Experiment) -> None:
    """Say which sensors of a file a run leaves out, because it was trained without them."""
    store, known = experiment.data.store, {*experiment.data.sensors.ids}
    ids = open_store(store.path, store.feature).sensors.ids
    if new := [vdid for vdid in ids if vdid not in known]:
        remedy = f"a run of them too: {Command('train', **{'data.path': store.path})}"
        found = f"{len(new)} of {len(ids)} sensors are not of {run.named}, which leaves them out"
        note(Message(store.path, found, remedy, new))


def _knowing(experiment: Experiment, run: TrainedRun, known: DailyStats) -> Experiment:
    """The problem with what a run knows of earlier days, in the units of the file."""
    places, then = places_of(experiment.data.sensors.ids, run.sensors or ()), run.protocol
    if (
        not experiment.data.train_climatology_days
        or max(places) < 0
        or len(known.sums[0]) != experiment.data.network.slots
    ):
        return experiment
    ratios = [ratio_of_units(then.targets.get(name, unit), unit) for name, unit in experiment.protocol.targets.items()]
    return replace(experiment, data=replace(experiment.data, prior_climatology=known.select_sensors(places, ratios)))


def _compared(
    run: TrainedRun, experiment: Experiment, state: dict[str, Tensor], tied: bool, same_missing: bool
) -> tuple[dict[str, Tensor], ScoringProtocol]:
    """Weights and protocol of a run for a file, as ``adapt_to_file``; refuses one that does not fit, as
    ``refuse_other``.

    tied: the run forecasts its own sensors alone.
    """
    now, then, file = experiment.protocol, run.protocol, experiment.data.store.path
    for message in other_units(file, now, then):
        note(message)
    if experiment.settings.model.zero_shot:
        state, then = adapt_to_file(experiment, state, replace(then, step_minutes=now.step_minutes))
    new = [vdid for vdid in experiment.data.sensors.ids if tied and run.sensors and vdid not in run.sensors]
    now.refuse_other(then, run.named, file, tied, same_missing, new=new)
    return state, then.beside(now)


def _built(
    run: TrainedRun, layers: ConfigLayers, first: Experiment | None, split: bool
) -> tuple[Experiment, RunWeights, DailyStats | None]:
    """The problem of a run with fresh weights, as ``load_trained`` is asked for it; its own ones, and what it knows."""
    loaded = settings_of(run, layers, SCORING)
    settings = loaded.in_full_precision(run.settings)
    holidays = run.holidays(settings.data.holidays, loaded.origin["data.holidays"])
    weights, known = run.read_weights(), None if split else run.read_known()
    finer = resampling_factor(settings, run.protocol) if settings.model.zero_shot else 1
    lengths = {name: getattr(settings.data, name) // finer for name in ("lookback", "horizon")}
    settings = settings.model_copy(update={"data": settings.data.model_copy(update=lengths)})
    if first and (differ := differences(first.settings, settings)):
        raise SettingsError(run.named, f"other windows than the first run ({differ})", "score them one by one")
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
    return experiment, weights, known


def load_trained(
    run: Path | TrainedRun,
    layers: ConfigLayers,
    first: Experiment | None = None,
    *,
    split: bool = True,
    same_missing: bool = False,
) -> tuple[Experiment, Trained]:
    """The problem of a run with its trained weights on the device, and what they were trained on.

    first: of another run, whose windows this one shares.  split: whether the file is cut into parts; where it is not,
    its sensors are matched by id.  same_missing: a file with another rule for missing readings is refused; without it
    a line says so.  Raises SocialxError where the file has other features, another time step or, with
    sensor tables in the model, another network, and where the weights are not those of the settings.
    """
    run = open_run(run) if isinstance(run, Path) else run
    experiment, weights, known = _built(run, layers, first, split)
    settings, ids, file = experiment.settings, experiment.data.sensors.ids, experiment.data.store.path
    free = takes_new_sensors(settings) and run.sensors is not None
    tied = sensor_tables(settings) and not free
    if layers.data is None and experiment.protocol.checksum != run.protocol.checksum:
        refuse_other_file(run, experiment.data.stores)
    if tied and not split:
        _note_left_out(run, experiment)
    state, then = _compared(run, experiment, weights.state, tied, same_missing)
    if not split:
        experiment.data.note_clock()
    if free:
        state = _of_sensors(state, ids, run.sensors or (), run.named, file)
    if known and (tied or free or then.dataset == experiment.protocol.dataset):  # with tables another is refused
        experiment = _knowing(experiment, run, known)
    try:
        check_state(experiment.model, state)
    except ValueError as error:
        raise SocialxError(run.path, f"not the weights of {run.settings} ({error})", "train again") from None
    experiment.model.load_state_dict(state)
    finer = 1
    if settings.model.zero_shot:
        rescale_to_free_flow(experiment, run.protocol)
        finer = experiment.data.store.step_minutes // run.protocol.step_minutes
    model = CoarserStepAdapter(experiment.model, finer) if finer > 1 else experiment.model
    model.to(experiment.precision.device)
    parameters = sum(p.numel() for p in experiment.model.parameters())
    shared = {each.name: getattr(then, each.name) for each in fields(Trained) if hasattr(then, each.name)}
    past = getattr(experiment.model, "climatology", None) is not None
    return replace(experiment, model=model), Trained(
        **shared, epoch=weights.epoch, parameters=parameters, weights=weights.fingerprint, past_days=past
    )


def free_flow_ratio(now: ScoringProtocol, then: ScoringProtocol, target: str) -> float:
    """The pace of a network against that of a training: 1 for the network itself, and for what is no speed."""
    return float(_paces(np.array(now.free_flow.get(target, 0.0)), now, then, target))


def other_units(path: Path, now: ScoringProtocol, then: ScoringProtocol) -> list[Message]:
    """Questions about speeds of a file whose free flow is that of the training if they have the other unit.

    Those of the network of the training are asked about wherever they are 1.4 times as fast as there, or as slow.
    """
    found = []
    for name, unit in now.targets.items():
        other = {"mph": "km/h", "km/h": "mph"}.get(unit, unit)
        ratio = float(_ratios(np.array(now.free_flow.get(name, 0.0)), now, then, name))
        off, off_in_other = (abs(np.log2(each)) for each in (ratio, ratio * ratio_of_units(other, unit)))
        if off > 0.5 and (off_in_other < 0.25 or now.network == then.network):
            asked, unsaid = (other, other) if off_in_other < off else ("another unit", "UNIT")
            flows = f"{now.free_flow[name]:.0f} {unit}, {then.free_flow[name]:.0f} {then.targets[name]}"
            what = f"is this {asked}? {name} in free flow, here and in the training: {flows}"
            helps = f"if so, convert again with {Argument('units', unsaid)}, or give a frame in {unit}"
            found.append(Message(path, what, helps))
    return found


def _ratios(flow: np.ndarray, now: ScoringProtocol, then: ScoringProtocol, target: str) -> np.ndarray:
    """How many times as fast speeds of free flow are as in the training, of any shape; 1 where nothing was read."""
    units, trained = (now.targets.get(target, ""), then.targets.get(target, "")), then.free_flow.get(target, 0.0)
    if trained <= 0 or not {*units} <= {*KMH}:
        return np.ones_like(flow)
    return np.where(flow > 0, flow * ratio_of_units(*units) / trained, 1.0)


def _paces(flow: np.ndarray, now: ScoringProtocol, then: ScoringProtocol, target: str) -> np.ndarray:
    """The paces of speeds of free flow of the file, of any shape; 1 where nothing was read."""
    own = now.network == then.network
    return np.ones_like(flow) if own else 2.0 ** (np.round(4 * np.log2(_ratios(flow, now, then, target))) / 4)


def rescale_to_free_flow(experiment: Experiment, then: ScoringProtocol, before: int | None = None) -> None:
    """Give the model of a run, whose protocol is ``then``, mean and deviation at the pace of each sensor, [N,F].

    The 28 days until the second ``before`` tell it, None: those until the training rows end.  With less than a day all
    sensors have the pace of the network, because an hour of congestion is no free flow.  A line says so where most
    sensors have a pace other than 1.
    """
    now, data, model = experiment.protocol, experiment.data, getattr(experiment.model, "model", experiment.model)
    scaler = getattr(model, "scaler", None)
    if now.network == then.network or not isinstance(scaler, StandardScaler):  # or a model of the user's own
        return
    (flow, network), paces = latest_free_flow(data, before), {}
    for place, name in enumerate(data.targets):
        paces[name] = _paces(flow[:, place], now, then, name)
        if before is None and 2 * (changed := int((paces[name] != 1).sum())) > len(flow):
            flows = f"{network[place]:.0f} {now.targets[name]}, {then.free_flow[name]:.0f} {then.targets[name]}"
            found = f"{name} in free flow, here and in the training: {flows}"
            read = f"the speeds of {counted(changed, 'sensor')} are read at another pace"
            note(Message(data.store.path, found, read))
    for part, units, trained in (("input", now.inputs, then.inputs), ("target", now.targets, then.targets)):
        columns = [paces.get(name, np.ones(len(flow))) * ratio_of_units(trained[name], units[name]) for name in units]
        for moment in ("mean", "std"):
            of_run = [getattr(then.scaler[name], moment) for name in units]
            old = getattr(scaler, f"{part}_{moment}")
            setattr(scaler, f"{part}_{moment}", torch.from_numpy(np.stack(columns, axis=-1) * of_run).to(old))
