"""What a training step computes and moves, and what this device does at best: counted and measured, not looked up."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from socialx.batch import Batch, Example, Target
from socialx.model.attention import WORK
from socialx.precision import Precision

MATRIX = {"cuda": 8192, "cpu": 1024}
COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
LEAST_S = 0.1  # of each measurement


def work_of(model: nn.Module, example: Example) -> tuple[float, float]:
    """Operations and bytes of a forward and a backward pass of one window, counted on the CPU in float32.

    A multiplication and an addition are two operations (torch's FlopCounterMode, which counts matrix products).  Bytes
    are those that all operators read and write, views left out, as if nothing stayed in a cache.  An LSTM counts as the
    products that it consists of, not as one operator of a library.
    """
    from torch.utils.flop_counter import FlopCounterMode  # it imports triton, which takes 0.2 s

    device = torch.device("cpu")
    batch = Batch(*(tensor[:1].to(device) for tensor in example.batch))
    counted = copy.deepcopy(model).to(device)
    with (
        warnings.catch_warnings(action="ignore"),  # of flags on builds without Intel GPUs
        torch.random.fork_rng(devices=[]),
        torch.backends.mkldnn.flags(enabled=False),
        FlopCounterMode(display=False, custom_mapping=WORK) as flops,
        _Bytes() as moved,
    ):
        counted(batch).sum().backward()
    return float(flops.get_total_flops()), float(moved.total)


class _Bytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operators read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.total += sum(each.nbytes for each in tree_leaves((args, kwargs, result)) if isinstance(each, Tensor))
        return result


def machine(precision: Precision) -> dict[str, float]:
    """The rates of this device: a large square matrix product in the type of the training, and a large copy."""
    device, dtype = precision.device, precision.low or torch.float32
    size, count = MATRIX[device.type], COPY_BYTES[device.type]
    some = torch.randn(size, size, dtype=dtype, device=device)
    product = torch.empty_like(some)
    flops = 2 * size**3 / _best(lambda: torch.mm(some, some, out=product), device)
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    moved = 2 * count / _best(lambda: target.copy_(source), device)
    return {"matmul_flops_per_s": flops, "copy_bytes_per_s": moved}


def _best(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the quickest of some calls."""
    seconds: list[float] = []
    while len(seconds) < 4 or sum(seconds) < LEAST_S:
        seconds.append(timed(run, device))
    return min(seconds)


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the device's work included."""
    synchronize(device)
    began = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    """Wait for a CUDA device; a CPU has nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def repeated(example: Example, times: int) -> Example:
    """The same windows several times in one batch."""

    def whole(tensors: Iterable[Tensor]) -> list[Tensor]:
        return [torch.cat([tensor] * times) for tensor in tensors]

    return Example(Batch(*whole(example.batch)), Target(*whole(example.target)))
