"""A run folder -> the trained model in the units of a data file; ``opened.py`` makes it forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, counted
from socialx.core.progress import note
from socialx.data.climatology import DailyStats
from socialx.data.scaler import MeanStd
from socialx.dataset import Fit
from socialx.files.store.quantities import KMH, ratio_of_units
from socialx.files.store.store import Store, open_store
from socialx.model.state import select_sensor_weights, starting_state
from socialx.scoring.adaptation import ratios_there, scaler_for, units_there
from socialx.scoring.protocol import NOWHERE, OtherData, ScoringProtocol, sensor_places
from socialx.settings.conflicts import sensor_tables, takes_new_sensors
from socialx.settings.layers import Config, ConfigLayers, differences
from socialx.settings.schema import SCORING, Settings
from socialx.tasks.build import Experiment, build
from socialx.training.run_folder import RunWeights, TrainedRun

MOST_STEP_MINUTES = 60  # the longest file step that a run with a shorter step forecasts
ROADS_KMH = 25.0, 140.0  # free-flow speeds of networks


def adapt_to_file(
    state: Mapping[str, Tensor], run: ScoringProtocol, file: ScoringProtocol, free_flow: Mapping[str, float]
) -> tuple[dict[str, Tensor], ScoringProtocol]:
    """Return the weights and protocol of a run in the units of a file, at a free-flow speed of each target.

    Every weight but the scaler acts on normalised observations.  On another network the missing-value rule comes from
    the file.
    """
    ratios, scaler = ratios_there(run, file, free_flow), scaler_for(run, file, free_flow).state_dict(prefix="scaler.")
    moments = {
        name: MeanStd(moment.mean * float(ratios.get(name, 1.0)), moment.std * float(ratios.get(name, 1.0)))
        for name, moment in run.scaler.items()
    }
    units = [units_there(*pair) for pair in ((run.inputs, file.inputs), (run.targets, file.targets))]
    missing = run.missing if file.same_network(run) else file.missing
    fits = replace(run, inputs=units[0], targets=units[1], missing=missing, scaler=moments)
    return {**state, **{name: tensor for name, tensor in scaler.items() if name in state}}, fits


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
        raise SocialxError("run.other-step", settings.data.path, asked, f"train a run on such data: {fitting}")
    return step // run_step


def load_start_weights(run: TrainedRun, experiment: Experiment) -> Experiment:
    """Load weights and scaler of a run to fine-tune, in file units.

    Sensor embeddings are matched by id; new sensors start from zeros where the run takes new sensors.  Raises
    SocialxError for unsuitable data or weights.
    """
    name, data, weights = experiment.settings.trainer.init_from, experiment.data, run.read_weights()
    state, fits = adapt_to_file(weights.state, run.protocol, experiment.protocol, experiment.protocol.free_flow)
    OtherData(experiment.protocol, fits, run.path, data.store.path).check()
    sensors = run.sensors or ()
    settings, indices = experiment.settings, match_sensors(data.sensors.ids, sensors)
    new_ones = [number for number, index in enumerate(indices) if index < 0]
    same = not new_ones and len(indices) == len(sensors)
    shares = takes_new_sensors(settings) and len(new_ones) < len(indices)
    try:
        start, new = starting_state(experiment.model, state, indices if same or shares else None)
    except ValueError as error:
        raise SocialxError(
            "run.weights", run.path, f"the weights do not fit {run.settings} ({error})", "name another run"
        ) from None
    experiment.model.load_state_dict(start)
    taken = sum(parameter.numel() for parameter in experiment.model.parameters()) - new
    fresh = f"{new:,} new ones of single sensors and times" if new else "none new"
    begins = f"training starts from its weights: {counted(taken, 'parameter')} taken, {fresh}"
    note(Message("train.from-weights", name, begins), True)
    data, moments = replace(data, moments=fits.scaler), dict(fits.scaler)
    return replace(experiment, data=data, protocol=replace(experiment.protocol, scaler=moments))


def match_sensors(ids: Sequence[str], sensors: Sequence[str]) -> list[int]:
    """Return the index of each file sensor in a run, or -1 for a new sensor."""
    index_by_id = {name: number for number, name in enumerate(sensors)}
    return [index_by_id.get(name, -1) for name in ids]


def align_sensors(
    state: dict[str, Tensor], ids: Sequence[str], sensors: Sequence[str], run: Path, file: Path
) -> dict[str, Tensor]:
    """Return a run's weights in the sensor order of a file, with a note on new sensors.

    Raises SocialxError where all sensors are new.
    """
    indices = match_sensors(ids, sensors)
    new = [name for name, index in zip(ids, indices, strict=True) if index < 0]
    if len(new) == len(ids):
        other = f"train a zero-shot run: {Argument('model.zero_shot', True)}"
        raise SocialxError("run.all-new", file, f"all {counted(len(ids), 'sensor')} are new to {run}", other)
    if new:
        without = "which forecasts them without what training learns of single sensors"
        note(Message("run.some-new", file, f"{len(new)} of {len(ids)} sensors are new to {run}, {without}", sample=new))
    return select_sensor_weights(state, indices)


def load_run_settings(run: TrainedRun, layers: ConfigLayers, purpose: str) -> Config:
    """Load the settings of a run, with its data file at the current path unless the user names data.

    Readers of the file must call ``refuse_other_file``.  Raises SocialxError where the file is gone.
    """
    values = run.values
    if (named := values.get("data.path")) and layers.data is None:
        if (file := run.find_file(str(named))) is None:
            remedy = f"name the file with {Argument('data.path', 'FILE')}"
            raise SocialxError("run.no-data", named, f"the data file of {run.path} is missing", remedy)
        if file != Path(str(named)):
            note(Message("run.data-file", "", f"the data file is {file}"), True)
        values = values | {"data.path": str(file)}
    return layers.load_run(run.settings, values, purpose, run.fixed)


def refuse_other_file(run: TrainedRun, stores: Mapping[str, Store]) -> None:
    """Raise SocialxError where a file that nobody named differs from the training data."""
    if run.has_training_data(stores):
        return
    trained, path = run.protocol, next(iter(stores.values())).path
    problem = f"the file differs from the data of {run.path}, from {trained.first_time} to {trained.last_time}"
    raise SocialxError(
        "run.other-file", path, problem, f"name the data to use, this file or another: {Argument('data.path', path)}"
    )


def note_left_out(run: TrainedRun, experiment: Experiment) -> None:
    """Note the sensors of a file that a run leaves out."""
    store, kept_ids = experiment.data.store, {*experiment.data.sensors.ids}
    ids = open_store(store.path, store.feature).sensors.ids
    if new := [vdid for vdid in ids if vdid not in kept_ids]:
        remedy = f"train a run of all sensors: {Command('train', **{'data.path': store.path})}"
        problem = f"{len(new)} of {len(ids)} sensors are new to {run.named} and left out"
        note(Message("run.left-out", store.path, problem, remedy, new))


def add_climatology(experiment: Experiment, run: TrainedRun, climatology: DailyStats) -> Experiment:
    """Add the stored climatology of a run to the data, in file units; a sensor is its id and its place."""
    indices, units = match_sensors(experiment.data.sensors.ids, run.sensors or ()), run.protocol.targets
    for number, (name, degrees) in enumerate(sensor_places(experiment.data.sensors).items()):
        if len({degrees, (run.places or {}).get(name, degrees)} - {NOWHERE}) > 1:
            indices[number] = -1
    unknown = run.places is None and not experiment.protocol.same_network(run.protocol)
    if (
        unknown
        or not experiment.data.train_climatology_days
        or max(indices) < 0
        or len(climatology.sums[0]) != experiment.data.network.slots
    ):
        return experiment
    ratios = [ratio_of_units(units.get(name, unit), unit) for name, unit in experiment.protocol.targets.items()]
    return replace(
        experiment, data=replace(experiment.data, prior_climatology=climatology.select_sensors(indices, ratios))
    )


def adapt_and_check(
    run: TrainedRun, experiment: Experiment, state: dict[str, Tensor], tied: bool, same_missing: bool
) -> tuple[dict[str, Tensor], ScoringProtocol]:
    """Return weights and protocol of a run as ``adapt_to_file``, checked by ``OtherData``."""
    protocol, fits, file = experiment.protocol, run.protocol, experiment.data.store.path
    for message in unit_doubts(file, protocol, fits):
        note(message)
    if experiment.settings.model.zero_shot:
        state, fits = adapt_to_file(state, replace(fits, step_minutes=protocol.step_minutes), protocol, {})
    new = [vdid for vdid in experiment.data.sensors.ids if tied and run.sensors and vdid not in run.sensors]
    OtherData(protocol, fits, run.named, file, tied, same_missing, new=new).check()
    return state, fits.align_clock(protocol)


def build_for_run(
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
        raise SettingsError("run.other-windows", run.named, problem, "score the runs one by one")
    free = takes_new_sensors(settings) and run.sensors is not None
    experiment = build(
        settings,
        first.data if first else None,
        split=split,
        fit=Fit(
            moments=None if split else run.protocol.scaler,
            sensors=run.sensors if sensor_tables(settings) and not free and not split else None,
            holidays=holidays,
            finer=finer,
        ),
    )
    return experiment, weights, climatology


def unit_doubts(path: Path, file: ScoringProtocol, run: ScoringProtocol) -> list[Message]:
    """Return a question for each speed whose free flow fits no road in its unit.

    On the training network, whose roads are known, free flow may differ from the training by a factor of 1.4.
    """
    messages = []
    for name, unit in file.targets.items():
        flow, trained = file.free_flow.get(name, 0.0), run.free_flow.get(name, 0.0)
        if min(flow, trained) <= 0 or not {unit, run.targets[name]} <= {*KMH}:
            continue
        slowest, fastest = ROADS_KMH
        if file.same_network(run):
            slowest, fastest = (trained * KMH[run.targets[name]] * factor for factor in (2**-0.5, 2**0.5))
        fitting = [other for other, ratio in KMH.items() if slowest <= flow * ratio <= fastest]
        if unit not in fitting:
            asked, unsaid = (fitting[0], fitting[0]) if len(fitting) == 1 else ("another unit", "UNIT")
            flows = f"{flow:.0f} {unit} in this file, {trained:.0f} {run.targets[name]} in the training data"
            problem = f"{name} may be in {asked}: the free-flow speed is {flows}"
            helps = f"convert again with {Argument('units', unsaid)} if so, or give a frame in {unit}"
            messages.append(Message("run.unit-doubt", path, problem, helps))
    return messages
