"""What a report is asked: the names of the checks, what each finds and which of them fail a file, in one table."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from socialx.errors import Argument, Command, Message, SettingsError, Write, counted, python, sample, written
from socialx.files.hdf5_layout import ROWS_ATTR
from socialx.files.inspect import Report
from socialx.files.locations import near
from socialx.files.quantities import LARGEST_SPEED, SPEED
from socialx.files.time_axis import is_utc, known_zone, no_such_hour
from socialx.notebook import names_in

ALL = "all"  # stands for every check
FAR_HOURS = 3.0  # of a zone from the sun: China has one for 5 hours
# Latitude and longitude may be exchanged where the sun is so many hours off the zone, and would be that much nearer.
ODD_HOURS, NEARER_HOURS = 1.5, 0.4  # Madrid, the farthest of large cities, is 1.25 h off its zone
HABITABLE = 65.0  # degrees of latitude that have a network of sensors
NO_READINGS = ("range", "negative", "odd_values")  # checks that find what cannot be readings
EPOCHS = ("of its timestamps_epoch is", "of its timestamps_epoch are")
ZERO_SHARE = 0.01  # of speeds that are exactly 0
Severity = Literal["problem", "remark"]
Find = Callable[[Report], str | None]


@dataclass(frozen=True)
class FileCheck:
    """One question to a report; ``find`` answers with one line where the file does not meet it, else with None."""

    severity: Severity  # of a problem no reading is the cause
    find: Find


def _none(field: str, one: str, several: str, wrong: str) -> Find:
    """A check of a number that must be 0: ``1 row has`` or ``2 rows have``, and what is wrong."""

    def find(report: Report) -> str | None:
        count = getattr(report, field)
        return f"{counted(count, one, several)} {wrong}" if count else None

    return find


def _no_sensor(field: str, one: str, several: str, wrong: str) -> Find:
    """A check of a list of sensors that must be empty: ``1 of 3 sensors has``, what is wrong, and their ids."""

    def find(report: Report) -> str | None:
        ids = getattr(report, field)
        return f"{_of(len(ids), report, one, several)} {wrong} ({sample(ids)})" if ids else None

    return find


def _rows(report: Report) -> str | None:
    stored = report.rows + report.failed_rows
    wrong = report.declared_rows is not None and report.declared_rows != stored
    return f"it has {counted(stored, 'row')}, its attribute {ROWS_ATTR} says {report.declared_rows}" if wrong else None


def _vd_info(report: Report) -> str | None:
    lost, unknown = report.without_info, report.unknown_info
    parts = (
        (lost, f"{_of(len(lost), report, 'is', 'are')} not in vd_info"),
        (unknown, f"{counted(len(unknown), 'sensor of vd_info is', 'sensors of vd_info are')} not in vdids"),
    )
    return "; ".join(f"{what} ({sample(ids)})" for ids, what in parts if ids) or None


def _coordinates(report: Report) -> str | None:
    parts = []
    if report.duplicate_positions:
        groups = ["=".join(ids) for ids in report.duplicate_positions]
        parts.append(f"{sum(map(len, report.duplicate_positions))} sensors share their position ({sample(groups)})")
    if report.outlier_sensors:
        far = counted(len(report.outlier_sensors), "sensor is", "sensors are")
        parts.append(f"{far} far from all others ({sample(report.outlier_sensors)})")
    return "; ".join(parts) or None


def _gaps(report: Report) -> str | None:
    if not report.gaps:
        return None
    first = max(report.gap_list, key=lambda gap: gap["missing_rows"])
    ends, largest = f"{first['from']} .. {first['to']}", f"{report.largest_gap_minutes:g} min"
    return f"{counted(report.gaps, 'gap')} in time, the largest {largest} ({ends})"


def _regular(report: Report) -> str | None:
    steps = f"{counted(report.irregular_steps, 'step is', 'steps are')} not a multiple of {report.step_minutes} min"
    return steps if report.irregular_steps else None


def _stuck(report: Report) -> str | None:
    runs = [f"{vdid} {hours:.1f} h" for vdid, hours in report.stuck_sensors.items()]
    many = _of(len(runs), report, "repeats", "repeat")
    return f"{many} one value for hours ({sample(runs)})" if runs else None


def _range(report: Report) -> str | None:
    if not report.fast_readings:
        return None
    limit = f"{LARGEST_SPEED[report.unit]:g} {report.unit}, up to {report.highest:g}"
    sensors, one = counted(len(report.fast_sensors), "sensor"), report.fast_readings == 1
    readings = f"{counted(report.fast_readings, 'reading')} of {sensors} {'is' if one else 'are'}"
    return f"{readings} above {limit} ({sample(report.fast_sensors)})"


def _of(count: int, report: Report, one: str, several: str) -> str:
    """``1 of 3 sensors has``, and so on."""
    return f"{count} of {counted(report.sensors, 'sensor')} {one if count == 1 else several}"


def _no_reading(report: Report, *values: float) -> str:
    """The numbers that stand for no reading already go on to do so."""
    known = [] if report.missing is None or not math.isfinite(report.missing) else [report.missing]
    codes = [*values, *known, *report.missing_codes]
    numbers = [int(code) if code == int(code) else code for code in codes]
    missing = numbers[0] if len(numbers) == 1 else ",".join(map(str, numbers))
    return f"if it means no reading, convert again with {Argument('missing', missing)}"


def _negative(report: Report) -> str | None:
    if report.most_negative is None:
        return None
    readings = f"{counted(report.negative_readings, 'reading')} of {report.feature}"
    below = "is" if report.negative_readings == 1 else "are"
    what = f"{readings} {below} below 0, most often {report.most_negative:g}"
    return f"{what}: {_no_reading(report, report.most_negative)}"


def _zeros(report: Report) -> str | None:
    if report.feature != SPEED or report.missing == 0 or report.zero_share < ZERO_SHARE:
        return None
    return f"{100 * report.zero_share:.1f} % of the readings are 0, a speed: {_no_reading(report, 0.0)}"


def _odd_values(report: Report) -> str | None:
    if not report.odd_values:
        return None
    parts, values = [], list(dict.fromkeys(entry["value"] for entry in report.odd_values.values()))
    for value in values:
        found = {vdid: entry["readings"] for vdid, entry in report.odd_values.items() if entry["value"] == value}
        readings, sensors = counted(int(sum(found.values())), "reading"), counted(len(found), "sensor")
        parts.append(f"{value:g} stands in {readings} of {sensors} ({sample(list(found))})")
    return f"{'; '.join(parts)}, far from all others: {_no_reading(report, *values)}"


def _outage(report: Report) -> str | None:
    hours = report.longest_outage_steps * report.step_minutes / 60
    rows = counted(report.longest_outage_steps, "row")
    return f"no sensor has a reading for {hours:.1f} h ({rows})" if hours > 24 else None


def _units(report: Report) -> str | None:
    backfill = Command("backfill", report.path, units="UNIT")
    return f"the unit of {report.feature} is not stored: {backfill}" if report.unit == "unknown" else None


def _timezone(report: Report) -> str | None:
    if report.timezone is None:
        backfill = Command("backfill", report.path, timezone="ZONE")
        return f"it does not say in which time zone its wall times are: {backfill}"
    if report.centre is not None:
        place = (report.centre[0], report.centre[1])
        if found := far_from_zone(place, report.local_zone or report.timezone, report.first_timestamp, report.path):
            return found
    for zone in (report.timezone, report.local_zone or report.timezone):
        if known_zone(zone) is None:
            return f"its time zone {zone!a} is not in this machine's time zone data"
    if report.first_nonexistent_read is None:
        return None
    return ": ".join(no_such_hour(report.nonexistent_rows_read or 0, report.first_nonexistent_read, report.timezone))


def far_from_zone(place: tuple[float, float], timezone: str | None, moment: str, path: str) -> str | None:
    """A line where the sun over a place, latitude and longitude, is not that of the time zone.

    It names an exchange of the two where the place is then nearer to the sun of the zone, in its standard time, and not
    near a pole.  moment: of the first row.  path: of the file.
    """
    if is_utc(timezone) or (zone := known_zone(timezone)) is None:
        return None
    then = datetime.fromisoformat(moment)
    offset, summer = zone.utcoffset(then) or timedelta(), zone.dst(then) or timedelta()

    def away(longitude: float, of_zone: timedelta = offset - summer) -> float:
        return abs((of_zone.total_seconds() / 3600 - longitude / 15 + 12) % 24 - 12)

    latitude, longitude = place
    nearer = away(longitude) > ODD_HOURS >= away(latitude) and away(longitude) - away(latitude) > NEARER_HOURS
    exchanged = nearer and abs(longitude) <= HABITABLE
    if not exchanged and away(longitude, offset) <= FAR_HOURS:
        return None
    found = f"its sensors are {near(place)}, far from its time zone {timezone}"
    if not exchanged:
        return found
    completing = Command("backfill", path, meta="LOCATIONS.csv")
    fits = f"{near((longitude, latitude))} fits it"
    return f"{found}; {fits}: if they are exchanged, exchange the columns and {completing}"


CHECKS = {  # by name, in the order of their lines
    "rows": FileCheck("problem", _rows),
    "duplicates": FileCheck("problem", _none("duplicates", "row has", "rows have", "the time of an earlier row")),
    "positions": FileCheck("problem", _no_sensor("without_position", "has", "have", "no position")),
    "vd_info": FileCheck("problem", _vd_info),
    "order": FileCheck("problem", _none("backward_steps", "row is", "rows are", "not later than the row before")),
    "epochs": FileCheck("problem", _none("wrong_epochs", *EPOCHS, "not the wall time of their row read as UTC")),
    "coordinates": FileCheck("remark", _coordinates),
    "gaps": FileCheck("remark", _gaps),
    "regular": FileCheck("remark", _regular),
    "dead": FileCheck("remark", _no_sensor("dead_sensors", "has", "have", "never a valid reading")),
    "stuck": FileCheck("remark", _stuck),
    "range": FileCheck("remark", _range),
    "negative": FileCheck("remark", _negative),
    "zeros": FileCheck("remark", _zeros),
    "odd_values": FileCheck("remark", _odd_values),
    "outage": FileCheck("remark", _outage),
    "units": FileCheck("remark", _units),
    "timezone": FileCheck("remark", _timezone),
}


def problems(report: Report) -> list[str]:
    """What is wrong with a file whatever its readings are, one line each."""
    return failed(report, _of_severity("problem"))


def remarks(report: Report, write: Write = python) -> list[str]:
    """What is worth knowing of a file without problems, one line each."""
    return failed(report, _of_severity("remark"), write)


def messages(report: Report, where: object, names: Collection[str]) -> list[Message]:
    """What the named checks find."""
    return [Message(where, line) for name in names if (line := CHECKS[name].find(report))]


def of_validate() -> list[str]:
    """The checks that fail ``convert --validate``: the problems, and readings of which some cannot be any."""
    return [*_of_severity("problem"), *NO_READINGS]


def parse(names: str | Sequence[str]) -> list[str]:
    """``positions,gaps``, or a list of names -> the names; an unknown one is refused before any file is read."""
    parsed = names_in(names)
    known = [*CHECKS, ALL]
    for name in parsed or [""]:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else "choose from these"
            raise SettingsError(f"check {name!r}", f"not one of {', '.join(known)}", hint)
    return parsed


def failed(report: Report, names: Sequence[str], write: Write = python) -> list[str]:
    """The lines of those of the named checks that the file does not meet, in the table's order; "all" = every one."""
    lines = [check.find(report) for name, check in CHECKS.items() if name in names or ALL in names]
    return [written(line, write) for line in lines if line is not None]


def _of_severity(severity: Severity) -> list[str]:
    return [name for name, check in CHECKS.items() if check.severity == severity]
