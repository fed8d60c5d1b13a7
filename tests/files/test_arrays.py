"""One array of NumPy, with a start and a step: read by rows, never unpickled, and asked what it holds."""

import io
import shlex
import zipfile
from pathlib import Path

import numpy as np
import pytest

import socialx
from socialx.core.errors import SocialxError
from socialx.files.sources.arrays import array_names, open_array
from socialx.files.store.store import open_store
from tests.commands import socialx as run
from tests.commands import works
from tests.data_files import refusal, speeds, timestamps

CLOCK = {"first_time": "2012-03-01 00:00:00", "freq": "5min", "without_positions": True}


def npy_bytes(values: np.ndarray) -> bytes:
    """What numpy.save writes."""
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def write_zip(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("dtype", ["<f4", "<f8", ">f4", "<f2", "<i2", ">i8", "u1"])
@pytest.mark.parametrize("kind", ["npy", "npz", "compressed", "columns", "columns in npz"])
def test_each_kind_of_array_is_one_file(kind: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.files.sources.contents.PIECE_BYTES", 1000)
    values = (np.random.default_rng(1).random((101, 7)) * 100).astype(dtype)
    stored, path = np.asfortranarray(values) if "columns" in kind else values, tmp_path / "data.np_"
    with path.open("wb") as file:
        if kind in ("npy", "columns"):
            np.save(file, stored)
        elif kind == "compressed":
            np.savez_compressed(file, mine=stored)
        else:
            np.savez(file, mine=stored)
    socialx.convert("auto", path, tmp_path / "out.h5", quantity="flow", **CLOCK)
    store = open_store(tmp_path / "out.h5")
    np.testing.assert_array_equal(store.values, values.astype(np.float32))
    assert store.timestamps.astype(str).tolist() == timestamps(101, "2012-03-01T00:00:00")
    assert (store.feature, store.sensors.ids) == ("flow", tuple("0123456"))


CHANNELS = {
    "flow=0,speed=2": {"flow": 0, "avg_speed": 2},
    "speed=1": {"avg_speed": 1},
    "Occupancy=1 , flow=0": {"occupancy": 1, "flow": 0},
}


@pytest.mark.parametrize("channel", CHANNELS)
def test_channels_are_named_by_number(channel: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((20, 3, 4)).astype(np.float32)
    np.savez(tmp_path / "PEMS04.npz", data=values)
    socialx.convert("auto", tmp_path / "PEMS04.npz", tmp_path / "out.h5", channel=channel, **CLOCK)
    for feature, number in CHANNELS[channel].items():
        assert np.array_equal(open_store(tmp_path / "out.h5", feature).values, values[..., number])


def test_one_channel_may_be_named_by_quantity_or_unit(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", speeds(20))
    for more in ({"units": "mph"}, {"quantity": "speed"}, {"channel": "speed"}, {"channel": "0", "units": "mph"}):
        socialx.convert("auto", tmp_path / "a.npy", tmp_path / "out.h5", overwrite=True, **more, **CLOCK)
        assert open_store(tmp_path / "out.h5").feature == "avg_speed"


def test_what_an_array_leaves_open_is_asked(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", speeds(20))
    np.save(tmp_path / "b.npy", np.stack([speeds(20)] * 2, axis=-1))
    words = ("convert", "auto", tmp_path / "a.npy", "--without-positions", "--output-h5", tmp_path / "o.h5")
    for more, asked in {
        (): "--channel speed",
        ("--units", "mph"): "--first-time 'YYYY-MM-DD HH:MM:SS' --freq 5min",
        ("--units", "mph", "--first-time", "2012-03-01"): "--freq 5min",
    }.items():
        done = run(*words, *more)
        assert done.exit_code != 0
        assert asked in done.stderr
    works(*words, "--units", "mph", "--first-time", "2012-03-01 00:00", "--freq", "5min")
    for name in ("a", "b"):
        line = works("convert", "auto", tmp_path / f"{name}.npy").stderr.splitlines()[-1]
        told = shlex.split(line.partition("socialx ")[2].replace("YYYY-MM-DD HH:MM:SS", "2012-03-01 00:00:00"))
        works(*told[:-4], "--without-positions", "--output-h5", tmp_path / f"{name}.h5")
    output = tmp_path / "p.h5"
    for channel in (None, "1", "speed", "speed=7", "speed=0,speed=1", "lorries=0"):
        given = {**CLOCK, "channel": channel}
        refusal(lambda given=given: socialx.convert("auto", tmp_path / "b.npy", output, **given), "flow=0,speed=1")


class Runs:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("packed", [False, True])
def test_pickles_stay_closed(packed: bool, tmp_path: Path) -> None:
    content = npy_bytes(np.array([Runs(tmp_path / "unpickled"), None], dtype=object))
    path = tmp_path / "data.npy"
    if packed:
        write_zip(path, a=content)
    else:
        path.write_bytes(content)
    refusal(lambda: open_array(path), str(path), "numbers")
    assert not (tmp_path / "unpickled").exists()


def header(shape: str, descr: str = "'<f8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


GOOD = npy_bytes(np.ones((4, 3)))
GRAPH = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
BAD = {
    "cut": (GOOD[:-1], "cannot be read"),
    "no header": (GOOD[:20], "cannot be read"),
    "version 9": (b"\x93NUMPY\x09\x00" + GOOD[8:], "cannot be read"),
    "no dictionary": (b"\x93NUMPY\x01\x00\x04\x00((((" + GOOD, "cannot be read"),
    "negative": (header("(-4, 3)"), "cannot be read"),
    "huge": (header("(9999999999999, 9999999999999)"), "cannot be read"),
    "no dtype": (header("(3,)", "'<q9'"), "cannot be read"),
    "texts": (npy_bytes(np.array([["a", "b"]])), "holds <U1, not numbers"),
    "truths": (npy_bytes(np.ones((3, 2), bool)), "holds bool"),
    "times": (npy_bytes(np.zeros((2, 2), "M8[s]")), "holds datetime64[s]"),
    "one dimension": (npy_bytes(np.ones(3)), "(3,)"),
    "four dimensions": (npy_bytes(np.ones((2, 2, 2, 2))), "has shape (2, 2, 2, 2)"),
    "nothing": (npy_bytes(np.ones((0, 3))), "has shape (0, 3)"),
    "a graph": (npy_bytes(GRAPH), "readings"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_array_of_readings_is_refused(case: str, tmp_path: Path) -> None:
    content, words = BAD[case]
    (tmp_path / "a.npy").write_bytes(content)
    refusal(lambda: open_array(tmp_path / "a.npy"), str(tmp_path / "a.npy"), words)
    refusal(lambda: open_array(write_zip(tmp_path / "a.npz", data=content)), "a.npz", words)


def test_rows_without_end_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(header("(1, 99999999)"))
        file.truncate(file.tell() + 8 * 99999999)  # a hole, not on the disk
    refusal(lambda: open_array(tmp_path / "a.npy"), "rows of 799,999,992 bytes", "put time first")


def test_several_arrays_are_a_recipe(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "his.npz", data=GOOD, mean=npy_bytes(np.ones(1)), std=npy_bytes(np.ones(1)))
    refusal(lambda: socialx.convert("auto", path, tmp_path / "o.h5", **CLOCK), "3 arrays", "docs/how-to/recipes.md")
    assert array_names(path) == ("data", "mean", "std")
    (tmp_path / "text").write_text("PK is not enough")
    assert [array_names(tmp_path / name) for name in ("text", "missing", "")] == [(), (), ()]


def test_any_damage_is_one_line_or_harmless(tmp_path: Path) -> None:
    """Bytes are changed at random: a reader may refuse or read on, but raises nothing else."""
    dice, refused = np.random.default_rng(5), 0
    np.savez_compressed(tmp_path / "a.npz", data=speeds(60))
    good = {"a.npz": (tmp_path / "a.npz").read_bytes(), "a.npy": npy_bytes(speeds(60))}
    for turn in range(200):
        name = list(good)[turn % 2]
        content = bytearray(good[name])
        # Headers and directories stand at the ends.
        for place in dice.integers(-200, 200, 3) if turn % 3 else dice.integers(0, len(content), 3):
            content[place] = dice.integers(256)
        (tmp_path / name).write_bytes(bytes(content[: len(content) - (int(dice.integers(200)) if not turn % 5 else 0)]))
        try:
            np.asarray(open_array(tmp_path / name)).sum()
        except SocialxError as error:
            refused += not [line for line in error.lines() if "\n" in line]
    assert 30 < refused < 200
