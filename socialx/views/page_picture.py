"""Pictures inside of pages: SVG by matplotlib, whose colours are those of the page, also in the dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from socialx.views.canvas import DAY, HOUR
from socialx.views.page import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (300, 190)  # of a picture, in units that are a pixel on a telephone and beside two others
LEFT, RIGHT, TOP, BOTTOM = 34, 14, 24, 36  # room around the axes for labels
_LIGHT = Path(__file__).with_name("page.css").read_text("utf-8").split("@media")[0]
COLOURS = {name: f"#{digits}" for name, digits in re.findall(r"--(\w+): #([0-9a-f]{6})", _LIGHT)}
NAMES = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
STYLE: dict[str, Any] = {
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
    "xtick.major.pad": 6,
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


@dataclass(frozen=True)
class Line:
    """What a line looks like: the name of its colour on the page, its width and dashes in units of the picture."""

    colour: str
    width: float = 2
    dashes: tuple[float, ...] = ()

    @property
    def css(self) -> str:
        """For the sample in a legend."""
        dashes = " ".join(map(str, self.dashes))
        return f"stroke:var(--{self.colour});stroke-width:{self.width};stroke-dasharray:{dashes}"

    @property
    def style(self) -> dict[str, Any]:
        """For matplotlib."""
        dashes = (0, self.dashes) if self.dashes else "solid"
        return {"color": COLOURS[self.colour], "linewidth": self.width, "linestyle": dashes}


def inline(
    title: str,
    description: str,
    draw: Callable[[Axes], None],
    size: tuple[int, int] = SIZE,
) -> Markup:
    """Draw on axes that have a unit as title and as label -> an SVG element, which can be heard too.

    title: no other picture of the page has it.
    """
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    width, height = size
    drawn = io.StringIO()
    with style.context(["default", STYLE, {"svg.hashsalt": plain(f"{title} {description}")}]):
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


def clock_axes(axes: Axes, seconds: np.ndarray, values: np.ndarray, unit: str) -> float:
    """Axes for values over one day, from 0 on where none is below -> the hour at the left."""
    hours, read = seconds % DAY / HOUR, values[np.isfinite(values)]
    left, right = float(hours[0]), max(float(hours[-1]), float(hours[0]) + 0.1)
    bottom, top = min(0.0, float(read.min(initial=0))), float(read.max(initial=0)) or 1.0
    ticks = [hour for hour in range(2, 24, 4) if left <= hour <= right]
    axes.set(title=unit, xlim=(left, right), ylim=(bottom, 1.02 * top))
    axes.set_xticks(ticks, [f"{hour:02}:00" for hour in ticks])
    return left
