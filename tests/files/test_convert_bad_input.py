"""Every bad input ends in one line that names the file, and leaves neither an output nor a temporary file."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from socialx.files.sources.readings import read
from socialx.files.sources.request import ConvertOptions
from socialx.files.store import writer
from socialx.files.store.layout import Block
from socialx.files.store.store import open_store
from tests.data_files import (
    IDS,
    block,
    convert,
    left_behind,
    made_up,
    refusal,
    room_for,
    speeds,
    timestamps,
    write_csv,
    write_frame,
    write_locations,
)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    data, meta = write_csv(tmp_path / "data.csv", timestamps(9), speeds(9)), write_locations(tmp_path / "meta.csv")
    gone = tmp_path / "gone"
    refusal(lambda: convert("la", gone, meta, tmp_path / "out.h5"), str(gone))
    refusal(lambda: convert("la", data, gone, tmp_path / "out.h5"), str(gone))
    (tmp_path / "folder").mkdir()
    refusal(lambda: convert("la", tmp_path / "folder", meta, tmp_path / "out.h5"), str(tmp_path / "folder"))
    refusal(lambda: convert("la", data, meta, tmp_path), str(tmp_path), "a folder")
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("keep", [0, 7, 100, 3000, -1])
def test_a_frame_cut_off(tmp_path: Path, keep: int) -> None:
    frame = write_frame(tmp_path / "data.h5", timestamps(100), speeds(100))
    frame.write_bytes(frame.read_bytes()[:keep])
    meta = write_locations(tmp_path / "meta.csv")
    refusal(lambda: convert("la", frame, meta, tmp_path / "out.h5"), str(frame))
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("content", [b"PK\x03\x04\x14\x00\x08\x08\n1,2,3\n", b"\x93NUMPY\xff\xfe\x00\n"])
def test_an_archive_or_an_array_is_no_table(tmp_path: Path, content: bytes) -> None:
    data, meta = tmp_path / "data.csv", write_locations(tmp_path / "meta.csv")
    data.write_bytes(content)
    refusal(lambda: convert("csv", data, meta, tmp_path / "out.h5"), str(data))
    assert left_behind(tmp_path) == []


def test_an_existing_output_is_refused_before_the_source_is_read(tmp_path: Path) -> None:
    def never() -> Iterator[Block]:
        raise AssertionError("the source was read")
        yield

    output = tmp_path / "out.h5"
    output.write_text("precious")
    refusal(lambda: writer.create(output, made_up(never())), str(output), "--overwrite")
    assert output.read_text() == "precious"
    writer.create(output, made_up([block(timestamps(9), speeds(9))]), overwrite=True)
    assert open_store(output).values.shape == (9, 3)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interruption_leaves_the_old_output(tmp_path: Path, error: type[BaseException]) -> None:
    closed = []

    def broken() -> Iterator[Block]:
        try:
            yield block(timestamps(400), speeds(400))
            yield block(timestamps(400, "2013-01-01"), speeds(400))
            raise error
        finally:
            closed.append(True)

    output = tmp_path / "out.h5"
    output.write_text("precious")
    with pytest.raises(error):
        writer.create(output, made_up(broken()), overwrite=True)
    assert (output.read_text(), left_behind(tmp_path), closed) == ("precious", ["out.h5"], [True])


def test_a_refusal_closes_the_source(tmp_path: Path) -> None:
    closed = []

    def repeating() -> Iterator[Block]:
        try:
            while True:
                yield block(timestamps(5), speeds(5))
        finally:
            closed.append(True)

    refusal(lambda: writer.create(tmp_path / "out.h5", made_up(repeating())), "rows 5 and 6")
    assert closed == [True]


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", timestamps(9000), speeds(9000))
    meta = write_locations(tmp_path / "meta.csv")
    with room_for(50_000):
        refusal(lambda: convert("la", data, meta, tmp_path / "out.h5"), "written")
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("bad", ["", "a/b", "..", "a b", "\u65b0\u3000", "\u200b", "x" * 65])
def test_an_id_that_the_file_cannot_hold(tmp_path: Path, bad: str) -> None:
    readings = made_up([block(timestamps(3), speeds(3))], ("1", bad, "3"))
    refusal(lambda: writer.create(tmp_path / "out.h5", readings), "made up", ascii(bad[:40]), "rename")
    assert left_behind(tmp_path) == []


def test_infinite_speeds_of_any_source(tmp_path: Path) -> None:
    values = speeds(9)
    values[4, 1] = np.inf
    readings = made_up([block(timestamps(9)[:3], values[:3]), block(timestamps(9)[3:], values[3:])])
    refusal(lambda: writer.create(tmp_path / "out.h5", readings), f"row 5 of sensor {IDS[1]}")
    frame = write_frame(tmp_path / "data.h5", timestamps(9), values)
    source = read("la", ConvertOptions(frame, meta_csv=write_locations(tmp_path / "meta.csv")))
    refusal(lambda: writer.create(tmp_path / "out.h5", source), str(frame), f"row 5 of sensor {IDS[1]}")
