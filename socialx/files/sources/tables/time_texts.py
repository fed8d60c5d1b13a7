"""Parse times in texts, and find the time columns in a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from socialx.core.errors import Argument, sample
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables.clock_changes import nearest_step
from socialx.files.sources.tables.columns import HOUR, OF_ROW, SINCE_1970, names_rows
from socialx.files.sources.tables.text_cells import Texts

if TYPE_CHECKING:
    import pandas as pd

DATE = r"(?:[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{4}|[0-9]{2}))"
CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?: ?[AaPp][Mm])?"
ZONE = r"(?: ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?"
# A moment without signs, such as 202401311305.
COMPACT = r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?:[01][0-9]|2[0-3])[0-5][0-9](?:[0-5][0-9])?"
EPOCH = re.compile(rf"(?!{COMPACT}$)(?:[0-9]{{9,10}}|[0-9]{{12,13}}|[0-9]{{15,16}}|[0-9]{{18,19}})(?:\.[0-9]{{1,6}})?")
TO = r"(?: ?[-\u2013~/] ?| (?:to|bis|a) )"  # before the end of an interval, of which the beginning is read
INTERVAL = re.compile(rf"((?:{DATE}(?: +|T))?({CLOCK}){ZONE}){TO}({DATE}(?: +|T))?({CLOCK}){ZONE}")
MOMENT = re.compile(rf"{DATE}(?: +|T){CLOCK}{ZONE}(?:{TO}(?:{DATE}(?: +|T))?{CLOCK}{ZONE})?|{COMPACT}")
ONLY_DATE, ONLY_CLOCK = re.compile(DATE), re.compile(f"{CLOCK}(?:{TO}{CLOCK})?")
MIDNIGHT = r"(?<=[ T])24(?=:00(?:$|:00|[ Z+-])|$)"  # the end of a day
AT_MIDNIGHT = re.compile(rf"{DATE}[ T]0{{1,2}}:00(?::00(?:\.0+)?)?Z?")
UNKNOWN = np.iinfo(np.int64).min  # for a text that is not a time
PLAIN = "YYYY-MM-DD HH:MM:SS"
MILLISECONDS = 1e11  # since 1970: larger numbers are finer than seconds
MANY = 100  # columns, of which pairs are looked at
Rows = list[list[str]]
COPIED_TEXT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}")
# The forms read without a note.
COPIED = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%SZ")


def is_time(text: str) -> bool:
    """Return whether a text is a date and time, a date, or seconds since 1970."""
    return bool(MOMENT.fullmatch(text) or ONLY_DATE.fullmatch(text) or EPOCH.fullmatch(text))


def interval_begin(text: str) -> str:
    """Return the begin of an interval; any other text, such as a time with an offset from UTC, unchanged. An interval
    without a second date lasts at most an hour, and both times have the same form.
    """
    match = INTERVAL.fullmatch(text)
    if match is None or match[3]:
        return match[1] if match else text
    begin, end = ([int(number) for number in re.findall("[0-9]+", clock)] for clock in (match[2], match[4]))
    minutes = (60 * (end[0] - begin[0]) + end[1] - begin[1]) % (720 if match[4][-1] in "mM" else 1440)
    return match[1] if 0 < minutes <= 60 and len(begin) == len(end) and "T" not in text else text


def unit_since_1970(text: str) -> str:
    """Return the unit of a number since 1970, seconds to nanoseconds, by its size."""
    thousands = sum(float(text) >= MILLISECONDS * 1000**more for more in range(3))
    return ("seconds", "milliseconds", "microseconds", "nanoseconds")[thousands]


@dataclass(frozen=True)
class Times:
    """A time format: a strptime format, or ``None`` for seconds or finer units since 1970.

    zoned: the times have an offset from UTC or count from 1970, and are written in UTC. step: times are rounded to
    multiples of ``step`` seconds.  start: texts count seconds from ``start``, in seconds since 1970.
    """

    form: str | None
    zoned: bool
    step: int | None = None
    start: int | None = None

    @classmethod
    def from_format(cls, form: str) -> Times:
        """Return times in a strptime format given by the user."""
        return cls(form, zoned="%z" in form)

    def fit(self, texts: list[str]) -> bool:
        """Return whether all texts are times in this format, to find the format or the column of times."""
        return bool((self.seconds(Texts.from_cells(texts)) != UNKNOWN).all())

    def seconds(self, texts: Texts) -> np.ndarray:
        """Convert texts [t] to seconds since 1970 int64 [t]; UNKNOWN for a text in another format. Times without an
        offset are taken as UTC.
        """
        import pandas as pd

        seconds = self._parse(pd.Series(texts.words, dtype="str"))[texts.codes]  # rows repeat the words
        return seconds if self.step is None else np.where(seconds == UNKNOWN, UNKNOWN, nearest_step(seconds, self.step))

    def _parse(self, texts: pd.Series[str]) -> np.ndarray:
        """Convert W distinct texts to seconds since 1970, int64 [W]; UNKNOWN for a text in another format."""
        import pandas as pd

        if self.start is not None:
            numbers = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64) + self.start
            return np.where(np.isfinite(numbers), np.rint(np.nan_to_num(numbers)), UNKNOWN).astype(np.int64)
        if self.form is None:
            numbers = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64)
            for _ in range(3):  # milliseconds, microseconds, nanoseconds
                numbers = np.where(numbers >= MILLISECONDS, numbers / 1000, numbers)
            return np.where(np.isfinite(numbers), np.rint(np.nan_to_num(numbers)), UNKNOWN).astype(np.int64)
        if self.zoned:
            texts = texts.str.replace(r" ?UTC$", "Z", regex=True)
        interval = INTERVAL.fullmatch(texts.iloc[:1].str.cat())
        if interval and (interval[3] or not self.zoned):
            texts = texts.map(interval_begin)
        if re.search("%[YymdHM]%[ymdHMS]", self.form):  # adjacent digits are complete
            size = len(np.datetime64(0, "s").item().strftime(self.form))
            full = texts.str.len().between(size - self.form.endswith(" %H"), size)  # an hour alone may have one digit
            texts = texts.where(full, "")
        late = texts.str.contains(MIDNIGHT, regex=True) & (self.form.count("%H") > 0)
        texts = texts.str.replace(MIDNIGHT, "00", regex=True) if late.any() else texts
        parsed = pd.to_datetime(texts, format=self.form, utc=self.zoned, errors="coerce")
        parsed = parsed + pd.to_timedelta(late.astype(int), unit="D") if late.any() else parsed
        if self.zoned:
            parsed = parsed.dt.tz_localize(None)
        moments = parsed.to_numpy("datetime64[ms]")
        rounded = np.rint(moments.astype(np.int64) / 1000)
        return np.where(np.isnat(moments), UNKNOWN, rounded).astype(np.int64)


def candidates(text: str) -> list[Times]:
    """Return the formats that a time may have: several where day, month and year may be swapped; [] for no time."""
    if EPOCH.fullmatch(text):
        return [Times(None, zoned=True)]
    if re.fullmatch(COMPACT, text):
        return [Times("%Y%m%d%H%M%S"[: len(text) - 2], zoned=False)]
    match = re.match(DATE, text)
    if match is None:
        return []
    text = interval_begin(text)
    day, rest = match[0], text[match.end() :]
    mark = next(letter for letter in day if not letter.isdigit())
    first, _, last = day.split(mark)
    year = "%Y" if max(len(first), len(last)) == 4 else "%y"
    if len(first) == 4:
        orders = ["%Y-%m-%d"]
    else:  # a date with dots begins with the day
        orders = [f"%d-%m-{year}"] if mark == "." else [f"%d-%m-{year}", f"%m-%d-{year}"]
        orders += ["%y-%m-%d"] if mark == "-" and year == "%y" else []
    between = re.match(" *|T", rest)[0] or rest[:1]  # type: ignore[index]
    clock = re.match(CLOCK, rest[len(between) :])
    form, zone = "", ""
    if re.fullmatch(" [0-9]{1,2}", rest):  # an hour from a separate column
        form = " %H"
    if clock is not None:
        half = clock[0][-1:] in "mM"
        form = between + ("%I" if half else "%H") + ":%M" + (":%S" if clock[0].count(":") == 2 else "")
        form += ".%f" if "." in clock[0] else ""
        form += (" %p" if " " in clock[0] else "%p") if half else ""
        zone = rest[len(between) + clock.end() :]
        form += (" %z" if zone.startswith(" ") and "UTC" not in zone else "%z") if zone else ""
    return [Times(order.replace("-", mark) + form, zoned=bool(zone)) for order in orders]


def time_columns(
    names: list[str], rows: Rows, columns: list[list[str]], request: ConvertOptions
) -> tuple[tuple[int, ...], tuple[str, str] | None]:
    """Return the time column, or the date and clock columns (or none), and a question (problem, remedy) or ``None``.
    names, rows: the header and the first rows. columns: filled cells by column.
    """
    times, unclear = _stated_time_columns(names, rows, request)
    if times is not None:
        return times, unclear
    ways = _guess(names, columns, rows) or _guess(names, columns, rows, mostly=True)
    if len(ways) > 1:
        called = [" ".join(str(Argument("time_column", names[column])) for column in way) for way in ways[:2]]
        problem = f"the table has several columns of times ({sample([names[way[0]] for way in ways])})"
        unclear = problem, f"say which: {' or '.join(called)}"
    return (ways[0] if ways else ()), unclear


def _stated_time_columns(
    names: list[str], rows: Rows, request: ConvertOptions
) -> tuple[tuple[int, ...] | None, tuple[str, str] | None]:
    """Return the time columns named by the user, or the one or two columns in the user's time format. Returns ``None``
    where the user states neither or no column fits, and the first pair with a question where several pairs fit.
    """
    if request.time_column:
        given = [names.index(name) for name in request.time_column if name in names]
        return (tuple(given) if len(given) == len(request.time_column) else ()), None
    if request.time_format is None:
        return None, None
    times, few = Times.from_format(request.time_format), [cells for cells in rows if any(cells)]

    def fits(*columns: int) -> bool:
        return bool(few) and times.fit([" ".join(cells[column] for column in columns) for cells in few])

    single = [(column,) for column in range(len(names)) if fits(column)]
    if single:
        return min(single, key=lambda way: (bool(OF_ROW.fullmatch(names[way[0]])), way)), None
    others = {*request.sensor_column, *request.drop, *request.channels}
    filled = [column for column in range(min(len(names), MANY)) if any(letter.isdigit() for letter in rows[0][column])]
    filled = [column for column in filled if names[column] not in others]
    pairs = [pair for one, other in combinations(filled, 2) for pair in ((one, other), (other, one)) if fits(*pair)]
    if len(named := [pair for pair in pairs if HOUR.fullmatch(names[pair[1]])]) == 1:
        return named[0], None
    if len(pairs) < 2:
        return next(iter(pairs), None), None
    called = [[names[column] for column in pair] for pair in pairs[:2]]
    either = " or ".join(" ".join(str(Argument("time_column", name)) for name in pair) for pair in called)
    return pairs[0], (f"several pairs of columns are written as {request.time_format}", either)


def _guess(names: list[str], columns: list[list[str]], rows: Rows, *, mostly: bool = False) -> list[tuple[int, ...]]:
    """Return the possible choices of time columns: (column,) or (date, clock); several where names leave the choice
    open. columns: filled cells by column. mostly: the first cell and half the cells suffice; the reader reports wrong
    cells.
    """

    def holding(form: re.Pattern[str]) -> list[int]:
        """Return the columns whose cells have this form; names such as updated_at, or of interval ends, come last."""
        if mostly:
            first = [column for column, cell in enumerate(rows[0]) if form.fullmatch(cell)]
            full = [column for column in first if 2 * len([*filter(form.fullmatch, columns[column])]) >= len(rows)]
        else:
            full = [column for column, cells in enumerate(columns) if len(cells) == len(rows)]
            full = [column for column in full if all(map(form.fullmatch, columns[column]))]
        return sorted(full, key=lambda column: bool(OF_ROW.fullmatch(names[column])))

    def clocks() -> list[int]:
        hours = holding(re.compile("[01]?[0-9]|2[0-4]"))
        return [*holding(ONLY_CLOCK), *(column for column in hours if HOUR.fullmatch(names[column]))][:1]

    def rank(way: tuple[int, ...]) -> tuple[bool, bool]:
        return bool(OF_ROW.fullmatch(names[way[0]])), not SINCE_1970.fullmatch(names[way[0]])

    moments, hours = holding(MOMENT), clocks() if len(rows) > 1 else []
    dated = [column for column in moments if hours and all(map(AT_MIDNIGHT.fullmatch, columns[column]))]
    ways: list[tuple[int, ...]] = [(column,) for column in moments if column not in dated]
    dates = [*dated, *holding(ONLY_DATE)]
    if dates and (hours or not ways):
        ways.append((dates[0], *(hours or clocks())))
    ways += [
        (column,)
        for column in holding(EPOCH)
        if SINCE_1970.fullmatch(names[column]) or (column == 0 and not ways and not names_rows(names[column]))
    ]
    ways.sort(key=rank)
    named = ways and rank(ways[0]) != (False, True)
    return ways[:1] if named else [way for way in ways if rank(way) == rank(ways[0])]
