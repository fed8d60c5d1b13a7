"""One NumPy array, .npy or .npz, never unpickled. T rows, N sensors, C channels, t rows in a piece."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, in_short, sample
from socialx.files.sources.contents import Contents, Format, check_memory, read_blocks, start_seconds
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.head import ZIP, FileHead, first_bytes
from socialx.files.store.quantities import KMH, QUANTITIES, SPEED

ROW_BYTES = 1 << 28  # no network has rows this long, but a damaged or hostile header may
ADVICE = "download it again"
ALONE = "write the one with the readings by itself with numpy.save, or see docs/how-to/recipes.md"
# What NumPy, zipfile and the file system raise over damaged files; NotImplementedError is a RuntimeError.
FAULTS = (
    *(OSError, EOFError, RuntimeError, ValueError, TypeError, SyntaxError, KeyError, MemoryError, OverflowError),
    *(struct.error, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)


def array_names(path: Path) -> tuple[str, ...]:
    """Return the array names in an .npz or zip, with .npy removed; () for any other file."""
    with suppress(*FAULTS):
        if path.is_file():  # a pipe would be waited for
            with zipfile.ZipFile(path) as archive:
                return tuple(name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy"))
    return ()


def open_array(path: Path) -> np.ndarray:
    """Return the numbers [T,N] or [T,N,C] in an .npy, mapped from disk, or in an .npz, loaded.

    Raises SocialxError for several arrays, other shapes, other types, and a graph.
    """
    member = _member(path) if first_bytes(path, ADVICE).startswith(ZIP) else ""
    try:
        if member:
            with zipfile.ZipFile(path) as archive, archive.open(f"{member}.npy") as file:
                size = archive.getinfo(f"{member}.npy").file_size
                check_memory(path, size, "the array has", "save it with numpy.save, which is read by rows")
                array = np.lib.format.read_array(file, allow_pickle=False)
        else:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FAULTS as error:
        problem = f"the array cannot be read ({in_short(error)!a})"
        raise SocialxError("arrays.unreadable", path, problem, "write it again with numpy.save, as numbers") from error
    shape = array.shape
    if array.dtype.kind not in "fiu":
        raise SocialxError("arrays.no-numbers", path, f"the array holds {array.dtype}, not numbers", "save numbers")
    if len(shape) not in (2, 3) or 0 in shape:
        axes = "[rows, sensors] or [rows, sensors, channels]"
        raise SocialxError("arrays.shape", path, f"the array has shape {shape}, not {axes}, each at least 1", ALONE)
    if array[0].nbytes > ROW_BYTES:
        problem = f"the array has rows of {array[0].nbytes:,} bytes, shape {shape}"
        raise SocialxError("arrays.long-rows", path, problem, "put time first")
    if shape[0] == shape[1] > 1 and len(shape) == 2 and np.isin(array, (0, 1)).all() and (array == array.T).all():
        graph = "a square symmetric matrix of 0 and 1, a graph of sensors and no readings"
        raise SocialxError("arrays.graph", path, f"the array is {graph}", "name the file of the readings")
    return array


def _member(path: Path) -> str:
    """Return the name of the only array in an .npz. Raises SocialxError for several arrays."""
    names = array_names(path)
    if len(names) == 1:
        return names[0]
    problem = f"there are {len(names)} arrays in the file ({sample(names)})" if names else "there is no array in it"
    raise SocialxError("arrays.member", path, problem, ALONE if names else ADVICE)


def _recognise(head: FileHead) -> str | None:
    """Return the shape in an .npy, or the array name in an .npz; None for other files."""
    if head.kind == "zip":
        return f"its array {_member(head.path)}" if array_names(head.path) else None
    if head.kind != "npy":
        return None
    sizes = zip(open_array(head.path).shape, ("rows", "sensors", "channels"), strict=False)
    return " x ".join(f"{size} {axis}" for size, axis in sizes)


def _needs(path: Path) -> tuple[str, ...]:
    """Return the options that name quantity and channel."""
    return ("channel", "quantity") if open_array(path).ndim == 3 else ("quantity",)


def _channels(request: ConvertOptions, count: int) -> dict[str, int]:
    """Return the channel number by quantity, from options such as flow=0,speed=2; raise for an open choice."""
    numbers: dict[str, int] = {}
    for part in request.channels:
        name, _, number = (text.strip().lower() for text in part.rpartition("="))
        if number in QUANTITIES:
            name, number = number, ""
        quantity = QUANTITIES.get(name) if name else request.quantity or (SPEED if request.units in KMH else None)
        number = number or "0" * (count == 1)
        if quantity is None or quantity in numbers or number not in map(str, range(count)):
            example = Argument("channel", "flow=0,speed=1" if count > 1 else "speed")
            problem = f"the array has {count} channels without names" if count > 1 else "the array names no quantity"
            raise SettingsError("arrays.channels", request.data, problem, f"say what it holds: {example}")
        numbers[quantity] = int(number)
    return numbers


def _read(request: ConvertOptions) -> Contents:
    """Read the chosen channels, with times counted from the user's first time."""
    array = open_array(request.data)
    channels = _channels(request, array.shape[2] if array.ndim == 3 else 1)
    if request.first_time is None or request.step_s is None:
        add = f"add {Command('', first_time='YYYY-MM-DD HH:MM:SS', freq='5min')}"
        raise SocialxError("arrays.no-dates", request.data, "the rows have no dates", add)
    seconds = start_seconds(request) + request.step_s * np.arange(len(array), dtype=np.int64)
    taken = ", ".join(f"{number} is {name}" for name, number in channels.items())
    notes = (Message("arrays.channels-taken", request.data, f"channels taken: {taken}"),) if array.ndim == 3 else ()
    cells, numbers = array.reshape(*array.shape[:2], -1), [*channels.values()]
    blocks = read_blocks(request.data, seconds, array[0].nbytes, lambda part: cells[part][:, :, numbers])
    missing = next(iter(request.codes(channels)), None)
    return Contents(None, array.shape[1], blocks, dict.fromkeys(channels), notes=notes, missing=missing)


TITLE = "an .npy array [rows, sensors] or [rows, sensors, channels], or an .npz with one"
TAKES = frozenset({"ids", "first_time", "step_s", "channel", "quantity"})
FORMATS = (Format("npy", TITLE, _recognise, _read, has_clock=False, takes=TAKES, needs=_needs),)
