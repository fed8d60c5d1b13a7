"""Detect what each table column holds: time, sensor, lane, observations, or left out.

The user's options come first, then the evidence in the rows, then the column names. Two possible answers raise a
question: the texts (problem, remedy) of an error to the user. Columns are zero-based numbers. ``values`` are
observation columns, and ``texts`` columns without numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np

from socialx.core.errors import Argument, sample
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables.columns import (
    BEHIND,
    CALENDAR,
    HOUR,
    HOURS,
    LANES,
    LETTER,
    MAY_BE_SENSORS,
    NO_SENSOR,
    OTHER,
    PART_OF_DAY,
    PLACES,
    POINT,
    READING,
    ROW_NUMBER,
    SENSORS,
    SEPARATED,
    STATISTIC,
    column_quantity,
    may_be_sensors,
    parse_unit,
    without_unit,
)
from socialx.files.sources.tables.melt import (
    LONGER,
    Melt,
    hours_twice,
    is_label,
    lanes_behind,
    part_of_day,
    say_times,
    sensors_in_names,
    times_in_names,
    times_of_day,
)
from socialx.files.sources.tables.text_cells import NO_READING, decimal_sign, has_number, is_footer, parse_number
from socialx.files.sources.tables.time_texts import AT_MIDNIGHT, DATE, MOMENT, ONLY_DATE, Rows, is_time, time_columns

WIDE = 3  # columns of numbers that, with a column of texts, make a column per sensor
MANY = 100  # columns, from which on only the first rows are read: wide tables have a column per sensor
AS_CLOCKS = "call those of times of day 00:00, 01:00 and so on, each once, or write a row per time and sensor"
ASK = "write a row per time and sensor, with a column for each quantity"
APART = 0.9  # fraction of rows that a sensor column and the times distinguish, at least
COVERED = 0.5  # fraction of (time, sensor) pairs with a row, at least
PROVED = 10  # rows, from which on distinct numbers are row numbers
LONG_ID = 100_000  # a constant integer from here on is an id
MOST_HOURS, TIMES_OF_DAY = 25, (48, 72, 96, 144, 288, 1440)
SCALES = 20  # ratio of two medians, from which on columns differ in quantity


@dataclass(frozen=True)
class ColumnRoles:
    """The table column roles, by column number.

    times: the time column, or the date and clock columns. sensors: the columns that name the sensor in each row, for a
    row per observation. lanes: the lane column. values: the observation columns. one: the table holds one sensor and
    each column is a quantity; otherwise, with ``sensors`` empty, each column is a sensor. left: columns left out.
    decimal: the decimal sign. unclear: the question (problem, remedy), where two answers are possible. melt: columns
    that become rows. shares: all observations lie within 0 and 1.
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


def find_roles(
    names: list[str], rows: Rows, separator: str, request: ConvertOptions, more: Callable[[], Rows] | None = None
) -> ColumnRoles | None:
    """Return the column roles, or ``None`` where every column lacks times or ``names``, the header, are cells of a row.
    rows: the first rows, cells as text. separator: the sign between cells. more: returns a larger sample that includes
    ``rows``; called only where the first rows leave the sensor column open.
    """
    columns = [[cell for cell in column if cell not in NO_READING] for column in zip(*rows, strict=True)]
    if request.transposed:
        return _transposed_roles(names, columns, separator, request)
    times, unclear = time_columns(names, rows, columns, request)
    if not times or any(map(MOMENT.fullmatch, names)) or any(is_time(names[column]) for column in times):
        return None
    wide = _select(names, columns, times, request)
    rest = [column for column in wide if not PLACES.fullmatch(names[column])]
    decimal = request.decimal or decimal_sign(separator, [columns[column] for column in rest])
    # A word among numbers is a wrong cell in a column of observations: the reader names the cell.
    texts = [column for column in rest if columns[column] and not has_number(columns[column], decimal)]
    table = _SampledTable(names, rows, times, rest, texts, decimal, request)
    if more is not None and table.may_be_long():
        table = replace(table, rows=max(rows, [cells for cells in more() if len(cells) == len(names)], key=len))
    roles = _table_roles(table, wide)
    roles = replace(roles, unclear=unclear or roles.unclear)
    melted = {column for group in roles.melt.groups for column in group} if roles.melt else set[int]()
    taken = {*roles.times, *roles.values, *roles.sensors, roles.lanes, *melted}
    return replace(roles, left=tuple(sorted({*range(len(names))} - taken))) if roles.values else None


def _table_roles(table: _SampledTable, wide: list[int]) -> ColumnRoles:
    """Return the roles of all columns; a column of hours joins the times. wide: all columns but times and drops."""
    unclear = None
    if not table.request.time_column and (hour := table.hour()) is not None:
        rest = [column for column in table.rest if column != hour]
        timed = replace(table, times=(*table.times, hour), rest=rest)
        unclear, wide = timed.hour_or_sensor(hour), [column for column in wide if column != hour]
        table = table if unclear else timed
    unclear = unclear or table.slot_or_sensor() or table.units()
    numbers = [column for column in table.rest if column not in table.texts]
    days = times_of_day(table.names, numbers) if table.is_dated() else None
    roles = (_day_roles(table, days) if days else None) or _row_roles(table, wide)
    return replace(roles, unclear=unclear or roles.unclear)


def _row_roles(table: _SampledTable, wide: list[int]) -> ColumnRoles:
    """Return the roles for a table with a row per time, or time and sensor. wide: all columns but times and drops."""
    rest, texts, roles = table.rest, table.texts, ColumnRoles(table.times, decimal=table.decimal)
    sensors, unclear = table.sensors()
    lanes = next((column for column in table.lanes if column not in sensors), None)
    numbers = {column for column in rest if table.is_row_number(column)}
    values = sorted({*rest} - {*texts, *sensors, lanes} - numbers)
    if unclear:
        return replace(roles, values=tuple(values or rest), unclear=unclear)
    if sensors and values and table.is_dated() and (part := part_of_day(table.names, values)):
        roles = replace(roles, unclear=(f"columns {part[0]!r} to {part[-1]!r} make no whole day", AS_CLOCKS))
    if sensors and values:
        values = table.read(values)
        melt = lanes_behind(table.names, values) if lanes is None else None
        if melt:
            return replace(roles, sensors=sensors, melt=melt, lanes=melt.label, values=melt.values)
        shares = table.shares(tuple(values))
        return replace(roles, sensors=sensors, lanes=lanes, values=tuple(values), shares=shares)
    if melt := sensors_in_names(table.names, values):
        return replace(roles, sensors=(melt.label,), melt=melt, values=melt.values)
    if (one := table.one_sensor(values)) is not None:
        one = table.read(one)
        return replace(roles, values=tuple(one), one=True, unclear=table.words(texts), shares=table.shares(tuple(one)))
    sensor_columns = {*wide} - table.auxiliary_columns(wide)
    measured = sorted(sensor_columns - {*texts})
    many = len(measured) >= WIDE
    unclear = (None if many else table.words(texts)) or table.mixed_columns(sorted(sensor_columns & {*values}))
    read = tuple(measured if many else sorted(sensor_columns))
    return replace(roles, values=read, unclear=unclear, shares=table.shares(read))


def _transposed_roles(names: list[str], columns: Rows, separator: str, request: ConvertOptions) -> ColumnRoles | None:
    """Return the roles for a table with a row per sensor and a column per time; ``None`` for other tables. columns:
    filled cells by column. separator: the sign between cells. The sensor column is the user's, else the first with a
    sensor name, else the first without times.
    """
    melt = times_in_names(names)
    others = [column for column, name in enumerate(names) if not is_label(name) and name not in request.drop]
    if melt is None or not others:
        return None
    given = [column for column in others if names[column] in request.sensor_column]
    sensors = tuple(given or [column for column in others if may_be_sensors(names[column])][:1] or others[:1])
    decimal = request.decimal or decimal_sign(separator, [columns[group[0]] for group in melt.groups])
    left = tuple(column for column in others if column not in sensors)
    return ColumnRoles((melt.label,), sensors, None, melt.values, left=left, decimal=decimal, melt=melt)


def _day_roles(table: _SampledTable, melt: Melt) -> ColumnRoles | None:
    """Return the roles for a table with a row per sensor and day, and a column per clock time, which ``melt`` turns to
    rows. Returns ``None`` for columns numbered like a 25-hour day where sensors stay unnamed: such columns are sensors.
    """
    melted = {column for group in melt.groups for column in group}
    shares = table.shares(tuple(melted))
    table = replace(table, rest=[column for column in table.rest if column not in melted])
    sensors, unclear = table.sensors(readings_beside=True)
    lanes = next((column for column in table.lanes if column not in sensors), None)
    if len(melted) in LONGER and not sensors and not unclear:
        return None
    if twice := [name for name in hours_twice(table.names, melt) if name not in table.request.drop]:
        drops = " ".join(str(Argument("drop", name)) for name in twice)
        unclear = f"columns hold an hour that comes twice ({sample(twice)})", f"{drops} leaves the second one out"
    elif not sensors and not unclear and (table.repeats() or not say_times(table.names, melt)):
        problem = "the table has a row for each sensor and day, with a column for each time of day"
        name = table.names[table.rest[0]] if table.rest else "NAME"
        unclear = problem, f"say which columns name the sensor: {Argument('sensor_column', name)}"
        if not table.repeats() and not table.rest:
            begin, end = (table.names[melt.groups[index][0]] for index in (0, -1))
            problem = f"columns {begin!r} to {end!r}, with a row for each day, may be times of day or sensors"
            unclear = problem, AS_CLOCKS
    times = (table.times[0], melt.label)
    one = not sensors and lanes is None
    return ColumnRoles(
        times, sensors, lanes, melt.values, one, decimal=table.decimal, unclear=unclear, melt=melt, shares=shares
    )


def _select(names: list[str], columns: list[list[str]], times: tuple[int, ...], request: ConvertOptions) -> list[int]:
    """Return the columns outside ``times``, except empty and dropped columns and time parts such as weekday."""
    asked = {*request.sensor_column, *request.channels}
    kept = []
    for column, name in enumerate(names):
        dropped = bool({name, without_unit(name)} & {*request.drop})
        empty = not name and not columns[column]
        if column in times or dropped or empty:
            continue
        if name in asked or not _is_calendar(name, columns[column]):
            kept.append(column)
    return kept


def _is_calendar(name: str, cells: list[str]) -> bool:
    """Return whether a column is a time part, such as month, or all its ``cells`` are dates or times."""
    more = re.compile(rf"{DATE}(?:[ T].*)?")
    return bool(CALENDAR.fullmatch(name)) or (bool(cells) and all(map(more.fullmatch, cells)))


@dataclass(frozen=True)
class _SampledTable:
    """The first rows in a table. rest: candidates for sensors or observations; texts: those without numbers."""

    names: list[str]
    rows: Rows
    times: tuple[int, ...]
    rest: list[int]
    texts: list[int]
    decimal: str
    request: ConvertOptions

    @cached_property
    def lanes(self) -> list[int]:
        """The candidate columns (for sensors or observations) that are called like a lane."""
        return [column for column in self.rest if LANES.fullmatch(self.names[column])]

    def may_be_long(self) -> bool:
        """Return whether the first rows leave open a row per sensor, so that a larger sample is needed."""
        if len(self.names) > MANY:
            return False
        constant = any(len({cells[column] for cells in self.rows}) == 1 for column in self.rest)
        return constant or bool(self.texts) or len({*self.cells()}) < len(self.rows)

    @cached_property
    def _cells_by_columns(self) -> dict[tuple[int, ...], list[tuple[str, ...]]]:
        return {}

    def cells(self, *columns: int | None) -> list[tuple[str, ...]]:
        """Return, for each row, the cells in the time columns and then in ``columns``; None adds no column."""
        every = (*self.times, *(column for column in columns if column is not None))
        if every not in self._cells_by_columns:
            self._cells_by_columns[every] = [tuple(cells[column] for column in every) for cells in self.rows]
        return self._cells_by_columns[every]

    def repeats(self, *columns: int | None) -> bool:
        """Return whether a third of the rows or more repeat another row in time and in these columns."""
        return 3 * len({*self.cells(*columns)}) <= 2 * len(self.rows)

    def is_dated(self) -> bool:
        """Return whether there is one time column, which holds dates without a clock time, or dates at midnight."""
        if len(self.times) > 1:
            return False
        if self.request.time_format:
            return not re.search("%[HIMScX]", self.request.time_format)
        cells = {cells[self.times[0]] for cells in self.rows}
        return all(ONLY_DATE.fullmatch(cell) or AT_MIDNIGHT.fullmatch(cell) for cell in cells)

    def numbers(self, column: int) -> set[int]:
        """Return the distinct integers in a column."""
        return {int(cells[column]) for cells in self.rows}

    def hour(self) -> int | None:
        """Return the column of hours, 0 to 23 or 1 to 24, next to repeated dates; ``None`` for none and for several."""
        if not self.is_dated() or not self.repeats():
            return None
        called = [column for column, name in enumerate(self.names) if HOUR.fullmatch(name) and column not in self.times]
        called = [column for column in called if self.holds_integers(column) and self.numbers(column) <= {*range(25)}]
        if len(called) == 1:
            return called[0]
        asked = {*self.request.sensor_column, *self.request.channels}
        free = [column for column in self.rest if self.names[column] not in asked and self.holds_integers(column)]
        hours = [column for column in free if self.numbers(column) in HOURS]
        return hours[0] if len(hours) == 1 and not may_be_sensors(self.names[hours[0]]) else None

    def hour_or_sensor(self, hour: int) -> tuple[str, str] | None:
        """Return (problem, remedy) where the integers in the column ``hour`` may number sensors; else ``None``."""
        sensors, unclear = self.sensors()
        has_names = bool(self.request.sensor_column) or any(may_be_sensors(name) for name in self._names(sensors))
        sure = HOUR.fullmatch(self.names[hour]) or (sensors and (has_names or 0 in self.numbers(hour)))
        if sure or unclear:
            return None
        date, name = self._names(self.times)
        problem = f"column {name!r} holds whole numbers to 24, which may be hours or sensors"
        hours = f"{Argument('time_column', date)} {Argument('time_column', name)}"
        return problem, f"{hours} if they are hours, {Argument('sensor_column', name)} if they are sensors"

    def counts_times(self, column: int) -> bool:
        """Return whether a column next to dates holds slot numbers of a day: all integers from 0 or 1 on, at least 26.
        For example, 0 to 95 number the quarter hours. At most 25 numbers may be hours, and give False.
        """
        if may_be_sensors(self.names[column]) or not (self.is_dated() and self.holds_integers(column)):
            return False
        numbers = sorted(self.numbers(column))
        return len(numbers) > MOST_HOURS and numbers in ([*range(start, numbers[-1] + 1)] for start in (0, 1))

    def slot_or_sensor(self) -> tuple[str, str] | None:
        """Return (problem, remedy) where a column may number day intervals or sensors; otherwise ``None``."""
        last = self.times[-1]
        if len(self.times) > 1 and self.holds_integers(last) and max(self.numbers(last)) >= MOST_HOURS:
            name = self.names[last]
            return f"column {name!r} has numbers to {max(self.numbers(last))}, not hours", self._as_times(name)
        asked = {*self.request.sensor_column, *self.request.time_column, *self.request.channels}
        for column in self.rest:
            if self.names[column] not in asked and self.counts_times(column) and self.values(column) in TIMES_OF_DAY:
                name = self.names[column]
                problem = f"column {name!r} counts {self.values(column)} numbers on each date"
                return problem, self._times_or_sensors(name)
        return None

    def units(self) -> tuple[str, str] | None:
        """Return (problem, remedy), for an error, where a text column names several units; else ``None``."""
        for column in self.texts:
            units = {cells[column] for cells in self.rows}
            if len(units) > 1 and all(map(parse_unit, units)):
                problem = f"column {self.names[column]!r} names several units ({sample(sorted(units))})"
                return problem, "write all readings in one unit, without this column"
        return None

    def _times_or_sensors(self, name: str) -> str:
        return f"{self._as_times(name)}, or {Argument('sensor_column', name)} if they are sensors"

    def _as_times(self, name: str) -> str:
        return f"write times such as 00:05 into {name!r} if it counts them"

    def values(self, *columns: int) -> int:
        """Return how many distinct cells, or combinations of cells, the columns hold in the first rows."""
        return len({tuple(cells[column] for column in columns) for cells in self.rows})

    @cached_property
    def _distinct(self) -> int:
        return len({tuple(cells) for cells in self.rows})

    def tells_apart(self, *columns: int) -> bool:
        """Return whether time, lanes and these columns distinguish at least 90 % of the distinct rows."""
        lanes = [column for column in self.lanes if column not in columns]
        return len({*self.cells(*columns, *lanes)}) >= APART * self._distinct

    def name_sensors(self, *columns: int, covered: float = COVERED) -> bool:
        """Return whether columns may name sensors: cells tell the rows of a time apart, recur at other times, and at
        least the fraction ``covered`` of all (time, sensor) pairs has a row.
        """
        values = self.values(*columns)
        pairs = len({*self.cells(*columns)})
        again = 2 * values <= len(self.rows) and pairs >= covered * values * len({*self.cells()})
        return self.tells_apart(*columns) and again

    def holds_integers(self, column: int) -> bool:
        """Return whether a column holds whole numbers without sign, and the name states no quantity."""
        return not column_quantity(self.names[column]) and all(cells[column].isdigit() for cells in self.rows)

    def is_row_number(self, column: int) -> bool:
        """Return whether a column counts rows, where each time has one row or another column names the sensors."""
        name = self.names[column]
        if not (MAY_BE_SENSORS.fullmatch(name) or ROW_NUMBER.fullmatch(name)):
            return False
        if len(self.rows) < 2 or not self.holds_integers(column):
            return False
        numbers = [int(cells[column]) for cells in self.rows]
        counts = all(later == number + 1 for number, later in pairwise(numbers))
        if not counts and len(numbers) >= PROVED and len({*numbers}) == len(numbers):
            return not self.name_sensors(column)
        others = [other for other in self.rest if other != column and may_be_sensors(self.names[other])]
        return counts and (bool(others) or self.values(*self.times) > 1)  # a sensor would come again

    def read(self, values: list[int]) -> list[int]:
        """Return the columns ``values`` without totals, weather, flags, unless the user asks; all if none remains."""
        asked = self.request.channels
        kept = [at for at in values if self.names[at] in asked or not NO_SENSOR.fullmatch(self.names[at])]
        return kept or values

    def auxiliary_columns(self, columns: list[int]) -> set[int]:
        """Return what is no sensor among a column per sensor: row numbers, totals, weather, quality flags."""
        names = {self.names[column].lower() for column in columns}

        def is_flag(name: str) -> bool:
            return bool(OTHER.fullmatch(name)) and any(
                name[: mark.start()] in names for mark in SEPARATED.finditer(name)
            )

        by_name = {column for column in columns if NO_SENSOR.fullmatch(without_unit(self.names[column]))}
        by_name = by_name if len(by_name) < len(columns) else set()
        return {
            column
            for column in columns
            if column in by_name or is_flag(self.names[column].lower()) or self.is_row_number(column)
        }

    def sensors(self, *, readings_beside: bool = False) -> tuple[tuple[int, ...], tuple[str, str] | None]:
        """Return the columns that name the sensor in each row (none for a column per sensor), and (problem, remedy) or
        ``None``. Cells in a sensor column distinguish the rows at each time and come again at other times. Several such
        columns raise a question, unless all name the same sensors. readings_beside: observations lie outside ``rest``;
        otherwise the only column in ``rest`` holds observations.
        """
        if asked := self.request.sensor_column:
            given = tuple(self.names.index(name) for name in asked if name in self.names)
            return given, self._third_key(given)
        channels = self.request.channels
        free = [column for column in self.rest if column not in self.lanes and self.names[column] not in channels]
        free = [column for column in free if not NO_SENSOR.fullmatch(self.names[column])]
        candidates = self._candidates(free, readings_beside=readings_beside)
        named, sure = self._sensor_named(free)
        best = min(named, key=self._rank, default=None)
        if best is not None and (sure or not candidates) and (self.tells_apart(best) or not self.repeats()):
            return (best,), None
        if not self.repeats():  # not the hour that comes twice
            return (), None
        words = self._word_columns(free, readings_beside=readings_beside)
        if not candidates and len(self.rows) < PROVED:
            candidates = [column for column in (*words, *self.lanes) if self.tells_apart(column)][:1]
        if not candidates:
            apart = self._key_pair(words) if best is None else self._third_key((best,))
            return ((named[0],) if named and not apart else ()), apart
        first = min(candidates, key=lambda column: (not may_be_sensors(self.names[column]), self.rest.index(column)))
        others = [at for at in candidates if self.values(first, at) > max(self.values(first), self.values(at))]
        if others:
            either = " or ".join(str(Argument("sensor_column", self.names[column])) for column in (first, *others[:2]))
            return (), (f"several columns may name the sensors ({sample(self._names(candidates))})", either)
        if PART_OF_DAY.fullmatch(name := self.names[first]):
            return (), (f"column {name!r} may be a part of the times", self._times_or_sensors(name))
        return (first,), None

    def _sensor_named(self, free: list[int]) -> tuple[list[int], bool]:
        """Return the columns in ``free`` with a sensor name (if possible, as rows confirm), and whether rows do."""
        named = [column for column in free if may_be_sensors(self.names[column]) and not self.is_row_number(column)]
        sure = [column for column in named if self.name_sensors(column, covered=0) or len(self.rows) < PROVED]
        return sure or named, bool(sure)

    def _word_columns(self, free: list[int], *, readings_beside: bool) -> list[int]:
        """Return the columns of words or integers among ``free``, without points such as (48.1, 11.5). readings_beside:
        observations lie outside ``rest``; otherwise an integer column alone in ``rest`` holds observations.
        """
        integers = [column for column in free if column not in self.texts and self.holds_integers(column)]
        integers = integers if len(self.rest) > 1 or readings_beside else []
        words = [column for column in (*self.texts, *integers) if column in free]
        return [column for column in words if not any(POINT.fullmatch(cells[column]) for cells in self.rows)]

    def _candidates(self, free: list[int], *, readings_beside: bool) -> list[int]:
        """Return the columns among ``free`` whose cells recur as sensor names do. readings_beside: observations lie
        outside ``rest``; otherwise the only column in ``rest`` holds observations.
        """
        return list(filter(self.name_sensors, self._word_columns(free, readings_beside=readings_beside)))

    def _names(self, columns: list[int] | tuple[int, ...]) -> list[str]:
        return [self.names[column] for column in columns]

    def _rank(self, column: int) -> tuple[bool, bool, int, int]:
        apart = len({*self.cells(column, *self.lanes)}) == len(self.rows)
        return not apart, not SENSORS.fullmatch(self.names[column]), self.values(column), column

    def _third_key(self, sensors: tuple[int, ...]) -> tuple[str, str] | None:
        """Return (problem, remedy) if a column, such as direction, splits rows of a time and sensor, or ``None``."""
        lanes = [column for column in self.lanes if column not in sensors]
        if not sensors or not self.repeats(*sensors, *lanes):
            return None
        first = " and ".join(self._names(sensors))
        for column in self.rest:
            kind = column not in (*sensors, *lanes) and (column in self.texts or self.holds_integers(column))
            if kind and len({*self.cells(*sensors, *lanes, column)}) == len(self.rows):
                problem = f"column {self.names[column]!r} tells rows of one time and {first} apart"
                return problem, self._key_remedy((*sensors, column))
        return None

    def _key_pair(self, words: list[int]) -> tuple[str, str] | None:
        """Return (problem, remedy) where only two ``words`` columns together name the sensors; else ``None``."""
        for pair in combinations(words, 2):
            if self.name_sensors(*pair):
                one, other = self._names(pair)
                return f"only {one!r} and {other!r} together tell the rows apart", self._key_remedy(pair)
        return None

    def _key_remedy(self, columns: tuple[int, ...]) -> str:
        """Return the remedy for rows that only these columns together distinguish: hour, slot, quantity or sensor."""
        last = columns[-1]
        if self.is_dated() and self.holds_integers(last) and self.numbers(last) <= {*range(25)}:
            date, hour = self.names[self.times[0]], self.names[last]
            return f"{Argument('time_column', date)} {Argument('time_column', hour)} if {hour!r} is the hour"
        if parts := [at for at in columns if self.counts_times(at) or PART_OF_DAY.fullmatch(self.names[at])]:
            return self._as_times(self.names[parts[0]])
        if all(column_quantity(cells[last]) for cells in self.rows):
            return f"write a column for each {self.names[last]!r}"
        both = " ".join(str(Argument("sensor_column", name)) for name in self._names(columns))
        return f"{both} names a sensor by {'all' if len(columns) > 2 else 'both'} of them"

    def quantities(self, values: list[int]) -> list[str | None]:
        """Return the quantity in each column name without its unit; one letter counts only next to another quantity."""
        names = [without_unit(self.names[column]) for column in values]
        stated = [column_quantity(name) for name in names]
        several = len({*stated} - {None}) > 1
        return [quantity if several or len(name) > 1 else None for name, quantity in zip(names, stated, strict=True)]

    def one_sensor(self, values: list[int]) -> list[int] | None:
        """Return the observation columns in a single-sensor table, where each quantity occurs once; ``None`` for a
        column per sensor. Further columns are allowed, and returned too, next to two or more quantities.
        """
        names, stated = [without_unit(self.names[column]) for column in values], self.quantities(values)
        measured = [quantity for quantity in stated if quantity]
        if len(values) == 1:
            return values if measured or READING.fullmatch(names[0]) else None
        chosen = {column_quantity(channel) or channel for channel in self.request.channels}
        if self.request.channel and chosen & {*stated, *names, *(self.names[column] for column in values)}:
            return values
        measured_names = [name for name, quantity in zip(names, stated, strict=True) if quantity]
        if not measured or len({*measured}) < len(measured) or any(map(re.compile(".*[0-9]").match, measured_names)):
            return None
        read = zip(names, stated, strict=True)
        unknown = [
            name for name, quantity in read if not (quantity or OTHER.fullmatch(name) or NO_SENSOR.fullmatch(name))
        ]
        return values if len(measured) > 1 or not unknown else None

    def mixed_columns(self, values: list[int]) -> tuple[str, str] | None:
        """Return (problem, remedy) where columns per sensor differ in quantity or statistic; else ``None``."""
        names, stated = [self.names[column] for column in values], self.quantities(values)
        statistics = {name: match[1].lower() for name in names if (match := STATISTIC.fullmatch(without_unit(name)))}
        bare = [name for name in names if any(name in SEPARATED.split(more) for more in statistics if more != name)]
        statistics = dict.fromkeys(bare, "column without one") | statistics
        if len({*statistics.values()}) > 1:
            first = next(iter(statistics.values()))
            drops = " ".join(str(Argument("drop", name)) for name, kind in statistics.items() if kind != first)
            return f"columns hold several statistics ({sample(list(statistics))})", f"{drops} reads the {first} alone"
        hinted = {column_quantity(BEHIND.sub("", without_unit(name))) for name in names} - {None}
        letters = {match[1].lower() for match in map(LETTER.fullmatch, names) if match}
        if len({*stated}) < 2 and len(hinted) < 2 and len(letters) < 2:
            return None if any(map(column_quantity, names)) else self._other_scale(values)
        odd = next((name for name, quantity in zip(names, stated, strict=True) if quantity), names[-1])
        other = next((name for name, quantity in zip(names, stated, strict=True) if not quantity), None)
        problem = f"the columns are not all of one quantity ({sample(names, 6)})"
        named = f"{Argument('sensor_column', other)} if that names the sensor of each row" if other else ASK
        choices = f"{Argument('channel', odd)} reads that column alone, {Argument('drop', odd)} leaves it out"
        return problem, f"{named}; {choices}"

    def _other_scale(self, values: list[int]) -> tuple[str, str] | None:
        """Return (problem, remedy) where a column is a constant id, or medians differ 20-fold; else ``None``."""
        if len(self.rows) < PROVED or len(values) > MANY or len(values) < 2:
            return None
        medians = {}
        for column in values:
            read = [parse_number(cells[column], self.decimal, grouped=False) for cells in self.rows]
            numbers = [abs(float(number)) for number in read if number]
            medians[column] = float(np.median([number for number in numbers if number] or [0.0]))
            is_integer = self.rows[0][column].isdigit()
            if is_integer and len({*numbers}) == 1 and numbers[0] >= LONG_ID:
                name = self.names[column]
                problem = f"column {name!r} is {self.rows[0][column]} in every row"
                return problem, f"{Argument('sensor_column', name)} if it names the sensor, or {Argument('drop', name)}"
        stems = {BEHIND.sub("", self.names[column]) for column in values}
        large = max(medians, key=lambda column: medians[column])
        small = min(medians, key=lambda column: medians[column] or np.inf)
        if len(stems) <= len(values) / 2 or self.request.quantity or medians[large] <= SCALES * medians[small]:
            return None
        one, other = self.names[large], self.names[small]
        problem = f"columns differ in scale ({one!r} has {medians[large]:g} mostly, {other!r} {medians[small]:g})"
        either = f"{Argument('quantity', 'speed')} or {Argument('quantity', 'flow')} if each column is a sensor"
        middle = float(np.median([median for median in medians.values() if median]))
        far = [one if medians[large] * medians[small] > middle**2 else other]
        drops = " or ".join(str(Argument("drop", name)) for name in ((one, other) if len(values) == 2 else far))
        remedy = f"{drops} leaves it out; {either}"
        return problem, remedy

    def shares(self, values: tuple[int, ...]) -> bool:
        """Return whether all observations lie within 0 and 1, and some strictly between."""
        between = False
        for cell in (cells[column] for cells in self.rows for column in values):
            number = parse_number(cell, self.decimal, grouped=False)
            if number and not 0 <= float(number) <= 1:
                return False
            between = between or bool(number and 0 < float(number) < 1)
        return between and len(self.rows) >= PROVED

    def words(self, texts: list[int]) -> tuple[str, str] | None:
        """Return (problem, remedy) where a column in ``texts`` holds words, next to observations; else ``None``."""
        for column in texts if len(texts) < len(self.rest) and not self.request.channel else ():
            first = next(cells[column] for cells in self.rows if cells[column] not in NO_READING)
            if is_footer(first):
                name = self.names[column] or f"column {column + 1}"
                problem = f"column {name!r} holds words such as {first[:40]!a}"
                return problem, f"{Argument('sensor_column', name)} if they name sensors, or {Argument('drop', name)}"
        return None
