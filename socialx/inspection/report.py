"""What is in a canonical file, measured.  T rows, N sensors; ``checks`` says what of it is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from socialx.core.errors import SocialxError, counted
from socialx.core.notebook import ResultRepr
from socialx.data.calendar import DAY_S, KINDS_OF_DAY, WEEKDAYS, Calendar, day_kind
from socialx.data.geo import nearest_neighbours, to_plane
from socialx.files.sources.positions.locations import centre
from socialx.files.store.layout import (
    FEATURE_NAMES,
    ROWS_ATTR,
    SECONDS,
    SENSOR_INFO,
    TIMESTAMPS,
    Sensors,
    read_codes,
    read_text,
    read_units,
)
from socialx.files.store.open_hdf5 import open_hdf5
from socialx.files.store.quantities import NOT_NEGATIVE
from socialx.files.store.store import Store, open_store
from socialx.files.store.time_axis import JITTER_S, clock_changes, common_step, gaps, irregular, known_zone, skips

ADVICE = "convert it again"
WORST = 5  # sensors listed with their share of missing readings
GAPS_LISTED = 20  # time gaps listed with their ends, the largest ones
# A sensor is stuck when it repeats one valid value exactly for 6 hours.  Calm nights repeat too, but less: 5.2 h at
# most at METR-LA's cap of 70 mph, 4.3 h in PEMS-BAY-74 (71.7 mph).  Longer ones were filled in:
# 10.2 mph from 17:50 to 23:55, whole days from 00:00.  6 h finds 1 of METR-LA's 207 sensors and 26 of PEMS-BAY-74's
# 74; 3 h would find 2 and 31, calm nights among them.  The highest speed of the whole file may be a cap, which a calm
# road may keep to from evening to morning, so there it takes a day: that changes neither count, it spares other files.
STUCK_HOURS, STUCK_AT_CAP_HOURS = 6.0, 24.0
# A number that stands for no reading, such as 255, is the largest or smallest of a sensor.  It is in a tenth of its
# readings or more, and a quarter of the range of all others away from them.  A cap is near them: METR-LA's 70 mph is
# 0.1 mph from the next.  A sensor with fewer than 10 other values may only switch between two speeds.
# A rarer one is there 5 times, among the 3 largest or smallest of the whole network.  It is then also farther from all
# others than these are from the median: the tail of an honest quantity, such as flow in rush hours, has no such gap.
# 0 is none of these, as a closed road has it too.
ODD_SHARE, ODD_GAP, ODD_OTHERS, ODD_NUMBERS, ODD_COUNT = 0.1, 0.25, 10, 3, 5
# A working day that is so much nearer to Saturdays or Sundays than to working days.  0.6 finds Memorial Day alone in
# METR-LA (0.19; Good Friday has 0.77), and Martin Luther King Day (0.42) and Memorial Day (0.16) in PEMS-BAY-74.
UNUSUAL, HOURS, DAYS_OF_A_KIND = 0.6, 24, 2
FAR_KM, FAR_RATIO, ASTRAY_KM = 10.0, 10.0, 500.0  # METR-LA's loneliest sensor is 6.8 km from the next
IN_JSON = """path dataset feature unit features units timezone local_zone missing imputed checksum rows declared_rows
failed_rows sensors first_timestamp last_timestamp step_minutes gaps largest_gap_minutes gap_list irregular_steps
duplicates nonexistent_rows nonexistent_rows_read first_nonexistent_read ambiguous_rows missing_share zero_share lowest
median mean highest fast_readings fast_sensors negative_readings most_negative odd_values missing_codes
sensor_missing_share sensor_mean worst_sensors dead_sensors stuck_sensors unusual_days all_missing_rows
longest_outage_steps sensor_longest_outage without_position duplicate_positions outlier_sensors centre extent_km
without_info unknown_info backward_steps wrong_epochs"""
NAMES = IN_JSON.split()  # of all findings, in this order


@dataclass(frozen=True, repr=False)
class Report(ResultRepr):
    """Findings as plain numbers and texts, ready for JSON; None where the file does not say.  Shares are 0 to 1.

    sections: findings by their names, which are attributes of the report too.
    """

    sections: dict[str, dict[str, Any]]

    def __getattr__(self, name: str) -> Any:
        for section in self.__dict__.get("sections", {}).values():
            if name in section:
                return section[name]
        raise AttributeError(name)

    def as_dict(self) -> dict[str, Any]:
        """All findings by their names."""
        return {name: getattr(self, name) for name in NAMES}

    def headline(self) -> str:
        """The file, its size and its span."""
        size = f"{counted(self.rows, 'row')} of {counted(self.sensors, 'sensor')}, {self.step_minutes} min apart"
        span = f"{self.first_timestamp} .. {self.last_timestamp}"
        return f"{self.path}, {self.dataset}, {self.feature} in {self.unit}: {size}, {span}"

    def table(self) -> list[dict[str, Any]]:
        """All numbers and texts that are not lists."""
        plain = {name: value for name, value in self.as_dict().items() if not isinstance(value, list | dict)}
        return [{"what": name.replace("_", " "), "value": value} for name, value in plain.items()]


def inspect(path: Path) -> Report:
    """Load the speeds of a canonical file and look at times, readings and sensors."""
    return examine(open_store(path))


def examine(store: Store) -> Report:
    """The same of a file that is open already; what a ``Store`` does not keep is read from its path again."""
    return Report(
        {
            "file": _file(store),
            "times": _times(store) | _clock(store),
            "readings": _readings(store) | _doubtful(store),
            "runs": _runs_of_readings(store),
            "positions": _positions(store.sensors),
        }
    )


def _file(store: Store) -> dict[str, Any]:
    """What the file says of itself: names, units, counts, seconds."""
    with open_hdf5(store.path, ADVICE) as file:
        declared = file.attrs.get(ROWS_ATTR)
        codes = read_codes(store.path, file)
        number = np.asarray([] if declared is None else declared).ravel()
        if declared is not None and (len(number) != 1 or number.dtype.kind not in "iuf" or not np.isfinite(number[0])):
            what = f"its attribute {ROWS_ATTR} is {str(declared)[:40]!a}, not a number"
            raise SocialxError(store.path, what, ADVICE)
        info, seconds = file.get(SENSOR_INFO), file.get(SECONDS)
        described = {read_text(name) for name in info} if isinstance(info, h5py.Group) else set()
        stored = seconds[()].ravel() if isinstance(seconds, h5py.Dataset) else None
        if stored is not None and stored.dtype.kind not in "iuf":
            raise SocialxError(store.path, f"{SECONDS} holds {stored.dtype}, not numbers", ADVICE)
        timed = file[TIMESTAMPS].asstr("utf-8", "replace")[:] != ""
        names = [read_text(name) for name in file[FEATURE_NAMES][:]]
        units = dict.fromkeys(names, "unknown") | read_units(file)
    wrong = None
    if stored is not None:
        stored = stored[timed] if stored.shape == timed.shape else stored
        wrong = int((stored != store.seconds).sum()) if stored.shape == store.seconds.shape else stored.size
    ids = store.sensors.ids
    return {
        "path": str(store.path),
        "dataset": store.dataset_name,
        "feature": store.feature,
        "unit": store.unit,  # or "unknown"
        "features": names,
        "units": {name: units[name] for name in names},
        "timezone": store.timezone,
        "local_zone": store.local_zone,  # by whose clock people live, beside times in UTC
        "missing": store.missing,
        "missing_codes": codes,  # further numbers that stood for no reading when the file was made; they are NaN in it
        "imputed": store.imputed,  # None: whether zeros had been replaced cannot be told
        "checksum": store.checksum,
        "rows": len(store.timestamps),
        "declared_rows": None if declared is None else int(number[0]),
        "failed_rows": len(timed) - int(timed.sum()),  # stored rows without a time, which are left out of all else
        "sensors": len(ids),
        "first_timestamp": store.timestamps[0].decode(),
        "last_timestamp": store.timestamps[-1].decode(),
        "step_minutes": store.step_minutes,
        "without_info": [vdid for vdid in ids if vdid not in described],  # ids of the data that vd_info does not have
        "unknown_info": sorted(described - set(ids)),  # ids of vd_info that the data does not have
        # Rows that are not later than the row before, by the stored seconds where there are some.
        "backward_steps": int((np.diff(store.seconds if stored is None else stored) <= 0).sum()),
        "wrong_epochs": wrong,  # stored seconds that are not their row's time read as UTC; None: none are stored
    }


def _times(store: Store) -> dict[str, Any]:
    """Gaps, repeated times and steps that fit no grid; a crawler's clock may jitter by ``JITTER_S``."""
    common = common_step(store.seconds)
    places, missing = gaps(store.seconds, store.timezone)
    listed = np.sort(np.argsort(-missing, kind="stable")[:GAPS_LISTED])
    return {
        "gaps": len(places),
        "largest_gap_minutes": float(missing.max(initial=0)) / 60,  # between the two rows around it; 0 without a gap
        "gap_list": [  # the largest ones in order of time, with the rows around them
            {
                "from": store.timestamps[places[gap]].decode(),
                "to": store.timestamps[places[gap] + 1].decode(),
                "missing_rows": int((missing[gap] - 1 - JITTER_S) // common),
            }
            for gap in listed
        ],
        "irregular_steps": len(irregular(store.seconds)),  # that are not a multiple of the common step
        "duplicates": len(store.seconds) - len(np.unique(store.seconds)),  # rows whose time an earlier row has
    }


def _clock(store: Store) -> dict[str, Any]:
    """Rows whose wall time the clocks of the time zone skip or show twice; None without a known zone."""
    if (zone := known_zone(store.timezone)) is None:
        return dict.fromkeys(("nonexistent_rows", "nonexistent_rows_read", "first_nonexistent_read", "ambiguous_rows"))
    skipped, repeated = skips(store.seconds, store.timezone), np.zeros(len(store.seconds), bool)
    for moment, before, after in clock_changes(zone, np.unique(store.seconds // DAY_S)):
        repeated |= (store.seconds >= moment + after) & (store.seconds < moment + before)
    read = np.flatnonzero(skipped & store.valid.any(axis=1))
    return {
        "nonexistent_rows": int(skipped.sum()),
        "nonexistent_rows_read": len(read),  # of these, rows with any reading
        "first_nonexistent_read": store.timestamps[read[0]].decode() if len(read) else None,
        "ambiguous_rows": int(repeated.sum()),
    }


def _readings(store: Store) -> dict[str, Any]:
    """How much is missing, of all and of each sensor, which readings there are, and speeds that no road has."""
    ids, readings = store.sensors.ids, store.values[store.valid]
    observed = store.valid.sum(axis=0)
    missing = 1.0 - observed / len(store.timestamps)
    total = store.values.sum(axis=0, dtype=np.float64, where=store.valid)
    worst = np.argsort(-missing, kind="stable")[:WORST]
    fast = (store.valid & (store.values > store.largest)).sum(axis=0)
    return {  # numbers are None where no reading is valid
        "missing_share": float(1.0 - store.valid.mean()),
        "zero_share": float((store.values == 0).mean()),
        "sensor_missing_share": dict(zip(ids, missing.tolist(), strict=True)),
        "sensor_mean": {vdid: float(total[i] / observed[i]) if observed[i] else None for i, vdid in enumerate(ids)},
        "worst_sensors": {ids[place]: float(missing[place]) for place in worst},
        "dead_sensors": [ids[place] for place in np.flatnonzero(observed == 0)],
        "lowest": float(readings.min()) if len(readings) else None,
        "median": float(np.median(readings)) if len(readings) else None,
        "mean": float(readings.mean(dtype=np.float64)) if len(readings) else None,
        "highest": float(readings.max()) if len(readings) else None,
        "fast_readings": int(fast.sum()),  # 0 for other quantities and unknown units
        "fast_sensors": [ids[place] for place in np.argsort(-fast, kind="stable") if fast[place]],
    }


def _doubtful(store: Store) -> dict[str, Any]:
    """Numbers that may stand for no reading: below 0, or far from all others and frequent."""
    below: Counter[float] = Counter()
    ends: Counter[float] = Counter()  # the largest and smallest numbers of each sensor, and how often they are there
    odd: dict[str, float] = {}
    most = 0  # different numbers of a sensor
    columns = list(zip(store.sensors.ids, store.values.T, store.valid.T, strict=True))
    for vdid, values, valid in columns:
        numbers, counts = np.unique(values[valid], return_counts=True)
        often = list(zip(numbers.tolist(), counts.tolist(), strict=True))
        most = max(most, len(often))
        if store.feature in NOT_NEGATIVE:
            below.update({number: count for number, count in often if number < 0})
        ends.update(dict(often[: ODD_NUMBERS + 1] + often[-ODD_NUMBERS - 1 :]))
        for place, others in ((-1, numbers[:-1]), (0, numbers[1:])):
            if len(others) < ODD_OTHERS or counts[place] < ODD_SHARE * counts.sum():
                continue
            if np.abs(others - numbers[place]).min() > ODD_GAP * (others[-1] - others[0]):
                odd[vdid] = float(numbers[place])
                break
    for number in _far_off(ends, float(np.median(store.values[store.valid]))) if most > ODD_OTHERS else []:
        odd |= {vdid: number for vdid, values, _ in columns if vdid not in odd and (values == number).any()}
    entries = {}
    for vdid, values, valid in columns:
        if vdid in odd:
            count, readings = int((values == odd[vdid]).sum()), int(valid.sum())
            entries[vdid] = {"value": odd[vdid], "readings": count, "share": count / readings}
    return {
        "negative_readings": below.total(),
        "most_negative": below.most_common(1)[0][0] if below else None,  # the most frequent of them
        "odd_values": dict(sorted(entries.items(), key=lambda item: -item[1]["share"])),
    }


def _far_off(ends: Counter[float], median: float) -> list[float]:
    """The numbers of a whole network that may stand for no reading, the most frequent first.

    ends: the ``ODD_NUMBERS`` + 1 largest and smallest numbers of each sensor.  median: of all readings.
    """
    found: list[float] = []
    for numbers in (sorted(ends, reverse=True), sorted(ends)):
        inner = numbers[-1 - ODD_NUMBERS]  # with other such numbers behind it
        for many in range(1, ODD_NUMBERS + 1):
            far, rest = numbers[many - 1], numbers[many]
            if abs(far - rest) > max(abs(rest - median), ODD_GAP * abs(rest - inner)):
                found += [number for number in numbers[:many] if number and ends[number] >= ODD_COUNT]
    return sorted(set(found), key=lambda number: -ends[number])


def _runs(flags: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every run of neighbouring True values in the columns of a bool [T,N]: sensor, first row, rows; each [runs].

    Sensor by sensor in order of time.  The columns stand in one line with a False between them: O(T N) bytes.
    """
    rows, count = flags.shape
    line = np.zeros(count * (rows + 1) + 1, bool)
    line[1:].reshape(count, rows + 1)[:, :rows] = flags.T
    edges = np.flatnonzero(line[1:] != line[:-1])
    sensor, first = np.divmod(edges[::2], rows + 1)
    return sensor, first, edges[1::2] - edges[::2]


def _runs_of_readings(store: Store) -> dict[str, Any]:
    """Outages of all sensors and of one, and sensors that repeat one value."""
    dark = np.logical_not(store.valid.any(axis=1))
    sensor, first, rows = _runs(~store.valid)
    worst = None
    if len(rows):
        run = int(rows.argmax())
        timestamp = store.timestamps[first[run]].decode()
        worst = {"sensor": store.sensors.ids[sensor[run]], "steps": int(rows[run]), "first_timestamp": timestamp}
    return {
        "all_missing_rows": int(dark.sum()),
        "longest_outage_steps": int(_runs(dark[:, None])[2].max(initial=0)),
        "sensor_longest_outage": worst,
        "stuck_sensors": stuck_sensors(store),
        "unusual_days": _unusual_days(store),
    }


def _unusual_days(store: Store) -> dict[str, str]:
    """The working days whose course is far nearer to that of Saturdays or Sundays, each with the nearer one.

    The course of a day is the mean reading of the network in each hour, and that of a kind of day the median of
    the others of this kind.
    """
    local = Calendar(known_zone(store.local_zone)).local(store.seconds)
    days, first = local // DAY_S, int(local.min()) // DAY_S
    cells = (days - first) * HOURS + local % DAY_S * HOURS // DAY_S
    totals, counts = (np.zeros((int(days.max()) - first + 1) * HOURS) for _ in range(2))
    np.add.at(totals, cells, np.where(store.valid, store.values, 0).sum(axis=1, dtype=np.float64))
    np.add.at(counts, cells, store.valid.sum(axis=1))
    whole = (counts > 0).reshape(-1, HOURS).all(axis=1)
    courses = (totals / np.maximum(counts, 1)).reshape(-1, HOURS)[whole]
    dates = first + np.flatnonzero(whole)
    kinds = np.array([day_kind(weekday) for weekday in ((dates + 3) % 7).tolist()])
    found = {}
    for place in np.flatnonzero(kinds == 0):
        others = [courses[(kinds == kind) & (np.arange(len(kinds)) != place)] for kind in range(KINDS_OF_DAY)]
        if min(map(len, others)) < DAYS_OF_A_KIND:
            break
        far = [np.abs(courses[place] - np.median(other, axis=0)).mean() for other in others]
        like = int(np.argmin(far))
        if far[like] < UNUSUAL * far[0]:
            found[str(np.datetime64(int(dates[place]), "D"))] = WEEKDAYS[4 + like]
    return found


def stuck_sensors(store: Store) -> dict[str, float]:
    """id -> hours of the longest run of one valid value, the longest first; a time gap ends a run."""
    values, valid = store.values, store.valid
    same = (values[1:] == values[:-1]) & valid[1:] & valid[:-1]
    same &= (np.abs(np.diff(store.seconds) - common_step(store.seconds)) <= JITTER_S)[:, None]
    sensor, first, repeats = _runs(same)
    hours = (repeats + 1) * store.step_minutes / 60
    at_cap = values[first, sensor] == values.max(where=valid, initial=-np.inf)
    long = np.flatnonzero(hours >= np.where(at_cap, STUCK_AT_CAP_HOURS, STUCK_HOURS))
    longest: dict[str, float] = {}
    for run in long[np.argsort(-hours[long], kind="stable")]:
        longest.setdefault(store.sensors.ids[sensor[run]], float(hours[run]))
    return longest


def _positions(sensors: Sensors) -> dict[str, Any]:
    """Sensors nowhere, in one place, or far from all others.

    Far is more than 10 km and 10 median distances from the next place, or more than 500 km from the median place.
    Places, not sensors, are compared: two sensors that went astray together are as far off as one.
    """
    ids = np.array(sensors.ids)
    degrees = np.stack([sensors.latitude, sensors.longitude], axis=1)
    known = np.isfinite(degrees).all(axis=1)
    places, place, count = np.unique(degrees[known], axis=0, return_inverse=True, return_counts=True)
    xy = to_plane(*places.T)
    gap = nearest_neighbours(xy, 1).distance[:, 0]
    far = (gap > FAR_KM) & (gap > FAR_RATIO * np.median(gap)) if len(xy) else np.zeros(0, bool)
    if len(xy):
        far |= np.hypot(*(xy - np.median(xy[place], axis=0)).T) > ASTRAY_KM
    middle = centre(sensors.latitude, sensors.longitude)
    return {
        "centre": None if middle is None else list(middle),  # latitude and longitude
        "without_position": ids[~known].tolist(),
        "duplicate_positions": [ids[known][place == shared].tolist() for shared in np.flatnonzero(count > 1)],
        "outlier_sensors": ids[known][far[place]].tolist(),
        "extent_km": np.ptp(xy, axis=0).tolist() if len(xy) else None,  # width and height
    }
