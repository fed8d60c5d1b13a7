"""A run folder -> its trained model, for the data at hand: what evaluate, explain and predict start from."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor

from socialx.build import Problem, build
from socialx.errors import Argument, SettingsError, SocialxError
from socialx.files.quantities import KMH
from socialx.model.state import check_state
from socialx.scoring.protocol import ScoringProtocol, Trained
from socialx.settings import SCORING
from socialx.settings_layers import Layers, differences
from socialx.training.run_folder import open_run


def fitted(
    problem: Problem, state: dict[str, Tensor], then: ScoringProtocol
) -> tuple[dict[str, Tensor], ScoringProtocol]:
    """Weights and protocol of a run for any network, as if it had been trained on speeds in the units of this file.

    Everything else in the weights is of normalised readings: mean and deviation alone have a unit.  The rule for
    missing readings of another network is that of the file.
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
    return {**state, **changed}, replace(then, inputs=units["input"], targets=units["target"], missing=missing)


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
    features = dict.fromkeys((*effective.data.targets, *(effective.data.inputs or ())))
    if lacking := [name for name in features if name not in then.normaliser]:
        raise SocialxError(run.path, f"its protocol has no mean and deviation of {', '.join(lacking)}", "train again")
    problem = build(
        effective,
        first.data if first else None,
        split=split,
        moments=None if split else then.normaliser,
        sensors=sensors if effective.sensor_tables() and not split else None,
        known=run.read_known(),
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
    problem.model.to(problem.precision.device)
    parameters = sum(p.numel() for p in problem.model.parameters())
    shared = {each.name: getattr(then, each.name) for each in fields(Trained) if hasattr(then, each.name)}
    return problem, Trained(**shared, epoch=weights.epoch, parameters=parameters, weights=weights.fingerprint)
