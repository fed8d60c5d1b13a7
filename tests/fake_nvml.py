"""A library of NVML that is not there."""

import sys
import types

import pytest
import torch

from socialx.training import gpu_usage as device


def fake_nvml(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    """A library that knows the card GPU-abc, in a process whose card has this uuid."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(uuid=uuid))
    nvml = types.ModuleType("pynvml")
    readings = iter(range(1000))

    class NVMLError(Exception):
        pass

    def by_uuid(uuid: str) -> str:
        if uuid != "GPU-abc":
            raise NVMLError("Not Found")
        return "handle"

    nvml.NVMLError, nvml.nvmlInit, nvml.nvmlDeviceGetHandleByUUID = NVMLError, lambda: None, by_uuid
    nvml.nvmlDeviceGetUtilizationRates = lambda _: types.SimpleNamespace(gpu=10 * (next(readings) % 10))
    nvml.NVML_CLOCK_SM = 1
    nvml.nvmlDeviceGetMaxClockInfo = lambda *_: 2000
    nvml.nvmlDeviceGetClockInfo = lambda *_: 1500
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda _: 0
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(device, "INTERVAL_S", 0.001)
