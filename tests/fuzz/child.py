"""A function or a command in a forked child of this process, which has imported everything already.

The child has a limit of memory, a new standard output and error, and a parent that ends it after a while.
"""

import faulthandler
import importlib
import io
import mmap
import os
import pkgutil
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import server

SECONDS = 30.0  # the slowest case takes about one
MORE_BYTES = 4 << 30  # of address space, beyond what is mapped
# What the first model and the first optimizer import.  No step is taken here, for a step starts threads.
SLOW = ("xlstm", "xlstm.xlstm_block_stack", "xlstm.blocks.mlstm.block", "xlstm.blocks.slstm.block", "torch._dynamo")
SLOW += ("matplotlib.pyplot", "pandas", "rich.progress", "rich.table", "yaml", "socialx.scoring.protocol")
TRACEBACK = 99  # the exit code of an exception that nobody caught


@dataclass(frozen=True)
class Outcome:
    """How a child ended.  code: its exit code, None where a signal or the time ended it.  grown: bytes of memory."""

    code: int | None
    signal: int
    seconds: float
    grown: int
    stdout: str
    stderr: str

    @property
    def late(self) -> bool:
        """Whether it was ended because it took too long."""
        return self.code is None and self.signal == 0


def warm_up() -> None:
    """Import all that any command imports, and leave the commit of the source tree alone: git is slow."""
    os.environ.update(COLUMNS="160", NO_COLOR="1", MPLBACKEND="agg", OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
    import torch

    import socialx

    torch.set_num_threads(1)
    packaged = (module.name for module in pkgutil.walk_packages(socialx.__path__, "socialx."))
    for name in (*SLOW, *(name for name in packaged if not name.endswith("__main__"))):
        importlib.import_module(name)
    for name in ("socialx.core.environment", "socialx.scoring.protocol"):
        sys.modules[name].commit = lambda: "fuzz"


def _pages(field: int) -> int:
    """Bytes of this process: field 0, of address space; 1, of memory."""
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


def command(words: Sequence[str], folder: Path, seconds: float = SECONDS) -> Outcome:
    """``socialx`` with these words in ``folder``."""
    return run(lambda: main(words), folder, seconds)


def main(words: Sequence[str]) -> None:
    """``socialx`` with these words, in this process."""
    from socialx.cli import main

    if words[0] == "serve":
        server.answer_once()
    sys.argv = ["socialx", *words]
    main()


def start(function: Callable[[], object], folder: Path | None, stdout: int, stderr: int) -> int:
    """Fork a child that calls ``function`` in ``folder``; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = TRACEBACK
    try:
        code = _in_child(function, folder, stdout, stderr)
    finally:
        os._exit(code)


def _in_child(function: Callable[[], object], folder: Path | None, stdout: int, stderr: int) -> int:
    faulthandler.disable()  # pytest's would print this child's end as its own
    null, code = os.open(os.devnull, os.O_RDONLY), TRACEBACK
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, "wb", closefd=False), encoding="utf-8", line_buffering=number == 2)
        for number in (1, 2)
    )
    sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False), encoding="utf-8")
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    limit = _pages(0) + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        if folder is not None:
            os.chdir(folder)
        function()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - it is what is looked for
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def run(function: Callable[[], object], folder: Path | None = None, seconds: float = SECONDS) -> Outcome:
    """Call ``function`` in a child and wait for its end, ``seconds`` at most."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        started, shared = time.monotonic(), mmap.mmap(-1, 8)

        def measured() -> None:
            shared[:8] = _pages(1).to_bytes(8, "little")  # less than the parent's: files are mapped when they are read
            function()

        pid = start(measured, folder, stdout.fileno(), stderr.fileno())
        handle = os.pidfd_open(pid)
        try:
            late = not select.select([handle], [], [], seconds)[0]
            if late:
                os.kill(pid, signal.SIGKILL)
        finally:
            os.close(handle)
        _, status, used = os.wait4(pid, 0)
        took, texts = time.monotonic() - started, []
        for stream in (stdout, stderr):
            stream.seek(0)
            texts.append(stream.read(1 << 20).decode("utf-8", "backslashreplace"))
    grown = used.ru_maxrss * 1024 - (int.from_bytes(shared[:8], "little") or _pages(1))
    code = os.waitstatus_to_exitcode(status)
    ended = 0 if late or code >= 0 else -code
    return Outcome(None if late or code < 0 else code, ended, took, max(0, grown), texts[0], texts[1])


def check(outcome: Outcome) -> None:
    """Raise where a child that makes an input did not end well."""
    if outcome.code != 0:
        raise RuntimeError(f"the input could not be made: {outcome}")
