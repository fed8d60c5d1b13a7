"""Which columns of a table hold its times: those that the user names, else those that are written as times."""

from __future__ import annotations

import re
from itertools import combinations

from socialx.errors import Argument, sample
from socialx.files.convert_options import Request
from socialx.files.formats.moments import EPOCH, MOMENT, ONLY_CLOCK, ONLY_DATE, Times
from socialx.files.formats.words import HOUR, MIDNIGHT, OF_ROW, SINCE_1970, names_rows

MANY = 100  # columns, of which pairs are looked at
Rows = list[list[str]]


def times_of(
    names: list[str], rows: Rows, columns: list[list[str]], request: Request
) -> tuple[tuple[int, ...], tuple[str, str] | None]:
    """The column of the times, or those of dates and of times of day, none where there is none; and what is unclear.

    columns: the filled cells of each.
    """
    times, unclear = _times_said(names, rows, request)
    if times is not None:
        return times, unclear
    ways = _times(names, columns, rows) or _times(names, columns, rows, mostly=True)
    if len(ways) > 1:
        called = [" ".join(str(Argument("time_column", names[each])) for each in way) for way in ways[:2]]
        what = f"several columns of times ({sample([names[way[0]] for way in ways])})"
        unclear = what, f"say which: {' or '.join(called)}"
    return (ways[0] if ways else ()), unclear


def _times_said(
    names: list[str], rows: Rows, request: Request
) -> tuple[tuple[int, ...] | None, tuple[str, str] | None]:
    """The columns of times as the user names them, or the one or two that are written as the user says.

    None where the user says nothing of them; with what is unclear where several pairs are written so.
    """
    if request.time_column:
        found = [names.index(name) for name in request.time_column if name in names]
        return (tuple(found) if len(found) == len(request.time_column) else ()), None
    if request.time_format is None:
        return None, None
    times, few = Times.of(request.time_format), [cells for cells in rows if any(cells)]

    def fits(*places: int) -> bool:
        return bool(few) and times.are([" ".join(cells[place] for place in places) for cells in few])

    single = [(place,) for place in range(len(names)) if fits(place)]
    if single:
        return min(single, key=lambda each: (bool(OF_ROW.fullmatch(names[each[0]])), each)), None
    others = {*request.sensor_column, *request.drop, *request.channels}
    filled = [place for place in range(min(len(names), MANY)) if any(letter.isdigit() for letter in rows[0][place])]
    filled = [place for place in filled if names[place] not in others]
    pairs = [pair for one, other in combinations(filled, 2) for pair in ((one, other), (other, one)) if fits(*pair)]
    if len(named := [pair for pair in pairs if HOUR.fullmatch(names[pair[1]])]) == 1:
        return named[0], None
    if len(pairs) < 2:
        return next(iter(pairs), None), None
    called = [[names[place] for place in pair] for pair in pairs[:2]]
    either = " or ".join(" ".join(str(Argument("time_column", name)) for name in pair) for pair in called)
    return pairs[0], (f"several pairs of columns that are written as {request.time_format}", either)


def _times(names: list[str], columns: list[list[str]], rows: Rows, *, mostly: bool = False) -> list[tuple[int, ...]]:
    """The column of the times, or those of dates and of times of day; several where no name says which.

    columns: the cells of each that are filled.  mostly: the first cell and half of all are enough; the reader says
    which are wrong.
    """

    def holding(form: re.Pattern[str]) -> list[int]:
        if mostly:
            first = [place for place, cell in enumerate(rows[0]) if form.fullmatch(cell)]
            full = [
                place for place in first if 2 * sum(1 for cell in columns[place] if form.fullmatch(cell)) >= len(rows)
            ]
        else:
            full = [place for place, cells in enumerate(columns) if len(cells) == len(rows)]
            full = [place for place in full if all(map(form.fullmatch, columns[place]))]
        return sorted(full, key=lambda place: bool(OF_ROW.fullmatch(names[place])))

    def clocks() -> list[int]:
        hours = holding(re.compile("[01]?[0-9]|2[0-4]"))
        return [*holding(ONLY_CLOCK), *(place for place in hours if HOUR.fullmatch(names[place]))][:1]

    def rank(way: tuple[int, ...]) -> tuple[bool, bool]:
        return bool(OF_ROW.fullmatch(names[way[0]])), not SINCE_1970.fullmatch(names[way[0]])

    moments, hours = holding(MOMENT), clocks() if len(rows) > 1 else []
    dated = [place for place in moments if hours and all(map(MIDNIGHT.fullmatch, columns[place]))]
    ways: list[tuple[int, ...]] = [(place,) for place in moments if place not in dated]
    dates = [*dated, *holding(ONLY_DATE)]
    if dates and (hours or not ways):
        ways.append((dates[0], *(hours or clocks())))
    ways += [
        (place,)
        for place in holding(EPOCH)
        if SINCE_1970.fullmatch(names[place]) or (place == 0 and not ways and not names_rows(names[place]))
    ]
    ways.sort(key=rank)
    named = ways and rank(ways[0]) != (False, True)
    return ways[:1] if named else [way for way in ways if rank(way) == rank(ways[0])]
