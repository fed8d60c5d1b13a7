"""Rows below a table: totals, sources and remarks are left out and named; a bad row stays an error."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from socialx.files.sources.tables import text_cells
from tests.commands import socialx as run
from tests.data_files import refusal
from tests.frames import converted, long, network, same

FOOTERS = {
    "Total": "Total;1;2;3;4\n",
    "Summe and mean": "Summe;1,5;2,5;3,5;4,5\nMittelwert;1;2;3;4\n",
    "a source": "Source: City of X, 2024\n",
    "a remark": "# end\n",
    "blank lines": "\n\nTotal;;;;\n\n# end",
    "quotes": '"Total";"1";"2";"3";"4"\n',
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("way", FOOTERS)
def test_rows_below_a_table_are_left_out_and_named(
    way: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, path = network(), tmp_path / "city.csv"
    content = (frame.to_csv(sep=";", decimal=",") + FOOTERS[way]).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    same(converted(path), frame)
    done = run("convert", "auto", path, "--without-positions", "--output-h5", tmp_path / "o.h5")
    assert done.stderr.count("rows below the table are left out: ") == 1
    assert FOOTERS[way].strip().replace(";", " ").replace('"', "")[:5].strip() in done.stderr
    monkeypatch.setattr(text_cells, "PIECE_BYTES", 500)
    same(converted(path), frame)


def test_rows_below_a_row_per_reading_and_below_a_sheet(tmp_path: Path) -> None:
    frame = network()
    path = tmp_path / "long.csv"
    path.write_text(long(frame).to_csv(index=False) + "Total,,1.5,7\nSource: X\n")
    same(converted(path), frame)
    sheet = frame.reset_index().astype(object)
    sheet.loc[60] = ["Total", 1, 2, 3, 4]
    sheet.loc[61] = ["Source: X", None, None, None, None]
    sheet.to_excel(tmp_path / "city.xlsx", index=False)
    same(converted(tmp_path / "city.xlsx"), frame)
    done = run("convert", "auto", tmp_path / "city.xlsx", "--without-positions", "--output-h5", tmp_path / "o.h5")
    assert "Source" in done.stderr


BAD = {
    "in the middle": (20, "Total;1;2;3;4\n", "line 22"),
    "a cut time": (60, "2024-01-3;1;2;3;4\n", "line 62"),
    "no time": (60, ";1;2;3;4\n", "line 62"),
    "a missing time": (60, "NaN;1;2;3;4\n", "line 62"),
    "a cut row": (60, "2024-02-01 01:00:00;1\n", "line 62 has 2 cells"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_stays_an_error(case: str, tmp_path: Path) -> None:
    index, row, words = BAD[case]
    lines = network().to_csv(sep=";").splitlines(keepends=True)
    (tmp_path / "city.csv").write_text("".join([*lines[: index + 1], row, *lines[index + 1 :]]))
    refusal(lambda: converted(tmp_path / "city.csv"), words)


@pytest.mark.slow
def test_the_last_rows_of_a_table_of_thousands_of_sensors_are_kept(tmp_path: Path) -> None:
    """Rows of more letters than a remark has are rows."""
    ids = [str(number) for number in range(5_000)]
    frame, path = network(30, ids=ids), tmp_path / "city.csv"
    frame.to_csv(path)
    assert len(path.read_text().splitlines()[-1]) > text_cells.FOOTER_LETTERS
    same(converted(path), frame)
    path.write_text(frame.to_csv() + "Source: X\n")
    same(converted(path), frame)
