"""Give an older file what it lacks: positions, times in seconds, rules, units.  Its readings are never touched.

The file is copied, the copy is patched and checked, and then takes the file's place in one step.
T rows, N sensors, F features, t rows of one block.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from socialx.data.geo import EARTH_RADIUS_KM, on_earth
from socialx.disk import check_name, exclusive, replacing
from socialx.errors import Argument, Command, Message, SocialxError, counted, sample
from socialx.files.amend import ADVICE, WAIT_S, amend, check_writable
from socialx.files.formats.arrays import float32
from socialx.files.hdf5_layout import (
    DIRECTIONS,
    FEATURE_NAMES,
    FEATURES,
    FLAT,
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
from socialx.files.locations import Location, match_key, read_locations, respelt
from socialx.files.older.variants import BLOCK_ROWS, CURRENT, Variant, lacking_units, missing_value, recognise
from socialx.files.open_hdf5 import open_hdf5, reserve
from socialx.files.published import DATASETS
from socialx.files.quantities import SPEED, SPEED_UNITS
from socialx.files.readings import stored_unit
from socialx.files.time_axis import is_utc, timestamp_seconds
from socialx.files.writer import ENTRIES, write

CRS_ATTR, CRS = "coord_crs", "EPSG:4326"
NO_TIME = np.iinfo(np.int64).min  # numpy's NaT: the epoch of a row without a time
COMPARED_BYTES = 1 << 20  # of the old and the new file at once
CODED_DIRECTIONS = "NSEW"  # codes 0 to 3 in the files that need a rewrite; the canonical layout has degrees


@dataclass(frozen=True, eq=False)
class Plan:
    """What ``backfill`` does, or would do, with one file; no actions = nothing is lacking."""

    path: Path
    variant: Variant
    rows: int
    sensors: int
    actions: tuple[str, ...]
    unplaced: tuple[str, ...]  # ids for which nothing gives a position in range; they fail the command
    locations: Mapping[str, Location]  # by vdid: the entries of vd_info that are new or change
    add_crs: bool = False
    seconds: np.ndarray | None = None  # int64 [T] to be stored
    attributes: Mapping[str, float | bool | str] = field(default_factory=dict)  # the rules that metadata does not state
    units: dict[str, str] = field(default_factory=dict)  # feature -> unit, where the file states none
    meta: Path | None = None  # the locations file, and the next two options, as the caller gave them
    rewrite: bool = False
    without_positions: bool = False

    def refusal(self) -> Message | None:
        """Why it cannot be done, with the command that does it; None where it can."""
        rewrite = True if self.variant.rewrite else None
        if self.unplaced and not self.without_positions:
            lost = f"{len(self.unplaced)} of {counted(self.sensors, 'sensor')} ({sample(self.unplaced, 10)})"
            command = Command("backfill", self.path, rewrite=rewrite, meta="LOCATIONS.csv")
            without = f"{Argument('without_positions', True)} leaves them without one, and this gives them one: "
            return Message(self.path, f"no position in range for {lost}", f"{without}{command}")
        if self.variant.rewrite and not self.rewrite:
            what = f"{self.variant.name}, {self.variant.what}: it must be written anew"
            return Message(self.path, what, Command("backfill", self.path, rewrite=rewrite, meta=self.meta))
        return None


def backfill(
    path: Path,
    meta: Path | None = None,
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

    meta: a table of locations; it wins over what the file holds.  known: what is in it, where that was read before.
    rewrite: write files of the two oldest layouts anew.  without_positions: sensors may stay without one.  units,
    timezone, local_zone: of the first measured feature, of the times, and of the clock that people live by where these
    are in UTC; each where the file does not say it, and alone they ask no positions of a current file.  backup: keep
    the old file as ``NAME.bak``.  The file is left as it was, with a SocialxError, where a sensor stays without a
    position or the file says another unit or zone.  So it is where somebody else has it open or the disk fails.
    """
    if known is None:
        known = read_locations(meta) if meta else {}
    if not dry_run:
        check_writable(path)
    with nullcontext() if dry_run else exclusive(path, WAIT_S):
        with open_hdf5(path, ADVICE, locking=None if dry_run else False) as file:
            plan = _told(_plan(path, file, known), file, units, timezone, local_zone)
            alone = meta is None and plan.variant.name == CURRENT and (units or timezone or local_zone) is not None
            plan = replace(plan, meta=meta, rewrite=rewrite, without_positions=without_positions or alone)
            if plan.actions and not plan.variant.rewrite:
                _read_all(path, file[FEATURES])
        if dry_run:
            return plan
        if refusal := plan.refusal():
            raise SocialxError.together([refusal])
        if plan.actions:
            with _kept(path) if backup else nullcontext():
                if plan.variant.rewrite:
                    with replacing(path) as temporary, open_hdf5(path, ADVICE, locking=False) as file:
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
    if copy.exists():
        yield
        return
    with replacing(copy) as temporary:
        shutil.copyfile(path, temporary)
        shutil.copymode(path, temporary)
    try:
        yield
    except Exception:
        copy.unlink(missing_ok=True)
        raise


def _plan(path: Path, file: h5py.File, known: Mapping[int | str, Location]) -> Plan:
    variant = recognise(path, file)
    features, ids, names, timestamps = _layout(path, file, variant)
    known, _ = respelt(ids, known)
    if variant.rewrite:
        locations, actions, unplaced = _locate(ids, known, _columns(features, ids, names, variant), dict)
        actions.insert(0, "written anew in the canonical layout: float32, directions in degrees")
        return Plan(path, variant, len(timestamps), len(ids), tuple(actions), unplaced, locations)
    info = file.get(SENSOR_INFO)
    if info is not None and not isinstance(info, h5py.Group):
        raise SocialxError(path, f"{SENSOR_INFO} is not a group", ADVICE)
    described = {} if info is None else {name: _location(path, name, info[name]) for name in info}
    crs = "" if info is None else read_text(info.attrs.get(CRS_ATTR, ""))
    if crs not in ("", CRS):
        remedy = f"drop vd_info and give {Argument('meta', 'LOCATIONS.csv')}"
        raise SocialxError(path, f"its positions are in {crs}, not degrees", remedy)
    locations, actions, unplaced = _locate(ids, known, described, lambda: _columns(features, ids, names, variant))
    if crs != CRS:
        actions.append(f"{CRS_ATTR} {CRS}")

    seconds, timed = np.full(len(timestamps), NO_TIME, np.int64), timestamps != b""
    seconds[timed] = timestamp_seconds(timestamps[timed], str(path))
    stored = file.get(SECONDS)
    wrong = None  # of the stored seconds; None = there are none
    if isinstance(stored, h5py.Dataset):
        values = stored[()]
        comparable = values.shape == seconds.shape and values.dtype.kind in "iuf"
        wrong = int(np.count_nonzero(values[timed] != seconds[timed])) if comparable else len(seconds)
    if wrong != 0:
        actions.append(f"timestamps_epoch corrected in {counted(wrong, 'row')}" if wrong else "timestamps_epoch added")

    attributes: dict[str, float | bool | str] = {}
    stated = file["metadata"].attrs
    if MISSING_ATTR not in stated:
        missing = attributes[MISSING_ATTR] = missing_value(file)
        actions.append(f"missing readings: {'only NaN' if np.isnan(missing) else f'{missing:g}'}")
    if IMPUTED_ATTR not in stated and variant.imputed is not False:
        attributes[IMPUTED_ATTR] = UNKNOWN if variant.imputed is None else True
        perhaps = "marked as perhaps imputed"
        actions.append(perhaps if variant.imputed is None else "marked as imputed: its zeros had been replaced")
    if units := lacking_units(file, names):
        actions.append(f"units of {', '.join(units)}")
    return Plan(
        path,
        variant,
        len(timestamps),
        len(ids),
        tuple(actions),
        unplaced,
        locations,
        add_crs=crs != CRS,
        seconds=None if wrong == 0 else seconds,
        attributes=attributes,
        units=units,
    )


def _told(plan: Plan, file: h5py.File, units: str | None, timezone: str | None, local_zone: str | None) -> Plan:
    """The plan with the unit and the time zones that the caller says; refuses others than the file has."""
    bay = DATASETS["pems-bay"]  # which all files that are written anew are
    stated = {} if plan.variant.rewrite else file["metadata"].attrs
    zone = bay.timezone if plan.variant.rewrite else read_text(stated.get("timezone", ""))
    if timezone is not None and is_utc(zone) and not is_utc(timezone):
        clock = f"{Argument('local_zone', timezone)} says that people live by that clock"
        raise SocialxError(plan.path, f"its times are in UTC, not of {timezone}", f"{clock}, or {ADVICE}")
    if local_zone is not None and not is_utc(zone or timezone):
        what = f"its times are of {zone or 'an unknown zone'}, and a local zone stands beside times in UTC"
        raise SocialxError(plan.path, what, f"drop {Argument('local_zone')}, or {ADVICE}")
    local = read_text(stated.get(LOCAL_ZONE_ATTR, ""))
    for name, of, told, now in (("timezone", "times", timezone, zone), ("local_zone", "days", local_zone, local)):
        if told is not None:
            _refuse_other(plan.path, f"its {of} are of", now, "not of", Argument(name), told)
        if told is not None and not now:
            action = f"{name.removesuffix('zone').strip('_')} zone {told}"
            plan = replace(plan, actions=(*plan.actions, action), attributes={**plan.attributes, name: told})
    if units is not None:
        names = [] if plan.variant.rewrite else [read_text(name) for name in file[FEATURE_NAMES][:]]
        measured = [name for name in names if name not in STATIC_UNITS]
        feature = SPEED if SPEED in measured or not measured else measured[0]
        unit = stored_unit(feature, units)
        stated = bay.units if plan.variant.rewrite else plan.units.get(feature, read_unit(file, feature))
        stated = "" if stated == UNKNOWN else SPEED_UNITS.get(stated.lower(), stated)
        _refuse_other(plan.path, f"{feature} is in", stated, "not in", Argument("units"), unit)
        if not stated:
            told = f"unit of {feature}: {unit}"
            plan = replace(plan, actions=(*plan.actions, told), units={**plan.units, feature: unit})
    return plan


def _refuse_other(path: Path, what: str, stated: str | None, other: str, argument: Argument, told: str) -> None:
    if stated and stated != told:
        raise SocialxError(path, f"{what} {stated}, {other} {told}", f"drop {argument}, or {ADVICE}")


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


def _layout(
    path: Path, file: h5py.File, variant: Variant
) -> tuple[h5py.Dataset, tuple[str, ...], list[str], np.ndarray]:
    """What ``read_layout`` gives, for the flat files too."""
    if variant.name != "V0":
        return read_layout(path, file)
    features, dates, sensors = (file[name] for name in FLAT)
    kinds = [getattr(part, "dtype", np.dtype("V")) for part in (features, dates, sensors)]
    right = all(isinstance(part, h5py.Dataset) for part in (features, dates, sensors))
    if not right or kinds[0].kind != "f" or not all(map(h5py.check_string_dtype, kinds[1:])):
        raise SocialxError(path, f"types do not agree ({sample(list(map(str, kinds)))})", ADVICE)
    if features.ndim != 3 or features.shape != (*dates.shape, *sensors.shape, 6) or 0 in features.shape:
        raise SocialxError(
            path,
            f"shapes do not agree (features {features.shape}, dates {dates.shape}, sensors {sensors.shape})",
            ADVICE,
        )
    names = ["avg_speed", "lanes", "length", "latitude", "longitude", "direction"]
    return features, tuple(read_text(item) for item in sensors[:]), names, dates[:].astype("S19")


def _location(path: Path, vdid: str, entry: object) -> Location:
    if not isinstance(entry, h5py.Group):
        raise SocialxError(path, f"{SENSOR_INFO}/{vdid} is not a group", ADVICE)
    names = ("position_lat", "position_lon", "lanes", "length")
    latitude, longitude, lanes, length = (read_number(entry.attrs.get(name)) for name in names)
    return Location(vdid, latitude, longitude, lanes, length, read_text(entry.attrs.get("direction", "")))


def _locate(
    ids: tuple[str, ...],
    meta: Mapping[int | str, Location],
    described: Mapping[str, Location],
    columns: Callable[[], Mapping[str, Location]],
) -> tuple[dict[str, Location], list[str], tuple[str, ...]]:
    """The entries that are new or change, the actions that say so, and the ids that stay without a position.

    The locations file wins over vd_info, and that over the file's own columns, which are read only if needed.
    """
    respelt = {match_key(name): location for name, location in described.items()}
    changed: dict[str, Location] = {}
    counts = {"the locations file": 0, "another spelling of the id": 0, "the file's columns": 0}
    added: dict[str, list[str]] = {}  # by vdid: what else the locations file tells of it, and vd_info does not
    moved_km, pending = 0.0, []
    for vdid in ids:
        known, listed = described.get(vdid), meta.get(match_key(vdid))
        if listed is not None:
            if known is None or (known.latitude, known.longitude) != (listed.latitude, listed.longitude):
                changed[vdid] = listed
                counts["the locations file"] += 1
                if known is not None and on_earth(known.latitude, known.longitude):
                    north = np.radians(listed.latitude - known.latitude)  # near places: exact to about 0.1 %
                    east = np.radians(listed.longitude - known.longitude) * np.cos(np.radians(known.latitude))
                    moved_km = max(moved_km, float(EARTH_RADIUS_KM * np.hypot(north, east)))
            if lacking := _lacking(known, listed):
                changed[vdid], added[vdid] = listed, lacking
        elif known and on_earth(known.latitude, known.longitude):
            continue
        elif (other := respelt.get(match_key(vdid))) and on_earth(other.latitude, other.longitude):
            changed[vdid] = other
            counts["another spelling of the id"] += 1
        else:
            pending.append(vdid)
    stated = columns() if pending else {}
    for vdid in pending:
        if (place := stated.get(vdid)) and on_earth(place.latitude, place.longitude):
            changed[vdid] = place
            counts["the file's columns"] += 1
    actions = [f"vd_info: {counted(count, 'position')} from {origin}" for origin, count in counts.items() if count]
    if moved_km:
        actions[0] += f", moved by up to {1000 * moved_km:,.1f} m"
    if added:
        names = [name for name in ("lanes", "length", "direction") if any(name in more for more in added.values())]
        actions.append(f"vd_info: {', '.join(names)} of {counted(len(added), 'sensor')} from the locations file")
    return changed, actions, tuple(vdid for vdid in pending if vdid not in changed)


def _lacking(known: Location | None, location: Location) -> list[str]:
    """What one location says of its sensor besides the position and the other does not."""
    unknown = known or Location("", np.nan, np.nan, np.nan, np.nan, "")
    numbers = {"lanes": (unknown.lanes, location.lanes), "length": (unknown.length, location.length)}
    lacking = [name for name, (old, new) in numbers.items() if np.isfinite(new) and not np.isfinite(old)]
    return [*lacking, "direction"] if location.direction and not unknown.direction else lacking


def _columns(features: h5py.Dataset, ids: tuple[str, ...], names: list[str], variant: Variant) -> dict[str, Location]:
    """What the static columns say of each sensor; a value that changes in time is no value."""
    wanted = [name for name in names if name in STATIC_UNITS]
    low = high = np.full((len(ids), len(wanted)), np.nan)
    places = [names.index(name) for name in wanted]
    for first in range(0, len(features), BLOCK_ROWS):
        cells = features[first : first + BLOCK_ROWS][:, :, places].astype(np.float64)
        low, high = np.fmin(low, np.fmin.reduce(cells)), np.fmax(high, np.fmax.reduce(cells))
    values = dict(zip(wanted, np.where(low == high, low, np.nan).T, strict=True))
    unknown = np.full(len(ids), np.nan)
    latitude, longitude, lanes, length, codes = (
        values.get(name, unknown) for name in ("latitude", "longitude", "lanes", "length", "direction")
    )
    letters = dict(enumerate(CODED_DIRECTIONS)) if variant.rewrite else {v: k for k, v in DIRECTIONS.items()}
    columns = zip(ids, latitude.tolist(), longitude.tolist(), lanes.tolist(), length.tolist(), strict=True)
    return {row[0]: Location(*row, letters.get(code, "")) for row, code in zip(columns, codes.tolist(), strict=True)}


def _patch(plan: Plan, file: h5py.File) -> None:
    """Write what the plan adds."""
    info = file.require_group(SENSOR_INFO)
    if plan.add_crs:
        info.attrs[CRS_ATTR] = CRS
    for index, (vdid, place) in enumerate(plan.locations.items()):
        if index % ENTRIES == 0:
            reserve(file, 0)
        attributes = info.require_group(vdid).attrs
        attributes.update(position_lat=float(place.latitude), position_lon=float(place.longitude))
        for name in _lacking(_location(plan.path, vdid, info[vdid]), place):
            attributes[name] = getattr(place, name)
    if plan.seconds is not None:
        if SECONDS in file:
            del file[SECONDS]
        reserve(file, plan.seconds.nbytes)
        file[SECONDS] = plan.seconds
        file["metadata"].attrs["epoch_basis"] = "naive-utc"
    file["metadata"].attrs.update(plan.attributes)
    reserve(file, 0)
    if plan.units:
        units = read_units(file) | plan.units
        if UNITS in file:
            del file[UNITS]
        file[UNITS] = np.bytes_(json.dumps(units))


def _is_patched(plan: Plan, old: h5py.File, new: h5py.File) -> bool:
    """Whether the features of a patched copy are the very bytes of the old file, and the plan is done in it."""
    extents = _extents(old[FEATURES])
    same = extents == _extents(new[FEATURES])
    info = new[SENSOR_INFO]
    for vdid, place in plan.locations.items():
        attributes = info[vdid].attrs
        same &= (attributes["position_lat"], attributes["position_lon"]) == (place.latitude, place.longitude)
        same &= not _lacking(_location(plan.path, vdid, info[vdid]), place)
    same &= plan.seconds is None or np.array_equal(new[SECONDS][:], plan.seconds)
    rules = new["metadata"].attrs
    same &= all(read_text(rules[name]) == str(value) for name, value in plan.attributes.items())
    same &= read_units(new).items() >= plan.units.items()
    with Path(old.filename).open("rb") as left, Path(new.filename).open("rb") as right:
        for offset, size in extents:
            left.seek(offset)
            right.seek(offset)
            for first in range(0, size, COMPARED_BYTES):
                part = min(COMPARED_BYTES, size - first)
                same &= left.read(part) == right.read(part)
    return same


def _extents(features: h5py.Dataset) -> list[tuple[int, int]]:
    """Where the bytes of a dataset lie in its file: (offset, size) of every chunk, or of the whole."""
    if features.chunks is None:
        offset = features.id.get_offset()
        return [] if offset is None else [(offset, features.id.get_storage_size())]
    extents: list[tuple[int, int]] = []
    features.id.chunk_iter(lambda chunk: extents.append((chunk.byte_offset, chunk.size)))
    return sorted(extents)


def _readings(path: Path, file: h5py.File, plan: Plan) -> Readings:
    """The readings of a file of one of the two oldest layouts, both PEMS-BAY, with the plan's positions."""
    features, ids, names, timestamps = _layout(path, file, plan.variant)
    columns = _columns(features, ids, names, plan.variant)
    places = [(columns[vdid], plan.locations.get(vdid, columns[vdid])) for vdid in ids]
    sensors = Sensors(
        ids,
        np.array([place.latitude for _, place in places]),
        np.array([place.longitude for _, place in places]),
        np.array([stated.lanes if np.isfinite(stated.lanes) else place.lanes for stated, place in places]),
        np.array([stated.length if np.isfinite(stated.length) else place.length for stated, place in places]),
        tuple(stated.direction or place.direction for stated, place in places),
    )

    def blocks() -> Generator[Block, None, None]:
        for first in range(0, len(timestamps), BLOCK_ROWS):
            rows = slice(first, first + BLOCK_ROWS)
            yield Block(timestamps[rows], float32(features[rows, :, 0]))

    bay = DATASETS["pems-bay"]
    name = read_text(file.attrs.get("dataset_name", bay.dataset_name))
    facts = (bay.units, bay.missing, bay.timezone, f"{path} ({plan.variant.name})", "the same file")
    return Readings(name, bay.feature_set, sensors, blocks(), *facts)


def expand(path: Path) -> list[Path]:
    """A file as it is; a folder as the .h5 and .hdf5 files in it, by name."""
    check_name(path)
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.suffix in (".h5", ".hdf5") and each.name[0] != ".")
    if not files:
        raise SocialxError(path, "no .h5 or .hdf5 file in this folder", "name the files")
    return files
