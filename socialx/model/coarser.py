"""A model at a longer time step than its own: it reads each row as several, and their mean is the forecast."""

# Shape letters: B windows, T history steps, P horizon steps, N sensors, G targets

from __future__ import annotations

import torch
from torch import Tensor, nn

from socialx.batch import Batch


class Coarser(nn.Module):
    """Reads T and forecasts P steps of a file with a model that reads k T and forecasts k P shorter ones."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        """steps: k, how many of the model are one of the file."""
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
