"""A run folder: everything that is needed to repeat, continue, score or use a run.

format.txt         the number of the format of this folder
settings.yaml      all settings, merged; training with this file repeats the run
settings_sources.json        where each setting came from
environment.json   versions, device, precision in effect, command line; one entry per start
sensors.json       ids of the sensors, in the order of the model
protocol.json      data, checksum, split, scaler, seed: what its scores depend on, with its sha256; settings that
                    training fixed, and its place; of a run that comes with the package the checksum of its excerpt
holidays.csv       the list of holidays, where it is a file
metrics.jsonl      one line per epoch; the same as metrics.csv
best.safetensors   weights of the epoch with the best validation MAE, with their sha256
climatology.safetensors  readings by kind of day and slot, as sums that fade, those of the last day apart; their sha256
intervals.safetensors  prediction intervals of these weights, with their sha256
last.pt            everything that resuming needs
job.txt            the job of torchrun that began it, whose restarts go on with it

A run folder may come from somebody else: what is read from it is bounded in size and checked before it is used.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import ConfigDict, Field, TypeAdapter
from torch import Tensor, nn

import socialx
from socialx.core import sealed_tensors as sealed
from socialx.core.disk import (
    atomic_write,
    check_name,
    file_lock,
    file_signature,
    folder_for,
    read_text,
    remove_stale_files,
)
from socialx.core.environment import environment
from socialx.core.errors import Argument, Command, Remedy, SettingsError, SocialxError, counted, plain
from socialx.core.precision import Precision
from socialx.data.climatology import DailyStats
from socialx.dataset import Dataset, combine_checksums
from socialx.files.store.store import Store, open_store
from socialx.scoring.intervals import ConformalIntervals, calibrated
from socialx.scoring.protocol import ScoringProtocol, network_of
from socialx.settings.file import read_settings
from socialx.training import checkpoint

FORMAT = 2  # the number in format.txt
TRAINED = Path(socialx.__file__).parent / "trained"  # runs that come with the package
NAME_A_RUN = "name a folder that train wrote"
NAMES = (
    *("format.txt", "settings.yaml", "settings_sources.json", "environment.json", "sensors.json", "protocol.json"),
    *("metrics.jsonl", "metrics.csv", "best.safetensors", "intervals.safetensors", "last.pt", "job.txt"),
    *("holidays.csv", "climatology.safetensors"),
)
OTHER_FILES = ("data.extra_data", "pooling.distances", "trainer.teacher")  # settings that name files beside the data
LEFT_BY_A_KILL = re.compile(rf"\.({'|'.join(map(re.escape, NAMES))})\..*\.tmp")  # a temporary file
TEXT_BYTES = 16 << 20  # no text of a run is longer: 100,000 sensors and 10,000 epochs need less
CPU = torch.device("cpu")

Count = Annotated[int, Field(ge=0, lt=1 << 53)]


@dataclass(frozen=True)
class EpochRow:
    """One epoch; errors in the unit of the first target."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    epoch: Count
    steps: Count
    train_mae: float
    validation_mae: float | None
    windows_per_s: float
    learning_rate: float
    seconds: float = 0.0  # of training, without validation
    memory_mib: float = 0.0
    skipped_steps: Count = 0
    gpu_utilisation: float | None = None


@dataclass(frozen=True)
class RunWeights:
    """A state dict and the epoch that it is of; None: no epoch had ended."""

    state: dict[str, Tensor]
    epoch: int | None

    @property
    def fingerprint(self) -> str:
        """What tells them from all others."""
        return sealed.fingerprint(self.state, self.epoch)


class InFolder:
    """A file of a run folder, by its name there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunFolder, _: type[RunFolder]) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Paths inside a run folder, and what is written there.

    writes: False in all but the first of several processes.
    """

    path: Path
    writes: bool = True

    settings = InFolder("settings.yaml")  # all settings of the run
    metrics = InFolder("metrics.jsonl")  # a line of JSON per epoch
    best = InFolder("best.safetensors")  # weights of the best epoch
    intervals = InFolder("intervals.safetensors")  # prediction intervals of these weights
    climatology = InFolder("climatology.safetensors")  # what is known of the days of its data
    last = InFolder("last.pt")  # the state to resume from

    @property
    def version(self) -> tuple[object, ...]:
        """What tells what is in the folder from what another training leaves there, or in the folder of a new link."""
        files = (self.settings, self.best, self.intervals, self.climatology)
        return self.path.resolve(), *(file_signature(file) for file in files if file.exists())

    def write_text(self, name: str, text: str) -> None:
        """Write ``name`` whole or not at all."""
        if not self.writes:
            return
        with atomic_write(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def write_json(self, name: str, content: Any) -> None:
        """Write ``name`` as JSON, whole or not at all."""
        self.write_text(name, json.dumps(content, indent=2, default=str) + "\n")

    def check_format(self) -> None:
        """SocialxError where the format of the folder is another one than that of today."""
        path = self.path / "format.txt"
        if not path.exists():
            again = Command("train", settings=self.settings)
            raise SocialxError(self.path, "no format.txt in it, as an older version left it", f"train again: {again}")
        try:
            number = int(read_text(path, TEXT_BYTES))
        except (OSError, ValueError) as error:
            raise SocialxError(path, f"not the number of a format ({error})", NAME_A_RUN) from None
        if number != FORMAT:
            other = f"a run folder of format {number}, and this socialx knows {FORMAT}"
            raise SocialxError(self.path, other, "use the version of socialx that trained it, or train again")

    def read_json(self, name: str, kind: type = dict) -> Any:
        """Read ``name``; SocialxError if it is not there, not JSON or of another kind."""
        try:
            content = plain(json.loads(read_text(self.path / name, TEXT_BYTES)))
        except (OSError, ValueError, RecursionError) as error:
            raise SocialxError(self.path / name, f"not readable ({error})", NAME_A_RUN) from None
        if not isinstance(content, kind):
            raise SocialxError(self.path / name, "not as train writes it", NAME_A_RUN)
        return content

    def job(self) -> str:
        """The job of torchrun that began this run, empty where it was begun otherwise."""
        try:
            return read_text(self.path / "job.txt", TEXT_BYTES).strip()
        except (OSError, ValueError):
            return ""

    def write_start(
        self,
        settings: str,
        origin: dict[str, str],
        precision: Precision,
        protocol: ScoringProtocol,
        sensors: tuple[str, ...],
        job: str = "",
        fixed: Mapping[str, Any] | None = None,
        holidays: Path | None = None,
        known: DailyStats | None = None,
    ) -> None:
        """Write what a new run depends on.

        job: of torchrun, whose restarts may go on with it.  fixed: what the training fixes, by dotted key.
        holidays: the file of them.  known: of the days of its data.
        """
        if job:
            self.write_text("job.txt", f"{job}\n")
        self.write_text("format.txt", f"{FORMAT}\n")
        place = {"folder": str(Path.cwd()), "run": str(self.path.resolve())}
        content = asdict(protocol)
        content |= {"sha256": _seal(content), "settings": fixed, "place": place, "holidays_file": holidays}
        self.write_json("protocol.json", content)
        if holidays is not None:
            self.write_text("holidays.csv", read_text(holidays, TEXT_BYTES))
        self.write_json("sensors.json", sensors)
        self._write_settings(settings, origin, [environment(precision)])
        if known is not None and self.writes:
            sealed.write(self.climatology, *known.as_sealed)

    def _write_settings(self, settings: str, origin: dict[str, str], starts: list[Any]) -> None:
        self.write_text("settings.yaml", settings)
        self.write_json("settings_sources.json", origin)
        self.write_json("environment.json", starts)

    def rows(self) -> list[EpochRow]:
        """The finished epochs; none where there is no file of them."""
        if not self.metrics.exists():
            return []
        remedy = "remove it: training can go on without the rows of earlier epochs"
        with sealed.refuse_unreadable(self.metrics, "not readable", remedy):
            check, lines = TypeAdapter(EpochRow), read_text(self.metrics, TEXT_BYTES).splitlines()
            return [check.validate_json(line, strict=True) for line in lines]

    def write_metrics(self, row: EpochRow) -> None:
        """Add an epoch; a row of the same epoch or a later one, left by a start that was killed, goes."""
        if not self.writes:
            return
        rows = [asdict(each) for each in (*(old for old in self.rows() if old.epoch < row.epoch), row)]
        self.write_text(self.metrics.name, "".join(json.dumps(each) + "\n" for each in rows))
        table = io.StringIO()
        written = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
        written.writeheader()
        written.writerows(rows)
        self.write_text("metrics.csv", table.getvalue())

    def write_last(self, content: dict[str, Any]) -> None:
        """Write last.pt, whole or not at all."""
        if self.writes:
            checkpoint.save(self.last, content)

    def write_weights(self, state: dict[str, Tensor], epoch: int, validation_mae: float) -> None:
        """Write best.safetensors, whole or not at all."""
        if self.writes:
            described = {"epoch": str(epoch), "validation_mae": repr(validation_mae), "socialx": socialx.__version__}
            sealed.write(self.best, state, described)

    def write_intervals(self, intervals: ConformalIntervals) -> None:
        """Write intervals.safetensors, whole or not at all."""
        sealed.write(self.intervals, *intervals.as_sealed)

    def read_weights(self) -> RunWeights:
        """The weights of the best epoch, or of the last state where none has ended, in the host's memory.

        Raises SocialxError where they are lacking, cannot be read, or are not what training wrote.
        """
        state: Any
        if self.best.exists():
            with sealed.refuse_unreadable(self.best, "not readable weights", checkpoint.ANOTHER):
                state, described = sealed.read(self.best)
                return RunWeights(state, int(described.get("epoch", "")))
        if not self.last.exists():
            raise SocialxError(self.path, "no weights in it (no best.safetensors)", "train it, or name another run")
        learner = checkpoint.load(self.last, CPU, "learner")["learner"]
        state = learner.get("model") if isinstance(learner, dict) else None
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise SocialxError(self.last, "its weights have no names", checkpoint.ANOTHER)
        return RunWeights(state, None)

    def calibrate(
        self, model: nn.Module, data: Dataset, batch_size: int, device: torch.device, now: ScoringProtocol
    ) -> None:
        """Measure and write the intervals of the best epoch, whose weights forecasts are made with, in float32.

        The model has these weights afterwards.  now: the protocol of the data.
        """
        weights = self.read_weights()
        model.load_state_dict(weights.state)
        precision = Precision("32-true", device)
        self.write_intervals(calibrated(model, data, batch_size, precision, now, weights.fingerprint))

    def read_state(self, device: torch.device) -> dict[str, Any]:
        """The state to resume from on ``device``: learner, progress, and generators.

        Raises SocialxError where there is none, and one of ``checkpoint.UNFIT`` where its parts are something else.
        """
        return checkpoint.load(self.last, device, "learner", "progress", "random")


@dataclass(frozen=True, kw_only=True)
class TrainedRun(RunFolder):
    """A run folder and what it says of its training, which is read once.

    named: as the user named it.  own: its settings by dotted key; files that they name, except the data file, are where
    they are now.  fixed: the settings that its training fixed.  sensors: their ids in the order of the model, None:
    there is no such file.  record: what protocol.json holds beside the protocol.
    """

    named: Path
    own: dict[str, Any]
    fixed: dict[str, Any]
    protocol: ScoringProtocol
    sensors: tuple[str, ...] | None
    record: dict[str, Any]

    @classmethod
    def read(cls, folder: RunFolder, named: Path) -> Self:
        """Read what a folder says.  Raises SettingsError or SocialxError where that is not as train writes it."""
        own = {"model.patch": 1} | read_settings(folder.settings)  # what a run had before there was the setting
        record = folder.read_json("protocol.json")
        ids = folder.path / "sensors.json"
        sensors = tuple(map(str, folder.read_json(ids.name, list))) if ids.exists() else None
        protocol, fixed = _protocol_in(folder, record), record.get("settings")
        if not isinstance(fixed, dict) or not fixed:
            raise SocialxError(folder.path / "protocol.json", "not as train writes it", NAME_A_RUN)
        if sensors is not None and network_of(sensors) != protocol.network:
            found = f"it has {counted(len(sensors), 'sensor')}, not those of protocol.json in their order"
            raise SocialxError(ids, found, "copy the whole run folder again, or train again")
        run = cls(folder.path, named=named, own=own, fixed=fixed, protocol=protocol, sensors=sensors, record=record)
        return replace(run, own=own | {key: run._found(own[key]) for key in OTHER_FILES if own.get(key)})

    def _found(self, named: Any) -> Any:
        if isinstance(named, list):
            return [self._found(each) for each in named]
        return str(next(iter(self.places(named)), named)) if isinstance(named, str) else named

    def places(self, named: str) -> list[Path]:
        """Where a file may be that the settings name: different files that exist.

        Where it was in training, where it is if it moved as far as the run, in the run, beside it, and here.  A run
        that does not say where it was trained is taken for one under runs/.
        """
        run = self.path.resolve()
        folder, then = run.parent.parent, run
        match self.record.get("place"):
            case {"folder": str(trained_in), "run": str(trained)}:
                folder, then = Path(trained_in), Path(trained)
        moved = os.path.normpath(run / os.path.relpath(folder / named, then))
        found: dict[tuple[int, ...], Path] = {}
        for place in (folder / named, Path(moved), run / named, run.parent / named, Path(named)):
            with suppress(OSError, ValueError):  # nothing is there
                found[file_signature(place)[:2]] = place  # of two names of a file the one that was typed is last
        return list(found.values())

    def own_file(self, named: str) -> Path | None:
        """Where the data file is that the settings name; None: nowhere.  Of several that with the training's readings.

        Raises SocialxError for several that have them and are not the same.
        """
        places = self.places(named)
        if len(places) < 2:
            return next(iter(places), None)
        then, whole = self.protocol, dict[str, Path]()
        for place in places:
            with suppress(SocialxError):
                stores = {name: open_store(place, name) for name in (*then.targets, *then.inputs)}
                if self.has_readings_of_training(stores):
                    whole.setdefault(combine_checksums([store.checksum for store in stores.values()]), place)
        if len(whole) > 1:
            both = " and ".join(map(str, whole.values()))
            found = f"{both} have the readings that {self.path} was trained on, and differ in others"
            raise SocialxError(named, found, f"name one of them with {Argument('data.path')}")
        return next(iter(whole.values()), places[0])

    def has_readings_of_training(self, stores: Mapping[str, Store]) -> bool:
        """Whether these features of a file have the readings of the training; more rows and sensors may be there."""
        then = self.protocol
        ids, span = self.sensors or next(iter(stores.values())).sensors.ids, (then.first_time, then.last_time)
        names = dict.fromkeys((*then.targets, *then.inputs))
        found = combine_checksums([stores[name].checksum_of(ids, *span) for name in names])
        return found in (then.checksum, self.record.get("excerpt"))

    def check_same(self, now: ScoringProtocol, key: str, path: Path | None, argument: Argument) -> None:
        """SocialxError where ``key`` of the protocol ``now`` is not this run's own: ``path`` is then another file."""
        then, name = getattr(self.protocol, key), {"checksum": "data"}.get(key, key)
        if then == getattr(now, key):
            return
        if then is None:
            raise SocialxError(path, f"{self.path} was trained without {name}", f"leave {argument} out")
        where, other = (path, "not") if path else (f"no {name}", "without")
        remedy = f"name that file with {argument}"
        raise SocialxError(where, f"{other} the {name} that {self.path} was trained on", remedy)

    def write_resumption(self, settings: str, origin: dict[str, str], precision: Precision) -> None:
        """Write what a run that goes on depends on; its own values keep the origin of its first start."""
        first = self.read_json("settings_sources.json")  # all is read before anything is written
        before = self.read_json("environment.json", list) if (self.path / "environment.json").exists() else []
        kept = {k: first.get(k, v) if v == str(self.settings) else v for k, v in origin.items()}
        self._write_settings(settings, kept, [*before, environment(precision)])

    def read_intervals(self, weights: str) -> ConformalIntervals:
        """The intervals of the weights with this fingerprint, in the host's memory.

        Raises SocialxError where there are none, they are damaged, or are those of other weights.
        """
        again = Command("calibrate", self.path)
        if not self.intervals.exists():
            raise SocialxError(self.path, "it has no prediction intervals", f"make them with {again}")
        with sealed.refuse_unreadable(self.intervals, "not readable intervals", f"make them anew with {again}"):
            intervals = ConformalIntervals.from_sealed(*sealed.read(self.intervals))
            found, of_run = intervals.protocol, self.protocol
            if (found.horizon, list(found.targets)) != (of_run.horizon, list(of_run.targets)):
                raise ValueError("they are of another horizon or other targets")
        if intervals.weights != weights:
            other = "made for other weights than those of the run"
            raise SocialxError(self.intervals, other, f"make them anew with {again}")
        return intervals

    def read_known(self) -> DailyStats | None:
        """What the run knows of the days of its data; None where it has no such file.

        Raises SocialxError where it is damaged.
        """
        if not self.climatology.exists() or self.sensors is None:
            return None
        remedy = "copy the whole run folder again, or train again"
        with sealed.refuse_unreadable(self.climatology, "not a readable climatology", remedy):
            tensors, described = sealed.read(self.climatology)
            known = DailyStats.from_sealed({name: each.float().numpy() for name, each in tensors.items()}, described)
            if known.sums.shape[2] != len(self.sensors):
                raise ValueError(f"it is of {known.sums.shape[2]} sensors, and sensors.json has {len(self.sensors)}")
        return known

    def holidays(self, named: str | None, origin: str) -> str | None:
        """Where the holidays are that settings name: those of the run in the file of its training, or in its copy.

        origin: where the name stands, the run's own file of settings or another place.
        """
        file = self.record.get("holidays_file")
        if named is None or origin != str(self.settings) or not isinstance(file, str):
            return named
        return file if os.access(file, os.R_OK) else str(self.path / "holidays.csv")


def _protocol_in(folder: RunFolder, record: Mapping[str, Any]) -> ScoringProtocol:
    """What the scores of a run depend on; SocialxError where that is not what its training wrote."""
    path, again = folder.path / "protocol.json", f"train again: {Command('train', settings=folder.settings)}"
    seal = _seal(record)
    try:
        protocol = ScoringProtocol.from_dict(record)
    except ValueError as error:
        raise SocialxError(path, str(error), again) from None
    if lacking := [name for name in (*protocol.targets, *protocol.inputs) if name not in protocol.scaler]:
        raise SocialxError(path, f"no mean and deviation of {', '.join(dict.fromkeys(lacking))}", again)
    if record.get("sha256", seal) != seal:
        raise SocialxError(path, "not as its training wrote it", f"copy the whole run folder again, or {again}")
    return protocol


def _seal(protocol: Mapping[str, Any]) -> str:
    """sha256 of a protocol, without what else its file says."""
    own = {each.name: protocol[each.name] for each in fields(ScoringProtocol) if each.name in protocol}
    return sealed.fingerprint({}, sealed.as_text(own))


@contextmanager
def new_run(path: Path, overwrite: bool = False) -> Iterator[RunFolder]:
    """A new run folder, locked until the block ends.

    One that holds a run is refused without ``overwrite``, which clears that run's files; one that holds other files is
    always refused.  A folder that is made here goes again where the block fails before it wrote a file.
    """
    another = f"name a new {Argument('trainer.run_dir')}"
    if path.exists() and not path.is_dir():
        raise SocialxError(path, "a file, where a run needs a folder", another)
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_for(path))
        except OSError as error:
            helps = "check the folder and its space"
            raise SocialxError(path, f"cannot be written ({error.strerror})", helps) from None
        stack.enter_context(file_lock(path))
        files = _files_of_a_run(path)
        if files:
            if not overwrite:
                others = f"{Argument('overwrite', True)}, {Argument('resume', path)}, or another "
                raise SocialxError(path, "holds a run already", f"{others}{Argument('trainer.run_dir')}")
        elif not all(LEFT_BY_A_KILL.fullmatch(each.name) for each in path.iterdir()):
            raise SocialxError(path, "a folder with other files in it", another)
        _refuse_folders(path, another)
        for each in files:
            each.unlink()
        remove_stale_files(path)
        yield RunFolder(path)


def _files_of_a_run(path: Path) -> list[Path]:
    """What lies in a folder under the name of a file of a run."""
    return [each for each in path.iterdir() if each.name in NAMES]


def _refuse_folders(path: Path, remedy: Remedy) -> None:
    """SocialxError where a folder stands in the place of a file that training would write at its end."""
    for each in _files_of_a_run(path):
        if each.is_dir() and not each.is_symlink():
            raise SocialxError(each, "a folder, where a run has a file", remedy)


@contextmanager
def old_run(run: RunFolder) -> Iterator[RunFolder]:
    """The same run folder, locked until the block ends: nobody else trains in it."""
    with file_lock(run.path):
        remove_stale_files(run.path)
        yield run


def folder_of(path: Path, remedy: str = "train writes one under runs/") -> RunFolder:
    """An existing run folder, or that of a run that comes with the package, by its name; SocialxError if it is none."""
    if path.parts == (path.name,) and not path.exists() and path.name in {each.name for each in TRAINED.iterdir()}:
        path = TRAINED / path.name
    run = RunFolder(path)
    check_name(run.settings)
    if not run.settings.is_file() or not run.settings.stat().st_size:
        raise SocialxError(path, "not a run folder (no settings.yaml)", remedy)
    run.check_format()
    return run


def open_run(path: Path, remedy: str = "train writes one under runs/") -> TrainedRun:
    """``folder_of`` a run, and what it says of its training."""
    return TrainedRun.read(folder_of(path, remedy), path)


def open_to_resume(path: Path) -> TrainedRun:
    """The same of a run that can go on: its last state is there."""
    again = f"{Argument('trainer.run_dir', path)} {Argument('overwrite', True)}"
    folder = folder_of(path, f"train again, with {again} where a training ended before its first save")
    if not folder.last.is_file():  # a run with weights is not replaced
        place = {} if folder.best.exists() else {"trainer.run_dir": path, "overwrite": True}
        start = Command("train", settings=folder.settings, **place)
        raise SocialxError(path, "no last.pt in it", f"start anew: {start}")
    _refuse_folders(folder.path, "remove or rename it")
    return TrainedRun.read(folder, path)


@contextmanager
def folder_to_train(path: Path, old: TrainedRun | None, overwrite: bool, writes: bool) -> Iterator[RunFolder]:
    """The folder of a training, ``new_run`` or ``old_run``; of several processes only the one that writes locks it."""
    if not writes:
        yield replace(old or RunFolder(path), writes=False)
        return
    with old_run(old) if old else new_run(path, overwrite) as run:
        yield run


def restarted_run(path: Path | None, job: str) -> tuple[TrainedRun | None, bool]:
    """The run that a job was training when one of its processes ended and torchrun started all of them again.

    None where it had no state yet, or where the folder holds the run of another job; and whether it is of this job.
    Raises SettingsError where nobody named the folder.
    """
    if path is None:
        unknown = "started again after a process had ended, and nobody named the run folder"
        raise SettingsError("training", unknown, f"give {Argument('trainer.run_dir', 'RUN')}, so that it goes on")
    if not job or RunFolder(path).job() != job:
        return None, False
    return (open_to_resume(path), True) if (path / "last.pt").exists() else (None, True)
