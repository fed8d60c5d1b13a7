"""User data -> an HDF5 file while a block runs: a frame or a table becomes a temporary file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from socialx.core.errors import MARK, Argument, Command, Message, SettingsError, SocialxError, render, rewrite_messages
from socialx.core.progress import note
from socialx.files.sources.frames import FRAME, Frame, as_table, hide_file, temporary_folder, write_frame
from socialx.files.sources.recognition import socialx_kind
from socialx.files.sources.request import ConvertOptions, options
from socialx.files.store.head import container, read_head
from socialx.files.store.store import AGAIN, open_store
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import SCORING
from socialx.tasks.trained_model import load_run_settings, refuse_other_file
from socialx.training.run_folder import TrainedRun

Data = str | Path | Frame | Mapping[str, Any] | None
# Arguments of convert that predict has too.
TABLE = ("table", "meta_csv", "time_column", "sensor_column", "channel", "quantity", "units", "timezone", "missing")
TABLE += ("resample",)
MARKS = re.compile(f"{MARK.pattern}(?:(?: | and ){MARK.pattern})*")  # one after the other


@contextmanager
def as_file(
    data: Data, run: TrainedRun, layers: ConfigLayers, options: Mapping[str, Any]
) -> Iterator[tuple[Data, ConfigLayers]]:
    """Yield the data as a file, and the settings as the user named them.

    A frame takes unit, zone and locations from the training file; a zero-shot run reads a frame as a table where
    ``options`` are given.  options: arguments of ``convert`` for a table.  Messages of the block name the frame or the
    table in place of the temporary file.
    """
    options = {name: value for name, value in options.items() if value not in (None, (), [])}
    framed = not (data is None or isinstance(data, str | Path | Mapping))
    if framed and options and load_run_settings(run, layers, SCORING).settings.model.zero_shot:
        frame = as_table("predict", cast("Frame", data), "frame", FRAME, "FRAME")
        with frame as (parquet, zone), as_file(parquet, run, layers, {"timezone": zone, **options}) as (read, _):
            yield read, layers
        return
    named = layers if framed else ConfigLayers.from_call(layers, {"data": data})
    path = Path(named.data) if isinstance(named.data, str | Path) and str(named.data) and not framed else None
    exists = path is not None and _exists(path)
    table = path if path and exists and socialx_kind(read_head(path, AGAIN)) is None else None
    if options and table is None and (exists or path is None):
        _refuse_table_options(options, path, framed)
    if table is None and not framed:
        yield data, named
        return
    with temporary_folder("predict") as folder:
        file = folder / "readings.h5"
        if table is None:
            section = load_run_settings(run, layers, SCORING).settings.data
            features = dict.fromkeys((*section.targets, *(section.inputs or ())))
            if section.path is None:
                remedy = f"add {Argument('meta_csv', 'LOCATIONS.csv')}"
                raise SocialxError(FRAME, f"{run.named} has no file that says where its sensors are", remedy)
            if len(features) > 1:
                problem = f"{run.named} reads {', '.join(features)}, and a frame holds readings of one feature"
                raise SocialxError("", problem, "write a file with all features")
            store = open_store(section.path, section.targets[0])
            if layers.data is None:
                refuse_other_file(run, {store.feature: store})
            write_frame(file, cast("Frame", data), store)
            kept = {name: Path("FILE.h5") for name in (str(file), "OUT.h5")}
            naming = rewrite_messages(hide_file(file, FRAME, kept))
        else:
            naming = _convert_temporarily(table, file, options)
        with naming:
            yield {**(data if isinstance(data, Mapping) else {}), "path": file}, named


def _exists(path: Path) -> bool:
    """Return whether the path exists; False for a path that the system refuses, which the opener reports."""
    with suppress(OSError):
        return container(path).exists()
    return False


def _refuse_table_options(options: Mapping[str, Any], path: Path | None, framed: bool) -> None:
    """Raise SettingsError for table options (name -> value): the data is a frame (framed), absent or a socialx file."""
    name = next((option for option in ("missing", "resample") if option in options), next(iter(options)))
    problem, remedy = f"{path} is a socialx file", str(Command("backfill", path, **options))
    if name in ("missing", "resample"):
        remedy = f"convert its source again with {Argument(name, options[name])}"
    if framed:
        problem, remedy = "a frame has sensors, unit and time zone of the run's own file", "drop the option"
    elif path is None:
        problem, remedy = "the data is not named", f"add {Argument('data', 'FILE.csv')}"
    raise SettingsError("", f"{Argument(name, options[name])} is for tables, and {problem}", remedy)


@contextmanager
def _convert_temporarily(table: Path, file: Path, given: Mapping[str, Any]) -> Iterator[None]:
    """Convert a table to a temporary file, and name the table in messages of the block.

    given: the options for ``convert``.  A note names the command that keeps the file.
    """
    from socialx.tasks.data_files import write_file  # imports the download code

    archive = container(table)
    stem = table.name.split(".")[0] or "readings"
    kept = archive.parent / f"{stem}.h5"
    kept = archive.parent / f"{stem}_converted.h5" if kept == archive else kept
    others = {option.name: option.metavar for option in options().values() if option.name not in TABLE}

    def with_options(more: Mapping[str, Any]) -> Command:
        added = {name: others[name] if value is None else value for name, value in more.items()}
        return Command("convert", "auto", table, **{**given, **added}, output=kept)

    def retell(name: object, others: Collection[str], text: str) -> str:
        renamed = hide_file(file, str(name), {str(file): kept, "OUT.h5": kept})
        return renamed(_write_for_predict(text, others, with_options))

    with rewrite_messages(partial(retell, f"the temporary file of {table} in {file.parent.parent}", others)):
        write_file("auto", ConvertOptions.from_call("convert", table, given), file)
    note(Message("", f"{table} was converted to a temporary file for this forecast", with_options({})), True)
    with rewrite_messages(partial(retell, table, {*others, "missing"} - {"start"})):  # predict has start too
        yield


def _write_for_predict(text: str, others: Collection[str], with_options: Callable[[Mapping[str, Any]], Command]) -> str:
    """Rewrite arguments of ``convert`` in a message about a table as commands.

    others: arguments that only ``convert`` has; ``with_options`` makes the command with the arguments.
    """

    def write_command(match: re.Match[str]) -> str:
        parts: list[Argument | Command] = []

        def collect(part: Argument | Command) -> str:
            parts.append(part)
            return ""

        render(match[0], collect)
        more = {part.name: part.value for part in parts if isinstance(part, Argument) and part.name in others}
        return str(with_options(more)) if more and len(more) == len(parts) else match[0]

    return MARKS.sub(write_command, text)
