"""Where a model errs: absolute errors by horizon step, by hour of the day and by sensor.

Running sums as in ``metrics``: float64 over all valid entries of everything that was seen, on the device until the end.
An empty part is NaN with count 0.  Of several targets the first one counts.
"""

# Shape letters: B windows, P horizon steps, N sensors, G targets, X what the errors are divided by

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from socialx.batch import Batch, Target

HOURS = 24


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

    def add(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """forecast [B,P,N,G] in the file's unit, of a batch on the same device.  The device is not waited for."""
        valid = target.valid[..., 0]
        error = (forecast[..., 0].double() - target.values[..., 0].double()).abs()
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
