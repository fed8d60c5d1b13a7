"""The training loop, once: steps, an epoch, validation, and ``fit``.  Plain torch, plain arguments.

The loss is a running sum on the device that is read every ``log_every_n_steps``.
"""

from __future__ import annotations

import itertools
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from socialx.batch import Example
from socialx.data.loaders import Loader
from socialx.environment import MIB, used_bytes, utilisation
from socialx.errors import Argument, Command, Message, SocialxError
from socialx.progress import Bar, Epoch, note, say, work
from socialx.scoring.evaluation import evaluate
from socialx.training import checkpoint
from socialx.training.capture import in_short
from socialx.training.clock import NoClock, StepClock
from socialx.training.leak import MemoryWatch
from socialx.training.learner import Learner
from socialx.training.run_folder import EpochRow, RunFolder, upgraded


def run_steps(
    learner: Learner,
    examples: Iterator[Example],
    after_step: Callable[[Tensor, int], bool],
    clock: StepClock | None = None,
) -> None:
    """Take optimizer steps until the examples end or ``after_step(loss, batches of the step)`` returns True."""
    clock = clock or NoClock()
    while True:
        clock.mark("fetch")
        group = list(itertools.islice(examples, learner.accumulate_grad_batches))
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


@dataclass
class Progress:
    """How far a fit has come: what a checkpoint holds beside the learner."""

    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0  # of the steps of this epoch that were read already
    loss_steps: int = 0
    best_mae: float = math.inf
    best_epoch: int = -1
    interrupted: bool = False
    chunk: int = 0  # windows of the chunks of which the order of an epoch is made; 0: all windows are one
    ranks: int = 1  # processes that share a batch

    @classmethod
    def of(cls, found: dict[str, Any]) -> Progress:
        """What a checkpoint holds; ValueError where that is no progress."""
        found = {"chunk": 0, "ranks": 1, **found}  # older versions knew neither
        if set(found) != {each.name for each in fields(cls)}:
            raise ValueError("its progress has other names")
        counts = ("epoch", "batch", "loss_steps", "chunk", "ranks")
        whole = all(type(found[name]) is int and 0 <= found[name] < 1 << 31 for name in counts)
        epoch, best = found["epoch"], found["best_epoch"]
        if not whole or type(best) is not int or not -1 <= best < max(epoch, 1):
            raise ValueError("its progress is no epoch and batch")
        if not math.isfinite(found["loss_sum"]) or math.isnan(found["best_mae"]):
            raise ValueError("its progress has no numbers")
        return cls(**{**found, "interrupted": False})

    def refuse_other_batches(self, run: Path, batches: int, ranks: int) -> None:
        """Raise SocialxError where the run would go on in other batches, and so with another number of steps."""
        if self.ranks != ranks:
            found = f"it was trained by {self.ranks} processes, and there are {ranks}"
            again = Command("train", resume=run.parent, devices=self.ranks)
            raise SocialxError(run, found, ("start as many as before, such as ", again))
        if self.batch > batches:
            found = f"batch {self.batch} of {batches}: it was trained with other batches"
            raise SocialxError(run, found, ("start anew: ", Command("train", settings=run.parent / "settings.yaml")))

    def complete(self, max_epochs: int, patience: int) -> bool:
        """Whether there is nothing left to train."""
        return self.epoch >= max_epochs or self.epoch - 1 - self.best_epoch >= patience

    def refuse_complete(self, run: Path, max_epochs: int, patience: int) -> None:
        """Raise SocialxError where the run has nothing left to train, with the command that gives it more."""
        if self.complete(max_epochs, patience):
            stopped = self.epoch < max_epochs
            more = {"trainer.patience": 2 * patience} if stopped else {"trainer.max_epochs": 2 * self.epoch}
            raise SocialxError(run, f"complete after {self.epoch} epochs", Command("train", resume=run, **more))


FIRST_READ = (1, 2, 5, 10)  # steps after which the loss is read anyway: whoever waits sees that it works


class Interrupt:
    """Ctrl-C or SIGTERM asks the loop to stop after the step at hand; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.asked:  # a handler may have interrupted a print, which must not begin again inside itself
            stopping = Message("", "stopping after this step and saving", "Ctrl-C again stops at once")
            threading.Thread(target=copy_context().run, args=(note, stopping), daemon=True).start()
        self.asked = True

    @contextmanager
    def listening(self) -> Iterator[Interrupt]:
        """Install the handlers, and put the old ones back; outside the main thread Python allows none."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def fit(
    learner: Learner,
    train: Loader,
    validation: Loader,
    run: RunFolder | None = None,
    *,
    horizon: int,
    max_epochs: int,
    patience: int,
    log_every_n_steps: int = 50,
    progress: Progress | None = None,
    keep: int = 1,
    clock: StepClock | None = None,
) -> Progress:
    """Train until max_epochs, or until ``patience`` epochs brought no better validation MAE.

    run: weights, last state and metrics are written there after every epoch, the last state also before the first and
    after an interruption.  Without a folder the model has the best weights at the end.  ``progress`` continues where a
    checkpoint stood, to the same weights as without the interruption.  keep: the states of so many last epochs stay.
    clock: is told of the phases of every step.

    Several processes stop together: on a CPU after the step at hand, on CUDA at the next reading of the loss.
    """
    best: dict[str, Tensor] = {}
    if progress is None:
        progress = Progress(chunk=train.chunk, ranks=learner.ranks.world)
        if run:
            save_progress(learner, progress, run)
    left = (max_epochs - progress.epoch - progress.batch / len(train)) * train.num_windows
    stopped, watch = False, MemoryWatch()
    with Interrupt().listening() as interrupt, work("train", left, "windows") as bar:
        while not progress.complete(max_epochs, patience) and not stopped:
            began = time.perf_counter()
            seen, stopped = _train_epoch(learner, train, progress, log_every_n_steps, max_epochs, bar, interrupt, clock)
            seconds = time.perf_counter() - began
            bar.advance(0, f"epoch {progress.epoch + 1}/{max_epochs}  validating")
            mae = None if stopped else _validate(learner, validation, horizon, interrupt)
            if mae is None:
                stopped = True
                break
            if mae < progress.best_mae:
                progress.best_mae, progress.best_epoch = mae, progress.epoch
                best = _keep(learner, progress, run)
            _end_epoch(learner, progress, mae, seen, seconds, run, max_epochs, keep)
            watch.add(learner.precision.device)
            stopped = learner.ranks.any(interrupt.asked)
    progress.interrupted = stopped and not progress.complete(max_epochs, patience)
    if run:
        save_progress(learner, progress, run)
    elif best:
        learner.model.load_state_dict(best)
    return progress


def _train_epoch(
    learner: Learner,
    train: Loader,
    progress: Progress,
    log_every_n_steps: int,
    max_epochs: int,
    bar: Bar,
    interrupt: Interrupt,
    clock: StepClock | None,
) -> tuple[int, bool]:
    """The rest of one epoch from ``progress.batch`` on -> windows seen, and whether it was interrupted."""
    learner.model.train()
    first = progress.batch
    per_batch = train.num_windows / len(train)
    running = torch.zeros((), device=learner.precision.device)
    unread, stopped, alone = 0, False, learner.ranks.world == 1
    on_cpu = learner.precision.device.type == "cpu"

    def read() -> None:
        nonlocal running, unread
        if unread:
            progress.loss_sum += learner.ranks.sum_(running).item()  # the one host sync, every log_every_n_steps steps
            progress.loss_steps += unread
            running, unread = torch.zeros_like(running), 0
        if not math.isfinite(progress.loss_sum):
            smaller = ("a smaller ", Argument("trainer.learning_rate"), f" than {learner.learning_rate:g}, or ")
            found = f"the loss is not finite after {learner.steps} steps"
            remedy = (*smaller, Argument("trainer.precision", "32-true"))
            learner.ranks.fail(SocialxError("training", found, remedy))

    def after_step(loss: Tensor, batches: int) -> bool:
        nonlocal unread, stopped
        running.add_(loss)
        unread += 1
        progress.batch += batches
        note = None
        due = learner.steps % log_every_n_steps == 0 or learner.steps in FIRST_READ
        stopped = interrupt.asked if alone else (on_cpu or due) and learner.ranks.any(interrupt.asked)
        if due or stopped:
            read()
            note = f"epoch {progress.epoch + 1}/{max_epochs}  loss {progress.loss_sum / progress.loss_steps:.3f}"
        bar.advance(batches * per_batch, note)
        return stopped

    run_steps(learner, train.epoch(progress.epoch, first), after_step, clock)
    read()
    return round((progress.batch - first) * per_batch), stopped


def _validate(learner: Learner, validation: Loader, horizon: int, interrupt: Interrupt) -> float | None:
    """Validation MAE, several targets in units of the first one; None where it was interrupted."""
    scores = evaluate(
        learner.model,
        validation,
        learner.precision,
        horizon=horizon,
        targets=len(learner.target_weight),
        name="validate",
        stop=lambda: learner.ranks.any(interrupt.asked),
        together=learner.ranks.sum_,
    )
    if not scores:
        return None
    if not all(of_target.overall.count for of_target in scores):
        remedy = ("use a longer file, or another ", Argument("data.split"))
        learner.ranks.fail(SocialxError("validation", "no window has a valid target", remedy))
    maes = (weight * of.overall.mae for weight, of in zip(learner.target_weight, scores, strict=True))
    return sum(maes) / len(scores)


def _keep(learner: Learner, progress: Progress, run: RunFolder | None) -> dict[str, Tensor]:
    """Keep the weights of the best epoch: in the run folder, or in memory without one."""
    if run:
        run.write_weights(learner.model.state_dict(), progress.epoch + 1, progress.best_mae)
        return {}
    return {name: tensor.detach().clone() for name, tensor in learner.model.state_dict().items()}


def _end_epoch(
    learner: Learner,
    progress: Progress,
    mae: float,
    windows: int,
    seconds: float,
    run: RunFolder | None,
    max_epochs: int,
    keep: int,
) -> None:
    loss = progress.loss_sum / max(1, progress.loss_steps)
    best = progress.best_epoch == progress.epoch
    row = EpochRow(
        epoch=progress.epoch + 1,
        steps=learner.steps,
        train_mae=loss,
        validation_mae=mae if math.isfinite(mae) else None,
        windows_per_s=round(windows / seconds, 1),
        learning_rate=learner.rate(learner.steps - 1),
        seconds=round(seconds, 3),
        memory_mib=round(used_bytes(learner.precision.device) / MIB, 1),
        skipped_steps=learner.skipped(),
        gpu_utilisation=utilisation(learner.precision.device),
    )
    progress.epoch, progress.batch, progress.loss_sum, progress.loss_steps = progress.epoch + 1, 0, 0.0, 0
    if run:
        run.write_metrics(row)
        save_progress(learner, progress, run)
        run.keep_state(progress.epoch, keep)
    say(Epoch(max_epochs, best, **asdict(row)))


def save_progress(learner: Learner, progress: Progress, run: RunFolder) -> None:
    """Write last.pt: learner, progress and generators."""
    random = checkpoint.random_state(learner.precision.device, learner.ranks)
    if run.writes:
        checkpoint.save(run.last, {"learner": learner.state(), "progress": asdict(progress), "random": random})


def load_progress(learner: Learner, run: RunFolder) -> Progress:
    """Read last.pt, or the state of an earlier epoch, into the learner -> where to go on.

    Raises SocialxError where it is not a state of this model.
    """
    device = learner.precision.device
    path = run.state or run.last
    content = checkpoint.load(path, device, "learner", "progress", "random")
    try:
        state = dict(content["learner"])
        progress = Progress.of(content["progress"])
        learner.load_state({**state, "model": upgraded(state["model"], path)})
        checkpoint.set_random_state(content["random"], device, learner.ranks)
    except checkpoint.UNFIT as error:
        anew = ("start anew: ", Command("train", settings=run.settings))
        raise SocialxError(path, f"not a state of this model ({in_short(error)})", anew) from None
    return progress
