"""A run folder -> its trained model, for the data at hand: what evaluate, explain and predict start from."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import torch

from socialx.build import Problem, build
from socialx.errors import Argument, SettingsError, SocialxError
from socialx.model.state import alike, check_state
from socialx.scoring.protocol import Trained
from socialx.settings import SCORING
from socialx.settings_layers import Layers, differences
from socialx.training.run_folder import open_run

USUAL = "climatology.usual"  # in the state dict


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
    if first and (differ := differences(first.settings, effective)):
        raise SettingsError(path, f"other windows than the first run ({differ})", "score them one by one")
    stored = weights.state.get(USUAL)
    if stored is not None and not alike(stored, stored):
        raise SocialxError(run.path, "its climatology is not made of finite numbers", "train again")
    if sensors is None and stored is not None:
        found = "no such file; it says which sensors the climatology of the run belongs to"
        raise SocialxError(path / "sensors.json", found, "copy the whole run folder again, or train again")
    usual = None
    if sensors is not None and stored is not None and stored.dtype == torch.float32:
        usual = sensors, stored.numpy()
    features = dict.fromkeys((*effective.data.targets, *(effective.data.inputs or ())))
    if lacking := [name for name in features if name not in then.normaliser]:
        raise SocialxError(run.path, f"its protocol has no mean and deviation of {', '.join(lacking)}", "train again")
    problem = build(
        effective,
        first.data if first else None,
        split=split,
        moments=None if split else then.normaliser,
        sensors=sensors if effective.sensor_tables() and not split else None,
        usual=usual,
    )
    problem.protocol.refuse_other(then, path, problem.data.store.path, effective.sensor_tables(), same_missing)
    state = weights.state
    own = problem.model.state_dict()
    if USUAL in state and USUAL in own and sensors != problem.data.sensors.ids:  # its shape and numbers are this file's
        state = {**state, USUAL: own[USUAL]}
    try:
        check_state(problem.model, state)
    except ValueError as error:
        raise SocialxError(run.path, f"not the weights of {run.settings} ({error})", "train again") from None
    problem.model.load_state_dict(state)
    problem.model.to(problem.precision.device)
    parameters = sum(p.numel() for p in problem.model.parameters())
    shared = {each.name: getattr(then, each.name) for each in fields(Trained) if hasattr(then, each.name)}
    return problem, Trained(**shared, epoch=weights.epoch, parameters=parameters, weights=weights.fingerprint)
