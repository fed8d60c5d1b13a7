"""Out of memory ends in one line that names settings which then need less, from the command line on."""

import re
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from socialx.core.batch import Batch, TrainingBatch
from socialx.core.precision import Precision
from socialx.model.forecaster import Forecaster
from socialx.settings.layers import load_settings
from socialx.tasks.build import Experiment, build
from socialx.tasks.memory import RESUMING, SCORING, TRAINING, make_memory_error, when_memory_runs_out
from socialx.training.learner import Learner
from tests.commands import SMALL, refused, refuses, small_run, socialx, works


@pytest.fixture
def full_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of more than 128 windows runs out of memory."""
    take_step, forward = Learner.step, Forecaster.forward

    def check(batch: Batch) -> None:
        if len(batch.inputs) > 128:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    def step(learner: Learner, examples: Sequence[TrainingBatch]) -> Tensor:
        check(examples[0].batch)
        return take_step(learner, examples)

    def scored(model: Forecaster, batch: Batch) -> Tensor:
        if not model.training:
            check(batch)
        return forward(model, batch)

    monkeypatch.setattr(Learner, "step", step)
    monkeypatch.setattr(Forecaster, "forward", scored)


CODE, FOUND = "device.memory-in-batch", " 256 windows x 4 sensors.\n  try: add "
HALVED = ["--batch-size", "128", "--accumulate-grad-batches", "2"]
STEP = f"{FOUND}{' '.join(HALVED)}, or --activation-checkpointing"


@pytest.mark.usefixtures("full_card")
def test_training_names_settings_and_the_halved_batch_trains(data: Path, tmp_path: Path) -> None:
    command = ["train", "--data", data, "--max-epochs", "1", *SMALL, "--batch-size", "256"]
    result = socialx(*command, "--run-dir", tmp_path / "asked")
    assert result.exit_code == 1
    assert (result.codes.count(CODE), result.stderr.endswith(f"{STEP}\n")) == (1, True), result.stderr
    works(*command, *HALVED, "--run-dir", tmp_path / "halved")


@pytest.mark.slow
@pytest.mark.usefixtures("full_card")
def test_a_profile_says_the_same(data: Path) -> None:
    assert (error := refused("profile", "--data", data, "--steps", "2", *SMALL, "--batch-size", "256")).code == CODE
    assert error.endswith(f"{STEP}\n")


def test_scoring_and_going_on_name_what_may_change(data: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run = small_run(data, tmp_path / "run", "--batch-size", "256")
    request.getfixturevalue("full_card")
    resumed = socialx("train", "--resume", run, "--max-epochs", "2")
    assert resumed.stderr.endswith(f"{FOUND}--activation-checkpointing\n")
    for command in (["evaluate", run, "--split", "train"], ["explain", run, "--split", "train"]):
        assert (error := refused(*command)).code == CODE
        assert error.endswith(f"{FOUND}--batch-size 128\n")
        works(*command, "--batch-size", "128")
    span = ["--start", "2012-05-03 01:00", "--end", "2012-05-04", "--every", "5min"]
    predicted = socialx("predict", run, *span, "--output", tmp_path / "forecast.csv")
    assert predicted.stderr.endswith(f"{FOUND}--batch-size 128\n")


def experiment(data: Path, **sections: dict[str, Any]) -> Experiment:
    own: dict[str, dict[str, Any]] = {"model": {"width": 8, "blocks": 1, "slstm_at": ()}, "trainer": {"device": "cpu"}}
    names = {*own, *sections}
    return build(load_settings(data={"path": data}, **{n: {**own.get(n, {}), **sections.get(n, {})} for n in names}))


@pytest.mark.parametrize(
    ("sections", "remedies", "helps"),
    [
        ({"model": {"encoder_batch": 50}}, SCORING, ["model={'encoder_batch': 25}", "loader={'batch_size': 8}"]),
        ({"model": {"activation_checkpointing": True}}, RESUMING, ["model={'encoder_batch': 32}"]),
        (
            {"loader": {"batch_size": 10}, "trainer": {"accumulate_grad_batches": 3}, "model": {"kind": "linear"}},
            TRAINING,
            ["loader={'batch_size': 5}", "trainer={'accumulate_grad_batches': 6}"],
        ),
        (
            {"loader": {"batch_size": 1}, "model": {"encoder_batch": 1, "activation_checkpointing": True}},
            TRAINING,
            ["model.width", "model.blocks"],
        ),
    ],
)
def test_what_is_used_up_or_not_of_this_model_is_not_named(
    sections: dict[str, Any], remedies: tuple[str, ...], helps: list[str], data: Path
) -> None:
    on_card = replace(experiment(data, **sections), precision=Precision("32-true", torch.device("cuda:0")))
    (message,) = make_memory_error(on_card, remedies, on_card.settings.loader.batch_size).messages
    assert (message.code, message.where, " 4 sensors" in message.problem) == (CODE, "cuda:0", True)
    assert re.findall(r"\w+=\{.*?\}|model\.\w+", message.remedy) == helps


def test_what_the_failed_step_held_is_given_up_and_other_errors_stay(data: Path) -> None:
    left: weakref.WeakSet[Tensor] = weakref.WeakSet()
    built = experiment(data)

    def work(error: RuntimeError) -> None:
        activations = [torch.ones(100, requires_grad=True) * 2]
        left.update(activations)
        raise error

    for message in ("CUDA out of memory", "[enforce fail] DefaultCPUAllocator: can't allocate memory"):
        kind = torch.OutOfMemoryError if "CUDA" in message else RuntimeError
        with refuses(CODE) as caught, when_memory_runs_out(built):
            work(kind(message))
        assert "cpu: " in str(caught.value)
        assert not left
    with pytest.raises(RuntimeError, match="shape"), when_memory_runs_out(built):
        work(RuntimeError("shape '[2]' is invalid"))
