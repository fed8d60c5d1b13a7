"""``profile``: real training steps -> where their time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from socialx.build import build
from socialx.environment import environment
from socialx.errors import Message
from socialx.options import DEFAULT, Layers, as_tree
from socialx.precision import when_memory_runs_out
from socialx.profiling.measure import measure
from socialx.profiling.profile import Profile
from socialx.progress import Callback, listening, note
from socialx.settings import Settings
from socialx.tasks.training import make_learner, out_of_memory, what_computes


def profile(
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> Profile:
    """Run real training steps and measure where the time goes: input, transfer, step, hooks.

    The arguments are those of ``train``; ``profile={"steps": 50}`` says how long.  On CUDA a trace of a few more steps
    says how busy the device is and which kernels it ran.  Nothing is kept of the model that is trained meanwhile.
    """
    with listening(progress):
        loaded = Layers.of(settings, sections, data=data).load()
        loaded.note_unread()
        problem = build(loaded.settings)
        s, precision = problem.settings, problem.precision
        loader = problem.data.loader("train", s.loader.batch_size, s.loader.shuffle, s.trainer.seed)
        learner = make_learner(problem, loader)
        if precision.device.type == "cuda":
            note(Message("", what_computes(problem)))
        lengths = (s.profile.steps, s.profile.warmup_steps, s.trainer.log_every_n_steps, s.profile.trace_steps)
        with when_memory_runs_out(partial(out_of_memory, problem, learner, loader)):
            measured = measure(learner, loader, *lengths)
        origin = {key: place for key, place in loaded.origin.items() if place != DEFAULT}
        return replace(measured, environment=environment(precision), settings=as_tree(s), origin=origin)
