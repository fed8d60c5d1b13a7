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
from socialx.environment import free_memory
from socialx.errors import Argument, Message, SocialxError
from socialx.files.store import Sensors, Store, open_store, size_of
from socialx.progress import note

# Of each reading: float32 and mask in the store, the latest valid reading in the series, and what makes them.
READING_BYTES = 12
GIB = 1 << 30
WORTH_A_LINE = GIB


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
    refuse_too_large(path, *size_of(path, days), len(names))
    stores = {name: open_store(path, name, days) for name in names}
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


def refuse_too_large(path: Path, rows: int, sensors: int, features: int) -> None:
    """Say what large data needs before it is read; SocialxError where that is more than the memory that is free."""
    need, free = READING_BYTES * rows * sensors * features, free_memory()
    if need < WORTH_A_LINE:
        return
    several = f" x {features} features" if features > 1 else ""
    found = f"{rows:,} rows x {sensors:,} sensors{several} need {need / GIB:.1f} GiB of memory"
    if free is None or need <= free:
        note(Message(path, found))
        return
    fewer = "a machine with more, a file with fewer sensors, or fewer days: "
    remedy = (fewer, Argument("data.days", "N"))
    raise SocialxError(path, f"{found}, and {free / GIB:.1f} GiB are free", remedy)


def _columns(stores: Iterable[Store], rows: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    """Values and valid [T,N,C] of these rows, C features one behind the other."""
    parts = [(store.values[rows], store.valid[rows]) for store in stores]
    if len(parts) == 1:  # which needs no copy
        return parts[0][0][..., None], parts[0][1][..., None]
    values, valid = (np.stack(part, axis=-1) for part in zip(*parts, strict=True))
    return values, valid
