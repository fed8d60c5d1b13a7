"""The first steps of a training, measured while it trains, and what is known of a loader before it is measured."""

from __future__ import annotations

from dataclasses import replace

from socialx.build import Problem
from socialx.data.loaders import Loader, WorkerLoader
from socialx.dataset import series_bytes
from socialx.environment import free_bytes
from socialx.errors import Argument, Command, Message, Part
from socialx.options import as_tree
from socialx.profiling.analysis import Partition
from socialx.profiling.first import FirstSteps
from socialx.profiling.measure import Lengths, clocked
from socialx.profiling.profile import Loading
from socialx.profiling.rules import diagnosed, patch_of
from socialx.progress import note
from socialx.training.clock import DeviceClock, HostClock


def first_steps(problem: Problem, loader: Loader, steps: int) -> FirstSteps:
    """A clock that notes the verdict on so many steps of the first epoch, after the warm-up of profile."""
    s = problem.settings
    loading, epoch = loading_facts(problem, loader), -(-len(loader) // s.trainer.accumulate_grad_batches)
    warmup = min(s.profile.warmup_steps, epoch - 1)

    def done(clock: HostClock | DeviceClock, parts: Partition) -> None:
        lengths = Lengths(len(parts.step_seconds), warmup, s.trainer.log_every_n_steps)
        found = clocked(clock, parts, loader, s.trainer.accumulate_grad_batches, lengths, loading)
        found = diagnosed(replace(found, settings=as_tree(s)))
        changes: list[Part] = []
        for key, value in patch_of(found.findings).items():
            changes += [" " if changes else "change ", Argument(key, value)]
        more = ("; more: " if changes else "more: ", Command("profile", data=s.data.path))
        share = f"{found.shares.span:.0%} training step, {found.shares.input:.0%} input, {found.shares.hooks:.0%} hooks"
        count = len(parts.step_seconds)
        where = f"{count} {'step' if count == 1 else 'steps'} in {parts.wall:.1f} s"
        note(Message(where, f"{found.verdict}, {found.summary} ({share})", (*changes, *more)))

    return FirstSteps(problem.precision.device, min(steps, epoch - warmup), warmup, done)


def loading_facts(problem: Problem, loader: Loader) -> Loading:
    """What is known of a loader before it is measured."""
    s, data = problem.settings.loader, problem.data
    sensors, features = data.source.shape
    size = series_bytes(len(data.store.seconds), sensors, features)
    facts = Loading(data.loading.mode, len(loader), series_bytes=size, free_bytes=free_bytes(data.device))
    if isinstance(loader, WorkerLoader):
        pins = s.pin_memory and data.device.type == "cuda"
        return replace(
            facts,
            num_workers=loader.workers,
            prefetch_factor=s.prefetch_factor,
            pin_memory=pins,
            persistent_workers=s.persistent_workers,
        )
    chunk = data.loading.mode == "chunk" and loader.chunk
    return replace(facts, batches_per_chunk=loader.chunk / loader.batch_size) if chunk else facts
