"""Turn columns into rows: clock times next to a date, and lane quantities next to a sensor.

t rows, K labels, V observation columns. Columns are zero-based numbers; ``names`` are all column names in the table.
Where names fit no pattern, functions return None.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from socialx.files.sources.tables.columns import BETWEEN, column_quantity
from socialx.files.sources.tables.text_cells import Texts
from socialx.files.sources.tables.time_texts import EPOCH, MOMENT
from socialx.files.store.quantities import SPEED

DAY_MINUTES = 1440
# The end of an interval is not read.
CLOCK = re.compile(
    r"([01]?[0-9]|2[0-4])[:hH]([0-5][0-9])?(?::00)?(?: ?(?:-|\u2013|to|bis|a) ?[0-9]{1,2}[:hH](?:[0-9]{2})?(?::00)?)?"
)
NUMBERED = re.compile(r"(.*?)([0-9]{1,4})(.*?)")
IN_NAME = re.compile(
    r"(.+?)(?:[ _.-](?:l|lane|fs|spur|carril|voie)[ _-]?([0-9]{1,2}))?[ _.-]([a-zA-Z%]+)", re.IGNORECASE
)
SHORT = {"vol": "flow", "cnt": "flow", "spd": SPEED}  # names of quantities after a sensor name
MANY = 20  # columns, from which on the columns may be a day
COUNTS = (24, 48, 96, 288)  # of the times of a day
LONGER = (25, 50, 100, 300)  # of a day with an hour more
AGAIN = re.compile(r"[ _-]?(?:[a-zA-Z]|\(?2\)?)")  # behind the name of an hour that comes twice
HOURS = re.compile(r"(?:h|hr|hour|std|stunde|hora|heure|uur|ora|time)[ _-]?", re.IGNORECASE)  # before its number
LANES = 16  # of a sensor at most
DIRECTION = re.compile(r"(?:.*[ _-])?(?:r|dir|direction|richtung|sens|sentido)[ _-]?", re.IGNORECASE)  # before a number


@dataclass(frozen=True)
class Melt:
    """The plan to turn a row into K rows, each with a label and V observations.

    labels: the K texts, such as 00:15 or a lane name. groups: for each label, the V table columns with its
    observations. label: the number of the new label column, which follows all table columns; the V new observation
    columns follow the label column. names: the names of the V new columns.
    """

    labels: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    label: int
    names: tuple[str, ...]

    @property
    def values(self) -> tuple[int, ...]:
        """The zero-based numbers of the V new columns, which hold the observations: label + 1 to label + V."""
        return tuple(range(self.label + 1, self.label + 1 + len(self.groups[0])))

    def columns(self, numbers: tuple[int, ...]) -> list[int]:
        """Return the table columns behind the new observation columns ``numbers``, label after label."""
        return [group[number - self.label - 1] for group in self.groups for number in numbers]

    def texts(self, texts: dict[int, Texts], rows: int) -> dict[int, Texts]:
        """Return text columns by number, rows repeated K times, and the label column; ``rows``: the old row count."""
        labels = Texts([*self.labels], np.tile(np.arange(len(self.labels)), rows))
        return {number: column.repeat(len(self.labels)) for number, column in texts.items()} | {self.label: labels}

    def numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Reshape observations [t, K V] to [t K, V], as a row becomes K rows (K labels, V new columns)."""
        return numbers.reshape(len(numbers) * len(self.labels), numbers.shape[1] // len(self.labels))


def times_of_day(names: list[str], columns: list[int]) -> Melt | None:
    """Return a melt of columns such as V00 to V95, 01 to 24, or 00:15 with clock times as labels; otherwise ``None``.
    columns: the columns that may hold observations. Numbers from 0 mean interval begins; numbers from 1, interval ends.
    """
    clocks = {column: match for column in columns if (match := CLOCK.fullmatch(names[column]))}
    if len(clocks) > 2:
        minutes = {column: 60 * int(match[1]) + int(match[2] or 0) for column, match in clocks.items()}
    else:
        stems: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for column in columns:
            if match := NUMBERED.fullmatch(names[column]):
                stems[match[1], match[3]][column] = int(match[2])
        minutes = {}
        for numbered in stems.values():
            count, first = len(numbered), min(numbered.values())
            if sorted(numbered.values()) != list(range(first, first + count)) or first not in (0, 1):
                continue
            if count in (*COUNTS, *LONGER):
                step = DAY_MINUTES // (COUNTS[LONGER.index(count)] if count in LONGER else count)
                minutes = {column: number * step for column, number in numbered.items()}
    rising = list(minutes.values())
    if len(rising) < 3 or rising != sorted({*rising}):
        return None
    labels = tuple(f"{minute // 60:02}:{minute % 60:02}" for minute in rising)
    return Melt(labels, tuple((column,) for column in minutes), len(names), ("readings",))


def say_times(names: list[str], melt: Melt) -> bool:
    """Return whether all melted columns have names that state clock times, as 00:15 and H01 do, not just 01."""
    melted = [names[column] for group in melt.groups for column in group]
    matches = [NUMBERED.fullmatch(name) for name in melted]
    return all(map(CLOCK.fullmatch, melted)) or all(match and HOURS.fullmatch(match[1]) for match in matches)


def part_of_day(names: list[str], columns: list[int]) -> list[str]:
    """Return the largest group of names with one pattern, such as H00 to H22, in ``columns``; [] below 20 names."""
    stems: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in (names[column] for column in columns):
        if CLOCK.fullmatch(name):
            stems[":", ""].append(name)
        elif match := NUMBERED.fullmatch(name):
            stems[match[1], match[3]].append(name)
    most = max(stems.values(), key=len, default=[])
    return most if len(most) >= MANY else []


def hours_twice(names: list[str], melt: Melt) -> list[str]:
    """Return the names of the columns for the extra hour in a 25-hour day, such as 02B; [] for a 24-hour day."""
    melted = [names[column] for group in melt.groups for column in group]
    more = melted[COUNTS[LONGER.index(len(melted))] :] if len(melted) in LONGER else []
    again = {hour: name for name in names for hour in melted if name.startswith(hour) and name not in melted}
    return more or [name for hour, name in again.items() if AGAIN.fullmatch(name[len(hour) :])]


def is_label(name: str) -> bool:
    """Return whether a column name is a date with a clock time, or a number since 1970, thus labels one time."""
    return bool(MOMENT.fullmatch(name) or EPOCH.fullmatch(name))


def times_in_names(names: list[str]) -> Melt | None:
    """Return a melt of the columns named by times, in a table with a row per sensor; ``None`` for fewer than two."""
    columns = [column for column, name in enumerate(names) if is_label(name)]
    labels = tuple(names[column] for column in columns)
    return Melt(labels, tuple((column,) for column in columns), len(names), ("value",)) if len(columns) > 1 else None


def lanes_behind(names: list[str], columns: list[int]) -> Melt | None:
    """Return a melt of flow1, speed1, flow2, speed2 with lanes as labels; ``None`` unless all ``columns`` fit."""
    lanes: dict[str, dict[str, int]] = defaultdict(dict)
    for column in columns:
        match = re.fullmatch(r"(.*?[a-zA-Z%])[ _-]?([0-9]{1,2})", names[column])
        quantity = column_quantity(match[1].rstrip(" _-")) if match else None
        if match is None or quantity is None or quantity in lanes[match[2]] or DIRECTION.fullmatch(match[1]):
            return None
        lanes[match[2]][quantity] = column
    quantities = next(iter(lanes.values()), {})
    if not 1 < len(lanes) <= LANES or any({*lane} != {*quantities} for lane in lanes.values()):
        return None
    groups = tuple(tuple(lane[quantity] for quantity in quantities) for lane in lanes.values())
    return Melt(tuple(lanes), groups, len(names), tuple(quantities))


def sensors_in_names(names: list[str], values: list[int]) -> Melt | None:
    """Return a melt of S1_speed and S1_flow, or S1_L1_vol, with sensors or lanes as labels; ``None`` unless all fit.
    values: the observation columns. Returns ``None`` also for a single quantity without lanes: a column per sensor.
    """
    columns: dict[str, dict[str, int]] = defaultdict(dict)
    lanes = False
    for column in values:
        match = IN_NAME.fullmatch(names[column])
        quantity = match and (SHORT.get(match[3].lower()) or column_quantity(match[3]))
        sensor = f"{match[1]}{BETWEEN}{match[2]}" if match and match[2] else match[1] if match else ""
        if match is None or quantity is None or quantity in columns[sensor]:
            return None
        lanes = lanes or bool(match[2])
        columns[sensor][quantity] = column
    quantities = next(iter(columns.values()), {})
    if len(columns) < 2 or any({*by_quantity} != {*quantities} for by_quantity in columns.values()):
        return None
    groups = tuple(tuple(by_quantity[quantity] for quantity in quantities) for by_quantity in columns.values())
    return Melt(tuple(columns), groups, len(names), tuple(quantities)) if lanes or len(quantities) > 1 else None
