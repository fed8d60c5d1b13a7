"""How true a profile is: its rules in simulated loops, waits of known size, and settings that are slow on purpose.

python benchmarks/profiling.py rules             400 simulated loops with known truth
python benchmarks/profiling.py waits             5, 20 and 50 % of a real loop slept in three places
python benchmarks/profiling.py same --runs 40    a configuration compared with itself
python benchmarks/profiling.py tour              four slow settings: found, foretold, changed, measured
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

import socialx
from benchmarks.simulated_loop import draw, profile_of, truth
from socialx.batch import Example
from socialx.build import build
from socialx.profiling.analysis import partition
from socialx.profiling.measure import Lengths, Training, clocked
from socialx.profiling.rules import VERDICT_OF, patch_of, with_findings
from socialx.settings_file import as_yaml
from socialx.settings_layers import Layers
from socialx.tasks.profiling import loading_facts
from socialx.tasks.training import make_learner, train_loader
from socialx.training.clock import clock_for
from socialx.training.learner import Learner

EXAMPLES = Path(__file__).parents[1] / "examples"
SEEDS = range(9000, 9400)  # none of them was looked at while the rules were written
NOT_STALLS = ("compute.", "memory.")
SMALL = {"model": {"kind": "lstm", "width": 16}, "loader": {"batch_size": 16}}
TOUR: dict[str, dict[str, Any]] = {
    "starved loader": {
        "model": {"kind": "linear"},
        "loader": {"batch_size": 64, "mode": "workers", "num_workers": 1},
        "trainer": {"threads": 1},
    },
    "the loss read in every step": {**SMALL, "trainer": {"log_every_n_steps": 1, "threads": 1}},
    "too many threads": {
        "model": {"width": 16, "blocks": 1, "slstm_at": []},
        "loader": {"batch_size": 32},
        "trainer": {"threads": 8},
        "profile": {"steps": 60},
    },
    "tiny batches": {
        "model": {"width": 16, "blocks": 1, "slstm_at": []},
        "loader": {"batch_size": 1},
        "trainer": {"accumulate_grad_batches": 32, "threads": 1},
        "profile": {"steps": 60},
    },
}


def rules() -> None:
    """First findings against the truth of simulated loops."""
    drawn, right, said = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for seed in SEEDS:
        loop = draw(Random(seed))
        true, _ = truth(loop)
        found = with_findings(profile_of(loop)).findings
        first = next((f for f in found if f.severity != "info" and not f.rule.startswith(NOT_STALLS)), None)
        word = VERDICT_OF[first.rule].removesuffix("-BOUND") if first else "healthy"
        drawn[true] += 1
        right[true] += word == true
        if word != true:
            said[true, word] += 1
    print("| truth | loops | first finding is it |\n|---|---:|---:|")
    for name in sorted(drawn):
        print(f"| {name} | {drawn[name]} | {right[name] / drawn[name]:.1%} |")
    print(f"| all | {drawn.total()} | {right.total() / drawn.total():.1%} |\n")
    print(
        "taken for another:", ", ".join(f"{true} for {word} {n}x" for (true, word), n in said.most_common()) or "none"
    )
    healthy = drawn["healthy"]
    print(f"false alarms: {healthy - right['healthy']} of {healthy} healthy loops")


class _Sleepy:
    """Sleeps in one place of the loop, and adds up how long it really slept."""

    def __init__(self, place: str, seconds: float) -> None:
        self.place, self.seconds, self.slept = place, seconds, 0.0

    def at(self, place: str) -> None:
        if place == self.place and self.seconds:
            began = time.perf_counter()
            time.sleep(self.seconds)
            self.slept += time.perf_counter() - began


def waits(data: str, steps: int = 150) -> None:
    """Known waits in the data path, in the step and in a hook of a real loop."""
    s = socialx.load_settings(data={"path": data}, **SMALL, trainer={"threads": 1})
    print("| slept in | of a step | slept share | reported | as | off by |\n|---|---:|---:|---:|---|---:|")
    step_s = _loop(s, _Sleepy("", 0.0), steps)[1] / steps
    for place, name in (("data", "input"), ("step", "waiting in the step"), ("hook", "hooks")):
        base = _reported(_loop(s, _Sleepy(place, 0.0), steps)[0], place)
        for share in (0.05, 0.2, 0.5):
            sleepy = _Sleepy(place, step_s * share / (1 - share))
            found, seconds = _loop(s, sleepy, steps)
            slept = sleepy.slept / seconds
            reported = _reported(found, place) - base * (1 - slept)  # what is there without any wait
            off = 100 * (reported - slept)
            print(f"| {place} | {share:.0%} | {slept:.1%} | {reported:.1%} | {name} | {off:+.1f} points |", flush=True)


def _reported(found: Any, place: str) -> float:
    return {"data": found.shares["input"], "step": found.host["waiting"], "hook": found.shares["hooks"]}[place]


def _loop(s: Any, sleepy: _Sleepy, steps: int) -> tuple[Any, float]:
    problem = build(s)
    loader = train_loader(problem)
    learner = make_learner(problem, len(loader))
    own_step, own_epoch = learner.step, loader.epoch

    def step(examples: list[Example]) -> Tensor:
        sleepy.at("step")
        return own_step(examples)

    def epoch(number: int, first_batch: int = 0) -> Iterator[Example]:
        for example in own_epoch(number, first_batch):
            sleepy.at("data")
            yield example

    learner.step, loader.epoch = step, epoch  # type: ignore[method-assign, assignment]
    assert isinstance(learner, Learner)
    training = Training(learner, loader, 50, lambda: sleepy.at("hook"))
    training.take(10)
    sleepy.slept = 0.0
    clock = clock_for(torch.device("cpu"))
    training.take(steps, clock)
    parts = partition(clock.read())
    found = clocked(clock, parts, loader, 1, Lengths(steps, 10, 50), loading_facts(problem, loader))
    return found, parts.wall


def same(data: str, runs: int) -> None:
    """A configuration compared with itself: how often a difference is said."""
    settings = socialx.load_settings(data={"path": data}, **SMALL, profile={"block_seconds": 0.25, "warmup_steps": 5})
    found = []
    for run in range(runs):
        gain = socialx.compare(settings=settings, other=settings).gain
        found.append(gain)
        print(f"{run + 1:>3}  {gain.gain:.3f}  ({gain.low:.3f} to {gain.high:.3f})  {gain}", flush=True)
    wrong = sum(gain.differs for gain in found)
    half = sorted(gain.high / gain.low for gain in found)[len(found) // 2]
    print(f"a difference was said in {wrong} of {runs} runs; the median interval is {100 * (half - 1):.0f} % wide")


def tour(data: str) -> None:
    """Slow settings: what the profile names and foretells, and what its settings bring."""
    head = "| problem | verdict | first finding | changed | foretold | measured | brought of the gain foretold |"
    print(f"{head}\n|---|---|---|---|---:|---:|---:|")
    slow = {"all together": None, **TOUR}
    for name, sections in slow.items():
        files = (EXAMPLES / "slow_on_purpose.yaml",) if sections is None else ()
        layers = Layers.of(Layers.read(files), {**(sections or {}), "data": data})
        found = socialx.profile(settings=layers)
        first = next((each for each in found.findings if each.severity != "info"), None)
        patch = patch_of(found.findings) if sections is None else dict(first.patch) if first else {}
        if first is None or not patch:
            print(f"| {name} | {found.verdict} | {first.rule if first else 'none'} | - | - | - | - |", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            tuned = Path(folder, "tuned.yaml")
            tuned.write_text(as_yaml(patch, {}))
            gain = socialx.compare(settings=layers, other=tuned).gain
        expected = first.trial.gain if first.trial else first.ceiling or 1.0
        foretold = f"{expected:.2f}x" if sections is not None else "-"
        brought = (gain.gain - 1) / (expected - 1)
        change = ", ".join(f"{key} = {value}" for key, value in patch.items())
        measured = f"{gain.gain:.2f}x ({gain.low:.2f} to {gain.high:.2f})"
        share = f"{brought:.0%}" if sections is not None else "-"
        print(f"| {name} | {found.verdict} | {first.rule} | {change} | {foretold} | {measured} | {share} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rules", "waits", "same", "tour"])
    parser.add_argument("--data", help="a converted file; without it the excerpt in examples/data")
    parser.add_argument("--runs", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"CPU capability {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        data = given.data or str(excerpt(Path(folder)))
        {
            "rules": rules,
            "waits": lambda: waits(data),
            "same": lambda: same(data, given.runs),
            "tour": lambda: tour(data),
        }[given.what]()


def excerpt(folder: Path) -> Path:
    """The excerpt of METR-LA, converted."""
    path = folder / "metr_la.h5"
    locations = EXAMPLES / "data/sensor_locations.csv"
    socialx.convert("metr-la", EXAMPLES / "data/METR-LA-excerpt.csv", path, meta=locations)
    return path


if __name__ == "__main__":
    main()
