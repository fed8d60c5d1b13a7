"""What a report is asked: the names of the checks, what each wants and which of them fail a file, in one table."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeGuard

from socialx.errors import Argument, Message, Remedy, SettingsError, Write, python, sample
from socialx.files.inspect import Report
from socialx.files.locations import near
from socialx.files.store import LARGEST_SPEED, ROWS_ATTR, SPEED
from socialx.files.time_axis import known_zone

ALL = "all"  # stands for every check
FAR_HOURS = 3.0  # of a zone from the sun: China has one for 5 hours
ZERO_SHARE = 0.01  # of speeds that are exactly 0


@dataclass(frozen=True)
class Check:
    """One question to a report; ``find`` answers with one line where the file does not meet it, else with None.

    A line that names an argument or a task is a ``Message``, without where it is.
    """

    name: str
    asks: str
    severity: Literal["problem", "remark"]  # a problem fails convert --validate, a remark only what asks for it
    find: Callable[[Report], str | Message | None]


def _rows(r: Report) -> str | None:
    stored = r.rows + r.failed_rows
    wrong = r.declared_rows is not None and r.declared_rows != stored
    return f"it has {stored} rows, its attribute {ROWS_ATTR} says {r.declared_rows}" if wrong else None


def _duplicates(r: Report) -> str | None:
    return f"{r.duplicates} rows have the time of an earlier row" if r.duplicates else None


def _positions(r: Report) -> str | None:
    ids = r.without_position
    return f"{len(ids)} of {r.sensors} sensors have no position ({sample(ids)})" if ids else None


def _vd_info(r: Report) -> str | None:
    parts = (
        (r.without_info, f"of {r.sensors} sensors are not in vd_info"),
        (r.unknown_info, "sensors of vd_info are not in vdids"),
    )
    return "; ".join(f"{len(ids)} {what} ({sample(ids)})" for ids, what in parts if ids) or None


def _order(r: Report) -> str | None:
    return f"{r.backward_steps} rows are not later than the row before" if r.backward_steps else None


def _epochs(r: Report) -> str | None:
    what = "of its timestamps_epoch are not the wall time of their row read as UTC"
    return f"{r.wrong_epochs} {what}" if r.wrong_epochs else None


def _coordinates(r: Report) -> str | None:
    parts = []
    if r.duplicate_positions:
        groups = ["=".join(ids) for ids in r.duplicate_positions]
        parts.append(f"{sum(map(len, r.duplicate_positions))} sensors share their position ({sample(groups)})")
    if r.outlier_sensors:
        parts.append(f"{len(r.outlier_sensors)} sensors are far from all others ({sample(r.outlier_sensors)})")
    return "; ".join(parts) or None


def _gaps(r: Report) -> str | None:
    if not r.gaps:
        return None
    first = max(r.gap_list, key=lambda gap: gap["missing_rows"])
    return f"{r.gaps} gaps in time, the largest {r.largest_gap_minutes:g} min ({first['from']} .. {first['to']})"


def _regular(r: Report) -> str | None:
    steps = f"{r.irregular_steps} steps are not a multiple of {r.step_minutes} min"
    return steps if r.irregular_steps else None


def _dead(r: Report) -> str | None:
    ids = r.dead_sensors
    return f"{len(ids)} of {r.sensors} sensors never have a valid reading ({sample(ids)})" if ids else None


def _stuck(r: Report) -> str | None:
    runs = [f"{vdid} {hours:.1f} h" for vdid, hours in r.stuck_sensors.items()]
    return f"{len(runs)} of {r.sensors} sensors repeat one value for hours ({sample(runs)})" if runs else None


def _outage(r: Report) -> str | None:
    hours = r.longest_outage_steps * r.step_minutes / 60
    return f"no sensor has a reading for {hours:.1f} h ({r.longest_outage_steps} rows)" if hours > 24 else None


def _negative(r: Report) -> Message | None:
    if r.most_negative is None:
        return None
    found = f"{r.negative_readings:,} readings of {r.feature} are below 0, most often {r.most_negative:g}"
    return Message("", found, _no_reading(r, r.most_negative))


def _range(r: Report) -> str | None:
    if not r.fast_readings:
        return None
    what = f"{r.fast_readings:,} readings of {len(r.fast_sensors)} sensors are above {LARGEST_SPEED[r.unit]:g} {r.unit}"
    return f"{what}, up to {r.highest:g} ({sample(r.fast_sensors)})"


def _odd_values(r: Report) -> Message | None:
    if not r.odd_values:
        return None
    (vdid, found), *others = r.odd_values.items()
    more = f", and {len(others)} other sensors have such a number" if others else ""
    what = f"{found['value']:g} stands in {100 * found['share']:.0f} % of the readings of sensor {vdid}{more}"
    return Message("", what, _no_reading(r, found["value"]))


def _zeros(r: Report) -> Message | None:
    if r.feature != SPEED or r.missing == 0 or r.zero_share < ZERO_SHARE:
        return None
    return Message("", f"{100 * r.zero_share:.1f} % of the readings are 0, a speed", _no_reading(r, 0.0))


def _no_reading(r: Report, value: float) -> Remedy:
    """The missing value in force stays one."""
    codes = [int(code) if code == int(code) else code for code in (value, r.missing) if _is_code(code)]
    said = codes[0] if len(codes) == 1 else ",".join(map(str, codes))
    return "if it means no reading, convert again with ", Argument("missing", said)


def _is_code(number: float | None) -> TypeGuard[float]:
    return number is not None and math.isfinite(number)


def _units(r: Report) -> str | None:
    return f"the unit of {r.feature} is not stored" if r.unit == "unknown" else None


def _timezone(r: Report) -> str | None:
    if r.timezone is None:
        return "it does not say in which time zone its wall times are"
    if r.centre is not None and (zone := known_zone(r.timezone)) is not None and r.timezone != "UTC":
        offset = zone.utcoffset(datetime.fromisoformat(r.first_timestamp))
        hours = 0.0 if offset is None else offset.total_seconds() / 3600
        if abs((hours - r.centre[1] / 15 + 12) % 24 - 12) > FAR_HOURS:
            return f"its sensors are {near((r.centre[0], r.centre[1]))}, far from its time zone {r.timezone}"
    unknown = f"its time zone {r.timezone!a} is not in this machine's time zone data"
    return unknown if r.nonexistent_rows is None else None


CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check("rows", f"as many rows as the attribute {ROWS_ATTR} says", "problem", _rows),
        Check("duplicates", "no two rows of one time", "problem", _duplicates),
        Check("positions", "a latitude and longitude for every sensor", "problem", _positions),
        Check("vd_info", "vd_info describes the sensors of the data, all of them and no others", "problem", _vd_info),
        Check("order", "every row later than the row before", "problem", _order),
        Check("epochs", "stored epochs that are the wall time of their row read as UTC", "problem", _epochs),
        Check("coordinates", "no two sensors in one place, none far from all others", "remark", _coordinates),
        Check("gaps", "no rows missing in the time axis", "remark", _gaps),
        Check("regular", "steps that are multiples of the common step", "remark", _regular),
        Check("dead", "a valid reading of every sensor", "remark", _dead),
        Check("stuck", "no sensor that repeats one value for 6 hours, 24 at the highest speed", "remark", _stuck),
        Check("range", "no speed above 200 km/h", "remark", _range),
        Check("negative", "no reading below 0 of a quantity that cannot be", "remark", _negative),
        Check("zeros", "no zeros that count as speeds in 1 % of the readings or more", "remark", _zeros),
        Check("odd_values", "no number that is frequent and far from all others of its sensor", "remark", _odd_values),
        Check("outage", "no outage of the whole network longer than a day", "remark", _outage),
        Check("units", "a known unit of the speeds", "remark", _units),
        Check("timezone", "a time zone that is stored and known", "remark", _timezone),
    )
}


def problems(report: Report) -> list[str]:
    """What a file must not have to pass ``convert --validate``, one line each; empty when it passes."""
    return _lines(report, [check for check in CHECKS.values() if check.severity == "problem"])


def remarks(report: Report, write: Write = python) -> list[str]:
    """What is worth knowing of a file that passes, one line each."""
    return _lines(report, [check for check in CHECKS.values() if check.severity == "remark"], write)


def doubts(report: Report, where: object) -> list[Message]:
    """Remarks on readings that may not be any, which a new conversion can settle."""
    found = (_negative(report), _zeros(report), _odd_values(report))
    return [Message(where, message.what, message.remedy) for message in found if message]


def parse(text: str) -> list[str]:
    """``positions,gaps`` -> the names in it; an unknown one is refused before any file is read."""
    names = [name.strip() for name in text.split(",")]
    _refuse_unknown(names)
    return names


def failed(report: Report, names: Sequence[str], write: Write = python) -> list[str]:
    """The lines of those of the named checks that the file does not meet, in the table's order; "all" = every one."""
    _refuse_unknown(names)
    return _lines(report, [check for name, check in CHECKS.items() if name in names or ALL in names], write)


def _refuse_unknown(names: Sequence[str]) -> None:
    known = [*CHECKS, ALL]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else "choose from these"
            raise SettingsError(f"check {name!r}", f"not one of {', '.join(known)}", hint)


def _lines(report: Report, checks: Sequence[Check], write: Write = python) -> list[str]:
    found = (check.find(report) for check in checks)
    return [each.line(write) if isinstance(each, Message) else each for each in found if each is not None]
