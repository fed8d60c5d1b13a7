"""A table as an office or a database exports it: how its text is written, and its rows as frames of pandas.

A sheet may be text with any separator and decimal sign, packed or not, a Parquet file or an Excel workbook.  Which
columns hold times, sensors and readings is found from the first rows; export.py says what the rows mean.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from socialx.errors import SocialxError, sample, shortened
from socialx.files.formats.contents import Request
from socialx.files.formats.tables import ABSENT, NUMBER, exact_floats
from socialx.files.formats.texts import SEPARATORS
from socialx.files.hdf5 import first_bytes
from socialx.files.store import SPEED
from socialx.progress import work

if TYPE_CHECKING:
    import pandas as pd

PIECE = 1 << 22  # letters of text that are parsed at a time
HEAD_ROWS = 40  # that tell what each column holds
TITLE_ROWS = 10  # lines above the header
WIDE = 3  # columns of numbers beside a column of texts that make it a table with a column per sensor
FIELD = 1 << 21  # letters of a line; METR-LA has 2,000 of them, 20,000 sensors 200,000
NOTHING = frozenset([*ABSENT, "NaT"])
# What reading a packed or odd text raises; zipfile raises RuntimeError for a member with a password.
UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
GZIP, ZIP, PARQUET, UTF16 = b"\x1f\x8b", b"PK\x03\x04", b"PAR1", (b"\xff\xfe", b"\xfe\xff")
DATE = r"(?:[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{4}|[0-9]{2}))"
CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?: ?[AaPp][Mm])?"
ZONE = r"(?: ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?"
EPOCH = re.compile(r"[0-9]{9,10}(?:\.[0-9]{1,6})?|[0-9]{12,13}")
MOMENT = re.compile(rf"{DATE}[ T]{CLOCK}{ZONE}")
ONLY_DATE, ONLY_CLOCK = re.compile(DATE), re.compile(CLOCK)
COMMA = re.compile(r"[+-]?(?:[0-9]+,?[0-9]*|,[0-9]+)(?:[eE][+-]?[0-9]+)?")
NOT_THOUSANDS = re.compile(r"[+-]?[0-9]*,(?![0-9]{3}$)[0-9]+")
# Names of a column of sensors in a table that has a row for each reading.
SENSORS = re.compile(
    r"(?:(?:sensor|station|detector|vd|vds|device|segment|link|location|site|counter|road|edge|loop|messstelle)"
    r"[ _-]?(?:id|name|no|nr|code|number)?|id|vdid|name)",
    re.IGNORECASE,
)
# Names of a column of each quantity in such a table.
QUANTITIES = {
    SPEED: re.compile(r"(?:.*speed.*|v|velocity|kmh|km/h|mph|geschwindigkeit)", re.IGNORECASE),
    "flow": re.compile(r"(?:.*(?:flow|volume|count|intensity).*|q|veh|vehicles)", re.IGNORECASE),
    "occupancy": re.compile(r"(?:.*occup.*|occ|o)", re.IGNORECASE),
}
PLACES = re.compile(r"(?:lat|lon|lng|latitude|longitude|x|y)", re.IGNORECASE)


@dataclass(frozen=True)
class Sheet:
    """How a table is written, and which of its columns are what; columns are numbered from 0.

    kind: text, parquet, excel, or turned, whose rows are in ``frame``.  times: the column of the times, or those of the
    dates and of the times of day.  sensors: the column of the sensors in a table that has a row for each reading; None:
    a column for each sensor.  values: the columns of readings.  packed: by gzip or zip.  first: the time of the first
    row, as it is written.  sheet: its name in a workbook of several.  begin: lines before the first row.  skipped: what
    stands in those that are not the header.  dropped: names of columns that are left out of a table with a column for
    each sensor.
    """

    path: Path
    kind: str
    names: tuple[str, ...]
    times: tuple[int, ...]
    sensors: int | None
    values: tuple[int, ...]
    encoding: str = "utf-8-sig"
    separator: str = ","
    decimal: str = "."
    packed: bool = False
    first: str = ""
    sheet: str = ""
    begin: int = 1
    skipped: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    frame: pd.DataFrame | None = field(default=None, compare=False)

    @property
    def where(self) -> Path | str:
        """How a message calls it."""
        return f"{self.path}, sheet {self.sheet}" if self.sheet else self.path

    def left_out(self) -> list[str]:
        """What of it is not read, a line each."""
        found = []
        if self.skipped:
            found.append(f"{self.where}: left out beside the header: {sample(self.skipped)}")
        if self.dropped:
            found.append(f"{self.where}: columns left out: {sample(self.dropped)}")
        return found

    def described(self) -> str:
        """What sets it apart from a plain CSV, for a note."""
        how = {
            "text": f"{SEPARATORS[self.separator]} between cells",
            "parquet": "Parquet",
            "excel": "an Excel workbook",
        }[self.kind]
        decimal = ", decimal commas" if self.decimal == "," else ""
        rows = "a column per sensor" if self.sensors is None else "a row per sensor and time"
        times = " and ".join(repr(self.names[each] or f"column {each + 1}") for each in self.times)
        return f"{how}{decimal}, {rows}, times in {times}"

    def plain(self) -> bool:
        """Whether it is a CSV of which tables.py reads every row as it is: commas, times first, a column per sensor."""
        wide = self.sensors is None and self.times == (0,) and len(self.values) + 1 == len(self.names)
        wide = wide and self.begin == 1 and self.decimal == "."
        return wide and (self.kind, self.separator, self.encoding) == ("text", ",", "utf-8-sig") and not self.packed

    def as_in(self, other: Sheet) -> Sheet:
        """The same sheet, its columns found by the names that they have in another one of the same columns."""
        place = {name: number for number, name in enumerate(self.names)}
        times, values = (tuple(place[other.names[each]] for each in part) for part in (other.times, other.values))
        sensors = None if other.sensors is None else place[other.names[other.sensors]]
        return replace(self, times=times, values=values, sensors=sensors)

    def frames(self, columns: tuple[int, ...]) -> Generator[tuple[int, pd.DataFrame], None, None]:
        """These columns of the rows, piece after piece, each with the number of its first row, counted as lines.

        Times and sensors are texts, readings float64 with NaN where there is none.
        """
        if self.kind == "text":
            yield from self._texts(columns)
            return
        frame = typed(self.path, self.kind, self.sheet) if self.frame is None else self.frame.copy(deep=False)
        if self.kind == "excel":
            frame = frame[self.begin :].dropna(how="all").infer_objects()
        frame.columns = range(len(frame.columns))  # type: ignore[assignment]
        found = frame[list(columns)].copy()
        for column in columns:
            found[column] = self._numbers(found[column]) if column in self.values else written(found[column])
        yield self.begin + 1, found

    def _numbers(self, column: pd.Series[Any]) -> pd.Series[float]:
        """A column of readings of a typed table as float64."""
        import pandas as pd

        cells = column.replace(list(NOTHING), float("nan"))
        if self.decimal == ",":
            cells = cells.map(lambda cell: cell.replace(",", ".") if isinstance(cell, str) else cell)
        found = pd.to_numeric(cells, errors="coerce")
        wrong = found.isna() & cells.notna()
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            self.refuse_cell(f"line {row + self.begin + 1}", int(str(column.name)), str(column.iloc[row]))
        return found.astype("float64")

    def _texts(self, columns: tuple[int, ...]) -> Generator[tuple[int, pd.DataFrame], None, None]:
        import pandas as pd

        chosen = sorted(columns)
        options: dict[str, Any] = {
            "header": None,
            "names": range(len(self.names)),
            "usecols": chosen,
            "index_col": False,
            "dtype": {column: "float64" if column in self.values else "str" for column in chosen},
            "sep": self.separator,
            "decimal": self.decimal,
            "skipinitialspace": True,
            "keep_default_na": False,
            "na_values": {column: list(NOTHING) for column in chosen if column in self.values},
            "low_memory": False,
            **exact_floats(),
        }
        for line, lines in self._pieces():
            text = "\n".join(lines)
            if '"' not in text:
                self._check_width(line, lines)
            try:
                frame: pd.DataFrame = pd.read_csv(io.StringIO(text), **options)
            except (ValueError, OverflowError, csv.Error) as error:
                self._refuse(line, lines, " ".join(str(error).split())[:160])
            numbers = [column for column in chosen if column in self.values]
            if "inf" in text.lower() and frame[numbers].isin([float("inf"), float("-inf")]).any(axis=None):
                self._refuse(line, lines, "a reading is infinite")
            yield line, frame

    def _pieces(self) -> Iterator[tuple[int, list[str]]]:
        """Lines that are not blank, with the number of the first one."""
        try:
            with opened(self.path, self.encoding) as file, work(f"reading {self.path.name}", None, "B") as bar:
                line = 1 + sum(1 for _ in islice(file, self.begin))
                while lines := file.readlines(PIECE):
                    kept = [text for each in lines if (text := each.rstrip("\r\n")) and not text.isspace()]
                    if kept:
                        yield line, kept
                    line += len(lines)
                    bar.advance(sum(map(len, lines)))
        except UNREADABLE as error:
            raise SocialxError(self.path, f"cannot be read to its end ({error})", "make or download it again") from None

    def _check_width(self, line: int, lines: list[str]) -> None:
        wanted = len(self.names) - 1
        for number, text in enumerate(lines, line):
            if text.count(self.separator) != wanted:
                found = f"line {number} has {text.count(self.separator) + 1} cells, not {wanted + 1}"
                raise SocialxError(self.path, found, "correct it")

    def _refuse(self, line: int, lines: list[str], reason: str) -> NoReturn:
        """Raise for the first cell that is no reading, else with ``reason``."""
        number = COMMA if self.decimal == "," else NUMBER
        for place, cells in enumerate(csv.reader(lines, delimiter=self.separator), line):
            if len(cells) != len(self.names):
                raise SocialxError(
                    self.path, f"line {place} has {len(cells)} cells, not {len(self.names)}", "correct it"
                )
            for column in self.values:
                cell = cells[column].strip()
                if cell not in NOTHING and not number.fullmatch(cell):
                    self.refuse_cell(f"line {place}", column, cell)
        raise SocialxError(self.path, f"from line {line} on: {reason}", "correct it")

    def refuse_cell(self, place: str, column: int, cell: str) -> NoReturn:
        """Raise for a cell that is no reading."""
        found = f"{place}, column {self.names[column][:40]!a} is {cell[:40]!a}, not a number"
        raise SocialxError(self.where, found, "correct it, or leave it empty if missing")


def look(path: Path, request: Request | None = None) -> list[Sheet]:
    """The sheets of a file that have times, several of a workbook; raises nothing for other kinds of files.

    request: which columns hold times or sensors, and which are left out.
    """
    request = request or Request(path)
    try:
        head = first_bytes(path, "download it again")
        kind = kind_of_file(path, head)
        if kind == "text":
            found = [_look_text(path, head, request)]
        else:
            found = [_look_typed(path, kind, name, request) for name in sheet_names(path, kind)]
    except (*UNREADABLE, csv.Error, SocialxError):
        return []
    return [sheet for sheet in found if sheet is not None]


def unread_sheets(path: Path, sheets: list[Sheet]) -> list[str]:
    """A line on the sheets of a workbook that are no tables with times."""
    read = {sheet.sheet for sheet in sheets if sheet.path == path}
    names = sheet_names(path, kind_of_file(path, first_bytes(path, "check the path")))
    others = [name for name in names if name not in read]
    return [f"{path}: no table with times, left out: sheet {sample(others)}"] if others else []


def refuse_untimed(path: Path) -> None:
    """Raise for a text with a header and no rows, and for cells without times that commas do not separate."""
    lines = _shown_lines(path)
    if not all(line.replace("\t", " ").isprintable() for _, line in lines):
        return
    if lines and (len(lines) == 1 or "," not in lines[0][1]) and any(mark in lines[0][1] for mark in SEPARATORS):
        refuse_sheet(path)


def refuse_sheet(path: Path) -> NoReturn:
    """Raise for a file that is no table with times, with the reason."""
    head = first_bytes(path, "download it again")
    kind = kind_of_file(path, head)
    if kind == "text":
        lines = [line for _, line in _shown_lines(path)]
    else:
        frame = typed(path, kind, rows=HEAD_ROWS)
        lines = [" ".join(cells) for cells in zip(*(written(frame[name]) for name in frame), strict=True)]
        lines = [line for line in lines if line.strip()]
    wanted = "write a header line, then rows of a time and readings, or a row per time, sensor and reading"
    if len(lines) == 1:
        raise SocialxError(path, f"no row after the header ({shortened(lines[0], 60)})", "use a file with rows")
    found = f"no table with a column of times; line 1 is {lines[0][:60]!a}, line 2 {lines[1][:60]!a}" if lines else ""
    raise SocialxError(path, found or "no table with a column of times", wanted)


def kind_of_file(path: Path, head: bytes) -> str:
    """Text, parquet or excel."""
    if head.startswith(PARQUET):
        return "parquet"
    return "excel" if head.startswith(ZIP) and path.suffix.lower() in (".xlsx", ".xlsm") else "text"


def encodings(head: bytes) -> tuple[str, ...]:
    """How a text with these first bytes may be written, the likely one first."""
    return ("utf-16",) if head.startswith(UTF16) else ("utf-8-sig", "cp1252")


def _look_text(path: Path, head: bytes, request: Request) -> Sheet | None:
    for encoding in encodings(head):
        try:
            lines = _head_lines(path, encoding)
        except UnicodeError:
            continue
        if not lines or "\0" in lines[0][1]:
            return None
        sheet = Sheet(path, "text", (), (), None, (), encoding, packed=head.startswith((GZIP, ZIP)))
        for separator in SEPARATORS:
            rows = [(number, [cell.strip() for cell in _split(line, separator)]) for number, line in lines]
            if found := _headed(replace(sheet, separator=separator), rows, request):
                return found
        return None
    return None


def _shown_lines(path: Path) -> list[tuple[int, str]]:
    """``_head_lines`` for a message, with a mark for each byte that no encoding has."""
    try:
        return _head_lines(path, encodings(first_bytes(path, "check the path"))[-1], "replace")
    except UNREADABLE as error:
        raise SocialxError(path, f"cannot be read ({error})", "make or download it again") from None


def _head_lines(path: Path, encoding: str, errors: str = "strict") -> list[tuple[int, str]]:
    """The first lines that are not blank, with their numbers; none where one is longer than that of any table."""
    with opened(path, encoding, errors) as file:
        lines = list(islice(iter(lambda: file.readline(FIELD), ""), TITLE_ROWS + HEAD_ROWS))
    if any(len(line) == FIELD for line in lines):
        return []
    numbered = ((number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1))
    return [(number, line) for number, line in numbered if line and not line.isspace()]


def _split(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator), [])


def _headed(sheet: Sheet, rows: list[tuple[int, list[str]]], request: Request) -> Sheet | None:
    """The sheet with everything that its first rows say; None where none of them is a header with times below it.

    Lines above the header have fewer cells with a text.  One line below it may hold no times and no number, such as
    that of the units.
    """
    filled = [sum(map(bool, cells)) for _, cells in rows]
    for header, (_, names) in enumerate(rows[: TITLE_ROWS + 1]):
        if len(names) < 2 or any(count >= filled[header] for count in filled[:header]):
            continue
        for first in (header + 1, header + 2):
            below = [cells for _, cells in rows[first : first + HEAD_ROWS]]
            right = [cells for cells in below if len(cells) == len(names)]
            if len(right) <= len(below) // 2:  # the reader says which line has more or fewer cells
                continue
            between = [cells for _, cells in rows[header + 1 : first]]
            if any(NUMBER.fullmatch(cell) or _is_time(cell) for cells in between for cell in cells):
                continue
            if found := _columns(sheet, names, right, request):
                skipped = [cells for _, cells in rows[:header]] + between
                texts = [shortened(" ".join(filter(None, cells)), 40) for cells in skipped]
                return replace(found, begin=rows[first - 1][0], skipped=tuple(filter(None, texts)))
    return None


def _is_time(cell: str) -> bool:
    return bool(MOMENT.fullmatch(cell) or ONLY_DATE.fullmatch(cell) or EPOCH.fullmatch(cell))


def _columns(sheet: Sheet, names: list[str], rows: list[list[str]], request: Request) -> Sheet | None:
    """What each column holds.  None where no column holds times, or ``names`` is no header."""
    if any(MOMENT.fullmatch(name) for name in names):
        return None
    columns = [[cell for cell in column if cell not in NOTHING] for column in zip(*rows, strict=True)]
    said = request.time_column
    times = _times(columns) if said is None else tuple(place for place, name in enumerate(names) if name == said)[:1]
    if not times or any(len(columns[place]) < len(rows) or _is_time(names[place]) for place in times):
        return None
    unread = {place for place, name in enumerate(names) if name in request.drop or not (name or columns[place])}
    wide = [place for place in range(len(names)) if place not in times and place not in unread]
    rest = [place for place in wide if not PLACES.fullmatch(names[place])]
    sheet = replace(sheet, decimal=decimal_sign(sheet.separator, [columns[place] for place in rest]))
    number = COMMA if sheet.decimal == "," else NUMBER
    # A word among numbers is a wrong cell of a column of readings: the reader says where it is.
    texts = [place for place in rest if columns[place] and not any(map(number.fullmatch, columns[place]))]
    moments = [" ".join(cells[place] for place in times) for cells in rows]
    sensors = _sensors(names, rows, moments, rest, texts, request)
    sheet = replace(sheet, names=tuple(names), times=times, sensors=sensors, first=moments[0])
    return _with_values(sheet, wide, [place for place in wide if place not in texts])


def _with_values(sheet: Sheet, wide: list[int], numbers: list[int]) -> Sheet | None:
    """The sheet with its columns of readings; None where one has no name.

    wide: all columns but times.  numbers: those without texts.
    """
    measured = tuple(p for p in numbers if p != sheet.sensors and not PLACES.fullmatch(sheet.names[p]))
    if sheet.sensors is not None and measured:
        return replace(sheet, values=measured) if all(sheet.names[place] for place in measured) else None
    values = tuple(numbers if len(numbers) >= WIDE else wide)
    if not values or not all(sheet.names[place] for place in values):
        return None
    left = [name for place, name in enumerate(sheet.names) if name and place not in (*sheet.times, *values)]
    return replace(sheet, sensors=None, values=values, dropped=tuple(left))


def _sensors(
    names: list[str], rows: list[list[str]], moments: list[str], rest: list[int], texts: list[int], request: Request
) -> int | None:
    """The column of the sensors in a table that has a row for each reading; None: there is a column for each sensor.

    A column with such a name, or with texts; among three columns of numbers or more, texts say something else, such as
    the day of the week.  Where rows repeat their times, a column that tells the rows of each time apart.
    """
    if request.sensor_column is not None:
        return next((place for place in rest if names[place] == request.sensor_column), None)
    if named := [place for place in rest if SENSORS.fullmatch(names[place])]:
        return named[0]
    numbers = [place for place in rest if place not in texts]
    measured = [place for place in numbers if any(form.fullmatch(names[place]) for form in QUANTITIES.values())]
    if 3 * len(set(moments)) <= 2 * len(moments):  # not the hour that comes twice
        whole = [place for place in numbers if place not in measured and all(cells[place].isdigit() for cells in rows)]
        for place in (*texts, *(whole if len(numbers) > 1 else ())):
            if len({(moment, cells[place]) for moment, cells in zip(moments, rows, strict=True)}) == len(rows):
                return place
    return texts[0] if texts and (measured or len(numbers) < WIDE) else None


def decimal_sign(separator: str, columns: list[list[str]]) -> str:
    """The sign before the decimals: a comma where a number has one, and no column needs a point.

    Between cells that are separated by commas, one before three digits may be that of the thousands.
    """
    form = NOT_THOUSANDS if separator == "," else COMMA
    commas = any("," in cell and form.fullmatch(cell) for column in columns for cell in column)
    points = any("." in cell and NUMBER.fullmatch(cell) for column in columns for cell in column)
    return "," if commas and not points else "."


def _times(columns: list[list[str]]) -> tuple[int, ...]:
    """The column of the times, or those of dates and of times of day."""
    for place, column in enumerate(columns):
        if column and _are(MOMENT, column):
            return (place,)
    dates = [place for place, column in enumerate(columns) if column and _are(ONLY_DATE, column)]
    clocks = [place for place, column in enumerate(columns) if column and _are(ONLY_CLOCK, column)]
    if dates and clocks:
        return dates[0], clocks[0]
    if dates:
        return (dates[0],)
    epochs = [place for place, column in enumerate(columns) if column and _are(EPOCH, column)]
    return (epochs[0],) if epochs and epochs[0] == 0 else ()


def _are(form: re.Pattern[str], cells: list[str]) -> bool:
    return all(form.fullmatch(cell) for cell in cells)


@contextmanager
def opened(path: Path, encoding: str, errors: str = "strict") -> Iterator[IO[str]]:
    """A text, unpacked if it is packed by gzip or the only member of a zip.  errors: as of Python's ``open``."""
    head = first_bytes(path, "download it again")
    if head.startswith(ZIP):
        with zipfile.ZipFile(path) as archive:
            members = _names(archive)
            if len(members) != 1:
                found = f"{len(members)} files in the zip ({sample(members)})"
                raise SocialxError(path, found, "unpack it and name the file")
            with archive.open(members[0]) as raw, io.TextIOWrapper(raw, encoding, errors, newline="") as file:
                yield file
    elif head.startswith(GZIP):
        with gzip.open(path, "rt", encoding=encoding, errors=errors, newline="") as file:
            yield file
    else:
        with path.open(encoding=encoding, errors=errors, newline="") as file:
            yield file


def _names(archive: zipfile.ZipFile) -> list[str]:
    """Of the files in a zip, without folders; a name that is empty is damage."""
    return [name for name in archive.namelist() if name and not name.endswith("/")]


def refuse_several(path: Path) -> None:
    """Raise for a zip of several tables; return for all else."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = _names(archive)
    except (OSError, zipfile.BadZipFile):
        return
    if len(names) > 1 and all(name.lower().endswith((".csv", ".txt", ".tsv")) for name in names):
        raise SocialxError(path, f"{len(names)} tables in it ({sample(names)})", "unpack it, and name the folder")


def _look_typed(path: Path, kind: str, name: str, request: Request) -> Sheet | None:
    frame = typed(path, kind, name, TITLE_ROWS + HEAD_ROWS)
    columns = [written(frame[column]).map(str) for column in frame]
    rows = [(number, list(cells)) for number, cells in enumerate(zip(*columns, strict=True), 1)]
    if kind == "parquet":
        rows.insert(0, (1, [str(column).strip() for column in frame]))
    return _headed(Sheet(path, kind, (), (), None, (), separator="|", sheet=name), rows, request)


@contextmanager
def _readable(path: Path, kind: str) -> Iterator[None]:
    """Whatever the package of a kind of file finds wrong becomes one line."""
    package, extra = ("pyarrow", "parquet") if kind == "parquet" else ("openpyxl", "excel")
    try:
        yield
    except ImportError:
        raise SocialxError(path, f"{package} is not installed", f"pip install 'socialx[{extra}]'") from None
    except Exception as error:  # noqa: BLE001  of pyarrow and openpyxl, which have many kinds
        found = f"no {kind} file that can be read ({' '.join(str(error).split())[:120]})"
        raise SocialxError(path, found, "write it again") from None


def sheet_names(path: Path, kind: str) -> list[str]:
    """The names of the sheets of a workbook that has several; one empty name for any other file."""
    import pandas as pd

    if kind != "excel":
        return [""]
    with _readable(path, kind), pd.ExcelFile(path) as book:
        names = [str(name) for name in book.sheet_names]
    return names if len(names) > 1 else [""]


def typed(path: Path, kind: str, sheet: str = "", rows: int | None = None) -> pd.DataFrame:
    """A Parquet file, its index a column if it has a name or holds times or texts, or the cells of a sheet."""
    import pandas as pd

    with _readable(path, kind):
        if kind == "excel":
            return pd.read_excel(path, sheet_name=sheet or 0, header=None, dtype=object, nrows=rows)
        frame = pd.read_parquet(path)
    names = "sensor" if pd.api.types.is_string_dtype(frame.index.dtype) else "time"
    if frame.index.name is not None or names == "sensor" or isinstance(frame.index, pd.DatetimeIndex):
        frame = frame.rename_axis(str(frame.index.name or names)).reset_index()
    return frame if rows is None else frame.head(rows)


def written(column: pd.Series[Any]) -> pd.Series[str]:
    """A column of a typed table as texts: times in ISO form, whole numbers without a point."""
    import pandas as pd

    if isinstance(column.dtype, pd.DatetimeTZDtype):
        column = column.dt.tz_convert("UTC")
        return column.dt.strftime("%Y-%m-%d %H:%M:%SZ").fillna("")
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return column.dt.strftime("%Y-%m-%d %H:%M:%S").fillna("")
    if pd.api.types.is_float_dtype(column.dtype) and (column.dropna() % 1 == 0).all():
        return column.map(lambda value: "" if pd.isna(value) else str(int(value)))
    return column.map(lambda value: "" if pd.isna(value) else str(value).strip())
