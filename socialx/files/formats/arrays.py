"""NumPy's own files, .npy and .npz: read piece by piece, never unpickled; and what readers of such arrays share.

T rows, N sensors, C channels, t rows of one piece.
"""

from __future__ import annotations

import math
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NoReturn

import numpy as np

from socialx.errors import Argument, SettingsError, SocialxError, sample
from socialx.files.convert_options import Request
from socialx.files.file_head import NPY, ZIP, FileHead, first_bytes, members_of
from socialx.files.quantities import QUANTITIES

PIECE_BYTES = 1 << 23  # 8 MiB at once
ROW_BYTES = 1 << 28  # no network has rows this long, but a damaged or hostile header may
SMALL_BYTES = 1 << 20
COLUMNS_BYTES = 1 << 27  # 128 MiB of rows at once, of an array whose columns are packed one after the other
NAMED = 10  # arrays that a message lists
DATA = "data"  # the usual name of the only array
ADVICE = "download it again"
PLAIN = "write it with numpy.save or numpy.savez_compressed"
ROWS = "save it row by row, with numpy.ascontiguousarray"
ALONE = "write the one with the readings by itself with numpy.save, and convert that"
# What zipfile and the file system raise over damaged files; NotImplementedError is a RuntimeError.
FAULTS = (OSError, EOFError, RuntimeError, ValueError, struct.error, zipfile.BadZipFile, zlib.error)
HEADER_FAULTS = (ValueError, TypeError, SyntaxError, KeyError, MemoryError, RecursionError, tokenize.TokenError)


@dataclass(frozen=True)
class Array:
    """Numbers in a file, of which only the header has been read."""

    path: Path
    member: str | None  # the file inside a zip
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int = 0  # bytes before the first number
    fortran: bool = False  # columns are stored one after the other

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def piece_rows(self) -> int:
        """Rows that are about 8 MiB, and at least one."""
        return max(PIECE_BYTES // self.row_bytes, 1)

    def pieces(self, rows: int | None = None) -> Generator[np.ndarray, None, None]:
        """Consecutive rows [t, ...], about 8 MiB and at least one row at once, or ``rows`` rows."""
        if not self.row_bytes:
            return
        rows = rows or self.piece_rows
        if self.fortran and self.member:
            many = max(COLUMNS_BYTES // self.row_bytes // rows, 1) * rows
            for first in range(0, self.shape[0], many):
                part = self._packed_columns(first, min(many, self.shape[0] - first))
                yield from (np.ascontiguousarray(part[row : row + rows]) for row in range(0, len(part), rows))
            return
        if self.fortran:
            whole = np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order="F")
            yield from (np.ascontiguousarray(whole[row : row + rows]) for row in range(0, len(whole), rows))
            return
        with _stream(self.path, self.member) as (file, _):
            file.read(self.offset)
            for row in range(0, self.shape[0], rows):
                size = min(rows, self.shape[0] - row) * self.row_bytes
                piece = file.read(size)
                if len(piece) < size:
                    at = row + len(piece) // self.row_bytes + 1
                    raise _refusal(self.path, self.member, f"ends in row {at} of {self.shape[0]}", ADVICE)
                yield np.frombuffer(piece, self.dtype).reshape(-1, *self.shape[1:])

    def _packed_columns(self, first: int, count: int) -> np.ndarray:
        """``count`` rows from ``first`` on of columns in a zip, which are unpacked whole, one after the other."""
        size, columns = self.shape[0] * self.dtype.itemsize, math.prod(self.shape[1:])
        part = np.empty((columns, count), self.dtype)
        with _stream(self.path, self.member) as (file, _):
            file.read(self.offset)
            for column in range(columns):
                packed = file.read(size)
                if len(packed) < size:
                    raise _refusal(self.path, self.member, f"ends in column {column + 1} of {columns}", ADVICE)
                part[column] = np.frombuffer(packed, self.dtype)[first : first + count]
            file.read(1)  # zipfile compares the checksum at the end
        return part.reshape(*self.shape[:0:-1], count).T

    def head(self, rows: int) -> np.ndarray:
        """At most the first ``rows`` rows, and never more than a piece."""
        rows = min(rows, self.piece_rows, self.shape[0])
        if self.fortran and self.member:
            return np.ascontiguousarray(self._packed_columns(0, rows))
        with closing(self.pieces(rows)) as pieces:
            return next(pieces)


def open_array(path: Path, member: str | None = None) -> Array:
    """The .npy file ``path``, or the array ``member`` of the .npz or zip ``path``; refuses all but plain numbers."""
    if not first_bytes(path, ADVICE).startswith(ZIP if member else NPY):
        raise SocialxError(path, f"not {('an .npz or a zip' if member else 'an .npy')} file", PLAIN)
    if member:
        member = f"{member.removesuffix('.npy')}.npy"
    with _stream(path, member) as (file, size):
        shape, fortran, dtype = _header(path, member, file)
        offset = file.tell()
    if dtype.hasobject:
        found = "holds Python objects, and to unpickle those may run any code"
        raise _refusal(path, member, found, "save it as numbers, numpy.save(name, array.astype('float32'))")
    if dtype.kind not in "fiu":
        raise _refusal(path, member, f"holds {dtype}, not numbers", PLAIN)
    if member and fortran and shape and shape[0] * dtype.itemsize > ROW_BYTES:
        raise _refusal(path, member, f"is stored column by column, too long for memory, shape {shape}", ROWS)
    expected = offset + math.prod(shape) * dtype.itemsize
    if size != expected:
        raise _refusal(path, member, f"has {size} bytes, not the {expected} of its shape {shape}", ADVICE)
    array = Array(path, member, shape, dtype, offset, fortran)
    if array.row_bytes > ROW_BYTES:
        raise _refusal(path, member, f"has rows of {array.row_bytes} bytes, shape {shape}", "put time first")
    return array


def raw_array(path: Path, shape: tuple[int, ...], dtype: str) -> Array:
    """A file of bare numbers, its shape said elsewhere."""
    first_bytes(path, ADVICE)
    array = Array(path, None, shape, np.dtype(dtype))
    size, expected = path.stat().st_size, math.prod(shape) * array.dtype.itemsize
    if size != expected:
        raise SocialxError(path, f"has {size} bytes, not the {expected} of its shape {shape}", ADVICE)
    return array


def array_names(path: Path) -> tuple[str, ...]:
    """The arrays in an .npz or zip, without .npy; () for whatever is no zip."""
    if not path.is_file():  # a pipe would be waited for
        return ()
    try:
        with zipfile.ZipFile(path) as archive:
            return tuple(name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy"))
    except FAULTS:
        return ()


def only_array(path: Path) -> Array:
    """The .npy file ``path``, or the only array of numbers with 2 or 3 dimensions in the .npz ``path``."""
    if not first_bytes(path, ADVICE).startswith(ZIP):
        return open_array(path)
    shapes, right = [], []
    for name in array_names(path):
        with _stream(path, f"{name}.npy") as (file, _):
            shape, _, dtype = _header(path, f"{name}.npy", file)
        shapes.append(f"{name} {shape}")
        if dtype.kind in "fiu" and len(shape) in (2, 3) and 0 not in shape:
            right.append(name)
    if len(right) == 1:
        return open_array(path, right[0])
    found = f"{len(right)} arrays of numbers with 2 or 3 dimensions" if right else "no array of 2 or 3 dimensions"
    raise SocialxError(path, f"{found} in it ({ascii(sample(shapes, NAMED))[1:-1]})", ALONE)


def refuse_arrays(path: Path) -> NoReturn:
    """Raise for an .npy, .npz or zip that no format recognises, with what is in it."""
    with suppress(*FAULTS), zipfile.ZipFile(path) as archive:
        names = members_of(archive)
        if len(names) > 1 and all(name.lower().endswith((".csv", ".txt", ".tsv")) for name in names):
            raise SocialxError(path, f"{len(names)} tables in it ({sample(names)})", "unpack it, and name the folder")
    if not array_names(path):
        open_array(path, DATA if first_bytes(path, ADVICE).startswith(ZIP) else None)  # says what is wrong
    array = series(only_array(path), 2, 3)
    found = f"no known format, although it holds an array of shape {array.shape}"
    raise SocialxError(path, found, "name the format npy if those are readings and not z-scores or distances")


def read_small(path: Path, member: str) -> np.ndarray:
    """A whole array of a zip, such as a mean or offsets: at most 1 MB."""
    array = open_array(path, member)
    size = math.prod(array.shape) * array.dtype.itemsize
    if size > SMALL_BYTES:
        raise _refusal(path, array.member, f"has shape {array.shape}, too large for what it stands for", ADVICE)
    with _stream(path, array.member) as (file, _):
        values = np.frombuffer(file.read()[array.offset :], array.dtype)
        return values.reshape(array.shape, order="F" if array.fortran else "C")


def series(array: Array, *dimensions: int) -> Array:
    """``array`` itself, if it has one of these numbers of dimensions and is not empty."""
    if len(array.shape) not in dimensions or not math.prod(array.shape):
        wanted = {2: "[rows, sensors]", 3: "[rows, sensors, channels]", 4: "[windows, rows, sensors, channels]"}
        names = " or ".join(wanted[number] for number in dimensions)
        found = f"has shape {array.shape}, not {names} and one of each at least"
        raise _refusal(array.path, array.member, found, "name another file")
    return array


def float32(values: np.ndarray) -> np.ndarray:
    """A copy in the form of a block's speeds; what is too large becomes inf, which the writer refuses."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(values, np.float32, order="C")


def inside(path: Path, *names: str) -> Path:
    """The first of ``names`` that is in the folder ``path``; ``path`` itself where none is, or it is a file."""
    with suppress(OSError):  # a folder that may not be entered
        return next((path / name for name in names if (path / name).is_file()), path)
    return path


def quiet(look: Callable[[Path], str | None]) -> Callable[[FileHead], str | None]:
    """``look`` at what may hold arrays, with None for a refusal: to be another kind of file is no fault."""

    def recognise(head: FileHead) -> str | None:
        with suppress(SocialxError, OSError):
            return look(head.path) if head.kind in ("npy", "zip", "folder") else None
        return None

    return recognise


def pick_channel(request: Request, count: int, names: tuple[str, ...] = (), default: int | None = None) -> int:
    """The number of the channel that a user asks for by name or number, from 0; ``default`` where none is asked for."""
    numbers = f"0 to {count - 1}" if count > 1 else "0"
    if request.channel is None:
        if default is None:
            raise SettingsError(
                request.data, f"{count} channels without names", f"add {Argument('channel')} with {numbers}"
            )
        return default
    text = request.channel.strip().lower()
    if text in names:
        return names.index(text)
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text) < count:
        return int(text)
    there = " or ".join([", ".join(names), numbers] if names else [numbers])
    raise SettingsError(Argument("channel", request.channel[:40]), f"not in {request.data}", f"choose {there}")


def pick_channels(request: Request, count: int, names: tuple[str, ...] = ()) -> dict[str, int]:
    """The numbers of the channels by what they hold, as ``flow,speed`` or ``flow=0,speed=2`` asks; else none.

    names: of the channels, where they are known.
    """
    if not re.search("[,=]", request.channel or ""):
        return {}
    found: dict[str, int] = {}
    for each in (request.channel or "").split(","):
        name, _, number = each.partition("=")
        quantity = QUANTITIES.get(name.strip().lower())
        if quantity is None or quantity in found or not (names or number):
            example = f"for example {Argument('channel', 'flow,speed' if names else 'flow=0,speed=1')}"
            raise SettingsError(Argument("channel", request.channel), "not a quantity for each channel", example)
        found[quantity] = pick_channel(replace(request, channel=number or name), count, names)
    return found


def _refusal(path: Path, member: str | None, found: str, advice: str) -> SocialxError:
    return SocialxError(path, f"{f'{member!a} in it' if member else 'it'} {found}", advice)


@contextmanager
def _stream(path: Path, member: str | None) -> Iterator[tuple[IO[bytes], int]]:
    """The bytes of a file, or of one file in a zip, and their number."""
    try:
        if member is None:
            with path.open("rb") as file:
                yield file, path.stat().st_size
            return
        with zipfile.ZipFile(path) as archive:
            if member not in archive.namelist():
                found = sample(archive.namelist()) or "empty"
                raise SocialxError(path, f"no {member!a} in it ({found[:160]!a})", "name another file")
            info = archive.getinfo(member)
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _refusal(path, member, "is packed in a way that NumPy does not use", PLAIN)
            with archive.open(info) as packed:
                yield packed, info.file_size
    except FAULTS as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise SocialxError(path, f"truncated or damaged ({reason!a})", ADVICE) from error


def _header(path: Path, member: str | None, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether it is stored column by column, and dtype."""
    try:
        with warnings.catch_warnings():  # Python 2 wrote 12L for 12, and NumPy says so each time
            warnings.simplefilter("ignore")
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, fortran, dtype = read(file)
    except HEADER_FAULTS as error:
        raise _refusal(path, member, f"has a damaged .npy header ({type(error).__name__})", ADVICE) from error
    if min(shape, default=0) < 0:
        raise _refusal(path, member, f"has a damaged .npy header (shape {shape})", ADVICE)
    return shape, fortran, dtype
