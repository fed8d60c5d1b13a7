"""The checks on a report: names, findings, and which checks fail a file, in two tables."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from socialx.core.errors import Argument, Command, Message, SettingsError, counted, sample
from socialx.core.notebook import names_in
from socialx.files.sources.positions.locations import format_position
from socialx.files.store.layout import ROWS_ATTR, UNKNOWN
from socialx.files.store.quantities import LARGEST_SPEED, SPEED
from socialx.files.store.time_axis import is_utc, known_zone, skipped_hour
from socialx.inspection.report import Report

ALL = "all"  # names every check
FAR_HOURS = 3.0  # between zone and solar time: China spans 5 hours
# Coordinates may be exchanged if solar time is at least 1.5 h off the zone, and an exchange gains 0.4 h.
ODD_HOURS, NEARER_HOURS = 1.5, 0.4  # Madrid, the farthest large city, is 1.25 h off
HABITABLE = 65.0  # degrees of latitude with sensor networks
NO_READINGS = ("range", "negative", "odd_values")  # checks for impossible observations
# Singular and plural.
TWICE, LATE, ODD = ("row has", "rows have"), ("row is", "rows are"), ("step is", "steps are")
EPOCHS = ("value of timestamps_epoch is", "values of timestamps_epoch are")
DAY_HOURS = 24
ZERO_SHARE = 0.01  # of speeds equal to 0
Check = Callable[[Report], Any]  # returns the finding as a line; empty, 0 or None if passed


def _sensors(report: Report, ids: Sequence[str], one: str, several: str, wrong: str) -> str:
    """Return ``1 of 3 sensors has no position (a)``; one, several: ``has``, ``have``; wrong: ``no position``."""
    many = f"{len(ids)} of {counted(report.sensors, 'sensor')} {one if len(ids) == 1 else several}"
    return f"{many} {wrong} ({sample(ids)})"


def _rows(report: Report) -> str:
    stored = report.rows + report.failed_rows
    if report.declared_rows in (None, stored):
        return ""
    return f"the file has {counted(stored, 'row')}, but the attribute {ROWS_ATTR} says {report.declared_rows}"


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
        parts.append(f"{sum(map(len, shared))} sensors share a location ({groups})")
    if far:
        parts.append(f"{counted(len(far), 'sensor is', 'sensors are')} far from all others ({sample(far)})")
    return "; ".join(parts)


def _gaps(report: Report) -> str:
    if not report.gaps:
        return ""
    first = max(report.gap_list, key=lambda gap: gap["missing_rows"])
    ends = f"{report.clock.stored(first['from'])} .. {report.clock.stored(first['to'])}"
    largest = f"{report.largest_gap_minutes:g} min"
    return f"{counted(report.gaps, 'gap')} in time, the largest {largest} ({ends})"


def _stuck_sensors(report: Report) -> str:
    runs = [f"{vdid} {hours:.1f} h" for vdid, hours in report.stuck_sensors.items()]
    return _sensors(report, runs, "repeats", "repeat", "one value for hours") if runs else ""


def _range(report: Report) -> str:
    fast, sensors = report.fast_readings, report.fast_sensors
    if not fast:
        return ""
    limit = f"{LARGEST_SPEED[report.unit]:g} {report.unit}, up to {report.highest:g}"
    readings = f"{counted(fast, 'reading')} of {counted(len(sensors), 'sensor')} {'is' if fast == 1 else 'are'}"
    return f"{readings} above {limit} ({sample(sensors)})"


def _missing_remedy(report: Report, *values: float) -> str:
    """Return advice to convert again with values as missing-value codes, together with the codes already used."""
    stored = [] if report.missing is None or not math.isfinite(report.missing) else [report.missing]
    codes = [*values, *stored, *report.missing_codes]
    numbers = [int(code) if code == int(code) else code for code in codes]
    missing = numbers[0] if len(numbers) == 1 else ",".join(map(str, numbers))
    return f"if it means a missing value, convert again with {Argument('missing', missing)}"


def _negative_values(report: Report) -> str:
    if not report.negative_readings:
        return ""
    value = report.most_negative or 0.0
    readings = counted(report.negative_readings, f"reading of {report.feature} is", f"readings of {report.feature} are")
    return f"{readings} below 0, most often {value:g}: {_missing_remedy(report, value)}"


def _zeros(report: Report) -> str:
    if report.feature != SPEED or report.missing == 0 or report.zero_share < ZERO_SHARE:
        return ""
    return f"{100 * report.zero_share:.1f} % of the readings are 0, a speed: {_missing_remedy(report, 0.0)}"


def _odd_values(report: Report) -> str:
    odd, parts = report.odd_values, []
    values = list(dict.fromkeys(entry["value"] for entry in odd.values()))
    for value in values:
        counts = {vdid: entry["readings"] for vdid, entry in odd.items() if entry["value"] == value}
        readings, sensors = counted(int(sum(counts.values())), "reading"), counted(len(counts), "sensor")
        parts.append(f"{value:g} is in {readings} of {sensors} ({sample(list(counts))})")
    return f"{'; '.join(parts)}, far from all others: {_missing_remedy(report, *values)}" if parts else ""


def _outage(report: Report) -> str:
    hours, rows = report.longest_outage_steps * report.step_minutes / 60, report.longest_outage_steps
    return f"all sensors are silent for {hours:.1f} h ({counted(rows, 'row')})" if hours > DAY_HOURS else ""


def _units(report: Report) -> str:
    unknown = f"the unit of {report.feature} is not stored: {Command('backfill', report.path, units='UNIT')}"
    return unknown if report.unit == UNKNOWN else ""


def _timezone(report: Report) -> str | None:
    if report.timezone is None:
        backfill = Command("backfill", report.path, timezone="ZONE")
        return f"the time zone of the wall times is not stored: {backfill}"
    if report.centre is not None:
        location = (report.centre[0], report.centre[1])
        if line := zone_mismatch(location, report.local_zone or report.timezone, report.first_timestamp, report.path):
            return line
    for zone in (report.timezone, report.local_zone or report.timezone):
        if known_zone(zone) is None:
            return f"the time zone {zone!a} is not in this machine's time zone data"
    if report.first_nonexistent_read is None:
        return None
    return ": ".join(skipped_hour(report.nonexistent_rows_read or 0, report.first_nonexistent_read, report.timezone))


def zone_mismatch(location: tuple[float, float], timezone: str | None, moment: str, path: str) -> str | None:
    """Return a line if the solar time at a location, latitude and longitude, does not fit the time zone, else None.

    The line suggests exchanged coordinates if the exchanged location fits the zone's standard time and is far from the
    poles. moment: time of the first row. path: file to correct, only for the remedy.
    """
    if is_utc(timezone) or (zone := known_zone(timezone)) is None:
        return None
    time = datetime.fromisoformat(moment)
    offset, summer = zone.utcoffset(time) or timedelta(), zone.dst(time) or timedelta()

    def gap(longitude: float, utc_offset: timedelta = offset - summer) -> float:
        return abs((utc_offset.total_seconds() / 3600 - longitude / 15 + 12) % 24 - 12)

    latitude, longitude = location
    nearer = gap(longitude) > ODD_HOURS >= gap(latitude) and gap(longitude) - gap(latitude) > NEARER_HOURS
    exchanged = nearer and abs(longitude) <= HABITABLE
    if not exchanged and gap(longitude, offset) <= FAR_HOURS:
        return None
    mismatch = f"the sensors are {format_position(location)}, far from the time zone {timezone}"
    if not exchanged:
        return mismatch
    completing = Command("backfill", path, meta_csv="LOCATIONS.csv")
    fits = f"{format_position((longitude, latitude))} fits the zone"
    return f"{mismatch}; {fits}: if the coordinates are exchanged, exchange the columns and {completing}"


PROBLEMS: dict[str, Check] = {  # structural faults, in output order
    "rows": _rows,
    "duplicates": lambda r: r.duplicates and f"{counted(r.duplicates, *TWICE)} the time of an earlier row",
    "positions": lambda r: r.without_position and _sensors(r, r.without_position, "has", "have", "no location"),
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
    "stuck": _stuck_sensors,
    "range": _range,
    "negative": _negative_values,
    "zeros": _zeros,
    "odd_values": _odd_values,
    "outage": _outage,
    "units": _units,
    "timezone": _timezone,
}
CHECKS = PROBLEMS | REMARKS
VALIDATE_CHECKS = (*PROBLEMS, *NO_READINGS)  # checks that fail ``convert --validate``


def problems(report: Report) -> list[str]:
    """Return the structural faults, one line each, with advice; empty for a sound file."""
    return failed_checks(report, PROBLEMS)


def remarks(report: Report) -> list[str]:
    """Return noteworthy findings that are no fault, one line each."""
    return failed_checks(report, REMARKS)


def messages(report: Report, where: object, names: Collection[str]) -> list[Message]:
    """Return the named checks' findings as messages; where: the file that the messages name."""
    return [Message(f"inspect.{name}", where, line) for name in names for line in _lines(report, [name])]


def parse(names: str | Sequence[str]) -> list[str]:
    """Return the check names in ``positions,gaps`` or a list.  Raises SettingsError for an unknown name."""
    parsed = names_in(names)
    choices = [*CHECKS, ALL]
    for name in parsed or [""]:
        if name not in choices:
            matches = difflib.get_close_matches(name, choices, 1, 0.5)
            hint = f"use {matches[0]}" if matches else "choose one of these checks"
            problem = f"the check {name!r} is unknown; the checks are {', '.join(choices)}"
            raise SettingsError("inspect.unknown-check", "", problem, hint)
    return parsed


def failed_checks(report: Report, names: Collection[str]) -> list[str]:
    """Return a line per failed check among ``names`` ("all": every check), in CHECKS order."""
    return _lines(report, CHECKS if ALL in names else names)


def _lines(report: Report, names: Collection[str]) -> list[str]:
    return [line for name, check in CHECKS.items() if name in names and (line := check(report))]
