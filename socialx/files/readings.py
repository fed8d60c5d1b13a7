"""The one function that reads whatever users hold: data, positions and what the user says, joined into Readings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from zoneinfo import available_timezones

import numpy as np

from socialx.errors import Argument, Command, Message, SettingsError, SocialxError, sample
from socialx.files.formats.contents import Contents, Format, Request
from socialx.files.formats.export import EXPORT
from socialx.files.formats.registry import FORMATS
from socialx.files.formats.tables import CSV, MATRIX, PUBLISHED_CSV, is_matrix
from socialx.files.formats.transposed import refuse_transposed
from socialx.files.formats.walltimes import goes_back, in_utc, once, retimed, rounded, watched
from socialx.files.locations import Location, index_ids, join, match_key, read_ids, read_locations
from socialx.files.published import DATASETS, Dataset
from socialx.files.recognition import ARGUMENTS, find, recognise
from socialx.files.store import DIRECTIONS, SPEED, Block, Readings, Sensors, timestamp_seconds
from socialx.files.time_axis import common_step

MINE = "mine"  # the name of a data set without one
UNITS = {"mph": "mph", "km/h": "km/h", "kmh": "km/h", "kph": "km/h", "m/s": "m/s"}  # of speeds: as typed -> as stored


@dataclass(frozen=True)
class Choices:
    """What a user says about a data set; None = what is known of it, or the usual."""

    name: str | None = None
    units: str | None = None
    missing: tuple[float, ...] | None = None  # what stands for no reading; empty: every number is a reading
    timezone: str | None = None
    without_positions: bool = False
    round_times: bool = False
    step_s: int | None = None  # between rounded times


@dataclass(frozen=True, eq=False)
class Source:
    """What ``read`` found: the readings, what was recognised and why, and what was assumed on the way."""

    readings: Readings
    format: Format
    dataset: Dataset | None
    notes: tuple[Message | str, ...]


def read(kind: str, request: Request, meta: Path | None, choices: Choices | None = None) -> Source:
    """The readings of whatever users hold, its format told by content unless ``kind`` names it, positions joined by id.

    A locations file without lanes, length and direction gives PEMS-BAY these columns as unknown (NaN), not a refusal:
    DCRNN's own locations have only positions, and nothing but those is needed to forecast.
    """
    choices = choices or Choices()
    named = find(kind)
    format = _format(named, request)
    _refuse_ignored(request, format)
    dataset = named if isinstance(named, Dataset) else None
    if dataset and "start" in format.takes and (dataset.gapless or format.has_clock):
        step = request.step_s or (None if format.has_clock else dataset.step_s)
        published = request.start is None
        request = replace(request, start=request.start or dataset.start, step_s=step, published=published)
    _check_choices(choices)
    contents = format.read(request)
    _refuse_two_zones(contents, choices)
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
    droppable = contents.droppable or format.name == CSV
    sensors = join(
        ids, locations, Path(positions), static=static, allow_missing=choices.without_positions, droppable=droppable
    )
    readings, assumed = _readings(request, contents, dataset, choices, sensors, positions)
    readings = replace(readings, blocks=_without(readings.blocks, (choices.missing or ())[1:]))
    readings, clock = in_order(readings, request.data, contents, choices)
    files = (request.data, *request.more, meta, request.ids, *contents.paths)
    readings = replace(readings, inputs=tuple(path for path in files if path))
    return Source(readings, format, dataset, (*contents.notes, *notes, *clock, *assumed))


def _format(named: Dataset | Format | None, request: Request) -> Format:
    """The format of the data: the one that was named, or what its content tells."""
    if request.transposed:
        return named if isinstance(named, Format) else FORMATS[EXPORT]
    refuse_transposed(request.data)
    format = named if isinstance(named, Format) else recognise(request.data)[0]
    if format is FORMATS[CSV] and is_matrix(request.data):
        return FORMATS[MATRIX]
    chosen = request.drop or request.time_column or request.sensor_column
    if (format is FORMATS[CSV] and (request.more or request.time_format)) or (
        format in (FORMATS[CSV], FORMATS[PUBLISHED_CSV]) and chosen
    ):  # their reader takes one file, and all its columns
        return FORMATS[EXPORT]
    return format


def _refuse_two_zones(contents: Contents, choices: Choices) -> None:
    if contents.timezone and choices.timezone not in (None, contents.timezone):
        found = f"its times say themselves how far they are from UTC, and are written in {contents.timezone}"
        raise SettingsError(Argument("timezone", choices.timezone), found, "drop it")


def _refuse_ignored(request: Request, format: Format) -> None:
    for name, argument in ARGUMENTS.items():
        rounds = name == "step_s" and request.round_times and format.has_clock
        if getattr(request, name) not in (None, (), False) and name not in format.takes and not rounds:
            found = "has one file" if name == "more" else "says that itself"
            raise SettingsError(Argument(argument), f"{format.title} ({format.name}) {found}", "drop it")


def _check_choices(choices: Choices) -> None:
    if choices.timezone is not None and (zones := available_timezones()) and choices.timezone not in zones:
        near = difflib.get_close_matches(choices.timezone, zones, 1)
        raise SettingsError(
            Argument("timezone", choices.timezone), "no such zone", f"for example {(near or ['Europe/Paris'])[0]}"
        )
    if choices.units is not None and not (choices.units.strip() and choices.units.isprintable()):
        raise SettingsError(Argument("units", ascii(choices.units)[1:-1]), "not a unit", "for example mph")


def _fits(request: Request, dataset: Dataset, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Notes on sensors and times that are not, or not known to be, those of the named data set; refuses another one."""
    path, foreign = request.data, [vdid for vdid in ids if match_key(vdid) not in dataset.ids]
    numbered = ids == tuple(map(str, range(len(ids))))  # no ids that could tell
    if len(ids) > dataset.sensors or (len(foreign) == len(ids) and not numbered):
        others = (other for other in DATASETS.values() if all(match_key(vdid) in other.ids for vdid in ids))
        other = next((other.name for other in others if other is not dataset), None)
        found = f"its {len(ids)} sensors ({sample(ids)}) are not those of {dataset.name}"
        named = (Command("convert", other, path), ", whose ids they look like")
        mine = (Command("convert", "auto", path, name="NAME"),)
        raise SocialxError(path, found, named if other else mine)
    notes = []
    if foreign and not numbered:
        notes.append(f"{path}: {len(foreign)} of its {len(ids)} sensors ({sample(foreign)}) are not of {dataset.name}")
    if request.published:
        notes.append(f"{path}: no dates in it: its rows begin at {request.start}, as {dataset.name} does as published")
    return tuple(notes)


def in_order(
    readings: Readings, path: Path, contents: Contents, choices: Choices, *, in_utc_always: bool = False
) -> tuple[Readings, tuple[Message, ...]]:
    """The readings with times that can be trusted, and a note for each change: whole steps, if they were asked for,
    and an hour that comes twice in UTC, if the user names the zone of the times.

    in_utc_always: times of a zone that the user names are written in UTC, whether they have such an hour or not.

    Without a zone from the user, such an hour is refused while the readings are walked.
    """
    notes: list[Message] = []
    times = contents.times() if contents.times and (choices.round_times or choices.timezone) else np.empty(0, "S19")
    hourly = len(times) > 1 and common_step(timestamp_seconds(times, str(path))) >= 3600  # may have one hour twice
    if not hourly:
        readings = replace(readings, blocks=once(readings.blocks, path, strict=len(times) > 0))
        times = np.append(times[:1], times[1:][times[1:] != times[:-1]])
    if choices.round_times and len(times):
        whole, note = rounded(times, path, choices.step_s)
        readings, times = replace(readings, blocks=retimed(readings.blocks, times, whole, path)), whole
        notes += [] if contents.rounded else [note]
    if choices.timezone is None:
        return replace(readings, blocks=watched(readings.blocks, path, readings.timezone)), tuple(notes)
    if not (in_utc_always or goes_back(times)):
        return readings, tuple(notes)
    utc, note = in_utc(times, choices.timezone, path)
    readings = replace(readings, blocks=retimed(readings.blocks, times, utc, path), timezone="UTC")
    return readings, (*notes, note)


def _ids(request: Request, meta: Path | None, contents: Contents) -> tuple[tuple[str, ...], tuple[Message | str, ...]]:
    """The sensors' ids in column order, and a note where they are only numbers."""
    if contents.ids is not None:
        return contents.ids, ()
    if request.ids is not None:
        ids = read_ids(request.ids)
        if len(ids) != contents.sensors:
            raise SocialxError(
                request.ids,
                f"{len(ids)} ids for the {contents.sensors} sensors of {request.data}",
                "name the ids of this data set",
            )
        return ids, ()
    indexed = index_ids(meta) if meta else {}
    if sorted(indexed) == list(range(contents.sensors)):
        return tuple(indexed[place] for place in range(contents.sensors)), (f"{meta}: ids from its column index",)
    numbered = f"it has no sensor ids, so they are 0 to {contents.sensors - 1}"
    note = Message(request.data, numbered, (Argument("ids", "FILE"), " gives them"))
    return tuple(map(str, range(contents.sensors))), (note,)


def _without(blocks: Generator[Block, None, None], codes: tuple[float, ...]) -> Generator[Block, None, None]:
    """The blocks, these numbers replaced by NaN: a file names one number that stands for no reading."""
    unwanted = np.array(codes, np.float32)
    with closing(blocks):
        for block in blocks:
            found = np.isin(block.speeds, unwanted) if codes else None
            yield block if found is None else replace(block, speeds=np.where(found, np.float32(np.nan), block.speeds))


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
    raise SocialxError(
        request.data,
        "it holds no positions of its sensors",
        (
            "add ",
            Argument("meta", "LOCATIONS.csv"),
            ", or ",
            Argument("without_positions", True),
            " and backfill later",
        ),
    )


def _stem(path: Path) -> str:
    return re.sub(r"\W+", "_", path.resolve().name.split(".")[0]).strip("_").lower() or MINE


def _pretends(name: str, ids: tuple[str, ...]) -> bool:
    """Whether a name is that of a published data set and the ids are not."""
    named = (dataset for dataset in DATASETS.values() if dataset.dataset_name == name)
    return any(match_key(vdid) not in dataset.ids for dataset in named for vdid in ids)


def _units(said: str | None, feature: str) -> str | None:
    """What ``units`` says, in the spelling of the files; that of anything but speeds is free text."""
    if said is None or feature != SPEED:
        return said
    if units := UNITS.get(said.strip().lower()):
        return units
    raise SettingsError(Argument("units", said), "not a unit of speeds", "choose mph, km/h or m/s")


def _readings(
    request: Request, contents: Contents, dataset: Dataset | None, choices: Choices, sensors: Sensors, positions: str
) -> tuple[Readings, tuple[Message, ...]]:
    """The readings with what is known or said about them, and what was assumed, a line each."""
    missing = dataset.missing if dataset else contents.missing
    notes: list[Message] = []
    name = choices.name or (dataset.dataset_name if dataset else _stem(request.data))
    if not choices.name and not dataset and _pretends(name, sensors.ids):
        notes.append(
            Message(
                request.data,
                f"its ids are not those of {name}, so it is named {MINE}",
                (Argument("name", "NAME"), " names it otherwise"),
            )
        )
        name = MINE
    in_units = dataset.units if dataset and contents.feature == SPEED else "unknown"
    units = _units(choices.units, contents.feature) or contents.units or in_units
    if units == "unknown":
        says = (Argument("units", "mph"), " or ", Argument("units", "km/h"), " says it")
        notes.append(Message(request.data, "the unit is not said in it", says))
    if choices.missing is not None:
        missing = choices.missing[0] if choices.missing else None
    elif missing is None:
        zero = "0 is a reading, as of all counts"
        notes.append(Message("", zero, (Argument("missing", 0), " if it stands for none")))
    elif dataset is None:
        zero = "0 counts as no reading, as in the published data sets"
        notes.append(Message("", zero, (Argument("missing", "none"), " if 0 is one")))
    readings = Readings(
        dataset_name=name,
        feature_set=dataset.feature_set if dataset and not choices.name else f"{name}_v1",
        sensors=sensors,
        blocks=contents.blocks,
        units=units,
        missing=missing,
        timezone=choices.timezone or contents.timezone or (dataset.timezone if dataset else None),
        source_data=str(request.data),
        source_meta=positions,
        feature=contents.feature,
    )
    return readings, tuple(notes)
