"""``compare``: two settings in turns, in processes of their own, with an interval of the gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from socialx.profiling.paired import Gain, gain_of, in_turns
from socialx.progress import Bar, Callback, listening, work
from socialx.settings import Settings
from socialx.settings_file import read_settings
from socialx.settings_layers import Layers, flat
from socialx.tasks.blocks import Block, process_of

ROUNDS, PAIRS_OF_ROUND = 6, 2
BLOCK_S = 1.0  # of each block, which has at least 5 steps


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
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Any,
) -> Comparison:
    """Train with two settings in turns, and say how many times as fast the other one is.

    other: a file of settings, which go over those of this call, or whole settings.  Each has a process of its own, six
    times anew; the blocks come in the order A B B A, and the interval holds 99 %.
    """
    with listening(progress):
        layers = Layers.of(settings, {"data.path": file, **sections})
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

        return in_turns(lambda: timed(0), lambda: timed(1), PAIRS_OF_ROUND), *blocks
