"""User options for ``convert`` and ``append``: a field per option.

Command flags, the arguments of ``socialx.convert`` and ``socialx.append``, and the refusal of unsupported options
derive from the fields of ``ConvertOptions``.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints
from zoneinfo import available_timezones

from socialx.core.errors import Argument, SettingsError
from socialx.core.help import Function, Help
from socialx.core.notebook import files_in
from socialx.files.store.head import FileHead, read_head
from socialx.files.store.quantities import QUANTITIES, SPEED
from socialx.settings.schema import near_argument

FRAME = "the frame"  # in messages
UNITS_S = {"s": 1, "sec": 1, "min": 60, "h": 3600, "hour": 3600}


@dataclass(frozen=True)
class Option(Help):
    """Metadata for an option besides type and default.

    parse: convert the user's value; raises SettingsError. append: whether ``append`` has the option, or the help text
    there. example: the value in commands within errors. name: argument and flag name, where different from the field.
    """

    parse: Callable[[Any], Any] = str
    append: bool | str = False
    example: str = ""
    name: str = ""
    _: KW_ONLY
    panel: str = "Input format"


_Times, _Sensors = partial(Option, panel="Times"), partial(Option, panel="Sensors")


def parse_freq(given: str | timedelta, argument: str = "freq", example: str = "5min") -> int:
    """Convert ``5min``, ``300s``, ``1h`` or a timedelta to seconds; argument, example: for the error."""
    text = f"{given.total_seconds():.0f}s" if isinstance(given, timedelta) else str(given)
    match = re.fullmatch(r"([0-9]{1,6})\s*([a-z]+)", text.strip().lower())
    step = int(match[1]) * UNITS_S.get(match[2], 0) if match else 0
    if not step or step % 60:
        problem = f"{Argument(argument, text)} is not a time in whole minutes"
        remedy = f"use {text}min, or {example}" if text.isdecimal() else f"use {example}"
        raise SettingsError("option.minutes", "", problem, remedy)
    return step


def _resample(given: str | timedelta) -> int:
    """Convert the option ``resample``, such as 5min, to seconds. Raises SettingsError unless a day is a multiple."""
    step = parse_freq(given, "resample")
    if 24 * UNITS_S["h"] % step:
        raise SettingsError("option.resample", "", f"{Argument('resample', given)} does not divide a day", "use 5min")
    return step


def _time_format(text: str) -> str:
    """Return a strptime format. Raises SettingsError without a full date, or without AM/PM for 12-hour clocks."""
    moment = datetime(2023, 3, 30, 13, 5, tzinfo=UTC)
    with suppress(ValueError):
        read = datetime.strptime(moment.strftime(text), text)
        if read.date() == moment.date() and read.hour in (0, moment.hour):
            return text
    problem = f"{Argument('time_format', text)} lacks the year, month, day, or AM or PM"
    example = f"write for example {Argument('time_format', '%d/%m/%Y %H:%M')}, or join a column of dates"
    raise SettingsError("option.time-format", "", problem, example)


def _decimal(text: str) -> str:
    """Return the decimal sign. Raises SettingsError unless ``text`` is a point or a comma."""
    if text.strip() not in (".", ","):
        raise SettingsError("option.decimal", "", f"{Argument('decimal', text)} must be . or ,", "choose . or ,")
    return text.strip()


def _quantity(text: str) -> str:
    """Return the feature name for a quantity, avg_speed for speed. Raises SettingsError for an unknown quantity."""
    if quantity := QUANTITIES.get(text.strip().lower()):
        return quantity
    problem = f"{Argument('quantity', text)} is unknown"
    raise SettingsError("option.quantity", "", problem, f"choose {', '.join(QUANTITIES)}")


def free_unit(text: str) -> str:
    """Return a unit as typed, for any quantity. Raises SettingsError for blank or unprintable text."""
    if not (text.strip() and text.isprintable()):
        raise SettingsError("option.units", "", f"{Argument('units', ascii(text)[1:-1])} is not a unit", "such as mph")
    return text


def _codes(value: float | str | Sequence[float]) -> tuple[float, ...]:
    """Return the numbers for a missing observation in "-1,0", a number or a list; ``none`` and NaN give ()."""
    codes: Sequence[Any] = value if isinstance(value, Sequence) else [value]
    numbers = []
    for code in value.split(",") if isinstance(value, str) else codes:
        if isinstance(code, str) and code.lower() == "none":
            continue
        try:
            number = float(code)
        except ValueError:
            number = math.inf
        if math.isinf(number) or (isinstance(code, str) and math.isnan(number)):
            example = f"write for example {Argument('missing', 0)}"
            raise SettingsError("option.missing", "", f"{Argument('missing', code)} is not a number or none", example)
        if not math.isnan(number):
            numbers.append(number)
    return tuple(numbers)


def zone_name(name: str, argument: str = "timezone") -> str:
    """Return a zone name, checked where zone data are installed; ``argument``: the option's name in errors."""
    if (zones := available_timezones()) and name not in zones:
        near = difflib.get_close_matches(name, zones, 1) or ["Europe/Paris"]
        problem = f"{Argument(argument, name)} is an unknown zone"
        raise SettingsError("option.zone", "", problem, f"write for example {near[0]}")
    return name


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _text(value: str | int) -> str:
    return str(value)


def _path(value: str | Path) -> Path:
    return Path(value)


@dataclass(frozen=True)
class ConvertOptions:
    """The user's description of a source; only ``data`` is required.

    data: a file, or a folder for formats with several files. more: further files with equal columns. frame: rows in
    memory, a frame or an Arrow table, in place of files; label: their name in messages. known_ids, known_table,
    known_features: from the file that ``append`` extends, its sensors, the description of its tables, and what it
    measures. missing: empty means that every number is an observation; None means 0 for speeds, and nothing
    for counts.
    """

    data: Path
    more: tuple[Path, ...] = ()
    frame: Any = None
    label: str = ""
    known_ids: tuple[str, ...] = ()
    known_table: str = ""
    known_features: tuple[str, ...] = ()
    table: Annotated[
        Path | None,
        Option("what the tables hold, in YAML, as a dry run of convert prints it", "SPEC", _path, append=True),
    ] = None
    meta_csv: Annotated[
        Path | None,
        _Sensors("locations of the sensors, joined by id", "FILE", _path, "locations of sensors that are new to FILE"),
    ] = None
    ids: Annotated[Path | None, Option("sensor ids in column order, where the data has none", "FILE", _path)] = None
    first_time: Annotated[
        str | None, _Times("time of the first row, where the data has no dates", "TIME", example="YYYY-MM-DD HH:MM:SS")
    ] = None
    step_s: Annotated[
        int | None,
        _Times("time between rows, where times do not tell: 5min", "TIME", parse_freq, example="5min", name="freq"),
    ] = None
    channel: Annotated[
        str | None,
        Option("which of several quantities, by name or number, or some: flow,speed", "NAME", _text, True, "0"),
    ] = None
    time_format: Annotated[
        str | None, _Times("how times are written, such as '%d/%m/%Y %H:%M'", "FORMAT", _time_format, append=True)
    ] = None
    decimal: Annotated[
        str | None, Option("decimal separator, in place of the recognised one", ".|,", _decimal, append=True)
    ] = None
    quantity: Annotated[
        str | None,
        Option("quantity; zeros are valid for flow and occupancy", "|".join(QUANTITIES), _quantity, example="speed"),
    ] = None
    name: Annotated[str | None, Option("name of a data set that is not built in", "NAME")] = None
    units: Annotated[str | None, Option("unit of its speeds", "mph|km/h", free_unit)] = None
    missing: Annotated[
        tuple[float, ...] | None,
        Option("numbers for missing observations: -1,0, or none", "X,X", _codes, "more numbers for missing ones"),
    ] = None
    timezone: Annotated[
        str | None,
        _Times("time zone of the table: Europe/Paris", "ZONE", zone_name, "zone of the tables, where FILE is in UTC"),
    ] = None
    round_times: Annotated[bool, _Times("snap jittered timestamps to the time grid", append=True)] = False
    resample: Annotated[int | None, _Times("average finer rows to steps of 5min, 1h", "TIME", _resample)] = None
    time_column: Annotated[
        tuple[str, ...], Option("the column of times, or of dates and of clocks", "NAME", _names, append=True)
    ] = ()
    sensor_column: Annotated[
        tuple[str, ...],
        Option("the column of sensors of a table with a row per reading, or several", "NAME", _names, append=True),
    ] = ()
    drop: Annotated[tuple[str, ...], Option("leave out a column (may be repeated)", "COLUMN", _names, append=True)] = ()
    query: Annotated[
        str | None, Option("of a database (sqlite:///FILE, postgresql://...): its rows", "SELECT", _text, append=True)
    ] = None
    without_positions: Annotated[bool, _Sensors("write sensors without a position too")] = False
    heads: dict[Path, FileHead] = field(default_factory=dict, repr=False, compare=False)

    @property
    def head(self) -> FileHead:
        """The beginning of ``data``, read once, also for options made from the present options."""
        if self.data not in self.heads:
            self.heads[self.data] = read_head(self.data)
        return self.heads[self.data]

    @property
    def where(self) -> str:
        """The name of the source in messages."""
        return self.label or str(self.data)

    @property
    def channels(self) -> list[str]:
        """The names in ``channel``; a single empty name where unset."""
        return (self.channel or "").split(",")

    def codes(self, features: Collection[str]) -> tuple[float, ...]:
        """Return the numbers for a missing observation: as given, else 0 where a feature is speed."""
        return ((0.0,) if SPEED in features else ()) if self.missing is None else self.missing

    @classmethod
    def from_call(
        cls, task: str, data: str | Path | Sequence[str | Path], arguments: Mapping[str, Any]
    ) -> ConvertOptions:
        """Return the options from the arguments of ``convert`` or ``append``; None means unset.

        Raises SettingsError for an invalid value, and for an argument that the task lacks.
        """
        paths = files_in(data)
        if not paths:
            raise SettingsError("call.empty", "", f"{Argument('data')} has no file in it", "name one or several files")
        options_by_name = {option.name: (field, option) for field, option in options(task).items()}
        values: dict[str, Any] = {}
        for name, value in arguments.items():
            if name not in options_by_name:
                near = near_argument(name, (*options_by_name, "output"), ())
                hint = f"did you mean {near}?" if near else f"choose from {', '.join(options_by_name)}"
                raise SettingsError("call.unknown-argument", "", f"{task} has no argument {Argument(name)}", hint)
            field, option = options_by_name[name]
            if value is not None:
                values[field] = bool(value) if getattr(cls, field) is False else option.parse(value)
        return cls(paths[0], tuple(paths[1:]), **values)


def options(task: str = "convert") -> dict[str, Option]:
    """Return the options of ``convert`` or ``append`` by field, with task-specific name and help."""
    by_field = {}
    for called, hint in get_type_hints(ConvertOptions, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            if task == "convert" or option.append:
                text = option.append if task == "append" and isinstance(option.append, str) else option.help
                by_field[called] = replace(option, name=option.name or called, help=text)
    return by_field


def with_options(task: str) -> Callable[[Function], Function]:
    """Return a decorator that adds a task's options to signature and docstring of a function with ``**options``."""

    def decorate(function: Function) -> Function:
        signature, keyword = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        parameters = [part for part in signature.parameters.values() if part.kind is not inspect.Parameter.VAR_KEYWORD]
        lines = []
        for called, option in options(task).items():
            default = getattr(ConvertOptions, called)
            takes = next(iter(getattr(option.parse, "__annotations__", {}).values()), "str")
            hint = "bool" if default is False else f"{takes} | None" if default is None else takes
            parameters.append(inspect.Parameter(option.name, keyword, default=default, annotation=hint))
            lines.append(f"    {option.name}: {option.help}")
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        function.__doc__ = "\n".join([f"{function.__doc__}", *lines])
        return function

    return decorate
