"""Atomic file writes and file locks."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from socialx.core.errors import Argument, Message, SocialxError
from socialx.core.progress import note

# Older versions wrote names without a machine; such a file is removed by age alone.
OWNER = r"\.(?:(?P<machine>[0-9a-f]{8})-)?(?P<process>[0-9]{1,9})\.tmp"
STALE_S = 7 * 86_400  # longer than any write takes
LOOK_S = 0.02  # between two checks whether a file is free: successive readers leave short gaps


FORMULA = re.compile(r"[=@\t\r]|[+-](?![0-9.]+$)")  # a signed plain number is safe


def as_cell(text: str) -> str:
    """Return text safe for a spreadsheet cell: a formula gets a leading apostrophe."""
    return f"'{text}" if FORMULA.match(text) else text


class WriteError(Exception):
    """Failed write, distinct from OSError, so that readers in the block recognise only read errors."""


def check_name(path: Path) -> None:
    """Raise SocialxError for a path that the system cannot look up, such as a name too long; an absent path passes."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> SocialxError:
    """Return the error for a file that the system does not open."""
    problem = f"the file cannot be read ({error.strerror})"
    return SocialxError("file.unreadable", path, problem, "check the path and its permissions")


def check_regular(path: Path, remedy: str = "save the content as a file and name the file") -> None:
    """Raise SocialxError, with ``remedy``, for a device, pipe or socket, OSError if absent. A file or folder passes."""
    kind = path.stat().st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise SocialxError("file.special", path, "the path names a device, a pipe or a socket", remedy)


def read_text(path: Path, most: int) -> str:
    """Return a file's UTF-8 text. Raises OSError if unreadable, ValueError above ``most`` bytes or without UTF-8."""
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"longer than {most >> 10:,} KiB")
    return content.decode("utf-8")


@contextmanager
def reserved_file(size: int) -> Iterator[IO[bytes]]:
    """Yield an unnamed temporary file with ``size`` bytes on the disk; SocialxError where the folder lacks them."""
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a sparse file would end the process on a full disk
            yield file
    except OSError as error:
        problem = f"the folder for temporary files lacks {size / (1 << 30):.1f} GiB ({error.strerror})"
        remedy = f"set TMPDIR to a folder with space, or use {Argument('data.days', 'N')}"
        raise SocialxError("data.no-space", tempfile.gettempdir(), problem, remedy) from None


@contextmanager
def file_lock(path: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Lock ``path`` against other processes, HDF5 included, during the block; wait up to wait_s, with a note."""
    until, noted = time.monotonic() + wait_s, False
    while (handle := _try_lock(path)) is None:
        if time.monotonic() >= until:
            problem = "another process has the file open"
            raise SocialxError("file.busy", path, problem, "wait until it is done, then try again")
        if not noted:
            note(Message("file.waiting", path, f"another process has the file open, which may take up to {wait_s:g} s"))
        noted = True
        time.sleep(LOOK_S)
    try:
        yield
    finally:
        os.close(handle)  # also unlocks


def _try_lock(path: Path) -> int | None:
    """Return a locking descriptor, or ``None`` while another process holds or has just replaced the file."""
    try:
        check_regular(path)  # opening a pipe would block
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise SocialxError("file.missing", path, "the file does not exist", "check the path") from None
    except OSError as error:
        raise unreadable(path, error) from None
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == path.stat().st_ino:  # same file as at the open call
            return handle
    os.close(handle)
    return None


@contextmanager
def folder_for(folder: Path) -> Iterator[None]:
    """Make a folder for the block; if the block fails, remove the new folders again where empty."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for parent in missing:
            with suppress(OSError):  # the folder has content, or was never made
                parent.rmdir()
        raise


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` on success and is removed on failure.

    A link stays and the link target is replaced. A missing folder is made; ``clean_folder`` cleans an existing folder.
    """
    target = Path(os.path.realpath(path))
    temporary = temporary_for(target, os.getpid())
    try:
        if target.exists():
            check_regular(target, "choose another output")  # root could replace /dev/null
        with folder_for(target.parent):
            try:
                clean_folder(target.parent, target.name)
                yield temporary
                if target.exists():
                    shutil.copymode(target, temporary)
                _sync(temporary)
                temporary.replace(target)
                _sync(target.parent)
            finally:
                with suppress(OSError):  # the cause of a failed write may also prevent removal
                    temporary.unlink(missing_ok=True)
    except (OSError, RuntimeError, WriteError) as error:  # torch and h5py report a full disk as either
        problem = f"the file cannot be written ({_cause(error)})"
        raise SocialxError("output.failed", path, problem, "check the folder and its space") from error


def temporary_for(target: Path, process: int) -> Path:
    """Return the temporary path for ``target``, by process id: ``.NAME.MACHINE-PROCESS.tmp`` in the same folder."""
    return target.with_name(f".{target.name}.{_machine()}-{process}.tmp")


def _machine() -> str:
    """Return 8 hexadecimal digits from the host name: process ids may repeat across machines."""
    return hashlib.sha256(socket.gethostname().encode("utf-8", "surrogateescape")).hexdigest()[:8]


def clean_folder(folder: Path, name: str | None = None) -> None:
    """Remove abandoned temporary files for a file name, or for all names, from a folder.

    Removes files from dead processes on this machine, and files unchanged for a week: remote processes are invisible.
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
                    pass  # a live process with another owner
            with suppress(FileNotFoundError):  # another process removed or renamed the file
                if gone or time.time() - stale.stat().st_mtime > STALE_S:
                    stale.unlink()


def _cause(error: Exception) -> str:
    """Return the system's text for a failed write, such as a full disk, also from HDF5's long messages."""
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
    """Raise SocialxError, before reading starts, if an output is a folder, an input, or exists without overwrite."""
    try:
        path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        remedy = "check the folder, or choose another name"
        raise SocialxError("output.failed", path, f"the file cannot be written ({error.strerror})", remedy) from None
    if path.is_dir():
        raise SocialxError("output.folder", path, "the output is a folder, not a file", "name a file in the folder")
    if path.exists():
        check_regular(path, "choose another output")
    if path.exists() and any(Path(name).exists() and path.samefile(name) for name in inputs):
        raise SocialxError("output.input", path, "the output is an input of this command", "choose another output")
    if overwrite and path.exists() and not os.access(path, os.W_OK):
        raise SocialxError("output.locked", path, "the file is read-only", "make it writable, or choose another output")
    if path.exists() and not overwrite:
        problem = "the file exists already"
        raise SocialxError("output.exists", path, problem, f"add {Argument('overwrite', True)} to replace it")


def file_signature(path: Path) -> tuple[int, ...]:
    """Return device, inode, size and modification time: a changed file has a new signature."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
