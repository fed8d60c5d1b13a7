"""Propose how a table is read, from the first rows, the ids in ``--meta-csv`` and the user's options.

A guess by rows or names is always a question, with the command that answers.  A description is proved where ids name
the columns or the cells in a column, where an option says so, or where the table is published.  A *template* names the
columns with readings: ``{sensor}``, ``speed{lane}``, ``V{time}`` or just ``speed``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from socialx.core.errors import Argument, Message, SettingsError, SocialxError
from socialx.core.errors import sample as listed
from socialx.files.sources.contents import Contents
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables import words
from socialx.files.sources.tables.cells import Sample
from socialx.files.sources.tables.described import described, said_fields, said_unit
from socialx.files.sources.tables.known import Known, match
from socialx.files.sources.tables.questions import Question, arguments, command, either, typed
from socialx.files.sources.tables.sampled import WIDE, SampledTable, below_header, is_data
from socialx.files.sources.tables.spec import NAME, TableSpec
from socialx.files.sources.tables.table import read
from socialx.files.sources.tables.templates import (
    SLOTS,
    are_ids,
    bare_words,
    count_clocks,
    day_template,
    pattern,
    repeated_quantities,
    template_by_ids,
)
from socialx.files.sources.tables.time_columns import (
    MOMENT,
    TimeColumns,
    find_time_columns,
    times_in_names,
    without_strays,
)
from socialx.files.store.ids import casefolded_key
from socialx.files.store.quantities import QUANTITIES, SPEED

MANY, FEW = 100, 30  # columns that may name sensors; texts of a kind of rows
STRAY, LONELY = 0.01, 0.5  # shares of rows with several readings: of a clock change at most; of a table of many sensors
SLOWEST, FASTEST, VARIED = 15, 200, 0.5  # of speeds: medians, readings, and the deviation by the mean
STEPS = (60, 120, 180, 300, 600, 900, 1200, 1800, 3600)  # seconds between rows


@dataclass(frozen=True)
class Proposal:
    """A description, None where absent, and the questions before a proof; without a question it is proved."""

    spec: TableSpec | None
    questions: tuple[Message, ...] = ()


def propose(sample: Sample, request: ConvertOptions, ids: Collection[int | str] = ()) -> Proposal:
    """Return how the table is read; ids: from the user's location table, or from the file to extend.

    Raises SettingsError for an option that misses every column.
    """
    spec, table = _decided(sample, request, ids)
    added = {name: value for question in table.opens for name, value in question.added.items()}
    helps = [question.remedy or arguments(question.added) for question in table.opens]
    guessed = spec is not None and added and all(question.added for question in table.opens)
    if guessed and _answers(sample, replace(request, **added), ids):
        helps = [""] * (len(helps) - 1) + [command(request, added)]
    asked = zip(table.opens, helps, strict=True)
    questions = (Message("table.question", request.where, question.problem, remedy) for question, remedy in asked)
    return Proposal(spec, tuple(questions))


def _decided(
    sample: Sample, request: ConvertOptions, ids: Collection[int | str]
) -> tuple[TableSpec | None, SampledTable]:
    """Return the likeliest description, None where absent, and the table with all questions."""
    speeds = request.quantity == SPEED or words.quantity("", request.units or "") == SPEED
    first, unclear = below_header(sample, request.decimal, speeds=speeds)
    table = SampledTable(first, request, frozenset(casefolded_key(str(vdid)) for vdid in ids), unclear)
    spec = _decide(table)
    if spec is not None and request.round_times:
        spec = replace(spec, round_s=request.step_s or _step(table, spec))
    return spec, table


def _readings(table: SampledTable, spec: TableSpec) -> Contents:
    """Return the sampled rows as described. Raises SocialxError."""
    import pyarrow as pa

    cells = [pa.array(column, pa.string()) for column in zip(*table.sample.rows, strict=True)]
    rows = pa.Table.from_arrays(cells, list(table.sample.names))
    return read([rows], replace(spec, skip=0, names=(), separator="", encoding="", round_s=0))


def _step(table: SampledTable, spec: TableSpec) -> int:
    """Return the usual step in seconds between a sensor's readings; 60 where unclear."""
    try:
        (block,) = _readings(table, spec).blocks
    except SocialxError:
        return STEPS[0]
    steps = np.concatenate([np.diff(block.seconds[np.isfinite(column)]) for column in block.values[..., 0].T])
    usual = float(np.median(steps)) if len(steps) else 0.0
    return min(STEPS, key=lambda step: abs(step - usual))


def _answers(sample: Sample, request: ConvertOptions, ids: Collection[int | str]) -> bool:
    """Return whether options prove a description by which the first rows are readings from sensors that recur."""
    try:
        spec, table = _decided(sample, request, ids)
        contents = _readings(table, spec) if spec is not None and not table.opens else None
    except SocialxError:
        return False
    if contents is None:
        return False
    (block,) = contents.blocks
    if len(block.seconds) < 2:
        return False
    times_apart = contents.sensors if request.round_times else 1  # each sensor has own times
    share = np.isfinite(block.values).mean() * times_apart
    return bool(share >= 0.5)


def _decide(table: SampledTable) -> TableSpec | None:
    """Return the likeliest description, None where absent; questions go to the table."""
    first, request = table.sample, table.request
    longest = max(first.names, key=len, default="")
    if len(longest) > NAME:
        problem = f"a column's name has {len(longest):,} letters ({longest[:40]!a}...), more than {NAME}"
        raise SocialxError("table.long-name", request.where, problem, "shorten it")
    _check_options(table)
    if (entry := match(first.names, first.rows[0] if first.rows else ())) and _agrees(table, *entry):
        return _published(table, *entry)
    if not table.columns:
        table.ask("no rows of times and numbers follow the header", remedy="name a table")
        return None
    if request.frame is None and _is_row(table) and (MOMENT.fullmatch(first.names[0]) or not request.first_time):
        helps = f"write names above it, such as time,sensor,speed, or give names {_by_table()}"
        table.ask(f"the first line names no columns ({listed(first.names, 4)})", remedy=helps)
        return None
    hollow = [name for name, cells in table.columns.items() if not any(cells)]
    if hollow and all(map(words.SENSOR.fullmatch, table.numbers)):
        helps = "make a row of each item, as docs/how-to/recipes.md does for lists in cells"
        table.ask(f"no cell is a reading: those of {listed(hollow)} are lists, or empty", remedy=helps)
        return None
    times = _time_columns(table)
    if times is None:
        return None
    templates, sensors = _layout(table, times)
    features = _features(table, templates, times)
    return _without_clashes(table, described(table, times, features, sensors)) if features else None


def _check_options(table: SampledTable) -> None:
    """Raise SettingsError for an option that misses every column."""
    request, names = table.request, table.sample.names
    said = {"time_column": request.time_column, "sensor_column": request.sensor_column, "drop": request.drop}
    bare = {words.split_unit(name)[0] for name in names} if request.drop else set()
    for argument, name in ((argument, name) for argument, given in said.items() for name in given):
        if name not in names and not (argument == "drop" and name in bare):
            problem = f"{Argument(argument, name)} is no column of {request.where}"
            raise SettingsError("table.absent", "", problem, f"choose of {listed([one for one in names if one], 12)}")


# A published table.


def _channels(table: SampledTable) -> list[str]:
    channel = table.request.channel
    return [] if channel is None else [channel] if channel in table.columns else channel.split(",")


def _agrees(table: SampledTable, entry: Known, spec: TableSpec) -> bool:
    request, channels = table.request, _channels(table)
    return (
        (entry.asks or bool(channels) or request.quantity in (None, *spec.values))
        and request.sensor_column in ((), spec.sensor)
        and request.time_column in ((), spec.time)
        and request.time_format in (None, spec.form)
        and all(name in table.columns or name in (*QUANTITIES, *spec.values) for name in channels)
    )


def _published(table: SampledTable, entry: Known, spec: TableSpec) -> TableSpec | None:
    """Return the description for a published table, with the user's quantity."""
    request, values, channels = table.request, dict(spec.values), _channels(table)
    if channels:
        asked = {QUANTITIES.get(name, name) for name in channels}
        values = {feature: form for feature, form in values.items() if {feature, form} & asked}
        if len(values) < len(channels):
            values = _features(table, channels, TimeColumns(spec.time))
    elif request.quantity:
        values = {request.quantity: values.get(request.quantity, next(iter(values.values())))}
    elif SPEED in values:
        values = {SPEED: values[SPEED]}
    elif len(values) > 1:
        names = [typed("quantity", feature)[0] for feature in values]
        table.ask(f"the table holds {' and '.join(names)}", {"quantity": next(iter(values))}, either("quantity", names))
        values = dict([*values.items()][:1])
    name = next(iter(values.values()))
    reads = table.matches(name, *spec.time)
    unsaid = request.quantity is None and not channels and not words.parse_unit(request.units or "")
    likely, sure = _likely(table, reads) if unsaid and len(reads) > 1 and SPEED in values else ("", True)
    if (unsaid and entry.asks) or (likely and not sure):
        table.opens.append(_what_is(table, f"column {name!r}" if entry.asks else "the table", reads))
    text = dict(table.sample.written)
    for key in ("never", "names") if spec.names else ("never",):
        text.pop(key, None)
    units = {feature: unit for feature, unit in spec.units.items() if feature in values}
    spec = replace(spec, **text, **said_fields(table), values=values, units=units | said_unit(table, values))
    return _without_clashes(table, spec)


def _is_row(table: SampledTable) -> bool:
    """Return whether the first line holds readings: a time above times, or decimals; ids may be whole numbers."""
    names = [name for name in table.sample.names if name]
    timed = [name for name in names if name in table.columns and MOMENT.fullmatch(name)]
    if any(MOMENT.fullmatch(table.columns[name][0]) for name in timed):
        return True
    decimal = any(is_data(name) and not name.isdecimal() for name in names)
    return is_data(table.sample.names[0]) and (decimal or all(map(is_data, names)))


# Times, readings and sensors.


def _time_columns(table: SampledTable) -> TimeColumns | None:
    """Return the time columns; None, with a question, where absent."""
    request = table.request
    others = tuple(name for name in list(table.columns)[:MANY] if name not in request.sensor_column)
    asked = request.time_column or others
    cells = {name: table.columns[name] for name in asked if name in table.columns and name != request.channel}
    if request.first_time and (not request.time_column or asked[0] in table.numbers):
        return TimeColumns((), seconds=request.time_column[0] if request.time_column else "")
    form = request.time_format or ""
    ways = find_time_columns(cells, form)
    ways = ways or find_time_columns({name: without_strays(texts, form) for name, texts in cells.items()}, form)
    ways = [way for way in ways if {*way.columns} == {*asked} or not request.time_column]
    if not ways:
        if times := times_in_names(table.sample.names):
            return times
        helps = f"name it: {Argument('time_column', 'NAME')}, or add {Argument('first_time', 'YYYY-MM-DD HH:MM:SS')}"
        if request.time_column:
            helps = f"say how they are written: {Argument('time_format', '%d/%m/%Y %H:%M')}"
        table.ask("no column holds times", remedy=helps)
        return None
    best = ways[0]
    if len(ways) > 1 or not best.sure:
        helps = " or ".join(arguments({"time_column": way.columns}) for way in ways[:3])
        problem = f"times may be in {listed([' and '.join(way.columns) for way in ways], 4)}"
        table.ask(problem, {"time_column": best.columns}, helps)
    if len(best.forms) > 1:
        first = " ".join(table.columns[name][0] for name in best.columns)
        helps = either("time_format", best.forms)
        table.ask(f"day and month of times like {first} may be swapped", {"time_format": best.forms[0]}, helps)
    return best


def _layout(table: SampledTable, times: TimeColumns) -> tuple[Sequence[str], Sequence[str]]:
    """Return the templates for readings and the sensor columns, with a question per guess."""
    request, said = table.request, _said_templates(table, times)
    wide = [] if said or request.sensor_column else _named_by_ids(table, times)
    joined = [] if request.sensor_column else _joined(table, bool(wide), *times.columns, *said)
    if wide and joined:
        problem = f"ids are in column {joined[0]!r} and in names of columns ({listed(table.matches(wide[0]))})"
        table.ask(problem, {"sensor_column": (joined[0],)})
    elif wide:
        best = _fitting(table, wide)
        if times.dated and (day := day_template(table.matches(wide[0], *times.columns))):
            names = table.matches(wide[0], *times.columns)
            problem = f"columns {names[0]!r} to {names[-1]!r} may be sensors or times of day"
            table.ask(problem, remedy=either("channel", (*wide, day)))
        elif len(wide) > 1:
            problem = f"each sensor has several columns ({listed(wide, 6)})"
            table.ask(problem, {"channel": best[0]} if len(best) == 1 else {}, either("channel", wide))
        return [*best, *wide][:1], ()
    sensors = request.sensor_column or tuple(joined[:1])
    totals = [text for name in joined[:1] for text in table.texts(name) if words.TOTAL.fullmatch(text)]
    if totals and request.without_positions:
        helps = f"leave them out: never: {{{joined[0]}: {totals[0]}}} {_by_table()}"
        table.ask(f"column {joined[0]!r} names totals beside sensors ({listed(totals)})", remedy=helps)
    if len(joined) > 1 and table.values(*joined) > table.values(joined[0]):
        table.ask(f"ids are in {listed(joined)}", {"sensor_column": sensors}, either("sensor_column", joined))
    templates = said or _guess_readings(table, times, sensors)
    if not templates or any("{sensor}" in one or "(?P<sensor>" in one for one in templates):
        return templates, sensors if said else ()
    return templates, sensors or _guess_sensors(table, times, templates)


def _joined(table: SampledTable, wide: bool, *without: str) -> list[str]:
    """Return the columns at least half whose different cells are ids: columns with words or called like sensors, if
    any exist or column names are ids, too (``wide``).
    """
    shares = {}
    for name in list(table.columns)[:MANY] if table.ids else ():
        cells = {casefolded_key(cell) for cell in table.columns[name] if cell}
        named = bool(words.SENSOR.fullmatch(name))
        kind = name in table.numbers and not named and words.KIND.fullmatch(name)
        if name not in without and not kind and cells and 2 * len(cells & table.ids) >= len(cells):
            shares[name] = named or name not in table.numbers
    return [name for name, sure in shares.items() if sure] or ([] if wide else [*shares])


def _said_templates(table: SampledTable, times: TimeColumns) -> list[str]:
    """Return the templates that the user names by a column, a template or a quantity."""
    templates = list[str]()
    free = [name for name in table.numbers if name not in times.columns]
    for name in _channels(table):
        bare = [column for column in table.columns if words.split_unit(column)[0] == name]
        alike = [one for one in free if words.quantity(one, table.unit(one)) == QUANTITIES.get(name.lower(), name)]
        lanes = [] if "{" in name else table.matches(f"{name}{{lane}}")
        if name in table.columns or ("(" in pattern(name) and table.matches(name)):
            templates.append(name)
        elif len(bare) == 1 or len(alike) == 1:
            templates += bare or alike
        elif len(lanes) > 1:
            table.ask(f"{name} is in {listed(lanes)}", {"channel": f"{name}{{lane}}"})
            templates.append(f"{name}{{lane}}")
        else:
            problem = f"{Argument('channel', name)} names no column of observations"
            raise SettingsError("table.option-no-channel", "", problem, f"choose of {listed(alike or free, 6)}")
    return templates


def _named_by_ids(table: SampledTable, times: TimeColumns) -> list[str]:
    """Return the templates by which at least half the number columns are named after ids."""
    numbers = [name for name in table.numbers if name not in times.columns] if table.ids else []
    count = Counter(template_by_ids(name, table.ids) for name in numbers)
    named = {template: times for template, times in count.items() if template}
    return [*named] if 2 * sum(named.values()) >= len(numbers) > 0 else []


def _fitting(table: SampledTable, templates: Sequence[str]) -> list[str]:
    """Return the templates for the asked quantity, by words; an exact name excludes the rest."""
    asked = table.request.quantity or SPEED
    alike = [one for one in templates if words.quantity(bare_words(one)) == asked or not bare_words(one)]
    return [one for one in alike if bare_words(one).lower() in ("", *QUANTITIES)] or alike


def _guess_readings(table: SampledTable, times: TimeColumns, sensors: Sequence[str]) -> list[str]:
    """Return the template for the readings: the only number, or a guess with a question; [] where absent."""
    if times.named:
        return ["{time}"]
    numbers = _numbers(table, times, sensors)
    if not numbers:
        table.ask("no column holds numbers that vary", remedy=f"name it: {Argument('channel', 'NAME')}")
        return []
    if times.dated and (day := day_template(numbers)):
        if count_clocks(numbers) < SLOTS[0]:
            names = table.matches(day, *times.columns)
            table.ask(f"columns {names[0]!r} to {names[-1]!r} may be times of day", {"channel": day})
        return [day]
    named = [name for name in numbers if words.quantity(bare_words(name)) or words.READING.fullmatch(bare_words(name))]
    single = len(numbers) > MANY or table.clashes(times.columns, numbers) <= STRAY
    if len(numbers) == 1 and (sensors or named or not single):
        return numbers
    if not sensors and not named and single and not _sensor_like(table, times.columns):
        ends = {words.split_unit(name)[1] for name in numbers}
        template = f"{{sensor}}{ends.pop() if len(ends) == 1 else ''}"
        helps = f"{Argument('channel', template)} if each column is a sensor, else {Argument('channel', 'NAME')}"
        added = {"channel": template} if are_ids([words.split_unit(name)[0] for name in numbers]) else {}
        table.ask(f"each column may be a sensor ({listed(numbers)})", added, helps)
        return [template]
    return _one_column(table, numbers, repeated_quantities(numbers) or named or numbers)


def _numbers(table: SampledTable, times: TimeColumns, sensors: Sequence[str]) -> list[str]:
    """Return the number columns that may be readings."""
    numbers = [name for name in table.numbers if name and name not in times.columns and name not in sensors]
    numbers = [name for name in numbers if not (sensors and words.LANE.fullmatch(name))]
    return [name for name in numbers if len(numbers) > WIDE or not table.is_beside(name, sensors)]


def _one_column(table: SampledTable, numbers: Sequence[str], groups: Sequence[str]) -> list[str]:
    """Return the likeliest among several ``groups``, templates for ``numbers``, with a question."""
    likely = _fitting(table, groups)
    if not likely and not table.request.quantity:
        likely = [one for one in groups if words.quantity(bare_words(one))]
    added = {"channel": likely[0]} if len(likely) == 1 else {}
    table.ask(f"several columns may be the reading ({listed(numbers, 6)})", added, either("channel", groups))
    return [*likely, *groups][:1]


def _sensor_like(table: SampledTable, without: Collection[str]) -> list[str]:
    """Return the columns that are called like sensors, except row numbers."""
    rest = [name for name in list(table.columns)[:MANY] if name not in without]
    return [name for name in rest if words.SENSOR.fullmatch(name) and not table.counts_rows(name)]


def _guess_sensors(table: SampledTable, times: TimeColumns, templates: Sequence[str]) -> Sequence[str]:
    """Return the columns that may name the sensor in a row, with a question; () for a table with a single sensor."""
    reads = [name for template in templates for name in table.matches(template, *times.columns)]
    named = _sensor_like(table, (*times.columns, *reads))
    if times.columns and table.clashes(times.columns, reads) <= 2 * STRAY:
        if named and "{time}" not in templates:
            alone = f"{arguments({'drop': tuple(named)})} if there is one sensor"
            helps = f"{Argument('sensor_column', named[0])}, or {alone}"
            table.ask(f"column {named[0]!r} may name the sensors", {"sensor_column": (named[0],)}, helps)
        return named[:1] if "{time}" not in templates else ()
    free = [name for name in list(table.columns)[:MANY] if name not in (*times.columns, *reads)]
    free = sorted(free, key=lambda name: name not in named)[: MANY // 4]
    rows = len(table.sample.rows) * (1 if times.columns else 2)  # with times in names, a row for each sensor
    for group in _groups(free):
        if 2 * table.values(*group) <= rows and table.clashes((*times.columns, *group), reads) <= STRAY:
            sure = group[0] in named and all(name in named or words.PART.fullmatch(name) for name in group)
            problem = f"rows of one time differ in {_differences(table, group)}"
            helps = f"{arguments({'sensor_column': group})} if that names sensors; else keep one kind with only, "
            helps += _by_table()
            table.ask(problem, {"sensor_column": group} if sure else {}, helps)
            return group
    helps = f"name the columns of sensors: {Argument('sensor_column', 'NAME')}"
    table.ask("no column tells the rows of one time apart", remedy=helps)
    return ()


def _groups(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    yield from ((name,) for name in names)
    yield from combinations(names, 2)


def _differences(table: SampledTable, names: Sequence[str]) -> str:
    return " and ".join(f"{name!r} ({listed(table.texts(name), 4)})" for name in names)


def _features(table: SampledTable, templates: Sequence[str], times: TimeColumns) -> dict[str, str]:
    """Return the template by feature, with a question where the quantity is unclear."""
    request, features = table.request, dict[str, str]()
    if len(templates) > 1 and request.quantity:
        problem = f"{Argument('quantity')} describes one channel, not {request.channel}"
        raise SettingsError("table.one-channel", "", problem, "drop it")
    for template in templates:
        names, bare = table.matches(template, *times.columns), bare_words(template)
        unit = table.unit(names[0]) if names else ""
        share = (words.parse_unit(unit) or ("",))[0] == "occupancy"
        measured = words.quantity(bare, unit)
        if request.quantity not in (None, measured) and words.quantity("", unit):
            problem = f"{Argument('quantity')} contradicts the unit {unit} of {names[0]!r}"
            raise SettingsError("table.unit", request.where, problem, f"drop {Argument('quantity')}")
        feature = request.quantity or measured
        if feature is None and len(templates) == 1:
            feature = words.quantity("", request.units or "")
        if feature is None:
            plain = not bare or "{" in template or words.READING.fullmatch(bare)
            stem = request.data.name.split(".")[0]
            by_file = words.quantity(stem) if plain and len(stem) > 2 and request.frame is None else None
            likely, sure = ("occupancy", False) if share else _likely(table, names)
            feature = by_file or likely or SPEED
            if not by_file and not (plain and sure):
                table.opens.append(_what_is(table, f"column {template!r}" if template in names else "the table", names))
        if feature in features:
            problem = f"{template} is a second column of {feature}"
            raise SettingsError("table.second-column", request.where, problem, "choose one of them")
        features[feature] = template
    return features


def _what_is(table: SampledTable, subject: str, names: Sequence[str]) -> Question:
    """Return the question about a column's quantity, with a guess unless it is a share, a limit or a statistic."""
    unit, bare = (table.unit(names[0]), bare_words(names[0])) if names else ("", "")
    likely = "" if words.parse_unit(unit) or words.OTHER.fullmatch(bare) else _likely(table, names)[0]
    share = "; no reading is above 1" if likely == "occupancy" else ""
    helps = f"say it: {either('quantity', QUANTITIES)}"
    return Question(f"{subject} does not say what it measures{share}", {"quantity": likely} if likely else {}, helps)


def _likely(table: SampledTable, names: Sequence[str]) -> tuple[str, bool]:
    """Return the quantity that numbers look like, "" where unclear, and whether a doubt is excluded: speeds with
    decimals, while whole numbers may be counts.
    """
    numbers = np.concatenate([np.empty(0), *(table.numbers[name] for name in names if name in table.numbers)])
    numbers = numbers[(numbers > 0) & ~np.isin(numbers, table.request.missing or ())]
    if not len(numbers) or np.ptp(numbers) == 0:
        return "", False
    if numbers.max() <= 1:
        return "occupancy", False
    whole, middle, varied = bool((numbers % 1 == 0).all()), np.median(numbers), numbers.std() / numbers.mean()
    if numbers.max() <= FASTEST and varied <= VARIED and middle >= SLOWEST:
        return SPEED, not whole
    return "flow" if whole else "", False


def _without_clashes(table: SampledTable, spec: TableSpec) -> TableSpec:
    """Return the description, with lanes where these tell apart the rows of a time and sensor; else ask."""
    used = {*spec.time, *spec.sensor, *spec.lane, spec.seconds}
    key = [name for name in table.columns if name in used]
    reads = [name for form in spec.values.values() for name in table.matches(form, *key, *spec.drop)]
    reads += [name for name in table.columns if words.LANE.fullmatch(name) and name not in (*key, *reads)]
    only = {name: text for name, text in spec.only.items() if name in table.columns}
    if not key or len(reads) > WIDE or (clash := table.clashes(key, reads, only)) <= STRAY:
        return spec
    free = [name for name in list(table.columns)[:MANY] if name not in (*key, *reads) or words.LANE.fullmatch(name)]
    for group in _groups([name for name in free if 1 < table.values(name) <= FEW]):
        if table.clashes((*key, *group), reads, only) > STRAY:
            continue
        total = any(map(words.TOTAL.fullmatch, table.texts(group[0])))
        if len(group) == 1 and words.LANE.fullmatch(group[0]) and not total:
            flows = [name for name in table.numbers if words.quantity(bare_words(name)) == "flow"]
            return replace(spec, lane=group, weights=flows[0] if len(flows) == 1 and [*spec.values] == [SPEED] else "")
        both = {"sensor_column": (*spec.sensor, *group)}
        helps = f"keep one kind of rows with only, {_by_table()}, or {arguments(both)} if these name sensors"
        parts = spec.sensor and all(map(words.PART.fullmatch, group))
        table.ask(f"rows of one time and sensor differ in {_differences(table, group)}", both if parts else {}, helps)
        return spec
    if clash > LONELY and not any("of one time" in question.problem for question in table.opens):
        helps = f"name the columns of sensors: {Argument('sensor_column', 'NAME')}"
        table.ask("rows of one time and sensor have several readings", remedy=helps)
    return spec


def _by_table() -> str:
    return f"in a description for {Argument('table', 'SPEC')}, as {Argument('dry_run', True)} prints one"
