"""What the name of a column says: a quantity, its unit, and the lane of a sensor; and lanes combined to sensors.

t rows of one piece, M lanes, N sensors, F features.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from socialx.errors import Message, SocialxError, counted
from socialx.files.hdf5_layout import Block, is_code
from socialx.files.locations import match_key
from socialx.files.quantities import NOT_NEGATIVE, SPEED, SPEED_UNITS
from socialx.progress import note

# Names of a column of each quantity in a table that has a row for each reading.
QUANTITY_COLUMNS = {
    SPEED: re.compile(
        r"(?:.*speed(?:s|avg|mean|km/?h|mph)?(?![a-z]).*|.*(?:geschw|velocidad|velocit|vitesse|snelheid|hastighe|pr[eę]dko|rychlost|nopeus).*"
        r"|v|vmed|vmoy|v_?kfz|kmh|km/h|mph)",
        re.IGNORECASE,
    ),
    "flow": re.compile(
        r"(?:.*(?:flow|volume|count)(?:s|rate)?(?![a-z]).*|.*(?:intensit|intensid|verkehrsst|d[eé]bit).*"
        r"|q|q_?kfz|veh|vehicles|cars|pkw|kfz|fahrzeuge)",
        re.IGNORECASE,
    ),
    "occupancy": re.compile(r"(?:.*(?:occup|ocupac|belegung|bezetting).*|occ|o)", re.IGNORECASE),
}
# What tells of the readings, or of some of the vehicles.
OTHER = re.compile(
    r".*(?:quality|flag|status|valid|error|limit|free|heavy|truck|hgv|lkw|bus|bike|std|dev(?!ice)"
    r"|wind[ _-]?(?:speed|geschw)|max[ _-]?speed|speed[ _-]?max).*",
    re.IGNORECASE,
)
LANES = re.compile(
    r"(?:lane|fahrstreifen|fahrspur|spur|carril|voie|rijstrook|corsia)[ _-]?(?:id|no|nr|number)?", re.IGNORECASE
)
FLOW_UNIT = re.compile(r"(?:veh|vehs|vehicles?|cars?|pcu|k?fz)\s*(?:/|per )\s*[0-9]*\s*[a-z]+|vph", re.IGNORECASE)
SHARE_UNIT = re.compile(r"%|percent|share", re.IGNORECASE)
IN_BRACKETS = re.compile(r"(.*?)\s*[(\[]\s*([^()\[\]]+?)\s*[)\]]")
AT_THE_END = re.compile(r"(.+?)[ _-]+(?:in[ _]+)?(km/h|kmh|kph|mph|m/s)", re.IGNORECASE)
# A lane behind the name of its sensor; without a clear word only where the sensor is known.
LANE = re.compile(
    r"(.+?)[ _.-](?:(l|lane|spur|fahrspur|fahrstreifen|carril|voie)|f|fs)?[ _-]?([0-9]{1,2})", re.IGNORECASE
)
NAMES = 1 << 17  # of columns that are remembered: several functions ask what each says
BETWEEN = "\x1f"  # the sensor and the lane of a row
MOST_ALIKE, PROVED = 2, 10  # lanes that may be alike by themselves; rows that prove that one is the sum of the others


@lru_cache(maxsize=NAMES)
def unit_of(text: str) -> tuple[str, str] | None:
    """The quantity and the unit that a text names, in brackets or not; None where it names none."""
    text = text.strip().strip("[]()").strip()
    if unit := SPEED_UNITS.get(text.lower().replace(" ", "")):
        return SPEED, unit
    quantity = "flow" if FLOW_UNIT.fullmatch(text) else "occupancy" if SHARE_UNIT.fullmatch(text) else None
    return (quantity, text) if quantity else None


@lru_cache(maxsize=NAMES)
def parts_of(name: str) -> tuple[str, str]:
    """A name without its unit, and the unit as it is written: ``S1 (km/h)``, ``S1 [mph]``, ``speed_kmh``."""
    for form in (IN_BRACKETS, AT_THE_END):
        if (found := form.fullmatch(name)) and found[1] and unit_of(found[2]):
            return found[1], found[2]
    return name, name if unit_of(name) else ""


def plain(name: str) -> str:
    """A name without its unit."""
    return parts_of(name)[0]


@lru_cache(maxsize=NAMES)
def quantity_of(name: str, unit: str = "") -> str | None:
    """What a column measures, by its unit or by its name."""
    if measured := unit_of(unit or parts_of(name)[1]):
        return measured[0]
    if OTHER.fullmatch(name):
        return None
    return next((quantity for quantity, form in QUANTITY_COLUMNS.items() if form.fullmatch(plain(name))), None)


@dataclass(frozen=True, eq=False)
class Lanes:
    """The sensors of M lanes.

    ids: of the N sensors.  sensor: the number of the sensor of each lane, int64 [M].  names: the lanes of each sensor.
    """

    ids: tuple[str, ...]
    sensor: np.ndarray
    names: tuple[str, ...]

    def described(self, names: Sequence[str]) -> str:
        """The lanes of the first sensor that has several."""
        count = np.bincount(self.sensor)
        first = int((count > 1).argmax()) if (count > 1).any() else 0
        mine = [
            name.partition(BETWEEN)[2] or name for name, place in zip(names, self.sensor, strict=True) if place == first
        ]
        return f"{self.ids[first]}: {', '.join(mine)}"


def lanes_in_rows(names: Sequence[str]) -> Lanes:
    """The sensors of names that are a sensor and a lane."""
    parts = [name.partition(BETWEEN) for name in names]
    return _grouped([sensor for sensor, _, _ in parts], [lane for _, _, lane in parts])


def lanes_in_columns(names: Sequence[str], known: Collection[int | str]) -> Lanes | None:
    """The sensors of columns such as ``S1_L1`` and ``S1_L2``; None where a column is a sensor.

    known: keys of the sensors that have a position.  One of these is never a lane.  ``S1.1`` is a lane where S1 is
    known; ``S1_L1`` also where nothing is known, if a sensor has several.
    """
    spelt, there = {str(key).casefold() for key in known}, {match_key(name) for name in names}
    sensors, lanes = [], []
    for name in names:
        found = LANE.fullmatch(name)
        sensor = str(match_key(name)).casefold() in spelt
        lane = found is not None and not sensor and match_key(found[1]) not in there
        if found and lane and (str(match_key(found[1])).casefold() in spelt or found[2]):
            sensors.append(found[1])
            lanes.append(found[3])
        else:
            sensors.append(name)
            lanes.append("")
    grouped = _grouped(sensors, lanes)
    alone = len(grouped.ids) == len(names) and not any(match_key(name) in known for name in grouped.ids)
    return None if sensors == list(names) or alone else grouped


def sensors_of(names: Sequence[str]) -> list[str]:
    """What would be the sensors of names if each were that of a lane."""
    return [found[1] for name in names if (found := LANE.fullmatch(name))]


def _grouped(sensors: Sequence[str], lanes: Sequence[str]) -> Lanes:
    """The sensors of lanes; a lane is called by the number at the end of its name, where it has one."""
    place = {name: number for number, name in enumerate(dict.fromkeys(sensors))}
    called: dict[str, set[str]] = {name: set() for name in place}
    for sensor, lane in zip(sensors, lanes, strict=True):
        called[sensor].add(str(int(number[0])) if (number := re.search("[0-9]+$", lane)) else lane)
    names = tuple(", ".join(sorted(called[name])) for name in place)
    return Lanes(tuple(place), np.array([place[name] for name in sensors], np.int64), names)


def combined(
    blocks: Generator[Block, None, None],
    lanes: Lanes,
    features: Sequence[str],
    codes: Sequence[float],
    kept: int,
    where: object = "",
) -> Generator[Block, None, None]:
    """Blocks of M lanes [t,M] or [t,M,F] -> of N sensors, of the first ``kept`` features.

    features: the names of the F.  codes: numbers that stand for no reading, which is never a part of a mean or a sum.
    where: what the note on numbers below 0 names.
    """
    below, looked = 0, "flow" not in features
    with closing(blocks):
        for block in blocks:
            values = block.speeds.reshape(len(block.speeds), len(lanes.sensor), len(features))
            if not looked:
                _refuse_total(values[..., features.index("flow")], lanes, where)
                looked = True
            if (low := below_zero(values, features)).any():
                below += int((low & ~is_code(values, features, codes)).sum())
            found = combine(values, lanes.sensor, features, codes)[..., :kept]
            yield replace(block, speeds=found[..., 0] if kept == 1 else found)
    if below:
        what = f"{counted(below, 'number of a lane is', 'numbers of lanes are')} below 0"
        note(Message(where, what, "no readings, left out of sums and means"))


def _refuse_total(flows: np.ndarray, lanes: Lanes, where: object) -> None:
    """Raise where the first rows [t,M] show that one of the lanes of a sensor is the sum of its others."""
    for number in np.flatnonzero(np.bincount(lanes.sensor) > MOST_ALIKE):
        mine = flows[:, lanes.sensor == number].astype(np.float64)
        known = mine[np.isfinite(mine).all(axis=1) & (mine != 0).all(axis=1)]
        if len(known) >= PROVED and (2 * known == known.sum(axis=1, keepdims=True)).all(axis=0).any():
            found = f"one of the lanes {lanes.names[number]} of {lanes.ids[number]} is the sum of the others"
            raise SocialxError(where, found, "leave it out, so that nothing is counted twice")


def below_zero(values: np.ndarray, features: Sequence[str]) -> np.ndarray:
    """Which of these values [..., F] are below 0 where their feature cannot be, bool of the same shape."""
    return (values < 0) & np.isin(features, NOT_NEGATIVE)


def combine(values: np.ndarray, sensor: np.ndarray, features: Sequence[str], codes: Sequence[float]) -> np.ndarray:
    """Readings of lanes [t,M,F] -> of sensors, float32 [t,N,F]; NaN is no reading.

    A number below 0 is no reading.  The flow of a sensor is the sum of its lanes, and no reading where a lane has none.
    Its speed is the mean of the lanes that report, weighted by their flows; where these are unknown or all 0 it is the
    plain mean.  Anything else is the plain mean of the lanes that report.  So do the stations of PeMS (Chen, Petty,
    Skabardonis, Varaiya and Jia, Transportation Research Record 1748, 2001).
    """
    order = np.argsort(sensor, kind="stable")
    begins = np.flatnonzero(np.diff(sensor[order], prepend=-1))
    values = values[:, order].astype(np.float64)
    values[is_code(values, features, codes) | below_zero(values, features)] = np.nan

    def total(part: np.ndarray) -> np.ndarray:
        return np.add.reduceat(part, begins, axis=1)

    result = np.empty((len(values), len(begins), len(features)), np.float32)
    flow = values[..., features.index("flow")] if "flow" in features else None
    for place, feature in enumerate(features):
        readings = values[..., place]
        reports = np.isfinite(readings)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = total(np.where(reports, readings, 0.0)) / total(reports)
            if feature == "flow":
                mean = total(readings)
            elif feature == SPEED and flow is not None:
                weight = np.where(reports, flow, 0.0)
                weighted = total(np.where(reports, weight * readings, 0.0)) / total(weight)
                mean = np.where(np.isfinite(weighted), weighted, mean)
        result[..., place] = mean
    return result
