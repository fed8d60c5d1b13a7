"""``train``: settings -> a trained run in a folder."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from socialx.build import Problem, build
from socialx.data.loaders import Loader
from socialx.errors import Argument, Message, SettingsError, SocialxError
from socialx.kinds import model_of
from socialx.options import Layers, differences, flat, own_settings, to_yaml
from socialx.precision import Precision, when_memory_runs_out
from socialx.progress import Callback, Event, Start, also, listening, note, say
from socialx.scoring.intervals import calibrated
from socialx.scoring.protocol import ScoringProtocol
from socialx.settings import RESUME, Settings
from socialx.tasks.first_steps import first_steps
from socialx.tasks.trained import load_trained
from socialx.training import memory, probe
from socialx.training.clock import StepClock
from socialx.training.learner import Learner
from socialx.training.loggers import logging_to
from socialx.training.loop import Progress, fit, load_progress
from socialx.training.ranks import ALONE, LostError, Ranks, joined
from socialx.training.run_folder import EpochRow, RunFolder, new_run, old_run, open_run, open_to_resume

RANK_SEED = 1_000_033  # between the seeds of two processes
SMALL_ON_CPU = 128  # width x blocks of the largest model that trains there in a reasonable time


@dataclass(frozen=True)
class Run:
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

    @property
    def unit(self) -> str:
        """Unit of the first target, and so of the errors."""
        return self.protocol.unit


def load_run(path: str | Path) -> Run:
    """A run that was trained before.  Raises SocialxError where the folder is none."""
    folder = open_run(Path(path))
    return Run(folder.path, own_settings(folder.settings).settings, folder.protocol(), tuple(folder.rows()))


def train(
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Settings | Layers | None = None,
    size: str | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path | Run | None = None,
    overwrite: bool = False,
    profile_first: int = 0,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> Run:
    """Train a model and keep everything that repeats, continues, scores or uses it in a run folder.

    data: the HDF5 file, or settings of the section ``data``.  settings: a tree of ``load_settings``; sections such as
    ``model={"width": 64}`` go over it.  size: ``small``, ``medium`` or ``large``, a set of settings below all of these.
    run_dir: the folder, by default ``runs/DATASET-DATE-TIME``.  resume: a run to go on with, under its own settings.
    overwrite: replace a run that is in the folder.  profile_first: measure so many steps of the first epoch, and note
    where their time went.  progress: called with ``Work``, ``Start``, ``Epoch`` and ``Note`` events.

    Raises SettingsError for settings that are wrong and SocialxError for files that are.  Ctrl-C ends the training
    after the step at hand; the run that is returned is then ``interrupted`` and can be resumed.
    """
    with joined() as ranks, listening(progress if ranks.first else _silent), ExitStack() as stack:
        restarted = ranks.any(ranks.restarts > 0)
        with ranks.agreed():
            layers = Layers.of(settings, sections, data=data, trainer__run_dir=run_dir)
            layers = replace(layers, size=size or layers.size)
            old = _to_resume(resume, overwrite, layers.size)
            loaded = layers.of_run(old.settings, RESUME) if old else layers.load()
            if restarted and not old:
                old, begun = _restarted(loaded.settings.trainer.run_dir, ranks.job)
                overwrite = overwrite or begun
            loaded.note_size(None if old else layers.size)
            loaded.note_unread()
            text = to_yaml(loaded.settings)
            problem = build(loaded.settings)
            s, d, precision, protocol = problem.settings, problem.data, problem.precision, problem.protocol
            if old:
                old.check_same(protocol, "checksum", d.store.path, Argument("data.path"))
                old.check_same(protocol, "distances", s.pooling.distances, Argument("pooling.distances"))
        # Every process may see another amount of free memory, and all need one order of the windows.
        chunk = ranks.number_of_first(d.chunk_windows(protocol.windows["train"]))
        default = f"runs/{protocol.dataset}-{datetime.now():%Y%m%d-%H%M%S}"
        name = ranks.text_of_first(str(s.trainer.run_dir or default))
        with ranks.agreed():
            if os.path.realpath(name) in map(os.path.realpath, s.trainer.teacher):
                raise SettingsError(Argument("trainer.run_dir", name), "is a teacher of it", "name another folder")
            loader = train_loader(problem, ranks, chunk)
            learner = make_learner(problem, loader, ranks, load_teachers(problem))
            run = _open(stack, ranks, old, Path(name), overwrite)
            names = s.trainer.loggers if ranks.first else ()
            loggers = stack.enter_context(logging_to(names, run.path, flat(loaded.settings)))
            done = None
            if ranks.rank:  # each draws its own dropout; the first one draws as it would alone
                torch.manual_seed(s.trainer.seed + RANK_SEED * ranks.rank)
            if old:
                done, loader = _going_on(problem, learner, old)
                run.write_resumption(text, loaded.origin, precision)
            else:
                run.write_start(text, loaded.origin, precision, protocol, d.sensors.ids, ranks.job)
        ranks.of_first(problem.model.state_dict().values())
        stack.enter_context(also(*loggers))
        say(starting(problem, loader, run.path))
        if ranks.world > 1:
            note(Message("", *_of_processes(loader, ranks.world, s.trainer.learning_rate)))
        if old and not restarted and loaded.origin["trainer.max_epochs"] != str(old.settings):
            alone = f"{run.settings} alone does not repeat this run"
            note(Message("", f"the learning rate now ends in epoch {s.trainer.max_epochs}", alone))
        with when_memory_runs_out(partial(out_of_memory, problem, learner, loader, old is not None)):
            try:
                clock = first_steps(problem, loader, profile_first) if profile_first else None
                result = _fit(problem, learner, loader, run, done, clock)
                ranks.wait()  # until the first one has written all that the others read now
            except LostError as error:
                raise error.going_on(run.path, ranks) from None
        if ranks.first and not result.interrupted and result.best_epoch >= 0:
            _calibrate(problem, run)
        return Run(run.path, s, protocol, tuple(run.rows()), result.interrupted)


def _fit(
    problem: Problem, learner: Learner, loader: Loader, run: RunFolder, done: Progress | None, clock: StepClock | None
) -> Progress:
    s = problem.settings
    return fit(
        learner,
        loader,
        problem.data.loader("validation", s.loader.batch_size, share=learner.ranks.share),
        run,
        horizon=s.data.horizon,
        max_epochs=s.trainer.max_epochs,
        patience=s.trainer.patience,
        log_every_n_steps=s.trainer.log_every_n_steps,
        progress=done,
        keep=s.trainer.keep_checkpoints,
        clock=clock,
    )


def _calibrate(problem: Problem, run: RunFolder) -> None:
    """Write the prediction intervals of the best epoch's weights, with which forecasts are made, in float32."""
    weights, precision = run.read_weights(), Precision("32-true", problem.precision.device)
    problem.model.load_state_dict(weights.state)
    size, protocol = problem.settings.loader.batch_size, problem.protocol
    run.write_intervals(calibrated(problem.model, problem.data, size, precision, protocol, weights.fingerprint))


def _silent(event: Event) -> None:
    """What all but the first of several processes have to say."""


def _to_resume(resume: str | Path | Run | None, overwrite: bool, size: str | None) -> RunFolder | None:
    if resume and overwrite:
        other = (Argument("overwrite"), " clears it, so give one of them")
        raise SettingsError(Argument("resume"), "it goes on with a run", other)
    if resume and size:
        raise SettingsError(Argument("size", size), f"{resume} goes on with its own settings", "leave it out")
    return open_to_resume(resume.path if isinstance(resume, Run) else Path(resume)) if resume else None


def _restarted(run_dir: Path | None, job: str) -> tuple[RunFolder | None, bool]:
    """The run that this job was training when one of its processes ended and torchrun started all of them again.

    None where it had no state yet, or where the folder holds the run of another job; and whether it is of this job.
    """
    if run_dir is None:
        found = "started again after a process had ended, and nobody named the run folder"
        raise SettingsError("training", found, ("give ", Argument("trainer.run_dir", "RUN"), ", so that it goes on"))
    if not job or RunFolder(run_dir).job() != job:
        return None, False
    return (open_to_resume(run_dir), True) if (run_dir / "last.pt").exists() else (None, True)


def _open(stack: ExitStack, ranks: Ranks, old: RunFolder | None, path: Path, overwrite: bool) -> RunFolder:
    """The run folder: the first process locks it and writes, the others read."""
    if not ranks.first:
        return replace(old, writes=False) if old else RunFolder(path, writes=False)
    return stack.enter_context(old_run(old) if old else new_run(path, overwrite))


def _going_on(problem: Problem, learner: Learner, old: RunFolder) -> tuple[Progress, Loader]:
    """Where a run stood, put into the learner, and batches in the order in which it was trained."""
    trainer = problem.settings.trainer
    done = load_progress(learner, old)
    done.refuse_complete(old.path, trainer.max_epochs, trainer.patience)
    loader = train_loader(problem, learner.ranks, done.chunk)
    done.refuse_other_batches(old.state or old.last, len(loader), learner.ranks.world)
    old.rows()  # refuse now what cannot be read at the end of the epoch
    return done, loader


def _of_processes(loader: Loader, world: int, rate: float) -> tuple[str, str]:
    windows = f"{loader.batch_size} windows x {world} processes = {loader.batch_size * world} windows a batch"
    return windows, f"the learning rate stays {rate:g}"


def train_loader(problem: Problem, ranks: Ranks = ALONE, chunk: int | None = None) -> Loader:
    """The batches of the training part; chunk: windows of those of which the order is made, None: as the data says."""
    s = problem.settings
    size, shuffle, seed = s.loader.batch_size, s.loader.shuffle, s.trainer.seed
    return problem.data.loader("train", size, shuffle, seed, chunk=chunk, share=ranks.share)


def load_teachers(problem: Problem) -> list[nn.Module]:
    """The models of the runs that ``trainer.teacher`` names.

    Raises SettingsError for one of other windows, and SocialxError for one of another network.
    """
    s, found = problem.settings, []
    layers = Layers.of(None, {}, data=s.data.path, trainer__device=str(problem.precision.device))
    for name in s.trainer.teacher:
        then = load_run(name).settings
        then = then.model_copy(update={"data": then.data.model_copy(update={"path": s.data.path})})
        if differ := differences(s, then):
            advice = "name runs of the same windows"
            raise SettingsError(Argument("trainer.teacher", name), f"trained on other windows ({differ})", advice)
        found.append(load_trained(Path(name), layers, problem)[0].model)
    return found


def make_learner(problem: Problem, train: Loader, ranks: Ranks = ALONE, teachers: Sequence[nn.Module] = ()) -> Learner:
    """The model with its optimizer and schedule over all epochs.

    An error of a further target counts by its deviation, in units of the first one's: with one target it is the MAE.
    """
    t = problem.settings.trainer
    deviation = [moments.std for moments in problem.data.network.targets]
    return Learner(
        problem.model,
        problem.precision,
        learning_rate=t.learning_rate,
        weight_decay=t.weight_decay,
        total_steps=t.max_epochs * -(-len(train) // t.accumulate_grad_batches),
        schedule=t.schedule,
        warmup_steps=t.lr_warmup_steps,
        gradient_clip_val=t.gradient_clip_val,
        accumulate_grad_batches=t.accumulate_grad_batches,
        compile=t.compile,
        cuda_graph=t.cuda_graph,
        target_weight=[deviation[0] / own for own in deviation],
        ranks=ranks,
        teachers=teachers,
        teacher_weight=t.teacher_weight,
    )


def starting(problem: Problem, loader: Loader, run_dir: Path) -> Start:
    """What is about to be trained, and on what."""
    s, precision = problem.settings, problem.precision
    if (
        precision.device.type == "cpu"
        and model_of(s.model.kind).social
        and s.model.width * s.model.blocks > SMALL_ON_CPU
    ):
        small = ("for example ", Argument("size", "small"), " or ", Argument("size", "medium"))
        note(Message("no CUDA device", "on a CPU a small model is wise", small))
    return Start(
        data=str(problem.data.store.path),
        sensors=len(problem.data.sensors.ids),
        windows=loader.num_windows,
        device=str(precision.device),
        precision=precision.name,
        parameters=sum(p.numel() for p in problem.model.parameters()),
        run_dir=str(run_dir),
        computes=what_computes(problem) if precision.device.type == "cuda" else "",
    )


def what_computes(problem: Problem) -> str:
    """What computes on a card, and why it is not the fastest that there is."""
    s = problem.settings
    what = str(s.model.kind)
    if model_of(s.model.kind).social:
        what = f"encoder {s.model.encoder}"
        if s.model.encoder == "xlstm":
            with problem.precision.autocast():
                impl, reason = problem.model.encoder.choice(problem.precision.device)  # type: ignore[operator, union-attr]
            what = f"encoder {impl}{f' ({reason})' if reason else ''}"
    matmul = s.trainer.float32_matmul_precision
    return f"{what}, float32 products in precision {matmul if matmul == 'highest' else f'{matmul} (TF32)'}"


def out_of_memory(problem: Problem, learner: Learner, train: Loader, resumed: bool = False) -> SocialxError | None:
    """Give a learner up whose step did not fit, and say how other cuts of a step are measured, where they can be."""
    s, device = problem.settings, problem.precision.device
    if device.type not in probe.COUNTED:
        return None

    def peak(plan: memory.Plan) -> float:
        def measure() -> float:
            cut = build(with_plan(s, plan), problem.data)
            loader = cut.data.loader("train", plan.windows, s.loader.shuffle, s.trainer.seed)
            return probe.step_peak(make_learner(cut, loader), loader)

        return probe.measured(measure)

    learner.drop_recordings()
    probe.release(learner.model, learner.optimizer)
    asked = memory.Plan(train.batch_size, s.trainer.accumulate_grad_batches, s.model.chunk, s.model.checkpointing)
    kinds = remedies(s, memory.RESUMING if resumed else memory.TRAINING)
    return probe.advice(probe.Failed(device, asked, len(problem.data.sensors.ids), peak, kinds, "a training step"))


def remedies(s: Settings, kinds: tuple[str, ...]) -> list[str]:
    """Those of these remedies against running out of memory that the chosen model has."""
    return [kind for kind in kinds if f"model.{kind}" not in s.unread()]


def with_plan(s: Settings, plan: memory.Plan) -> Settings:
    """The settings of a step that is cut like this."""
    parts = {
        "loader": {"batch_size": plan.windows},
        # A compilation would take longer than all that is measured, and a recording needs the same.
        "trainer": {"accumulate_grad_batches": plan.batches, "compile": "off", "cuda_graph": False},
        "model": {"chunk": plan.chunk, "checkpointing": plan.checkpointing},
    }
    return s.model_copy(update={name: getattr(s, name).model_copy(update=new) for name, new in parts.items()})
