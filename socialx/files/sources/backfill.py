"""Give an older file what it lacks: positions, times in seconds, rules, units.  Its readings are never touched.

The file is copied, the copy is patched and checked, and then takes the file's place in one step.
T rows, N sensors, F features, t rows of one block.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from socialx.core.disk import atomic_write, check_name, file_lock
from socialx.core.errors import Argument, Command, Message, SocialxError, counted, sample
from socialx.data.geo import plausible_location, to_plane
from socialx.files.sources.arrays import float32
from socialx.files.sources.older_files import BLOCK_ROWS, CURRENT, Variant, lacking_units, missing_value, recognise
from socialx.files.sources.positions.locations import Location, read_locations, respelt
from socialx.files.sources.readings import stored_unit
from socialx.files.store.ids import match_key
from socialx.files.store.layout import (
    CRS,
    CRS_ATTR,
    DIRECTIONS,
    FEATURES,
    IMPUTED_ATTR,
    LOCAL_ZONE_ATTR,
    MISSING_ATTR,
    SECONDS,
    SENSOR_INFO,
    STATIC_UNITS,
    UNITS,
    UNKNOWN,
    Block,
    Readings,
    Sensors,
    read_layout,
    read_number,
    read_text,
    read_unit,
    read_units,
)
from socialx.files.store.open_hdf5 import open_hdf5, reserve
from socialx.files.store.published import DATASETS
from socialx.files.store.quantities import SPEED, SPEED_UNITS
from socialx.files.store.time_axis import is_utc, timestamp_seconds
from socialx.files.store.writer import ADVICE, ENTRIES, WAIT_S, amend, check_writable, write

POSITION, MORE = ("position_lat", "position_lon"), ("lanes", "length")  # numbers that vd_info has of a sensor
BAY = DATASETS["pems-bay"]  # which all files that are written anew are
NO_TIME = np.iinfo(np.int64).min  # numpy's NaT: the epoch of a row without a time
# What is said of zeros that had been replaced, or may have been: the attribute, and the action.
IMPUTED: dict[bool | None, tuple[bool | str, str]] = {
    True: (True, "marked as imputed: its zeros had been replaced"),
    None: (UNKNOWN, "marked as perhaps imputed"),
}
READ_BYTES = 1 << 20  # at once, of the readings as they are stored
LISTED, OWN, RESPELT = "the locations file", "its entry of vd_info", "another spelling of the id"
IN_COLUMNS, NOWHERE = "the file's columns", ""
CODED_DIRECTIONS = "NSEW"  # codes 0 to 3 in the files that need a rewrite; the canonical layout has degrees
Facts = dict[str, Any]  # what is known of a sensor, by its attribute in vd_info: numbers, and the letter of a direction


@dataclass(frozen=True)
class Lack:
    """What a file lacks: what is said of it, and what is written, by the name of a group its new attributes, by that of
    a dataset its values."""

    action: str
    written: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Plan:
    """What ``backfill`` does, or would do, with one file; no actions = nothing is lacking."""

    path: Path
    variant: Variant
    rows: int
    sensors: int
    lacks: tuple[Lack, ...]
    unplaced: tuple[str, ...]  # ids for which nothing gives a position in range; they fail the command
    meta_csv: Path | None = None  # the locations file, and the next two options, as the caller gave them
    rewrite: bool = False
    without_positions: bool = False

    @property
    def actions(self) -> tuple[str, ...]:
        """What is done, a line each."""
        return tuple(lack.action for lack in self.lacks if lack.action)

    def new(self) -> list[tuple[str, Any]]:
        """All names of groups and datasets, with what is written there."""
        return [item for lack in self.lacks for item in lack.written.items()]

    def refusal(self) -> Message | None:
        """Why it cannot be done, with the command that does it; None where it can."""
        rewrite = True if self.variant.rewrite else None
        if self.unplaced and not self.without_positions:
            lost = f"{len(self.unplaced)} of {counted(self.sensors, 'sensor')} ({sample(self.unplaced, 10)})"
            command = Command("backfill", self.path, rewrite=rewrite, meta_csv="LOCATIONS.csv")
            without = f"{Argument('without_positions', True)} leaves them without one, and this gives them one: "
            return Message(self.path, f"no position in range for {lost}", f"{without}{command}")
        if self.variant.rewrite and not self.rewrite:
            what = f"{self.variant.name}, {self.variant.what}: it must be written anew"
            return Message(self.path, what, Command("backfill", self.path, rewrite=rewrite, meta_csv=self.meta_csv))
        return None


def backfill(
    path: Path,
    meta_csv: Path | None = None,
    *,
    known: Mapping[int | str, Location] | None = None,
    rewrite: bool = False,
    without_positions: bool = False,
    units: str | None = None,
    timezone: str | None = None,
    local_zone: str | None = None,
    backup: bool = False,
    dry_run: bool = False,
) -> Plan:
    """Patch one file, or only plan it.

    meta_csv: a table of locations; it wins over what the file holds.  known: what is in it, where that was read before.
    rewrite: write files of the two oldest layouts anew.  without_positions: sensors may stay without one.  units,
    timezone, local_zone: of the first measured feature, of the times, and of the clock that people live by where these
    are in UTC; each where the file does not say it, and alone they ask no positions of a current file.  backup: keep
    the old file as ``NAME.bak``.  The file is left as it was, with a SocialxError, where a sensor stays without a
    position or the file says another unit or zone.  So it is where somebody else has it open or the disk fails.
    """
    if known is None:
        known = read_locations(meta_csv) if meta_csv else {}
    if not dry_run:
        check_writable(path)
    with nullcontext() if dry_run else file_lock(path, WAIT_S):
        with open_hdf5(path, ADVICE, locking=None if dry_run else False) as file:
            told = {"timezone": timezone, LOCAL_ZONE_ATTR: local_zone, "units": units}
            plan = _plan(path, file, known, told)
            alone = meta_csv is None and plan.variant.name == CURRENT and any(told.values())
            plan = replace(plan, meta_csv=meta_csv, rewrite=rewrite, without_positions=without_positions or alone)
            if plan.actions and not plan.variant.rewrite:
                _read_all(path, file[FEATURES])
        if dry_run:
            return plan
        if refusal := plan.refusal():
            raise SocialxError.together([refusal])
        if plan.actions:
            with _kept(path) if backup else nullcontext():
                if plan.variant.rewrite:
                    with atomic_write(path) as temporary, open_hdf5(path, ADVICE, locking=False) as file:
                        write(temporary, _readings(path, file, plan))
                else:
                    amend(path, partial(_patch, plan), partial(_is_patched, plan))
        return plan


@contextmanager
def _kept(path: Path) -> Iterator[None]:
    """``NAME.bak`` beside the file; the oldest one is the original, so it is never overwritten.

    One that is made here goes again where the block fails: the file is then as it was.
    """
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


def _plan(path: Path, file: h5py.File, known: Mapping[int | str, Location], told: Mapping[str, str | None]) -> Plan:
    """What the file lacks; told: what the caller says of it."""
    variant = recognise(path, file)
    features, ids, names, timestamps = read_layout(path, file, flat=variant.name == "V0")
    known, _ = respelt(ids, known)
    columns = cache(partial(_columns, features, ids, names, variant))
    described = columns() if variant.rewrite else _described(path, file)
    lacks, unplaced = _locate(ids, known, described, dict if variant.rewrite else columns)
    if variant.rewrite:
        _told(path, {"timezone": BAY.timezone}, SPEED, BAY.units, told)
        anew = "written anew in the canonical layout: float32, directions in degrees"
        lacks.insert(0, Lack(anew, {}))
    else:
        lacks += _crs(file) + _seconds(path, file, timestamps) + _rules(file, variant)
        lacks += _units_and_zones(path, file, names, told)
    return Plan(path, variant, len(timestamps), len(ids), tuple(lacks), unplaced)


def _crs(file: h5py.File) -> list[Lack]:
    """That positions are degrees."""
    stated = SENSOR_INFO in file and read_text(file[SENSOR_INFO].attrs.get(CRS_ATTR, ""))
    return [] if stated else [Lack(f"{CRS_ATTR} {CRS}", {SENSOR_INFO: {CRS_ATTR: CRS}})]


def _seconds(path: Path, file: h5py.File, timestamps: np.ndarray) -> list[Lack]:
    """The seconds of the rows, int64 [T]."""
    seconds, timed = np.full(len(timestamps), NO_TIME, np.int64), timestamps != b""
    seconds[timed] = timestamp_seconds(timestamps[timed], str(path))
    new = {SECONDS: seconds, "metadata": {"epoch_basis": "naive-utc"}}
    stored = file.get(SECONDS)
    if not isinstance(stored, h5py.Dataset):
        return [Lack("timestamps_epoch added", new)]
    values, wrong = stored[()], len(seconds)
    if values.shape == seconds.shape and values.dtype.kind in "iuf":
        wrong = int(np.count_nonzero(values[timed] != seconds[timed]))
    return [Lack(f"timestamps_epoch corrected in {counted(wrong, 'row')}", new)] if wrong else []


def _rules(file: h5py.File, variant: Variant) -> list[Lack]:
    """What stands for no reading, and whether zeros had been replaced."""
    stated, lacks = file["metadata"].attrs, []
    if MISSING_ATTR not in stated:
        missing = missing_value(file)
        says = f"missing readings: {'only NaN' if np.isnan(missing) else f'{missing:g}'}"
        lacks.append(Lack(says, {"metadata": {MISSING_ATTR: missing}}))
    if IMPUTED_ATTR not in stated and variant.imputed in IMPUTED:
        imputed, says = IMPUTED[variant.imputed]
        lacks.append(Lack(says, {"metadata": {IMPUTED_ATTR: imputed}}))
    return lacks


def _units_and_zones(path: Path, file: h5py.File, names: list[str], told: Mapping[str, str | None]) -> list[Lack]:
    """Units that the kind of file shows, and what the caller says."""
    units = lacking_units(file, names)
    lacks = [Lack(f"units of {', '.join(units)}", {})] if units else []
    measured = [name for name in names if name not in STATIC_UNITS]
    feature = SPEED if SPEED in measured or not measured else measured[0]
    unit = units.get(feature, read_unit(file, feature))
    for name, (action, value) in _told(path, file["metadata"].attrs, feature, unit, told).items():
        lacks.append(Lack(action, {} if name == "units" else {"metadata": {name: value}}))
        units |= {feature: value} if name == "units" else {}
    if units:
        lacks.append(Lack("", {UNITS: np.bytes_(json.dumps(read_units(file) | units))}))
    return lacks


def _told(
    path: Path, stated: Mapping[str, object], feature: str, unit: str, told: Mapping[str, str | None]
) -> dict[str, tuple[str, str]]:
    """What the caller says and the file does not: action and value by argument; refuses what contradicts the file.

    stated: the attributes of its metadata.  unit: the one of the feature in the file.
    """
    zone, local = (read_text(stated.get(name, "")) for name in ("timezone", LOCAL_ZONE_ATTR))
    timezone, local_zone, units = told.values()
    if timezone is not None and is_utc(zone) and not is_utc(timezone):
        clock = f"{Argument('local_zone', timezone)} says that people live by that clock"
        raise SocialxError(path, f"its times are in UTC, not of {timezone}", f"{clock}, or {ADVICE}")
    if local_zone is not None and not is_utc(zone or timezone):
        what = f"its times are of {zone or 'an unknown zone'}, and a local zone stands beside times in UTC"
        raise SocialxError(path, what, f"drop {Argument('local_zone')}, or {ADVICE}")
    units = None if units is None else stored_unit(feature, units)
    unit = "" if unit == UNKNOWN else SPEED_UNITS.get(unit.lower(), unit)
    new = {}
    for name, subject, of, old, value, action in (
        ("timezone", "its times are", "of", zone, timezone, "time zone"),
        (LOCAL_ZONE_ATTR, "its days are", "of", local, local_zone, "local zone"),
        ("units", f"{feature} is", "in", unit, units, f"unit of {feature}:"),
    ):
        if value is not None and old not in ("", value):
            raise SocialxError(path, f"{subject} {of} {old}, not {of} {value}", f"drop {Argument(name)}, or {ADVICE}")
        if value is not None and not old:
            new[name] = f"{action} {value}", value
    return new


def _read_all(path: Path, features: h5py.Dataset) -> None:
    """Unpack every reading [T,N,F] once, chunk by chunk; a file that cannot give them back is not complete.

    An older file has no checksums of its own, but a packed chunk that was damaged mostly cannot be unpacked.
    """
    rows = range(0, len(features), BLOCK_ROWS)
    parts = features.iter_chunks() if features.chunks else (slice(first, first + BLOCK_ROWS) for first in rows)
    for part in parts:
        try:
            features[part]
        except (OSError, RuntimeError, ValueError) as error:
            first = (part[0] if isinstance(part, tuple) else part).start
            what = f"{FEATURES} cannot be read from row {first + 1} on ({str(error)[:160]!a})"
            raise SocialxError(path, what, ADVICE) from error


def _described(path: Path, file: h5py.File) -> dict[str, Facts]:
    """What vd_info says of each of its sensors; refuses positions that are no degrees."""
    if SENSOR_INFO not in file:
        return {}
    info = file[SENSOR_INFO]
    if not isinstance(info, h5py.Group):
        raise SocialxError(path, f"{SENSOR_INFO} is not a group", ADVICE)
    described: dict[str, Facts] = {}
    for vdid in info:
        if not isinstance(entry := info[vdid], h5py.Group):
            raise SocialxError(path, f"{SENSOR_INFO}/{vdid} is not a group", ADVICE)
        numbers = [read_number(entry.attrs.get(name)) for name in (*POSITION, *MORE)]
        described[vdid] = _facts(*numbers, read_text(entry.attrs.get("direction", "")))
    crs = read_text(info.attrs.get(CRS_ATTR, ""))
    if crs not in ("", CRS):
        remedy = f"drop vd_info and give {Argument('meta_csv', 'LOCATIONS.csv')}"
        raise SocialxError(path, f"its positions are in {crs}, not degrees", remedy)
    return described


def _facts(*values: Any) -> Facts:
    """The latitude, longitude, lanes, length and direction of a sensor by attribute, without what is unknown."""
    named = zip((*POSITION, *MORE, "direction"), values, strict=True)
    return {name: value for name, value in named if (value if isinstance(value, str) else np.isfinite(value))}


def _listed(place: Location | None) -> Facts:
    if place is None:
        return {}
    return _facts(place.latitude, place.longitude, place.lanes, place.length, place.direction)


def _position(facts: Facts) -> tuple[float, float]:
    """Its latitude and longitude, NaN where they are unknown."""
    return facts.get("position_lat", np.nan), facts.get("position_lon", np.nan)


def _locate(
    ids: tuple[str, ...],
    listed: Mapping[int | str, Location],
    described: Mapping[str, Facts],
    columns: Callable[[], Mapping[str, Facts]],
) -> tuple[list[Lack], tuple[str, ...]]:
    """What vd_info lacks, and the ids that stay without a position.

    The locations file wins over vd_info, and that over the file's own columns, which are read only if needed.
    """
    spelt = {match_key(name): facts for name, facts in described.items()}
    sources: dict[str, Callable[[str], Facts]] = {  # in the order in which they are asked
        LISTED: lambda vdid: _listed(listed.get(match_key(vdid))),
        OWN: lambda vdid: described.get(vdid, {}),
        RESPELT: lambda vdid: spelt.get(match_key(vdid), {}),
        IN_COLUMNS: lambda vdid: columns().get(vdid, {}),
    }
    counts = dict.fromkeys(sources, 0)
    places: dict[str, Facts] = {}
    unplaced, moved_km = [], 0.0
    added: list[Facts] = []  # what else the locations file tells of a sensor, and vd_info does not
    for vdid in ids:
        known = described.get(vdid, {})
        asked = ((origin, source(vdid)) for origin, source in sources.items())
        origin, found = next((each for each in asked if plausible_location(*_position(each[1]))), (NOWHERE, {}))
        if origin == NOWHERE:
            unplaced.append(vdid)
            continue
        new = {name: value for name, value in found.items() if name not in (*POSITION, *known)}
        if new and origin == LISTED:
            added.append(new)
        old_place, new_place = _position(known), _position(found)
        if old_place != new_place:
            new |= dict(zip(POSITION, new_place, strict=True))
            counts[origin] += 1
            if plausible_location(*old_place):
                before, after = to_plane(*np.transpose([old_place, new_place]))
                moved_km = max(moved_km, float(np.hypot(*(after - before))))
        if new:
            places[f"{SENSOR_INFO}/{vdid}"] = new
    actions = [f"vd_info: {counted(count, 'position')} from {origin}" for origin, count in counts.items() if count]
    if moved_km:
        actions[0] += f", moved by up to {1000 * moved_km:,.1f} m"
    if added:
        names = [name for name in (*MORE, "direction") if any(name in new for new in added)]
        actions.append(f"vd_info: {', '.join(names)} of {counted(len(added), 'sensor')} from {LISTED}")
    return [*(Lack(action, {}) for action in actions), Lack("", places)], tuple(unplaced)


def _columns(features: h5py.Dataset, ids: tuple[str, ...], names: list[str], variant: Variant) -> dict[str, Facts]:
    """What the static columns say of each sensor; a value that changes in time is no value."""
    wanted = ("latitude", "longitude", *MORE, "direction")
    values = np.full((len(wanted), len(ids)), np.nan)
    present = [name for name in wanted if name in names]
    low = high = np.full((len(ids), len(present)), np.nan)
    for first in range(0, len(features), BLOCK_ROWS):
        cells = features[first : first + BLOCK_ROWS][:, :, [names.index(name) for name in present]].astype(np.float64)
        low, high = np.fmin(low, np.fmin.reduce(cells)), np.fmax(high, np.fmax.reduce(cells))
    values[[wanted.index(name) for name in present]] = np.where(low == high, low, np.nan).T
    letters = dict(enumerate(CODED_DIRECTIONS)) if variant.rewrite else {v: k for k, v in DIRECTIONS.items()}
    rows = zip(ids, values.T.tolist(), strict=True)
    return {vdid: _facts(*numbers, letters.get(code, "")) for vdid, (*numbers, code) in rows}


def _patch(plan: Plan, file: h5py.File) -> None:
    """Write what the file lacks."""
    for index, (name, new) in enumerate(plan.new()):
        if index % ENTRIES == 0:
            reserve(file, 0)
        if isinstance(new, dict):
            file.require_group(name).attrs.update(new)
            continue
        if name in file:
            del file[name]
        reserve(file, new.nbytes)
        file[name] = new


def _is_patched(plan: Plan, old: h5py.File, new: h5py.File) -> bool:
    """Whether the features of a patched copy are the very bytes of the old file, and the plan is done in it."""
    same = _stored(old[FEATURES]) == _stored(new[FEATURES])
    for name, values in plan.new():
        if isinstance(values, dict):
            same &= all(read_text(new[name].attrs[key]) == str(value) for key, value in values.items())
        else:
            same &= name in new and np.array_equal(new[name][()], values)
    return same


def _stored(features: h5py.Dataset) -> str:
    """A digest of the bytes of a dataset as they lie in its file, and of their places in it."""
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


def _readings(path: Path, file: h5py.File, plan: Plan) -> Readings:
    """The readings of a file of one of the two oldest layouts, both PEMS-BAY, with the plan's positions."""
    features, ids, names, timestamps = read_layout(path, file, flat=plan.variant.name == "V0")
    columns = _columns(features, ids, names, plan.variant)
    places = dict(plan.new())
    known = [columns[vdid] | places.get(f"{SENSOR_INFO}/{vdid}", {}) for vdid in ids]
    latitude, longitude, lanes, length = (
        np.array([facts.get(name, np.nan) for facts in known]) for name in (*POSITION, *MORE)
    )
    directions = tuple(facts.get("direction", "") for facts in known)
    sensors = Sensors(ids, latitude, longitude, lanes, length, directions)
    seconds = timestamp_seconds(timestamps.astype("S19"), str(path))
    blocks = (
        Block(seconds[first : first + BLOCK_ROWS], float32(features[first : first + BLOCK_ROWS, :, 0]))
        for first in range(0, len(timestamps), BLOCK_ROWS)
    )
    name = read_text(file.attrs.get("dataset_name", BAY.dataset_name))
    said = (BAY.units, BAY.missing, BAY.timezone, f"{path} ({plan.variant.name})", "the same file")
    return Readings(name, BAY.feature_set, sensors, blocks, *said)


def expand(path: Path) -> list[Path]:
    """A file as it is; a folder as the .h5 and .hdf5 files in it, by name."""
    check_name(path)
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.suffix in (".h5", ".hdf5") and each.name[0] != ".")
    if not files:
        raise SocialxError(path, "no .h5 or .hdf5 file in this folder", "name the files")
    return files
