"""A model and everything that changes it: one optimizer step, which never waits for the device.

The loss stays on the device, the gradient norm is clipped without looking at it, and a fused AdamW lets the gradient
scaler skip a step without asking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.core.errors import SocialxError, fall_back, in_short
from socialx.core.precision import Precision, is_out_of_memory
from socialx.model.state import check_state, tensor_matches
from socialx.model.xlstm.encoder import SharedEncoder
from socialx.scoring.metrics import masked_absolute_error
from socialx.training.cuda_graph import CapturedStep, CudaRecorder, Given
from socialx.training.process_group import SINGLE, ProcessGroup


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
        warmup_steps: int = 0,
        gradient_clip_val: float = 0.0,
        accumulate_grad_batches: int = 1,
        compile: str = "off",
        cuda_graph: bool = False,
        target_weight: Sequence[float] = (1.0,),
        group: ProcessGroup = SINGLE,
        teacher_weight: float = 0.0,
    ) -> None:
        """total_steps: optimizer steps until the cosine reaches 0.  gradient_clip_val 0 does not clip.

        target_weight: how much an error of each target counts; several targets have several units.

        group: the processes that share a batch.

        teacher_weight: the share of the loss that compares with what other models forecast, ``Target.taught``
        (Hinton et al. 2015, "Distilling the knowledge in a neural network", arXiv:1503.02531).

        compile: off, or a mode of torch.compile, default or max-autotune.  cuda_graph: replay the step, on CUDA.  Both
        compute the same step and warn with a ``FallbackWarning`` where they cannot.
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
        self._compile = compile
        self.records = cuda_graph and precision.device.type == "cuda"  # steps as CUDA graphs, after the first ones
        self.group = group
        self.teacher_weight = teacher_weight
        if self.records and group.world_size > 1:
            self.records = False
            fall_back("trainer.cuda_graph", f"{group.world_size} processes sum gradients in a step", "going on without")
        elif cuda_graph and not self.records:
            fall_back("trainer.cuda_graph", f"the device is {precision.device}, not CUDA", "going on without")
        self.eager = compile == "off" and not self.records  # neither compiled nor recorded for the shape of batches
        self._choose_step()

    def _choose_step(self) -> None:
        """Choose how steps run, before the first one and whenever the tensors that they change are replaced."""
        self._uncompiled = False  # whether the model turned out not to compile
        self._forecast: Callable[[Batch], Tensor] = self.model
        self._device_step: Callable[[Sequence[Given]], Tensor] = self._on_device
        # A recorded step reads the learning rate from the device, where every step writes it.
        self._recorded_rate = torch.zeros((), device=self.precision.device)
        for group in self.optimizer.param_groups:
            group["capturable"] = self.records
            group["lr"] = self._recorded_rate if self.records else 0.0
        if self._compile != "off":
            if self._encoder is not None:
                with self.precision.autocast():  # the kernels are tried here: nothing may while it is traced
                    self._encoder.choice(self.precision.device)
            # The mode of that name records graphs of its own, which would meet ours.
            mode = {"max-autotune": "max-autotune-no-cudagraphs"}.get(self._compile, self._compile)
            if self._chunked is None:
                self._forecast = torch.compile(self.model, dynamic=False, mode=mode)
            else:
                self._chunked.compile_chunks(mode)
            self._device_step = self._on_device_compiled
        self._forecast_of: Callable[[Sequence[Given]], Tensor] = self._on_device_forecast
        if self.records:
            recorder = CudaRecorder()
            self._device_step = CapturedStep(self._device_step, recorder, self._drop_gradients)
            self._forecast_of = CapturedStep(self._on_device_forecast, recorder)

    @property
    def _encoder(self) -> SharedEncoder | None:
        encoder = getattr(self.model, "encoder", None)
        return encoder if isinstance(encoder, SharedEncoder) else None

    @property
    def _chunked(self) -> SharedEncoder | None:
        """The encoder that runs in chunks, of which one is compiled in place of the whole model: on a CPU."""
        return self._encoder if self.precision.device.type == "cpu" else None

    def rate(self, step: int) -> float:
        """Learning rate of optimizer step ``step``: linear warm-up, then cosine to 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def step(self, examples: Sequence[Given]) -> Tensor:
        """One optimizer step on a group of batches -> masked MAE of the group in the file's unit, left on the device.

        The group counts as one large batch, together with those of the other processes: errors are divided by the valid
        entries of all of it, so that splitting a batch changes nothing but the memory.  Of several processes each
        returns its part of the MAE; their sum is the MAE.
        """
        rate = self.rate(self.steps)
        if self.records:
            self._recorded_rate.fill_(rate)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        loss = self._device_step(examples)
        self.steps += 1
        return loss

    def _on_device(self, examples: Sequence[Given]) -> Tensor:
        """All that a step does on the device: what a CUDA graph holds, so no number of the host may enter."""
        gathered = [example.gather() for example in examples]
        first, *others = (target.valid.sum() for _, target in gathered)
        count = self.group.all_reduce(sum(others, first)).clamp(min=1)
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
        self.group.sum_gradients(self.model.parameters())
        if self.gradient_clip_val:
            self.grad_scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_clip_val)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def forecast(self, example: Given) -> Tensor:
        """The forecast [B,P,N,G] of a batch on the device as the model is now, recorded where steps are."""
        return self._forecast_of([example])

    @torch.no_grad()
    def _on_device_forecast(self, examples: Sequence[Given]) -> Tensor:
        with self.precision.autocast():
            return self.model(examples[0].gather().batch)

    def _on_device_compiled(self, examples: Sequence[Given]) -> Tensor:
        """A step while it is not known whether the model compiles: what fails here would fail in every step."""
        try:
            return self._on_device(examples)
        except SocialxError:
            raise
        except Exception as error:  # those of torch.compile and Triton are of many kinds; the step as it is tells
            capturing = self.records and torch.cuda.is_current_stream_capturing()
            if capturing or self._uncompiled or is_out_of_memory(error):
                raise  # a recording must end before anything else
            self._uncompiled, self._forecast = True, self.model
            if self._chunked is not None:
                self._chunked.compile_chunks(None)
            self._drop_gradients()
            loss = self._on_device(examples)
            fall_back("trainer.compile", f"the model does not compile ({in_short(error)})", "going on without")
            return loss

    def _drop_gradients(self) -> None:
        """The host's side of a step that was begun: gradients, and what the scaler remembers of them."""
        self.optimizer.zero_grad(set_to_none=True)
        state, self.grad_scaler = self.grad_scaler.state_dict(), self.precision.grad_scaler()
        self.grad_scaler.load_state_dict(state)

    def skipped(self) -> int:
        """Steps that the gradient scaler left out because a gradient was not finite; waits for the device."""
        if not self.grad_scaler.is_enabled() or not self.optimizer.state:
            return 0
        taken = torch.stack([state["step"] for state in self.optimizer.state.values()]).max()
        return self.steps - int(taken.item())

    def state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs of the learner."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "grad_scaler": self.grad_scaler.state_dict(),
            "steps": self.steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Put ``state`` back; rates and decay stay those of this learner.

        Raises ValueError where it is not a state of this model.  Everything is checked first: the fused optimizer
        writes to its moments without looking at their sizes and strides.
        """
        check_state(self.model, state["model"])
        moments, found = state["optimizer"]["state"], {}
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if not set(moments) <= set(range(len(parameters))):
            raise ValueError(f"moments of {len(moments)} parameters, and the model has {len(parameters)}")
        for place, of in moments.items():
            parameter, scalar = parameters[place], torch.zeros(())
            for name, like in (("step", scalar), ("exp_avg", parameter), ("exp_avg_sq", parameter)):
                if not tensor_matches(of[name], like):
                    raise ValueError(f"{name} of parameter {place} does not fit its shape {tuple(like.shape)}")
            if set(of) != {"step", "exp_avg", "exp_avg_sq"} or bool((of["exp_avg_sq"] < 0).any()):
                raise ValueError(f"the moments of parameter {place} are not those of AdamW")
            found[place] = {"step": of["step"].clone()}
            for name in ("exp_avg", "exp_avg_sq"):
                found[place][name] = torch.empty_like(parameter, requires_grad=False).copy_(of[name])
        scaler, names = state["grad_scaler"], set(self.grad_scaler.state_dict())
        if set(scaler) != names or not all(math.isfinite(value) and value >= 0 for value in scaler.values()):
            raise ValueError("the gradient scaler is not one of this precision")
        if type(state["steps"]) is not int or not 0 <= state["steps"] < 1 << 53:
            raise ValueError("the number of steps is none")
        self.model.load_state_dict(state["model"])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": found, "param_groups": groups})
        self._choose_step()
        self.grad_scaler.load_state_dict(scaler)
        self.steps = state["steps"]
