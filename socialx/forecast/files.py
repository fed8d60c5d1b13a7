"""Write a forecast to HDF5, stream scored forecasts to HDF5 or Parquet, and read forecasts from files."""

# Shape letters: W issues, B of a batch, P horizon steps, N sensors, G targets

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from socialx.core.disk import atomic_write
from socialx.core.errors import Argument, SocialxError, counted, in_short, sample
from socialx.core.outputs import HEAD_BYTES, OutputKind
from socialx.files.store.layout import PACKED, fixed_texts, plain_text
from socialx.files.store.open_hdf5 import open_for_writing, open_hdf5, packed_bytes, reserve
from socialx.files.store.time_axis import JITTER_S, Clock

if TYPE_CHECKING:
    import pandas as pd

SCORED_SUFFIXES = (".h5", ".parquet")
READ_SUFFIXES = (".csv", *SCORED_SUFFIXES)
NAMES, TIMES = ("sensors", "targets", "units"), ("origin", "times")
COLUMNS = ("origin", "time", "sensor", "target", "unit", "lead_minutes", "forecast")  # a table may have others
AS_WRITTEN = "write it as predict does: origin, sensor, lead_minutes, forecast"
ZONED = re.compile(r":.*(Z|[+-][0-9:]+)$")  # a time with its offset from UTC
ANY = re.compile(b"")
CHUNK_WINDOWS = 16  # of scored forecasts, in one chunk of HDF5


@dataclass(frozen=True)
class ForecastKind(OutputKind):
    """An output with forecasts in a table or in HDF5, which has a column or data set of this name."""

    def check_name(self, path: Path) -> None:
        """Raise SettingsError for another suffix, and SocialxError for a workbook without openpyxl."""
        super().check_name(path)
        if path.suffix.lower() == ".xlsx" and find_spec("openpyxl") is None:
            raise SocialxError("forecast.excel", path, "openpyxl is not installed", "pip install 'socialx[excel]'")

    def recognises(self, path: Path) -> bool:
        """Return whether an existing file has forecasts, whatever its suffix."""
        with path.open("rb") as file:
            head = file.readline(HEAD_BYTES)
        if head.startswith(b"PAR1"):
            import pyarrow.parquet as pq

            return "forecast" in pq.read_schema(path).names
        if head.startswith(b"PK"):
            from socialx.files.sources.tables.cells import open_workbook

            with open_workbook(path) as book:
                return "forecast" in next(book.worksheets[0].iter_rows(values_only=True), ())
        if head.startswith(b"\x89HDF"):
            with open_hdf5(path, AS_WRITTEN) as stored:
                return "forecast" in stored
        return b"forecast" in re.split(rb"[,\r\n]", head)


FORECAST = ForecastKind("a forecast", (".csv", ".xlsx", ".parquet", ".h5"), ANY, asks=True)
SCORED = ForecastKind("a file of scored forecasts", SCORED_SUFFIXES, ANY, asks=True)


def write_forecast(path: Path, forecast: Any) -> None:
    """Write the arrays of a ``Forecast`` as HDF5.

    forecast float32 [W,P,N,G]; times, origin ``YYYY-MM-DD HH:MM:SS`` [W,P], [W]; sensors [N], targets and units [G];
    readings int64 [W,N]; reported bool [W,N].  With intervals: lower, upper float32 [W,P,N,G], and their level in the
    attribute ``interval``; with a threshold, the attribute ``below``: probability_below float32 [W,P,N,G].
    """
    with open_for_writing(path, "w", "v110") as file:
        _describe(file, forecast)
        file.attrs.update(forecast.asked)
        arrays = {**forecast.numbers(), "times": _text(forecast.times), "origin": _text(forecast.origin)}
        _store(file, {**arrays, **_names(forecast), "readings": forecast.readings, "reported": forecast.reported})


@dataclass(frozen=True, eq=False)
class Scored:
    """The windows that forecasts are scored on: names, sizes and forecast origins datetime64[s] [W]."""

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
    local_zone: str | None = None

    def times(self, windows: slice = slice(None)) -> np.ndarray:
        """Return the target times of some windows, datetime64[s] [B,P]."""
        ahead = 60 * self.step_minutes * np.arange(1, self.horizon + 1)
        return self.origin[windows, None] + ahead.astype("timedelta64[s]")


Add = Callable[[np.ndarray, np.ndarray], None]


def read_forecasts(path: Path, about: Scored) -> np.ndarray:
    """Read the forecasts in a file for the windows of ``about``, float32 [W,P,N,G], NaN where the file has a gap.

    ``write_forecast`` writes .h5 files. Tables (.csv, .parquet) have a row per forecast with the columns origin,
    sensor, forecast, lead_minutes or time, and target for several targets. Times with an offset become file times, as
    are times without. The reader compares units, and skips further columns and forecasts from further origins. Raises
    SocialxError for another format, and for sensors, steps or units that differ from ``about``.
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
        remedy = f"choose windows that reach so far: {Argument('data.horizon', longer)}" if fits else "write minutes"
        lead = ", ".join(f"{minute:g}" for minute in odd[:3])
        problem = f"a lead time of {lead} min is outside the window, which has {whole}"
        raise SocialxError("given.lead", path, problem, remedy)
    shape = len(windows), about.horizon, len(about.sensors), len(about.targets)
    made = np.full((shape[0] + 1, *shape[1:]), np.nan, np.float32)  # the last one: of windows that are not asked for
    made[near, steps.astype(np.int64) - 1, sensors, targets] = np.where(np.isfinite(values), values, np.nan)
    entries = int((np.isfinite(values) & np.broadcast_to(near >= 0, values.shape)).sum())
    if repeated := entries - int(np.isfinite(made[:-1]).sum()):
        problem = f"{repeated} forecasts repeat an origin, a sensor and a step"
        raise SocialxError("given.repeat", path, problem, "keep one")
    return made[:-1]


Entries = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _from_hdf5(path: Path, about: Scored) -> Entries:
    """Return origins [W,1,1,1], minutes ahead [W,P,1,1], indices of sensors [N,1] and targets [G], values [W,P,N,G]."""
    with open_hdf5(path, AS_WRITTEN) as file:
        if "data" in file:
            problem = "the file holds readings"
            raise SocialxError("given.readings", path, problem, f"name readings with {Argument('data.path', path)}")
        if lacking := [name for name in ("forecast", *TIMES, *NAMES) if name not in file]:
            raise SocialxError("given.lacks", path, f"the file lacks {', '.join(lacking)}", AS_WRITTEN)
        values = file["forecast"][:].astype(np.float32)
        texts = {name: np.char.decode(file[name][:].astype(bytes), "utf-8", "replace") for name in (*TIMES, *NAMES)}
        issued, times = (texts[name].astype("datetime64[s]").astype(np.int64) for name in TIMES)
        sensors, targets, units = (texts[name].tolist() for name in NAMES)
    if values.shape != (*times.shape, len(sensors), len(targets)) or times.shape[:1] != issued.shape:
        raise SocialxError("given.lengths", path, "the arrays have different lengths", AS_WRITTEN)
    issued = issued.reshape(-1, 1, 1, 1)
    minutes = (times[:, :, None, None] - issued) / 60
    _check_units(path, zip(targets, units, strict=True), about)
    columns = _places(path, "sensors", sensors, about.sensors), _places(path, "targets", targets, about.targets)
    return issued, minutes, columns[0][:, None], columns[1], values


def _table(path: Path) -> pd.DataFrame:
    """Read a table with forecasts.  Raise SocialxError for other files, and for a column that stands twice."""
    import pandas as pd

    texts = dict.fromkeys(("origin", "time", "sensor", "target", "unit"), str)
    try:
        csv = path.suffix.lower() == ".csv"
        table = pd.read_csv(path, dtype=texts) if csv else pd.read_parquet(path)
    except FileNotFoundError:
        raise SocialxError("given.missing", path, "the file does not exist", "check the path") from None
    except (OSError, ValueError) as error:
        raise SocialxError("given.no-table", path, f"the file is not a table ({in_short(error)})", AS_WRITTEN) from None
    names = [re.sub(r"\.[0-9]+$", "", str(name)) for name in table]  # pandas numbers a name that stands twice
    if twice := sorted({name for name in COLUMNS if names.count(name) > 1}):
        raise SocialxError("given.column-twice", path, f"the column {twice[0]} stands twice", AS_WRITTEN)
    return table


def _from_table(path: Path, about: Scored) -> Entries:
    """Return origins, minutes ahead, sensor and target indices, and values of a table, each an array by table row."""
    import pandas as pd

    table = _table(path)
    several = len(about.targets) > 1
    ahead = "lead_minutes" if "lead_minutes" in table else "time"
    if lacking := [name for name in ("origin", "sensor", "forecast", ahead) if name not in table]:
        names = "lead_minutes or time" if lacking[0] == "time" else lacking[0]
        problem = f"the column {names} is missing among {sample(list(map(str, table)))}"
        raise SocialxError("given.lacks-column", path, problem, AS_WRITTEN)
    if several and "target" not in table:
        problem = f"the column target is missing for {', '.join(about.targets)}"
        raise SocialxError("given.no-target", path, problem, AS_WRITTEN)
    if not len(table):
        raise SocialxError("given.empty", path, "the table is empty", AS_WRITTEN)

    def categories(name: str) -> tuple[np.ndarray, list[str]]:
        codes, values = pd.factorize(table[name])
        if (codes < 0).any():
            problem = f"the column {name} has {(codes < 0).sum()} empty cells"
            raise SocialxError("given.empty-cells", path, problem, AS_WRITTEN)
        return codes, list(map(str, values))

    def seconds(name: str) -> np.ndarray:
        codes, texts = categories(name)
        return _read_times(path, name, texts, about)[:, codes]

    def numbers(name: str) -> np.ndarray:
        parsed = pd.to_numeric(table[name], errors="coerce")
        texts = table[name].dtype.kind in "bO"  # else no cell is True or False
        truths = table[name].map(lambda cell: isinstance(cell, bool)) if texts else False
        wrong = (parsed.isna() & table[name].notna()) | truths | (name == "lead_minutes") & ~np.isfinite(parsed)
        if lost := [str(cell) for cell in table[name][wrong]]:
            problem = f"{len(lost)} cells in the column {name} are not numbers"
            raise SocialxError("given.no-numbers", path, problem, AS_WRITTEN, sample=lost)
        return parsed.to_numpy(np.float64, na_value=np.nan)

    def places(name: str, names: tuple[str, ...]) -> np.ndarray:
        codes, texts = categories(name)
        return _places(path, f"{name}s", texts, names)[codes]

    begun, issued = seconds("origin")
    ends = seconds("time") if "time" in table else (begun, issued)
    minutes = numbers("lead_minutes") if ahead == "lead_minutes" else (ends[0] - begun) / 60
    other = (ends[0] - begun != 60 * minutes) & (ends[1] - issued != 60 * minutes)  # wall times may jump in between
    if ahead == "lead_minutes" and "time" in table and other.any():
        row = table[other].iloc[0]
        one = f"{row['time']} is not {row['lead_minutes']} min after {row['origin']}"
        problem = f"time and lead_minutes differ in {counted(int(other.sum()), 'row')} ({one})"
        raise SocialxError("given.lead-differs", path, problem, AS_WRITTEN)
    targets = places("target", about.targets) if "target" in table else np.zeros(len(table), np.int64)
    if "unit" in table:
        _, units = categories("unit")
        pairs = [(about.targets[0], unit) for unit in units]
        if several:
            pairs = list(table[["target", "unit"]].drop_duplicates().itertuples(index=False, name=None))
        _check_units(path, pairs, about)
    return issued, minutes, places("sensor", about.sensors), targets, numbers("forecast").astype(np.float32)


def _read_times(path: Path, column: str, texts: list[str], about: Scored) -> np.ndarray:
    """Return texts as UTC and as file seconds, int64 [2,t].  Raise SocialxError for texts that are no times."""
    import pandas as pd

    try:
        times = pd.DatetimeIndex(pd.to_datetime(texts, format="ISO8601", utc=True))
    except ValueError as error:
        wrong = f"{in_short(error)} is not a time like 2012-05-23 16:00"
        raise SocialxError("given.times", path, f"the column {column} has a mistake: {wrong}", AS_WRITTEN) from None
    if zoned := [text for text in texts if ZONED.search(text)]:
        if about.timezone is None:
            problem = f"times such as {zoned[0]} have an offset, and the data lacks a zone"
            raise SocialxError("given.offset", path, problem, "give wall times")
        if len(zoned) < len(texts):
            problem = f"some times of the column {column} lack an offset from UTC"
            raise SocialxError("given.some-offsets", path, problem, AS_WRITTEN)
    stored = times.tz_convert(about.timezone) if zoned else times
    both = [index.tz_localize(None).to_numpy("datetime64[s]") for index in (times, stored)]
    return np.stack(both).astype(np.int64)


def _places(path: Path, kind: str, names: Sequence[str], expected: tuple[str, ...]) -> np.ndarray:
    """Return the index of each name in ``expected``, int64. Raise SocialxError for other names; kind: a noun."""
    numbers = {name: number for number, name in enumerate(expected)}
    names = [name if name in numbers else name.removeprefix("'") for name in names]  # a formula, as a table has it
    if lost := [name for name in names if name not in numbers]:
        unknown = f"the data lacks {len(lost)} of {len(names)} {kind}"
        raise SocialxError(
            "given.foreign", path, unknown, f"write names as in the data, such as {expected[0]}", sample=lost
        )
    return np.array([numbers[name] for name in names], np.int64)


def _check_units(path: Path, pairs: Iterable[tuple[str, str]], about: Scored) -> None:
    """Raise SocialxError for a pair of target and unit in a file that differs from the unit to score."""
    units = dict(zip(about.targets, about.units, strict=True))
    for target, unit in pairs:
        if unit != (expected := units.get(target, unit)):
            problem = f"{target} is in {unit}, and the data is in {expected}"
            raise SocialxError("given.other-unit", path, problem, f"write {expected}")


@contextmanager
def scored_writer(path: Path, about: Scored) -> Iterator[Add]:
    """Write forecasts and observations of all windows as .h5 or .parquet, batch by batch, atomically.

    The block calls the given function with forecast and observations float32 [B,P,N,G] of the next windows, NaN for
    missing values.  HDF5 has both as [W,P,N,G], with times and names as in ``write_forecast``.  Parquet has a row per
    origin, horizon step, sensor and target.
    """
    write = _to_hdf5 if path.suffix.lower() == ".h5" else _to_parquet
    with atomic_write(path) as temporary, write(temporary, about) as add:
        yield add


@contextmanager
def _to_hdf5(path: Path, about: Scored) -> Iterator[Add]:
    """Yield a function that adds forecasts and observations [B,P,N,G] of the next windows to an HDF5 file."""
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
    """Yield a function that adds forecasts and observations [B,P,N,G] of the next windows to a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    clock = Clock(about.timezone, about.local_zone)
    zone = clock.frame_zone(about.origin.astype(np.int64))
    text, time = pa.dictionary(pa.int32(), pa.string()), pa.timestamp("s", zone)
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
            ends = [times.astype(np.int64) for times in (about.origin[windows], about.times(windows))]
            ends = [(clock.utc(times) if zone else times).astype("datetime64[s]") for times in ends]
            columns = {
                "origin": ends[0][window],
                "time": ends[1][window, step],
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
    """Write arrays by name as compressed HDF5 datasets."""
    for name, array in arrays.items():
        reserve(file, packed_bytes(array.nbytes))
        file.create_dataset(name, data=array, chunks=True, **PACKED)


def _describe(file: h5py.File, forecast: Any) -> None:
    """Write the HDF5 attributes of a ``Forecast`` or ``Scored``: dataset, run, time step, lookback and time zone."""
    file.attrs.update(schema="socialx.forecast/2", dataset=forecast.dataset, run=plain_text(str(forecast.run)))
    file.attrs.update(step_minutes=forecast.step_minutes, lookback=forecast.lookback)
    file.attrs.update(timezone=forecast.timezone or "", local_zone=forecast.local_zone or "")


def _names(forecast: Any) -> dict[str, np.ndarray]:
    """Return sensors, targets and units of a ``Forecast`` or ``Scored`` as fixed-length texts for HDF5."""
    return {name: fixed_texts(getattr(forecast, name)) for name in NAMES}


def _text(times: np.ndarray) -> np.ndarray:
    """Return datetime64[s] as texts ``YYYY-MM-DD HH:MM:SS``, S19 in the same shape."""
    return np.char.replace(np.datetime_as_string(times, unit="s"), "T", " ").astype("S19")
