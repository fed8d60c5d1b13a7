"""Masked MAE, RMSE, MAPE and R2 per target and horizon step, and error breakdowns, as running sums on the device.

Sums are float64 over all valid entries, rather than a mean over batch means.  An empty mask gives NaN with count 0.
The host first waits for the device in ``compute``.
"""

# Shape letters: W windows, B of a batch, P horizon steps, N sensors, G targets, X what the errors are divided by

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from socialx.core.batch import Batch, Target
from socialx.data.calendar import WEEKDAYS

SUMS = ("count", "absolute", "squared", "percent", "percent_count", "value", "value_squared")
NEARLY_ZERO = 1e-3  # of the mean: METR-LA's lowest speed is at 6e-3, a count of 1 against a mean of 200 at 5e-3
MOST_ENTRIES = 1 << 20  # forecasts added at a time: METR-LA has 158,976 in a batch of 64
BY = ("horizon", "hour", "weekday", "sensor", "congestion")  # groups of errors
HOURS = 24
CONGESTED = 0.5  # of the free-flow speed: targets below are congested


def masked_absolute_error(forecast: Tensor, target: Tensor, valid: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the absolute error sum over valid entries, in file units; this is the masked MAE times the count.

    forecast, target, valid [B,P,N,G], optional weight [G] -> scalar; 0 with a zero gradient for an empty mask.
    """
    error = (forecast - target).abs()
    return torch.where(valid, error if weight is None else error * weight, 0.0).sum()


@dataclass(frozen=True)
class Scores:
    """Four measures over ``count`` valid entries; mae and rmse in file units, mape in percent."""

    mae: float
    rmse: float
    mape: float
    r2: float
    count: int
    undivided: int = 0  # targets so near to 0 that mape skips them

    @classmethod
    def from_sums(cls, sums: Sequence[float]) -> Scores:
        """Return the measures for seven sums, in the order of ``SUMS``; a measure with a divisor of 0 is NaN."""
        count, absolute, squared, percent, percent_count, value, value_squared = sums

        def ratio(top: float, bottom: float) -> float:
            return top / bottom if bottom > 0 else math.nan

        spread = value_squared - ratio(value * value, count)
        return cls(
            mae=ratio(absolute, count),
            rmse=math.sqrt(ratio(squared, count)),
            mape=100 * ratio(percent, percent_count),
            r2=1 - ratio(squared, spread),
            count=int(count),
            undivided=int(count - percent_count),
        )

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the scores for JSON, with null for NaN and infinity; ``undivided`` only if positive."""
        return {k: v if math.isfinite(v) else None for k, v in asdict(self).items() if v or k != "undivided"}


@dataclass(frozen=True)
class HorizonScores:
    """The scores for one target: at each of P horizon steps, and over all steps."""

    by_step: tuple[Scores, ...]
    overall: Scores


class RunningScores:
    """Running sums behind ``Scores``; ``compute`` is a single transfer from the device."""

    def __init__(
        self,
        horizon: int,
        targets: int,
        device: torch.device,
        means: Sequence[float] = (0.0,),
        sensors: Tensor | None = None,
    ) -> None:
        """Start the sums at 0.  means: mean observation per target; MAPE skips targets below 0.1 % of the mean.

        sensors: the mask for counted sensors, bool [N], None for all.
        """
        self.sensors = True if sensors is None else sensors[:, None]
        self.sums = torch.zeros(len(SUMS), horizon, targets, dtype=torch.float64, device=device)
        self.least = NEARLY_ZERO * torch.tensor(list(means), dtype=torch.float64, device=device).abs()

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """Add a forecast [B,P,N,G] (G targets).  MAPE skips targets at or near 0, which would outweigh all others.

        A large batch is added a few windows at a time: each of a dozen float64 tables would take twice the batch size.
        """
        windows = max(1, len(forecast) * MOST_ENTRIES // forecast.numel())
        for first in range(0, len(forecast), windows):
            part = slice(first, first + windows)
            valid, truth = target.valid[part] & self.sensors, target.values[part].double()
            error = torch.where(valid, forecast[part].double() - truth, 0.0)
            truth = torch.where(valid, truth, 0.0)
            divisible = valid & (truth != 0) & (truth.abs() >= self.least)
            percent = torch.where(divisible, error.abs() / torch.where(divisible, truth.abs(), 1.0), 0.0)
            terms = (valid.double(), error.abs(), error.square(), percent, divisible.double(), truth, truth.square())
            self.sums += torch.stack([term.sum(dim=(0, 2)) for term in terms])

    def compute(self) -> list[HorizonScores]:
        """Return the scores for each of the G targets."""
        table = torch.cat([self.sums, self.sums.sum(dim=1, keepdim=True)], dim=1)  # [7,P+1,G]
        rows = [[Scores.from_sums(column) for column in target] for target in table.permute(2, 1, 0).tolist()]
        return [HorizonScores(tuple(by_step), overall) for *by_step, overall in rows]


@dataclass(frozen=True)
class ErrorRow:
    """MAE over ``count`` valid entries; None if count is 0.

    key: minutes ahead, hour, or a word: weekday, sensor id, congested or free.
    """

    key: Any
    mae: float | None
    count: int


Breakdown = dict[str, tuple[ErrorRow, ...]]


class RunningErrors:
    """Running error sums for the first target, by lead time, hour, weekday, sensor and congestion (``BY``).

    Holiday windows, if any, form an eighth weekday. ``compute`` is a single transfer from the device.
    """

    def __init__(
        self,
        horizon: int,
        sensors: Sequence[str],
        step_minutes: int,
        device: torch.device,
        free_flow: Tensor | None = None,
        holiday: Tensor | None = None,
    ) -> None:
        """Start the sums at 0. free_flow: speeds, float32 [N,G] on the device; if None, all traffic counts as free.

        holiday bool [W,P], on the device: marks target rows on holidays, in window order; None without holidays.
        """
        self.horizon, self.step_minutes = horizon, step_minutes
        self.holiday, self._seen = holiday, 0
        self.keys: dict[str, Sequence[Any]] = {
            "horizon": range(step_minutes, step_minutes * (horizon + 1), step_minutes),
            "hour": range(HOURS),
            "weekday": WEEKDAYS if holiday is None else (*WEEKDAYS, "holiday"),
            "sensor": sensors,
            "congestion": ("congested", "free"),
        }
        self.sums = {
            by: torch.zeros(2, len(keys), dtype=torch.float64, device=device) for by, keys in self.keys.items()
        }
        self.slow = None if free_flow is None else CONGESTED * free_flow[:, 0]

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """Add the errors of a forecast [B,P,N,G] (P steps, G targets) in file units; the host continues at once."""
        valid, truth = target.valid[..., 0], target.values[..., 0]
        error = (forecast[..., 0].double() - truth.double()).abs()
        both = torch.stack([torch.where(valid, error, 0.0), valid.double()])  # [2,B,P,N]
        self.sums["sensor"] += both.sum(dim=(1, 2))
        congested = both * (truth < self.slow) if self.slow is not None else torch.zeros_like(both)
        slow_sums, all_sums = congested.sum(dim=(1, 2, 3)), both.sum(dim=(1, 2, 3))
        self.sums["congestion"] += torch.stack([slow_sums, all_sums - slow_sums], dim=1)
        both = both.sum(dim=3)  # [2,B,P]
        self.sums["horizon"] += both.sum(dim=1)
        hour = batch.time_of_day[:, -self.horizon :] * self.step_minutes // 60  # [B,P]
        weekday = batch.day_of_week[:, -self.horizon :]
        if self.holiday is not None:  # windows that pad the last batch have only invalid targets
            here = self.holiday[self._seen : self._seen + len(weekday)]
            self._seen += len(here)
            weekday = torch.cat([torch.where(here, len(WEEKDAYS), weekday[: len(here)]), weekday[len(here) :]])
        for by, key_index in (("hour", hour), ("weekday", weekday)):
            sums = self.sums[by]
            one_hot = (key_index[..., None] == torch.arange(sums.shape[1], device=sums.device)).double()  # [B,P,X]
            sums += both.flatten(1) @ one_hot.flatten(0, 1)  # a matrix product sums in a fixed order

    def compute(self) -> Breakdown:
        """Return grouping (each of ``BY``) -> a row per group, such as an hour; ``all`` has a row over everything."""
        joined = torch.cat(list(self.sums.values()), dim=1).cpu().numpy()
        parts = np.split(joined, np.cumsum([len(keys) for keys in self.keys.values()]), axis=1)
        rows = {by: _rows(keys, part) for (by, keys), part in zip(self.keys.items(), parts, strict=False)}
        return rows | {"all": _rows(["all"], parts[0].sum(axis=1, keepdims=True))}


def _rows(keys: Iterable[Any], sums: np.ndarray) -> tuple[ErrorRow, ...]:
    """Return an ErrorRow per key from sums float64 [2,X]: absolute errors, and counts; a count of 0 gives MAE None."""
    rows = zip(keys, *sums.tolist(), strict=True)
    return tuple(ErrorRow(key, finite_or_none(total / n) if n else None, int(n)) for key, total, n in rows)


def mae_values(rows: Iterable[Any]) -> np.ndarray:
    """Return the MAE per row as an array for drawing, NaN for None; rows: objects with an attribute ``mae``."""
    return np.array([row.mae for row in rows], float)


def finite_or_none(value: float) -> float | None:
    """Return a finite number, else None: JSON has only finite numbers."""
    return float(value) if math.isfinite(value) else None
