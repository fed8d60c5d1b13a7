"""Scores of a model whose climatology goes on: before each day it learns the days before, the weights stay.

These are other forecasts than those of the frozen model: they know the readings of the scored period up to the day
before.  Such scores stand apart, never among those of frozen models.
"""

from __future__ import annotations

import numpy as np
import torch

from socialx.data.calendar import DAY_S
from socialx.data.climatology import RunningClimatology
from socialx.dataset import Dataset
from socialx.model.forecaster import Forecaster
from socialx.precision import Precision
from socialx.progress import work
from socialx.scoring.metrics import HorizonScores, RunningScores

HALF_LIFE_DAYS = 56.0  # of a day's share; chosen on METR-LA's validation part


@torch.no_grad()
def evaluate_online(
    model: Forecaster,
    data: Dataset,
    part: str,
    batch_size: int,
    precision: Precision,
    name: str = "score online",
    some: np.ndarray | None = None,
) -> list[HorizonScores]:
    """Scores over every window of a part, of each target, with the climatology of all rows before the day of issue.

    Each day counts half as much after 56 days.  model: on the device, with a climatology, which is put back at the end.
    some int64 [W]: places of windows in the part, None: all of them.
    """
    if model.climatology is None or data.windows is None:
        raise ValueError("a model without climatology, or data without parts")
    source, starts = data.target_source, data.windows.part(part)
    some = np.arange(len(starts)) if some is None else some
    day_of = source.seconds // DAY_S
    issued = day_of[starts[some] + data.history - 1]
    known, row = RunningClimatology(source.step_minutes, *source.shape), 0
    sums = RunningScores(data.horizon, len(data.targets), precision.device)
    frozen = model.climatology.usual.clone()
    model.eval()
    try:
        with work(name, len(some), "windows") as bar:
            for day in np.unique(issued):
                while row < len(day_of) and day_of[row] < day:  # day by day
                    end = int(np.searchsorted(day_of, day_of[row], side="right"))
                    known.add(source, slice(row, end))
                    following = day if end == len(day_of) else min(day, day_of[end])
                    known.fade(0.5 ** (int(following - day_of[row]) / HALF_LIFE_DAYS))
                    row = end
                model.climatology.usual.copy_(torch.from_numpy(known.compute()))
                first, last = np.searchsorted(issued, [day, day + 1])
                for example in data.loader(part, batch_size, some=some[first:last]).epoch(0):
                    batch, target = example.to(precision.device)
                    with precision.autocast():
                        forecast = model(batch)
                    sums.add(forecast, batch, target)
                bar.advance(int(last - first))
    finally:
        model.climatology.usual.copy_(frozen)
    return sums.compute()
