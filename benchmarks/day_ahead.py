"""How well a zero-shot run forecasts a day ahead, beside baselines that know as much and a regression per sensor.

    python benchmarks/day_ahead.py FILE.h5 [--days 7] [--every 24h]

Forecasts begin at 06:00 on the last days of the file that are followed by a whole day.  Baselines read all rows before
each forecast.  ``ridge`` maps the anomalies of a sensor's last eight rows and of its eight nearest sensors to the
anomaly at a lead time: fitted on the rows before the first forecast, with two steps towards the absolute error.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import socialx
from benchmarks.common import head, line, opened, parser
from socialx.data.climatology import HistoricalMedians
from socialx.data.geo import nearest_neighbours, to_plane
from socialx.dataset import Columns
from socialx.scoring.references import HistoricalAverage

HOURS, LAGS, NEAR, PENALTY = (1, 2, 4, 12, 24), 8, 8, 30.0


def average(source: Columns, stop: int, times: np.ndarray) -> np.ndarray:
    """The historical average [P,N] at times, from the first rows of a file."""
    pieces = [(*source.read(slice(0, stop)), source.seconds[:stop])]
    table = HistoricalAverage(pieces, source.shape, source.step_minutes, source.calendar).table.numpy()
    slot, weekday = source.calendar.time_features(times, source.step_minutes)
    return table[weekday * (len(table) // 7) + slot][..., 0]


def ridge(anomaly: np.ndarray, near: np.ndarray, ahead: int, rows: np.ndarray) -> np.ndarray:
    """The anomaly [W,N] so many rows after some rows, from anomalies float64 [T,N] (NaN: missing) before the first."""
    known, found = np.nan_to_num(anomaly), np.empty((len(rows), anomaly.shape[1]))
    fit = np.arange(LAGS, rows[0] - ahead)

    def features(at: np.ndarray, sensor: int) -> np.ndarray:
        lags = [known[at - lag, sensor] for lag in range(LAGS)]
        return np.stack([np.ones(len(at)), *lags, *known[at][:, near[sensor]].T], axis=1)

    for sensor in range(anomaly.shape[1]):
        x, y = features(fit, sensor), anomaly[fit + ahead, sensor]
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        weight, share = np.ones(len(y)), np.zeros(x.shape[1])
        for _ in range(3):
            scaled = x * weight[:, None]
            share = np.linalg.solve(scaled.T @ x + PENALTY * np.eye(x.shape[1]), scaled.T @ y)
            weight = 1 / np.maximum(np.abs(y - x @ share), 1.0)
        found[:, sensor] = features(rows, sensor) @ share
    return found


def main() -> None:
    """Print a row per model: the MAE at the lead times, and over all steps of the day."""
    arguments = parser(__doc__, run="zero-shot", days=7, every="24h")
    arguments.add_argument("file", type=Path, metavar="FILE.h5")
    given = arguments.parse_args()
    data = opened(given.file)
    source, step_s = data.target_source, 60 * data.store.step_minutes
    last = np.datetime64(int(source.seconds[-1]) + step_s, "s").astype("M8[D]") - 1
    span = {"start": f"{last - given.days} 06:00", "end": f"{last - 1} 06:00"}
    forecast = socialx.predict(given.run, given.file, every=given.every, horizon="24h", **span)
    times, rows = (np.searchsorted(source.seconds, part.astype(np.int64)) for part in (forecast.times, forecast.origin))
    values, valid = (part[..., 0] for part in source.read(slice(0, len(source.seconds))))
    readings = np.where(valid, values, np.nan)
    truth, medians = readings[times], HistoricalMedians(source)
    origins = [(row + 1, source.seconds[ahead]) for row, ahead in zip(rows, times, strict=True)]
    forecasts = {
        "naive": pd.DataFrame(readings).ffill().to_numpy()[rows][:, None],
        "historical average": np.stack([average(source, *origin) for origin in origins]),
        "historical median": np.stack([medians.lookup(ahead, stop)[..., 0] for stop, ahead in origins]),
        given.run: forecast.values[..., 0],
    }
    leads = [int(hours * 3600 // step_s) for hours in HOURS]
    print(head(given.file.stem, *(f"{hours} h" for hours in HOURS), "all"))
    for name, numbers in forecasts.items():
        errors = np.abs(numbers - truth)
        print(line([name, *(f"{np.nanmean(errors[:, n - 1]):.3f}" for n in leads), f"{np.nanmean(errors):.3f}"]))
    issued = np.full_like(source.seconds, source.seconds[rows[0]])
    usual = data.climatology.shared.lookup(source.seconds, issued).readings[0, ..., 0]
    near = nearest_neighbours(to_plane(data.sensors.latitude, data.sensors.longitude), NEAR).index
    errors = [np.abs(usual[rows + n] + ridge(readings - usual, near, n, rows) - truth[:, n - 1]) for n in leads]
    print(line(["ridge", *(f"{np.nanmean(error):.3f}" for error in errors), ""]))


if __name__ == "__main__":
    main()
