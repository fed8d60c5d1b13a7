"""How fast another network is: its speeds of free flow against those of the network that a model was trained on.

A model for any network takes half the speed of a freeway for congestion, and forecasts that it ends.  On the streets of
a city it is free flow.  Mean and deviation of such a network are therefore those of the training times a pace.  It is a
power of the fourth root of 2, so that a network that differs by less than 9 % is left as it is.
"""

# Shape letters: N sensors, F inputs, G targets

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from socialx.build import Problem
from socialx.data.normaliser import Normaliser
from socialx.errors import Argument, Message, counted
from socialx.files.quantities import KMH, ratio_of_units
from socialx.progress import note
from socialx.scoring.free_flow import latest_free_flow
from socialx.scoring.protocol import ScoringProtocol


def pace_of(now: ScoringProtocol, then: ScoringProtocol, target: str) -> float:
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


def read_at_own_pace(problem: Problem, then: ScoringProtocol, before: int | None = None) -> None:
    """Give the model of a run, whose protocol is ``then``, mean and deviation at the pace of each sensor, [N,F].

    The 28 days until the second ``before`` tell it, None: those until the training rows end.  With less than a day all
    sensors have the pace of the network, because an hour of congestion is no free flow.  A line says so where most
    sensors have a pace other than 1.
    """
    now, data, model = problem.protocol, problem.data, getattr(problem.model, "model", problem.model)
    normaliser = getattr(model, "normaliser", None)
    if now.network == then.network or not isinstance(normaliser, Normaliser):  # or a model of the user's own
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
            of_run = [getattr(then.normaliser[name], moment) for name in units]
            old = getattr(normaliser, f"{part}_{moment}")
            setattr(normaliser, f"{part}_{moment}", torch.from_numpy(np.stack(columns, axis=-1) * of_run).to(old))
