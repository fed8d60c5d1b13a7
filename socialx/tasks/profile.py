"""``profile``: real training steps -> where their time goes, and which setting to change."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from socialx.core.environment import environment, free_bytes
from socialx.core.errors import Message
from socialx.core.progress import Callback, note
from socialx.data.loaders import DeviceLoader, Loader, WindowOrder, WorkerLoader
from socialx.dataset import series_bytes
from socialx.settings.layers import DEFAULT, ConfigLayers, as_tree
from socialx.settings.schema import Settings
from socialx.tasks.build import Experiment, build
from socialx.tasks.memory import TRAINING, when_memory_runs_out
from socialx.tasks.outputs import TRACE, check_outputs
from socialx.tasks.train import make_learner, train_loader, what_computes
from socialx.training.process_group import init_process_group
from socialx.training.profile.measure import Lengths, first_batches, measure
from socialx.training.profile.profile import Profile, Section, part
from socialx.training.profile.rules import WARN, fits, with_findings

GATHERED = 20  # batches of a series on the device that are timed where others are late


def profile(
    file: str | Path | None = None,
    /,
    *,
    settings: Settings | ConfigLayers | None = None,
    preset: str | None = None,
    trace: str | Path | None = None,
    progress: Callback | None = None,
    **sections: Any,
) -> Profile:
    """Run real training steps, measure where the time goes, and say which setting would make them faster.

    The arguments are those of ``train``; ``profile={"steps": 50}`` says how long.  After the measured steps a few more
    are taken under a trace, of kernels on CUDA and of operators on a CPU; trace: a file for it, ``.json`` or
    ``.json.gz``, which Perfetto opens.  Nothing is kept of the model that is trained meanwhile.

    Of several processes, which torchrun starts, each returns its own profile.
    """
    with init_process_group(progress) as group:
        with group.all_or_none():
            layers = ConfigLayers.from_call(settings, {"data.path": file, **sections}, preset)
            check_outputs((trace, TRACE), layers=layers)
            loaded = layers.load()
            loaded.note_unread()
            experiment = build(loaded.settings)
        effective, precision = experiment.settings, experiment.precision
        # Every process may see another amount of free memory, and all need one order of the windows.
        shard = group.broadcast_object(experiment.data.shard_windows(experiment.protocol.windows["train"]))
        with group.all_or_none():
            loader = train_loader(experiment, group, shard)
            learner = make_learner(experiment, len(loader), group)
        if precision.device.type == "cuda":
            note(Message("", what_computes(experiment)))
        section = effective.profile
        every = effective.trainer.log_every_n_steps
        most_s = section.max_seconds if group.world_size == 1 else math.inf  # all processes take as many steps
        lengths = Lengths(section.steps, section.warmup_steps, every, section.trace_steps, section.trials, most_s)
        keep = None if trace is None or not group.is_rank_zero else Path(trace)
        with when_memory_runs_out(experiment, TRAINING):
            measured = measure(learner, loader, lengths, loading_facts(experiment, loader), keep)
        origin = {key: place for key, place in loaded.origin.items() if place != DEFAULT}
        measured = replace(measured, environment=environment(precision), settings=as_tree(effective), origin=origin)
        data, mode = experiment.data, measured.value("loader.mode")
        if measured.shares["input"] >= WARN and fits(measured) and mode != "on_device" and data.windows is not None:
            # What a batch of a series on the device takes.
            order = WindowOrder(data.windows.split("train"), effective.loader.batch_size, shuffle=True)
            seconds = first_batches(DeviceLoader(data.series, order), GATHERED, data.device)
            resident_s = seconds * effective.trainer.accumulate_grad_batches
            measured = replace(measured, loader={**(measured.loader or {}), "resident_s": resident_s})
        return with_findings(measured)


def loading_facts(experiment: Experiment, loader: Loader) -> Section:
    """What is known of a loader before it is measured."""
    settings, data = experiment.settings.loader, experiment.data
    sensors, features = data.source.shape
    size = series_bytes(len(data.store.seconds), sensors, features)
    mode, free = data.loading.mode, free_bytes(data.device)
    facts = part("loader", mode=mode, batches_per_epoch=len(loader), series_bytes=size, free_bytes=free)
    if isinstance(loader, WorkerLoader):
        facts["num_workers"] = loader.workers
        facts["prefetch_factor"] = settings.prefetch_factor
    elif mode == "sharded" and loader.shard:
        facts["batches_per_shard"] = loader.shard / loader.batch_size
    return facts
