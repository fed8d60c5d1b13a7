"""A forecast as a terminal table."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from socialx.forecast import COMPLETE, Forecast
from socialx.views.score_tables import reported_steps
from socialx.views.terminal import ahead, print_line

SHOWN = 10  # sensors of a table that names none
COLUMNS, COLUMNS_WITH_INTERVALS = 6, 3  # of steps, the latest of those that are reported: more do not fit into 80


def print_forecast(
    forecast: Forecast,
    whole: bool = False,
    console: Console | None = None,
    all_to: str = "Forecast.write stores all of them",
) -> None:
    """The last issue, a row per sensor: its reading and what is forecast at the reported steps, with its interval.

    whole: all sensors of the forecast, else the ten that change most.  all_to: says how to get the rest of them.
    """
    out = console or Console()
    print_line(out, forecast.headline())
    shown = forecast if whole else forecast.select(forecast.largest_changes(SHOWN))
    columns = COLUMNS if shown.interval is None else COLUMNS_WITH_INTERVALS
    steps = reported_steps(shown.values.shape[1], shown.step_minutes)[-columns:]
    table = Table(show_edge=False)
    table.add_column("sensor", no_wrap=True)
    table.add_column("reading", justify="right", no_wrap=True)
    for step in steps:
        table.add_column(ahead(step * shown.step_minutes), justify="right", no_wrap=True)
    table.add_column("history", no_wrap=True)
    now, marks = shown.at_issue()[-1], shown.marks[-1]
    for place, vdid in enumerate(shown.sensors):
        values = []
        for step in (step - 1 for step in steps):
            value = f"{shown.values[-1, step, place, 0]:.1f}"
            if shown.lower is not None and shown.upper is not None:
                low, high = shown.lower[-1, step, place, 0], shown.upper[-1, step, place, 0]
                digits = 0 if high >= 10 else 1
                value += f" ({low:.{digits}f}-{high:.{digits}f})"
            values.append(value)
        reading = "-" if np.isnan(now[place]) else f"{now[place]:.1f}"
        mark = "" if marks[place] == COMPLETE else str(marks[place])
        table.add_row(escape(vdid), reading, *values, mark)
    out.print(table)
    if rest := len(forecast.sensors) - len(shown.sensors):
        print_line(out, f"{rest} more sensors are not shown; {all_to}")
