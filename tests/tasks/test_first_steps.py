"""The first steps of a training are measured while it trains, and the training is the same as without."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import socialx
from socialx.profiling.analysis import Partition
from socialx.progress import Event, Note
from socialx.tasks.first_steps import FirstSteps
from socialx.training.clock import DeviceClock, HostClock
from tests.commands import SMALL, works
from tests.commands import socialx as command
from tests.fake_time import FakeTime
from tests.networks import CPU

SECTIONS: dict[str, Any] = {
    "model": {"width": 8, "blocks": 1, "slstm_at": (), "heads": 2},
    "pooling": {"heads": 2, "neighbours": 3},
    "loader": {"batch_size": 32},
    "trainer": {"max_epochs": 2, "device": "cpu", "seed": 3},
}


def trained(
    data: Path, run: Path, first: int, **sections: dict[str, Any]
) -> tuple[dict[str, Any], list[Any], list[str]]:
    """All tensors of the last state, what the epochs say but for times, and the notes."""
    notes: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.message.line())

    merged = {name: {**SECTIONS.get(name, {}), **sections.get(name, {})} for name in {*SECTIONS, *sections}}
    made = socialx.train(data, run_dir=run, profile_first=first, progress=listen, **merged)
    state = torch.load(run / "last.pt", weights_only=True)
    epochs = [(row.epoch, row.steps, row.train_mae, row.validation_mae, row.learning_rate) for row in made.epochs]
    return state, epochs, notes


def same(one: Any, other: Any) -> bool:
    """Whether two trees of tensors and numbers are equal bit by bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.fixture(scope="module")
def plain(data: Path) -> tuple[Any, list[Any], list[str]]:
    return trained(data, data.parent / "plain", 0)


@pytest.mark.parametrize("first", [1, 4, 10_000])
def test_a_training_is_bitwise_the_same_and_says_one_line_more(
    first: int, plain: tuple[Any, list[Any], list[str]], data: Path, tmp_path: Path
) -> None:
    plain_state, plain_epochs, none = plain
    state, epochs, notes = trained(data, tmp_path / "first", first)
    assert set(state) >= {"learner", "progress", "random"}
    assert same(state, plain_state)
    assert epochs == plain_epochs
    assert len(notes) == len(none) + 1
    (line,) = (note for note in notes if note not in none)
    # 9 steps an epoch, of which 8 are the warm-up.
    assert re.match(r"1 steps? in \d+\.\d s: [A-Z-]+, ", line)
    shares = re.search(r"\((\d+)% training step, (\d+)% input, (\d+)% hooks\)", line)
    assert sum(map(int, shares.groups())) <= 102  # a copy is told by the profile alone
    saved = str(tmp_path / "first/settings.yaml")
    assert f"socialx.profile(settings=socialx.load_settings([{saved!r}]))" in line


@pytest.mark.parametrize(("warmup_steps", "first", "taken"), [(2, 4, 4), (0, 4, 4), (2, 99, 7), (99, 4, 1)])
def test_as_many_steps_as_an_epoch_has_are_measured(
    warmup_steps: int, first: int, taken: int, data: Path, tmp_path: Path
) -> None:
    *_, notes = trained(
        data, tmp_path / "run", first, profile={"warmup_steps": warmup_steps}, trainer={"max_epochs": 1}
    )
    (line,) = (note for note in notes if "training step" in note)
    assert line.startswith(f"{taken} step")


@pytest.mark.parametrize("groups", [2, 100])
def test_steps_of_several_batches_are_measured(groups: int, data: Path, tmp_path: Path) -> None:
    """One step or a few are all that an epoch has."""
    *_, notes = trained(
        data,
        tmp_path / "run",
        99,
        profile={"warmup_steps": 1},
        trainer={"accumulate_grad_batches": groups, "max_epochs": 1},
    )
    (line,) = (note for note in notes if "training step" in note)
    assert line.startswith(f"{max(1, -(-9 // groups) - 1)} step")


def test_what_is_found_is_told_as_flags(data: Path, tmp_path: Path) -> None:
    """The loss is read in every step, and workers without processes make the batches."""
    done = works(
        "train", "--data", data, "--run-dir", tmp_path / "run", "--max-epochs", "1", "--model", "linear", "--mode",
        "workers", "--num-workers", "0", "--profile-first", "20", "--batch-size", "4", "--seed", "1", *SMALL,
    )  # fmt: skip
    (line,) = (line for line in done.stderr.splitlines() if "training step" in line)
    assert re.match(r"20 steps in \d+\.\d s: [A-Z-]+, ", line)
    assert "--mode resident" in line
    assert line.endswith(f"more: socialx profile --config {tmp_path / 'run/settings.yaml'}")


def test_a_resumed_training_may_be_measured_too(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained(data, run, 0, trainer={"max_epochs": 1})
    done = works("train", "--resume", run, "--max-epochs", "2", "--profile-first", "4")
    assert len([line for line in done.stderr.splitlines() if "training step" in line]) == 1
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]


def test_less_than_no_step_is_refused(data: Path, tmp_path: Path) -> None:
    done = command("train", "--data", data, "--run-dir", tmp_path / "run", "--profile-first", "-1", *SMALL)
    assert done.exit_code == 2
    assert not (tmp_path / "run").exists()


# The clock


class Watched:
    """The first steps of made-up epochs: what was measured, and when it was told."""

    def __init__(self, steps: int, warmup_steps: int) -> None:
        self.time = FakeTime()
        self.told: list[Partition] = []
        self.taken = self.taken_when_told = 0
        self.clock = FirstSteps(CPU, steps, warmup_steps, self._done)

    def _done(self, clock: HostClock | DeviceClock, parts: Partition) -> None:
        assert clock.kind == "host"
        self.told.append(parts)
        self.taken_when_told = self.taken

    def epoch(self, steps: Sequence[float], interrupted: bool = False) -> None:
        """A step of so many seconds each, as the loop marks them; then a validation."""
        for seconds in steps:
            for name, share in (("fetch", 0.1), ("copy", 0.2), ("compute", 0.6), ("done", 0.1)):
                self.clock.mark(name)
                self.time.now += share * seconds
            self.taken += 1
        self.clock.mark("fetch")
        self.time.now += 1000  # of the validation


EPOCHS = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(EPOCHS, st.integers(1, 8), st.integers(0, 8))
def test_the_steps_after_the_warm_up_are_measured_once(epochs: list[int], steps: int, warmup_steps: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        watched = Watched(steps, warmup_steps)
        patch.setattr("socialx.training.clock.time", watched.time)
        seconds = [1.0 + 0.01 * number for number in range(sum(epochs))]
        ends = list(itertools.accumulate(epochs))
        for end, count in zip(ends, epochs, strict=True):
            watched.epoch(seconds[end - count : end])
        last = next((end for end in ends if end > warmup_steps), None)  # of the epoch in which it is measured
    if last is None or (last == ends[-1] and last - warmup_steps < steps):
        assert not watched.told
        return
    (parts,) = watched.told
    expected = seconds[warmup_steps : min(warmup_steps + steps, last)]
    np.testing.assert_allclose(parts.step_seconds, expected)
    assert parts.wall == pytest.approx(sum(expected))
    assert parts.shares == pytest.approx({"input": 0.1, "transfer": 0.2, "span": 0.6, "hooks": 0.1})
    assert watched.taken_when_told == warmup_steps + len(expected)


def test_after_the_steps_nobody_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(3, 2)
    monkeypatch.setattr("socialx.training.clock.time", watched.time)
    watched.epoch([1.0] * 2)
    before = watched.time.looks
    assert before <= 1
    watched.epoch([1.0] * 9)
    assert watched.time.looks - before == 3 * 4 + 1
    assert len(watched.told) == 1


def test_an_interrupted_epoch_tells_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(50, 1)
    monkeypatch.setattr("socialx.training.clock.time", watched.time)
    watched.epoch([1.0, 2.0, 3.0])
    assert not watched.told  # it might go on
    watched.epoch([5.0])
    (parts,) = watched.told
    assert parts.step_seconds.tolist() == pytest.approx([2.0, 3.0])
