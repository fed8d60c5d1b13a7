"""Which numbers the step computes in.  Lightning's names; what is asked for is what runs, on a CPU too."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from socialx.core.batch import Batch
from socialx.core.errors import Argument, Command, Message, SettingsError
from socialx.core.progress import note

# As torch, CUDA, its libraries, Triton and the system put it.
NO_MEMORY = re.compile(
    "out.?of.?memory|not enough memory|(can't|cannot|failed to) allocate memory|alloc_failed|MemoryAllocation", re.I
)
FIRST_SCALE = 2.0**11  # of the gradients in fp16: those of an untrained model overflow at torch's 2**16


@dataclass(frozen=True)
class Precision:
    """A precision in effect on a device: 32-true, 16-mixed or bf16-mixed."""

    name: str
    device: torch.device

    @property
    def low(self) -> torch.dtype | None:
        """The type of the matrix products, None for plain fp32."""
        return {"32-true": None, "16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}[self.name]

    def autocast(self) -> torch.autocast:
        """The context of the forward pass.  Weights, gates, states, geometry and the loss stay fp32."""
        return torch.autocast(self.device.type, dtype=self.low, enabled=self.low is not None)

    def infer(self, model: nn.Module, batch: Batch) -> np.ndarray:
        """What a model in evaluation mode forecasts for a batch, float32 [B,P,N,G] on the host, without gradients."""
        with torch.inference_mode(), self.autocast():
            forecast: torch.Tensor = model(batch.to(self.device))
            return forecast.float().cpu().numpy()

    def grad_scaler(self) -> torch.amp.GradScaler:
        """Live for fp16 alone: bf16 has fp32's range."""
        return torch.amp.GradScaler(self.device.type, FIRST_SCALE, enabled=self.name == "16-mixed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host ran out of memory; torch has an exception of its own for its own allocator alone."""
    return isinstance(error, torch.OutOfMemoryError) or bool(NO_MEMORY.search(str(error)))


def resolve_device(name: str) -> torch.device:
    """auto | cpu | cuda | cuda:1 -> device; of several processes on a machine each has a card of its own.

    auto is the CPU, with a note, where this torch has no code for the card.  Raises SettingsError where CUDA is asked
    for and not there, or of no use.
    """
    auto = name == "auto" and torch.cuda.is_available()
    name = {"auto": "cuda" if auto else "cpu"}.get(name, name)
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    device = torch.device(name)
    if device.type == "cuda":
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if device.index >= devices:
            raise SettingsError(
                f"trainer.device {name}",
                f"this torch sees {devices} CUDA devices",
                f"{Argument('trainer.device', 'cpu')}, or {Argument('trainer.device', 'auto')}",
            )
        if reason := unsupported_reason(device):
            if not auto:
                raise SettingsError(f"trainer.device {name}", reason, Argument("trainer.device", "cpu"))
            note(Message(device, reason, f"going on on the CPU; {Command('doctor')}"))
            return torch.device("cpu")
    return device


def unsupported_reason(card: torch.device) -> str:
    """Why this torch cannot run on a card; empty: it has code of the card's generation, or in a portable form."""
    capability = torch.cuda.get_device_capability(card)
    built = re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(torch.cuda.get_arch_list()))  # of AMD's cards other names
    codes = [(kind, (int(major), int(minor))) for kind, major, minor in built]
    if not codes or any(code <= capability and (kind == "compute" or code[0] == capability[0]) for kind, code in codes):
        return ""
    name, built_for = (
        torch.cuda.get_device_name(card),
        ", ".join(f"{kind}_{major}{minor}" for kind, (major, minor) in codes),
    )
    return f"this torch has no code for {name}, capability {capability[0]}.{capability[1]}, only {built_for}"


def resolve_precision(name: str, device: torch.device) -> Precision:
    """auto is bf16-mixed on CUDA (16-mixed on cards without bf16) and 32-true on a CPU."""
    if name == "auto":
        bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        name = {"cpu": "32-true"}.get(device.type, "bf16-mixed" if bf16 else "16-mixed")
    return Precision(name, device)
