"""Run a socialx command as a user would, in this process or in one of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from socialx.cli import app

ROOT = Path(__file__).parents[1]
EXCERPT = ROOT / "examples/data/METR-LA-excerpt.csv"
LOCATIONS = ROOT / "examples/data/sensor_locations.csv"
SMALL = [
    "--width",
    "8",
    "--blocks",
    "1",
    "--slstm-at",
    "",
    "--model-heads",
    "2",
    "--pooling-heads",
    "2",
    "--neighbours",
    "3",
]


def socialx(*arguments: str | Path) -> Result:
    """In this process: quick, and a traceback stays a traceback."""
    result = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def process(*arguments: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, "-m", "socialx", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160", "NO_COLOR": "1", **env}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=110)


def shell_environment(folder: Path, **env: str) -> dict[str, str]:
    """The environment of a shell that finds ``socialx``, by a script in ``folder/bin``."""
    script = folder / "bin/socialx"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m socialx "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{script.parent}:{os.environ['PATH']}", **env}


def cut_csv(path: Path, rows: int, sensors: int = 4) -> Path:
    """The first rows and sensors of the excerpt."""
    lines = EXCERPT.read_text().splitlines()[: rows + 1]
    path.write_text("".join(",".join(line.split(",")[: sensors + 1]) + "\n" for line in lines))
    return path


def small_file(folder: Path, rows: int = 400, sensors: int = 4) -> Path:
    """A converted cut of the excerpt."""
    output = folder / "small.h5"
    result = socialx(
        "convert", "metr-la", "--data-csv", cut_csv(folder / "small.csv", rows, sensors),
        "--meta-csv", LOCATIONS, "--output-h5", output,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    return output


def small_run(data: Path, run: str | Path = "run", *options: str | Path) -> Path:
    """A small model trained on a file for one epoch; ``run`` is the name of a folder beside the file, or a path."""
    folder = data.parent / run
    result = socialx("train", "--data", data, "--run-dir", folder, "--max-epochs", "1", *SMALL, *options)
    assert result.exit_code == 0, result.stderr
    return folder
