"""Small made-up files in the formats that users have, for tests of the readers and the store."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.cli.shell import write
from socialx.errors import Message, SocialxError
from socialx.files import store
from socialx.files.formats.contents import Request
from socialx.files.readings import read
from socialx.files.store import Block, Readings, Sensors, Summary

IDS = ("773869", "767541", "717447")  # of METR-LA
BAY_IDS = ("400001", "400017", "400030")


def timestamps(rows: int, start: str = "2012-03-01T00:00:00", minutes: int = 5) -> list[str]:
    """``YYYY-MM-DD HH:MM:SS`` every few minutes."""
    times = np.datetime64(start, "s") + np.arange(rows) * np.timedelta64(minutes * 60, "s")
    return [str(time).replace("T", " ") for time in times]


def speeds(rows: int, sensors: int = 3, seed: int = 0) -> np.ndarray:
    """float64 [T,N] with all the digits of a mean of three, some of them 0."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(5, 70, (rows, sensors)) / 3
    return np.where(rng.random((rows, sensors)) < 0.1, 0.0, values)


def write_csv(path: Path, times: list[str], values: np.ndarray, ids: tuple[str, ...] = IDS) -> Path:
    """As published: an empty header cell, sensor ids, then time and speeds with all their digits."""
    lines = ["," + ",".join(ids)]
    lines += [f"{time},{','.join(map(repr, row))}" for time, row in zip(times, values.tolist(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_locations(path: Path, ids: tuple[str, ...] = IDS) -> Path:
    """METR-LA's shape, in another order than the data."""
    rows = [f"{i},{vdid},{34 + i / 100},{-118 - i / 100}" for i, vdid in reversed(list(enumerate(ids)))]
    path.write_text("\n".join(["index,sensor_id,latitude,longitude", *rows]) + "\n")
    return path


def write_stations(path: Path, ids: tuple[str, ...] = IDS) -> Path:
    """PEMS-BAY-META.csv's shape, in another order than the data."""
    lines = ["sensor_id,Fwy,Dir,District,County,City,State_PM,Abs_PM,Latitude,Longitude,Length,Type,Lanes,Name"]
    for i, vdid in reversed(list(enumerate(ids))):
        position = f"{37 + i / 100},{-121 - i / 100}"
        lines.append(f'{vdid},17,{"NESW"[i % 4]},4,85,,9.06,21.6,{position},{0.5 + i},ML,{2 + i},"LARK, AVE"')
    path.write_text("\n".join(lines) + "\n")
    return path


def write_frame(
    path: Path,
    times: list[str],
    values: np.ndarray,
    key: str = "df",
    ids: tuple[str, ...] | np.ndarray = IDS,
    unit: str = "ns",
    order: list[int] | None = None,
) -> Path:
    """The datasets that ``DataFrame.to_hdf(key)`` leaves; ``order`` is the one of the stored columns."""
    order = list(range(values.shape[1])) if order is None else order
    labels = ids if isinstance(ids, np.ndarray) else np.array(ids, "S")
    with h5py.File(path, "w") as file:
        frame = file.create_group(key)
        frame["axis0"], frame["block0_items"] = labels, labels[order]
        frame["axis1"] = np.array(times, f"datetime64[{unit}]").astype(np.int64)
        frame["axis1"].attrs["kind"] = np.bytes_("datetime64" if unit == "ns" else f"datetime64[{unit}]")
        frame["block0_values"] = values[:, order]
    return path


def convert(kind: str, data: Path, meta: Path, output: Path, **options: bool) -> Summary:
    """What the command does."""
    return store.create(output, read(kind, Request(data), meta).readings, **options)


def small_store(path: Path, rows: int = 40, minutes: int = 5) -> Path:
    """A canonical METR-LA-like file of 3 sensors."""
    data = write_csv(path.with_suffix(".csv"), timestamps(rows, minutes=minutes), speeds(rows))
    convert("metr-la", data, write_locations(path.with_name("locations.csv")), path)
    return path


def made_up(blocks: Iterable[Block], ids: tuple[str, ...] = IDS) -> Readings:
    """Readings of no file, for what only the writer checks."""
    generator = blocks if isinstance(blocks, Generator) else (part for part in blocks)
    sensors = Sensors(ids, np.linspace(34, 35, len(ids)), np.linspace(-118, -117, len(ids)))
    return Readings("mine", "mine_v1", sensors, generator, "km/h", None, None, "made up", "nothing")


def block(times: list[str], values: np.ndarray) -> Block:
    """A block of readings."""
    return Block(np.array(times, "S19"), values.astype(np.float32))


def refusal(action: Callable[[], object], *words: str, task: str = "convert") -> str:
    """The one line with which ``action`` refuses, as a user of the command ``task`` sees it.

    It holds each of ``words`` and ends with a next step.
    """
    with pytest.raises(SocialxError) as caught:
        action()
    (line,) = caught.value.lines(partial(write, task))
    assert "\n" not in line
    assert re.fullmatch(r".+?: .+: \S.*", line), line
    for word in words:
        assert word in line, line
    return line


def shown(notes: Iterable[Message | str], task: str = "convert") -> list[str]:
    """Notes as a user of the command ``task`` sees them."""
    return [note if isinstance(note, str) else note.line(partial(write, task)) for note in notes]


def left_behind(folder: Path) -> list[str]:
    """Outputs and temporary files in a folder of tests."""
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".tmp" or path.name.startswith("out"))
