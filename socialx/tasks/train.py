"""``train``: settings -> a trained run in a folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Unpack

import torch

import socialx
from socialx.core.environment import environment
from socialx.core.errors import Argument, Command, Message, SettingsError, counted
from socialx.core.help import Help, Output, with_help
from socialx.core.notebook import ResultRepr, is_frame, names_in
from socialx.core.precision import Precision
from socialx.core.progress import Callback, Start, emit, note
from socialx.dataset import Fit
from socialx.dataset.loaders import Loader
from socialx.drawing.canvas import plot_lines
from socialx.files.sources.holidays import holiday_file
from socialx.scoring.intervals import fit_intervals
from socialx.scoring.protocol import OtherData, ScoringProtocol, sensor_places
from socialx.settings.arguments import SettingsArguments
from socialx.settings.kinds import CustomModel, find_model
from socialx.settings.layers import Config, ConfigLayers, flat, invariants, run_settings, sees_gpu, to_yaml
from socialx.settings.schema import RESUME, Settings
from socialx.tasks.build import Experiment, build
from socialx.tasks.memory import RESUMING, TRAINING, when_memory_runs_out
from socialx.tasks.trained_model import load_run_settings, load_start_weights
from socialx.tasks.training_data import add_teacher_forecasts, find_seen_rows, load_extra_networks, make_loaders
from socialx.training.learner import Learner, count_steps
from socialx.training.loggers import log_epochs_to
from socialx.training.loop import fit, resume_training
from socialx.training.process_group import SINGLE, ProcessGroup, init_process_group
from socialx.training.run_folder import EpochRow, TrainedRun, find_restarted_run, lock_folder, open_run, open_to_resume

COMPILED_FROM = 40_000  # steps: compiling takes up to 40 s, and saves about 1 ms of each on CUDA, both estimated
SMALL_ON_CPU = 128  # width x blocks of the largest model with a reasonable training time on a CPU


@dataclass(frozen=True, repr=False)
class Run(ResultRepr):
    """A trained model in its run folder, with the finished epochs."""

    path: Path
    settings: Settings
    protocol: ScoringProtocol
    epochs: tuple[EpochRow, ...]
    interrupted: bool = False

    @property
    def best(self) -> EpochRow | None:
        """The epoch with the lowest validation MAE, whose weights are kept; None before the first epoch ended."""
        maes = [math.inf if row.validation_mae is None else row.validation_mae for row in self.epochs]
        return self.epochs[maes.index(min(maes))] if maes else None

    def __str__(self) -> str:
        return str(self.path)

    def headline(self) -> str:
        """Return the folder, the number of epochs and the best epoch."""
        best = self.best
        line = f"{self.path}, {len(self.epochs)} of {self.settings.trainer.max_epochs} epochs"
        if best is None or best.validation_mae is None:
            return line
        return f"{line}, best validation MAE {best.validation_mae:.4f} {self.unit} in epoch {best.epoch}"

    def table(self) -> list[dict[str, Any]]:
        """Return the epochs."""
        return [asdict(row) for row in self.epochs]

    @property
    def unit(self) -> str:
        """The unit of the first target and the errors."""
        return self.protocol.unit

    @property
    def history(self) -> Any:
        """A pandas frame with a row per epoch."""
        return self._frame()

    @cached_property
    def model(self) -> socialx.ExportModel:
        """The trained torch module, of ``load_model``."""
        return socialx.load_model(self)

    def predict(self, data: Any = None, **arguments: Any) -> socialx.Forecast:
        """Return ``socialx.predict`` of this run."""
        return socialx.predict(self, data, **arguments)

    def evaluate(self, data: Any = None, **arguments: Any) -> socialx.Evaluation:
        """Return ``socialx.evaluate`` of this run."""
        return socialx.evaluate(self, data, **arguments)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw training and validation MAE by epoch, also into a .png, .svg or .pdf, and return the figure."""
        rows, numbers = self.table(), [row.epoch for row in self.epochs]
        lines = {name: (numbers, [row[f"{name}_mae"] for row in rows]) for name in ("train", "validation")}
        return plot_lines(path, ("Learning curves", str(self.path)), lines, xlabel="epoch", ylabel=f"MAE, {self.unit}")


def run_names(runs: str | Path | Run | Iterable[str | Path | Run]) -> list[str]:
    """Return run folders or forecast files as text.  Raises SettingsError for another type."""
    several = list(runs) if isinstance(runs, Iterable) and not isinstance(runs, str) and not is_frame(runs) else [runs]
    for run in several:
        if not isinstance(run, str | PathLike | Run):
            way = "pass it to evaluate as forecasts=ARRAY" if hasattr(run, "__array__") else "name a run folder"
            way = "write frame.to_csv('FILE.csv'), and name that file" if is_frame(run) else way
            raise SettingsError("call.no-run", "", f"a run must be a folder or a Run, not {type(run).__name__}", way)
    return [str(run) for run in several]


def load_run(path: str | Path) -> Run:
    """Load a trained run from its folder.  Raises SocialxError where ``path`` is not a run folder."""
    run = open_run(Path(path))
    values = run.values
    if named := values.get("data.path"):
        values = values | {"data.path": str(run.find_file(str(named)) or named)}
    return Run(run.path, run_settings(run.settings, values).settings, run.protocol, tuple(run.rows()))


@with_help
def train(
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Settings | ConfigLayers | None = None,
    preset: str | None = None,
    resume: Annotated[str | Path | Run | None, Help("go on with an interrupted run, with its settings", "RUN")] = None,
    overwrite: Annotated[bool, Output("replace a run in the run folder")] = False,
    seeds: Annotated[
        str | Sequence[int] | None, Help("train once with each seed, into RUN_DIR_SEED", "N,N", panel="Optimisation")
    ] = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> Run | Any:
    """Train a model, and write a run folder that can repeat, resume, score and use the training.

    data: the HDF5 file, or the section ``data`` as a mapping.  settings: a tree from ``load_settings``.  preset:
    ``mlp-small``, ``xlstm-small`` or ``xlstm-large``, a base below all other settings.  sections: overrides such as
    ``model={"width": 64}``, or single settings by name such as ``max_epochs=1``, ``run_dir="runs/mine"`` (by default
    ``runs/DATASET-DATE-TIME``) and ``init_from=RUN``, the run to fine-tune.  progress: a callback for ``Work``,
    ``Start``, ``Epoch`` and ``Note`` events.  seeds: train once with each seed, ``[0, 1]`` or ``"0,1"``, in the folders
    ``RUN_DIR_0`` and ``RUN_DIR_1``, and return a list of runs.

    Ctrl-C ends training after the current step; the (last) run is then ``interrupted`` and can be resumed.  Raises
    SettingsError for wrong settings, and SocialxError for unusable files.
    """
    with init_process_group(progress) as group:
        began = group.broadcast_object(f"{datetime.now():%Y%m%d-%H%M%S}")
        with group.all_or_none():
            layers = ConfigLayers.from_call(settings, {**sections, "data": data}, preset, task=train)
            planned = {"": layers}
            if seeds is not None:
                planned = plan_seeds(seeds, layers, resume, group.is_rank_zero and not (overwrite or group.restarts))
        runs: list[Run] = []
        for suffix, one in planned.items():
            if runs and runs[-1].interrupted:
                left = ",".join(name[1:] for name in list(planned)[len(runs) :])
                note(Message("train.seeds-left", "", f"seeds are still to train: {left}", Command("", seeds=left)))
                break
            with group.all_or_none():
                plan = make_plan(one, resume, overwrite, group)
                plan.experiment.data.note_clock()
                trainer = plan.experiment.settings.trainer
                path = trainer.run_dir or Path(f"runs/{plan.experiment.protocol.dataset}-{began}{suffix}")
                if os.path.realpath(path) in map(os.path.realpath, trainer.teacher):
                    taken = f"{Argument('trainer.run_dir', path)} is also a teacher"
                    raise SettingsError("train.is-teacher", "", taken, "name another folder")
            runs.append(carry_out(plan, path, group))
            del plan  # the next training reads the data again
        return runs[0] if seeds is None else runs


def plan_seeds(
    seeds: str | Sequence[int], layers: ConfigLayers, resume: str | Path | Run | None, checks: bool
) -> dict[str, ConfigLayers]:
    """Return the layers of each seed by the end of its run folder; checks: make the folders, and refuse one in use."""
    texts = names_in(seeds if isinstance(seeds, str) else map(str, seeds if isinstance(seeds, Iterable) else [seeds]))
    asked = Argument("seeds", ",".join(texts))
    if not texts or not all(map(str.isdecimal, texts)) or len({*map(int, texts)}) < len(texts):
        other = f"use for example {Argument('seeds', '0,1,2')}"
        raise SettingsError("train.seeds", "", f"{asked} must be different whole numbers", other)
    for name, value in (("resume", resume), ("trainer.seed", layers.argument("trainer.seed"))):
        if value is not None:
            both = f"{asked} cannot be combined with {Argument(name, value)}"
            raise SettingsError("train.seeds-and", "", both, f"leave out {Argument(name)}")
    folder, planned = layers.merge().settings.trainer.run_dir, {}
    with ExitStack() as stack:
        for seed in map(int, texts):
            path = folder and folder.with_name(f"{folder.name}_{seed}")
            planned[f"_{seed}"] = layers.over({"trainer.seed": seed, "trainer.run_dir": path})
            planned[f"_{seed}"].merge()  # refuses a wrong seed
            if path:
                stack.enter_context(lock_folder(path, None, False, checks))
    return planned


@dataclass(frozen=True)
class Plan:
    """The start of a training.

    origin: the source of each setting.  old: the run to resume, or None for a new run.  overwrite: whether to replace a
    run in the folder.
    """

    experiment: Experiment
    origin: dict[str, str]
    old: TrainedRun | None = None
    overwrite: bool = False


def make_plan(layers: ConfigLayers, resume: str | Path | Run | None, overwrite: bool, group: ProcessGroup) -> Plan:
    """Plan a training: new, resumed, or fine-tuned from the weights of a run.

    Raises SettingsError and SocialxError for conflicting arguments, and for the data of another run.
    """
    if resume:
        _refuse_with_resume(resume, layers, overwrite)
        old = open_to_resume(Path(str(resume)))
        return plan_resumed(old, load_run_settings(old, layers, RESUME))
    named = layers.merge().settings.trainer.init_from
    start = open_run(Path(named)) if named else None
    loaded = layers.starting_from(start.settings, start.values, start.fixed) if start else layers.load()
    run_dir = loaded.settings.trainer.run_dir
    if start and run_dir and run_dir.resolve() == start.path.resolve():
        taken = f"{Argument('trainer.run_dir', run_dir)} is also the start"
        raise SettingsError("train.is-start", "", taken, "name another folder")
    begun = False
    if group.restarts:
        goes_on, begun = find_restarted_run(run_dir, group.job)
        if goes_on:
            return plan_resumed(goes_on, loaded)
    loaded.note_preset(layers.preset)
    loaded.note_unread()
    experiment = build(loaded.settings, fit=Fit(start.protocol.scaler if start else None))
    if start:
        experiment = load_start_weights(start, experiment)
    return Plan(experiment, loaded.origin, overwrite=overwrite or begun)


def plan_resumed(old: TrainedRun, loaded: Config) -> Plan:
    """Plan a resumed training.  Raises SocialxError where data or roads differ from the training."""
    loaded.note_unread()
    settings, trained = loaded.settings, old.protocol
    holidays = old.holidays(settings.data.holidays, loaded.origin["data.holidays"])
    fit = Fit(trained.scaler if settings.trainer.init_from else None, holidays=holidays)
    experiment = build(settings, fit=fit)
    data = experiment.data.store.path
    old.check_same(experiment.protocol, "checksum", data, Argument("data.path"))
    old.check_same(experiment.protocol, "distances", settings.pooling.distances, Argument("pooling.distances"))
    OtherData(experiment.protocol, trained, old.path, data, old.sensors is not None, True, holidays).check()
    return Plan(experiment, loaded.origin, old)


def _refuse_with_resume(resume: str | Path | Run, layers: ConfigLayers, overwrite: bool) -> None:
    """Raise SettingsError for arguments that conflict with ``resume``."""
    if overwrite:
        both = f"{Argument('resume')} and {Argument('overwrite')} exclude each other"
        raise SettingsError("train.overwrite", "", both, "give one of them")
    for argument, value, kept in (
        ("preset", layers.preset, "settings"),
        ("trainer.init_from", layers.argument("trainer.init_from"), "weights"),
    ):
        if value:
            keeps = f"{resume} keeps its {kept}, without {Argument(argument, value)}"
            raise SettingsError("train.resume-keeps", "", keeps, "leave it out")


def carry_out(plan: Plan, path: Path, group: ProcessGroup) -> Run:
    """Train as planned in the folder ``path``, and calibrate the best epoch."""
    old, writes, state = plan.old, group.is_rank_zero, None
    with ExitStack() as stack:
        experiment, settings, model = plan.experiment, plan.experiment.settings, plan.experiment.model
        if settings.trainer.teacher:
            with group.all_or_none():
                experiment = add_teacher_forecasts(experiment)
        data = experiment.data
        # Every process may see another amount of free memory, and all need one order of the windows.
        shard = group.broadcast_object(data.loaders.shard_windows(experiment.protocol.windows["train"]))
        with group.all_or_none():
            networks = [experiment, *(load_extra_networks(experiment) if settings.data.extra_data else ())]
            loader, validation = make_loaders(networks, group, shard)
            seen = () if old else find_seen_rows(networks)
            holidays = holiday_file(settings.data.holidays)
            climatology = data.climatology.shared.today() if data.train_climatology_days and not old else None
            learner = make_learner(experiment, len(loader), group)
            run = stack.enter_context(lock_folder(path, old, plan.overwrite, writes))
            stack.enter_context(log_epochs_to(settings.trainer.loggers if writes else (), run.path, flat(settings)))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.set_rng_state(experiment.random)
            group.seed(settings.trainer.seed)
            if old:
                state = resume_training(learner, old, len(loader))
                loader, _ = make_loaders(networks, group, state.shard)
                run.write_resumption(to_yaml(settings), plan.origin, experiment.precision)
            else:
                run.write_format(group.job)
                places = sensor_places(data.sensors)
                run.write_protocol(experiment.protocol, invariants(settings), holidays, seen, places)
                run.write_json("sensors.json", data.sensors.ids)
                run.write_settings(to_yaml(settings), plan.origin, [environment(experiment.precision)])
                if climatology is not None:
                    run.write_climatology(climatology)
        group.broadcast(model.state_dict().values())
        emit(describe_start(experiment, loader, run.path, group.world_size))
        if old and not group.restarts and plan.origin["trainer.max_epochs"] != str(old.settings):
            alone = f"and {run.settings} alone does not repeat this run"
            ends = f"the learning rate now ends in epoch {settings.trainer.max_epochs}, {alone}"
            note(Message("train.rate", "", ends))
        remedies = RESUMING if old else TRAINING
        with when_memory_runs_out(experiment, remedies, loader.batch_size), group.train_together(run.path):
            result = fit(learner, loader, validation, run, state)
        if writes and not result.interrupted and result.best_epoch >= 0:
            best, precision = run.read_weights(), Precision("32-true", experiment.precision.device)
            model.load_state_dict(best.state)
            size = settings.loader.batch_size
            run.write_intervals(fit_intervals(model, data, size, precision, experiment.protocol, best.fingerprint))
        return Run(run.path, settings, experiment.protocol, tuple(run.rows()), result.interrupted)


def make_learner(experiment: Experiment, batches: int, group: ProcessGroup = SINGLE) -> Learner:
    """Return the model with its optimizer; batches: per epoch, in each process."""
    trainer = experiment.settings.trainer
    recorded = (trainer.cuda_graph == "on" and not experiment.settings.data.extra_data) or (
        trainer.cuda_graph == "auto" and not cuda_graph_blocker(experiment)
    )
    update = {"cuda_graph": "on" if recorded else "off", "compile": choose_compile(experiment, batches)}
    chosen = trainer.model_copy(update=update)
    return Learner(experiment.model, experiment.data.network, experiment.precision, chosen, group)


def choose_compile(experiment: Experiment, batches: int) -> str:
    """Return the torch.compile mode; ``trainer.compile: auto`` compiles where step count and model pay."""
    model, mode = experiment.settings.model, experiment.settings.trainer.compile
    steps = count_steps(experiment.settings.trainer, batches)
    pays = steps >= COMPILED_FROM and find_model(model.kind).social and model.backend != "reference"
    return mode if mode != "auto" else "default" if pays and not cuda_graph_blocker(experiment) else "off"


def cuda_graph_blocker(experiment: Experiment) -> str:
    """Return why ``trainer.cuda_graph: auto`` is off, or '' if it is on."""
    if experiment.precision.device.type != "cuda":
        return "not on CUDA"
    if experiment.settings.data.extra_data:
        return "a recorded step is of one network"
    is_own = isinstance(find_model(experiment.settings.model.kind), CustomModel)
    return "a model of your own may compute on the host" if is_own else ""


def describe_start(experiment: Experiment, loader: Loader, run_dir: Path, processes: int = 1) -> Start:
    """Return the Start event of a training, with notes on slow choices and on the batch that processes share."""
    settings, precision = experiment.settings, experiment.precision
    if settings.trainer.device == "auto" and not torch.cuda.is_available() and sees_gpu():
        unused = "torch cannot use the GPU of this machine, so training runs on the CPU"
        note(Message("train.gpu-unused", "", unused, Command("doctor")))
    if left_out := experiment.protocol.windows_left_out.get("train"):
        lost = f"{counted(left_out, 'training window')} across a time gap were left out"
        note(Message("train.windows-left-out", experiment.data.store.path, lost), True)
    large = settings.model.width * settings.model.blocks > SMALL_ON_CPU
    if precision.device.type == "cpu" and find_model(settings.model.kind).social and large:
        faster = f"add {Argument('preset', 'mlp-small')}"
        note(Message("train.slow-model", "", "this model is slow on a CPU, and no CUDA device was found", faster))
    if precision.device.type == "cpu" and precision.name == "16-mixed":
        tried = {"data.path": experiment.data.store.path, "trainer.precision": precision.name}
        slow = f"{Argument('trainer.precision', precision.name)} may be slower on a CPU"
        note(Message("train.slow-precision", "", slow, f"measure it with {Command('profile', **tried)}"))
    if processes > 1:
        size, rate = loader.batch_size, settings.trainer.learning_rate
        windows = f"a batch has {size} windows x {processes} processes = {size * processes} windows"
        note(Message("train.global-batch", "", f"{windows}, and the learning rate stays {rate:g}"), True)
        if precision.device.type == "cuda":
            note("the sum of gradients by NCCL is not measured: one GPU may be faster")
    return Start(
        data=str(experiment.data.store.path),
        sensors=len(experiment.data.sensors.ids),
        windows=loader.num_windows,
        device=str(precision.device),
        precision=precision.name,
        parameters=sum(p.numel() for p in experiment.model.parameters()),
        run_dir=str(run_dir),
        computes=describe_compute(experiment, len(loader)) if precision.device.type == "cuda" else "",
    )


def describe_compute(experiment: Experiment, batches: int = 0) -> str:
    """Return what computes a step, with reasons; batches: per epoch, in each process, 0 where there is no training."""
    settings, steps = experiment.settings, count_steps(experiment.settings.trainer, batches)
    text = str(settings.model.kind)
    if find_model(settings.model.kind).social:
        backend = {"auto": "fused"}.get(settings.model.backend, settings.model.backend)
        text = f"encoder {backend if settings.model.encoder == 'xlstm' else settings.model.encoder}"
        if settings.trainer.compile == "auto" and 0 < steps < COMPILED_FROM:
            text += f", not compiled (compiling pays from {COMPILED_FROM:,} steps)"
    if choose_compile(experiment, batches) != "off":
        text += f", compiled ({steps:,} steps)"
    if settings.trainer.cuda_graph == "auto":
        reason = cuda_graph_blocker(experiment)
        text += f", steps {f'not recorded ({reason})' if reason else 'recorded as CUDA graphs'}"
    matmul = settings.trainer.float32_matmul_precision
    return f"{text}, float32 products in precision {matmul if matmul == 'highest' else f'{matmul} (TF32)'}"
