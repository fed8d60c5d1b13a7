"""Readings in the file's units -> normalised inputs, and back; only training rows decide mean and deviation.

``DataSpec`` is what a model must know of its data before it sees a batch.
"""

# Shape letters: B windows, T lookback steps, P horizon steps, N sensors, F inputs, G targets

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.core.errors import SocialxError
from socialx.core.progress import work
from socialx.data.geo import Neighbours
from socialx.data.source import RowSource

BLOCK_ROWS = 1024  # of measure


@dataclass(frozen=True)
class MeanStd:
    """Mean and deviation of the valid readings of the training rows of one feature, in the file's unit."""

    mean: float
    std: float


def measure(source: RowSource, rows: slice, where: object = "") -> list[MeanStd]:
    """Masked z-score of each of the C features, from these rows.

    Summed in float64 by blocks of rows, which are read twice.  Missing readings do not count: METR-LA stores an outage
    as 0 mph, which would pull the mean down by 8 %.  Raises SocialxError if no reading there is valid.
    """
    features = range(source.shape[1])

    def totals(of: Callable[[np.ndarray, int], np.ndarray]) -> list[float]:
        sums: list[list[float]] = [[] for _ in features]
        with work("measure the readings", rows.stop - rows.start, "rows") as bar:
            for first in range(rows.start, rows.stop, BLOCK_ROWS):
                values, valid = source.read(slice(first, min(first + BLOCK_ROWS, rows.stop)))
                for feature in features:
                    readings = values[..., feature][valid[..., feature]].astype(np.float64)
                    sums[feature].append(of(readings, feature).sum())
                bar.advance(len(values))
        return [math.fsum(each) for each in sums]

    counts = [0] * len(features)

    def counted(readings: np.ndarray, feature: int) -> np.ndarray:
        counts[feature] += len(readings)
        return readings

    sums = totals(counted)
    if not all(counts):
        raise SocialxError(where, f"no valid reading in the {rows.stop - rows.start} training rows", "inspect the file")
    means = [total / count for total, count in zip(sums, counts, strict=True)]
    squares = totals(lambda readings, feature: (readings - means[feature]) ** 2)
    return [
        MeanStd(mean, math.sqrt(square / count) or 1.0)
        for mean, square, count in zip(means, squares, counts, strict=True)
    ]


class StandardScaler(nn.Module):
    """Normalises inputs and forecasts by what the training rows were like: z = (reading - mean) / std.

    inputs: of the F features that are read; targets: of the G that are forecast.  The numbers are kept in the state
    dict: a model forecasts another network by what it learned on its own.
    """

    input_mean: Tensor
    input_std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, inputs: Sequence[MeanStd], targets: Sequence[MeanStd]) -> None:
        super().__init__()
        for name, of in (("input", inputs), ("target", targets)):
            self.register_buffer(f"{name}_mean", torch.tensor([float(feature.mean) for feature in of]))
            self.register_buffer(f"{name}_std", torch.tensor([float(feature.std) for feature in of]))

    def inputs(self, batch: Batch) -> Tensor:
        """The normalised history [B,T,N,F], 0 where a reading is missing."""
        return torch.where(batch.valid, (batch.inputs - self.input_mean) / self.input_std, 0.0)

    def last_observed(self, batch: Batch) -> Tensor:
        """The latest valid reading of the targets, normalised [B,N,G]; NaN where there never was one."""
        return (batch.last_observed - self.target_mean) / self.target_std

    def from_latest(self, batch: Batch, change: Tensor) -> Tensor:
        """The latest valid reading plus the normalised change [B,P,N,G]; the mean where there never was a reading."""
        start = torch.where(batch.last_observed.isnan(), self.target_mean, batch.last_observed)  # [B,N,G]
        return start[:, None] + self.target_std * change.to(start.dtype)

    def from_mean(self, normalised: Tensor) -> Tensor:
        """A normalised forecast [B,P,N,G] in the file's units."""
        return self.target_mean + self.target_std * normalised.to(self.target_mean.dtype)


@dataclass(frozen=True)
class DataSpec:
    """Sizes and moments of a network of N sensors: history T, horizon P, slots of a day, F inputs and G targets.

    read: the place of each target among the inputs, None where it is no input.  find_neighbours: a function that
    returns ``neighbours``.
    """

    sensors: int
    lookback: int
    horizon: int
    slots: int
    inputs: tuple[MeanStd, ...]
    targets: tuple[MeanStd, ...]
    read: tuple[int | None, ...] = ()
    find_neighbours: Callable[[], Neighbours] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def neighbours(self) -> Neighbours:
        """The neighbours of every sensor, by the settings of the section pooling; found when they are first asked for.

        Raises ValueError for a network that was made without positions or roads, and SocialxError where the file has
        sensors without a position and ``pooling.require_locations`` is on.
        """
        if self.find_neighbours is None:
            raise ValueError("the neighbours of this network are not known")
        return self.find_neighbours()

    def scaler(self) -> StandardScaler:
        """A scaler of its inputs and targets."""
        return StandardScaler(self.inputs, self.targets)
