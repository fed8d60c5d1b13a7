"""``compare``: train with two settings in alternating processes, and estimate the speed-up with an interval.

``python -m socialx.tasks.compare`` is the child process.  The process reads settings from the first line of standard
input and a duration from each later line, and answers each line with a JSON block of training steps.  A
separate process has its own threads, memory and compiled code, and idles while waiting for a line.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, Unpack

import torch
from rich.console import Console

from socialx.core.errors import Message, SocialxError, counted, in_short, printable
from socialx.core.progress import Bar, Callback, note, subscribe, work
from socialx.profiling.analysis import partition
from socialx.profiling.measure import Training
from socialx.profiling.profile import Gain
from socialx.profiling.tables import print_wrapped, text_table, word
from socialx.profiling.trials import interleaved_ab, mean_gain
from socialx.settings.arguments import SettingsArguments
from socialx.settings.file import read_settings
from socialx.settings.layers import ConfigLayers, as_tree, flat
from socialx.settings.schema import Settings
from socialx.tasks.build import build
from socialx.tasks.train import make_learner
from socialx.tasks.training_data import train_loader
from socialx.training.clock import clock_for

ROUNDS, PAIRS_OF_ROUND = 6, 2
BLOCK_S, LEAST_STEPS = 1.0, 5  # of each block
# steps, seconds and windows; input, hooks: shares of the seconds; peak_bytes: of the device since the start, else None
Block = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """The measurements for one side, over all blocks."""

    windows_per_s: float
    input: float
    hooks: float
    peak_bytes: int | None

    @classmethod
    def from_blocks(cls, blocks: list[Block]) -> Side:
        """Return the mean over blocks."""
        windows, seconds = (sum(block[name] for block in blocks) for name in ("windows", "seconds"))
        waited, between = (sum(block[name] * block["seconds"] for block in blocks) for name in ("input", "hooks"))
        return cls(windows / seconds, waited / seconds, between / seconds, blocks[-1]["peak_bytes"])


@dataclass(frozen=True)
class Comparison:
    """The speed-up of the other settings over ``rounds`` rounds, and every difference.

    changes: key -> (value here, value there).  interrupted: Ctrl-C ended the comparison early.
    """

    gain: Gain
    here: Side
    there: Side
    changes: dict[str, tuple[Any, Any]]
    rounds: int = ROUNDS
    interrupted: bool = False


def compare(
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    other: str | Path | Settings,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> Comparison:
    """Train with two settings in turns, and return how much faster the other settings are.

    settings, sections: as in ``train``.  other: a settings file, which goes over the settings of this call, or whole
    settings.  Each side runs in six new processes, blocks alternate as A B B A, and the gain has a 95 % interval from
    five rounds on.  Ctrl-C keeps the finished rounds.  Raises SocialxError where a side fails to train.
    """
    with subscribe(progress):
        layers = ConfigLayers.from_call(settings, {**sections, "data": data}, task=compare)
        effective = layers.load().settings
        if isinstance(other, Settings):
            there = other
        else:
            there = layers.over(read_settings(Path(other)), str(other)).load().settings
        gains, ours, others, interrupted = list[float](), list[Block](), list[Block](), False
        with work("compare", 2 * ROUNDS * PAIRS_OF_ROUND * BLOCK_S, "s") as bar:
            # The child process may be lucky for its whole life, through better placed memory or cores.  So each round
            # has new processes, and the interval counts rounds.
            for number in range(1, ROUNDS + 1):
                try:
                    gain, *blocks = run_round(effective, there, BLOCK_S, bar)
                except KeyboardInterrupt:
                    if not gains:
                        raise
                    interrupted = True
                    break
                gains.append(gain.gain)
                ours += blocks[0]
                others += blocks[1]
                note(Message("compare.round", "", f"round {number} of {ROUNDS}: the others are {gain.speed}"))
        mine, theirs = flat(effective), flat(there)
        changes = {key: (mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]}
        sides = Side.from_blocks(ours), Side.from_blocks(others)
        return Comparison(mean_gain(gains), *sides, changes, len(gains), interrupted)


def run_round(here: Settings, there: Settings, seconds: float, bar: Bar) -> tuple[Gain, list[Block], list[Block]]:
    """Alternate blocks of about ``seconds`` between two new processes, A (here) and B (there), as A B B A."""
    blocks: tuple[list[Block], list[Block]] = ([], [])
    with start_process("these settings", here) as first, start_process("the other settings", there) as second:
        first(seconds)  # sets the number of steps
        second(seconds)

        def seconds_per_window(side: int) -> float:
            block = (first, second)[side](seconds)
            blocks[side].append(block)
            bar.advance(seconds)
            return block["seconds"] / block["windows"]  # batches may differ

        return interleaved_ab(lambda: seconds_per_window(0), lambda: seconds_per_window(1), PAIRS_OF_ROUND), *blocks


def print_comparison(comparison: Comparison) -> None:
    """Print both sides, the changed settings and the gain, on standard output."""
    out, sides = Console(), (comparison.here, comparison.there)
    table = text_table(out, "", "these", "the others")
    table.add_row("windows/s", *(f"{side.windows_per_s:,.1f}" for side in sides))
    table.add_row("share waiting for input", *(f"{side.input:.1%}" for side in sides))
    table.add_row("share between steps", *(f"{side.hooks:.1%}" for side in sides))
    out.print(table)
    for key, (here, there) in comparison.changes.items():
        print_wrapped(f"{key}: {word(here)} -> {word(there)}", out)
    if not comparison.changes:
        print_wrapped("no setting differs", out)
    interval = "" if comparison.gain.low is None else ", 95 % interval"
    rounds = counted(comparison.rounds, "round")
    print_wrapped(f"the others: {comparison.gain}{interval} over {rounds} of new processes", out)


# The child process


@contextmanager
def start_process(name: str, settings: Settings) -> Iterator[Callable[[float], Block]]:
    """Start a process that trains with ``settings`` until the block ends; each call runs a block of steps.

    A block takes about ``seconds``, at least 5 steps.  The previous block sets the number of steps, so call once to
    warm up.  Raises SocialxError with the error of the process.
    """
    command = [sys.executable, "-m", "socialx.tasks.compare"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    # In a group of its own, so that Ctrl-C reaches this process alone.
    with subprocess.Popen(command, **pipes, bufsize=0, process_group=0) as process:  # noqa: S603 - no input of a user
        questions: Any = process.stdin
        answers: Any = process.stdout

        def say(content: Any) -> None:
            with suppress(BrokenPipeError):  # the last answer gives the reason
                questions.write(json.dumps(content).encode() + b"\n")

        def run_block(seconds: float) -> Block:
            say(seconds)
            line = answers.readline()
            if not line:
                reason = f"the process ended with {process.wait()}"
                remedy = "run the same settings with train, which shows the error"
                raise SocialxError("compare.ended", name, reason, remedy)
            answer: Block = json.loads(line)
            if "error" in answer:
                raise SocialxError("compare.child", name, answer["error"])
            return answer

        try:
            say(as_tree(settings))
            yield run_block
        except BaseException:
            process.kill()  # it may be in the middle of a block
            raise


def serve(questions: TextIO, answers: TextIO) -> None:
    """Run the child process: build from the first line, then run a block for every line."""

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        settings = Settings.model_validate(json.loads(questions.readline()))
        experiment = build(settings)
        loader = train_loader(experiment)
        learner = make_learner(experiment, len(loader))
        learner.model.train()
        training = Training(learner, loader, settings.trainer.log_every_n_steps)
        training.warm_up(max(1, settings.profile.warmup_steps))
        windows = loader.num_windows / len(loader) * learner.trainer.accumulate_grad_batches
        steps = LEAST_STEPS
        for line in questions:
            block = measure_block(training, steps, windows, experiment.precision.device)
            steps = max(LEAST_STEPS, math.ceil(json.loads(line) / block["seconds"] * steps))
            answer(block)
    except SocialxError as error:
        answer({"error": " ".join(error.lines())})
    except (RuntimeError, ValueError) as error:  # from torch: the settings cannot run
        answer({"error": printable(in_short(error))})


def measure_block(training: Training, steps: int, windows: float, device: torch.device) -> Block:
    """Time ``steps`` training steps, and return a Block: seconds, windows, shares and bytes; windows: per step."""
    training.take(training.queued_steps)  # batches made while the other process ran
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
    os.dup2(2, 1)  # keep library output off the answers
    serve(sys.stdin, to_parent)
