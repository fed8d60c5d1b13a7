"""Pandas frames in memory: as a table for convert, or as a socialx file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.core.errors import SettingsError, SocialxError
from socialx.files.store.layout import Block, Readings
from socialx.files.store.quantities import QUANTITIES
from socialx.files.store.store import Store
from socialx.files.store.writer import write

if TYPE_CHECKING:
    from pandas import DataFrame as Frame
else:
    Frame = Any  # pandas is loaded by whoever made one

WHERE = "data"


def stack_levels(frame: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a row per sensor of a frame with two levels of columns, of which one names quantities, and the column of
    sensors; any other frame or table as it is.
    """
    columns: Any = getattr(frame, "columns", None)
    if getattr(columns, "nlevels", 1) != 2:
        return frame, ()
    levels = [{str(name).lower() for name in columns.unique(level)} <= {*QUANTITIES} for level in (0, 1)]
    if sum(levels) != 1:
        remedy = "name each column by its sensor: frame.columns = frame.columns.map('_'.join)"
        raise SocialxError(WHERE, "the columns of the frame have two names each, and none is a quantity", remedy)
    sensors = levels.index(False)
    name = str(columns.names[sensors] or "sensor")
    frame = frame.set_axis(columns.set_names([None, None]).set_names(name, level=sensors), axis=1)
    times = frame.index.name or "time"
    return frame.rename_axis(times).stack(name, future_stack=True).reset_index(), (name,)


def _refuse_other(data: object) -> None:
    """Raise SettingsError for anything except a pandas frame."""
    import pandas as pd

    if not isinstance(data, pd.DataFrame):
        remedy = "give a file, or a frame: pandas.DataFrame(readings, times, sensors)"
        raise SettingsError(WHERE, f"{type(data).__name__} is no file and no frame", remedy)


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
