"""Compiled and recorded steps are the same steps, and say so where they cannot be made."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from socialx.batch import Batch, Example
from socialx.errors import Fallback
from socialx.precision import Precision
from socialx.training.capture import WARMUP, CapturedStep, CudaRecorder
from socialx.training.learner import Learner
from tests.networks import CPU, batch, example, forecaster


def learner(precision: str = "32-true", **options: object) -> Learner:
    choices = {"learning_rate": 1e-2, "weight_decay": 1e-3, "total_steps": 20, "gradient_clip_val": 1.0, **options}
    return Learner(forecaster(dropout=0.1, social=2), Precision(precision, CPU), **choices)


def after(made: Learner, steps: int = 4) -> tuple[list[float], dict[str, Tensor]]:
    torch.manual_seed(1)
    losses = [made.step([example(seed=step), example(seed=100 + step)]).item() for step in range(steps)]
    return losses, made.model.state_dict()


class Playback:
    """Records as CUDA does: nothing is computed while recording, and a replay reads the buffers of the recording.

    fault: what recordings raise after the first ``good`` ones.
    """

    def __init__(self, fault: Exception | None = None, good: int = 0) -> None:
        self.recordings, self.fault, self.good = 0, fault, good

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        if self.fault is not None and self.recordings == self.good:
            raise self.fault
        self.recordings += 1
        result = torch.full((), torch.nan)
        return lambda: (result.copy_(work()), None)[1], result

    def beside(self, work: Callable[[], Tensor]) -> Tensor:
        return work()


class Descent:
    """A step that changes a weight: the loss of a group, and whether ``recover`` was called."""

    def __init__(self) -> None:
        self.weight, self.recovered = torch.ones(()), 0

    def __call__(self, examples: Sequence[Example]) -> Tensor:
        loss = sum((self.weight * _first_rows(each) for each in examples), torch.zeros(()))
        self.weight.sub_(1e-4 * loss)
        return loss

    def recover(self) -> None:
        self.recovered += 1


def _first_rows(made: Example) -> Tensor:
    """Of what is known and of what comes after: a replay must be handed both."""
    return made.batch.history[0, 0].sum() + made.target.values[0, 0].sum()


def groups(count: int) -> list[list[Example]]:
    """Groups of two batches, and every third of one."""
    return [[example(seed=2 * i), example(seed=2 * i + 1)][: 1 if i % 3 == 2 else 2] for i in range(count)]


def test_a_recorded_step_is_the_step() -> None:
    plain, descent, playback = Descent(), Descent(), Playback()
    step = CapturedStep(descent, playback, descent.recover)
    losses = [(plain(group), step(group)) for group in groups(18)]
    assert all(torch.equal(a, b) for a, b in losses)  # compared at the end: a replay leaves older results alone
    assert torch.equal(plain.weight, descent.weight)
    assert playback.recordings == 2  # one per shape of a group
    assert descent.recovered == 0


def test_the_first_steps_of_a_shape_are_taken_as_they_are() -> None:
    descent, playback = Descent(), Playback()
    step = CapturedStep(descent, playback, descent.recover)
    for taken in range(WARMUP):
        step([example()])
        assert playback.recordings == 0, taken
    step([example()])
    assert playback.recordings == 1


def test_what_cannot_be_recorded_is_said_and_done_as_it_is() -> None:
    plain, descent = Descent(), Descent()
    refused = RuntimeError("operation not permitted when stream is capturing\nCUDA error: more lines")
    step = CapturedStep(descent, Playback(refused), descent.recover)
    with pytest.warns(Fallback, match=r"trainer\.cuda_graph.*not permitted when stream is capturing\)") as warned:
        losses = [(plain(group), step(group)) for group in groups(18)]
    assert all(torch.equal(a, b) for a, b in losses)
    assert torch.equal(plain.weight, descent.weight)
    assert descent.recovered == 1
    assert len(warned) == 1


def test_recordings_end_with_the_first_that_fails() -> None:
    descent = Descent()
    plain, step = Descent(), CapturedStep(descent, Playback(RuntimeError("no room"), good=1), descent.recover)
    with pytest.warns(Fallback, match="no room"):
        losses = [(plain(group), step(group)) for group in groups(18)]
    assert all(torch.equal(a, b) for a, b in losses)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory")]
)
def test_memory_that_runs_out_is_no_failed_recording(error: RuntimeError) -> None:
    descent = Descent()
    step = CapturedStep(descent, Playback(error), descent.recover)
    for _ in range(WARMUP):
        step([example()])
    with pytest.raises(RuntimeError, match="out of memory"):
        step([example()])


def _views(one: Example) -> Example:
    """The same numbers in tensors that are not contiguous, as loaders cut them."""
    return Example(Batch(*(torch.stack([tensor, tensor], -1)[..., 0] for tensor in one.batch)), one.target)


def test_every_step_of_a_shape_reads_the_same_memory() -> None:
    """A compiled model is compiled again for other strides, and nothing may compile while CUDA records."""
    seen: list[tuple[object, ...]] = []

    def work(examples: Sequence[Example]) -> Tensor:
        seen.append(tuple((t.data_ptr(), t.stride()) for one in examples for t in (*one.batch, *one.target)))
        return _first_rows(examples[0])

    playback = Playback()
    step = CapturedStep(work, playback)
    for seed in range(WARMUP + 2):
        one = example(seed=seed)
        assert torch.equal(step([_views(one)]), _first_rows(one))
    assert playback.recordings == 1
    assert len(seen) == WARMUP + 2
    assert len(set(seen)) == 1


@pytest.mark.slow
def test_a_recorded_step_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounter()
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run, **_: compile_(run, backend=counter, dynamic=False))
    made = learner(compile="default")
    step = CapturedStep(made._device_step, Playback(), made._drop_gradients)
    for seed in range(WARMUP + 3):
        step([_views(example(seed=seed))])
    assert counter.frame_count == 1


def test_a_recording_that_does_not_compile_ends_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(model: object, **options: object) -> Callable[[object], Tensor]:
        def forward(_: object) -> Tensor:
            raise RuntimeError("cannot compile in a capture")

        return forward

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    made = learner(compile="default")
    made._cuda_graph = True
    with pytest.raises(RuntimeError, match="in a capture"):
        made._on_device_compiled([example()])


class FakeGenerator:
    """Of random numbers on a card that is not there."""

    def __init__(self) -> None:
        self.state = "before"

    def clone_state(self) -> str:
        return self.state

    def graphsafe_set_state(self, state: str) -> None:
        self.state = state


@pytest.mark.parametrize("ended", [False, True])
def test_a_failed_recording_leaves_the_process_as_it_was(ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, streams = FakeGenerator(), ["main"]
    in_a_cycle = Descent()
    in_a_cycle.itself, left = in_a_cycle, weakref.ref(in_a_cycle)  # type: ignore[attr-defined]
    del in_a_cycle

    @contextmanager
    def graph(*arguments: object, **options: object) -> Iterator[None]:
        assert left() is None  # nodes of autograd may be in one, which would spoil the recording
        streams.append("side")
        yield
        generator.state = "capturing"
        raise RuntimeError("operation failed due to a previous error during capture")  # as capture_end raises

    fakes = {
        "graph": graph,
        "CUDAGraph": object,
        "Stream": object,
        "graph_pool_handle": lambda: (0, 1),
        "current_stream": lambda: streams[-1],
        "set_stream": streams.append,
        "current_device": lambda: 0,
        "default_generators": (generator,),
        "synchronize": lambda: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    calls: list[tuple[object, ...]] = []

    def end(*pool: object) -> None:
        calls.append(("end", *pool))
        if ended:
            raise RuntimeError("no allocation to this pool is under way")

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *pool: calls.append(("release", *pool)), raising=False)
    with pytest.raises(RuntimeError, match="previous error during capture"):
        CudaRecorder()(lambda: torch.zeros(()))
    assert streams[-1] == "main"
    assert generator.state == "before"
    # A pool that torch has ended is torch's to release: twice would be once too often.
    assert calls == [("end", 0, (0, 1))] if ended else [("end", 0, (0, 1)), ("release", 0, (0, 1))]


def test_a_graph_without_a_cuda_device_is_said() -> None:
    with pytest.warns(Fallback, match=r"trainer\.cuda_graph: the device is cpu"):
        made = learner(cuda_graph=True)
    assert after(made)[0] == after(learner())[0]


@pytest.mark.parametrize(
    ("precision", "fault"),
    [("32-true", RuntimeError), ("16-mixed", RuntimeError), ("32-true", KeyError)],  # Triton's are no RuntimeErrors
)
def test_a_model_that_does_not_compile_is_trained_as_it_is(
    precision: str, fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(model: torch.nn.Module, **options: object) -> Callable[[Batch], Tensor]:
        def forward(one: Batch) -> Tensor:
            if torch.compiler.is_compiling():
                return torch.zeros(())
            raise fault("no C++ compiler found")

        return forward

    monkeypatch.setattr(torch, "compile", compiled)
    with pytest.warns(Fallback, match=r"trainer\.compile.*no C\+\+ compiler found"):
        losses, weights = after(learner(precision, compile="default", accumulate_grad_batches=2))
    monkeypatch.undo()
    expected_losses, expected = after(learner(precision, accumulate_grad_batches=2))
    assert losses == expected_losses
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_memory_that_runs_out_is_no_fault_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(model: torch.nn.Module, **options: object) -> Callable[[Batch], Tensor]:
        def forward(one: Batch) -> Tensor:
            raise RuntimeError("Triton Error [CUDA]: out of memory")

        return forward

    monkeypatch.setattr(torch, "compile", compiled)
    made = learner(compile="default")
    monkeypatch.setattr(made, "_forecast", compiled(made.model))
    with pytest.raises(RuntimeError, match="out of memory"):
        made._on_device_compiled([example()])


def test_a_fault_of_the_model_is_not_taken_for_one_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    made = learner(compile="default")
    monkeypatch.setattr(made.model, "forward", lambda one: (_ for _ in ()).throw(RuntimeError("the model's own")))
    with pytest.raises(RuntimeError, match="the model's own"):
        made.step([example()])


@pytest.mark.slow
@pytest.mark.parametrize("low", [None, torch.bfloat16])
def test_the_whole_model_is_one_graph(low: torch.dtype | None) -> None:
    """fullgraph refuses any break; aot_eager traces the backward pass as well."""
    model, b = forecaster(dropout=0.0, social=2), batch()
    results = []
    for forward in (model, torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")):
        with torch.autocast("cpu", dtype=low, enabled=low is not None):
            forecast = forward(b)
        gradients = torch.autograd.grad(forecast.square().mean(), list(model.parameters()))
        results.append([forecast.detach(), *gradients])
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if low is None else {"rtol": 0.05, "atol": 0.3}
    for compiled, eager in zip(*results[::-1], strict=True):
        torch.testing.assert_close(compiled, eager, **tolerance)


class Level(nn.Module):
    """The smallest model: the whole forecaster takes torch's compiler minutes on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)

    def forward(self, one: Batch) -> Tensor:
        change: Tensor = self.linear(one.history.transpose(1, 3)).tanh().transpose(1, 3)
        return one.history[:, -1:] + change


@pytest.mark.slow
def test_a_compiled_step_is_the_step() -> None:
    results = []
    for compile in ("off", "default"):
        torch.manual_seed(0)
        made = Learner(
            Level(), Precision("32-true", CPU), learning_rate=1e-2, weight_decay=0, total_steps=9, compile=compile
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error", Fallback)
            results.append(after(made))
    (losses, weights), (expected_losses, expected) = results[::-1]
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert all(torch.allclose(weights[name], expected[name], atol=1e-5) for name in expected)
