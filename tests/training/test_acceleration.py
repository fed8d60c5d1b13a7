"""Compiled and recorded steps are the same steps, and say so where they cannot be made."""

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch, TrainingBatch
from socialx.core.errors import FallbackWarning
from socialx.core.precision import Precision
from socialx.data.climatology import ClimatologyTable
from socialx.data.series import Series, WindowLayout
from socialx.data.source import Arrays
from socialx.dataset.loaders import DeviceLoader, Loader, Selection, ShardLoader, WindowOrder, WorkerLoader
from socialx.settings.schema import LoaderSettings
from socialx.training.cuda_graph import WARMUP, CapturedStep, CudaRecorder
from socialx.training.learner import Learner
from socialx.training.loop import epoch_examples, run_steps
from socialx.training.process_group import SINGLE, ProcessGroup
from tests.meters import Launches
from tests.networks import CPU, batch, example, forecaster, network, speeds, trainer


def learner(precision: str = "32-true", **options: object) -> Learner:
    group = options.pop("group", SINGLE)
    chosen = trainer(**{"learning_rate": 1e-2, "weight_decay": 1e-3, "gradient_clip_val": 1.0, **options})
    return Learner(forecaster(dropout=0.1, social=2), network(), Precision(precision, CPU), chosen, group)


def after(made: Learner, steps: int = 4) -> tuple[list[float], dict[str, Tensor]]:
    torch.manual_seed(1)
    losses = [made.step([example(seed=step), example(seed=100 + step)]).item() for step in range(steps)]
    return losses, made.model.state_dict()


class Playback:
    """Records as CUDA does: nothing is computed while recording, and a replay reads the buffers of the recording.

    fault: what recordings raise after the first ``good`` ones.  dtype: of results.
    """

    def __init__(self, fault: Exception | None = None, good: int = 0, dtype: torch.dtype = torch.float32) -> None:
        self.recordings, self.fault, self.good, self.dtype = 0, fault, good, dtype
        self.playing = False  # whether a device would compute on its own
        self.failed = False

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        if self.fault is not None and self.recordings == self.good:
            raise self.fault
        self.recordings += 1
        result = torch.full((), torch.nan, dtype=self.dtype)

        def replay() -> None:
            self.playing = True
            value = work()
            result.resize_(value.shape).copy_(value)
            self.playing = False

        return replay, result

    def run_on_side_stream(self, work: Callable[[], Tensor]) -> Tensor:
        return work()


class Descent:
    """A step that changes a weight: the loss of a group, and whether ``recover`` was called."""

    def __init__(self) -> None:
        self.weight, self.recovered = torch.ones(()), 0

    def __call__(self, examples: Sequence[TrainingBatch]) -> Tensor:
        loss = sum((self.weight * _first_rows(each) for each in examples), torch.zeros(()))
        self.weight.sub_(1e-4 * loss)
        return loss

    def recover(self) -> None:
        self.recovered += 1


def _first_rows(made: TrainingBatch) -> Tensor:
    """Of what is known and of what comes after: a replay must be handed both."""
    return made.batch.inputs[0, 0].sum() + made.target.values[0, 0].sum()


def groups(count: int) -> list[list[TrainingBatch]]:
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


@pytest.mark.parametrize("good", [0, 1])
def test_what_cannot_be_recorded_is_said_and_done_as_it_is(good: int) -> None:
    plain, descent = Descent(), Descent()
    refused = RuntimeError("operation not permitted when stream is capturing\nCUDA error: more lines")
    step = CapturedStep(descent, Playback(refused, good), descent.recover)
    with pytest.warns(FallbackWarning, match=r"\(operation .* capturing\)") as warned:
        losses = [(plain(group), step(group)) for group in groups(18)]
    assert all(torch.equal(a, b) for a, b in losses)
    assert torch.equal(plain.weight, descent.weight)
    assert (descent.recovered, [each.message.message.code for each in warned]) == (1, ["train.graph-off"])


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
def test_memory_that_runs_out_is_no_failed_recording(kind: type[RuntimeError]) -> None:
    descent = Descent()
    step = CapturedStep(descent, Playback(kind("CUDA error: out of memory")), descent.recover)
    for _ in range(WARMUP):
        step([example()])
    with pytest.raises(RuntimeError, match="out of memory"):
        step([example()])


ROWS, WINDOWS = 240, 70  # more rows than a page has


def series_of(rows: slice = slice(0, ROWS), several: bool = False) -> Series:
    """Made-up speeds; several: three features, two targets, two climatologies, and what a teacher forecast."""
    parts = [speeds(ROWS, 5, seed=seed) for seed in range(3 if several else 1)]
    values, valid = (np.stack([part[i] for part in parts], axis=-1) for i in range(2))
    source = Arrays(values, valid, parts[0][2])
    if not several:
        return Series(source, WindowLayout(12, 12), CPU, rows=slice(rows.start, min(rows.stop, ROWS)))
    rng, shape = np.random.default_rng(0), (2, ROWS + 12, 5, 2)
    climatology = ClimatologyTable(rng.uniform(40, 60, shape).astype(np.float32), rng.integers(0, 255, shape, np.uint8))
    made = Series(source, WindowLayout(12, 12, (0, 2), (2, 1)), CPU).with_climatology(climatology)
    return made.with_teacher(rng.uniform(40, 60, (ROWS, 12 * 5 * 2)).astype(np.float16))


def on_device(several: bool = False, batch_size: int = 8) -> DeviceLoader:
    """Windows in batches, the last one of an epoch padded where 70 is no multiple of their size."""
    return DeviceLoader(series_of(several=several), WindowOrder(np.arange(WINDOWS), batch_size, shuffle=True))


def loader_of(mode: str) -> Loader:
    """The same in the other ways."""
    order = on_device().order
    if mode == "sharded":
        return ShardLoader(series_of, 24, CPU, replace(order, shard=30))
    return (
        WorkerLoader(series_of, 24, CPU, LoaderSettings(num_workers=0, shard_gb=2**-11), order)
        if mode == "workers"
        else on_device()
    )


def _digest(examples: Sequence[TrainingBatch | Selection]) -> Tensor:
    """A number for all that examples hold, of one place in one step another than in others."""
    total = torch.zeros((), dtype=torch.float64)
    for each in examples:
        for tensor in (part for of in each.gather() for part in of):
            numbers = tensor.double().nan_to_num(-1.0).flatten()
            total = 0.9 * total + (numbers * torch.arange(1, len(numbers) + 1)).sum()
    return total


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_recording_gathers_the_windows_of_each_step(several: bool, batches: int) -> None:
    """Every tensor of every batch, the padded ones too; and those of another series, whose memory is another."""
    playback, loaders = Playback(dtype=torch.float64), [on_device(several), on_device(several)]
    loaders[1].series.readings.add_(1)
    step = CapturedStep(_digest, playback)
    for epoch in range(4):
        for each in loaders:
            selections, plain = list(each.selections(epoch)), list(each.epoch(epoch))
            for first in range(1, len(plain), batches):  # to the last one, which is padded
                chosen = slice(first, first + batches)
                assert step(selections[chosen]) == _digest(plain[chosen])
    assert playback.recordings == 2


def test_windows_that_cannot_be_gathered_in_a_recording_are_gathered_as_they_are() -> None:
    data, step = on_device(), CapturedStep(_digest, Playback(RuntimeError("no room")))
    with pytest.warns(FallbackWarning, match="no room"):
        found = [step([selection]) for selection in data.selections(0)]
    assert found == [_digest([served]) for served in data.epoch(0)]


def test_two_steps_of_other_windows_have_other_digests() -> None:
    """What the test above compares sees each tensor, and each place in one."""
    one = next(on_device(several=True).epoch(0))
    for number, part in enumerate(one):
        for name in part._fields:
            changed = getattr(part, name).clone()
            changed.view(-1)[-1] = 1 - changed.view(-1)[-1].to(torch.int64).nan_to_num()
            parts = [part._replace(**{name: changed}) if place == number else of for place, of in enumerate(one)]
            assert _digest([TrainingBatch(*parts)]) != _digest([one]), name


def recorded(monkeypatch: pytest.MonkeyPatch, **options: object) -> tuple[Learner, Playback]:
    """A learner whose steps are recorded as on CUDA.  Its rate is a float32: the recorded one is."""
    playback = Playback()
    monkeypatch.setattr("socialx.training.learner.CudaRecorder", lambda: playback)
    made = learner(learning_rate=1.0, lr_warmup_steps=1024, **options)
    made.records = True
    made._choose_step()
    return made, playback


def steps_of(made: Learner, batches: Iterator[TrainingBatch | Selection]) -> list[Tensor]:
    """Losses of the steps of some batches, and the weights after them."""
    losses: list[Tensor] = []
    run_steps(made, batches, lambda loss, _: losses.append(loss) is not None)
    return [*losses, *(parameter.detach().clone() for parameter in made.model.parameters())]


@pytest.mark.parametrize("mode", ["on_device", "sharded", "workers"])
@pytest.mark.parametrize(("precision", "again"), [("32-true", False), ("16-mixed", False), ("bf16-mixed", True)])
def test_a_recorded_epoch_is_the_epoch(mode: str, precision: str, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, dropout included, wherever batches come from; all modes are recorded.  again: with checkpointing."""
    options = {"precision": precision, "accumulate_grad_batches": 2}
    plain = learner(learning_rate=1.0, lr_warmup_steps=1024, **options)
    (made, playback), loader, own = recorded(monkeypatch, **options), loader_of(mode), loader_of(mode)
    plain.model.encoder.activation_checkpointing = made.model.encoder.activation_checkpointing = again
    for epoch in range(3):
        torch.manual_seed(epoch)
        expected = steps_of(plain, loader.epoch(epoch))
        torch.manual_seed(epoch)
        found = steps_of(made, epoch_examples(made, own, epoch))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert playback.recordings == 1  # of two batches; the single one at the end of an epoch came three times


@pytest.mark.parametrize("batches", [1, 2])
def test_a_replayed_step_of_a_resident_series_copies_each_batch(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, playback = recorded(monkeypatch, accumulate_grad_batches=batches)
    data = on_device(batch_size=5)  # 14 batches
    steps_of(made, epoch_examples(made, data, 0))
    taken, batches_of = made.steps, epoch_examples(made, data, 1)
    first = next(batches_of)  # an epoch begins with its order, which is sent
    with Launches(lambda: playback.playing) as seen:
        run_steps(made, itertools.chain([first], batches_of), lambda loss, _: False)
    steps = made.steps - taken
    assert (playback.recordings, steps) == (1, 14 // batches)
    assert seen.counts == {"copy_": steps * batches, "fill_": steps, "clone": steps}  # rows, rate, loss


def test_several_processes_replay_two_parts_around_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    sums: list[bool] = []
    monkeypatch.setattr(ProcessGroup, "all_reduce", lambda _, tensor: sums.append(playback.playing) or tensor.mul_(2))
    made, playback = recorded(monkeypatch, group=ProcessGroup(0, 2))
    plain = learner(learning_rate=1.0, lr_warmup_steps=1024, group=ProcessGroup(0, 2))
    ends = []
    for each in (plain, made):
        torch.manual_seed(0)
        ends.append(steps_of(each, on_device().epoch(0)))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert (playback.recordings, sums) == (2, [False] * 2 * made.steps)


def _views(one: TrainingBatch) -> TrainingBatch:
    """The same numbers in tensors that are not contiguous, as loaders cut them."""
    return TrainingBatch(Batch(*(torch.stack([tensor, tensor], -1)[..., 0] for tensor in one.batch)), one.target)


def test_every_step_of_a_shape_reads_the_same_memory() -> None:
    """A compiled model is compiled again for other strides, and nothing may compile while CUDA records."""
    seen: list[tuple[object, ...]] = []

    def work(examples: Sequence[TrainingBatch]) -> Tensor:
        seen.append(tuple((t.data_ptr(), t.stride()) for one in examples for t in (*one.batch, *one.target)))
        return _first_rows(examples[0])

    playback = Playback()
    step = CapturedStep(work, playback)
    for seed in range(WARMUP + 2):
        one = example(seed=seed)
        assert torch.equal(step([_views(one)]), _first_rows(one))
    assert (playback.recordings, len(seen), len(set(seen))) == (1, WARMUP + 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("gathers", [False, True])
def test_a_recorded_step_compiles_once(gathers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.testing import CompileCounter

    counter, compile_ = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda run, **_: compile_(run, backend=counter, dynamic=False))
    made = learner(compile="default")
    step = CapturedStep(made._device_step, Playback(), made._drop_gradients)
    batches = [_views(example(seed=seed)) for seed in range(WARMUP + 3)]
    for each in on_device().selections(0) if gathers else batches:
        step([each])
    assert counter.frame_count == 1


def test_a_recording_that_does_not_compile_ends_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Mock(side_effect=RuntimeError("cannot compile in a capture"))
    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    made = learner(compile="default")
    made.records = True
    with pytest.raises(RuntimeError, match="in a capture"):
        made._device_step([example()])


class FakeGenerator:
    """Of random numbers on a card that is not there."""

    def __init__(self) -> None:
        self.state = "before"

    def clone_state(self) -> str:
        return self.state

    def graphsafe_set_state(self, state: str) -> None:
        self.state = state


def test_a_failed_recording_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
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

    for name, fake in {
        "graph": graph,
        "CUDAGraph": object,
        "Stream": object,
        "graph_pool_handle": lambda: (0, 1),
        "current_stream": lambda: streams[-1],
        "set_stream": streams.append,
        "current_device": lambda: 0,
        "default_generators": (generator,),
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    with pytest.raises(RuntimeError, match="during capture"):
        CudaRecorder()(lambda: torch.zeros(()))
    assert (streams[-1], generator.state) == ("main", "before")


def test_a_failed_recording_is_told_once_and_spoils_no_other() -> None:
    """Steps and forecasts share a recorder: what one has recorded is replayed, and neither is recorded again."""
    playback = Playback(RuntimeError("no capture"), good=1)
    forecasts, steps = (CapturedStep(lambda given: _first_rows(given[0]), playback) for _ in range(2))
    small, large = (example(batch_size=size) for size in (2, 3))
    for one in [small] * (WARMUP + 2):
        forecasts([one])
    with pytest.warns(FallbackWarning, match=r"\(no capture\)") as told:
        found = [step([one]) for _ in range(WARMUP + 2) for step in (steps, forecasts) for one in (small, large)]
    assert ([each.message.message.code for each in told], playback.recordings) == (["train.graph-off"], 1)
    assert [torch.equal(found[n], _first_rows((small, large)[n % 2])) for n in range(len(found))] == [True] * len(found)


def test_a_graph_without_a_cuda_device_is_said() -> None:
    with pytest.warns(FallbackWarning, match="cpu") as told:
        made = learner(cuda_graph="on")
    assert [each.message.message.code for each in told] == ["train.graph-not-cuda"]
    assert after(made)[0] == after(learner())[0]


@pytest.mark.parametrize(
    ("precision", "fault"),
    [("32-true", RuntimeError), ("16-mixed", RuntimeError), ("32-true", KeyError)],  # not all are RuntimeErrors
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
    with pytest.warns(FallbackWarning, match=r"C\+\+") as told:
        losses, weights = after(learner(precision, compile="default", accumulate_grad_batches=2))
    monkeypatch.undo()
    assert "train.compile-off" in [each.message.message.code for each in told]
    expected_losses, expected = after(learner(precision, accumulate_grad_batches=2))
    assert losses == expected_losses
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_memory_that_runs_out_is_no_fault_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Mock(side_effect=RuntimeError("Triton Error [CUDA]: out of memory"))
    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    made = learner(compile="default")
    monkeypatch.setattr(made, "_forecast", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        made._device_step([example()])


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
        change: Tensor = self.linear(one.inputs.transpose(1, 3)).tanh().transpose(1, 3)
        return one.inputs[:, -1:] + change


@pytest.mark.slow
def test_a_compiled_step_is_the_step() -> None:
    results = []
    for compile in ("off", "default"):
        torch.manual_seed(0)
        made = Learner(Level(), network(), Precision("32-true", CPU), trainer(learning_rate=1e-2, compile=compile))
        with warnings.catch_warnings():
            warnings.simplefilter("error", FallbackWarning)
            results.append(after(made))
    (losses, weights), (expected_losses, expected) = results[::-1]
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert all(torch.allclose(weights[name], expected[name], atol=1e-5) for name in expected)
