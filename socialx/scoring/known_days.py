"""A climatology of the days before each day of a pass, of all or of few; the weights of the model stay.

These are other forecasts than those of the frozen model: they know the readings of the scored period up to the day
before.  Such scores stand apart, never among those of frozen models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import torch

from socialx.batch import Example
from socialx.data.calendar import DAY_S
from socialx.data.climatology import PastDays
from socialx.data.loaders import Loader
from socialx.dataset import Dataset
from socialx.model.forecaster import Forecaster


class DayByDay(Loader):
    """The windows of a part in batches of one day each; between two days the climatology of the model goes on.

    It is then that of all rows before the day of issue, where each day counts half as much after 56 days.
    """

    def __init__(
        self, model: Forecaster, data: Dataset, part: str, batch_size: int, places: np.ndarray, most: int | None = None
    ) -> None:
        """model: on the device, with a climatology.  places: of the windows in the part, int64 [W] ascending.

        most: the days before that are known at most, None: all.
        """
        if model.climatology is None or data.windows is None:
            raise ValueError("a model without climatology, or data without parts")
        self._usual, self._data, self._part, self._most = model.climatology.usual, data, part, most
        self._unknown = model.normaliser.target_mean.cpu().numpy()
        issued = data.windows.part(part)[places] + data.history - 1
        days, firsts = np.unique(data.target_source.seconds[issued] // DAY_S, return_index=True)
        self._places = dict(zip(days.tolist(), np.split(places, firsts[1:]), strict=True))
        self.num_windows, self.batch_size, self.chunk = len(places), batch_size, 0
        self.making_s: deque[float] = deque()

    def __len__(self) -> int:
        return sum(-(-len(places) // self.batch_size) for places in self._places.values())

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[Example]:
        """The batches of all days; the climatology that the model had is put back at the end."""
        frozen, past = self._usual.clone(), PastDays(self._data.target_source, self._unknown, self._most)
        try:
            for day, places in self._places.items():
                self._usual.copy_(torch.from_numpy(past.before(day)))
                yield from self._data.loader(self._part, self.batch_size, some=places).epoch(number)
        finally:
            self._usual.copy_(frozen)
