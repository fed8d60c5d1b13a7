"""Interpret column names in the languages of data publishers, and combine lanes to sensors.

A name may state a quantity, a unit, a lane, a sensor, or a time part.

t rows per piece, M lanes, N sensors, F features.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from socialx.core.errors import Message, SocialxError, counted
from socialx.core.progress import note
from socialx.files.store.ids import match_key
from socialx.files.store.layout import Block, is_code
from socialx.files.store.quantities import NOT_NEGATIVE, SPEED, SPEED_UNITS

SUFFIX = r"(?:[ _-]?(?:id|name|no|nr|code|number))?"
SENSOR_WORDS = (
    *("sensor", "station", "det", "detector", "vd", "vds", "device", "counter", "loop", "messstelle", "detektor"),
    *("zählstelle", "zaehlstelle", "messquerschnitt", "mq", "meetpunt", "meetlocatie", "punto", "estacion", "estación"),
    *("aforo", "compteur", "capteur", "boucle"),
)
# Names of a sensor column in a table with a row per observation.
SENSORS = re.compile(rf"(?:id[ _-])?(?:{'|'.join(SENSOR_WORDS)}){SUFFIX}|vdid|iu_ac", re.IGNORECASE)
# Names of a sensor column in a table of locations, the best first; and further words, which may also name roads.
IDS = (
    *("sensor_id", "id", "station", "station_id", "vdid", "sid", "sensor", "detector", "detector_id", "detektor"),
    *("detid", "messstelle", "zählstelle", "site_id", "site"),
)
PLACE_WORDS = {
    *SENSOR_WORDS,
    *("sta", "detid", "vdid", "site", "segment", "link", "arc", "node", "tms", "lam", "camera", "junction"),
    *("intersection", "iu", "spira", "postazione", "arco"),
}
ID_WORDS = {"id", "no", "nr", "num", "number", "nummer", "numero", "code", "codigo", "key", "kennung", "ac"}
# Words in names of columns of degrees, the best first; words in non-Latin letters may end a word.
AXES = {
    "latitude": (
        *("latitude", "lat", "breite", "breitengrad", "geobreite", "latitud", "latitudine", "breedtegraad", "enlem"),
        *("breddegrad", "bredegrad", "szerokość", "широта", "緯度", "纬度", "위도", "y", "northing", "hochwert"),
    ),
    "longitude": (
        *("longitude", "lng", "lon", "long", "länge", "laenge", "längengrad", "laengengrad", "geolänge", "geolaenge"),
        *("longitud", "longitudine", "lengtegraad", "boylam", "lengdegrad", "længdegrad", "długość", "долгота"),
        *("經度", "経度", "经度", "경도", "x", "easting", "rechtswert"),
    ),
}
OF_ANY_PLANE = {"x", "y", "easting", "northing", "rechtswert", "hochwert"}
BEGINS = {"start", "from", "begin", "first", "von", "anfang", "origin", "inicio", "début", "1"}
ENDS_OF_ROADS = {"end", "to", "stop", "last", "bis", "ende", "dest", "destination", "fin", "final", "2"}
# Those of a column that may number the rows, or name what has several sensors.
MAY_BE_SENSORS = re.compile(rf"(?:segment|link|location|site|road|edge){SUFFIX}|id|name", re.IGNORECASE)
READING = re.compile(r"value|reading|measurement|wert|messwert|data|result", re.IGNORECASE)  # of whatever quantity
PLACES = re.compile(r"(?:lat|lon|lng|latitude|longitude|x|y)", re.IGNORECASE)
POINT = re.compile(r"[\[(]?\s*-?[0-9]{1,3}\.[0-9]+\s*[,; ]\s*-?[0-9]{1,3}\.[0-9]+\s*[\])]?|[{\[(].*|[A-Z]+ ?\(.*")
HOUR = re.compile(
    r".*(?:hour|stunde|hora|heure|uur|uhrzeit|tijd|time|clock|interval|godzin).*|hr|hh|std|ora|ore|godz|timme|tunti|saat|час",
    re.IGNORECASE,
)
# Parts of a time; sensors have different names.
CALENDAR = re.compile(
    r"hour|hr|hh|stunde|hora|heure|uur|ora|godzina|timme|tunti|saat|час|min(?:ute)?"
    r"|(?:hour|day|month|week)[ _-]?of[ _-]?(?:the[ _-]?)?(?:day|week|month|year)|day|dow"
    r"|month|year|week(?:day|end|no|nr)?|season|is[ _-]?(?:weekend|holiday)|holiday|wochentag|wotag|tag|monat|jahr"
    r"|feiertag",
    re.IGNORECASE,
)
PART_OF_DAY = re.compile(rf"(?i){HOUR.pattern}|(?:.*[ _-])?(?:zeit|minute[ns]?|quarter|slot|period|am[ _/-]?pm)")
ENDS = re.compile(r"(?:.*[ _-])?(?:end|ending|to|until|till|bis|ende|eind|fin)(?:[ _-].*)?|endtime", re.IGNORECASE)
# Times of writing a row, and the ends of intervals.
OF_ROW = re.compile(
    rf".*(?:upload|creat|updat|modif|receiv|insert|import|ingest|process|stored|exported|publish).*|{ENDS.pattern}",
    re.IGNORECASE,
)
SINCE_1970 = re.compile(
    r"ts|data[ _-]?ora|dato|.*(?:time|zeit|epoch|unix|tiempo|temps|date|datum|fecha|hora|horodat|tijd|stamp).*",
    re.IGNORECASE,
)
# Sums and means of columns, the weather, and quality flags.
NO_SENSOR = re.compile(
    r"(?:grand[ _-]?)?total|sum(?:me)?|gesamt|average|avg|mean|mittel(?:wert)?|(?:air[ _-]?)?temp(?:erature?)?"
    r"|rain(?:fall)?|precip(?:itation)?|niederschlag|regen|snow(?:fall)?|humidity|wind(?:[ _-]?speed)?|visibility"
    r"|weather|(?:[a-z]+[ _-])?(?:quality|flag|status|valid|error|limit|coverage|reliability)|max[ _-]?speed|vmax"
    r"|(?:(?:n|num|no|number)[ _-]?(?:of[ _-]?)?)?lanes|lane[ _-]?count|all|gesamtsumme",
    re.IGNORECASE,
)
STATISTIC = re.compile(r"(?i)(?:.*[ _.-])?(avg|average|mean|median|min|max|std|stdev|[pv]85)(?:[ _.-].*)?")
ROW_NUMBER = re.compile(
    r"|#|nr|no|num|number|index|idx|row|seq|sequence|serial|lfd(?:[ _-]?nr)?|level_[0-9]|[fgou]id|[gu]uid"
    r"|(?:record|row|object|measurement)(?:[ _-]?(?:id|nr|no|number))?"
    r"|unnamed: [0-9]+",
    re.IGNORECASE,
)
HOURS = (frozenset(range(24)), frozenset(range(1, 25)))  # the values in a column of hours
SEPARATED = re.compile("[ _.-]")
BEHIND = re.compile(r"[ _.-]*[0-9]+$")  # a number behind a name
LETTER = re.compile(r"([qvb])_[a-z].*", re.IGNORECASE)  # a quantity before the counted vehicles
# Names of a column of each quantity in a table with a row per observation.
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
# Quality flags, and shares of the vehicles.
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
# A lane after the sensor name; without a clear word only where the sensor is located.
LANE = re.compile(
    r"(.+?)[ _.-](?:(l|lane|spur|fahrspur|fahrstreifen|carril|voie)|f|fs)?[ _-]?([0-9]{1,2})", re.IGNORECASE
)
NAMES = 1 << 17  # of columns that are remembered: several functions ask what each says
BETWEEN = "\x1f"  # the sensor and the lane of a row
MOST_ALIKE, PROVED = 2, 10  # lanes that may be equal by chance; rows that prove a total


def names_rows(name: str) -> bool:
    """Return whether a column is called like row numbers or sensors, as ``index`` and ``station_id`` are."""
    return bool(ROW_NUMBER.fullmatch(name) and name) or may_be_sensors(name)


def may_be_sensors(name: str) -> bool:
    """Return whether a column name, such as ``station_id`` or ``segment``, may announce sensor names in the cells."""
    return bool(SENSORS.fullmatch(name) or MAY_BE_SENSORS.fullmatch(name))


@lru_cache(maxsize=NAMES)
def parse_unit(text: str) -> tuple[str, str] | None:
    """Return the quantity and the unit in a text such as ``[km/h]``, with or without brackets; otherwise ``None``."""
    text = text.strip().strip("[]()").strip()
    if unit := SPEED_UNITS.get(text.lower().replace(" ", "")):
        return SPEED, unit
    quantity = "flow" if FLOW_UNIT.fullmatch(text) else "occupancy" if SHARE_UNIT.fullmatch(text) else None
    return (quantity, text) if quantity else None


@lru_cache(maxsize=NAMES)
def split_unit(name: str) -> tuple[str, str]:
    """Split ``S1 (km/h)``, ``S1 [mph]`` or ``speed_kmh`` into the name and the unit as written, "" for no unit."""
    for form in (IN_BRACKETS, AT_THE_END):
        if (match := form.fullmatch(name)) and match[1] and parse_unit(match[2]):
            return match[1], match[2]
    return name, name if parse_unit(name) else ""


def without_unit(name: str) -> str:
    """Return a column name without the unit, such as ``S1`` for ``S1 (km/h)``."""
    return split_unit(name)[0]


@lru_cache(maxsize=NAMES)
def column_quantity(name: str, unit: str = "") -> str | None:
    """Return the quantity in a column: speed, flow or occupancy by unit, else by name; ``None`` where unstated."""
    if measured := parse_unit(unit or split_unit(name)[1]):
        return measured[0]
    if OTHER.fullmatch(name):
        return None
    return next((quantity for quantity, form in QUANTITY_COLUMNS.items() if form.fullmatch(without_unit(name))), None)


@dataclass(frozen=True, eq=False)
class Lanes:
    """The sensors behind M lanes.

    ids: the N sensor ids. sensor: the sensor number per lane, int64 [M]. names: the lane names per sensor, in one text.
    """

    ids: tuple[str, ...]
    sensor: np.ndarray
    names: tuple[str, ...]

    def description(self, names: Sequence[str]) -> str:
        """Return ``S1: 1, 2, 3``, the first sensor with several lanes, for a note; ``names``: the M lane names."""
        count = np.bincount(self.sensor)
        first = int((count > 1).argmax()) if (count > 1).any() else 0
        mine = [
            name.partition(BETWEEN)[2] or name for name, index in zip(names, self.sensor, strict=True) if index == first
        ]
        return f"{self.ids[first]}: {', '.join(mine)}"


def lanes_in_rows(names: Sequence[str]) -> Lanes:
    """Return the sensors behind M names in rows, each a sensor and a lane joined by BETWEEN, the separator sign."""
    parts = [name.partition(BETWEEN) for name in names]
    return _group_lanes([sensor for sensor, _, _ in parts], [lane for _, _, lane in parts])


def lanes_in_columns(names: Sequence[str], located: Collection[int | str]) -> Lanes | None:
    """Return the sensors behind columns such as ``S1_L1`` and ``S1_L2``; ``None`` for a column per sensor. located: the
    match keys of sensors with a location; such a sensor is never a lane. ``S1.1`` is a lane only where S1 is located;
    ``S1_L1`` also without locations, if a sensor has several lanes.
    """
    located_names, keys = {str(key).casefold() for key in located}, {match_key(name) for name in names}
    sensors, lanes = [], []
    for name in names:
        match = LANE.fullmatch(name)
        sensor = str(match_key(name)).casefold() in located_names
        lane = match is not None and not sensor and match_key(match[1]) not in keys
        if match and lane and (str(match_key(match[1])).casefold() in located_names or match[2]):
            sensors.append(match[1])
            lanes.append(match[3])
        else:
            sensors.append(name)
            lanes.append("")
    grouped = _group_lanes(sensors, lanes)
    alone = len(grouped.ids) == len(names) and not any(match_key(name) in located for name in grouped.ids)
    return None if sensors == list(names) or alone else grouped


def lane_sensors(names: Sequence[str]) -> list[str]:
    """Return the sensor part of each name that ends like a lane: ``S1`` for ``S1_L2``; other names are left out."""
    return [match[1] for name in names if (match := LANE.fullmatch(name))]


def _group_lanes(sensors: Sequence[str], lanes: Sequence[str]) -> Lanes:
    """Group lanes by sensor, from a sensor and a lane name per lane; a trailing number shortens ``L2`` to ``2``."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(sensors))}
    labels: dict[str, set[str]] = {name: set() for name in numbers}
    for sensor, lane in zip(sensors, lanes, strict=True):
        labels[sensor].add(str(int(number[0])) if (number := re.search("[0-9]+$", lane)) else lane)
    names = tuple(", ".join(sorted(labels[name])) for name in numbers)
    return Lanes(tuple(numbers), np.array([numbers[name] for name in sensors], np.int64), names)


def combine_blocks(
    blocks: Generator[Block, None, None],
    lanes: Lanes,
    features: Sequence[str],
    codes: Sequence[float],
    n_features: int,
    where: object = "",
) -> Generator[Block, None, None]:
    """Yield blocks with M ``lanes``, [t,M] or [t,M,F], combined to N sensors, [t,N] or [t,N,F] for several features.
    features: the F names. codes: numbers for a missing observation, excluded from means and sums. n_features: how many
    features to yield, from the first on; a further feature, the flow, only weights speeds. where: the place named in
    the note on negative numbers. Raises SocialxError where a lane is the sum of the others.
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
            sensor_values = combine(values, lanes.sensor, features, codes)[..., :n_features]
            yield replace(block, speeds=sensor_values[..., 0] if n_features == 1 else sensor_values)
    if below:
        text = f"{counted(below, 'number of a lane is', 'numbers of lanes are')} below 0"
        note(Message(where, f"{text}, and left out of sums and means"))


def _refuse_total(flows: np.ndarray, lanes: Lanes, where: object) -> None:
    """Raise, naming ``where``, if the first flows [t,M] show that a lane is the sum over the sensor's other lanes."""
    for number in np.flatnonzero(np.bincount(lanes.sensor) > MOST_ALIKE):
        sensor_flows = flows[:, lanes.sensor == number].astype(np.float64)
        complete = sensor_flows[np.isfinite(sensor_flows).all(axis=1) & (sensor_flows != 0).all(axis=1)]
        if len(complete) >= PROVED and (2 * complete == complete.sum(axis=1, keepdims=True)).all(axis=0).any():
            problem = f"one of the lanes {lanes.names[number]} of {lanes.ids[number]} is the sum of the others"
            raise SocialxError(where, problem, "leave the sum out, so that nothing is counted twice")


def below_zero(values: np.ndarray, features: Sequence[str]) -> np.ndarray:
    """Return the mask for negative values [..., F] in features that must be positive or 0, bool [..., F]."""
    return (values < 0) & np.isin(features, NOT_NEGATIVE)


def combine(values: np.ndarray, sensor: np.ndarray, features: Sequence[str], codes: Sequence[float]) -> np.ndarray:
    """Combine lane observations [t,M,F] to sensors, float32 [t,N,F]; NaN is a missing observation.

    sensor: the sensor number per lane, int64 [M]. features: the F names. codes: numbers for a missing observation,
    which negative numbers are too. The sensor flow is the sum over lanes, and missing where a lane is missing. The
    speed is the mean over reporting lanes, weighted by flow (vehicle counts), or the plain mean where flows are unknown
    or all 0. Other features are plain means over reporting lanes. PeMS stations use the same rules (Chen, Petty,
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
    for index, feature in enumerate(features):
        readings = values[..., index]
        reports = np.isfinite(readings)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = total(np.where(reports, readings, 0.0)) / total(reports)
            if feature == "flow":
                mean = total(readings)
            elif feature == SPEED and flow is not None:
                weight = np.where(reports, flow, 0.0)
                weighted = total(np.where(reports, weight * readings, 0.0)) / total(weight)
                mean = np.where(np.isfinite(weighted), weighted, mean)
        result[..., index] = mean
    return result
