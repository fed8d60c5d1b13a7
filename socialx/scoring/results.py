"""The results of scoring, typed: scores of several models under one protocol, and the explanation of one."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from socialx.data.calendar import WEEKDAYS
from socialx.disk import as_cell, check_output, replacing
from socialx.errors import Argument, SettingsError
from socialx.files.published import PublishedScore
from socialx.notebook import Shown
from socialx.scoring.breakdown import HOURS, Breakdown, Errors
from socialx.scoring.difference import Difference
from socialx.scoring.drift import Drift
from socialx.scoring.intervals import Coverage
from socialx.scoring.metrics import HorizonScores, Scores
from socialx.scoring.protocol import ScoringProtocol
from socialx.scoring.references import LAST_VALID, ZEROS_COPIED

if TYPE_CHECKING:
    import pandas as pd

FROZEN = "days of the training"  # of a run that knows no later ones
SCORES_SCHEMA, EXPLANATION_SCHEMA = "socialx.scores/1", "socialx.explanation/1"
Key = TypeVar("Key", int, str)


@dataclass(frozen=True)
class ModelScores:
    """The scores of one model: target -> scores at each horizon step and over all of them."""

    targets: Mapping[str, HorizonScores]
    step_minutes: int

    @classmethod
    def of(cls, scores: Sequence[HorizonScores], protocol: ScoringProtocol) -> ModelScores:
        """The scores of all targets, in their order."""
        return cls(dict(zip(protocol.targets, scores, strict=True)), protocol.step_minutes)

    def at(self, minutes: int, target: str | None = None) -> Scores:
        """The scores so many minutes ahead, of the first target or the named one; SettingsError for any other."""
        step, rest = divmod(minutes, self.step_minutes)
        by_step = self._of(target).by_step
        if rest or not 1 <= step <= len(by_step):
            steps = ", ".join(str((k + 1) * self.step_minutes) for k in range(len(by_step)))
            raise SettingsError(Argument("minutes", minutes), "no step of the horizon", f"choose {steps}")
        return by_step[step - 1]

    def overall(self, target: str | None = None) -> Scores:
        """The scores over all horizon steps."""
        return self._of(target).overall

    def _of(self, target: str | None) -> HorizonScores:
        if target is not None and target not in self.targets:
            names = ", ".join(self.targets)
            raise SettingsError(Argument("target", target), "not a target of the model", f"choose {names}")
        return self.targets[target or next(iter(self.targets))]


@dataclass(frozen=True, repr=False)
class Evaluation(Shown, Mapping[str, ModelScores]):
    """The scores of several models on the same windows, by the name of the run or reference.

    published: results of others under the same protocol, where references were asked for.  known_days: of
    the same runs that know so many days before each day, which may be days of the part itself: scores that compare with
    no frozen model's.  Beside published results it has what each run knows with the days of its training alone, named
    ``RUN, days of the training``.  What was asked for:
    coverage of the prediction intervals of each run, by target; by: the errors of the first target of each model, by
    what they are divided by; difference of two runs; drift of each run.  inputs: files that were read, which ``to_csv``
    never replaces.
    """

    part: str
    protocol: ScoringProtocol
    models: Mapping[str, ModelScores]
    published: tuple[PublishedScore, ...]
    known_days: Mapping[str, ModelScores] = field(default_factory=dict)
    coverage: Mapping[str, Mapping[str, tuple[Coverage, ...]]] = field(default_factory=dict)
    by: Mapping[str, Mapping[str, tuple[ErrorOf[Any], ...]]] = field(default_factory=dict)
    difference: Difference | None = None
    drift: Mapping[str, Drift] = field(default_factory=dict)
    inputs: tuple[Path, ...] = field(default=(), repr=False)

    @property
    def distinct(self) -> dict[str, ModelScores]:
        """The models to show: on data without missing readings two references are one, and the last valid is shown."""
        twins = ZEROS_COPIED in self.models and self.models[ZEROS_COPIED] == self.models.get(LAST_VALID)
        return {name: model for name, model in self.models.items() if not (twins and name == ZEROS_COPIED)}

    def headline(self) -> str:
        """Which models were scored on which part, and the MAE of each over all steps."""
        models = ", ".join(f"{name} {model.overall().mae:.3f}" for name, model in self.distinct.items())
        return f"MAE in {self.protocol.unit} on the {self.part} part of {self.protocol.dataset}: {models}"

    def table(self) -> list[dict[str, Any]]:
        """The MAE of the first target, a row per model: a quarter of an hour, half an hour, an hour ahead, and all."""
        step = self.protocol.step_minutes
        rows = []
        for name, model in self.distinct.items():
            ahead = {f"{minutes} min": minutes // step for minutes in (15, 30, 60) if minutes % step == 0}
            steps = model.targets[next(iter(model.targets))].by_step
            errors = {label: steps[place - 1].mae for label, place in ahead.items() if 1 <= place <= len(steps)}
            rows.append({"model": name, **errors, "all": model.overall().mae})
        return rows

    def to_frame(self) -> pd.DataFrame:
        """A tidy table: one row per model and horizon step.

        Columns: model, horizon (minutes ahead), mae, rmse (in ``unit``), mape (percent), r2, count, unit; with several
        targets also target, after model.
        """
        import pandas as pd

        units = self.protocol.targets
        rows = [row | {"unit": units[row["target"]]} for row in self._rows() if row["horizon"] is not None]
        return pd.DataFrame(rows).drop(columns=["target"] if len(units) == 1 else [])

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The scores of each model, target and horizon in minutes; None: over all steps."""
        models = {**self.models, **self.known_days}
        for name, model in models.items():
            for target, scores in model.targets.items():
                minutes = [self.protocol.step_minutes * (step + 1) for step in range(len(scores.by_step))]
                for ahead, found in zip((*minutes, None), (*scores.by_step, scores.overall), strict=True):
                    measures = {name: value for name, value in found.as_dict().items() if name != "undivided"}
                    yield {"model": name, "target": target, "horizon": ahead, **measures}

    def __getitem__(self, name: object) -> ModelScores:
        return self.models[str(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: horizon steps with their minutes; a number that does not exist is None."""
        content: dict[str, Any] = {"schema": SCORES_SCHEMA, "part": self.part, "scores": self._table(self.models)}
        if self.known_days:
            content["known_days"] = self._table(self.known_days)
        for name, tables in (("intervals", self.coverage), ("by", self.by)):
            if tables:
                content[name] = {
                    model: {key: [asdict(row) for row in rows] for key, rows in table.items()}
                    for model, table in tables.items()
                }
        if self.difference:
            content["difference"] = asdict(self.difference)
        if self.drift:
            content["drift"] = {run: asdict(drift) for run, drift in self.drift.items()}
        return {**content, "protocol": self.protocol.as_dict()}

    def to_csv(self, path: str | Path, overwrite: bool = False) -> None:
        """Write all scores as CSV, whole or not at all: a row per model, target and horizon step, and one over all.

        Columns: model, target, by, key, mae, rmse, mape, r2, count.  The rows of ``by`` have mae and count alone.
        """
        check_output(Path(path), overwrite, self.inputs)
        rows: list[dict[str, Any]] = []
        for row in self._rows():
            minutes = row.pop("horizon")
            rows.append({**row, "by": "horizon", "key": "all" if minutes is None else str(minutes)})
        for name, tables in self.by.items():
            for by, errors in tables.items():
                of = {"model": name, "target": next(iter(self.protocol.targets)), "by": by}
                rows += [{**of, **asdict(row)} for row in errors if by != "horizon"]
        with replacing(Path(path)) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, ["model", "target", "by", "key", "mae", "rmse", "mape", "r2", "count"])
            table.writeheader()
            table.writerows({name: as_cell(x) if isinstance(x, str) else x for name, x in row.items()} for row in rows)

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


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
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

    def headline(self) -> str:
        """The run, the part and the MAE over all sensors."""
        mae = "no valid target" if self.mae is None else f"MAE {self.mae:.3f} {self.unit}"
        return f"{self.run} on the {self.part} part, {self.target}: {mae} over {self.count:,} readings"

    def table(self) -> list[dict[str, Any]]:
        """The sensors, the worst first, each with its MAE and its strongest neighbour."""
        strongest = {each.id: each.neighbours[0].id for each in self.sensors if each.neighbours}
        return [
            {"sensor": each.id, "mae": each.mae, "strongest neighbour": strongest.get(each.id)} for each in self.sensors
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        content = {"schema": EXPLANATION_SCHEMA, **asdict(self)}
        for holder in (content, *content["references"].values()):
            for name, key in (("by_horizon", "minutes"), ("by_hour", "hour"), ("by_weekday", "weekday")):
                if name in holder:
                    holder[name] = [{key: row.pop("key"), **row} for row in holder[name]]
        return content


def breakdown_rows(errors: Breakdown, by: str, step_minutes: int, sensors: Sequence[str]) -> tuple[ErrorOf[Any], ...]:
    """The errors by one of ``BY``; sensors: their ids."""
    keys: dict[str, Iterable[int | str]] = {
        "horizon": range(step_minutes, step_minutes * (len(errors["horizon"].count) + 1), step_minutes),
        "hour": range(HOURS),
        "weekday": (*WEEKDAYS, "holiday")[: len(errors["weekday"].count)],
        "sensor": sensors,
        "congestion": ("congested", "free"),
    }
    return error_rows(keys[by], errors[by])


def error_rows(keys: Iterable[Key], errors: Errors) -> tuple[ErrorOf[Key], ...]:
    """One row per key."""
    return tuple(
        ErrorOf(key, finite(mae), int(count)) for key, mae, count in zip(keys, errors.mae, errors.count, strict=True)
    )


def finite(value: float) -> float | None:
    """The number, None where it is not finite: JSON has no NaN."""
    return float(value) if math.isfinite(value) else None
