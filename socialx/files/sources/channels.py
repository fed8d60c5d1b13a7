"""Published array formats with rows, sensors and channels: a table of shapes, and a single reader.

Channels may hold the time of day and the day of the week next to observations. T rows, N sensors, C channels, t rows in
a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import nan
from pathlib import Path, PurePosixPath

import numpy as np

from socialx.core.errors import Argument, Message, SettingsError, SocialxError
from socialx.core.progress import work
from socialx.data.calendar import DAY_S, WEEKDAYS
from socialx.files.sources.arrays import DATA, Array, array_names, float32, only_array, open_array, read_small, series
from socialx.files.sources.contents import Contents, Format, RowClock
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.head import FileHead
from socialx.files.store.layout import Block
from socialx.files.store.quantities import QUANTITIES, SPEED
from socialx.files.store.time_axis import as_text

DAY_MINUTES = 1440
SLACK = 0.1  # minutes; a float32 fraction of a day is off by milliseconds
HEAD_ROWS = 288  # a day of 5-minute steps shows whether a channel is a time of day
ALWAYS, PERHAPS, NEVER = "always", "perhaps", "never"  # whether channel 1 is the time of day
UNITS = {"flow": "vehicles per step", "occupancy": "share", SPEED: "mph"}  # as published
NODE_VALUES = ("node_values.npy", "pems_node_values.npy")
# Graphs and splits that accompany a series in equal shape.
NOT_SERIES = {*NODE_VALUES, "adj_mat.npy", "pems_adj_mat.npy", "index.npz"}
SCALE = {"mean", "std"}


@dataclass(frozen=True)
class Shape:
    """A published array format [T,N] or [T,N,C].

    find: locate the array in a file or folder; raises SocialxError where absent. matches: whether the array has this
    shape, given all array names in the file. clock: whether channel 1 is the time of day: always, perhaps or never.
    day: channel 2 is the day of the week. names: the channel names by channel count. first: read the first unnamed
    channel by default. scaled: values are z-scores with stored mean and std. masked: published scores treat 0 as
    missing for every quantity. split: the name of a file with train and test rows, which stays unread.
    """

    name: str
    title: str
    find: Callable[[Path], Array]
    matches: Callable[[Array, set[str]], bool]
    clock: str = NEVER
    day: bool = False
    names: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    first: bool = False
    scaled: bool = False
    masked: bool = False
    split: str = ""

    def format(self) -> Format:
        """Return the shape as a Format for ``convert``: recogniser, reader and options."""
        return Format(
            self.name,
            self.title,
            partial(_recognise, self),
            partial(_read, self),
            has_clock=self.clock != NEVER,
            takes=frozenset({"ids", "first_time", "channel"} | (set() if self.clock == ALWAYS else {"step_s"})),
            needs=lambda path: ChannelLayout(self, path).needs(),
        )


class ChannelLayout:
    """The roles of the channels in an array, which ``shape.find`` locates at the user's ``path``."""

    def __init__(self, shape: Shape, path: Path) -> None:
        """Open the array's header, and decide on its channels.

        time: the channel with the time of day, 1 or None. count: the number of data channels. names: their names, ()
        where unknown. default: the channel to read, speed if named, else 0; None where the user must choose.
        """
        self.shape, self.array = shape, shape.find(path)
        self.time = 1 if shape.clock == ALWAYS else None if shape.clock == NEVER else time_channel(self.array)
        self.count = 1 if shape.scaled or self.time is not None else self.array.channels
        self.names = shape.names.get(self.count, ())
        named = self.names.index("speed") if "speed" in self.names else 0
        self.default = named if self.names or shape.first or self.count == 1 else None

    def needs(self) -> tuple[str, ...]:
        """Return the options that a user must give besides the first time: step_s, channel, both or none."""
        step = ("step_s",) if self.shape.clock == PERHAPS and self.time is None else ()
        return step if self.default is not None else (*step, "channel")

    def quantities(self, request: ConvertOptions) -> tuple[dict[str, int], Mapping[str, str], Message]:
        """Return the channels that the user chose: number by quantity, known units by quantity, and a note."""
        choice = (request.channel or "").strip().lower()
        if "," in choice or "=" in choice:
            several = self._listed_channels(request)
            note = f"channels taken: {', '.join(f'{number} is {name}' for name, number in several.items())}"
            return several, UNITS if self.names else {}, Message("", note)
        if self.count == 1 and not self.names and choice in QUANTITIES:
            asked = f"channel 0 taken, named {QUANTITIES[choice]} as asked"
            return {QUANTITIES[choice]: 0}, {} if choice == "speed" else UNITS, Message(request.data, asked)
        channel = self._number(request, choice)
        taken = f"channel {channel} of {self.count} taken"
        if self.names:
            name, order = self.names[channel], ", ".join(self.names)
            return {QUANTITIES[name]: channel}, UNITS, Message("", f"{taken}, {name} ({order} in this order)")
        either = f"name it with {Argument('channel', 'flow')} or {Argument('channel', 'occupancy')}"
        problem = f"{taken}, named {SPEED}, as the file does not say what it is"
        return {SPEED: channel}, {}, Message(request.data, problem, either if self.count == 1 else "")

    def _listed_channels(self, request: ConvertOptions) -> dict[str, int]:
        """Parse the user's ``channel``, ``flow,speed`` or ``flow=0,speed=2``, into channel numbers by quantity."""
        numbers: dict[str, int] = {}
        for item in request.channels:
            name, _, number = (part.strip() for part in item.lower().partition("="))
            quantity = QUANTITIES.get(name)
            if quantity is None or quantity in numbers or not (self.names or number):
                example = f"write for example {Argument('channel', 'flow,speed' if self.names else 'flow=0,speed=1')}"
                problem = f"{Argument('channel', request.channel)} needs a quantity for each channel"
                raise SettingsError("", problem, example)
            numbers[quantity] = self._number(request, number or name)
        return numbers

    def _number(self, request: ConvertOptions, choice: str) -> int:
        """Return the channel number, from 0, for ``choice``, a name or number; the default where the user gave none."""
        numbers = f"0 to {self.count - 1}" if self.count > 1 else "0"
        numbering = {str(number): number for number in range(self.count)} | {n: at for at, n in enumerate(self.names)}
        if request.channel is None:
            if self.default is None:
                unnamed = f"the array has {self.count} channels without names"
                raise SettingsError(request.data, unnamed, f"add {Argument('channel')} with {numbers}")
            return self.default
        if choice not in numbering:
            there = " or ".join([*filter(None, [", ".join(self.names)]), numbers])
            problem = f"{Argument('channel', request.channel[:40])} is not there"
            raise SettingsError(request.data, problem, f"choose {there}")
        return numbering[choice]


def time_channel(array: Array) -> int | None:
    """Return 1 if channel 1 holds times of day, else None."""
    return 1 if array.channels > 1 and is_time_of_day(array.head(HEAD_ROWS)[..., 1]) else None


def _find_in_folder(path: Path, *names: str) -> Path:
    """Return the first file called as in ``names`` that exists in the folder ``path``, else ``path``."""
    with suppress(OSError):  # a folder that may not be entered
        return next((path / name for name in names if (path / name).is_file()), path)
    return path


def _find_data(name: str = "", *dimensions: int) -> Callable[[Path], Array]:
    """Return a function that opens the array ``data``, with ``dimensions`` axes, in an .npz or a folder's ``name``."""
    return lambda path: series(open_array(_find_in_folder(path, name) if name else path, DATA), *dimensions)


def _node_values(path: Path) -> Array:
    """Return the PyTorch Geometric Temporal series from a folder, a zip or an .npy file."""
    path = _find_in_folder(path, *NODE_VALUES)
    if path.name in NODE_VALUES:
        return series(open_array(path))
    for name in array_names(path):
        if f"{PurePosixPath(name).name}.npy" in NODE_VALUES:
            return series(open_array(path, name))
    problem = f"there is no {' or '.join(NODE_VALUES)} in it"
    raise SocialxError(path, problem, "name the .npy file, its folder or its zip")


SHAPES = (
    Shape(
        "pyg-t",
        "node_values.npy of PyTorch Geometric Temporal, its folder or its zip",
        _node_values,
        lambda array, names: True,
        clock=PERHAPS,
        first=True,
    ),
    Shape(
        "largest-npz",
        "his.npz of LargeST: z-scores with mean and std",
        _find_data("his.npz", 3),
        lambda array, names: names >= SCALE,
        clock=PERHAPS,
        day=True,
        names={1: ("flow",)},
        scaled=True,
        masked=True,
    ),
    Shape(
        "torch-mts",
        "data.npz of Torch-MTS and STAEformer, time of day in channel 1",
        _find_data("data.npz", 3),
        lambda array, names: not names >= SCALE and time_channel(array) is not None,
        clock=ALWAYS,
        day=True,
        split="index.npz",
    ),
    Shape(
        "pems-npz",
        "PEMS03, 04, 07 and 08: data [rows, sensors, channels]",
        _find_data(),
        lambda array, names: not names >= SCALE and time_channel(array) is None,
        names={1: ("flow",), 3: ("flow", "occupancy", "speed")},
        masked=True,
    ),
    Shape(
        "npy",
        "an .npy array [rows, sensors] or [rows, sensors, channels], or an .npz with one",
        lambda path: series(only_array(path)),
        lambda array, names: not names & {DATA, *SCALE} and array.path.name not in NOT_SERIES,
    ),
)


def _recognise(shape: Shape, head: FileHead) -> str | None:
    """Return a description of the array in a file or folder with this shape; None for any other file."""
    with suppress(SocialxError, OSError):
        if head.kind in ("npy", "zip", "folder"):
            array = shape.find(head.path)
            if shape.matches(array, {*array_names(array.path)}):
                name = ascii(PurePosixPath(array.member or array.path.name).name)[1:-1]
                sizes = zip(array.shape, ("rows", "sensors", "channels"), strict=False)
                return f"{name}, {' x '.join(f'{size} {axis}' for size, axis in sizes)}"
    return None


def _read(shape: Shape, request: ConvertOptions) -> Contents:
    """Read the chosen channels, with times from the time channel or counted from the user's first time."""
    layout = ChannelLayout(shape, request.data)
    array, time = layout.array, layout.time
    if time is not None and array.channels < 2:
        both = f"{Argument('first_time')} and {Argument('freq')}"
        raise SocialxError(array.path, "1 channel lacks a time of day", f"name the format pems-npz and say {both}")
    day = 2 if time is not None and shape.day and array.channels > 2 else None
    mean, std = _scale(array.path) if shape.scaled else (0.0, 1.0)
    quantities, units, note = layout.quantities(request)
    if shape.scaled:
        note = Message("", f"channel 0 times std {std:g} plus mean {mean:g} taken")
    clock = ChannelClock(request, array.head(2), time, day)
    feature, *others = quantities
    split = f"its split ({shape.split}) is not taken over: socialx splits by its own protocol"
    return Contents(
        None,
        array.shape[1],
        _blocks(array, list(quantities.values()), clock, mean, std),
        feature,
        units.get(feature),
        others={name: units.get(name) for name in others},
        notes=(*([split] if shape.split else []), *clock.notes, note),
        paths=(array.path, *([array.path.with_name(shape.split)] if shape.split else [])),
        missing=0.0 if shape.masked and layout.names else nan,
    )


def _scale(path: Path) -> tuple[float, float]:
    """Return the mean and std behind z-scores, each a number in the .npz; raise SocialxError for anything else."""
    mean, std = (read_small(path, name).ravel() for name in ("mean", "std"))
    if len(mean) != 1 or len(std) != 1 or not np.isfinite([mean, std]).all() or std <= 0:
        problem = f"mean {mean[:3]} and std {std[:3]} are not a number and one above 0"
        raise SocialxError(path, problem, "download it again")
    return float(mean[0]), float(std[0])


def _blocks(
    array: Array, channels: list[int], clock: ChannelClock, mean: float, std: float
) -> Generator[Block, None, None]:
    """Yield rows [t,N] for one channel, [t,N,F] for several, times ``std`` plus ``mean``; values near 0 become 0."""
    with work(f"reading {array.path.name}", array.shape[0], "rows") as bar:
        for rows in array.pieces():
            cells = rows.reshape(*rows.shape[:2], -1)
            values = cells[..., channels if len(channels) > 1 else channels[0]]
            if (mean, std) != (0.0, 1.0):
                precision = np.finfo(np.result_type(values.dtype, np.float32)).eps
                values = values.astype(np.float64) * std + mean
                values[np.abs(values) < 8 * precision * max(abs(mean), std)] = 0.0
            yield Block(clock.times(cells), float32(values))
            bar.advance(len(rows))


def is_time_of_day(column: np.ndarray) -> bool:
    """Return whether rows [t,N] are day fractions: whole minutes, equal for all sensors, mostly a step apart."""
    minutes, right = _minutes(column)
    steps = np.diff(minutes) % DAY_MINUTES
    return bool(len(steps) and right.all() and (steps > 0).all() and (steps == np.median(steps)).mean() > 0.5)


class ChannelClock(RowClock):
    """Times for consecutive rows [t,N,C], from channels, or a step apart where channels hold no times."""

    def __init__(self, request: ConvertOptions, head: np.ndarray, time: int | None, day: int | None = None) -> None:
        """Start with the first rows ``head`` [t,N,C]; ``time``, ``day``: channels of clock and weekday, or None."""
        self._time, self._day, self._shift = time, None, 0
        step = None
        if time is not None and len(head) > 1:
            step = int(np.diff(self._day_seconds(head[:2], request.data))[0]) % DAY_S or DAY_S
        super().__init__(request, step)
        self.notes: tuple[str, ...] = ()
        weekday = -1 if day is None else int(_weekdays(head[:1, 0, day])[0])
        if weekday < 0:
            unseen = "the times follow from the times of day, which do not show gaps of whole days"
            self.notes = () if time is None else (unseen,)
            return
        # Files made of arrays without dates, PEMS08.npz among them, count from 0 whatever the first day was.
        date = as_text(self._start)[:10]
        start_day = int(_weekdays_at(np.array([date], "datetime64[s]").astype(np.int64))[0])
        if weekday not in (0, start_day):
            start = f"{request.first_time_name}, {date}, is a {WEEKDAYS[start_day]}"
            problem = f"the first row is on a {WEEKDAYS[weekday]}, and {start}"
            raise SocialxError(request.data, problem, f"correct {Argument('first_time')}")
        if start_day != weekday:
            counted = f"its days of week count from 0 in the first row, which {request.first_time_name} makes a"
            self.notes = (f"{counted} {WEEKDAYS[start_day]}",)
        self._day, self._shift = day, start_day - weekday

    def times(self, cells: np.ndarray) -> np.ndarray:
        """Return the times for the next rows [t,N,C] as int64 [t]."""
        if self._time is None:
            return self.seconds(len(cells))
        before, seconds = self.row, self.seconds_at(self._day_seconds(cells, self.where))
        if self._day is not None:
            days = _weekdays(cells[:, 0, self._day])
            wrong = (days < 0) | ((days + self._shift) % 7 != _weekdays_at(seconds))
            if wrong.any():
                row = int(wrong.argmax())
                problem = f"row {before + row + 1} is at {as_text(int(seconds[row]))} but on another day of the week"
                raise SocialxError(self.where, problem, "use a source with dates, since whole days are missing")
        return seconds

    def _day_seconds(self, cells: np.ndarray, where: Path) -> np.ndarray:
        """Convert rows [t,N,C] to seconds since midnight, int64 [t]; ``where``: the source, for errors."""
        column = cells[..., self._time]
        minutes, right = _minutes(column)
        if not right.all():
            row = int(right.argmin())
            problem = f"row {self.row + row + 1} has {column[row, 0]} in channel {self._time}"
            raise SocialxError(where, f"{problem}, no time of day in whole minutes for all sensors", "correct the row")
        return minutes.astype(np.int64) * 60


def _minutes(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Convert day fractions [t,N] to minutes since midnight float64 [t], and a mask bool [t] of valid whole minutes."""
    with np.errstate(over="ignore", invalid="ignore"):
        exact = column[:, 0].astype(np.float64) * DAY_MINUTES
        minutes = np.rint(exact)
        right = (column[:, 0] >= 0) & (column[:, 0] < 1) & (np.abs(exact - minutes) < SLACK)
        return minutes % DAY_MINUTES, right & (column == column[:, :1]).all(axis=1)


def _weekdays(values: np.ndarray) -> np.ndarray:
    """Convert 0 to 6, or sevenths, to weekdays int64 [t] with 0 = Monday; -1 for anything else."""
    with np.errstate(over="ignore", invalid="ignore"):
        days = np.where(values < 1, values * 7.0, values)
        whole = np.rint(days)
        right = (np.abs(days - whole) < 0.01) & (whole >= 0) & (whole <= 6)
    return np.where(right, whole, -1).astype(np.int64)


def _weekdays_at(seconds: np.ndarray) -> np.ndarray:
    """Convert seconds since 1970 int64 [t] to weekdays int64 [t] with 0 = Monday; 1970 began on a Thursday."""
    weekdays: np.ndarray = (seconds // DAY_S + 3) % 7
    return weekdays


FORMATS = tuple(shape.format() for shape in SHAPES)
