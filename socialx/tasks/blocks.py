"""Blocks of training steps in a process of its own, so that two settings can be compared in turns.

``python -m socialx.tasks.blocks`` reads settings from its first line of standard input and a number of seconds from
each line after it, and answers each line with one of JSON.  A process of its own has threads, memory and compiled code
of its own; while it waits for a line it does nothing.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import torch

from socialx.build import build
from socialx.errors import SocialxError, in_short, printable
from socialx.profiling.analysis import partition
from socialx.profiling.measure import Training
from socialx.settings import Settings
from socialx.settings_layers import as_tree
from socialx.tasks.training import make_learner, train_loader
from socialx.training.clock import clock_for

LEAST_STEPS = 5
# steps, seconds and windows; input, hooks: shares of the seconds; peak_bytes: of the device since the start, else None
Block = dict[str, Any]


@contextmanager
def process_of(name: str, settings: Settings) -> Iterator[Callable[[float], Block]]:
    """A process that trains with these settings, until the end of the ``with``; each call takes a block of steps.

    A block is of about so many seconds, at least 5 steps; their number is that of the block before, so call once more.
    Raises SocialxError with the error of the process.
    """
    command = [sys.executable, "-m", "socialx.tasks.blocks"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, bufsize=0) as process:  # noqa: S603 - no input of a user is in it
        questions: Any = process.stdin
        answers: Any = process.stdout

        def say(what: Any) -> None:
            with suppress(BrokenPipeError):  # its last answer says why it ended
                questions.write(json.dumps(what).encode() + b"\n")

        def timed(seconds: float) -> Block:
            say(seconds)
            line = answers.readline()
            if not line:
                reason = f"its process ended with {process.wait()}"
                raise SocialxError(name, reason, "run the same settings with train, which shows the error")
            answer: Block = json.loads(line)
            if "error" in answer:
                raise SocialxError(name, answer["error"])
            return answer

        try:
            say(as_tree(settings))
            yield timed
        except BaseException:
            process.kill()  # it may be in the middle of a block
            raise


def serve(questions: TextIO, answers: TextIO) -> None:
    """The process: build what the first line says, then take a block for every line."""

    def answer(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    try:
        settings = Settings.model_validate(json.loads(questions.readline()))
        problem = build(settings)
        loader = train_loader(problem)
        learner = make_learner(problem, len(loader))
        learner.model.train()
        training = Training(learner, loader, settings.trainer.log_every_n_steps)
        training.warm_up(max(1, settings.profile.warmup_steps))
        windows = loader.num_windows / len(loader) * learner.accumulate_grad_batches
        steps = LEAST_STEPS
        for line in questions:
            block = timed_block(training, steps, windows, problem.precision.device)
            steps = max(LEAST_STEPS, math.ceil(json.loads(line) / block["seconds"] * steps))
            answer(block)
    except SocialxError as error:
        answer({"error": "; ".join(error.lines())})
    except (RuntimeError, ValueError) as error:  # of torch: what the settings ask for cannot run
        answer({"error": printable(in_short(error))})


def timed_block(training: Training, steps: int, windows: float, device: torch.device) -> Block:
    """So many steps under a clock; windows: of a step."""
    training.take(training.queued_steps)  # their batches were made while the other process ran
    clock = clock_for(device)
    training.take(steps, clock)
    parts = partition(clock.read())
    return {
        "steps": steps,
        "seconds": parts.wall,
        "windows": steps * windows,
        "input": parts.shares["input"],
        "hooks": parts.shares["hooks"],
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


if __name__ == "__main__":
    to_parent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    serve(sys.stdin, to_parent)
