"""``profile``: real training steps -> where their time goes, and which setting to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from socialx.build import Problem, build
from socialx.data.loaders import ResidentLoader
from socialx.environment import environment
from socialx.errors import Message
from socialx.options import DEFAULT, Layers, as_tree
from socialx.precision import when_memory_runs_out
from socialx.profiling.measure import Lengths, first_batches, measure
from socialx.profiling.profile import Profile
from socialx.profiling.rules import WARN, diagnosed, fits
from socialx.progress import Callback, listening, note
from socialx.settings import Settings
from socialx.tasks.first_steps import loading_facts
from socialx.tasks.outputs import TRACE, check_outputs
from socialx.tasks.training import make_learner, out_of_memory, train_loader, what_computes

GATHERED = 20  # batches of a resident series that are timed where others are late


def profile(
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Settings | Layers | None = None,
    trace: str | Path | None = None,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> Profile:
    """Run real training steps, measure where the time goes, and say which setting would make them faster.

    The arguments are those of ``train``; ``profile={"steps": 50}`` says how long.  After the measured steps a few more
    are taken under a trace, of kernels on CUDA and of operators on a CPU; trace: a file for it, ``.json`` or
    ``.json.gz``, which Perfetto opens.  Nothing is kept of the model that is trained meanwhile.
    """
    with listening(progress):
        layers = Layers.of(settings, sections, data=data)
        check_outputs((trace, TRACE), layers=layers)
        loaded = layers.load()
        loaded.note_unread()
        problem = build(loaded.settings)
        s, precision = problem.settings, problem.precision
        loader = train_loader(problem)
        learner = make_learner(problem, loader)
        if precision.device.type == "cuda":
            note(Message("", what_computes(problem)))
        own = s.profile
        lengths = Lengths(own.steps, own.warmup_steps, s.trainer.log_every_n_steps, own.trace_steps, own.trials)
        keep = None if trace is None else Path(trace)
        with when_memory_runs_out(partial(out_of_memory, problem, learner, loader)):
            measured = measure(learner, loader, lengths, loading_facts(problem, loader), keep)
        origin = {key: place for key, place in loaded.origin.items() if place != DEFAULT}
        measured = replace(measured, environment=environment(precision), settings=as_tree(s), origin=origin)
        return diagnosed(_with_gathering(measured, problem))


def _with_gathering(measured: Profile, problem: Problem) -> Profile:
    """The time of a batch of a resident series, where batches are late and the series would fit."""
    facts, data, s = measured.loader, problem.data, problem.settings
    late = measured.shares.input >= WARN and fits(measured)
    if facts is None or facts.mode == "resident" or data.windows is None or not late:
        return measured
    resident = ResidentLoader(data.series, data.windows.part("train"), s.loader.batch_size, s.loader.shuffle)
    seconds = first_batches(resident, GATHERED, data.device)
    return replace(measured, loader=replace(facts, resident_s=seconds * s.trainer.accumulate_grad_batches))
