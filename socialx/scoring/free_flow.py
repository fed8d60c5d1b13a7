"""Free-flow speeds per sensor and network: an upper quantile of the observations."""

# Shape letters: N sensors, G targets

from __future__ import annotations

import math

import numpy as np

from socialx.data.calendar import slots_per_day
from socialx.data.source import pages
from socialx.dataset import Dataset

FREE_FLOW, FREE_FLOW_BYTES = 0.95, 1 << 26  # the quantile, and the memory for the observations
FREE_FLOW_DAYS = 28  # the latest days


def free_flow_speeds(data: Dataset, span: slice | None = None) -> np.ndarray:
    """Return free-flow speeds, the 95th percentile of each sensor's valid observations, float32 [N,G] (G targets).

    span: rows to read, None for the training rows, thinned above 64 MiB. A silent sensor gets the median over sensors.
    """
    span = span or data.training_rows
    every = -(-(span.stop - span.start) * 4 * math.prod(data.target_source.shape) // FREE_FLOW_BYTES)
    pieces = (data.target_source.read(rows) for rows in pages(span.start, span.stop))
    observations = (np.where(valid, values, np.nan)[::every] for values, valid in pieces)
    values = np.sort(np.concatenate(list(observations), dtype=np.float32), axis=0)  # NaN last
    count = np.isfinite(values).sum(axis=0)  # [N,G]
    speeds = np.take_along_axis(values, (FREE_FLOW * (count - 1)).clip(min=0).astype(int)[None], axis=0)[0]
    for target in speeds.T:
        finite = np.isfinite(target)
        target[~finite] = np.median(target[finite]) if finite.any() else 0
    return speeds


def latest_free_flow(data: Dataset, before: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the free-flow speed per sensor [N,G], and the network median [G], from the last 28 days.

    before: second at which the days end, None for the end of the training rows.  Less than a day gives only a network
    speed, the upper quartile over sensors: in a single hour, half the sensors may be congested.
    """
    day, stop = slots_per_day(data.store.step_minutes), data.training_rows.stop
    if before is not None:
        stop = max(1, data.rows_until(before))
    speeds = free_flow_speeds(data, slice(max(0, stop - FREE_FLOW_DAYS * day), stop))
    if stop >= day:
        return speeds, np.median(speeds, axis=0)
    network = np.quantile(speeds, 0.75, axis=0)
    return np.broadcast_to(network, speeds.shape), network
