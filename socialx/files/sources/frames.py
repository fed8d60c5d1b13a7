"""Pandas frames in memory: as a table for convert, or as a socialx file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import available_timezones

import numpy as np

from socialx.core.errors import SettingsError, SocialxError
from socialx.files.sources.tables import words
from socialx.files.sources.tables.spec import read_name
from socialx.files.sources.tables.templates import pattern, repeated_quantities
from socialx.files.store.layout import Block, Readings
from socialx.files.store.quantities import QUANTITIES
from socialx.files.store.store import Store
from socialx.files.store.writer import write

if TYPE_CHECKING:
    from pandas import DataFrame as Frame
else:
    Frame = Any  # pandas is loaded by whoever made one

WHERE = "data"


def as_rows(frame: Any, counted: bool = False) -> tuple[Any, dict[str, Any]]:
    """Return a frame or a table of rows, and the options that its form says: the zone, the column of sensors where rows
    or columns have two levels, and that each column is a sensor where times are the index, or ``counted`` by rows.
    """
    import pandas as pd

    if isinstance(frame, pd.Series):
        frame = frame.to_frame(str(frame.name or "readings"))
    if not isinstance(frame, pd.DataFrame):
        return frame, _zone(getattr(one, "tz", None) for one in getattr(getattr(frame, "schema", None), "types", ()))
    columns: Any = frame.columns
    levels = [{str(name).lower() for name in columns.unique(level)} for level in range(columns.nlevels)]
    quantities = [names & {*QUANTITIES} for names in levels]
    if columns.nlevels > 1:
        sensors = [level for level, names in enumerate(quantities) if not names]
        if columns.nlevels != 2 or len(sensors) != 1:
            remedy = "name each column by its sensor: frame.columns = frame.columns.map('_'.join)"
            raise SocialxError("frame.levels", WHERE, f"columns of the frame have {columns.nlevels} names each", remedy)
        name = str(columns.names[sensors[0]] or "sensor")
        frame = frame.set_axis(columns.set_names([None, None]).set_names(name, level=sensors[0]), axis=1)
        frame = frame.rename_axis(frame.index.name or "time").stack(name, future_stack=True)
    index = frame.index
    kinds = [*frame.dtypes, *(index.dtypes if index.nlevels > 1 else [index])]
    zone = _zone(getattr(kind, "tz", None) for kind in kinds)
    if index.nlevels == 2 and isinstance(index.levels[0], pd.DatetimeIndex):
        names = [str(name or instead) for name, instead in zip(index.names, ("time", "sensor"), strict=True)]
        return frame.rename_axis(names), {**zone, "sensor_column": names[1]}
    timed = isinstance(index, pd.RangeIndex if counted else pd.DatetimeIndex | pd.PeriodIndex) and index.is_unique
    numbers = all(map(pd.api.types.is_numeric_dtype, frame.dtypes))
    return frame, {**zone, **_channel(list(map(str, columns)))} if timed and numbers else zone


def _channel(names: list[str]) -> dict[str, str]:
    """Return the option by which columns are sensors, or sensors with a quantity; {} for names of other things."""
    templates = repeated_quantities(names)
    if len(templates) == 1 and all(read_name(pattern(templates[0]), name) for name in names):
        return {"channel": templates[0]}
    others = any(words.quantity(name) or words.NO_SENSOR.fullmatch(name) for name in names)
    return {} if others else {"channel": "{sensor}"}


def _zone(zones: Iterable[object]) -> dict[str, Any]:
    """Return the option of the zone in which all times with a zone are, unless it is UTC or none by name."""
    names = {str(zone) for zone in zones if zone is not None} - {"UTC"}
    return {"timezone": next(iter(names))} if len(names) == 1 and names <= available_timezones() else {}


def write_frame(path: Path, frame: Frame, like: Store) -> None:
    """Write observations [T,N], wall times x sensor ids, with the metadata of the file ``like``.

    Empty cells and absent sensors are missing observations. Times with a zone become the file's times. Raises
    SocialxError for unknown sensors, repeated times, impossible values, and times without a zone where the file has a
    local one; SettingsError for any object but a frame.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        remedy = "give a file, or a frame: pandas.DataFrame(readings, times, sensors)"
        raise SettingsError("frame.type", WHERE, f"{type(frame).__name__} is no file and no frame", remedy)
    ids, times = [str(name) for name in frame.columns], frame.index
    columns = {vdid: column for column, vdid in enumerate(like.sensors.ids)}
    if foreign := [vdid for vdid in ids if vdid not in columns]:
        problem = f"{len(foreign)} of {len(ids)} columns of the frame are no sensors of {like.path}"
        remedy = "name each column by its sensor, and leave out others"
        raise SocialxError("frame.other-sensors", WHERE, problem, remedy, sample=foreign)
    if not isinstance(times, pd.DatetimeIndex):
        remedy = "make one: frame.index = pd.to_datetime(frame.index)"
        raise SocialxError("frame.no-times", WHERE, "the index holds no times", remedy, sample=map(str, times[:1]))
    timezone, local_zone = like.timezone, like.local_zone
    if times.tz is not None:
        if timezone is None:
            remedy = "give wall times without a zone: frame.tz_localize(None)"
            problem = f"the times are of {times.tz}, and {like.path} does not say its zone"
            raise SocialxError("frame.file-zone", WHERE, problem, remedy)
        if not times.has_duplicates and times.tz_convert(timezone).tz_localize(None).has_duplicates:
            timezone, local_zone = "UTC", timezone
        times = times.tz_convert(timezone).tz_localize(None)
    elif local_zone is not None:
        remedy = f"say which: frame.tz_localize({local_zone!r}), or frame.tz_localize('UTC')"
        problem = f"the times have no zone, and {like.path} is in UTC, with days of {local_zone}"
        raise SocialxError("frame.zone-missing", WHERE, problem, remedy)
    repeated = times[times.duplicated()].astype(str).tolist() or [vdid for vdid in columns if ids.count(vdid) > 1]
    if repeated:
        problem = f"{len(repeated)} rows or columns of the frame repeat"
        raise SocialxError("frame.repeats", WHERE, problem, "keep one", sample=repeated)
    try:
        numbers = frame.to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        problem = f"some cells are not numbers ({error})"
        raise SocialxError("frame.no-numbers", WHERE, problem, "give NaN where nothing was read") from None
    like.check_readings(numbers, times.to_numpy("datetime64[s]").astype(np.int64), ids, WHERE)
    order = np.argsort(times.to_numpy(), kind="stable")
    values = np.full((len(times), len(columns), 1), np.nan, np.float32)
    values[:, [columns[vdid] for vdid in ids], 0] = numbers[order]
    blocks = (block for block in [Block(times[order].to_numpy("datetime64[s]").astype(np.int64), values)])
    described = like.dataset_name, "frame", like.sensors, blocks, {like.feature: like.unit}, like.missing, timezone
    write(path, Readings(*described, "a pandas frame", str(like.path), local_zone=local_zone))
