"""Write and amend the canonical HDF5 file. T rows, N sensors, F features, t rows in a block."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path

import h5py
import numpy as np

from socialx.core.disk import atomic_write, check_output, file_signature
from socialx.core.errors import SocialxError, sample
from socialx.files.store import layout
from socialx.files.store.open_hdf5 import open_for_writing, open_hdf5, packed_bytes, reserve
from socialx.files.store.time_axis import Clock, as_text, as_timestamps, common_step, gaps, refuse_jitter, whole_minutes

CHUNK_ROWS = 288  # one day of 5-minute steps, of one feature: the others are neither unpacked nor packed with it
CHUNK_BYTES = 1 << 23  # fewer rows where one day would be larger than this
ID = re.compile(r"(?![.]+$)[^\s/]{1,64}")
ADVICE = "convert its source again"
WAIT_S = 10.0  # for a reader of the file that is changed
ENTRIES = 100  # of vd_info, for which room is kept at once


@dataclass(frozen=True)
class Summary:
    """The result of ``create``, with the elapsed seconds; times are local ones."""

    rows: int
    sensors: int
    features: int
    elapsed_s: float
    first_timestamp: str
    last_timestamp: str
    gaps: int
    zeros: int  # readings that are exactly 0


def create(path: Path, readings: layout.Readings, *, overwrite: bool = False) -> Summary:
    """Write the canonical file, streamed: ``path`` is complete or untouched. overwrite: replace an existing file."""
    check_output(path, overwrite, (readings.source_data, readings.source_meta, *map(str, readings.inputs)))
    with atomic_write(path) as temporary:
        return write(temporary, readings)


def write(path: Path, readings: layout.Readings) -> Summary:
    """Write the canonical file to ``path``, a temporary file of the caller, and check what the disk returns."""
    started = time.perf_counter()
    columns = _columns(readings)
    with closing(readings.blocks):
        with open_for_writing(path, "w", "v110") as file:
            for group in ("data", "metadata"):  # HDF5 notes the time in those that it makes by itself
                file.create_group(group)
            seconds, last, zeros = _write_features(file, readings, columns)
            refuse_jitter(seconds, readings.source_data)
            whole_minutes(seconds, readings.source_data)
            _write_metadata(file, readings, columns, seconds)
        with open_hdf5(path, "convert it again") as file:  # what the disk gives back before it replaces a file
            same = file[layout.FEATURES].shape == (len(seconds), *last.shape)
            same = same and np.array_equal(file[layout.TIMESTAMPS][:], as_timestamps(seconds))
            if not same or not np.array_equal(file[layout.FEATURES][-1], last, equal_nan=True):
                raise SocialxError("file.disk", path, "the disk returned other data than was written", "check the disk")
    shown = Clock(readings.timezone, readings.local_zone).text
    return Summary(
        rows=len(seconds),
        sensors=len(readings.sensors.ids),
        features=len(columns),
        elapsed_s=time.perf_counter() - started,
        first_timestamp=shown(int(seconds[0])),
        last_timestamp=shown(int(seconds[-1])),
        gaps=len(gaps(seconds, readings.timezone)[0]),
        zeros=zeros,
    )


def _columns(readings: layout.Readings) -> dict[str, np.ndarray]:
    """Return a column [N] by feature name in file order: constant if static, zeros if measured; raise for bad ids."""
    sensors = readings.sensors
    bad = [ascii(text[:40]) for text in sensors.ids if not (ID.fullmatch(text) and text.isprintable())]
    if bad:  # an id becomes fixed-width text and the name of an HDF5 group
        problem = f"{len(bad)} sensor ids are not 1 to 64 printable characters without spaces and '/' ({sample(bad)})"
        raise SocialxError("file.ids", readings.source_data, problem, "rename them")
    measured: dict[str, np.ndarray | None] = dict.fromkeys(readings.units, np.zeros(len(sensors.ids)))
    return {name: column for name, column in (measured | static_columns(sensors)).items() if column is not None}


def static_columns(sensors: layout.Sensors) -> dict[str, np.ndarray | None]:
    """Return the static attributes [N] by feature name in file order; None where unknown."""
    letters = sensors.direction
    degrees = None if letters is None else np.array([layout.DIRECTIONS.get(letter, np.nan) for letter in letters])
    return {name: getattr(sensors, name) for name in layout.STATIC_UNITS} | {"direction": degrees}


def _write_features(
    file: h5py.File, readings: layout.Readings, columns: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Write blocks and constant ``columns``; return all seconds [T], the last row [N,F], and the number of zeros."""
    sensors, zeros, measured = len(readings.sensors.ids), 0, len(readings.units)
    seconds = np.empty(0, np.int64)
    head = list(islice(readings.blocks, 2))
    if not head:
        raise SocialxError("file.no-rows", readings.source_data, "the file has no rows", "download it again")
    rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // (4 * sensors)))
    rows = rows if len(head) > 1 else min(rows, len(head[0].seconds))
    chunk_bytes = packed_bytes(4 * rows * sensors)
    # The chunk that two blocks share is compressed once, from the cache.
    shape = (0, sensors, len(columns))
    features = create_features(file, layout.FEATURES, shape, rows, cache=3 * measured * 4 * rows * sensors)
    for block in chain(head, readings.blocks):
        first = len(seconds)
        check_block(readings, block, seconds)
        seconds = np.concatenate([seconds, block.seconds])
        reserve(file, packed_bytes(block.values.nbytes) + measured * chunk_bytes)
        features.resize(len(seconds), axis=0)
        for index in range(measured):
            features[first:, :, index] = block.values[..., index]
        zeros += int((block.values[..., 0] == 0).sum())
    for index, column in enumerate(list(columns.values())[measured:], measured):
        reserve(file, chunk_bytes)
        features[:rows, :, index] = column
        file.flush()
        # All chunks of a constant column are the same bytes: HDF5 compresses the first, the others are copies of it.
        mask, packed = features.id.read_direct_chunk((0, 0, index))
        reserve(file, len(packed) * (len(seconds) // rows))
        for first in range(rows, len(seconds), rows):
            features.id.write_direct_chunk((first, 0, index), packed, mask)
    last = np.column_stack([block.values[-1], *list(columns.values())[measured:]]).astype(np.float32)
    return seconds, last, zeros


def create_features(
    file: h5py.File, name: str, shape: tuple[int, int, int], chunk_rows: int, cache: int = 0
) -> h5py.Dataset:
    """Create an extendable dataset [T,N,F], a chunk per ``chunk_rows`` rows and feature; ``cache``: cached bytes."""
    _, sensors, features = shape
    growing = {"maxshape": (None, sensors, features), "chunks": (chunk_rows, sensors, 1), "shuffle": True}
    return file.create_dataset(name, shape, "f4", rdcc_nbytes=max(cache, 1 << 20), **growing, **layout.PACKED)


def write_column(file: h5py.File, name: str, values: np.ndarray) -> h5py.Dataset:
    """Write an extendable dataset with a value per row, sensor or feature."""
    reserve(file, packed_bytes(values.nbytes))
    return file.create_dataset(name, data=values, maxshape=(None,), chunks=True, **layout.PACKED)


def check_block(readings: layout.Readings, block: layout.Block, before: np.ndarray) -> None:
    """Raise SocialxError unless the block's times rise after ``before``, int64 [T], and values are finite or NaN."""
    where, first = readings.source_data, len(before)
    seconds = np.concatenate([before[-1:], block.seconds])
    if (back := np.diff(seconds) <= 0).any():
        index = int(back.argmax())
        row = index + max(first, 1)  # the later one of the two, from 0
        pair = ", ".join(as_text(int(moment)) for moment in seconds[index : index + 2])
        problem = f"rows {row} and {row + 1} ({pair}) are not in order of time"
        raise SocialxError("file.order", where, problem, "sort the rows and remove repeated ones")
    if np.isinf(block.values).any():
        offset, sensor = np.argwhere(np.isinf(block.values))[0][:2]
        at = f"row {first + offset + 1} of sensor {readings.sensors.ids[sensor]}"
        raise SocialxError("file.infinite", where, f"{at} is infinite or too large for a speed", "correct it")


def _write_metadata(
    file: h5py.File, readings: layout.Readings, columns: dict[str, np.ndarray], seconds: np.ndarray
) -> None:
    """Write the attributes, and the datasets on sensors, features and times; ``columns``: constant columns by name."""
    sensors = readings.sensors
    units = {name: layout.STATIC_UNITS.get(name) or readings.units[name] for name in columns}
    step = common_step(seconds)
    frequency = f"{step // 60}min" if step % 60 == 0 else f"{step}s"
    dataset_name, feature_set, source_data, source_meta = map(
        layout.plain_text, (readings.dataset_name, readings.feature_set, readings.source_data, readings.source_meta)
    )
    file.attrs.update(dataset_name=dataset_name, feature_set=feature_set)
    file.attrs.update(feature_schema_version="1.0", creation_date=datetime.now(UTC).isoformat(timespec="seconds"))
    file.attrs["description"] = f"{dataset_name} traffic speeds and sensor positions"
    file.attrs.update(source_data=source_data, source_meta=source_meta)
    sizes = (layout.ROWS_ATTR, "num_locations", "num_features")
    file.attrs.update(zip(sizes, map(np.int64, file[layout.FEATURES].shape), strict=True))
    texts = {layout.VDIDS: layout.fixed_texts(sensors.ids), layout.FEATURE_NAMES: np.array(list(columns), "S32")}
    for name, column in (texts | {layout.TIMESTAMPS: as_timestamps(seconds), layout.SECONDS: seconds}).items():
        write_column(file, name, column)
    metadata = file["metadata"]
    reserve(file, 0)
    metadata["frequency"] = np.bytes_(frequency)
    file[layout.UNITS] = np.bytes_(json.dumps(units))
    metadata["source"] = np.bytes_(f"{source_data} with positions of {source_meta}".encode())
    metadata.attrs["epoch_basis"] = "naive-utc"
    metadata.attrs["timezone"] = readings.timezone or ""
    if readings.local_zone is not None:
        metadata.attrs[layout.LOCAL_ZONE_ATTR] = readings.local_zone
    metadata.attrs[layout.MISSING_ATTR] = np.nan if readings.missing is None else readings.missing
    if readings.lanes is not None:
        file.create_dataset(layout.COMBINED, data=list(readings.lanes), dtype=h5py.string_dtype())
    if readings.codes:
        metadata.attrs[layout.CODES_ATTR] = np.array(readings.codes)
    if readings.table:
        metadata.attrs[layout.TABLE_ATTR] = readings.table
    file.create_group(layout.SENSOR_INFO).attrs[layout.CRS_ATTR] = layout.CRS
    write_sensors(file, sensors)
    reserve(file, 0)


def write_sensors(file: h5py.File, sensors: layout.Sensors) -> None:
    """Write a vd_info entry per sensor with the known attributes; low-level calls take a third of the time."""
    scalar, text = h5py.h5s.create(h5py.h5s.SCALAR), h5py.h5t.py_create(h5py.string_dtype(), logical=True)
    columns = (sensors.latitude, sensors.longitude, sensors.lanes, sensors.length)
    texts = {"direction": sensors.direction, "road": sensors.road}
    info, utf8 = file[layout.SENSOR_INFO].id, h5py.h5p.create(h5py.h5p.LINK_CREATE)
    untimed = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    utf8.set_char_encoding(h5py.h5t.CSET_UTF8)
    untimed.set_obj_track_times(False)  # equal files from equal sources
    for index, vdid in enumerate(sensors.ids):
        if index % ENTRIES == 0:
            reserve(file, 0)
        entry = h5py.h5g.create(info, vdid.encode(), None if vdid.isascii() else utf8, untimed)
        for name, column in zip(layout.ENTRY, columns, strict=False):
            if column is not None and (name in layout.ENTRY[:2] or np.isfinite(column[index])):
                attribute = h5py.h5a.create(entry, name.encode(), h5py.h5t.IEEE_F64LE, scalar)
                attribute.write(np.array(column[index], np.float64), h5py.h5t.NATIVE_DOUBLE)
        for name, words in texts.items():
            if words and words[index]:
                attribute = h5py.h5a.create(entry, name.encode(), text, scalar)
                attribute.write(np.array(words[index], h5py.string_dtype()))


def check_writable(path: Path) -> None:
    """Raise SocialxError for a read-only file."""
    if path.exists() and not os.access(path, os.W_OK):
        raise SocialxError("output.locked", path, "the file is read-only", "make it writable, or work on a copy")


def amend(path: Path, patch: Callable[[h5py.File], None], check: Callable[[h5py.File, h5py.File], bool]) -> None:
    """Patch a copy and move the copy into the file's place; the caller holds ``file_lock``.

    patch: writes into the copy, using HDF5's oldest object format, which every reader supports. check: compares old
    file and copy, and returns whether both old content and changes are present. Raises SocialxError, and keeps the old
    file, where the file is damaged or the disk fails.
    """
    before = file_signature(path)
    with atomic_write(path) as temporary:
        shutil.copyfile(path, temporary)
        try:
            with open_for_writing(temporary, "r+", ("earliest", "v110")) as file:
                layout.check_parts(path, file)  # of the very file that is written
                patch(file)
        except (KeyError, ValueError) as error:  # what h5py makes of damage that reading did not meet
            raise SocialxError("hdf5.torn", path, f"this is damaged HDF5 ({str(error)[:160]!a})", ADVICE) from error
        with open_hdf5(path, ADVICE, locking=False) as old, open_hdf5(temporary, ADVICE) as new:
            same = check(old, new)
        if file_signature(path) != before:  # by somebody who takes no lock
            raise SocialxError("file.changed", path, "the file was changed by another process", "run the command again")
        if not same:
            raise SocialxError("file.disk", path, "the disk returned other data than was written", "check the disk")
