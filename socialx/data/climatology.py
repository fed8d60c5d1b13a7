"""Climatology: what is usual for a sensor at a time of the week, the mean over the training rows."""

# Shape letters: T rows, t some of them, N sensors, C features

from __future__ import annotations

import numpy as np

from socialx.data.calendar import calendar, slots_per_day
from socialx.data.source import Source, pages
from socialx.progress import work

KINDS_OF_DAY = 3  # Monday to Friday, Saturday, Sunday
REACH = 2  # slots before and after that count too
PSEUDO_READINGS = 3.0  # of the sensor's mean, so that few readings at a time of the week do not decide alone


def climatology(source: Source, rows: slice) -> np.ndarray:
    """The usual reading per kind of day, slot of the day, sensor and feature, float32 [3,slots,N,C].

    (sum + 3 mean) / (count + 3) over the valid readings of these rows within two slots, where mean is that of the
    sensor.  A sensor without any reading has the mean of all sensors.
    """
    slots, (sensors, features) = slots_per_day(source.step_minutes), source.shape
    sums = np.zeros((KINDS_OF_DAY * slots, sensors, features))
    counts = np.zeros_like(sums)
    with work("climatology", rows.stop - rows.start, "rows") as bar:
        for some in pages(rows.start, rows.stop):
            values, valid = source.read(some)
            slot, weekday = calendar(source.seconds[some], source.step_minutes)
            key = np.maximum(weekday - 4, 0) * slots + slot
            np.add.at(sums, key, np.where(valid, values, 0.0))
            np.add.at(counts, key, valid)
            bar.advance(len(values))
    count, total = counts.sum(0), sums.sum(0)  # [N,C]
    overall = total.sum(0) / np.maximum(count.sum(0), 1)
    mean = np.where(count > 0, total / np.maximum(count, 1), overall)
    smooth_sum, smooth_count = (
        _smoothed(each.reshape(KINDS_OF_DAY, slots, sensors, features)) for each in (sums, counts)
    )
    usual = (smooth_sum + PSEUDO_READINGS * mean) / (smooth_count + PSEUDO_READINGS)
    return usual.astype(np.float32)


def _smoothed(table: np.ndarray) -> np.ndarray:
    """The sum over neighbouring slots of a day, which is a circle; table [3,slots,N,C]."""
    whole = table.copy()
    for shift in range(1, REACH + 1):
        whole += np.roll(table, shift, axis=1) + np.roll(table, -shift, axis=1)
    return whole
