"""A model's two ends: readings in the file's units -> scaled inputs, and back."""

# Shape letters: B windows, T history steps, P horizon steps, N sensors, F inputs, G targets

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from socialx.data.loaders import Batch


@dataclass(frozen=True)
class Scale:
    """Means and deviations of the training rows, in the file's units: of the F inputs and of the G targets."""

    input_mean: Sequence[float]
    input_std: Sequence[float]
    target_mean: Sequence[float]
    target_std: Sequence[float]


class Scaled(nn.Module):
    """Scales by what the training rows were like.

    The scale is kept in the state dict: a model forecasts another network by what it learned on its own.
    """

    input_mean: Tensor
    input_std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        for name, values in vars(scale).items():
            self.register_buffer(name, torch.tensor([float(value) for value in values]))

    def inputs(self, batch: Batch) -> Tensor:
        """The scaled history [B,T,N,F], 0 where a reading is missing."""
        return torch.where(batch.history_valid, (batch.history - self.input_mean) / self.input_std, 0.0)

    def from_latest(self, batch: Batch, change: Tensor) -> Tensor:
        """The latest valid reading plus the scaled change [B,P,N,G]; the mean where there never was a reading."""
        start = torch.where(batch.carried.isnan(), self.target_mean, batch.carried)  # [B,N,G]
        return start[:, None] + self.target_std * change.to(start.dtype)

    def from_mean(self, scaled: Tensor) -> Tensor:
        """A scaled forecast [B,P,N,G] in the file's units."""
        return self.target_mean + self.target_std * scaled.to(self.target_mean.dtype)
