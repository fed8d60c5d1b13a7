"""What would fit: how a step must be cut for a card, foretold from small steps.  Pure: who measures is an argument.

The peak of a step grows along a straight line with the windows of a batch, and with the sequences of a chunk of the
encoder.  So a few small steps foretell a large one, and only what is then named is measured as it is.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from socialx.errors import Argument, Part, SocialxError

SPARE = 0.1  # the share of the card that a named step leaves free: the allocator loses some between its blocks
SMALL = 0.25  # a step that needs this share of what may be used is large enough to draw a line through
SMALLEST_CHUNK = 256  # sequences: fewer keep a card from working, each launch computes too little
FEW = 8 * SMALLEST_CHUNK  # sequences among which chunks are measured

TRAINING = ("chunk", "accumulation", "checkpointing")  # none of them changes what is trained
RESUMING = ("chunk", "checkpointing")  # a run goes on with its own batches
SCORING = ("chunk", "batch")


@dataclass(frozen=True)
class Plan:
    """How a step is cut: the settings that change its memory and not what it computes."""

    windows: int  # per batch
    batches: int = 1  # per optimizer step
    chunk: int | None = None  # sequences that the encoder takes at a time; None: all
    checkpointing: bool = False

    def changes(self, asked: Plan) -> tuple[Part, ...]:
        """The settings of this plan that are not those of ``asked``, with a space between two."""
        values = {
            "model.chunk": (self.chunk, asked.chunk),
            "loader.batch_size": (self.windows, asked.windows),
            "trainer.accumulate_grad_batches": (self.batches, asked.batches),
            "model.checkpointing": (self.checkpointing, asked.checkpointing),
        }
        changed = [Argument(name, own) for name, (own, other) in values.items() if own != other]
        return tuple(part for argument in changed for part in (" ", argument))[1:]


Peak = Callable[[Plan], float]  # bytes at the peak of a step, inf where it does not fit


@dataclass(frozen=True)
class Advice:
    """What the asked step needs in bytes, and what would fit, each with its measured bytes.

    Where nothing fits, ``smallest`` is the finest cut there is; its bytes are inf where even that ran out of memory.
    """

    needed: float
    fitting: list[tuple[Plan, float]] = field(default_factory=list)
    smallest: tuple[Plan, float] | None = None


def line(peak: Callable[[int], float], first: int, last: int, enough: float) -> Callable[[int], float]:
    """The straight line through peaks at first, 2 first, 4 first, ... up to last, or until one reaches ``enough``.

    Through the last two, where the largest part of a step has become its peak.  Where only one fits, through it and 0,
    which foretells too much rather than too little; where none does, inf everywhere.
    """
    points = [(0, 0.0)]
    size = first
    while points[-1][0] < last and (len(points) < 3 or points[-1][1] < enough) and (found := peak(size)) < math.inf:
        points.append((size, found))
        size = min(2 * size, last)
    if len(points) == 1:
        return lambda size: math.inf
    (x0, y0), (x1, y1) = points[-2:]
    return lambda size: y1 + (size - x1) * (y1 - y0) / (x1 - x0)


def foretold(plan: Plan, sensors: int, peak: Peak, enough: float) -> float:
    """Bytes at the peak of ``plan``, from the peaks of smaller ones; ``enough``: see ``line``."""
    if plan.chunk is None or plan.chunk >= plan.windows * sensors:
        return line(lambda n: peak(replace(plan, windows=n, chunk=None)), 1, plan.windows, enough)(plan.windows)
    small = min(plan.chunk, SMALLEST_CHUNK)
    few = min(plan.windows, -(-FEW // sensors))
    in_windows = line(lambda n: peak(replace(plan, windows=n, chunk=small)), few, plan.windows, enough)(plan.windows)
    if in_windows == math.inf:
        return math.inf
    largest = min(plan.chunk, few * sensors - 1)
    in_chunk = line(lambda n: peak(replace(plan, windows=few, chunk=n)), small, largest, enough)
    return in_windows + in_chunk(plan.chunk) - in_chunk(small)


def remedies(kind: str, asked: Plan, sensors: int) -> Iterator[Plan]:
    """The plans of one kind that need less than ``asked``, the largest first."""
    if kind == "chunk":
        sequences = asked.windows * sensors
        below = min(sequences, asked.chunk or sequences)
        yield from (replace(asked, chunk=n) for n in _powers_of_two(below, SMALLEST_CHUNK))
    elif kind == "batch":
        yield from (replace(asked, windows=n) for n in _powers_of_two(asked.windows, 1))
    elif kind == "accumulation":  # of the same windows in all, so that the training stays what it was
        together = asked.windows * asked.batches
        parts = [n for n in range(asked.windows - 1, 0, -1) if together % n == 0]
        yield from (replace(asked, windows=n, batches=together // n) for n in parts)
    elif kind == "checkpointing" and not asked.checkpointing:
        yield replace(asked, checkpointing=True)


def _powers_of_two(below: int, smallest: int) -> Iterator[int]:
    size = 2 ** (below - 1).bit_length() // 2
    while size >= smallest:
        yield size
        size //= 2


def advise(
    asked: Plan, sensors: int, peak: Peak, usable: float, kinds: Sequence[str] = TRAINING, most: int = 2
) -> Advice:
    """For the first ``most`` kinds that can help, the largest plan that leaves a tenth of ``usable`` bytes free.

    Every plan that is named was measured, with no more than two of its batches: a third adds its readings alone.  If no
    kind helps by itself, all of them together, as far as they go.
    """
    budget = (1 - SPARE) * usable
    enough = SMALL * budget
    cached = functools.cache(peak)

    def measured(plan: Plan) -> float:
        return cached(replace(plan, batches=min(2, plan.batches)))

    def fitting(kind: str) -> tuple[Plan, float] | None:
        plans = (p for p in remedies(kind, asked, sensors) if foretold(p, sensors, measured, enough) <= budget)
        return next(((plan, bytes_) for plan in plans if (bytes_ := measured(plan)) <= budget), None)

    needed = foretold(asked, sensors, measured, enough)
    named = list(itertools.islice(filter(None, map(fitting, kinds)), most))
    if named:
        return Advice(needed, named)
    smallest = asked
    for kind in reversed(kinds):
        *_, smallest = smallest, *remedies(kind, smallest, sensors)
    found = (smallest, measured(smallest))
    return Advice(needed, [found] if smallest != asked and found[1] <= budget else [], found)


def message(
    advice: Advice, asked: Plan, sensors: int, device: str, total: float, usable: float, work: str
) -> SocialxError:
    """The error for who ran out of memory on a device with ``total`` bytes, ``usable`` of them for this process."""
    start = (
        f"out of memory: it has {_size(total)}, {_size(usable)} of that for this process, and {work} of "
        f"{asked.windows} windows x {sensors} sensors needs "
    )
    spare = f"{SPARE:.0%} should stay free"
    needs = "more than that" if advice.needed == math.inf else f"about {_size(advice.needed)}"
    if advice.fitting:
        named = [(", or ", *plan.changes(asked), f" (measured: {_size(bytes_)})") for plan, bytes_ in advice.fitting]
        parts = tuple(part for each in named for part in each)[1:]
        return SocialxError(device, f"{start}{needs}; {spare}", ("add ", *parts))
    plan, bytes_ = advice.smallest or (asked, advice.needed)
    least = "more than there is" if bytes_ == math.inf else _size(bytes_)
    smaller = ("a smaller ", Argument("model.width"), ", or fewer ", Argument("model.blocks"))
    if plan == asked:
        return SocialxError(device, f"{start}{needs}; cut no smaller, it needs {least}, and {spare}", smaller)
    even = ("even ", *plan.changes(asked), f" needs {least}, and {spare}; ")
    return SocialxError(device, f"{start}{needs}", (*even, *smaller))


def _size(bytes_: float) -> str:
    return f"{bytes_ / 2**30:.1f} GiB" if bytes_ >= 2**30 else f"{bytes_ / 2**20:.0f} MiB"
