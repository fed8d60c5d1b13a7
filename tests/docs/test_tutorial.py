"""The guide to a forecast is a contract: its commands run in order, and print what it shows, up to the numbers."""

import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.commands import ROOT, shell_environment, socialx
from tests.documents import commands

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
