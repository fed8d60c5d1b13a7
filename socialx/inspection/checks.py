"""What a report is asked: the names of the checks, what each finds and which of them fail a file, in two tables."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from socialx.core.errors import Argument, Command, Message, SettingsError, Write, counted, python, render, sample
from socialx.core.notebook import names_in
from socialx.files.sources.positions.locations import format_position
from socialx.files.store.layout import ROWS_ATTR, UNKNOWN
from socialx.files.store.quantities import LARGEST_SPEED, SPEED
from socialx.files.store.time_axis import is_utc, known_zone, skipped_hour
from socialx.inspection.report import Report

ALL = "all"  # stands for every check
FAR_HOURS = 3.0  # of a zone from the sun: China has one for 5 hours
# Latitude and longitude may be exchanged where the sun is so many hours off the zone, and would be that much nearer.
ODD_HOURS, NEARER_HOURS = 1.5, 0.4  # Madrid, the farthest of large cities, is 1.25 h off its zone
HABITABLE = 65.0  # degrees of latitude that have a network of sensors
NO_READINGS = ("range", "negative", "odd_values")  # checks that find what cannot be readings
# What is counted, of one and of several.
TWICE, LATE, ODD = ("row has", "rows have"), ("row is", "rows are"), ("step is", "steps are")
EPOCHS = ("of its timestamps_epoch is", "of its timestamps_epoch are")
DAY_HOURS = 24
ZERO_SHARE = 0.01  # of speeds that are exactly 0
Check = Callable[[Report], Any]  # the line that says what is wrong; empty, 0 or None: nothing is


def _sensors(report: Report, ids: Sequence[str], one: str, several: str, wrong: str) -> str:
    """``1 of 3 sensors has``, what is wrong, and their ids."""
    many = f"{len(ids)} of {counted(report.sensors, 'sensor')} {one if len(ids) == 1 else several}"
    return f"{many} {wrong} ({sample(ids)})"


def _rows(report: Report) -> str:
    stored = report.rows + report.failed_rows
    if report.declared_rows in (None, stored):
        return ""
    return f"it has {counted(stored, 'row')}, its attribute {ROWS_ATTR} says {report.declared_rows}"


def _vd_info(report: Report) -> str:
    lost, unknown = report.without_info, report.unknown_info
    parts = [_sensors(report, lost, "is", "are", "not in vd_info")] if lost else []
    if unknown:
        foreign = counted(len(unknown), "sensor of vd_info is", "sensors of vd_info are")
        parts.append(f"{foreign} not in vdids ({sample(unknown)})")
    return "; ".join(parts)


def _coordinates(report: Report) -> str:
    shared, far, parts = report.duplicate_positions, report.outlier_sensors, []
    if shared:
        groups = sample(["=".join(ids) for ids in shared])
        parts.append(f"{sum(map(len, shared))} sensors share their position ({groups})")
    if far:
        parts.append(f"{counted(len(far), 'sensor is', 'sensors are')} far from all others ({sample(far)})")
    return "; ".join(parts)


def _gaps(report: Report) -> str:
    if not report.gaps:
        return ""
    first = max(report.gap_list, key=lambda gap: gap["missing_rows"])
    ends, largest = f"{first['from']} .. {first['to']}", f"{report.largest_gap_minutes:g} min"
    return f"{counted(report.gaps, 'gap')} in time, the largest {largest} ({ends})"


def _stuck(report: Report) -> str:
    runs = [f"{vdid} {hours:.1f} h" for vdid, hours in report.stuck_sensors.items()]
    return _sensors(report, runs, "repeats", "repeat", "one value for hours") if runs else ""


def _range(report: Report) -> str:
    fast, sensors = report.fast_readings, report.fast_sensors
    if not fast:
        return ""
    limit = f"{LARGEST_SPEED[report.unit]:g} {report.unit}, up to {report.highest:g}"
    readings = f"{counted(fast, 'reading')} of {counted(len(sensors), 'sensor')} {'is' if fast == 1 else 'are'}"
    return f"{readings} above {limit} ({sample(sensors)})"


def _no_reading(report: Report, *values: float) -> str:
    """The numbers that stand for no reading already go on to do so."""
    known = [] if report.missing is None or not math.isfinite(report.missing) else [report.missing]
    codes = [*values, *known, *report.missing_codes]
    numbers = [int(code) if code == int(code) else code for code in codes]
    missing = numbers[0] if len(numbers) == 1 else ",".join(map(str, numbers))
    return f"if it means no reading, convert again with {Argument('missing', missing)}"


def _negative(report: Report) -> str:
    if not report.negative_readings:
        return ""
    value = report.most_negative or 0.0
    readings = counted(report.negative_readings, f"reading of {report.feature} is", f"readings of {report.feature} are")
    return f"{readings} below 0, most often {value:g}: {_no_reading(report, value)}"


def _zeros(report: Report) -> str:
    if report.feature != SPEED or report.missing == 0 or report.zero_share < ZERO_SHARE:
        return ""
    return f"{100 * report.zero_share:.1f} % of the readings are 0, a speed: {_no_reading(report, 0.0)}"


def _odd_values(report: Report) -> str:
    odd, parts = report.odd_values, []
    values = list(dict.fromkeys(entry["value"] for entry in odd.values()))
    for value in values:
        found = {vdid: entry["readings"] for vdid, entry in odd.items() if entry["value"] == value}
        readings, sensors = counted(int(sum(found.values())), "reading"), counted(len(found), "sensor")
        parts.append(f"{value:g} stands in {readings} of {sensors} ({sample(list(found))})")
    return f"{'; '.join(parts)}, far from all others: {_no_reading(report, *values)}" if parts else ""


def _outage(report: Report) -> str:
    hours, rows = report.longest_outage_steps * report.step_minutes / 60, report.longest_outage_steps
    return f"no sensor has a reading for {hours:.1f} h ({counted(rows, 'row')})" if hours > DAY_HOURS else ""


def _units(report: Report) -> str:
    unknown = f"the unit of {report.feature} is not stored: {Command('backfill', report.path, units='UNIT')}"
    return unknown if report.unit == UNKNOWN else ""


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
    return ": ".join(skipped_hour(report.nonexistent_rows_read or 0, report.first_nonexistent_read, report.timezone))


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
    found = f"its sensors are {format_position(place)}, far from its time zone {timezone}"
    if not exchanged:
        return found
    completing = Command("backfill", path, meta_csv="LOCATIONS.csv")
    fits = f"{format_position((longitude, latitude))} fits it"
    return f"{found}; {fits}: if they are exchanged, exchange the columns and {completing}"


PROBLEMS: dict[str, Check] = {  # of which no reading is the cause, in the order of their lines
    "rows": _rows,
    "duplicates": lambda r: r.duplicates and f"{counted(r.duplicates, *TWICE)} the time of an earlier row",
    "positions": lambda r: r.without_position and _sensors(r, r.without_position, "has", "have", "no position"),
    "vd_info": _vd_info,
    "order": lambda r: r.backward_steps and f"{counted(r.backward_steps, *LATE)} not later than the row before",
    "epochs": lambda r: (
        r.wrong_epochs and f"{counted(r.wrong_epochs, *EPOCHS)} not the wall time of their row read as UTC"
    ),
}
REMARKS: dict[str, Check] = {
    "coordinates": _coordinates,
    "gaps": _gaps,
    "regular": lambda r: (
        r.irregular_steps and f"{counted(r.irregular_steps, *ODD)} not a multiple of {r.step_minutes} min"
    ),
    "dead": lambda r: r.dead_sensors and _sensors(r, r.dead_sensors, "has", "have", "never a valid reading"),
    "stuck": _stuck,
    "range": _range,
    "negative": _negative,
    "zeros": _zeros,
    "odd_values": _odd_values,
    "outage": _outage,
    "units": _units,
    "timezone": _timezone,
}
CHECKS = PROBLEMS | REMARKS
OF_VALIDATE = (*PROBLEMS, *NO_READINGS)  # they fail ``convert --validate``


def problems(report: Report) -> list[str]:
    """What is wrong with a file whatever its readings are, one line each."""
    return failed(report, PROBLEMS)


def remarks(report: Report, write: Write = python) -> list[str]:
    """What is worth knowing of a file without problems, one line each."""
    return failed(report, REMARKS, write)


def messages(report: Report, where: object, names: Collection[str]) -> list[Message]:
    """What the named checks find."""
    return [Message(where, line) for name in names for line in _lines(report, [name])]


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


def failed(report: Report, names: Collection[str], write: Write = python) -> list[str]:
    """The lines of those of the named checks that the file does not meet, in the order of CHECKS; "all" = every one."""
    return [render(line, write) for line in _lines(report, CHECKS if ALL in names else names)]


def _lines(report: Report, names: Collection[str]) -> list[str]:
    return [line for name, check in CHECKS.items() if name in names and (line := check(report))]
