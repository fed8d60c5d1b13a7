"""Shared parts of HTML pages: templates that escape every text, and pictures.

A page works offline, in a single file with all styles and scripts. matplotlib draws pictures as SVG in the colours of
the page, also in dark mode.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from socialx.drawing.canvas import draw_lines
from socialx.drawing.terminal import DASH, number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NBSP = "\u00a0"
# These characters are no text, or turn the direction of the text behind them.
ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
FOLDER = Path(__file__).parent
SIZE = (300, 190)  # of a picture, in units that are a pixel on a telephone and beside two others
LEFT, RIGHT, TOP, BOTTOM = 34, 14, 24, 36  # room around the axes for labels
_LIGHT = (FOLDER / "page.css").read_text("utf-8").split("@media")[0]
COLOURS = {name: f"#{digits}" for name, digits in re.findall(r"--(\w+): #([0-9a-f]{6})", _LIGHT)}
NAMES = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
LOOK: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 12,
    "font.sans-serif": ["DejaVu Sans"],
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.spines.bottom": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "xaxis.labellocation": "right",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 8,
    "lines.scale_dashes": False,
    "grid.color": COLOURS["Line"],
    "axes.titlecolor": COLOURS["Soft"],
    "axes.labelcolor": COLOURS["Soft"],
    "xtick.color": COLOURS["Soft"],
    "ytick.color": COLOURS["Soft"],
}
# What the page says itself, its style and the look of texts, and the names of groups, of which a page may have one.
ALONE = re.compile(
    r'<defs>\s*<style.*?</style>\s*</defs>|font-size: 12px; font-family: [^;"]+;? ?| id="[\w.]+_\d+"', re.DOTALL
)
PLACES = re.compile(r' (?:d|x|y)="[^"]+"')


def render(template: str, view: Mapping[str, Any], styles: str, script: str = "", folder: Path = FOLDER) -> str:
    """Return a whole page.

    template: a file in ``folder`` or next to this module that extends ``page.html.j2``. view: names and values for the
    template. styles, script: texts that the page embeds.
    """
    trusted = {"css": Markup(styles), "script": Markup(script)}  # noqa: S704 - own files
    return environment(folder).get_template(template).render(trusted | dict(view))


def files(*names: str, folder: Path = FOLDER) -> str:
    """Return the joined style sheets or scripts by name, from this package's folder, else from ``folder``."""
    return "".join((FOLDER / name if (FOLDER / name).exists() else folder / name).read_text("utf-8") for name in names)


@cache
def environment(folder: Path) -> Environment:
    """Return the Jinja environment for templates in ``folder`` and in this package, with every text escaped."""
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
    """Return the hash by which a content security policy names a script or a style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def plain(part: object) -> str:
    """Return page text, with control characters replaced by U+FFFD."""
    return ODD.sub("\ufffd", str(part))


def setting(value: object) -> str:
    """Return a setting's value as written in a settings file, or a dash if unset."""
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return DASH if value is None or written == "NaN" else written


@dataclass(frozen=True)
class Line:
    """The look of a line: the name of a page colour, a width and dashes in picture units."""

    colour: str
    width: float = 2
    dashes: tuple[float, ...] = ()

    @property
    def css(self) -> str:
        """Return the style for the sample in a legend."""
        dashes = " ".join(map(str, self.dashes))
        return f"stroke:var(--{self.colour});stroke-width:{self.width};stroke-dasharray:{dashes}"

    @property
    def style(self) -> dict[str, Any]:
        """Return the style as keyword arguments for a matplotlib line."""
        dashes = (0, self.dashes) if self.dashes else "solid"
        return {"color": COLOURS[self.colour], "linewidth": self.width, "linestyle": dashes}


def inline(title: str, description: str, draw: Callable[[Axes], None], size: tuple[int, int] = SIZE) -> Markup:
    """Return a picture as an SVG element for a page; ``draw`` draws on the given axes.

    title: unique on the page; a screen reader reads title and description.  size: width and height in pixels.
    """
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    width, height = size
    drawn = io.StringIO()
    with style.context(["default", LOOK, {"svg.hashsalt": plain(f"{title} {description}")}]):
        figure = Figure(figsize=(width / 72, height / 72))  # a unit of the SVG is a point
        wide, high = (width - LEFT - RIGHT) / width, (height - TOP - BOTTOM) / height
        axes = figure.add_axes((LEFT / width, BOTTOM / height, wide, high))
        axes.locator_params("y", nbins=5, steps=[1, 2, 5, 10])
        draw(axes)
        for text in figure.findobj(Text):
            text.set_text(plain(text.get_text()))
        undated = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawn, format="svg", transparent=True, metadata=undated)
    shapes = drawn.getvalue().partition("<svg")[2].partition(">")[2].rpartition("</svg>")[0]
    shapes = ALONE.sub("", shapes)
    shapes = PLACES.sub(lambda places: re.sub(r"(\.\d)\d+", r"\1", places[0]), shapes)  # tenths of a pixel
    # A colour of the page stands there by its name, so that the page may change it.
    shapes = re.sub(r"#[0-9a-f]{6}", lambda colour: NAMES.get(colour[0], colour[0]), shapes)
    start = Markup('<svg role="img" class="plot" viewBox="0 0 {} {}"><title>{}</title><desc>{}</desc>')
    named = start.format(width, height, plain(title), plain(description))
    return named + Markup(shapes) + Markup("</svg>")  # noqa: S704 - matplotlib escapes its texts


def chart(
    name: str,
    description: str,
    lines: Iterable[tuple[Any, Any, Line]],
    band: tuple[Any, Any, Any] | None = None,
    size: tuple[int, int] = SIZE,
    **settings: Any,
) -> Markup:
    """Return lines, each with its places, its values and its look, as a picture for a page; the first is on top.

    band: places, and the lower and upper end of an area below the lines. settings: of the axes, as matplotlib has them.
    """

    def draw(axes: Axes) -> None:
        if band is not None:
            axes.fill_between(*band, color=COLOURS["Area"], linewidth=0)
        draw_lines(axes, [(places, values, line.style) for places, values, line in lines][::-1], **settings)

    return inline(name, description, draw, size)
