"""What converting costs: seconds against pandas' own parse, and peak memory of a network of a year and a half.

    python benchmarks/convert.py --csv METR-LA.csv --meta-csv sensor_locations.csv   time, interleaved, medians
    python benchmarks/convert.py --large                                         52,116 rows x 8,600 sensors, needs 3 GB
    python benchmarks/convert.py --neighbours                the nearest and the 64 nearest of 8,600 and 100,000 sensors
Every round runs in a process of its own, whose peak is the kernel's VmHWM: rusage counts its parent's memory too.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path
from timeit import repeat

import numpy as np

from benchmarks.common import RESULTS, known, parser, write
from socialx.data.geo import nearest_neighbours

RESULT = RESULTS / "convert.json"
ROWS, SENSORS, PIECE = 52_116, 8600, 512
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
began, (csv, meta, output) = time.perf_counter(), map(Path, sys.argv[1:])
writer.create(output, read("auto", ConvertOptions(csv, meta_csv=meta)), overwrite=True)
print(time.perf_counter() - began)
"""
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
    ways = ((PARSE, csv), (CONVERT, csv, meta, folder / "out.h5"))
    seconds = np.array([[float(run(*way)) for way in ways] for _ in range(rounds)])
    parse, convert = np.median(seconds, axis=0).round(3).tolist()
    return {"pandas_parse": parse, "convert": convert, "convert_over_parse": round(convert / parse, 2)}


def large(folder: Path) -> dict[str, float]:
    """A year and a half of California's sensors as .npy, float32 speeds with gaps: seconds and peak MiB."""
    locations, source, output = folder / "locations.csv", folder / "large.npy", folder / "out.h5"
    ids = [str(1_000_000 + i) for i in range(SENSORS)]
    rows = (f"{vdid},{33 + i / 1000},{-118 + i / 1000}\n" for i, vdid in enumerate(ids))
    locations.write_text("".join(["sensor_id,latitude,longitude\n", *rows]))
    (folder / "ids.txt").write_text("\n".join(ids) + "\n")
    dice = np.random.default_rng(0)
    array = np.lib.format.open_memmap(source, "w+", np.float32, (ROWS, SENSORS))
    for first in range(0, ROWS, PIECE):
        shape = (min(PIECE, ROWS - first), SENSORS)
        array[first : first + PIECE] = np.where(dice.random(shape) < 0.08, 0, dice.normal(60, 8, shape).round(1))
    del array
    words = f"npy {source} --ids {folder}/ids.txt --meta-csv {locations} --output-h5 {output} --units mph --missing 0"
    began = time.perf_counter()
    peak = run(COMMAND, "convert", *words.split(), "--first-time", "2017-01-01", "--freq", "5min", "--name", "large")
    seconds = time.perf_counter() - began  # the imports of the command included
    return {"seconds": round(seconds, 1), "peak_mib": round(int(peak.split()[-2]) / 1024)}


def main() -> None:
    arguments = parser(__doc__, rounds=7, large=False, neighbours=False)
    arguments.add_argument("--csv", type=Path)
    arguments.add_argument("--meta-csv", type=Path)
    given = arguments.parse_args()
    result = known(RESULT)
    with tempfile.TemporaryDirectory() as folder:
        if given.csv and given.meta_csv:
            result[given.csv.stem] = published(given.csv, given.meta_csv, Path(folder), given.rounds)
        if given.large:
            result[f"{ROWS:,} x {SENSORS:,}"] = {"npy": large(Path(folder))}
    if given.neighbours:
        for n, k in product((SENSORS, 100_000), (1, 64)):
            search = partial(nearest_neighbours, np.random.default_rng(0).uniform(0, 300, (n, 2)), k)
            result.setdefault("neighbours", {})[f"{k} of {n:,}"] = round(min(repeat(search, number=1, repeat=3)), 2)
    write(RESULT, result)
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
