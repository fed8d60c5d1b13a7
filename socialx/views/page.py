"""What HTML pages share: templates that escape every text, and numbers as texts.

A page needs no network and no other file: styles and scripts stand in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

DASH, NBSP = "\u2013", "\u00a0"  # a dash stands for what is not known
# These characters are no text, or turn the direction of the text behind them.
ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
FOLDER = Path(__file__).parent


def render(template: str, view: Mapping[str, Any], styles: str, script: str = "", folder: Path = FOLDER) -> str:
    """Return a whole page.

    template: a file of ``folder`` or of this package, which extends ``page.html.j2``.  view: what it shows.  styles,
    script: the only ones that it has.
    """
    trusted = {"css": Markup(styles), "script": Markup(script)}  # noqa: S704 - own files
    return environment(folder).get_template(template).render(trusted | dict(view))


def files(*names: str, folder: Path = FOLDER) -> str:
    """Return the texts of style sheets or scripts one after the other; those of this package, or of a folder."""
    return "".join((FOLDER / name if (FOLDER / name).exists() else folder / name).read_text("utf-8") for name in names)


@cache
def environment(folder: Path) -> Environment:
    """Templates of a folder and of this package, in which every text is escaped."""
    made = Environment(
        loader=FileSystemLoader([folder, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda part: part if isinstance(part, Markup) else "" if part is None else plain(part),
    )
    made.globals |= {"DASH": DASH, "NBSP": NBSP}
    made.filters |= {"number": number, "percent": percent, "setting": setting}
    return made


def digest(text: str) -> str:
    """Return how a content security policy names a script or a style: by its hash."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def plain(part: object) -> str:
    """Return a text without characters that are no text."""
    return ODD.sub("\ufffd", str(part))


def known(value: object) -> TypeGuard[float]:
    """Whether this is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def number(value: float | None, unit: str = "", digits: int | None = None) -> str:
    """Return a number of about three digits, or of so many after the point, with its unit; a dash if not known."""
    if not known(value):
        return DASH
    if digits is None:
        digits = sum(abs(value) < least for least in (99.95, 9.995, 0.9995)) if value != int(value) else 0
    return f"{value:,.{digits}f}{unit}"


def percent(share: float | None) -> str:
    """Return a share as a percentage; a dash if it is not known."""
    return ("<0.1%" if 0 < share < 0.0005 else f"{share:.1%}") if known(share) else DASH


def setting(value: object) -> str:
    """Return the value of a setting as it is written in a file of settings; a dash if it is not set."""
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return DASH if value is None or written == "NaN" else written
