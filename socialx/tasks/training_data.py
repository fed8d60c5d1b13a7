"""What a training learns from: windows for PyTorch, network files, teachers, and the rows that reach the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from socialx.core.errors import Argument, Message, SettingsError, SocialxError, counted
from socialx.core.notebook import ResultRepr
from socialx.core.progress import note, work
from socialx.dataset import Dataset, Fit, read_dataset
from socialx.dataset.loaders import Loader
from socialx.files.sources.positions.neighbours import find_neighbours
from socialx.model.forecaster import with_scaler
from socialx.scoring.adaptation import latest_free_flow, scaler_for
from socialx.scoring.protocol import OWN_DATA, OtherData, Seen, sensor_places
from socialx.settings.arguments import SettingsArguments
from socialx.settings.layers import ConfigLayers, differences, run_settings
from socialx.settings.schema import LoaderSettings, Settings
from socialx.tasks.build import Experiment, build
from socialx.tasks.opened import open_forecasting
from socialx.tasks.scored_split import check_split
from socialx.training.networks import InterleavedLoader, network_switcher
from socialx.training.process_group import SINGLE, ProcessGroup
from socialx.training.run_folder import open_run


class WindowDataset(ResultRepr, TorchDataset[tuple[Tensor, ...]]):
    """The windows of a split for PyTorch, in time order, as tuples (x, y, mask) on the CPU.

    x float32 [T,N,F]: inputs, 0 where missing, scaled by the training rows if normalised.  y float32 [P,N,G]: targets
    in file units, 0 where missing.  mask bool [P,N,G]: True where y is an observation.  scaler: a ``StandardScaler``.
    sensors: ``ids``, ``latitude`` and ``longitude``, in the order of N.
    """

    def __init__(self, data: Dataset, split: str, normalised: bool) -> None:
        self.data, self.split, self.normalised, self.sensors = data, split, normalised, data.sensors
        self.starts, self.scaler = data.starts(split), data.network.scaler()

    def headline(self) -> str:
        """Return the split with the number of windows, and the sizes."""
        sizes = f"{self.data.lookback} + {self.data.horizon} steps of {counted(len(self.sensors.ids), 'sensor')}"
        return f"{self.split} of {self.data.store.path}, {counted(len(self), 'window')} of {sizes}"

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, ...]]:
        """Return several windows at once, as a ``DataLoader`` asks."""
        starts, series = torch.from_numpy(self.starts[indices]), self.data.loaders.observations
        batch, target = series.window(starts), series.target(starts)
        x = self.scaler.normalise_inputs(batch) if self.normalised else batch.inputs
        return list(zip(x, target.values, target.valid, strict=True))

    def loader(self, batch_size: int, shuffle: bool = False, **options: Any) -> DataLoader[tuple[Tensor, ...]]:
        """Return a torch ``DataLoader`` of batches x, y, mask; options: of the ``DataLoader``."""
        return DataLoader(self, batch_size, shuffle, **options)

    def adjacency(self, distances: str | Path | None = None) -> Tensor:
        """Return the Gaussian kernel exp(-(d / s)^2) of the distances d between sensors, float32 [N,N].

        s is the standard deviation of the distances, with 0 from each sensor to itself; a weight below 0.1 is 0: as in
        DCRNN.
        distances: a file with road distances, used for straight lines.  Raises SocialxError for a missing location.
        """
        near = find_neighbours(self.data.store, None, None, None if distances is None else Path(distances), True)
        (start, _), km = near.exists.nonzero(), near.distance[near.exists]
        weights = np.exp(-np.square(km / (np.std([*km, *np.zeros(len(near.index))]) or 1)))
        matrix = np.eye(len(near.index), dtype=np.float32)
        matrix[start, near.index[near.exists]] = np.where(weights < 0.1, 0, weights)
        return torch.from_numpy(matrix)

    def to_frame(self) -> Any:
        """Return the first target from the first to the last window as a pandas frame, see ``Store.to_frame``."""
        rows = slice(int(self.starts[0]), int(self.starts[-1]) + self.data.layout.length)
        return self.data.store.select_rows(rows).to_frame()


def open_dataset(
    data: str | Path | Mapping[str, Any],
    split: str = "train",
    *,
    normalised: bool = True,
    settings: Settings | ConfigLayers | None = None,
    **sections: Unpack[SettingsArguments],
) -> WindowDataset:
    """Open the windows of a split as a PyTorch data set of (x, y, mask), as ``train`` and ``evaluate`` cut them.

    split: ``train``, ``validation``, ``test`` or ``all``.  normalised: whether x is scaled.  data, settings, sections:
    as in ``train``, such as ``lookback=24``.  The series stays in memory, 5 bytes per observation.  Raises
    SettingsError for wrong settings, and SocialxError for an unusable file.
    """
    check_split(split)
    chosen = ConfigLayers.from_call(settings, {**sections, "data": data}, task=open_dataset).load().settings
    loading = LoaderSettings(mode="on_device")
    return WindowDataset(read_dataset(chosen.data, loading, torch.device("cpu")), split, normalised)


def load_extra_networks(experiment: Experiment) -> list[Experiment]:
    """Load the additional training files, scaled like the first file at each network's free-flow speed.

    Speeds are read in the unit of the first file, in which errors count.  Raises SocialxError for a file with another
    time step, and for repeated sensors.
    """
    others, networks = [], {experiment.data.store.path: sensor_places(experiment.data.sensors)}
    units = {**experiment.protocol.inputs, **experiment.protocol.targets}
    for path in experiment.settings.data.extra_data:
        data = experiment.settings.data.model_copy(update={"path": path, "extra_data": ()})
        settings = experiment.settings.model_copy(update={"data": data})
        other = build(settings, fit=Fit(experiment.data.moments, units=units))
        same_missing = replace(experiment.protocol, missing=other.protocol.missing)
        OtherData(other.protocol, same_missing, experiment.data.store.path, path).check()
        locations = sensor_places(other.data.sensors)
        for file, others_known in networks.items():
            if shared := [name for name, location in locations.items() if others_known.get(name) == location]:
                problem = f"the file repeats {counted(len(shared), 'sensor')} of {file}"
                raise SocialxError("train.sensors-twice", path, problem, "name each network once", sample=shared)
        networks[path] = locations
        other.data.note_clock()
        speeds = dict(zip(other.data.targets, latest_free_flow(other.data)[0].T, strict=True))
        model = with_scaler(other.model, scaler_for(experiment.protocol, other.protocol, speeds))
        others.append(replace(other, model=model.to(other.precision.device)))
    for other in others:
        note(f"also training on {other.data.store.path} ({counted(len(other.data.sensors.ids), 'sensor')})")
    return others


def add_teacher_forecasts(experiment: Experiment) -> Experiment:
    """Add the mean forecast from the teachers in the settings for each training window, computed once.

    Raises SettingsError for a teacher with different windows, and SocialxError for a teacher from another network.
    """
    settings, device, teachers = experiment.settings, experiment.precision.device, []
    layers = ConfigLayers.from_call(None, {"data": settings.data.path, "device": str(device)})
    for name in settings.trainer.teacher:
        run = open_run(Path(name))
        teacher = run_settings(run.settings, run.values).settings
        teacher = teacher.model_copy(update={"data": teacher.data.model_copy(update={"path": settings.data.path})})
        if differ := differences(settings, teacher):
            problem = f"{Argument('trainer.teacher', name)} was trained on other windows ({differ})"
            raise SettingsError("train.teacher-windows", "", problem, "name runs of the same windows")
        teachers.append(open_forecasting(run, layers, experiment).experiment)
    return replace(experiment, data=experiment.data.with_teacher_forecasts(_mean_forecasts(teachers)))


def _mean_forecasts(teachers: Sequence[Experiment]) -> Iterator[np.ndarray]:
    """Yield the teachers' mean forecast for each batch of training windows, float32 [B,P,N,G]."""
    models, size = [teacher.model.eval() for teacher in teachers], teachers[0].settings.loader.batch_size
    loaders = [teacher.data.loader("train", size) for teacher in teachers]
    with work("forecasts of the teachers", loaders[0].num_windows, "windows") as bar, torch.no_grad():
        for examples in zip(*(loader.epoch(0) for loader in loaders), strict=True):
            batches = (example.batch.to(teachers[0].precision.device) for example in examples)
            forecasts = [model(batch) for model, batch in zip(models, batches, strict=True)]
            yield torch.stack(forecasts).mean(0).cpu().numpy()
            bar.advance(loaders[0].num_windows / len(loaders[0]))


def train_loader(experiment: Experiment, group: ProcessGroup = SINGLE, shard: int | None = None) -> Loader:
    """Return the training loader.  shard: windows per shard in the epoch order; None: as the data set chooses."""
    settings, days = experiment.settings, experiment.data.train_climatology_days
    size, seed = settings.loader.batch_size, settings.trainer.seed
    return experiment.data.loader("train", size, True, seed, shard=shard, share=group.share, days=days)


def make_loaders(
    networks: Sequence[Experiment], group: ProcessGroup = SINGLE, shard: int | None = None
) -> tuple[Loader, Loader]:
    """Return the training and validation loaders; several networks take turns with the first network's model.

    shard: as in ``train_loader``, for the first network.
    """
    size, seed = networks[0].settings.loader.batch_size, networks[0].settings.trainer.seed
    first, *others = [train_loader(network, group, None if index else shard) for index, network in enumerate(networks)]
    validation = [network.data.loader("validation", size, share=group.share) for network in networks]
    if not others:
        return first, validation[0]
    model, *models = (network.model for network in networks)
    use = network_switcher(model, models)
    names = [network.data.store.path.stem for network in networks]
    return InterleavedLoader([first, *others], use, seed, names), InterleavedLoader(validation, use, seed, names)


def find_seen_rows(networks: Sequence[Experiment]) -> list[Seen]:
    """Return the rows that reach a training's weights: from its files, its teachers and the run it starts from.

    networks: in the training, its own first.  A note tells which rows lie in the test split of its own file.
    """
    first, *others = networks
    seen = [_find_rows(first, OWN_DATA), *(_find_rows(other, str(other.data.store.path)) for other in others)]
    trainer, data = first.settings.trainer, first.data
    for kind, name in [*(("teacher", name) for name in trainer.teacher), ("start", trainer.init_from)]:
        if name:
            for span in open_run(Path(name)).seen:
                behind = "" if span.source == OWN_DATA else f" ({span.source})"
                seen.append(replace(span, source=f"the {kind} {name}{behind}"))
    if data.windows and len(data.windows.split("test")):
        begin, end = (int(data.store.seconds[rows]) for rows in (data.forecast_rows("test")[0][0], -1))
        for span in seen[1:]:
            if within := span.within(first.protocol, begin, end):
                until = data.store.clock.stored(str(within.last_time))
                problem = f"{span.source} has seen the test split of this file, until {until}"
                helps = "score later rows, or train without these weights"
                note(Message("train.seen", data.store.path, problem, helps))
    return seen


def _find_rows(experiment: Experiment, source: str) -> Seen:
    """Return the training and validation rows in a file; the last horizon lies in the next split's windows too."""
    data, protocol = experiment.data, experiment.protocol
    windows = [data.forecast_rows(split)[0] for split in ("train", "validation")]
    last = int(max(rows.max() for rows in windows if len(rows)))
    times = (data.store.timestamps[0].decode(), data.store.timestamps[last].decode())
    return Seen(source, protocol.network, protocol.positions, *times, protocol.timezone)
