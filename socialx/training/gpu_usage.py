"""GPU utilisation and clocks during training, sampled from NVML by a thread, and a watch on growing memory.

NVML reports the share of a window (1/6 to 1 s) in which *any* kernel ran: a stream of 4 us kernels reads 100 %. The
number is reported because users ask for utilisation, and rules ignore the number.
"""

from __future__ import annotations

import itertools
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from socialx.core.environment import MIB, used_bytes
from socialx.core.errors import Message
from socialx.core.progress import note

INTERVAL_S = 0.2
LEAST_EPOCHS = 5  # before growth is reported
WARM_UP = 1  # first epochs, left out because they allocate buffers and caches
LARGE = 100 * MIB


@dataclass
class DeviceSamples:
    """GPU utilisation in percent, one entry per NVML sample; ``why`` explains missing samples.

    clock: SM clock as a fraction of the highest.  reasons: NVML bit masks for a lowered clock.  Both may stay empty.
    """

    utilisation: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    reasons: list[int] = field(default_factory=list)
    why: str | None = None

    @property
    def mean(self) -> float | None:
        """Mean utilisation in percent; None without samples."""
        return sum(self.utilisation) / len(self.utilisation) if self.utilisation else None


@contextmanager
def sample_device(device: torch.device) -> Iterator[DeviceSamples]:
    """Yield GPU samples that a thread adds to every 0.2 s until the block ends; without CUDA or NVML, only ``why``."""
    samples = DeviceSamples()
    if device.type != "cuda":
        samples.why = "no CUDA device"
        yield samples
        return
    try:
        import pynvml
    except ImportError:
        samples.why = "nvidia-ml-py is not installed: pip install nvidia-ml-py"
        yield samples
        return
    try:
        pynvml.nvmlInit()
        # CUDA_VISIBLE_DEVICES renumbers torch's devices, not NVML's: the UUID is the same in both.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle: Any = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        samples.why = f"NVML: {error}"
        yield samples
        return
    done = threading.Event()

    def loop() -> None:
        while not done.wait(INTERVAL_S):
            # Some GPUs and library versions do not report clocks.
            with suppress(pynvml.NVMLError, AttributeError, ZeroDivisionError):
                highest = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
                samples.clock.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) / highest)
                samples.reasons.append(int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
            try:
                utilisation = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            except pynvml.NVMLError as error:  # a MIG slice or a virtual GPU may refuse the query
                samples.why = f"NVML: {error}"
                return
            samples.utilisation.append(utilisation)
        if not samples.utilisation:
            samples.why = f"the window was shorter than one sample ({INTERVAL_S} s)"

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def growth(used: Sequence[float]) -> float:
    """Return the growth of ``used`` in bytes per sample: the median slope over all pairs (Theil-Sen, robust)."""
    pairs = itertools.combinations(enumerate(used), 2)
    return statistics.median((later - earlier) / (j - i) for (i, earlier), (j, later) in pairs)


class MemoryWatch:
    """Memory use at the end of each epoch, with a note to the user after growth by more than 100 MiB."""

    def __init__(self) -> None:
        self._used: list[float] = []
        self._said = False

    def add(self, device: torch.device) -> None:
        """Store the memory in use on ``device`` (on a CPU by the process) after an epoch; report a likely leak once."""
        self._used.append(used_bytes(device))
        used = self._used[WARM_UP:]
        if self._said or len(used) < LEAST_EPOCHS:
            return
        per_epoch = growth(used)
        if per_epoch * (len(used) - 1) > LARGE:
            self._said = True
            whose = f"tensors on {device}" if device.type == "cuda" else "this process"
            total = per_epoch * (len(used) - 1)
            problem = f"the memory of {whose} grew by {total / MIB:.0f} MiB in {len(used)} epochs, a possible leak"
            note(Message("train.leak", "", problem, "report it as a bug of socialx"))
