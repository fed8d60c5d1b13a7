"""The first steps of a training, measured while it trains, and what is known of a loader before it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from socialx.build import Problem
from socialx.data.loaders import Loader, WorkerLoader
from socialx.dataset import series_bytes
from socialx.environment import free_bytes
from socialx.errors import Argument, Command, Message
from socialx.profiling.analysis import Partition, partition
from socialx.profiling.measure import Lengths, clocked
from socialx.profiling.profile import LoaderFacts
from socialx.profiling.rules import patch_of, with_findings
from socialx.progress import note
from socialx.settings_layers import as_tree
from socialx.training.clock import DeviceClock, HostClock, clock_for

Done = Callable[[HostClock | DeviceClock, Partition], None]


class FirstSteps:
    """Marks of ``steps`` steps after ``warmup_steps``, or of those until the epoch ends; then ``done`` is called."""

    def __init__(self, device: torch.device, steps: int, warmup_steps: int, done: Done) -> None:
        self._device, self._steps, self._warmup_steps, self._done = device, steps, warmup_steps, done
        self._clock: HostClock | DeviceClock | None = None
        self._taken = 0  # steps, before and under the clock
        self._last = ""
        self._finished = False

    def mark(self, name: str) -> None:
        """A phase of a step begins."""
        if self._finished:
            return
        self._taken += name == "copy"
        under = self._taken - self._warmup_steps
        opens = name == "fetch" and under >= 0 and (self._clock is None or (self._last == "fetch" and not under))
        if opens:
            self._clock = clock_for(self._device)
        elif self._clock is None:
            return
        elif name == self._last == "fetch":  # the epoch ended with the mark before
            self._finish(self._clock)
            return
        self._clock.mark(name)
        self._last = name
        if name == "fetch" and under >= self._steps:
            self._finish(self._clock)

    def _finish(self, clock: HostClock | DeviceClock) -> None:
        self._finished = True
        self._done(clock, partition(clock.read()))


def first_steps(problem: Problem, loader: Loader, steps: int, saved: Path) -> FirstSteps:
    """A clock that notes the verdict on so many steps of the first epoch, after the warm-up of profile.

    saved: the run's own file of settings, with which profile measures more.
    """
    settings = problem.settings
    loading, epoch = loading_facts(problem, loader), -(-len(loader) // settings.trainer.accumulate_grad_batches)
    warmup = min(settings.profile.warmup_steps, epoch - 1)

    def done(clock: HostClock | DeviceClock, parts: Partition) -> None:
        lengths = Lengths(len(parts.step_seconds), warmup, settings.trainer.log_every_n_steps)
        measured = clocked(clock, parts, loader, settings.trainer.accumulate_grad_batches, lengths, loading)
        measured = with_findings(replace(measured, settings=as_tree(settings)))
        changes = " ".join(str(Argument(key, value)) for key, value in patch_of(measured.findings).items())
        more = f"more: {Command('profile', settings=saved)}"
        shares = measured.shares
        share = f"{shares.span:.0%} training step, {shares.input:.0%} input, {shares.hooks:.0%} hooks"
        count = len(parts.step_seconds)
        where = f"{count} {'step' if count == 1 else 'steps'} in {parts.wall:.1f} s"
        helps = f"change {changes}; {more}" if changes else more
        note(Message(where, f"{measured.verdict}, {measured.summary} ({share})", helps))

    return FirstSteps(problem.precision.device, min(steps, epoch - warmup), warmup, done)


def loading_facts(problem: Problem, loader: Loader) -> LoaderFacts:
    """What is known of a loader before it is measured."""
    settings, data = problem.settings.loader, problem.data
    sensors, features = data.source.shape
    size = series_bytes(len(data.store.seconds), sensors, features)
    facts = LoaderFacts(data.loading.mode, len(loader), series_bytes=size, free_bytes=free_bytes(data.device))
    if isinstance(loader, WorkerLoader):
        return replace(
            facts,
            num_workers=loader.workers,
            prefetch_factor=settings.prefetch_factor,
            pin_memory=settings.pin_memory and data.device.type == "cuda",
            persistent_workers=settings.persistent_workers,
        )
    chunk = data.loading.mode == "chunk" and loader.chunk
    return replace(facts, batches_per_chunk=loader.chunk / loader.batch_size) if chunk else facts
