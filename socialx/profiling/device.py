"""What the device itself says while we measure: NVML's utilisation, memory and clocks, sampled by a thread.

NVML's utilisation is the share of its own last window (1/6 to 1 s) in which *any* kernel ran: a stream of 4 us kernels
reads 100 %.  It is reported because people ask for it, and never judged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from socialx.profiling.profile import DeviceSummary

INTERVAL_S = 0.2
# NVML's bits for a clock that was lowered, other than for idleness or by the user (nvml.h, clocks event reasons).
REASONS = {"power cap": 0x4, "hardware slowdown": 0x8, "temperature": 0x60, "power brake": 0x80}


@dataclass
class DeviceSamples:
    """Utilisation in percent, used memory in bytes, one entry per sample; ``why`` says why there are none.

    clock: of the SMs, as a share of their highest.  reasons: bits of why it was lowered.  A device may tell neither.
    """

    utilisation: list[float] = field(default_factory=list)
    used_bytes: list[int] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    reasons: list[int] = field(default_factory=list)
    why: str | None = None

    def summary(self) -> DeviceSummary | None:
        """Mean, lowest and highest utilisation and the highest memory; None where nothing was sampled."""
        if not self.utilisation:
            return None
        return DeviceSummary(
            utilisation_mean=sum(self.utilisation) / len(self.utilisation) / 100,
            utilisation_min=min(self.utilisation) / 100,
            utilisation_max=max(self.utilisation) / 100,
            used_bytes_max=max(self.used_bytes),
            samples=len(self.utilisation),
            sm_clock_share=sum(self.clock) / len(self.clock) if self.clock else None,
            throttled_by=self._throttled_by(),
        )

    def _throttled_by(self) -> str | None:
        """The reason that was there in most samples, None where none was in half of them."""
        counts = {name: sum(bool(bits & bit) for bits in self.reasons) for name, bit in REASONS.items()}
        name = max(counts, key=lambda each: counts[each])
        return name if self.reasons and 2 * counts[name] >= len(self.reasons) else None


@contextmanager
def sampling(device: torch.device) -> Iterator[DeviceSamples]:
    """Sample the device every 0.2 s until the block ends."""
    samples = DeviceSamples()
    read = _reader(device, samples)
    if read is None:
        yield samples
        return
    done = threading.Event()

    def loop() -> None:
        while not done.wait(INTERVAL_S):
            reading = read()
            if reading is None:
                return
            samples.utilisation.append(reading[0])
            samples.used_bytes.append(reading[1])
        if not samples.utilisation:
            samples.why = f"the window was shorter than one sample ({INTERVAL_S} s)"

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def _reader(device: torch.device, samples: DeviceSamples) -> Callable[[], tuple[float, int] | None] | None:
    """A function that reads (percent, bytes) of this device, or None; the reason is in ``samples.why``."""
    if device.type != "cuda":
        samples.why = "no CUDA device"
        return None
    try:
        import pynvml
    except ImportError:
        samples.why = "nvidia-ml-py is not installed: pip install 'socialx[gpu]'"
        return None
    try:
        pynvml.nvmlInit()
        # CUDA_VISIBLE_DEVICES renumbers torch's devices, not NVML's: the UUID is the same in both.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle: Any = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        samples.why = f"NVML: {error}"
        return None

    def clocks() -> None:
        try:
            highest = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
            samples.clock.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) / highest)
            samples.reasons.append(int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        except (pynvml.NVMLError, AttributeError, ZeroDivisionError):
            return  # this card or this version of the library does not tell

    def read() -> tuple[float, int] | None:
        clocks()
        try:
            utilisation = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            return utilisation, int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        except pynvml.NVMLError as error:  # a MIG slice or a virtual card may refuse what a whole card answers
            samples.why = f"NVML: {error}"
            return None

    return read
