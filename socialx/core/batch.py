"""Batches: model inputs, and apart from them the targets, so that a forecast needs past rows only."""

# Shape letters: B windows, T lookback steps, P horizon steps, N sensors, F inputs, G targets, R = T + P, U = G or 0

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Model inputs for B windows over all sensors, in file units.

    inputs float32 and valid bool [B,T,N,F]: a missing value is 0 with valid False. last float32 [B,N,G]: targets in the
    last lookback row, 0 where missing. last_observed float32 [B,N,G]: last valid observation at any age, NaN before the
    first. time_of_day, day_of_week int64 [B,R]: calendar over lookback and horizon. climatology float32 [B,R,N,U]:
    target climatology as on the origin's day, NaN without data. climatology_confidence float32 [B,R,N,U]: from 0 to 1,
    by days of data. U is G, or 0 for models that read only observations. origin int64 [B]: time of the last lookback
    row as in the data file, in seconds.
    """

    inputs: Tensor
    valid: Tensor
    last: Tensor
    last_observed: Tensor
    time_of_day: Tensor
    day_of_week: Tensor
    climatology: Tensor
    climatology_confidence: Tensor
    origin: Tensor = torch.empty(0, dtype=torch.int64)

    def to(self, device: torch.device) -> Batch:
        """Move the batch to ``device``; tensors already there stay uncopied."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


class Target(NamedTuple):
    """Observations after the lookback: values float32 and valid bool [B,P,N,G], in file units.

    A missing value is 0 with valid False, as are all values in padding windows. teacher_forecast float16 [B,P,N,U]:
    forecasts to distil; U is G, or 0 when training alone.
    """

    values: Tensor
    valid: Tensor
    teacher_forecast: Tensor = torch.empty(0)

    def to(self, device: torch.device) -> Target:
        """Move the target to ``device``; tensors already there stay uncopied."""
        return Target(*(tensor.to(device, non_blocking=True) for tensor in self))


class TrainingBatch(NamedTuple):
    """Batch with its target, for training and scoring."""

    batch: Batch
    target: Target

    def to(self, device: torch.device) -> TrainingBatch:
        """Move batch and target to ``device``."""
        return TrainingBatch(self.batch.to(device), self.target.to(device))

    def gather(self) -> TrainingBatch:
        """Return the batch unchanged, so that callers treat a batch and a ``Selection`` (not yet read) alike."""
        return self
