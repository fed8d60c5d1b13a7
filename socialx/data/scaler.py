"""Standard scaler between file units and z-scores, fitted on training rows; and the data spec."""

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
    """Mean and standard deviation of a feature over the training rows, in file units."""

    mean: float
    std: float


def measure(source: RowSource, rows: slice, where: object = "") -> list[MeanStd]:
    """Return mean and standard deviation for each of C features over ``rows``; where: file path for error messages.

    Sums run in float64 over blocks, in one pass over the rows. Missing observations are skipped: METR-LA stores an
    outage as 0 mph, which would lower the mean by 8 %. Raises SocialxError if a feature has only missing observations.
    """
    # Of each feature: count, sum and squared deviations from the mean of each block.
    blocks: list[list[tuple[int, float, float]]] = [[] for _ in range(source.shape[1])]
    with work("measure the observations", rows.stop - rows.start, "rows") as bar:
        for first in range(rows.start, rows.stop, BLOCK_ROWS):
            values, valid = source.read(slice(first, min(first + BLOCK_ROWS, rows.stop)))
            for feature, parts in enumerate(blocks):
                readings = values[..., feature][valid[..., feature]].astype(np.float64)
                if len(readings):
                    parts.append((len(readings), readings.sum(), ((readings - readings.mean()) ** 2).sum()))
            bar.advance(len(values))
    if not all(blocks):
        problem = f"all observations in the {rows.stop - rows.start} training rows are missing"
        raise SocialxError("data.all-missing", where, problem, "inspect the file")
    moments = []
    for parts in blocks:
        counts, sums, squares = (np.array(column) for column in zip(*parts, strict=True))
        count, mean = int(counts.sum()), math.fsum(sums) / counts.sum()
        between = counts * (sums / counts - mean) ** 2  # what the means of blocks differ by
        moments.append(MeanStd(float(mean), math.sqrt(math.fsum([*squares, *between]) / count) or 1.0))
    return moments


class StandardScaler(nn.Module):
    """Scale inputs and forecasts: z = (observation - mean) / std.

    inputs: statistics for F input features. targets: for G targets. The buffers are in the state dict, so that a model
    keeps its training scale on another sensor network.
    """

    input_mean: Tensor
    input_std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, inputs: Sequence[MeanStd], targets: Sequence[MeanStd]) -> None:
        super().__init__()
        for name, features in (("input", inputs), ("target", targets)):
            self.register_buffer(f"{name}_mean", torch.tensor([float(feature.mean) for feature in features]))
            self.register_buffer(f"{name}_std", torch.tensor([float(feature.std) for feature in features]))

    def normalise_inputs(self, batch: Batch) -> Tensor:
        """Return the scaled lookback [B,T,N,F], 0 where missing."""
        return torch.where(batch.valid, (batch.inputs - self.input_mean) / self.input_std, 0.0)

    def scaled_last(self, batch: Batch) -> Tensor:
        """Return the scaled last observation [B,N,G]; NaN before the first observation."""
        return (batch.last_observed - self.target_mean) / self.target_std

    def anchor(self, batch: Batch) -> Tensor:
        """Return the last observation [B,N,G]; before the first one the climatology at the last lookback row, else the
        mean.
        """
        present = batch.climatology[:, batch.inputs.shape[1] - 1]
        start = batch.last_observed
        start = torch.where(start.isnan(), present, start) if present.shape[-1] else start
        return torch.where(start.isnan(), self.target_mean, start)

    def add_change(self, batch: Batch, change: Tensor) -> Tensor:
        """Return the forecast: the anchor plus a scaled change [B,P,N,G]."""
        start = self.anchor(batch)
        return start[:, None] + self.target_std * change.to(start.dtype)

    def denormalise(self, normalised: Tensor) -> Tensor:
        """Return a scaled forecast [B,P,N,G] in file units."""
        return self.target_mean + self.target_std * normalised.to(self.target_mean.dtype)


@dataclass(frozen=True)
class DataSpec:
    """Data spec: the sizes and statistics that a model is built for.

    slots: time slots per day. inputs, targets: statistics per feature. read: input index for each target, ``None`` for
    a target outside the inputs. find_neighbours: function that returns ``neighbours``.
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
        """Neighbours for all sensors by the pooling settings, computed on first use.

        Raises ValueError without locations or roads, and SocialxError for sensors without a location if
        ``pooling.require_locations`` is on.
        """
        if self.find_neighbours is None:
            raise ValueError("this data spec was made without neighbours")
        return self.find_neighbours()

    def scaler(self) -> StandardScaler:
        """Return a scaler for the inputs and targets."""
        return StandardScaler(self.inputs, self.targets)
