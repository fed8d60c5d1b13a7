"""What a long training says and keeps: epochs for other programs, memory that grows, steps left out, older states."""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY, MagicMock

import pytest
import torch

from socialx.core.environment import MIB
from socialx.core.precision import Precision
from socialx.core.progress import Event, Note, subscribe
from socialx.training import gpu_usage as device
from socialx.training import loop
from socialx.training.gpu_usage import DeviceSamples, MemoryWatch, sample_device
from tests.commands import SMALL, refused, small_file, socialx, works
from tests.fake_nvml import fake_nvml
from tests.networks import CPU, example
from tests.training.test_training import learner


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"), 200)


def train(data: Path, run: Path, epochs: int, *more: str) -> Any:
    words = ("train", "--data", data, "--run-dir", run, "--model", "linear", "--max-epochs", str(epochs), *more)
    return works(*words)


# --- metrics and loggers --------------------------------------------------------------------------------------------


def test_every_epoch_is_a_row_of_a_table_too(data: Path, tmp_path: Path) -> None:
    train(data, tmp_path / "run", 3)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    with (tmp_path / "run/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [{name: "" if value is None else str(value) for name, value in line.items()} for line in lines] == rows
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert all(line["seconds"] > 0 and line["memory_mib"] > 50 and line["windows_per_s"] > 0 for line in lines)
    assert all(line["skipped_steps"] == 0 and line["gpu_utilisation"] is None for line in lines)
    assert not list((tmp_path / "run").glob("epoch-*"))  # states of epochs, which nobody asked for


def test_the_utilisation_of_an_epoch_is_its_steps(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean from the first step to the last one, without the validation."""
    said = []

    @contextmanager
    def sampled(device: torch.device) -> Iterator[DeviceSamples]:
        samples = DeviceSamples()
        yield samples
        samples.utilisation += [71.0, 90.0, 90.0]
        said.append("steps")

    def validate(*given: Any) -> float | None:
        said.append("validation")
        return before(*given)

    before = loop._validate
    monkeypatch.setattr(loop, "sample_device", sampled)
    monkeypatch.setattr(loop, "_validate", validate)
    train(data, tmp_path / "run", 2)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert ([line["gpu_utilisation"] for line in lines], said) == ([83.7, 83.7], ["steps", "validation"] * 2)


@pytest.mark.parametrize("asked", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUtilizationRates"])
def test_a_card_that_tells_nothing_does_not_end_a_training(
    asked: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without NVML's library, without a permission, or on a slice of a card."""
    fake_nvml(monkeypatch, "abc")
    nvml = sys.modules["pynvml"]

    def refuses(*_: object) -> None:
        raise type("NVMLError_NotSupported", (nvml.NVMLError,), {})("Not Supported")

    monkeypatch.setattr(nvml, asked, refuses)
    monkeypatch.setattr(loop, "sample_device", lambda _: sample_device(torch.device("cuda", 0)))
    train(data, tmp_path / "run", 1)
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text())["gpu_utilisation"] is None


def told_to_tensorboard(module: MagicMock) -> tuple[set[tuple[int, str]], object, bool]:
    assert module.SummaryWriter.call_args.args[0].endswith("tensorboard")
    writer = module.SummaryWriter.return_value
    measures = {(call.args[2], call.args[0]) for call in writer.add_scalar.call_args_list}
    return measures, writer.add_text.call_args, writer.close.called


def told_to_wandb(module: MagicMock) -> tuple[set[tuple[int, str]], object, bool]:
    module.init.assert_called_once_with(project="socialx", name="run", dir=ANY, config=ANY)
    opened = module.init.return_value
    measures = {(call.kwargs["step"], name) for call in opened.log.call_args_list for name in call.args[0]}
    return measures, module.init.call_args, opened.finish.called


def told_to_mlflow(module: MagicMock) -> tuple[set[tuple[int, str]], object, bool]:
    module.start_run.assert_called_once_with(run_name="run")
    measures = {(call.kwargs["step"], name) for call in module.log_metrics.call_args_list for name in call.args[0]}
    return measures, module.log_params.call_args, module.start_run.return_value.__exit__.called


@pytest.mark.parametrize(
    ("package", "told"),
    [("torch.utils.tensorboard", told_to_tensorboard), ("wandb", told_to_wandb), ("mlflow", told_to_mlflow)],
)
def test_epochs_go_to_a_logger(
    package: str, told: Callable[[MagicMock], Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measures by epoch, the settings, and that the logger is closed."""
    module = MagicMock()
    monkeypatch.setitem(sys.modules, package, module)
    train(data, tmp_path / "run", 2, "--loggers", package.rpartition(".")[2])
    measures, settings, closed = told(module)
    assert {(1, "train_mae"), (2, "validation_mae"), (2, "windows_per_s"), (1, "memory_mib")} <= measures
    assert not {"gpu_utilisation", "epoch", "best"} & {what for _, what in measures}  # not measured, no measures
    assert "trainer.learning_rate" in str(settings)
    assert closed


def test_a_logger_that_is_not_installed_is_said_before_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    error = refused("train", "--data", data, "--run-dir", tmp_path / "run", "--model", "linear", "--loggers", "wandb")
    assert error.code == "train.logger"
    assert "'socialx[wandb]'" in error
    assert "epoch" not in error
    assert not (tmp_path / "run").exists()


# --- steps that the scaler leaves out -------------------------------------------------------------------------------


def test_steps_whose_gradient_is_not_finite_are_left_out_and_counted() -> None:
    made, batch = learner(Precision("16-mixed", CPU)), example()
    start = 2.0**16  # at which gradients of this model overflow
    made.grad_scaler = torch.amp.GradScaler("cpu", start)
    for _ in range(8):
        made.step([batch])
    assert made.steps == 8
    assert 0 < made.count_skipped() < 8
    assert made.grad_scaler.get_scale() == start / 2 ** made.count_skipped()  # which halves it each time
    assert learner(Precision("32-true", CPU)).count_skipped() == 0


def test_steps_left_out_are_printed(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.training.learner.Learner.count_skipped", lambda self: 3)
    words = ("train", "--data", data, "--run-dir", tmp_path / "run", "--max-epochs", "1", *SMALL)
    assert "3 steps skipped" in socialx(*words).stderr


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "said"),
    [
        ([500, 100, 130, 160, 190, 220, 250], 1),  # 30 MiB an epoch, the first does not count
        ([500, 100, 120, 101, 119, 100, 121], 0),
        ([100, 100, 100, 900, 100, 100, 100], 0),
        ([100, 110, 120, 130, 140, 150, 160], 0),  # grows by less than 100 MiB
        ([0, 0, 0, 0, 0, 0, 0], 0),  # not known
    ],
)
def test_memory_that_grows_is_said_once(used: list[float], said: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter(used)
    monkeypatch.setattr(device, "used_bytes", lambda _: next(left) * MIB)
    events: list[Event] = []
    with subscribe(events.append):
        watch = MemoryWatch()
        for _ in used:
            watch.add(CPU)
    lines = [str(event.message) for event in events if isinstance(event, Note)]
    assert len(lines) == said
    grown = "the memory of this process grew by 120 MiB in 5 epochs, a possible leak."
    assert all(line.startswith(f"{grown}\n") for line in lines)
