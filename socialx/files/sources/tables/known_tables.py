"""Read published tables with a row per time and sensor and known columns: a row of ``TABLES`` for each.

t rows per piece, N sensors.
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
from socialx.files.sources.tables.reader import are_locations, read_tables, table_files
from socialx.files.sources.tables.sheets import Sheet, split_cells
from socialx.files.sources.tables.text_cells import NumberFormat, Piece, TextColumns, Texts
from socialx.files.sources.tables.time_texts import UNKNOWN, Times, candidates
from socialx.files.store.head import GZIP, ZIP, FileHead, first_bytes, head_in, read_head
from socialx.files.store.ids import match_key
from socialx.files.store.layout import Block
from socialx.files.store.quantities import QUANTITIES, SPEED
from socialx.files.store.time_axis import as_text, common_step

ISO = "%Y-%m-%d %H:%M:%S"
FEW = 6  # cities that an error names
END_BYTES, CORRECT = 1 << 12, "correct the cell"
GEO, DYNA = ".geo", ".dyna"  # of LibCity


@dataclass(frozen=True)
class KnownTable:
    """A published table; columns have the names in the header.

    advice: the remedy for another file.  readings: the observation columns, with units or "" where the name states the
    unit; empty: all columns after the sensor.  seconds: the column of day seconds, where ``time`` holds only the day.
    form: the strptime time format; "": as in the first time.  zone: the time zone.  step_s: seconds between rows.
    alike: a column with one text in all rows: ``text`` or the first text.  city: a city column; one city is read.
    mark: a numeric column in which ``marks`` marks a row; may_be: all valid numbers.  marked: the meaning of a mark;
    drops: marked observations are missing.  instead: the channel to read where every speed is missing.  header: returns
    the columns for a file without a header.  file: returns the table path for the path given by the user.  read: reads
    the table, in place of the common reader.
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

    def sheet(self, head: FileHead) -> PublishedSheet | None:
        """Return the sheet, with columns and number format, of a file that has this table's columns; else ``None``."""
        names = self.header(head) if self.header else tuple(split_cells(head.lines[0][1], ",")) if head.lines else ()
        needed = {self.time, self.sensor, self.seconds, self.city, self.mark, *self.readings} - {""}
        if not needed <= {*names} or (len({*names}) < len(names) and not self.header):
            return None
        time, sensor = names.index(self.time), names.index(self.sensor)
        values = tuple(map(names.index, self.readings or names[sensor + 1 :]))
        if not values:
            return None
        begin = 0 if self.header else head.lines[0][0]
        cells = next((split_cells(line, ",") for number, line in head.lines if number > begin), [])
        first = dict(zip(names, cells, strict=False))
        return PublishedSheet(
            (time,),
            (sensor,),
            path=head.path,
            kind="text",
            names=names,
            values=values,
            encoding=head.encoding,
            begin=begin,
            table=self,
            units=tuple(self.readings.get(name, "") for name in names),
            signs=NumberFormat(decimals=True),  # a point separates decimals
            first="" if self.form else first.get(self.time, ""),
            common=self.text or first.get(self.alike, ""),
        )

    def format(self) -> Format:
        """Return the entry for the list of formats: how to recognise and read this table and which options apply."""
        takes = ["channel", *([] if self.read else ["more"]), *(["city"] if self.city else [])]
        takes += [] if self.form else ["quantity", "time_format"]
        ways = partial(_recognise, self), partial(self.read or _read, self)
        return Format(self.name, self.title, *ways, takes=frozenset(takes), needs=partial(_needs, self))


@dataclass(frozen=True, kw_only=True)
class PublishedSheet(Sheet):
    """A published table in a file.

    common: the text shared by all rows.  city: the selected city.  listed: the sensor ids in the accompanying file, by
    ``match_key``.
    """

    table: KnownTable
    common: str = ""
    city: str = ""
    listed: Mapping[int | str, str] = field(default_factory=dict)

    def marked_rows(self, values: tuple[int, ...]) -> Generator[tuple[Piece, np.ndarray], None, None]:
        """Yield pieces with times, sensors, columns ``values``, and the mask bool [t] of rows marked, as for errors."""
        index, table = self.names.index, self.table
        texts = [name for name in (table.time, table.sensor, table.city, table.alike) if name and name in self.names]
        numbers = (*map(index, filter(None, (table.seconds, table.mark))), *values)
        with closing(super().rows(tuple(map(index, texts)), numbers)) as pieces:
            for piece in pieces:
                selected = self._selected_rows(piece, dict(zip(texts, piece.texts, strict=True)))
                rows, marked = self._split_marks(self._with_times(selected))
                if len(marked):
                    yield rows, marked

    def _selected_rows(self, piece: Piece, texts: Mapping[str, Texts]) -> Piece:
        """Return the selected city's rows, with times and listed sensors; ``texts``: the text columns by name. Raises
        SocialxError for a wrong text in ``alike``, for an empty id, and for an id that the accompanying file lacks.
        """
        table, times, sensors = self.table, texts[self.table.time], texts[self.table.sensor]
        if alike := texts.get(table.alike):
            remedy = f"use a file of one {table.alike}"
            self._check(piece, table.alike, alike, _rows_where(alike, self.common.__eq__), f"not {self.common}", remedy)
        if table.city:
            kept = np.flatnonzero(_rows_where(texts[table.city], self.city.__eq__))
            times, sensors = times[kept], sensors[kept]
            piece = replace(piece, numbers=piece.numbers[kept], kept=kept)
        self._check(piece, table.sensor, sensors, _rows_where(sensors, bool), "no id")
        if self.listed:
            listed = _rows_where(sensors, lambda vdid: match_key(vdid) in self.listed)
            self._check(piece, table.sensor, sensors, listed, f"which {self.path.with_suffix(GEO).name} lacks")
            spelt = Texts.from_cells([self.listed[match_key(vdid)] for vdid in sensors.words])
            sensors = Texts(spelt.words, spelt.codes[sensors.codes])
        return replace(piece, texts=[times, sensors])

    def _with_times(self, rows: Piece) -> Piece:
        """Return the rows with complete times: date and, from day seconds in the first number column, clock time."""
        table, (times, sensors) = self.table, rows.texts
        if table.seconds:
            seconds = rows.numbers[:, 0]
            whole = (seconds >= 0) & (seconds < DAY_S) & (seconds == np.floor(seconds))
            self._check(rows, table.seconds, seconds, whole, "not whole seconds of a day")
            different, codes = np.unique(seconds, return_inverse=True)
            clocks = Texts([as_text(int(second)).split()[1] for second in different], codes)
            times = Texts.join_columns([times, clocks], " ".join)
            rows = replace(rows, texts=[times, sensors], numbers=rows.numbers[:, 1:])
        if table.form:
            right = Times.from_format(table.form).seconds(times) != UNKNOWN
            self._check(rows, "time", times, right, f"not written as {table.form}")
        return rows

    def _split_marks(self, rows: Piece) -> tuple[Piece, np.ndarray]:
        """Return the rows without marks, the first number column, and the mask bool [t] of marked rows."""
        if not self.table.mark:
            return rows, np.zeros(len(rows.numbers), bool)
        marks, may_be = rows.numbers[:, 0], self.table.may_be
        if may_be:
            is_valid, either = np.isin(marks, may_be) | np.isnan(marks), ", ".join(map("{:g}".format, may_be))
            self._check(rows, self.table.mark, marks, is_valid, f"not {either} or empty")
        return replace(rows, numbers=rows.numbers[:, 1:]), marks == self.table.marks

    def _check(
        self, rows: Piece, name: str, cells: Texts | np.ndarray, right: np.ndarray, problem: str, remedy: str = ""
    ) -> None:
        """Raise for the first of ``rows`` where ``right``, bool [t], is false. name, cells: the column's name and
        cells. problem: why the cell is wrong, as in "not 0, 1 or empty". remedy: the advice; "": to correct the cell.
        """
        if not right.all():
            row = int(right.argmin())
            cell = f"{cells[row]:g}" if isinstance(cells, np.ndarray) else ascii(cells.words[cells.codes[row]][:40])
            raise SocialxError(self.path, f"{rows.row_name(row)} has the {name} {cell}, {problem}", remedy or CORRECT)

    def rows(self, texts: tuple[int, ...], numbers: tuple[int, ...] = ()) -> Generator[Piece, None, None]:
        """Yield pieces with times, sensors and columns ``numbers``, NaN if a mark drops a row; ``texts`` is unused."""
        with closing(self.marked_rows(numbers)) as pieces:
            for rows, marked in pieces:
                gone = marked[:, None] & self.table.drops
                yield replace(rows, numbers=np.where(gone, np.float32(np.nan), rows.numbers))


def _rows_where(texts: Texts, right: Callable[[str], bool]) -> np.ndarray:
    """Return the mask of rows for which ``right`` accepts the text, bool [t]; each distinct text is asked once."""
    return np.array([right(word) for word in texts.words], bool)[texts.codes]


@dataclass
class Totals:
    """The totals for one quantity over all rows.

    sensors: the sensors with observations. largest: the largest observation. readings: the observation count, marked
    observations included; marked: the marked count.
    """

    sensors: set[str] = field(default_factory=set)
    largest: float = 0.0
    readings: int = 0
    marked: int = 0


def _totals(sheets: Sequence[PublishedSheet]) -> defaultdict[str, Totals]:
    """Return the totals by quantity over all rows; the key is "" for columns without a quantity."""
    totals = defaultdict[str, Totals](Totals)
    for sheet in sheets:
        with closing(sheet.marked_rows(sheet.values)) as pieces:
            for rows, marked in pieces:
                for column, numbers in zip(sheet.values, rows.numbers.T, strict=True):
                    finite, total = np.isfinite(numbers), totals[sheet.quantity(column) or ""]
                    read = finite & ~(marked & sheet.table.drops)
                    total.sensors.update(rows.texts[1][read].words)
                    total.largest = max(total.largest, float(numbers.max(initial=0.0, where=read)))
                    total.readings += int(finite.sum())
                    total.marked += int((finite & marked).sum())
    return totals


def _recognise(table: KnownTable, head: FileHead) -> str | None:
    """Return a description of a file, folder or zip that has the columns of ``table``; None for any other."""
    sheets = list[PublishedSheet]()
    with suppress(SocialxError, OSError):
        path = table.file(head.path)
        for file in table_files(head) if path == head.path else [path]:
            with suppress(SocialxError, OSError):
                sheets += filter(None, [table.sheet(head_in(head, file))])
    if not sheets:
        return None
    names = sheets[0].names
    text = f"rows without a header, {len(names)} columns" if table.header else f"the columns {', '.join(names)}"
    return text + (f", {len(sheets)} files" if len(sheets) > 1 else "")


def _needs(table: KnownTable, path: Path) -> tuple[str, ...]:
    """Return the options that a user must give: "channel" and "city", either or none. A channel is needed for several
    quantities without a unique speed; a city where the first and last row differ in city. Cities in a packed file stay
    unknown.
    """
    head = read_head(table.file(path))
    if not (rows := table.sheet(head)):
        return ()
    quantities = [rows.quantity(column) for column in rows.values]
    channel = () if len(quantities) == 1 or quantities.count(SPEED) == 1 else ("channel",)
    if not table.city or head.first.startswith((GZIP, ZIP)):
        return channel
    with path.open("rb") as file:
        file.seek(-min(END_BYTES, path.stat().st_size), os.SEEK_END)
        last = file.read().decode("utf-8", "replace").rstrip().rpartition("\n")[2]
    ends = [split_cells(line, ",") for line in (*[line for _, line in head.lines[1:2]], last)]
    city = rows.names.index(table.city)
    return (*channel, "city") if len({cells[city] for cells in ends if len(cells) > city}) > 1 else channel


def _read(table: KnownTable, request: ConvertOptions) -> Contents:
    """Read a known table as ``request`` asks; a first pass over all rows finds the sensors with observations."""
    refuse_zone(request, table.zone)
    where, sheets, notes = request.data, _files(table, request), list[Message | str]()
    if table.city:
        request = replace(request, city=_choose_city(sheets, request))
        sheets = [replace(sheet, city=str(request.city)) for sheet in sheets]
        notes += [f"{where}: the detectors of {request.city} are read"]
    totals = _totals(sheets)
    if request.channel is None and table.instead and not totals[SPEED].sensors:
        request = replace(request, channel=table.instead)
        notes += [f"{where}: all speeds are missing, so the {table.instead} is read"]
    largest = totals["occupancy"].largest
    if no_share := "share" in table.readings.values() and largest > 1:
        sheets = [replace(s, units=tuple("" if unit == "share" else unit for unit in s.units)) for s in sheets]
    by_path: dict[Path, list[Sheet]] = {sheet.path: [sheet] for sheet in sheets}  # further files may hold locations
    request = replace(request, time_format=table.form or request.time_format)
    contents = read_tables(request, lambda head, _: by_path.get(head.path, []))
    if table.step_s and contents.times is not None:
        step = common_step(contents.times)
        if step not in (0, table.step_s):
            raise SocialxError(where, f"the rows are {step // 60} min apart, not {table.step_s // 60}", table.advice)
    if no_share and "occupancy" in (contents.feature, *contents.others):
        odd_unit = f"occupancies reach {largest:g}, above 1, so their unit is left open"
        notes += [Message(where, odd_unit)]
    if odd := [vdid for vdid in contents.ids or () if _storable(vdid) != vdid]:
        notes += [f"{where}: {counted(len(odd), 'id has', 'ids have')} a space or / ({sample(odd)}), written as _"]
    contents = replace(contents, notes=(*notes, *contents.notes), stored=_storable)
    return _without_silent(replace(contents, timezone=table.zone or contents.timezone), totals, where, table.marked)


def refuse_zone(request: ConvertOptions, zone: str) -> None:
    """Raise where the user gives a zone other than the published ``zone``; "" allows any."""
    if zone and request.timezone not in (None, zone):
        raise SettingsError(
            "", f"{Argument('timezone', request.timezone)} is wrong: the times are in {zone}", "drop it"
        )


def _files(table: KnownTable, request: ConvertOptions) -> list[PublishedSheet]:
    """Return the sheets of ``table`` in the user's files; raise for other files, except locations next to a table."""
    heads, sheets = (request.head, *map(read_head, request.more)), list[PublishedSheet]()
    paths = [(path, head) for head in heads for path in table_files(head)]
    for path, container in paths:
        head = head_in(container, path)
        rows = table.sheet(head)
        if rows is None and not (len(paths) > 1 and are_locations(path)):
            first = f"line {head.lines[0][0]} is {head.lines[0][1][:60]!a}" if head.lines else f"a {head.kind}"
            raise SocialxError(path, f"the file holds no rows of {table.name} ({first})", table.advice)
        if rows and sheets and rows.common != sheets[0].common:
            alike = f"the {table.alike} is {rows.common}, but {sheets[0].common} in {sheets[0].path}"
            raise SocialxError(path, alike, f"convert the files of each {table.alike} alone")
        sheets += [rows] if rows else []
    return sheets


def _choose_city(sheets: Sequence[PublishedSheet], request: ConvertOptions) -> str:
    """Return the selected city: the only city in all rows, or the city named by the user."""
    names = dict[str, None]()
    for sheet in sheets:
        with closing(Sheet.rows(sheet, (sheet.names.index(sheet.table.city),))) as pieces:
            for piece in pieces:
                names.update(dict.fromkeys(piece.texts[0].words))
    if not (cities := [*names]):
        raise SocialxError(request.data, "the file ends after line 1", "use a file with rows")
    wanted, choose = request.city, Argument("city", cities[0])
    matches = [city for city in cities if wanted is None or city.lower() == wanted.lower()]
    listed = f"{len(cities)} cities ({sample(cities, FEW)})"
    if wanted is not None and not matches:
        raise SettingsError("", f"{Argument('city', wanted)} is not in {request.data}, which has {listed}", choose)
    if len(matches) > 1:
        raise SocialxError(request.data, f"the file has the detectors of {listed}", f"choose a city: {choose}")
    return matches[0]


def _storable(vdid: str) -> str:
    """Return an id with _ in place of spaces and /, which are forbidden in stored ids."""
    return vdid.replace(" ", "_").replace("/", "_")


def _without_silent(contents: Contents, totals: defaultdict[str, Totals], where: Path, meaning: str) -> Contents:
    """Return the contents without sensors that never observe, with a note; raise if no sensor observes. totals: totals
    by quantity. where: the user's path. meaning: what marked observations are, as in "imputed by PeMS"; for a note.
    """
    features, ids = (contents.feature, *contents.others), contents.ids or ()
    read_frames = {feature: name for name, feature in QUANTITIES.items()}
    names, read = " and ".join(read_frames[feature] for feature in features), [totals[feature] for feature in features]
    sensors = set().union(*(total.sensors for total in read))
    if not sensors:
        others = [read_frames[feature] for feature, total in totals.items() if total.sensors and feature in read_frames]
        remedy = str(Argument("channel", others[0])) if others else "use a file with readings"
        raise SocialxError(where, f"all {len(ids)} sensors lack observations of {names}", remedy)
    notes = list(contents.notes)
    if count := sum(total.marked for total in read):
        every = sum(total.readings for total in read)
        notes.append(Message(where, f"{count:,} of {every:,} readings ({count / every:.1%}) are {meaning}"))
    if silent := [vdid for vdid in ids if vdid not in sensors]:
        listed = f"{len(silent)} of {len(ids)} sensors lack observations of {names} and are left out"
        notes.append(Message(where, f"{listed} ({sample(silent)})"))
    return _select_sensors(replace(contents, notes=tuple(notes)), [vdid for vdid in ids if vdid in sensors])


def _select_sensors(contents: Contents, vdids: Sequence[str]) -> Contents:
    """Return the contents for the sensors ``vdids``, in this order."""
    column_by_id = {vdid: column for column, vdid in enumerate(contents.ids or ())}
    columns = [column_by_id[vdid] for vdid in vdids]

    def blocks() -> Generator[Block, None, None]:
        with closing(contents.blocks) as every:
            for block in every:
                yield replace(block, speeds=block.speeds[:, columns])

    return replace(contents, ids=tuple(vdids), sensors=len(vdids), blocks=blocks())


STATION = re.compile(
    r"[0-9]{2}/[0-9]{2}/[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]+,[0-9]{1,2},[^,]*,[NSEW]?,[A-Z]{2},.*"
)
STATION_COLUMNS = (
    *("Timestamp", "Station", "district", "Freeway #", "Direction", "Lane Type", "Station Length", "Samples"),
    *("% Observed", "Total Flow [veh/5min]", "Avg Occupancy [share]", "Avg Speed [mph]"),
)
LANE_COLUMNS = 5  # samples, flow, occupancy, speed, observed


def _station_columns(head: FileHead) -> tuple[str, ...]:
    """Return the PeMS station columns and five columns per lane; () where line 1 is no PeMS station row."""
    first = head.lines[0][1].strip() if head.lines else ""
    behind = len(split_cells(first, ",")) - len(STATION_COLUMNS)
    right = STATION.fullmatch(first) and behind > 0 and behind % LANE_COLUMNS == 0
    return (*STATION_COLUMNS, *[""] * behind) if right else ()


def _dyna_path(path: Path) -> Path:
    """Return the path of LibCity's .dyna file, given .dyna, .geo or their folder; raise for none and for several."""
    paths = sorted(path.glob(f"*{DYNA}")) if path.is_dir() else [path]
    if len(paths) > 1:
        names = sample([file.name for file in paths])
        raise SocialxError(path, f"the folder holds {len(paths)} files {DYNA} ({names})", "name one of them")
    if not paths or paths[0].suffix not in (GEO, DYNA):
        raise SocialxError(path, f"the path is neither a file {GEO} or {DYNA} nor a folder with a file {DYNA}", LIBCITY)
    first_bytes(paths[0].with_suffix(GEO), LIBCITY)  # which is there
    return paths[0].with_suffix(DYNA)


def _read_geo(path: Path) -> dict[int | str, Location]:
    """Return the sensor locations in a .geo file by ``match_key``, in file order; 0, 0 or ``[]`` means unknown."""
    first, needed = next(iter(read_head(path, LIBCITY).lines), (1, "")), ("geo_id", "type", "coordinates")
    names = tuple(split_cells(first[1], ","))
    if not {*needed} <= {*names}:
        problem = f"line {first[0]} is {first[1][:60]!a}, not columns with {', '.join(needed)}"
        raise SocialxError(path, problem, LIBCITY)
    sensors = dict[int | str, Location]()
    with closing(TextColumns(path, names, tuple(map(names.index, needed)), (), begin=first[0]).read()) as pieces:
        for piece in pieces:
            for row, (vdid, kind, text) in enumerate(zip(*(column.cells() for column in piece.texts), strict=True)):
                try:
                    longitude, latitude = map(float, json.loads(text) or (0, 0))
                except (ValueError, TypeError, RecursionError):
                    longitude = latitude = math.nan
                wrong = {
                    f"type {kind[:40]!a}, not Point": kind != "Point",
                    f"geo_id {vdid[:40]!a}, empty or for a second time": not vdid or match_key(vdid) in sensors,
                    f"coordinates {text[:40]!a}, not [longitude, latitude]": not valid_degrees(latitude, longitude),
                }
                if problems := [problem for problem, is_wrong in wrong.items() if is_wrong]:
                    raise SocialxError(path, f"{piece.row_name(row)} has the {problems[0]}", CORRECT)
                sensors[match_key(vdid)] = Location(vdid, latitude, longitude, math.nan, math.nan, "")
    if not sensors:
        raise SocialxError(path, "the file holds no sensors", LIBCITY)
    return sensors


def _read_libcity(table: KnownTable, request: ConvertOptions) -> Contents:
    """Read the observations in NAME.dyna for the sensors in NAME.geo, ordered like NAME.geo."""
    dyna = table.file(request.data)
    geo, dyna_request = dyna.with_suffix(GEO), replace(request, data=dyna, meta_csv=None, sensor_column=(table.sensor,))
    locations = _read_geo(geo)
    ids = {key: location.sensor_id for key, location in locations.items()}
    [rows] = [replace(rows, listed=ids) for rows in _files(table, dyna_request)]
    ways, notes = candidates(rows.first.removesuffix("Z")), list[Message | str]()
    if rows.first.endswith("Z") and len(ways) == 1 and request.time_format is None:
        dyna_request = replace(dyna_request, time_format=f"{ways[0].form}Z")
        notes += [f"{dyna}: its times end with Z, which LibCity writes after wall times: taken as those"]
    contents = read_tables(dyna_request, lambda *_: [rows])
    notes += contents.notes
    present = {*(contents.ids or ())}
    if silent := [vdid for vdid in ids.values() if vdid not in present]:
        listed = f"{len(silent)} of {len(ids)} sensors lack rows in {dyna.name} and are left out"
        notes += [Message(geo, f"{listed} ({sample(silent)})")]
    placed = {
        key: location
        for key, location in locations.items()
        if plausible_location(location.latitude, location.longitude)
    }
    contents = replace(_select_sensors(contents, [vdid for vdid in ids.values() if vdid in present]), paths=(geo, dyna))
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
        file=_dyna_path,
        read=_read_libcity,
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
        header=_station_columns,
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
