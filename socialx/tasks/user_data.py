"""User data -> an HDF5 file while a block runs: a frame or a table becomes a temporary file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, rewrite_messages, spelling
from socialx.core.progress import note
from socialx.files.sources.frames import Frame, write_frame
from socialx.files.sources.recognition import socialx_kind
from socialx.files.sources.request import FRAME, options
from socialx.files.store.head import container, read_head
from socialx.files.store.store import AGAIN, open_store
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import SCORING
from socialx.tasks.trained_model import load_run_settings, refuse_other_file
from socialx.training.run_folder import TrainedRun

Data = str | Path | Frame | Mapping[str, Any] | None
# Arguments of convert that predict has too.
TABLE = (
    *("table", "time_column", "sensor_column", "channel", "quantity"),
    *("meta_csv", "units", "timezone", "missing", "resample"),
)


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
    named = layers if framed else ConfigLayers.from_call(layers, {"data": data})
    path = Path(named.data) if isinstance(named.data, str | Path) and str(named.data) and not framed else None
    exists = path is not None and _exists(path)
    table: Any = path if path and exists and socialx_kind(read_head(path, AGAIN)) is None else None
    if framed and options and load_run_settings(run, layers, SCORING).settings.model.zero_shot:
        table = data
    if options and table is None and (exists or path is None):
        _refuse_table_options(options, path, framed)
    if table is None and not framed:
        yield data, named
        return
    with _temporary_folder() as folder:
        file = folder / "readings.h5"
        if table is None:
            _write_frame(cast("Frame", data), run, layers, file)
            naming = _naming(file, FRAME, "FILE.h5")
        else:
            naming = _convert_temporarily(table, file, run, options)
        with naming:
            yield {**(data if isinstance(data, Mapping) else {}), "path": file}, named


def _exists(path: Path) -> bool:
    """Return whether the path exists; False for a path that the system refuses, which the opener reports."""
    with suppress(OSError):
        return container(path).exists()
    return False


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Yield a folder that is deleted after the block. Raises SocialxError where creation fails."""
    try:
        folder = TemporaryDirectory(prefix="socialx-predict-")
    except OSError as error:
        problem = f"the folder for a temporary file cannot be written ({error.strerror})"
        raise SocialxError("predict.no-space", "TMPDIR", problem, "set TMPDIR to a folder with space") from None
    with folder as name:
        yield Path(name)


def _write_frame(frame: Frame, run: TrainedRun, layers: ConfigLayers, file: Path) -> None:
    """Write a frame of the run's own sensors. Raises SocialxError for a run without a file or of several features."""
    section = load_run_settings(run, layers, SCORING).settings.data
    features = dict.fromkeys((*section.targets, *(section.inputs or ())))
    if section.path is None:
        remedy = f"add {Argument('meta_csv', 'LOCATIONS.csv')}"
        raise SocialxError("frame.no-places", FRAME, f"{run.named} has no file that says where its sensors are", remedy)
    if len(features) > 1:
        problem = f"{run.named} reads {', '.join(features)}, and a frame holds readings of one feature"
        raise SocialxError("frame.features", "", problem, "write a file with all features")
    store = open_store(section.path, section.targets[0])
    if layers.data is None:
        refuse_other_file(run, {store.feature: store})
    write_frame(file, frame, store)


def _refuse_table_options(options: Mapping[str, Any], path: Path | None, framed: bool) -> None:
    """Raise SettingsError for table options (name -> value): the data is a frame (framed), absent or a socialx file."""
    name = next(iter({**options}.keys() - {"meta_csv", "units", "timezone"}), next(iter(options)))
    problem, remedy = f"{path} is a socialx file", str(Command("backfill", path, **options))
    if name not in ("meta_csv", "units", "timezone"):
        remedy = f"convert its source again with {Argument(name, options[name])}"
    if framed:
        problem, remedy = "a frame has sensors, unit and time zone of the run's own file", "drop the option"
    elif path is None:
        problem, remedy = "the data is not named", f"add {Argument('data', 'FILE.csv')}"
    raise SettingsError("predict.option", "", f"{Argument(name, options[name])} is for tables, and {problem}", remedy)


@contextmanager
def _convert_temporarily(table: Any, file: Path, run: TrainedRun, given: Mapping[str, Any]) -> Iterator[None]:
    """Convert a table or frame to a temporary file, and name the source in messages of the block.

    given: the options for ``convert``.  A note names the command that keeps the file.
    """
    from socialx.tasks.data_files import as_request, write_file  # imports the download code

    framed = not isinstance(table, Path)
    shown, kept = (FRAME, Path("frame.h5")) if framed else (str(table), _kept(table))
    typed = "FRAME" if framed else shown
    others = {option.name: option.metavar for option in options().values() if option.name not in TABLE}

    def with_options(more: Mapping[str, Any]) -> Command:
        added = {name: others[name] if value is None else value for name, value in more.items()}
        return Command("convert", "auto", typed, **{**given, **added}, output=kept)

    def retell(part: Argument | Command, names: Mapping[str, Any]) -> Argument | Command:
        """Return what a ``convert`` message proposes, as predict takes that; names: options that only convert has."""
        options = {part.name: part.value} if isinstance(part, Argument) else part.options
        if not getattr(part, "task", "") and set(options) <= set(names):
            part = with_options(options)
        if isinstance(part, Command) and part.task == "convert":
            said = {name: value for name, value in part.options.items() if name != "output"}
            return Command("predict", str(run.named), data=typed, **said) if set(said) <= {*TABLE} else part
        return part

    with _naming(file, f"the temporary file of {shown} in {file.parent.parent}", kept, partial(retell, names=others)):
        write_file("auto", as_request("convert", table, given), file, details=True)
    copied = f"{shown} was converted to a temporary file for this forecast"
    note(Message("predict.copied", "", copied, with_options({})), True)
    predicted = {name: value for name, value in {**others, "missing": "X,X"}.items() if name != "start"}
    with _naming(file, shown, kept, partial(retell, names=predicted)):  # predict has start too
        yield


def _kept(table: Path) -> Path:
    """Return the name of the file, in the folder of a table, to which the table is converted."""
    archive, stem = container(table), table.name.split(".")[0] or "readings"
    kept = archive.parent / f"{stem}.h5"
    return archive.parent / f"{stem}_converted.h5" if kept == archive else kept


@contextmanager
def _naming(
    file: Path,
    name: str,
    kept: str | Path,
    retell: Callable[[Argument | Command], Argument | Command] = lambda part: part,
) -> Iterator[None]:
    """Write ``name`` for a temporary file in messages of the block, ``kept`` in commands, and parts as retold."""

    def spell(part: Argument | Command) -> str:
        part = retell(part)
        other = name if isinstance(part, Argument) else kept
        given = [part.value] if isinstance(part, Argument) else [*part.arguments, *part.options.values()]
        values = [other if str(value) in (str(file), "OUT.h5") else value for value in given]
        if values == given:
            return before(part)
        if isinstance(part, Argument):
            return before(Argument(part.name, *values))
        first = len(part.arguments)
        return before(Command(part.task, *values[:first], **dict(zip(part.options, values[first:], strict=True))))

    with spelling(spell) as before, rewrite_messages(lambda text: text.replace(str(file), name)):
        yield
