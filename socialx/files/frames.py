"""A pandas frame of readings, as a file that every task reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.errors import SettingsError, SocialxError
from socialx.files.hdf5_layout import Block, Readings
from socialx.files.store import Store
from socialx.files.writer import write

if TYPE_CHECKING:
    from pandas import DataFrame as Frame
else:
    Frame = Any  # pandas is loaded by whoever made one

WHERE = "data"


def write_frame(path: Path, frame: Frame, like: Store) -> None:
    """Write readings [T,N], wall times x sensor ids, with the facts of the file ``like``, of whose network they are.

    A cell without a number is a missing reading, and so is a sensor that the frame does not have.  Times with a zone
    become wall times of the file.  Raises SocialxError for other sensors, times that repeat, and odd readings, and
    SettingsError for what is no frame.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        remedy = "give a file, or a frame: pandas.DataFrame(readings, times, sensors)"
        raise SettingsError(WHERE, f"{type(frame).__name__} is no data", remedy)
    ids, times = [str(name) for name in frame.columns], frame.index
    place = {vdid: column for column, vdid in enumerate(like.sensors.ids)}
    if lost := [vdid for vdid in ids if vdid not in place]:
        what = f"{len(lost)} of {len(ids)} columns of the frame are no sensors of {like.path}"
        raise SocialxError(WHERE, what, "name each column by its sensor, and leave out others", sample=lost)
    if not isinstance(times, pd.DatetimeIndex):
        remedy = "make one: frame.index = pd.to_datetime(frame.index)"
        raise SocialxError(WHERE, "the index of the frame holds no times", remedy, sample=map(str, times[:1]))
    if times.tz is not None:
        if like.timezone is None:
            remedy = "give wall times without a zone: frame.tz_localize(None)"
            raise SocialxError(WHERE, f"times of {times.tz}, and {like.path} does not say its zone", remedy)
        times = times.tz_convert(like.timezone).tz_localize(None)
    repeated = times[times.duplicated()].astype(str).tolist() or [vdid for vdid in place if ids.count(vdid) > 1]
    if repeated:
        raise SocialxError(WHERE, f"{len(repeated)} rows or columns of the frame repeat", "keep one", sample=repeated)
    try:
        numbers = frame.to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise SocialxError(WHERE, f"not all cells are numbers ({error})", "give NaN where nothing was read") from None
    like.check_readings(numbers, times.to_numpy("datetime64[s]").astype(np.int64), ids, WHERE)
    order = np.argsort(times.to_numpy(), kind="stable")
    values = np.full((len(times), len(place)), np.nan, np.float32)
    values[:, [place[vdid] for vdid in ids]] = numbers[order]
    texts = times[order].strftime("%Y-%m-%d %H:%M:%S").to_numpy().astype("S19")
    blocks = (block for block in [Block(texts, values)])
    readings = Readings(
        like.dataset_name,
        "frame",
        like.sensors,
        blocks,
        like.unit,
        like.missing,
        like.timezone,
        source_data="a pandas frame",
        source_meta=str(like.path),
        feature=like.feature,
        local_zone=like.local_zone,
    )
    write(path, readings)
