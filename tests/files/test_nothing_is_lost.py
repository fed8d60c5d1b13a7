"""Damage to a data file is refused in one line, or harmless; kills are in tests/fuzz."""

import os
import random
import select
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from socialx.files.store.store import open_store
from tests.data_files import backfill, refusal, small_store
from tests.older_files import OLDER

pytestmark = pytest.mark.slow


def damaged(whole: bytes, dice: random.Random, heap: int | None) -> bytes:
    """One of: a flipped bit, a zeroed stretch, a cut, a foreign stretch; none in the 4 KB from ``heap`` on."""
    while True:
        place, length, kind = dice.randrange(len(whole)), dice.randrange(1, 512), dice.randrange(4)
        length = 1 if kind == 0 else length
        if kind == 2 or heap is None or place >= heap + 4096 or place + length <= heap:
            break
    if kind == 2:
        return whole[:place]
    stretch = (bytes([whole[place] ^ 1 << dice.randrange(8)]), bytes(length), b"", dice.randbytes(length))[kind]
    return whole[:place] + stretch + whole[place + length :]


CHECK = """
import hashlib, sys
from pathlib import Path
from tests.data_files import backfill
from socialx.files.store.store import open_store
from socialx.core.errors import SocialxError
for line in sys.stdin:
    path = Path(line.strip())
    before = path.read_bytes()
    try:
        if path.name.startswith("old"):
            backfill(path)
        store = open_store(path)
        print("read", store.checksum, store.sensors.latitude.tobytes().hex(), flush=True)
    except SocialxError as error:
        kept = path.read_bytes() == before
        print("refused" if kept and len(str(error).splitlines()) <= 2 else "spoilt", flush=True)
"""


def cpu_s(process: int) -> float:
    """Seconds of a processor that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answers(checker: subprocess.Popen[str]) -> bool:
    """Whether a line comes before so much computing that only a loop without end needs it."""
    before = cpu_s(checker.pid)
    while cpu_s(checker.pid) - before < 5:
        if select.select([checker.stdout], [], [], 0.1)[0]:
            return True
    return False


def completed(original: Path, path: Path) -> Path:
    """A copy of a file with all that backfill knows to add: nothing to one of ours."""
    shutil.copyfile(original, path)
    backfill(path)
    return path


def outcomes(folder: Path, original: Path, name: str, heap: int | None, trials: int = 250) -> Counter[str]:
    """Read damaged copies in a process of its own, for HDF5 may take it down; how often each outcome was seen."""
    whole, dice, found = original.read_bytes(), random.Random(5), Counter[str]()
    expected = open_store(completed(original, folder / "completed.h5"))
    right = ["read", expected.checksum, expected.sensors.latitude.tobytes().hex()]
    checker: subprocess.Popen[str] | None = None
    for trial in range(trials):
        path = folder / f"{name}{trial}.h5"
        path.write_bytes(damaged(whole, dice, heap))
        if checker is None or checker.poll() is not None:
            command = [sys.executable, "-c", CHECK]
            checker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert checker.stdin is not None
        assert checker.stdout is not None
        print(path, file=checker.stdin, flush=True)
        if not answers(checker):
            checker.kill()
            checker.wait()
            found["HDF5 hangs"] += 1
            continue
        answer = checker.stdout.readline().split()
        if not answer:
            found["HDF5 crashes" if checker.wait() < 0 else "traceback"] += 1
        elif answer[0] == "read":
            found["read" if answer == right else "silent"] += 1
        else:
            found[answer[0]] += 1
    return found


@pytest.mark.timeout(600)
def test_damage_to_a_file_of_ours_is_harmless_or_refused_in_one_line(tmp_path: Path) -> None:
    original = small_store(tmp_path / "original.h5")
    # The texts of attributes lie in a heap that no checksum guards, and HDF5 2.0 itself may loop there for ever.
    found = outcomes(tmp_path, original, "new", original.read_bytes().index(b"GCOL"))
    assert set(found) == {"read", "refused"}, found
    assert found["refused"] > 80


@pytest.mark.timeout(600)
def test_backfill_of_a_damaged_older_file_keeps_it_or_refuses_in_one_line(tmp_path: Path) -> None:
    """Without checksums, damage to positions or to the structure may be silent or take HDF5 down, but costs no file."""
    original = OLDER["M2"](tmp_path / "original.h5")
    refusal(lambda: open_store(original), f"socialx backfill {original}")
    found = outcomes(tmp_path, original, "old", None)
    assert set(found) <= {"read", "refused", "silent", "HDF5 crashes", "HDF5 hangs"}, found
    assert found["refused"] > 80
    assert found["silent"] + found["HDF5 crashes"] + found["HDF5 hangs"] < 8, found
