"""Run files that are of another kind than training writes: refused before anything in the folder changes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.commands import SMALL, small_file, small_run, socialx


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(small_file(tmp_path_factory.mktemp("data")))


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def contents(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}


def refused(*words: str | Path) -> str:
    done = socialx(*words)
    assert done.exit_code == 1
    assert done.stderr.count("error: ") == 1
    return done.stderr


@pytest.mark.parametrize("content", ["{}", "[1, 2", "\xff", ""])
@pytest.mark.parametrize("name", ["environment.json", "origin.json"])
def test_resuming_reads_all_before_it_writes_anything(content: str, name: str, run: Path) -> None:
    if name == "origin.json" and content == "{}":
        content = "[]"
    (run / name).write_text(content, encoding="latin-1")
    before = contents(run)
    assert name in refused("train", "--resume", run, "--max-epochs", "2")
    assert contents(run) == before


@pytest.mark.parametrize("name", ["environment.json", "best.safetensors", "last.pt"])
def test_a_folder_in_the_place_of_a_run_file_is_refused_before_a_run_is_cleared(name: str, run: Path) -> None:
    (run / name).unlink()
    (run / name / "kept").mkdir(parents=True)
    before, data = contents(run), run.parent / "small.h5"
    shutil.copy(_data_of(run), data)
    words = ["train", "--data", data, "--run-dir", run, "--max-epochs", "1", "--overwrite", *SMALL]
    assert f"{name}: a folder" in refused(*words)
    assert contents(run) == before
    assert (run / name / "kept").is_dir()


def _data_of(run: Path) -> str:
    line = next(line for line in (run / "settings.yaml").read_text().splitlines() if line.startswith("  path: "))
    return line.removeprefix("  path: ")


def test_an_integer_beyond_all_floats_is_no_epoch(run: Path) -> None:
    row = json.loads((run / "metrics.jsonl").read_text())
    (run / "metrics.jsonl").write_text(json.dumps({**row, "windows_per_s": 10**400}) + "\n")
    assert "metrics.jsonl" in refused("train", "--resume", run, "--max-epochs", "2")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["best.pt", "last.pt"])
def test_a_pipe_in_the_place_of_weights_is_not_waited_for(name: str, run: Path) -> None:
    (run / "best.safetensors").unlink()
    (run / "last.pt").unlink()
    os.mkfifo(run / name)
    assert "a pipe" in refused("evaluate", run)


@pytest.mark.parametrize("command", ["evaluate", "predict", "explain"])
def test_a_climatology_without_its_sensors_is_refused(command: str, run: Path) -> None:
    (run / "sensors.json").unlink()
    assert f"error: {run / 'sensors.json'}: no such file" in refused(command, run)


def test_a_number_that_no_json_can_hold_is_no_protocol(run: Path) -> None:
    path = run / "protocol.json"
    found = json.loads(path.read_text())
    found["normaliser"]["avg_speed"]["std"] = float("inf")
    path.write_text(json.dumps(found))
    for command in ("explain", "evaluate"):
        assert "protocol.json: not a protocol" in refused(command, run, "--json")
