"""Measurements on a canonical file: T rows, N sensors.  ``checks`` says what is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from socialx.core.errors import SocialxError, counted
from socialx.core.notebook import ResultRepr
from socialx.data.calendar import DAY_S, KINDS_OF_DAY, WEEKDAYS, day_kind
from socialx.data.geo import nearest_neighbours, to_plane
from socialx.files.sources.positions.locations import centre
from socialx.files.store import layout
from socialx.files.store.open_hdf5 import open_hdf5
from socialx.files.store.quantities import NOT_NEGATIVE, highest_reading
from socialx.files.store.store import Store, open_store
from socialx.files.store.time_axis import (
    JITTER_S,
    Clock,
    clock_changes,
    common_step,
    gaps,
    is_skipped,
    known_zone,
    odd_rows,
)

ADVICE = "convert the original file again"
WORST = 5  # sensors listed with the share of missing values
GAPS_LISTED = 20  # largest time gaps listed
# A sensor is stuck if one valid value is repeated for 6 hours.  Calm nights repeat for less: at most 5.2 h at METR-LA's
# cap of 70 mph, 4.3 h in PEMS-BAY-74 (71.7 mph).  Longer runs were filled in: 10.2 mph from 17:50 to 23:55, whole days
# from 00:00.  6 h finds 1 of METR-LA's 207 sensors and 26 of PEMS-BAY-74's 74; 3 h would find 2 and 31, with calm
# nights.  The highest speed in a file may be a cap, kept on a calm road from evening to morning, so the cap takes a
# day: both counts stay the same.
STUCK_HOURS, STUCK_AT_CAP_HOURS = 6.0, 24.0
# A missing-value code, such as 255, is a sensor's largest or smallest number, has at least a tenth of the observations,
# and is a quarter of the remaining range away from the next number.  A cap is nearer: METR-LA's 70 mph is 0.1 mph from
# the next speed.  A sensor with fewer than 10 further values may only switch between two speeds.
# A rarer code occurs 5 times, is among the 3 largest or smallest numbers in the network, and is farther from the next
# number than this number is from the median: the tail of an honest quantity, such as rush-hour flow, has smaller gaps.
# 0 is excluded, as closed roads have speed 0.
ODD_SHARE, ODD_GAP, ODD_OTHERS, ODD_NUMBERS, ODD_COUNT = 0.1, 0.25, 10, 3, 5
# An unusual working day has a distance ratio, weekend to working days, below 0.6: only Memorial Day in
# METR-LA (0.19; Good Friday has 0.77), and Martin Luther King Day (0.42) and Memorial Day (0.16) in PEMS-BAY-74.
UNUSUAL, HOURS, DAYS_OF_A_KIND = 0.6, 24, 2
FAR_KM, FAR_RATIO, ASTRAY_KM = 10.0, 10.0, 500.0  # METR-LA: at most 6.8 km to the next sensor
IN_JSON = """path dataset feature unit features units timezone local_zone missing imputed checksum rows declared_rows
failed_rows sensors first_timestamp last_timestamp step_minutes gaps largest_gap_minutes gap_list irregular_steps
duplicates nonexistent_rows nonexistent_rows_read first_nonexistent_read ambiguous_rows missing_share zero_share lowest
median mean highest fast_readings fast_sensors negative_readings most_negative odd_values missing_codes
sensor_missing_share sensor_mean worst_sensors dead_sensors stuck_sensors unusual_days all_missing_rows
longest_outage_steps sensor_longest_outage without_position duplicate_positions outlier_sensors centre extent_km
without_info unknown_info backward_steps wrong_epochs"""
NAMES = IN_JSON.split()  # all findings, in output order


@dataclass(frozen=True, repr=False)
class Report(ResultRepr):
    """Findings as plain numbers and texts, ready for JSON; None if unknown.  Shares are 0 to 1.

    findings: by name; each name is also an attribute.
    """

    findings: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("findings", {}):
            raise AttributeError(name)
        return self.findings[name]

    @property
    def clock(self) -> Clock:
        """The clock in the file, and for people."""
        return Clock(self.timezone, self.local_zone)

    def as_dict(self) -> dict[str, Any]:
        """Return all findings by name, with file times."""
        return {name: getattr(self, name) for name in NAMES}

    def headline(self) -> str:
        """Return a line for display: the file, the data, the size and the time span."""
        size = f"{counted(self.rows, 'row')} of {counted(self.sensors, 'sensor')}, {self.step_minutes} min apart"
        span = f"{self.clock.stored(self.first_timestamp)} .. {self.clock.stored(self.last_timestamp)}"
        return f"{self.path}, {self.dataset}, {self.feature} in {self.unit}: {size}, {span}"

    def table(self) -> list[dict[str, Any]]:
        """Return a row for display (what, value) per finding that is a number or a text, leaving out lists."""
        values = {name: value for name, value in self.as_dict().items() if not isinstance(value, list | dict)}
        return [{"what": name.replace("_", " "), "value": value} for name, value in values.items()]


def inspect(path: Path) -> Report:
    """Open a canonical file and report on times, observations and sensors."""
    return examine(open_store(path))


def examine(store: Store) -> Report:
    """Report on an open file; the path is read again for what ``Store`` leaves out."""
    parts = (_about, _stored, _times, _clock, _readings, _suspect_values, _constant_runs, _positions)
    return Report({name: finding for measure in parts for name, finding in measure(store).items()})


def examine_readings(store: Store) -> Report:
    """Report on suspect readings in an open file alone, for the checks on impossible readings and zeros."""
    return Report(_about(store) | _suspect_values(store))


def _about(store: Store) -> dict[str, Any]:
    """Return what an open file says of itself: names, units, sizes."""
    return {
        "path": str(store.path),
        "dataset": store.dataset_name,
        "feature": store.feature,
        "unit": store.unit,  # or "unknown"
        "timezone": store.timezone,
        "local_zone": store.local_zone,  # the zone people live by, if times are in UTC
        "missing": store.missing,
        "imputed": store.imputed,  # None: unknown whether zeros were replaced
        "rows": len(store.timestamps),
        "sensors": len(store.sensors.ids),
        "first_timestamp": store.timestamps[0].decode(),
        "last_timestamp": store.timestamps[-1].decode(),
        "step_minutes": store.step_minutes,
    }


def _stored(store: Store) -> dict[str, Any]:
    """Return the facts stored in the file that an open file leaves out: all features, counts, seconds."""
    with open_hdf5(store.path, ADVICE) as file:
        declared = file.attrs.get(layout.ROWS_ATTR)
        number = np.asarray([] if declared is None else declared).ravel()
        if declared is not None and (len(number) != 1 or number.dtype.kind not in "iuf" or not np.isfinite(number[0])):
            problem = f"the attribute {layout.ROWS_ATTR} is {str(declared)[:40]!a}, not a number"
            raise SocialxError("file.rows-attribute", store.path, problem, ADVICE)
        info, seconds = file.get(layout.SENSOR_INFO), file.get(layout.SECONDS)
        described = {layout.read_text(name) for name in info} if isinstance(info, h5py.Group) else set()
        stored = np.ravel(seconds[()]) if isinstance(seconds, h5py.Dataset) else None
        if stored is not None and stored.dtype.kind not in "iuf":
            raise SocialxError("file.epochs", store.path, f"{layout.SECONDS} holds {stored.dtype}, not numbers", ADVICE)
        timed = file[layout.TIMESTAMPS].asstr("utf-8", "replace")[:] != ""
        names = [layout.read_text(name) for name in file[layout.FEATURE_NAMES][:]]
        units = dict.fromkeys(names, "unknown") | layout.read_units(file)
    wrong = None
    if stored is not None:
        stored = stored[timed] if stored.shape == timed.shape else stored
        wrong = int((stored != store.seconds).sum()) if stored.shape == store.seconds.shape else stored.size
    ids = store.sensors.ids
    return {
        "checksum": store.checksum,
        "features": names,
        "units": {name: units[name] for name in names},
        "declared_rows": None if declared is None else int(number[0]),
        "failed_rows": len(timed) - int(timed.sum()),  # stored rows lacking a time, skipped elsewhere
        "without_info": [vdid for vdid in ids if vdid not in described],  # data ids missing in vd_info
        "unknown_info": sorted(described - set(ids)),  # vd_info ids missing in the data
        # Rows at or before the time of the previous row, by stored seconds if any.
        "backward_steps": int((np.diff(store.seconds if stored is None else stored) <= 0).sum()),
        "wrong_epochs": wrong,  # seconds unlike the row's time read as UTC; None if not stored
    }


def _times(store: Store) -> dict[str, Any]:
    """Return gaps, repeated times and steps off the time grid, where a crawler's clock may jitter by ``JITTER_S``."""
    common = common_step(store.seconds)
    rows, missing = gaps(store.seconds, store.timezone)
    listed = np.sort(np.argsort(-missing, kind="stable")[:GAPS_LISTED])
    return {
        "gaps": len(rows),
        "largest_gap_minutes": float(missing.max(initial=0)) / 60,  # between the rows around the gap; 0 if gapless
        "gap_list": [  # the largest gaps by time, with the rows around
            {
                "from": store.timestamps[rows[gap]].decode(),
                "to": store.timestamps[rows[gap] + 1].decode(),
                "missing_rows": int((missing[gap] - 1 - JITTER_S) // common),
            }
            for gap in listed
        ],
        "irregular_steps": len(odd_rows(store.seconds)),  # off the common step
        "duplicates": len(store.seconds) - len(np.unique(store.seconds)),  # rows with an earlier row's time
    }


def _clock(store: Store) -> dict[str, Any]:
    """Return rows at wall times that the time zone skips or repeats; None for an unknown zone."""
    if (zone := known_zone(store.timezone)) is None:
        return dict.fromkeys(("nonexistent_rows", "nonexistent_rows_read", "first_nonexistent_read", "ambiguous_rows"))
    skipped, repeated = is_skipped(store.seconds, store.timezone), np.zeros(len(store.seconds), bool)
    for moment, before, after in clock_changes(zone, np.unique(store.seconds // DAY_S)):
        repeated |= (store.seconds >= moment + after) & (store.seconds < moment + before)
    read = np.flatnonzero(skipped & store.valid.any(axis=1))
    return {
        "nonexistent_rows": int(skipped.sum()),
        "nonexistent_rows_read": len(read),  # rows with any observation
        "first_nonexistent_read": store.timestamps[read[0]].decode() if len(read) else None,
        "ambiguous_rows": int(repeated.sum()),
    }


def _readings(store: Store) -> dict[str, Any]:
    """Return missing shares, overall and by sensor, and statistics of all observations."""
    ids, readings = store.sensors.ids, store.values[store.valid]
    observed = store.valid.sum(axis=0)
    missing = 1.0 - observed / len(store.timestamps)
    total = store.values.sum(axis=0, dtype=np.float64, where=store.valid)
    worst = np.argsort(-missing, kind="stable")[:WORST]
    return {  # numbers are None if all values are missing
        "missing_share": float(1.0 - store.valid.mean()),
        "sensor_missing_share": dict(zip(ids, missing.tolist(), strict=True)),
        "sensor_mean": {vdid: float(total[i] / observed[i]) if observed[i] else None for i, vdid in enumerate(ids)},
        "worst_sensors": {ids[sensor]: float(missing[sensor]) for sensor in worst},
        "dead_sensors": [ids[sensor] for sensor in np.flatnonzero(observed == 0)],
        "lowest": float(readings.min()) if len(readings) else None,
        "median": float(np.median(readings)) if len(readings) else None,
        "mean": float(readings.mean(dtype=np.float64)) if len(readings) else None,
    }


def _suspect_values(store: Store) -> dict[str, Any]:
    """Return impossible speed counts, and numbers that may be missing-value codes.

    A code is below 0, or frequent and far from all remaining numbers.
    """
    below: Counter[float] = Counter()
    ends: Counter[float] = Counter()  # each sensor's largest and smallest numbers, with counts
    odd: dict[str, float] = {}
    most = 0  # distinct numbers per sensor
    columns = list(zip(store.sensors.ids, store.values.T, store.valid.T, strict=True))
    for vdid, values, valid in columns:
        numbers, counts = np.unique(values[valid], return_counts=True)
        frequencies = list(zip(numbers.tolist(), counts.tolist(), strict=True))
        most = max(most, len(frequencies))
        if store.feature in NOT_NEGATIVE:
            below.update({number: count for number, count in frequencies if number < 0})
        ends.update(dict(frequencies[: ODD_NUMBERS + 1] + frequencies[-ODD_NUMBERS - 1 :]))
        for index, others in ((-1, numbers[:-1]), (0, numbers[1:])):
            if len(others) < ODD_OTHERS or counts[index] < ODD_SHARE * counts.sum():
                continue
            if np.abs(others - numbers[index]).min() > ODD_GAP * (others[-1] - others[0]):
                odd[vdid] = float(numbers[index])
                break
    for number in _isolated_numbers(ends, float(np.median(store.values[store.valid]))) if most > ODD_OTHERS else []:
        odd |= {vdid: number for vdid, values, _ in columns if vdid not in odd and (values == number).any()}
    entries = {}
    for vdid, values, valid in columns:
        if vdid in odd:
            count, readings = int((values == odd[vdid]).sum()), int(valid.sum())
            entries[vdid] = {"value": odd[vdid], "readings": count, "share": count / readings}
    with open_hdf5(store.path, ADVICE) as file:
        codes = layout.read_codes(store.path, file)
    fast = (store.valid & (store.values > highest_reading(store.feature, store.unit))).sum(axis=0)
    return {
        "zero_share": float((store.values == 0).mean()),
        "highest": float(store.values.max(where=store.valid, initial=-np.inf)) if store.valid.any() else None,
        "fast_readings": int(fast.sum()),  # 0 for other quantities and unknown units
        "fast_sensors": [store.sensors.ids[sensor] for sensor in np.argsort(-fast, kind="stable") if fast[sensor]],
        "missing_codes": codes,  # further missing-value codes in the original; NaN in the file
        "negative_readings": below.total(),
        "most_negative": below.most_common(1)[0][0] if below else None,  # the most frequent negative number
        "odd_values": dict(sorted(entries.items(), key=lambda item: -item[1]["share"])),
    }


def _isolated_numbers(ends: Counter[float], median: float) -> list[float]:
    """Return the numbers in the whole network that may be missing-value codes, most frequent first.

    ends: the ``ODD_NUMBERS`` + 1 largest and smallest numbers per sensor.  median: over all observations.
    """
    isolated: list[float] = []
    for numbers in (sorted(ends, reverse=True), sorted(ends)):
        inner = numbers[-1 - ODD_NUMBERS]  # the innermost candidate
        for count in range(1, ODD_NUMBERS + 1):
            far, rest = numbers[count - 1], numbers[count]
            if abs(far - rest) > max(abs(rest - median), ODD_GAP * abs(rest - inner)):
                isolated += [number for number in numbers[:count] if number and ends[number] >= ODD_COUNT]
    return sorted(set(isolated), key=lambda number: -ends[number])


def _true_runs(flags: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return every run of True in the columns of a bool [T,N]: sensor, first row, number of rows; each [runs].

    Runs are sorted by sensor and time.  Columns are joined with a False in between: O(T N) bytes.
    """
    rows, count = flags.shape
    line = np.zeros(count * (rows + 1) + 1, bool)
    line[1:].reshape(count, rows + 1)[:, :rows] = flags.T
    edges = np.flatnonzero(line[1:] != line[:-1])
    sensor, first = np.divmod(edges[::2], rows + 1)
    return sensor, first, edges[1::2] - edges[::2]


def _constant_runs(store: Store) -> dict[str, Any]:
    """Return outages of all sensors and of single sensors, sensors that repeat a value, and unusual working days."""
    dark = np.logical_not(store.valid.any(axis=1))
    sensor, first, rows = _true_runs(~store.valid)
    worst = None
    if len(rows):
        run = int(rows.argmax())
        timestamp = store.timestamps[first[run]].decode()
        worst = {"sensor": store.sensors.ids[sensor[run]], "steps": int(rows[run]), "first_timestamp": timestamp}
    return {
        "all_missing_rows": int(dark.sum()),
        "longest_outage_steps": int(_true_runs(dark[:, None])[2].max(initial=0)),
        "sensor_longest_outage": worst,
        "stuck_sensors": stuck_sensors(store),
        "unusual_days": _unusual_days(store),
    }


def _unusual_days(store: Store) -> dict[str, str]:
    """Return the working days with a course far nearer to Saturdays or Sundays, each with the nearer weekday.

    The course is the network mean per hour; a kind of day has the median course over all other days of this kind.
    """
    local = store.clock.local(store.seconds)
    days, rows = np.unique(local // DAY_S, return_inverse=True)
    cells = rows * HOURS + local % DAY_S * HOURS // DAY_S
    totals, counts = (np.zeros(len(days) * HOURS) for _ in range(2))
    np.add.at(totals, cells, np.where(store.valid, store.values, 0).sum(axis=1, dtype=np.float64))
    np.add.at(counts, cells, store.valid.sum(axis=1))
    whole = (counts > 0).reshape(-1, HOURS).all(axis=1)
    courses = (totals / np.maximum(counts, 1)).reshape(-1, HOURS)[whole]
    dates = days[whole]
    kinds = np.array([day_kind(weekday) for weekday in ((dates + 3) % 7).tolist()])
    unusual = {}
    for index in np.flatnonzero(kinds == 0):
        others = [courses[(kinds == kind) & (np.arange(len(kinds)) != index)] for kind in range(KINDS_OF_DAY)]
        if min(map(len, others)) < DAYS_OF_A_KIND:
            break
        far = [np.abs(courses[index] - np.median(other, axis=0)).mean() for other in others]
        like = int(np.argmin(far))
        if far[like] < UNUSUAL * far[0]:
            unusual[str(np.datetime64(int(dates[index]), "D"))] = WEEKDAYS[4 + like]
    return unusual


def stuck_sensors(store: Store) -> dict[str, float]:
    """Return id -> hours in the longest run with a repeated valid value, longest first; a time gap ends a run."""
    values, valid = store.values, store.valid
    same = (values[1:] == values[:-1]) & valid[1:] & valid[:-1]
    same &= (np.abs(np.diff(store.seconds) - common_step(store.seconds)) <= JITTER_S)[:, None]
    sensor, first, repeats = _true_runs(same)
    hours = (repeats + 1) * store.step_minutes / 60
    at_cap = values[first, sensor] == values.max(where=valid, initial=-np.inf)
    long = np.flatnonzero(hours >= np.where(at_cap, STUCK_AT_CAP_HOURS, STUCK_HOURS))
    longest: dict[str, float] = {}
    for run in long[np.argsort(-hours[long], kind="stable")]:
        longest.setdefault(store.sensors.ids[sensor[run]], float(hours[run]))
    return longest


def _positions(store: Store) -> dict[str, Any]:
    """Return sensors with missing, shared or far locations.

    Far is more than 10 km and 10 median distances from the next location, or more than 500 km from the median
    location.  Distances are between distinct locations: two sensors gone astray together are as far off as one sensor.
    """
    sensors, ids = store.sensors, np.array(store.sensors.ids)
    degrees = np.stack([sensors.latitude, sensors.longitude], axis=1)
    is_located = np.isfinite(degrees).all(axis=1)
    locations, index, count = np.unique(degrees[is_located], axis=0, return_inverse=True, return_counts=True)
    xy = to_plane(*locations.T)
    gap = nearest_neighbours(xy, 1).distance[:, 0]
    far = (gap > FAR_KM) & (gap > FAR_RATIO * np.median(gap)) if len(xy) else np.zeros(0, bool)
    if len(xy):
        far |= np.hypot(*(xy - np.median(xy[index], axis=0)).T) > ASTRAY_KM
    middle = centre(sensors.latitude, sensors.longitude)
    return {
        "centre": None if middle is None else list(middle),  # latitude and longitude
        "without_position": ids[~is_located].tolist(),
        "duplicate_positions": [ids[is_located][index == shared].tolist() for shared in np.flatnonzero(count > 1)],
        "outlier_sensors": ids[is_located][far[index]].tolist(),
        "extent_km": np.ptp(xy, axis=0).tolist() if len(xy) else None,  # width and height
    }
