"""How wrong the usual readings are on holidays, each as a day like others and as the weekday that it resembles.

    python benchmarks/climatology.py FILE.h5 [FILE.h5 ...] --holidays US

The MAE in the unit of the file of what was usual an hour before, by all days before; no model is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import head, line, parser
from socialx.data.calendar import Calendar
from socialx.data.climatology import PastDays
from socialx.data.source import RowSource
from socialx.dataset import Columns, open_dataset
from socialx.files.holidays import holidays_of


def error(source: RowSource, rows: slice) -> float:
    """The MAE of the climatology on a day."""
    values, valid = source.read(rows)
    seconds = source.seconds[rows]
    usual = PastDays(source, most=0).at(seconds, seconds - 3600, (None,)).readings[0]
    return float(np.abs(usual - values)[valid].mean(dtype=np.float64))


def of_holidays(path: Path, named: str) -> Iterator[list[str]]:
    """A row per holiday of a file: its date and both errors."""
    names = {"targets": ("avg_speed",), "inputs": None, "history": 12, "horizon": 12, "split": "canonical"}
    data = open_dataset(path, device=torch.device("cpu"), holidays=holidays_of(named), **names)  # type: ignore[arg-type]
    for day in data.holidays_in_it:
        first, last = np.searchsorted(data.calendar.day(data.store.seconds), [day, day + 1])
        sources = (Columns(data.target_source.stores, calendar) for calendar in (Calendar(), data.calendar))
        yield [str(np.datetime64(day, "D")), *(f"{error(each, slice(first, last)):.2f}" for each in sources)]


def main() -> None:
    """Print a table for each file."""
    arguments = parser(__doc__)
    arguments.add_argument("files", nargs="+", type=Path, metavar="FILE.h5")
    arguments.add_argument("--holidays", required=True, metavar="COUNTRY|FILE.csv")
    given = arguments.parse_args()
    for path in given.files:
        print(head(f"{path.stem}: holiday", "as a day like others", "as the weekday that it resembles"))
        for row in of_holidays(path, given.holidays):
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
