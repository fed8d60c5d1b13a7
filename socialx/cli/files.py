"""The commands about data files: convert, append, backfill, inspect, download."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from socialx.cli.command import Json, command, note, print_json
from socialx.cli.progress import Show
from socialx.cli.shell import write
from socialx.errors import Argument, GateError, Message, SettingsError
from socialx.options import Layers, with_settings

if TYPE_CHECKING:
    from socialx import tasks

Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace an existing output")]


def _text(flag: str, metavar: str, help: str) -> typer.models.OptionInfo:
    return typer.Option(flag, metavar=metavar, help=help, show_default=False)


TimeFormat = Annotated[str | None, _text("--time-format", "FORMAT", "how times are written, such as '%d/%m/%Y %H:%M'")]
RoundTimes = Annotated[
    bool, typer.Option("--round-times", help="move times of a clock that runs freely to whole steps")
]
Quantity = Annotated[
    str | None, _text("--quantity", "speed|flow|occupancy", "what the readings are; 0 is a reading of the last two")
]
TimeColumn = Annotated[str | None, _text("--time-column", "NAME", "the column of times of a table")]
SensorColumn = Annotated[
    str | None, _text("--sensor-column", "NAME", "the column of sensors of a table with a row per reading")
]
Drop = Annotated[list[str] | None, _text("--drop", "COLUMN", "leave out a column of a table (may be repeated)")]
Transposed = Annotated[bool, typer.Option("--transposed", help="a row for each sensor, a column for each time")]


@command("convert")
def convert(
    kind: Annotated[
        str, typer.Argument(metavar="auto|metr-la|pems-bay|FORMAT", help="the data set, its format, or auto for both")
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="input file, several of the same columns, or a folder"),
    ] = None,
    data_csv: Annotated[Path | None, _text("--data-csv", "FILE", "input file (the same as FILE)")] = None,
    meta_csv: Annotated[Path | None, _text("--meta-csv", "FILE", "locations of the sensors, joined by id")] = None,
    output_h5: Annotated[
        Path | None, _text("--output-h5", "FILE", "output file; with auto, omit it to only identify the input")
    ] = None,
    ids: Annotated[Path | None, _text("--ids", "FILE", "sensor ids in column order, where the data has none")] = None,
    start: Annotated[str | None, _text("--start", "TIME", "time of the first row, where the data has no dates")] = None,
    freq: Annotated[str | None, _text("--freq", "5min", "time between rows, where the data has no times")] = None,
    channel: Annotated[str | None, _text("--channel", "NAME", "which of several quantities, by name or number")] = None,
    time_format: TimeFormat = None,
    quantity: Quantity = None,
    name: Annotated[str | None, _text("--name", "NAME", "name of a data set that is not built in")] = None,
    units: Annotated[str | None, _text("--units", "mph|km/h", "unit of its speeds")] = None,
    missing: Annotated[str | None, _text("--missing", "0|-1,0|none", "numbers that stand for no reading")] = None,
    timezone: Annotated[str | None, _text("--timezone", "ZONE", "its time zone, such as Europe/Paris")] = None,
    round_times: RoundTimes = False,
    transposed: Transposed = False,
    time_column: TimeColumn = None,
    sensor_column: SensorColumn = None,
    drop: Drop = None,
    without_positions: Annotated[
        bool, typer.Option("--without-positions", help="write sensors without a position too")
    ] = False,
    validate: Annotated[bool, typer.Option("--validate", help="check the written file, exit 3 if it fails")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Build the HDF5 file that every other command reads.

    The file holds every row as it is, missing values raw, and the position of every sensor.  With --timezone, the hour
    that daylight saving time repeats is kept too, and all times are then written in UTC.

    auto tells the format by the content.  The formats are published-csv, csv, t-gcn, matrix-csv, hdfstore,
    windows-npz, pems-npz, torch-mts, largest-npz, npy, pyg-t, basicts, libcity, and export: any other table, with
    semicolons, decimal commas, other dates, a row per reading, gzip, Parquet or Excel.

    Examples:
      socialx convert auto FILE                    (says what it is)
      socialx convert auto jan.csv feb.csv --meta-csv at.csv --output-h5 city.h5
      socialx convert metr-la METR-LA.csv --meta-csv places.csv --output-h5 la.h5
    """
    from socialx import tasks

    if files and data_csv:
        raise SettingsError(f"{files[0]} and --data-csv {data_csv}", "the data twice", "drop one of them")
    data = files or ([data_csv] if data_csv else [])
    if not data:
        raise SettingsError("convert", "no data", (Argument("data", "FILE"), " names it"))
    done = tasks.convert(
        kind,
        data,
        output_h5,
        meta=meta_csv,
        ids=ids,
        start=start,
        freq=freq,
        channel=channel,
        time_format=time_format,
        quantity=quantity,
        name=name,
        units=units,
        missing=missing,
        timezone=timezone,
        round_times=round_times,
        transposed=transposed,
        time_column=time_column,
        sensor_column=sensor_column,
        drop=drop or (),
        without_positions=without_positions,
        validate=validate,
        overwrite=overwrite,
        progress=Show("convert"),
    )
    _print_conversion(done)


def _print_conversion(done: tasks.Conversion) -> None:
    from socialx.files.locations import near

    if done.summary is None:
        typer.echo(f"{done.data}: {done.kind.why} ({done.kind.name})")
    else:
        s, place = done.summary, f"{near(done.centre)}, " if done.centre else ""
        typer.echo(
            f"wrote {done.output}: {done.dataset}, {s.rows:,} rows x {s.sensors} sensors x {s.features} features, "
            f"{s.first_timestamp} .. {s.last_timestamp}, {s.gaps} gaps, {place}{s.elapsed_s:.1f} s"
        )
    if done.problems:
        raise GateError.together(Message(done.output, problem) for problem in done.problems)
    if done.problems is not None:
        typer.echo("valid: every sensor has a position, timestamps and epochs agree and increase")
    note(f"next: {', or '.join(write('convert', task) for task in done.next)}")


@command("append")
def append(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="an HDF5 file that convert wrote")],
    data: Annotated[list[Path], typer.Argument(metavar="NEW...", help="tables of later rows, or a folder of them")],
    channel: Annotated[str | None, _text("--channel", "NAME", "which of several quantities, by name")] = None,
    time_format: TimeFormat = None,
    missing: Annotated[str | None, _text("--missing", "-1,0", "more numbers that stand for no reading")] = None,
    timezone: Annotated[
        str | None, _text("--timezone", "ZONE", "time zone of the tables, where FILE is in UTC")
    ] = None,
    round_times: RoundTimes = False,
    transposed: Transposed = False,
    time_column: TimeColumn = None,
    sensor_column: SensorColumn = None,
    drop: Drop = None,
) -> None:
    """Add the rows of new tables to a file.

    The tables have sensors of the file, in any order, and rows that go on where it ends.  Rows that it has already are
    left out if they are the same, and a gap before the new rows is filled with missing readings.  FILE is either the
    old one or the complete new one.

    Example:
      socialx append city.h5 2024-02-01.csv
    """
    from socialx import tasks

    done = tasks.append(
        path,
        data,
        channel=channel,
        time_format=time_format,
        missing=missing,
        timezone=timezone,
        round_times=round_times,
        transposed=transposed,
        time_column=time_column,
        sensor_column=sensor_column,
        drop=drop or (),
        progress=Show("append"),
    )
    if not done.rows:
        typer.echo(f"{path}: no new row, unchanged")
        return
    filled = f" and {done.filled:,} of missing readings" if done.filled else ""
    typer.echo(
        f"{path}: {done.rows:,} rows added{filled}, now {done.total:,} rows x {done.sensors} sensors "
        f"up to {done.last_timestamp}"
    )


@command("backfill")
def backfill(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="HDF5 files, or folders of them")],
    meta: Annotated[
        Path | None, _text("--meta", "FILE", "exact locations, joined by id; they win over the file")
    ] = None,
    rewrite: Annotated[bool, typer.Option("--rewrite", help="write files of the two oldest layouts anew")] = False,
    without_positions: Annotated[
        bool, typer.Option("--without-positions", help="complete files of sensors without a position too")
    ] = False,
    backup: Annotated[bool, typer.Option("--backup", help="keep the old file as FILE.bak")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and change nothing")] = False,
) -> None:
    """Complete older HDF5 files: positions, times, units.

    The readings are not touched by a byte, a file is either the old one or the complete new one, and a second run
    changes nothing.  A file whose sensors stay without a position is left as it was.

    Example:
      socialx backfill old.h5 --meta sensor_locations.csv
    """
    from socialx import tasks
    from socialx.report.file import print_plans

    failure = None
    try:
        plans = tasks.backfill(
            paths,
            meta,
            rewrite=rewrite,
            without_positions=without_positions,
            backup=backup,
            dry_run=dry_run,
            progress=Show("backfill"),
        )
    except tasks.BackfillError as error:
        failure, plans = error, error.plans
    if dry_run:
        print_plans(plans, rewrite=write("backfill", Argument("rewrite", True)))
    else:
        for plan in plans:
            typer.echo(f"{plan.path}: {'; '.join(plan.actions) or 'nothing is missing, unchanged'}")
            if plan.variant.imputed is None:
                note(f"{plan.path}: not known whether its zeros were filled in: {plan.variant.what}")
    if failure:
        raise failure


@command("inspect")
def inspect_file(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="an HDF5 file, or any file that convert reads")],
    as_json: Json = False,
    require: Annotated[
        str | None, _text("--require", "CHECKS", "exit 3 unless these pass, such as positions,gaps; all = every one")
    ] = None,
    plot: Annotated[
        Path | None, _text("--plot", "FILE", "draw the sensors and a week of readings, .png, .svg or .pdf")
    ] = None,
    geojson: Annotated[Path | None, _text("--geojson", "FILE", "write the sensors as points of a map")] = None,
) -> None:
    """Say what a file is and what it holds.

    It prints the kind of file, the time axis, missing readings, dead and stuck sensors, positions and checks.

    Example:
      socialx inspect metr_la.h5 --require positions,order --plot metr_la.png
    """
    from socialx import tasks
    from socialx.files import checks
    from socialx.report.file import print_report

    as_typed = partial(write, "convert")
    found = tasks.inspect(path, require=require or "", plot=plot, geojson=geojson, progress=Show("inspect"))
    if as_json:
        following = found.kind.next and write("inspect", found.kind.next)
        print_json({**found.as_dict(), "next": following})
    elif found.report is None:
        typer.echo(f"{path}: {found.kind.why} ({found.kind.name})")
    else:
        print_report(found.report, f"{found.kind.name}: {found.kind.why}")
        remarks = checks.remarks(found.report, as_typed)
        for line in (*(f"problem: {line}" for line in found.problems), *(f"remark: {line}" for line in remarks)):
            typer.echo(line)
    if found.kind.next:
        note(Message("next", "", found.kind.next), "inspect")
    if require and found.report and (failed := checks.failed(found.report, checks.parse(require), as_typed)):
        raise GateError.together(Message(path, line) for line in failed)


@command("download")
@with_settings("download")
def download(
    layers: Layers,
    dataset: Annotated[str, typer.Argument(metavar="metr-la|pems-bay", help="which data set")],
    folder: Annotated[Path, typer.Option("--folder", metavar="FOLDER", help="where the files go")] = Path("data"),
    overwrite: Overwrite = False,
) -> None:
    """Fetch the published files of a data set.

    An interrupted download goes on where it stopped.  The built-in addresses are unverified: they could not be tried
    where this was written.  --mirror names another place; the md5 of the published CSVs decides whether the files are
    the right ones.

    Example:
      socialx download metr-la --folder data --mirror https://example.org/traffic
    """
    from socialx import tasks

    for path in tasks.download(dataset, folder, overwrite=overwrite, settings=layers, progress=Show("download")):
        typer.echo(str(path))
