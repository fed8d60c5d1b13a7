"""The loop: it learns, groups count as one batch, and a resumed run ends where an uninterrupted one does."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch, Target, TrainingBatch
from socialx.core.errors import SocialxError
from socialx.core.precision import Precision
from socialx.core.progress import Event, Note, Work, subscribe
from socialx.data.series import OLD
from socialx.dataset.loaders import DeviceLoader
from socialx.training.learner import Learner
from socialx.training.loop import TrainState, catch_signals, fit, load_progress, run_steps
from socialx.training.run_folder import RunFolder, lock_new_run
from tests.commands import refuses, small_file, works
from tests.data_files import refusal
from tests.networks import CPU, example, forecaster, loader, network, scores_of, trainer

FP32 = Precision("32-true", CPU)


def learner(precision: Precision = FP32, dropout: float = 0.0, **options: object) -> Learner:
    choices = {"learning_rate": 3e-3, "weight_decay": 1e-3, "gradient_clip_val": 5.0, "patience": 9, **options}
    return Learner(forecaster(dropout=dropout, patch=6), network(), precision, trainer(**choices))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def windows(made: TrainingBatch, chosen: slice) -> TrainingBatch:
    """Some of the windows of an example."""
    return TrainingBatch(Batch(*(t[chosen] for t in made.batch)), Target(*(t[chosen] for t in made.target)))


def gradients(made: Learner, examples: list[TrainingBatch]) -> tuple[Tensor, Tensor]:
    """Loss and all gradients of one step on a group, before the optimizer and without clipping."""
    made.trainer = made.trainer.model_copy(update={"gradient_clip_val": 0.0})
    made.optimizer.zero_grad = lambda set_to_none=True: None
    return made.step(examples), torch.cat([p.grad.flatten() for p in made.model.parameters() if p.grad is not None])


def fresh_run(path: Path, overwrite: bool = False) -> RunFolder:
    with lock_new_run(path, overwrite) as run:
        return run


def run_fit(
    made: Learner, path: Path, epochs: int = 2, progress: TrainState | None = None, train: DeviceLoader | None = None
) -> TrainState:
    made.trainer = made.trainer.model_copy(update={"max_epochs": epochs})
    run = RunFolder(path) if progress else fresh_run(path)
    train = train or loader(batch_size=64, shuffle=True)
    return fit(made, train, loader(split="validation", batch_size=64), run, progress)


@pytest.mark.parametrize(
    ("name", "low"), [("16-mixed", torch.float16), ("bf16-mixed", torch.bfloat16), ("32-true", torch.float32)]
)
def test_it_learns_in_the_precision_asked_for(name: str, low: torch.dtype) -> None:
    made, e, seen = learner(Precision(name, CPU), lr_warmup_steps=5), example(), set()
    made.model.head[0].register_forward_hook(lambda _m, _i, out: seen.add(out.dtype))
    losses = [made.step([e]).item() for _ in range(40)]
    assert sum(losses[-5:]) < 0.75 * sum(losses[:5])
    assert (made.grad_scaler.is_enabled(), seen) == (name == "16-mixed", {low})
    assert {p.dtype for p in made.model.parameters()} == {torch.float32}


def test_a_group_of_batches_is_one_large_batch() -> None:
    e = example(batch_size=6)
    group = [windows(e, slice(1)), windows(e, slice(1, 4)), windows(e, slice(4, None))]
    whole, parts = gradients(learner(), [e]), gradients(learner(), group)
    torch.testing.assert_close(parts[0], whole[0])
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-4, atol=1e-5)


def test_the_tail_of_an_epoch_is_stepped_too() -> None:
    made = learner(accumulate_grad_batches=4)
    data = loader(batch_size=64)  # 404 windows, 7 batches
    run_steps(made, data.epoch(0), lambda loss, batches: False)
    assert (len(data), made.steps) == (7, 2)


def test_padding_has_no_gradient() -> None:
    e, real = example(batch_size=4), torch.tensor([True, True, True, False])
    padded = e._replace(target=e.target._replace(valid=e.target.valid & real[:, None, None, None]))
    with_padding, without = gradients(learner(), [padded]), gradients(learner(), [windows(e, slice(3))])
    torch.testing.assert_close(with_padding, without, rtol=1e-4, atol=1e-5)


def test_the_gradient_norm_is_clipped_after_unscaling() -> None:
    made, norms = learner(Precision("16-mixed", CPU), gradient_clip_val=1e-3), []
    original = made.optimizer.step

    def step(*args: object, **kwargs: object) -> object:
        norms.append(nn.utils.get_total_norm([p.grad for p in made.model.parameters() if p.grad is not None]).item())
        return original(*args, **kwargs)

    made.optimizer.step = step
    for _ in range(20):  # the first scale of 2^16 may overflow fp16: such steps are skipped and the scale is halved
        made.step([example()])
    assert norms[-1] == pytest.approx(1e-3, rel=1e-2)


def test_the_schedule_warms_up_and_ends_at_zero() -> None:
    made = learner(learning_rate=1.0, lr_warmup_steps=10)
    assert made.rate(9_999) == 1.0  # until the steps are planned
    made.total_steps = 110
    rates = [made.rate(step) for step in range(111)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert (rates[60], rates[110]) == (pytest.approx(0.5), pytest.approx(0.0, abs=1e-12))
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_run_folder_holds_best_last_and_a_line_per_epoch(tmp_path: Path) -> None:
    made = learner()
    progress, run = run_fit(made, tmp_path / "run", epochs=3), RunFolder(tmp_path / "run")
    assert (progress.epoch, len((run.path / "metrics.jsonl").read_text().splitlines())) == (3, 3)
    best = run.read_weights()
    assert best.epoch == progress.best_epoch + 1
    model = forecaster(seed=5, patch=6)
    model.load_state_dict(best.state)
    score = scores_of(model, loader(split="validation", batch_size=64)).overall.mae
    assert score == pytest.approx(progress.best_mae, rel=1e-5)
    assert (run.path / "best.safetensors").is_file()
    assert (run.path / "last.pt").is_file()
    assert [row.epoch for row in run.rows()] == [1, 2, 3]
    assert [row.learning_rate for row in run.rows()] == [made.rate(row.steps - 1) for row in run.rows()]
    assert not list(run.path.glob(".*"))


def test_without_a_folder_the_model_ends_with_its_best_weights() -> None:
    made = learner(learning_rate=0.1, max_epochs=50, patience=1)
    validation = loader(split="validation", batch_size=64)
    progress = fit(made, loader(batch_size=64), validation)
    assert progress.best_epoch == progress.epoch - 2  # the last epoch was worse
    assert scores_of(made.model, validation).overall.mae == pytest.approx(progress.best_mae, rel=1e-6)


class InterruptedLoader(DeviceLoader):
    """Sends Ctrl-C to this process while batch ``at`` is fetched, once."""

    at = -1

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        for place, made in enumerate(super().epoch(number, first_batch), first_batch):
            if place == self.at and number == 1:
                self.at = -1
                os.kill(os.getpid(), signal.SIGINT)
            yield made


@pytest.mark.parametrize("precision", ["32-true", pytest.param("16-mixed", marks=pytest.mark.slow)])
@pytest.mark.parametrize("at", [0, 3, 6])
def test_interrupted_and_resumed_ends_at_the_same_weights(at: int, precision: str, tmp_path: Path) -> None:
    def fresh() -> Learner:
        made = learner(Precision(precision, CPU), dropout=0.2)
        torch.manual_seed(4)
        return made

    straight = fresh()
    run_fit(straight, tmp_path / "straight", epochs=3)

    interrupted = fresh()
    train = loader(batch_size=64, shuffle=True)
    train.__class__, train.at = InterruptedLoader, at
    progress = run_fit(interrupted, tmp_path / "run", epochs=3, train=train)
    assert progress.interrupted
    assert (progress.epoch, progress.batch) == (1, at + 1)

    resumed = fresh()
    torch.manual_seed(99)
    back = load_progress(resumed, RunFolder(tmp_path / "run"))
    assert run_fit(resumed, tmp_path / "run", epochs=3, progress=back).epoch == 3
    assert torch.equal(weights(resumed.model), weights(straight.model))


def test_a_second_ctrl_c_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with catch_signals() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_answers_before_the_step_is_over() -> None:
    said, heard = [], threading.Event()

    def listener(event: Event) -> None:
        said.append(event)
        heard.set()

    with subscribe(listener), catch_signals():
        os.kill(os.getpid(), signal.SIGINT)
        assert heard.wait(10)
        assert isinstance(said[0], Note)
        assert said[0].message.code == "train.stopping"


def test_the_loss_is_shown_after_the_first_steps(tmp_path: Path) -> None:
    notes: list[str] = []

    def listener(event: Event) -> None:
        if isinstance(event, Work) and event.note and event.note not in notes[-1:]:
            notes.append(event.note)

    with subscribe(listener):
        run_fit(learner(), tmp_path / "run", epochs=1)
    assert len([each for each in notes if each.startswith("epoch 1/1  loss")]) >= 2


def test_a_loss_that_is_not_finite_ends_the_run_with_advice(tmp_path: Path) -> None:
    made = learner()
    with torch.no_grad():
        made.model.scaler.target_std.fill_(float("nan"))
    assert refusal(lambda: run_fit(made, tmp_path / "run"), "--learning-rate", task="train").code == "train.not-finite"


def read_state(run: RunFolder) -> dict[str, Any]:
    with run.open_last(CPU) as content:
        return content


def test_a_checkpoint_runs_no_code_and_names_its_fault(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "owned"),))

    run, last = RunFolder(tmp_path), tmp_path / "last.pt"
    torch.save({"model": Evil()}, last)
    evil = last.read_bytes()
    for content in (evil, evil[:100], b"hello"):
        last.write_bytes(content)
        with pytest.raises(SocialxError, match=r"last\.pt: the checkpoint is unreadable") as caught:
            read_state(run)
        assert str(caught.value).count("\n") <= 1
    assert not (tmp_path / "owned").exists()


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_last({"a": torch.ones(2)})
    with pytest.raises(AttributeError):
        run.write_last({"a": lambda: None})
    assert (read_state(run)["a"].tolist(), [p.name for p in tmp_path.iterdir()]) == ([1, 1], ["last.pt"])


def test_a_validation_part_without_readings_is_an_error(tmp_path: Path) -> None:
    validation = loader(split="validation", batch_size=64)
    validation.series.ages[:] = OLD
    run = fresh_run(tmp_path / "r")
    with refuses("train.no-target") as caught:
        fit(learner(), loader(batch_size=64), validation, run)
    assert "validation: " in str(caught.value)


def test_a_complete_run_has_nothing_left() -> None:
    assert TrainState(epoch=3, best_epoch=2).is_complete(trainer(max_epochs=3, patience=9))
    assert TrainState(epoch=3, best_epoch=0).is_complete(trainer(max_epochs=9, patience=2))
    assert not TrainState(epoch=3, best_epoch=1).is_complete(trainer(max_epochs=9, patience=2))
    assert not TrainState().is_complete(trainer(max_epochs=1, patience=1))


def test_an_unwritable_run_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refusal(lambda: run_fit(learner(), tmp_path / "file" / "run", epochs=1)).code == "run.folder-unwritable"


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run_fit(learner(), tmp_path / "run", epochs=1)
    assert refusal(lambda: fresh_run(tmp_path / "run"), "--overwrite", task="train").code == "run.exists"
    assert not (fresh_run(tmp_path / "run", overwrite=True).path / "best.safetensors").exists()


@pytest.mark.parametrize("more", [["--max-epochs", "2"], ["--set", "trainer.max_epochs=2"]], ids=["flag", "set"])
def test_a_run_that_goes_on_longer_says_where_its_learning_rate_ends(more: list[str], tmp_path: Path) -> None:
    data, run = small_file(tmp_path, 150), tmp_path / "run"
    options = ["--model", "linear", "--max-epochs", "1", "--batch-size", "32"]
    assert "train.rate" not in works("train", "--data", data, "--run-dir", run, *options).codes
    result = works("train", "--resume", run, *more)
    assert result.codes.count("train.rate") == 1
    assert "ends in epoch 2" in result.stderr


def test_moments_that_share_memory_get_places_of_their_own() -> None:
    """The fused optimizer writes to them without looking at their strides: it crashed."""
    made, e = learner(), example()
    made.step([e])
    state = made.state()
    for moments in state["optimizer"]["state"].values():
        moments["exp_avg"] = torch.zeros(()).expand(moments["exp_avg"].shape)
    resumed = learner()
    resumed.load_state(state)
    resumed.step([e])
    for parameter, moments in resumed.optimizer.state.items():
        assert moments["exp_avg"].stride() == parameter.stride()
