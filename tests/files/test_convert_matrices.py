"""A CSV of numbers only: what it is taken for, how it is read, and what is asked where nothing tells."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from socialx.core.errors import FallbackWarning
from socialx.files.sources.positions.neighbours import read_distances
from socialx.files.sources.readings import read as read_any
from socialx.files.sources.recognition import FORMATS, recognise
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables import text_cells
from socialx.files.store.head import read_head
from socialx.files.store.layout import Readings
from socialx.files.store.store import open_store
from tests.commands import socialx
from tests.data_files import refusal, shown, speeds, timestamps, write_csv, write_locations

CLOCK = {"first_time": "2012-05-01 00:00", "step_s": 300}
TIMES = timestamps(60, "2012-05-01T00:00:00")


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def v_228(path: Path, values: np.ndarray) -> Path:
    """As STGCN writes it: 7.100000000000000000e+01."""
    np.savetxt(path, values, delimiter=",")
    return path


def read(kind: str, path: Path, **said: object) -> Readings:
    return read_any(kind, ConvertOptions(path, **said, without_positions=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["csv", "auto", "matrix-csv"])
@pytest.mark.parametrize("size", [1, 1000, 1 << 22])
def test_rows_of_numbers_are_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: int) -> None:
    monkeypatch.setattr(text_cells, "PIECE_BYTES", size)
    values = speeds(60, 5)
    data, out = v_228(tmp_path / "V_228.csv", values), tmp_path / "out.h5"
    ids = text(tmp_path / "ids.txt", "\n".join(f"d{n}" for n in range(5)))
    meta = write_locations(tmp_path / "meta.csv", tuple(f"d{n}" for n in range(5)))
    clock = ["--first-time", "2012-05-01 00:00", "--freq", "5min", "--ids", ids]
    done = socialx("convert", kind, data, *clock, "--meta-csv", meta, "--output-h5", out, "--validate")
    assert done.exit_code == 0, done.stderr
    assert f"{data}: the rows lack times and are counted from 2012-05-01 00:00" in done.stderr
    store = open_store(out)
    assert store.sensors.ids == ("d0", "d1", "d2", "d3", "d4")
    assert store.timestamps.astype(str).tolist() == TIMES
    assert store.values.tobytes() == values.astype(np.float32).tobytes()


def test_auto_says_what_it_is_and_what_to_add(tmp_path: Path) -> None:
    data = v_228(tmp_path / "V_228.csv", speeds(60, 5))
    said = socialx("convert", "auto", data)
    assert said.stdout.endswith("rows of numbers without a header and without times, 5 columns (matrix-csv)\n")
    assert said.stderr == (
        f"next: socialx convert auto {data} --first-time 'YYYY-MM-DD HH:MM:SS' --freq 5min "
        "--meta-csv LOCATIONS.csv --output-h5 OUT.h5\n"
    )
    for kind in ("csv", "auto"):
        refusal(
            lambda kind=kind: read(kind, data), "have no dates", "add --first-time 'YYYY-MM-DD HH:MM:SS' --freq 5min"
        )
        refusal(lambda kind=kind: read(kind, data, first_time=CLOCK["first_time"]), "--freq 5min")


def test_sensors_without_ids_are_numbered(tmp_path: Path) -> None:
    result = read("csv", v_228(tmp_path / "V.csv", speeds(60, 5)), **CLOCK)
    assert result.sensors.ids == ("0", "1", "2", "3", "4")
    numbered = "no sensor ids, so the sensors are 0 to 4.\n  try: name ids with --ids FILE"
    assert any(numbered in note for note in shown(result.notes))
    short = text(tmp_path / "ids.txt", "1,2\n")
    refusal(lambda: read("csv", tmp_path / "V.csv", ids=short, **CLOCK), "2 ids for the 5 sensors")


def test_a_table_with_times_stays_a_table_with_times(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "d.csv", TIMES, speeds(60))
    for name in ("csv", "auto"):
        assert read(name, data).sensors.ids == ("773869", "767541", "717447")
    refusal(lambda: read("csv", data, **CLOCK), "--first-time", "is for rows without dates")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("12,45,33\n13,44,30\n", ("line 1 may be such a row or sensor ids", "t-gcn", "matrix-csv")),
        ("0,900.5\n900.5,0\n", ("a square matrix, 2 x 2, as of distances", "matrix-csv if its rows are times")),
        ("1,0\n0,1\n\n", ("line 1 may be",)),
        ("1,34.0,-118.0\n2,34.5,-118.5\n", ("a table of positions",)),
        ("1,2,990.5\n2,3,800.5\n", ("no table with a column of times; line 1 is '1,2,990.5'",)),
    ],
)
def test_what_numbers_are_is_asked_where_nothing_tells(tmp_path: Path, content: str, words: tuple[str, ...]) -> None:
    data = text(tmp_path / "d.csv", content)
    refusal(lambda: recognise(read_head(data)), str(data), *words)


def test_naming_the_format_decides(tmp_path: Path) -> None:
    for content in (
        "12,45,33\n13,44,30\n",
        "0,900.5\n900.5,0\n",
        "65,60,70\n61,62,63\n",
        "71.5\n70.5\n",
        ",1,2\n3,4,5\n",
    ):
        rows = content.split()
        result = list(read("matrix-csv", text(tmp_path / "d.csv", content), **CLOCK).blocks)
        expected = [[float(cell or "nan") for cell in row.split(",")] for row in rows]
        assert np.array_equal(result[0].speeds, np.float32(expected), equal_nan=True)


BAD = {
    "text": ("1.5,2.5\n3.5,x\n", "line 2, column 2 is 'x', not a number"),
    "text above": ("a,b\n3.5,1\n", "line 1, column 1 is 'a', not a number"),
    "short": ("1.5,2.5\n3.5,4\n5.5\n", "line 3 has 1 cells, not 2"),
    "infinite": ("1.5,2.5\n3.5,inf\n", "line 2, column 2 is 'inf'"),
    "true": ("1.5,2.5\n3.5,True\n", "line 2, column 2 is 'True'"),
}


@pytest.mark.parametrize("content", ["1.5\t2.5\n3.5\t4\n5\t6", "1,5;2,5\n3,5;4\n5;6", "\n1.5,2.5\n3.5,4\n5,6"])
def test_a_matrix_with_any_separator(tmp_path: Path, content: str) -> None:
    data = text(tmp_path / "d.csv", content)
    for kind in ("csv", "auto", "matrix-csv"):
        (block,) = read(kind, data, **CLOCK).blocks
        assert block.speeds.tolist() == [[1.5, 2.5], [3.5, 4], [5, 6]]


@pytest.mark.parametrize("case", BAD)
def test_a_bad_matrix(tmp_path: Path, case: str) -> None:
    content, words = BAD[case]
    data = text(tmp_path / "d.csv", content)
    refusal(lambda: list(read("matrix-csv", data, **CLOCK).blocks), str(data), words)


def test_a_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    data = text(tmp_path / "d.csv", "\ufeff1.5,2.5\r\n\r\n3.5,\r\n5.5,6.5")
    assert recognise(read_head(data))[0].name == "matrix-csv"
    (block,) = read("auto", data, **CLOCK).blocks
    assert np.array_equal(block.speeds, np.float32([[1.5, 2.5], [3.5, np.nan], [5.5, 6.5]]), equal_nan=True)
    data.write_text("\ufeff1.5,2.5\n\n3.5,4\n3.5,x\n")
    refusal(lambda: list(read("csv", data, **CLOCK).blocks), "line 4, column 2 is 'x'")


numbers = st.floats(0, 300) | st.just(np.nan) | st.floats(0, 300, width=32)


@given(st.integers(2, 6), st.integers(2, 9), st.data(), st.integers(1, 200))
def test_a_matrix_comes_back(width: int, rows: int, data: st.DataObject, size: int) -> None:
    values = np.array(data.draw(st.lists(numbers, min_size=width * rows, max_size=width * rows))).reshape(rows, width)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_cells, "PIECE_BYTES", size)
        path = text(Path(folder) / "d.csv", "\n".join(",".join(map(repr, row)) for row in values.tolist()))
        result = np.concatenate([block.speeds for block in read("matrix-csv", path, **CLOCK).blocks])
        others = [
            name for name, format in FORMATS.items() if format.recognise(read_head(path)) and name != "matrix-csv"
        ]
    assert np.array_equal(result, values.astype(np.float32), equal_nan=True)
    assert others == []


# ---- a column that counts the rows


@pytest.mark.parametrize("header", [",0,1,2", ",773869,767541,717447"])
@pytest.mark.parametrize("kind", ["auto", "csv", "published-csv", "metr-la"])
def test_a_column_that_counts_the_rows_is_refused_at_once(tmp_path: Path, header: str, kind: str) -> None:
    data = text(tmp_path / "d.csv", f"{header}\n0,71.1,70.2,69.3\n1,71.2,70.3,69.4\n")
    words = "the first row begins with the number 0, not with a time"
    refusal(lambda: read(kind, data), str(data), words, "leave out a column that only counts the rows")
    result = socialx("convert", "auto", data)
    assert result.exit_code == 1
    assert words in result.stderr
    assert socialx("inspect", data).exit_code == 1


# ---- a matrix of distances


def w_228(path: Path, metres: np.ndarray) -> Path:
    np.savetxt(path, metres, delimiter=",", fmt="%.17g")
    return path


def line_distances(sensors: int) -> np.ndarray:
    """Metres [N,N] between sensors on a line, 100 metres apart; farther by 7 against the order."""
    metres = 100.0 * np.arange(sensors)
    gap = metres[None, :] - metres[:, None]
    return np.abs(gap) + 7 * (gap < 0)


@pytest.mark.parametrize("sensors", [2, 4, 30])
def test_a_matrix_of_metres_is_a_list_of_all_pairs(tmp_path: Path, sensors: int) -> None:
    ids, metres = tuple(f"d{n}" for n in range(sensors)), line_distances(sensors)
    result = read_distances(w_228(tmp_path / "W.csv", metres), ids)
    pairs = np.argwhere(~np.eye(sensors, dtype=bool)).tolist()
    rows = [f"{ids[i]},{ids[j]},{float(metres[i, j])!r}" for i, j in pairs]
    listed = text(tmp_path / "list.csv", "\n".join(["from,to,cost", *rows]))
    for mine, theirs in zip(result, read_distances(listed, ids), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


def test_zeros_and_infinities_of_a_matrix_are_no_roads(tmp_path: Path) -> None:
    metres = line_distances(4)
    metres[0, 3] = metres[3, 0] = 0
    metres[1, 2] = np.inf
    path = w_228(tmp_path / "W.csv", metres)
    with pytest.warns(
        FallbackWarning, match="2 of the distances between two sensors are 0: these pairs are no neighbours"
    ):
        start, end, km = read_distances(path, "abcd")
    pairs = set(zip(start.tolist(), end.tolist(), strict=True))
    assert pairs == {(i, j) for i in range(4) for j in range(4) if i != j} - {(0, 3), (3, 0), (1, 2)}
    assert km[0] == 0.1


def test_the_diagonal_of_a_matrix_is_not_read(tmp_path: Path) -> None:
    metres = line_distances(4)
    np.fill_diagonal(metres, np.nan)
    assert len(read_distances(w_228(tmp_path / "W.csv", metres), "abcd")[0]) == 12


WRONG = {
    "fewer rows": ("0,90\n", "line 1 is 2 numbers, and the data has 4 sensors"),
    "more rows": (f"{','.join('9' * 4)}\n" * 5, "line 5 is one more than 4 rows, and the data has 4 sensors"),
    "another network": ("0,90,80,70,60\n" * 5, "line 1 is 5 numbers, and the data has 4 sensors"),
    "negative": ("0,90,80,70\n90,0,-1,80\n" + "80,90,90,0\n" * 2, "row 2, column 3 is '-1', no distance"),
    "text": ("0,90,80,70\n90,0,far,80\n" + "80,90,90,0\n" * 2, "row 2, column 3 is 'far', no distance"),
    "empty": ("0,90,80,70\n90,0,,80\n" + "80,90,90,0\n" * 2, "row 2, column 3 is '', no distance"),
    "ragged": ("0,90,80,70\n90,0\n" + "80,90,90,0\n" * 2, "line 2 is 2 numbers, and the data has 4 sensors"),
    "long": ("0,90,80,70\n90,0,1,2,3\n", "line 2 is 5 numbers"),
    "a million numbers": ("1," * 10**6 + "1\n", "line 1 is 1000001 numbers, and the data has 4 sensors"),
    "too few rows": ("0,90,80,70\n" * 3, "3 rows of numbers, and the data has 4 sensors"),
    "weights": ("0,1,1,0\n" * 2 + "1,0,1,0\n" * 2, "half of the distances are no more than 1, which are no metres"),
    "zeros": ("0,0,0,0\n" * 4, "no distance above 0"),
}


@pytest.mark.filterwarnings("ignore::socialx.core.errors.FallbackWarning")
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_matrix_of_distances_is_one_line(tmp_path: Path, case: str) -> None:
    content, words = WRONG[case]
    path = text(tmp_path / "W.csv", content)
    refusal(lambda: read_distances(path, "abcd"), str(path), words, task="train")


def test_a_model_uses_the_matrix(tmp_path: Path) -> None:
    from socialx.files.sources.positions.neighbours import find_neighbours

    data = v_228(tmp_path / "V.csv", speeds(60, 4))
    done = socialx("convert", "csv", data, "--first-time", TIMES[0], "--freq", "5min", "--without-positions",
                   "--output-h5", tmp_path / "v.h5")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    result = find_neighbours(
        open_store(tmp_path / "v.h5"), 2, None, w_228(tmp_path / "W.csv", line_distances(4)), require_locations=True
    )
    assert [set(row) for row in result.index.tolist()] == [{1, 2}, {0, 2}, {1, 3}, {1, 2}]
