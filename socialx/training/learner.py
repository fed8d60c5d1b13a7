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
from socialx.model.state import check_state, tensor_matches
from socialx.scoring.metrics import masked_absolute_error
from socialx.training.cuda_graph import CapturedStep, CastTogether, CudaRecorder, Example, Work
from socialx.training.process_group import SINGLE, ProcessGroup


class Learner:
    """A model with its optimizer, learning rate schedule, gradient scaler and step count."""

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        *,
        learning_rate: float,
        weight_decay: float,
        total_steps: int,
        warmup_steps: int = 0,
        gradient_clip_val: float = 0.0,
        accumulate_grad_batches: int = 1,
        compile: str = "off",
        cuda_graph: bool = False,
        target_weight: Sequence[float] = (1.0,),
        group: ProcessGroup = SINGLE,
        teacher_weight: float = 0.0,
    ) -> None:
        """Move the model to its device, and build optimizer and gradient scaler.

        precision: device and number type.  learning_rate: after ``warmup_steps`` optimizer steps with a linear
        increase.  total_steps: optimizer steps until the cosine reaches 0.  gradient_clip_val: the largest gradient
        norm; 0 turns clipping off.  accumulate_grad_batches: batches per optimizer step.  target_weight: the weight of
        each target's error, because units differ.  group: the processes that share a batch.  teacher_weight: the
        fraction of the loss that compares with ``Target.teacher_forecast`` (Hinton et al., 2015, "Distilling the
        knowledge in a neural network", arXiv:1503.02531).  compile: off, or a mode of torch.compile (default,
        max-autotune).  cuda_graph: replay recorded steps on CUDA.  Both compute the same step, and warn with a
        ``FallbackWarning`` where unavailable.
        """
        self.model, self.precision = model.to(precision.device), precision
        # Biases, norms, radii and other vectors are not decayed: decay would pull a radius towards 1 km.
        matrices = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
        vectors = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=learning_rate, fused=True)
        self.grad_scaler = precision.grad_scaler()
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
        self.total_steps, self.gradient_clip_val = total_steps, gradient_clip_val
        self.accumulate_grad_batches = accumulate_grad_batches
        self.steps = 0
        self.target_weight = target_weight
        several = len(target_weight) > 1
        self._weight = torch.tensor(target_weight, device=precision.device) if several else None
        self.compile = compile
        self.records = cuda_graph and precision.device.type == "cuda"  # steps as CUDA graphs, after the first ones
        self.group = group
        self.teacher_weight = teacher_weight
        if cuda_graph and not self.records:
            fall_back(
                "train.graph-not-cuda",
                "",
                f"{Argument('trainer.cuda_graph')} is off: the device is {precision.device}, not CUDA",
            )
        self.compiles = compile != "off"  # each shape of a batch
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
        if self.compile != "off":
            # max-autotune records CUDA graphs itself, which would conflict with CapturedStep.
            mode = {"max-autotune": "max-autotune-no-cudagraphs"}.get(self.compile, self.compile)
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
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

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
        """Run forward and backward, and return the sum of all errors over ``count``."""
        total = torch.zeros((), device=self.precision.device)
        for batch, target in gathered:
            with self.precision.autocast():
                forecast = self._forecast(batch)
            error = masked_absolute_error(forecast, target.values, target.valid, self._weight) / count
            total = total + error.detach()
            if self.teacher_weight:
                mean = target.teacher_forecast.to(forecast.dtype)
                teacher_forecast = masked_absolute_error(forecast, mean, target.valid, self._weight) / count
                error = (1 - self.teacher_weight) * error + self.teacher_weight * teacher_forecast
            self.grad_scaler.scale(error).backward()
        return total

    def _update(self) -> None:
        """Clip the gradients, and let the optimizer take its step."""
        if self.gradient_clip_val:
            self.grad_scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_clip_val)
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
            fall_back(
                "train.compile-off",
                "",
                f"{Argument('trainer.compile')} is off: the model does not compile ({in_short(error)})",
            )
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
        """Restore the content of ``state()``; learning rate and weight decay stay as this learner was built with.

        Raises ValueError for the state of another model.  All parts are checked first, because the fused optimizer
        writes to its moments without checking sizes and strides.
        """
        check_state(self.model, state["model"])
        moments, copies = state["optimizer"]["state"], {}
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if not set(moments) <= set(range(len(parameters))):
            raise ValueError(f"the moments cover {len(moments)} parameters, and the model has {len(parameters)}")
        for index, moment in moments.items():
            parameter, scalar = parameters[index], torch.zeros(())
            for name, like in (("step", scalar), ("exp_avg", parameter), ("exp_avg_sq", parameter)):
                if not tensor_matches(moment[name], like):
                    raise ValueError(f"{name} of parameter {index} does not fit its shape {tuple(like.shape)}")
            if set(moment) != {"step", "exp_avg", "exp_avg_sq"} or bool((moment["exp_avg_sq"] < 0).any()):
                raise ValueError(f"the moments of parameter {index} differ from AdamW")
            copies[index] = {"step": moment["step"].clone()}
            for name in ("exp_avg", "exp_avg_sq"):
                copies[index][name] = torch.empty_like(parameter, requires_grad=False).copy_(moment[name])
        scaler, names = state["grad_scaler"], set(self.grad_scaler.state_dict())
        if set(scaler) != names or not all(math.isfinite(value) and value >= 0 for value in scaler.values()):
            raise ValueError("the gradient scaler has another precision")
        if type(state["steps"]) is not int or not 0 <= state["steps"] < 1 << 53:
            raise ValueError("the number of steps is invalid")
        self.model.load_state_dict(state["model"])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": copies, "param_groups": groups})
        self._choose_step()
        self.grad_scaler.load_state_dict(scaler)
        self.steps = state["steps"]


def _count_valid(gathered: Sequence[TrainingBatch]) -> Tensor:
    first, *others = (target.valid.sum() for _, target in gathered)
    return sum(others, first)
