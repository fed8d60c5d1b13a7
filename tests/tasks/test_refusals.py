"""What a task refuses before it does anything, and says in words that hold."""

from __future__ import annotations

from pathlib import Path

import pytest

import socialx
from socialx.errors import SettingsError
from tests.commands import SMALL, small_file
from tests.commands import socialx as command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    done = command(
        "train", "--data", small_file(folder), "--run-dir", folder / "run", "--max-epochs", "1",
        "--model", "linear", *SMALL[-2:],
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    return folder / "run"


def test_a_size_is_refused_for_a_run_that_goes_on(run: Path) -> None:
    done = command("train", "--resume", run, "--size", "large")
    assert done.exit_code == 2
    assert done.stderr == f"error: --size large: {run} goes on with its own settings: leave it out\n"
    with pytest.raises(SettingsError, match="goes on with its own settings"):
        socialx.train(resume=run, size="small")
