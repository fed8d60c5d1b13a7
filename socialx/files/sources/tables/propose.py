"""Propose how a table is read, from its first rows, the ids of ``--meta-csv`` and the user's options.

What rows or names alone suggest is never a proof.  A description is proved where ids name the columns or the cells of a
column, where an option says it, or where the table is a published one; each other guess is a question with the command
that answers it.  A *template* names columns of readings: ``{sensor}``, ``speed{lane}``, ``V{time}`` or just ``speed``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError
from socialx.core.errors import sample as listed
from socialx.files.sources.request import ConvertOptions, options
from socialx.files.sources.tables import words
from socialx.files.sources.tables.cells import ABSENT, NUMBER, Sample
from socialx.files.sources.tables.header import WIDE, Head, is_data, read_header
from socialx.files.sources.tables.known import Known, match
from socialx.files.sources.tables.spec import Grid, TableSpec, read_name
from socialx.files.sources.tables.table import read
from socialx.files.sources.tables.time_columns import DAY_S, MOMENT, Clock, find_clocks, clock_in_names
from socialx.files.store.ids import casefolded_key
from socialx.files.store.quantities import QUANTITIES, SPEED

GROUPS = {"{sensor}": "(?P<sensor>.+)", "{lane}": r"(?P<lane>\d+)", "{time}": r"(?P<time>\d.*)"}
CUT = re.compile(r"[ _.:/-]+")
IN_NAME = re.compile(r"(?:[a-zäöüß]{2,}[ _.-]?|[^lvqbk\d])?\d+[a-z]?|ot", re.IGNORECASE)  # what sensors may be called
PROVED, MANY, FEW, LANES = 10, 100, 30, 16  # rows; columns that may name sensors; texts of a kind of rows; lanes
SLOTS = (24, 48, 96, 144, 288)  # times of a day in columns
STRAY, LONELY = 0.01, 0.5  # shares of rows with several readings: of a clock change at most; of a table of many sensors
SLOWEST, FASTEST, VARIED = 15, 200, 0.5  # of speeds: medians, readings, and the deviation by the mean
STEPS = (60, 120, 180, 300, 600, 900, 1200, 1800, 3600)  # seconds between rows
BY_TABLE = "in a description for --table, which --dry-run prints"


@dataclass(frozen=True)
class Proposal:
    """A description of a table, None where there is none, and the questions that keep it from being proved."""

    spec: TableSpec | None
    questions: tuple[Message, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether the table may be read without a question."""
        return self.spec is not None and not self.questions


@dataclass(frozen=True)
class _Open:
    """A question: what was seen, the options that answer it by a guess, and what helps where none does."""

    problem: str
    added: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""


@dataclass(frozen=True, eq=False)
class _Table:
    """The first rows of a table, with what is said about it; ids: their casefolded keys."""

    head: Head
    request: ConvertOptions
    ids: frozenset[str]
    opens: list[_Open] = field(default_factory=list)

    @cached_property
    def columns(self) -> dict[str, list[str]]:
        """The cells by column, without dropped ones; of columns with equal names the first."""
        by_name: dict[str, list[str]] = {}
        for name, cells in zip(self.head.names, zip(*self.head.rows, strict=True), strict=False):
            by_name.setdefault(name, ["" if cell in ABSENT else cell for cell in cells])
        return {
            name: cells
            for name, cells in by_name.items()
            if not {name, words.split_unit(name)[0]} & {*self.request.drop}
        }

    @cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """The numbers of the columns that hold few other cells, by name."""
        decimal, thousands = (
            self.head.text.get(sign, default) for sign, default in (("decimal", "."), ("thousands", ""))
        )
        read = {}
        for name, cells in self.columns.items():
            filled = [
                (cell.replace(thousands, "") if thousands else cell).replace(decimal, ".") for cell in cells if cell
            ]
            numbers = [float(cell) for cell in filled if NUMBER.fullmatch(cell)]
            if filled and len(numbers) >= 0.9 * len(filled):
                read[name] = np.array(numbers)
        return read

    def values(self, *names: str) -> int:
        """Return how many different cells, or combinations of cells, the columns hold."""
        return len({*zip(*(self.columns[name] for name in names), strict=True)})

    def clashes(self, key: Sequence[str], reads: Sequence[str], only: Mapping[str, str]) -> float:
        """Return the share of rows whose readings differ from another row with equal cells in ``key``; of rows that
        have the texts ``only``.
        """
        kept = [
            all(self.columns[name][row] == text for name, text in only.items()) for row in range(len(self.head.rows))
        ]
        rows = defaultdict(set)
        count: dict[tuple[str, ...], int] = defaultdict(int)
        for row in np.flatnonzero(kept):
            cells = tuple(self.columns[name][row] for name in key)
            rows[cells].add(tuple(self.columns[name][row] for name in reads))
            count[cells] += 1
        return sum(count[cells] for cells, several in rows.items() if len(several) > 1) / max(1, sum(kept))

    def unit(self, name: str) -> str:
        """Return the unit of a column, by the line below the header or by its name; "" for none."""
        return self.head.units.get(name, "") or words.unit_in(name)

    def quantity(self, name: str) -> str | None:
        """Return the quantity that the words of a column's name, and not only its unit, suggest."""
        return words.quantity(words.split_unit(name)[0])

    def counts_rows(self, name: str) -> bool:
        """Return whether a column numbers the rows: whole numbers in order, none twice."""
        numbers = self.numbers.get(name, np.empty(0))
        steps = np.diff(numbers)
        whole = len(numbers) == len(self.head.rows) > 1 and bool((numbers % 1 == 0).all() and (steps > 0).all())
        return whole and (bool((steps == 1).all()) or bool(words.ROW_NUMBER.fullmatch(name)))

    def is_beside(self, name: str, sensors: Sequence[str]) -> bool:
        """Return whether a column of numbers holds no readings: part of a date, a place, a count of rows, or the same
        number in all rows (of a sensor).
        """
        numbers, many = self.numbers[name], len(self.head.rows) >= PROVED
        dated = (
            words.CALENDAR.fullmatch(name) and (numbers % 1 == 0).all() and 0 <= numbers.min() <= numbers.max() <= 2100
        )
        same = many and self.values(*sensors, name) == (self.values(*sensors) if sensors else 1)
        same = same and (not sensors or len(self.head.rows) >= PROVED * self.values(*sensors))
        return bool(dated or same or self.counts_rows(name) or words.PLACE.fullmatch(name))


def propose(sample: Sample, request: ConvertOptions, ids: Collection[int | str] = ()) -> Proposal:
    """Return how the table is read; ids: those of the user's table of positions, or of the file to extend.

    Raises SettingsError for an option that names no column.
    """
    spec, table = _decided(sample, request, ids)
    opens = table.opens
    if spec is not None and not opens:
        return Proposal(spec)
    added = {name: value for question in opens for name, value in question.added.items()}
    remedies = [question.remedy or _arguments(question.added) for question in opens]
    if spec is not None and all(question.added for question in opens) and _answers(sample, request, ids, added):
        remedies = [""] * (len(opens) - 1) + [_command(request, added)]
    asked = zip(opens, remedies, strict=True)
    return Proposal(spec, tuple(Message(request.where, question.problem, remedy) for question, remedy in asked))


def _decided(sample: Sample, request: ConvertOptions, ids: Collection[int | str]) -> tuple[TableSpec | None, _Table]:
    """Return the likeliest description, None where there is none, and the table with what keeps it from being proved."""
    speeds = request.quantity == SPEED or (words.parse_unit(request.units or "") or ("",))[0] == SPEED
    head = read_header(sample, request.decimal, speeds=speeds)
    table = _Table(head, request, frozenset(casefolded_key(str(vdid)) for vdid in ids))
    table.opens.extend([_Open(head.unclear[0], remedy=head.unclear[1])] if head.unclear else [])
    spec = _decide(table)
    if spec is not None and request.round_times:
        spec = replace(spec, round_s=request.step_s or _step(table, spec))
    return spec, table


def _grid(table: _Table, spec: TableSpec) -> Grid:
    """Return the sampled rows as they are described. Raises SocialxError."""
    import pyarrow as pa

    cells = [pa.array(column, pa.string()) for column in zip(*table.head.rows, strict=True)]
    rows = pa.Table.from_arrays(cells, list(table.head.names))
    return read([rows], replace(spec, skip=0, names=(), separator="", encoding="", round_s=0))


def _step(table: _Table, spec: TableSpec) -> int:
    """Return the usual step of seconds between the readings of a sensor; 60 where it is unclear."""
    try:
        grid = _grid(table, spec)
    except SocialxError:
        return STEPS[0]
    steps = [np.diff(grid.seconds[np.isfinite(column)]) for column in grid.values[..., 0].T]
    usual = float(np.median(np.concatenate(steps))) if any(map(len, steps)) else 0
    return min(STEPS, key=lambda step: abs(step - usual))


def _answers(sample: Sample, request: ConvertOptions, ids: Collection[int | str], added: Mapping[str, Any]) -> bool:
    """Return whether options prove a description by which the first rows are readings of sensors that recur."""
    try:
        spec, table = _decided(sample, replace(request, **added), ids)
        if spec is None or table.opens:
            return False
        grid = _grid(table, spec)
    except SocialxError:
        return False
    share = np.isfinite(grid.values).mean() * (len(grid.ids) if request.round_times else 1)  # else each has own times
    return len(grid.seconds) > 1 and bool(share >= 0.5)


def _typed(name: str, value: Any) -> list[Any]:
    """Return the values of an option as they are typed, one for each time that it is given."""
    if name == "quantity":
        return [next((typed for typed, feature in QUANTITIES.items() if feature == value), value)]
    if name in ("step_s", "resample"):
        return [f"{value // 60}min"]
    if name == "missing":
        return [",".join(f"{code:g}" for code in value) or "none"]
    return list(value) if isinstance(value, tuple) else [str(value) if isinstance(value, Path) else value]


def _arguments(added: Mapping[str, Any]) -> str:
    return " ".join(str(Argument(name, one)) for name, value in added.items() for one in _typed(name, value))


def _either(name: str, choices: Iterable[str]) -> str:
    return " or ".join(str(Argument(name, choice)) for choice in list(choices)[:3])


def _command(request: ConvertOptions, added: Mapping[str, Any]) -> str:
    """Return the user's command with the options ``added``; for rows in memory and for append only these options."""
    if request.known_ids or request.frame is not None:
        return _arguments(added)
    said = {}
    for name, option in options().items():
        value = added.get(name, getattr(request, name))
        if value not in (None, False, ()) or (name == "missing" and value == ()):
            typed = _typed(name, value)
            said[option.name or name] = typed if len(typed) > 1 else typed[0]
    return str(Command("convert", "auto", request.data, *request.more, **said, output="OUT.h5"))


# The decision.


def _decide(table: _Table) -> TableSpec | None:
    """Return the likeliest description, None where there is none; questions go to ``table.opens``."""
    head, request = table.head, table.request
    _check_options(table)
    if (entry := match(head.names, head.rows[0] if head.rows else ())) and _agrees(entry[1], entry[0], table):
        return _published(table, *entry)
    if not table.columns or not head.rows:
        table.opens.append(_Open("no rows of times and numbers follow the header", remedy="name a table"))
        return None
    if is_data(head.names[0]) and (MOMENT.fullmatch(head.names[0]) or not request.first_time):
        problem = f"the first line names no columns ({listed([name for name in head.names if name], 4)})"
        helps = f"write names above it, such as time,sensor,speed, or give names {BY_TABLE}"
        table.opens.append(_Open(problem, remedy=helps))
        return None
    clock = _clock(table)
    if clock is None:
        return None
    templates, sensors = _layout(table, clock)
    features = _features(table, templates, clock) if templates else {}
    if not features:
        return None
    return _without_clashes(table, _spec(table, clock, features, sensors))


def _check_options(table: _Table) -> None:
    """Raise SettingsError for an option that names no column."""
    request, names = table.request, {*table.head.names}
    said = {"time_column": request.time_column, "sensor_column": request.sensor_column, "drop": request.drop}
    for argument, name in ((argument, name) for argument, given in said.items() for name in given):
        if name not in names and not (argument == "drop" and name in {words.split_unit(one)[0] for one in names}):
            problem = f"{Argument(argument, name)} is no column of {request.where}"
            raise SettingsError("", problem, f"choose of {listed([one for one in table.head.names if one], 12)}")


def _agrees(spec: TableSpec, entry: Known, table: _Table) -> bool:
    """Return whether the options say nothing else than a published description."""
    request = table.request
    channels = [request.channel] if request.channel in table.columns else (request.channel or "").split(",")
    asked = (entry.asks and len(spec.values) == 1) or request.quantity in (None, *spec.values) or bool(request.channel)
    return (
        asked
        and request.sensor_column in ((), spec.sensor)
        and request.time_column in ((), spec.time)
        and request.time_format in (None, spec.form)
        and all(not name or name in table.columns or name in (*QUANTITIES, *spec.values) for name in channels)
    )


def _published(table: _Table, entry: Known, spec: TableSpec) -> TableSpec | None:
    """Return the description of a published table, with the quantity that the user asks for."""
    request, values = table.request, dict(spec.values)
    if request.channel:
        channels = [request.channel] if request.channel in table.columns else request.channel.split(",")
        asked = {QUANTITIES.get(name, name) for name in channels}
        values = {feature: form for feature, form in values.items() if {feature, form} & asked}
        if len(values) < len(channels):
            values = _features(table, channels, Clock(spec.time))
    elif request.quantity:
        values = {request.quantity: values.get(request.quantity, next(iter(values.values())))}
    elif SPEED in values:
        values = {SPEED: values[SPEED]}
    if len(values) > 1 and not request.channel:
        names = {feature: _typed("quantity", feature)[0] for feature in values}
        problem = f"the table holds {' and '.join(names.values())}"
        table.opens.append(_Open(problem, {"quantity": next(iter(values))}, _either("quantity", names.values())))
        values = dict([*values.items()][:1])
    name = next(iter(values.values()))
    unsaid = request.quantity is None and not request.channel and not words.parse_unit(request.units or "")
    names = _matches(table, name, *spec.time)
    if unsaid and (entry.asks or ("{sensor}" in name or "(?P<sensor>" in name) and _likely(table, names) == "flow"):
        table.opens.append(_what_is(table, name if entry.asks else "the table", names))
    text = {key: value for key, value in table.head.text.items() if key not in ("never", "names" if spec.names else "")}
    units = {feature: unit for feature, unit in spec.units.items() if feature in values}
    spec = replace(spec, **text, **_said(table), values=values, units=units | _said_unit(table, values))
    return _without_clashes(table, spec)


def _said(table: _Table) -> dict[str, Any]:
    """Return the fields that options say in any layout."""
    request = table.request
    said = {"zone": request.timezone, "missing": request.missing, "drop": request.drop or None}
    return {name: value for name, value in said.items() if value is not None}


def _said_unit(table: _Table, values: Mapping[str, str]) -> dict[str, str]:
    return {SPEED if SPEED in values else next(iter(values)): table.request.units} if table.request.units else {}


def _clock(table: _Table) -> Clock | None:
    """Return the columns of times; None, with a question, where there are none."""
    request = table.request
    others = {*request.sensor_column, request.channel}
    said = request.time_column or tuple(name for name in list(table.columns)[:MANY] if name not in others)
    cells = {name: table.columns[name] for name in said if name in table.columns}
    if request.first_time and (not request.time_column or said[0] in table.numbers):
        return Clock((), seconds=request.time_column[0] if request.time_column else "")
    ways = find_clocks(cells, request.time_format or "")
    ways = [way for way in ways if {*way.columns} == {*request.time_column} or not request.time_column]
    if not ways:
        if clock := clock_in_names(table.head.names):
            return clock
        lists = [name for name, texts in cells.items() if texts[0].startswith("[")]
        problem = f"cells of {listed(lists)} hold lists" if lists else "no column holds times"
        helps = f"name it: {Argument('time_column', 'NAME')}, or add {Argument('first_time', 'YYYY-MM-DD HH:MM:SS')}"
        table.opens.append(_Open(problem, remedy="make a row of each item: docs/how-to/recipes.md" if lists else helps))
        return None
    best = ways[0]
    if len(ways) > 1 or not best.sure:
        either = " or ".join(_arguments({"time_column": way.columns}) for way in ways[:3])
        problem = f"times may be in {listed([' and '.join(way.columns) for way in ways], 4)}"
        table.opens.append(_Open(problem, {"time_column": best.columns}, either))
    if len(best.forms) > 1:
        first = " ".join(table.columns[name][0] for name in best.columns)
        problem = f"day and month of times like {first} may be swapped"
        table.opens.append(_Open(problem, {"time_format": best.forms[0]}, _either("time_format", best.forms)))
    return best


# Readings and sensors.


def pattern(template: str) -> str:
    """Return the pattern of a template, or the name of a column as it is."""
    if "(?P<" in template or not any(group in template for group in GROUPS):
        return template
    parts = re.split(r"(\{(?:sensor|lane|time)\})", template)
    return "".join(GROUPS.get(part) or re.escape(part) for part in parts)


def _bare(template: str) -> str:
    """Return the words of a template, without groups and the signs around them."""
    return re.sub(r"\{\w+\}", "", template).strip(" _.-")


def _matches(table: _Table, template: str, *without: str) -> list[str]:
    """Return the columns of a template, other than ``without``, and than those in which ids stand otherwise."""
    form = pattern(template)
    names = [name for name in table.columns if name not in without and read_name(form, name) is not None]
    if not table.ids or "{sensor}" not in template:
        return names
    return [name for name in names if _template(name, table.ids) in ("", template)]


def _layout(table: _Table, clock: Clock) -> tuple[Sequence[str], Sequence[str]]:
    """Return the templates of readings and the columns of sensors, with a question for each that is not proved."""
    request = table.request
    said = _channels(table, clock)
    wide = [] if said or request.sensor_column else _named_by_ids(table, clock)
    joined = [] if request.sensor_column else _joined(table, not wide, *clock.columns, *said)
    if wide and joined:
        problem = f"ids are in column {joined[0]!r} and in names of columns ({listed(_matches(table, wide[0]))})"
        table.opens.append(_Open(problem, {"sensor_column": (joined[0],)}))
    elif wide:
        best = _fitting(table, wide) or wide
        if len(wide) > 1:
            problem = f"each sensor has several columns ({listed(wide, 6)})"
            table.opens.append(_Open(problem, {"channel": best[0]} if len(best) == 1 else {}, _either("channel", wide)))
        return best[:1], ()
    sensors = request.sensor_column or tuple(joined[:1])
    if len(joined) > 1 and table.values(*joined) > table.values(joined[0]):
        problem = f"ids are in {listed(joined)}"
        table.opens.append(_Open(problem, {"sensor_column": sensors}, _either("sensor_column", joined)))
    templates = said or _guess_readings(table, clock, sensors)
    if not templates or any("{sensor}" in template or "(?P<sensor>" in template for template in templates):
        return templates, sensors if said else ()
    return templates, sensors or _guess_sensors(table, clock, templates)


def _joined(table: _Table, any_number: bool, *without: str) -> list[str]:
    """Return the columns at least half of whose different cells are ids; those called like sensors, if any; ``any_number``: else
    columns of numbers, too.
    """
    shares = {}
    for name in list(table.columns)[:MANY] if table.ids else ():
        cells = {casefolded_key(cell) for cell in table.columns[name] if cell}
        if name not in without and cells and 2 * len(cells & table.ids) >= len(cells):
            shares[name] = words.SENSOR.fullmatch(name) or name not in table.numbers
    return [name for name, sure in shares.items() if sure] or ([*shares] if any_number else [])


def _channels(table: _Table, clock: Clock) -> list[str]:
    """Return the templates that the user names by a column, a template or a quantity."""
    channel, templates = table.request.channel, list[str]()
    free = [name for name in table.numbers if name not in clock.columns]
    for name in [] if channel is None else [channel] if channel in table.columns else channel.split(","):
        bare = [column for column in table.columns if words.split_unit(column)[0] == name]
        alike = [one for one in free if words.quantity(one, table.unit(one)) == QUANTITIES.get(name.lower(), name)]
        lanes = f"{name}{{lane}}"
        if name in table.columns or ("(" in pattern(name) and _matches(table, name)):
            templates.append(name)
        elif len(bare) == 1 or len(alike) == 1:
            templates += bare or alike
        elif len(_matches(table, lanes)) > 1:
            table.opens.append(_Open(f"{name} is in {listed(_matches(table, lanes))}", {"channel": lanes}))
            templates.append(lanes)
        else:
            problem = f"{Argument('channel', name)} names no column of observations"
            raise SettingsError("", problem, f"choose of {listed(alike or free, 6)}")
    return templates


def _named_by_ids(table: _Table, clock: Clock) -> list[str]:
    """Return the templates by which at least half of the columns of numbers are named after ids."""
    count: dict[str, int] = defaultdict(int)
    numbers = [name for name in table.numbers if name not in clock.columns] if table.ids else []
    for name in numbers:
        count[_template(name, table.ids)] += 1
    named = {template: times for template, times in count.items() if template}
    return [*named] if 2 * sum(named.values()) >= len(numbers) > 0 else []


def _template(name: str, ids: Collection[str]) -> str:
    """Return the template of a name in which an id stands between signs, the longest one; "" for none."""
    if casefolded_key(name) in ids:
        return "{sensor}"
    ends = sorted({0, len(name), *(at for mark in CUT.finditer(name) for at in mark.span())})
    for begin, end in sorted(combinations(ends, 2), key=lambda cut: cut[0] - cut[1]):
        vdid = name[begin:end]
        if vdid and not CUT.fullmatch(vdid[0]) and not CUT.fullmatch(vdid[-1]) and casefolded_key(vdid) in ids:
            lane = re.fullmatch(
                r"([ _.-]?(?:lane|spur|fahrstreifen|fs|l)?[ _.-]?)[0-9]{1,2}", name[end:], re.IGNORECASE
            )
            return f"{name[:begin]}{{sensor}}{f'{lane[1]}{{lane}}' if lane else name[end:]}"
    return ""


def _fitting(table: _Table, templates: Sequence[str]) -> list[str]:
    """Return the templates of the asked quantity, by their words; the one called exactly so, if there is one."""
    asked = table.request.quantity or SPEED
    alike = [one for one in templates if table.quantity(_bare(one)) == asked or not _bare(one)]
    return [one for one in alike if _bare(one).lower() in ("", *QUANTITIES)] or alike


def _guess_readings(table: _Table, clock: Clock, sensors: Sequence[str]) -> list[str]:
    """Return the template of the readings: the only number, or a guess with a question; [] for none."""
    taken = {*clock.columns, *sensors, *(name for name in table.numbers if sensors and words.LANE.fullmatch(name))}
    numbers = [name for name in table.numbers if name not in taken]
    if len(numbers) <= WIDE:
        numbers = [name for name in numbers if not table.is_beside(name, sensors)]
    if clock.named:
        return ["{time}"]
    if clock.dated and (day := _day_template(numbers)):
        if day != "{time}" or ":" not in "".join(numbers):
            names = _matches(table, day, *clock.columns)
            table.opens.append(_Open(f"columns {names[0]!r} to {names[-1]!r} may be times of day", {"channel": day}))
        return [day]
    if not numbers:
        helps = f"name it: {Argument('channel', 'NAME')}"
        table.opens.append(_Open("no column holds numbers that vary", remedy=helps))
        return []
    named = [name for name in numbers if table.quantity(name) or words.READING.fullmatch(words.split_unit(name)[0])]
    single = len(numbers) > MANY or table.clashes(clock.columns, numbers, {}) <= STRAY
    if len(numbers) == 1 and (sensors or named or not single):
        return numbers
    if not sensors and not named and single and not _sensor_like(table, clock.columns):
        ends = {words.split_unit(name)[1] for name in numbers}
        template = f"{{sensor}}{ends.pop() if len(ends) == 1 else ''}"
        helps = f"{Argument('channel', template)} if each column is a sensor, else {Argument('channel', 'NAME')}"
        added = {"channel": template} if _are_names([words.split_unit(name)[0] for name in numbers]) else {}
        table.opens.append(_Open(f"each column may be a sensor ({listed(numbers)})", added, helps))
        return [template]
    groups = _repeated(numbers) or named or numbers
    likely = _fitting(table, groups) or [
        one for one in groups if table.quantity(_bare(one)) and not table.request.quantity
    ]
    problem = f"several columns may be the reading ({listed(numbers, 6)})"
    added = {"channel": likely[0]} if len(likely) == 1 else {}
    table.opens.append(_Open(problem, added, _either("channel", groups)))
    return [*likely, *groups][:1]


def _are_names(names: Sequence[str]) -> bool:
    """Return whether columns are called as sensors may be: by numbers of three digits, by letters with numbers, or
    counted from 0 or 1, and eight at least; not by classes and statistics.
    """
    if not all(IN_NAME.fullmatch(name) and not words.LANE.match(name) and not words.quantity(name) for name in names):
        return False
    short = sorted(int(name) for name in names if name.isdigit() and len(name) < 3)
    return not short or (len(names) >= 8 and short[0] in (0, 1) and short[-1] - short[0] == len(short) - 1)


def _sensor_like(table: _Table, without: Collection[str]) -> list[str]:
    """Return the columns that are called like sensors and do not number the rows."""
    rest = [name for name in list(table.columns)[:MANY] if name and name not in without]
    return [name for name in rest if words.SENSOR.fullmatch(name) and not table.counts_rows(name)]


def _day_template(numbers: Sequence[str]) -> str:
    """Return the template of columns that count the times of a day, as V00 to V95 and 00:15 do; "" for none."""
    if sum(bool(re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?", name)) for name in numbers) >= SLOTS[0]:
        return "{time}"
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name in numbers:
        if number := re.fullmatch(r"(.*?)([0-9]{1,3})(\D*)", name):
            groups[number[1], number[3]].append(int(number[2]))
    days = [key for key, count in groups.items() if len(count) in SLOTS and max(count) - min(count) == len(count) - 1]
    return f"{days[0][0]}{{time}}{days[0][1]}" if len(days) == 1 else ""


def _repeated(numbers: Sequence[str]) -> list[str]:
    """Return templates of quantities that come again: with the number of a lane behind, or behind a sensor's name."""
    count: dict[str, int] = defaultdict(int)
    for name in numbers:
        if (lane := re.fullmatch(r"(.*\D)\d{1,2}", name)) and words.quantity(lane[1].strip(" _.-")):
            count[f"{lane[1]}{{lane}}"] += 1
        elif (sensor := re.fullmatch(r".*\d([ _.-]\D+)", name)) and words.quantity(sensor[1].strip(" _.-")):
            count[f"{{sensor}}{sensor[1]}"] += 1
    return [template for template, times in count.items() if 1 < times and ("{sensor}" in template or times <= LANES)]


def _guess_sensors(table: _Table, clock: Clock, templates: Sequence[str]) -> Sequence[str]:
    """Return the columns that may name the sensor of a row, with a question; () for a table of one sensor."""
    reads = [name for template in templates for name in _matches(table, template, *clock.columns)]
    named = _sensor_like(table, (*clock.columns, *reads))
    free = [name for name in list(table.columns)[:MANY] if name not in (*clock.columns, *reads)]
    free.sort(key=lambda name: name not in named)
    if clock.columns and table.clashes(clock.columns, reads, {}) <= 2 * STRAY:
        if named and "{time}" not in templates:
            helps = (
                f"{Argument('sensor_column', named[0])}, or {_arguments({'drop': tuple(named)})} if there is one sensor"
            )
            problem = f"column {named[0]!r} may name the sensors"
            table.opens.append(_Open(problem, {"sensor_column": (named[0],)}, helps))
        return named[:1] if "{time}" not in templates else ()
    rows = len(table.head.rows) * (1 if clock.columns else 2)  # with times in columns, a row for each sensor
    for group in (group for size in (1, 2) for group in combinations(free[: MANY // 4], size)):
        if 2 * table.values(*group) <= rows and table.clashes((*clock.columns, *group), reads, {}) <= STRAY:
            sure = group[0] in named and all(name in named or words.PART.fullmatch(name) for name in group)
            problem = f"rows of one time differ in {' and '.join(map(repr, group))} ({_texts(table, group[0])})"
            helps = f"{_arguments({'sensor_column': group})} if that names sensors; else keep one kind with only, {BY_TABLE}"
            table.opens.append(_Open(problem, {"sensor_column": group} if sure else {}, helps))
            return group
    problem = "no column tells the rows of one time apart"
    table.opens.append(_Open(problem, remedy=f"name the columns of sensors: {Argument('sensor_column', 'NAME')}"))
    return ()


def _texts(table: _Table, name: str) -> str:
    return listed(sorted({*table.columns[name]}), 4)


def _features(table: _Table, templates: Sequence[str], clock: Clock) -> dict[str, str]:
    """Return the template by feature, with a question where it is unclear what is measured."""
    request, features = table.request, dict[str, str]()
    if len(templates) > 1 and request.quantity:
        raise SettingsError("", f"{Argument('quantity')} describes one channel, not {request.channel}", "drop it")
    for template in templates:
        names, bare = _matches(table, template, *clock.columns), _bare(template)
        unit = table.unit(names[0]) if names else ""
        feature = request.quantity or words.quantity(bare or unit, unit)
        if feature is None and len(templates) == 1 and (measured := words.parse_unit(request.units or "")):
            feature = measured[0]
        if feature is None:
            plain = not bare or "{" in template or words.READING.fullmatch(bare)
            by_file = words.quantity(request.data.name.split(".")[0]) if plain and request.frame is None else None
            likely = _likely(table, names)
            feature = by_file or likely or SPEED
            if not by_file and not (plain and likely == SPEED):
                table.opens.append(_what_is(table, f"column {template!r}" if template in names else "the table", names))
        if feature in features:
            raise SettingsError(request.where, f"{template} is a second column of {feature}", "choose one of them")
        features[feature] = template
    return features


def _what_is(table: _Table, subject: str, names: Sequence[str]) -> _Open:
    """Return the question what columns measure."""
    likely = _likely(table, names) if "%" not in subject else ""
    share = "; no reading is above 1" if likely == "occupancy" else ""
    problem = f"{subject} does not say what it measures{share}"
    return _Open(problem, {"quantity": likely} if likely else {}, f"say it: {_either('quantity', QUANTITIES)}")


def _likely(table: _Table, names: Sequence[str]) -> str:
    """Return the quantity that numbers look like: shares, speeds with decimals, or counts; "" where all are equal."""
    reads = [table.numbers[name] for name in names if name in table.numbers]
    numbers = np.concatenate(reads) if reads else np.empty(0)
    numbers = numbers[numbers > 0]
    if not len(numbers) or np.ptp(numbers) == 0:
        return ""
    if numbers.max() <= 1:
        return "occupancy"
    if (numbers % 1 == 0).all():
        return "flow"
    varied, middle = numbers.std() / numbers.mean(), np.median(numbers)
    return SPEED if numbers.max() <= FASTEST and varied <= VARIED and middle >= SLOWEST else ""


# The description.


def _spec(table: _Table, clock: Clock, features: Mapping[str, str], sensors: Sequence[str]) -> TableSpec:
    """Return the description of the columns."""
    request, template, text = table.request, next(iter(features.values())), dict(table.head.text)
    columns = {feature: _matches(table, one, *clock.columns, *sensors) for feature, one in features.items()}
    names = [name for read in columns.values() for name in read]
    drop = [name for name in table.head.names if {name, words.split_unit(name)[0]} & {*request.drop}]
    if "{sensor}" in template:
        every = _matches(table, pattern(template), *clock.columns)
        drop += [name for name in every if name not in names or _is_no_sensor(table, name)]
        strange = [name for name in names if table.ids and name not in drop and not _template(name, table.ids)]
        if strange and request.without_positions and not request.channel:
            problem = f"columns are no ids of {request.meta_csv} ({listed(strange)})"
            table.opens.append(
                _Open(problem, {"drop": (*request.drop, *strange)}, _arguments({"drop": tuple(strange)}))
            )
    units = {}
    for feature, read in columns.items():
        measured = words.parse_unit(table.unit(read[0])) if read else None
        units |= {feature: measured[1]} if measured and measured[0] in (feature, "occupancy") else {}
    totals = text.pop("never", {})
    fields = {
        "time": clock.columns,
        "sensor": tuple(sensors),
        "form": clock.forms[0],
        "until": clock.until,
        "seconds": clock.seconds,
        "shift_s": clock.shift_s,
        "weights": _weights(table, features),
        "never": totals if clock.columns[:1] == (table.head.names[0],) else {},
        **_places(table, sensors),
        **_said(table),
        **_slots(table, template, names, clock),
        "drop": tuple(dict.fromkeys(drop)),
        "units": units | _said_unit(table, features),
    }
    if not clock.columns and request.first_time:
        fields |= {"start": request.first_time, "step_s": 0 if clock.seconds else request.step_s or 0, "form": ""}
    return TableSpec({feature: pattern(one) for feature, one in features.items()}, **text, **fields)


def _is_no_sensor(table: _Table, name: str) -> bool:
    """Return whether a column beside those of sensors holds texts, counts rows, or says a part of the date."""
    if table.ids and _template(name, table.ids):
        return False
    dated = words.CALENDAR.fullmatch(name) and (table.numbers.get(name, np.ones(1)) % 1 == 0).all()
    return name not in table.numbers or table.counts_rows(name) or bool(dated)


def _places(table: _Table, sensors: Sequence[str]) -> dict[str, str]:
    """Return the columns of latitude and longitude of a table with a row per sensor and time."""
    both = [[name for name in table.numbers if form.fullmatch(name)] for form in (words.LATITUDE, words.LONGITUDE)]
    if table.request.meta_csv is not None or not sensors or not all(len(names) == 1 for names in both):
        return {}
    (latitude,), (longitude,) = both
    degrees = np.abs(table.numbers[latitude]).max() <= 90 and np.abs(table.numbers[longitude]).max() <= 180
    return {"latitude": latitude, "longitude": longitude} if degrees else {}


def _slots(table: _Table, template: str, names: Sequence[str], clock: Clock) -> dict[str, Any]:
    """Return how times in names of columns are read: by number, or as clocks beside a date."""
    labels = [label[2] for name in names if (label := read_name(pattern(template), name))]
    if "time" not in template or not clock.columns or not labels:
        return {}
    if all(":" in label for label in labels):
        return {"form": f"{clock.forms[0] or '%Y-%m-%d'} %H:%M" + ":%S" * (labels[0].count(":") == 2)}
    numbers = sorted(int(label) for label in labels if label.isdigit())
    if len(numbers) == len(labels) and len(numbers) in SLOTS and numbers[0] in (0, 1):
        return {"slot_s": DAY_S // len(numbers), "slot_from": numbers[0]}
    problem = f"columns {names[0]!r} to {names[-1]!r} make no whole day"
    table.opens.append(_Open(problem, remedy="call those of times of day 00:00, 01:00 and so on, each once"))
    return {}


def _weights(table: _Table, features: Mapping[str, str]) -> str:
    """Return the pattern of the flows that weigh the speeds of lanes; "" for none."""
    template = features.get(SPEED, "")
    if "{lane}" not in template or len(features) > 1:
        return ""
    flows = [one for one in _repeated([*table.numbers]) if table.quantity(_bare(one)) == "flow"]
    same = [one for one in flows if len(_matches(table, one)) == len(_matches(table, template))]
    return pattern(same[0]) if len(same) == 1 else ""


def _without_clashes(table: _Table, spec: TableSpec) -> TableSpec:
    """Return the description, with lanes where a column of lanes tells rows of one time and sensor apart; a question
    for any other column that does.
    """
    used = {*spec.time, *spec.sensor, *spec.lane, spec.seconds}
    key = [name for name in table.columns if name in used]
    reads = [name for form in spec.values.values() for name in _matches(table, form, *key, *spec.drop)]
    only = {name: text for name, text in spec.only.items() if name in table.columns}
    if not key or len(reads) > WIDE or (clash := table.clashes(key, reads, only)) <= STRAY:
        return spec
    free = [name for name in list(table.columns)[:MANY] if name not in (*key, *reads)]
    kinds = [name for name in free if 1 < table.values(name) <= FEW]
    for group in (group for size in (1, 2) for group in combinations(kinds, size)):
        if table.clashes((*key, *group), reads, only) > STRAY:
            continue
        total = any(words.TOTAL.fullmatch(cell) for cell in table.columns[group[0]])
        if len(group) == 1 and words.LANE.fullmatch(group[0]) and not total:
            flows = [name for name in table.numbers if table.quantity(name) == "flow"]
            return replace(spec, lane=group, weights=flows[0] if len(flows) == 1 and [*spec.values] == [SPEED] else "")
        seen = "; ".join(f"{name!r}: {_texts(table, name)}" for name in group)
        both = {"sensor_column": (*spec.sensor, *group)}
        helps = f"keep one kind of rows with only, {BY_TABLE}, or {_arguments(both)} if these name sensors"
        parts = spec.sensor and all(map(words.PART.fullmatch, group))
        table.opens.append(_Open(f"rows of one time and sensor differ in {seen}", both if parts else {}, helps))
        return spec
    if clash > LONELY and not any("rows of one time" in question.problem for question in table.opens):
        helps = f"name the columns of sensors: {Argument('sensor_column', 'NAME')}"
        table.opens.append(_Open("rows of one time and sensor have several readings", remedy=helps))
    return spec
