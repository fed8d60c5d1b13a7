"""NumPy files, .npy and .npz: read piece by piece, never unpickled.

T rows, N sensors, C channels, t rows in a piece.
"""

from __future__ import annotations

import math
import shutil
import struct
import tempfile
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

import numpy as np

from socialx.core.errors import SocialxError, sample
from socialx.files.store.head import NPY, ZIP, first_bytes, member_names

PIECE_BYTES = 1 << 23  # 8 MiB at once
ROW_BYTES = 1 << 28  # no network has rows this long, but a damaged or hostile header may
SMALL_BYTES = 1 << 20
NAMED = 10  # arrays that a message lists
DATA = "data"  # the usual name of the only array
ADVICE = "download it again"
PLAIN = "write it with numpy.save or numpy.savez_compressed"
ALONE = "write the one with the readings by itself with numpy.save, and convert that"
GRAPH = "a square symmetric matrix of 0 and 1, which is a graph of sensors and no readings"
# What zipfile and the file system raise over damaged files; NotImplementedError is a RuntimeError.
FAULTS = (OSError, EOFError, RuntimeError, ValueError, struct.error, zipfile.BadZipFile, zlib.error)
HEADER_FAULTS = (ValueError, TypeError, SyntaxError, KeyError, MemoryError, RecursionError, tokenize.TokenError)


@dataclass(frozen=True)
class Array:
    """A stored array; only the header has been read."""

    path: Path
    member: str | None  # the file inside a zip
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int = 0  # bytes before the first number
    fortran: bool = False  # columns are stored one after the other

    @property
    def row_bytes(self) -> int:
        """Bytes in a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def channels(self) -> int:
        """The number of channels: C for [T,N,C], 1 for [T,N]."""
        return self.shape[2] if len(self.shape) > 2 else 1

    def pieces(self) -> Generator[np.ndarray, None, None]:
        """Yield the array in pieces of consecutive rows [t, ...], at least one row and about 8 MiB each."""
        total, rows = self.shape[0], max(PIECE_BYTES // self.row_bytes, 1)
        if self.fortran:
            with self._columns() as stored:
                yield from (np.ascontiguousarray(stored[row : row + rows]) for row in range(0, total, rows))
            return
        with _stream(self.path, self.member) as (file, _):
            file.read(self.offset)
            for row in range(0, total, rows):
                count = min(rows, total - row)
                content = file.read(count * self.row_bytes)
                if len(content) < count * self.row_bytes:
                    raise _refusal(self.path, self.member, f"ends in rows {row + 1} to {row + count}", ADVICE)
                yield np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])

    def head(self, rows: int) -> np.ndarray:
        """Return the first ``rows`` rows; fewer where the array, or a piece of 8 MiB, ends before."""
        with closing(self.pieces()) as pieces:
            return next(pieces)[:rows]

    @contextmanager
    def _columns(self) -> Iterator[np.ndarray]:
        """Yield the whole array, stored column by column, as a memory map; a zip member is unpacked to disk first."""
        if self.member is None:
            yield np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order="F")
            return
        size = self.offset + self.shape[0] * self.row_bytes
        if 2 * size > shutil.disk_usage(tempfile.gettempdir()).free:
            problem = f"is stored column by column, and its {size:,} bytes are more than half of the free disk"
            raise _refusal(self.path, self.member, problem, "save it row by row: numpy.ascontiguousarray(array)")
        with tempfile.TemporaryFile() as file, _stream(self.path, self.member) as (packed, _):
            shutil.copyfileobj(packed, file)
            yield np.memmap(file, self.dtype, "r", self.offset, self.shape, order="F")


def open_array(path: Path, member: str | None = None) -> Array:
    """Open an .npy file, or the array ``member`` in an .npz or zip. Raises SocialxError for anything but numbers."""
    if not first_bytes(path, ADVICE).startswith(ZIP if member else NPY):
        raise SocialxError(path, f"the file is not {('an .npz or a zip' if member else 'an .npy')} file", PLAIN)
    array, size = _read_header(path, member and f"{member.removesuffix('.npy')}.npy")
    member, shape, dtype = array.member, array.shape, array.dtype
    expected = array.offset + math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        problem = "holds Python objects, and to unpickle those may run any code"
        raise _refusal(path, member, problem, "save it as numbers, numpy.save(name, array.astype('float32'))")
    if dtype.kind not in "fiu":
        raise _refusal(path, member, f"holds {dtype}, not numbers", PLAIN)
    if size != expected:
        raise _refusal(path, member, f"has {size} bytes, not the {expected} of its shape {shape}", ADVICE)
    if array.row_bytes > ROW_BYTES:
        raise _refusal(path, member, f"has rows of {array.row_bytes} bytes, shape {shape}", "put time first")
    return array


def array_names(path: Path) -> tuple[str, ...]:
    """Return the array names in an .npz or zip, with .npy removed; () for any other file."""
    with suppress(*FAULTS):
        if path.is_file():  # a pipe would be waited for
            with zipfile.ZipFile(path) as archive:
                return tuple(name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy"))
    return ()


def only_array(path: Path) -> Array:
    """Open the .npy file ``path``, or the single numeric array with 2 or 3 dimensions in the .npz ``path``."""
    if not first_bytes(path, ADVICE).startswith(ZIP):
        return open_array(path)
    arrays = {name: _read_header(path, f"{name}.npy")[0] for name in array_names(path)}
    numbers = {name: array for name, array in arrays.items() if array.dtype.kind in "fiu" and 0 not in array.shape}
    names = [name for name, array in numbers.items() if len(array.shape) in (2, 3)]
    if len(names) == 1:
        return open_array(path, names[0])
    kinds = f"{len(names)} arrays of numbers with 2 or 3 dimensions" if names else "no array of 2 or 3 dimensions"
    shapes = sample([f"{name} {array.shape}" for name, array in arrays.items()], NAMED)
    raise SocialxError(path, f"the file has {kinds} in it ({ascii(shapes)[1:-1]})", ALONE)


def refuse_arrays(path: Path) -> NoReturn:
    """Raise SocialxError for an unrecognised .npy, .npz or zip, and describe the content."""
    with suppress(*FAULTS), zipfile.ZipFile(path) as archive:
        names = member_names(archive)
        if len(names) > 1 and all(name.lower().endswith((".csv", ".txt", ".tsv")) for name in names):
            raise SocialxError(
                path, f"the zip has {len(names)} tables ({sample(names)})", "unpack it, and name the folder"
            )
    if not array_names(path):
        open_array(path, DATA if first_bytes(path, ADVICE).startswith(ZIP) else None)  # says what is wrong
    array = series(only_array(path))
    problem = f"the file has no known format, although it holds an array of shape {array.shape}"
    raise SocialxError(path, problem, "name the format npy if the numbers are readings and not z-scores or distances")


def read_small(path: Path, member: str) -> np.ndarray:
    """Read a whole array in the zip ``path``, such as a mean. Raises SocialxError for more than 1 MiB."""
    array = open_array(path, member)
    if math.prod(array.shape) * array.dtype.itemsize > SMALL_BYTES:
        raise _refusal(path, array.member, f"has shape {array.shape}, too large for what it stands for", ADVICE)
    with _stream(path, array.member) as (file, _):
        small: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        return small


def series(array: Array, *dimensions: int) -> Array:
    """Return ``array``; raise for a number of axes not in ``dimensions``, default 2 and 3, and for a sensor graph."""
    dimensions = dimensions or (2, 3)
    if len(array.shape) not in dimensions or not math.prod(array.shape):
        axes = {2: "[rows, sensors]", 3: "[rows, sensors, channels]"}
        names = " or ".join(axes[number] for number in dimensions)
        problem = f"has shape {array.shape}, not {names} and one of each at least"
        raise _refusal(array.path, array.member, problem, "name another file")
    if _is_graph(array):
        raise _refusal(array.path, array.member, f"is {GRAPH}", "name the file of the readings")
    return array


def _is_graph(array: Array) -> bool:
    """Return whether the array is an adjacency: a square symmetric matrix with entries 0 and 1."""
    size = array.shape[0]
    if size < 2 or array.shape[1] != size or array.channels > 1:
        return False
    links = []
    for piece in array.pieces():
        if not np.isin(piece, (0, 1)).all():
            return False
        links.append(piece.reshape(-1, size) == 1)
    matrix = np.concatenate(links)
    return bool((matrix == matrix.T).all())


def float32(values: np.ndarray) -> np.ndarray:
    """Return a C-ordered float32 copy; an overflow becomes inf, which the writer rejects."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(values, np.float32, order="C")


def _refusal(path: Path, member: str | None, problem: str, advice: str) -> SocialxError:
    """Return the error about a file, or its zip member; ``problem`` is a verb phrase, ``advice`` the remedy."""
    return SocialxError(path, f"{f'{member!a} in it' if member else 'the file'} {problem}", advice)


@contextmanager
def _stream(path: Path, member: str | None) -> Iterator[tuple[IO[bytes], int]]:
    """Yield an open file or zip member, and its size in bytes; damage becomes SocialxError."""
    try:
        if member is None:
            with path.open("rb") as file:
                yield file, path.stat().st_size
            return
        with zipfile.ZipFile(path) as archive:
            if member not in archive.namelist():
                members = sample(archive.namelist()) or "empty"
                raise SocialxError(path, f"there is no {member!a} in it ({members[:160]!a})", "name another file")
            info = archive.getinfo(member)
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _refusal(path, member, "is packed in a way that NumPy does not use", PLAIN)
            with archive.open(info) as packed:
                yield packed, info.file_size
    except FAULTS as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise SocialxError(path, f"the file is truncated or damaged ({reason!a})", ADVICE) from error


def _read_header(path: Path, member: str | None) -> tuple[Array, int]:
    """Return the array that the header of a file, or of a zip ``member``, declares, and the size in bytes."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with _stream(path, member) as (file, size):
        try:
            with warnings.catch_warnings():  # Python 2 wrote 12L for 12, and NumPy says so each time
                warnings.simplefilter("ignore")
                shape, fortran, dtype = readers[np.lib.format.read_magic(file)](file)
        except HEADER_FAULTS as error:
            raise _refusal(path, member, f"has a damaged .npy header ({type(error).__name__})", ADVICE) from error
        if min(shape, default=0) < 0:
            raise _refusal(path, member, f"has a damaged .npy header (shape {shape})", ADVICE)
        return Array(path, member, shape, dtype, file.tell(), fortran), size
