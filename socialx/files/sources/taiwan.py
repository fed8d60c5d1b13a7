"""Snapshots from Taiwan's vehicle detectors (VD): VDLiveList with lane observations, VDList with locations.

Both are JSON or XML by the standard of Taiwan's Ministry of Transportation (MOTC). They become a table, a row per lane.
"""

from __future__ import annotations

import json
import math
import os
import re
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from socialx.core.errors import Argument, Message, SettingsError, SocialxError, counted, in_short, sample
from socialx.core.progress import work
from socialx.data.geo import plausible_location
from socialx.files.sources.contents import Contents, Format
from socialx.files.sources.positions.locations import Location
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables import table
from socialx.files.sources.tables.formats import refuse_twice
from socialx.files.sources.tables.spec import TableSpec
from socialx.files.store.head import UNREADABLE, FileHead, head_in, member_paths, read_head, unpack
from socialx.files.store.ids import match_key
from socialx.files.store.quantities import QUANTITIES, SPEED
from socialx.files.store.time_axis import JITTER_S, common_step

ZONE, CLOCK = "Asia/Taipei", timezone(timedelta(hours=8))
COLUMNS = ("VDID", "DataCollectTime", "LinkID", "LaneID", "Speed", "Occupancy", "Volume")
FEATURES, UNITS = {SPEED: "Speed", "occupancy": "Occupancy", "flow": "Volume"}, {SPEED: "km/h", "occupancy": "%"}
LISTS = {"VDLives", "VDs", "LinkFlows", "Lanes", "Vehicles"}  # elements of XML that are lists
LIVE = re.compile(r"\s*[{\[<].*?(?:VDLive|LiveTrafficData|LinkFlows)", re.DOTALL)
CONTENT_BYTES, BEGIN, LOOKED = 1 << 26, 1 << 12, 100  # one of the first LOOKED files must be a snapshot
ADVICE = "download the file again, or remove it"


def _recognise(head: FileHead) -> str | None:
    """Return a description where one of the first LOOKED files is a VDLive snapshot; None for other files."""
    for path in _list_files(head, LOOKED) if head.lines or head.kind in ("folder", "zip") else ():
        with suppress(SocialxError):
            if LIVE.match("\n".join(line[:BEGIN] for line in head_in(head, path).lines)):
                return f"snapshots of detectors, such as {path.name}"
    return None


def _list_files(head: FileHead, most: int | None = None) -> list[Path]:
    """Return the JSON and XML files among the first ``most`` in a folder tree or zip, sorted; else the file itself."""
    if head.kind not in ("folder", "zip"):
        return [head.path]
    files = (Path(folder, name) for folder, _, names in os.walk(head.path) for name in names if name[0] != ".")
    paths = member_paths(head.path)[:most] if head.kind == "zip" else islice(files, most)
    return sorted(path for path in paths if path.name.lower().endswith((".json", ".xml", ".gz")))


def _texts(head: FileHead) -> Iterator[tuple[Path, str]]:
    """Yield each JSON or XML file in a folder, zip or lone file, with its text."""
    with zipfile.ZipFile(head.path) if head.kind == "zip" else nullcontext() as archive:
        for path in _list_files(head):
            try:
                opened = archive.open(path.relative_to(head.path).as_posix()) if archive else path.open("rb")
                with opened as file, unpack(path, file) as stream:
                    content = stream.read(CONTENT_BYTES + 1)
                if len(content) > CONTENT_BYTES:
                    raise ValueError(f"more than {CONTENT_BYTES >> 20} MiB")
                yield path, content.decode("utf-8-sig")
            except UNREADABLE as error:
                raise SocialxError("taiwan.torn", path, f"it cannot be read ({in_short(error, 80)})", ADVICE) from None


def _read(request: ConvertOptions) -> Contents:
    import pandas as pd

    described = _describe(request)
    heads = [request.head, *map(read_head, request.more)]
    snapshots, places, left, notes = dict[Path, Any](), dict[int | str, Location](), list[str](), list[Message]()
    with work("reading snapshots", sum(len(_list_files(head)) for head in heads), "files") as bar:
        for path, text in (content for head in heads for content in _texts(head)):
            name = path.name.lower()
            live = "vdlive" in name or ("vdlist" not in name and LIVE.match(text, 0, BEGIN))
            if live and (rows := [row for entry in _entries(path, text) for row in _rows(path, entry)]):
                snapshots[path] = pd.DataFrame(rows, columns=COLUMNS)
            elif not live and ("vdlist" in name or "PositionLat" in text):
                places |= dict(filter(None, map(_location, _entries(path, text))))
            else:
                left.append(str(Path(*path.parts[-2:])))
            bar.advance()
    if not snapshots:
        helps = "name a file VDLiveList, or a folder or zip of them"
        raise SocialxError("taiwan.no-readings", request.data, "there are no readings of lanes in it", helps)
    if left:
        notes.append(Message("taiwan.left-out", request.data, f"left out, without readings of lanes: {sample(left)}"))
    frame, step = _select_near(pd.concat(snapshots), request, notes)
    if request.round_times:
        described = replace(described, round_s=step)
    contents = table.read([frame], described)
    refuse_twice(contents, request)
    of_frame = (note for note in contents.notes if isinstance(note, Message))
    told = [Message(note.code, request.data, note.problem, note.remedy, note.sample) for note in of_frame]
    return replace(contents, locations=places or None, timezone=ZONE, table="", notes=(*told, *notes))


def _describe(request: ConvertOptions) -> TableSpec:
    """Return the description for the lane table with the user's quantities, speed by default."""
    if request.timezone not in (None, ZONE):
        problem = f"{Argument('timezone', request.timezone)} is wrong: the times are in {ZONE}"
        raise SettingsError("taiwan.zone", "", problem, "drop it")
    wanted = [QUANTITIES.get(name.strip().lower(), name) for name in filter(None, request.channels)] or [SPEED]
    if len({*wanted}) < len(wanted) or {*wanted} - {*FEATURES}:
        problem = f"{Argument('channel', request.channel)} is not there"
        raise SettingsError("taiwan.channel", "", problem, f"choose from {Argument('channel', ','.join(QUANTITIES))}")
    if request.units and UNITS.get(wanted[0]) not in (None, request.units):
        raise SettingsError("taiwan.unit", "", f"{wanted[0]} is in {UNITS[wanted[0]]}, not {request.units}", "drop it")
    values, units = ({name: names[name] for name in wanted if name in names} for names in (FEATURES, UNITS))
    vdid, time, *lane = COLUMNS[:4]
    return TableSpec(values, (time,), (vdid,), tuple(lane), zone=ZONE, units=units, below=0.0, weights="Volume")


def _select_near(frame: Any, request: ConvertOptions, notes: list[Message]) -> tuple[Any, int]:
    """Return the rows within a step from the snapshots, by which ``frame`` is indexed, and the step in seconds."""
    seconds = frame["DataCollectTime"].astype("datetime64[s]").astype(np.int64)
    snapshots = np.unique(seconds.groupby(level=0).quantile(0.9, "nearest"))  # few clocks are ahead
    minutes = np.rint(snapshots / 60).astype(np.int64)  # of clocks that drift around whole minutes
    step = request.step_s or max(60, common_step(60 * minutes))
    near = seconds.between(snapshots[0] - step, snapshots[-1] + step)
    far = frame["VDID"][~near].tolist()
    out = f"{counted(len(far), 'row')} of other times than the snapshots ({sample([*dict.fromkeys(far)])}): left out"
    notes += [Message("taiwan.other-times", request.data, out)] if far else []
    if not request.round_times and (np.diff(np.unique(seconds[near])) < step - 2 * JITTER_S).any():
        problem = f"detectors have times that are closer than the {step // 60} min between snapshots"
        remedy = f"move each to a whole step with {Argument('round_times', True)}"
        raise SocialxError("taiwan.too-close", request.data, problem, remedy)
    return frame[near].reset_index(drop=True), step


def _entries(path: Path, text: str) -> list[dict[str, Any]]:
    try:
        if "<!DOCTYPE" in text:  # which alone can define entities
            raise ValueError("it has a document type")
        root = _mapping(ET.fromstring(text)) if text.lstrip().startswith("<") else json.loads(text)  # noqa: S314
        lists = [part for part in (root.values() if isinstance(root, dict) else [root]) if isinstance(part, list)]
    except (ET.ParseError, ValueError, RecursionError) as error:
        problem = f"this is no JSON or XML that can be read ({in_short(error, 140)})"
        raise SocialxError("taiwan.parse", path, problem, ADVICE) from None
    if len(lists) != 1 or not all(isinstance(part, dict) for part in lists[0]):
        raise SocialxError("taiwan.no-list", path, "there is no list VDLives or VDs in it", ADVICE)
    return lists[0]


def _mapping(element: ET.Element) -> dict[str, Any]:
    """Return an XML element as JSON-like data, with numbers as text."""
    mapping: dict[str, Any] = {}
    for child in element:
        name = child.tag.rpartition("}")[2]
        mapping[name] = [*map(_mapping, child)] if name in LISTS else _mapping(child) if len(child) else child.text
    return mapping


def _rows(path: Path, vd: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield a row in COLUMNS order per lane of a detector; a lane's volume is the sum over vehicle kinds."""
    vdid, time = (str(vd.get(name) or "").strip() for name in COLUMNS[:2])
    try:
        links = [(str(link.get("LinkID", "")), link.get("Lanes") or ()) for link in vd.get("LinkFlows") or ()]
        lanes = [(link, lane) for link, link_lanes in links for lane in link_lanes]
        if lanes and not (vdid and len(time) >= len("2024-01-31T00:05")):
            raise ValueError("it needs a VDID, and a DataCollectTime such as 2024-01-31T00:05:00+08:00")
        for link, lane in lanes:
            moment = datetime.fromisoformat(time)  # without an offset it is one of Taiwan
            wall = (moment.astimezone(CLOCK) if moment.tzinfo else moment).replace(tzinfo=None)
            volumes = [_number(value, "Volume") for value in lane.get("Vehicles") or [lane]]
            volume = sum(volumes) if all(0 <= value < math.inf for value in volumes) else math.nan
            yield vdid, wall, link, str(lane["LaneID"]), _number(lane, "Speed"), _number(lane, "Occupancy"), volume
    except (ValueError, OverflowError, TypeError, AttributeError, KeyError) as error:
        problem = f"the detector {vdid[:40]!r} at {time[:40]!r} breaks the standard ({in_short(error, 80)})"
        raise SocialxError("taiwan.detector", path, problem, ADVICE) from None


def _number(entry: Mapping[str, Any], name: str) -> float:
    """Return the number under ``name`` in an entry; NaN where absent."""
    return math.nan if entry.get(name) in (None, "") else float(str(entry[name]))  # of True and the like an error


def _location(vd: Mapping[str, Any]) -> tuple[int | str, Location] | None:
    """Return the key and the location in an entry of a VDList; None outside degrees."""
    with suppress(TypeError, ValueError, KeyError):
        degrees = float(vd["PositionLat"]), float(vd["PositionLon"])
        if plausible_location(*degrees):
            location = Location(str(vd["VDID"]).strip(), *degrees)
            return match_key(location.sensor_id), location
    return None


TITLE = "snapshots of Taiwan's vehicle detectors: VDLiveList with VDList, JSON or XML, in a folder or a zip"
FORMATS = (Format("taiwan-vd", TITLE, _recognise, _read, takes=frozenset({"channel", "more", "round_times"})),)
