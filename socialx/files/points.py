"""Points of GeoJSON and of DATEX II's locations, as rows of a table: a header, then a row per point."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat

from socialx.errors import SocialxError, in_short
from socialx.files.file_head import opened

JSON_BYTES = 1 << 25  # 100,000 points of 300 bytes; a parsed text takes ten times its size
PIECE_BYTES = 1 << 16
DEPTH = 100  # of elements; DATEX II has about 15
LETTERS = 200  # of an id, a name or a number
FEATURE_ID = "@id"
NAMED = {"predefinedLocationName", "measurementSiteName"}
DEGREES = ("latitude", "longitude")
WAYS = ("", " for display", " of a part")  # in which an element has degrees, best first
OF_MANY = ("Set", "Table", "Publication")  # ends of the names of elements that hold many locations
DEGREES_OF = re.compile(r"CRS84|EPSG(?::[0-9.]*)?:(?:4326|4258|4269)\b")  # names of longitude and latitude
FORMS = "write points of GeoJSON, locations of DATEX II, or a table"
Row = tuple[str, list[str]]


def geojson(path: Path) -> Iterator[Row]:
    """The points of a FeatureCollection (RFC 7946): its properties, its id as ``@id``, and its degrees."""
    with opened(path) as file:
        content = file.read(JSON_BYTES + 1)
    if len(content) > JSON_BYTES:
        raise SocialxError(path, f"more bytes than points of sensors have ({JSON_BYTES:,})", FORMS)
    try:
        whole = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise SocialxError(path, f"no JSON that can be read ({in_short(error, 80)})", FORMS) from None
    system = whole.get("crs") if isinstance(whole, dict) else None
    if system is not None and not DEGREES_OF.search(json.dumps(system)):
        other = f"its coordinates are not degrees of WGS 84, but of {json.dumps(system)[:80]}"
        raise SocialxError(path, other, "write them as EPSG:4326, longitude first")
    features = whole.get("features", [whole]) if isinstance(whole, dict) else whole
    listed = features if isinstance(features, list) else []
    points = [(number, *found) for number, each in enumerate(listed, 1) if (found := _point(each))]
    names = list(dict.fromkeys(name for _, properties, _ in points for name in properties))
    yield "its header", [*names, "latitude", "longitude"]
    for number, properties, (longitude, latitude) in points:
        yield f"feature {number}", [*(properties.get(name, "") for name in names), latitude, longitude]


def _point(feature: Any) -> tuple[dict[str, str], tuple[str, str]] | None:
    """Properties and degrees of a feature that is a point; None for any other."""
    geometry = feature.get("geometry") if isinstance(feature, dict) else None
    degrees = geometry.get("coordinates") if isinstance(geometry, dict) else None
    if not isinstance(degrees, list) or len(degrees) < 2 or isinstance(degrees[0], list):
        return None
    properties = feature.get("properties")
    properties = {**(properties if isinstance(properties, dict) else {}), FEATURE_ID: feature.get("id")}
    plain = {name: str(value) for name, value in properties.items() if isinstance(value, str | int | float)}
    return {name: text for name, text in plain.items() if name.lower() not in DEGREES}, (
        str(degrees[0]),
        str(degrees[1]),
    )


def datex(path: Path) -> Iterator[Row]:
    """The locations and measurement sites of a DATEX II publication: id, name and degrees of each.

    A position belongs to the innermost element around it that has an id, and to those around it that have none of their
    own.  A position that is only for display counts where there is no other.  Refuses a document type, which
    alone can define entities.
    """
    parser, rows = expat.ParserCreate(namespace_separator=" "), []
    parents: list[str] = []
    sites: list[dict[str, str]] = []  # the open elements that have an id, and what is known of each
    text: list[str] = []

    def begins(name: str, attributes: dict[str, str]) -> None:
        parents.append(name.rpartition(" ")[2])
        text.clear()
        if "id" in attributes:
            sites.append({"element": str(len(parents)), "id": attributes["id"][:LETTERS]})
        if len(parents) > DEPTH:
            raise ValueError(f"elements in {DEPTH} others")

    def ends(_: str) -> None:
        name, found = parents.pop(), "".join(text).strip()
        text.clear()
        if not sites:
            return
        if name in DEGREES:
            sites[-1].setdefault(f"{name} for display" if "locationForDisplay" in parents else name, found)
        elif NAMED & {name, *parents} and found:
            sites[-1].setdefault("name", found)
        if sites[-1]["element"] == str(len(parents) + 1):
            site = sites.pop()
            ways = [[site.get(f"{each}{way}", "") for each in DEGREES] for way in WAYS]
            if degrees := next(filter(all, ways), None):
                if sites and not parents[int(sites[-1]["element"]) - 1].endswith(OF_MANY):
                    sites[-1] |= {f"{each} of a part": at for each, at in zip(DEGREES, degrees, strict=True)}
                rows.append((f"line {parser.CurrentLineNumber}", [site["id"], site.get("name", ""), *degrees]))

    def says(part: str) -> None:
        if sum(map(len, text)) < LETTERS:
            text.append(part[:LETTERS])

    def defines(*_: object) -> None:
        raise ValueError("it has a document type")

    parser.StartElementHandler, parser.EndElementHandler = begins, ends
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = says, defines
    try:
        with opened(path) as file:
            while piece := file.read(PIECE_BYTES):
                parser.Parse(piece, False)
            parser.Parse(b"", True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise SocialxError(path, f"no XML that can be read ({in_short(error, 80)})", FORMS) from None
    yield "its header", ["id", "name", "latitude", "longitude"]
    yield from rows
