"""A disk without space ends convert and backfill with one line and exit code 1, and nothing is left or changed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import ROOT
from tests.data_files import speeds, timestamps, unchanged, write_csv, write_locations, write_stations
from tests.older_files import IDS, OLDER

pytestmark = pytest.mark.slow  # a process for every size

# The whole command as users start it, in a process that really ends: HDF5 writes again when it does.
SCRIPT = """
import resource, sys
limit = int(sys.argv.pop(1))
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from socialx.cli import main
main()
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder in which small disks are mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    if folder.is_mount():
        subprocess.run(["umount", folder], check=True)


def mount(folder: Path, size: int) -> None:
    """A disk of so many bytes; a test without the right to mount one is left out."""
    if shutil.which("mount") is None:
        pytest.skip("no mount")
    if folder.is_mount():
        subprocess.run(["umount", folder], check=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if done.returncode:
        pytest.skip("no right to mount a disk")


def run(limit: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command with files of at most ``limit`` bytes; 0 is without limit."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", SCRIPT, str(limit), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def check(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode == 1, (done.returncode, done.stderr)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "cannot be written" in line
    assert words in line
    assert line in done.stderr.splitlines()[-2:]
    assert "Traceback" not in done.stderr


def conversion(folder: Path, output: Path) -> tuple[str | Path, ...]:
    ids = tuple(str(1000 + place) for place in range(200))
    csv = write_csv(folder / "data.csv", timestamps(300), speeds(300, 200), ids)
    locations = write_locations(folder / "locations.csv", ids)
    return "convert", "csv", csv, "--meta-csv", locations, "--units", "mph", "--output-h5", output


@pytest.mark.parametrize("size", [4, 8, 16, 40, 64, 100, 120])
def test_convert_onto_a_full_disk(tmp_path: Path, disk: Path, size: int) -> None:
    mount(disk, size << 10)
    check(run(0, *conversion(tmp_path, disk / "out.h5")), "No space left on device")
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("size", [100, 5_000, 30_000, 60_000, 90_000, 120_000])
def test_convert_into_a_file_that_may_not_grow(tmp_path: Path, size: int) -> None:
    out = tmp_path / "out"
    out.mkdir()
    check(run(size, *conversion(tmp_path, out / "out.h5")), "File too large")
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("more", [0, 1, 4, 8])
@pytest.mark.parametrize("name", ["P0", "M1", "V0"])
def test_backfill_on_a_full_disk(tmp_path: Path, disk: Path, name: str, more: int) -> None:
    mount(disk, 1 << 20)
    path, stations = OLDER[name](disk / "old.h5"), write_stations(tmp_path / "meta.csv", IDS)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    (disk / "filler").write_bytes(b"\1" * (free - min(more << 10, path.stat().st_size)))
    with unchanged(path):
        check(run(0, "backfill", path, "--meta-csv", stations, "--rewrite"), "No space left on device")
    assert sorted(each.name for each in disk.iterdir()) == ["filler", "old.h5"]


@pytest.mark.parametrize("more", [-1_000_000, -1, 1, 100, 1000, 3000])  # than the file has; at least one byte
@pytest.mark.parametrize("name", ["P0", "M1"])
def test_backfill_of_a_file_that_may_not_grow(tmp_path: Path, name: str, more: int) -> None:
    path, stations = OLDER[name](tmp_path / "old.h5"), write_stations(tmp_path / "meta.csv", IDS)
    with unchanged(path):
        check(run(max(1, path.stat().st_size + more), "backfill", path, "--meta-csv", stations), "File too large")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["meta.csv", "old.h5"]
