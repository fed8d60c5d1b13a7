"""What the page of some runs shows, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from socialx.notebook import Shown
from socialx.scoring.days import Day
from socialx.scoring.results import ErrorOf, Evaluation, Explanation
from socialx.training.run_folder import EpochRow


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says of its training.

    settings, origins: by dotted key; a setting whose origin is not known has none.  best_epoch: that of the weights,
    None: no epoch had ended.
    """

    name: str
    settings: Mapping[str, Any]
    origins: Mapping[str, str]
    epochs: tuple[EpochRow, ...]
    best_epoch: int | None


@dataclass(frozen=True, eq=False, repr=False)
class RunReport(Shown):
    """Runs and reference forecasts on the same windows, and where the best run errs.

    runs: in the order that they were named in.  defaults: of all settings.  by_hour, by_weekday: of each run and
    reference by its name, for the first target.  explanation and days are of the run with the smallest MAE over all
    steps; sensors: the ids of the columns of the days.
    """

    evaluation: Evaluation
    runs: tuple[RunRecord, ...]
    defaults: Mapping[str, Any]
    by_hour: Mapping[str, tuple[ErrorOf, ...]]
    by_weekday: Mapping[str, tuple[ErrorOf, ...]]
    explanation: Explanation
    sensors: tuple[str, ...]
    days: tuple[Day, ...]

    def headline(self) -> str:
        """The scores."""
        return self.evaluation.headline()

    def table(self) -> list[dict[str, Any]]:
        """The scores, a row per model."""
        return self.evaluation.table()

    @property
    def references(self) -> tuple[str, ...]:
        """The names of the reference forecasts, the best first."""
        runs = {run.name for run in self.runs}
        names = [name for name in self.evaluation.distinct if name not in runs]
        return tuple(sorted(names, key=lambda name: self.evaluation[name].overall().mae))
