"""Complete an older file with locations, epoch seconds, missing-value rules and units; observations stay untouched.

A copy is patched, checked, and moved into the file's place. T rows, N sensors, F features, t rows in a block.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from socialx.core.disk import atomic_write, check_name, file_lock
from socialx.core.errors import Argument, Command, Message, SocialxError, counted, sample
from socialx.data.geo import plausible_location, to_plane
from socialx.files.sources.older_files import BLOCK_ROWS, CURRENT, Variant, lacking_units, missing_value, recognise
from socialx.files.sources.positions.locations import NO_PLACE, Location, match_ids
from socialx.files.sources.readings import stored_unit
from socialx.files.store import layout
from socialx.files.store.ids import match_key
from socialx.files.store.open_hdf5 import open_hdf5, reserve
from socialx.files.store.published import DATASETS
from socialx.files.store.quantities import SPEED, SPEED_UNITS
from socialx.files.store.time_axis import is_utc, timestamp_seconds
from socialx.files.store.writer import ADVICE, ENTRIES, WAIT_S, amend, check_writable, write

POSITION, MORE = ("position_lat", "position_lon"), ("lanes", "length")  # sensor numbers in vd_info
BAY = DATASETS["pems-bay"]  # the data set in every file that needs a rewrite
NO_TIME = np.iinfo(np.int64).min  # numpy's NaT: the epoch of a row without a time
# Attribute and action for zeros that were replaced, or may have been.
IMPUTED: dict[bool | None, tuple[bool | str, str]] = {
    True: (True, "marked as imputed: its zeros had been replaced"),
    None: (layout.UNKNOWN, "marked as perhaps imputed"),
}
READ_BYTES = 1 << 20  # at once, of the readings as they are stored
LISTED, OWN, RESPELT = "the locations file", "its entry of vd_info", "another spelling of the id"
IN_COLUMNS, NOWHERE = "the file's columns", ""
CODED_DIRECTIONS = "NSEW"  # codes 0 to 3 in the files that need a rewrite; the canonical layout has degrees
Facts = dict[str, Any]  # attributes in vd_info by name: numbers and a direction letter


@dataclass(frozen=True)
class Given:
    """What the caller adds to files and allows.

    meta_csv: a locations table, which overrides locations in a file; locations: the table's content, by ``match_key``.
    rewrite: write files in the two oldest layouts again. without_positions: allow sensors that lack a location. units,
    timezone, local_zone: the first measured feature's unit, the time zone, and the local zone for times in UTC,
    where a file lacks the fact; a current file then needs no locations.
    """

    meta_csv: Path | None = None
    locations: Mapping[int | str, Location] = field(default_factory=dict)
    rewrite: bool = False
    without_positions: bool = False
    units: str | None = None
    timezone: str | None = None
    local_zone: str | None = None


@dataclass(frozen=True)
class MissingPart:
    """A part that the file lacks. action: a line for the user. written: attributes by group, or values by dataset."""

    action: str
    written: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Completion:
    """The plan and result of ``backfill`` for a file; an empty ``actions`` means that the file is complete."""

    path: Path
    variant: Variant
    rows: int
    sensors: int
    parts: tuple[MissingPart, ...]
    unplaced: tuple[str, ...]  # ids that lack a location in range and fail the command
    given: Given

    @property
    def actions(self) -> tuple[str, ...]:
        """What the plan does: a line of text per action."""
        return tuple(lack.action for lack in self.parts if lack.action)

    @property
    def without_positions(self) -> bool:
        """Whether sensors may lack a location: as given, and where a current file only gets a unit or a zone."""
        given = self.given
        facts = given.meta_csv is None and self.variant.name == CURRENT
        return given.without_positions or (facts and any((given.units, given.timezone, given.local_zone)))

    def changes(self) -> list[tuple[str, Any]]:
        """Return (group or dataset name, content) for every change: attributes of a group, values of a dataset."""
        return [item for lack in self.parts for item in lack.written.items()]

    def refusal(self) -> Message | None:
        """Return the reason against the plan and the command that helps; None where the plan can run."""
        given, rewrite = self.given, True if self.variant.rewrite else None
        if self.unplaced and not self.without_positions:
            unlocated = f"{len(self.unplaced)} of {counted(self.sensors, 'sensor')} ({sample(self.unplaced, 10)})"
            command = Command("backfill", self.path, rewrite=rewrite, meta_csv="LOCATIONS.csv")
            without = f"accept that with {Argument('without_positions', True)}, or give positions: "
            problem = f"there is no position in range for {unlocated}"
            return Message("backfill.no-position", self.path, problem, f"{without}{command}")
        if self.variant.rewrite and not given.rewrite:
            problem = f"a file of kind {self.variant.name} ({self.variant.description}) must be rewritten"
            again = Command("backfill", self.path, rewrite=rewrite, meta_csv=given.meta_csv)
            return Message("backfill.needs-rewrite", self.path, problem, again)
        return None


def backfill(path: Path, given: Given, *, backup: bool = False, dry_run: bool = False) -> Completion:
    """Complete the older file ``path`` with locations, units and rules for missing values; ``dry_run``: only plan.

    backup: keep the old file as ``NAME.bak``. Raises SocialxError, and keeps the old file, where a location is missing,
    a unit or zone contradicts the file, another process has the file open, or the disk fails.
    """
    if not dry_run:
        check_writable(path)
    with nullcontext() if dry_run else file_lock(path, WAIT_S):
        with open_hdf5(path, ADVICE, locking=None if dry_run else False) as file:
            plan = _find_missing(path, file, given)
            if plan.actions and not plan.variant.rewrite:
                _read_all(path, file[layout.FEATURES])
        if dry_run:
            return plan
        if refusal := plan.refusal():
            raise SocialxError.together([refusal])
        if plan.actions:
            with _backup_copy(path) if backup else nullcontext():
                if plan.variant.rewrite:
                    with atomic_write(path) as temporary, open_hdf5(path, ADVICE, locking=False) as file:
                        write(temporary, _readings(path, file, plan))
                else:
                    amend(path, partial(_patch, plan), partial(_is_patched, plan))
        return plan


@contextmanager
def _backup_copy(path: Path) -> Iterator[None]:
    """Keep ``NAME.bak`` while the block runs; an older backup stays; a failing block deletes a new backup."""
    copy = path.with_name(f"{path.name}.bak")
    check_name(copy)
    made = not copy.exists()
    if made:
        with atomic_write(copy) as temporary:
            shutil.copy(path, temporary)
    try:
        yield
    except Exception:
        if made:
            copy.unlink(missing_ok=True)
        raise


def _find_missing(path: Path, file: h5py.File, given: Given) -> Completion:
    variant = recognise(path, file)
    features, ids, names, timestamps = layout.read_layout(path, file, flat=variant.name == "V0")
    locations, _ = match_ids(ids, given.locations)
    columns = cache(partial(_columns, features, ids, names, variant))
    described = columns() if variant.rewrite else _stored_facts(path, file)
    lacks, unplaced = _locate(ids, locations, described, dict if variant.rewrite else columns)
    if variant.rewrite:
        _check_given(path, {"timezone": BAY.timezone}, SPEED, BAY.units, given)
        rewritten = "rewritten in the canonical layout: float32, directions in degrees"
        lacks.insert(0, MissingPart(rewritten, {}))
    else:
        lacks += _crs(file) + _seconds(path, file, timestamps) + _rules(file, variant)
        lacks += _units_and_zones(path, file, names, given)
    return Completion(path, variant, len(timestamps), len(ids), tuple(lacks), unplaced, given)


def _crs(file: h5py.File) -> list[MissingPart]:
    """Return the statement that locations are in degrees, to be added to vd_info; [] where present."""
    stated = layout.SENSOR_INFO in file and layout.read_text(file[layout.SENSOR_INFO].attrs.get(layout.CRS_ATTR, ""))
    crs = MissingPart(f"{layout.CRS_ATTR} {layout.CRS}", {layout.SENSOR_INFO: {layout.CRS_ATTR: layout.CRS}})
    return [] if stated else [crs]


def _seconds(path: Path, file: h5py.File, timestamps: np.ndarray) -> list[MissingPart]:
    """Return the missing or wrong epoch seconds, int64 [T], of the file's ``timestamps``; [] where all are right."""
    seconds, timed = np.full(len(timestamps), NO_TIME, np.int64), timestamps != b""
    seconds[timed] = timestamp_seconds(timestamps[timed], str(path))
    new = {layout.SECONDS: seconds, "metadata": {"epoch_basis": "naive-utc"}}
    stored = file.get(layout.SECONDS)
    if not isinstance(stored, h5py.Dataset):
        return [MissingPart("timestamps_epoch added", new)]
    values, wrong = stored[()], len(seconds)
    if values.shape == seconds.shape and values.dtype.kind in "iuf":
        wrong = int(np.count_nonzero(values[timed] != seconds[timed]))
    return [MissingPart(f"timestamps_epoch corrected in {counted(wrong, 'row')}", new)] if wrong else []


def _rules(file: h5py.File, variant: Variant) -> list[MissingPart]:
    """Return the missing value and the imputation flag where the file lacks either; an empty list for neither."""
    stated, lacks = file["metadata"].attrs, []
    if layout.MISSING_ATTR not in stated:
        missing = missing_value(file)
        says = f"missing readings: {'only NaN' if np.isnan(missing) else f'{missing:g}'}"
        lacks.append(MissingPart(says, {"metadata": {layout.MISSING_ATTR: missing}}))
    if layout.IMPUTED_ATTR not in stated and variant.imputed in IMPUTED:
        imputed, says = IMPUTED[variant.imputed]
        lacks.append(MissingPart(says, {"metadata": {layout.IMPUTED_ATTR: imputed}}))
    return lacks


def _units_and_zones(path: Path, file: h5py.File, names: list[str], given: Given) -> list[MissingPart]:
    """Return missing units of the features ``names`` by the kind of file, and ``given`` facts that the file lacks."""
    units = lacking_units(file, names)
    lacks = [MissingPart(f"units of {', '.join(units)}", {})] if units else []
    measured = [name for name in names if name not in layout.STATIC_UNITS]
    feature = SPEED if SPEED in measured or not measured else measured[0]
    unit = units.get(feature, layout.read_unit(file, feature))
    for name, (action, value) in _check_given(path, file["metadata"].attrs, feature, unit, given).items():
        lacks.append(MissingPart(action, {} if name == "units" else {"metadata": {name: value}}))
        units |= {feature: value} if name == "units" else {}
    if units:
        lacks.append(MissingPart("", {layout.UNITS: np.bytes_(json.dumps(layout.read_units(file) | units))}))
    return lacks


def _check_given(
    path: Path, stated: Mapping[str, object], feature: str, unit: str, given: Given
) -> dict[str, tuple[str, str]]:
    """Return (line for the user, value) by option for each ``given`` fact that the file lacks; raise for others."""
    zone, local = (layout.read_text(stated.get(name, "")) for name in ("timezone", layout.LOCAL_ZONE_ATTR))
    timezone, local_zone, units = given.timezone, given.local_zone, given.units
    if timezone is not None and is_utc(zone) and not is_utc(timezone):
        clock = f"name the clock that people live by with {Argument('local_zone', timezone)}"
        raise SocialxError("backfill.in-utc", path, f"the times are in UTC, not in {timezone}", f"{clock}, or {ADVICE}")
    if local_zone is not None and not is_utc(zone or timezone):
        problem = f"the times are of {zone or 'an unknown zone'}, and a local zone needs times in UTC"
        raise SocialxError("backfill.not-in-utc", path, problem, f"drop {Argument('local_zone')}, or {ADVICE}")
    units = None if units is None else stored_unit(feature, units)
    unit = "" if unit == layout.UNKNOWN else SPEED_UNITS.get(unit.lower(), unit)
    changes = {}
    for name, subject, word, old, value, action in (
        ("timezone", "the times are", "of", zone, timezone, "time zone"),
        (layout.LOCAL_ZONE_ATTR, "the days are", "of", local, local_zone, "local zone"),
        ("units", f"{feature} is", "in", unit, units, f"unit of {feature}:"),
    ):
        if value is not None and old not in ("", value):
            problem = f"{subject} {word} {old}, not {word} {value}"
            raise SocialxError("backfill.contradicts", path, problem, f"drop {Argument(name)}, or {ADVICE}")
        if value is not None and not old:
            changes[name] = f"{action} {value}", value
    return changes


def _read_all(path: Path, features: h5py.Dataset) -> None:
    """Unpack every value [T,N,F] once to find damage. Raises SocialxError for an unreadable chunk.

    Older files have no checksums, but most damaged chunks fail to unpack.
    """
    rows = range(0, len(features), BLOCK_ROWS)
    parts = features.iter_chunks() if features.chunks else (slice(first, first + BLOCK_ROWS) for first in rows)
    for part in parts:
        try:
            features[part]
        except (OSError, RuntimeError, ValueError) as error:
            first = (part[0] if isinstance(part, tuple) else part).start
            problem = f"{layout.FEATURES} cannot be read from row {first + 1} on ({str(error)[:160]!a})"
            raise SocialxError("backfill.unreadable", path, problem, ADVICE) from error


def _stored_facts(path: Path, file: h5py.File) -> dict[str, Facts]:
    """Return the attributes in vd_info by sensor id. Raises SocialxError for coordinates that are not EPSG:4326."""
    if layout.SENSOR_INFO not in file:
        return {}
    info = file[layout.SENSOR_INFO]
    if not isinstance(info, h5py.Group):
        raise SocialxError("backfill.info-no-group", path, f"{layout.SENSOR_INFO} is not a group", ADVICE)
    described: dict[str, Facts] = {}
    for vdid in info:
        if not isinstance(info[vdid], h5py.Group):
            raise SocialxError("backfill.entry-no-group", path, f"{layout.SENSOR_INFO}/{vdid} is not a group", ADVICE)
        stored = layout.read_entry(info, vdid)
        numbers = [layout.read_number(stored.get(name)) for name in (*POSITION, *MORE)]
        described[vdid] = _facts(*numbers, layout.read_text(stored.get("direction", "")))
    crs = layout.read_text(info.attrs.get(layout.CRS_ATTR, ""))
    if crs not in ("", layout.CRS):
        remedy = f"drop vd_info and give {Argument('meta_csv', 'LOCATIONS.csv')}"
        raise SocialxError("backfill.crs", path, f"the positions are in {crs}, not degrees", remedy)
    return described


def _facts(*values: Any) -> Facts:
    """Return latitude, longitude, lanes, length and direction, in this order, by attribute name without unknowns."""
    named = zip((*POSITION, *MORE, "direction"), values, strict=True)
    return {name: value for name, value in named if (value if isinstance(value, str) else np.isfinite(value))}


def _location_facts(location: Location) -> Facts:
    return _facts(location.latitude, location.longitude, location.lanes, location.length, location.direction)


def _position(facts: Facts) -> tuple[float, float]:
    """Return latitude and longitude in degrees from a sensor's attributes ``facts``, NaN where unknown."""
    return facts.get("position_lat", np.nan), facts.get("position_lon", np.nan)


def _locate(
    ids: tuple[str, ...],
    listed: Mapping[int | str, Location],
    described: Mapping[str, Facts],
    columns: Callable[[], Mapping[str, Facts]],
) -> tuple[list[MissingPart], tuple[str, ...]]:
    """Return the missing vd_info entries, and the ids that stay unlocated.

    Sources in order: ``listed``, the locations file by ``match_key``; ``described``, the file's vd_info by id;
    ``columns``, which reads the file's latitude and longitude columns, and is called only if needed.
    """
    spelt = {match_key(name): facts for name, facts in described.items()}
    sources: dict[str, Callable[[str], Facts]] = {  # in the order in which they are asked
        LISTED: lambda vdid: _location_facts(listed.get(match_key(vdid), NO_PLACE)),
        OWN: lambda vdid: described.get(vdid, {}),
        RESPELT: lambda vdid: spelt.get(match_key(vdid), {}),
        IN_COLUMNS: lambda vdid: columns().get(vdid, {}),
    }
    counts = dict.fromkeys(sources, 0)
    entries: dict[str, Facts] = {}
    unlocated, moved_km = [], 0.0
    added: list[Facts] = []  # further attributes from the locations file that vd_info lacks
    for vdid in ids:
        stored = described.get(vdid, {})
        candidates = ((origin, source(vdid)) for origin, source in sources.items())
        origin, facts = next((pair for pair in candidates if plausible_location(*_position(pair[1]))), (NOWHERE, {}))
        if origin == NOWHERE:
            unlocated.append(vdid)
            continue
        new = {name: value for name, value in facts.items() if name not in (*POSITION, *stored)}
        if new and origin == LISTED:
            added.append(new)
        old_position, new_position = _position(stored), _position(facts)
        if old_position != new_position:
            new |= dict(zip(POSITION, new_position, strict=True))
            counts[origin] += 1
            if plausible_location(*old_position):
                before, after = to_plane(*np.transpose([old_position, new_position]))
                moved_km = max(moved_km, float(np.hypot(*(after - before))))
        if new:
            entries[f"{layout.SENSOR_INFO}/{vdid}"] = new
    actions = [f"vd_info: {counted(count, 'position')} from {origin}" for origin, count in counts.items() if count]
    if moved_km:
        actions[0] += f", moved by up to {1000 * moved_km:,.1f} m"
    if added:
        names = [name for name in (*MORE, "direction") if any(name in new for new in added)]
        actions.append(f"vd_info: {', '.join(names)} of {counted(len(added), 'sensor')} from {LISTED}")
    return [*(MissingPart(action, {}) for action in actions), MissingPart("", entries)], tuple(unlocated)


def _columns(features: h5py.Dataset, ids: tuple[str, ...], names: list[str], variant: Variant) -> dict[str, Facts]:
    """Return attributes by sensor id from constant feature columns; ``variant`` tells how directions are coded."""
    wanted = ("latitude", "longitude", *MORE, "direction")
    values = np.full((len(wanted), len(ids)), np.nan)
    present = [name for name in wanted if name in names]
    low = high = np.full((len(ids), len(present)), np.nan)
    for first in range(0, len(features), BLOCK_ROWS):
        cells = features[first : first + BLOCK_ROWS][:, :, [names.index(name) for name in present]].astype(np.float64)
        low, high = np.fmin(low, np.fmin.reduce(cells)), np.fmax(high, np.fmax.reduce(cells))
    values[[wanted.index(name) for name in present]] = np.where(low == high, low, np.nan).T
    letters = dict(enumerate(CODED_DIRECTIONS)) if variant.rewrite else {v: k for k, v in layout.DIRECTIONS.items()}
    rows = zip(ids, values.T.tolist(), strict=True)
    return {vdid: _facts(*numbers, letters.get(code, "")) for vdid, (*numbers, code) in rows}


def _patch(plan: Completion, file: h5py.File) -> None:
    """Write the changes in ``plan`` into ``file``, a copy of the user's file."""
    for index, (name, new) in enumerate(plan.changes()):
        if index % ENTRIES == 0:
            reserve(file, 0)
        if isinstance(new, dict):
            file.require_group(name).attrs.update(new)
            continue
        if name in file:
            del file[name]
        reserve(file, new.nbytes)
        file[name] = new


def _is_patched(plan: Completion, old: h5py.File, new: h5py.File) -> bool:
    """Return whether the ``new`` file has the features of the ``old`` byte by byte, and every planned change."""
    same = _stored_digest(old[layout.FEATURES]) == _stored_digest(new[layout.FEATURES])
    for name, values in plan.changes():
        if isinstance(values, dict):
            same &= all(layout.read_text(new[name].attrs[key]) == str(value) for key, value in values.items())
        else:
            same &= name in new and np.array_equal(new[name][()], values)
    return same


def _stored_digest(features: h5py.Dataset) -> str:
    """Return the SHA-256 of a dataset's packed bytes and byte ranges: equal where nothing was rewritten."""
    extents: list[tuple[int, int]] = []
    if features.chunks is not None:
        features.id.chunk_iter(lambda chunk: extents.append((chunk.byte_offset, chunk.size)))
    elif (offset := features.id.get_offset()) is not None:
        extents.append((offset, features.id.get_storage_size()))
    digest = hashlib.sha256(repr(sorted(extents)).encode())
    with Path(features.file.filename).open("rb") as file:
        for offset, size in sorted(extents):
            file.seek(offset)
            for first in range(0, size, READ_BYTES):
                digest.update(file.read(min(READ_BYTES, size - first)))
    return digest.hexdigest()


def _first_feature(features: h5py.Dataset, seconds: np.ndarray) -> Generator[layout.Block, None, None]:
    """Yield the readings of the first feature as float32; an overflow becomes inf, which the writer rejects."""
    for first in range(0, len(seconds), BLOCK_ROWS):
        part = slice(first, first + BLOCK_ROWS)
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.array(features[part, :, :1], np.float32)
        yield layout.Block(seconds[part], values)


def _readings(path: Path, file: h5py.File, plan: Completion) -> layout.Readings:
    """Return the readings of a PEMS-BAY file in an old layout, with the planned locations."""
    features, ids, names, timestamps = layout.read_layout(path, file, flat=plan.variant.name == "V0")
    columns = _columns(features, ids, names, plan.variant)
    entries = dict(plan.changes())
    sensor_facts = [columns[vdid] | entries.get(f"{layout.SENSOR_INFO}/{vdid}", {}) for vdid in ids]
    latitude, longitude, lanes, length = (
        np.array([facts.get(name, np.nan) for facts in sensor_facts]) for name in (*POSITION, *MORE)
    )
    directions = tuple(facts.get("direction", "") for facts in sensor_facts)
    sensors = layout.Sensors(ids, latitude, longitude, lanes, length, directions)
    seconds = timestamp_seconds(timestamps.astype("S19"), str(path))
    blocks = _first_feature(features, seconds)
    name = layout.read_text(file.attrs.get("dataset_name", BAY.dataset_name))
    origin = ({SPEED: BAY.units}, BAY.missing, BAY.timezone, f"{path} ({plan.variant.name})", "the same file")
    return layout.Readings(name, BAY.feature_set, sensors, blocks, *origin)


def expand(path: Path) -> list[Path]:
    """Return a file as a list, or the .h5 and .hdf5 files in a folder, sorted by name."""
    check_name(path)
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in (".h5", ".hdf5") and file.name[0] != ".")
    if not files:
        raise SocialxError("backfill.nothing", path, "there is no .h5 or .hdf5 file in this folder", "name the files")
    return files
