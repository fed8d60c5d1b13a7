"""Tables of readings as pandas makes them, and what convert makes of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import socialx
from socialx.files.store.store import Store, open_store

IDS = ("4001", "4002", "4003", "4004")
KNOWN = (*IDS, "S1", "S2", "S3", "S4", "A", "B", "C", "a", "b", "c")  # sensors with positions


def network(
    rows: int = 60, first: str = "2024-01-31 20:00", ids: Sequence[str] = IDS, seed: int = 0, times: str = "time"
) -> pd.DataFrame:
    """Speeds every five minutes with all the digits of a third, some of them missing; ``times`` names their column."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(20, 110, (rows, len(ids))) / 3
    values[rng.random(values.shape) < 0.1] = np.nan
    return pd.DataFrame(values, columns=list(ids), index=pd.date_range(first, periods=rows, freq="5min", name=times))


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


def convert(path: Any, ids: Sequence[str] | None = None, **options: Any) -> Store:
    """The file that convert makes of a table, ``out.h5`` beside it; positions of sensors prove what the columns are."""
    first = path[0] if isinstance(path, list) else path
    if not {"meta_csv", "without_positions"} & set(options):
        options["meta_csv"] = places_of(KNOWN if ids is None else ids, first.with_name("at.csv"))
    socialx.convert("auto", path, first.with_name("out.h5"), **{"missing": "none", "overwrite": True} | options)
    return open_store(first.with_name("out.h5"))


def stored(store: Store, feature: str = "avg_speed") -> pd.DataFrame:
    """The valid readings of a feature of a file."""
    store = open_store(store.path, feature)
    values = np.where(store.valid, store.values, np.nan)
    return pd.DataFrame(values, pd.to_datetime(store.seconds, unit="s"), list(store.sensors.ids))


def converted(path: Any, feature: str = "avg_speed", **options: Any) -> pd.DataFrame:
    """The valid readings of the file that convert makes of a table."""
    return stored(convert(path, **options), feature)


def lacking(frame: pd.DataFrame, rows: np.ndarray) -> pd.DataFrame:
    """What is written of a table without these rows, bool [T]: they have no readings, and none stands at an end."""
    kept, left = np.flatnonzero(~rows), frame.astype(float)
    left[rows] = np.nan
    return left[kept[0] : kept[-1] + 1]


def same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    """All readings, at their times and sensors; the sensors may come in another order."""
    assert sorted(found.columns) == sorted(wanted.columns)
    assert (found.index == wanted.index).all()
    np.testing.assert_array_equal(found[list(wanted.columns)].to_numpy(), wanted.to_numpy(np.float32))
