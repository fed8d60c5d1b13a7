"""A network of 8,600 sensors is converted in bounded memory, from text and from arrays; a 20th of a year and a half."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from socialx.files.store.store import open_store
from tests.commands import ROOT
from tests.data_files import timestamps

pytestmark = pytest.mark.slow
ROWS, SENSORS = 52_116 // 20, 8_600
BUDGET_MIB = 300  # it takes 257, with twice the rows too: the numbers are 180 MB, the libraries alone take 130 MiB


# A child's peak in rusage includes its parent's memory at the fork; the kernel's VmHWM is its own.
SCRIPT = """
import atexit, sys
from socialx.cli import app
atexit.register(lambda: print(*(line for line in open("/proc/self/status") if line.startswith("VmHWM"))))
app(["convert", *sys.argv[1:]])
"""


def peak_mib(*arguments: str | Path) -> float:
    """Convert in a process of its own -> its peak resident memory."""
    # glibc keeps what large arrays gave back once it has seen a few, and how much depends on luck: 60 MiB here.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1048576"}
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.rpartition("VmHWM:")[2].split()[0]) / 1024


@pytest.mark.timeout(300)
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    ids = [str(1_000_000 + i) for i in range(SENSORS)]
    (tmp_path / "ids.txt").write_text("\n".join(ids))
    places = (f"{vdid},{33 + i / 1000},{-118 + i / 1000}" for i, vdid in enumerate(ids))
    (tmp_path / "meta.csv").write_text("\n".join(["sensor_id,latitude,longitude", *places]))
    days = np.random.default_rng(0).integers(0, 800, (97, SENSORS)).astype(np.float32) / 10  # they come again and again
    values = np.resize(days, (ROWS, SENSORS))
    np.save(tmp_path / "d.npy", values)
    times, texts = timestamps(ROWS), [",".join(map(str, row)) for row in days.tolist()]
    with (tmp_path / "d.csv").open("w") as file:
        file.write("," + ",".join(ids) + "\n")
        for time, text in zip(times, cycle(texts), strict=False):
            file.write(f"{time},{text}\n")
    common = ["--meta-csv", tmp_path / "meta.csv", "--units", "mph", "--missing", "0", "--output-h5"]
    clock = ["--ids", tmp_path / "ids.txt", "--first-time", times[0], "--freq", "5min"]
    assert peak_mib("csv", tmp_path / "d.csv", *common, tmp_path / "csv.h5") < BUDGET_MIB
    assert peak_mib("npy", tmp_path / "d.npy", *clock, *common, tmp_path / "npy.h5") < BUDGET_MIB
    for name in ("csv.h5", "npy.h5"):
        store = open_store(tmp_path / name)
        assert store.values.tobytes() == values.tobytes()
        assert store.timestamps[-1].decode() == times[-1]
