"""The contents of a report page as data: scores, settings, and days to compare forecast and truth."""

# Shape letters: W windows, B windows of a batch, R rows of a day, P horizon steps, N sensors, G targets

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from socialx.core.batch import Batch, Target
from socialx.core.notebook import ResultRepr
from socialx.data.calendar import DAY_S
from socialx.data.source import RowSource
from socialx.scoring.results import FROZEN, Evaluation, Explanation
from socialx.training.run_folder import EpochRow

Ends = Callable[..., tuple[Tensor, Tensor]]
MORNING_S, EVENING_S = 6 * 3600, 22 * 3600  # between them a road is used
LEVEL = 0.9  # of the intervals around the forecasts of a day
ENOUGH = 0.9  # of the rows of the fullest day: a day with fewer is not chosen


@dataclass(frozen=True, eq=False)
class Day:
    """Observations on a day, and the forecasts for each made ``minutes_ahead`` minutes before.

    seconds int64 [R]: local time read as UTC. truth, forecast float32 [R,N]: the first target, truth NaN if missing.
    band: lower and upper ends around the forecast, float32 [R,N] each, or None.
    """

    minutes_ahead: int
    seconds: np.ndarray
    truth: np.ndarray
    forecast: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class RunRecord:
    """The record of a training in a run folder.

    settings, origins: by dotted key; origins has known sources only. best_epoch: the epoch behind the weights, None
    before the first epoch ended.
    """

    name: str
    settings: Mapping[str, Any]
    origins: Mapping[str, str]
    epochs: tuple[EpochRow, ...]
    best_epoch: int | None


@dataclass(frozen=True, eq=False, repr=False)
class RunReport(ResultRepr):
    """Runs and baselines on the same windows, and the errors of the best run.

    evaluation: with errors by horizon, hour and weekday. runs: in the order given. defaults: all default settings.
    explanation, days: for the run with the smallest MAE over all steps. sensors: ids for the columns in days.
    """

    evaluation: Evaluation
    runs: tuple[RunRecord, ...]
    defaults: Mapping[str, Any]
    explanation: Explanation
    sensors: tuple[str, ...]
    days: tuple[Day, ...]

    def headline(self) -> str:
        """Return the scores in a line."""
        return self.evaluation.headline()

    def table(self) -> list[dict[str, Any]]:
        """Return the scores, a row per model."""
        return self.evaluation.table()

    def with_names(self, names: Mapping[str, str]) -> RunReport:
        """Return the report with other names for runs, from the names that they have here."""

        def rename(table: Mapping[str, Any]) -> dict[str, Any]:
            parts = {key: key.partition(f", {FROZEN}") for key in table}
            return {names.get(name, name) + after + rest: table[key] for key, (name, after, rest) in parts.items()}

        old, explanation = self.evaluation, self.explanation
        tables: dict[str, Any] = {name: rename(getattr(old, name)) for name in ("models", "by", "climatology_days")}
        protocol = replace(old.protocol, trained=rename(old.protocol.trained))
        return replace(
            self,
            evaluation=replace(old, protocol=protocol, **tables),
            runs=tuple(replace(run, name=names.get(run.name, run.name)) for run in self.runs),
            explanation=replace(explanation, run=names.get(explanation.run, explanation.run)),
        )

    @property
    def references(self) -> list[str]:
        """Return the names of baselines, the best first."""
        runs = {run.name for run in self.runs}
        names = [name for name in self.evaluation.distinct_models if name not in runs]
        return sorted(names, key=lambda name: self.evaluation[name].overall().mae)


def telling_days(source: RowSource, rows: np.ndarray) -> list[slice]:
    """Return two days as slices of windows: the day with the largest variation, and a median day; fewer if scarce.

    rows int64 [W], ascending: the forecast row for each window in a split. Days reach from 6:00 to 22:00 where such
    rows exist. Variation is the standard deviation of the first target per sensor, averaged over sensors.
    """
    local = source.calendar.local(source.seconds[rows])
    second = local % DAY_S
    used = np.flatnonzero((second >= MORNING_S) & (second <= EVENING_S))
    places = used if len(used) else np.arange(len(rows))
    day_of = local[places] // DAY_S
    days, firsts, counts = np.unique(day_of, return_index=True, return_counts=True)
    spans = [
        slice(int(places[first]), int(places[first + count - 1]) + 1)
        for _, first, count in zip(days, firsts, counts, strict=True)
        if count >= ENOUGH * counts.max()
    ]

    def variation(span: slice) -> float:
        readings = source.read(slice(int(rows[span.start]), int(rows[span.stop - 1]) + 1))
        values, valid = (part[..., 0] for part in readings)  # [R,N]
        count = np.maximum(valid.sum(axis=0), 1)
        mean = np.where(valid, values, 0).sum(axis=0, dtype=np.float64) / count
        return float(np.sqrt((np.where(valid, values - mean, 0) ** 2).sum(axis=0) / count).mean())

    spans.sort(key=variation, reverse=True)
    return [spans[0], spans[len(spans) // 2]][: len(spans)]


class ForecastRecorder:
    """Forecasts at a horizon step for some windows, recorded while a model passes over a split in time order."""

    def __init__(self, step: int, spans: Sequence[slice], around: Ends | None = None) -> None:
        """Prepare records at horizon step ``step``, from 1; spans: slices of windows in the split.

        around: returns lower and upper ends for forecasts [B,P,N,G] and ``origin`` [B]; None: no ends.
        """
        self.step, self.spans, self.around, self._seen = step - 1, spans, around, 0
        self._kept: list[list[Tensor]] = [[] for _ in spans]

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """Record a forecast [B,P,N,G] in file units, the first target alone."""
        first, self._seen = self._seen, self._seen + len(forecast)
        for span, kept in zip(self.spans, self._kept, strict=True):
            part = slice(max(0, span.start - first), max(0, span.stop - first))
            truth, valid = (tensor[part, self.step, :, 0] for tensor in (target.values, target.valid))
            lines = [forecast[part], *(self.around(forecast[part], origin=batch.origin[part]) if self.around else ())]
            rows = [torch.where(valid, truth, torch.nan), *(line[:, self.step, :, 0] for line in lines)]
            kept.append(torch.stack([tensor.float() for tensor in rows]))

    def compute(self) -> list[tuple[np.ndarray, ...]]:
        """Return per span: truth (NaN if missing), forecast and both ends, float32 [R,N] each."""
        return [tuple(torch.cat(kept, dim=1).cpu().numpy()) for kept in self._kept]
