"""The training loop, once: the step, an epoch, the scores, and fit.  Plain torch, plain arguments.

A step never waits for the device: the loss stays there as a running sum and is read every ``log_every_n_steps``, the
gradient norm is clipped without looking at it, and a fused AdamW lets the gradient scaler skip without asking.
"""

from __future__ import annotations

import itertools
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from socialx.data.loaders import Batch, Loader
from socialx.errors import SocialxError, fall_back
from socialx.progress import Bar, progress_bar
from socialx.training import checkpoint
from socialx.training.capture import CapturedStep, in_short
from socialx.training.clock import NoClock, StepClock
from socialx.training.metrics import RunningScores, Scores, masked_absolute_error
from socialx.training.precision import Precision
from socialx.training.runs import RunFolder


class Learner:
    """A model and everything that changes it: optimizer, schedule, gradient scaler, number of steps taken."""

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        *,
        learning_rate: float,
        weight_decay: float,
        total_steps: int,
        schedule: str = "cosine",
        warmup_steps: int = 0,
        gradient_clip_val: float = 0.0,
        accumulate_grad_batches: int = 1,
        compile: str = "off",
        cuda_graph: bool = False,
        target_weight: Sequence[float] = (1.0,),
    ) -> None:
        """total_steps: optimizer steps until the cosine reaches 0.  gradient_clip_val 0 does not clip.

        target_weight: how much an error of each target counts; several targets have several units.

        compile: off, or a mode of torch.compile, default or max-autotune.  cuda_graph: replay the step, on CUDA.  Both
        compute the same step and warn with a ``Fallback`` where they cannot.
        """
        self.model, self.precision = model.to(precision.device), precision
        # Biases, norms, radii and other vectors are not decayed: decay would pull a radius towards 1 km.
        matrices = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
        vectors = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=learning_rate, fused=True)
        self.grad_scaler = precision.grad_scaler()
        self.learning_rate, self.schedule, self.warmup_steps = learning_rate, schedule, warmup_steps
        self.total_steps, self.gradient_clip_val = total_steps, gradient_clip_val
        self.accumulate_grad_batches = accumulate_grad_batches
        self.steps = 0
        self.target_weight = target_weight
        several = len(target_weight) > 1
        self._weight = torch.tensor(target_weight, device=precision.device) if several else None
        self._compile = compile
        self._cuda_graph = cuda_graph and precision.device.type == "cuda"
        if cuda_graph and not self._cuda_graph:
            fall_back(f"trainer.cuda_graph: the device is {precision.device}, not CUDA: going on without")
        self._prepare()

    def _prepare(self) -> None:
        """Choose how steps run, before the first one and whenever the tensors that they change are replaced."""
        self._forward: Callable[[Batch], Tensor] = self.model
        self._work: Callable[[Sequence[Batch]], Tensor] = self._on_device
        for group in self.optimizer.param_groups:
            group["capturable"] = self._cuda_graph
            # A recorded step reads the learning rate from the device, where every step writes it.
            group["lr"] = torch.zeros((), device=self.precision.device) if self._cuda_graph else 0.0
        if self._compile != "off":
            # The mode of that name records graphs of its own, which would meet ours.
            mode = {"max-autotune": "max-autotune-no-cudagraphs"}.get(self._compile, self._compile)
            self._forward = torch.compile(self.model, dynamic=False, mode=mode)
            self._work = self._on_device_compiled
        if self._cuda_graph:
            self._work = CapturedStep(self._work, self._forget)

    def rate(self, step: int) -> float:
        """Learning rate of optimizer step ``step``: linear warm-up, then cosine to 0 or constant."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        done = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """One optimizer step on a group of batches -> masked MAE of the group in the file's unit, left on the device.

        The group counts as one large batch: errors are divided by the valid entries of all of it, so that splitting a
        batch changes nothing but the memory.
        """
        rate = self.rate(self.steps)
        for group in self.optimizer.param_groups:
            if self._cuda_graph:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        loss = self._work(batches)
        self.steps += 1
        return loss

    def _on_device(self, batches: Sequence[Batch]) -> Tensor:
        """All that a step does on the device: what a CUDA graph holds, so no number of the host may enter."""
        count = sum((b.target_valid.sum() for b in batches[1:]), batches[0].target_valid.sum()).clamp(min=1)
        total = torch.zeros((), device=self.precision.device)
        for batch in batches:
            with self.precision.autocast():
                forecast = self._forward(batch)
            error = masked_absolute_error(forecast, batch.target, batch.target_valid, self._weight) / count
            self.grad_scaler.scale(error).backward()
            total = total + error.detach()
        if self.gradient_clip_val:
            self.grad_scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_clip_val)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def _on_device_compiled(self, batches: Sequence[Batch]) -> Tensor:
        """A step while it is not known whether the model compiles: what fails here would fail in every step."""
        try:
            return self._on_device(batches)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # torch.compile's own errors are among them; the step as it is tells
            if self._forward is self.model:
                raise
            self._forward = self.model
            self._forget()
            loss = self._on_device(batches)
            fall_back(f"trainer.compile: the model does not compile ({in_short(error)}): going on without")
            return loss

    def _forget(self) -> None:
        """The host's side of a step that was begun: gradients, and what the scaler remembers of them."""
        self.optimizer.zero_grad(set_to_none=True)
        state, self.grad_scaler = self.grad_scaler.state_dict(), self.precision.grad_scaler()
        self.grad_scaler.load_state_dict(state)

    def drop_recordings(self) -> None:
        """Free what recorded steps hold; the next ones run as they are."""
        self._work = self._on_device

    def state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs of the learner."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "grad_scaler": self.grad_scaler.state_dict(),
            "steps": self.steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Put ``state`` back."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._prepare()
        self.grad_scaler.load_state_dict(state["grad_scaler"])
        self.steps = state["steps"]


def run_steps(
    learner: Learner,
    batches: Iterator[Batch],
    after_step: Callable[[Tensor, int], bool],
    clock: StepClock | None = None,
) -> None:
    """Take optimizer steps until the batches end or ``after_step(loss, batches of the step)`` returns True."""
    clock = clock or NoClock()
    while True:
        clock.mark("fetch")
        group = list(itertools.islice(batches, learner.accumulate_grad_batches))
        if not group:
            return
        clock.mark("copy")
        group = [batch.to(learner.precision.device) for batch in group]
        clock.mark("compute")
        loss = learner.step(group)
        clock.mark("done")
        if after_step(loss, len(group)):
            clock.mark("fetch")
            return


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Loader,
    precision: Precision,
    bar: Bar | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[list[Scores]]:
    """Scores of a model over every window of a loader, of each target: P + 1 entries, the last over all horizons.

    The errors stay on the device until the end: one transfer whatever the number of batches.  ``stop`` is asked before
    each batch; where it says so, there are no scores.
    """
    was_training = model.training
    model.eval()
    sums: RunningScores | None = None
    per_batch = loader.num_windows / len(loader)
    for batch in loader.epoch(0):
        if stop():
            model.train(was_training)
            return []
        batch = batch.to(precision.device)
        with precision.autocast():
            forecast = model(batch)
        sums = sums or RunningScores(batch.target.shape[1], batch.target.shape[3], precision.device)
        sums.add(forecast, batch.target, batch.target_valid)
        if bar is not None:
            bar.advance(per_batch)
    model.train(was_training)
    return sums.compute() if sums else []


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

    def complete(self, max_epochs: int, patience: int) -> bool:
        """Whether there is nothing left to train."""
        return self.epoch >= max_epochs or self.epoch - 1 - self.best_epoch >= patience


class Interrupt:
    """Ctrl-C or SIGTERM asks the loop to stop after the step at hand; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def listening(self) -> Iterator[Interrupt]:
        """Install the handlers, and put the old ones back."""
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
    run: RunFolder,
    *,
    max_epochs: int,
    patience: int,
    log_every_n_steps: int = 50,
    progress: Progress | None = None,
) -> Progress:
    """Train until max_epochs, or until ``patience`` epochs brought no better validation MAE.

    best.pt, last.pt and metrics.jsonl in the run folder are up to date after every epoch, last.pt also before the
    first and after an interruption.  ``progress`` continues where a checkpoint stood, to the same weights as without
    the interruption.
    """
    if progress is None:
        progress = Progress()
        save_progress(learner, progress, run)
    left = (max_epochs - progress.epoch) * train.num_windows
    with Interrupt().listening() as interrupt, progress_bar("train", left, "windows") as bar:
        while not progress.complete(max_epochs, patience) and not interrupt.asked:
            began = time.perf_counter()
            seen = _train_epoch(learner, train, progress, log_every_n_steps, max_epochs, bar, interrupt)
            seconds = time.perf_counter() - began
            bar.advance(0, f"epoch {progress.epoch + 1}/{max_epochs}  validating")
            scores = evaluate(learner.model, validation, learner.precision, stop=lambda: interrupt.asked)
            if not scores:
                break
            if not all(of_target[-1].count for of_target in scores):
                raise SocialxError("no validation window has a valid target: use a longer file, or another --split")
            maes = (weight * of_target[-1].mae for weight, of_target in zip(learner.target_weight, scores, strict=True))
            _end_epoch(learner, progress, sum(maes) / len(scores), seen / seconds, run, max_epochs, bar)
    progress.interrupted = interrupt.asked and not progress.complete(max_epochs, patience)
    save_progress(learner, progress, run)
    return progress


def _train_epoch(
    learner: Learner,
    train: Loader,
    progress: Progress,
    log_every_n_steps: int,
    max_epochs: int,
    bar: Bar,
    interrupt: Interrupt,
) -> int:
    """The rest of one epoch from ``progress.batch`` on -> windows seen."""
    learner.model.train()
    first = progress.batch
    per_batch = train.num_windows / len(train)
    running = torch.zeros((), device=learner.precision.device)
    unread = 0

    def read() -> None:
        nonlocal running, unread
        if unread:
            progress.loss_sum += running.item()  # the one host sync, every log_every_n_steps steps
            progress.loss_steps += unread
            running, unread = torch.zeros_like(running), 0
        if not math.isfinite(progress.loss_sum):
            raise SocialxError(
                f"the training loss is not finite after {learner.steps} steps: a smaller --learning-rate than "
                f"{learner.learning_rate:g}, or --precision 32-true"
            )

    def after_step(loss: Tensor, batches: int) -> bool:
        nonlocal unread
        running.add_(loss)
        unread += 1
        progress.batch += batches
        note = None
        if learner.steps % log_every_n_steps == 0 or interrupt.asked:
            read()
            note = f"epoch {progress.epoch + 1}/{max_epochs}  loss {progress.loss_sum / progress.loss_steps:.3f}"
        bar.advance(batches * per_batch, note)
        return interrupt.asked

    run_steps(learner, train.epoch(progress.epoch, first), after_step)
    read()
    return round((progress.batch - first) * per_batch)


def _end_epoch(
    learner: Learner, progress: Progress, mae: float, speed: float, run: RunFolder, max_epochs: int, bar: Bar
) -> None:
    loss = progress.loss_sum / max(1, progress.loss_steps)
    better = mae < progress.best_mae
    row = {
        "epoch": progress.epoch + 1,
        "steps": learner.steps,
        "train_mae": loss,
        "validation_mae": mae if math.isfinite(mae) else None,
        "windows_per_s": round(speed, 1),
        "learning_rate": learner.rate(learner.steps - 1),
    }
    if better:
        progress.best_mae, progress.best_epoch = mae, progress.epoch
        checkpoint.save(run.best, {"model": learner.model.state_dict(), "epoch": progress.epoch + 1, "mae": mae})
    progress.epoch, progress.batch, progress.loss_sum, progress.loss_steps = progress.epoch + 1, 0, 0.0, 0
    run.write_metrics(row)
    save_progress(learner, progress, run)
    bar.say(
        f"epoch {row['epoch']:>3}/{max_epochs}  train MAE {loss:.3f}  validation MAE {mae:.3f}  "
        f"{speed:,.0f} windows/s{'  best' if better else ''}"
    )


def save_progress(learner: Learner, progress: Progress, run: RunFolder) -> None:
    """Write last.pt: learner, progress and generators."""
    random = checkpoint.random_state(learner.precision.device)
    checkpoint.save(run.last, {"learner": learner.state(), "progress": vars(progress), "random": random})


def load_progress(learner: Learner, run: RunFolder) -> Progress:
    """Read last.pt into the learner -> where to go on."""
    device = learner.precision.device
    content = checkpoint.load(run.last, device, "learner", "progress", "random")
    learner.load_state(content["learner"])
    checkpoint.set_random_state(content["random"], device)
    return Progress(**{**content["progress"], "interrupted": False})
