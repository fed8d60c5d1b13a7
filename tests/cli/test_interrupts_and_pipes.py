"""A reader that has left ends a command as a signal does; Ctrl-C ends a command with a word."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT, STARTS


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "socialx", *map(str, arguments)]


@pytest.mark.parametrize(("handler", "code"), [("default_int_handler", 130), ("SIG_IGN", 7)])
def test_an_interrupt_while_a_library_is_imported_ends_in_a_word(handler: str, code: int, tmp_path: Path) -> None:
    """One that is ignored stays so, as the jobs have it that a shell runs in the background."""
    package, then = tmp_path / "torch", "input()" if code == 130 else "os._exit(7)"
    package.mkdir()
    package.joinpath("__init__.py").write_text(f"import os, signal; os.kill(os.getpid(), signal.SIGINT); {then}")
    own = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    typed = [sys.executable, "-c", STARTS.replace("default_int_handler", handler), "predict", str(tmp_path)]
    done = subprocess.run(typed, capture_output=True, text=True, env=own, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (code, "", "interrupted" if code == 130 else "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inspect", "predict", "evaluate", "explain", "config"])
def test_a_reader_that_has_left_ends_every_command_alike(name: str, run: Path, data: Path) -> None:
    """128 + SIGPIPE, as ``| head`` leaves it, and no error."""
    reader, writer = os.pipe()
    os.close(reader)
    typed = command(name, *([data] if name == "inspect" else [] if name == "config" else [run]))
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(typed, stdout=writer, stderr=subprocess.PIPE, text=True, env=own, timeout=100)
    os.close(writer)
    assert done.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr
