"""Scores while some sensors are silent: no reading in the lookback, and none before.

Which sensors are silent is the draw of Reliability-First-STGNN-Benchmark (results/robustness, seed 42), so that its
tables compare.
"""

# Shape letters: B windows, P horizon steps, N sensors, G targets

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.core.errors import Argument, SettingsError
from socialx.core.notebook import names_in

SEED = 42


def parse_shares(shares: str | float | Sequence[str | float]) -> list[float]:
    """Return shares from a number, numbers, or ``0.1,0.3``. Raises SettingsError outside 0 to 1."""
    texts = names_in(shares if isinstance(shares, str) else [str(share) for share in np.atleast_1d(shares)])
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = [np.inf]
    if any(not 0 < number < 1 for number in numbers):
        example = f"use for example {Argument('silent', '0.1,0.3')}"
        raise SettingsError("score.silent", "", f"{Argument('silent', shares)} must be shares between 0 and 1", example)
    return numbers


def draw(sensors: int, share: float) -> Tensor:
    """Return the mask of silent sensors, bool [N]."""
    silent = torch.zeros(sensors, dtype=torch.bool)
    silent[np.random.RandomState(SEED).permutation(sensors)[: int(sensors * share)]] = True
    return silent


class Silent(nn.Module):
    """A model for which sensors are silent; silent: their mask, bool [N]."""

    def __init__(self, model: nn.Module, silent: Tensor) -> None:
        super().__init__()
        self.model, self.silent = model, silent[:, None]

    def forward(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G] in file units."""
        masked = batch._replace(
            inputs=batch.inputs.masked_fill(self.silent, 0.0),
            valid=batch.valid & ~self.silent,
            last=batch.last.masked_fill(self.silent, 0.0),
            last_observed=batch.last_observed.masked_fill(self.silent, torch.nan),
        )
        forecast: Tensor = self.model(masked)
        return forecast
