"""A forecast as an HDF5 file, many scored ones streamed to HDF5 or Parquet, and those of others read."""

# Shape letters: W issues, B of a batch, P horizon steps, N sensors, G targets

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from socialx.core.disk import atomic_write
from socialx.core.errors import Argument, SettingsError, SocialxError, counted, in_short, sample
from socialx.files.store.layout import PACKED, fixed_texts, plain_text
from socialx.files.store.open_hdf5 import open_for_writing, open_hdf5, packed_bytes, reserve
from socialx.files.store.time_axis import JITTER_S

if TYPE_CHECKING:
    import pandas as pd

SCORED_SUFFIXES = (".h5", ".parquet")
READ_SUFFIXES = (".csv", *SCORED_SUFFIXES)
NAMES, TIMES = ("sensors", "targets", "units"), ("origin", "times")
COLUMNS = ("origin", "time", "sensor", "target", "unit", "lead_minutes", "forecast")  # a table may have others
AS_WRITTEN = "write it as predict does: origin, sensor, lead_minutes, forecast"
CHUNK_WINDOWS = 16  # of scored forecasts, in one chunk of HDF5


def write_forecast(path: Path, forecast: Any) -> None:
    """Write the arrays of a ``Forecast`` to a path that nobody else reads before this returns.

    forecast float32 [W,P,N,G]; times, origin ``YYYY-MM-DD HH:MM:SS`` [W,P], [W]; sensors [N], targets and units [G];
    readings int64 [W,N]; reported bool [W,N].  With intervals: lower, upper float32 [W,P,N,G], and their level in the
    attribute ``interval``.
    """
    with open_for_writing(path, "w", "v110") as file:
        _describe(file, forecast)
        arrays = {"forecast": forecast.values}
        if forecast.interval is not None:
            file.attrs["interval"] = forecast.interval
            arrays |= {"lower": forecast.lower, "upper": forecast.upper}
        arrays |= {"times": _text(forecast.times), "origin": _text(forecast.origin), **_names(forecast)}
        _store(file, arrays | {"readings": forecast.readings, "reported": forecast.reported})


@dataclass(frozen=True, eq=False)
class Scored:
    """What is known of scored forecasts before the first one is made.  origin datetime64[s] [W]."""

    run: str
    dataset: str
    timezone: str | None
    sensors: tuple[str, ...]
    targets: tuple[str, ...]
    units: tuple[str, ...]
    step_minutes: int
    lookback: int
    horizon: int
    origin: np.ndarray

    def times(self, windows: slice = slice(None)) -> np.ndarray:
        """What some windows forecast, datetime64[s] [B,P]."""
        ahead = 60 * self.step_minutes * np.arange(1, self.horizon + 1)
        return self.origin[windows, None] + ahead.astype("timedelta64[s]")


Add = Callable[[np.ndarray, np.ndarray], None]


def check_scored(path: Path) -> None:
    """Raise SettingsError for a name that no format has."""
    suffix = path.suffix.lower()
    if suffix not in SCORED_SUFFIXES:
        raise SettingsError(path, f"no format ends in {path.suffix!r}", f"name it {', '.join(SCORED_SUFFIXES)}")


def read_forecasts(path: Path, about: Scored) -> np.ndarray:
    """The forecasts in a file for the windows of ``about``, float32 [W,P,N,G] in its units; NaN where it has none.

    .h5 is what ``write_forecast`` writes.  .csv and .parquet have a row per forecast with the columns origin,
    sensor, forecast, lead_minutes or time, and target where there are several.  Times with a zone become wall times
    of the data.  A unit is compared; other columns, and forecasts that were issued at other times, are left out.
    Raises SocialxError for what is no such file, and for sensors, steps and units that are not those of ``about``.
    """
    read = _from_hdf5 if path.suffix.lower() == ".h5" else _from_table
    issued, minutes, sensors, targets, values = read(path, about)  # of shapes that broadcast
    windows = about.origin.astype("datetime64[s]").astype(np.int64)
    near = np.searchsorted(windows, issued - JITTER_S).clip(max=len(windows) - 1)
    near = np.where(np.abs(windows[near] - issued) <= JITTER_S, near, -1)
    steps = np.asarray(minutes) / about.step_minutes
    if (odd := np.unique(minutes[(steps % 1 != 0) | (steps < 1) | (steps > about.horizon)])).size:
        whole = f"{about.horizon} steps of {about.step_minutes} min"
        longer = int(odd[-1] // about.step_minutes)
        fits = (odd % about.step_minutes == 0).all() and longer > about.horizon
        remedy = f"windows that reach so far: {Argument('data.horizon', longer)}" if fits else "write minutes"
        found = f"{', '.join(f'{each:g}' for each in odd[:3])} min ahead is no step of a window, which has {whole}"
        raise SocialxError(path, found, remedy)
    shape = len(windows), about.horizon, len(about.sensors), len(about.targets)
    made = np.full((shape[0] + 1, *shape[1:]), np.nan, np.float32)  # the last one: of windows that are not asked for
    made[near, steps.astype(np.int64) - 1, sensors, targets] = np.where(np.isfinite(values), values, np.nan)
    entries = int((np.isfinite(values) & np.broadcast_to(near >= 0, values.shape)).sum())
    if repeated := entries - int(np.isfinite(made[:-1]).sum()):
        raise SocialxError(path, f"{repeated} forecasts repeat the issue, sensor and step of another", "keep one")
    return made[:-1]


Entries = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _from_hdf5(path: Path, about: Scored) -> Entries:
    """Seconds of issue [W,1,1,1], minutes ahead [W,P,1,1], sensors, targets and values [W,P,N,G]."""
    with open_hdf5(path, AS_WRITTEN) as file:
        if "data" in file:
            raise SocialxError(
                path, "it holds readings", f"name it with {Argument('data.path', path)}, beside a file of forecasts"
            )
        if lacking := [name for name in ("forecast", *TIMES, *NAMES) if name not in file]:
            raise SocialxError(path, f"no {', '.join(lacking)} in it", AS_WRITTEN)
        values = file["forecast"][:].astype(np.float32)
        texts = {name: np.char.decode(file[name][:].astype(bytes), "utf-8", "replace") for name in (*TIMES, *NAMES)}
        issued, times = (texts[name].astype("datetime64[s]").astype(np.int64) for name in TIMES)
        sensors, targets, units = (texts[name].tolist() for name in NAMES)
    if values.shape != (*times.shape, len(sensors), len(targets)) or times.shape[:1] != issued.shape:
        raise SocialxError(path, "its arrays have different lengths", AS_WRITTEN)
    issued = issued.reshape(-1, 1, 1, 1)
    minutes = (times[:, :, None, None] - issued) / 60
    _check_units(path, zip(targets, units, strict=True), about)
    columns = _places(path, "sensors", sensors, about.sensors), _places(path, "targets", targets, about.targets)
    return issued, minutes, columns[0][:, None], columns[1], values


def _table(path: Path) -> pd.DataFrame:
    """A table of forecasts as it is written; refuses one that names a column twice."""
    import pandas as pd

    texts = dict.fromkeys(("origin", "time", "sensor", "target", "unit"), str)
    try:
        csv = path.suffix.lower() == ".csv"
        table = pd.read_csv(path, dtype=texts) if csv else pd.read_parquet(path)
    except FileNotFoundError:
        raise SocialxError(path, "no such file", "check the path") from None
    except (OSError, ValueError) as error:
        raise SocialxError(path, f"not a table ({in_short(error)})", AS_WRITTEN) from None
    names = [re.sub(r"\.[0-9]+$", "", str(name)) for name in table]  # pandas numbers a name that stands twice
    if twice := sorted({name for name in COLUMNS if names.count(name) > 1}):
        raise SocialxError(path, f"several columns {twice[0]}", AS_WRITTEN)
    return table


def _from_table(path: Path, about: Scored) -> Entries:
    """The columns of a table, a row per forecast."""
    import pandas as pd

    table = _table(path)
    several = len(about.targets) > 1
    ahead = "lead_minutes" if "lead_minutes" in table else "time"
    if lacking := [name for name in ("origin", "sensor", "forecast", ahead) if name not in table]:
        names = "lead_minutes or time" if lacking[0] == "time" else lacking[0]
        raise SocialxError(path, f"no column {names} (it has {sample(list(map(str, table)))})", AS_WRITTEN)
    if several and "target" not in table:
        raise SocialxError(path, f"no column target, and there are {', '.join(about.targets)}", AS_WRITTEN)
    if not len(table):
        raise SocialxError(path, "no forecast in it", AS_WRITTEN)

    def coded(name: str) -> tuple[np.ndarray, list[str]]:
        codes, found = pd.factorize(table[name])
        if (codes < 0).any():
            raise SocialxError(path, f"{(codes < 0).sum()} empty cells in the column {name}", AS_WRITTEN)
        return codes, [str(each) for each in found]

    def seconds(name: str) -> np.ndarray:
        codes, found = coded(name)
        try:
            times = pd.DatetimeIndex(pd.to_datetime(found, format="ISO8601"))
        except ValueError as error:
            zones = "Mixed timezones" in str(error)  # pandas advises what nobody can do here
            wrong = (
                "times of several offsets from UTC" if zones else f"{in_short(error)} is no time like 2012-05-23 16:00"
            )
            what = f"the column {name}: {wrong}"
            raise SocialxError(path, what, AS_WRITTEN) from None
        if times.tz is not None:
            if about.timezone is None:
                raise SocialxError(path, f"times of {times.tz}, and the data does not say its zone", "give wall times")
            times = times.tz_convert(about.timezone).tz_localize(None)
        return times.to_numpy("datetime64[s]").astype(np.int64)[codes]

    def numbers(name: str) -> np.ndarray:
        found = pd.to_numeric(table[name], errors="coerce")
        texts = table[name].dtype.kind in "bO"  # else no cell is True or False
        truths = table[name].map(lambda cell: isinstance(cell, bool)) if texts else False
        wrong = (found.isna() & table[name].notna()) | truths | (name == "lead_minutes") & ~np.isfinite(found)
        if lost := [str(cell) for cell in table[name][wrong]]:
            raise SocialxError(path, f"{len(lost)} cells of the column {name} are no number", AS_WRITTEN, sample=lost)
        return found.to_numpy(np.float64, na_value=np.nan)

    def places(name: str, known: tuple[str, ...]) -> np.ndarray:
        codes, found = coded(name)
        return _places(path, f"{name}s", found, known)[codes]

    issued = seconds("origin")
    minutes = numbers("lead_minutes") if ahead == "lead_minutes" else (seconds("time") - issued) / 60
    if ahead == "lead_minutes" and "time" in table and (other := seconds("time") - issued != 60 * minutes).any():
        row = table[other].iloc[0]
        one = f"{row['time']} is not {row['lead_minutes']} min after {row['origin']}"
        raise SocialxError(
            path, f"time and lead_minutes differ in {counted(int(other.sum()), 'row')} ({one})", AS_WRITTEN
        )
    targets = places("target", about.targets) if "target" in table else np.zeros(len(table), np.int64)
    if "unit" in table:
        _, units = coded("unit")
        pairs = [(about.targets[0], unit) for unit in units]
        if several:
            pairs = list(table[["target", "unit"]].drop_duplicates().itertuples(index=False, name=None))
        _check_units(path, pairs, about)
    return issued, minutes, places("sensor", about.sensors), targets, numbers("forecast").astype(np.float32)


def _places(path: Path, what: str, names: Sequence[str], known: tuple[str, ...]) -> np.ndarray:
    """Where names stand among those of the data, int64."""
    place = {name: number for number, name in enumerate(known)}
    names = [name if name in place else name.removeprefix("'") for name in names]  # a formula, as a table has it
    if lost := [name for name in names if name not in place]:
        found = f"{len(lost)} of {len(names)} {what} are not in the data"
        raise SocialxError(path, found, f"name them as the data does, such as {known[0]}", sample=lost)
    return np.array([place[name] for name in names], np.int64)


def _check_units(path: Path, found: Iterable[tuple[str, str]], about: Scored) -> None:
    units = dict(zip(about.targets, about.units, strict=True))
    for target, unit in found:
        if unit != (own := units.get(target, unit)):
            raise SocialxError(path, f"its {target} is in {unit}, and that of the data is in {own}", f"write {own}")


@contextmanager
def saving(path: Path, about: Scored) -> Iterator[Add]:
    """Write forecasts and truth of all windows as .h5 or .parquet, whole or not at all, one batch after the other.

    The block calls what it is given with the forecast and the truth float32 [B,P,N,G] of the next windows, NaN where
    there is no reading.  HDF5 has both as [W,P,N,G], beside times and names as ``write_forecast`` writes them.  Parquet
    has a row per issue, horizon step, sensor and target.
    """
    write = _to_hdf5 if path.suffix.lower() == ".h5" else _to_parquet
    with atomic_write(path) as temporary, write(temporary, about) as add:
        yield add


@contextmanager
def _to_hdf5(path: Path, about: Scored) -> Iterator[Add]:
    shape = (len(about.origin), about.horizon, len(about.sensors), len(about.targets))
    chunks, seen = (min(CHUNK_WINDOWS, shape[0]), *shape[1:]), 0
    with open_for_writing(path, "w", "v110") as file:
        _describe(file, about)
        _store(file, {"origin": _text(about.origin), "times": _text(about.times()), **_names(about)})
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

    text, time = pa.dictionary(pa.int32(), pa.string()), pa.timestamp("s")
    names = {"sensor": text, "target": text, "unit": text}
    numbers = {"lead_minutes": pa.int32(), "forecast": pa.float32(), "truth": pa.float32()}
    schema = pa.schema(({"origin": time, "time": time} | names | numbers).items())
    minutes = about.step_minutes * np.arange(1, about.horizon + 1, dtype=np.int32)
    seen = 0

    with pq.ParquetWriter(path, schema) as file:

        def add(forecast: np.ndarray, truth: np.ndarray) -> None:
            nonlocal seen
            window, step, sensor, target = (axis.ravel() for axis in np.indices(forecast.shape, np.int32))
            windows, seen = slice(seen, seen + len(forecast)), seen + len(forecast)
            columns = {
                "origin": about.origin[windows][window],
                "time": about.times(windows)[window, step],
                "sensor": pa.DictionaryArray.from_arrays(sensor, about.sensors),
                "target": pa.DictionaryArray.from_arrays(target, about.targets),
                "unit": pa.DictionaryArray.from_arrays(target, about.units),
                "lead_minutes": minutes[step],
                "forecast": forecast.ravel(),
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
    file.attrs.update(schema="socialx.forecast/2", dataset=forecast.dataset, run=plain_text(str(forecast.run)))
    file.attrs.update(step_minutes=forecast.step_minutes, lookback=forecast.lookback)
    file.attrs["timezone"] = forecast.timezone or ""


def _names(forecast: Any) -> dict[str, np.ndarray]:
    """The names of a forecast."""
    return {name: fixed_texts(getattr(forecast, name)) for name in NAMES}


def _text(times: np.ndarray) -> np.ndarray:
    """datetime64[s] -> ``YYYY-MM-DD HH:MM:SS`` as S19, of the same shape."""
    return np.char.replace(np.datetime_as_string(times, unit="s"), "T", " ").astype("S19")
