"""Small made-up files in the formats that users have, for tests of the readers and the store."""

import hashlib
import re
import resource
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from socialx.cli.error_flags import write
from socialx.core.errors import Message, SocialxError, spelling
from socialx.files.sources import backfill as older
from socialx.files.sources.contents import Format
from socialx.files.sources.positions.locations import read_locations
from socialx.files.sources.readings import read
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables import table
from socialx.files.sources.tables.spec import TableSpec
from socialx.files.store.head import read_head
from socialx.files.store.layout import Block, Readings, Sensors
from socialx.files.store.open_hdf5 import open_for_writing
from socialx.files.store.writer import Summary, create
from socialx.inspection.report import Report
from tests.commands import Said

IDS = ("773869", "767541", "717447")  # of METR-LA
BAY_IDS = ("400001", "400017", "400030")


def timestamps(rows: int, start: str = "2012-03-01T00:00:00", minutes: int = 5) -> list[str]:
    """``YYYY-MM-DD HH:MM:SS`` every few minutes."""
    times = np.datetime64(start, "s") + np.arange(rows) * np.timedelta64(minutes * 60, "s")
    return [str(time).replace("T", " ") for time in times]


def speeds(rows: int, sensors: int = 3, seed: int = 0) -> np.ndarray:
    """float64 [T,N] with all the digits of a mean of three, some of them 0."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random((rows, sensors)) < 0.1, 0.0, rng.uniform(5, 70, (rows, sensors)) / 3)


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
    return create(output, read(kind, ConvertOptions(data, meta_csv=meta)), **options)


def small_store(path: Path, rows: int = 40, minutes: int = 5) -> Path:
    """A canonical METR-LA-like file of 3 sensors."""
    data = write_csv(path.with_suffix(".csv"), timestamps(rows, minutes=minutes), speeds(rows))
    convert("metr-la", data, write_locations(path.with_name("locations.csv")), path)
    return path


def made_up(blocks: Iterable[Block], ids: tuple[str, ...] = IDS) -> Readings:
    """Readings of no file, for what only the writer checks."""
    generator = blocks if isinstance(blocks, Generator) else (part for part in blocks)
    sensors = Sensors(ids, np.linspace(34, 35, len(ids)), np.linspace(-118, -117, len(ids)))
    return Readings("mine", "mine_v1", sensors, generator, {"avg_speed": "km/h"}, None, None, "made up", "nothing")


def backfill(path: Path, meta_csv: Path | None = None, **options: Any) -> older.Completion:
    """Complete an older file, with the options of the command."""
    how = {name: options.pop(name) for name in ("backup", "dry_run") if name in options}
    return older.backfill(path, older.Given(meta_csv, read_locations(meta_csv) if meta_csv else {}, **options), **how)


def read_table(sources: Any, spec: TableSpec) -> Any:
    """The readings of a described table, ``values`` [T,N,F], and what else the reader says of them."""
    found = table.read(sources, spec)
    (block,) = found.blocks
    places = {one.sensor_id: (one.latitude, one.longitude) for one in (found.locations or {}).values()}
    also = {"features": tuple(found.units), "positions": places, "zone": found.timezone}
    return SimpleNamespace(**{**vars(found), **vars(block), **also})


def seconds_of(times: list[str]) -> np.ndarray:
    """Wall times as a reader of a format gives them."""
    return np.array(times, "datetime64[s]").astype(np.int64)


def block(times: list[str], values: np.ndarray) -> Block:
    """A block of readings."""
    return Block(seconds_of(times), values.astype(np.float32)[..., np.newaxis])


def refusal(action: Callable[[], object], *words: str, task: str = "convert") -> Said:
    """The one line with which ``action`` refuses, as a user of the command ``task`` sees it.

    It holds each of ``words`` and ends with a next step.
    """
    with pytest.raises(SocialxError) as caught, spelling(partial(write, task)):
        action()
    (line,) = caught.value.lines()
    assert "\n" not in line
    assert re.fullmatch(r".+ Try: \S.*", line), line
    for word in words:
        assert word in line, line
    return Said.of(line, [caught.value.code])


def reason(format: Format, path: Path) -> str | None:
    """Why a path is of a format; None where it is of another kind, or cannot be read."""
    with suppress(SocialxError):
        return format.recognise(read_head(path))
    return None


def shown(notes: Iterable[Message | str]) -> list[str]:
    """Return notes without the full stop."""
    return [note if isinstance(note, str) else note.text().removesuffix(".") for note in notes]


Change = Callable[[h5py.File], object]


def changed(path: Path, *changes: Change) -> Path:
    """An HDF5 file after changes to what is in it."""
    with h5py.File(path, "r+") as file:
        for change in changes:
            change(file)
    return path


def put(name: str, value: object) -> Change:
    """A dataset, in place of what has its name; the attributes stay."""

    def change(file: h5py.File) -> None:
        kept = dict(file[name].attrs) if name in file else {}
        drop(name)(file)
        file[name] = value
        file[name].attrs.update(kept)

    return change


def drop(*names: str) -> Change:
    """Without the objects of these names."""
    return lambda file: [file.pop(name) for name in names if name in file]


def spoil_copies(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]) -> None:
    """Damage each copy of a file that ``amend`` has patched."""

    @contextmanager
    def badly(path: Path, *options: Any) -> Iterator[h5py.File]:
        with open_for_writing(path, *options) as file:
            yield file
        spoil(path)

    monkeypatch.setattr("socialx.files.store.writer.open_for_writing", badly)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """A block in which no file can grow beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def digest(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """A block that must not change a byte of a file."""
    before = digest(path)
    yield
    assert digest(path) == before


def altered(report: Report, **findings: Any) -> Report:
    """A report with other findings."""
    return Report({**report.as_dict(), **findings})


def left_behind(folder: Path) -> list[str]:
    """Outputs and temporary files in a folder of tests."""
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".tmp" or path.name.startswith("out"))
