"""Propose how a table is read, from its first rows, the ids of ``--meta-csv`` and the user's options.

What rows or names alone suggest is never a proof.  A description is proved where ids name the columns or the cells of a
column, where an option says it, or where the table is a published one; each other guess is a question with the command
that answers it.  A *template* names columns of readings: ``{sensor}``, ``speed{lane}``, ``V{time}`` or just ``speed``.
"""

from __future__ import annotations

import csv
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
from socialx.files.sources.tables.known import Known, match
from socialx.files.sources.tables.spec import TableSpec, read_name
from socialx.files.sources.tables.time_columns import DAY_S, Clock, find_clocks, in_names
from socialx.files.store.ids import casefolded_key
from socialx.files.store.quantities import QUANTITIES, SPEED

GROUPS = {"{sensor}": "(?P<sensor>.+)", "{lane}": r"(?P<lane>\d+)", "{time}": r"(?P<time>\d.*)"}
TITLES, BELOW, WIDE, ROWS = 10, 20, 200, 40  # lines above a header; rows below it; columns from which on ROWS are read
PROVED = 10  # rows, from which on equal or counted cells are no chance
MANY, FEW, LANES = 100, 30, 16  # columns that may name sensors; texts of a kind of rows; lanes of a sensor
SLOTS = (24, 48, 96, 144, 288)  # times of a day in columns
GROUPED = r"[+-]?[1-9][0-9]{{0,2}}(?:{0}[0-9]{{3}})+"  # a number with signs before three digits
SIGNED = re.compile(r"[+-]?[0-9]*[.,][0-9]+|[+-]?[0-9]{1,3}([.,][0-9]{3})+([.,][0-9]*)?")
CUT = re.compile(r"[ _.:/-]+")
SLOWEST, VARIED = 15, 0.5  # of speeds: the least median, and the largest deviation by the mean
DRY = "convert it with --dry-run, which prints a description, correct that, and name it with --table"


@dataclass(frozen=True)
class Proposal:
    """A description of a table, None where there is none, and the questions that keep it from being proved."""

    spec: TableSpec | None
    questions: tuple[Message, ...] = ()
    notes: tuple[Message | str, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether the table may be read without a question."""
        return self.spec is not None and not self.questions


@dataclass(frozen=True)
class _Open:
    """A question: what was seen, the options that answer it as they are guessed, or what helps where none does."""

    problem: str
    added: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""


@dataclass(frozen=True, eq=False)
class _Table:
    """The first rows of a table, below its header, with what is said about it.

    text: fields of TableSpec that say how it is written.  units: of a line below the header.  ids: casefolded keys.
    """

    names: tuple[str, ...]
    rows: list[tuple[str, ...]]
    request: ConvertOptions
    ids: frozenset[str]
    text: Mapping[str, Any] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    opens: tuple[_Open, ...] = ()

    @cached_property
    def columns(self) -> dict[str, list[str]]:
        """The cells by column; of columns with equal names the first one."""
        by_name: dict[str, list[str]] = {}
        for name, cells in zip(self.names, zip(*self.rows, strict=True), strict=False):
            by_name.setdefault(name, ["" if cell in ABSENT else cell for cell in cells])
        return {name: cells for name, cells in by_name.items() if name not in self.request.drop}

    @cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """The readable cells of the columns that hold numbers, by name."""
        read = {}
        for name, cells in self.columns.items():
            filled = [cell for cell in cells if cell]
            numbers = [number for number in map(self.number, filled) if number is not None]
            if filled and len(numbers) >= 0.9 * len(filled):
                read[name] = np.array(numbers)
        return read

    def number(self, cell: str) -> float | None:
        """Return the number in a cell, or None."""
        text = cell.replace(self.text["thousands"], "") if self.text.get("thousands") else cell
        text = text.replace(",", ".") if self.text.get("decimal") == "," else text
        return float(text) if NUMBER.fullmatch(text) else None

    def keys(self, *names: str) -> list[tuple[str, ...]]:
        """Return the cells of some columns, row by row."""
        return list(zip(*(self.columns[name] for name in names), strict=True)) if names else [()] * len(self.rows)

    def values(self, *names: str) -> int:
        """Return how many different cells, or combinations of cells, the columns hold."""
        return len({*self.keys(*names)})

    def clashes(self, key: Sequence[str], read: Sequence[str]) -> float:
        """Return the share of rows whose readings differ from those of another row with the same ``key`` cells."""
        rows = defaultdict(list)
        for cells, readings in zip(self.keys(*key), self.keys(*read), strict=True):
            rows[cells].append(readings)
        return sum(len(several) for several in rows.values() if len({*several}) > 1) / max(1, len(self.rows))

    def joined(self, *names: str) -> list[str]:
        """Return the columns, other than ``names``, at least half of whose different cells are ids."""
        rest = [name for name in list(self.columns)[:MANY] if name not in names and self.ids]
        shares = {name: {casefolded_key(cell) for cell in self.columns[name] if cell} for name in rest}
        return [name for name, cells in shares.items() if cells and 2 * len(cells & self.ids) >= len(cells)]

    def is_constant(self, name: str) -> bool:
        """Return whether all cells of a column are equal."""
        return len({*self.columns[name]}) == 1

    def counts_rows(self, name: str) -> bool:
        """Return whether a column numbers the rows: whole numbers, none twice, in order."""
        numbers = self.numbers.get(name, np.empty(0))
        whole = len(numbers) == len(self.rows) > 1 and bool((numbers % 1 == 0).all() and (np.diff(numbers) > 0).all())
        return whole and (bool((np.diff(numbers) == 1).all()) or bool(words.ROW_NUMBER.fullmatch(name)))

    def is_beside(self, name: str) -> bool:
        """Return whether a column of numbers holds no readings: part of a date, a place, a number of rows, or equal."""
        numbers = self.numbers[name]
        calendar = words.CALENDAR.fullmatch(name) and (numbers % 1 == 0).all() and 0 <= numbers.min()
        calendar = calendar and (numbers.max() <= 366 or 1900 <= numbers.min() <= numbers.max() <= 2100)
        same = len(self.rows) >= PROVED and self.is_constant(name)
        return bool(calendar or same or self.counts_rows(name) or words.PLACE.fullmatch(name))


def propose(sample: Sample, request: ConvertOptions, ids: Collection[int | str] = ()) -> Proposal:
    """Return how the table is read. request: the user's options; ids: those of the user's table of locations.

    Raises SettingsError for an option that names no column.
    """
    table = _table(sample, request, ids)
    spec, opens = _decide(table)
    opens = [*table.opens, *opens]
    if spec is not None and not opens:
        return Proposal(spec)
    added: dict[str, Any] = {}
    for question in opens:
        added |= question.added
    remedies = [question.remedy or _arguments(question.added) for question in opens]
    if spec is not None and all(question.added for question in opens) and _answers(sample, request, ids, added):
        remedies = [""] * (len(opens) - 1) + [_command(request, added)]
    messages = zip(opens, remedies, strict=True)
    return Proposal(spec, tuple(Message(request.where, question.problem, remedy) for question, remedy in messages))


def _answers(sample: Sample, request: ConvertOptions, ids: Collection[int | str], added: Mapping[str, Any]) -> bool:
    """Return whether the options prove a description, by which the first rows are readings of sensors that recur."""
    from socialx.files.sources.tables.table import read

    import pyarrow as pa

    try:
        table = _table(sample, replace(request, **added), ids)
        spec, opens = _decide(table)
        if spec is None or opens or table.opens:
            return False
        cells = [pa.array(column, pa.string()) for column in zip(*table.rows, strict=True)]
        plain = replace(spec, skip=0, names=(), separator="", encoding="")
        grid = read([pa.Table.from_arrays(cells, list(table.names))], plain)
    except SocialxError:
        return False
    share = np.isfinite(grid.values).mean() * (len(grid.ids) if request.round_times else 1)  # times of each sensor
    return len(grid.seconds) > 1 and bool(share >= 0.5)


def _arguments(added: Mapping[str, Any]) -> str:
    parts = [Argument(name, value) for name, values in added.items() for value in _typed(name, values)]
    return " ".join(map(str, parts))


def _typed(field_name: str, value: Any) -> list[Any]:
    """Return the values of an option as they are typed, one for each time that it is given."""
    if field_name == "quantity":
        return [next((typed for typed, feature in QUANTITIES.items() if feature == value), value)]
    if field_name in ("step_s", "resample"):
        return [f"{value // 60}min"]
    if field_name == "missing":
        return [",".join(f"{code:g}" for code in value) or "none"]
    return list(value) if isinstance(value, tuple) else [str(value) if isinstance(value, Path) else value]


def _command(request: ConvertOptions, added: Mapping[str, Any]) -> str:
    """Return the user's command with the options ``added``; for append and for frames only these options."""
    if request.known_ids or request.frame is not None:
        return _arguments(added)
    said = {}
    for name, option in options().items():
        value = added.get(name, getattr(request, name))
        if value not in (None, False, ()) or (name == "missing" and value == ()):
            typed = _typed(name, value)
            said[option.name or name] = typed if len(typed) > 1 else typed[0]
    return str(Command("convert", "auto", request.data, *request.more, **said, output="OUT.h5"))


# The header: lines above it, units below it, totals below the rows, and the sign of decimals.


def _table(sample: Sample, request: ConvertOptions, ids: Collection[int | str]) -> _Table:
    """Return the rows below the header, which is found below titles."""
    names, rows, text, units = sample.names, list(sample.rows), dict[str, Any](), dict[str, str]()
    if sample.kind in ("text", "excel"):
        lines = [tuple(_cells(line, sample.separator)) for line in sample.lines] if sample.lines else [names, *rows]
        names, rows, text, units = _below_header(lines, names)
        rows, text["never"] = _without_totals(names, rows, [_cells(line, sample.separator) for line in sample.tail])
    rows = [cells for cells in rows if len(cells) == len(names)][: ROWS if len(names) > WIDE else None]
    opens = []
    if sample.kind in ("text", "excel", "json"):
        signs, unclear = _signs(rows, request)
        text |= signs
        opens += unclear
    keys = frozenset(casefolded_key(str(vdid)) for vdid in ids)
    return _Table(names, rows, request, keys, {key: value for key, value in text.items() if value}, units, tuple(opens))


def _cells(line: str, separator: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator or ","), [])]
    except csv.Error:
        return []


def _is_data(cell: str) -> bool:
    return bool(SIGNED.fullmatch(cell) or NUMBER.fullmatch(cell) or in_names([cell]))


def _below_header(
    lines: list[tuple[str, ...]], names: tuple[str, ...]
) -> tuple[tuple[str, ...], list[tuple[str, ...]], dict[str, Any], dict[str, str]]:
    """Return the names, the rows below them, how many lines stand above, and units in a line between."""
    filled = [sum(map(bool, cells)) for cells in lines]
    for header, cells in enumerate(lines[: TITLES + 1]):
        if filled[header] < 2 or any(count >= filled[header] for count in filled[:header]):
            continue
        for first in (header + 1, header + 2):
            below = [row for row in lines[first : first + BELOW] if any(row)]
            right = [row for row in below if len(row) in (len(cells), len(cells) + 1) and any(map(_is_data, row))]
            between = lines[header + 1 : first]
            if 2 * len(right) <= len(below) or any(map(_is_data, (cell for row in between for cell in row))):
                continue
            called = ("", *cells) if all(len(row) > len(cells) for row in right) else cells
            units = {name: unit for row in between for name, unit in zip(called, row, strict=False) if unit}
            units = {name: unit for name, unit in units.items() if words.parse_unit(unit)}
            text = {"skip": first, "names": called} if between else {"skip": header}
            return called, lines[first:], text, units
    return names, [row for row in lines[1:] if any(row)], {}, {}


def _without_totals(
    names: Sequence[str], rows: list[tuple[str, ...]], tail: Iterable[Sequence[str]]
) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """Return the rows without totals below them, and the text by which the first column says so."""
    rows = [row for row in rows if any(row)]
    if not rows or not rows[0][0][:1].isdigit():
        return rows, {}
    totals = {cells[0] for cells in tail if cells and cells[0] and cells[0] not in ABSENT and not cells[0][0].isdigit()}
    totals = {text for text in totals if text[0] not in "+-.,:"}
    rows = [row for row in rows if row[0] not in totals]
    return rows, {names[0]: next(iter(totals))} if len(totals) == 1 else {}


def _signs(rows: Sequence[Sequence[str]], request: ConvertOptions) -> tuple[dict[str, str], list[_Open]]:
    """Return the sign of decimals, and of thousands if there is one; a question where numbers allow two readings."""
    signed = [cell for row in rows[: PROVED * BELOW] for cell in row if SIGNED.fullmatch(cell)]
    both = next((cell for cell in signed if "." in cell and "," in cell), "")
    if request.decimal or both:
        sign = request.decimal or max(".,", key=both.rfind)
        other = ".,"[sign == "."]
        thousands = any(
            re.fullmatch(GROUPED.format(re.escape(other)) + rf"(?:\{sign}[0-9]*)?", cell) for cell in signed
        )
        return {"decimal": sign, "thousands": other if thousands else ""}, []
    sign = "," if any("," in cell for cell in signed) and not any("." in cell for cell in signed) else "."
    marked = [cell for cell in signed if sign in cell]
    if any(cell.count(sign) > 1 for cell in marked):
        return {"decimal": ".,"[sign == "."], "thousands": sign}, []
    grouped = [cell for cell in marked if re.fullmatch(GROUPED.format(re.escape(sign)), cell)]
    whole = any(cell.isdigit() and int(cell) > 1 for row in rows[: PROVED * BELOW] for cell in row[1:])
    opens = []
    if (
        grouped
        and len(grouped) == len(marked)
        and (whole or any(abs(int(cell.split(sign)[0])) < 25 for cell in grouped))
    ):
        problem = f"numbers like {grouped[0]} may have thousands or decimals behind the sign"
        opens = [_Open(problem, remedy=f"{Argument('decimal', '.')} or {Argument('decimal', ',')}")]
    return {"decimal": sign}, opens


# The decision.


def _decide(table: _Table) -> tuple[TableSpec | None, list[_Open]]:
    """Return the likeliest description, None where there is none, and what keeps it from being proved."""
    opens: list[_Open] = []
    request = table.request
    _check_options(table)
    if (entry := match(table.names, table.rows[0] if table.rows else ())) and _agrees(entry[1], table):
        return _published(table, *entry, opens), opens
    if not table.columns or not table.rows or any(map(_is_data, table.names[:1])) and not in_names(table.names[1:]):
        return None, [_Open(*_no_header(table))]
    clock = _clock(table, opens)
    if clock is None:
        return None, opens
    templates, sensors = _layout(table, clock, opens)
    if not templates:
        return None, opens
    features = _features(table, templates, opens)
    if not features:
        return None, opens
    spec = _spec(table, clock, features, sensors, opens)
    if spec is not None:
        spec = _without_clashes(table, spec, opens)
    return spec, opens


def _check_options(table: _Table) -> None:
    """Raise SettingsError for an option that names no column."""
    request = table.request
    said = {"time_column": request.time_column, "sensor_column": request.sensor_column, "drop": request.drop}
    bare = {words.split_unit(name)[0] for name in table.names}
    for argument, names in said.items():
        for name in names:
            if name not in table.names and not (argument == "drop" and name in bare):
                problem = f"{Argument(argument, name)} is no column of {request.where}"
                raise SettingsError("", problem, f"choose of {listed([one for one in table.names if one], 12)}")


def _no_header(table: _Table) -> tuple[str, dict[str, Any], str]:
    if not table.rows:
        return "no rows of times and numbers follow the header", {}, "name a table"
    first = listed([name for name in table.names if name], 4)
    helps = "write a line of names above it, such as time,sensor,speed, or give names in a description for --table"
    return f"the first line names no columns ({first})", {}, helps


def _agrees(spec: TableSpec, table: _Table) -> bool:
    """Return whether the options say nothing else than a published description."""
    request = table.request
    channels = (request.channel or "").split(",") if request.channel not in table.names else [str(request.channel)]
    named = all(not name or name in table.names or name.lower() in QUANTITIES for name in channels)
    return (
        request.sensor_column in ((), spec.sensor)
        and request.time_column in ((), spec.time)
        and request.time_format in (None, spec.form)
        and named
    )


def _published(table: _Table, entry: Known, spec: TableSpec, opens: list[_Open]) -> TableSpec | None:
    """Return the description of a published table for the quantity that the user asks for."""
    request, values = table.request, dict(spec.values)
    if request.channel and "(?P<" not in "".join(values.values()):
        channels = [request.channel] if request.channel in table.names else request.channel.split(",")
        values = {values_of: form for values_of, form in values.items() if form in channels or values_of in channels}
        if len(values) < len(channels):
            values = _features(table, tuple(channels), opens)
    elif request.quantity and (entry.asks or request.quantity in values):
        values = {request.quantity: spec.values.get(request.quantity, next(iter(spec.values.values())))}
    elif request.quantity:
        typed = _typed("quantity", request.quantity)[0]
        raise SettingsError("", f"{Argument('quantity', typed)} is not in a table of {entry.name}", "drop it")
    elif entry.asks and not words.parse_unit(request.units or ""):
        column = next(iter(values.values()))
        opens.append(_what_is(table, column, [column]))
    elif len(values) > 1:
        values = {SPEED: values[SPEED]} if SPEED in values else values
    if len(values) > 1 and not request.channel:
        either = " or ".join(str(Argument("quantity", _typed("quantity", one)[0])) for one in values)
        opens.append(_Open(f"the table holds {' and '.join(values)}", {"quantity": next(iter(values))}, either))
        values = dict(list(values.items())[:1])
    if not values:
        return None
    units = {name: unit for name, unit in spec.units.items() if name in values}
    spec = replace(spec, **{**_written(table), **_said(table, values), "units": units | _said_unit(table, values)})
    return _without_clashes(table, spec, opens)


def _written(table: _Table) -> dict[str, Any]:
    return {name: value for name, value in table.text.items() if name != "never"}


def _said(table: _Table, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that options say, whatever the layout."""
    request = table.request
    fields = {"zone": request.timezone, "missing": request.missing, "drop": request.drop, "values": dict(values)}
    return {name: value for name, value in fields.items() if value not in (None, "") and (name != "drop" or value)}


def _said_unit(table: _Table, values: Mapping[str, str]) -> dict[str, str]:
    feature = SPEED if SPEED in values else next(iter(values))
    return {feature: table.request.units} if table.request.units else {}


# Times.


def _clock(table: _Table, opens: list[_Open]) -> Clock | None:
    """Return the columns of times, or None with a question."""
    request = table.request
    others = {*request.sensor_column, request.channel}
    said = request.time_column or [name for name in list(table.columns)[:MANY] if name not in others]
    cells = {name: table.columns[name] for name in said if name in table.columns}
    if request.first_time and (not request.time_column or len(cells) == 1 and request.time_column[0] in table.numbers):
        return Clock((), seconds=request.time_column[0] if request.time_column else "")
    ways = find_clocks(cells, request.time_format or "")
    if request.time_column:
        ways = [way for way in ways if {*way.columns} == {*request.time_column}]
    if not ways:
        moments = [name for name in table.names if in_names([name])]
        if len(moments) > 2 and (form := in_names(moments)):
            return Clock((), form)
        remedy = f"name it: {Argument('time_column', 'NAME')}, or add {Argument('first_time', 'YYYY-MM-DD HH:MM:SS')}"
        opens.append(_Open("no column holds times", remedy=remedy))
        return None
    best = ways[0]
    if len(ways) > 1 or not best.sure:
        either = " or ".join(_arguments({"time_column": way.columns}) for way in ways[:3])
        seen = listed([" and ".join(way.columns) for way in ways], 4)
        opens.append(_Open(f"times may be in {seen}", {"time_column": best.columns}, either))
    if len(best.forms) > 1:
        either = " or ".join(str(Argument("time_format", form)) for form in best.forms)
        first = " ".join(table.columns[name][0] for name in best.columns)
        opens.append(
            _Open(f"day and month of times like {first} may be swapped", {"time_format": best.forms[0]}, either)
        )
    return best


# Readings and sensors.


def pattern(template: str) -> str:
    """Return the pattern of a template, or the name of a column as it is."""
    if "(?P<" in template or not any(group in template for group in GROUPS):
        return template
    parts = re.split(r"(\{(?:sensor|lane|time)\})", template)
    return "".join(GROUPS.get(part) or re.escape(part) for part in parts)


def _matches(table: _Table, template: str, *without: str) -> list[str]:
    """Return the columns of a template, other than ``without``."""
    form = pattern(template)
    return [name for name in table.columns if name not in without and read_name(form, name) is not None]


def _layout(table: _Table, clock: Clock, opens: list[_Open]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the templates of the readings, and the columns of sensors; a question for each that is not proved."""
    request = table.request
    said = _channels(table, clock, opens)
    joined = [] if request.sensor_column else table.joined(*clock.columns, *said)
    if not said and not request.sensor_column:
        wide = _named_by_ids(table, clock)
        if wide and joined and len({*table.columns[joined[0]]}) > 1:
            names = _matches(table, wide[0])
            problem = f"ids are in column {joined[0]!r} and in names of columns ({listed(names)})"
            opens.append(_Open(problem, {"sensor_column": (joined[0],)}))
        elif wide:
            if len(wide) > 1:
                best = _best(table, wide)
                problem = f"each sensor has several columns ({listed([*wide], 6)})"
                opens.append(_Open(problem, {"channel": best}, _either("channel", wide)))
                wide = [best]
            return tuple(wide), ()
    sensors = request.sensor_column or tuple(joined[:1])
    if len(joined) > 1 and table.values(*joined) > table.values(joined[0]):
        opens.append(
            _Open(
                f"ids are in {listed(joined)}", {"sensor_column": tuple(joined[:1])}, _either("sensor_column", joined)
            )
        )
    templates = said or _guess_readings(table, clock, sensors, opens)
    if not templates or any("{sensor}" in template for template in templates):
        return templates, ()
    return templates, sensors or _guess_sensors(table, clock, templates, opens)


def _either(argument: str, names: Iterable[str]) -> str:
    return " or ".join(str(Argument(argument, name)) for name in list(names)[:3])


def _channels(table: _Table, clock: Clock, opens: list[_Open]) -> tuple[str, ...]:
    """Return the templates that the user names, by the name of a column, a template, or a quantity."""
    channel = table.request.channel
    if channel is None:
        return ()
    templates = []
    for name in [channel] if channel in table.columns else channel.split(","):
        bare = [column for column in table.columns if words.split_unit(column)[0] == name]
        feature = QUANTITIES.get(name.lower(), name)
        alike = [one for one in table.numbers if words.quantity(one) == feature and one not in clock.columns]
        lanes = f"{name}{{lane}}"
        if (
            name in table.columns
            or (any(group in name for group in GROUPS) and _matches(table, name))
            or "(?P<" in name
        ):
            templates.append(name)
        elif len(bare) == 1 or len(alike) == 1:
            templates += bare or alike
        elif len(_matches(table, lanes)) > 1:
            opens.append(_Open(f"{name} is in {listed(_matches(table, lanes))}", {"channel": lanes}))
            templates.append(lanes)
        else:
            choices = listed([*(alike or [one for one in table.numbers if one not in clock.columns])], 6)
            raise SettingsError(
                "", f"{Argument('channel', name)} names no column of observations", f"choose of {choices}"
            )
    return tuple(templates)


def _named_by_ids(table: _Table, clock: Clock) -> list[str]:
    """Return the templates by which at least half of the columns of numbers are named after ids."""
    if not table.ids:
        return []
    count: dict[str, int] = defaultdict(int)
    numbers = [name for name in table.numbers if name not in clock.columns and not table.counts_rows(name)]
    for name in numbers:
        if template := _template(name, table.ids):
            count[template] += 1
    good = [template for template, times in count.items() if 10 * times >= max(count.values())]
    return good if 2 * sum(count[template] for template in good) >= len(numbers) > 0 else []


def _template(name: str, ids: Collection[str]) -> str:
    """Return the template of a name in which an id stands between signs, the longest one; "" for none."""
    if casefolded_key(name) in ids:
        return "{sensor}"
    ends = sorted({0, len(name), *(at for mark in CUT.finditer(name) for at in mark.span())})
    cuts = sorted(combinations(ends, 2), key=lambda cut: cut[0] - cut[1])
    for begin, end in cuts:
        if casefolded_key(name[begin:end]) in ids:
            lane = re.fullmatch(
                r"([ _.-]?(?:lane|spur|fahrstreifen|fs|l)?[ _.-]?)[0-9]{1,2}", name[end:], re.IGNORECASE
            )
            return f"{name[:begin]}{{sensor}}{f'{lane[1]}{{lane}}' if lane else name[end:]}"
    return ""


def _best(table: _Table, templates: Iterable[str]) -> str:
    """Return the template whose words fit the asked quantity best."""
    asked = table.request.quantity or SPEED

    def rank(template: str) -> tuple[bool, bool, int]:
        bare = re.sub(r"\{\w+\}", "", template).strip(" _.-")
        typed = _typed("quantity", asked)[0]
        return bare.lower() != typed, words.quantity(bare) != asked, len(bare)

    return min(templates, key=rank)


def _measured(table: _Table, clock: Clock, sensors: Sequence[str]) -> list[str]:
    """Return the columns of numbers that may be readings."""
    taken = {*clock.columns, *sensors}
    beside = [
        name for name in table.numbers if name not in taken and (len(table.numbers) > WIDE or not table.is_beside(name))
    ]
    return [name for name in beside if not (words.LANE.fullmatch(name) and sensors)]


def _guess_readings(table: _Table, clock: Clock, sensors: Sequence[str], opens: list[_Open]) -> tuple[str, ...]:
    """Return the template of the readings: the only number, or a guess with a question."""
    numbers = _measured(table, clock, sensors)
    if not clock.columns and not clock.seconds and not table.request.first_time:  # times are names of columns
        return ("{time}",)
    if clock.dated and (day := _day_template(numbers)):
        if not all(":" in name for name in _matches(table, day, *clock.columns)):
            names = [name for name in numbers if read_name(pattern(day), name)]
            opens.append(_Open(f"columns {names[0]!r} to {names[-1]!r} may be times of day", {"channel": day}))
        return (day,)
    if not numbers:
        opens.append(_Open("no column holds numbers that vary", remedy=f"name it: {Argument('channel', 'NAME')}"))
        return ()
    named = [
        name for name in numbers if words.quantity(name, table.units.get(name, "")) or words.READING.fullmatch(name)
    ]
    single = table.clashes(clock.columns, numbers) == 0 if len(numbers) <= MANY else True
    if len(numbers) == 1 and (sensors or named or not single):
        return (numbers[0],)
    if not sensors and not named and single and not _sensor_like(table, clock, numbers):
        suffix = {words.split_unit(name)[1] for name in numbers}
        template = f"{{sensor}}{suffix.pop() if len(suffix) == 1 else ''}"
        opens.append(_Open(f"each column may be a sensor ({listed(numbers)})", {"channel": template}))
        return (template,)
    lanes = _lane_template(table, numbers)
    asked = table.request.quantity or SPEED
    groups = lanes or named or numbers
    fitting = [one for one in groups if words.quantity(_bare(one)) == asked]
    fitting = [one for one in fitting if _bare(one).lower() in QUANTITIES] or fitting
    likely = fitting or ([] if table.request.quantity else [one for one in groups if words.quantity(_bare(one))])
    problem = f"several columns may be the reading ({listed(numbers, 6)})"
    opens.append(_Open(problem, {"channel": likely[0]} if len(likely) == 1 else {}, _either("channel", groups)))
    return ((likely or groups)[0],)


def _bare(template: str) -> str:
    """Return the words of a template without groups and signs around them."""
    return re.sub(r"\{\w+\}", "", template).strip(" _.-")


def _sensor_like(table: _Table, clock: Clock, numbers: Sequence[str]) -> list[str]:
    """Return the columns that are called like sensors and are no readings."""
    rest = [name for name in list(table.columns)[:MANY] if name not in clock.columns and name]
    return [name for name in rest if words.SENSOR.fullmatch(name) and not table.counts_rows(name)]


def _day_template(numbers: Sequence[str]) -> str:
    """Return the template of the columns that count the times of a day, as V00 to V95 and 00:15 do; "" for none."""
    clocks = [name for name in numbers if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?", name)]
    if len(clocks) >= SLOTS[0]:
        return "{time}"
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name in numbers:
        if found := re.fullmatch(r"(.*?)([0-9]{1,3})(\D*)", name):
            groups[found[1], found[3]].append(int(found[2]))
    days = [key for key, count in groups.items() if len(count) in SLOTS and max(count) - min(count) == len(count) - 1]
    return f"{days[0][0]}{{time}}{days[0][1]}" if len(days) == 1 else ""


def _lane_template(table: _Table, numbers: Sequence[str]) -> list[str]:
    """Return the templates of quantities with the number of a lane, as in ``speed1`` and ``speed2``."""
    stems: dict[str, int] = defaultdict(int)
    for name in numbers:
        if found := re.fullmatch(r"(.*?[^\d])(\d{1,2})", name):
            stems[found[1]] += 1
    return [
        f"{stem}{{lane}}" for stem, count in stems.items() if 1 < count <= LANES and words.quantity(stem.strip(" _.-"))
    ]


def _guess_sensors(table: _Table, clock: Clock, templates: Sequence[str], opens: list[_Open]) -> tuple[str, ...]:
    """Return the columns that may name the sensor of a row, with a question; () for a table of one sensor."""
    read = [name for template in templates for name in _matches(table, template, *clock.columns)]
    named = [name for name in _sensor_like(table, clock, ()) if name not in read]
    free = [name for name in list(table.columns)[:MANY] if name not in (*clock.columns, *read)]
    words_first = sorted(free, key=lambda name: (name not in named, free.index(name)))
    if table.clashes(clock.columns, read) <= 0.02 and clock.columns:
        if named and "{time}" not in templates:
            problem = f"column {named[0]!r} may name the sensors"
            drop = " ".join(str(Argument("drop", name)) for name in named)
            opens.append(
                _Open(problem, {"sensor_column": (named[0],)}, f"{Argument('sensor_column', named[0])}, or {drop}")
            )
            return (named[0],)
        return ()
    for size in (1, 2):
        for group in combinations(words_first[: MANY // 4], size):
            if (
                2 * table.values(*group) <= len(table.rows) * (1 if clock.columns else 2)
                and table.clashes((*clock.columns, *group), read) <= 0.01
            ):
                sure = all(name in named or words.PART.fullmatch(name) for name in group) and group[0] in named
                seen = listed(sorted({*table.columns[group[0]]}))
                problem = f"rows of one time differ in {' and '.join(map(repr, group))} ({seen})"
                helps = f"{_arguments({'sensor_column': group})} if that names sensors; else keep rows of one kind with only, in a description for --table"
                opens.append(_Open(problem, {"sensor_column": group} if sure else {}, helps))
                return group
    problem = "no column tells the rows of one time apart"
    opens.append(_Open(problem, remedy=f"name the columns of sensors: {Argument('sensor_column', 'NAME')}"))
    return ()


def _features(table: _Table, templates: Sequence[str], opens: list[_Open]) -> dict[str, str]:
    """Return the template by feature, with a question where the quantity is not clear."""
    request, features = table.request, dict[str, str]()
    if len(templates) > 1 and request.quantity:
        problem = f"{Argument('quantity')} describes one channel, not {request.channel}"
        raise SettingsError("", problem, "drop it")
    for template in templates:
        names = _matches(table, template)
        bare = _bare(template)
        unit = table.units.get(names[0], "") or words.unit_in(names[0]) if names else ""
        feature = request.quantity or words.quantity(bare or unit, unit)
        if feature is None and request.units and (measured := words.parse_unit(request.units)) and len(templates) == 1:
            feature = measured[0]
        if feature is None:
            plain = not bare or "{" in template or words.READING.fullmatch(bare)
            by_file = words.quantity(request.data.name.split(".")[0]) if plain else None
            likely = _likely(table, names)
            feature = by_file or likely or SPEED
            if not by_file and not (plain and likely == SPEED):
                opens.append(_what_is(table, bare or "the columns", names))
        if feature in features:
            raise SettingsError(request.where, f"{template} is a second column of {feature}", "choose one of them")
        features[feature] = template
    return features


def _what_is(table: _Table, name: str, names: Sequence[str]) -> _Open:
    """Return the question what columns measure."""
    likely = _likely(table, names) if "%" not in name else ""
    choices = " or ".join(str(Argument("quantity", typed)) for typed in QUANTITIES)
    reads = {name: table.numbers[name] for name in names if name in table.numbers}
    least = all(len(numbers) and numbers.max() <= 1 for numbers in reads.values())
    seen = "; no reading is above 1" if least else ""
    return _Open(
        f"{name} does not say what it measures{seen}", {"quantity": likely} if likely else {}, f"say it: {choices}"
    )


def _likely(table: _Table, names: Sequence[str]) -> str:
    """Return the quantity that numbers look like: shares, speeds with decimals, or counts; "" where all are equal."""
    reads = [table.numbers[name] for name in names if name in table.numbers and len(table.numbers[name])]
    numbers = np.concatenate(reads) if reads else np.empty(0)
    numbers = numbers[numbers > 0]
    if not len(numbers) or np.ptp(numbers) == 0:
        return ""
    if numbers.max() <= 1:
        return "occupancy"
    whole, varied = bool((numbers % 1 == 0).all()), float(numbers.std() / numbers.mean())
    if whole or numbers.max() > 200 or varied > VARIED or np.median(numbers) < SLOWEST:
        return "flow" if whole else ""
    return SPEED


def _spec(
    table: _Table, clock: Clock, features: Mapping[str, str], sensors: Sequence[str], opens: list[_Open]
) -> TableSpec | None:
    """Return the description of the columns."""
    request, template = table.request, next(iter(features.values()))
    read = {feature: _matches(table, one, *clock.columns, *sensors) for feature, one in features.items()}
    names = [name for columns in read.values() for name in columns]
    lane, drop = (), [*request.drop]
    if "{sensor}" in template:
        drop += [name for name in names if name not in table.numbers or _is_no_sensor(table, name, template)]
        strange = [name for name in names if table.ids and name not in drop and not _template(name, table.ids)]
        if strange and request.without_positions and not request.channel:
            drops = _arguments({"drop": tuple(strange)})
            opens.append(_Open(f"{listed(strange)} are no ids of {request.meta_csv}", {"drop": tuple(strange)}, drops))
    units = {}
    for feature, columns in read.items():
        unit = table.units.get(columns[0], "") or words.unit_in(columns[0]) if columns else ""
        if unit and (measured := words.parse_unit(unit)) and measured[0] in (feature, "occupancy"):
            units[feature] = measured[1]
    more = _places(table, sensors) | _slots(table, template, names, clock, opens)
    forms = {feature: pattern(one) for feature, one in features.items()}
    fields = {
        **_written(table),
        **more,
        **_said(table, forms),
        "time": clock.columns,
        "sensor": tuple(sensors),
        "lane": lane,
        "units": units | _said_unit(table, features),
        "until": clock.until,
        "seconds": clock.seconds,
        "drop": tuple(dict.fromkeys(drop)),
        "weights": _weights(table, features),
        "never": table.text.get("never", {}) if clock.columns and clock.columns[0] == table.names[0] else {},
    }
    fields.setdefault("form", clock.forms[0])
    fields.setdefault("shift_s", clock.shift_s)
    if not clock.columns and (request.first_time or clock.seconds):
        fields |= {"start": request.first_time, "step_s": request.step_s or 0}
    return TableSpec(**fields)


def _is_no_sensor(table: _Table, name: str, template: str) -> bool:
    """Return whether a column beside those of sensors counts rows or says a part of the date."""
    if table.ids and _template(name, table.ids):
        return False
    numbers = table.numbers[name]
    return table.counts_rows(name) or bool(words.CALENDAR.fullmatch(name) and (numbers % 1 == 0).all())


def _places(table: _Table, sensors: Sequence[str]) -> dict[str, str]:
    """Return the columns of latitude and longitude of a table with a row per sensor and time."""
    if table.request.meta_csv is not None or not sensors:
        return {}
    both = [[name for name in table.numbers if form.fullmatch(name)] for form in (words.LATITUDE, words.LONGITUDE)]
    if not all(len(names) == 1 for names in both):
        return {}
    (latitude,), (longitude,) = both
    degrees = np.abs(table.numbers[latitude]).max() <= 90 and np.abs(table.numbers[longitude]).max() <= 180
    return {"latitude": latitude, "longitude": longitude} if degrees else {}


def _slots(table: _Table, template: str, names: Sequence[str], clock: Clock, opens: list[_Open]) -> dict[str, Any]:
    """Return how the times in names of columns are read: by number, or as clocks beside a date."""
    if "{time}" not in template:
        return {}
    labels = [read[2] for name in names if (read := read_name(pattern(template), name))]
    if all(label.isdigit() for label in labels) and clock.columns:
        numbers = sorted(map(int, labels))
        if len(numbers) in SLOTS and numbers[0] in (0, 1) and numbers[-1] - numbers[0] == len(numbers) - 1:
            return {"slot_s": DAY_S // len(numbers), "slot_from": numbers[0]}
        problem = f"columns {names[0]!r} to {names[-1]!r} make no whole day"
        opens.append(_Open(problem, remedy="call those of times of day 00:00, 01:00 and so on, each once"))
    if clock.columns and all(":" in label for label in labels):
        day = clock.forms[0] or "%Y-%m-%d"
        return {"form": f"{day} %H:%M" + ":%S" * (labels[0].count(":") == 2)}
    return {}


def _weights(table: _Table, features: Mapping[str, str]) -> str:
    """Return the pattern of the flows that weigh the speeds of lanes; "" for none."""
    template = features.get(SPEED, "")
    if "{lane}" not in template or len(features) > 1:
        return ""
    lanes = _lane_template(table, list(table.numbers))
    flows = [one for one in lanes if words.quantity(re.sub(r"\{\w+\}", "", one).strip(" _.-")) == "flow"]
    same = [one for one in flows if len(_matches(table, one)) == len(_matches(table, template))]
    return pattern(same[0]) if len(same) == 1 else ""


def _without_clashes(table: _Table, spec: TableSpec, opens: list[_Open]) -> TableSpec:
    """Return the description, with lanes in rows if a column of lanes tells rows of one time and sensor apart; a
    question for any other column that does.
    """
    read = [name for form in spec.values.values() for name in table.columns if read_name(form, name) is not None]
    read = [name for name in read if name not in (*spec.time, *spec.sensor, *spec.drop)]
    key = [
        name for name in (*spec.time, *filter(None, [spec.seconds]), *spec.sensor, *spec.lane) if name in table.columns
    ]
    rows = [row for row in table.rows if all(row[table.names.index(name)] == text for name, text in spec.only.items())]
    part = replace(table, rows=rows) if spec.only and set(spec.only) <= set(table.columns) else table
    clash = part.clashes(key, read) if key and len(table.names) <= WIDE else 0
    if clash <= 0.01:
        return spec
    free = [name for name in list(table.columns)[:MANY] if name not in (*key, *read)]
    kinds = [name for name in free if 1 < part.values(name) <= FEW]
    for size in (1, 2):
        for group in combinations(kinds, size):
            if part.clashes((*key, *group), read) > 0.01:
                continue
            if (
                size == 1
                and words.LANE.fullmatch(group[0])
                and not any(map(words.TOTAL.fullmatch, table.columns[group[0]]))
            ):
                flows = [name for name in table.numbers if words.quantity(name) == "flow"]
                weights = flows[0] if len(flows) == 1 and [*spec.values] == [SPEED] else ""
                return replace(spec, lane=group, weights=weights)
            seen = "; ".join(f"{name!r}: {listed(sorted({*part.columns[name]}), 4)}" for name in group)
            problem = f"rows of one time {'and sensor ' if spec.sensor else ''}differ in {seen}"
            split = spec.sensor and all(map(words.PART.fullmatch, group))
            both = {"sensor_column": (*spec.sensor, *group)}
            helps = f"keep rows of one kind with only, in a description for --table, or {_arguments(both)} if these name sensors"
            if not any("differ in" in question.problem for question in opens):
                opens.append(_Open(problem, both if split else {}, helps))
            return spec
    if clash > 0.5:
        opens.append(
            _Open(
                "rows of one time have several readings",
                remedy=f"name the sensors: {Argument('sensor_column', 'NAME')}",
            )
        )
    return spec
