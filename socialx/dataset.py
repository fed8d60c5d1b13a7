"""A file as a model sees it: its features on a device, cut into windows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from socialx.data.calendar import slots_per_day
from socialx.data.history import Histories
from socialx.data.loaders import ResidentLoader
from socialx.data.network import Network
from socialx.data.normaliser import Moments, measure
from socialx.data.series import Series
from socialx.data.windows import Windows, split_windows
from socialx.errors import SocialxError
from socialx.files.store import Sensors, Store, open_store


@dataclass(frozen=True)
class Dataset:
    """One store per feature, the first target's before the others, resident on a device as one series.

    moments: of every feature, measured on the training rows, or those of the run that is used here.  windows: None
    where the file was not split, because only its latest history is asked for.
    """

    stores: dict[str, Store]
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    history: int
    horizon: int
    device: torch.device
    moments: Mapping[str, Moments]
    windows: Windows | None

    @property
    def store(self) -> Store:
        """That of the first target: sensors and timestamps are the same in all of them."""
        return self.stores[self.targets[0]]

    @property
    def sensors(self) -> Sensors:
        """The sensors in the order of the file."""
        return self.store.sensors

    @cached_property
    def network(self) -> Network:
        """What a model must know."""
        inputs, targets = (tuple(self.moments[name] for name in names) for names in (self.inputs, self.targets))
        slots = slots_per_day(self.store.step_minutes)
        return Network(len(self.sensors.ids), self.history, self.horizon, slots, inputs, targets)

    @cached_property
    def series(self) -> Series:
        """All rows on the device."""
        (values, valid), (inputs, targets) = _columns(self.stores.values()), self._places()
        return Series(
            values,
            valid,
            self.store.seconds,
            self.store.step_minutes,
            self.history,
            self.horizon,
            self.device,
            inputs,
            targets,
        )

    def histories(self, slack_s: int) -> Histories:
        """Histories by the time of their last row; a row may miss its time by slack_s."""
        (values, valid), (inputs, targets) = _columns(self.stores.values()), self._places()
        return Histories(
            values,
            valid,
            self.store.seconds,
            self.store.step_minutes,
            self.history,
            self.horizon,
            inputs,
            targets,
            slack_s,
        )

    def _places(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which of the features are inputs and which are targets."""
        names = list(self.stores)
        inputs, targets = (tuple(names.index(name) for name in chosen) for chosen in (self.inputs, self.targets))
        return inputs, targets

    @cached_property
    def checksum(self) -> str:
        """Of the readings of the only feature, or of all of them."""
        sums = [store.checksum for store in self.stores.values()]
        return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()

    def loader(self, part: str, batch_size: int, shuffle: bool = False, seed: int = 0) -> ResidentLoader:
        """Batches of ``train``, ``validation`` or ``test``."""
        if self.windows is None:
            raise ValueError("this file was not split into parts")
        return ResidentLoader(self.series, self.windows.part(part), batch_size, shuffle, seed)

    def training_readings(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values and valid [T,N,G] of the targets and seconds [T] of the rows that training windows may look at."""
        if self.windows is None:
            raise ValueError("this file was not split into parts")
        rows = self.windows.training_rows
        values, valid = _columns((self.stores[name] for name in self.targets), rows)
        return values, valid, self.store.seconds[rows]


def open_dataset(
    path: Path,
    *,
    targets: Sequence[str],
    inputs: Sequence[str] | None,
    history: int,
    horizon: int,
    device: torch.device,
    split: str | None,
    days: int | None = None,
    moments: Mapping[str, Moments] | None = None,
    sensors: tuple[str, ...] | None = None,
) -> Dataset:
    """Open a file, split it, measure its moments and put it on the device.

    inputs None: the targets.  split: canonical or strict; None: not split, and ``moments`` are needed.  days: the first
    so many calendar days of the file, None: all of it.  sensors: ids that the file must have; other sensors are left
    out and these put into this order.
    """
    inputs = tuple(inputs or targets)
    names = tuple(dict.fromkeys([*targets, *inputs]))
    stores = {name: open_store(path, name).first_days(days) for name in names}
    if sensors is not None:
        stores = {name: store.with_sensors(sensors) for name, store in stores.items()}
    first = stores[names[0]]
    if len(first.seconds) < history:
        found = f"{len(first.seconds)} rows, and one history is {history}"
        raise SocialxError(path, found, "use a file with more rows")
    windows = None if split is None else split_windows(first.seconds, first.step_minutes, history, horizon, split)
    if windows is not None and moments is None:
        rows = windows.training_rows
        moments = {name: measure(store.values, store.valid, rows, path) for name, store in stores.items()}
    return Dataset(stores, inputs, tuple(targets), history, horizon, device, moments or {}, windows)


def _columns(stores: Iterable[Store], rows: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    """Values and valid [T,N,C] of these rows, C features one behind the other."""
    parts = [(store.values[rows], store.valid[rows]) for store in stores]
    values, valid = (np.stack(part, axis=-1) for part in zip(*parts, strict=True))
    return values, valid
