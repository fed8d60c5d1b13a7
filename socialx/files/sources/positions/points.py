"""Locations in cells: degrees as numbers or with minutes, and points; DATEX II locations as rows.

A point is WKT, JSON, or two numbers.
"""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

from socialx.core.errors import SocialxError, in_short
from socialx.files.sources.tables.columns import AXES, BEGINS, ENDS_OF_ROADS, OF_ANY_PLANE
from socialx.files.store.head import FileHead, unpack

DEPTH = 100  # of elements; DATEX II has about 15
LETTERS = 200  # of an id, a name or a number
NAMED = {"predefinedLocationName", "measurementSiteName"}
DEGREES = ("latitude", "longitude")
WAYS = ("", " for display", " of a part")  # in which an element has degrees, best first
OF_MANY = ("Set", "Table", "Publication")  # ends of the names of elements that hold many locations
FORMS = "write points of GeoJSON, locations of DATEX II, or a table"
BORDERS = re.compile(r"[\W_]+|(?<=[a-zà-ÿ])(?=[A-ZÀ-Þ])|(?<=[0-9])(?=[A-Z])|(?<=[^\W0-9_])(?=[0-9])")
NUMBER = r"[0-9]+(?:[.,][0-9]+)?"
ANGLE = (  # 52.51, 52°31'12"N, N 52 31.2
    rf"(?P<front>[NSEW]?)\s*(?P<sign>[+-]?)(?P<degrees>{NUMBER})\s*(?P<mark>[°º˚]?)\s*"
    rf"(?:(?P<minutes>{NUMBER})\s*['\u2032\u2019]?\s*(?:(?P<seconds>{NUMBER})\s*(?:[\"\u2033\u201d]|'')?\s*)?)?(?P<back>[NSEW]?)"
)
ONE = re.compile(ANGLE, re.IGNORECASE)
SIGNED = r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"
TWO = re.compile(rf"\(?\s*({SIGNED})\s*([,;]|\s)\s*({SIGNED})\s*\)?")
TWO_ANGLES = re.compile(r"(.*[NS])[\s,;]+(.*[EW])|([NS].*?)[\s,;]+([EW].*)", re.IGNORECASE)
WKT = re.compile(
    rf"(?:SRID=[0-9]+;)?\s*(?:MULTI)?(POINT|LINESTRING)\s*(?:ZM|Z|M)?\s*\(+\s*({SIGNED})\s+({SIGNED})[\s,)]",
    re.IGNORECASE,
)
Row = tuple[str, list[str]]  # row name, such as "line 3", and stripped cells


def split_words(name: str) -> list[str]:
    """Return the lower-case words in a name: position and lat for ``PositionLat`` and ``position_lat``."""
    return [word.lower() for word in BORDERS.split(name) if word]


def parse_axis(name: str) -> tuple[str, int, tuple[str, ...], bool] | None:
    """Return (axis, spelling rank, other words, planar) for a name such as ``start_lat``; None for any other. Rank 0 is
    the best spelling. planar: the word, such as x, may name plane coordinates.
    """
    words = split_words(name)
    matches = [
        (axis, listed.index(spelling), index)
        for index, word in enumerate(words)
        for axis, listed in AXES.items()
        for spelling in listed
        if word == spelling or (spelling > "\u1000" and word.endswith(spelling))
    ]
    if len({axis for axis, _, _ in matches}) != 1:
        return None  # lat_lon names a point
    axis, listed, index = matches[0]
    return axis, listed, tuple(words[:index] + words[index + 1 :]), words[index] in OF_ANY_PLANE


def rank_words(words: tuple[str, ...]) -> int:
    """Return how well a column name's words next to its axis denote a sensor location: 0 best, 3 for a road end."""
    return 0 if not words else 1 if BEGINS & {*words} else 3 if ENDS_OF_ROADS & {*words} else 2


def number(cell: str) -> float:
    """Return a cell as a finite number, else NaN."""
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def degrees(cell: str, letters: str) -> float:
    """Return the degrees in a cell with an optional letter from ``letters``, such as NS; else NaN.

    Minutes need a degree sign or a letter: two plain numbers stay ambiguous.
    """
    match = ONE.fullmatch(cell.strip())
    if not match or not math.isnan(number(cell)):
        return number(cell)
    sign, letter = match["sign"], (match["front"] + match["back"]).upper()  # two letters are none of these
    whole, *parts = (float((match[name] or "0").replace(",", ".")) for name in ("degrees", "minutes", "seconds"))
    if letter not in ("", *letters) or (sign and letter) or max(parts) >= 60:
        return math.nan
    if match["minutes"] and (not (letter or match["mark"]) or whole != int(whole)):
        return math.nan
    return (whole + parts[0] / 60 + parts[1] / 3600) * (-1 if sign == "-" or (letter and letter in "SW") else 1)


def point(cell: str) -> tuple[str, float, float] | None:
    """Return a point's notation and two numbers in order; None for any other cell.

    Notations: ``point`` and ``line``, longitude first, with a line's first point; ``angles``, latitude first; ``,`` or
    a space where the order is open.
    """
    if cell.startswith(("{", "[")):
        try:
            cell = as_wkt(json.loads(cell))
        except (ValueError, RecursionError):
            return None
    if match := WKT.match(cell):
        return "point" if match[1].upper() == "POINT" else "line", float(match[2]), float(match[3])
    if match := TWO.fullmatch(cell):
        return "," if match[2] in ",;" else " ", float(match[1]), float(match[3])
    if match := TWO_ANGLES.fullmatch(cell):
        latitude, longitude = degrees(match[1] or match[3], "NS"), degrees(match[2] or match[4], "EW")
        return None if math.isnan(latitude + longitude) else ("angles", latitude, longitude)
    return None


def as_wkt(value: Any) -> str:
    """Return a JSON point, or a line's first point, as WKT; empty for anything else.

    A point is an object with type and coordinates, an object with latitude and longitude, or a decimal list [longitude,
    latitude].
    """
    kind = "POINT"
    if isinstance(value, dict) and "coordinates" in value:
        kind, value = str(value.get("type")).upper().removeprefix("MULTI"), value["coordinates"]
        while isinstance(value, list) and value and isinstance(value[0], list):
            value = value[0]
    elif isinstance(value, dict):
        named = {axis[0]: part for name, part in value.items() if (axis := parse_axis(str(name)))}
        value = [named.get("longitude"), named.get("latitude")]
    elif not any("." in str(part) for part in value):
        return ""
    if kind not in ("POINT", "LINESTRING") or not isinstance(value, list) or not 2 <= len(value) <= 4:
        return ""
    x, y = (math.nan if isinstance(part, bool | None) else degrees(str(part), "") for part in value[:2])
    return "" if math.isnan(x + y) else f"{kind} ({x!r} {y!r})"


def datex(head: FileHead) -> Iterator[Row]:
    """Yield id, name and degrees for each location and measurement site in a DATEX II publication.

    A location belongs to the innermost enclosing element with an id, and to enclosing elements that lack a location.
    Display locations are the last choice. Raises SocialxError for a document type, which could define entities.
    """
    yield "its header", ["id", "name", *DEGREES]
    parents: list[str] = []
    sites: list[dict[str, str]] = []  # the open elements that have an id, and what is known of each
    try:
        if any("<!DOCTYPE" in line for _, line in head.lines):
            raise ValueError("it has a document type")
        with unpack(head.path) as file:
            for event, element in ET.iterparse(file, ("start", "end")):  # noqa: S314
                name, text = element.tag.rpartition("}")[2], (element.text or "").strip()[:LETTERS]
                if event == "start":
                    parents.append(name)
                    if "id" in element.attrib:
                        sites.append({"element": str(len(parents)), "id": element.attrib["id"][:LETTERS]})
                    if len(parents) > DEPTH:
                        raise ValueError(f"elements in {DEPTH} others")
                    continue
                parents.pop()
                element.clear()
                if not sites:
                    continue
                if name in DEGREES:
                    sites[-1].setdefault(f"{name} for display" if "locationForDisplay" in parents else name, text)
                elif NAMED & {name, *parents} and text:
                    sites[-1].setdefault("name", text)
                if sites[-1]["element"] == str(len(parents) + 1):
                    site = sites.pop()
                    ways = [[site.get(f"{axis}{way}", "") for axis in DEGREES] for way in WAYS]
                    if degrees := next(filter(all, ways), None):
                        if sites and not parents[int(sites[-1]["element"]) - 1].endswith(OF_MANY):
                            sites[-1] |= {
                                f"{axis} of a part": value for axis, value in zip(DEGREES, degrees, strict=True)
                            }
                        yield f"the location {site['id']}", [site["id"], site.get("name", ""), *degrees]
    except (ET.ParseError, ValueError, LookupError) as error:
        raise SocialxError(head.path, f"the file is no XML that can be read ({in_short(error, 80)})", FORMS) from None
