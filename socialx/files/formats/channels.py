"""One NumPy array of rows, sensors and channels: PEMS03 to 08, Torch-MTS, LargeST, PyTorch Geometric Temporal, .npy.

T rows, N sensors, C channels, t rows of one piece.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from socialx.errors import Argument, Message, Remedy, SocialxError
from socialx.files.convert_options import Request
from socialx.files.formats.arrays import (
    DATA,
    Array,
    array_names,
    float32,
    inside,
    only_array,
    open_array,
    pick_channel,
    pick_channels,
    quiet,
    read_small,
    series,
)
from socialx.files.formats.contents import Contents, Format
from socialx.files.formats.daytimes import Calendar, is_time_of_day
from socialx.files.hdf5_layout import Block
from socialx.files.quantities import SPEED
from socialx.progress import work

HEAD_ROWS = 288  # a day of 5-minute steps shows whether a channel is a time of day
UNITS = {SPEED: "mph", "flow": "vehicles per step", "occupancy": "share"}
PEMS = ("flow", "occupancy", "speed")
NODE_VALUES = ("node_values.npy", "pems_node_values.npy")
# Files of other formats, and the graph beside a series, which has the shape of one.
NOT_SERIES = {*NODE_VALUES, "adj_mat.npy", "pems_adj_mat.npy", "index.npz"} | {
    f"{part}_{what}.npy" for part in ("train", "val", "test") for what in ("data", "timestamps")
}
INDEX_NOTE = "its split (index.npz) is not taken over: socialx splits by its own protocol"


@dataclass(frozen=True)
class Scale:
    """Stored values are z-scores: the reading is value * std + mean."""

    mean: float = 0.0
    std: float = 1.0

    def readings(self, values: np.ndarray) -> np.ndarray:
        """[t,N] -> float32 [t,N]; a stored 0, which stands for no reading, is 0 again and not nearly so."""
        if self == Scale():
            return float32(values)
        restored = values.astype(np.float64) * self.std + self.mean
        precision = np.finfo(np.result_type(values.dtype, np.float32)).eps
        restored[np.abs(restored) < 8 * precision * max(abs(self.mean), self.std)] = 0.0
        return float32(restored)


def cells_of(rows: np.ndarray) -> np.ndarray:
    """[t,N] or [t,N,C] -> [t,N,C]."""
    return rows[:, :, None] if rows.ndim == 2 else rows


def time_channel(array: Array, channel: int = 1) -> int | None:
    """The number of the time-of-day channel, or None where ``channel`` is none."""
    cells = cells_of(array.head(HEAD_ROWS))
    return channel if cells.shape[2] > channel and is_time_of_day(cells[..., channel]) else None


def read_blocks(
    array: Array, channel: int | list[int], calendar: Calendar, scale: Scale | None = None
) -> Generator[Block, None, None]:
    """The rows of one channel of [T,N] or [T,N,C], or of a list of them."""
    scale = scale or Scale()
    with work(f"reading {array.path.name}", array.shape[0], "rows") as bar:
        for rows in array.pieces():
            cells = cells_of(rows)
            yield Block(calendar.timestamps(cells), scale.readings(cells[..., channel]))
            bar.advance(len(rows))


def _channels(array: Array) -> int:
    return array.shape[2] if len(array.shape) == 3 else 1


def _unnamed(request: Request, count: int, default: int | None = 0) -> tuple[int, str, str | None, Message]:
    """Channel, feature, units and a note, of ``count`` channels without names; ``channel`` may name a single one."""
    said = (request.channel or "").strip().lower()
    if count == 1 and said in ("flow", "occupancy"):
        return 0, said, UNITS[said], Message(request.data, f"channel 0 taken, named {said} as asked")
    if count == 1 and said == "speed":
        return 0, SPEED, None, Message(request.data, f"channel 0 taken, named {SPEED} as asked")
    channel = pick_channel(request, count, default=default)
    hint = f"{Argument('channel', 'flow')} or {Argument('channel', 'occupancy')} names it" if count == 1 else ""
    return channel, SPEED, None, _taken_for_speed(request, channel, count, hint)


def _taken_for_speed(request: Request, channel: int, count: int, hint: Remedy = "") -> Message:
    what = f"channel {channel} of {count} taken, named {SPEED}, as the file does not say what it is"
    return Message(request.data, what, hint)


def _data(path: Path) -> Array | None:
    """The array of an .npz that holds ``data`` but no mean, or None."""
    names = array_names(path)
    if DATA not in names or {"mean", "std"} <= set(names):
        return None
    return series(open_array(path, DATA), 2, 3)


@quiet
def _is_pems(path: Path) -> str | None:
    array = _data(path)
    if array is None or time_channel(array) is not None:
        return None
    return f"an .npz whose array data is {_shape(array)}"


def _read_pems(request: Request) -> Contents:
    array = series(open_array(request.data, DATA), 2, 3)
    count = _channels(array)
    names = PEMS[:count] if count in (1, 3) else ()
    if found := pick_channels(request, count, names):
        return _several(request, array, found, UNITS if names else {})
    channel = pick_channel(request, count, names, {1: 0, 3: 2}.get(count))
    feature = SPEED if not names or names[channel] == "speed" else names[channel]
    note: Message | str = _taken_for_speed(request, channel, count)
    if names:
        note = f"channel {channel} of {count} taken, {names[channel]} ({', '.join(names)} in this order)"
    calendar = Calendar(request, array.head(1), None)
    units = UNITS[feature] if names else None
    return Contents(None, array.shape[1], read_blocks(array, channel, calendar), feature, units, notes=(note,))


def _several(request: Request, array: Array, found: dict[str, int], units: Mapping[str, str]) -> Contents:
    """Channels by what they hold, of an array without times."""
    note = f"channels taken: {', '.join(f'{number} is {name}' for name, number in found.items())}"
    first, *others = found
    numbers = list(found.values()) if others else found[first]
    blocks = read_blocks(array, numbers, Calendar(request, array.head(1), None))
    more = {name: units.get(name) for name in others}
    return Contents(None, array.shape[1], blocks, first, units.get(first), notes=(note,), others=more)


@quiet
def _is_torch_mts(path: Path) -> str | None:
    array = _data(inside(path, "data.npz"))
    if array is None or time_channel(array) is None:
        return None
    return f"an .npz whose array data is {_shape(array)}, channel 1 the time of day"


def _read_torch_mts(request: Request) -> Contents:
    path = inside(request.data, "data.npz")
    array = series(open_array(path, DATA), 3)
    count = _channels(array)
    if count < 2:
        raise SocialxError(
            path,
            "1 channel, no time of day",
            f"name the format pems-npz and say {Argument('start')} and {Argument('freq')}",
        )
    channel, feature, units, note = _unnamed(request, 1)
    calendar = Calendar(request, array.head(2), 1, 2 if count > 2 else None)
    notes: tuple[Message | str, ...] = (INDEX_NOTE, *calendar.notes, note)
    paths = (path, path.with_name("index.npz"))
    blocks = read_blocks(array, channel, calendar)
    return Contents(None, array.shape[1], blocks, feature, units, notes=notes, paths=paths)


@quiet
def _is_largest(path: Path) -> str | None:
    path = inside(path, "his.npz")
    if not {DATA, "mean", "std"} <= set(array_names(path)):
        return None
    return f"an .npz of data {_shape(series(open_array(path, DATA), 3))}, mean and std"


def _read_largest(request: Request) -> Contents:
    path = inside(request.data, "his.npz")
    array = series(open_array(path, DATA), 3)
    numbers = [read_small(path, name) for name in ("mean", "std")]
    if any(number.size != 1 or not np.isfinite(number).all() for number in numbers) or float(numbers[1].item()) <= 0:
        raise SocialxError(
            path,
            f"mean {numbers[0].ravel()[:3]} and std {numbers[1].ravel()[:3]} are not a number and one above 0",
            "download it again",
        )
    scale = Scale(*(float(number.item()) for number in numbers))
    pick_channel(request, 1, default=0)
    time = time_channel(array)
    calendar = Calendar(request, array.head(2), time, 2 if time and _channels(array) > 2 else None)
    notes = (f"channel 0 times std {scale.std:g} plus mean {scale.mean:g} taken", *calendar.notes)
    blocks = read_blocks(array, 0, calendar, scale)
    return Contents(None, array.shape[1], blocks, "flow", UNITS["flow"], notes=notes, paths=(path,))


def _node_values(path: Path) -> Array | None:
    """The series of PyTorch Geometric Temporal in a folder, in a zip or by itself, or None."""
    path = inside(path, *NODE_VALUES)
    if path.name in NODE_VALUES:
        return series(open_array(path), 2, 3)
    for name in array_names(path):
        if f"{PurePosixPath(name).name}.npy" in NODE_VALUES:
            return series(open_array(path, name), 2, 3)
    return None


@quiet
def _is_pyg_t(path: Path) -> str | None:
    array = _node_values(path)
    return None if array is None else f"{PurePosixPath(array.member or array.path.name).name}, {_shape(array)}"


def _read_pyg_t(request: Request) -> Contents:
    array = _node_values(request.data)
    if array is None:
        raise SocialxError(
            request.data, f"no {' or '.join(NODE_VALUES)} in it", "name the .npy file, its folder or its zip"
        )
    time, count = time_channel(array), _channels(array)
    channel, feature, units, note = _unnamed(request, count if time is None else 1)
    calendar = Calendar(request, array.head(2), time)
    notes: tuple[Message | str, ...] = (note, *calendar.notes)
    blocks = read_blocks(array, channel, calendar)
    return Contents(None, array.shape[1], blocks, feature, units, notes=notes, paths=(array.path,))


@quiet
def _is_npy(path: Path) -> str | None:
    if path.name in NOT_SERIES or DATA in array_names(path) or {"mean", "std"} <= set(array_names(path)):
        return None
    array = series(only_array(path), 2, 3)
    kind = f"an .npz with one such array, {PurePosixPath(array.member).stem!a}" if array.member else "an .npy array"
    return f"{kind}, {_shape(array)}"


def _read_npy(request: Request) -> Contents:
    array = series(only_array(request.data), 2, 3)
    count = _channels(array)
    if found := pick_channels(request, count):
        return _several(request, array, found, {})
    channel, feature, units, note = _unnamed(request, count, 0 if count == 1 else None)
    calendar = Calendar(request, array.head(1), None)
    return Contents(None, array.shape[1], read_blocks(array, channel, calendar), feature, units, notes=(note,))


def _pems_needs(path: Path) -> tuple[str, ...]:
    return () if _channels(open_array(path, DATA)) in (1, 3) else ("channel",)


def _npy_needs(path: Path) -> tuple[str, ...]:
    return () if _channels(only_array(path)) == 1 else ("channel",)


def _pyg_t_needs(path: Path) -> tuple[str, ...]:
    array = _node_values(path)
    return ("step_s",) if array and time_channel(array) is None else ()


def _largest_needs(path: Path) -> tuple[str, ...]:
    return () if time_channel(open_array(inside(path, "his.npz"), DATA)) else ("step_s",)


def _shape(array: Array) -> str:
    names = ("rows", "sensors", "channels")
    return " x ".join(f"{size} {name}" for size, name in zip(array.shape, names, strict=False))


FORMATS = (
    Format(
        "pyg-t",
        "node_values.npy of PyTorch Geometric Temporal, its folder or its zip",
        _is_pyg_t,
        _read_pyg_t,
        needs=_pyg_t_needs,
    ),
    Format(
        "largest-npz",
        "his.npz of LargeST: z-scores with mean and std",
        _is_largest,
        _read_largest,
        needs=_largest_needs,
    ),
    Format(
        "torch-mts",
        "data.npz of Torch-MTS and STAEformer, time of day in channel 1",
        _is_torch_mts,
        _read_torch_mts,
        takes=frozenset({"ids", "start", "channel"}),
    ),
    Format(
        "pems-npz",
        "PEMS03, 04, 07 and 08: data [rows, sensors, channels]",
        _is_pems,
        _read_pems,
        has_clock=False,
        needs=_pems_needs,
    ),
    Format(
        "npy",
        "an .npy array [rows, sensors] or [rows, sensors, channels], or an .npz with one",
        _is_npy,
        _read_npy,
        has_clock=False,
        needs=_npy_needs,
    ),
)
