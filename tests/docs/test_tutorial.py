"""The guide to a forecast is a contract: its commands run in order, and print what it shows, up to the numbers."""

import gzip
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import socialx as api
from tests.commands import ROOT, shell_environment, socialx
from tests.documents import blocks, commands

STEPS = commands(ROOT / "docs/forecast-my-data.md")


def masked(text: str) -> str:
    """Without numbers, which differ between processors, and without what stands around them for width."""
    return " ".join(re.sub(r"\d[\d.,]*", "#", text).replace("  best", "").split())


def served(words: list[str], environment: dict[str, str]) -> str:
    """Start the server at a free port, ask for its forecast and interrupt it; what it printed."""
    words[words.index("--port") + 1] = "0"
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as server:
        lines = []
        for line in server.stderr:
            lines.append(line)
            if found := re.search(r"curl (\S+)", line):
                answer = httpx.get(found[1], timeout=30).json()
                assert (answer["interval"], len(answer["sensors"])) == (0.9, 16)
                break
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)
    return "".join(lines)


@pytest.mark.slow
@pytest.mark.timeout(400)  # four epochs of a small model
def test_the_tutorial_runs_and_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    assert len(STEPS) == 13
    for command, shown in STEPS:
        words = shlex.split(command)
        if words[:2] == ["socialx", "serve"]:
            printed = served(words, shell_environment(tmp_path))
        elif words[0] == "socialx":
            of_command = socialx(*words[1:], details=False)
            assert of_command.exit_code == 0, of_command.output
            printed = of_command.stdout + of_command.stderr
        else:
            printed = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
        printed = masked(printed)
        for line in (line for line in shown if line.strip() not in ("", "...")):
            assert masked(line) in printed, f"$ {command}\n{line}\n{printed}"
    assert (tmp_path / "my_city.html").stat().st_size > 50_000
    assert (tmp_path / "next_hour.csv").read_text().count("\n") == 1 + 16 * 12


class Trial:
    """A trial of a study, which suggests the first value of each choice: what the page uses of Optuna's."""

    def __init__(self, number: int) -> None:
        self.number, self.params = number, dict[str, Any]()

    def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
        return self.params.setdefault(name, low + self.number * (high - low))

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        return self.params.setdefault(name, choices[0])


class Study:
    """Runs trials one after another, and keeps the settings of the best."""

    def optimize(self, objective: Callable[[Trial], float], n_trials: int) -> None:
        trials = [Trial(number) for number in range(n_trials)]
        self.best_params = min(trials, key=objective).params


@pytest.mark.slow
def test_a_sweep_ends_in_a_table_over_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(
        sys.modules, "optuna", SimpleNamespace(Trial=Trial, create_study=lambda study_name, **_: Study())
    )
    monkeypatch.chdir(tmp_path)
    rows = gzip.decompress((ROOT / "examples/data/city.csv.gz").read_bytes()).splitlines(keepends=True)
    (tmp_path / "week.csv").write_bytes(b"".join(rows[: 1 + 5 * 288]))
    places = ROOT / "examples/data/city_sensors.csv"
    api.convert("auto", "week.csv", "city.h5", meta_csv=places, units="mph", timezone="America/Los_Angeles")
    sweep, table = blocks(ROOT / "docs/how-to/sweep-and-seeds.md", "python")
    assert len([line for line in sweep.splitlines() if line]) <= 20
    exec(sweep.replace("n_trials=20", "n_trials=2") + table, {})  # noqa: S102 - the page
    printed = capsys.readouterr().out
    assert [name for name in ("best\\_0", "best\\_2", "mean of 3 runs", "deviation") if name not in printed] == []
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        *(f"trial_{n}" for n in (0, 1)),
        *(f"best_{n}" for n in range(3)),
    }
