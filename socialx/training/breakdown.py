"""Where a model errs: absolute errors by horizon step, by hour of the day and by sensor, and whom it listens to then.

Running sums as in ``metrics``: float64 over all valid entries of everything that was seen, on the device until the end.
An empty part is NaN with count 0.  Of several targets the first one counts.
"""

# Shape letters: B windows, P horizon steps, N sensors, G targets, X whatever errors are told apart by

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from socialx.data.loaders import Batch, Loader
from socialx.data.store import Sensors
from socialx.model.listening import Heard, Listening
from socialx.progress import Bar
from socialx.training.precision import Precision

HOURS = 24
OVERHEARD = 8  # batches, spread over the part: each of them has hundreds of windows x sensors of its own
NAMED = 3  # neighbours that are named of every sensor


@dataclass(frozen=True, eq=False)
class Errors:
    """Sums of absolute errors in the file's unit, and of how many forecasts: float64 [X] each."""

    total: np.ndarray
    count: np.ndarray

    @property
    def mae(self) -> np.ndarray:
        """[X], NaN where nothing was valid."""
        return np.divide(self.total, self.count, out=np.full_like(self.total, np.nan), where=self.count > 0)

    def summed(self) -> Errors:
        """Over all of X, which is then 1."""
        return Errors(self.total.sum(keepdims=True), self.count.sum(keepdims=True))

    def rows(self) -> list[dict[str, float | int | None]]:
        """For JSON: mae, None where there is none, and count."""
        return [{"mae": _finite(m), "count": int(c)} for m, c in zip(self.mae, self.count, strict=True)]


@dataclass(frozen=True, eq=False)
class Breakdown:
    """The same errors three times: by horizon step [P], by hour of the day of the target row [24], by sensor [N]."""

    by_step: Errors
    by_hour: Errors
    by_sensor: Errors


class RunningErrors:
    """Add batches, then compute: one transfer from the device, at the end."""

    def __init__(self, horizon: int, sensors: int, step_minutes: int, device: torch.device) -> None:
        self.horizon, self.step_minutes = horizon, step_minutes
        sizes = (horizon, HOURS, sensors)
        self.by_step, self.by_hour, self.by_sensor = (
            torch.zeros(2, size, dtype=torch.float64, device=device) for size in sizes
        )
        self.hours = torch.arange(HOURS, device=device)

    def add(self, forecast: Tensor, batch: Batch) -> None:
        """forecast [B,P,N,G] in the file's unit, of a batch on the same device.  The device is not waited for."""
        valid = batch.target_valid[..., 0]
        error = (forecast[..., 0].double() - batch.target[..., 0].double()).abs()
        both = torch.stack([torch.where(valid, error, 0.0), valid.double()])  # [2,B,P,N]
        self.by_sensor += both.sum(dim=(1, 2))
        both = both.sum(dim=3)  # [2,B,P]
        self.by_step += both.sum(dim=1)
        hour = batch.slot[:, -self.horizon :] * self.step_minutes // 60  # [B,P]
        of_hour = (hour[..., None] == self.hours).double()  # [B,P,24]: a product, whose order of sums is fixed
        self.by_hour += both.flatten(1) @ of_hour.flatten(0, 1)

    def compute(self) -> Breakdown:
        """All three, from one transfer."""
        table = torch.cat([self.by_step, self.by_hour, self.by_sensor], dim=1).cpu().numpy()
        parts = np.split(table, [self.horizon, self.horizon + HOURS], axis=1)
        return Breakdown(*(Errors(*part) for part in parts))


@torch.no_grad()
def break_down(
    model: nn.Module, loader: Loader, precision: Precision, step_minutes: int, bar: Bar | None = None
) -> tuple[Breakdown, list[Heard]]:
    """Errors of a model over every window of a loader, and what its social layers heard in a few batches of them.

    model: on the device of ``precision``.
    """
    was_training = model.training
    model.eval()
    listening, sums = Listening(model), None
    per_batch = loader.num_windows / len(loader)
    # The last batch may be padded with windows that were seen before: it is left out where there is another.
    overheard = set(np.linspace(0, max(0, len(loader) - 2), OVERHEARD).round().astype(int).tolist())
    for number, batch in enumerate(loader.epoch(0)):
        batch = batch.to(precision.device)
        with listening.on() if number in overheard else nullcontext(), precision.autocast():
            forecast = model(batch)
        if sums is None:
            sums = RunningErrors(batch.target.shape[1], batch.target.shape[2], step_minutes, precision.device)
        sums.add(forecast, batch)
        if bar is not None:
            bar.advance(per_batch)
    model.train(was_training)
    if sums is None:
        raise ValueError("a loader without batches")
    return sums.compute(), listening.compute()


def as_tree(errors: Breakdown, heard: list[Heard], sensors: Sensors, step_minutes: int) -> dict[str, Any]:
    """All of it as plain values, as JSON, tables and the picture take it; a number that does not exist is None.

    sensors: worst first, those without a valid target last, each with the neighbours that it listens to most.
    """
    by_sensor = errors.by_sensor.rows()
    listens_to = _strongest(heard, sensors.ids)
    order = sorted(range(len(by_sensor)), key=lambda i: -math.inf if (mae := by_sensor[i]["mae"]) is None else mae)
    return {
        **errors.by_step.summed().rows()[0],
        "by_horizon": [{"minutes": (step + 1) * step_minutes, **row} for step, row in enumerate(errors.by_step.rows())],
        "by_hour": [{"hour": hour, **row} for hour, row in enumerate(errors.by_hour.rows())],
        "sensors": [
            {
                "id": sensors.ids[i],
                **by_sensor[i],
                "latitude": _finite(sensors.latitude[i]),
                "longitude": _finite(sensors.longitude[i]),
                "listens_to": listens_to[i],
            }
            for i in reversed(order)
        ],
        "pooling": [_layer(layer) for layer in heard],
    }


def _strongest(heard: list[Heard], ids: tuple[str, ...]) -> list[list[dict[str, Any]]]:
    """Of each sensor the neighbours with the largest weight, a mean over the layers, which share their neighbours."""
    weights = [layer.weights for layer in heard if layer.weights is not None]
    if not weights:
        return [[] for _ in ids]
    mean, index, apart = np.mean(weights, axis=0), heard[0].index, heard[0].apart_km
    order = np.argsort(-mean, axis=1, kind="stable")[:, :NAMED]
    return [
        [
            {"id": ids[index[i, k]], "weight": float(mean[i, k]), "km": float(apart[i, k])}
            for k in order[i]
            if mean[i, k] > 0
        ]
        for i in range(len(ids))
    ]


def _layer(layer: Heard) -> dict[str, Any]:
    """Its heads, and their mean; that of the distances goes by how much each head listens at all."""
    columns = {
        "radius_km": layer.radius_km,
        "softness_km": layer.softness_km,
        "nobody": layer.nobody,
        "entropy_nats": layer.entropy,
        "distance_km": layer.distance_km,
    }
    heads = [
        {name: None if column is None else _finite(column[head]) for name, column in columns.items()}
        for head in range(len(layer.radius_km))
    ]
    mean = {name: None if column is None else _finite(column.mean()) for name, column in columns.items()}
    if layer.nobody is not None and layer.distance_km is not None and (1 - layer.nobody).any():
        mean["distance_km"] = float(np.average(np.nan_to_num(layer.distance_km), weights=1 - layer.nobody))
    return {
        "layer": layer.name,
        "trained": layer.trained,
        "neighbours": layer.index.shape[1],
        "mean": mean,
        "heads": heads,
    }


def _finite(value: float) -> float | None:
    """For JSON, where NaN does not exist."""
    return float(value) if math.isfinite(value) else None
