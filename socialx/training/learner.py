"""A model with its optimizer, schedule and gradient scaler: one optimizer step that never waits for the device.

The loss stays on the device, gradients are clipped without reading the norm, and a fused AdamW lets the gradient scaler
skip a step without asking the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from socialx.core.batch import Batch, TrainingBatch
from socialx.core.errors import Argument, SocialxError, fall_back, in_short
from socialx.core.precision import Precision, is_out_of_memory
from socialx.data.scaler import DataSpec
from socialx.scoring.metrics import masked_absolute_error
from socialx.settings.schema import TEACHER_WEIGHT, TrainerSettings
from socialx.training.clock import StepClock
from socialx.training.cuda_graph import CapturedStep, CastTogether, CudaRecorder, Example, Work
from socialx.training.process_group import SINGLE, ProcessGroup


class Learner:
    """A model with its optimizer, learning rate schedule, gradient scaler and step count."""

    def __init__(
        self,
        model: nn.Module,
        network: DataSpec,
        precision: Precision,
        trainer: TrainerSettings,
        group: ProcessGroup = SINGLE,
    ) -> None:
        """Move the model to the device, and build optimizer and gradient scaler.

        network: gives the targets; each error is weighted by the first target's standard deviation over the target's,
        because units differ, so one target gives the MAE.  precision: device and number type.  trainer: with a choice
        for ``compile`` and ``cuda_graph``, because ``auto`` is off here; both compute the same step, and warn with a
        ``FallbackWarning`` where unavailable.  group: the processes that share a batch.
        """
        self.model, self.network, self.precision = model.to(precision.device), network, precision
        self.trainer, self.group, self.clock = trainer, group, StepClock()
        # Biases, norms, radii and other vectors are not decayed: decay would pull a radius towards 1 km.
        matrices = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
        vectors = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": trainer.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=trainer.learning_rate, fused=True)
        self.grad_scaler = precision.grad_scaler()
        self.steps, self.total_steps = 0, math.inf  # until fit plans the schedule, the rate stays at its peak
        self.target_weight = [network.targets[0].std / moments.std for moments in network.targets]
        several = len(self.target_weight) > 1
        self._weight = torch.tensor(self.target_weight, device=precision.device) if several else None
        self.compiles = trainer.compile not in ("auto", "off")  # each shape of a batch
        self.records = trainer.cuda_graph == "on" and precision.device.type == "cuda"  # after the first steps
        if trainer.cuda_graph == "on" and not self.records:
            problem = f"{Argument('trainer.cuda_graph')} is off: the device is {precision.device}, not CUDA"
            fall_back("train.graph-not-cuda", "", problem)
        self._choose_step()

    def _choose_step(self) -> None:
        """Set up plain, compiled or recorded steps: before the first step, and after model tensors are replaced."""
        self._uncompiled = False  # whether compilation failed
        self._sums, self._trained = torch.empty(0), list[nn.Parameter]()
        self._forecast: Callable[[Batch], Tensor] = self.model
        self._device_step: Work = self._plain_step if self.group.world_size == 1 else self._sum_share
        # A recorded step reads the learning rate from the device, where every step writes it.
        self._recorded_rate = torch.zeros((), device=self.precision.device)
        for group in self.optimizer.param_groups:
            group["capturable"] = self.records
            group["lr"] = self._recorded_rate if self.records else 0.0
        if self.compiles:
            # max-autotune records CUDA graphs itself, which would conflict with CapturedStep.
            mode = {"max-autotune": "max-autotune-no-cudagraphs"}.get(self.trainer.compile, self.trainer.compile)
            self._forecast = torch.compile(self.model, dynamic=False, mode=mode)
            self._device_step = partial(self._compiled_step, self._device_step)
        elif self.records and self.precision.low is not None:
            self._forecast = CastTogether(self.model, self.precision.low)
        self._forecast_step: Work = self._run_forecast
        self._update_step: Work = self._update_together
        if self.records:
            recorder = CudaRecorder()
            self._device_step = CapturedStep(self._device_step, recorder, self._drop_gradients)
            self._update_step = CapturedStep(self._update_together, recorder, self._drop_gradients)
            self._forecast_step = CapturedStep(self._run_forecast, recorder)

    def rate(self, step: int) -> float:
        """Return the learning rate of optimizer step ``step``: linear warm-up, then cosine to 0."""
        peak, warmup = self.trainer.learning_rate, self.trainer.lr_warmup_steps
        if step < warmup:
            return peak * (step + 1) / warmup
        done = (step - warmup) / max(1, self.total_steps - warmup)
        return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def step(self, examples: Sequence[Example]) -> Tensor:
        """Take one optimizer step on a group of batches, and return the masked MAE in the file's unit, on the device.

        The group counts as one large batch across all processes: errors are divided by the valid entries in the whole
        group, so splitting a batch changes memory use alone.  Several processes sum once a step, between two parts.
        """
        rate = self.rate(self.steps)
        if self.records:
            self._recorded_rate.fill_(rate)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        result = self._device_step(examples)
        if self.group.world_size > 1:
            self._sums = self._sums.copy_(result) if len(self._sums) else result  # what is recorded reads one place
            self.group.all_reduce(self._sums)
            result = self._update_step(())
        self.steps += 1
        return result

    def _plain_step(self, examples: Sequence[Example]) -> Tensor:
        """Run forward, backward and optimizer, and return the MAE; recorded in CUDA graphs, so free of host values."""
        gathered = [example.gather() for example in examples]
        total = self._backward(gathered, _count_valid(gathered).clamp(min=1))
        self._update()
        return total

    def _backward(self, gathered: Sequence[TrainingBatch], count: Tensor | int) -> Tensor:
        """Run forward and backward, and return the error sum over ``count``.

        With teacher forecasts, the loss compares with teachers too (Hinton et al., 2015, "Distilling the knowledge in a
        neural network", arXiv:1503.02531).
        """
        total = torch.zeros((), device=self.precision.device)
        for batch, target in gathered:
            self._mark("compute")
            with self.precision.autocast():
                forecast = self._forecast(batch)
            error = masked_absolute_error(forecast, target.values, target.valid, self._weight) / count
            total = total + error.detach()
            if target.teacher_forecast.numel():
                mean = target.teacher_forecast.to(forecast.dtype)
                teacher_forecast = masked_absolute_error(forecast, mean, target.valid, self._weight) / count
                error = (1 - TEACHER_WEIGHT) * error + TEACHER_WEIGHT * teacher_forecast
            self._mark("backward")
            self.grad_scaler.scale(error).backward()
        return total

    def _mark(self, part: str) -> None:
        """Mark where a step's part begins; a recorded step is one launch, and would hold the mark."""
        if not self.records:
            self.clock.mark(part)

    def _update(self) -> None:
        """Clip the gradients, and let the optimizer take its step."""
        self._mark("update")
        if self.trainer.gradient_clip_val:
            self.grad_scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.trainer.gradient_clip_val)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def _sum_share(self, examples: Sequence[Example]) -> Tensor:
        """Return gradients, error and valid entries of this process's share, flat, over all its entries, for fp16."""
        gathered = [example.gather() for example in examples]
        entries = sum(target.valid.numel() for _, target in gathered)
        error = self._backward(gathered, entries)
        gradients = {weight: weight.grad for weight in self.model.parameters() if weight.grad is not None}
        self._trained, parts = list(gradients), [*gradients.values(), error, _count_valid(gathered) / entries]
        self.optimizer.zero_grad(set_to_none=True)
        return torch.cat([part.flatten() for part in parts])

    def _update_together(self, _: Sequence[Example] = ()) -> Tensor:
        """Take the optimizer step with the sums of all processes, and return the MAE."""
        means = self._sums[:-1] / self._sums[-1].clamp(min=1e-12)
        *gradients, error = means.split([*(parameter.numel() for parameter in self._trained), 1])
        for parameter, gradient in zip(self._trained, gradients, strict=True):
            parameter.grad = gradient.view_as(parameter)
        self._update()
        return error[0]

    def forecast(self, example: Example) -> Tensor:
        """Return the forecast [B,P,N,G] (P lead times, G targets) with current weights, as a CUDA graph like steps."""
        return self._forecast_step([example])

    @torch.no_grad()
    def _run_forecast(self, examples: Sequence[Example]) -> Tensor:
        with self.precision.autocast():
            return self.model(examples[0].gather().batch)

    def _compiled_step(self, work: Work, examples: Sequence[Example]) -> Tensor:
        """Run a step that compiles; where compilation fails, run this and all later steps uncompiled."""
        try:
            return work(examples)
        except SocialxError:
            raise
        except Exception as error:  # torch.compile raises many kinds of errors; the plain step tells
            capturing = self.records and torch.cuda.is_current_stream_capturing()
            if capturing or self._uncompiled or is_out_of_memory(error):
                raise  # a recording must end before anything else
            self._uncompiled, self._forecast = True, self.model
            self._drop_gradients()
            result = work(examples)
            problem = f"{Argument('trainer.compile')} is off: the model does not compile ({in_short(error)})"
            fall_back("train.compile-off", "", problem)
            return result

    def _drop_gradients(self) -> None:
        """Clear gradients and the gradient scaler's record of a failed step, so that the step can run again."""
        self.optimizer.zero_grad(set_to_none=True)
        state, self.grad_scaler = self.grad_scaler.state_dict(), self.precision.grad_scaler()
        self.grad_scaler.load_state_dict(state)

    def count_skipped(self) -> int:
        """Return how many steps the gradient scaler skipped for non-finite gradients; waits for the device."""
        if not self.grad_scaler.is_enabled() or not self.optimizer.state:
            return 0
        taken = torch.stack([state["step"] for state in self.optimizer.state.values()]).max()
        return self.steps - int(taken.item())

    def state(self) -> dict[str, Any]:
        """Return weights, optimizer, gradient scaler and step count, from which ``load_state`` continues exactly."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "grad_scaler": self.grad_scaler.state_dict(),
            "steps": self.steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the content of ``state()``; learning rate and weight decay stay as this learner was built with."""
        self.model.load_state_dict(state["model"])
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        moments = {index: {"step": moment["step"].clone()} for index, moment in state["optimizer"]["state"].items()}
        for index, moment in moments.items():
            for name in ("exp_avg", "exp_avg_sq"):  # in the memory order of the parameter, as the fused optimizer reads
                stored = state["optimizer"]["state"][index][name]
                moment[name] = torch.empty_like(parameters[index], requires_grad=False).copy_(stored)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self._choose_step()
        self.grad_scaler.load_state_dict(state["grad_scaler"])
        self.steps = state["steps"]


def count_steps(trainer: TrainerSettings, batches: int) -> int:
    """Return the optimizer steps of all epochs; batches: per epoch, in each process."""
    return trainer.max_epochs * -(-batches // trainer.accumulate_grad_batches)


def _count_valid(gathered: Sequence[TrainingBatch]) -> Tensor:
    first, *others = (target.valid.sum() for _, target in gathered)
    return sum(others, first)
