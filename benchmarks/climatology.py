"""How good the climatology alone is as a forecast, by its constants and the days that are known: no model is trained.

    python benchmarks/climatology.py FILE.h5 [FILE.h5 ...] [--holidays US]

The MAE in the unit of the file, over the last third of the training rows, of what was usual on the day of issue, an
hour ahead.  No validation and no test row is read.  With --holidays it is that on each holiday of the files, wherever
it is, as a day like others and as the weekday that it resembles; nothing is chosen there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import head, line, opened, parser
from socialx.data import climatology
from socialx.data.calendar import Calendar
from socialx.data.climatology import RollingClimatology
from socialx.data.source import RowSource
from socialx.dataset import Columns

DAYS = (1, 2, 3, 7, 14, 28, None)
TRIED = {
    "HALF_LIFE_DAYS": (7.0, 14.0, 28.0, 56.0),
    "REACH_MINUTES": (10, 20, 30),
    "OF_SENSOR": (0.1, 0.5, 3.0),
    "OF_OTHERS": (0.0, 2.0, 4.0, 8.0),
}
EVERY = 2 * 288  # rows, of which the first 288 are scored


def error(source: RowSource, rows: range, days: int | None) -> float:
    """The MAE of the climatology of so many days, None: of all."""
    past, total, count = RollingClimatology(source, max_days=days or 0), 0.0, 0
    for first in rows:
        piece = slice(first, min(first + 288, rows.stop))
        values, valid = source.read(piece)
        seconds = source.seconds[piece]
        climatology = past.lookup(seconds, seconds - 3600, (days,)).readings[0]
        total += float(np.abs(climatology - values)[valid].sum(dtype=np.float64))
        count += int(valid.sum())
    return total / count


def tried() -> Iterator[tuple[str, dict[str, float]]]:
    """The constants as they are, and each of the others in their place."""
    yield "as it is", {}
    for name, values in TRIED.items():
        for value in values:
            if value != getattr(climatology, name):
                yield f"{name} {value:g}", {name: value}


def table(path: Path) -> Iterator[Sequence[str]]:
    """A row per choice."""
    data = opened(path)
    end = data.windows.training_rows.stop if data.windows else 0
    rows = range(2 * end // 3, end, EVERY)
    yield [f"{path.stem}: days known", *("all" if days is None else str(days) for days in DAYS)]
    for name, constants in tried():
        before = {key: getattr(climatology, key) for key in constants}
        vars(climatology).update(constants)
        yield [name, *(f"{error(data.target_source, rows, days):.3f}" for days in DAYS)]
        vars(climatology).update(before)


def of_holidays(path: Path, named: str) -> Iterator[Sequence[str]]:
    """A row per holiday."""
    data = opened(path, named)
    yield [f"{path.stem}: holiday", "as a day like others", "as the weekday that it resembles"]
    for day in data.file_holidays:
        first, last = np.searchsorted(data.calendar.day(data.store.seconds), [day, day + 1])
        sources = (Columns(data.target_source.stores, calendar) for calendar in (Calendar(), data.calendar))
        yield [str(np.datetime64(day, "D")), *(f"{error(each, range(first, last, 288), None):.2f}" for each in sources)]


def main() -> None:
    """Print a table for each file."""
    arguments = parser(__doc__)
    arguments.add_argument("files", nargs="+", type=Path, metavar="FILE.h5")
    arguments.add_argument("--holidays", metavar="COUNTRY|FILE.csv")
    given = arguments.parse_args()
    for path in given.files:
        rows = of_holidays(path, given.holidays) if given.holidays else table(path)
        print(head(*next(rows)))
        for row in rows:
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
