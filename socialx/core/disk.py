"""Writing files so that each is the old one or the complete new one, and keeping other processes out meanwhile."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from socialx.core.errors import Argument, Message, SocialxError
from socialx.core.progress import note

# A name without a machine is of an older version, and is swept only by its age.
OWNER = r"\.(?:(?P<machine>[0-9a-f]{8})-)?(?P<process>[0-9]{1,9})\.tmp"
STALE_S = 7 * 86_400  # no file takes a week to be written
LOOK_S = 0.02  # between two looks whether a file is free: readers one after the other leave short gaps


FORMULA = re.compile(r"[=@\t\r]|[+-](?![0-9.]+$)")  # a sign before a plain number computes nothing


def as_cell(text: str) -> str:
    """A text for a table that a spreadsheet opens: one that it would compute begins with an apostrophe."""
    return f"'{text}" if FORMULA.match(text) else text


class WriteError(Exception):
    """What kept a file from being written; no OSError, so that whoever reads meanwhile does not take it for theirs."""


def check_name(path: Path) -> None:
    """Refuse a path that the system cannot even look up, such as one with a name too long; one not there passes."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise SocialxError(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None


def check_regular(path: Path, remedy: str = "save its content as a file and name that") -> None:
    """Refuse a device, a pipe or a socket before it is opened or replaced: it may have no end, or never answer.

    A path that is not there raises OSError; a folder passes.
    """
    kind = path.stat().st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise SocialxError(path, "a device, a pipe or a socket, not a file", remedy)


def read_text(path: Path, most: int) -> str:
    """The UTF-8 text of a file of at most ``most`` bytes.

    Raises OSError where it cannot be read and ValueError where it is longer or not UTF-8.
    """
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"longer than {most >> 10:,} KiB")
    return content.decode("utf-8")


@contextmanager
def file_lock(path: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Keep everybody else who locks a file, HDF5 included, out of ``path`` until the block ends.

    wait_s: how long to wait, with a note, for somebody who has it open.
    """
    until, said = time.monotonic() + wait_s, False
    while (handle := _try_lock(path)) is None:
        if time.monotonic() >= until:
            raise SocialxError(path, "another process has it open", "wait until it is done, then try again")
        if not said:
            note(Message(path, "another process has it open", f"waiting up to {wait_s:g} s"))
        said = True
        time.sleep(LOOK_S)
    try:
        yield
    finally:
        os.close(handle)  # which also unlocks it


def _try_lock(path: Path) -> int | None:
    """A descriptor that locks a file; None where somebody else has it, or has just replaced it."""
    try:
        check_regular(path)  # a pipe would be waited for
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise SocialxError(path, "no such file", "check the path") from None
    except OSError as error:
        raise SocialxError(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == path.stat().st_ino:  # not replaced between the two calls
            return handle
    os.close(handle)
    return None


@contextmanager
def folder_for(folder: Path) -> Iterator[None]:
    """A folder to write in, made if it is missing; those made go again where the block fails and leaves them empty."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for parent in missing:
            with suppress(OSError):  # it is not empty, or never came to be
                parent.rmdir()
        raise


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well, and vanishes otherwise.

    A link stays, what it points to is replaced.  The folder is made if it is missing.  What a killed process left here
    is swept away first, see ``remove_stale_files``.
    """
    target = Path(os.path.realpath(path))
    temporary = temporary_for(target, os.getpid())
    try:
        if target.exists():
            check_regular(target, "choose another output")  # root may replace /dev/null, and the machine would lack it
        with folder_for(target.parent):
            try:
                remove_stale_files(target.parent, target.name)
                yield temporary
                if target.exists():
                    shutil.copymode(target, temporary)
                _sync(temporary)
                temporary.replace(target)
                _sync(target.parent)
            finally:
                with suppress(OSError):  # whatever kept it from being written may keep it from being removed
                    temporary.unlink(missing_ok=True)
    except (OSError, RuntimeError, WriteError) as error:  # torch and h5py report a full disk as either
        raise SocialxError(path, f"cannot be written ({_cause(error)})", "check the folder and its space") from error


def temporary_for(target: Path, process: int) -> Path:
    """Where a process of this machine writes what will replace ``target``: ``.NAME.MACHINE-PROCESS.tmp`` beside it."""
    return target.with_name(f".{target.name}.{_machine()}-{process}.tmp")


def _machine() -> str:
    """8 hexadecimal digits of the name of this machine or container: process ids of two of them may agree."""
    return hashlib.sha256(socket.gethostname().encode("utf-8", "surrogateescape")).hexdigest()[:8]


def remove_stale_files(folder: Path, name: str | None = None) -> None:
    """Remove the temporaries of a name, or of all names, in a folder that nobody writes any more.

    These are the ones of this machine whose process is gone, and all that nobody changed for a week: whether a process
    of another machine lives cannot be told from here.
    """
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(name)}{OWNER}")
    for stale in folder.iterdir():
        if owner := pattern.fullmatch(stale.name):
            gone = False
            if owner["machine"] == _machine():
                try:
                    os.kill(int(owner["process"]), 0)
                except ProcessLookupError:
                    gone = True
                except PermissionError:
                    pass  # it lives, and is somebody else's
            with suppress(FileNotFoundError):  # somebody else swept it, or it took its place
                if gone or time.time() - stale.stat().st_mtime > STALE_S:
                    stale.unlink()


def _cause(error: Exception) -> str:
    """The system's own words; HDF5 wraps them in a page, or gives only their number."""
    error = error.__cause__ if isinstance(error, WriteError) and isinstance(error.__cause__, Exception) else error
    number = getattr(error, "errno", None) or next(iter(re.findall(r"errno = (\d+)", str(error))), None)
    return os.strerror(int(number)) if number else ascii(str(error)[:160])


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_output(path: Path, overwrite: bool, inputs: Iterable[str | Path] = ()) -> None:
    """Refuse an output that exists, or is an input or a folder, before anything is read."""
    try:
        path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        remedy = "check the folder, or choose another name"
        raise SocialxError(path, f"cannot be written ({error.strerror})", remedy) from None
    if path.is_dir():
        raise SocialxError(path, "a folder, not a file", "name a file in it")
    if path.exists():
        check_regular(path, "choose another output")
    if path.exists() and any(Path(name).exists() and path.samefile(name) for name in inputs):
        raise SocialxError(path, "is an input of this command", "choose another output")
    if overwrite and path.exists() and not os.access(path, os.W_OK):
        raise SocialxError(path, "read-only", "make it writable, or choose another output")
    if path.exists() and not overwrite:
        raise SocialxError(path, "exists already", f"add {Argument('overwrite', True)} to replace it")


def file_signature(path: Path) -> tuple[int, ...]:
    """What tells the content of a file from that of another one under the same name."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
