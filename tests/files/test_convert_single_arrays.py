"""Arrays in an .npz: in column order, under any name, one or several."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from socialx.files.sources import arrays
from socialx.files.sources.arrays import only_array, open_array
from socialx.files.sources.recognition import recognise
from socialx.files.store.head import read_head
from socialx.files.store.store import open_store
from tests.array_files import check, contents, fractions, recognised, tiled
from tests.commands import socialx
from tests.data_files import refusal, speeds, timestamps

CLOCK = {"first_time": "2012-03-01 00:00:00", "step_s": 300}


def saved(path: Path, packed: bool = False, **named: np.ndarray) -> Path:
    (np.savez_compressed if packed else np.savez)(path, **named)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", [(101, 7), (101, 7, 3), (1, 7), (101, 1, 3), (101, 2, 3, 4)])
def test_columns_in_a_zip_come_as_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool, shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(1).random(shape)
    monkeypatch.setattr(arrays, "PIECE_BYTES", 5 * values[0].nbytes)
    array = open_array(saved(tmp_path / "a.npz", packed, data=np.asfortranarray(values)), "data")
    pieces = list(array.pieces())
    assert {len(piece) for piece in pieces[:-1]} <= {5}
    assert np.concatenate(pieces).tobytes() == values.tobytes()
    assert all(piece.flags.c_contiguous for piece in pieces)
    assert array.head(3).tobytes() == values[:3].tobytes()


@pytest.mark.parametrize("name", ["data", "arr_0"])
def test_a_frame_saved_as_it_is_converts(tmp_path: Path, name: str) -> None:
    values = speeds(60, 5)
    data = saved(tmp_path / "speeds.npz", **{name: np.asfortranarray(values)})
    given = [
        "--first-time",
        CLOCK["first_time"],
        "--freq",
        "5min",
        "--without-positions",
        "--output-h5",
        tmp_path / "out.h5",
    ]
    done = socialx("convert", "auto", data, *given)
    assert done.exit_code == 0, done.stderr
    assert open_store(tmp_path / "out.h5").values.tobytes() == values.astype(np.float32).tobytes()


def test_columns_need_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "PIECE_BYTES", 1 << 20)
    values = np.zeros((4000, 1000), order="F")  # 32 MB
    values[-1, -1] = 7
    path = saved(tmp_path / "a.npz", True, data=values)
    del values
    tracemalloc.start()
    total = sum(piece.sum() for piece in open_array(path, "data").pieces())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 7
    assert peak < 12 << 20


def test_damage_to_columns_is_noticed(tmp_path: Path) -> None:
    values = np.asfortranarray(np.random.default_rng(0).random((400, 5)))
    path = saved(tmp_path / "a.npz", data=values)
    content = path.read_bytes()
    path.write_bytes(content[:9000] + bytes([content[9000] ^ 1]) + content[9001:])
    refusal(lambda: list(open_array(path, "data").pieces()), str(path), "Bad CRC-32")


@pytest.mark.parametrize("name", ["arr_0", "speed", "x", "a b", "é"])
@pytest.mark.parametrize("channels", [0, 1, 2])
def test_the_only_array_has_any_name(tmp_path: Path, name: str, channels: int) -> None:
    values = speeds(60)
    array = np.stack([values] * channels, axis=-1) if channels else values
    others = {"ids": np.array(["a", "b", "c"]), "steps": np.arange(60), "known": np.ones((60, 3), bool)}
    path = saved(tmp_path / "mine.npz", **{name: array, **others})
    assert recognised(path) == ["npy"]
    assert f"{ascii(name)[1:-1]}.npy, 60 rows x 3 sensors" in recognise(read_head(path))[1]
    asked = {"channel": "0"} if channels == 2 else {}
    check(contents("npy", path, **CLOCK, **asked), timestamps(60), values, "avg_speed", None)
    if channels == 2:
        refusal(lambda: contents("npy", path, **CLOCK), "2 channels without names")
        assert "--channel 0" in socialx("convert", "auto", path).stderr


def test_several_arrays_are_listed_with_their_shapes(tmp_path: Path) -> None:
    path = saved(tmp_path / "mine.npz", speed=speeds(60), flow=speeds(60, 4), step=np.arange(3))
    words = ("2 arrays of numbers with 2 or 3 dimensions in it (speed (60, 3), flow (60, 4), step (3,))", "numpy.save")
    refusal(lambda: recognise(read_head(path)), str(path), *words)
    refusal(lambda: contents("npy", path, **CLOCK), str(path), *words)
    assert socialx("convert", "auto", path).exit_code == 1


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"x": np.ones((4, 3, 2, 1)), "y": np.ones(3)}, "no array of 2 or 3 dimensions in it (x (4, 3, 2, 1), y (3,))"),
        ({"x": np.array([["a", "b"]])}, "no array of 2 or 3 dimensions in it (x (1, 2))"),
        ({"x": np.ones((0, 3))}, "no array of 2 or 3 dimensions in it (x (0, 3))"),
        ({"x": np.array([[1, None]], object)}, "no array of 2 or 3 dimensions"),
        ({"x": speeds(9), "mean": np.ones(1), "std": np.ones(1)}, "although it holds an array of shape (9, 3)"),
    ],
)
def test_what_else_is_in_an_npz_is_said(tmp_path: Path, named: dict[str, np.ndarray], words: str) -> None:
    path = saved(tmp_path / "mine.npz", **named)
    refusal(lambda: recognise(read_head(path)), str(path), words)


def test_the_usual_names_keep_their_formats(tmp_path: Path) -> None:
    data = tiled(speeds(60), fractions(timestamps(60)))
    assert recognised(saved(tmp_path / "data.npz", data=data)) == ["torch-mts"]
    assert recognised(saved(tmp_path / "PEMS03.npz", data=speeds(60)[..., None])) == ["pems-npz"]
    assert only_array(saved(tmp_path / "a.npz", data=speeds(9), n=np.ones(3))).member == "data.npy"


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\x01\x02",
        b"\x93NUMPY\x01\x00v\x00{",
        b"PK\x03\x04" + bytes(range(256)),
        bytes(range(128, 256)),
        b"\x1b[31m,",
    ],
)
def test_no_binary_is_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content + b"\n")
    line = refusal(lambda: recognise(read_head(path)), str(path))
    assert line.isprintable()
    assert "\\x" not in line


def test_one_dimension_is_no_series(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(9))
    refusal(lambda: recognise(read_head(tmp_path / "a.npy")), "has shape (9,), not [rows, sensors]")
    np.save(tmp_path / "adj_mat.npy", np.full((9, 9), 0.5))
    refusal(
        lambda: recognise(read_head(tmp_path / "adj_mat.npy")), "holds an array of shape (9, 9)", "name the format npy"
    )
