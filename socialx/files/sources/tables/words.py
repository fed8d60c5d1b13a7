"""Interpret column names in the languages that data publishers write. A name suggests a role without a proof."""

from __future__ import annotations

import re
from functools import lru_cache, partial

from socialx.files.store.quantities import SPEED, SPEED_UNITS

_form = partial(re.compile, flags=re.IGNORECASE)
# Quantities: of a column that says nothing of it, the readings may be whatever they are.
QUANTITIES = {
    SPEED: _form(
        r".*(?:speed|geschw|velocid|velocit|vitesse|snelheid|hastighe|pr[eę]dko|rychlost|nopeus|скорост|速度|速率|車速|车速|속도).*"
        r"|v|vmed|vmoy|fart|hiz|v_?(?:kfz|pkw|lkw)(?:_.*)?|(?:avg|mean) (?:mph|km/h)|km/?h|mph"
    ),
    "flow": _form(
        r".*(?:flow|volume|count|intensit|intensid|verkehrsst|d[eé]bit|vehicles|vehiculos|vehículos|trafi[ck]k?mengde|liikennem"
        r"|natężenie|fl[öu]de|fluxo|portata|交通量|流量|台数|교통량).*|q|q_?(?:kfz|pkw|lkw)(?:_.*)?|veh|kfz|fahrzeuge|anzahl"
    ),
    "occupancy": _form(r".*(?:occup|ocupac|belegung|bezetting|占有率|점유율).*|occ|o|beläggning"),
}
# Flags, shares of the vehicles, statistics, and what is compared with.
OTHER = _form(
    r".*(?:quality|qualit|flag|status|valid|error|limit|free|heavy|truck|lorr|hgv|lgv|lkw|bus|bike|cycl|motorr|std|dev(?!ice)"
    r"|wind|temp|max|min(?!ute)|median|p85|v85|reference|historic|confidence|coverage|dekning|number|num_|lanes).*"
)
READING = _form(r"value|reading|measurement|wert|messwert|data|result|valor|valeur|waarde")
SENSOR = _form(
    r"(?:id[ _-]?)?(?:sensor|station|det|detector|detektor|vd|vds|device|counter|loop|messstelle|zählstelle|zaehlstelle"
    r"|messquerschnitt|querschnitt|mq|meetpunt|meetlocatie|punto(?:[ _-]?(?:de[ _-]?)?medida)?"
    r"|estaci[oó]n|aforo|compteur|capteur|boucle|site|segment"
    r"|link|arc|node|tms|tmc|lam|camera|junction|intersection|iu|spira|postazione|location|road|edge|zst|item|series|unique"
    r"|count[ _-]?point|計測地点|觀測點|测站|지점|identifiant[ _-]arc|datastream|trafikkregistreringspunkt|punkt)"
    r"(?:[ _-]?(?:id|name|no|nr|code|key|number|nummer|番号))?|id|name|[a-z]*det(?:ector|id)(?:_.*)?|vdid|iu_ac|sid"
)
PART = _form(r".*(?:direction|direc|richtung|dir|sens|sentido|riktning|richting|detector|detektor|arm)(?:[ _-].*)?")
LANE = _form(
    r"(?:lane|fahrstreifen|fahrspur|spur|carril|voie|rijstrook|corsia|körfält|kjørefelt)[ _-]?(?:id|no|nr|number)?"
)
TOTAL = _form(r"(?:.*[ _-])?(?:grand)?(?:total[te]?|sum(?:me|a)?|all|alle|gesamt|beide|both)(?:[ _-].*)?")
# Statistics, classes of vehicles and the weather: columns that are no sensors.
NO_SENSOR = _form(
    r"(?:.*[ _-])?(?:mean|avg|average|min|max|median|std|total|sum|all|cars?|trucks?|lorries|bus(?:es)?"
    r"|temp(?:erature)?|rain|wind|count|lanes?)(?:[ _-].*)?|[qvo]"
)
# Kinds of rows, which are no sensors although their numbers may be ids, too.
KIND = _form(
    r".*(?:class|klasse|categor|type|typ|kind|direction|richtung|lane|spur|hour|stunde|quality|status|error|flag|week|slot).*"
)
# Times: of what is read, of writing a row, and of the ends of intervals; parts of a date; and hours beside one.
TIME = _form(
    r"ts|ds|dato|.*(?:time|zeit|epoch|unix|tiempo|temps|date|datum|fecha|hora|horodat|tijd|tid|stamp|時刻|日時).*"
)
LATER = _form(
    r".*(?:upload|creat|updat|modif|receiv|insert|import|ingest|process|stored|exported|publish|dispo).*"
    r"|(?:.*[ _-])?(?:end|ending|to|until|till|bis|ende|eind|fin|til|hasta|fino|au)(?:[ _-].*)?|endtime"
)
HOUR = _form(r".*(?:hour|stunde|hora|heure|uhrzeit|godzin|時).*|hr|hh|std|uur|ora|ore|godz|timme|tunti|saat|час")
PARTS = {
    "%Y": _form(r"year|yr|jahr|año|année|anno|jaar|år"),
    "%m": _form(r"month|monat|mes|mois|mese|maand"),
    "%d": _form(r"day|tag|día|dia|jour|giorno|dag"),
    "%H": HOUR,
    "%M": _form(r"min|minutes?|minuten?|minuto"),
}
CALENDAR = _form(
    r"hour|hr|hh|stunde|hora|heure|uur|min(?:ute)?"
    r"|(?:hour|day|month|week)[ _-]?of[ _-]?(?:the[ _-]?)?(?:day|week|month|year)"
    r"|day|dow|month|year|week(?:day|end|no|nr)?|season|(?:is|public|school)[ _-]?(?:weekend|holiday)|holiday"
    r"|wochentag|wotag|tag|monat|jahr|feiertag|día|dia|mes|año|jour|mois|année|quarter"
)
ROW_NUMBER = _form(
    r"#|nr|no|num|index|idx|row|seq|sequence|serial|lfd(?:[ _-]?nr)?|level_[0-9]|[fgou]id|[gu]uid|unnamed: [0-9]+|id"
    r"|(?:record|row|object|measurement)(?:[ _-]?(?:id|nr|no|number))?"
)
LATITUDE = _form(r"(?:start[ _-]?)?(?:lat|latitude|latitud|breite|breitengrad|緯度|纬度)")
LONGITUDE = _form(r"(?:start[ _-]?)?(?:lon|lng|long|longitude|longitud|länge|längengrad|経度|经度)")
PLACE = _form(r".*(?:latitud|longitud|easting|northing|point|shape|coord).*|(?:.*[ _-])?(?:lat|lon|lng|[xy])")
FLOW_UNIT = _form(r"(?:veh|vehs|vehicles?|cars?|pcu|k?fz)\s*(?:/|per )\s*[0-9]*\s*[a-z]+|vph")
SHARE_UNIT = _form(r"%|percent|share")
IN_BRACKETS = re.compile(r"(.*?)(\s*[(\[]\s*([^()\[\]]+?)\s*[)\]])")
AT_THE_END = _form(r"(.+?)([ _-]+(?:in[ _]+)?(km/h|kmh|kph|mph|m/s))")
NAMES = 1 << 17  # of columns that are remembered


@lru_cache(maxsize=NAMES)
def parse_unit(text: str) -> tuple[str, str] | None:
    """Return the quantity and the unit in a text such as ``[km/h]``, with or without brackets; otherwise None."""
    text = text.strip().strip("[]()").strip()
    if unit := SPEED_UNITS.get(text.lower().replace(" ", "")):
        return SPEED, unit
    quantity = "flow" if FLOW_UNIT.fullmatch(text) else "occupancy" if SHARE_UNIT.fullmatch(text) else None
    return (quantity, text) if quantity else None


@lru_cache(maxsize=NAMES)
def split_unit(name: str) -> tuple[str, str]:
    """Split ``S1 (km/h)``, ``S1 [mph]`` or ``speed_kmh`` into the name and the rest, "" without a unit."""
    for form in (IN_BRACKETS, AT_THE_END):
        if (match := form.fullmatch(name)) and match[1] and parse_unit(match[3]):
            return match[1], match[2]
    return name, ""


def unit(name: str) -> str:
    """Return the unit in a column's name as written there, "" where absent."""
    return split_unit(name)[1].strip(" ()[]_-").removeprefix("in ")


@lru_cache(maxsize=NAMES)
def quantity(name: str, measured_in: str = "") -> str | None:
    """Return the quantity that a column's name suggests: by a unit for speeds or flows, else by words."""
    measured, bare = parse_unit(measured_in or unit(name)), split_unit(name)[0]
    if measured and measured[0] != "occupancy":  # a share may be of anything
        return measured[0]
    if OTHER.fullmatch(bare):
        return None
    return next((feature for feature, form in QUANTITIES.items() if form.fullmatch(bare)), None)
