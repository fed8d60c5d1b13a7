"""Device and precision, by Lightning's names; the chosen precision runs on a CPU, too."""

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

# Wordings in torch, CUDA libraries, compiled code and the system.
NO_MEMORY = re.compile(
    "out.?of.?memory|not enough memory|(can't|cannot|failed to) allocate memory|alloc_failed|MemoryAllocation", re.I
)
FIRST_SCALE = 2.0**11  # fp16 gradient scale: untrained models overflow at torch's default 2**16


@dataclass(frozen=True)
class Precision:
    """Precision on a device; name: 32-true, 16-mixed or bf16-mixed."""

    name: str
    device: torch.device

    @property
    def low(self) -> torch.dtype | None:
        """Type for matrix products, ``None`` for plain fp32."""
        return {"32-true": None, "16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}[self.name]

    def autocast(self) -> torch.autocast:
        """Return the forward pass context. Weights, gates, states, geometry and loss stay fp32."""
        return torch.autocast(self.device.type, dtype=self.low, enabled=self.low is not None)

    def infer(self, model: nn.Module, batch: Batch) -> np.ndarray:
        """Return the forecast float32 [B,P,N,G] (P steps, G targets) on the host, from a model in evaluation mode."""
        with torch.inference_mode(), self.autocast():
            return model(batch.to(self.device)).float().cpu().numpy()

    def grad_scaler(self) -> torch.amp.GradScaler:
        """Return the gradient scaler, enabled for fp16 only: bf16 has fp32's range."""
        return torch.amp.GradScaler(self.device.type, FIRST_SCALE, enabled=self.name == "16-mixed")


def factor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the type of matrix products: under autocast it is cast once, not once for each product."""
    device = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else tensor


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether device or host ran out of memory; torch's exception covers only the torch allocator."""
    return isinstance(error, torch.OutOfMemoryError) or bool(NO_MEMORY.search(str(error)))


def resolve_device(name: str) -> torch.device:
    """Resolve auto | cpu | cuda | cuda:1 to a device; each local process gets a separate GPU.

    auto is the CPU, with a note, if this torch lacks code for the GPU. Raises SettingsError for an absent or
    unsupported CUDA device.
    """
    auto = name == "auto" and torch.cuda.is_available()
    name = {"auto": "cuda" if auto else "cpu"}.get(name, name)
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    device = torch.device(name)
    if device.type == "cuda":
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if device.index >= devices:
            problem = f"trainer.device is {name}, but this torch sees {devices} CUDA devices"
            remedy = f"use {Argument('trainer.device', 'cpu')} or {Argument('trainer.device', 'auto')}"
            raise SettingsError("device.unseen", "", problem, remedy)
        if reason := gpu_problem(device):
            if not auto:
                raise SettingsError("device.unfit", f"trainer.device {name}", reason, Argument("trainer.device", "cpu"))
            note(Message("device.cpu-instead", device, f"{reason}, so the CPU is used", Command("doctor")))
            return torch.device("cpu")
    return device


def gpu_problem(gpu: torch.device) -> str:
    """Return why this torch cannot run on a GPU, or '' if it has native or portable code for the GPU."""
    capability = torch.cuda.get_device_capability(gpu)
    built = re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(torch.cuda.get_arch_list()))  # AMD GPUs have other names
    codes = [(kind, (int(major), int(minor))) for kind, major, minor in built]
    if not codes or any(code <= capability and (kind == "compute" or code[0] == capability[0]) for kind, code in codes):
        return ""
    name, major, minor = torch.cuda.get_device_name(gpu), *capability
    targets = ", ".join(f"{kind}_{major}{minor}" for kind, (major, minor) in codes)
    return f"this torch has no code for {name}, capability {major}.{minor}, only {targets}"


def resolve_precision(name: str, device: torch.device) -> Precision:
    """Return a precision by name; auto: bf16-mixed on CUDA (16-mixed on GPUs that lack bf16), 32-true on a CPU."""
    if name == "auto":
        bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        name = {"cpu": "32-true"}.get(device.type, "bf16-mixed" if bf16 else "16-mixed")
    return Precision(name, device)
