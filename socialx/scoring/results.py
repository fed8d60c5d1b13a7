"""The results of scoring, typed: scores of several models under one protocol, and the explanation of one."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from socialx.disk import check_output, replacing
from socialx.errors import Argument, SettingsError
from socialx.files.published import PublishedScore
from socialx.files.store import Sensors
from socialx.scoring.attention import LayerWeights
from socialx.scoring.breakdown import HOURS, Breakdown, Errors
from socialx.scoring.difference import Difference
from socialx.scoring.intervals import Coverage
from socialx.scoring.metrics import HorizonScores, Scores
from socialx.scoring.protocol import ScoringProtocol

SCORES_SCHEMA, EXPLANATION_SCHEMA = "socialx.scores/1", "socialx.explanation/1"
Key = TypeVar("Key", int, str)
NAMED = 5  # neighbours that are named of every sensor
BY = ("horizon", "hour", "weekday", "sensor", "congestion")  # what errors can be divided by
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class ModelScores:
    """The scores of one model: target -> scores at each horizon step and over all of them."""

    targets: Mapping[str, HorizonScores]
    step_minutes: int

    def at(self, minutes: int, target: str | None = None) -> Scores:
        """The scores so many minutes ahead, of the first target or the named one; SettingsError for any other."""
        step, rest = divmod(minutes, self.step_minutes)
        by_step = self._of(target).by_step
        if rest or not 1 <= step <= len(by_step):
            there = ", ".join(str((k + 1) * self.step_minutes) for k in range(len(by_step)))
            raise SettingsError(Argument("minutes", minutes), "no step of the horizon", f"choose {there}")
        return by_step[step - 1]

    def overall(self, target: str | None = None) -> Scores:
        """The scores over all horizon steps."""
        return self._of(target).overall

    def _of(self, target: str | None) -> HorizonScores:
        if target is not None and target not in self.targets:
            there = ", ".join(self.targets)
            raise SettingsError(Argument("target", target), "not a target of the model", f"choose {there}")
        return self.targets[target or next(iter(self.targets))]


@dataclass(frozen=True)
class Evaluation(Mapping[str, ModelScores]):
    """The scores of several models on the same windows, by the name of the run or reference.

    published: results of others under the same protocol, where references were asked for.  online: of the same runs
    with a climatology that goes on during the part: scores that compare with no frozen model's.  What was asked for:
    coverage of the prediction intervals of each run, by target; by: the errors of the first target of each model, by
    what they are divided by; difference of two runs.  inputs: files that were read, which ``to_csv`` never replaces.
    """

    part: str
    protocol: ScoringProtocol
    models: Mapping[str, ModelScores]
    published: tuple[PublishedScore, ...]
    online: Mapping[str, ModelScores] = field(default_factory=dict)
    coverage: Mapping[str, Mapping[str, tuple[Coverage, ...]]] = field(default_factory=dict)
    by: Mapping[str, Mapping[str, tuple[ErrorOf[Any], ...]]] = field(default_factory=dict)
    difference: Difference | None = None
    inputs: tuple[Path, ...] = field(default=(), repr=False)

    def __getitem__(self, name: object) -> ModelScores:
        return self.models[str(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: horizon steps with their minutes; a number that does not exist is None."""
        made: dict[str, Any] = {"schema": SCORES_SCHEMA, "part": self.part, "scores": self._table(self.models)}
        if self.online:
            made["online"] = self._table(self.online)
        for name, tables in (("intervals", self.coverage), ("by", self.by)):
            if tables:
                made[name] = {
                    model: {key: [asdict(row) for row in rows] for key, rows in table.items()}
                    for model, table in tables.items()
                }
        if self.difference:
            made["difference"] = asdict(self.difference)
        return {**made, "protocol": self.protocol.as_dict()}

    def to_csv(self, path: str | Path, overwrite: bool = False) -> None:
        """Write all scores as CSV, whole or not at all: a row per model, target and horizon step, and one over all.

        Columns: model, target, by, key, mae, rmse, mape, r2, count.  The rows of ``by`` have mae and count alone.
        """
        check_output(Path(path), overwrite, self.inputs)
        rows: list[dict[str, Any]] = []
        models = {**self.models, **{f"{name}, online": model for name, model in self.online.items()}}
        for name, model in models.items():
            for target, scores in model.targets.items():
                ahead = {str((k + 1) * self.protocol.step_minutes): s for k, s in enumerate(scores.by_step)}
                for key, of_step in {**ahead, "all": scores.overall}.items():
                    rows.append({"model": name, "target": target, "by": "horizon", "key": key, **of_step.as_dict()})
        for name, tables in self.by.items():
            for by, errors in tables.items():
                of = {"model": name, "target": next(iter(self.protocol.targets)), "by": by}
                rows += [{**of, **asdict(row)} for row in errors if by != "horizon"]
        with replacing(Path(path)) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, ["model", "target", "by", "key", "mae", "rmse", "mape", "r2", "count"])
            table.writeheader()
            table.writerows(rows)

    def _table(self, models: Mapping[str, ModelScores]) -> dict[str, Any]:
        step = self.protocol.step_minutes
        return {
            name: {
                target: {
                    "by_step": [{"minutes": (k + 1) * step, **s.as_dict()} for k, s in enumerate(scores.by_step)],
                    "all": scores.overall.as_dict(),
                }
                for target, scores in model.targets.items()
            }
            for name, model in models.items()
        }


@dataclass(frozen=True)
class ErrorOf(Generic[Key]):
    """MAE over ``count`` valid entries; None where there is none.

    key: minutes ahead, hour of the day, or a word: weekday, id of a sensor, congested or free.
    """

    key: Key
    mae: float | None
    count: int


@dataclass(frozen=True)
class Neighbour:
    """A neighbour with its attention weight, a mean over windows, heads and layers, and how far it is."""

    id: str
    weight: float
    km: float


@dataclass(frozen=True)
class SensorErrors:
    """The MAE of one sensor, where it is, and the neighbours with the largest attention weights.

    received: the attention weights that all sensors together give to this one; None where there are no weights.
    """

    id: str
    mae: float | None
    count: int
    latitude: float | None
    longitude: float | None
    neighbours: tuple[Neighbour, ...]
    received: float | None = None


@dataclass(frozen=True)
class Head:
    """What one head of a social layer does, as in ``LayerWeights``; None for a number that does not exist."""

    radius_km: float | None
    softness_km: float | None
    null_key: float | None
    entropy_nats: float | None
    distance_km: float | None


@dataclass(frozen=True)
class Layer:
    """One social layer: its heads and their mean; that of the distances goes by the weight given to neighbours."""

    name: str
    trained: bool
    neighbours: int
    mean: Head
    heads: tuple[Head, ...]


@dataclass(frozen=True)
class ReferenceErrors:
    """The errors of a reference forecast over the same windows."""

    mae: float | None
    by_horizon: tuple[ErrorOf[int], ...]
    by_hour: tuple[ErrorOf[int], ...]


@dataclass(frozen=True)
class Explanation:
    """Errors of the first target in its unit, and the social layers of the model.

    by_weekday: 0 is Monday.  sensors: the worst first, those without a valid target last.  no_pooling: why there are no
    layers, else None.  times: of the first and the last row that is forecast.
    """

    run: str
    part: str
    target: str
    unit: str
    mae: float | None
    count: int
    by_horizon: tuple[ErrorOf[int], ...]
    by_hour: tuple[ErrorOf[int], ...]
    by_weekday: tuple[ErrorOf[int], ...]
    sensors: tuple[SensorErrors, ...]
    layers: tuple[Layer, ...]
    no_pooling: str | None
    protocol: ScoringProtocol
    references: Mapping[str, ReferenceErrors] = field(default_factory=dict)
    times: tuple[str, str] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = {"schema": EXPLANATION_SCHEMA, **asdict(self)}
        for holder in (found, *found["references"].values()):
            for name, key in (("by_horizon", "minutes"), ("by_hour", "hour"), ("by_weekday", "weekday")):
                if name in holder:
                    holder[name] = [{key: row.pop("key"), **row} for row in holder[name]]
        return found


def breakdown_rows(found: Breakdown, by: str, step_minutes: int, sensors: Sequence[str]) -> tuple[ErrorOf[Any], ...]:
    """The errors by one of ``BY``; sensors: their ids."""
    if by == "horizon":
        steps = len(found.by_step.count)
        return error_rows(range(step_minutes, step_minutes * (steps + 1), step_minutes), found.by_step)
    if by == "hour":
        return error_rows(range(HOURS), found.by_hour)
    keys, errors = {
        "weekday": (WEEKDAYS, found.by_weekday),
        "sensor": (sensors, found.by_sensor),
        "congestion": (("congested", "free"), found.by_congestion),
    }[by]
    return error_rows(keys, errors)


def error_rows(keys: Iterable[Key], errors: Errors) -> tuple[ErrorOf[Key], ...]:
    """One row per key."""
    return tuple(
        ErrorOf(key, _finite(mae), int(count)) for key, mae, count in zip(keys, errors.mae, errors.count, strict=True)
    )


def sensor_errors(
    sensors: Sensors, rows: tuple[ErrorOf[int], ...], layers: list[LayerWeights]
) -> tuple[SensorErrors, ...]:
    """The sensors with their errors and strongest neighbours, the worst first, those without a target last."""
    neighbours, received = _strongest(layers, sensors.ids), _received(layers, len(sensors.ids))
    made = [
        SensorErrors(
            sensors.ids[i],
            row.mae,
            row.count,
            _finite(sensors.latitude[i]),
            _finite(sensors.longitude[i]),
            neighbours[i],
            received[i],
        )
        for i, row in enumerate(rows)
    ]
    order = sorted(made, key=lambda sensor: -math.inf if sensor.mae is None else sensor.mae)
    return tuple(reversed(order))


def _strongest(layers: list[LayerWeights], ids: tuple[str, ...]) -> list[tuple[Neighbour, ...]]:
    """Of each sensor the neighbours with the largest weight."""
    mean = _mean_weights(layers)
    if mean is None:
        return [() for _ in ids]
    index, apart = layers[0].index, layers[0].apart_km
    order = np.argsort(-mean, axis=1, kind="stable")[:, :NAMED]
    return [
        tuple(Neighbour(ids[index[i, k]], float(mean[i, k]), float(apart[i, k])) for k in order[i] if mean[i, k] > 0)
        for i in range(len(ids))
    ]


def _received(layers: list[LayerWeights], sensors: int) -> list[float | None]:
    """Of each sensor the sum of the weights that others give to it."""
    mean = _mean_weights(layers)
    if mean is None:
        return [None] * sensors
    return [float(each) for each in np.bincount(layers[0].index.ravel(), mean.ravel(), sensors)]


def _mean_weights(layers: list[LayerWeights]) -> np.ndarray | None:
    """The attention weights [N,K], a mean over the layers, which share their neighbours; None where there are none."""
    weights = [layer.weights for layer in layers if layer.weights is not None]
    return np.mean(weights, axis=0) if weights else None


def layer_summary(layer: LayerWeights) -> Layer:
    """The means of one social layer."""
    columns = (layer.radius_km, layer.softness_km, layer.null_key, layer.entropy, layer.distance_km)
    heads = tuple(
        Head(*(None if column is None else _finite(column[head]) for column in columns))
        for head in range(len(layer.radius_km))
    )
    mean = Head(*(None if column is None else _finite(column.mean()) for column in columns))
    if layer.null_key is not None and layer.distance_km is not None and (1 - layer.null_key).any():
        distance = float(np.average(np.nan_to_num(layer.distance_km), weights=1 - layer.null_key))
        mean = replace(mean, distance_km=distance)
    return Layer(layer.name, layer.trained, layer.index.shape[1], mean, heads)


def _finite(value: float) -> float | None:
    """For JSON, where NaN does not exist."""
    return float(value) if math.isfinite(value) else None
