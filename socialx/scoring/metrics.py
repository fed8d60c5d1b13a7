"""Masked MAE, RMSE, MAPE and R2 as running sums on the device, per target and horizon step.

Sums are float64 over all valid entries of everything that was seen: not a mean of batch means.  An empty mask gives
NaN with count 0, never 0.  Nothing waits for the device until ``compute``.
"""

# Shape letters: B windows, P horizon steps, N sensors, G targets

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from socialx.batch import Batch, Target

SUMS = ("count", "absolute", "squared", "percent", "percent_count", "value", "value_squared")
NEARLY_ZERO = 1e-3  # of the mean: METR-LA's lowest reading has 6e-3 of it, and a count of 1 where 200 are usual 5e-3
MOST_ENTRIES = 1 << 20  # of a forecast that are added at a time: METR-LA has 158,976 in a batch of 64


def masked_absolute_error(forecast: Tensor, target: Tensor, valid: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sum of absolute errors over the valid entries, in the file's unit: divided by their count it is the masked MAE.

    forecast, target, valid [B,P,N,G], weight [G] of the targets, None: all 1 -> scalar; 0 with a zero gradient where
    nothing is valid.
    """
    error = (forecast - target).abs()
    return torch.where(valid, error if weight is None else error * weight, 0.0).sum()


@dataclass(frozen=True)
class Scores:
    """The four measures over ``count`` valid entries; mae and rmse in the file's unit, mape in percent."""

    mae: float
    rmse: float
    mape: float
    r2: float
    count: int
    undivided: int = 0  # of these, truths so near to 0 that mape leaves them out

    @classmethod
    def of(cls, sums: Sequence[float]) -> Scores:
        """The measures of one column of ``SUMS``; NaN where there is nothing to divide by."""
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
        """For JSON, where NaN and infinity do not exist: None; ``undivided`` only where there are any."""
        return {k: v if math.isfinite(v) else None for k, v in asdict(self).items() if v or k != "undivided"}


@dataclass(frozen=True)
class HorizonScores:
    """The scores of one target: at each of P horizon steps, and over all of them."""

    by_step: tuple[Scores, ...]
    overall: Scores


class RunningScores:
    """Add batches, then compute: one transfer from the device, at the end."""

    def __init__(self, horizon: int, targets: int, device: torch.device, means: Sequence[float] = (0.0,)) -> None:
        """means: of the readings of each target; MAPE leaves out truths below a thousandth of them."""
        self.sums = torch.zeros(len(SUMS), horizon, targets, dtype=torch.float64, device=device)
        self.least = NEARLY_ZERO * torch.tensor(list(means), dtype=torch.float64, device=device).abs()

    def add(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """forecast [B,P,N,G] of a batch.  MAPE leaves out targets that are 0 or nearly so: it would be of them alone.

        A large batch is added a few windows at a time: each of a dozen tables in float64 would be twice its size.
        """
        windows = max(1, len(forecast) * MOST_ENTRIES // forecast.numel())
        for first in range(0, len(forecast), windows):
            part = slice(first, first + windows)
            valid, truth = target.valid[part], target.values[part].double()
            error = torch.where(valid, forecast[part].double() - truth, 0.0)
            truth = torch.where(valid, truth, 0.0)
            divisible = valid & (truth != 0) & (truth.abs() >= self.least)
            percent = torch.where(divisible, error.abs() / torch.where(divisible, truth.abs(), 1.0), 0.0)
            terms = (valid.double(), error.abs(), error.square(), percent, divisible.double(), truth, truth.square())
            self.sums += torch.stack([term.sum(dim=(0, 2)) for term in terms])

    def compute(self) -> list[HorizonScores]:
        """Of each of the G targets."""
        table = torch.cat([self.sums, self.sums.sum(dim=1, keepdim=True)], dim=1)  # [7,P+1,G]
        rows = [[Scores.of(column) for column in target] for target in table.permute(2, 1, 0).tolist()]
        return [HorizonScores(tuple(by_step), overall) for *by_step, overall in rows]
