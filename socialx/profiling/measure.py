"""Run real training steps under a clock and report where the device's time went.

The loop is the one that ``train`` runs, with its own loader, step and logging: nothing is measured that training does
not do, and what is not measured is null with a reason.
"""

# Shape letters: B windows, T history steps, N sensors

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from socialx.data.loaders import Batch, Loader
from socialx.profiling.analysis import partition, quantile, variation
from socialx.profiling.device import sampling
from socialx.progress import progress_bar
from socialx.training.clock import NoClock, StepClock, clock_for
from socialx.training.engine import Learner, run_steps

SCHEMA = "socialx.profile/1"


def measure(learner: Learner, loader: Loader, steps: int, warmup_steps: int, log_every_n_steps: int) -> dict[str, Any]:
    """Warm up, then measure ``steps`` optimizer steps -> the profile as plain data, units in the key names.

    The model is trained while it is measured; throw it away afterwards.
    """
    device = learner.precision.device
    batches = _endless(loader)
    windows_per_step = loader.num_windows / len(loader) * learner.accumulate_grad_batches
    learner.model.train()
    with progress_bar("profile", warmup_steps + steps, "steps") as bar:
        _take(learner, batches, warmup_steps, log_every_n_steps, NoClock(), bar.advance)
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats(device)
        clock = clock_for(device)
        with sampling(device) as samples:
            _take(learner, batches, steps, log_every_n_steps, clock, bar.advance)
            parts = partition(clock.read())
    why: dict[str, str] = {}
    on_cuda = device.type == "cuda"
    for key in ("shares.kernel", "shares.bubble", "gpu_busy", "sm_efficiency"):
        why[key] = "needs a kernel trace, which this version does not take" if on_cuda else "no CUDA device"
    if not on_cuda:
        why["memory"] = "no CUDA device: allocator statistics exist for CUDA alone"
    if samples.why:
        why["device"] = samples.why
    return {
        "schema": SCHEMA,
        "window": {
            "steps": steps,
            "seconds": parts.wall,
            "warmup_steps": warmup_steps,
            "clock": clock.kind,
        },
        "shares": {**parts.shares, "kernel": None, "bubble": None},
        "gpu_busy": None,
        "sm_efficiency": None,
        "step_ms": {
            "p50": 1e3 * quantile(parts.step_seconds, 0.5),
            "p95": 1e3 * quantile(parts.step_seconds, 0.95),
            "p99": 1e3 * quantile(parts.step_seconds, 0.99),
            "cv": variation(parts.step_seconds),
        },
        "ms_per_step": {phase: 1e3 * seconds / steps for phase, seconds in parts.seconds.items()},
        "throughput": {"windows_per_s": windows_per_step * steps / parts.wall},
        "memory": _memory(device),
        "device": samples.summary(),
        "why": why,
    }


def _endless(loader: Loader) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from loader.epoch(epoch)
        epoch += 1


def _take(
    learner: Learner, batches: Iterator[Batch], steps: int, log_every_n_steps: int, clock: StepClock, advance: Any
) -> None:
    """``steps`` optimizer steps with the loss read as often as training reads it."""
    taken = 0
    running = torch.zeros((), device=learner.precision.device)

    def after_step(loss: Tensor, _: int) -> bool:
        nonlocal taken
        taken += 1
        running.add_(loss)
        if taken % log_every_n_steps == 0:
            running.item()
        advance()
        return taken == steps

    if steps:
        run_steps(learner, batches, after_step, clock)


def _memory(device: torch.device) -> dict[str, int] | None:
    if device.type != "cuda":
        return None
    stats = torch.cuda.memory_stats(device)
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.max_memory_reserved(device),
        "capacity_bytes": torch.cuda.get_device_properties(device).total_memory,
        "alloc_retries": stats.get("num_alloc_retries", 0),
    }
