"""A training step on CUDA: the numbers of a CPU, recorded and compiled, and it never waits for the device."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from socialx.core.batch import Batch, TrainingBatch
from socialx.core.errors import FallbackWarning
from socialx.core.precision import resolve_precision
from socialx.training.cuda_graph import WARMUP, CapturedStep, CudaRecorder
from socialx.training.learner import Learner
from socialx.training.loop import TrainState, epoch_examples, fit, load_progress, run_steps
from socialx.training.process_group import ProcessGroup
from socialx.training.run_folder import RunFolder
from tests.gpu.device import BATCH, CUDA, compiles, in_every_precision, learner, on_device, refused_waits
from tests.meters import Launches
from tests.networks import CPU, batch, example, forecaster

pytestmark = pytest.mark.gpu


def test_forecast_and_gradients_equal_the_cpus() -> None:
    results = []
    for device in (CPU, CUDA):
        model, b = forecaster(social=2).double().to(device), batch().to(device)
        b = Batch(*(t.double() if t.is_floating_point() else t for t in b))
        forecast = model(b)
        forecast.square().mean().backward()
        results.append([forecast.cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)])
    for on_cpu, on_cuda in zip(*results, strict=True):
        torch.testing.assert_close(on_cuda, on_cpu, rtol=1e-9, atol=1e-11)


@in_every_precision
def test_a_step_never_waits(precision: str) -> None:
    made, data = learner(precision, accumulate_grad_batches=2), on_device()
    run_steps(made, data.epoch(0), lambda loss, batches: False)
    batches = data.epoch(1)
    with refused_waits():
        run_steps(made, batches, lambda loss, batches: False)


@in_every_precision
def test_it_learns_in_every_precision(precision: str) -> None:
    made, e = learner(precision), example().to(CUDA)
    losses = [made.step([e]).item() for _ in range(40)]
    assert sum(losses[-5:]) < 0.75 * sum(losses[:5])


def trained(precision: str, **options: Any) -> list[torch.Tensor]:
    """Losses and weights after 18 steps on groups of two batches and of one."""
    made, data, losses = learner(precision, 0.0, accumulate_grad_batches=2, **options), on_device(), []

    def keep(loss: torch.Tensor, batches: int) -> bool:
        losses.append(loss)
        return False

    for epoch in range(6):
        run_steps(made, epoch_examples(made, data, epoch), keep)
    return [torch.stack(losses), *(p.detach() for p in made.model.parameters())]


@pytest.mark.filterwarnings("error::socialx.core.errors.FallbackWarning")
@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize(("compile", "patch"), [("off", 1), ("off", 6), pytest.param("default", 6, marks=compiles)])
@in_every_precision
def test_recorded_and_compiled_steps_are_the_step(precision: str, cuda_graph: bool, compile: str, patch: int) -> None:
    # Adam turns the rounding of a gradient near zero into a step of the learning rate: half types wander further.
    rtol, atol = (1e-3, 2e-3) if precision == "32-true" else (5e-2, 5e-2)
    fast = trained(precision, compile=compile, cuda_graph=cuda_graph, patch=patch)
    for ours, plain in zip(fast, trained(precision, patch=patch), strict=True):
        torch.testing.assert_close(ours, plain, rtol=rtol, atol=atol)


def test_forecasts_of_a_validation_are_recorded() -> None:
    made, e = learner(cuda_graph=True), example().to(CUDA)
    made.model.eval()
    for step in range(WARMUP + 3):
        with torch.no_grad():
            expected = made.model(e.batch)
        torch.testing.assert_close(made.forecast(e), expected, rtol=1e-5, atol=1e-5)
        if step == WARMUP:  # a recording reads the weights as they are
            with torch.no_grad():
                for parameter in made.model.parameters():
                    parameter.mul_(1.1)


def test_a_replayed_step_of_a_resident_series_launches_a_copy_and_the_graph() -> None:
    made, data = learner(cuda_graph=True), on_device(batch_size=4)
    assert len(data) > WARMUP
    run_steps(made, epoch_examples(made, data, 0), lambda loss, batches: False)
    steps, batches = made.steps, epoch_examples(made, data, 1)
    first = next(batches)  # an epoch begins with its order, which is sent
    with refused_waits(), Launches() as seen:
        run_steps(made, itertools.chain([first], batches), lambda loss, batches: False)
    steps = made.steps - steps
    assert seen.counts == {"copy_": steps, "fill_": steps, "clone": steps}  # rows, rate, loss


def test_several_processes_replay_two_parts_around_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    sums: list[Tensor] = []
    monkeypatch.setattr(ProcessGroup, "all_reduce", lambda _, tensor: sums.append(tensor) or tensor.mul_(2))
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: replays.append(graph) or replay(graph))
    group, e = ProcessGroup(0, 2), example().to(CUDA)
    shared, alone = learner(dropout=0.0, cuda_graph=True, group=group), learner(dropout=0.0)
    for step in range(WARMUP + 4):
        torch.testing.assert_close(shared.step([e]), alone.step([e]), rtol=1e-3, atol=1e-3)
        assert (len(sums), len(replays)) == (step + 1, 2 * max(0, step + 1 - WARMUP))
    for ours, theirs in zip(shared.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-3)


@pytest.mark.filterwarnings("error::socialx.core.errors.FallbackWarning")
@pytest.mark.parametrize(("encoder_batch", "twice"), [(None, False), (None, True), (7, True)])
@in_every_precision
def test_a_recorded_step_draws_dropout_and_never_waits(precision: str, encoder_batch: int | None, twice: bool) -> None:
    """Also where it computes the encoder twice, which without dropout is the step that does so once."""
    e = example().to(CUDA)
    made, fixed = (learner(precision, drop, cuda_graph=True, learning_rate=1e-9) for drop in (0.1, 0.0))
    for each in (made, fixed):
        each.model.encoder.activation_checkpointing, each.model.encoder.encoder_batch = twice, encoder_batch
    assert len({made.step([e]).item() for _ in range(12)}) > 10
    plain = learner(precision, 0.0, learning_rate=1e-9)
    for _ in range(WARMUP + 2):
        torch.testing.assert_close(fixed.step([e]), plain.step([e]), rtol=1e-2, atol=1e-2)
    with refused_waits():
        made.step([e])


def test_auto_is_a_mixed_precision() -> None:
    assert resolve_precision("auto", CUDA).name in ("bf16-mixed", "16-mixed")


@pytest.mark.filterwarnings("error::socialx.core.errors.FallbackWarning")
def test_a_recorded_run_resumes(tmp_path: Path) -> None:
    def go(made: Learner, epochs: int, progress: TrainState | None = None) -> TrainState:
        made.trainer = made.trainer.model_copy(update={"max_epochs": epochs})
        run, size = RunFolder(tmp_path / "run"), BATCH // 8
        return fit(made, on_device("train", size), on_device("validation", size), run, progress)

    made, resumed = learner(cuda_graph=True), learner(cuda_graph=True)
    go(made, 1)
    for step in (made._device_step, made._forecast_step):
        assert any(shape.recording is not None for shape in step._shapes.values())
    progress = load_progress(resumed, RunFolder(tmp_path / "run"))
    assert (progress.epoch, resumed.steps) == (1, made.steps)
    go(resumed, 2, progress)
    assert (tmp_path / "run/metrics.jsonl").read_text().count("\n") == 2


def test_a_recording_that_fails_is_told_and_training_goes_on() -> None:
    """The last test of a process: torch keeps the pool of such a recording open, and nothing is recorded after it."""
    made, e = learner(cuda_graph=True), example().to(CUDA)
    plain, reads = made._plain_step, []

    def reading(examples: Sequence[TrainingBatch]) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            reads.append(1)
            examples[0].batch.inputs.sum().item()  # which no capture allows
        return plain(examples)

    made._device_step = CapturedStep(reading, CudaRecorder(), made._drop_gradients)
    with pytest.warns(FallbackWarning) as told:
        losses = [made.step([e]).item() for _ in range(8)]
    assert "train.graph-off" in [each.message.message.code for each in told]
    assert np.isfinite(losses).all()
    assert len(reads) == 1
    assert torch.isfinite(torch.nn.functional.dropout(torch.ones(9, device=CUDA))).all()
