"""Blocks of training steps in a process of its own, so that two settings can be compared in turns.

``python -m socialx.tasks.blocks`` reads settings from its first line of standard input and a number of seconds from
each line after it, and answers each line with one of JSON.  A process of its own has threads, memory and compiled code
of its own; while it waits for a line it does nothing.
"""

# Shape letters: B windows

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
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
ANSWER_S = 900  # compiling a large model takes minutes


@dataclass(frozen=True)
class TimedBlock:
    """Measured steps.  input, hooks: shares of the time.  peak_bytes: of the device, since the start; on a CPU None."""

    steps: int
    seconds: float
    windows: float
    input: float
    hooks: float
    peak_bytes: int | None

    @property
    def seconds_per_window(self) -> float:
        """What two settings are compared by: batches may differ."""
        return self.seconds / self.windows


@dataclass
class Runner:
    """A process that takes blocks of steps with its settings."""

    name: str
    process: subprocess.Popen[str]

    def block(self, seconds: float) -> TimedBlock:
        """Steps for about so many seconds, at least 5; their number is that of the block before, so ask once more."""
        self.say({"seconds": seconds})
        return TimedBlock(**self.answer())

    def say(self, what: dict[str, Any]) -> None:
        """Send one line."""
        if self.process.stdin is None:
            raise ValueError("a process without standard input")
        with suppress(BrokenPipeError):  # its last answer says why it ended
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """One line, or a SocialxError where there is none in time or it holds an error."""
        out = self.process.stdout
        if out is None:
            raise ValueError("a process without standard output")
        ready, _, _ = select.select([out], [], [], ANSWER_S)
        line = out.readline() if ready else ""
        if not line:
            reason = f"its process ended with {self.process.poll()}" if ready else f"no answer in {ANSWER_S} s"
            raise SocialxError(self.name, reason, "run the same settings with train, which shows the error")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SocialxError(self.name, answer["error"])
        return answer


@contextmanager
def runner(name: str, settings: Settings) -> Iterator[Runner]:
    """A process that builds these settings and takes its first steps; its first answer says that it has.

    It ends with the block.
    """
    command = [sys.executable, "-m", "socialx.tasks.blocks"]
    process = subprocess.Popen(  # noqa: S603 - no input of a user is in it
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    started = Runner(name, process)
    try:
        started.say(as_tree(settings))
        yield started
    finally:
        for stream in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve(questions: TextIO, answers: TextIO) -> None:
    """The process: build what the first line says, then take a block for every line."""

    def answer(**what: Any) -> None:
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
        answer(ready=True)
        windows = loader.num_windows / len(loader) * learner.accumulate_grad_batches
        steps = LEAST_STEPS
        for line in questions:
            block = timed_block(training, steps, windows, problem.precision.device)
            steps = max(LEAST_STEPS, math.ceil(json.loads(line)["seconds"] / block.seconds * steps))
            answer(**asdict(block))
    except SocialxError as error:
        answer(error="; ".join(error.lines()))
    except (RuntimeError, ValueError) as error:  # of torch: what the settings ask for cannot run
        answer(error=printable(in_short(error)))


def timed_block(training: Training, steps: int, windows: float, device: torch.device) -> TimedBlock:
    """So many steps under a clock; windows: of a step."""
    training.take(training.queued_steps)  # their batches were made while the other process ran
    clock = clock_for(device)
    training.take(steps, clock)
    parts = partition(clock.read())
    peak_bytes = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return TimedBlock(steps, parts.wall, steps * windows, parts.shares["input"], parts.shares["hooks"], peak_bytes)


def main() -> None:
    """Answers go to standard output, and what libraries print to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
