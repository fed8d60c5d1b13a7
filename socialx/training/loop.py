"""The story of a training: resume, plan the steps, then for each epoch train, validate, keep the best, save.

The device sums the loss, which the host reads every ``log_every_n_steps``.
"""

from __future__ import annotations

import itertools
import math
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from socialx.core.environment import MIB, used_bytes
from socialx.core.errors import Argument, Command, Message, SocialxError, counted
from socialx.core.progress import Bar, Epoch, emit, note, work
from socialx.dataset.loaders import DeviceLoader, Loader
from socialx.scoring.metrics import RunningScores
from socialx.scoring.scoring_pass import run_metrics
from socialx.settings.schema import TrainerSettings
from socialx.training.clock import StepClock
from socialx.training.cuda_graph import Example
from socialx.training.gpu_usage import MemoryWatch, sample_device
from socialx.training.learner import Learner, count_steps
from socialx.training.networks import per_network
from socialx.training.run_folder import EpochRow, RunFolder

FIRST_READ = (1, 2, 5, 10)  # steps after which the loss is read early, to show progress


@dataclass
class TrainState:
    """The progress of ``fit``, saved in a checkpoint together with the learner."""

    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0  # over the steps of this epoch that were read
    loss_steps: int = 0
    best_mae: float = math.inf
    best_epoch: int = -1
    interrupted: bool = False
    shard: int = 0  # windows per shard in the epoch order; 0: a single shard
    ranks: int = 1  # processes that share a batch

    def refuse_other_batches(self, run: Path, batches: int, ranks: int) -> None:
        """Raise SocialxError where other processes or fewer batches would change the epoch to continue.

        ranks, batches: processes and batches per epoch now; the saved epoch may not be past ``batches``.  run: last.pt.
        """
        if self.ranks != ranks:
            problem = f"the run was trained by {self.ranks} processes, and now there are {ranks}"
            again = Command("train", resume=run.parent, devices=self.ranks)
            raise SocialxError("resume.processes", run, problem, f"start {self.ranks} processes: {again}")
        if self.batch > batches:
            problem = f"the run stopped at batch {self.batch} of {batches}, and so had other batches"
            remedy = f"start again: {Command('train', settings=run.parent / 'settings.yaml')}"
            raise SocialxError("resume.batches", run, problem, remedy)

    def is_complete(self, trainer: TrainerSettings) -> bool:
        """Return whether training has all its epochs, or ``patience`` epochs without a better validation MAE."""
        return self.epoch >= trainer.max_epochs or self.epoch - 1 - self.best_epoch >= trainer.patience


def resume_training(learner: Learner, run: RunFolder, batches: int) -> TrainState:
    """Load a run's last.pt into ``learner`` to train further, and return the progress.

    batches: per epoch now.  Raises SocialxError where training is complete, where the batches cannot continue, and
    where the metrics file is unreadable, which would fail when the next epoch ends.
    """
    progress = load_progress(learner, run)
    if progress.is_complete(learner.trainer):
        early = {"trainer.patience": 2 * learner.trainer.patience}
        more = early if progress.epoch < learner.trainer.max_epochs else {"trainer.max_epochs": 2 * progress.epoch}
        longer = Command("train", resume=run.path, **more)
        problem = f"training is complete after {counted(progress.epoch, 'epoch')}"
        raise SocialxError("resume.complete", run.path, problem, longer)
    progress.refuse_other_batches(run.path / "last.pt", batches, learner.group.world_size)
    run.rows()
    return progress


def load_progress(learner: Learner, run: RunFolder) -> TrainState:
    """Load last.pt into the learner, and return the progress. Raises SocialxError for a file from another model.

    A random generator that lacks a saved state keeps the seed: on a GPU after training on a CPU.
    """
    device, rank = learner.precision.device, learner.group.rank
    with run.open_last(device) as content:
        learner.load_state(content["learner"])
        if {*content["progress"]} != {field.name for field in fields(TrainState)}:
            raise ValueError("the progress has other names")
        progress = TrainState(**{**content["progress"], "interrupted": False})
        if rank < len(content["random"]):
            random = content["random"][rank]
            torch.set_rng_state(random["cpu"].cpu())
            if random["cuda"] is not None and device.type == "cuda":
                torch.cuda.set_rng_state(random["cuda"].cpu(), device)
    return progress


def fit(
    learner: Learner,
    train: Loader,
    validation: Loader,
    run: RunFolder | None = None,
    progress: TrainState | None = None,
) -> TrainState:
    """Train until the last epoch, or ``patience`` epochs without a better validation MAE; return the progress.

    run: the folder for weights, state and metrics after every epoch, and for the state before the first epoch and after
    an interruption.  Without a folder the model ends with the best weights.  progress: a loaded state to continue from;
    the final weights equal an uninterrupted training, up to rounding on CUDA, where the backward pass of attention may
    sum in another order.  Several processes stop together: on a CPU after the current step, on CUDA when the loss is
    read next.
    """
    trainer = learner.trainer
    learner.total_steps = count_steps(trainer, len(train))
    best: dict[str, Tensor] = {}
    if progress is None:
        progress = TrainState(shard=train.shard, ranks=learner.group.world_size)
        if run:
            run.write_last(make_checkpoint(learner, progress))
    left = (trainer.max_epochs - progress.epoch - progress.batch / len(train)) * train.num_windows
    writing: Future[None] | None = None
    watch = MemoryWatch()
    with catch_signals() as interrupt, work("train", left, "windows") as bar, ThreadPoolExecutor(1, "write") as files:
        while not progress.is_complete(trainer):
            speed = _train_epoch(learner, train, progress, bar, interrupt)
            if speed is None:
                break
            bar.advance(0, f"epoch {progress.epoch + 1}/{trainer.max_epochs}  validating")
            mae = _validate(learner, validation, interrupt)
            if mae is None:
                break
            if is_best := mae < progress.best_mae:
                progress.best_mae, progress.best_epoch = mae, progress.epoch
                if not run:
                    best = {name: tensor.detach().clone() for name, tensor in learner.model.state_dict().items()}
            row = _end_epoch(learner, progress, mae, speed)
            if run:
                if writing:
                    writing.result()  # raises the error of the previous epoch
                writing = files.submit(copy_context().run, _write_epoch, run, row, make_checkpoint(learner, progress))
            emit(Epoch(trainer.max_epochs, is_best, **asdict(row)))
            watch.add(learner.precision.device)
            if learner.group.any_rank(interrupt.requested):
                break
    if writing:
        writing.result()
    progress.interrupted = not progress.is_complete(trainer)
    if run:
        run.write_last(make_checkpoint(learner, progress))
    elif best:
        learner.model.load_state_dict(best)
    return progress


@dataclass(frozen=True)
class EpochSpeed:
    """How fast an epoch's training steps were; utilisation: GPU utilisation in percent, None where unmeasured."""

    windows: int
    seconds: float
    utilisation: float | None


def _train_epoch(
    learner: Learner, train: Loader, progress: TrainState, bar: Bar, interrupt: Interrupt
) -> EpochSpeed | None:
    """Train from ``progress.batch`` to the epoch's end; return the speed, or None where interrupted."""
    learner.model.train()
    trainer, first = learner.trainer, progress.batch
    per_batch = train.num_windows / len(train)
    running = torch.zeros((), device=learner.precision.device)
    unread, stopped, alone = 0, False, learner.group.world_size == 1
    on_cpu = learner.precision.device.type == "cpu"

    def read() -> None:
        nonlocal running, unread
        if unread:
            # The only host sync, every log_every_n_steps steps.
            progress.loss_sum += running.item()
            progress.loss_steps += unread
            running, unread = torch.zeros_like(running), 0
        if not math.isfinite(progress.loss_sum):
            smaller = f"use a smaller {Argument('trainer.learning_rate')} than {trainer.learning_rate:g}, or "
            lost = f"the loss is not finite after {learner.steps} steps"
            remedy = f"{smaller}{Argument('trainer.precision', '32-true')}"
            learner.group.fail(SocialxError("train.not-finite", "training", lost, remedy))

    def after_step(loss: Tensor, batches: int) -> bool:
        nonlocal unread, stopped
        running.add_(loss)
        unread += 1
        progress.batch += batches
        note = None
        due = learner.steps % trainer.log_every_n_steps == 0 or learner.steps in FIRST_READ
        stopped = interrupt.requested if alone else (on_cpu or due) and learner.group.any_rank(interrupt.requested)
        if due or stopped:
            read()
            loss_mean = progress.loss_sum / progress.loss_steps
            note = f"epoch {progress.epoch + 1}/{trainer.max_epochs}  loss {loss_mean:.3f}"
        bar.advance(batches * per_batch, note)
        return stopped

    began = time.perf_counter()
    with sample_device(learner.precision.device) as samples:
        run_steps(learner, epoch_examples(learner, train, progress.epoch, first), after_step)
        read()
    seconds = time.perf_counter() - began
    return None if stopped else EpochSpeed(round((progress.batch - first) * per_batch), seconds, samples.mean)


def epoch_examples(learner: Learner, loader: Loader, number: int, first_batch: int = 0) -> Iterator[Example]:
    """Return the batches of epoch ``number`` from ``first_batch`` on; row numbers if recorded steps gather windows."""
    if learner.records and isinstance(loader, DeviceLoader):
        return loader.selections(number, first_batch)
    return loader.epoch(number, first_batch)


def run_steps(
    learner: Learner,
    examples: Iterator[Example],
    after_step: Callable[[Tensor, int], bool],
    clock: StepClock | None = None,
) -> None:
    """Take optimizer steps until the examples end or ``after_step(loss, batches in the step)`` returns True.

    examples: batches, grouped into steps.  clock: receives a mark at each phase of a step; None: no timing.
    """
    clock = learner.clock = clock or StepClock()
    while True:
        clock.mark("fetch")
        group = list(itertools.islice(examples, learner.trainer.accumulate_grad_batches))
        if not group:
            return
        clock.mark("copy")
        group = [example.to(learner.precision.device) for example in group]
        clock.mark("compute")
        loss = learner.step(group)
        clock.mark("done")
        if after_step(loss, len(group)):
            clock.mark("fetch")
            return


def _validate(learner: Learner, validation: Loader, interrupt: Interrupt) -> float | None:
    """Return the validation MAE in the unit of the first target, averaged over networks; None where interrupted."""
    group, by_network = learner.group, dict[str, float]()

    def stop() -> bool:  # several processes ask after the pass
        return group.world_size == 1 and interrupt.requested

    score = partial(run_metrics, name="validate", stop=stop, forecast=learner.forecast)
    for name, loader in per_network(validation):
        sums = RunningScores(learner.network.horizon, len(learner.target_weight), learner.precision.device)
        if not score(learner.model, loader, learner.precision, sums):
            return None
        group.all_reduce(sums.sums)
        scores = sums.compute()
        if not all(target.overall.count for target in scores):
            remedy = f"use a longer file, or another {Argument('data.split_method')}"
            problem = "all windows lack a valid target"
            group.fail(SocialxError("train.no-target", f"validation {name}".strip(), problem, remedy))
        maes = (weight * target.overall.mae for weight, target in zip(learner.target_weight, scores, strict=True))
        by_network[name] = sum(maes) / len(scores)
    if len(by_network) > 1:
        note(f"validation MAE: {', '.join(f'{name} {mae:.3f}' for name, mae in by_network.items())}")
    return sum(by_network.values()) / len(by_network)


def _end_epoch(learner: Learner, progress: TrainState, mae: float, speed: EpochSpeed) -> EpochRow:
    """Return the metrics of the finished epoch, and reset ``progress`` for the next."""
    row = EpochRow(
        epoch=progress.epoch + 1,
        steps=learner.steps,
        train_mae=progress.loss_sum / max(1, progress.loss_steps),
        validation_mae=mae if math.isfinite(mae) else None,
        windows_per_s=round(speed.windows / speed.seconds, 1),
        learning_rate=learner.rate(learner.steps - 1),
        seconds=round(speed.seconds, 3),
        memory_mib=round(used_bytes(learner.precision.device) / MIB, 1),
        skipped_steps=learner.count_skipped(),
        gpu_utilisation=None if speed.utilisation is None else round(speed.utilisation, 1),
    )
    progress.epoch, progress.batch, progress.loss_sum, progress.loss_steps = progress.epoch + 1, 0, 0.0, 0
    return row


def _write_epoch(run: RunFolder, row: EpochRow, content: dict[str, Any]) -> None:
    """Write an epoch's metrics, last.pt (``content``) and, if best, weights, in a thread during the next epoch."""
    progress = content["progress"]
    if progress["best_epoch"] == row.epoch - 1:
        run.write_weights(content["learner"]["model"], row.epoch, progress["best_mae"])
    run.write_metrics(row)
    run.write_last(content)


def make_checkpoint(learner: Learner, progress: TrainState) -> dict[str, Any]:
    """Return the content of last.pt in host memory: learner, progress, and random states by rank."""
    device, group = learner.precision.device, learner.group
    random: list[dict[str, Any]] = [{"cpu": state, "cuda": None} for state in group.all_gather(torch.get_rng_state())]
    if device.type == "cuda":
        for of_rank, state in zip(random, group.all_gather(torch.cuda.get_rng_state(device)), strict=True):
            of_rank["cuda"] = state
    return copy_to_host({"learner": learner.state(), "progress": asdict(progress), "random": random})


def copy_to_host(content: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``content`` with every tensor cloned into host memory, safe from later training steps.

    Tensors on a CUDA device arrive in one copy per type, so the host waits for the device once.
    """
    leaves, structure = tree_flatten(content)
    indices_by_type: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            indices_by_type[leaf.device, leaf.dtype].append(index)
    with torch.no_grad():
        for indices in indices_by_type.values():
            line = torch.cat([leaves[index].reshape(-1) for index in indices]).cpu()
            for index, part in zip(indices, line.split([leaves[index].numel() for index in indices]), strict=True):
                leaves[index] = part.view(leaves[index].shape).clone()
    return tree_unflatten(leaves, structure)


@dataclass
class Interrupt:
    """A flag that asks the loop to stop.  With a ``threading.Event`` two signals could wait for one lock."""

    requested: bool = False


@contextmanager
def catch_signals() -> Iterator[Interrupt]:
    """Let Ctrl-C or SIGTERM set the yielded flag, which stops the loop after the step; a second Ctrl-C stops at once.

    Python allows handlers in the main thread only, so the flag stays unset in any other thread.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def handle(number: int, frame: Any) -> None:
        if interrupt.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not interrupt.requested:  # a handler may have interrupted a print, which is not reentrant
            saved = "training stops after this step and is saved"
            stopping = Message("train.stopping", "", saved, "press Ctrl-C again to stop at once")
            threading.Thread(target=copy_context().run, args=(note, stopping), daemon=True).start()
        interrupt.requested = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
