"""The picture of a file: complete, the same every time, and drawn for any file that can be opened."""

import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from socialx.core.errors import SettingsError
from socialx.files.store.layout import Sensors
from socialx.files.store.store import Store, open_store
from socialx.files.store.writer import create
from socialx.inspection import tables as file_tables
from socialx.inspection.report import Report, examine
from socialx.inspection.tables import plot_report
from tests.data_files import block, left_behind, made_up, refusal, timestamps

MONTH = 20 * 288  # rows: Thu 1 March 2012 to Tue 20 March


def drawn(
    folder: Path, values: np.ndarray, times: list[str] | None = None, degrees: np.ndarray | None = None
) -> tuple[Store, Report]:
    """A made-up file opened; values [T,N], degrees [N,2] latitude first, or sensors along a line."""
    count = values.shape[1]
    ids = tuple(f"V{place:04d}" for place in range(count))
    readings = made_up([block(times or timestamps(len(values)), values)], ids)
    if degrees is not None:
        readings = replace(readings, sensors=Sensors(ids, *np.array(degrees, float).T))
    create(folder / "file.h5", readings, overwrite=True)
    store = open_store(folder / "file.h5")
    return store, examine(store)


def texts(path: Path) -> list[str]:
    """The text nodes of an SVG."""
    root = ElementTree.parse(path).getroot()  # noqa: S314 - our own file
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


def svg(folder: Path, *made: object, **more: object) -> list[str]:
    """The texts of the picture of a made-up file."""
    plot_report(*drawn(folder, *made, **more), folder / "out.svg")  # type: ignore[arg-type]
    return texts(folder / "out.svg")


def speeds(rows: int, sensors: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(5, 70, (rows, sensors))


def month() -> np.ndarray:
    """20 days of 6 sensors: 1 dead, 4 and 2 bad, the others with a missing reading or none."""
    values = speeds(MONTH, 6)
    values[:, 1], values[:900, 4], values[:500, 2], values[7, 0] = np.nan, np.nan, np.nan, np.nan
    return values


def test_a_png_is_written(tmp_path: Path) -> None:
    plot_report(*drawn(tmp_path, speeds(30, 3)), tmp_path / "new" / "out.PNG")
    data = (tmp_path / "new" / "out.PNG").read_bytes()
    assert (data[:8], int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (b"\x89PNG\r\n\x1a\n", 900, 1050)


def test_an_svg_says_what_it_shows(tmp_path: Path) -> None:
    found = svg(tmp_path, month())
    joined = "\n".join(found)
    assert "5,760 rows, 2012-03-01 00:00 to 2012-03-20 23:55" in joined
    assert {"V0001", "V0004", "V0002"} <= set(found)  # the worst three
    assert not {"V0000", "V0003", "V0005"} & set(found)
    assert "1 without any reading (X)" in joined
    assert [text for text in found if text.endswith(" Mar")] == [
        "Mon 5 Mar", "Tue 6 Mar", "Wed 7 Mar", "Thu 8 Mar", "Fri 9 Mar", "Sat 10 Mar", "Sun 11 Mar"
    ]  # fmt: skip
    assert "centre" in joined
    for words in ("avg speed, km/h", "one sensor", "15 minutes", "grey"):
        assert words in joined


def test_a_map_without_missing_readings_shows_their_mean(tmp_path: Path) -> None:
    values = speeds(MONTH, 6)
    values[:, [4, 0, 3]] *= [0.5, 0.6, 0.7]  # the slow ones
    found = svg(tmp_path, values)
    assert {"V0000", "V0003", "V0004"} <= set(found)
    assert not {"V0001", "V0002", "V0005"} & set(found)
    shown = "\n".join(found)
    assert "mean avg speed" in shown
    assert "a valid reading" not in shown
    week = "5 Mar to Sun 11"  # the first of equals
    assert week in shown


def week(store: Store) -> tuple[np.ndarray, float, str]:
    """Cells [C,N] of the picture of a week, the seconds that they span, and all texts beside them."""
    figure = Figure()
    axes = figure.subplots()
    file_tables._draw_week(figure, axes, store)
    (image,) = axes.get_images()
    words = "\n".join(text.get_text() for text in axes.findobj(Text))
    return np.ma.filled(image.get_array(), np.nan).T, image.get_extent()[1], words


def test_the_cells_are_means_of_valid_readings(tmp_path: Path) -> None:
    values, monday = np.full((MONTH, 3), 30.0), 4 * 288
    values[monday : monday + 3, 0] = [10, np.nan, 20]
    values[monday + 3 : monday + 6, 1] = np.nan
    values[15 * 288 :, 2] = np.nan  # makes the second week the worse one
    cells, seconds, words = week(drawn(tmp_path, values)[0])
    assert "5 Mar to Sun 11" in words
    assert (seconds, cells.shape, cells[0].tolist()) == (7 * 86400, (672, 3), [15, 30, 30])
    assert np.isnan(cells[1, 1])
    assert np.isnan(cells).sum() == 1
    values[monday : 8 * 288, 2] = np.nan  # four days: now the first week is the worse one
    assert "12 Mar to Sun 18" in week(drawn(tmp_path, values)[0])[2]


def test_a_short_file_is_shown_from_its_first_row_on(tmp_path: Path) -> None:
    values, times = speeds(10 * 288, 2), timestamps(2880, "2012-03-06T10:00:00")  # no week from a Monday
    cells, seconds, words = week(drawn(tmp_path, values, times)[0])
    assert "6 Mar to Tue 13" in words
    assert (seconds, sorted(cells[0])) == (7 * 86400, pytest.approx(sorted(values[:3].mean(axis=0)), rel=1e-5))
    cells, seconds, _ = week(drawn(tmp_path, values[:288])[0])
    assert (seconds, cells.shape) == (86400, (288, 2))


def test_a_gap_is_grey(tmp_path: Path) -> None:
    times = timestamps(100)
    store, _ = drawn(tmp_path, speeds(90, 2), times[:40] + times[50:])
    assert np.flatnonzero(np.isnan(week(store)[0][:, 0])).tolist() == list(range(40, 50))


def test_sensors_are_in_order_of_their_mean() -> None:
    rows, group = file_tables._sorted_rows(np.array([[5.0, np.nan, 1.0, 3.0], [np.nan, np.nan, 3.0, 3.5]]))
    assert group == 1
    np.testing.assert_array_equal(rows, [[np.nan, 1, 3, 5], [np.nan, 3, 3.5, np.nan]])


def test_many_sensors_share_a_row() -> None:
    cells = np.arange(1000.0)[None].repeat(2, axis=0)
    cells[1, :4], cells[1, 0] = np.nan, 7  # their means are 3.5, 1, 2 and 3: the first comes after the other three
    rows, group = file_tables._sorted_rows(cells)
    assert (group, rows.shape, rows[0, [0, 1, 2, -1]]) == (3, (2, 334), pytest.approx([2, 3, 7, 999]))
    assert rows[1, [0, 1, 2, -1]] == pytest.approx([np.nan, 16 / 3, 7, 999], nan_ok=True)


@pytest.mark.slow
def test_two_renders_are_equal_and_nothing_global_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = drawn(tmp_path, month())
    for name in ("out_a.svg", "out_a.pdf"):
        plot_report(*made, tmp_path / name)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would fail
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        before = matplotlib.rcParams.copy()
        for name in ("out_b.svg", "out_b.pdf"):
            plot_report(*made, tmp_path / name)
        assert matplotlib.rcParams.copy() == before
    assert (tmp_path / "out_a.svg").read_bytes() == (tmp_path / "out_b.svg").read_bytes()
    assert (tmp_path / "out_a.pdf").read_bytes() == (tmp_path / "out_b.pdf").read_bytes()
    assert (tmp_path / "out_a.pdf").read_bytes().startswith(b"%PDF-")
    assert "dc:date" not in (tmp_path / "out_a.svg").read_text()


NOWHERE = np.full((3, 2), np.nan)
CASES = {
    "one sensor": (speeds(30, 1), None, "1 sensor"),
    "no reading": (np.full((30, 3), np.nan), None, "100.0% missing"),
    "no position": (speeds(600, 3), NOWHERE, "position"),
    "one position": (speeds(30, 3), np.array([[34, -118], *NOWHERE[:2]]), "2 without position"),
    "one place": (speeds(30, 3), np.array([[34, -118]] * 3), "location"),
    "one astray": (speeds(30, 3), np.array([[34, -118], [34.1, -118], [0, 1]]), "1 far away"),
    "one at 0, 0": (speeds(30, 3), np.array([[34, -118], [34.1, -118], [0, 0]]), "1 without position"),
    "two places far apart": (speeds(30, 2), np.array([[34, -118], [-34, 118]]), "location"),
    "at the pole": (speeds(30, 2), np.array([[90, 0], [89.9, 0]]), "location"),
    "two rows": (speeds(2, 2), None, "Readings"),
    "one speed": (np.full((30, 2), 50.0), None, "nothing missing"),
    "nothing but zeros": (np.zeros((30, 2)), None, "nothing missing"),
    "below zero": (-speeds(30, 2), None, "nothing missing"),
    "hours": (speeds(40, 2), None, "03:00"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", CASES)
def test_any_file_can_be_drawn(tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture) -> None:
    values, degrees, words = CASES[case]
    (tmp_path / "out.svg").write_text("an earlier picture")
    assert words in "\n".join(svg(tmp_path, values, degrees=degrees))
    assert not caplog.records
    assert left_behind(tmp_path) == ["out.svg"]


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_large_file_stays_small(tmp_path: Path) -> None:
    values = np.random.default_rng(1).uniform(0, 70, (8 * 288, 1201))
    values[:, 5] = np.nan
    degrees = np.random.default_rng(2).uniform((24, 120), (25, 121), (1201, 2))
    found = "\n".join(svg(tmp_path, values, degrees=degrees))
    assert "4 sensors" in found
    assert "V0005" in found
    assert (tmp_path / "out.svg").stat().st_size < 1_500_000


@pytest.mark.parametrize("name", ["out.jpg", "out", "out.svg.gz", ".png"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    made = drawn(tmp_path, speeds(3, 2))
    with pytest.raises(SettingsError):
        plot_report(*made, tmp_path / name)
    assert refusal(lambda: plot_report(*made, tmp_path / name), name, ".png, .svg").code == "picture.suffix"
    assert left_behind(tmp_path) == []


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    made = drawn(tmp_path, speeds(3, 2))
    (tmp_path / "out.png").mkdir()
    refusal(lambda: plot_report(*made, tmp_path / "out.png"), "out.png", "cannot be written")
    refusal(lambda: plot_report(*made, tmp_path / "file.h5" / "out.svg"), "out.svg", "cannot be written")
    assert (left_behind(tmp_path), list((tmp_path / "out.png").iterdir())) == (["out.png"], [])


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = drawn(tmp_path, speeds(3, 2))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refusal(lambda: plot_report(*made, tmp_path / "out.svg"), "matplotlib", "pip install")
    assert left_behind(tmp_path) == []
