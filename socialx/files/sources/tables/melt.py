"""Columns that become rows: times of day behind a date, and quantities of lanes behind a sensor.

t rows, K columns that become rows, V columns of readings.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from socialx.files.sources.tables.columns import BETWEEN, quantity_of
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
SHORT = {"vol": "flow", "cnt": "flow", "spd": SPEED}  # names of quantities that only stand behind a sensor
MANY = 20  # columns, from which on they may be those of a day
COUNTS = (24, 48, 96, 288)  # of the times of a day
LONGER = (25, 50, 100, 300)  # of a day with an hour more
AGAIN = re.compile(r"[ _-]?(?:[a-zA-Z]|\(?2\)?)")  # behind the name of an hour that comes twice
HOURS = re.compile(r"(?:h|hr|hour|std|stunde|hora|heure|uur|ora|time)[ _-]?", re.IGNORECASE)  # before its number
LANES = 16  # of a sensor at most
DIRECTION = re.compile(r"(?:.*[ _-])?(?:r|dir|direction|richtung|sens|sentido)[ _-]?", re.IGNORECASE)  # before a number


@dataclass(frozen=True)
class Melt:
    """How a row becomes K rows, each with a label and V readings.

    labels: the K texts, such as 00:15, or the name of a lane.  groups: the V columns of each label.  label: the number
    that the column of labels gets, behind all others; those of the readings follow, ``values``.  names: of these.
    """

    labels: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    label: int
    names: tuple[str, ...]

    @property
    def values(self) -> tuple[int, ...]:
        """The numbers that the columns of readings get."""
        return tuple(range(self.label + 1, self.label + 1 + len(self.groups[0])))

    def columns(self, places: tuple[int, ...]) -> list[int]:
        """The columns of the table behind these, for each label in turn."""
        return [group[place - self.label - 1] for group in self.groups for place in places]

    def texts(self, texts: dict[int, Texts], rows: int) -> dict[int, Texts]:
        """Columns of texts by their number, each row as often as it is needed, with that of the labels."""
        labels = Texts([*self.labels], np.tile(np.arange(len(self.labels)), rows))
        return {place: column.repeated(len(self.labels)) for place, column in texts.items()} | {self.label: labels}

    def numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Readings [t, K V] -> [t K, V]."""
        return numbers.reshape(len(numbers) * len(self.labels), numbers.shape[1] // len(self.labels))


def times_of_day(names: list[str], places: list[int]) -> Melt | None:
    """Columns such as V00 to V95, 01 to 24, or 00:15 as the times of a day; None where there are none.

    A name with the numbers of a whole day from 0 on stands for the beginning of its interval; from 1 on, for its end.
    """
    clocks = {place: found for place in places if (found := CLOCK.fullmatch(names[place]))}
    if len(clocks) > 2:
        minutes = {place: 60 * int(found[1]) + int(found[2] or 0) for place, found in clocks.items()}
    else:
        stems: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for place in places:
            if found := NUMBERED.fullmatch(names[place]):
                stems[found[1], found[3]][place] = int(found[2])
        minutes = {}
        for numbered in stems.values():
            count, first = len(numbered), min(numbered.values())
            if sorted(numbered.values()) != list(range(first, first + count)) or first not in (0, 1):
                continue
            if count in (*COUNTS, *LONGER):
                step = DAY_MINUTES // (COUNTS[LONGER.index(count)] if count in LONGER else count)
                minutes = {place: number * step for place, number in numbered.items()}
    rising = list(minutes.values())
    if len(rising) < 3 or rising != sorted({*rising}):
        return None
    labels = tuple(f"{minute // 60:02}:{minute % 60:02}" for minute in rising)
    return Melt(labels, tuple((place,) for place in minutes), len(names), ("readings",))


def say_times(names: list[str], melt: Melt) -> bool:
    """Whether names of columns say themselves that they are times of day, as 00:15 and H01 do."""
    melted = [names[place] for group in melt.groups for place in group]
    found = [NUMBERED.fullmatch(name) for name in melted]
    return all(CLOCK.fullmatch(name) for name in melted) or all(each and HOURS.fullmatch(each[1]) for each in found)


def part_of_day(names: list[str], places: list[int]) -> list[str]:
    """The names of many columns such as H00 to H22 or 00:00 to 22:00, which are fewer or more than those of a day."""
    stems: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in (names[place] for place in places):
        if CLOCK.fullmatch(name):
            stems[":", ""].append(name)
        elif found := NUMBERED.fullmatch(name):
            stems[found[1], found[3]].append(name)
    most = max(stems.values(), key=len, default=[])
    return most if len(most) >= MANY else []


def hours_twice(names: list[str], melt: Melt) -> list[str]:
    """The columns of times of day that a day has only with an hour more."""
    melted = [names[place] for group in melt.groups for place in group]
    more = melted[COUNTS[LONGER.index(len(melted))] :] if len(melted) in LONGER else []
    again = {each: name for name in names for each in melted if name.startswith(each) and name not in melted}
    return more or [name for each, name in again.items() if AGAIN.fullmatch(name[len(each) :])]


def is_label(name: str) -> bool:
    """Whether a name of a column is a time."""
    return bool(MOMENT.fullmatch(name) or EPOCH.fullmatch(name))


def times_in_names(names: list[str]) -> Melt | None:
    """The columns whose names are times, of a table with a row for each sensor; None where there is one at most."""
    places = [place for place, name in enumerate(names) if is_label(name)]
    labels = tuple(names[place] for place in places)
    return Melt(labels, tuple((place,) for place in places), len(names), ("value",)) if len(places) > 1 else None


def lanes_behind(names: list[str], places: list[int]) -> Melt | None:
    """Columns such as flow1, speed1, flow2, speed2 as the lanes of a sensor; None where they are no such ones."""
    lanes: dict[str, dict[str, int]] = defaultdict(dict)
    for place in places:
        found = re.fullmatch(r"(.*?[a-zA-Z%])[ _-]?([0-9]{1,2})", names[place])
        quantity = quantity_of(found[1].rstrip(" _-")) if found else None
        if found is None or quantity is None or quantity in lanes[found[2]] or DIRECTION.fullmatch(found[1]):
            return None
        lanes[found[2]][quantity] = place
    quantities = next(iter(lanes.values()), {})
    if not 1 < len(lanes) <= LANES or any({*lane} != {*quantities} for lane in lanes.values()):
        return None
    groups = tuple(tuple(lane[quantity] for quantity in quantities) for lane in lanes.values())
    return Melt(tuple(lanes), groups, len(names), tuple(quantities))


def sensors_in_names(names: list[str], places: list[int]) -> Melt | None:
    """Columns such as S1_speed and S1_flow, or S1_L1_vol, as quantities of sensors or of their lanes; else None.

    One quantity without lanes is that of all columns, which are sensors then.
    """
    columns: dict[str, dict[str, int]] = defaultdict(dict)
    lanes = False
    for place in places:
        found = IN_NAME.fullmatch(names[place])
        quantity = found and (SHORT.get(found[3].lower()) or quantity_of(found[3]))
        sensor = f"{found[1]}{BETWEEN}{found[2]}" if found and found[2] else found[1] if found else ""
        if found is None or quantity is None or quantity in columns[sensor]:
            return None
        lanes = lanes or bool(found[2])
        columns[sensor][quantity] = place
    quantities = next(iter(columns.values()), {})
    if len(columns) < 2 or any({*each} != {*quantities} for each in columns.values()):
        return None
    groups = tuple(tuple(each[quantity] for quantity in quantities) for each in columns.values())
    return Melt(tuple(columns), groups, len(names), tuple(quantities)) if lanes or len(quantities) > 1 else None
