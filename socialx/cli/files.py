"""The commands about data files: convert, backfill, inspect, download."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from socialx.cli.app import Json, Layers, command, note
from socialx.errors import GateError, SettingsError, SocialxError
from socialx.options import with_settings

if TYPE_CHECKING:
    from socialx.data.store import Readings

Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace an existing output")]


def _text(flag: str, metavar: str, help: str) -> typer.models.OptionInfo:
    return typer.Option(flag, metavar=metavar, help=help, show_default=False)


@command("convert")
def convert(
    kind: Annotated[
        str, typer.Argument(metavar="auto|metr-la|pems-bay|FORMAT", help="the data set, its format, or auto for both")
    ],
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="what --data-csv names, typed shorter")] = None,
    data_csv: Annotated[Path | None, _text("--data-csv", "FILE", "the data: CSV, HDF5, npz, npy or a folder")] = None,
    meta_csv: Annotated[Path | None, _text("--meta-csv", "FILE", "the sensors' locations, joined by id")] = None,
    output_h5: Annotated[Path | None, _text("--output-h5", "FILE", "the file to write; auto can do without")] = None,
    ids: Annotated[Path | None, _text("--ids", "FILE", "sensor ids in column order, where the data has none")] = None,
    start: Annotated[str | None, _text("--start", "TIME", "time of the first row, where the data has no dates")] = None,
    freq: Annotated[str | None, _text("--freq", "5min", "time between rows, where the data has no times")] = None,
    channel: Annotated[str | None, _text("--channel", "NAME", "which of several quantities, by name or number")] = None,
    name: Annotated[str | None, _text("--name", "NAME", "name of a data set that is not built in")] = None,
    units: Annotated[str | None, _text("--units", "mph|km/h", "unit of its speeds")] = None,
    missing: Annotated[str | None, _text("--missing", "0|none", "the number that stands for no reading")] = None,
    timezone: Annotated[str | None, _text("--timezone", "ZONE", "its zone, such as Europe/Paris")] = None,
    without_positions: Annotated[
        bool, typer.Option("--without-positions", help="write it without the positions that are lacking")
    ] = False,
    validate: Annotated[bool, typer.Option("--validate", help="check the written file, exit 3 if it fails")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Build the HDF5 file that every other command reads, with every sensor's position in it.

    Every row is kept as it is, missing values raw.  The format is told by the content, or by its name: published-csv,
    csv, t-gcn, hdfstore, windows-npz, pems-npz, torch-mts, largest-npz, npy, pyg-t, basicts, libcity.

    Examples: socialx convert metr-la --data-csv METR-LA.csv --meta-csv locations.csv --output-h5 metr_la.h5,
    socialx convert auto FILE (says what it is), socialx convert csv mine.csv --meta-csv mine_locations.csv
    --units km/h --output-h5 mine.h5
    """
    from socialx.data import files, kinds, sources, store
    from socialx.data.sources.contents import parse_freq

    data = _one_of(file, data_csv)
    request = sources.Request(data, ids, start, parse_freq(freq) if freq else None, channel)
    choices = sources.Choices(name, units, _missing(missing), timezone, without_positions)
    named = sources.find(kind)
    if named is None or output_h5:
        kinds.refuse_ours(data)
    if named is None:
        format, reason = sources.recognise(data)
        typer.echo(f"{data}: {format.title} ({format.name}): {reason}")
        if output_h5 is None:
            note(f"next: {sources.command(data, format)}")
            return
    if output_h5 is None:
        raise SettingsError(f"convert {kind}: no output: add --output-h5 FILE.h5")
    files.check_output(output_h5, overwrite, tuple(str(path) for path in (data, meta_csv, ids) if path))
    source = sources.read(kind, request, meta_csv, choices)
    for line in source.notes:
        note(line)
    summary = store.create(output_h5, source.readings, overwrite=overwrite)
    typer.echo(
        f"wrote {output_h5}: {source.readings.dataset_name}, {summary.rows:,} rows x {summary.sensors} sensors x "
        f"{summary.features} features, {summary.first_stamp} .. {summary.last_stamp}, {summary.gaps} gaps, "
        f"{summary.seconds:.1f} s"
    )
    if validate:
        _validate(output_h5)
    note(f"next: {_next(output_h5, source.readings)}")


def _next(output: Path, readings: Readings) -> str:
    """What to type after ``convert``: social pooling needs every sensor's position."""
    from socialx.data.store import SPEED

    path = shlex.quote(str(output))
    if not all(map(math.isfinite, readings.sensors.latitude)):
        return f"socialx backfill {path} --meta LOCATIONS.csv, or socialx train --data {path} --pooling none"
    return f"socialx train --data {path}{'' if readings.feature == SPEED else f' --targets {readings.feature}'}"


def _one_of(file: Path | None, data_csv: Path | None) -> Path:
    if file and data_csv:
        raise SettingsError(f"{file} and --data-csv {data_csv}: the data twice: drop one of them")
    if not (data := file or data_csv):
        raise SettingsError("no data: --data-csv FILE names it")
    return data


def _missing(text: str | None) -> float | None:
    """``none`` -> NaN (every number is a reading), a number -> itself."""
    if text is None or text.lower() == "none":
        return None if text is None else float("nan")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise SettingsError(f"--missing {text}: neither a number nor none: for example --missing 0")
    return number


def _validate(path: Path) -> None:
    from socialx.data.checks import problems
    from socialx.data.inspect import inspect

    if found := problems(inspect(path)):
        raise GateError("\n".join(f"{path}: {problem}" for problem in found))
    typer.echo("valid: every sensor has a position, timestamps and epochs agree and increase")


@command("backfill")
def backfill(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="HDF5 files, or folders of them")],
    meta: Annotated[
        Path | None, _text("--meta", "FILE", "exact locations, joined by id; they win over the file")
    ] = None,
    rewrite: Annotated[bool, typer.Option("--rewrite", help="write files of the two oldest layouts anew")] = False,
    backup: Annotated[bool, typer.Option("--backup", help="keep the old file as FILE.bak")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and change nothing")] = False,
) -> None:
    """Give older files what they lack: sensor positions in vd_info, coord_crs, timestamps_epoch.

    The readings are not touched by a byte, a file is either the old one or the complete new one, and a second run
    changes nothing.  A file whose sensors stay without a position is left as it was.

    Example: socialx backfill old.h5 --meta sensor_locations.csv
    """
    from socialx.data import backfill as module
    from socialx.data.sources.locations import read_locations
    from socialx.progress import progress_bar
    from socialx.report.tables import print_plans

    found = [path for given in paths for path in module.expand(given)]
    known = read_locations(meta) if meta else {}
    plans, failures = [], []
    with progress_bar("backfill", len(found), "files") as bar:
        for path in found:
            try:
                plan = module.backfill(path, meta, known=known, rewrite=rewrite, backup=backup, dry_run=dry_run)
                plans.append(plan)
                failures += [line for line in [plan.refusal()] if line]
            except SettingsError:
                raise
            except SocialxError as error:
                failures.append(str(error))
            bar.advance()
    if dry_run:
        print_plans(plans)
    else:
        for plan in plans:
            typer.echo(f"{plan.path}: {'; '.join(plan.actions) or 'nothing is lacking, unchanged'}")
            if plan.variant.imputed is None:
                note(f"{plan.path}: not marked as imputed or not: {plan.variant.what}")
    if failures:
        raise SocialxError("\n".join(failures))


@command("inspect")
def inspect_file(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="an HDF5 file, or any file that convert reads")],
    as_json: Json = False,
    require: Annotated[
        str | None, _text("--require", "CHECKS", "exit 3 unless these pass, such as positions,gaps; all = every one")
    ] = None,
    plot: Annotated[
        Path | None, _text("--plot", "FILE", "draw the sensors and a week of readings, .png or .svg")
    ] = None,
) -> None:
    """Say what a file is and holds: kind, time axis, missing readings, dead sensors, positions, checks.

    Example: socialx inspect metr_la.h5 --require positions,order --plot metr_la.png
    """
    from dataclasses import asdict, fields

    from socialx.data import checks
    from socialx.data.inspect import Report, examine
    from socialx.data.kinds import kind_of
    from socialx.data.store import open_store
    from socialx.report.pictures import plot_report
    from socialx.report.tables import print_report

    names = checks.parse(require) if require else []
    kind = kind_of(path)
    facts = {"kind": kind.name, "kind_is": kind.why, "next": kind.next or None}
    if kind.next:
        if names or plot:
            raise SocialxError(f"{path}: {kind.name}, {kind.why}: nothing to check or draw yet: {kind.next}")
        nothing = dict.fromkeys([*(field.name for field in fields(Report)), "problems", "remarks"])
        facts = {**facts, **nothing, "path": str(path)}
        typer.echo(json.dumps(facts, indent=2) if as_json else f"{path}: {kind.why} ({kind.name})")
        note(f"next: {kind.next}")
        return
    store = open_store(path)
    report = examine(store)
    found, hints = checks.problems(report), checks.remarks(report)
    if plot:
        plot_report(store, report, plot)
        note(f"drew {plot}")
    if as_json:
        typer.echo(json.dumps({**facts, **asdict(report), "problems": found, "remarks": hints}, indent=2))
    else:
        print_report(report, f"{kind.name}: {kind.why}")
        for line in (*(f"problem: {problem}" for problem in found), *(f"remark: {hint}" for hint in hints)):
            typer.echo(line)
    if failed := checks.failed(report, names):
        raise GateError("\n".join(f"{path}: {line}" for line in failed))


@command("download")
@with_settings("download")
def download(
    layers: Layers,
    dataset: Annotated[str, typer.Argument(metavar="metr-la|pems-bay", help="which data set")],
    folder: Annotated[Path, typer.Option("--folder", metavar="FOLDER", help="where the files go")] = Path("data"),
    overwrite: Overwrite = False,
) -> None:
    """Fetch the published files of a data set; an interrupted download goes on where it stopped.

    The built-in addresses are unverified: they could not be tried where this was written.  --mirror names another
    place; the md5 of the published CSVs decides whether the files are the right ones.

    Example: socialx download metr-la --folder data --mirror https://example.org/traffic
    """
    from socialx.data import download as module

    s = layers().settings
    for published, url in module.addresses(dataset, s.download.mirror):
        note(f"{published.name}: {url}{'' if s.download.mirror else ' (unverified address)'}")
        path = module.fetch(published, url, folder, retries=s.download.retries, overwrite=overwrite)
        typer.echo(str(path))
