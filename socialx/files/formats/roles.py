"""What each column of a table is: a time, a sensor, a lane, readings, or left out.

What the user says comes first, then what the rows show, and the names of the columns last.  Where two answers are
possible there is none: the table is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np

from socialx.errors import Argument, sample
from socialx.files.convert_options import Request
from socialx.files.formats.columns import LANES, OTHER, plain, quantity_of
from socialx.files.formats.melt import Melt, is_label, lanes_behind, times_in_names, times_of_day
from socialx.files.formats.moments import DATE, EPOCH, MOMENT, ONLY_CLOCK, ONLY_DATE, Times, is_time
from socialx.files.formats.text_cells import NO_READING, decimal_sign, has_number, is_below, number_in

WIDE = 3  # columns of numbers beside a column of texts that make it a table with a column per sensor
MANY = 100  # columns, from which on a table has no column of sensors: only its first rows are looked at
SUFFIX = r"(?:[ _-]?(?:id|name|no|nr|code|number))?"
# Names of a column of sensors in a table that has a row for each reading, in the languages of those who publish them.
SENSORS = re.compile(
    r"(?:id[ _-])?(?:sensor|station|det|detector|vd|vds|device|counter|loop|messstelle|detektor|z(?:ä|ae)hlstelle"
    rf"|messquerschnitt|mq|meetpunt|meetlocatie|punto|estaci[oó]n|aforo|compteur|capteur|boucle){SUFFIX}|vdid|iu_ac",
    re.IGNORECASE,
)
# Those of a column that may number the rows, or name what has several sensors.
MAY_BE_SENSORS = re.compile(rf"(?:segment|link|location|site|road|edge){SUFFIX}|id|name", re.IGNORECASE)
READING = re.compile(r"value|reading|measurement|wert|messwert|data|result", re.IGNORECASE)  # of whatever quantity
PLACES = re.compile(r"(?:lat|lon|lng|latitude|longitude|x|y)", re.IGNORECASE)
POINT = re.compile(r"[\[(]?\s*-?[0-9]{1,3}\.[0-9]+\s*[,; ]\s*-?[0-9]{1,3}\.[0-9]+\s*[\])]?|[{\[(].*|[A-Z]+ ?\(.*")
HOUR = re.compile(r".*(?:hour|stunde|uhrzeit|hora|heure|uur|tijd|time|clock|interval).*|hr|hh|std", re.IGNORECASE)
# Parts of a time, which no sensor is named like.
CALENDAR = re.compile(
    r"hour|hr|hh|stunde|hora|heure|uur|min(?:ute)?"
    r"|(?:hour|day|month|week)[ _-]?of[ _-]?(?:the[ _-]?)?(?:day|week|month|year)|day|dow"
    r"|month|year|week(?:day|end|no|nr)?|season|is[ _-]?(?:weekend|holiday)|holiday|wochentag|wotag|tag|monat|jahr"
    r"|feiertag",
    re.IGNORECASE,
)
# Times of the row rather than of its readings, and those at which an interval ends.
OF_ROW = re.compile(
    r".*(?:upload|creat|updat|modif|receiv|insert|import|ingest|process|stored|exported|publish).*"
    r"|(?:.*[ _-])?(?:end|ending|to|until|till|bis|ende|eind|fin)(?:[ _-].*)?|endtime",
    re.IGNORECASE,
)
SINCE_1970 = re.compile(
    r"ts|data[ _-]?ora|dato|.*(?:time|zeit|epoch|unix|tiempo|temps|date|datum|fecha|hora|horodat|tijd|stamp).*",
    re.IGNORECASE,
)
# Sums and means of the other columns, the weather, and what tells of the readings.
NO_SENSOR = re.compile(
    r"(?:grand[ _-]?)?total|sum(?:me)?|gesamt|average|avg|mean|mittel(?:wert)?|(?:air[ _-]?)?temp(?:erature?)?"
    r"|rain(?:fall)?|precip(?:itation)?|niederschlag|regen|snow(?:fall)?|humidity|wind(?:[ _-]?speed)?|visibility"
    r"|weather|(?:[a-z]+[ _-])?(?:quality|flag|status|valid|error|limit|coverage|reliability)|max[ _-]?speed|vmax"
    r"|(?:(?:n|num|no|number)[ _-]?(?:of[ _-]?)?)?lanes|lane[ _-]?count",
    re.IGNORECASE,
)
ROW_NUMBER = re.compile(
    r"|#|nr|no|num|number|index|idx|row|seq|sequence|serial|lfd(?:[ _-]?nr)?|level_[0-9]|[fgou]id|[gu]uid"
    r"|(?:record|row|object|measurement)(?:[ _-]?(?:id|nr|no|number))?"
    r"|unnamed: [0-9]+",
    re.IGNORECASE,
)
MIDNIGHT = re.compile(rf"{DATE}[ T]0{{1,2}}:00(?::00(?:\.0+)?)?Z?")
SEPARATED = re.compile("[ _.-]")
BEHIND = re.compile(r"[ _.-]*[0-9]+$")  # a number behind a name
LETTER = re.compile(r"([qvb])_[a-z].*", re.IGNORECASE)  # of a quantity before the vehicles that it counts
ASK = "write a row per time and sensor, with a column for each quantity"
APART = 0.9  # of the rows: a column of sensors tells so many apart, with their times
COVERED = 0.5  # of all pairs of a time and a sensor: a table has rows for so many
PROVED = 10  # rows, from which on distinct numbers are those of rows
LONG_ID = 100_000  # a whole number that never changes, and is no reading
SCALES = 20  # of two medians, from which on columns hold no readings of one quantity


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are, by their numbers from 0.

    times: the column of the times, or those of the dates and of the times of day.  sensors: the columns that name the
    sensor of a row, where each row is a reading; lanes: that of the lanes there.  values: the columns of readings.
    one: whether the table is that of one sensor, and its columns are quantities; else, without ``sensors``, each
    column is a sensor.  left: columns that are left out.  decimal: the sign of decimals.  unclear: what was found and
    the remedy, where there are two answers.  melt: columns that become rows.  shares: whether no reading of the rows
    is above 1.
    """

    times: tuple[int, ...]
    sensors: tuple[int, ...] = ()
    lanes: int | None = None
    values: tuple[int, ...] = ()
    one: bool = False
    left: tuple[int, ...] = ()
    decimal: str = "."
    unclear: tuple[str, str] | None = None
    melt: Melt | None = None
    shares: bool = False


Rows = list[list[str]]


def roles_of(
    names: list[str], rows: Rows, separator: str, request: Request, more: Callable[[], Rows] | None = None
) -> Roles | None:
    """The roles of columns with these names and first rows; None where none holds times, or ``names`` is no header.

    more: gives many rows of the table, the first ones among them.
    """
    columns = [[cell for cell in column if cell not in NO_READING] for column in zip(*rows, strict=True)]
    if request.transposed:
        return _of_sensors(names, columns, separator, request)
    times, others = _times_said(names, rows, request), list[tuple[int, ...]]()
    if times is None:
        times, *others = _times(names, columns, rows) or _times(names, columns, rows, mostly=True) or [()]
    if not times or any(map(MOMENT.fullmatch, names)) or any(is_time(names[place]) for place in times):
        return None
    wide = _kept(names, columns, times, request)
    rest = [place for place in wide if not PLACES.fullmatch(names[place])]
    decimal = request.decimal or decimal_sign(separator, [columns[place] for place in rest])
    # A word among numbers is a wrong cell of a column of readings: the reader says where it is.
    texts = [place for place in rest if columns[place] and not has_number(columns[place], decimal)]
    table = _Table(names, rows, times, rest, texts, decimal, request)
    if more is not None and table.may_be_long():
        table = replace(table, rows=max(rows, [cells for cells in more() if len(cells) == len(names)], key=len))
    days = times_of_day(names, [place for place in rest if place not in texts])
    found = _of_days(table, days) if days else _of_rows(table, wide)
    melted = {place for group in found.melt.groups for place in group} if found.melt else set[int]()
    taken = {*found.times, *found.values, *found.sensors, found.lanes, *melted}
    if others:
        found = replace(found, unclear=_which_times(names, [times, *others]))
    return replace(found, left=tuple(sorted({*range(len(names))} - taken))) if found.values else None


def _of_rows(table: _Table, wide: list[int]) -> Roles:
    """The roles of a table with a row for each time, or for each time and sensor.  wide: all columns but the times."""
    rest, texts, found = table.rest, table.texts, Roles(table.times, decimal=table.decimal)
    sensors, unclear = table.sensors()
    lanes = next((place for place in rest if place not in sensors and LANES.fullmatch(table.names[place])), None)
    numbers = {place for place in rest if table.is_row_number(place)}
    values = sorted({*rest} - {*texts, *sensors, lanes} - numbers)
    if unclear:
        return replace(found, values=tuple(values or rest), unclear=unclear)
    if sensors and values:
        values = table.read(values)
        melt = lanes_behind(table.names, values) if lanes is None else None
        if melt:
            return replace(found, sensors=sensors, melt=melt, lanes=melt.label, values=melt.values)
        return replace(found, sensors=sensors, lanes=lanes, values=tuple(values))
    if (one := table.one_sensor(values)) is not None:
        return replace(found, values=tuple(table.read(one)), one=True, unclear=table.words(texts))
    own = {*wide} - table.beside(wide)
    measured = sorted(own - {*texts})
    many = len(measured) >= WIDE
    unclear = (None if many else table.words(texts)) or table.several(sorted(own & {*values}))
    read = tuple(measured if many else sorted(own))
    return replace(found, values=read, unclear=unclear, shares=table.shares(read))


def _of_sensors(names: list[str], columns: Rows, separator: str, request: Request) -> Roles | None:
    """The roles of a table with a row for each sensor, and a column for each time; None for all else.

    The sensors are in the column with the name of one, else in the first that holds no times.
    """
    melt = times_in_names(names)
    others = [place for place, name in enumerate(names) if not is_label(name) and name not in request.drop]
    if melt is None or not others:
        return None
    said = [place for place in others if names[place] in request.sensor_column]
    sensors = tuple(said or [place for place in others if may_be_sensors(names[place])][:1] or others[:1])
    decimal = request.decimal or decimal_sign(separator, [columns[group[0]] for group in melt.groups])
    left = tuple(place for place in others if place not in sensors)
    return Roles((melt.label,), sensors, None, melt.values, left=left, decimal=decimal, melt=melt)


def _of_days(table: _Table, melt: Melt) -> Roles:
    """The roles of a table with a row for each sensor and day, and a column for each time of day."""
    melted = {place for group in melt.groups for place in group}
    table = replace(table, rest=[place for place in table.rest if place not in melted])
    sensors, unclear = table.sensors()
    if not sensors and not unclear and table.repeats():
        found = "a row for each sensor and day, with a column for each time of day"
        unclear = found, f"say which columns name the sensor: {Argument('sensor_column', 'NAME')}"
    left = sorted({*range(len(table.names))} - {*table.times, *sensors, *melted})
    times = (table.times[0], melt.label)
    one = not sensors
    return Roles(times, sensors, None, melt.values, one, tuple(left), decimal=table.decimal, unclear=unclear, melt=melt)


def _kept(names: list[str], columns: list[list[str]], times: tuple[int, ...], request: Request) -> list[int]:
    """The columns beside the times that are neither empty nor dropped, nor a part of a time that nobody asked for."""
    asked = {*request.sensor_column, *(request.channel or "").split(",")}
    kept = []
    for place, name in enumerate(names):
        dropped = bool({name, plain(name)} & {*request.drop})
        empty = not name and not columns[place]
        if (
            place not in times
            and not dropped
            and not empty
            and (name in asked or not _is_calendar(name, columns[place]))
        ):
            kept.append(place)
    return kept


def _times_said(names: list[str], rows: Rows, request: Request) -> tuple[int, ...] | None:
    """The columns of times as the user names them, or the first one or two that are written as the user says.

    None where the user says nothing of them.
    """
    if request.time_column:
        found = [names.index(name) for name in request.time_column if name in names]
        return tuple(found) if len(found) == len(request.time_column) else ()
    if request.time_format is None:
        return None
    times, few = Times.of(request.time_format), [cells for cells in rows[:PROVED] if any(cells)]

    def fits(*places: int) -> bool:
        return bool(few) and times.are([" ".join(cells[place] for place in places) for cells in few])

    single = [(place,) for place in range(len(names)) if fits(place)]
    if single:
        return min(single, key=lambda each: (bool(OF_ROW.fullmatch(names[each[0]])), each))
    filled = [place for place in range(min(len(names), MANY)) if any(letter.isdigit() for letter in rows[0][place])]
    pairs = (pair for one, other in combinations(filled, 2) for pair in ((one, other), (other, one)))
    return next((pair for pair in pairs if fits(*pair)), None)


def _which_times(names: list[str], ways: list[tuple[int, ...]]) -> tuple[str, str]:
    """What is unclear where several columns may hold the times."""
    called = [" ".join(str(Argument("time_column", names[place])) for place in way) for way in ways[:2]]
    return f"several columns of times ({sample([names[way[0]] for way in ways])})", f"say which: {' or '.join(called)}"


def _times(names: list[str], columns: list[list[str]], rows: Rows, *, mostly: bool = False) -> list[tuple[int, ...]]:
    """The column of the times, or those of dates and of times of day; several where no name says which.

    columns: the cells of each that are filled.  mostly: the first cell and half of all are enough; the reader says
    which are wrong.
    """

    def holding(form: re.Pattern[str]) -> list[int]:
        if mostly:
            first = [place for place, cell in enumerate(rows[0]) if form.fullmatch(cell)]
            full = [
                place for place in first if 2 * sum(1 for cell in columns[place] if form.fullmatch(cell)) >= len(rows)
            ]
        else:
            full = [place for place, cells in enumerate(columns) if len(cells) == len(rows)]
            full = [place for place in full if all(map(form.fullmatch, columns[place]))]
        return sorted(full, key=lambda place: bool(OF_ROW.fullmatch(names[place])))

    def clocks() -> list[int]:
        hours = holding(re.compile("[01]?[0-9]|2[0-4]"))
        return [*holding(ONLY_CLOCK), *(place for place in hours if HOUR.fullmatch(names[place]))][:1]

    def rank(way: tuple[int, ...]) -> tuple[bool, bool]:
        return bool(OF_ROW.fullmatch(names[way[0]])), not SINCE_1970.fullmatch(names[way[0]])

    moments, hours = holding(MOMENT), clocks() if len(rows) > 1 else []
    dated = [place for place in moments if hours and all(map(MIDNIGHT.fullmatch, columns[place]))]
    ways: list[tuple[int, ...]] = [(place,) for place in moments if place not in dated]
    dates = [*dated, *holding(ONLY_DATE)]
    if dates and (hours or not ways):
        ways.append((dates[0], *(hours or clocks())))
    ways += [
        (place,)
        for place in holding(EPOCH)
        if SINCE_1970.fullmatch(names[place]) or (place == 0 and not names_rows(names[place]))
    ]
    ways.sort(key=rank)
    named = ways and rank(ways[0]) != (False, True)
    return ways[:1] if named else [way for way in ways if rank(way) == rank(ways[0])]


def names_rows(name: str) -> bool:
    """Whether a column has a name of one that numbers rows, or names sensors."""
    return bool(ROW_NUMBER.fullmatch(name) and name) or may_be_sensors(name)


def may_be_sensors(name: str) -> bool:
    """Whether a column has a name of one that names sensors."""
    return bool(SENSORS.fullmatch(name) or MAY_BE_SENSORS.fullmatch(name))


def _is_calendar(name: str, cells: list[str]) -> bool:
    """Whether a column is a part of a time, or another time."""
    more = re.compile(rf"{DATE}(?:[ T].*)?")
    return bool(CALENDAR.fullmatch(name)) or (bool(cells) and all(map(more.fullmatch, cells)))


@dataclass(frozen=True)
class _Table:
    """Rows of a table.  rest: the columns that may be sensors or readings; texts: those without a number."""

    names: list[str]
    rows: Rows
    times: tuple[int, ...]
    rest: list[int]
    texts: list[int]
    decimal: str
    request: Request

    def may_be_long(self) -> bool:
        """Whether its first rows leave open if there is a row for each sensor, so that more of them must be seen."""
        if len(self.names) > MANY:
            return False
        constant = any(len({cells[place] for cells in self.rows}) == 1 for place in self.rest)
        return constant or bool(self.texts) or len({*self.cells()}) < len(self.rows)

    def cells(self, *places: int | None) -> list[tuple[str, ...]]:
        """The cells of each row in these columns and in those of the times."""
        every = [*self.times, *(place for place in places if place is not None)]
        return [tuple(cells[place] for place in every) for cells in self.rows]

    def repeats(self, *places: int | None) -> bool:
        """Whether a third of the rows is not told apart by these columns: more than an hour that comes twice."""
        return 3 * len({*self.cells(*places)}) <= 2 * len(self.rows)

    def values(self, *places: int) -> int:
        """How many different cells, or pairs of cells, columns hold."""
        return len({tuple(cells[place] for place in places) for cells in self.rows})

    @cached_property
    def _distinct(self) -> int:
        return len({tuple(cells) for cells in self.rows})

    def tells_apart(self, *places: int) -> bool:
        """Whether columns tell the rows of each time apart, but for few."""
        lanes = [place for place in self.rest if LANES.fullmatch(self.names[place]) and place not in places]
        return len({*self.cells(*places, *lanes)}) >= APART * self._distinct

    def proved(self, *places: int, covered: float = COVERED) -> bool:
        """Whether the rows show that columns name sensors: they tell rows apart, and come again at other times."""
        values = self.values(*places)
        pairs = len({*self.cells(*places)})
        again = 2 * values <= len(self.rows) and pairs >= covered * values * len({*self.cells()})
        return self.tells_apart(*places) and again

    def whole(self, place: int) -> bool:
        """Whether a column holds whole numbers that its name does not call a quantity."""
        return not quantity_of(self.names[place]) and all(cells[place].isdigit() for cells in self.rows)

    def is_row_number(self, place: int) -> bool:
        """Whether a column counts the rows, though no time has several of them, or another column names sensors."""
        name = self.names[place]
        if not (MAY_BE_SENSORS.fullmatch(name) or ROW_NUMBER.fullmatch(name)):
            return False
        if len(self.rows) < 2 or not self.whole(place):
            return False
        numbers = [int(cells[place]) for cells in self.rows]
        counts = all(later == number + 1 for number, later in pairwise(numbers))
        if not counts and len(numbers) >= PROVED and len({*numbers}) == len(numbers):
            return not self.proved(place)
        others = [each for each in self.rest if each != place and may_be_sensors(self.names[each])]
        return counts and (bool(others) or self.values(*self.times) > 1)  # a sensor would come again

    def read(self, values: list[int]) -> list[int]:
        """Columns of numbers without those whose names say that they hold no readings, where others are left."""
        asked = (self.request.channel or "").split(",")
        kept = [place for place in values if self.names[place] in asked or not NO_SENSOR.fullmatch(self.names[place])]
        return kept or values

    def beside(self, places: list[int]) -> set[int]:
        """Those of the columns that stand beside sensors: row numbers, sums of them, the weather, flags of one."""
        names = {self.names[place].lower() for place in places}

        def of_one(name: str) -> bool:
            return bool(OTHER.fullmatch(name)) and any(
                name[: mark.start()] in names for mark in SEPARATED.finditer(name)
            )

        named = {place for place in places if NO_SENSOR.fullmatch(plain(self.names[place]))}
        named = named if len(named) < len(places) else set()
        return {
            place
            for place in places
            if place in named or of_one(self.names[place].lower()) or self.is_row_number(place)
        }

    def sensors(self) -> tuple[tuple[int, ...], tuple[str, str] | None]:
        """The columns that name the sensor of a row, none where each column is a sensor; and what is unclear.

        A column of sensors repeats: its values tell the rows of each time apart, and come again at other times.  Of
        several that do, and that are not names of the same sensors, none is taken.
        """
        if asked := self.request.sensor_column:
            said = tuple(self.names.index(name) for name in asked if name in self.names)
            return said, self._told_apart(said)
        channels = (self.request.channel or "").split(",")
        lanes = [place for place in self.rest if LANES.fullmatch(self.names[place])]
        free = [place for place in self.rest if place not in lanes and self.names[place] not in channels]
        free = [place for place in free if not NO_SENSOR.fullmatch(self.names[place])]
        named = [place for place in free if may_be_sensors(self.names[place]) and not self.is_row_number(place)]
        if named := [place for place in named if self.proved(place, covered=0) or len(self.rows) < PROVED] or named:
            best = min(named, key=self._rank)
            if self.tells_apart(best) or not self.repeats():
                return (best,), None
        if not self.repeats():  # not the hour that comes twice
            return (), None
        whole = [place for place in free if place not in self.texts and self.whole(place)]
        those = [place for place in (*self.texts, *(whole if len(self.rest) > 1 else ())) if place in free]
        those = [place for place in those if not any(POINT.fullmatch(cells[place]) for cells in self.rows)]
        found = [place for place in those if self.proved(place)]
        if not found and len(self.rows) < PROVED:
            found = [place for place in (*those, *lanes) if self.tells_apart(place)][:1]
        if not found:
            apart = self._told_apart((min(named, key=self._rank),)) if named else self._of_two(those)
            return ((named[0],) if named and not apart else ()), apart
        first = min(found, key=lambda place: (not may_be_sensors(self.names[place]), self.rest.index(place)))
        others = [place for place in found if self.values(first, place) > max(self.values(first), self.values(place))]
        if others:
            either = " or ".join(str(Argument("sensor_column", self.names[place])) for place in (first, *others[:2]))
            return (), (f"several columns that may name the sensors ({sample(self._called(found))})", either)
        return (first,), None

    def _called(self, places: list[int] | tuple[int, ...]) -> list[str]:
        return [self.names[place] for place in places]

    def _rank(self, place: int) -> tuple[bool, bool, int, int]:
        lanes = [each for each in self.rest if LANES.fullmatch(self.names[each])]
        apart = len({*self.cells(place, *lanes)}) == len(self.rows)
        return not apart, not SENSORS.fullmatch(self.names[place]), self.values(place), place

    def _told_apart(self, sensors: tuple[int, ...]) -> tuple[str, str] | None:
        """What is unclear where one more column, such as that of a direction, tells rows of a sensor apart."""
        lanes = [place for place in self.rest if LANES.fullmatch(self.names[place]) and place not in sensors]
        if not sensors or not self.repeats(*sensors, *lanes):
            return None
        first = " and ".join(self._called(sensors))
        for place in self.rest:
            kind = place in self.texts or self.whole(place)
            if (
                kind
                and place not in (*sensors, *lanes)
                and len({*self.cells(*sensors, *lanes, place)}) == len(self.rows)
            ):
                found = f"rows of one time and {first} that {self.names[place]!r} tells apart"
                return found, self._both((*sensors, place))
        return None

    def _of_two(self, those: list[int]) -> tuple[str, str] | None:
        """What is unclear where two columns together name the sensors."""
        for pair in combinations(those, 2):
            if self.proved(*pair):
                one, other = self._called(pair)
                return f"rows that {one!r} and {other!r} tell apart, and neither of them alone", self._both(pair)
        return None

    def _both(self, places: tuple[int, ...]) -> str:
        both = " ".join(str(Argument("sensor_column", name)) for name in self._called(places))
        return f"{both} names a sensor by {'all' if len(places) > 2 else 'both'} of them"

    def quantities(self, values: list[int]) -> list[str | None]:
        """What columns say without their units that they are; a letter says it only beside one of another quantity."""
        names = [plain(self.names[place]) for place in values]
        said = [quantity_of(name) for name in names]
        several = len({*said} - {None}) > 1
        return [each if several or len(name) > 1 else None for name, each in zip(names, said, strict=True)]

    def one_sensor(self, values: list[int]) -> list[int] | None:
        """The columns of readings of a table that is one sensor's; None: there is a column for each sensor.

        Its columns are quantities, each of them once; with two of them others may stand beside, which are left out.
        """
        names, said = [plain(self.names[place]) for place in values], self.quantities(values)
        found = [quantity for quantity in said if quantity]
        if len(values) == 1:
            return values if found or READING.fullmatch(names[0]) else None
        chosen = {quantity_of(each) or each for each in (self.request.channel or "").split(",")}
        if self.request.channel and chosen & {*said, *names, *(self.names[place] for place in values)}:
            return values
        known = [name for name, quantity in zip(names, said, strict=True) if quantity]
        if not found or len({*found}) < len(found) or any(map(re.compile(".*[0-9]").match, known)):
            return None
        read = zip(names, said, strict=True)
        unknown = [
            name for name, quantity in read if not (quantity or OTHER.fullmatch(name) or NO_SENSOR.fullmatch(name))
        ]
        return values if len(found) > 1 or not unknown else None

    def several(self, values: list[int]) -> tuple[str, str] | None:
        """What is unclear where each column is a sensor, and some are another quantity than others, or no reading."""
        names, said = [self.names[place] for place in values], self.quantities(values)
        hinted = {quantity_of(BEHIND.sub("", plain(name))) for name in names} - {None}
        letters = {each[1].lower() for each in map(LETTER.fullmatch, names) if each}
        if len({*said}) < 2 and len(hinted) < 2 and len(letters) < 2:
            return None if any(map(quantity_of, names)) else self._of_other_scale(values)
        odd = next((name for name, quantity in zip(names, said, strict=True) if quantity), names[-1])
        other = next((name for name, quantity in zip(names, said, strict=True) if not quantity), None)
        found = f"columns that are not all of one quantity ({sample(names, 6)})"
        named = f"{Argument('sensor_column', other)} if that names the sensor of each row" if other else ASK
        return (
            found,
            f"{named}; {Argument('channel', odd)} reads that column alone, {Argument('drop', odd)} leaves it out",
        )

    def _of_other_scale(self, values: list[int]) -> tuple[str, str] | None:
        """What is unclear where a column holds a number that never changes, or readings of another scale."""
        if len(self.rows) < PROVED or len(values) > MANY or len(values) < 2:
            return None
        medians = {}
        for place in values:
            read = [number_in(cells[place], self.decimal, grouped=False) for cells in self.rows]
            numbers = [abs(float(number)) for number in read if number]
            medians[place] = float(np.median([number for number in numbers if number] or [0.0]))
            whole = self.rows[0][place].isdigit()
            if whole and len({*numbers}) == 1 and numbers[0] >= LONG_ID:
                name = self.names[place]
                found = f"its column {name!r} is {self.rows[0][place]} in every row, no reading"
                return found, f"{Argument('sensor_column', name)} if that names the sensor, or {Argument('drop', name)}"
        stems = {BEHIND.sub("", self.names[place]) for place in values}
        large = max(medians, key=lambda place: medians[place])
        small = min(medians, key=lambda place: medians[place] or np.inf)
        if len(stems) <= len(values) / 2 or self.request.quantity or medians[large] <= SCALES * medians[small]:
            return None
        one, other = self.names[large], self.names[small]
        found = f"columns of different scales ({one!r} has {medians[large]:g} mostly, {other!r} {medians[small]:g})"
        remedy = f"{Argument('drop', one)} leaves one out; {Argument('quantity', 'flow')} if each column is a sensor"
        return found, remedy

    def shares(self, values: tuple[int, ...]) -> bool:
        """Whether all readings are between 0 and 1, and some neither of them."""
        cells = (number_in(cells[place], self.decimal, grouped=False) for cells in self.rows for place in values)
        numbers = {float(cell) for cell in cells if cell}
        return len(self.rows) >= PROVED and all(0 <= each <= 1 for each in numbers) and not {0.0, 1.0} >= numbers

    def words(self, texts: list[int]) -> tuple[str, str] | None:
        """What is unclear where a column of words stands beside few columns of readings, and no channel is named."""
        for place in texts if len(texts) < len(self.rest) and not self.request.channel else ():
            first = next(cells[place] for cells in self.rows if cells[place] not in NO_READING)
            if is_below(first):
                name = self.names[place] or f"column {place + 1}"
                found = f"its column {name!r} holds words such as {first[:40]!a}"
                return found, f"{Argument('sensor_column', name)} if they name sensors, or {Argument('drop', name)}"
        return None
