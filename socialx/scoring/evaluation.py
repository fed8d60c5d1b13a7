"""The one evaluation pass: a model over every window of a loader, its forecasts added up by whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from socialx.batch import Batch, Target
from socialx.data.loaders import Loader
from socialx.precision import Precision
from socialx.progress import work
from socialx.scoring.metrics import HorizonScores, RunningScores


class Accumulator(Protocol):
    """What adds up forecasts; it does not wait for the device."""

    def add(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """forecast [B,P,N,G] in the file's units, with what it was made from and what came after."""
        ...


@torch.no_grad()
def run(
    model: nn.Module,
    loader: Loader,
    precision: Precision,
    *accumulators: Accumulator,
    name: str = "score",
    watch: Callable[[int], AbstractContextManager[None]] = lambda number: nullcontext(),
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Forecast every window of a loader and hand each batch to the accumulators -> whether it came to the end.

    model: on the device of ``precision``.  watch: a context around the forecast of each batch, by its number.  stop is
    asked before each batch; where it says so, the pass ends.
    """
    was_training = model.training
    model.eval()
    per_batch = loader.num_windows / len(loader)
    try:
        with work(name, loader.num_windows, "windows") as bar:
            for number, example in enumerate(loader.epoch(0)):
                if stop():
                    return False
                batch, target = example.to(precision.device)
                with watch(number), precision.autocast():
                    forecast = model(batch)
                for accumulator in accumulators:
                    accumulator.add(forecast, batch, target)
                bar.advance(per_batch)
        return True
    finally:
        model.train(was_training)


def evaluate(
    model: nn.Module,
    loader: Loader,
    precision: Precision,
    *,
    horizon: int,
    targets: int = 1,
    name: str = "score",
    others: Sequence[Accumulator] = (),
    stop: Callable[[], bool] = lambda: False,
    together: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> list[HorizonScores]:
    """Scores of a model over every window of a loader, of each target; none where ``stop`` ended the pass.

    The errors stay on the device until the end: one transfer whatever the number of batches.  others: what else adds up
    the forecasts.  together: adds the sums of other processes, which score other windows.
    """
    sums = RunningScores(horizon, targets, precision.device)
    if not run(model, loader, precision, sums, *others, name=name, stop=stop):
        return []
    sums.sums = together(sums.sums)
    return sums.compute()
