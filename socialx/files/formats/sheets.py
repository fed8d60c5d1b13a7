"""A table with times: how it is written, and which of its columns hold times, sensors and readings.

A sheet may be text with any separator and decimal sign, packed or not, a Parquet file or a sheet of a workbook.  Its
first rows tell what its columns hold; tables.py says what the rows mean.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.errors import SocialxError, sample, shortened
from socialx.files.convert_options import Request
from socialx.files.file_head import SEPARATORS, FileHead
from socialx.files.formats.moments import EPOCH, MOMENT, ONLY_CLOCK, ONLY_DATE, is_time
from socialx.files.formats.text_cells import (
    ABSENT,
    COMMA,
    NO_READING,
    NUMBER,
    Piece,
    TextColumns,
    decimal_sign,
    refuse_cell,
)
from socialx.files.locations import match_key, repeated
from socialx.files.quantities import SPEED

if TYPE_CHECKING:
    import pandas as pd

HEAD_ROWS = 40  # that tell what each column holds
TITLE_ROWS = 10  # lines above the header
WIDE = 3  # columns of numbers beside a column of texts that make it a table with a column per sensor
# Names of a column of sensors in a table that has a row for each reading.
SENSORS = re.compile(
    r"(?:(?:sensor|station|detector|vd|vds|device|segment|link|location|site|counter|road|edge|loop|messstelle)"
    r"[ _-]?(?:id|name|no|nr|code|number)?|id|vdid|name)",
    re.IGNORECASE,
)
# Names of a column of each quantity in such a table.
QUANTITY_COLUMNS = {
    SPEED: re.compile(r"(?:.*speed.*|v|velocity|kmh|km/h|mph|geschwindigkeit)", re.IGNORECASE),
    "flow": re.compile(r"(?:.*(?:flow|volume|count|intensity).*|q|veh|vehicles)", re.IGNORECASE),
    "occupancy": re.compile(r"(?:.*occup.*|occ|o)", re.IGNORECASE),
}
PLACES = re.compile(r"(?:lat|lon|lng|latitude|longitude|x|y)", re.IGNORECASE)


@dataclass(frozen=True)
class Sheet:
    """How a table is written, and which of its columns are what; columns are numbered from 0.

    kind: text, parquet, excel, or turned.  times: the column of the times, or those of the dates and of the times of
    day; none where rows are counted.  sensors: the column of the sensors in a table that has a row for each reading;
    None: a column for each sensor.  values: the columns of readings.  first: the time of the first row, as it is
    written.  sheet: its name in a workbook of several.  begin: lines before the first row.  skipped: what stands in
    those that are not the header.  dropped: names of columns that are left out of a table with a column for each
    sensor.  others: sheets of the workbook that have no times, known to the first that has.  frame: the cells of what
    is no text.
    """

    path: Path
    kind: str
    names: tuple[str, ...]
    times: tuple[int, ...]
    values: tuple[int, ...]
    sensors: int | None = None
    encoding: str = "utf-8-sig"
    separator: str = ","
    decimal: str = "."
    first: str = ""
    sheet: str = ""
    begin: int = 1
    skipped: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    frame: pd.DataFrame | None = field(default=None, compare=False)

    @property
    def where(self) -> Path | str:
        """How a message calls it."""
        return f"{self.path}, sheet {self.sheet}" if self.sheet else self.path

    def left_out(self) -> list[str]:
        """What of it, and of the workbook around it, is not read: a line each."""
        parts = {
            f"{self.where}: left out beside the header": self.skipped,
            f"{self.where}: columns left out": self.dropped,
            f"{self.path}: no table with times, left out": tuple(f"sheet {name}" for name in self.others),
        }
        return [f"{what}: {sample(names)}" for what, names in parts.items() if names]

    def described(self) -> str:
        """How it is written, for a note."""
        kinds = {"parquet": "Parquet", "excel": "an Excel workbook"}
        how = kinds.get(self.kind) or f"{SEPARATORS[self.separator]} between cells"
        decimal = ", decimal commas" if self.decimal == "," else ""
        rows = "a column per sensor" if self.sensors is None else "a row per sensor and time"
        times = " and ".join(repr(self.names[each] or f"column {each + 1}") for each in self.times)
        return f"{how}{decimal}, {rows}, times in {times}"

    def as_in(self, other: Sheet) -> Sheet:
        """The same sheet, its columns found by the names that they have in another one of the same columns."""
        place = {name: number for number, name in enumerate(self.names)}
        times, values = (tuple(place[other.names[each]] for each in part) for part in (other.times, other.values))
        sensors = None if other.sensors is None else place[other.names[other.sensors]]
        return replace(self, times=times, values=values, sensors=sensors)

    def rows(self, texts: tuple[int, ...], numbers: tuple[int, ...] = ()) -> Generator[Piece, None, None]:
        """These columns of texts and of readings, piece after piece."""
        if self.frame is None:
            columns = TextColumns(
                self.path, self.names, texts, numbers, self.separator, self.decimal, self.begin, self.encoding
            )
            yield from columns.read("reading" if numbers else "looking at the times of")
            return
        frame = self.frame[self.begin :].dropna(how="all").infer_objects() if self.kind == "excel" else self.frame
        values = np.empty((len(frame), len(numbers)), np.float32)
        for place, column in enumerate(numbers):
            with np.errstate(over="ignore"):  # what is too large for a file is infinite
                values[:, place] = self._readings(frame[column], column)
        yield Piece([written(frame[column]).tolist() for column in texts], values, self.begin + 1)

    def _readings(self, column: pd.Series[Any], number: int) -> np.ndarray:
        """A column of a typed table as float64 [t], NaN where there is no reading."""
        import pandas as pd

        cells = column.replace(ABSENT, float("nan"))
        if self.decimal == ",":
            cells = cells.map(lambda cell: cell.replace(",", ".") if isinstance(cell, str) else cell)
        found = pd.to_numeric(cells, errors="coerce")
        if (wrong := (found.isna() & cells.notna()).to_numpy()).any():
            row = int(wrong.argmax())
            refuse_cell(self.where, f"line {row + self.begin + 1}", self.names[number] or number, str(column.iloc[row]))
        return found.to_numpy(np.float64, na_value=np.nan)


def look(head: FileHead, request: Request | None = None) -> list[Sheet]:
    """The sheets of a file that have times, several of a workbook; raises nothing for other kinds of files.

    request: which columns hold times or sensors, and which are left out; without it only the first rows are kept.
    """
    said = request or Request(head.path)
    for separator in SEPARATORS if head.lines else ():
        rows = [(number, cells_of(line, separator)) for number, line in head.lines]
        empty = Sheet(head.path, "text", (), (), (), encoding=head.encoding, separator=separator)
        if sheet := _headed(empty, rows, said):
            return [sheet]
    if head.kind not in ("parquet", "excel"):
        return []
    try:
        frames = typed(head, None if request else TITLE_ROWS + HEAD_ROWS)
    except SocialxError:
        return []
    found: dict[str, Sheet | None] = {}
    for name, frame in frames.items():
        first = frame.head(TITLE_ROWS + HEAD_ROWS)
        columns = [written(first[column]).map(str) for column in first]
        rows = [(number, list(cells)) for number, cells in enumerate(zip(*columns, strict=True), 1)]
        if head.kind == "parquet":
            rows.insert(0, (1, [str(column).strip() for column in frame]))
        cells = frame.set_axis(range(len(frame.columns)), axis=1)
        empty = Sheet(head.path, head.kind, (), (), (), separator="|", sheet=name, frame=cells)
        found[name] = _headed(empty, rows, said)
    sheets = [sheet for sheet in found.values() if sheet is not None]
    others = tuple(name for name, sheet in found.items() if sheet is None)
    return [replace(sheet, others=others if place == 0 else ()) for place, sheet in enumerate(sheets)]


def cells_of(line: str, separator: str) -> list[str]:
    """The cells of a line of text, without spaces around them; none where one is longer than any name."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


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
            if any(NUMBER.fullmatch(cell) or is_time(cell) for cells in between for cell in cells):
                continue
            if found := _columns(sheet, names, right, request):
                skipped = [cells for _, cells in rows[:header]] + between
                texts = [shortened(" ".join(filter(None, cells)), 40) for cells in skipped]
                return replace(found, begin=rows[first - 1][0], skipped=tuple(filter(None, texts)))
    return None


def _columns(sheet: Sheet, names: list[str], rows: list[list[str]], request: Request) -> Sheet | None:
    """What each column holds.  None where no column holds times, or ``names`` is no header."""
    columns = [[cell for cell in column if cell not in NO_READING] for column in zip(*rows, strict=True)]
    times = _times(columns, rows) or _times(columns, rows, mostly=True)
    if request.time_column is not None:
        times = (names.index(request.time_column),) if request.time_column in names else ()
    if not times or any(map(MOMENT.fullmatch, names)) or any(is_time(names[place]) for place in times):
        return None
    wide = [place for place, name in enumerate(names) if place not in times and (name or columns[place])]
    wide = [place for place in wide if names[place] not in request.drop]
    rest = [place for place in wide if not PLACES.fullmatch(names[place])]
    sheet = replace(sheet, decimal=decimal_sign(sheet.separator, [columns[place] for place in rest]))
    number = COMMA if sheet.decimal == "," else NUMBER
    # A word among numbers is a wrong cell of a column of readings: the reader says where it is.
    texts = [place for place in rest if columns[place] and not any(map(number.fullmatch, columns[place]))]
    numbers = sorted({*wide} - {*texts})
    moments = [" ".join(cells[place] for place in times) for cells in rows]
    sensors = _sensors(names, rows, moments, sorted({*rest} - {*texts}), texts, request)
    sheet = replace(sheet, names=tuple(names), times=times, sensors=sensors, first=moments[0])
    measured = tuple(place for place in rest if place in numbers and place != sensors) if sensors is not None else ()
    if measured:
        return replace(sheet, values=measured)
    values = tuple(numbers if len(numbers) >= WIDE else wide)
    left = sorted({*range(len(names))} - {*times, *values})
    dropped = tuple(filter(None, map(names.__getitem__, left)))
    return replace(sheet, sensors=None, values=values, dropped=dropped) if values else None


def _sensors(
    names: list[str], rows: list[list[str]], moments: list[str], numbers: list[int], texts: list[int], request: Request
) -> int | None:
    """The column of the sensors in a table that has a row for each reading; None: there is a column for each sensor.

    A column with such a name, or with texts; among three columns of numbers or more, texts say something else, such as
    the day of the week.  Where rows repeat their times, a column that tells the rows of each time apart.
    """
    rest = sorted([*numbers, *texts])
    if request.sensor_column is not None:
        return next((place for place in rest if names[place] == request.sensor_column), None)
    if named := [place for place in rest if SENSORS.fullmatch(names[place])]:
        return named[0]
    measured = [place for place in numbers if any(form.fullmatch(names[place]) for form in QUANTITY_COLUMNS.values())]
    if 3 * len(set(moments)) <= 2 * len(moments):  # not the hour that comes twice
        whole = [place for place in numbers if place not in measured and all(cells[place].isdigit() for cells in rows)]
        for place in (*texts, *(whole if len(numbers) > 1 else ())):
            if len({(moment, cells[place]) for moment, cells in zip(moments, rows, strict=True)}) == len(rows):
                return place
    return texts[0] if texts and (measured or len(numbers) < WIDE) else None


def _times(columns: list[list[str]], rows: list[list[str]], *, mostly: bool = False) -> tuple[int, ...]:
    """The column of the times, or those of dates and of times of day.

    columns: the cells of each that are filled.  mostly: the first cell and half of all are enough; the reader says
    which are wrong.
    """

    def holding(form: re.Pattern[str]) -> list[int]:
        if mostly:
            first = [place for place, cell in enumerate(rows[0]) if form.fullmatch(cell)]
            return [
                place for place in first if 2 * sum(1 for cell in columns[place] if form.fullmatch(cell)) >= len(rows)
            ]
        full = [place for place, cells in enumerate(columns) if len(cells) == len(rows)]
        return [place for place in full if all(map(form.fullmatch, columns[place]))]

    if moments := holding(MOMENT):
        return (moments[0],)
    if dates := holding(ONLY_DATE):
        return (dates[0], *holding(ONLY_CLOCK)[:1])
    return (0,) if holding(EPOCH)[:1] == [0] else ()


def check_ids(where: object, ids: tuple[str, ...], *, integers: bool = False) -> None:
    """Refuse names of sensors of which one is empty, is no integer where all must be, or stands twice."""
    wrong = [ascii(name[:40]) for name in ids if not (isinstance(match_key(name), int) if integers else name)]
    if wrong:
        raise SocialxError(where, f"line 1 has sensor ids like {sample(wrong)}", "name each column, or remove it")
    if twice := repeated(ids):
        raise SocialxError(where, f"line 1 names sensors more than once ({sample(twice)})", "remove the repeated ones")


def typed(head: FileHead, rows: int | None = None) -> dict[str, pd.DataFrame]:
    """The cells of a Parquet file, or of each sheet of a workbook by its name; the name of the only one is empty.

    rows: at most.  The index of a Parquet file is a column if it has a name or holds times or texts.
    """
    import pandas as pd

    package, extra = ("pyarrow", "parquet") if head.kind == "parquet" else ("openpyxl", "excel")
    try:
        if head.kind == "excel":
            book = pd.read_excel(head.path, sheet_name=None, header=None, dtype=object, nrows=rows)
            sheets = {str(name): frame for name, frame in book.items()}
            return sheets if len(sheets) > 1 else {"": next(iter(sheets.values()))}
        frame = pd.read_parquet(head.path)
    except ImportError:
        raise SocialxError(head.path, f"{package} is not installed", f"pip install 'socialx[{extra}]'") from None
    except Exception as error:  # noqa: BLE001  of pyarrow and openpyxl, which have many kinds
        found = f"no {head.kind} file that can be read ({' '.join(str(error).split())[:120]})"
        raise SocialxError(head.path, found, "write it again") from None
    names = "sensor" if pd.api.types.is_string_dtype(frame.index.dtype) else "time"
    if frame.index.name is not None or names == "sensor" or isinstance(frame.index, pd.DatetimeIndex):
        frame = frame.rename_axis(str(frame.index.name or names)).reset_index()
    return {"": frame if rows is None else frame.head(rows)}


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
