"""The README is a contract: its commands run as they stand, its make targets exist, its paths are there."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.commands import ROOT, works
from tests.documents import blocks, commands

README = ROOT / "README.md"
PYTHON = blocks(README, "python")
COMMANDS = [command for command, _ in commands(README)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the README's order, in a folder that holds nothing but examples/; training is cut short."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    # Less of everything that takes time, and nothing else: what the README types wins over the environment.
    short = {"TRAINER__MAX_EPOCHS": "1", "MODEL__WIDTH": "8", "MODEL__BLOCKS": "1", "MODEL__SLSTM_AT": "0"}
    short |= {"LOADER__BATCH_SIZE": "256", "PROFILE__WARMUP_STEPS": "0"}
    for name, value in short.items():
        monkeypatch.setenv(f"SOCIALX_{name}", value)
    assert len([line for line in COMMANDS if line.startswith("socialx")]) >= 7
    for line in COMMANDS:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            monkeypatch.setenv(name, value)
        if line.startswith("cp "):
            shutil.copy(*line.split()[1:])
        if not line.startswith("socialx"):
            continue
        words = shlex.split(line)
        if "--steps" in words:
            words[words.index("--steps") + 1] = "2"
        works(*words[1:])


@pytest.mark.slow
def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """As it stands, on the file that the README's convert command writes."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (code,) = PYTHON
    (convert,) = [command for command in COMMANDS if command.startswith("socialx convert ")]
    monkeypatch.chdir(tmp_path)
    works(*shlex.split(convert)[1:])
    capfd.readouterr()
    exec(code, {})  # noqa: S102  it is the code of this project
    printed = capfd.readouterr().out
    found = re.fullmatch(r"MAE at 15 minutes: (\d\.\d+) mph\n", printed)
    assert found, printed  # the functions print nothing
    assert float(found.group(1)) < 2
    with (tmp_path / "notebook.csv").open() as file:
        assert len(file.readlines()) == 1 + 16 * 12
    assert (tmp_path / "notebook.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("socialx")] or [""])
def test_everything_else_is_make_git_or_cd(command: str) -> None:
    words = shlex.split(command)
    assert words[0] in ("make", "git", "cd", "pip", "export", "cp", ".")
    if words[0] == "make":
        assert set(words[1:]) <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_make_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"\.PHONY: (.+)", makefile)
    assert phony
    for target in phony.group(1).split():
        assert re.search(rf"^{target}:.*##", makefile, re.MULTILINE), target


def test_the_file_map_is_true() -> None:
    for path in re.findall(r"`((?:socialx|tests|examples|docs|benchmarks)/[\w./-]*)`", README.read_text()):
        assert (ROOT / path).exists(), path


def test_it_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 200
