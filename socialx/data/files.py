"""Opening the files that users name, and replacing files whole."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py

from socialx.errors import SocialxError

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def first_bytes(path: Path, advice: str) -> bytes:
    """The head of a file that a user named; refuses what is missing, empty, a folder or a Git-LFS pointer."""
    try:
        with path.open("rb") as file:
            head = file.read(256)
    except FileNotFoundError:
        raise SocialxError(f"{path}: no such file: check the path, or {advice}") from None
    except IsADirectoryError:
        raise SocialxError(f"{path}: a folder: name a file in it") from None
    except OSError as error:
        raise SocialxError(f"{path}: cannot be read ({error.strerror}): check the path and its permissions") from None
    if not head:
        raise SocialxError(f"{path}: the file is empty: {advice}")
    if head.startswith(b"version https://git-lfs"):
        raise SocialxError(f"{path}: a Git-LFS pointer, not the data: git lfs pull, or download it again")
    return head


@contextmanager
def open_hdf5(path: Path, advice: str, locking: bool | None = None) -> Iterator[h5py.File]:
    """Open for reading; whatever HDF5 finds broken, now or while the block reads, becomes one line.

    locking: False inside ``exclusive``, which holds the lock that HDF5 would ask for.
    """
    if not first_bytes(path, advice).startswith(HDF5_SIGNATURE):
        raise SocialxError(f"{path}: not an HDF5 file: {advice}")
    try:
        with h5py.File(path, "r", locking=locking) as file:
            yield file
    except BlockingIOError:
        raise SocialxError(f"{path}: another process is writing it: wait until it is done") from None
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise SocialxError(f"{path}: truncated or damaged HDF5 ({str(error)[:160]!a}): {advice}") from error


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keep everybody else who locks a file, HDF5 included, out of ``path`` until the block ends."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise SocialxError(f"{path}: no such file: check the path") from None
    except OSError as error:
        raise SocialxError(f"{path}: cannot be read ({error.strerror}): check the path and its permissions") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino != path.stat().st_ino:  # replaced between the two calls: what is locked is gone
            raise BlockingIOError
        yield
    except BlockingIOError:
        raise SocialxError(f"{path}: another process has it open: wait until it is done, then try again") from None
    finally:
        os.close(handle)  # which also unlocks it


@contextmanager
def folder_for(folder: Path) -> Iterator[None]:
    """A folder to write in, made if it is missing; those made go again where the block fails and leaves them empty."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for each in made:
            with suppress(OSError):  # it is not empty, or never came to be
                each.rmdir()
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well, and vanishes otherwise.

    A link stays, what it points to is replaced.  The folder is made if it is missing.  What a killed process left here
    is swept away first.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with folder_for(target.parent):
            try:
                _sweep(target)
                yield temporary
                if target.exists():
                    shutil.copymode(target, temporary)
                _sync(temporary)
                temporary.replace(target)
                _sync(target.parent)
            finally:
                with suppress(OSError):  # whatever kept it from being written may keep it from being removed
                    temporary.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:  # h5py reports a full disk as either
        raise SocialxError(f"{path}: cannot be written ({_cause(error)}): check the folder and its space") from error


def _sweep(target: Path) -> None:
    """Remove what killed processes that were to replace ``target`` left beside it."""
    for stale in target.parent.iterdir():
        if owner := re.fullmatch(rf"\.{re.escape(target.name)}\.([0-9]{{1,9}})\.tmp", stale.name):
            try:
                os.kill(int(owner[1]), 0)
            except ProcessLookupError:
                stale.unlink(missing_ok=True)
            except PermissionError:
                continue  # somebody else's process, so it lives


def _cause(error: Exception) -> str:
    """The system's own words; HDF5 wraps them in a page, or gives only their number."""
    number = getattr(error, "errno", None) or next(iter(re.findall(r"errno = (\d+)", str(error))), None)
    return os.strerror(int(number)) if number else ascii(str(error)[:160])


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_output(path: Path, overwrite: bool, inputs: tuple[str, ...] = ()) -> None:
    """Refuse an output that exists, or is an input or a folder, before anything is read."""
    if path.is_dir():
        raise SocialxError(f"{path}: a folder, not a file: name a file in it")
    if path.exists() and any(Path(name).exists() and path.samefile(name) for name in inputs):
        raise SocialxError(f"{path}: is an input of this conversion: choose another output")
    if path.exists() and not overwrite:
        raise SocialxError(f"{path}: exists already: add --overwrite to replace it")
