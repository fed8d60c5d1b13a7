"""The free-flow speed of sensors and of their network: an upper quantile of what was read."""

# Shape letters: N sensors, G targets

from __future__ import annotations

import math

import numpy as np

from socialx.data.calendar import slots_per_day
from socialx.data.source import pages
from socialx.dataset import Dataset

FREE_FLOW, FREE_FLOW_BYTES = 0.95, 1 << 26  # the quantile, and the most that is kept of the readings for it
FREE_FLOW_DAYS = 28  # the latest, which tell the pace of a network


def free_flow_of(data: Dataset, span: slice | None = None) -> np.ndarray:
    """The 95th percentile of the valid readings of each sensor, float32 [N,G]; span: rows, None: those of the training.

    A sensor without any has the median of the others.  Of many rows every second, third ... one is taken.
    """
    span = span or data.training_rows
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
    """The free-flow speed of each sensor [N,G] and of the network [G], the median, in 28 days.

    The days end at the second ``before``, None: where the training rows end.  Less than a day tells the speed of the
    network alone, which is the upper quartile then: an hour may be one in which half of the sensors are congested.
    """
    day, stop = slots_per_day(data.store.step_minutes), data.training_rows.stop
    if before is not None:
        stop = max(1, data.rows_until(before))
    found = free_flow_of(data, slice(max(0, stop - FREE_FLOW_DAYS * day), stop))
    if stop >= day:
        return found, np.median(found, axis=0)
    network = np.quantile(found, 0.75, axis=0)
    return np.broadcast_to(network, found.shape), network
