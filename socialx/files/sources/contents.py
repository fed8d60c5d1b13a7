"""Input and output types of the readers, and the clock for files that hold no times.

T rows, N sensors, t rows in a block.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from socialx.core.errors import Argument, Message, SettingsError, SocialxError
from socialx.core.progress import work
from socialx.files.sources.positions.locations import Location
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.head import FileHead
from socialx.files.store.layout import Block
from socialx.files.store.time_axis import Clock, is_skipped

PIECE_BYTES, LARGE_BYTES = 1 << 23, 1 << 28  # at once; above which the free memory is asked
EXAMPLE = "write for example 2012-03-01 00:00:00"


@dataclass(frozen=True, eq=False)
class Contents:
    """The content of a source as read, before locations and user options are joined; None means unstated."""

    ids: tuple[str, ...] | None  # in column order; None where sensors are only numbered
    sensors: int
    blocks: Generator[Block, None, None]
    units: Mapping[str, str | None]  # by feature in the blocks
    locations: dict[int | str, Location] | None = None  # by match_key, where the source holds them itself
    notes: tuple[Message | str, ...] = ()  # assumptions and omissions, a line each
    paths: tuple[Path, ...] = ()  # the files read, where other than the named path
    times: np.ndarray | None = None  # row times, int64 [T], if rows have times
    timezone: str | None = None  # stated time zone; UTC, or the zone of wall times
    zone: str | None = None  # into which times in UTC are converted
    droppable: bool = False  # whether sensors are table columns, which drop can exclude
    lanes: tuple[str, ...] | None = None  # lane names by sensor, where lanes are combined
    table: str = ""  # what the tables hold, as JSON
    stored: Callable[[str], str] = str  # converts an id to a storable spelling
    missing: float | None = None  # the number for a missing observation, if any

    @property
    def feature(self) -> str:
        """The first feature."""
        return next(iter(self.units))


@dataclass(frozen=True)
class Format:
    """A published file format."""

    name: str  # as convert takes it
    title: str
    recognise: Callable[[FileHead], str | None]  # why a file or folder is one, or None
    read: Callable[[ConvertOptions], Contents]
    has_clock: bool = True  # False: rows without date and time of day, so start and freq must say both
    takes: frozenset[str] = frozenset({"ids", "first_time", "step_s", "channel"})  # what of a Request it reads
    needs: Callable[[Path], tuple[str, ...]] = lambda path: ()  # required options besides the clock


def check_memory(where: object, size: float, needs: str, remedy: str) -> None:
    """Raise SocialxError where ``size`` bytes are more than are free."""
    if size > LARGE_BYTES:
        from socialx.core.environment import free_memory  # imports torch, which few files need

        if (free := free_memory()) is not None and size > free:
            problem = f"{needs} {size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
            raise SocialxError("file.no-memory", where, problem, remedy)


def read_blocks(
    path: Path, seconds: np.ndarray, row_bytes: int, read: Callable[[slice], np.ndarray]
) -> Generator[Block, None, None]:
    """Yield readings at row times int64 [T], about 8 MiB at once; read: returns rows [t,N,F], row_bytes: per row."""
    rows = max(PIECE_BYTES // row_bytes, 1)
    with work(f"reading {path.name}", len(seconds), "rows") as bar:
        for first in range(0, len(seconds), rows):
            part = slice(first, min(first + rows, len(seconds)))
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, which the writer refuses
                values = np.array(read(part), np.float32, order="C")
            yield Block(seconds[part], values)
            bar.advance(len(values))


def start_seconds(request: ConvertOptions) -> int:
    """Return the user's first time, in the zone of the request, in seconds since 1970, read as UTC.

    Raises SettingsError for a malformed time, and for one that the zone's clock skips.
    """
    start = Argument("first_time", request.first_time)
    if ":" not in str(request.first_time):
        raise SettingsError("first-time.form", "", f"{start} is not YYYY-MM-DD HH:MM:SS", EXAMPLE)
    second = Clock(request.timezone).seconds(str(request.first_time), "first_time")
    if is_skipped(np.array([second]), request.timezone)[0]:
        raise SettingsError("first-time.skipped", "", f"{start} is skipped by the clock of {request.timezone}", EXAMPLE)
    return second
