"""Tables whose rows and columns have changed places: a row for each of N sensors, a column for each of T times."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise

import numpy as np

from socialx.errors import Argument, Command, SocialxError, sample
from socialx.files.file_head import SEPARATORS, FileHead
from socialx.files.formats.moments import EPOCH, MOMENT
from socialx.files.formats.roles import may_be_sensors
from socialx.files.formats.sheets import HEAD_ROWS, Sheet, cells_of, typed, written
from socialx.files.formats.text_cells import Signs, decimal_sign

BEGINNING = 1 << 12  # letters of the first line, which hold several times
SOON = 1e-3  # of a number since 1970: about two weeks
ADVICE = "make or download it again"


def refuse_transposed(head: FileHead) -> None:
    """Raise for a table with a column for each time; return for all else."""
    _, names = _header(head, BEGINNING)
    if len(names) > 2 and all(map(_is_time, names[1:4])) and not _are_ids(names[1:4]):
        found = f"line 1 has a time in each column ({sample(names[1:4])}): rows and columns have changed places"
        raise SocialxError(
            head.path,
            found,
            Command("convert", "auto", head.path, transposed=True, meta="LOCATIONS.csv", output="OUT.h5"),
        )


def turned(head: FileHead, said: str | None = None) -> Sheet:
    """The sheet with a row per time of a table with a column per time; all its readings are held in memory.

    The sensors are in the column with the name of one, else in the first that holds no times.  Other columns without
    times are left out.  said: the sign of the decimals, where the user names it.  Raises SocialxError for any other
    table, and for a cell that is no reading.
    """
    import pandas as pd

    separator, names = _header(head)
    frame = None
    if head.kind in ("parquet", "excel"):
        book = typed(head)
        if len(book) > 1:
            raise SocialxError(
                head.path, f"{len(book)} sheets ({sample(list(book))})", "save each as a file of its own"
            )
        frame = book[""]
        names = [str(name).strip() for name in (written(frame.iloc[0]) if head.kind == "excel" else frame)]
        frame = frame.set_axis(range(len(names)), axis=1)
    times = tuple(place for place, name in enumerate(names) if _is_time(name))
    others = [place for place, name in enumerate(names) if not _is_time(name)]
    if len(times) < 2 or not others:
        found = f"line 1 names no sensors and times ({sample(names)})"
        raise SocialxError(head.path, found, f"drop {Argument('transposed')}")
    first = [cells_of(line, separator)[1:] for _, line in head.lines[1 : HEAD_ROWS + 1]] if frame is None else []
    decimal, signs = said or decimal_sign(separator, first), Signs(said=said is not None)
    kind = "text" if frame is None else head.kind
    place = next((place for place in others if may_be_sensors(names[place])), others[0])
    how = (head.encoding, separator, decimal)
    sheet = Sheet(head.path, kind, tuple(names), (), times, (place,), *how, frame=frame, signs=signs)
    with closing(sheet.rows((place,), times)) as rows:
        pieces = list(rows)
    ids = [cell for piece in pieces for cell in piece.texts[0].cells()]
    if not ids or not all(ids):
        found = "rows without the name of a sensor" if ids else "no row after line 1"
        raise SocialxError(head.path, found, ADVICE)
    readings = pd.DataFrame(np.concatenate([piece.numbers for piece in pieces]).T, columns=range(1, len(ids) + 1))
    readings.insert(0, 0, [names[place] for place in times])
    values = tuple(range(1, len(ids) + 1))
    return Sheet(head.path, "turned", ("time", *ids), (0,), values, first=names[times[0]], frame=readings)


def _are_ids(names: list[str]) -> bool:
    """Whether whole numbers are no times since 1970, which come one soon after the other."""
    if not all(name.isdigit() for name in names):
        return False
    return any(not 0 < later - number < SOON * number for number, later in pairwise(map(int, names)))


def _is_time(text: str) -> bool:
    return bool(MOMENT.fullmatch(text) or EPOCH.fullmatch(text))


def _header(head: FileHead, most: int | None = None) -> tuple[str, list[str]]:
    """The separator with which line 1 has the most times, and its cells.

    most: letters of the line that are read.
    """
    line = head.lines[0][1][:most] if head.lines else ""
    found = {mark: cells_of(line, mark) for mark in SEPARATORS}
    separator = max(found, key=lambda mark: sum(map(_is_time, found[mark])))
    return separator, found[separator]
