"""Opening the files that users name: what cannot be read becomes one line."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import h5py

from socialx.core.disk import WriteError
from socialx.core.errors import SocialxError
from socialx.files.store.head import HDF5, first_bytes

# A file of N bytes can honestly hold more: deflate packs 1,032 bytes into one at most, and what was never written takes
# no room.  16 MiB of these are 24 hours of 14,000 sensors.
PACKED_RATIO, UNWRITTEN_BYTES = 1100, 1 << 24
DESCRIBING_BYTES = 1 << 18  # 100 entries of vd_info take less than 2 KiB each, also in the oldest form of HDF5
INSIDE = "copy what it points to into this file"


@contextmanager
def open_hdf5(path: Path, advice: str, locking: bool | None = None) -> Iterator[h5py.File]:
    """Open for reading; what h5py raises for a damaged or hostile file, now or in the block, becomes one line.

    locking: False inside ``file_lock``, which holds the lock that HDF5 would ask for.

    HDF5 reports with OSError, RuntimeError, KeyError and ValueError, and a size that cannot be is an OverflowError.
    Types and dataspaces that NumPy does not have end in a TypeError, AttributeError or IndexError inside h5py.  Those
    three are also what a bug of socialx raises, so they keep their traceback if they come from anywhere else.
    """
    if not first_bytes(path, advice).startswith(HDF5):
        raise SocialxError(path, "not an HDF5 file", advice)
    try:
        with h5py.File(path, "r", locking=locking) as file:
            yield file
    except BlockingIOError:
        raise SocialxError(path, "another process is writing it", "wait until it is done") from None
    except MemoryError as error:
        raise SocialxError(path, f"more than fits into memory ({_words(error)})", advice) from error
    except (OSError, RuntimeError, KeyError, ValueError, OverflowError) as error:
        raise SocialxError(path, f"truncated or damaged HDF5 ({_words(error)})", advice) from error
    except (TypeError, AttributeError, IndexError) as error:
        if not _raised_by_h5py(error):
            raise
        raise SocialxError(path, f"HDF5 that cannot be read ({_words(error)})", advice) from error


@contextmanager
def writing(path: Path, mode: Literal["w", "r+"], libver: str | tuple[str, str]) -> Iterator[h5py.File]:
    """Open for writing a file that is thrown away where the block fails.

    HDF5 must never meet a full disk: after a write that fails it keeps the file open, tries again when the process
    ends, and crashes.  So the block calls ``reserve`` before it writes.

    Raises WriteFailed, which ``disk.replacing`` makes one line.
    """
    try:
        with h5py.File(path, mode, libver=libver) as file:
            reserve(file, 0)
            yield file
            file.flush()
        _cut(path)
    except (OSError, RuntimeError) as error:  # h5py reports a full disk as either
        raise WriteError from error


def reserve(file: h5py.File, size: int) -> None:
    """Have the disk keep room for ``size`` more bytes of a file of ``writing``, and 256 KiB for what describes them.

    Raises OSError where it has no room.  The file is longer than its content until ``writing`` cuts it.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.id.get_vfd_handle(), 0, file.id.get_filesize() + size + DESCRIBING_BYTES)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):  # a file system that keeps no room
                raise


def packed_bytes(size: int) -> int:
    """How many bytes so many take at most when they are packed: what cannot be compressed grows a little."""
    return size + size // 64


def _cut(path: Path) -> None:
    """Cut what ``reserve`` kept behind the content; where that ends, the superblock of HDF5's specification says."""
    with path.open("r+b") as file:
        head = file.read(64)
        size_of_offsets, end = {0: (13, 40), 1: (13, 44), 2: (9, 28), 3: (9, 28)}.get(head[8], (0, 0))
        if end and head[size_of_offsets] == 8:
            file.truncate(int.from_bytes(head[end : end + 8], "little"))


def _words(error: BaseException) -> str:
    return ascii(str(error)[:160])


def _raised_by_h5py(error: BaseException) -> bool:
    """Whether the innermost function of the traceback is one of h5py."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "h5py"


def check_links(path: Path, file: h5py.File, names: Iterable[str]) -> None:
    """Refuse soft and external links at these members of the root, and at all that is in them.

    What is behind an external link is in another file: nobody named that one, and it must not be written.
    """
    for name in names:
        link = file.get(name, getlink=True)
        if link is None:
            continue
        if not isinstance(link, h5py.HardLink):
            raise _link_error(path, file, name)
        if isinstance(group := file[name], h5py.Group):
            found = group.id.links.visit(_not_hard, info=True)
            if found is not None:
                raise _link_error(path, file, f"{name}/{found.decode('utf-8', 'replace')}")


def _not_hard(name: bytes, info: h5py.h5l.LinkInfo) -> bytes | None:
    return None if info.type == h5py.h5l.TYPE_HARD else name


def _link_error(path: Path, file: h5py.File, name: str) -> SocialxError:
    try:
        link = file.get(name, getlink=True)
    except (TypeError, KeyError):  # of a type that a program made up, or of a name that is no text
        link = None
    if isinstance(link, h5py.ExternalLink):
        return SocialxError(path, f"{name} is a link to {link.path} in another file, {link.filename}", INSIDE)
    what = f"a link to {link.path}" if isinstance(link, h5py.SoftLink) else "a link of an unknown kind"
    return SocialxError(path, f"{name} is {what}, not the data itself", INSIDE)


def check_dataset(path: Path, dataset: h5py.Dataset, advice: str) -> None:
    """Refuse a dataset that keeps its values in another place, or declares more than the file can hold."""
    if dataset.is_virtual or dataset.external:
        others = [source.file_name for source in dataset.virtual_sources()] if dataset.is_virtual else []
        names = ", ".join(dict.fromkeys(others or [name for name, *_ in dataset.external or []]))
        raise SocialxError(path, f"{dataset.name} has its values in other files ({names[:160]})", INSIDE)
    if dataset.shape is None:
        raise SocialxError(path, f"{dataset.name} is empty, it has not even a shape", advice)
    shape = dataset.shape if dataset.chunks is None else tuple(map(max, dataset.shape, dataset.chunks))
    declared = math.prod(shape) * dataset.dtype.itemsize
    stored = min(dataset.id.get_storage_size(), path.stat().st_size)
    if declared > PACKED_RATIO * stored + UNWRITTEN_BYTES:
        found = (
            f"{dataset.name} declares {dataset.dtype} {dataset.shape}, which its {stored:,} stored bytes cannot hold"
        )
        raise SocialxError(path, found, advice)
