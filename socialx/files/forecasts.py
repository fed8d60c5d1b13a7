"""A forecast as an HDF5 file, and many scored ones streamed to HDF5 or Parquet."""

# Shape letters: W issues, B of a batch, P horizon steps, N sensors, G targets

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from socialx.disk import replacing
from socialx.errors import SettingsError, SocialxError
from socialx.files.hdf5_layout import PACKED, plain_text
from socialx.files.open_hdf5 import packed_bytes, reserve, writing

SCORED_SUFFIXES = (".h5", ".parquet")
CHUNK_WINDOWS = 16  # of scored forecasts, in one chunk of HDF5


def write_forecast(path: Path, forecast: Any) -> None:
    """Write the arrays of a ``Forecast`` to a path that nobody else reads before this returns.

    forecast float32 [W,P,N,G]; times, issued_at ``YYYY-MM-DD HH:MM:SS`` [W,P], [W]; sensors [N], targets and units [G];
    readings int64 [W,N]; reported bool [W,N].  With intervals: lower, upper float32 [W,P,N,G], and their level in the
    attribute ``interval``.
    """
    with writing(path, "w", "v110") as file:
        _describe(file, forecast)
        if forecast.interval is not None:
            file.attrs["interval"] = forecast.interval
        ends = {} if forecast.interval is None else {"lower": forecast.lower, "upper": forecast.upper}
        arrays = {
            "forecast": forecast.values,
            **ends,
            "times": _text(forecast.times),
            "issued_at": _text(forecast.issued_at),
            **_names(forecast),
            "readings": forecast.readings,
            "reported": forecast.reported,
        }
        _store(file, arrays)


@dataclass(frozen=True, eq=False)
class Scored:
    """What is known of scored forecasts before the first one is made.  issued_at datetime64[s] [W]."""

    run: str
    dataset: str
    timezone: str | None
    sensors: tuple[str, ...]
    targets: tuple[str, ...]
    units: tuple[str, ...]
    step_minutes: int
    history: int
    horizon: int
    issued_at: np.ndarray

    def times(self, windows: slice = slice(None)) -> np.ndarray:
        """What some windows forecast, datetime64[s] [B,P]."""
        ahead = 60 * self.step_minutes * np.arange(1, self.horizon + 1)
        return self.issued_at[windows, None] + ahead.astype("timedelta64[s]")


Add = Callable[[np.ndarray, np.ndarray], None]


def check_scored(path: Path) -> None:
    """Raise SettingsError for a name that no format has, and SocialxError where its package is lacking."""
    suffix = path.suffix.lower()
    if suffix not in SCORED_SUFFIXES:
        raise SettingsError(path, f"no format ends in {path.suffix!r}", f"name it {', '.join(SCORED_SUFFIXES)}")
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        install = "pip install 'socialx[parquet]', or write .h5"
        raise SocialxError(path, "writing Parquet needs the package pyarrow", install)


@contextmanager
def saving(path: Path, about: Scored) -> Iterator[Add]:
    """Write forecasts and truth of all windows as .h5 or .parquet, whole or not at all, one batch after the other.

    The block calls what it is given with the forecast and the truth float32 [B,P,N,G] of the next windows, NaN where
    there is no reading.  HDF5 has both as [W,P,N,G], beside times and names as ``write_forecast`` writes them.  Parquet
    has a row per issue, horizon step, sensor and target.
    """
    write = _to_hdf5 if path.suffix.lower() == ".h5" else _to_parquet
    with replacing(path) as temporary, write(temporary, about) as add:
        yield add


@contextmanager
def _to_hdf5(path: Path, about: Scored) -> Iterator[Add]:
    shape = (len(about.issued_at), about.horizon, len(about.sensors), len(about.targets))
    chunks, seen = (min(CHUNK_WINDOWS, shape[0]), *shape[1:]), 0
    with writing(path, "w", "v110") as file:
        _describe(file, about)
        _store(file, {"issued_at": _text(about.issued_at), "times": _text(about.times()), **_names(about)})
        stored = [file.create_dataset(name, shape, "f4", chunks=chunks, **PACKED) for name in ("forecast", "truth")]

        def add(forecast: np.ndarray, truth: np.ndarray) -> None:
            nonlocal seen
            reserve(file, 2 * packed_bytes(forecast.nbytes + 4 * math.prod(chunks)))
            for dataset, values in zip(stored, (forecast, truth), strict=True):
                dataset[seen : seen + len(values)] = values
            seen += len(forecast)

        yield add


@contextmanager
def _to_parquet(path: Path, about: Scored) -> Iterator[Add]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    p, n, g = about.horizon, len(about.sensors), len(about.targets)
    text, time = pa.dictionary(pa.int32(), pa.string()), pa.timestamp("s")
    numbers = {"horizon": pa.int32(), "value": pa.float32(), "truth": pa.float32()}
    schema = pa.schema(
        {"issued_at": time, "time": time, "sensor": text, "target": text, "unit": text, **numbers}.items()
    )
    seen = 0

    def spread(values: np.ndarray, *shape: int) -> np.ndarray:
        """Values of this shape, with 1 where they are the same, -> all rows of a batch."""
        return np.broadcast_to(values.reshape(shape), (shape[0], p, n, g)).ravel()

    def names(values: tuple[str, ...], *shape: int) -> Any:
        places = np.broadcast_to(np.arange(len(values), dtype=np.int32).reshape(1, *shape[1:]), (shape[0], p, n, g))
        return pa.DictionaryArray.from_arrays(places.ravel(), pa.array(values))

    with pq.ParquetWriter(path, schema) as file:

        def add(forecast: np.ndarray, truth: np.ndarray) -> None:
            nonlocal seen
            b = len(forecast)
            windows, seen = slice(seen, seen + b), seen + b
            minutes = about.step_minutes * np.arange(1, p + 1, dtype=np.int32)
            columns = {
                "issued_at": spread(about.issued_at[windows], b, 1, 1, 1),
                "time": spread(about.times(windows), b, p, 1, 1),
                "sensor": names(about.sensors, b, 1, n, 1),
                "target": names(about.targets, b, 1, 1, g),
                "unit": names(about.units, b, 1, 1, g),
                "horizon": np.broadcast_to(minutes.reshape(1, p, 1, 1), forecast.shape).ravel(),
                "value": forecast.ravel(),
                "truth": pa.array(truth.ravel(), from_pandas=True),  # NaN is null
            }
            file.write_table(pa.table(columns, schema))

        yield add


def _store(file: h5py.File, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays by their names."""
    for name, array in arrays.items():
        reserve(file, packed_bytes(array.nbytes))
        file.create_dataset(name, data=array, chunks=True, **PACKED)


def _describe(file: h5py.File, forecast: Any) -> None:
    """The attributes of a forecast."""
    file.attrs.update(schema="socialx.forecast/1", dataset=forecast.dataset, run=plain_text(str(forecast.run)))
    file.attrs.update(step_minutes=forecast.step_minutes, history=forecast.history)
    file.attrs["timezone"] = forecast.timezone or ""


def _names(forecast: Any) -> dict[str, np.ndarray]:
    """The names of a forecast."""
    return {
        "sensors": np.array(forecast.sensors, "S64"),
        "targets": np.array(forecast.targets, "S64"),
        "units": np.array([unit.encode() for unit in forecast.units], "S64"),
    }


def _text(times: np.ndarray) -> np.ndarray:
    """datetime64[s] -> ``YYYY-MM-DD HH:MM:SS`` as S19, of the same shape."""
    return np.char.replace(np.datetime_as_string(times, unit="s"), "T", " ").astype("S19")
