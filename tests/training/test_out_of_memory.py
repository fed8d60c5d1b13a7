"""Out of memory ends in one line that names settings which then work, from the command line on.

A CPU stands in for the card: its steps run, and a made-up law says what each would have needed.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from socialx.batch import Batch, Example
from socialx.data.loaders import Loader
from socialx.errors import SocialxError
from socialx.model.forecaster import Forecaster
from socialx.precision import Precision, when_memory_runs_out
from socialx.scoring.evaluation import Accumulator
from socialx.training import probe
from socialx.training.learner import Learner
from socialx.training.memory import TRAINING, Plan
from tests.commands import SMALL, small_file, small_run, socialx
from tests.networks import CPU, example, forecaster

MIB = 2**20


@pytest.fixture(scope="module", autouse=True)
def only_new_objects() -> Iterator[None]:
    """Each measurement collects garbage, which takes longer than its step where every imported module is looked at."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"))


def needed(model: nn.Module, windows: int, sensors: int, batches: int = 1) -> int:
    """The made-up law: 10 MiB, 64 KiB per sequence in the encoder, a quarter of that with checkpointing."""
    encoder: Any = model.encoder
    at_once = min(windows * sensors, encoder.chunk or windows * sensors)
    return 10 * MIB + at_once * (16 if encoder.checkpointing else 64) * 1024 + (batches > 1) * MIB


class FakeCard:
    """A CPU that runs out of memory and counts what a step takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, usable: int) -> None:
        self.usable, self.alive_when_measured = usable, []  # type: ignore[var-annotated]
        self.made = weakref.WeakSet()  # type: ignore[var-annotated]
        take_step, forward = Learner.step, Forecaster.forward
        self.probing = False

        def step(learner: Learner, examples: Sequence[Example]) -> Tensor:
            self.made.add(learner)
            self.check(needed(learner.model, *examples[0].batch.carried.shape[:2], len(examples)))
            return take_step(learner, examples)

        def scored(model: Forecaster, b: Batch) -> Tensor:
            if not model.training:
                self.check(needed(model, *b.carried.shape[:2]))
            return forward(model, b)

        monkeypatch.setattr(Learner, "step", step)
        monkeypatch.setattr(Forecaster, "forward", scored)
        monkeypatch.setattr(probe, "COUNTED", ("cpu",))
        monkeypatch.setattr(probe, "card", lambda device: probe.Card(2 * self.usable, self.usable))
        monkeypatch.setattr(probe, "step_peak", self.step_peak)
        monkeypatch.setattr(probe, "score_peak", self.score_peak)

    def check(self, bytes_: int) -> int:
        if bytes_ > self.usable:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {bytes_}")
        return bytes_

    def step_peak(self, learner: Learner, loader: Loader) -> float:
        self.made.add(learner)
        held = [p.numel() for other in self.made if other is not learner for p in other.model.parameters()]
        self.alive_when_measured.append(sum(held))
        first = next(loader.epoch(0))
        learner.step([first])
        return self.check(needed(learner.model, *first.batch.carried.shape[:2], learner.accumulate_grad_batches))

    def score_peak(self, model: nn.Module, loader: Loader, precision: Precision, *accumulators: Accumulator) -> float:
        first, target = next(loader.epoch(0))
        forecast = model.eval()(first)
        for accumulator in accumulators:
            accumulator.add(forecast, first, target)
        return self.check(needed(model, *first.carried.shape[:2]))


def named(stderr: str) -> list[list[str]]:
    """The flags of each remedy in a message."""
    return [flags.split() for flags in re.findall(r"(--[^(]*?) \(measured", stderr)]


def test_training_names_two_settings_and_both_train(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = FakeCard(monkeypatch, usable=50 * MIB)  # 256 windows x 4 sensors need 74
    command = ["train", "--data", data, "--max-epochs", "1", "--batch-size", "256", *SMALL]
    result = socialx(*command, "--run-dir", tmp_path / "asked")
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert line == (
        "error: cpu: out of memory: it has 100 MiB, 50 MiB of that for this process, and a training step of 256 "
        "windows x 4 sensors needs about 74 MiB; 10% should stay free: add --chunk 512 (measured: 42 MiB), or "
        "--batch-size 128 --accumulate-grad-batches 2 (measured: 43 MiB)"
    )
    assert len(card.alive_when_measured) > 4
    assert not any(card.alive_when_measured), "the failed learner still holds its weights"
    for place, flags in enumerate(named(line)):
        again = socialx(*command, *flags, "--run-dir", tmp_path / str(place))
        assert again.exit_code == 0, again.stderr


def test_what_is_set_already_is_where_it_starts(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCard(monkeypatch, usable=40 * MIB)
    asked = ["--chunk", "600", "--batch-size", "128", "--accumulate-grad-batches", "2"]
    result = socialx("train", "--data", data, "--run-dir", tmp_path / "run", *asked, *SMALL)
    expected = [["--chunk", "256"], ["--batch-size", "64", "--accumulate-grad-batches", "4"]]
    assert named(result.stderr) == expected, result.stderr


@pytest.mark.slow
def test_a_cut_that_the_model_does_not_make_is_not_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCard(monkeypatch, usable=50 * MIB)
    interleaved = ["--placement", "interleaved", "--layers", "1"]
    result = socialx("profile", "--data", data, "--steps", "2", "--batch-size", "256", *SMALL, *interleaved)
    assert result.exit_code == 1
    assert "--chunk" not in result.stderr
    assert named(result.stderr)[0] == ["--batch-size", "128", "--accumulate-grad-batches", "2"]


@pytest.mark.slow
def test_a_run_that_goes_on_keeps_its_batches(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(data, tmp_path / "run", "--batch-size", "256")
    FakeCard(monkeypatch, usable=50 * MIB)
    resume = ["train", "--resume", run, "--max-epochs", "2"]
    result = socialx(*resume)
    assert named(result.stderr) == [["--chunk", "512"], ["--checkpointing"]], result.stderr
    for epochs, flags in enumerate(named(result.stderr), 2):
        again = socialx(*resume[:-1], str(epochs), *flags)
        assert again.exit_code == 0, again.stderr


@pytest.mark.slow
def test_scoring_names_what_scores(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(data, tmp_path / "run")
    before = socialx("evaluate", run, "--part", "train", "--batch-size", "256").stdout
    FakeCard(monkeypatch, usable=50 * MIB)
    score = ["evaluate", run, "--part", "train", "--batch-size", "256"]
    result = socialx(*score)
    assert result.exit_code == 1
    assert "a batch to score of 256 windows x 4 sensors needs about 74 MiB" in result.stderr
    assert named(result.stderr) == [["--chunk", "512"], ["--batch-size", "128"]]
    for flags in named(result.stderr):
        again = socialx(*score, *flags)
        assert again.exit_code == 0, again.stderr
        assert again.stdout.splitlines()[:8] == before.splitlines()[:8]


@pytest.mark.slow
def test_a_profile_says_the_same(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCard(monkeypatch, usable=50 * MIB)
    result = socialx("profile", "--data", data, "--steps", "2", "--batch-size", "256", *SMALL)
    assert result.exit_code == 1
    assert named(result.stderr)[0] == ["--chunk", "512"]


def test_where_nothing_is_counted_it_stays_one_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeCard(monkeypatch, usable=50 * MIB)
    monkeypatch.setattr(probe, "COUNTED", ("cuda",))
    result = socialx("train", "--data", data, "--run-dir", tmp_path / "run", "--batch-size", "256", *SMALL)
    assert result.exit_code == 1
    assert "error: out of memory (CUDA out of memory" in result.stderr


def test_what_the_failed_step_held_is_gone_before_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "card", lambda device: probe.Card(2, 1))
    left: weakref.WeakSet[Tensor] = weakref.WeakSet()
    alive, order = [], []

    def work() -> None:
        activations = [torch.ones(100, requires_grad=True) * 2]
        left.update(activations)
        raise torch.OutOfMemoryError

    def peak(plan: Plan) -> float:
        alive.append(len(left))
        order.append("measured")
        return 2.0

    def give_up() -> SocialxError:
        order.append("given up")
        return probe.advice(probe.Failed(CPU, Plan(4), 5, peak, TRAINING, "a training step"))

    with pytest.raises(SocialxError, match="cpu: out of memory"), when_memory_runs_out(give_up):
        work()
    assert order[:2] == ["given up", "measured"]
    assert not any(alive)


def test_a_measurement_that_runs_out_leaves_nothing_behind() -> None:
    left = weakref.WeakSet()  # type: ignore[var-annotated]

    def measure() -> float:
        tensor = torch.ones(100)
        left.add(tensor)
        raise torch.OutOfMemoryError

    assert probe.measured(measure) == float("inf")
    gc.collect()
    assert not left
    assert probe.measured(lambda: 7.0) == 7


def test_released_memory_is_given_back_by_whoever_holds_it() -> None:
    made = Learner(forecaster(), Precision("32-true", CPU), learning_rate=1e-3, weight_decay=0.0, total_steps=9)
    made.step([example()])
    weights = [parameter.untyped_storage() for parameter in made.model.parameters()]
    alive = weakref.WeakSet(weights)
    held = made.optimizer.param_groups[0]["params"]
    del weights
    probe.release(made.model, made.optimizer)
    assert not alive
    assert not any(p.numel() for p in held)
    assert not made.optimizer.state
