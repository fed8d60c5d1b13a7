"""``convert``, ``append``, ``backfill``, ``inspect`` and ``download``: everything that a user does with data files."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from socialx.errors import Argument, Command, Message, SettingsError, SocialxError
from socialx.files import append as appending
from socialx.files import checks, store
from socialx.files import download as downloads
from socialx.files import inspect as inspection
from socialx.files import readings as reader
from socialx.files.formats.contents import Request, parse_freq
from socialx.files.formats.export import EXPORT
from socialx.files.locations import centre, read_locations
from socialx.files.older import backfill as older
from socialx.files.readings import Choices
from socialx.files.recognition import Kind, command, find, kind_of, recognise, refuse_ours
from socialx.options import Layers
from socialx.progress import Callback, listening, note, work
from socialx.report.geojson import places, write_report
from socialx.settings import Settings
from socialx.tasks.outputs import MAP, PICTURE, check_outputs

SCHEMA = "socialx.file/1"


@dataclass(frozen=True)
class Conversion:
    """What ``convert`` wrote, or only recognised where it was given no output.

    kind: what the input is.  centre: latitude and longitude of the middle of the network.  notes: what was assumed.
    problems: what fails the checks, None where they were not asked for.  next: the task to run then; of several, one
    of them.
    """

    data: Path
    kind: Kind
    output: Path | None
    dataset: str | None
    summary: store.Summary | None
    centre: tuple[float, float] | None
    notes: tuple[Message, ...]
    problems: tuple[str, ...] | None
    next: tuple[Command, ...]


def convert(
    kind: str,
    data: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    *,
    meta: str | Path | None = None,
    ids: str | Path | None = None,
    start: str | None = None,
    freq: str | None = None,
    channel: str | int | None = None,
    time_format: str | None = None,
    quantity: str | None = None,
    name: str | None = None,
    units: str | None = None,
    missing: float | str | Sequence[float] | None = None,
    timezone: str | None = None,
    round_times: bool = False,
    transposed: bool = False,
    time_column: str | None = None,
    sensor_column: str | None = None,
    drop: str | Sequence[str] = (),
    without_positions: bool = False,
    validate: bool = False,
    overwrite: bool = False,
    progress: Callback | None = None,
) -> Conversion:
    """Build the HDF5 file that every other task reads, with the position of every sensor in it.

    kind: ``metr-la``, ``pems-bay``, a format, or ``auto``, which tells the format by its content.  data: a file, the
    folder of a format that has several, or several files of the same columns, such as one of each month.  output: None
    with ``auto`` only says what the data is.  meta: locations of the sensors, joined by id.  ids, start, freq, channel:
    what the data does not say: sensor ids in column order, time of the first row, time between rows such as ``5min``,
    which of several quantities.  time_format: how times are written, as strptime takes it, such as ``%d/%m/%Y %H:%M``.
    quantity: ``speed``, ``flow`` or ``occupancy``.  name, units, missing, timezone: facts of a data set that is not
    built in; missing: one number or several that stand for no reading; None is 0, of counts none; ``"none"`` or NaN:
    every number is a reading.
    round_times: move times between two steps to the nearest whole step, of ``freq`` if it is said.
    transposed: the table has a row for each
    sensor and a column for each time, and is held in memory.  time_column, sensor_column: names of these columns of a
    table, where its content does not tell.  drop: columns of a table to leave out.  without_positions: write sensors
    without a position.  validate: check the written file.

    Every row and every value is kept; the output is complete or not there.  Raises SocialxError for files that cannot
    be read and SettingsError for arguments that are wrong.
    """
    with listening(progress):
        path, *more = _paths(data)
        request = Request(
            path,
            _path(ids),
            start,
            parse_freq(freq) if freq else None,
            None if channel is None else str(channel),
            time_format=_time_format(time_format),
            quantity=_quantity(quantity),
            more=tuple(more),
            transposed=transposed,
            round_times=round_times,
            time_column=time_column,
            sensor_column=sensor_column,
            drop=_names(drop),
        )
        step_s = request.step_s if round_times else None
        choices = Choices(name, units, _missing_values(missing), timezone, without_positions, round_times, step_s)
        kind = EXPORT if transposed and find(kind) is None else kind
        named = find(kind)
        if named is None or output is not None:
            refuse_ours(path)
        if output is None and named is not None:
            raise SettingsError(f"convert {kind}", "no output", ("add ", Argument("output", "FILE.h5")))
        found = kind_of(path) if named is None else Kind(kind, "named", None)
        if output is None:
            return Conversion(path, found, None, None, None, None, (), None, (command(path, recognise(path)[0]),))
        target = Path(output)
        check_outputs((target, None), others=(path, *more, meta, ids), overwrite=overwrite)
        if named is None:
            note(Message(path, f"{found.why} ({found.name})"))
        return _written(found, kind, request, _path(meta), choices, target, validate=validate, overwrite=overwrite)


def _written(
    found: Kind,
    kind: str,
    request: Request,
    meta: Path | None,
    choices: Choices,
    target: Path,
    *,
    validate: bool,
    overwrite: bool,
) -> Conversion:
    """Read, write and check what ``convert`` was asked for."""
    source = reader.read(kind, request, meta, choices)
    notes = tuple(each if isinstance(each, Message) else Message("", each) for each in source.notes)
    for message in notes:
        note(message)
    zeros: list[int] = []
    counted = replace(source.readings, blocks=_counted(source.readings.blocks, zeros))
    summary = store.create(target, counted, overwrite=overwrite)
    if sum(zeros) and choices.missing and source.readings.feature == store.SPEED and source.readings.missing != 0:
        codes = ",".join(f"{code:g}" for code in (source.readings.missing, 0) if code is not None)
        remedy = (Argument("missing", codes), " if they stand for none")
        notes = (*notes, Message(target, f"{sum(zeros):,} zeros count as readings", remedy))
        note(notes[-1])
    problems = None
    if validate:
        report = inspection.inspect(target)
        problems = tuple(checks.problems(report))
        for message in checks.doubts(report, target):
            note(message)
    following = _after_conversion(target, source.readings)
    sensors = source.readings.sensors
    middle = centre(sensors.latitude, sensors.longitude)
    name = source.readings.dataset_name
    return Conversion(request.data, found, target, name, summary, middle, notes, problems, following)


def _counted(blocks: Generator[store.Block, None, None], zeros: list[int]) -> Generator[store.Block, None, None]:
    """The blocks; the zeros of each are added to a list."""
    with closing(blocks):
        for block in blocks:
            zeros.append(int((block.speeds == 0).sum()))
            yield block


def _paths(data: str | Path | Sequence[str | Path]) -> list[Path]:
    found = [Path(data)] if isinstance(data, str | Path) else [Path(each) for each in data]
    if not found:
        raise SettingsError(Argument("data"), "no file in it", "name one or several files")
    return found


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _names(said: str | Sequence[str]) -> tuple[str, ...]:
    return (said,) if isinstance(said, str) else tuple(said)


def _missing_values(said: float | str | Sequence[float] | None) -> tuple[float, ...] | None:
    """Numbers that stand for no reading, in a text with commas between them; ``none``: there is no such number."""
    if said is None:
        return None
    each = said.split(",") if isinstance(said, str) else said if isinstance(said, Sequence) else [said]
    found = [_missing_value(one) for one in each]
    return tuple(number for number in found if not math.isnan(number))


def _time_format(said: str | None) -> str | None:
    """A format of strptime that says date and time."""
    if said is None:
        return None
    try:
        datetime.strptime(datetime(2024, 1, 31, 13, 5, tzinfo=UTC).strftime(said), said)
    except ValueError:
        said_right = False
    else:
        said_right = "%" in said
    if not said_right:
        example = ("for example ", Argument("time_format", "%d/%m/%Y %H:%M"))
        raise SettingsError(Argument("time_format", said), "not a format of times", example)
    return said


def _quantity(said: str | None) -> str | None:
    """What readings are, as a feature is called."""
    if said is None:
        return None
    known = {"speed": store.SPEED, "flow": "flow", "occupancy": "occupancy"}
    if said.strip().lower() not in known:
        raise SettingsError(Argument("quantity", said), "no quantity", f"choose {', '.join(known)}")
    return known[said.strip().lower()]


def _missing_value(said: float | str) -> float:
    """``none`` -> NaN (every number is a reading), a number -> itself."""
    if isinstance(said, str) and said.lower() == "none":
        return math.nan
    try:
        number = float(said)
    except ValueError:
        number = math.inf
    if math.isinf(number) or (isinstance(said, str) and math.isnan(number)):
        example = ("for example ", Argument("missing", 0))
        raise SettingsError(Argument("missing", said), "neither a number nor none", example)
    return number


def _after_conversion(output: Path, readings: store.Readings) -> tuple[Command, ...]:
    """Social pooling needs the position of every sensor."""
    targets = {} if readings.feature == store.SPEED else {"data.targets": readings.feature}
    if all(map(math.isfinite, readings.sensors.latitude)):
        return (Command("train", **{"data.path": output}, **targets),)
    alone = Command("train", **{"data.path": output}, **targets, **{"pooling.kind": "none"})
    return Command("backfill", output, meta="LOCATIONS.csv"), alone


def append(
    path: str | Path,
    data: str | Path | Sequence[str | Path],
    *,
    channel: str | int | None = None,
    time_format: str | None = None,
    missing: float | str | Sequence[float] | None = None,
    timezone: str | None = None,
    round_times: bool = False,
    transposed: bool = False,
    time_column: str | None = None,
    sensor_column: str | None = None,
    drop: str | Sequence[str] = (),
    progress: Callback | None = None,
) -> appending.Appended:
    """Add the rows of new tables to a file that ``convert`` wrote, such as those of yesterday.

    data: tables that the format ``export`` reads, of the sensors of the file in any order; a sensor that they do not
    have gets missing readings.  Their rows go on where the file ends, a step apart.  Rows that the file has already are
    left out if their readings are the same; a gap before the first new row is filled with missing readings.
    channel, time_format, missing, round_times, transposed, time_column, sensor_column, drop: as in ``convert``.
    timezone: of the tables, where the file is in UTC.

    The file is the old one or the complete new one.  Raises SocialxError for tables that do not fit.
    """
    with listening(progress):
        first, *more = _paths(data)
        wanted = None if channel is None else str(channel)
        request = Request(
            first,
            channel=wanted,
            time_format=_time_format(time_format),
            more=tuple(more),
            transposed=transposed,
            round_times=round_times,
            time_column=time_column,
            sensor_column=sensor_column,
            drop=_names(drop),
        )
        choices = Choices(missing=_missing_values(missing), timezone=timezone, round_times=round_times)
        return appending.append(Path(path), request, choices)


def backfill(
    paths: str | Path | Sequence[str | Path],
    meta: str | Path | None = None,
    *,
    rewrite: bool = False,
    without_positions: bool = False,
    backup: bool = False,
    dry_run: bool = False,
    progress: Callback | None = None,
) -> list[older.Plan]:
    """Complete older HDF5 files: positions, times in seconds, and the rules that they do not state.

    paths: files, or folders of them.  meta: exact locations, joined by id; they win over the file.  rewrite: also write
    files of the two oldest layouts anew.  without_positions: complete files of sensors without a position too.  backup:
    keep the old file as FILE.bak.  dry_run: plan only.

    The readings are not touched by a byte, and a second run changes nothing.  A file whose sensors stay without a
    position is left as it was.  All files are tried; then SocialxError names those that failed, and its ``plans`` are
    those of the others.
    """
    with listening(progress):
        several = [paths] if isinstance(paths, str | Path) else list(paths)
        found = [path for given in several for path in older.expand(Path(given))]
        known = read_locations(Path(meta)) if meta else {}
        plans: list[older.Plan] = []
        failures: list[Message] = []
        with work("backfill", len(found), "files") as bar:
            for path in found:
                try:
                    plan = older.backfill(
                        path,
                        _path(meta),
                        known=known,
                        rewrite=rewrite,
                        without_positions=without_positions,
                        backup=backup,
                        dry_run=dry_run,
                    )
                    plans.append(plan)
                    if refusal := plan.refusal():
                        failures.append(refusal)
                except SettingsError:
                    raise
                except SocialxError as error:
                    failures += error.messages
                bar.advance()
        if failures:
            raise BackfillError(plans, failures)
        return plans


class BackfillError(SocialxError):
    """Some files could not be completed; ``plans`` are those of all files that were read."""

    def __init__(self, plans: list[older.Plan], failures: list[Message]) -> None:
        first = failures[0]
        super().__init__(first.where, first.what, first.remedy, sample=first.sample)
        self.messages, self.plans = tuple(failures), plans


@dataclass(frozen=True)
class Inspection:
    """What a file is and holds.

    kind: what it is, and the task that makes a current file of it.  report: None where it is not a current file yet.
    problems fail ``convert(validate=True)``; remarks are worth knowing.
    """

    path: Path
    kind: Kind
    report: inspection.Report | None
    problems: tuple[str, ...]
    remarks: tuple[str, ...]

    def failed(self, names: str | Sequence[str]) -> list[str]:
        """The lines of those of the named checks that the file does not meet; ``all`` is every check."""
        asked = checks.parse(names) if isinstance(names, str) else list(names)
        return [] if self.report is None else checks.failed(self.report, asked)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the same keys for every file; None where there is no report."""
        found = dict.fromkeys(field.name for field in fields(inspection.Report))
        following = None if self.kind.next is None else str(self.kind.next)
        kind = {"kind": self.kind.name, "kind_is": self.kind.why, "next": following}
        lists: dict[str, Any] = {"problems": list(self.problems), "remarks": list(self.remarks)}
        if self.report is None:
            lists = dict.fromkeys(lists)
        report = asdict(self.report) if self.report else {**found, "path": str(self.path)}
        return {"schema": SCHEMA, **kind, **report, **lists}


def inspect(
    path: str | Path,
    *,
    require: str = "",
    plot: str | Path | None = None,
    geojson: str | Path | None = None,
    progress: Callback | None = None,
) -> Inspection:
    """Say what a file is and holds: kind, time axis, missing readings, dead sensors, positions, checks.

    path: an HDF5 file, or anything that ``convert`` reads.  require: names of checks, which are refused for a file that
    has no report.  plot: draw the sensors and a week of readings into a .png, .svg or .pdf.  geojson: write the sensors
    as points of a map, with their shares of missing readings and their means.
    """
    with listening(progress):
        names = checks.parse(require) if require else []
        kind = kind_of(Path(path))
        if kind.next is not None:
            if names or plot or geojson:
                found = f"{kind.name}, {kind.why}: nothing to check or draw yet"
                raise SocialxError(path, found, kind.next)
            return Inspection(Path(path), kind, None, (), ())
        check_outputs((plot, PICTURE), (geojson, MAP), others=[path])
        opened = store.open_store(Path(path))
        where = None
        if geojson is not None:
            where = places(opened.sensors, Path(path))
        report = inspection.examine(opened)
        if where is not None and geojson is not None:
            write_report(report, where, Path(geojson))
            note(Message("", f"wrote {geojson}: {len(where)} of {report.sensors} sensors"))
        if plot is not None:
            from socialx.report.file_picture import plot_report

            plot_report(opened, report, Path(plot))
            note(Message("", f"drew {plot}"))
        problems, remarks = checks.problems(report), checks.remarks(report)
        return Inspection(Path(path), kind, report, tuple(problems), tuple(remarks))


def download(
    dataset: str,
    folder: str | Path = "data",
    *,
    overwrite: bool = False,
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> list[Path]:
    """Fetch the published files of a data set; an interrupted download goes on where it stopped.

    dataset: ``metr-la`` or ``pems-bay``.  ``download={"mirror": ADDRESS}`` names another place than the published ones,
    which are unverified.  The md5 of the published CSVs decides whether the files are the right ones.
    """
    with listening(progress):
        s = Layers.of(settings, sections).load().settings
        found = []
        for published, url in downloads.addresses(dataset, s.download.mirror):
            note(Message(published.name, f"{url}{'' if s.download.mirror else ' (unverified address)'}"))
            found.append(downloads.fetch(published, url, Path(folder), retries=s.download.retries, overwrite=overwrite))
        return found
