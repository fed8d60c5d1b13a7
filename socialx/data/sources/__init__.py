"""The files that users have: which data set they are, in which format, and the one function that reads them all."""

from __future__ import annotations

import difflib
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from zoneinfo import available_timezones

import numpy as np

from socialx.data.files import HDF5_SIGNATURE, first_bytes
from socialx.data.sources.arrays import NPY, ZIP, array_names, open_array
from socialx.data.sources.basicts import FORMATS as BASICTS
from socialx.data.sources.channels import FORMATS as CHANNELS
from socialx.data.sources.contents import Contents, Format, Request
from socialx.data.sources.hdfstore import FORMATS as HDFSTORE
from socialx.data.sources.libcity import FORMATS as LIBCITY
from socialx.data.sources.locations import Location, index_ids, join, match_key, read_ids, read_locations
from socialx.data.sources.tables import FORMATS as TABLES
from socialx.data.sources.tables import is_numbers
from socialx.data.sources.texts import check_text
from socialx.data.sources.windowed import FORMATS as WINDOWED
from socialx.data.store import DIRECTIONS, SPEED, Readings, Sensors
from socialx.errors import SettingsError, SocialxError, sample

AUTO = "auto"
MINE = "mine"  # the name of a data set without one
UNITS = {"mph": "mph", "km/h": "km/h", "kmh": "km/h", "kph": "km/h", "m/s": "m/s"}  # of speeds: as typed -> as stored
EXAMPLES = {"start": "'YYYY-MM-DD HH:MM:SS'", "step_s": "5min", "channel": "0"}  # field of Request -> what to type
FLAGS = {"ids": "--ids", "start": "--start", "step_s": "--freq", "channel": "--channel"}  # field of Request -> as typed


@dataclass(frozen=True)
class Dataset:
    """A published data set: how users name it and what its files leave unsaid."""

    name: str  # as in ``socialx convert NAME``
    aliases: tuple[str, ...]
    dataset_name: str
    feature_set: str
    units: str
    missing: float | None
    timezone: str
    static: bool  # the canonical file has lanes, length and direction
    sensors: int
    ids: range  # the ids of its sensors lie in it; with their number this tells it from other networks
    start: str
    gapless: bool  # all rows are a step apart
    step_s: int = 300


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="metr-la",
            aliases=("metrla", "la"),
            dataset_name="metr_la",
            feature_set="metr_la_v1",
            units="mph",
            missing=0.0,
            timezone="America/Los_Angeles",
            static=False,
            sensors=207,
            ids=range(716328, 774204 + 1),
            start="2012-03-01 00:00:00",
            gapless=True,
        ),
        Dataset(
            name="pems-bay",
            aliases=("pemsbay", "bay"),
            dataset_name="pems_bay",
            feature_set="pems_bay_v1",
            units="mph",
            missing=0.0,
            timezone="America/Los_Angeles",
            static=True,
            sensors=325,
            ids=range(400001, 414694 + 1),
            start="2017-01-01 00:00:00",
            gapless=False,
        ),
    )
}
# The first that recognises a file reads it, so that the narrower stand before the wider.
FORMATS = {format.name: format for format in (*HDFSTORE, *WINDOWED, *CHANNELS, *BASICTS, *LIBCITY, *TABLES)}


@dataclass(frozen=True)
class Choices:
    """What a user says about a data set; None = what is known of it, or the usual."""

    name: str | None = None
    units: str | None = None
    missing: float | None = None  # NaN = every number is a reading
    timezone: str | None = None
    without_positions: bool = False


@dataclass(frozen=True, eq=False)
class Source:
    """What ``read`` found: the readings, what was recognised and why, and what was assumed on the way."""

    readings: Readings
    format: Format
    dataset: Dataset | None
    notes: tuple[str, ...]


def find(kind: str) -> Dataset | Format | None:
    """The data set or format of a name or alias, whatever its case and with ``_`` or ``-``; None for ``auto``."""
    name = kind.strip().lower().replace("_", "-")
    if name == AUTO:
        return None
    for dataset in DATASETS.values():
        if name in (dataset.name, *dataset.aliases):
            return dataset
    if name in FORMATS:
        return FORMATS[name]
    names = [AUTO, *DATASETS, *FORMATS]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(names)}"
    raise SettingsError(f"{kind}: unknown data set or format: {hint}")


def recognise(data: Path) -> tuple[Format, str]:
    """The format of a file or folder, and why."""
    for format in FORMATS.values():
        if reason := format.recognise(data):
            return format, reason
    if data.is_dir():
        inside = sorted(path.name for path in data.iterdir())
        raise SocialxError(f"{data}: nothing in this folder is known ({sample(inside)}): name the file itself")
    head = first_bytes(data, "download it again")
    if head.startswith(HDF5_SIGNATURE):
        return FORMATS["hdfstore"], "an HDF5 file"  # whose reader says what is wrong with it
    if head.startswith((ZIP, NPY)):
        open_array(data, next(iter(array_names(data)), "data") if head.startswith(ZIP) else None)  # says what is wrong
    check_text(data, "download it again")
    if is_numbers(data):
        found = "rows of numbers, and line 1 may be such a row or sensor ids"
        raise SocialxError(f"{data}: {found}: name the format t-gcn if it holds ids, else add a line of them")
    try:
        read_locations(data)
    except SocialxError:
        found = f"no known format, it begins {head[:40]!a}"
    else:
        raise SocialxError(f"{data}: a table of positions, not of readings: swap --data-csv and --meta-csv")
    raise SocialxError(f"{data}: {found}: the formats are {', '.join(FORMATS)} (socialx convert --help)")


def command(data: Path, format: Format) -> str:
    """What to type to convert a file of this format: everything that it leaves unsaid is in it."""
    clock = ("start",) if "start" in format.takes else ()
    fields = {*clock, *(() if format.has_clock else ("step_s",)), *format.needs(data)}
    unsaid = "".join(f" {FLAGS[field]} {EXAMPLES[field]}" for field in EXAMPLES if field in fields)
    return f"socialx convert auto {shlex.quote(str(data))}{unsaid} --meta-csv LOCATIONS.csv --output-h5 OUT.h5"


def read(kind: str, request: Request, meta: Path | None, choices: Choices | None = None) -> Source:
    """The readings of whatever users hold, its format told by content unless ``kind`` names it, positions joined by id.

    A locations file without lanes, length and direction gives PEMS-BAY these columns as unknown (NaN), not a refusal:
    DCRNN's own locations have only positions, and nothing but those is needed to forecast.
    """
    choices = choices or Choices()
    named = find(kind)
    format = named if isinstance(named, Format) else recognise(request.data)[0]
    _refuse_ignored(request, format)
    dataset = named if isinstance(named, Dataset) else None
    if dataset and "start" in format.takes and (dataset.gapless or format.has_clock):
        step = request.step_s or (None if format.has_clock else dataset.step_s)
        published = request.start is None
        request = replace(request, start=request.start or dataset.start, step_s=step, published=published)
    _check_choices(choices)
    contents = format.read(request)
    ids, notes = _ids(request, meta, contents)
    if dataset:
        notes += _fits(request, dataset, ids)
    elif dataset := _identify(ids):
        notes += (f"{request.data}: {dataset.name}, by the ids of its {len(ids)} sensors",)
    locations, positions = _locations(request, meta, contents, choices)
    known = [place for vdid in ids if (place := locations.get(match_key(vdid)))]
    described = any(place.direction or np.isfinite([place.lanes, place.length]).any() for place in known)
    if odd := sorted({place.other_direction for place in known} - {""}):
        found = f"directions that are none of {', '.join(DIRECTIONS)} ({sample(odd)})"
        notes += (f"{positions}: {found}: unknown in the output",)
    static = dataset.static if dataset else described
    if static and not described:
        notes += (f"{positions}: no lanes, length or direction in it: these features are NaN in the output",)
    sensors = join(ids, locations, Path(positions), static=static, allow_missing=choices.without_positions)
    readings, assumed = _readings(request, contents, dataset, choices, sensors, positions)
    files = (request.data, meta, request.ids, *contents.paths)
    readings = replace(readings, inputs=tuple(path for path in files if path))
    return Source(readings, format, dataset, (*contents.notes, *notes, *assumed))


def _refuse_ignored(request: Request, format: Format) -> None:
    for name, flag in FLAGS.items():
        if getattr(request, name) is not None and name not in format.takes:
            raise SettingsError(f"{flag}: {format.title} ({format.name}) says that itself: drop it")


def _check_choices(choices: Choices) -> None:
    if choices.timezone is not None and (zones := available_timezones()) and choices.timezone not in zones:
        near = difflib.get_close_matches(choices.timezone, zones, 1)
        raise SettingsError(f"--timezone {choices.timezone}: no such zone: for example {(near or ['Europe/Paris'])[0]}")
    if choices.units is not None and not (choices.units.strip() and choices.units.isprintable()):
        raise SettingsError(f"--units {choices.units!a}: not a unit: for example mph")


def _fits(request: Request, dataset: Dataset, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Notes on sensors and times that are not, or not known to be, those of the named data set; refuses another one."""
    path, foreign = request.data, [vdid for vdid in ids if match_key(vdid) not in dataset.ids]
    numbered = ids == tuple(map(str, range(len(ids))))  # no ids that could tell
    if len(ids) > dataset.sensors or (len(foreign) == len(ids) and not numbered):
        others = (other for other in DATASETS.values() if all(match_key(vdid) in other.ids for vdid in ids))
        other = next((other.name for other in others if other is not dataset), None)
        found = f"its {len(ids)} sensors ({sample(ids)}) are not those of {dataset.name}"
        advice = f"{other}, whose ids they look like" if other else "auto, and --name NAME"
        raise SocialxError(f"{path}: {found}: socialx convert {advice}")
    notes = []
    if foreign and not numbered:
        notes.append(f"{path}: {len(foreign)} of its {len(ids)} sensors ({sample(foreign)}) are not of {dataset.name}")
    if request.published:
        notes.append(f"{path}: no dates in it: its rows begin at {request.start}, as {dataset.name} does as published")
    return tuple(notes)


def _ids(request: Request, meta: Path | None, contents: Contents) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The sensors' ids in column order, and a note where they are only numbers."""
    if contents.ids is not None:
        return contents.ids, ()
    if request.ids is not None:
        ids = read_ids(request.ids)
        if len(ids) != contents.sensors:
            found = f"{len(ids)} ids for the {contents.sensors} sensors of {request.data}"
            raise SocialxError(f"{request.ids}: {found}: name the ids of this data set")
        return ids, ()
    indexed = index_ids(meta) if meta else {}
    if sorted(indexed) == list(range(contents.sensors)):
        return tuple(indexed[place] for place in range(contents.sensors)), (f"{meta}: ids from its column index",)
    note = f"{request.data}: it has no sensor ids, so they are 0 to {contents.sensors - 1}; --ids FILE gives them"
    return tuple(map(str, range(contents.sensors))), (note,)


def _identify(ids: tuple[str, ...]) -> Dataset | None:
    keys = {match_key(vdid) for vdid in ids}
    for dataset in DATASETS.values():
        if len(ids) == dataset.sensors and all(key in dataset.ids for key in keys):
            return dataset
    return None


def _locations(
    request: Request, meta: Path | None, contents: Contents, choices: Choices
) -> tuple[dict[int | str, Location], str]:
    """Locations by ``match_key``, and the name of what they come from."""
    if meta is not None:
        return read_locations(meta), str(meta)
    if contents.locations is not None:
        return contents.locations, str(request.data)
    if choices.without_positions:
        return {}, "no locations"
    advice = "add --meta-csv LOCATIONS.csv, or --without-positions and socialx backfill later"
    raise SocialxError(f"{request.data}: it holds no positions of its sensors: {advice}")


def _stem(path: Path) -> str:
    return re.sub(r"\W+", "_", path.resolve().name.split(".")[0]).strip("_").lower() or MINE


def _pretends(name: str, ids: tuple[str, ...]) -> bool:
    """Whether a name is that of a published data set and the ids are not."""
    named = (dataset for dataset in DATASETS.values() if dataset.dataset_name == name)
    return any(match_key(vdid) not in dataset.ids for dataset in named for vdid in ids)


def _units(said: str | None, feature: str) -> str | None:
    """What --units says, in the spelling of the files; that of anything but speeds is free text."""
    if said is None or feature != SPEED:
        return said
    if units := UNITS.get(said.strip().lower()):
        return units
    raise SettingsError(f"--units {said}: not a unit of speeds: choose mph, km/h or m/s")


def _readings(
    request: Request, contents: Contents, dataset: Dataset | None, choices: Choices, sensors: Sensors, positions: str
) -> tuple[Readings, tuple[str, ...]]:
    """The readings with what is known or said about them, and what was assumed, a line each."""
    missing, notes = dataset.missing if dataset else 0.0, []
    name = choices.name or (dataset.dataset_name if dataset else _stem(request.data))
    if not choices.name and not dataset and _pretends(name, sensors.ids):
        notes.append(
            f"{request.data}: its ids are not those of {name}, so it is named {MINE}: --name names it otherwise"
        )
        name = MINE
    in_units = dataset.units if dataset and contents.feature == SPEED else "unknown"
    units = _units(choices.units, contents.feature) or contents.units or in_units
    if units == "unknown":
        notes.append(f"{request.data}: the unit is not said in it: --units mph or --units km/h says it")
    if choices.missing is not None:
        missing = None if np.isnan(choices.missing) else choices.missing
    elif dataset is None:
        notes.append("0 counts as no reading, as in the published data sets: --missing none if 0 is one")
    readings = Readings(
        dataset_name=name,
        feature_set=dataset.feature_set if dataset and not choices.name else f"{name}_v1",
        sensors=sensors,
        blocks=contents.blocks,
        units=units,
        missing=missing,
        timezone=choices.timezone or (dataset.timezone if dataset else None),
        source_data=str(request.data),
        source_meta=positions,
        feature=contents.feature,
    )
    return readings, tuple(notes)
