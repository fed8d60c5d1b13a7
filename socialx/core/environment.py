"""Machine and package versions, for the record in runs and scores."""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import platform
import re
import resource
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from socialx.core.precision import Precision
from socialx.core.version import PACKAGE, __version__

MIB = 1 << 20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of mallopt


def environment(precision: Precision) -> dict[str, Any]:
    """Return the device and number type of ``precision``, package versions and the command, for the record of a run."""
    device = precision.device
    cpu = cpu_field("model name") or platform.processor() or platform.machine()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    return {
        "socialx": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version(name) for name in ("xlstm", "numpy", "h5py", "pandas", "pydantic")},
        "device": device.type,
        "device_name": name,
        "precision": precision.name,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "command": sys.argv,
    }


def usable_cores() -> int:
    """Return the cores available to this process on the machine and in the control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # outside a control group
        return cores


def others_cpu_s() -> float | None:
    """Return CPU seconds since boot that other programs took on this process's cores; ``None`` if unknown."""
    try:
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        # In clock ticks: user, nice, system; irq, softirq, steal.
        ticks = sum(int(count) for name, *counts in lines if name in cores for count in (*counts[:3], *counts[5:8]))
        for child in multiprocessing.active_children():
            ticks -= sum(map(int, Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    except (OSError, ValueError, AttributeError):  # other systems, or a child that just ended
        return None
    return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4]) if ticks else None


def cpu_field(name: str) -> str:
    """Return a field, such as ``model name``, for the first processor in /proc/cpuinfo, or an empty text."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    line = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
    return line[1].strip() if line else ""


def free_memory() -> int | None:
    """Return free bytes for this process: by machine, control group and limit; ``None`` if unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError, KeyError):  # other systems, or an absent file
        limits.append(_meminfo("MemAvailable"))
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limits.append(max(0, limit - pages * resource.getpagesize()))
        group = Path("/sys/fs/cgroup")
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            limits.append(max(0, int(most) - int((group / "memory.current").read_text())))
    return min(limits, default=None)


def _meminfo(name: str) -> int:
    """Return the bytes in a /proc/meminfo line, such as MemTotal."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return 1024 * int(fields[name].split()[0])


def free_bytes(device: torch.device) -> int | None:
    """Return free bytes on a device for this process; ``None`` if unknown."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


def keep_freed_memory(keep: bool) -> None:
    """On Linux, keep freed memory in the process, or return blocks of 1 MiB and more to the system.

    A training step allocates equal tensors each time. glibc maps tensors over 32 MiB afresh and trims the heap, and the
    kernel clears every page: keeping memory cuts a step to 0.7 to 0.87 of the time on one core. A checkpointed encoder
    frees more than is kept, and heap gaps would cost several times the saved memory.
    """
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ:  # the user has chosen
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0 if keep else 65536)
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1 if keep else MIB)
        if not keep:
            mallopt(M_MMAP_THRESHOLD, MIB)


def used_bytes(device: torch.device) -> int:
    """Return bytes held by this process's tensors on CUDA, or the process memory on a CPU; 0 if unknown."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def peak_bytes() -> int:
    """Return this process's peak memory in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def total_memory() -> int | None:
    """Return total bytes on this machine or in the control group; ``None`` if unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError, KeyError):  # as in free_memory
        limits.append(_meminfo("MemTotal"))
        most = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        limits += [] if most == "max" else [int(most)]
    return min(limits, default=None)


@cache
def commit() -> str | None:
    """Return the source tree's commit, with -dirty; ``None`` for an installed wheel."""
    root = PACKAGE.parent
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
