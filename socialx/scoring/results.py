"""Typed results: scores for several models under one protocol, and the explanation of a model.

MAE limits are texts: ``15min=2.7,60min=3.5`` or ``all=3``.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.core.disk import as_cell, atomic_write
from socialx.core.errors import Argument, Message, SettingsError
from socialx.core.notebook import Named, ResultRepr, unknown_name
from socialx.core.outputs import SCORES
from socialx.drawing.canvas import plot_lines
from socialx.files.store.published import DATASETS, PublishedScore
from socialx.scoring.difference import Difference
from socialx.scoring.drift import Drift
from socialx.scoring.intervals import BrierScore, Coverage
from socialx.scoring.metrics import ErrorRow, HorizonScores, Scores, finite_or_none
from socialx.scoring.protocol import ScoringProtocol
from socialx.scoring.published_rules import RuleErrors
from socialx.scoring.references import LAST_VALID, REFERENCES, ZEROS_COPIED

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FROZEN = "days of the training"  # of a run that knows no later ones
SCORES_SCHEMA, EXPLANATION_SCHEMA = "socialx.scores/1", "socialx.explanation/1"
COLUMNS = ("model", "target", "by", "key", "mae", "rmse", "mape", "r2", "count")  # of a table of scores
LIMITS = "fail_above"  # the argument that asks for them
Limit = tuple[int | None, float]  # minutes ahead, None for all steps, and the largest allowed MAE of the first target


@dataclass(frozen=True)
class ModelScores(Named):
    """One model's scores: target -> scores at each horizon step and over all steps."""

    targets: Mapping[str, HorizonScores]
    step_minutes: int

    @classmethod
    def from_scores(cls, scores: Sequence[HorizonScores], protocol: ScoringProtocol) -> ModelScores:
        """Return the scores by target name; scores: for each target, in protocol order."""
        return cls(dict(zip(protocol.targets, scores, strict=True)), protocol.step_minutes)

    def by_minutes(self, target: str | None = None) -> dict[int | None, Scores]:
        """Return minutes ahead -> scores for a target (default: the first); the last key, None, is over all steps.

        Raises SettingsError for an unknown target.
        """
        if target is not None and target not in self.targets:
            names = ", ".join(self.targets)
            problem = "not a target of the model"
            raise SettingsError("score.no-target", Argument("target", target), problem, f"choose {names}")
        scores = self.targets[target or next(iter(self.targets))]
        minutes = (self.step_minutes * step for step in range(1, len(scores.by_step) + 1))
        return dict(zip((*minutes, None), (*scores.by_step, scores.overall), strict=True))

    def at(self, minutes: int, target: str | None = None) -> Scores:
        """Return the scores at a lead time, for a target (default: the first); SettingsError for other minutes."""
        by_minutes = self.by_minutes(target)
        if minutes not in by_minutes:
            steps = ", ".join(map(str, list(by_minutes)[:-1]))
            problem = "no step of the horizon"
            raise SettingsError("score.no-step", Argument("minutes", minutes), problem, f"choose {steps}")
        return by_minutes[minutes]

    def overall(self, target: str | None = None) -> Scores:
        """Return the scores over all horizon steps, for a target (default: the first)."""
        return self.by_minutes(target)[None]

    def as_dict(self) -> dict[str, Any]:
        """Return the scores for JSON, by target."""
        content = {}
        for target in self.targets:
            *steps, (_, overall) = self.by_minutes(target).items()
            by_step = [{"minutes": minutes, **scores.as_dict()} for minutes, scores in steps]
            content[target] = {"by_step": by_step, "all": overall.as_dict()}
        return content


@dataclass(frozen=True, repr=False)
class Evaluation(ResultRepr, Mapping[str, ModelScores]):
    """The scores of several models on the same windows, by run or baseline name.

    published: published results under the same protocol, if baselines were scored. climatology_days: the same runs with
    climatology from days before each day, even within the split, to compare only with each other; also ``RUN, days of
    the training``: runs with training-day climatology, comparable with published results. silent: the same runs while a
    share of the sensors gives no reading: all sensors, the silent ones, the others. mean: name of the mean of the runs,
    if scored. coverage: run -> target -> interval coverage. brier: run -> rows. by: model -> group -> errors in the
    first target. difference: between two runs. drift: per run. protocols: model -> averaging rule of publications ->
    MAE. without_target: number of windows without a valid target.
    """

    split: str
    protocol: ScoringProtocol
    models: Mapping[str, ModelScores]
    published: tuple[PublishedScore, ...]
    climatology_days: Mapping[str, ModelScores] = field(default_factory=dict)
    silent: Mapping[str, ModelScores] = field(default_factory=dict)
    mean: str = ""
    coverage: Mapping[str, Mapping[str, tuple[Coverage, ...]]] = field(default_factory=dict)
    brier: Mapping[str, tuple[BrierScore, ...]] = field(default_factory=dict)
    by: Mapping[str, Mapping[str, tuple[ErrorRow, ...]]] = field(default_factory=dict)
    difference: Difference | None = None
    drift: Mapping[str, Drift] = field(default_factory=dict)
    protocols: Mapping[str, RuleErrors] = field(default_factory=dict)
    without_target: int | None = None

    @property
    def distinct_models(self) -> dict[str, ModelScores]:
        """The models to show: with complete data both naive baselines agree, and only ``naive`` is shown."""
        twins = ZEROS_COPIED in self.models and self.models[ZEROS_COPIED] == self.models.get(LAST_VALID)
        return {name: model for name, model in self.models.items() if not (twins and name == ZEROS_COPIED)}

    @property
    def best(self) -> str:
        """The name of the run or baseline with the lowest MAE of the first target over all steps."""
        maes = {name: model.overall().mae for name, model in self.distinct_models.items()}
        return min(maes, key=lambda name: math.inf if math.isnan(maes[name]) else maes[name])

    @property
    def over_runs(self) -> dict[str, ModelScores]:
        """The mean and the standard deviation (n - 1) of the runs' scores, if their mean was scored."""
        runs = [self.models[run] for run in self.protocol.trained]
        kinds: dict[str, Any] = {"mean score": np.mean, "deviation": partial(np.std, ddof=1)} if self.mean else {}
        return {name: _join(runs, kind) for name, kind in kinds.items()}

    def headline(self) -> str:
        """Return a sentence with the models, the split, and the MAE over all steps."""
        models = ", ".join(f"{name} {model.overall().mae:.3f}" for name, model in self.distinct_models.items())
        told = "" if self.difference is None else f"; {self.difference}"
        return f"MAE in {self.protocol.unit} on the {self.split} split of {self.protocol.dataset}: {models}{told}"

    def table(self) -> list[dict[str, Any]]:
        """Return a row per model: the first target's MAE at 15, 30 and 60 minutes, and over all steps."""
        rows = []
        for name, model in {**self.distinct_models, **self.over_runs}.items():
            scores = model.by_minutes()
            ahead = {f"{minutes} min": scores[minutes].mae for minutes in (15, 30, 60) if minutes in scores}
            rows.append({"model": name, **ahead, "all": scores[None].mae})
        return rows

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield scores per model, target and lead time (``all``: over all steps), and then the errors in ``by``.

        Each row has ``COLUMNS``; error rows have only mae and count.
        """
        for name, model in {**self.models, **self.climatology_days, **self.silent}.items():
            for target in model.targets:
                for minutes, scores in model.by_minutes(target).items():
                    key = "all" if minutes is None else minutes
                    row = {"model": name, "target": target, "by": "horizon", "key": key, **scores.as_dict()}
                    yield {column: row[column] for column in COLUMNS}
        for name, tables in self.by.items():
            for by, errors in tables.items():
                names = {"model": name, "target": next(iter(self.protocol.targets)), "by": by}
                yield from ({**names, **asdict(row)} for row in errors if by != "horizon")

    def to_frame(self) -> pd.DataFrame:
        """Return a tidy table: one row per model and horizon step.

        Columns: model, horizon (minutes ahead), mae, rmse (in ``unit``), mape (percent), r2, count, unit; with several
        targets also target, after model.
        """
        import pandas as pd

        units = self.protocol.targets
        rows = [row for row in self.rows() if row["by"] == "horizon" and row["key"] != "all"]
        frame = pd.DataFrame([row | {"unit": units[row["target"]]} for row in rows]).rename(columns={"key": "horizon"})
        return frame.drop(columns=["by"] if len(units) > 1 else ["by", "target"])

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the first target's MAE by lead time, also into a .png, .svg or .pdf, and return the figure."""
        by_step = {name: list(model.by_minutes().items())[:-1] for name, model in self.distinct_models.items()}
        lines = {name: ([at for at, _ in rows], [row.mae for _, row in rows]) for name, rows in by_step.items()}
        heading = (f"MAE on {self.protocol.dataset}", f"{self.split} windows, {next(iter(self.protocol.targets))}")
        return plot_lines(path, heading, lines, xlabel="minutes ahead", ylabel=f"MAE, {self.protocol.unit}")

    def __getitem__(self, name: object) -> ModelScores:
        if (key := str(name)) not in self.models:
            raise KeyError(unknown_name(f"{key} is not scored", key, self.models))
        return self.models[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def as_dict(self) -> dict[str, Any]:
        """Return the evaluation for JSON; an undefined number is None."""
        asked = {
            "climatology_days": {name: model.as_dict() for name, model in self.climatology_days.items()},
            "silent": {name: model.as_dict() for name, model in self.silent.items()},
            "over_runs": {name: scores.as_dict() for name, scores in self.over_runs.items()},
            "intervals": _as_dicts(self.coverage),
            "brier": {run: [asdict(row) for row in rows] for run, rows in self.brier.items()},
            "by": _as_dicts(self.by),
            "difference": self.difference and asdict(self.difference),
            "drift": {run: asdict(drift) for run, drift in self.drift.items()},
            "protocols": {
                name: {rule: [*map(finite_or_none, maes)] for rule, maes in rules.items()}
                for name, rules in self.protocols.items()
            },
        }
        return {
            "schema": SCORES_SCHEMA,
            "split": self.split,
            "scores": {name: model.as_dict() for name, model in self.models.items()},
            **{name: split for name, split in asked.items() if split},
            "protocol": self.protocol.as_dict(),
        }

    def to_csv(self, path: str | Path, overwrite: bool = False) -> None:
        """Write ``rows`` as CSV, atomically; overwrite: replace an existing table of scores."""
        SCORES.check_older(Path(path), overwrite)
        with atomic_write(Path(path)) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            for row in self.rows():
                table.writerow({name: as_cell(x) if isinstance(x, str) else x for name, x in row.items()})


def _as_dicts(tables: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, Any]:
    """Return the tables for JSON: name -> key -> rows, with each row, a dataclass, as a dict."""
    return {name: {key: [asdict(row) for row in rows] for key, rows in table.items()} for name, table in tables.items()}


def _join(models: Sequence[ModelScores], kind: Callable[..., Any]) -> ModelScores:
    """Return each number of the scores over models, such as the mean."""
    targets = {}
    for target in models[0].targets:
        rows = [[astuple(scores) for scores in model.by_minutes(target).values()] for model in models]
        *steps, overall = (Scores(*row[:4], *map(int, row[4:])) for row in kind(rows, axis=0).tolist())
        targets[target] = HorizonScores(tuple(steps), overall)
    return ModelScores(targets, models[0].step_minutes)


def published_scores(protocol: ScoringProtocol, split: str) -> tuple[PublishedScore, ...]:
    """Return published results for the same data, test split and protocol, comparable with new scores, else nothing."""
    dataset = next((d for d in DATASETS.values() if d.dataset_name == protocol.dataset), None)
    same = split == "test" and protocol.period is None
    same = same and protocol.split_method == "canonical" and protocol.targets == {"avg_speed": "mph"}
    same = same and (protocol.lookback, protocol.horizon, protocol.step_minutes) == (12, 12, 5)
    same = same and protocol.missing["avg_speed"] == 0  # a reading of 0 is none
    if not same or protocol.imputed or dataset is None:
        return ()
    whole = (protocol.sensors, protocol.windows["test"]) == (dataset.sensors, dataset.test_windows)
    return dataset.scores if whole else ()


def parse_limits(text: str) -> list[Limit]:
    """Parse limits on the MAE such as ``60min=3.5,all=3``. Raises SettingsError for any other text."""
    limits = []
    for split in text.split(","):
        match = re.fullmatch(r"\s*(?:(\d{1,6})\s*min|all)\s*=\s*(\d+(?:\.\d*)?|\.\d+)\s*", split)
        if not match:
            remedy = f"for example {Argument(LIMITS, '60min=3.5')}"
            problem = f"{split!a} is not MINUTESmin=NUMBER or all=NUMBER"
            raise SettingsError("score.limit-form", Argument(LIMITS, text), problem, remedy)
        limits.append((int(match[1]) if match[1] else None, float(match[2])))
    return limits


def exceeded_limits(scores: Evaluation, limits: Sequence[Limit]) -> list[Message]:
    """Return a message for each limit exceeded by a run or a forecast file.

    Raises SettingsError for minutes outside the horizon steps.
    """
    lines = []
    for name in (name for name in scores if name not in REFERENCES):
        for minutes, most in limits:
            at = "all steps" if minutes is None else f"{minutes} min"
            try:
                mae = scores[name].overall().mae if minutes is None else scores[name].at(minutes).mae
            except SettingsError as error:
                (message,) = error.messages
                raise SettingsError(
                    "score.limit", Argument(LIMITS, f"{minutes}min={most:g}"), message.problem, message.remedy
                ) from None
            if not mae <= most:
                lines.append(
                    Message("score.above", name, f"MAE {mae:.4f} {scores.protocol.unit} at {at}, required <= {most:g}")
                )
    return lines


@dataclass(frozen=True)
class Neighbour:
    """A neighbour with distance and attention weight, a mean over windows, heads and layers."""

    id: str
    weight: float
    km: float


@dataclass(frozen=True)
class SensorErrors:
    """One sensor's MAE and location, and the neighbours with the largest attention weights.

    count: number of valid targets. received: the sum of attention weights from all sensors, if the model has weights.
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
    """What one head in a social layer does; None for an undefined number.

    gate_radius_km: distance at which the gate is one half.  softness_km: within this distance around the radius the
    gate falls from 0.73 to 0.27, 0 for a hard gate.  Means over windows and sensors: null_key, weight on the null key;
    entropy_nats, entropy over null key and neighbours; distance_km, mean distance over the weight on neighbours.
    """

    gate_radius_km: float | None
    softness_km: float | None
    null_key: float | None
    entropy_nats: float | None
    distance_km: float | None


@dataclass(frozen=True)
class Layer:
    """One social layer: heads, and the mean over heads; the mean distance is weighted by neighbour weight.

    trained: whether the radii are learned.  neighbours: number of neighbours per sensor.
    """

    name: str
    trained: bool
    neighbours: int
    mean: Head
    heads: tuple[Head, ...]


@dataclass(frozen=True)
class ReferenceErrors:
    """A baseline's errors over the same windows."""

    mae: float | None
    by_horizon: tuple[ErrorRow, ...]
    by_hour: tuple[ErrorRow, ...]


@dataclass(frozen=True, repr=False)
class Explanation(ResultRepr):
    """Errors in the first target, in target units, and the model's social layers.

    by_weekday: 0 is Monday.  sensors: worst first, unscored sensors last.  no_pooling: the reason for empty layers,
    else None.  times: first and last forecast row.
    """

    run: str
    split: str
    target: str
    unit: str
    mae: float | None
    count: int
    by_horizon: tuple[ErrorRow, ...]
    by_hour: tuple[ErrorRow, ...]
    by_weekday: tuple[ErrorRow, ...]
    sensors: tuple[SensorErrors, ...]
    layers: tuple[Layer, ...]
    no_pooling: str | None
    protocol: ScoringProtocol
    references: Mapping[str, ReferenceErrors] = field(default_factory=dict)
    times: tuple[str, str] | None = None

    def headline(self) -> str:
        """Return a sentence with the run, the split and the MAE over all sensors."""
        mae = "no valid target" if self.mae is None else f"MAE {self.mae:.3f} {self.unit}"
        return f"{self.run} on the {self.split} split, {self.target}: {mae} over {self.count:,} readings"

    def table(self) -> list[dict[str, Any]]:
        """Return the sensors, worst first, each with the MAE and the strongest neighbour."""
        strongest = {sensor.id: sensor.neighbours[0].id for sensor in self.sensors if sensor.neighbours}
        return [
            {"sensor": sensor.id, "mae": sensor.mae, "strongest neighbour": strongest.get(sensor.id)}
            for sensor in self.sensors
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation for JSON."""
        content = {"schema": EXPLANATION_SCHEMA, **asdict(self)}
        for holder in (content, *content["references"].values()):
            for name, key in (("by_horizon", "minutes"), ("by_hour", "hour"), ("by_weekday", "weekday")):
                if name in holder:
                    holder[name] = [{key: row.pop("key"), **row} for row in holder[name]]
        return content
