"""What a model reads and what its forecast is compared with, apart: a forecast needs no row of the future."""

# Shape letters: B windows, T lookback steps, P horizon steps, N sensors, F inputs, G targets, R = T + P, U = G or 0

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """What is known of B windows of all sensors when a forecast is issued; values in the file's units.

    history float32 [B,T,N,F], valid bool [B,T,N,F]: a missing value is 0, and valid is False there.  last float32
    [B,N,G]: the targets' readings at the end of the history, 0 where missing.  carried float32 [B,N,G]: the latest
    valid reading of each target, however old, NaN where no reading came before.  slot, weekday int64 [B,R]: the
    calendar of history and horizon.  usual float32 [B,R,N,U]: the climatology of the targets as known on the day of
    issue, NaN where nothing is known; trust float32 [B,R,N,U]: from 0 to 1, how many days are behind it.  U is 0 where
    no model reads them.
    """

    inputs: Tensor
    valid: Tensor
    last: Tensor
    last_observed: Tensor
    time_of_day: Tensor
    day_of_week: Tensor
    climatology: Tensor
    climatology_confidence: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``; tensors already there are not copied."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


class Target(NamedTuple):
    """What came after the inputs: values float32 [B,P,N,G] in the file's units, valid bool [B,P,N,G].

    A missing value is 0 with valid False; the windows that pad a batch to its size have no valid entry.  taught float16
    [B,P,N,U]: what other models forecast, from which this one learns too; U is G, or 0 where there are none.
    """

    values: Tensor
    valid: Tensor
    teacher_forecast: Tensor = torch.empty(0)

    def to(self, device: torch.device) -> Target:
        """The same target on ``device``; tensors already there are not copied."""
        return Target(*(tensor.to(device, non_blocking=True) for tensor in self))


class TrainingBatch(NamedTuple):
    """One batch with its target: what training and scoring take."""

    batch: Batch
    target: Target

    def to(self, device: torch.device) -> TrainingBatch:
        """The same example on ``device``."""
        return TrainingBatch(self.batch.to(device), self.target.to(device))

    def gather(self) -> TrainingBatch:
        """Itself: there are examples that are gathered only when a step asks."""
        return self
