"""``convert``, ``append``, ``backfill``, ``inspect`` and ``download``: the tasks for data files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, counted, shortened
from socialx.core.help import OVERWRITE, FailIf, Help, InputFormat, Output, Sensors, Times, with_help
from socialx.core.notebook import ResultRepr, files_in, is_frame
from socialx.core.outputs import MAP, PICTURE, check_outputs
from socialx.core.progress import Callback, as_details, note, subscribe, work
from socialx.drawing.map import point_features, sensor_places, write_features
from socialx.files.sources import append as appending
from socialx.files.sources import backfill as older
from socialx.files.sources import download as downloads
from socialx.files.sources.frames import Frame, as_rows
from socialx.files.sources.positions.locations import centre, read_locations
from socialx.files.sources.queries import is_url, query_table
from socialx.files.sources.readings import read
from socialx.files.sources.recognition import FORMATS, FileKind, command, find, recognise_kind, refuse_socialx_file
from socialx.files.sources.request import FRAME, ConvertOptions, free_unit, with_options, zone_name
from socialx.files.sources.tables.formats import CSV, describe
from socialx.files.sources.tables.spec import TableSpec
from socialx.files.store import writer
from socialx.files.store.layout import Readings
from socialx.files.store.quantities import SPEED
from socialx.files.store.store import open_store
from socialx.inspection import checks
from socialx.inspection import report as inspection
from socialx.settings.layers import preset_here

SCHEMA = "socialx.file/1"
LOOKED_BYTES = 80 << 20  # size of observations up to which a written file is inspected
QUERY = 60  # letters of a query in a message
HDF5_SUFFIXES = ("", ".h5", ".hdf5", ".hdf")


@dataclass(frozen=True, repr=False)
class Conversion(ResultRepr):
    """The result of ``convert``: the file, or only the recognised input where the output was omitted.

    kind: the recognised kind of input.  centre: latitude and longitude of the network centre.  notes: assumptions about
    the input.  problems: failed checks, or None without a check.  next: the tasks to choose from next.  described: what
    the tables hold, by a dry run.
    """

    data: Path | str
    kind: FileKind
    output: Path | None
    dataset: str | None
    summary: writer.Summary | None
    centre: tuple[float, float] | None
    notes: tuple[Message, ...]
    problems: tuple[Message, ...] | None
    next: tuple[Command, ...]
    described: TableSpec | None = None

    def headline(self) -> str:
        """Return what was written or recognised, and the next task."""
        if self.described is not None:
            return f"{self.data}: {self.described.as_json()}"
        summary = f"{self.data} is {self.kind.name}"
        if self.summary is not None:
            size = f"{self.summary.rows:,} rows of {self.summary.sensors} sensors"
            summary = f"{self.output}, {self.dataset}, {size}"
        return f"{summary}; next: {', or '.join(map(str, self.next))}"


@with_options("convert")
@with_help
def convert(
    kind: Annotated[str, Help("the data set, its format, or auto for both", "auto|metr-la|pems-bay|FORMAT")],
    data: str | Path | Sequence[str | Path] | Frame,
    output: Annotated[
        str | Path | None, Output("output file; with auto, omit it to only identify the input", "FILE")
    ] = None,
    *,
    validate: Annotated[bool, FailIf("check the written file, exit 3 if it fails")] = False,
    overwrite: Annotated[bool, OVERWRITE] = False,
    dry_run: Annotated[bool, Output("describe a table, and write nothing")] = False,
    progress: Callback | None = None,
    **options: Any,
) -> Conversion:
    """Convert a data set into the HDF5 file that every other task reads, with the location of every sensor.

    data: a file, the folder of a format with several files, or several files with the same columns, such as one per
    month.  A pandas frame or a pyarrow table needs an output, and is read like a table in a file: the index is a
    column, and ``timezone`` is the zone of the times.

    The output keeps every row and value, and is complete or absent.  ``Conversion.problems`` lists failed checks.
    Raises SocialxError for unreadable files, and SettingsError for wrong arguments and for a table whose first rows do
    not prove what it holds.
    """
    if is_frame(data) and output is None and not dry_run:
        problem = "converting a frame needs an output"
        raise SettingsError("convert.no-output", "", problem, f"add {Argument('output', 'FILE.h5')}")
    with subscribe(progress):
        request = as_request("convert", data, options)
        if dry_run:
            described, questions = describe(request)
            for question in questions:
                note(question)
            table = FileKind(CSV, "a table", None)
            return Conversion(request.where, table, None, None, None, None, questions, None, (), described)
        return _convert(kind, request, output, options, validate=validate, overwrite=overwrite)


def as_request(task: str, data: Any, options: Mapping[str, Any]) -> ConvertOptions:
    """Return the options of ``convert`` or ``append`` for files, a frame, or the rows of a query of a database."""
    sources = data if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    given, query = dict(options), options.get("query")
    if any(map(is_url, sources)):
        if len(sources) > 1:
            problem = "a database cannot be combined with other files"
            raise SettingsError("convert.query-files", "", problem, "name the database alone")
        shown, frame = query_table(sources[0], query)
        name, label = Path(shown).stem or "database", f"{shown} ({shortened(' '.join(str(query).split()), QUERY)})"
    elif query is not None:
        remedy = "name a database, for example sqlite:///roads.db, or drop the query"
        raise SettingsError("convert.no-database", "", f"{Argument('query')} needs a database", remedy)
    elif is_frame(data):
        (frame, formed), name, label = as_rows(data, bool(given.get("first_time"))), "frame", FRAME
        columns = any(given.get(said) for said in ("sensor_column", "channel", "table"))
        formed = {said: value for said, value in formed.items() if said == "timezone" or not columns}
        given = formed | {said: value for said, value in given.items() if value is not None}
    else:
        return ConvertOptions.from_call(task, data, given)
    return replace(ConvertOptions.from_call(task, name, given), frame=frame, label=label)


def _convert(
    kind: str,
    request: ConvertOptions,
    output: str | Path | None,
    options: Mapping[str, Any],
    *,
    validate: bool,
    overwrite: bool,
) -> Conversion:
    """Convert files or rows; without an output, only identify them."""
    named = find(kind)
    if request.frame is None and (named is None or output is not None):
        refuse_socialx_file(request.head)
    if output is None and named is not None:
        problem = f"converting {kind} needs an output"
        raise SettingsError("convert.no-output", "", problem, f"add {Argument('output', 'FILE.h5')}")
    recognised = recognise_kind(request) if named is None else FileKind(kind, "named", None)
    if output is None:
        following: tuple[Command, ...] = (command(request, FORMATS[recognised.name], options),)
        return Conversion(request.where, recognised, None, None, None, None, (), None, following)
    target = Path(output)
    inputs = () if request.frame is not None else (request.data, *request.more)
    check_outputs((target, None), others=(*inputs, request.meta_csv, request.ids), overwrite=overwrite)
    if target.suffix.lower() not in HDF5_SUFFIXES:
        problem = f"{Argument('output', target)} names an HDF5 file, which cannot end in {target.suffix!r}"
        raise SettingsError("convert.output-suffix", "", problem, f"name it {target.with_suffix('.h5')}")
    readings, summary, notes = write_file(kind, request, target, overwrite)
    large = "the file is too large for convert to check"
    untold, problems = [Message("convert.large", target, large, Command("inspect", target))], None
    if validate or 4 * summary.rows * summary.sensors <= LOOKED_BYTES:
        report = inspection.examine(open_store(target, sensors=readings.sensors))
        failing = checks.VALIDATE_CHECKS if validate else ()
        covered = (*failing, "units")  # reported by the reader
        untold = checks.messages(report, target, [name for name in checks.CHECKS if name not in covered])
        problems = tuple(checks.messages(report, target, failing)) if validate else None
    targets = {} if readings.feature == SPEED else {"data.targets": readings.feature}
    training: dict[str, Any] = {"data.path": target, **targets}
    following = (Command("train", **training, preset=preset_here()),)
    if not all(map(math.isfinite, readings.sensors.latitude)):  # social pooling needs the position of every sensor
        alone = Command("train", **training, **{"pooling.kind": "none"}, preset=preset_here())
        following = (Command("backfill", target, meta_csv="LOCATIONS.csv"), alone)
    middle = centre(readings.sensors.latitude, readings.sensors.longitude)
    if middle and request.timezone != readings.timezone:  # the file is in UTC, which the checks skip
        far = checks.zone_mismatch(middle, request.timezone, summary.first_timestamp, str(target))
        untold += [Message("convert.other-zone", target, far)] if far else []
    for message in untold:
        note(message)
    name, every = readings.dataset_name, (*notes, *untold)
    return Conversion(request.where, recognised, target, name, summary, middle, every, problems, following)


def write_file(
    kind: str, request: ConvertOptions, target: Path, overwrite: bool = False, details: bool = False
) -> tuple[Readings, writer.Summary, list[Message]]:
    """Write the file of a request, and return observations, summary and notes on assumptions.

    details: how the file was read is a detail, as the file is not the result of the task.
    """
    with as_details(details):
        if find(kind) is None:
            recognised = recognise_kind(request)
            note(f"{request.where}: {recognised.why} ({recognised.name})")
        readings = read(kind, request)
        notes = [text if isinstance(text, Message) else Message("convert.note", "", text) for text in readings.notes]
        for text in readings.notes:
            note(text)
        summary = writer.create(target, readings, overwrite=overwrite)
    if summary.zeros and request.missing and readings.feature == SPEED and readings.missing != 0:
        codes = ",".join(f"{code:g}" for code in (readings.missing, 0) if code is not None)
        remedy = f"add {Argument('missing', codes)} if zeros stand for missing values"
        zeros = counted(summary.zeros, "zero counts as a reading", "zeros count as readings")
        notes.append(Message("convert.zeros", target, zeros, remedy))
        note(notes[-1])
    return readings, summary, notes


@with_options("append")
@with_help
def append(
    path: Annotated[str | Path, Help("an HDF5 file that convert wrote", "FILE")],
    data: str | Path | Sequence[str | Path],
    *,
    fill_gaps: Annotated[bool, Help("fill more than a day without rows with missing values")] = False,
    progress: Callback | None = None,
    **options: Any,
) -> appending.AppendResult:
    """Add the rows of newer tables, such as the rows of yesterday, to a file that ``convert`` wrote.

    data: tables for the format ``csv``, with the sensors of the file in any order; an absent sensor gets missing
    values.  Sensors that are new to the file need locations in ``meta_csv``.  New rows continue the file, one step
    apart.  Repeated rows with equal values are skipped.  A gap before the first new row is filled with missing values,
    which a later table may replace; more than a day needs ``fill_gaps``.  A repeated hour turns all times into UTC.

    The file is always the old or the complete new version.  Raises SocialxError for unsuitable tables.
    """
    with subscribe(progress):
        return appending.append(Path(path), as_request("append", data, options), fill_gaps)


@with_help
def backfill(
    paths: Annotated[str | Path | Sequence[str | Path], Help("HDF5 files, or folders of them", "FILE...")],
    meta_csv: Annotated[
        str | Path | None, Sensors("exact locations, joined by id; they win over the file", "FILE")
    ] = None,
    *,
    rewrite: Annotated[bool, Output("rewrite files of the two oldest layouts")] = False,
    without_positions: Annotated[bool, Sensors("complete files of sensors without a position too")] = False,
    units: Annotated[str | None, InputFormat("unit of the speeds, where a file lacks it", "mph|km/h")] = None,
    timezone: Annotated[
        str | None, Times("time zone of the times, where a file lacks it, such as Europe/Paris", "ZONE")
    ] = None,
    local_zone: Annotated[str | None, Times("by whose clock people live, where the times are in UTC", "ZONE")] = None,
    backup: Annotated[bool, Output("keep the old file as FILE.bak")] = False,
    dry_run: Annotated[bool, Output("print the plan and change nothing")] = False,
    progress: Callback | None = None,
) -> list[older.Completion]:
    """Complete older HDF5 files: positions, times in seconds, unit, time zone, and unstated rules.

    A unit or time zone may be added, and a stated one stays.  A file in UTC takes days and hours from the local zone.

    Observations stay byte for byte, and a second call changes nothing.  A file is left as before while sensors lack a
    position.  Every file is tried, and returns a plan.  Raises BackfillError with the failed files, whose ``plans``
    cover the files that were read.
    """
    with subscribe(progress):
        files = [path for path in files_in(paths) for path in older.expand(path)]
        table = None if meta_csv is None else Path(meta_csv)
        unit = None if units is None else free_unit(units)
        zone = None if timezone is None else zone_name(timezone)
        local = None if local_zone is None else zone_name(local_zone, "local_zone")
        places = read_locations(table) if table else {}
        given = older.Given(table, places, rewrite, without_positions, unit, zone, local)
        plans: list[older.Completion] = []
        failures: list[Message] = []
        with work("backfill", len(files), "files") as bar:
            for path in files:
                try:
                    plan = older.backfill(path, given, backup=backup, dry_run=dry_run)
                    plans.append(plan)
                    if refusal := plan.refusal():
                        failures.append(refusal)
                except SettingsError:
                    raise
                except SocialxError as refused:
                    failures += refused.messages
                bar.advance()
        if failures:
            error = BackfillError.together(failures)
            error.plans = plans
            raise error
        return plans


class BackfillError(SocialxError):
    """Some files failed; ``plans`` covers all files that were read."""

    plans: list[older.Completion]


@dataclass(frozen=True, repr=False)
class Inspection(ResultRepr):
    """The kind and content of a file.

    kind: the recognised kind, with the task that upgrades an older file.  report: None for an older file.  problems:
    failures of ``convert(validate=True)``.  remarks: facts worth knowing.
    """

    path: Path
    kind: FileKind
    report: inspection.Report | None
    problems: tuple[str, ...]
    remarks: tuple[str, ...]

    def headline(self) -> str:
        """Return the content of the file, or the kind of an older file."""
        return f"{self.path}: {self.kind.why}" if self.report is None else self.report.headline()

    def table(self) -> list[dict[str, Any]]:
        """Return the numbers, problems and remarks of the report."""
        remarks = [{"what": "remark", "value": line} for line in (*self.problems, *self.remarks)]
        return [*([] if self.report is None else self.report.table()), *remarks]

    def failed_checks(self, names: str | Sequence[str]) -> list[str]:
        """Return a line for each named check that fails; ``all`` names every check."""
        check_names = checks.parse(names)
        return [] if self.report is None else checks.failed_checks(self.report, check_names)

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON, with the same keys for every file; None stands for an absent report."""
        following = None if self.kind.next is None else str(self.kind.next)
        kind = {"schema": SCHEMA, "kind": self.kind.name, "kind_description": self.kind.why, "next": following}
        if self.report is None:
            unread = dict.fromkeys([*inspection.NAMES, "path", "problems", "remarks"])
            return {**kind, **unread, "path": str(self.path)}
        return {**kind, **self.report.as_dict(), "problems": list(self.problems), "remarks": list(self.remarks)}


@with_help
def inspect(
    path: Annotated[str | Path, Help("an HDF5 file, or any file that convert reads", "FILE")],
    *,
    fail_unless: str = "",
    plot: Annotated[
        str | Path | None, Output("draw the sensors and a week of readings, .png, .svg or .pdf", "FILE")
    ] = None,
    geojson: Annotated[str | Path | None, Output("write the sensors as points of a map", "FILE")] = None,
    progress: Callback | None = None,
) -> Inspection:
    """Report the kind and content of a file: time axis, missing values, dead sensors, positions, checks.

    fail_unless: names of checks to validate, which need a file with a report.  geojson: the points carry the fraction
    of missing values and the mean.  Raises SocialxError where an older file cannot be checked or drawn.
    """
    with subscribe(progress):
        names = checks.parse(fail_unless) if fail_unless else []
        (path,) = files_in(path)
        kind = recognise_kind(ConvertOptions(path))
        if kind.next is not None:
            if names or plot or geojson:
                problem = f"{kind.name} ({kind.why}) cannot be checked or drawn yet"
                raise SocialxError("inspect.no-report", path, problem, kind.next)
            return Inspection(path, kind, None, (), ())
        check_outputs((plot, PICTURE), (geojson, MAP), others=[path])
        opened = open_store(path)
        where = None
        if geojson is not None:
            where = sensor_places(opened.sensors, path)
        report = inspection.examine(opened)
        if where is not None and geojson is not None:
            missing, mean = report.sensor_missing_share, report.sensor_mean
            write_features(Path(geojson), point_features(where, report.unit, missing_share=missing, mean=mean))
            note(Message("inspect.map", "", f"wrote {geojson}: {len(where)} of {counted(report.sensors, 'sensor')}"))
        if plot is not None:
            from socialx.inspection.tables import plot_report

            plot_report(opened, report, Path(plot))
            note(Message("inspect.picture", "", f"drew {plot}"))
        problems, remarks = checks.problems(report), checks.remarks(report)
        return Inspection(path, kind, report, tuple(problems), tuple(remarks))


@with_help
def download(
    dataset: Annotated[str, Help("which data set", "metr-la|pems-bay")],
    folder: Annotated[str | Path, Output("where the files go", "FOLDER")] = "data",
    *,
    mirror: Annotated[
        str | None, Help("address of a folder that holds the files, in place of the published one", "ADDRESS")
    ] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    progress: Callback | None = None,
) -> list[Path]:
    """Download the published files of a data set; each file appears complete and verified, or not at all.

    The built-in addresses are untested.  The md5 of the published CSVs identifies the files; another raises
    SocialxError.
    """
    with subscribe(progress):
        paths = []
        for published, url in downloads.addresses(dataset, mirror):
            said = f"{url}{'' if mirror else ' (unverified address)'}"
            note(Message("fetch.started", published.name, said), mirror is not None)
            paths.append(downloads.fetch(published, url, Path(folder), overwrite=overwrite))
        return paths
