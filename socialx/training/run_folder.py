"""A run folder: everything needed to repeat, resume, score or use a run.

format.txt         format number of the folder
settings.yaml      all settings, merged; training with this file repeats the run
settings_sources.json  the source of each setting
environment.json   versions, device, precision in effect, command line; one entry per start
sensors.json       sensor ids in model order
protocol.json      data, checksum, split, scaler and seed of the scores, with sha256; settings that training fixed, and
                    the folder; for a bundled run the checksum of the bundled excerpt
holidays.csv       the holiday list, if a file
metrics.jsonl      one line per epoch; the same as metrics.csv
best.safetensors   weights of the epoch with the best validation MAE, with sha256
climatology.safetensors  observations by day type and slot as decaying sums, the last day apart; with sha256
intervals.safetensors  prediction intervals for the best weights, with sha256
last.pt            everything that resuming needs
job.txt            the torchrun job that began the run, whose restarts resume the run

A run folder may come from a stranger: every read is bounded in size and checked before use.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Any, Self
from zipfile import BadZipFile, ZipFile

import torch
from pydantic import ConfigDict, Field, TypeAdapter
from torch import Tensor

from socialx.core import sealed_tensors as sealed
from socialx.core.disk import (
    atomic_write,
    check_name,
    check_regular,
    clean_folder,
    file_lock,
    file_signature,
    folder_for,
    read_text,
)
from socialx.core.environment import environment
from socialx.core.errors import Argument, Command, Remedy, SettingsError, SocialxError, counted, in_short, plain
from socialx.core.notebook import Named
from socialx.core.precision import Precision
from socialx.core.version import PACKAGE, __version__
from socialx.data.climatology import DailyStats
from socialx.dataset import combine_checksums
from socialx.files.store.store import Store
from socialx.scoring.intervals import ConformalIntervals
from socialx.scoring.protocol import OWN_DATA, ScoringProtocol, Seen, network_checksum
from socialx.settings.file import read_settings

FORMAT = 2  # the number in format.txt
TRAINED = PACKAGE / "trained"  # bundled runs
NAME_A_RUN = "name a folder that train wrote, or a shipped run: zero-shot, metr-la"
NAMES = (
    *("format.txt", "settings.yaml", "settings_sources.json", "environment.json", "sensors.json", "protocol.json"),
    *("metrics.jsonl", "metrics.csv", "best.safetensors", "intervals.safetensors", "last.pt", "job.txt"),
    *("holidays.csv", "climatology.safetensors"),
)
OTHER_FILES = ("data.extra_data", "pooling.distances", "trainer.teacher")  # settings that name other files
LEFT_BY_A_KILL = re.compile(rf"\.({'|'.join(map(re.escape, NAMES))})\..*\.tmp")  # a temporary file
ANCESTORS = ("trainer.teacher", "trainer.init_from", "data.extra_data")  # settings that name further rows
TEXT_BYTES = 16 << 20  # limit for text files: 100,000 sensors and 10,000 epochs need less
CPU = torch.device("cpu")
ANOTHER = "train again or name another run"
# What zipfile, pickle and torch raise for other files than last.pt, and torch for the state of another model.
UNFIT: tuple[type[Exception], ...] = (OSError, EOFError, RuntimeError, LookupError, AttributeError)
UNFIT += (TypeError, ValueError, BadZipFile, UnpicklingError)

Count = Annotated[int, Field(ge=0, lt=1 << 53)]


@dataclass(frozen=True)
class EpochRow(Named):
    """Metrics of an epoch; errors have the first target's unit."""

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
    """A state dict and the epoch of these weights; None before the first epoch ended."""

    state: dict[str, Tensor]
    epoch: int | None

    @property
    def fingerprint(self) -> str:
        """A hash that identifies the weights."""
        return sealed.fingerprint(self.state, self.epoch)


@dataclass(frozen=True)
class RunFolder:
    """The paths inside a run folder, and methods to write files.  writes: False on all ranks but rank 0."""

    path: Path
    writes: bool = True

    @property
    def settings(self) -> Path:
        """settings.yaml, with all settings of the run."""
        return self.path / "settings.yaml"

    @property
    def version(self) -> tuple[object, ...]:
        """A key that changes when the run's files do (another training, a moved link), to notice when to load again."""
        names = ("settings.yaml", "best.safetensors", "intervals.safetensors", "climatology.safetensors")
        files = [self.path / name for name in names]
        return self.path.resolve(), *(file_signature(file) for file in files if file.exists())

    def write_text(self, name: str, text: str) -> None:
        """Write ``text`` to the file ``name`` in the folder atomically, on the writing rank only."""
        if self.writes:
            with atomic_write(self.path / name) as temporary:
                temporary.write_text(text, encoding="utf-8")

    def write_json(self, name: str, content: Any) -> None:
        """Write ``content`` as JSON to the file ``name`` in the folder atomically, on the writing rank only."""
        self.write_text(name, json.dumps(content, indent=2, default=str) + "\n")

    def check_format(self) -> None:
        """Raise SocialxError where the folder has an older or newer format."""
        path = self.path / "format.txt"
        if not path.exists():
            again = Command("train", settings=self.settings)
            problem = "format.txt is missing, as in older versions"
            raise SocialxError("run.format-missing", self.path, problem, f"train again: {again}")
        try:
            number = int(read_text(path, TEXT_BYTES))
        except (OSError, ValueError) as error:
            problem = f"the file does not hold a format number ({error})"
            raise SocialxError("run.format-text", path, problem, NAME_A_RUN) from None
        if number != FORMAT:
            other = f"the run folder has format {number}, and this socialx reads {FORMAT}"
            remedy = "use the version of socialx that trained the run, or train again"
            raise SocialxError("run.format", self.path, other, remedy)

    def read_json(self, name: str, kind: type = dict) -> Any:
        """Return the JSON in file ``name``.  Raises SocialxError where missing, invalid or not a ``kind`` (dict)."""
        try:
            content = plain(json.loads(read_text(self.path / name, TEXT_BYTES)))
        except (OSError, ValueError, RecursionError) as error:
            raise SocialxError("run.json", self.path / name, f"the file is unreadable ({error})", NAME_A_RUN) from None
        if not isinstance(content, kind):
            raise SocialxError("run.other", self.path / name, "the content differs from what train writes", NAME_A_RUN)
        return content

    def write_format(self, job: str) -> None:
        """Write format.txt of a new run, and the torchrun job whose restarts may resume the run to job.txt."""
        if job:
            self.write_text("job.txt", f"{job}\n")
        self.write_text("format.txt", f"{FORMAT}\n")

    def write_protocol(
        self,
        protocol: ScoringProtocol,
        fixed: Mapping[str, Any],
        holidays: Path | None,
        seen: Sequence[Seen],
        places: Mapping[str, Sequence[str]],
    ) -> None:
        """Write protocol.json, and holidays.csv, for a new run.

        fixed: settings that training fixes, by dotted key.  holidays: the holiday file.  seen: rows that reach the
        weights.  places: each sensor's place by id.
        """
        folders = {"folder": str(Path.cwd()), "run": str(self.path.resolve())}
        content = asdict(protocol)
        content |= {"sha256": _seal(content), "settings": fixed, "place": folders, "holidays_file": holidays}
        self.write_json("protocol.json", content | {"seen": [asdict(rows) for rows in seen], "places": places})
        if holidays is not None:
            self.write_text("holidays.csv", read_text(holidays, TEXT_BYTES))

    def write_settings(self, settings: str, origin: dict[str, str], starts: list[Any]) -> None:
        """Write settings (YAML text), each setting's source, and every start's environment."""
        self.write_text("settings.yaml", settings)
        self.write_json("settings_sources.json", origin)
        self.write_json("environment.json", starts)

    def write_resumption(self, settings: str, origin: dict[str, str], precision: Precision) -> None:
        """Write settings (YAML), sources and environment of a resumed run; unchanged values keep their first source."""
        first = self.read_json("settings_sources.json")  # read everything before writing
        before = self.read_json("environment.json", list) if (self.path / "environment.json").exists() else []
        kept = {k: first.get(k, v) if v == str(self.settings) else v for k, v in origin.items()}
        self.write_settings(settings, kept, [*before, environment(precision)])

    def rows(self) -> list[EpochRow]:
        """Return the metrics of all finished epochs; an empty list without a metrics file."""
        metrics = self.path / "metrics.jsonl"
        if not metrics.exists():
            return []
        remedy = "remove the file; training resumes without the earlier rows"
        with sealed.refuse_unreadable(metrics, "the file is unreadable", remedy):
            check, lines = TypeAdapter(EpochRow), read_text(metrics, TEXT_BYTES).splitlines()
            return [check.validate_json(line, strict=True) for line in lines]

    def write_metrics(self, row: EpochRow) -> None:
        """Add an epoch to both metrics files, and drop rows of this and later epochs, which a killed training left."""
        if not self.writes:
            return
        rows = [asdict(kept) for kept in (*(old for old in self.rows() if old.epoch < row.epoch), row)]
        self.write_text("metrics.jsonl", "".join(json.dumps(kept) + "\n" for kept in rows))
        table = io.StringIO()
        written = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
        written.writeheader()
        written.writerows(rows)
        self.write_text("metrics.csv", table.getvalue())

    def write_last(self, content: dict[str, Any]) -> None:
        """Write learner, progress and random states (``content``) to last.pt atomically, to resume from."""
        if self.writes:
            with atomic_write(self.path / "last.pt") as temporary:
                torch.save(content, temporary)

    @contextmanager
    def open_last(self, device: torch.device) -> Iterator[dict[str, Any]]:
        """Yield the content from last.pt, with tensors on ``device``, without running code from the file.

        The file is a zip archive with a CRC per tensor, which torch ignores, so the CRCs are compared first.  Raises
        SocialxError where the file is unreadable, and where the block cannot use the content for another model.
        """
        path = self.path / "last.pt"
        try:
            check_regular(path)
            with ZipFile(path) as archive:
                if damaged := archive.testzip():
                    raise ValueError(f"the CRC of {damaged} differs")
            yield torch.load(path, map_location=device, weights_only=True)
        except torch.OutOfMemoryError:
            raise
        except UNFIT as error:
            problem = f"the checkpoint is unreadable ({in_short(error, 100)})"
            raise SocialxError("checkpoint.unreadable", path, problem, ANOTHER) from None

    def write_weights(self, state: dict[str, Tensor], epoch: int, validation_mae: float) -> None:
        """Write the best weights (``state``) to best.safetensors atomically, with their epoch and validation MAE."""
        if self.writes:
            described = {"epoch": str(epoch), "validation_mae": repr(validation_mae), "socialx": __version__}
            sealed.write(self.path / "best.safetensors", state, described)

    def write_intervals(self, intervals: ConformalIntervals) -> None:
        """Write prediction intervals to intervals.safetensors atomically."""
        sealed.write(self.path / "intervals.safetensors", *intervals.as_sealed)

    def write_climatology(self, climatology: DailyStats) -> None:
        """Write daily statistics of the training data to climatology.safetensors atomically."""
        if self.writes:
            sealed.write(self.path / "climatology.safetensors", *climatology.as_sealed)

    def read_weights(self) -> RunWeights:
        """Return the best weights, else the last, on the host.  Raises SocialxError where missing or invalid."""
        best = self.path / "best.safetensors"
        if best.exists():
            with sealed.refuse_unreadable(best, "the weights are unreadable", ANOTHER):
                state, described = sealed.read(best)
                return RunWeights(state, int(described.get("epoch", "")))
        if not (self.path / "last.pt").exists():
            remedy = "train the run, or name another one"
            raise SocialxError("run.no-weights", self.path, "the run has no weights (no best.safetensors)", remedy)
        with self.open_last(CPU) as content:
            state = dict(content["learner"]["model"])
        return RunWeights(state, None)


@dataclass(frozen=True, kw_only=True)
class TrainedRun(RunFolder):
    """A run folder with the records of its training, read once.

    named: the path as the user typed the run.  values: settings by dotted key; files except the data file have their
    current paths.  fixed: settings that training fixed.  sensors: sensor ids in model order; None without sensors.json.
    record: the content of protocol.json, with keys besides the protocol.
    """

    named: Path
    values: dict[str, Any]
    fixed: dict[str, Any]
    protocol: ScoringProtocol
    sensors: tuple[str, ...] | None
    record: dict[str, Any]

    @classmethod
    def read(cls, folder: RunFolder, named: Path) -> Self:
        """Return the run in ``folder``; named: as typed.  Raises SettingsError or SocialxError for invalid content."""
        values = {"model.patch": 1} | read_settings(folder.settings)  # the value before the setting existed
        record = folder.read_json("protocol.json")
        ids = folder.path / "sensors.json"
        sensors = tuple(map(str, folder.read_json(ids.name, list))) if ids.exists() else None
        protocol, fixed = _read_protocol(folder, record), record.get("settings")
        if not isinstance(fixed, dict) or not fixed:
            problem = "the content differs from what train writes"
            raise SocialxError("run.other", folder.path / "protocol.json", problem, NAME_A_RUN)
        if sensors is not None and network_checksum(sensors) != protocol.network:
            problem = f"the list of {counted(len(sensors), 'sensor')} differs from protocol.json"
            raise SocialxError("run.sensors", ids, problem, "copy the whole run folder again, or train again")
        run = cls(
            folder.path, named=named, values=values, fixed=fixed, protocol=protocol, sensors=sensors, record=record
        )
        return replace(run, values=values | {key: run._locate(values[key]) for key in OTHER_FILES if values.get(key)})

    def _locate(self, named: Any) -> Any:
        if isinstance(named, list):
            return [self._locate(name) for name in named]
        return str(self.find_file(named) or named) if isinstance(named, str) else named

    def find_file(self, named: str) -> Path | None:
        """Return where a file that the settings name is now, or None.

        The file lies where it lay as seen from the run, where it lay in training, or next to the run.  A name that
        leads there from the current folder stays as it is.
        """
        run = self.path.resolve()
        folder, trained_run = run.parent, run
        match self.record.get("place"):
            case {"folder": str(trained_in), "run": str(trained)}:
                folder, trained_run = Path(trained_in), Path(trained)
        moved = Path(os.path.normpath(run / os.path.relpath(folder / named, trained_run)))
        file = next(filter(os.path.exists, (moved, folder / named, run.parent / named)), None)
        here = Path(named)
        return here if file and here.exists() and here.samefile(file) else file

    def has_training_data(self, stores: Mapping[str, Store]) -> bool:
        """Return whether ``stores`` (feature -> data) hold the training data; more rows and sensors are allowed."""
        protocol = self.protocol
        ids, span = self.sensors or next(iter(stores.values())).sensors.ids, (protocol.first_time, protocol.last_time)
        names = dict.fromkeys((*protocol.targets, *protocol.inputs))
        checksum = combine_checksums([stores[name].subset_checksum(ids, *span) for name in names])
        return checksum in (protocol.checksum, self.record.get("excerpt"))

    def check_same(self, protocol: ScoringProtocol, key: str, path: Path | None, argument: Argument) -> None:
        """Raise SocialxError where the field ``key`` of ``protocol`` differs from this run's protocol.

        path: the file in use for the field, or None without a file.  argument: names the file, as advice in the error.
        """
        trained, name = getattr(self.protocol, key), {"checksum": "data"}.get(key, key)
        if trained == getattr(protocol, key):
            return
        if trained is None:
            raise SocialxError("run.without", path, f"{self.path} was trained without {name}", f"leave {argument} out")
        problem = f"{self.path} was trained {f'on other {name}' if path else f'with {name}, which are missing here'}"
        raise SocialxError("run.with-other", path or "", problem, f"name the file of the training with {argument}")

    @property
    def places(self) -> dict[str, tuple[str, ...]] | None:
        """Sensor places by id, as ``sensor_places`` gives them; unset in a run from an earlier version."""
        stored = self.record.get("places")
        return {name: tuple(degrees) for name, degrees in stored.items()} if isinstance(stored, dict) else None

    @property
    def seen(self) -> tuple[Seen, ...]:
        """Rows that reached the weights; unknown ones where an earlier version left out the ancestors."""
        if isinstance(stored := self.record.get("seen"), list):
            return tuple(Seen(**row) for row in stored)
        values = [self.values.get(key) or () for key in ANCESTORS]
        names = [name for value in values for name in ([value] if isinstance(value, str) else value)]
        protocol = self.protocol
        span = (protocol.first_time, protocol.last_time, protocol.timezone)
        return Seen(OWN_DATA, protocol.network, protocol.positions, *span), *(Seen(str(name)) for name in names)

    def read_intervals(self, weights: str) -> ConformalIntervals:
        """Return the prediction intervals for the weights with this fingerprint, in host memory.

        Raises SocialxError where the intervals are missing, damaged or made for other weights.
        """
        again, path = Command("calibrate", self.path), self.path / "intervals.safetensors"
        if not path.exists():
            raise SocialxError("run.no-intervals", self.path, "the run has no prediction intervals", again)
        with sealed.refuse_unreadable(path, "the intervals are unreadable", again):
            intervals = ConformalIntervals.from_sealed(*sealed.read(path))
            protocol, trained = intervals.protocol, self.protocol
            if (protocol.horizon, list(protocol.targets)) != (trained.horizon, list(trained.targets)):
                raise ValueError("the intervals have another horizon or other targets")
        if intervals.weights != weights:
            raise SocialxError("run.old-intervals", path, "the intervals were made for other weights", again)
        return intervals

    def read_climatology(self) -> DailyStats | None:
        """Return the daily statistics that the run stores, or None.  Raises SocialxError for a damaged file."""
        path = self.path / "climatology.safetensors"
        if not path.exists() or self.sensors is None:
            return None
        remedy = "copy the whole run folder again, or train again"
        with sealed.refuse_unreadable(path, "the climatology is unreadable", remedy):
            tensors, described = sealed.read(path)
            stats = DailyStats.from_sealed({name: part.float().numpy() for name, part in tensors.items()}, described)
            if stats.sums.shape[2] != len(self.sensors):
                raise ValueError(f"{stats.sums.shape[2]} sensors, and sensors.json has {len(self.sensors)}")
        return stats

    def holidays(self, named: str | None, origin: str) -> str | None:
        """Return the path of the holiday file for a run: the training file, or the copy in the run folder.

        named, origin: the path in the settings, and the setting's source; a path from another source than the run's own
        settings file is returned unchanged.
        """
        file = self.record.get("holidays_file")
        if named is None or origin != str(self.settings) or not isinstance(file, str):
            return named
        return file if os.access(file, os.R_OK) else str(self.path / "holidays.csv")


def _read_protocol(folder: RunFolder, record: Mapping[str, Any]) -> ScoringProtocol:
    """Return the protocol in ``record`` (protocol.json).  Raises SocialxError where invalid or changed since."""
    path, again = folder.path / "protocol.json", f"train again: {Command('train', settings=folder.settings)}"
    seal = _seal(record)
    try:
        protocol = ScoringProtocol.from_dict(record)
    except ValueError as error:
        raise SocialxError("run.protocol", path, str(error), again) from None
    if lacking := [name for name in (*protocol.targets, *protocol.inputs) if name not in protocol.scaler]:
        raise SocialxError("run.scaler", path, f"the scaler lacks {', '.join(dict.fromkeys(lacking))}", again)
    if record.get("sha256", seal) != seal:
        problem = "the file was changed after training"
        raise SocialxError("run.changed", path, problem, f"copy the whole run folder again, or {again}")
    return protocol


def _seal(protocol: Mapping[str, Any]) -> str:
    """Return the sha256 of a record's protocol fields, by which a later change to protocol.json is noticed."""
    values = {field.name: protocol[field.name] for field in fields(ScoringProtocol) if field.name in protocol}
    return sealed.fingerprint({}, sealed.as_text(values))


@contextmanager
def lock_new_run(path: Path, overwrite: bool = False) -> Iterator[RunFolder]:
    """Create a run folder, locked until the block ends.

    A folder with a run needs ``overwrite``, which deletes the files of the run; a folder with other files is refused.
    A folder that is created here is removed where the block fails before writing a file.
    """
    another = f"name a new {Argument('trainer.run_dir')}"
    if path.exists() and not path.is_dir():
        raise SocialxError("run.folder-is-file", path, "a run needs a folder, and this is a file", another)
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_for(path))
        except OSError as error:
            helps = "check permissions and free space"
            problem = f"the folder cannot be written ({error.strerror})"
            raise SocialxError("run.folder-unwritable", path, problem, helps) from None
        stack.enter_context(file_lock(path))
        files = [file for file in path.iterdir() if file.name in NAMES]
        if files:
            if not overwrite:
                others = f"add {Argument('overwrite', True)} or {Argument('resume', path)}, or name another "
                problem = "the folder holds a run already"
                raise SocialxError("run.exists", path, problem, f"{others}{Argument('trainer.run_dir')}")
        elif not all(LEFT_BY_A_KILL.fullmatch(file.name) for file in path.iterdir()):
            raise SocialxError("run.other-files", path, "the folder holds other files", another)
        _refuse_folders(path, another)
        for file in files:
            file.unlink()
        clean_folder(path)
        yield RunFolder(path)


def _refuse_folders(path: Path, remedy: Remedy) -> None:
    """Raise SocialxError where a folder has the name of a run file, which would fail at the end of training."""
    for file in (path / name for name in NAMES):
        if file.is_dir() and not file.is_symlink():
            raise SocialxError("run.is-folder", file, "a run has a file of this name, and this is a folder", remedy)


@contextmanager
def lock_run(run: RunFolder) -> Iterator[RunFolder]:
    """Lock an existing run folder until the block ends, so that training is exclusive."""
    with file_lock(run.path):
        clean_folder(run.path)
        yield run


def find_run_folder(path: Path, remedy: str = NAME_A_RUN) -> RunFolder:
    """Return an existing run folder, or a bundled run by name.  Raises SocialxError with ``remedy`` otherwise."""
    if path.parts == (path.name,) and not path.exists() and path.name in {folder.name for folder in TRAINED.iterdir()}:
        path = TRAINED / path.name
    run = RunFolder(path)
    check_name(run.settings)
    if not run.settings.is_file() or not run.settings.stat().st_size:
        raise SocialxError("run.not", path, "this is not a run folder (no settings.yaml)", remedy)
    run.check_format()
    return run


def open_run(path: Path) -> TrainedRun:
    """Return the run at a path, or a bundled run by name, with the records of training."""
    return TrainedRun.read(find_run_folder(path), path)


def open_to_resume(path: Path) -> TrainedRun:
    """Return the run at a path, ready to train further.  Raises SocialxError without last.pt."""
    again = Command("", **{"trainer.run_dir": path, "overwrite": True})
    folder = find_run_folder(path, f"train again, with {again} where a training ended before its first save")
    if not (folder.path / "last.pt").is_file():  # a run with weights is kept
        target = {} if (folder.path / "best.safetensors").exists() else {"trainer.run_dir": path, "overwrite": True}
        start = Command("train", settings=folder.settings, **target)
        raise SocialxError("resume.no-state", path, "last.pt is missing", f"start again: {start}")
    _refuse_folders(folder.path, "remove or rename it")
    return TrainedRun.read(folder, path)


@contextmanager
def lock_folder(path: Path, old: TrainedRun | None, overwrite: bool, writes: bool) -> Iterator[RunFolder]:
    """Yield ``old`` to resume, or a new run ``path`` (``overwrite``: replace a run), locked if this rank ``writes``."""
    if not writes:
        yield replace(old or RunFolder(path), writes=False)
        return
    with lock_run(old) if old else lock_new_run(path, overwrite) as run:
        yield run


def find_restarted_run(path: Path | None, job: str) -> tuple[TrainedRun | None, bool]:
    """Return the run that a restarted torchrun job was training, and whether the folder belongs to the job.

    The run is None before the first saved state, and for another job. Raises SettingsError without a folder name.
    """
    if path is None:
        unknown = "training restarted after a process had ended, and needs the name of the run folder"
        raise SettingsError("train.restarted", "", unknown, f"add {Argument('trainer.run_dir', 'RUN')}")
    begun_by = path / "job.txt"
    try:
        begun = bool(job) and read_text(begun_by, TEXT_BYTES).strip() == job
    except (OSError, ValueError):
        begun = False
    if not begun:
        return None, False
    return (open_to_resume(path), True) if (path / "last.pt").exists() else (None, True)
