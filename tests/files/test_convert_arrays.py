"""NumPy's files are read in pieces and never unpickled, and whatever is wrong with one is said in a line."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from socialx.core.errors import SocialxError
from socialx.files.sources import arrays
from socialx.files.sources.arrays import array_names, open_array, read_small
from tests.array_files import contents, fractions, joined, npy_bytes, recognised, tiled, weekdays
from tests.data_files import refusal, speeds, timestamps

METR_LA = {"first_time": "2012-03-01 00:00:00"}  # a Thursday
DTYPES = ["<f4", "<f8", ">f4", ">f8", "<f2", "<i2", ">i8", "u1"]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "PIECE_BYTES", 1000)


def write_zip(path: Path, packed: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", packed) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


class Runs:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["npy", "npz", "compressed", "columns", "columns in npz"])
def test_rows_come_in_pieces_as_they_were_stored(tmp_path: Path, dtype: str, kind: str) -> None:
    values = (np.random.default_rng(1).random((101, 7, 3)) * 100).astype(dtype)
    path, member = tmp_path / "data", None
    if kind in ("npy", "columns"):
        path.write_bytes(npy_bytes(np.asfortranarray(values) if kind == "columns" else values))
    else:
        packed = zipfile.ZIP_STORED if kind == "npz" else zipfile.ZIP_DEFLATED
        ordered = np.asfortranarray(values) if "columns" in kind else values
        write_zip(path, packed, other=npy_bytes(np.zeros(3)), mine=npy_bytes(ordered))
        member = "mine"
    array = open_array(path, member)
    assert (array.shape, array.dtype, array.fortran) == (values.shape, values.dtype, "columns" in kind)
    pieces = list(array.pieces())
    assert {piece.nbytes for piece in pieces[:-1]} == {1000 // array.row_bytes * array.row_bytes}
    assert b"".join(piece.tobytes() for piece in pieces) == values.tobytes()
    assert {piece.dtype for piece in pieces} == {values.dtype}
    assert array.head(2).tobytes() == values[:2].tobytes()
    assert array.head(1000).tobytes() == pieces[0].tobytes()


def test_a_row_larger_than_a_piece_comes_alone(tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((3, 500))
    (tmp_path / "a.npy").write_bytes(npy_bytes(values))
    pieces = list(open_array(tmp_path / "a.npy").pieces())
    assert [piece.shape for piece in pieces] == [(1, 500)] * 3
    assert np.concatenate(pieces).tobytes() == values.tobytes()


@pytest.mark.parametrize("kind", ["a.npy", "a.npz"])
def test_memory_stays_small(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "PIECE_BYTES", 1 << 20)
    values = np.zeros((4000, 1000))  # 32 MB
    values[-1, -1] = 7
    if kind == "a.npy":
        (tmp_path / kind).write_bytes(npy_bytes(values))
    else:
        np.savez_compressed(tmp_path / kind, data=values)
    del values
    tracemalloc.start()
    total = sum(piece.sum() for piece in open_array(tmp_path / kind, None if kind == "a.npy" else "data").pieces())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 7
    assert peak < 6 << 20


def test_names_of_members(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.npz", x=b"", y=b"")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("folder/values.npy", b"")
        archive.writestr("readme.txt", b"")
    assert array_names(path) == ("x", "y", "folder/values")
    (tmp_path / "text").write_text("PK is not enough")
    assert [array_names(tmp_path / name) for name in ("text", "missing", "")] == [(), (), ()]


@pytest.mark.parametrize("member", [None, "a"])
def test_pickles_stay_closed(tmp_path: Path, member: str | None) -> None:
    objects = np.array([Runs(tmp_path / "unpickled"), None], dtype=object)
    path = tmp_path / "data.npy"
    if member:
        write_zip(path, a=npy_bytes(objects))
    else:
        path.write_bytes(npy_bytes(objects))
    refusal(lambda: open_array(path, member), str(path), "Python objects", "save it as numbers")
    assert recognised(path) == []
    assert not (tmp_path / "unpickled").exists()


NOT_NUMBERS = [
    np.array(["a", "b"]),
    np.ones(3, bool),
    np.ones(3, complex),
    np.zeros(3, [("a", "f4")]),
    np.zeros(2, "M8[s]"),
]


@pytest.mark.parametrize("values", NOT_NUMBERS, ids=lambda values: values.dtype.kind)
def test_only_numbers_are_read(tmp_path: Path, values: np.ndarray) -> None:
    (tmp_path / "a.npy").write_bytes(npy_bytes(values))
    refusal(lambda: open_array(tmp_path / "a.npy"), "a.npy", f"holds {values.dtype}, not numbers")


def header(shape: str, descr: str = "'<f8'", order: str = "False") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


GOOD = npy_bytes(np.ones((4, 3)))
BAD_NPY = {
    "cut": (GOOD[:-1], "not the 224 of its shape (4, 3)"),
    "longer": (GOOD + b"0", "has 225 bytes"),
    "no header": (GOOD[:20], "damaged .npy header"),
    "version 9": (b"\x93NUMPY\x09\x00" + GOOD[8:], "damaged .npy header"),
    "no dictionary": (b"\x93NUMPY\x01\x00\x04\x00((((" + GOOD, "damaged .npy header"),
    "negative": (header("(-4, 3)"), "damaged .npy header"),
    "huge": (header("(9999999999999, 9999999999999)"), "bytes, not the 79999999999"),
    "no dtype": (header("(3,)", "'<q9'"), "damaged .npy header"),
    "empty": (b"", "the file is empty"),
    "text": (b"0.1 0.2", "not an .npy file"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1", "Git-LFS"),
}


@pytest.mark.parametrize("case", BAD_NPY)
def test_a_damaged_npy_is_refused(tmp_path: Path, case: str) -> None:
    content, words = BAD_NPY[case]
    (tmp_path / "a.npy").write_bytes(content)
    refusal(lambda: open_array(tmp_path / "a.npy"), str(tmp_path / "a.npy"), words)
    if content.startswith(b"\x93NUMPY"):
        write_zip(tmp_path / "a.npz", data=content)
        refusal(lambda: open_array(tmp_path / "a.npz", "data"), "a.npz", "'data.npy' in it")
    assert recognised(tmp_path / "a.npy") == []


def test_a_python_2_header_is_read_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "a.npy").write_bytes(header("(2L, 1L)") + np.array([1.0, 2.0]).tobytes())
    assert np.concatenate(list(open_array(tmp_path / "a.npy").pieces())).tolist() == [[1.0], [2.0]]
    assert not recwarn.list


def test_rows_without_end_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(header("(1, 99999999)"))
        file.truncate(file.tell() + 8 * 99999999)  # a hole, not on the disk
    refusal(lambda: open_array(tmp_path / "a.npy"), "rows of 799999992 bytes", "put time first")


def _read_all(path: Path) -> None:
    for _ in open_array(path, "data").pieces():
        pass


def test_damaged_zips_are_refused(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((400, 5))
    content = write_zip(tmp_path / "good.npz", zipfile.ZIP_STORED, data=npy_bytes(values)).read_bytes()
    path = tmp_path / "a.npz"
    path.write_bytes(content[:-100])
    refusal(lambda: _read_all(path), str(path), "truncated or damaged", "download it again")
    path.write_bytes(content[:9000] + bytes([content[9000] ^ 1]) + content[9001:])
    refusal(lambda: _read_all(path), str(path), "Bad CRC-32")
    content = write_zip(tmp_path / "good.npz", data=npy_bytes(values)).read_bytes()
    path.write_bytes(content[:500] + bytes(200) + content[700:])
    refusal(lambda: _read_all(path), str(path), "truncated or damaged")
    write_zip(path, zipfile.ZIP_BZIP2, data=npy_bytes(values))
    refusal(lambda: _read_all(path), "packed in a way that NumPy does not use")
    refusal(lambda: open_array(path, "x"), "no 'x.npy' in it ('data.npy')")
    refusal(lambda: open_array(write_zip(tmp_path / "empty.npz"), "x"), "('empty')")
    refusal(lambda: open_array(tmp_path / "none.npz", "x"), "no such file")
    refusal(lambda: open_array(tmp_path, "x"), "a folder")
    (tmp_path / "a.npy").write_bytes(GOOD)
    refusal(lambda: open_array(tmp_path / "a.npy", "x"), "not an .npz or a zip")


def test_any_damage_is_one_line_or_harmless(tmp_path: Path) -> None:
    """Bytes are changed at random: a reader may refuse or read on, but raises nothing else."""
    rng = np.random.default_rng(5)
    times = timestamps(60)
    np.savez_compressed(tmp_path / "a.npz", data=tiled(speeds(60), fractions(times), weekdays(times)))
    good = {"a.npz": (tmp_path / "a.npz").read_bytes(), "a.npy": npy_bytes(speeds(60))}
    lines = []
    for turn in range(300):
        name = list(good)[turn % 2]
        content = bytearray(good[name])
        # Headers and directories stand at the ends.
        places = rng.integers(-200, 200, 3) if turn % 3 else rng.integers(0, len(content), 3)
        for place in places:
            content[place] = rng.integers(256)
        path = tmp_path / name
        path.write_bytes(bytes(content[: len(content) - (int(rng.integers(200)) if turn % 5 == 0 else 0)]))
        recognised(path)
        try:
            joined(contents("npy" if name == "a.npy" else "torch-mts", path, **METR_LA, step_s=300))
        except SocialxError as error:
            lines += error.lines()
    assert 50 < len(lines) < 300
    assert not [line for line in lines if "\n" in line]


def test_small_arrays(tmp_path: Path) -> None:
    large = npy_bytes(np.zeros(200_000))
    path = write_zip(
        tmp_path / "a.npz", mean=npy_bytes(np.float64(3.5)), many=npy_bytes(np.arange(6).reshape(3, 2)), large=large
    )
    assert (read_small(path, "mean").shape, read_small(path, "mean").item()) == ((), 3.5)
    assert read_small(path, "many").tolist() == [[0, 1], [2, 3], [4, 5]]
    refusal(lambda: read_small(path, "large"), "large.npy", "too large")


def test_nothing_else_is_recognised(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked").chmod(0)
    names = ("data.npz", "his.npz", "train.npz", "node_values.npy", "a.npy", "METR-LA.zip", "data.dat", "desc.json")
    for start in (b"", b"PK\x03\x04", b"\x93NUMPY", b"\x93NUMPY\x01\x00"):
        for name in names:
            (tmp_path / name).write_bytes(start + rng.bytes(500))
        for name in (
            *names,
            "empty",
            "locked",
            "locked/data.npz",
            "missing",
            "missing/train.npz",
            "a.npy/data.npz",
            "",
        ):
            assert recognised(tmp_path / name) == [], name
    (tmp_path / "locked").chmod(0o700)
