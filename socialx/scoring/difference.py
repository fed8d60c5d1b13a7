"""The MAE difference between two models on the same windows, with a bootstrap confidence interval over days.

Errors within a day are correlated, errors on different days hardly.  So whole days are drawn with replacement, the same
days for both models: the block bootstrap (Künsch 1989, Annals of Statistics 17(3)) with a day as block.
"""

# Shape letters: B windows, P horizon steps, N sensors, G targets, D days, R draws

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from socialx.core.batch import Batch, Target
from socialx.core.errors import Argument, SettingsError

LEAST_DAYS = 5
DRAWS, SEED = 2000, 0
LEVEL = 0.95


@dataclass(frozen=True)
class DifferenceAt:
    """MAE of the second model - MAE of the first, with a 95 % confidence interval from low to high.

    minutes: lead time, None for all steps.  The numbers are None where every target is invalid.
    """

    minutes: int | None
    difference: float | None
    low: float | None
    high: float | None

    @property
    def differs(self) -> bool | None:
        """Whether the interval excludes 0."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Difference:
    """The MAE of the second run - MAE of the first, at every step and over all steps.

    first, second: run names. days: bootstrap days. start: the run that the other run was fine-tuned
    from, or "".
    """

    first: str
    second: str
    days: int
    rows: tuple[DifferenceAt, ...]
    start: str = ""

    def __str__(self) -> str:
        """Return the difference over all steps, with its confidence interval."""
        row = self.rows[-1]
        if row.difference is None or row.low is None:
            return f"{self.second} - {self.first}: no valid target"
        significant = f"{'' if row.differs else 'not '}significant at 5 %"
        return f"{self.second} - {self.first}: {row.difference:+.3f} ({row.low:+.3f} to {row.high:+.3f}), {significant}"


class DailyErrors:
    """Absolute error sums for the first target by origin day and horizon step, kept on the device."""

    def __init__(self, days: np.ndarray, horizon: int, device: torch.device) -> None:
        """Start at 0.  days int64 [windows]: day of each window, in loader order.  SettingsError for under 5 days."""
        names, day_index = np.unique(days, return_inverse=True)
        if len(names) < LEAST_DAYS:
            problem = f"{Argument('compare')} needs windows of {LEAST_DAYS} days for an interval, not {len(names)}"
            raise SettingsError("score.few-days", "", problem, f"use {Argument('split', 'all')} or a longer file")
        self.day_index = torch.from_numpy(day_index).to(device)
        self.names = torch.arange(len(names), device=device)
        self.sums = torch.zeros(2, len(names), horizon, dtype=torch.float64, device=device)
        self.seen = 0

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """Add errors of the next forecast [B,P,N,G] (P steps, G targets); windows that pad the last batch drop out."""
        day_index = self.day_index[self.seen : self.seen + len(forecast)]
        self.seen += len(day_index)
        valid = target.valid[: len(day_index), ..., 0]
        error = (forecast[: len(day_index), ..., 0].double() - target.values[: len(day_index), ..., 0].double()).abs()
        both = torch.stack([torch.where(valid, error, 0.0), valid.double()]).sum(dim=3)  # [2,B,P]
        self.sums += (day_index == self.names[:, None]).double() @ both

    def compute(self) -> tuple[np.ndarray, np.ndarray]:
        """Return error sums and counts [D,P+1] for D days and P horizon steps; the last column is over all steps."""
        total, count = torch.cat([self.sums, self.sums.sum(dim=2, keepdim=True)], dim=2).cpu().numpy()
        return total, count


def difference(errors: Mapping[str, DailyErrors], step_minutes: int, start: str = "") -> Difference:
    """Return MAE of the second run - MAE of the first, with confidence intervals, per lead time.

    errors: run name -> errors on the same windows, for two runs.  start: the run that fine-tuning began with, or "".
    """
    first, second = errors
    (first_totals, count), (second_totals, _) = errors[first].compute(), errors[second].compute()
    days, columns = count.shape
    rows = []
    for column in range(columns):
        minutes = step_minutes * (column + 1) if column < columns - 1 else None
        gap, counts = (second_totals - first_totals)[:, column], count[:, column]
        overall = float(gap.sum() / counts.sum()) if counts.any() else None
        rows.append(DifferenceAt(minutes, overall, *confidence_interval(gap, counts)))
    return Difference(first, second, days, tuple(rows), start)


@lru_cache(maxsize=4)
def _draws(days: int) -> np.ndarray:
    """Return how often a bootstrap sample (R rows) contains a day (D columns), float64 [R,D], from a fixed seed."""
    return np.random.default_rng(SEED).multinomial(days, np.full(days, 1 / days), size=DRAWS).astype(float)


def confidence_interval(total: np.ndarray, count: np.ndarray) -> tuple[float | None, float | None]:
    """Return low and high of the 95 % interval for sum(total) / sum(count), by day [D]; None, None for under 5 days."""
    days = len(count)
    if days < LEAST_DAYS or not count.any():
        return None, None
    totals, counts = _draws(days) @ total, _draws(days) @ count  # [R]
    nonempty = counts > 0
    low, high = np.quantile(totals[nonempty] / counts[nonempty], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return low, high
