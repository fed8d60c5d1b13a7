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
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import socialx
from socialx.data.files import replacing
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
    def metrics(self) -> Path:
        """A line of JSON per epoch."""
        return self.path / "metrics.jsonl"

    @property
    def best(self) -> Path:
        """Weights of the best epoch."""
        return self.path / "best.pt"

    @property
    def last(self) -> Path:
        """The state to resume from."""
        return self.path / "last.pt"

    def write_text(self, name: str, text: str) -> None:
        """Write ``name`` whole or not at all."""
        with replacing(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def write_json(self, name: str, content: Any) -> None:
        """Write ``name`` as JSON, whole or not at all."""
        self.write_text(name, json.dumps(content, indent=2, default=str) + "\n")

    def read_json(self, name: str, kind: type = dict) -> Any:
        """Read ``name``; SocialxError if it is not there, not JSON or of another kind."""
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SocialxError(f"{self.path / name}: not readable ({error}): name a folder that train wrote") from None
        if not isinstance(content, kind):
            raise SocialxError(f"{self.path / name}: not as train writes it: name a folder that train wrote")
        return content

    def add_start(self, environment: dict[str, Any]) -> None:
        """One start more of this run, under this environment."""
        before = self.read_json("environment.json", list) if (self.path / "environment.json").exists() else []
        self.write_json("environment.json", [*before, environment])

    def check_same(self, now: dict[str, Any], key: str, path: Path | None, flag: str) -> None:
        """SocialxError where ``key`` of the stamp ``now`` is not this run's own: ``path`` is then another file."""
        then, name = self.read_json("stamp.json").get(key), flag.removeprefix("--")
        if then == now[key]:
            return
        if then is None:
            raise SocialxError(f"{path}: {self.path} was trained without {name}: leave {flag} out")
        found = f"{path}: not" if path else f"no {name}: without"
        raise SocialxError(f"{found} the {name} that {self.path} was trained on: name that file with {flag}")

    def write_metrics(self, row: dict[str, Any]) -> None:
        """Add an epoch; a row of the same epoch or a later one, left by a start that was killed, goes."""
        rows = [json.loads(line) for line in self.metrics.read_text().splitlines()] if self.metrics.exists() else []
        rows = [old for old in rows if old["epoch"] < row["epoch"]] + [row]
        self.write_text(self.metrics.name, "".join(json.dumps(r) + "\n" for r in rows))


def create_run(path: Path, overwrite: bool = False) -> RunFolder:
    """A new run folder.  One that holds a run is refused without ``overwrite``, which clears that run's files."""
    run = RunFolder(path)
    holds = [run.settings, run.best, run.last, run.metrics, path / "environment.json"]
    if any(p.exists() for p in holds):
        if not overwrite:
            raise SocialxError(f"{path}: holds a run already: --overwrite, --resume {path}, or another --run-dir")
        for old in holds:
            old.unlink(missing_ok=True)
    elif path.is_dir() and any(path.iterdir()):
        raise SocialxError(f"{path}: a folder with other files in it: name a new --run-dir")
    return run


def open_run(path: Path) -> RunFolder:
    """An existing run folder, with settings and a state; SocialxError if it is none."""
    run = RunFolder(path)
    if not run.settings.is_file() or not run.settings.stat().st_size:
        raise SocialxError(f"{path}: not a run folder (no settings.yaml): socialx train writes one under runs/")
    if not run.last.is_file():
        raise SocialxError(f"{path}: no last.pt in it: start anew with socialx train -c {run.settings}")
    return run


def environment(device: torch.device, precision: str) -> dict[str, Any]:
    """The machine and the versions, for the record."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "socialx": socialx.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version(name) for name in ("xlstm", "numpy", "h5py", "pandas", "pydantic")},
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
