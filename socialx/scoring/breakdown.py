"""Where a model errs: absolute errors by horizon step, hour of the day, weekday, sensor and congestion.

Running sums as in ``metrics``: float64 over all valid entries of everything that was seen, on the device until the end.
An empty part is NaN with count 0.  Of several targets the first one counts.
"""

# Shape letters: B windows, P horizon steps, N sensors, G targets, X what the errors are divided by

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from socialx.batch import Batch, Target
from socialx.data.calendar import WEEKDAYS, slots_per_day
from socialx.data.source import pages
from socialx.dataset import Dataset

BY = ("horizon", "hour", "weekday", "sensor", "congestion")  # what errors can be divided by
HOURS = 24
CONGESTED = 0.5  # of the free-flow speed: a truth below it is congested
FREE_FLOW, FREE_FLOW_BYTES = 0.95, 1 << 26  # the quantile, and the most that is kept of the readings for it
FREE_FLOW_DAYS = 28  # the latest, which tell the pace of a network


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


# The same errors divided by each of BY: by horizon step [P], by hour of the day [24] and weekday from Monday on [7] of
# the target row, by sensor [N], and by congestion [2]: where the truth is below half of the free-flow speed, elsewhere.
# Where some of the windows are of holidays, these are no weekdays but come after them [8].
Breakdown = dict[str, Errors]


class RunningErrors:
    """Add batches, then compute: one transfer from the device, at the end."""

    def __init__(
        self,
        horizon: int,
        sensors: int,
        step_minutes: int,
        device: torch.device,
        free_flow: Tensor | None = None,
        holiday: Tensor | None = None,
    ) -> None:
        """free_flow float32 [N,G], on the device; None: nothing counts as congested.

        holiday: whether each target row is of a holiday, bool [W,P] in the order of the windows, on the device; None:
        none is.
        """
        self.horizon, self.step_minutes = horizon, step_minutes
        self.holiday, self._seen = holiday, 0
        weekdays = len(WEEKDAYS) + (holiday is not None)
        sizes = (horizon, HOURS, weekdays, sensors, 2)
        self.sums = {
            by: torch.zeros(2, size, dtype=torch.float64, device=device) for by, size in zip(BY, sizes, strict=True)
        }
        self.hours, self.weekdays = (torch.arange(size, device=device) for size in (HOURS, weekdays))
        self.slow = None if free_flow is None else CONGESTED * free_flow[:, 0]

    def add(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """forecast [B,P,N,G] in the file's unit, of a batch on the same device.  The device is not waited for."""
        valid, truth = target.valid[..., 0], target.values[..., 0]
        error = (forecast[..., 0].double() - truth.double()).abs()
        both = torch.stack([torch.where(valid, error, 0.0), valid.double()])  # [2,B,P,N]
        self.sums["sensor"] += both.sum(dim=(1, 2))
        congested = both * (truth < self.slow) if self.slow is not None else torch.zeros_like(both)
        of_congested, of_all = congested.sum(dim=(1, 2, 3)), both.sum(dim=(1, 2, 3))
        self.sums["congestion"] += torch.stack([of_congested, of_all - of_congested], dim=1)
        both = both.sum(dim=3)  # [2,B,P]
        self.sums["horizon"] += both.sum(dim=1)
        hour = batch.slot[:, -self.horizon :] * self.step_minutes // 60  # [B,P]
        weekday = batch.weekday[:, -self.horizon :]
        if self.holiday is not None:  # windows that pad the last batch have no valid target
            here = self.holiday[self._seen : self._seen + len(weekday)]
            self._seen += len(here)
            weekday = torch.cat([torch.where(here, len(WEEKDAYS), weekday[: len(here)]), weekday[len(here) :]])
        for by, key, keys in (("hour", hour, self.hours), ("weekday", weekday, self.weekdays)):
            of_key = (key[..., None] == keys).double()  # [B,P,X]: a product, whose order of sums is fixed
            self.sums[by] += both.flatten(1) @ of_key.flatten(0, 1)

    def compute(self) -> Breakdown:
        """All of them, from one transfer."""
        sizes = [sums.shape[1] for sums in self.sums.values()]
        table = torch.cat(list(self.sums.values()), dim=1).cpu().numpy()
        parts = np.split(table, np.cumsum(sizes)[:-1], axis=1)
        return {by: Errors(*part) for by, part in zip(self.sums, parts, strict=True)}


def free_flow_of(data: Dataset, span: slice | None = None) -> np.ndarray:
    """The 95th percentile of the valid readings of each sensor, float32 [N,G]; span: rows, None: those of the training.

    A sensor without any has the median of the others.  Of many rows every second, third ... one is taken.
    """
    span = span or data.learned_from
    every = -(-(span.stop - span.start) * 4 * math.prod(data.target_source.shape) // FREE_FLOW_BYTES)
    pieces = (data.target_source.read(rows) for rows in pages(span.start, span.stop))
    kept = (np.where(valid, values, np.nan)[::every] for values, valid in pieces)
    values = np.sort(np.concatenate(list(kept), dtype=np.float32), axis=0)  # NaN goes to the end
    count = np.isfinite(values).sum(axis=0)  # [N,G]
    speeds = np.take_along_axis(values, (FREE_FLOW * (count - 1)).clip(min=0).astype(int)[None], axis=0)[0]
    for target in speeds.T:
        known = np.isfinite(target)
        target[~known] = np.median(target[known]) if known.any() else 0
    return speeds


def latest_free_flow(data: Dataset, before: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """That of each sensor [N,G] and of the network [G], the median, in 28 days.

    They are those until the second ``before``, None: until the training rows end.  Less than a day tells that of the
    network alone, and it is the upper quartile: an hour may be one in which half of the sensors are congested.
    """
    day, stop = slots_per_day(data.store.step_minutes), data.learned_from.stop
    if before is not None:
        stop = max(1, data.rows_until(before))
    found = free_flow_of(data, slice(max(0, stop - FREE_FLOW_DAYS * day), stop))
    if stop >= day:
        return found, np.median(found, axis=0)
    network = np.quantile(found, 0.75, axis=0)
    return np.broadcast_to(network, found.shape), network
