"""How much two models differ on the same windows: the difference of their MAE, with a bootstrap interval over days.

Errors of one day depend on each other, those of different days hardly do.  So whole days are drawn, with replacement,
the same ones for both models: the block bootstrap of Künsch 1989, Annals of Statistics 17(3), with a day as block.
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
    """MAE of the second model - MAE of the first one, with the ends of its 95 % interval.

    minutes: how far ahead; None: over all steps.  The others are None where nothing was valid.
    """

    minutes: int | None
    difference: float | None
    low: float | None
    high: float | None

    @property
    def differs(self) -> bool | None:
        """Whether the interval leaves 0 out."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Difference:
    """The differences of two runs at every step and over all of them; days: how many days were drawn from.

    start: which of them the training of the other one started from; empty: neither, as far as their settings say.
    """

    first: str
    second: str
    days: int
    rows: tuple[DifferenceAt, ...]
    start: str = ""


class DailyErrors:
    """Sums of the absolute errors of the first target by day of issue and horizon step, on the device until the end."""

    def __init__(self, days: np.ndarray, horizon: int, device: torch.device) -> None:
        """days int64 [windows]: the day of each window, in the order in which a loader serves them.

        Raises SettingsError for fewer than 5 days.
        """
        names, places = np.unique(days, return_inverse=True)
        if len(names) < LEAST_DAYS:
            few = f"the windows are of {len(names)} of the {LEAST_DAYS} days that an interval needs"
            helps = f"use {Argument('part', 'all')} or a longer file"
            raise SettingsError(Argument("compare", True), few, helps)
        self.place = torch.from_numpy(places).to(device)
        self.names = torch.arange(len(names), device=device)
        self.sums = torch.zeros(2, len(names), horizon, dtype=torch.float64, device=device)
        self.seen = 0

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """forecast [B,P,N,G] of the next batch; windows that pad the last one have no valid target."""
        place = self.place[self.seen : self.seen + len(forecast)]
        self.seen += len(place)
        valid = target.valid[: len(place), ..., 0]
        error = (forecast[: len(place), ..., 0].double() - target.values[: len(place), ..., 0].double()).abs()
        both = torch.stack([torch.where(valid, error, 0.0), valid.double()]).sum(dim=3)  # [2,B,P]
        self.sums += (place == self.names[:, None]).double() @ both

    def compute(self) -> tuple[np.ndarray, np.ndarray]:
        """Sums of errors and counts [D,P+1]; the last column: over all steps."""
        total, count = torch.cat([self.sums, self.sums.sum(dim=2, keepdim=True)], dim=2).cpu().numpy()
        return total, count


def difference(errors: Mapping[str, DailyErrors], step_minutes: int, start: str = "") -> Difference:
    """Of two runs, by name, on the same windows; start: as in ``Difference``."""
    first, second = errors
    (one, count), (other, _) = errors[first].compute(), errors[second].compute()
    days, columns = count.shape
    rows = []
    for column in range(columns):
        minutes = step_minutes * (column + 1) if column < columns - 1 else None
        gap, readings = (other - one)[:, column], count[:, column]
        of_all = float(gap.sum() / readings.sum()) if readings.any() else None
        rows.append(DifferenceAt(minutes, of_all, *over_days(gap, readings)))
    return Difference(first, second, days, tuple(rows), start)


@lru_cache(maxsize=4)
def _draws(days: int) -> np.ndarray:
    """How often each day is drawn, float64 [R,D]: the same for all that is compared on so many days."""
    return np.random.default_rng(SEED).multinomial(days, np.full(days, 1 / days), size=DRAWS).astype(float)


def over_days(total: np.ndarray, count: np.ndarray) -> tuple[float | None, float | None]:
    """The ends of the 95 % interval of total / count, sums of each day [D]; None for fewer than 5 days."""
    days = len(count)
    if days < LEAST_DAYS or not count.any():
        return None, None
    totals, counts = _draws(days) @ total, _draws(days) @ count  # [R]
    drawn = counts > 0
    low, high = np.quantile(totals[drawn] / counts[drawn], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return low, high
