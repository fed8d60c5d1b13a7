"""Snapshots of Taiwan's vehicle detectors (VD): VDLiveList with readings of lanes, VDList with positions.

Both are JSON or XML by the standard of Taiwan's Ministry of Transportation (MOTC).
N detectors, S snapshots, n readings of detectors, F features, T times.
"""

from __future__ import annotations

import json
import math
import os
import re
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from socialx.data.geo import on_earth
from socialx.errors import Argument, SettingsError, SocialxError, counted, in_short, sample
from socialx.files.convert_options import Request
from socialx.files.file_head import UNREADABLE, FileHead, inside, read_head, unpacked, whole
from socialx.files.formats.columns import combine
from socialx.files.formats.contents import Contents, Format, as_timestamps
from socialx.files.formats.walltimes import free_step, nearest_step
from socialx.files.hdf5_layout import Block
from socialx.files.locations import Location, match_key
from socialx.files.quantities import QUANTITIES, SPEED, SPEED_UNITS
from socialx.files.time_axis import JITTER_S
from socialx.progress import work

ZONE, ZONE_S = "Asia/Taipei", 8 * 3600  # without daylight saving time
UNITS = {SPEED: "km/h", "occupancy": "%"}  # by the standard, which leaves open the minutes of a volume
LIVE, LIST = ("VDLives", "VDLive", "LiveTrafficData"), ("VDs", "VD", "VDList")  # names of the lists of entries
LISTS = {"LinkFlows", "Lanes", "Vehicles"}  # elements of XML that are lists
# What tells the two kinds of files apart, in this order.
BEGINS = {b"VDLive": LIVE, b"LiveTrafficData": LIVE, b"LinkFlows": LIVE, b"VDList": LIST, b"PositionLat": LIST}
BOM = b"\xef\xbb\xbf"
READING = [("seconds", np.int64), ("number", np.int32), ("file", np.int32)]  # wall time, places of detector and file
SUFFIXES = (".json", ".xml", ".gz")
CONTENT_BYTES, BEGIN_BYTES, BLOCK_BYTES = 1 << 26, 1 << 12, 1 << 23
LOOKED = 100  # files and folders of a folder, of which one must be a snapshot
FEW = 100  # detectors, of which one may have a clock that is ahead
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.*")
ADVICE = "download it again, or remove this file"


@dataclass
class Snapshots:
    """What is read of all snapshots.

    place: of each detector by match_key.  lanes: the link and the name of those of each detector.  own: the time of
    each snapshot with readings, the last minute of more than a few detectors.  files: its path.  readings: its own.
    """

    names: list[str]  # of the features that are read of a lane, of which the first ``kept`` are written
    kept: int
    codes: tuple[float, ...]
    place: dict[int | str, int] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    lanes: list[set[tuple[str, str]]] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    readings: list[np.ndarray] = field(default_factory=list)

    def add(self, path: Path, vds: list[dict[str, Any]]) -> bool:
        """Add the readings of a snapshot, lanes combined to detectors -> whether it has any."""
        rows: list[tuple[int, int, int]] = []
        cells, sensor = [], []
        for vd in vds:
            vdid, time = (str(vd.get(name) or "").strip() for name in ("VDID", "DataCollectTime"))
            try:
                lanes = [(flow, lane) for flow in _each(vd, "LinkFlows") for lane in _each(flow, "Lanes")]
                if not lanes:
                    continue
                if not vdid:
                    raise ValueError("it has no VDID")
                seconds = _wall_seconds(time)
                cells += [_readings(lane, self.names) for _, lane in lanes]
            except (ValueError, OverflowError) as error:
                what = f"the detector {vdid[:40]!r} at {time[:40]!r}: {in_short(error, 80)}"
                raise SocialxError(path, what, ADVICE) from None
            sensor += [len(rows)] * len(lanes)
            number = self.place.setdefault(match_key(vdid), len(self.ids))
            if number == len(self.ids):
                self.ids.append(vdid)
                self.lanes.append(set())
            self.lanes[number] |= {(str(flow.get("LinkID")), str(lane.get("LaneID"))) for flow, lane in lanes}
            rows.append((seconds, number, len(self.files)))
        if not rows:
            return False
        found = combine(np.array([cells]), np.array(sensor), self.names, self.codes)[0, :, : self.kept]
        readings = np.empty(len(rows), [*READING, ("values", np.float32, (self.kept,))])
        for place, (name, _) in enumerate(READING):
            readings[name] = [row[place] for row in rows]
        readings["values"] = found
        minutes, counts = np.unique(readings["seconds"] // 60, return_counts=True)
        self.own.append(60 * int(minutes[(FEW * counts >= len(rows)) | (counts == counts.max())].max()))
        self.files.append(path)
        self.readings.append(readings)
        return True


def _recognise(head: FileHead) -> str | None:
    if head.kind == "text" and head.lines:
        begin = "\n".join(line[:BEGIN_BYTES] for _, line in head.lines).encode()
        return "a snapshot of detectors" if _begins(begin) is LIVE else None
    for path in islice(_inside(head, LOOKED), LOOKED) if head.kind in ("folder", "zip") else ():
        with suppress(*UNREADABLE, SocialxError), unpacked(path) as file:
            if _begins(file.read(BEGIN_BYTES)) is LIVE:
                return f"snapshots of detectors, such as {path.relative_to(head.path)}"
    return None


def _begins(begin: bytes) -> tuple[str, ...] | None:
    """LIVE or LIST by the first bytes of a file; None for any other."""
    marked = begin.removeprefix(BOM).lstrip().startswith((b"{", b"[", b"<"))
    return next((kind for mark, kind in BEGINS.items() if mark in begin[:BEGIN_BYTES]), None) if marked else None


def _named(path: Path) -> tuple[str, ...] | None:
    """LIVE or LIST by the name of a file; None for any other."""
    name = path.name.lower()
    return LIVE if "vdlive" in name else LIST if "vdlist" in name else None


def _inside(head: FileHead, most: int | None = None) -> Iterator[Path]:
    """The files of JSON and XML in a folder and its folders, or in a zip, in order; any other file itself.

    most: folders that are looked into.
    """
    if head.kind == "zip":
        yield from (path for path in inside(head.path) if path.name.lower().endswith(SUFFIXES))
    elif head.kind != "folder":
        yield head.path
    else:
        for folder, folders, names in islice(os.walk(head.path), most):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            plain = sorted(name for name in names if not name.startswith(".") and name.lower().endswith(SUFFIXES))
            yield from (path for path in (Path(folder, name) for name in plain) if path.is_file())


def _read(request: Request) -> Contents:
    """All snapshots.  The readings stay in memory, about 50 bytes each while they are sorted."""
    features = _features(request)
    names = [*features, *(["flow"] if SPEED in features and "flow" not in features else [])]  # the weights of speeds
    found = Snapshots(names, len(features), request.codes(features))
    paths = [path for head in (request.head, *map(read_head, request.more)) for path in _inside(head)]
    lists = [path for path in paths if _named(path) is LIST]
    aside, empty = list[Path](), list[Path]()
    with work("reading snapshots", len(paths) - len(lists), "files") as bar:
        for path, content in _contents(path for path in paths if _named(path) is not LIST):
            kind = _named(path) or _begins(content)
            if kind is not LIVE:
                (lists if kind is LIST else aside).append(path)
            elif not found.add(path, _entries(path, content, LIVE)):
                empty.append(path)
            bar.advance()
    if not found.files:
        what = f"no reading in {counted(len(empty), 'snapshot')}" if empty else "no snapshot of VDLive"
        raise SocialxError(request.data, what, "name a file VDLiveList, or a folder or zip of them")
    times, readings, notes = _placed(found, request)
    notes += [f"{counted(len(empty), 'snapshot')} without a reading ({_sample(empty)})"] if empty else []
    notes += [f"{counted(len(aside), 'file')} left out, no snapshots ({_sample(aside)})"] if aside else []
    lanes = [sorted({lane for _, lane in each}) for each in found.lanes]
    if several := [
        vdid for vdid, each in zip(found.ids, found.lanes, strict=True) if len({link for link, _ in each}) > 1
    ]:
        many = counted(len(several), "detector has", "detectors have")
        notes.append(f"{many} lanes of several links ({sample(several)}): combined to one reading")
    weighted = " weighted by flow" if SPEED in features else ""
    ways = {SPEED: f"speeds are means of lanes{weighted}", "flow": "flows are sums of lanes"}
    how = "; ".join(ways.get(each, f"{each} is a mean of lanes") for each in features)
    notes.insert(0, f"{how} ({found.ids[0]}: {', '.join(lanes[0])})")
    first, *others = features
    return Contents(
        tuple(found.ids),
        len(found.ids),
        _blocks(times, readings, len(found.ids)),
        first,
        UNITS.get(first),
        others={name: UNITS.get(name) for name in others},
        lanes=tuple(map(", ".join, lanes)),
        locations=_positions(found, lists),
        notes=tuple(f"{request.data}: {note}" for note in notes),
        paths=tuple(dict.fromkeys(map(whole, paths))),
        timezone=ZONE,
        missing=0.0 if first == SPEED else None,
    )


def _blocks(times: np.ndarray, readings: np.ndarray, sensors: int) -> Generator[Block, None, None]:
    """A row per time [t,N], or [t,N,F] of several features; NaN where a detector has no reading.

    times: of the readings, int64 [n], in order.
    """
    moments, features = np.unique(times), readings["values"].shape[1]
    step = max(BLOCK_BYTES // (4 * sensors * features), 1)
    for first in range(0, len(moments), step):
        part = moments[first : first + step]
        here = slice(*np.searchsorted(times, [part[0], part[-1] + 1]).tolist())
        values = np.full((len(part), sensors, features), np.nan, np.float32)
        values[np.searchsorted(part, times[here]), readings["number"][here]] = readings["values"][here]
        yield Block(as_timestamps(part), values if features > 1 else values[..., 0])


def _features(request: Request) -> list[str]:
    """The features that a user asks for, the speed where nothing is said; refuses speeds in another unit than km/h."""
    asked = (request.channel or "speed").split(",")
    features = [QUANTITIES.get(each.strip().lower(), "") for each in asked]
    if "" in features or len({*features}) < len(features):
        choose = f"choose of {', '.join(QUANTITIES)}"
        raise SettingsError(Argument("channel", request.channel), "not quantities of a detector, each once", choose)
    if SPEED in features and SPEED_UNITS.get((request.units or "km/h").strip().lower(), "km/h") != "km/h":
        raise SettingsError(Argument("units", request.units), "speeds of VDLive are in km/h", "drop it")
    return features


def _contents(paths: Iterable[Path]) -> Generator[tuple[Path, bytes], None, None]:
    """The bytes of files, unpacked; a zip is opened once for those of its files that follow one another."""
    for archive, members in groupby(paths, whole):
        with ExitStack() as stack:
            packed = None
            for path in members:
                try:
                    if path != archive and packed is None:
                        packed = stack.enter_context(zipfile.ZipFile(archive))
                    member = path.relative_to(archive).as_posix()
                    with packed.open(member) if packed else path.open("rb") as file, unpacked(path, file) as stream:
                        content = stream.read(CONTENT_BYTES + 1)
                except (*UNREADABLE, KeyError) as error:
                    raise SocialxError(path, f"cannot be read ({in_short(error, 80)})", ADVICE) from None
                if len(content) > CONTENT_BYTES:
                    raise SocialxError(path, f"more than {CONTENT_BYTES >> 20} MiB, which no snapshot has", ADVICE)
                yield path, content


class _Plain(ET.TreeBuilder):
    """Elements of a file without a document type, which alone can define entities."""

    def doctype(self, *_: object) -> None:
        raise ValueError("it has a document type")


def _entries(path: Path, content: bytes, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The entries of a list of JSON or XML; names: of the list, or of its elements in XML."""
    try:
        if content.removeprefix(BOM).lstrip().startswith(b"<"):
            parser = ET.XMLParser(target=_Plain())  # noqa: S314  which refuses entities
            parser.feed(content)
            listed = [each for each in parser.close().iter() if _name(each) in names]
            found: Any = [_mapping(each) for each in listed if any(_name(part) == "VDID" for part in each)]
            found = found if listed else None
        else:
            found = json.loads(content)
            found = next((found[name] for name in names if name in found), None) if isinstance(found, dict) else found
    except (ET.ParseError, ValueError, LookupError, RecursionError) as error:
        raise SocialxError(path, f"no JSON or XML that can be read ({in_short(error, 140)})", ADVICE) from None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise SocialxError(path, f"no list {names[0]} in it", ADVICE)
    return found


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _mapping(element: ET.Element) -> dict[str, Any]:
    """An element of XML as JSON has it, all numbers as texts."""
    found: dict[str, Any] = {}
    for each in element:
        name, text = _name(each), (each.text or "").strip()
        found[name] = [_mapping(part) for part in each] if name in LISTS else _mapping(each) if len(each) else text
    return found


def _each(entry: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The entries of a list in an entry; none where it is not there."""
    found = entry.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"its {name} is no list")
    return found


@lru_cache(maxsize=1 << 12)  # detectors of a snapshot share their times
def _wall_seconds(text: str) -> int:
    """A DataCollectTime -> seconds since 1970 of the clock of Taiwan, which is meant where no offset is said."""
    if not TIME.fullmatch(text):
        raise ValueError("no DataCollectTime such as 2024-01-31T00:05:00+08:00")
    moment = datetime.fromisoformat(text)
    offset, wall = moment.utcoffset(), moment.replace(tzinfo=None) - datetime(1970, 1, 1)
    return round(wall.total_seconds()) + (0 if offset is None else ZONE_S - round(offset.total_seconds()))


def _readings(lane: dict[str, Any], names: list[str]) -> list[float]:
    """The features of a lane, NaN where there is no reading; its flow is the sum of all kinds of vehicles."""
    found = {SPEED: "Speed", "occupancy": "Occupancy"}
    volumes = [_number(each, "Volume") for each in _each(lane, "Vehicles")] or [_number(lane, "Volume")]
    return [sum(volumes) if name == "flow" else _number(lane, found[name]) for name in names]


def _number(entry: dict[str, Any], name: str) -> float:
    """A number of an entry; NaN where it is none, or a code below 0 such as -99."""
    value = entry.get(name)
    if value is None or value == "":
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"its {name} is {str(value)[:40]!r}, no number")
    number = float(value)
    return number if math.isfinite(number) and number >= 0 else math.nan


def _placed(found: Snapshots, request: Request) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The times int64 [n] of the readings in order, these, each once, and notes on those that are left out.

    A reading further than a step before the first snapshot or behind the last one is that of a detector that stands
    still or whose clock is wrong.  Raises SocialxError for times closer than a step, which only ``round_times`` joins.
    """
    data, own, readings, notes = request.data, np.unique(found.own), np.concatenate(found.readings), []
    if len(own) == 1:
        raise SocialxError(
            data, f"its snapshots are of one moment, {_text(own[0])}", "name the folder of all snapshots"
        )
    step = request.step_s or free_step(own)
    near = (readings["seconds"] >= own[0] - step) & (readings["seconds"] <= own[-1] + step)
    if far := [found.ids[number] for number in np.unique(readings["number"][~near])]:
        many = counted(int((~near).sum()), "reading is", "readings are")
        notes.append(f"{many} of other times than the snapshots ({sample(far)}): left out")
    readings = readings[near]
    seconds = readings["seconds"]
    times = nearest_step(seconds, step) if request.round_times else seconds
    moments = np.unique(times)
    close = np.flatnonzero(np.diff(moments) < step - 2 * JITTER_S)
    if len(close) and not request.round_times:
        pair = " and ".join(map(_text, moments[close[0] : close[0] + 2]))
        what = f"readings of {pair}, closer than the {step // 60} min between snapshots"
        raise SocialxError(data, what, f"{Argument('round_times', True)} moves each to the nearest whole step")
    order = np.lexsort((seconds, np.abs(times - seconds), readings["number"], times))
    readings, times = readings[order], times[order]
    seconds, numbers, values = (readings[name] for name in ("seconds", "number", "values"))
    again = np.append(False, (np.diff(numbers) == 0) & (np.diff(times) == 0))  # of a detector and time
    same = again & np.append(False, np.diff(seconds) == 0)
    other = same[1:] & ~np.isclose(values[1:], values[:-1], 0, 0, equal_nan=True).all(axis=1)
    if other.any():
        row = int(other.argmax())
        where = " and ".join(str(found.files[number]) for number in readings["file"][row : row + 2])
        what = f"two readings of {found.ids[numbers[row]]} at {_text(seconds[row])}, in {where}"
        raise SocialxError(data, what, "remove one of these files")
    if same.any():
        notes.append(f"{counted(int(same.sum()), 'reading stands', 'readings stand')} there again: read once")
    if (moved := np.abs(times - seconds)).any():
        how = f"whole {step // 60} min, by up to {moved.max()} s"
        notes.append(f"{np.count_nonzero(moved):,} of {len(moved):,} times moved to {how}")
    if late := int((again & ~same).sum()):
        many = counted(late, "reading shares its step", "readings share their step")
        notes.append(f"{many} with one that is nearer to it: left out")
    return times[~again], readings[~again], notes


def _sample(paths: list[Path]) -> str:
    return sample([str(Path(*path.parts[-2:])) for path in paths])


def _text(seconds: int) -> str:
    return as_timestamps(np.array([seconds]))[0].decode()


def _positions(found: Snapshots, lists: list[Path]) -> dict[int | str, Location] | None:
    """The positions of the detectors, each of the last list that has it; None where there is no list."""
    places: dict[int | str, Location] = {}
    with closing(_contents(reversed(lists))) as contents:
        for path, content in contents:
            for vd in _entries(path, content, LIST):
                latitude, longitude = (_degrees(vd, name) for name in ("PositionLat", "PositionLon"))
                if on_earth(latitude, longitude):
                    vdid = str(vd.get("VDID") or "").strip()
                    place = Location(vdid, latitude, longitude, math.nan, math.nan, "")
                    places.setdefault(match_key(vdid), place)
            if found.place.keys() <= places.keys():
                break
    return places if lists else None


def _degrees(vd: dict[str, Any], name: str) -> float:
    """A coordinate, NaN where it is none."""
    try:
        return float(vd.get(name) or math.nan)
    except (TypeError, ValueError):
        return math.nan


FORMATS = (
    Format(
        "taiwan-vd",
        "snapshots of Taiwan's vehicle detectors: VDLiveList with VDList, JSON or XML, in a folder or a zip",
        _recognise,
        _read,
        takes=frozenset({"channel", "more"}),
    ),
)
