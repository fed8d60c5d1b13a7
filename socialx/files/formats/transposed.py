"""Tables whose rows and columns have changed places: a row for each of N sensors, a column for each of T times."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from socialx.errors import Argument, Command, SocialxError, sample
from socialx.files.formats.sheets import (
    COMMA,
    EPOCH,
    HEAD_ROWS,
    MOMENT,
    NOTHING,
    SENSORS,
    UNREADABLE,
    Sheet,
    decimal_sign,
    encodings,
    kind_of_file,
    opened,
    sheet_names,
    typed,
    written,
)
from socialx.files.formats.tables import NUMBER
from socialx.files.formats.texts import SEPARATORS
from socialx.files.hdf5 import first_bytes

BEGINNING = 1 << 12  # letters of the first line, which hold several times
PLAIN = re.compile(r"[0-9.eE+\-\n]*")
SWAPPED = str.maketrans(".,", ",.")
ADVICE = "make or download it again"


def refuse_transposed(path: Path) -> None:
    """Raise for a table with a column for each time; return for all else."""
    try:
        with opened(path, "utf-8-sig") as file:
            line = file.readline(BEGINNING).rstrip("\r\n")
    except (*UNREADABLE, SocialxError):
        return
    cells = _cells(line, _separator(line))[1:4]
    if len(cells) > 1 and all(map(_is_time, cells)):
        found = f"line 1 has a time in each column ({sample(cells)}): rows and columns have changed places"
        turned = Command("convert", "auto", path, transposed=True, meta="LOCATIONS.csv", output="OUT.h5")
        raise SocialxError(path, found, turned)


def turned(path: Path) -> Sheet:
    """The sheet with a row per time of a table with a column per time; all its readings are held in memory.

    The sensors are in the column with the name of one, else in the first that holds no times.  Other columns without
    times are left out.  Raises SocialxError for any other table, and for a cell that is no reading.
    """
    sheet, rows = _open(path)
    times = tuple(place for place, name in enumerate(sheet.names) if _is_time(name))
    others = [place for place, name in enumerate(sheet.names) if not _is_time(name)]
    if len(times) < 2 or not others:
        found = f"line 1 names no sensors and times ({sample(list(sheet.names))})"
        raise SocialxError(path, found, ("drop ", Argument("transposed")))
    sensors = next((place for place in others if SENSORS.fullmatch(sheet.names[place])), others[0])
    head = list(islice(rows, HEAD_ROWS))
    sheet = replace(sheet, values=times, decimal=decimal_sign(sheet.separator, [cells[1:] for cells in head]))
    ids, values = [], []
    for line, cells in enumerate(chain(head, rows), 2):
        if len(cells) != len(sheet.names):
            raise SocialxError(path, f"line {line} has {len(cells)} cells, not {len(sheet.names)}", "correct it")
        ids.append(cells[sensors].strip())
        values.append(_readings(sheet, line, cells))
    if not ids or not all(ids):
        raise SocialxError(path, "rows without the name of a sensor" if ids else "no row after line 1", ADVICE)
    import pandas as pd

    frame = pd.DataFrame(np.array(values).T, columns=range(1, len(ids) + 1))
    frame.insert(0, 0, [sheet.names[place] for place in times])
    names = ("time", *ids)
    first = str(frame.iat[0, 0])
    return Sheet(path, "turned", names, (0,), None, tuple(range(1, len(names))), first=first, frame=frame)


def _is_time(text: str) -> bool:
    return bool(MOMENT.fullmatch(text) or EPOCH.fullmatch(text))


def _separator(line: str) -> str:
    """The separator with which the beginning of a header line has the most times."""
    return max(SEPARATORS, key=lambda mark: sum(map(_is_time, _cells(line[:BEGINNING], mark))))


def _cells(line: str, separator: str) -> list[str]:
    """The cells of a header line; none where one is longer than any name."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def _open(path: Path) -> tuple[Sheet, Iterator[list[str]]]:
    """A sheet that only knows its names, and its rows as texts."""
    head = first_bytes(path, ADVICE)
    kind = kind_of_file(path, head)
    if kind != "text":
        if len(several := sheet_names(path, kind)) > 1:
            raise SocialxError(path, f"{len(several)} sheets ({sample(several)})", "save each as a file of its own")
        frame = typed(path, kind)
        if kind == "excel":
            frame = frame.set_axis(written(frame.iloc[0]).tolist(), axis=1)[1:].infer_objects()
        rows = map(list, zip(*(written(frame[name]).tolist() for name in frame), strict=True))
        return Sheet(path, kind, tuple(str(name).strip() for name in frame), (), None, (), separator="|"), rows
    for encoding in encodings(head):
        try:
            with opened(path, encoding) as file:
                line = file.readline().rstrip("\r\n")
        except UnicodeError:
            continue
        except UNREADABLE as error:
            raise SocialxError(path, f"cannot be read ({error})", ADVICE) from None
        separator = _separator(line)
        names = tuple(_cells(line, separator))
        return Sheet(path, kind, names, (), None, (), encoding, separator), _lines(path, encoding, separator)
    raise SocialxError(path, "no text that can be read", ADVICE)


def _lines(path: Path, encoding: str, separator: str) -> Iterator[list[str]]:
    """The cells of the lines after the first that are not blank."""
    try:
        with opened(path, encoding) as file:
            file.readline()
            yield from (cells for cells in csv.reader(file, delimiter=separator) if cells)
    except (*UNREADABLE, csv.Error) as error:
        raise SocialxError(path, f"cannot be read to its end ({error})", ADVICE) from None


def _readings(sheet: Sheet, line: int, cells: list[str]) -> np.ndarray:
    """The readings of a row, float64 [T], NaN where there is none."""
    text = "\n".join(cells[column] for column in sheet.values)
    text = text.translate(SWAPPED) if sheet.decimal == "," else text
    with suppress(ValueError):  # a row of numbers and empty cells is read ten times as fast
        if PLAIN.fullmatch(text):
            return np.array([float(cell) if cell else np.nan for cell in text.split("\n")])
    number = COMMA if sheet.decimal == "," else NUMBER
    found = np.empty(len(sheet.values))
    for place, column in enumerate(sheet.values):
        cell = cells[column].strip()
        if cell in NOTHING:
            found[place] = np.nan
        elif number.fullmatch(cell):
            found[place] = float(cell.replace(",", "."))
        else:
            sheet.refuse_cell(f"line {line}", column, cell)
    return found
