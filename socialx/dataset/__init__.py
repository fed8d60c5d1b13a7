"""Dataset: features from one data file, cut into windows and loaded in batches."""

# Shape letters: T rows, t rows read, P horizon steps, N sensors, C features, G targets

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from socialx.core.environment import free_bytes
from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, counted
from socialx.core.progress import note
from socialx.data.calendar import WALL, Calendar, slots_per_day
from socialx.data.climatology import Climatology, DailyStats, PastDays, allocate
from socialx.data.scaler import DataSpec, MeanStd, measure
from socialx.data.series import ContextReader, WindowLayout
from socialx.data.source import PAGE_ROWS, pages
from socialx.dataset.loaders import ON_DEVICE_SHARE, WHOLE, Loader, Loaders, RankShare, WindowOrder, choose_mode
from socialx.dataset.windows import Windows, split_windows
from socialx.files.store.ids import match_key
from socialx.files.store.layout import STATIC_UNITS, Sensors
from socialx.files.store.published import DATASETS
from socialx.files.store.store import Store, open_store
from socialx.files.store.time_axis import JITTER_S, is_utc
from socialx.settings.schema import DataSettings, LoaderSettings


class Columns:
    """Row source over several features of a file, stacked on the last axis; impossible values are refused."""

    def __init__(self, stores: Sequence[Store], calendar: Calendar = WALL) -> None:
        """Stack stores, one per feature, with the same rows and sensors."""
        self.stores, self.calendar = stores, calendar
        self.seconds, self.step_minutes = stores[0].seconds, stores[0].step_minutes
        self.shape = len(stores[0].sensors.ids), len(stores)

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return values float32 and valid bool [t,N,C] for adjacent rows. Raises SocialxError for impossible values."""
        parts = [store.read(rows) for store in self.stores]
        for store, (numbers, valid) in zip(self.stores, parts, strict=True):
            store.check_readings(np.where(valid, numbers, np.float32(np.nan)), store.seconds[rows])
        if len(parts) == 1:  # saves a copy
            return parts[0][0][..., None], parts[0][1][..., None]
        values, valid = (np.stack(part, axis=-1) for part in zip(*parts, strict=True))
        return values, valid

    def latest_before(self, page: int) -> np.ndarray:
        """Return the last observation before a page (PAGE_ROWS rows, by index), float32 [N,C]; NaN before any."""
        parts = [store.latest_before(page) for store in self.stores]
        if any(store.is_impossible(part).any() for store, part in zip(self.stores, parts, strict=True)):
            for rows in pages(0, page * PAGE_ROWS):
                self.read(rows)  # raises with the row
        return np.stack(parts, axis=-1)


@dataclass(frozen=True)
class Dataset:
    """A data file as read by a model: columns of rows, the windows that are scored, and the loaders.

    stores: by feature, the first target first. moments: mean and deviation per feature, from the training rows or
    from a run. windows: ``None`` if the file stays unsplit, for forecasts from the last lookback. loading: section
    ``loader`` with the chosen mode. train_climatology_days: the days that training reads; ``None`` if the model reads
    only observations. prior_climatology: statistics stored in a run for days before this file. calendar: local clock
    and holidays. teacher_forecast: see ``Loaders``.
    """

    stores: dict[str, Store]
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    lookback: int
    horizon: int
    device: torch.device
    moments: Mapping[str, MeanStd]
    windows: Windows | None
    loading: LoaderSettings
    train_climatology_days: PastDays | None = None
    prior_climatology: DailyStats | None = None
    calendar: Calendar = WALL
    teacher_forecast: np.ndarray | None = field(default=None, compare=False)

    @property
    def store(self) -> Store:
        """Store for the first target; sensors and times agree in all stores."""
        return self.stores[self.targets[0]]

    @property
    def sensors(self) -> Sensors:
        """Sensors in file order."""
        return self.store.sensors

    @property
    def target_source(self) -> Columns:
        """Row source over the targets alone."""
        return Columns(tuple(self.stores[name] for name in self.targets), self.calendar)

    @cached_property
    def source(self) -> Columns:
        """Row source over all features."""
        return Columns(tuple(self.stores.values()), self.calendar)

    @cached_property
    def layout(self) -> WindowLayout:
        """What a window of ``source`` holds."""
        names = list(self.stores)
        inputs, targets = (tuple(names.index(name) for name in chosen) for chosen in (self.inputs, self.targets))
        return WindowLayout(self.lookback, self.horizon, inputs, targets)

    @cached_property
    def network(self) -> DataSpec:
        """Sizes and statistics of the data, for building a model."""
        inputs, targets = (tuple(self.moments[name] for name in names) for names in (self.inputs, self.targets))
        slots = slots_per_day(self.store.step_minutes)
        read = tuple(self.inputs.index(name) if name in self.inputs else None for name in self.targets)
        return DataSpec(len(self.sensors.ids), self.lookback, self.horizon, slots, inputs, targets, read=read)

    @cached_property
    def checksum(self) -> str:
        """Checksum over all observations."""
        return combine_checksums([store.checksum for store in self.stores.values()])

    @property
    def training_rows(self) -> slice:
        """Rows in training windows; all rows if the file stays unsplit."""
        return self.windows.training_rows if self.windows else slice(0, len(self.store.seconds))

    def training_readings(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield target values and valid [t,N,G] and seconds [t] over the training rows, page by page."""
        source, span = self.target_source, self.training_rows
        for rows in pages(span.start, span.stop):
            yield (*source.read(rows), self.store.seconds[rows])

    def starts(self, split: str, subset: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Return the first row of each window in a split, int64 [W]; subset: windows within the split, by index."""
        if self.windows is None:
            raise ValueError("this dataset was opened without a split")
        return self.windows.split(split)[subset]

    def forecast_rows(self, split: str, subset: slice | np.ndarray = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Return first and last forecast row, int64 [W] each, for windows in a split."""
        first = self.starts(split, subset) + self.lookback
        return first, first + self.horizon - 1

    def loader(
        self,
        split: str,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        *,
        shard: int | None = None,
        share: RankShare = WHOLE,
        subset: slice | np.ndarray = slice(None),
        days: PastDays | None = None,
    ) -> Loader:
        """Return a loader for ``train``, ``validation`` or ``test``, in the mode from ``loading``.

        shuffle, seed, share: see ``WindowOrder``. shard: windows per shard in the shuffled order; ``None`` as
        ``loading`` says, 0 for a single shard. subset: see ``starts``. days: see ``Loaders.load``.
        """
        starts = self.starts(split, subset)
        shard = self.loaders.shard_windows(len(starts)) if shard is None else shard
        order = WindowOrder(starts, batch_size, shuffle, seed, shard, share)
        return self.loaders.load(order, days, teacher=split == "train")

    @cached_property
    def loaders(self) -> Loaders:
        """Loaders of windows in the mode from ``loading``."""
        measured = [name not in STATIC_UNITS for name in self.stores]
        parts = self.source, self.layout, self.device, self.loading, self.climatology, measured
        return Loaders(*parts, self.teacher_forecast)

    @cached_property
    def climatology(self) -> Climatology:
        """Climatology of the targets."""
        days, prior = self.train_climatology_days, self.prior_climatology
        in_memory = self.loading.mode == "on_device"
        return Climatology(self.target_source, self.horizon, self.training_rows.stop, days, prior, in_memory)

    def context(self, slack_s: int, shared: bool = True) -> ContextReader:
        """Return a reader for lookbacks by end time, within slack_s seconds. shared: with ``climatology.shared``."""
        rolling = None
        if self.train_climatology_days:
            rolling = self.climatology.shared if shared else self.climatology.rolling()
        return ContextReader(self.source, self.layout, slack_s, rolling)

    def with_teacher_forecasts(self, forecasts: Iterator[np.ndarray]) -> Dataset:
        """Return a copy whose training batches carry teacher forecasts, which the model learns to repeat.

        forecasts: float32 [b,P,N,G], b windows each, in file order. Above half the free memory the mode is sharded.
        """
        starts, mode, done = self.starts("train"), self.loading.mode, 0
        shape = int(starts[-1]) + 1, self.horizon * math.prod(self.target_source.shape)
        free = free_bytes(self.device)
        if mode == "on_device" and free is not None and 2 * math.prod(shape) > ON_DEVICE_SHARE * free:
            mode = "sharded"
        teacher_forecast = allocate(shape, np.float16, mode == "on_device")
        for part in forecasts:
            rows = starts[done : done + len(part)]  # drops the padding
            teacher_forecast[rows] = part[: len(rows)].reshape(len(rows), -1)
            done += len(rows)
        return replace(self, loading=self.loading.model_copy(update={"mode": mode}), teacher_forecast=teacher_forecast)

    @property
    def file_holidays(self) -> dict[int, int]:
        """Holidays with rows in the file: day since 1970 -> the weekday with similar traffic, 0 for Monday."""
        return self.calendar.holidays_among(self.calendar.day(self.store.seconds))

    def note_clock(self, by: Sequence[str] | None = None) -> None:
        """Tell the user that days and hours follow UTC, if results depend on the clock and the local zone is unknown.

        by: groups of scores, to check for ``hour`` and ``weekday``; ``None``: check for climatology or holidays.
        """
        store, reads_clock = self.store, bool(self.train_climatology_days or self.calendar.holidays)
        relevant = reads_clock if by is None else not reads_clock and {"hour", "weekday"} & set(by)
        if relevant and is_utc(store.timezone) and store.local_zone is None:
            local = Command("backfill", store.path, local_zone="ZONE")
            note(Message("data.clock-in-utc", store.path, "days and hours are in UTC, as the times in the file", local))

    def climatology_days(self, issued: int) -> int:
        """Count days with data before the day of an origin (issued, seconds), also days that only a run has stored."""
        prior, today = self.prior_climatology, int(self.calendar.day(issued))
        days = set(np.unique(self.calendar.day(self.store.seconds)).tolist())
        if prior is not None and prior.end <= today:
            run_days = range(prior.first, prior.end + (prior.last is not None))
            days = {day for day in days if day >= prior.end} | {*run_days}
        return sum(day < today for day in days)


def combine_checksums(sums: Sequence[str]) -> str:
    """Return one checksum for a dataset from the checksums of all features."""
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


@dataclass(frozen=True)
class Fit:
    """What a trained run, or the first network of a training, fixes for a file that is opened.

    moments: mean and deviation per feature, by default measured. sensors: ids to read, in this order; each must be in
    the file. units: speed unit to read each feature in, by default the unit in the file. ``build`` reads the last two:
    the holiday list, where the path differs from the settings, and model steps per file step (finer).
    """

    moments: Mapping[str, MeanStd] | None = None
    sensors: tuple[str, ...] | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    holidays: str | None = None
    finer: int = 1


FRESH = Fit()  # everything from the file


def read_dataset(
    settings: DataSettings,
    loader: LoaderSettings | None,
    device: torch.device,
    train_climatology_days: PastDays | None = None,
    fit: Fit = FRESH,
) -> Dataset:
    """Open the file in the settings, split the windows, measure the statistics and choose the loader mode.

    loader: ``None`` leaves the file unsplit, and without measured statistics. train_climatology_days: see ``Dataset``.
    The calendar has no holidays yet.
    Raises SettingsError without a file, and SocialxError for a file shorter than one lookback.
    """
    path, targets, lookback, moments = settings.path, settings.targets, settings.lookback, fit.moments
    if path is None:
        remedy = f"add {Argument('data.path', 'FILE.h5')}, which {Command('convert', 'auto', 'FILE')} makes"
        raise SettingsError("data.none", "", "a data file is needed", remedy)
    inputs = settings.inputs or targets
    names = tuple(dict.fromkeys([*targets, *inputs]))
    stores = {name: open_store(path, name, settings.days).in_unit(fit.units.get(name, "")) for name in names}
    if fit.sensors is not None:
        stores = {name: store.with_sensors(fit.sensors) for name, store in stores.items()}
    first = stores[names[0]]
    if len(first.seconds) < lookback:
        reason = f"the file has {counted(len(first.seconds), 'row')}, and one lookback needs {lookback}"
        raise SocialxError("data.below-lookback", path, reason, "use a file with more rows")
    windows, loading = None, LoaderSettings(mode="sharded")
    if loader is not None:
        windows = find_windows(first, settings)
        columns = len(names) + len(targets) * (len(train_climatology_days.windows) if train_climatology_days else 0)
        loading = choose_mode(loader, path, (len(first.seconds), len(first.sensors.ids), columns), device)
        if moments is None:
            source = Columns(tuple(stores.values()))
            moments = dict(zip(names, measure(source, windows.training_rows, path), strict=True))
    chosen = stores, inputs, targets, lookback, settings.horizon, device, moments or {}, windows, loading
    return Dataset(*chosen, train_climatology_days, calendar=Calendar(first.local_clock()))


def find_windows(store: Store, settings: DataSettings) -> Windows:
    """Split a file into canonical or strict windows, skipping time gaps except the gap that published results cross."""
    seconds, published = store.seconds, None
    for dataset in DATASETS.values():
        if dataset.skips and all(match_key(name) in dataset.ids for name in store.sensors.ids):
            before, after = np.array(dataset.skips, "datetime64[s]").astype(np.int64)
            for row in np.flatnonzero((seconds[:-1] == before) & (seconds[1:] == after)):
                published = seconds - np.where(np.arange(len(seconds)) > row, after - before - dataset.step_s, 0)
    return split_windows(seconds, store.step_minutes, settings, JITTER_S, published)
