"""LibCity's atomic files: NAME.geo with the sensors and NAME.dyna with one row per sensor and time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from socialx.data.geo import on_earth, within_degrees
from socialx.errors import Message, SocialxError, sample
from socialx.files.convert_options import Request
from socialx.files.file_head import FileHead, read_head
from socialx.files.formats.columns import quantity_of
from socialx.files.formats.contents import Contents, Format
from socialx.files.formats.known_columns import of_sensors
from socialx.files.formats.moments import candidates
from socialx.files.formats.sheets import Sheet, cells_of
from socialx.files.formats.tables import read_tables
from socialx.files.formats.text_cells import Piece, TextColumns, Texts
from socialx.files.ids import match_key
from socialx.files.locations import Location
from socialx.files.quantities import SPEED

GEO, DYNA = ".geo", ".dyna"
ID, TYPE, PLACE = "geo_id", "type", "coordinates"
TIME, SENSOR = "time", "entity_id"
ADVICE = "use the folder of NAME.geo and NAME.dyna as LibCity publishes it"


@dataclass(frozen=True)
class _States(Sheet):
    """The rows of NAME.dyna, each a state of a sensor.  ids_of: the ids as NAME.geo has them, by ``match_key``."""

    ids_of: Mapping[int | str, str] = field(default_factory=dict)

    def rows(self, texts: tuple[int, ...], numbers: tuple[int, ...] = ()) -> Generator[Piece, None, None]:
        """Times and sensors, and these columns of readings; refuses rows of other types and unknown sensors."""
        types = (self.names.index(TYPE),) if TYPE in self.names else ()
        with closing(super().rows((*texts, *types), numbers)) as pieces:
            for piece in pieces:
                times, sensors, *kinds = piece.texts
                for kind in kinds:
                    _refuse(self.path, piece, kind, "state".__eq__, f"not the {TYPE} state")
                unknown = f"no sensor of {self.path.with_suffix(GEO).name}"
                _refuse(self.path, piece, sensors, lambda vdid: match_key(vdid) in self.ids_of, unknown)
                spelt = Texts.of([self.ids_of[match_key(vdid)] for vdid in sensors.words])
                yield replace(piece, texts=[times, Texts(spelt.words, spelt.codes[sensors.codes])])


def _read(request: Request) -> Contents:
    """Both files, the sensors in the order of NAME.geo."""
    geo, dyna = _pair(request.data)
    sensors, names = _sensors(geo), _header(dyna, TIME, SENSOR)
    ids = {key: place.sensor_id for key, place in sensors.items()}
    locations = {key: place for key, place in sensors.items() if on_earth(place.latitude, place.longitude)}
    head = read_head(dyna)
    first = dict(zip(names, cells_of(head.lines[1][1], ",") if len(head.lines) > 1 else (), strict=False)).get(TIME, "")
    at, sensor, *values = map(names.index, (TIME, SENSOR, *_channels(names)))
    sheet = _States(dyna, "text", names, (at,), tuple(values), (sensor,), head.encoding, first=first, ids_of=ids)
    ways = candidates(first.removesuffix("Z"))
    wall = first.endswith("Z") and len(ways) == 1 and request.time_format is None
    form = f"{ways[0].form}Z" if wall else request.time_format
    if not values:
        raise SocialxError(dyna, f"no columns behind {SENSOR}", ADVICE)
    named = replace(request, data=dyna, meta=None, time_format=form, sensor_column=(SENSOR,))
    contents = read_tables(named, lambda *_: [sheet])
    rows = {*(contents.ids or ())}
    notes: list[Message | str] = [*contents.notes]
    if wall:
        notes[:0] = [f"{dyna}: its times end with Z, which LibCity writes after wall times: taken as those"]
    if silent := [vdid for vdid in ids.values() if vdid not in rows]:
        found = f"{len(silent)} of {len(ids)} sensors have no rows in {dyna.name} ({sample(silent)})"
        notes.append(f"{geo}: {found}: they are left out")
    places = (locations or None) if request.meta is None else None
    contents = of_sensors(contents, [vdid for vdid in ids.values() if vdid in rows])
    return replace(contents, locations=places, notes=tuple(notes), paths=(geo, dyna))


def _needs(path: Path) -> tuple[str, ...]:
    """A channel, where there are several and none is the speed."""
    said = [quantity_of(each) for each in _channels(_header(_pair(path)[1], TIME, SENSOR))]
    return () if len(said) == 1 or said.count(SPEED) == 1 else ("channel",)


def _recognise(head: FileHead) -> str | None:
    try:
        geo, dyna = _pair(head.path)
        _header(geo, ID, TYPE, PLACE)
        channels = _channels(_header(dyna, TIME, SENSOR))
    except (SocialxError, OSError):
        return None
    return f"LibCity's {geo.name} and {dyna.name} with {', '.join(channels)}"


def _channels(names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of readings."""
    return names[names.index(SENSOR) + 1 :]


def _pair(path: Path) -> tuple[Path, Path]:
    """The .geo and .dyna files that a user means with either of them or their folder."""
    found = sorted(path.glob(f"*{DYNA}")) if path.is_dir() else [path]
    if len(found) > 1:
        names = sample([each.name for each in found])
        raise SocialxError(path, f"a folder with {len(found)} files {DYNA} ({names})", "name one of them")
    if not found or found[0].suffix not in (GEO, DYNA):
        raise SocialxError(path, f"neither a file {GEO} or {DYNA} nor a folder with a file {DYNA}", ADVICE)
    return found[0].with_suffix(GEO), found[0].with_suffix(DYNA)


def _header(path: Path, *needed: str) -> tuple[str, ...]:
    """The names of the columns."""
    lines = read_head(path, ADVICE).lines
    names = tuple(cells_of(lines[0][1], ",")) if lines and lines[0][0] == 1 else ()
    if not set(needed) <= set(names) or len(set(names)) < len(names):
        raise SocialxError(path, f"line 1 is {','.join(names)[:60]!a}, not columns with {', '.join(needed)}", ADVICE)
    return names


def _sensors(path: Path) -> dict[int | str, Location]:
    """The sensors in the order of their file, by ``match_key``; one at 0, 0 or ``[]`` has no known position."""
    names = _header(path, ID, TYPE, PLACE)
    sensors = dict[int | str, Location]()
    columns = TextColumns(path, names, (names.index(ID), names.index(TYPE), names.index(PLACE)), ())
    with closing(columns.read()) as pieces:
        for piece in pieces:
            _refuse(path, piece, piece.texts[1], "Point".__eq__, f"not the {TYPE} Point")
            for row, (vdid, _, text) in enumerate(zip(*(each.cells() for each in piece.texts), strict=True)):
                if not vdid or match_key(vdid) in sensors:
                    found = f"{piece.place(row)} has the {ID} {vdid[:40]!a}, empty or for a second time"
                    raise SocialxError(path, found, "correct it")
                try:
                    longitude, latitude = map(float, json.loads(text) or (0, 0))
                except (ValueError, TypeError, RecursionError):
                    longitude = latitude = math.nan
                if not within_degrees(latitude, longitude):
                    found = f"{piece.place(row)} has the coordinates {text[:40]!a}, not [longitude, latitude]"
                    raise SocialxError(path, found, "correct it")
                sensors[match_key(vdid)] = Location(vdid, latitude, longitude, math.nan, math.nan, "")
    if not sensors:
        raise SocialxError(path, "it has no sensors", ADVICE)
    return sensors


def _refuse(path: Path, piece: Piece, texts: Texts, right: Callable[[str], bool], found: str) -> None:
    """Raise for the first row with a text that is not right."""
    wrong = np.array([not right(word) for word in texts.words], bool)[texts.codes]
    if wrong.any():
        row = int(wrong.argmax())
        raise SocialxError(path, f"{piece.place(row)} has {texts.cells()[row][:40]!a}, {found}", ADVICE)


TAKES = frozenset({"channel", "quantity", "time_format"})
FORMATS = (Format("libcity", "LibCity's NAME.geo and NAME.dyna", _recognise, _read, takes=TAKES, needs=_needs),)
