"""Forecasts for the last days of a file: by how much a zero-shot model beats the naive forecast, and where.

Where the model does not beat the naive forecast, the forecast leans on the last observation.
"""

# Shape letters: B windows, P horizon steps, N sensors, G targets, S shares

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch, Target
from socialx.core.precision import Precision
from socialx.core.progress import work
from socialx.data.calendar import DAY_S
from socialx.dataset import Dataset
from socialx.files.store.time_axis import JITTER_S

PAST_DAYS, LEANING_EVERY_S = 7, 3600  # forecast for a file outside the training
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the forecast change to keep; 0 is the naive forecast
MEDIAN_ERRORS, LEAST_ERROR = 100, 1e-6  # errors of the median sensor added to each sensor; smallest divisor


def forecast_past(
    issued: int, every_s: int, model: nn.Module, data: Dataset, batch_size: int, precision: Precision
) -> Iterator[tuple[Tensor, Batch, Target]]:
    """Yield forecasts float32 [B,P,N,G] (P steps, G targets) in the week before ``issued``, with batches and targets.

    issued: a second.  Forecasts start every ``every_s`` seconds and end before ``issued``; none for under a day of
    data.
    """
    step_s, begin = 60 * data.store.step_minutes, int(data.store.seconds.min())
    if issued - begin < DAY_S:
        return
    first, last = max(begin + (data.lookback - 1) * step_s, issued - PAST_DAYS * DAY_S), issued - data.horizon * step_s
    context = data.context(JITTER_S)
    times = np.arange(last, first - 1, -every_s)[::-1]
    times = times[context.rows_at(times) >= 0]
    model.eval()
    with work("forecast the last days", len(times), "forecasts") as bar:
        for indices, batch in context.batches(times, batch_size):
            rows = context.rows_at(times[indices, None] + step_s * np.arange(1, data.horizon + 1))
            truth = (torch.from_numpy(part[..., list(context.targets)]) for part in context.read(rows))
            yield torch.from_numpy(precision.infer(model, batch)), batch, Target(*truth)
            bar.advance(len(batch.last))


class LeaningModel(nn.Module):
    """A model that keeps only a share of another model's change from the last observation of each sensor."""

    shares: Tensor

    def __init__(self, model: nn.Module, shares: Tensor) -> None:
        """Wrap a model. shares [P,N,G]: share of the change to keep, 0 to 1, per lead time, sensor and target."""
        super().__init__()
        self.model = model
        self.register_buffer("shares", shares)

    def forward(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G] (P lead times, G targets) in file units, nearer to the last observation."""
        return lean(self.model(batch), batch, self.shares)


def lean(forecast: Tensor, batch: Batch, share: Tensor | float) -> Tensor:
    """Return last observation + share * (forecast - last observation) [B,P,N,G]; the forecast for a silent sensor."""
    latest = batch.last_observed[:, None]
    return torch.where(latest.isnan(), forecast, latest + share * (forecast - latest))


@dataclass(frozen=True, eq=False)
class LastDays:
    """Absolute error sums float64 [S,P,N,G] for S kept ``SHARES`` of the forecast change, and the counts [P,N,G]."""

    sums: Tensor
    counts: Tensor

    @classmethod
    def measure(
        cls, issued: int, model: nn.Module, data: Dataset, batch_size: int, precision: Precision
    ) -> LastDays | None:
        """Sum hourly forecasts' errors in the week before the second ``issued``; None without observations."""
        sums, forecasts = None, forecast_past(issued, LEANING_EVERY_S, model, data, batch_size, precision)
        for forecast, batch, target in forecasts:
            errors = [(lean(forecast, batch, share) - target.values).abs() for share in SHARES]
            tables = [torch.where(target.valid, table, 0.0) for table in (*errors, torch.ones_like(forecast))]
            added = torch.stack([table.sum(0, dtype=torch.float64) for table in tables])
            sums = added if sums is None else sums + added
        return None if sums is None or not sums[-1, ..., 0].any() else cls(sums[:-1], sums[-1])

    @property
    def below_naive(self) -> float:
        """Return 1 - model error / naive error for the first target: positive if the model has the smaller error."""
        naive, full = (float(self.sums[share, ..., 0].sum()) for share in (0, -1))
        return 1 - full / naive if naive else 0.0

    @property
    def shares(self) -> Tensor:
        """Return the share of the forecast change with the least error, float32 [P,N,G] (lead time, sensor, target).

        Errors count in units of the sensor's naive error; every sensor gets 100 more errors of the median sensor.
        """
        read = self.counts > 0
        relative = torch.where(read, self.sums / self.sums[0].clamp(min=LEAST_ERROR), torch.nan)
        median = relative.nanmedian(2, keepdim=True).values.nan_to_num()  # [S,P,1,G]
        best = (self.counts * relative.nan_to_num() + MEDIAN_ERRORS * median).flip(0).argmin(0)  # the largest of equals
        return torch.tensor(SHARES[::-1])[best]
