"""The commands on CUDA, from training to a forecast: the branches that a CPU never enters."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import ROWS, Row
from socialx.settings.layers import ConfigLayers
from socialx.tasks.build import build
from socialx.tasks.train import make_learner
from tests.commands import refused, small_file, works

pytestmark = pytest.mark.gpu
SMALL = ["--device", "cuda", "--batch-size", "32"]
SHAPE = ["--width", "64", "--blocks", "2", "--set", "model.slstm_at=1", "--max-epochs", "2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    said = works("train", "--data", data, "--run-dir", path, *SMALL, *SHAPE, "--precision", "auto").stderr
    assert "encoder fused, not compiled (compiling pays from 40,000 steps), steps recorded as CUDA graphs" in said
    return path


def losses(run: Path) -> list[float]:
    return [json.loads(line)["train_mae"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_card_is_the_default_and_another_is_refused(data: Path, tmp_path: Path) -> None:
    own = [*SMALL[2:], *SHAPE, "--max-epochs", "1"]
    assert "cuda:0" in works("train", "--data", data, "--run-dir", tmp_path / "run", *own).stderr
    assert (error := refused("train", "--data", data, "--device", "cuda:99", code=2)).code == "device.unseen"
    assert f" {torch.cuda.device_count()} CUDA devices" in error


def test_a_run_goes_on(data: Path, tmp_path: Path) -> None:
    path, options = tmp_path / "run", ["--precision", "16-mixed", "--accumulate-grad-batches", "2"]
    works("train", "--data", data, "--run-dir", path, *SMALL, *SHAPE, *options)
    works("train", "--resume", path, "--max-epochs", "3")
    assert len(losses(path)) == 3


def test_a_run_is_scored_and_forecasts(run: Path, tmp_path: Path) -> None:
    works("evaluate", run, "--device", "cuda")
    works("explain", run, "--device", "cuda")
    works("calibrate", run, "--device", "cuda")
    works("predict", run, "--device", "cuda", "-o", tmp_path / "forecast.csv")
    assert (tmp_path / "forecast.csv").stat().st_size > 100


def test_a_profile_and_the_doctor(data: Path, tmp_path: Path) -> None:
    report, shape = tmp_path / "profile.json", SHAPE[: SHAPE.index("--max-epochs")]
    works("profile", "--data", data, *SMALL, *shape, "--steps", "12", "--warmup-steps", "5", "--output", report)
    assert json.loads(report.read_text())["window"]["clock"] == "device"
    works("doctor", "--device", "cuda")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_model_of_every_measured_row_is_built(row: Row, data: Path) -> None:
    changes = row.settings | {"data.path": data, "trainer.device": "cuda", "pooling.neighbours": 3}
    experiment = build(ConfigLayers(preset=row.preset).over(changes).load().settings)
    assert make_learner(experiment, 9).records == (row.settings.get("trainer.cuda_graph") != "off")
