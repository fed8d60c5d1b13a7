"""BasicTS's folders: data.dat with desc.json (up to 0.5), or three .npy of rows and three of times (from 1.0 on).

T rows, N sensors, C channels, K columns of times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from socialx.errors import SocialxError
from socialx.files.convert_options import Request
from socialx.files.file_head import FileHead, first_bytes
from socialx.files.formats.arrays import Array, float32, inside, open_array, pick_channel, raw_array, series
from socialx.files.formats.channels import UNITS, cells_of, read_blocks, time_channel
from socialx.files.formats.contents import Contents, Format
from socialx.files.formats.daytimes import Calendar
from socialx.files.hdf5_layout import Block
from socialx.files.quantities import SPEED
from socialx.progress import work

DAT, DESC, META = "data.dat", "desc.json", "meta.json"
PARTS = ("train", "val", "test")
NPY = tuple(f"{part}_{what}.npy" for part in PARTS for what in ("data", "timestamps"))
DESC_BYTES = 1 << 20
FREQUENCY = "frequency (minutes)"
ADVICE = "download the folder again"


@dataclass(frozen=True)
class SplitPart:
    """One of the three parts from 1.0 on."""

    data: Array  # [t,N] or [t,N,C]
    times: Array  # [t,K]


def _folder(path: Path) -> Path:
    return path.parent if path.name in (DAT, DESC, META, *NPY) else path


def _recognise(head: FileHead) -> str | None:
    folder = _folder(head.path)
    if head.kind != "folder" and folder == head.path:
        return None
    if inside(folder, NPY[0]) != folder and inside(folder, NPY[1]) != folder:
        return f"a BasicTS folder ({NPY[0]}, {NPY[1]} and so on)"
    with suppress(SocialxError, OSError):
        if inside(folder, DAT) != folder and inside(folder, DESC) != folder:
            _shape(folder / DESC, _described(folder / DESC))
            return f"a BasicTS folder ({DAT}, {DESC})"
    return None


def _read(request: Request) -> Contents:
    folder = _folder(request.data)
    return _read_parts(request, folder) if inside(folder, NPY[0]) != folder else _read_dat(request, folder)


def _read_dat(request: Request, folder: Path) -> Contents:
    """Up to 0.5: one array, the times in its last channels."""
    described = _described(folder / DESC)
    shape = _shape(folder / DESC, described)
    array = series(raw_array(folder / DAT, shape, "<f4"), 3)
    names = _names(described, "feature_description")
    time, day = _index(names, "time (of|in) day"), _index(names, "day (of|in) week")
    if time is None:
        time = time_channel(array)
    if max(time or 0, day or 0) >= shape[2] or time == 0:
        raise SocialxError(folder / DESC, f"feature_description {names} does not fit {shape}", ADVICE)
    count = shape[2] if time is None else time  # the readings stand before the times
    channel = pick_channel(request, count, names[:count], 0)
    calendar = Calendar(request, array.head(2), time, day, _step(described))
    feature, units = _quantity(names[channel] if channel < len(names) else "", described)
    notes = (f"channel {channel} of {shape[2]} taken, named {feature}", *calendar.notes)
    blocks = read_blocks(array, channel, calendar)
    paths = (folder / DAT, folder / DESC)
    return Contents(None, shape[1], blocks, feature, units, notes=notes, paths=paths)


def _read_parts(request: Request, folder: Path) -> Contents:
    """From 1.0 on: the parts one after the other are the series."""
    described = _described(folder / META) if inside(folder, META) != folder else {}
    parts: list[SplitPart] = []
    for name in PARTS:
        data = series(open_array(folder / f"{name}_data.npy"), 2, 3)
        times = series(open_array(folder / f"{name}_timestamps.npy"), 2)
        if len({array.shape[1:] for array in (data, *(part.data for part in parts))}) > 1:
            raise SocialxError(
                data.path, f"has shape {data.shape}, and {parts[0].data.path.name} has {parts[0].data.shape}", ADVICE
            )
        if times.shape[0] != data.shape[0]:
            raise SocialxError(
                times.path, f"has {times.shape[0]} rows for the {data.shape[0]} of {data.path.name}", ADVICE
            )
        parts.append(SplitPart(data, times))
    names = _names(described, "timestamps_description") or ("time of day", "day of week")
    time, day = _index(names, "time (of|in) day"), _index(names, "day (of|in) week")
    columns = min(part.times.shape[1] for part in parts)
    time, day = (index if index is not None and index < columns else None for index in (time, day))
    shape = parts[0].data.shape
    count = shape[2] if len(shape) == 3 else 1
    channel = pick_channel(request, count, default=0)
    calendar = Calendar(request, parts[0].times.head(2)[:, None], time, day, _step(described))
    feature, units = _quantity("", described)
    notes = (f"channel {channel} of {count} taken, named {feature}", *calendar.notes)
    blocks = _part_blocks(folder, parts, channel, calendar)
    paths = tuple(folder / name for name in (META, *NPY))
    return Contents(None, shape[1], blocks, feature, units, notes=notes, paths=paths)


def _part_blocks(
    folder: Path, parts: list[SplitPart], channel: int, calendar: Calendar
) -> Generator[Block, None, None]:
    with work(f"reading {folder.name}", sum(part.data.shape[0] for part in parts), "rows") as bar:
        for part in parts:
            rows = part.data.piece_rows
            for data, times in zip(part.data.pieces(rows), part.times.pieces(rows), strict=True):
                yield Block(calendar.timestamps(times[:, None]), float32(cells_of(data)[..., channel]))
                bar.advance(len(data))


def _described(path: Path) -> dict[str, Any]:
    first_bytes(path, ADVICE)
    try:
        with path.open("rb") as file:
            described = json.loads(file.read(DESC_BYTES))
    except (ValueError, RecursionError) as error:
        raise SocialxError(path, f"not JSON ({str(error)[:80]!a})", ADVICE) from None
    if not isinstance(described, dict):
        raise SocialxError(path, f"a {type(described).__name__}, not names with values", ADVICE)
    return described


def _shape(path: Path, described: dict[str, Any]) -> tuple[int, ...]:
    shape = described.get("shape")
    if not isinstance(shape, list) or len(shape) != 3 or not all(type(size) is int and size > 0 for size in shape):
        raise SocialxError(path, f"shape is {str(shape)[:40]}, not [rows, sensors, channels]", ADVICE)
    return tuple(shape)


def _names(described: dict[str, Any], key: str) -> tuple[str, ...]:
    names = described.get(key)
    return tuple(" ".join(str(name).lower().split())[:40] for name in names) if isinstance(names, list) else ()


def _index(names: tuple[str, ...], pattern: str) -> int | None:
    return next((index for index, name in enumerate(names) if re.search(pattern, name)), None)


def _step(described: dict[str, Any]) -> int | None:
    """Seconds between two rows, where the folder says it."""
    minutes = described.get(FREQUENCY)
    if not isinstance(minutes, int | float) or not 0 < minutes < 1 << 20:
        return None
    return round(minutes * 60) or None


def _quantity(name: str, described: dict[str, Any]) -> tuple[str, str | None]:
    """Feature and units by a channel's name or the domain; a speed's unit is not said."""
    for text in (name, str(described.get("domain")).lower()):
        for word in ("speed", "flow", "occupancy"):
            if word in text:
                return (SPEED, None) if word == "speed" else (word, UNITS[word])
    return SPEED, None


FORMATS = (
    Format(
        name="basicts",
        title="a folder of BasicTS: data.dat and desc.json, or train_data.npy, train_timestamps.npy and so on",
        recognise=_recognise,
        read=_read,
    ),
)
