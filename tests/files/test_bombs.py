"""Small files that become large ones: refused early, in little memory."""

import gzip
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow.parquet import ParquetWriter

from tests.commands import refused_in
from tests.data_files import refusal
from tests.frames import converted, network, same

END = b"</sheetData>"


def workbook(folder: Path, more: bytes = b"", times: int = 0) -> Path:
    """A table of 60 rows, with more rows in its sheet."""
    network().to_excel(folder / "ok.xlsx")
    with zipfile.ZipFile(folder / "ok.xlsx") as old, zipfile.ZipFile(folder / "city.xlsx", "w", 8) as new:
        for name in old.namelist():
            content = old.read(name)
            with new.open(name, "w", force_zip64=True) as part:
                begin, end, rest = content.partition(END)
                part.write(begin)
                for _ in range(times if end else 0):
                    part.write(more)
                part.write(end + rest)
    return folder / "city.xlsx"


def refused(path: Path, *words: str, option: str = "") -> None:
    """A conversion takes less than 500 MB for its one line."""
    named = [path, "--without-positions"] if not option else [path.parent / "ok.csv", option, path]
    error = refused_in(500, "convert", "auto", *named, "--output-h5", path.parent / "out.h5")
    for word in words:
        assert word in error


FAR = b'<row r="1048576"><c r="XFD1048576" t="n"><v>1</v></c></row>'
MILLIONS = b'<row><c t="n"><v>1</v></c><c t="n"><v>1</v></c></row>' * 40_000


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_workbook_with_one_cell_far_away(tmp_path: Path) -> None:
    path = workbook(tmp_path, FAR, 1)
    refused(path, "1,048,576 rows", "as CSV")
    network().to_csv(tmp_path / "ok.csv")
    refused(path, "1,048,576 rows", option="--meta-csv")


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_workbook_of_millions_of_rows(tmp_path: Path) -> None:
    path = workbook(tmp_path, MILLIONS, 100)
    assert path.stat().st_size < 2_000_000
    refused(path, "bytes unpacked", "as CSV")


@pytest.mark.slow
def test_a_workbook_of_many_rows_is_read(tmp_path: Path) -> None:
    frame = network(20_000)
    frame.to_excel(tmp_path / "city.xlsx")
    same(converted(tmp_path / "city.xlsx"), frame)


def blank() -> Iterator[bytes]:
    yield network().to_csv().encode()
    yield from [b"\n" * (1 << 22)] * 100


def blank_first() -> Iterator[bytes]:
    yield from [b"\n" * (1 << 22)] * 100
    yield network().to_csv().encode()


def one_line() -> Iterator[bytes]:
    yield network().to_csv().encode()
    yield from [b"1," * (1 << 21)] * 100


@pytest.mark.timeout(60)
@pytest.mark.parametrize("parts", [blank, blank_first, one_line])
@pytest.mark.parametrize("kind", ["zip", "gzip"])
def test_texts_that_unpack_to_nothing(kind: str, parts: Callable[[], Iterator[bytes]], tmp_path: Path) -> None:
    path = tmp_path / "city.csv"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", 8) as archive, archive.open("a.csv", "w", force_zip64=True) as part:
            part.writelines(parts())
    else:
        with gzip.open(path, "wb", compresslevel=6) as packed:
            packed.writelines(parts())
    refusal(lambda: converted(path), str(path))


def test_a_table_may_have_blank_lines_and_long_ones(tmp_path: Path) -> None:
    frame, path = network(), tmp_path / "city.csv"
    path.write_text(frame.to_csv() + "\n" * (1 << 22) + " ")
    same(converted(path), frame)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_parquet_file_of_equal_rows(tmp_path: Path) -> None:
    path, rows = tmp_path / "city.parquet", 10_000_000
    table = pa.table({"time": np.zeros(rows, "M8[s]"), "S1": np.ones(rows), "S2": np.ones(rows)})
    with ParquetWriter(path, table.schema) as file:
        for _ in range(3):
            file.write_table(table, row_group_size=rows)
    refused(path, "90,000,000 cells", "as CSV")
    frame = pd.DataFrame(0.0, pd.date_range("2024-01-01", periods=100_000, freq="5min", name="time"), ["a", "b", "c"])
    frame.to_parquet(path)
    assert converted(path, quantity="speed").shape == (100_000, 3)
