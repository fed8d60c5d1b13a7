"""A model of one time step for a file of a longer one: it reads each row as several, and the mean of them is forecast."""

# Shape letters: B windows, T history steps, P horizon steps, N sensors, G targets, k steps of the model in one of the file

from __future__ import annotations

import torch
from torch import Tensor, nn

from socialx.batch import Batch


class Coarser(nn.Module):
    """A model that reads k T steps and forecasts k P, at k times its step: it then reads T and forecasts P."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        """steps: k."""
        super().__init__()
        self.model, self.steps = model, steps

    def forward(self, batch: Batch) -> Tensor:
        """Batch of the file's step -> forecast [B,P,N,G] in the file's units."""
        finer = {
            name: getattr(batch, name).repeat_interleave(self.steps, dim=1)
            for name in ("history", "valid", "slot", "weekday", "usual", "trust")
        }
        within = torch.arange(self.steps, device=batch.slot.device).repeat(batch.slot.shape[1])
        finer["slot"] = finer["slot"] * self.steps + within
        forecast = self.model(batch._replace(**finer))  # [B,k P,N,G]
        return forecast.unflatten(1, (-1, self.steps)).mean(2)
