"""append beside a reader waits; the hole that an earlier append left is filled by a later one."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.disk import exclusive
from socialx.errors import SocialxError
from socialx.files.store import open_store
from tests import frames
from tests.commands import socialx as run
from tests.data_files import refusal, room_for, spoil_copies, unchanged

FRAME = frames.network(60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return file_of(FRAME[:20], tmp_path / "city.h5")


def file_of(frame: pd.DataFrame, output: Path) -> Path:
    frame.to_csv(output.with_suffix(".csv"))
    socialx.convert("csv", output.with_suffix(".csv"), output, units="km/h", without_positions=True)
    return output


def table(folder: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(folder / "new.csv")
    return folder / "new.csv"


def features(path: Path) -> np.ndarray:
    with h5py.File(path) as file:
        return file["data/features"][:]


def test_append_waits_for_a_reader(tmp_path: Path, path: Path) -> None:
    code = "import h5py, sys, time\nwith h5py.File(sys.argv[1]): print('open', flush=True); time.sleep(1)"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        done = run("append", path, table(tmp_path, FRAME[20:]))
    assert done.exit_code == 0, done.stderr
    assert f"{path}: another process has it open: waiting up to 10 s" in done.stderr
    assert len(open_store(path).rows) == 60


def test_a_reader_that_stays_is_refused_after_the_wait(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socialx.files.append.WAIT_S", 0.3)
    started = time.monotonic()
    with unchanged(path), exclusive(path):  # flock of another descriptor
        refusal(lambda: socialx.append(path, table(tmp_path, FRAME[20:])), task="append")
    assert time.monotonic() - started < 5


def test_whoever_waits_gets_the_file_and_never_the_one_that_was_replaced(path: Path) -> None:
    held, order = threading.Event(), []

    def hold() -> None:
        with exclusive(path):
            held.set()
            time.sleep(0.3)
            copy = path.with_suffix(".copy")
            copy.write_bytes(path.read_bytes())
            copy.replace(path)
            order.append("replaced")

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with exclusive(path, wait_s=10):
        order.append("locked")
    thread.join()
    assert order == ["replaced", "locked"]
    with exclusive(path), pytest.raises(SocialxError, match="another process has it open"), exclusive(path):
        pass


@pytest.mark.parametrize("part", [slice(20, 40), slice(22, 30), slice(18, 40), slice(20, 45), slice(20, 60)])
def test_a_hole_is_filled_by_a_later_append(tmp_path: Path, path: Path, part: slice) -> None:
    socialx.append(path, table(tmp_path, FRAME[40:]))
    done = socialx.append(path, table(tmp_path, FRAME[part]))
    hole = range(max(20, part.start), min(40, part.stop))
    assert (done.restored, done.rows) == (len(hole), 0)
    assert done.repeated == part.stop - part.start - len(hole)
    wanted = FRAME.to_numpy(np.float32).copy()
    wanted[[row for row in range(20, 40) if row not in hole]] = np.nan
    assert np.array_equal(open_store(path).values, wanted, equal_nan=True)


def test_the_command_says_it_and_the_file_is_that_of_one_conversion(tmp_path: Path, path: Path) -> None:
    run("append", path, table(tmp_path, FRAME[40:50]))
    done = run("append", path, table(tmp_path, FRAME[20:]))
    assert done.stdout == (
        f"{path}: 10 rows added and 20 rows of missing readings filled, now 60 rows x 4 sensors up to "
        "2024-02-01 00:55:00\n"
    )
    assert np.array_equal(features(path), features(file_of(FRAME, tmp_path / "whole.h5")), equal_nan=True)
    done = run("append", path, table(tmp_path, FRAME[20:]))
    assert done.stdout == f"{path}: no new row, unchanged\n"


def test_only_the_hole_is_filled(tmp_path: Path, path: Path) -> None:
    socialx.append(path, table(tmp_path, FRAME[40:50]))
    done = run("append", path, table(tmp_path, FRAME[30:35]))
    assert (
        done.stdout == f"{path}: 5 rows of missing readings filled, now 50 rows x 4 sensors up to 2024-02-01 00:05:00\n"
    )


def test_what_some_sensors_lack_is_filled_and_no_reading_is_changed(tmp_path: Path, path: Path) -> None:
    socialx.append(path, table(tmp_path, FRAME[40:]))
    socialx.append(path, table(tmp_path, FRAME[20:30][["4001"]]))
    assert socialx.append(path, table(tmp_path, FRAME[20:40])).restored == 20
    assert np.array_equal(open_store(path).values, FRAME.to_numpy(np.float32), equal_nan=True)
    with unchanged(path):
        gone = FRAME[15:40].assign(**{"4002": np.nan})
        refusal(lambda: socialx.append(path, table(tmp_path, gone)), "readings are not those of", task="append")
    with unchanged(path):
        other = FRAME[15:40].fillna(0.0) + 1
        refusal(lambda: socialx.append(path, table(tmp_path, other)), "readings are not those of", task="append")


def test_a_long_hole_over_many_chunks(tmp_path: Path) -> None:
    frame = frames.network(2000)
    path = file_of(frame[:700], tmp_path / "city.h5")
    socialx.append(path, table(tmp_path, frame[1390:]))
    done = socialx.append(path, table(tmp_path, frame[600:1500]))
    assert (done.restored, done.repeated) == (690, 210)
    assert np.array_equal(open_store(path).values, frame.to_numpy(np.float32), equal_nan=True)


@pytest.mark.parametrize("task", ["append", "backfill"])
def test_a_file_that_somebody_replaces_meanwhile_stays_theirs(
    tmp_path: Path, path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = file_of(FRAME[5:25], tmp_path / "theirs.h5").read_bytes()

    def replace(copy: Path) -> None:
        (tmp_path / "moved.h5").write_bytes(theirs)
        (tmp_path / "moved.h5").replace(path)

    spoil_copies(monkeypatch, replace)
    new = table(tmp_path, FRAME[20:])
    works = {"append": lambda: socialx.append(path, new), "backfill": lambda: socialx.backfill(path, timezone="UTC")}
    refusal(works[task], "it was changed meanwhile", "run the command again", task=task)
    assert path.read_bytes() == theirs
    assert not [each for each in tmp_path.iterdir() if each.suffix == ".tmp"]


def test_convert_does_not_overwrite_a_file_that_is_write_protected(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # whoever runs this may be root
    options = {"units": "km/h", "without_positions": True, "overwrite": True}
    with unchanged(path):
        refusal(lambda: socialx.convert("csv", tmp_path / "city.csv", path, **options), "read-only")


def test_a_disk_without_room_leaves_a_hole_as_it_was(tmp_path: Path) -> None:
    frame = frames.network(2000)
    path = file_of(frame[:700], tmp_path / "city.h5")
    socialx.append(path, table(tmp_path, frame[1390:]))
    new, size = table(tmp_path, frame[700:1390]), path.stat().st_size
    for room in range(0, 40_000, 4_000):
        with unchanged(path), room_for(size + room):
            refusal(lambda: socialx.append(path, new), "cannot be written", task="append")
    assert socialx.append(path, new).restored == 690
    assert not [each for each in tmp_path.iterdir() if each.suffix == ".tmp"]
