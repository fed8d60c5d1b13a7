"""A model that learns from others: the loss by hand, that teachers do not change, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from socialx.precision import Precision
from socialx.scoring.metrics import masked_absolute_error
from socialx.training.learner import Learner
from tests.commands import SMALL, refused, small_file, small_run, works
from tests.networks import CPU, example, forecaster


def learner(seed: int = 0, **options: object) -> Learner:
    settings = {"learning_rate": 1e-2, "weight_decay": 0.0, "total_steps": 10, "gradient_clip_val": 0.0}
    return Learner(forecaster(seed=seed).double(), Precision("32-true", CPU), **settings, **options)


def doubled(seed: int) -> object:
    made = example(seed=seed)
    return type(made)(*(type(part)(*(t.double() if t.is_floating_point() else t for t in part)) for part in made))


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_the_loss_is_a_mean_of_two_errors(weight: float) -> None:
    teachers = [forecaster(seed=seed).double() for seed in (5, 6)]
    group = [doubled(0), doubled(1)]
    student = learner(teachers=teachers, teacher_weight=weight)
    plain = forecaster(seed=0).double()
    count = sum(int(made.target.valid.sum()) for made in group)
    total = torch.zeros((), dtype=torch.float64)
    error = torch.zeros((), dtype=torch.float64)
    for made in group:
        forecast = plain(made.batch)
        taught = sum(teacher(made.batch) for teacher in teachers).detach() / 2
        own = masked_absolute_error(forecast, made.target.values, made.target.valid)
        error = error + own.detach() / count
        total = total + (1 - weight) * own / count
        total = total + weight * masked_absolute_error(forecast, taught, made.target.valid) / count
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
    total.backward()
    optimizer.step()
    torch.testing.assert_close(student.step(group), error)  # what is reported is the MAE
    for one, two in zip(student.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


def test_teachers_are_neither_trained_nor_kept() -> None:
    teacher = forecaster(seed=5).double()
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    student = learner(teachers=[teacher])
    alone = learner()
    student.step([doubled(0)])
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())
    assert student.state()["model"].keys() == alone.state()["model"].keys()
    assert not teacher.training


def test_a_run_learns_from_runs_and_goes_on(data: Path, trained: Path, tmp_path: Path) -> None:
    taught = small_run(data, tmp_path / "taught", "--seed", "1", "--teacher", trained)
    alone = small_run(data, tmp_path / "alone", "--seed", "1")
    assert (taught / "best.safetensors").read_bytes() != (alone / "best.safetensors").read_bytes()
    works("train", "--resume", taught, "--max-epochs", "2")
    works("evaluate", taught)


def test_a_teacher_of_other_windows_or_sensors_is_refused(data: Path, trained: Path, tmp_path: Path) -> None:
    options = ["--run-dir", tmp_path / "a", *SMALL, "--teacher"]
    error = refused("train", "--data", data, "--horizon", "6", *options, trained, code=2)
    assert "trained on other windows (horizon 12, not 6)" in error
    (tmp_path / "b").mkdir()
    assert "not what" in refused("train", "--data", small_file(tmp_path / "b", sensors=6), *options, trained)
    assert "not a run folder" in refused("train", "--data", data, *options, tmp_path)
    assert not (tmp_path / "a").exists()
