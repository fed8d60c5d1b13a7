"""LibCity's atomic files: NAME.geo with the sensors and NAME.dyna with one row per sensor and time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from socialx.errors import Argument, Message, SettingsError, SocialxError, sample
from socialx.files.convert_options import Request
from socialx.files.file_head import FileHead, read_head
from socialx.files.formats.columns import quantity_of
from socialx.files.formats.contents import Contents, Format
from socialx.files.formats.known_columns import of_columns
from socialx.files.formats.sheets import Sheet, cells_of
from socialx.files.formats.tables import read_tables
from socialx.files.formats.text_cells import TextColumns
from socialx.files.locations import match_key, read_locations
from socialx.files.quantities import QUANTITIES, SPEED

GEO, DYNA = ".geo", ".dyna"
ID, TYPE, PLACE = "geo_id", "type", "coordinates"
TIME, SENSOR = "time", "entity_id"
FORM = "%Y-%m-%dT%H:%M:%SZ"  # of wall times, whatever the Z says
ADVICE = "use the folder of NAME.geo and NAME.dyna as LibCity publishes it"


def _read(request: Request) -> Contents:
    """Both files, the sensors in the order of NAME.geo."""
    geo, dyna = _pair(request.data)
    names, channel = _header(dyna, TIME, SENSOR), _channel(dyna, request)
    head = read_head(dyna)
    first = cells_of(head.lines[1][1], ",") if len(head.lines) > 1 else [""] * len(names)
    sheet = Sheet(
        dyna,
        "text",
        names,
        (names.index(TIME),),
        tuple(names.index(each) for each in _channels(names)),
        (names.index(SENSOR),),
        first=first[names.index(TIME)] if len(first) == len(names) else "",
    )
    wall = sheet.first.endswith("Z")
    named = replace(
        request,
        data=dyna,
        meta=None,
        channel=channel,
        quantity=quantity_of(channel) or request.quantity or SPEED,
        time_format=FORM if wall else None,
        sensor_column=(SENSOR,),
    )
    ordered = _ids(geo)
    contents = read_tables(named, lambda *_: [sheet])
    ids = contents.ids or ()
    place = {match_key(vdid): number for number, vdid in enumerate(ids)}
    if strange := [vdid for vdid in ids if match_key(vdid) not in {*map(match_key, ordered)}]:
        found = f"{geo.name} has no sensor {strange[0][:40]!a}"
        raise SocialxError(dyna, found, "use the two of one data set")
    kept = [place[match_key(vdid)] for vdid in ordered if match_key(vdid) in place]
    notes: list[Message | str] = [*contents.notes]
    if wall:
        notes[:0] = [f"{dyna}: its times end with Z, which LibCity writes after wall times: taken as those"]
    if silent := [vdid for vdid in ordered if match_key(vdid) not in place]:
        count = f"{len(silent)} of {len(ordered)} sensors have no rows in {dyna.name} ({sample(silent)})"
        notes.append(f"{geo}: {count}: they are left out")
    return replace(
        contents,
        ids=tuple(ids[number] for number in kept),
        blocks=of_columns(contents.blocks, kept),
        locations=read_locations(geo, ids) if request.meta is None else None,
        notes=tuple(notes),
        paths=(geo, dyna),
    )


def _needs(path: Path) -> tuple[str, ...]:
    """A channel, where there are several and none is the speed."""
    channels = _channels(_header(_pair(path)[1], TIME, SENSOR))
    speeds = [each for each in channels if quantity_of(each) == SPEED]
    return () if len(speeds) == 1 or len(channels) == 1 else ("channel",)


def _recognise(head: FileHead) -> str | None:
    try:
        geo, dyna = _pair(head.path)
        if not (geo.is_file() and dyna.is_file()):
            return None
        _header(geo, ID, TYPE, PLACE)
        channels = _channels(_header(dyna, TIME, SENSOR))
    except (SocialxError, OSError):
        return None
    return f"LibCity's {geo.name} and {dyna.name} with {', '.join(channels)}"


def _channels(names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of readings."""
    return names[names.index(SENSOR) + 1 :]


def _channel(path: Path, request: Request) -> str:
    """The column that is read: the one that the user names, that of speeds, or the only one."""
    channels = _channels(_header(path, TIME, SENSOR))
    has = f"its columns are {', '.join(channels) or 'none'}"
    wanted = QUANTITIES.get(request.channel or "", request.channel)
    found = [each for each in channels if wanted in (each, quantity_of(each))] if wanted else []
    speeds = [each for each in channels if quantity_of(each) == SPEED]
    if wanted is None and len(channels) != 1 and len(speeds) != 1:
        raise SettingsError(path, has, f"choose one with {Argument('channel')}")
    if wanted and len(found) != 1:
        raise SettingsError(path, f"no column {wanted!a}, {has}", f"choose one of them with {Argument('channel')}")
    return found[0] if wanted else channels[0] if len(channels) == 1 else speeds[0]


def _pair(path: Path) -> tuple[Path, Path]:
    """The .geo and .dyna files that a user means with either of them or their folder."""
    if path.is_dir():
        found = sorted(path.glob(f"*{DYNA}"))
        if len(found) != 1:
            if not found:
                raise SocialxError(path, f"a folder with no file {DYNA}", ADVICE)
            names = sample([part.name for part in found])
            raise SocialxError(path, f"a folder with {len(found)} files {DYNA} ({names})", "name one of them")
        path = found[0]
    if path.suffix not in (GEO, DYNA):
        raise SocialxError(path, f"neither {GEO} nor {DYNA}", ADVICE)
    return path.with_suffix(GEO), path.with_suffix(DYNA)


def _header(path: Path, *needed: str) -> tuple[str, ...]:
    """The names of the columns."""
    lines = read_head(path, ADVICE).lines
    names = tuple(cells_of(lines[0][1], ",")) if lines and lines[0][0] == 1 else ()
    if not set(needed) <= set(names) or len(set(names)) < len(names):
        found = lines[0][1][:60] if lines else ""
        raise SocialxError(path, f"line 1 is {found!a}, not columns with {', '.join(needed)}", ADVICE)
    return names


def _ids(path: Path) -> list[str]:
    """The sensors in the order of their file; only those at points are read."""
    names = _header(path, ID, TYPE, PLACE)
    ids, kinds = list[str](), list[str]()
    for piece in TextColumns(path, names, (names.index(ID), names.index(TYPE)), ()).read():
        ids += piece.texts[0].cells()
        kinds += piece.texts[1].cells()
    wrong = np.flatnonzero([kind != "Point" for kind in kinds])
    if len(wrong) or not ids:
        found = f"{ids[wrong[0]][:40]!a} is a {kinds[wrong[0]][:40]!a}, not a Point" if ids else "it has no sensors"
        raise SocialxError(path, found, "only sensors at points are read" if ids else ADVICE)
    return ids


FORMATS = (
    Format(
        "libcity",
        "LibCity's NAME.geo and NAME.dyna",
        _recognise,
        _read,
        takes=frozenset({"channel", "quantity"}),
        needs=_needs,
    ),
)
