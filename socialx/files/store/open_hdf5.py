"""Open user files as HDF5 and turn read errors into a line."""

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
    """Open a file for reading; h5py's errors for damaged or hostile files become SocialxError, also inside the block.

    advice: the remedy in errors. locking: False inside ``file_lock``, which already holds HDF5's lock.

    HDF5 raises OSError, RuntimeError, KeyError and ValueError, and OverflowError for impossible sizes. Types and
    dataspaces that NumPy lacks raise TypeError, AttributeError or IndexError inside h5py; raised elsewhere, the last
    three are bugs and keep their traceback.
    """
    if not first_bytes(path, advice).startswith(HDF5):
        raise SocialxError("hdf5.not", path, "this is not an HDF5 file", advice)
    try:
        with h5py.File(path, "r", locking=locking) as file:
            yield file
    except BlockingIOError:
        raise SocialxError("hdf5.busy", path, "another process is writing it", "wait until it is done") from None
    except MemoryError as error:
        raise SocialxError("hdf5.no-memory", path, f"more than fits into memory ({_words(error)})", advice) from error
    except (OSError, RuntimeError, KeyError, ValueError, OverflowError) as error:
        raise SocialxError("hdf5.torn", path, f"this is truncated or damaged HDF5 ({_words(error)})", advice) from error
    except (TypeError, AttributeError, IndexError) as error:
        if not _raised_by_h5py(error):
            raise
        raise SocialxError("hdf5.other", path, f"this is HDF5 that cannot be read ({_words(error)})", advice) from error


@contextmanager
def open_for_writing(path: Path, mode: Literal["w", "r+"], libver: str | tuple[str, str]) -> Iterator[h5py.File]:
    """Open for writing a file that is discarded where the block fails.

    HDF5 must never meet a full disk: after a failed write HDF5 keeps the file open, retries at exit, and crashes. So
    the block calls ``reserve`` before writing.

    Raises WriteError, which ``disk.atomic_write`` turns into a SocialxError.
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
    """Reserve disk space for ``size`` more bytes and 256 KiB of HDF5 structures.

    Raises OSError on a full disk. The file stays longer than its content until ``open_for_writing`` truncates.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.id.get_vfd_handle(), 0, file.id.get_filesize() + size + DESCRIBING_BYTES)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):  # a file system that keeps no room
                raise


def packed_bytes(size: int) -> int:
    """Return an upper bound for the compressed size of ``size`` bytes: incompressible data grow slightly."""
    return size + size // 64


def _cut(path: Path) -> None:
    """Truncate reserved space behind the content end given in the HDF5 superblock (HDF5 specification)."""
    with path.open("r+b") as file:
        head = file.read(64)
        size_of_offsets, end = {0: (13, 40), 1: (13, 44), 2: (9, 28), 3: (9, 28)}.get(head[8], (0, 0))
        if end and head[size_of_offsets] == 8:
            file.truncate(int.from_bytes(head[end : end + 8], "little"))


def _words(error: BaseException) -> str:
    return ascii(str(error)[:160])


def _raised_by_h5py(error: BaseException) -> bool:
    """Return whether the innermost frame in the traceback belongs to h5py."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "h5py"


def check_links(path: Path, file: h5py.File, names: Iterable[str]) -> None:
    """Raise SocialxError for soft and external links among these root members and their content.

    An external link leads to another file, which the user never named and socialx must never write.
    """
    for name in names:
        link = file.get(name, getlink=True)
        if link is None:
            continue
        if not isinstance(link, h5py.HardLink):
            raise _link_error(path, file, name)
        if isinstance(group := file[name], h5py.Group):
            linked = group.id.links.visit(lambda name, to: name if to.type != h5py.h5l.TYPE_HARD else None, info=True)
            if linked is not None:
                raise _link_error(path, file, f"{name}/{linked.decode('utf-8', 'replace')}")


def _link_error(path: Path, file: h5py.File, name: str) -> SocialxError:
    """Return the error for a link called ``name``, with the link's target where known."""
    try:
        link = file.get(name, getlink=True)
    except (TypeError, KeyError):  # of a type that a program made up, or of a name that is no text
        link = None
    if isinstance(link, h5py.ExternalLink):
        return SocialxError("hdf5.linked", path, f"{name} is a link to {link.path} in {link.filename}", INSIDE)
    problem = f"a link to {link.path}" if isinstance(link, h5py.SoftLink) else "a link of an unknown kind"
    return SocialxError("hdf5.link", path, f"{name} is {problem}, not the data itself", INSIDE)


def check_dataset(path: Path, dataset: h5py.Dataset, advice: str) -> None:
    """Raise SocialxError for values in other files, and a declared size beyond the file; ``advice``: the remedy."""
    if dataset.is_virtual or dataset.external:
        others = [source.file_name for source in dataset.virtual_sources()] if dataset.is_virtual else []
        names = ", ".join(dict.fromkeys(others or [name for name, *_ in dataset.external or []]))
        raise SocialxError("hdf5.apart", path, f"{dataset.name} has its values in other files ({names[:160]})", INSIDE)
    if dataset.shape is None:
        raise SocialxError("hdf5.no-shape", path, f"{dataset.name} is empty, it has not even a shape", advice)
    shape = dataset.shape if dataset.chunks is None else tuple(map(max, dataset.shape, dataset.chunks))
    declared = math.prod(shape) * dataset.dtype.itemsize
    stored = min(dataset.id.get_storage_size(), path.stat().st_size)
    if declared > PACKED_RATIO * stored + UNWRITTEN_BYTES:
        kind = f"{dataset.dtype} {dataset.shape}"
        problem = f"{dataset.name} declares {kind}, which its {stored:,} stored bytes cannot hold"
        raise SocialxError("hdf5.declares-more", path, problem, advice)
