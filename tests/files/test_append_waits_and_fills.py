"""append waits for a reader, fills the hole of an earlier one, and knows the numbers that stand for no reading."""

import fcntl
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.core.disk import file_lock
from socialx.core.errors import SocialxError
from socialx.files.store.store import open_store
from tests import frames
from tests.commands import works
from tests.data_files import changed, refusal, room_for, spoil_copies, unchanged
from tests.files.test_append import FRAME, IDS, append, content, file_of

CODES = "missing_codes"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The first third of ``FRAME``."""
    return file_of(FRAME[:20], tmp_path)


def table(path: Path, frame: pd.DataFrame) -> Path:
    """A table beside a file."""
    frame.to_csv(path.parent / "new.csv")
    return path.parent / "new.csv"


def test_append_waits_for_a_reader(path: Path) -> None:
    code = "import h5py, sys, time\nwith h5py.File(sys.argv[1]): print('open', flush=True); time.sleep(1)"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        done = works("append", path, table(path, FRAME[20:]))
    assert "10 s" in done.stderr
    assert len(open_store(path).rows) == 60


def test_a_reader_that_stays_is_refused_after_the_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.files.sources.append.WAIT_S", 0.3)
    slept: list[float] = []
    monkeypatch.setattr("socialx.core.disk.time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    with unchanged(path), path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)  # as HDF5 holds it
        refusal(lambda: append(path, FRAME[20:]), "process", task="append")
    assert 0.3 <= sum(slept) < 0.4


def test_a_writer_is_not_waited_for(path: Path) -> None:
    with unchanged(path), file_lock(path):
        refusal(lambda: append(path, FRAME[20:]), "process", task="append")


def test_whoever_waits_gets_the_file_and_never_the_one_that_was_replaced(path: Path) -> None:
    held, order = threading.Event(), []

    def hold() -> None:
        with file_lock(path):
            held.set()
            time.sleep(0.3)
            copy = path.with_suffix(".copy")
            copy.write_bytes(path.read_bytes())
            copy.replace(path)
            order.append("replaced")

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with file_lock(path, wait_s=10):
        order.append("locked")
    thread.join()
    assert order == ["replaced", "locked"]
    with file_lock(path), pytest.raises(SocialxError, match="process"), file_lock(path):
        pass


@pytest.mark.parametrize("part", [slice(20, 40), slice(22, 30), slice(18, 40), slice(20, 45), slice(20, 60)])
def test_a_hole_is_filled_by_a_later_append(path: Path, part: slice) -> None:
    append(path, FRAME[40:])
    wanted = FRAME.to_numpy(np.float32).copy()
    hole = range(max(20, part.start), min(40, part.stop))
    filled = [row for row in hole if np.isin(FRAME.iloc[row], [0.0, np.nan]).sum() < len(IDS)]
    done = append(path, FRAME[part])
    assert (done.restored, done.rows, done.repeated) == (len(filled), 0, part.stop - part.start - len(filled))
    wanted[[row for row in range(20, 40) if row not in hole]] = np.nan
    found = open_store(path)
    assert np.array_equal(found.values[found.valid], wanted[np.isfinite(wanted) & (wanted != 0)])


@pytest.mark.parametrize(
    ("first", "part", "said"),
    [
        (slice(40, 50), slice(20, 60), ("10 rows added", "20 rows of", "60 rows x 4 sensors")),
        (slice(40, 50), slice(30, 35), ("5 rows of", "50 rows x 4 sensors")),
    ],
)
def test_the_command_says_what_it_did(path: Path, first: slice, part: slice, said: tuple[str, ...]) -> None:
    full = FRAME.fillna(50.0).replace(0.0, 50.0)
    path = file_of(full[:20], path.parent, "full")
    append(path, full[first])
    last = str(open_store(path).timestamps[-1].decode()) if part.stop < 50 else "2024-02-01 00:55:00"
    done = works("append", path, table(path, full[part]))
    assert [words for words in (str(path), *said, last) if words not in done.stdout] == []
    if part.stop == 60:
        assert content(path)["data/features"] == content(file_of(full, path.parent, "whole"))["data/features"]
        assert "unchanged" in works("append", path, table(path, full[part])).stdout


def test_what_some_sensors_lack_is_filled_and_no_reading_is_changed(path: Path) -> None:
    full = frames.network(60, ids=IDS).fillna(50.0)
    path = file_of(full[:20], path.parent, "full")
    append(path, full[40:])
    append(path, full[20:30][["11"]])
    assert (append(path, full[20:40][["12", "13", "14"]]).restored, append(path, full[20:40]).restored) == (20, 10)
    assert np.array_equal(open_store(path).values, full.to_numpy(np.float32))
    for other in (full[15:40].assign(**{"12": np.nan}), full[15:40] + 1):
        with unchanged(path):
            refusal(lambda other=other: append(path, other), "readings", task="append")


def test_a_long_hole_over_many_chunks_and_a_disk_without_room_for_it(tmp_path: Path) -> None:
    frame = frames.network(2000, ids=IDS)
    path = file_of(frame[:700], tmp_path)
    append(path, frame[1390:], fill_gaps=True)
    new, size = table(path, frame[700:1390]), path.stat().st_size
    for room in range(0, 40_000, 4_000):
        with unchanged(path), room_for(size + room):
            refusal(lambda: socialx.append(path, new), "cannot be written", task="append")
    done = append(path, frame[600:1500])
    assert (done.restored, done.repeated) == (690, 210)
    assert np.array_equal(open_store(path).values, frame.to_numpy(np.float32), equal_nan=True)
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("task", ["append", "backfill"])
def test_a_file_that_somebody_replaces_stays_theirs(path: Path, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, moved = file_of(FRAME[5:25], path.parent, "theirs", timezone=None).read_bytes(), path.with_name("moved.h5")
    path.write_bytes(theirs)

    def replace(copy: Path) -> None:
        moved.write_bytes(theirs)
        moved.replace(path)

    spoil_copies(monkeypatch, replace)
    works = {"append": lambda: append(path, FRAME[25:]), "backfill": lambda: socialx.backfill(path, timezone="UTC")}
    refusal(works[task], "changed", "command", task=task)
    assert path.read_bytes() == theirs
    assert not list(path.parent.glob("*.tmp"))


def test_convert_does_not_overwrite_a_file_that_is_write_protected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # whoever runs this may be root
    with unchanged(path):
        refusal(lambda: file_of(FRAME, path.parent), "read-only")


def coded(rows: int = 60) -> pd.DataFrame:
    """Speeds of which some are -1, some 0 and some 255."""
    frame = frames.network(rows, ids=IDS).fillna(50.0).round(1)
    chance = np.random.default_rng(1).random(frame.shape)
    return frame.mask(chance < 0.3, 255.0).mask(chance < 0.2, 0.0).mask(chance < 0.1, -1.0)


def codes(path: Path) -> str | None:
    """The further numbers that a file says to stand for no reading."""
    return content(path).get(f"metadata@{CODES}")


def noted(path: Path, frame: pd.DataFrame) -> str:
    """What append says of a table."""
    return works("append", path, table(path, frame)).stderr


@pytest.mark.parametrize("missing", ["-1,0", "-1,0,255", "0,-1,255", "255,-1"])
def test_append_applies_all_codes_of_the_conversion(tmp_path: Path, missing: str) -> None:
    frame = coded()
    whole = content(file_of(frame, tmp_path, missing=missing))
    path = file_of(frame[:20], tmp_path, missing=missing)
    append(path, frame[18:40])
    append(path, frame[40:])
    assert content(path) == whole
    unread = [float(code) for code in missing.split(",")]
    assert open_store(path).valid.sum() == np.isin(frame, unread, invert=True).sum()


def test_append_keeps_the_codes_that_it_is_given(tmp_path: Path) -> None:
    frame = coded().replace({0.0: 50.0})
    path = file_of(frame[:20].replace(255.0, 50.0), tmp_path, missing="-1")
    append(path, frame[20:40], missing="-1,255")
    append(path, frame[40:])
    assert codes(path) == "[255.]"
    assert not (open_store(path).values == 255).any()
    assert codes(file_of(coded(), tmp_path, missing="0")) is None


def test_zeros_that_the_file_never_had_are_noted(tmp_path: Path) -> None:
    frame = coded()
    zeros = int((frame[30:] == 0).to_numpy().sum())
    path = file_of(frame[:30].replace(0.0, 50.0), tmp_path, missing="-1")
    assert re.search(rf"{zeros} zeros[^\n]*\n.*--missing 0", noted(path, frame[30:]))
    assert "zeros count" not in noted(path, coded(80)[60:])  # it has some now
    for missing in ("0", "-1,0"):
        path = file_of(frame[:30].replace(0.0, 50.0), tmp_path, missing=missing)
        assert "zeros count" not in noted(path, frame[30:])


def test_codes_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    path = file_of(coded()[:30], tmp_path, missing="-1,0")
    changed(path, lambda file: file["metadata"].attrs.__setitem__(CODES, "none"))
    refusal(lambda: append(path, coded()[30:]), CODES, task="append")
