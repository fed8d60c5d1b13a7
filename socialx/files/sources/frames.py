"""Pandas and Arrow frames in memory: written as a table for convert, or as a socialx file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zoneinfo import available_timezones

import numpy as np

from socialx.core.errors import Argument, Command, Edit, SettingsError, SocialxError, in_short, render, rewrite_messages
from socialx.files.store.layout import Block, Readings
from socialx.files.store.store import Store
from socialx.files.store.writer import write

if TYPE_CHECKING:
    from pandas import DataFrame as Frame
    from pyarrow import Table
else:
    Frame = Table = Any  # pandas and pyarrow are loaded by whoever made one

WHERE = "data"
FRAME = "the frame"  # in messages, in place of its temporary file


def write_table(path: Path, frame: Frame | Table) -> str | None:
    """Write a pandas frame or a pyarrow table as Parquet; return the time zone where the times name a zone.

    The index becomes a column, unless the index only counts rows. Raises SettingsError for any other object, and
    SocialxError for an empty frame, repeated columns, and cells that Parquet cannot store.
    """
    import pyarrow as pa
    from pyarrow.parquet import write_table as write_parquet

    table = frame if isinstance(frame, pa.Table) else _as_arrow(frame)
    _refuse_repeated(table.column_names)
    if not table.num_rows or not table.num_columns:
        problem = f"there are {table.num_rows} rows and {table.num_columns} columns"
        raise SocialxError(FRAME, problem, "give readings: wall times x sensors, or a row per reading")
    write_parquet(table, path, compression="none", use_dictionary=False)
    zones = {kind.tz for kind in table.schema.types if pa.types.is_timestamp(kind)} - {None, "UTC"}
    return next(iter(zones & available_timezones()), None) if len(zones) == 1 else None


def _refuse_other(data: object) -> None:
    """Raise SettingsError for anything except a pandas frame."""
    import pandas as pd

    if not isinstance(data, pd.DataFrame):
        remedy = "give a file, or a frame: pandas.DataFrame(readings, times, sensors)"
        raise SettingsError(WHERE, f"{type(data).__name__} is no file and no frame", remedy)


def _refuse_repeated(names: Sequence[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise SocialxError(FRAME, f"{len(twice)} of the columns repeat", "keep one of each", sample=twice)


def _as_arrow(frame: Frame) -> Table:
    """Return a frame with its index as a pyarrow table."""
    import pandas as pd
    import pyarrow as pa

    _refuse_other(frame)
    if frame.columns.nlevels > 1:
        remedy = "name each by its sensor: frame.columns = frame.columns.map('_'.join)"
        raise SocialxError(FRAME, f"the columns have {frame.columns.nlevels} names each", remedy)
    frame = frame.set_axis(frame.columns.map(str), axis=1)
    _refuse_repeated(list(frame.columns))
    if isinstance(frame.index, pd.PeriodIndex):
        frame = frame.set_axis(frame.index.to_timestamp())
    levels = [str(name or f"level_{level}") for level, name in enumerate(frame.index.names)]
    if frame.index.nlevels > 1 and not set(levels) & set(frame.columns):
        frame = frame.set_axis(frame.index.set_names(levels)).reset_index()
    elif frame.index.name is not None and str(frame.index.name) in frame.columns:
        raise SocialxError(FRAME, f"the index and a column are both {frame.index.name!r}", "rename one of them")
    try:
        return pa.Table.from_pandas(frame)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        problem = (
            f"some cells are no numbers, texts or times, or of several kinds ({in_short(Exception(*error.args[-1:]))})"
        )
        raise SocialxError(FRAME, problem, "give numbers, and NaN where nothing was read") from None


@contextmanager
def temporary_folder(task: str) -> Iterator[Path]:
    """Yield a folder, named after ``task`` and deleted after the block. Raises SocialxError where creation fails."""
    try:
        folder = TemporaryDirectory(prefix=f"socialx-{task}-")
    except OSError as error:
        problem = f"the folder for a temporary file cannot be written ({error.strerror})"
        raise SocialxError("TMPDIR", problem, "set TMPDIR to a folder with space") from None
    with folder as name:
        yield Path(name)


@contextmanager
def as_table(task: str, data: Frame | Table, name: str, called: str, typed: str) -> Iterator[tuple[Path, str | None]]:
    """Yield a temporary Parquet file for a frame, and the time zone where the times name a zone, else None.

    task: part of the temporary folder's name. name: the file's name without .parquet. called, typed: the text that
    replaces the file's path in messages and, as an argument, in commands.
    """
    with temporary_folder(task) as folder:
        path = folder / f"{name}.parquet"
        zone = write_table(path, data)
        kept = {str(path): typed, str(path.with_suffix(".h5")): f"{name}.h5"}
        with rewrite_messages(hide_file(path, called, kept)):
            yield path, zone


def hide_file(file: Path, name: str, kept: Mapping[str, object]) -> Edit:
    """Return a function that rewrites messages: ``name`` replaces the temporary ``file``. kept: in commands, the text
    shown for each of these argument values.
    """

    def rename_part(part: Argument | Command) -> str:
        if isinstance(part, Argument):
            return str(Argument(part.name, name if str(part.value) == str(file) else part.value))
        part.arguments = tuple(kept.get(str(value), value) for value in part.arguments)
        part.options = {key: kept.get(str(value), value) for key, value in part.options.items()}
        return str(part)

    return lambda text: render(text, rename_part).replace(str(file), name)


def write_frame(path: Path, frame: Frame, like: Store) -> None:
    """Write observations [T,N], wall times x sensor ids, with the metadata of the file ``like``.

    Empty cells and absent sensors are missing observations. Times with a zone become the file's times. Raises
    SocialxError for unknown sensors, repeated times, impossible values, and times without a zone where the file has a
    local one; SettingsError for any object but a frame.
    """
    import pandas as pd

    _refuse_other(frame)
    ids, times = [str(name) for name in frame.columns], frame.index
    columns = {vdid: column for column, vdid in enumerate(like.sensors.ids)}
    if foreign := [vdid for vdid in ids if vdid not in columns]:
        problem = f"{len(foreign)} of {len(ids)} columns of the frame are no sensors of {like.path}"
        raise SocialxError(WHERE, problem, "name each column by its sensor, and leave out others", sample=foreign)
    if not isinstance(times, pd.DatetimeIndex):
        remedy = "make one: frame.index = pd.to_datetime(frame.index)"
        raise SocialxError(WHERE, "the index of the frame holds no times", remedy, sample=map(str, times[:1]))
    timezone, local_zone = like.timezone, like.local_zone
    if times.tz is not None:
        if timezone is None:
            remedy = "give wall times without a zone: frame.tz_localize(None)"
            raise SocialxError(WHERE, f"the times are of {times.tz}, and {like.path} does not say its zone", remedy)
        if not times.has_duplicates and times.tz_convert(timezone).tz_localize(None).has_duplicates:
            timezone, local_zone = "UTC", timezone
        times = times.tz_convert(timezone).tz_localize(None)
    elif local_zone is not None:
        remedy = f"say which: frame.tz_localize({local_zone!r}), or frame.tz_localize('UTC')"
        raise SocialxError(
            WHERE, f"the times have no zone, and {like.path} is in UTC, with days of {local_zone}", remedy
        )
    repeated = times[times.duplicated()].astype(str).tolist() or [vdid for vdid in columns if ids.count(vdid) > 1]
    if repeated:
        raise SocialxError(WHERE, f"{len(repeated)} rows or columns of the frame repeat", "keep one", sample=repeated)
    try:
        numbers = frame.to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise SocialxError(WHERE, f"some cells are not numbers ({error})", "give NaN where nothing was read") from None
    like.check_readings(numbers, times.to_numpy("datetime64[s]").astype(np.int64), ids, WHERE)
    order = np.argsort(times.to_numpy(), kind="stable")
    values = np.full((len(times), len(columns)), np.nan, np.float32)
    values[:, [columns[vdid] for vdid in ids]] = numbers[order]
    blocks = (block for block in [Block(times[order].to_numpy("datetime64[s]").astype(np.int64), values)])
    readings = Readings(
        like.dataset_name,
        "frame",
        like.sensors,
        blocks,
        like.unit,
        like.missing,
        timezone,
        source_data="a pandas frame",
        source_meta=str(like.path),
        feature=like.feature,
        local_zone=local_zone,
    )
    write(path, readings)
