"""The error of a forecast under each rule that publications use: equal forecasts, different numbers."""

# Shape letters: W windows, B of a batch, P horizon steps, N sensors

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from socialx.core.batch import Batch, Target

BATCH = 64  # windows per batch; some publications average the means over batches
CANONICAL = "canonical"
RuleErrors = dict[str, tuple[float, ...]]  # the MAE at each step, and over all steps


class RunningWindows:
    """Sums of absolute errors for the first target by window and step.  Update by batches, then compute."""

    def __init__(self, windows: int, late: int) -> None:
        """Take ``windows`` windows; the rest is padding.  late: first window where a file is split by rows instead."""
        self.windows, self.late, self.parts, self.sensors = windows, late, list[Tensor](), 0

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """Add the errors for a batch, forecast [B,P,N,G] (P steps, G targets) in file units, on the device."""
        valid, error = target.valid[..., 0], (forecast - target.values)[..., 0].double().abs()
        self.sensors = valid.shape[2]
        self.parts.append(torch.stack([torch.where(valid, error, 0.0).sum(2), valid.sum(2), error.sum(2)]))

    def compute(self) -> tuple[RuleErrors, int]:
        """Return rule -> MAE at each step and overall, NaN without targets; and how many windows lack valid targets."""
        errors, count, as_readings = torch.cat(self.parts, 1)[:, : self.windows].cpu().numpy()  # [W,P]
        batches = np.arange(0, self.windows, BATCH)

        def mae(total: np.ndarray, readings: np.ndarray) -> float:
            return float(total.sum() / readings.sum()) if readings.any() else np.nan

        def mean_of_means(total: np.ndarray, readings: np.ndarray) -> float:
            return float((total.sum(1) / np.maximum(readings.sum(1), 1)).mean())

        def mean_of_windows(total: np.ndarray, readings: np.ndarray) -> float:
            return mean_of_means(total[readings.any(1)], readings[readings.any(1)])

        def by_step(rule: Callable[..., float], *tables: np.ndarray) -> tuple[float, ...]:
            steps = [*(slice(step, step + 1) for step in range(tables[0].shape[1])), slice(None)]
            return tuple(rule(*(table[:, columns] for table in tables)) for columns in steps)

        batch_sums = (np.add.reduceat(table, batches) for table in (errors, count))
        *cumulative, _ = by_step(mae, errors.cumsum(1), count.cumsum(1))
        rules = {
            CANONICAL: by_step(mae, errors, count),
            "rows first": by_step(mae, errors[self.late :], count[self.late :]),
            "mean of windows": by_step(mean_of_windows, errors, count),
            f"mean of batches of {BATCH}": by_step(mean_of_means, *batch_sums),
            "cumulative horizons": (*cumulative, mae(errors, count)),
            "zeros as readings": by_step(mae, as_readings, np.full(errors.shape, self.sensors)),
        }
        return rules, int((~count.any(1)).sum())
