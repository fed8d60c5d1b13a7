"""The pages of docs/how-to that add something: the change is applied to a copy, and the commands run there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT
from tests.documents import commands

PAGES = sorted((ROOT / "docs/how-to").glob("add-*.md"))
COPIED = ("socialx", "tests", "docs", "examples", "benchmarks")

# Runs in the copy: each line of standard input is a command; what it prints stands between two marks.
RUNNER = r"""
import shlex, sys
import pytest
from typer.testing import CliRunner
from socialx.cli import app
for line in sys.stdin.read().splitlines():
    words = shlex.split(line)
    print(f"\n$ {line}", flush=True)
    if words[:3] == ["python", "-m", "pytest"]:
        print("exit code", int(pytest.main(["-p", "no:cacheprovider", *words[3:]])))
    elif words == ["make", "docs"]:
        import docs.generate
        sys.argv = ["generate"]
        docs.generate.main()
        print("exit code 0")
    else:
        result = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app, words[1:])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        print(result.stdout, result.stderr, "exit code", result.exit_code)
"""


def copy_with_the_change(page: Path, copy: Path) -> None:
    hidden = shutil.ignore_patterns("__pycache__", "*.png", "pretrained")
    for name in COPIED:
        shutil.copytree(ROOT / name, copy / name, ignore=hidden)
    for name in ("pyproject.toml", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, copy)
    text = page.read_text()
    shutil.copy(ROOT / "examples/extend/loops.csv", copy)
    (change,) = re.findall(r"`git apply (\S+)`", text)
    done = subprocess.run(["git", "apply", "-C1", change], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, f"{page.name}: its diff does not fit the code any more: {done.stderr}"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_change_works_as_the_page_says(page: Path, tmp_path: Path) -> None:
    copy_with_the_change(page, tmp_path)
    session = commands(page)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "SOCIALX_TRAINER__DEVICE": "cpu"}
    environment["GIT_CEILING_DIRECTORIES"] = str(tmp_path.parent)
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input="\n".join(command for command, _ in session),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.split(r"^\$ .+$", done.stdout, flags=re.MULTILINE)[1:]
    for (command, quoted), output in zip(session, printed, strict=True):
        text = " ".join(output.split())
        expected = 2 if any(line.startswith("error:") for line in quoted) else 0
        assert f"exit code {expected}" in text, f"$ {command}\n{output}\n{done.stderr}"
        for line in quoted:
            pattern = ".*".join(re.escape(" ".join(piece.split())) for piece in line.split("..."))
            assert re.search(pattern, text), f"$ {command}\n{output}\nhas not\n{line}"
    words = {"pooling": "radius_mean", "model": "gru: one GRU", "setting": "`trainer.beta2`"}
    word = words.get(page.stem.split("-")[-1])
    assert word is None or word in (tmp_path / "docs/settings.md").read_text()


def test_there_is_a_page_for_each_thing_to_add() -> None:
    assert [page.stem for page in PAGES] == ["add-a-file-format", "add-a-model", "add-a-pooling", "add-a-setting"]
