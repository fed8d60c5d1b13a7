"""Shared parts of all pictures: the figure with a style, titles, and a time axis.

matplotlib is loaded when a picture is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.core.disk import atomic_write
from socialx.core.errors import SettingsError, SocialxError
from socialx.core.outputs import PICTURE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
SIZE, DPI = (9.0, 10.5), 100  # inches, pixels per inch: as wide as a page shows it
HOUR, DAY = 3_600, 86_400  # seconds
SMALL, DOT = 10, 6.0  # points
MOST_DOTS = 47  # of a line
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")  # in English whatever the locale
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
BLUE, VERMILION = "#0072b2", "#d55e00"  # of Okabe and Ito's palette, which everybody can tell apart
GREY = "0.35"
UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}  # two renders are equal to the byte
# Everything else is matplotlib's default, whatever a matplotlibrc says.  Text of an SVG stays text, its ids are fixed.
STYLE: dict[str, Any] = {
    "svg.hashsalt": "socialx",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # text that can be selected and edited
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
}


def check_picture(path: Path) -> str:
    """Return the suffix of a picture.  Raises SettingsError for another one."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise SettingsError("picture.suffix", path, f"a picture cannot end in {suffix!r}", "name it .png, .svg or .pdf")
    return suffix


@contextmanager
def picture(path: str | Path | None, size: tuple[float, float] = SIZE) -> Iterator[Figure]:
    """Yield an empty figure, sized in inches, in the common style; after the block, write the figure to ``path``.

    None writes no file.  Notebooks show the figure.
    """
    kind = ".png" if path is None else check_picture(Path(path))
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ModuleNotFoundError as error:
        problem = f"drawing needs the package {error.name}"
        raise SocialxError("picture.package", path or "", problem, "pip install matplotlib") from None

    def drawn(kind: str = ".png") -> bytes:
        file = io.BytesIO()
        figure.savefig(file, format=kind[1:], dpi=DPI, metadata=UNDATED.get(kind, {}))
        return file.getvalue()

    with style.context(["default", STYLE]):  # undone at the end
        figure = Figure(figsize=size, dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
        yield figure
        content = drawn(kind)
    figure._repr_png_ = drawn  # type: ignore[attr-defined]  # read by notebooks
    if path is not None:
        with atomic_write(Path(path)) as temporary:
            temporary.write_bytes(content)


def plot_lines(path: str | Path | None, heading: tuple[str, str], lines: Mapping[str, Any], **axes: Any) -> Figure:
    """Draw lines by name, each with places and values, into a picture, if a path is given, and return the figure."""
    if path is not None:
        PICTURE.check_older(Path(path))
    with picture(path, (7.5, 5.0)) as figure:
        headline(figure, *heading)
        shown = figure.subplots()
        draw_lines(shown, [(*line, {"label": name}) for name, line in lines.items()], **axes)
        shown.locator_params(axis="x", integer=True)
        plain(shown, "y")
        shown.legend(frameon=False, fontsize=SMALL)
    return figure


def time_ticks(
    start: int, length_s: int, local: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> tuple[list[int], list[str], list[int]]:
    """Return label positions, label texts and midnights for a time axis of length_s; positions: seconds after start.

    local: converts seconds of the axis, int64 [t], to wall time, as ``Clock.local``.
    """
    axis = np.arange(-(-start // 300) * 300, start + length_s, 300)
    wall = local(axis)
    midnights = (axis[wall % DAY == 0] - start).tolist()
    lines = [midnight for midnight in midnights if midnight > 0]
    if length_s > 2 * DAY:
        return midnights, [day(second) for second in wall[wall % DAY == 0].tolist()], lines
    step = next(s for s in (300, 900, 1800, HOUR, 3 * HOUR, 6 * HOUR) if length_s / s <= 9)
    whole = wall % step == 0
    places, moments = (axis[whole] - start).tolist() or [0], wall[whole].tolist() or local(np.array([start])).tolist()
    texts = [moment(second).strftime("%H:%M") for second in moments]
    for index, second in enumerate(moments):
        if index == 0 or second % DAY == 0:
            texts[index] += f"\n{day(second)}"
    return places, texts, lines


def moment(second: int) -> datetime:
    """Return the wall time for a second, which counts from 1970 in wall time, as a datetime marked UTC."""
    return datetime.fromtimestamp(second, UTC)


def value_limits(values: np.ndarray) -> tuple[float, float]:
    """Return the lower and upper end of an axis for values; 0 is an end where values come close to 0."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    bottom = min(0.0, low) if low < high / 4 else min(low, 0.8 * high)  # what hardly changes looks flat
    room = 0.05 * (high - bottom or 1.0)
    return bottom - (room if bottom else 0.0), high + room


def day(second: int) -> str:
    """Return a second's date (since 1970), wall time, as ``Mon 5 Mar``."""
    date = moment(second)
    return f"{DAYS[date.weekday()]} {date.day} {MONTHS[date.month - 1]}"


def headline(figure: Figure, first: str, second: str) -> None:
    """Write a picture's heading (first), and below, in smaller letters, the data behind the picture (second)."""
    figure.suptitle(f"{first}\n", x=0.01, ha="left", fontsize=13)
    figure.text(0.01, 1 - 0.4 / figure.get_figheight(), second, va="top", fontsize=SMALL)


def title(axes: Axes, first: str, second: str) -> None:
    """Write a panel's heading (first), and below, in smaller letters, a note for readers (second)."""
    axes.set_title(first, pad=22)
    axes.annotate(second, (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=SMALL)


def draw_lines(axes: Axes, lines: Iterable[tuple[Any, Any, Mapping[str, Any]]], **settings: Any) -> None:
    """Draw lines, each with its places, its values and its look, and set the axes; one or few values have dots."""
    for places, values, look in lines:
        dots = {"marker": "o", "markersize": 3} if len(values) == 1 or 2 < len(values) <= MOST_DOTS else {}
        axes.plot(places, values, **{**dots, **look})
    axes.set(**settings)


def plain(axes: Axes, grid: str) -> None:
    """Remove the frame at the top and at the right; draw a quiet grid behind the data (grid: x, y or both)."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="0.93")  # type: ignore[arg-type]
    axes.set_axisbelow(True)
