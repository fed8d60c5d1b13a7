"""A table's description, and the readings that a described table holds.

T times, N sensors, F features.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from socialx.core.errors import SettingsError
from socialx.files.sources.request import zone_name
from socialx.files.store.quantities import QUANTITIES, SPEED
from socialx.settings.file import read_tree

LONGEST, NAME = 200, 256  # characters of a pattern, and of a column's name that a pattern reads
SECONDS = {"s": 1, "ms": 1000}  # forms of times that count from 1970, by parts of a second
EXCEL = "excel"  # form of times that count days from 1900, as workbooks do
EVERY = "(?P<sensor>.+)"  # each other column is a sensor
EITHER = "|"  # between several texts of rows that stay or are left out
EXAMPLE = f"write for example {EVERY}_L(?P<lane>\\d)"
# A pattern is literals and named groups; a group holds digits, words, sets and literals, perhaps repeated.
LITERAL = r"(?:\\[^a-zA-Z0-9]|[^\\.^$*+?{}\[\]()|])"
ATOM = rf"(?:\\[dw]|\.|\[\^?(?:\\.|[^\]\\\[])+\]|{LITERAL})"
VARIES = r"(?:[+*?]\??|\{\d{1,3},\d{1,3}\})"
GROUP = rf"\(\?P<(?:sensor|lane|time)>(?:{ATOM}(?:{VARIES}|\{{\d{{1,3}}\}})?|\|)+\)\??"
PATTERN = re.compile(rf"(?:{GROUP}|{LITERAL})+")
MOST_VARIES = 2  # parts that vary in length; more take too long on a long name


@dataclass(frozen=True)
class TableSpec:
    """What a table holds.

    values: for each feature the column with its readings: a name, or a pattern whose groups ``sensor``, ``lane`` and
    ``time`` read the rest from the column's name, such as ``V(?P<time>\\d\\d)``.  A table with a column per sensor,
    lane or hour is thus described as one with a row per reading.
    time, sensor, lane: columns that say these in each row; several times are joined by a space, others by "-".
    form: how times are written (strptime); "" is ISO 8601, "s" and "ms" count from 1970, "excel" are serial days.
    seconds: a column of seconds to add to the time.  slot_s, slot_from: the seconds of one number of a time in a
    column's name, and the number of the first.  start, step_s: the clock of rows without times.
    shift_s: seconds to add to each time, such as -900 for ends of quarter hours.  round_s: seconds to whose nearest
    multiple times move.  until: the text before the end of an interval in a cell of times.
    zone: the zone of wall times, into which times with an offset are converted.
    units: by feature.  missing: numbers for a missing reading; None is 0 for speeds.  below: smaller numbers are none.
    only, never: rows that stay, and rows that are left out, by the text in a column, or one of
    several with | between.  drop: columns to leave out.
    latitude, longitude: columns with the position of a row's sensor.  name: the id of the only sensor.
    separator, decimal, thousands, encoding, skip: how a text is written; skip: lines above the header.
    names: the columns of a table without a header.
    weights: a column or pattern of flows, which weigh the speeds of lanes.
    """

    values: Mapping[str, str]
    time: tuple[str, ...] = ()
    sensor: tuple[str, ...] = ()
    lane: tuple[str, ...] = ()
    form: str = ""
    seconds: str = ""
    slot_s: int = 0
    slot_from: int = 0
    start: str = ""
    step_s: int = 0
    shift_s: int = 0
    round_s: int = 0
    until: str = ""
    zone: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[float, ...] | None = None
    below: float | None = None
    only: Mapping[str, str] = field(default_factory=dict)
    never: Mapping[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    latitude: str = ""
    longitude: str = ""
    name: str = ""
    separator: str = ""
    decimal: str = "."
    thousands: str = ""
    encoding: str = ""
    skip: int = 0
    names: tuple[str, ...] = ()
    weights: str = ""

    def __post_init__(self) -> None:
        """Raise SettingsError for values that contradict each other, or a pattern beyond groups and literals."""
        features = {QUANTITIES.get(name, name): form for name, form in self.values.items()}
        object.__setattr__(self, "values", features)
        object.__setattr__(self, "units", {QUANTITIES.get(name, name): unit for name, unit in self.units.items()})
        if not features or (odd := sorted({*features, *self.units} - {*QUANTITIES.values()})):
            problem = f"a quantity named {odd[0][:40]!a}" if features else "no quantity"
            raise SettingsError("spec.values", "", f"values has {problem}", f"choose {', '.join(QUANTITIES)}")
        forms = [*features.values(), *filter(None, [self.weights])]
        groups = set().union(*map(check_pattern, forms))
        if not (self.time or self.seconds or self.start or "time" in groups):
            raise SettingsError("spec.no-times", "", "no column of times", "set time to its name, or start and step_s")
        if self.seconds and not (self.time or self.start or "time" in groups):
            raise SettingsError("spec.seconds", "", f"seconds {self.seconds!a} count from no date", "set start or time")
        for name in ("slot_s", "step_s", "round_s", "skip"):
            if getattr(self, name) < 0:
                raise SettingsError("spec.negative", "", f"{name} is below 0", "write a number from 0")
        marks = {"decimal": self.decimal, "thousands": self.thousands, "separator": self.separator}
        if self.decimal not in (".", ",") or any(len(mark) > 1 for mark in marks.values()):
            raise SettingsError("spec.signs", "", f"the signs {marks} are not single ones", "write . or , as decimal")
        if self.decimal == self.thousands:
            raise SettingsError("spec.comma", "", f"decimal {self.decimal} is another sign, too", "choose other signs")
        if bool(self.latitude) != bool(self.longitude):
            raise SettingsError("spec.one-coordinate", "", "latitude or longitude lacks a column", "set both, or none")
        try:
            "".encode(self.encoding or "utf-8")
        except LookupError:
            problem = f"the encoding {self.encoding!a} is unknown"
            raise SettingsError("spec.encoding", "", problem, "write for example cp1252") from None
        if self.zone:
            zone_name(self.zone)

    @property
    def features(self) -> tuple[str, ...]:
        """The features in ``values``, in order."""
        return tuple(self.values)

    def codes(self, feature: str) -> tuple[float, ...]:
        """Return a feature's numbers for a missing reading: as described, else 0 for speed. Among several features 0 is
        a reading for all but speed.
        """
        if self.missing is None:
            return (0.0,) if feature == SPEED else ()
        return tuple(code for code in self.missing if code or feature == SPEED or [*self.values] == [feature])

    def as_json(self) -> str:
        """Return the description as JSON, without the values that are defaults; ``parse`` reads it."""
        return json.dumps(self._said(), ensure_ascii=False)

    def as_yaml(self) -> str:
        """Return the description as text for a file, a line for each value; ``load`` reads it."""
        said = self._said().items()
        return "".join(f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in said)

    def _said(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value != getattr(TableSpec, name, {})}


@cache
def check_pattern(form: str) -> frozenset[str]:
    """Return a pattern's group names; none for a column's name. Raises SettingsError for a pattern
    that is long, or has other parts than literals and groups.
    """
    if "(?P<" not in form:
        return frozenset()
    shown = f"the pattern {form[:60]!a}"
    if len(form) > LONGEST:
        raise SettingsError("spec.long", "", f"{shown}... has {len(form)} characters, more than {LONGEST}", EXAMPLE)
    if not PATTERN.fullmatch(form):
        raise SettingsError("spec.parts", "", f"{shown} may hold text and groups sensor, lane, time alone", EXAMPLE)
    varying = sum(len(re.findall(rf"{ATOM}{VARIES}", group)) for group in re.findall(GROUP, form))
    if varying > MOST_VARIES:
        problem = f"{shown} has {varying} parts that vary in length, more than {MOST_VARIES}"
        raise SettingsError("spec.varies", "", problem, "write \\d or \\d\\d for a number")
    try:
        return frozenset(re.compile(form).groupindex)
    except re.error as error:
        raise SettingsError("spec.pattern", "", f"{shown} is wrong ({error})", EXAMPLE) from None


UNSAID = TableSpec({"flow": "-"}, ("-",))  # of a table of which only the way of writing is asked


def read_name(form: str, name: str) -> tuple[str, str, str] | None:
    """Return the sensor, lane and time that a column's name says, empty where it does not; None for another column."""
    if name == form:
        return "", "", ""
    if not check_pattern(form) or len(name) > NAME or not (match := re.fullmatch(form, name)):
        return None
    groups = match.groupdict()
    return groups.get("sensor") or "", groups.get("lane") or "", groups.get("time") or ""


def load(path: Path) -> TableSpec:
    """Return the description in a YAML file. Raises SettingsError, which names the file, for what is none."""
    return _spec(path, read_tree(path, "a table: values, time, sensor, ..."))


def parse(text: str, where: object = "") -> TableSpec:
    """Return the description that ``as_json`` wrote; where: the file, for errors. Raises SettingsError."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        raise SettingsError("spec.json", where, "the description of the table is not JSON", "describe the table again")
    return _spec(where, tree)


def _spec(where: object, tree: dict[str, Any]) -> TableSpec:
    kinds = {one.name: one for one in fields(TableSpec)}
    for name in tree:
        if name not in kinds:
            raise SettingsError("spec.key", where, f"a table has no {str(name)[:40]!a}", f"choose {', '.join(kinds)}")
    if "values" not in tree:
        raise SettingsError("spec.empty", where, "the table has no values", "write for example values: {speed: COLUMN}")
    try:
        return TableSpec(**{name: _checked(where, kinds[name], value) for name, value in tree.items()})
    except SettingsError as error:
        message = error.messages[0]
        raise SettingsError(message.code, message.where or where, message.problem, message.remedy) from None


def _checked(where: object, one: Field[Any], value: Any) -> Any:
    """Return a file's value in its field's type. Raises SettingsError for another type."""
    kind, several = str(one.type).partition("[")[0].partition(" ")[0], value if isinstance(value, list) else [value]
    if value is None and "None" in str(one.type):
        return None
    if kind == "Mapping":
        if isinstance(value, dict) and all(isinstance(text, str) for pair in value.items() for text in pair):
            return value
        wants = "names with texts, such as {speed: COLUMN}"
    elif "float" in str(one.type):
        numbers = [] if value == "none" else several
        if all(type(code) in (int, float) and np.isfinite(code) for code in numbers):
            return tuple(map(float, numbers)) if kind == "tuple" else value
        wants = "a number" if kind == "float" else "numbers, or none"
    elif kind == "int":
        if type(value) is int and abs(value) < 1 << 40:
            return value
        wants = "a whole number"
    else:
        if all(isinstance(text, str | date) for text in several) and (kind == "tuple" or several != value):
            return tuple(map(str, several)) if kind == "tuple" else str(value)
        wants = "a text, in quotes if it looks like a number"
    raise SettingsError("spec.type", where, f"{one.name} is {str(value)[:40]!a}", f"write {wants}")
