"""What a file is and holds, and what backfill would do with it, as terminal tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from socialx.errors import counted, sample
from socialx.files.inspect import Report
from socialx.files.locations import near
from socialx.files.older.backfill import Plan
from socialx.views.terminal import percent

FEATURES_LISTED = 30  # a file may declare hundreds of thousands
# What follows the name of a file's data; None: it cannot be told.
IMPUTED = {True: ", zeros filled in by its writer", False: "", None: ", perhaps with its zeros filled in by its writer"}


def print_report(report: Report, kind: str = "", console: Console | None = None) -> None:
    """What a file is and holds, a line per question that people ask of it."""
    table = Table(show_header=False, show_edge=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if kind:
        table.add_row("kind", kind)
    for name, value in (_about_file(report) | _about_times(report) | _about_readings(report)).items():
        table.add_row(name, value.rstrip())
    out = console or Console()
    out.print(table, highlight=False, markup=False)
    out.print(f"checksum         {report.checksum}", highlight=False, soft_wrap=True)  # longer than a narrow terminal


def _about_file(r: Report) -> dict[str, str]:
    lost = len(r.without_position)
    shared, far = sum(map(len, r.duplicate_positions)), len(r.outlier_sensors)
    extent = "none" if r.extent_km is None else f"{r.extent_km[0]:.1f} x {r.extent_km[1]:.1f} km"
    extent += "" if r.centre is None or r.extent_km is None else f" {near((r.centre[0], r.centre[1]))}"
    others = sample([f"{name} {r.units[name]}" for name in r.features if name != r.feature], FEATURES_LISTED)
    return {
        "file": r.path,
        "data": f"{r.dataset}, {r.feature} in {r.unit}{IMPUTED[r.imputed]}",
        "also": others or "no other feature",
        "sensors": f"{r.sensors}, {'all' if not lost else r.sensors - lost} with a position",
        "coordinates": f"{extent}; {shared} share a position, {far} far from all others",
    }


def _about_times(r: Report) -> dict[str, str]:
    gaps = counted(r.gaps, "gap") + (f", the largest {r.largest_gap_minutes:g} min" if r.gaps else "")
    clock = "time zone not stored" if r.timezone is None else f"time zone {r.timezone} not known here"
    if r.nonexistent_rows is not None:
        clock = (
            f"{counted(r.nonexistent_rows, 'row')} in skipped hours, {r.nonexistent_rows_read} of them with a reading; "
        )
        clock += f"{r.ambiguous_rows} in repeated hours"
    zone = f"{r.timezone or ''}{f', days of {r.local_zone}' if r.local_zone else ''}"
    without = f", {r.failed_rows} without a time" if r.failed_rows else ""
    odd = f"{counted(r.duplicates, 'duplicate')}, {counted(r.irregular_steps, 'irregular step')}"
    return {
        "rows": f"{r.rows:,}, every {r.step_minutes} min, {r.first_timestamp} .. {r.last_timestamp} {zone}",
        "time axis": f"{gaps}, {odd}{without}",
        "daylight saving": clock,
    }


def _about_readings(r: Report) -> dict[str, str]:
    missing = "not finite" if r.missing is None else f"not finite or {r.missing:g}"
    worst = [f"{sensor} {percent(share)}" for sensor, share in r.worst_sensors.items() if share]
    stuck = [f"{sensor} {hours:.1f} h" for sensor, hours in r.stuck_sensors.items()]
    unusual = [f"{date} like a {like}" for date, like in r.unusual_days.items()]
    longest, dark = "none", counted(r.all_missing_rows, "row")
    if r.sensor_longest_outage is not None:
        steps = int(r.sensor_longest_outage["steps"])
        longest = (
            f"sensor {r.sensor_longest_outage['sensor']}, {counted(steps, 'row')} ({steps * r.step_minutes / 60:.1f} h)"
        )
        longest += f" from {r.sensor_longest_outage['first_timestamp']}"
    between = [
        f"{name} {value:.4g}"
        for name in ("lowest", "median", "mean", "highest")
        if (value := getattr(r, name)) is not None
    ]
    return {
        "readings": f"{', '.join(between)} {r.unit if r.unit != 'unknown' else ''}" if between else "none",
        "missing": f"{percent(r.missing_share)} ({missing}); zeros {percent(r.zero_share)}",
        "worst sensors": ", ".join(worst) or "none",
        "dead sensors": f"{len(r.dead_sensors)}: {sample(r.dead_sensors)}" if r.dead_sensors else "none",
        "stuck sensors": f"{len(stuck)}: {sample(stuck)}" if stuck else "none",
        "unusual days": sample(unusual) if unusual else "none",
        "outages": f"{dark} without any reading, the longest run {counted(r.longest_outage_steps, 'row')}",
        "longest outage": longest,
    }


def print_plans(plans: Sequence[Plan], console: Console | None = None, rewrite: str = "rewrite=True") -> None:
    """What backfill would do with each file, a line per action.  rewrite: how a reader asks for a rewrite."""
    table = Table(show_edge=False)
    table.add_column("file", overflow="fold")
    for head in ("is", "rows", "sensors", "to do"):
        table.add_column(head, justify="right" if head in ("rows", "sensors") else "left", overflow="fold")
    for plan in plans:
        todo = list(plan.actions) or ([] if plan.unplaced else ["nothing is missing"])
        if plan.unplaced:
            fails = "stay" if plan.without_positions else "fails"
            todo.append(
                f"{fails}: {counted(len(plan.unplaced), 'sensor')} without a position ({sample(plan.unplaced)})"
            )
        if plan.variant.rewrite and not plan.rewrite:
            todo.append(f"fails: needs {rewrite}")
        kind = f"{plan.variant.name}: {plan.variant.what}"
        table.add_row(str(plan.path), kind, f"{plan.rows:,}", f"{plan.sensors:,}", "\n".join(todo), end_section=True)
    (console or Console()).print(table, markup=False)
