"""What each column of a table is: a time, a sensor, a lane, readings, or left out; decided by its name and first rows.

This is the only place that decides it.  Where names and rows allow two answers there is none: the table is asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

from socialx.errors import Argument, sample
from socialx.files.convert_options import Request
from socialx.files.formats.columns import LANES, OTHER, plain, quantity_of
from socialx.files.formats.moments import DATE, EPOCH, MOMENT, ONLY_CLOCK, ONLY_DATE, is_time
from socialx.files.formats.text_cells import NO_READING, decimal_sign, has_number, is_below

WIDE = 3  # columns of numbers beside a column of texts that make it a table with a column per sensor
SUFFIX = r"(?:[ _-]?(?:id|name|no|nr|code|number))?"
# Names of a column of sensors in a table that has a row for each reading, in the languages of those who publish them.
SENSORS = re.compile(
    r"(?:sensor|station|det|detector|vd|vds|device|counter|loop|messstelle|detektor|z(?:ä|ae)hlstelle|messquerschnitt|mq"
    rf"|meetpunt|meetlocatie|punto|estaci[oó]n|aforo|compteur|capteur|boucle){SUFFIX}|vdid|iu_ac",
    re.IGNORECASE,
)
# Those of a column that may number the rows, or name what has several sensors.
MAY_BE_SENSORS = re.compile(rf"(?:segment|link|location|site|road|edge){SUFFIX}|id|name", re.IGNORECASE)
READING = re.compile(r"value|reading|measurement|wert|messwert|data", re.IGNORECASE)  # of whatever quantity
PLACES = re.compile(r"(?:lat|lon|lng|latitude|longitude|x|y)", re.IGNORECASE)
HOUR = re.compile(r"hour|hr|hh|stunde|hora|heure|uur", re.IGNORECASE)
# Parts of a time, which no sensor is named like.
CALENDAR = re.compile(
    rf"{HOUR.pattern}|min(?:ute)?|(?:hour|day|month|week)[ _-]?of[ _-]?(?:the[ _-]?)?(?:day|week|month|year)|day|dow"
    r"|month|year|week(?:day|end|no|nr)?|season|is[ _-]?(?:weekend|holiday)|holiday|wochentag|tag|monat|jahr"
    r"|feiertag",
    re.IGNORECASE,
)
# Times of the row rather than of its readings, and those at which an interval ends.
OF_ROW = re.compile(
    r".*(?:upload|creat|updat|modif|receiv|insert|import|process|stored|exported|publish).*"
    r"|(?:.*[ _-])?(?:end|to|until|till|bis|ende|fin)(?:[ _-].*)?|endtime",
    re.IGNORECASE,
)
SINCE_1970 = re.compile(r"ts|.*(?:time|zeit|epoch|unix|tiempo|temps|date|datum).*", re.IGNORECASE)
# Sums and means of the other columns, and the weather.
NO_SENSOR = re.compile(
    r"(?:grand[ _-]?)?total|sum(?:me)?|gesamt|average|avg|mean|mittel(?:wert)?|(?:air[ _-]?)?temp(?:erature?)?"
    r"|rain(?:fall)?|precip(?:itation)?|niederschlag|regen|snow(?:fall)?|humidity|wind(?:[ _-]?speed)?|visibility"
    r"|weather",
    re.IGNORECASE,
)
ROW_NUMBER = re.compile(
    r"|#|nr|no|num|number|index|idx|row|seq|sequence|serial|record(?:[ _-]?id)?|lfd(?:[ _-]?nr)?|level_[0-9]"
    r"|unnamed: [0-9]+",
    re.IGNORECASE,
)
SEPARATED = re.compile("[ _.-]")
BEHIND = re.compile(r"[ _.-]*[0-9]+$")  # a number behind a name
ASK = "write a row per time and sensor, with a column for each quantity"


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are, by their numbers from 0.

    times: the column of the times, or those of the dates and of the times of day.  sensors: the column of the sensors
    where each row is a reading; lanes: that of the lanes there.  values: the columns of readings.  one: whether the
    table is that of one sensor, and its columns are quantities; else, without ``sensors``, each column is a sensor.
    left: columns that are left out.  decimal: the sign of decimals.  unclear: what was found and the remedy, where
    there are two answers.
    """

    times: tuple[int, ...]
    sensors: int | None = None
    lanes: int | None = None
    values: tuple[int, ...] = ()
    one: bool = False
    left: tuple[int, ...] = ()
    decimal: str = "."
    unclear: tuple[str, str] | None = None


def roles_of(names: list[str], rows: list[list[str]], separator: str, request: Request) -> Roles | None:
    """The roles of columns with these names and first rows; None where none holds times, or ``names`` is no header."""
    columns = [[cell for cell in column if cell not in NO_READING] for column in zip(*rows, strict=True)]
    times = _times(names, columns, rows) or _times(names, columns, rows, mostly=True)
    if request.time_column is not None:
        times = (names.index(request.time_column),) if request.time_column in names else ()
    if not times or any(map(MOMENT.fullmatch, names)) or any(is_time(names[place]) for place in times):
        return None
    wide = _kept(names, columns, times, request)
    rest = [place for place in wide if not PLACES.fullmatch(names[place])]
    decimal = request.decimal or decimal_sign(separator, [columns[place] for place in rest])
    # A word among numbers is a wrong cell of a column of readings: the reader says where it is.
    texts = [place for place in rest if columns[place] and not has_number(columns[place], decimal)]
    table = _Table(names, rows, times, rest, texts)
    sensors = table.sensors(request.sensor_column)
    lanes = next((place for place in rest if place != sensors and LANES.fullmatch(names[place])), None)
    values = sorted({*rest} - {*texts, sensors, lanes} - {place for place in rest if table.is_row_number(place)})
    found = Roles(times, decimal=decimal)
    if sensors is not None and values:
        unclear = table.told_apart(sensors, lanes)
        found = replace(found, sensors=sensors, lanes=lanes, values=tuple(values), unclear=unclear)
    elif (one := table.one_sensor(values, request.channel)) is not None:
        found = replace(found, values=tuple(one), one=True, unclear=table.words(texts))
    else:
        own = {*wide} - table.beside(wide)
        numbers = sorted(own - {*texts})
        many = len(numbers) >= WIDE
        unclear = (None if many else table.words(texts)) or table.several(sorted(own & {*values}))
        found = replace(found, values=tuple(numbers if many else sorted(own)), unclear=unclear)
    left = sorted({*range(len(names))} - {*times, *found.values, found.sensors, found.lanes})
    return replace(found, left=tuple(left)) if found.values else None


def _kept(names: list[str], columns: list[list[str]], times: tuple[int, ...], request: Request) -> list[int]:
    """The columns beside the times that are neither empty nor dropped, nor a part of a time that nobody asked for."""
    asked = {request.sensor_column, *(request.channel or "").split(",")}
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


def _times(
    names: list[str], columns: list[list[str]], rows: list[list[str]], *, mostly: bool = False
) -> tuple[int, ...]:
    """The column of the times, or those of dates and of times of day.

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

    if moments := holding(MOMENT):
        return (moments[0],)
    if dates := holding(ONLY_DATE):
        hours = [place for place in holding(re.compile("[0-9]{1,2}")) if HOUR.fullmatch(names[place])]
        return (dates[0], *(holding(ONLY_CLOCK) or hours)[:1])
    epochs = [place for place in holding(EPOCH) if place == 0 or SINCE_1970.fullmatch(names[place])]
    return tuple(epochs[:1])


def may_be_sensors(name: str) -> bool:
    """Whether a column has a name of one that names sensors."""
    return bool(SENSORS.fullmatch(name) or MAY_BE_SENSORS.fullmatch(name))


def _is_calendar(name: str, cells: list[str]) -> bool:
    """Whether a column is a part of a time, or another time."""
    more = re.compile(rf"{DATE}(?:[ T].*)?")
    return bool(CALENDAR.fullmatch(name)) or (bool(cells) and all(map(more.fullmatch, cells)))


@dataclass(frozen=True)
class _Table:
    """The first rows of a table.  rest: the columns that may be sensors or readings; texts: those without a number."""

    names: list[str]
    rows: list[list[str]]
    times: tuple[int, ...]
    rest: list[int]
    texts: list[int]

    def cells(self, *places: int | None) -> list[tuple[str, ...]]:
        """The cells of each row in these columns and in those of the times."""
        every = [*self.times, *(place for place in places if place is not None)]
        return [tuple(cells[place] for place in every) for cells in self.rows]

    def repeats(self, *places: int | None) -> bool:
        """Whether a third of the rows is not told apart by these columns: more than an hour that comes twice."""
        return 3 * len({*self.cells(*places)}) <= 2 * len(self.rows)

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
        others = [each for each in self.rest if each != place and may_be_sensors(self.names[each])]
        return counts and (not self.repeats() or bool(others))

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

    def sensors(self, asked: str | None) -> int | None:
        """The column of the sensors where each row is a reading; None: there is none.

        It is the column with such a name.  Of several it is the one that tells the rows of each time apart.  Without
        such a name it is another one of texts or whole numbers that does so.
        """
        if asked is not None:
            return next((place for place in self.rest if self.names[place] == asked), None)
        lanes = [place for place in self.rest if LANES.fullmatch(self.names[place])]
        named = [place for place in self.rest if may_be_sensors(self.names[place]) and not self.is_row_number(place)]

        def rank(place: int) -> tuple[bool, bool, int, int]:
            apart = len({*self.cells(place, *lanes)}) == len(self.rows)
            values = len({cells[place] for cells in self.rows})
            return not apart, not SENSORS.fullmatch(self.names[place]), values, place

        if named:
            return min(named, key=rank)
        if not self.repeats():  # not the hour that comes twice
            return None
        whole = [place for place in self.rest if place not in self.texts and self.whole(place)]
        found = [place for place in (*self.texts, *(whole if len(self.rest) > 1 else ())) if place not in lanes]
        for place, *more in (*((each, *lanes) for each in found), *((each,) for each in lanes)):
            if len({*self.cells(place, *more)}) == len(self.rows):
                return place
        return None

    def told_apart(self, sensors: int, lanes: int | None) -> tuple[str, str] | None:
        """What is unclear where one more column, such as that of a direction, tells rows of a sensor apart."""
        if not self.repeats(sensors, lanes):
            return None
        for place in self.rest:
            kind = place in self.texts or self.whole(place)
            if kind and place not in (sensors, lanes) and len({*self.cells(sensors, lanes, place)}) == len(self.rows):
                name, first = self.names[place], self.names[sensors]
                found = f"rows of one time and {first} that {name!r} tells apart"
                return found, f"join {first} and {name} to one column, or sum these rows, and convert the result"
        return None

    def quantities(self, values: list[int]) -> list[str | None]:
        """What columns say without their units that they are; a letter says it only beside one of another quantity."""
        names = [plain(self.names[place]) for place in values]
        said = [quantity_of(name) for name in names]
        several = len({*said} - {None}) > 1
        return [each if several or len(name) > 1 else None for name, each in zip(names, said, strict=True)]

    def one_sensor(self, values: list[int], asked: str | None) -> list[int] | None:
        """The columns of readings of a table that is one sensor's; None: there is a column for each sensor.

        Its columns are quantities, each of them once; with two of them others may stand beside, which are left out.
        """
        names, said = [plain(self.names[place]) for place in values], self.quantities(values)
        found = [quantity for quantity in said if quantity]
        if len(values) == 1:
            return values if found or READING.fullmatch(names[0]) else None
        chosen = {quantity_of(each) or each for each in (asked or "").split(",")}
        if asked and chosen & {*said, *names, *(self.names[place] for place in values)}:
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
        """What is unclear where each column is a sensor, and some say that they are another quantity than others."""
        names, said = [self.names[place] for place in values], self.quantities(values)
        hinted = {quantity_of(BEHIND.sub("", plain(name))) for name in names} - {None}
        if len({*said}) < 2 and len(hinted) < 2:
            return None
        odd = next((name for name, quantity in zip(names, said, strict=True) if quantity), names[0])
        other = next((name for name, quantity in zip(names, said, strict=True) if not quantity), None)
        found = f"columns that are not all of one quantity ({sample(names, 6)})"
        named = f"{Argument('sensor_column', other)} if that names the sensor of each row" if other else ASK
        return (
            found,
            f"{named}; {Argument('channel', odd)} reads that column alone, {Argument('drop', odd)} leaves it out",
        )

    def words(self, texts: list[int]) -> tuple[str, str] | None:
        """What is unclear where a column of words stands beside few columns of readings."""
        for place in texts if len(texts) < len(self.rest) else ():
            first = next(cells[place] for cells in self.rows if cells[place] not in NO_READING)
            if is_below(first):
                name = self.names[place] or f"column {place + 1}"
                found = f"its column {name!r} holds words such as {first[:40]!a}"
                return found, f"{Argument('sensor_column', name)} if they name sensors, or {Argument('drop', name)}"
        return None
