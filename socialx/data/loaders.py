"""Windows -> batches on the device.

ResidentLoader keeps the whole series on the device (METR-LA 85 MB with its masks, PEMS-BAY 203 MB) and makes a batch by
gathering rows: no Python per sample, no copy per step, no worker.  The price is that the series must fit there.
"""

# Shape letters: B windows, T history steps, P horizon steps, N sensors, F inputs, G targets, R = T + P rows of a window

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from socialx.data.windows import calendar, carry_forward


class Batch(NamedTuple):
    """B windows of all sensors, values in the file's units, a missing value as 0 with valid False.

    history float32 [B,T,N,F], history_valid bool [B,T,N,F]; of the targets last float32 [B,N,G], the reading at the end
    of the history, and carried float32 [B,N,G], the latest valid one there, however old, NaN if there never was one;
    slot, weekday int64 [B,R]; target float32 [B,P,N,G], target_valid bool [B,P,N,G].  The windows that pad the last
    batch to B have no valid target.
    """

    history: Tensor
    history_valid: Tensor
    last: Tensor
    carried: Tensor
    slot: Tensor
    weekday: Tensor
    target: Tensor
    target_valid: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``; tensors already there are not copied."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


class Loader(Protocol):
    """What the engine needs of a loader."""

    num_windows: int

    def __len__(self) -> int:
        """Batches per epoch."""
        ...

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from ``first_batch`` on; the order depends on the seed and the number alone."""
        ...


class Series:
    """Features of all sensors, whole, on one device: C columns, of which F are inputs and G targets."""

    def __init__(
        self,
        values: np.ndarray,
        valid: np.ndarray,
        epochs: np.ndarray,
        step_minutes: int,
        device: torch.device,
        inputs: Sequence[int] = (0,),
        targets: Sequence[int] = (0,),
    ) -> None:
        """values, valid [T,N,C] and epochs [T] as ``open_store`` gives them, C features one behind the other.

        inputs, targets: which of the C a model reads and forecasts.
        """
        slot, weekday = calendar(epochs, step_minutes)
        clean = np.where(valid, values, np.float32(0))
        self.readings = torch.from_numpy(np.stack([clean, valid.astype(np.float32)], axis=1)).to(device)  # [T,2,N,C]
        goals = list(targets)
        self.carried = torch.from_numpy(carry_forward(values[..., goals], valid[..., goals])).to(device)  # [T,N,G]
        self.calendar = torch.from_numpy(np.stack([slot, weekday], axis=1)).to(device)  # [T,2]
        columns = values.shape[2]
        self.inputs, self.targets = _chooser(inputs, columns, device), _chooser(targets, columns, device)
        self.device = device

    def gather(self, starts: Tensor, history: int, horizon: int) -> Batch:
        """The windows that begin at ``starts`` int64 [B] -> Batch; three gathers, no host work, no sync."""
        rows = starts[:, None] + torch.arange(history + horizon, device=self.device)  # [B,R]
        flat = rows.flatten()
        readings = self.readings.index_select(0, flat).unflatten(0, rows.shape)  # [B,R,2,N,C]
        dates = self.calendar.index_select(0, flat).unflatten(0, rows.shape)  # [B,R,2]
        seen, ahead = readings[:, :history], readings[:, history - 1 :]
        if self.inputs is not None:
            seen = seen.index_select(-1, self.inputs)
        if self.targets is not None:
            ahead = ahead.index_select(-1, self.targets)
        return Batch(
            history=seen[:, :, 0],
            history_valid=seen[:, :, 1] > 0,
            last=ahead[:, 0, 0],
            carried=self.carried.index_select(0, rows[:, history - 1]),
            slot=dates[..., 0],
            weekday=dates[..., 1],
            target=ahead[:, 1:, 0],
            target_valid=ahead[:, 1:, 1] > 0,
        )


def _chooser(chosen: Sequence[int], columns: int, device: torch.device) -> Tensor | None:
    """The chosen columns, None where that is all of them in their order: then nothing is copied."""
    return None if list(chosen) == list(range(columns)) else torch.tensor(list(chosen), device=device)


class ResidentLoader:
    """Batches of one part of the windows, gathered from a resident series."""

    def __init__(
        self,
        series: Series,
        starts: np.ndarray,
        history: int,
        horizon: int,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        """starts int64 [windows].  Every batch has min(batch_size, windows) windows; the last one is padded."""
        self.series, self.history, self.horizon = series, history, horizon
        self.starts = torch.from_numpy(np.ascontiguousarray(starts)).to(series.device)
        self.num_windows = len(starts)
        self.batch_size = min(batch_size, self.num_windows)
        self.shuffle, self.seed = shuffle, seed

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self.num_windows // self.batch_size)

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[Batch]:
        """Every window once.  A shuffled order is a device permutation seeded by (seed, number)."""
        padding = len(self) * self.batch_size - self.num_windows
        order = torch.cat([self._order(number), torch.zeros(padding, dtype=torch.int64, device=self.series.device)])
        starts = self.starts.index_select(0, order)
        for batch in range(first_batch, len(self)):
            span = slice(batch * self.batch_size, (batch + 1) * self.batch_size)
            gathered = self.series.gather(starts[span], self.history, self.horizon)
            yield gathered if span.stop <= self.num_windows else self._without_padding(gathered, padding)

    def _order(self, number: int) -> Tensor:
        device = self.series.device
        if not self.shuffle:
            return torch.arange(self.num_windows, device=device)
        generator = torch.Generator(device).manual_seed(self.seed * 1_000_003 + number)
        return torch.randperm(self.num_windows, generator=generator, device=device)

    def _without_padding(self, batch: Batch, padding: int) -> Batch:
        real = torch.arange(self.batch_size, device=self.series.device) < self.batch_size - padding
        return batch._replace(target_valid=batch.target_valid & real[:, None, None, None])
