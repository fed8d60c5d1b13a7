"""Read any traffic file: data, locations and user options joined into Readings."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, sample
from socialx.files.sources import CSV
from socialx.files.sources.contents import Contents, Format
from socialx.files.sources.positions.locations import ADVICE, index_ids, join, match_ids, read_ids, read_locations
from socialx.files.sources.recognition import FORMATS, find, recognise
from socialx.files.sources.request import ConvertOptions, options
from socialx.files.sources.resample import fill_gaps, resample_readings
from socialx.files.sources.tables.clock_changes import goes_back, in_utc, note_skipped, repeated_hour
from socialx.files.sources.tables.words import parse_unit
from socialx.files.store.head import read_head
from socialx.files.store.ids import match_key
from socialx.files.store.layout import DIRECTIONS, Block, Readings, Sensors, is_code
from socialx.files.store.published import DATASETS, PublishedDataset
from socialx.files.store.quantities import SPEED, SPEED_UNITS, UNITS_LIKE
from socialx.files.store.time_axis import Clock

MINE = "mine"  # the name of a data set without one


def read(kind: str, request: ConvertOptions) -> Readings:
    """Return the readings of any supported source, with locations joined by id; the format is recognised unless
    ``kind`` names a format.

    A locations file that lacks lanes, length and direction leaves these PEMS-BAY columns NaN: DCRNN publishes locations
    only, and forecasts need no more.
    """
    named = find(kind)
    format = _format(named, request)
    _refuse_ignored(request, format)
    dataset = named if isinstance(named, PublishedDataset) else None
    if dataset and format.name == CSV and request.table is None:
        request = replace(request, quantity=request.quantity or SPEED)
    if request.meta_csv is not None:
        read_head(request.meta_csv, ADVICE)  # which tells a wrong name before the readings are walked
    contents = format.read(request)
    request = replace(request, timezone=request.timezone or contents.zone)
    if contents.timezone and contents.times is None and request.timezone not in (None, contents.timezone):
        problem = f"the times say themselves how far they are from UTC, and are written in {contents.timezone}"
        raise SettingsError("convert.zoned", request.where, problem, f"drop {Argument('timezone', request.timezone)}")
    ids, numbered = _ids(request, contents)
    dataset, published = _find_published(dataset, request, ids)
    sensors, positions, unknown = _sensors(request, contents, ids, dataset)
    sensors = replace(sensors, ids=tuple(map(contents.stored, sensors.ids)))
    readings, assumed = _readings(request, contents, dataset, sensors, positions)
    codes, features = (request.missing or ())[1:], tuple(contents.units)
    if len(features) > 1:
        codes = request.codes(features)
    readings = replace(readings, blocks=mask_codes(readings.blocks, codes, features), codes=codes)
    readings, seconds, clock = order_times(readings, contents, request)
    if request.resample is not None:
        readings, seconds = resample_readings(readings, seconds, request)
    lacking: tuple[Message, ...] = ()
    if dataset is None:
        readings, lacking = fill_gaps(readings, seconds, request)
    elif request.step_s and format.has_clock and not request.round_times:
        problem = f"{dataset.name} keeps the rows that it has as published"
        raise SettingsError("convert.published", "", problem, f"drop {Argument('freq')}")
    files = () if request.frame is not None else (request.data, *request.more)
    inputs = tuple(path for path in (*files, request.meta_csv, request.ids, *contents.paths) if path)
    index_by_key = {match_key(contents.stored(vdid)): index for index, vdid in enumerate(ids)}
    lanes = contents.lanes and tuple(contents.lanes[index_by_key[match_key(vdid)]] for vdid in sensors.ids)
    notes = (*contents.notes, *numbered, *published, *unknown, *clock, *lacking, *assumed)
    return replace(readings, inputs=inputs, lanes=lanes, table=contents.table, notes=notes)


def _format(named: PublishedDataset | Format | None, request: ConvertOptions) -> Format:
    """Return the format to read with: ``named`` by the user, else recognised; what describes a table chooses one."""
    if isinstance(named, Format):
        return named
    described = request.table or request.time_column or request.sensor_column or request.time_format
    if request.frame is not None or (described and request.head.kind != "hdf5"):
        return FORMATS[CSV]
    return recognise(request.head)[0]


def _refuse_ignored(request: ConvertOptions, format: Format) -> None:
    """Raise SettingsError for several files in a one-file format, and for an option that only other formats read."""
    title = f"{format.title} ({format.name})"
    if request.more and "more" not in format.takes:
        problem = f"{title} has one file, and {Argument('data')} names several"
        raise SettingsError("convert.one-file", "", problem, "drop the others")
    read_fields = frozenset().union(*(known_format.takes for known_format in FORMATS.values()))
    clock_fields = {"step_s"} if format.has_clock else set()  # the step of the axis
    for field, option in options().items():
        is_given = getattr(request, field) not in (None, (), False)
        if is_given and field in read_fields - format.takes - clock_fields:
            problem = f"{Argument(option.name)} is superfluous: {title} says that itself"
            raise SettingsError("convert.superfluous", "", problem, "drop it")


def _find_published(
    named: PublishedDataset | None, request: ConvertOptions, ids: tuple[str, ...]
) -> tuple[PublishedDataset | None, tuple[Message | str, ...]]:
    """Return the named data set, else the data set with these sensor ids, and notes."""
    if named:
        return named, _check_published(request, named, ids)
    same_size = (dataset for dataset in DATASETS.values() if len(ids) == dataset.sensors)
    match = next((dataset for dataset in same_size if all(match_key(vdid) in dataset.ids for vdid in ids)), None)
    return match, (f"{request.where}: {match.name}, by the ids of its {len(ids)} sensors",) if match else ()


def _check_published(request: ConvertOptions, dataset: PublishedDataset, ids: tuple[str, ...]) -> tuple[Message, ...]:
    """Return a note on ids that are foreign to ``dataset``. Raises SocialxError for the ids of another network."""
    path, foreign = request.where, [vdid for vdid in ids if match_key(vdid) not in dataset.ids]
    if ids == tuple(map(str, range(len(ids)))):  # no ids that could tell
        return ()
    if len(ids) > dataset.sensors or len(foreign) == len(ids):
        others = (other for other in DATASETS.values() if all(match_key(vdid) in other.ids for vdid in ids))
        other = next((other.name for other in others if other is not dataset), None)
        problem = f"the {len(ids)} sensors ({sample(ids)}) are not those of {dataset.name}"
        written = {"meta_csv": request.meta_csv or "LOCATIONS.csv", "output": "OUT.h5"}
        named = {"name": "NAME", "quantity": "speed" if request.quantity else None}
        likely = f"{Command('convert', other, path, **written)}, whose ids look alike"
        anew = Command("convert", "auto", path, **named, **written)
        raise SocialxError("convert.other-set", path, problem, likely if other else anew)
    sentence = f"{len(foreign)} of its {len(ids)} sensors are not of {dataset.name}"
    return (Message("convert.foreign", path, sentence, sample=foreign),) if foreign else ()


def order_times(
    readings: Readings, contents: Contents, request: ConvertOptions
) -> tuple[Readings, np.ndarray, tuple[Message, ...]]:
    """Return the readings in time order, the row times int64 [T], and a note for each change.

    The times are empty where rows lack times. With a zone from the user, wall times that include the repeated
    daylight-saving hour are written in UTC, and UTC times free of such an hour become wall times. A file in UTC keeps
    the zone as local zone. Raises SocialxError for such an hour without a zone.
    """
    path, zone, times = request.where, request.timezone, contents.times
    notes: list[Message] = []
    if times is None:
        return readings, np.empty(0, np.int64), ()
    if zone and contents.timezone == "UTC":
        wall = Clock("UTC", zone).local(times)
        if goes_back(wall):
            twice = f"times come twice at the end of daylight saving time in {zone}: all times are written in UTC"
            if "come twice" not in " ".join(map(str, contents.notes)):
                notes.append(Message("convert.hour-twice", path, twice))
            readings = replace(readings, timezone="UTC", local_zone=zone)
        else:
            if zone != "UTC":
                notes.append(Message("convert.wall-times", path, f"the times are written as wall times of {zone}"))
            readings, times = replace(readings, timezone=zone), wall
    elif zone and goes_back(times):
        times, told = in_utc(times, zone, path)
        notes += [told]
        readings = replace(readings, timezone="UTC", local_zone=zone)
    elif refused := repeated_hour(times, path, f"keep both hours with {Argument('timezone', 'ZONE')}"):
        raise refused[1]
    if times is not contents.times:
        readings = replace(readings, blocks=_at_times(readings.blocks, times))
    if readings.timezone not in (None, "UTC"):
        readings = replace(readings, blocks=note_skipped(readings.blocks, path, readings.timezone, readings.missing))
    return readings, times, tuple(notes)


def _at_times(blocks: Generator[Block, None, None], times: np.ndarray) -> Generator[Block, None, None]:
    row = 0
    with closing(blocks):
        for block in blocks:
            yield replace(block, seconds=times[row : row + len(block.seconds)])
            row += len(block.seconds)


def _ids(request: ConvertOptions, contents: Contents) -> tuple[tuple[str, ...], tuple[Message | str, ...]]:
    """Return the sensor ids in column order, and a note where sensors are only numbered from 0."""
    count, meta = contents.sensors, request.meta_csv
    if contents.ids is not None:
        return contents.ids, ()
    if request.ids is not None:
        ids = read_ids(request.ids)
        if len(ids) != count:
            problem = f"the file has {len(ids)} ids for the {count} sensors of {request.data}"
            raise SocialxError("ids.count", request.ids, problem, "name the ids of this data set")
        return ids, ()
    indexed = index_ids(meta) if meta else {}
    if sorted(indexed) == list(range(count)):
        return tuple(indexed[index] for index in range(count)), (f"{meta}: ids from its column index",)
    numbered = f"the file has no sensor ids, so the sensors are 0 to {count - 1}"
    note = Message("ids.numbered", request.where, numbered, f"name ids with {Argument('ids', 'FILE')}")
    return tuple(map(str, range(count))), (note,)


def mask_codes(
    blocks: Generator[Block, None, None], codes: tuple[float, ...], features: Sequence[str]
) -> Generator[Block, None, None]:
    """Yield the blocks with every missing-value code replaced by NaN; a file stores a single missing value.

    features: the features in the blocks; among several features, 0 is a code for speed alone.
    """
    with closing(blocks):
        for block in blocks:
            if codes:
                missing = is_code(block.values, features, codes)
                block = replace(block, values=np.where(missing, np.float32(np.nan), block.values))
            yield block


def _sensors(
    request: ConvertOptions, contents: Contents, ids: tuple[str, ...], dataset: PublishedDataset | None
) -> tuple[Sensors, str, tuple[str, ...]]:
    """Return the sensors with locations, the location source, and notes about gaps in the source."""
    notes: list[str] = []
    if request.meta_csv is not None:
        locations, positions = read_locations(request.meta_csv, ids, notes=notes), str(request.meta_csv)
    elif contents.locations is not None:
        locations, positions = contents.locations, request.where
    elif request.without_positions:
        locations, positions = {}, "no locations"
    else:
        without = Argument("without_positions", True)
        helps = f"add {Argument('meta_csv', 'LOCATIONS.csv')}, or {without} and backfill later"
        raise SocialxError("convert.no-positions", request.where, "the file holds no positions of its sensors", helps)
    locations, remarks = match_ids(ids, locations)
    notes += [f"{positions}: {remark}" for remark in remarks]
    listed = [location for vdid in ids if (location := locations.get(match_key(vdid)))]
    described = any(location.direction or np.isfinite([location.lanes, location.length]).any() for location in listed)
    if odd := sorted({location.other_direction for location in listed} - {""}):
        problem = f"directions that are none of {', '.join(DIRECTIONS)} ({sample(odd)})"
        notes.append(f"{positions}: {problem}: unknown in the output")
    static = dataset.static if dataset else described
    if static and not described:
        notes.append(f"{positions}: no lanes, length or direction in it: these features are NaN in the output")
    path, missing = Path(positions), request.without_positions
    sensors = join(ids, locations, path, static=static, allow_missing=missing, droppable=contents.droppable)
    return sensors, positions, tuple(notes)


def stored_unit(feature: str, text: str) -> str:
    """Return a unit as stored. Raises SettingsError for an unknown speed unit, and a speed unit on other features."""
    if feature != SPEED:
        if (measured := parse_unit(text)) and measured[0] == SPEED:
            problem = f"{Argument('units', text)} is a unit of speeds, and the file holds {feature}"
            raise SettingsError("units.speeds", "", problem, f"choose for example {UNITS_LIKE.get(feature, ('%',))[0]}")
        return text
    if unit := SPEED_UNITS.get(text.strip().lower()):
        return unit
    raise SettingsError("units.no-speed", "", f"{Argument('units', text)} is no unit of speed", "use mph, km/h or m/s")


def _readings(
    request: ConvertOptions, contents: Contents, dataset: PublishedDataset | None, sensors: Sensors, positions: str
) -> tuple[Readings, tuple[Message, ...]]:
    """Return the readings with metadata, and notes about assumptions; ``positions``: the source of locations."""
    notes: list[Message] = []
    stem = re.sub(r"\W+", "_", request.data.resolve().name.split(".")[0]).strip("_").lower()
    name = request.name or (dataset.dataset_name if dataset else stem or MINE)
    if not request.name and not dataset:
        published = (dataset for dataset in DATASETS.values() if dataset.dataset_name == name)
        if any(match_key(vdid) not in dataset.ids for dataset in published for vdid in sensors.ids):
            problem = f"the ids are not those of {name}, so the data set is named {MINE}"
            helps = f"choose another name with {Argument('name', 'NAME')}"
            notes.append(Message("convert.name", request.where, problem, helps))
            name = MINE
    units, unsaid = _units(request, contents, dataset)
    missing = None if len(units) > 1 else dataset.missing if dataset else contents.missing
    if len(units) > 1:
        if SPEED in units and request.missing is None:
            zero = "a speed of 0 is treated as missing, and 0 of another quantity as an observation"
            notes.append(Message("convert.zero-missing", "", f"{zero} ({Argument('missing', 'none')} if 0 is a speed)"))
    elif request.missing is not None:
        missing = request.missing[0] if request.missing else None
    elif missing is None:
        zero = f"{contents.feature} 0 is treated as an observation ({Argument('missing', 0)} if 0 means missing)"
        notes.append(Message("convert.zero-reading", "", zero))
    elif dataset is None:
        kept = f"{Argument('missing', 'none')} to keep {'zeros' if missing == 0 else 'it'}"
        zero = f"{contents.feature} {missing:g} is treated as missing ({kept})"
        notes.append(Message("convert.code-missing", "", zero))
    zone = request.timezone or contents.timezone or (dataset.timezone if dataset else None)
    feature_set = dataset.feature_set if dataset and not request.name else f"{name}_v1"
    described = name, feature_set, sensors, contents.blocks, units, missing, zone, request.where, positions
    local_zone = dataset.timezone if dataset and zone == "UTC" else None
    return Readings(*described, local_zone=local_zone), (*unsaid, *notes)


def _units(
    request: ConvertOptions, contents: Contents, dataset: PublishedDataset | None
) -> tuple[dict[str, str], tuple[Message, ...]]:
    """Return the unit by feature, and a note on unknown units; the user's unit applies to the speed, if any."""
    units = {name: stored_unit(name, unit) if unit else "unknown" for name, unit in contents.units.items()}
    feature = SPEED if SPEED in units else contents.feature
    if dataset and feature == SPEED and units[feature] == "unknown":
        units[feature] = dataset.units
    if request.units is not None:
        units[feature] = stored_unit(feature, request.units)
    unknown = [name for name, unit in units.items() if unit == "unknown"]
    if feature not in unknown:
        problem = f"the unit of {' and '.join(unknown)} is unknown"
        return units, (Message("units.unsaid", request.where, problem),) if unknown else ()
    one, other = UNITS_LIKE.get(feature, ("mph", "km/h"))
    which, later = "it" if len(units) == 1 else f"that of {feature}", Command("backfill", "OUT.h5", units="UNIT")
    says = f"name {which} with {Argument('units', one)} or {Argument('units', other)}, or later with {later}"
    return units, (Message("units.unknown", request.where, "the unit is unknown", says),)
