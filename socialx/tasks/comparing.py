"""Two settings in turns, and a search for better ones: processes of their own, paired blocks, an interval."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from socialx.errors import Argument, Message, SocialxError
from socialx.options import Layers, flat, values_of
from socialx.profiling.paired import Gain, gain_of, in_turns
from socialx.profiling.profile import Profile
from socialx.profiling.rules import WARN, fits
from socialx.progress import Bar, Callback, listening, note, work
from socialx.settings import Settings
from socialx.tasks.blocks import Block, OutOfMemory, Runner, runner
from socialx.tasks.profiling import profile

ROUNDS, PAIRS_OF_ROUND = 6, 2  # of a comparison
SWEEP_PAIRS = 6  # of a candidate of a sweep, which is verified afterwards if it is taken
KNEE = 1.05  # a doubled batch that gains less is not taken
ENOUGH_INPUT = 0.02  # share of waiting below which no other loader is tried
FULL = 0.85  # of the memory of a card
DOUBLINGS = 8


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
        seconds = sum(block.seconds for block in blocks)

        def share(name: str) -> float:
            return sum(getattr(block, name) * block.seconds for block in blocks) / seconds

        rate = sum(block.windows for block in blocks) / seconds
        return cls(rate, share("input"), share("hooks"), blocks[-1].peak_bytes)


@dataclass(frozen=True)
class Comparison:
    """How many times as fast the other settings are, and what differs.  changes: key -> value here, value there."""

    gain: Gain
    here: Side
    there: Side
    changes: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Tried:
    """One candidate of a sweep: what it changes, its gain over the best until then, and whether it was taken."""

    changes: dict[str, Any]
    gain: Gain | None
    taken: bool
    found: str


@dataclass(frozen=True)
class Sweep:
    """What was tried, what the winner changes, and its gain over the start, verified; None where nothing was taken."""

    start: Profile
    tried: list[Tried]
    changes: dict[str, Any]
    gain: Gain | None

    @property
    def advised(self) -> dict[str, Any]:
        """The changes, where the verification found them faster."""
        return self.changes if self.gain is not None and self.gain.low > 1 else {}


def compare(
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    other: str | Path | Settings,
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> Comparison:
    """Train with two settings in turns, and say how many times as fast the other one is.

    other: a file of settings, which go over those of this call, or whole settings.  Each has a process of its own, six
    times anew; the blocks come in the order A B B A, and the interval holds 99 %.
    """
    with listening(progress):
        layers = Layers.of(settings, sections, data=data)
        s = layers.load().settings
        there = other if isinstance(other, Settings) else _with_file(layers, Path(other))
        mine, theirs = flat(s), flat(there)
        changes = {key: (mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]}
        seconds = s.profile.block_seconds
        with work("compare", 2 * ROUNDS * PAIRS_OF_ROUND * seconds, "s") as bar:
            gain, (first, second) = _verified(s, there, seconds, bar)
        return Comparison(gain, Side.of(first), Side.of(second), changes)


def _with_file(layers: Layers, path: Path) -> Settings:
    return layers.over(values_of(path), str(path)).load().settings


Blocks = tuple[list[Block], list[Block]]


def _paired(here: Settings, there: Settings, pairs: int, seconds: float, bar: Bar) -> tuple[Gain, Blocks]:
    """Blocks of two processes in turns."""
    blocks: Blocks = ([], [])
    with _two(here, there, seconds) as runners:

        def one(side: int) -> float:
            blocks[side].append(runners[side].block(seconds))
            bar.advance(seconds)
            return blocks[side][-1].seconds_per_window

        return in_turns(lambda: one(0), lambda: one(1), pairs), blocks


def _verified(here: Settings, there: Settings, seconds: float, bar: Bar) -> tuple[Gain, Blocks]:
    """The same several times, each with two new processes: one process may be luckier than another of equal settings.

    Its memory or its core may be better placed for as long as it lives.  So the rounds are what the interval counts.
    """
    logs: list[float] = []
    blocks: Blocks = ([], [])
    for _ in range(ROUNDS):
        found, own = _paired(here, there, PAIRS_OF_ROUND, seconds, bar)
        logs.append(math.log(found.gain))
        for all_, some in zip(blocks, own, strict=True):
            all_ += some
    return gain_of(logs), blocks


@contextmanager
def _two(here: Settings, there: Settings, seconds: float) -> Iterator[tuple[Runner, Runner]]:
    """Two processes, built at the same time and warmed up one after the other."""
    with runner("these", here) as first, runner("the others", there) as second:
        for each in (first, second):
            each.answer()
        for each in (first, second):
            each.block(seconds)  # finds the number of steps
        yield first, second


def sweep(
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Settings | Layers | None = None,
    budget_s: float = 300.0,
    free_batch: bool = False,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> Sweep:
    """Profile, try what the findings suggest one after the other, and verify the winner against the start.

    Loaders are tried where batches come late, then threads, precision, compilation and graphs, then the batch, doubled
    while that brings 5 %.  A batch times its number in a step stays the same, unless ``free_batch``: another batch is
    another training.  budget_s: seconds after which no other candidate is begun.
    """
    ends = time.monotonic() + budget_s
    with listening(progress):
        layers = Layers.of(settings, sections, data=data)
        start, base = profile(settings=layers), layers.load().settings
        changes: dict[str, Any] = {}
        tried: list[Tried] = []
        for candidates, enough in _axes(start, base, free_batch):
            peaks: list[tuple[int, int]] = []
            for candidate in candidates:
                if time.monotonic() > ends:
                    tried.append(Tried(candidate, None, False, "no time left"))
                    break
                if _will_not_fit(candidate, peaks, start):
                    tried.append(Tried(candidate, None, False, f"would take more than {FULL:.0%} of the memory"))
                    break
                result, side = _try(layers, changes, candidate)
                tried.append(result)
                changes |= candidate if result.taken else {}
                if side is not None and side.peak_bytes is not None:
                    peaks.append((candidate.get("loader.batch_size", 0), side.peak_bytes))
                if enough(result, side):
                    break
        if not changes:
            return Sweep(start, tried, {}, None)
        winner, seconds = layers.over(changes).load().settings, base.profile.block_seconds
        with work("verify", 2 * ROUNDS * PAIRS_OF_ROUND * seconds, "s") as bar:
            gain, _ = _verified(base, winner, seconds, bar)
        return Sweep(start, tried, changes, gain)


Enough = Callable[[Tried, Side | None], bool]  # whether the rest of an axis need not be tried


def _axes(start: Profile, s: Settings, free_batch: bool) -> Iterator[tuple[list[dict[str, Any]], Enough]]:
    """The candidates of each axis that the start profile gives a reason for, and when its rest is left out."""
    rules = {finding.rule for finding in start.findings}
    if start.shares.input >= WARN:
        yield _loaders(start, s), lambda _, side: side is not None and side.input < ENOUGH_INPUT
    threads = [{"trainer.threads": each.value} for each in start.trials if each.setting == "trainer.threads"]
    if threads:
        yield threads, _never
    if start.window.clock == "device":
        if s.trainer.precision == "32-true":
            yield [{"trainer.precision": "bf16-mixed"}], _never
        if not s.trainer.cuda_graph:
            yield [{"trainer.cuda_graph": True}], _never
        if s.trainer.compile == "off":
            yield [{"trainer.compile": "default"}], _never
    if rules & {"batch.small", "launch.bound", "compute.small", "memory.headroom"}:
        batches = list(_batches(s, free_batch))
        if not batches:
            found = "the batch is left as it is: another batch is another training"
            note(Message("", found, (Argument("free_batch"), " tries larger ones")))
        yield batches, lambda tried, _: not tried.taken


def _never(tried: Tried, side: Side | None) -> bool:
    return False


def _loaders(start: Profile, s: Settings) -> list[dict[str, Any]]:
    """Other loaders, those without processes first; a chunk of twice the size where chunks come late."""
    cores = start.host.cores if start.host else 1
    candidates: list[dict[str, Any]] = [{"loader.mode": "resident"}] if fits(start) else []
    candidates.append({"loader.mode": "chunk"})
    candidates += [dict(each) for finding in start.findings for each in finding.instead if "loader.num_workers" in each]
    candidates.append({"loader.mode": "workers", "loader.num_workers": max(1, cores - 1)})
    if s.loader.mode == "chunk" and s.loader.chunk_gb is not None:
        candidates.append({"loader.chunk_gb": 2 * s.loader.chunk_gb})
    own: dict[str, Any] = {"loader.mode": s.loader.mode, "loader.num_workers": s.loader.num_workers}
    if start.loader is not None:  # what was chosen where the settings leave it open
        own = {"loader.mode": start.loader.mode, "loader.num_workers": start.loader.num_workers}
    unlike = [each for each in candidates if any(own.get(key) != value for key, value in each.items())]
    return [each for place, each in enumerate(unlike) if each not in unlike[:place]]


def _batches(s: Settings, free_batch: bool) -> Iterator[dict[str, Any]]:
    """Doubled batches; as many windows a step, where the batches of a step can be halved."""
    size, groups = s.loader.batch_size, s.trainer.accumulate_grad_batches
    for _ in range(DOUBLINGS):
        size *= 2
        if groups % 2 == 0:
            groups //= 2
            yield {"loader.batch_size": size, "trainer.accumulate_grad_batches": groups}
        elif free_batch:
            yield {"loader.batch_size": size}
        else:
            return


def _will_not_fit(candidate: Mapping[str, Any], peaks: list[tuple[int, int]], start: Profile) -> bool:
    """Whether a batch would take more than most of a card's memory, on a line through the last two peaks."""
    size = candidate.get("loader.batch_size")
    if size is None or len(peaks) < 2 or start.memory is None:
        return False
    (smaller, low), (larger, high) = peaks[-2:]
    return high + (high - low) / (larger - smaller) * (size - larger) > FULL * start.memory.capacity_bytes


def _try(layers: Layers, changes: Mapping[str, Any], candidate: dict[str, Any]) -> tuple[Tried, Side | None]:
    """One candidate against the best until now."""
    best, new = (layers.over(each).load().settings for each in (changes, {**changes, **candidate}))
    seconds = best.profile.block_seconds
    name = ", ".join(f"{key}={value}" for key, value in candidate.items())
    try:
        with work(f"try {name}", 2 * SWEEP_PAIRS * seconds, "s") as bar:
            gain, (_, blocks) = _paired(best, new, SWEEP_PAIRS, seconds, bar)
    except OutOfMemory as error:
        return Tried(candidate, None, False, f"out of memory ({error.messages[0].what})"), None
    except SocialxError as error:
        return Tried(candidate, None, False, error.messages[0].what), None
    least = KNEE if "loader.batch_size" in candidate else 1.0
    return Tried(candidate, gain, gain.low > 1 and gain.gain >= least, str(gain)), Side.of(blocks)
