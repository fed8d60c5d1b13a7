"""``compare``: two settings in turns, in processes of their own, with an interval of the gain.

``python -m socialx.tasks.compare`` is such a process.  It reads settings from its first line of standard input and a
number of seconds from each line after it, and answers each line with one of JSON: a block of training steps.  A process
of its own has threads, memory and compiled code of its own; while it waits for a line it does nothing.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from socialx.core.errors import SocialxError, in_short, printable
from socialx.core.progress import Bar, Callback, subscribe, work
from socialx.settings.file import read_settings
from socialx.settings.layers import ConfigLayers, as_tree, flat
from socialx.settings.schema import Settings
from socialx.tasks.build import build
from socialx.tasks.train import make_learner, train_loader
from socialx.training.clock import clock_for
from socialx.training.profile.analysis import partition
from socialx.training.profile.measure import Training
from socialx.training.profile.profile import Gain
from socialx.training.profile.trials import gain_of, interleaved_ab

ROUNDS, PAIRS_OF_ROUND = 6, 2
BLOCK_S, LEAST_STEPS = 1.0, 5  # of each block
# steps, seconds and windows; input, hooks: shares of the seconds; peak_bytes: of the device since the start, else None
Block = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """One of two settings, over all its blocks."""

    windows_per_s: float
    input: float
    hooks: float
    peak_bytes: int | None

    @classmethod
    def of(cls, blocks: list[Block]) -> Side:
        """The mean over blocks."""
        windows, seconds = (sum(block[name] for block in blocks) for name in ("windows", "seconds"))
        waited, between = (sum(block[name] * block["seconds"] for block in blocks) for name in ("input", "hooks"))
        return cls(windows / seconds, waited / seconds, between / seconds, blocks[-1]["peak_bytes"])


@dataclass(frozen=True)
class Comparison:
    """How many times as fast the other settings are, and what differs.  changes: key -> value here, value there."""

    gain: Gain
    here: Side
    there: Side
    changes: dict[str, tuple[Any, Any]]


def compare(
    file: str | Path | None = None,
    /,
    *,
    other: str | Path | Settings,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Any,
) -> Comparison:
    """Train with two settings in turns, and say how many times as fast the other one is.

    other: a file of settings, which go over those of this call, or whole settings.  Each has a process of its own, six
    times anew; the blocks come in the order A B B A, and the interval holds 99 %.
    """
    with subscribe(progress):
        layers = ConfigLayers.from_call(settings, {"data.path": file, **sections})
        effective = layers.load().settings
        if isinstance(other, Settings):
            there = other
        else:
            there = layers.over(read_settings(Path(other)), str(other)).load().settings
        logs, ours, others = list[float](), list[Block](), list[Block]()
        with work("compare", 2 * ROUNDS * PAIRS_OF_ROUND * BLOCK_S, "s") as bar:
            # One process may be luckier than another of equal settings: its memory or its core may be better placed for
            # as long as it lives.  So each round has new processes, and the rounds are what the interval counts.
            for _ in range(ROUNDS):
                gain, *blocks = one_round(effective, there, BLOCK_S, bar)
                logs.append(math.log(gain.gain))
                ours += blocks[0]
                others += blocks[1]
        mine, theirs = flat(effective), flat(there)
        changes = {key: (mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]}
        return Comparison(gain_of(logs), Side.of(ours), Side.of(others), changes)


def one_round(here: Settings, there: Settings, seconds: float, bar: Bar) -> tuple[Gain, list[Block], list[Block]]:
    """Blocks of two new processes in turns, which are built at the same time."""
    blocks: tuple[list[Block], list[Block]] = ([], [])
    with process_of("these", here) as first, process_of("the others", there) as second:
        first(seconds)  # finds the number of steps
        second(seconds)

        def timed(side: int) -> float:
            block = (first, second)[side](seconds)
            blocks[side].append(block)
            bar.advance(seconds)
            per_window: float = block["seconds"] / block["windows"]  # batches may differ
            return per_window

        return interleaved_ab(lambda: timed(0), lambda: timed(1), PAIRS_OF_ROUND), *blocks


# A process


@contextmanager
def process_of(name: str, settings: Settings) -> Iterator[Callable[[float], Block]]:
    """A process that trains with these settings, until the end of the ``with``; each call takes a block of steps.

    A block is of about so many seconds, at least 5 steps; their number is that of the block before, so call once more.
    Raises SocialxError with the error of the process.
    """
    command = [sys.executable, "-m", "socialx.tasks.compare"]
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
        experiment = build(settings)
        loader = train_loader(experiment)
        learner = make_learner(experiment, len(loader))
        learner.model.train()
        training = Training(learner, loader, settings.trainer.log_every_n_steps)
        training.warm_up(max(1, settings.profile.warmup_steps))
        windows = loader.num_windows / len(loader) * learner.accumulate_grad_batches
        steps = LEAST_STEPS
        for line in questions:
            block = timed_block(training, steps, windows, experiment.precision.device)
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
