"""The canonical HDF5 file, its names, dtypes and units.  T rows, N sensors, F features, t rows of one block."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import h5py
import numpy as np

from socialx.data.calendar import DAY_S
from socialx.data.geo import on_earth
from socialx.data.source import latest_after, pages
from socialx.disk import check_output, replacing
from socialx.errors import Argument, Command, SocialxError, sample
from socialx.files.hdf5 import check_dataset, check_links, open_hdf5, packed_bytes, reserve, writing
from socialx.files.time_axis import JITTER_S, common_step, gaps, irregular
from socialx.progress import work

FEATURES, VDIDS, FEATURE_NAMES = "data/features", "metadata/vdids", "metadata/feature_names"
FLAT = ("features", "dates", "sensors")  # the root of the oldest files, before there were groups
TIMESTAMPS, SECONDS, SENSOR_INFO = "metadata/timestamps", "metadata/timestamps_epoch", "metadata/vd_info"
UNITS = "metadata/units"
PARTS = (FEATURES, VDIDS, FEATURE_NAMES, TIMESTAMPS, SECONDS, UNITS, *FLAT)  # every dataset that is read
ROWS_ATTR, MISSING_ATTR, IMPUTED_ATTR = "num_timesteps", "missing_value", "imputed"
TIMESTAMP = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}")
SPEED = "avg_speed"
DIRECTIONS = {"N": 0.0, "E": 90.0, "S": 180.0, "W": 270.0}  # degrees clockwise from north
LARGEST_SPEED = {"km/h": 200.0, "mph": 124.3, "m/s": 55.6}  # of a road, by unit
NOT_NEGATIVE = (SPEED, "flow", "occupancy")  # quantities that cannot be below 0
STATIC_UNITS = {"lanes": "count", "length": "miles"} | dict.fromkeys(("latitude", "longitude", "direction"), "degrees")
UNKNOWN = "unknown"  # what ``imputed`` says where it cannot be told
CHUNK_ROWS = 288  # one day of 5-minute steps, of one feature: the others are neither unpacked nor packed with it
CHUNK_BYTES = 1 << 23  # fewer rows where one day would be larger than this
JITTERED_SHARE = 0.1  # of steps that fit no grid: fewer are odd rows, more are a clock that runs freely
KEPT_BYTES = 1 << 28  # the readings of a file are kept in memory up to this size
AGAIN = "make one with convert"
ENTRIES = 100  # of vd_info, for which room is kept at once
PACKED = {"compression": "gzip", "compression_opts": 1, "fletcher32": True}  # any HDF5 reads it, bit flips raise


@dataclass(frozen=True, eq=False)
class Sensors:
    """The N sensors in column order; NaN or an empty direction = unknown, None = the dataset has no such column."""

    ids: tuple[str, ...]
    latitude: np.ndarray  # float64 [N], degrees
    longitude: np.ndarray
    lanes: np.ndarray | None = None
    length: np.ndarray | None = None
    direction: tuple[str, ...] | None = None

    def select(self, columns: np.ndarray) -> Sensors:
        """These columns, in this order."""

        def numbers(values: np.ndarray | None) -> np.ndarray | None:
            return None if values is None else values[columns]

        chosen = columns.tolist()
        return Sensors(
            ids=tuple(self.ids[column] for column in chosen),
            latitude=self.latitude[columns],
            longitude=self.longitude[columns],
            lanes=numbers(self.lanes),
            length=numbers(self.length),
            direction=None if self.direction is None else tuple(self.direction[column] for column in chosen),
        )


@dataclass(frozen=True, eq=False)
class Block:
    """Neighbouring rows of a source: timestamps S19 [t], speeds float32 [t,N]."""

    timestamps: np.ndarray
    speeds: np.ndarray


@dataclass(frozen=True, eq=False)
class Readings:
    """What a source yields.  ``blocks`` can be walked once and never holds the whole file in memory."""

    dataset_name: str
    feature_set: str
    sensors: Sensors
    blocks: Generator[Block, None, None]
    units: str
    missing: float | None  # the speed that stands for "no reading"; NaN always does
    timezone: str | None
    source_data: str
    source_meta: str
    feature: str = SPEED  # what the blocks hold, if not speeds
    inputs: tuple[Path, ...] = ()  # all files that are read, so that none is overwritten


@dataclass(frozen=True)
class Summary:
    """What ``create`` wrote, and the seconds it took."""

    rows: int
    sensors: int
    features: int
    elapsed_s: float
    first_timestamp: str
    last_timestamp: str
    gaps: int


@dataclass(frozen=True, eq=False)
class Store:
    """One feature of a canonical file; ``read`` is the only place where missing readings are decided.

    Its readings are read when they are asked for: those of a small file once, those of a large one row by row.
    """

    path: Path
    dataset_name: str
    sensors: Sensors
    feature: str
    unit: str  # "unknown" where the file does not say
    timestamps: np.ndarray  # S19 [T], wall time
    seconds: np.ndarray  # int64 [T], seconds of the wall time read as UTC, always derived from the timestamps
    step_minutes: int
    missing: float | None
    timezone: str | None
    imputed: bool | None  # its zeros had been replaced before it was written; None = that cannot be told
    failed_rows: int  # rows without a time, which a crawler's failed steps leave; they are dropped
    place: int  # of the feature in the file
    rows: np.ndarray  # int64 [T], in the file
    columns: np.ndarray | None  # int64 [N], in the file; None = all of them
    version: tuple[int, ...]  # of the file: another one may have replaced it before its readings are read

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Neighbouring rows: values float32 [t,N] as stored, and valid bool [t,N], True = observed."""
        if 4 * len(self.rows) * len(self.sensors.ids) <= KEPT_BYTES:
            return self.values[rows], self.valid[rows]
        values = self._read(rows)
        return values, self.is_reading(values)

    @cached_property
    def values(self) -> np.ndarray:
        """All rows in memory, float32 [T,N], as stored."""
        return self._read(slice(None))

    @cached_property
    def valid(self) -> np.ndarray:
        """Which of them are readings, bool [T,N]."""
        return self.is_reading(self.values)

    @cached_property
    def _scan(self) -> tuple[str, np.ndarray]:
        """The checksum, and the latest valid reading before each page [pages,N]: one walk over all rows."""
        digest = hashlib.sha256("".join(f"{vdid}\n" for vdid in self.sensors.ids).encode())
        digest.update(np.ascontiguousarray(self.timestamps, "S19").data)
        latest = np.full(len(self.sensors.ids), np.nan, np.float32)
        before = []
        with work(f"read {self.path}", len(self.rows), "rows") as bar:
            for rows in pages(0, len(self.rows)):
                before.append(latest)
                values, valid = self.read(rows)
                digest.update(np.ascontiguousarray(values, "<f4").data)
                latest = latest_after(values, valid, latest)
                bar.advance(rows.stop - rows.start)
        return digest.hexdigest(), np.stack(before)

    @property
    def checksum(self) -> str:
        """sha256 of what is scored: two conversions of one source agree whatever their dates and file names."""
        return self._scan[0]

    @property
    def largest(self) -> float:
        """The highest reading that a road can have; infinite where no speed in a known unit is read."""
        return LARGEST_SPEED.get(self.unit, np.inf) if self.feature == SPEED else np.inf

    def latest_before(self, page: int) -> np.ndarray:
        """The latest valid reading before the first row of a page, float32 [N]; NaN where there never was one."""
        return self._scan[1][page]

    def with_sensors(self, ids: tuple[str, ...]) -> Store:
        """The same file with these sensors only, in this order; SocialxError lists those that it does not have."""
        if ids == self.sensors.ids:
            return self
        place = {vdid: column for column, vdid in enumerate(self.sensors.ids)}
        if lost := [vdid for vdid in ids if vdid not in place]:
            found = f"it lacks {len(lost)} of {len(ids)} sensors of the run ({sample(lost, 10)})"
            raise SocialxError(
                self.path, f"{found}; it has {sample(list(self.sensors.ids))}", "name the data of that network"
            )
        columns = np.array([place[vdid] for vdid in ids])
        return replace(self, sensors=self.sensors.select(columns), columns=columns)

    def _read(self, rows: slice) -> np.ndarray:
        chosen = self.rows[rows]
        with open_hdf5(self.path, AGAIN) as file:
            if version_of(self.path) != self.version:
                raise SocialxError(self.path, "it was changed while it was read", "run the command again")
            values = file[FEATURES][chosen[0] : chosen[-1] + 1, :, self.place].astype(np.float32, copy=False)
        if len(values) != len(chosen):
            values = values[chosen - chosen[0]]
        if self.columns is not None:
            values = np.ascontiguousarray(values[:, self.columns])
        return values

    def is_reading(self, values: np.ndarray) -> np.ndarray:
        """Which of these values are readings, bool of the same shape: finite, and not the missing value of the file."""
        valid = np.isfinite(values)
        valid &= values != np.float32(np.nan if self.missing is None else self.missing)
        return valid


def timestamp_seconds(timestamps: np.ndarray, where: str, first: int = 0) -> np.ndarray:
    """S19 [T] ``YYYY-MM-DD HH:MM:SS``, ``first`` rows into a file -> int64 [T] seconds, the wall time read as UTC."""
    seconds = np.empty(len(timestamps), np.int64)
    for row, timestamp in enumerate(timestamps.tolist()):
        try:
            if not TIMESTAMP.fullmatch(timestamp):  # fromisoformat alone takes more than one form
                raise ValueError
            seconds[row] = datetime.fromisoformat(f"{timestamp.decode()}+00:00").timestamp()
        except ValueError:
            raise SocialxError(
                where,
                f"row {first + row + 1} has the time {timestamp.decode('latin-1')!a}, not YYYY-MM-DD HH:MM:SS",
                "correct it and convert again",
            ) from None
    return seconds


def whole_minutes(seconds: np.ndarray, where: str) -> int:
    """The common step in minutes; refuses times that cannot be forecast from, before they are written or when read."""
    step = common_step(seconds)
    minutes = round(step / 60)
    if minutes == 0 or abs(step - 60 * minutes) > JITTER_S:
        found = f"its rows are {step} s apart, not whole minutes" if step else "no row in it is later than another"
        raise SocialxError(where, found, "convert a file with such rows")
    return minutes


def _refuse_jitter(seconds: np.ndarray, where: str) -> None:
    """Raise for the times of a clock that runs freely, whose steps are hardly ever the same."""
    steps = np.diff(seconds)
    step = 60 * round(float(np.median(steps)) / 60) if len(steps) else 0
    rows = irregular(seconds, step) if step > 0 else np.empty(0, np.int64)
    alike = np.count_nonzero(steps == common_step(seconds))
    if len(rows) > JITTERED_SHARE * len(steps) and 2 * alike < len(steps):
        texts = np.datetime_as_string(seconds[rows[0] : rows[0] + 3].astype("datetime64[s]")).tolist()
        found = f"{len(rows):,} of {len(steps):,} steps are no multiple of {step // 60} min"
        helps = (Argument("round_times", True), " moves each time to the nearest whole step")
        raise SocialxError(where, f"{found} ({sample([text.replace('T', ' ') for text in texts])})", helps)


def create(path: Path, readings: Readings, *, overwrite: bool = False) -> Summary:
    """Write the canonical file, streamed and atomically: ``path`` is either complete or untouched."""
    check_output(path, overwrite, (readings.source_data, readings.source_meta, *map(str, readings.inputs)))
    with replacing(path) as temporary:
        return write(temporary, readings)


def write(path: Path, readings: Readings) -> Summary:
    """Write the canonical file to a path that nobody else reads before this returns."""
    started = time.perf_counter()
    columns = _columns(readings)
    with closing(readings.blocks):
        with writing(path, "w", "v110") as file:
            for group in ("data", "metadata"):  # HDF5 notes the time in those that it makes by itself
                file.create_group(group)
            timestamps, seconds, last = _write_features(file, readings, columns)
            _refuse_jitter(seconds, readings.source_data)
            whole_minutes(seconds, readings.source_data)
            _write_metadata(file, readings, columns, timestamps, seconds)
        with open_hdf5(path, "convert it again") as file:  # what the disk gives back before it replaces a file
            same = file[FEATURES].shape == (len(timestamps), *last.shape) and np.array_equal(
                file[TIMESTAMPS][:], timestamps
            )
            if not same or not np.array_equal(file[FEATURES][-1], last, equal_nan=True):
                raise SocialxError(path, "the disk does not give back what was written", "check the disk")
    return Summary(
        rows=len(timestamps),
        sensors=len(readings.sensors.ids),
        features=len(columns),
        elapsed_s=time.perf_counter() - started,
        first_timestamp=timestamps[0].decode(),
        last_timestamp=timestamps[-1].decode(),
        gaps=len(gaps(seconds, readings.timezone)[0]),
    )


def _columns(readings: Readings) -> dict[str, np.ndarray]:
    """Feature name -> its constant column [N] in the order of the file; the speeds replace the zeros."""
    sensors = readings.sensors
    bad = [ascii(text[:40]) for text in sensors.ids if not re.fullmatch(r"(?![.]+$)[!-.0-~]{1,64}", text)]
    if bad:  # an id becomes fixed-width ASCII text and the name of an HDF5 group
        raise SocialxError(
            readings.source_data,
            f"{len(bad)} sensor ids are not 1 to 64 plain ASCII characters without spaces and '/' ({sample(bad)})",
            "rename them",
        )
    columns = {readings.feature: np.zeros(len(sensors.ids)), "lanes": sensors.lanes, "length": sensors.length}
    columns |= {"latitude": sensors.latitude, "longitude": sensors.longitude}
    if sensors.direction is not None:
        columns["direction"] = np.array([DIRECTIONS.get(letter, np.nan) for letter in sensors.direction])
    return {name: column for name, column in columns.items() if column is not None}


def _write_features(
    file: h5py.File, readings: Readings, columns: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Append the blocks -> all timestamps [T], all seconds [T], and the last row as written [N,F]."""
    sensors = len(readings.sensors.ids)
    timestamps, seconds = np.empty(0, "S19"), np.empty(0, np.int64)
    head = list(islice(readings.blocks, 2))
    if not head:
        raise SocialxError(readings.source_data, "it has no rows", "download it again")
    rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // (4 * sensors)))
    rows = rows if len(head) > 1 else min(rows, len(head[0].timestamps))
    shape, limits = (0, sensors, len(columns)), (None, sensors, len(columns))
    chunk_bytes = packed_bytes(4 * rows * sensors)
    chunks, cache = (rows, sensors, 1), 3 * 4 * rows * sensors  # the chunk that two blocks share is compressed once
    features = file.create_dataset(
        FEATURES, shape, "f4", maxshape=limits, chunks=chunks, shuffle=True, rdcc_nbytes=max(cache, 1 << 20), **PACKED
    )
    for block in chain(head, _ahead(readings.blocks)):
        first = len(timestamps)
        timestamps = np.concatenate([timestamps, block.timestamps])
        seconds = np.concatenate([seconds, checked_seconds(readings, block, timestamps, seconds)])
        reserve(file, packed_bytes(block.speeds.nbytes) + chunk_bytes)
        features.resize(len(timestamps), axis=0)
        features[first:, :, 0] = block.speeds
    for place, column in enumerate(list(columns.values())[1:], 1):
        reserve(file, chunk_bytes)
        features[:rows, :, place] = column
        file.flush()
        # All chunks of a constant column are the same bytes: HDF5 compresses the first, the others are copies of it.
        mask, packed = features.id.read_direct_chunk((0, 0, place))
        reserve(file, len(packed) * (len(timestamps) // rows))
        for first in range(rows, len(timestamps), rows):
            features.id.write_direct_chunk((first, 0, place), packed, mask)
    last = np.stack([block.speeds[-1], *list(columns.values())[1:]], axis=1).astype(np.float32)
    return timestamps, seconds, last


def _ahead(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same blocks, the next parsed while one is compressed: pandas parses without the GIL, which saves a sixth."""
    context = copy_context()  # whose callback hears the notes of the reader

    def following() -> Block | None:
        return context.run(next, blocks, None)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(following)
        while (block := waiting.result()) is not None:
            waiting = pool.submit(following)
            yield block


def checked_seconds(readings: Readings, block: Block, timestamps: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The seconds [t] of a block whose times go on from ``before`` and whose speeds are numbers."""
    where, first = readings.source_data, len(before)
    seconds = timestamp_seconds(block.timestamps, where, first)
    steps = np.diff(np.concatenate([before[-1:], seconds]))
    if (steps <= 0).any():
        row = int((steps <= 0).argmax()) + max(first, 1)  # the later one of the two, from 0
        raise SocialxError(
            where,
            f"rows {row} and {row + 1} ({timestamps[row - 1].decode()}, {timestamps[row].decode()}) "
            "are not in order of time",
            "sort the rows and remove repeated ones",
        )
    if np.isinf(block.speeds).any():
        at, sensor = np.argwhere(np.isinf(block.speeds))[0]
        raise SocialxError(
            where,
            f"row {first + at + 1} of sensor {readings.sensors.ids[sensor]} is infinite or too large for a speed",
            "correct it",
        )
    return seconds


def _write_metadata(
    file: h5py.File, readings: Readings, columns: dict[str, np.ndarray], timestamps: np.ndarray, seconds: np.ndarray
) -> None:
    sensors = readings.sensors
    units = {name: STATIC_UNITS.get(name, readings.units) for name in columns}
    step = common_step(seconds)
    frequency = f"{step // 60}min" if step % 60 == 0 else f"{step}s"
    dataset_name, feature_set, source_data, source_meta = map(
        plain_text, (readings.dataset_name, readings.feature_set, readings.source_data, readings.source_meta)
    )
    file.attrs.update(dataset_name=dataset_name, feature_set=feature_set)
    file.attrs.update(feature_schema_version="1.0", creation_date=datetime.now(UTC).isoformat(timespec="seconds"))
    file.attrs["description"] = f"{dataset_name} traffic speeds and sensor positions"
    file.attrs.update(source_data=source_data, source_meta=source_meta)
    for name, count in zip((ROWS_ATTR, "num_locations", "num_features"), file[FEATURES].shape, strict=True):
        file.attrs[name] = np.int64(count)
    texts = {VDIDS: np.array(sensors.ids, "S64"), FEATURE_NAMES: np.array(list(columns), "S32")}
    for name, column in (texts | {TIMESTAMPS: timestamps, SECONDS: seconds}).items():
        reserve(file, packed_bytes(column.nbytes))
        file.create_dataset(name, data=column, maxshape=(None,), chunks=True, **PACKED)
    metadata = file["metadata"]
    reserve(file, 0)
    metadata["frequency"] = np.bytes_(frequency if step else "unknown")
    file[UNITS] = np.bytes_(json.dumps(units))
    metadata["source"] = np.bytes_(f"{source_data} with positions of {source_meta}".encode())
    metadata.attrs["epoch_basis"] = "naive-utc"
    metadata.attrs["timezone"] = readings.timezone or ""
    metadata.attrs[MISSING_ATTR] = np.nan if readings.missing is None else readings.missing
    info = file.create_group(SENSOR_INFO)
    info.attrs["coord_crs"] = "EPSG:4326"
    for index, vdid in enumerate(sensors.ids):
        if index % ENTRIES == 0:
            reserve(file, 0)
        attributes = info.create_group(vdid).attrs
        attributes.update(position_lat=sensors.latitude[index], position_lon=sensors.longitude[index])
        for name in ("lanes", "length"):
            if name in columns and np.isfinite(columns[name][index]):
                attributes[name] = columns[name][index]
        if sensors.direction is not None and sensors.direction[index]:
            attributes["direction"] = sensors.direction[index]
    reserve(file, 0)


def version_of(path: Path) -> tuple[int, ...]:
    """What tells the content of a file from that of another one under the same name."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def open_store(path: str | Path, feature: str | None = None, days: int | None = None) -> Store:
    """One feature of a canonical file; unknown positions are NaN.  Refuses an older file: backfill completes it.

    feature: None takes the first, which is the measured one.  days: the first so many calendar days, None: all of it.
    """
    path = Path(path)
    with open_hdf5(path, AGAIN) as file:
        version = version_of(path)
        _, ids, names, timestamps = read_layout(path, file)
        rules = file["metadata"].attrs
        if MISSING_ATTR not in rules:
            raise SocialxError(
                path, "an older file: it does not say what a missing reading is", Command("backfill", path)
            )
        feature = names[0] if feature is None else feature
        if feature not in names:
            near = difflib.get_close_matches(feature, names, 1, 0.4)
            hint = f"did you mean {near[0]}?" if near else ("forecast it with ", Argument("data.targets", names[0]))
            raise SocialxError(path, f"no feature {feature!r}, it has {', '.join(names)}", hint)
        rows, seconds = _rows(path, timestamps, days)
        dataset_name = read_text(file.attrs.get("dataset_name", "unknown"))
        missing = np.nan if feature in STATIC_UNITS else read_number(rules[MISSING_ATTR])  # direction 0 is north
        timezone = read_text(rules.get("timezone", "")) or None
        sensors, unit = _read_sensors(file, ids), read_unit(file, feature)
        imputed = _read_imputed(rules.get(IMPUTED_ATTR))
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
        imputed=imputed,
        failed_rows=int(rows[-1]) + 1 - len(rows),
        place=names.index(feature),
        rows=rows,
        columns=None,
        version=version,
    )


def _rows(path: Path, timestamps: np.ndarray, days: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Which rows have a time and lie in the first ``days`` days, int64 [T], and their seconds [T]."""
    timed = timestamps != b""
    rows = np.flatnonzero(timed) if timed.any() else np.arange(len(timestamps))
    seconds = timestamp_seconds(timestamps[rows], str(path))
    last = None if days is None else int(np.searchsorted(seconds, (seconds[0] // DAY_S + days) * DAY_S))
    return rows[:last], seconds[:last]


def check_parts(path: Path, file: h5py.File) -> None:
    """Refuse a file that keeps a part of what is read from it elsewhere, or declares more than it holds."""
    check_links(path, file, ("data", "metadata", *FLAT))
    for name in PARTS:
        if isinstance(part := file.get(name), h5py.Dataset):
            check_dataset(path, part, "convert its source again")


def read_layout(path: Path, file: h5py.File) -> tuple[h5py.Dataset, tuple[str, ...], list[str], np.ndarray]:
    """The features [T,N,F], ids [N], feature names [F] and timestamps S19 [T] of a file whose shapes agree."""
    for group in file.values():
        if isinstance(group, h5py.Group) and ("axis0" in group or "table" in group):
            raise SocialxError(
                path,
                "a pandas HDFStore, not a socialx file",
                Command("convert", "auto", path, meta="LOCATIONS.csv", output="OUT.h5"),
            )
    check_parts(path, file)
    if set(FLAT) <= set(file):
        raise SocialxError(path, "an older flat file", Command("backfill", path, rewrite=True))
    lacking = [n for n in (FEATURES, VDIDS, FEATURE_NAMES, TIMESTAMPS) if not isinstance(file.get(n), h5py.Dataset)]
    if lacking:
        raise SocialxError(path, f"it lacks {', '.join(lacking)}", "convert its source again")
    features, shape = file[FEATURES], file[FEATURES].shape
    for name, axis in ((TIMESTAMPS, 0), (VDIDS, 1), (FEATURE_NAMES, 2)):
        right = len(shape) == 3 and features.dtype.kind == "f" and h5py.check_string_dtype(file[name].dtype)
        if not right or file[name].shape != shape[axis : axis + 1]:
            raise SocialxError(
                path,
                f"types or shapes do not agree ({FEATURES} is {features.dtype} {shape}, "
                f"{name} is {file[name].dtype} {file[name].shape})",
                "convert it again",
            )
    ids, names, timestamps = (
        [read_text(item) for item in file[name][:]] for name in (VDIDS, FEATURE_NAMES, TIMESTAMPS)
    )
    repeated = [vdid for vdid, count in Counter(ids).items() if count > 1]
    if repeated or 0 in shape:
        what = f"sensors appear twice ({sample(repeated)})" if repeated else f"it holds nothing {shape}"
        raise SocialxError(path, what, "convert it again")
    # Older files may write 2025-03-18T00:46:11+08:00: the wall time is what counts.
    wall = [text[:19].replace("T", " ").encode("ascii", "replace") for text in timestamps]
    return features, tuple(ids), names, np.array(wall, "S19")


def plain_text(text: str) -> str:
    """A text that can be stored: bytes of a file name that are no UTF-8 become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_text(value: object) -> str:
    """An attribute or an element of a dataset as text, whichever way it was written."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def read_units(file: h5py.File) -> dict[str, str]:
    """The units that a file says, by feature."""
    units = file.get(UNITS)
    try:
        return {name: str(unit) for name, unit in json.loads(read_text(units[()])).items()}
    except (TypeError, ValueError, AttributeError):
        return {}


def read_unit(file: h5py.File, feature: str) -> str:
    """The unit of a feature, "unknown" where the file does not say."""
    return read_units(file).get(feature, "unknown")


def _read_imputed(value: object) -> bool | None:
    """Whether zeros had been replaced before the file was written; None: that cannot be told."""
    return None if value is not None and read_text(value) == UNKNOWN else bool(value)


def _read_sensors(file: h5py.File, ids: tuple[str, ...]) -> Sensors:
    """What vd_info says of each sensor; a position that is absent or impossible becomes NaN."""
    info = file[SENSOR_INFO] if "vd_info" in set(file["metadata"]) else None  # get() takes a damaged group for no group
    present = set(info) if isinstance(info, h5py.Group) else set()
    found = [dict(info[vdid].attrs) if info and vdid in present else {} for vdid in ids]

    def column(name: str) -> np.ndarray:
        return np.array([read_number(attributes.get(name)) for attributes in found])

    latitude, longitude = column("position_lat"), column("position_lon")
    latitude, longitude = np.where(on_earth(latitude, longitude), (latitude, longitude), np.nan)
    known: set[str] = set().union(*found)
    lanes, length = (column(name) if name in known else None for name in ("lanes", "length"))
    direction = tuple(read_text(attributes.get("direction", "")) for attributes in found)
    return Sensors(ids, latitude, longitude, lanes, length, direction if "direction" in known else None)


def read_number(value: object) -> float:
    """An attribute as a number, NaN where it is none."""
    if isinstance(value, complex | np.complexfloating):
        return np.nan  # NumPy would warn and drop a part of it
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return np.nan
