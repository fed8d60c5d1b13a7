"""What a report is asked: the names of the checks, what each wants and which of them fail a file, in one table."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from socialx.errors import Argument, Message, SettingsError, Write, python, sample, written
from socialx.files.hdf5_layout import ROWS_ATTR
from socialx.files.inspect import Report
from socialx.files.locations import near
from socialx.files.quantities import LARGEST_SPEED, SPEED
from socialx.files.time_axis import known_zone

ALL = "all"  # stands for every check
FAR_HOURS = 3.0  # of a zone from the sun: China has one for 5 hours
ZERO_SHARE = 0.01  # of speeds that are exactly 0
Severity = Literal["problem", "remark"]
Find = Callable[[Report], str | None]


@dataclass(frozen=True)
class FileCheck:
    """One question to a report; ``find`` answers with one line where the file does not meet it, else with None."""

    name: str
    asks: str
    severity: Severity  # a problem fails convert --validate, a remark only what asks for it
    find: Find


CHECKS: dict[str, FileCheck] = {}  # by name, in the order of their lines


def _check(asks: str, severity: Severity) -> Callable[[Find], Find]:
    """Enter a function into ``CHECKS``, under its name without the underscore."""

    def enter(find: Find) -> Find:
        name = find.__name__.removeprefix("_")
        CHECKS[name] = FileCheck(name, asks, severity, find)
        return find

    return enter


@_check(f"as many rows as the attribute {ROWS_ATTR} says", "problem")
def _rows(report: Report) -> str | None:
    stored = report.rows + report.failed_rows
    wrong = report.declared_rows is not None and report.declared_rows != stored
    return f"it has {stored} rows, its attribute {ROWS_ATTR} says {report.declared_rows}" if wrong else None


@_check("no two rows of one time", "problem")
def _duplicates(report: Report) -> str | None:
    return f"{report.duplicates} rows have the time of an earlier row" if report.duplicates else None


@_check("a latitude and longitude for every sensor", "problem")
def _positions(report: Report) -> str | None:
    ids = report.without_position
    return f"{len(ids)} of {report.sensors} sensors have no position ({sample(ids)})" if ids else None


@_check("vd_info describes the sensors of the data, all of them and no others", "problem")
def _vd_info(report: Report) -> str | None:
    parts = (
        (report.without_info, f"of {report.sensors} sensors are not in vd_info"),
        (report.unknown_info, "sensors of vd_info are not in vdids"),
    )
    return "; ".join(f"{len(ids)} {what} ({sample(ids)})" for ids, what in parts if ids) or None


@_check("every row later than the row before", "problem")
def _order(report: Report) -> str | None:
    return f"{report.backward_steps} rows are not later than the row before" if report.backward_steps else None


@_check("stored epochs that are the wall time of their row read as UTC", "problem")
def _epochs(report: Report) -> str | None:
    what = "of its timestamps_epoch are not the wall time of their row read as UTC"
    return f"{report.wrong_epochs} {what}" if report.wrong_epochs else None


@_check("no two sensors in one place, none far from all others", "remark")
def _coordinates(report: Report) -> str | None:
    parts = []
    if report.duplicate_positions:
        groups = ["=".join(ids) for ids in report.duplicate_positions]
        parts.append(f"{sum(map(len, report.duplicate_positions))} sensors share their position ({sample(groups)})")
    if report.outlier_sensors:
        parts.append(
            f"{len(report.outlier_sensors)} sensors are far from all others ({sample(report.outlier_sensors)})"
        )
    return "; ".join(parts) or None


@_check("no rows missing in the time axis", "remark")
def _gaps(report: Report) -> str | None:
    if not report.gaps:
        return None
    first = max(report.gap_list, key=lambda gap: gap["missing_rows"])
    return (
        f"{report.gaps} gaps in time, the largest {report.largest_gap_minutes:g} min ({first['from']} .. {first['to']})"
    )


@_check("steps that are multiples of the common step", "remark")
def _regular(report: Report) -> str | None:
    steps = f"{report.irregular_steps} steps are not a multiple of {report.step_minutes} min"
    return steps if report.irregular_steps else None


@_check("a valid reading of every sensor", "remark")
def _dead(report: Report) -> str | None:
    ids = report.dead_sensors
    return f"{len(ids)} of {report.sensors} sensors never have a valid reading ({sample(ids)})" if ids else None


@_check("no sensor that repeats one value for 6 hours, 24 at the highest speed", "remark")
def _stuck(report: Report) -> str | None:
    runs = [f"{vdid} {hours:.1f} h" for vdid, hours in report.stuck_sensors.items()]
    return f"{len(runs)} of {report.sensors} sensors repeat one value for hours ({sample(runs)})" if runs else None


@_check("no speed above 200 km/h", "remark")
def _range(report: Report) -> str | None:
    if not report.fast_readings:
        return None
    limit = f"{LARGEST_SPEED[report.unit]:g} {report.unit}, up to {report.highest:g}"
    sensors = f"{len(report.fast_sensors)} sensors"
    return f"{report.fast_readings:,} readings of {sensors} are above {limit} ({sample(report.fast_sensors)})"


def _no_reading(report: Report, value: float) -> str:
    """The missing value in force stays one."""
    codes = [value, *([] if report.missing is None or not math.isfinite(report.missing) else [report.missing])]
    numbers = [int(code) if code == int(code) else code for code in codes]
    missing = numbers[0] if len(numbers) == 1 else ",".join(map(str, numbers))
    return f"if it means no reading, convert again with {Argument('missing', missing)}"


@_check("no reading below 0 of a quantity that cannot be", "remark")
def _negative(report: Report) -> str | None:
    if report.most_negative is None:
        return None
    what = f"{report.negative_readings:,} readings of {report.feature} are below 0, most often {report.most_negative:g}"
    return f"{what}: {_no_reading(report, report.most_negative)}"


@_check("no zeros that count as speeds in 1 % of the readings or more", "remark")
def _zeros(report: Report) -> str | None:
    if report.feature != SPEED or report.missing == 0 or report.zero_share < ZERO_SHARE:
        return None
    return f"{100 * report.zero_share:.1f} % of the readings are 0, a speed: {_no_reading(report, 0.0)}"


@_check("no number that is frequent and far from all others of its sensor", "remark")
def _odd_values(report: Report) -> str | None:
    if not report.odd_values:
        return None
    (vdid, number), *others = report.odd_values.items()
    more = f", and {len(others)} other sensors have such a number" if others else ""
    what = f"{number['value']:g} stands in {100 * number['share']:.0f} % of the readings of sensor {vdid}{more}"
    return f"{what}: {_no_reading(report, number['value'])}"


@_check("no outage of the whole network longer than a day", "remark")
def _outage(report: Report) -> str | None:
    hours = report.longest_outage_steps * report.step_minutes / 60
    return f"no sensor has a reading for {hours:.1f} h ({report.longest_outage_steps} rows)" if hours > 24 else None


@_check("a known unit of the speeds", "remark")
def _units(report: Report) -> str | None:
    return f"the unit of {report.feature} is not stored" if report.unit == "unknown" else None


@_check("a time zone that is stored and known", "remark")
def _timezone(report: Report) -> str | None:
    if report.timezone is None:
        return "it does not say in which time zone its wall times are"
    if report.centre is not None and (zone := known_zone(report.timezone)) is not None and report.timezone != "UTC":
        offset = zone.utcoffset(datetime.fromisoformat(report.first_timestamp))
        hours = 0.0 if offset is None else offset.total_seconds() / 3600
        if abs((hours - report.centre[1] / 15 + 12) % 24 - 12) > FAR_HOURS:
            place = near((report.centre[0], report.centre[1]))
            return f"its sensors are {place}, far from its time zone {report.timezone}"
    unknown = f"its time zone {report.timezone!a} is not in this machine's time zone data"
    return unknown if report.nonexistent_rows is None else None


def problems(report: Report) -> list[str]:
    """What a file must not have to pass ``convert --validate``, one line each; empty when it passes."""
    return _lines(report, [check for check in CHECKS.values() if check.severity == "problem"])


def remarks(report: Report, write: Write = python) -> list[str]:
    """What is worth knowing of a file that passes, one line each."""
    return _lines(report, [check for check in CHECKS.values() if check.severity == "remark"], write)


def doubts(report: Report, where: object) -> list[Message]:
    """Remarks on readings that may not be any, which a new conversion can settle."""
    lines = (CHECKS[name].find(report) for name in ("negative", "zeros", "odd_values"))
    return [Message(where, line) for line in lines if line]


def parse(names: str | Sequence[str]) -> list[str]:
    """``positions,gaps``, or a list of names -> the names; an unknown one is refused before any file is read."""
    parsed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    known = [*CHECKS, ALL]
    for name in parsed:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else "choose from these"
            raise SettingsError(f"check {name!r}", f"not one of {', '.join(known)}", hint)
    return parsed


def failed(report: Report, names: Sequence[str], write: Write = python) -> list[str]:
    """The lines of those of the named checks that the file does not meet, in the table's order; "all" = every one."""
    return _lines(report, [check for name, check in CHECKS.items() if name in names or ALL in names], write)


def _lines(report: Report, checks: Sequence[FileCheck], write: Write = python) -> list[str]:
    lines = (check.find(report) for check in checks)
    return [written(line, write) for line in lines if line is not None]
