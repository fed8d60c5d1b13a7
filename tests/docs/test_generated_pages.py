"""The generated pages say what the code says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import socialx
from socialx.cli.app import COMMANDS
from socialx.settings.layers import PRESETS
from socialx.settings.schema import KEYS, flag_name
from tests.commands import ROOT

PAGES = ("docs/settings.md", "docs/cli.md", "docs/api.md", "docs/data.md", "CONTRIBUTING.md")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``make docs`` writes, in a process of its own: the terminal of this one must not count."""
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "docs.generate", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_code_says(page: str, fresh: Path) -> None:
    same = (fresh / page).read_text() == (ROOT / page).read_text()
    assert same, f"{page} is stale: run make docs, and commit what it wrote"


def test_every_setting_command_and_public_name_has_its_row(fresh: Path) -> None:
    settings, commands, names = ((fresh / page).read_text() for page in PAGES[:3])
    for key in KEYS:
        rows = [line for line in settings.partition("\n## Presets\n")[0].splitlines() if line.startswith(f"`{key}`")]
        assert len(rows) == 1, key
        assert flag_name(key) == f"--{key.split('.')[1].replace('_', '-')}" or f"`{flag_name(key)}`" in rows[0]
    for command in COMMANDS:
        assert re.search(rf"\n## {command}\n\n`{command}[^\n]*`\| \w.*\n---\|---\n", commands)
    for name in socialx.MODULES:
        assert re.search(rf"^\[?`{name}[(`].*\| \w", names, re.MULTILINE), name
    for name in ("mlp-small", "xlstm-large"):
        assert f"| {name}" in settings
    assert [key for key, value in PRESETS["xlstm-small"].items() if value != KEYS[key].default] == []
