"""``train``: settings -> a trained run in a folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, counted
from socialx.core.help import Help, with_help
from socialx.core.notebook import ResultRepr, is_frame
from socialx.core.progress import Callback, Start, emit, note, work
from socialx.data.loaders import Loader
from socialx.files.sources.holidays import list_of
from socialx.scoring.protocol import ScoringProtocol
from socialx.settings.kinds import CustomModel, find_model
from socialx.settings.layers import Config, ConfigLayers, differences, flat, invariants, run_settings, sees_gpu, to_yaml
from socialx.settings.schema import RESUME, TEACHER_WEIGHT, Settings
from socialx.tasks.build import Experiment, build
from socialx.tasks.memory import RESUMING, TRAINING, when_memory_runs_out
from socialx.tasks.trained_model import load_trained, rescale_to_free_flow, settings_of, with_weights_of
from socialx.training.learner import Learner
from socialx.training.loggers import logging_to
from socialx.training.loop import fit, resume_training
from socialx.training.networks import InterleavedLoader, network_switcher
from socialx.training.process_group import SINGLE, ProcessGroup, init_process_group
from socialx.training.run_folder import (
    EpochRow,
    TrainedRun,
    folder_to_train,
    open_run,
    open_to_resume,
    restarted_run,
)

SMALL_ON_CPU = 128  # width x blocks of the largest model that trains there in a reasonable time


@dataclass(frozen=True, repr=False)
class Run(ResultRepr):
    """A trained model in its folder, and its finished epochs."""

    path: Path
    settings: Settings
    protocol: ScoringProtocol
    epochs: tuple[EpochRow, ...]
    interrupted: bool = False

    @property
    def best(self) -> EpochRow | None:
        """The epoch with the lowest validation MAE, whose weights are kept; None where none has ended."""
        return min(
            self.epochs, key=lambda row: math.inf if row.validation_mae is None else row.validation_mae, default=None
        )

    def __str__(self) -> str:
        return str(self.path)

    def headline(self) -> str:
        """Where it is, how long it trained, and its best epoch."""
        best = self.best
        line = f"{self.path}, {len(self.epochs)} of {self.settings.trainer.max_epochs} epochs"
        if best is None or best.validation_mae is None:
            return line
        return f"{line}, best validation MAE {best.validation_mae:.4f} {self.unit} in epoch {best.epoch}"

    def table(self) -> list[dict[str, Any]]:
        """Its epochs."""
        return [asdict(row) for row in self.epochs]

    @property
    def unit(self) -> str:
        """Unit of the first target, and so of the errors."""
        return self.protocol.unit


def names_of(runs: str | Path | Run | Iterable[str | Path | Run]) -> list[str]:
    """The folders of one or several runs, or files of forecasts, as text.  SettingsError for what is none."""
    several = list(runs) if isinstance(runs, Iterable) and not isinstance(runs, str) and not is_frame(runs) else [runs]
    for run in several:
        if not isinstance(run, str | PathLike | Run):
            way = "write it with frame.to_csv('FILE.csv'), and name that file" if is_frame(run) else "name a run folder"
            raise SettingsError("runs", f"{type(run).__name__} is no run", way)
    return [str(run) for run in several]


def load_run(path: str | Path) -> Run:
    """A run that was trained before.  Raises SocialxError where the folder is none."""
    run = open_run(Path(path))
    own = run.own
    if named := own.get("data.path"):
        own = own | {"data.path": str(run.own_file(str(named)) or named)}
    return Run(run.path, run_settings(run.settings, own).settings, run.protocol, tuple(run.rows()))


@with_help
def train(
    file: str | Path | None = None,
    /,
    *,
    settings: Settings | ConfigLayers | None = None,
    preset: str | None = None,
    run_dir: str | Path | None = None,
    resume: Annotated[str | Path | Run | None, Help("go on with an interrupted run, with its settings", "RUN")] = None,
    overwrite: Annotated[bool, Help("replace a run in the run folder")] = False,
    progress: Callback | None = None,
    **sections: Any,
) -> Run:
    """Train a model and keep everything that repeats, continues, scores or uses it in a run folder.

    file: the HDF5 file, which ``data="FILE"`` names too.  settings: a tree of ``load_settings``; sections such as
    ``data={"days": 3}`` go over it, and settings by their own names such as ``max_epochs=1`` or ``init_from=RUN``,
    whose weights it starts from.  preset: ``mlp-small``, ``xlstm-small`` or ``xlstm-large``, a set of settings below
    all of these. run_dir: the folder, by default ``runs/DATASET-DATE-TIME``.  progress: called with ``Work``,
    ``Start``, ``Epoch`` and ``Note`` events.

    Raises SettingsError for settings that are wrong and SocialxError for files that are.  Ctrl-C ends the training
    after the step at hand; the run that is returned is then ``interrupted`` and can be resumed.
    """
    with init_process_group(progress) as group:
        began = group.broadcast_object(f"{datetime.now():%Y%m%d-%H%M%S}")
        with group.all_or_none():
            layers = ConfigLayers.from_call(settings, {"data.path": file, **sections, "run_dir": run_dir}, preset)
            plan = plan_of(layers, resume, overwrite, group)
            plan.experiment.data.note_clock()
            trainer = plan.experiment.settings.trainer
            path = trainer.run_dir or Path(f"runs/{plan.experiment.protocol.dataset}-{began}")
            if os.path.realpath(path) in map(os.path.realpath, trainer.teacher):
                raise SettingsError(Argument("trainer.run_dir", path), "is a teacher of it", "name another folder")
        return carried_out(plan, path, group)


@dataclass(frozen=True)
class Plan:
    """What a training starts from.

    origin: where each setting came from.  old: the run that goes on, None: a new one begins.  overwrite: a run that is
    in the folder goes.
    """

    experiment: Experiment
    origin: dict[str, str]
    old: TrainedRun | None = None
    overwrite: bool = False


def plan_of(layers: ConfigLayers, resume: str | Path | Run | None, overwrite: bool, group: ProcessGroup) -> Plan:
    """The plan of a training: a new one, one that goes on, or one that starts from the weights of a run.

    Raises SettingsError and SocialxError for what does not go together, and for data of another run.
    """
    if resume:
        _refuse_beside(resume, layers, overwrite)
        old = open_to_resume(Path(str(resume)))
        return resumed(old, settings_of(old, layers, RESUME))
    named = layers.merge().settings.trainer.init_from
    start = open_run(Path(named)) if named else None
    loaded = layers.starting_from(start.settings, start.own, start.fixed) if start else layers.load()
    run_dir = loaded.settings.trainer.run_dir
    if start and run_dir and run_dir.resolve() == start.path.resolve():
        raise SettingsError(Argument("trainer.run_dir", run_dir), "it starts from there", "name another folder")
    begun = False
    if group.restarts:
        goes_on, begun = restarted_run(run_dir, group.job)
        if goes_on:
            return resumed(goes_on, loaded)
    loaded.note_preset(layers.preset)
    loaded.note_unread()
    return started_from(start, loaded, overwrite or begun) if start else new(loaded, overwrite or begun)


def new(loaded: Config, overwrite: bool) -> Plan:
    """The plan of a training with fresh weights."""
    return Plan(build(loaded.settings), loaded.origin, overwrite=overwrite)


def started_from(start: TrainedRun, loaded: Config, overwrite: bool) -> Plan:
    """The plan of a training with weights and scaler of a run, in a folder of its own."""
    experiment = build(loaded.settings, moments=start.protocol.scaler)
    return Plan(with_weights_of(start, experiment), loaded.origin, overwrite=overwrite)


def resumed(old: TrainedRun, loaded: Config) -> Plan:
    """The plan of a run that goes on.  Raises SocialxError for data and roads other than those of its training."""
    loaded.note_unread()
    settings, then = loaded.settings, old.protocol
    holidays = old.holidays(settings.data.holidays, loaded.origin["data.holidays"])
    experiment = build(settings, moments=then.scaler if settings.trainer.init_from else None, holidays=holidays)
    data = experiment.data.store.path
    old.check_same(experiment.protocol, "checksum", data, Argument("data.path"))
    old.check_same(experiment.protocol, "distances", settings.pooling.distances, Argument("pooling.distances"))
    experiment.protocol.refuse_other(then, old.path, data, old.sensors is not None, True, holidays)
    return Plan(experiment, loaded.origin, old)


def _refuse_beside(resume: str | Path | Run, layers: ConfigLayers, overwrite: bool) -> None:
    """Raise SettingsError for arguments that a run which goes on does not take."""
    if overwrite:
        other = f"{Argument('overwrite')} clears it, so give one of them"
        raise SettingsError(Argument("resume"), "it goes on with a run", other)
    for argument, value, own in (
        ("preset", layers.preset, "settings"),
        ("trainer.init_from", layers.argument("trainer.init_from"), "weights"),
    ):
        if value:
            raise SettingsError(Argument(argument, value), f"{resume} goes on with its own {own}", "leave it out")


def carried_out(plan: Plan, path: Path, group: ProcessGroup) -> Run:
    """Train as planned, in the folder ``path``, and measure the intervals of the best epoch."""
    with ExitStack() as stack:
        with group.all_or_none():
            experiment = with_teacher_forecasts(plan.experiment)
        data, old, effective = experiment.data, plan.old, experiment.settings
        trainer, precision = effective.trainer, experiment.precision
        # Every process may see another amount of free memory, and all need one order of the windows.
        shard = group.broadcast_object(data.shard_windows(experiment.protocol.windows["train"]))
        with group.all_or_none():
            networks = [experiment, *other_networks(experiment)]
            loader, validation = loaders_of(networks, group, shard)
            holidays, known = (
                list_of(effective.data.holidays),
                data.climatology_today if data.train_climatology_days and not old else None,
            )
            learner = make_learner(experiment, len(loader), group)
            run = stack.enter_context(folder_to_train(path, old, plan.overwrite, writes=group.is_rank_zero))
            stack.enter_context(logging_to(trainer.loggers if run.writes else (), run.path, flat(effective)))
            group.seed(trainer.seed)
            before = None
            if old:
                before = resume_training(learner, old, len(loader), trainer.max_epochs, trainer.patience)
                loader, _ = loaders_of(networks, group, before.shard)
                replace(old, writes=run.writes).write_resumption(to_yaml(effective), plan.origin, precision)
            else:
                facts = (experiment.protocol, data.sensors.ids, group.job, invariants(effective), holidays, known)
                run.write_start(to_yaml(effective), plan.origin, precision, *facts)
        group.broadcast(experiment.model.state_dict().values())
        emit(starting(experiment, loader, run.path, group.world_size))
        if old and not group.restarts and plan.origin["trainer.max_epochs"] != str(old.settings):
            alone = f"{run.settings} alone does not repeat this run"
            note(Message("", f"the learning rate now ends in epoch {trainer.max_epochs}", alone))
        with (
            when_memory_runs_out(experiment, RESUMING if old else TRAINING, loader.batch_size),
            group.training(run.path),
        ):
            result = fit(
                learner,
                loader,
                validation,
                run,
                horizon=effective.data.horizon,
                max_epochs=trainer.max_epochs,
                patience=trainer.patience,
                log_every_n_steps=trainer.log_every_n_steps,
                progress=before,
            )
        if run.writes and not result.interrupted and result.best_epoch >= 0:
            run.calibrate(experiment.model, data, effective.loader.batch_size, precision.device, experiment.protocol)
        return Run(run.path, effective, experiment.protocol, tuple(run.rows()), result.interrupted)


def train_loader(experiment: Experiment, group: ProcessGroup = SINGLE, shard: int | None = None) -> Loader:
    """The batches of the training split; shard: windows of those of which the order is made, None: as the data says."""
    settings, train_climatology_days = experiment.settings, experiment.data.train_climatology_days
    size, seed = settings.loader.batch_size, settings.trainer.seed
    return experiment.data.loader(
        "train", size, True, seed, shard=shard, share=group.share, days=train_climatology_days
    )


def other_networks(experiment: Experiment) -> list[Experiment]:
    """The problems of the further files that the model learns from, normalised as the first one is, at their own pace.

    Raises SocialxError for a file of another unit or time step, and for one that has sensors of another one.
    """
    others, networks = [], {experiment.data.store.path: _places(experiment)}
    for path in experiment.settings.data.extra_data:
        data = experiment.settings.data.model_copy(update={"path": path, "extra_data": ()})
        settings = experiment.settings.model_copy(update={"data": data})
        other = build(settings, moments=experiment.data.moments)
        other.protocol.refuse_other(
            replace(experiment.protocol, missing=other.protocol.missing), experiment.data.store.path, path, False
        )
        places = _places(other)
        for file, known in networks.items():
            if shared := [name for name, place in places.items() if known.get(name) == place]:
                found = f"{counted(len(shared), 'sensor')} of {file} again"
                raise SocialxError(path, found, "name each network once", sample=shared)
        networks[path] = places
        other.data.note_clock()
        rescale_to_free_flow(other, experiment.protocol)
        other.model.to(other.precision.device)
        others.append(other)
    for other in others:
        note(Message(other.data.store.path, f"{len(other.data.sensors.ids):,} sensors, learnt from too"))
    return others


def _places(experiment: Experiment) -> dict[str, tuple[str, ...]]:
    """The position of each sensor by its id, in thousandths of a degree: two networks may use one id."""
    sensors = experiment.data.sensors
    degrees = zip(sensors.latitude.tolist(), sensors.longitude.tolist(), strict=True)
    return {name: tuple(f"{each:.3f}" for each in pair) for name, pair in zip(sensors.ids, degrees, strict=True)}


def loaders_of(
    networks: Sequence[Experiment], group: ProcessGroup = SINGLE, shard: int | None = None
) -> tuple[Loader, Loader]:
    """The batches of the training and of the validation split; of several networks in turn, with the first one's model.

    shard: as of ``train_loader``, of the first network.
    """
    size, seed = networks[0].settings.loader.batch_size, networks[0].settings.trainer.seed
    first, *others = [train_loader(each, group, None if place else shard) for place, each in enumerate(networks)]
    validation = [each.data.loader("validation", size, share=group.share) for each in networks]
    if not others:
        return first, validation[0]
    model, *models = (each.model for each in networks)
    use = network_switcher(model, models)
    names = [each.data.store.path.stem for each in networks]
    return InterleavedLoader([first, *others], use, seed, names), InterleavedLoader(validation, use, seed, names)


def with_teacher_forecasts(experiment: Experiment) -> Experiment:
    """The problem with the mean forecast of its teachers for each training window: they are asked once.

    Raises SettingsError for one of other windows, and SocialxError for one of another network.
    """
    settings, device, teachers = experiment.settings, experiment.precision.device, []
    layers = ConfigLayers.from_call(None, {"data": settings.data.path, "device": str(device)})
    for name in settings.trainer.teacher:
        run = open_run(Path(name))
        then = run_settings(run.settings, run.own).settings
        then = then.model_copy(update={"data": then.data.model_copy(update={"path": settings.data.path})})
        if differ := differences(settings, then):
            advice = "name runs of the same windows"
            raise SettingsError(Argument("trainer.teacher", name), f"trained on other windows ({differ})", advice)
        teachers.append(load_trained(run, layers, experiment)[0])
    if not teachers:
        return experiment
    return replace(experiment, data=experiment.data.with_teacher_forecasts(_mean_forecasts(teachers)))


def _mean_forecasts(teachers: Sequence[Experiment]) -> Iterator[np.ndarray]:
    """The mean forecast of some models for each batch of their training windows, float32 [B,P,N,G]."""
    models, size = [teacher.model.eval() for teacher in teachers], teachers[0].settings.loader.batch_size
    loaders = [teacher.data.loader("train", size) for teacher in teachers]
    with work("forecasts of the teachers", loaders[0].num_windows, "windows") as bar, torch.no_grad():
        for examples in zip(*(loader.epoch(0) for loader in loaders), strict=True):
            batches = (example.batch.to(teachers[0].precision.device) for example in examples)
            forecasts = [model(batch) for model, batch in zip(models, batches, strict=True)]
            yield torch.stack(forecasts).mean(0).cpu().numpy()
            bar.advance(loaders[0].num_windows / len(loaders[0]))


def make_learner(experiment: Experiment, batches: int, group: ProcessGroup = SINGLE) -> Learner:
    """The model with its optimizer and schedule over all epochs; batches: of an epoch, in each process.

    An error of a further target counts by its deviation, in units of the first one's: with one target it is the MAE.
    """
    t = experiment.settings.trainer
    deviation = [moments.std for moments in experiment.data.network.targets]
    return Learner(
        experiment.model,
        experiment.precision,
        learning_rate=t.learning_rate,
        weight_decay=t.weight_decay,
        total_steps=t.max_epochs * -(-batches // t.accumulate_grad_batches),
        warmup_steps=t.lr_warmup_steps,
        gradient_clip_val=t.gradient_clip_val,
        accumulate_grad_batches=t.accumulate_grad_batches,
        compile=t.compile,
        cuda_graph=(t.cuda_graph == "on" and not experiment.settings.data.extra_data)
        or (t.cuda_graph == "auto" and not unrecorded(experiment, group.world_size)),
        target_weight=[deviation[0] / each for each in deviation],
        group=group,
        teacher_weight=0.0 if experiment.data.teacher_forecast is None else TEACHER_WEIGHT,
    )


def unrecorded(experiment: Experiment, processes: int) -> str:
    """Why ``trainer.cuda_graph: auto`` records no steps; empty: it does."""
    if experiment.precision.device.type != "cuda":
        return "not on CUDA"
    if processes > 1:
        return f"{processes} processes sum gradients in a step"
    if experiment.settings.data.extra_data:
        return "a recorded step is of one network"
    own = isinstance(find_model(experiment.settings.model.kind), CustomModel)
    return "a model of your own may compute on the host" if own else ""


def starting(experiment: Experiment, loader: Loader, run_dir: Path, processes: int = 1) -> Start:
    """What is about to be trained, and on what; notes what is not wise, and what several processes share."""
    settings, precision = experiment.settings, experiment.precision
    if settings.trainer.device == "auto" and not torch.cuda.is_available() and sees_gpu():
        note(Message("a card is here, and this torch cannot use it", "training on the CPU", Command("doctor")))
    if left_out := experiment.protocol.windows_left_out.get("train"):
        note(
            Message(experiment.data.store.path, f"{counted(left_out, 'training window')} across a time gap", "left out")
        )
    if (
        precision.device.type == "cpu"
        and find_model(settings.model.kind).social
        and settings.model.width * settings.model.blocks > SMALL_ON_CPU
    ):
        small = f"for example {Argument('preset', 'mlp-small')} or {Argument('preset', 'xlstm-small')}"
        note(Message("no CUDA device", "on a CPU a small model is wise", small))
    if precision.device.type == "cpu" and precision.name == "16-mixed":
        tried = {"data.path": experiment.data.store.path, "trainer.precision": precision.name}
        measured = f"{Command('profile', **tried)} measures its pace"
        note(Message(Argument("trainer.precision", precision.name), "it may be faster or slower on a CPU", measured))
    if processes > 1:
        size, rate = loader.batch_size, settings.trainer.learning_rate
        windows = f"{size} windows x {processes} processes = {size * processes} windows a batch"
        note(Message("", windows, f"the learning rate stays {rate:g}"))
    return Start(
        data=str(experiment.data.store.path),
        sensors=len(experiment.data.sensors.ids),
        windows=loader.num_windows,
        device=str(precision.device),
        precision=precision.name,
        parameters=sum(p.numel() for p in experiment.model.parameters()),
        run_dir=str(run_dir),
        computes=what_computes(experiment, processes) if precision.device.type == "cuda" else "",
    )


def what_computes(experiment: Experiment, processes: int = 1) -> str:
    """What computes on a card, and why it is not the fastest that there is."""
    settings = experiment.settings
    what = str(settings.model.kind)
    if find_model(settings.model.kind).social:
        what = f"encoder {settings.model.encoder}"
        if settings.model.encoder == "xlstm":
            with experiment.precision.autocast():
                backend, reason = experiment.model.encoder.choice(experiment.precision.device)  # type: ignore[operator, union-attr]
            what = f"encoder {backend}{f' ({reason})' if reason else ''}"
    if settings.trainer.cuda_graph == "auto":
        reason = unrecorded(experiment, processes)
        what += f", steps {f'not recorded ({reason})' if reason else 'recorded as CUDA graphs'}"
    matmul = settings.trainer.float32_matmul_precision
    return f"{what}, float32 products in precision {matmul if matmul == 'highest' else f'{matmul} (TF32)'}"
