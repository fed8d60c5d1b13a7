"""What HTML pages share: escaped elements, numbers, tables and plots.  A page needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

DASH, NBSP = "\u2013", "\u00a0"  # a dash stands for what is not known
# These characters are no text, or turn the direction of the text behind them.
ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
VOID = ("input",)  # elements that have no end


class Html(str):
    """This is text that is HTML already."""


@dataclass(frozen=True)
class Axis:
    """The values at both ends, where labels stand and what they say, and the unit."""

    first: float
    last: float
    ticks: Mapping[float, str]
    unit: str

    def share(self, value: float) -> float:
        """How far a value is from the first end to the last one, 0 to 1."""
        return (value - self.first) / ((self.last - self.first) or 1)


def style(*names: str) -> str:
    """The text of style sheets of this package, one after the other."""
    return "".join(Path(__file__).with_name(name).read_text("utf-8") for name in names)


def document(title: str, css: str, body: Sequence[Html | None], script: str = "", data: Any = None) -> str:
    """Return a whole page.  script: the only one that its policy lets run; it finds ``data``, as JSON, by its id."""
    policy, scripts = POLICY, Html("")
    if script:
        policy += f"; script-src '{digest(script)}'"
        content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        scripts = Html(f'<script type="application/json" id="data">{content}</script><script>{script}</script>')
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = tag("body", tag("main", *body), scripts)
    return f"{HEAD}{meta}{tag('title', title)}<style>{css}</style></head>\n{page}\n</html>\n"


def digest(text: str) -> str:
    """Return how a content security policy names a script or a style: by its hash."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def tag(name: str, /, *parts: object, **attributes: object) -> Html:
    """Return an element, or nothing if it has parts and all are empty.  The last ``_`` of an attribute is left out."""
    if parts and all(part is None or part == "" for part in parts):
        return Html("")
    named = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    start = "".join(f' {key}="{escaped(value)}"' for key, value in named)
    return Html(f"<{name}{start}>{'' if name in VOID else f'{joined(*parts)}</{name}>'}")


def joined(*parts: object) -> Html:
    """Return elements and texts one after the other."""
    return Html("".join(map(escaped, parts)))


def escaped(part: object) -> Html:
    """Return a text as HTML; what is HTML already stays, None is empty."""
    return part if isinstance(part, Html) else Html("" if part is None else html.escape(plain(part)))


def plain(part: object) -> str:
    """Return a text without characters that are no text."""
    return ODD.sub("\ufffd", str(part))


def known(value: object) -> TypeGuard[float]:
    """Whether this is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def number(value: float | None, unit: str = "", digits: int | None = None) -> str | None:
    """Return a number of about three digits, or of so many after the point, with its unit; None if it is not known."""
    if not known(value):
        return None
    if digits is None:
        digits = sum(abs(value) < least for least in (99.95, 9.995, 0.9995)) if value != int(value) else 0
    return f"{value:,.{digits}f}{unit}"


def percent(share: float | None) -> str | None:
    """Return a share as a percentage; None if it is not known."""
    return ("<0.1%" if 0 < share < 0.0005 else f"{share:.1%}") if known(share) else None


def setting(value: object) -> str:
    """Return the value of a setting as it is written in a file of settings; a dash if it is not set."""
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return DASH if value is None or written == "NaN" else written


def section(title: str, *parts: Html | None, look: str | None = None) -> Html | None:
    """Return a section with its heading, or nothing if all parts are empty."""
    return tag("section", tag("h2", title), *parts, aria_label=title, class_=look) if any(parts) else None


def details(title: str, *parts: Html | None) -> Html | None:
    """Return parts that show when their title is chosen, or nothing if all are empty."""
    return tag("details", tag("summary", title), *parts) if any(parts) else None


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], words: int = 0, look: str = "names") -> Html | None:
    """Return a table: the first column names the rows, the last ``words`` are words, those between are numbers."""
    kinds = [None, *["n"] * (len(heads) - 1 - words), *[None] * words]
    top = [tag("th", head, scope="col", class_=kind) for head, kind in zip(heads, kinds, strict=True)]
    lines = []
    for first, *others in rows:
        cells = (tag("td", DASH if c is None else c, class_=kind) for c, kind in zip(others, kinds[1:], strict=True))
        lines.append(tag("tr", tag("th", first, scope="row"), *cells))
    return tag("table", tag("thead", tag("tr", *top)), tag("tbody", *lines), class_=look) if rows else None


def from_zero(most: int, top: float, unit: str, last: float | None = None) -> Axis:
    """Return an axis from 0 to a round number that is not below ``top``, or to ``last``."""
    return between(most, 0.0, top, unit, last)


def between(most: int, low: float, high: float, unit: str, last: float | None = None) -> Axis:
    """Return an axis between round numbers, with about ``most`` steps, that holds ``low`` and ``high``."""
    rounds = (m * 10.0**power for power in range(-9, 18) for m in (1, 2, 5))
    step = next((each for each in rounds if each * most >= 0.999999 * ((high - low) or high or 1)), high)
    first = math.floor(low / step + 1e-6)
    steps = range(first, max(first + 1, math.ceil(high / step - 1e-6)) + 1)
    ends = step * steps[-1] if last is None else last
    return Axis(
        step * first, ends, {step * k: f"{step * k:,.6g}" for k in steps if step * k <= ends * (1 + 1e-9)}, unit
    )


def curve(x: Axis, y: Axis, points: Sequence[tuple[float, float | None]], width: int = 1000) -> str:
    """Return the path of a line through points in order of x; a point that is not known is a gap."""
    path, pen = "", "M"
    for at, value in points:
        path += f"{pen}{width * x.share(at):.0f} {100 - 100 * y.share(value):.1f}" if known(value) else ""
        pen = "L" if known(value) else "M"
    return path


def plot(title: str, desc: str, paths: Mapping[str, str], x: Axis, y: Axis, width: int = 1000) -> Html:
    """Return a picture with labels beside it, which keep their size while it is stretched to the page.

    paths: class -> path in a box of ``width`` by 100, the top is 0.
    """
    paths = {"grid": "".join(f"M0 {100 - 100 * y.share(at):.1f}H{width}" for at in y.ticks), **paths}
    shapes = (tag("path", d=path, class_=look) for look, path in paths.items())
    box = {"role": "img", "viewBox": f"0 0 {width} 100", "preserveAspectRatio": "none"}
    parts = [tag("svg", tag("title", title), tag("desc", desc), *shapes, **box)]
    for look, side, axis in (("x", "left", x), ("y", "bottom", y)):
        parts.append(tag("span", axis.unit, class_=f"{look} unit"))
        for at, said in axis.ticks.items():
            parts.append(tag("span", said, class_=look, style=f"{side}:{100 * axis.share(at):.2f}%"))
    return tag("div", *parts, class_="plot")
