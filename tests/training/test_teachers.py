"""A model that learns from others: the loss by hand, that teachers do not change, and what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from socialx.scoring.metrics import masked_absolute_error
from socialx.scoring.protocol import Seen
from socialx.settings.layers import ConfigLayers
from socialx.tasks.build import build
from socialx.tasks.opened import open_forecasting
from socialx.tasks.training_data import add_teacher_forecasts, train_loader
from socialx.training.run_folder import open_run
from tests.commands import SMALL, refused, small_file, small_run, works
from tests.networks import example, forecaster, learner


@pytest.fixture(scope="module")
def other(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(data, tmp_path_factory.mktemp("other") / "run", "--seed", "3")


def doubled(seed: int) -> object:
    made = example(seed=seed)
    return type(made)(*(type(part)(*(t.double() if t.is_floating_point() else t for t in part)) for part in made))


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_the_loss_is_a_mean_of_two_errors(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.training.learner.TEACHER_WEIGHT", weight)
    teacher = forecaster(seed=5).double()
    group = [doubled(0), doubled(1)]
    forecasts = [teacher(made.batch).detach().half() for made in group]
    group = [
        made._replace(target=made.target._replace(teacher_forecast=mean))
        for made, mean in zip(group, forecasts, strict=True)
    ]
    student, plain = learner(forecaster().double(), learning_rate=1e-2), forecaster(seed=0).double()
    count = sum(int(made.target.valid.sum()) for made in group)
    total, error = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for made, mean in zip(group, forecasts, strict=True):
        forecast = plain(made.batch)
        own = masked_absolute_error(forecast, made.target.values, made.target.valid)
        error, total = error + own.detach() / count, total + (1 - weight) * own / count
        total = total + weight * masked_absolute_error(forecast, mean.double(), made.target.valid) / count
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
    total.backward()
    optimizer.step()
    torch.testing.assert_close(student.step(group), error)  # what is reported is the MAE
    for one, two in zip(student.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", ["on_device", "sharded", "workers"])
def test_each_window_has_the_mean_forecast_of_its_teachers(
    data: Path, trained: Path, other: Path, mode: str, tmp_path: Path
) -> None:
    teachers = [open_forecasting(path, ConfigLayers()).experiment for path in (trained, other)]
    loader = {"mode": mode, "num_workers": 1, "batch_size": 7}
    given = {"data": data, "loader": loader, "teacher": [str(trained), str(other)], "max_epochs": 1}
    layers = ConfigLayers.from_call(None, given)
    experiment = add_teacher_forecasts(build(layers.load().settings))
    shuffled = train_loader(experiment)
    seen = 0
    for made in shuffled.epoch(0):
        real = made.target.valid.any(dim=(1, 2, 3))
        with torch.no_grad():
            mean = sum(teacher.model.eval()(made.batch) for teacher in teachers) / 2
        torch.testing.assert_close(made.target.teacher_forecast[real].float(), mean[real], rtol=1e-3, atol=1e-3)
        seen += int(real.sum())
    assert seen == experiment.protocol.windows["train"]
    (first, *_) = experiment.data.loader("validation", 7).epoch(0)
    assert first.target.teacher_forecast.shape == (*first.target.values.shape[:-1], 0)


def test_a_run_learns_from_runs_and_goes_on(data: Path, trained: Path, tmp_path: Path) -> None:
    taught = small_run(data, tmp_path / "taught", "--seed", "1", "--teacher", trained)
    alone = small_run(data, tmp_path / "alone", "--seed", "1")
    assert (taught / "best.safetensors").read_bytes() != (alone / "best.safetensors").read_bytes()
    works("train", "--resume", taught, "--max-epochs", "2")
    works("evaluate", taught)


def test_a_teacher_of_other_windows_or_sensors_is_refused(data: Path, trained: Path, tmp_path: Path) -> None:
    options = ["--run-dir", tmp_path / "a", *SMALL, "--teacher"]
    error = refused("train", "--data", data, "--horizon", "6", *options, trained, code=2)
    assert error.code == "train.teacher-windows"
    assert "horizon 12, not 6" in error
    (tmp_path / "b").mkdir()
    other = small_file(tmp_path / "b", sensors=6)
    assert (error := refused("train", "--data", other, *options, trained)).code == "fit.other-data"
    assert re.match(rf"error: {other}: .* {trained} \(", error)
    assert refused("train", "--data", data, *options, tmp_path).code == "run.not"
    assert not (tmp_path / "a").exists()


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 900 rows, whose training and validation end after row 720."""
    return small_run(small_file(tmp_path_factory.mktemp("longer"), 900), "run")


@pytest.mark.parametrize("way", ["teacher", "start", "start of a start", "teacher of a start"])
def test_rows_that_reach_a_run_through_another_are_told(way: str, longer: Path, tmp_path: Path) -> None:
    """Its test part begins in row 320, which the other run was trained on."""
    data, first = small_file(tmp_path, 400), ("--teacher" if way.startswith("teacher") else "--init-from", longer)
    words = ("train", "--data", data, "--max-epochs", "1", *SMALL)
    done = works(*words, *first, "--run-dir", tmp_path / "run")
    if " of a " in way:
        done = works(*words, "--init-from", tmp_path / "run", "--run-dir", tmp_path / "next")
    run = tmp_path / ("next" if " of a " in way else "run")
    assert "train.seen" in done.codes
    assert f"{longer}" in done.stderr
    assert " until 2012-05-0" in done.stderr
    assert "split.seen" in (done := works("evaluate", run)).codes
    assert re.search(rf" until 2012-05-0.*{longer}", done.stderr)
    assert " windows until 2012-05-0" in done.stdout


def test_rows_seen_in_another_zone_are_compared_as_instants(trained: Path) -> None:
    """Noon of Los Angeles is 19:00 UTC; a file of an unknown zone is taken for one of the same zone."""
    protocol = replace(open_run(trained).protocol, timezone="UTC")
    span = ("2012-05-03 00:00:00", "2012-05-03 12:00:00", "America/Los_Angeles")
    seen = Seen("a run", protocol.network, protocol.positions, *span)
    hours = [int(np.datetime64(f"2012-05-03T{hour}", "s").astype(int)) for hour in ("13:00", "20:00", "23:00")]
    assert seen.within(protocol, *hours[::2]).last_time == "2012-05-03 19:00:00"
    assert seen.within(protocol, *hours[1:]) is None
    assert seen.within(replace(protocol, timezone=None), *hours[:2]) is None


def test_rows_of_the_same_training_are_no_test_rows(data: Path, trained: Path, tmp_path: Path) -> None:
    words = ("train", "--data", data, "--max-epochs", "1", *SMALL, "--teacher", trained)
    assert "train.seen" not in works(*words, "--run-dir", tmp_path / "run").codes
    done = works("evaluate", tmp_path / "run")
    assert "seen" not in done.stdout + done.stderr


def test_a_run_of_before_does_not_know_what_its_teachers_have_seen(longer: Path, tmp_path: Path) -> None:
    run = small_run(small_file(tmp_path, 400), tmp_path / "run", "--teacher", longer)
    path = run / "protocol.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "seen"}))
    assert f"{longer} may have seen " in works("evaluate", run).stdout


def test_teachers_know_one_network(data: Path, trained: Path) -> None:
    error = refused("train", "--data", data, "--extra-data", "b.h5", "--zero-shot", "--teacher", trained, code=2)
    assert error.code == "settings.conflict"
    assert re.search("--teacher .*\n.* --extra-data\n", error)
