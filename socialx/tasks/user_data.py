"""Data as a user has it -> an HDF5 file while a block runs: a frame or a table becomes a temporary one."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from socialx.core.errors import (
    MARK,
    Argument,
    Command,
    Message,
    SettingsError,
    SocialxError,
    render,
    rewriting_messages,
)
from socialx.core.progress import note
from socialx.files.sources.frames import FRAME, Frame, as_table, temporary_folder, without_file, write_frame
from socialx.files.sources.recognition import ours
from socialx.files.sources.request import ConvertOptions, options
from socialx.files.store.head import read_head, whole
from socialx.files.store.store import AGAIN, open_store
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import SCORING
from socialx.tasks.trained_model import refuse_other_file, settings_of
from socialx.training.run_folder import TrainedRun

Data = str | Path | Frame | Mapping[str, Any] | None
TABLE = {"meta": "meta_csv", "units": "units", "timezone": "timezone"}  # what convert calls it -> what predict does
MARKS = re.compile(f"{MARK.pattern}(?:(?: | and ){MARK.pattern})*")  # one after the other


@contextmanager
def as_file(
    data: Data, run: TrainedRun, layers: ConfigLayers, said: Mapping[str, Any]
) -> Iterator[tuple[Data, ConfigLayers]]:
    """The data, and the settings as the user named them; a frame or a table is a temporary file while the block runs.

    A frame has the facts of the file that the run was trained on; for a zero-shot run it is a table if something
    is said about it.  said: what the user says about a table, by argument of ``convert``.  Messages of the block name
    the frame or the table, never the temporary file.
    """
    said = {name: value for name, value in said.items() if value is not None}
    framed = not (data is None or isinstance(data, str | Path | Mapping))
    if framed and said and settings_of(run, layers, SCORING).settings.model.zero_shot:
        frame = as_table("predict", cast("Frame", data), "frame", FRAME, "FRAME")
        with frame as (parquet, zone), as_file(parquet, run, layers, {"timezone": zone, **said}) as (read, _):
            yield read, layers
        return
    named = layers if framed else ConfigLayers.from_call(layers, {"data": data})
    path = Path(named.data) if isinstance(named.data, str | Path) and str(named.data) and not framed else None
    there = path is not None and _is_there(path)
    table = path if path and there and ours(read_head(path, AGAIN)) is None else None
    if said and table is None and (there or path is None):
        _refuse_said(said, path, framed)
    if table is None and not framed:
        yield data, named
        return
    with temporary_folder("predict") as place:
        file = place / "readings.h5"
        if table is None:
            own = settings_of(run, layers, SCORING).settings.data
            features = dict.fromkeys((*own.targets, *(own.inputs or ())))
            if own.path is None:
                remedy = f"add {Argument('meta_csv', 'LOCATIONS.csv')}"
                raise SocialxError(FRAME, f"{run.named} has no file that says where its sensors are", remedy)
            if len(features) > 1:
                found = f"{run.named} reads {', '.join(features)}, and a frame holds readings of one feature"
                raise SocialxError("data", found, "write them to a file with all features")
            store = open_store(own.path, own.targets[0])
            if layers.data is None:
                refuse_other_file(run, {store.feature: store})
            write_frame(file, cast("Frame", data), store)
            kept = {name: Path("FILE.h5") for name in (str(file), "OUT.h5")}
            naming = rewriting_messages(without_file(file, FRAME, kept))
        else:
            naming = _converted(table, file, said)
        with naming:
            yield {**(data if isinstance(data, Mapping) else {}), "path": file}, named


def _is_there(path: Path) -> bool:
    """Whether a file, a folder or an archive has this name; whoever opens it tells what is wrong with the name."""
    with suppress(OSError):
        return whole(path).exists()
    return False


def _refuse_said(said: Mapping[str, Any], path: Path | None, framed: bool) -> None:
    """Raise SettingsError for what is said about a table where the data is none."""
    name = next((each for each in ("missing", "resample") if each in said), next(iter(said)))
    what, remedy = f"{path} is a socialx file, not a table", str(Command("backfill", path, **said))
    if name in ("missing", "resample"):
        remedy = f"convert its source again with {Argument(name, said[name])}"
    if framed:
        what, remedy = "a frame has sensors, unit and time zone of the run's own file", "drop it"
    elif path is None:
        what, remedy = "no table is named", f"add {Argument('data', 'FILE.csv')}"
    raise SettingsError(Argument(TABLE.get(name, name), said[name]), what, remedy)


@contextmanager
def _converted(table: Path, file: Path, said: Mapping[str, Any]) -> Iterator[None]:
    """Convert a table to a temporary file, and name the table in the messages of the block.

    said: as ``convert`` takes it.  A note says how to keep the file.
    """
    from socialx.tasks.data_files import write_file  # it loads what downloads files

    archive = whole(table)
    stem = table.name.split(".")[0] or "readings"
    kept = archive.parent / f"{stem}.h5"
    kept = archive.parent / f"{stem}_converted.h5" if kept == archive else kept
    others = {option.name: option.metavar for option in options().values() if option.name not in TABLE}

    def with_options(more: Mapping[str, Any]) -> Command:
        added = {name: others[name] if value is None else value for name, value in more.items()}
        return Command("convert", "auto", table, **{**said, **added}, output=kept)

    def retell(name: object, of_convert: Collection[str], text: str) -> str:
        renamed = without_file(file, str(name), {str(file): kept, "OUT.h5": kept})
        return renamed(_in_predict(text, of_convert, with_options))

    with rewriting_messages(partial(retell, f"the temporary file of {table} in {file.parent.parent}", others)):
        write_file("auto", ConvertOptions.of("convert", table, said), file)
    keeps = f"{with_options({})} keeps the file, and convert takes more options"
    note(Message(table, "converted for this forecast alone", keeps))
    with rewriting_messages(partial(retell, table, others.keys() - {"start"})):  # which is one of predict too
        yield


def _in_predict(text: str, others: Collection[str], with_options: Callable[[Mapping[str, Any]], Command]) -> str:
    """A marked text about a table with the arguments of ``predict``.

    others: arguments that only ``convert`` has; ``with_options`` makes the command that takes their place.
    """

    def of_convert(match: re.Match[str]) -> str:
        parts: list[Argument | Command] = []

        def collect(part: Argument | Command) -> str:
            parts.append(part)
            return ""

        render(match[0], collect)
        more = {each.name: each.value for each in parts if isinstance(each, Argument) and each.name in others}
        return str(with_options(more)) if more and len(more) == len(parts) else match[0]

    def of_predict(part: Argument | Command) -> str:
        return str(Argument(TABLE.get(part.name, part.name), part.value) if isinstance(part, Argument) else part)

    return render(MARKS.sub(of_convert, text), of_predict)
