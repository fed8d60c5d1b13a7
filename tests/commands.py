"""Run a socialx command as a user would, in this process or in one of its own."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from typer.models import CommandInfo
from typer.testing import CliRunner, Result

from socialx.cli.app import COMMANDS, app
from socialx.core.errors import Message, SocialxError

ROOT = Path(__file__).parents[1]
# A shell has the jobs that it runs in the background ignore an interrupt, the tests among them.
STARTS = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom socialx.cli.app import main; main()"
)
EXCERPT = ROOT / "examples/data/METR-LA-excerpt.csv"
LOCATIONS = ROOT / "examples/data/sensor_locations.csv"
SIZE = "--width 8 --blocks 1 --set model.slstm_at= --neighbours 3 --set pooling.adaptive_adjacency_rank=0 --dropout 0.1"
SIZE += " --batch-size 64"
SMALL = shlex.split(SIZE)
KEPT = "TESTS_KEPT"  # the variable that names the folder of what is made once


def registered() -> list[CommandInfo]:
    """All commands as Typer knows them once their modules are imported."""
    for module, _ in COMMANDS.values():
        import_module(f"socialx.cli.{module}")
    return app.registered_commands


def detailed(arguments: tuple[str | Path, ...]) -> list[str]:
    """Return the words of a command that prints its details too."""
    words = [str(each) for each in arguments]
    return [words[0], "--verbose", *words[1:]] if words and words[0] in COMMANDS else words


class Said(str):
    """What was said to a user, with the codes of its messages in order."""

    codes: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, codes: Iterable[str]) -> Said:
        """A text with codes."""
        said = cls(text)
        said.codes = tuple(codes)
        return said

    @property
    def code(self) -> str:
        """The code of the only message."""
        (code,) = self.codes
        return code


@contextmanager
def refuses(code: str, kind: type[SocialxError] = SocialxError) -> Iterator[pytest.ExceptionInfo[SocialxError]]:
    """The block ends with an error of this code."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, caught.value


@contextmanager
def printed() -> Iterator[list[str]]:
    """The codes of the messages that are written in the block, in order."""
    codes, text = [], Message.text

    def written(message: Message) -> str:
        codes.append(message.code)
        return text(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Message, "text", written)
        yield codes


def socialx(*arguments: str | Path, details: bool = True) -> Result:
    """Run a command in this process: quick, and a traceback stays a traceback.  It prints its details too.

    ``codes`` of the result are those of its messages.
    """
    words = detailed(arguments) if details else [str(each) for each in arguments]
    with printed() as codes:
        result = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app, words)
    result.codes = tuple(codes)  # type: ignore[attr-defined]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def works(*arguments: str | Path) -> Result:
    """What a command says that must succeed."""
    result = socialx(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: str | Path, code: int = 1) -> Said:
    """Return an error, 1: of data, 2: of settings or usage; the command says nothing else."""
    result = socialx(*arguments)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert re.fullmatch(r"error: [^\n]+[.?!]\n(  try: [^\n]+\n)?", result.stderr), result.stderr
    return Said.of(result.stderr, result.codes)


def python(code: str, *arguments: str | Path) -> str:
    """What a script prints in a process of its own that must succeed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110)
    assert done.returncode == 0, done.stderr
    return done.stdout


def process(*arguments: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, "-m", "socialx", *detailed(arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160", "NO_COLOR": "1", **env}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=110)


WITH_PEAK = """
from socialx.cli import main
try:
    main()
finally:
    print(*(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def refused_in(most_mb: int, *arguments: str | Path) -> str:
    """The error of a command in a process of its own, which takes less memory than so many MB."""
    command = [sys.executable, "-c", WITH_PEAK, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert int(done.stdout.split()[-2]) < 1000 * most_mb  # kB
    return done.stderr


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


def kept(what: object, make: Callable[[Path], object]) -> Path:
    """The folder that ``make`` filled: once in a run of the tests, for both of its processes.  Nobody may change it."""
    place = Path(os.environ[KEPT]) / hashlib.sha256(repr(what).encode()).hexdigest()[:16]
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "made").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            make(place)
            (place / "made").touch()
    return place


def small_file(folder: Path, rows: int = 400, sensors: int = 4) -> Path:
    """A converted cut of the excerpt, and the cut beside it; a test may change them."""

    def make(place: Path) -> None:
        table = cut_csv(place / "small.csv", rows, sensors)
        works("convert", "metr-la", "--data-csv", table, "--meta-csv", LOCATIONS, "--output-h5", place / "small.h5")

    place = kept(("file", rows, sensors), make)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("small.csv", "small.h5"):
        shutil.copyfile(place / name, folder / name)
    return folder / "small.h5"


def cross(doors: Iterable[Any], facts: Iterable[Any], at: Any) -> list[tuple[Any, Any]]:
    """Pairs: all facts at one door, which is named, and another fact at each other door; all pairs would be many."""
    others, all_facts = [door for door in doors if door != at], list(facts)
    pairs = [(at, fact) for fact in all_facts]
    return pairs + [(door, all_facts[i % len(all_facts)]) for i, door in enumerate(others)]


@contextmanager
def edited(data: Path, path: Path) -> Iterator[h5py.File]:
    """A copy of a file at ``path``, open to be changed."""
    path.write_bytes(data.read_bytes())
    with h5py.File(path, "r+") as file:
        yield file


def in_kmh(data: Path, path: Path) -> Path:
    """A copy whose speeds are in km/h."""
    with edited(data, path) as file:
        file["data/features"][:, :, 0] *= np.float32(1.609344)
        units = json.loads(file["metadata/units"].asstr()[()]) | {"avg_speed": "km/h"}
        del file["metadata/units"]
        file["metadata/units"] = json.dumps(units)
    return path


def renamed(data: Path, path: Path) -> Path:
    """A copy whose sensors have other ids."""
    with edited(data, path) as file:
        ids = file["metadata/vdids"][:]
        file["metadata/vdids"][:] = np.array([b"x" + vdid for vdid in ids], "S64")
        for vdid in ids:
            file["metadata/vd_info"].move(vdid.decode(), "x" + vdid.decode())
    return path


def keep_rows(file: h5py.File, rows: slice | np.ndarray) -> None:
    """Of an open file."""
    for name in ("data/features", "metadata/timestamps", "metadata/timestamps_epoch"):
        kept = file[name][:][rows]
        file[name].resize(len(kept), axis=0)
        file[name][:] = kept


def small_run(data: Path, run: str | Path = "run", *options: str | Path) -> Path:
    """A small model trained on a file for one epoch; ``run`` is the name of a folder beside the file, or a path."""
    folder = data.parent / run
    words = ("train", "--max-epochs", "1", *SMALL, *options)
    if not data.is_absolute() or folder.exists() or any(isinstance(each, Path) for each in options):
        works(*words, "--data", data, "--run-dir", folder)
        return folder

    def make(place: Path) -> None:
        works(*words, "--data", data, "--run-dir", place / "run")
        (place / "data").write_text(str(data))

    place = kept(("run", data.read_bytes(), words), make)
    shutil.copytree(place / "run", folder)
    for path in (folder / "settings.yaml", folder / "protocol.json"):  # as if it was trained here
        text = path.read_text().replace((place / "data").read_text(), str(data))
        path.write_text(text.replace(str(place / "run"), str(folder)))
    return folder
