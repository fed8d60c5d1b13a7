"""Prediction intervals of a run from its errors on networks that its training had not seen."""

# Shape letters: P horizon steps, N sensors, G targets, L levels, K groups

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from socialx.files.quantities import KMH
from socialx.scoring.intervals import LEVELS, SHARES, Intervals
from socialx.scoring.protocol import ScoringProtocol


@dataclass(frozen=True, eq=False)
class Unseen:
    """Errors on unseen networks.

    lower, upper float32 [L,K,P]: the ends of intervals where no day is known, as in ``Intervals`` for a sensor that was
    not calibrated, in ``unit``.  networks: which they were.  errors: how many.
    """

    lower: Tensor
    upper: Tensor
    unit: str
    networks: tuple[str, ...]
    weights: str
    errors: int

    def __post_init__(self) -> None:
        """ValueError for tables that nobody measured."""
        steps = self.lower.shape[-1]
        shape = len(LEVELS), len(SHARES) + 1, steps
        for table in (self.lower, self.upper):
            if table.dtype != torch.float32 or tuple(table.shape) != shape:
                raise ValueError(f"its bounds are {tuple(table.shape)}, not {shape}")
        if self.unit not in KMH or not self.networks or self.errors < 0 or not all(map(str.isprintable, self.networks)):
            raise ValueError("its unit or its networks are none")
        nested = [(outer[1:] >= outer[:-1]).all() for outer in (-self.lower, self.upper)]  # NaN is not
        if not steps or not all(nested) or not (self.lower[0] <= self.upper[0]).all():
            raise ValueError("its levels are not nested")

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
