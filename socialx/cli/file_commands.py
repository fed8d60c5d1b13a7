"""The commands about data files: convert, append, backfill, inspect, download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from socialx.cli.command import Json, command, note, print_json
from socialx.cli.progress_bars import Show
from socialx.core.errors import Argument, CheckFailedError, Message, SettingsError, counted, sample
from socialx.core.help import FailIf, InputFormat
from socialx.files.sources import NAMES


def _name_formats(function: Callable[..., None]) -> Callable[..., None]:
    """Put the names of all formats into a docstring."""
    function.__doc__ = (function.__doc__ or "").replace("FORMATS", ", ".join(NAMES))
    return function


@command("convert", data="kind", data_csv="data")
@_name_formats
def convert(
    kind: str,
    data: Annotated[
        list[str] | None,  # a path would lose a slash of the URL of a database
        typer.Argument(metavar="FILE...", help="input file, several of the same columns, a folder, or a database"),
    ] = None,
    data_csv: Annotated[str | None, InputFormat("input file (the same as FILE)", "FILE")] = None,
    **arguments: Any,
) -> None:
    """Build the HDF5 file that every other command reads.

    The file keeps every row unchanged, missing values raw, and the position of every sensor.  With --timezone, the hour
    that daylight saving time repeats is kept too, and all times are then written in UTC.

    auto tells the format by the content.  The formats are FORMATS.  csv is any table: with semicolons, decimal commas,
    other dates, a row per reading, gzip, Parquet or Excel.  What its first rows do not prove is asked, with the command
    that reads it; --dry-run prints what they prove, and --table takes that as a file.

    Examples:
      socialx convert auto FILE                    (says what it is)
      socialx convert auto jan.csv feb.csv --meta-csv at.csv --output-h5 city.h5
      socialx convert metr-la METR-LA.csv --meta-csv places.csv --output-h5 la.h5
    """
    import socialx
    from socialx.files.sources.positions.locations import format_position

    if data and data_csv:
        raise SettingsError("convert.data-twice", "", "FILE and --data-csv both name the data", "drop one of them")
    files = data or ([data_csv] if data_csv else [])
    if not files:
        raise SettingsError("convert.no-data", "", "convert needs data", f"add {Argument('data', 'FILE')}")
    result = socialx.convert(kind, files, progress=Show(), **arguments)
    if result.described is not None:
        typer.echo(result.described.as_yaml(), nl=False)
        return
    if result.summary is None:
        typer.echo(f"{result.data}: {result.kind.why} ({result.kind.name})")
    else:
        summary, city = result.summary, f"{format_position(result.centre)}, " if result.centre else ""
        counts = ((summary.rows, "row"), (summary.sensors, "sensor"), (summary.features, "feature"))
        size = " x ".join(counted(*count) for count in counts)
        times = f"{summary.first_timestamp} .. {summary.last_timestamp}, {counted(summary.gaps, 'gap')}"
        typer.echo(f"wrote {result.output}: {result.dataset}, {size}, {times}, {city}{summary.elapsed_s:.1f} s")
    if result.problems:
        raise CheckFailedError.together(result.problems)
    if result.problems is not None:
        typer.echo("valid: every sensor has a position, timestamps and epochs agree and increase")
    if any("preset" in task.options for task in result.next):
        note("no GPU was found: --preset mlp-small suits a CPU, and train prints an estimate of its time", True)
    note(f"next: {', or '.join(map(str, result.next))}")


@command("append", data="path")
def append(
    path: Path,
    data: Annotated[list[str], typer.Argument(metavar="NEW...", help="tables of later rows, or a folder of them")],
    **arguments: Any,
) -> None:
    """Add the rows of new tables to a file.

    The tables have sensors of FILE in any order, and rows that continue FILE.  Repeated rows are left out if equal.  A
    gap of up to a day is filled with missing values, which a later table may replace.  Sensors that are new to
    FILE need a position in --meta-csv, and get missing values before.  FILE is the old or the complete new version.

    Example:
      socialx append city.h5 2024-02-01.csv
      socialx append city.h5 2024-02-01.csv --meta-csv new_sensors.csv
    """
    import socialx

    done = socialx.append(path, data, progress=Show(), **arguments)
    filled = f" and {done.filled:,} of missing readings" if done.filled else ""
    parts = [f"{counted(done.rows, 'row')} added{filled}"] if done.rows else []
    parts += [f"{counted(done.restored, 'row')} of missing readings filled"] if done.restored else []
    if not parts:
        typer.echo(f"{path}: no new row, unchanged")
        return
    parts += [f"{counted(len(done.new), 'new sensor')} ({sample(done.new)})"] if done.new else []
    size = f"{counted(done.total, 'row')} x {counted(done.sensors, 'sensor')}"
    typer.echo(f"{path}: {' and '.join(parts)}, now {size} up to {done.last_timestamp}")


@command("backfill")
def backfill(dry_run: bool, rewrite: bool, **arguments: Any) -> None:
    """Complete HDF5 files: positions, times, unit, time zone.

    The observations stay byte for byte, a file is always the old or the complete new version, and a second run changes
    nothing.  A file is left as before while sensors lack a position.

    Examples:
      socialx backfill old.h5 --meta-csv sensor_locations.csv
      socialx backfill city.h5 --units km/h --timezone Europe/Paris
    """
    import socialx
    from socialx.inspection.tables import print_plans
    from socialx.tasks.data_files import BackfillError

    failure = None
    try:
        plans = socialx.backfill(dry_run=dry_run, rewrite=rewrite, progress=Show(), **arguments)
    except BackfillError as error:
        failure, plans = error, error.plans
    if dry_run:
        print_plans(plans)
    else:
        for plan in plans:
            typer.echo(f"{plan.path}: {'; '.join(plan.actions) or 'nothing is missing, unchanged'}")
            if plan.variant.imputed is None:
                note(f"note: {plan.path}: zeros may have been filled in: {plan.variant.description}")
    if failure:
        raise failure


@command("inspect", as_json="path", fail_unless="as_json")
def inspect(
    path: Path,
    as_json: Json = False,
    fail_unless: Annotated[
        str | None, FailIf("exit 3 unless these pass, such as positions,gaps; all = every one", "CHECKS")
    ] = None,
    **arguments: Any,
) -> None:
    """Say what a file is and what it holds.

    The output has the kind of file, time axis, missing values, dead and stuck sensors, positions and checks.

    Example:
      socialx inspect metr_la.h5 --fail-unless positions,order --plot metr_la.png
    """
    import socialx
    from socialx.inspection import checks
    from socialx.inspection.tables import print_report

    inspection = socialx.inspect(path, fail_unless=fail_unless or "", progress=Show(), **arguments)
    if as_json:
        following = inspection.kind.next and str(inspection.kind.next)
        print_json({**inspection.as_dict(), "next": following})
    elif inspection.report is None:
        typer.echo(f"{path}: {inspection.kind.why} ({inspection.kind.name})")
    else:
        print_report(inspection.report, f"{inspection.kind.name}: {inspection.kind.why}")
        remarks = checks.remarks(inspection.report)
        for line in (*(f"problem: {line}" for line in inspection.problems), *(f"remark: {line}" for line in remarks)):
            typer.echo(line)
    if inspection.kind.next:
        note(f"next: {inspection.kind.next}")
    if failed := inspection.failed_checks(fail_unless) if fail_unless else []:
        raise CheckFailedError.together(Message("inspect.check-failed", path, line) for line in failed)


@command("download")
def download(**arguments: Any) -> None:
    """Fetch the published files of a data set.

    The built-in addresses are untested.  --mirror names another address, and the md5 of the published CSVs identifies
    the correct files.

    Example:
      socialx download metr-la --folder data --mirror https://example.org/traffic
    """
    import socialx

    for path in socialx.download(progress=Show(), **arguments):
        typer.echo(str(path))
