"""A run folder: everything that is needed to repeat, continue or score a run.

settings.yaml     all settings, merged; socialx train -c settings.yaml repeats the run
origin.json       where each setting came from
environment.json  versions, device, precision in effect, command line
stamp.json        data, checksum, split, scaler, seed: what its scores depend on
metrics.jsonl     one line per epoch
best.pt           weights of the epoch with the best validation MAE
last.pt           everything that resuming needs
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import socialx
from socialx.errors import SocialxError


@dataclass(frozen=True)
class RunFolder:
    """Paths inside a run folder, and the little that is written there."""

    path: Path

    @property
    def settings(self) -> Path:
        """All settings of the run."""
        return self.path / "settings.yaml"

    @property
    def best(self) -> Path:
        """Weights of the best epoch."""
        return self.path / "best.pt"

    @property
    def last(self) -> Path:
        """The state to resume from."""
        return self.path / "last.pt"

    @property
    def weights(self) -> Path:
        """What a forecast is made with: the best epoch, or the last state if no epoch was finished."""
        return self.best if self.best.exists() else self.last

    def write_json(self, name: str, content: Any) -> None:
        """Write ``name`` whole or not at all."""
        temporary = self.path / f".{name}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
        temporary.replace(self.path / name)

    def read_json(self, name: str) -> Any:
        """Read ``name``; SocialxError if it is not there or not JSON."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SocialxError(
                f"{self.path / name}: not readable ({error}): name a folder that socialx train wrote"
            ) from None

    def append_metrics(self, row: dict[str, Any]) -> None:
        """One epoch more."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")


def create_run(path: Path, overwrite: bool = False) -> RunFolder:
    """A new run folder.  One that holds a run is refused without ``overwrite``, which clears that run's files."""
    run = RunFolder(path)
    holds = [run.settings, run.best, run.last, path / "metrics.jsonl"]
    if any(p.exists() for p in holds):
        if not overwrite:
            raise SocialxError(f"{path}: holds a run already: --overwrite, --resume {path}, or another --run-dir")
        for old in holds:
            old.unlink(missing_ok=True)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SocialxError(f"{path}: cannot make the run folder ({error.strerror}): name another --run-dir") from None
    return run


def open_run(path: Path) -> RunFolder:
    """An existing run folder, with settings and weights; SocialxError if it is none."""
    run = RunFolder(path)
    if not run.settings.is_file():
        raise SocialxError(f"{path}: not a run folder (no settings.yaml): socialx train writes one under runs/")
    if not run.weights.is_file():
        raise SocialxError(f"{path}: no checkpoint in it (neither best.pt nor last.pt): socialx train --resume {path}")
    return run


def environment(device: torch.device, precision: str) -> dict[str, Any]:
    """The machine and the versions, for the record."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "socialx": socialx.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device.type,
        "device_name": name,
        "precision": precision,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "command": sys.argv,
    }


def commit() -> str | None:
    """The commit of the source tree that runs, with -dirty; None for an installed wheel."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
