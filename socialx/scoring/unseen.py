"""Prediction intervals of a run from its errors on networks that its training had not seen."""

# Shape letters: P horizon steps, N sensors, G targets, L levels, K groups

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from socialx.files.quantities import KMH
from socialx.scoring.intervals import LEVELS, SHARES, Intervals
from socialx.scoring.protocol import ScoringProtocol

SCHEMA = "socialx.unseen/2"  # of a file of them


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

    def as_sealed(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tables, and texts that describe them, of which ``from_sealed`` makes the same again."""
        described = {"schema": SCHEMA, "unit": self.unit, "networks": json.dumps(self.networks)}
        described |= {"weights": self.weights, "errors": str(self.errors)}
        return {"lower": self.lower, "upper": self.upper}, described

    @classmethod
    def from_sealed(cls, tables: Mapping[str, Tensor], described: Mapping[str, str]) -> Unseen:
        """What ``as_sealed`` made of such errors.  Raises ValueError, KeyError or TypeError where nobody did."""
        if described["schema"] != SCHEMA or set(tables) != {"lower", "upper"}:
            raise ValueError("they are of another version")
        networks, errors = tuple(map(str, json.loads(described["networks"]))), int(described["errors"])
        return cls(**tables, unit=described["unit"], networks=networks, weights=described["weights"], errors=errors)

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
