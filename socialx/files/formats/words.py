"""The words in names of columns, in the languages of those who publish tables."""

from __future__ import annotations

import re

from socialx.files.formats.moments import DATE

SUFFIX = r"(?:[ _-]?(?:id|name|no|nr|code|number))?"
SENSOR_WORDS = (
    *("sensor", "station", "det", "detector", "vd", "vds", "device", "counter", "loop", "messstelle", "detektor"),
    *("zählstelle", "zaehlstelle", "messquerschnitt", "mq", "meetpunt", "meetlocatie", "punto", "estacion", "estación"),
    *("aforo", "compteur", "capteur", "boucle"),
)
# Names of a column of sensors in a table that has a row for each reading.
SENSORS = re.compile(rf"(?:id[ _-])?(?:{'|'.join(SENSOR_WORDS)}){SUFFIX}|vdid|iu_ac", re.IGNORECASE)
# Names of a column of sensors in a table of positions, the best first; and words of others, which may name roads too.
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
# Words in names of columns of degrees, the best first; those in other letters may end a word.
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
# Parts of a time, which no sensor is named like.
CALENDAR = re.compile(
    r"hour|hr|hh|stunde|hora|heure|uur|ora|godzina|timme|tunti|saat|час|min(?:ute)?"
    r"|(?:hour|day|month|week)[ _-]?of[ _-]?(?:the[ _-]?)?(?:day|week|month|year)|day|dow"
    r"|month|year|week(?:day|end|no|nr)?|season|is[ _-]?(?:weekend|holiday)|holiday|wochentag|wotag|tag|monat|jahr"
    r"|feiertag",
    re.IGNORECASE,
)
PART_OF_DAY = re.compile(rf"(?i){HOUR.pattern}|(?:.*[ _-])?(?:zeit|minute[ns]?|quarter|slot|period|am[ _/-]?pm)")
ENDS = re.compile(r"(?:.*[ _-])?(?:end|ending|to|until|till|bis|ende|eind|fin)(?:[ _-].*)?|endtime", re.IGNORECASE)
# Times of the row rather than of its readings, and those at which an interval ends.
OF_ROW = re.compile(
    rf".*(?:upload|creat|updat|modif|receiv|insert|import|ingest|process|stored|exported|publish).*|{ENDS.pattern}",
    re.IGNORECASE,
)
SINCE_1970 = re.compile(
    r"ts|data[ _-]?ora|dato|.*(?:time|zeit|epoch|unix|tiempo|temps|date|datum|fecha|hora|horodat|tijd|stamp).*",
    re.IGNORECASE,
)
# Sums and means of the other columns, the weather, and what tells of the readings.
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
HOURS = (frozenset(range(24)), frozenset(range(1, 25)))  # that a column of them has
MIDNIGHT = re.compile(rf"{DATE}[ T]0{{1,2}}:00(?::00(?:\.0+)?)?Z?")
SEPARATED = re.compile("[ _.-]")
BEHIND = re.compile(r"[ _.-]*[0-9]+$")  # a number behind a name
LETTER = re.compile(r"([qvb])_[a-z].*", re.IGNORECASE)  # of a quantity before the vehicles that it counts


def names_rows(name: str) -> bool:
    """Whether a column has a name of one that numbers rows, or names sensors."""
    return bool(ROW_NUMBER.fullmatch(name) and name) or may_be_sensors(name)


def may_be_sensors(name: str) -> bool:
    """Whether a column has a name of one that names sensors."""
    return bool(SENSORS.fullmatch(name) or MAY_BE_SENSORS.fullmatch(name))
