"""What the forecasts of a run were like on networks that its training had not seen, by the days that were known."""

# Shape letters: D numbers of days, P horizon steps, N sensors, G targets, L levels, K groups, M errors

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from socialx.files.quantities import KMH
from socialx.scoring.intervals import LEVELS, SHARES, Intervals, SignedErrors, bounds_by_group
from socialx.scoring.protocol import ScoringProtocol


@dataclass(frozen=True, eq=False)
class Unseen:
    """Errors on unseen networks.

    days: int64 [D] ascending, the smallest one 0.  gain float32 [D]: 1 - MAE / MAE of copying the last reading, over
    all steps, the mean of the networks.  lower, upper float32 [L,K,P]: the ends of intervals where no day is known, as
    in ``Intervals`` for a sensor that was not calibrated, in ``unit``.  networks: which they were.  errors: how many.
    """

    days: Tensor
    lower: Tensor
    upper: Tensor
    gain: Tensor
    unit: str
    networks: tuple[str, ...]
    weights: str
    errors: int

    def __post_init__(self) -> None:
        """ValueError for tables that nobody measured."""
        count, steps = len(self.days), self.lower.shape[-1]
        shape = len(LEVELS), len(SHARES) + 1, steps
        for table in (self.lower, self.upper):
            if table.dtype != torch.float32 or tuple(table.shape) != shape:
                raise ValueError(f"its bounds are {tuple(table.shape)}, not {shape}")
        if self.unit not in KMH or not self.networks or self.errors < 0 or not all(map(str.isprintable, self.networks)):
            raise ValueError("its unit or its networks are none")
        nested = [(outer[1:] >= outer[:-1]).all() for outer in (-self.lower, self.upper)]  # NaN is not
        if not steps or not all(nested) or not (self.lower[0] <= self.upper[0]).all():
            raise ValueError("its levels are not nested")
        if not count or self.days.dtype != torch.int64 or self.days[0] != 0 or not (self.days.diff() > 0).all():
            raise ValueError("its days do not ascend from 0")
        if self.gain.shape != (count,) or not (self.gain.abs() < 1).all():
            raise ValueError("its gains are no numbers")

    def place(self, days: int) -> int:
        """The place of the largest number of days that is not above this one."""
        return int((self.days <= days).sum()) - 1

    def intervals(
        self, sensors: Sequence[str], free_flow: np.ndarray, protocol: ScoringProtocol, pace: float = 1.0
    ) -> Intervals:
        """The intervals of forecasts for these sensors, of which no day is known.

        free_flow float32 [N,1] and protocol: of the file, whose step may be a multiple of five minutes.  pace: of its
        speeds against those of the training.
        """
        ratio, steps = pace * KMH[self.unit] / KMH[protocol.unit], self.lower.shape[-1] // protocol.horizon
        lower, upper = (
            (ratio * part[..., steps - 1 :: steps, None, None].expand(-1, -1, -1, len(sensors) + 1, 1)).contiguous()
            for part in (self.lower, self.upper)
        )
        flow = torch.from_numpy(np.concatenate([free_flow, np.median(free_flow, axis=0, keepdims=True)]))
        protocol = replace(protocol, period=None)
        return Intervals(tuple(sensors), flow, lower, upper, self.weights, protocol, self.errors)


def pooled(parts: Sequence[SignedErrors]) -> tuple[Tensor, Tensor, int]:
    """Lower and upper bounds float32 [L,K,P] of the errors of several networks together, and how many they are."""
    steps = parts[0].errors.shape[1]
    found = np.empty((2, len(LEVELS), len(SHARES) + 1, steps), np.float32)
    for step in range(steps):
        errors, groups = (
            np.concatenate([getattr(part, name)[:, step].reshape(-1) for part in parts])[:, None]
            for name in ("errors", "groups")
        )
        found[..., step] = bounds_by_group(errors, groups)[..., -1]
    lower, upper = (torch.from_numpy(part) for part in found)
    return lower, upper, int(sum(np.isfinite(part.errors).sum() for part in parts))
