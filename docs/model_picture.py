"""Draws docs/pictures/model.png, the model as blocks, from the page docs/model.md."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from socialx.drawing.canvas import BLUE, GREY, VERMILION, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (15.0, 6.6)  # inches; the axes have the same units
NAME, TEXT, SMALL = 13.5, 12, 11  # points
INPUT, STEP = "0.95", "#e3eef6"  # fill of what goes in, and of what is computed
NEIGHBOURS = (
    (-0.45, 0.25),
    (0.3, 0.42),
    (0.5, -0.2),
    (-0.15, -0.5),
)  # within the radius, from the sensor in the middle
FAR = ((-1.05, -0.35), (1.1, 0.3))


def draw(path: Path) -> None:
    """Write the picture, as .png or .svg."""
    with picture(path, SIZE) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, SIZE[0]), ylim=(0, SIZE[1]))
        axes.axis("off")
        _inputs(axes)
        _steps(axes)
        _arrows(axes)
        _neighbourhood(axes)


def _inputs(axes: Axes) -> None:
    _box(axes, 0.2, 4.95, 3.0, 1.0, INPUT, "Time of day, weekday", "and which sensor it is")
    _box(axes, 0.2, 3.0, 3.0, 1.2, INPUT, "Readings of the last hour", "N sensors, 12 steps;\na missing one has a flag")
    _box(axes, 0.2, 0.7, 3.0, 1.2, INPUT, "Climatology", "the usual reading of each\nsensor at each time of the week")


def _steps(axes: Axes) -> None:
    _box(axes, 3.75, 2.9, 2.1, 1.4, STEP, "Tokens", "a vector for each\nsensor and patch", "[B,N,M,E]")
    _box(axes, 6.3, 2.9, 2.1, 1.4, STEP, "Shared encoder", "one xLSTM reads\neach sensor alone", "[B,N,E]")
    _box(axes, 9.1, 2.9, 1.9, 1.4, STEP, "Social layers", "add what the\nneighbours show", "[B,N,E]")
    _box(axes, 11.5, 2.9, 1.5, 1.4, STEP, "Gate", "own state or\nneighbours", "[B,N,E]")
    _box(axes, 13.4, 2.9, 1.4, 1.4, STEP, "Head", "change over\n12 steps", "[B,P,N,G]")
    _box(axes, 12.2, 0.6, 2.6, 1.2, INPUT, "Forecast", "latest reading + change,\nin mph or km/h")


def _arrows(axes: Axes) -> None:
    for start, end in ((3.2, 3.75), (5.85, 6.3), (8.4, 9.1), (11.0, 11.5), (13.0, 13.4)):
        _path(axes, (start, 3.6), (end, 3.6))
    _path(axes, (3.2, 5.45), (4.8, 5.45), (4.8, 4.3))
    _path(axes, (3.2, 1.3), (4.8, 1.3), (4.8, 2.9))
    _path(axes, (4.8, 1.3), (8.6, 1.3), (8.6, 3.57))
    _path(axes, (1.7, 3.0), (1.7, 2.2), (11.6, 2.2), (11.6, 1.2), (12.2, 1.2))
    _path(axes, (14.1, 2.9), (14.1, 1.8))
    _path(axes, (8.82, 3.6), (8.82, 2.55), (12.25, 2.55), (12.25, 2.9))
    small = {"color": GREY, "fontsize": SMALL, "va": "bottom"}
    axes.text(5.0, 1.34, "what is usual over the next hour", **small)
    axes.text(5.0, 2.24, "latest valid reading", **small)
    axes.text(10.1, 2.59, "own state", **small)


def _neighbourhood(axes: Axes) -> None:
    from matplotlib.patches import Circle

    x, y = 10.05, 5.35
    axes.add_patch(Circle((x, y), 0.75, facecolor=STEP, edgecolor=BLUE, linewidth=1.2, linestyle="--"))
    for dx, dy in NEIGHBOURS:
        axes.annotate("", (x, y), (x + dx, y + dy), arrowprops={"arrowstyle": "-|>", "color": BLUE, "shrinkB": 5})
    axes.scatter([x + dx for dx, _ in NEIGHBOURS], [y + dy for _, dy in NEIGHBOURS], s=45, color=BLUE, zorder=3)
    axes.scatter([x + dx for dx, _ in FAR], [y + dy for _, dy in FAR], s=45, color="0.75", zorder=3)
    axes.scatter([x], [y], s=80, color=VERMILION, zorder=4)
    _path(axes, (x, y - 0.75), (x, 4.3))
    beside = {"fontsize": TEXT, "va": "center", "linespacing": 1.4}
    axes.text(
        x - 1.35, y, "Positions of the sensors:\neach head has a radius,\nand training changes it", ha="right", **beside
    )
    axes.text(x + 1.4, y, "The no-neighbour weight\ncompletes the sum to 1", **beside)


def _box(axes: Axes, x: float, y: float, width: float, height: float, colour: str, *texts: str) -> None:
    """Draw a box with its name, its effect and, for a step, the output shape."""
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch((x, y), width, height, style, facecolor=colour, edgecolor="0.4", linewidth=1))
    name, what, *shape = texts
    axes.text(x + width / 2, y + height - 0.3, name, ha="center", va="center", fontsize=NAME, fontweight="bold")
    axes.text(x + width / 2, y + height - 0.5, what, ha="center", va="top", fontsize=TEXT, linespacing=1.3)
    for each in shape:
        axes.text(
            x + width / 2, y + 0.18, each, ha="center", va="center", fontsize=SMALL, color=GREY, family="monospace"
        )


def _path(axes: Axes, *places: tuple[float, float]) -> None:
    """Draw a line through these points with a head at the end."""
    for start, end in pairwise(places[:-1]):
        axes.plot(*zip(start, end, strict=True), color="0.3", linewidth=1.3, solid_capstyle="round")
    arrow = {"arrowstyle": "-|>", "color": "0.3", "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", places[-1], places[-2], arrowprops=arrow)
