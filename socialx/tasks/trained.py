"""A run folder -> its trained model, for the data at hand: what evaluate, explain and predict start from."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor

from socialx.build import Problem, build
from socialx.errors import Argument, Command, SettingsError, SocialxError
from socialx.files.quantities import KMH
from socialx.files.store import open_store
from socialx.model.coarser import Coarser
from socialx.model.state import check_state
from socialx.scoring.protocol import ScoringProtocol, Trained
from socialx.settings import SCORING, Settings
from socialx.settings_layers import Layers, differences
from socialx.training.run_folder import open_run

MOST_STEP_MINUTES = 15  # of a file that a run of a shorter step forecasts


def fitted(
    problem: Problem, state: dict[str, Tensor], then: ScoringProtocol
) -> tuple[dict[str, Tensor], ScoringProtocol]:
    """Weights and protocol of a run for any network, as if it had been trained on speeds in the units of this file.

    Everything else in the weights is of normalised readings: mean and deviation alone have a unit.  The rule for
    missing readings of another network, and the time step, are those of the file.
    """
    now, changed, units = problem.protocol, {}, {}
    for name, of_file, of_run in (("input", now.inputs, then.inputs), ("target", now.targets, then.targets)):
        units[name] = {
            key: of_file[key] if {of_file.get(key), unit} <= {*KMH} else unit for key, unit in of_run.items()
        }
        ratios = [KMH[of_run[key]] / KMH[unit] if unit in KMH else 1.0 for key, unit in units[name].items()]
        for part in ("mean", "std"):
            changed[f"normaliser.{name}_{part}"] = state[f"normaliser.{name}_{part}"] * torch.tensor(ratios)
    missing = then.missing if now.network == then.network else now.missing
    here = replace(then, inputs=units["input"], targets=units["target"], missing=missing, step_minutes=now.step_minutes)
    return {**state, **changed}, here


def steps_in_one(settings: Settings, then: ScoringProtocol) -> int:
    """How many steps of a run for any network are one of the file that it forecasts; 1: it has the file's own step.

    Raises SocialxError for a step that is no multiple of the run's, or too long for its history and horizon.
    """
    if settings.data.path is None or not settings.model.any_network:
        return 1
    step, own = open_store(settings.data.path, settings.data.targets[0]).step_minutes, then.step_minutes
    lengths = settings.data.history, settings.data.horizon
    if step % own or step > MOST_STEP_MINUTES or any(length % (step // own) for length in lengths):
        steps = [own * k for k in range(1, MOST_STEP_MINUTES // own + 1) if not any(n % k for n in lengths)]
        asked = f"a step of {step} min, and the run forecasts steps of {', '.join(map(str, steps))} min"
        fitting = Command("train", **{"data.path": settings.data.path, "model.any_network": True})
        raise SocialxError(settings.data.path, asked, f"train a run on such data: {fitting}")
    return step // own


def load_trained(
    path: Path, layers: Layers, first: Problem | None = None, *, split: bool = True, same_missing: bool = False
) -> tuple[Problem, Trained]:
    """The problem of a run with its trained weights on the device, and what they were trained on.

    first: of another run, whose windows this one shares.  split: whether the file is cut into parts; where it is not,
    its sensors are matched by id.  same_missing: a file with another rule for missing readings is refused; without it
    a line says so.  Raises SocialxError where the file has other features, another time step or, with
    sensor tables in the model, another network, and where the weights are not those of the settings.
    """
    run = open_run(path)
    sensors, weights, settings = run.sensors(), run.read_weights(), run.read_settings()
    fixes, then = run.trained_with(), run.protocol()
    loaded = layers.of_run(run.settings, settings, SCORING, fixes)
    effective = loaded.in_full_precision(run.settings)
    file = effective.data.path
    if file is not None and loaded.origin["data.path"] == str(run.settings) and not file.exists():
        remedy = f"say where it is now: {Argument('data.path', 'FILE')}"
        raise SocialxError(file, f"no such file, on which {path} was trained", remedy)
    features = dict.fromkeys((*effective.data.targets, *(effective.data.inputs or ())))
    if lacking := [name for name in features if name not in then.normaliser]:
        raise SocialxError(run.path, f"its protocol has no mean and deviation of {', '.join(lacking)}", "train again")
    finer = steps_in_one(effective, then)
    lengths = {name: getattr(effective.data, name) // finer for name in ("history", "horizon")}
    effective = effective.model_copy(update={"data": effective.data.model_copy(update=lengths)})
    if first and (differ := differences(first.settings, effective)):
        raise SettingsError(path, f"other windows than the first run ({differ})", "score them one by one")
    problem = build(
        effective,
        first.data if first else None,
        split=split,
        moments=None if split else then.normaliser,
        sensors=sensors if effective.sensor_tables() and not split else None,
        known=run.read_known(),
        finer=finer,
    )
    state = weights.state
    if effective.model.any_network:
        state, then = fitted(problem, state, then)
    problem.protocol.refuse_other(then, path, problem.data.store.path, effective.sensor_tables(), same_missing)
    try:
        check_state(problem.model, state)
    except ValueError as error:
        raise SocialxError(run.path, f"not the weights of {run.settings} ({error})", "train again") from None
    problem.model.load_state_dict(state)
    if finer > 1:
        problem = replace(problem, model=Coarser(problem.model, finer))
    problem.model.to(problem.precision.device)
    parameters = sum(p.numel() for p in problem.model.parameters())
    shared = {each.name: getattr(then, each.name) for each in fields(Trained) if hasattr(then, each.name)}
    return problem, Trained(**shared, epoch=weights.epoch, parameters=parameters, weights=weights.fingerprint)
