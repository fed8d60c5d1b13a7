"""The windows of DCRNN and Graph WaveNet, train.npz, val.npz and test.npz, joined to the series they were cut from.

S windows of H rows x and P rows y; N sensors, C channels: 0 the reading, 1 the time of day as a fraction.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from socialx.errors import SocialxError
from socialx.files.convert_options import Request
from socialx.files.formats.arrays import (
    Array,
    array_names,
    float32,
    inside,
    open_array,
    pick_channel,
    quiet,
    read_small,
    series,
)
from socialx.files.formats.contents import Contents, Format
from socialx.files.formats.daytimes import Calendar
from socialx.files.hdf5_layout import Block
from socialx.progress import work

NAMES = ("train.npz", "val.npz", "test.npz")
AGAIN = "cut the windows again, in order and one row apart"


@dataclass(frozen=True)
class WindowsFile:
    """One of the three files."""

    path: Path
    x: Array  # [S,H,N,C]
    y: Array  # [S,P,N,C]


@dataclass(frozen=True)
class Parts:
    """All windows in order."""

    parts: tuple[WindowsFile, ...]
    known: int  # the first rows of a window's y that are also in its x; usually none


@quiet
def _recognise(path: Path) -> str | None:
    found = inside(path, *NAMES)
    if found.name not in NAMES or not {"x", "y"} <= set(array_names(found)):
        return None
    series(open_array(found, "x"), 4)
    series(open_array(found, "y"), 4)
    return "a zip of x and y windows (train.npz, val.npz, test.npz)"


def _read(request: Request) -> Contents:
    windows = _open(request.data)
    first = windows.parts[0].x
    pick_channel(request, 1, default=0)
    if first.shape[3] < 2:
        raise SocialxError(
            first.path, f"x has shape {first.shape}, without a time of day", "cut it with add_time_in_day"
        )
    calendar = Calendar(request, first.head(1)[0], 1)
    blocks = _blocks(windows, calendar)
    paths = tuple(part.path for part in windows.parts)
    return Contents(None, first.shape[2], blocks, notes=calendar.notes, paths=paths)


def _open(path: Path) -> Parts:
    folder = path.parent if path.name in NAMES else path
    parts = []
    for name in NAMES:
        file = folder / name
        parts.append(WindowsFile(file, series(open_array(file, "x"), 4), series(open_array(file, "y"), 4)))
        x, y, first = parts[-1].x.shape, parts[-1].y.shape, parts[0]
        if x[0] != y[0] or x[2:] != y[2:] or x[1:] != first.x.shape[1:] or y[1:] != first.y.shape[1:]:
            raise SocialxError(file, f"x is {x} and y is {y}, not like {first.path.name}'s {first.x.shape}", AGAIN)
    rows = parts[0].x.shape[1]
    if rows < 2:
        raise SocialxError(parts[0].path, "windows of one row, whose order cannot be checked", AGAIN)
    return Parts(tuple(parts), _known(parts[0]))


def _known(part: WindowsFile) -> int:
    """How many rows of y are also in x: 0 in the usual case that y begins where x ends."""
    x = _offsets(part, "x_offsets", part.x.shape[1], 1 - part.x.shape[1])
    y = _offsets(part, "y_offsets", part.y.shape[1], 1)
    known = int(x[-1] - y[0]) + 1
    if known < 0 or known >= len(y):
        raise SocialxError(
            part.path,
            f"x_offsets end at {x[-1]} and y_offsets are {y[0]} to {y[-1]}, so y does not go on from x",
            AGAIN,
        )
    return known


def _offsets(part: WindowsFile, name: str, count: int, first: int) -> np.ndarray:
    """int64 [count]: the rows of a window, counted from the last observed one."""
    expected = np.arange(first, first + count)
    if name not in array_names(part.path):
        return expected
    offsets = read_small(part.path, name).ravel()
    if len(offsets) != count or (np.diff(offsets) != 1).any():
        shown = " ".join(map(str, offsets[:4].tolist()))
        raise SocialxError(part.path, f"{name} is {shown} ..., not {count} neighbouring rows", AGAIN)
    return offsets.astype(np.int64)


def _blocks(windows: Parts, calendar: Calendar) -> Generator[Block, None, None]:
    """The first row of each window, then what only the last window and its y hold."""
    before: np.ndarray | None = None
    total = sum(part.x.shape[0] for part in windows.parts)
    with work("reading windows", total, "windows") as bar:
        for part in windows.parts:
            first = 0
            for x in part.x.pieces():
                _check_overlap(part.path, "x", x, before, first)
                yield Block(calendar.timestamps(x[:, 0]), float32(x[:, 0, :, 0]))
                before, first = x[-1], first + len(x)
                bar.advance(len(x))
    if before is not None:
        rest = np.concatenate([before[1:], _after(windows, before)])
        yield Block(calendar.timestamps(rest), float32(rest[..., 0]))


def _check_overlap(path: Path, name: str, windows: np.ndarray, before: np.ndarray | None, first: int) -> None:
    """Refuse windows [t,H,N,C] of which one is not the one before it, moved by a row."""
    chain = windows if before is None else np.concatenate([before[None], windows])
    same = _equal(chain[:-1, 1:], chain[1:, :-1])
    if not same.all():
        sample = first + int(same.argmin()) + (before is None)
        raise SocialxError(
            path, f"{name}[{sample}] is not the window before it moved by one row (shuffled, or cut with gaps)", AGAIN
        )


def _equal(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Whether windows [t,...] are equal, NaN to NaN -> bool [t]."""
    same = (left == right) | ((left != left) & (right != right))
    return np.all(same, axis=tuple(range(1, left.ndim)))


def _after(windows: Parts, last: np.ndarray) -> np.ndarray:
    """The rows [t,N,C] that follow ``last``, the last window of x: only the last window of y has them all."""
    part, known = windows.parts[-1], windows.known
    tail = np.empty((0, *part.y.shape[1:]), part.y.dtype)  # at most the last two windows
    first = 0
    for y in part.y.pieces():
        _check_overlap(part.path, "y", y, tail[-1] if first else None, first)
        tail, first = np.concatenate([tail, y[-2:]])[-2:], first + len(y)
    if len(tail) > 1 and not _equal(tail[:1, known], last[-1:]).all():
        raise SocialxError(
            part.path, f"y[{first - 2}] does not hold the last row of x[{first - 1}] (scaled, or shuffled)", AGAIN
        )
    return tail[-1, known:]


FORMATS = (
    Format(
        name="windows-npz",
        title="windows of DCRNN and Graph WaveNet: train.npz, val.npz and test.npz with x and y",
        recognise=_recognise,
        read=_read,
        takes=frozenset({"ids", "start"}),
    ),
)
