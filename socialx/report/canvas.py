"""What all pictures share: the figure and its style, titles, labels that avoid each other, and a time axis.

matplotlib is loaded when a picture is asked for.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.disk import replacing
from socialx.errors import SettingsError, SocialxError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
SIZE, DPI = (15.0, 7.2), 100  # inches, pixels per inch
HOUR, DAY = 3_600, 86_400  # seconds
SMALL, DOT = 10, 6.0  # points
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")  # in English whatever the locale
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
BLUE, VERMILION = "#0072b2", "#d55e00"  # of Okabe and Ito's palette, which everybody can tell apart
GREY = "0.35"
BAR: dict[str, Any] = {"location": "bottom", "fraction": 0.05, "aspect": 40, "pad": 0.02}  # the colour bars
UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}  # two renders are equal to the byte
# Everything else is matplotlib's default, whatever a matplotlibrc says.  Text of an SVG stays text, its ids are fixed.
STYLE: dict[str, Any] = {
    "svg.hashsalt": "socialx",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # text that can be selected and edited
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
}


def check_picture(path: Path) -> None:
    """Refuse a name that no picture can have."""
    if path.suffix.lower() not in FORMATS:
        raise SettingsError(path, f"a picture cannot end in {path.suffix.lower()!r}", "name it .png, .svg or .pdf")


@contextmanager
def picture(path: Path, size: tuple[float, float] = SIZE) -> Iterator[Figure]:
    """An empty figure of so many inches, in the style of all pictures; it is written when the block ends well."""
    check_picture(path)
    kind = path.suffix.lower()
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ModuleNotFoundError as error:
        raise SocialxError(path, f"drawing needs the package {error.name}", "pip install matplotlib") from None
    drawn = io.BytesIO()
    with style.context(["default", STYLE]):  # undone at the end
        figure = Figure(figsize=size, dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
        yield figure
        figure.savefig(drawn, format=kind[1:], dpi=DPI, metadata=UNDATED.get(kind, {}))
    with replacing(path) as temporary:
        temporary.write_bytes(drawn.getvalue())


def label(axes: Axes, texts: list[str], anchors: np.ndarray, degrees: np.ndarray, taken: list[np.ndarray]) -> None:
    """Write texts beside their anchors [m,2], each where it hides no other text and the fewest of the dots [n,2].

    Anchors and dots in units of the axes, whose layout is final.  taken: the boxes in points that are full already.
    """
    dots, size = points(axes, degrees)
    margin = np.array([-4.0, -4.0, 4.0, 4.0])
    turns = np.radians(np.arange(0, 360, 30))
    for text, anchor in zip(texts, anchors, strict=True):
        half = np.array([0.34 * SMALL * len(text) + 2, 0.7 * SMALL])  # of its box; digits are 0.64 of their size wide
        at = points(axes, anchor[None])[0][0]
        choices = []
        for radius in (16, 34, 52, 76):
            for turn in turns:
                shift = np.array([np.cos(turn), np.sin(turn)]) * (half + radius)
                box = np.concatenate([at + shift - half, at + shift + half])
                clashes = sum(bool((box[:2] < other[2:]).all() and (other[:2] < box[2:]).all()) for other in taken)
                clashes += bool((box[:2] < 4).any() or (box[2:] > size - 4).any())
                choices.append(((clashes, inside(dots, box + margin), radius), shift, box))
        _, shift, box = min(choices, key=lambda choice: choice[0])
        taken = [*taken, box]
        axes.annotate(
            text,
            anchor,
            shift,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=SMALL,
            zorder=6,
            bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            arrowprops={"arrowstyle": "-", "color": "black", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 2},
        )


def points(axes: Axes, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places [n,2] and the size [2] of the panel in points from its lower left corner; its layout is final."""
    size = np.array(axes.bbox.size) * 72 / DPI
    return axes.transAxes.inverted().transform(axes.transData.transform(degrees)) * size, size


def km_axes(axes: Axes, xy: np.ndarray) -> None:
    """A map of places [n,2] in km, north up, with equal scales."""
    axes.set(xlabel="km east of the centre", ylabel="km north of the centre")
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.08)
    middle = np.median(xy, axis=0)
    axes.update_datalim([middle - 1, middle + 1])  # 2 km even for one place alone
    axes.grid(color="0.93")
    axes.set_axisbelow(True)


def emptiest_corner(axes: Axes, xy: np.ndarray, size: tuple[float, float], taken: list[np.ndarray]) -> np.ndarray:
    """A box of this size in points in the corner with the fewest of the places [n,2]; the layout is final.

    taken: the boxes in points that are full already.
    """
    dots, whole = points(axes, xy)
    right, top = whole - size - 8
    boxes = [np.array([x, y, x + size[0], y + size[1]]) for y in (8, top) for x in (8, right)]

    def full(box: np.ndarray) -> tuple[bool, int]:
        clash = any(bool((box[:2] < other[2:]).all() and (other[:2] < box[2:]).all()) for other in taken)
        return clash, inside(dots, box)

    return min(boxes, key=full)  # the first of the emptiest


def scale_and_north(axes: Axes, xy: np.ndarray, taken: list[np.ndarray]) -> np.ndarray:
    """A bar of 1, 2 or 5 times a power of ten km and an arrow to the north -> the box they take, in points.

    xy [n,2]: the places in km that are drawn; the layout is final.  taken: the boxes in points that are full already.
    """
    _, size = points(axes, xy)
    span = np.ptp(axes.get_xlim())
    power = 10.0 ** np.floor(np.log10(span / 4))
    length = power * max(factor for factor in (1, 2, 5) if factor * power <= span / 4)
    box = emptiest_corner(axes, xy, (length / span * size[0] + 46, 30), taken)
    ends, y = (box[[0, 2]] + [8, -38]) / size[0], (box[1] + 6) / size[1]
    axes.plot(ends, [y, y], color="black", linewidth=3, solid_capstyle="butt", transform=axes.transAxes, zorder=5)
    text: dict[str, Any] = {"ha": "center", "fontsize": SMALL, "zorder": 5}
    axes.text(ends.mean(), y + 4 / size[1], f"{length:g} km", va="bottom", transform=axes.transAxes, **text)
    x, arrow = (box[2] - 14) / size[0], {"arrowstyle": "-|>", "facecolor": "black", "shrinkA": 0, "shrinkB": 0}
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "axes fraction"}
    axes.annotate("N", (x, box[3] / size[1]), (x, y), arrowprops=arrow, **place, **text)
    return box


def inside(dots: np.ndarray, box: np.ndarray) -> int:
    """How many dots [n,2] lie in a box of left, bottom, right, top."""
    return int(((dots >= box[:2]) & (dots <= box[2:])).all(axis=1).sum())


def astray(xy: np.ndarray) -> np.ndarray:
    """Whether a sensor is so far from all others that it would press them into one dot; xy [N,2] in km."""
    gap = np.hypot(*(xy - np.nanmedian(xy, axis=0)).T)
    return gap > 20 * max(1.0, float(np.nanmedian(gap)))


def time_ticks(start: int, length_s: int) -> tuple[list[int], list[str], list[int]]:
    """Seconds since the start and texts of the labels, and where lines are drawn: at every midnight in between."""
    midnights = list(range(-(-start // DAY) * DAY, start + length_s, DAY))
    lines = [each - start for each in midnights if each > start]
    if length_s > 2 * DAY:
        return [each - start for each in midnights], [day(each) for each in midnights], lines
    step = next(s for s in (300, 900, 1800, HOUR, 3 * HOUR, 6 * HOUR) if length_s / s <= 9)
    moments = list(range(-(-start // step) * step, start + length_s, step)) or [start]
    texts = [moment(each).strftime("%H:%M") for each in moments]
    for place, each in enumerate(moments):
        if place == 0 or each % DAY == 0:
            texts[place] += f"\n{day(each)}"
    return [each - start for each in moments], texts, lines


def moment(second: int) -> datetime:
    """A second since 1970 as the wall time that it was read from."""
    return datetime.fromtimestamp(second, UTC)


def day(second: int) -> str:
    """``Mon 5 Mar``."""
    date = moment(second)
    return f"{DAYS[date.weekday()]} {date.day} {MONTHS[date.month - 1]}"


def title(axes: Axes, first: str, second: str) -> None:
    """A heading, and in smaller letters what there is to know before one looks."""
    axes.set_title(first, pad=22)
    axes.annotate(second, (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=SMALL)


def plain(axes: Axes, grid: str) -> None:
    """No frame where there is nothing, a quiet grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="0.93")  # type: ignore[arg-type]
    axes.set_axisbelow(True)
