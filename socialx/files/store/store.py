"""Read the canonical HDF5 file. T rows, N sensors, t rows in a block."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import h5py
import numpy as np

from socialx.core.disk import file_signature
from socialx.core.errors import ITEM, Argument, Command, SocialxError, sample, shortened
from socialx.core.notebook import ResultRepr, files_in
from socialx.core.progress import work
from socialx.data.calendar import DAY_S
from socialx.data.geo import plausible_location
from socialx.data.source import latest_after, pages
from socialx.files.store import layout
from socialx.files.store.open_hdf5 import open_hdf5
from socialx.files.store.quantities import highest_reading, ratio_of_units
from socialx.files.store.time_axis import Clock, is_utc, known_zone, timestamp_seconds, whole_minutes

if TYPE_CHECKING:
    import pandas as pd

KEPT_BYTES = 1 << 28  # the readings of a file are kept in memory up to this size
LARGEST = float(np.finfo(np.float32).max)
CODES = 3  # most distinct numbers that may mean a missing observation
AGAIN = "make one with convert"


@dataclass(frozen=True, eq=False, repr=False)
class Store(ResultRepr):
    """A feature in a canonical file (socialx's HDF5 layout); ``read`` alone decides which observations are missing.

    Values are read on demand: small files once, large files row by row.
    """

    path: Path
    dataset_name: str
    sensors: layout.Sensors
    feature: str
    unit: str  # "unknown" where the file does not say
    timestamps: np.ndarray  # S19 [T], wall time
    seconds: np.ndarray  # int64 [T], seconds of the wall time read as UTC, always derived from the timestamps
    step_minutes: int
    missing: float | None
    timezone: str | None
    local_zone: str | None  # local time zone for times in UTC
    imputed: bool | None  # whether zeros were replaced before writing; None = unknown
    failed_rows: int  # dropped rows that lack a time, from failed crawler steps
    feature_index: int  # of the feature in the file
    rows: np.ndarray  # int64 [T], in the file
    columns: np.ndarray | None  # int64 [N], in the file; None = all of them
    version: tuple[int, ...]  # file signature, to detect a replaced file
    ratio: float = 1.0  # numbers in ``unit`` / numbers in the file
    described: str = ""  # what the source's tables hold, as JSON

    def headline(self) -> str:
        """Return a line of text with path, feature, unit, size and time span."""
        first, last = (self.clock.text(int(self.seconds[index])) for index in (0, -1))
        size = f"{len(self.rows):,} rows of {len(self.sensors.ids)} sensors, {self.step_minutes} min apart"
        return f"{self.path}, {self.feature} in {self.unit}: {size}, {first} .. {last}"

    @property
    def clock(self) -> Clock:
        """The clock in the file, and for people."""
        return Clock(self.timezone, self.local_zone)

    def read(self, rows: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Return consecutive rows: values float32 [t,N] as stored, and valid bool [t,N], True = observed."""
        if 4 * len(self.rows) * len(self.sensors.ids) <= KEPT_BYTES:
            return self.values[rows], self.valid[rows]
        values = self._read(rows)
        return values, self.is_reading(values)

    def local_clock(self) -> ZoneInfo | None:
        """Return the local zone where times are in UTC; None where times already are local."""
        zone = known_zone(self.local_zone)
        if self.local_zone is not None and (zone is None or not is_utc(self.timezone)):
            problem = f"the local zone {shortened(self.local_zone, ITEM)!a} is not known, or the times are not in UTC"
            raise SocialxError("store.local-zone", self.path, problem, f"install the package tzdata, or {AGAIN}")
        return zone

    @cached_property
    def values(self) -> np.ndarray:
        """All rows in memory, float32 [T,N], as stored."""
        return self._read(slice(None))

    @cached_property
    def valid(self) -> np.ndarray:
        """The mask of observed values, bool [T,N]."""
        return self.is_reading(self.values)

    @cached_property
    def _scan(self) -> tuple[str, np.ndarray]:
        """The checksum, and the latest observations before each page (block of rows), from one walk over all rows."""
        return self._walk(slice(0, len(self.rows)))

    def _walk(self, span: slice) -> tuple[str, np.ndarray]:
        """Return the checksum of these rows, and the latest observation before each page, float32 [pages,N]. A page is
        a block of PAGE_ROWS rows; NaN stands for a sensor without an earlier observation.
        """
        digest = hashlib.sha256("".join(f"{vdid}\n" for vdid in self.sensors.ids).encode())
        digest.update(np.ascontiguousarray(self.timestamps[span], "S19").data)
        latest = np.full(len(self.sensors.ids), np.nan, np.float32)
        before = []
        with work(f"read {self.path}", span.stop - span.start, "rows") as bar:
            for rows in pages(span.start, span.stop):
                before.append(latest)
                values, valid = self.read(rows)
                digest.update(np.ascontiguousarray(values, "<f4").data)
                latest = latest_after(values, valid, latest)
                bar.advance(rows.stop - rows.start)
        return digest.hexdigest(), np.stack(before)

    @property
    def checksum(self) -> str:
        """The sha256 of ids, times and values: equal for every conversion of a source, in any file and on any date."""
        return self._scan[0]

    def subset_checksum(self, ids: tuple[str, ...], first: str | None, last: str | None) -> str:
        """Return the checksum of the sensors ``ids`` from time ``first`` to ``last``, texts, None = unbounded. Returns
        "" where the file lacks a sensor, or a row in this span.
        """
        begin = 0 if first is None else int(np.searchsorted(self.timestamps, first.encode()))
        end = len(self.rows) if last is None else int(np.searchsorted(self.timestamps, last.encode(), "right"))
        if begin >= end or not set(ids) <= set(self.sensors.ids):
            return ""
        whole = ids == self.sensors.ids and (begin, end) == (0, len(self.rows))
        return self.checksum if whole else self.with_sensors(ids)._walk(slice(begin, end))[0]

    def is_impossible(self, values: np.ndarray) -> np.ndarray:
        """Return the mask of numbers, in the store's ``unit``, outside the possible range, bool in equal shape."""
        wrong = layout.impossible(values, self.feature, self.unit, LARGEST)
        return wrong & (values != (np.nan if self.missing is None else self.missing)) if wrong.any() else wrong

    def check_readings(
        self, values: np.ndarray, seconds: np.ndarray, sensors: Sequence[str] = (), where: str = ""
    ) -> None:
        """Raise SocialxError for impossible numbers [t,n] at these seconds [t].

        sensors: the n sensor ids, by default the file's. where: the source of the numbers, by default the file.
        """
        wrong, ids = self.is_impossible(values), sensors or self.sensors.ids
        if not wrong.any():
            return
        first = {int(column): int(wrong[:, column].argmax()) for column in np.flatnonzero(wrong.any(axis=0))}
        times = {at: self.clock.text(int(seconds[row])) for at, row in first.items()}
        named = [f"{ids[at]} has {values[row, at]:g} at {times[at]}" for at, row in first.items()]
        highest, numbers = np.abs(values[wrong]).max(), np.unique(values[wrong]).tolist()
        above = f"above {highest_reading(self.feature, self.unit):g} {self.unit}"
        problem = f"{self.feature} {'below 0' if numbers[0] < 0 else above}"
        problem = "numbers too large for float32" if highest > LARGEST else problem
        helps = f"give numbers in {self.unit}, and none where nothing was read"
        if not where:
            helps = f"correct them, or say their unit: convert again with {Argument('units', 'UNIT')}"
        if not where and len(numbers) <= CODES:
            with open_hdf5(self.path, AGAIN) as file:
                codes = [*([] if self.missing is None else [self.missing]), *layout.read_codes(self.path, file)]
            missing = Argument("missing", ",".join(f"{code:g}" for code in (*codes, *numbers)))
            helps = f"if {' and '.join(f'{n:g}' for n in numbers)} means no reading, convert again with {missing}"
        raise SocialxError("store.impossible", where or self.path, f"{problem} ({sample(named)})", helps)

    def latest_before(self, page: int) -> np.ndarray:
        """Return each sensor's latest observation before a page, float32 [N]; NaN where none came yet. page: the
        number, from 0, of a block of PAGE_ROWS rows, counted from the store's first row.
        """
        return self._scan[1][page]

    def select_rows(self, rows: slice) -> Store:
        """Return the store restricted to ``rows``."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ("timestamps", "seconds", "rows")})

    def to_frame(self) -> pd.DataFrame:
        """Return times x sensor ids, NaN where missing; the times have a zone where the file says its zone."""
        import pandas as pd

        zone = self.clock.frame_zone(self.seconds)
        times = pd.DatetimeIndex((self.clock.utc(self.seconds) if zone else self.seconds).astype("M8[s]"), name="time")
        times = times.tz_localize("UTC").tz_convert(zone) if zone else times
        return pd.DataFrame(np.where(self.valid, self.values, np.float32(np.nan)), times, list(self.sensors.ids))

    def in_unit(self, unit: str) -> Store:
        """Return the store with speeds in another unit; unchanged unless both units are of speed."""
        if (ratio := ratio_of_units(self.unit, unit)) == 1:
            return self
        missing = None if self.missing is None else float(np.float32(self.missing) * np.float32(ratio))
        return replace(self, unit=unit, missing=missing, ratio=ratio * self.ratio)

    def with_sensors(self, ids: tuple[str, ...]) -> Store:
        """Return the store restricted to ``ids``, in this order. Raises SocialxError for absent sensors."""
        if ids == self.sensors.ids:
            return self
        column_by_id = {vdid: column for column, vdid in enumerate(self.sensors.ids)}
        if foreign := [vdid for vdid in ids if vdid not in column_by_id]:
            problem = f"the file lacks {len(foreign)} of {len(ids)} sensors of the run ({sample(foreign, 10)})"
            free = Argument("model.zero_shot", True)
            remedy = f"name the data of that network, or train a zero-shot run with {free}"
            raise SocialxError("store.lacks", self.path, f"{problem}; it has {sample(list(self.sensors.ids))}", remedy)
        columns = np.array([column_by_id[vdid] for vdid in ids])
        return replace(self, sensors=self.sensors.select(columns), columns=columns)

    def _read(self, rows: slice) -> np.ndarray:
        """Return the numbers in these rows, float32 [t,N] in ``unit``; raise where the file was replaced."""
        chosen = self.rows[rows]
        with open_hdf5(self.path, AGAIN) as file:
            if file_signature(self.path) != self.version:
                raise SocialxError("file.changed", self.path, "the file changed while it was read", "run it again")
            values = file[layout.FEATURES][chosen[0] : chosen[-1] + 1, :, self.feature_index]
            values = values.astype(np.float32, copy=False)
        if len(values) != len(chosen):
            values = values[chosen - chosen[0]]
        if self.columns is not None:
            values = np.ascontiguousarray(values[:, self.columns])
        return values if self.ratio == 1 else values * np.float32(self.ratio)

    def is_reading(self, values: np.ndarray) -> np.ndarray:
        """Return the mask of observed values, bool in equal shape: finite, and unlike the missing value."""
        return layout.is_reading(values, self.missing)


def open_store(
    path: str | Path, feature: str | None = None, days: int | None = None, sensors: layout.Sensors | None = None
) -> Store:
    """Open a feature in a canonical file; unknown locations are NaN. Raises SocialxError for an older file.

    feature: None for the first, measured feature. days: the first N calendar days, None for all. sensors: in
    the file, where the caller just wrote them.
    """
    (path,) = files_in(path)
    with open_hdf5(path, AGAIN) as file:
        version = file_signature(path)
        _, ids, names, timestamps = layout.read_layout(path, file)
        rules = file["metadata"].attrs
        if layout.MISSING_ATTR not in rules:
            problem = "this is an older file, which does not say what a missing reading is"
            raise SocialxError("store.missing-unsaid", path, problem, Command("backfill", path))
        feature = names[0] if feature is None else feature
        if feature not in names:
            near = difflib.get_close_matches(feature, names, 1, 0.4)
            hint = f"did you mean {near[0]}?" if near else f"forecast it with {Argument('data.targets', names[0])}"
            raise SocialxError("store.no-feature", path, f"no feature {feature!r}; there are {', '.join(names)}", hint)
        timed = timestamps != b""
        rows = np.flatnonzero(timed) if timed.any() else np.arange(len(timestamps))
        seconds = timestamp_seconds(timestamps[rows], str(path))
        if days is not None:
            last = int(np.searchsorted(seconds, (seconds[0] // DAY_S + days) * DAY_S))
            rows, seconds = rows[:last], seconds[:last]
        dataset_name = layout.read_text(file.attrs.get("dataset_name", "unknown"))
        missing = np.nan if feature in layout.STATIC_UNITS else layout.read_number(rules[layout.MISSING_ATTR])
        zones = (layout.read_text(rules.get(name, "")) for name in ("timezone", layout.LOCAL_ZONE_ATTR))
        timezone, local_zone = (zone or None for zone in zones)
        sensors, unit = sensors or _read_sensors(file, ids), layout.read_unit(file, feature)
        imputed, described = rules.get(layout.IMPUTED_ATTR), layout.read_text(rules.get(layout.TABLE_ATTR, ""))
    return Store(
        path=path,
        dataset_name=dataset_name,
        sensors=sensors,
        feature=feature,
        unit=unit,
        timestamps=timestamps[rows],
        seconds=seconds,
        step_minutes=whole_minutes(seconds, str(path)),
        missing=None if np.isnan(missing) else missing,
        timezone=timezone,
        local_zone=local_zone,
        imputed=None if imputed is not None and layout.read_text(imputed) == layout.UNKNOWN else bool(imputed),
        failed_rows=int(rows[-1]) + 1 - len(rows),
        feature_index=names.index(feature),
        rows=rows,
        columns=None,
        version=version,
        described=described,
    )


def _read_sensors(file: h5py.File, ids: tuple[str, ...]) -> layout.Sensors:
    """Return the sensors from vd_info; an absent or impossible location becomes NaN."""
    info = file[layout.SENSOR_INFO] if "vd_info" in set(file["metadata"]) else None  # get() hides a damaged one
    present = set(info) if isinstance(info, h5py.Group) else set()
    entries = [layout.read_entry(info, vdid) if info and vdid in present else {} for vdid in ids]

    def column(name: str) -> np.ndarray:
        return np.array([layout.read_number(attributes.get(name)) for attributes in entries])

    latitude, longitude = column("position_lat"), column("position_lon")
    latitude, longitude = np.where(plausible_location(latitude, longitude), (latitude, longitude), np.nan)
    names: set[str] = set().union(*entries)
    lanes, length = (column(name) if name in names else None for name in ("lanes", "length"))
    direction, road = (
        tuple(layout.read_text(attributes.get(name, "")) for attributes in entries) if name in names else None
        for name in ("direction", "road")
    )
    return layout.Sensors(ids, latitude, longitude, lanes, length, direction, road)
