"""``profile``: real training steps -> where the time goes, and settings to change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from socialx.core.environment import environment, free_bytes
from socialx.core.outputs import TRACE, check_outputs
from socialx.core.progress import Callback, note
from socialx.dataset.loaders import DeviceLoader, Loader, WindowOrder, WorkerLoader, series_bytes
from socialx.profiling.measure import Lengths, first_batches, measure
from socialx.profiling.profile import Profile
from socialx.profiling.rules import WARN, fits, with_findings
from socialx.profiling.sections import LoaderFacts
from socialx.settings.arguments import SettingsArguments
from socialx.settings.layers import DEFAULT, ConfigLayers, as_tree
from socialx.settings.schema import Settings
from socialx.tasks.build import Experiment, build
from socialx.tasks.memory import TRAINING, when_memory_runs_out
from socialx.tasks.train import describe_compute, make_learner
from socialx.tasks.training_data import train_loader
from socialx.training.process_group import init_process_group

GATHERED = 20  # batches of an on-device series, timed where the loader is late


def profile(
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Settings | ConfigLayers | None = None,
    preset: str | None = None,
    trace: str | Path | None = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> Profile:
    """Run real training steps, measure where the time goes, and find settings that would make training faster.

    The arguments are as in ``train``; ``profile={"steps": 50}`` sets the length.  trace: a ``.json`` or ``.json.gz``
    file for Perfetto, from a few more steps that trace kernels on CUDA and operators on a CPU. The trained model is
    discarded.  Under torchrun each process returns its own profile.  Raises SocialxError where memory runs out.
    """
    with init_process_group(progress) as group:
        with group.all_or_none():
            layers = ConfigLayers.from_call(settings, {**sections, "data": data}, preset, task=profile)
            check_outputs((trace, TRACE))
            loaded = layers.load()
            loaded.note_unread()
            experiment = build(loaded.settings)
        effective, precision = experiment.settings, experiment.precision
        # Every process may see another amount of free memory, and all need one order of the windows.
        shard = group.broadcast_object(experiment.data.loaders.shard_windows(experiment.protocol.windows["train"]))
        with group.all_or_none():
            loader = train_loader(experiment, group, shard)
            learner = make_learner(experiment, len(loader), group)
        if precision.device.type == "cuda":
            note(describe_compute(experiment, len(loader)))
        section = effective.profile
        every = effective.trainer.log_every_n_steps
        most_s = section.max_seconds if group.world_size == 1 else math.inf  # all processes take as many steps
        lengths = Lengths(section.steps, section.warmup_steps, every, section.trace_steps, section.trials, most_s)
        keep = None if trace is None or not group.is_rank_zero else Path(trace)
        with when_memory_runs_out(experiment, TRAINING):
            measured = measure(learner, loader, lengths, loading_facts(experiment, loader), keep)
        origin = {key: source for key, source in loaded.origin.items() if source != DEFAULT}
        tree = as_tree(effective)
        tree["trainer"]["compile"] = learner.trainer.compile  # what auto chose
        measured = replace(measured, environment=environment(precision), settings=tree, origin=origin)
        dataset, facts = experiment.data, measured.loader
        waits = measured.shares.input >= WARN and facts.mode != "on_device"
        if waits and fits(measured) and dataset.windows is not None:
            # Time a batch of an on-device series.
            order = WindowOrder(dataset.windows.split("train"), effective.loader.batch_size, shuffle=True)
            seconds = first_batches(DeviceLoader(dataset.loaders.observations, order), GATHERED, dataset.device)
            resident_s = seconds * effective.trainer.accumulate_grad_batches
            measured = replace(measured, loader=replace(facts, resident_s=resident_s))
        return with_findings(measured)


def loading_facts(experiment: Experiment, loader: Loader) -> LoaderFacts:
    """Return the facts about a loader before measurement."""
    data, mode, queue = experiment.data, experiment.data.loading.mode, experiment.settings.loader.prefetch_factor
    sensors, features = data.source.shape
    return LoaderFacts(
        mode,
        len(loader),
        num_workers=loader.workers if isinstance(loader, WorkerLoader) else None,
        prefetch_factor=queue if isinstance(loader, WorkerLoader) else None,
        batches_per_shard=loader.shard / loader.batch_size if mode == "sharded" and loader.shard else None,
        series_bytes=series_bytes(len(data.store.seconds), sensors, features),
        free_bytes=free_bytes(data.device),
    )
