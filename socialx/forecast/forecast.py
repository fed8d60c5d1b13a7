"""Hold a forecast with observations and input status, and write files, tables and pictures."""

# Shape letters: W issues, P horizon steps, N sensors, G targets, R observed rows

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.core.disk import as_cell, atomic_write
from socialx.core.errors import Argument, SettingsError, SocialxError
from socialx.core.notebook import ROWS, ResultRepr, names_in
from socialx.core.outputs import PICTURE
from socialx.files.store.time_axis import Clock
from socialx.forecast.files import FORECAST, write_forecast

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COMPLETE, PARTIAL, MISSING, NEVER = "complete", "partial", "missing", "never"
SHEET_ROWS = (1 << 20) - 1  # below the header


@dataclass(frozen=True, eq=False)
class Observed:
    """Hold observations around a forecast: times datetime64[s] [R], values float32 [R,N,G], NaN for missing values."""

    times: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(ResultRepr):
    """Hold forecasts for N sensors from W forecast origins over P steps; arrays have file times.

    Args:
        origin: time of the last row read, datetime64[s] [W].
        times: target times, datetime64[s] [W,P].
        values: forecasts float32 [W,P,N,G] in ``units``, per target.
        readings: lookback rows with a valid observation of the first target, int64 [W,N].
        reported: whether the sensor had a valid observation until the origin, bool [W,N].
        observed: observations around these times, later rows included.
        timezone: None if the file lacks a zone.
        interval: level of the prediction intervals, such as 0.9; None without intervals.
        lower, upper: ends of the prediction intervals, float32 [W,P,N,G].
        below: threshold in the unit of the target, such as 30; None without probabilities.
        probability: probability that the target falls below the threshold, float32 [W,P,N,G].
        notes: reasons to doubt the numbers.
        local_zone: the zone in texts, tables and pictures, if the file is in UTC.
    """

    sensors: tuple[str, ...]
    targets: tuple[str, ...]
    units: tuple[str, ...]
    origin: np.ndarray
    times: np.ndarray
    values: np.ndarray
    readings: np.ndarray
    reported: np.ndarray
    lookback: int
    step_minutes: int
    timezone: str | None
    run: str
    dataset: str
    observed: Observed
    interval: float | None = None
    lower: np.ndarray | None = None
    upper: np.ndarray | None = None
    below: float | None = None
    probability: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    local_zone: str | None = None

    @property
    def clock(self) -> Clock:
        """The clock in the file, and in texts."""
        return Clock(self.timezone, self.local_zone)

    @property
    def unit(self) -> str:
        """Unit of the first target."""
        return self.units[0]

    @property
    def marks(self) -> np.ndarray:
        """Input status of each forecast, text [W,N].

        complete: every lookback row has an observation; partial: some rows; missing: the last observation is older than
        the lookback; never: the sensor is silent so far, and the forecast starts from the mean of the training data.
        """
        cases = [~self.reported, self.readings == 0, self.readings < self.lookback]
        return np.select(cases, [NEVER, MISSING, PARTIAL], COMPLETE)

    def select(self, sensors: str | Sequence[str]) -> Forecast:
        """Return the forecast for some sensors in the given order; sensors: ids, or a text with commas between ids.

        Raises SettingsError for an unknown id.
        """
        sensors = names_in(sensors)
        columns_by_id = {vdid: column for column, vdid in enumerate(self.sensors)}
        lost = [vdid for vdid in sensors if vdid not in columns_by_id]
        if lost or not sensors:
            lacking = f"the forecast lacks {len(lost)} of {len(sensors)} sensors" if lost else "the list is empty"
            known_ids = f"choose from {', '.join(self.sensors[:5])}, ..."
            raise SettingsError("forecast.no-sensor", "", f"{Argument('sensors')}: {lacking}", known_ids, sample=lost)
        columns = [columns_by_id[vdid] for vdid in sensors]
        observed = Observed(self.observed.times, self.observed.values[:, columns])
        return replace(
            self,
            sensors=tuple(sensors),
            values=self.values[:, :, columns],
            **self._added((slice(None), slice(None), columns)),
            readings=self.readings[:, columns],
            reported=self.reported[:, columns],
            observed=observed,
        )

    def __getitem__(self, sensor: str | int | Sequence[str]) -> Forecast:
        """Return ``select(sensor)``; an id may be a number."""
        return self.select(str(sensor) if isinstance(sensor, int) else sensor)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sensors)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``values``, (W, P, N, G)."""
        return self.values.shape

    def first_steps(self, seconds: int | None) -> Forecast:
        """Return the forecast up to a lead time in seconds; None for all lead times."""
        steps = slice(None if seconds is None else seconds // (60 * self.step_minutes))
        added = self._added((slice(None), steps))
        return replace(self, values=self.values[:, steps], times=self.times[:, steps], **added)

    @property
    def asked(self) -> dict[str, float]:
        """Interval level and probability threshold, where present."""
        return {name: value for name in ("interval", "below") if (value := getattr(self, name)) is not None}

    def _added(self, entries: Any = ...) -> dict[str, Any]:
        parts = {"lower": self.lower, "upper": self.upper, "probability": self.probability}
        return {name: part[entries] for name, part in parts.items() if part is not None}

    def largest_changes(self, count: int) -> tuple[str, ...]:
        """Return ids of ``count`` sensors: largest |forecast - last observation|, or highest probability if present."""
        last = self.at_issue()  # [W,N]
        change = np.abs(self.values[..., 0] - last[:, None])  # [W,P,N]
        change = change if self.probability is None else self.probability[..., 0]
        largest = np.nan_to_num(change, nan=-1.0).max(axis=(0, 1))
        order = np.argsort(-largest, kind="stable")[:count]
        return tuple(self.sensors[column] for column in order)

    def at_issue(self) -> np.ndarray:
        """Return the observation at each forecast origin, first target, float32 [W,N], NaN for missing values."""
        rows = np.searchsorted(self.observed.times, self.origin)
        return self.observed.values[rows, :, 0]

    def highest_probability(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the highest probability below the threshold after the last origin, float32 [N], and its step [N]."""
        last = np.asarray(self.probability)[-1, ..., 0]  # [P,N]
        return last.max(axis=0), last.argmax(axis=0)

    def headline(self) -> str:
        """Return a line for display: target, sensor count, origin and horizon."""
        w, p, n, _ = self.values.shape
        zone = self.clock.name or "zone not stored"
        minutes = self.step_minutes * p
        quantity = ", ".join(f"{name} ({unit})" for name, unit in zip(self.targets, self.units, strict=True))
        first, last = map(self.clock.text, self.origin[[0, -1]].astype(np.int64).tolist())
        issued = f"forecast origin {first}" if w == 1 else f"{w} forecast origins from {first} to {last}"
        sensors = f"{n} sensor{'' if n == 1 else 's'}"
        incomplete = int((self.marks != COMPLETE).any(axis=0).sum())
        marked = f"; {incomplete} with an incomplete lookback" if incomplete else ""
        added = [] if self.interval is None else [f"{100 * self.interval:g} % intervals"]
        added += [] if self.below is None else [f"the probability below {self.below:g}"]
        level = f", with {' and '.join(added)}" if added else ""
        steps = f"{p} steps of {self.step_minutes} min = {minutes} min"
        return f"{quantity} of {sensors}, {issued} ({zone}), {steps}{level}{marked}"

    def table(self) -> list[dict[str, Any]]:
        """Return the last forecast of the first sensors for display: a row per sensor, a column per time."""
        texts = map(self.clock.text, self.times[-1].astype(np.int64).tolist())
        times = [text[11:16] + text[19:] for text in texts]
        columns = self.values[-1, :, :ROWS, 0].T.tolist()
        if self.below is not None:
            times.append(f"probability below {self.below:g}")
            columns = np.c_[columns, self.highest_probability()[0][:ROWS]].tolist()
        shown = zip(self.sensors[:ROWS], columns, strict=True)
        return [{"sensor": sensor, **dict(zip(times, values, strict=True))} for sensor, values in shown]

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: arrays as lists, times as texts."""
        content = {
            "schema": "socialx.forecast/2",
            "run": self.run,
            "dataset": self.dataset,
            "timezone": self.clock.name,
            "units": dict(zip(self.targets, self.units, strict=True)),
            "step_minutes": self.step_minutes,
            "sensors": list(self.sensors),
            "origin": self.clock.texts(self.origin.astype(np.int64)),
            "times": [self.clock.texts(row) for row in self.times.astype(np.int64)],
            "input_status": self.marks.tolist(),
        }
        if self.notes:
            content["notes"] = list(self.notes)
        content |= self.asked
        for name, values in self.numbers().items():
            content[name] = {target: values[..., number].tolist() for number, target in enumerate(self.targets)}
        return content

    def to_frame(self) -> pd.DataFrame:
        """Return a tidy table: a row per origin, sensor and time; times have a zone where the file says its zone.

        Columns: origin, sensor, time, lead_minutes, forecast, unit, input_status (``marks``); with several
        targets also target, before forecast; after it lower and upper with intervals, probability_below if asked.
        """
        import pandas as pd

        w, p, n, g = self.values.shape
        minutes = self.step_minutes * np.arange(1, p + 1)

        def spread(values: np.ndarray, *shape: int) -> np.ndarray:
            return np.broadcast_to(values.reshape(shape), (w, n, p, g)).ravel()

        zone, times = self.clock.frame_zone(self.origin.astype(np.int64)), (self.origin, self.times)
        utc = times if zone is None else [self.clock.utc(time.astype(np.int64)).astype("M8[s]") for time in times]
        columns = {
            "origin": spread(utc[0], w, 1, 1, 1),
            "sensor": spread(np.array(self.sensors, object), 1, n, 1, 1),
            "time": spread(utc[1], w, 1, p, 1),
            "lead_minutes": spread(minutes, 1, 1, p, 1),
            "target": spread(np.array(self.targets), 1, 1, 1, g),
            **{name: values.transpose(0, 2, 1, 3).ravel() for name, values in self.numbers().items()},
            "unit": spread(np.array(self.units), 1, 1, 1, g),
            "input_status": spread(self.marks, w, n, 1, 1),
        }
        if g == 1:
            del columns["target"]
        frame = pd.DataFrame(columns)
        for name in ("origin", "time") if zone else ():
            frame[name] = frame[name].dt.tz_localize("UTC").dt.tz_convert(zone)
        return frame

    def numbers(self) -> dict[str, np.ndarray]:
        """Return the arrays [W,P,N,G] by column name: forecast, and lower, upper, probability_below where present."""
        names = {"probability": "probability_below"}
        return {"forecast": self.values, **{names.get(name, name): part for name, part in self._added().items()}}

    def write(self, path: str | Path, overwrite: bool = False) -> None:
        """Write a forecast as .csv, .xlsx, .parquet or .h5 by the suffix, atomically; overwrite: replace a forecast."""
        path = Path(path)
        FORECAST.check_name(path)
        writers = {".csv": self.to_csv, ".xlsx": self.to_excel, ".parquet": self.to_parquet, ".h5": self.to_hdf5}
        writers[path.suffix.lower()](path, overwrite)

    def to_csv(self, path: str | Path, overwrite: bool = False) -> None:
        """Write ``to_frame`` as CSV, atomically, with four decimals; overwrite: replace a forecast."""
        FORECAST.check_older(Path(path), overwrite)
        frame = self._cells()
        with atomic_write(Path(path)) as temporary:
            for name in ("origin", "time"):
                frame[name] = frame[name].map({moment: str(moment) for moment in frame[name].unique()})
            frame.to_csv(temporary, index=False, float_format="%.4f")

    def to_excel(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the rows of ``to_csv`` as a sheet, atomically: wall times, and their zone in the column ``zone``.

        overwrite: replace a forecast.  Raises SocialxError without openpyxl, and above 1,048,575 rows.
        """
        path = Path(path)
        FORECAST.check_name(path)
        FORECAST.check_older(path, overwrite)
        if (rows := self.values.size) > SHEET_ROWS:
            problem = f"a sheet holds {SHEET_ROWS:,} rows, and the forecast has {rows:,}"
            raise SocialxError("forecast.sheet", path, problem, "write a .csv, or forecast fewer sensors")
        frame = self._cells()
        for name in ("origin", "time"):
            frame[name] = frame[name].dt.tz_localize(None)
        if self.clock.name:
            frame.insert(list(frame).index("time") + 1, "zone", self.clock.name)
        numbers = list(self.numbers())
        frame[numbers] = frame[numbers].astype(float).round(4)
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            frame.to_excel(file, sheet_name="forecast", index=False, engine="openpyxl", freeze_panes=(1, 0))

    def _cells(self) -> pd.DataFrame:
        """Return ``to_frame`` for a spreadsheet, which computes no text as a formula."""
        frame = self.to_frame()
        texts = [name for name in ("sensor", "target", "unit") if name in frame]
        frame[texts] = frame[texts].map(as_cell)
        return frame

    def to_parquet(self, path: str | Path, overwrite: bool = False) -> None:
        """Write ``to_frame`` as Parquet, atomically; overwrite: replace a forecast."""
        FORECAST.check_older(Path(path), overwrite)
        with atomic_write(Path(path)) as temporary:
            self.to_frame().to_parquet(temporary, index=False)

    def to_hdf5(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the arrays as HDF5: forecast [W,P,N,G], times [W,P], origin [W], sensors [N], readings [W,N].

        W origins, P steps, N sensors, G targets.  Like forecast: lower, upper, probability_below.  overwrite: replace.
        """
        FORECAST.check_older(Path(path), overwrite)
        with atomic_write(Path(path)) as temporary:
            write_forecast(temporary, self)

    def plot(self, path: str | Path | None = None, sensors: str | Sequence[str] | None = None) -> Figure:
        """Draw lookback, forecast and later observations of some sensors, and return the figure.

        path: also write a .png, .svg or .pdf. sensors: None takes the six with the largest expected change.
        """
        from socialx.forecast.picture import MOST, plot_forecast

        if path is not None:
            PICTURE.check_older(Path(path))
        return plot_forecast(self, sensors or self.largest_changes(MOST), path)
