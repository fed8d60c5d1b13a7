"""Published tables with a row per time and sensor, whose columns are known beforehand: a row of ``TABLES`` for each.

t rows of one piece, N sensors.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from socialx.core.errors import Argument, Message, SettingsError, SocialxError, counted, sample
from socialx.data.calendar import DAY_S
from socialx.data.geo import plausible_location, valid_degrees
from socialx.files.sources.contents import Contents, Format
from socialx.files.sources.positions.locations import Location
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables.reader import are_locations, files_of, read_tables
from socialx.files.sources.tables.sheets import Sheet, cells_of
from socialx.files.sources.tables.text_cells import NumberFormat, Piece, TextColumns, Texts
from socialx.files.sources.tables.time_texts import UNKNOWN, Times, candidates
from socialx.files.store.head import GZIP, ZIP, FileHead, first_bytes, head_in, read_head
from socialx.files.store.ids import match_key
from socialx.files.store.layout import Block
from socialx.files.store.quantities import QUANTITIES, SPEED
from socialx.files.store.time_axis import as_text, common_step

ISO = "%Y-%m-%d %H:%M:%S"
FEW = 6  # cities that an error names
END_BYTES = 1 << 12
GEO, DYNA = ".geo", ".dyna"  # of LibCity


@dataclass(frozen=True)
class KnownTable:
    """How a table is published; columns have the names of its header.

    advice: what helps where a file is another.  readings: their columns, with the unit of each or "" where its name
    says it; without them all behind the sensor.  seconds: the column of the second of the day, where ``time`` is the
    day alone.  form: of the times, as strptime takes it; "": as the first one.  zone: of the times.  step_s: between
    them.  alike: a column with one text in all rows, ``text`` or that of the first.  city: a column of cities, of which
    one is read.  mark: a column of numbers, of which ``marks`` marks a row; may_be: all numbers in it, where others are
    refused.  marked: what is true of marked readings; drops: whether they are none.  instead: the channel that is read
    where no row has a speed.  header: the names of all columns of a file without a header, none of another file.
    file: finds the table of what a user names.  read: reads what is more than this table.
    """

    name: str
    title: str
    advice: str
    time: str
    sensor: str
    readings: Mapping[str, str] = field(default_factory=dict)
    seconds: str = ""
    form: str = ""
    zone: str = ""
    step_s: int | None = None
    alike: str = ""
    text: str = ""
    city: str = ""
    mark: str = ""
    marks: float = 1.0
    may_be: tuple[float, ...] = ()
    marked: str = ""
    drops: bool = False
    instead: str = ""
    header: Callable[[FileHead], tuple[str, ...]] | None = None
    file: Callable[[Path], Path] = lambda path: path
    read: Callable[[KnownTable, ConvertOptions], Contents] | None = None

    def rows_of(self, head: FileHead) -> Rows | None:
        """The rows of a file; None where it is another table."""
        names = self.header(head) if self.header else tuple(cells_of(head.lines[0][1], ",")) if head.lines else ()
        needed = {self.time, self.sensor, self.seconds, self.city, self.mark, *self.readings} - {""}
        if not needed <= {*names} or (len({*names}) < len(names) and not self.header):
            return None
        time, sensor = names.index(self.time), names.index(self.sensor)
        values = tuple(map(names.index, self.readings or names[sensor + 1 :]))
        if not values:
            return None
        begin = 0 if self.header else head.lines[0][0]
        cells = next((cells_of(line, ",") for number, line in head.lines if number > begin), [])
        first = dict(zip(names, cells, strict=False))
        return Rows(
            (time,),
            (sensor,),
            path=head.path,
            kind="text",
            names=names,
            values=values,
            encoding=head.encoding,
            begin=begin,
            known=self,
            units=tuple(self.readings.get(name, "") for name in names),
            signs=NumberFormat(decimals=True),  # a point is that of decimals
            first="" if self.form else first.get(self.time, ""),
            common=self.text or first.get(self.alike, ""),
        )

    def format(self) -> Format:
        """What reads it."""
        takes = ["channel", *([] if self.read else ["more"]), *(["city"] if self.city else [])]
        takes += [] if self.form else ["quantity", "time_format"]
        ways = partial(_recognise, self), partial(self.read or _read, self)
        return Format(self.name, self.title, *ways, takes=frozenset(takes), needs=partial(_needs, self))


@dataclass(frozen=True, kw_only=True)
class Rows(Sheet):
    """A file of a published table.

    common: the text that its rows have alike.  city: the one that is read.  listed: the ids of the sensors in a file
    beside it, by ``match_key``.
    """

    known: KnownTable
    common: str = ""
    city: str = ""
    listed: Mapping[int | str, str] = field(default_factory=dict)

    def marked(self, values: tuple[int, ...]) -> Generator[tuple[Piece, np.ndarray], None, None]:
        """Times, sensors and these readings of the rows that are read, and which are marked, bool [t], by pieces."""
        place, known = self.names.index, self.known
        texts = [name for name in (known.time, known.sensor, known.city, known.alike) if name and name in self.names]
        numbers = (*map(place, filter(None, (known.seconds, known.mark))), *values)
        with closing(super().rows(tuple(map(place, texts)), numbers)) as pieces:
            for piece in pieces:
                own = self._own(piece, dict(zip(texts, piece.texts, strict=True)))
                rows, marked = self._marks(self._timed(own))
                if len(marked):
                    yield rows, marked

    def _own(self, piece: Piece, texts: Mapping[str, Texts]) -> Piece:
        """The rows that are read, with their times and sensors, which are spelt as in the file beside it."""
        known, times, sensors = self.known, texts[self.known.time], texts[self.known.sensor]
        if alike := texts.get(known.alike):
            remedy = f"use a file of one {known.alike}"
            self._check(piece, known.alike, alike, _each(alike, self.common.__eq__), f"not {self.common}", remedy)
        if known.city:
            kept = np.flatnonzero(_each(texts[known.city], self.city.__eq__))
            times, sensors = times[kept], sensors[kept]
            piece = replace(piece, numbers=piece.numbers[kept], kept=kept)
        self._check(piece, known.sensor, sensors, _each(sensors, bool), "no id")
        if self.listed:
            listed = _each(sensors, lambda vdid: match_key(vdid) in self.listed)
            self._check(piece, known.sensor, sensors, listed, f"no sensor of {self.path.with_suffix(GEO).name}")
            spelt = Texts.of([self.listed[match_key(vdid)] for vdid in sensors.words])
            sensors = Texts(spelt.words, spelt.codes[sensors.codes])
        return replace(piece, texts=[times, sensors])

    def _timed(self, rows: Piece) -> Piece:
        """The rows with the time of day behind their days."""
        known, (times, sensors) = self.known, rows.texts
        if known.seconds:
            seconds = rows.numbers[:, 0]
            whole = (seconds >= 0) & (seconds < DAY_S) & (seconds == np.floor(seconds))
            self._check(rows, known.seconds, seconds, whole, "not whole seconds of a day")
            different, codes = np.unique(seconds, return_inverse=True)
            clocks = Texts([as_text(int(second)).split()[1] for second in different], codes)
            times = Texts.joined([times, clocks], " ".join)
            rows = replace(rows, texts=[times, sensors], numbers=rows.numbers[:, 1:])
        if known.form:
            right = Times.of(known.form).seconds(times) != UNKNOWN
            self._check(rows, "time", times, right, f"not written as {known.form}")
        return rows

    def _marks(self, rows: Piece) -> tuple[Piece, np.ndarray]:
        """The rows without the column of marks, and which are marked."""
        if not self.known.mark:
            return rows, np.zeros(len(rows.numbers), bool)
        marks, may_be = rows.numbers[:, 0], self.known.may_be
        if may_be:
            known, either = np.isin(marks, may_be) | np.isnan(marks), ", ".join(map("{:g}".format, may_be))
            self._check(rows, self.known.mark, marks, known, f"not {either} or empty")
        return replace(rows, numbers=rows.numbers[:, 1:]), marks == self.known.marks

    def _check(
        self, rows: Piece, name: str, cells: Texts | np.ndarray, right: np.ndarray, what: str, remedy: str = ""
    ) -> None:
        """Raise for the first row whose cell is not right, bool [t]."""
        if not right.all():
            row = int(right.argmin())
            cell = f"{cells[row]:g}" if isinstance(cells, np.ndarray) else ascii(cells.words[cells.codes[row]][:40])
            raise SocialxError(self.path, f"{rows.place(row)} has the {name} {cell}, {what}", remedy or "correct it")

    def rows(self, texts: tuple[int, ...], numbers: tuple[int, ...] = ()) -> Generator[Piece, None, None]:
        """Times and sensors, and these of the columns of readings, piece after piece."""
        with closing(self.marked(numbers)) as pieces:
            for rows, marked in pieces:
                gone = marked[:, None] & self.known.drops
                yield replace(rows, numbers=np.where(gone, np.float32(np.nan), rows.numbers))


def _each(texts: Texts, right: Callable[[str], bool]) -> np.ndarray:
    """Whether the text of each row is right, bool [t]."""
    return np.array([right(word) for word in texts.words], bool)[texts.codes]


@dataclass
class Told:
    """What all rows tell of a quantity.

    sensors: those that have a reading.  largest: of the readings.  readings: how many there are, with those that the
    source marks; marked: how many it marks.
    """

    sensors: set[str] = field(default_factory=set)
    largest: float = 0.0
    readings: int = 0
    marked: int = 0


def _told(sheets: Sequence[Rows]) -> defaultdict[str, Told]:
    """What all rows tell of each quantity."""
    told = defaultdict[str, Told](Told)
    for sheet in sheets:
        with closing(sheet.marked(sheet.values)) as pieces:
            for rows, marked in pieces:
                for column, numbers in zip(sheet.values, rows.numbers.T, strict=True):
                    known, found = np.isfinite(numbers), told[sheet.quantity(column) or ""]
                    read = known & ~(marked & sheet.known.drops)
                    found.sensors.update(rows.texts[1][read].words)
                    found.largest = max(found.largest, float(numbers.max(initial=0.0, where=read)))
                    found.readings += int(known.sum())
                    found.marked += int((known & marked).sum())
    return told


def _recognise(known: KnownTable, head: FileHead) -> str | None:
    found = list[Rows]()
    with suppress(SocialxError, OSError):
        path = known.file(head.path)
        for each in files_of(head) if path == head.path else [path]:
            with suppress(SocialxError, OSError):
                found += filter(None, [known.rows_of(head_in(head, each))])
    if not found:
        return None
    names = found[0].names
    what = f"rows without a header, {len(names)} columns" if known.header else f"the columns {', '.join(names)}"
    return what + (f", {len(found)} files" if len(found) > 1 else "")


def _needs(known: KnownTable, path: Path) -> tuple[str, ...]:
    """A channel, where there are several and not one of speeds; the city, where those of the first row and last differ.

    A packed file does not say its cities.
    """
    head = read_head(known.file(path))
    if not (rows := known.rows_of(head)):
        return ()
    said = [rows.quantity(column) for column in rows.values]
    channel = () if len(said) == 1 or said.count(SPEED) == 1 else ("channel",)
    if not known.city or head.first.startswith((GZIP, ZIP)):
        return channel
    with path.open("rb") as file:
        file.seek(-min(END_BYTES, path.stat().st_size), os.SEEK_END)
        last = file.read().decode("utf-8", "replace").rstrip().rpartition("\n")[2]
    ends = [cells_of(line, ",") for line in (*[line for _, line in head.lines[1:2]], last)]
    place = rows.names.index(known.city)
    return (*channel, "city") if len({cells[place] for cells in ends if len(cells) > place}) > 1 else channel


def _read(known: KnownTable, request: ConvertOptions) -> Contents:
    """The sensors that have a reading; a first walk over all rows tells which."""
    refuse_zone(request, known.zone)
    where, sheets, notes = request.data, _files(known, request), list[str]()
    if known.city:
        request = replace(request, city=_of_city(sheets, request))
        sheets = [replace(sheet, city=str(request.city)) for sheet in sheets]
        notes += [f"{where}: the detectors of {request.city} are read"]
    told = _told(sheets)
    if request.channel is None and known.instead and not told[SPEED].sensors:
        request = replace(request, channel=known.instead)
        notes += [f"{where}: no row has a speed: its {known.instead} is read"]
    largest = told["occupancy"].largest
    if no_share := "share" in known.readings.values() and largest > 1:
        sheets = [replace(each, units=tuple("" if unit == "share" else unit for unit in each.units)) for each in sheets]
    by_path: dict[Path, list[Sheet]] = {sheet.path: [sheet] for sheet in sheets}  # other files may hold positions
    request = replace(request, time_format=known.form or request.time_format)
    contents = read_tables(request, lambda head, _: by_path.get(head.path, []))
    if known.step_s and contents.times is not None:
        step = common_step(contents.times)
        if step not in (0, known.step_s):
            raise SocialxError(where, f"its rows are {step // 60} min apart, not {known.step_s // 60}", known.advice)
    if no_share and "occupancy" in (contents.feature, *contents.others):
        notes += [f"{where}: occupancies up to {largest:g}, which are no parts of 1: their unit is left open"]
    if odd := [vdid for vdid in contents.ids or () if _stored(vdid) != vdid]:
        notes += [f"{where}: {counted(len(odd), 'id')} with a space or / ({sample(odd)}): written with _"]
    contents = replace(contents, notes=(*notes, *contents.notes), stored=_stored)
    return _reporting(replace(contents, timezone=known.zone or contents.timezone), told, where, known.marked)


def refuse_zone(request: ConvertOptions, zone: str) -> None:
    """Raise where a user says another zone than that of the published times."""
    if zone and request.timezone not in (None, zone):
        raise SettingsError(Argument("timezone", request.timezone), f"its times are written in {zone}", "drop it")


def _files(known: KnownTable, request: ConvertOptions) -> list[Rows]:
    """The files of the table; refuses others, but for positions beside them."""
    heads, found = (request.head, *map(read_head, request.more)), list[Rows]()
    paths = [(path, head) for head in heads for path in files_of(head)]
    for path, around in paths:
        head = head_in(around, path)
        rows = known.rows_of(head)
        if rows is None and not (len(paths) > 1 and are_locations(path)):
            first = f"line {head.lines[0][0]} is {head.lines[0][1][:60]!a}" if head.lines else f"a {head.kind}"
            raise SocialxError(path, f"no rows of {known.name}, {first}", known.advice)
        if rows and found and rows.common != found[0].common:
            alike = f"its {known.alike} is {rows.common}, and that of {found[0].path} is {found[0].common}"
            raise SocialxError(path, alike, f"convert the files of each {known.alike} alone")
        found += [rows] if rows else []
    return found


def _of_city(sheets: Sequence[Rows], request: ConvertOptions) -> str:
    """The city that is read: the only one of all rows, or the one that the user names."""
    found = dict[str, None]()
    for sheet in sheets:
        with closing(Sheet.rows(sheet, (sheet.names.index(sheet.known.city),))) as pieces:
            for piece in pieces:
                found.update(dict.fromkeys(piece.texts[0].words))
    if not (cities := [*found]):
        raise SocialxError(request.data, "no row after line 1", "use a file with rows")
    wanted, choose = request.city, Argument("city", cities[0])
    known = [city for city in cities if wanted is None or city.lower() == wanted.lower()]
    listed = f"{len(cities)} cities ({sample(cities, FEW)})"
    if wanted is not None and not known:
        raise SettingsError(Argument("city", wanted), f"no city of {request.data}, which has {listed}", choose)
    if len(known) > 1:
        raise SocialxError(request.data, f"it has the detectors of {listed}", f"choose one of them: {choose}")
    return known[0]


def _stored(vdid: str) -> str:
    """An id without the signs that no file of ours has in one."""
    return vdid.replace(" ", "_").replace("/", "_")


def _reporting(contents: Contents, told: defaultdict[str, Told], where: Path, what: str) -> Contents:
    """The contents without the sensors that have no reading, with a note on these; refuses what has none at all.

    where: what the user named.  what: is true of the readings that the source marks, which a note counts.
    """
    features, ids = (contents.feature, *contents.others), contents.ids or ()
    typed = {feature: name for name, feature in QUANTITIES.items()}
    names, read = " and ".join(typed[each] for each in features), [told[each] for each in features]
    known = set().union(*(each.sensors for each in read))
    if not known:
        others = [typed[feature] for feature, each in told.items() if each.sensors and feature in typed]
        remedy = str(Argument("channel", others[0])) if others else "use a file with readings"
        raise SocialxError(where, f"no reading of {names} of its {len(ids)} sensors", remedy)
    notes = list(contents.notes)
    if count := sum(each.marked for each in read):
        every = sum(each.readings for each in read)
        notes.append(f"{where}: {count:,} of {every:,} readings ({count / every:.1%}) are {what}")
    if silent := [vdid for vdid in ids if vdid not in known]:
        found = f"{len(silent)} of {len(ids)} sensors have no reading of {names} ({sample(silent)})"
        notes.append(f"{where}: {found}: left out")
    return _kept(replace(contents, notes=tuple(notes)), [vdid for vdid in ids if vdid in known])


def _kept(contents: Contents, kept: Sequence[str]) -> Contents:
    """The contents of these sensors alone, in this order."""
    place = {vdid: column for column, vdid in enumerate(contents.ids or ())}
    columns = [place[vdid] for vdid in kept]

    def blocks() -> Generator[Block, None, None]:
        with closing(contents.blocks) as every:
            for block in every:
                yield replace(block, speeds=block.speeds[:, columns])

    return replace(contents, ids=tuple(kept), sensors=len(kept), blocks=blocks())


STATION = re.compile(
    r"[0-9]{2}/[0-9]{2}/[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]+,[0-9]{1,2},[^,]*,[NSEW]?,[A-Z]{2},.*"
)
STATION_COLUMNS = (
    *("Timestamp", "Station", "district", "Freeway #", "Direction", "Lane Type", "Station Length", "Samples"),
    *("% Observed", "Total Flow [veh/5min]", "Avg Occupancy [share]", "Avg Speed [mph]"),
)
LANE_COLUMNS = 5  # samples, flow, occupancy, speed, observed


def _stations(head: FileHead) -> tuple[str, ...]:
    """The columns of stations of PeMS, and behind them five for each lane."""
    first = head.lines[0][1].strip() if head.lines else ""
    behind = len(cells_of(first, ",")) - len(STATION_COLUMNS)
    right = STATION.fullmatch(first) and behind > 0 and behind % LANE_COLUMNS == 0
    return (*STATION_COLUMNS, *[""] * behind) if right else ()


def _dyna(path: Path) -> Path:
    """The .dyna file that a user means with it, with the .geo file beside it, or with their folder."""
    found = sorted(path.glob(f"*{DYNA}")) if path.is_dir() else [path]
    if len(found) > 1:
        names = sample([each.name for each in found])
        raise SocialxError(path, f"a folder with {len(found)} files {DYNA} ({names})", "name one of them")
    if not found or found[0].suffix not in (GEO, DYNA):
        raise SocialxError(path, f"neither a file {GEO} or {DYNA} nor a folder with a file {DYNA}", LIBCITY)
    first_bytes(found[0].with_suffix(GEO), LIBCITY)  # which is there
    return found[0].with_suffix(DYNA)


def _geo(path: Path) -> dict[int | str, Location]:
    """The sensors in the order of their file, by ``match_key``; one at 0, 0 or ``[]`` has no known position."""
    first, needed = next(iter(read_head(path, LIBCITY).lines), (1, "")), ("geo_id", "type", "coordinates")
    names = tuple(cells_of(first[1], ","))
    if not {*needed} <= {*names}:
        found = f"line {first[0]} is {first[1][:60]!a}, not columns with {', '.join(needed)}"
        raise SocialxError(path, found, LIBCITY)
    sensors = dict[int | str, Location]()
    with closing(TextColumns(path, names, tuple(map(names.index, needed)), (), begin=first[0]).read()) as pieces:
        for piece in pieces:
            for row, (vdid, kind, text) in enumerate(zip(*(each.cells() for each in piece.texts), strict=True)):
                try:
                    longitude, latitude = map(float, json.loads(text) or (0, 0))
                except (ValueError, TypeError, RecursionError):
                    longitude = latitude = math.nan
                wrong = {
                    f"type {kind[:40]!a}, not Point": kind != "Point",
                    f"geo_id {vdid[:40]!a}, empty or for a second time": not vdid or match_key(vdid) in sensors,
                    f"coordinates {text[:40]!a}, not [longitude, latitude]": not valid_degrees(latitude, longitude),
                }
                if what := next((what for what, is_so in wrong.items() if is_so), None):
                    raise SocialxError(path, f"{piece.place(row)} has the {what}", "correct it")
                sensors[match_key(vdid)] = Location(vdid, latitude, longitude, math.nan, math.nan, "")
    if not sensors:
        raise SocialxError(path, "it has no sensors", LIBCITY)
    return sensors


def _libcity(known: KnownTable, request: ConvertOptions) -> Contents:
    """The readings of NAME.dyna of the sensors of NAME.geo, in the order of that."""
    dyna = known.file(request.data)
    geo, table = dyna.with_suffix(GEO), replace(request, data=dyna, meta_csv=None, sensor_column=(known.sensor,))
    places = _geo(geo)
    ids = {key: place.sensor_id for key, place in places.items()}
    [rows] = [replace(rows, listed=ids) for rows in _files(known, table)]
    ways, notes = candidates(rows.first.removesuffix("Z")), list[Message | str]()
    if rows.first.endswith("Z") and len(ways) == 1 and request.time_format is None:
        table = replace(table, time_format=f"{ways[0].form}Z")
        notes += [f"{dyna}: its times end with Z, which LibCity writes after wall times: taken as those"]
    contents = read_tables(table, lambda *_: [rows])
    notes += contents.notes
    present = {*(contents.ids or ())}
    if silent := [vdid for vdid in ids.values() if vdid not in present]:
        found = f"{len(silent)} of {len(ids)} sensors have no rows in {dyna.name} ({sample(silent)})"
        notes += [f"{geo}: {found}: they are left out"]
    placed = {key: place for key, place in places.items() if plausible_location(place.latitude, place.longitude)}
    contents = replace(_kept(contents, [vdid for vdid in ids.values() if vdid in present]), paths=(geo, dyna))
    return replace(contents, locations=(placed or None) if request.meta_csv is None else None, notes=tuple(notes))


LIBCITY = "use the folder of NAME.geo and NAME.dyna as LibCity publishes it"
TABLES = (
    KnownTable(
        "libcity",
        "LibCity's NAME.geo and NAME.dyna",
        LIBCITY,
        time="time",
        sensor="entity_id",
        alike="type",
        text="state",
        file=_dyna,
        read=_libcity,
    ),
    KnownTable(
        "pems-station",
        "Station 5-Minute files of Caltrans PeMS, a day each: d07_text_station_5min_2024_01_31.txt.gz",
        "name files such as d07_text_station_5min_2024_01_31.txt.gz",
        time="Timestamp",
        sensor="Station",
        readings={"Avg Speed [mph]": "", "Total Flow [veh/5min]": "", "Avg Occupancy [share]": ""},
        form="%m/%d/%Y %H:%M:%S",
        zone="America/Los_Angeles",
        step_s=300,
        alike="district",
        mark="% Observed",
        marks=0,
        marked="imputed by PeMS, as no lane was observed: they are kept",
        header=_stations,
    ),
    KnownTable(
        "utd19",
        "utd19_u.csv of UTD19 by ETH Zurich, the detectors of one city",
        "use utd19_u.csv as published, with day, interval, detid, flow, occ, error, city and speed",
        time="day",
        sensor="detid",
        readings={"flow": "veh/h", "occ": "share", "speed": "km/h"},
        seconds="interval",
        form=ISO,
        city="city",
        mark="error",
        may_be=(0, 1),
        marked="marked as errors: no readings",
        drops=True,
        instead="flow",
    ),
)
FORMATS = tuple(table.format() for table in TABLES)
