"""Write the description for a table after the decision about times, sensors and readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from socialx.core.errors import Argument, SettingsError
from socialx.core.errors import sample as listed
from socialx.data.calendar import DAY_S
from socialx.files.sources.tables import words
from socialx.files.sources.tables.sampled import SampledTable
from socialx.files.sources.tables.spec import TableSpec, read_name
from socialx.files.sources.tables.templates import SLOTS, bare_words, pattern, repeated_quantities, template_by_ids
from socialx.files.sources.tables.time_columns import TimeColumns
from socialx.files.store.quantities import SPEED


def described(
    table: SampledTable, times: TimeColumns, features: Mapping[str, str], sensors: Sequence[str]
) -> TableSpec:
    """Return the description."""
    request, template, text = table.request, next(iter(features.values())), dict(table.sample.written)
    columns = {feature: table.matches(one, *times.columns, *sensors) for feature, one in features.items()}
    units = {feature: unit for feature, names in columns.items() if (unit := _unit(table, feature, names))}
    totals = text.pop("never", {})
    fields = {
        "time": times.columns,
        "sensor": tuple(sensors),
        "form": times.forms[0],
        "until": times.until,
        "seconds": times.seconds,
        "shift_s": times.shift_s,
        "weights": _weights(table, features),
        "never": totals if times.columns[:1] == (table.sample.names[0],) else {},
        **_places(table, sensors),
        **said_fields(table),
        **_slots(table, template, columns[next(iter(features))], times),
        "drop": _dropped(table, template, columns[next(iter(features))], times),
        "units": units | said_unit(table, features),
    }
    if not times.columns and request.first_time:
        fields |= {"start": request.first_time, "step_s": 0 if times.seconds else request.step_s or 0, "form": ""}
    return TableSpec({feature: pattern(one) for feature, one in features.items()}, **text, **fields)


def _unit(table: SampledTable, feature: str, names: Sequence[str]) -> str:
    """Return the columns' unit, "" where unstated. Raises SettingsError for several, or for another than the user's."""
    request = table.request
    measured = {name: unit for name in names if (unit := words.parse_unit(table.unit(name)))}
    units = {unit: name for name, (quantity, unit) in measured.items() if quantity in (feature, "occupancy")}
    said = (words.parse_unit(request.units or "") or ("", ""))[1]
    if len(units) > 1:
        several = listed([f"{name} in {unit}" for unit, name in units.items()])
        problem = f"the columns have several units ({several})"
        raise SettingsError("table.several-units", request.where, problem, "convert the columns of each apart")
    if units and said and said not in units and "," not in (request.channel or ""):
        first = next(iter(units))
        problem = f"{units[first]} is in {first}"
        raise SettingsError("table.other-unit", request.where, problem, f"drop {Argument('units', request.units)}")
    return next(iter(units), "")


def _is_no_sensor(table: SampledTable, name: str) -> bool:
    dated = words.CALENDAR.fullmatch(name) and (table.numbers.get(name, np.ones(1)) % 1 == 0).all()
    return name not in table.numbers or bool(dated) or table.counts_rows(name)


def _dropped(table: SampledTable, template: str, names: Sequence[str], times: TimeColumns) -> tuple[str, ...]:
    """Return the columns to leave out. The user names some. Next to sensor columns, texts, row counts, date parts and
    a sensor's further columns are left out; further columns without a location raise a question.
    """
    request = table.request
    drop = [name for name in table.sample.names if request.drop and {name, words.split_unit(name)[0]} & {*request.drop}]
    if "{sensor}" not in template:
        return tuple(drop)
    ours = {*names}
    others = [name for name in names if not table.ids or not template_by_ids(name, table.ids)]
    no_sensors = {name for name in others if _is_no_sensor(table, name)}
    further = table.matches(pattern(template), *times.columns)
    drop += [name for name in further if name not in ours or name in no_sensors]
    strange = [name for name in others if table.ids and name not in no_sensors]
    if strange and request.without_positions and not request.channel:
        added = {"drop": (*request.drop, *strange)}
        table.ask(f"columns are no ids of {request.meta_csv} ({listed(strange)})", added)
    return tuple(drop)


def _places(table: SampledTable, sensors: Sequence[str]) -> dict[str, str]:
    """Return the latitude and longitude columns in a table with a row per sensor and time."""
    both = [[name for name in table.numbers if form.fullmatch(name)] for form in (words.LATITUDE, words.LONGITUDE)]
    if table.request.meta_csv is not None or not sensors or [*map(len, both)] != [1, 1]:
        return {}
    latitude, longitude = both[0][0], both[1][0]
    degrees = np.abs(table.numbers[latitude]).max() <= 90 and np.abs(table.numbers[longitude]).max() <= 180
    return {"latitude": latitude, "longitude": longitude} if degrees else {}


def _slots(table: SampledTable, template: str, names: Sequence[str], times: TimeColumns) -> dict[str, Any]:
    """Return how times in column names are read: by number, or as clocks next to a date."""
    if "time" not in template or not times.columns or not names:
        return {}
    labels = [(read_name(pattern(template), name) or ("",) * 3)[2] for name in names]
    if all(":" in label for label in labels):
        return {"form": f"{times.forms[0] or '%Y-%m-%d'} %H:%M" + ":%S" * (labels[0].count(":") == 2)}
    numbers = sorted(int(label) for label in labels if label.isdecimal())
    if len(labels) in SLOTS and numbers in ([*range(first, first + len(labels))] for first in (0, 1)):
        return {"slot_s": DAY_S // len(numbers), "slot_from": numbers[0]}
    helps = "call those of times of day 00:00, 01:00 and so on, each once"
    table.ask(f"columns {names[0]!r} to {names[-1]!r} make no whole day", remedy=helps)
    return {}


def _weights(table: SampledTable, features: Mapping[str, str]) -> str:
    """Return the pattern for the flows that weigh lane speeds; "" where absent."""
    template = features.get(SPEED, "")
    if "{lane}" not in template or len(features) > 1:
        return ""
    flows = [one for one in repeated_quantities([*table.numbers]) if words.quantity(bare_words(one)) == "flow"]
    same = [one for one in flows if len(table.matches(one)) == len(table.matches(template))]
    return pattern(same[0]) if len(same) == 1 else ""


def said_fields(table: SampledTable) -> dict[str, Any]:
    """Return the fields that options say in any layout."""
    request = table.request
    said = {"zone": request.timezone, "missing": request.missing, "drop": request.drop or None}
    return {name: value for name, value in said.items() if value is not None}


def said_unit(table: SampledTable, values: Mapping[str, str]) -> dict[str, str]:
    """Return the user's unit by feature; with several features, by speed."""
    return {SPEED if SPEED in values else next(iter(values)): table.request.units} if table.request.units else {}
