"""A single pass over windows: a model forecasts each window once, and every metric gets every forecast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch, Target, TrainingBatch
from socialx.core.errors import SocialxError
from socialx.core.precision import Precision
from socialx.core.progress import work
from socialx.dataset.loaders import Loader


class Metric(Protocol):
    """Running sums over the forecasts in a pass, with a ``compute`` at the end."""

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """Add a forecast [B,P,N,G] (P steps, G targets) in file units, with model input and target, without waiting."""
        ...


@torch.no_grad()
def run_metrics(
    model: nn.Module,
    loader: Loader,
    precision: Precision,
    *metrics: Metric,
    name: str = "score",
    stop: Callable[[], bool] = lambda: False,
    forecast: Callable[[TrainingBatch], Tensor] | None = None,
) -> bool:
    """Forecast every window in a loader once, pass each batch to all metrics, and return whether the pass was finished.

    model: on the device of ``precision``. name: of the progress bar. stop: asked before each batch; True ends the pass.
    forecast: replaces the model call on a batch.
    """
    was_training = model.training
    model.eval()
    per_batch = loader.num_windows / len(loader)
    try:
        with work(name, loader.num_windows, "windows") as bar:
            for example in loader.epoch(0):
                if stop():
                    return False
                moved = example.to(precision.device)
                with precision.autocast():
                    values = forecast(moved) if forecast else model(moved.batch)
                for metric in metrics:
                    metric.update(values, *moved)
                bar.advance(per_batch)
        return True
    finally:
        model.train(was_training)


def refuse_overflow(run: object, values: float | np.ndarray) -> None:
    """Raise SocialxError, which names ``run``, if values computed by a run hold NaN or infinity: weights too large."""
    lost = int(np.size(values) - np.isfinite(values).sum())
    if lost:
        problem = f"the weights overflow: {lost:,} of {np.size(values):,} values of the result are not finite"
        raise SocialxError("score.overflow", run, problem, "train again")
