"""What converting costs: seconds against pandas' own parse, and peak memory of a network of a year and a half.

    python benchmarks/convert.py --csv METR-LA.csv --meta-csv sensor_locations.csv   time, interleaved, medians
    python benchmarks/convert.py --large                                         52,116 rows x 8,600 sensors, needs 3 GB

Every round runs in a process of its own, whose peak memory is the kernel's own figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, known, parser, write

RESULT = RESULTS / "convert.json"
ROWS, SENSORS, PIECE = 52_116, 8_600, 512
PARSE = """
import pandas, sys, time
began = time.perf_counter()
pandas.read_csv(sys.argv[1], index_col=0)
print(time.perf_counter() - began)
"""
CONVERT = """
import pandas, sys, time
from pathlib import Path
from socialx.files.store import writer
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.readings import read
began = time.perf_counter()
csv, meta, output = map(Path, sys.argv[1:])
writer.create(output, read("auto", ConvertOptions(csv, meta_csv=meta)), overwrite=True)
print(time.perf_counter() - began)
"""
# A child's peak in rusage includes its parent's memory at the fork; the kernel's VmHWM is its own.
COMMAND = """
import atexit, sys
from socialx.cli import app
atexit.register(lambda: print(*(line for line in open("/proc/self/status") if line.startswith("VmHWM"))))
app(sys.argv[1:])  # ends with an exit
"""


def run(code: str, *arguments: str | Path) -> str:
    """What a process prints."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def published(csv: Path, meta: Path, folder: Path, rounds: int) -> dict[str, float]:
    """Medians over interleaved rounds, each timed inside its process, without its imports."""
    ways = {"pandas_parse": partial(run, PARSE, csv), "convert": partial(run, CONVERT, csv, meta, folder / "out.h5")}
    seconds = np.array([[float(way()) for way in ways.values()] for _ in range(rounds)])
    medians = dict(zip(ways, np.median(seconds, axis=0).round(3).tolist(), strict=True))
    return medians | {"convert_over_parse": round(medians["convert"] / medians["pandas_parse"], 2)}


def large(folder: Path) -> dict[str, float]:
    """A year and a half of California's sensors as .npy, float32 speeds with gaps: seconds and peak MiB."""
    locations, source, output = folder / "locations.csv", folder / "large.npy", folder / "out.h5"
    ids = [str(1_000_000 + i) for i in range(SENSORS)]
    rows = (f"{vdid},{33 + i / 1000},{-118 + i / 1000}" for i, vdid in enumerate(ids))
    locations.write_text("\n".join(["sensor_id,latitude,longitude", *rows]) + "\n")
    (folder / "ids.txt").write_text("\n".join(ids) + "\n")
    dice = np.random.default_rng(0)
    array = np.lib.format.open_memmap(source, "w+", np.float32, (ROWS, SENSORS))
    for first in range(0, ROWS, PIECE):
        shape = (min(PIECE, ROWS - first), SENSORS)
        array[first : first + PIECE] = np.where(dice.random(shape) < 0.08, 0, dice.normal(60, 8, shape).round(1))
    del array
    common = ("--meta-csv", locations, "--units", "mph", "--missing", "0", "--name", "large")
    clock = ("--ids", folder / "ids.txt", "--first-time", "2017-01-01 00:00:00", "--freq", "5min")
    began = time.perf_counter()
    peak = run(COMMAND, "convert", "npy", source, *clock, *common, "--output-h5", output).rpartition("VmHWM:")[2]
    seconds = time.perf_counter() - began  # the imports of the command included
    return {"seconds": round(seconds, 1), "peak_mib": round(int(peak.split()[0]) / 1024)}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--csv", type=Path)
    arguments.add_argument("--meta-csv", type=Path)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--large", action="store_true")
    given = arguments.parse_args()
    result: dict[str, Any] = known(RESULT)
    with tempfile.TemporaryDirectory() as folder:
        if given.csv and given.meta_csv:
            result[given.csv.stem] = published(given.csv, given.meta_csv, Path(folder), given.rounds)
        if given.large:
            result[f"{ROWS:,} x {SENSORS:,}"] = {"npy": large(Path(folder))}
    write(RESULT, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
