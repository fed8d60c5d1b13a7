"""``convert``, ``append``, ``backfill``, ``inspect`` and ``download``: everything that a user does with data files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from socialx.core.errors import (
    Argument,
    Command,
    Message,
    SettingsError,
    SocialxError,
    counted,
    python,
)
from socialx.core.help import OVERWRITE, Help, with_help
from socialx.core.notebook import ResultRepr, files_in, is_frame
from socialx.core.progress import Callback, note, subscribe, work
from socialx.drawing.map import places, points_of, write_features
from socialx.files.sources import append as appending
from socialx.files.sources import backfill as older
from socialx.files.sources import download as downloads
from socialx.files.sources.databases import database, is_url, query_table
from socialx.files.sources.frames import FRAME, Frame, as_table
from socialx.files.sources.positions.locations import centre, read_locations
from socialx.files.sources.readings import read
from socialx.files.sources.recognition import FileKind, command, find, recognise, recognise_kind, refuse_socialx_file
from socialx.files.sources.request import ConvertOptions, free_unit, with_options, zone_name
from socialx.files.sources.tables.reader import CSV
from socialx.files.store import writer
from socialx.files.store.head import read_head
from socialx.files.store.layout import Readings
from socialx.files.store.quantities import SPEED
from socialx.files.store.store import open_store
from socialx.inspection import checks
from socialx.inspection import report as inspection
from socialx.settings.layers import preset_here
from socialx.tasks.outputs import MAP, PICTURE, check_outputs

SCHEMA = "socialx.file/1"
LOOKED_BYTES = 80 << 20  # of readings, up to which a file that was written is looked at
HDF5_SUFFIXES = ("", ".h5", ".hdf5", ".hdf")


@dataclass(frozen=True, repr=False)
class Conversion(ResultRepr):
    """What ``convert`` wrote, or only recognised where it was given no output.

    kind: what the input is.  centre: latitude and longitude of the middle of the network.  notes: what was assumed.
    problems: what fails the checks, None where they were not asked for.  next: the task to run then; of several, one
    of them.
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

    def headline(self) -> str:
        """What was written, or what the data is, and the task to run then."""
        what = f"{self.data} is {self.kind.name}"
        if self.summary is not None:
            size = f"{self.summary.rows:,} rows of {self.summary.sensors} sensors"
            what = f"{self.output}, {self.dataset}, {size}"
        return f"{what}; next: {', or '.join(map(python, self.next))}"


@with_options("convert")
@with_help
def convert(
    kind: Annotated[str, Help("the data set, its format, or auto for both", "auto|metr-la|pems-bay|FORMAT")],
    data: str | Path | Sequence[str | Path] | Frame,
    output: Annotated[
        str | Path | None, Help("output file; with auto, omit it to only identify the input", "FILE")
    ] = None,
    *,
    validate: Annotated[bool, Help("check the written file, exit 3 if it fails")] = False,
    overwrite: Annotated[bool, OVERWRITE] = False,
    progress: Callback | None = None,
    **options: Any,
) -> Conversion:
    """Build the HDF5 file that every other task reads, with the position of every sensor in it.

    data: a file, the folder of a format that has several, or several files of the same columns, such as one of each
    month.  A pandas frame or a pyarrow table is data too, read as a table in a file is: its index is a column, and the
    zone of its times is ``timezone``; it needs an output.

    Every row and every value is kept; the output is complete or not there.  Raises SocialxError for files that cannot
    be read and SettingsError for arguments that are wrong.  ``problems`` says what fails the check.
    """
    if is_frame(data) and output is None:
        found = "a frame is converted, which needs an output"
        raise SettingsError(Argument("data"), found, f"add {Argument('output', 'FILE.h5')}")
    with subscribe(progress), _as_file("convert", data, options) as (read, options, names):
        return _convert(kind, read, output, options, validate=validate, overwrite=overwrite, names=names)


@contextmanager
def _as_file(
    task: str, data: Any, options: dict[str, Any]
) -> Iterator[tuple[Any, dict[str, Any], tuple[str, str] | None]]:
    """What a task reads, and its options: of a frame, or of a database and its query, a temporary file.

    With it come the names of what it stands for: in a message, and in a command.
    """
    sources = data if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    framed, base = is_frame(data) and task == "convert", any(map(is_url, sources))
    if not framed and not base:
        if options.get("query") is not None:
            remedy = "name a database, for example sqlite:///roads.db, or drop it"
            raise SettingsError(Argument("query"), "the data is no database", remedy)
        yield data, options, None
        return
    name, called, typed = "frame", FRAME, "FRAME"
    if base:
        if len(sources) > 1:
            raise SettingsError(Argument("data"), "a database and other files", "name it alone")
        found, query = database(sources[0]), options.get("query")
        data, name, called, typed = query_table(found, query), found.name, found.label(str(query)), found.shown
    with as_table(task, data, name, called, typed) as (path, zone):
        told = {"timezone": zone, **{key: value for key, value in options.items() if value is not None}}
        yield path, told, (called, typed)


def _convert(
    kind: str,
    data: str | Path | Sequence[str | Path],
    output: str | Path | None,
    options: Mapping[str, Any],
    *,
    validate: bool,
    overwrite: bool,
    names: tuple[str, str] | None,
) -> Conversion:
    """``convert`` of files.  names: of what a temporary file stands for, in messages and in commands."""
    request = ConvertOptions.from_call("convert", data, options)
    path = request.data
    called, typed = names or (path, path)
    kind = CSV if request.transposed and find(kind) is None else kind
    named = find(kind)
    if named is None or output is not None:
        refuse_socialx_file(request.head)
    if output is None and named is not None:
        raise SettingsError(f"convert {kind}", "no output", f"add {Argument('output', 'FILE.h5')}")
    recognised = recognise_kind(request.head, request) if named is None else FileKind(kind, "named", None)
    recognised = replace(recognised, next=None) if names else recognised
    if output is None:
        reading = command(request, recognise(request.head)[0], options)
        reading.arguments = (kind, typed, *request.more)
        return Conversion(called, recognised, None, None, None, None, (), None, (reading,))
    target = Path(output)
    inputs = (path, *request.more, request.meta_csv, request.ids)
    check_outputs((target, None), others=inputs, overwrite=overwrite)
    if target.suffix.lower() not in HDF5_SUFFIXES:
        found = f"the output is HDF5, whose name does not end in {target.suffix!r}"
        raise SettingsError(Argument("output", target), found, f"name it {target.with_suffix('.h5')}")
    readings, summary, notes = write_file(kind, request, target, overwrite, str(called))
    untold, problems = [Message(target, "too large to be checked by convert", Command("inspect", target))], None
    if validate or 4 * summary.rows * summary.sensors <= LOOKED_BYTES:
        report = inspection.inspect(target)
        failing = checks.OF_VALIDATE if validate else ()
        told = (*failing, "units")  # which the reader has told
        untold = checks.messages(report, target, [name for name in checks.CHECKS if name not in told])
        problems = tuple(checks.messages(report, target, failing)) if validate else None
    targets = {} if readings.feature == SPEED else {"data.targets": readings.feature}
    training: dict[str, Any] = {"data.path": target, **targets}
    following: tuple[Command, ...] = (Command("train", **training, preset=preset_here()),)
    if not all(map(math.isfinite, readings.sensors.latitude)):  # social pooling needs the position of every sensor
        alone = Command("train", **training, **{"pooling.kind": "none"}, preset=preset_here())
        following = (Command("backfill", target, meta_csv="LOCATIONS.csv"), alone)
    middle = centre(readings.sensors.latitude, readings.sensors.longitude)
    if middle and request.timezone != readings.timezone:  # the file is in UTC, of which no check says more
        far = checks.far_from_zone(middle, request.timezone, summary.first_timestamp, str(target))
        untold += [Message(target, far)] if far else []
    for message in untold:
        note(message)
    name, every = readings.dataset_name, (*notes, *untold)
    return Conversion(called, recognised, target, name, summary, middle, every, problems, following)


def write_file(
    kind: str, request: ConvertOptions, target: Path, overwrite: bool = False, name: str | None = None
) -> tuple[Readings, writer.Summary, list[Message]]:
    """Write the file of a request, and tell what was recognised and assumed, of which the latter is returned.

    name: how the file calls its source, where that is not the name of the data.
    """
    if find(kind) is None:
        recognised = recognise_kind(request.head, request)
        note(Message(request.data, f"{recognised.why} ({recognised.name})"))
    readings = read(kind, request)
    readings = replace(readings, source_data=name or readings.source_data)
    notes = [each if isinstance(each, Message) else Message("", each) for each in readings.notes]
    for message in notes:
        note(message)
    summary = writer.create(target, readings, overwrite=overwrite)
    if summary.zeros and request.missing and readings.feature == SPEED and readings.missing != 0:
        codes = ",".join(f"{code:g}" for code in (readings.missing, 0) if code is not None)
        remedy = f"{Argument('missing', codes)} if they stand for none"
        zeros = counted(summary.zeros, "zero counts as a reading", "zeros count as readings")
        notes.append(Message(target, zeros, remedy))
        note(notes[-1])
    return readings, summary, notes


@with_options("append")
@with_help
def append(
    path: Annotated[str | Path, Help("an HDF5 file that convert wrote", "FILE")],
    data: str | Path | Sequence[str | Path],
    *,
    progress: Callback | None = None,
    **options: Any,
) -> appending.AppendResult:
    """Add the rows of new tables to a file that ``convert`` wrote, such as those of yesterday.

    data: tables that the format ``csv`` reads, of the sensors of the file in any order; a sensor that they do not
    have gets missing readings.  Sensors that are new to the file are added where ``meta_csv`` has their positions.  The
    rows go on where the file ends, a step apart.  Rows that the file has already are left out if their readings are the
    same; a gap before the first new row is filled with missing readings, which a later table may replace.

    The file is the old one or the complete new one.  Raises SocialxError for tables that do not fit.
    """
    with subscribe(progress), _as_file("append", data, options) as (data, options, _):
        return appending.append(Path(path), ConvertOptions.from_call("append", data, options))


@with_help
def backfill(
    paths: Annotated[str | Path | Sequence[str | Path], Help("HDF5 files, or folders of them", "FILE...")],
    meta_csv: Annotated[
        str | Path | None, Help("exact locations, joined by id; they win over the file", "FILE")
    ] = None,
    *,
    rewrite: Annotated[bool, Help("write files of the two oldest layouts anew")] = False,
    without_positions: Annotated[bool, Help("complete files of sensors without a position too")] = False,
    units: Annotated[str | None, Help("unit of the speeds, where a file lacks it", "mph|km/h")] = None,
    timezone: Annotated[
        str | None, Help("time zone of the times, where a file lacks it, such as Europe/Paris", "ZONE")
    ] = None,
    local_zone: Annotated[str | None, Help("by whose clock people live, where the times are in UTC", "ZONE")] = None,
    backup: Annotated[bool, Help("keep the old file as FILE.bak")] = False,
    dry_run: Annotated[bool, Help("print the plan and change nothing")] = False,
    progress: Callback | None = None,
) -> list[older.Completion]:
    """Complete HDF5 files: positions, times in seconds, unit, time zone, and the rules that they do not state.

    A unit or a time zone other than that of a file is refused.  The days and hours of a file in UTC are those of its
    local zone.

    The readings are not touched by a byte, and a second run changes nothing.  A file whose sensors stay without a
    position is left as it was.  All files are tried; then SocialxError names those that failed, and its ``plans`` are
    those of the others.
    """
    with subscribe(progress):
        files = [path for each in files_in(paths) for path in older.expand(each)]
        table = None if meta_csv is None else Path(meta_csv)
        known = read_locations(table) if table else {}
        unit, zone = None if units is None else free_unit(units), None if timezone is None else zone_name(timezone)
        local = None if local_zone is None else zone_name(local_zone, "local_zone")
        plans: list[older.Completion] = []
        failures: list[Message] = []
        with work("backfill", len(files), "files") as bar:
            for path in files:
                try:
                    plan = older.backfill(
                        path,
                        table,
                        locations=known,
                        rewrite=rewrite,
                        without_positions=without_positions,
                        units=unit,
                        timezone=zone,
                        local_zone=local,
                        backup=backup,
                        dry_run=dry_run,
                    )
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
    """Some files could not be completed; ``plans`` are those of all files that were read."""

    plans: list[older.Completion]


@dataclass(frozen=True, repr=False)
class Inspection(ResultRepr):
    """What a file is and holds.

    kind: what it is, and the task that makes a current file of it.  report: None where it is not a current file yet.
    problems fail ``convert(validate=True)``; remarks are worth knowing.
    """

    path: Path
    kind: FileKind
    report: inspection.Report | None
    problems: tuple[str, ...]
    remarks: tuple[str, ...]

    def headline(self) -> str:
        """What the file holds, or what it is where it is not a current file."""
        return f"{self.path}: {self.kind.why}" if self.report is None else self.report.headline()

    def table(self) -> list[dict[str, Any]]:
        """The numbers of the report, and what is wrong with the file."""
        remarks = [{"what": "remark", "value": line} for line in (*self.problems, *self.remarks)]
        return [*([] if self.report is None else self.report.table()), *remarks]

    def failed(self, names: str | Sequence[str]) -> list[str]:
        """The lines of those of the named checks that the file does not meet; ``all`` is every check."""
        known = checks.parse(names)
        return [] if self.report is None else checks.failed(self.report, known)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the same keys for every file; None where there is no report."""
        following = None if self.kind.next is None else python(self.kind.next)
        kind = {"schema": SCHEMA, "kind": self.kind.name, "kind_description": self.kind.why, "next": following}
        if self.report is None:
            return {
                **kind,
                **dict.fromkeys(inspection.NAMES),
                "path": str(self.path),
                "problems": None,
                "remarks": None,
            }
        return {**kind, **self.report.as_dict(), "problems": list(self.problems), "remarks": list(self.remarks)}


@with_help
def inspect(
    path: Annotated[str | Path, Help("an HDF5 file, or any file that convert reads", "FILE")],
    *,
    fail_unless: str = "",
    plot: Annotated[
        str | Path | None, Help("draw the sensors and a week of readings, .png, .svg or .pdf", "FILE")
    ] = None,
    geojson: Annotated[str | Path | None, Help("write the sensors as points of a map", "FILE")] = None,
    progress: Callback | None = None,
) -> Inspection:
    """Say what a file is and holds: kind, time axis, missing readings, dead sensors, positions, checks.

    fail_unless: names of checks, which are refused for a file that has no report.  The points of a map have the shares
    of missing readings and the means.
    """
    with subscribe(progress):
        names = checks.parse(fail_unless) if fail_unless else []
        (path,) = files_in(path)
        kind = recognise_kind(read_head(path))
        if kind.next is not None:
            if names or plot or geojson:
                raise SocialxError(path, f"{kind.name}, {kind.why}: nothing to check or draw yet", kind.next)
            return Inspection(path, kind, None, (), ())
        check_outputs((plot, PICTURE), (geojson, MAP), others=[path])
        opened = open_store(path)
        where = None
        if geojson is not None:
            where = places(opened.sensors, path)
        report = inspection.examine(opened)
        if where is not None and geojson is not None:
            missing, mean = report.sensor_missing_share, report.sensor_mean
            write_features(Path(geojson), points_of(where, report.unit, missing_share=missing, mean=mean))
            note(Message("", f"wrote {geojson}: {len(where)} of {counted(report.sensors, 'sensor')}"))
        if plot is not None:
            from socialx.inspection.tables import plot_report

            plot_report(opened, report, Path(plot))
            note(Message("", f"drew {plot}"))
        problems, remarks = checks.problems(report), checks.remarks(report)
        return Inspection(path, kind, report, tuple(problems), tuple(remarks))


@with_help
def download(
    dataset: Annotated[str, Help("which data set", "metr-la|pems-bay")],
    folder: Annotated[str | Path, Help("where the files go", "FOLDER")] = "data",
    *,
    mirror: Annotated[
        str | None, Help("address of a folder that holds the files, in place of the published one", "ADDRESS")
    ] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    progress: Callback | None = None,
) -> list[Path]:
    """Fetch the published files of a data set; each appears whole and checked, or not.

    The published addresses are unverified.  The md5 of the published CSVs decides whether the files are the right ones.
    """
    with subscribe(progress):
        paths = []
        for published, url in downloads.addresses(dataset, mirror):
            note(Message(published.name, f"{url}{'' if mirror else ' (unverified address)'}"))
            paths.append(downloads.fetch(published, url, Path(folder), overwrite=overwrite))
        return paths
