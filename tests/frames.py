"""Tables of readings as pandas makes them, and what convert makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import socialx
from socialx.files.store.store import open_store

IDS = ("4001", "4002", "4003", "4004")


def network(
    rows: int = 60, first: str = "2024-01-31 20:00", ids: Sequence[str] = IDS, seed: int = 0, times: str = "time"
) -> pd.DataFrame:
    """Speeds every five minutes with all the digits of a third, some of them missing; ``times`` names their column."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(20, 110, (rows, len(ids))) / 3
    values[rng.random(values.shape) < 0.1] = np.nan
    index = pd.date_range(first, periods=rows, freq="5min", name=times)
    return pd.DataFrame(values, columns=list(ids), index=index)


def long(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per reading, in order of time; with a volume beside the speed."""
    rows = frame.reset_index().melt("time", var_name="sensor", value_name="speed")
    rows["volume"] = np.arange(len(rows)) % 7
    return rows.sort_values(["time", "sensor"], kind="stable")


def places_of(ids: Sequence[str], path: Path) -> Path:
    """A table of positions."""
    degrees = 0.1 * np.arange(len(ids))
    pd.DataFrame({"id": ids, "lat": 48.1 + degrees, "lon": 11.1 + degrees}).to_csv(path, index=False)
    return path


def converted(path: Path | list[Path], feature: str = "avg_speed", **options: Any) -> pd.DataFrame:
    """The valid readings of the file that convert makes of a table: ``out.h5`` beside it."""
    options = {"without_positions": "meta" not in options, "missing": "none", "overwrite": True} | options
    output = (path if isinstance(path, Path) else path[0]).parent / "out.h5"
    socialx.convert("auto", path, output, **options)
    store = open_store(output, feature)
    readings = np.where(store.valid, store.values, np.nan)
    return pd.DataFrame(readings, index=pd.to_datetime(store.seconds, unit="s"), columns=list(store.sensors.ids))


def lacking(frame: pd.DataFrame, rows: np.ndarray) -> pd.DataFrame:
    """What is written of a table without these rows, bool [T]: they have no readings, and none stands at an end."""
    kept = np.flatnonzero(~rows)
    left = frame.astype(float)
    left[rows] = np.nan
    return left[kept[0] : kept[-1] + 1]


def same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    """All readings, at their times and sensors; the sensors may come in another order."""
    assert sorted(found.columns) == sorted(wanted.columns)
    assert (found.index == wanted.index).all()
    np.testing.assert_array_equal(found[list(wanted.columns)].to_numpy(), wanted.to_numpy(np.float32))
