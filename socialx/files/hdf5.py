"""Opening the files that users name: what cannot be read becomes one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
        raise SocialxError(path, "no such file", f"check the path, or {advice}") from None
    except IsADirectoryError:
        raise SocialxError(path, "a folder", "name a file in it") from None
    except OSError as error:
        raise SocialxError(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
    if not head:
        raise SocialxError(path, "the file is empty", advice)
    if head.startswith(b"version https://git-lfs"):
        raise SocialxError(path, "a Git-LFS pointer, not the data", "git lfs pull, or download it again")
    return head


@contextmanager
def open_hdf5(path: Path, advice: str, locking: bool | None = None) -> Iterator[h5py.File]:
    """Open for reading; whatever HDF5 finds broken, now or while the block reads, becomes one line.

    locking: False inside ``exclusive``, which holds the lock that HDF5 would ask for.
    """
    if not first_bytes(path, advice).startswith(HDF5_SIGNATURE):
        raise SocialxError(path, "not an HDF5 file", advice)
    try:
        with h5py.File(path, "r", locking=locking) as file:
            yield file
    except BlockingIOError:
        raise SocialxError(path, "another process is writing it", "wait until it is done") from None
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise SocialxError(path, f"truncated or damaged HDF5 ({str(error)[:160]!a})", advice) from error
