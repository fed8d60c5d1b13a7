"""The commands about data files: convert, append, backfill, inspect, download."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from socialx.cli.command import Json, command, note, print_json
from socialx.cli.error_flags import write
from socialx.cli.flags import with_settings
from socialx.cli.progress_bars import Show
from socialx.errors import Argument, GateError, Message, SettingsError, counted, sample
from socialx.files.convert_options import Request, options
from socialx.files.formats.names import NAMES
from socialx.settings_layers import Layers

Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace an existing output")]


def _text(flag: str, metavar: str | None, help: str) -> typer.models.OptionInfo:
    return typer.Option(flag, metavar=metavar, help=help, show_default=False)


def _with_options(task: str, after: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each option of ``Request``; it passes them on.  after: the parameter before them."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        kinds: dict[Any, Any] = {bool: bool, Path | None: Path | None, tuple[str, ...]: list[str] | None}
        hints, flags = get_type_hints(Request), []
        for field, option in options(task).items():
            kind: Any = kinds.get(hints[field], str | None)
            hint = Annotated[kind, _text(write(task, Argument(option.name)), option.metavar or None, option.help)]
            default, anywhere = False if kind is bool else None, inspect.Parameter.POSITIONAL_OR_KEYWORD
            flags.append(inspect.Parameter(option.name, anywhere, default=default, annotation=hint))
        *parameters, _ = inspect.signature(function, eval_str=True).parameters.values()
        place = [each.name for each in parameters].index(after) + 1
        parameters[place:place] = flags
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        function.__annotations__ = {each.name: each.annotation for each in parameters}
        return function

    return decorate


def _naming_formats(function: Callable[..., None]) -> Callable[..., None]:
    """Put the names of all formats into a docstring."""
    function.__doc__ = (function.__doc__ or "").replace("FORMATS", ", ".join(NAMES))
    return function


@command("convert")
@_with_options("convert", after="output_h5")
@_naming_formats
def convert(
    kind: Annotated[
        str, typer.Argument(metavar="auto|metr-la|pems-bay|FORMAT", help="the data set, its format, or auto for both")
    ],
    files: Annotated[
        list[str] | None,  # a path would lose a slash of the URL of a database
        typer.Argument(metavar="FILE...", help="input file, several of the same columns, a folder, or a database"),
    ] = None,
    data_csv: Annotated[str | None, _text("--data-csv", "FILE", "input file (the same as FILE)")] = None,
    output_h5: Annotated[
        Path | None, _text("--output-h5", "FILE", "output file; with auto, omit it to only identify the input")
    ] = None,
    validate: Annotated[bool, typer.Option("--validate", help="check the written file, exit 3 if it fails")] = False,
    overwrite: Overwrite = False,
    **options: Any,
) -> None:
    """Build the HDF5 file that every other command reads.

    The file holds every row as it is, missing values raw, and the position of every sensor.  With --timezone, the hour
    that daylight saving time repeats is kept too, and all times are then written in UTC.

    auto tells the format by the content.  The formats are FORMATS.  csv is any table: with semicolons, decimal commas,
    other dates, a row per reading, gzip, Parquet or Excel.

    Examples:
      socialx convert auto FILE                    (says what it is)
      socialx convert auto jan.csv feb.csv --meta-csv at.csv --output-h5 city.h5
      socialx convert metr-la METR-LA.csv --meta-csv places.csv --output-h5 la.h5
    """
    import socialx
    from socialx.files.locations import near

    if files and data_csv:
        raise SettingsError("FILE and --data-csv", "the data twice", "drop one of them")
    data = files or ([data_csv] if data_csv else [])
    if not data:
        raise SettingsError("convert", "no data", f"{Argument('data', 'FILE')} names it")
    progress = Show("convert")
    done = socialx.convert(kind, data, output_h5, validate=validate, overwrite=overwrite, progress=progress, **options)
    if done.summary is None:
        typer.echo(f"{done.data}: {done.kind.why} ({done.kind.name})")
    else:
        summary, place = done.summary, f"{near(done.centre)}, " if done.centre else ""
        counts = ((summary.rows, "row"), (summary.sensors, "sensor"), (summary.features, "feature"))
        size = " x ".join(counted(*each) for each in counts)
        times = f"{summary.first_timestamp} .. {summary.last_timestamp}, {counted(summary.gaps, 'gap')}"
        typer.echo(f"wrote {done.output}: {done.dataset}, {size}, {times}, {place}{summary.elapsed_s:.1f} s")
    if done.problems:
        raise GateError.together(done.problems)
    if done.problems is not None:
        typer.echo("valid: every sensor has a position, timestamps and epochs agree and increase")
    if any("size" in task.options for task in done.next):
        note("no card is seen: small is the size for a CPU, and train says after its first steps how long it takes")
    note(f"next: {', or '.join(write('convert', task) for task in done.next)}")


@command("append")
@_with_options("append", after="data")
def append(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="an HDF5 file that convert wrote")],
    data: Annotated[list[str], typer.Argument(metavar="NEW...", help="tables of later rows, or a folder of them")],
    **options: Any,
) -> None:
    """Add the rows of new tables to a file.

    The tables have sensors of the file, in any order, and rows that go on where it ends.  Rows that it has already are
    left out if they are the same.  A gap before the new rows is filled with missing readings, and a later table may
    fill it.  Sensors that are new to FILE are added where --meta has their positions; their earlier readings are
    missing.  FILE is either the old one or the complete new one.

    Example:
      socialx append city.h5 2024-02-01.csv
      socialx append city.h5 2024-02-01.csv --meta new_sensors.csv
    """
    import socialx

    done = socialx.append(path, data, progress=Show("append"), **options)
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
def backfill(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="HDF5 files, or folders of them")],
    meta: Annotated[
        Path | None, _text("--meta", "FILE", "exact locations, joined by id; they win over the file")
    ] = None,
    rewrite: Annotated[bool, typer.Option("--rewrite", help="write files of the two oldest layouts anew")] = False,
    without_positions: Annotated[
        bool, typer.Option("--without-positions", help="complete files of sensors without a position too")
    ] = False,
    units: Annotated[str | None, _text("--units", "mph|km/h", "unit of the speeds, where a file lacks it")] = None,
    timezone: Annotated[
        str | None, _text("--timezone", "ZONE", "time zone of the times, where a file lacks it, such as Europe/Paris")
    ] = None,
    local_zone: Annotated[
        str | None, _text("--local-zone", "ZONE", "by whose clock people live, where the times are in UTC")
    ] = None,
    backup: Annotated[bool, typer.Option("--backup", help="keep the old file as FILE.bak")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and change nothing")] = False,
) -> None:
    """Complete HDF5 files: positions, times, unit, time zone.

    The readings are not touched by a byte, a file is either the old one or the complete new one, and a second run
    changes nothing.  A file whose sensors stay without a position is left as it was.

    Examples:
      socialx backfill old.h5 --meta sensor_locations.csv
      socialx backfill city.h5 --units km/h --timezone Europe/Paris
    """
    import socialx
    from socialx.tasks.files import BackfillError
    from socialx.views.file_tables import print_plans

    failure = None
    try:
        plans = socialx.backfill(
            paths,
            meta,
            rewrite=rewrite,
            without_positions=without_positions,
            units=units,
            timezone=timezone,
            local_zone=local_zone,
            backup=backup,
            dry_run=dry_run,
            progress=Show("backfill"),
        )
    except BackfillError as error:
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
    import socialx
    from socialx.files import checks
    from socialx.views.file_tables import print_report

    as_typed = partial(write, "convert")
    inspection = socialx.inspect(path, require=require or "", plot=plot, geojson=geojson, progress=Show("inspect"))
    if as_json:
        following = inspection.kind.next and write("inspect", inspection.kind.next)
        print_json({**inspection.as_dict(), "next": following})
    elif inspection.report is None:
        typer.echo(f"{path}: {inspection.kind.why} ({inspection.kind.name})")
    else:
        print_report(inspection.report, f"{inspection.kind.name}: {inspection.kind.why}")
        remarks = checks.remarks(inspection.report, as_typed)
        for line in (*(f"problem: {line}" for line in inspection.problems), *(f"remark: {line}" for line in remarks)):
            typer.echo(line)
    if inspection.kind.next:
        note(Message("next", "", inspection.kind.next), "inspect")
    if require and inspection.report and (failed := checks.failed(inspection.report, checks.parse(require), as_typed)):
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
    import socialx

    for path in socialx.download(dataset, folder, overwrite=overwrite, settings=layers, progress=Show("download")):
        typer.echo(str(path))
